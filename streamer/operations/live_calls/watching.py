"""Reads `scores` as it grows, for a table of the running calls. It uses no consumer group, so it disturbs no other reader."""

import asyncio
from typing import Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from pydantic import ValidationError

from consumers.runtime.kafka.connection import KafkaSettings, partition_counts
from schemas.scores.records import SCORE_RECORD
from schemas.topics import SCORES_TOPIC
from streamer.cluster.onlooker import CLOCK_MARGIN_MS, POLL_MS, STALL_SECONDS, onlooker
from streamer.roles.demo_view.calls import CallTable
from streamer.roles.demo_view.news import News
from streamer.roles.demo_view.totals import Totals

MAX_RECORDS_PER_POLL: Final = 500


class WatchedCalls:
    """The calls with a record since a moment, as far as `scores` was read.

    Attributes:
        table: The calls.
        totals: Totals of these calls.
        news: The newest lines of note.
        unreadable: Records of another program or of a newer version.
        caught_up: Set when the records that were there at the start are read.
    """

    def __init__(self, since_ms: int) -> None:
        """Starts with no call.

        Args:
            since_ms: Records with an earlier cause are left out.
        """
        self.table = CallTable()
        self.totals = Totals()
        self.news = News()
        self.unreadable = 0
        self.caught_up = asyncio.Event()
        self._since_ms = since_ms

    def take(self, value: bytes) -> None:
        """Takes in the value of one record."""
        try:
            record = SCORE_RECORD.validate_json(value)
        except ValidationError:
            self.unreadable += 1
            return
        if record.caused_at_ms >= self._since_ms:
            self.table.fold(record)
            self.totals.fold(record)
            self.news.fold(record)

    async def read(self, kafka: KafkaSettings) -> None:
        """Reads until cancelled.

        Raises:
            KafkaUnreachableError: No broker answers, it refuses, or it delivers nothing although there are more records.
            TopicsUnfitError: The topic does not exist.
        """
        counts = await partition_counts(kafka, [SCORES_TOPIC])
        partitions = [TopicPartition(kafka.topic(SCORES_TOPIC), number) for number in range(counts[SCORES_TOPIC])]
        async with onlooker(kafka, "top", auto_offset_reset="earliest") as consumer:
            consumer.assign(partitions)
            behind = await self._go_back(consumer, partitions)
            clock = asyncio.get_running_loop().time
            patience = clock() + STALL_SECONDS
            while True:
                batches = await consumer.getmany(timeout_ms=POLL_MS, max_records=MAX_RECORDS_PER_POLL)
                for records in batches.values():
                    for record in records:
                        if isinstance(record.value, bytes):
                            self.take(record.value)
                if self.caught_up.is_set():
                    continue
                # By position, not by record: a transaction's marker has an offset and is no record.
                behind = {tp: end for tp, end in behind.items() if await consumer.position(tp) < end}
                if not behind:
                    self.caught_up.set()
                elif batches:
                    patience = clock() + STALL_SECONDS
                elif clock() > patience:
                    raise TimeoutError(f"nothing more of {SCORES_TOPIC} for {STALL_SECONDS:.0f} s")

    async def _go_back(self, consumer: AIOKafkaConsumer, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Moves each partition to its first record of the time; returns the present ends."""
        ends: dict[TopicPartition, int] = await consumer.end_offsets(partitions)
        earliest_ms = max(0, self._since_ms - CLOCK_MARGIN_MS)
        found = await consumer.offsets_for_times(dict.fromkeys(partitions, earliest_ms))
        for tp, at in found.items():
            consumer.seek(tp, at.offset if at else ends[tp])
        return ends
