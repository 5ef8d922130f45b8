"""Recognises the stream of an event by its type, so that a sender need not know our topics."""

from collections.abc import Mapping
from typing import Any, Final, Literal, get_args

from schemas.closed_sets import InputSource
from schemas.events.elevenlabs_agent import TypedAgentEvent
from schemas.events.pipecat import PipecatEvent
from schemas.events.simulator import TypedSimulatorEvent

Source = Literal["audit", "pipecat", "elevenlabs"]
"""An input topic."""
Stream = Literal["pipecat", "audit", "elevenlabs", "user_sim"]
STREAMS: Final[tuple[Stream, ...]] = get_args(Stream)
"""The streams that a sender may name: a pipecat bot's, the agent framework's audit log, a real ElevenLabs agent's, and EVA's
simulated caller's. `ce_type` has the same words."""
CONTROL_EVENTS: Final = frozenset({"call_started", "call_ended", "user_text_updated"})
"""Events that steer the evaluator and are no part of a call's history. We send them on the audit topic."""
_SOURCES: Final[Mapping[Stream, Source]] = {
    "pipecat": "pipecat", "audit": "audit", "elevenlabs": "elevenlabs", "user_sim": "elevenlabs",
}  # fmt: skip


def _types_of(union: Any) -> frozenset[str]:
    """The words that the models of a union have for `type`."""
    models = get_args(get_args(union)[0])
    return frozenset(word for model in models for word in get_args(model.model_fields["type"].annotation))


_TYPES: Final[Mapping[Stream, frozenset[str]]] = {
    "audit": CONTROL_EVENTS,
    "pipecat": _types_of(PipecatEvent) - CONTROL_EVENTS,
    "elevenlabs": _types_of(TypedAgentEvent),
    "user_sim": _types_of(TypedSimulatorEvent),
}
"""Types by stream; the first stream with a type has it. `error` and `tool_call` are in several: pipecat's come first."""


def stream_of(event: Mapping[str, Any]) -> Stream | None:
    """The stream of an event that does not name one; None if its type is known nowhere.

    Example:
        >>> stream_of({"type": "speech_event"}), stream_of({"message_type": "user"}), stream_of({"type": "user_transcript"})
        ('pipecat', 'audit', 'elevenlabs')
        >>> stream_of({"type": "error", "error_event": {}}), stream_of({"transcript": []}), stream_of({"type": "x"})
        ('elevenlabs', 'elevenlabs', None)
    """
    if "message_type" in event:
        return "audit"
    if "transcript" in event or "error_event" in event or _is_webhook(event):
        return "elevenlabs"
    if event.get("type") is None and "event_type" in event:
        return "user_sim"
    kind = event.get("type")
    return next((stream for stream, types in _TYPES.items() if kind in types), None) if isinstance(kind, str) else None


def stream_of_type(event_type: str) -> Stream | None:
    """The stream that a CloudEvents type names; None if it is not one of ours, `callgauge.<stream>.<event>.v1`.

    Example:
        >>> stream_of_type("callgauge.pipecat.tts_text.v1"), stream_of_type("callgauge.call.call_started.v1")
        ('pipecat', 'audit')
        >>> stream_of_type("com.example.event") is None
        True
    """
    prefix, _, rest = event_type.partition(".")
    word = rest.partition(".")[0]
    if prefix != "callgauge":
        return None
    return "audit" if word == "call" else next((stream for stream in STREAMS if stream == word), None)


def source_of(stream: Stream) -> Source:
    """The input topic of a stream."""
    return _SOURCES[stream]


def input_source_of(stream: Stream) -> InputSource:
    """The same as the engine names it."""
    return InputSource(_SOURCES[stream])


def _is_webhook(event: Mapping[str, Any]) -> bool:
    kind = event.get("type")
    return isinstance(kind, str) and kind.startswith("post_call_") and isinstance(event.get("data"), Mapping)
