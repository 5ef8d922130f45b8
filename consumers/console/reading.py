"""Reads the calls that somebody looks at: what the topics have of a call, then its new records while it is watched.

A call's page costs only while it is open. One client follows the partition of all watched calls in it, and a client of its own
reads what a call had before.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from consumers.console.fleet import Place
from consumers.console.watched import WatchedCall
from consumers.engine.limits import Limits
from consumers.engine.redaction.redactor import Redactor
from consumers.runtime.kafka.batches import OnlyBatchesWith
from consumers.runtime.kafka.connection import KafkaSettings, KafkaUnreachableError, TopicsUnfitError, partition_counts
from consumers.runtime.kafka.polling import murmur2_place
from consumers.runtime.kafka.ranges import Ranges, records_between
from consumers.runtime.registry import Instruments
from schemas.closed_sets import InputSource
from schemas.scores.records import AnyScoreRecord
from schemas.topics import SCORES_TOPIC, TOPIC_BY_SOURCE

POLL_MS: Final = 200
MAX_BATCH_RECORDS: Final = 5_000
"""Records of one poll. Most are of other calls and only their keys are looked at."""
MAX_PATIENCE_SECONDS: Final = 15.0
"""A broker that hands over nothing for this long, with records still to come, counts as away."""
LEAD_MS: Final = 120_000
"""How long before its first score the events of a call are looked for: it is announced with its first turn, or when it says its agent."""
KEPT_SECONDS: Final = 30.0
"""How long a call is followed after its last page was closed: a reload, or the next page, finds it read."""
RETRY_SECONDS: Final = 2.0
"""Pause before a partition is followed anew after a fault."""

_READ = {source: topic for source, topic in TOPIC_BY_SOURCE.items() if source is not InputSource.JUDGE}
"""The inputs that are folded. Verdicts decide scores alone, and scores are read from their topic."""

log = structlog.get_logger()


class TooManyWatchedError(Exception):
    """As many calls are watched as the settings allow."""


class UnknownCallError(Exception):
    """The topics have no score of the call."""


class WatchedCalls:
    """The calls that are watched now."""

    def __init__(
        self, kafka: KafkaSettings, limits: Limits, redactor: Redactor, most: int, instruments: Instruments
    ) -> None:
        """Nothing is connected before the first call is watched.

        Args:
            kafka: Where the topics are.
            limits: Those of the evaluator, so that a call is folded as there.
            redactor: Redacts the words of the calls.
            most: Calls watched at the same time.
            instruments: Count the calls that were watched and refused.
        """
        self._kafka = kafka
        self._limits = limits
        self._redactor = redactor
        self._most = most
        self._instruments = instruments
        self._watches: dict[str, _Watch] = {}
        self._followed: dict[int, _Partition] = {}
        self._counts: Mapping[str, int] = {}
        self._sources: dict[str, InputSource | None] = {
            kafka.topic(SCORES_TOPIC): None,
            **{kafka.topic(topic): source for source, topic in _READ.items()},
        }
        instruments.read_gauge("callgauge_console_calls_watched", lambda: {(): float(len(self._watches))})

    @asynccontextmanager
    async def watch(self, conversation_id: str, place: Place | None) -> AsyncIterator[WatchedCall]:
        """The call, read up to now and followed until the block ends.

        Args:
            conversation_id: Its id.
            place: Where its records begin; None looks for them in the whole partition of its id.

        Raises:
            TooManyWatchedError: There is no room for another call.
            UnknownCallError: The topics have no score of it.
            KafkaUnreachableError: No broker answers, or it stops handing over records.
            TopicsUnfitError: A topic is missing.
        """
        watch = self._watches.get(conversation_id)
        if watch is None:
            if len(self._watches) >= self._most and not self._drop_unwatched():
                self._instruments.inc("callgauge_console_refused_total", ("watched",))
                raise TooManyWatchedError
            call = WatchedCall(conversation_id, self._limits, self._redactor)
            watch = self._watches[conversation_id] = _Watch(call)
            watch.reading = asyncio.create_task(self._open(watch, place))
        watch.pages += 1
        if watch.leaving is not None:
            watch.leaving.cancel()
            watch.leaving = None
        try:
            await asyncio.shield(watch.reading)
            yield watch.call
        finally:
            watch.pages -= 1
            if watch.pages == 0:
                if watch.is_open:
                    loop = asyncio.get_running_loop()
                    watch.leaving = loop.call_later(KEPT_SECONDS, self._leave, conversation_id)
                else:
                    self._leave(conversation_id)

    async def close(self) -> None:
        """Stops following; harmless when repeated."""
        for conversation_id in list(self._watches):
            self._leave(conversation_id)
        await asyncio.gather(*(each.stop() for each in self._followed.values()), return_exceptions=True)
        self._followed.clear()

    def _drop_unwatched(self) -> bool:
        """Makes room by a call without a page; returns whether there was one."""
        idle = next((name for name, watch in self._watches.items() if watch.pages == 0), None)
        if idle is not None:
            self._leave(idle)
        return idle is not None

    def _leave(self, conversation_id: str) -> None:
        watch = self._watches.pop(conversation_id, None)
        if watch is None:
            return
        if watch.leaving is not None:
            watch.leaving.cancel()
        watch.reading.cancel()
        if (partition := watch.partition) is not None:
            partition.watches.pop(conversation_id.encode(), None)
            if not partition.watches:
                self._followed.pop(partition.number, None)
                asyncio.get_running_loop().create_task(partition.stop())

    async def _open(self, watch: "_Watch", place: Place | None) -> None:
        key = watch.call.conversation_id.encode()
        if not self._counts:
            self._counts = await partition_counts(self._kafka, [SCORES_TOPIC, *_READ.values()])
        number = murmur2_place(key, self._counts[SCORES_TOPIC]) if place is None else place.partition
        partition = self._followed.get(number)
        if partition is None:
            partition = self._followed[number] = _Partition(self._kafka, number, self._sources)
        watch.partition = partition
        partition.watches[key] = watch
        ends = await partition.started()
        scores = TopicPartition(self._kafka.topic(SCORES_TOPIC), number)
        async with _client(self._kafka, key_deserializer=OnlyBatchesWith(key)) as consumer:
            start = 0 if place is None else place.scores_offset
            for _, record in await call_records(consumer, {scores: (start, ends.pop(scores))}, key):
                watch.take(None, record)
            if not watch.call.scores:
                raise UnknownCallError
            starts = await input_starts(self._kafka, consumer, ends, watch.call.scores[0])
            inputs = {tp: (starts[tp], end) for tp, end in ends.items()}
            for tp, record in await call_records(consumer, inputs, key):
                watch.take(self._sources[tp.topic], record)
        watch.open()


class _Watch:
    """One watched call, its pages, and the records that came while it was still being read."""

    def __init__(self, call: WatchedCall) -> None:
        self.call = call
        self.pages = 0
        self.partition: _Partition | None = None
        self.leaving: asyncio.TimerHandle | None = None
        self.reading: asyncio.Task[None]
        self.is_open = False
        self._waiting: list[tuple[InputSource | None, Any]] = []

    def take(self, source: InputSource | None, record: Any) -> None:
        """Takes in a record that was there before; `source` is None for one of `scores`."""
        if source is not None:
            self.call.take_event(source, record)
        elif record.value is not None:
            self.call.take_score(record.value)

    def take_new(self, source: InputSource | None, record: Any) -> None:
        """Takes in a record that has just come."""
        if self.is_open:
            self.take(source, record)
        else:
            self._waiting.append((source, record))

    def open(self) -> None:
        """What was there before is read: takes in what came since."""
        self.is_open = self.call.is_whole = True
        for source, record in self._waiting:
            self.take(source, record)
        self._waiting.clear()


class _Partition:
    """Follows one partition number of `scores` and of the inputs, for the watched calls in it."""

    def __init__(self, kafka: KafkaSettings, number: int, sources: Mapping[str, InputSource | None]) -> None:
        self.number = number
        self.watches: dict[bytes, _Watch] = {}
        self._kafka = kafka
        self._sources = sources
        self._next: dict[TopicPartition, int] = {}
        self._has_started = asyncio.Event()
        self._following = asyncio.create_task(self._follow())

    async def started(self) -> dict[TopicPartition, int]:
        """The offsets from which new records are given to the watches; waits until there are some.

        Raises:
            KafkaUnreachableError: No broker answers.
        """
        waiting = asyncio.create_task(self._has_started.wait())
        await asyncio.wait(
            [waiting, self._following], return_when=asyncio.FIRST_COMPLETED, timeout=MAX_PATIENCE_SECONDS
        )
        waiting.cancel()
        if not self._has_started.is_set():
            raise self._kafka.unreachable(TimeoutError("no answer about the ends of the topics"))
        return dict(self._next)

    async def stop(self) -> None:
        """Stops following."""
        self._following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._following

    async def _follow(self) -> None:
        while True:
            try:
                async with _client(self._kafka) as consumer:
                    await self._read(consumer)
            except (KafkaUnreachableError, TopicsUnfitError) as error:
                log.warning(
                    "watched_calls_wait", role="console", partition=self.number, error=str(error),
                    what_happens_now="Open pages of calls show what was read, and go on when the broker answers.",
                )  # fmt: skip
                await asyncio.sleep(RETRY_SECONDS)

    async def _read(self, consumer: AIOKafkaConsumer) -> None:
        partitions = [TopicPartition(topic, self.number) for topic in self._sources]
        consumer.assign(partitions)
        if not self._next:
            self._next = await consumer.end_offsets(partitions)
        for tp, offset in self._next.items():
            consumer.seek(tp, offset)
        self._has_started.set()
        while True:
            batches = await consumer.getmany(timeout_ms=POLL_MS, max_records=MAX_BATCH_RECORDS)
            for tp, records in batches.items():
                source = self._sources[tp.topic]
                for record in records:
                    if watch := self.watches.get(record.key):
                        watch.take_new(source, record)
                self._next[tp] = records[-1].offset + 1


@asynccontextmanager
async def _client(kafka: KafkaSettings, **options: Any) -> AsyncIterator[AIOKafkaConsumer]:
    """A client that is connected and has no partitions.

    Raises:
        KafkaUnreachableError: No broker answers, at the start or later.
    """
    consumer = kafka.consumer("console", auto_offset_reset="earliest", fetch_max_wait_ms=POLL_MS, **options)
    try:
        await consumer.start()
        await asyncio.sleep(0)  # its stop fails when its own tasks have not run once
        yield consumer
    except (KafkaError, TimeoutError) as error:
        raise kafka.unreachable(error) from error
    finally:
        await consumer.stop()


async def input_starts(
    kafka: KafkaSettings, consumer: AIOKafkaConsumer, ends: Mapping[TopicPartition, int], first: AnyScoreRecord
) -> dict[TopicPartition, int]:
    """By partition of an input, an offset at or before the first event of a call with this first score; its end if there is none.

    Raises:
        KafkaError: The broker refuses.
    """
    if kafka.is_embedded:  # it knows no times, and has little
        return dict.fromkeys(ends, 0)
    by_time = await consumer.offsets_for_times(dict.fromkeys(ends, max(0, first.caused_at_ms - LEAD_MS)))
    known = {kafka.topic(topic): offset for topic, offset in first.offsets.items()}
    return {
        tp: min(each for each in (by_time[tp] and by_time[tp].offset, known.get(tp.topic), end) if each is not None)
        for tp, end in ends.items()
    }


async def call_records(consumer: AIOKafkaConsumer, ranges: Ranges, key: bytes) -> list[tuple[TopicPartition, Any]]:
    """The records with this key in some ranges of offsets, the end left out, in the order in which the broker took them.

    Raises:
        KafkaError: The broker refuses.
        TimeoutError: It hands over nothing although there is more.
    """
    found = [
        (record.timestamp, TopicPartition(record.topic, record.partition), record)
        async for record in records_between(consumer, ranges)
        if record.key == key
    ]
    found.sort(key=lambda each: (each[0], each[1].topic, each[2].offset))
    return [(tp, record) for _, tp, record in found]
