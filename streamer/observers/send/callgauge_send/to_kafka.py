"""Events to a topic of Kafka, with the headers of a CloudEvent."""

import asyncio
import time
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    InvalidTimestampError,
    KafkaError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
)

from callgauge_send.events import MAX_EVENT_BYTES, Record
from callgauge_send.outbox import Outbox
from callgauge_send.sender import STOP_SECONDS, Log, Once, Settled, Taken

SENDS_AT_A_STRETCH: Final = 10
"""Records handed to the client before the bots' own tasks get their turn: half a millisecond."""
MAX_BATCH_BYTES: Final = 4 * MAX_EVENT_BYTES
"""Largest batch of a partition, a quarter of what brokers take by default: one that is larger than the topic takes is sent
again in halves, and a smaller one is slower after an outage, because a partition has one at a time on its way.
"""
REQUEST_TIMEOUT_MS: Final = 10_000
"""How long the broker may take for an answer before records are sent again."""
ROUND_SECONDS: Final = 3 * REQUEST_TIMEOUT_MS / 1000
"""How long the answers to a round may take; what has none is sent again."""
MAX_SHOWN_CHARS: Final = 400
_OF_RECORDS: Final = (InvalidTimestampError, MessageSizeTooLargeError, RecordListTooLargeError)
"""Refusals that the broker would repeat for the same records. It says so of a whole batch, of which one record may be the cause."""
_OF_ONE_RECORD: Final = (*_OF_RECORDS, AssertionError, TypeError, ValueError)
"""What the client says of a record before it is in a batch: too large, or a serializer of the options does not take it."""
_Refused = tuple[Outbox, Record, BaseException]
"""A record of a refused batch, with the refusal."""


class ToKafka:
    """A topic, with a producer that is made when it is needed."""

    def __init__(self, topic: str, options: Mapping[str, Any], log: Log) -> None:
        """Keeps the settings.

        Args:
            topic: Full name of the topic.
            options: Arguments of aiokafka's producer: addresses, TLS, login.
            log: Takes what a person may want to know.
        """
        self._topic = topic
        self._options = {
            "acks": "all",  # a repeated record has the same id, so readers recognise it
            "client_id": "callgauge-send",
            "linger_ms": 5,
            "max_batch_size": MAX_BATCH_BYTES,
            "request_timeout_ms": REQUEST_TIMEOUT_MS,
            **options,
        }
        self._log = log
        self._once = Once(log)
        self._producer: AIOKafkaProducer | None = None
        self.key: Hashable = ("kafka", topic, *sorted((name, repr(value)) for name, value in options.items()))
        self.place = f"{topic} at {self._options.get('bootstrap_servers')}"
        self.remedy = "Check the address, the login, and that the topic exists (`callgauge topics create`)."

    async def open(self) -> None:
        """Connects, unless it is connected; raises what the client raises."""
        if self._producer is not None:
            return
        producer = AIOKafkaProducer(**self._options)
        try:
            await producer.start()
        except BaseException:
            await self._stop(producer)
            raise
        self._producer = producer

    async def send(self, taken: Taken, settled: Settled) -> BaseException | None:
        """Sends the records in their order and adds those that the broker has, or will never take; returns the first failure.

        The broker refuses a batch as a whole. So its records are sent again in halves, until the record that is the cause is alone:
        it is lost, and counted.
        """
        groups = deque([[(outbox, record) for outbox, records in taken.items() for record in records]])
        until_s = time.monotonic() + ROUND_SECONDS
        while groups and time.monotonic() < until_s:  # what is left goes with the next round
            group = groups.popleft()
            refused: list[_Refused] = []
            failure = await self._send(group, settled, refused)
            if failure is not None:
                return failure
            if len(group) == 1:
                for outbox, record, refusal in refused:
                    self._lose(outbox, record, settled, refusal)
            else:
                again = [(outbox, record) for outbox, record, _ in refused]
                middle = len(again) // 2
                groups.extendleft(half for half in (again[middle:], again[:middle]) if half)
        return None

    async def _send(
        self, records: Sequence[tuple[Outbox, Record]], settled: Settled, refused: list[_Refused]
    ) -> BaseException | None:
        """Sends records and adds those that are settled, and those whose batch was refused; returns the first failure."""
        if self._producer is None:
            return ConnectionError("not connected")
        sent: dict[asyncio.Future[Any], tuple[Outbox, Record]] = {}
        failure: BaseException | None = None
        for number, (outbox, record) in enumerate(records, 1):
            if number % SENDS_AT_A_STRETCH == 0:
                await asyncio.sleep(0)
            key, headers = outbox.conversation_id.encode("utf-8", "replace"), _headers(outbox.source, record)
            try:
                sent[await self._producer.send(self._topic, record.value, key=key, headers=headers)] = outbox, record
            except _OF_ONE_RECORD as error:
                self._lose(outbox, record, settled, error)
            except KafkaError as error:
                failure = error
                break
        if sent:
            await asyncio.wait(sent, timeout=ROUND_SECONDS)
        for future, (outbox, record) in sent.items():
            has_answer = future.done() and not future.cancelled()
            error = future.exception() if has_answer else TimeoutError("no answer")
            if isinstance(error, _OF_RECORDS):
                refused.append((outbox, record, error))
            elif error is not None:
                failure = failure or error
            else:
                settled.add((outbox, record.sequence))
        return failure

    def _lose(self, outbox: Outbox, record: Record, settled: Settled, error: BaseException) -> None:
        outbox.refuse(record)
        settled.add((outbox, record.sequence))
        why = repr(error)[:MAX_SHOWN_CHARS]
        self._once.warn(
            type(error), f"{self.place} does not take an event of type {record.type}, which is lost and counted: {why}"
        )

    async def close(self) -> None:
        """Disconnects."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await self._stop(producer)

    async def _stop(self, producer: AIOKafkaProducer) -> None:
        """Disconnects, but does not wait for a broker that is away."""
        task = asyncio.ensure_future(producer.stop())
        await asyncio.wait({task}, timeout=STOP_SECONDS)
        if not task.done():
            task.cancel()
        elif not task.cancelled() and task.exception() is not None:
            self._log.debug(f"callgauge: disconnecting failed: {task.exception()!r}")


def _headers(source: str, record: Record) -> list[tuple[str, bytes]]:
    """The envelope of a CloudEvent (binary mode); its source and id identify a repeat."""
    number = b"%d" % record.sequence
    return [
        ("ce_specversion", b"1.0"),
        ("ce_id", number),
        ("ce_source", source.encode("utf-8", "replace")),
        ("ce_type", f"callgauge.pipecat.{record.type}.v1".encode("utf-8", "replace")),
        ("ce_sequence", number),
        ("content-type", b"application/json"),
    ]
