"""Live events of a real ElevenLabs agent, as its socket sends them, with the time at which the bridge received them.

The events have no time of their own. `event_id` grows within a call and links the transcript of a turn, the answer to it, and a
correction of that answer. A reconnected monitor sends the last hundred events again, so an event with an id is a repeat when
type, id and words are equal.
"""

from typing import Annotated, Any, Literal

from pydantic import AliasChoices, ConfigDict, Field

from schemas.events.elevenlabs_tools import McpToolState, ToolReply, ToolRequest
from schemas.wire import EventId, Name, Text, WireModel, WireTimeMs

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

    `is_from_record` marks an event that a producer made from the record of the conversation. It counts only in a call without
    live events, whichever come first.
    """

    timestamp: WireTimeMs
    is_time_exact: bool = True
    is_from_record: bool = False

    def _key(self, event_id: int | None, words: str) -> bytes | None:
        """Type, id and words. An event that is made from a record is no repeat of the live one."""
        kind = f"{self.type} of the record" if self.is_from_record else self.type
        return None if event_id is None else f"{kind}\0{event_id}\0{words}".encode("utf-8", "surrogatepass")


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
        return self._key(0, self.data.tool_call_id)


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
        return self._key(0, self.data.tool_call_id)


class McpToolCalled(TimedAgentEvent):
    """A tool of an MCP server changed its state. Events of the other tools may report the same use, with one `tool_call_id`."""

    type: Literal["mcp_tool_call"]
    data: McpToolState = Field(validation_alias=AliasChoices("mcp_tool_call", "mcp_tool_call_event"))

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
    """Events of the catalogue that no rule reads. A bridge need not send them, above all not audio."""

    model_config = ConfigDict(extra="ignore")  # their content is neither kept nor counted as unknown

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
