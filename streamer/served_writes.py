"""Writes into a folder that `serve` keeps: through the process that serves it, or without one under
its lock.
"""

import asyncio
import sqlite3
import time
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from prometheus_client import CollectorRegistry

from consumers.history.on_file import FileHistory
from consumers.history.settings import MAX_RETENTION_DAYS
from consumers.history.sqlite import SqliteHistory
from consumers.log.commits import NotWrittenError
from consumers.log.file import Decided, FileLog, LogInUseError, reading
from consumers.runtime.process import OperatorError
from consumers.runtime.registry import Instruments
from schemas.annotations import AnyAnnotation
from schemas.topics import ANNOTATIONS_TOPIC, TRANSCRIPTS_TOPIC
from streamer.facts import ANNOTATIONS_PATH
from streamer.history.people import LOOK_SECONDS, WAIT_SECONDS, Forgetting
from streamer.history.said import record_in_log
from streamer.served_folder import served
from streamer.settings.all_settings import Settings
from streamer.sources.posting import post_command


async def say_in(
    settings: Settings, folder: Path, said: Sequence[tuple[str, AnyAnnotation | None]]
) -> None:
    """Writes what people say of calls, each with its key; None is a call that is to be forgotten.

    Returns when it is on the disk, and without a process that serves the folder, when the history
    there has it.

    Raises:
        LogFileError, HistoryFolderError, ServeAwayError, PublishError: It cannot be written.
    """
    settings = served(settings, folder)
    log = FileLog(folder)
    try:
        log.open()
    except LogInUseError:
        await post_command(folder, ANNOTATIONS_PATH, said)
        return
    try:
        await log.publish(Decided([record_in_log(key, value) for key, value in said]))
        history = settings.history
        store = partial(
            SqliteHistory,
            history.folder or folder,
            writes=True,
            keeps_words=history.words,
            retention_days=MAX_RETENTION_DAYS,
        )
        instruments = Instruments(CollectorRegistry(), ["history"])
        with instruments.registering("history"):
            await FileHistory(log, store, instruments, _taken).keep_all()
    except (NotWrittenError, OSError, sqlite3.OperationalError) as error:
        raise OperatorError(
            f"{folder}: the disk takes nothing ({error}). What is written already is taken up by "
            "the next `callgauge serve`, or by this command when you run it again. Make room, and "
            "see to the rights of the folder."
        ) from error
    finally:
        await log.close()


def _taken(topic: str) -> int:
    """How far others have read a topic: transcripts may become files yet."""
    return 0 if topic == TRANSCRIPTS_TOPIC else 2**62


class Forgotten(NamedTuple):
    """How far a deletion reached.

    Attributes:
        calls: Calls that were there.
        open: Ids of those that have not closed: their events are in the log until they do.
    """

    calls: int
    open: Sequence[str]


def forget_in_folder(settings: Settings, folder: Path, what: Forgetting) -> Forgotten:
    """Deletes calls from the history and the log of a folder.

    Raises:
        OperatorError: They cannot be deleted, or are not in time.
    """
    history = served(settings, folder).history.folder or folder
    ids = sorted(_there(folder, history, what))
    asyncio.run(say_in(settings, folder, what.records()))
    until, keys = time.monotonic() + WAIT_SECONDS, {key.encode() for key, _ in what.records()}
    while _waits(folder, keys):
        if time.monotonic() > until:
            raise OperatorError(
                f"The process that serves {folder} has not deleted them after {WAIT_SECONDS:.0f} "
                "s. It was told, so it will when its disk takes something: see its log."
            )
        time.sleep(LOOK_SECONDS)
    with reading(folder) as log:
        return Forgotten(len(ids), [each for each in ids if log.has_closed(each) is False])


def _waits(folder: Path, keys: Collection[bytes]) -> bool:
    with reading(folder) as log:
        return any(record.key in keys for record in log.records(ANNOTATIONS_TOPIC))


def _there(folder: Path, history: Path, what: Forgetting) -> set[str]:
    """The calls of these that history or the log has."""
    with reading(folder) as log:
        found = {each for each in what.conversations if log.has_closed(each) is not None}
    if history.is_dir():
        store = SqliteHistory(history)
        try:
            found.update(what.calls_in(store))
        finally:
            store.close()
    return found
