"""Tables of event types: the ones that steer a call, the ones whose content is not kept, and EVA's kind of each audio event."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from consumers.engine.effects import Effect
from consumers.engine.turns.timeline.elements import ElementKind
from schemas.events.audit import AuditFallback, AuditLlmCall
from schemas.events.call import CallEnded, CallStarted, UserTextUpdated
from schemas.events.elevenlabs_agent import (
    AgentEvent,
    AgentFailed,
    AgentResponseComplete,
    CarriedAgentEvent,
    ConversationInitiated,
    Interruption,
)
from schemas.events.elevenlabs_record import ConversationRecord
from schemas.events.misread import UnrecognizedEvent
from schemas.events.pipecat import (
    EventsDropped,
    IgnoredLine,
    MessageRecord,
    ObserverRecord,
    ProcessorFailed,
    SpeechEventRecord,
    ToolLine,
    TurnMarker,
    UserSpeaking,
)
from schemas.events.pipecat_metrics import PipecatMetric
from schemas.events.simulator import AudioEvent, CarriedSimulatorEvent, ConnectionState
from schemas.judging import JudgeVerdict

AUDIO_KINDS: Final = {
    (True, True): ElementKind.USER_AUDIO_START, (True, False): ElementKind.USER_AUDIO_END,
    (False, True): ElementKind.ASSISTANT_AUDIO_START, (False, False): ElementKind.ASSISTANT_AUDIO_END,
}  # fmt: skip
"""Kind by (whether the user's, whether a start)."""

UNKNOWN: Final = frozenset({UnrecognizedEvent, AgentEvent})
"""Events of types that this version does not know."""

UNREAD: Final = frozenset({IgnoredLine, ToolLine, CarriedAgentEvent})
"""Known events without a handler: only their time counts. Every other known type has one."""

STEERING: Final = frozenset({CallStarted, CallEnded, UserTextUpdated, JudgeVerdict, ConversationRecord})
"""Events outside the streams: their time does not advance a stream's watermark."""

FLEETING: Final = frozenset(
    (TurnMarker, UserSpeaking, SpeechEventRecord, ObserverRecord, PipecatMetric, AudioEvent, ConnectionState)
) | {
    MessageRecord,
    CarriedSimulatorEvent,
    AuditFallback,
    AuditLlmCall,
    JudgeVerdict,
    AgentFailed,
    AgentResponseComplete,
    ConversationInitiated,
    EventsDropped,
    Interruption,
    ProcessorFailed,
}
"""Events of which no text and no value is kept until the call closes: of an LLM call, the largest of all, only the time is kept.
The bytes of every other event count, so a type that is missing here costs too much rather than nothing.
"""

EventHandler = Callable[[Any, Any, int, list[Effect]], None]
"""Takes the call, the event, its time in ms and the list of effects."""


class EventRule(NamedTuple):
    """Treatment of one type of event.

    Attributes:
        handler: Reads it; None where nothing does.
        is_of_a_stream: Whether its time advances the watermark of its stream.
        is_kept: Whether some of its content is kept until the call closes.
        outcome: Label in the events counter when it comes in time.
    """

    handler: EventHandler | None
    is_of_a_stream: bool
    is_kept: bool
    outcome: str


def rule_of(kind: type, handler: EventHandler | None) -> EventRule:
    """The rule for a type of event, made once instead of at each event."""
    is_kept = handler is not None and kind not in FLEETING
    return EventRule(handler, kind not in STEERING, is_kept, "unknown" if kind in UNKNOWN else "folded")
