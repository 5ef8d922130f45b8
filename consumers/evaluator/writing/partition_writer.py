"""Writes the records of one partition, in transactions of a producer that only the partition's owner can have."""

import asyncio
import time
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any, Final

import structlog
from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    KafkaError,
    MessageSizeTooLargeError,
    OutOfOrderSequenceNumber,
    ProducerFenced,
    RecordListTooLargeError,
)

from consumers.evaluator.settings import EvaluatorSettings
from consumers.evaluator.writing.outbox import MAX_TRANSACTION_RECORDS, Group, Outbox, is_decided
from consumers.evaluator.writing.outgoing import Addresses, LeftOut, Outgoing, check_of
from consumers.runtime.errors import OperatorError
from consumers.runtime.kafka.connection import KafkaSettings
from consumers.runtime.registry import Instruments
from schemas.topic_rules import MAX_BATCH_BYTES
from schemas.topics import OWNER_MARK_KEY
from schemas.units import to_seconds

REPLACED_SECONDS: Final = 5.0
"""How long a producer may take to disconnect before another replaces it. It has nothing in flight by then."""

_TOO_LARGE: Final = (MessageSizeTooLargeError, RecordListTooLargeError)

log = structlog.get_logger()


class WriteError(OperatorError):
    """A record could not be written. End the role without committing, so that its inputs are read again."""


class FencedError(Exception):
    """Another process has taken the partition over: drop its state and write nothing more of it."""


class RejectedWriteError(Exception):
    """The broker rejected records that are optional for the partition. None of them is written."""


class PartitionWriter:
    """The producer of one partition number. Starting it fences off the former owner.

    All records that gather between two commits are one transaction, because the cost of a transaction does not depend on its
    size. On a broker without transactions, such as the demo's, records are written one by one.

    Attributes:
        scores_end: Offset after the last record written to the partition of `scores`; None before the first.
        writing_since: When the current write began, in seconds of the monotonic clock; None while there is none.
    """

    def __init__(
        self,
        number: int,
        outbox: Outbox,
        kafka: KafkaSettings,
        settings: EvaluatorSettings,
        instruments: Instruments,
    ) -> None:
        """Stores its settings; `fence` connects.

        Args:
            number: The partition number.
            outbox: The waiting records.
            kafka: Where the broker is.
            settings: The group, and how transactions are grouped.
            instruments: Where written records are counted.
        """
        self.scores_end: int | None = None
        self.writing_since: float | None = None
        self._number = number
        self._outbox = outbox
        self._kafka = kafka
        self._settings = settings
        self._instruments = instruments
        self._is_transactional = settings.uses_transactions and not kafka.is_embedded
        self._addresses = Addresses(number, kafka)
        self._producer: AIOKafkaProducer | None = None
        self._one_at_a_time = asyncio.Lock()

    @property
    def is_transactional(self) -> bool:
        """Whether records are written in transactions, which fence off a former owner."""
        return self._is_transactional

    async def fence(self) -> int:
        """Connects. When this returns, no earlier owner can write to the partition any more.

        A broker that is killed while it ends a transaction can leave it without its end in the log of `scores`. Then the
        transaction is decided but hidden from readers, until the next transaction with this id ends there. So this method
        writes one with a mark, a record without a value. A reader that is past the mark has read everything before it.

        Returns:
            Offset after the mark; 0 on a broker without transactions.

        Raises:
            KafkaError: It could not.
        """
        producer = await self._start_producer()
        if not self._is_transactional:
            return 0
        await producer.begin_transaction()
        mark = await producer.send_and_wait(self._addresses.scores, None, key=OWNER_MARK_KEY, partition=self._number)
        await producer.commit_transaction()
        return int(mark.offset) + 1

    async def stop(self, deadline_seconds: float) -> None:
        """Disconnects; harmless when repeated. The next owner's fence aborts a transaction that is still open."""
        producer, self._producer = self._producer, None
        if producer is None:
            return
        try:
            await asyncio.wait_for(producer.stop(), deadline_seconds)
        except (TimeoutError, KafkaError) as error:
            log.warning("producer_not_stopped", partition=self._number, error=str(error) or type(error).__name__)

    async def run(self) -> None:
        """Writes the content of the outbox until cancelled.

        A record that is too large for its topic is left out and counted; the others of its group are written.

        Raises:
            FencedError: Another process owns the partition.
            WriteError: It is not known which records were written, or `scores` rejects a score.
        """
        while True:
            await self._outbox.until_filled()
            began = self.writing_since = time.monotonic()
            groups = self._outbox.first()
            try:
                async with self._one_at_a_time:
                    await self._write(self._outgoing(groups))
            except (ProducerFenced, OutOfOrderSequenceNumber) as error:
                raise FencedError(f"partition {self._number} is written by another evaluator now") from error
            except KafkaError as error:
                raise self._broken(str(error) or type(error).__name__) from error
            self.writing_since = None
            self._outbox.written(len(groups))
            # The next transaction waits for company, unless there is enough for a whole one.
            if self._is_transactional and self._outbox.records < MAX_TRANSACTION_RECORDS:
                await asyncio.sleep(max(0.0, to_seconds(self._settings.write_interval_ms) - (time.monotonic() - began)))

    async def write_apart(self, records: Sequence[Outgoing]) -> list[Any]:
        """Writes optional records in a transaction of their own: all or none.

        Returns:
            The client's metadata of each: topic, partition and offset.

        Raises:
            RejectedWriteError: The broker rejected them. Later records are written as before.
            FencedError: Another process owns the partition.
            WriteError: It is not known which records were written.
        """
        async with self._one_at_a_time:
            producer = self._producer
            if producer is None or not self._is_transactional:
                raise RejectedWriteError("the writer has no transactions, or is stopped")
            try:
                await producer.begin_transaction()
                try:
                    sent = [
                        await producer.send(each.topic, each.value, key=each.key, partition=None, headers=each.headers)
                        for each in records
                    ]
                    written = await asyncio.gather(*sent)
                except (ProducerFenced, OutOfOrderSequenceNumber):
                    raise
                except KafkaError as error:
                    await producer.abort_transaction()
                    await self._replace_producer()
                    raise RejectedWriteError(str(error) or type(error).__name__) from error
                await producer.commit_transaction()
            except (ProducerFenced, OutOfOrderSequenceNumber) as error:
                raise FencedError(f"partition {self._number} is written by another evaluator now") from error
            except KafkaError as error:
                raise self._broken(str(error) or type(error).__name__) from error
            return list(written)

    def _outgoing(self, groups: Sequence[Group]) -> list[Outgoing]:
        """Returns the records of the next transaction; the last is the piece of the journal that belongs to them."""
        addressed = [(group, self._addresses.of_group(group)) for group in groups]
        records = [each for _, outgoing in addressed for each in outgoing]
        checks = [check_of(outgoing) for group, outgoing in addressed if is_decided(group)]
        if checks and self._is_transactional and not self._outbox.journal.has_ended:
            scores = sum(each.topic == self._addresses.scores for each in records)
            piece = self._outbox.journal.piece(checks, scores)
            if piece is not None:
                records.append(self._addresses.of_journal(piece))
        return records

    async def _write(self, records: Sequence[Outgoing]) -> None:
        while too_large := await self._transaction(records):
            self._leave_out([records[index] for index in too_large])
            records = [each for index, each in enumerate(records) if index not in too_large]
            await self._replace_producer()

    async def _transaction(self, records: Sequence[Outgoing]) -> Collection[int]:
        """Writes the records, all or none.

        Returns:
            Indexes of records that are too large. If there are any, nothing is written.
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
        ends = [metadata.offset + 1 for metadata in written if metadata.topic == self._addresses.scores]
        if ends:
            self.scores_end = max(ends)
        for kind, number in Counter(each.kind for each in records if each.kind is not None).items():
            self._instruments.inc("callgauge_scores_published_total", (kind,), number)
        transcripts = sum(each.topic == self._addresses.transcripts for each in records)
        self._instruments.inc("callgauge_transcripts_published_total", (), transcripts)
        return ()

    def _leave_out(self, refused: Sequence[Outgoing]) -> None:
        """Counts records that are not written, and logs a line for each topic.

        Raises:
            WriteError: A score is among them. Without it, the final scores of its call would be wrong.
        """
        by_topic: dict[tuple[str, LeftOut], list[Outgoing]] = {}
        for each in refused:
            if each.left_out is None:
                raise self._broken(
                    f"a score of {len(each.value or b'')} bytes is too large for {each.topic}. Set max.message.bytes="
                    f"{MAX_BATCH_BYTES} on it, or more"
                )
            by_topic.setdefault((each.topic, each.left_out), []).append(each)
        for (topic, left_out), those in by_topic.items():
            self._instruments.inc("callgauge_limits_hit_total", (left_out.limit,), len(those))
            log.warning(
                "record_too_large_to_write",
                conversation_id=those[0].key.decode(),
                partition=self._number,
                topic=topic,
                records=len(those),
                largest_bytes=max(len(each.value or b"") for each in those),
                what_happens_now=left_out.what_happens_now,
                what_to_do=f"Set max.message.bytes={MAX_BATCH_BYTES} on {topic}, or more; `callgauge topics check` shows it.",
            )

    async def _start_producer(self) -> AIOKafkaProducer:
        producer = self._kafka.producer(
            f"evaluator-{self._number}",
            transactional_id=f"{self._settings.group_id}-{self._number}" if self._is_transactional else None,
            transaction_timeout_ms=self._settings.transaction_timeout_ms,
        )
        self._producer = producer
        await producer.start()
        return producer

    async def _replace_producer(self) -> None:
        """Replaces the producer by one with the same id, after an aborted transaction.

        The broker numbers the records of a producer and still expects those that it rejected, so it would reject all later ones.
        A new producer starts a new numbering, but also fences off the last user of the id. If that was another process, it
        owns the partition and has recalled our scores, so we must not write. Each start has the next epoch, and a gap between
        the epochs shows the other process.

        Raises:
            FencedError: Another process used the id in between.
        """
        former = self._epoch()
        await self.stop(REPLACED_SECONDS)
        await self._start_producer()
        if self._epoch() != (former[0], former[1] + 1):
            raise FencedError(f"partition {self._number} was written by another evaluator in between")

    def _epoch(self) -> tuple[int, int]:
        """Returns the broker's number for the producer and its epoch, which are private attributes of the client."""
        manager = self._producer._txn_manager  # type: ignore[union-attr]  # noqa: SLF001  # it is started here
        return int(manager.producer_id), int(manager.producer_epoch)

    def _broken(self, why: str) -> WriteError:
        return WriteError(
            f"Scores: records of partition {self._number} were not taken by {self._kafka.bootstrap_servers}: {why}. The "
            "evaluator ends without committing what it read last; the next one reads it again and writes the missing records. "
            "Check the broker and the rights on the output topics."
        )
