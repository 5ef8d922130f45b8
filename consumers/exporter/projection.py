"""What a score record adds to the metrics: pure, and the only place where milliseconds become seconds."""

from collections.abc import Iterator
from typing import Final, NamedTuple, assert_never

from schemas.scores import (
    AnyScoreRecord,
    CallStartedFact,
    ClosedFact,
    CloseReason,
    DeadAirFact,
    GoalsFact,
    InterruptionFact,
    NotApplicable,
    ProgressScore,
    Scored,
    StallFact,
    SubgoalScore,
    SuccessFinalTurn,
    ToolCorrectnessScore,
    ToolUseFact,
    TurnFact,
    TurnStatus,
    Unscored,
    VoiceToVoiceLatency,
)

MS_PER_SECOND: Final = 1_000
EXEMPLAR_NAME: Final = "conversation_id"
MAX_EXEMPLAR_CHARS: Final = 128 - len(EXEMPLAR_NAME)
"""OpenMetrics allows 128 characters for an exemplar's names and values together."""

REVISED_LATENCY: Final = "turn_response_latency"


class Counted(NamedTuple):
    """Add `by` to the counter `metric`; 0 only makes the series appear, so that the first count is a visible step."""

    metric: str
    labels: tuple[str, ...]
    by: int = 1


class Observed(NamedTuple):
    """Put `value`, in the metric's unit, into the histogram `metric`."""

    metric: str
    labels: tuple[str, ...]
    value: float


Sample = Counted | Observed


class UncountableRecordError(ValueError):
    """A record of the right shape that says too little to be counted; leave it out and count that."""


def exemplar_of(record: AnyScoreRecord) -> dict[str, str]:
    """What leads from a sample back to its call: the conversation id, clipped to what OpenMetrics allows."""
    # One NUL, and Prometheus refuses the whole page.
    return {EXEMPLAR_NAME: record.conversation_id[:MAX_EXEMPLAR_CHARS].replace("\x00", "\ufffd")}


def project(record: AnyScoreRecord, now_ms: int) -> Iterator[Sample]:
    """The samples of one record.

    Args:
        record: As read from `scores`.
        now_ms: The reader's wall clock, for our own delay.

    Raises:
        UncountableRecordError: A value is there, but not what it was measured between.
    """
    yield Counted("callgauge_scores_read_total", (record.kind,))
    delay_ms = max(0, now_ms - record.caused_at_ms)  # below 0 only where clocks disagree
    yield Observed("callgauge_event_to_score_seconds", (record.labels.pipeline_type,), delay_ms / MS_PER_SECOND)
    agent = record.labels.agent
    who = (agent, record.labels.tenant, record.labels.environment)
    match record:
        case VoiceToVoiceLatency():
            yield from _latency(record, agent)
        case CallStartedFact():
            if record.is_first:
                yield Counted("callgauge_calls_started_total", who)
                yield Counted("callgauge_calls_ended_total", (*who, CloseReason.ENDED), 0)
                yield Counted("callgauge_turns_total", who, 0)
        case TurnFact():
            if record.is_first and record.turn is not None and record.turn >= 1:
                yield Counted("callgauge_turns_total", who)
        case InterruptionFact():
            if record.is_first:
                yield Counted("callgauge_interruptions_total", (agent, record.by))
        case DeadAirFact():
            if record.is_first:
                yield Counted("callgauge_dead_air_total", (agent,))
        case ToolUseFact():
            if record.is_first:
                yield Counted("callgauge_tool_calls_total", (agent, record.tool, record.outcome))
        case ClosedFact():
            yield Counted("callgauge_calls_ended_total", (*who, record.reason))
        case GoalsFact() | SubgoalScore() | ProgressScore() | SuccessFinalTurn() | ToolCorrectnessScore() | StallFact():
            pass
        case _:
            assert_never(record)


def _latency(record: VoiceToVoiceLatency, agent: str) -> Iterator[Sample]:
    """The first value is observed; later ones only count as revisions, since a histogram takes nothing back."""
    if record.is_change and record.revision > 1 and not record.is_first:
        yield Counted("callgauge_turn_revisions_total", (agent, REVISED_LATENCY))
    match record.result:
        case Scored(value=latency_ms):
            if record.is_first:
                if record.source is None or record.anchor is None:
                    raise UncountableRecordError(f"a scored {record.name} names no source or no anchor")
                labels = (agent, record.source, record.anchor)
                if latency_ms < 0:
                    yield Counted("callgauge_turns_overlapped_total", labels)
                else:
                    yield Observed("callgauge_turn_response_latency_seconds", labels, latency_ms / MS_PER_SECOND)
        case Unscored(reason=reason):
            if record.status is TurnStatus.FINAL and record.turn is not None and record.turn >= 1:
                yield Counted("callgauge_turns_unmeasured_total", (agent, reason))
        case NotApplicable():
            pass
        case _:
            assert_never(record.result)
