"""Control events of a call, which belong to none of the three sources: accepted on every input topic, never in EVA's history."""

from typing import Annotated, Final, Literal

from pydantic import Field, FiniteFloat

from schemas.closed_sets import PipelineType as PipelineType
from schemas.wire import JsonObject, Name, Text, WireModel, WireTimeMs

MAX_TOOLS: Final = 256
"""Most tools of one agent. EVA's agents have some fifteen."""
MAX_RESPONSE_LATENCIES: Final = 10_000
"""Most latencies of one call. A call of an hour has some hundreds of turns."""


class AgentTool(WireModel):
    """A tool that the agent may call. `parameters` is the JSON schema of its arguments. `tool_type` is `auth` for a tool that
    identifies the user.
    """

    name: Name
    parameters: JsonObject | None = None
    tool_type: Name | None = None


class CallStarted(WireModel):
    """Facts of a call. It may come at any time and several times; a field that a later one omits stays unchanged.

    `expected_state` is the state that the call should produce: records by table, and under `session` the facts about the user.
    """

    type: Literal["call_started"]
    timestamp: WireTimeMs
    pipeline_type: PipelineType | None = None
    agent: Name | None = None
    tenant: Name | None = None
    environment: Name | None = None
    goals: Name | None = None
    tools: Annotated[list[AgentTool], Field(max_length=MAX_TOOLS)] | None = None
    expected_state: JsonObject | None = None


class CallEnded(WireModel):
    """The end of the call. `reason` is one of EVA's words (`goodbye`, `timeout`, `transfer`, `error`, ...).

    `final_state` is the state that the call produced, in the form of `expected_state`. `final_state_hash` is its SHA-256 as EVA's
    run computed it; `eva_task_completion` uses it if it comes with the state.

    `response_latencies_ms` are the waits for the assistant in the order of the turns, as the run itself measured them. They are
    compared with the times of speech if there is one for each turn that has a latency.
    """

    type: Literal["call_ended"]
    timestamp: WireTimeMs
    reason: Name | None = None
    final_state: JsonObject | None = None
    final_state_hash: Name | None = None
    response_latencies_ms: Annotated[list[FiniteFloat], Field(max_length=MAX_RESPONSE_LATENCIES)] | None = None


class UserTextUpdated(WireModel):
    """The text that replaces the placeholder of an audio LLM: in the audit `user` entry with `turn_id`, or in the last one."""

    type: Literal["user_text_updated"]
    timestamp: WireTimeMs
    text: Text
    turn_id: int | None = None
