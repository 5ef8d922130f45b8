"""Readers of topics that join no group, and the places of records."""

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple, Self

from aiokafka import AIOKafkaConsumer, TopicPartition

from consumers.runtime.kafka.connection import KafkaSettings
from consumers.runtime.kafka.ranges import onlooker, records_between
from schemas.quarantine import QuarantineRecord, UndecodableRecord
from streamer.cluster.topic_admin import topic_states

# Records of some partitions, from a moment on.

CLOCK_MARGIN_MS: Final = 3_600_000
"""Largest difference between the clocks of a producer and the broker when records are searched by
time.
"""
POLL_MS: Final = 200


async def ranges_since(
    consumer: AIOKafkaConsumer, partitions: Sequence[TopicPartition], since_ms: int | None
) -> dict[TopicPartition, tuple[int, int]]:
    """From where each partition is read, and to where: its present end.

    Args:
        consumer: A started consumer.
        partitions: The partitions.
        since_ms: Records whose time is before this may be left out; None is the beginning.

    Raises:
        KafkaError: The broker refuses.
    """
    ends = await consumer.end_offsets(partitions)
    if since_ms is None:
        starts = await consumer.beginning_offsets(partitions)
    else:
        found = await consumer.offsets_for_times(
            dict.fromkeys(partitions, max(0, since_ms - CLOCK_MARGIN_MS))
        )
        starts = {tp: at.offset if at else ends[tp] for tp, at in found.items()}
    return {tp: (starts[tp], ends[tp]) for tp in partitions}


async def records_so_far(
    consumer: AIOKafkaConsumer, partitions: Sequence[TopicPartition], since_ms: int | None
) -> AsyncIterator[Any]:
    """The records of some partitions up to their present ends; those of one partition in order. As
    `ranges_since` and `records_between`.

    Raises:
        KafkaError: The broker refuses.
        TimeoutError: The broker delivers nothing although there are more records.
    """
    async for record in records_between(
        consumer, await ranges_since(consumer, partitions, since_ms)
    ):
        yield record


# The place of a record on the cluster, as messages print it and commands accept it.

_COORDINATES: Final = re.compile(r"([A-Za-z0-9._-]{1,249})\[(\d{1,9})\]@(\d{1,18})")


class Coordinates(NamedTuple):
    """The coordinates of a record; messages print them as `topic[partition]@offset`."""

    topic: str
    partition: int
    offset: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads coordinates in the form that `str` gives.

        Raises:
            ValueError: The text has another form.

        Example:
            >>> Coordinates.parse("pipecat.events[3]@17")
            Coordinates(topic='pipecat.events', partition=3, offset=17)
        """
        if not (found := _COORDINATES.fullmatch(text.strip())):
            raise ValueError(
                f"{text!r} is no place of a record: give TOPIC[PARTITION]@OFFSET, as messages "
                "print it"
            )
        return cls(found[1], int(found[2]), int(found[3]))

    @classmethod
    def of(cls, record: QuarantineRecord) -> Self:
        """The coordinates of a refused record."""
        return cls(record.topic, record.partition, record.offset)

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.offset}"


# Reads single records again by their coordinates, in no consumer group.

_FETCH_BYTES: Final = 65_536
"""One record is wanted, so little is fetched ahead; a larger record comes whole all the same."""


class RecordGoneError(Exception):
    """No record can be had at these coordinates; the text says why, as a sentence without a full
    stop.
    """


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
                f"retention took it: the oldest record that {tp.topic}[{tp.partition}] has is "
                f"@{start}"
            )
        if place.offset >= end:
            raise RecordGoneError(
                f"{tp.topic}[{tp.partition}] ends before @{end}: the topic was recreated, or this "
                "is another cluster"
            )
        async for record in records_between(self._consumer, {tp: (place.offset, place.offset + 1)}):
            if (
                isinstance(record, UndecodableRecord)
                and record.first_offset <= place.offset <= record.offset
            ):
                raise RecordGoneError(
                    f"no client can decode it: {record.what}, {record.expected_and_seen}"
                )
            if record.offset == place.offset:
                return record
        raise RecordGoneError(
            "nothing readable is at this offset: it is the marker of a transaction, or the record "
            "was compacted away"
        )

    async def _bounds_of(self, tp: TopicPartition) -> tuple[int, int]:
        """First offset and the one after the last, as they were when first asked."""
        if tp not in self._bounds:
            if tp.partition >= self._partitions.get(tp.topic, 0):
                raise RecordGoneError(
                    f"{tp.topic}[{tp.partition}] is no partition of callgauge's topics here: check "
                    "the topic prefix"
                )
            starts = await self._consumer.beginning_offsets([tp])
            ends = await self._consumer.end_offsets([tp])
            self._bounds[tp] = starts[tp], ends[tp]
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
