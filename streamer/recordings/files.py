"""Files of recordings: where they are, how their JSON is read, and a recorded call."""

import gzip
import heapq
import json
import math
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, cast

from consumers.engine.redaction.redactor import Redactor
from consumers.runtime.process import OperatorError

# JSON in files of recordings: whole documents, lines, and the errors for other content.

MAX_LINE_BYTES = 64 * 1024 * 1024
"""Longest line that is read; a wire-level line is a whole call, and an hour of speech is about 2
MB.
"""
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
        seen: The found content without personal data: a reader of the message may have no right to
            read the call.
        consequence: The consequence.
        remedy: The remedy.
    """

    def __init__(
        self,
        *,
        what: str,
        where: str,
        expected: str,
        seen: str,
        remedy: str,
        consequence: str = _NOT_READ,
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
        return (
            f"{self.where}: {self.what}:\n  expected {self.expected}; seen {self.seen}.\n  "
            f"{self.consequence}\n  {self.remedy}"
        )


def lines_of(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a file with their numbers from 1, unpacked when the name says so.

    Raises:
        RecordingError: The file cannot be read, or a line is blank or too long.
    """
    for number, text in raw_lines_of(path):
        if not text.strip():
            raise shape_error(f"{path}:{number}", "a JSON object", "a blank line")
        yield number, text


def raw_lines_of(path: Path) -> Iterator[tuple[int, bytes]]:
    """As `lines_of`, blank lines included.

    Raises:
        RecordingError: The file cannot be read any further, or a line is too long.
    """
    number = 0
    try:
        with unpacked(path) as file:
            while text := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(text) > MAX_LINE_BYTES:
                    raise shape_error(
                        f"{path}:{number}",
                        f"a line of at most {MAX_LINE_BYTES:,} bytes",
                        "a longer one",
                    )
                yield number, text
    except UNREADABLE as error:
        raise unreadable_file(path, f"{path}:{number + 1}", error) from error


@contextmanager
def unpacked(path: Path) -> Iterator[IO[bytes]]:
    """The content of a file, unpacked if its name or its first bytes say that it is packed. Reading
    it may raise `UNREADABLE`.
    """
    with path.open("rb") as stored:
        is_packed = path.name.endswith(".gz") or stored.peek(len(_GZIP)).startswith(_GZIP)
        # A gzip file is no IO[bytes] to the type checker; both read bytes, which is all that is
        # used.
        yield cast("IO[bytes]", gzip.GzipFile(fileobj=stored)) if is_packed else stored


UNREADABLE: Final = (OSError, EOFError, zlib.error)
"""What is raised where a file cannot be read, or not be unpacked."""
_GZIP: Final = b"\x1f\x8b"


def unreadable_file(path: Path, where: str, error: Exception) -> RecordingError:
    return RecordingError(
        what="the file cannot be read",
        where=where,
        expected="a readable file" + (" in gzip format" if path.name.endswith(".gz") else ""),
        seen=str(error) or type(error).__name__,
        remedy="Check permissions, and that the file was copied whole.",
    )


def read_document(path: Path) -> dict[str, Any]:
    """A file that is one JSON object, unpacked when the name says so.

    Raises:
        RecordingError: It cannot be read, is too large, or is no JSON object.
    """
    try:
        size_bytes = path.stat().st_size
        if size_bytes > MAX_DOCUMENT_BYTES:
            raise shape_error(
                str(path), f"at most {MAX_DOCUMENT_BYTES:,} bytes", f"{size_bytes:,} bytes"
            )
        with unpacked(path) as file:
            text = file.read(MAX_DOCUMENT_BYTES + 1)  # a small packed file can hold a large one
    except UNREADABLE as error:
        raise unreadable_file(path, str(path), error) from error
    if len(text) > MAX_DOCUMENT_BYTES:
        raise shape_error(str(path), f"at most {MAX_DOCUMENT_BYTES:,} bytes", "more, unpacked")
    return object_in(text, str(path))


def object_in(text: bytes, where: str) -> dict[str, Any]:
    """A JSON object.

    Raises:
        RecordingError: It is no JSON object.
    """
    value = value_in(text, where)
    if not isinstance(value, dict):
        raise shape_error(where, "a JSON object", kind_of(value))
    return value


def value_in(text: bytes, where: str) -> object:
    """A JSON value.

    Raises:
        RecordingError: It is none.
    """
    try:
        value: object = json.loads(text, parse_constant=_nothing, parse_float=_finite)
    # bad UTF-8 and bad JSON are ValueErrors; deep nesting is the other
    except (ValueError, RecursionError) as error:
        raise RecordingError(
            what="this is not JSON",
            where=where,
            expected="a JSON object",
            seen=str(error),
            remedy=(
                "Repair or remove the line yourself: leaving it out silently would play a "
                "different call."
            ),
        ) from error
    return value


def _nothing(_word: str) -> None:
    """NaN and infinity, which Python's own writer puts into JSON, are no values; the intake reads
    them in the same way.
    """


def _finite(digits: str) -> float | None:
    number = float(digits)
    # 1e999 would read as infinity, which JSON cannot write again
    return number if math.isfinite(number) else None


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
        # Names of keys and no values. They are cut only when redacted: half a number is not known
        # for one.
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


class At(NamedTuple):
    """The place of an element of a file: its line, or its place in the array, from 1; 0 is the
    whole file.
    """

    path: Path
    number: int = 0

    def __str__(self) -> str:
        """As messages have it."""
        return f"{self.path}:{self.number}" if self.number else str(self.path)


class FiledEvent(dict[str, Any]):
    """An event of a file that knows where it stands there."""

    def __init__(self, event: Mapping[str, Any], at: At) -> None:
        """A copy of the event."""
        super().__init__(event)
        self.at = at


def with_fields(event: Mapping[str, Any], fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """The event with these fields, and with its place in a file if it has one."""
    changed = {**event, **fields}
    return FiledEvent(changed, event.at) if isinstance(event, FiledEvent) else changed


WIRE_STREAMS: Final = ("audit", "pipecat", "user_sim", "agent")
"""Lists of events in a whole call in the wire-level form."""


# EVA nests the folders of a run as `records/<record>` or, with several trials,
# `records/<record>/trial_<n>`. Older runs have `records/<record>_trial_<n>`. The folder of an
# attempt that EVA discarded has a suffix; it is left out below a run, as EVA leaves it out, and
# read when it is named itself.

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
SAMPLE_FILE: Final = Path(__file__).parent / "sample" / "call.jsonl"

_DISCARDED = re.compile(r".+_(?:failed_attempt|extra|unvalidated|attempt)_\d+")
_TRIAL = re.compile(r"(?:(?P<record>.+)_)?(?P<trial>trial_\d+)")


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
    """The id of a record's call: the id of the record, and the trial if there are several, because
    they share that id.

    Args:
        directory: Folder of the record.
        record_id: Id in the record's own `result.json`; without one the folder's name counts.

    Example:
        >>> conversation_id_of(Path("/runs/a/records/1.1.2"), None)
        '1.1.2'
        >>> conversation_id_of(Path("/runs/a/records/1.1.2/trial_0"), "1.1.2")
        '1.1.2/trial_0'
        >>> conversation_id_of(Path("/runs/a/records/1.1.2_trial_0"), "1.1.2")
        '1.1.2/trial_0'
    """
    folder = directory.resolve()
    found = _TRIAL.fullmatch(folder.name)
    if found is None:
        return record_id or folder.name
    if record_id is None or record_id == folder.name:
        record_id = found["record"] or folder.parent.name
    return f"{record_id}/{found['trial']}"


def without_trial(conversation_id: str) -> str:
    """The id of the record that a call is a trial of; goals are for records.

    Example:
        >>> without_trial("1.1.2/trial_0")
        '1.1.2'
    """
    record, slash, trial = conversation_id.rpartition("/")
    found = _TRIAL.fullmatch(trial)
    return record if slash and found is not None and found["record"] is None else conversation_id


# Moves the measurements that EVA stores beside the events of a call to the places where a running
# bot would send them. Pure.
#
# The metrics of `pipecat_metrics.jsonl` are events of the pipecat stream: the log keeps its order,
# and each metric goes in behind everything of its time or earlier. Latencies of the model are in
# the audit log's `llm_prompts`: each goes to the `llm_call` entry of the same step, in fields that
# no rule of EVA's reads.

Events = tuple[Mapping[str, Any], ...]

_SINCE_START_BELOW: Final = 10**8
"""Old recordings have seconds since the pipeline started, new ones epoch milliseconds; a call of
three years is neither.
"""

_SAME_STEP_MS: Final = 1_000
"""An entry is written as soon as the model has answered; two steps of one call are further apart
than that.
"""


class UnplacedMetricsError(ValueError):
    """The metrics count from a start that the log of the call does not have; the text names the
    missing part.
    """


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
        UnplacedMetricsError: Metrics have times since the start of the pipeline, and no line of the
            log has a time: its first one is the start.
    """
    lines = list(_placed(log or (), is_metric=False))
    start_ms = next((line.time_ms for line in lines if line.time_ms > 0), None)
    events = tuple(dated(event, start_ms) for event in metrics)
    return tuple(
        placed.event
        for placed in heapq.merge(lines, _placed(events, is_metric=True), key=lambda each: each[:3])
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
        start_ms: Start of the pipeline, which is the first time in the log of the call; None when
            it is not known.

    Raises:
        UnplacedMetricsError: Its time counts from the start, which is not known.
    """
    stamp = event.get("timestamp")
    if (
        isinstance(stamp, bool)
        or not isinstance(stamp, int | float)
        or not 0 <= stamp < _SINCE_START_BELOW
    ):
        return event
    if start_ms is None:
        raise UnplacedMetricsError(
            "a pipecat or framework log whose first line says when the pipeline started"
        )
    return {**event, "timestamp": int(start_ms + stamp * 1000)}


def with_llm_latencies(entries: Events, prompts: object) -> Events:
    """The entries of the audit log; entries of model steps get `latency_ms` and `model` if
    `llm_prompts` has the step.

    Steps are in the same order in both. A failed step, or a step without an entry, is skipped.
    """
    steps = (
        [each for each in prompts if isinstance(each, Mapping)] if isinstance(prompts, list) else []
    )
    completed = []
    at = 0
    for entry in entries:
        written_ms = _digits(entry.get("timestamp"))
        if (
            entry.get("message_type") == "llm_call"
            and "latency_ms" not in entry
            and written_ms is not None
        ):
            while (
                at < len(steps)
                and (_digits(steps[at].get("end_time")) or 0) < written_ms - _SAME_STEP_MS
            ):
                at += 1
            ended_ms = _digits(steps[at].get("end_time")) if at < len(steps) else None
            if ended_ms is not None and ended_ms <= written_ms + _SAME_STEP_MS:
                of_step = {
                    key: steps[at][key]
                    for key in ("latency_ms", "model")
                    if steps[at].get(key) is not None
                }
                entry = {**entry, **of_step}
                at += 1
        completed.append(entry)
    return tuple(completed)


def _digits(value: object) -> int | None:
    return (
        int(value)
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 18
        else None
    )


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
        elevenlabs: Events of the simulated caller, or None when absent (a real phone line has
            none).
        control: `call_started`, `call_ended`, `user_text_updated` and `turn_details`, in time
            order. Empty for most recordings.
        directory: Where the rest of an EVA record is; None for a wire-level call.
        agent: Events of a real ElevenLabs agent and the record of the conversation, or None when it
            is no such agent.
        names_pipeline_type: Whether the run or `call_started` says the type; otherwise the call
            counts as a cascade. In the line of a whole call a missing one means a cascade.
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
    names_pipeline_type: bool = field(default=True, compare=False)

    @property
    def events(self) -> int:
        """The number of its events."""
        return sum(
            len(each or ())
            for each in (self.audit, self.pipecat, self.elevenlabs, self.agent, self.control)
        )
