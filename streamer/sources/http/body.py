"""Bytes become events: plain JSON, JSON lines, and CloudEvents 1.0 in all three modes of HTTP. The
same for HTTP and files. Pure.
"""

import base64
import binascii
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple
from urllib.parse import unquote_to_bytes

from pydantic_core import from_json

from consumers.engine.admission import parts_of
from consumers.engine.sources.frameworks import translated
from schemas.events.codec import refused_type
from schemas.events.simulator import STREAMS, Stream, has_type, stream_of, stream_of_type

STRUCTURED: Final = "application/cloudevents+json"
BATCH: Final = "application/cloudevents-batch+json"
LINES: Final = frozenset({"application/x-ndjson", "application/jsonl", "application/x-jsonlines"})
REQUIRED: Final = ("specversion", "id", "source", "type")
MAX_EVENTS: Final = 10_000
"""Most events of one request."""
MAX_PARTS: Final = 400_000
"""Most commas and opening brackets of JSON that is read at once: a full body of events has 200,000,
the record of three hours 400,000. To read them takes 50 ms, in which no other task has a
turn; 4 MB of empty lists would take seconds and 300 MB.
"""
ESCAPES_OF_A_PART: Final = 10
"""Backslashes that take as long to read as a comma: 8 MB of nothing else would take 50 ms."""
WHICH_EVENTS: Final = (
    "docs/sources/other.md says which events any framework has to send, and `callgauge schema` has "
    "all."
)
"""What to do where the type of an event is not known."""
LEFT_OUT: Final = object()
"""In the place of an event: something of another framework that no rule reads."""
_QUOTED: Final = re.compile(r'"(.*)"', re.DOTALL)
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)
_LINE: Final = re.compile(rb"\s*+(\S[^\n]*+)")


def value_of(text: bytes, most_parts: int = MAX_PARTS) -> Any:
    """The value that JSON has, if it has at most so many commas and brackets, with a tenth of its
    backslashes.

    Raises:
        ValueError: It is not JSON, or has too many parts.
    """
    parts, escapes = parts_of(text), text.count(b"\\")
    if parts + escapes // ESCAPES_OF_A_PART > most_parts:
        raise ValueError(
            f"expected at most {most_parts} commas and brackets, with a tenth of the backslashes; "
            f"saw {parts} and {escapes} backslashes"
        )
    return from_json(text, allow_inf_nan=False)


class UnreadableBodyError(ValueError):
    """The body as a whole cannot be read, so no event of it is accepted."""


class Posted(NamedTuple):
    """One event of a body.

    Attributes:
        place: Its line, or its place in the array, from 1.
        event: The event itself, of any JSON type.
        attributes: Its CloudEvents attributes; None for a plain event.
        fault: The reason why it cannot be read; None if it can.
    """

    place: int
    event: Any
    attributes: Mapping[str, str] | None = None
    fault: str | None = None


def posted_events(
    body: bytes, content_type: str, headers: Mapping[str, str], most_events: int = MAX_EVENTS
) -> Iterator[Posted]:
    """Reads the events of a request, one by one. A line that is no JSON is refused alone; an array
    is JSON as a whole.

    Args:
        body: The body.
        content_type: The value of the header, with or without parameters.
        headers: All headers by their names in small letters.
        most_events: Most events that it may have.

    Yields:
        The events.

    Raises:
        UnreadableBodyError: No events can be told apart in it, or too many. That is known before
            the first event is yielded.
    """
    kind = content_type.partition(";")[0].strip().lower()
    is_array = body.lstrip()[:1] == b"["
    if kind == STRUCTURED:
        yield _one(body, structured)
    elif kind == BATCH:
        if not is_array:
            raise UnreadableBodyError(f"{BATCH}: expected a JSON array of CloudEvents")
        yield from _elements(body, most_events, structured)
    elif "ce-specversion" in headers or "ce-id" in headers:
        attributes = {
            name[3:]: _decoded(value) for name, value in headers.items() if name.startswith("ce-")
        }
        yield _one(body, partial(Posted, attributes=attributes, fault=_lacking(attributes)))
    elif kind in LINES:
        yield from _lines(body, most_events)
    elif is_array:
        yield from _elements(body, most_events, Posted)
    elif _has_lines(body):
        yield from _lines(body, most_events)
    else:
        yield _one(body, Posted)


def _has_lines(body: bytes) -> bool:
    """Whether each line of a body is a value: an object may have line breaks inside."""
    first = _LINE.match(body)
    if first is None or _LINE.match(body, first.end()) is None:
        return False
    line = first[1].rstrip()
    return line[:1] == b"{" and line[-1:] == b"}"


def _one(body: bytes, posted: Callable[[int, Any], Posted]) -> Posted:
    """The one event of a body. An object is one also if something in it is wrong."""
    try:
        return posted(1, value_of(body))
    except ValueError as error:
        text = body.strip()
        if (text[:1], text[-1:]) == (b"{", b"}"):
            return _unread(1, error)
        raise UnreadableBodyError(
            f"the body cannot be read: {error}; expected one JSON object, an array of them, or one "
            "object a line"
        ) from None


def _lines(body: bytes, most: int) -> Iterator[Posted]:
    """The events of JSON lines; blank lines have a number and no event."""
    found = list(islice(_found_lines(body), most + 1))
    if len(found) > most:
        raise UnreadableBodyError(f"expected at most {most} events in a request, saw more")
    number, at = 1, 0
    for line in found:
        number, at = number + body.count(b"\n", at, line.start(1)), line.start(1)
        yield _read(number, line.group(1), Posted)


def _found_lines(body: bytes) -> Iterator[re.Match[bytes]]:
    at = 0
    while (line := _LINE.match(body, at)) is not None:
        yield line
        at = line.end()


def _elements(body: bytes, most: int, posted: Callable[[int, Any], Posted]) -> Iterator[Posted]:
    """The events of a JSON array."""
    try:
        values = value_of(body)
    except ValueError as error:
        raise UnreadableBodyError(
            f"the array cannot be read: {error}; of JSON lines, one that is broken is refused alone"
        ) from None
    if len(values) > most:
        raise UnreadableBodyError(f"expected at most {most} events in a request, saw {len(values)}")
    for place, value in enumerate(values, 1):
        yield posted(place, value)


def _read(place: int, text: bytes, posted: Callable[[int, Any], Posted]) -> Posted:
    try:
        return posted(place, value_of(text))
    except ValueError as error:
        return _unread(place, error)


def _unread(place: int, error: ValueError) -> Posted:
    return Posted(place, None, {}, f"expected JSON: {error}")


def structured(place: int, document: Any) -> Posted:
    """A CloudEvent in structured mode: one JSON object with the attributes, and the event in
    `data`.
    """
    if not isinstance(document, Mapping):
        return Posted(place, None, {}, "expected a CloudEvent as a JSON object")
    attributes = {
        name: value if isinstance(value, str) else str(value)
        for name, value in document.items()
        if name not in ("data", "data_base64")
        and isinstance(value, str | int)
        and not isinstance(value, bool)
    }
    data = document.get("data")
    fault = _lacking(attributes)
    if "data_base64" in document and fault is None:
        try:
            data = value_of(base64.b64decode(document["data_base64"], validate=True))
        except (ValueError, TypeError, binascii.Error):
            fault = "data_base64 is not JSON in base64"
    return Posted(place, data, attributes, fault)


def _lacking(attributes: Mapping[str, str]) -> str | None:
    missing = [name for name in REQUIRED if not attributes.get(name)]
    if missing:
        return f"the CloudEvent lacks {', '.join(missing)}"
    if broken := [
        name
        for name in (*REQUIRED, "subject", "partitionkey")
        if not _is_whole(attributes.get(name, ""))
    ]:
        return f"{', '.join(broken)} of the CloudEvent is no text in UTF-8"
    return None if attributes["specversion"] == "1.0" else 'specversion: expected "1.0"'


def _is_whole(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _decoded(value: str) -> str:
    """A header value without its percent encoding, and without the quotes that a sender may put
    around it. Bytes that are no UTF-8 are halves of surrogate pairs in it.
    """
    if quoted := _QUOTED.fullmatch(value):
        value = _ESCAPED.sub(r"\1", quoted[1])
    return unquote_to_bytes(value.encode("utf-8", "surrogateescape")).decode(
        "utf-8", "surrogateescape"
    )


# What an event says, and of which stream it is.


def in_our_words(posted: Posted, now_ms: int) -> Iterator[Posted]:
    """The event, or what a message of another framework says in our words: nothing if no rule reads
    it.

    Args:
        posted: The event; one of a CloudEvent is in our words.
        now_ms: The time of a message that has none, in epoch ms.
    """
    if posted.event is LEFT_OUT:
        return
    is_plain = (
        posted.fault is None and posted.attributes is None and isinstance(posted.event, Mapping)
    )
    found = translated(posted.event, now_ms) if is_plain else None
    if found is None:
        yield posted
        return
    for event in found.events:
        yield Posted(posted.place, event, found.attributes(event))


def stream_in(event: dict[str, Any], attributes: Mapping[str, str]) -> Stream:
    """The stream that the event names, which is taken out of it, or its CloudEvents type, or its
    own type. Start and end of a call go to the topic of what any framework sends: in one topic the
    labels come before the events that count under them.

    Raises:
        RefusedRecordError: Nothing of it is a stream, or the event has no type.
    """
    named = event.pop("stream", None)
    if named is not None:
        stream = next((stream for stream in STREAMS if stream == named), None)
    elif event.get("type") in ("call_started", "call_ended"):
        stream = "pipecat"
    else:
        stream = stream_of_type(attributes.get("type", "")) or stream_of(event)
    if stream is None or not has_type(event, stream):
        raise refused_type(event, named)
    return stream
