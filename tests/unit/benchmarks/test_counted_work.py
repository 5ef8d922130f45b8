"""Counted work of the hot path has a budget: lines of ours that run, which no other process can
slow down.

Each row of `BUDGET` limits one event, record, poll or tick: lines of Python in `consumers` and
`schemas`, without the lines of libraries that they call. A budget is some percent above the count
when it was set: lower it after a change that saves work; raise it only with a reason in the commit.
Each round of a loop counts, so a pass over all turns, calls or inputs for each event does not go
unnoticed.
"""

import sys
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, Final, Self

import pytest

import consumers
from consumers.engine.admission import Arrival, admit
from consumers.engine.effects import Effect
from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.limits import Limits
from consumers.evaluator.decisions import Outlet
from consumers.runtime.kafka.connection import KafkaSettings
from schemas.owners import PartitionRow
from tests.benchmarks.traffic import (
    Traffic,
    interleaved,
    long_call,
    recorded_events,
    simulated_events,
)
from tests.support.fakes.engine_feed import closings_of, rows_of
from tests.support.fakes.evaluator_fakes import START, Shell, ended

BUDGET: Final = {
    # some 20 of them make the rows of words
    "engine, an event of simulated calls, closing included": 352,
    "engine, an event of the recorded call, closing included": 352,
    "admit, an event": 26,  # three of them call what the sequencer checks too
    "shell, a poll of one event": 310,
    "shell, one event more in a poll": 90,  # with `admit`; 22 of them read its origin
    "shell, a round of 12 partitions": 325,
    "writing, a row": 34,  # from the step that decides it alone to the outbox without it
}
GROWTH: Final = 1.4
"""How much more an event may take in a call of 20 minutes than in one of 5: four times the turns,
and no event that goes over them.
"""
LIMITS: Final = Limits(max_event_time_skew_ms=10**12)
STAYS_OPEN: Final = Limits(
    closing_grace_ms=10**12, max_events_per_call=2**31, max_event_time_skew_ms=10**12
)
SIMULATED_CALLS: Final = 12
LATER_MS: Final = 3_600_000
PARTITIONS: Final = 12
OURS: Final = str(Path(consumers.__file__).parents[1])
OUR_CODE: Final = tuple(f"{OURS}/{folder}/" for folder in ("consumers", "schemas"))


class _Lines:
    """Counts the lines of ours that run while it is entered."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> Self:
        self._before = sys.gettrace()
        sys.settrace(self._of_call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _of_call(self, frame: FrameType, _event: str, _: Any) -> Callable[..., Any] | None:
        return self._of_line if frame.f_code.co_filename.startswith(OUR_CODE) else None

    def _of_line(self, _frame: FrameType, event: str, _: Any) -> Callable[..., Any]:
        if event == "line":
            self.count += 1
        return self._of_line


def _within(name: str, lines: float) -> None:
    assert lines <= BUDGET[name], (
        f"{name}: {lines:.1f} lines, of which the budget allows {BUDGET[name]}"
    )


# The engine.


def _arrivals(traffic: Traffic, limits: Limits) -> list[Arrival]:
    arrivals = [admit(source, record, limits) for source, record in traffic]
    assert all(isinstance(arrival, Arrival) for arrival in arrivals)
    return [arrival for arrival in arrivals if isinstance(arrival, Arrival)]


def _folded(
    engine: PartitionEvaluator, arrivals: Iterable[Arrival], until_ms: int | None = None
) -> list[Effect]:
    """As the evaluator does it: time passes between the events."""
    effects: list[Effect] = []
    for arrival in arrivals:
        wakeup_ms = engine.next_wakeup()
        if wakeup_ms is not None and wakeup_ms <= arrival.broker_time_ms:
            effects += engine.advance(arrival.broker_time_ms)
        effects += engine.receive(arrival)
    if until_ms is not None:
        effects += engine.advance(until_ms)
    return effects


def _engine_lines(traffic: Traffic) -> float:
    until_ms = traffic[-1][1].timestamp + LATER_MS
    arrivals = _arrivals(traffic, LIMITS)
    _folded(
        PartitionEvaluator(LIMITS, "1", writes_transcripts=True), arrivals, until_ms
    )  # does one-time reading
    engine = PartitionEvaluator(LIMITS, "1", writes_transcripts=True)
    with _Lines() as lines:
        effects = _folded(engine, arrivals, until_ms)
    assert len(closings_of(effects)) == len({each.conversation_id for each in arrivals})
    return lines.count / len(arrivals)


def _simulated() -> Traffic:
    return interleaved(
        [simulated_events(seed, 1_790_000_000_000 + 40 * seed) for seed in range(SIMULATED_CALLS)]
    )


def test_an_event_of_a_simulated_call() -> None:
    _within("engine, an event of simulated calls, closing included", _engine_lines(_simulated()))


def test_an_event_of_the_recorded_call() -> None:
    recording = recorded_events()
    if not recording:
        pytest.skip("the recorded call is not here (CONFORMANCE_DIR)")
    _within(
        "engine, an event of the recorded call, closing included",
        _engine_lines(interleaved([recording])),
    )


def test_an_event_takes_the_same_however_long_its_call_is() -> None:
    """Counts the second half of each call, where work that grows with it is most. Shorter calls
    have no running values.
    """
    per_event = []
    for minutes in (5, 20):
        arrivals = _arrivals(interleaved([long_call(minutes)]), STAYS_OPEN)
        half_ms = (arrivals[0].broker_time_ms + arrivals[-1].broker_time_ms) // 2
        engine = PartitionEvaluator(STAYS_OPEN, "1")
        _folded(engine, (arrival for arrival in arrivals if arrival.broker_time_ms < half_ms))
        last = [arrival for arrival in arrivals if arrival.broker_time_ms >= half_ms]
        with _Lines() as lines:
            _folded(engine, last)
        per_event.append(lines.count / len(last))
    for short, long in pairwise(per_event):
        assert long <= short * GROWTH, (
            f"{short:.0f} lines an event in a short call, {long:.0f} in a long one"
        )


def test_an_event_that_is_admitted() -> None:
    traffic = _simulated()
    with _Lines() as lines:
        for source, record in traffic:
            admit(source, record, LIMITS)
    _within("admit, an event", lines.count / len(traffic))


# The shell.


@pytest.fixture
async def shell(monkeypatch: pytest.MonkeyPatch) -> Shell:
    made = Shell(monkeypatch, max_unwritten_records=10**6)
    await made.assigned(*range(PARTITIONS))
    for evaluator in made.evaluators:
        evaluator._effects = ()
    return made


async def _poll_lines(shell: Shell, offset: int, events: int) -> int:
    """The lines for events of one partition."""
    records = [ended(offset + number) for number in range(events)]
    with _Lines() as lines:
        await shell.role._fold_records(records)
    assert len(shell.evaluators[0].arrivals) == offset + events - START
    return lines.count


async def test_a_poll(shell: Shell) -> None:
    await _poll_lines(shell, START, 1)
    one = await _poll_lines(shell, START + 1, 1)
    _within("shell, a poll of one event", one)
    many = await _poll_lines(shell, START + 2, 101)
    _within("shell, one event more in a poll", (many - one) / 100)


async def test_a_round_that_finds_nothing(shell: Shell) -> None:
    await shell.goes_round()
    with _Lines() as lines:
        await shell.goes_round()
    _within("shell, a round of 12 partitions", lines.count)


ROW = PartitionRow(place=1, first=0, first_known_ms=0, known_ms=0, version="1")


def test_a_record_that_is_written() -> None:
    traffic = _simulated()
    engine = PartitionEvaluator(LIMITS, "1")
    scores = rows_of(
        _folded(engine, _arrivals(traffic, LIMITS), traffic[-1][1].timestamp + LATER_MS)
    )
    outlet = Outlet(0, KafkaSettings().topic)
    with _Lines() as lines:
        for score in scores:
            outlet.put((score,), ROW)
        while decisions := outlet.outbox.first():
            outlet.records_of(decisions, "writer")
            outlet.outbox.written(decisions)
    _within("writing, a row", lines.count / len(scores))
