"""A back-test: past calls of the topics, or of the folder of a `serve`, evaluated again with
today's code and settings, and compared. Nothing is written.
"""

import asyncio
import math
import zlib
from array import array
from collections import Counter, defaultdict
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, cast

import typer
from aiokafka import AIOKafkaConsumer, TopicPartition
from rich.console import Group, RenderableType
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from consumers.engine.admission import Arrival, admit
from consumers.engine.effects import Effect, PublishRow, PublishWords
from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.goals.progress import ChosenGoals
from consumers.engine.limits import Limits
from consumers.engine.redaction.redactor import Redactor
from consumers.history.search import CallSearch, Condition
from consumers.history.sqlite import SqliteHistory
from consumers.log.file import reading
from consumers.log.stretches import log_between
from consumers.measures.own import mean_values
from consumers.runtime.kafka.connection import (
    READ,
    KafkaSettings,
    Needs,
    partition_counts,
    require_access,
)
from consumers.runtime.kafka.ranges import onlooker
from consumers.runtime.logs import configure_logging
from consumers.runtime.process import OperatorError, finish_unless, wall_clock_ms
from consumers.store.changes import (
    MEASURES,
    Change,
    change_of,
    changes_json,
    draws_of_one,
    remark_on_chance,
)
from consumers.view.words import counted
from schemas.closed_sets import CloseReason, InputSource
from schemas.columns import CALL_COLUMNS, TURN_COLUMNS, Column, Flat
from schemas.goals.goal_set import GoalSet
from schemas.judging import JudgeVerdict
from schemas.log import Event, Tick
from schemas.quarantine import UndecodableRecord
from schemas.rows import CallRow, GoalsRow, Row, RowError, TurnRow, WordsRow, decode, encode
from schemas.topics import EVENTS_TOPIC, SCORES_TOPIC
from schemas.units import DAY_MS
from streamer.changes import changes_table
from streamer.cluster.readers import records_so_far
from streamer.facts import STOPPED_BY_SIGNAL, installed_version
from streamer.history.comparison import ComparedPeriod
from streamer.offline.own_values import OwnMeasures
from streamer.roles.evaluator_role import goals_of_now
from streamer.served_folder import served
from streamer.settings.all_settings import Settings
from streamer.signals import stop_on_signals
from streamer.terminal import error_console, output_console, plain_table, print_document, say
from streamer.time_bounds import moment_ms, shown_moment
from streamer.trials.calls import (
    Flip,
    NewestRows,
    Trial,
    by_subgoal,
    flips,
    flips_in_words,
    quotes,
    words_by_turn,
)

# Reads `scores` of calls that closed in a past period: the newest row of each turn and of each
# call.

MAX_CALLS: Final = 50_000
"""Calls of one partition number in one back-test, with those that are open at a time: some 150 MB
of rows.
"""
MAX_HELD_BYTES: Final = 1_000_000_000
"""Bound of the rows of these calls; they contain goals, and a goal set may be large."""
LATEST_MS: Final = DAY_MS
"""How long after a call's end its scores may have been written; later ones are taken as never
written.
"""


class BacktestError(OperatorError):
    """A back-test cannot run as requested; the text says what to change."""


class PastCall(NamedTuple):
    """The rows of a closed call; compressed, since all calls of a period are in memory together.

    Attributes:
        packed: The rows.
        goals_from: Place in the log of the event that brought its goals; None if it had none.
    """

    packed: bytes
    goals_from: int | None = None

    def rows(self) -> list[Row]:
        """Its goals, the newest row of each turn, and the closed row of the call."""
        return [decode(line) for line in zlib.decompress(self.packed).splitlines()]


@dataclass(slots=True)
class PastCalls:
    """The calls of one partition number that closed in a period.

    Attributes:
        by_id: Each that closed once.
        closed_twice: Conversation ids that were used again after their call had closed: no call to
            compare with.
        unreadable: Values that this version cannot read.
        has_evicted: Whether one of them closed because too many were open: other calls decided
            that.
    """

    period: ComparedPeriod
    by_id: dict[str, PastCall] = field(default_factory=dict)
    closed_twice: set[str] = field(default_factory=set)
    unreadable: int = 0
    has_evicted: bool = False
    _open: defaultdict[str, NewestRows] = field(default_factory=lambda: defaultdict(NewestRows))
    _goals_from: dict[str, int] = field(default_factory=dict)
    _closed_before: set[str] = field(default_factory=set)
    _held_bytes: int = 0

    def read_record(self, key: bytes | None, value: bytes | None) -> None:
        """One more record of `scores`.

        Raises:
            BacktestError: There are more calls than one back-test holds.
        """
        if not key or not value:
            return
        try:
            row = decode(value)
        except RowError:
            self.unreadable += 1
            return
        conversation_id = key.decode("utf-8", "replace")
        self._open[conversation_id].add_row(row)
        if isinstance(row, GoalsRow):  # a new version may have published it once more
            self._goals_from.setdefault(conversation_id, row.revision // 2)
        if isinstance(row, CallRow) and row.state == "closed":
            self._close(conversation_id, row)
        if len(self.by_id) + len(self._open) > MAX_CALLS or self._held_bytes > MAX_HELD_BYTES:
            raise BacktestError(
                f"Back-test: more than {MAX_CALLS} calls were open or closed in this time in one "
                f"partition, or their rows take more than {MAX_HELD_BYTES} bytes. They are kept in "
                "memory for the comparison, so nothing more was evaluated. Take a shorter time "
                "between --since and --until."
            )

    def _close(self, conversation_id: str, closed: CallRow) -> None:
        newest, goals_from = (
            self._open.pop(conversation_id),
            self._goals_from.pop(conversation_id, None),
        )
        if closed.known_ms < self.period.since_ms:
            self._closed_before.add(conversation_id)
        if not self.period.has(closed.known_ms):
            return
        if any(
            conversation_id in those
            for those in (self._closed_before, self.by_id, self.closed_twice)
        ):
            self.by_id.pop(conversation_id, None)
            self.closed_twice.add(conversation_id)
            return
        goals = () if newest.goals is None else (newest.goals,)
        packed = zlib.compress(
            b"\n".join(map(encode, [*goals, *newest.turns.values(), closed])), level=1
        )
        self._held_bytes += len(packed)
        self.by_id[conversation_id] = PastCall(packed, goals_from)
        self.has_evicted |= closed.close_reason is CloseReason.LIMIT_OPEN_CALLS


class Stretch(NamedTuple):
    """What is read of a partition of the log: places from `start` to before `end`; what was before
    `cut_ms` is gone, 0 if nothing is.
    """

    start: int
    end: int
    cut_ms: int


class Past(Protocol):
    """Where the past is kept.

    Attributes:
        cut: By partition, the time of its oldest record of the log, where older ones were wanted
            and are gone.
    """

    cut: dict[str, int]

    async def calls(self, number: int, period: ComparedPeriod, longest_call_ms: int) -> PastCalls:
        """The rows of the calls of one partition number that closed in a period.

        Args:
            number: The partition number.
            period: The calls that closed in it are read; broker time.
            longest_call_ms: How long before its end something may have been written of a call.

        Raises:
            BacktestError: There are more calls than one back-test holds.
            OperatorError, KafkaError, TimeoutError: They cannot be read.
        """

    async def begin(self, number: int, since_ms: int) -> Stretch:
        """Finds the place from which a partition of the log is read: what is before this time may
        be left out.
        """

    def read(self, number: int, stretch: Stretch) -> AsyncIterator[Event | Tick]:
        """The events and ticks of a stretch."""


class PastTopics:
    """The past on Kafka, read without a group, one partition after the other. Its methods raise as
    `log_between`.
    """

    def __init__(self, consumer: AIOKafkaConsumer, kafka: KafkaSettings) -> None:
        self.cut: dict[str, int] = {}
        self._consumer = consumer
        self._kafka = kafka

    async def calls(self, number: int, period: ComparedPeriod, longest_call_ms: int) -> PastCalls:
        """As of `Past`."""
        calls = PastCalls(period)
        tp = TopicPartition(self._kafka.topic(SCORES_TOPIC), number)
        written = records_so_far(self._consumer, [tp], period.since_ms - longest_call_ms)
        async with aclosing(cast("AsyncGenerator[Any, None]", written)) as records:
            async for record in records:
                if record.timestamp > period.until_ms + LATEST_MS:
                    break
                if isinstance(record, UndecodableRecord):
                    calls.unreadable += 1
                calls.read_record(record.key, record.value)
        return calls

    async def begin(self, number: int, since_ms: int) -> Stretch:
        """As of `Past`."""
        tp = TopicPartition(self._kafka.topic(EVENTS_TOPIC), number)
        begin, end = (
            (await self._consumer.beginning_offsets([tp]))[tp],
            (await self._consumer.end_offsets([tp]))[tp],
        )
        found = (await self._consumer.offsets_for_times({tp: max(0, since_ms)}))[tp]
        is_cut = found is not None and 0 < begin == found.offset and found.timestamp > since_ms
        if is_cut:
            self.cut[f"{tp.topic}[{number}]"] = found.timestamp
        return Stretch(
            end if found is None else found.offset, end, found.timestamp if is_cut else 0
        )

    def read(self, number: int, stretch: Stretch) -> AsyncIterator[Event | Tick]:
        """As of `Past`."""
        tp = TopicPartition(self._kafka.topic(EVENTS_TOPIC), number)
        return log_between(self._consumer, tp, stretch.start, stretch.end)


class PastFolder:
    """The past in the folder of a `serve`, which may run: the rows of its history, and its log. It
    has one partition.
    """

    def __init__(self, folder: Path, history: Path) -> None:
        self.cut: dict[str, int] = {}
        self._folder = folder
        self._history = history

    # as on Kafka
    async def calls(self, number: int, period: ComparedPeriod, longest_call_ms: int) -> PastCalls:
        """As of `Past`."""
        calls = PastCalls(period)
        lasted = [Condition("known_ms", ">=", period.since_ms)]
        asked = CallSearch(period.since_ms - longest_call_ms, period.until_ms, lasted, most=None)
        store = SqliteHistory(self._history)
        try:
            for (name,) in store.values(asked, ["conversation_id"]):
                for row in store.rows_of(str(name)):
                    calls.read_record(row.conversation_id.encode(), encode(row))
        finally:
            store.close()
        return calls

    async def begin(self, number: int, since_ms: int) -> Stretch:
        """As of `Past`."""
        with reading(self._folder) as log:
            bounds = log.since(since_ms)
        if bounds.is_cut:
            self.cut["the log"] = bounds.start_ms
        return Stretch(bounds.start, bounds.end, bounds.start_ms if bounds.is_cut else 0)

    async def read(self, number: int, stretch: Stretch) -> AsyncIterator[Event | Tick]:
        """As of `Past`."""
        with reading(self._folder) as log:
            for record in log.between(stretch.start, stretch.end):
                yield record.read
                await asyncio.sleep(0)


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
            goals_then, goals_now = was.trial(""), became.trial("")
            self.other_goals += _digest_of(goals_then) != _digest_of(goals_now)
            if goals_then is not None and goals_now is not None:
                said = words_by_turn(words, became.turns)
                if found := flips(goals_then.quoting(said), goals_now.quoting(said)):
                    self.flipped[conversation_id] = found
        else:
            differing = [(None, "state")]
            self.calls["only_now" if was.call is None else "only_then"] += 1
        self.differing.update(column for _, column in differing)
        self.examples += [
            ScoreDifference(conversation_id, *each, before.get(each), after.get(each))
            for each in differing[: MAX_EXAMPLES - len(self.examples)]
        ]

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


def _digest_of(trial: Trial | None) -> str | None:
    return None if trial is None else trial.digest


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
                "the rest was not evaluated. Take a shorter time between --since and --until."
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


# Evaluates past traffic again with today's code and settings, and compares. Nothing is written.

FETCH_WAIT_MS: Final = 20
"""How long the broker keeps a fetch that has nothing: a client that goes on to the next partition
waits for it.
"""
_SHOWN_EVERY: Final = 500

ShowProgress = Callable[[int, int, float], None]
"""Gets the partition number, the number of partitions, and the finished share of this
one's time.
"""


@dataclass(frozen=True, slots=True)
class BacktestPlan:
    """The past to evaluate again, and how.

    Attributes:
        period: The past, in broker time.
        obeys_facts: Whether the calls are those that closed in the period, with the goals that they
            had; otherwise those that began in it, and they choose.
        now_ms: Start of the command: an open silence lasts until then.
        folder: The folder of a `serve` that has the past; None for Kafka.
    """

    period: ComparedPeriod
    obeys_facts: bool
    now_ms: int
    folder: Path | None = None


@dataclass(slots=True)
class BacktestResult:
    """The outcome of a back-test.

    Attributes:
        comparison: The final scores of the log against the new ones.
        counts: What was left out, under the names of the report for programs.
        cut: Time in ms of the oldest record of each partition of the log whose older records are
            deleted.
    """

    comparison: RerunComparison = field(default_factory=RerunComparison)
    counts: Counter[str] = field(default_factory=Counter)
    cut: dict[str, int] = field(default_factory=dict)


async def backtest(settings: Settings, plan: BacktestPlan, show: ShowProgress) -> BacktestResult:
    """Evaluates one partition after the other; each is read once, and no consumer group knows of
    it.

    Args:
        settings: Today's settings; with a folder, as `served` has them.
        plan: The past.
        show: Gets the progress.

    Raises:
        BacktestError: It cannot run as requested.
        GoalFolderError: The folder of goals cannot be read.
        KafkaUnreachableError: No broker answers, or rights are missing.
        TopicsUnfitError: A topic is missing.
    """
    kafka = settings.kafka
    result = BacktestResult()
    rules = settings.goal_rules(("evaluator", "judge"))
    own = OwnMeasures(settings.measures)
    async with (
        nullcontext() if plan.obeys_facts else goals_of_now(kafka, settings) as goals,
        _past(settings, plan) as (there, count),
    ):
        for number in range(count):
            show(number, count, 0.0)
            # Without the facts a call may close as late as the longest one that begins at the end
            # of the period.
            longest_ms = settings.limits.max_call_duration_ms
            since_ms, until_ms = plan.period
            closing = (
                plan.period if plan.obeys_facts else ComparedPeriod(since_ms, until_ms + longest_ms)
            )
            past = await there.calls(number, closing, longest_ms)
            begin_ms = since_ms - longest_ms - settings.limits.idle_ms
            stretch = await there.begin(number, begin_ms)
            rerun = Rerun(
                limits=settings.all_limits,
                code_version=installed_version(),
                period=plan.period,
                past=past.by_id,
                obeys_facts=plan.obeys_facts,
                comparison=result.comparison,
                folds_all=past.has_evicted,
                partition=number,
                cut_ms=stretch.cut_ms,
                left_out=frozenset(past.closed_twice),
                goals=ChosenGoals(goals, rules),
                redactor=Redactor(settings.redaction),
                own=own,
            )
            if not rerun.is_over(since_ms):
                await _evaluate(
                    rerun, there.read(number, stretch), plan, begin_ms, partial(show, number, count)
                )
            result.counts += rerun.counts
            result.counts["not_over"] += rerun.open_calls
            result.counts["closed_twice"] += len(past.closed_twice)
            result.counts["unreadable_scores"] += past.unreadable
        result.cut = there.cut
    show(count, count, 0.0)
    return result


async def _evaluate(
    rerun: Rerun,
    log: AsyncIterator[Event | Tick],
    plan: BacktestPlan,
    begin_ms: int,
    show: Callable[[float], None],
) -> None:
    """One partition, from as long before the period as a call may last."""
    taken = 0
    async with aclosing(cast("AsyncGenerator[Event | Tick, None]", log)) as found:
        async for each in found:
            rerun.fold_record(each)
            time_ms = each.known_ms if isinstance(each, Tick) else each.timestamp
            taken += 1
            if taken % _SHOWN_EVERY == 0:
                show(min(1.0, max(0.0, (time_ms - begin_ms) / (plan.period.until_ms - begin_ms))))
            if rerun.is_over(time_ms):
                break
    rerun.finish(plan.now_ms)


@asynccontextmanager
async def _past(settings: Settings, plan: BacktestPlan) -> AsyncIterator[tuple[Past, int]]:
    """Where the past is kept, and its number of partitions."""
    kafka, history = settings.kafka, settings.history.folder
    if plan.folder is not None and history is not None:
        yield PastFolder(plan.folder, history), 1
        return
    count = await _partitions(kafka)
    async with onlooker(
        kafka, "backtest", auto_offset_reset="earliest", fetch_max_wait_ms=FETCH_WAIT_MS
    ) as consumer:
        yield PastTopics(consumer, kafka), count


async def _partitions(kafka: KafkaSettings) -> int:
    """How many partitions there are to evaluate."""
    reads = {topic: frozenset({READ}) for topic in (EVENTS_TOPIC, SCORES_TOPIC)}
    await require_access(kafka, Needs(reads))
    counts = await partition_counts(kafka, reads)
    count = counts[EVENTS_TOPIC]
    if counts[SCORES_TOPIC] != count:
        raise BacktestError(
            f"Back-test: {kafka.topic(SCORES_TOPIC)} must have as many partitions as "
            f"{kafka.topic(EVENTS_TOPIC)}, but they have {counts[SCORES_TOPIC]} and {count}. "
            "Nothing was evaluated. `callgauge topics check` says more."
        )
    return count


# The report of a back-test as tables or JSON. Pure.

_NOT_THERE: Final = "-"


def report(plan: BacktestPlan, result: BacktestResult) -> RenderableType:
    """The comparison for people: how many calls and values differ, the measures of calls that do,
    and examples.
    """
    comparison = result.comparison
    parts: list[RenderableType] = [*_headlines(plan, comparison), *_goal_lines(comparison)]
    if changes := comparison.changes():
        calls = comparison.calls["equal"] + comparison.calls["changed"]
        parts += ["", changes_table(changes, (calls, calls), ("then", "now"))]
        parts += [text for text in [remark_on_chance(changes)] if text]
    if comparison.examples:
        counts = ", ".join(f"{name} {count}" for name, count in comparison.differing.most_common())
        parts += [
            "",
            f"Values that differ: {counts}. The first of them:",
            _examples_table(comparison),
        ]
    return Group(*parts)


def report_document(plan: BacktestPlan, result: BacktestResult) -> dict[str, Any]:
    """The comparison, for a program."""
    comparison, counts = result.comparison, result.counts
    return {
        "since_ms": plan.period.since_ms,
        "until_ms": plan.period.until_ms,
        "obeys_facts": plan.obeys_facts,
        "calls": {**comparison.calls, **{name: counts[name] for name in _LEFT_OUT_CALLS}},
        "equal_values": comparison.equal_values,
        "differing_values": dict(comparison.differing),
        "measures": changes_json(comparison.changes()),
        "calls_with_other_goals": comparison.other_goals,
        "subgoals": [
            {"id": name, "won": won, "lost": lost}
            for name, won, lost in by_subgoal(comparison.flipped.values())
        ],
        "flipped": [
            {"conversation_id": call, "subgoals": [each._asdict() for each in found]}
            for call, found in comparison.flipped.items()
        ],
        "examples": [each._asdict() for each in comparison.examples],
        "refused_records": counts["refused_records"],
        "unreadable_scores": counts["unreadable_scores"],
        "log_cut_at_ms": result.cut,
    }


_LEFT_OUT_CALLS: Final = ("not_over", "without_beginning", "closed_twice")
_REMARKS: Final = {
    "only_then": "{calls} of then: the log has no event of it any more, or it is refused today.",
    "refused_records": "{count} records of these calls are refused with today's code and settings.",
    "not_over": "{calls} not over yet, so not compared.",
    "without_beginning": (
        "{calls} left out: the log does not have the beginning any more. Take a later --since."
    ),
    "closed_twice": (
        "{calls} left out: the conversation id was used again after the call had closed."
    ),
    "unreadable_scores": (
        "{count} records of scores could not be read: not ours, or of a newer version."
    ),
}


def remarks(result: BacktestResult) -> Iterator[str]:
    """Remarks beside the differences, each a sentence."""
    for partition, oldest_ms in sorted(result.cut.items()):
        yield (
            f"{partition} has nothing before {shown_moment(oldest_ms)} UTC, and more was wanted: "
            "calls that began earlier are left out or incomplete, and differences of incomplete "
            "ones say nothing of today's code. Take a later --since."
        )
    counts = {"only_then": result.comparison.calls["only_then"], **result.counts}
    for name, remark in _REMARKS.items():
        if count := counts.get(name):
            yield remark.format(calls=counted(count, "call"), count=count)


def _headlines(plan: BacktestPlan, comparison: RerunComparison) -> Iterator[str]:
    since, until = (shown_moment(ms) for ms in plan.period)
    what = "closed" if plan.obeys_facts else "began"
    calls = comparison.calls
    compared = calls["equal"] + calls["changed"]
    yield (
        f"Calls that {what} from {since} to {until} UTC, evaluated again: "
        f"{compared + calls['only_now']}"
    )
    if plan.obeys_facts:
        yield "The goals of calls are those that they had; --without-facts takes today's."
    if compared and not comparison.differing:
        yield (
            f"No difference: {comparison.equal_values} final values of {counted(compared, 'call')} "
            "are equal."
        )
    elif calls.total():
        yield "Calls: " + ", ".join(
            f"{count} {name.replace('_', ' ')}" for name, count in calls.items() if count
        )
    else:
        yield "There is nothing to compare: no call in this time."


def _goal_lines(comparison: RerunComparison) -> Iterator[str]:
    """How many calls have other goals now, how often each subgoal flipped, and the first calls that
    did.
    """
    if comparison.other_goals:
        yield f"{counted(comparison.other_goals, 'call')} with other goals than then."
    flipped = comparison.flipped
    if flipped:
        yield f"Subgoals flipped in {counted(len(flipped), 'call')}:"
    yield from (
        f"  {subgoal}: {won} won, {lost} lost"
        for subgoal, won, lost in by_subgoal(flipped.values())
    )
    for call, found in islice(flipped.items(), MAX_EXAMPLES):
        yield f"  {call}: {flips_in_words(found)}"
        yield from quotes(found)
    if len(flipped) > MAX_EXAMPLES:
        yield f"  and {counted(len(flipped) - MAX_EXAMPLES, 'more call')}; --json has all"


def _examples_table(comparison: RerunComparison) -> Table:
    table = plain_table("conversation", "turn", "value", "then", "now")
    for example in comparison.examples:
        table.add_row(*(_NOT_THERE if value is None else str(value) for value in example))
    return table


# `callgauge replay --from-topics`: reads the times of the options, shows a progress bar, prints the
# differences.


def run_backtest(
    settings: Settings,
    *,
    since: str | None,
    until: str | None,
    obeys_facts: bool,
    as_json: bool,
    folder: Path | None = None,
) -> None:
    """Runs a back-test and prints the result; differences are a result and no failure.

    Args:
        settings: Today's settings.
        since: Start of the period, as typed.
        until: End of the period, as typed; None is now.
        obeys_facts: Whether the calls are those that closed in the period, with the goals that they
            had.
        as_json: One JSON object instead of tables.
        folder: The folder of a `serve` that has the past, in place of Kafka.

    Raises:
        typer.BadParameter: A time cannot be used.
        BacktestError: It cannot run as requested.
        typer.Exit: A signal cut it short.
    """
    plan = _plan(since, until, obeys_facts=obeys_facts)
    if folder is not None:
        settings, plan = served(settings, folder), replace(plan, folder=folder)
    redact = Redactor(settings.redaction).redact
    # log lines of the goal sources are no results
    configure_logging(settings.log_format, "warning", redact=redact)
    result = asyncio.run(_run(settings, plan))
    if result is None:
        say("Stopped.")
        raise typer.Exit(STOPPED_BY_SIGNAL)
    if as_json:
        print_document(report_document(plan, result))
    else:
        output_console().print(report(plan, result))
    for remark in remarks(result):
        say(remark)


def _plan(since: str | None, until: str | None, *, obeys_facts: bool) -> BacktestPlan:
    now_ms = wall_clock_ms()
    if since is None:
        raise typer.BadParameter(
            "--from-topics needs --since: from when on calls are evaluated again, for example 2h."
        )
    until_ms = now_ms if until is None else moment_ms(until, now_ms)
    period = ComparedPeriod(moment_ms(since, now_ms), until_ms)
    if period.since_ms >= period.until_ms:
        raise typer.BadParameter("--since must be before --until.")
    return BacktestPlan(period, obeys_facts, now_ms)


async def _run(settings: Settings, plan: BacktestPlan) -> BacktestResult | None:
    """The result; None when a signal came first."""
    console = error_console()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns, console=console)
    with bar if console.is_terminal else nullcontext(), stop_on_signals() as stop:
        task = bar.add_task("Back-test", total=1.0)

        def show(number: int, count: int, part: float) -> None:
            text = f"partition {min(number + 1, count)}/{count}"
            bar.update(task, total=float(count), completed=number + part, description=text)

        return await finish_unless(stop, backtest(settings, plan, show))
