"""Events that steer a call and are none of the three sources': accepted on every input topic, never in EVA's history."""

from typing import Annotated, Any, Final, Literal

from pydantic import Field

from schemas.closed_sets import PipelineType as PipelineType
from schemas.wire import Name, Text, WireModel, WireTimeMs

MAX_TOOLS: Final = 256
"""Tools that one agent may have; those of EVA's agents have some fifteen."""


class AgentTool(WireModel):
    """A tool that the agent may call: `parameters` is the JSON schema of its arguments, `tool_type` `auth` if it identifies
    the user.
    """

    name: Name
    parameters: dict[str, Any] | None = None
    tool_type: Name | None = None


class CallStarted(WireModel):
    """Facts of a call, at any time and in any number; what a later one does not state stays as it was.

    `expected_state` is what the call should leave behind: records by table, and under `session` what is known of the user.
    """

    type: Literal["call_started"]
    timestamp: WireTimeMs
    pipeline_type: PipelineType | None = None
    agent: Name | None = None
    tenant: Name | None = None
    environment: Name | None = None
    goals: Name | None = None
    tools: Annotated[list[AgentTool], Field(max_length=MAX_TOOLS)] | None = None
    expected_state: dict[str, Any] | None = None


class CallEnded(WireModel):
    """The line is down; `reason` in EVA's words (`goodbye`, `timeout`, `transfer`, `error`, ...).

    `final_state` is what the call left behind, in the shape of `expected_state`; `final_state_hash` its SHA-256 as EVA's
    run computed it, which counts for `eva_task_completion` where it is stated with the state.
    """

    type: Literal["call_ended"]
    timestamp: WireTimeMs
    reason: Name | None = None
    final_state: dict[str, Any] | None = None
    final_state_hash: Name | None = None


class UserTextUpdated(WireModel):
    """The text that replaces an audio-LLM placeholder: of the audit `user` entry with `turn_id`, or of the last one."""

    type: Literal["user_text_updated"]
    timestamp: WireTimeMs
    text: Text
    turn_id: int | None = None
