"""When a call is stuck: no further subgoal for too many turns or too long, while some are open. Said once for each stall."""

from consumers.engine.judging.rules import GoalRules
from consumers.engine.records.revisions import Cause, Revisions
from schemas.scores.all_records import StallFact, TurnStatus


class Stalls:
    """Follows one call. A stall is known by the turn of the last progress, 0 when there was none.

    Attributes:
        is_stuck: Whether nothing was reached since the last one was said.
    """

    def __init__(self, rules: GoalRules, revisions: Revisions) -> None:
        self.is_stuck = False
        self._rules = rules
        self._revisions = revisions
        self._moved_ms: int | None = None
        self._numbers: dict[int, int] = {}

    def begins(self, broker_ms: int) -> None:
        """There is a turn to judge; before that nothing can be late."""
        if self._moved_ms is None:
            self._moved_ms = broker_ms

    def moved(self, broker_ms: int) -> None:
        """A subgoal was reached, or is not any more."""
        self._moved_ms = broker_ms
        self.is_stuck = False

    def due_at_ms(self, since_turn: int) -> int | None:
        """Broker time at which the call is stuck if nothing is reached; None when that is said already."""
        if self._moved_ms is None or since_turn in self._numbers:
            return None
        return self._moved_ms + self._rules.stall_ms

    def by_turns(self, since_turn: int, last_turn: int, cause: Cause) -> StallFact | None:
        """The fact, if too many turns have passed."""
        return self._fact(since_turn, "turns", cause) if last_turn - since_turn >= self._rules.stall_turns else None

    def by_time(self, since_turn: int, now_ms: int) -> StallFact | None:
        """The fact, if too much time has."""
        due_at_ms = self.due_at_ms(since_turn)
        if due_at_ms is None or due_at_ms > now_ms:
            return None
        return self._fact(since_turn, "seconds", Cause(None, due_at_ms))

    def _fact(self, since_turn: int, by: str, cause: Cause) -> StallFact | None:
        if since_turn in self._numbers:
            return None
        self._numbers[since_turn] = len(self._numbers) + 1
        self.is_stuck = True
        return self._revisions.make(
            StallFact, ("stall", None, self._numbers[since_turn]), TurnStatus.FINAL, (since_turn,), cause,
            since_turn=since_turn, by=by,
        )  # fmt: skip
