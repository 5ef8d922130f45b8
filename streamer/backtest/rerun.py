"""Evaluates past calls of one partition again, and compares. Pure: time is that of the log."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from msgspec import structs, to_builtins

from consumers.engine.admission import Arrival, admit
from consumers.engine.effects import Effect, PublishRow, PublishWords
from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.goals.progress import ChosenGoals
from consumers.engine.limits import Limits
from consumers.engine.redaction.redactor import Redactor
from schemas.closed_sets import InputSource
from schemas.goals.goal_set import GoalSet
from schemas.judging import JudgeVerdict
from schemas.log import Event, Tick
from schemas.rows import CallRow, GoalsRow, OwnRow, Row, Silence, StageLatency, Subgoal, ToolUse, WordsRow
from streamer.backtest.past import MAX_CALLS, BacktestError, PastCall, Period
from streamer.offline.own_values import OwnMeasures
from streamer.trials.calls import NewestRows, Trial, words_by_turn
from streamer.trials.versus import Flip, flips

# Compares the final scores of calls between two evaluations. Pure.

MAX_EXAMPLES: Final = 20
_HOW_IT_IS_SAID: Final = frozenset(
    {
        *("conversation_id", "turn", "revision", "known_ms", "status", "news", "left_out", "code_version", "partition"),
        *("first_place", "last_place", "first_known_ms", "through_turn", "user_sounds", "assistant_sounds"),
    }
)
"""Columns that say when and by whom something was said, or what is no value."""
_OF_THE_END: Final = ("close_reason", "ended_reason", "began_ms", "ended_ms", "turns", "events", "labels")
"""Columns of a call that are compared together, as its end."""
_OF_TURNS: Final = (
    *("turn", "answer", "waiting", "p50_ms", "p95_ms", "longest_wait_ms", "unanswered", "dead_airs", "dead_air_turns"),
    *("user_interruptions", "assistant_interruptions", "interrupted_turns"),
    *("tool_calls", "failed_tool_calls", "failed_tools", "failing_tools"),
)
"""Columns of a call that follow from its turns, which are compared themselves: one silence more is one difference, not three."""
_OF_ITS_LAST_TURN: Final = ("progress", "judged_turn", "is_stalled")
"""The same of its goals."""
_OF_A_WAIT: Final = ("wait_ms", "anchor", "wait_source")
"""Columns of a turn that are compared together, as its wait; nobody waits for the greeting."""

Said = Mapping[str, Any]
"""A value as JSON: under `result` if it is one, and with what belongs to it."""


class Subject(NamedTuple):
    """The subject of a score. `place` distinguishes several in one turn: the index of a tool call, the start of a silence."""

    name: str
    turn: int | None
    place: int


LastWords = Mapping[Subject, Said]
"""The newest values of a call that has ended."""


def last_words(rows: Iterable[Row]) -> LastWords:
    """The newest values after these ordered rows of one call. Each column counts by itself; of a withdrawn turn, only its silences."""
    newest = NewestRows(rows)
    words: dict[Subject, Said] = {}
    for number, row in newest.turns.items():
        # Labels are as known when the row was written; the call has them once.
        of_turn = _said_in(row, number, left_out=("labels", "tools_left_out", *_OF_A_WAIT))
        if row.status == "withdrawn":
            # The caller did sit through its silences.
            words |= {subject: said for subject, said in of_turn.items() if subject.name == "dead_air"}
            continue
        words |= of_turn
        if number and row.wait_ms is not None:
            by = {name: str(value) for name in _OF_A_WAIT[1:] if (value := getattr(row, name)) is not None}
            words[Subject("wait_ms", number, 0)] = _said(row.wait_ms) | by
    call = newest.call
    if call is not None:
        words |= _said_in(call, None, left_out=(*_OF_THE_END, *_OF_TURNS, "goals", "state"))
        if call.goals is not None:
            words |= _said_in(call.goals, None, left_out=_OF_ITS_LAST_TURN)
        if call.state == "closed":
            words[Subject("closed", None, 0)] = {name: to_builtins(getattr(call, name)) for name in _OF_THE_END}
    return words


def _said_in(row: Any, turn: int | None, *, left_out: Iterable[str]) -> dict[Subject, Said]:
    """The columns of a row that say something, each list and each mapping by its elements."""
    words: dict[Subject, Said] = {}
    hidden = _HOW_IT_IS_SAID.union(left_out)
    for field_info in structs.fields(row):
        name, value = field_info.name, getattr(row, field_info.name)
        if name in hidden or value is None or value in ((), {}):
            continue
        if isinstance(value, dict) and name in ("eva", "stages", "waits"):
            words |= {Subject(f"{name}.{key}", turn, 0): _said(each) for key, each in value.items()}
        elif isinstance(value, tuple) and isinstance(value[0], (Silence, StageLatency, Subgoal, ToolUse)):
            words |= {_subject(name, turn, place, each): _said(each) for place, each in enumerate(value)}
        else:
            words[Subject(name, turn, 0)] = _said(value)
    return words


def _subject(name: str, turn: int | None, place: int, each: Any) -> Subject:
    match each:
        case Silence(since_ms=since_ms):
            # Silences are numbered through the call: one new silence must not change the identity of all later ones.
            return Subject(name, turn, since_ms)
        case StageLatency(stage=stage):
            return Subject(f"{name}.{stage}", turn, 0)
        case ToolUse(index=index):
            return Subject(name, turn, index)
    return Subject(name, turn, place)


def _said(value: Any) -> dict[str, Any]:
    plain = to_builtins(value)
    if isinstance(value, Silence):
        return {"until_ms": value.until_ms}
    if isinstance(plain, dict) and ("result" in plain or isinstance(value, (StageLatency, ToolUse))):
        return plain
    return {"result": plain}


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
        self.other_goals += _version_of(then) != _version_of(now)
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
    """The number that a value is, if it is one: its value, or how long something took."""
    found = said.get("result", said.get("latency_ms", said.get("duration_ms")))
    return float(found) if isinstance(found, int | float) else None


def _version_of(trial: Trial | None) -> str | None:
    return None if trial is None else trial.version


# Evaluates past calls of one partition again. Pure: time is that of the log.


@dataclass(slots=True)
class Rerun:
    """A new evaluation: a fold of the log; and its differences from the rows of then.

    With the facts of then, it evaluates the calls that closed in the period, and they have the goals that they had. Without them, it
    evaluates the calls whose first event is in the period, and they choose.

    Attributes:
        limits: Limits of today's settings.
        code_version: Version of today's code.
        period: The past looked at.
        past: Rows of the calls that closed in the period or later.
        obeys_facts: Whether calls and goals are those of then.
        comparison: Counts the differences.
        folds_all: Whether the other calls of the partition are folded too, for the ones that had to give way to another.
        partition: The partition of the log.
        cut_ms: The log has nothing before this time; 0 if it has.
        left_out: Calls without rows to compare with.
        goals: Where calls get their goals that are not those of then, and how goals are judged. No judge is asked: verdicts are those
            of the log.
        own: Measures of one's own; those that ask for the context of a call are left out.
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
            self.limits, self.code_version, self.goals, redactor=self.redactor, partition=self.partition
        )
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

    def take(self, found: Event | Tick) -> list[Row | OwnRow]:
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

    def finish(self, now_ms: int) -> list[Row | OwnRow]:
        """Decides silences up to `now_ms`, or until every call has closed if the log says that it did."""
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
            for row in self.past[conversation_id].rows():
                if isinstance(row, GoalsRow):
                    self._goal_sets[conversation_id] = GoalSet.model_validate(row.goal_set)

    def _written(self, effects: Iterable[Effect]) -> list[Row | OwnRow]:
        written: list[Row | OwnRow] = []
        for effect in effects:
            if isinstance(effect, PublishWords) and effect.row.conversation_id in self._open:
                self._words.setdefault(effect.row.conversation_id, []).append(effect.row)
            if not isinstance(effect, PublishRow) or effect.row.conversation_id not in self._open:
                continue
            row = effect.row
            written.append(row)
            self._rows.setdefault(row.conversation_id, []).append(row)
            if isinstance(row, CallRow) and row.state == "closed":
                written += self._measured(row.conversation_id)
                self._compare(row.conversation_id)
        return written

    def _measured(self, conversation_id: str) -> list[OwnRow]:
        if not self.own:
            return []
        newest = NewestRows(self._rows[conversation_id])
        rows: list[Row] = [*newest.turns.values(), *([] if newest.call is None else [newest.call])]
        return self.own.of_rows(rows, self._words.get(conversation_id, ()))

    def _compare(self, conversation_id: str) -> None:
        self._open.discard(conversation_id)
        self._goal_sets.pop(conversation_id, None)
        past = self.past.get(conversation_id)
        now, words = self._rows.pop(conversation_id, []), self._words.pop(conversation_id, [])
        if past is None:
            self.comparison.add(conversation_id, None, last_words(now) or None)
            return
        then = past.rows()
        self.comparison.add(conversation_id, last_words(then), last_words(now) or None)
        if now:
            before, after = NewestRows(then), NewestRows(now)
            self.comparison.add_goals(
                conversation_id, before.trial(""), after.trial(""), lambda: words_by_turn(words, after.turns)
            )


def _began_ms(call: PastCall) -> float:
    """When a call began, as far as its rows say."""
    rows = [row for row in call.rows() if isinstance(row, CallRow)]
    began = [row.began_ms for row in rows if row.began_ms is not None]
    return min([*began, *(row.first_known_ms for row in rows)])
