"""Reads stretches of the log that is over Kafka: a partition of it in order, or what it has of one
conversation.

Whoever reads events of past or running calls beside the evaluator reads them here. Nobody of them
joins a group, so none disturbs another reader.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from itertools import accumulate
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition

from consumers.runtime.kafka.batches import OnlyBatchesWith
from consumers.runtime.kafka.ranges import Ranges, not_shown, records_between
from consumers.runtime.process import OperatorError
from schemas.log import TICK_HEADER, Event, LogError, LogReader, Tick, placed_in, tick_term
from schemas.units import MS_PER_SECOND

# A partition of the log, in order.


async def log_between(
    consumer: AIOKafkaConsumer,
    tp: TopicPartition,
    start: int,
    end: int,
    show: Callable[[float], None] = not_shown,
) -> AsyncIterator[Event | Tick]:
    """The events and ticks of a stretch, without repeats and what is void.

    Reading in the middle of a log begins at the first tick that says what is in the log in front of
    it.

    Args:
        consumer: A started consumer; it gets this partition.
        tp: The partition.
        start: Offset of the first record that is looked at.
        end: Offset after the last one.
        show: As for `records_between`.

    Raises:
        KafkaError: The broker refuses.
        OperatorError: A record is no part of a log.
        TimeoutError: The broker delivers nothing although there are more records.
    """
    reader, is_begun = LogReader(), start == 0
    async for record in records_between(consumer, {tp: (start, end)}, show):
        try:
            found = (
                reader.read(record) if is_begun or tick_term(record.headers) is not None else None
            )
            is_begun = is_begun or (isinstance(found, Tick) and bool(found.inputs))
        except LogError as error:
            raise _unfit(record, error) from error
        if found is not None and is_begun:
            yield found


def _unfit(record: Any, error: LogError) -> OperatorError:
    return OperatorError(
        f"{record.topic}[{record.partition}]@{record.offset} is no record of the log: {error}. "
        "Nothing behind it was read. Only the sequencer may write this topic: see who else has the "
        "right, and which versions run."
    )


# The records of one key in stretches of partitions.

MAX_KEPT: Final = 100_000
"""Records of one call that are kept: more events than an evaluator takes of one."""
MAX_KEPT_BYTES: Final = 64 * 2**20
"""Bytes of the records of one call that are kept: an hour in which each turn has a prompt of 100 kB
has a third.
"""
CLOCKS_MS: Final = MS_PER_SECOND
"""By how much the clocks of brokers may differ: an event may have been earlier in the log than it
was at its input.
"""


class KeyRecords:
    """The records of one key in some ranges of offsets, in the order of their partitions.

    Attributes:
        left_out: Records that were not kept, the latest ones: there were more than the bounds
            allow.
    """

    def __init__(self, consumer: AIOKafkaConsumer, key: bytes) -> None:
        """Nothing is read yet.

        Args:
            consumer: A started consumer.
            key: Whose records are kept.
        """
        self.left_out = 0
        self._consumer = consumer
        self._key = key
        self._kept: list[Any] = []
        self._bytes = 0

    async def in_order(self) -> list[Any]:
        """All of them. Sorting a hundred thousand takes a tenth of a second, so another thread does
        it.
        """
        await asyncio.to_thread(self._cut)
        return self._kept

    @property
    def first_ms(self) -> int | None:
        """Broker time of the first one; None without any."""
        return min(
            (self._time_ms(record) for record in self._kept if record.key == self._key),
            default=None,
        )

    async def read(self, ranges: Ranges) -> None:
        """Reads further ranges, the end of each left out.

        Raises:
            KafkaError: The broker refuses.
            TimeoutError: It hands over nothing although there is more.
        """
        async for record in records_between(self._consumer, ranges):
            if self._is_wanted(record):
                self._kept.append(record)
                self._bytes += len(record.value or b"")
                if len(self._kept) > 2 * MAX_KEPT or self._bytes > 2 * MAX_KEPT_BYTES:
                    await asyncio.to_thread(self._cut)

    def _is_wanted(self, record: Any) -> bool:
        return bool(record.key == self._key)

    def _time_ms(self, record: Any) -> int:
        return int(record.timestamp)

    def _cut(self) -> None:
        self._kept.sort(key=lambda record: (record.topic, record.partition, record.offset))
        sizes = accumulate(len(record.value or b"") for record in self._kept)
        kept = min(MAX_KEPT, sum(size <= MAX_KEPT_BYTES for size in sizes))
        self.left_out += len(self._kept) - kept
        del self._kept[kept:]
        self._bytes = sum(len(record.value or b"") for record in self._kept)


# What the log has of one conversation.


def only_of(*texts: bytes) -> OnlyBatchesWith:
    """Lets a consumer pass over the batches of the log that have neither such a key nor a tick."""
    return OnlyBatchesWith(*texts, TICK_HEADER.encode())


class Terms:
    """Knows the first tick of each term in a partition.

    Whoever gives these and the events of some conversations to a `LogReader`, in order, is told of
    the same events as one who gives all records: the first tick of a term comes before its events,
    and a repeat of an event comes after the event.
    """

    def __init__(self) -> None:
        self._term = -1

    def begins_with(self, record: Any) -> bool:
        """Whether this, the next record of the partition, is the first tick of a term."""
        if record.key is not None:
            return False
        try:
            term = tick_term(record.headers)
        except LogError:  # whoever reads it says so
            return True
        is_first = term is not None and term > self._term
        self._term = max(self._term, -1 if term is None else term)
        return is_first


class CallEvents(KeyRecords):
    """The records of the log of one conversation, with the first tick of each term, for a
    `LogReader`.
    """

    async def read(self, ranges: Ranges) -> None:
        """As for `KeyRecords`; the ranges are of one partition."""
        self._terms = Terms()
        await super().read(ranges)

    def _is_wanted(self, record: Any) -> bool:
        return super()._is_wanted(record) or self._terms.begins_with(record)

    def _time_ms(self, record: Any) -> int:
        """The time at the input: whether a call was silent is judged by that."""
        try:
            placed = placed_in(record.headers)
        except LogError:
            placed = None
        return int(record.timestamp) if placed is None else placed.origin.time_ms
