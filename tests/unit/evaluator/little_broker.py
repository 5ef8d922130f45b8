"""A broker in memory, with transactions, for takeovers without a broker; and owners of its
partition 0, one after the other.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import ProducerFenced
from prometheus_client import CollectorRegistry

from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.goals.progress import ChosenGoals
from consumers.evaluator.decisions import Outlet
from consumers.evaluator.partition import Partition
from consumers.evaluator.settings import EvaluatorSettings
from consumers.evaluator.takeover import Takeover
from consumers.evaluator.version import version_of
from consumers.evaluator.writer import Writer
from consumers.runtime.kafka.connection import KafkaSettings
from consumers.runtime.registry import Instruments
from schemas.closed_sets import InputSource
from schemas.goals.goal_set import ChoosesGoals
from schemas.rows import Row, decode
from schemas.topics import EVENTS_TOPIC
from tests.support.fakes.broker_records import BrokerRecord as Record
from tests.support.fakes.evaluator_fakes import NOW_MS
from tests.support.fakes.log_writer import LogWriter


class LittleBroker:
    """Logs of partitions. The end of a transaction takes an offset, as it does at Kafka.

    `journal` lists what was asked for, in order.
    """

    def __init__(self) -> None:
        self.logs: defaultdict[TopicPartition, list[Record]] = defaultdict(list)
        self.ends: Counter[TopicPartition] = Counter()
        self.firsts: Counter[TopicPartition] = Counter()
        self.journal: list[str] = []
        self.now_ms = NOW_MS
        self.sequencer = LogWriter()
        self.open: dict[str, list[tuple[TopicPartition, Record]]] = {}
        self.epochs: Counter[str] = Counter()
        self.consumer = LittleConsumer
        self.kafka = self._kafka()

    def _kafka(self) -> KafkaSettings:
        broker = self

        class Kafka(KafkaSettings):
            def consumer(self, role: str, *topics: str, **options: Any) -> Any:  # as the real one
                return broker.consumer(broker)

            def producer(
                self,
                role: str,
                transactional_id: str | None = None,
                transaction_timeout_ms: int = 0,
            ) -> Any:
                return LittleProducer(broker, transactional_id)

        return Kafka()

    def made(
        self, tp: TopicPartition, value: bytes | None, key: bytes | None = None, headers: Any = ()
    ) -> Record:
        """A record with the next offset, which nobody sees yet."""
        record = Record(
            tp.topic, self.ends[tp], self.now_ms, key, value, tp.partition, tuple(headers or ())
        )
        self.ends[tp] += 1
        return record

    def put(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = b"c-1",
        headers: Any = (),
        number: int = 0,
    ) -> Record:
        """A record of another producer."""
        tp = TopicPartition(topic, number)
        self.logs[tp].append(self.made(tp, value, key, headers))
        return self.logs[tp][-1]

    def event(
        self, source: InputSource | str, key: str, value: bytes, time_ms: int | None = None
    ) -> Record:
        """The sequencer appends an event to partition 0 of the log."""
        return self._append(
            self.sequencer.event(source, key, value, self.now_ms if time_ms is None else time_ms)
        )

    def tick(self) -> Record:
        """The sequencer appends a tick: all is known up to now."""
        return self._append(self.sequencer.tick(self.now_ms))

    def _append(self, made: Record) -> Record:
        return self.put(EVENTS_TOPIC, made.value, made.key, made.headers)

    def delete_before(self, topic: str, offset: int, number: int = 0) -> None:
        tp = TopicPartition(topic, number)
        self.firsts[tp] = offset
        self.logs[tp] = [record for record in self.logs[tp] if record.offset >= offset]

    def make_anew(self, topic: str, number: int = 0) -> None:
        tp = TopicPartition(topic, number)
        self.logs[tp], self.firsts[tp], self.ends[tp] = [], 0, 0

    def values(self, topic: str, number: int = 0) -> list[bytes]:
        return [
            record.value
            for record in self.logs[TopicPartition(topic, number)]
            if record.value is not None
        ]

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
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None,
        partition: int | None,
        headers: Any = None,
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
        if (
            self._id is not None
            and self._txn_manager.producer_epoch != self._broker.epochs[self._id]
        ):
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

    async def getmany(
        self, *tps: TopicPartition, timeout_ms: int = 0, max_records: int = 0
    ) -> dict[TopicPartition, list[Record]]:
        del timeout_ms, max_records
        return {tp: records for tp in tps if (records := self.take(tp, 2))}

    def take(self, tp: TopicPartition, most: int) -> list[Record]:
        """Some records from the position on; then the position is behind them, and behind markers
        of transactions.
        """
        end = self._broker.stable_end(tp)
        unread = [each for each in self._broker.logs[tp] if self.positions[tp] <= each.offset < end]
        self.positions[tp] = unread[most].offset if most < len(unread) else end
        return unread[:most]

    async def beginning_offsets(
        self, tps: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        return {tp: self._broker.firsts[tp] for tp in tps}

    async def end_offsets(self, tps: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        self._broker.journal.append("ends")
        return {tp: self._broker.stable_end(tp) for tp in tps}

    async def offsets_for_times(
        self, times_ms: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, Record | None]:
        return {
            tp: next(
                (record for record in self._broker.logs[tp] if record.timestamp >= time_ms), None
            )
            for tp, time_ms in times_ms.items()
        }


class Owner:
    """An owner of a partition: takes over, reads and writes, each when the test says so. It may end
    anywhere.
    """

    def __init__(
        self,
        broker: LittleBroker,
        settings: EvaluatorSettings | None = None,
        goals: ChoosesGoals | None = None,
        number: int = 0,
    ) -> None:
        self.broker = broker
        self.number = number
        self.log = TopicPartition(EVENTS_TOPIC, number)
        self.registry = CollectorRegistry()
        settings = settings or EvaluatorSettings(group_id="g", closed_overlap_ms=0)
        instruments = self.instruments = Instruments(self.registry, ["evaluator"])
        self.evaluator = PartitionEvaluator(
            settings.limits,
            settings.code_version,
            ChosenGoals(goals, settings.goals),
            writes_transcripts=settings.writes_transcripts,
        )
        self.outlet = Outlet(number, broker.kafka.topic)
        self.partition = Partition(self.outlet, self.evaluator, instruments, version_of(settings))
        self.writer = Writer(broker.kafka, settings, instruments, self.outlet.outbox)
        self.takeover = Takeover(broker.kafka, settings)
        self.consumer = LittleConsumer(broker)

    async def take_over(self) -> None:
        await self.writer.start()
        await self.takeover.take_over([self.partition], self.consumer, self.writer.id)
        self.consumer.positions = {self.log: self.partition.next_offset}

    def read(self, most: int = 1_000) -> None:
        """A poll with so many records."""
        for record in self.consumer.take(self.log, most):
            self.partition.fold(record, NOW_MS)

    def close(self) -> None:
        """Calls that are over close."""
        while self.partition.closing_calls:
            self.partition.close_some()

    async def write(self, transactions: int = 1_000) -> None:
        """Some transactions."""
        outbox = self.partition.outbox
        for _ in range(transactions):
            if not (decisions := outbox.first()):
                return
            await self.writer._write(decisions)
            outbox.written(decisions)

    async def to_the_end(self) -> None:
        """Reads everything, lets every call end, and writes everything."""
        self.read()
        self.close()
        while (wakeup_ms := self.evaluator.next_wakeup()) is not None:
            self.broker.now_ms = max(self.broker.now_ms + 1, wakeup_ms)
            self.broker.tick()
            self.read()
            self.close()
        assert not self.partition.is_recovering
        assert not self.partition.evaluator.open_calls, "calls do not end"
        await self.write()

    def counted(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"callgauge_{name}_total", labels)


def published(broker: LittleBroker) -> dict[str, list[Row]]:
    """By call: its rows in `scores`, in order."""
    written: dict[str, list[Row]] = {}
    for value in broker.values("scores"):
        row = decode(value)
        written.setdefault(row.conversation_id, []).append(row)
    return written
