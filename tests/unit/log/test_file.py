"""The log in a file: what it acknowledged is there, once and in order, whatever ends, fills up or
goes back.
"""

import asyncio
import contextlib
import os
import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from consumers.log import commits, file, retention
from consumers.log.commits import NotWrittenError
from consumers.log.file import (
    BACK_MS,
    FILE_NAME,
    FORMAT,
    GAP_MS,
    Decided,
    DecidedRecord,
    FileLog,
    FileTicks,
    LogFileError,
    reading,
)
from consumers.runtime.private_files import ensure_file
from schemas.closed_sets import InputSource
from schemas.events.envelope import ID_HEADER, SOURCE_HEADER
from schemas.log import REPLAY_OF_HEADER, Event, OutgoingRecord, Tick
from schemas.owners import PartitionRow
from schemas.topics import ANNOTATIONS_TOPIC, SCORES_TOPIC, TRANSCRIPTS_TOPIC, WORDS_TOPIC
from schemas.units import DAY_MS
from tests.support.file_logs import NOW_MS, SetClock, kill, opened, said
from tests.support.patience import patient

HOUR_MS = 3_600_000
LARGE = b'"' + b"x" * 200_000 + b'"'
"""A value for which a full disk has no room."""
ALL = 1_000_000
FIRST = 1
"""Place of the first record of a new log."""


@pytest.fixture(autouse=True)
def _nothing_gathers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "GATHER_SECONDS", 0.0)


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
async def log(tmp_path: Path, clock: SetClock) -> AsyncIterator[FileLog]:
    async with opened(tmp_path, clock) as log:
        yield log


def events(log: FileLog) -> list[Event]:
    return [record.read for record in log.read(0, ALL) if isinstance(record.read, Event)]


def ticks(log: FileLog) -> list[Tick]:
    return [record.read for record in log.read(0, ALL) if isinstance(record.read, Tick)]


def opened_events(log: FileLog) -> list[Event]:
    """Those that a start reads again."""
    found = [record.read for record in log.read_of_open_calls(0, log.end)]
    return [each for each in found if isinstance(each, Event)]


def values(log: FileLog) -> list[bytes | None]:
    return [event.value for event in events(log)]


def places(log: FileLog) -> list[int]:
    """Counted from the first of a new log."""
    return [record.offset - FIRST for record in log.read(0, ALL)]


def decided(*records: DecidedRecord, place: int = 0, first: int = 0, **more: Any) -> Decided:
    """Places are counted as in `places`."""
    row = PartitionRow(
        place=FIRST + place,
        first=FIRST + first,
        first_known_ms=NOW_MS,
        known_ms=NOW_MS,
        version="test",
    )
    return Decided(records, row, **more)


def score(value: bytes = b"{}", key: str = "call", topic: str = SCORES_TOPIC) -> DecidedRecord:
    return DecidedRecord(topic, key.encode(), value)


def fill(log: FileLog) -> None:
    """Lets the disk be full: the file gets no further page."""
    (pages,) = log._writer.execute("PRAGMA page_count").fetchone()
    log._writer.execute(f"PRAGMA max_page_count = {pages}")


def make_room(log: FileLog) -> None:
    log._writer.execute("PRAGMA max_page_count = 1000000")


# What is in it.


async def test_events_are_read_whole_and_in_the_order_in_which_they_came(tmp_path: Path) -> None:
    clock = SetClock()
    headers = [(SOURCE_HEADER, b"bot"), (ID_HEADER, b"1"), ("traceparent", b"\x00\xff")]
    async with opened(tmp_path, clock) as log:
        await log.append(
            [OutgoingRecord(InputSource.AUDIT, b"call", b'{"n": 1}', headers), said("other", "2")]
        )
        clock.now_ms += 7
        await log.append([said("call", "3", b"later")])
        first, other, last = events(log)
        assert first == Event(
            "audit.events",
            0,
            FIRST,
            NOW_MS,
            b"call",
            b'{"n": 1}',
            headers,
            InputSource.AUDIT,
            0,
            0,
            FIRST,
        )
        assert (other.key, other.source, other.topic) == (
            b"other",
            InputSource.PIPECAT,
            "pipecat.events",
        )
        assert (last.key, last.value, last.timestamp, last.place) == (
            b"call",
            b"later",
            NOW_MS + 7,
            FIRST + 2,
        )
        assert places(log) == [0, 1, 2]
        assert (log.first, log.end) == (FIRST, FIRST + 3)


async def test_requests_that_wait_beside_each_other_are_one_transaction_and_keep_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    async with opened(tmp_path) as log, asyncio.timeout(patient(10)):
        commit = log.commits._commit

        def counted(steps: list[Callable[[], Any]]) -> list[Any] | Exception:
            sizes.append(len(steps))
            return commit(steps)

        monkeypatch.setattr(log.commits, "_commit", counted)
        await asyncio.gather(
            *(log.append([said("call", value=b"%d" % number)]) for number in range(50))
        )
        assert sizes == [50]
        monkeypatch.setattr(commits, "MAX_STEPS", 20)
        await asyncio.gather(
            *(log.append([said("call", value=b"%d" % number)]) for number in range(50, 100))
        )
        assert sizes == [50, 20, 20, 10]
        assert values(log) == [b"%d" % number for number in range(100)]


async def test_reading_goes_on_from_a_place_and_takes_so_many(log: FileLog) -> None:
    await log.append([said("call", value=b"%d" % number) for number in range(10)])
    assert [
        record.read.value for record in log.read(FIRST + 4, 3) if isinstance(record.read, Event)
    ] == [
        b"4",
        b"5",
        b"6",
    ]
    assert log.read(log.end, 3) == []


async def test_an_empty_log_begins_at_its_end(log: FileLog) -> None:
    assert (log.first, log.end, log.row, log.read(0, 1)) == (log.end, log.first, None, [])
    assert log.next_offset(SCORES_TOPIC) == 0


async def test_who_waits_for_records_is_told(log: FileLog) -> None:
    assert not log.grown.is_set()
    await log.append([said("call")])
    assert log.grown.is_set()
    log.grown.clear()
    await log.tick()
    assert log.grown.is_set()
    assert not log.decided.is_set()
    await log.publish(decided())
    assert log.decided.is_set()
    log.decided.clear()
    await log.publish(Decided([score()]))
    assert log.decided.is_set()


# Once.


async def test_an_event_of_the_same_source_and_id_is_written_once_also_after_a_restart(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as log:
        await log.append(
            [said("call", "1", b"first"), said("call", "1", b"again"), said("call", "2")]
        )
        await log.append([said("call", "1", b"again"), said("call", "3")])
        assert (values(log), places(log)) == ([b"first", b"{}", b"{}"], [0, 1, 2])
    async with opened(tmp_path) as log:
        await log.append(
            [said("call", "3", b"again"), said("call", "1", b"again"), said("call", "4", b"new")]
        )
        assert (values(log)[0], values(log)[3:], places(log)) == (b"first", [b"new"], [0, 1, 2, 3])


@pytest.mark.parametrize(
    "other",
    [
        said("call", "2"),
        said("call", "1", ce_source="agent"),
        said("other", "1"),
        said("call", "", ce_source="bot1"),
    ],
)
async def test_another_id_source_or_call_is_another_event(
    other: OutgoingRecord, log: FileLog
) -> None:
    await log.append([said("call", "1"), other])
    assert len(events(log)) == 2


@pytest.mark.parametrize("headers", [[], [(ID_HEADER, b"1")], [(SOURCE_HEADER, b"bot")]])
async def test_events_that_nothing_names_are_written_each_time(
    tmp_path: Path, headers: list[tuple[str, bytes]]
) -> None:
    unnamed = OutgoingRecord(InputSource.PIPECAT, b"call", b"{}", headers)
    async with opened(tmp_path) as log:
        await log.append([unnamed, unnamed])
        await log.append([unnamed])
        assert len(events(log)) == 3


# What was acknowledged.


async def test_what_was_acknowledged_is_there_after_a_kill(tmp_path: Path) -> None:
    async with asyncio.timeout(patient(10)):
        dropped = FileLog(tmp_path, clock_ms=SetClock())
        dropped.open()
        await asyncio.gather(*(dropped.append([said("call", str(number))]) for number in range(20)))
        await dropped.tick()
        await dropped.publish(decided(score(b"decided"), place=20, closed=["call"]))
        await kill(dropped)
        async with opened(tmp_path) as log:
            assert [event.headers[1][1] for event in events(log)] == [
                b"%d" % number for number in range(20)
            ]
            assert len(ticks(log)) == 1
            assert [record.value for record in log.records(SCORES_TOPIC, 0, 9)] == [b"decided"]
            assert (log.row, log.closed_calls(9)) == (decided(place=20).row, {"call": FIRST + 20})
            await log.append([said("call", "19"), said("call", "20")])
            assert places(log) == [*range(21), 21]


async def test_it_is_in_the_files_when_append_returns(tmp_path: Path) -> None:
    """Whoever copies the folder at that moment has it, whatever the process has in memory."""
    async with opened(tmp_path / "log") as log:
        for number in range(5):
            await log.append([said("call", str(number), b"%d" % number)])
            shutil.copytree(tmp_path / "log", tmp_path / str(number))
    for number in range(5):
        async with opened(tmp_path / str(number)) as copy:
            assert values(copy) == [b"%d" % each for each in range(number + 1)]


async def test_a_commit_waits_for_the_disk(log: FileLog) -> None:
    found = [
        log._writer.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("journal_mode", "synchronous")
    ]
    assert found == ["wal", 2], "2 is FULL: the disk has a commit before it returns"


async def test_what_waits_when_it_closes_is_written(tmp_path: Path) -> None:
    log = FileLog(tmp_path)
    log.open()
    appending = asyncio.create_task(log.append([said("call")]))
    await asyncio.sleep(0)
    await log.close()
    async with asyncio.timeout(patient(10)):
        await appending
    async with opened(tmp_path) as log:
        assert len(events(log)) == 1


async def test_closing_twice_is_harmless_and_without_opening_too(tmp_path: Path) -> None:
    await FileLog(tmp_path).close()
    async with opened(tmp_path) as log:
        await log.close()
        await log.close()
    async with opened(tmp_path):
        pass


async def test_one_who_asked_and_is_gone_holds_nobody_up(tmp_path: Path) -> None:
    async with opened(tmp_path) as log, asyncio.timeout(patient(10)):
        gone = asyncio.create_task(log.append([said("call", "1")]))
        await asyncio.sleep(0)
        gone.cancel()
        await log.append([said("call", "2")])
        assert len(events(log)) == 2


# What cannot be used.


async def test_one_process_holds_the_folder(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        with pytest.raises(
            LogFileError,
            match=r"another callgauge writes this folder\. Stop it, or give this one a",
        ):
            FileLog(tmp_path).open()
        await log.append([said("call")])
        assert len(events(log)) == 1, "the first one works on"
    async with opened(tmp_path) as log:
        assert len(events(log)) == 1


@pytest.mark.parametrize("other", [FORMAT - 1, FORMAT + 1])
async def test_a_file_of_another_format_is_refused_and_stays_as_it_is(
    tmp_path: Path, other: int
) -> None:
    async with opened(tmp_path) as log:
        await log.append([said("call")])
        log._writer.execute(f"PRAGMA user_version = {other}")
    before = (tmp_path / FILE_NAME).read_bytes()
    told = rf"its format is {other}, and this callgauge knows {FORMAT}: another version wrote it"
    with pytest.raises(LogFileError, match=told):
        FileLog(tmp_path).open()
    with pytest.raises(LogFileError, match=told), reading(tmp_path):
        pass
    assert (tmp_path / FILE_NAME).read_bytes() == before


@pytest.mark.parametrize("damage", ["no database", "cut off", "a folder"])
async def test_a_damaged_file_is_refused_with_a_sentence_and_stays_as_it_is(
    tmp_path: Path, damage: str
) -> None:
    path = tmp_path / FILE_NAME
    async with opened(tmp_path) as log:
        await log.append([said("call", value=b"x" * 3_000) for _ in range(100)])
    match damage:
        case "no database":
            path.write_bytes(b"no database" * 500)
        case "cut off":
            os.truncate(path, path.stat().st_size // 2)
        case _:
            path.unlink()
            path.mkdir()
    before = None if path.is_dir() else path.read_bytes()
    with pytest.raises(
        LogFileError, match=r"log\.sqlite: it cannot be used \(.+\)\. Nothing was changed\. See to"
    ):
        FileLog(tmp_path).open()
    assert before is None or path.read_bytes() == before


async def test_a_start_that_ended_among_the_tables_is_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensure_file(tmp_path / FILE_NAME)
    ended = FileLog(tmp_path)
    with monkeypatch.context() as ends:
        ends.setattr(file, "_TABLES", (*file._TABLES, "the process ends here"))
        with pytest.raises(LogFileError, match="syntax error"):
            ended.open()
    ended._lock.close()
    async with opened(tmp_path) as log:
        await log.append([said("call")])
        assert len(events(log)) == 1


async def test_nobody_else_may_read_what_people_said(tmp_path: Path) -> None:
    async with opened(tmp_path / "log") as log:
        await log.append([said("call")])
        paths = [tmp_path / "log", *(tmp_path / "log").iterdir()]
        assert len(paths) >= 4, "the folder, the file, its log and the lock"
        assert [path.name for path in paths if path.stat().st_mode & 0o077] == []


# A disk that takes nothing.


async def test_a_full_disk_takes_all_of_a_request_or_nothing_and_goes_on_when_there_is_room(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as log, asyncio.timeout(patient(10)):
        await log.append([said("call", "1", b"before")])
        fill(log)
        with capture_logs() as lines:
            for _ in range(3):
                with pytest.raises(NotWrittenError, match="full"):
                    await log.append([said("call", "2", b"small"), said("new", "3", LARGE)])
        assert [line["event"] for line in lines] == ["log_not_written"], (
            "once for as long as it lasts"
        )
        assert (values(log), log.end) == ([b"before"], FIRST + 1)
        assert "full" in str(log.commits.fault)
        make_room(log)
        await log.append([said("call", "2", b"small"), said("new", "3", LARGE)])
        assert (values(log), places(log), log.commits.fault) == (
            [b"before", b"small", LARGE],
            [0, 1, 2],
            None,
        )
        assert events(log)[2].key == b"new", "the number of a call that was not written is not used"


async def test_what_shares_a_transaction_with_a_request_that_fails_is_not_written_either(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as log, asyncio.timeout(patient(10)):
        await log.append([said("call", "1")])
        fill(log)
        found = await asyncio.gather(
            log.append([said("call", "2")]),
            log.tick(),
            log.append([said("call", "3", LARGE)]),
            return_exceptions=True,
        )
        assert [type(each) for each in found] == [NotWrittenError] * 3
        assert (len(events(log)), len(ticks(log))) == (1, 0)


async def test_numbers_do_not_move_on_after_a_commit_that_failed(tmp_path: Path) -> None:
    clock = SetClock()
    async with opened(tmp_path, clock) as log, asyncio.timeout(patient(10)):
        await log.append([said("call", "1")])
        await log.publish(decided(score(b"1"), place=1))
        fill(log)
        clock.now_ms += GAP_MS + 1
        for failing in (
            log.append([said("call", "2", LARGE)]),
            log.publish(decided(score(b"2"), score(LARGE), place=9)),
            log.publish(Decided([score(LARGE, topic=WORDS_TOPIC)])),
        ):
            with pytest.raises(NotWrittenError):
                await failing
        assert (log.end, log.next_offset(SCORES_TOPIC), log.next_offset(WORDS_TOPIC)) == (
            FIRST + 1,
            2,
            0,
        )
        assert log.row == decided(place=1).row
        make_room(log)
        clock.now_ms -= 1  # no gap now, so no tick: the time of what failed did not count either
        await log.append([said("call", "2")])
        await log.publish(decided(score(b"2"), place=2))
        assert (places(log), len(ticks(log))) == ([0, 1], 0)
        assert [(record.offset, record.value) for record in log.records(SCORES_TOPIC, 0, 9)] == [
            (1, b"1"),
            (2, b"2"),
        ]
    async with opened(tmp_path, clock) as log:
        assert (log.end, log.next_offset(SCORES_TOPIC), log.next_offset(WORDS_TOPIC)) == (
            FIRST + 2,
            3,
            0,
        )


# Time.


async def test_time_stands_while_the_clock_is_a_little_behind_it(tmp_path: Path) -> None:
    clock = SetClock()
    async with opened(tmp_path, clock) as log:
        await log.append([said("call", "1")])
        await log.tick()
        clock.now_ms -= BACK_MS
        await log.append([said("call", "2")])
        await log.tick()
        assert [record.timestamp for record in log.read(0, 9)] == [NOW_MS] * 3, (
            "a tick that tells nothing is none"
        )
    async with opened(tmp_path, clock) as log:
        await log.append([said("call", "3")])
        assert log.read(0, 9)[-1].timestamp == NOW_MS, "over a restart too"
        clock.now_ms = NOW_MS + 1
        await log.append([said("call", "4")])
        assert log.read(0, 9)[-1].timestamp == NOW_MS + 1


@pytest.mark.parametrize("is_started_again", [False, True])
async def test_time_goes_back_with_a_clock_that_is_far_behind_it(
    tmp_path: Path, is_started_again: bool
) -> None:
    """The clock was wrong, and is right now: until it had caught up, no silence would be found, and
    every event be of another day.
    """
    clock, reader = SetClock(NOW_MS + 3 * DAY_MS), FileTicks()
    async with opened(tmp_path, clock) as log:
        await log.append([said("call", "1")])
        clock.now_ms = NOW_MS
        if not is_started_again:
            await log.append([said("call", "2"), said("call", "3")])
    async with opened(tmp_path, clock) as log:
        if is_started_again:
            await log.append([said("call", "2"), said("call", "3")])
        clock.now_ms += 500
        await log.tick()
        found = log.read(0, 9)
        assert [record.timestamp - NOW_MS for record in found] == [3 * DAY_MS, 0, 0, 0, 500]
        assert [(tick.known_ms - NOW_MS, tick.gap_ms) for tick in ticks(log)] == [
            (0, -3 * DAY_MS),
            (500, 0),
        ]
        for record in found:
            reader.read(record)
        assert reader.known_ms == NOW_MS + 500


@pytest.mark.usefixtures("_small_steps")
async def test_events_of_a_time_that_never_was_go_too_when_there_are_too_many(
    tmp_path: Path,
) -> None:
    clock = SetClock(NOW_MS + 3 * DAY_MS)
    async with opened(tmp_path, clock, max_bytes=1) as log:
        await log.append([said("call", str(number)) for number in range(20)])
        clock.now_ms = NOW_MS
        await log.append([said("call", "20")])
        await log.publish(decided(place=22, first=22, closed=["call"]))
        assert await trimmed(log) == 21
        await log.append([said("call", "21")])
        assert places(log) == [21, 22], "the last record stays, so that its place is not used again"


@pytest.mark.parametrize("is_started_again", [False, True])
async def test_after_a_time_in_which_nobody_listened_a_tick_says_so_first(
    tmp_path: Path, is_started_again: bool
) -> None:
    clock = SetClock()
    async with opened(tmp_path, clock) as log:
        await log.append([said("call", "1")])
        clock.now_ms += GAP_MS
        await log.append([said("call", "2")])
        assert ticks(log) == [], "so much is no gap"
        if not is_started_again:
            clock.now_ms += GAP_MS + 1
            await log.append([said("call", "3"), said("call", "4")])
    if is_started_again:
        clock.now_ms += GAP_MS + 1
    async with opened(tmp_path, clock) as log:
        if is_started_again:
            await log.append([said("call", "3"), said("call", "4")])
        assert [type(record.read) for record in log.read(0, 9)] == [
            Event,
            Event,
            Tick,
            Event,
            Event,
        ]
        (gap,) = ticks(log)
        assert (gap.gap_ms, gap.known_ms, gap.place) == (GAP_MS + 1, clock.now_ms, FIRST + 2)
        assert events(log)[2].timestamp == clock.now_ms


async def test_the_tick_of_a_gap_is_the_tick_of_that_time(log: FileLog, clock: SetClock) -> None:
    await log.tick()
    clock.now_ms += HOUR_MS
    await log.tick()
    await log.tick()
    clock.now_ms += 500
    await log.tick()
    found = [(tick.known_ms - NOW_MS, tick.gap_ms) for tick in ticks(log)]
    assert found == [(0, 0), (HOUR_MS, HOUR_MS), (HOUR_MS + 500, 0)]


async def test_the_reader_of_ticks_knows_the_newest_one(tmp_path: Path) -> None:
    clock, reader = SetClock(), FileTicks()
    async with opened(tmp_path, clock) as log:
        await log.tick()
        await log.append([said("call")])
        clock.now_ms += 500
        await log.tick()
        kinds = [type(reader.read(record)) for record in log.read(0, 9)]
        assert kinds == [Tick, Event, Tick]
        assert (reader.known_ms, reader.begin) == (NOW_MS + 500, (FIRST + 2, NOW_MS + 500))


# What was decided.


async def test_what_was_decided_and_the_place_are_one_transaction(log: FileLog) -> None:
    await log.append([said("a"), said("b"), said("c")])
    await log.publish(
        decided(score(b"1"), score(b"words", topic=WORDS_TOPIC), place=1, goals={"a": b"set"})
    )
    await log.publish(
        decided(score(b"2"), place=3, first=2, closed=["b", "a"], goals={"c": b"other"})
    )
    assert [each.value for each in log.records(SCORES_TOPIC, 0, 9)] == [b"1", b"2"]
    assert [each.value for each in log.records(SCORES_TOPIC, 2, 9)] == [b"2"]
    assert [each.value for each in log.records(WORDS_TOPIC, 0, 9)] == [b"words"]
    assert log.records(SCORES_TOPIC, 0, 1)[0] == DecidedRecord(
        SCORES_TOPIC, b"call", b"1", 1, NOW_MS
    )
    assert log.row == decided(place=3, first=2).row
    assert log.goals() == [b"other"], "a call that has closed needs none"
    assert set(log.closed_calls(9)) == {"a", "b"}


async def test_the_calls_that_closed_last_are_told_in_order(log: FileLog) -> None:
    await log.append([said("a"), said("b"), said("c")])
    for place, name in enumerate(("b", "c", "a"), 1):
        await log.publish(decided(place=place, closed=[name]))
    assert list(log.closed_calls(9).items()) == [
        ("b", FIRST + 1),
        ("c", FIRST + 2),
        ("a", FIRST + 3),
    ]
    assert list(log.closed_calls(2)) == ["c", "a"]
    await log.append([said("a")])
    await log.publish(decided(place=4, opened=["a"]))
    assert list(log.closed_calls(9)) == ["b", "c"], "the former came again, as another call"
    assert {each.key for each in opened_events(log)} == {b"a"}


async def test_ticks_and_the_events_of_open_calls_are_read_again_in_order(
    log: FileLog, clock: SetClock
) -> None:
    for key in ("closed", "open", "closed", "also open", "open"):
        await log.append([said(key, value=key.encode())])
        clock.now_ms += 500
        await log.tick()
    await log.publish(decided(place=10, closed=["closed"]))
    found = list(log.read_of_open_calls(FIRST + 1, FIRST + 9))
    assert [record.offset - FIRST for record in found] == [1, 2, 3, 5, 6, 7, 8]
    read = [record.read.value if isinstance(record.read, Event) else "tick" for record in found]
    assert read == ["tick", b"open", "tick", "tick", b"also open", "tick", b"open"]


async def test_an_answer_and_the_end_of_its_question_are_one_transaction(log: FileLog) -> None:
    await log.publish(
        Decided([score(b"first", topic="judge.requests"), score(b"second", topic="judge.requests")])
    )
    fill(log)
    with pytest.raises(NotWrittenError):
        await log.append([said("call", "1", LARGE)], answers=1)
    assert len(log.records("judge.requests", 0, 9)) == 2
    make_room(log)
    await log.append([said("call", "1", LARGE)], answers=1)
    assert [record.value for record in log.records("judge.requests", 0, 9)] == [b"second"]
    assert values(log) == [LARGE]


async def test_offsets_are_not_used_again_after_all_records_were_deleted(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        await log.publish(Decided([score(), score(), score(topic=WORDS_TOPIC)]))
        assert [record.offset for record in log.records(SCORES_TOPIC, 0, 9)] == [1, 2]
        await log.forget_records({SCORES_TOPIC: 2})
        assert [record.offset for record in log.records(SCORES_TOPIC, 0, 9)] == [2]
        await log.forget_records({SCORES_TOPIC: 3, WORDS_TOPIC: 3})
        assert (log.records(SCORES_TOPIC, 0, 9), log.next_offset(SCORES_TOPIC)) == ([], 0)
        assert len(log.records(WORDS_TOPIC, 0, 9)) == 1
        await log.forget_records({WORDS_TOPIC: 4})
    async with opened(tmp_path) as log:
        await log.publish(decided(score(b"third")))
        assert [(record.offset, record.value) for record in log.records(SCORES_TOPIC, 0, 9)] == [
            (4, b"third")
        ]


# What is too old, or too much.


async def trimmed(log: FileLog) -> int:
    """All that goes, step by step."""
    deleted = 0
    async with asyncio.timeout(patient(10)):
        while step := await log.trim():
            assert step <= retention.DELETED_IN_A_STEP
            deleted += step
    return deleted


@pytest.fixture
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "DELETED_IN_A_STEP", 7)


@pytest.mark.usefixtures("_small_steps")
async def test_events_go_when_they_are_too_old_and_their_calls_with_them(tmp_path: Path) -> None:
    clock = SetClock()
    async with opened(tmp_path, clock, retention_ms=DAY_MS) as log:
        await log.append([said("old", str(number)) for number in range(20)])
        clock.now_ms += 1_000
        await log.append([said("young", str(number)) for number in range(5)])
        await log.publish(decided(place=20, first=20, closed=["old"]))
        await log.publish(decided(place=25, first=25, closed=["young"]))
        clock.now_ms = NOW_MS + DAY_MS
        await log.tick()
        assert await trimmed(log) == 0, "a moment too soon"
        clock.now_ms += 1
        await log.tick()
        assert await trimmed(log) == 20
        assert {event.key for event in events(log)} == {b"young"}
        assert (places(log)[0], set(log.closed_calls(9))) == (20, {"old", "young"})
        clock.now_ms += DAY_MS
        await log.tick()
        assert await trimmed(log) == 5
        assert (events(log), set(log.closed_calls(9))) == ([], {"young"}), (
            "the end of the call is not too old"
        )


@pytest.mark.parametrize("by", ["age", "size"])
@pytest.mark.usefixtures("_small_steps")
async def test_nothing_goes_from_the_first_record_of_an_open_call_on(
    tmp_path: Path, by: str
) -> None:
    clock = SetClock()
    options = {"retention_ms": DAY_MS} if by == "age" else {"max_bytes": 1}
    async with opened(tmp_path, clock, **options) as log:
        await log.append([said("closed", str(number)) for number in range(10)])
        await log.append([said("open")])
        await log.append([said("closed", str(number)) for number in range(10, 20)])
        clock.now_ms += 2 * DAY_MS
        await log.tick()
        assert await trimmed(log) == 0, "nothing is decided yet, so any call may be open"
        await log.publish(decided(place=22, first=10, closed=["closed"]))
        assert await trimmed(log) == 10
        assert [event.key for event in events(log)] == [b"open", *[b"closed"] * 10]
        await log.publish(decided(place=22, first=22, closed=["open"]))
        assert await trimmed(log) == 11
        assert events(log) == []


@pytest.mark.parametrize("pages_freed", [1, 200])
@pytest.mark.usefixtures("_small_steps")
async def test_the_oldest_events_go_before_their_time_when_the_file_is_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pages_freed: int
) -> None:
    monkeypatch.setattr(retention, "PAGES_FREED_IN_A_STEP", pages_freed)
    clock, largest = SetClock(), 500_000
    async with opened(tmp_path, clock, max_bytes=largest) as log:
        for number in range(10):
            clock.now_ms += 100
            await log.append(
                [said("call", f"{number}-{each}", b"x" * 10_000) for each in range(10)]
            )
        await log.publish(decided(place=100, first=100))
        deleted = await log.trim()
        assert log.retention.bytes > largest
        deleted += await trimmed(log)
        assert log.retention.bytes <= largest
        assert 0 < deleted < 100
        assert places(log) == [*range(deleted, 100)]
    has_room = (tmp_path / FILE_NAME).stat().st_size <= largest
    assert has_room == (pages_freed > 1), "the disk has the room back, step by step"


async def test_a_call_that_comes_again_after_its_events_were_deleted_is_written_anew(
    tmp_path: Path,
) -> None:
    clock = SetClock()
    async with opened(tmp_path, clock, retention_ms=DAY_MS) as log:
        await log.append([said("a", "1", b"old"), said("b", "1", b"old")])
        await log.publish(decided(place=2, first=2, closed=["a", "b"]))
        await log.append([said("z", "1", b"old")])
        await log.publish(decided(place=3, first=3, closed=["z"]))
        clock.now_ms += 2 * DAY_MS
        await log.append([said("c", "1", b"between")])
        assert await trimmed(log) == 3
        assert set(log.closed_calls(9)) == {"z"}
        await log.append([said("b", "1", b"new"), said("d", "1", b"other")])
        assert [(event.key, event.value) for event in events(log)] == [
            (b"c", b"between"),
            (b"b", b"new"),
            (b"d", b"other"),
        ]


async def test_a_defect_in_a_step_is_raised_where_it_was_asked_for_and_later_requests_go_on(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as log, asyncio.timeout(patient(10)):
        with pytest.raises(ZeroDivisionError):
            await log.commits.of(lambda: 1 / 0)
        await log.append([said("call", "1")])
        assert len(events(log)) == 1


async def test_a_log_that_is_there_opens_although_the_disk_takes_nothing_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as log:
        name = log.id
    connected = file._connected

    def without_room(path: Path, mode: str) -> sqlite3.Connection:
        connection = connected(path, mode)
        connection.execute("PRAGMA query_only = ON")
        return connection

    monkeypatch.setattr(file, "_connected", without_room)
    async with opened(tmp_path) as log:
        assert log.id == name


async def test_another_process_reads_the_log_from_a_time_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file, "READ_AT_ONCE", 2)
    clock = SetClock()
    async with opened(tmp_path, clock, retention_ms=HOUR_MS) as log:
        assert log.since(0) == (FIRST, 2**62, FIRST, False)
        for number in range(7):
            await log.append([said(f"call-{number}")])
            clock.now_ms += 1_000
        for number, since_ms in enumerate(range(NOW_MS, NOW_MS + 7_000, 1_000)):
            assert log.since(since_ms) == (FIRST + number, since_ms, FIRST + 7, False)
            assert log.since(since_ms - 1).start == FIRST + number
        assert log.since(NOW_MS + 7_000).start == FIRST + 7
        assert [record.offset for record in log.between(FIRST + 1, FIRST + 6)] == [
            *range(FIRST + 1, FIRST + 6)
        ]
        assert [*log.between(FIRST, FIRST + 100)] == log.read(0, ALL)
        clock.now_ms += HOUR_MS
        await log.append([said("last")])
        await log.publish(decided(place=5, first=5))
        assert await log.trim() == 5
        assert log.since(NOW_MS) == (FIRST + 5, NOW_MS + 5_000, log.end, True)
        assert not log.since(NOW_MS + 5_000).is_cut, "nothing is gone that was wanted"


async def test_what_is_forgotten_is_in_the_file_no_more_and_an_open_call_stays_until_it_closes(
    tmp_path: Path,
) -> None:
    def has(word: bytes) -> bool:
        return any(
            word in path.read_bytes()
            for path in tmp_path.iterdir()
            if path.name.startswith(FILE_NAME)
        )

    async with opened(tmp_path) as log:
        await log.append(
            [
                said("over", "1", b'"zanzibar"'),
                said("open", "2", b'"timbuktu"'),
                said("other", "3", LARGE),
            ]
        )
        about = [
            score(b"zanzibar too", "over", WORDS_TOPIC),
            score(b"", "over", ANNOTATIONS_TOPIC),
            score(b"figures", "over"),
            score(b"x" * 9_000 + b" zanzibar, and read", "over", TRANSCRIPTS_TOPIC),
        ]
        await log.publish(decided(*about, place=3, closed=["over", "other"]))
        # as every reader does, which leaves it in a free page
        await log.forget_records({TRANSCRIPTS_TOPIC: log.next_offset(TRANSCRIPTS_TOPIC)})
        assert (log.records(TRANSCRIPTS_TOPIC), has(b"zanzibar, and read")) == ([], True)
        assert has(b"zanzibar")
        await log.forget(["over", "open", "nobody"])
        assert not has(b"zanzibar")
        assert [event.key for event in events(log)] == [b"open", b"other"]
        assert log.records(WORDS_TOPIC, 0, ALL) == []
        assert len(log.records(SCORES_TOPIC, 0, ALL)) == 1, (
            "pages and counters have not seen it yet"
        )
        assert len(log.records(ANNOTATIONS_TOPIC, 0, ALL)) == 1, (
            "who reads that it is to be forgotten has to find it"
        )
        assert "over" in log.closed_calls(9), "a late event opens it no more"
        assert [log.has_closed(each) for each in ("over", "open", "other")] == [None, False, True]
        await log.publish(decided(place=4, closed=["open"]))
        await log.forget(["open"])
        assert not has(b"timbuktu")


async def test_a_reader_that_holds_deleted_pages_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file, "BUSY_SECONDS", 0.0)
    async with opened(tmp_path) as log:
        await log.append([said("over", "1"), said("other", "2")])
        await log.publish(decided(place=2, closed=["over"]))
        with contextlib.closing(sqlite3.connect(tmp_path / FILE_NAME)) as reader:
            held = reader.execute("SELECT value FROM log")
            held.fetchone()
            with pytest.raises(NotWrittenError, match="a reader keeps deleted pages"):
                await log.forget(["over"])
            held.close()
        await log.forget(["over"])
        assert (tmp_path / f"{FILE_NAME}-wal").stat().st_size == 0


async def test_an_event_is_put_back_once_and_names_its_first_place(log: FileLog) -> None:
    await log.append([said("call", "1", b"refused"), said("other", "2")])
    assert await log.put_back([(FIRST, "call"), (FIRST, "call"), (99, "call")]) == [
        FIRST + 2,
        None,
        None,
    ]
    again = events(log)[-1]
    assert (again.key, again.value, again.source) == (b"call", b"refused", InputSource.PIPECAT)
    assert dict(again.headers)[REPLAY_OF_HEADER] == f"pipecat.events[0]@{FIRST}".encode()
    assert await log.put_back([(again.place, "call")]) == [None], "a copy of a copy is the same"
    assert log.event_at(FIRST) == events(log)[0]
    assert log.event_at(99) is None
