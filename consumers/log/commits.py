"""Writes of a database in a file, in a thread of their own: those that wait beside each other are
one transaction.
"""

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

import structlog

from consumers.runtime.process import end_tasks
from consumers.store.rows import transaction

GATHER_SECONDS: Final = 0.01
"""How long steps gather before they are committed together: a commit to the disk costs the same for
one and for fifty.
"""
MAX_STEPS: Final = 500
"""Steps of one commit. Further ones wait for the next."""
CLOSE_SECONDS: Final = 1.5
"""How long the last commit may take."""

Result = TypeVar("Result")

log = structlog.get_logger()


class NotWrittenError(Exception):
    """The disk did not take a request, and nothing of it is written. It can be made again."""


class StepCommits:
    """Takes steps from the event loop and commits them, in order.

    Attributes:
        fault: Why nothing can be written now; None if it can.
        failures: Commits that failed.
    """

    def __init__(self, file: Path) -> None:
        """Nothing is committed before `start`.

        Args:
            file: The file of the database, for people.
        """
        self.fault: str | None = None
        self.failures = 0
        self._file = str(file)
        self._waiting: list[tuple[Callable[[], Any], asyncio.Future[Any]]] = []
        self._wake = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "log")
        self._connection: sqlite3.Connection
        self._committing: asyncio.Task[None] | None = None

    def start(self, connection: sqlite3.Connection) -> None:
        """Commits with this connection, which only this class writes with, from now on. Call it
        inside a running event loop.
        """
        self._connection = connection
        self._committing = asyncio.create_task(self._commit_for_ever(), name="log")

    async def of(self, step: Callable[[], Result]) -> Result:
        """Runs a step in a transaction that it shares with those that wait beside it; returns its
        result when the disk has it.

        Raises:
            NotWrittenError: The disk did not take it.
        """
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((step, future))
        self._wake.set()
        return await future

    async def between(self, step: Callable[[], Result]) -> Result:
        """Runs a step that must be in no transaction, between two of them.

        Raises:
            NotWrittenError: The disk did not take it.
        """
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, step)
        except sqlite3.Error as error:
            raise NotWrittenError(str(error)) from error

    async def close(self) -> bool:
        """Commits what waits, and ends; returns whether there was anything to end."""
        committing, self._committing = self._committing, None
        if committing is not None:
            with contextlib.suppress(TimeoutError, NotWrittenError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self.of(lambda: None)
            await end_tasks([committing])
            self._thread.shutdown()
        return committing is not None

    async def _commit_for_ever(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._wake.wait()
            if len(self._waiting) < MAX_STEPS:
                await asyncio.sleep(GATHER_SECONDS)
            together, self._waiting = self._waiting[:MAX_STEPS], self._waiting[MAX_STEPS:]
            if not self._waiting:
                self._wake.clear()
            changes = self._connection.total_changes
            results = await loop.run_in_executor(
                self._thread, self._commit, [step for step, _ in together]
            )
            if isinstance(results, NotWrittenError):
                self.failures += 1
                self._tell(str(results))
            # a step that found nothing to do says nothing of the disk
            elif self._connection.total_changes > changes:
                self._tell(None)
            for place, (_, future) in enumerate(together):
                if future.done():  # who waited is gone
                    continue
                if isinstance(results, Exception):
                    future.set_exception(results)
                    future.exception()  # who waited may be gone soon
                else:
                    future.set_result(results[place])

    def _commit(self, steps: Sequence[Callable[[], Any]]) -> list[Any] | Exception:
        """Runs the steps; what they return, or why nothing of them is written."""
        try:
            with transaction(self._connection):
                return [step() for step in steps]
        except (sqlite3.Error, OSError) as error:
            return NotWrittenError(str(error))
        # a defect in a step: it is raised where that was asked for
        except Exception as error:  # noqa: BLE001
            return error

    def _tell(self, fault: str | None) -> None:
        if fault is not None and self.fault is None:
            log.error(
                "log_not_written",
                file=self._file,
                error=fault,
                what_happens_now=(
                    "Senders get 503 and send again; nothing that was acknowledged is lost. It is "
                    "tried again."
                ),
                what_to_do="Make room on the disk, and see to the rights of the folder.",
            )
        elif fault is None and self.fault is not None:
            log.info("log_written_again", file=self._file)
        self.fault = fault
