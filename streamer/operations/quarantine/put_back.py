"""Puts refused records back: read again by their coordinates and appended to the same partition as new records.

Two kinds stay where they are. First, records that the evaluator reads again by itself when it starts: it begins at the
oldest open call, and a fixed evaluator accepts them in place; a copy would be folded twice. Second, records of closed
calls: an evaluator remembers closed calls for a while only, and would open a new call for a record that arrives days later.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError, MessageSizeTooLargeError

from consumers.engine.admission import Arrival, admit
from consumers.engine.limits import Limits
from consumers.engine.redaction.redactor import Redactor
from consumers.runtime.kafka.connection import KafkaSettings, explained
from schemas.closed_sets import InputSource
from schemas.events.envelope import ID_HEADER, SOURCE_HEADER
from schemas.quarantine import QuarantineRecord
from schemas.scores.records import ClosedFact
from schemas.topics import SOURCE_BY_TOPIC
from schemas.wire import MAX_NAME_CHARS
from streamer.cluster.coordinates import Coordinates
from streamer.cluster.record_reader import RecordGoneError, RecordReader
from streamer.time_bounds import shown_moment

REPLAY_OF_HEADER: Final = "callgauge_replay_of"
"""Names the record that was refused first, through any number of replays."""
CE_SOURCE: Final = "callgauge.quarantine"
IN_FLIGHT: Final = 100
"""Records on their way at a time: an interrupted replay may leave so many unreported."""

Headers = list[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome for one quarantine entry.

    Attributes:
        place: Coordinates of the refused record.
        appended: Coordinates of the new record; None when it was not appended.
        reason: The obstacle, a sentence without a full stop; None without one.
        is_needed: False when the evaluator accepts the record in its old place: then nothing is wrong.
    """

    place: Coordinates
    appended: Coordinates | None = None
    reason: str | None = None
    is_needed: bool = True

    @property
    def is_problem(self) -> bool:
        """Whether it should have been put back, and cannot be."""
        return self.reason is not None and self.is_needed

    def __str__(self) -> str:
        if self.appended is not None:
            return f"{self.place}: put back as {self.appended}"
        if self.reason is None:
            return f"{self.place}: would be put back"
        return f"{self.place}: {'not put back' if self.is_needed else 'not needed'}: {self.reason}"


class CannotReplayError(Exception):
    """This record cannot be put back; the text says why, as a sentence without a full stop."""


class ReplayNotNeededError(CannotReplayError):
    """This record would be folded twice: in its old place, and as a new record."""


@dataclass(frozen=True, slots=True)
class CallStates:
    """Where the calls are that refused records belong to.

    Attributes:
        committed: Per input partition, where an evaluator that starts now begins to read.
        closed: Calls that have closed, by conversation id.
    """

    committed: Mapping[TopicPartition, int] = field(default_factory=dict)
    closed: Mapping[str, ClosedFact] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RefusedRecords:
    """Refused records in the input topics, checked with today's code and settings.

    Attributes:
        kafka: The cluster.
        limits: Limits of the evaluator: they decide which records are refused again.
        reader: Reads the records.
        calls: State of their calls.
        redactor: Redacts their texts in messages.
    """

    kafka: KafkaSettings
    limits: Limits
    reader: RecordReader
    calls: CallStates
    redactor: Redactor = field(default_factory=Redactor)

    async def read(self, entry: QuarantineRecord) -> Any:
        """Reads the refused record.

        Raises:
            RecordGoneError: The record was deleted, or another one has its offset.
            KafkaError: The broker does not answer.
            TimeoutError: It does not hand the record over.
        """
        record = await self.reader.read(Coordinates.of(entry))
        key = (record.key or b"")[:MAX_NAME_CHARS].decode("utf-8", "replace")
        if key != entry.key or record.timestamp != entry.quarantined_at_ms:
            raise RecordGoneError("another record is there now: the topic was made anew since")
        return record

    def judged(self, record: Any, now_ms: int) -> Arrival | QuarantineRecord:
        """Checks the record as the evaluator would if the broker accepted it at `now_ms`."""
        return admit(self._source_of(record.topic), replace(record, timestamp=now_ms), self.limits, self.redactor)

    async def ready(self, entry: QuarantineRecord, now_ms: int) -> tuple[Any, Headers]:
        """The record to put back, and the headers to do it with.

        Raises:
            CannotReplayError: The record is deleted, would be refused again, belongs to a closed call, or is not needed.
            KafkaError: The broker does not answer.
            TimeoutError: It does not hand the record over.
        """
        try:
            record = await self.read(entry)
        except RecordGoneError as error:
            raise CannotReplayError(str(error)) from error
        arrival = self.judged(record, now_ms)
        if isinstance(arrival, QuarantineRecord):
            raise CannotReplayError(f"it would be refused again: {arrival.what}, {arrival.expected_and_seen}")
        if (closed := self.calls.closed.get(entry.key)) is not None:
            when = shown_moment(closed.caused_at_ms)
            raise CannotReplayError(f"its call has closed ({closed.reason}, {when} UTC) and is not reopened")
        # Committed offsets only grow, so a record before them now will not be read again.
        begin = self.calls.committed.get(TopicPartition(record.topic, record.partition), 0)
        if record.offset >= begin:
            raise ReplayNotNeededError(
                f"an evaluator that starts reads from @{begin} on, so one with the fix takes it where it stands"
            )
        return record, replay_headers(record, arrival)

    def _source_of(self, topic: str) -> InputSource:
        source = SOURCE_BY_TOPIC.get(topic.removeprefix(self.kafka.topic_prefix))
        if source is None:
            raise CannotReplayError(f"{topic} is no input topic of this installation")
        return source


def replay_headers(record: Any, arrival: Arrival) -> Headers:
    """The headers of the record, its old coordinates and, if it has none, an id by which a second replay is a repeat.

    A record that already identifies repeats (by an event id, or a simulator's sequence) keeps its headers: it may
    have been sent twice, and the two must stay the same event.

    Args:
        record: The record to put back.
        arrival: The record after the checks of the evaluator.
    """
    headers: Headers = list(record.headers)
    named = dict(headers)
    origin = named.get(REPLAY_OF_HEADER)
    if origin is None:
        origin = str(Coordinates(record.topic, record.partition, record.offset)).encode()
        headers.append((REPLAY_OF_HEADER, origin))
    is_simulator = arrival.source is InputSource.ELEVENLABS
    has_sequence = is_simulator and isinstance(getattr(arrival.event, "sequence", None), int)
    if not has_sequence and (arrival.envelope is None or arrival.envelope.id is None):
        headers.append((ID_HEADER, origin))
        if named.get(SOURCE_HEADER) is None:
            headers.append((SOURCE_HEADER, CE_SOURCE.encode()))
    return headers


async def put_back(
    records: RefusedRecords,
    producer: AIOKafkaProducer,
    entries: Sequence[QuarantineRecord],
    now_ms: int,
    stop: asyncio.Event,
) -> AsyncIterator[Outcome]:
    """Appends each record to its own partition again, in the order of `entries`; ends early when `stop` is set.

    After a failure of the broker the remaining records are not tried.

    Args:
        records: Reads and checks them.
        producer: A started one.
        entries: Entries to put back; those of one partition in the order of their offsets.
        now_ms: Broker time of the new records.
        stop: Ends it, after the records that are on their way.
    """
    left = iter(entries)
    is_well = True
    while is_well and not stop.is_set() and (batch := list(islice(left, IN_FLIGHT))):
        sent: list[tuple[Coordinates, asyncio.Future[Any] | Outcome]] = []
        for entry in batch:
            place = Coordinates.of(entry)
            try:
                sent.append((place, await _send(records, producer, entry, now_ms)))
            except CannotReplayError as error:
                sent.append((place, left_out(place, error)))
            except (KafkaError, TimeoutError) as error:
                is_well = False
                sent.append((place, _failed(place, error, records.kafka)))
                break
        for place, result in sent:
            if isinstance(result, Outcome):
                yield result
                continue
            try:
                metadata = await result
            except KafkaError as error:
                is_well = False
                yield _failed(place, error, records.kafka)
            else:
                yield Outcome(place, appended=Coordinates(metadata.topic, metadata.partition, metadata.offset))


async def _send(
    records: RefusedRecords, producer: AIOKafkaProducer, entry: QuarantineRecord, now_ms: int
) -> "asyncio.Future[Any]":
    """The acknowledgement to wait for."""
    record, headers = await records.ready(entry, now_ms)
    try:
        future: asyncio.Future[Any] = await producer.send(
            record.topic, record.value, key=record.key, partition=record.partition, headers=headers
        )
    except MessageSizeTooLargeError as error:
        size = len(record.value or b"")
        raise CannotReplayError(
            f"its {size} bytes are more than a producer of callgauge sends: fix it and send it where it came from"
        ) from error
    return future


def left_out(place: Coordinates, error: CannotReplayError) -> Outcome:
    """A record that is not put back, and why."""
    return Outcome(place, reason=str(error), is_needed=not isinstance(error, ReplayNotNeededError))


def _failed(place: Coordinates, error: Exception, kafka: KafkaSettings) -> Outcome:
    return Outcome(place, reason=f"the broker {explained(error, kafka.security).seen}")
