"""Spans as OTLP/HTTP carries them, in protobuf or JSON. Pure."""

import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from schemas.events.audit import TRACEPARENT

PROTOBUF: Final = "application/x-protobuf"
MAX_FIELDS: Final = 10_000
"""Most fields of a span, a scope or a resource in protobuf, and most attributes of one in JSON. To read them takes 20 ms."""
_NS_IN_MS: Final = 1_000_000
_TRACEPARENT: Final = re.compile(TRACEPARENT)
_FAILED: Final = (2, "STATUS_CODE_ERROR")


class UnreadableSpansError(ValueError):
    """The bytes are no export request of traces."""


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
        service: `service.name` of its process; empty without one.
        parent_id: Of the span that it is part of; empty without one.
    """

    trace_id: str
    span_id: str
    name: str
    start_ms: float
    end_ms: float
    attributes: Mapping[str, Any]
    has_failed: bool
    service: str
    parent_id: str = ""

    def first(self, *names: str) -> Any:
        """The first of these attributes that the span has."""
        return next((self.attributes[name] for name in names if self.attributes.get(name) is not None), None)

    def as_parent(self, span_id: str) -> dict[str, str]:
        """A span of its trace as the field `traceparent`; empty if the ids have not the form of W3C's."""
        traceparent = f"00-{self.trace_id}-{span_id}-01"
        return {"traceparent": traceparent} if _TRACEPARENT.fullmatch(traceparent) else {}


# The two encodings of an export request. Both give None between the parts of a request, so that others may have their turn. Protobuf is
# read field by field: OpenTelemetry's own classes make an object of each part first, and 4 MB of empty parts took 16 s and 300 MB.


def spans_in_json(request: Any) -> Iterator[Span | None]:
    """The spans of an export request that is JSON.

    Raises:
        UnreadableSpansError: It is none.
    """
    try:
        for resource in request["resourceSpans"]:
            yield None
            service = _in_json(resource.get("resource", {}).get("attributes", ())).get("service.name")
            for scope in resource.get("scopeSpans", ()):
                yield None
                for span in scope.get("spans", ()):
                    yield Span(
                        span["traceId"].lower(),
                        span["spanId"].lower(),
                        str(span["name"]),
                        int(span["startTimeUnixNano"]) / _NS_IN_MS,
                        int(span["endTimeUnixNano"]) / _NS_IN_MS,
                        _in_json(span.get("attributes", ())),
                        span.get("status", {}).get("code") in _FAILED,
                        service if isinstance(service, str) else "",
                        str(span.get("parentSpanId") or "").lower(),
                    )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise UnreadableSpansError(
            f"this is no export request of traces in JSON ({type(error).__name__}: {error})"
        ) from None


def _in_json(attributes: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in attributes[:MAX_FIELDS]:
        kind, value = next(iter(each["value"].items()), ("", None))
        found[each["key"]] = int(str(value)) if kind == "intValue" else value
    return found


def spans_in_protobuf(body: bytes) -> Iterator[Span | None]:
    """The spans of an export request in protobuf.

    Raises:
        UnreadableSpansError: It is none.
    """
    try:
        for resource in _messages(_fields(memoryview(body), _room()), 1):
            yield None
            room = _room()
            fields = list(_fields(resource, room))
            described = dict(fields).get(1, b"")
            service = _in_protobuf(_messages(_fields(described, room), 1), room)
            for scope in _messages(fields, 2):
                yield None
                for span in _messages(_fields(scope, _room()), 2):
                    yield _span(span, service.get("service.name"))
    except (ValueError, TypeError, AttributeError, IndexError, struct.error) as error:
        raise UnreadableSpansError(f"the body is no export request of traces in protobuf ({error})") from None


def _span(message: memoryview, service: object) -> Span:
    room = _room()
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
        service if isinstance(service, str) else "",
        last.get(4, b"").hex(),
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

_Field = tuple[int, Any]


def _room() -> Iterator[int]:
    return iter(range(MAX_FIELDS))


def _fields(message: memoryview | bytes, room: Iterator[int]) -> Iterator[_Field]:
    """The fields of a message of protobuf by their numbers: integers, and the bytes of all that is no varint. Each takes a place of
    the room, which the parts of a message share.
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
    while True:
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value & (2**64 - 1), at
        if shift > 63:
            raise ValueError("a number of more than 10 bytes")


def _messages(fields: Iterable[_Field], number: int) -> Iterator[memoryview]:
    return (value for found, value in fields if found == number)
