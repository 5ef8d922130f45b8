"""The rows that a call publishes: one of each turn, when the call leaves it, and one of the whole call."""

from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from math import fsum, inf
from typing import Any, Final, NamedTuple

from consumers.engine.effects import Count, Effect, PublishScore
from consumers.engine.goals.progress import JudgedScores
from consumers.engine.goals.text_judges import Outcome, Ratings, rating_fields, rating_result
from consumers.engine.limits import Limits
from consumers.engine.measures.eva import EvaScores, Metrics, metric_fields, metric_inputs, taking_fields, taking_inputs
from consumers.engine.measures.eva_timing import NOT_ANSWERED, TurnValue
from consumers.engine.measures.stages import STAGES, StageLatencies, StageReading
from consumers.engine.measures.talk import (
    MAX_RUNNING_WORK,
    TURNS_OF_ONE_STEP,
    Speech,
    Talk,
    speech_in_steps,
    speech_of,
    talk_of,
)
from consumers.engine.measures.told import Notes, Use, cost_of, uses_of
from consumers.engine.measures.words import CallDifferences, TranscriptErrors, TurnDifferences
from consumers.engine.records import (
    HASH_BITS,
    Cause,
    ExpectedToolValues,
    Fields,
    GoalValues,
    Revisions,
    Value,
    hash_of,
    result_of,
)
from consumers.engine.turns.bot import TokenUsage
from consumers.engine.turns.heard import HeardSides, HeardTurn, HeardTurns
from consumers.engine.turns.live import LiveCall, LiveChanges
from consumers.engine.turns.timeline import EVA_DIGITS, MS_DIGITS, TurnView, unmeasured_reason, voice_to_voice_ms
from schemas.closed_sets import Anchor, JudgeKind, UnscoredReason
from schemas.judging import Rated
from schemas.metric_context import MetricContext
from schemas.scores.latency_stages import Stage
from schemas.scores.records import (
    STAGE_PREFIX,
    TURN_VALUE_NAMES,
    WITHDRAWN,
    AnyScoreRecord,
    CallValues,
    NotApplicable,
    Result,
    Scored,
    TurnOutcome,
    TurnStatus,
    TurnValueName,
    TurnValues,
    Unscored,
)
from schemas.units import MS_PER_SECOND

# The record of a turn: all measures of it, as one row.

NAME: Final = "turn"
_GREETING: Final = NotApplicable(reason="the greeting answers nobody")
_OWN_RECORD: Final[TurnValueName] = "voice_to_voice_latency_ms"
"""The value that is counted at a record of its own."""
_OBSERVED: Final = tuple(name for name in TURN_VALUE_NAMES if name != _OWN_RECORD)
COUNTED_NAMES: Final = (*_OBSERVED, *(STAGE_PREFIX + stage for stage in STAGES))
"""Names in `first_known`; the place of each is its bit in a turn's mask of known values."""
_BITS: Final = {name: 1 << place for place, name in enumerate(COUNTED_NAMES)}


def mask_of(names: Iterable[str]) -> int:
    """The names of `first_known` as bits; names that no longer exist are left out."""
    return sum(_BITS.get(name, 0) for name in set(names))


class _Row(NamedTuple):
    """The measures of a turn as they are now."""

    view: TurnView
    waited: Result
    stages: list[StageReading]
    taking: TurnValue | None
    talk: Talk
    differences: TurnDifferences
    ratings: dict[JudgeKind, Outcome]
    outcome: TurnOutcome | None
    after_tools_ms: float | None

    @property
    def estimate_error_ms(self) -> float | None:
        """Error of the live estimate in ms, where a record has the latency too."""
        if self.view.recorded_ms is None or self.view.heard_ms is None:
            return None
        return round(self.view.heard_ms - self.view.recorded_ms, MS_DIGITS)

    @property
    def inputs(self) -> tuple[Any, ...]:
        """Plain values from which all fields follow; each measure after `taking` is one as it is."""
        view, waited, stages, taking, *others = self
        return (
            (view.user_end_s, view.assistant_start_s, view.anchor, view.source, view.recorded_ms),
            waited.value if isinstance(waited, Scored) else waited.reason,
            stages and [tuple(stage) for stage in stages],
            taking_inputs(taking),
            *map(_plain, others),
        )

    @property
    def known(self) -> int:
        """The counted values that are known, as bits."""
        names = [STAGE_PREFIX + STAGES[stage.stage] for stage in self.stages]
        if self.taking is not None and self.taking.score is not None:
            names.append("turn_taking")
        if self.estimate_error_ms is not None:
            names.append("estimate_error_ms")
        names += [kind.value for kind, outcome in self.ratings.items() if isinstance(outcome, Rated)]
        return mask_of(names)

    def fields(self, turn: int, first_known: tuple[str, ...]) -> Fields:
        """The fields of a `TurnValues`."""
        view, error_ms = self.view, self.estimate_error_ms
        fields: dict[str, Any] = {
            "voice_to_voice_ms": self.waited,
            "anchor": view.anchor,
            "source": view.source,
            "stages": [stage.fields() for stage in self.stages],
            "turn_taking": taking_fields(self.taking),
            "talk": self.talk.fields(),
            "first_known": first_known,
            "outcome": self.outcome,
            "after_tools_ms": self.after_tools_ms,
            **self.differences.fields(),
            **{kind.value: rating_fields(outcome, turn) for kind, outcome in self.ratings.items()},
        }
        if error_ms is not None:
            fields["estimate_error"] = {
                "error_ms": error_ms, "estimated_ms": view.heard_ms, "recorded_ms": view.recorded_ms
            }  # fmt: skip
        return fields


def _outcome(
    live: LiveCall, heard: HeardTurns, turn: HeardTurn, view: TurnView, *, is_over: bool
) -> TurnOutcome | None:
    """How the turn ended; None if it has not, if the caller did not speak in it, or if lost events hide it."""
    if turn.number < 1 or not view.has_user:
        return None
    following = heard.turn(turn.number + 1)
    if view.has_assistant or view.is_answered_in_text or view.recorded_ms is not None:
        return TurnOutcome.INTERRUPTED if following is not None and following.is_barge_in else TurnOutcome.ANSWERED
    is_last = turn.number >= heard.current
    if not view.are_times_exact or not live.has_speech_events or (is_last and not is_over):
        return None
    until_s = inf if following is None or following.begin_s is None else following.begin_s
    if turn.begin_s is not None and live.errors.is_any(turn.begin_s, until_s):
        return TurnOutcome.FAILED
    if not heard.sides.assistant:
        return None  # nothing tells whether this agent is ever heard
    return TurnOutcome.ABANDONED if is_last else TurnOutcome.UNANSWERED


def _after_tools_ms(turn: HeardTurn, view: TurnView) -> float | None:
    """The wait for the sound after the tools, where an earlier sound bridged the time; None if no sound did, or times are unknown."""
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
        (start_s for start_s in turn.assistant.starts if start_s * MS_PER_SECOND >= max(done_ms)), default=None
    )
    return None if later_s is None else round(round(later_s - begin_s, EVA_DIGITS) * MS_PER_SECOND, MS_DIGITS)


def _plain(measure: object) -> object:
    """A measure without the names of its parts, so that a new name of a part changes no hash."""
    if isinstance(measure, dict):
        return tuple(measure.items())
    return tuple(measure) if isinstance(measure, tuple) else measure


class _Seen(int):
    """The inputs of a turn's newest record that may change without touching it, as one integer: a mark of its words, and a
    hash of the facts about the call and its end.
    """

    __slots__ = ()

    @classmethod
    def of(
        cls, turn: HeardTurn, sides: HeardSides, taking: TurnValue | None, waited: Result, outcome: TurnOutcome | None
    ) -> "_Seen":
        """Packs the mark and the hash."""
        reason = None if isinstance(waited, Scored) else waited.reason
        return cls(turn.words.mark << HASH_BITS | int(hash_of((taking_inputs(taking), reason, sides, outcome)), 16))

    @property
    def words(self) -> int:
        """The mark of its words."""
        return self >> HASH_BITS


class TurnRecords:
    """Makes the records of a call's turns.

    Attributes:
        latencies: By anchor, the final latencies of the closed call's turns in ms.
        unscored: By value, the number of turns of the closed call without it, by reason.
    """

    def __init__(
        self,
        revisions: Revisions,
        stages: StageLatencies,
        eva: EvaScores,
        transcripts: TranscriptErrors,
        ratings: Ratings,
    ) -> None:
        self.latencies: dict[Anchor, list[float]] = {}
        self.unscored: dict[str, Counter[UnscoredReason]] = {}
        self._revisions = revisions
        self._stages = stages
        self._eva = eva
        self._transcripts = transcripts
        self._ratings = ratings
        self._seen: dict[int, _Seen] = {}
        self._counted: dict[int, int] = {}
        self._outcomes: dict[int, TurnOutcome | None] = {}

    def has_other_outcome(self, live: LiveCall, heard: HeardTurns, number: int) -> bool:
        """Whether the turn, which has a record, ended otherwise than it says."""
        if number not in self._outcomes:
            return False
        view, turn = live.turns.view(number), heard.turn(number)
        if view is None or turn is None:
            return False
        return _outcome(live, heard, turn, view, is_over=False) is not self._outcomes[number]

    def has_other_words(self, heard: HeardTurns, number: int) -> bool:
        """Whether the known words of the turn differ from those of its last record."""
        turn = heard.turn(number)
        return turn is None or number not in self._seen or self._seen[number].words != turn.words.mark

    def make(
        self,
        live: LiveCall,
        heard: HeardTurns,
        number: int,
        cause: Cause,
        end_ms: int | None = None,
        *,
        is_final: bool = False,
        may_differ: bool = True,
    ) -> TurnValues | None:
        """The record of the turn, if it differs from the published one; withdraws it when the turn does not exist.

        Args:
            live: The call.
            heard: Its turns.
            number: Number of the turn.
            cause: When it changed, or the end of the call.
            end_ms: End of open sound; None while the call runs.
            is_final: Whether the call is over.
            may_differ: Whether other measures than its words and its score may differ from its last record.
        """
        view, turn = live.turns.view(number), heard.turn(number)
        if view is None or turn is None:
            return self.withdraw(number, cause)
        taking, waited = self._eva.turn_value(live, heard, number), self._waited(live, number, view)
        if is_final:
            is_answered = view.has_assistant or view.is_answered_in_text
            if number == heard.current and number >= 1 and view.has_user and not is_answered:
                waited = NOT_ANSWERED
            if isinstance(waited, Scored) and view.anchor is not None:
                self.latencies.setdefault(view.anchor, []).append(waited.value)
            self._count_unscored(number, waited, taking)
        outcome = _outcome(live, heard, turn, view, is_over=is_final)
        seen = _Seen.of(turn, heard.sides, taking, waited, outcome)
        if not may_differ and self._seen.get(number) == seen:
            return None
        self._seen[number], self._outcomes[number] = seen, outcome
        row = _Row(
            view,
            waited,
            self._stages.stages_of(heard, number),
            taking,
            talk_of(turn, heard.sides, end_ms, is_cut_off=outcome is TurnOutcome.INTERRUPTED),
            self._transcripts.of_turn(live, number),
            self._ratings.of_turn(number),
            outcome,
            _after_tools_ms(turn, view),
        )
        first_known = self._first_known(number, row.known)  # none if the row has not changed
        return self._revisions.make(
            TurnValues, (NAME, number, 0), TurnStatus.FINAL if is_final else live.turns.status(number), row.inputs, cause,
            has_value=waited != NOT_ANSWERED, fields=lambda: row.fields(number, first_known),
        )  # fmt: skip

    def withdraw(self, turn: int, cause: Cause) -> TurnValues | None:
        """Withdraws the record of a turn that does not exist."""
        subject = (NAME, turn, 0)
        return self._revisions.withdraw(TurnValues, subject, cause, voice_to_voice_ms=WITHDRAWN, is_withdrawn=True)

    def _waited(self, live: LiveCall, turn: int, view: TurnView) -> Result:
        if turn < 1:
            return _GREETING
        reason = unmeasured_reason(view, has_speech_events=live.has_speech_events)
        return voice_to_voice_ms(view) or Unscored(reason=reason)

    def _first_known(self, turn: int, known: int) -> tuple[str, ...]:
        """Names of the values that no earlier record had."""
        counted = self._counted.get(turn, 0)
        if not known & ~counted or not self._revisions.counts:
            return ()
        self._counted[turn] = counted | known
        return tuple(name for name, bit in _BITS.items() if known & ~counted & bit)

    def _count_unscored(self, turn: int, waited: Result, taking: TurnValue | None) -> None:
        results: dict[str, Result] = {}
        if turn >= 1:
            results[_OWN_RECORD] = waited
        if taking is not None:
            results["turn_taking"] = taking.result
        results |= {kind.value: rating_result(outcome) for kind, outcome in self._ratings.of_turn(turn).items()}
        for name, result in results.items():
            if isinstance(result, Unscored):
                self.unscored.setdefault(name, Counter())[result.reason] += 1


# The record of a call: all measures of it as a whole, while it runs and at its end.

SUBJECT: Final = ("call", None, 0)


class CallMeasured(NamedTuple):
    """The measured values of a call, before they become a record.

    Attributes:
        through_turn: The last turn that counts.
        speech: Measures of its sound and words.
        differences: Differences between its transcripts.
        metrics: EVA's metrics.
        agreement: By the place of a stage: turns in which several sources measured it, and turns in which they disagree.
        ratings: Judges' ratings of the call, each with the turn up to which it counts.
        goals: Values of its goals; None without any.
        latencies: By anchor, the latencies of the turns that have one, in ms; at the close.
        unscored_turns: By value, the number of turns without it, by reason; at the close.
        is_over: Whether the call is over.
        uses: What the agent's models used.
        notes: The fields of the notes of its framework.
    """

    through_turn: int
    speech: Speech
    differences: CallDifferences
    metrics: Metrics
    agreement: Mapping[int, tuple[int, int]]
    ratings: Mapping[JudgeKind, tuple[Outcome, int]]
    goals: GoalValues | None
    latencies: Mapping[Anchor, Sequence[float]]
    unscored_turns: Mapping[str, Mapping[UnscoredReason, int]]
    is_over: bool
    uses: Sequence[Use] = ()
    notes: Sequence[Mapping[str, Any]] = ()

    @property
    def inputs(self) -> tuple[Any, ...]:
        """Plain values from which all fields follow."""
        return (
            self.is_over,
            self.through_turn,
            self.speech.inputs,
            self.differences.inputs,
            metric_inputs(self.metrics),
            tuple(sorted(self.agreement.items())),
            tuple(self.ratings.items()),
            self.goals,
            tuple((anchor, tuple(latencies_ms)) for anchor, latencies_ms in sorted(self.latencies.items())),
            tuple((name, tuple(sorted(counts.items()))) for name, counts in sorted(self.unscored_turns.items())),
            *((tuple(map(tuple, self.uses)), tuple(map(_plain, self.notes))) if self.uses or self.notes else ()),
        )

    def fields(self) -> Fields:
        """The fields of a `CallValues`."""
        fields: dict[str, Any] = {
            "is_over": self.is_over,
            "through_turn": self.through_turn,
            "speech": self.speech.fields,
            "stt_wer": self.differences.stt_wer,
            "transcript_disagreement": self.differences.disagreement,
            "eva": metric_fields(self.metrics),
            "stages": dict(sorted(map(_agreed, self.agreement.items()))),
            "latencies": {anchor: _counted(latencies_ms) for anchor, latencies_ms in sorted(self.latencies.items())},
            "unscored_turns": self.unscored_turns,
        }
        fields |= {kind.value: rating_fields(*rated) for kind, rated in self.ratings.items()}
        if self.uses:
            fields |= {"uses": [use.fields() for use in self.uses], "cost": cost_of(self.uses)}
        if self.notes:
            fields["notes"] = self.notes
        if self.goals is not None:
            fields["tool_correctness"] = _result(self.goals.tool_correctness)
            fields["expected_tool_calls"] = tuple(map(_expected_tool, self.goals.expected_tool_calls)) or None
            fields["success_final_turn"] = _result(self.goals.success_final_turn)
            fields["unscored_subgoals"] = dict(self.goals.unscored_subgoals)
        return fields


def call_record(revisions: Revisions, measured: CallMeasured, cause: Cause, *, is_final: bool) -> CallValues | None:
    """The record of the call, if it differs from the published one; at its close in any case."""
    return revisions.make(
        CallValues, SUBJECT, TurnStatus.FINAL if is_final else TurnStatus.PROVISIONAL, (is_final, *measured.inputs), cause,
        fields=measured.fields,
    )  # fmt: skip


def _counted(latencies_ms: Sequence[float]) -> dict[str, float]:
    measured = [each for each in latencies_ms if each >= 0]
    return {
        "measured": len(measured),
        "measured_ms": round(fsum(measured), MS_DIGITS),
        "overlapped": len(latencies_ms) - len(measured),
    }


def _agreed(agreed: tuple[int, tuple[int, int]]) -> tuple[Stage, dict[str, int]]:
    stage, (compared, disputed) = agreed
    return STAGES[stage], {"compared": compared, "disputed": disputed}


def _expected_tool(found: ExpectedToolValues) -> dict[str, Any]:
    missed: dict[str, None] = {}
    if found.value == 0:
        parts = () if found.differences is None else [each[0] for each in found.differences]
        missed = dict.fromkeys("output" if part is None else "arguments" for part in parts) or {"name": None}
    left_out = NotApplicable(reason="the goal set names no turn for it")
    return {
        "index": found.place,
        "tool": found.tool,
        "turn": found.turn,
        "result": left_out if found.value is None else result_of(found.value),
        "missed": tuple(missed),
        "differences": [
            {"parameter": parameter, "expected": expected, "seen": seen}
            for parameter, expected, seen in found.differences or ()
        ],
        "called_in_turns": found.called_in_turns,
    }


def _result(value: Value) -> Result | None:
    return None if value is None else result_of(value)


# The measures of one call beside its moments. They publish one record for each turn, and one for the call as a whole.
#
# A turn is measured when the call leaves it, when it is settled and at the close; the call as a whole at intervals.

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
        notes: What the agent's framework tells beside its events.
    """

    def __init__(self, revisions: Revisions, limits: Limits, ratings: Ratings) -> None:
        self.stages = StageLatencies(limits)
        self.eva = EvaScores(ratings)
        self.notes = Notes()
        self._prices = limits.prices
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

    def speaks(self, language: str) -> None:
        """Notes the language in which the call is held; its words are compared by that language's rules."""
        self._transcripts.speaks(language)

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
            self._dirty.update(
                turn
                for turn in settled
                if self._turns.has_other_words(heard, turn) or self._turns.has_other_outcome(live, heard, turn)
            )
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
    ) -> Generator[None, None, list[AnyScoreRecord]]:
        """The records of turns that change at the end of the call, and the record of the call. Yields where a step of a long call ends."""
        turns, heard = sorted(live.turns.turns), live.heard()
        self._fold_recorded(live, turns)
        if self.eva.supplied.latencies_ms:
            self.stages.fold_run(heard, turns, self.eva.supplied.latencies_ms)
        changed = self._dirty | self.stages.stale_turns(heard, self._dirty) | self._ratings.changed_turns
        changed |= self._transcripts.finish(context)
        yield
        metrics = yield from self.eva.finish(live, heard, context)
        yield
        last_ms = cause.event_time_ms
        end_ms = heard.sound_end_ms(last_ms)
        gone = [turn for name, turn, _ in self._revisions.published if name == NAME and turn not in live.turns.turns]
        records: list[TurnValues | CallValues | None] = [
            self._turns.withdraw(turn, cause) for turn in gone if turn is not None
        ]
        there = heard.turns(turns)
        for place, (number, turn) in enumerate(there.items(), 1):
            if place % TURNS_OF_ONE_STEP == 0:
                yield
            may_differ = number in changed or number >= heard.current or turn.rests_on_open_sound
            records.append(self._turns.make(live, heard, number, cause, end_ms, is_final=True, may_differ=may_differ))
        yield
        self.stages.count_contradicted(heard)
        counted = heard.numbers()
        speech = yield from speech_in_steps(live, heard, sorted(counted), last_ms, is_over=True)
        yield
        measured = CallMeasured(
            max(counted, default=heard.current),
            speech,
            self._transcripts.of_call(live, context),
            metrics,
            self.stages.agreement(heard, turns),
            self._ratings.of_call(),
            judged.goal_values(is_over=True),
            self._turns.latencies,
            self._turns.unscored,
            is_over=True,
            uses=uses_of(self.stages.used, self._recorded_uses(live, turns), self._prices),
            notes=self.notes.fields(there.values()),
        )
        records.append(call_record(self._revisions, measured, cause, is_final=True))
        return [record for record in records if record is not None]

    def closing_counts(self) -> list[Count]:
        """Counts for the metrics, once every final value is there."""
        full = [Count("callgauge_limits_hit_total", ("notes",))] if self.notes.is_full else []
        return [*self.stages.drain_counts(), *self.eva.closing_counts(), *full]

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
        # A caller who begins to speak over an answer does so in the turn behind it.
        dirty |= {turn - 1 for turn in dirty if self._turns.has_other_outcome(live, heard, turn - 1)}
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

    def _recorded_uses(self, live: LiveCall, turns: Iterable[int]) -> list[Mapping[str, TokenUsage]]:
        record = live.record
        return [] if record is None else [record.recorded(turn).usage for turn in turns]

    def _fold_recorded(self, live: LiveCall, turns: Iterable[int]) -> None:
        """Folds the values of an ElevenLabs agent's record for these turns; a turn that it lacks has none."""
        record = live.record
        if record is not None:
            for turn in turns:
                self.stages.fold_convai(turn, record.recorded(turn).metrics)
