"""Events of frameworks whose servers or sockets report a call in their own words: Vapi's server messages, OpenAI's realtime events.

`POST /events` and `callgauge events check` take them as they are. One table says what each becomes; what no rule reads is counted as
left out. Pure.
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

from pydantic_core import from_json, to_json

from schemas.units import MS_PER_SECOND, to_seconds
from schemas.wire import MAX_TIME_MS

Event = dict[str, Any]
MAX_TOOLS: Final = 100
"""Most uses of tools that are taken from one message."""
MAX_PARSED_CHARS: Final = 100_000
"""Longest text that may be JSON: a longer one stays text, because to read it can take long."""


class Translated(NamedTuple):
    """An event of another framework.

    Attributes:
        framework: Its name; with the id of an event it identifies the event.
        events: What it says in our words; none if no rule reads it.
        event_id: The framework's own id; None for one that is made from the content, so that a message sent again has the same.
    """

    framework: str
    events: tuple[Event, ...]
    event_id: str | None = None

    def attributes(self, event: Event) -> dict[str, str]:
        """The CloudEvents attributes of one of the events."""
        content = to_json(event, inf_nan_mode="null")
        return {"id": self.event_id or hashlib.blake2b(content, digest_size=12).hexdigest(), "source": self.framework}


def translated(event: Mapping[str, Any], now_ms: int) -> Translated | None:
    """An event in our words; None if it is of no framework of these.

    Args:
        event: Any JSON object.
        now_ms: When it came, in epoch ms: the time of an event that has none.

    Example:
        >>> message = {"type": "speech-update", "role": "user", "status": "stopped", "timestamp": 5_000, "call": {"id": "c"}}
        >>> translated({"message": message}, 9_000).events[0]["data"]
        {'kind': 'user_speech_stopped', 'timestamp': 5.0}
        >>> translated({"type": "speech_event"}, 9_000) is None
        True
    """
    message = event.get("message")
    if isinstance(message, Mapping) and isinstance(message.get("type"), str):
        return Translated("vapi", tuple(_of_vapi(message, now_ms)))
    kind = event.get("type")
    if isinstance(kind, str) and (
        _REALTIME.match(kind) or (kind == "error" and isinstance(event.get("error"), Mapping))
    ):
        own_id = event.get("event_id")
        found = tuple(_of_realtime(kind, event, now_ms))
        return Translated("openai-realtime", found, own_id if isinstance(own_id, str) and own_id else None)
    return None


def speech_event(kind: str, time_ms: float) -> Event:
    """A start or end of speech, or a ruling about a turn, at this moment."""
    return {"type": "speech_event", "timestamp": int(time_ms), "data": {"kind": kind, "timestamp": to_seconds(time_ms)}}


def message_events(role: object, words: object, time_ms: float) -> Iterator[Event]:
    """The words of a turn of `user`, `assistant` or `bot`; nothing if there are none."""
    name = {"user": "user_message", "assistant": "assistant_message", "bot": "assistant_message"}.get(str(role))
    if name is not None and isinstance(words, str) and words.strip():
        yield {"type": name, "timestamp": int(time_ms), "data": {"content": words}}


def tool_event(kind: str, time_ms: float, call_id: object, **known: object) -> Event:
    """A moment of a tool: `in_progress`, `completed` or `failed`."""
    fields = {name: value for name, value in known.items() if value is not None}
    data = {"kind": f"function_call_{kind}", "tool_call_id": call_id, "timestamp": to_seconds(time_ms), **fields}
    return {"type": "function_call_event", "timestamp": int(time_ms), "data": data}


def parsed(value: object) -> object:
    """Arguments or an answer; text that is JSON is read, other text stays text."""
    try:
        return (
            from_json(value, allow_inf_nan=False)
            if isinstance(value, str) and len(value) <= MAX_PARSED_CHARS
            else value
        )
    except ValueError:
        return value


def _time_ms(value: object, otherwise_ms: float) -> float:
    """A time in epoch ms, as a number or as ISO 8601 text."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value).timestamp() * MS_PER_SECOND
        except (ValueError, OverflowError):
            return otherwise_ms
    time_ms = number_in(value)
    return time_ms if time_ms is not None and time_ms > 0 else otherwise_ms


def number_in(value: object) -> float | None:
    """A number with which one can compute; None for anything that is none, for infinity and for what no time can be."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if -MAX_TIME_MS <= value <= MAX_TIME_MS else None


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _listed(value: object) -> list[Mapping[str, Any]]:
    return [each for each in value[:MAX_TOOLS] if isinstance(each, Mapping)] if isinstance(value, list) else []


# Vapi: messages to a server URL. `speech-update` has the four moments; `timestamp` is in epoch milliseconds.


def _of_vapi(message: Mapping[str, Any], now_ms: int) -> Iterator[Event]:
    call = _mapping(message.get("call"))
    time_ms = _time_ms(message.get("timestamp"), now_ms)
    for event in _VAPI.get(message["type"], _nothing)(message, time_ms):
        yield {"conversation_id": call.get("id"), **event}


def _nothing(_message: Mapping[str, Any], _time_ms: float) -> Iterator[Event]:
    return iter(())


def _vapi_status(message: Mapping[str, Any], time_ms: float) -> Iterator[Event]:
    if message.get("status") == "in-progress":
        assistant, call = _mapping(message.get("assistant")), _mapping(message.get("call"))
        agent = assistant.get("name") or call.get("assistantId") or assistant.get("id")
        yield {
            "type": "call_started",
            "timestamp": int(time_ms),
            **({"agent": agent} if isinstance(agent, str) else {}),
        }
    elif message.get("status") == "ended":
        yield from _vapi_end(message, time_ms)


def _vapi_end(message: Mapping[str, Any], time_ms: float) -> Iterator[Event]:
    reason = message.get("endedReason")
    ended = {"type": "call_ended", "timestamp": int(_time_ms(message.get("endedAt"), time_ms))}
    yield {**ended, "reason": reason} if isinstance(reason, str) else ended


def _vapi_report(message: Mapping[str, Any], time_ms: float) -> Iterator[Event]:
    """The report has the answers of tools, which no message has while the call runs."""
    for each in _listed(_mapping(message.get("artifact")).get("messages")):
        if each.get("role") == "tool_call_result":
            result = parsed(each.get("result"))
            yield tool_event(
                "completed",
                _time_ms(each.get("time"), time_ms),
                each.get("toolCallId"),
                function_name=each.get("name"),
                result=result,
            )
    yield from _vapi_end(message, time_ms)


def _vapi_speech(message: Mapping[str, Any], time_ms: float) -> Iterator[Event]:
    who = {"user": "user", "assistant": "bot"}.get(str(message.get("role")))
    if who is not None and message.get("status") in ("started", "stopped"):
        yield speech_event(f"{who}_speech_{message['status']}", time_ms)


def _vapi_words(message: Mapping[str, Any], time_ms: float) -> Iterator[Event]:
    if message.get("transcriptType", "final") == "final":
        yield from message_events(message.get("role"), message.get("transcript"), time_ms)


def _vapi_tools(message: Mapping[str, Any], time_ms: float) -> Iterator[Event]:
    for each in _listed(message.get("toolCallList")):
        function = _mapping(each.get("function"))
        arguments = each.get("parameters", each.get("arguments", function.get("arguments")))
        name = each.get("name") or function.get("name")
        yield tool_event("in_progress", time_ms, each.get("id"), function_name=name, arguments=parsed(arguments))


_Rule = Callable[[Mapping[str, Any], float], Iterator[Event]]
_VAPI: Final[Mapping[str, _Rule]] = {
    "status-update": _vapi_status,
    "speech-update": _vapi_speech,
    "transcript": _vapi_words,
    'transcript[transcriptType="final"]': _vapi_words,
    "tool-calls": _vapi_tools,
    "end-of-call-report": _vapi_report,
}


# OpenAI's realtime API: events of its socket, with the `conversation_id` and the `timestamp` that the sender adds. They have no time of
# their own. The server says that the caller stopped when it has heard silence for `silence_duration_ms`: that is the ruling that the
# turn is over, unless the sender adds this setting, so that the end of the speech itself is known.

_REALTIME: Final = re.compile(
    r"(input_audio_buffer|output_audio_buffer|conversation\.item|conversation|response|session|rate_limits)\."
)


def _of_realtime(kind: str, event: Mapping[str, Any], now_ms: int) -> Iterator[Event]:
    named = {"conversation_id": event.get("conversation_id")}
    time_ms = _time_ms(event.get("timestamp"), now_ms)
    for found in _realtime(kind, event, time_ms):
        yield {**named, **found}


def _realtime(kind: str, event: Mapping[str, Any], time_ms: float) -> Iterator[Event]:
    silence_ms = number_in(event.get("silence_duration_ms"))
    of, silence_ms = ("turn", 0) if silence_ms is None or not 0 <= silence_ms < time_ms else ("speech", silence_ms)
    match kind:
        case "input_audio_buffer.speech_started":
            yield speech_event(f"user_{of}_started", time_ms)
        case "input_audio_buffer.speech_stopped":
            yield speech_event(f"user_{of}_stopped", time_ms - silence_ms)
        case "output_audio_buffer.started":
            yield speech_event("bot_speech_started", time_ms)
        case "output_audio_buffer.stopped" | "output_audio_buffer.cleared":
            yield speech_event("bot_speech_stopped", time_ms)
        case "conversation.item.input_audio_transcription.completed":
            yield from message_events("user", event.get("transcript"), time_ms)
        case "response.output_audio_transcript.done" | "response.audio_transcript.done":
            yield from message_events("assistant", event.get("transcript"), time_ms)
        case "response.function_call_arguments.done":
            arguments = parsed(event.get("arguments"))
            yield tool_event(
                "in_progress", time_ms, event.get("call_id"), function_name=event.get("name"), arguments=arguments
            )
        case "conversation.item.create":  # the sender's own event with the answer of a tool; its call has the name
            item = _mapping(event.get("item"))
            if item.get("type") == "function_call_output":
                result = parsed(item.get("output"))
                yield tool_event("completed", time_ms, item.get("call_id"), result=result)
        case "error":
            yield {
                "type": "error",
                "timestamp": int(time_ms),
                "data": {"error": str(_mapping(event["error"]).get("message"))},
            }
