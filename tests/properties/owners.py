"""Owners of one partition of the log after each other, as the evaluator has them, but without a
broker: its state and its takeover.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from unittest import mock

from aiokafka import TopicPartition
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from consumers.engine.admission import Arrival
from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.goals.progress import ChosenGoals
from consumers.engine.limits import GoalRules, Limits
from consumers.evaluator import decisions as decided_module
from consumers.evaluator.decisions import Decision, Outgoing, Outlet
from consumers.evaluator.partition import Partition, Recovery
from consumers.evaluator.settings import EvaluatorSettings
from consumers.evaluator.takeover import Owners, PublishedCalls, _recovery
from consumers.runtime.kafka.connection import KafkaSettings
from consumers.runtime.registry import Instruments
from schemas.closed_sets import InputSource
from schemas.events.envelope import ID_HEADER, SOURCE_HEADER, TYPE_HEADER
from schemas.goals.goal_set import ChoosesGoals
from schemas.judging import JudgeRequest
from schemas.log import LogReader, Next, Placed, Tick, placed_in
from schemas.rows import Row, decode
from schemas.topics import QUARANTINE_TOPIC, SCORES_TOPIC
from tests.properties.evaluation import RULES, EveryCall
from tests.support.fakes.broker_records import BrokerRecord
from tests.support.fakes.log_writer import LogWriter
from tests.support.known import some

LIMITS = Limits(max_event_time_skew_ms=0)
"""Events of these calls have times of their own, far from those of the broker."""
OVERLAP_MS: Final = EvaluatorSettings().closed_overlap_ms
MOST_REPEATS: Final = 20
_INSTRUMENTS = Instruments(CollectorRegistry(), ["evaluator"])


class Step(NamedTuple):
    """What happens next to the log.

    Attributes:
        what: `event`; `tick`; `succeed`: another sequencer begins where the last tick was, and
            appends the rest again; `again`: the last events come again, and `void`: by one that was
            replaced.
        arrival: The event.
        number: The time of a tick, or how many events.
    """

    what: str
    arrival: Arrival | None = None
    number: int = 0


class Published(NamedTuple):
    """A record of `scores`, or another one that goes out with it."""

    topic: str
    offset: int
    timestamp: int
    key: bytes
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]


class Log(LogWriter):
    """A partition of the log, and what was published of it. It grows when somebody reads on. The
    judge `answers` what is asked.

    Attributes:
        first: Offset of its first record; what was in front of it is deleted.
        scores: The partition of `scores`, rows included.
        published: All that was published, in order.
        lives: The place from which each owner decided, and its version of the goal files.
        now_ms: The newest time of a tick or of an event.
    """

    def __init__(self, steps: Iterable[Step]) -> None:
        super().__init__()
        self.first = 0
        self.answers: Callable[[JudgeRequest], None] = lambda _: None
        self.scores: list[Published] = []
        self.published: list[Outgoing] = []
        self.lives: list[tuple[int, str]] = []
        self.now_ms = 0
        self._steps = deque(steps)
        self._ticked: dict[InputSource, int] = {}
        self._since_tick: list[BrokerRecord] = []

    @classmethod
    def of(cls, arrivals: Iterable[Arrival], *, has_ticks: bool = False) -> "Log":
        """These events in this order. Ticks, if there are any, come wherever time goes on."""
        steps: list[Step] = []
        last_ms = 0
        for each in arrivals:
            if has_ticks and each.broker_time_ms > last_ms:
                last_ms = each.broker_time_ms
                steps.append(Step("tick", number=last_ms - 1))
            steps.append(Step("event", each))
        return cls(steps)

    def __repr__(self) -> str:
        steps = [f"{each.what} {each.number or each.arrival}" for each in self._steps]
        return f"{len(self.records)} records, {len(steps)} steps: " + "\n".join(steps)[:20_000]

    def record_at(self, offset: int) -> BrokerRecord | None:
        """The record there; None at the end of all steps."""
        while offset >= len(self.records) and self._steps:
            self._take(self._steps.popleft())
        return self.records[offset] if offset < len(self.records) else None

    def add(self, arrival: Arrival) -> None:
        """Appends an event."""
        self.now_ms = max(self.now_ms, arrival.broker_time_ms)
        named = arrival.envelope
        headers = (
            {}
            if named is None
            else {ID_HEADER: named.id, SOURCE_HEADER: named.source, TYPE_HEADER: named.type}
        )
        value = arrival.value or arrival.event.model_dump_json().encode()
        record = self.event(
            arrival.source,
            arrival.conversation_id,
            value,
            arrival.broker_time_ms,
            tuple((name, text.encode()) for name, text in headers.items() if text is not None),
        )
        self._since_tick.append(record)

    def tick(self, known_ms: int) -> BrokerRecord:
        self.now_ms = max(self.now_ms, known_ms)
        self._ticked = dict(self._next)
        self._since_tick = []
        return super().tick(self.now_ms)

    def _take(self, step: Step) -> None:
        events = [each for each in self.records[-4 * step.number :] if each.key is not None][
            -step.number :
        ]
        match step.what:
            case "event" if step.arrival is not None:
                self.add(step.arrival)
            case "tick":
                self.tick(step.number)
            case "succeed":
                self.term += 1
                positions = {
                    (source, 0): Next(0, offset) for source, offset in self._ticked.items()
                }
                tick = Tick.of(self.term, self.now_ms, positions)
                self.append(None, tick.value(), [tick.header()], self.now_ms)
                self._copy(self._since_tick[-MOST_REPEATS:], self.term)
            case "again":
                self._copy(events, self.term)
            case _ if self.term > 1:
                self._copy(events, self.term - 1)
            case _:
                pass

    def _copy(self, events: Iterable[BrokerRecord], term: int) -> None:
        for each in events:
            placed = some(placed_in(each.headers))
            again = Placed(term, placed.origin)
            self.again(again, each.key, each.value, each.headers[:-1])

    @property
    def score_values(self) -> list[bytes]:
        """The values that were published to `scores`."""
        return [each.value for each in self.published if each.topic == SCORES_TOPIC and each.value]

    @property
    def rows(self) -> list[Row]:
        """The same, decoded."""
        return [decode(value) for value in self.score_values]


@dataclass(frozen=True)
class Settings:
    """Settings that all owners share, and one that differs: the goals in their version of the
    files.
    """

    limits: Limits = LIMITS
    rules: GoalRules = RULES
    goals_of: Callable[[str], ChoosesGoals] = lambda _: EveryCall()

    def evaluator(self, goals: ChosenGoals) -> PartitionEvaluator:
        """One that has seen nothing."""
        return PartitionEvaluator(self.limits, "test", goals, writes_transcripts=True)


Acts = Sequence[tuple[str, int]]
"""What an owner does, with a number that says how much."""


def acts() -> st.SearchStrategy[Acts]:
    """Acts of an owner."""
    return st.lists(
        st.one_of(
            st.tuples(st.just("fold"), st.sampled_from([1, 2, 8, 30])),
            st.tuples(st.just("close"), st.just(0)),
            st.tuples(st.just("write"), st.sampled_from([1, 2, 5, 10**6])),
            st.tuples(st.just("row"), st.just(0)),
        ),
        max_size=40,
    )


@dataclass
class Rules:
    """The rules of a successor. A canary breaks one."""

    overlap_ms: int = OVERLAP_MS
    reader: type[LogReader] = LogReader
    place_of: Callable[[Recovery], int | None] = lambda recovery: recovery.place


@dataclass
class Owner:
    """The evaluator's state of a partition, from its takeover to its end. What it has not written
    then is lost.
    """

    log: Log
    settings: Settings
    goal_files: str = "1"
    version: str = "test"
    rules: Rules = field(default_factory=Rules)

    def __post_init__(self) -> None:
        log, settings = self.log, self.settings
        goals = ChosenGoals(settings.goals_of(self.goal_files), settings.rules)
        self.evaluator = settings.evaluator(goals)
        self.outlet = Outlet(0, KafkaSettings().topic)
        self.partition = Partition(
            self.outlet,
            self.evaluator,
            _INSTRUMENTS,
            self.version,
        )
        self.partition._reader = self.rules.reader()
        recovery = self._recovery()
        recovery = recovery._replace(place=self.rules.place_of(recovery))
        self.is_cut = recovery.is_cut
        self.partition.start(recovery)
        while self.partition.is_recovering:
            assert self.fold(), "the log ends before the place"
        log.lives.append((self.partition.next_offset, self.goal_files))

    def _recovery(self) -> Recovery:
        """What the takeover reads of `scores`."""
        log, owners, calls = self.log, Owners(), PublishedCalls()
        for each in log.scores:
            owners.read_record(each)
        row = owners.row
        since_ms = 0 if row is None else row.first_known_ms - self.rules.overlap_ms
        for each in log.scores:
            if each.timestamp >= since_ms:
                calls.read_record(each)
        return _recovery(TopicPartition("events", 0), row, log.first, len(log.records), calls)

    def fold(self) -> bool:
        """Folds the next record of the log; returns whether there is one."""
        record = self.log.record_at(self.partition.next_offset)
        if record is not None:
            self.partition.fold(record, 0)
        return record is not None

    def write(self, most: int = 10**6) -> None:
        """One transaction with the next decisions."""
        decisions = self.partition.outbox.first()[:most]
        if not decisions:
            return
        log = self.log
        for each in outgoing(self.outlet, decisions):
            if each.topic == SCORES_TOPIC:
                log.scores.append(
                    Published(
                        each.topic,
                        len(log.scores),
                        self.partition._reader.known_ms,
                        each.key,
                        each.value,
                        each.headers or (),
                    )
                )
            if each.value is not None:
                log.published.append(each)
        self.outlet.outbox.written(decisions)
        for request in (
            record
            for each in decisions
            for record in each.records
            if isinstance(record, JudgeRequest)
        ):
            log.answers(request)

    def live(self, acts: Acts) -> None:
        """Reads the log, and writes some of what it decides."""
        for what, number in acts:
            if what == "fold":
                for _ in range(number):
                    self.fold()
            elif what == "close":
                self.partition.close_some()
            elif what == "write":
                self.write(number)
            else:
                self.partition.write_row(is_last=True)

    def to_the_end(self) -> None:
        """Reads everything, lets every call end, and writes everything."""
        for _ in range(100_000):
            if self.fold():
                continue
            self.partition.close_some()
            self.write()
            if (
                not self.partition.outbox.is_filled
                and self.log.record_at(self.partition.next_offset) is None
            ):
                if not self.evaluator.open_calls:
                    self.partition.write_row(is_last=True)
                    self.write()
                    return
                if not self.evaluator.closing_calls:
                    wakeup_ms = some(self.evaluator.next_wakeup())
                    self.log.tick(wakeup_ms)
        raise AssertionError("calls do not end")


def outgoing(outlet: Outlet, decisions: Sequence[Decision]) -> list[Outgoing]:
    """The records of a transaction, also the rows that others of it replace: which these are
    depends on what it has.
    """
    with mock.patch.object(
        decided_module, "newest", lambda some: [record for each in some for record in each.records]
    ):
        return outlet.records_of(decisions, "writer")


def undisturbed(log: Log, settings: Settings) -> list[Outgoing]:
    """What one owner publishes that folds the log once. Its goal files are those of the owner that
    decided there.
    """
    goals = ChosenGoals(None, settings.rules)
    outlet = Outlet(0, KafkaSettings().topic)
    partition = Partition(outlet, settings.evaluator(goals), _INSTRUMENTS)
    partition.start(Recovery(None, 0, 0))
    lives = deque(log.lives)
    published: list[Outgoing] = []
    for record in log.records:
        while lives and lives[0][0] <= record.offset:
            goals.source = settings.goals_of(lives.popleft()[1])
        partition.fold(record, 0)
        partition.close_some()
    while partition.closing_calls:
        partition.close_some()
    while decisions := partition.outbox.first():
        published += [each for each in outgoing(outlet, decisions) if each.value is not None]
        outlet.outbox.written(decisions)
    return published


def by_call(published: Iterable[Outgoing]) -> dict[tuple[bytes, bool], list[tuple[str, Any]]]:
    """All that is published of each call, in order: topic and bytes. Refused records are by
    themselves: a call closes whenever there is time for it.
    """
    calls: dict[tuple[bytes, bool], list[tuple[str, Any]]] = {}
    for each in published:
        calls.setdefault((each.key, each.topic == QUARANTINE_TOPIC), []).append(
            (each.topic, each.value)
        )
    return calls
