"""EVA's `turn_taking` of a whole call: the mean of its turn scores, and the parts that explain it."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from consumers.engine.measures.eva.timing.turn_scores import (
    MS_DIGITS,
    SCORE_DIGITS,
    TurnReason,
    TurnScore,
    TurnTimes,
    turn_score,
)
from consumers.engine.records.eva_result import MetricResult, scored
from schemas.metric_context import MetricContext

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
        pre_tool_speech_rate: Share of the audit log's tool groups that began after words of the assistant; None without tools.
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
        parts = {**_sub_metrics(context, evaluable, scores, pre_tool_speech_rate), **(mean_tokens or {})}
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
    return frozenset(entry["turn_id"] for entry in context.conversation_trace if entry.get("type") == "tool_call")


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
    """Whether the call ended because the assistant did not answer: idle, and the user was heard last."""
    return context.conversation_ended_reason == INACTIVITY and last_speaker(context) == "user"


def last_speaker(context: MetricContext) -> str | None:
    """The side that was heard last, the assistant if both ended at once; None when nobody was heard."""
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
        latency_ms >= (LATE_FROM_WITH_TOOL_MS if turn in with_tools else LATE_FROM_MS) for turn, latency_ms in timed
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
        "agent_interruption.rate": _rate(len(context.assistant_interrupted_turns & {*evaluable}), count),
        "user_interruption.rate": _rate(len(context.user_interrupted_turns & {*evaluable}), count),
        "fallback_nudge.rate": _rate(fallbacks, assistant_keys),
        "fallback_nudge.count": float(fallbacks) if fallbacks else None,
    }
    evidence = [score.evidence for score in scores.values() if score.reason is not TurnReason.TURN_END_FALLBACK]
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
    ("agent_interruption.mean_post_interrupt_latency_score", "post_interrupt_latency_score", SCORE_DIGITS),
    ("user_interruption.mean_yield_ms", "yield_ms", MS_DIGITS),
    ("user_interruption.mean_yield_score", "yield_score", SCORE_DIGITS),
)


def _mean(values: Sequence[float], digits: int) -> float | None:
    return round(statistics.mean(values), digits) if values else None


def _rate(part: int, whole: int) -> float:
    return round(part / whole, SCORE_DIGITS) if whole else 0.0


def _percentile(ordered: Sequence[float], share: float) -> float | None:
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], MS_DIGITS) if ordered else None
