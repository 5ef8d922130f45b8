"""Reads the calls that somebody looks at: what the topics have of a call, then its new records while it is watched.

A call's page costs only while it is open. One client follows the partition of all watched calls in it, and a client of its own
reads what a call had before.
"""

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from itertools import accumulate
from typing import Any, Final

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from pydantic import ValidationError

from consumers.console.fleet import Place
from consumers.console.watched import MAX_EVENTS, WatchedCall
from consumers.engine.limits import Limits
from consumers.engine.redaction.redactor import Redactor
from consumers.runtime.kafka.batches import OnlyBatchesWith
from consumers.runtime.kafka.connection import (
    KafkaSettings,
    KafkaUnreachableError,
    TopicsUnfitError,
    murmur2_place,
    partition_counts,
)
from consumers.runtime.kafka.ranges import STALL_SECONDS, Ranges, onlooker, records_between
from consumers.runtime.registry import Instruments
from schemas.closed_sets import InputSource
from schemas.scores.records import SCORE_RECORD, AnyScoreRecord, CallStartedFact
from schemas.topics import SCORES_TOPIC, TOPIC_BY_SOURCE

POLL_MS: Final = 200
OPENING_WAIT_MS: Final = 20
"""The same while a page waits: a question about offsets waits behind a fetch that finds nothing."""
MAX_BATCH_RECORDS: Final = 5_000
"""Records of one poll. Most are of other calls and only their keys are looked at."""
LEAD_MS: Final = 60_000
"""How long before its first score a call usually has its first event: it is announced with its first turn, or when it says its agent."""
MAX_KEPT_BYTES: Final = 64 * 2**20
"""Bytes of the records of one call that are read for its page: an hour in which each turn has a prompt of 100 kB has a third."""
MAX_SEARCHED: Final = 2_000_000
"""Newest records of a partition of `scores` among which a call is looked for whose place is not known: the calls of some days."""
MAX_SEARCHES: Final = 4
"""Searches that wait for each other: there is one at a time, and a rest of the same length behind it."""
UNKNOWN_SECONDS: Final = 60.0
"""How long an id that was not found is not looked for again; once it has a score, its place is known."""
MAX_UNKNOWN: Final = 10_000
"""Ids remembered that were not found."""
KEPT_SECONDS: Final = 30.0
"""How long a call is followed after its last page was closed: a reload, or the next page, finds it read."""
RETRY_SECONDS: Final = 2.0
"""Pause before a partition is followed anew after a fault."""
STOP_SECONDS: Final = 1.0
"""How long disconnecting may take."""

_READ = {source: topic for source, topic in TOPIC_BY_SOURCE.items() if source is not InputSource.JUDGE}
"""The inputs that are folded. Verdicts decide scores alone, and scores are read from their topic."""

log = structlog.get_logger()


class TooManyWatchedError(Exception):
    """As many calls are watched, or looked for, as is allowed; the text says which."""


class ConsoleEndsError(Exception):
    """The console ends before the call is read."""


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
        self._searching = asyncio.Lock()
        self._search_from = 0.0
        self._searches = 0
        self._unknown: OrderedDict[str, float] = OrderedDict()
        self._sources: dict[str, InputSource | None] = {
            kafka.topic(SCORES_TOPIC): None,
            **{kafka.topic(topic): source for source, topic in _READ.items()},
        }
        instruments.read_gauge("callgauge_console_calls_watched", lambda: {(): float(len(self._watches))})

    @asynccontextmanager
    async def watch(
        self, conversation_id: str, place: Place | None, began_ms: int | None = None
    ) -> AsyncIterator[WatchedCall]:
        """The call, read up to now and followed until the block ends.

        Args:
            conversation_id: Its id.
            place: Where its records begin, if that is known.
            began_ms: Otherwise the broker time of the cause of its first score. If that is not known either, the newest records of
                the partition of its id are searched for it.

        Raises:
            TooManyWatchedError: There is no room for another call, or for another search.
            ConsoleEndsError: The calls were closed meanwhile.
            UnknownCallError: The topics have no score of it.
            KafkaUnreachableError: No broker answers, or it stops handing over records.
            TopicsUnfitError: A topic is missing.
        """
        watch = self._watches.get(conversation_id)
        if watch is None:
            is_search = place is None and began_ms is None
            if is_search and time.monotonic() - self._unknown.get(conversation_id, -UNKNOWN_SECONDS) < UNKNOWN_SECONDS:
                raise UnknownCallError
            if is_search and self._searches >= MAX_SEARCHES:
                self._instruments.inc("callgauge_console_refused_total", ("searches",))
                raise TooManyWatchedError("As many calls are being looked for as the console does at a time.")
            if len(self._watches) >= self._most and not self._drop_unwatched():
                self._instruments.inc("callgauge_console_refused_total", ("watched",))
                raise TooManyWatchedError("As many calls are watched as console.max_watched allows.")
            call = WatchedCall(conversation_id, self._limits, self._redactor)
            watch = self._watches[conversation_id] = _Watch(call)
            opening = self._search(watch) if is_search else self._open(watch, place, began_ms)
            watch.reading = asyncio.create_task(opening)
            if is_search:
                self._searches += 1
                watch.reading.add_done_callback(self._search_ended)
        watch.pages += 1
        if watch.leaving is not None:
            watch.leaving.cancel()
            watch.leaving = None
        try:
            await asyncio.wait([watch.reading])
            if watch.reading.cancelled():
                raise ConsoleEndsError
            watch.reading.result()
            yield watch.call
        finally:
            watch.pages -= 1
            if watch.pages == 0:
                if watch.is_open:
                    loop = asyncio.get_running_loop()
                    watch.leaving = loop.call_later(KEPT_SECONDS, self._leave, conversation_id)
                else:
                    self._leave(conversation_id)

    def follows(self, conversation_id: str) -> bool:
        """Whether the call is read already, or was a moment ago."""
        watch = self._watches.get(conversation_id)
        return watch is not None and watch.is_open

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

    async def _search(self, watch: "_Watch") -> None:
        """Opens a call of which only the id is known. Searches come one after the other, and take half of the time at most.

        Raises:
            UnknownCallError: It was not found.
        """
        async with self._searching:
            await asyncio.sleep(max(0.0, self._search_from - time.monotonic()))
            began = time.monotonic()
            try:
                await self._open(watch, None, None)
            except UnknownCallError:
                self._unknown[watch.call.conversation_id] = time.monotonic()
                self._unknown.move_to_end(watch.call.conversation_id)
                if len(self._unknown) > MAX_UNKNOWN:
                    self._unknown.popitem(last=False)
                raise
            finally:
                self._search_from = 2 * time.monotonic() - began

    def _search_ended(self, _: "asyncio.Task[None]") -> None:
        self._searches -= 1

    async def _open(self, watch: "_Watch", place: Place | None, began_ms: int | None) -> None:
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
        options = {"auto_offset_reset": "earliest", "key_deserializer": OnlyBatchesWith(key)}
        async with onlooker(self._kafka, "console", fetch_max_wait_ms=OPENING_WAIT_MS, **options) as consumer:
            end = ends.pop(scores)
            if place is not None:
                start = place.scores_offset
            elif began_ms is not None and not self._kafka.is_embedded:
                start = (await offsets_at(consumer, {scores: end}, began_ms - LEAD_MS))[scores]
            else:
                start = max(0, end - MAX_SEARCHED)
            found = CallRecords(consumer, key)
            await found.read({scores: (start, end)})
            records = await found.in_order()
            is_cut = start > 0 and not any(begins_call(record.value or b"") for _, record in records)
            if is_cut and found.first_ms is not None and not self._kafka.is_embedded:
                earlier = await offsets_at(
                    consumer, {scores: start}, found.first_ms - self._limits.max_call_duration_ms
                )
                await found.read({scores: (earlier[scores], start)})
                records = await found.in_order()
            first = first_score(record.value for _, record in records)
            if first is None:
                raise UnknownCallError
            events = await events_of(self._kafka, consumer, ends, first, self._limits)
            for _, record in records:
                watch.take(None, record)
            for tp, record in await events.in_order():
                watch.take(self._sources[tp.topic], record)
            watch.call.leave_out(found.left_out + events.left_out)
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
        """Takes in a record; `source` is None for one of `scores`."""
        if source is not None:
            self.call.take_event(source, record)
        elif record.value is not None:
            self.call.take_score(record.value)

    def take_new(self, source: InputSource | None, record: Any) -> None:
        """Takes in a record that has just come."""
        if self.is_open:
            self.take(source, record)
        elif len(self._waiting) < MAX_EVENTS:
            self._waiting.append((source, record))
        else:
            self.call.leave_out(1)

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
        await asyncio.wait([waiting, self._following], return_when=asyncio.FIRST_COMPLETED, timeout=STALL_SECONDS)
        waiting.cancel()
        if not self._has_started.is_set():
            raise self._kafka.unreachable(TimeoutError("no answer about the ends of the topics"))
        return dict(self._next)

    async def stop(self) -> None:
        """Stops following; waits for its end no longer than it may take."""
        self._following.cancel()
        await asyncio.wait([self._following], timeout=STOP_SECONDS)

    async def _follow(self) -> None:
        while True:
            try:
                options = {"auto_offset_reset": "earliest", "fetch_max_wait_ms": POLL_MS}
                async with onlooker(self._kafka, "console", **options) as consumer:
                    await self._read(consumer)
            except (KafkaUnreachableError, TopicsUnfitError) as error:
                log.warning(
                    "watched_calls_wait", role="console", partition=self.number, error=str(error),
                    what_happens_now="Open pages of calls show what was read, and go on when the broker answers.",
                )  # fmt: skip
            except Exception:  # one record that cannot be taken must not stop the pages of all calls of the partition
                log.exception("watched_calls_fault", role="console", partition=self.number)
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
                    self._next[tp] = record.offset + 1  # also of a record that cannot be taken: it is not tried again
                    if watch := self.watches.get(record.key):
                        watch.take_new(source, record)


def begins_call(value: bytes) -> bool:
    """Whether this is the first score of a call."""
    if b'"call_started"' not in value:
        return False
    try:
        record = SCORE_RECORD.validate_json(value)
    except ValidationError:
        return False
    return isinstance(record, CallStartedFact) and record.revision == 1


def first_score(values: Iterable[bytes | None]) -> AnyScoreRecord | None:
    """The first of these values of `scores` that can be read."""
    for value in values:
        with contextlib.suppress(ValidationError):
            return SCORE_RECORD.validate_json(value or b"")
    return None


class CallRecords:
    """The records of one call in some ranges of offsets, in the order in which the broker took them.

    Attributes:
        left_out: Records that were not kept, the latest ones: there were more than the bounds allow.
    """

    def __init__(self, consumer: AIOKafkaConsumer, key: bytes) -> None:
        self.left_out = 0
        self._consumer = consumer
        self._key = key
        self._kept: list[tuple[int, TopicPartition, Any]] = []
        self._bytes = 0

    async def in_order(self) -> list[tuple[TopicPartition, Any]]:
        """All of them. Sorting a hundred thousand takes a tenth of a second, so another thread does it."""
        await asyncio.to_thread(self._cut)
        return [(tp, record) for _, tp, record in self._kept]

    @property
    def first_ms(self) -> int | None:
        """Broker time of the first one; None without any."""
        return min((at_ms for at_ms, _, _ in self._kept), default=None)

    async def read(self, ranges: Ranges) -> None:
        """Reads further ranges, the end of each left out.

        Raises:
            KafkaError: The broker refuses.
            TimeoutError: It hands over nothing although there is more.
        """
        async for record in records_between(self._consumer, ranges):
            if record.key == self._key:
                self._kept.append((record.timestamp, TopicPartition(record.topic, record.partition), record))
                self._bytes += len(record.value or b"")
                if len(self._kept) > 2 * MAX_EVENTS or self._bytes > 2 * MAX_KEPT_BYTES:
                    await asyncio.to_thread(self._cut)

    def _cut(self) -> None:
        self._kept.sort(key=lambda each: (each[0], each[1].topic, each[2].offset))
        sizes = accumulate(len(record.value or b"") for _, _, record in self._kept)
        kept = min(MAX_EVENTS, sum(size <= MAX_KEPT_BYTES for size in sizes))
        self.left_out += len(self._kept) - kept
        del self._kept[kept:]
        self._bytes = sum(len(record.value or b"") for _, _, record in self._kept)


async def offsets_at(
    consumer: AIOKafkaConsumer, ends: Mapping[TopicPartition, int], at_ms: int
) -> dict[TopicPartition, int]:
    """By partition the first offset from this moment of broker time on; its end if there is none.

    Raises:
        KafkaError: The broker refuses.
    """
    found = await consumer.offsets_for_times(dict.fromkeys(ends, max(0, at_ms)))
    return {tp: end if found[tp] is None else min(found[tp].offset, end) for tp, end in ends.items()}


async def events_of(
    kafka: KafkaSettings,
    consumer: AIOKafkaConsumer,
    ends: Mapping[TopicPartition, int],
    first: AnyScoreRecord,
    limits: Limits,
) -> CallRecords:
    """The events of a call, from its first one on.

    Nothing names the first one. But a call that is silent for `idle_ms` is closed, so before its first event is such a silence.

    Args:
        kafka: Where the topics are.
        consumer: A started consumer.
        ends: By partition of an input, the end of what is read.
        first: Its first score.
        limits: Those of the evaluator.

    Raises:
        KafkaError: The broker refuses.
        TimeoutError: It hands over nothing although there is more.
    """
    found = CallRecords(consumer, first.conversation_id.encode())
    if kafka.is_embedded:  # it knows no times, and has little
        await found.read({tp: (0, end) for tp, end in ends.items()})
        return found
    from_ms = first.caused_at_ms - LEAD_MS - limits.idle_ms
    begun = await offsets_at(consumer, ends, from_ms)
    known = {kafka.topic(topic): offset for topic, offset in first.offsets.items()}
    begun = {tp: min(offset, known.get(tp.topic, offset)) for tp, offset in begun.items()}
    await found.read({tp: (begun[tp], end) for tp, end in ends.items()})
    oldest_ms = first.caused_at_ms - limits.max_call_duration_ms
    while found.first_ms is not None and oldest_ms < found.first_ms - limits.idle_ms < from_ms:
        from_ms = found.first_ms - limits.idle_ms
        earlier = await offsets_at(consumer, begun, from_ms)
        await found.read({tp: (earlier[tp], begun[tp]) for tp in begun})
        begun = earlier
    return found
