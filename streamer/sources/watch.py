"""Sends recorded calls while they are written: those of a run of EVA, of a folder of files, of a
file that grows.
"""

import asyncio
import hashlib
import os
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, Final, NamedTuple, Self

from pydantic import BaseModel, Field, ValidationError

from consumers.runtime.private_files import ensure_file
from consumers.runtime.process import OperatorError, first_of, wall_clock_ms
from consumers.view.words import duration
from streamer.recordings.elements import Element, WholeCall, element_at
from streamer.recordings.eva import with_state
from streamer.recordings.eva_needs import miss_sentences
from streamer.recordings.files import MAX_LINE_BYTES, RESULT_FILE, At, RecordedCall, RecordingError
from streamer.recordings.places import FiledEvents, Place, RecordedFiles, RecordedPath, RecordFolder
from streamer.recordings.reader import read_call
from streamer.settings.all_settings import Settings
from streamer.signals import stop_on_signals
from streamer.sources.publisher import Publishes, publisher_to
from streamer.sources.replay import (
    PlayedCall,
    WireEvent,
    event_time_ms,
    in_time_order,
    renamed,
    with_control_events,
)
from streamer.sources.replayed_calls import goals_named
from streamer.terminal import error_console, say
from streamer.time_bounds import shown_moment

LOOK_SECONDS: Final = 1.0
"""Between two looks at the files. They are looked at again and again, because a notice of the
system about changes does not reach every kind of file system.
"""
SETTLE_SECONDS: Final = 2.0
"""For how long nothing may change in a record with a result, or in a file without lines, before it
counts as whole.
"""
MISSING_SECONDS: Final = 30.0
"""For how long a record that cannot be read may still become whole."""
SILENT_SECONDS: Final = 600.0
"""A record without a result in which nothing changes for so long belongs to a call that crashed."""
MAX_PLACES: Final = 20_000
"""Records and files that are watched. The largest data sets of EVA with all trials have some 1,000
records.
"""
LINES_AT_A_TIME: Final = 500
"""Lines of one file between two looks at the others. It bounds the memory and the events that a
crash repeats.
"""
HEAD_BYTES: Final = 256
"""Bytes by which a file is recognised: they contain the time of its first line."""
SUMMARY_FILE: Final = "evaluation_summary.json"
"""EVA writes it when the run is over."""
_MARKS_OF_A_RUN: Final = ("records", "config.json")
"""One of them stands in the folder of a run before its first record does. Other files there are no
recordings.
"""
_LINE_SUFFIXES: Final = (".jsonl", ".ndjson")
_MOST_IN_A_LINE: Final = 100_000
"""Numbers that belong to one line: a line of spans has many events, and a number is an event's
identity.
"""
_MOST_REMARKS: Final = 3
_TOO_MANY: Final = "..."
_SHOW_SECONDS: Final = 0.5

Say = Callable[[object], None]


# How far a path was sent, in a file that a restart continues from.
#
# It is written after the events before it were acknowledged. So a crash repeats at most the events
# since then, with the same ids, and the evaluator drops them.


class Sent(BaseModel):
    """How far one record or one file was sent.

    Attributes:
        seen: Digest of the sizes and times of its files when all of it was sent; empty before.
        attempts_ms: When each attempt began of which the record was sent. By it an attempt is
            recognised.
        lines: Lines that were sent of a file, those of earlier files of that name too.
        offset: Bytes read of the present file.
        head: Digest of the first bytes of the present file.
        head_bytes: Number of those bytes.
    """

    seen: str = ""
    attempts_ms: list[int] = Field(default_factory=list)
    lines: int = 0
    offset: int = 0
    head: str = ""
    head_bytes: int = 0


class PositionError(OperatorError):
    """The position cannot be read or written, is in use, or is of another target; the text says
    what to do.
    """


class Position:
    """A database that one process at a time may use; also one that is killed gives it back.

    Attributes:
        is_new: Whether nothing was sent before.
    """

    def __init__(self, path: Path, target: str) -> None:
        """Opens it, or makes one.

        Args:
            path: The file.
            target: Where is sent to.

        Raises:
            PositionError: It cannot be used.
        """
        self._path = path
        try:
            ensure_file(path)
            self._file = sqlite3.connect(
                path, timeout=0, isolation_level=None, check_same_thread=False
            )
            self._file.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._file.execute("BEGIN EXCLUSIVE")
            self._file.execute(
                "CREATE TABLE IF NOT EXISTS sent (place TEXT PRIMARY KEY, sent TEXT NOT NULL)"
            )
            self._file.execute("COMMIT")
            self._texts = {"": target, **dict(self._file.execute("SELECT place, sent FROM sent"))}
        except (OSError, sqlite3.Error) as error:
            raise self._unusable(error) from error
        self.is_new = len(self._texts) == 1
        if self._texts[""] != target:
            self._file.close()
            raise PositionError(
                f"{path}: the calls were sent to {self._texts['']}, and now they would go to "
                f"{target}. Nothing was sent. Give --position FILE, which is then the position for "
                "this target."
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Gives it back."""
        self._file.close()

    def of(self, place: str) -> Sent:
        """How far this place was sent.

        Raises:
            PositionError: The file has something else there.
        """
        try:
            return Sent.model_validate_json(self._texts.get(place, "{}"))
        except ValidationError as error:
            raise self._unusable(error) from error

    def keep(self, place: str, sent: Sent) -> None:
        """Writes it to the disk, if it is another than before.

        Raises:
            PositionError: It cannot be written.
        """
        text = sent.model_dump_json(exclude_defaults=True)
        if self._texts.get(place) == text:
            return
        try:
            # The target is kept with the first place: before, nothing was sent there.
            self._file.execute(
                "INSERT OR REPLACE INTO sent VALUES ('', ?), (?, ?)", (self._texts[""], place, text)
            )
        except sqlite3.Error as error:
            raise self._unusable(error) from error
        self._texts[place] = text

    def _unusable(self, error: Exception) -> PositionError:
        if "locked" in str(error):
            return PositionError(
                f"{self._path}: another `callgauge replay --watch` sends these calls already. "
                "Nothing was sent. End it first; to send them to another target at the same time, "
                "give --position FILE."
            )
        return PositionError(
            f"{self._path}: the position cannot be kept here ({error}), so a restart would send "
            "events again. Sending stops. Give --position FILE in a folder that this user may "
            "write to. If the file is damaged, delete it to send everything again; calls that "
            "closed stay as they are."
        )


# One record of EVA, which is sent when it is whole; and one file, whose lines are sent as they
# come.


@dataclass(frozen=True, slots=True)
class WatchedFacts:
    """Facts of every call that its files do not have; None where none was named.

    Attributes:
        agent: Name of the agent.
        goals: Name of the goal set; `ID_MARK` in it is the recorded id.
        run_name: Last part of the conversation ids.
    """

    agent: str | None = None
    goals: str | None = None
    run_name: str | None = None

    def played(self, call: RecordedCall, *, attempt: int = 1, is_whole: bool = True) -> PlayedCall:
        """The call with its ids and times as they are, and with these facts.

        Raises:
            RecordingError: A file beside its events has another shape.
        """
        goals = goals_named(self.goals, call.conversation_id)
        parts = [call.conversation_id, *([f"attempt_{attempt}"] if attempt > 1 else [])]
        name = "/".join(parts) if self.run_name is None else f"{'/'.join(parts)}-{self.run_name}"
        call = call if name == call.conversation_id else renamed(call, name)
        call = with_state(
            with_control_events(call, agent=self.agent, goals=goals, is_whole=is_whole)
        )
        return PlayedCall(name, tuple(in_time_order(call)))


class _Stillness:
    """For how long nothing has changed."""

    def __init__(self) -> None:
        self._state: str | None = None
        self._since = 0.0

    def seconds(self, state: str) -> float:
        if state != self._state:
            self._state, self._since = state, time.monotonic()
        return time.monotonic() - self._since


class WatchedRecord:
    """The folder of one record.

    Attributes:
        sent: How far it was sent, once the events of `news` are acknowledged.
        is_done: Whether everything in it was sent.
    """

    def __init__(self, folder: Path, sent: Sent, facts: WatchedFacts, say: Say) -> None:
        """Reads nothing."""
        self.sent = sent
        self.is_done = False
        self._folder = folder
        self._facts = facts
        self._say = say
        self._still = _Stillness()

    def news(self, *, is_over: bool) -> list[PlayedCall]:
        """The call, when it is whole and was not sent.

        Args:
            is_over: Whether the run is: then a call without a result has ended too.

        Raises:
            OSError: The folder is not there, or cannot be read.
        """
        with os.scandir(self._folder) as entries:
            state = _state_of(
                entry for entry in entries if entry.is_file() and not entry.name.startswith(".")
            )
        still_seconds = self._still.seconds(state)
        self.is_done = state == self.sent.seen
        has_ended = (
            is_over or (self._folder / RESULT_FILE).is_file() or still_seconds >= SILENT_SECONDS
        )
        if self.is_done or not has_ended or still_seconds < SETTLE_SECONDS:
            return []
        try:
            call = read_call(RecordFolder(self._folder))
            began_ms = _began_ms(call)
            is_known = began_ms in self.sent.attempts_ms
            found = (
                []
                if is_known
                else [self._facts.played(call, attempt=len(self.sent.attempts_ms) + 1)]
            )
        except RecordingError as error:
            if still_seconds < MISSING_SECONDS:
                return []
            error.consequence = (
                "The call is left out until something in its folder changes; the others go on."
            )
            self._say(error)
            found = []
        else:
            if found:
                self.sent.attempts_ms.append(began_ms)
                for sentence in miss_sentences(call):
                    self._say(sentence)
        self.sent.seen, self.is_done = state, True
        return found


def _began_ms(call: RecordedCall) -> int:
    """The first time in its audit log; files that come late do not change it."""
    return next(
        (time_ms for time_ms in map(event_time_ms, call.audit or ()) if time_ms is not None), 0
    )


def _state_of(entries: Iterable[os.DirEntry[str] | Path]) -> str:
    stats = sorted(
        (entry.name, (found := entry.stat()).st_size, found.st_mtime_ns) for entry in entries
    )
    return _digest(repr(stats).encode())


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()


class WatchedFile:
    """One file: of lines the new ones are sent, another one is sent when it is whole. Attributes as
    those of a record.
    """

    def __init__(self, path: Path, sent: Sent, facts: WatchedFacts, say: Say) -> None:
        """Reads nothing."""
        self.sent = sent
        self.is_done = False
        self._path = path
        self._facts = facts
        self._say = say
        self._has_lines = path.suffix in _LINE_SUFFIXES
        self._still = _Stillness()

    def news(self, *, is_over: bool) -> list[PlayedCall]:  # a file has no end
        """The new calls, and the new events of calls.

        Raises:
            OSError: The file is not there, or cannot be read.
        """
        state = _state_of([self._path])
        is_still = self._still.seconds(state) >= SETTLE_SECONDS
        self.is_done = state == self.sent.seen
        if self.is_done or not (self._has_lines or is_still):
            return []
        files = RecordedFiles(refuse=self._refuse)
        if not self._has_lines:
            self.sent.seen = state
            return self._played(files.in_file(self._path), files)
        elements = self._elements(is_still=is_still)
        if not elements and is_still:
            self.sent.seen = state  # what is there beside is the half of a line
        return self._played(files.among(elements, self._path), files) if elements else []

    def _elements(self, *, is_still: bool) -> list[Element]:
        sent = self.sent
        found: list[Element] = []
        with self._path.open("rb") as file:
            if sent.head_bytes and _digest(head := _start(file, sent.head_bytes)) != sent.head:
                if len(head) < sent.head_bytes and not is_still:
                    return []  # it is written again, and short for a moment
                self._say(
                    f"{self._path}: another file has taken its place. It is read from its "
                    "beginning."
                )
                sent.offset, sent.head, sent.head_bytes = 0, "", 0
            file.seek(sent.offset)
            for _ in range(LINES_AT_A_TIME):
                text = file.readline(MAX_LINE_BYTES + 1)
                element = element_at(At(self._path, sent.lines + 1), text)
                is_whole = text.endswith(b"\n") or (
                    is_still and not isinstance(element.value, RecordingError)
                )
                if not is_whole:
                    if is_still and not found and len(text) > MAX_LINE_BYTES:
                        self._say(
                            f"{element.at}: a line of more than {MAX_LINE_BYTES:,} bytes. The file "
                            "is read no further."
                        )
                    break
                sent.offset, sent.lines = file.tell(), sent.lines + 1
                found += [element] if text.strip() else []
            if sent.head_bytes < HEAD_BYTES:
                head = _start(file, min(HEAD_BYTES, sent.offset))
                sent.head, sent.head_bytes = _digest(head), len(head)
        return found

    def _played(self, places: Iterator[Place], files: RecordedFiles) -> list[PlayedCall]:
        found = []
        try:
            for place in chain(places, files.of_spans()):
                try:
                    found.append(self._played_at(place))
                except RecordingError as error:
                    self._refuse(error)
        except RecordingError as error:
            self._refuse(error)
        return found

    def _played_at(self, place: Place) -> PlayedCall:
        call = read_call(place)
        is_whole = isinstance(place, WholeCall) or not self._has_lines
        for sentence in miss_sentences(call) if is_whole else ():
            self._say(sentence)
        played = self._facts.played(call, is_whole=is_whole)
        return (
            replace(played, events=tuple(_numbered(played.events)))
            if isinstance(place, FiledEvents)
            else played
        )

    def _refuse(self, error: RecordingError) -> None:
        error.consequence = "It is left out; the rest goes on."
        self._say(error)


def _start(file: IO[bytes], size: int) -> bytes:
    file.seek(0)
    return file.read(size)


def _numbered(events: Iterable[WireEvent]) -> Iterator[WireEvent]:
    """The events with numbers of their lines: these are the same whatever part of the file is read
    at a time.
    """
    counts: Counter[tuple[str, int]] = Counter()
    for event in events:
        line = 0 if event.at is None else event.at.number + 1
        counts[event.source, line] += 1
        yield replace(event, sequence=line * _MOST_IN_A_LINE + counts[event.source, line])


# All records and files of a path.


class WatchError(OperatorError):
    """The path cannot be watched."""


class WatchProgress(NamedTuple):
    """How far a path was sent.

    Attributes:
        events: Events since the start of the command.
        waiting: Records that are not whole yet.
        past_calls: Calls of the past, of which nothing was sent.
    """

    events: int = 0
    waiting: int = 0
    past_calls: int = 0

    def __str__(self) -> str:
        """In words."""
        past = (
            f", {self.past_calls} calls of the past left out: use `callgauge replay`"
            if self.past_calls
            else ""
        )
        return f"{self.events} events sent, {self.waiting} records are being written{past}"


class Watch:
    """Sends the calls of one path.

    Attributes:
        progress: How far it is.
    """

    def __init__(
        self, path: Path, position: Position, facts: WatchedFacts, say: Say, skew_ms: int = 0
    ) -> None:
        """Reads nothing. Calls with events older than `skew_ms`, if it is not 0, are left out: the
        evaluator would refuse these events.
        """
        self.progress = WatchProgress()
        self._path = path
        self._position = position
        self._facts = facts
        self._say = say
        self._skew_ms = skew_ms
        self._watched: dict[str, WatchedRecord | WatchedFile] = {}
        self._remarks: Counter[str] = Counter()
        self._is_over = False

    async def send(self, publisher: Publishes) -> None:
        """Sends calls until the run is over and everything of it was sent. Anything else than a run
        of EVA is never over.

        Raises:
            PublishError: Events could not be sent; a restart sends them again.
            PositionError: The position cannot be kept.
            WatchError: The path is not there any more.
        """
        while True:
            sent = await self.look(publisher)
            if self._is_over and not self.progress.waiting:
                return
            if not sent:
                await asyncio.sleep(LOOK_SECONDS)

    async def look(self, publisher: Publishes) -> int:
        """Sends what is new since the last look, and gives the number of its events. Raises as
        `send`.
        """
        # before the last record is looked for
        self._is_over = (self._path / SUMMARY_FILE).is_file()
        await asyncio.to_thread(self._find)
        sent = sum(
            [await self._send_news(publisher, *place) for place in list(self._watched.items())]
        )
        waiting = sum(
            isinstance(each, WatchedRecord) and not each.is_done for each in self._watched.values()
        )
        self.progress = self.progress._replace(waiting=waiting)
        return sent

    async def _send_news(
        self, publisher: Publishes, place: str, watched: WatchedRecord | WatchedFile
    ) -> int:
        """Sends what is new at one place; gives the number of events."""
        try:
            found = await asyncio.to_thread(watched.news, is_over=self._is_over)
        except FileNotFoundError:
            del self._watched[place]  # put aside at this moment
            return 0
        except OSError as error:
            named = error.filename or self._path / place
            self._remark(
                place, f"{named}: it cannot be read ({error.strerror}). It is tried again."
            )
            return 0
        calls = [call for call in found if not self._is_past(place, call)]
        if found and not calls:
            return 0  # and of a record the position does not know it: another limit can let it in
        for call in calls:
            for event in call.events:
                await publisher.publish(call.conversation_id, event)
        if calls:
            await publisher.flush()
        await asyncio.to_thread(self._position.keep, place, watched.sent)
        events = sum(len(call.events) for call in calls)
        self.progress = self.progress._replace(events=self.progress.events + events)
        return events

    def _is_past(self, place: str, call: PlayedCall) -> bool:
        """Whether the evaluator would refuse these events for their age; then it says so."""
        # 0: no event of them has a time
        newest_ms = max((event.time_ms for event in call.events), default=0)
        if not self._skew_ms or newest_ms <= 0 or wall_clock_ms() - newest_ms <= self._skew_ms:
            return False
        self.progress = self.progress._replace(past_calls=self.progress.past_calls + 1)
        path = self._path / place
        self._remark(
            "",
            f"{path}: the events of {call.conversation_id} are of {shown_moment(newest_ms)} UTC, "
            f"and the evaluator takes none that is more than {duration(self._skew_ms)} old "
            "(limits.max_event_time_skew_ms). Nothing of this call is sent. `callgauge replay "
            f"{path}` plays it now.",
        )
        return True

    def _find(self) -> None:
        """Takes up the records and files that have appeared."""
        if not self._path.exists():
            raise WatchError(
                f"{self._path}: it is not there any more. What was written before was sent."
            )
        try:
            found = RecordedPath(self._path, may_be_empty=True)
        except RecordingError as error:
            self._remark("", str(error))  # renamed at this moment, or not for this user
            return
        is_run = any((self._path / name).exists() for name in _MARKS_OF_A_RUN)
        for path in [folder.path for folder in found.known] or (() if is_run else found.files):
            place = path.relative_to(self._path).as_posix()
            if place in self._watched:
                continue
            if len(self._watched) >= MAX_PLACES:
                self._say_too_many()
                return
            kind = WatchedRecord if found.known else WatchedFile
            self._watched[place] = kind(
                path, self._position.of(place), self._facts, partial(self._remark, place)
            )

    def _say_too_many(self) -> None:
        if not self._remarks[_TOO_MANY]:
            self._remark(
                _TOO_MANY,
                f"{self._path}: there are more than {MAX_PLACES:,} records or files. Further ones "
                "are not sent.",
            )

    def _remark(self, place: str, said: object) -> None:
        """Says something of a place; the same is not said without end."""
        self._remarks[place] += 1
        if self._remarks[place] <= _MOST_REMARKS:
            self._say(said)
        elif self._remarks[place] == _MOST_REMARKS + 1:
            self._say(f"{self._path / place}: more of that; nothing further is said of it.")


_ONCE: Final = (
    "The conversation ids are those of the recordings, and a call closes once: if calls with these "
    "ids were sent before, no event of these counts. Then stop it, delete the position, and start "
    "it with --run-name NAME."
)


async def watch(
    settings: Settings, path: Path, position_file: Path, facts: WatchedFacts, folder: Path | None
) -> tuple[bool, WatchProgress]:
    """Sends until the run is over or a signal comes; gives whether it is over, and how far it was
    sent.

    Args:
        settings: Where Kafka is, and the age of events that is allowed.
        path: What is watched.
        position_file: Where the position is kept.
        facts: Of every call.
        folder: The folder of a running `serve`, which takes the calls; None for Kafka.

    Raises:
        OperatorError: The path, the position or the target cannot be used; the text says what to
            do.
    """
    target = _target(settings, folder)
    with Position(position_file, target) as position, stop_on_signals() as stop:
        sending = Watch(path, position, facts, say, settings.limits.max_event_time_skew_ms)

        async def work() -> None:
            async with await publisher_to(settings, "callgauge.replay", folder) as publisher:
                say(
                    f"Watching {path} for {target}; the position is in {position_file}. Ctrl-C "
                    "ends it."
                )
                if position.is_new and facts.run_name is None:
                    say(_ONCE)
                await sending.send(publisher)

        await first_of(stop.wait(), work(), _show(sending))
        return not stop.is_set(), sending.progress


def _target(settings: Settings, folder: Path | None) -> str:
    if folder is not None:
        return str(folder.resolve())
    return f"{settings.bootstrap} with the topic prefix {settings.topic_prefix!r}"


async def _show(sending: Watch) -> None:
    """One line on the terminal with the progress, until cancelled."""
    with error_console().status("") as line:
        while True:
            line.update(str(sending.progress))
            await asyncio.sleep(_SHOW_SECONDS)
