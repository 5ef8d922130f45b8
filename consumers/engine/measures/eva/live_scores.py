"""EVA's metrics of a live call: the timing of each turn the call has left, running values of the call, and final values.

A turn's score is computed from that turn and the end of the answer before it, by the functions that score the whole call; at
the close every value is EVA's own. A settled turn whose final value differs is counted with the cause.
"""

from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any, Final

from consumers.engine.effects import Count
from consumers.engine.judging.ratings import Ratings
from consumers.engine.measures.eva.composites import EXPERIENCE_THRESHOLDS, eva_x_mean, eva_x_pass
from consumers.engine.measures.eva.final_scores import FinalScore, WholeCall, final_scores
from consumers.engine.measures.eva.supplied import SuppliedFacts
from consumers.engine.measures.eva.timing.bot_context import context_as_heard
from consumers.engine.measures.eva.timing.heard_times import (
    HeardTimes,
    heard_times,
    is_scored_at_the_close,
    may_be_scored,
)
from consumers.engine.measures.eva.timing.response_speed import speed_of
from consumers.engine.measures.eva.timing.settled_turns import SettledTurns
from consumers.engine.measures.eva.timing.turn_scores import SCORE_DIGITS
from consumers.engine.measures.eva.timing.turn_taking import turn_scores_of
from consumers.engine.measures.eva.timing.turn_values import (
    TurnValue,
    final_value,
    live_score,
    live_value,
    why_silent,
    worst_anchor,
)
from consumers.engine.measures.eva.tools.pre_tool_speech import pre_tool_speech_rate
from consumers.engine.measures.eva.tools.tool_call_validity import validity_of
from consumers.engine.turns.heard.heard_turn import HeardTurns
from consumers.engine.turns.live_call import LiveCall
from schemas.judging import JudgeKind, Rated
from schemas.metric_context import MetricContext
from schemas.scores.eva import EvaMetricName
from schemas.scores.record import Anchor, NotApplicable, Result, Scored, Unscored, UnscoredReason

TURN: Final = "turn_taking"
_NOT_JUDGED: Final = NotApplicable(reason="conciseness and conversation progression are not both judged")
_OF_SOUND: Final = ("eva_turn_taking", "eva_response_speed")
_RATING_DIGITS: Final = 3

Metrics = dict[EvaMetricName, tuple[FinalScore, Anchor | None]]
"""Metrics of a call by name; the anchor is the worst one of the turns behind a metric of sound."""


class EvaScores:
    """The values of one call.

    Attributes:
        supplied: Facts that the producer supplied, for metrics of the final state and of tools.
    """

    __slots__ = (
        "_final",
        "_ratings",
        "_settled",
        "supplied",
    )

    def __init__(self, ratings: Ratings) -> None:
        self.supplied = SuppliedFacts()
        self._ratings = ratings
        self._settled = SettledTurns()
        self._final: Mapping[int, TurnValue] | None = None

    def touched(self, live: LiveCall, turns: Iterable[int], time_ms: int | None) -> None:
        """Notes which settled ones among these turns changed by an event at this time."""
        changed = live.turns.ever_settled.intersection(turns)
        heard = live.heard()
        for turn in changed:
            self._settled.changed(live, turn, self.turn_value(live, heard, turn), time_ms)

    def settled(self, live: LiveCall, turns: Iterable[int]) -> None:
        """Notes the values of turns that are settled now."""
        heard = live.heard()
        for turn in turns:
            self._settled.settle(turn, self.turn_value(live, heard, turn))

    def turn_value(self, live: LiveCall, heard: HeardTurns, number: int) -> TurnValue | None:
        """The timing of the turn as far as known; None while nothing is known."""
        if self._final is not None:
            return self._final.get(number)
        view, turn = live.turns.view(number), heard.turn(number)
        if view is None or turn is None or not may_be_scored(turn, view) or is_scored_at_the_close(turn):
            return None
        return live_value(number, heard_times(turn, view))

    def running_metrics(self, live: LiveCall, heard: HeardTurns) -> Metrics:
        """The metrics that the call has so far."""
        tools = live.turns.tools
        metrics: Metrics = {}
        answers = [
            {"tool_name": use.tool, "tool_response": use.answer} for use in tools if use.tool and use.answer is not None
        ]
        if answers:
            validity = validity_of(answers, ())
            score = FinalScore(Scored(value=validity.score or 0.0), validity.normalized_score, validity.sub_metrics)
            metrics["eva_tool_call_validity"] = (score, None)
        timed = self._times(live, heard, is_over=False)
        values = {turn: value for turn, each in timed.items() if (value := live_value(turn, each)) is not None}
        waits = {turn: each.times.latency_s for turn, each in timed.items() if each.times.latency_s is not None}
        speed = speed_of(waits, [turn for turn in waits if tools.has_call(turn)])
        if speed.score is not None:
            anchor = worst_anchor(values.values())
            metrics["eva_response_speed"] = (FinalScore(Scored(value=speed.score), None, speed.sub_metrics), anchor)
        scores = [value.score.score for value in values.values() if value.score is not None]
        if scores:
            mean = round(fmean(scores), SCORE_DIGITS)
            metrics["eva_x_mean"] = (self._experience_mean(mean), None)
        return metrics

    def finish(self, live: LiveCall, heard: HeardTurns, context: MetricContext) -> Metrics:
        """Makes the final values of all turns.

        Returns:
            Every metric of the call.
        """
        timed = self._times(live, heard, is_over=True)
        if heard.is_simulated:
            scores = turn_scores_of(context)
        else:
            context = context_as_heard(context, timed, heard.last_tool)
            scores = {turn: score for turn, each in timed.items() if (score := live_score(turn, each)) is not None}
        values = {
            turn: final_value(each, scores.get(turn), is_last=turn == heard.current) for turn, each in timed.items()
        }
        self._settled.close(values)
        self._final = {turn: value for turn, value in values.items() if turn or value.score is not None}
        whole = WholeCall(
            context,
            scores,
            None if scores else why_silent(timed, has_speech_events=live.has_speech_events),
            pre_tool_speech_rate(live.history.timeline),
            heard.last_tool is not None,
            live.history.caller_line,
            self.supplied,
        )
        anchor = worst_anchor(values.values())
        metrics: Metrics = {
            name: (score, anchor if name in _OF_SOUND else None) for name, score in final_scores(whole).items()
        }
        timing = metrics["eva_turn_taking"][0].result
        mean = timing.value if isinstance(timing, Scored) else None
        metrics["eva_x_mean"] = (self._experience_mean(mean), None)
        metrics["eva_x_pass"] = (self._experience_pass(mean), None)
        return metrics

    def closing_counts(self) -> list[Count]:
        """Numbers of settled turns, and of those whose final value differs."""
        return self._settled.counts()

    def _times(self, live: LiveCall, heard: HeardTurns, *, is_over: bool) -> dict[int, HeardTimes]:
        """Times by turn, lowest first; while the call runs only of the turns that are scored live."""
        found = {}
        for number, turn in heard.turns(sorted(heard.numbers())).items():
            view = live.turns.view(number)
            if view is not None and (is_over or not is_scored_at_the_close(turn)):
                found[number] = heard_times(turn, view)
        return found

    def _experience_mean(self, timing: float | None) -> FinalScore:
        parts = self._experience(timing)
        mean = eva_x_mean(parts)
        result: Result = Unscored(reason=UnscoredReason.NO_TURN_JUDGED) if mean is None else Scored(value=mean)
        return FinalScore(result, mean, {name: value for name, value in parts.items() if value is not None})

    def _experience_pass(self, timing: float | None) -> FinalScore:
        is_passed = eva_x_pass(self._experience(timing))
        return FinalScore(_NOT_JUDGED) if is_passed is None else FinalScore(Scored(value=is_passed), float(is_passed))

    def _experience(self, timing: float | None) -> dict[str, float | None]:
        """The known parts of EVA-X."""
        parts: dict[str, float | None] = dict.fromkeys(EXPERIENCE_THRESHOLDS)
        parts[TURN] = timing
        progression = self._ratings.of_call().get(JudgeKind.CONVERSATION_PROGRESSION)
        if progression is not None and isinstance(progression[0], Rated):
            parts[JudgeKind.CONVERSATION_PROGRESSION.value] = progression[0].normalised
        known = self._ratings.known_of_turns(JudgeKind.CONCISENESS)
        parts[JudgeKind.CONCISENESS.value] = round(fmean(known), _RATING_DIGITS) if known else None
        return parts


def taking_inputs(value: TurnValue | None) -> tuple[Any, ...] | None:
    """A turn's score in plain values, to be hashed."""
    if value is None:
        return None
    result, score = value.result, value.score
    plain = result.value if isinstance(result, Scored) else result.reason
    return plain, () if score is None else tuple(score.evidence.items()), value.anchor


def taking_fields(value: TurnValue | None) -> dict[str, Any] | None:
    """The fields of a `TurnTakingScore`."""
    if value is None:
        return None
    fields: dict[str, Any] = {"result": value.result, "anchor": value.anchor}
    if value.score is not None:
        evidence = value.score.evidence
        fields |= {
            "reason": value.score.reason.value,
            "has_tool_call": evidence.get("has_tool_call", False),
            "latency_ms": evidence.get("latency_ms"),
            "overlap_ms": evidence.get("overlap_ms"),
            "interrupt_segments": evidence.get("n_interrupt_segments"),
            "post_interrupt_latency_ms": evidence.get("post_interrupt_latency_ms"),
            "yield_ms": evidence.get("yield_ms"),
        }
    return fields


def metric_inputs(metrics: Metrics) -> tuple[Any, ...]:
    """The metrics in plain values, to be hashed."""
    return tuple(
        (name, *score.result, score.normalized, tuple(dict(score.sub_metrics or {}).items()), anchor)
        for name, (score, anchor) in metrics.items()
    )


def metric_fields(metrics: Metrics) -> dict[EvaMetricName, dict[str, Any]]:
    """The fields of an `EvaMetricScore` by name."""
    return {
        name: {
            "result": score.result,
            "normalized": score.normalized,
            "sub_metrics": dict(score.sub_metrics or {}),
            "anchor": anchor,
        }
        for name, (score, anchor) in metrics.items()
    }
