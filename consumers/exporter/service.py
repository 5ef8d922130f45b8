"""The exporter role: reads the rows of `scores` and counts what is new in them. The projection
decides what to count; this module connects it to Kafka.

Counters are lost with their process. So the committed position, always the one after the last
counted record, decides the effect of a restart on the sums over all processes:

- A graceful stop commits after counting: the next process begins with the first record that was not
  counted.
- After a crash, the last commit is at most COMMIT_INTERVAL_SECONDS and the time of one commit old.
  The next process counts the records since then again, and skips none: 0 to 1,080 records in ten
  kills with -9 at 2,000 records/s. It begins when the session of the dead process is over, at most
  10 s later.
- A process that was frozen for longer than the session timeout may count its fetched records in
  addition to its successor.
- Prometheus never sees the counts between its last scrape and the end of a process: at most those
  of one scrape interval.

A new group begins at the end of `scores` and commits that position immediately, so that its first
restart skips nothing either.

Gauges take the newest row of each running call, and every one of them is said again once a minute.
So whoever gets a partition reads it from two minutes back: rows in front of the position only show
which calls run.
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

from consumers.exporter.counting import RowCounts
from consumers.exporter.settings import ExporterSettings
from consumers.runtime.kafka.connection import KafkaSettings, partition_counts
from consumers.runtime.kafka.polling import COMMIT_SECONDS, GroupReader
from consumers.runtime.process import first_of, wall_clock_ms
from consumers.runtime.received import Batch, Unreadable
from consumers.runtime.registry import Instruments
from schemas.rows import Row, decode
from schemas.topics import SCORES_TOPIC
from schemas.units import MINUTE_MS

COMMIT_INTERVAL_SECONDS: Final = 1.0
"""Time between commits: a crash makes the next process count this time again. A commit costs 0.1
ms.
"""
HAND_OVER_SECONDS: Final = 0.8
"""How long the last commit may take when partitions are revoked or the role stops. Without it,
records are counted again.
"""
MAX_SILENT_SECONDS: Final = 30.0
"""Time without a tick after which the role counts as stuck. Ticks are at most the interval of
commits and the time of one apart.
"""
LOOK_BACK_MS: Final = 2 * MINUTE_MS
"""How far in front of the present the running calls are looked for: a running call writes its row
once a minute.
"""

log = structlog.get_logger()


class Exporter(ConsumerRebalanceListener):  # type: ignore[misc]  # the library has no type hints
    """Turns rows into metrics until it is stopped.

    Counting never waits, and the client hands over records without a wait after moving its
    position. So whenever another task runs, `_next` is exactly the position after the counted
    records. A record in front of it has counted, here or elsewhere.
    """

    def __init__(
        self, kafka: KafkaSettings, settings: ExporterSettings, instruments: Instruments
    ) -> None:
        self.ready = asyncio.Event()
        self._kafka = kafka
        self._instruments = instruments
        self._counts = RowCounts(settings, instruments)
        self._records = 0
        # the offset after the last counted record, where we are to count
        self._next: dict[TopicPartition, int] = {}
        self._committed: dict[TopicPartition, int] = {}
        # whose running calls are known, or are being read
        self._looked_back: set[TopicPartition] = set()
        # an older position must not be committed after a newer one
        self._committing = asyncio.Lock()
        self._assigned = asyncio.Event()
        self._is_leaving = False  # once true, polled records are our successor's
        self._ticked_at = 0.0
        self.reader = GroupReader(
            kafka,
            "exporter",
            SCORES_TOPIC,
            self.handle,
            # the columns are in docs/tables.md: FastStream cannot show a struct
            message=dict[str, Any],
            decode=decode,
            group_id=settings.group_id,
            max_records=settings.max_batch_records,
            begins="latest",
            listener=self,
            instruments=instruments,
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Counts until `stop` is set, then commits and leaves.

        `ready` is set when every record written from then on will be counted, by this process or
        the next one.

        Raises:
            KafkaUnreachableError: No broker answers.
            TopicsUnfitError: There is no topic `scores`.
            Exception: Counting failed. The process should end, and its supervisor start it again.
        """
        try:
            await first_of(stop.wait(), self.reader.failure(), self._read())
        finally:
            self.ready.clear()
            self._is_leaving = True
            await self._commit(HAND_OVER_SECONDS)
            await self.reader.stop()
            await self._counts.close()
            log.info("exporter_stopped", records=self._records)

    def problems(self) -> Sequence[str]:
        """Why nothing is counted now, for `/readyz`."""
        if not self.ready.is_set():
            return (
                "exporter: not reading scores; it waits for the broker and its share of the "
                "partitions",
            )
        if not self._assigned.is_set():
            return ("exporter: its group reassigns the partitions of scores",)
        return ()

    def stalled(self) -> Sequence[str]:
        """Reasons why only a restart helps, for `/healthz`: ticks have stopped, although all their
        waits are bounded.
        """
        silent_seconds = time.monotonic() - self._ticked_at
        if self.ready.is_set() and silent_seconds > MAX_SILENT_SECONDS:
            return (f"exporter: no tick for {silent_seconds:.0f} s",)
        return self.reader.stalled()

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        """Commits the counted position for the next owner. The counters stay in this process."""
        self._assigned.clear()
        await self._commit(HAND_OVER_SECONDS)
        self._next.clear()
        self._committed.clear()

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        """Keeps the running calls of the partitions that are still ours."""
        self._looked_back &= assigned
        self._counts.open.keep_only({partition.partition for partition in assigned})
        self._assigned.set()

    async def _read(self) -> bool:
        """Starts the reader, which counts records by itself, then commits at each tick."""
        await partition_counts(
            self._kafka, [SCORES_TOPIC]
        )  # reports a missing topic, for which the client would only wait
        await self.reader.start()
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
        """Asks for the start position of partitions without a counted record, and looks back from
        there.

        In a group without a commit, that is the present end, which a restart must not move.
        """
        consumer = self.reader.consumer
        for partition in consumer.assignment() - self._next.keys():
            position = await consumer.position(partition)
            self._next.setdefault(partition, position)  # records of it may have come meanwhile
        for partition in consumer.assignment() - self._looked_back:
            since_ms = wall_clock_ms() - LOOK_BACK_MS
            found = (await consumer.offsets_for_times({partition: since_ms}))[partition]
            position = self._next.get(partition)
            if position is None or partition not in consumer.assignment():
                continue  # taken away meanwhile
            self._looked_back.add(partition)
            if found is not None and found.offset < position:
                consumer.seek(partition, found.offset)

    async def _commit(self, deadline_seconds: float) -> None:
        """Commits the counted positions. If that fails or takes too long, logs it; the next tick
        tries again.
        """
        try:
            async with asyncio.timeout(deadline_seconds), self._committing:
                if self._assigned.is_set() and not self._is_leaving:
                    await self._find_place()
                if not self._next:
                    return
                consumer = self.reader.consumer
                offsets = {
                    partition: self._next[partition]
                    for partition in consumer.assignment() & self._next.keys()
                    if self._committed.get(partition) != self._next[partition]
                }
                if offsets:
                    places = {
                        partition: OffsetAndMetadata(to, "") for partition, to in offsets.items()
                    }
                    if await self.reader.commit(places, deadline_seconds):
                        self._committed.update(offsets)
        except (KafkaError, TimeoutError) as error:
            log.warning("commit_failed", role="exporter", error=str(error) or type(error).__name__)

    async def handle(self, batch: Batch[Row]) -> None:
        """Counts what is new in rows."""
        if self._is_leaving:
            return
        now_ms = wall_clock_ms()
        for place, row in batch:
            partition = TopicPartition(place.topic, place.partition)
            has_counted = place.offset < self._next.get(partition, 0)
            if isinstance(row, Unreadable):
                if not has_counted:
                    self._counts.refusals.refuse(place, row.reason)
            elif row is not None:  # without a value, it says how far an evaluator has come
                self._counts.count_row(place, row, now_ms, has_counted=has_counted)
            self._next[partition] = max(place.offset + 1, self._next.get(partition, 0))
            self._records += not has_counted
        self._counts.refusals.end_batch()
