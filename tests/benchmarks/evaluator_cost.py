"""The cost of an evaluator on a real Kafka: of its start, and of a backlog beside a bare loop and
beside a second evaluator.

Processor time is that of the evaluator's own process, taken from the kernel, so the broker, the
load and the loop that looks at them do not count, though they take turns on the same cores.
"""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, TopicPartition

from schemas.topics import EVENTS_TOPIC
from tests.benchmarks.figures import Figures, say
from tests.benchmarks.traffic import simulated_events
from tests.chaos.evaluators.fleet import ROOT
from tests.integration.metrics_page import page
from tests.integration.processes import COMMAND, Process, ran, started, wait_for
from tests.support.brokers.backlog import Sent, put_backlog
from tests.support.sequencer_process import sequencer

PARTITIONS: Final = 12
BACKLOG_CALLS: Final = 400
CALLS_APART_MS: Final = 100
BARE: Final = "bare_us_per_event"
EVALUATOR: Final = "evaluator_us_per_event_backlog"
SEQUENCER: Final = "sequencer_us_per_event_backlog"
READY_SECONDS: Final = 60.0
MOST_SECONDS: Final = 300.0
LOOK_SECONDS: Final = 0.25
"""Each look renders a page, which costs the evaluator some milliseconds."""
_FOLDED = re.compile(
    r'^callgauge_events_total\{.*source="(?:audit|pipecat|elevenlabs)".*\} (\S+)$', re.MULTILINE
)
_AFTER_CLOSE = re.compile(r'^callgauge_events_total\{.*outcome="after_close".*\} (\S+)$', re.M)
_READS = re.compile(r'^callgauge_consumer_lag_messages\{.*partition="(\d+)"', re.MULTILINE)
_UNWRITTEN = re.compile(r"^callgauge_scores_unwritten (\S+)$", re.MULTILINE)


def environment(bootstrap: str, prefix: str) -> dict[str, str]:
    """Settings of every process of one measurement."""
    return {
        "CALLGAUGE_BOOTSTRAP": bootstrap,
        "CALLGAUGE_TOPIC_PREFIX": prefix,
        "CALLGAUGE_HTTP_PORT": "0",
    }


def create_topics(bootstrap: str, prefix: str, partitions: int = PARTITIONS) -> None:
    """Creates the topic table, with a prefix of its own for each measurement."""

    def are_there() -> bool:
        try:
            ran(
                "topics",
                "create",
                "--partitions",
                str(partitions),
                **environment(bootstrap, prefix),
            )
        except AssertionError:  # a broker on a busy machine shows a new topic seconds later
            return False
        return True

    wait_for(f"the topics {prefix}*", are_there, READY_SECONDS)


def address_of(process: Process) -> str:
    """Waits until a role shows its metrics; returns their address."""
    return process.metrics(READY_SECONDS)


def backlog(partitions: int = PARTITIONS) -> list[Sent]:
    """Calls that began one after the other and were over ten minutes ago, in the order of time."""
    start_ms = time.time_ns() // 1_000_000 - BACKLOG_CALLS * CALLS_APART_MS - 600_000
    return sorted(
        (
            Sent(source, f"call-{number}", value, number % partitions, at_ms)
            for number in range(BACKLOG_CALLS)
            for at_ms, source, value in simulated_events(number, start_ms + number * CALLS_APART_MS)
        ),
        key=lambda record: record.at_ms,
    )


def measure_backlog(figures: Figures, bootstrap: str, folder: Path) -> None:
    """Measures calls that are all over, read as fast as one evaluator can, and two beside each
    other; and the bare loop on them.
    """
    records = backlog()
    say(
        f"on Kafka, a backlog of {BACKLOG_CALLS} simulated calls, {len(records):,} events, "
        f"{PARTITIONS} partitions"
    )
    ours_us, events_per_second = _evaluated(
        bootstrap, "bench.backlog.", folder, records, evaluators=1
    )
    command = [
        sys.executable,
        "-m",
        "tests.benchmarks.bare_loop",
        bootstrap,
        "bench.backlog.",
        str(len(records)),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    bare = json.loads(done.stdout)
    bare_us = bare["processor_seconds"] / bare["events"] * 1e6
    figures.add(BARE, bare_us, "bare loop: aiokafka and pydantic", "us/event")
    figures.add(EVALUATOR, ours_us, "evaluator, everything written", "us/event")
    figures.add(
        "evaluator_backlog_of_bare", ours_us / bare_us, "the same, times the bare loop", "x", goal=6
    )
    what = "sequencer and evaluator"
    if (sequencer_us := figures.value(SEQUENCER)) is None:
        figures.not_measured("both_us_per_event_backlog", what, "measure `sequencer` too")
    else:
        figures.add("both_us_per_event_backlog", sequencer_us + ours_us, what, "us/event")
    figures.add(
        "backlog_seconds_per_100k",
        1e5 / events_per_second,
        "100,000 events, by the wall clock",
        "s",
    )
    _, of_two = _evaluated(bootstrap, "bench.two.", folder, records, evaluators=2)
    what = "two evaluators beside each other, times the events of one"
    figures.add("two_evaluators_of_one", of_two / events_per_second, what, "x", at_least=1.8)


def _evaluated(
    bootstrap: str, prefix: str, folder: Path, records: Sequence[Sent], *, evaluators: int
) -> tuple[float, float]:
    """Processor time of an event in us, and events per second, of evaluators that find the backlog
    when they begin to read.
    """
    create_topics(bootstrap, prefix)
    # Before a sequencer runs: one that has told the time of today would end these calls at once.
    put_backlog(bootstrap, prefix, records)
    with ExitStack() as running:
        processes = [
            running.enter_context(
                started(
                    folder / f"{prefix}{number}.log",
                    "run",
                    "--roles",
                    "evaluator",
                    **environment(bootstrap, prefix),
                )
            )
            for number in range(evaluators)
        ]
        for process in processes:
            address = address_of(process)
            share = "its share of the partitions"
            # the default binds the loop's value
            wait_for(
                share,
                lambda at=address: len(_partitions(at)) == PARTITIONS // evaluators,  # type: ignore[misc]
                READY_SECONDS,
            )
        for process in processes:  # frozen for less than the session timeout
            process.send(signal.SIGSTOP)
        running.enter_context(sequencer(folder / f"{prefix}sequencer.log", bootstrap, prefix))
        wait_for(
            "the backlog in the log",
            lambda: appended(bootstrap, prefix) >= len(records),
            MOST_SECONDS,
        )
        for process in processes:
            process.send(signal.SIGCONT)
        figures = until_all_is_folded(processes, len(records))
        for process in processes:
            late = sum(map(float, _AFTER_CLOSE.findall(page(address_of(process)))))
            assert late < len(records) / 100, f"{late:,.0f} events came after their calls closed"
        return figures


def appended(bootstrap: str, prefix: str, partitions: int = PARTITIONS) -> int:
    """Records of the log, ticks among them."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "nobody", "log_level": 0})
    try:
        ends: Sequence[int] = [
            consumer.get_watermark_offsets(TopicPartition(prefix + EVENTS_TOPIC, number))[1]
            for number in range(partitions)
        ]
        return sum(ends)
    finally:
        consumer.close()


def _partitions(address: str) -> set[str]:
    """The partitions that an evaluator reads."""
    return set(_READS.findall(page(address)))


def until_all_is_folded(
    evaluators: Sequence[Process], events: int, look_seconds: float = LOOK_SECONDS
) -> tuple[float, float]:
    """Processor time of an event in us, and events per second, between the first events and the
    last score.
    """
    addresses = [address_of(each) for each in evaluators]
    deadline = time.monotonic() + MOST_SECONDS
    first: tuple[float, float, int] | None = None
    while True:
        looks = [folded_of(address) for address in addresses]
        folded, unwritten = sum(look[0] for look in looks), sum(look[1] for look in looks)
        now = time.monotonic(), sum(each.processor_seconds for each in evaluators), folded
        if first is None and folded:
            first = now
        if first is not None and folded >= events and not unwritten:
            counted = now[2] - first[2]
            return (now[1] - first[1]) / counted * 1e6, counted / (now[0] - first[0])
        assert all(each.is_running for each in evaluators), "\n".join(
            each.text for each in evaluators
        )
        assert now[0] < deadline, (
            f"{folded} of {events} events are folded after {MOST_SECONDS:.0f} s"
        )
        time.sleep(look_seconds)


def folded_of(address: str) -> tuple[int, int]:
    """Events that an evaluator has folded, and records that it has not written yet."""
    text = page(address)
    return int(sum(map(float, _FOLDED.findall(text)))), int(float(_UNWRITTEN.findall(text)[0]))


def measure_start(figures: Figures, bootstrap: str, folder: Path) -> None:
    """Times the installed command to its first poll, and to its help; nothing is
    imported before.
    """
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
