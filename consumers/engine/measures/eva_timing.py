"""EVA's scores of timing: turn taking and response speed."""

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import reduce
from hashlib import blake2b
from itertools import product
from math import inf
from operator import add
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from consumers.engine.effects import Count
from consumers.engine.measures.results import MetricResult, scored, skipped
from consumers.engine.turns.heard import HeardTurn
from consumers.engine.turns.live import LiveCall
from consumers.engine.turns.timeline import (
    EVA_DIGITS,
    MS_DIGITS,
    ToolEntry,
    TurnView,
    voice_to_voice_ms,
)
from schemas.closed_sets import Anchor, PipelineType, UnscoredReason
from schemas.metric_context import MetricContext
from schemas.rows import NotApplicable, TurnTaking, Unscored, Value, number

# Scores the timing of one turn from 0 to 1: EVA's curves for latency, for the assistant speaking
# over the user, and for its yielding.
#
# The inputs are the turn and the end of the assistant's answer before it, so a turn can be scored
# while the call runs and again, by the same functions, when it is over.

EARLIEST_MS: Final = -500.0
"""An answer this early before the user's end, or earlier, scores 0."""
SWEET_FROM_MS: Final = 500.0
INTERRUPTION_BEST: Final = 0.5
"""Highest score of a turn in which the assistant spoke over the user."""
OVERLAP_LIMIT_MS: Final = 2000.0
INTERRUPTIONS_LIMIT: Final = 3
YIELD_LIMIT_MS: Final = 2000.0
TOUCHING_S: Final = 0.001
"""Longest overlap of two sounds, in seconds, that is no interruption."""
SCORE_DIGITS: Final = 4

Segments = Sequence[tuple[float, float]]
"""(start, end) of each stretch of sound, in epoch seconds."""


class TurnReason(StrEnum):
    """Grounds of a turn's score."""

    LATENCY = "latency"
    AGENT_INTERRUPT = "agent_interrupt"
    USER_INTERRUPT = "user_interrupt"
    DUAL_INTERRUPT = "dual_interrupt"
    TURN_END_FALLBACK = "turn_end_fallback"


class TurnTimes(NamedTuple):
    """Inputs of a turn's score.

    Attributes:
        user: Sounds of the user in the turn.
        assistant: Sounds of the assistant in the turn.
        assistant_before_end_s: End of the assistant's last sound in the turn before (epoch
            seconds); None without one.
        latency_s: From the end of the user's last sound to the assistant's first; None unless both
            were heard.
        has_tool_call: Whether a tool was called in the turn, which allows for a later answer.
        is_fallback: Whether the agent's turn-end timer had to step in.
        assistant_interrupted: Whether the assistant began to speak over the user.
        user_interrupted: Whether the user began to speak over the assistant.
    """

    user: Segments
    assistant: Segments
    assistant_before_end_s: float | None
    latency_s: float | None
    has_tool_call: bool
    is_fallback: bool
    assistant_interrupted: bool
    user_interrupted: bool


@dataclass(frozen=True, slots=True)
class TurnScore:
    """The score of a turn.

    Attributes:
        score: From 0 to 1, rounded to 4 digits.
        reason: Its grounds.
        evidence: The measurements behind it under EVA's names; milliseconds have 3 digits, scores
            4.
    """

    score: float
    reason: TurnReason
    evidence: Mapping[str, float | int | bool]


def on_time_until_ms(*, has_tool_call: bool) -> float:
    """Latest answer that costs nothing, in ms after the user's end."""
    return 3000.0 if has_tool_call else 2000.0


def latest_ms(*, has_tool_call: bool) -> float:
    """Earliest late answer that scores 0, in ms after the user's end."""
    return 5000.0 if has_tool_call else 3500.0


def latency_score(latency_ms: float, *, has_tool_call: bool) -> float:
    """The score of an answer after this silence; not rounded.

    Example:
        >>> [latency_score(ms, has_tool_call=False) for ms in (-500, 0, 500, 2000, 2750, 3500)]
        [0.0, 0.5, 1.0, 1.0, 0.5, 0.0]
        >>> latency_score(4000, has_tool_call=True)
        0.5
    """
    high_ms, late_ms = (
        on_time_until_ms(has_tool_call=has_tool_call),
        latest_ms(has_tool_call=has_tool_call),
    )
    if latency_ms <= EARLIEST_MS or latency_ms >= late_ms:
        return 0.0
    if latency_ms < SWEET_FROM_MS:
        return (latency_ms - EARLIEST_MS) / (SWEET_FROM_MS - EARLIEST_MS)
    if latency_ms <= high_ms:
        return 1.0
    return (late_ms - latency_ms) / (late_ms - high_ms)


def turn_score(times: TurnTimes) -> TurnScore | None:
    """The score of a turn; None while one side was not heard in it, unless the fallback timer
    stepped in.
    """
    if times.is_fallback:
        return TurnScore(0.0, TurnReason.TURN_END_FALLBACK, {"has_tool_call": times.has_tool_call})
    if not times.user or not times.assistant or times.latency_s is None:
        return None
    by_agent, agent_evidence = (
        _agent_interruption(times) if times.assistant_interrupted else (None, {})
    )
    by_user, user_evidence = _user_interruption(times) if times.user_interrupted else (None, {})
    evidence: dict[str, float | int | bool] = {
        "has_tool_call": times.has_tool_call,
        **agent_evidence,
        **user_evidence,
    }
    if by_agent is not None and by_user is not None:
        score, reason = min(by_agent, by_user), TurnReason.DUAL_INTERRUPT
    elif by_agent is not None:
        score, reason = by_agent, TurnReason.AGENT_INTERRUPT
    elif by_user is not None:
        score, reason = by_user, TurnReason.USER_INTERRUPT
    else:
        latency_ms = times.latency_s * 1000
        score, reason = (
            latency_score(latency_ms, has_tool_call=times.has_tool_call),
            TurnReason.LATENCY,
        )
        evidence["latency_ms"] = round(latency_ms, MS_DIGITS)
        evidence["latency_score"] = round(score, SCORE_DIGITS)
    return TurnScore(round(score, SCORE_DIGITS), reason, evidence)


def _agent_interruption(times: TurnTimes) -> tuple[float, dict[str, float | int | bool]]:
    """Score and evidence where the assistant spoke over the user: how long, how often, and its
    answer after that.
    """
    overlap_s = 0.0
    count = 0
    for theirs in times.assistant:
        count += any(_shared_s(mine, theirs) > TOUCHING_S for mine in times.user)
    # one by one: from Python 3.12 on sum() adds differently
    for mine, theirs in product(times.user, times.assistant):
        overlap_s += max(0.0, _shared_s(mine, theirs))
    overlap_ms = overlap_s * 1000
    scores = [INTERRUPTION_BEST * max(0.0, 1 - overlap_ms / OVERLAP_LIMIT_MS)]
    evidence: dict[str, float | int | bool] = {
        "overlap_ms": round(overlap_ms, MS_DIGITS),
        "overlap_score": round(scores[0], SCORE_DIGITS),
        "n_interrupt_segments": count,
    }
    if count:
        by_count = INTERRUPTION_BEST * max(0.0, 1 - (count - 1) / (INTERRUPTIONS_LIMIT - 1))
        evidence["interrupt_count_score"] = round(by_count, SCORE_DIGITS)
        scores.append(by_count)
    settled_ms = _settled_latency_ms(times)
    if settled_ms is not None:
        by_latency = latency_score(settled_ms, has_tool_call=times.has_tool_call)
        evidence["post_interrupt_latency_ms"] = round(settled_ms, MS_DIGITS)
        evidence["post_interrupt_latency_score"] = round(by_latency, SCORE_DIGITS)
        scores.append(by_latency)
    return min(scores), evidence


def _settled_latency_ms(times: TurnTimes) -> float | None:
    """From the user's last end to the answer that begins after it; None when the assistant keeps
    speaking, or never answers.
    """
    user_end_s = times.user[-1][1]
    if any(start <= user_end_s < end for start, end in times.assistant):
        return None
    later_s = min((start for start, _ in times.assistant if start > user_end_s), default=None)
    return None if later_s is None else (later_s - user_end_s) * 1000


def _user_interruption(times: TurnTimes) -> tuple[float | None, dict[str, float | int | bool]]:
    """Score and evidence where the user spoke over the assistant: how long it kept speaking."""
    if times.assistant_before_end_s is None:
        return None, {}
    yield_ms = max(0.0, times.assistant_before_end_s - times.user[0][0]) * 1000
    score = max(0.0, 1 - yield_ms / YIELD_LIMIT_MS)
    return score, {
        "yield_ms": round(yield_ms, MS_DIGITS),
        "yield_score": round(score, SCORE_DIGITS),
    }


def _shared_s(one: tuple[float, float], other: tuple[float, float]) -> float:
    """Overlap of both in seconds; negative when one begins after the other's end."""
    return min(one[1], other[1]) - max(one[0], other[0])


# EVA's `turn_taking` of a whole call: the mean of its turn scores, and the parts that explain it.

EARLY_BELOW_MS: Final = 200.0
LATE_FROM_MS: Final = 2750.0
LATE_FROM_WITH_TOOL_MS: Final = 4000.0
INACTIVITY: Final = "inactivity_timeout"


def turn_taking(
    context: MetricContext,
    pre_tool_speech_rate: float | None,
    scores: Mapping[int, TurnScore] | None = None,
    mean_tokens: Mapping[str, float] | None = None,
) -> MetricResult:
    """The metric with its sub-metrics.

    Args:
        context: EVA's context of the call.
        pre_tool_speech_rate: Share of the audit log's tool groups that began after words of the
            assistant; None without tools.
        scores: The scores of the turns, if known already.
        mean_tokens: Mean number of tokens of the model's steps, by EVA's names, as far as known.
    """
    if scores is None:
        scores = turn_scores_of(context)
    is_missed = missed_turn(context)
    mean = _mean([score.score for score in scores.values()], SCORE_DIGITS)
    details = {
        "missed_turn": is_missed,
        "num_evaluated": len(scores),
        "num_turns": max(
            max(context.audio_timestamps_user_turns, default=0),
            max(context.audio_timestamps_assistant_turns, default=0),
        ),
        "per_turn_evidence": {str(turn): dict(score.evidence) for turn, score in scores.items()},
        "per_turn_reason": {str(turn): score.reason.value for turn, score in scores.items()},
        "per_turn_score": {str(turn): score.score for turn, score in scores.items()},
    }
    evaluable = evaluable_turns(context)
    parts: dict[str, float | None] = {}
    if evaluable:
        parts = {
            **_sub_metrics(context, evaluable, scores, pre_tool_speech_rate),
            **(mean_tokens or {}),
        }
    return scored(0.0 if is_missed or mean is None else mean, details, parts)


def turn_scores_of(context: MetricContext) -> dict[int, TurnScore]:
    """The score of each turn that has one, in the order of the turns."""
    with_tools = turns_with_tools(context)
    scores = {}
    for turn in sorted({*evaluable_turns(context), *context.fallback_turn_ids}):
        score = turn_score(times_of(context, turn, has_tool_call=turn in with_tools))
        if score is not None:
            scores[turn] = score
    return scores


def turns_with_tools(context: MetricContext) -> frozenset[int]:
    """Turns in which a tool was called."""
    return frozenset(
        entry["turn_id"] for entry in context.conversation_trace if entry.get("type") == "tool_call"
    )


def evaluable_turns(context: MetricContext) -> list[int]:
    """Turns in which both sides were heard, in order, without the greeting."""
    return sorted(turn for turn in context.latency_assistant_turns if turn)


def times_of(context: MetricContext, turn: int, *, has_tool_call: bool) -> TurnTimes:
    """Inputs of the turn's score."""
    before = context.audio_timestamps_assistant_turns.get(turn - 1)
    return TurnTimes(
        user=context.audio_timestamps_user_turns.get(turn) or (),
        assistant=context.audio_timestamps_assistant_turns.get(turn) or (),
        assistant_before_end_s=before[-1][1] if before else None,
        latency_s=context.latency_assistant_turns.get(turn),
        has_tool_call=has_tool_call,
        is_fallback=turn in context.fallback_turn_ids,
        assistant_interrupted=turn in context.assistant_interrupted_turns,
        user_interrupted=turn in context.user_interrupted_turns,
    )


def missed_turn(context: MetricContext) -> bool:
    """Whether the call ended because the assistant did not answer: idle, and the user was heard
    last.
    """
    return context.conversation_ended_reason == INACTIVITY and last_speaker(context) == "user"


def last_speaker(context: MetricContext) -> str | None:
    """The side that was heard last, the assistant if both ended at once; None when neither was
    heard.
    """
    user_s = _last_end_s(context.audio_timestamps_user_turns.values())
    assistant_s = _last_end_s(context.audio_timestamps_assistant_turns.values())
    if assistant_s is None:
        return None if user_s is None else "user"
    return "user" if user_s is not None and user_s > assistant_s else "assistant"


def _last_end_s(heard: Iterable[Sequence[tuple[float, float]] | None]) -> float | None:
    return max((end for segments in heard for _, end in segments or ()), default=None)


def _sub_metrics(
    context: MetricContext,
    evaluable: Sequence[int],
    scores: Mapping[int, TurnScore],
    pre_tool_speech_rate: float | None,
) -> dict[str, float | None]:
    with_tools = turns_with_tools(context)
    timed = [(turn, context.latency_assistant_turns[turn] * 1000) for turn in evaluable]
    latencies_ms = sorted(latency_ms for _, latency_ms in timed)
    early = sum(latency_ms < EARLY_BELOW_MS for _, latency_ms in timed)
    late = sum(
        latency_ms >= (LATE_FROM_WITH_TOOL_MS if turn in with_tools else LATE_FROM_MS)
        for turn, latency_ms in timed
    )
    count = len(timed)
    assistant_keys = len(context.audio_timestamps_assistant_turns)
    fallbacks = len(context.fallback_turn_ids)
    parts: dict[str, float | None] = {
        "mean_latency_ms": _mean(latencies_ms, MS_DIGITS),
        "p50_latency_ms": _percentile(latencies_ms, 0.5),
        "p90_latency_ms": _percentile(latencies_ms, 0.9),
        "on_time_rate": _rate(count - early - late, count),
        "early_rate": _rate(early, count),
        "late_rate": _rate(late, count),
        "agent_interruption.rate": _rate(
            len(context.assistant_interrupted_turns & {*evaluable}), count
        ),
        "user_interruption.rate": _rate(len(context.user_interrupted_turns & {*evaluable}), count),
        "fallback_nudge.rate": _rate(fallbacks, assistant_keys),
        "fallback_nudge.count": float(fallbacks) if fallbacks else None,
    }
    evidence = [
        score.evidence
        for score in scores.values()
        if score.reason is not TurnReason.TURN_END_FALLBACK
    ]
    counts = [each["n_interrupt_segments"] for each in evidence if "n_interrupt_segments" in each]
    parts["agent_interruption.num_interruptions"] = float(sum(counts)) if counts else None
    for name, key, digits in _MEANS:
        mean = _mean([each[key] for each in evidence if key in each], digits)
        if mean is not None:
            parts[name] = mean
    if pre_tool_speech_rate is not None:
        parts["pretoolspeech_rate"] = pre_tool_speech_rate
    return parts


_MEANS = (
    ("agent_interruption.mean_overlap_ms", "overlap_ms", MS_DIGITS),
    ("agent_interruption.mean_overlap_score", "overlap_score", SCORE_DIGITS),
    ("agent_interruption.mean_count_score", "interrupt_count_score", SCORE_DIGITS),
    ("agent_interruption.mean_post_interrupt_latency_ms", "post_interrupt_latency_ms", MS_DIGITS),
    (
        "agent_interruption.mean_post_interrupt_latency_score",
        "post_interrupt_latency_score",
        SCORE_DIGITS,
    ),
    ("user_interruption.mean_yield_ms", "yield_ms", MS_DIGITS),
    ("user_interruption.mean_yield_score", "yield_score", SCORE_DIGITS),
)


def _mean(values: Sequence[float], digits: int) -> float | None:
    return round(statistics.mean(values), digits) if values else None


def _rate(part: int, whole: int) -> float:
    return round(part / whole, SCORE_DIGITS) if whole else 0.0


def _percentile(ordered: Sequence[float], share: float) -> float | None:
    return (
        round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], MS_DIGITS)
        if ordered
        else None
    )


# Times at which both sides were heard in a turn, as known now: the input of the turn's score while
# the call runs.


class HeardTimes(NamedTuple):
    """One turn as heard so far. An open sound has an infinite end.

    Attributes:
        times: Input of its score.
        anchor: Source of the end of the user's speech; None while unknown.
        pending: Why there is no score yet although both sides were heard; None if there is nothing
            to wait for.
    """

    times: TurnTimes
    anchor: Anchor | None
    pending: UnscoredReason | None


MAX_LIVE_SOUNDS: Final = 256
"""Stretches of sound of one side in a turn up to which it is scored while the call runs. A minute
of it has some ten; a loop would make each event cost as much as all before it.
"""


def may_be_scored(turn: HeardTurn, view: TurnView) -> bool:
    """Whether the turn has anything to score: both sides, or the fallback timer. Most events of a
    turn change nothing here.
    """
    return (view.has_user and (view.has_assistant or view.is_answered_in_text)) or turn.is_fallback


def is_scored_at_the_close(turn: HeardTurn) -> bool:
    """Whether the turn has more than `MAX_LIVE_SOUNDS`: its last live value stays until
    the close.
    """
    return max(len(turn.assistant.starts), len(turn.user.starts)) > MAX_LIVE_SOUNDS


def heard_times(turn: HeardTurn, view: TurnView) -> HeardTimes:
    """The turn as EVA's formulas read it. A side without sound gets one without length where the
    view has a time of it.
    """
    user, assistant = turn.user.segments, turn.assistant.segments
    if not user and view.user_end_s is not None:
        user = ((view.user_end_s, view.user_end_s),)
    if not assistant and view.assistant_start_s is not None:
        assistant = ((view.assistant_start_s, view.assistant_start_s),)
    wait_ms = voice_to_voice_ms(view)
    times = TurnTimes(
        user=user,
        assistant=assistant,
        assistant_before_end_s=turn.answer_before_end_s,
        latency_s=round(wait_ms / 1000, EVA_DIGITS) if isinstance(wait_ms, float) else None,
        has_tool_call=turn.has_tool_call,
        is_fallback=turn.is_fallback,
        assistant_interrupted=turn.assistant_interrupted,
        user_interrupted=turn.user_interrupted,
    )
    anchor = view.anchor or (Anchor.ESTIMATED if turn.is_fallback else None)
    pending = wait_ms.reason if isinstance(wait_ms, Unscored) else None
    is_over_other = times.assistant_interrupted or times.user_interrupted
    if (
        is_over_other
        and (turn.user.has_gaps or turn.assistant.has_gaps)
        and may_be_scored(turn, view)
    ):
        pending = UnscoredReason.TIMES_UNKNOWN  # for how long one spoke over the other is not known
    if times.is_fallback:
        pending = None
    elif user and assistant and pending is None:
        if user[-1][1] == inf:
            pending = UnscoredReason.USER_STILL_SPEAKING
        elif times.user_interrupted and times.assistant_before_end_s == inf:
            pending = UnscoredReason.ASSISTANT_STILL_SPEAKING
    return HeardTimes(times, anchor, pending)


# The timing of a turn while the call runs, and at its end.

NOT_ANSWERED: Final = NotApplicable("the call ended before an answer")
_ANCHORS: Final = tuple(Anchor)


def taking_of(score: TurnScore, anchor: Anchor | None) -> TurnTaking:
    """The score of a turn with its evidence, as the row of the turn has it."""
    evidence: Mapping[str, Any] = score.evidence
    return TurnTaking(
        result=score.score,
        reason=score.reason.value,
        has_tool_call=evidence.get("has_tool_call", False),
        latency_ms=evidence.get("latency_ms"),
        overlap_ms=evidence.get("overlap_ms"),
        interrupt_segments=evidence.get("n_interrupt_segments"),
        post_interrupt_latency_ms=evidence.get("post_interrupt_latency_ms"),
        yield_ms=evidence.get("yield_ms"),
        anchor=anchor,
    )


def live_taking(turn: int, heard: HeardTimes) -> TurnTaking | None:
    """The turn as heard so far; None while one side was not heard, since nothing is known yet."""
    if heard.pending is not None and turn:
        return TurnTaking(Unscored(heard.pending), anchor=heard.anchor)
    score = live_score(turn, heard)
    return None if score is None else taking_of(score, heard.anchor)


def live_score(turn: int, heard: HeardTimes) -> TurnScore | None:
    """The score of the turn as heard so far. The greeting has none, unless the fallback timer
    stepped in.
    """
    if heard.pending is not None or not (turn or heard.times.is_fallback):
        return None
    return turn_score(heard.times)


def final_taking(heard: HeardTimes, score: TurnScore | None, *, is_last: bool) -> TurnTaking:
    """The turn when the call is over.

    Args:
        heard: The turn.
        score: Its score by the rules for whole calls.
        is_last: Whether the call ended in it.
    """
    if score is not None:
        return taking_of(score, heard.anchor)
    result: Value
    if heard.pending is not None:
        result = Unscored(heard.pending)
    elif not heard.times.user:
        result = Unscored(UnscoredReason.NO_USER_SPEECH)
    else:
        result = NOT_ANSWERED if is_last else Unscored(UnscoredReason.NO_ASSISTANT_SPEECH)
    return TurnTaking(result, anchor=heard.anchor)


def why_silent(heard: Mapping[int, HeardTimes], *, has_speech_events: bool) -> UnscoredReason:
    """Why no turn of a call has a score: the pending reason of the first turn with both sides, or
    the side that was not heard.
    """
    pending = next((turn.pending for turn in heard.values() if turn.pending is not None), None)
    if pending is not None:
        return pending
    if not has_speech_events:
        return UnscoredReason.NO_SPEECH_EVENTS
    has_user = any(turn.times.user for turn in heard.values())
    return UnscoredReason.NO_ASSISTANT_SPEECH if has_user else UnscoredReason.NO_USER_SPEECH


def worst_anchor(takings: Iterable[TurnTaking]) -> Anchor | None:
    """The least certain anchor of the turns that have a score; None when none has one."""
    places = [
        _ANCHORS.index(each.anchor)
        for each in takings
        if number(each.result) is not None and each.anchor is not None
    ]
    return _ANCHORS[max(places)] if places else None


# EVA's context for a call without a simulated caller, so that EVA's formulas apply to the turns
# that the bot heard.


def context_as_heard(
    context: MetricContext, turns: Mapping[int, HeardTimes], last_tool: ToolEntry | None
) -> MetricContext:
    """The context with the times of these turns, in their order, since EVA has none for such a
    call.

    Its tools are those of the chain that ends with `last_tool`: EVA knows only the tools of the
    audit log.

    An open sound has an infinite end, so the result is for comparing times and not for printing
    them.
    """
    times = {turn: turns[turn].times for turn in sorted(turns)}
    calls, responses = told_tools(last_tool)
    return context.model_copy(
        update={
            "audio_timestamps_user_turns": {
                turn: list(each.user) for turn, each in times.items() if each.user
            },
            "audio_timestamps_assistant_turns": {
                turn: list(each.assistant) for turn, each in times.items() if each.assistant
            },
            "latency_assistant_turns": {
                turn: each.latency_s for turn, each in times.items() if each.latency_s is not None
            },
            "tool_params": calls,
            "tool_responses": responses,
            "conversation_trace": [
                {"type": "tool_call", "turn_id": turn}
                for turn, each in times.items()
                if each.has_tool_call
            ],
            "assistant_interrupted_turns": frozenset(
                turn for turn, each in times.items() if each.assistant_interrupted
            ),
            "user_interrupted_turns": frozenset(
                turn for turn, each in times.items() if each.user_interrupted
            ),
            "fallback_turn_ids": frozenset(
                turn for turn, each in times.items() if each.is_fallback
            ),
        }
    )


def told_tools(last: ToolEntry | None) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The calls with arguments and the answers of the chain that ends with `last`, each in order,
    as EVA's context has them.
    """
    calls: list[dict[str, Any]] = []
    responses: list[dict[str, Any]] = []
    while last is not None:
        use = last.use
        if use.name and use.value is not None:
            if last.is_response:
                responses.append({"tool_name": use.name, "tool_response": use.value})
            else:
                calls.append({"tool_name": use.name, "tool_parameters": use.value})
        last = last.previous
    return calls[::-1], responses[::-1]


# EVA's `response_speed`: the user's wait for an answer, over all turns, and with and without tools.

LONGEST_S: Final = 1000.0
"""A wait this long, in seconds, is a mistake in the recording."""
DIGITS: Final = 3


def response_speed(
    context: MetricContext, stage_mean_ms: Mapping[str, float] | None = None
) -> MetricResult:
    """The metric with its sub-metrics.

    Args:
        context: EVA's context of the call.
        stage_mean_ms: Mean latency of a stage (`llm_latency`, `stt_latency`, `tts_latency`) from
            the run's result.
    """
    return speed_of(context.latency_assistant_turns, turns_with_tools(context), stage_mean_ms)


def speed_of(
    latency_s: Mapping[int, float],
    with_tools: Iterable[int],
    stage_mean_ms: Mapping[str, float] | None = None,
) -> MetricResult:
    """The metric of these latencies by turn, in seconds, without waits that are none or cannot be
    true.
    """
    tool_turns = frozenset(with_tools)
    details = _summary(latency_s.values())
    if not details:
        return skipped()
    split = {
        "with_tool_calls": _summary(
            wait_s for turn, wait_s in latency_s.items() if turn in tool_turns
        ),
        "no_tool_calls": _summary(
            wait_s for turn, wait_s in latency_s.items() if turn not in tool_turns
        ),
    }
    parts: dict[str, float | None] = {
        name: part["mean_speed_seconds"] for name, part in split.items() if part
    }
    parts |= {
        stage: round(mean_ms / 1000, DIGITS) for stage, mean_ms in (stage_mean_ms or {}).items()
    }
    return MetricResult(details["mean_speed_seconds"], None, details, sub_metrics=parts)


def mean_of(values: Sequence[float]) -> float:
    """The mean, added one by one from the first: from Python 3.12 on sum() adds differently, and
    EVA's rounding shows it.
    """
    return reduce(add, values) / len(values)


def _summary(waits_s: Iterable[float]) -> dict[str, Any]:
    valid = [wait_s for wait_s in waits_s if 0 < wait_s < LONGEST_S]
    if not valid:
        return {}
    return {
        "max_speed_seconds": round(max(valid), DIGITS),
        "mean_speed_seconds": round(mean_of(valid), DIGITS),
        "num_turns": len(valid),
        "per_turn_speeds": [round(wait_s, DIGITS) for wait_s in valid],
    }


# Compares settled turns with their final values.


class ChangeCause(StrEnum):
    """Causes of a different final value of a settled turn.

    An event came later than the allowed lateness; the log of a speech-to-speech agent, which is
    back-dated by a whole utterance; an event in order changed the count of turns; or only the end
    of the call made the difference.
    """

    LATE_EVENT = "late_event"
    BACKDATED_LOG = "backdated_log"
    COUNTED_ANEW = "counted_anew"
    END_OF_CALL = "end_of_call"


class SettledTurns:
    """Keeps the score of each turn as settled, and the cause of its first change."""

    def __init__(self) -> None:
        self._then: dict[int, bytes] = {}
        self._causes: dict[int, ChangeCause] = {}
        self._settled = 0
        self._changed: Counter[ChangeCause] = Counter()

    def settle(self, turn: int, taking: TurnTaking | None) -> None:
        """Notes that the turn is settled with this score; a turn that was settled before keeps its
        first value.
        """
        self._then.setdefault(turn, _score(taking))

    def changed(
        self, live: LiveCall, turn: int, taking: TurnTaking | None, time_ms: int | None
    ) -> None:
        """Notes the value of a settled turn after an event at this time touched it."""
        if turn in self._causes or turn not in self._then or self._then[turn] == _score(taking):
            return
        if time_ms is not None and time_ms >= live.newest_ms:
            self._causes[turn] = ChangeCause.COUNTED_ANEW
        elif live.history.pipeline_type is PipelineType.S2S:
            self._causes[turn] = ChangeCause.BACKDATED_LOG
        else:
            self._causes[turn] = ChangeCause.LATE_EVENT

    def close(self, final: Mapping[int, TurnTaking]) -> None:
        """Compares with the final values."""
        for turn in sorted(self._then):
            self._settled += 1
            if self._then[turn] != _score(final.get(turn)):
                self._changed[self._causes.get(turn, ChangeCause.END_OF_CALL)] += 1

    def counts(self) -> list[Count]:
        """Counts for the metrics, at the end of the call."""
        counts = (
            [Count("callgauge_settled_turns_total", (), self._settled)] if self._settled else []
        )
        return counts + [
            Count("callgauge_settled_turns_changed_total", (cause.value,), self._changed[cause])
            for cause in ChangeCause
            if self._changed[cause]
        ]


def _score(taking: TurnTaking | None) -> bytes:
    """Equal bytes for equal scores; a few for each turn, however much evidence the score has."""
    if taking is None or number(taking.result) is None:
        return b""
    return blake2b(repr(replace(taking, anchor=None)).encode(), digest_size=8).digest()
