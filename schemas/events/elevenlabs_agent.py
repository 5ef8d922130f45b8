"""Live events of a real ElevenLabs agent, as its socket sends them, with the time at which the bridge received them.

The events have no time of their own. `event_id` grows within a call and links the transcript of a turn, the answer to it, and a
correction of that answer. A reconnected monitor sends the last hundred events again, so an event with an id is a repeat when
type, id and words are equal.
"""

from typing import Annotated, Any, Final, Literal

from pydantic import AliasChoices, BeforeValidator, ConfigDict, Field, FiniteFloat

from schemas.units import MS_PER_SECOND
from schemas.wire import Name, Text, WireModel, WireTimeMs

MAX_TOOL_SECONDS: Final = 86_400
"""Longest time of a tool that is plausible: a day."""
NO_WORDS = frozenset({"", ".", "...", "......"})
"""Transcripts of a caller who said nothing: a turn that timed out is sent as three dots."""


def _readable_id(value: object) -> int | None:
    """Returns an id given as number or digits; None for other values. Without an id, only the order of equal times is lost."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value if value >= 0 else None
    return int(value) if isinstance(value, str) and len(value) <= 18 and value.isascii() and value.isdigit() else None


EventId = Annotated[int | None, BeforeValidator(_readable_id)]


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


class ToolRequest(WireModel):
    """A tool is about to run. Only client tools have `parameters`."""

    tool_name: Name
    tool_call_id: Name
    tool_type: Name | None = None
    parameters: Any = None
    event_id: EventId = None


class ToolReply(WireModel):
    """A tool has answered; `is_called` is false when it was not run after all. `full_tool_result` is in the full form only.

    `tool_latency_secs` is its time, where the event is made from a record that has it.
    """

    tool_name: Name
    tool_call_id: Name
    tool_type: Name | None = None
    is_error: bool | None = None
    is_called: bool | None = None
    is_blocked: bool | None = None
    truncated: bool | None = None
    full_tool_result: Any = None
    tool_latency_secs: Annotated[FiniteFloat, Field(ge=0, le=MAX_TOOL_SECONDS)] | None = None
    event_id: EventId = None

    @property
    def took_ms(self) -> int | None:
        """The tool's time in ms; None if the event does not have it."""
        return None if self.tool_latency_secs is None else round(self.tool_latency_secs * MS_PER_SECOND)


class Failure(WireModel):
    """The error, in ElevenLabs' words."""

    code: int | None = None
    error_type: Name | None = None
    message: Text | None = None
    reason: Any = None


class AgentEvent(WireModel):
    """Base of an agent's events; by itself, an event of a type that this version does not know: kept and counted."""

    type: Name
    timestamp: WireTimeMs | None = None

    @property
    def identity(self) -> bytes | None:
        """Key by which a repeat of the event is recognised; None if it has none."""
        return None


class TimedAgentEvent(AgentEvent):
    """An event with a time. `timestamp` is when the bridge received it, in ms since 1970.

    `is_time_exact` is false if that time only gives the order of events: when a bridge joins a call and receives its past, or
    in a record with whole seconds. No latency is estimated from such times.
    """

    timestamp: WireTimeMs
    is_time_exact: bool = True


class UserTranscript(TimedAgentEvent):
    """The caller's turn is over and understood."""

    type: Literal["user_transcript"]
    user_transcription_event: UserTranscription

    @property
    def identity(self) -> bytes | None:
        """Id and words."""
        said = self.user_transcription_event
        return _identity(self.type, said.event_id, said.user_transcript)


class AgentResponse(TimedAgentEvent):
    """The agent begins to speak."""

    type: Literal["agent_response"]
    agent_response_event: AgentReply

    @property
    def identity(self) -> bytes | None:
        """Id and words: a turn with a tool has several answers."""
        said = self.agent_response_event
        return _identity(self.type, said.event_id, said.agent_response)


class AgentResponseCorrection(TimedAgentEvent):
    """The caller interrupted the agent. It has the part of the answer that was heard until then."""

    type: Literal["agent_response_correction"]
    agent_response_correction_event: ReplyCorrection

    @property
    def identity(self) -> bytes | None:
        """Id and what was heard."""
        said = self.agent_response_correction_event
        return _identity(self.type, said.event_id, said.corrected_agent_response)


class Interruption(TimedAgentEvent):
    """The caller speaks while the agent does, and the agent stops."""

    type: Literal["interruption"]
    interruption_event: Cut

    @property
    def identity(self) -> bytes | None:
        """The id up to which sound was dropped."""
        return _identity(self.type, self.interruption_event.event_id, "")


class ToolRequested(TimedAgentEvent):
    """A tool is about to run. A client tool is announced by both event types, with one `tool_call_id`."""

    type: Literal["client_tool_call", "agent_tool_request"]
    data: ToolRequest = Field(
        validation_alias=AliasChoices(
            "agent_tool_request", "client_tool_call", "agent_tool_request_event", "client_tool_call_event"
        )
    )

    @property
    def identity(self) -> bytes | None:
        """The call of the tool."""
        return _identity(self.type, 0, self.data.tool_call_id)


class ToolReplied(TimedAgentEvent):
    """A tool has answered."""

    type: Literal["agent_tool_response", "agent_tool_response_full_payload"]
    data: ToolReply = Field(
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
        return _identity(self.type, 0, self.data.tool_call_id)


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
    """Events of the catalogue that no rule reads. A bridge need not send them, above all not audio."""

    model_config = ConfigDict(extra="ignore")  # what is in them is neither kept nor counted as unknown

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
        "mcp_tool_call",
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
    | ConversationInitiated
    | AgentResponseComplete
    | AgentFailed
    | CarriedAgentEvent,
    Field(discriminator="type"),
]


def _identity(kind: str, event_id: int | None, words: str) -> bytes | None:
    return None if event_id is None else f"{kind}\0{event_id}\0{words}".encode("utf-8", "surrogatepass")
