"""EVA's metrics of a live call: each turn's timing as soon as it is heard, what follows for the call so far, and all at the end.

A turn's score is computed from that turn and the end of the answer before it, by the functions that score the whole call;
at the close every value is EVA's own. Where a turn that was settled says something else in the end, it is counted why.
"""

from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Final

from consumers.engine.call_memory import Subject
from consumers.engine.effects import Count, Effect, PublishScore
from consumers.engine.eva_metrics.bot_context import context_as_heard
from consumers.engine.eva_metrics.composites import EXPERIENCE_THRESHOLDS, eva_x_mean, eva_x_pass
from consumers.engine.eva_metrics.final_scores import FinalScore, WholeCall, final_scores
from consumers.engine.eva_metrics.heard_times import HeardTimes, heard_times, is_scored_at_the_close, may_be_scored
from consumers.engine.eva_metrics.pre_tool_speech import pre_tool_speech_rate
from consumers.engine.eva_metrics.response_speed import speed_of
from consumers.engine.eva_metrics.supplied import Supplied
from consumers.engine.eva_metrics.tool_turns import ToolTurns
from consumers.engine.eva_metrics.turn_scores import SCORE_DIGITS
from consumers.engine.eva_metrics.turn_taking import turn_scores_of
from consumers.engine.eva_metrics.turn_values import (
    TurnValue,
    final_value,
    live_score,
    live_value,
    why_silent,
    worst_anchor,
)
from consumers.engine.live_side import LiveSide
from consumers.engine.record_book import Published, RecordBook
from consumers.engine.running_values import are_said_at
from consumers.engine.settled_turns import SettledTurns
from consumers.engine.speaking import SpeakingMachine
from schemas.eva_scores import EVA_PREFIX, EvaMetricName, EvaMetricScore, TurnTakingScore
from schemas.judging import JudgeKind, Rated
from schemas.metric_context import MetricContext
from schemas.score_record import Anchor, NotApplicable, Result, Scored, TurnStatus, Unscored, UnscoredReason
from schemas.scores import AnyScoreRecord

TURN: Final = "turn_taking"
_WITHDRAWN: Final = Unscored(reason=UnscoredReason.WITHDRAWN)
_NOT_JUDGED: Final = NotApplicable(reason="conciseness and conversation progression are not both judged")
_RATING_DIGITS: Final = 3


class EvaScores:
    """The measure. Effects are appended to `out`.

    Attributes:
        supplied: What the producer says of the call so that more of it can be judged.
    """

    def __init__(self, book: RecordBook) -> None:
        self.supplied = Supplied()
        self._book = book
        self._tools = ToolTurns()
        self._values: dict[int, TurnValue] = {}
        self._latency_s: dict[int, float] = {}
        self._settled = SettledTurns()
        self._turn = 0
        self._has_used_tools = False
        self._has_waited_anew = False
        self._has_scored_anew = False

    def follow(self, live: LiveSide, touched: set[int], time_ms: int, out: list[Effect]) -> None:
        """These turns may have changed. Whoever speaks on when the next turn begins is heard to end before that is answered."""
        if not touched:
            return
        machine = live.machine
        if self._tools.follow(machine.last_tool):
            self._has_used_tools = True
            self._has_waited_anew |= not touched.isdisjoint(self._latency_s)  # a wait counts by whether a tool was used
        # What is heard late of an answer also says how long it went on under the next turn.
        for turn in sorted(touched.union(turn + 1 for turn in touched if turn + 1 in machine.turns)):
            if is_scored_at_the_close(live, turn):
                continue
            heard = None
            if may_be_scored(live, turn):
                heard = heard_times(live, turn, has_tool_call=self._tools.has_call(turn))
            old = self._values.get(turn)
            new = None if heard is None else live_value(turn, heard)
            self._has_waited_anew |= self._wait(turn, heard)
            if new == old:
                continue
            self._settled.changed(live, turn, old, time_ms)
            self._has_scored_anew = True
            if new is None:
                self._values.pop(turn, None)
            else:
                self._values[turn] = new
            status = TurnStatus.OPEN if new is None or new.is_open else live.turns.status(turn)
            self._publish(self._turn_record(turn, new, status, time_ms), out)
        if machine.turn != self._turn:
            self._turn = machine.turn
            if are_said_at(self._turn):
                self._say_of_the_call(time_ms, out)

    def _say_of_the_call(self, time_ms: int, out: list[Effect]) -> None:
        """What follows for the call so far, each time it comes to another turn."""
        if self._has_used_tools:
            self._publish(self._tool_record(time_ms), out)
        if self._has_waited_anew or self._has_scored_anew:  # how the turns' ends are known is part of what is said
            self._publish(self._speed_record(time_ms), out)
        if self._has_scored_anew:
            self._publish(self._experience_record(TurnStatus.PROVISIONAL, self._mean(), time_ms), out)
        self._has_used_tools = self._has_waited_anew = self._has_scored_anew = False

    def final_records(self, live: LiveSide, context: MetricContext, last_ms: int | None) -> list[AnyScoreRecord]:
        """Every value once more, as EVA has it."""
        machine = live.machine
        self._tools.follow(machine.last_tool)
        heard = {
            turn: found
            for turn in sorted(machine.turns)
            if (found := heard_times(live, turn, has_tool_call=self._tools.has_call(turn))) is not None
        }
        if isinstance(machine, SpeakingMachine):
            context = context_as_heard(context, heard, machine.last_tool)
            scores = {turn: score for turn, each in heard.items() if (score := live_score(turn, each)) is not None}
        else:
            scores = turn_scores_of(context)
        values = {
            turn: final_value(each, scores.get(turn), is_last=turn == machine.turn) for turn, each in heard.items()
        }
        self._settled.close(live, self._values, values)
        records: list[AnyScoreRecord | None] = [
            self._turn_record(turn, value, TurnStatus.FINAL, last_ms)
            for turn, value in values.items()
            if turn or value.score is not None
        ]
        silence = None if scores else why_silent(heard, has_speech_events=live.has_speech_events)
        whole = WholeCall(
            context,
            scores,
            silence,
            pre_tool_speech_rate(live.history.timeline),
            machine.last_tool is not None,
            live.history.caller_line,
            self.supplied,
        )
        results = final_scores(whole)
        anchor = worst_anchor(values.values())
        for name, final in results.items():
            is_of_sound = name in ("eva_turn_taking", "eva_response_speed")
            records.append(self._metric_record(name, final, TurnStatus.FINAL, last_ms, anchor if is_of_sound else None))
        timing = results["eva_turn_taking"].result
        mean = timing.value if isinstance(timing, Scored) else None
        records.append(self._experience_record(TurnStatus.FINAL, mean, last_ms))
        records.append(self._pass_record(mean, last_ms))
        return [record for record in records if record is not None]

    def closing_counts(self) -> list[Count]:
        """How many turns were settled, and how many of them were something else in the end."""
        return self._settled.counts()

    def take_back(self, subjects: Iterable[Subject], out: list[Effect]) -> None:
        """Withdraw what an earlier evaluator said and this one does not know."""
        for name, turn, _ in subjects:
            if name == TURN and turn is not None:
                self._publish(self._turn_record(turn, None, TurnStatus.OPEN, None), out)
            elif name.startswith(EVA_PREFIX):
                withdrawn = FinalScore(_WITHDRAWN)
                self._publish(self._metric_record(name, withdrawn, TurnStatus.OPEN, None, None), out)

    # Records.

    def _wait(self, turn: int, heard: HeardTimes | None) -> bool:
        """Keep the turn's latency up; true when it changed."""
        old = self._latency_s.get(turn)
        new = None if heard is None else heard.times.latency_s
        if new is None:
            self._latency_s.pop(turn, None)
        else:
            self._latency_s[turn] = new
        return new != old

    def _turn_record(
        self, turn: int, value: TurnValue | None, status: TurnStatus, time_ms: int | None
    ) -> TurnTakingScore | None:
        subject = (TURN, turn, 0)
        score = None if value is None else value.score
        result = _WITHDRAWN if value is None else value.result
        if value is None and subject not in self._book.published:
            return None
        evidence: Mapping[str, float | int | bool] = {} if score is None else score.evidence
        anchor = None if value is None else value.anchor
        return self._book.record(
            TurnTakingScore, subject, status, (_plain(result), tuple(evidence.items()), anchor), event_time_ms=time_ms,
            has_value=score is not None, result=result, reason=None if score is None else score.reason.value,
            has_tool_call=evidence.get("has_tool_call", False), latency_ms=evidence.get("latency_ms"),
            overlap_ms=evidence.get("overlap_ms"), interrupt_segments=evidence.get("n_interrupt_segments"),
            post_interrupt_latency_ms=evidence.get("post_interrupt_latency_ms"), yield_ms=evidence.get("yield_ms"),
            anchor=anchor,
        )  # fmt: skip

    def _metric_record(
        self, name: str, score: FinalScore, status: TurnStatus, time_ms: int | None, anchor: Anchor | None
    ) -> EvaMetricScore | None:
        parts = dict(score.sub_metrics or {})
        return self._book.record(
            EvaMetricScore, (name, None, 0), status, (_plain(score.result), *parts.items(), anchor),
            event_time_ms=time_ms, has_value=isinstance(score.result, Scored), result=score.result,
            normalized=score.normalized, sub_metrics=parts, anchor=anchor,
        )  # fmt: skip

    def _tool_record(self, time_ms: int) -> EvaMetricScore | None:
        name: EvaMetricName = "eva_tool_call_validity"
        if not self._tools.answers and (name, None, 0) not in self._book.published:
            return None
        value = self._tools.validity
        result: Result = Scored(value=value) if self._tools.answers else _WITHDRAWN
        score = FinalScore(result, value if self._tools.answers else None, self._tools.rates)
        return self._metric_record(name, score, TurnStatus.PROVISIONAL, time_ms, None)

    def _speed_record(self, time_ms: int) -> EvaMetricScore | None:
        name: EvaMetricName = "eva_response_speed"
        waits = {turn: self._latency_s[turn] for turn in sorted(self._latency_s)}
        speed = speed_of(waits, [turn for turn in waits if self._tools.has_call(turn)])
        if speed.score is None and (name, None, 0) not in self._book.published:
            return None
        result: Result = _WITHDRAWN if speed.score is None else Scored(value=speed.score)
        score = FinalScore(result, None, speed.sub_metrics)
        return self._metric_record(name, score, TurnStatus.PROVISIONAL, time_ms, worst_anchor(self._values.values()))

    def _mean(self) -> float | None:
        """The mean of the turns' scores so far."""
        scores = [value.score.score for value in self._values.values() if value.score is not None]
        return round(fmean(scores), SCORE_DIGITS) if scores else None

    def _experience_record(
        self, status: TurnStatus, timing: float | None, time_ms: int | None
    ) -> EvaMetricScore | None:
        parts = self._experience(timing)
        mean = eva_x_mean(parts)
        result: Result = Unscored(reason=UnscoredReason.NO_TURN_JUDGED) if mean is None else Scored(value=mean)
        known = {name: value for name, value in parts.items() if value is not None}
        return self._metric_record("eva_x_mean", FinalScore(result, mean, known), status, time_ms, None)

    def _pass_record(self, timing: float | None, time_ms: int | None) -> EvaMetricScore | None:
        is_passed = eva_x_pass(self._experience(timing))
        if is_passed is None:
            return self._metric_record("eva_x_pass", FinalScore(_NOT_JUDGED), TurnStatus.FINAL, time_ms, None)
        value = float(is_passed)
        return self._metric_record(
            "eva_x_pass", FinalScore(Scored(value=value), value), TurnStatus.FINAL, time_ms, None
        )

    def _experience(self, timing: float | None) -> dict[str, float | None]:
        """The parts of EVA-X that are known: a judge's ratings stand in the book, which has what was said last."""
        parts: dict[str, float | None] = dict.fromkeys(EXPERIENCE_THRESHOLDS)
        parts[TURN] = timing
        published = self._book.published
        progression = _rating(published.get((JudgeKind.CONVERSATION_PROGRESSION.value, None, 0)))
        parts[JudgeKind.CONVERSATION_PROGRESSION.value] = progression
        rated = sorted(subject for subject in published if subject[0] == JudgeKind.CONCISENESS.value)
        ratings = [_rating(published[subject]) for subject in rated]
        known = [rating for rating in ratings if rating is not None]
        parts[JudgeKind.CONCISENESS.value] = round(fmean(known), _RATING_DIGITS) if known else None
        return parts

    def _publish(self, record: AnyScoreRecord | None, out: list[Effect]) -> None:
        if record is not None:
            out.append(PublishScore(record))


def _rating(said: Published | None) -> float | None:
    """What a judge's record said last, from 0 to 1."""
    rated = None if said is None else said.inputs[0]
    return rated.normalised if isinstance(rated, Rated) else None


def _plain(result: Result) -> float | str:
    """A result as one of a record's inputs, which are hashed as they print."""
    return result.value if isinstance(result, Scored) else result.reason
