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
    EstimateError,
    EvaMetricScore,
    GoalsFact,
    InterruptionFact,
    NotApplicable,
    ProgressScore,
    Result,
    Scored,
    SideSpeech,
    Speaker,
    SpeechScore,
    StallFact,
    SubgoalScore,
    SuccessFinalTurn,
    TextJudgeScore,
    ToolCorrectnessScore,
    ToolUseFact,
    TranscriptDisagreement,
    TurnFact,
    TurnStages,
    TurnStatus,
    TurnTakingScore,
    Unscored,
    UnscoredReason,
    VoiceToVoiceLatency,
    WordErrorRate,
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
        UnscoredReason.TIMES_UNKNOWN,
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
        UnscoredReason.ASSISTANT_STILL_SPEAKING,
        UnscoredReason.END_REASON_UNKNOWN,
        UnscoredReason.FINAL_STATE_UNKNOWN,
    }
) | {UnscoredReason.NO_USER_SPEECH, UnscoredReason.TIMES_UNKNOWN}
"""Why a subgoal or a call's success can be unknown: what a judge may say, and what only goals can lack."""


class Counted(NamedTuple):
    """Add `by` to the counter `metric`; 0 only makes the series appear, so that the first count is a visible step."""

    metric: str
    labels: tuple[str, ...]
    by: float = 1


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
        case TurnStages():
            yield from _stages(record, agent)
        case EstimateError():
            if record.is_first and isinstance(record.result, Scored):
                size_ms = abs(record.result.value)
                yield Observed("callgauge_estimate_error_seconds", (agent,), size_ms / MS_PER_SECOND)
        case TurnTakingScore():
            yield from _final(record, "callgauge_turn_taking_ratio", (agent, _anchor(record)))
        case EvaMetricScore():
            yield from _eva(record, agent)
        case SpeechScore() | WordErrorRate() | TranscriptDisagreement():
            if record.status is TurnStatus.FINAL:
                yield from _speech(record, agent)
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


def _stages(record: TurnStages, agent: str) -> Iterator[Sample]:
    """The first number of each stage is observed. Whether sources agree is judged by all that they said, so at the end."""
    for each in record.stages:
        if each.stage in record.first_known:
            seconds = each.latency_ms / MS_PER_SECOND
            yield Observed("callgauge_stage_latency_seconds", (agent, each.source, each.stage), seconds)
        if each.others_ms and record.status is TurnStatus.FINAL:
            yield Counted("callgauge_stage_disagreements_total", (agent, each.stage), int(each.is_disputed))


def _speech(record: SpeechScore | WordErrorRate | TranscriptDisagreement, agent: str) -> Iterator[Sample]:
    """What a whole call adds; what is not known of it adds nothing."""
    match record:
        case SpeechScore():
            yield from _side(record.user, (agent, Speaker.USER))
            yield from _side(record.assistant, (agent, Speaker.ASSISTANT))
            yield from _seconds("callgauge_overlap_seconds_total", (agent,), record.overlap_ms)
            yield from _seconds("callgauge_dead_air_seconds_total", (agent,), record.dead_air_ms)
            if isinstance(record.first_word_ms, Scored):
                yield Observed("callgauge_first_word_seconds", (agent,), record.first_word_ms.value / MS_PER_SECOND)
        case WordErrorRate():
            if record.reference_words:
                yield Counted("callgauge_stt_reference_words_total", (agent,), record.reference_words)
                yield Counted("callgauge_stt_word_errors_total", (agent, "substitution"), record.substitutions)
                yield Counted("callgauge_stt_word_errors_total", (agent, "deletion"), record.deletions)
                yield Counted("callgauge_stt_word_errors_total", (agent, "insertion"), record.insertions)
        case TranscriptDisagreement():
            for speaker, side in ((Speaker.USER, record.user), (Speaker.ASSISTANT, record.assistant)):
                if side.turns:
                    yield Counted("callgauge_transcript_words_total", (agent, speaker), side.words)
                    yield Counted("callgauge_transcript_differences_total", (agent, speaker), side.differences)
        case _:
            assert_never(record)


def _side(side: SideSpeech, who: tuple[str, str]) -> Iterator[Sample]:
    yield from _seconds("callgauge_talk_seconds_total", who, side.speech_ms)
    if isinstance(side.longest_monologue_ms, Scored):
        seconds = side.longest_monologue_ms.value / MS_PER_SECOND
        yield Observed("callgauge_longest_monologue_seconds", who, seconds)
    if isinstance(side.words_per_minute, Scored):
        yield Observed("callgauge_words_per_minute", who, side.words_per_minute.value)
    if isinstance(side.repeated_questions, Scored):
        yield Counted("callgauge_repeated_questions_total", who, side.repeated_questions.value)


def _seconds(metric: str, labels: tuple[str, ...], result: Result) -> Iterator[Sample]:
    if isinstance(result, Scored):
        yield Counted(metric, labels, result.value / MS_PER_SECOND)


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


def _eva(record: EvaMetricScore, agent: str) -> Iterator[Sample]:
    """One that is no share of anything, the wait for an answer, is in the histogram of latencies turn by turn."""
    if record.normalized is not None or not isinstance(record.result, Scored):
        yield from _final(record, "callgauge_eva_score_ratio", (agent, record.name))


def _anchor(record: TurnTakingScore) -> str:
    if record.anchor is None and isinstance(record.result, Scored):
        raise UncountableRecordError(f"a scored {record.name} names no anchor")
    return record.anchor or ""


def _final(
    record: ToolCorrectnessScore | TextJudgeScore | TurnTakingScore | EvaMetricScore,
    metric: str,
    labels: tuple[str, ...],
) -> Iterator[Sample]:
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
