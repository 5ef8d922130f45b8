"""Events of a real ElevenLabs agent: what its API sends while a call runs, and the record of the
call afterwards.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import AliasChoices, BeforeValidator, ConfigDict, Field, FiniteFloat, model_validator

from schemas.units import MS_PER_SECOND
from schemas.wire import (
    MAX_TIME_MS,
    EventId,
    JsonValue,
    Name,
    Text,
    WireModel,
    WireTimeMs,
    WireTimeSeconds,
)

# The parts of an ElevenLabs agent's events that are about its tools.

MAX_ENTRIES: Final = 2_500
"""Most entries of the record of a conversation: with more, reading it would hold up other calls. A
call of two hours has 2,400 if it has a turn with a tool every twelve seconds: four entries each.
"""
MAX_TOOL_SECONDS: Final = 86_400
"""Longest time of a tool that is plausible: a day."""


class AgentToolRequest(WireModel):
    """A tool is about to run. Only client tools have `parameters`."""

    tool_name: Name
    tool_call_id: Name
    tool_type: Name | None = None
    parameters: JsonValue = None
    event_id: EventId = None


class AgentToolReply(WireModel):
    """A tool has answered; `is_called` is false when it was not run after all. `full_tool_result`
    is in the full form only.

    `tool_latency_secs` is its time, where the event is made from a record that has it.
    """

    tool_name: Name
    tool_call_id: Name
    tool_type: Name | None = None
    is_error: bool | None = None
    is_called: bool | None = None
    is_blocked: bool | None = None
    truncated: bool | None = None
    full_tool_result: JsonValue = None
    tool_latency_secs: Annotated[FiniteFloat, Field(ge=0, le=MAX_TOOL_SECONDS)] | None = None
    event_id: EventId = None

    @property
    def took_ms(self) -> int | None:
        """The tool's time in ms; None if the event does not have it."""
        return (
            None
            if self.tool_latency_secs is None
            else round(self.tool_latency_secs * MS_PER_SECOND)
        )


class McpToolState(WireModel):
    """A state of one use of a tool of an MCP server: `loading`, `awaiting_approval`, `success` or
    `failure`. Its other fields are not read.
    """

    tool_name: Name
    tool_call_id: Name
    state: Name
    parameters: JsonValue = None
    result: JsonValue = None
    error_message: Text | None = None

    @property
    def answer(self) -> Any:
        """The tool's answer; None while it runs, or if it is not sent."""
        if self.state == "failure":
            return {"status": "error", "message": self.error_message}
        return self.result


# Live events of a real ElevenLabs agent, as its socket sends them, with the time at which the
# bridge received them.
#
# The events have no time of their own. `event_id` grows within a call and links the transcript of a
# turn, the answer to it, and a correction of that answer. A reconnected monitor sends the last
# hundred events again, so an event with an id is a repeat when type, id and words are equal.

NO_WORDS = frozenset({"", ".", "...", "......"})
"""Transcripts of a caller who said nothing: a turn that timed out is sent as three dots."""


class UserTranscription(WireModel):
    """The agent's transcript of the caller's words."""

    user_transcript: Text
    event_id: EventId = None


class AgentReply(WireModel):
    """The agent's whole answer. It is sent with the first sound of the answer."""

    agent_response: Text
    event_id: EventId = None


class ReplyCorrection(WireModel):
    """The part of an answer that was heard before the caller interrupted it."""

    original_agent_response: Text
    corrected_agent_response: Text
    event_id: EventId = None


class Cut(WireModel):
    """The id up to which sound is no longer played."""

    event_id: EventId = None


class Completion(WireModel):
    """The answer with this id is complete."""

    event_id: EventId = None


class Initiation(WireModel):
    """The call as ElevenLabs names it, and its audio formats."""

    conversation_id: Name | None = None
    agent_output_audio_format: Name | None = None
    user_input_audio_format: Name | None = None


class Failure(WireModel):
    """The error, in ElevenLabs' words."""

    code: int | None = None
    error_type: Name | None = None
    message: Text | None = None
    reason: Any = None


class AgentEvent(WireModel):
    """Base of an agent's events; by itself, an event of a type that this version does not know:
    kept and counted.
    """

    type: Name
    timestamp: WireTimeMs | None = None

    @property
    def identity(self) -> bytes | None:
        """Key by which a repeat of the event is recognised; None if it has none."""
        return None


class TimedAgentEvent(AgentEvent):
    """An event with a time. `timestamp` is when the bridge received it, in ms since 1970.

    `is_time_exact` is false if that time only gives the order of events: when a bridge joins a call
    and receives its past, or in a record with whole seconds. No latency is estimated from such
    times.

    `is_from_record` marks an event that a producer made from the record of the conversation. It
    counts only in a call without live events, whichever come first.
    """

    timestamp: WireTimeMs
    is_time_exact: bool = True
    is_from_record: bool = False

    def _key(self, event_id: int | None, words: str) -> bytes | None:
        """Type, id and words. An event that is made from a record is no repeat of the live one."""
        kind = f"{self.type} of the record" if self.is_from_record else self.type
        return (
            None
            if event_id is None
            else f"{kind}\0{event_id}\0{words}".encode("utf-8", "surrogatepass")
        )


class UserTranscript(TimedAgentEvent):
    """The caller's turn is over and understood."""

    type: Literal["user_transcript"]
    user_transcription_event: UserTranscription

    @property
    def identity(self) -> bytes | None:
        """Id and words."""
        said = self.user_transcription_event
        return self._key(said.event_id, said.user_transcript)


class AgentResponse(TimedAgentEvent):
    """The agent begins to speak."""

    type: Literal["agent_response"]
    agent_response_event: AgentReply

    @property
    def identity(self) -> bytes | None:
        """Id and words: a turn with a tool has several answers."""
        said = self.agent_response_event
        return self._key(said.event_id, said.agent_response)


class AgentResponseCorrection(TimedAgentEvent):
    """The caller interrupted the agent. It has the part of the answer that was heard until then."""

    type: Literal["agent_response_correction"]
    agent_response_correction_event: ReplyCorrection

    @property
    def identity(self) -> bytes | None:
        """Id, and the words as understood."""
        said = self.agent_response_correction_event
        return self._key(said.event_id, said.corrected_agent_response)


class Interruption(TimedAgentEvent):
    """The caller speaks while the agent does, and the agent stops."""

    type: Literal["interruption"]
    interruption_event: Cut

    @property
    def identity(self) -> bytes | None:
        """The id up to which sound was dropped."""
        return self._key(self.interruption_event.event_id, "")


class ToolRequested(TimedAgentEvent):
    """A tool is about to run. A client tool is announced by both event types, with one
    `tool_call_id`.
    """

    type: Literal["client_tool_call", "agent_tool_request"]
    data: AgentToolRequest = Field(
        validation_alias=AliasChoices(
            "agent_tool_request",
            "client_tool_call",
            "agent_tool_request_event",
            "client_tool_call_event",
        )
    )

    @property
    def identity(self) -> bytes | None:
        """The call of the tool."""
        return self._key(0, self.data.tool_call_id)


class ToolReplied(TimedAgentEvent):
    """A tool has answered."""

    type: Literal["agent_tool_response", "agent_tool_response_full_payload"]
    data: AgentToolReply = Field(
        validation_alias=AliasChoices(
            "agent_tool_response",
            "agent_tool_response_full_payload",
            "agent_tool_response_event",
            "agent_tool_response_full_payload_event",
        )
    )

    @property
    def identity(self) -> bytes | None:
        """The call of the tool."""
        return self._key(0, self.data.tool_call_id)


class McpToolCalled(TimedAgentEvent):
    """A tool of an MCP server changed its state. Events of the other tools may report the same use,
    with one `tool_call_id`.
    """

    type: Literal["mcp_tool_call"]
    data: McpToolState = Field(
        validation_alias=AliasChoices("mcp_tool_call", "mcp_tool_call_event")
    )

    @property
    def identity(self) -> bytes | None:
        """The call of the tool, and its state."""
        return self._key(0, f"{self.data.tool_call_id}\0{self.data.state}")


class ConversationInitiated(TimedAgentEvent):
    """The conversation begins."""

    type: Literal["conversation_initiation_metadata"]
    conversation_initiation_metadata_event: Initiation


class AgentResponseComplete(TimedAgentEvent):
    """The answer is complete."""

    type: Literal["agent_response_complete"]
    agent_response_complete_event: Completion | None = None


class AgentFailed(TimedAgentEvent):
    """Something went wrong at ElevenLabs."""

    type: Literal["error", "client_error"]
    error_event: Failure | None = None


class CarriedAgentEvent(AgentEvent):
    """Events of the catalogue that no rule reads. A bridge need not send them, above
    all not audio.
    """

    # their content is neither kept nor counted as unknown
    model_config = ConfigDict(extra="ignore")

    type: Literal[
        "agent_chat_response_part",
        "agent_reasoning_response_part",
        "agent_response_metadata",
        "agent_typing",
        "asr_initiation_metadata",
        "audio",
        "context_usage",
        "dtmf_request",
        "external_agent_connected",
        "external_agent_disconnected",
        "guardrail_triggered",
        "internal_tentative_agent_response",
        "internal_turn_probability",
        "mcp_connection_status",
        "ping",
        "queue_status",
        "rich_content",
        "tentative_user_transcript",
        "vad_score",
    ]


TypedAgentEvent = Annotated[
    UserTranscript
    | AgentResponse
    | AgentResponseCorrection
    | Interruption
    | ToolRequested
    | ToolReplied
    | McpToolCalled
    | ConversationInitiated
    | AgentResponseComplete
    | AgentFailed
    | CarriedAgentEvent,
    Field(discriminator="type"),
]


# ElevenLabs' record of a finished conversation: the answer to GET, or the body of the post-call
# webhook.
#
# It is read leniently. Fields that a rule reads are typed, other known fields are named, and
# unknown fields are kept. Records of older releases have null for empty lists, fewer fields, and
# metrics without the level `metrics`.

MAX_SECONDS = MAX_TIME_MS / MS_PER_SECOND
LATENCY_METRIC = "convai_ttf_audio_since_silence"
"""The voice-to-voice latency as ElevenLabs measures it: from the end of the caller's speech to the
first sound of the answer.
"""

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
        message: The words, for an interrupted answer the part that was heard; None for an entry of
            tools alone, or one whose words are listed by voice.
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
        """The caller's words that took a turn; empty if there are none, or the entry is the
        agent's.
        """
        if self.role != "user" or self.ignored_as_backchannel:
            return ""
        words = (self.message or "").strip()
        return "" if words in NO_WORDS else words

    @property
    def agent_words(self) -> str:
        """The words that the agent said or meant to say; empty if there are none, or the entry is
        the caller's.
        """
        if self.role != "agent":
            return ""
        return (
            self.original_message or self.message or _in_several_voices(self.multivoice_message)
        ).strip()

    @property
    def metrics(self) -> dict[str, float]:
        """Seconds by metric name, from either form of the record, without values that are not
        numbers.
        """
        return metrics_in(self.conversation_turn_metrics)


class RecordMetadata(WireModel):
    """Facts of the call that a rule reads."""

    start_time_unix_secs: WireTimeSeconds | None = None
    call_duration_secs: WireTimeSeconds | None = None
    termination_reason: Text | None = None


class ConversationRecord(WireModel):
    """A conversation after ElevenLabs has processed it.

    `timestamp` (ms) is that of the bridge, or of the webhook, or the end of the call, in this
    order. What no rule reads of it is neither kept nor counted as unknown.
    """

    model_config = ConfigDict(extra="ignore")

    timestamp: WireTimeMs
    transcript: Annotated[
        tuple[RecordEntry, ...], Field(max_length=MAX_ENTRIES), BeforeValidator(_none_is_empty)
    ] = ()
    conversation_id: Name | None = None
    agent_id: Name | None = None
    agent_name: Name | None = None
    status: Name | None = None
    metadata: Annotated[
        RecordMetadata, BeforeValidator(lambda value: {} if value is None else value)
    ] = RecordMetadata()

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
    """Returns seconds by metric name in `conversation_turn_metrics`, in today's form or in the
    older one without `metrics`.

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
    texts = (
        [part.get("text") for part in parts if isinstance(part, Mapping)]
        if isinstance(parts, list)
        else []
    )
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
