"""Spans of pipecat's bots. Pure.

A call is one trace, under `conversation`. A bot of separate services has `stt`, `llm` and `tts`;
one of a realtime model has `llm_response` in the place of the last two. No span has the end of
anybody's speech.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from consumers.engine.sources.gen_ai_spans import AGENT_NAME, Rule, failed, first_byte, used
from consumers.engine.sources.otlp import Span
from consumers.engine.sources.told import (
    REPORT,
    Event,
    message_events,
    number_in,
    parsed,
    tool_event,
)
from schemas.units import MS_PER_SECOND, to_seconds

LATEST_START_S: Final = 1.0
"""Longest time in seconds from the caller's first sound to the start of the turn's span, which
comes when the detector is sure (0.2 s unless set otherwise). A transcript may have the time of that
sound.
"""

CLOCK_DIGITS: Final = 6
"""Decimals of a second that a rounded measurement has at most: the clock of pipecat has more."""


def _heard(span: Span) -> Iterator[Event]:
    """The final transcript is the nearest moment to the end of speech, and an entry of an audit log
    says so.

    Every transcript in such a span is final: `is_final` only says whether the recogniser confirmed
    a request to finish.
    """
    words, is_of_realtime = span.first("transcript"), _is_of_realtime_model(span)
    if isinstance(words, str) and words.strip():
        # A realtime model's span stays open until the next time that the caller falls silent.
        time_ms = span.start_ms if is_of_realtime else span.end_ms
        yield {"message_type": "user", "value": words, "timestamp": int(time_ms)}
    if not is_of_realtime:  # what the model took stands there too
        yield from _answered("STT", span)


def _is_of_realtime_model(span: Span) -> bool:
    """Whether the transcript is a realtime model's own: pipecat names the provider by the class of
    the service.
    """
    provider = span.first("gen_ai.provider.name", "gen_ai.system")
    return isinstance(provider, str) and provider.lower().endswith("llmservice")


def _thought(span: Span) -> Iterator[Event]:
    yield from _answered("LLM", span)


def _synthesised(span: Span) -> Iterator[Event]:
    """The words begin to be heard with the first byte of their sound."""
    text = span.first("text")
    if isinstance(text, str) and text:
        begin_ms = span.start_ms + (number_in(span.first("metrics.ttfb")) or 0.0) * MS_PER_SECOND
        yield {"type": "tts_text", "timestamp": int(begin_ms), "data": {"frame": text}}
    yield from _answered("TTS", span)


def _answered(service: str, span: Span) -> Iterator[Event]:
    """What pipecat tells of any of its services."""
    yield from _first_byte(service, span, None)
    yield from used(service, span)
    if span.has_failed:
        yield failed(service, span)


def _first_byte(service: str, span: Span, time_ms: float | None) -> Iterator[Event]:
    """What pipecat last measured of a service. Where it has measured nothing since, a span has the
    same number again: a realtime model is measured only when pipecat asks it. Two measurements
    never agree in all digits of a clock; rounded ones may.
    """
    seconds = number_in(span.first("metrics.ttfb"))
    is_exact = seconds is not None and round(seconds, CLOCK_DIGITS) != seconds
    for event in first_byte(service, seconds, time_ms, span.start_ms):
        yield {**event, REPORT: f"{service} {seconds!r}"} if is_exact else event


def _responded(span: Span) -> Iterator[Event]:
    """An answer of a realtime model. The span begins when the whole answer is there, while its
    sound may still be playing: it has no moment at which the caller heard something.
    """
    # such words go to a voice, which has a span of its own
    if span.first("output_modality") != "TEXT":
        yield from message_events("bot", span.first("output"), span.start_ms)
    yield from _first_byte("LLM", span, span.start_ms)
    yield from used("LLM", span)
    if span.has_failed or span.first("response.status") == "failed":
        yield failed("LLM", span)


def _called_tool(span: Span) -> Iterator[Event]:
    """The first of the tools that a realtime model calls together. The others, and those without an
    id, are told by their results.
    """
    call_id = span.first("tool.call_id")
    if call_id is not None:
        known = {
            "function_name": span.first("tool.function_name"),
            "arguments": parsed(span.first("tool.arguments")),
        }
        yield tool_event("in_progress", span.start_ms, call_id, **known)


def _tool_answered(span: Span) -> Iterator[Event]:
    kind = (
        "failed" if span.has_failed or span.first("tool.result_status") == "error" else "completed"
    )
    known = {
        "function_name": span.first("tool.function_name"),
        "result": parsed(span.first("tool.result")),
    }
    yield tool_event(kind, span.start_ms, span.first("tool.call_id") or span.span_id, **known)


def _took_turn(span: Span) -> Iterator[Event]:
    seconds = number_in(span.first("turn.user_bot_latency_seconds"))
    if seconds is not None:
        # The span ends with the next turn; so much later than its start, the number is of this one.
        time_ms = int(span.start_ms + seconds * MS_PER_SECOND)
        turn = {
            "turn_began_at": to_seconds(span.start_ms) - LATEST_START_S,
            "turn_ended_at": to_seconds(span.end_ms),
        }
        yield {
            "type": "user_bot_latency",
            "timestamp": time_ms,
            "data": {"latency_seconds": seconds, **turn},
        }


def _called(span: Span) -> Iterator[Event]:
    # Only now are the true start and the span of the whole call known.
    name = span.first(AGENT_NAME)
    named = {"agent": name} if isinstance(name, str) and name else {}
    began = {"type": "call_started", "timestamp": int(span.start_ms), "is_told_later": True}
    yield {**began, **span.as_parent(span.span_id), **named}
    yield {"type": "call_ended", "timestamp": int(span.end_ms)}


RULES: Final[Mapping[str, Rule]] = {
    "conversation": _called,
    "turn": _took_turn,
    "stt": _heard,
    "llm": _thought,
    "tts": _synthesised,
    "llm_response": _responded,
    "llm_tool_call": _called_tool,
    "llm_tool_result": _tool_answered,
}
"""What spans tell, by their names. `llm_setup` and `llm_request` tell nothing of the call."""
