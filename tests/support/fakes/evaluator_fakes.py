"""The surroundings of the evaluator in its unit tests: records, a made-up engine, client, writer and takeover."""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pytest
from aiokafka import TopicPartition
from aiokafka.structs import OffsetAndMetadata
from prometheus_client import CollectorRegistry

from consumers.engine.admission import Arrival
from consumers.engine.effects import Count, Effect, OpenCall, PublishScore
from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.limits import Limits
from consumers.evaluator import service
from consumers.evaluator.group import Member
from consumers.evaluator.partition import Partition
from consumers.evaluator.recovery import OrderLog, OrderStarts, PlacedStart
from consumers.evaluator.service import Evaluator
from consumers.evaluator.settings import EvaluatorSettings
from consumers.evaluator.writer import Bell, Decision, Outbox, Outlet, Written
from consumers.runtime.kafka.broker_clock import BrokerClock, Reading
from consumers.runtime.kafka.connection import KafkaSettings
from consumers.runtime.kafka.polling import Commits
from consumers.runtime.registry import Instruments
from schemas.closed_sets import InputSource, JudgeKind
from schemas.goals.goal_set import GoalSet
from schemas.judging import JudgeRequest
from schemas.order import (
    Closed,
    Evicted,
    Fold,
    GoalsChosen,
    OrderEncoder,
    OrderStart,
    Positions,
    Renumbered,
    Step,
    TimePassed,
    order_value,
)
from schemas.quarantine import QuarantineRecord
from schemas.scores.records import CallStartedFact, GoalsFact, TurnStatus
from schemas.topics import INPUT_TOPICS, ORDER_TOPIC, OWNER_MARK_KEY, SOURCE_BY_TOPIC

NOW_MS = 1_790_000_000_000
PIPECAT, AUDIT = "pipecat.events", "audit.events"


pause = asyncio.sleep  # the tested object may have another


async def until_idle() -> None:
    """Lets every task run until it waits for something outside."""
    for _ in range(20):
        await pause(0)


class Record(NamedTuple):
    """A record as aiokafka hands it over."""

    topic: str
    offset: int
    timestamp: int = NOW_MS
    key: bytes | None = b"c-1"
    value: bytes | None = b'{"type": "call_ended", "timestamp": 1790000000000}'
    partition: int = 0
    headers: Sequence[tuple[str, bytes]] = ()
    timestamp_type: int = 0  # a producer's time


class Clocks:
    """Two clocks of a machine, which go and are set as a test says."""

    def __init__(self, wall_ms: int = NOW_MS, steady_ms: int = NOW_MS) -> None:
        self.wall_ms = wall_ms
        self.steady_ms = steady_ms

    def __call__(self) -> Reading:
        return Reading(self.wall_ms, self.steady_ms)

    def go(self, by_ms: int) -> None:
        self.wall_ms += by_ms
        self.steady_ms += by_ms


def trusted_clock(clocks: Clocks | None = None) -> BrokerClock:
    """A clock that needs no record to be believed."""
    clock = BrokerClock(Instruments(CollectorRegistry(), ["evaluator"]), clocks or Clocks())
    clock._is_trusted = True
    return clock


class StubEvaluator(PartitionEvaluator):
    """Returns the effects it was given and keeps the arguments of its calls."""

    open_calls: Sequence[str] = ("c-1",)
    closing_calls = 0
    replayed_elements = 0

    def __init__(self, effects: Sequence[Effect] = ()) -> None:
        super().__init__(Limits(), "1")
        self.arrivals: list[Arrival] = []
        self.again: list[tuple[str, int, OpenCall | None]] = []
        self.advanced_to_ms: list[int] = []
        self.knows_of_time = False
        self.wakeup_ms: int | None = None
        self.watermarks: dict[InputSource, int] = {}
        self.closed: list[str] = []
        self.renumbered: list[Renumbered] = []
        self.counts: list[Count] = []
        self._effects = effects

    def receive(self, arrival: Arrival) -> Sequence[Effect]:
        self.arrivals.append(arrival)
        return self._effects

    def receive_again(self, arrival: Arrival, opening: OpenCall | None) -> Sequence[Effect]:
        self.again.append((arrival.conversation_id, arrival.offset, opening))
        return self._effects

    def has_closed(self, conversation_id: str) -> None:
        self.closed.append(conversation_id)

    def renumber(self, conversation_id: str, least_revision: int, *, counts: bool = True) -> None:
        self.renumbered.append(Renumbered(conversation_id, least_revision, counts))

    def pass_time(self, now_ms: int) -> Sequence[Effect]:
        if now_ms == 0:  # reading begins: it is not known yet how far time has come
            self.knows_of_time = True
            return ()
        self.advanced_to_ms.append(now_ms)
        return self._effects

    def close_some(self) -> Sequence[Effect]:
        self.closing_calls = max(0, self.closing_calls - 1)
        return ()

    def next_wakeup(self) -> int | None:
        return self.wakeup_ms

    def low_watermarks(self) -> dict[InputSource, int]:
        return self.watermarks

    def drain_counts(self) -> list[Count]:
        counts, self.counts = self.counts, []
        return counts


def fact(conversation_id: str) -> CallStartedFact:
    return CallStartedFact(
        conversation_id=conversation_id, revision=1, status=TurnStatus.OPEN, input_hash="0", offsets={},
        event_time_ms=None, caused_at_ms=0, labels={}, code_version="1",
    )  # fmt: skip


def goal_set(details: str = "Said.") -> GoalSet:
    says = {"kind": "says", "speaker": "user", "pattern": "hello"}
    return GoalSet.model_validate({"id": "goals", "subgoals": [{"id": "said", "details": details, "check": says}]})


def goals_fact(conversation_id: str, chosen: GoalSet) -> GoalsFact:
    return GoalsFact(**dict(fact(conversation_id)) | {"name": "goals", "goal_set": chosen, "digest": chosen.digest})


def question(conversation_id: str) -> JudgeRequest:
    return JudgeRequest(
        conversation_id=conversation_id, kind=JudgeKind.SUBGOAL, turn=1, subgoal_id="s", subgoal="Done.", transcript=(),
        prompt_version="1", asked_at_ms=0, deadline_ms=1,
    )  # fmt: skip


class WrittenOrder:
    """The order of a partition, as its owners wrote it."""

    def __init__(self, first_offset: int = 0) -> None:
        self.records: list[Record] = []
        self.steps: list[OrderStart | Step] = []
        self._end = first_offset
        self._encoder = OrderEncoder({}, 0)
        self._start: OrderStart | None = None

    def owner(self, version: str = "test", positions: Positions | None = None, time_ms: int | None = None) -> None:
        """The next record begins with a start: of another owner, or of the same."""
        before = self._encoder
        time_ms = before.time_ms if time_ms is None else time_ms
        self._encoder = OrderEncoder(before.positions if positions is None else positions, time_ms)
        self._start = OrderStart(version=version, positions=dict(self._encoder.positions), time_ms=time_ms)

    def write(self, *steps: Step, at_ms: int = NOW_MS) -> Record:
        """A record with these steps."""
        self.steps += steps if self._start is None else [self._start, *steps]
        for step in steps:
            match step:
                case Fold():
                    self._encoder.fold(*step)
                case TimePassed(now_ms):
                    self._encoder.pass_time(now_ms)
                case Evicted(conversation_id):
                    self._encoder.evict(conversation_id)
                case Closed(conversation_id):
                    self._encoder.close(conversation_id)
                case GoalsChosen():
                    self._encoder.choose_goals(*step)
                case Renumbered():
                    self._encoder.renumber(step)
        headers = [] if self._start is None else [self._start.header()]
        self._start = None
        value = order_value(self._encoder.take())
        record = Record(ORDER_TOPIC, self._end, at_ms, key=None, value=value, headers=headers)
        self._end += 1
        self.records.append(record)
        return record

    def mark(self) -> None:
        """A new owner, which has fenced off the one before."""
        self.records.append(Record(ORDER_TOPIC, self._end, key=OWNER_MARK_KEY, value=None))
        self._end += 1

    def read(self) -> OrderLog:
        """What a successor reads."""
        log = OrderLog()
        for record in self.records:
            log.take(record)
        return log


FROM_THE_BEGINNING = dict.fromkeys(INPUT_TOPICS, 0)


def partition_of(
    evaluator: PartitionEvaluator, number: int = 0, offsets: Mapping[str, int] = FROM_THE_BEGINNING, **recovery: Any
) -> tuple[Partition, CollectorRegistry]:
    """A partition that has been taken over, perhaps with something to recover."""
    registry = CollectorRegistry()
    partition = Partition(outlet_of(number), evaluator, Limits(), SOURCE_BY_TOPIC, Instruments(registry, ["evaluator"]))
    partition.start(offsets, **recovery)
    return partition, registry


def order_starts() -> OrderStarts:
    """The starts in an order in which nothing stands yet."""
    return OrderStarts([PlacedStart(0, {}, 0)], 0)


def outlet_of(number: int = 0) -> Outlet:
    """The way out of a partition that has been taken over with nothing in its order."""
    there = Outlet(number, KafkaSettings(), EvaluatorSettings())
    there.starts = order_starts()
    return there


def decision(*records: Written, steps: bytes = b"", version: str = "test") -> Decision:
    """What one step decided."""
    return Decision(records, steps, version, {}, 0)


def waiting_in(outbox: Outbox) -> list[list[str]]:
    """The waiting records, decision by decision: conversations, and the reasons of refused records."""
    return [
        [record.reason if isinstance(record, QuarantineRecord) else record.conversation_id for record in each.records]
        for each in outbox.first()
    ]


START = 4
"""Where a partition that is taken over begins in every input."""
MAX_UNWRITTEN = 3


def inputs_of(*numbers: int) -> set[TopicPartition]:
    return {TopicPartition(topic, number) for topic in INPUT_TOPICS for number in numbers}


class FakeConsumer:
    """The client: knows its assignment, and the calls of its methods."""

    def __init__(self, journal: list[str]) -> None:
        self.journal = journal
        self.assigned: set[TopicPartition] = set()
        self.paused: set[TopicPartition] = set()
        self.positions: dict[TopicPartition, int] = {}
        self.answered_at_ms = NOW_MS
        self.error: Exception | None = None
        self.noted: dict[TopicPartition, OffsetAndMetadata] = {}

    def assignment(self) -> set[TopicPartition]:
        return self.assigned

    def partitions_for_topic(self, _: str) -> set[int]:
        return {0}

    def highwater(self, tp: TopicPartition) -> int:
        assert tp in self.assigned
        return 0

    def last_stable_offset(self, tp: TopicPartition) -> int:
        return 0

    def last_poll_timestamp(self, tp: TopicPartition) -> int:
        return self.answered_at_ms

    async def position(self, tp: TopicPartition) -> int:
        return self.positions[tp]

    def seek(self, tp: TopicPartition, offset: int) -> None:
        assert tp in self.assigned
        self.positions[tp] = offset

    def pause(self, *partitions: TopicPartition) -> None:
        self.paused |= set(partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        for tp in partitions:
            assert self.positions[tp] == START, "it is read from somewhere else"
        self.paused -= set(partitions)

    async def commit(self, offsets: dict[TopicPartition, OffsetAndMetadata]) -> None:
        self.journal += sorted(f"commit {tp.topic}[{tp.partition}]@{to.offset}" for tp, to in offsets.items())
        if self.error is not None:
            raise self.error
        self.noted |= offsets


class FakeSubscription:
    """A member of the group; `generation` is the number of its latest rebalance."""

    def __init__(self, journal: list[str]) -> None:
        self.consumer = FakeConsumer(journal)
        self.generation = 0
        self.member_id = "ev-1-a"
        self.failures: list[Exception] = []
        self.stopped = False
        self.stalls: Sequence[str] = ()
        self._failed = asyncio.Event()

    def fail(self, error: Exception) -> None:
        self.failures.append(error)
        self._failed.set()

    async def failure(self) -> bool:
        await self._failed.wait()
        raise self.failures[0]

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], seconds: float) -> bool:
        return await Commits(None).commit(self.consumer, offsets, seconds)

    def stalled(self) -> Sequence[str]:
        return self.stalls

    async def start(self) -> None: ...

    async def stop(self) -> None:
        self.stopped = True


class FakeWriter:
    """Writes a decision of each partition at a time, when the gate is open."""

    def __init__(self, shell: "Shell") -> None:
        self.id = f"writer-{len(shell.writers)}"
        self.writing_since: float | None = None
        self.error: Exception | None = None
        self.runs = False
        self.stopped = False
        self.ignores_cancels = False
        self.may_end = asyncio.Event()
        self.numbers: list[int] = []
        self._shell = shell
        self._bell = Bell()
        self._outlets: list[Outlet] = []

    def add(self, outlet: Outlet) -> None:
        self.numbers.append(outlet.number)
        self._outlets.append(outlet)
        outlet.outbox.wakes(self._bell)

    async def start(self) -> None: ...

    async def until_idle(self) -> None:
        if self.writing_since is not None:
            await asyncio.Event().wait()

    async def run(self) -> None:
        self.runs = True
        try:
            while True:
                await self._bell.filled.wait()
                decided = {outlet: first for outlet in self._outlets for first in outlet.outbox.first()[:1]}
                if decided:
                    self.writing_since = 0.0
                    await self._shell.may_write.wait()
                    if self.error is not None:
                        raise self.error
                    for outlet, first in decided.items():
                        for record in first.records:
                            what = record.reason if isinstance(record, QuarantineRecord) else record.conversation_id
                            self._shell.journal.append(f"write {what} to {outlet.number}")
                        outlet.outbox.written(1)
                    self.writing_since = None
                self._bell.settle(outlet.outbox for outlet in self._outlets)
        finally:
            while self.ignores_cancels and not self.may_end.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await self.may_end.wait()
            self.runs = False

    async def stop(self, deadline_seconds: float) -> None:
        assert deadline_seconds > 0
        self.stopped = True


class FakeTakeover:
    """Makes partitions ours when the gate is open."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.begun = 0
        self.kept: list[int] = []
        self.stopped = False
        self.error: Exception | None = None

    async def start(self) -> None: ...

    async def stop(self) -> None:
        self.stopped = True

    async def keep(self, owned: Sequence[Partition], writer_id: str) -> None:
        self.kept = [each.number for each in owned]
        for each in owned:
            each.writer_id = writer_id

    async def take(self, owned: Sequence[Partition], _: Any, writer_id: str) -> None:
        self.begun += 1
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        for each in owned:
            each.writer_id = writer_id
            each.outlet.starts = order_starts()
            each.start(dict.fromkeys(INPUT_TOPICS, START))


class Shell:
    """An evaluator with fakes around it; `journal` has its writes and commits, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        self.journal: list[str] = []
        self.evaluators: list[StubEvaluator] = []
        self.writers: list[FakeWriter] = []
        self.may_write = asyncio.Event()
        self.may_write.set()
        monkeypatch.setattr(service, "PartitionEvaluator", self._evaluator)
        monkeypatch.setattr(service, "Writer", self._writer)
        self.found: dict[str, Any] | None = None  # what Kafka says of the topics; None while it does not answer
        self.asked_about_topics = 0
        self.registry = CollectorRegistry()
        instruments = Instruments(self.registry, ["evaluator"])
        evaluator = EvaluatorSettings(**({"max_unwritten_records": MAX_UNWRITTEN, "tick_ms": 1} | settings))
        self.role = Evaluator(KafkaSettings(), evaluator, instruments)
        self.clocks = Clocks()
        self.clock = trusted_clock(self.clocks)
        self.role._assignment._clock = self.clock
        self.subscription = FakeSubscription(self.journal)
        self.consumer = self.subscription.consumer
        self.takeover = FakeTakeover()
        monkeypatch.setattr(self.role, "_subscription", self.subscription)
        monkeypatch.setattr(self.role, "_takeover", self.takeover)
        monkeypatch.setattr(self.role._topic_watch, "partitions", self._partitions)
        self.members: list[Member] = []
        monkeypatch.setattr(self.role._group, "_members", self._members)

    def _evaluator(self, *_: Any, **__: Any) -> StubEvaluator:
        self.evaluators.append(StubEvaluator([PublishScore(fact("c-1"))]))
        return self.evaluators[-1]

    def _writer(self, *_: Any) -> FakeWriter:
        self.writers.append(FakeWriter(self))
        return self.writers[-1]

    async def _members(self) -> Sequence[Member]:
        return list(self.members)

    async def _partitions(self) -> dict[str, Any] | None:
        self.asked_about_topics += 1
        return self.found

    async def assigned(self, *numbers: int, generations: int = 1) -> None:
        """The second half of a rebalance. A new assignment knows neither positions nor pauses of the one before."""
        self.subscription.generation += generations
        self.consumer.assigned = inputs_of(*numbers)
        self.consumer.paused = set()
        self.consumer.positions = {}
        await self.role.on_partitions_assigned(set(self.consumer.assigned))
        await until_idle()

    async def broker_answers(self) -> None:
        """The broker has said twice that nothing is outstanding; its answer before the second time is known."""
        await self.role._assignment.look(self.consumer)
        self.consumer.answered_at_ms += 100

    async def revoked(self) -> None:
        """The first half."""
        await self.role.on_partitions_revoked(set(self.consumer.assigned))

    async def rebalanced(self, *numbers: int, generations: int = 1) -> None:
        await self.revoked()
        await self.assigned(*numbers, generations=generations)

    def polled(self, *offsets: int, number: int = 0) -> "asyncio.Task[None]":
        records = [Record(PIPECAT, offset, partition=number) for offset in offsets]
        return asyncio.create_task(self.role._take(records))

    async def folds(self, *offsets: int, number: int = 0) -> None:
        await self.polled(*offsets, number=number)
        await until_idle()

    @property
    def folded(self) -> list[list[int]]:
        """Offsets folded, by evaluator in the order in which they were made."""
        return [[arrival.offset for arrival in evaluator.arrivals] for evaluator in self.evaluators]

    @property
    def commits(self) -> list[str]:
        return [line for line in self.journal if line.startswith(f"commit {PIPECAT}")]
