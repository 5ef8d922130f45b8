"""Bytes become events: plain JSON, JSON lines, and CloudEvents 1.0 in all three modes of HTTP. The
same for HTTP and files. Pure.
"""

import base64
import binascii
import re
from collections.abc import Callable, Generator, Iterator, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple
from urllib.parse import unquote_to_bytes

from consumers.engine.sources.frameworks import SIGNS, framework_of, translated
from schemas.events.codec import refused_type
from schemas.events.simulator import STREAMS, Stream, has_type, stream_of, stream_of_type
from streamer.sources.http.json_parts import (
    MAX_LEAN_PARTS,
    JsonText,
    OverfullError,
    TooManyError,
    UnsplitError,
    element_of,
)

STRUCTURED: Final = "application/cloudevents+json"
BATCH: Final = "application/cloudevents-batch+json"
LINES: Final = frozenset({"application/x-ndjson", "application/jsonl", "application/x-jsonlines"})
REQUIRED: Final = ("specversion", "id", "source", "type")
MAX_EVENTS: Final = 10_000
"""Most events of one request."""
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
) -> Iterator[Posted | None]:
    """Reads the events of a request, one by one, after they were told apart. One that is no JSON is
    refused alone.

    Args:
        body: The body.
        content_type: The value of the header, with or without parameters.
        headers: All headers by their names in small letters.
        most_events: Most events that it may have.

    Yields:
        The events; None between steps of a long search, so that others may have their turn.

    Raises:
        UnreadableBodyError: No events can be told apart in it, or too many. That is known before
            the first event is yielded.
    """
    kind = content_type.partition(";")[0].strip().lower()
    is_array = body.lstrip()[:1] == b"["
    if kind == STRUCTURED:
        yield from _one(body, structured)
    elif kind == BATCH:
        if not is_array:
            raise UnreadableBodyError(f"{BATCH}: expected a JSON array of CloudEvents")
        yield from _elements(body, most_events, structured)
    elif "ce-specversion" in headers or "ce-id" in headers:
        attributes = {
            name[3:]: _decoded(value) for name, value in headers.items() if name.startswith("ce-")
        }
        yield from _one(
            body, lambda place, event: Posted(place, event, attributes, _lacking(attributes))
        )
    elif is_array and kind not in LINES:
        yield from _elements(body, most_events, Posted)
    elif kind in LINES or not (yield from _is_one_value(body)):
        yield from _lines(body, most_events)
    else:
        yield from _one(body, Posted)


def event_in(text: bytes) -> Generator[None, None, Any]:
    """The value of an event. A message of a framework that is too large is read without what no
    rule reads of it: some repeat the whole call in each.

    Yields:
        None between steps of a long search.

    Raises:
        OverfullError: It is too long, or has too many digits or parts.
        ValueError: It is not JSON.
    """
    try:
        return element_of(text)
    except OverfullError:
        lean = yield from _lean(text)
        if lean is None:
            raise
        return lean


def _lean(text: bytes) -> Generator[None, None, Any]:
    """A message of a framework without what no rule reads of it; None for other JSON.

    Raises:
        OverfullError: It has too much that is read.
    """
    whole = JsonText(text)
    try:
        signs = element_of((yield from whole.only(whole.place, SIGNS)))
        framework = framework_of(signs) if isinstance(signs, Mapping) else None
        kept = (
            None
            if framework is None
            else (yield from whole.only(whole.place, framework.needed(signs)))
        )
    except OverfullError:
        raise
    except ValueError:
        return None
    return None if kept is None else element_of(kept, MAX_LEAN_PARTS)


def _one(body: bytes, posted: Callable[[int, Any], Posted]) -> Iterator[Posted | None]:
    """The one event of a body. An object is one also if something in it is wrong."""
    try:
        yield posted(1, (yield from event_in(body)))
    except ValueError as error:
        if isinstance(error, OverfullError) or (
            body.lstrip()[:1] == b"{" and body.rstrip()[-1:] == b"}"
        ):
            yield _unread(1, error)
            return
        raise UnreadableBodyError(
            f"the body is not JSON ({error}); expected one JSON object, an array of them, or one "
            "object a line"
        ) from None


def _lines(body: bytes, most: int) -> Iterator[Posted | None]:
    """The events of JSON lines; blank lines have a number and no event."""
    found = list(islice(_found_lines(body), most + 1))
    if len(found) > most:
        raise UnreadableBodyError(f"expected at most {most} events in a request, saw more")
    number, at = 1, 0
    for line in found:
        number, at = number + body.count(b"\n", at, line.start(1)), line.start(1)
        yield (yield from _read(number, line.group(1), Posted))


def _found_lines(body: bytes) -> Iterator[re.Match[bytes]]:
    at = 0
    while (line := _LINE.match(body, at)) is not None:
        yield line
        at = line.end()


def _elements(
    body: bytes, most: int, posted: Callable[[int, Any], Posted]
) -> Iterator[Posted | None]:
    """The events of a JSON array."""
    text = JsonText(body)
    try:
        places = yield from text.elements(text.place, b"[]", most)
    except TooManyError:
        raise UnreadableBodyError(
            f"expected at most {most} events in a request, saw more"
        ) from None
    except UnsplitError as error:
        raise UnreadableBodyError(f"the body is not JSON: {error}") from None
    for number, place in enumerate(places, 1):
        yield (yield from _read(number, text.at(place), posted))


def _is_one_value(body: bytes) -> Generator[None, None, bool]:
    """Whether a body that may be JSON lines is one value; an object may have line breaks inside."""
    if b"\n" not in body.strip():
        return True
    text = JsonText(body)
    try:
        place = yield from text.whole()
    except UnsplitError:
        return False
    if _LINE.match(body, place.end) is not None:
        return False
    try:
        element_of(text.at(place))
    except OverfullError:
        return True
    except ValueError:
        return False
    return True


def _read(
    place: int, text: bytes, posted: Callable[[int, Any], Posted]
) -> Generator[None, None, Posted]:
    try:
        return posted(place, (yield from event_in(text)))
    except ValueError as error:
        return _unread(place, error)


def _unread(place: int, error: ValueError) -> Posted:
    return Posted(
        place,
        None,
        {},
        str(error) if isinstance(error, OverfullError) else f"expected JSON: {error}",
    )


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
            data = element_of(base64.b64decode(document["data_base64"], validate=True))
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
