"""How often records are taken from a real broker: together after a moment, at once with
a backlog.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiokafka import AIOKafkaProducer

from consumers.runtime.kafka import polling
from consumers.runtime.kafka.connection import KafkaSettings
from consumers.runtime.kafka.polling import ENOUGH_BYTES, GroupReader
from consumers.runtime.received import Batch
from tests.support.brokers.topic_changes import create_topics
from tests.support.patience import patient

pytestmark = pytest.mark.kafka

PACED_TOPIC = "scores"
ANSWER_BYTES = 2 * ENOUGH_BYTES
RECORD_BYTES = 1_000


class _Polls:
    """Takes records and keeps how many came with each poll."""

    def __init__(self) -> None:
        self.polls: list[int] = []
        self._came = asyncio.Event()

    async def take(self, batch: Batch[bytes]) -> None:
        self.polls.append(len(batch))
        self._came.set()

    async def until(self, records: int) -> None:
        async with asyncio.timeout(patient(30)):
            while sum(self.polls) < records:
                self._came.clear()
                await self._came.wait()


@asynccontextmanager
async def _polling(
    bootstrap: str, prefix: str, interval_ms: int
) -> AsyncIterator[tuple[_Polls, GroupReader[bytes]]]:
    reading = _Polls()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(polling, "GATHER_MS", interval_ms)
        patch.setattr(polling, "POLL_MS", interval_ms)
        made = _reader(bootstrap, prefix, reading)
    await made.start()
    try:
        yield reading, made
    finally:
        await made.stop()


def _reader(bootstrap: str, prefix: str, reading: _Polls) -> GroupReader[bytes]:
    kafka = KafkaSettings(bootstrap_servers=bootstrap, topic_prefix=prefix)
    return GroupReader(
        kafka,
        "reader",
        PACED_TOPIC,
        reading.take,
        message=bytes,
        decode=bytes,
        group_id=prefix + "reader",
        max_records=50,
        begins="earliest",
    )


async def test_what_comes_one_by_one_is_taken_together(bootstrap: str, topic_prefix: str) -> None:
    interval_ms, records = 300, 60
    await create_topics(bootstrap, {topic_prefix + PACED_TOPIC: 2})
    async with (
        AIOKafkaProducer(bootstrap_servers=bootstrap) as producer,
        _polling(bootstrap, topic_prefix, interval_ms) as (reading, _),
    ):
        begin = time.monotonic()
        for number in range(records):
            await producer.send_and_wait(topic_prefix + PACED_TOPIC, b"value", partition=number % 2)
        await reading.until(records)
        passed_ms = (time.monotonic() - begin) * 1_000
    assert len(reading.polls) <= passed_ms / interval_ms + 2


async def test_a_backlog_waits_for_nothing(bootstrap: str, topic_prefix: str) -> None:
    answers, interval_ms = 16, 10_000
    records = answers * ANSWER_BYTES // RECORD_BYTES
    await create_topics(bootstrap, {topic_prefix + PACED_TOPIC: 1})
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, linger_ms=20) as producer:
        for _ in range(records):
            await producer.send(topic_prefix + PACED_TOPIC, bytes(RECORD_BYTES))
    async with _polling(bootstrap, topic_prefix, interval_ms) as (reading, _):
        # which is not that patient: a wait for each answer would take minutes
        await reading.until(records)
    assert max(reading.polls) <= 50


async def test_the_end_does_not_wait_for_records(bootstrap: str, topic_prefix: str) -> None:
    await create_topics(bootstrap, {topic_prefix + PACED_TOPIC: 1})
    async with _polling(bootstrap, topic_prefix, 60_000) as (_, made):
        await made.stop()
        assert made.subscriber.consumer is None, "it was given up in the middle"
