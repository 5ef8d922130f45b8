"""The surroundings of the evaluator in its unit tests: records, a made-up engine, client, writer
and takeover.
"""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.structs import OffsetAndMetadata
from prometheus_client import CollectorRegistry

from consumers.engine.admission import Arrival
from consumers.engine.effects import Count, Effect, PublishRow
from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.limits import Limits
from consumers.evaluator import service
from consumers.evaluator.decisions import Outbox, Outlet
from consumers.evaluator.group import Member
from consumers.evaluator.partition import Partition, Recovery
from consumers.evaluator.service import Evaluator
from consumers.evaluator.settings import EvaluatorSettings
from consumers.runtime.kafka.connection import KafkaSettings
from consumers.runtime.registry import Instruments
from schemas.closed_sets import InputSource, JudgeKind
from schemas.goals.goal_set import GoalSet
from schemas.judging import JudgeRequest
from schemas.owners import PartitionRow
from schemas.quarantine import QuarantineRecord
from schemas.rows import CallRow, GoalsRow, Row, TurnRow
from schemas.topics import EVENTS_TOPIC
from tests.support.fakes.broker_records import BrokerRecord
from tests.support.fakes.log_writer import LogWriter

NOW_MS = 1_790_000_000_000
ENDED = b'{"type": "call_ended", "timestamp": 1790000000000}'


pause = asyncio.sleep  # the tested object may have another


async def until_idle() -> None:
    """Lets every task run until it waits for something outside."""
    for _ in range(20):
        await pause(0)


class StubEvaluator(PartitionEvaluator):
    """Returns the effects it was given and keeps the arguments of its calls."""

    open_calls: Sequence[str] = ("c-1",)
    closing_calls = 0
    replayed_elements = 0

    def __init__(self, effects: Sequence[Effect] = ()) -> None:
        super().__init__(Limits(), "1")
        self.arrivals: list[Arrival] = []
        self.advanced_to_ms: list[int] = []
        self.first: int | None = None
        self.closed: list[str] = []
        self.closes_as: int | None = None
        self.evictions: list[tuple[str, int]] = []
        self.again: Sequence[Row] = ()
        self.counts: list[Count] = []
        self._effects = effects

    def receive(self, arrival: Arrival) -> Sequence[Effect]:
        self.arrivals.append(arrival)
        return self._effects

    def evict(self, conversation_id: str, arrival: Arrival) -> None:
        self.evictions.append((conversation_id, arrival.offset))

    def has_closed(self, conversation_id: str) -> None:
        self.closed.append(conversation_id)

    def close_as(self, revision: int) -> None:
        self.closes_as = revision

    def say_again(self, conversation_id: str, revision: int) -> Iterator[Row]:
        del conversation_id, revision
        return iter(self.again)

    def pass_time(self, now_ms: int, place: int | None = None) -> Sequence[Effect]:
        del place
        self.advanced_to_ms.append(now_ms)
        # the first time tells where it begins
        return self._effects if len(self.advanced_to_ms) > 1 else ()

    def close_some(self) -> Sequence[Effect]:
        self.closing_calls = max(0, self.closing_calls - 1)
        return ()

    def low_watermark(self) -> int | None:
        return self.first

    def drain_counts(self) -> list[Count]:
        counts, self.counts = self.counts, []
        return counts


_TURNS = count()


def moment(conversation_id: str) -> TurnRow:
    """A row in which something just happened, of a turn that no other row has."""
    return TurnRow(conversation_id=conversation_id, turn=next(_TURNS), news=("wait",))


def call_row(conversation_id: str, **more: Any) -> CallRow:
    """The first row of a call."""
    first: dict[str, Any] = {"revision": 1, "news": ("started",)}
    return CallRow(conversation_id=conversation_id, **(first | more))


def goal_set(details: str = "Said.") -> GoalSet:
    says = {"kind": "says", "speaker": "user", "pattern": "hello"}
    return GoalSet.model_validate(
        {"id": "goals", "subgoals": [{"id": "said", "details": details, "check": says}]}
    )


def goals_row(conversation_id: str, chosen: GoalSet, revision: int = 1) -> GoalsRow:
    """The row with which a call gets its goals."""
    goals = chosen.model_dump(mode="json")
    return GoalsRow(
        conversation_id=conversation_id, revision=revision, digest=chosen.digest, goal_set=goals
    )


def question(conversation_id: str) -> JudgeRequest:
    return JudgeRequest(
        conversation_id=conversation_id,
        kind=JudgeKind.SUBGOAL,
        turn=1,
        subgoal_id="s",
        subgoal="Done.",
        transcript=(),
        prompt_version="1",
        asked_at_ms=0,
        deadline_ms=1,
    )


def partition_of(
    evaluator: PartitionEvaluator, number: int = 0, recovery: Recovery | None = None, **more: Any
) -> tuple[Partition, CollectorRegistry]:
    """A partition that has been taken over, perhaps with something to recover."""
    registry = CollectorRegistry()
    outlet = Outlet(number, KafkaSettings().topic)
    partition = Partition(outlet, evaluator, Instruments(registry, ["evaluator"]), **more)
    partition.start(recovery or Recovery(None, 0, 0))
    return partition, registry


def row(place: int = 0, **more: Any) -> PartitionRow:
    """A row of a partition."""
    return PartitionRow(
        **(
            {"place": place, "first": 0, "first_known_ms": 0, "known_ms": 0, "version": "test"}
            | more
        )
    )


def waiting_in(outbox: Outbox) -> list[list[str]]:
    """The waiting records, decision by decision: conversations, and the reasons of
    refused records.
    """
    return [
        [
            record.reason if isinstance(record, QuarantineRecord) else record.conversation_id
            for record in each.records
        ]
        for each in outbox.first()
    ]


START = 4
"""Where a partition that is taken over begins in the log."""
MAX_UNWRITTEN = 3


def logs_of(*numbers: int) -> set[TopicPartition]:
    return {TopicPartition(EVENTS_TOPIC, number) for number in numbers}


def ended(offset: int, number: int = 0) -> BrokerRecord:
    """An event at this offset of the log; the one before it in its input stands right before it."""
    writer = LogWriter(number)
    writer._next[InputSource.PIPECAT] = offset
    return writer.event(InputSource.PIPECAT, "c-1", ENDED, NOW_MS)._replace(offset=offset)


class FakeConsumer:
    """The client: knows its assignment, and the calls of its methods. It hands over what the test
    lets come.
    """

    def __init__(self, journal: list[str]) -> None:
        self.journal = journal
        self.assigned: set[TopicPartition] = set()
        self.pauses: set[TopicPartition] = set()
        self.positions: dict[TopicPartition, int] = {}
        self.answered_at_ms = NOW_MS
        self.end = 0
        self.error: Exception | None = None
        self.noted: dict[TopicPartition, OffsetAndMetadata] = {}
        self.stopped = False
        self.polls: list[tuple[set[int], int]] = []  # which partitions, and how long
        self.coming: list[BrokerRecord] = []
        self._coordinator = SimpleNamespace(
            generation=0, member_id="ev-1-a"
        )  # the number of the latest rebalance, and our name

    def subscribe(self, topics: Sequence[str], listener: object) -> None: ...

    async def start(self) -> None: ...

    async def stop(self) -> None:
        self.stopped = True

    async def getmany(
        self, *tps: TopicPartition, timeout_ms: int, max_records: int
    ) -> dict[TopicPartition, list[BrokerRecord]]:
        assert max_records
        self.polls.append(({tp.partition for tp in tps}, timeout_ms))
        batches: dict[TopicPartition, list[BrokerRecord]] = {}
        for each in self.coming:
            batches.setdefault(TopicPartition(EVENTS_TOPIC, each.partition), []).append(each)
        return batches

    def assignment(self) -> set[TopicPartition]:
        return self.assigned

    def highwater(self, tp: TopicPartition) -> int:
        assert tp in self.assigned
        return self.end

    def last_poll_timestamp(self, tp: TopicPartition) -> int:
        return self.answered_at_ms

    def seek(self, tp: TopicPartition, offset: int) -> None:
        assert tp in self.assigned
        self.positions[tp] = offset

    def pause(self, *partitions: TopicPartition) -> None:
        self.pauses |= set(partitions)

    def paused(self) -> set[TopicPartition]:
        return self.pauses & self.assigned

    def resume(self, *partitions: TopicPartition) -> None:
        for tp in partitions:
            assert self.positions[tp] == START, "it is read from somewhere else"
        self.pauses -= set(partitions)

    async def commit(self, offsets: dict[TopicPartition, OffsetAndMetadata]) -> None:
        self.journal += sorted(
            f"commit {tp.topic}[{tp.partition}]@{to.offset}" for tp, to in offsets.items()
        )
        if self.error is not None:
            raise self.error
        self.noted |= offsets


class FakeWriter:
    """Writes a decision at a time, when the gate is open."""

    def __init__(self, shell: "Shell", outbox: Outbox) -> None:
        self.id = f"writer-{len(shell.writers)}"
        self.writing_since: float | None = None
        self.error: Exception | None = None
        self.runs = False
        self.stopped = False
        self.ignores_cancels = False
        self.may_end = asyncio.Event()
        self._shell = shell
        self._outbox = outbox

    @property
    def numbers(self) -> list[int]:
        """The partitions that it may write."""
        return self._shell.takeover.claimed[self.id]

    async def start(self) -> None: ...

    async def run(self) -> None:
        self.runs = True
        try:
            while True:
                await self._outbox.until_due()
                first = self._outbox.first()[:1]
                self.writing_since = 0.0
                await self._shell.may_write.wait()
                if self.error is not None:
                    raise self.error
                for record in first[0].records:
                    what = (
                        record.reason
                        if isinstance(record, QuarantineRecord)
                        else record.conversation_id
                    )
                    self._shell.journal.append(f"write {what} to {first[0].outlet.number}")
                self.writing_since = None
                self._outbox.written(first)
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
        self.claimed: defaultdict[str, list[int]] = defaultdict(list)
        self.error: Exception | None = None
        self.found: dict[int, Recovery] = {}  # what is known of the former owner, by partition

    async def claim(self, numbers: Sequence[int], writer_id: str) -> dict[int, int]:
        self.kept = list(numbers)
        self.claimed[writer_id] += numbers
        return {}

    async def take_over(self, owned: Sequence[Partition], _: object, writer_id: str) -> None:
        self.begun += 1
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        for each in owned:
            each.start(self.found.get(each.number, Recovery(None, START, START)))
            self.claimed[writer_id].append(each.number)


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
        # what Kafka says of the topics; None while it does not answer
        self.found: dict[str, Any] | None = None
        self.asked_about_topics = 0
        self.registry = CollectorRegistry()
        instruments = Instruments(self.registry, ["evaluator"])
        evaluator = EvaluatorSettings(
            **(
                {"max_unwritten_records": MAX_UNWRITTEN, "tick_ms": 1, "write_interval_ms": 0}
                | settings
            )
        )
        self.role = Evaluator(KafkaSettings(), evaluator, instruments)
        self.consumer = FakeConsumer(self.journal)
        self.takeover = FakeTakeover()
        monkeypatch.setattr(self.role, "_consumer", self.consumer)
        monkeypatch.setattr(self.role, "_takeover", self.takeover)
        monkeypatch.setattr(self.role._topic_watch, "partitions", self._partitions)
        self.members: list[Member] = []
        monkeypatch.setattr(self.role._group, "_members", self._members)

    def _evaluator(self, *_: Any, **__: Any) -> StubEvaluator:
        self.evaluators.append(StubEvaluator([PublishRow(moment("c-1"))]))
        return self.evaluators[-1]

    def _writer(self, *arguments: Any) -> FakeWriter:
        self.writers.append(FakeWriter(self, arguments[-1]))
        return self.writers[-1]

    async def _members(self) -> Sequence[Member]:
        return list(self.members)

    async def _partitions(self) -> dict[str, Any] | None:
        self.asked_about_topics += 1
        return self.found

    async def assigned(self, *numbers: int, generations: int = 1) -> None:
        """The second half of a rebalance. A new assignment knows neither positions nor pauses of
        the one before.
        """
        self.consumer._coordinator.generation += generations
        self.consumer.assigned = logs_of(*numbers)
        self.consumer.pauses = set()
        self.consumer.positions = {}
        await self.role.on_partitions_assigned(set(self.consumer.assigned))
        await until_idle()

    async def revoked(self) -> None:
        """The first half."""
        await self.role.on_partitions_revoked(set(self.consumer.assigned))

    async def rebalanced(self, *numbers: int, generations: int = 1) -> None:
        await self.revoked()
        await self.assigned(*numbers, generations=generations)

    def polled(self, *offsets: int, number: int = 0) -> "asyncio.Task[None]":
        return asyncio.create_task(
            self.role._fold_records([ended(offset, number) for offset in offsets])
        )

    async def folds(self, *offsets: int, number: int = 0) -> None:
        await self.polled(*offsets, number=number)
        await until_idle()

    async def goes_round(self, *records: BrokerRecord) -> None:
        """The loop goes round once, and its poll brings these records."""
        self.consumer.coming = list(records)
        await self.role._go_round()

    @property
    def closing(self) -> list[int]:
        """Calls that are over and not closed, by evaluator."""
        return [each.closing_calls for each in self.evaluators]

    @property
    def failures(self) -> list[Exception]:
        """The error with which the role ends; none as long as it does not."""
        failure = self.role._failure
        return [failure.result()] if failure.done() else []

    @property
    def folded(self) -> list[list[int]]:
        """Offsets folded, by evaluator in the order in which they were made."""
        return [[arrival.offset for arrival in evaluator.arrivals] for evaluator in self.evaluators]

    @property
    def commits(self) -> list[str]:
        return [line for line in self.journal if line.startswith("commit")]
