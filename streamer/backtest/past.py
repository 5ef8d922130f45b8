"""The past of a partition: its log, and the scores of its calls then; on Kafka, or in the folder of
a `serve`.
"""

import asyncio
import zlib
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, cast

from aiokafka import AIOKafkaConsumer, TopicPartition

from consumers.history.search import CallSearch, Condition
from consumers.history.sqlite import SqliteHistory
from consumers.log.file import reading
from consumers.log.stretches import log_between
from consumers.runtime.kafka.connection import KafkaSettings
from consumers.runtime.process import OperatorError
from schemas.closed_sets import CloseReason
from schemas.log import Event, Tick
from schemas.quarantine import UndecodableRecord
from schemas.rows import CallRow, GoalsRow, Row, RowError, decode, encode
from schemas.topics import EVENTS_TOPIC, SCORES_TOPIC
from schemas.units import DAY_MS
from streamer.cluster.readers import records_so_far
from streamer.history.comparison import ComparedPeriod
from streamer.trials.calls import NewestRows

# Reads `scores` of calls that closed in a past period: the newest row of each turn and of each
# call.

MAX_CALLS: Final = 50_000
"""Calls of one partition number in one back-test, with those that are open at a time: some 150 MB
of rows.
"""
MAX_HELD_BYTES: Final = 1_000_000_000
"""Bound of the rows of these calls; they contain goals, and a goal set may be large."""
LATEST_MS: Final = DAY_MS
"""How long after a call's end its scores may have been written; later ones are taken as never
written.
"""


class BacktestError(OperatorError):
    """A back-test cannot run as requested; the text says what to change."""


class PastCall(NamedTuple):
    """The rows of a closed call; compressed, since all calls of a period are in memory together.

    Attributes:
        packed: The rows.
        goals_from: Place in the log of the event that brought its goals; None if it had none.
    """

    packed: bytes
    goals_from: int | None = None

    def rows(self) -> list[Row]:
        """Its goals, the newest row of each turn, and the closed row of the call."""
        return [decode(line) for line in zlib.decompress(self.packed).splitlines()]


@dataclass(slots=True)
class PastCalls:
    """The calls of one partition number that closed in a period.

    Attributes:
        by_id: Each that closed once.
        closed_twice: Conversation ids that were used again after their call had closed: no call to
            compare with.
        unreadable: Values that this version cannot read.
        has_evicted: Whether one of them closed because too many were open: other calls decided
            that.
    """

    period: ComparedPeriod
    by_id: dict[str, PastCall] = field(default_factory=dict)
    closed_twice: set[str] = field(default_factory=set)
    unreadable: int = 0
    has_evicted: bool = False
    _open: defaultdict[str, NewestRows] = field(default_factory=lambda: defaultdict(NewestRows))
    _goals_from: dict[str, int] = field(default_factory=dict)
    _closed_before: set[str] = field(default_factory=set)
    _held_bytes: int = 0

    def read_record(self, key: bytes | None, value: bytes | None) -> None:
        """One more record of `scores`.

        Raises:
            BacktestError: There are more calls than one back-test holds.
        """
        if not key or not value:
            return
        try:
            row = decode(value)
        except RowError:
            self.unreadable += 1
            return
        conversation_id = key.decode("utf-8", "replace")
        self._open[conversation_id].add_row(row)
        if isinstance(row, GoalsRow):  # a new version may have published it once more
            self._goals_from.setdefault(conversation_id, row.revision // 2)
        if isinstance(row, CallRow) and row.state == "closed":
            self._close(conversation_id, row)
        if len(self.by_id) + len(self._open) > MAX_CALLS or self._held_bytes > MAX_HELD_BYTES:
            raise BacktestError(
                f"Back-test: more than {MAX_CALLS} calls were open or closed in this time in one "
                "partition, or their rows take "
                f"more than {MAX_HELD_BYTES} bytes. They are kept in memory for the comparison, so "
                "nothing more was evaluated. "
                "Take a shorter time between --since and --until."
            )

    def _close(self, conversation_id: str, closed: CallRow) -> None:
        newest, goals_from = (
            self._open.pop(conversation_id),
            self._goals_from.pop(conversation_id, None),
        )
        if closed.known_ms < self.period.since_ms:
            self._closed_before.add(conversation_id)
        if not self.period.has(closed.known_ms):
            return
        if any(
            conversation_id in those
            for those in (self._closed_before, self.by_id, self.closed_twice)
        ):
            self.by_id.pop(conversation_id, None)
            self.closed_twice.add(conversation_id)
            return
        goals = () if newest.goals is None else (newest.goals,)
        packed = zlib.compress(
            b"\n".join(map(encode, [*goals, *newest.turns.values(), closed])), level=1
        )
        self._held_bytes += len(packed)
        self.by_id[conversation_id] = PastCall(packed, goals_from)
        self.has_evicted |= closed.close_reason is CloseReason.LIMIT_OPEN_CALLS


class Stretch(NamedTuple):
    """What is read of a partition of the log: places from `start` to before `end`; what was before
    `cut_ms` is gone, 0 if nothing is.
    """

    start: int
    end: int
    cut_ms: int


class Past(Protocol):
    """Where the past is kept.

    Attributes:
        cut: By partition, the time of its oldest record of the log, where older ones were wanted
            and are gone.
    """

    cut: dict[str, int]

    async def calls(self, number: int, period: ComparedPeriod, longest_call_ms: int) -> PastCalls:
        """The rows of the calls of one partition number that closed in a period.

        Args:
            number: The partition number.
            period: The calls that closed in it are read; broker time.
            longest_call_ms: How long before its end something may have been written of a call.

        Raises:
            BacktestError: There are more calls than one back-test holds.
            OperatorError, KafkaError, TimeoutError: They cannot be read.
        """

    async def begin(self, number: int, since_ms: int) -> Stretch:
        """Finds the place from which a partition of the log is read: what is before this time may
        be left out.
        """

    def read(self, number: int, stretch: Stretch) -> AsyncIterator[Event | Tick]:
        """The events and ticks of a stretch."""


class PastTopics:
    """The past on Kafka, read without a group, one partition after the other. Its methods raise as
    `log_between`.
    """

    def __init__(self, consumer: AIOKafkaConsumer, kafka: KafkaSettings) -> None:
        self.cut: dict[str, int] = {}
        self._consumer = consumer
        self._kafka = kafka

    async def calls(self, number: int, period: ComparedPeriod, longest_call_ms: int) -> PastCalls:
        """As of `Past`."""
        calls = PastCalls(period)
        tp = TopicPartition(self._kafka.topic(SCORES_TOPIC), number)
        written = records_so_far(self._consumer, [tp], period.since_ms - longest_call_ms)
        async with aclosing(cast("AsyncGenerator[Any, None]", written)) as records:
            async for record in records:
                if record.timestamp > period.until_ms + LATEST_MS:
                    break
                if isinstance(record, UndecodableRecord):
                    calls.unreadable += 1
                calls.read_record(record.key, record.value)
        return calls

    async def begin(self, number: int, since_ms: int) -> Stretch:
        """As of `Past`."""
        tp = TopicPartition(self._kafka.topic(EVENTS_TOPIC), number)
        begin, end = (
            (await self._consumer.beginning_offsets([tp]))[tp],
            (await self._consumer.end_offsets([tp]))[tp],
        )
        found = (await self._consumer.offsets_for_times({tp: max(0, since_ms)}))[tp]
        is_cut = found is not None and 0 < begin == found.offset and found.timestamp > since_ms
        if is_cut:
            self.cut[f"{tp.topic}[{number}]"] = found.timestamp
        return Stretch(
            end if found is None else found.offset, end, found.timestamp if is_cut else 0
        )

    def read(self, number: int, stretch: Stretch) -> AsyncIterator[Event | Tick]:
        """As of `Past`."""
        tp = TopicPartition(self._kafka.topic(EVENTS_TOPIC), number)
        return log_between(self._consumer, tp, stretch.start, stretch.end)


class PastFolder:
    """The past in the folder of a `serve`, which may run: the rows of its history, and its log. It
    has one partition.
    """

    def __init__(self, folder: Path, history: Path) -> None:
        self.cut: dict[str, int] = {}
        self._folder = folder
        self._history = history

    # as on Kafka
    async def calls(self, number: int, period: ComparedPeriod, longest_call_ms: int) -> PastCalls:
        """As of `Past`."""
        calls = PastCalls(period)
        lasted = [Condition("known_ms", ">=", period.since_ms)]
        asked = CallSearch(period.since_ms - longest_call_ms, period.until_ms, lasted, most=None)
        store = SqliteHistory(self._history)
        try:
            for (name,) in store.values(asked, ["conversation_id"]):
                for row in store.rows_of(str(name)):
                    calls.read_record(row.conversation_id.encode(), encode(row))
        finally:
            store.close()
        return calls

    async def begin(self, number: int, since_ms: int) -> Stretch:
        """As of `Past`."""
        with reading(self._folder) as log:
            bounds = log.since(since_ms)
        if bounds.is_cut:
            self.cut["the log"] = bounds.start_ms
        return Stretch(bounds.start, bounds.end, bounds.start_ms if bounds.is_cut else 0)

    async def read(self, number: int, stretch: Stretch) -> AsyncIterator[Event | Tick]:
        """As of `Past`."""
        with reading(self._folder) as log:
            for record in log.between(stretch.start, stretch.end):
                yield record.read
                await asyncio.sleep(0)
