"""EVA's metrics of how a call ended: whether the assistant still answered, in time, and whether the end is valid."""

from typing import Final

from consumers.engine.measures.eva.timing.turn_taking import INACTIVITY, last_speaker, missed_turn
from consumers.engine.records.eva_result import MetricResult, failed, scored
from consumers.engine.turns.eva.history import CallerLine
from schemas.metric_context import MetricContext

TIME_LIMIT: Final = "time_limit_exceeded"
GOODBYE: Final = "goodbye"


def conversation_correctly_finished(context: MetricContext) -> MetricResult:
    """0 when the call ended because the assistant left the user without an answer, otherwise 1."""
    reason, speaker = context.conversation_ended_reason, last_speaker(context)
    is_missed = missed_turn(context)
    if is_missed:
        explanation = f"conversation ended with {INACTIVITY} and user was the last speaker"
    elif reason == INACTIVITY:
        explanation = f"{INACTIVITY} but last speaker was {speaker!r}"
    else:
        explanation = f"conversation ended with reason={reason!r}"
    details = {"conversation_ended_reason": reason, "last_audio_speaker": speaker, "reason": explanation}
    return scored(0.0 if is_missed else 1.0, details)


def conversation_completed_on_time(context: MetricContext) -> MetricResult:
    """0 when the call was cut off at its time limit, otherwise 1, whatever the reason: `cancelled` and a bot's own words for the
    end, such as `ended`, are no time limit, and EVA counts an unknown reason as none either.
    """
    reason = context.conversation_ended_reason
    is_cut_off = reason == TIME_LIMIT
    return scored(0.0 if is_cut_off else 1.0, {"conversation_ended_reason": reason, "timed_out": is_cut_off})


def conversation_valid_end(context: MetricContext, line: CallerLine) -> MetricResult:
    """1 when the assistant left the user without an answer, or the simulated caller's last event is a goodbye, otherwise 0."""
    if missed_turn(context):
        return scored(1.0, {"ended_properly": True, "reason": "agent_timeout_on_user_turn"})
    if not line.has_events:
        return failed("The simulated caller's stream is empty")
    is_goodbye = line.last_reason == GOODBYE
    return scored(1.0 if is_goodbye else 0.0, {"ended_properly": is_goodbye, "reason": line.last_reason})
