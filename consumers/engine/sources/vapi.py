"""Vapi: messages to a server URL. `speech-update` has the four moments; `timestamp` is in epoch
milliseconds. Pure.

Each message repeats the whole call so far, which no rule reads. The report comes when the call is
over, up to a minute later. It tells everything once more, so it also stands alone.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from consumers.engine.sources.told import (
    MAX_RECORD_ENTRIES,
    Event,
    Framework,
    agent_told,
    call_ended,
    call_started,
    listed_in,
    mapping_in,
    message_events,
    number_in,
    of_record,
    parsed,
    recorded_speech,
    service_latency,
    speech_event,
    spoke_event,
    time_ms_in,
    tool_event,
)
from schemas.units import to_seconds

REPORT: Final = "end-of-call-report"
Message = Mapping[str, Any]


def _owns(event: Mapping[str, Any]) -> bool:
    message = event.get("message")
    return isinstance(message, Mapping) and isinstance(message.get("type"), str)


def _told(event: Mapping[str, Any], now_ms: int) -> Iterator[Event]:
    message = event["message"]
    call = mapping_in(message.get("call"))
    time_ms = time_ms_in(message.get("timestamp"), now_ms)
    for told in _RULES.get(message["type"], _nothing)(message, time_ms):
        yield {"conversation_id": call.get("id"), **told}


def _nothing(_message: Message, _time_ms: float) -> Iterator[Event]:
    return iter(())


# While the call runs.


def _status(message: Message, time_ms: float) -> Iterator[Event]:
    if message.get("status") == "in-progress":
        yield {**call_started(time_ms, _agent(message)), **_told_agent(message)}
    elif message.get("status") == "ended":
        wanted = mapping_in(message.get("assistant")).get("serverMessages")
        yield _ended(
            message, time_ms, awaits_record=not isinstance(wanted, list) or REPORT in wanted
        )


def _ended(message: Message, time_ms: float, *, awaits_record: bool) -> Event:
    ended_ms = time_ms_in(_of_call(message, "endedAt"), time_ms)
    return call_ended(ended_ms, _of_call(message, "endedReason"), awaits_record=awaits_record)


def _of_call(message: Message, name: str) -> object:
    """A field that a message has, or the call in it: older messages and newer ones differ."""
    return message.get(name) or mapping_in(message.get("call")).get(name)


def _agent(message: Message) -> object:
    assistant = _assistant(message)
    return (
        assistant.get("name")
        or mapping_in(message.get("call")).get("assistantId")
        or assistant.get("id")
    )


def _assistant(message: Message) -> Mapping[str, Any]:
    return mapping_in(message.get("assistant")) or mapping_in(
        mapping_in(message.get("call")).get("assistant")
    )


def _told_agent(message: Message) -> Event:
    """The prompt and the tools of the assistant's model. Where tools are named by ids, it is
    unknown which ones there are.
    """
    model = mapping_in(_assistant(message).get("model"))
    prompts = [
        each.get("content")
        for each in listed_in(model.get("messages"))
        if each.get("role") == "system"
    ]
    prompt = "\n".join(each for each in prompts if isinstance(each, str)) or model.get(
        "systemPrompt"
    )
    tools = None if model.get("toolIds") else model.get("tools") or model.get("functions")
    return agent_told(prompt, tools)


def _speech(message: Message, time_ms: float) -> Iterator[Event]:
    yield from spoke_event(message.get("role"), message.get("status"), time_ms)


def _words(message: Message, time_ms: float) -> Iterator[Event]:
    if message.get("transcriptType", "final") == "final":
        yield from message_events(message.get("role"), message.get("transcript"), time_ms)


def _interrupted(_message: Message, time_ms: float) -> Iterator[Event]:
    yield speech_event("interruption", time_ms, cause="user_speech")


def _handed_over(message: Message, time_ms: float) -> Iterator[Event]:
    """From one assistant to another; a transfer to a person has no `toAssistant`."""
    known = {"old_agent": message.get("fromAssistant"), "new_agent": message.get("toAssistant")}
    named = {
        key: name
        for key, each in known.items()
        if isinstance(name := mapping_in(each).get("name"), str)
    }
    if "new_agent" in named:
        yield {"type": "agent_handoff", "timestamp": int(time_ms), "data": named}


def _tools(message: Message, time_ms: float) -> Iterator[Event]:
    uses = listed_in(message.get("toolCallList")) or listed_in(message.get("toolCalls"))
    # The oldest messages have the use inside of the tool's settings alone.
    inside = [
        mapping_in(each.get("toolCall")) for each in listed_in(message.get("toolWithToolCallList"))
    ]
    for use in uses or inside:
        yield _called(use, time_ms)


def _function(message: Message, time_ms: float) -> Iterator[Event]:
    """The message of before there were tools. Its use has no id: the time tells one
    from another.
    """
    use = mapping_in(message.get("functionCall"))
    if use:
        yield _called({"id": f"function-call-{int(time_ms)}", **use}, time_ms)


def _called(use: Mapping[str, Any], time_ms: float) -> Event:
    function = mapping_in(use.get("function"))
    arguments = use.get(
        "parameters", use.get("arguments", function.get("arguments", function.get("parameters")))
    )
    name = use.get("name") or function.get("name")
    return tool_event(
        "in_progress", time_ms, use.get("id"), function_name=name, arguments=parsed(arguments)
    )


# The report.


def _report(message: Message, time_ms: float) -> Iterator[Event]:
    artifact = mapping_in(message.get("artifact"))
    entries = listed_in(artifact.get("messages") or message.get("messages"), MAX_RECORD_ENTRIES)
    first_ms = min((time_ms_in(each.get("time"), time_ms) for each in entries), default=time_ms)
    told = [
        *_heard(entries, time_ms),
        *_used(entries, time_ms),
        *_waited(entries, mapping_in(artifact.get("performanceMetrics"))),
    ]
    started = call_started(
        time_ms_in(_of_call(message, "startedAt"), first_ms), _agent(message), is_from_record=True
    )
    yield {**started, **_told_agent(message)}
    yield from of_record(told)
    yield {**_ended(message, time_ms, awaits_record=False), **_recording(message, artifact)}


def _recording(message: Message, artifact: Mapping[str, Any]) -> Event:
    """Where the sound of the call is kept, both sides together, as a field of `call_ended`; nothing
    where the assistant records nothing. Older reports have it beside the artifact.
    """
    recording = mapping_in(artifact.get("recording"))
    url = (
        artifact.get("recordingUrl")
        or mapping_in(recording.get("mono")).get("combinedUrl")
        or recording.get("stereoUrl")
        or message.get("recordingUrl")
    )
    return {"recording_url": url} if isinstance(url, str) else {}


def _heard(entries: list[Mapping[str, Any]], time_ms: float) -> Iterator[Event]:
    for each in entries:
        start_ms = time_ms_in(each.get("time"), time_ms)
        yield from recorded_speech(
            each.get("role"), each.get("message"), start_ms, number_in(each.get("endTime"))
        )


def _used(entries: list[Mapping[str, Any]], time_ms: float) -> Iterator[Event]:
    """Tools with their times: no message has an answer of one while the call runs."""
    called_ms: dict[object, float] = {}
    for each in entries:
        at_ms = time_ms_in(each.get("time"), time_ms)
        if each.get("role") == "tool_calls":
            for use in listed_in(each.get("toolCalls")):
                called_ms[str(use.get("id"))] = at_ms
                yield _called(use, at_ms)
        elif each.get("role") == "tool_call_result":
            began_ms = called_ms.get(str(each.get("toolCallId")))
            yield tool_event(
                "completed",
                at_ms,
                each.get("toolCallId"),
                function_name=each.get("name"),
                result=parsed(each.get("result")),
                in_progress_at=None if began_ms is None else to_seconds(began_ms),
            )


def _waited(entries: list[Mapping[str, Any]], metrics: Mapping[str, Any]) -> Iterator[Event]:
    """The latencies of the turns, in ms in the order of the answers. They name no turn: where there
    are more or fewer of them than answered turns, it is unknown whose they are, and they are left
    out.
    """
    latencies = listed_in(metrics.get("turnLatencies"), MAX_RECORD_ENTRIES)
    answered = list(_answered(entries))
    if len(latencies) != len(answered):
        return
    for each, (silent_ms, answer_ms) in zip(latencies, answered, strict=True):
        wait_ms, ruled_ms, heard_ms, thought_ms, voiced_ms = (
            _took_ms(each.get(name)) for name in _LATENCIES
        )
        if wait_ms:
            whole = {"type": "user_bot_latency", "timestamp": int(answer_ms)}
            yield {**whole, "data": {"latency_seconds": to_seconds(wait_ms)}}
        if ruled_ms:
            breakdown = {
                "user_turn_start_time": to_seconds(silent_ms),
                "user_turn_secs": to_seconds(ruled_ms),
            }
            yield {
                "type": "latency_breakdown",
                "timestamp": int(silent_ms + ruled_ms),
                "data": breakdown,
            }
        if heard_ms:
            yield service_latency("STT", silent_ms, heard_ms)
        asked_ms = silent_ms + ruled_ms
        if thought_ms:
            yield service_latency("LLM", asked_ms, thought_ms)
        if voiced_ms:
            yield service_latency("TTS", asked_ms + thought_ms, voiced_ms)


def _answered(entries: list[Mapping[str, Any]]) -> Iterator[tuple[float, float]]:
    """When the caller fell silent and when the first answer to it began, of each turn that has both
    times.
    """
    silent_ms: float | None = None
    for each in entries:
        began_ms = number_in(each.get("time"))
        if each.get("role") == "user":
            silent_ms = number_in(each.get("endTime"))
        elif (
            each.get("role") in ("bot", "assistant")
            and silent_ms is not None
            and began_ms is not None
        ):
            yield silent_ms, began_ms
            silent_ms = None


def _took_ms(value: object) -> float:
    """A length of time; 0 for anything that is none."""
    return max(0.0, number_in(value) or 0.0)


_LATENCIES: Final = (
    "turnLatency",
    "endpointingLatency",
    "transcriberLatency",
    "modelLatency",
    "voiceLatency",
)
_Rule = Callable[[Message, float], Iterator[Event]]
_RULES: Final[Mapping[str, _Rule]] = {
    "status-update": _status,
    "speech-update": _speech,
    "transcript": _words,
    'transcript[transcriptType="final"]': _words,
    "user-interrupted": _interrupted,
    "transfer-update": _handed_over,
    "tool-calls": _tools,
    "function-call": _function,
    REPORT: _report,
}
FRAMEWORK: Final = Framework("vapi", _owns, _told)
