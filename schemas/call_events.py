"""Events that steer a call and are none of the three sources': accepted on every input topic, never in EVA's history."""

from enum import StrEnum
from typing import Literal

from schemas.wire import Name, Text, WireModel, WireTimeMs


class PipelineType(StrEnum):
    """How the agent is built; it decides which of EVA's rules apply."""

    CASCADE = "cascade"
    AUDIO_LLM = "audio_llm"
    S2S = "s2s"


class CallStarted(WireModel):
    """Facts of a call, at any time and in any number; what a later one does not state stays as it was."""

    type: Literal["call_started"]
    timestamp: WireTimeMs
    pipeline_type: PipelineType | None = None
    agent: Name | None = None
    tenant: Name | None = None
    environment: Name | None = None
    goals: Name | None = None


class CallEnded(WireModel):
    """The line is down; `reason` in EVA's words (`goodbye`, `timeout`, `transfer`, `error`, ...)."""

    type: Literal["call_ended"]
    timestamp: WireTimeMs
    reason: Name | None = None


class UserTextUpdated(WireModel):
    """The text that replaces an audio-LLM placeholder: of the audit `user` entry with `turn_id`, or of the last one."""

    type: Literal["user_text_updated"]
    timestamp: WireTimeMs
    text: Text
    turn_id: int | None = None
