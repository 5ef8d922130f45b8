"""Records as every source writes them to the input topics, and a writer that returns when Kafka has acknowledged them."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, MessageSizeTooLargeError

from consumers.runtime.kafka.connection import KafkaSettings
from consumers.runtime.process import OperatorError, in_time
from schemas.closed_sets import InputSource
from schemas.events.envelope import agent_event_type, envelope_headers
from schemas.events.simulator import CONTROL_EVENTS, Source
from schemas.topics import MAX_BATCH_BYTES, TOPIC_BY_SOURCE

ACKNOWLEDGE_SECONDS: Final = 5.0
"""How long an acknowledgement may take before the sender is asked to come again. A broker that is there takes milliseconds."""
RECORDS_A_TURN: Final = 100
"""Records that are handed to the client before others get their turn: some 5 ms."""
CLOSE_SECONDS: Final = 1.5
"""How long closing waits for records in progress."""
HEADROOM_BYTES: Final = 16_384
"""Room for key, headers and the batch around the value of a record."""
MAX_VALUE_BYTES: Final = MAX_BATCH_BYTES - HEADROOM_BYTES
"""Largest value of a record: it and its headers are one batch."""


# Events on elevenlabs.events are of EVA's simulated caller, unless the event is of a real ElevenLabs agent.
_CE_SOURCE_NAMES: Final[Mapping[Source, str]] = {"pipecat": "pipecat", "elevenlabs": "user_sim", "audit": "audit"}


class OutgoingRecord(NamedTuple):
    """One record for an input topic; the key is the conversation id."""

    source: InputSource
    key: bytes
    value: bytes
    headers: Sequence[tuple[str, bytes]]


def outgoing(
    source: Source,
    conversation_id: str,
    value: bytes,
    *,
    name: str,
    event_id: str,
    ce_source: str,
    time_ms: int | None = None,
    sequence: int | None = None,
    is_agent_event: bool = False,
) -> OutgoingRecord:
    """What every adapter posts: the topic, the key, the event, and its CloudEvents attributes as headers (binary mode).

    Args:
        source: The input topic.
        conversation_id: The key. Partitions are chosen by murmur2 of it, as Java and aiokafka do.
        value: The event in JSON.
        name: The event's type in the words of its source; with the topic it says whose event it is.
        event_id: The same each time the event is sent, so that a second one is recognised.
        ce_source: The adapter; with `event_id` it identifies the event.
        time_ms: Of the event, in epoch milliseconds.
        sequence: Number of the event within its source.
        is_agent_event: Whether it is of a real ElevenLabs agent, which shares a topic with the simulated caller.
    """
    kind = "call" if name in CONTROL_EVENTS else _CE_SOURCE_NAMES[source]
    headers = envelope_headers(
        event_id=event_id,
        source=ce_source,
        event_type=agent_event_type(name) if is_agent_event else f"callgauge.{kind}.{name}.v1",
        subject=conversation_id,
        time_ms=time_ms,
        sequence=sequence,
    )
    return OutgoingRecord(InputSource(source), conversation_id.encode(), value, headers)


async def connected(kafka: KafkaSettings, role: str) -> AIOKafkaProducer:
    """A producer that has started.

    Raises:
        KafkaUnreachableError: No broker answers, or it does not let us in.
    """
    producer = kafka.producer(role)
    try:
        await producer.start()
    except BaseException as error:
        await producer.stop()  # also when cancelled: a producer that is dropped half started leaves its sockets
        if isinstance(error, KafkaError):
            raise kafka.unreachable(error) from error
        raise
    return producer


class NotAcknowledgedError(Exception):
    """Kafka did not acknowledge all records in time. Some of them may be written, now or later; send all of them again."""


class ProducerBrokenError(OperatorError):
    """The producer cannot write any more; only a new one can."""


class AcknowledgedWriter:
    """One idempotent producer. Records of a call keep their order, and a record is written once however often it is retried.

    Records that are not acknowledged in time stay in the client, a batch for each partition at most, and are written when the broker
    is back. A sender that comes again gives the same ids, so the evaluator recognises the second copy.

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
        self._producer = await connected(self._kafka, self._role)

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
                        self._topics[record.source], value=record.value, key=record.key, headers=list(record.headers)
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
    """Takes the error of a record for which nobody waits any more, so that it is not reported as forgotten."""
    if not sent.cancelled():
        sent.exception()
