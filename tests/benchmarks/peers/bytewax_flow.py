"""Bytewax on the events of a topic: it parses each, keeps the state of its call in memory and sends
a latency where the call gets one.

It runs in an environment of its own, so it imports nothing of ours. It prints how many events it
handled and the processor time from the first of them to the end, as JSON.
"""

import argparse
import json
import time
from typing import Any

import bytewax.operators as op
from bytewax.connectors.kafka import KafkaSinkMessage
from bytewax.connectors.kafka import operators as kafka
from bytewax.dataflow import Dataflow
from bytewax.testing import run_main

ASSISTANT = "assistant"
POLL_RECORDS = 500
"""As many as the bare loop takes at once."""


def main() -> None:
    """Reads the topic once, up to its end."""
    parser = argparse.ArgumentParser(prog="bytewax_flow.py")
    parser.add_argument("bootstrap")
    parser.add_argument("topic")
    parser.add_argument("output")
    arguments = parser.parse_args()
    events, begin = 0, 0.0

    def parsed(message: Any) -> tuple[str, dict[str, Any]]:
        nonlocal events, begin
        if not events:
            begin = time.process_time()
        events += 1
        return message.key.decode(), json.loads(message.value)

    flow = Dataflow("calls")
    taken = kafka.input(
        "events",
        flow,
        brokers=[arguments.bootstrap],
        topics=[arguments.topic],
        tail=False,
        batch_size=POLL_RECORDS,
    )
    rows = op.stateful_map("call", op.map("parse", taken.oks, parsed), latency_of)
    sent = op.map("encode", op.filter("rows", rows, lambda row: row[1] is not None), encoded)
    kafka.output("latencies", sent, brokers=[arguments.bootstrap], topic=arguments.output)
    run_main(flow)
    seconds = time.process_time() - begin
    print(json.dumps({"events": events, "processor_seconds": seconds}))


def latency_of(
    call: dict[str, Any] | None, event: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The state of a call after an event, and the latency that it gives."""
    call = call or {"events": 0, "turn": 0, "ended_s": None}
    call["events"] += 1
    kind = event.get("event_type")
    if kind == "audio_end" and event["user"] != ASSISTANT:
        call["ended_s"] = event["audio_timestamp"]
    elif kind == "audio_start" and event["user"] == ASSISTANT and call["ended_s"] is not None:
        call["turn"] += 1
        row = {"turn": call["turn"], "latency_s": event["audio_timestamp"] - call["ended_s"]}
        call["ended_s"] = None
        return call, row
    return call, None


def encoded(row: tuple[str, dict[str, Any]]) -> KafkaSinkMessage[bytes, bytes]:
    """A row as the output topic gets it."""
    return KafkaSinkMessage(row[0].encode(), json.dumps(row[1]).encode())


if __name__ == "__main__":
    main()
