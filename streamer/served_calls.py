"""Calls of a folder that `serve` keeps, for commands that read calls: with the process that serves it, and without."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

from consumers.engine.admission import Arrival, admit
from consumers.engine.redaction.redactor import Redactor
from consumers.history.sqlite import SqliteHistory
from consumers.log.file import FILE_NAME, LogFileError, reading
from consumers.runtime.process import OperatorError
from schemas.closed_sets import InputSource
from streamer.live_calls import CallsOnScreen
from streamer.one_call import FoundCall, context_document, in_history
from streamer.settings.all_settings import Settings

LOOK_SECONDS: Final = 0.25
"""How often it is looked for new rows."""


def is_served(folder: Path) -> bool:
    """Whether a `serve` keeps calls in a folder, or did."""
    return (folder / FILE_NAME).exists()


def history_of(folder: Path, settings: Settings | None = None) -> Path:
    """The folder of history of a folder that `serve` keeps, with the settings that it has; any other folder is one of history itself."""
    if not is_served(folder):
        return folder
    return (None if settings is None else settings.history.folder) or folder / "history"


def served(settings: Settings, folder: Path) -> Settings:
    """The settings with the history of a folder that `serve` keeps, and without what is on Kafka.

    Raises:
        OperatorError: It is no such folder.
    """
    if not is_served(folder):
        raise OperatorError(f"{folder}: no `callgauge serve` has kept calls here: there is no {FILE_NAME}.")
    history = settings.history.model_copy(update={"folder": history_of(folder, settings), "clickhouse_url": None})
    goals = settings.goals.model_copy(update={"reads_topic": False})
    return settings.model_copy(update={"history": history, "goals": goals, "topic_prefix": ""})


def call_in(settings: Settings, folder: Path, wanted: str) -> FoundCall:
    """The call whose id is the wanted text, or ends with it.

    Raises:
        OperatorError: There is none, or there are several.
    """
    found = in_history(served(settings, folder), wanted)
    if found is None:
        raise OperatorError(
            f"No call with the id {wanted!r} in {folder}. `callgauge history find --folder {folder}` lists calls."
        )
    found.remarks.clear()
    return found


async def follow_in(settings: Settings, folder: Path, found: FoundCall) -> AsyncIterator[None]:
    """Takes new rows of the call in until it closes; yields when there are some."""
    while found.rows.call.state != "closed":
        await asyncio.sleep(LOOK_SECONDS)
        newer = call_in(settings, folder, found.rows.call.conversation_id)
        if newer.rows != found.rows:
            found.rows = newer.rows
            yield


def context_in(settings: Settings, folder: Path, wanted: str) -> dict[str, Any]:
    """The metric context of a call, redacted, from its events in the log so far.

    Raises:
        OperatorError: There is no such call, or the log does not have its events any more.
    """
    call = call_in(settings, folder, wanted).rows.call
    redactor, arrivals = Redactor(settings.redaction), []
    with reading(folder) as log_file:
        events = log_file.events_of(call.conversation_id)
    for event in events:
        is_later = call.state == "closed" and event.place > call.last_place
        if event.source is not InputSource.JUDGE and not is_later and event.place >= call.first_place:
            arrival = admit(event.source, event, settings.all_limits, redactor)
            arrivals += [arrival] if isinstance(arrival, Arrival) else []
    if not arrivals:
        raise OperatorError(f"Call {call.conversation_id} has no context: the log does not have its events any more.")
    return context_document(call.conversation_id, arrivals, settings.all_limits, redactor)


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
                    watched.known.take_partition(0, reached.known_ms)
            watched.caught_up.set()
            await asyncio.sleep(LOOK_SECONDS)
    finally:
        store.close()
