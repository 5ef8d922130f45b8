"""Events to a topic of Kafka, with the headers of a CloudEvent."""

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Hashable, Mapping
from itertools import islice
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka.errors import InvalidTimestampError, MessageSizeTooLargeError, RecordListTooLargeError
from aiokafka.partitioner import DefaultPartitioner

from callgauge_send.events import MAX_EVENT_BYTES, Record
from callgauge_send.outbox import EventOutbox
from callgauge_send.sender import STOP_SECONDS, Log, Once, Settled, Taken

RECORDS_AT_A_STRETCH: Final = 10
"""Records put into a batch before the bots' own tasks get their turn: a fraction of a
millisecond.
"""
MAX_BATCH_BYTES: Final = 4 * MAX_EVENT_BYTES
"""Largest batch of a partition, a quarter of what brokers take by default: one that is larger than
the topic takes is sent again in halves, and a smaller one is slower after an outage, because a
partition has one at a time on its way.
"""
REQUEST_TIMEOUT_MS: Final = 10_000
"""How long the broker may take for an answer before records are sent again."""
ROUND_SECONDS: Final = 3 * REQUEST_TIMEOUT_MS / 1000
"""How long the answers to a round may take; what has none is sent again."""
MAX_SHOWN_CHARS: Final = 400
_OF_RECORDS: Final = (InvalidTimestampError, MessageSizeTooLargeError, RecordListTooLargeError)
"""Refusals that the broker would repeat for the same records. It says so of a whole batch, of which
one record may be the cause.
"""
_Waiting = deque[tuple[EventOutbox, Record]]
"""The records for a partition, in their order."""


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
            "max_batch_size": MAX_BATCH_BYTES,
            "request_timeout_ms": REQUEST_TIMEOUT_MS,
            **options,
        }
        self._partition_of = self._options.get("partitioner") or DefaultPartitioner()
        self._log = log
        self._once = Once(log)
        self._producer: AIOKafkaProducer | None = None
        self.key: Hashable = (
            "kafka",
            topic,
            *sorted((name, repr(value)) for name, value in options.items()),
        )
        self.place = f"{topic} at {self._options.get('bootstrap_servers')}"
        self.remedy = (
            "Check the address, the login, and that the topic exists (`callgauge topics create`). "
            "For `callgauge serve`, without Kafka, set CALLGAUGE_URL and CALLGAUGE_TOKEN."
        )

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
        """Sends the records and adds those that the broker has, or will never take; returns the
        first failure.

        A call is in one partition, and a partition has one batch at a time on its way: no record is
        written before one that came before it, also when a batch is refused, or lost.
        """
        if self._producer is None:
            return ConnectionError("not connected")
        partitions = sorted(await self._producer.partitions_for(self._topic))
        by_partition: defaultdict[int, _Waiting] = defaultdict(deque)
        for outbox, records in taken.items():
            partition = self._partition_of(_key(outbox), partitions, partitions)
            by_partition[partition].extend((outbox, record) for record in records)
        # one partition packs at a time, so the bots' tasks do not wait for all of them
        packing = asyncio.Lock()
        sent = (
            self._send(self._producer, *each, settled, packing) for each in by_partition.items()
        )
        return next(filter(None, await asyncio.gather(*sent, return_exceptions=True)), None)

    async def _send(
        self,
        producer: AIOKafkaProducer,
        partition: int,
        waiting: _Waiting,
        settled: Settled,
        packing: asyncio.Lock,
    ) -> None:
        """Sends the records for a partition in their order; raises the first failure, and what came
        after it waits too.

        The broker refuses a batch as a whole. So its records are sent again in halves, until the
        record that is the cause is alone: it is lost, and counted.
        """
        most: int | None = None
        until_s = time.monotonic() + ROUND_SECONDS
        while waiting and time.monotonic() < until_s:  # what is left goes with the next round
            batch = producer.create_batch()
            async with packing:
                for number, (outbox, record) in enumerate(islice(waiting, most), 1):
                    headers = _headers(outbox.source, record)
                    if (
                        batch.append(
                            timestamp=None, key=_key(outbox), value=record.value, headers=headers
                        )
                        is None
                    ):
                        break
                    if number % RECORDS_AT_A_STRETCH == 0:
                        await asyncio.sleep(0)
            batch.close()  # it is sent immediately
            count = batch.record_count()
            try:
                async with asyncio.timeout(ROUND_SECONDS):
                    await (await producer.send_batch(batch, self._topic, partition=partition))
            except _OF_RECORDS as error:
                if count > 1:
                    most = count // 2
                    continue
                most = None
                self._lose(*waiting[0], error)
            for _ in range(count):
                outbox, record = waiting.popleft()
                settled.add((outbox, record.sequence))

    def _lose(self, outbox: EventOutbox, record: Record, error: BaseException) -> None:
        outbox.refuse(record)
        why = repr(error)[:MAX_SHOWN_CHARS]
        self._once.warn(
            type(error),
            f"{self.place} does not take an event of type {record.type}, which is lost and "
            f"counted: {why}",
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


def _key(outbox: EventOutbox) -> bytes:
    return outbox.conversation_id.encode("utf-8", "replace")


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
