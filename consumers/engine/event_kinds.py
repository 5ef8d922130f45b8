"""Which events steer a call, which leave something in it, and what an audio event is to EVA."""

from typing import Final

from consumers.engine.elements import Kind
from schemas.audit_events import AuditAssistant, AuditToolCall, AuditToolResponse, AuditUser
from schemas.call_events import CallEnded, CallStarted, UserTextUpdated
from schemas.judging import JudgeVerdict
from schemas.pipecat_events import LlmResponse, TtsText
from schemas.simulator_events import AssistantSpeech, UserSpeech

AUDIO_KINDS: Final = {
    (True, True): Kind.USER_AUDIO_START, (True, False): Kind.USER_AUDIO_END,
    (False, True): Kind.ASSISTANT_AUDIO_START, (False, False): Kind.ASSISTANT_AUDIO_END,
}  # fmt: skip
"""By whether it is the user's, and whether sound begins."""

STEERING: Final = frozenset({CallStarted, CallEnded, UserTextUpdated, JudgeVerdict})
"""Events of no stream: that one of them came on a topic says nothing of how far its stream is."""

KEPT: Final = frozenset(
    (TtsText, LlmResponse, UserSpeech, AssistantSpeech, AuditUser, AuditAssistant, AuditToolCall, AuditToolResponse)
) | {UserTextUpdated}
"""Events of which a text or a value is kept until the call closes. Of an LLM call, the largest of all, only its time is."""
