"""The input records of one partition number, read without a group: in the order of `order`, or in that of broker time."""

import heapq
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, cast

from aiokafka import AIOKafkaConsumer, TopicPartition

from consumers.runtime.kafka.connection import KafkaSettings
from schemas.closed_sets import InputSource
from schemas.order import Fold, OrderDecoder, OrderError, OrderStart, Step, TimePassed, start_in
from schemas.quarantine import UndecodableRecord
from schemas.topics import ORDER_TOPIC, TOPIC_BY_SOURCE
from streamer.cluster.onlooker import onlooker, records_so_far

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
