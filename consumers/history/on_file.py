"""The history of one machine: takes the decided records out of a log in a file, and keeps the
calls.

A batch and the place to read on from are one transaction of the store; what it has taken is deleted
from the log after that. What is to be forgotten leaves the log, too: immediately if the call has
closed, otherwise with its closed row, which is passed over here.
"""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

import structlog

from consumers.history.batches import batch_of
from consumers.history.sqlite import HistoryBrokenError, SqliteHistory
from consumers.log.commits import NotWrittenError
from consumers.log.file import FileLog
from consumers.runtime.process import pause_unless
from consumers.runtime.registry import Instruments
from consumers.store.rows import Place
from schemas.rows import DECODED, StoredRow
from schemas.topics import ANNOTATIONS_TOPIC, TRANSCRIPTS_TOPIC

TOPICS: Final = (*DECODED, TRANSCRIPTS_TOPIC, ANNOTATIONS_TOPIC)
"""The topics that history reads."""
MAX_BATCH_RECORDS: Final = 1_000
"""Records of a topic in one transaction."""
PAUSE_SECONDS: Final = 0.5
"""How long records gather before they are written."""
MAX_LOOKED_FOR: Final = 50_000
"""Newest closed calls of the log of which a start looks whether they are forgotten:
half a second.
"""
RETRY_SECONDS: Final = 5.0
"""Pause before a write that failed is tried again."""

Result = TypeVar("Result")

log = structlog.get_logger()


class FileHistory:
    """Keeps the calls of a log until it is stopped.

    Attributes:
        ready: Set while it writes.
        fault: Why nothing is kept now; None if all is.
    """

    def __init__(
        self,
        log_file: FileLog,
        open_store: Callable[[], SqliteHistory],
        instruments: Instruments,
        shown: Callable[[str], int],
    ) -> None:
        """Nothing is opened before `run`.

        Args:
            log_file: The log.
            open_store: Opens the store to write.
            instruments: Get the metrics of the role.
            shown: By topic, the offset in front of which all other readers in this process have
                read.
        """
        self.ready = asyncio.Event()
        self.fault: str | None = None
        self._log = log_file
        self._open_store = open_store
        self._instruments = instruments
        self._shown = shown
        self._store: SqliteHistory
        self._next: dict[str, int] = {}
        self._deleted: dict[str, int] = {}
        self._forgotten: set[str] = set()
        # The store is for one thread at a time. Who is cancelled in a write leaves it behind, so a
        # close must queue behind it.
        self._thread = ThreadPoolExecutor(1, "history")

    async def keep_all(self) -> None:
        """Keeps what the log has now, for a process that serves nothing.

        Raises:
            HistoryFolderError: The folder cannot be used, or another process writes it.
            NotWrittenError, OSError, sqlite3.OperationalError: The disk takes nothing.
        """
        while True:
            with contextlib.suppress(HistoryBrokenError):  # logged where the file was set aside
                async with self._opened() as store:
                    while await self._keep(store):
                        pass
                return

    @contextlib.asynccontextmanager
    async def _opened(self) -> AsyncIterator[SqliteHistory]:
        store = self._store = await self._in_thread(self._open_store)
        try:
            positions = await self._in_thread(store.positions)
            self._next = {topic: positions.get(self._place(topic), 0) for topic in TOPICS}
            self._deleted = dict.fromkeys(TOPICS, 0)
            # The process before this one may have been killed between the history and the log.
            self._forgotten = await self._in_thread(
                _forgotten_of, store, self._log.closed_calls(MAX_LOOKED_FOR)
            )
            yield store
        finally:
            self.ready.clear()
            await self._in_thread(store.close)

    async def open_calls(self, also: Collection[str] = ()) -> list[StoredRow]:
        """The rows of the calls that have not closed, as they are kept, and of some others; of a
        start, for those who show calls.
        """
        return await asyncio.to_thread(self._rows_of_open_calls, also)

    def _rows_of_open_calls(self, also: Collection[str]) -> list[StoredRow]:
        store = self._open_store()
        try:
            store.positions()  # sets a damaged file aside
        except HistoryBrokenError:
            store.close()
            return self._rows_of_open_calls(also)
        try:
            rows: list[StoredRow] = []
            for conversation_id in dict.fromkeys([*store.open_calls(), *also]):
                if (call := store.call(conversation_id)) is not None:
                    goals = [] if call.goals is None else [call.goals]
                    rows += [call.call, *call.turns, *call.words, *call.own, *goals]
            return rows
        finally:
            store.close()

    async def run(self, stop: asyncio.Event) -> None:
        """Keeps what is decided until `stop` is set."""
        while not stop.is_set():
            with contextlib.suppress(HistoryBrokenError):  # logged where the file was set aside
                async with self._opened() as store:
                    self.ready.set()
                    while not stop.is_set():
                        await pause_unless(stop, await self._keep_some(store))
                    await self._keep_some(store)

    async def run_on_store(self, work: Callable[[SqliteHistory], Result]) -> Result:
        """Does something with the store while `ready` is set, in its thread, between two writes."""
        return await self._in_thread(work, self._store)

    async def _in_thread(self, work: Callable[..., Result], *given: Any) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, partial(work, *given))

    def problems(self) -> Sequence[str]:
        """Why nothing is kept now, for `/readyz`."""
        if self.fault is not None:
            return (f"history: {self.fault}",)
        return () if self.ready.is_set() else ("history: not writing",)

    async def _keep_some(self, store: SqliteHistory) -> float:
        """Writes the next records; returns after how many seconds there may be more to do. A stop
        waits for it.
        """
        try:
            kept = await self._keep(store)
        except (sqlite3.OperationalError, OSError, NotWrittenError) as error:
            self._instruments.inc("callgauge_history_write_failures_total")
            self._tell(str(error))
            return RETRY_SECONDS
        self._tell(None)
        return PAUSE_SECONDS if kept < MAX_BATCH_RECORDS else 0.0

    def _place(self, topic: str) -> Place:
        """Where to read on, as the store notes it: of this log alone, not of another one or of
        Kafka.
        """
        return f"{topic} of log {self._log.id}", 0

    def _tell(self, fault: str | None) -> None:
        """Logs a fault once for as long as it lasts."""
        if fault is not None and self.fault is None:
            log.error(
                "history_waits",
                problem=fault,
                what_to_do="Make room on its disk, and see to the rights of the folder.",
                what_happens_now=(
                    f"It is tried again every {RETRY_SECONDS:.0f} s; records wait in the log."
                ),
            )
        self.fault = fault

    async def _keep(self, store: SqliteHistory) -> int:
        """Writes the next records, and deletes from the log what everybody has read; returns how
        many there were. Who waits for a deletion waits until the record that says so is gone.
        """
        polled = {
            topic: self._log.records(topic, self._next[topic], MAX_BATCH_RECORDS)
            for topic in TOPICS
        }
        records = [record for each in polled.values() for record in each]
        if records:
            kept = {self._place(topic): (topic, found) for topic, found in polled.items() if found}
            # Refused are rows of another version; notes have no personal data in this log.
            batch, _ = batch_of(kept, str)
            self._forgotten |= await self._in_thread(store.forgotten_in, batch)
            left_out = await self._in_thread(store.write, batch)
            for outcome, count in left_out._asdict().items():
                if count:
                    self._instruments.inc("callgauge_history_records_total", (outcome,), count)
            written = len(records) - sum(left_out)
            self._instruments.inc("callgauge_history_records_total", ("written",), written)
        self._next |= {topic: each[-1].offset + 1 for topic, each in polled.items() if each}
        if self._forgotten:
            await self._log.forget(self._forgotten)
            self._forgotten.clear()
        read = {topic: min(self._next[topic], self._shown(topic)) for topic in TOPICS}
        if read != self._deleted:
            with contextlib.suppress(NotWrittenError):  # it is tried again
                await self._log.forget_records(read)
                self._deleted = read
        return len(records)


def _forgotten_of(store: SqliteHistory, calls: Iterable[str]) -> set[str]:
    return set(filter(store.is_forgotten, calls)) if store.forgotten_calls() else set()
