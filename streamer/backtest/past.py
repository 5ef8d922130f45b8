"""The past of a partition: its log, and the scores of its calls then."""

import zlib
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, cast

from aiokafka import AIOKafkaConsumer, TopicPartition
from pydantic import ValidationError

from consumers.log.stretches import log_between
from consumers.runtime.kafka.connection import KafkaSettings
from consumers.runtime.process import OperatorError
from schemas.closed_sets import CloseReason
from schemas.log import Event, Tick
from schemas.quarantine import UndecodableRecord
from schemas.scores.live_view import Subject
from schemas.scores.records import (
    SCHEMA_VERSION,
    SCORE_RECORD,
    AnyScoreRecord,
    ClosedFact,
    GoalsFact,
    schema_version_in,
)
from schemas.topics import EVENTS_TOPIC, SCORES_TOPIC
from schemas.units import DAY_MS
from streamer.cluster.readers import records_so_far

# Reads `scores` of calls that closed in a past period: the newest record of each score.

MAX_CALLS: Final = 50_000
"""Calls of one partition number in one back-test: some 150 MB of records."""
MAX_HELD_BYTES: Final = 1_000_000_000
"""Bound of the records of these calls and of open calls; they contain goals, and a goal set may be large."""
LATEST_MS: Final = DAY_MS
"""How long after a call's end its scores may have been written; later ones are taken as never written."""


class BacktestError(OperatorError):
    """A back-test cannot run as requested; the text says what to change."""


class Period(NamedTuple):
    """From a moment on, up to another."""

    since_ms: int
    until_ms: int

    def has(self, time_ms: int) -> bool:
        """Whether it lies within."""
        return self.since_ms <= time_ms < self.until_ms


class PastCall(NamedTuple):
    """The records of a closed call; compressed, since all calls of a period are in memory together.

    Attributes:
        packed: The records.
        goals_from: Place in the log of the event that brought its goals; None if it had none.
    """

    packed: bytes
    goals_from: int | None = None

    def records(self) -> list[AnyScoreRecord]:
        """The newest of each subject, in the order in which they were written; the closing is the last."""
        return [SCORE_RECORD.validate_json(line) for line in zlib.decompress(self.packed).splitlines()]


@dataclass(slots=True)
class PastCalls:
    """The calls of one partition number that closed in a period.

    Attributes:
        by_id: Each that closed once.
        closed_twice: Conversation ids that were used again after their call had closed: no call to compare with.
        older: Calls of which an older schema version wrote something, in another shape: nothing to compare with either.
        unreadable: Records that this version cannot read.
        has_evicted: Whether one of them closed because too many were open: other calls decided that.
    """

    period: Period
    by_id: dict[str, PastCall] = field(default_factory=dict)
    closed_twice: set[str] = field(default_factory=set)
    older: set[str] = field(default_factory=set)
    unreadable: int = 0
    has_evicted: bool = False
    _open: dict[str, dict[Subject, bytes]] = field(default_factory=dict)
    _goals_from: dict[str, int] = field(default_factory=dict)
    _of_older_schema: set[str] = field(default_factory=set)
    _closed_before: set[str] = field(default_factory=set)
    _held_bytes: int = 0

    def take(self, key: bytes | None, value: bytes | None) -> None:
        """One more record of `scores`.

        Raises:
            BacktestError: There are more calls than one back-test holds.
        """
        if not key or not value:
            return
        conversation_id = key.decode("utf-8", "replace")
        record: AnyScoreRecord | None = None
        try:
            record = SCORE_RECORD.validate_json(value)
            version: int | None = record.schema_version
        except ValidationError:
            version = schema_version_in(value)
        if version is not None and version < SCHEMA_VERSION:
            self._of_older_schema.add(conversation_id)
        elif record is None or record.schema_version > SCHEMA_VERSION:
            self.unreadable += 1
            return
        if isinstance(record, ClosedFact):
            self._close(conversation_id, record, value)
        elif record is not None and conversation_id not in self._of_older_schema:
            if isinstance(record, GoalsFact):  # a new version may have published it once more
                self._goals_from.setdefault(conversation_id, record.offsets.get(EVENTS_TOPIC, 0))
            self._hold(conversation_id, (record.name, record.turn, record.index), value)

    def _hold(self, conversation_id: str, subject: Subject, value: bytes) -> None:
        newest = self._open.setdefault(conversation_id, {})
        self._held_bytes += len(value) - len(newest.pop(subject, b""))
        newest[subject] = value
        self._require_room()

    def _close(self, conversation_id: str, closing: ClosedFact, value: bytes) -> None:
        values = list(self._open.pop(conversation_id, {}).values())
        self._held_bytes -= sum(map(len, values))
        goals_from = self._goals_from.pop(conversation_id, None)
        is_older = conversation_id in self._of_older_schema
        self._of_older_schema.discard(conversation_id)
        if not self.period.has(closing.caused_at_ms):
            if closing.caused_at_ms < self.period.since_ms:
                self._closed_before.add(conversation_id)
            return
        closed = (self._closed_before, self.by_id, self.closed_twice, self.older)
        if any(conversation_id in those for those in closed):
            self.by_id.pop(conversation_id, None)
            self.closed_twice.add(conversation_id)
            self.older.discard(conversation_id)
            return
        if is_older:
            self.older.add(conversation_id)
            return
        packed = zlib.compress(b"\n".join([*values, value]), level=1)
        self._held_bytes += len(packed)
        self.by_id[conversation_id] = PastCall(packed, goals_from)
        self.has_evicted |= closing.reason is CloseReason.LIMIT_OPEN_CALLS
        self._require_room()

    def _require_room(self) -> None:
        if len(self.by_id) > MAX_CALLS or self._held_bytes > MAX_HELD_BYTES:
            raise BacktestError(
                f"Back-test: more than {MAX_CALLS} calls closed in this time in one partition, or their records take "
                f"more than {MAX_HELD_BYTES} bytes. They are kept in memory for the comparison, so nothing more was evaluated. "
                "Take a shorter time between --since and --until."
            )


async def past_calls(
    consumer: AIOKafkaConsumer, kafka: KafkaSettings, number: int, period: Period, longest_call_ms: int
) -> PastCalls:
    """Reads one partition of `scores`.

    Args:
        consumer: A started consumer without a group.
        kafka: Where.
        number: The partition number.
        period: The calls that closed in it are read; broker time.
        longest_call_ms: How long before its end something may have been written of a call.

    Raises:
        BacktestError: There are more calls than one back-test holds.
        KafkaError: The broker refuses.
        TimeoutError: The broker delivers nothing although there are more records.
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


# The log of one partition, read without a group.


class PastLog:
    """Reads the log of one partition after the other.

    Attributes:
        cut: By partition, the time of its oldest record, where older ones were wanted and are gone.
    """

    def __init__(self, consumer: AIOKafkaConsumer, kafka: KafkaSettings) -> None:
        self.cut: dict[str, int] = {}
        self._consumer = consumer
        self._topic = kafka.topic(EVENTS_TOPIC)

    async def begin(self, number: int, since_ms: int) -> "Stretch":
        """Finds the place from which this partition is read: what is before this time may be left out.

        Raises:
            KafkaError: The broker refuses.
        """
        tp = TopicPartition(self._topic, number)
        begin, end = (await self._consumer.beginning_offsets([tp]))[tp], (await self._consumer.end_offsets([tp]))[tp]
        found = (await self._consumer.offsets_for_times({tp: max(0, since_ms)}))[tp]
        is_cut = found is not None and 0 < begin == found.offset and found.timestamp > since_ms
        if is_cut:
            self.cut[f"{tp.topic}[{number}]"] = found.timestamp
        return Stretch(end if found is None else found.offset, end, found.timestamp if is_cut else 0)

    def read(self, number: int, stretch: "Stretch") -> AsyncIterator[Event | Tick]:
        """The events and ticks of a stretch; raises as `log_between`."""
        return log_between(self._consumer, TopicPartition(self._topic, number), stretch.start, stretch.end)


class Stretch(NamedTuple):
    """What is read of a partition of the log: offsets from `start` to before `end`; what was before `cut_ms` is gone, 0 if nothing is."""

    start: int
    end: int
    cut_ms: int
