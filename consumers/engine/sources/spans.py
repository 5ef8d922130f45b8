"""What the spans of a voice agent say of its call, as LiveKit's agents and pipecat's bots name theirs, and `gen_ai.*`. Pure."""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from consumers.engine.sources.otlp import Span
from consumers.engine.sources.told import Event, message_events, number_in, parsed, speech_event, tool_event
from schemas.units import MS_PER_SECOND, to_seconds


def started(span: Span) -> Event:
    """The start of a call, as its first span shows it."""
    agent = span.first("lk.agent_name", "gen_ai.agent.name") or span.service
    named = {"agent": agent} if isinstance(agent, str) and agent else {}
    parent = span.as_parent(span.parent_id or span.span_id)
    return {"type": "call_started", "timestamp": int(span.start_ms), "is_told_later": True, **parent, **named}


def told(span: Span) -> Iterator[Event]:
    """What a span says of its call; nothing if no rule reads it."""
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
