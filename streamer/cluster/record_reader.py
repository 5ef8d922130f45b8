"""Reads single records again by their coordinates, in no consumer group."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition

from consumers.runtime.kafka.connection import KafkaSettings
from schemas.quarantine import UndecodableRecord
from streamer.cluster.coordinates import Coordinates
from streamer.cluster.onlooker import POLL_MS, STALL_SECONDS, onlooker
from streamer.cluster.topic_admin import topic_states

_FETCH_BYTES: Final = 65_536
"""One record is wanted, so little is fetched ahead; a larger record comes whole all the same."""


class RecordGoneError(Exception):
    """No record can be had at these coordinates; the text says why, as a sentence without a full stop."""


class RecordReader:
    """Reads records by coordinates; to be had from `record_reader`."""

    def __init__(self, consumer: AIOKafkaConsumer, partitions: Mapping[str, int]) -> None:
        self._consumer = consumer
        self._partitions = partitions
        self._bounds: dict[TopicPartition, tuple[int, int]] = {}

    async def read(self, place: Coordinates) -> Any:
        """The record at `place`, as aiokafka hands it over.

        Raises:
            RecordGoneError: There is no such record, or it cannot be decoded.
            KafkaError: The broker does not answer, or refuses.
            TimeoutError: The broker does not deliver the record.
        """
        tp = TopicPartition(place.topic, place.partition)
        start, end = await self._bounds_of(tp)
        if place.offset < start:
            raise RecordGoneError(
                f"retention took it: the oldest record that {tp.topic}[{tp.partition}] has is @{start}"
            )
        if place.offset >= end:
            raise RecordGoneError(
                f"{tp.topic}[{tp.partition}] ends before @{end}: the topic was made anew, or this is another cluster"
            )
        self._consumer.seek(tp, place.offset)
        deadline = asyncio.get_running_loop().time() + STALL_SECONDS
        while True:
            batch = await self._consumer.getmany(tp, timeout_ms=POLL_MS, max_records=1)
            for record in batch.get(tp, ()):
                if isinstance(record, UndecodableRecord) and record.first_offset <= place.offset <= record.offset:
                    raise RecordGoneError(f"no client can decode it: {record.what}, {record.expected_and_seen}")
                if record.offset == place.offset:
                    return record
            if await self._consumer.position(tp) > place.offset:
                raise RecordGoneError(
                    "nothing readable is at this offset: it is the marker of a transaction, or the record was compacted away"
                )
            if asyncio.get_running_loop().time() > deadline:
                raise TimeoutError(f"{place} was not handed over within {STALL_SECONDS:.0f} s")

    async def _bounds_of(self, tp: TopicPartition) -> tuple[int, int]:
        """First offset and the one after the last, as they were when first asked."""
        if tp not in self._bounds:
            if tp.partition >= self._partitions.get(tp.topic, 0):
                raise RecordGoneError(
                    f"{tp.topic}[{tp.partition}] is no partition of callgauge's topics here: check the topic prefix"
                )
            self._consumer.assign([tp])
            starts = await self._consumer.beginning_offsets([tp])
            ends = await self._consumer.end_offsets([tp])
            self._bounds[tp] = starts[tp], ends[tp]
        elif self._consumer.assignment() != {tp}:
            self._consumer.assign([tp])
        return self._bounds[tp]


@asynccontextmanager
async def record_reader(kafka: KafkaSettings) -> AsyncIterator[RecordReader]:
    """A reader that is connected.

    Raises:
        KafkaUnreachableError: No broker answers, or not any more.
    """
    partitions = {state.name: state.partitions or 0 for state in await topic_states(kafka)}
    async with onlooker(
        kafka, "quarantine", auto_offset_reset="earliest", max_partition_fetch_bytes=_FETCH_BYTES
    ) as consumer:
        yield RecordReader(consumer, partitions)
