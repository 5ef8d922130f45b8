"""The delay from an event to its latency on `/metrics`, over the whole way and with a load of 2,000 events/s.

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

from schemas.closed_sets import InputSource
from schemas.topics import TOPIC_BY_SOURCE
from tests.benchmarks.evaluator_cost import (
    LIVE_LINES,
    PARTITIONS,
    RAMP_SECONDS,
    READY_SECONDS,
    address_of,
    create_topics,
    environment,
)
from tests.benchmarks.figures import Figures, say
from tests.chaos.load.load import LoadProcess
from tests.integration.processes import started

PROBES: Final = 200
AGENT: Final = "bench-probe"
MOST_SECONDS: Final = 10.0
LOOK_SECONDS: Final = 0.01
PAUSE_SECONDS: Final = 0.3
PROBES_A_LOOK: Final = 10
"""Each look at the evaluator's page costs it some milliseconds."""
MOST_BEHIND_MS: Final = 100
"""The load looks for due events every 10 ms; beyond this, processes wait longer for a processor than events for us."""
MOST_LATE_SHARE: Final = 0.01
"""More of them would decide the time of 99 of 100 answers."""
MOST_LAG_SECONDS: Final = 1.0
_COUNTED = re.compile(rf'^callgauge_turn_response_latency_seconds_count\{{.*agent="{AGENT}".*\}} (\S+)$', re.MULTILINE)
_LAG = re.compile(r"^callgauge_consumer_lag_seconds\{.*\} (\S+)$", re.MULTILINE)


class _Lines:
    """One phone call on each partition, in which caller and bot take turns on request."""

    def __init__(self, bootstrap: str, prefix: str) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "log_level": 0})
        self._topic = prefix + TOPIC_BY_SOURCE[InputSource.PIPECAT]
        for number in range(PARTITIONS):
            self._send(number, {"type": "call_started", "agent": AGENT})

    def answer(self, number: int) -> float:
        """Sends one turn up to the bot's first sound; returns the time of that sound on the monotonic clock."""
        now_s = time.time()
        self._speech(number, "bot_speech_stopped", now_s - 3)  # of the turn before; harmless the first time
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


class Following:
    """Whether load and evaluator kept up with the clock: delays on a slow machine say nothing about callgauge."""

    def __init__(self) -> None:
        """Starts without an observation."""
        self.behind_ms: list[int] = []
        self.lag_seconds: list[float] = []
        self.lost_answer = ""

    def why_not(self) -> str:
        """The reason why the delays are worthless, and the remedy; empty if they are valid."""
        late = sum(behind_ms > MOST_BEHIND_MS for behind_ms in self.behind_ms)
        found = ""
        if self.lost_answer:
            found = self.lost_answer
        elif late > MOST_LATE_SHARE * len(self.behind_ms):
            found = f"the load sent events up to {max(self.behind_ms):,} ms late"
        elif (lag := max(self.lag_seconds, default=0.0)) > MOST_LAG_SECONDS:
            found = f"the evaluator lagged by up to {lag:.1f} s"
        return f"the machine could not follow: {found}; measure where nothing else runs" if found else ""


def measure_delay(figures: Figures, bootstrap: str, folder: Path) -> None:
    """Measures answers on every partition in turn, one at a time, beside the load."""
    prefix = "bench.delay."
    create_topics(bootstrap, prefix)
    settings = environment(bootstrap, prefix)
    with ExitStack() as running:
        evaluator = running.enter_context(
            started(folder / "delay-evaluator.log", "run", "--roles", "evaluator", **settings)
        )
        exporter = running.enter_context(started(folder / "exporter.log", "run", "--roles", "exporter", **settings))
        evaluator_page, exporter_page = address_of(evaluator), address_of(exporter)
        exporter.printed("exporter_ready", READY_SECONDS)
        load = LoadProcess(
            bootstrap, prefix, partitions=PARTITIONS, lines=LIVE_LINES, ramp_seconds=RAMP_SECONDS, seed=2
        )
        running.callback(load.stop)
        time.sleep(RAMP_SECONDS + 5)
        client = running.enter_context(httpx.Client(timeout=MOST_SECONDS))
        following = Following()
        delays_ms = _delays_ms(_Lines(bootstrap, prefix), client, exporter_page, evaluator_page, load, following)
    say(f"from event to /metrics at 2,000 events/s, {len(delays_ms)} answers")
    half, nearly_all = "half of them within", "99 of 100 within"
    if why := following.why_not():
        figures.not_measured("event_to_metrics_p50_ms", half, why)
        figures.not_measured("event_to_metrics_p99_ms", nearly_all, why)
        return
    cuts = statistics.quantiles(delays_ms, n=100, method="inclusive")
    figures.add("event_to_metrics_p50_ms", cuts[49], half, "ms")
    figures.add("event_to_metrics_p99_ms", cuts[98], nearly_all, "ms", goal=250)


def _delays_ms(
    lines: _Lines, client: httpx.Client, exporter: str, evaluator: str, load: LoadProcess, following: Following
) -> list[float]:
    rng = random.Random(1)  # noqa: S311 - play, not secrets
    delays_ms: list[float] = []
    for number in range(PROBES):
        time.sleep(rng.uniform(0, PAUSE_SECONDS))
        before = _sum_of(_COUNTED, client, exporter)
        sent_at = lines.answer(number % PARTITIONS)
        while _sum_of(_COUNTED, client, exporter) <= before:
            if time.monotonic() - sent_at > MOST_SECONDS:
                following.lost_answer = f"answer {number} was not on /metrics after {MOST_SECONDS:.0f} s"
                return delays_ms
            time.sleep(LOOK_SECONDS)
        delays_ms.append((time.monotonic() - sent_at) * 1_000)
        following.behind_ms.append(load.report.behind_ms)  # raises when the load broke down
        if number % PROBES_A_LOOK == 0:
            lags = _LAG.findall(client.get(evaluator).text)
            following.lag_seconds.append(max(map(float, lags), default=0.0))
    return delays_ms


def _sum_of(pattern: re.Pattern[str], client: httpx.Client, address: str) -> float:
    return sum(map(float, pattern.findall(client.get(address).text)))
