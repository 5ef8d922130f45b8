"""Finds stalls: no further subgoal for too many turns or too long, while some are open. Each stall is published once."""

from consumers.engine.judging.rules import GoalRules
from consumers.engine.records.revisions import Cause, Revisions
from schemas.scores.all_records import StallFact, TurnStatus


class Stalls:
    """Follows one call. A stall is named by the turn of the last progress, 0 without any.

    Attributes:
        is_stuck: Whether no subgoal was reached since the last published stall.
    """

    def __init__(self, rules: GoalRules, revisions: Revisions) -> None:
        self.is_stuck = False
        self._rules = rules
        self._revisions = revisions
        self._moved_ms: int | None = None
        self._numbers: dict[int, int] = {}

    def begins(self, broker_ms: int) -> None:
        """Starts the clock: there is a turn to judge."""
        if self._moved_ms is None:
            self._moved_ms = broker_ms

    def moved(self, broker_ms: int) -> None:
        """Starts the clock again: a subgoal was reached, or is not reached any more."""
        self._moved_ms = broker_ms
        self.is_stuck = False

    def due_at_ms(self, since_turn: int) -> int | None:
        """Broker time at which the call is stuck if no subgoal is reached; None when this stall is published already."""
        if self._moved_ms is None or since_turn in self._numbers:
            return None
        return self._moved_ms + self._rules.stall_ms

    def by_turns(self, since_turn: int, last_turn: int, cause: Cause) -> StallFact | None:
        """The stall, if too many turns have passed."""
        return self._fact(since_turn, "turns", cause) if last_turn - since_turn >= self._rules.stall_turns else None

    def by_time(self, since_turn: int, now_ms: int) -> StallFact | None:
        """The stall, if too much time has passed."""
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
