"""The evaluator role: reads the four inputs, folds them in the engine, writes what it decides.

Everything that reads or changes the state of a partition runs under one lock, and broker time is read before its holder
first waits: so a poll's records, a tick and a rebalance never see each other half done. Committing is outside it: it waits
for acknowledgements of what was folded before, and folding goes on meanwhile.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import structlog
from aiokafka import TopicPartition
from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.errors import KafkaError
from aiokafka.structs import OffsetAndMetadata
from faststream import AckPolicy

from consumers.engine.partition import PartitionEvaluator
from consumers.evaluator.assignment import Assignment, NotCoPartitionedError, assigned_numbers
from consumers.evaluator.partition import Evaluates, Partition
from consumers.evaluator.record_order import runs_by_partition
from consumers.evaluator.score_writer import ScoreWriter, WriteError
from consumers.evaluator.settings import EvaluatorSettings
from consumers.runtime.collection import tune_collection
from consumers.runtime.kafka import KafkaSettings, partition_counts, require_equal_counts
from consumers.runtime.registry import Instruments
from consumers.runtime.stopping import first_of
from consumers.runtime.subscription import Subscription
from schemas.topics import INPUT_TOPICS, QUARANTINE_TOPIC, SCORES_TOPIC, SOURCE_BY_TOPIC

HAND_OVER_SECONDS: Final = 0.8
"""How long writing and committing may take when partitions are taken from us or we stop; then a successor reads again."""
MAX_SILENT_SECONDS: Final = 30.0
"""Ticks are a tenth of a second apart; after this long without one the role is not well."""

log = structlog.get_logger()


class Evaluator(ConsumerRebalanceListener):  # type: ignore[misc]  # the library has no type hints
    """Evaluates the calls of the partitions it is given until it is told to stop."""

    def __init__(self, kafka: KafkaSettings, settings: EvaluatorSettings, instruments: Instruments) -> None:
        """Wires the role; nothing is connected before `run`.

        Args:
            kafka: Where the broker is.
            settings: Group, bounds and the engine's limits.
            instruments: Built for the role `evaluator`, perhaps among others.
        """
        self.ready = asyncio.Event()
        self._kafka = kafka
        self._settings = settings
        self._instruments = instruments
        self._sources = {kafka.topic(topic): source for topic, source in SOURCE_BY_TOPIC.items()}
        self._writer = ScoreWriter(kafka, instruments, settings.max_unacknowledged)
        self._lock = asyncio.Lock()
        self._assignment = Assignment({}, ())
        self._assigned = asyncio.Event()
        self._committed: dict[TopicPartition, int] = {}
        self._ticked_at = 0.0
        self._is_leaving = False  # once true, what is polled is our successor's
        self._generation = 0  # grows when partitions are taken from us: what was polled before is not ours any more
        self._subscription = Subscription(
            kafka,
            "evaluator",
            INPUT_TOPICS,
            self._take,
            group_id=settings.group_id,
            max_records=settings.max_batch_records,
            ack_policy=AckPolicy.MANUAL,
            listener=self,
            options={
                "auto_offset_reset": "earliest",
                # The only assignor of the client that gives a member the same numbers of all topics.
                "partition_assignment_strategy": [RangePartitionAssignor],
                "group_instance_id": settings.group_instance_id,
                "session_timeout_ms": settings.session_timeout_ms,
            },
        )
        self._read_gauges(instruments)

    async def run(self, stop: asyncio.Event) -> None:
        """Evaluates until `stop` is set, then writes, commits and leaves. `ready` is set while it reads.

        Raises:
            KafkaUnreachableError: No broker answers at the start.
            TopicsUnfitError: Topics are missing, or differ in their partitions.
            Exception: Whatever folding or writing failed on: the process must end, and its successor reads again what
                was not committed.
        """
        tune_collection()
        try:
            await first_of(stop.wait(), self._subscription.failure(), self._read())
            self._is_leaving = True
            await self._hand_over()
        finally:
            self.ready.clear()
            await asyncio.gather(self._subscription.stop(), self._writer.stop(HAND_OVER_SECONDS))

    def problems(self) -> Sequence[str]:
        """What is wrong now, for `/healthz`."""
        if not self.ready.is_set():
            return ("evaluator: not reading the inputs",)
        silent_seconds = time.monotonic() - self._ticked_at
        return (f"evaluator: no tick for {silent_seconds:.0f} s",) if silent_seconds > MAX_SILENT_SECONDS else ()

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        """Writes and commits what was folded, and drops the state: its next owner replays it."""
        self._generation += 1
        self._assigned.clear()
        try:
            await self._hand_over()
        except WriteError as error:  # the client only logs what a listener raises; it must end the role
            self._subscription.fail(error)
        if self._assignment.partitions:
            log.info("partitions_revoked", partitions=sorted(self._assignment.partitions))
        self._assignment.drop()
        self._assignment = Assignment({}, ())
        self._committed.clear()

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        """Makes the state of each partition number; records wait until this is done."""
        try:
            numbers = assigned_numbers(assigned, self._sources)
        except NotCoPartitionedError as error:
            self._subscription.fail(error)
            return
        self._assignment = Assignment({number: self._new_partition(number) for number in numbers}, self._sources)
        log.info("partitions_assigned", partitions=numbers)
        self._assigned.set()

    def _new_partition(self, number: int) -> Partition:
        limits = self._settings.limits
        evaluator: Evaluates = PartitionEvaluator(limits, self._settings.code_version)
        return Partition(number, evaluator, limits, self._sources, self._instruments)

    async def _read(self) -> bool:
        """Starts, then lets time pass; the records come by themselves."""
        counts = await partition_counts(self._kafka, (*INPUT_TOPICS, SCORES_TOPIC, QUARANTINE_TOPIC))
        require_equal_counts({topic: count for topic, count in counts.items() if topic != QUARANTINE_TOPIC})
        await self._writer.start()
        await self._subscription.start()
        await self._assigned.wait()
        log.info("evaluator_ready", group=self._settings.group_id)
        committed_at = self._ticked_at = time.monotonic()
        self.ready.set()
        while True:
            await asyncio.sleep(self._settings.tick_ms / 1_000)
            await self._tick()
            self._ticked_at = time.monotonic()
            if (self._ticked_at - committed_at) * 1_000 >= self._settings.commit_interval_ms:
                await self._commit()
                committed_at = time.monotonic()

    async def _take(self, records: Sequence[Any]) -> None:
        # The client hands over records only of the assignment in force, with no wait between that and this line. It may
        # do so before its listener has been told, so they wait for their partitions; and when a rebalance overtakes them
        # while they wait, they are their next owner's to read.
        generation = self._generation
        await self._assigned.wait()
        async with self._lock:
            if generation != self._generation or self._is_leaving:
                return
            assignment = self._assignment
            for number, runs in runs_by_partition(records).items():
                assignment.partitions[number].fold(runs)
            await assignment.look(self._subscription.consumer)
            assignment.advance()
            await self._write(assignment)

    async def _tick(self) -> None:
        async with self._lock:
            assignment = self._assignment
            if assignment.partitions:
                await assignment.look(self._subscription.consumer)
                assignment.advance()
                await self._write(assignment)

    async def _write(self, assignment: Assignment) -> None:
        """Empties the outboxes, in order; the caller holds the lock."""
        for number, partition in assignment.partitions.items():
            if partition.outbox:
                await self._writer.write_scores(number, partition.outbox)
            if partition.refused:
                await self._writer.write_refused(partition.refused)

    async def _commit(self) -> None:
        """Commits what was folded so far, once what it led to is acknowledged."""
        async with self._lock:  # outside of it an outbox may be half written
            generation = self._generation
            offsets = self._assignment.offsets_to_commit()
        changed = {tp: offset for tp, offset in offsets.items() if self._committed.get(tp) != offset}
        if not changed:
            return
        await self._writer.acknowledged()
        if generation != self._generation:
            return
        try:
            await self._subscription.consumer.commit({tp: OffsetAndMetadata(o, "") for tp, o in changed.items()})
        except KafkaError as error:  # costs a longer replay, if anything; the next second brings another try
            log.warning("commit_failed", error=str(error) or type(error).__name__)
            return
        if generation == self._generation:
            self._committed.update(changed)

    async def _hand_over(self) -> None:
        """Writes and commits what was folded, before the partitions are someone else's."""
        self._count_events()
        try:
            async with asyncio.timeout(HAND_OVER_SECONDS), self._lock:
                await self._write(self._assignment)
                await self._writer.acknowledged()
                offsets = {tp: OffsetAndMetadata(o, "") for tp, o in self._assignment.offsets_to_commit().items()}
                if offsets:
                    await self._subscription.consumer.commit(offsets)
        except (KafkaError, TimeoutError) as error:
            log.warning("commit_failed", error=str(error) or type(error).__name__)

    def _read_gauges(self, instruments: Instruments) -> None:
        group_id = self._settings.group_id
        version = (self._settings.code_version,)
        readers: dict[str, Callable[[], dict[tuple[str, ...], float]]] = {
            "callgauge_calls_open": self._open_calls,
            "callgauge_consumer_lag_messages": lambda: self._assignment.lag_messages(group_id),
            "callgauge_consumer_lag_seconds": lambda: self._assignment.lag_seconds(group_id),
            "callgauge_source_last_event_timestamp_seconds": self._newest_records_seconds,
            "callgauge_build_info": lambda: {version: 1.0},
        }
        for name, reader in readers.items():
            instruments.read_gauge(name, reader)
        instruments.before_scrape(self._count_events)

    def _open_calls(self) -> dict[tuple[str, ...], float]:
        return {(): float(sum(partition.open_calls for partition in self._assignment.partitions.values()))}

    def _newest_records_seconds(self) -> dict[tuple[str, ...], float]:
        newest_ms = self._assignment.newest_records_ms()
        return {(self._sources[topic].value,): time_ms / 1_000 for topic, time_ms in newest_ms.items()}

    def _count_events(self) -> None:
        for partition in self._assignment.partitions.values():
            partition.count_events()
