"""`POST /v1/traces`: spans of a voice agent by OTLP/HTTP, as LiveKit's agents and pipecat's bots name theirs, and `gen_ai.*`.

A span comes when it is over, some seconds after it began. So a call that is told by spans has no dead air while it runs, and all its
other values. The conversation id is `trace-` and the id of the trace: no other id is in every span. Pure.
"""

from collections.abc import Callable, Generator, Iterator, Mapping
from functools import partial
from typing import Final

from schemas.units import MS_PER_SECOND, to_seconds
from streamer.recordings.spans import (
    PROTOBUF,
    Reader,
    Span,
    UnreadableSpansError,
    service_in_json,
    span_in_json,
    spans_in_protobuf,
    unreadable,
)
from streamer.sources.http.frameworks import Event, message_events, number_in, parsed, speech_event, tool_event
from streamer.sources.http.json_parts import JsonText, Place, TooManyError, UnsplitError, element_of
from streamer.sources.http.posted import LEFT_OUT, Posted, UnreadableBodyError
from streamer.sources.http.receiving import MAX_EVENTS

RESOURCES: Final = b"resourceSpans"
RESOURCE: Final = b"resource"
SCOPES: Final = b"scopeSpans"
SPANS: Final = b"spans"
"""The parts of an export request in JSON that are read. The arrays are each in the elements of the one before."""
MAX_MEMBERS: Final = 100
"""Most members of the objects around the spans; each has three."""
CE_SOURCE: Final = "otlp"
CALL: Final = "trace-{}"
"""Conversation id of a call that spans tell, with the id of their trace in hexadecimal digits."""


def posted_spans(body: bytes, content_type: str, _headers: Mapping[str, str]) -> Iterator[Posted | None]:
    """Reads the spans of a request as events of their calls, after they were told apart. One that cannot be read is refused alone.

    Args:
        body: The body of an export request, in protobuf or JSON.
        content_type: The value of the header.

    Yields:
        The events of each span, with ids that are the same when it is sent again; `LEFT_OUT` for a span that no rule reads; None
        between parts of the request, so that others may have their turn.

    Raises:
        UnreadableBodyError: No spans can be told apart in it, or too many. That is known before the first event is yielded.
    """
    is_protobuf = content_type.partition(";")[0].strip().lower() == PROTOBUF
    try:
        spans = yield from (spans_in_protobuf(body, MAX_EVENTS) if is_protobuf else _in_json(JsonText(body)))
    except (UnreadableSpansError, UnsplitError) as error:
        raise UnreadableBodyError(f"the body is no export request of traces: {error}") from None
    begun: set[str] = set()
    for place, read in enumerate(spans, 1):
        yield None
        try:
            span = read()
        except ValueError as error:
            yield Posted(place, None, {}, str(error))
            continue
        events = list(_events_of(span))
        if events and span.trace_id not in begun:
            begun.add(span.trace_id)
            yield _posted(place, span, "call_started", _started(span))
        for number, event in enumerate(events):
            yield _posted(place, span, f"{span.span_id}/{number}", event)
        if not events:
            yield Posted(place, LEFT_OUT)


def _in_json(text: JsonText) -> Generator[None, None, list[Reader]]:
    """The spans of an export request in JSON, as `spans_in_protobuf` gives them."""
    readers = list[Reader]()
    request = yield from text.members(text.place, MAX_MEMBERS)
    if RESOURCES not in request:
        raise UnsplitError(f"expected `{RESOURCES.decode()}`")
    scopes = 0
    for of in (yield from text.elements(request[RESOURCES], b"[]", MAX_EVENTS)):
        yield None
        try:
            resource = yield from text.members(of, MAX_MEMBERS)
            service = _service(text.at(resource[RESOURCE])) if RESOURCE in resource else ""
            found = (yield from text.elements(resource[SCOPES], b"[]", MAX_EVENTS)) if SCOPES in resource else []
        except UnsplitError as error:
            readers.append(unreadable(error))
            continue
        if (scopes := scopes + len(found)) > MAX_EVENTS:
            raise TooManyError(f"expected at most {MAX_EVENTS} scopes in a request, saw more")
        for each in found:
            yield None
            readers += yield from _in_scope(text, each, service)
        if len(readers) > MAX_EVENTS:
            raise TooManyError(f"expected at most {MAX_EVENTS} spans in a request, saw more")
    return readers


def _in_scope(text: JsonText, place: Place, service: str) -> Generator[None, None, list[Reader]]:
    try:
        scope = yield from text.members(place, MAX_MEMBERS)
        spans = (yield from text.elements(scope[SPANS], b"[]", MAX_EVENTS)) if SPANS in scope else []
    except TooManyError:
        raise
    except UnsplitError as error:
        return [unreadable(error)]
    return [partial(_span, text, each, service) for each in spans]


def _service(text: bytes) -> str:
    try:
        return service_in_json(element_of(text))
    except ValueError:
        return ""


def _span(text: JsonText, place: Place, service: str) -> Span:
    return span_in_json(element_of(text.at(place)), service)


def _posted(place: int, span: Span, event_id: str, event: Event) -> Posted:
    call = CALL.format(span.trace_id)
    return Posted(place, event, {"id": f"{call}/{event_id}", "source": CE_SOURCE, "subject": call})


# What each span says of its call.


def _started(span: Span) -> Event:
    agent = span.first("lk.agent_name", "gen_ai.agent.name") or span.service
    named = {"agent": agent} if isinstance(agent, str) and agent else {}
    parent = span.as_parent(span.parent_id or span.span_id)
    return {"type": "call_started", "timestamp": int(span.start_ms), "is_told_later": True, **parent, **named}


def _events_of(span: Span) -> Iterator[Event]:
    rule = _RULES.get(span.name)
    if rule is not None:
        yield from rule(span)
    elif span.first("gen_ai.operation.name") == "execute_tool":
        yield from _used_tool(span)
    if span.has_failed and span.name in _REQUESTS and (service := _SERVICES.get(span.name)) is not None:
        yield {"type": "error", "timestamp": int(span.end_ms), "data": {"processor": f"{service}Service#0"}}


def _user_spoke(span: Span) -> Iterator[Event]:
    yield speech_event("user_speech_started", span.start_ms)
    yield speech_event("user_speech_stopped", span.end_ms)


def _agent_spoke(span: Span) -> Iterator[Event]:
    yield speech_event("bot_speech_started", span.start_ms)
    yield speech_event("bot_speech_stopped", span.end_ms)


def _user_said(span: Span) -> Iterator[Event]:
    yield from message_events("user", span.first("lk.pii.user_transcript", "lk.user_transcript"), span.end_ms)
    ruled_s, heard_s = (number_in(span.first(name)) for name in ("lk.end_of_turn_delay", "lk.transcription_delay"))
    if ruled_s:
        silent_s = to_seconds(span.end_ms) - ruled_s
        breakdown = {"user_turn_start_time": silent_s, "user_turn_secs": ruled_s}
        yield {"type": "latency_breakdown", "timestamp": int(span.end_ms), "data": breakdown}
        if heard_s:
            heard = {"kind": "ttfb", "processor": "STTService#0", "seconds": heard_s, "timestamp": silent_s + heard_s}
            yield {"type": "service_latency", "timestamp": int(span.end_ms), "data": heard}


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
    ended = {"function_name": name, "result": result, "in_progress_at": to_seconds(span.start_ms)}
    yield tool_event("failed" if has_failed else "completed", span.end_ms, call_id, **ended)


def _call(span: Span) -> Iterator[Event]:
    # Only now are the true start and the span of the whole call known.
    yield {"type": "call_started", "timestamp": int(span.start_ms), **span.as_parent(span.span_id)}
    yield from _ended(span)


def _ended(span: Span) -> Iterator[Event]:
    reason = span.first("lk.close_reason")
    ended = {"type": "call_ended", "timestamp": int(span.end_ms)}
    yield {**ended, "reason": reason} if isinstance(reason, str) else ended


def _heard(span: Span) -> Iterator[Event]:
    """Pipecat's spans have no end of speech: the final transcript is the nearest moment to it, and an entry of an audit log says so."""
    words = span.first("transcript")
    if span.first("is_final") is not False and isinstance(words, str) and words.strip():
        yield {"message_type": "user", "value": words, "timestamp": int(span.end_ms)}
    yield from _answered(span)


def _synthesised(span: Span) -> Iterator[Event]:
    """The words begin to be heard with the first byte of their sound."""
    text = span.first("text")
    if isinstance(text, str) and text:
        begin_ms = span.start_ms + (number_in(span.first("metrics.ttfb")) or 0.0) * MS_PER_SECOND
        yield {"type": "tts_text", "timestamp": int(begin_ms), "data": {"frame": text}}
    yield from _answered(span)


def _answered(span: Span) -> Iterator[Event]:
    """What pipecat tells of any of its services."""
    yield from _first_byte(span, "metrics.ttfb")
    yield from _used(span)


def _first_byte(span: Span, *names: str) -> Iterator[Event]:
    seconds, service = number_in(span.first(*names)), _SERVICES.get(span.name)
    if service is not None and seconds is not None:
        known = {"processor": f"{service}Service#0", "value": seconds}
        yield {"type": "TTFBMetricsData", "timestamp": int(span.start_ms + seconds * MS_PER_SECOND), **known}


def _turn_of_pipecat(span: Span) -> Iterator[Event]:
    seconds = number_in(span.first("turn.user_bot_latency_seconds"))
    if seconds is not None:
        # The span ends with the next turn; so much later than its start, the number is of this one.
        time_ms = int(span.start_ms + seconds * MS_PER_SECOND)
        yield {"type": "user_bot_latency", "timestamp": time_ms, "data": {"latency_seconds": seconds}}


def _used(span: Span) -> Iterator[Event]:
    """The tokens, characters or seconds of sound of one request to a service."""
    counts = {name: number_in(span.first(*attributes)) for name, attributes in _AMOUNTS.items()}
    amounts = {name: count for name, count in counts.items() if count}
    if amounts:
        known = {
            "kind": _SERVICES[span.name].lower(),
            "processor": f"{_SERVICES[span.name]}Service#0",
            "provider": span.first("gen_ai.provider.name"),
            "model": span.first("gen_ai.request.model", "gen_ai.response.model"),
            "timestamp": to_seconds(span.end_ms),
        }
        data = {name: value for name, value in known.items() if value is not None}
        yield {"type": "service_usage", "timestamp": int(span.end_ms), "data": {**data, **amounts}}


_Rule = Callable[[Span], Iterator[Event]]
_SERVICES: Final[Mapping[str, str]] = {
    "stt": "STT", "llm": "LLM", "tts": "TTS", "llm_node": "LLM", "llm_request": "LLM", "tts_node": "TTS", "tts_request": "TTS"
}  # fmt: skip
_REQUESTS: Final = frozenset(_SERVICES) - {"llm_node", "tts_node"}
"""Spans of one request: the node around it fails with it, which is one error."""
_AMOUNTS: Final[Mapping[str, tuple[str, ...]]] = {
    "prompt_tokens": ("gen_ai.usage.input_tokens",),
    "completion_tokens": ("gen_ai.usage.output_tokens",),
    "cache_read_input_tokens": ("gen_ai.usage.cache_read.input_tokens",),
    "cache_creation_input_tokens": (
        "gen_ai.usage.cache_creation.input_tokens",
        "gen_ai.usage.cache_write.input_tokens",
    ),
    "characters": ("metrics.character_count",),
    "audio_seconds": ("metrics.audio_seconds",),
}
_RULES: Final[Mapping[str, _Rule]] = {
    # LiveKit's
    "user_speaking": _user_spoke,
    "agent_speaking": _agent_spoke,
    "user_turn": _user_said,
    "llm_node": _agent_said,
    "llm_request": _used,
    "tts_node": lambda span: _first_byte(span, "lk.response.ttfb"),
    "tts_request": lambda span: _first_byte(span, "lk.response.ttfb"),
    "function_tool": _used_tool,
    "session_close": _ended,
    "agent_session": _call,
    # pipecat's
    "conversation": _call,
    "turn": _turn_of_pipecat,
    "stt": _heard,
    "llm": _answered,
    "tts": _synthesised,
}
