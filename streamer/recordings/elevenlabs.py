"""Turns the record of a conversation with an ElevenLabs agent into the events that its call would
have produced. Pure.

Records of the newest releases have the time of each entry in milliseconds. Others have whole
seconds: then the events are in the right order and no latency is estimated from them. ElevenLabs'
own measurements come with the record, which is the last event. A record may come as spans in place
of entries (`otlp_traces`): then the entries are made from them.
"""

import ast
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError, from_json

from consumers.engine.sources.otlp import Span, spans_in_json
from consumers.engine.sources.told import MAX_RECORD_ENTRIES
from schemas.events.elevenlabs import (
    ConversationRecord,
    RecordedToolCall,
    RecordedToolResult,
    RecordEntry,
)
from schemas.units import MS_PER_SECOND
from schemas.wire import MAX_INSTRUCTIONS_CHARS, without_infinity
from streamer.recordings.files import shown

Event = dict[str, Any]
_ROLES: Final = ("user", "agent")
RECORD_WEBHOOKS: Final = frozenset(
    {"post_call_transcription", "post_call_transcription_otel", "unredacted_transcript"}
)
"""Types of webhooks whose `data` is the record of a conversation."""
WEBHOOKS: Final = RECORD_WEBHOOKS | {
    "post_call_audio",
    "unredacted_audio",
    "call_initiation_failure",
}
_OF_EVENTS: Final = frozenset(
    {"type", "message_type", "event_type", "stream", "timestamp", "specversion", "message"}
)
"""Fields of an event; a record has none of them."""


class AgentCall(NamedTuple):
    """A call with an agent of ElevenLabs.

    Attributes:
        conversation_id: ElevenLabs' id; None if the record has none.
        agent: Name of the agent, otherwise its id; None if the record has neither.
        ended_reason: Why the call ended.
        started: The start of the call, with the agent, its instructions and the span of the call as
            far as the record has them.
        events: Events of the agent by time, and last the record itself. The evaluator leaves all
            but the record out of a call that has live events.
        left_out: What of the record is not read, a sentence for each entry: the rest of the call
            is.
    """

    conversation_id: str | None
    agent: str | None
    ended_reason: str | None
    started: Event
    events: tuple[Event, ...]
    left_out: tuple[str, ...]


def is_record(document: object) -> bool:
    """Whether a document is the record of a conversation, lists its entries, or is the body of a
    webhook, which may hold one.

    A record without entries is one of a call without turns: neither side spoke, or the webhook
    leaves the transcript out (`exclude_transcript`). A record with a type or a time of ours is an
    event, as `POST /events` takes it.
    """
    if isinstance(document, list):
        return bool(document) and all(
            isinstance(each, Mapping) and each.get("role") in _ROLES for each in document
        )
    if not isinstance(document, Mapping):
        return False
    if isinstance(data := document.get("data"), Mapping):
        kind = document.get("type")
        return "event_timestamp" in document or (
            is_record(data) if kind is None else kind in WEBHOOKS
        )
    if not document.keys().isdisjoint(_OF_EVENTS):
        return False
    record = unwrapped(document)
    has_subject = "agent_id" in record or isinstance(record.get("metadata"), Mapping)
    if (
        isinstance(record.get("conversation_id"), str)
        and has_subject
        and "full_audio" not in record
    ):
        # Of somebody's conversation a role of tomorrow costs its entry; entries without a name may
        # be another format altogether.
        return True
    return is_record(record.get("transcript"))


def other_webhook(document: object) -> str | None:
    """The type of a webhook's body that holds no record: recorded sound, a call that never began,
    or a type of tomorrow.
    """
    kind = (
        document.get("type")
        if isinstance(document, Mapping) and isinstance(document.get("data"), Mapping)
        else None
    )
    return kind if isinstance(kind, str) and kind not in RECORD_WEBHOOKS else None


def call_in(document: Mapping[str, Any] | Sequence[Any]) -> AgentCall:
    """The call of a document that is a record, holds one as the body of a webhook, or lists the
    entries of one.

    Raises:
        UnreadableSpansError: Its entries are spans that cannot be read.
        ValidationError: Something that a rule reads is of another type.
    """
    holder = document if isinstance(document, Mapping) else {"transcript": document}
    record, span = _without_spans(unwrapped(holder))
    return agent_call(_dated(record, holder), span)


def unwrapped(document: Mapping[str, Any]) -> dict[str, Any]:
    """The record that a document is, or has as the body of a webhook, with the names of ElevenLabs'
    API: their package for JavaScript writes `timeInCallSecs` for `time_in_call_secs`.
    """
    data = document.get("data")
    record = dict(data if isinstance(data, Mapping) else document)
    entries = record.get("transcript")
    first = entries[0] if isinstance(entries, list) and entries else None
    if any(map(_HUMPED.fullmatch, (*record, *(first if isinstance(first, Mapping) else ())))):
        record = _in_their_names(record, _READ_LEVELS)
    return record


def agent_call(
    record: Mapping[str, Any], span: Mapping[str, str] = MappingProxyType({})
) -> AgentCall:
    """The call that a record is of; `span` is the field of its start that names the span of the
    call.

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
            left_out.append(
                f"transcript[{place}].role: expected user or agent, saw {shown(entry.role)}"
            )
    played = sorted(events.finished(typed.conversation_id), key=lambda event: event["timestamp"])
    duration_s = typed.metadata.call_duration_secs or 0.0
    end_ms = max(played[-1]["timestamp"], int(events.start_ms + duration_s * MS_PER_SECOND))
    agent = typed.agent_name or typed.agent_id
    known = {"agent": agent, "instructions": _instructions_in(record)}
    started = {"type": "call_started", "timestamp": played[0]["timestamp"], **span}
    return AgentCall(
        typed.conversation_id,
        agent,
        typed.metadata.termination_reason,
        {**started, **{name: value for name, value in known.items() if value is not None}},
        # A record is known by its transcript, also where neither side spoke.
        (
            *({**event, "is_from_record": True} for event in played),
            {"transcript": (), **record, "timestamp": end_ms},
        ),
        tuple(left_out),
    )


def _instructions_in(record: Mapping[str, Any]) -> str | None:
    """The prompt with which the call was begun, if it replaced the agent's own; the record has no
    other.
    """
    found: Any = record
    for name in (
        "conversation_initiation_client_data",
        "conversation_config_override",
        "agent",
        "prompt",
        "prompt",
    ):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found if isinstance(found, str) and 0 < len(found) <= MAX_INSTRUCTIONS_CHARS else None


def _dated(record: Mapping[str, Any], document: Mapping[str, Any]) -> dict[str, Any]:
    """The record with a start: if it has none, the call ended when the webhook was sent."""
    given = record.get("metadata")
    metadata = given if isinstance(given, dict) else {}
    sent_s = document.get("event_timestamp")
    if metadata.get("start_time_unix_secs") is not None or not isinstance(sent_s, int | float):
        return dict(record)
    duration_s = metadata.get("call_duration_secs")
    begin_s = sent_s - (duration_s if isinstance(duration_s, int | float) else 0)
    return {**record, "metadata": {**metadata, "start_time_unix_secs": begin_s}}


_READ_LEVELS: Final = 8
"""Levels of a record in which a rule reads anything."""
_HUMPED: Final = re.compile(r"[a-z][a-z0-9]*(?:[A-Z][a-z0-9]*)+")
_HUMP: Final = re.compile(r"(?=[A-Z])")
_OWN_NAMES: Final = frozenset({"resultValue", "dynamicVariables", "otlpTraces"})
"""Parts of a record whose names are not ElevenLabs' own."""


def _in_their_names(value: Any, levels: int) -> Any:
    if isinstance(value, list) and levels:
        return [_in_their_names(each, levels - 1) for each in value]
    if not isinstance(value, Mapping) or not levels:
        return value
    return {
        _HUMP.sub("_", name).lower() if _HUMPED.fullmatch(name) else name: _in_their_names(
            each, 0 if name in _OWN_NAMES else levels - 1
        )
        for name, each in value.items()
    }


def _typed(record: Mapping[str, Any]) -> ConversationRecord:
    """The record, checked entry by entry: one check of 40,000 entries keeps every thread waiting
    for a tenth of a second.
    """
    entries = record.get("transcript")
    if not isinstance(entries, list):
        return ConversationRecord.model_validate(record)
    whole = ConversationRecord.model_validate({**record, "transcript": ()})
    return whole.model_copy(
        update={"transcript": tuple(map(_checked, range(len(entries)), entries))}
    )


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


# The record as spans: `elevenlabs.conversation`, and in it a span of each entry and of each tool,
# with attributes in ElevenLabs' names. They have no more than a record's entries have, but ids, and
# a rule for their names is all that is needed to read them.

_CONVERSATION: Final = "elevenlabs.conversation"
_TOOL: Final = "elevenlabs.tool."
_METRIC: Final = "elevenlabs.metric."
_IN_MS: Final = "_ms"
_USAGE: Final = "elevenlabs.llm_usage."
_MAX_USAGE_CHARS: Final = 2_048


def _without_spans(record: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The record without `otlp_traces`, with entries made from them where it has no others, and the
    span of the call as a field.

    Raises:
        UnreadableSpansError: They are no spans.
    """
    record = dict(record)
    traces = record.pop("otlp_traces", None)
    spans = [read() for read in spans_in_json(traces, MAX_RECORD_ENTRIES)] if traces else []
    root = next((span for span in spans if span.name == _CONVERSATION), None)
    if root is None:
        return record, {}
    if not record.get("transcript"):
        record["transcript"] = _entries(root, spans)
        length_s = (root.end_ms - root.start_ms) / MS_PER_SECOND
        told = {
            "start_time_unix_secs": root.start_ms / MS_PER_SECOND,
            "call_duration_secs": length_s,
            "termination_reason": root.first("elevenlabs.termination_reason"),
        }
        record["metadata"] = {**told, **(record.get("metadata") or {})}
        record.setdefault("status", "done")
    return record, root.as_parent(root.span_id)


def _entries(root: Span, spans: Sequence[Span]) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for span in sorted(
        spans, key=lambda each: (each.start_ms, each.first("elevenlabs.turn.index") or 0)
    ):
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
    """Tokens and their price, which ElevenLabs writes as Python does: `{'tokens': 12, 'price':
    0.1}`.
    """
    try:
        return ast.literal_eval(value[:_MAX_USAGE_CHARS]) if isinstance(value, str) else value
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None


def _tool(span: Span) -> tuple[dict[str, Any], dict[str, Any]]:
    named = {
        "request_id": span.first("elevenlabs.tool.request_id", "elevenlabs.tool.call_id")
        or span.span_id,
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
    return {**named, "params_as_json": arguments if isinstance(arguments, str) else None}, {
        **named,
        **result,
    }


class _Events:
    """Collects the events of a call, entry by entry. Every one is later than the one before it, so
    that their order is kept.
    """

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
        """All events. A user who interrupted the agent and hung up said nothing after it: that is
        no turn, and so no interruption.
        """
        metadata = {"conversation_id": conversation_id}
        first = {"type": "conversation_initiation_metadata", "timestamp": self.start_ms}
        return [{**first, "conversation_initiation_metadata_event": metadata}, *self._events]

    def _end_cut_off(self) -> None:
        """Ends an interrupted answer. The record has no time of the interruption: it was just
        before the user finished.
        """
        self._put(
            {"type": "interruption", "interruption_event": {}},
            None,
            is_exact=False,
            event_id=self._cut_off_id,
        )
        self._is_cut_off, self._cut_off_id = False, None

    def _time_of(self, entry: RecordEntry) -> tuple[int, bool]:
        if entry.created_at_unix_ms is not None and entry.created_at_unix_ms > self._latest_ms:
            return int(entry.created_at_unix_ms), True
        return self.start_ms + int((entry.time_in_call_secs or 0.0) * MS_PER_SECOND), False

    def _put(
        self, event: Event, time_ms: int | None, *, is_exact: bool, event_id: int | None
    ) -> None:
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
        """The request's id; without one, the first result of a tool belongs to the first call of
        it, and so on.
        """
        if tool.request_id is not None:
            return tool.request_id
        place = type(tool), tool.tool_name
        self._without_id[place] += 1
        return f"{tool.tool_name} {self._without_id[place]}"

    def _put_result(self, result: RecordedToolResult, time_ms: int, *, is_exact: bool) -> None:
        """A tool's answer; where its call is known and how long it took, it came that long after
        the call.
        """
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
    events: list[Event] = [
        {"type": "agent_response", "agent_response_event": {"agent_response": words}}
    ]
    if entry.interrupted and entry.original_message:
        data = {
            "original_agent_response": words,
            "corrected_agent_response": (entry.message or "").strip(),
        }
        events.append(
            {"type": "agent_response_correction", "agent_response_correction_event": data}
        )
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
