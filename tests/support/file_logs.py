"""Logs in files for tests: with a clock of the test, of a process that was killed, and as before
anything was decided.
"""

import contextlib
import sqlite3
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from consumers.log.file import FILE_NAME, FileLog
from consumers.runtime.process import end_tasks
from schemas.closed_sets import InputSource
from schemas.events.envelope import ID_HEADER, SOURCE_HEADER
from schemas.log import OutgoingRecord

NOW_MS: Final = 1_790_000_000_000


class SetClock:
    """A clock that a test sets. Times that it was told to have come first, one for each
    look at it.
    """

    def __init__(self, now_ms: int = NOW_MS) -> None:
        self.now_ms = now_ms
        self._coming: deque[int] = deque()

    def __call__(self) -> int:
        if self._coming:
            self.now_ms = self._coming.popleft()
        return self.now_ms

    def will_be(self, times_ms: Sequence[int]) -> None:
        """Has these times, one after the other, and stands at the last."""
        self._coming.extend(times_ms)


@asynccontextmanager
async def opened(
    folder: Path, clock: SetClock | None = None, **options: Any
) -> AsyncIterator[FileLog]:
    """An open log, which is closed at the end."""
    log = FileLog(folder, clock_ms=clock or SetClock(), **options)
    log.open()
    try:
        yield log
    finally:
        await log.close()


async def kill(log: FileLog) -> None:
    """Leaves a log as a killed process does: nothing is closed in order, and its lock is free."""
    committing, log.commits._committing = log.commits._committing, None
    assert committing is not None
    await end_tasks([committing])
    log._lock.close()


def said(
    key: str, event_id: str | None = None, value: bytes = b"{}", ce_source: str = "bot"
) -> OutgoingRecord:
    """An event of a call on its way into a log; without an id it has none of the headers that name
    it.
    """
    headers = (
        []
        if event_id is None
        else [(SOURCE_HEADER, ce_source.encode()), (ID_HEADER, event_id.encode())]
    )
    return OutgoingRecord(InputSource.PIPECAT, key.encode(), value, headers)


def undecided(folder: Path, into: Path) -> None:
    """Copies a log as if no evaluator had ever read it. A process may write it meanwhile."""
    into.mkdir(parents=True, exist_ok=True)
    with (
        contextlib.closing(
            sqlite3.connect(f"{(folder / FILE_NAME).as_uri()}?mode=ro", uri=True)
        ) as there,
        contextlib.closing(sqlite3.connect(into / FILE_NAME)) as copy,
    ):
        there.backup(copy)
        copy.execute("DELETE FROM record")
        copy.execute("DELETE FROM state")
        copy.execute("UPDATE call SET closed = NULL, goals = NULL")
        copy.commit()
