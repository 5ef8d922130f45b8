"""Which events steer a call, which leave something in it, and what an audio event is to EVA."""

from typing import Final

from consumers.engine.elements import Kind
from schemas.audit_events import AuditAssistant, AuditToolCall, AuditToolResponse, AuditUser
from schemas.call_events import CallEnded, CallStarted, UserTextUpdated
from schemas.codec import UnrecognizedEvent
from schemas.elevenlabs_agent import (
    AgentEvent,
    AgentResponse,
    AgentResponseCorrection,
    ToolReplied,
    ToolRequested,
    UserTranscript,
)
from schemas.elevenlabs_record import ConversationRecord
from schemas.judging import JudgeVerdict
from schemas.pipecat_events import FunctionCallRecord, LlmResponse, TtsText
from schemas.simulator_events import AssistantSpeech, UserSpeech

AUDIO_KINDS: Final = {
    (True, True): Kind.USER_AUDIO_START, (True, False): Kind.USER_AUDIO_END,
    (False, True): Kind.ASSISTANT_AUDIO_START, (False, False): Kind.ASSISTANT_AUDIO_END,
}  # fmt: skip
"""By whether it is the user's, and whether sound begins."""

UNKNOWN: Final = frozenset({UnrecognizedEvent, AgentEvent})
"""Events of a type that this version does not know."""

STEERING: Final = frozenset({CallStarted, CallEnded, UserTextUpdated, JudgeVerdict, ConversationRecord})
"""Events of no stream: that one of them came on a topic says nothing of how far its stream is."""

KEPT: Final = frozenset(
    (
        TtsText,
        LlmResponse,
        FunctionCallRecord,
        UserSpeech,
        AssistantSpeech,
        AuditUser,
        AuditAssistant,
        AuditToolCall,
        AuditToolResponse,
    )
) | {
    CallStarted,
    CallEnded,
    UserTextUpdated,
    UserTranscript,
    AgentResponse,
    AgentResponseCorrection,
    ToolRequested,
    ToolReplied,
    ConversationRecord,
}
"""Events of which a text or a value is kept until the call closes. Of an LLM call, the largest of all, only its time is."""
