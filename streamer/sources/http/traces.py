"""`POST /v1/traces`: spans of a voice agent by OTLP/HTTP, as LiveKit's agents and pipecat's bots name theirs, and `gen_ai.*`.

A span comes when it is over, some seconds after it began. So a call that is told by spans has no dead air while it runs, and all its
other values. The conversation id is `trace-` and the id of the trace: no other id is in every span. Pure.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from schemas.evaluation_event import TRACE_CALL
from schemas.units import MS_PER_SECOND
from streamer.sources.http.frameworks import Event, message_events, number_in, parsed, speech_event, tool_event
from streamer.sources.http.posted import LEFT_OUT, MAX_EVENTS, Posted, UnreadableBodyError
from streamer.sources.http.receiving import value_of

PROTOBUF: Final = "application/x-protobuf"
CE_SOURCE: Final = "otlp"
MAX_FIELDS: Final = MAX_EVENTS
"""Most fields of a span, a scope or a resource in protobuf, and most attributes of one in JSON. To read them takes 20 ms."""
_NS_IN_MS: Final = 1_000_000
_FAILED: Final = (2, "STATUS_CODE_ERROR")


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
    """

    trace_id: str
    span_id: str
    name: str
    start_ms: float
    end_ms: float
    attributes: Mapping[str, Any]
    has_failed: bool
    service: str

    def first(self, *names: str) -> Any:
        """The first of these attributes that the span has."""
        return next((self.attributes[name] for name in names if self.attributes.get(name) is not None), None)


def posted_spans(body: bytes, content_type: str, _headers: Mapping[str, str]) -> Iterator[Posted | None]:
    """Reads the spans of a request as events of their calls.

    Args:
        body: The body of an export request, in protobuf or JSON.
        content_type: The value of the header.

    Yields:
        The events of each span, with ids that are the same when it is sent again; `LEFT_OUT` for a span that no rule reads; None
        between parts of the request, so that others may have their turn.

    Raises:
        UnreadableBodyError: It is no export request.
    """
    begun: set[str] = set()
    reads = _from_protobuf if content_type.partition(";")[0].strip().lower() == PROTOBUF else _from_json
    place = 0
    for span in reads(body):
        if span is None:
            yield None
            continue
        if (place := place + 1) > MAX_EVENTS:
            raise UnreadableBodyError(f"expected at most {MAX_EVENTS} spans in a request, saw more")
        events = list(_events_of(span))
        if events and span.trace_id not in begun:
            begun.add(span.trace_id)
            yield _posted(place, span, "call_started", _started(span))
        for number, event in enumerate(events):
            yield _posted(place, span, f"{span.span_id}/{number}", event)
        if not events:
            yield Posted(place, LEFT_OUT)


def _posted(place: int, span: Span, event_id: str, event: Event) -> Posted:
    call = TRACE_CALL.format(span.trace_id)
    return Posted(place, event, {"id": f"{call}/{event_id}", "source": CE_SOURCE, "subject": call})


# What each span says of its call.


def _started(span: Span) -> Event:
    agent = span.first("lk.agent_name", "gen_ai.agent.name") or span.service
    named = {"agent": agent} if isinstance(agent, str) and agent else {}
    return {"type": "call_started", "timestamp": int(span.start_ms), "is_told_later": True, **named}


def _events_of(span: Span) -> Iterator[Event]:
    rule = _RULES.get(span.name)
    if rule is not None:
        yield from rule(span)
    elif span.first("gen_ai.operation.name") == "execute_tool":
        yield from _used_tool(span)
    if span.has_failed and (service := _SERVICES.get(span.name)) is not None:
        yield {"type": "error", "timestamp": int(span.end_ms), "data": {"processor": f"{service}Service#0"}}


def _user_spoke(span: Span) -> Iterator[Event]:
    yield speech_event("user_speech_started", span.start_ms)
    yield speech_event("user_speech_stopped", span.end_ms)


def _agent_spoke(span: Span) -> Iterator[Event]:
    yield speech_event("bot_speech_started", span.start_ms)
    yield speech_event("bot_speech_stopped", span.end_ms)


def _user_said(span: Span) -> Iterator[Event]:
    yield from message_events("user", span.first("lk.pii.user_transcript", "lk.user_transcript"), span.end_ms)


def _agent_said(span: Span) -> Iterator[Event]:
    yield from message_events("assistant", span.first("lk.pii.response.text", "lk.response.text"), span.end_ms)
    yield from _first_byte(span, "lk.response.ttft")


def _used_tool(span: Span) -> Iterator[Event]:
    call_id = span.first("gen_ai.tool.call.id", "lk.function_tool.id") or span.span_id
    name = span.first("gen_ai.tool.name", "lk.function_tool.name")
    arguments = parsed(
        span.first("gen_ai.tool.call.arguments", "lk.pii.function_tool.arguments", "lk.function_tool.arguments")
    )
    result = parsed(span.first("gen_ai.tool.call.result", "lk.pii.function_tool.output", "lk.function_tool.output"))
    has_failed = span.has_failed or span.first("lk.function_tool.is_error") is True
    yield tool_event("in_progress", span.start_ms, call_id, function_name=name, arguments=arguments)
    yield tool_event("failed" if has_failed else "completed", span.end_ms, call_id, function_name=name, result=result)


def _call(span: Span) -> Iterator[Event]:
    yield {"type": "call_started", "timestamp": int(span.start_ms)}  # only now is the true start known
    yield from _ended(span)


def _ended(span: Span) -> Iterator[Event]:
    reason = span.first("lk.close_reason")
    ended = {"type": "call_ended", "timestamp": int(span.end_ms)}
    yield {**ended, "reason": reason} if isinstance(reason, str) else ended


def _heard(span: Span) -> Iterator[Event]:
    if span.first("is_final") is not False:
        yield from message_events("user", span.first("transcript"), span.end_ms)
    yield from _first_byte(span, "metrics.ttfb")


def _synthesised(span: Span) -> Iterator[Event]:
    text = span.first("text")
    if isinstance(text, str) and text:
        yield {"type": "tts_text", "timestamp": int(span.end_ms), "data": {"frame": text}}
    yield from _first_byte(span, "metrics.ttfb")


def _first_byte(span: Span, *names: str) -> Iterator[Event]:
    seconds, service = number_in(span.first(*names)), _SERVICES.get(span.name)
    if service is not None and seconds is not None:
        known = {"processor": f"{service}Service#0", "value": seconds}
        yield {"type": "TTFBMetricsData", "timestamp": int(span.start_ms + seconds * MS_PER_SECOND), **known}


def _turn_of_pipecat(span: Span) -> Iterator[Event]:
    seconds = span.first("turn.user_bot_latency_seconds")
    if seconds is not None:
        yield {"type": "user_bot_latency", "timestamp": int(span.end_ms), "data": {"latency_seconds": seconds}}


_Rule = Callable[[Span], Iterator[Event]]
_SERVICES: Final[Mapping[str, str]] = {
    "stt": "STT", "llm": "LLM", "tts": "TTS", "llm_node": "LLM", "llm_request": "LLM", "tts_node": "TTS", "tts_request": "TTS"
}  # fmt: skip
_RULES: Final[Mapping[str, _Rule]] = {
    # LiveKit's
    "user_speaking": _user_spoke,
    "agent_speaking": _agent_spoke,
    "user_turn": _user_said,
    "llm_node": _agent_said,
    "tts_node": lambda span: _first_byte(span, "lk.response.ttfb"),
    "tts_request": lambda span: _first_byte(span, "lk.response.ttfb"),
    "function_tool": _used_tool,
    "session_close": _ended,
    "agent_session": _call,
    # pipecat's
    "conversation": _call,
    "turn": _turn_of_pipecat,
    "stt": _heard,
    "llm": lambda span: _first_byte(span, "metrics.ttfb"),
    "tts": _synthesised,
}


# The two encodings of an export request. Both give None between the parts of a request, so that others may have their turn. Protobuf is
# read field by field: OpenTelemetry's own classes make an object of each part first, and 4 MB of empty parts took 16 s and 300 MB.


def _from_json(body: bytes) -> Iterator[Span | None]:
    try:
        for resource in value_of(body)["resourceSpans"]:
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
                    )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise UnreadableBodyError(
            f"the body is no export request of traces in JSON ({type(error).__name__}: {error})"
        ) from None


def _in_json(attributes: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in attributes[:MAX_FIELDS]:
        kind, value = next(iter(each["value"].items()), ("", None))
        found[each["key"]] = int(str(value)) if kind == "intValue" else value
    return found


def _from_protobuf(body: bytes) -> Iterator[Span | None]:
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
        raise UnreadableBodyError(f"the body is no export request of traces in protobuf ({error})") from None


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
