"""The cost of an evaluator on a real Kafka: on a backlog and live at 2,000 events/s, each beside a bare loop.

Processor time is that of the evaluator's own process, taken from the kernel, so the broker, the load and the loop that
looks at them do not count, though they take turns on the same cores.
"""

import json
import re
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from tests.benchmarks.figures import Figures, say
from tests.benchmarks.traffic import simulated_events
from tests.chaos.evaluators.fleet import ROOT
from tests.chaos.load.load import LoadProcess
from tests.integration.metrics_page import page
from tests.integration.processes import COMMAND, Process, ran, started, wait_for
from tests.support.brokers.backlog import Sent, put_backlog

PARTITIONS: Final = 12
BACKLOG_CALLS: Final = 300
CALLS_APART_MS: Final = 100
LIVE_LINES: Final = 1_000
"""This many calls at a time make about 2,000 events/s."""
RAMP_SECONDS: Final = 15.0
LIVE_SECONDS: Final = 30.0
READY_SECONDS: Final = 60.0
MOST_SECONDS: Final = 300.0
LOOK_SECONDS: Final = 0.25
"""Each look renders a page, which costs the evaluator some milliseconds."""
_FOLDED = re.compile(r'^callgauge_events_total\{.*source="(?:audit|pipecat|elevenlabs)".*\} (\S+)$', re.MULTILINE)
_UNWRITTEN = re.compile(r"^callgauge_scores_unwritten (\S+)$", re.MULTILINE)


def environment(bootstrap: str, prefix: str) -> dict[str, str]:
    """Settings of every process of one measurement."""
    return {
        "CALLGAUGE_BOOTSTRAP": bootstrap,
        "CALLGAUGE_TOPIC_PREFIX": prefix,
        "CALLGAUGE_EVALUATOR_GROUP": f"{prefix}evaluator",
        "CALLGAUGE_EXPORTER_GROUP": f"{prefix}exporter",
        "CALLGAUGE_HTTP_PORT": "0",
    }


def create_topics(bootstrap: str, prefix: str) -> None:
    """Creates the topic table, with a prefix of its own for each measurement."""

    def are_there() -> bool:
        try:
            ran("topics", "create", "--partitions", str(PARTITIONS), **environment(bootstrap, prefix))
        except AssertionError:  # a broker on a busy machine shows a new topic seconds later
            return False
        return True

    wait_for(f"the topics {prefix}*", are_there, READY_SECONDS)


def address_of(process: Process) -> str:
    """Waits until a role shows its metrics; returns their address."""
    return process.metrics(READY_SECONDS)


def measure_backlog(figures: Figures, bootstrap: str, folder: Path) -> None:
    """Measures calls that are all over, read as fast as one evaluator can, and the bare loop on the same topics."""
    prefix = "bench.backlog."
    start_ms = time.time_ns() // 1_000_000 - BACKLOG_CALLS * CALLS_APART_MS - 600_000
    records = sorted(
        (
            Sent(source, f"call-{number}", value, number % PARTITIONS, at_ms)
            for number in range(BACKLOG_CALLS)
            for at_ms, source, value in simulated_events(number, start_ms + number * CALLS_APART_MS)
        ),
        key=lambda record: record.at_ms,
    )
    create_topics(bootstrap, prefix)
    put_backlog(bootstrap, prefix, records)
    say(f"on Kafka, a backlog of {BACKLOG_CALLS} simulated calls, {len(records):,} events, {PARTITIONS} partitions")
    command = [sys.executable, "-m", "tests.benchmarks.bare_loop", bootstrap, prefix, str(len(records))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    bare = json.loads(done.stdout)
    bare_us = bare["processor_seconds"] / bare["events"] * 1e6
    figures.add("bare_us_per_event", bare_us, "bare loop: aiokafka and pydantic", "us/event")
    with started(folder / "backlog.log", "run", "--roles", "evaluator", **environment(bootstrap, prefix)) as evaluator:
        ours_us, events_per_second = until_all_is_folded(evaluator, len(records))
    figures.add("evaluator_us_per_event_backlog", ours_us, "evaluator, everything written", "us/event", goal=40)
    figures.add("evaluator_backlog_of_bare", ours_us / bare_us, "evaluator, of the bare loop", "x")
    figures.add("backlog_seconds_per_100k", 1e5 / events_per_second, "100,000 events, by the wall clock", "s")


def until_all_is_folded(evaluator: Process, events: int, look_seconds: float = LOOK_SECONDS) -> tuple[float, float]:
    """Processor time of an event in us, and events per second, between the first events and the last score."""
    address = address_of(evaluator)
    deadline = time.monotonic() + MOST_SECONDS
    first: tuple[float, float, int] | None = None
    while True:
        folded, unwritten = _folded(address)
        now = time.monotonic(), evaluator.processor_seconds, folded
        if first is None and folded:
            first = now
        if first is not None and folded >= events and not unwritten:
            counted = now[2] - first[2]
            return (now[1] - first[1]) / counted * 1e6, counted / (now[0] - first[0])
        assert evaluator.is_running, evaluator.text
        assert now[0] < deadline, f"{folded} of {events} events are folded after {MOST_SECONDS:.0f} s"
        time.sleep(look_seconds)


def _folded(address: str) -> tuple[int, int]:
    text = page(address)
    return int(sum(map(float, _FOLDED.findall(text)))), int(float(_UNWRITTEN.findall(text)[0]))


def measure_live(figures: Figures, bootstrap: str, folder: Path) -> None:
    """Measures the cost of an event that comes alone, in calls at their own pace."""
    prefix = "bench.live."
    create_topics(bootstrap, prefix)
    with ExitStack() as running:
        evaluator = running.enter_context(
            started(folder / "live.log", "run", "--roles", "evaluator", **environment(bootstrap, prefix))
        )
        address = address_of(evaluator)
        load = LoadProcess(
            bootstrap, prefix, partitions=PARTITIONS, lines=LIVE_LINES, ramp_seconds=RAMP_SECONDS, seed=1
        )
        running.callback(load.stop)
        time.sleep(RAMP_SECONDS + 10)
        load.report  # noqa: B018  # raises when the load broke down
        begin, began = evaluator.processor_seconds, time.monotonic()
        folded, _ = _folded(address)
        time.sleep(LIVE_SECONDS)
        used, seconds = evaluator.processor_seconds - begin, time.monotonic() - began
        events = _folded(address)[0] - folded
        load.report  # noqa: B018  # as above
    say(f"on Kafka, live, {LIVE_LINES:,} calls at a time, {events / seconds:,.0f} events/s")
    figures.add("evaluator_us_per_event_live", used / events * 1e6, "evaluator", "us/event", goal=90)
    figures.add("evaluator_live_core_share", used / seconds, "evaluator, of one core", "cores")


def measure_start(figures: Figures, bootstrap: str, folder: Path) -> None:
    """Times the installed command to its first poll, and to its help; nothing is imported before."""
    prefix = "bench.start."
    create_topics(bootstrap, prefix)
    begin = time.monotonic()
    subprocess.run([COMMAND, "--help"], check=True, stdout=subprocess.DEVNULL)
    helped = time.monotonic() - begin
    begin = time.monotonic()
    evaluating = ("run", "--roles", "evaluator")
    with started(
        folder / "start.log", *evaluating, command=[str(COMMAND)], **environment(bootstrap, prefix)
    ) as evaluator:
        evaluator.printed("evaluator_ready", READY_SECONDS)
        ready = time.monotonic() - begin
    say("start of a process")
    figures.add("help_seconds", helped, "callgauge --help", "s")
    figures.add("evaluator_ready_seconds", ready, "an evaluator, until it reads", "s")
