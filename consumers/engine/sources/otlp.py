"""Spans as OTLP/HTTP carries them, in protobuf or JSON. Pure."""

import re
import struct
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from schemas.events.audit import TRACEPARENT

PROTOBUF: Final = "application/x-protobuf"
MAX_FIELDS: Final = 10_000
"""Most fields of a span, a scope or a resource in protobuf, and most attributes of one in JSON. To
read them takes 20 ms.
"""
_NS_IN_MS: Final = 1_000_000
_TRACEPARENT: Final = re.compile(TRACEPARENT)
_FAILED: Final = (2, "STATUS_CODE_ERROR")
_Field = tuple[int, Any]


class UnreadableSpansError(ValueError):
    """The bytes are no export request of traces."""


class Producer(NamedTuple):
    """The process that made spans, by what its resource says.

    Attributes:
        service: `service.name`; empty without one.
        language: `telemetry.sdk.language`, such as `python` or `nodejs`; empty without one.
    """

    service: str = ""
    language: str = ""


class Span(NamedTuple):
    """One span.

    Attributes:
        trace_id: In hexadecimal digits.
        span_id: In hexadecimal digits.
        name: What it is about, in the words of its framework.
        start_ms: When it began, in epoch ms.
        end_ms: When it was over, in epoch ms.
        attributes: Its attributes, as Python has them.
        has_failed: Whether its status is an error.
        producer: The process that made it.
        parent_id: Of the span that it is part of; empty without one.
    """

    trace_id: str
    span_id: str
    name: str
    start_ms: float
    end_ms: float
    attributes: Mapping[str, Any]
    has_failed: bool
    producer: Producer
    parent_id: str = ""

    def first(self, *names: str) -> Any:
        """The first of these attributes that the span has."""
        return next(
            (self.attributes[name] for name in names if self.attributes.get(name) is not None), None
        )

    def as_parent(self, span_id: str) -> dict[str, str]:
        """A span of its trace as the field `traceparent`; empty if the ids have not the form of
        W3C's.
        """
        traceparent = f"00-{self.trace_id}-{span_id}-01"
        return {"traceparent": traceparent} if _TRACEPARENT.fullmatch(traceparent) else {}


# The two encodings of an export request. A span that cannot be read costs itself alone, and what is
# wrong in it is said.


def spans_in_json(request: Any, most: int) -> "list[Reader]":
    """The spans of an export request that is JSON.

    Args:
        request: The request.
        most: Most spans.

    Raises:
        UnreadableSpansError: It is none, or has more of them.
    """
    readers: list[Reader] = []
    try:
        resources = iter(request["resourceSpans"])
    except _UNREADABLE as error:
        raise UnreadableSpansError(f"expected the list `resourceSpans` ({error})") from None
    for resource in resources:
        try:
            producer = producer_in_json(resource.get("resource"))
            spans = [
                span for scope in resource.get("scopeSpans", ()) for span in scope.get("spans", ())
            ]
        except _UNREADABLE as error:
            readers.append(unreadable(UnreadableSpansError(f"this is no resource ({error})")))
            continue
        readers += [partial(span_in_json, span, producer) for span in spans]
    if len(readers) > most:
        raise UnreadableSpansError(f"expected at most {most} spans in a request, saw more")
    return readers


def producer_in_json(resource: Any) -> Producer:
    """What a resource says of its process; nothing if it has attributes that cannot be read."""
    try:
        return _producer(_in_json(resource["attributes"]))
    except _UNREADABLE:
        return Producer()


def _producer(attributes: Mapping[str, Any]) -> Producer:
    found = (attributes.get(name) for name in ("service.name", "telemetry.sdk.language"))
    return Producer(*(each if isinstance(each, str) else "" for each in found))


def span_in_json(span: Any, producer: Producer) -> Span:
    """One span of JSON.

    Raises:
        UnreadableSpansError: It is none, or one of its attributes cannot be read.
    """
    try:
        return Span(
            span["traceId"].lower(),
            span["spanId"].lower(),
            str(span["name"]),
            int(span["startTimeUnixNano"]) / _NS_IN_MS,
            int(span["endTimeUnixNano"]) / _NS_IN_MS,
            _in_json(span.get("attributes", ())),
            span.get("status", {}).get("code") in _FAILED,
            producer,
            str(span.get("parentSpanId") or "").lower(),
        )
    except _UNREADABLE as error:
        raise UnreadableSpansError(
            f"this is no span in JSON ({type(error).__name__}: {error})"
        ) from None


_UNREADABLE: Final = (ValueError, LookupError, TypeError, AttributeError, OverflowError)


def _in_json(attributes: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in attributes[:MAX_FIELDS]:
        kind, value = next(iter(each["value"].items()), ("", None))
        found[each["key"]] = int(str(value)) if kind == "intValue" else value
    return found


Reader = Callable[[], Span]
"""Reads one span that was found; raises `UnreadableSpansError` if it cannot be read."""


def unreadable(error: ValueError) -> Reader:
    """In the place of spans that cannot be told apart: says why."""
    return partial(_refuse, str(error))


def _refuse(text: str) -> Span:
    raise UnreadableSpansError(text)


def spans_in_protobuf(body: bytes, most: int) -> Generator[None, None, list[Reader]]:
    """The spans of an export request in protobuf. They are read field by field: OpenTelemetry's own
    classes make an object of each part first, and 4 MB of empty parts took 16 s and 300 MB.

    Args:
        body: The request.
        most: Most spans, and most scopes.

    Yields:
        None between parts of the request, so that others may have their turn.

    Raises:
        UnreadableSpansError: It is none, or has more of them.
    """
    readers, scopes = list[Reader](), 0
    try:
        resources = list(_messages(_fields(memoryview(body), _room()), 1))
    except ValueError as error:
        raise UnreadableSpansError(f"it is no protobuf ({error})") from None
    for resource in resources:
        yield None
        try:
            fields = list(_fields(resource, _room()))
        except ValueError as error:
            readers.append(unreadable(error))
            continue
        producer = _producer_in_protobuf(fields)
        for scope in _messages(fields, 2):
            yield None
            if (scopes := scopes + 1) > most:
                raise UnreadableSpansError(f"expected at most {most} scopes in a request, saw more")
            try:
                for span in _messages(_fields(scope, _room()), 2):
                    readers.append(partial(span_in_protobuf, span, producer))
            except ValueError as error:
                readers.append(unreadable(error))
            if len(readers) > most:
                raise UnreadableSpansError(f"expected at most {most} spans in a request, saw more")
    return readers


def _producer_in_protobuf(resource: Iterable[_Field]) -> Producer:
    room = _room()
    try:
        described = next(_messages(resource, 1), memoryview(b""))
        return _producer(_in_protobuf(_messages(_fields(described, room), 1), room))
    except _UNREADABLE_MESSAGE:
        return Producer()


def span_in_protobuf(message: memoryview, producer: Producer) -> Span:
    """One span of protobuf.

    Raises:
        UnreadableSpansError: It is none, or one of its attributes cannot be read.
    """
    room = _room()
    try:
        fields = list(_fields(message, room))
        last = dict(fields)
        status = dict(_fields(last.get(15, b""), room))
        return Span(
            last.get(1, b"").hex(),
            last.get(2, b"").hex(),
            str(last.get(5, b""), "utf-8"),
            int.from_bytes(last.get(7, b""), "little") / _NS_IN_MS,
            int.from_bytes(last.get(8, b""), "little") / _NS_IN_MS,
            _in_protobuf(_messages(fields, 9), room),
            status.get(3) in _FAILED,
            producer,
            last.get(4, b"").hex(),
        )
    except _UNREADABLE_MESSAGE as error:
        raise UnreadableSpansError(f"this is no span in protobuf ({error})") from None


_UNREADABLE_MESSAGE: Final = (
    ValueError,
    TypeError,
    AttributeError,
    IndexError,
    OverflowError,
    struct.error,
)


def _in_protobuf(attributes: Iterable[memoryview], room: Iterator[int]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for attribute in attributes:
        named = dict(_fields(attribute, room))
        for kind, value in _fields(named.get(2, b""), room):
            if kind in _SIMPLE:
                found[str(named.get(1, b""), "utf-8")] = _SIMPLE[kind](value)
    return found


_SIMPLE: Final[Mapping[int, Callable[[Any], Any]]] = {
    1: lambda value: str(value, "utf-8"),
    2: bool,
    3: lambda value: value - 2**64 if value >= 2**63 else value,
    4: lambda value: struct.unpack("<d", value)[0],
}
"""The values of an attribute that are no lists or maps, by the number of the field."""


def _room() -> Iterator[int]:
    return iter(range(MAX_FIELDS))


def _fields(message: memoryview | bytes, room: Iterator[int]) -> Iterator[_Field]:
    """The fields of a message of protobuf by their numbers: integers, and the bytes of all that is
    no varint. Each takes a place of the room, which the parts of a message share.
    """
    at = 0
    while at < len(message):
        if next(room, None) is None:
            raise ValueError(f"expected at most {MAX_FIELDS} fields in a part of it, saw more")
        tag, at = _varint(message, at)
        match tag & 7:
            case 0:
                value, at = _varint(message, at)
                yield tag >> 3, value
                continue
            case 1:
                size = 8
            case 2:
                size, at = _varint(message, at)
            case 5:
                size = 4
            case kind:
                raise ValueError(f"a field of the kind {kind}")
        if at + size > len(message):
            raise ValueError("a field goes beyond its end")
        yield tag >> 3, message[at : at + size]
        at += size


def _varint(message: memoryview | bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    for place in range(at, min(at + 10, len(message))):
        byte = message[place]
        value |= (byte & 127) << shift
        if byte < 128:
            return value & (2**64 - 1), place + 1
        shift += 7
    raise ValueError("a number goes beyond its end, or has more than 10 bytes")


def _messages(fields: Iterable[_Field], number: int) -> Iterator[memoryview]:
    return (value for found, value in fields if found == number and isinstance(value, memoryview))
