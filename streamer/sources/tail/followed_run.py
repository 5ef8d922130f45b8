"""Follows the folder of a run: finds the folders of its records as they appear, and sends each call while EVA writes it.

The files are looked at again and again, because a notice of the system about changes does not reach every kind of file system.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from consumers.runtime.process import OperatorError
from streamer.help_facts import ID_MARK
from streamer.recordings.files.json_files import RecordingError, read_document
from streamer.recordings.files.places import (
    MAX_DIRECTORY_DEPTH,
    RESULT_FILE,
    conversation_id_of,
    is_discarded,
    is_record_folder,
    without_trial,
)
from streamer.sources.publisher import Publishes
from streamer.sources.tail.followed_record import CallFacts, FollowedRecord, is_same_attempt
from streamer.sources.tail.positions import CallPosition, PositionFile, RunPosition

LOOK_SECONDS: Final = 0.25
"""Between two looks at the files: as long as events may take through the evaluator."""
FOLDERS_SECONDS: Final = 1.0
"""Between two looks for new folders, which cost more than files."""
MAX_OPEN_CALLS: Final = 500
"""Calls that are followed at a time, with seven files each; further ones wait. EVA itself runs some ten at a time."""
MAX_FOLDERS: Final = 20_000
"""Folders of records in one run; later ones are not followed. The largest data sets with all trials have some 1,000."""
SUMMARY_FILE: Final = "evaluation_summary.json"
"""EVA writes it when the run is over."""


class RunFolderError(OperatorError):
    """The folder of the run cannot be followed."""


@dataclass(frozen=True, slots=True)
class TailProgress:
    """How far the run was sent: calls that are open and that have ended, and events since the start of the command."""

    open_calls: int = 0
    ended_calls: int = 0
    events: int = 0


class FollowedRun:
    """The calls of one run."""

    def __init__(
        self, folder: Path, file: PositionFile, position: RunPosition, facts: CallFacts, say: Callable[[str], None]
    ) -> None:
        """Reads nothing.

        Args:
            folder: Folder of the run.
            file: Keeps the position.
            position: Where to go on.
            facts: Facts of every call; `ID_MARK` in the goals is the record's id.
            say: Gets sentences for a person.
        """
        self.progress = TailProgress()
        self._folder = folder
        self._file = file
        self._position = position
        self._facts = facts
        self._say = say
        self._records: dict[str, FollowedRecord] = {}
        self._waiting = 0
        self._looked_at = 0.0
        self._said: set[str] = set()

    async def send(self, publisher: Publishes, *, is_endless: bool) -> None:
        """Sends events until the run is over and everything of it was sent.

        Args:
            publisher: Takes the events.
            is_endless: Whether the end of the run is no end: somebody may start it again.

        Raises:
            PublishError: Events could not be sent; a restart sends them again.
            PositionError: The position cannot be kept.
            RunFolderError: The folder is not there any more.
        """
        while True:
            is_over = (self._folder / SUMMARY_FILE).is_file()
            has_news = await asyncio.to_thread(self._find_folders)
            sent = await self._send_news(publisher, run_is_over=is_over)
            if sent or has_news:
                await publisher.flush()
                await asyncio.to_thread(self._file.write, self._position)
            if is_over and not is_endless and not sent and not self._records and not self._waiting:
                return
            if not sent:
                await asyncio.sleep(LOOK_SECONDS)

    async def _send_news(self, publisher: Publishes, *, run_is_over: bool) -> int:
        """Sends the new events of every open call; gives their number."""
        sent = 0
        for key, record in list(self._records.items()):
            call = record.position
            is_there = await asyncio.to_thread(self._is_there, key, call)
            try:
                news = record.events(run_is_over=run_is_over) if is_there else record.discard()
            except FileNotFoundError:
                continue  # put aside at this moment: the next look says so
            except OSError as error:
                self._say_once(
                    f"{error.filename or self._folder / key}: it cannot be read ({error.strerror}). It is tried again."
                )
                continue
            for event in news:
                await publisher.publish(call.conversation_id, event)
            sent += len(news)
            for sentence in record.sentences:
                self._say(sentence)
            record.sentences.clear()
            if call.state != "open":
                del self._records[key]
                sent += 1  # its end is news, also where it had no events
        ended = sum(call.state != "open" for call in self._position.calls.values())
        self.progress = TailProgress(len(self._records), ended, self.progress.events + sent)
        return sent

    def _is_there(self, key: str, call: CallPosition) -> bool:
        try:
            return is_same_attempt(self._folder / key, call)
        except FileNotFoundError:
            return False

    def _find_folders(self) -> bool:
        """Takes up the folders of records that have appeared, and those that an earlier process had not finished."""
        now = time.monotonic()
        if now - self._looked_at < FOLDERS_SECONDS and self._looked_at:
            return False
        self._looked_at = now
        if not self._folder.is_dir():
            raise RunFolderError(
                f"{self._folder}: the folder of the run is not there any more. What was written before was sent."
            )
        calls, has_news = self._position.calls, False
        self._waiting = 0
        there = set()
        for folder in _record_folders(self._folder, MAX_DIRECTORY_DEPTH):
            key = folder.relative_to(self._folder).as_posix()
            there.add(key)
            if key in self._records:
                continue
            known = calls.get(key)
            if known is None and len(calls) >= MAX_FOLDERS:
                self._say_once(f"{self._folder}: there are more than {MAX_FOLDERS} records. Further ones are not sent.")
                continue
            if known is not None and known.state != "open" and known.inode == _inode(folder):
                continue
            if len(self._records) >= MAX_OPEN_CALLS:
                self._waiting += 1
                self._say_once(
                    f"{self._folder}: {MAX_OPEN_CALLS} calls are open. Further ones wait until some have ended."
                )
                continue
            if (taken := self._taken_up(folder, known)) is not None:
                calls[key] = taken
                self._records[key] = self._followed(folder, taken)
                has_news = True
        # A call that an earlier process left open, and that was put aside since.
        for key, call in calls.items():
            if call.state == "open" and key not in there and key not in self._records:
                self._records[key] = self._followed(self._folder / key, call)
        return has_news

    def _taken_up(self, folder: Path, known: CallPosition | None) -> CallPosition | None:
        try:
            inode = folder.stat().st_ino
            if known is None:
                return self._new(folder, inode)
            if is_same_attempt(folder, known):
                known.inode = inode
                return known if known.state == "open" else None
        except FileNotFoundError:
            return None
        if known.state == "open":
            return known  # its end is sent first
        return self._new(folder, inode, known.attempt + 1)

    def _new(self, folder: Path, inode: int, attempt: int = 1) -> CallPosition:
        """The position at the beginning of a call."""
        parts = [_id_of(folder), *([f"attempt_{attempt}"] if attempt > 1 else [])]
        name = self._facts.run_name
        conversation_id = "/".join(parts) if name is None else f"{'/'.join(parts)}-{name}"
        return CallPosition(conversation_id=conversation_id, attempt=attempt, inode=inode)

    def _followed(self, folder: Path, call: CallPosition) -> FollowedRecord:
        goals = self._facts.goals
        if goals is not None:
            goals = goals.replace(ID_MARK, without_trial(_id_of(folder)))
        return FollowedRecord(folder, call, replace(self._facts, goals=goals))

    def _say_once(self, sentence: str) -> None:
        if sentence not in self._said:
            self._said.add(sentence)
            self._say(sentence)


def _record_folders(directory: Path, levels_below: int) -> Iterator[Path]:
    """Folders of records in name order, without those of discarded attempts."""
    try:
        if is_record_folder(directory):
            yield directory
        elif levels_below:
            for child in sorted(child for child in directory.iterdir() if child.is_dir()):
                if not is_discarded(child):
                    yield from _record_folders(child, levels_below - 1)
    except (FileNotFoundError, NotADirectoryError):
        return  # renamed at this moment


def _inode(folder: Path) -> int:
    try:
        return folder.stat().st_ino
    except FileNotFoundError:
        return -1


def _id_of(folder: Path) -> str:
    """The id that `score` gives the call: by the result if it is there already, otherwise by the folder, as EVA names it."""
    try:
        record_id = read_document(folder / RESULT_FILE).get("record_id") if (folder / RESULT_FILE).is_file() else None
    except RecordingError:
        record_id = None
    return conversation_id_of(folder, record_id if isinstance(record_id, str) and record_id else None)
