"""ElevenLabs' record of a finished conversation: the answer to GET, or the body of the post-call webhook.

It is read leniently. Fields that a rule reads are typed, other known fields are named, and unknown fields are kept. Records of
older releases have null for empty lists, fewer fields, and metrics without the level `metrics`.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, model_validator

from schemas.events.elevenlabs_agent import NO_WORDS
from schemas.units import MS_PER_SECOND
from schemas.wire import MAX_TIME_MS, EventId, JsonValue, Name, Text, WireModel, WireTimeMs, WireTimeSeconds

MAX_SECONDS = MAX_TIME_MS / MS_PER_SECOND
LATENCY_METRIC = "convai_ttf_audio_since_silence"
"""The voice-to-voice latency as ElevenLabs measures it: from the end of the caller's speech to the first sound of the answer."""

_UNFINISHED = frozenset({"initiated", "in-progress", "processing"})


def _none_is_empty(value: object) -> object:
    return () if value is None else value


class RecordedToolCall(WireModel):
    """A tool that the agent called; `params_as_json` is text."""

    request_id: Name | None = None
    tool_name: Name
    type: Name | None = None
    params_as_json: str | None = None
    tool_has_been_called: bool | None = None
    tool_details: Any = None


class RecordedToolResult(WireModel):
    """Answer of a tool as text, and its duration."""

    request_id: Name | None = None
    tool_name: Name
    type: Name | None = None
    result_value: JsonValue = None
    is_error: bool | None = None
    tool_has_been_called: bool | None = None
    tool_latency_secs: WireTimeSeconds | None = None
    dynamic_variable_updates: Any = None


class RecordEntry(WireModel):
    """One entry of the transcript. A turn with tools has several of the agent's.

    Attributes:
        role: `user` or `agent`.
        message: The words, for an interrupted answer the part that was heard; None for an entry of tools alone, or one whose
            words are listed by voice.
        original_message: The whole of an interrupted answer.
        time_in_call_secs: Whole seconds since the start of the call.
        created_at_unix_ms: The only exact time, in records of the newest releases.
        ignored_as_backchannel: Whether it is a sound of the caller that took no turn.
        source_event_id: The `event_id` of its live event.
    """

    role: Name
    message: Text | None = None
    multivoice_message: Any = None
    original_message: Text | None = None
    interrupted: bool | None = None
    ignored_as_backchannel: bool | None = None
    time_in_call_secs: WireTimeSeconds | None = None
    created_at_unix_ms: WireTimeMs | None = None
    source_event_id: EventId = None
    tool_calls: Annotated[tuple[RecordedToolCall, ...], BeforeValidator(_none_is_empty)] = ()
    tool_results: Annotated[tuple[RecordedToolResult, ...], BeforeValidator(_none_is_empty)] = ()
    conversation_turn_metrics: Any = None
    # Carried: only the transcript has them.
    agent_metadata: Any = None
    feedback: Any = None
    llm_override: Any = None
    llm_usage: Any = None
    rag_retrieval_info: Any = None
    source_medium: Any = None

    @property
    def user_words(self) -> str:
        """The caller's words that took a turn; empty if there are none, or the entry is the agent's."""
        words = (self.message or "").strip()
        is_turn = self.role == "user" and words not in NO_WORDS and not self.ignored_as_backchannel
        return words if is_turn else ""

    @property
    def agent_words(self) -> str:
        """The words that the agent said or meant to say; empty if there are none, or the entry is the caller's."""
        if self.role != "agent":
            return ""
        return (self.original_message or self.message or _in_several_voices(self.multivoice_message)).strip()

    @property
    def metrics(self) -> dict[str, float]:
        """Seconds by metric name, from either form of the record, without values that are not numbers."""
        return metrics_in(self.conversation_turn_metrics)


class RecordMetadata(WireModel):
    """Facts of the call that a rule reads."""

    start_time_unix_secs: WireTimeSeconds | None = None
    call_duration_secs: WireTimeSeconds | None = None
    termination_reason: Text | None = None


class ConversationRecord(WireModel):
    """A conversation after ElevenLabs has processed it.

    `timestamp` (ms) is that of the bridge, or of the webhook, or the end of the call, in this order.
    """

    timestamp: WireTimeMs
    transcript: Annotated[tuple[RecordEntry, ...], BeforeValidator(_none_is_empty)] = ()
    conversation_id: Name | None = None
    agent_id: Name | None = None
    agent_name: Name | None = None
    status: Name | None = None
    metadata: Annotated[RecordMetadata, BeforeValidator(lambda value: {} if value is None else value)] = (
        RecordMetadata()
    )
    # Carried: named, so that only fields that the contract does not know are counted.
    type: Name | None = None
    event_timestamp: Any = None
    analysis: Any = None
    branch_id: Any = None
    conversation_initiation_client_data: Any = None
    conversation_product: Any = None
    environment: Any = None
    has_audio: Any = None
    has_auxiliary_audio: Any = None
    has_response_audio: Any = None
    has_user_audio: Any = None
    agent_message_count: Any = None
    otlp_traces: Any = None
    tag_ids: Any = None
    user_id: Any = None
    user_message_count: Any = None
    version_id: Any = None
    visited_agents: Any = None

    @model_validator(mode="before")
    @classmethod
    def _unwrap(cls, value: Any) -> Any:
        """Unwraps the record of a webhook from `data`, and adds the time if there is one."""
        if not isinstance(value, Mapping):
            return value
        data = value.get("data")
        record = dict(value)
        if isinstance(data, Mapping):
            del record["data"]
            record |= data
        if record.get("timestamp") is None:
            record["timestamp"] = _time_ms(record)
        return record

    @property
    def is_final(self) -> bool:
        """Whether the call is over. A record that was fetched too early is not final."""
        return self.status not in _UNFINISHED


def metrics_in(found: object) -> dict[str, float]:
    """Returns seconds by metric name in `conversation_turn_metrics`, in today's form or in the older one without `metrics`.

    Example:
        >>> metrics_in({"metrics": {"convai_tts_service_ttfb": {"elapsed_time": 0.132}}, "voice_id": "v"})
        {'convai_tts_service_ttfb': 0.132}
        >>> metrics_in({"convai_tts_service_ttfb": {"elapsed_time": 0.132}, "convai_asr_provider": None})
        {'convai_tts_service_ttfb': 0.132}
    """
    if not isinstance(found, Mapping):
        return {}
    inner = found.get("metrics")
    entries = inner if isinstance(inner, Mapping) else found
    seconds: dict[str, float] = {}
    for name, entry in entries.items():
        elapsed = _number(entry.get("elapsed_time")) if isinstance(entry, Mapping) else None
        if elapsed is not None:
            seconds[str(name)] = elapsed
    return seconds


def _in_several_voices(message: object) -> str:
    parts = message.get("parts") if isinstance(message, Mapping) else None
    texts = [part.get("text") for part in parts if isinstance(part, Mapping)] if isinstance(parts, list) else []
    return " ".join(text for text in texts if isinstance(text, str))


def _time_ms(record: Mapping[str, Any]) -> int | None:
    """Returns when the webhook was sent, or when the call ended; None if neither is known."""
    sent_s = _number(record.get("event_timestamp"))
    if sent_s is not None:
        return int(sent_s * MS_PER_SECOND)
    metadata = record.get("metadata")
    if not isinstance(metadata, Mapping):
        return None
    start_s = _number(metadata.get("start_time_unix_secs"))
    duration_s = _number(metadata.get("call_duration_secs")) or 0.0
    return None if start_s is None else int((start_s + duration_s) * MS_PER_SECOND)


def _number(value: object) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    # JSON has integers that no float can hold, and an infinite value is not between the two.
    return float(value) if -MAX_SECONDS <= value <= MAX_SECONDS else None
