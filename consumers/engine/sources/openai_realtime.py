"""OpenAI's realtime API: events of its socket, with the `conversation_id` and the `timestamp` that the sender adds. Pure.

They have no time of their own. The server says that the caller stopped when it has heard silence for `silence_duration_ms`: that is the
ruling that the turn is over, unless the sender adds this setting, so that the end of the speech itself is known.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from consumers.engine.sources.told import (
    Event,
    mapping_in,
    message_events,
    number_in,
    parsed,
    speech_event,
    time_ms_in,
    tool_event,
)

TYPES: Final = re.compile(
    r"(input_audio_buffer|output_audio_buffer|conversation\.item|conversation|response|session|rate_limits)\."
)
"""How the types of its events begin."""


def told(kind: str, event: Mapping[str, Any], now_ms: int) -> Iterator[Event]:
    """What an event of the socket says of its call; `now_ms` is the time of one that has none."""
    named = {"conversation_id": event.get("conversation_id")}
    time_ms = time_ms_in(event.get("timestamp"), now_ms)
    for found in _realtime(kind, event, time_ms):
        yield {**named, **found}


def _realtime(kind: str, event: Mapping[str, Any], time_ms: float) -> Iterator[Event]:
    silence_ms = number_in(event.get("silence_duration_ms"))
    of, silence_ms = ("turn", 0) if silence_ms is None or not 0 <= silence_ms < time_ms else ("speech", silence_ms)
    match kind:
        case "input_audio_buffer.speech_started":
            yield speech_event(f"user_{of}_started", time_ms, event.get("item_id"))
        case "input_audio_buffer.speech_stopped":
            yield speech_event(f"user_{of}_stopped", time_ms - silence_ms)
        case "output_audio_buffer.started":
            yield speech_event("bot_speech_started", time_ms)
        case "output_audio_buffer.stopped" | "output_audio_buffer.cleared":
            yield speech_event("bot_speech_stopped", time_ms)
        case "conversation.item.input_audio_transcription.completed":
            # It may come seconds later than the sound; the item is what the sound became.
            yield from message_events("user", event.get("transcript"), time_ms, event.get("item_id"))
        case "response.output_audio_transcript.done" | "response.audio_transcript.done":
            yield from message_events("assistant", event.get("transcript"), time_ms)
        case "response.function_call_arguments.done":
            arguments = parsed(event.get("arguments"))
            yield tool_event(
                "in_progress", time_ms, event.get("call_id"), function_name=event.get("name"), arguments=arguments
            )
        case "conversation.item.create":  # the sender's own event with the answer of a tool; its call has the name
            item = mapping_in(event.get("item"))
            if item.get("type") == "function_call_output":
                result = parsed(item.get("output"))
                yield tool_event("completed", time_ms, item.get("call_id"), result=result)
        case "error":
            yield {
                "type": "error",
                "timestamp": int(time_ms),
                "data": {"error": str(mapping_in(event["error"]).get("message"))},
            }
