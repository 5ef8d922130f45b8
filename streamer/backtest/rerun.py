"""Evaluates past calls of one partition number again, step by step, and compares. Pure: time is the time of the log."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from pydantic_core import to_jsonable_python

from consumers.console.page.calls import parts_of
from consumers.engine.admission import Arrival, admit
from consumers.engine.effects import CloseCall, Effect, OpenCall, PublishScore
from consumers.engine.evaluator import PartitionEvaluator, folded
from consumers.engine.goals.progress import ChosenGoals
from consumers.engine.limits import Limits
from consumers.engine.redaction.redactor import Redactor
from schemas.closed_sets import InputSource, PipelineType
from schemas.goals.goal_set import GoalSet
from schemas.order import Closed, Evicted, Fold, GoalsChosen, OrderStart, TimePassed
from schemas.scores.live_view import newest_scores
from schemas.scores.records import AnyScoreRecord, CallValues, ClosedFact, DeadAirFact, GoalsFact, TurnValues
from streamer.backtest.past import MAX_CALLS, BacktestError, Logged, PastCall, Period
from streamer.trials.calls import CallFold, Trial, words_by_turn
from streamer.trials.versus import Flip, flips

# Compares the final scores of calls between two evaluations. Pure.

MAX_EXAMPLES: Final = 20
_HOW_IT_WAS_SAID: Final = frozenset(
    {
        *("schema_version", "conversation_id", "turn", "index", "revision", "status", "is_first"),
        *("input_hash", "offsets", "through", "event_time_ms", "caused_at_ms", "code_version", "record_id"),
        *("kind", "name", "is_withdrawn", "threshold_ms", "first_known"),
    }
)

Said = Mapping[str, Any]
"""The content of a record as JSON, without its time, its cause and its revision."""


class Subject(NamedTuple):
    """The subject of a score. `place` distinguishes several in one turn: the index of a tool call, the start of a silence."""

    name: str
    turn: int | None
    place: int


LastWords = Mapping[Subject, Said]
"""The newest scores of a call that has ended."""


def last_words(records: Iterable[AnyScoreRecord]) -> LastWords:
    """The newest scores after these ordered records of one call; withdrawn scores are left out.

    Each value of a turn's row and of the call counts by itself, under the name of its own. A latency is in two records, which say
    the same of it; where it is not known, only the row says so.
    """
    words: dict[Subject, Said] = {}
    for (name, turn, index), record in newest_scores(records).items():
        match record:
            case TurnValues() | CallValues():
                words[Subject(name, turn, index)] = {}
                for part in parts_of(record):
                    result = {} if part.result is None else {"result": part.result}
                    words[Subject(part.name, turn, 0)] = to_jsonable_python({**result, **part.fields})
            case _:
                # Silences are numbered through the call: one new silence must not change the identity of all later ones.
                place = record.silent_since_ms if isinstance(record, DeadAirFact) else index
                left_out = _HOW_IT_WAS_SAID
                if not isinstance(record, ClosedFact):
                    left_out |= {"labels"}  # as known when it was written; the closing record has them once
                words[Subject(name, turn, place)] = record.model_dump(mode="json", exclude=set(left_out))
    return words


@dataclass(slots=True)
class Tally:
    """Counts of compared things: calls, or the scores of one name.

    Attributes:
        equal: Equal in both.
        changed: Different.
        only_then: In the log and not in the new evaluation.
        only_now: The other way round.
    """

    equal: int = 0
    changed: int = 0
    only_then: int = 0
    only_now: int = 0
    _difference: float = 0.0
    _differences: int = 0

    @property
    def counts(self) -> dict[str, int]:
        """The four counts by name."""
        return {name: getattr(self, name) for name in ("equal", "changed", "only_then", "only_now")}

    @property
    def differing(self) -> int:
        """How many are not equal."""
        return self.changed + self.only_then + self.only_now

    @property
    def mean_difference(self) -> float | None:
        """Mean distance between the numbers of changed scores; None when no changed score is a number on both sides."""
        return self._difference / self._differences if self._differences else None

    def changed_by(self, then: Said, now: Said) -> None:
        """One changed score."""
        self.changed += 1
        before, after = number_in(then), number_in(now)
        if before is not None and after is not None:
            self._difference += abs(after - before)
            self._differences += 1


class Difference(NamedTuple):
    """One score that differs; `then` and `now` hold the fields that do, None where there is no such score."""

    conversation_id: str
    subject: Subject
    then: Said | None
    now: Said | None


@dataclass(slots=True)
class Comparison:
    """All calls compared so far.

    Attributes:
        calls: A call is equal if every score of it is.
        tallies: By name of score.
        other_goals: Calls whose goals are not those that they had.
        flipped: By call, the subgoals that only one of the two evaluations finds reached.
        examples: The first differences, at most `MAX_EXAMPLES`.
    """

    calls: Tally = field(default_factory=Tally)
    tallies: defaultdict[str, Tally] = field(default_factory=lambda: defaultdict(Tally))
    other_goals: int = 0
    flipped: dict[str, list[Flip]] = field(default_factory=dict)
    examples: list[Difference] = field(default_factory=list)

    def add(self, conversation_id: str, then: LastWords | None, now: LastWords | None) -> None:
        """One more call; None where it does not exist."""
        before, after = then or {}, now or {}
        # The call's own records last, as they are written.
        subjects = sorted(
            {**before, **after}, key=lambda each: (each.turn is None, each.turn or 0, each.name, each.place)
        )
        is_equal = True
        for subject in subjects:
            is_equal &= self._compare(conversation_id, subject, before.get(subject), after.get(subject))
        if then is None:
            self.calls.only_now += now is not None
        elif now is None:
            self.calls.only_then += 1
        elif is_equal:
            self.calls.equal += 1
        else:
            self.calls.changed += 1

    def add_goals(
        self, conversation_id: str, then: Trial | None, now: Trial | None, words: Callable[[], Mapping[int, str]]
    ) -> None:
        """One more call as a trial of its goals; None where it has none. `words` gives those of its turns, and is called for flips."""
        self.other_goals += (then and then.version) != (now and now.version)
        if then is not None and now is not None and flips(then, now):
            said = words()
            self.flipped[conversation_id] = flips(then.quoting(said), now.quoting(said))

    def total(self) -> Tally:
        """The sum over all names, without a mean: milliseconds and counts do not add up."""
        return Tally(*map(sum, zip(*(tally.counts.values() for tally in self.tallies.values()), strict=True)))

    def _compare(self, conversation_id: str, subject: Subject, then: Said | None, now: Said | None) -> bool:
        tally = self.tallies[subject.name]
        if then == now:
            tally.equal += 1
            return True
        if then is None:
            tally.only_now += 1
        elif now is None:
            tally.only_then += 1
        else:
            tally.changed_by(then, now)
            differing = {name for name in {**then, **now} if then.get(name) != now.get(name)}
            then, now = ({name: value for name, value in said.items() if name in differing} for said in (then, now))
        if len(self.examples) < MAX_EXAMPLES:
            self.examples.append(Difference(conversation_id, subject, then, now))
        return False


def number_in(said: Said) -> float | None:
    """The number that a score is, if it is one: its value, or how long something took."""
    result = said.get("result")
    number = result.get("value") if isinstance(result, Mapping) else said.get("duration_ms")
    return float(number) if isinstance(number, int | float) else None


# Evaluates past calls of one partition number again, step by step. Pure: time is the time of the log.


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
        counts: `refused_records` are records of the calls that today's code or settings refuse; `without_beginning` are calls of the
            log that are not evaluated, because the steps or the inputs do not have their beginning.
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
    counts: Counter[str] = field(default_factory=Counter)
    _evaluator: PartitionEvaluator = field(init=False)
    _awaited: set[str] = field(default_factory=set)
    _open: set[str] = field(default_factory=set)
    _begun: int = 0
    _evicted: str | None = None
    _goal_sets: dict[str, GoalSet] = field(default_factory=dict)
    _arrivals: dict[str, list[Arrival]] = field(default_factory=dict)
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
                self.counts["without_beginning"] += 1
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
        self.counts["without_beginning"] += len(self._awaited)
        never_taken = self._open.difference(self._evaluator.open_calls)
        for conversation_id in sorted(never_taken):
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
            self.counts["refused_records"] += 1
            return []
        if conversation_id in self._open and source is not InputSource.JUDGE:
            self._arrivals.setdefault(conversation_id, []).append(arrival)
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
        now = [*self._said.pop(conversation_id, ()), *closing]
        arrivals = self._arrivals.pop(conversation_id, [])
        if past is None:
            self.comparison.add(conversation_id, None, last_words(now) or None)
            return
        then = past.records()
        self.comparison.add(conversation_id, last_words(then), last_words(now) or None)
        if now:
            before, after = (CallFold(each).trial(conversation_id, "") for each in (then, now))
            self.comparison.add_goals(conversation_id, before, after, lambda: self._words(arrivals))

    def _words(self, arrivals: Iterable[Arrival]) -> dict[int, str]:
        """What was said and done in each turn of a call."""
        return words_by_turn(folded(arrivals, PipelineType.CASCADE, None, self.limits), self.redactor)
