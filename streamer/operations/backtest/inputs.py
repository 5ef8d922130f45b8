"""The input records of one partition number in the order of broker time, read without a group."""

import heapq
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, cast

from aiokafka import AIOKafkaConsumer, TopicPartition

from consumers.runtime.kafka.connection import KafkaSettings
from schemas.closed_sets import InputSource
from schemas.topics import TOPIC_BY_SOURCE
from streamer.cluster.onlooker import onlooker, records_so_far

SOURCES: Final = (InputSource.AUDIT, InputSource.PIPECAT, InputSource.ELEVENLABS, InputSource.JUDGE)
"""In the order in which records of the same millisecond are folded."""
FETCH_WAIT_MS: Final = 20
"""How long the broker keeps a fetch that has nothing: a client that goes on to the next partition waits for it."""


class Logged(NamedTuple):
    """A record of the log; `time_ms` never decreases within its topic, whatever the clock of its producer did."""

    time_ms: int
    source: InputSource
    record: Any


async def merged(inputs: Mapping[InputSource, AsyncIterator[Any]]) -> AsyncGenerator[Logged, None]:
    """The records of several inputs as one sequence: by time, then by the order of the inputs, then by offset.

    It depends on the records only, not on how many of them a fetch brought.

    Args:
        inputs: Of each its records in order of their offsets.
    """
    order = list(inputs.items())
    heap: list[tuple[int, int, Any]] = []
    for rank, (_, records) in enumerate(order):
        async for record in records:
            heap.append((record.timestamp, rank, record))
            break
    heapq.heapify(heap)
    while heap:
        time_ms, rank, record = heap[0]
        source, records = order[rank]
        yield Logged(time_ms, source, record)
        async for following in records:
            # A producer's clock may step back, an offset does not.
            heapq.heapreplace(heap, (max(time_ms, following.timestamp), rank, following))
            break
        else:
            heapq.heappop(heap)


@dataclass(slots=True)
class PastInputs:
    """Reads stretches of the inputs; to be had from `past_inputs`.

    Attributes:
        cut: By input partition, the time of its oldest record, where older ones were wanted and are gone.
    """

    kafka: KafkaSettings
    consumers: Mapping[InputSource, AIOKafkaConsumer]
    cut: dict[str, int] = field(default_factory=dict)

    async def records(
        self, number: int, since_ms: int, through: Mapping[InputSource, int] | None
    ) -> AsyncGenerator[Logged, None]:
        """The records of one partition number. One such reading at a time, closed before the next begins.

        Args:
            number: The partition number.
            since_ms: Records before this time may be left out.
            through: Of each input the last offset of interest, and only these inputs; None reads all to where they end now.

        Raises:
            KafkaError: The broker refuses.
            TimeoutError: The broker delivers nothing although there are more records.
        """
        wanted = SOURCES if through is None else [source for source in SOURCES if source in through]
        async with AsyncExitStack() as stack:
            inputs = {}
            for source in wanted:
                last = None if through is None else through[source]
                inputs[source] = await stack.enter_async_context(aclosing(self._input(source, number, since_ms, last)))
            log = await stack.enter_async_context(aclosing(merged(inputs)))
            async for logged in log:
                yield logged

    async def _input(
        self, source: InputSource, number: int, since_ms: int, last: int | None
    ) -> AsyncGenerator[Any, None]:
        consumer = self.consumers[source]
        tp = TopicPartition(self.kafka.topic(TOPIC_BY_SOURCE[source]), number)
        oldest = (await consumer.beginning_offsets([tp]))[tp]
        is_first = True
        async with aclosing(cast("AsyncGenerator[Any, None]", records_so_far(consumer, [tp], since_ms))) as records:
            async for record in records:
                if is_first and 0 < oldest == record.offset and record.timestamp > since_ms:
                    self.cut[f"{tp.topic}[{number}]"] = record.timestamp
                is_first = False
                if last is not None and record.offset > last:
                    return
                yield record
                if record.offset == last:
                    return


@asynccontextmanager
async def past_inputs(kafka: KafkaSettings) -> AsyncIterator[PastInputs]:
    """A reader that is connected, with a client for each input: each is read as far as the merge needs it.

    Raises:
        KafkaUnreachableError: No broker answers, or not any more, or it does not let us read.
    """
    async with AsyncExitStack() as stack:
        consumers = {}
        for source in SOURCES:
            reader = onlooker(kafka, "backtest", auto_offset_reset="earliest", fetch_max_wait_ms=FETCH_WAIT_MS)
            consumers[source] = await stack.enter_async_context(reader)
        yield PastInputs(kafka, consumers)


def last_offsets(closings: Sequence[Mapping[InputSource, int]]) -> dict[InputSource, int]:
    """Of each input the last offset that any of the calls counts."""
    last: dict[InputSource, int] = {}
    for through in closings:
        for source, offset in through.items():
            last[source] = max(offset, last.get(source, -1))
    return last
