"""Sends a run of EVA to the topics while EVA writes it."""

import asyncio
import fcntl
import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Final, Literal

from pydantic import BaseModel, Field, ValidationError

from consumers.console.page.drawing import duration
from consumers.runtime.kafka.connection import require_access
from consumers.runtime.process import OperatorError, first_of, wall_clock_ms
from schemas.events.simulator import Source
from streamer.cluster.facts import TRAFFIC_NEEDS
from streamer.facts import ID_MARK
from streamer.recordings.eva import language_of_run, with_state
from streamer.recordings.files import (
    AUDIT_FILE,
    LATENCIES_FILE,
    MAX_DIRECTORY_DEPTH,
    METRICS_FILE,
    PIPECAT_FILES,
    RESULT_FILE,
    SIMULATOR_FILES,
    RecordedCall,
    RecordingError,
    UnplacedMetricsError,
    conversation_id_of,
    dated,
    is_discarded,
    is_record_folder,
    object_in,
    read_document,
    with_llm_latencies,
    without_trial,
)
from streamer.recordings.reader import pipeline_type_of_run
from streamer.settings.all_settings import Settings
from streamer.signals import stop_on_signals
from streamer.sources.publisher import EventPublisher, Publishes
from streamer.sources.replay import WireEvent, compact_json, event_name, event_time_ms
from streamer.terminal import error_console, say
from streamer.time_bounds import shown_moment

# The position of `callgauge tail` in a run: how far each file was sent, in a file that a restart continues from.
#
# It is written after Kafka has acknowledged the events before it. So a crash repeats at most the events since then,
# with the same ids, and the evaluator drops them.


class FilePosition(BaseModel):
    """How far one file was sent.

    Attributes:
        lines: Lines or entries sent so far, also those of earlier files of that name.
        offset: Bytes read of the present file.
        head: Digest of the first bytes of the present file, by which it is recognised.
        head_bytes: Number of those bytes.
        sent: Digests of the entries that were sent of a document that is written as a whole.
    """

    lines: int = 0
    offset: int = 0
    head: str = ""
    head_bytes: int = 0
    sent: list[str] = Field(default_factory=list)


class CallPosition(BaseModel):
    """How far one call was sent.

    Attributes:
        conversation_id: Id of the call on the topics.
        attempt: 1, and one more whenever EVA begins anew in a folder of that name.
        inode: Number of the folder in its file system.
        files: Positions by file name. When the call has ended, its attempt is recognised by them.
        held: Lines that end the call, with their numbers: they are sent after all others.
        started_ms: Time in the `call_started` that was sent; None before.
        start_ms: First time in the pipecat log, from which some metrics count.
        first_ms: Earliest time of an event.
        last_ms: Latest time of an event.
        state: `open`, `ended`, or `gone` when the folder is not there any more.
    """

    conversation_id: str
    attempt: int = 1
    inode: int = 0
    files: dict[str, FilePosition] = Field(default_factory=dict)
    held: list[tuple[int, str]] = Field(default_factory=list)
    started_ms: int | None = None
    start_ms: int | None = None
    first_ms: int | None = None
    last_ms: int | None = None
    state: Literal["open", "ended", "gone"] = "open"

    def note_time(self, time_ms: int) -> None:
        """Remembers the earliest and the latest time."""
        self.first_ms = time_ms if self.first_ms is None else min(self.first_ms, time_ms)
        self.last_ms = time_ms if self.last_ms is None else max(self.last_ms, time_ms)


class RunPosition(BaseModel):
    """How far a run was sent, by the paths of its records' folders."""

    version: Literal[1] = 1
    bootstrap: str
    topic_prefix: str
    calls: dict[str, CallPosition] = Field(default_factory=dict)


class PositionError(OperatorError):
    """The position cannot be read or written, is in use, or is of other topics; the text says what to do."""


class PositionFile:
    """The file of a position, which one process at a time may use."""

    def __init__(self, path: Path) -> None:
        """Nothing is touched before `locked`."""
        self._path = path
        self._lock: IO[bytes] | None = None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other processes from the position meanwhile; also a process that is killed gives it back.

        Raises:
            PositionError: Another process uses it, or the folder cannot be written to.
        """
        self._take()
        try:
            yield
        finally:
            if self._lock is not None:
                self._lock.close()

    def _take(self) -> None:
        beside = self._path.with_name(f"{self._path.name}.lock")
        try:
            self._lock = beside.open("wb")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if self._lock is not None:
                self._lock.close()
            raise PositionError(
                f"{self._path}: another `callgauge tail` sends this run already. Nothing was sent. End it first; to send the "
                "run to other topics at the same time, give --position FILE."
            ) from error
        except OSError as error:
            raise self._unwritable(error) from error

    def read(self, bootstrap: str, topic_prefix: str) -> RunPosition:
        """The position, or one at the beginning if there is no file.

        Args:
            bootstrap: The brokers that are sent to.
            topic_prefix: Prefix of the topics that are sent to.

        Raises:
            PositionError: The file is damaged, or of other topics.
        """
        try:
            position = RunPosition.model_validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return RunPosition(bootstrap=bootstrap, topic_prefix=topic_prefix)
        except (OSError, ValidationError) as error:
            reason = getattr(error, "strerror", None) or "it is not a position that this version writes"
            raise PositionError(
                f"{self._path}: the position of an earlier `callgauge tail` cannot be read: {reason}. Nothing was sent. "
                "Delete the file to send the run from its beginning; calls that closed stay as they are."
            ) from error
        if (position.bootstrap, position.topic_prefix) != (bootstrap, topic_prefix):
            raise PositionError(
                f"{self._path}: the run was sent to {position.bootstrap} with the topic prefix {position.topic_prefix!r}, and "
                f"now it would go to {bootstrap} with {topic_prefix!r}. Nothing was sent. Give --position FILE, which is then "
                "the position for these topics."
            )
        return position

    def write(self, position: RunPosition) -> None:
        """Replaces the file, as a whole or not at all.

        Raises:
            PositionError: It cannot be written.
        """
        part = self._path.with_name(f"{self._path.name}.part")
        try:
            with part.open("wb") as file:
                file.write(position.model_dump_json(exclude_defaults=True).encode())
                file.flush()
                os.fsync(file.fileno())
            part.replace(self._path)
        except OSError as error:
            with suppress(OSError):
                part.unlink()
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> PositionError:
        if self._lock is not None and not self._path.parent.is_dir():
            return PositionError(
                f"{self._path}: the folder of the position is not there any more: was the run moved or renamed? Sending stops. Start the "
                "command again with the folder's present name: the position moves with it, and nothing is evaluated twice."
            )
        return PositionError(
            f"{self._path}: the position cannot be kept here ({error.strerror or error}), so a restart would send events again. "
            "Sending stops. Give --position FILE in a folder that this user may write to."
        )


# Reads the lines of a file that another process still writes.
#
# A line counts when its end is there. The file may appear late, be written anew with the same lines, or be replaced by another one.

MAX_LINE_BYTES: Final = 1_000_000
"""Longest line that is sent: the evaluator and Kafka's default refuse a record of a little more."""
LINES_AT_A_TIME: Final = 500
"""Lines of one file between two looks at the others. It bounds the memory and the events that a crash repeats."""
HEAD_BYTES: Final = 256
"""Bytes by which a file is recognised: they contain the time of its first line."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line with its number from 1, over all files of that name. Its text is None if it is too long."""

    number: int
    text: bytes | None


class GrowingFile:
    """One file of a call.

    Attributes:
        path: The path of the file.
        place: How far it was read.
        replaced: How often another file took its place.
    """

    def __init__(self, path: Path, place: FilePosition) -> None:
        """Opens nothing: the file is open only while it is read."""
        self.path = path
        self.place = place
        self.replaced = 0

    def lines(self, *, is_complete: bool) -> list[Line]:
        """The next lines, at most `LINES_AT_A_TIME`.

        Args:
            is_complete: Whether nobody writes any more: then a last line without an end is a line too.

        Raises:
            OSError: The file is there and cannot be read.
        """
        try:
            with self.path.open("rb") as file:
                if not self._is_known(file):
                    if not (is_complete or self._is_another(file)):
                        return []
                    self.replaced += 1
                    self.place.offset, self.place.head, self.place.head_bytes = 0, "", 0
                return list(self._next(file, is_complete=is_complete))
        except FileNotFoundError:
            return []

    def is_here(self) -> bool:
        """Whether the path has a file that begins as the one that was read."""
        try:
            with self.path.open("rb") as file:
                return self._is_known(file)
        except FileNotFoundError:
            return False

    def _is_known(self, file: IO[bytes]) -> bool:
        """Whether the file begins as the one that was read so far."""
        return self.place.head_bytes == 0 or _digest(_start(file, self.place.head_bytes)) == self.place.head

    def _is_another(self, file: IO[bytes]) -> bool:
        """Whether it is certainly another file: one that is being written again is short for a moment."""
        return len(_start(file, self.place.head_bytes)) == self.place.head_bytes

    def _next(self, file: IO[bytes], *, is_complete: bool) -> Iterator[Line]:
        place = self.place
        file.seek(place.offset)
        for _ in range(LINES_AT_A_TIME):
            text = file.readline(MAX_LINE_BYTES + 1)
            is_long = len(text) > MAX_LINE_BYTES
            if is_long and not (text := _end_of_line(file, text)):
                return
            if not text or not (text.endswith(b"\n") or is_complete):
                return
            place.offset = file.tell()
            place.lines += 1
            self._note_head(file)
            yield Line(place.lines, None if is_long else text)

    def _note_head(self, file: IO[bytes]) -> None:
        if self.place.head_bytes < HEAD_BYTES:
            head = _start(file, min(HEAD_BYTES, self.place.offset))
            self.place.head, self.place.head_bytes = _digest(head), len(head)
            file.seek(self.place.offset)


def _start(file: IO[bytes], size: int) -> bytes:
    file.seek(0)
    return file.read(size)


def _digest(head: bytes) -> str:
    return hashlib.blake2b(head, digest_size=8).hexdigest()


def _end_of_line(file: IO[bytes], text: bytes) -> bytes:
    """The last part of a line that is too long; nothing while its end is not there."""
    while text and not text.endswith(b"\n"):
        text = file.readline(MAX_LINE_BYTES)
    return text


# Follows the folder of one record of EVA while the call runs: its new events, and the end of the call.
#
# Stock EVA appends to the pipecat log and to the metrics during the call. It writes the events of the simulated
# caller, the audit log and then `result.json` at the end.

SETTLE_SECONDS: Final = 2.0
"""For how long no file may change after `result.json` before the call ends: other files may be copied after it."""
MISSING_SECONDS: Final = 30.0
"""How long the end of a call waits for an audit log that is not there, or is not whole."""
SILENT_SECONDS: Final = 600.0
"""Without `result.json`, a folder in which nothing changes for so long belongs to a call that crashed."""
_OLD_SECONDS: Final = 60.0
"""Files that are older were not just copied: a run that is over needs no settling."""
_MOST_WARNINGS: Final = 3

LATE_FACTS: Final = frozenset({"expected_state", "tools", "role", "instructions", "current_date_time"})
"""Facts about the start of a call that the files of a run show only at its end."""
_CONTROL: Final = "control"
# Two files share a topic: their numbers must never meet, whichever is read first, because a number is an event's identity.
_NUMBERS: Final = 2
_WATCHED: Final = (AUDIT_FILE, RESULT_FILE, METRICS_FILE, LATENCIES_FILE, *PIPECAT_FILES, *SIMULATOR_FILES)


@dataclass(frozen=True, slots=True)
class CallFacts:
    """Facts of every call that its files do not have; None where nobody named one.

    Attributes:
        agent: Name of the agent.
        goals: Name of the goal set.
        run_name: Last part of the conversation ids.
    """

    agent: str | None = None
    goals: str | None = None
    run_name: str | None = None


class FollowedRecord:
    """One call.

    Attributes:
        position: How far it was sent, once Kafka has the events of `events`.
        sentences: Things to say to the person who runs the command; taken by the reader.
    """

    def __init__(self, folder: Path, position: CallPosition, facts: CallFacts) -> None:
        """Reads nothing; `position` changes as events are read."""
        self.position = position
        self.sentences: list[str] = []
        self._folder = folder
        self._facts = facts
        self._files: dict[str, GrowingFile] = {}
        self._seen: dict[str, tuple[int, int]] = {}
        self._audit_seen: tuple[int, int] | None = None
        self._changed_at = time.monotonic()
        self._warnings = 0

    def events(self, *, run_is_over: bool) -> list[WireEvent]:
        """The new events, at the end `call_ended` among them; then the position is `ended`.

        Args:
            run_is_over: Whether EVA has finished the run: then a call without a result has ended too.

        Raises:
            OSError: A file is there and cannot be read.
        """
        result = self._result()
        ends = self._is_settled() and (result is not None or run_is_over or self._is_silent())
        found = [*self._lines(ends=ends), *self._entries()]
        if found and self.position.started_ms is None:
            found.insert(0, self._started())
        # A file with more lines than are read at a time has not ended yet.
        if ends and not found and (AUDIT_FILE in self.position.files or self._is_late()):
            found = self._end(result)
        return found

    def discard(self) -> list[WireEvent]:
        """Ends a call whose folder EVA has put aside, to try again."""
        events = [] if self.position.started_ms is None else [self._control("call_ended", 2, {"reason": "discarded"})]
        self._close("gone")
        return events

    def _result(self) -> Mapping[str, Any] | None:
        path = self._folder / RESULT_FILE
        try:
            return read_document(path) if path.is_file() else None
        except RecordingError:
            return None  # half written; `score` says what is wrong with it if it stays so

    def _is_settled(self) -> bool:
        seen: dict[str, tuple[int, int]] = {}
        newest_seconds = 0.0
        for name in _WATCHED:
            try:
                state = (self._folder / name).stat()
            except FileNotFoundError:
                continue
            seen[name] = (state.st_size, state.st_mtime_ns)
            newest_seconds = max(newest_seconds, state.st_mtime)
        now = time.monotonic()
        if seen != self._seen:
            is_first = not self._seen
            self._seen, self._changed_at = seen, now
            if is_first and seen and time.time() - newest_seconds > _OLD_SECONDS:
                self._changed_at = now - SETTLE_SECONDS
        return bool(seen) and now - self._changed_at >= SETTLE_SECONDS

    def _is_silent(self) -> bool:
        return time.monotonic() - self._changed_at >= SILENT_SECONDS

    def _is_late(self) -> bool:
        return time.monotonic() - self._changed_at >= MISSING_SECONDS

    def _lines(self, *, ends: bool) -> Iterator[WireEvent]:
        log, simulator = self._first_of(PIPECAT_FILES), self._first_of(SIMULATOR_FILES)
        if log is not None:
            yield from self._of_file(log, "pipecat", 0, ends=ends)
        yield from self._of_file(METRICS_FILE, "pipecat", 1, ends=ends)
        if simulator is not None:
            yield from self._of_file(simulator, "elevenlabs", 0, ends=ends)

    def _first_of(self, names: tuple[str, ...]) -> str | None:
        """The file that was read before, otherwise the newer name, as in EVA."""
        known = [name for name in names if name in self.position.files]
        return next(iter(known or (name for name in names if (self._folder / name).is_file())), None)

    def _of_file(self, name: str, source: Source, place: int, *, ends: bool) -> Iterator[WireEvent]:
        path = self._folder / name
        if name == METRICS_FILE and self.position.start_ms is None and not ends:
            return  # its times may count from a start that is not known yet
        if name not in self.position.files:
            if not path.is_file():
                return
            self.position.files[name] = FilePosition()
        file = self._files.setdefault(name, GrowingFile(path, self.position.files[name]))
        replaced = file.replaced
        for line in file.lines(is_complete=ends):
            where = f"{path}:{line.number}"
            if line.text is None:
                self._tell(
                    f"{where}: the line has more than {MAX_LINE_BYTES:,} bytes. It is left out; the call goes on."
                )
                continue
            try:
                event: Mapping[str, Any] = object_in(line.text, where)
                if name == METRICS_FILE:
                    event = dated(event, self.position.start_ms)
            except (RecordingError, UnplacedMetricsError) as error:
                seen = error.seen if isinstance(error, RecordingError) else f"no {error}"
                self._tell(
                    f"{where}: this is no event: {seen}. It is left out; the call goes on. `score` refuses the record."
                )
                continue
            if _ends_session(event):
                # The evaluator closes the call some seconds after it; the audit log can come later.
                self.position.held.append((line.number, compact_json(event).decode()))
                continue
            yield self._event(source, event, line.number * _NUMBERS + place)
            if source == "pipecat" and place == 0 and self.position.start_ms is None:
                time_ms = event_time_ms(event)
                self.position.start_ms = time_ms if time_ms and time_ms > 0 else None
        if file.replaced > replaced:
            self._tell(f"{path}: another file has taken its place. Its lines are sent as further lines of the call.")

    def _entries(self) -> Iterator[WireEvent]:
        """Entries of the audit log that were not sent; nothing while the document is not whole."""
        path = self._folder / AUDIT_FILE
        try:
            state = path.stat()
        except FileNotFoundError:
            return
        if (now := (state.st_size, state.st_mtime_ns)) == self._audit_seen:
            return
        try:
            document = read_document(path)
            entries = document["transcript"]
            with_latencies = with_llm_latencies(tuple(entries), document.get("llm_prompts"))
        except (RecordingError, KeyError, TypeError, AttributeError):
            return  # half written; if it stays so, the call ends without it
        place = self.position.files.setdefault(AUDIT_FILE, FilePosition())
        sent = Counter(place.sent)
        taken = 0
        for raw, entry in zip(entries, with_latencies, strict=True):
            text = compact_json(raw)
            digest = hashlib.blake2b(text, digest_size=8).hexdigest()
            if sent[digest]:
                sent[digest] -= 1
                continue
            if taken == LINES_AT_A_TIME:
                return  # the next look takes the others
            taken += 1
            place.sent.append(digest)
            place.lines += 1
            if len(text) > MAX_LINE_BYTES:
                self._tell(f"{path}: entry {place.lines} has more than {MAX_LINE_BYTES:,} bytes. It is left out.")
                continue
            yield self._event("audit", entry, place.lines * _NUMBERS)
        self._audit_seen = now
        if changed := sum(sent.values()):
            self._tell(f"{path}: {changed} entries that were sent are not there any more; they stay in the call.")

    def _event(self, source: Source, event: Mapping[str, Any], sequence: int) -> WireEvent:
        time_ms = event_time_ms(event)
        if time_ms is not None:
            self.position.note_time(time_ms)
        known_ms = time_ms if time_ms is not None else self.position.last_ms or 0
        return WireEvent(source, compact_json(event), known_ms, event_name(source, event), sequence, known_ms)

    def _started(self) -> WireEvent:
        self.position.started_ms = self.position.first_ms or 0
        return self._control("call_started", 1, self._start_facts())

    def _start_facts(self) -> dict[str, Any]:
        facts = {
            "pipeline_type": pipeline_type_of_run(self._folder) or "cascade",
            "language": language_of_run(self._folder),
            "agent": self._facts.agent,
        }
        return {name: value for name, value in {**facts, "goals": self._facts.goals}.items() if value is not None}

    def _end(self, result: Mapping[str, Any] | None) -> list[WireEvent]:
        """The end of the call, and before it the facts that only the end has made known."""
        if self.position.started_ms is None:
            self._tell(f"{self._folder}: the call has no event. Nothing was sent of it.")
            self._close("ended")
            return []
        events = [self._event("elevenlabs", json.loads(text), number * _NUMBERS) for number, text in self.position.held]
        self.position.held.clear()
        if AUDIT_FILE not in self.position.files:
            self._tell(
                f"{self._folder / AUDIT_FILE}: there is no whole audit log. The call ends without it; `score` refuses the record."
            )
        reason = None if result is None else result.get("conversation_ended_reason")
        started: Mapping[str, Any] = {
            "type": "call_started",
            "timestamp": self.position.first_ms,
            **self._start_facts(),
        }
        ended: Mapping[str, Any] = {
            "type": "call_ended",
            "timestamp": self.position.last_ms,
            **({} if reason is None else {"reason": reason}),
        }
        call = RecordedCall("", "", None, None, None, None, (started, ended), self._folder)
        try:
            started, ended = with_state(call).control
        except RecordingError as error:
            self._tell(f"{error.where}: {error.what}: seen {error.seen}. The call ends without these facts.")
        is_news = self.position.first_ms != self.position.started_ms or not LATE_FACTS.isdisjoint(started)
        events.extend([self._sent("call_started", 3, started)] if is_news else [])
        self._close("ended")
        return [*events, self._sent("call_ended", 2, ended)]

    def _control(self, name: str, number: int, facts: Mapping[str, Any]) -> WireEvent:
        time_ms = self.position.started_ms if name == "call_started" else self.position.last_ms
        return self._sent(name, number, {"type": name, "timestamp": time_ms, **facts})

    def _sent(self, name: str, number: int, event: Mapping[str, Any]) -> WireEvent:
        time_ms = event["timestamp"] or 0
        return WireEvent("audit", compact_json(event), time_ms, name, number * _NUMBERS + 1, time_ms)

    def _close(self, state: Any) -> None:
        self.position.state = state
        for place in self.position.files.values():
            place.sent.clear()  # the beginnings of the files are kept: by them the attempt is recognised

    def _tell(self, sentence: str) -> None:
        self._warnings += 1
        if self._warnings <= _MOST_WARNINGS:
            self.sentences.append(sentence)
        elif self._warnings == _MOST_WARNINGS + 1:
            self.sentences.append(f"{self._folder}: more of that; nothing further is said of this call.")


def _ends_session(event: Mapping[str, Any]) -> bool:
    data = event.get("data")
    return (
        event_name("elevenlabs", event) == "connection_state"
        and isinstance(data, Mapping)
        and data.get("state") == "session_ended"
    )


def is_same_attempt(folder: Path, position: CallPosition) -> bool:
    """Whether the folder is still that of the call: itself, or with a file that begins like one that was read."""
    if folder.stat().st_ino == position.inode or not position.files:
        return True
    return any(
        GrowingFile(folder / name, place).is_here() for name, place in position.files.items() if place.head_bytes
    )


# Follows the folder of a run: finds the folders of its records as they appear, and sends each call while EVA writes
# it.
#
# The files are looked at again and again, because a notice of the system about changes does not reach every kind of
# file system.

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
    """How far the run was sent: calls that are open and that have ended, events since the start of the command, and calls that are of
    the past, of which nothing was sent.
    """

    open_calls: int = 0
    ended_calls: int = 0
    events: int = 0
    past_calls: int = 0


class FollowedRun:
    """The calls of one run."""

    def __init__(
        self,
        folder: Path,
        file: PositionFile,
        position: RunPosition,
        facts: CallFacts,
        say: Callable[[str], None],
        skew_ms: int = 0,
    ) -> None:
        """Reads nothing; `ID_MARK` in the goals of `facts` is the record's id. Calls with events older than `skew_ms`, if it is not 0, are
        left out: the evaluator would refuse these events.
        """
        self._skew_ms = skew_ms
        self._past: set[str] = set()
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
            if self._is_past(key, news):
                del self._records[key], self._position.calls[key]
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
        self.progress = TailProgress(len(self._records), ended, self.progress.events + sent, len(self._past))
        return sent

    def _is_past(self, key: str, news: Sequence[WireEvent]) -> bool:
        """Whether the evaluator would refuse these events for their age; then it says so, and the call is not looked at again."""
        now_ms = wall_clock_ms()
        newest_ms = max((event.time_ms for event in news), default=0)  # 0: no event of them has a time
        if not self._skew_ms or newest_ms <= 0 or now_ms - newest_ms <= self._skew_ms:
            return False
        self._past.add(key)
        if len(self._past) <= _MOST_WARNINGS:
            self._say(
                f"{self._folder / key}: its events are of {shown_moment(newest_ms)} UTC, and the evaluator takes none that is more than "
                f"{duration(self._skew_ms)} old (limits.max_event_time_skew_ms). Nothing of this call is sent. "
                f"`callgauge replay {self._folder / key}` plays it now."
            )
        return True

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
            if key in self._records or key in self._past:
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


# The work of the command `tail`: follows the run, and shows how far it is.

_SHOW_SECONDS = 0.5
_ONCE = (
    "The conversation ids are those of the records, and a call closes once: if these topics had a run of the same records "
    "before, no event of this run counts. Then stop it, delete the position, and start it with --run-name NAME."
)


async def follow(
    settings: Settings, run_dir: Path, position: Path, facts: CallFacts, *, is_endless: bool
) -> tuple[bool, TailProgress]:
    """Sends until the run is over or a signal comes; gives whether it is over, and how far it was sent."""
    file = PositionFile(position)
    with file.locked(), stop_on_signals() as stop:
        known = file.read(settings.bootstrap, settings.topic_prefix)
        is_new = not known.calls
        run = FollowedRun(run_dir, file, known, facts, say, settings.limits.max_event_time_skew_ms)

        async def work() -> None:
            await require_access(settings.kafka, TRAFFIC_NEEDS)
            say(f"Following {run_dir} to {settings.bootstrap}; the position is in {position}. Ctrl-C ends it.")
            if is_new and facts.run_name is None:
                say(_ONCE)
            async with EventPublisher(settings.kafka, ce_source="callgauge.tail") as publisher:
                await run.send(publisher, is_endless=is_endless)

        await first_of(stop.wait(), work(), _show(run))
        return not stop.is_set(), run.progress


async def _show(run: FollowedRun) -> None:
    """One line on the terminal with the progress, until cancelled."""
    with error_console().status("") as line:
        while True:
            line.update(progress_text(run.progress))
            await asyncio.sleep(_SHOW_SECONDS)


def progress_text(progress: TailProgress) -> str:
    """The progress of a followed run, in words."""
    past = f", {progress.past_calls} of the past left out: use `callgauge replay`" if progress.past_calls else ""
    return f"{progress.open_calls} calls open, {progress.ended_calls} ended, {progress.events} events sent{past}"
