"""What `scores` says of calls that closed in a stretch of the past: their last words, and the facts that a back-test obeys."""

import zlib
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, cast

from aiokafka import AIOKafkaConsumer, TopicPartition
from pydantic import ValidationError

from consumers.runtime.kafka import KafkaSettings
from schemas.scores import SCHEMA_VERSION, SCORE_RECORD, AnyScoreRecord, ClosedFact
from schemas.topics import DAY_MS, SCORES_TOPIC
from schemas.undecodable import UndecodableRecord
from streamer.onlooker import records_so_far

MAX_CALLS: Final = 50_000
"""Calls of one partition number in one back-test: some 150 MB of what was said of them."""
MAX_HELD_BYTES: Final = 1_000_000_000
"""What was said of them at most: their goals are part of it, and a goal set may be large."""
LATEST_MS: Final = DAY_MS
"""How long after a call's end its scores may have been written; later ones are taken as never written."""

_MARKS: Final = (b'"status":"final"', b'"name":"interruption_', b'"name":"goals"')
"""One of them stands in every record that can be a last word, or is a fact to obey; parsing all the others would take ten
times as long."""


class BacktestError(Exception):
    """A back-test cannot be made as it was asked for; the text says what to change."""


class Period(NamedTuple):
    """From a moment on, up to another."""

    since_ms: int
    until_ms: int

    def has(self, time_ms: int) -> bool:
        """Whether it lies within."""
        return self.since_ms <= time_ms < self.until_ms


class PastCall(NamedTuple):
    """What was written of a call that has closed; compressed, since all calls of a period are held at a time."""

    packed: bytes

    def records(self) -> list[AnyScoreRecord]:
        """Facts and last words, in the order in which they were written; the closing is the last."""
        return [SCORE_RECORD.validate_json(line) for line in zlib.decompress(self.packed).splitlines()]


@dataclass(slots=True)
class PastCalls:
    """The calls of one partition number that closed in a period.

    Attributes:
        by_id: Each that closed once.
        closed_twice: Conversation ids that were used again after their call had closed: no call to compare with.
        unreadable: Records that this version cannot read.
    """

    period: Period
    by_id: dict[str, PastCall] = field(default_factory=dict)
    closed_twice: set[str] = field(default_factory=set)
    unreadable: int = 0
    _open: dict[str, list[bytes]] = field(default_factory=dict)
    _held_bytes: int = 0

    def take(self, key: bytes | None, value: bytes | None) -> None:
        """One more record of `scores`.

        Raises:
            BacktestError: There are more calls than one back-test holds.
        """
        if not key or not value or not any(mark in value for mark in _MARKS):
            return
        conversation_id = key.decode("utf-8", "replace")
        values = self._open.setdefault(conversation_id, [])
        try:
            record = SCORE_RECORD.validate_json(value)
        except ValidationError:
            self.unreadable += 1
            return
        if record.schema_version > SCHEMA_VERSION:
            self.unreadable += 1
            return
        values.append(value)
        if isinstance(record, ClosedFact):
            del self._open[conversation_id]
            if self.period.has(record.caused_at_ms):
                self._close(conversation_id, values)

    def _close(self, conversation_id: str, values: list[bytes]) -> None:
        if conversation_id in self.closed_twice or self.by_id.pop(conversation_id, None) is not None:
            self.closed_twice.add(conversation_id)
            return
        packed = zlib.compress(b"\n".join(values), level=1)
        self._held_bytes += len(packed)
        if len(self.by_id) >= MAX_CALLS or self._held_bytes > MAX_HELD_BYTES:
            raise BacktestError(
                f"Back-test: more than {MAX_CALLS} calls closed in this time in one partition, or what was said of them takes "
                f"more than {MAX_HELD_BYTES} bytes. They are held at a time to be compared, so nothing more was evaluated. "
                "Take a shorter time between --since and --until."
            )
        self.by_id[conversation_id] = PastCall(packed)


async def past_calls(
    consumer: AIOKafkaConsumer, kafka: KafkaSettings, number: int, period: Period, longest_call_ms: int
) -> PastCalls:
    """Reads one partition of `scores`.

    Args:
        consumer: A started one, in no group.
        kafka: Where.
        number: The partition number.
        period: When the calls closed, in broker time.
        longest_call_ms: How long before its end something may have been written of a call.

    Raises:
        BacktestError: There are more calls than one back-test holds.
        KafkaError: The broker refuses.
        TimeoutError: It hands over nothing, though there is more.
    """
    calls = PastCalls(period)
    tp = TopicPartition(kafka.topic(SCORES_TOPIC), number)
    written = records_so_far(consumer, [tp], period.since_ms - longest_call_ms)
    async with aclosing(cast("AsyncGenerator[Any, None]", written)) as records:
        async for record in records:
            if record.timestamp > period.until_ms + LATEST_MS:
                break
            if isinstance(record, UndecodableRecord):
                calls.unreadable += 1
            calls.take(record.key, record.value)
    return calls
