"""The past of a partition number: its inputs in their order, and the scores of its calls then."""

import heapq
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, cast

from aiokafka import AIOKafkaConsumer, TopicPartition
from pydantic import ValidationError

from consumers.runtime.kafka.connection import KafkaSettings
from consumers.runtime.kafka.ranges import onlooker
from consumers.runtime.process import OperatorError
from schemas.closed_sets import InputSource
from schemas.order import Fold, OrderDecoder, OrderError, OrderStart, Step, TimePassed, start_in
from schemas.quarantine import UndecodableRecord
from schemas.scores.live_view import Subject
from schemas.scores.records import SCHEMA_VERSION, SCORE_RECORD, AnyScoreRecord, ClosedFact, schema_version_in
from schemas.topics import ORDER_TOPIC, SCORES_TOPIC, TOPIC_BY_SOURCE
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
    """The records of a closed call; compressed, since all calls of a period are in memory together."""

    packed: bytes

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
    """

    period: Period
    by_id: dict[str, PastCall] = field(default_factory=dict)
    closed_twice: set[str] = field(default_factory=set)
    older: set[str] = field(default_factory=set)
    unreadable: int = 0
    _open: dict[str, dict[Subject, bytes]] = field(default_factory=dict)
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
            self._hold(conversation_id, (record.name, record.turn, record.index), value)

    def _hold(self, conversation_id: str, subject: Subject, value: bytes) -> None:
        newest = self._open.setdefault(conversation_id, {})
        self._held_bytes += len(value) - len(newest.pop(subject, b""))
        newest[subject] = value
        self._require_room()

    def _close(self, conversation_id: str, closing: ClosedFact, value: bytes) -> None:
        values = list(self._open.pop(conversation_id, {}).values())
        self._held_bytes -= sum(map(len, values))
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
        self.by_id[conversation_id] = PastCall(packed)
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


# The input records of one partition number, read without a group: in the order of `order`, or in that of broker time.

SOURCES: Final = (InputSource.AUDIT, InputSource.PIPECAT, InputSource.ELEVENLABS, InputSource.JUDGE)
"""In the order in which records of the same millisecond are folded, unless the log says another."""
FETCH_WAIT_MS: Final = 20
"""How long the broker keeps a fetch that has nothing: a client that goes on to the next partition waits for it."""

Inputs = Mapping[InputSource, AsyncIterator[Any]]
"""Of each input its records in order of their offsets."""


class Logged(NamedTuple):
    """A step, how far the log has come with it, and the record that it folds: None if it folds none, or if that is gone."""

    time_ms: int
    step: OrderStart | Step
    record: Any = None


async def by_broker_time(inputs: Inputs) -> AsyncGenerator[Logged, None]:
    """Steps as an evaluator takes them that reads all inputs at once: by time, then by the order of the inputs, then by offset.

    They depend on the records only, not on how many of them a fetch brought. The first record of a call opens it.
    """
    order = list(inputs.items())
    heap: list[tuple[int, int, Any]] = []
    begun: set[bytes | None] = set()
    for rank, (_, records) in enumerate(order):
        async for record in records:
            heap.append((record.timestamp, rank, record))
            break
    heapq.heapify(heap)
    while heap:
        time_ms, rank, record = heap[0]
        source, records = order[rank]
        opened = None
        if record.key not in begun and source is not InputSource.JUDGE:
            begun.add(record.key)
            opened = (record.key or b"").decode("utf-8", "replace")
        yield Logged(time_ms, TimePassed(time_ms))
        yield Logged(time_ms, Fold(source, record.offset, opened), record)
        async for following in records:
            # A producer's clock may step back, an offset does not.
            heapq.heapreplace(heap, (max(time_ms, following.timestamp), rank, following))
            break
        else:
            heapq.heappop(heap)


async def in_logged_order(order: AsyncIterator[Any], inputs: Inputs) -> AsyncGenerator[Logged, None]:
    """The steps that the owners of the partition took, from the first start on; of the starts only that one.

    Args:
        order: Records of `order`.
        inputs: They may begin before the first step or behind it.

    Raises:
        OrderError: The order cannot be read.
    """
    decoder: OrderDecoder | None = None
    reached: dict[InputSource, Any] = {}
    async for written in order:
        if isinstance(written, UndecodableRecord):
            raise OrderError(str(written))
        start = None if written.value is None else start_in(written.headers)
        if decoder is None and start is not None:
            decoder = OrderDecoder(start)
            yield Logged(written.timestamp, start)
        elif decoder is not None and start is not None:
            decoder.begin(start)
        if decoder is None or written.value is None:  # reading began behind a start, or it is the mark of a new owner
            continue
        for step in decoder.steps(written.value):
            record = await _folded_by(step, inputs, reached) if isinstance(step, Fold) else None
            yield Logged(written.timestamp, step, record)


async def _folded_by(fold: Fold, inputs: Inputs, reached: dict[InputSource, Any]) -> Any:
    """The record of a fold; None if the input does not have it. `reached` are the last records of the inputs so far."""
    record = reached.get(fold.source)
    while record is None or record.offset < fold.offset:
        record = await anext(inputs[fold.source], None)
        if record is None:
            return None
        reached[fold.source] = record
    return record if record.offset == fold.offset else None


@dataclass(slots=True)
class PastInputs:
    """Reads stretches of the log; to be had from `past_inputs`.

    Attributes:
        cut: By input partition, the time of its oldest record, where older ones were wanted and are gone.
    """

    kafka: KafkaSettings
    consumers: Mapping[InputSource, AIOKafkaConsumer]
    cut: dict[str, int] = field(default_factory=dict)

    @asynccontextmanager
    async def steps(
        self, number: int, since_ms: int, ledger: AIOKafkaConsumer | None
    ) -> AsyncIterator[AsyncGenerator[Logged, None]]:
        """The steps of one partition number to where the topics end now. One such reading at a time.

        Args:
            number: The partition number.
            since_ms: What is before this time may be left out.
            ledger: Reads `order`; None for the order of broker time.

        Raises:
            KafkaError: The broker refuses.
            OrderError: The order cannot be read.
            TimeoutError: The broker delivers nothing although there are more records.
        """
        async with AsyncExitStack() as stack:
            inputs = {}
            for source in SOURCES:
                inputs[source] = await stack.enter_async_context(aclosing(self._input(source, number, since_ms)))
            if ledger is None:
                steps = by_broker_time(inputs)
            else:
                tp = TopicPartition(self.kafka.topic(ORDER_TOPIC), number)
                order = cast("AsyncGenerator[Any, None]", records_so_far(ledger, [tp], since_ms))
                steps = in_logged_order(await stack.enter_async_context(aclosing(order)), inputs)
            yield await stack.enter_async_context(aclosing(steps))

    async def _input(self, source: InputSource, number: int, since_ms: int) -> AsyncGenerator[Any, None]:
        consumer = self.consumers[source]
        tp = TopicPartition(self.kafka.topic(TOPIC_BY_SOURCE[source]), number)
        oldest = (await consumer.beginning_offsets([tp]))[tp]
        is_first = True
        async with aclosing(cast("AsyncGenerator[Any, None]", records_so_far(consumer, [tp], since_ms))) as records:
            async for record in records:
                if is_first and 0 < oldest == record.offset and record.timestamp > since_ms:
                    self.cut[f"{tp.topic}[{number}]"] = record.timestamp
                is_first = False
                yield record


@asynccontextmanager
async def past_inputs(kafka: KafkaSettings) -> AsyncIterator[PastInputs]:
    """A reader that is connected, with a client for each input: each is read as far as it is needed.

    Raises:
        KafkaUnreachableError: No broker answers, or not any more, or it does not let us read.
    """
    async with AsyncExitStack() as stack:
        consumers = {}
        for source in SOURCES:
            reader = onlooker(kafka, "backtest", auto_offset_reset="earliest", fetch_max_wait_ms=FETCH_WAIT_MS)
            consumers[source] = await stack.enter_async_context(reader)
        yield PastInputs(kafka, consumers)
