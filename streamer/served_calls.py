"""Calls of a folder that `serve` keeps, for commands that read calls: with the process that serves
it, and without.
"""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

from consumers.engine.redaction.redactor import Redactor
from consumers.history.sqlite import SqliteHistory
from consumers.log.file import LogFileError, reading
from consumers.runtime.process import OperatorError
from schemas.metric_context import MetricContext
from schemas.rows import CallRow
from streamer.live_calls import CallsOnScreen
from streamer.one_call import FoundCall, context_document, context_from, in_history
from streamer.served_folder import history_of, served
from streamer.settings.all_settings import Settings

LOOK_SECONDS: Final = 0.25
"""How often it is looked for new rows."""


class FolderReader:
    """Reads a call of a folder that `serve` keeps."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self._settings = settings
        self._folder = folder

    def call(self, wanted: str) -> FoundCall:
        """The call whose id is the wanted text, or ends with it.

        Raises:
            OperatorError: There is none, or there are several.
        """
        found = in_history(served(self._settings, self._folder), wanted)
        if found is None:
            raise OperatorError(
                f"No call with the id {wanted!r} in {self._folder}. `callgauge history find "
                f"--folder {self._folder}` lists calls."
            )
        found.remarks.clear()
        return found

    async def follow(self, found: FoundCall) -> AsyncIterator[None]:
        """Takes new rows of the call in until it closes; yields when there are some."""
        while found.rows.call.state != "closed":
            await asyncio.sleep(LOOK_SECONDS)
            newer = self.call(found.rows.call.conversation_id)
            if newer.rows != found.rows:
                found.rows = newer.rows
                yield

    async def context(self, found: FoundCall) -> dict[str, Any]:
        """The metric context of the call, redacted. Raises as `context_in`."""
        call, redactor = found.rows.call, Redactor(self._settings.redaction)
        return context_document(call, context_in(self._settings, self._folder, call), redactor)


def context_in(settings: Settings, folder: Path, call: CallRow) -> MetricContext:
    """The metric context of a call, with its words as they are, from its events in the log so far.

    Raises:
        OperatorError: The log does not have its events any more.
    """
    with reading(folder) as log_file:
        events = log_file.events_of(call.conversation_id)
    # what came later is no part of it
    last_place = call.last_place if call.state == "closed" else math.inf
    of_call = (event for event in events if call.first_place <= event.place <= last_place)
    return context_from(call, of_call, "the log", settings.all_limits, Redactor(settings.redaction))


async def watch_in(watched: CallsOnScreen, settings: Settings, folder: Path) -> None:
    """Reads rows as they are kept, until cancelled."""
    store = SqliteHistory(history_of(folder, settings))
    seen: dict[str, int] = {}
    since_ms = watched.since_ms
    try:
        while True:
            newest_ms = since_ms
            for row in store.rows_since(since_ms, seen):
                seen[row.conversation_id] = max(row.revision, seen.get(row.conversation_id, -1))
                newest_ms = max(newest_ms, getattr(row, "known_ms", 0))
                watched.take_row(row)
            since_ms = newest_ms
            with contextlib.suppress(LogFileError), reading(folder) as log_file:
                if (reached := log_file.row) is not None:
                    watched.known.take_partition(0, reached.known_ms, reached.event_ms)
            watched.caught_up.set()
            await asyncio.sleep(LOOK_SECONDS)
    finally:
        store.close()
