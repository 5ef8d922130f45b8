"""Evaluates past calls of one partition again, and compares. Pure: time is that of the log."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from pydantic_core import to_jsonable_python

from consumers.console.page.calls import parts_of
from consumers.engine.admission import Arrival, admit
from consumers.engine.effects import CloseCall, Effect, PublishScore
from consumers.engine.evaluator import PartitionEvaluator, folded
from consumers.engine.goals.progress import ChosenGoals
from consumers.engine.limits import Limits
from consumers.engine.redaction.redactor import Redactor
from schemas.closed_sets import InputSource, PipelineType
from schemas.goals.goal_set import GoalSet
from schemas.judging import JudgeVerdict
from schemas.log import Event, Tick
from schemas.scores.live_view import newest_scores
from schemas.scores.records import AnyScoreRecord, CallValues, ClosedFact, DeadAirFact, GoalsFact, TurnValues
from streamer.backtest.past import MAX_CALLS, BacktestError, PastCall, Period
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


# Evaluates past calls of one partition again. Pure: time is that of the log.


@dataclass(slots=True)
class Rerun:
    """A new evaluation: a fold of the log; and its differences from the records of then.

    With the facts of then, it evaluates the calls that closed in the period, and they have the goals that they had. Without them, it
    evaluates the calls whose first event is in the period, and they choose.

    Attributes:
        limits: Limits of today's settings.
        code_version: Version of today's code.
        period: The past looked at.
        past: Records of the calls that closed in the period or later.
        obeys_facts: Whether calls and goals are those of then.
        comparison: Counts the differences.
        folds_all: Whether the other calls of the partition are folded too, for the ones that had to give way to another.
        cut_ms: The log has nothing before this time; 0 if it has.
        left_out: Calls without records to compare with.
        goals: Where calls get their goals that are not those of then, and how goals are judged. No judge is asked: verdicts are those
            of the log.
        redactor: Goes over texts. With other rules than then questions are others, and their verdicts are not in the log.
        counts: `refused_records` are records of the calls that today's code or settings refuse; `without_beginning` are calls that are
            not evaluated, because the log does not have their beginning.
    """

    limits: Limits
    code_version: str
    period: Period
    past: Mapping[str, PastCall]
    obeys_facts: bool
    comparison: Comparison
    folds_all: bool = False
    cut_ms: int = 0
    left_out: frozenset[str] = frozenset()
    goals: ChosenGoals = field(default_factory=ChosenGoals)
    redactor: Redactor = field(default_factory=Redactor)
    counts: Counter[str] = field(default_factory=Counter)
    _evaluator: PartitionEvaluator = field(init=False)
    _awaited: set[str] = field(default_factory=set)
    _open: set[str] = field(default_factory=set)
    _seen: set[str] = field(default_factory=set)
    _begun: int = 0
    _goal_sets: dict[str, GoalSet] = field(default_factory=dict)
    _arrivals: dict[str, list[Arrival]] = field(default_factory=dict)
    _said: dict[str, list[AnyScoreRecord]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._evaluator = PartitionEvaluator(self.limits, self.code_version, self.goals, redactor=self.redactor)
        if self.obeys_facts:
            began = {name: _began_ms(call) for name, call in self.past.items()} if self.cut_ms else {}
            self._awaited = {name for name in self.past if began.get(name, self.cut_ms) >= self.cut_ms}
            self.counts["without_beginning"] = len(self.past) - len(self._awaited)
        self.goals.logged = self._goal_sets if self.obeys_facts else None

    @property
    def open_calls(self) -> int:
        """Calls that have begun and not closed."""
        return len(self._open)

    def is_over(self, time_ms: int) -> bool:
        """Whether nothing that is in the log from this time on can change anything."""
        is_last = not self._awaited if self.obeys_facts else time_ms >= self.period.until_ms
        return is_last and not self._open

    def take(self, found: Event | Tick) -> list[AnyScoreRecord]:
        """Folds what comes next in the log; returns the records to write.

        Raises:
            BacktestError: There are more calls than one back-test holds.
        """
        if isinstance(found, Tick):
            return self._written(self._evaluator.advance(found.known_ms, found.place))
        conversation_id = (found.key or b"").decode("utf-8", "replace")
        self._look(conversation_id, found)
        is_chosen = conversation_id in self._open
        if not is_chosen and not self.folds_all:
            return []
        arrival = admit(found.source, found, self.limits, self.redactor)
        if not isinstance(arrival, Arrival):
            self.counts["refused_records"] += is_chosen
            return []
        arrival.offset = found.place
        if is_chosen:
            self._choose_goals(conversation_id, found.place)
            if found.source is not InputSource.JUDGE:
                self._arrivals.setdefault(conversation_id, []).append(arrival)
        effects = [*self._evaluator.receive(arrival)]
        while self._evaluator.closing_calls:
            effects += self._evaluator.close_some()
        return self._written(effects)

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

    def _look(self, conversation_id: str, event: Event) -> None:
        """Opens a call that is to be evaluated, at its first event. A verdict opens none."""
        is_new = conversation_id in self._awaited if self.obeys_facts else conversation_id not in self._seen
        if not is_new or (event.source is InputSource.JUDGE and self._is_verdict(event)):
            return
        if self.obeys_facts:
            self._awaited.discard(conversation_id)
            self._open.add(conversation_id)
        else:
            self._seen.add(conversation_id)
            if self.period.has(event.timestamp) and conversation_id not in self.left_out:
                self._require_room()
                self._open.add(conversation_id)

    def _is_verdict(self, event: Event) -> bool:
        """Whether an event on the judges' input is no other: what is said of a call, as that it has started, may come on any."""
        arrival = admit(event.source, event, self.limits, self.redactor)
        return not isinstance(arrival, Arrival) or isinstance(arrival.event, JudgeVerdict)

    def _require_room(self) -> None:
        self._begun += 1
        if self._begun > MAX_CALLS:
            raise BacktestError(
                f"Back-test: more than {MAX_CALLS} calls began in this time in one partition, so the rest was not "
                "evaluated. Take a shorter time between --since and --until."
            )

    def _choose_goals(self, conversation_id: str, place: int) -> None:
        """Gives a call the goals that it had, from the event on that brought them."""
        if not self.obeys_facts or conversation_id in self._goal_sets:
            return
        goals_from = self.past[conversation_id].goals_from
        if goals_from is not None and place >= goals_from:
            for record in self.past[conversation_id].records():
                if isinstance(record, GoalsFact):
                    self._goal_sets[conversation_id] = record.goal_set

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


def _began_ms(call: PastCall) -> float:
    """When a call began, as far as its records say."""
    records = call.records()
    began = [record.began_at_ms for record in records if isinstance(record, ClosedFact) and record.began_at_ms]
    return min([*began, *(record.caused_at_ms for record in records)])
