"""Vapi: messages to a server URL. `speech-update` has the four moments; `timestamp` is in epoch milliseconds. Pure."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from consumers.engine.sources.told import (
    Event,
    listed_in,
    mapping_in,
    message_events,
    parsed,
    speech_event,
    time_ms_in,
    tool_event,
)


def told(message: Mapping[str, Any], now_ms: int) -> Iterator[Event]:
    """What a message says of its call; `now_ms` is the time of one that has none."""
    call = mapping_in(message.get("call"))
    time_ms = time_ms_in(message.get("timestamp"), now_ms)
    for event in _VAPI.get(message["type"], _nothing)(message, time_ms):
        yield {"conversation_id": call.get("id"), **event}


def _nothing(_message: Mapping[str, Any], _time_ms: float) -> Iterator[Event]:
    return iter(())


def _vapi_status(message: Mapping[str, Any], time_ms: float) -> Iterator[Event]:
    if message.get("status") == "in-progress":
        assistant, call = mapping_in(message.get("assistant")), mapping_in(message.get("call"))
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
    ended = {"type": "call_ended", "timestamp": int(time_ms_in(message.get("endedAt"), time_ms))}
    yield {**ended, "reason": reason} if isinstance(reason, str) else ended


def _vapi_report(message: Mapping[str, Any], time_ms: float) -> Iterator[Event]:
    """The report has the answers of tools, which no message has while the call runs."""
    for each in listed_in(mapping_in(message.get("artifact")).get("messages")):
        if each.get("role") == "tool_call_result":
            result = parsed(each.get("result"))
            yield tool_event(
                "completed",
                time_ms_in(each.get("time"), time_ms),
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
    for each in listed_in(message.get("toolCallList")):
        function = mapping_in(each.get("function"))
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
