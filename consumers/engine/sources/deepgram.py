"""Deepgram's voice agent: messages of its socket, with the `conversation_id` and the `timestamp`
that the sender adds. Pure.

They have no time of their own, and none says that the caller fell silent: the caller's words are
the ruling that the turn is over.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from consumers.engine.sources.told import (
    Event,
    Framework,
    error_event,
    listed_in,
    message_events,
    number_in,
    parsed,
    service_latency,
    speech_event,
    time_ms_in,
    tool_event,
)
from schemas.units import MS_PER_SECOND

_TYPES: Final = frozenset(
    {
        *(
            "Welcome",
            "SettingsApplied",
            "ConversationText",
            "History",
            "UserStartedSpeaking",
            "EndOfThought",
        ),
        *("AgentThinking", "AgentStartedSpeaking", "AgentAudioDone", "LatencyReport"),
        *(
            "FunctionCallRequest",
            "FunctionCallResponse",
            "FunctionCallCancelled",
            "FunctionCalling",
        ),
        *(
            "PromptUpdated",
            "SpeakUpdated",
            "ThinkUpdated",
            "ListenUpdated",
            "InjectionRefused",
            "Error",
            "Warning",
        ),
    }
)


def _owns(event: Mapping[str, Any]) -> bool:
    return isinstance(event.get("type"), str) and event["type"] in _TYPES


def _told(event: Mapping[str, Any], now_ms: int) -> Iterator[Event]:
    for told in _agent(event, time_ms_in(event.get("timestamp"), now_ms)):
        yield {"conversation_id": event.get("conversation_id"), **told}


def _agent(event: Mapping[str, Any], time_ms: float) -> Iterator[Event]:
    match event["type"]:
        case "UserStartedSpeaking":
            yield speech_event("user_turn_started", time_ms)
        case "ConversationText":
            yield from message_events(event.get("role"), event.get("content"), time_ms)
            if event.get("role") == "user":
                yield speech_event("user_turn_stopped", time_ms)
        case "AgentStartedSpeaking":
            yield speech_event("bot_speech_started", time_ms)
            yield from _waited(event, time_ms)
        case "AgentAudioDone":
            yield speech_event("bot_speech_stopped", time_ms)
        case "LatencyReport":
            yield from _waited(event, time_ms)
        case "FunctionCallRequest":
            for each in listed_in(event.get("functions")):
                known = {
                    "function_name": each.get("name"),
                    "arguments": parsed(each.get("arguments")),
                }
                yield tool_event("in_progress", time_ms, each.get("id"), **known)
        case "FunctionCallResponse":
            known = {"function_name": event.get("name"), "result": parsed(event.get("content"))}
            yield tool_event("completed", time_ms, event.get("id"), **known)
        case "FunctionCallCancelled":
            for each in listed_in(event.get("functions")):
                yield tool_event(
                    "cancelled", time_ms, each.get("id"), function_name=each.get("name")
                )
        case "Error":
            yield error_event(
                time_ms, event.get("description") or event.get("message") or event.get("code")
            )


def _waited(event: Mapping[str, Any], time_ms: float) -> Iterator[Event]:
    """Latencies in seconds, up to the first sound of the answer."""
    total_s, spoke_s = number_in(event.get("total_latency")), number_in(event.get("tts_latency"))
    thought_s = number_in(event.get("ttt_latency", event.get("ttt_text_latency")))
    if total_s:
        yield {
            "type": "user_bot_latency",
            "timestamp": int(time_ms),
            "data": {"latency_seconds": total_s},
        }
    voiced_ms = (spoke_s or 0.0) * MS_PER_SECOND
    if voiced_ms > 0:
        yield service_latency("TTS", time_ms - voiced_ms, voiced_ms)
    if thought_s and thought_s > 0:
        thought_ms = thought_s * MS_PER_SECOND
        yield service_latency("LLM", time_ms - voiced_ms - thought_ms, thought_ms)


FRAMEWORK: Final = Framework("deepgram", _owns, _told)
