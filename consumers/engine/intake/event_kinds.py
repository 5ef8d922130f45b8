"""Which events steer a call, which leave something in it, and what an audio event is to EVA."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from consumers.engine.effects import Effect
from consumers.engine.turns.timeline.elements import ElementKind
from schemas.events.audit import AuditAssistant, AuditToolCall, AuditToolResponse, AuditUser
from schemas.events.call import CallEnded, CallStarted, UserTextUpdated
from schemas.events.codec import UnrecognizedEvent
from schemas.events.elevenlabs_agent import (
    AgentEvent,
    AgentResponse,
    AgentResponseCorrection,
    ToolReplied,
    ToolRequested,
    UserTranscript,
)
from schemas.events.elevenlabs_record import ConversationRecord
from schemas.events.pipecat import FunctionCallRecord, LlmResponse, TtsText
from schemas.events.simulator import AssistantSpeech, UserSpeech
from schemas.judging import JudgeVerdict

AUDIO_KINDS: Final = {
    (True, True): ElementKind.USER_AUDIO_START, (True, False): ElementKind.USER_AUDIO_END,
    (False, True): ElementKind.ASSISTANT_AUDIO_START, (False, False): ElementKind.ASSISTANT_AUDIO_END,
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

EventHandler = Callable[[Any, Any, int, list[Effect]], None]
"""Takes the call, the event, its time in ms and the list for effects."""


class EventRule(NamedTuple):
    """How a call treats one kind of event.

    Attributes:
        handler: What reads it; None for one that nobody reads.
        is_of_a_stream: Whether its time says how far its stream is.
        is_kept: Whether something of it is kept until the call closes.
        outcome: What the events counter calls one that came in time.
    """

    handler: EventHandler | None
    is_of_a_stream: bool
    is_kept: bool
    outcome: str


def rule_of(kind: type, handler: EventHandler | None) -> EventRule:
    """The rule for a kind of event, looked up once instead of at each event."""
    return EventRule(handler, kind not in STEERING, kind in KEPT, "unknown" if kind in UNKNOWN else "folded")
