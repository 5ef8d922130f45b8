"""A record that only the leader has: readers get the answer that there is nothing, and the evaluator knows better."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import NewTopic
from prometheus_client import CollectorRegistry

from consumers.evaluator.assignment import Assignment
from consumers.runtime.kafka.broker_clock import BrokerClock
from consumers.runtime.kafka.connection import KafkaSettings
from consumers.runtime.kafka.log_ends import LogEnds
from consumers.runtime.registry import Instruments
from tests.chaos.cluster import cluster as clusters
from tests.support.brokers import kafka_broker
from tests.support.fakes.evaluator_fakes import StubEvaluator, owned_of, partition_of
from tests.support.patience import patient
from tests.support.required_tools import MISSING

pytestmark = pytest.mark.kafka

A = TopicPartition("a", 0)
SECONDS = 20
"""For each thing that is waited for."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[clusters.Cluster]:
    """Two brokers: when one of them is frozen, no majority can decide to do without it."""
    try:
        with clusters.running(tmp_path, 2) as cluster:
            yield cluster
    except kafka_broker.NoBrokerError as error:
        pytest.skip(f"{MISSING}{error}")


class Reading:
    """One replicated input, read as the evaluator reads it."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self.consumer: AIOKafkaConsumer = kafka.consumer("test", fetch_max_wait_ms=100)
        clock = BrokerClock(Instruments(CollectorRegistry(), ["evaluator"]))
        self.log_ends = LogEnds(kafka, [A.topic], clock.steady_ms)
        self.partition, _ = partition_of(StubEvaluator())
        self.assignment = Assignment([A.topic], self.log_ends.ends, clock)
        self.assignment.owned = {0: owned_of(self.partition)}

    async def until(self, condition: Callable[[], bool]) -> None:
        """Reads and looks, as often as it takes."""
        async with asyncio.timeout(patient(SECONDS)):
            while True:
                polled = await self.consumer.getmany(timeout_ms=10)
                self.partition.polled(list(polled.values()))
                await self.assignment.look(self.consumer)
                if condition():
                    return

    @property
    def known_ms(self) -> int:
        """0 if nothing is known."""
        return self.assignment.known_ms(0) or 0


@pytest.fixture
async def reading(cluster: clusters.Cluster) -> AsyncIterator[Reading]:
    kafka = KafkaSettings(bootstrap_servers=cluster.bootstrap)
    admin = kafka.admin("test")
    await admin.start()
    async with asyncio.timeout(patient(SECONDS)):
        while cluster.leaders().get((A.topic, 0), -1) < 0 or cluster.unreplicated():
            # Asked for until it is there: the controller refuses two replicas while it misses a heartbeat of the other broker.
            await admin.create_topics([NewTopic(A.topic, 1, 2)])
            await asyncio.sleep(0.05)
    await admin.close()
    reading = Reading(kafka)
    await reading.log_ends.start()
    await reading.consumer.start()
    reading.consumer.assign([A])
    asking = asyncio.create_task(reading.log_ends.ask_for_ever(lambda: [A]))
    yield reading
    asking.cancel()
    await asyncio.wait([asking])
    assert asking.cancelled(), asking
    await reading.log_ends.stop()
    await reading.consumer.stop()


async def test_silence_is_not_read_from_records_that_are_hidden_still(
    cluster: clusters.Cluster, reading: Reading
) -> None:
    (follower,) = [node for node in cluster.nodes if node.number != cluster.leaders()[A.topic, 0]]
    assert follower._process is not None
    async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap, acks=1) as producer:
        first = await producer.send_and_wait(A.topic, b"seen", partition=0)
        await reading.until(lambda: reading.partition.last_record_ms == {A.topic: first.timestamp})
        now_ms = time.time_ns() // 1_000_000
        await reading.until(lambda: reading.known_ms > now_ms)

        follower._process.send_signal(signal.SIGSTOP)
        try:
            hidden = await producer.send_and_wait(A.topic, b"hidden", partition=0)
            frozen_ms = time.time_ns() // 1_000_000
            await reading.until(lambda: reading.assignment.lag_messages("g")["g", A.topic, "0"] == 1)
            told_ms = reading.consumer.last_poll_timestamp(A)
            # Three answers later: the client has asked once more since, and still gets the answer that it has read everything.
            await reading.until(lambda: reading.consumer.last_poll_timestamp(A) > told_ms + 300)
            assert (reading.consumer.highwater(A), await reading.consumer.position(A)) == (1, 1)
            assert reading.known_ms == first.timestamp, "up to the last record that was handed over"
        finally:
            follower._process.send_signal(signal.SIGCONT)
        await reading.until(lambda: reading.partition.last_record_ms[A.topic] == hidden.timestamp)
        await reading.until(lambda: reading.known_ms > frozen_ms)
