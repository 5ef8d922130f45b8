"""Reads topics from their beginning to their end, with another client than the one under test."""

import time
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from schemas.log import Positions, Tick, tick_term
from tests.support.patience import patient

READ_AT_ONCE: Final = 10_000
SILENT_SECONDS: Final = 60.0
OPEN_TRANSACTION_SECONDS: Final = 180.0
"""How long a transaction of a killed evaluator may stay open if no successor takes over."""
ANSWER_SECONDS: Final = 20.0
"""How long a broker may take to say where a partition begins and ends."""
_ASK_AGAIN_SECONDS: Final = 0.5
_FEW_RECORDS: Final = 200
"""From the end backwards, among which a tick is most often."""
_WRITTEN: Final = "read_uncommitted"
_COMMITTED: Final = "read_committed"


class ReadRecord(NamedTuple):
    """A record as it was read: its place, when the broker took it, its bytes, and its headers if
    they were asked for.
    """

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()


class UnreadableError(Exception):
    """A topic could not be read to its end: nothing can be said about its records."""


def to_the_end(
    bootstrap: str,
    topic: str,
    partition: int,
    before: int | None = None,
    *,
    first: int = 0,
    has_headers: bool = False,
) -> Iterator[ReadRecord]:
    """Every committed record of a partition, in order.

    Args:
        bootstrap: The brokers.
        topic: Its name.
        partition: The number.
        before: Only records before this offset; None for all.
        first: Only records from this offset on.
        has_headers: Whether to read headers, which the client cannot do where a key is not UTF-8.
    """
    consumer = _consumer(bootstrap)
    try:
        consumer.assign([TopicPartition(topic, partition, first)])
        heard_at = time.monotonic()
        while True:
            messages = consumer.consume(READ_AT_ONCE, timeout=1.0)
            for message in messages:
                error = message.error()
                if error is None:
                    if before is not None and message.offset() >= before:
                        return
                    record = _read(message)
                    yield (
                        record._replace(headers=tuple(message.headers() or ()))
                        if has_headers
                        else record
                    )
                elif error.code() == KafkaError._PARTITION_EOF:
                    return
                elif not error.retriable():
                    raise UnreadableError(f"{topic}[{partition}]: {error.str()}")
            if messages:
                heard_at = time.monotonic()
            elif time.monotonic() - heard_at > SILENT_SECONDS:
                raise UnreadableError(
                    f"{topic}[{partition}]: no record and no end for {SILENT_SECONDS:.0f} s"
                )
    finally:
        consumer.close()


class Follower:
    """Follows all partitions of a topic as records are committed."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self._consumer = _consumer(bootstrap)
        self._topic = topic
        self._partitions = 0
        self.follow(partitions)

    def follow(self, partitions: int) -> None:
        """Follows so many partitions from now on; those that are new from their beginning."""
        new = range(self._partitions, partitions)
        self._consumer.incremental_assign(
            [TopicPartition(self._topic, number, 0) for number in new]
        )
        self._partitions = partitions

    def new(self, seconds: float) -> list[ReadRecord]:
        """New records; waits so long for some."""
        return [
            _read(message)
            for message in self._consumer.consume(READ_AT_ONCE, timeout=seconds)
            if not message.error()
        ]

    def close(self) -> None:
        self._consumer.close()


def wait_until_nothing_is_open(bootstrap: str, topic: str, partitions: int) -> None:
    """Returns once no transaction is open in the topic, so that its end is its end for readers of
    committed records too.
    """
    deadline = time.monotonic() + OPEN_TRANSACTION_SECONDS
    while True:
        written = _extents(bootstrap, topic, range(partitions), _WRITTEN)
        readable = _extents(bootstrap, topic, range(partitions), _COMMITTED)
        waiting = {number for number, (_, end) in readable.items() if end < written[number][1]}
        if not waiting:
            return
        if time.monotonic() > deadline:
            raise UnreadableError(
                f"{topic}: transactions are open in partitions {sorted(waiting)} for "
                f"{OPEN_TRANSACTION_SECONDS:.0f} s"
            )
        time.sleep(_ASK_AGAIN_SECONDS)


def newest_positions(bootstrap: str, events: str, partition: int = 0) -> Positions:
    """Where each input stands, by the newest tick of a partition of the log that says it; nothing
    without one.
    """
    begin, end = extent(bootstrap, events, partition)
    back = _FEW_RECORDS
    while True:
        first = max(begin, end - back)
        records = to_the_end(bootstrap, events, partition, end, first=first, has_headers=True)
        ticks = [
            Tick.parse(record.value) for record in records if tick_term(record.headers) is not None
        ]
        if told := [tick for tick in ticks if tick.inputs]:
            return max(reversed(told), key=lambda tick: tick.term).positions
        if first == begin:
            return {}
        back *= 8


def ends(bootstrap: str, topic: str, numbers: Iterable[int]) -> dict[int, int]:
    """The offset after the last record of some partitions, committed or not."""
    return {
        number: end for number, (_, end) in _extents(bootstrap, topic, numbers, _WRITTEN).items()
    }


def extent(bootstrap: str, topic: str, partition: int) -> tuple[int, int]:
    """The offset of the first record that a partition still has, and the one after the last that is
    committed.
    """
    return _extents(bootstrap, topic, [partition], _COMMITTED)[partition]


def _extents(
    bootstrap: str, topic: str, numbers: Iterable[int], isolation: str
) -> dict[int, tuple[int, int]]:
    consumer = _consumer(bootstrap, isolation)
    found = {}
    try:
        for number in numbers:
            where = TopicPartition(topic, number)
            first, end = consumer.get_watermark_offsets(where, timeout=patient(ANSWER_SECONDS))
            found[number] = (first, end)
    except KafkaException as error:
        raise UnreadableError(
            f"{topic}: the broker does not say where it begins and ends: {error}"
        ) from error
    finally:
        consumer.close()
    return found


def _read(message: Any) -> ReadRecord:
    return ReadRecord(
        message.partition(),
        message.offset(),
        message.timestamp()[1],
        message.key(),
        message.value(),
    )


def _consumer(bootstrap: str, isolation: str = _COMMITTED) -> Any:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "chaos-reader",  # the client wants one; nothing is ever committed
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
            "auto.offset.reset": "earliest",
            "check.crcs": True,
            "log_level": 0,
        }
    )
