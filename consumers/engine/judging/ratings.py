"""The ratings that judges gave to a call's texts so far: by turn, and of the call."""

from typing import Any, Final

from schemas.judging import JudgeKind, NotRateable, Rated
from schemas.scores.all_records import NotApplicable, Result, Scored, Unscored, UnscoredReason

Outcome = Rated | NotRateable | UnscoredReason

OF_TURNS: Final = (JudgeKind.CONCISENESS, JudgeKind.SPEAKABILITY)
OF_THE_CALL: Final = (JudgeKind.FAITHFULNESS, JudgeKind.CONVERSATION_PROGRESSION)


class Ratings:
    """The newest outcome of each kind, with the turn up to which it counts.

    Attributes:
        changed_turns: Turns whose ratings changed; the publisher clears it.
    """

    __slots__ = (
        "_of_call",
        "_of_turns",
        "changed_turns",
    )

    def __init__(self) -> None:
        self.changed_turns: set[int] = set()
        self._of_turns: dict[tuple[JudgeKind, int], Outcome] = {}
        self._of_call: dict[JudgeKind, tuple[Outcome, int]] = {}

    def rate_turn(self, kind: JudgeKind, turn: int, outcome: Outcome | None) -> None:
        """Keeps the outcome of a turn; None drops it."""
        if self._of_turns.get((kind, turn)) == outcome:
            return
        self.changed_turns.add(turn)
        if outcome is None:
            del self._of_turns[kind, turn]
        else:
            self._of_turns[kind, turn] = outcome

    def rate_call(self, kind: JudgeKind, outcome: Outcome | None, through_turn: int) -> None:
        """Keeps the outcome of the call up to a turn; None drops it."""
        if outcome is None:
            self._of_call.pop(kind, None)
        else:
            self._of_call[kind] = (outcome, through_turn)

    def of_turn(self, turn: int) -> dict[JudgeKind, Outcome]:
        """The outcomes of a turn by kind."""
        if not self._of_turns:
            return {}
        return {kind: self._of_turns[kind, turn] for kind in OF_TURNS if (kind, turn) in self._of_turns}

    def of_call(self) -> dict[JudgeKind, tuple[Outcome, int]]:
        """The outcomes of the call by kind, each with the turn up to which it counts."""
        return {kind: self._of_call[kind] for kind in OF_THE_CALL if kind in self._of_call}

    def known_of_turns(self, kind: JudgeKind) -> list[float]:
        """Ratings from 0 to 1 of all turns that have one, in the order of the turns."""
        rated = sorted((turn, outcome) for (each, turn), outcome in self._of_turns.items() if each is kind)
        return [outcome.normalised for _, outcome in rated if isinstance(outcome, Rated)]


def result_of(outcome: Outcome) -> Result:
    """The outcome as the result of a record."""
    match outcome:
        case Rated(normalised=normalised):
            return Scored(value=normalised)
        case NotRateable(reason=reason):
            return NotApplicable(reason=reason)
        case UnscoredReason():
            return Unscored(reason=outcome)


def rating_fields(outcome: Outcome, through_turn: int) -> dict[str, Any]:
    """The fields of a `TextRating`."""
    fields: dict[str, Any] = {"result": result_of(outcome), "through_turn": through_turn}
    if isinstance(outcome, Rated):
        fields |= {
            "rating": outcome.rating, "dimensions": outcome.dimensions, "failure_modes": outcome.failure_modes
        }  # fmt: skip
    return fields
