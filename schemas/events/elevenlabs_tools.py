"""The parts of an ElevenLabs agent's events that are about its tools."""

from typing import Annotated, Any, Final

from pydantic import Field, FiniteFloat

from schemas.units import MS_PER_SECOND
from schemas.wire import EventId, JsonValue, Name, Text, WireModel

MAX_TOOL_SECONDS: Final = 86_400
"""Longest time of a tool that is plausible: a day."""


class ToolRequest(WireModel):
    """A tool is about to run. Only client tools have `parameters`."""

    tool_name: Name
    tool_call_id: Name
    tool_type: Name | None = None
    parameters: JsonValue = None
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
    full_tool_result: JsonValue = None
    tool_latency_secs: Annotated[FiniteFloat, Field(ge=0, le=MAX_TOOL_SECONDS)] | None = None
    event_id: EventId = None

    @property
    def took_ms(self) -> int | None:
        """The tool's time in ms; None if the event does not have it."""
        return None if self.tool_latency_secs is None else round(self.tool_latency_secs * MS_PER_SECOND)


class McpToolState(WireModel):
    """A state of one use of a tool of an MCP server: `loading`, `awaiting_approval`, `success` or `failure`. `timestamp`, the
    server's own time as text, is not read.
    """

    tool_name: Name
    tool_call_id: Name
    state: Name
    parameters: JsonValue = None
    result: JsonValue = None
    error_message: Text | None = None
    service_id: Any = None
    tool_description: Any = None
    timestamp: Any = None
    approval_timeout_secs: Any = None

    @property
    def answer(self) -> Any:
        """The tool's answer; None while it runs, or if it is not sent."""
        if self.state == "failure":
            return {"status": "error", "message": self.error_message}
        return self.result
