"""The exporter role: reads `scores` and counts. All it decides is in the projection; this is the wiring.

What it has counted is gone with the process, so what a restart does to the sums over all processes is decided by the
position it commits, which is always that after the last record it counted:

- A graceful stop commits when counting is over: the next process begins with the first record that was not counted.
- A crash leaves the last regular commit, at most COMMIT_INTERVAL_SECONDS and the time of one commit old. What was counted
  since is counted again by the next process; nothing is skipped. Seen in ten kills with -9 at 2,000 records/s: 0 to
  1,080 records counted again. The next process begins when the dead one's session is over, 10 s later at most.
- A process that was frozen for longer than the session timeout may count what it had fetched beside its successor.
- What Prometheus had not scraped when a process ended, it never sees: at most one scrape interval's records.

A new group begins at the end of `scores` and commits that at once, so that its first restart does not skip either.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Final

import structlog
from aiokafka import TopicPartition
from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.errors import KafkaError
from aiokafka.structs import OffsetAndMetadata
from faststream import AckPolicy
from pydantic import ValidationError

from consumers.exporter.active_calls import ActiveCalls
from consumers.exporter.projection import Counted, UncountableRecordError, exemplar_of, project
from consumers.exporter.settings import ExporterSettings
from consumers.runtime.clock import wall_clock_ms
from consumers.runtime.kafka.connection import KafkaSettings, partition_counts
from consumers.runtime.logs import about_record
from consumers.runtime.polling.subscription import Subscription
from consumers.runtime.registry import Instruments
from consumers.runtime.stopping import first_of
from schemas.scores.all_records import SCORE_RECORD
from schemas.scores.record import SCHEMA_VERSION, schema_version_in
from schemas.topics import SCORES_TOPIC
from schemas.undecodable import UndecodableRecord

COMMIT_INTERVAL_SECONDS: Final = 1.0
"""How often the position is committed: what a crash makes the next process count again. A commit costs 0.1 ms."""
COMMIT_SECONDS: Final = 5.0
"""How long a commit may take before it is given up until the next one: so no tick waits for the broker for ever."""
HAND_OVER_SECONDS: Final = 0.8
"""How long the last commit may take when partitions are taken from us or we stop; without it they are counted again."""
MAX_SILENT_SECONDS: Final = 30.0
"""Ticks are COMMIT_INTERVAL_SECONDS and at most COMMIT_SECONDS apart; after this long without one something hangs."""
MAX_REFUSED_LINES: Final = 10
"""Log lines about refused records of one poll; the others are told by their number."""

log = structlog.get_logger()


class Exporter(ConsumerRebalanceListener):  # type: ignore[misc]  # the library has no type hints
    """Turns score records into metrics until it is told to stop.

    Counting waits for nothing, and the client hands over records with no wait after it has moved on: so at every moment
    when something else can run, `_next` is what was counted, no less and no more.
    """

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
        self._records = 0
        self._refused_lines = 0
        self._next: dict[TopicPartition, int] = {}  # the offset after the last counted record, where we are to count
        self._committed: dict[TopicPartition, int] = {}
        self._committing = asyncio.Lock()  # an older position must not be committed after a newer one
        self._assigned = asyncio.Event()
        self._is_leaving = False  # once true, what is polled is our successor's
        self._ticked_at = 0.0
        self._subscription = Subscription(
            kafka,
            "exporter",
            [SCORES_TOPIC],
            self._take,
            group_id=settings.group_id,
            max_records=settings.max_batch_records,
            ack_policy=AckPolicy.MANUAL,
            listener=self,
            options={"auto_offset_reset": "latest"},
            instruments=instruments,
        )
        instruments.before_scrape(self._forget_silent)
        instruments.read_gauge("callgauge_calls_active", self._active.by_who)
        instruments.read_gauge("callgauge_calls_with_goals_active", self._active.progress.calls)
        instruments.read_gauge("callgauge_progress_active", self._active.progress.progress)
        instruments.read_gauge("callgauge_subgoals_active", self._active.progress.subgoals)

    async def run(self, stop: asyncio.Event) -> None:
        """Counts until `stop` is set, then commits and leaves.

        `ready` is set when every record written from then on will be counted, by this process or the next one.

        Raises:
            KafkaUnreachableError: No broker answers.
            TopicsUnfitError: There is no topic `scores`.
            Exception: Whatever counting failed on: the process should end, a supervisor starts it again.
        """
        try:
            await first_of(stop.wait(), self._subscription.failure(), self._read())
        finally:
            self.ready.clear()
            self._is_leaving = True
            await self._commit(HAND_OVER_SECONDS)
            await self._subscription.stop()
            log.info("exporter_stopped", records=self._records)

    def problems(self) -> Sequence[str]:
        """Why nothing is counted now, for `/readyz`."""
        if not self.ready.is_set():
            return ("exporter: not reading scores; it waits for the broker and its share of the partitions",)
        if not self._assigned.is_set():
            return ("exporter: its group shares out the partitions of scores anew",)
        return ()

    def stalled(self) -> Sequence[str]:
        """What only a restart mends, for `/healthz`: ticks that have stopped although nothing they wait for may last."""
        silent_seconds = time.monotonic() - self._ticked_at
        if self.ready.is_set() and silent_seconds > MAX_SILENT_SECONDS:
            return (f"exporter: no tick for {silent_seconds:.0f} s",)
        return self._subscription.stalled()

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        """Commits what was counted, for their next owner. Counters live and die with the process."""
        self._assigned.clear()
        await self._commit(HAND_OVER_SECONDS)
        self._next.clear()
        self._committed.clear()

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        """Keeps the running calls of the partitions that are still ours."""
        self._active.keep_only({partition.partition for partition in assigned})
        self._assigned.set()

    async def _read(self) -> bool:
        """Starts, then lets time pass; the records come by themselves."""
        await partition_counts(self._kafka, [SCORES_TOPIC])  # a missing topic is told before the client waits for it
        await self._subscription.start()
        await self._assigned.wait()
        try:
            await self._find_place()
        except KafkaError as error:
            raise self._kafka.unreachable(error) from error
        await self._commit(COMMIT_SECONDS)
        log.info("exporter_ready", partitions=len(self._next))
        self._ticked_at = time.monotonic()
        self.ready.set()
        while True:
            await asyncio.sleep(COMMIT_INTERVAL_SECONDS)
            await self._commit(COMMIT_SECONDS)
            self._ticked_at = time.monotonic()

    async def _find_place(self) -> None:
        """Learns where reading begins in partitions of which nothing was counted yet.

        In a group that never committed that is the end as it was now, and it must not move with a restart.
        """
        consumer = self._subscription.consumer
        for partition in consumer.assignment() - self._next.keys():
            position = await consumer.position(partition)
            self._next.setdefault(partition, position)  # records of it may have come meanwhile

    async def _commit(self, deadline_seconds: float) -> None:
        """Commits what was counted so far; what cannot be committed in time is told and left for the next time."""
        try:
            async with asyncio.timeout(deadline_seconds), self._committing:
                if self._assigned.is_set() and not self._is_leaving:
                    await self._find_place()
                if not self._next:
                    return
                consumer = self._subscription.consumer
                offsets = {
                    partition: self._next[partition]
                    for partition in consumer.assignment() & self._next.keys()
                    if self._committed.get(partition) != self._next[partition]
                }
                if offsets:
                    await consumer.commit({partition: OffsetAndMetadata(to, "") for partition, to in offsets.items()})
                    self._committed.update(offsets)
        except (KafkaError, TimeoutError) as error:
            log.warning("commit_failed", role="exporter", error=str(error) or type(error).__name__)

    async def _take(self, records: Sequence[Any]) -> None:
        if self._is_leaving:
            return
        now_ms = wall_clock_ms()
        self._refused_lines = 0
        for record in records:
            if isinstance(record, UndecodableRecord):
                self._refuse(record, str(record))
            elif record.value is not None:  # else it marks a change of owner
                self._count(record, now_ms)
            self._next[TopicPartition(record.topic, record.partition)] = record.offset + 1
        self._records += len(records)
        if self._refused_lines > MAX_REFUSED_LINES:
            log.warning("more_scores_refused", records=self._refused_lines - MAX_REFUSED_LINES)

    def _count(self, record: Any, now_ms: int) -> None:
        instruments = self._instruments
        try:
            score = SCORE_RECORD.validate_json(record.value)
            samples = list(project(score, now_ms, self._active.progress_of(score.conversation_id)))
        except (ValidationError, UncountableRecordError) as error:
            self._refuse(record, _why(record.value, error))
            return
        exemplar = exemplar_of(score)
        for sample in samples:
            if isinstance(sample, Counted):
                instruments.inc(sample.metric, sample.labels, sample.by, exemplar if sample.by else None)
            else:
                instruments.observe(sample.metric, sample.labels, sample.value, exemplar)
        self._count_forgotten(self._active.take(score, record.partition, now_ms))

    def _refuse(self, record: Any, reason: str) -> None:
        self._instruments.inc("callgauge_scores_refused_total")
        self._refused_lines += 1
        if self._refused_lines <= MAX_REFUSED_LINES:
            log.warning("score_refused", **about_record(record), reason=reason)

    def _forget_silent(self) -> None:
        self._count_forgotten(self._active.forget_silent(wall_clock_ms()))

    def _count_forgotten(self, calls: int) -> None:
        if calls:
            self._instruments.inc("callgauge_calls_forgotten_total", (), calls)


def _why(value: bytes, error: ValueError) -> str:
    """Why a record is not counted; of an older version's it is known, and nobody has to look."""
    version = schema_version_in(value)
    if version is not None and version < SCHEMA_VERSION:
        return (
            f"it is of schema version {version}, of which only what version {SCHEMA_VERSION} has too is counted; expected "
            "until all evaluators are new, see deploy/upgrades.md"
        )
    return str(error).partition("\n")[0]
