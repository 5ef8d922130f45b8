"""Evaluates past calls of one partition number again, step by step. Pure: time is the time of the log."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from consumers.engine.admission import Arrival, admit
from consumers.engine.effects import CloseCall, Effect, OpenCall, PublishScore
from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.goals.progress import ChosenGoals
from consumers.engine.limits import Limits
from consumers.engine.redaction.redactor import Redactor
from schemas.closed_sets import InputSource
from schemas.goals.goal_set import GoalSet
from schemas.order import Closed, Evicted, Fold, GoalsChosen, OrderStart, TimePassed
from schemas.scores.records import AnyScoreRecord, GoalsFact
from streamer.operations.backtest.comparison import Comparison, last_words
from streamer.operations.backtest.inputs import Logged
from streamer.operations.backtest.past import MAX_CALLS, BacktestError, PastCall, Period


@dataclass(slots=True)
class Rerun:
    """A new evaluation, and its differences from the records of the log.

    With the facts of the log, it evaluates the calls that closed in the period, and they have the goals that they had. Without
    them, it evaluates the calls whose first record is in the period, and they choose.

    Time passes as far as the steps say, however coarse that is: silence is decided in the order of broker time, so with the same code
    and settings the same comes out, and with others what they would have decided.

    Attributes:
        limits: Limits of today's settings.
        code_version: Version of today's code.
        period: The past looked at.
        past: Records of the calls that closed in the period or later.
        obeys_facts: Whether the steps and the goals are those of the log.
        comparison: Counts the differences.
        left_out: Calls without records to compare with.
        goals: Where calls get their goals that do not obey the log, and how goals are judged. No judge is asked: verdicts
            are those of the log.
        redactor: Goes over texts. With other rules than then questions are others, and their verdicts are not in the log.
        refused: Records of the calls that today's code or settings refuse.
        without_beginning: Calls of the log that are not evaluated, because the steps or the inputs do not have their beginning.
    """

    limits: Limits
    code_version: str
    period: Period
    past: Mapping[str, PastCall]
    obeys_facts: bool
    comparison: Comparison
    left_out: frozenset[str] = frozenset()
    goals: ChosenGoals = field(default_factory=ChosenGoals)
    redactor: Redactor = field(default_factory=Redactor)
    refused: int = 0
    without_beginning: int = 0
    _evaluator: PartitionEvaluator = field(init=False)
    _awaited: set[str] = field(default_factory=set)
    _open: set[str] = field(default_factory=set)
    _begun: int = 0
    _evicted: str | None = None
    _goal_sets: dict[str, GoalSet] = field(default_factory=dict)
    _said: dict[str, list[AnyScoreRecord]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._evaluator = PartitionEvaluator(self.limits, self.code_version, self.goals, redactor=self.redactor)
        if self.obeys_facts:
            self._awaited = set(self.past)
        self.goals.logged = self._goal_sets if self.obeys_facts else None

    @property
    def open_calls(self) -> int:
        """Calls that have begun and not closed."""
        return len(self._open)

    def is_over(self, time_ms: int) -> bool:
        """Whether no step from this time on can change anything."""
        is_last = not self._awaited if self.obeys_facts else time_ms >= self.period.until_ms
        return is_last and not self._open

    def take(self, logged: Logged) -> list[AnyScoreRecord]:
        """Takes one step; returns the records to write.

        Raises:
            BacktestError: There are more calls than one back-test holds.
        """
        match logged.step:
            case OrderStart(time_ms=now_ms) | TimePassed(now_ms):
                return self._written(self._evaluator.advance(now_ms))
            case Fold(source, _, opened):
                opening = None if opened is None else OpenCall(self._evicted)
                self._evicted = None
                return [] if logged.record is None else self._fold(source, logged.record, opening, logged.time_ms)
            case Evicted(conversation_id):
                self._evicted = conversation_id
            case GoalsChosen(conversation_id) if conversation_id in self.past:
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
        """Decides silences up to `now_ms`, or until every call has closed if the log says that it did."""
        effects: list[Effect] = []
        end_ms = math.inf if self.obeys_facts else now_ms
        while (wakeup_ms := self._evaluator.next_wakeup()) is not None and wakeup_ms <= end_ms:
            effects += self._evaluator.advance(wakeup_ms)
        written = self._written(effects)
        self.without_beginning += len(self._awaited)
        for conversation_id in sorted(
            self._open.difference(self._evaluator.open_calls)
        ):  # not one record of it is taken
            self._compare(conversation_id, ())
        return written

    def _fold(self, source: InputSource, record: Any, opening: OpenCall | None, time_ms: int) -> list[AnyScoreRecord]:
        conversation_id = (record.key or b"").decode("utf-8", "replace")
        if opening is not None and self._is_chosen(conversation_id, time_ms):
            self._open.add(conversation_id)
        # A call that is not evaluated opens all the same if one that is gives way to it; nothing of it is written.
        if conversation_id not in self._open and (opening is None or opening.evicted not in self._open):
            return []
        arrival = admit(source, record, self.limits, self.redactor)
        if not isinstance(arrival, Arrival):
            self.refused += 1
            return []
        effects = [*self._evaluator.receive_again(arrival, opening)]
        while self._evaluator.closing_calls:
            effects += self._evaluator.close_some()
        return self._written(effects)

    def _is_chosen(self, conversation_id: str, time_ms: int) -> bool:
        """Whether a call that opens is one to evaluate."""
        if self.obeys_facts:
            is_awaited = conversation_id in self._awaited
            self._awaited.discard(conversation_id)
            return is_awaited
        if not self.period.has(time_ms) or conversation_id in self.left_out:
            return False
        if self._begun >= MAX_CALLS:
            raise BacktestError(
                f"Back-test: more than {MAX_CALLS} calls began in this time in one partition, so the rest was not "
                "evaluated. Take a shorter time between --since and --until."
            )
        self._begun += 1
        return True

    def _written(self, effects: Iterable[Effect]) -> list[AnyScoreRecord]:
        written: list[AnyScoreRecord] = []
        for effect in effects:
            if isinstance(effect, PublishScore) and effect.record.conversation_id in self._open:
                written.append(effect.record)
                self._said.setdefault(effect.record.conversation_id, []).append(effect.record)
            elif isinstance(effect, CloseCall) and effect.conversation_id in self._open:
                written += effect.records
                self._compare(effect.conversation_id, effect.records)
        return written

    def _compare(self, conversation_id: str, closing: Iterable[AnyScoreRecord]) -> None:
        self._open.discard(conversation_id)
        self._goal_sets.pop(conversation_id, None)
        past = self.past.get(conversation_id)
        now = last_words([*self._said.pop(conversation_id, ()), *closing])
        self.comparison.add(conversation_id, None if past is None else last_words(past.records()), now or None)
