"""The evaluator of one machine: processes that end anywhere publish together what one process
publishes, and a gap is no silence.
"""

import asyncio
import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final, Self
from unittest import mock

import msgspec
import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from consumers.engine.limits import GoalRules, Limits
from consumers.evaluator import decisions as decided_module
from consumers.evaluator import on_file
from consumers.evaluator import partition as partition_module
from consumers.evaluator.on_file import FileEvaluator
from consumers.evaluator.partition import Recovery
from consumers.evaluator.settings import EvaluatorSettings
from consumers.log import commits, file, retention
from consumers.log.commits import NotWrittenError
from consumers.log.file import Decided, FileLog, FileRecord
from consumers.runtime.process import wall_clock_ms
from consumers.runtime.registry import Instruments
from schemas.closed_sets import InputSource
from schemas.goals.goal_set import GoalSet
from schemas.log import OutgoingRecord, Tick
from schemas.rows import CallRow, GoalsRow, Row, TurnRow, decode
from schemas.topics import (
    JUDGE_REQUESTS_TOPIC,
    QUARANTINE_TOPIC,
    SCORES_TOPIC,
    SOURCE_BY_TOPIC,
    TRANSCRIPTS_TOPIC,
    WORDS_TOPIC,
)
from schemas.units import DAY_MS
from tests.benchmarks.traffic import interleaved, simulated_events
from tests.properties.evaluation import Subject, assert_counted, lasting, newest, subject_of
from tests.support.fakes.engine_feed import Json
from tests.support.fakes.evaluator_fakes import goal_set, pause
from tests.support.file_logs import NOW_MS, SetClock, kill
from tests.support.laws import examples
from tests.support.patience import patient

TRAFFIC = [
    record
    for _, record in interleaved(
        [simulated_events(seed, NOW_MS + 9_000 * seed) for seed in range(2)]
    )
]
HALF = len(TRAFFIC) // 2
OUTPUTS = (SCORES_TOPIC, WORDS_TOPIC, TRANSCRIPTS_TOPIC, JUDGE_REQUESTS_TOPIC, QUARANTINE_TOPIC)
TICK_MS: Final = 500
IDLE_MS: Final = 15_000
"""Silence that ends a call in the laws: longer than any of these calls has."""
HOUR_MS: Final = 3_600_000
ALL: Final = 1_000_000


@pytest.fixture(autouse=True, scope="module")
def _small_steps() -> Iterator[None]:
    """So that a process ends with some of what it decided written, and some not, and with some of
    the log deleted.
    """
    with (
        mock.patch.object(decided_module, "MAX_TRANSACTION_RECORDS", 3),
        mock.patch.object(partition_module, "BEGINS_APART_MS", 2_000),
        mock.patch.object(retention, "DELETED_IN_A_STEP", 20),
        mock.patch.object(commits, "GATHER_SECONDS", 0.0),
    ):
        yield


@contextmanager
def every_row() -> Iterator[None]:
    """Also those that others of the same transaction replace: which these are depends on what a
    transaction has.
    """
    with mock.patch.object(
        on_file, "newest", lambda decisions: [each for one in decisions for each in one.records]
    ):
        yield


class OneSet:
    def choose(self, goals_id: str | None, agent: str | None) -> GoalSet | None:
        del goals_id, agent
        return goal_set()


def settings_of(version: str = "test", **limits: Any) -> EvaluatorSettings:
    return EvaluatorSettings(
        code_version=version,
        writes_transcripts=True,
        limits=Limits(**limits),
        goals=GoalRules(asks_judge=True),
    )


# The log, and processes that read it one after the other.


class Machine:
    """A machine whose process the test moves, ends and starts again. A second log gets the same,
    and nobody reads it or deletes from it.
    """

    def __init__(
        self, folder: Path, settings: EvaluatorSettings, max_bytes: int = retention.MAX_BYTES
    ) -> None:
        self.settings = settings
        self.now_ms = NOW_MS
        self.left = list(TRAFFIC)
        self.processes = 0
        self._folder = folder
        self._max_bytes = max_bytes
        self._slept_ms = 0
        self._clock, self._other_clock = SetClock(), SetClock()
        self.untouched = FileLog(folder / "untouched", clock_ms=self._other_clock)
        self.untouched.open()
        _wait_for_no_disk(self.untouched)

    async def start(self) -> None:
        """A process starts and takes over."""
        self.processes += 1
        self.log = FileLog(self._folder / "log", max_bytes=self._max_bytes, clock_ms=self._clock)
        self.log.open()
        _wait_for_no_disk(self.log)
        self.registry = CollectorRegistry()
        self.evaluator = FileEvaluator(
            self.log, self.settings, Instruments(self.registry, ["evaluator"]), OneSet()
        )
        self.partition = self.evaluator.partition
        await self.evaluator._take_over()

    async def end(self, version: str | None = None) -> None:
        """The process is killed, and another one starts."""
        await kill(self.log)
        if version is not None:
            self.settings = self.settings.model_copy(update={"code_version": version})
        await self.start()

    # What comes.

    async def append(self, *steps: tuple[int, OutgoingRecord | None]) -> None:
        """Events come at their times, and ticks, which are None."""
        self.now_ms = steps[-1][0] if steps else self.now_ms
        for log, clock in ((self.log, self._clock), (self.untouched, self._other_clock)):
            clock.will_be([at_ms for at_ms, _ in steps])
            await asyncio.gather(
                *(log.tick() if record is None else log.append([record]) for _, record in steps)
            )
        assert self.log.end == self.untouched.end

    async def come(self, number: int) -> None:
        """The next events come, and a tick wherever half a second has passed."""
        steps: list[tuple[int, OutgoingRecord | None]] = []
        now_ms = self.now_ms
        for record in self.left[:number]:
            at_ms = record.timestamp + self._slept_ms
            ticks = range(now_ms + TICK_MS, at_ms + 1, TICK_MS)
            steps += [(tick_ms, None) for tick_ms in ticks]
            now_ms = at_ms if not ticks else ticks[-1]
            source = SOURCE_BY_TOPIC[record.topic]
            steps.append(
                (
                    max(now_ms, at_ms),
                    OutgoingRecord(source, record.key, record.value, record.headers),
                )
            )
        del self.left[:number]
        await self.append(*steps)

    def sleep(self, ms: int) -> None:
        """Nobody takes events for a while, and then everything goes on."""
        self.now_ms += ms
        self._slept_ms += ms

    # What the process does.

    def read(self, most: int = ALL) -> None:
        for record in self.log.read(self.partition.next_offset, most):
            self.partition.fold(record, NOW_MS)

    def close(self) -> None:
        """Calls that are over close, and what is published again is."""
        while self.partition.closing_calls:
            self.partition.close_some()

    async def write(self, transactions: int = ALL) -> None:
        outbox = self.partition.outbox
        for _ in range(transactions):
            if not outbox.is_filled:
                return
            await self.evaluator._write(outbox.first())

    async def end_behind_a_commit(self) -> None:
        """The process is killed when the disk has a transaction, before it knows that."""
        outbox = self.partition.outbox
        if outbox.is_filled:
            with mock.patch.object(outbox, "written"):
                await self.evaluator._write(outbox.first())
        await self.end()

    async def is_refused(self) -> None:
        """The disk does not take a transaction."""
        refuses = mock.patch.object(self.log, "publish", side_effect=NotWrittenError("full"))
        if self.partition.outbox.is_filled:
            with refuses, pytest.raises(NotWrittenError):
                await self.evaluator._write(self.partition.outbox.first())

    async def to_the_end(self) -> None:
        """Everything comes, every call ends, and all is written."""
        await self.come(len(self.left))
        self.read()
        self.close()
        while self.partition.evaluator.next_wakeup() is not None:
            await self.append((self.now_ms + 1_000, None))
            self.read()
            self.close()
        assert not self.partition.evaluator.open_calls, "calls do not end"
        await self.write()

    async def undisturbed(self) -> FileLog:
        """The other log, read by one process from its first record to its last."""
        evaluator = FileEvaluator(
            self.untouched, self.settings, Instruments(CollectorRegistry(), ["evaluator"]), OneSet()
        )
        await evaluator._take_over()
        partition = evaluator.partition
        for record in self.untouched.read(0, ALL):
            partition.fold(record, NOW_MS)
        while partition.closing_calls:
            partition.close_some()
        while partition.outbox.is_filled:
            await evaluator._write(partition.outbox.first())
        return self.untouched

    async def stop(self) -> None:
        await self.log.close()
        await self.untouched.close()


def _wait_for_no_disk(log: FileLog) -> None:
    """A process that is killed leaves the machine on, which has what was written: nothing here is
    about the disk.
    """
    log._writer.execute("PRAGMA synchronous = OFF")


Actions = Sequence[tuple[str, int]]
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "come",
                "come",
                "read",
                "read",
                "close",
                "write",
                "write",
                "end",
                "end",
                "end behind a commit",
                "sleep",
                "set back",
                "refuse",
            ]
        ),
        st.sampled_from([1, 2, 3, 8, 30, 100, 500]),
    ),
    max_size=60,
)


async def moved(machine: Machine, actions: Actions) -> None:
    """A machine to which all this happens; then everything goes on to the end."""
    await machine.start()
    for what, number in actions:
        match what:
            case "come":
                await machine.come(number)
            case "sleep":
                machine.sleep(number * 1_000)
            case "set back":
                machine.sleep(-file.BACK_MS - number * 100)
            case "read":
                machine.read(number)
            case "close":
                machine.close()
            case "write":
                await machine.write(number)
            case "refuse":
                await machine.is_refused()
            case "trim":
                await machine.log.trim()
            case "end behind a commit":
                await machine.end_behind_a_commit()
            case "end with another version":
                await machine.end(str(number))
            case _:
                await machine.end()
    await machine.to_the_end()


def written(log: FileLog) -> dict[tuple[str, bytes], list[bytes]]:
    """By topic and call, all that was published, in order."""
    by_call: dict[tuple[str, bytes], list[bytes]] = {}
    for topic in OUTPUTS:
        for record in log.records(topic, 0, ALL):
            by_call.setdefault((topic, record.key), []).append(record.value)
    return by_call


def published(log: FileLog) -> dict[str, list[Row]]:
    """By call: its rows in `scores`, in order."""
    rows: dict[str, list[Row]] = {}
    for record in log.records(SCORES_TOPIC, 0, ALL):
        rows.setdefault(record.key.decode(), []).append(decode(record.value))
    return rows


def without_news(rows: Iterable[Row]) -> dict[Subject, Json]:
    """By turn and call, the newest row; `news` are those of a transaction, so they depend on what
    it had.
    """
    return {
        subject: {name: part for name, part in msgspec.to_builtins(row).items() if name != "news"}
        for subject, row in newest(rows).items()
    }


def counted(rows: Iterable[Row]) -> set[tuple[Subject, str]]:
    """What has counted, by turn and call."""
    return {
        (subject_of(row), name)
        for row in rows
        if isinstance(row, (TurnRow, CallRow))
        for name in row.news
    }


def assert_closed_once(rows: Sequence[Row]) -> None:
    assert [row for row in rows if isinstance(row, CallRow) and row.state == "closed"] == list(
        rows[-1:]
    )


MANY_ENDS: Final = [
    *[
        ("come", 40),
        ("read", 30),
        ("write", 2),
        ("end", 1),
        ("sleep", 30),
        ("come", 60),
        ("refuse", 1),
    ],
    *[("read", 60), ("end behind a commit", 1), ("read", 8), ("write", 3), ("trim", 1), ("end", 1)],
]


SET_BACK_WITH_CALLS: Final = [
    *[
        ("come", 60),
        ("read", 60),
        ("write", 3),
        ("set back", 1),
        ("come", 40),
        ("read", 90),
        ("write", 2),
        ("end", 1),
        ("come", 60),
    ],
    *[
        ("set back", 500),
        ("end", 1),
        ("come", 30),
        ("read", 100),
        ("close", 1),
        ("write", 500),
        ("end behind a commit", 1),
    ],
]


CLOSED_BEFORE_AN_END: Final = [
    *[
        ("come", 120),
        ("read", 500),
        ("close", 1),
        ("write", 500),
        ("end", 1),
        ("come", 100),
        ("read", 500),
    ],
    *[("close", 1), ("write", 500), ("end behind a commit", 1)],
]


def assert_as_of_one_process(actions: Actions, max_open_calls: int, *, is_trimmed: bool) -> None:
    async def scene() -> None:
        with tempfile.TemporaryDirectory() as folder:
            settings = settings_of(max_open_calls=max_open_calls, idle_ms=IDLE_MS)
            machine = Machine(
                Path(folder), settings, max_bytes=1 if is_trimmed else retention.MAX_BYTES
            )
            await moved(machine, actions)
            event(f"processes: {machine.processes}")
            with every_row():
                alone = await machine.undisturbed()
            ours, theirs = published(machine.log), published(alone)
            assert set(ours) == set(theirs)
            for call, rows in ours.items():
                assert_closed_once(rows)
                assert_counted(rows)
                assert without_news(rows) == without_news(theirs[call])
                assert counted(rows) == counted(theirs[call])
            assert _of(machine.log, TRANSCRIPTS_TOPIC) == _of(alone, TRANSCRIPTS_TOPIC)
            await machine.stop()

    asyncio.run(scene())


def _of(log: FileLog, topic: str) -> dict[bytes, list[bytes]]:
    return {key: values for (each, key), values in written(log).items() if each == topic}


@example(MANY_ENDS, 1)
@example(MANY_ENDS, 100)
@example(CLOSED_BEFORE_AN_END, 1)
@example(SET_BACK_WITH_CALLS, 100)
@given(ACTIONS, st.sampled_from([1, 2, 100]))
def test_processes_that_end_anywhere_leave_what_one_process_leaves_and_count_all_of_it_once(
    actions: Actions, max_open_calls: int
) -> None:
    assert_as_of_one_process(actions, max_open_calls, is_trimmed=False)


@example(MANY_ENDS)
@example(SET_BACK_WITH_CALLS)
@examples(0.5)
@given(ACTIONS)
def test_what_is_deleted_meanwhile_is_not_missed(actions: Actions) -> None:
    trimming = [each for action in actions for each in (action, ("trim", 1))]
    assert_as_of_one_process(trimming, 100, is_trimmed=True)


@example(MANY_ENDS, 2)
@example(
    [
        ("come", 500),
        ("read", 500),
        ("write", 8),
        ("end", 1),
        ("read", 500),
        ("close", 1),
        ("write", 9),
        ("end", 1),
    ],
    2,
)
@given(ACTIONS, st.sampled_from([1, 2, 100]))
def test_with_every_row_they_publish_the_same_bytes_in_the_same_order(
    actions: Actions, max_open_calls: int
) -> None:
    async def scene() -> None:
        with tempfile.TemporaryDirectory() as folder:
            machine = Machine(
                Path(folder), settings_of(max_open_calls=max_open_calls, idle_ms=IDLE_MS)
            )
            await moved(machine, actions)
            assert written(machine.log) == written(await machine.undisturbed())
            await machine.stop()

    with every_row():
        asyncio.run(scene())


async def test_a_late_event_of_a_closed_call_opens_no_other_after_a_start_and_holds_nothing_up(
    tmp_path: Path,
) -> None:
    machine = Machine(tmp_path, settings_of(idle_ms=IDLE_MS))
    await machine.start()
    await machine.to_the_end()
    last = TRAFFIC[-1]
    late = OutgoingRecord(SOURCE_BY_TOPIC[last.topic], last.key, last.value, [])
    await machine.append((machine.now_ms + 1_000, late))
    machine.read()
    machine.partition.write_row(is_last=True)
    await machine.write()
    before = published(machine.log)

    await machine.end()
    assert not machine.partition.is_recovering
    await machine.append(
        (machine.now_ms + 1_000, late), *ticks(machine.now_ms + 2_000, machine.now_ms + 30_000)
    )
    machine.read()
    machine.close()
    await machine.write()
    assert published(machine.log) == before

    await machine.append(posted(machine.now_ms + 1_000, type="call_started", agent="desk"))
    machine.read()
    await machine.write()
    rows = [row for row in published(machine.log)["call"] if isinstance(row, CallRow)]
    assert "started" in rows[0].news
    await machine.stop()


# Another version.


@cache
def in_time() -> Mapping[str, Mapping[Subject, Json]]:
    """The final values of one process."""
    return asyncio.run(_of_one_process())


async def _of_one_process() -> Mapping[str, Mapping[Subject, Json]]:
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(Path(folder), settings_of(idle_ms=IDLE_MS))
        await moved(machine, ())
        found = final_values(machine.log)
        await machine.stop()
        return found


def final_values(log: FileLog) -> dict[str, dict[Subject, Json]]:
    """By call and subject: the newest values, without decisions by silence."""
    return {
        call: {subject: lasting(row) for subject, row in newest(rows).items()}
        for call, rows in published(log).items()
    }


AWAKE = ACTIONS.map(lambda actions: [each for each in actions if each[0] != "sleep"])


@example(
    [
        ("come", HALF),
        ("read", 500),
        ("write", 9),
        ("end", 2),
        ("read", 9),
        ("end", 3),
        ("write", 1),
        ("end", 3),
    ],
    7,
)
@examples(0.5)
@given(AWAKE, st.integers(0, 2**60))
def test_several_versions_publish_the_values_of_open_calls_once_again(
    actions: Actions, which: int
) -> None:
    ends = {"end", "end behind a commit"}
    with_versions = [
        ("end with another version", number)
        if what in ends and which >> place & 1
        else (what, number)
        for place, (what, number) in enumerate(actions)
    ]
    expected = in_time()

    async def scene() -> None:
        with tempfile.TemporaryDirectory() as folder:
            machine = Machine(Path(folder), settings_of(idle_ms=IDLE_MS))
            await moved(machine, with_versions)
            for rows in published(machine.log).values():
                assert_closed_once(rows)
                assert_counted(rows)
                again = max((row.revision for row in rows if row.revision % 2), default=0)
                last = [
                    row.revision for row in newest(rows).values() if not isinstance(row, GoalsRow)
                ]
                assert min(last) >= again, "no row is left of a version that did not close it"
            assert final_values(machine.log) == expected
            await machine.stop()

    asyncio.run(scene())


async def test_a_new_version_publishes_each_row_of_an_open_call_again_once(tmp_path: Path) -> None:
    machine = Machine(tmp_path, settings_of(idle_ms=IDLE_MS))
    await machine.start()
    await machine.come(HALF)
    machine.read()
    await machine.write()
    before, place = published(machine.log), machine.log.next_offset(SCORES_TOPIC)
    assert len(before) == 2, "both calls are open"

    await machine.end()
    machine.close()
    await machine.write()
    assert machine.log.next_offset(SCORES_TOPIC) == place, (
        "the same version has nothing to say again"
    )

    await machine.end("newer")
    assert machine.partition.is_publishing_again
    machine.close()
    await machine.write()
    again: dict[str, list[Row]] = {}
    for record in machine.log.records(SCORES_TOPIC, place, ALL):
        again.setdefault(record.key.decode(), []).append(decode(record.value))
    for call, rows in before.items():
        old = {
            subject: row for subject, row in newest(rows).items() if not isinstance(row, GoalsRow)
        }
        new = [row for row in again[call] if isinstance(row, (TurnRow, CallRow))]
        assert sorted(map(str, map(subject_of, new))) == sorted(map(str, old)), "each of them once"
        assert {(row.revision % 2, row.news) for row in new} == {(1, ())}
        for row in new:
            assert isinstance(row, CallRow) or lasting(row) == lasting(old[subject_of(row)])

    place = machine.log.next_offset(SCORES_TOPIC)
    await machine.end()
    machine.close()
    await machine.write()
    assert machine.log.next_offset(SCORES_TOPIC) == place, (
        "it was said again, so it is not said once more"
    )
    await machine.stop()


# A gap.


def posted(at_ms: int, key: str = "call", **more: Any) -> tuple[int, OutgoingRecord]:
    value = json.dumps({"timestamp": at_ms, **more}).encode()
    return at_ms, OutgoingRecord(InputSource.PIPECAT, key.encode(), value, [])


def spoke(at_ms: int, kind: str) -> tuple[int, OutgoingRecord]:
    return posted(at_ms, type="speech_event", data={"kind": kind, "timestamp": at_ms / 1_000})


def ticks(first_ms: int, last_ms: int, step_ms: int = TICK_MS) -> list[tuple[int, None]]:
    return [(at_ms, None) for at_ms in range(first_ms, last_ms + 1, step_ms)]


async def asked(machine: Machine, at_ms: int = NOW_MS) -> int:
    """The caller asks something and waits; a second later the agent has not answered. When that
    was.
    """
    await machine.append(
        posted(at_ms, type="call_started", agent="desk"),
        spoke(at_ms + 1_000, "user_speech_started"),
        spoke(at_ms + 3_000, "user_speech_stopped"),
        *ticks(at_ms + 3_000, at_ms + 4_000),
    )
    machine.read()
    await machine.write()
    return machine.now_ms


async def answered(machine: Machine, at_ms: int) -> list[Row]:
    """The agent answers, and the call ends in order; all rows."""
    await machine.append(
        *ticks(at_ms + 500, at_ms + 1_000),
        spoke(at_ms + 1_000, "bot_speech_started"),
        *ticks(at_ms + 1_500, at_ms + 3_000),
        spoke(at_ms + 3_000, "bot_speech_stopped"),
        posted(at_ms + 3_500, type="call_ended", reason="goodbye"),
    )
    machine.left.clear()
    await machine.to_the_end()
    return published(machine.log)["call"]


def dead_air(rows: Iterable[Row]) -> list[int]:
    """The turn of each silence that became dead air."""
    last = newest(rows).values()
    return [row.turn for row in last if isinstance(row, TurnRow) for _ in row.dead_air]


def close_reasons(rows: Iterable[Row]) -> list[str]:
    return [
        str(row.close_reason) for row in rows if isinstance(row, CallRow) and row.state == "closed"
    ]


@pytest.mark.parametrize("is_started_again", [False, True])
async def test_an_hour_in_which_nobody_listened_is_no_dead_air_and_ends_no_call(
    tmp_path: Path, is_started_again: bool
) -> None:
    machine = Machine(tmp_path, settings_of())
    await machine.start()
    at_ms = await asked(machine) + HOUR_MS
    if is_started_again:
        await machine.end()
    rows = await answered(machine, at_ms)
    assert [tick.gap_ms for tick in _ticks_of(machine.log) if tick.gap_ms] == [HOUR_MS + TICK_MS]
    assert dead_air(rows) == []
    assert close_reasons(rows) == ["ended"]
    await machine.stop()


@pytest.mark.parametrize("is_started_again", [False, True])
async def test_an_hour_of_silence_that_was_heard_is_one_dead_air_and_ends_the_call(
    tmp_path: Path, is_started_again: bool
) -> None:
    for idle_ms, reasons in ((2 * HOUR_MS, ["ended"]), (Limits().idle_ms, ["idle"])):
        machine = Machine(tmp_path / str(idle_ms), settings_of(idle_ms=idle_ms))
        await machine.start()
        at_ms = await asked(machine) + HOUR_MS
        await machine.append(*ticks(machine.now_ms, at_ms, 4_000))
        if is_started_again:
            await machine.end()
        rows = await answered(machine, at_ms)
        assert not any(tick.gap_ms for tick in _ticks_of(machine.log))
        assert dead_air(rows) == [1]
        assert close_reasons(rows) == reasons
        await machine.stop()


async def test_a_silence_that_lasted_before_the_gap_is_dead_air_as_ever(tmp_path: Path) -> None:
    machine = Machine(tmp_path, settings_of())
    await machine.start()
    await asked(machine)
    await machine.append(*ticks(machine.now_ms, machine.now_ms + 4_000))
    rows = await answered(machine, machine.now_ms + HOUR_MS)
    assert dead_air(rows) == [1]
    await machine.stop()


# A clock that was ahead.

AHEAD_MS: Final = 3 * DAY_MS


@pytest.mark.parametrize("ends", [(), ("before",), ("behind",), ("before", "behind")])
async def test_when_a_clock_that_was_days_ahead_is_set_right_calls_go_on_and_come_and_end_as_ever(
    tmp_path: Path, ends: Sequence[str]
) -> None:
    machine = Machine(tmp_path, settings_of(idle_ms=IDLE_MS))
    await machine.start()
    await asked(machine, NOW_MS + AHEAD_MS)
    machine.now_ms = NOW_MS
    if "before" in ends:
        await machine.end()
    with capture_logs() as lines:
        await machine.append(
            posted(NOW_MS, key="other", type="call_started", agent="desk"),
            *ticks(NOW_MS, NOW_MS + 2_000),
        )
        machine.read()
        await machine.write()
    (told,) = [line for line in lines if line["event"] == "time_went_back"]
    assert (told["log_level"], told["by_seconds"]) == ("error", (AHEAD_MS + 4_000) / 1_000)
    if "behind" in ends:
        with capture_logs() as lines:
            await machine.end()
        assert "time_went_back" not in [line["event"] for line in lines], "it was told once"
    rows = await answered(machine, machine.now_ms)
    assert close_reasons(rows) == ["ended"]
    other = published(machine.log)["other"]
    assert close_reasons(other) == ["idle"], "silence is found again"
    assert max(row.known_ms for row in other if isinstance(row, CallRow)) < NOW_MS + HOUR_MS
    assert machine.log.records(QUARANTINE_TOPIC, 0, ALL) == [], "no event is of another day"
    await machine.stop()


async def test_a_call_that_says_nothing_more_ends_although_it_began_in_a_time_that_was_ahead(
    tmp_path: Path,
) -> None:
    machine = Machine(tmp_path, settings_of(idle_ms=IDLE_MS))
    await machine.start()
    waiting_ms = await asked(machine, NOW_MS + AHEAD_MS)
    machine.left.clear()
    await machine.append(*ticks(NOW_MS, NOW_MS + IDLE_MS + 4_000, 4_000))
    machine.read()
    machine.close()
    await machine.write()
    assert close_reasons(published(machine.log)["call"]) == ["idle"]
    assert machine.now_ms < waiting_ms - AHEAD_MS + 2 * IDLE_MS
    await machine.stop()


def _ticks_of(log: FileLog) -> list[Tick]:
    return [record.read for record in log.read(0, ALL) if isinstance(record.read, Tick)]


@pytest.mark.parametrize("starts", [0, 1, 2])
async def test_a_call_begins_after_its_id_was_seen_of_no_call_however_often_the_process_started(
    tmp_path: Path, starts: int
) -> None:
    """Spans of a job come before those of its call, and are forgotten without a row."""
    machine = Machine(tmp_path, settings_of(idle_ms=2_000, closing_grace_ms=500))
    await machine.start()
    await machine.append(
        posted(NOW_MS, type="call_started", is_told_later=True),
        *ticks(NOW_MS + TICK_MS, NOW_MS + 6_000),
    )
    machine.read()
    machine.partition.write_row(is_last=True)
    await machine.write()
    assert not machine.partition.evaluator.open_calls
    assert published(machine.log) == {}
    for _ in range(starts):
        await machine.end()
    await asked(machine, machine.now_ms + 1_000)
    rows = await answered(machine, machine.now_ms)
    assert_closed_once(rows)
    await machine.stop()


# The role itself.


class Running:
    """A role that runs on a log with the clock of the machine."""

    def __init__(self, log: FileLog, settings: EvaluatorSettings) -> None:
        self.log = log
        self.registry = CollectorRegistry()
        self.role = FileEvaluator(log, settings, Instruments(self.registry, ["evaluator"]))
        self._stop = asyncio.Event()
        self._task = asyncio.create_task(self.role.run(self._stop))

    async def __aenter__(self) -> Self:
        async with asyncio.timeout(patient(10)):
            await self.role.ready.wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop.set()
        async with asyncio.timeout(patient(10)):
            await self._task

    async def until_closed(self) -> None:
        async with asyncio.timeout(patient(20)):
            while not any(close_reasons(rows) for rows in published(self.log).values()):
                self.log.decided.clear()
                await self.log.decided.wait()


@pytest.fixture
async def log(tmp_path: Path) -> Any:
    log = FileLog(tmp_path)
    log.open()
    yield log
    await log.close()


def just_now(seed: int = 0) -> list[OutgoingRecord]:
    """The events of a whole call that ended a moment ago."""
    from_ms = simulated_events(seed, NOW_MS)[-1][0] - NOW_MS
    began_ms = wall_clock_ms() - from_ms
    return [
        OutgoingRecord(source, b"call", value, [])
        for _, source, value in simulated_events(seed, began_ms)
    ]


async def test_calls_are_evaluated_and_closed_while_it_runs(
    log: FileLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_file, "TICK_SECONDS", 0.02)
    settings = settings_of(closing_grace_ms=100)
    async with Running(log, settings) as running:
        assert running.role.problems() == ()
        await log.append(just_now())
        await running.until_closed()
    assert running.role.problems() != ()
    (rows,) = published(log).values()
    assert_closed_once(rows)
    assert_counted(rows)
    assert log.row is not None
    assert log.row.place == log.end, "the last transaction has the place up to which all is decided"
    assert list(log.closed_calls(9)) == ["call"]


async def test_what_waits_is_written_when_it_stops(
    log: FileLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of().model_copy(update={"write_interval_ms": 3_600_000})
    was_ready: list[bool] = []
    publish = log.publish

    async def seen(decided: Decided) -> None:
        was_ready.append(running.role.ready.is_set())
        await publish(decided)

    monkeypatch.setattr(log, "publish", seen)
    async with Running(log, settings) as running:
        await log.append(just_now()[:60])
        async with asyncio.timeout(patient(10)):
            while running.role.partition.next_offset < log.end:
                await pause(0)
    assert log.row is not None
    assert log.row.place == log.end
    assert not running.role.partition.outbox.is_filled
    assert published(log)
    assert not was_ready[-1], "what it says of itself comes first"


async def test_what_the_disk_did_not_take_is_written_when_it_does(
    log: FileLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_file, "TICK_SECONDS", 0.02)
    monkeypatch.setattr(on_file, "RETRY_SECONDS", 0.0)
    problems: list[str] = []
    async with Running(log, settings_of(closing_grace_ms=100)) as running:
        await log.append(just_now())
        whole, refused = log.commits._commit, 0

        def commit(steps: Any) -> list[Any] | Exception:
            nonlocal refused
            refused += 1
            if 1 < refused < 20:
                problems.extend(running.role.problems())
            if refused < 20:
                return NotWrittenError("database or disk is full")
            return whole(steps)

        monkeypatch.setattr(log.commits, "_commit", commit)
        await running.until_closed()
        assert running.role.problems() == ()
    assert set(problems) == {"evaluator: the disk takes nothing: database or disk is full"}
    (rows,) = published(log).values()
    assert_closed_once(rows)
    assert_counted(rows)


async def test_time_is_told_only_while_a_call_is_open(
    log: FileLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_file, "TICK_SECONDS", 0.0)
    told = 0
    tick = log.tick

    async def counted_tick() -> None:
        nonlocal told
        told += 1
        await tick()

    monkeypatch.setattr(log, "tick", counted_tick)
    async with Running(log, settings_of()):
        for _ in range(200):
            await pause(0)
        assert told == 0, "without a call the disk is left alone"
        await log.append([posted(wall_clock_ms(), type="call_started", agent="desk")[1]])
        async with asyncio.timeout(patient(10)):
            while not _ticks_of(log):
                await pause(0)


async def test_the_first_event_after_a_quiet_time_is_known_before_any_tick(
    log: FileLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_file, "TICK_SECONDS", 3_600.0)
    async with Running(log, settings_of()) as running:
        await log.append([posted(wall_clock_ms(), type="call_started", agent="desk")[1]])
        async with asyncio.timeout(patient(10)):
            while running.role.partition.next_offset < log.end:
                await pause(0)
        (event,) = log.read()
        assert running.role.known_ms == event.timestamp


async def test_records_that_come_soon_after_each_other_are_read_together(
    log: FileLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_file, "TICK_SECONDS", 3_600.0)
    monkeypatch.setattr(on_file, "GATHER_SECONDS", 0.2)
    sizes: list[int] = []
    read = log.read

    def counted(place: int = 0, most: int = -1) -> list[FileRecord]:
        records = read(place, most)
        sizes.append(len(records))
        return records

    monkeypatch.setattr(log, "read", counted)
    async with Running(log, settings_of()) as running:
        events = just_now()[:10]
        for event in events:
            await log.append([event])
        async with asyncio.timeout(patient(10)):
            while running.role.partition.next_offset < log.end:
                await pause(0)
    assert sum(sizes) == len(events)
    assert max(sizes) > 1


async def test_reading_waits_while_too_much_is_not_written(
    log: FileLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of().model_copy(
        update={"max_unwritten_records": 5, "max_batch_records": 10}
    )
    monkeypatch.setattr(on_file, "BATCH_RECORDS", 10)
    monkeypatch.setattr(on_file, "GATHER_SECONDS", 0.0)
    may_write = asyncio.Event()
    publish = log.publish

    async def held(decided: Decided) -> None:
        await may_write.wait()
        await publish(decided)

    monkeypatch.setattr(log, "publish", held)
    async with Running(log, settings) as running:
        await log.append(just_now())
        for _ in range(500):
            await pause(0)
        assert 5 < running.role.partition.outbox.records < 50
        assert running.role.partition.next_offset < log.end
        may_write.set()
        async with asyncio.timeout(patient(10)):
            while running.role.partition.next_offset < log.end:
                await pause(0)


async def test_calls_with_the_same_goals_have_one_set_of_them_after_a_start(tmp_path: Path) -> None:
    machine = Machine(tmp_path, settings_of())
    await machine.start()
    await machine.come(HALF)
    machine.read()
    await machine.write()
    with mock.patch.object(on_file, "Recovery", wraps=Recovery) as made:
        await machine.end()
    (_, one), (_, other) = made.call_args.kwargs["goals"].values()
    assert one == goal_set()
    assert one is other
    await machine.stop()


async def test_a_goal_set_of_another_version_that_cannot_be_read_ends_no_start(
    tmp_path: Path,
) -> None:
    machine = Machine(tmp_path, settings_of())
    await machine.start()
    waiting_ms = await asked(machine)
    machine.log._writer.execute("UPDATE call SET goals = ?", [b'{"row":"x"}'])
    await machine.end()
    assert len(machine.partition.evaluator.open_calls) == 1
    assert waiting_ms
