"""The exporter role: reads `scores` and counts. All it decides is in the projection; this is the wiring."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Final

import structlog
from aiokafka import TopicPartition
from aiokafka.abc import ConsumerRebalanceListener
from faststream import AckPolicy
from pydantic import ValidationError

from consumers.exporter.active_calls import ActiveCalls
from consumers.exporter.projection import Counted, UncountableRecordError, exemplar_of, project
from consumers.exporter.settings import ExporterSettings
from consumers.runtime.kafka import KafkaSettings, partition_counts
from consumers.runtime.registry import Instruments
from consumers.runtime.stopping import first_of
from consumers.runtime.subscription import Subscription
from schemas.scores import SCORE_RECORD
from schemas.topics import SCORES_TOPIC

COMMIT_INTERVAL_MS: Final = 1_000
"""Positions are committed as time passes, not with each record: what a crash forgets to count would have been lost with
the process's counters anyway."""

log = structlog.get_logger()


class Exporter(ConsumerRebalanceListener):  # type: ignore[misc]  # the library has no type hints
    """Turns score records into metrics until it is told to stop."""

    def __init__(self, kafka: KafkaSettings, settings: ExporterSettings, instruments: Instruments) -> None:
        """Wires the role; nothing is connected before `run`.

        Args:
            kafka: Where the broker is.
            settings: Group and bounds.
            instruments: Built for the role `exporter`, perhaps among others.
        """
        self.ready = asyncio.Event()
        self._kafka = kafka
        self._instruments = instruments
        self._active = ActiveCalls(settings.max_active_calls, settings.forget_after_ms)
        self._subscription = Subscription(
            kafka,
            "exporter",
            [SCORES_TOPIC],
            self._take,
            group_id=settings.group_id,
            max_records=settings.max_batch_records,
            ack_policy=AckPolicy.ACK_FIRST,
            listener=self,
            options={"auto_offset_reset": "latest", "auto_commit_interval_ms": COMMIT_INTERVAL_MS},
        )
        instruments.before_scrape(self._forget_silent)
        instruments.read_gauge("callgauge_calls_active", self._active.by_who)

    async def run(self, stop: asyncio.Event) -> None:
        """Counts until `stop` is set. `ready` is set when every record written from then on will be counted.

        Raises:
            KafkaUnreachableError: No broker answers.
            TopicsUnfitError: There is no topic `scores`.
            Exception: Whatever counting failed on: the process should end, a supervisor starts it again.
        """
        try:
            await first_of(stop.wait(), self._subscription.failure(), self._read())
        finally:
            self.ready.clear()
            await self._subscription.stop()

    def problems(self) -> Sequence[str]:
        """What is wrong now, for `/healthz`."""
        return () if self.ready.is_set() else ("exporter: not reading scores",)

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        """Nothing to save: counters live and die with the process."""

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        """Keeps the running calls of the partitions that are still ours."""
        self._active.keep_only({partition.partition for partition in assigned})

    async def _read(self) -> bool:
        await partition_counts(self._kafka, [SCORES_TOPIC])  # a missing topic is told before the client waits for it
        await self._subscription.start()
        consumer = self._subscription.consumer
        for partition in consumer.assignment():
            await consumer.position(partition)  # until then a new group does not know where the end was
        log.info("exporter_ready", partitions=len(consumer.assignment()))
        self.ready.set()
        return await asyncio.Event().wait()  # records are counted as they come, until somebody stops this

    async def _take(self, records: Sequence[Any]) -> None:
        now_ms = time.time_ns() // 1_000_000
        for record in records:
            self._count(record, now_ms)

    def _count(self, record: Any, now_ms: int) -> None:
        instruments = self._instruments
        try:
            score = SCORE_RECORD.validate_json(record.value or b"")
            samples = list(project(score, now_ms))
        except (ValidationError, UncountableRecordError) as error:
            instruments.inc("callgauge_scores_refused_total")
            log.warning(
                "score_refused", topic=record.topic, partition=record.partition, offset=record.offset,
                reason=str(error).partition("\n")[0],
            )  # fmt: skip
            return
        exemplar = exemplar_of(score)
        for sample in samples:
            if isinstance(sample, Counted):
                instruments.inc(sample.metric, sample.labels, sample.by, exemplar if sample.by else None)
            else:
                instruments.observe(sample.metric, sample.labels, sample.value, exemplar)
        self._count_forgotten(self._active.take(score, record.partition, now_ms))

    def _forget_silent(self) -> None:
        self._count_forgotten(self._active.forget_silent(time.time_ns() // 1_000_000))

    def _count_forgotten(self, calls: int) -> None:
        if calls:
            self._instruments.inc("callgauge_calls_forgotten_total", (), calls)
