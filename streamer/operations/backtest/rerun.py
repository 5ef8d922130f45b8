"""Evaluates past calls of one partition number again, step by step. Pure: time is the time of the log."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from consumers.engine.effects import CloseCall, Effect, OpenCall, PublishScore
from consumers.engine.goals.chosen_goals import ChosenGoals
from consumers.engine.intake.admission import Arrival, admit
from consumers.engine.limits import Limits
from consumers.engine.partition import PartitionEvaluator
from consumers.engine.redaction.redactor import Redactor
from schemas.closed_sets import InputSource
from schemas.goals.goal_set import GoalSet
from schemas.order import Closed, Evicted, Fold, GoalsChosen, OrderStart, TimePassed
from schemas.scores.all_records import AnyScoreRecord, GoalsFact
from streamer.operations.backtest.comparison import Comparison, last_words
from streamer.operations.backtest.inputs import Logged
from streamer.operations.backtest.past import MAX_CALLS, BacktestError, PastCall, Period


@dataclass
class Rerun(ABC):
    """A new evaluation, and its differences from the records of the log.

    Attributes:
        limits: Limits of today's settings.
        code_version: Version of today's code.
        period: The past looked at.
        past: Records of the calls to compare with.
        comparison: Counts the differences.
        left_out: Calls without records to compare with.
        goals: The goals that calls choose from, and how they are judged. No judge is asked: verdicts are those of the log.
        redactor: Goes over texts. With other rules than then questions are others, and their verdicts are not in the log.
        refused: Records of the calls that today's code or settings refuse.
        without_beginning: Calls to compare with that were not evaluated, because the log does not have their beginning.
    """

    limits: Limits
    code_version: str
    period: Period
    past: Mapping[str, PastCall]
    comparison: Comparison
    left_out: frozenset[str] = frozenset()
    goals: ChosenGoals = field(default_factory=ChosenGoals)
    redactor: Redactor = field(default_factory=Redactor)
    refused: int = 0
    without_beginning: int = 0

    def __post_init__(self) -> None:
        self._evaluator = PartitionEvaluator(self.limits, self.code_version, self.goals, redactor=self.redactor)
        self._open: set[str] = set()
        self._said: dict[str, list[AnyScoreRecord]] = {}

    @property
    def open_calls(self) -> int:
        """Calls that are evaluated and have not closed."""
        return len(self._open)

    @abstractmethod
    def is_over(self, time_ms: int) -> bool:
        """Whether no step from this time of the log on can change anything."""

    @abstractmethod
    def take(self, logged: Logged) -> list[AnyScoreRecord]:
        """Takes one step; returns the records to write."""

    @abstractmethod
    def finish(self, now_ms: int) -> list[AnyScoreRecord]:
        """Ends the evaluation behind the last step; returns the records to write."""

    def _admitted(self, source: InputSource, record: Any) -> Arrival | None:
        arrival = admit(source, record, self.limits, self.redactor)
        if isinstance(arrival, Arrival):
            return arrival
        self.refused += 1
        return None

    def _until(self, time_ms: float) -> list[Effect]:
        """Wakes calls at the very moments they asked for, so that the same records give the same bytes."""
        effects: list[Effect] = []
        while (wakeup_ms := self._evaluator.next_wakeup()) is not None and wakeup_ms <= time_ms:
            effects += self._evaluator.advance(wakeup_ms)
        return effects

    def _written(self, effects: Iterable[Effect]) -> list[AnyScoreRecord]:
        written: list[AnyScoreRecord] = []
        for effect in effects:
            if isinstance(effect, PublishScore) and effect.record.conversation_id in self._open:
                written.append(effect.record)
                self._said.setdefault(effect.record.conversation_id, []).append(effect.record)
            elif isinstance(effect, CloseCall) and effect.conversation_id in self._open:
                written += effect.records
                self._open.discard(effect.conversation_id)
                said = self._said.pop(effect.conversation_id, ())
                self._compare(effect.conversation_id, [*said, *effect.records])
        return written

    def _compare(self, conversation_id: str, now: Iterable[AnyScoreRecord]) -> None:
        past = self.past.get(conversation_id)
        then = None if past is None else last_words(past.records())
        self.comparison.add(conversation_id, then, last_words(now) or None)


class InLoggedOrder(Rerun):
    """Takes the steps that the evaluator took then: with the same code and settings the same comes out.

    It evaluates the calls of `past`. Which record opens a call, which call gives way to another, how far time has come at a record,
    and the goals of calls are those of the log. Other settings may let a call end sooner or later: then earlier or later records are
    its last ones.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._awaited = set(self.past)
        self._evicted: str | None = None
        self._goal_sets: dict[str, GoalSet] = {}
        self.goals.logged = self._goal_sets

    def is_over(self, time_ms: int) -> bool:
        """Whether every call has closed or cannot be evaluated."""
        del time_ms
        return not self._awaited and not self._open

    def take(self, logged: Logged) -> list[AnyScoreRecord]:
        """Takes one step; returns the records to write."""
        match logged.step:
            case OrderStart(time_ms=now_ms) | TimePassed(now_ms):
                return self._written(self._evaluator.advance(now_ms))
            case Fold(source, _, opens):
                opening = OpenCall(self._evicted) if opens else None
                self._evicted = None
                return [] if logged.record is None else self._fold(source, logged.record, opening)
            case Evicted(conversation_id):
                self._evicted = conversation_id
            case GoalsChosen(conversation_id) if conversation_id in self._awaited or conversation_id in self._open:
                for record in self.past[conversation_id].records():
                    if isinstance(record, GoalsFact):
                        self._goal_sets[conversation_id] = record.goal_set
            case Closed(conversation_id) if conversation_id in self._awaited:
                self._awaited.discard(conversation_id)
                self.without_beginning += 1
            case _:
                pass
        return []

    def finish(self, now_ms: int) -> list[AnyScoreRecord]:
        """Lets time pass until every call has closed: all that the log has of it was folded."""
        del now_ms
        written = self._written(self._until(math.inf))
        for conversation_id in sorted(self._open):  # not one of its records is taken today
            self._compare(conversation_id, ())
        self._open.clear()
        self.without_beginning += len(self._awaited)
        return written

    def _fold(self, source: InputSource, record: Any, opening: OpenCall | None) -> list[AnyScoreRecord]:
        conversation_id = (record.key or b"").decode("utf-8", "replace")
        if opening is not None and conversation_id in self._awaited:
            self._awaited.discard(conversation_id)
            self._open.add(conversation_id)
        # A call that is not evaluated opens all the same if one that is gives way to it; nothing of it is written.
        if conversation_id not in self._open and (opening is None or opening.evicted not in self._open):
            return []
        arrival = self._admitted(source, record)
        if arrival is None:
            return []
        effects = [*self._evaluator.receive_again(arrival, opening)]
        while self._evaluator.closing_calls:
            effects += self._evaluator.close_some()
        return self._written(effects)

    def _compare(self, conversation_id: str, now: Iterable[AnyScoreRecord]) -> None:
        super()._compare(conversation_id, now)
        self._goal_sets.pop(conversation_id, None)


class InBrokerTime(Rerun):
    """Folds the records by broker time and decides everything again; it evaluates the calls whose first record is in the period."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._before: set[str] = set()
        self._chosen: set[str] = set()

    def is_over(self, time_ms: int) -> bool:
        """Whether no call begins any more, and every call has closed."""
        return time_ms >= self.period.until_ms and not self._open

    def take(self, logged: Logged) -> list[AnyScoreRecord]:
        """Folds one record, after the silences that ended before it.

        Raises:
            BacktestError: There are more calls than one back-test holds.
        """
        written = self._written(self._until(logged.time_ms))
        conversation_id = (logged.record.key or b"").decode("utf-8", "replace")
        if not isinstance(logged.step, Fold) or not self._is_chosen(conversation_id, logged.time_ms):
            return written
        arrival = self._admitted(logged.step.source, logged.record)
        effects = () if arrival is None else self._evaluator.receive(arrival)
        if effects and isinstance(effects[0], OpenCall):
            self._open.add(conversation_id)
        return written + self._written(effects)

    def finish(self, now_ms: int) -> list[AnyScoreRecord]:
        """Decides silences up to `now_ms`."""
        return self._written(self._until(now_ms))

    def _is_chosen(self, conversation_id: str, time_ms: int) -> bool:
        if conversation_id in self._chosen or conversation_id in self._before or conversation_id in self.left_out:
            return conversation_id in self._chosen
        if time_ms < self.period.since_ms:
            self._before.add(conversation_id)
        if not self.period.has(time_ms):
            return False
        if len(self._chosen) >= MAX_CALLS:
            raise BacktestError(
                f"Back-test: more than {MAX_CALLS} calls began in this time in one partition, so the rest was not "
                "evaluated. Take a shorter time between --since and --until."
            )
        self._chosen.add(conversation_id)
        return True
