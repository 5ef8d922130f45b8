"""Evaluates a past call again with the facts of its log: its dead air and its end are as logged.

Dead air and the end of a call come from the absence of records at some moment. That moment does not come back when the
records are read a second time, so the log decides: this call declares no silence and no end of its own.
"""

from collections import deque
from collections.abc import Mapping

from consumers.engine.call.call import Call
from consumers.engine.effects import Effect
from consumers.engine.goals.chosen_goals import ChosenGoals
from consumers.engine.intake.admission import Arrival
from consumers.engine.limits import Limits
from consumers.engine.records.call_memory import sources
from consumers.engine.redaction.redactor import Redactor
from schemas.closed_sets import InputSource
from schemas.goals.goal_set import GoalSet
from schemas.scores.all_records import AnyScoreRecord, ClosedFact, CloseReason, DeadAirFact, GoalsFact


class LoggedFacts:
    """The facts that the log has of one call, in order. Records behind the `closed` fact are ignored: the call was over.

    Attributes:
        closed: The `closed` fact; None until the log has shown it.
        dead_airs: The silences before it.
        goal_set: Its goals; None when it had none.
    """

    __slots__ = ("_through", "closed", "dead_airs", "goal_set")

    def __init__(self) -> None:
        self.closed: ClosedFact | None = None
        self.dead_airs: list[DeadAirFact] = []
        self.goal_set: GoalSet | None = None
        self._through: Mapping[InputSource, int] = {}

    def fold(self, record: AnyScoreRecord) -> None:
        """Reads one more record of the call; only facts matter."""
        if self.closed is not None:
            return
        if isinstance(record, DeadAirFact):
            self.dead_airs.append(record)
        elif isinstance(record, GoalsFact):
            self.goal_set = record.goal_set
        elif isinstance(record, ClosedFact):
            self.closed = record
            self._through = sources(record.through)

    def is_after_close(self, arrival: Arrival) -> bool:
        """Whether the call was closed before this record was read."""
        return self.closed is not None and arrival.offset > self._through.get(arrival.source, -1)

    def is_complete(self, offsets: Mapping[InputSource, int]) -> bool:
        """Whether every record that was folded then is folded now."""
        return _reaches(offsets, self._through)


class LoggedCall(Call):
    """An open call whose dead air and end come from its log. No limit and no idleness closes it, and no wake-up reaches it."""

    may_be_evicted = False

    def __init__(
        self,
        first: Arrival,
        limits: Limits,
        code_version: str,
        facts: LoggedFacts,
        closed: ClosedFact,
        goals: ChosenGoals,
        redactor: Redactor | None = None,
    ) -> None:
        # A call without goals in the log had none, whatever its agent has today.
        known = goals if facts.goal_set is not None else ChosenGoals(rules=goals.rules)
        super().__init__(first, limits, code_version, None, known, redactor=redactor)
        self._judged.known_goals = facts.goal_set
        self.live.dead_air.leave_to_the_log()
        self._facts = facts
        self._closed = closed
        self._undeclared = deque((sources(fact.offsets), fact) for fact in facts.dead_airs)

    def receive(self, arrival: Arrival, out: list[Effect]) -> str:
        """Folds one record, then declares the facts that the log has at this point.

        Returns:
            Its outcome, a label of the events counter.
        """
        if self._facts.is_after_close(arrival):
            return "after_close"
        # Expired verdicts and stalls follow from time alone.
        self._judged.reached(self.live, arrival.broker_time_ms, out)
        outcome = super().receive(arrival, out)
        undeclared = self._undeclared
        while undeclared and _reaches(self._offsets, undeclared[0][0]):
            self.live.declare_logged(undeclared.popleft()[1], out)
        if self._facts.is_complete(self._offsets):
            self.close_as_logged(out)
        return outcome

    def next_wakeup(self) -> None:
        """Returns None: silence decides nothing that the log does not have."""

    def close_as_logged(self, out: list[Effect]) -> None:
        """Closes the call as logged. A record that was folded then may be missing now: deleted, or refused today."""
        for _, fact in self._undeclared:
            self.live.declare_logged(fact, out)
        self._undeclared.clear()
        self.ended_reason = self._closed.ended_reason
        over_at_ms, closed_at_ms = min(self.ends_at(), self._closed.caused_at_ms), self._closed.caused_at_ms
        if self._judged.is_any:
            self.is_over = True
            self._judged.finish(self.live, self.history.last_time_ms(), over_at_ms, out, asks=True)
            self._judged.reached(self.live, closed_at_ms, out)
        self.close(self._closed.reason, self._closed.caused_at_ms)

    def _hit_limit(self, reason: CloseReason, limit: str, now_ms: int, out: list[Effect]) -> None:
        """Does nothing: `through` in the log says how much of the call counts."""


def _reaches(offsets: Mapping[InputSource, int], through: Mapping[InputSource, int]) -> bool:
    return all(offsets.get(source, -1) >= offset for source, offset in through.items())
