"""The events of the agent framework's audit log: the caller's turns as it heard them, its replies, its tools."""

from typing import Annotated, Any, Literal

from pydantic import Field

from schemas.wire import JsonValue, Name, Text, WireModel, WireTimeMs


class AuditEntry(WireModel):
    """Base of all entries. `timestamp` is in milliseconds, usually as a string of digits."""

    timestamp: WireTimeMs
    display_name: Name | None = Field(default=None, alias="displayName")
    is_bot_message: bool | None = Field(default=None, alias="isBotMessage")
    type: Name | None = None


class AuditUser(AuditEntry):
    """The caller's turn as the agent received it. `turn_id` identifies a placeholder that is replaced later."""

    message_type: Literal["user"]
    value: Text
    turn_id: int | None = None


class AuditAssistant(AuditEntry):
    """One reply of the language model, before it is spoken."""

    message_type: Literal["assistant"]
    value: Text


class ToolRequest(WireModel):
    """Name and arguments of a tool call."""

    tool: Name
    parameters: JsonValue = None


class AuditToolCall(AuditEntry):
    """A tool is about to run."""

    message_type: Literal["tool_call"]
    value: ToolRequest


class ToolReply(WireModel):
    """Answer of a tool; `response` may be missing."""

    tool: Name
    response: JsonValue = None


class AuditToolResponse(AuditEntry):
    """A tool has answered."""

    message_type: Literal["tool_response"]
    value: ToolReply


class AuditFallback(AuditEntry):
    """The agent's turn-end timer fired and nudged the model."""

    message_type: Literal["turn_fallback"]
    value: Any = None
    llm_content: Any = None


class AuditLlmCall(AuditEntry):
    """One step of the language model. None of EVA's rules reads it, but its time counts.

    `latency_ms` is from the request to the end of the answer, `usage` counts its tokens; both only if the framework logs them.
    """

    message_type: Literal["llm_call"]
    value: Any = None
    model: Any = None
    latency_ms: Any = None
    usage: Any = None


AuditEvent = Annotated[
    AuditUser | AuditAssistant | AuditToolCall | AuditToolResponse | AuditFallback | AuditLlmCall,
    Field(discriminator="message_type"),
]
