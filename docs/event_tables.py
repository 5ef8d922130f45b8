"""Writes the part of events.md that lists every event: when it is sent, its fields with their
units, and an example.

Fields and examples are those of the models in `schemas/events`, so the page cannot name a field
that there is not.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, get_args

from pydantic import BaseModel

from schemas.events.audit import AuditEvent
from schemas.events.codec import ControlEvent
from schemas.events.elevenlabs import ConversationRecord, TypedAgentEvent
from schemas.events.examples import EXAMPLES
from schemas.events.pipecat import PipecatEvent
from schemas.events.simulator import AudioEvent, TypedSimulatorEvent
from schemas.wire import MAX_NAME_CHARS, MAX_TEXT_CHARS


def _models(union: Any) -> tuple[type[BaseModel], ...]:
    return get_args(get_args(union)[0])


_CONTROL: Final = _models(ControlEvent)
_FIRST: Final = ("SpeechEventRecord", "MessageRecord", "FunctionCallRecord")
"""The events that any agent needs first."""


class EventSource(NamedTuple):
    """One group of events: its title, its topic, and the stream by which POST /events names it."""

    title: str
    topic: str
    stream: str
    models: Sequence[type[BaseModel]]


def _without_control(union: Any) -> list[type[BaseModel]]:
    return [model for model in _models(union) if model not in _CONTROL]


_OF_BOTS: Final = sorted(
    _without_control(PipecatEvent), key=lambda model: model.__name__ not in _FIRST
)
_OF_AGENTS: Final[list[type[BaseModel]]] = [*_models(TypedAgentEvent), ConversationRecord]
_OF_CALLERS: Final[list[type[BaseModel]]] = [AudioEvent, *_without_control(TypedSimulatorEvent)]
SOURCES: Final = (
    EventSource("Any source", "any input topic", "audit", _CONTROL),
    EventSource(
        "Speech, words, tools and figures of any agent, in pipecat's words",
        "`pipecat.events`",
        "pipecat",
        _OF_BOTS,
    ),
    EventSource("The agent's audit log", "`audit.events`", "audit", _models(AuditEvent)),
    EventSource("A real ElevenLabs agent", "`elevenlabs.events`", "elevenlabs", _OF_AGENTS),
    EventSource("A simulated caller of EVA", "`elevenlabs.events`", "user_sim", _OF_CALLERS),
)

WHEN: Final[Mapping[str, str]] = {
    "CallStarted": "When the call begins, or later, when more is known. A field "
    "that a later one omits stays "
    "unchanged. "
    "Without this event the agent is `unknown` and the pipeline type is `cascade`. "
    "A tool may stand under `function`, the shape that OpenAI's models take. "
    "`recording_url` is where the sound of the call is kept, and may come with `call_ended` "
    "instead: the newest counts. See [the recording](#the-recording).",
    "CallEnded": "When the call is over. The call closes after a grace of 10 "
    "s. `reason` may be any word; "
    "scores know `goodbye`, "
    "`inactivity_timeout` (somebody fell silent), `time_limit_exceeded` and `timeout` (cut off at "
    "a time limit).",
    "UserTextUpdated": "When the real text replaces the placeholder of an audio "
    "model: in the audit `user` entry "
    "with this "
    "`turn_id`, otherwise in the last one.",
    "TurnDetails": "When the bot retrieves documents for an answer, answers "
    "with another model than usual, "
    "enters a node of its "
    "workflow, or the caller rates an answer (`like`, `dislike`). Each field is optional. Only "
    "transcripts have it, in "
    "ElevenLabs' form: on the answer of the turn in which `timestamp`, or `turn_at`, lies; a "
    "rating on the newest answer by then; a "
    "node on all that the agent says and does from then on.",
    "SpeechEventRecord": "When a side starts or stops speaking. `user_speech_*` "
    "comes from the voice activity "
    "detector, "
    "`user_turn_*` from the turn strategy. `data.timestamp` is the time of the sound itself, in "
    "seconds. `started_at` "
    "belongs to a stop: it repeats the start, so a lost start does no harm. `sound_id` of a start "
    "names the sound; a `user_message` "
    "with the same one has its words, however late it comes.",
    "MessageRecord": "When the words of a turn are complete. `data.timestamp` "
    "is the time at which the turn "
    "began, by ISO 8601 or in "
    "seconds: with it, words that come late belong to the turn of their sound. `interrupted` says "
    "whether the user cut the "
    "answer off; `content` is then the part that was heard.",
    "FunctionCallRecord": "When a tool call is requested, starts to run, and ends. "
    "Leave `result` out to keep it "
    "private: "
    'the outcome is then `unknown`. `{"status": "error", "withheld": true}` tells the outcome '
    "alone.",
    "TtsText": (
        "When text goes to speech synthesis: a word or a phrase. It is no sound; latencies need "
        "`speech_event`."
    ),
    "LlmResponse": (
        "When the language model has answered, as a whole or in chunks. It counts only in a call "
        "without `tts_text`."
    ),
    "TurnMarker": "At the border of a turn. It separates groups of texts.",
    "UserSpeaking": (
        "When the bot decides that the user's turn begins or ends. pipecat writes it once for each "
        "destination."
    ),
    "ObserverRecord": (
        "When one of pipecat's observers reports a latency or a usage. Only its numbers are kept."
    ),
    "PipecatMetric": "When a pipecat service reports a number. The name of "
    "pipecat's class is the `type`; "
    "latencies are in "
    "seconds.",
    "EventsDropped": "When the bot had to drop events because the broker was "
    "away: their number by subject "
    "(`metrics`, "
    "`words`, `speech`, `tools`, `call`, `unread`).",
    "ProcessorFailed": (
        "When a processor of the bot reports an error. It is counted; its text is not kept."
    ),
    "IgnoredLine": "Lines of EVA's pipecat log that no rule reads. You need not send them.",
    "CallNote": "When another agent takes over, or what looked like an "
    "interruption was none (`resumed`). "
    "It is kept in the topic; "
    "no score reads it yet.",
    "ToolLine": (
        "A copy of a tool call by realtime frameworks. No rule reads it: the audit log has the "
        "call too."
    ),
    "AuditUser": (
        "When the agent has the user's words. `turn_id` marks a placeholder that "
        "`user_text_updated` replaces."
    ),
    "AuditAssistant": "When the language model has written a reply, before it is spoken.",
    "AuditToolCall": "When a tool is about to run. Goals compare `tool` and `parameters`.",
    "AuditToolResponse": (
        'When the tool has answered. A `response` with `"status": "error"` is a failed call.'
    ),
    "AuditFallback": "When the agent's timer for the end of a turn fires.",
    "AuditLlmCall": (
        "After a step of the language model. `latency_ms` is from the request to the end of the "
        "answer."
    ),
    "UserTranscript": "When ElevenLabs has understood the user's turn.",
    "AgentResponse": "When the answer begins to sound. It has the whole text.",
    "AgentResponseCorrection": (
        "When the user has interrupted: the part of the answer that was heard."
    ),
    "Interruption": "When the agent stops because the user speaks.",
    "ToolRequested": (
        "When a tool is about to run. A client tool has both types, with one `tool_call_id`."
    ),
    "ToolReplied": "When a tool has answered. The full form has the result too.",
    "McpToolCalled": "When a tool of an MCP server changes its state.",
    "ConversationInitiated": "When the conversation begins.",
    "AgentResponseComplete": "When the answer is complete.",
    "AgentFailed": "When ElevenLabs reports an error.",
    "CarriedAgentEvent": (
        "Events of ElevenLabs that no rule reads. A bridge need not send them, above all not "
        "`audio`."
    ),
    "ConversationRecord": "After the call: the answer of ElevenLabs' API, or the body "
    "of its post-call webhook. It "
    "has the "
    "exact latencies. It has no `type`.",
    "AudioEvent": (
        "When sound begins or ends. `audio_timestamp` is the time of the sound, in seconds."
    ),
    "UserSpeech": "The words that the simulated caller means to say.",
    "AssistantSpeech": "The assistant's words as the simulated caller understood them.",
    "ConnectionState": "When the state of the line changes. `session_ended` ends the call.",
    "CarriedSimulatorEvent": (
        "Events that no rule reads. Their time counts as activity of the call."
    ),
}
"""When each event is sent, by its model."""

_NOT_LISTED: Final = frozenset(
    {
        *(
            "source",
            "destination",
            "displayName",
            "isBotMessage",
            "provider",
            "sequence",
            "conversation_id",
        ),
        *("is_time_exact", "is_from_record"),
    }
)
"""Fields of EVA's logs that no rule reads, and those that the text above the tables
explains once.
"""
_UNITS: Final = {"_ms": "ms", "_secs": "s"}
"""Units by the end of a field's name."""
_TIMES_SINCE_1970: Final = ("start_time_unix_secs", "created_at_unix_ms", "recording_starts_ms")
_KIND_FIELDS: Final = ("message_type", "event_type", "type")
_ANY: Final = "any JSON"
MAX_DEPTH: Final = 2
"""Fields inside fields that are listed. Deeper ones are in the JSON Schema."""


def event_lines() -> Iterator[str]:
    """The lines of the generated part, group by group."""
    for source in SOURCES:
        yield from ("", f"## {source.title}", "", f"Topic: {source.topic}.")
        for model in source.models:
            names = kinds_of(model)
            title = ", ".join(f"`{name}`" for name in names) if names else "The conversation record"
            yield from (
                "",
                f"### {title}" if len(names) < 4 else f"### `{names[0]}` and others",
                "",
            )
            if len(names) >= 4:
                yield from (f"Types: {title}.", "")
            yield from (WHEN[model.__name__], "")
            required, optional = _fields(model)
            if required:
                yield f"- Required: {', '.join(required)}."
            if optional:
                yield f"- Optional: {', '.join(optional)}."
            yield from ("", "```json", json.dumps(EXAMPLES[model.__name__]), "```")


def kinds_of(model: type[BaseModel]) -> tuple[str, ...]:
    """The words that identify the event: its `type`, `message_type` or `event_type`."""
    for field in _KIND_FIELDS:
        if field in model.model_fields:
            words = [
                word
                for word in get_args(model.model_fields[field].annotation)
                if isinstance(word, str)
            ]
            if words:
                return tuple(words)
    return ()


def _fields(model: type[BaseModel]) -> tuple[list[str], list[str]]:
    """The required and the optional fields, each with its type and unit."""
    schema = model.model_json_schema(by_alias=True)
    required: list[str] = []
    optional: list[str] = []
    # it is derived from others
    left_out = _NOT_LISTED | ({"timestamp"} if model is ConversationRecord else set())
    for name, is_required, text in _described(schema, schema.get("$defs", {}), "", 0):
        if name not in left_out and name not in _KIND_FIELDS:
            (required if is_required else optional).append(f"`{name}` ({text})")
    return required, optional


def _described(
    schema: Mapping[str, Any], definitions: Mapping[str, Any], prefix: str, depth: int
) -> Iterator[tuple[str, bool, str]]:
    for name, field in schema.get("properties", {}).items():
        is_required = name in schema.get("required", ())
        inner = _resolved(field, definitions)
        if "properties" in inner and depth < MAX_DEPTH:
            # The fields inside an optional object are optional too.
            for each, needed, text in _described(inner, definitions, f"{prefix}{name}.", depth + 1):
                yield each, is_required and needed, text
        else:
            yield prefix + name, is_required, _with_unit(name, _type_of(inner, definitions))


def _with_unit(name: str, text: str) -> str:
    unit = next((unit for end, unit in _UNITS.items() if name.endswith(end)), None)
    if unit is None or name in _TIMES_SINCE_1970:
        return text
    return f"list of numbers, {unit}" if text == "list" else unit


def _resolved(field: Mapping[str, Any], definitions: Mapping[str, Any]) -> Mapping[str, Any]:
    choices = [choice for choice in field.get("anyOf", ()) if choice.get("type") != "null"]
    if choices:
        field = choices[0]
    name = field.get("$ref", "").rpartition("/")[2]
    return definitions[name] if name else field


def _type_of(field: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    about = field.get("description", "")
    if about.startswith("Milliseconds"):
        return "ms since 1970"
    if about.startswith("Seconds"):
        return "s since 1970"
    if words := field.get("enum") or ([field["const"]] if "const" in field else None):
        return " or ".join(f"`{word}`" for word in words)
    kind = field.get("type")
    if kind == "array":
        inner = _resolved(field.get("items", {}), definitions)
        names = [name for name, *_ in _described(inner, definitions, "", MAX_DEPTH)]
        return f"list of objects: {', '.join(f'`{name}`' for name in names)}" if names else "list"
    if kind == "string":
        size = field.get("maxLength")
        return {MAX_TEXT_CHARS: "text", MAX_NAME_CHARS: "name"}.get(size or 0, "text")
    return {
        "boolean": "true or false",
        "integer": "integer",
        "number": "number",
        "object": "object",
    }.get(kind or "", _ANY)
