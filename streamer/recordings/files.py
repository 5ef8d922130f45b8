"""Files of recordings: where they are, how their JSON is read, and a recorded call."""

import gzip
import heapq
import itertools
import json
import math
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, cast

from consumers.engine.redaction.redactor import Redactor
from consumers.runtime.process import OperatorError
from schemas.events.simulator import STREAMS, Stream, is_control_event, stream_of

# JSON in files of recordings: whole documents, lines, and the errors for other content.

MAX_LINE_BYTES = 64 * 1024 * 1024
"""Longest line that is read; a wire-level line is a whole call, and an hour of speech is about 2 MB."""
MAX_DOCUMENT_BYTES = 256 * 1024 * 1024
"""Largest JSON document that is read; an audit log carries every prompt of its call."""

MAX_SHOWN_CHARS = 80
"""Bound of the part of a wrong value that a message shows."""

_NOT_READ = "This call is not read and reading stops here; calls before it were read."


class RecordingError(OperatorError):
    """A recording cannot be read; nothing of the call was played.

    Attributes:
        what: The step that failed.
        where: File, and line where there is one.
        expected: The expected content.
        seen: The found content without personal data: a reader of the message may have no right to read the call.
        consequence: The consequence.
        remedy: The remedy.
    """

    def __init__(
        self, *, what: str, where: str, expected: str, seen: str, remedy: str, consequence: str = _NOT_READ
    ) -> None:
        seen = Redactor().redact(seen)
        super().__init__()
        self.what = what
        self.where = where
        self.expected = expected
        self.seen = seen
        self.consequence = consequence
        self.remedy = remedy

    def __str__(self) -> str:
        """The five parts."""
        return f"{self.where}: {self.what}:\n  expected {self.expected}; seen {self.seen}.\n  {self.consequence}\n  {self.remedy}"


def lines_of(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a file with their numbers from 1, unpacked when the name says so.

    Raises:
        RecordingError: The file cannot be read, or a line is blank or too long.
    """
    for number, text in raw_lines_of(path):
        require_text(text, f"{path}:{number}")
        yield number, text


def raw_lines_of(path: Path) -> Iterator[tuple[int, bytes]]:
    """As `lines_of`, blank lines included.

    Raises:
        RecordingError: The file cannot be read any further, or a line is too long.
    """
    number = 0
    try:
        with path.open("rb") as stored:
            # A gzip file is no IO[bytes] to the type checker; both read bytes by line, which is all that is used.
            file = cast("IO[bytes]", gzip.GzipFile(fileobj=stored)) if path.name.endswith(".gz") else stored
            while text := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(text) > MAX_LINE_BYTES:
                    raise shape_error(f"{path}:{number}", f"a line of at most {MAX_LINE_BYTES:,} bytes", "a longer one")
                yield number, text
    except (OSError, EOFError, zlib.error) as error:
        raise _unreadable_file(path, f"{path}:{number + 1}", error) from error


def _unreadable_file(path: Path, where: str, error: Exception) -> RecordingError:
    return RecordingError(
        what="the file cannot be read",
        where=where,
        expected="a readable file" + (" in gzip format" if path.name.endswith(".gz") else ""),
        seen=str(error) or type(error).__name__,
        remedy="Check permissions, and that the file was copied whole.",
    )


def require_text(text: bytes, where: str) -> None:
    """Refuses a blank line.

    Raises:
        RecordingError: The line is blank.
    """
    if not text.strip():
        raise shape_error(where, "a JSON object", "a blank line")


def read_document(path: Path) -> dict[str, Any]:
    """A file that is one JSON object.

    Raises:
        RecordingError: The file cannot be read, or is no JSON object.
    """
    return _an_object(read_json(path), str(path))


def read_json(path: Path) -> object:
    """A file that is one JSON value, unpacked when the name says so.

    Raises:
        RecordingError: It cannot be read, is too large, or is no JSON.
    """
    try:
        size_bytes = path.stat().st_size
        if size_bytes > MAX_DOCUMENT_BYTES:
            raise shape_error(str(path), f"at most {MAX_DOCUMENT_BYTES:,} bytes", f"{size_bytes:,} bytes")
        with gzip.open(path) if path.name.endswith(".gz") else path.open("rb") as file:
            text = file.read(
                MAX_DOCUMENT_BYTES + 1
            )  # no more than may be read: a small packed file can hold a large one
    except (OSError, EOFError, zlib.error) as error:
        raise _unreadable_file(path, str(path), error) from error
    if len(text) > MAX_DOCUMENT_BYTES:
        raise shape_error(str(path), f"at most {MAX_DOCUMENT_BYTES:,} bytes", "more, unpacked")
    return _value(text, str(path))


def object_in(text: bytes, where: str) -> dict[str, Any]:
    """A JSON object.

    Raises:
        RecordingError: It is no JSON object.
    """
    return _an_object(_value(text, where), where)


def _value(text: bytes, where: str) -> object:
    try:
        value: object = json.loads(text, parse_constant=_nothing, parse_float=_finite)
    except (ValueError, RecursionError) as error:  # bad UTF-8 and bad JSON are ValueErrors; deep nesting is the other
        raise RecordingError(
            what="this is not JSON",
            where=where,
            expected="a JSON object",
            seen=str(error),
            remedy="Repair or remove the line yourself: leaving it out silently would play a different call.",
        ) from error
    return value


def _an_object(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise shape_error(where, "a JSON object", kind_of(value))
    return value


def _nothing(_word: str) -> None:
    """NaN and infinity, which Python's own writer puts into JSON, are no values; the intake reads them in the same way."""


def _finite(digits: str) -> float | None:
    number = float(digits)
    return number if math.isfinite(number) else None  # 1e999 would read as infinity, which JSON cannot write again


def kind_of(value: object) -> str:
    """The name of a JSON type, for messages."""
    names = {
        dict: "an object",
        list: "a list",
        str: "a text",
        bool: "a truth value",
        int: "a number",
        float: "a number",
    }
    if value is None:
        return "nothing"
    return "an empty text" if value == "" else names[type(value)]


def shown(value: object, key: str = "") -> str:
    """The beginning of a JSON value for a message, without personal data.

    Args:
        value: The value.
        key: Its key: ten digits under `phone` are a telephone number.
    """
    redactor = Redactor()
    if isinstance(value, dict) and value:
        # Names of keys and no values. They are cut only when redacted: half a number is not known for one.
        return "an object with " + redactor.beginning(", ".join(value), MAX_SHOWN_CHARS)
    if isinstance(value, dict | list) or value is None:
        return kind_of(value)
    if isinstance(value, str):
        return repr(redactor.beginning(value, MAX_SHOWN_CHARS, key))
    return redactor.beginning(json.dumps(value), MAX_SHOWN_CHARS, key)


def shape_error(where: str, expected: str, seen: str) -> RecordingError:
    """The error for JSON of another shape than expected."""
    return RecordingError(
        what="the recording has another shape",
        where=where,
        expected=expected,
        seen=seen,
        remedy="Compare with docs/sources/recordings.md.",
    )


# Recorded calls in a file of events: one JSON object a line, as `POST /events` takes them and `callgauge simulate
# --print` writes them.
#
# The events of several calls may be mixed. An event without `conversation_id` belongs to a call named after the file.

WIRE_STREAMS: Final = ("audit", "pipecat", "user_sim", "agent")
"""Lists of events in a line that is a whole call."""
_TYPE_KEYS = ("type", "message_type", "event_type")


@dataclass(frozen=True, slots=True)
class FiledEvents:
    """The events of one call of a file, by their stream and in the order of the file.

    Attributes:
        path: The file.
        conversation_id: The name of the call.
        control: Events that steer the evaluator: `call_started`, `call_ended` and `user_text_updated`.
        streams: All other events.
    """

    path: Path
    conversation_id: str
    control: list[dict[str, Any]] = field(default_factory=list)
    streams: dict[Stream, list[dict[str, Any]]] = field(default_factory=dict)


def is_event(first_line: Mapping[str, Any]) -> bool:
    """Whether a file that begins with this object has an event a line, and not a whole call.

    Example:
        >>> is_event({"type": "call_started", "timestamp": 1}), is_event({"id": "a", "audit": []})
        (True, False)
    """
    has_a_call = any(isinstance(first_line.get(name), list) for name in WIRE_STREAMS)
    return not has_a_call and any(key in first_line for key in _TYPE_KEYS)


def calls_of_events(path: Path, lines: Iterable[tuple[int, bytes]]) -> Iterator[FiledEvents]:
    """Reads a whole file of events, and returns its calls in the order in which they begin.

    Args:
        path: The file.
        lines: Its lines with their numbers.

    Raises:
        RecordingError: A line is no event of a known stream, or the file is too large to be read at once.
    """
    calls: dict[str, FiledEvents] = {}
    size_bytes = 0
    for number, text in lines:
        where = f"{path}:{number}"
        size_bytes += len(text)
        if size_bytes > MAX_DOCUMENT_BYTES:
            raise shape_error(where, f"at most {MAX_DOCUMENT_BYTES:,} bytes of events in one file", "more")
        if not text.strip():
            continue
        event = object_in(text, where)
        stream = _stream_of(event, where)
        conversation_id = _conversation_id(event.pop("conversation_id", None), path, where)
        call = calls.setdefault(conversation_id, FiledEvents(path, conversation_id))
        if is_control_event(event):
            call.control.append(event)
        else:
            call.streams.setdefault(stream, []).append(event)
    yield from calls.values()


def _stream_of(event: dict[str, Any], where: str) -> Stream:
    named = event.pop("stream", None)
    stream = stream_of(event) if named is None else next((each for each in STREAMS if each == named), None)
    if stream is not None:
        return stream
    raise RecordingError(
        what="this is no event of a known type",
        where=where,
        expected=f"a known `type` or `message_type`, or `stream` as one of {', '.join(STREAMS)}",
        seen=shown(named or next((event[key] for key in _TYPE_KEYS if key in event), event)),
        consequence="Nothing of this file is read.",
        remedy="`callgauge events check` names every line that is not understood.",
    )


def _conversation_id(named: object, path: Path, where: str) -> str:
    if named is None:
        return path.name.removesuffix(".gz").removesuffix(".jsonl")
    if isinstance(named, int) and not isinstance(named, bool):
        return str(named)
    if not isinstance(named, str) or not named.isprintable() or not named:
        raise shape_error(where, '"conversation_id" as a text of printable characters', kind_of(named))
    return named


# Finds recorded calls below a path without reading them: folders of EVA records, lines of wire-level files, and
# files. Files of events are read, because the events of a call may be anywhere in them.
#
# EVA nests the folders of a run as `records/<record>` or, with several trials, `records/<record>/trial_<n>`. The
# folder of an attempt that EVA discarded has a suffix; it is left out below a run, as EVA leaves it out, and read
# when it is named itself.

MAX_DIRECTORY_DEPTH = 3
"""How far below the given directory records are looked for: run, `records`, record, trial."""

AUDIT_FILE: Final = "audit_log.json"
RESULT_FILE: Final = "result.json"
# Where several exist the first is newest and wins, as in EVA; its documentation names the last.
PIPECAT_FILES: Final = ("framework_logs.jsonl", "pipecat_logs.jsonl", "pipecat_events.jsonl")
METRICS_FILE: Final = "pipecat_metrics.jsonl"
LATENCIES_FILE: Final = "response_latencies.json"
SIMULATOR_FILES: Final = ("user_simulator_events.jsonl", "elevenlabs_events.jsonl")
RECORD_FILES: Final = (AUDIT_FILE, RESULT_FILE, *PIPECAT_FILES, *SIMULATOR_FILES)
"""A folder with one of them is the folder of one call."""

SAMPLE: Final = Path("sample")
"""Path of the call that comes with callgauge, wherever there is no file or folder of this name."""
_SAMPLE_FILE: Final = Path(__file__).parent / "sample" / "call.jsonl"

_WIRE_SUFFIXES = (".jsonl", ".jsonl.gz")
_AGENT_RECORD_SUFFIXES = (".json", ".json.gz")
_DISCARDED = re.compile(r".+_(?:failed_attempt|extra|unvalidated|attempt)_\d+")
_TRIAL = re.compile(r"trial_\d+")


@dataclass(frozen=True, slots=True)
class RecordFolder:
    """The folder of one EVA record."""

    path: Path


@dataclass(frozen=True, slots=True)
class AgentRecordFile:
    """A file with the record of one conversation with an ElevenLabs agent."""

    path: Path


@dataclass(frozen=True, slots=True)
class WireLine:
    """One line of a wire-level file, with its number from 1."""

    path: Path
    number: int
    text: bytes


Place = RecordFolder | AgentRecordFile | WireLine | FiledEvents


class RecordedPath:
    """The recorded calls below one path.

    Attributes:
        path: The path.
        known: The places below it in name order; empty for a file of lines, which are read one by one.
        discarded: Number of folders of discarded attempts, which are left out.
    """

    def __init__(self, path: Path) -> None:
        """Looks for calls, and reads none.

        Args:
            path: An EVA record or run directory, a directory of records of ElevenLabs agents, a file of recorded calls, or
                `SAMPLE`.

        Raises:
            RecordingError: There is no recorded call.
        """
        if is_sample(path):
            path = _SAMPLE_FILE
        self.path = path
        self.known: tuple[Place, ...] = ()
        self.discarded = 0
        if path.is_dir():
            try:
                self.known = tuple(self._below(path))
            except OSError as error:
                raise _unreadable(path, error) from error
            if not self.known:
                raise _nothing_in(path)
        elif not path.exists():
            raise RecordingError(
                what="there is no recorded call",
                where=str(path),
                expected="a directory of recorded calls or a .jsonl, .jsonl.gz, .json or .json.gz file",
                seen="no such file or directory",
                consequence="Nothing is read from it.",
                remedy=f"Check the spelling of the path; `{SAMPLE}` is a call that comes with callgauge.",
            )
        elif path.name.endswith(_AGENT_RECORD_SUFFIXES):
            self.known = (AgentRecordFile(path),)
        elif not path.name.endswith(_WIRE_SUFFIXES):
            raise RecordingError(
                what="this kind of file holds no recorded calls",
                where=str(path),
                expected="a name that ends in .jsonl, .jsonl.gz, .json or .json.gz",
                seen=path.name,
                remedy="Name the directory of the record instead, or rename the file if it has one event or one call a line.",
            )

    def __iter__(self) -> Iterator[Place]:
        """The places, in order; lines of a file as they are read.

        Raises:
            RecordingError: The file cannot be read any further, or is empty.
        """
        yield from self.known or places_in_lines(self.path, raw_lines_of(self.path))

    def _below(self, directory: Path) -> Iterator[Place]:
        folders = [RecordFolder(folder) for folder in self._record_folders(directory, MAX_DIRECTORY_DEPTH)]
        # Beside EVA's records there are other documents, so these count where there is nothing of EVA's.
        yield from folders or map(AgentRecordFile, _agent_records(directory))

    def _record_folders(self, directory: Path, levels_below: int) -> Iterator[Path]:
        if is_record_folder(directory):
            yield directory
        elif levels_below:
            for child in sorted(child for child in directory.iterdir() if child.is_dir()):
                if is_discarded(child):
                    self.discarded += 1
                else:
                    yield from self._record_folders(child, levels_below - 1)


def places_in_lines(path: Path, lines: Iterator[tuple[int, bytes]]) -> Iterator[Place]:
    """The calls in lines with a call each, or with an event each; `path` is where they are from, for messages.

    Raises:
        RecordingError: There is no line, or one cannot be read.
    """
    first = next(lines, None)
    if first is None:
        raise shape_error(str(path), "one call per line, or one event", "an empty file")
    lines = itertools.chain([first], lines)
    if is_event(_object_in_line(first[1])):
        yield from calls_of_events(path, lines)
        return
    for number, text in lines:
        yield WireLine(path, number, text)


def is_sample(path: Path) -> bool:
    """Whether the path is that of the call that comes with callgauge."""
    return path == SAMPLE and not path.exists()


def is_record_folder(directory: Path) -> bool:
    """Whether a file of a record is directly in it."""
    return any((directory / name).is_file() for name in RECORD_FILES)


def is_discarded(directory: Path) -> bool:
    """Whether its name is that of an attempt which EVA discarded.

    Example:
        >>> [is_discarded(Path(name)) for name in ("1.1.2_failed_attempt_1", "trial_0_extra_2", "1.1.2", "trial_0")]
        [True, True, False, False]
    """
    return _DISCARDED.fullmatch(directory.name) is not None


def conversation_id_of(directory: Path, record_id: str | None) -> str:
    """The id of a record's call: the id of the record, and the trial if there are several, because they share that id.

    Args:
        directory: Folder of the record.
        record_id: Id in the record's own `result.json`; without one the folder's name counts.

    Example:
        >>> conversation_id_of(Path("/runs/a/records/1.1.2"), None)
        '1.1.2'
        >>> conversation_id_of(Path("/runs/a/records/1.1.2/trial_0"), "1.1.2")
        '1.1.2/trial_0'
    """
    folder = directory.resolve()
    if _TRIAL.fullmatch(folder.name):
        return f"{record_id or folder.parent.name}/{folder.name}"
    return record_id or folder.name


def without_trial(conversation_id: str) -> str:
    """The id of the record that a call is a trial of; goals are for records.

    Example:
        >>> without_trial("1.1.2/trial_0")
        '1.1.2'
    """
    record, slash, trial = conversation_id.rpartition("/")
    return record if slash and _TRIAL.fullmatch(trial) else conversation_id


def _agent_records(directory: Path) -> list[Path]:
    """Files by their name; hidden ones are of the file system."""
    files = [child for child in directory.iterdir() if child.is_file() and not child.name.startswith(".")]
    return sorted(child for child in files if child.name.endswith(_AGENT_RECORD_SUFFIXES))


def _object_in_line(line: bytes) -> Mapping[str, Any]:
    """The line as an object; an empty one if it is none, which is refused where it is read as a call."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _nothing_in(path: Path) -> RecordingError:
    return RecordingError(
        what="there is no recorded call",
        where=str(path),
        expected=f"{AUDIT_FILE} in it or in a directory up to {MAX_DIRECTORY_DEPTH} levels down, or records of "
        "conversations with an ElevenLabs agent (.json, .json.gz) in it",
        seen="none",
        remedy="Name an EVA record or run directory, a directory of such records, or a .jsonl or .jsonl.gz file of "
        "events or calls.",
    )


def _unreadable(path: Path, error: OSError) -> RecordingError:
    return RecordingError(
        what="the folder cannot be read",
        where=str(error.filename or path),
        expected="a folder that this user may look into",
        seen=error.strerror or type(error).__name__,
        remedy="Check its permissions.",
    )


# Moves the measurements that EVA stores beside the events of a call to the places where a running bot would send
# them. Pure.
#
# The metrics of `pipecat_metrics.jsonl` are events of the pipecat stream: the log keeps its order, and each metric
# goes in behind everything of its time or earlier. Latencies of the model are in the audit log's `llm_prompts`: each
# goes to the `llm_call` entry of the same step, in fields that no rule of EVA's reads.

Events = tuple[Mapping[str, Any], ...]

_SINCE_START_BELOW: Final = 10**8
"""Old recordings have seconds since the pipeline started, new ones epoch milliseconds; a call of three years is neither."""

_SAME_STEP_MS: Final = 1_000
"""An entry is written as soon as the model has answered; two steps of one call are further apart than that."""


class UnplacedMetricsError(ValueError):
    """The metrics count from a start that the log of the call does not have; the text names the missing part."""


class _Placed(NamedTuple):
    time_ms: float
    is_metric: bool
    place: int
    event: Mapping[str, Any]


def with_metrics(log: Events | None, metrics: Events) -> Events:
    """The pipecat stream: the log's lines and the metrics.

    Args:
        log: Lines of the pipecat or framework log; None when the call has none.
        metrics: Lines of the file of metrics, in its order.

    Raises:
        UnplacedMetricsError: Metrics have times since the start of the pipeline, and no line of the log has a time: its first
            one is the start.
    """
    lines = list(_placed(log or (), is_metric=False))
    start_ms = next((line.time_ms for line in lines if line.time_ms > 0), None)
    events = tuple(dated(event, start_ms) for event in metrics)
    return tuple(
        placed.event for placed in heapq.merge(lines, _placed(events, is_metric=True), key=lambda each: each[:3])
    )


def _placed(events: Events, *, is_metric: bool) -> Iterator[_Placed]:
    """Places a line by its position in the file: at the latest time so far."""
    latest_ms = 0.0
    for place, event in enumerate(events):
        stamp = event.get("timestamp")
        if isinstance(stamp, int | float) and not isinstance(stamp, bool):
            latest_ms = max(latest_ms, stamp)
        yield _Placed(latest_ms, is_metric, place, event)


def dated(event: Mapping[str, Any], start_ms: float | None) -> Mapping[str, Any]:
    """A metric with its time in epoch milliseconds.

    Args:
        event: A line of the file of metrics.
        start_ms: Start of the pipeline, which is the first time in the log of the call; None when it is not known.

    Raises:
        UnplacedMetricsError: Its time counts from the start, which is not known.
    """
    stamp = event.get("timestamp")
    if isinstance(stamp, bool) or not isinstance(stamp, int | float) or not 0 <= stamp < _SINCE_START_BELOW:
        return event
    if start_ms is None:
        raise UnplacedMetricsError("a pipecat or framework log whose first line says when the pipeline started")
    return {**event, "timestamp": int(start_ms + stamp * 1000)}


def with_llm_latencies(entries: Events, prompts: object) -> Events:
    """The entries of the audit log; entries of model steps get `latency_ms` and `model` if `llm_prompts` has the step.

    Steps are in the same order in both. A failed step, or a step without an entry, is skipped.
    """
    steps = [each for each in prompts if isinstance(each, Mapping)] if isinstance(prompts, list) else []
    completed = []
    at = 0
    for entry in entries:
        written_ms = _digits(entry.get("timestamp"))
        if entry.get("message_type") == "llm_call" and "latency_ms" not in entry and written_ms is not None:
            while at < len(steps) and (_digits(steps[at].get("end_time")) or 0) < written_ms - _SAME_STEP_MS:
                at += 1
            ended_ms = _digits(steps[at].get("end_time")) if at < len(steps) else None
            if ended_ms is not None and ended_ms <= written_ms + _SAME_STEP_MS:
                of_step = {key: steps[at][key] for key in ("latency_ms", "model") if steps[at].get(key) is not None}
                entry = {**entry, **of_step}
                at += 1
        completed.append(entry)
    return tuple(completed)


def _digits(value: object) -> int | None:
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 18 else None


# A recorded call, whatever its format was.

PIPELINE_TYPES: Final = ("cascade", "audio_llm", "s2s")


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One call as its sources and its control events, each in the order in which they were written.

    Attributes:
        conversation_id: The Kafka key of everything the call puts on topics.
        pipeline_type: `cascade`, `audio_llm` or `s2s`.
        conversation_ended_reason: Why the call ended, or None where the recording does not say.
        audit: Entries of the audit log, or None when the call has no such source.
        pipecat: Lines of the pipecat or framework log, or None when absent.
        elevenlabs: Events of the simulated caller, or None when absent (a real phone line has none).
        control: `call_started`, `call_ended` and `user_text_updated`, in time order. Empty for most recordings.
        directory: Where the rest of an EVA record is; None for a wire-level call.
        agent: Events of a real ElevenLabs agent and the record of the conversation, or None when it is no such agent.
    """

    conversation_id: str
    pipeline_type: str
    conversation_ended_reason: str | None
    audit: Events | None
    pipecat: Events | None
    elevenlabs: Events | None
    control: Events = ()
    directory: Path | None = field(default=None, compare=False)
    agent: Events | None = None

    @property
    def events(self) -> int:
        """The number of its events."""
        return sum(len(each or ()) for each in (self.audit, self.pipecat, self.elevenlabs, self.agent, self.control))
