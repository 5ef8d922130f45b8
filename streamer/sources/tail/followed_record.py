"""Follows the folder of one record of EVA while the call runs: its new events, and the end of the call.

Stock EVA appends to the pipecat log and to the metrics during the call. It writes the events of the simulated caller, the audit
log and then `result.json` at the end.
"""

import hashlib
import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from schemas.events.simulator import Source
from streamer.recordings.eva_metrics import UnplacedMetricsError, dated, with_llm_latencies
from streamer.recordings.eva_state import with_state
from streamer.recordings.files.json_files import RecordingError, object_in, read_document
from streamer.recordings.files.places import (
    AUDIT_FILE,
    LATENCIES_FILE,
    METRICS_FILE,
    PIPECAT_FILES,
    RESULT_FILE,
    SIMULATOR_FILES,
)
from streamer.recordings.reader import pipeline_type_of_run
from streamer.recordings.recorded_call import RecordedCall
from streamer.sources.replay.playback import WireEvent, compact_json, event_name, event_time_ms
from streamer.sources.tail.growing_file import LINES_AT_A_TIME, MAX_LINE_BYTES, GrowingFile
from streamer.sources.tail.positions import CallPosition, FilePosition

SETTLE_SECONDS: Final = 2.0
"""For how long no file may change after `result.json` before the call ends: other files may be copied after it."""
MISSING_SECONDS: Final = 30.0
"""How long the end of a call waits for an audit log that is not there, or is not whole."""
SILENT_SECONDS: Final = 600.0
"""Without `result.json`, a folder in which nothing changes for so long belongs to a call that crashed."""
_OLD_SECONDS: Final = 60.0
"""Files that are older were not just copied: a run that is over needs no settling."""
_MOST_WARNINGS: Final = 3

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
        """Reads nothing.

        Args:
            folder: Folder of the record.
            position: Where to go on; changes as events are read.
            facts: Facts for `call_started`.
        """
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
        facts = {"pipeline_type": pipeline_type_of_run(self._folder), "agent": self._facts.agent}
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
        is_news = self.position.first_ms != self.position.started_ms or not {"expected_state", "tools"}.isdisjoint(
            started
        )
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
