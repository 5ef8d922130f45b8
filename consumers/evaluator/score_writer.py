"""Writes what the evaluator decided: in order, acknowledged before anything is committed, bounded on the way."""

import asyncio
from collections import deque
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from consumers.runtime.kafka import KafkaSettings
from consumers.runtime.registry import Instruments
from schemas.quarantine import QuarantineRecord
from schemas.scores import AnyScoreRecord
from schemas.topics import QUARANTINE_TOPIC, SCORES_TOPIC


class WriteError(Exception):
    """A record could not be written, so what was read must be read again: end the process without committing."""


class ScoreWriter:
    """One idempotent producer for `scores` and `quarantine`."""

    def __init__(self, kafka: KafkaSettings, instruments: Instruments, max_unacknowledged: int) -> None:
        """Keeps the settings; nothing is connected before `start`.

        Args:
            kafka: Where the broker is.
            instruments: Where written records are counted.
            max_unacknowledged: Most records on their way; writing waits when there are more.
        """
        self._kafka = kafka
        self._instruments = instruments
        self._max_unacknowledged = max_unacknowledged
        self._scores_topic = kafka.topic(SCORES_TOPIC)
        self._quarantine_topic = kafka.topic(QUARANTINE_TOPIC)
        self._producer: AIOKafkaProducer | None = None
        self._on_their_way: set[asyncio.Future[Any]] = set()
        self._failure: BaseException | None = None

    async def start(self) -> None:
        """Connects.

        Raises:
            KafkaUnreachableError: No broker answers.
        """
        self._producer = self._kafka.producer("evaluator")
        try:
            await self._producer.start()
        except KafkaError as error:
            raise self._kafka.unreachable(error) from error

    async def stop(self, deadline_seconds: float) -> None:
        """Disconnects; what is not acknowledged by the deadline is given up, and what caused it is read again."""
        producer, self._producer = self._producer, None
        if producer is None:
            return
        try:
            await asyncio.wait_for(producer.stop(), deadline_seconds)
        except TimeoutError:
            return

    async def write_scores(self, partition: int, outbox: deque[AnyScoreRecord]) -> None:
        """Sends score records of one partition, in order, to the same partition number of `scores`.

        Args:
            partition: The partition number.
            outbox: Emptied as they are sent; when this is cancelled, exactly those not sent are left in it. It may be
                cleared meanwhile, which ends the writing.

        Raises:
            WriteError: This or an earlier record could not be written.
        """
        while outbox:
            record = outbox[0]
            value = record.model_dump_json().encode()
            await self._send(self._scores_topic, value, record.conversation_id.encode(), partition)
            self._instruments.inc("callgauge_scores_published_total", (record.kind,))
            if outbox:
                outbox.popleft()

    async def write_refused(self, outbox: deque[QuarantineRecord]) -> None:
        """Sends quarantine records; as `write_scores`, but to any partition."""
        while outbox:
            record = outbox[0]
            await self._send(self._quarantine_topic, record.model_dump_json().encode(), record.key.encode(), None)
            if outbox:
                outbox.popleft()

    async def acknowledged(self) -> None:
        """Waits until all that was sent before this call is acknowledged.

        Raises:
            WriteError: Something was not.
        """
        if self._on_their_way:
            await asyncio.wait(set(self._on_their_way))
        self._check()

    async def _send(self, topic: str, value: bytes, key: bytes, partition: int | None) -> None:
        self._check()
        if self._producer is None:
            raise WriteError("the writer is not started, or stopped: nothing can be written")
        if len(self._on_their_way) >= self._max_unacknowledged:
            await self.acknowledged()
        try:
            sent = await self._producer.send(topic, value, key=key, partition=partition)
        except KafkaError as error:
            raise self._broken(error) from error
        self._on_their_way.add(sent)
        sent.add_done_callback(self._on_done)

    def _on_done(self, sent: "asyncio.Future[Any]") -> None:
        self._on_their_way.discard(sent)
        error = None if sent.cancelled() else sent.exception()
        self._failure = self._failure or error

    def _check(self) -> None:
        if self._failure is not None:
            raise self._broken(self._failure) from self._failure

    def _broken(self, error: BaseException) -> WriteError:
        return WriteError(
            f"Scores: a record was not acknowledged by {self._kafka.bootstrap_servers}: "
            f"{str(error) or type(error).__name__}. The evaluator ends without committing what it read last; the next "
            "one reads it again. Check the broker and the rights on the output topics."
        )
