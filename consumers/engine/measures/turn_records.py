"""The record of a turn: all measures of it, as one row."""

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from consumers.engine.judging.ratings import Outcome, Ratings, rating_fields, result_of
from consumers.engine.measures.eva.live_scores import EvaScores, taking_fields, taking_inputs
from consumers.engine.measures.eva.timing.turn_values import NOT_ANSWERED, TurnValue
from consumers.engine.measures.stages.latencies import StageLatencies
from consumers.engine.measures.stages.turn_stages import StageReading
from consumers.engine.measures.stages.values import STAGES
from consumers.engine.measures.talk.talk_measure import Talk, talk_of
from consumers.engine.measures.words.transcript_errors import TranscriptErrors, TurnDifferences
from consumers.engine.records.revisions import HASH_BITS, Cause, Fields, Revisions, hash_of
from consumers.engine.turns.heard.heard_turn import HeardSides, HeardTurn, HeardTurns
from consumers.engine.turns.live_call import LiveCall
from consumers.engine.turns.timeline.turn_view import MS_DIGITS, TurnView, unmeasured_reason, voice_to_voice_ms
from schemas.judging import JudgeKind, Rated
from schemas.scores.all_records import (
    STAGE_PREFIX,
    TURN_VALUE_NAMES,
    WITHDRAWN,
    Anchor,
    NotApplicable,
    Result,
    Scored,
    TurnStatus,
    TurnValueName,
    TurnValues,
    Unscored,
    UnscoredReason,
)

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
            **self.differences.fields(),
            **{kind.value: rating_fields(outcome, turn) for kind, outcome in self.ratings.items()},
        }
        if error_ms is not None:
            fields["estimate_error"] = {
                "error_ms": error_ms, "estimated_ms": view.heard_ms, "recorded_ms": view.recorded_ms
            }  # fmt: skip
        return fields


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
    def of(cls, turn: HeardTurn, sides: HeardSides, taking: TurnValue | None, waited: Result) -> "_Seen":
        """Packs the mark and the hash."""
        reason = None if isinstance(waited, Scored) else waited.reason
        return cls(turn.words.mark << HASH_BITS | int(hash_of((taking_inputs(taking), reason, sides)), 16))

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

    __slots__ = (
        "_counted",
        "_eva",
        "_ratings",
        "_revisions",
        "_seen",
        "_stages",
        "_transcripts",
        "latencies",
        "unscored",
    )

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

    def make(self, live: LiveCall, heard: HeardTurns, number: int, cause: Cause) -> TurnValues | None:
        """The record of the turn, if it differs from the published one; withdraws it when the turn does not exist."""
        view, turn = live.turns.view(number), heard.turn(number)
        if view is None or turn is None:
            return self.withdraw(number, cause)
        taking, waited = self._eva.turn_value(live, heard, number), self._waited(live, number, view)
        self._seen[number] = _Seen.of(turn, heard.sides, taking, waited)
        return self._published(live, heard, turn, view, taking, waited, cause, None)

    def has_other_words(self, heard: HeardTurns, number: int) -> bool:
        """Whether the known words of the turn differ from those of its last record."""
        turn = heard.turn(number)
        return turn is None or number not in self._seen or self._seen[number].words != turn.words.mark

    def final_record(
        self, live: LiveCall, heard: HeardTurns, number: int, cause: Cause, end_ms: int | None, *, may_differ: bool
    ) -> TurnValues | None:
        """The final record of the turn, if it differs from the published one.

        Args:
            live: The call.
            heard: Its turns.
            number: Number of the turn.
            cause: End of the call.
            end_ms: End of open sound.
            may_differ: Whether other measures than its words and its score may differ from its last record.
        """
        view, turn = live.turns.view(number), heard.turn(number)
        if view is None or turn is None:
            return self.withdraw(number, cause)
        taking = self._eva.turn_value(live, heard, number)
        waited = self._waited(live, number, view)
        is_answered = view.has_assistant or view.is_answered_in_text
        if number == heard.current and number >= 1 and view.has_user and not is_answered:
            waited = NOT_ANSWERED
        if isinstance(waited, Scored) and view.anchor is not None:
            self.latencies.setdefault(view.anchor, []).append(waited.value)
        self._count_unscored(number, waited, taking)
        if not may_differ and self._seen.get(number) == _Seen.of(turn, heard.sides, taking, waited):
            return None
        return self._published(live, heard, turn, view, taking, waited, cause, end_ms, status=TurnStatus.FINAL)

    def withdraw(self, turn: int, cause: Cause) -> TurnValues | None:
        """Withdraws the record of a turn that does not exist."""
        if (NAME, turn, 0) not in self._revisions.published:
            return None
        return self._revisions.make(
            TurnValues, (NAME, turn, 0), TurnStatus.OPEN, ("withdrawn",), cause, has_value=False,
            voice_to_voice_ms=WITHDRAWN, is_withdrawn=True,
        )  # fmt: skip

    def _waited(self, live: LiveCall, turn: int, view: TurnView) -> Result:
        if turn < 1:
            return _GREETING
        reason = unmeasured_reason(view, has_speech_events=live.has_speech_events)
        return voice_to_voice_ms(view) or Unscored(reason=reason)

    def _published(
        self, live: LiveCall, heard: HeardTurns, turn: HeardTurn, view: TurnView, taking: TurnValue | None, waited: Result,
        cause: Cause, end_ms: int | None, *, status: TurnStatus | None = None,
    ) -> TurnValues | None:  # fmt: skip
        number = turn.number
        row = _Row(
            view,
            waited,
            self._stages.stages_of(heard, number),
            taking,
            talk_of(turn, heard.sides, end_ms),
            self._transcripts.of_turn(live, number),
            self._ratings.of_turn(number),
        )
        return self._revisions.make(
            TurnValues, (NAME, number, 0), status or live.turns.status(number), row.inputs, cause,
            has_value=waited != NOT_ANSWERED, fields=lambda: row.fields(number, self._first_known(number, row.known)),
        )  # fmt: skip

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
        results |= {kind.value: result_of(outcome) for kind, outcome in self._ratings.of_turn(turn).items()}
        for name, result in results.items():
            if isinstance(result, Unscored):
                self.unscored.setdefault(name, Counter())[result.reason] += 1
