"""Writes the decisions of a partition: effects become records, decisions wait whole, and go out in transactions."""

import asyncio
import contextlib
import math
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, islice, pairwise
from typing import Any, Final, NamedTuple, assert_never

import structlog
from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    IllegalOperation,
    KafkaError,
    MessageSizeTooLargeError,
    OutOfOrderSequenceNumber,
    ProducerFenced,
    RecordListTooLargeError,
)

from consumers.engine.effects import (
    CloseCall,
    Count,
    Effect,
    NotUnderstood,
    OpenCall,
    PublishScore,
    RequestVerdict,
)
from consumers.evaluator.recovery import OrderStarts, PlacedStart
from consumers.evaluator.settings import EvaluatorSettings
from consumers.runtime.kafka.connection import KafkaSettings
from consumers.runtime.process import OperatorError, in_time, wall_clock_ms
from consumers.runtime.registry import Instruments
from schemas.judging import REPLY_PARTITION_HEADER, JudgeRequest
from schemas.metrics.process import STEP_METRIC
from schemas.order import WRITER_HEADER, OrderEncoder, OrderStart, Positions, order_value
from schemas.quarantine import QuarantineRecord
from schemas.scores.records import AnyScoreRecord, CallValues, ClosedFact, GoalsFact, TurnValues
from schemas.topics import (
    JUDGE_REQUESTS_TOPIC,
    MAX_BATCH_BYTES,
    ORDER_TOPIC,
    OWNER_MARK_KEY,
    QUARANTINE_TOPIC,
    SCORES_TOPIC,
    TRANSCRIPTS_TOPIC,
)
from schemas.transcript import Transcript
from schemas.units import to_seconds

# Unwritten decisions of a partition, in order. What one step decided is written whole or not at all.

Written = AnyScoreRecord | QuarantineRecord | JudgeRequest | Transcript

MAX_TRANSACTION_RECORDS: Final = 1_000
"""Number of records at which a transaction takes no further decision: some 500 kB, far below the broker's limit."""
MAX_TRANSACTION_STEPS_BYTES: Final = 256 * 1_024
"""Bytes of steps at which it takes no further decision either: its record of `order` stays below the broker's limit."""
MAY_WAIT: Final = (TurnValues, CallValues, ClosedFact, Transcript)
"""Records that sum up what is over, so half a second more changes nothing. All others are moments: they are written at once."""
RESTS: Final = 3
"""A writer rests this many times as long as its last transaction took: on a busy machine more decisions share a transaction."""


class Trip(NamedTuple):
    """When the event of a decision passed the first points of its way, in epoch milliseconds.

    Attributes:
        produced: The broker's timestamp of the event.
        polled: When the evaluator began with the poll that had it.
        folded: When its records were decided.
    """

    produced: int
    polled: int
    folded: int


class Decision(NamedTuple):
    """The records that one step decided, and the steps before it.

    Attributes:
        records: Records to write.
        steps: All steps since the decision before it, encoded; this step is the last.
        version: Version of the steps, from `order_version`.
        positions: By input, the offset after the last record folded before them.
        time_ms: Broker time up to which silence was decided before them.
        trip: The way of the event that this step folded; None if time passed, or if it was decided again.
    """

    records: tuple[Written, ...]
    steps: bytes
    version: str
    positions: Positions
    time_ms: int
    trip: Trip | None = None


class Bell:
    """Wakes the writer of some outboxes.

    Attributes:
        filled: Set while one of them has a decision.
        due: Set while one of them has a decision that must not wait.
    """

    def __init__(self) -> None:
        self.filled = asyncio.Event()
        self.due = asyncio.Event()

    async def until_due(self, patience_seconds: float) -> None:
        """Waits until there is a moment to write, enough for a whole transaction, or anything for so many seconds."""
        await self.filled.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_seconds):
                await self.due.wait()

    def settle(self, outboxes: Iterable["Outbox"]) -> None:
        """Rings no longer than these outboxes need it."""
        outboxes = tuple(outboxes)
        if not any(each.is_filled for each in outboxes):
            self.filled.clear()
        if not any(each.is_due for each in outboxes):
            self.due.clear()


class Outbox:
    """Decisions that wait to be written, and the tasks that wait for that.

    Attributes:
        waiting_since: Since when something waits and nothing is written, in seconds of the monotonic clock; None if nothing waits.
    """

    def __init__(self) -> None:
        self.waiting_since: float | None = None
        self._decisions: deque[Decision] = deque()
        self._records = 0
        self._put = 0
        self._done = 0
        self._waiting = 0
        self._emptied = asyncio.Event()
        self._emptied.set()
        self._bell: Bell | None = None

    @property
    def records(self) -> int:
        """Number of unwritten records."""
        return self._records

    @property
    def put_so_far(self) -> int:
        """Number of decisions put since the start. It marks a moment for `has_written`."""
        return self._put

    @property
    def is_filled(self) -> bool:
        """Whether there is a decision to write."""
        return bool(self._decisions)

    @property
    def is_due(self) -> bool:
        """Whether a decision must not wait: it has a moment, fills a transaction, or somebody waits until it is written."""
        if not self._decisions:
            return False
        return bool(self._waiting) or self._records >= MAX_TRANSACTION_RECORDS or any(map(_is_moment, self._decisions))

    def wakes(self, bell: Bell) -> None:
        """Rings this bell from now on, when there is something to write."""
        self._bell = bell
        self._ring()

    def put(self, decision: Decision) -> None:
        """Adds a decision behind all others."""
        self.waiting_since = self.waiting_since or time.monotonic()
        self._decisions.append(decision)
        self._records += len(decision.records)
        self._put += 1
        self._emptied.clear()
        if self._bell is not None:
            self._bell.filled.set()
            if _is_moment(decision) or self._records >= MAX_TRANSACTION_RECORDS:
                self._bell.due.set()

    def first(self) -> list[Decision]:
        """Returns the decisions of the next transaction, all of one version. They stay here until `written`."""
        decisions: list[Decision] = []
        records = steps_bytes = 0
        for decision in self._decisions:
            if decisions and decision.version != decisions[0].version:
                break
            decisions.append(decision)
            records += len(decision.records)
            steps_bytes += len(decision.steps)
            if records >= MAX_TRANSACTION_RECORDS or steps_bytes >= MAX_TRANSACTION_STEPS_BYTES:
                break
        return decisions

    def written(self, count: int) -> None:
        """Removes the first `count` decisions, which are written. After a `clear` in between there may be none."""
        count = min(count, len(self._decisions))
        self._records -= sum(len(decision.records) for decision in islice(self._decisions, count))
        for _ in range(count):
            self._decisions.popleft()
        self.waiting_since = time.monotonic() if self._decisions else None
        self._done += count
        self._emptied.set()

    def clear(self) -> None:
        """Drops all decisions, because another owner takes these steps."""
        self._done += len(self._decisions)
        self._decisions.clear()
        self.waiting_since = None
        self._records = 0
        self._emptied.set()

    def has_written(self, put: int) -> bool:
        """Whether all decisions put until a moment, a value of `put_so_far`, are written or cleared."""
        return self._done >= put

    async def until_written(self) -> None:
        """Waits until all decisions put by now are written or cleared, and has them written without waiting for others."""
        put = self._put
        self._waiting += 1
        try:
            while self._done < put:
                self._ring()
                self._emptied.clear()
                await self._emptied.wait()
        finally:
            self._waiting -= 1

    def _ring(self) -> None:
        if self._bell is not None and self.is_filled:
            self._bell.filled.set()
            if self.is_due:
                self._bell.due.set()


def _is_moment(decision: Decision) -> bool:
    return any(not isinstance(record, MAY_WAIT) for record in decision.records)


# A record for the broker: its address, its bytes, and whether its group can be written without it.

_WITHOUT_TRANSCRIPT: Final = "The call closes with all its scores and has no transcript."
_WITHOUT_QUESTION: Final = (
    "The judge is not asked; the subject of the question is unscored when its deadline has passed."
)
_WITHOUT_QUARANTINE: Final = "The refused record is not on the quarantine topic; its coordinates are in the log."


class LeftOut(NamedTuple):
    """Consequence of writing a group without one of its records.

    Attributes:
        limit: The value of the label `limit` under which it is counted.
        what_happens_now: Explanation for a person.
    """

    limit: str
    what_happens_now: str


class Outgoing(NamedTuple):
    """One record, ready to be sent.

    Attributes:
        number: The partition whose step decided it.
        topic: Name of the topic on this cluster.
        key: The conversation's id, or the own key of a refused record; None for a record of `order`.
        value: The bytes.
        partition: Partition number; None if the key decides.
        headers: Headers; None for none.
        kind: Kind of a score, for its count; None for other records.
        left_out: Consequence of leaving it out; None for a score or a record of `order`, which must not be left out.
    """

    number: int
    topic: str
    key: bytes | None
    value: bytes
    partition: int | None
    headers: list[tuple[str, bytes]] | None
    kind: str | None
    left_out: LeftOut | None


class Addresses:
    """Addresses of the records of one partition number."""

    def __init__(self, number: int, kafka: KafkaSettings) -> None:
        self.scores = kafka.topic(SCORES_TOPIC)
        self.order = kafka.topic(ORDER_TOPIC)
        self.transcripts = kafka.topic(TRANSCRIPTS_TOPIC)
        self._quarantine = kafka.topic(QUARANTINE_TOPIC)
        self._requests = kafka.topic(JUDGE_REQUESTS_TOPIC)
        self._number = number
        # A verdict must come to the partition of its call, however the call's producer chose that.
        self._reply_to = [(REPLY_PARTITION_HEADER, str(number).encode())]

    def of(self, record: Written) -> Outgoing:
        """Returns the record with its address."""
        if isinstance(record, Transcript):
            key, left_out = record.conversation_id.encode(), LeftOut("transcript", _WITHOUT_TRANSCRIPT)
            return Outgoing(self._number, self.transcripts, key, record.value, None, None, None, left_out)
        value = record.model_dump_json().encode()
        if isinstance(record, QuarantineRecord):
            left_out = LeftOut("quarantine_record", _WITHOUT_QUARANTINE)
            return Outgoing(self._number, self._quarantine, record.key.encode(), value, None, None, None, left_out)
        key = record.conversation_id.encode()
        if isinstance(record, JudgeRequest):
            left_out = LeftOut("judge_request", _WITHOUT_QUESTION)
            return Outgoing(self._number, self._requests, key, value, None, self._reply_to, None, left_out)
        return Outgoing(self._number, self.scores, key, value, self._number, None, record.kind, None)

    def of_order(self, steps: bytes, start: OrderStart | None) -> Outgoing:
        """Returns the record of `order` with these steps, and with the start that it may have."""
        headers = None if start is None else [start.header()]
        return Outgoing(self._number, self.order, None, order_value(steps), self._number, headers, None, None)


# Who may write a partition.
#
# An evaluator writes all of its partitions with one producer, because a transaction costs the same for one partition and for
# twelve. Its id is new with each assignment. A partition has an id of transactions too, of which only the last user can write:
# its owner uses it once, to write a mark that names the id of its producer. So a successor that has used it knows every producer
# that may still write there, and fences it off.

REPLACED_SECONDS: Final = 5.0
"""How long a producer may take to disconnect before another replaces it. It has nothing in flight by then."""

log = structlog.get_logger()


class WriteError(OperatorError):
    """A record could not be written. End the role without committing, so that its inputs are read again."""


class FencedError(Exception):
    """Another process has taken partitions over: drop their state and write nothing more of them."""


class Mark(NamedTuple):
    """Offsets after the mark with which an owner begins, in `order` and in `scores`."""

    order: int
    scores: int


class Claims:
    """Claims partitions for a producer, and fences off others. Both write marks, records without a value.

    A broker that is killed while it ends a transaction can leave it without its end in a log. Then the transaction is decided but
    hidden from readers, until the next transaction with this id ends there. So a reader that is past a mark has read everything
    that was written under the mark's id before it.
    """

    def __init__(self, kafka: KafkaSettings, settings: EvaluatorSettings) -> None:
        self._kafka = kafka
        self._settings = settings
        self._topics = kafka.topic(ORDER_TOPIC), kafka.topic(SCORES_TOPIC)

    async def claim(self, number: int, writer_id: str) -> Mark:
        """Claims a partition. When this returns, no earlier owner can claim it any more.

        Raises:
            KafkaError: It could not.
        """
        (mark,) = await self._mark(
            f"{self._settings.group_id}-{number}", [number], [(WRITER_HEADER, writer_id.encode())]
        )
        return mark

    async def fence(self, writer_id: str, numbers: Iterable[int]) -> None:
        """Fences a producer off: when this returns, it can write nothing more, and its transactions in these partitions are ended.

        Raises:
            KafkaError: It could not.
        """
        await self._mark(writer_id, numbers, None)

    async def _mark(
        self, transactional_id: str, numbers: Iterable[int], headers: list[tuple[str, bytes]] | None
    ) -> list[Mark]:
        producer = self._kafka.producer(
            "evaluator-claim",
            transactional_id=transactional_id,
            transaction_timeout_ms=self._settings.transaction_timeout_ms,
        )
        try:
            await producer.start()
            await producer.begin_transaction()
            sent = [
                await producer.send(topic, None, key=OWNER_MARK_KEY, partition=number, headers=headers)
                for number in numbers
                for topic in self._topics
            ]
            marks = await asyncio.gather(*sent)
            await producer.commit_transaction()
        finally:
            await _stopped(producer, REPLACED_SECONDS)
        return [
            Mark(int(order.offset) + 1, int(scores.offset) + 1)
            for order, scores in zip(marks[::2], marks[1::2], strict=True)
        ]


async def _stopped(producer: AIOKafkaProducer, seconds: float) -> None:
    try:
        await in_time(seconds, producer.stop())
    except (TimeoutError, KafkaError) as error:
        log.warning("producer_not_stopped", error=str(error) or type(error).__name__)


# Writes the records of the partitions of an assignment, in transactions of one producer.
#
# Each transaction has one record of `order` for each of its partitions: the steps that led to its other records there.

START_EVERY_SECONDS: Final = 10.0
"""Time between two starts in `order`: a successor reads at most this much more of it than it needs."""

_TOO_LARGE: Final = (MessageSizeTooLargeError, RecordListTooLargeError)


class Outlet:
    """The way out of one partition: its decisions, and the starts in its order.

    Attributes:
        number: The partition number.
        outbox: Its decisions.
        starts: The starts in its order.
    """

    def __init__(self, number: int, kafka: KafkaSettings, settings: EvaluatorSettings) -> None:
        self.number = number
        self.outbox = Outbox()
        self.starts = OrderStarts((), settings.closed_overlap_ms)
        self._addresses = Addresses(number, kafka)
        self._has_order = not kafka.is_embedded
        self._started_at = -math.inf
        self._version: str | None = None

    def records_of(self, decisions: Sequence[Decision], writer_id: str) -> tuple[list[Outgoing], OrderStart | None]:
        """Returns the records of these decisions, that of `order` last, and the start that it has, if it has one."""
        first = decisions[0]
        start = None
        if first.version != self._version or time.monotonic() - self._started_at >= START_EVERY_SECONDS:
            start = OrderStart(
                version=first.version, positions=dict(first.positions), time_ms=first.time_ms, writer=writer_id
            )
        records = [self._addresses.of(record) for decision in decisions for record in decision.records]
        if self._has_order:
            records.append(self._addresses.of_order(b"".join(decision.steps for decision in decisions), start))
        return records, start

    def written(self, count: int, start: OrderStart | None, order: Any) -> None:
        """Notes that the first decisions are written: with this start, and with the client's metadata of their record of `order`."""
        if start is not None:
            self._version, self._started_at = start.version, time.monotonic()
            if self._has_order:
                self.starts.add(PlacedStart(order.timestamp, start.positions, order.offset))
        self.outbox.written(count)


class Writer:
    """Writes what the partitions of one assignment decide.

    All records that gather between two commits are one transaction, because the cost of a transaction does not depend on its
    size. On a broker without transactions, such as the demo's, records are written one by one.

    Attributes:
        id: Id of its transactions, which no other writer ever has.
        writing_since: When the current write began, in seconds of the monotonic clock; None while there is none. If it is not None
            after the end of `run`, nobody knows whether that write was made.
    """

    def __init__(self, kafka: KafkaSettings, settings: EvaluatorSettings, instruments: Instruments) -> None:
        self.id = f"{settings.group_id}-writer-{uuid.uuid4().hex}"
        self.writing_since: float | None = None
        self._kafka = kafka
        self._settings = settings
        self._instruments = instruments
        self._is_transactional = settings.uses_transactions and not kafka.is_embedded
        self._producer: AIOKafkaProducer | None = None
        self._bell = Bell()
        self._outlets: list[Outlet] = []
        self._idle = asyncio.Event()

    def add(self, outlet: Outlet) -> None:
        """Writes the decisions of this partition too, from now on. It must be claimed for this writer."""
        self._outlets.append(outlet)
        outlet.outbox.wakes(self._bell)

    async def start(self) -> None:
        """Connects.

        Raises:
            KafkaError: It could not.
        """
        await self._start_producer()

    async def stop(self, deadline_seconds: float) -> None:
        """Disconnects; harmless when repeated. The next owner's fence aborts a transaction that is still open."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await _stopped(producer, deadline_seconds)

    async def until_idle(self) -> None:
        """Waits for the end of the current write."""
        while self.writing_since is not None:
            await self._idle.wait()

    async def run(self) -> None:
        """Writes the content of the outboxes until cancelled.

        A record that is too large for its topic is left out and counted; the others are written.

        Raises:
            FencedError: Another process owns the partitions.
            WriteError: It is not known which records were written, or `scores` rejects a score.
        """
        interval_seconds = to_seconds(self._settings.write_interval_ms) if self._is_transactional else 0.0
        while True:
            await self._bell.until_due(interval_seconds)
            decided = self._next()
            if decided:
                began = self.writing_since = time.monotonic()
                self._idle.clear()
                try:
                    await self._write(decided)
                except (ProducerFenced, OutOfOrderSequenceNumber, IllegalOperation) as error:
                    raise FencedError(f"another evaluator writes {_named(_numbers(decided))} now") from error
                except KafkaError as error:
                    raise self._broken(_numbers(decided), str(error) or type(error).__name__) from error
                self.writing_since = None
                self._idle.set()
            outboxes = [outlet.outbox for outlet in self._outlets]
            self._bell.settle(outboxes)
            # The next transaction waits for company, unless there is enough for a whole one.
            if decided and interval_seconds and sum(each.records for each in outboxes) < MAX_TRANSACTION_RECORDS:
                await asyncio.sleep(min(interval_seconds, RESTS * (time.monotonic() - began)))

    def _next(self) -> dict[Outlet, list[Decision]]:
        """Returns the decisions of the next transaction by partition. If not all fit, the others come first the next time."""
        decided: dict[Outlet, list[Decision]] = {}
        records = 0
        for outlet in tuple(self._outlets):
            if records >= MAX_TRANSACTION_RECORDS:
                break
            self._outlets.append(self._outlets.pop(0))
            if decisions := outlet.outbox.first():
                decided[outlet] = decisions
                records += sum(len(decision.records) for decision in decisions)
        return decided

    async def _write(self, decided: Mapping[Outlet, Sequence[Decision]]) -> None:
        began_ms = wall_clock_ms()
        records: list[Outgoing] = []
        starts: dict[Outlet, tuple[OrderStart | None, Outgoing | None]] = {}
        for outlet, decisions in decided.items():
            of_partition, start = outlet.records_of(decisions, self.id)
            records += of_partition
            # Without transactions there is no order, and a step that decided nothing has no record.
            starts[outlet] = start, of_partition[-1] if of_partition else None
        written = await self._transaction(records)
        while isinstance(written, set):
            self._leave_out([records[index] for index in written])
            records = [each for index, each in enumerate(records) if index not in written]
            await self._replace_producer()
            written = await self._transaction(records)
        placed = dict(zip(map(id, records), written, strict=True))
        for outlet, (start, order) in starts.items():
            outlet.written(len(decided[outlet]), start, placed.get(id(order)))
        self._count(records)
        self._note_trips(chain.from_iterable(decided.values()), began_ms, wall_clock_ms())

    async def _transaction(self, records: Sequence[Outgoing]) -> list[Any] | set[int]:
        """Writes the records, all or none.

        Returns:
            The client's metadata of each: topic, partition, offset and timestamp. If some are too large, their indexes as a set;
            then nothing is written.
        """
        producer = self._producer
        if producer is None:
            raise WriteError("the writer is not started, or stopped: nothing can be written")
        if self._is_transactional:
            await producer.begin_transaction()
        sent: dict[int, asyncio.Future[Any]] = {}
        refused: Exception | None = None
        for index, each in enumerate(records):
            try:
                sent[index] = await producer.send(
                    each.topic, each.value, key=each.key, partition=each.partition, headers=each.headers
                )
            except _TOO_LARGE as error:  # the client's own bound: it was not sent
                refused = error
        try:
            written = await asyncio.gather(*sent.values())
        except _TOO_LARGE as error:
            written, refused = [], error
        if refused is not None:
            if not self._is_transactional:  # some are written by now, and cannot be written again
                raise refused
            await producer.abort_transaction()  # and each record has its answer
            return {
                index
                for index in range(len(records))
                if index not in sent or isinstance(sent[index].exception(), _TOO_LARGE)
            }
        if self._is_transactional:
            await producer.commit_transaction()
        return list(written)

    def _count(self, records: Sequence[Outgoing]) -> None:
        for kind, number in Counter(each.kind for each in records if each.kind is not None).items():
            self._instruments.inc("callgauge_scores_published_total", (kind,), number)
        transcripts = sum(each.topic == self._kafka.topic(TRANSCRIPTS_TOPIC) for each in records)
        self._instruments.inc("callgauge_transcripts_published_total", (), transcripts)

    def _note_trips(self, decisions: Iterable[Decision], began_ms: int, committed_ms: int) -> None:
        """Observes the steps of events with a moment. Rows wait on purpose, and would hide where moments do."""
        for trip in [decision.trip for decision in decisions if decision.trip is not None and _is_moment(decision)]:
            points = zip(
                ("polled", "folded", "written", "committed"), pairwise((*trip, began_ms, committed_ms)), strict=True
            )
            for step, (from_ms, until_ms) in points:
                self._instruments.observe(STEP_METRIC, (step,), to_seconds(max(0, until_ms - from_ms)))

    def _leave_out(self, refused: Sequence[Outgoing]) -> None:
        """Counts records that are not written, and logs a line for each topic.

        Raises:
            WriteError: A score or a record of `order` is among them. Without it, final scores would be wrong.
        """
        by_topic: dict[tuple[str, LeftOut], list[Outgoing]] = {}
        for each in refused:
            if each.left_out is None:
                raise self._broken(
                    [each.number],
                    f"a record of {len(each.value)} bytes is too large for {each.topic}. Set max.message.bytes="
                    f"{MAX_BATCH_BYTES} on it, or more",
                )
            by_topic.setdefault((each.topic, each.left_out), []).append(each)
        for (topic, left_out), those in by_topic.items():
            self._instruments.inc("callgauge_limits_hit_total", (left_out.limit,), len(those))
            log.warning(
                "record_too_large_to_write",
                conversation_id=(those[0].key or b"").decode(),
                partition=those[0].number,
                topic=topic,
                records=len(those),
                largest_bytes=max(len(each.value) for each in those),
                what_happens_now=left_out.what_happens_now,
                what_to_do=f"Set max.message.bytes={MAX_BATCH_BYTES} on {topic}, or more; `callgauge topics check` shows it.",
            )

    async def _start_producer(self) -> None:
        self._producer = self._kafka.producer(
            "evaluator",
            transactional_id=self.id if self._is_transactional else None,
            transaction_timeout_ms=self._settings.transaction_timeout_ms,
        )
        await self._producer.start()

    async def _replace_producer(self) -> None:
        """Replaces the producer by one with the same id, after an aborted transaction.

        The broker numbers the records of a producer and still expects those that it rejected, so it would reject all later ones.
        A new producer starts a new numbering, but would also undo a fence. Each start has the next epoch, and a gap between the
        epochs shows that somebody has fenced us off.

        Raises:
            FencedError: Another process used the id in between.
        """
        former = self._epoch()
        await self.stop(REPLACED_SECONDS)
        await self._start_producer()
        if self._epoch() != (former[0], former[1] + 1):
            raise FencedError("the partitions were taken over by another evaluator in between")

    def _epoch(self) -> tuple[int, int]:
        """Returns the broker's number for the producer and its epoch, which are private attributes of the client."""
        manager = self._producer._txn_manager  # type: ignore[union-attr]  # noqa: SLF001  # it is started here
        return int(manager.producer_id), int(manager.producer_epoch)

    def _broken(self, numbers: Sequence[int], why: str) -> WriteError:
        return WriteError(
            f"Scores: records of {_named(numbers)} were not taken by {self._kafka.bootstrap_servers}: {why}. The evaluator ends "
            "without committing what it read last; the next one reads it again and writes the missing records. "
            "Check the broker and the rights on the output topics."
        )


def _numbers(decided: Iterable[Outlet]) -> list[int]:
    return sorted(outlet.number for outlet in decided)


def _named(numbers: Sequence[int]) -> str:
    return f"partition{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


# Carries out the effects of the engine: one `match`.


def carry_out(
    effects: Iterable[Effect],
    order: OrderEncoder,
    instruments: Instruments,
    report: Callable[[NotUnderstood], None],
) -> list[Written]:
    """Adds counts to the metrics, notes goals and ends of calls in the order, and returns the records to write.

    Args:
        effects: Effects of one step, as the engine returned them.
        order: The steps, this one included.
        instruments: Take the counts.
        report: Takes records that are not understood.

    Returns:
        The records in order. The `closed` fact of a call comes after all its final records and its transcript.
    """
    records: list[Written] = []
    for effect in effects:
        match effect:
            case PublishScore(record):
                records.append(record)
                if isinstance(record, GoalsFact):
                    order.choose_goals(record.conversation_id, record.goal_set.id, record.digest)
            case CloseCall(conversation_id, closing, transcript):
                if transcript is not None:
                    records.append(Transcript(conversation_id, transcript))
                records += closing
                order.close(conversation_id)
            case RequestVerdict(request):
                records.append(request)
            case Count(metric, labels, by):
                instruments.inc(metric, labels, by)
            case NotUnderstood():
                report(effect)
            case OpenCall():
                pass
            case _:
                assert_never(effect)
    return records
