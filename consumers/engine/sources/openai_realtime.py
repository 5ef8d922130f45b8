"""OpenAI's realtime API: events of its socket, with the `conversation_id` and the `timestamp` that
the sender adds. Pure.

They have no time of their own. The server says that the caller stopped when it has heard silence
for `silence_duration_ms`: that is the ruling that the turn is over, unless the sender adds this
setting, so that the end of the speech itself is known.

An event has one name in the beta and another one since; both are read. A second connection to the
same call sees each item of the conversation several times: a use of a tool has an id, so it counts
once.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from consumers.engine.sources.told import (
    Event,
    Framework,
    agent_told,
    call_started,
    error_event,
    listed_in,
    mapping_in,
    message_events,
    named_sound,
    number_in,
    parsed,
    speech_event,
    time_ms_in,
    tool_event,
)

TYPES: Final = re.compile(
    r"(input_audio_buffer|output_audio_buffer|conversation\.item|conversation|response|session|rate_limits|mcp_list_tools)\."
)
"""How the types of its events begin."""
_NO_ERROR: Final = frozenset({"max_output_tokens"})
"""Reasons of an incomplete answer that are a limit of the sender, and no error."""


def _owns(event: Mapping[str, Any]) -> bool:
    kind = event.get("type")
    return isinstance(kind, str) and (
        TYPES.match(kind) is not None
        or (kind == "error" and isinstance(event.get("error"), Mapping))
    )


def _told(event: Mapping[str, Any], now_ms: int) -> Iterator[Event]:
    time_ms = time_ms_in(event.get("timestamp"), now_ms)
    for told in _realtime(event["type"], event, time_ms):
        yield {"conversation_id": event.get("conversation_id"), **told}


def _realtime(kind: str, event: Mapping[str, Any], time_ms: float) -> Iterator[Event]:
    silence_ms = number_in(event.get("silence_duration_ms"))
    of, silence_ms = (
        ("turn", 0)
        if silence_ms is None or not 0 <= silence_ms < time_ms
        else ("speech", silence_ms)
    )
    item = mapping_in(event.get("item"))
    match kind:
        case "session.created" | "session.updated":
            yield from _began(mapping_in(event.get("session")), time_ms)
        case "input_audio_buffer.speech_started":
            yield speech_event(f"user_{of}_started", time_ms, **named_sound(event.get("item_id")))
        case "input_audio_buffer.speech_stopped":
            yield speech_event(f"user_{of}_stopped", time_ms - silence_ms)
        case "output_audio_buffer.started" | "output_audio_buffer.audio_started":
            yield speech_event("bot_speech_started", time_ms)
        case (
            "output_audio_buffer.stopped"
            | "output_audio_buffer.audio_stopped"
            | "output_audio_buffer.cleared"
        ):
            yield speech_event("bot_speech_stopped", time_ms)
        case "conversation.item.input_audio_transcription.completed":
            # It may come seconds later than the sound; the item is what the sound became.
            yield from message_events(
                "user", event.get("transcript"), time_ms, event.get("item_id")
            )
        case "conversation.item.input_audio_transcription.failed":
            yield _failed(event.get("error"), time_ms, kind, processor="STTService#0")
        case "response.output_audio_transcript.done" | "response.audio_transcript.done":
            yield from message_events("assistant", event.get("transcript"), time_ms)
        # another service speaks the answer
        case "response.output_text.done" | "response.text.done":
            yield from message_events("assistant", event.get("text"), time_ms)
        case "response.function_call_arguments.done":
            yield from _called({**event, "status": "completed"}, event.get("call_id"), time_ms)
        case "conversation.item.create":  # the sender's own
            yield from _answered(item, time_ms)
        case (
            "conversation.item.created"
            | "conversation.item.added"
            | "conversation.item.done"
            | "conversation.item.retrieved"
        ):
            yield from _answered(item, time_ms)
            yield from _used(item, time_ms)
        case "response.output_item.added" | "response.output_item.done":
            yield from _used(item, time_ms)
        case "response.mcp_call.in_progress":
            yield tool_event("in_progress", time_ms, event.get("item_id"))
        case "response.done":
            response = mapping_in(event.get("response"))
            for each in listed_in(response.get("output")):
                yield from _used(each, time_ms)
            yield from _done(response, time_ms)
        case "mcp_list_tools.failed":
            yield error_event(time_ms, "the tools of an MCP server could not be listed")
        case "error":
            yield _failed(event["error"], time_ms, kind)


def _began(session: Mapping[str, Any], time_ms: float) -> Iterator[Event]:
    """What the agent is told, and what it makes of sound: speech, or words for a voice. Other
    sessions transcribe alone.
    """
    if session.get("type", "realtime") == "realtime":
        makes = session.get("output_modalities") or session.get("modalities")
        pipeline = {}
        if isinstance(makes, list) and makes:
            pipeline = {"pipeline_type": "s2s" if "audio" in makes else "audio_llm"}
        told = {**pipeline, **agent_told(session.get("instructions"), session.get("tools"))}
        if told:
            yield {**call_started(time_ms, None), **told}


def _done(response: Mapping[str, Any], time_ms: float) -> Iterator[Event]:
    """The error of an answer that failed. One that the caller cut off is `cancelled`,
    and no error.
    """
    details = mapping_in(response.get("status_details"))
    status, reason = response.get("status"), details.get("reason")
    if status == "failed" or (
        status == "incomplete" and (details.get("error") or reason not in _NO_ERROR)
    ):
        known = mapping_in(details.get("error")) or {"code": reason, "message": reason}
        yield _failed(known, time_ms, "response.done", processor="LLMService#0")


def _failed(error: object, time_ms: float, told_by: str, **known: object) -> Event:
    """An error. The server may say by an `error` and by the answer that an answer failed: its code,
    or else its type, is in both.
    """
    told = mapping_in(error)
    cause = told.get("code") or told.get("type")
    message = told.get("message") or cause or "the answer failed"
    return error_event(
        time_ms, message, cause=cause if isinstance(cause, str) else None, told_by=told_by, **known
    )


def _used(item: Mapping[str, Any], time_ms: float) -> Iterator[Event]:
    """A use of a tool that the model asks for, once its arguments are whole; of an MCP server's
    tool also its answer.
    """
    match item.get("type"):
        case "function_call":
            yield from _called(item, item.get("call_id"), time_ms)
        case "mcp_call":
            yield from _called(item, item.get("id"), time_ms)
            output, error, known = (
                item.get("output"),
                item.get("error"),
                {"function_name": item.get("name")},
            )
            if error:
                message = mapping_in(error).get("message")
                yield tool_event(
                    "failed", time_ms, item.get("id"), error=str(message or error), **known
                )
            elif output is not None:
                yield tool_event(
                    "completed", time_ms, item.get("id"), result=parsed(output), **known
                )


def _called(use: Mapping[str, Any], call_id: object, time_ms: float) -> Iterator[Event]:
    arguments, status = use.get("arguments"), use.get("status")
    if status == "completed" or (arguments and status not in ("in_progress", "incomplete")):
        known = {
            "function_name": use.get("name"),
            "arguments": parsed(arguments) if arguments else None,
        }
        yield tool_event("in_progress", time_ms, call_id, **known)


def _answered(item: Mapping[str, Any], time_ms: float) -> Iterator[Event]:
    """The answer of a tool: the use of it has the name."""
    if item.get("type") == "function_call_output":
        yield tool_event(
            "completed", time_ms, item.get("call_id"), result=parsed(item.get("output"))
        )


FRAMEWORK: Final = Framework(
    "openai-realtime",
    _owns,
    _told,
    id_of=lambda event: event.get("event_id"),
)
