"""Turns the record of a conversation with an ElevenLabs agent into the events that its call would have produced. Pure.

Records of the newest releases have the time of each entry in milliseconds. Others have whole seconds: then the events are
in the right order and no latency is estimated from them. ElevenLabs' own measurements come with the record, which is the
last event. A record may come as spans in place of entries (`otlp_traces`): then the entries are made from them.
"""

import ast
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError, from_json

from consumers.engine.sources.otlp import Span, spans_in_json
from schemas.events.elevenlabs import ConversationRecord, RecordedToolCall, RecordedToolResult, RecordEntry
from schemas.units import MS_PER_SECOND
from schemas.wire import without_infinity
from streamer.recordings.files import shown

Event = dict[str, Any]
_ROLES: Final = ("user", "agent")
RECORD_WEBHOOKS: Final = frozenset({"post_call_transcription", "post_call_transcription_otel", "unredacted_transcript"})
"""Types of webhooks whose `data` is the record of a conversation."""


class AgentCall(NamedTuple):
    """A call with an agent of ElevenLabs.

    Attributes:
        conversation_id: ElevenLabs' id; None if the record has none.
        agent: Name of the agent, otherwise its id; None if the record has neither.
        ended_reason: Why the call ended.
        events: Events of the agent by time, and last the record itself.
        left_out: What of the record is not read, a sentence for each entry: the rest of the call is.
    """

    conversation_id: str | None
    agent: str | None
    ended_reason: str | None
    events: tuple[Event, ...]
    left_out: tuple[str, ...]


def record_in(document: object) -> dict[str, Any] | None:
    """The conversation record that a JSON document is, holds in a webhook's body, or lists the entries of; None if it is none.

    A record without entries is one of a call without turns: nobody spoke, or the webhook leaves the transcript out
    (`exclude_transcript`).
    """
    if isinstance(document, Mapping) and isinstance(document.get("data"), Mapping):
        if other_webhook(document) is not None:
            return None
        document = document["data"]
    if isinstance(document, list):
        record: Mapping[str, Any] = {"transcript": document}
    elif isinstance(document, Mapping):
        record = document
    else:
        return None
    record = without_spans(record)[0]
    entries = record.get("transcript")
    if not entries:
        return {**record, "transcript": []} if _names_conversation(record) else None
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
        return None
    # Of somebody's conversation a role of tomorrow costs its entry; a list without a name may be another format altogether.
    is_record = _names_conversation(record) or all(entry.get("role") in _ROLES for entry in entries)
    return dict(record) if is_record else None


def _names_conversation(record: Mapping[Any, Any]) -> bool:
    """Whether a document without entries is about a conversation of an agent, and no recording of its sound."""
    has_subject = "agent_id" in record or isinstance(record.get("metadata"), Mapping)
    return isinstance(record.get("conversation_id"), str) and has_subject and "full_audio" not in record


def other_webhook(document: object) -> str | None:
    """The type of a webhook's body that holds no record: recorded sound, a call that never began, or a type of tomorrow."""
    kind = document.get("type") if isinstance(document, Mapping) and isinstance(document.get("data"), Mapping) else None
    return kind if isinstance(kind, str) and kind not in RECORD_WEBHOOKS else None


def agent_call(record: Mapping[str, Any]) -> AgentCall:
    """The call that a record is of.

    Raises:
        ValidationError: Something that a rule reads is of another type.
    """
    typed = _typed({**record, "timestamp": 0})
    events = _Events(_start_ms(typed))
    left_out = []
    for place, entry in enumerate(typed.transcript):
        if entry.role in _ROLES:
            events.add(entry)
        else:
            left_out.append(f"transcript[{place}].role: expected user or agent, saw {shown(entry.role)}")
    played = sorted(events.finished(typed.conversation_id), key=lambda event: event["timestamp"])
    duration_s = typed.metadata.call_duration_secs or 0.0
    end_ms = max(played[-1]["timestamp"], int(events.start_ms + duration_s * MS_PER_SECOND))
    return AgentCall(
        typed.conversation_id,
        typed.agent_name or typed.agent_id,
        typed.metadata.termination_reason,
        (*played, {**record, "timestamp": end_ms}),
        tuple(left_out),
    )


def _typed(record: Mapping[str, Any]) -> ConversationRecord:
    """The record, checked entry by entry: one check of 40,000 entries keeps every thread waiting for a tenth of a second."""
    entries = record.get("transcript")
    if not isinstance(entries, list):
        return ConversationRecord.model_validate(record)
    whole = ConversationRecord.model_validate({**record, "transcript": ()})
    return whole.model_copy(update={"transcript": tuple(map(_checked, range(len(entries)), entries))})


def _checked(place: int, entry: Any) -> RecordEntry:
    try:
        return RecordEntry.model_validate(entry)
    except ValidationError as error:
        faults = [
            InitErrorDetails(
                type=fault["type"]
                if "ctx" not in fault
                else PydanticCustomError(fault["type"], "{text}", {"text": fault["msg"]}),
                loc=("transcript", place, *fault["loc"]),
                input=fault["input"],
            )
            for fault in error.errors(include_url=False)
        ]
        raise ValidationError.from_exception_data(error.title, faults) from None


# The record as spans: `elevenlabs.conversation`, and in it a span of each entry and of each tool, with attributes in ElevenLabs'
# names. They have no more than a record's entries have, but ids, and a rule for their names is all that is needed to read them.

_CONVERSATION: Final = "elevenlabs.conversation"
_TOOL: Final = "elevenlabs.tool."
_METRIC: Final = "elevenlabs.metric."
_IN_MS: Final = "_ms"
_USAGE: Final = "elevenlabs.llm_usage."
_MAX_USAGE_CHARS: Final = 2_048


def without_spans(record: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The record without `otlp_traces`, with entries made from them where it has no others, and the span of the call as a field.

    Raises:
        UnreadableSpansError: They are no spans.
    """
    record = dict(record)
    traces = record.pop("otlp_traces", None)
    spans = [] if not traces else list(spans_in_json(traces))
    root = next((span for span in spans if span.name == _CONVERSATION), None)
    if root is None:
        return record, {}
    if not record.get("transcript"):
        record["transcript"] = _entries(root, spans)
        length_s = (root.end_ms - root.start_ms) / MS_PER_SECOND
        told = {"start_time_unix_secs": root.start_ms / MS_PER_SECOND, "call_duration_secs": length_s,
                "termination_reason": root.first("elevenlabs.termination_reason")}  # fmt: skip
        record["metadata"] = {**told, **(record.get("metadata") or {})}
        record.setdefault("status", "done")
    return record, root.as_parent(root.span_id)


def _entries(root: Span, spans: Sequence[Span]) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for span in sorted(spans, key=lambda each: (each.start_ms, each.first("elevenlabs.turn.index") or 0)):
        user, agent = span.first("elevenlabs.user.text"), span.first("elevenlabs.agent.text")
        if span.name.startswith(_TOOL):
            entry = found.setdefault(span.parent_id, _entry(root, span, "agent", None))
            call, result = _tool(span)
            entry["tool_calls"] = [*entry.get("tool_calls", ()), call]
            entry["tool_results"] = [*entry.get("tool_results", ()), result]
        elif user is not None or agent is not None:
            role, words = ("agent", agent) if user is None else ("user", user)
            found[span.span_id] = {**found.get(span.span_id, {}), **_entry(root, span, role, words)}
    return list(found.values())


def _entry(root: Span, span: Span, role: str, words: object) -> dict[str, Any]:
    metrics: dict[str, Any] = {}
    usage: dict[str, dict[str, Any]] = {}
    for name, value in span.attributes.items():
        if name.startswith(_METRIC) and name.endswith(_IN_MS) and isinstance(value, int | float):
            metrics[name[len(_METRIC) : -len(_IN_MS)]] = {"elapsed_time": value / MS_PER_SECOND}
        elif name.startswith(_USAGE):
            model, _, kind = name.removeprefix(_USAGE).rpartition(".")
            usage.setdefault(model, {})[kind] = _amounts(value)
    return {
        "role": role,
        "message": words,
        "time_in_call_secs": max(0.0, (span.start_ms - root.start_ms) / MS_PER_SECOND),
        "conversation_turn_metrics": {"metrics": metrics} if metrics else None,
        "llm_usage": {"model_usage": usage} if usage else None,
    }


def _amounts(value: object) -> object:
    """Tokens and their price, which ElevenLabs writes as Python does: `{'tokens': 12, 'price': 0.1}`."""
    try:
        return ast.literal_eval(value[:_MAX_USAGE_CHARS]) if isinstance(value, str) else value
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None


def _tool(span: Span) -> tuple[dict[str, Any], dict[str, Any]]:
    named = {
        "request_id": span.first("elevenlabs.tool.request_id", "elevenlabs.tool.call_id") or span.span_id,
        "tool_name": span.first("elevenlabs.tool.name") or span.name.removeprefix(_TOOL),
    }
    arguments = span.first("elevenlabs.tool.parameters", "elevenlabs.tool.arguments")
    latency_ms = span.first("elevenlabs.tool.latency_ms")
    took_ms = latency_ms if isinstance(latency_ms, int | float) else span.end_ms - span.start_ms
    result = {
        "result_value": span.first("elevenlabs.tool.result"),
        "is_error": span.has_failed,
        "tool_latency_secs": max(0.0, took_ms / MS_PER_SECOND),
    }
    return {**named, "params_as_json": arguments if isinstance(arguments, str) else None}, {**named, **result}


class _Events:
    """Collects the events of a call, entry by entry. Every one is later than the one before it, so that their order is kept."""

    def __init__(self, start_ms: int) -> None:
        self.start_ms = start_ms
        self._latest_ms = start_ms
        self._events: list[Event] = []
        self._called_ms: dict[str, int] = {}
        self._without_id: Counter[tuple[type, str]] = Counter()
        self._cut_off_id: int | None = None
        self._is_cut_off = False

    def add(self, entry: RecordEntry) -> None:
        """Adds the events of an entry, in the order in which they happened."""
        if entry.user_words and self._is_cut_off:
            self._end_cut_off()
        time_ms, is_exact = self._time_of(entry)
        for message in _said(entry):
            self._put(message, time_ms, is_exact=is_exact, event_id=entry.source_event_id)
            time_ms = self._latest_ms + 1
        self._is_cut_off = self._is_cut_off or (entry.role == "agent" and bool(entry.interrupted))
        self._cut_off_id = entry.source_event_id if entry.interrupted else self._cut_off_id
        for call in entry.tool_calls:
            call_id = self._call_id(call)
            self._called_ms[call_id] = max(time_ms, self._latest_ms + 1)
            self._put(_tool_called(call, call_id), time_ms, is_exact=is_exact, event_id=None)
        for result in entry.tool_results:
            self._put_result(result, time_ms, is_exact=is_exact)

    def finished(self, conversation_id: str | None) -> list[Event]:
        """All events. A user who interrupted the agent and hung up said nothing after it: that is no turn, and so no interruption."""
        metadata = {"conversation_id": conversation_id}
        first = {"type": "conversation_initiation_metadata", "timestamp": self.start_ms}
        return [{**first, "conversation_initiation_metadata_event": metadata}, *self._events]

    def _end_cut_off(self) -> None:
        """Ends an interrupted answer. The record has no time of the interruption: it was just before the user finished."""
        self._put({"type": "interruption", "interruption_event": {}}, None, is_exact=False, event_id=self._cut_off_id)
        self._is_cut_off, self._cut_off_id = False, None

    def _time_of(self, entry: RecordEntry) -> tuple[int, bool]:
        if entry.created_at_unix_ms is not None and entry.created_at_unix_ms > self._latest_ms:
            return int(entry.created_at_unix_ms), True
        return self.start_ms + int((entry.time_in_call_secs or 0.0) * MS_PER_SECOND), False

    def _put(self, event: Event, time_ms: int | None, *, is_exact: bool, event_id: int | None) -> None:
        self._latest_ms = max(self._latest_ms + 1, time_ms or 0)
        event["timestamp"] = self._latest_ms
        if not is_exact:
            event["is_time_exact"] = False
        if event_id is not None:
            for data in event.values():
                if isinstance(data, dict):
                    data["event_id"] = event_id
        self._events.append(event)

    def _call_id(self, tool: RecordedToolCall | RecordedToolResult) -> str:
        """The request's id; without one, the first result of a tool belongs to the first call of it, and so on."""
        if tool.request_id is not None:
            return tool.request_id
        place = type(tool), tool.tool_name
        self._without_id[place] += 1
        return f"{tool.tool_name} {self._without_id[place]}"

    def _put_result(self, result: RecordedToolResult, time_ms: int, *, is_exact: bool) -> None:
        """A tool's answer; where its call is known and how long it took, it came that long after the call."""
        call_id = self._call_id(result)
        event = _tool_replied(result, call_id)
        called_ms = self._called_ms.get(call_id)
        if called_ms is None or result.tool_latency_secs is None:
            self._put(event, time_ms, is_exact=is_exact, event_id=None)
            return
        event["timestamp"] = called_ms + max(0, round(result.tool_latency_secs * MS_PER_SECOND))
        event[event["type"]]["tool_latency_secs"] = max(0.0, result.tool_latency_secs)
        self._events.append(event if is_exact else {**event, "is_time_exact": False})


def _start_ms(record: ConversationRecord) -> int:
    """When the call began; 1970 where nothing says."""
    start_s = record.metadata.start_time_unix_secs
    if start_s is not None:
        return int(start_s * MS_PER_SECOND)
    for entry in record.transcript:
        if entry.created_at_unix_ms is not None:
            return int(entry.created_at_unix_ms - (entry.time_in_call_secs or 0.0) * MS_PER_SECOND)
    return 0


def _said(entry: RecordEntry) -> list[Event]:
    if entry.role == "user":
        # A sound that took no turn was not sent as a transcript of a turn either.
        words = "" if entry.ignored_as_backchannel else (entry.message or "")
        data = {"user_transcript": words}
        return [{"type": "user_transcript", "user_transcription_event": data}] if words else []
    words = entry.agent_words
    if not words:
        return []
    events: list[Event] = [{"type": "agent_response", "agent_response_event": {"agent_response": words}}]
    if entry.interrupted and entry.original_message:
        data = {"original_agent_response": words, "corrected_agent_response": (entry.message or "").strip()}
        events.append({"type": "agent_response_correction", "agent_response_correction_event": data})
    return events


def _tool_called(call: RecordedToolCall, call_id: str) -> Event:
    data = {
        "tool_name": call.tool_name,
        "tool_call_id": call_id,
        "tool_type": call.type,
        "parameters": _parsed(call.params_as_json),
    }
    return {"type": "agent_tool_request", "agent_tool_request": data}


def _tool_replied(result: RecordedToolResult, call_id: str) -> Event:
    kind = "agent_tool_response_full_payload"
    data = {
        "tool_name": result.tool_name,
        "tool_call_id": call_id,
        "tool_type": result.type,
        "is_error": result.is_error,
        "is_called": result.tool_has_been_called,
        "full_tool_result": result.result_value,
    }
    return {"type": kind, kind: data}


def _parsed(text: str | None) -> Any:
    """Parameters as they were meant; text that is no JSON stays text."""
    try:
        return None if text is None else without_infinity(from_json(text, allow_inf_nan=False))
    except ValueError:
        return text
