"""A broker in memory, with transactions, for takeovers without a broker; and owners of its partition 0, one after the other."""

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

from aiokafka import TopicPartition
from aiokafka.errors import ProducerFenced
from aiokafka.structs import OffsetAndMetadata
from prometheus_client import CollectorRegistry

from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.goals.progress import ChosenGoals
from consumers.evaluator.assignment import Assignment
from consumers.evaluator.partition import Partition
from consumers.evaluator.recovery import order_version
from consumers.evaluator.settings import EvaluatorSettings
from consumers.evaluator.takeover import Takeover
from consumers.evaluator.writer import Outlet, Writer
from consumers.runtime.kafka.connection import KafkaSettings
from consumers.runtime.registry import Instruments
from schemas.goals.goal_set import ChoosesGoals
from schemas.topics import SOURCE_BY_TOPIC
from tests.support.fakes.evaluator_fakes import NOW_MS, Record, trusted_clock


class LittleBroker:
    """Logs of partitions and the offsets of a group. The end of a transaction takes an offset, as it does at Kafka.

    `journal` lists what was asked for, in order.
    """

    def __init__(self) -> None:
        self.logs: defaultdict[TopicPartition, list[Record]] = defaultdict(list)
        self.ends: Counter[TopicPartition] = Counter()
        self.firsts: Counter[TopicPartition] = Counter()
        self.committed: dict[TopicPartition, OffsetAndMetadata] = {}
        self.journal: list[str] = []
        self.now_ms = NOW_MS
        self.open: dict[str, list[tuple[TopicPartition, Record]]] = {}
        self.epochs: Counter[str] = Counter()
        self.consumer = LittleConsumer
        self.kafka = self._kafka(is_embedded=False)

    def _kafka(self, *, is_embedded: bool) -> KafkaSettings:
        broker = self

        class Kafka(KafkaSettings):
            def consumer(self, role: str, *topics: str, **options: Any) -> Any:  # as the real one
                return broker.consumer(broker)

            def producer(self, role: str, transactional_id: str | None = None, transaction_timeout_ms: int = 0) -> Any:
                return LittleProducer(broker, transactional_id)

            def admin(self, role: str) -> Any:
                return LittleAdmin(broker)

        return Kafka(is_embedded=is_embedded)

    def made(self, tp: TopicPartition, value: bytes | None, key: bytes | None = None, headers: Any = ()) -> Record:
        """A record with the next offset, which nobody sees yet."""
        record = Record(tp.topic, self.ends[tp], self.now_ms, key, value, tp.partition, tuple(headers or ()))
        self.ends[tp] += 1
        return record

    def put(
        self, topic: str, value: bytes | None, key: bytes | None = b"c-1", headers: Any = (), number: int = 0
    ) -> Record:
        """A record of another producer."""
        tp = TopicPartition(topic, number)
        self.logs[tp].append(self.made(tp, value, key, headers))
        return self.logs[tp][-1]

    def delete_before(self, topic: str, offset: int, number: int = 0) -> None:
        tp = TopicPartition(topic, number)
        self.firsts[tp] = offset
        self.logs[tp] = [record for record in self.logs[tp] if record.offset >= offset]

    def make_anew(self, topic: str, number: int = 0) -> None:
        tp = TopicPartition(topic, number)
        self.logs[tp], self.firsts[tp], self.ends[tp] = [], 0, 0

    def values(self, topic: str, number: int = 0) -> list[bytes]:
        return [record.value for record in self.logs[TopicPartition(topic, number)] if record.value is not None]

    def stable_end(self, tp: TopicPartition) -> int:
        hidden = [record.offset for sent in self.open.values() for at, record in sent if at == tp]
        return min(hidden, default=self.ends[tp])

    def end_transaction(self, transactional_id: str, *, is_committed: bool) -> None:
        sent = self.open.pop(transactional_id, [])
        for tp, record in sent if is_committed else ():
            self.logs[tp].append(record)
        for tp in {tp for tp, _ in sent}:
            self.ends[tp] += 1


class LittleProducer:
    def __init__(self, broker: LittleBroker, transactional_id: str | None) -> None:
        self._broker = broker
        self._id = transactional_id
        self._txn_manager = SimpleNamespace(producer_id=1, producer_epoch=-1)

    async def start(self) -> None:
        if self._id is not None:
            self._broker.end_transaction(self._id, is_committed=False)
            self._broker.epochs[self._id] += 1
            self._txn_manager.producer_epoch = self._broker.epochs[self._id]

    async def stop(self) -> None: ...

    async def begin_transaction(self) -> None: ...

    async def send(
        self, topic: str, value: bytes | None, *, key: bytes | None, partition: int | None, headers: Any = None
    ) -> "asyncio.Future[Any]":
        broker, tp = self._broker, TopicPartition(topic, partition or 0)
        self._require_ours()
        record = broker.made(tp, value, key, headers)
        if value is None:
            broker.journal.append(f"mark {tp.topic}[{tp.partition}]")
        if self._id is None:
            broker.logs[tp].append(record)
        else:
            broker.open.setdefault(self._id, []).append((tp, record))
        sent: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        sent.set_result(record)
        return sent

    async def commit_transaction(self) -> None:
        self._require_ours()
        self._broker.end_transaction(str(self._id), is_committed=True)

    async def abort_transaction(self) -> None:
        self._broker.end_transaction(str(self._id), is_committed=False)

    def _require_ours(self) -> None:
        if self._id is not None and self._txn_manager.producer_epoch != self._broker.epochs[self._id]:
            raise ProducerFenced


class LittleConsumer:
    """Hands committed records over, two of each partition at a time."""

    def __init__(self, broker: LittleBroker) -> None:
        self.positions: dict[TopicPartition, int] = {}
        self._broker = broker

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def assign(self, tps: Sequence[TopicPartition]) -> None: ...

    def seek(self, tp: TopicPartition, offset: int) -> None:
        self.positions[tp] = offset
        self._broker.journal.append(f"read {tp.topic}[{tp.partition}] from {offset}")

    async def position(self, tp: TopicPartition) -> int:
        return self.positions[tp]

    async def getmany(self, *tps: TopicPartition, timeout_ms: int = 0) -> dict[TopicPartition, list[Record]]:
        del timeout_ms
        return {tp: records for tp in tps if (records := self.take(tp, 2))}

    def take(self, tp: TopicPartition, most: int) -> list[Record]:
        """Some records from the position on; then the position is behind them, and behind markers of transactions."""
        end = self._broker.stable_end(tp)
        unread = [each for each in self._broker.logs[tp] if self.positions[tp] <= each.offset < end]
        self.positions[tp] = unread[most].offset if most < len(unread) else end
        return unread[:most]

    async def beginning_offsets(self, tps: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return {tp: self._broker.firsts[tp] for tp in tps}

    async def end_offsets(self, tps: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        self._broker.journal.append("ends")
        return {tp: self._broker.stable_end(tp) for tp in tps}

    async def offsets_for_times(self, times_ms: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, Record | None]:
        return {
            tp: next((record for record in self._broker.logs[tp] if record.timestamp >= time_ms), None)
            for tp, time_ms in times_ms.items()
        }


class LittleAdmin:
    def __init__(self, broker: LittleBroker) -> None:
        self._broker = broker

    async def start(self) -> None: ...

    async def close(self) -> None:
        self._broker.journal.append("disconnect")

    async def list_consumer_group_offsets(
        self, group_id: str, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        self._broker.journal.append(f"committed by {group_id}")
        return {tp: self._broker.committed[tp] for tp in partitions if tp in self._broker.committed}


class Known(NamedTuple):
    """How far the inputs are known: all of them, and as far as records may be folded in order."""

    all_ms: int | None
    until_ms: int | None


class _Assignment(Assignment):
    """Is told how far the inputs are known."""

    known = Known(None, None)

    def known_ms(self, number: int) -> int | None:
        del number
        return self.known.all_ms

    def _until_ms(self, number: int) -> int | None:
        del number
        return self.known.until_ms


class Owner:
    """An owner of a partition: takes over, reads, writes and commits, each when the test says so. It may end anywhere."""

    def __init__(
        self,
        broker: LittleBroker,
        settings: EvaluatorSettings | None = None,
        goals: ChoosesGoals | None = None,
        number: int = 0,
    ) -> None:
        self.broker = broker
        self.number = number
        self.inputs = [TopicPartition(topic, number) for topic in SOURCE_BY_TOPIC]
        self.registry = CollectorRegistry()
        settings = settings or EvaluatorSettings(group_id="g", closed_overlap_ms=0)
        instruments = self.instruments = Instruments(self.registry, ["evaluator"])
        chosen, version = ChosenGoals(goals, settings.goals), order_version(settings)
        self.evaluator = PartitionEvaluator(
            settings.limits, settings.code_version, chosen, writes_transcripts=settings.writes_transcripts
        )
        self.outlet = Outlet(number, broker.kafka, settings)
        self.partition = Partition(
            self.outlet, self.evaluator, settings.limits, SOURCE_BY_TOPIC, instruments, goals=chosen, version=version
        )
        self.writer = Writer(broker.kafka, settings, instruments)
        self.takeover = Takeover(broker.kafka, settings, instruments, SOURCE_BY_TOPIC, version, goals)
        self.consumer = LittleConsumer(broker)
        self.assignment = _Assignment(SOURCE_BY_TOPIC, {}, trusted_clock())
        self.assignment.owned = {number: self.partition}

    async def take_over(self) -> None:
        await self.takeover.start()
        await self.writer.start()
        await self.takeover.take([self.partition], self.consumer, self.writer.id)
        self.consumer.positions = {tp: self.partition.next_offsets[tp.topic] for tp in self.inputs}

    def read(self, most: Mapping[str, int] | int) -> None:
        """A poll with so many records of each topic."""
        runs = []
        for tp in self.inputs:
            number = most if isinstance(most, int) else most.get(tp.topic, 0)
            if number and (run := self.consumer.take(tp, number)):
                runs.append(run)
        self.assignment.polled({self.number: runs})
        self._fold(runs)

    def tick(self) -> None:
        """Time passes, as far as the inputs are known, and calls that are over close."""
        self._fold(())
        while self.partition.closing_calls:
            self.partition.close_some()

    def _fold(self, runs: Sequence[Sequence[Record]]) -> None:
        lagging = self.lagging
        times_ms = [self.partition.last_record_ms.get(tp.topic) for tp in lagging]
        known = [time_ms for time_ms in times_ms if time_ms is not None]
        all_ms = min([*known, self.broker.now_ms]) if len(known) == len(lagging) else None
        self.assignment.known = Known(all_ms, min((each or 0 for each in times_ms), default=None))
        self.assignment.fold(self.number, runs)

    async def write(self, transactions: int = 1_000) -> None:
        """Some transactions."""
        outbox = self.partition.outbox
        for _ in range(transactions):
            if not (decisions := outbox.first()):
                return
            await self.writer._write({self.outlet: decisions})

    def commit(self) -> None:
        self.broker.committed |= self.partition.due_offsets()

    async def to_the_end(self) -> None:
        """Reads everything, lets every call end, and writes everything."""
        for _ in range(10_000):
            self.read(20)
            self.tick()
            if self.partition.is_recovering or self.partition.merge.waiting_records or self.lagging:
                continue
            if (wakeup_ms := self.evaluator.next_wakeup()) is None:
                break
            self.broker.now_ms = max(self.broker.now_ms + 1, wakeup_ms)
        assert not self.partition.open_calls, "calls do not end"
        await self.write()
        for _ in range(2):
            self.commit()

    @property
    def lagging(self) -> list[TopicPartition]:
        """Inputs with records that are not read."""
        return [tp for tp in self.inputs if self.consumer.positions[tp] < self.broker.stable_end(tp)]

    def counted(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"callgauge_{name}_total", labels)


def published(broker: LittleBroker) -> dict[str, list[dict[str, Any]]]:
    """By call: its records of `scores`, in order."""
    records: dict[str, list[dict[str, Any]]] = {}
    for value in broker.values("scores"):
        record = json.loads(value)
        records.setdefault(record["conversation_id"], []).append(record)
    return records
