"""Spans of LiveKit's agents, for Python and for Node. Pure.

A session is one trace, under `agent_session`. Who spoke is in `user_speaking` and `agent_speaking`,
to the millisecond. The words of the agent are in `agent_turn` as they were heard, and in `llm_node`
as the model wrote them.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from consumers.engine.sources.gen_ai_spans import Rule, failed, first_byte, is_true, used, used_tool
from consumers.engine.sources.otlp import Span
from consumers.engine.sources.told import (
    Event,
    mapping_in,
    message_events,
    number_in,
    parsed,
    speech_event,
)
from schemas.units import MS_PER_SECOND, to_seconds

AGENT_NAME: Final = "lk.agent_name"
PYTHON: Final = "python"
NODE: Final = "nodejs"
"""Languages by the names of OpenTelemetry's SDKs."""
ROUNDING_MS: Final = 50
"""How much longer than its span a wait may be, in ms: both ends are taken by different clocks, and
a span begins in whole ms.
"""


def _user_spoke(span: Span) -> Iterator[Event]:
    yield speech_event("user_speech_started", span.start_ms)
    yield speech_event("user_speech_stopped", span.end_ms)


def _agent_spoke(span: Span) -> Iterator[Event]:
    yield speech_event("bot_speech_started", span.start_ms)
    yield speech_event("bot_speech_stopped", span.end_ms)


def _user_said(span: Span) -> Iterator[Event]:
    yield from message_events(
        "user", span.first("lk.pii.user_transcript", "lk.user_transcript"), span.end_ms
    )
    ruled, heard = (number_in(span.first(name)) or 0.0 for name in _WAITS)
    unit_s = _unit_s(span, max(ruled, heard))
    if unit_s is not None:
        yield from _waited(ruled * unit_s, heard * unit_s, span.end_ms)


def _waited(ruled_s: float, heard_s: float, ruled_ms: float) -> Iterator[Event]:
    """The waits for the ruling that the caller had finished, which came at `ruled_ms`, and for the
    words; nothing without the first.
    """
    if ruled_s > 0:
        silent_s = to_seconds(ruled_ms) - ruled_s
        breakdown = {"user_turn_start_time": silent_s, "user_turn_secs": ruled_s}
        yield {"type": "latency_breakdown", "timestamp": int(ruled_ms), "data": breakdown}
        if heard_s > 0:
            known = {
                "kind": "ttfb",
                "processor": "STTService#0",
                "seconds": heard_s,
                "timestamp": silent_s + heard_s,
            }
            yield {"type": "service_latency", "timestamp": int(ruled_ms), "data": known}


def _unit_s(span: Span, longest: float) -> float | None:
    """Length in seconds of the unit of a user turn's waits; None where nothing says which one it
    is.

    The span of the turn contains its waits. Python writes seconds. Node wrote milliseconds until
    1.9, and seconds in a later version; both call themselves `nodejs`. So a wait that is too long
    for the span in seconds is in milliseconds, unless it is Python's or too long in both.

    Args:
        span: The turn.
        longest: Its longest wait, in the unknown unit.
    """
    has_room_for_s = longest * MS_PER_SECOND <= span.end_ms - span.start_ms + ROUNDING_MS
    has_room_for_ms = longest <= span.end_ms - span.start_ms + ROUNDING_MS
    if has_room_for_s:
        return None if span.producer.language == NODE else 1.0
    if has_room_for_ms and span.producer.language != PYTHON:
        return 1.0 / MS_PER_SECOND
    return None


def _model_said(span: Span) -> Iterator[Event]:
    """The model's words, whether they were heard or not: an entry of the agent's log. A node of
    one's own has the tokens too.
    """
    text = span.first("lk.pii.response.text", "lk.response.text")
    if isinstance(text, str) and text.strip():
        yield {"message_type": "assistant", "value": text, "timestamp": int(span.end_ms)}
    yield from first_byte("LLM", span.first("lk.response.ttft"), None, span.start_ms)
    if span.first("gen_ai.usage.output_tokens") is not None:
        yield from used("LLM", span, has_cache_in_input=True)


def _agent_said(span: Span) -> Iterator[Event]:
    """The words that were heard, of the model or of `say`, and LiveKit's own wait for them."""
    queued_s = number_in(span.first("lk.speech.queue_wait")) or 0.0
    # A reply may be begun before the caller has finished; it is that turn's from the moment it may
    # be spoken.
    begin_ms = min(span.start_ms + max(queued_s, 0.0) * MS_PER_SECOND, span.end_ms)
    was_cut = span.first("lk.interrupted")
    if not _has_last_words_only(span) or is_true(was_cut):
        for message in message_events(
            "bot", span.first("lk.pii.response.text", "lk.response.text"), begin_ms
        ):
            if was_cut is not None:
                message["data"]["interrupted"] = is_true(was_cut)
            yield message
    cause = _CAUSES.get(str(span.first("lk.interruption.source")))
    if is_true(was_cut) and cause is not None:
        told = speech_event("interruption", span.end_ms)
        yield {**told, "data": {**told["data"], "cause": cause}}
    waited_s = number_in(span.first("lk.e2e_latency"))
    if waited_s is not None:
        time_ms = int(begin_ms + waited_s * MS_PER_SECOND)
        yield {
            "type": "user_bot_latency",
            "timestamp": time_ms,
            "data": {"latency_seconds": waited_s},
        }
        ruled_s, heard_s = (number_in(span.first(name)) or 0.0 for name in _WAITS)
        # Of Node's `user_turn` the unit may be unknown; here it is that of LiveKit's metrics, and
        # the ruling is part of the whole wait.
        if span.producer.language == NODE and max(ruled_s, heard_s) <= waited_s:
            yield from _waited(ruled_s, heard_s, begin_ms)
    yield from _asked_realtime_model(span)


def _has_last_words_only(span: Span) -> bool:
    """Whether the text is that of the last of several steps of a model, with tools between them;
    `llm_node` has all of it. A realtime model has no such node, and its tools stand in the turn.
    """
    steps = number_in(span.first("lk.generation_count")) or 1
    is_of_realtime = (
        span.first("lk.pii.response.function_calls", "lk.response.function_calls") is not None
    )
    return steps > 1 and not is_of_realtime


def _asked_realtime_model(span: Span) -> Iterator[Event]:
    """What a realtime model used: in a span of its own, or in the one that was open
    when it came.
    """
    if span.first("lk.realtime_model_metrics") is None:
        return
    metrics = mapping_in(parsed(span.first("lk.realtime_model_metrics")))
    waited_ms = number_in(metrics.get("ttftMs"))
    waited_s = number_in(metrics.get("ttft")) if waited_ms is None else waited_ms / MS_PER_SECOND
    if waited_s is not None and waited_s > 0:  # -1 for a response without sound
        yield from first_byte("LLM", waited_s, None, span.start_ms)
    yield from used("LLM", span, has_cache_in_input=True)


def _called(span: Span) -> Iterator[Event]:
    # Only now are the true start, the agent's name and the span of the whole call known.
    began = {"type": "call_started", "timestamp": int(span.start_ms), "is_told_later": True}
    yield {**began, **span.as_parent(span.span_id), **_named(span)}
    yield from _ended(span)


def _entered(span: Span) -> Iterator[Event]:
    """A job has the agent's name. It is over before the session in Node, and after it in Python,
    and began before the call.
    """
    named = _named(span)
    if named:
        yield {
            "type": "call_started",
            "timestamp": int(span.end_ms),
            "is_told_later": True,
            **named,
        }


def _named(span: Span) -> Event:
    name = span.first(AGENT_NAME)
    return {"agent": name} if isinstance(name, str) and name else {}


def _ended(span: Span) -> Iterator[Event]:
    reason = span.first("lk.close_reason")
    ended = {"type": "call_ended", "timestamp": int(span.end_ms)}
    yield {**ended, "reason": reason} if isinstance(reason, str) else ended


def _both(one: Rule, other: Rule) -> Rule:
    def told(span: Span) -> Iterator[Event]:
        yield from one(span)
        yield from other(span)

    return told


def _with_errors(service: str, rule: Rule) -> Rule:
    """The rule of a span of one request: the node around it fails with it, which is one error."""

    def told(span: Span) -> Iterator[Event]:
        yield from rule(span)
        if span.has_failed:
            yield failed(service, span, cause=span.span_id, told_by="request")

    return told


def _attempted(service: str) -> Rule:
    """The rule of a span of one attempt at a request. Each that fails is an error of LiveKit; the
    last one fails with its request in Python, and without it in Node.
    """

    def told(span: Span) -> Iterator[Event]:
        if span.has_failed:
            yield failed(service, span, cause=span.parent_id, told_by="attempt")

    return told


def _voice_began(span: Span) -> Iterator[Event]:
    yield from first_byte("TTS", span.first("lk.response.ttfb"), None, span.start_ms)


def _asked_model(span: Span) -> Iterator[Event]:
    yield from used("LLM", span, has_cache_in_input=True)


_WAITS: Final = ("lk.end_of_turn_delay", "lk.transcription_delay")
_CAUSES: Final[Mapping[str, str]] = {
    "audio_activity": "user_speech",
    "user_turn": "user_turn",
    "programmatic": "program",
}
"""Our words for what cut an answer off."""
RULES: Final[Mapping[str, Rule]] = {
    "user_speaking": _user_spoke,
    "agent_speaking": _both(_agent_spoke, _asked_realtime_model),
    "user_turn": _user_said,
    "agent_turn": _agent_said,
    "llm_node": _model_said,
    "llm_request": _with_errors("LLM", _asked_model),
    "llm_request_run": _attempted("LLM"),
    "realtime_inference": _with_errors("LLM", _asked_realtime_model),
    "realtime_metrics": _asked_realtime_model,
    "tts_node": _voice_began,
    "tts_request": _with_errors("TTS", _voice_began),
    "tts_request_run": _attempted("TTS"),
    "function_tool": _both(used_tool, _asked_realtime_model),
    "job_entrypoint": _entered,
    "session_close": _ended,
    "agent_session": _called,
}
"""What spans tell, by their names."""
