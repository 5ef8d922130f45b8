"""How long after an event its latency shows on `/metrics`, with the whole way in between and a load of 2,000 events/s.

A caller stops speaking and the bot answers; the answer's first sound gives the turn its latency. The clock runs
from handing that event to the producer to the first page of the exporter that counts it.
"""

import json
import random
import re
import statistics
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import httpx
from confluent_kafka import Producer

from schemas.codec import InputSource
from schemas.topics import TOPIC_BY_SOURCE
from tests.benchmarks.evaluator_cost import (
    LIVE_LINES,
    PARTITIONS,
    RAMP_SECONDS,
    address_of,
    create_topics,
    environment,
)
from tests.benchmarks.figures import Figures, say
from tests.chaos.load_process import LoadProcess
from tests.integration.processes import started

PROBES: Final = 200
AGENT: Final = "bench-probe"
MOST_SECONDS: Final = 10.0
LOOK_SECONDS: Final = 0.01
PAUSE_SECONDS: Final = 0.3
_COUNTED = re.compile(rf'^callgauge_turn_response_latency_seconds_count\{{.*agent="{AGENT}".*\}} (\S+)$', re.MULTILINE)


class _Lines:
    """One phone call on each partition, in which caller and bot take turns when they are asked to."""

    def __init__(self, bootstrap: str, prefix: str) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "log_level": 0})
        self._topic = prefix + TOPIC_BY_SOURCE[InputSource.PIPECAT]
        for number in range(PARTITIONS):
            self._send(number, {"type": "call_started", "agent": AGENT})

    def answer(self, number: int) -> float:
        """One turn up to the bot's first sound; when that was sent, on the monotonic clock."""
        now_s = time.time()
        self._speech(number, "bot_speech_stopped", now_s - 3)  # of the turn before; the first time nobody minds
        self._speech(number, "user_speech_started", now_s - 2)
        self._speech(number, "user_speech_stopped", now_s - 1)
        self._producer.flush(MOST_SECONDS)
        sent_at = time.monotonic()
        self._speech(number, "bot_speech_started", now_s)
        self._producer.poll(0)
        return sent_at

    def _speech(self, number: int, kind: str, at_s: float) -> None:
        self._send(number, {"type": "speech_event", "data": {"kind": kind, "timestamp": at_s}})

    def _send(self, number: int, event: dict[str, object]) -> None:
        value = json.dumps({"timestamp": time.time_ns() // 1_000_000, **event}).encode()
        self._producer.produce(self._topic, value, b"probe-%d" % number, number)


def measure_delay(figures: Figures, bootstrap: str, folder: Path) -> None:
    """Answers on every partition in turn, one at a time, beside the load."""
    prefix = "bench.delay."
    create_topics(bootstrap, prefix)
    settings = environment(bootstrap, prefix)
    rng = random.Random(1)  # noqa: S311 - play, not secrets
    delays_ms: list[float] = []
    with ExitStack() as running:
        running.enter_context(started(folder / "delay-evaluator.log", "run", "--roles", "evaluator", **settings))
        exporter = running.enter_context(started(folder / "exporter.log", "run", "--roles", "exporter", **settings))
        address = address_of(exporter)
        exporter.printed("exporter_ready")
        load = LoadProcess(
            bootstrap, prefix, partitions=PARTITIONS, lines=LIVE_LINES, ramp_seconds=RAMP_SECONDS, seed=2
        )
        running.callback(load.stop)
        time.sleep(RAMP_SECONDS + 5)
        lines = _Lines(bootstrap, prefix)
        client = running.enter_context(httpx.Client(timeout=MOST_SECONDS))
        for number in range(PROBES):
            time.sleep(rng.uniform(0, PAUSE_SECONDS))
            before = _counted(client, address)
            sent_at = lines.answer(number % PARTITIONS)
            while _counted(client, address) <= before:
                assert time.monotonic() - sent_at < MOST_SECONDS, f"answer {number} is not on {address}"
                time.sleep(LOOK_SECONDS)
            delays_ms.append((time.monotonic() - sent_at) * 1_000)
        load.report  # noqa: B018  # raises when the load broke down
    cuts = statistics.quantiles(delays_ms, n=100, method="inclusive")
    say(f"from event to /metrics at 2,000 events/s, {PROBES} answers")
    figures.add("event_to_metrics_p50_ms", cuts[49], "half of them within", "ms")
    figures.add("event_to_metrics_p99_ms", cuts[98], "99 of 100 within", "ms", goal=250)


def _counted(client: httpx.Client, address: str) -> float:
    return sum(map(float, _COUNTED.findall(client.get(address).text)))
