"""History of one machine: a stop lets the write in progress end, and the rest is
written after it.
"""

import asyncio
import threading
from functools import partial
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from consumers.history import on_file
from consumers.history.on_file import FileHistory
from consumers.history.sqlite import Batch, NotKept, SqliteHistory
from consumers.log.commits import NotWrittenError
from consumers.log.file import Decided, DecidedRecord, FileLog
from consumers.runtime.registry import Instruments
from schemas.log import Event
from schemas.owners import PartitionRow
from schemas.rows import encode
from schemas.topics import ANNOTATIONS_TOPIC, SCORES_TOPIC
from tests.support.calls.console_calls import call_row
from tests.support.file_logs import NOW_MS, opened, said
from tests.support.patience import patient


async def test_a_stop_in_the_middle_of_a_slow_write_loses_nothing_and_fails_nothing(
    tmp_path: Path,
) -> None:
    writes, may_end, one_writes = threading.Event(), threading.Event(), threading.Lock()
    overlaps: list[Batch] = []

    class Slow(SqliteHistory):
        def write(self, batch: Batch) -> NotKept:
            if not one_writes.acquire(blocking=False):
                overlaps.append(batch)
                return NotKept(0, 0)
            try:
                writes.set()
                may_end.wait(patient(10))
                return super().write(batch)
            finally:
                one_writes.release()

    async with opened(tmp_path / "log") as log, asyncio.timeout(patient(20)):
        history = FileHistory(
            log,
            lambda: Slow(tmp_path / "history", writes=True),
            Instruments(CollectorRegistry(), ["history"]),
            lambda _: 0,
        )
        stop = asyncio.Event()
        await log.publish(Decided([DecidedRecord(SCORES_TOPIC, b"one", encode(call_row("one")))]))
        running = asyncio.create_task(history.run(stop))
        await asyncio.to_thread(writes.wait)
        await log.publish(Decided([DecidedRecord(SCORES_TOPIC, b"two", encode(call_row("two")))]))
        stop.set()
        for _ in range(20):
            await asyncio.sleep(0)
        may_end.set()
        await running
    assert overlaps == [], "a connection is for one thread at a time"
    kept = SqliteHistory(tmp_path / "history")
    assert [kept.has(name) for name in ("one", "two")] == [True, True]
    kept.close()


async def test_who_is_cancelled_in_a_slow_write_closes_the_store_behind_it(tmp_path: Path) -> None:
    writes, may_end = threading.Event(), threading.Event()
    steps: list[str] = []

    class Slow(SqliteHistory):
        def write(self, batch: Batch) -> NotKept:
            writes.set()
            may_end.wait(patient(10))
            left_out = super().write(batch)
            steps.append("written")
            return left_out

        def close(self) -> None:
            steps.append("closed")
            super().close()

    async with opened(tmp_path / "log") as log, asyncio.timeout(patient(20)):
        history = FileHistory(
            log,
            lambda: Slow(tmp_path / "history", writes=True),
            Instruments(CollectorRegistry(), ["history"]),
            lambda _: 0,
        )
        await log.publish(Decided([DecidedRecord(SCORES_TOPIC, b"one", encode(call_row("one")))]))
        running = asyncio.create_task(history.run(asyncio.Event()))
        await asyncio.to_thread(writes.wait)
        running.cancel()
        for _ in range(20):
            await asyncio.sleep(0)
        may_end.set()
        await asyncio.wait([running])
    assert steps == ["written", "closed"]


async def test_others_may_write_between_two_batches(tmp_path: Path) -> None:
    async with opened(tmp_path / "log") as log, asyncio.timeout(patient(20)):
        history = FileHistory(
            log,
            partial(SqliteHistory, tmp_path / "history", writes=True),
            Instruments(CollectorRegistry(), ["history"]),
            lambda _: 0,
        )
        stop = asyncio.Event()
        await log.publish(Decided([DecidedRecord(SCORES_TOPIC, b"one", encode(call_row("one")))]))
        running = asyncio.create_task(history.run(stop))
        await history.ready.wait()
        await history.run_on_store(lambda store: store.write(Batch([call_row("another")], [], {})))
        stop.set()
        await running
    kept = SqliteHistory(tmp_path / "history")
    assert [kept.has(name) for name in ("one", "another")] == [True, True]
    kept.close()


async def test_what_a_killed_process_forgot_in_the_history_alone_leaves_the_log_at_the_next_start(
    tmp_path: Path,
) -> None:
    def history(log: FileLog) -> FileHistory:
        open_store = partial(SqliteHistory, tmp_path / "history", writes=True)
        return FileHistory(
            log, open_store, Instruments(CollectorRegistry(), ["history"]), lambda _: 2**62
        )

    async with opened(tmp_path / "log") as log, asyncio.timeout(patient(20)):
        await log.append([said("one", "1"), said("two", "2")])
        row = PartitionRow(place=3, first=3, first_known_ms=NOW_MS, known_ms=NOW_MS, version="test")
        await log.publish(Decided([], row, closed=["one", "two"]))
        store = SqliteHistory(tmp_path / "history", writes=True)
        store.forget(["one"])
        store.close()
        await history(log).keep_all()
        assert [record.read.key for record in log.read(0, 9) if isinstance(record.read, Event)] == [
            b"two"
        ]


async def test_a_deletion_that_the_log_does_not_take_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_file, "RETRY_SECONDS", 0.0)
    asked: list[set[str]] = []
    is_done = asyncio.Event()

    async def forget(self: FileLog, calls: set[str]) -> None:
        asked.append(set(calls))
        if len(asked) == 1:
            raise NotWrittenError("a reader keeps deleted pages from being overwritten")
        is_done.set()

    monkeypatch.setattr(FileLog, "forget", forget)
    async with opened(tmp_path / "log") as log, asyncio.timeout(patient(20)):
        open_store = partial(SqliteHistory, tmp_path / "history", writes=True)
        role = FileHistory(
            log, open_store, Instruments(CollectorRegistry(), ["history"]), lambda _: 2**62
        )
        await log.publish(Decided([DecidedRecord(ANNOTATIONS_TOPIC, b"one", b"")]))
        stop = asyncio.Event()
        running = asyncio.create_task(role.run(stop))
        await is_done.wait()
        stop.set()
        await running
        assert log.records(ANNOTATIONS_TOPIC, 0, 9) == [], (
            "who waits for the deletion knows by that"
        )
    assert asked == [{"one"}, {"one"}]
