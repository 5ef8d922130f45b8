"""Evaluates past calls of one partition again, and compares. Pure: time is that of the log."""

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from consumers.engine.admission import Arrival, admit
from consumers.engine.effects import Effect, PublishRow, PublishWords
from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.goals.progress import ChosenGoals
from consumers.engine.limits import Limits
from consumers.engine.redaction.redactor import Redactor
from consumers.measures.own import mean_values
from consumers.store.changes import MEASURES, Change, change_of, draws_of_one
from schemas.closed_sets import InputSource
from schemas.columns import CALL_COLUMNS, TURN_COLUMNS, Column, Flat
from schemas.goals.goal_set import GoalSet
from schemas.judging import JudgeVerdict
from schemas.log import Event, Tick
from schemas.rows import CallRow, GoalsRow, Row, TurnRow, WordsRow
from streamer.backtest.past import MAX_CALLS, BacktestError, PastCall
from streamer.history.comparison import ComparedPeriod
from streamer.offline.own_values import OwnMeasures
from streamer.trials.calls import NewestRows, Quote, Trial, words_by_turn
from streamer.trials.versus import Flip, flips

# Compares the newest rows of calls between two evaluations, column by column. Pure.

MAX_EXAMPLES: Final = 20
MOST_MEASURED: Final = 100_000
"""Calls whose measures are kept for the means, 2.5 kB each; the others are compared all
the same.
"""
_HOW_IT_IS_SAID: Final = frozenset(
    {
        *(
            "conversation_id",
            "revision",
            "known_ms",
            "status",
            "news",
            "left_out",
            "code_version",
            "partition",
        ),
        *(
            "first_place",
            "last_place",
            "first_known_ms",
            "through_turn",
            "user_sounds",
            "assistant_sounds",
        ),
    }
)
"""Columns that say when and by whom something was said, or what is no value."""
_OF_CALLS: Final = tuple(each for each in CALL_COLUMNS if each.path[0] not in _HOW_IT_IS_SAID)
_OF_TURNS: Final = tuple(  # labels are as known when the row was written; the call has them once
    each for each in TURN_COLUMNS if each.path[0] not in {*_HOW_IT_IS_SAID, "turn", "labels"}
)

LastValues = Mapping[tuple[int | None, str], Flat]
"""What is known of a call that has ended, by turn (None for the call as a whole) and column."""


def last_values(newest: NewestRows) -> LastValues:
    """What is known of a call by its newest rows. Withdrawn turns are left out: the call sums up
    what the caller sat through.
    """
    rows: list[tuple[int | None, Sequence[Column], TurnRow | CallRow | None]] = [
        (number, _OF_TURNS, row)
        for number, row in sorted(newest.turns.items())
        if row.status != "withdrawn"
    ]
    rows.append((None, _OF_CALLS, newest.call))
    return {
        (number, column.name): value
        for number, columns, row in rows
        for column in columns
        if (value := column.of(row)) is not None
    }


class ScoreDifference(NamedTuple):
    """One value that differs; `then` and `now` are None where it is not known, or where there is no
    such call.
    """

    conversation_id: str
    turn: int | None
    column: str
    then: Flat
    now: Flat


@dataclass(slots=True)
class RerunComparison:
    """All calls compared so far.

    Attributes:
        calls: How many are `equal`, `changed`, `only_then` (there is no call today) and `only_now`.
        equal_values: Values that are equal.
        differing: How many values differ, by column.
        other_goals: Calls whose goals are not those that they had.
        flipped: By call, the subgoals that only one of the two evaluations finds reached.
        examples: The first differences, at most `MAX_EXAMPLES`.
    """

    calls: Counter[str] = field(
        default_factory=lambda: Counter(equal=0, changed=0, only_then=0, only_now=0)
    )
    equal_values: int = 0
    differing: Counter[str] = field(default_factory=Counter)
    other_goals: int = 0
    flipped: dict[str, list[Flip]] = field(default_factory=dict)
    examples: list[ScoreDifference] = field(default_factory=list)
    _measured: list[tuple[Sequence[float], Sequence[float]]] = field(default_factory=list)
    _own: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def add(
        self,
        conversation_id: str,
        then: Iterable[Row],
        now: Iterable[Row],
        words: Iterable[WordsRow] = (),
    ) -> None:
        """One more call, by its rows in each evaluation, none where it does not exist; `words` are
        those of today.
        """
        was, became = NewestRows(then), NewestRows(now)
        if was.call is None and became.call is None:
            return
        before, after = last_values(was), last_values(became)
        if was.call is not None and became.call is not None:
            differing = [
                each for each in {**before, **after} if before.get(each) != after.get(each)
            ]
            self.calls["changed" if differing else "equal"] += 1
            self.equal_values += len(before.keys() | after.keys()) - len(differing)
            if len(self._measured) < MOST_MEASURED:
                self._measured.append((_measures(was.call), _measures(became.call)))
            self._add_goals(
                conversation_id, was.trial(""), became.trial(""), words_by_turn(words, became.turns)
            )
        else:
            differing = [(None, "state")]
            self.calls["only_now" if was.call is None else "only_then"] += 1
        self.differing.update(column for _, column in differing)
        self.examples += [
            ScoreDifference(conversation_id, *each, before.get(each), after.get(each))
            for each in differing[: MAX_EXAMPLES - len(self.examples)]
        ]

    def _add_goals(
        self,
        conversation_id: str,
        then: Trial | None,
        now: Trial | None,
        words: Mapping[int, Quote],
    ) -> None:
        self.other_goals += (then and then.digest) != (now and now.digest)
        found = (
            [] if then is None or now is None else flips(then.quoting(words), now.quoting(words))
        )
        if found:
            self.flipped[conversation_id] = found

    def add_own(self, then: Mapping[str, float], now: Mapping[str, float]) -> None:
        """The values of one more call in measures of one's own: what today's functions say of its
        rows then, and of those of now.
        """
        for name in {**then, **now}:
            pairs = self._own.setdefault(name, [])
            if len(pairs) < MOST_MEASURED:
                pairs.append((then.get(name, math.nan), now.get(name, math.nan)))

    def changes(self) -> list[Change]:
        """The measures of calls that differ, and those of one's own, each with the change of its
        mean.
        """
        measured = {
            name: [(then[place], now[place]) for then, now in self._measured]
            for place, name in enumerate(MEASURES)
            if self.differing[name]
        }
        measured |= self._own
        draws = draws_of_one(len(measured))
        found = []
        for name, pairs in measured.items():
            before, after = (
                [value for value in lot if not math.isnan(value)]
                for lot in zip(*pairs, strict=True)
            )
            known = [pair for pair in pairs if not math.isnan(sum(pair))]
            found.append(change_of(name, before, after, known, draws))
        return found


def _measures(call: CallRow) -> Sequence[float]:
    return array(
        "d",
        [
            math.nan if (value := each.of(call)) is None else float(value)
            for each in MEASURES.values()
        ],
    )


# Evaluates past calls of one partition again. Pure: time is that of the log.


@dataclass(slots=True)
class Rerun:
    """A new evaluation: a fold of the log; and its differences from the rows of then.

    With the facts of then, it evaluates the calls that closed in the period, and they have the
    goals that they had. Without them, it evaluates the calls whose first event is in the period,
    and they choose.

    Attributes:
        limits: Limits of today's settings.
        code_version: Version of today's code.
        period: The past looked at.
        past: Rows of the calls that closed in the period or later.
        obeys_facts: Whether calls and goals are those of then.
        comparison: Counts the differences.
        folds_all: Whether the other calls of the partition are folded too, for the ones that had to
            give way to another.
        partition: The partition of the log.
        cut_ms: The log has nothing before this time; 0 if it has.
        left_out: Calls without rows to compare with.
        goals: Where calls get their goals that are not those of then, and how goals are judged. No
            judge is asked: verdicts are those of the log.
        own: Measures of one's own; those that ask for the context of a call are left out.
        redactor: Goes over texts. With other rules than then questions are others, and their
            verdicts are not in the log.
        counts: `refused_records` are records of the calls that today's code or settings refuse;
            `without_beginning` are calls that are not evaluated, because the log does not have
            their beginning.
    """

    limits: Limits
    code_version: str
    period: ComparedPeriod
    past: Mapping[str, PastCall]
    obeys_facts: bool
    comparison: RerunComparison
    folds_all: bool = False
    partition: int = 0
    cut_ms: int = 0
    left_out: frozenset[str] = frozenset()
    goals: ChosenGoals = field(default_factory=ChosenGoals)
    own: OwnMeasures | None = None
    redactor: Redactor = field(default_factory=Redactor)
    counts: Counter[str] = field(default_factory=Counter)
    _evaluator: PartitionEvaluator = field(init=False)
    _awaited: set[str] = field(default_factory=set)
    _open: set[str] = field(default_factory=set)
    _seen: set[str] = field(default_factory=set)
    _begun: int = 0
    _goal_sets: dict[str, GoalSet] = field(default_factory=dict)
    _rows: dict[str, list[Row]] = field(default_factory=dict)
    _words: dict[str, list[WordsRow]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._evaluator = PartitionEvaluator(
            self.limits,
            self.code_version,
            self.goals,
            redactor=self.redactor,
            partition=self.partition,
        )
        if self.obeys_facts:
            began = (
                {name: _began_ms(call) for name, call in self.past.items()} if self.cut_ms else {}
            )
            self._awaited = {
                name for name in self.past if began.get(name, self.cut_ms) >= self.cut_ms
            }
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

    def fold_record(self, found: Event | Tick) -> list[Row]:
        """Folds what comes next in the log; returns the rows to write.

        Raises:
            BacktestError: There are more calls than one back-test holds.
        """
        if isinstance(found, Tick):
            if found.gap_ms:
                self._evaluator.pass_gap(found.known_ms - found.gap_ms, found.known_ms)
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
        effects = [*self._evaluator.receive(arrival)]
        while self._evaluator.closing_calls:
            effects += self._evaluator.close_some()
        return self._written(effects)

    def finish(self, now_ms: int) -> list[Row]:
        """Decides silences up to `now_ms`, or until every call has closed if the log says that it
        did.
        """
        effects: list[Effect] = []
        end_ms = math.inf if self.obeys_facts else now_ms
        while (wakeup_ms := self._evaluator.next_wakeup()) is not None and wakeup_ms <= end_ms:
            effects += self._evaluator.advance(wakeup_ms)
        written = self._written(effects)
        self.counts["without_beginning"] += len(self._awaited)
        never_taken = self._open.difference(self._evaluator.open_calls)
        for conversation_id in sorted(never_taken):
            self._compare(conversation_id)
        return written

    def _look(self, conversation_id: str, event: Event) -> None:
        """Opens a call that is to be evaluated, at its first event. A verdict opens none."""
        is_new = (
            conversation_id in self._awaited
            if self.obeys_facts
            else conversation_id not in self._seen
        )
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
        """Whether an event on the judges' input is no other: what is said of a call, as that it has
        started, may come on any.
        """
        arrival = admit(event.source, event, self.limits, self.redactor)
        return not isinstance(arrival, Arrival) or isinstance(arrival.event, JudgeVerdict)

    def _require_room(self) -> None:
        self._begun += 1
        if self._begun > MAX_CALLS:
            raise BacktestError(
                f"Back-test: more than {MAX_CALLS} calls began in this time in one partition, so "
                "the rest was not "
                "evaluated. Take a shorter time between --since and --until."
            )

    def _choose_goals(self, conversation_id: str, place: int) -> None:
        """Gives a call the goals that it had, from the event on that brought them."""
        if not self.obeys_facts or conversation_id in self._goal_sets:
            return
        goals_from = self.past[conversation_id].goals_from
        if goals_from is not None and place >= goals_from:
            for row in self.past[conversation_id].rows():
                if isinstance(row, GoalsRow):
                    self._goal_sets[conversation_id] = GoalSet.model_validate(row.goal_set)

    def _written(self, effects: Iterable[Effect]) -> list[Row]:
        written: list[Row] = []
        for effect in effects:
            if isinstance(effect, PublishWords) and effect.row.conversation_id in self._open:
                self._words.setdefault(effect.row.conversation_id, []).append(effect.row)
            if not isinstance(effect, PublishRow) or effect.row.conversation_id not in self._open:
                continue
            row = effect.row
            written.append(row)
            self._rows.setdefault(row.conversation_id, []).append(row)
            if isinstance(row, CallRow) and row.state == "closed":
                self._compare(row.conversation_id)
        return written

    def _compare(self, conversation_id: str) -> None:
        self._open.discard(conversation_id)
        self._goal_sets.pop(conversation_id, None)
        past = self.past.get(conversation_id)
        now, words = self._rows.pop(conversation_id, []), self._words.pop(conversation_id, [])
        then = [] if past is None else [*past.rows()]
        self.comparison.add(conversation_id, then, now, words)
        if self.own:
            self.comparison.add_own(
                self._means(self.own, then, words), self._means(self.own, now, words)
            )

    @staticmethod
    def _means(
        own: OwnMeasures, rows: Iterable[Row], words: Sequence[WordsRow]
    ) -> Mapping[str, float]:
        newest = NewestRows(rows)
        of_call = [] if newest.call is None else [newest.call]
        return mean_values(own.of_rows([*newest.turns.values(), *of_call], words))


def _began_ms(call: PastCall) -> float:
    """When a call began, as far as its rows say."""
    rows = [row for row in call.rows() if isinstance(row, CallRow)]
    began = [row.began_ms for row in rows if row.began_ms is not None]
    return min([*began, *(row.first_known_ms for row in rows)])
