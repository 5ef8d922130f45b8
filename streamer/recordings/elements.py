"""The elements of a file: which form each of them has, and what it says of calls. This decides it
for every command that reads files.

An element is a line, an element of an array, or the whole file. An element may be an event in any
of the forms in which ingest takes events, spans by OTLP, the record of a conversation with an
ElevenLabs agent, or a whole call in the wire-level form.
"""

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum, auto
from itertools import chain
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

from consumers.engine.redaction.redactor import Redactor
from consumers.engine.sources.frameworks import translated
from consumers.engine.sources.otlp import PROTOBUF, UnreadableSpansError, spans_in_protobuf
from schemas.events.codec import RefusedRecordError, refused_type
from schemas.events.simulator import TYPE_KEYS, Stream, is_control_event
from schemas.wire import MAX_NAME_CHARS
from streamer.recordings.elevenlabs import is_record, unwrapped
from streamer.recordings.files import (
    MAX_DOCUMENT_BYTES,
    MAX_LINE_BYTES,
    MAX_SHOWN_CHARS,
    WIRE_STREAMS,
    At,
    FiledEvent,
    RecordingError,
    kind_of,
    shape_error,
    value_in,
)
from streamer.sources.http.body import (
    WHICH_EVENTS,
    Posted,
    UnreadableBodyError,
    in_our_words,
    stream_in,
    structured,
)
from streamer.sources.http.traces import posted_spans

# A file as elements.


class Element(NamedTuple):
    """One element of a file.

    Attributes:
        at: Its place.
        text: Its bytes.
        value: What they say as JSON; the error if they are no JSON; None if they are spans in
            protobuf.
    """

    at: At
    text: bytes
    value: Any


def element_at(at: At, text: bytes) -> Element:
    """The element with this text."""
    try:
        return Element(at, text, value_in(text, str(at)))
    except RecordingError as error:
        return Element(at, text, error)


def elements_in(file: IO[bytes], path: Path) -> Iterator[Element]:
    """The elements of a file, line by line if it has lines.

    Raises:
        RecordingError: The file is empty, too large, or neither JSON nor spans.
    """
    lines = iter(lambda: file.readline(MAX_LINE_BYTES + 1), b"")
    head, number, first = b"", 1, next(lines, b"")
    while first and not first.strip():
        head, number, first = head + first, number + 1, next(lines, b"")
    if not first:
        raise shape_error(str(path), "events, spans or calls", "an empty file")
    has_lines = Path(path.name.removesuffix(".gz")).suffix in _OF_LINES
    if isinstance(element_at(At(path), first).value, dict):
        second = next(lines, b"")
        yield from _lines(
            chain((first, second), lines), At(path, number if second or has_lines else 0)
        )
        return
    content = head + first + file.read(max(0, MAX_DOCUMENT_BYTES + 1 - len(first)))
    if len(content) > MAX_DOCUMENT_BYTES:
        raise shape_error(str(path), f"at most {MAX_DOCUMENT_BYTES:,} bytes", "more, unpacked")
    whole = element_at(At(path), content)
    if isinstance(whole.value, list) and not is_record(whole.value):
        for place, each in enumerate(whole.value, 1):
            yield Element(At(path, place), json.dumps(each).encode(), each)
    elif not isinstance(whole.value, RecordingError):
        yield whole
    elif _is_protobuf(content):
        yield whole._replace(value=None)
    # the first line is broken
    elif has_lines or (first.lstrip()[:1] == b"{" and first.rstrip()[-1:] == b"}"):
        yield from _lines(content.splitlines(keepends=True), At(path, 1))
    else:
        raise whole.value


_OF_LINES: Final = (".jsonl", ".ndjson")


def _lines(lines: Iterable[bytes], at: At) -> Iterator[Element]:
    for line in lines:
        if len(line) > MAX_LINE_BYTES:
            raise shape_error(
                str(at), f"a line of at most {MAX_LINE_BYTES:,} bytes", "a longer one"
            )
        if line.strip():
            yield element_at(at, line)
        at = at._replace(number=at.number + 1)


def _is_protobuf(content: bytes) -> bool:
    """Whether it is an export request: its first field has the number 1, and its fields end where
    it ends.
    """
    try:
        deque(spans_in_protobuf(content, MAX_DOCUMENT_BYTES), maxlen=0)
    except UnreadableSpansError:
        return False
    return content.startswith(b"\n")


# The form of an element.


class Form(Enum):
    """What an element is."""

    EVENT = auto()
    SPANS = auto()
    RECORD = auto()
    CALL = auto()


class _Other(NamedTuple):
    """A document that is no recording: the fields by which it is known, and what to say of it."""

    fields: frozenset[str]
    what: str
    expected: str
    seen: str
    remedy: str


ROW_FIELDS: Final = frozenset({"row", "conversation_id"})
"""Fields that every row has, and no recorded call."""
_OTHERS: Final = (
    _Other(
        frozenset({"agent_trace"}),
        "this is a trace of agent-inspect, and no recording",
        "the events of a call",
        '"agent_trace"',
        "`callgauge score FILE --format agent-inspect` scores traces.",
    ),
    _Other(
        frozenset({"conversation_id", "records", "transcript"}),
        "these are the scores of a call, and no recording of it",
        "the events of a call",
        "what `callgauge call --json` prints, which has no events",
        "`callgauge report --from-topics ID` makes the page of a call that the topics have.",
    ),
    _Other(
        ROW_FIELDS,
        "these are rows of turns and calls, and no recording",
        "events of calls",
        "what `callgauge score` prints, which has no events",
        "`callgauge trials` compares calls by their rows; give the recording that they were made "
        "from.",
    ),
)


_OF_EVENTS: Final = (*TYPE_KEYS, "stream", "timestamp")
"""An event has one of them, and a document that is none of ours has none."""


def form_of(element: Element) -> Form:
    """The form of an element.

    Raises:
        RecordingError: It is no JSON object, or no recording.
    """
    at, _, value = element
    if isinstance(value, RecordingError):
        raise value
    if value is None and not at.number:
        return Form.SPANS
    for other in _OTHERS:
        if isinstance(value, dict) and value.keys() >= other.fields:
            raise RecordingError(
                what=other.what,
                where=str(at),
                expected=other.expected,
                seen=other.seen,
                remedy=other.remedy,
            )
    if is_record(value):
        return Form.RECORD
    if not isinstance(value, dict):
        raise shape_error(str(at), "a JSON object", kind_of(value))
    if "resourceSpans" in value:
        return Form.SPANS
    if any(isinstance(value.get(name), list) for name in WIRE_STREAMS):
        return Form.CALL
    has_type = (
        any(key in value for key in (*_OF_EVENTS, "specversion"))
        or translated(value, 0) is not None
    )
    return Form.CALL if not has_type and value.keys() & {"id", *WIRE_STREAMS} else Form.EVENT


# What events and spans say.


class RecordedEvent(NamedTuple):
    """One event.

    Attributes:
        call: Its conversation id; None if it names none.
        stream: Its stream; None for an event that steers the evaluator.
        event: The event.
        identity: The same when it is sent again; None if nothing tells.
        is_span: Whether a span says it.
    """

    call: str | None
    stream: Stream | None
    event: FiledEvent
    identity: tuple[str, str] | None
    is_span: bool


class WholeCall(NamedTuple):
    """An element that is a call by itself. `record_id` is the conversation id of a record."""

    at: At
    text: bytes
    record_id: str | None = None


def told(element: Element) -> Iterator[RecordedEvent | WholeCall | RecordingError | None]:
    """What an element says: events, a whole call, why something in it cannot be read, and None for
    something that no rule reads.
    """
    try:
        form = form_of(element)
        if form is Form.CALL:
            yield WholeCall(element.at, element.text)
        elif form is Form.RECORD:
            named = {} if isinstance(element.value, list) else unwrapped(element.value)
            yield WholeCall(element.at, element.text, named.get("conversation_id"))
        else:
            for posted in _posted(element, form):
                found = list(in_our_words(posted, 0))
                for each in found:
                    has_no_time = each is not posted and not each.event["timestamp"]
                    yield _said(
                        each._replace(fault=_NO_TIME) if has_no_time else each, element.at, form
                    )
                if not found:
                    yield None
    except RecordingError as error:
        yield error


_NO_TIME: Final = "no time"
_READABLE: Final = {
    _NO_TIME: "`timestamp`: live it is the time of arrival, which no file has",
    Form.SPANS: "a span that can be read",
    Form.EVENT: "a CloudEvent in structured mode",
}


def _posted(element: Element, form: Form) -> Iterator[Posted]:
    """An event as `POST /events` takes it, or the events of spans as `POST /v1/traces` does."""
    at, text, value = element
    if form is Form.EVENT:
        yield structured(at.number, value) if "specversion" in value else Posted(at.number, value)
        return
    try:
        yield from filter(None, posted_spans(text, PROTOBUF if value is None else "", {}))
    except UnreadableBodyError as error:
        expected = "an export request of traces, as POST /v1/traces takes it"
        raise shape_error(str(at), expected, str(error)) from error


def _said(posted: Posted, at: At, form: Form) -> RecordedEvent | RecordingError:
    if posted.fault is not None:
        expected = _READABLE.get(posted.fault) or _READABLE[form]
        return _refused(
            "it cannot be read",
            at,
            expected,
            posted.fault,
            "Compare with docs/sources/recordings.md.",
        )
    if not isinstance(posted.event, Mapping):
        return shape_error(str(at), "a JSON object", kind_of(posted.event))
    event, attributes = FiledEvent(posted.event, at), posted.attributes or {}
    named = event.pop("conversation_id", None)
    named = (
        attributes.get("subject")
        or attributes.get("partitionkey")
        or (str(named) if type(named) is int else named)
    )
    if named is not None and not _is_name(named):
        expected = f'"conversation_id" as a text of 1 to {MAX_NAME_CHARS} printable characters'
        return shape_error(str(at), expected, kind_of(named))
    try:
        # The record of a conversation has no type either; what looks like one and is none is not an
        # event.
        if event.keys().isdisjoint(_OF_EVENTS) and "type" not in attributes:
            raise refused_type(event)
        stream = stream_in(event, attributes)
    except RefusedRecordError as error:
        seen = Redactor().beginning(error.seen, 2 * MAX_SHOWN_CHARS)
        return _refused(
            error.what, at, error.expected.removeprefix("expected "), seen, WHICH_EVENTS
        )
    identity = (attributes["source"], attributes["id"]) if "id" in attributes else None
    return RecordedEvent(
        named, None if is_control_event(event) else stream, event, identity, form is Form.SPANS
    )


def _is_name(named: object) -> bool:
    return (
        isinstance(named, str) and named.isprintable() and 0 < len(named.encode()) <= MAX_NAME_CHARS
    )


def _refused(what: str, at: At, expected: str, seen: str, remedy: str) -> RecordingError:
    return RecordingError(
        what=what,
        where=str(at),
        expected=expected,
        seen=seen,
        remedy=remedy,
        consequence="Nothing of this file is read.",
    )
