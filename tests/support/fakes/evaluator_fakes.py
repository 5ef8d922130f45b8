"""The surroundings of the evaluator in its unit tests: records, a made-up engine, client, writer and takeover."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import pytest
from aiokafka import TopicPartition
from aiokafka.structs import OffsetAndMetadata
from prometheus_client import CollectorRegistry

from consumers.engine.effects import CloseCall, Count, Effect, PublishScore
from consumers.engine.intake.admission import Arrival
from consumers.engine.limits import Limits
from consumers.engine.redaction.redactor import Redactor
from consumers.engine.state_bytes import TakesBytes
from consumers.evaluator import service, topic_watch
from consumers.evaluator.partition.owned_partition import OwnedPartition
from consumers.evaluator.partition.partition import InputStart, Partition
from consumers.evaluator.reading.broker_clock import BrokerClock, Reading
from consumers.evaluator.service import Evaluator
from consumers.evaluator.settings import EvaluatorSettings
from consumers.evaluator.writing.outbox import Outbox
from consumers.runtime.kafka.connection import KafkaSettings
from consumers.runtime.polling.commits import Commits
from consumers.runtime.registry import Instruments
from schemas.closed_sets import InputSource
from schemas.judging import JudgeKind, JudgeRequest
from schemas.ledger_record import LedgerRecord
from schemas.quarantine import QuarantineRecord
from schemas.scores.all_records import CallStartedFact, TurnStatus
from schemas.topics import INPUT_TOPICS, SOURCE_BY_TOPIC

NOW_MS = 1_790_000_000_000
PIPECAT, AUDIT = "pipecat.events", "audit.events"


pause = asyncio.sleep  # the tested object may have another


async def until_idle() -> None:
    """Lets every task run until it waits for something outside."""
    for _ in range(10):
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


class StubEvaluator:
    """Returns the effects it was given and keeps the arguments of its calls."""

    def __init__(self, effects: Sequence[Effect] = ()) -> None:
        self.open_calls = 1
        self.closing_calls = 0
        self.replayed_elements = 0
        self.starts: Mapping[InputSource, int] = {}
        self.recalled: list[LedgerRecord] = []
        self.arrivals: list[Arrival] = []
        self.advanced_to_ms: list[int] = []
        self.knows_of_time = False
        self.wakeup_ms: int | None = None
        self.watermarks: Mapping[InputSource, int] = {}
        self.unfinished: list[str] = []
        self.counts: list[Count] = []
        self.redactor = Redactor()
        self.heaviest: tuple[int, int, str] | None = None
        self.cuts: list[tuple[str, bool]] = []
        self._effects = effects

    def reading_starts_at(self, offsets: Mapping[InputSource, int]) -> None:
        self.starts = dict(offsets)

    def heaviest_call(self) -> tuple[int, int, str] | None:
        return self.heaviest

    def cut(self, conversation_id: str, *, is_scored: bool) -> Sequence[Effect]:
        self.cuts.append((conversation_id, is_scored))
        return [CloseCall(conversation_id, (fact(conversation_id),))]

    def write_snapshot(self, into: TakesBytes) -> None:
        into.write(b"state")

    def recall(self, record: LedgerRecord) -> None:
        self.recalled.append(record)

    def receive(self, arrival: Arrival) -> Sequence[Effect]:
        self.arrivals.append(arrival)
        return self._effects

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

    def low_watermarks(self) -> Mapping[InputSource, int]:
        return self.watermarks

    def unfinished_calls(self) -> Sequence[str]:
        return self.unfinished

    def drain_counts(self) -> Sequence[Count]:
        counts, self.counts = self.counts, []
        return counts


def fact(conversation_id: str) -> CallStartedFact:
    return CallStartedFact(
        conversation_id=conversation_id, revision=1, status=TurnStatus.OPEN, input_hash="0", offsets={},
        event_time_ms=None, caused_at_ms=0, labels={}, code_version="1",
    )  # fmt: skip


def question(conversation_id: str) -> JudgeRequest:
    return JudgeRequest(
        conversation_id=conversation_id, kind=JudgeKind.SUBGOAL, turn=1, subgoal_id="s", subgoal="Done.", transcript=(),
        prompt_version="1", asked_at_ms=0, deadline_ms=1,
    )  # fmt: skip


FROM_THE_BEGINNING = dict.fromkeys(INPUT_TOPICS, InputStart(0, 0))


def partition_of(
    evaluator: StubEvaluator, number: int = 0, starts: Mapping[str, InputStart] = FROM_THE_BEGINNING
) -> tuple[Partition, CollectorRegistry]:
    """A partition that has been taken over."""
    registry = CollectorRegistry()
    partition = Partition(number, evaluator, Limits(), SOURCE_BY_TOPIC, Instruments(registry, ["evaluator"]))
    partition.start(starts)
    return partition, registry


class StubWriter:
    """Says how far it has written, and writes nothing."""

    def __init__(self) -> None:
        self.scores_end: int | None = None
        self.writing_since: float | None = None


def owned_of(partition: Partition) -> OwnedPartition:
    writer: Any = StubWriter()
    return OwnedPartition(partition, writer)


def waiting_in(outbox: Outbox) -> list[list[str]]:
    """The waiting records, group by group: conversations, and the reasons of refused records."""
    return [
        [record.reason if isinstance(record, QuarantineRecord) else record.conversation_id for record in group]
        for group in outbox.first()
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
    """Writes a group at a time, when the gate is open."""

    def __init__(self, shell: "Shell", number: int, outbox: Outbox) -> None:
        self.scores_end: int | None = None
        self.writing_since: float | None = None
        self.number = number
        self.error: Exception | None = None
        self.may_write = asyncio.Event()
        self.may_write.set()
        self.runs = False
        self.stopped = False
        self._shell = shell
        self._outbox = outbox

    async def run(self) -> None:
        self.runs = True
        try:
            while True:
                await self._outbox.until_filled()
                (group, *_) = self._outbox.first()
                await self._shell.may_write.wait()
                await self.may_write.wait()
                if self.error is not None:
                    raise self.error
                for record in group:
                    what = record.reason if isinstance(record, QuarantineRecord) else record.conversation_id
                    self._shell.journal.append(f"write {what} to {self.number}")
                self._outbox.written(1)
        finally:
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
        self.takeovers = 0
        self.stopped = False
        self.error: Exception | None = None
        self.given_away: Sequence[int] = ()

    async def start(self) -> None: ...

    async def stop(self) -> None:
        self.stopped = True

    async def likely_given_away(self, ours: Collection[int], _: Any) -> Sequence[int]:
        return [number for number in self.given_away if number in ours]

    async def take(self, owned: Sequence[OwnedPartition], _: Any) -> None:
        self.begun += 1
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        for each in owned:
            starts = dict.fromkeys(INPUT_TOPICS, InputStart(START, 0))
            ends = dict.fromkeys(INPUT_TOPICS, START)
            each.began(starts, ends, 0, 0, now_ms=NOW_MS, overlap_ms=0, takeovers=self.takeovers)


class Shell:
    """An evaluator with fakes around it; `journal` has its writes and commits, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        self.journal: list[str] = []
        self.evaluators: list[StubEvaluator] = []
        self.writers: list[FakeWriter] = []
        self.may_write = asyncio.Event()
        self.may_write.set()
        monkeypatch.setattr(service, "PartitionEvaluator", self._evaluator)
        monkeypatch.setattr(service, "PartitionWriter", self._writer)
        self.misfit: Exception | None = None
        self.asked_about_topics = 0
        monkeypatch.setattr(topic_watch, "misfit_now", self._misfit)
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

    def _evaluator(self, *_: Any, **__: Any) -> StubEvaluator:
        self.evaluators.append(StubEvaluator([PublishScore(fact("c-1"))]))
        return self.evaluators[-1]

    def _writer(self, number: int, outbox: Outbox, *_: Any) -> FakeWriter:
        self.writers.append(FakeWriter(self, number, outbox))
        return self.writers[-1]

    async def _misfit(self, *_: Any) -> Exception | None:
        self.asked_about_topics += 1
        return self.misfit

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
