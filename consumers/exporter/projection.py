"""What a score record adds to the metrics: pure, and the only place where milliseconds become seconds."""

from collections.abc import Iterator
from typing import Final, NamedTuple, assert_never

from schemas.goals import GoalSet
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
    TextJudgeScore,
    ToolCorrectnessScore,
    ToolUseFact,
    TurnFact,
    TurnStatus,
    Unscored,
    UnscoredReason,
    VoiceToVoiceLatency,
)

MS_PER_SECOND: Final = 1_000
EXEMPLAR_NAME: Final = "conversation_id"
MAX_EXEMPLAR_CHARS: Final = 128 - len(EXEMPLAR_NAME)
"""OpenMetrics allows 128 characters for an exemplar's names and values together."""

REVISED_LATENCY: Final = "turn_response_latency"

LATENCY_REASONS: Final = frozenset(
    {
        UnscoredReason.USER_STILL_SPEAKING,
        UnscoredReason.NO_USER_SPEECH,
        UnscoredReason.NO_ASSISTANT_SPEECH,
        UnscoredReason.NO_SPEECH_EVENTS,
        UnscoredReason.WITHDRAWN,
    }
)
"""Why a latency can be unknown."""
GOAL_REASONS: Final = (
    frozenset(UnscoredReason)
    - LATENCY_REASONS
    - {
        UnscoredReason.ONE_TURN_HAS_NO_AREA,
        UnscoredReason.NO_TOOL_CALL_DUE,
        UnscoredReason.EXPECTED_TURN_NOT_REACHED,
    }
) | {UnscoredReason.NO_USER_SPEECH}
"""Why a subgoal or a call's success can be unknown: what a judge may say, and what only goals can lack."""


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


def project(record: AnyScoreRecord, now_ms: int, progress: float | None) -> Iterator[Sample]:
    """The samples of one record.

    Args:
        record: As read from `scores`.
        now_ms: The reader's wall clock, for our own delay.
        progress: How far the call was before this record, from 0 to 1; None when that is not known or it has no goals.

    Raises:
        UncountableRecordError: A value is there, but not what it was measured between; or it is not known for a reason that
            this kind of value cannot have.
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
            if progress is not None:
                yield Observed("callgauge_call_progress_ratio", (agent,), progress)
        case GoalsFact():
            if record.is_first:
                yield Counted("callgauge_calls_with_goals_total", (agent,))
                yield from _subgoals(record.goal_set, agent)
        case SubgoalScore():
            yield from _subgoal(record, agent)
        case ProgressScore():
            pass  # shown while the call runs, and observed when it closes
        case SuccessFinalTurn():
            yield from _success(record, agent)
        case ToolCorrectnessScore():
            yield from _final(record, "callgauge_tool_correctness_ratio", (agent,))
        case TextJudgeScore():
            yield from _final(record, "callgauge_text_rating_ratio", (agent, record.name))
        case StallFact():
            if record.is_first:
                yield Counted("callgauge_progress_stalls_total", (agent, record.by))
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
                yield Counted("callgauge_turns_unmeasured_total", (agent, _one_of(LATENCY_REASONS, reason, record)))
        case NotApplicable():
            pass
        case _:
            assert_never(record.result)


def _subgoals(goal_set: GoalSet, agent: str) -> Iterator[Sample]:
    by_judge = sum(subgoal.is_judged for subgoal in goal_set.subgoals)
    yield Counted("callgauge_subgoals_total", (agent, "code"), len(goal_set.subgoals) - by_judge)
    yield Counted("callgauge_subgoals_total", (agent, "judge"), by_judge)


def _subgoal(record: SubgoalScore, agent: str) -> Iterator[Sample]:
    if record.is_first:
        yield Counted("callgauge_subgoals_reached_total", (agent, record.checked_by))
    if record.status is TurnStatus.FINAL and isinstance(record.result, Unscored):
        reason = _one_of(GOAL_REASONS, record.result.reason, record)
        yield Counted("callgauge_subgoals_unscored_total", (agent, reason))


def _success(record: SuccessFinalTurn, agent: str) -> Iterator[Sample]:
    match record.result:
        case Scored(value=success):
            yield Counted("callgauge_calls_scored_total", (agent, "success" if success == 1 else "failure"))
        case Unscored(reason=reason):
            yield Counted("callgauge_calls_unscored_total", (agent, _one_of(GOAL_REASONS, reason, record)))
        case NotApplicable():
            pass
        case _:
            assert_never(record.result)


def _final(record: ToolCorrectnessScore | TextJudgeScore, metric: str, labels: tuple[str, ...]) -> Iterator[Sample]:
    """A score that changes while the call runs counts as it is at the end."""
    if record.status is not TurnStatus.FINAL:
        return
    match record.result:
        case Scored(value=value):
            yield Observed(metric, labels, value)
        case Unscored():
            yield Counted("callgauge_scores_unscored_total", (record.labels.agent, record.name))
        case NotApplicable():
            pass
        case _:
            assert_never(record.result)


def _one_of(reasons: frozenset[UnscoredReason], reason: UnscoredReason, record: AnyScoreRecord) -> UnscoredReason:
    if reason not in reasons:
        raise UncountableRecordError(f"a record of {record.name} cannot be unscored because of {reason}")
    return reason
