"""Turns a score record into samples of metrics. Pure: what to count and observe, for the service to carry out."""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple, assert_never

from consumers.exporter.active_calls import CallSoFar
from schemas.closed_sets import GOAL_REASONS, LATENCY_REASONS
from schemas.goals.goal_set import GoalSet
from schemas.scores.all_records import (
    STAGE_PREFIX,
    AnyScoreRecord,
    CallStartedFact,
    CallValues,
    ClosedFact,
    CloseReason,
    DeadAirFact,
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
    TextRating,
    ToolUseFact,
    TranscriptDisagreement,
    TurnStatus,
    TurnTakingScore,
    TurnValueName,
    TurnValues,
    Unscored,
    UnscoredReason,
    VoiceToVoiceLatency,
    WordErrorRate,
)
from schemas.units import to_seconds

EXEMPLAR_NAME: Final = "conversation_id"
MAX_EXEMPLAR_CHARS: Final = 128 - len(EXEMPLAR_NAME)
"""OpenMetrics allows 128 characters for an exemplar's names and values together."""

REVISED_LATENCY: Final = "turn_response_latency"

_COUNTED_WHEN_UNSCORED: Final[frozenset[TurnValueName]] = frozenset({"turn_taking", "conciseness", "speakability"})
"""Values of turns that are counted when they are unknown, in addition to the latency."""
_SCHEMA_THAT_RESTATES: Final = 1
"""Schema version whose final records may repeat earlier ones with the same revision."""


class Counted(NamedTuple):
    """Adds `by` to the counter `metric`. 0 only creates the series, so that the first count is a visible step."""

    metric: str
    labels: tuple[str, ...]
    by: float = 1


class Observed(NamedTuple):
    """Adds `value`, in the metric's unit, to the histogram `metric`."""

    metric: str
    labels: tuple[str, ...]
    value: float


Sample = Counted | Observed


class UncountableRecordError(ValueError):
    """A valid record lacks something that its metric needs. Leave it out and count it as refused."""


def exemplar_of(record: AnyScoreRecord) -> dict[str, str]:
    """Returns the exemplar that leads from a sample to its call: the conversation id, cut to the limit of OpenMetrics."""
    # With one NUL character, Prometheus refuses the whole page.
    return {EXEMPLAR_NAME: record.conversation_id[:MAX_EXEMPLAR_CHARS].replace("\x00", "\ufffd")}


def project(record: AnyScoreRecord, now_ms: int, call: CallSoFar) -> Iterator[Sample]:
    """Yields the samples of one record.

    Args:
        record: A record of `scores`.
        now_ms: The reader's wall clock, for our own delay.
        call: The call before this record.

    Raises:
        UncountableRecordError: A value has no source or anchor, or is unknown for a reason that this kind of value cannot have.
    """
    yield Counted("callgauge_scores_read_total", (record.kind,))
    if not call.is_over:
        delay_ms = max(0, now_ms - record.caused_at_ms)  # below 0 only where clocks disagree
        yield Observed("callgauge_event_to_score_seconds", (record.labels.pipeline_type,), to_seconds(delay_ms))
    agent, environment = record.labels.agent, record.labels.environment
    where, who = (agent, environment), (agent, record.labels.tenant, environment)
    if new_waits := call.user_turns.new_waits(record):
        yield Counted("callgauge_user_turns_total", who, new_waits)
    for speaker in call.interruptions.counted(record):
        yield Counted("callgauge_interruptions_total", (*where, speaker))
    match record:
        case VoiceToVoiceLatency():
            yield from _latency(record, who)
        case CallStartedFact():
            if record.is_first:
                yield Counted("callgauge_calls_started_total", who)
                yield from _at_zero(who)
        case InterruptionFact():
            pass  # it counts when the call leaves its turn
        case DeadAirFact():
            if record.is_first:
                yield Counted("callgauge_dead_air_total", who)
        case ToolUseFact():
            if record.is_first:
                yield Counted("callgauge_tool_calls_total", (*where, record.tool, record.outcome))
        case ClosedFact():
            yield Counted("callgauge_calls_ended_total", (*who, record.reason))
            yield Observed("callgauge_call_turns", where, record.turns)
            if call.progress is not None:
                yield Observed("callgauge_call_progress_ratio", (agent,), call.progress)
                if call.goals.goal_set is not None:
                    labels = (call.goals.goal_set, environment)
                    yield Observed("callgauge_goal_set_progress_ratio", labels, call.progress)
        case GoalsFact():
            if record.is_first:
                yield Counted("callgauge_calls_with_goals_total", where)
                for outcome in ("success", "failure"):  # `increase()` cannot see a step from nothing to 1
                    yield Counted("callgauge_goal_set_calls_total", (record.goal_set.id, environment, outcome), 0)
                yield from _subgoals(record.goal_set, agent)
        case SubgoalScore():
            if record.is_first:
                yield Counted("callgauge_subgoals_reached_total", (agent, record.checked_by))
        case ProgressScore():
            pass  # shown while the call runs, and observed when it closes
        case StallFact():
            if record.is_first:
                yield Counted("callgauge_progress_stalls_total", (*where, record.by))
        case TurnValues():
            if record.is_first and record.turn is not None and record.turn >= 1:
                yield Counted("callgauge_turns_total", who)
            yield from _turn(record, where)
        case CallValues():
            if record.status is TurnStatus.FINAL:
                yield from _call(record, agent)
                if call.goals.goal_set is not None and record.success_final_turn is not None:
                    yield from _of_goal_set(record.success_final_turn, (call.goals.goal_set, environment))
        case _:
            assert_never(record)


def _at_zero(who: tuple[str, str, str]) -> Iterator[Sample]:
    """Creates the counters that rates are made of, because `increase()` cannot see a step from nothing to 1."""
    agent, _, environment = who
    yield Counted("callgauge_calls_ended_total", (*who, CloseReason.ENDED), 0)
    for name in ("callgauge_turns_total", "callgauge_user_turns_total", "callgauge_dead_air_total"):
        yield Counted(name, who, 0)
    for speaker in Speaker:
        yield Counted("callgauge_interruptions_total", (agent, environment, speaker), 0)
    yield Counted("callgauge_calls_with_goals_total", (agent, environment), 0)
    yield Counted("callgauge_progress_stalls_total", (agent, environment, "turns"), 0)


def _latency(record: VoiceToVoiceLatency, who: tuple[str, str, str]) -> Iterator[Sample]:
    """Observes the first value. Later ones only count as revisions, because a histogram cannot remove a value."""
    is_restated = record.schema_version == _SCHEMA_THAT_RESTATES and record.status is TurnStatus.FINAL
    if record.revision > 1 and not record.is_first and not is_restated:
        yield Counted("callgauge_turn_revisions_total", (who[0], REVISED_LATENCY))
    if isinstance(record.result, Scored) and record.is_first:
        if record.source is None or record.anchor is None:
            raise UncountableRecordError(f"a scored {record.name} names no source or no anchor")
        labels = (*who, record.source, record.anchor)
        latency_ms = record.result.value
        if latency_ms < 0:
            yield Counted("callgauge_turns_overlapped_total", labels)
        else:
            yield Observed("callgauge_turn_response_latency_seconds", labels, to_seconds(latency_ms))


def _turn(record: TurnValues, where: tuple[str, str]) -> Iterator[Sample]:
    """Observes the values that no earlier revision of the row had. A value that changes is not observed again."""
    agent = where[0]
    stages = {f"{STAGE_PREFIX}{each.stage}": each for each in record.stages}
    for name in record.first_known:
        if (stage := stages.get(name)) is not None:
            seconds = to_seconds(stage.latency_ms)
            yield Observed("callgauge_stage_latency_seconds", (*where, stage.source, stage.stage), seconds)
            continue
        match name, record:
            case "turn_taking", TurnValues(turn_taking=TurnTakingScore(result=Scored(value=value), anchor=anchor)):
                if anchor is None:
                    raise UncountableRecordError(f"a scored {name} names no anchor")
                yield Observed("callgauge_turn_taking_ratio", (agent, anchor), value)
            case "estimate_error_ms", TurnValues(estimate_error=error) if error is not None:
                yield Observed("callgauge_estimate_error_seconds", (agent,), to_seconds(abs(error.error_ms)))
            case "conciseness", TurnValues(conciseness=TextRating(result=Scored(value=value))):
                yield Observed("callgauge_text_rating_ratio", (agent, name), value)
            case "speakability", TurnValues(speakability=TextRating(result=Scored(value=value))):
                yield Observed("callgauge_text_rating_ratio", (agent, name), value)
            case _:
                raise UncountableRecordError(
                    f"a row of a turn knows {name[:40]!r} for the first time and has no such value"
                )


def _call(record: CallValues, agent: str) -> Iterator[Sample]:
    """Adds the values of a whole call at its end. A value that is not known adds nothing, or counts as unknown."""
    if record.speech is not None:
        yield from _speech(record.speech, agent)
    if record.stt_wer is not None:
        yield from _word_errors(record.stt_wer, agent)
    if record.transcript_disagreement is not None:
        yield from _disagreement(record.transcript_disagreement, agent)
    for eva_name, score in record.eva.items():
        yield from _eva(eva_name, score, agent)
    for stage, agreement in record.stages.items():
        if agreement.compared:
            yield Counted("callgauge_stage_disagreements_total", (agent, stage), agreement.disputed)
    if record.tool_correctness is not None:
        yield from _final("tool_correctness", record.tool_correctness, "callgauge_tool_correctness_ratio", (agent,))
    ratings = {"faithfulness": record.faithfulness, "conversation_progression": record.conversation_progression}
    for name, rating in ratings.items():
        if rating is not None:
            yield from _final(name, rating.result, "callgauge_text_rating_ratio", (agent, name))
    if record.success_final_turn is not None:
        yield from _success(record.success_final_turn, agent)
    for anchor, latencies in record.latencies.items():
        yield Counted("callgauge_turns_final_total", (agent, anchor, "measured"), latencies.measured)
        yield Counted("callgauge_turns_final_total", (agent, anchor, "overlapped"), latencies.overlapped)
        seconds = to_seconds(latencies.measured_ms)
        yield Counted("callgauge_turns_final_latency_seconds_total", (agent, anchor), seconds)
    for value_name, reasons in record.unscored_turns.items():
        yield from _unscored_turns(value_name, reasons, agent)
    for reason, subgoals in record.unscored_subgoals.items():
        known = _one_of(GOAL_REASONS, reason, "subgoal")
        yield Counted("callgauge_subgoals_unscored_total", (agent, known), subgoals)


def _unscored_turns(name: TurnValueName, reasons: Mapping[UnscoredReason, int], agent: str) -> Iterator[Sample]:
    if name == "voice_to_voice_latency_ms":
        for reason, turns in reasons.items():
            yield Counted("callgauge_turns_unmeasured_total", (agent, _one_of(LATENCY_REASONS, reason, name)), turns)
    elif name in _COUNTED_WHEN_UNSCORED:
        yield Counted("callgauge_scores_unscored_total", (agent, name), sum(reasons.values()))
    else:
        raise UncountableRecordError(f"no metric counts turns without {name}")


def _speech(score: SpeechScore, agent: str) -> Iterator[Sample]:
    yield from _side(score.user, (agent, Speaker.USER))
    yield from _side(score.assistant, (agent, Speaker.ASSISTANT))
    yield from _seconds("callgauge_overlap_seconds_total", (agent,), score.overlap_ms)
    yield from _seconds("callgauge_dead_air_seconds_total", (agent,), score.dead_air_ms)
    if isinstance(score.first_word_ms, Scored):
        yield Observed("callgauge_first_word_seconds", (agent,), to_seconds(score.first_word_ms.value))


def _word_errors(rate: WordErrorRate, agent: str) -> Iterator[Sample]:
    if rate.reference_words:
        yield Counted("callgauge_stt_reference_words_total", (agent,), rate.reference_words)
        yield Counted("callgauge_stt_word_errors_total", (agent, "substitution"), rate.substitutions)
        yield Counted("callgauge_stt_word_errors_total", (agent, "deletion"), rate.deletions)
        yield Counted("callgauge_stt_word_errors_total", (agent, "insertion"), rate.insertions)


def _disagreement(score: TranscriptDisagreement, agent: str) -> Iterator[Sample]:
    for speaker, side in ((Speaker.USER, score.user), (Speaker.ASSISTANT, score.assistant)):
        if side.turns:
            yield Counted("callgauge_transcript_words_total", (agent, speaker), side.words)
            yield Counted("callgauge_transcript_differences_total", (agent, speaker), side.differences)


def _side(side: SideSpeech, who: tuple[str, str]) -> Iterator[Sample]:
    yield from _seconds("callgauge_talk_seconds_total", who, side.speech_ms)
    if isinstance(side.longest_monologue_ms, Scored):
        seconds = to_seconds(side.longest_monologue_ms.value)
        yield Observed("callgauge_longest_monologue_seconds", who, seconds)
    if isinstance(side.words_per_minute, Scored):
        yield Observed("callgauge_words_per_minute", who, side.words_per_minute.value)
    if isinstance(side.repeated_questions, Scored):
        yield Counted("callgauge_repeated_questions_total", who, side.repeated_questions.value)


def _seconds(metric: str, labels: tuple[str, ...], result: Result) -> Iterator[Sample]:
    if isinstance(result, Scored):
        yield Counted(metric, labels, to_seconds(result.value))


def _subgoals(goal_set: GoalSet, agent: str) -> Iterator[Sample]:
    by_judge = sum(subgoal.is_judged for subgoal in goal_set.subgoals)
    yield Counted("callgauge_subgoals_total", (agent, "code"), len(goal_set.subgoals) - by_judge)
    yield Counted("callgauge_subgoals_total", (agent, "judge"), by_judge)


def _success(result: Result, agent: str) -> Iterator[Sample]:
    match result:
        case Scored(value=success):
            yield Counted("callgauge_calls_scored_total", (agent, "success" if success == 1 else "failure"))
        case Unscored(reason=reason):
            yield Counted(
                "callgauge_calls_unscored_total", (agent, _one_of(GOAL_REASONS, reason, "success_final_turn"))
            )
        case NotApplicable():
            pass
        case _:
            assert_never(result)


def _of_goal_set(result: Result, goal_set_and_environment: tuple[str, str]) -> Iterator[Sample]:
    match result:
        case Scored(value=success):
            outcome = "success" if success == 1 else "failure"
        case Unscored():
            outcome = "unscored"
        case NotApplicable():
            return
        case _:
            assert_never(result)
    yield Counted("callgauge_goal_set_calls_total", (*goal_set_and_environment, outcome))


def _eva(name: str, score: EvaMetricScore, agent: str) -> Iterator[Sample]:
    """Observes one of EVA's metrics. `eva_response_speed` is no ratio, and is in the histogram of latencies already."""
    if score.normalized is not None or not isinstance(score.result, Scored):
        yield from _final(name, score.result, "callgauge_eva_score_ratio", (agent, name))


def _final(name: str, result: Result, metric: str, labels: tuple[str, ...]) -> Iterator[Sample]:
    """Observes the final value of a score that can change while the call runs."""
    match result:
        case Scored(value=value):
            yield Observed(metric, labels, value)
        case Unscored():
            yield Counted("callgauge_scores_unscored_total", (labels[0], name))
        case NotApplicable():
            pass
        case _:
            assert_never(result)


def _one_of(reasons: frozenset[UnscoredReason], reason: UnscoredReason, name: str) -> UnscoredReason:
    if reason not in reasons:
        raise UncountableRecordError(f"{name} cannot be unscored because of {reason}")
    return reason
