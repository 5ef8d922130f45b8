"""Reads the calls that somebody looks at: what the topics have of a call, then its new records while it is watched.

A call's page costs only while it is open. One client follows the partition of all watched calls in it, on `scores` and in the log,
and a client of its own reads what a call had before.
"""

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from pydantic import ValidationError

from consumers.console.fleet import Place
from consumers.console.watched import MAX_EVENTS, WatchedCall
from consumers.engine.limits import Limits
from consumers.engine.redaction.redactor import Redactor
from consumers.log.stretches import LEAD_MS, KeyRecords, Terms, events_of, offsets_at, only_of
from consumers.runtime.kafka.connection import (
    KafkaSettings,
    KafkaUnreachableError,
    TopicsUnfitError,
    murmur2_place,
    partition_counts,
)
from consumers.runtime.kafka.ranges import STALL_SECONDS, onlooker
from consumers.runtime.registry import Instruments
from schemas.scores.records import SCORE_RECORD, AnyScoreRecord, CallStartedFact
from schemas.topics import EVENTS_TOPIC, SCORES_TOPIC

POLL_MS: Final = 200
OPENING_WAIT_MS: Final = 20
"""The same while a page waits: a question about offsets waits behind a fetch that finds nothing."""
MAX_BATCH_RECORDS: Final = 5_000
"""Records of one poll. Most are of other calls and only their keys are looked at."""
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
            self._counts = await partition_counts(self._kafka, [SCORES_TOPIC, EVENTS_TOPIC])
        number = murmur2_place(key, self._counts[SCORES_TOPIC]) if place is None else place.partition
        partition = self._followed.get(number)
        if partition is None:
            partition = self._followed[number] = _Partition(self._kafka, number)
        watch.partition = partition
        partition.watches[key] = watch
        ends = await partition.started()
        scores = partition.scores
        options = {"auto_offset_reset": "earliest", "key_deserializer": only_of(key)}
        async with onlooker(self._kafka, "console", fetch_max_wait_ms=OPENING_WAIT_MS, **options) as consumer:
            end = ends[scores]
            if place is not None:
                start = place.scores_offset
            elif began_ms is not None and not self._kafka.is_embedded:
                start = (await offsets_at(consumer, {scores: end}, began_ms - LEAD_MS))[scores]
            else:
                start = max(0, end - MAX_SEARCHED)
            found = KeyRecords(consumer, key)
            await found.read({scores: (start, end)})
            records = await found.in_order()
            is_cut = start > 0 and not any(begins_call(record.value or b"") for record in records)
            if is_cut and found.first_ms is not None and not self._kafka.is_embedded:
                earlier = await offsets_at(
                    consumer, {scores: start}, found.first_ms - self._limits.max_call_duration_ms
                )
                await found.read({scores: (earlier[scores], start)})
                records = await found.in_order()
            first = first_score(record.value for record in records)
            if first is None:
                raise UnknownCallError
            events = await events_of(
                self._kafka,
                consumer,
                partition.events,
                ends[partition.events],
                first,
                idle_ms=self._limits.idle_ms,
                longest_ms=self._limits.max_call_duration_ms,
            )
            for record in records:
                watch.take(record, is_score=True)
            for record in await events.in_order():
                watch.take(record, is_score=False)
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
        self._waiting: list[tuple[Any, bool]] = []

    def take(self, record: Any, *, is_score: bool) -> None:
        """Takes in a record of `scores`, or of the log."""
        if not is_score:
            self.call.take_event(record)
        elif record.value is not None:
            self.call.take_score(record.value)

    def take_new(self, record: Any, *, is_score: bool) -> None:
        """Takes in a record that has just come."""
        if self.is_open:
            self.take(record, is_score=is_score)
        elif len(self._waiting) < MAX_EVENTS:
            self._waiting.append((record, is_score))
        else:
            self.call.leave_out(1)

    def open(self) -> None:
        """What was there before is read: takes in what came since."""
        self.is_open = self.call.is_whole = True
        for record, is_score in self._waiting:
            self.take(record, is_score=is_score)
        self._waiting.clear()


class _Partition:
    """Follows one partition number of `scores` and of the log, for the watched calls in it."""

    def __init__(self, kafka: KafkaSettings, number: int) -> None:
        self.number = number
        self.scores = TopicPartition(kafka.topic(SCORES_TOPIC), number)
        self.events = TopicPartition(kafka.topic(EVENTS_TOPIC), number)
        self.watches: dict[bytes, _Watch] = {}
        self._kafka = kafka
        self._terms = Terms()
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
        partitions = [self.scores, self.events]
        consumer.assign(partitions)
        if not self._next:
            self._next = await consumer.end_offsets(partitions)
        for tp, offset in self._next.items():
            consumer.seek(tp, offset)
        self._has_started.set()
        while True:
            batches = await consumer.getmany(timeout_ms=POLL_MS, max_records=MAX_BATCH_RECORDS)
            for tp, records in batches.items():
                is_score = tp == self.scores
                for record in records:
                    self._next[tp] = record.offset + 1  # also of a record that cannot be taken: it is not tried again
                    if watch := self.watches.get(record.key):
                        watch.take_new(record, is_score=is_score)
                    elif not is_score and self._terms.begins_with(record):
                        for each in self.watches.values():
                            each.take_new(record, is_score=False)


def begins_call(value: bytes) -> bool:
    """Whether this is the first score of a call."""
    if b'"call_started"' not in value:
        return False
    try:
        record = SCORE_RECORD.validate_json(value)
    except ValidationError:
        return False
    return isinstance(record, CallStartedFact) and record.is_first


def first_score(values: Iterable[bytes | None]) -> AnyScoreRecord | None:
    """The first of these values of `scores` that can be read."""
    for value in values:
        with contextlib.suppress(ValidationError):
            return SCORE_RECORD.validate_json(value or b"")
    return None
