"""The measures of one call beside its moments. They publish one record for each turn, and one for the call as a whole.

A turn is measured when the call leaves it, when it is settled and at the close; the call as a whole at intervals.
"""

from collections.abc import Iterable
from typing import Any, Final

from consumers.engine.effects import Count, Effect, PublishScore
from consumers.engine.goals.judged_scores import JudgedScores
from consumers.engine.judging.ratings import Ratings
from consumers.engine.limits import Limits
from consumers.engine.measures.call_records import CallMeasured, call_record
from consumers.engine.measures.eva.live_scores import EvaScores
from consumers.engine.measures.stages.latencies import StageLatencies
from consumers.engine.measures.talk.talk_measure import MAX_RUNNING_WORK, speech_of
from consumers.engine.measures.turn_records import NAME, TurnRecords
from consumers.engine.measures.words.transcript_errors import TranscriptErrors
from consumers.engine.records.revisions import Cause, Revisions
from consumers.engine.turns.heard.heard_turn import HeardSides
from consumers.engine.turns.live_call import LiveCall, LiveChanges
from schemas.closed_sets import InputSource
from schemas.metric_context import MetricContext
from schemas.scores.all_records import AnyScoreRecord, CallValues, TurnValues

LONG_CALL_MS: Final = 120_000
"""Age from which a call is long: a shorter call gets its own record only at the close, which is soon enough."""


OLDER_BY: Final = 10
"""A long call's record is published again when the call is older by one part in this many: the record costs more the more
turns there are, and changes less. So two hours cost no more for each event than five minutes.
"""


class Measures:
    """The measures of one call.

    Attributes:
        stages: Latencies of the stages of each answer.
        eva: EVA's metrics.
    """

    __slots__ = (
        "_age_at_due_ms",
        "_call_due_ms",
        "_dirty",
        "_every_ms",
        "_is_compared_out",
        "_known",
        "_ratings",
        "_revisions",
        "_transcripts",
        "_turn",
        "_turns",
        "_work",
        "eva",
        "stages",
    )

    def __init__(self, revisions: Revisions, limits: Limits, ratings: Ratings) -> None:
        self.stages = StageLatencies(limits)
        self.eva = EvaScores(ratings)
        self._revisions = revisions
        self._ratings = ratings
        self._transcripts = TranscriptErrors()
        self._turns = TurnRecords(revisions, self.stages, self.eva, self._transcripts, ratings)
        self._every_ms = limits.call_values_every_ms
        self._dirty: set[int] = set()
        self._turn = 0
        self._call_due_ms: int | None = None
        self._age_at_due_ms = LONG_CALL_MS
        self._work = 0
        self._is_compared_out = False
        self._known: tuple[HeardSides, bool] | None = None

    def observe(self, source: InputSource, event: Any, time_ms: int) -> None:
        """Folds an event that changes no turn and reports latencies or tokens."""
        self.stages.observe(source, event, time_ms)

    def follow(
        self, live: LiveCall, changes: LiveChanges, cause: Cause, judged: JudgedScores, out: list[Effect]
    ) -> None:
        """Measures the changed turns that were left, if the call has left a turn now or a turn is settled.

        Args:
            live: The call.
            changes: The changed turns. `refresh` of the live call has made them and updated the turns.
            cause: When they changed.
            judged: Goals and text judges of the call.
            out: Effects are appended here.
        """
        touched, settled = changes.touched, changes.settled
        # Late sound of an answer also changes how long it overlapped the next turn.
        self._dirty.update(touched, (turn + 1 for turn in touched))
        turn = live.turn
        if self._call_due_ms is None:
            self._call_due_ms = cause.broker_ms + LONG_CALL_MS
        if live.turns.ever_settled:
            self.eva.touched(live, touched, cause.event_time_ms)
        if settled:
            self.eva.settled(live, settled)
            heard = live.heard()
            self._dirty.update(turn for turn in settled if self._turns.has_other_words(heard, turn))
        if turn == self._turn and not settled:
            return
        self._turn = turn
        self._publish(live, self._measure(live, cause), cause, out)
        out += self.stages.drain_counts()
        if self._is_call_due(cause.broker_ms):
            self._publish(live, self._measure_call(live, cause, judged, out), cause, out)

    def announce_end(self, live: LiveCall, cause: Cause, judged: JudgedScores, out: list[Effect]) -> None:
        """Publishes the values so far of a call that is over and waits for verdicts, so that readers know that it is over."""
        self._publish(live, self._measure_call(live, cause, judged, out, is_over=True), cause, out)

    def _is_call_due(self, broker_ms: int) -> bool:
        """Whether the record of the call is due at this change of turn."""
        if self._call_due_ms is None or broker_ms < self._call_due_ms:
            return False
        age_ms = broker_ms - self._call_due_ms + self._age_at_due_ms
        self._age_at_due_ms = age_ms + max(self._every_ms, age_ms // OLDER_BY)
        self._call_due_ms = broker_ms + self._age_at_due_ms - age_ms
        return True

    def compare_at_close(self, context: MetricContext) -> bool:
        """Takes one step of the comparisons that precede the final values; returns whether it was the last."""
        return self._transcripts.compare_at_close(context)

    def final_records(
        self, live: LiveCall, context: MetricContext, cause: Cause, judged: JudgedScores
    ) -> list[AnyScoreRecord]:
        """The records of turns that change at the end of the call, and the record of the call."""
        turns, heard = sorted(live.turns.turns), live.heard()
        self._fold_recorded(live, turns)
        if self.eva.supplied.latencies_ms:
            self.stages.fold_run(heard, turns, self.eva.supplied.latencies_ms)
        changed = self._dirty | self.stages.stale_turns(heard, self._dirty) | self._ratings.changed_turns
        changed |= self._transcripts.finish(context)
        metrics = self.eva.finish(live, heard, context)
        last_ms = cause.event_time_ms
        end_ms = heard.sound_end_ms(last_ms)
        gone = [turn for name, turn, _ in self._revisions.published if name == NAME and turn not in live.turns.turns]
        records: list[TurnValues | CallValues | None] = [
            self._turns.withdraw(turn, cause) for turn in gone if turn is not None
        ]
        for number, turn in heard.turns(turns).items():
            may_differ = number in changed or number >= heard.current or turn.rests_on_open_sound
            records.append(self._turns.final_record(live, heard, number, cause, end_ms, may_differ=may_differ))
        counted = heard.numbers()
        measured = CallMeasured(
            max(counted, default=heard.current),
            speech_of(live, heard, sorted(counted), last_ms, is_over=True),
            self._transcripts.of_call(live, context),
            metrics,
            self.stages.agreement(heard, turns),
            self._ratings.of_call(),
            judged.goal_values(is_over=True),
            self._turns.latencies,
            self._turns.unscored,
            is_over=True,
        )
        records.append(call_record(self._revisions, measured, cause, is_final=True))
        return [record for record in records if record is not None]

    def closing_counts(self) -> list[Count]:
        """Counts for the metrics, once every final value is there."""
        return [*self.stages.drain_counts(), *self.eva.closing_counts()]

    def _measure(self, live: LiveCall, cause: Cause) -> list[TurnValues]:
        """The records of the changed turns that were left; other changed turns wait until they are left."""
        dirty, rated = self._dirty, self._ratings.changed_turns
        heard = live.heard()
        known = heard.sides, live.has_speech_events
        if known != self._known:  # a side without sound was silent in every turn, and not merely unheard
            self._known = known
            dirty |= live.turns.turns
        if rated:
            dirty |= rated
            rated.clear()
        self._fold_recorded(live, dirty)
        dirty |= self.stages.stale_turns(heard, dirty)
        left = {turn for turn in dirty if turn < heard.current}
        left |= self._transcripts.compare(heard, left)
        self._dirty = dirty - left
        gone = {turn for turn in self._dirty if live.turns.view(turn) is None}
        self._dirty -= gone
        records = [self._turns.make(live, heard, turn, cause) for turn in sorted(left | gone)]
        return [record for record in records if record is not None]

    def _measure_call(
        self, live: LiveCall, cause: Cause, judged: JudgedScores, out: list[Effect], *, is_over: bool = False
    ) -> list[CallValues]:
        """The record of the call so far; none once making them has cost too much."""
        if self._transcripts.is_over_limit and not self._is_compared_out:
            self._is_compared_out = True
            out.append(Count("callgauge_limits_hit_total", ("running_comparison",)))
        if self._work > MAX_RUNNING_WORK:
            return []
        heard = live.heard()
        end = heard.current
        speech = speech_of(live, heard, sorted(turn for turn in heard.numbers() if turn < end), None, is_over=False)
        self._work += speech.work
        if self._work > MAX_RUNNING_WORK:
            out.append(Count("callgauge_limits_hit_total", ("running_speech",)))
        measured = CallMeasured(
            end - 1,
            speech,
            self._transcripts.of_call(live, None),
            self.eva.running_metrics(live, heard),
            {},  # agreement of the sources is judged at the close, on all their reports
            self._ratings.of_call(),
            judged.goal_values(is_over=False),
            {},
            {},
            is_over=is_over,
        )
        record = call_record(self._revisions, measured, cause, is_final=False)
        return [] if record is None else [record]

    def _publish(
        self, live: LiveCall, records: Iterable[TurnValues | CallValues], cause: Cause, out: list[Effect]
    ) -> None:
        for record in records:
            live.announce(cause.broker_ms, out)
            out.append(PublishScore(record))

    def _fold_recorded(self, live: LiveCall, turns: Iterable[int]) -> None:
        """Folds the values of an ElevenLabs agent's record for these turns; a turn that it lacks has none."""
        record = live.record
        if record is not None:
            for turn in turns:
                self.stages.fold_convai(turn, record.metrics(turn))
