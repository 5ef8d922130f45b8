"""Writes what one partition decided, in transactions of a producer that only the partition's owner can have."""

import asyncio
import time
from typing import Any

import structlog
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, OutOfOrderSequenceNumber, ProducerFenced

from consumers.evaluator.outbox import MAX_TRANSACTION_RECORDS, Group, Outbox, Written
from consumers.evaluator.settings import EvaluatorSettings
from consumers.runtime.kafka import KafkaSettings
from consumers.runtime.registry import Instruments
from schemas.judging import REPLY_PARTITION_HEADER, JudgeRequest
from schemas.quarantine import QuarantineRecord
from schemas.topics import JUDGE_REQUESTS_TOPIC, OWNER_MARK_KEY, QUARANTINE_TOPIC, SCORES_TOPIC, TRANSCRIPTS_TOPIC
from schemas.transcript import Transcript

log = structlog.get_logger()


class WriteError(Exception):
    """A record could not be written, so what was read must be read again: end the process without committing."""


class FencedError(Exception):
    """Another process has taken the partition over: drop its state and write nothing more of it."""


class PartitionWriter:
    """The producer of one partition number. Starting it fences off whoever had the partition before.

    What gathers between two commits goes in one transaction, because a transaction costs the same whatever it holds. On
    a broker without transactions, which the demo has inside its process, records are written one by one.

    Attributes:
        scores_end: Offset after the last record written to the partition of `scores`; None before the first.
    """

    def __init__(
        self,
        number: int,
        outbox: Outbox,
        kafka: KafkaSettings,
        settings: EvaluatorSettings,
        instruments: Instruments,
    ) -> None:
        """Keeps the settings; nothing is connected before `fence`.

        Args:
            number: The partition number.
            outbox: What to write.
            kafka: Where the broker is.
            settings: The group, and how transactions are grouped.
            instruments: Where written records are counted.
        """
        self.scores_end: int | None = None
        self._number = number
        self._outbox = outbox
        self._kafka = kafka
        self._settings = settings
        self._instruments = instruments
        self._is_transactional = settings.uses_transactions and not kafka.is_embedded
        self._scores_topic = kafka.topic(SCORES_TOPIC)
        self._quarantine_topic = kafka.topic(QUARANTINE_TOPIC)
        self._requests_topic = kafka.topic(JUDGE_REQUESTS_TOPIC)
        self._transcripts_topic = kafka.topic(TRANSCRIPTS_TOPIC)
        # A verdict must come to the partition of its call, however the call's producer chose that.
        self._reply_to = [(REPLY_PARTITION_HEADER, str(number).encode())]
        self._producer: AIOKafkaProducer | None = None

    async def fence(self) -> int:
        """Connects. When this returns, no earlier owner can write to the partition any more.

        A broker that was killed while it ended a former owner's transaction can leave it without an end in the log of
        `scores`: decided, but hidden from readers until the next transaction of this id ends there. So one is: it writes a
        mark, a record without a value. Whoever has read past it has read everything.

        Returns:
            Offset after the mark; 0 on a broker without transactions.

        Raises:
            KafkaError: It could not.
        """
        producer = self._kafka.producer(
            f"evaluator-{self._number}",
            transactional_id=f"{self._settings.group_id}-{self._number}" if self._is_transactional else None,
            transaction_timeout_ms=self._settings.transaction_timeout_ms,
        )
        self._producer = producer
        await producer.start()
        if not self._is_transactional:
            return 0
        await producer.begin_transaction()
        mark = await producer.send_and_wait(self._scores_topic, None, key=OWNER_MARK_KEY, partition=self._number)
        await producer.commit_transaction()
        return int(mark.offset) + 1

    async def stop(self, deadline_seconds: float) -> None:
        """Disconnects; harmless when repeated. A transaction that is open then is aborted by whoever fences us."""
        producer, self._producer = self._producer, None
        if producer is None:
            return
        try:
            await asyncio.wait_for(producer.stop(), deadline_seconds)
        except (TimeoutError, KafkaError) as error:
            log.warning("producer_not_stopped", partition=self._number, error=str(error) or type(error).__name__)

    async def run(self) -> None:
        """Writes whatever comes into the outbox until cancelled.

        Raises:
            FencedError: The partition is another process's.
            WriteError: Writing failed in a way that leaves open what was written.
        """
        while True:
            await self._outbox.until_filled()
            began = time.monotonic()
            groups = self._outbox.first()
            try:
                await self._write(groups)
            except (ProducerFenced, OutOfOrderSequenceNumber) as error:
                raise FencedError(f"partition {self._number} is written by another evaluator now") from error
            except KafkaError as error:
                raise self._broken(error) from error
            self._outbox.written(len(groups))
            # The next transaction waits for company, unless there is enough for a whole one.
            if self._is_transactional and self._outbox.records < MAX_TRANSACTION_RECORDS:
                await asyncio.sleep(max(0.0, self._settings.write_interval_ms / 1_000 - (time.monotonic() - began)))

    async def _write(self, groups: list[Group]) -> None:
        producer = self._producer
        if producer is None:
            raise WriteError("the writer is not started, or stopped: nothing can be written")
        if self._is_transactional:
            await producer.begin_transaction()
        kinds: dict[str, int] = {}
        transcripts = 0
        sent: list[asyncio.Future[Any]] = []
        for group in groups:
            for record in group:
                sent.append(await self._send(producer, record))
                if isinstance(record, Transcript):
                    transcripts += 1
                elif not isinstance(record, QuarantineRecord | JudgeRequest):
                    kinds[record.kind] = kinds.get(record.kind, 0) + 1
        ends = [metadata.offset + 1 for metadata in await asyncio.gather(*sent) if metadata.topic == self._scores_topic]
        if self._is_transactional:
            await producer.commit_transaction()
        if ends:
            self.scores_end = max(ends)
        for kind, number in kinds.items():
            self._instruments.inc("callgauge_scores_published_total", (kind,), number)
        self._instruments.inc("callgauge_transcripts_published_total", (), transcripts)

    async def _send(self, producer: AIOKafkaProducer, record: Written) -> "asyncio.Future[Any]":
        value = record.value if isinstance(record, Transcript) else record.model_dump_json().encode()
        headers = None
        if isinstance(record, QuarantineRecord):
            topic, key, partition = self._quarantine_topic, record.key, None
        elif isinstance(record, JudgeRequest):
            topic, key, partition, headers = self._requests_topic, record.conversation_id, None, self._reply_to
        elif isinstance(record, Transcript):
            topic, key, partition = self._transcripts_topic, record.conversation_id, None
        else:
            topic, key, partition = self._scores_topic, record.conversation_id, self._number
        sent: asyncio.Future[Any] = await producer.send(
            topic, value, key=key.encode(), partition=partition, headers=headers
        )
        return sent

    def _broken(self, error: BaseException) -> WriteError:
        return WriteError(
            f"Scores: records of partition {self._number} were not taken by {self._kafka.bootstrap_servers}: "
            f"{str(error) or type(error).__name__}. The evaluator ends without committing what it read last; the next "
            "one reads it again and writes what is missing. Check the broker and the rights on the output topics."
        )
