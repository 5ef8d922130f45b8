"""A call evaluated again with the facts of its log: what was known by waiting, and when it was over, is as it was then.

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
from schemas.events.codec import InputSource
from schemas.goals.goal_set import GoalSet
from schemas.scores.all_records import AnyScoreRecord, ClosedFact, CloseReason, DeadAirFact, GoalsFact


class LoggedFacts:
    """What the log says of one call, in its order. What stands behind the closing is of no call that counts.

    Attributes:
        closed: The closing; None as long as the log has not shown it.
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
        """One more record of the call; only facts matter."""
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
        """Whether the call was over when this record was read."""
        return self.closed is not None and arrival.offset > self._through.get(arrival.source, -1)

    def is_complete(self, offsets: Mapping[InputSource, int]) -> bool:
        """Whether every record that counted is folded."""
        return _reaches(offsets, self._through)


class LoggedCall(Call):
    """An open call that declares dead air, and closes, where the log says so. No limit and no idleness closes it.

    It is never woken: time does nothing to it.
    """

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
        # Without goals in the log there were none, whatever there is today.
        known = goals if facts.goal_set is not None else ChosenGoals(rules=goals.rules)
        super().__init__(first, limits, code_version, None, known, redactor=redactor)
        self._judged.known_goals = facts.goal_set
        self.live.dead_air.leave_to_the_log()
        self.live.needs_wakeup = False
        self._facts = facts
        self._closed = closed
        self._undeclared = deque((sources(fact.offsets), fact) for fact in facts.dead_airs)

    def receive(self, arrival: Arrival, out: list[Effect]) -> str:
        """Fold one record, then what the log says of this moment.

        Returns:
            What became of it, as the outcome label of the events counter.
        """
        if self._facts.is_after_close(arrival):
            return "after_close"
        # What is not waited for any more, and a call that is stuck, are known by time alone.
        self._judged.reached(arrival.broker_time_ms, out)
        outcome = super().receive(arrival, out)
        self.live.needs_wakeup = False
        undeclared = self._undeclared
        while undeclared and _reaches(self._offsets, undeclared[0][0]):
            self.live.declare_logged(undeclared.popleft()[1], out)
        if self._facts.is_complete(self._offsets):
            self.close_as_logged(out)
        return outcome

    def close_as_logged(self, out: list[Effect]) -> None:
        """Close the call as the log says. A record that counted then may be missing now: it is gone, or is refused today."""
        for _, fact in self._undeclared:
            self.live.declare_logged(fact, out)
        self._undeclared.clear()
        self.ended_reason = self._closed.ended_reason
        over_at_ms, closed_at_ms = min(self.ends_at(), self._closed.caused_at_ms), self._closed.caused_at_ms
        if self._judged.is_any:
            self.is_over = True
            self._judged.finish(self.live, self.history.last_time_ms(), over_at_ms, out, asks=True)
            self._judged.reached(closed_at_ms, out)
        self.close(self._closed.reason, self._closed.caused_at_ms, out)

    def _hit_limit(self, reason: CloseReason, limit: str, now_ms: int, out: list[Effect]) -> None:
        """How much of the call counts is settled: what `through` names."""


def _reaches(offsets: Mapping[InputSource, int], through: Mapping[InputSource, int]) -> bool:
    return all(offsets.get(source, -1) >= offset for source, offset in through.items())
