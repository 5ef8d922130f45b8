"""Appending to the log: events at the place that their key gives them, ticks behind them, and
refused records to quarantine.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import structlog
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError

from consumers.engine.admission import unfit_bytes, unfit_headers
from consumers.runtime.kafka.connection import KafkaSettings, TopicsUnfitError, murmur2_place
from consumers.runtime.kafka.polling import CLOSE_SECONDS
from consumers.runtime.kafka.ranges import FETCH_BYTES, onlooker, records_between
from consumers.runtime.process import OperatorError, in_time, wall_clock_ms
from consumers.runtime.received import MAX_QUARANTINE_LINES
from consumers.runtime.registry import Instruments
from consumers.sequencer.merge import InputPartition, Witness
from consumers.sequencer.settings import SequencerSettings
from schemas.closed_sets import InputSource
from schemas.log import (
    OUR_HEADERS,
    Headers,
    LogError,
    Next,
    Origin,
    Placed,
    Tick,
    placed_in,
    tick_term,
)
from schemas.quarantine import QuarantineRecord
from schemas.topics import EVENTS_TOPIC, QUARANTINE_TOPIC

MAX_BACK_RECORDS: Final = 500_000
"""Records of a partition that are read back at most: more than one that was replaced appends before
it knows, and 10 s of reading.
"""

log = structlog.get_logger()


class AppendError(OperatorError):
    """The log or the quarantine took a record not, or perhaps not. The role must end: what follows
    must not stand before it.
    """


class Share(NamedTuple):
    """The part of the log that one active sequencer writes: the partitions whose number is `shard`
    modulo `shards`, of `partitions`.
    """

    shard: int
    shards: int
    partitions: int

    @property
    def numbers(self) -> range:
        """Its partition numbers."""
        return range(self.shard, self.partitions, self.shards)


class _Batches:
    """Batches that are built, in order, by partition."""

    def __init__(self, create: Callable[[], Any]) -> None:
        self.by_partition = defaultdict[int, list[Any]](lambda: [create()])
        self._create = create
        self._now_ms = wall_clock_ms()

    def put(self, number: int, key: bytes | None, value: bytes | None, headers: Headers) -> None:
        batches = self.by_partition[number]
        # A full batch takes nothing more, and an empty one takes a record of any size.
        while (
            batches[-1].append(timestamp=self._now_ms, key=key, value=value, headers=headers)
            is None
        ):
            batches.append(self._create())


class LogWriter:
    """Appends in one term. What it has appended is acknowledged when a method returns."""

    def __init__(
        self,
        kafka: KafkaSettings,
        settings: SequencerSettings,
        instruments: Instruments,
        share: Share,
        term: int,
    ) -> None:
        """Nothing is connected."""
        self._instruments = instruments
        self._share = share
        self._term = term
        self._max_record_bytes = settings.max_record_bytes
        self._tick_ms = settings.tick_ms
        self._told_ms = dict.fromkeys(share.numbers, 0)
        self._left_out: Sequence[str] = ()
        self._topic, self._quarantine = kafka.topic(EVENTS_TOPIC), kafka.topic(QUARANTINE_TOPIC)
        self._producer: AIOKafkaProducer = kafka.producer("sequencer")

    async def start(self) -> None:
        """Connects.

        Raises:
            KafkaError: No broker answers.
        """
        await self._producer.start()

    async def stop(self) -> None:
        """Disconnects; bounded. What is in flight then may come behind the ticks of a successor,
        where it is void.
        """
        with suppress(TimeoutError):
            await in_time(CLOSE_SECONDS, self._producer.stop())

    async def append(self, records: Iterable[tuple[InputPartition, Any]], known_ms: int) -> None:
        """Appends records in this order. Those of other shares are left to them.

        In front of a record a tick tells the time, if `tick_ms` or more have passed in its
        partition since the last one: of a backlog minutes may be appended at once, and what silence
        decides in them is decided in front of the event that ends the silence.

        Args:
            records: The records, in the order of their times.
            known_ms: The time that may be told behind them all. In front of a record it is that, or
                the record's if that is lower.

        Raises:
            AppendError: It could not.
        """
        (shard, shards, partitions), term = self._share, self._term
        batches = _Batches(self._producer.create_batch)
        events: Counter[InputSource] = Counter()
        refused: list[tuple[InputSource, QuarantineRecord]] = []
        for each, record in records:
            unfit = unfit_bytes(record, self._max_record_bytes) or (
                record.headers and unfit_headers(record)
            )
            if unfit:
                if record.partition % shards == shard:
                    refused.append((each.source, unfit))
                continue
            number = murmur2_place(record.key, partitions)
            if number % shards != shard:
                continue
            origin = Origin(
                each.source, each.generation, record.partition, record.offset, record.timestamp
            )
            headers = [header for header in record.headers if header[0] not in OUR_HEADERS]
            headers.append(Placed(term, origin).header())
            passed_ms = min(record.timestamp, known_ms)
            if passed_ms - self._told_ms[number] >= self._tick_ms:
                self._told_ms[number] = passed_ms
                tick = Tick.of(term, passed_ms, {}, self._left_out)
                batches.put(number, None, tick.value(), [tick.header()])
            batches.put(number, record.key, record.value, headers)
            events[each.source] += 1
        await self._send(batches.by_partition, refused)
        for source, count in events.items():
            self._instruments.inc("callgauge_sequencer_events_total", (source.value,), count)
        self._tell(refused)

    async def tick(self, tick: Tick) -> Sequence[Any]:
        """Appends a tick to each partition; returns where the brokers put them, and when.

        Raises:
            AppendError: It could not.
        """
        batches = _Batches(self._producer.create_batch)
        value, headers = tick.value(), [tick.header()]
        for number in self._share.numbers:
            batches.put(number, None, value, headers)
        self._told_ms = dict.fromkeys(self._share.numbers, tick.known_ms)
        self._left_out = tick.left_out
        return await self._send(batches.by_partition, ())

    async def _send(
        self, built: dict[int, list[Any]], refused: Iterable[tuple[InputSource, QuarantineRecord]]
    ) -> Sequence[Any]:
        """Sends one batch to each partition and waits for all, then the next ones: a later one
        never stands before a lost one. Returns what the brokers say of each.
        """
        answers: list[Any] = []
        try:
            sent = [
                await self._producer.send(
                    self._quarantine, each.model_dump_json().encode(), key=each.key.encode()
                )
                for _, each in refused
            ]
            while built or sent:
                for number, batches in built.items():
                    batch = batches.pop(0)
                    batch.close()
                    sent.append(
                        await self._producer.send_batch(batch, self._topic, partition=number)
                    )
                for acknowledged in await asyncio.gather(*sent, return_exceptions=True):
                    if isinstance(acknowledged, BaseException):
                        raise acknowledged
                    answers.append(acknowledged)
                sent, built = [], {number: batches for number, batches in built.items() if batches}
        except KafkaError as error:
            raise AppendError(
                f"Topic {self._topic}: a record was not appended, or was without an answer: "
                f"{error!r}. The sequencer ends; the next one goes on from what the log has, and "
                "repeats are dropped by who reads it. Check the brokers and the topic."
            ) from error
        return answers

    def _tell(self, refused: Sequence[tuple[InputSource, QuarantineRecord]]) -> None:
        for number, (source, record) in enumerate(refused):
            self._instruments.inc(
                "callgauge_sequencer_refused_total", (source.value, record.reason.value)
            )
            if number < MAX_QUARANTINE_LINES:
                log.warning(
                    "record_quarantined",
                    conversation_id=record.key or None,
                    topic=record.topic,
                    partition=record.partition,
                    offset=record.offset,
                    reason=record.reason.value,
                    message=record.message(),
                )
        if len(refused) > MAX_QUARANTINE_LINES:
            log.warning("more_records_quarantined", records=len(refused) - MAX_QUARANTINE_LINES)


# What the log says about where its sequencer stood.


class LogEndFacts:
    """Collects what the end of the log says about its sequencers and their inputs.

    Attributes:
        term: The highest in it; 0 if there is none.
        known_ms: Known time of the newest ticks of the highest term that say where the inputs
            stand.
        places: Where the inputs stood in them.
        read_up_to: By partition of the log, the offset up to which it was read.
    """

    def __init__(self) -> None:
        self.term = 0
        self.known_ms = 0
        self.places: dict[tuple[InputSource, int], Next] = {}
        self.read_up_to: dict[int, int] = {}
        self._tick_term = -1
        self._times_ms: dict[tuple[InputSource, int], int] = {}
        self._witnesses: dict[tuple[InputSource, int], tuple[Next, Witness]] = {}

    def read_record(self, record: Any) -> int | None:
        """Takes a record of the log, in any order; returns the term of a tick that says where the
        inputs stand.

        Raises:
            LogError: It cannot be read.
        """
        if (placed := placed_in(record.headers)) is not None:
            self.term = max(self.term, placed.term)
            source, generation, partition, offset, time_ms = placed.origin
            after, known = Next(generation, offset + 1), self._witnesses.get((source, partition))
            if known is None or known[0] < after:
                witness = Witness.of(time_ms, record.key, record.value)
                self._witnesses[source, partition] = after, witness
            return None
        if (term := tick_term(record.headers)) is None:
            return None
        self.term = max(self.term, term)
        tick = Tick.parse(record.value)
        if not tick.inputs:  # it tells time, of its partition alone
            return None
        if term > self._tick_term:  # ticks of a term before are void, or were in front of these
            self._tick_term, self.known_ms, self.places, self._times_ms = term, 0, {}, {}
        if term == self._tick_term:
            self.known_ms = max(self.known_ms, tick.known_ms)
            times_ms = tick.times_ms
            for place, reached in tick.positions.items():
                if reached >= self.places.get(place, reached):
                    self.places[place], self._times_ms[place] = reached, times_ms.get(place, 0)
        return term

    def witnessed(self) -> Mapping[tuple[InputSource, int], tuple[Next, Witness | None]]:
        """Returns the places, and what is known of the record before each: the event itself, or its
        time alone.
        """
        found: dict[tuple[InputSource, int], tuple[Next, Witness | None]] = {}
        for place, reached in self.places.items():
            time_ms, (after, witness) = self._times_ms[place], self._witnesses.get(place, _NONE)
            if after != reached:
                witness = Witness(time_ms, None) if time_ms else None
            found[place] = reached, witness
        return found


_NONE: Final = (None, None)


def _onlooker(kafka: KafkaSettings) -> Any:
    return onlooker(kafka, "sequencer-end", max_partition_fetch_bytes=FETCH_BYTES)


async def _read(
    consumer: Any, found: LogEndFacts, ranges: Mapping[TopicPartition, tuple[int, int]]
) -> AsyncIterator[tuple[int, int]]:
    """Reads ranges of the log; yields the partition and the term of each tick that says where the
    inputs stand.
    """
    try:
        async for record in records_between(consumer, ranges):
            term = found.read_record(record)
            if term is not None:
                yield record.partition, term
    except LogError as error:
        raise TopicsUnfitError(
            f"Topic {record.topic}[{record.partition}]@{record.offset}: {error}. Only sequencers "
            "of this version may write there, so this one does not start. Take the right from who "
            "else writes, or make the topic again while no call runs."
        ) from error


async def read_back(
    kafka: KafkaSettings, share: Share, least_records: int, least_term: int
) -> LogEndFacts:
    """Reads the end of each partition of a share, at least so many records and back to a tick that
    says where the inputs stand.

    A sequencer that was replaced, and woke, may have appended any number of records behind those of
    its successor. So it is read back to a tick of at least the term that is known to have begun;
    without that to the beginning of the log, or `MAX_BACK_RECORDS`.

    Raises:
        KafkaUnreachableError: No broker answers.
        TopicsUnfitError: Somebody else writes to the log.
    """
    found, topic, most = LogEndFacts(), kafka.topic(EVENTS_TOPIC), least_records
    async with _onlooker(kafka) as consumer:
        looking = [TopicPartition(topic, number) for number in share.numbers]
        begins = await consumer.beginning_offsets(looking)
        ends = await consumer.end_offsets(looking)
        found.read_up_to = {tp.partition: end for tp, end in ends.items()}
        firsts = {tp: max(begins[tp], ends[tp] - MAX_BACK_RECORDS) for tp in looking}
        while looking:
            ranges = {tp: (max(firsts[tp], ends[tp] - most), ends[tp]) for tp in looking}
            async for number, term in _read(consumer, found, ranges):
                if term >= least_term:
                    looking = [tp for tp in looking if tp.partition != number]
            looking = [tp for tp in looking if ranges[tp][0] > firsts[tp]]
            ends, most = {tp: ranges[tp][0] for tp in looking}, 2 * most
    if found.term < least_term:
        log.error(
            "log_lost_its_end",
            expected_term=least_term,
            seen_term=found.term,
            what_happens_now=(
                "Events go on from what the log still has: what stood behind it is appended again."
            ),
            what_to_do=(
                "See to the disks of the brokers, and to unclean elections. If the topic was made "
                "again, this is no loss."
            ),
        )
    return found


async def read_on(kafka: KafkaSettings, found: LogEndFacts, ends: Mapping[int, int]) -> None:
    """Reads the log on up to these offsets by partition, behind which nothing of a lower term
    counts: until then another sequencer may have appended.

    Without that, one that thawed and went on might count an input as recreated once more than we
    do, and readers would take all that we append of it for repeats.

    Raises:
        KafkaUnreachableError: No broker answers.
        TopicsUnfitError: Somebody else writes to the log.
    """
    topic = kafka.topic(EVENTS_TOPIC)
    ranges = {
        TopicPartition(topic, number): (found.read_up_to[number], end)
        for number, end in ends.items()
        if end > found.read_up_to[number]
    }
    async with _onlooker(kafka) as consumer:
        async for _ in _read(consumer, found, ranges):
            pass
