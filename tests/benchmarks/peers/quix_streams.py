"""Quix Streams on the events of a topic: it parses each, keeps the state of its call and sends a
latency where the call gets one, with its delivery guarantee as an option.

It runs in an environment of its own, so it imports nothing of ours. It prints how many events it
handled and the processor time from the first of them to the last commit, as JSON.
"""

import argparse
import json
import tempfile
import time
from typing import Any

from quixstreams import Application, State

ASSISTANT = "assistant"


def main() -> None:
    """Handles this many events, then commits and ends."""
    parser = argparse.ArgumentParser(prog="quix_streams.py")
    parser.add_argument("bootstrap")
    parser.add_argument("topic")
    parser.add_argument("output")
    parser.add_argument("events", type=int)
    parser.add_argument("guarantee", choices=("at-least-once", "exactly-once"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(handled(arguments, folder)))


def handled(arguments: argparse.Namespace, folder: str) -> dict[str, float]:
    """Runs the application; its states are in this folder and in a topic of Kafka's."""
    app = Application(
        broker_address=arguments.bootstrap,
        consumer_group=arguments.output,
        auto_offset_reset="earliest",
        processing_guarantee=arguments.guarantee,
        commit_interval=1.0,
        state_dir=folder,
        loglevel="ERROR",
    )
    events, begin = 0, 0.0

    def latency_of(event: dict[str, Any], state: State) -> dict[str, Any] | None:
        nonlocal events, begin
        if not events:
            begin = time.process_time()
        events += 1
        if events == arguments.events:
            app.stop()
        call = state.get("call") or {"events": 0, "turn": 0, "ended_s": None}
        call["events"] += 1
        row = None
        kind = event.get("event_type")
        if kind == "audio_end" and event["user"] != ASSISTANT:
            call["ended_s"] = event["audio_timestamp"]
        elif kind == "audio_start" and event["user"] == ASSISTANT and call["ended_s"] is not None:
            call["turn"] += 1
            row = {"turn": call["turn"], "latency_s": event["audio_timestamp"] - call["ended_s"]}
            call["ended_s"] = None
        state.set("call", call)
        return row

    frame = app.dataframe(app.topic(arguments.topic, value_deserializer="json"))
    frame = frame.apply(latency_of, stateful=True).filter(lambda row: row is not None)
    frame.to_topic(app.topic(arguments.output, value_serializer="json"))
    app.run()
    return {"events": events, "processor_seconds": time.process_time() - begin}


if __name__ == "__main__":
    main()
