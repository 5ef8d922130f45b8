"""Evaluates past calls of one partition number again, record by record. Pure: time is the time of the records."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain

from consumers.engine.effects import CloseCall, Effect, PublishScore, RecordFact
from consumers.engine.goals.chosen_goals import ChosenGoals
from consumers.engine.intake.admission import Arrival, admit
from consumers.engine.limits import Limits
from consumers.engine.partition import PartitionEvaluator
from consumers.engine.records.call_memory import sources
from consumers.engine.redaction.redactor import Redactor
from schemas.closed_sets import InputSource
from schemas.scores.all_records import AnyScoreRecord, ClosedFact
from streamer.operations.backtest.comparison import Comparison, last_words
from streamer.operations.backtest.inputs import Logged, last_offsets
from streamer.operations.backtest.past import MAX_CALLS, BacktestError, PastCall, Period


@dataclass(slots=True)
class Rerun:
    """A new evaluation, and its differences from the records of the log.

    With the facts of the log, it evaluates the calls that closed in the period. Without them, silences and ends are decided
    again, and it evaluates the calls whose first record is in the period: their ends are not known beforehand.

    Attributes:
        limits: Limits of today's settings.
        code_version: Version of today's code.
        period: The past looked at.
        past: Records of the calls that closed in the period or later.
        obeys_facts: Whether silences and ends are taken from the log.
        comparison: Counts the differences.
        left_out: Calls without records to compare with.
        goals: Where calls get their goals that do not obey the log, and how goals are judged. No judge is asked: verdicts
            are those of the log.
        redactor: Goes over texts. With other rules than then questions are others, and their verdicts are not in the log.
        refused: Records of the calls that today's code or settings refuse.
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
    _evaluator: PartitionEvaluator = field(init=False)
    _through: dict[InputSource, int] | None = None
    _chosen: set[str] = field(default_factory=set)
    _before: set[str] = field(default_factory=set)
    _closed: set[str] = field(default_factory=set)
    _said: dict[str, list[AnyScoreRecord]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._evaluator = PartitionEvaluator(self.limits, self.code_version, self.goals, redactor=self.redactor)
        if self.obeys_facts:
            self._chosen = set(self.past)
            closings = []
            for record in chain.from_iterable(call.records() for call in self.past.values()):
                self._evaluator.obey(record)
                if isinstance(record, ClosedFact):
                    closings.append(sources(record.through))
            self._through = last_offsets(closings)

    @property
    def through(self) -> dict[InputSource, int] | None:
        """Of each input the last offset that matters; None if that shows on the way."""
        return self._through

    @property
    def open_calls(self) -> int:
        """Calls that have begun and not closed."""
        return self._evaluator.open_calls

    def is_over(self, time_ms: int) -> bool:
        """Whether no record from this time on can change anything."""
        if self.obeys_facts:
            return len(self._closed) == len(self._chosen)
        return time_ms >= self.period.until_ms and not self._evaluator.open_calls

    def take(self, logged: Logged) -> list[AnyScoreRecord]:
        """Folds one record, after the silences that ended before it.

        Raises:
            BacktestError: There are more calls than one back-test holds.
        """
        time_ms, source, record = logged
        effects = self._until(time_ms)
        conversation_id = (record.key or b"").decode("utf-8", "replace")
        if conversation_id in self._chosen or self._is_chosen(conversation_id, time_ms):
            arrival = admit(source, record, self.limits, self.redactor)
            if isinstance(arrival, Arrival):
                effects += self._evaluator.receive(arrival)
            else:
                self.refused += 1
        return self._written(effects)

    def finish(self, now_ms: int) -> list[AnyScoreRecord]:
        """Ends the evaluation at `now_ms`: decides silences until then, or takes them from the facts."""
        written = self._written([*self._until(now_ms), *self._evaluator.end()])
        if self.obeys_facts:
            for conversation_id in sorted(self._chosen - self._closed):  # not one record of them is there
                then = last_words(self.past[conversation_id].records())
                self.comparison.add(conversation_id, then, None)
        return written

    def _is_chosen(self, conversation_id: str, time_ms: int) -> bool:
        """Whether a call that shows for the first time is one to evaluate."""
        if self.obeys_facts or conversation_id in self._before or conversation_id in self.left_out:
            return False
        if not self.period.has(time_ms):
            if time_ms < self.period.since_ms:
                self._before.add(conversation_id)
            return False
        if len(self._chosen) >= MAX_CALLS:
            raise BacktestError(
                f"Back-test: more than {MAX_CALLS} calls began in this time in one partition, so the rest was not "
                "evaluated. Take a shorter time between --since and --until."
            )
        self._chosen.add(conversation_id)
        return True

    def _until(self, time_ms: int) -> list[Effect]:
        """Wakes calls at the very moments they asked for, so that the same records give the same bytes."""
        evaluator = self._evaluator
        effects: list[Effect] = []
        while (wakeup_ms := evaluator.next_wakeup()) is not None and wakeup_ms <= time_ms:
            effects += evaluator.advance(wakeup_ms)
        return effects

    def _written(self, effects: Iterable[Effect]) -> list[AnyScoreRecord]:
        written: list[AnyScoreRecord] = []
        for effect in effects:
            if isinstance(effect, PublishScore | RecordFact):
                written.append(effect.record)
                self._said.setdefault(effect.record.conversation_id, []).append(effect.record)
            elif isinstance(effect, CloseCall):
                written += effect.records
                self._compare(effect)
        return written

    def _compare(self, closing: CloseCall) -> None:
        conversation_id = closing.conversation_id
        self._closed.add(conversation_id)
        now = last_words([*self._said.pop(conversation_id, ()), *closing.records])
        past = self.past.get(conversation_id)
        then = None if past is None else last_words(past.records())
        self.comparison.add(conversation_id, then, now)
