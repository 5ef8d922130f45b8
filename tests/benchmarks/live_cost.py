"""Sequencer, evaluator and exporter on a real Kafka at 2,000 events/s: what an event costs them,
and how long it is on its way.

A caller stops speaking and the bot answers; the answer's first sound gives the turn its latency,
and the exporter says how long after that event it has counted it. Its page is asked for once a
second, as Prometheus would at most: the measurement takes no part in what it measures. Processor
time is that of each process, taken from the kernel.
"""

import json
import random
import re
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

from confluent_kafka import Producer

from schemas.closed_sets import InputSource, PipelineType
from schemas.metrics.process import STEP_METRIC
from schemas.topics import TOPIC_BY_SOURCE
from tests.benchmarks.evaluator_cost import (
    BARE,
    PARTITIONS,
    READY_SECONDS,
    address_of,
    create_topics,
    environment,
    folded_of,
)
from tests.benchmarks.figures import Figures, say
from tests.chaos.load.load import LoadProcess
from tests.integration.metrics_page import page
from tests.integration.processes import started

LIVE_LINES: Final = 1_000
"""This many calls at a time make about 2,000 events/s."""
RAMP_SECONDS: Final = 15.0
LIVE_SECONDS: Final = 40
MANY_PARTITIONS: Final = 64
PROBES: Final = 48
"""Calls that answer in turn, so that one turn of a call is over before the next begins."""
ANSWERS_A_SECOND: Final = 12
PROBED: Final = PipelineType.AUDIO_LLM
"""The kind of agent of these calls, which no other call has: by it the exporter tells their delays
from others.
"""
OTHERS: Final = ("phone", "cascade", "s2s")
MOST_SECONDS: Final = 10.0
LOOKS_SECONDS: Final = 10
"""Between two looks at the evaluator's page, each of which costs it some milliseconds."""
MOST_BEHIND_MS: Final = 100
"""The load looks for due events every 10 ms; beyond this, processes wait longer for a processor
than events for us.
"""
MOST_LATE_SHARE: Final = 0.01
"""More of them would decide the time of 99 of 100 answers."""
MOST_LAG_SECONDS: Final = 1.0
MOST_WAITED_SHARE: Final = 0.5
"""Of the processor time that an evaluator got, how long it may have waited for it."""
STEPS: Final = ("polled", "folded", "written", "committed", "counted")
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0"
"""The page as Prometheus asks for it, with exemplars: the larger one."""
_BUCKET: Final = r"^{name}_bucket\{{[^}}]*{label}[^}}]*\}} (\S+)"
_LE: Final = re.compile(r'le="([^"]+)"')
_LAG: Final = re.compile(r"^callgauge_consumer_lag_seconds\{.*\} (\S+)$", re.MULTILINE)

Buckets = Mapping[float, float]
"""How many values are at most as large as each edge, in seconds."""


def buckets_in(text: str, name: str, label: str) -> Buckets:
    """The series of a histogram that have this label, added up."""
    found: dict[float, float] = {}
    for line in re.finditer(_BUCKET.format(name=name, label=re.escape(label)), text, re.MULTILINE):
        edge = _LE.search(line[0])
        assert edge is not None, line[0]
        found[float(edge[1])] = found.get(float(edge[1]), 0.0) + float(line[1])
    return found


def quantile_ms(share: float, before: Buckets, after: Buckets) -> float:
    """This share of the values between two looks at a histogram is at most so large; straight
    between edges, as in Prometheus.

    Returns:
        Milliseconds; infinite beyond the last edge, and not a number if there was no value.
    """
    counts = {edge: after[edge] - before.get(edge, 0.0) for edge in sorted(after)}
    rank = share * counts[float("inf")] if counts else 0.0
    if not rank:
        return float("nan")
    low, below = 0.0, 0.0
    for edge, count in counts.items():
        if count >= rank:
            return (
                edge * 1_000
                if edge == float("inf")
                else (low + (edge - low) * (rank - below) / (count - below)) * 1_000
            )
        low, below = edge, count
    raise AssertionError("the last bucket has all values")


class _Lines:
    """Phone calls on all partitions, in which caller and bot take turns on request."""

    def __init__(self, bootstrap: str, prefix: str, partitions: int) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "log_level": 0})
        self._topic = prefix + TOPIC_BY_SOURCE[InputSource.PIPECAT]
        self._partitions = partitions
        for number in range(PROBES):
            self._send(
                number, {"type": "call_started", "agent": "bench-probe", "pipeline_type": PROBED}
            )

    def answer(self, number: int) -> None:
        """Sends one turn of a call, up to the bot's first sound."""
        now_s = time.time()
        # of the turn before; harmless the first time
        self._speech(number, "bot_speech_stopped", now_s - 3)
        self._speech(number, "user_speech_started", now_s - 2)
        self._speech(number, "user_speech_stopped", now_s - 1)
        self._producer.flush(MOST_SECONDS)
        self._speech(number, "bot_speech_started", now_s)
        self._producer.poll(0)

    def _speech(self, number: int, kind: str, at_s: float) -> None:
        self._send(number, {"type": "speech_event", "data": {"kind": kind, "timestamp": at_s}})

    def _send(self, number: int, event: dict[str, object]) -> None:
        value = json.dumps({"timestamp": time.time_ns() // 1_000_000, **event}).encode()
        self._producer.produce(self._topic, value, b"probe-%d" % number, number % self._partitions)


class Following:
    """Whether load and evaluator kept up with the clock: delays on a slow machine say nothing about
    callgauge.
    """

    def __init__(self) -> None:
        """Starts without an observation."""
        self.behind_ms: list[int] = []
        self.lag_seconds: list[float] = []
        self.waited_share = 0.0

    def why_not(self) -> str:
        """The reason why the delays are worthless, and the remedy; empty if they are valid."""
        late = sum(behind_ms > MOST_BEHIND_MS for behind_ms in self.behind_ms)
        found = ""
        if late > MOST_LATE_SHARE * len(self.behind_ms):
            found = f"the load sent events up to {max(self.behind_ms):,} ms late"
        elif (lag := max(self.lag_seconds, default=0.0)) > MOST_LAG_SECONDS:
            found = f"the evaluator lagged by up to {lag:.1f} s"
        elif self.waited_share > MOST_WAITED_SHARE:
            found = (
                f"the evaluator waited for a processor {self.waited_share:.2f} times as long as it "
                "had one"
            )
        return (
            f"the machine could not follow: {found}; measure where nothing else runs"
            if found
            else ""
        )


class _Moment(NamedTuple):
    """The readings at one moment: seconds of the clock and of the processor, also what the pages of
    the exporter took so far, events folded, and the times of each step so far.
    """

    at: float
    sequencer: float
    evaluator: float
    exporter: float
    exporter_pages: float
    events: int
    evaluator_page: str
    exporter_page: str


class _Live(NamedTuple):
    """The figures of one run between two moments; times are in us of processor time for each event
    of the inputs.
    """

    begin: _Moment
    end: _Moment
    following: Following

    @property
    def events(self) -> int:
        return self.end.events - self.begin.events

    @property
    def evaluator_us(self) -> float:
        return (self.end.evaluator - self.begin.evaluator) / self.events * 1e6

    @property
    def exporter_us(self) -> float:
        return (self.end.exporter - self.begin.exporter) / self.events * 1e6

    @property
    def exporter_pages_us(self) -> float:
        return (self.end.exporter_pages - self.begin.exporter_pages) / self.events * 1e6

    def delay_ms(self, share: float) -> float:
        """So long at most took this share of the records of the probing calls, from the event to
        the exporter's count.
        """
        name, label = "callgauge_event_to_score_seconds", f'pipeline="{PROBED}"'
        looks = (buckets_in(each.exporter_page, name, label) for each in (self.begin, self.end))
        return quantile_ms(share, *looks)

    def step_ms(self, step: str, share: float) -> float:
        """So long at most took a step of this share of all events that changed a score."""
        looks = (
            buckets_in(
                each.exporter_page if step == "counted" else each.evaluator_page,
                STEP_METRIC,
                f'step="{step}"',
            )
            for each in (self.begin, self.end)
        )
        return quantile_ms(share, *looks)


def measure_live(figures: Figures, bootstrap: str, folder: Path) -> None:
    """Measures the cost of an event that comes alone, in calls at their own pace, and its way to
    `/metrics`.
    """
    live = _measured(bootstrap, folder, "bench.live.", PARTITIONS)
    seconds = live.end.at - live.begin.at
    say(f"on Kafka, live, {LIVE_LINES:,} calls at a time, {live.events / seconds:,.0f} events/s")
    figures.add("evaluator_us_per_event_live", live.evaluator_us, "evaluator", "us/event")
    what = "the same, times the bare loop on a backlog"
    if (bare_us := figures.value(BARE)) is not None:
        figures.add("evaluator_live_of_bare", live.evaluator_us / bare_us, what, "x", goal=15)
    else:
        figures.not_measured("evaluator_live_of_bare", what, "measure `backlog` in the same run")
    share = (live.end.evaluator - live.begin.evaluator) / seconds
    figures.add("evaluator_live_core_share", share, "evaluator, of one core", "cores")
    both = share + (live.end.sequencer - live.begin.sequencer) / seconds
    figures.add(
        "both_live_core_share", both, "sequencer and evaluator together", "cores", goal=0.45
    )
    figures.add(
        "exporter_us_per_event_live",
        live.exporter_us,
        "exporter, its page asked for once a second",
        "us/event",
        goal=15,
    )
    figures.add(
        "exporter_us_per_event_without_page",
        live.exporter_us - live.exporter_pages_us,
        "the same without its page",
        "us/event",
        goal=20,
    )
    half, nearly_all = "from event to counted, half of them within", "the same, 99 of 100 within"
    if why := live.following.why_not():
        figures.not_measured("event_to_counted_p50_ms", half, why)
        figures.not_measured("event_to_counted_p99_ms", nearly_all, why)
        return
    figures.add("event_to_counted_p50_ms", live.delay_ms(0.5), half, "ms", goal=120)
    figures.add("event_to_counted_p99_ms", live.delay_ms(0.99), nearly_all, "ms", goal=300)
    for step in STEPS:
        say(
            f"    until {step:<10} p50 {live.step_ms(step, 0.5):5.0f} ms   p99 "
            f"{live.step_ms(step, 0.99):5.0f} ms"
        )


def measure_many_partitions(figures: Figures, bootstrap: str, folder: Path) -> None:
    """Measures the same load on more partitions, most of which are empty at any moment."""
    what = f"evaluator with {MANY_PARTITIONS} partitions, times {PARTITIONS}"
    few_us = figures.value("evaluator_us_per_event_live")
    if few_us is None:
        figures.not_measured("many_partitions_of_few", what, "measure `live` in the same run")
        return
    live = _measured(bootstrap, folder, "bench.partitions.", MANY_PARTITIONS)
    figures.add(
        "evaluator_us_per_event_many_partitions",
        live.evaluator_us,
        f"{MANY_PARTITIONS} partitions",
        "us/event",
    )
    figures.add("many_partitions_of_few", live.evaluator_us / few_us, what, "x", goal=1.1)


def _measured(bootstrap: str, folder: Path, prefix: str, partitions: int) -> _Live:
    create_topics(bootstrap, prefix, partitions)
    settings = environment(bootstrap, prefix)
    with ExitStack() as running:
        sequencer, evaluator, exporter = (
            running.enter_context(
                started(folder / f"{prefix}{role}.log", "run", "--roles", role, **settings)
            )
            for role in ("sequencer", "evaluator", "exporter")
        )
        evaluator_address, exporter_address = address_of(evaluator), address_of(exporter)
        exporter.printed("exporter_ready", READY_SECONDS)
        sequencer.printed("sequencer_active", READY_SECONDS)
        load = LoadProcess(
            bootstrap,
            prefix,
            partitions=partitions,
            lines=LIVE_LINES,
            ramp_seconds=RAMP_SECONDS,
            seed=1,
            kinds=OTHERS,
        )
        running.callback(load.stop)
        lines, following = _Lines(bootstrap, prefix, partitions), Following()
        waited: list[float] = []
        pages_seconds: list[float] = []

        def page_of_exporter() -> str:
            before = exporter.processor_seconds
            text = page(exporter_address, OPENMETRICS)
            pages_seconds.append(exporter.processor_seconds - before)
            return text

        time.sleep(RAMP_SECONDS + MOST_SECONDS)

        def moment() -> _Moment:
            events, _ = folded_of(evaluator_address)
            pages = page(evaluator_address), page_of_exporter()
            following.lag_seconds.append(max(map(float, _LAG.findall(pages[0])), default=0.0))
            waited.append(evaluator.waited_seconds)
            used = (
                sequencer.processor_seconds,
                evaluator.processor_seconds,
                exporter.processor_seconds,
                sum(pages_seconds),
            )
            return _Moment(time.monotonic(), *used, events, *pages)

        begin, rng = moment(), random.Random(1)  # noqa: S311 - play, not secrets
        for second in range(1, LIVE_SECONDS + 1):
            for number in range(ANSWERS_A_SECOND):
                due = begin.at + second - 1 + (number + rng.random()) / ANSWERS_A_SECOND
                time.sleep(max(0.0, due - time.monotonic()))
                lines.answer((second * ANSWERS_A_SECOND + number) % PROBES)
                following.behind_ms.append(load.report.behind_ms)  # raises when the load broke down
            if second % LOOKS_SECONDS:
                page_of_exporter()
            else:
                end = moment()
    following.waited_share = (waited[-1] - waited[0]) / (end.evaluator - begin.evaluator)
    return _Live(begin, end, following)
