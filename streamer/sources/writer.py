"""Records as every source writes them to the input topics, and a writer that returns when Kafka has
acknowledged them.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, MessageSizeTooLargeError

from consumers.runtime.kafka.connection import KafkaSettings
from consumers.runtime.process import in_time
from schemas.log import OutgoingRecord
from schemas.topics import TOPIC_BY_SOURCE
from streamer.sources.outgoing import ACKNOWLEDGE_SECONDS, NotAcknowledgedError, ProducerBrokenError

RECORDS_A_TURN: Final = 100
"""Records that are handed to the client before others get their turn: some 5 ms."""
CLOSE_SECONDS: Final = 1.5
"""How long closing waits for records in progress."""


class AcknowledgedWriter:
    """One idempotent producer. Records of a call keep their order, and a record is written once
    however often it is retried.

    Records that are not acknowledged in time stay in the client, a batch for each partition at
    most, and are written when the broker is back. A sender that comes again gives the same ids, so
    the evaluator recognises the second copy.

    Attributes:
        broken: Set when the producer can write nothing any more.
    """

    def __init__(self, kafka: KafkaSettings, role: str) -> None:
        """Nothing is connected before `start`. Call it inside a running event loop."""
        self.broken = asyncio.Event()
        self._kafka = kafka
        self._role = role
        self._topics = {source: kafka.topic(topic) for source, topic in TOPIC_BY_SOURCE.items()}
        self._producer: AIOKafkaProducer | None = None
        self._failure: BaseException | None = None
        self._was_refused = False

    async def start(self) -> None:
        """Connects.

        Raises:
            KafkaUnreachableError: No broker answers, or it does not let us in.
        """
        producer = self._kafka.producer(self._role)
        try:
            await producer.start()
        except BaseException as error:
            # also when cancelled: a producer that is dropped half started leaves its sockets
            await producer.stop()
            if isinstance(error, KafkaError):
                raise self._kafka.unreachable(error) from error
            raise
        self._producer = producer

    async def close(self) -> None:
        """Finishes open writes, for at most `CLOSE_SECONDS`, and disconnects."""
        producer, self._producer = self._producer, None
        if producer is not None:
            with suppress(TimeoutError, KafkaError):
                await in_time(CLOSE_SECONDS, producer.stop())

    @property
    def is_away(self) -> bool:
        """Whether the last records were not acknowledged."""
        return self._was_refused

    def failure(self) -> ProducerBrokenError:
        """The reason why the writer is broken."""
        return ProducerBrokenError(
            f"{self._role}: records cannot be written any more: {self._failure!r}. It starts again."
        )

    async def write(self, records: Sequence[OutgoingRecord]) -> None:
        """Writes records, in order for each call, and waits for all acknowledgements.

        Raises:
            NotAcknowledgedError: They did not come within `ACKNOWLEDGE_SECONDS`.
        """
        if self._producer is None:
            raise NotAcknowledgedError
        waiting: list[asyncio.Future[Any]] = []
        try:
            async with asyncio.timeout(ACKNOWLEDGE_SECONDS):
                for number, record in enumerate(records, 1):
                    if number % RECORDS_A_TURN == 0:
                        await asyncio.sleep(0)  # the client waits only when its buffers are full
                    sent = await self._producer.send(
                        self._topics[record.source],
                        value=record.value,
                        key=record.key,
                        headers=list(record.headers),
                    )
                    sent.add_done_callback(_read)
                    waiting.append(sent)
                # Not gather: its cancellation would cancel the client's open writes.
                if waiting:
                    await asyncio.wait(waiting)
                for sent in waiting:
                    sent.result()
        except (TimeoutError, KafkaError) as error:
            self._was_refused = True
            if (
                isinstance(error, KafkaError)
                and not error.retriable
                and not isinstance(error, MessageSizeTooLargeError)
            ):
                self._failure = error
                self.broken.set()
            raise NotAcknowledgedError from error
        self._was_refused = False


def _read(sent: "asyncio.Future[Any]") -> None:
    """Takes the error of a record which is not awaited any more, so that it is not reported as
    forgotten.
    """
    if not sent.cancelled():
        sent.exception()
