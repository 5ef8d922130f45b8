"""Writes the decisions of the partitions of an assignment to Kafka, in transactions."""

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, Final, Never

import structlog
from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    IllegalOperation,
    KafkaError,
    MessageSizeTooLargeError,
    OutOfOrderSequenceNumber,
    ProducerFenced,
    RecordListTooLargeError,
    UnknownError,
)

from consumers.evaluator.decisions import (
    MAX_TRANSACTION_RECORDS,
    Decision,
    LeftOut,
    Outbox,
    Outgoing,
    Outlet,
    is_moment,
)
from consumers.evaluator.settings import EvaluatorSettings
from consumers.runtime.kafka.connection import KafkaSettings
from consumers.runtime.process import OperatorError, in_time, wall_clock_ms
from consumers.runtime.registry import Instruments
from schemas.metrics.process import STEP_METRIC
from schemas.owners import WRITER_HEADER
from schemas.topics import MAX_BATCH_BYTES, OWNER_MARK_KEY, SCORES_TOPIC, TRANSCRIPTS_TOPIC
from schemas.units import to_seconds

RESTS: Final = 3
"""A writer rests this many times as long as its last transaction took: on a busy machine more
decisions share a transaction.
"""
MOST_REST_SECONDS: Final = 0.1
"""So long it rests at most: one slow transaction must not hold up the moments behind it."""

# Who may write a partition.
#
# An evaluator writes all of its partitions with one producer, because a transaction costs the same
# for one partition and for twelve. Its id is new with each assignment. A partition has an id of
# transactions too, of which only the last user can write: its owner uses it once, to write a mark
# that names the id of its producer. So a successor that has used it knows every producer that may
# still write there, and fences it off.

REPLACED_SECONDS: Final = 5.0
"""How long a producer may take to disconnect before another replaces it. It has nothing in flight
by then.
"""

log = structlog.get_logger()


class WriteError(OperatorError):
    """A record could not be written. End the role without committing, so that its inputs are read
    again.
    """


class FencedError(Exception):
    """Another process has claimed partitions: drop their state and write nothing more of them."""


class Claims:
    """Claims partitions for a producer, and fences off others. Both write marks, records without a
    value.

    A broker that is killed while it ends a transaction can leave it without its end in a log. Then
    the transaction is decided but hidden from readers, until the next transaction with this id ends
    there. So a reader that is past a mark has read everything that was written under the mark's id
    before it.
    """

    def __init__(self, kafka: KafkaSettings, settings: EvaluatorSettings) -> None:
        self._kafka = kafka
        self._settings = settings
        self._scores = kafka.topic(SCORES_TOPIC)

    async def claim(self, number: int, writer_id: str) -> int:
        """Claims a partition. When this returns, no earlier owner can claim it any more.

        Returns:
            The offset in `scores` after the mark.

        Raises:
            FencedError: Another process claimed it at the same moment.
            KafkaError: It could not.
        """
        headers = [(WRITER_HEADER, writer_id.encode())]
        (offset,) = await self._mark(f"{self._settings.group_id}-{number}", [number], headers)
        return offset + 1

    async def fence(self, writer_id: str, numbers: Iterable[int]) -> None:
        """Fences a producer off: when this returns, it can write nothing more, and its transactions
        in these partitions are ended.

        Raises:
            KafkaError: It could not.
        """
        await self._mark(writer_id, numbers, None)

    async def _mark(
        self, transactional_id: str, numbers: Iterable[int], headers: list[tuple[str, bytes]] | None
    ) -> list[int]:
        producer = self._kafka.producer(
            "evaluator-claim",
            transactional_id=transactional_id,
            transaction_timeout_ms=self._settings.transaction_timeout_ms,
        )
        try:
            await producer.start()
            await producer.begin_transaction()
            sent = [
                await producer.send(
                    self._scores, None, key=OWNER_MARK_KEY, partition=number, headers=headers
                )
                for number in numbers
            ]
            marks = await asyncio.gather(*sent)
            await producer.commit_transaction()
        except (
            ProducerFenced,
            IllegalOperation,
        ) as error:  # the latter where its transaction ended between two records
            raise FencedError("another process claimed them at the same moment") from error
        except KafkaError as error:
            # Where the other one comes while ours ends, Kafka 4 answers PRODUCER_FENCED (90), which
            # the client does not know.
            if isinstance(error.__cause__, UnknownError):
                raise FencedError("another process claimed them at the same moment") from error
            raise
        finally:
            await _stopped(producer, REPLACED_SECONDS)
        return [int(mark.offset) for mark in marks]


async def _stopped(producer: AIOKafkaProducer, seconds: float) -> None:
    try:
        await in_time(seconds, producer.stop())
    except (TimeoutError, KafkaError) as error:
        log.warning("producer_not_stopped", error=str(error) or type(error).__name__)


# Writes the records of the partitions of an assignment, in transactions of one producer.

_TOO_LARGE: Final = (MessageSizeTooLargeError, RecordListTooLargeError)


class Writer:
    """Writes what the partitions of one assignment decide. All of them must be claimed for it
    before it runs.

    All records that gather between two commits are one transaction, because the cost of a
    transaction does not depend on its size.

    Attributes:
        id: Id of its transactions, which no other writer ever has.
        writing_since: When the current write began, in seconds of the monotonic clock; None while
            there is none. If it is not None after the end of `run`, it is unknown whether that
            write was made.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        settings: EvaluatorSettings,
        instruments: Instruments,
        outbox: Outbox,
    ) -> None:
        self.id = f"{settings.group_id}-writer-{uuid.uuid4().hex}"
        self.writing_since: float | None = None
        self._kafka = kafka
        self._settings = settings
        self._instruments = instruments
        self._outbox = outbox
        self._producer: AIOKafkaProducer | None = None

    async def start(self) -> None:
        """Connects.

        Raises:
            KafkaError: It could not.
        """
        self._producer = self._kafka.producer(
            "evaluator",
            transactional_id=self.id,
            transaction_timeout_ms=self._settings.transaction_timeout_ms,
        )
        await self._producer.start()

    async def stop(self, deadline_seconds: float) -> None:
        """Disconnects; harmless when repeated. The next owner's fence aborts a transaction that is
        still open.
        """
        producer, self._producer = self._producer, None
        if producer is not None:
            await _stopped(producer, deadline_seconds)

    async def run(self) -> Never:
        """Writes the content of the outbox until cancelled.

        A record that is too large for its topic is left out and counted; the others are written.

        Raises:
            FencedError: Another process owns the partitions.
            WriteError: It is not known which records were written, or `scores` rejects a score.
        """
        rest_seconds = to_seconds(self._settings.write_interval_ms)
        while True:
            await self._outbox.until_due()
            began = self.writing_since = time.monotonic()
            decided = self._outbox.first()
            try:
                await self._write(decided)
            except (ProducerFenced, OutOfOrderSequenceNumber, IllegalOperation) as error:
                raise FencedError(
                    f"another evaluator writes {_named(_numbers(decided))} now"
                ) from error
            except KafkaError as error:
                raise self._broken(_numbers(decided), str(error) or type(error).__name__) from error
            self.writing_since = None
            self._outbox.written(decided)
            # The next transaction waits for company, unless there is enough for a whole one.
            if rest_seconds and self._outbox.records < MAX_TRANSACTION_RECORDS:
                took_seconds = time.monotonic() - began
                await asyncio.sleep(min(rest_seconds, MOST_REST_SECONDS, RESTS * took_seconds))

    async def _write(self, decided: Sequence[Decision]) -> None:
        """Writes decisions. That each is published once, whatever dies, follows from these steps.

        1. A transaction has, of each of its partitions, whole decisions from the front of the
           outbox, and last the row of the partition: the place behind the last of them. So what was
           decided in front of the place of the newest row is published, and nothing else.
        2. It is all written or not at all. While it is not known which, nothing else is written:
           the role ends (`WriteError`).
        3. A successor writes its mark under the id of the partition, so no predecessor can name
           another producer any more, and fences off each producer that a row or a mark names
           (`Claims`). Then all that was ever written here stands in front of its mark.
        4. It takes the newest row in front of the mark, and which calls have closed (`Takeover`).
        5. It folds the log from the row's `first` to its place, which gives the state that we have
           now, publishes nothing of it (`Partition`), and goes on at step 1.
        """
        began_ms = wall_clock_ms()
        by_outlet: dict[Outlet, list[Decision]] = {}
        for decision in decided:
            by_outlet.setdefault(decision.outlet, []).append(decision)
        records = [
            each
            for outlet, decisions in by_outlet.items()
            for each in outlet.records_of(decisions, self.id)
        ]
        while refused := await self._transaction(records):
            self._leave_out([records[index] for index in refused])
            records = [each for index, each in enumerate(records) if index not in refused]
            await self._replace_producer()
        self._count(records)
        self._note_trips(decided, began_ms, wall_clock_ms())

    async def _transaction(self, records: Sequence[Outgoing]) -> set[int]:
        """Writes the records, all or none.

        Returns:
            The indexes of those that are too large; if there are any, nothing is written.
        """
        producer = self._producer
        if producer is None:
            raise WriteError("the writer is not started, or stopped: nothing can be written")
        await producer.begin_transaction()
        sent: dict[int, asyncio.Future[Any]] = {}
        refused: Exception | None = None
        for index, each in enumerate(records):
            try:
                sent[index] = await producer.send(
                    each.topic,
                    each.value,
                    key=each.key,
                    partition=each.partition,
                    headers=each.headers,
                )
            except _TOO_LARGE as error:  # the client's own bound: it was not sent
                refused = error
        try:
            await asyncio.gather(*sent.values())
        except _TOO_LARGE as error:
            refused = error
        if refused is not None:
            await producer.abort_transaction()  # and each record has its answer
            return {
                index
                for index in range(len(records))
                if index not in sent or isinstance(sent[index].exception(), _TOO_LARGE)
            }
        await producer.commit_transaction()
        return set()

    def _count(self, records: Sequence[Outgoing]) -> None:
        for kind, number in Counter(each.kind for each in records if each.kind is not None).items():
            self._instruments.inc("callgauge_scores_published_total", (kind,), number)
        transcripts = sum(each.topic == self._kafka.topic(TRANSCRIPTS_TOPIC) for each in records)
        self._instruments.inc("callgauge_transcripts_published_total", (), transcripts)

    def _note_trips(self, decisions: Iterable[Decision], began_ms: int, committed_ms: int) -> None:
        """Observes the steps of events with a moment. Rows wait on purpose, and would hide where
        moments do.
        """
        for decision in decisions:
            if decision.trip is None or not is_moment(decision):
                continue
            steps = "polled", "folded", "written", "committed"
            points_ms = pairwise((*decision.trip, began_ms, committed_ms))
            for step, (from_ms, until_ms) in zip(steps, points_ms, strict=True):
                taken_ms = max(0, until_ms - from_ms)  # another clock may be ahead
                self._instruments.observe(STEP_METRIC, (step,), to_seconds(taken_ms))

    def _leave_out(self, refused: Sequence[Outgoing]) -> None:
        """Counts records that are not written, and logs a line for each topic.

        Raises:
            WriteError: A score or the row of a partition is among them. Without it, final scores
                would be wrong.
        """
        by_topic: dict[tuple[str, LeftOut], list[Outgoing]] = {}
        for each in refused:
            if each.left_out is None:
                raise self._broken(
                    [each.number],
                    f"a record of {len(each.value or b'')} bytes is too large for {each.topic}. "
                    f"Set max.message.bytes={MAX_BATCH_BYTES} on it, or more",
                )
            by_topic.setdefault((each.topic, each.left_out), []).append(each)
        for (topic, left_out), those in by_topic.items():
            self._instruments.inc("callgauge_limits_hit_total", (left_out.limit,), len(those))
            log.warning(
                "record_too_large_to_write",
                conversation_id=those[0].key.decode(),
                partition=those[0].number,
                topic=topic,
                records=len(those),
                largest_bytes=max(len(each.value or b"") for each in those),
                what_happens_now=left_out.what_happens_now,
                what_to_do=(
                    f"Set max.message.bytes={MAX_BATCH_BYTES} on {topic}, or more; `callgauge "
                    "topics check` shows it."
                ),
            )

    async def _replace_producer(self) -> None:
        """Replaces the producer by one with the same id, after an aborted transaction.

        The broker numbers the records of a producer and still expects those that it rejected, so it
        would reject all later ones. A new producer starts a new numbering, but would also undo a
        fence. Each start has the next epoch, and a gap between the epochs shows that somebody has
        fenced us off.

        Raises:
            FencedError: Another process used the id in between.
        """
        former = self._epoch()
        await self.stop(REPLACED_SECONDS)
        await self.start()
        if self._epoch() != (former[0], former[1] + 1):
            raise FencedError("the partitions were taken over by another evaluator in between")

    def _epoch(self) -> tuple[int, int]:
        """Returns the broker's number for the producer and its epoch, which are private attributes
        of the client.
        """
        manager = self._producer._txn_manager  # type: ignore[union-attr]  # noqa: SLF001  # it is started here
        return int(manager.producer_id), int(manager.producer_epoch)

    def _broken(self, numbers: Sequence[int], why: str) -> WriteError:
        return WriteError(
            f"Scores: records of {_named(numbers)} were not taken by "
            f"{self._kafka.bootstrap_servers}: {why}. The evaluator ends without committing what "
            "it read last; the next one reads it again and writes the missing records. Check the "
            "broker and the rights on the output topics."
        )


def _numbers(decided: Iterable[Decision]) -> list[int]:
    return sorted({decision.outlet.number for decision in decided})


def _named(numbers: Sequence[int]) -> str:
    return f"partition{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
