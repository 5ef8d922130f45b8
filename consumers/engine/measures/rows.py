"""The measures of a call as its rows have them: those of each turn, when the call leaves it, and
those of the whole call.
"""

from collections.abc import Container, Generator, Iterable, Mapping
from math import fsum, inf
from typing import Any, Final

from consumers.engine.effects import Count, Effect
from consumers.engine.goals.progress import JudgedScores
from consumers.engine.goals.text_judges import Ratings
from consumers.engine.limits import Limits
from consumers.engine.measures.eva import EvaScores, Metrics
from consumers.engine.measures.eva_timing import NOT_ANSWERED
from consumers.engine.measures.stages import StageLatencies
from consumers.engine.measures.talk import (
    LONG_SILENCE_MS,
    MAX_RUNNING_WORK,
    TURNS_OF_ONE_STEP,
    speech_in_steps,
    speech_of,
    talk_of,
)
from consumers.engine.measures.told import Notes, cost_of, uses_of
from consumers.engine.measures.words import TranscriptErrors
from consumers.engine.rows import CallRows
from consumers.engine.turns.bot import TokenUsage
from consumers.engine.turns.heard import HeardSides, HeardTurn, HeardTurns
from consumers.engine.turns.live import Cause, LiveCall, LiveChanges
from consumers.engine.turns.timeline import (
    EVA_DIGITS,
    MS_DIGITS,
    TurnView,
    unmeasured_reason,
    voice_to_voice_ms,
)
from schemas.closed_sets import CALL_JUDGES, TURN_JUDGES, Anchor, JudgeKind, UnscoredReason
from schemas.metric_context import MetricContext
from schemas.rows import (
    STAGE_NEWS,
    Agreement,
    EstimateError,
    FinalWaits,
    NotApplicable,
    Rating,
    Speech,
    TurnOutcome,
    TurnRow,
    TurnTaking,
    Unscored,
    Value,
    number,
)
from schemas.scores.latency_stages import Stage
from schemas.units import MS_PER_SECOND

# The measures of a turn.

_GREETING: Final = NotApplicable("the greeting answers nobody")
_WITHDRAWN: Final[Mapping[str, Any]] = {
    "status": "withdrawn",
    "wait_ms": Unscored(UnscoredReason.WITHDRAWN),
    "anchor": None,
    "wait_source": None,
    "after_tools_ms": None,
    "stages": (),
    "outcome": None,
    "turn_taking": None,
    "talk": None,
    "stt_wer": None,
    "user_disagreement": None,
    "assistant_disagreement": None,
    "estimate_error": None,
    **{kind.value: None for kind in TURN_JUDGES},
}
"""The measures of a turn that does not exist."""


def _outcome(
    live: LiveCall,
    heard: HeardTurns,
    turn: HeardTurn,
    view: TurnView,
    *,
    is_over: bool,
    has_ended: bool = True,
) -> TurnOutcome | None:
    """How the turn ended; None if it has not, if the caller did not speak in it, or if lost events
    hide it. Where events only stopped (not `has_ended`), the answer to the last turn may have
    come after them, unless the caller asked again in vain.
    """
    if turn.number < 1 or not view.has_user:
        return None
    following = heard.turn(turn.number + 1)
    if view.has_assistant or view.is_answered_in_text or view.recorded_ms is not None:
        return "interrupted" if following is not None and following.is_barge_in else "answered"
    is_last = turn.number >= heard.current
    if not view.are_times_exact or not live.has_speech_events or (is_last and not is_over):
        return None
    if is_last and not has_ended and not _asked_again(turn):
        return None
    until_s = inf if following is None or following.begin_s is None else following.begin_s
    if turn.begin_s is not None and live.errors.is_any(turn.begin_s, until_s):
        return "failed"
    if not heard.sides.assistant:
        return None  # nothing tells whether this agent is ever heard
    return "abandoned" if is_last else "unanswered"


def _asked_again(turn: HeardTurn) -> bool:
    """Whether the caller spoke again after a silence."""
    least_s = LONG_SILENCE_MS / MS_PER_SECOND
    pauses = zip(turn.user.ends, turn.user.starts[1:], strict=False)
    return any(start_s - end_s >= least_s for end_s, start_s in pauses)


def _after_tools_ms(turn: HeardTurn, view: TurnView) -> float | None:
    """The wait for the sound after the tools, where an earlier sound bridged the time; None if no
    sound did, or times are unknown.
    """
    begin_s, first_s = view.user_end_s, view.assistant_start_s
    if begin_s is None or first_s is None or not view.are_times_exact or turn.assistant.has_gaps:
        return None
    done_ms = [
        use.called_at_ms + use.duration_ms
        for use in turn.tools
        if use.called_at_ms is not None and use.duration_ms is not None and use.is_exact
    ]
    if not done_ms or max(done_ms) <= first_s * MS_PER_SECOND:
        return None
    later_s = min(
        (start_s for start_s in turn.assistant.starts if start_s * MS_PER_SECOND >= max(done_ms)),
        default=None,
    )
    return (
        None
        if later_s is None
        else round(round(later_s - begin_s, EVA_DIGITS) * MS_PER_SECOND, MS_DIGITS)
    )


def _estimate_error(view: TurnView) -> EstimateError | None:
    """Error of the live estimate, where a record has the wait too."""
    if view.recorded_ms is None or view.heard_ms is None:
        return None
    return EstimateError(
        round(view.heard_ms - view.recorded_ms, MS_DIGITS), view.heard_ms, float(view.recorded_ms)
    )


def _count_known(rows: CallRows, row: TurnRow) -> None:
    """Counts the values of a turn that are known; each counts once."""
    turn = row.turn
    if turn >= 1 and row.wait_ms != NOT_ANSWERED:
        rows.count(turn, "turn")
    if row.turn_taking is not None and number(row.turn_taking.result) is not None:
        rows.count(turn, "turn_taking")
    if row.estimate_error is not None:
        rows.count(turn, "estimate_error")
    for kind in TURN_JUDGES:
        rating: Rating | None = getattr(row, kind.value)
        if rating is not None and number(rating.result) is not None:
            rows.count(turn, kind.value)
    for stage in row.stages:
        rows.count(turn, STAGE_NEWS + stage.stage)


class MeasuredTurns:
    """Measures the turns of a call, and sets what it finds in their rows."""

    def __init__(
        self,
        rows: CallRows,
        stages: StageLatencies,
        eva: EvaScores,
        transcripts: TranscriptErrors,
        ratings: Ratings,
    ) -> None:
        self._rows = rows
        self._stages = stages
        self._eva = eva
        self._transcripts = transcripts
        self._ratings = ratings
        self._words: dict[int, int] = {}  # by turn, a mark of its words

    def has_other_outcome(self, live: LiveCall, heard: HeardTurns, number: int) -> bool:
        """Whether the turn, which was measured, ended otherwise than its row says."""
        if number not in self._words:
            return False
        view, turn = live.turns.view(number), heard.turn(number)
        if view is None or turn is None:
            return False
        return _outcome(live, heard, turn, view, is_over=False) != self._rows.turns[number].outcome

    def has_other_words(self, heard: HeardTurns, number: int) -> bool:
        """Whether the known words of the turn differ from those that were measured."""
        turn = heard.turn(number)
        return turn is None or self._words.get(number) != turn.words.mark

    def measure(
        self,
        live: LiveCall,
        heard: HeardTurns,
        number: int,
        known_ms: int,
        end_ms: int | None = None,
        *,
        is_final: bool = False,
        has_ended: bool = True,
        may_differ: bool = True,
    ) -> None:
        """Sets the measures of a turn in its row; withdraws it when it does not exist.

        Args:
            live: The call.
            heard: Its turns.
            number: Number of the turn.
            known_ms: Broker time of what changed it, or of the end of the call.
            end_ms: End of open sound; None while the call runs.
            is_final: Whether the call is over.
            has_ended: Whether something said so, and events did not only stop.
            may_differ: Whether other measures than its words and its timing may differ from those
                in its row.
        """
        rows, view, turn = self._rows, live.turns.view(number), heard.turn(number)
        if view is None or turn is None:
            self.withdraw(number, known_ms)
            return
        taking, wait_ms = (
            self._eva.turn_taking(live, heard, number),
            self._wait_ms(live, number, view),
        )
        is_last = number == heard.current and number >= 1
        if (
            is_final
            and is_last
            and view.has_user
            and not view.has_assistant
            and not view.is_answered_in_text
        ):
            wait_ms = NOT_ANSWERED
        outcome = _outcome(live, heard, turn, view, is_over=is_final, has_ended=has_ended)
        if not may_differ and self._words.get(number) == turn.words.mark:
            row = rows.turns[number]
            if (row.turn_taking, row.wait_ms, row.outcome) == (taking, wait_ms, outcome):
                return
        self._words[number] = turn.words.mark
        differences = self._transcripts.of_turn(live, number)
        is_changed = rows.set_turn(
            number,
            known_ms,
            wait_ms=wait_ms,
            anchor=view.anchor,
            wait_source=view.source,
            after_tools_ms=_after_tools_ms(turn, view),
            stages=self._stages.stages_of(heard, number),
            outcome=outcome,
            turn_taking=taking,
            talk=talk_of(turn, heard.sides, end_ms, is_cut_off=outcome == "interrupted"),
            stt_wer=differences.stt_wer,
            user_disagreement=differences.user,
            assistant_disagreement=differences.assistant,
            estimate_error=_estimate_error(view),
            conciseness=self._ratings.of_turn(JudgeKind.CONCISENESS, number),
            speakability=self._ratings.of_turn(JudgeKind.SPEAKABILITY, number),
            transcription_accuracy_key_entities=self._ratings.of_turn(
                JudgeKind.KEY_ENTITIES, number
            ),
        )
        if is_changed:
            _count_known(rows, rows.turns[number])

    def withdraw(self, turn: int, known_ms: int) -> None:
        """Withdraws a turn that does not exist, if it was measured."""
        if turn in self._words:
            self._rows.set_turn(turn, known_ms, **_WITHDRAWN)

    def withdraw_for_good(self, there: Container[int], known_ms: int) -> None:
        """Withdraws every turn beside those that exist, unless its row has a tool or a goal: a
        silence makes no turn.
        """
        for turn, row in sorted(self._rows.turns.items()):
            if turn not in there and (turn in self._words or not (row.tools or row.progress)):
                self._rows.set_turn(turn, known_ms, **_WITHDRAWN)

    def _wait_ms(self, live: LiveCall, turn: int, view: TurnView) -> Value:
        if turn < 1:
            return _GREETING
        wait_ms = voice_to_voice_ms(view)
        if wait_ms is not None:
            return wait_ms
        return Unscored(unmeasured_reason(view, has_speech_events=live.has_speech_events))


# What follows from all turns of a closed call.


def _final_waits(rows: Iterable[TurnRow]) -> dict[Anchor, FinalWaits]:
    waits_ms: dict[Anchor, list[float]] = {}
    for row in rows:
        wait_ms = number(row.wait_ms)
        if wait_ms is not None and row.anchor is not None:
            waits_ms.setdefault(row.anchor, []).append(wait_ms)
    found = {}
    for anchor, all_ms in sorted(waits_ms.items()):
        measured = [wait_ms for wait_ms in all_ms if wait_ms >= 0]
        found[anchor] = FinalWaits(
            len(measured), round(fsum(measured), MS_DIGITS), len(all_ms) - len(measured)
        )
    return found


def _unscored_turns(rows: Iterable[TurnRow]) -> dict[str, dict[UnscoredReason, int]]:
    """By value, in how many turns it is unknown, by reason."""
    found: dict[str, dict[UnscoredReason, int]] = {}

    def note(name: str, value: Value | None) -> None:
        if isinstance(value, Unscored):
            reasons = found.setdefault(name, {})
            reasons[value.reason] = reasons.get(value.reason, 0) + 1

    for row in rows:
        note("voice_to_voice_latency_ms", row.wait_ms)
        parts: dict[str, TurnTaking | Rating | None] = {"turn_taking": row.turn_taking}
        parts |= {kind.value: getattr(row, kind.value) for kind in TURN_JUDGES}
        for name, part in parts.items():
            note(name, None if part is None else part.result)
    return found


def _agreement(rows: Iterable[TurnRow]) -> dict[Stage, Agreement]:
    """By stage, in how many turns several sources measured it and disagreed."""
    compared: dict[Stage, list[bool]] = {}
    for row in rows:
        for stage in row.stages:
            if stage.others_ms:
                compared.setdefault(stage.stage, []).append(stage.is_disputed)
    return {
        stage: Agreement(len(disputes), sum(disputes))
        for stage, disputes in sorted(compared.items())
    }


# The measures of one call beside its moments. They are in the row of each turn, and in that of the
# call.
#
# A turn is measured when the call leaves it, when it is settled and at the close; the call as a
# whole at intervals.

LONG_CALL_MS: Final = 120_000
"""Age from which a call is long: a shorter call gets its own values only at the close, which is
soon enough.
"""


OLDER_BY: Final = 10
"""The values of a long call are set again when the call is older by one part in this many: they
cost more the more turns there are, and change less. So two hours cost no more for each event than
five minutes.
"""


class Measures:
    """The measures of one call.

    Attributes:
        stages: Latencies of the stages of each answer.
        eva: EVA's metrics.
        notes: What the agent's framework tells beside its events.
    """

    def __init__(self, rows: CallRows, limits: Limits, ratings: Ratings) -> None:
        self.stages = StageLatencies(limits)
        self.eva = EvaScores(ratings)
        self.notes = Notes()
        self._prices = limits.prices
        self._rows = rows
        self._ratings = ratings
        self._transcripts = TranscriptErrors()
        self._turns = MeasuredTurns(rows, self.stages, self.eva, self._transcripts, ratings)
        self._every_ms = limits.call_values_every_ms
        self._dirty: set[int] = set()
        self._turn = 0
        self._call_due_ms: int | None = None
        self._age_at_due_ms = LONG_CALL_MS
        self._work = 0
        self._is_compared_out = False
        self._known: tuple[HeardSides, bool] | None = None

    def speaks(self, language: str) -> None:
        """Notes the language in which the call is held; its words are compared by that language's
        rules.
        """
        self._transcripts.speaks(language)

    def follow(
        self,
        live: LiveCall,
        changes: LiveChanges,
        cause: Cause,
        judged: JudgedScores,
        out: list[Effect],
    ) -> None:
        """Measures the changed turns that were left, if the call has left a turn now or a turn is
        settled.

        Args:
            live: The call.
            changes: The changed turns. `refresh` of the live call has made them and updated the
                turns.
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
            self._dirty.update(
                turn
                for turn in settled
                if self._turns.has_other_words(heard, turn)
                or self._turns.has_other_outcome(live, heard, turn)
            )
        if turn == self._turn and not settled:
            return
        self._turn = turn
        self._measure(live, cause.broker_ms, out)
        out += self.stages.drain_counts()
        if self._is_call_due(cause.broker_ms):
            self._measure_call(live, cause.broker_ms, judged, out)

    def announce_end(
        self, live: LiveCall, known_ms: int, judged: JudgedScores, out: list[Effect]
    ) -> None:
        """Sets the values so far of a call that is over and waits for verdicts, so that readers
        know that it is over.
        """
        self._measure_call(live, known_ms, judged, out)
        self._rows.set_call(known_ms, state="over")

    def _is_call_due(self, broker_ms: int) -> bool:
        """Whether the values of the call are due at this change of turn."""
        if self._call_due_ms is None or broker_ms < self._call_due_ms:
            return False
        age_ms = broker_ms - self._call_due_ms + self._age_at_due_ms
        self._age_at_due_ms = age_ms + max(self._every_ms, age_ms // OLDER_BY)
        self._call_due_ms = broker_ms + self._age_at_due_ms - age_ms
        return True

    def compare_at_close(self, context: MetricContext) -> bool:
        """Takes one step of the comparisons that precede the final values; returns whether it was
        the last.
        """
        return self._transcripts.compare_at_close(context)

    def finish(
        self,
        live: LiveCall,
        context: MetricContext,
        cause: Cause,
        judged: JudgedScores,
        *,
        has_ended: bool,
    ) -> Generator[None, None, None]:
        """Sets all values of a call that is over; without `has_ended`, its events only stopped.
        Yields where a step of a long call ends.
        """
        rows, known_ms, last_ms = self._rows, cause.broker_ms, cause.event_time_ms
        turns, heard = sorted(live.turns.turns), live.heard()
        self._fold_recorded(live, turns)
        if self.eva.supplied.latencies_ms:
            self.stages.fold_run(heard, turns, self.eva.supplied.latencies_ms)
        changed = (
            self._dirty | self.stages.stale_turns(heard, self._dirty) | self._ratings.changed_turns
        )
        changed |= self._transcripts.finish(context)
        yield
        metrics = yield from self.eva.finish(live, heard, context)
        yield
        end_ms = heard.sound_end_ms(last_ms)
        self._turns.withdraw_for_good(live.turns.turns, known_ms)
        there = heard.turns(turns)
        has_other_sides = (heard.sides, live.has_speech_events) != self._known
        for count, (place, turn) in enumerate(there.items(), 1):
            if count % TURNS_OF_ONE_STEP == 0:
                yield
            may_differ = (
                has_other_sides
                or place in changed
                or place >= heard.current
                or turn.rests_on_open_sound
            )
            self._turns.measure(
                live,
                heard,
                place,
                known_ms,
                end_ms,
                is_final=True,
                has_ended=has_ended,
                may_differ=may_differ,
            )
        yield
        self.stages.count_contradicted(heard)
        counted = heard.numbers()
        speech, _ = yield from speech_in_steps(live, heard, sorted(counted), last_ms, is_over=True)
        yield
        self._set_call(
            live, max(counted, default=heard.current), speech, metrics, known_ms, context
        )
        measured = [rows.turns[turn] for turn in turns if turn in rows.turns]
        uses = uses_of(self.stages.used, self._recorded_uses(live, turns), self._prices)
        rows.set_call(
            known_ms,
            stages=_agreement(measured),
            waits=_final_waits(measured),
            unscored_turns=_unscored_turns(measured),
            uses=uses,
            cost_dollars=cost_of(uses),
            notes=self.notes.in_row(there.values()),
        )
        judged.publish_values(known_ms, is_over=True)

    def closing_counts(self) -> list[Count]:
        """Counts for the metrics, once every final value is there."""
        full = [Count("callgauge_limits_hit_total", ("notes",))] if self.notes.is_full else []
        return [*self.stages.drain_counts(), *self.eva.closing_counts(), *full]

    def _measure(self, live: LiveCall, known_ms: int, out: list[Effect]) -> None:
        """Measures the changed turns that were left; other changed turns wait until
        they are left.
        """
        dirty, rated = self._dirty, self._ratings.changed_turns
        heard = live.heard()
        known = heard.sides, live.has_speech_events
        # a side without sound was silent in every turn, and not merely unheard
        if known != self._known:
            self._known = known
            dirty |= live.turns.turns
        if rated:
            dirty |= rated
            rated.clear()
        self._fold_recorded(live, dirty)
        dirty |= self.stages.stale_turns(heard, dirty)
        # A caller who begins to speak over an answer does so in the turn behind it.
        dirty |= {
            turn - 1 for turn in dirty if self._turns.has_other_outcome(live, heard, turn - 1)
        }
        left = {turn for turn in dirty if turn < heard.current}
        left |= self._transcripts.compare(heard, left)
        self._dirty = dirty - left
        gone = {turn for turn in self._dirty if live.turns.view(turn) is None}
        self._dirty -= gone
        if left:
            live.announce(known_ms)
        for turn in sorted(left | gone):
            self._turns.measure(live, heard, turn, known_ms)
        self._rows.leave(heard.current - 1, known_ms)

    def _measure_call(
        self, live: LiveCall, known_ms: int, judged: JudgedScores, out: list[Effect]
    ) -> None:
        """Sets the values of the call so far; not once they have cost too much."""
        if self._transcripts.is_over_limit and not self._is_compared_out:
            self._is_compared_out = True
            out.append(Count("callgauge_limits_hit_total", ("running_comparison",)))
        if self._work > MAX_RUNNING_WORK:
            return
        heard = live.heard()
        end = heard.current
        speech, work = speech_of(
            live, heard, sorted(turn for turn in heard.numbers() if turn < end), None, is_over=False
        )
        self._work += work
        if self._work > MAX_RUNNING_WORK:
            out.append(Count("callgauge_limits_hit_total", ("running_speech",)))
        live.announce(known_ms)
        self._set_call(live, end - 1, speech, self.eva.running_metrics(live, heard), known_ms)
        judged.publish_values(known_ms, is_over=False)

    def _set_call(
        self,
        live: LiveCall,
        through_turn: int,
        speech: Speech,
        metrics: Metrics,
        known_ms: int,
        context: MetricContext | None = None,
    ) -> None:
        """Sets the values that a call has also while it runs; agreement of sources is judged at the
        close, on all their reports.
        """
        differences = self._transcripts.of_call(live, context)
        self._rows.set_call(
            known_ms,
            through_turn=through_turn,
            speech=speech,
            stt_wer=differences.stt_wer,
            user_disagreement=differences.user,
            assistant_disagreement=differences.assistant,
            transcript_disagreement=differences.both,
            eva=metrics,
            **{kind.value: self._ratings.of_call(kind) for kind in CALL_JUDGES},
        )

    def _recorded_uses(
        self, live: LiveCall, turns: Iterable[int]
    ) -> list[Mapping[str, TokenUsage]]:
        record = live.record
        return [] if record is None else [record.recorded(turn).usage for turn in turns]

    def _fold_recorded(self, live: LiveCall, turns: Iterable[int]) -> None:
        """Folds the values of an ElevenLabs agent's record for these turns; a turn that it lacks
        has none.
        """
        record = live.record
        if record is not None:
            for turn in turns:
                self.stages.fold_convai(turn, record.recorded(turn).metrics)
