"""Records that stand in an input and that its broker shows to nobody, for want of a replica: time waits for them."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import GroupCoordinatorNotAvailableError
from confluent_kafka.cimpl import NewTopic

from schemas.closed_sets import InputSource
from schemas.log import Event, LogReader, Tick
from schemas.topics import EVENTS_TOPIC, INPUT_TOPICS, QUARANTINE_TOPIC, SEQUENCER_TOPIC, TOPIC_BY_SOURCE
from tests.chaos.cluster import cluster as clusters
from tests.chaos.cluster.cluster import Cluster
from tests.integration.test_sequencer import STAMPED, records_of
from tests.support.brokers.kafka_broker import NoBrokerError
from tests.support.brokers.topic_changes import admin_of
from tests.support.patience import patient
from tests.support.required_tools import MISSING
from tests.support.sequencer_process import sequencer

PREFIX: Final = "hidden."
PIPECAT: Final = PREFIX + TOPIC_BY_SOURCE[InputSource.PIPECAT]
STOOD: Final = 4
"""Ticks that tell the same time: of two seconds."""
WAIT_SECONDS: Final = 60

pytestmark = [pytest.mark.kafka, pytest.mark.long]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    try:
        with clusters.running(tmp_path / "cluster", 3) as running:
            yield running
    except NoBrokerError as error:
        pytest.skip(f"{MISSING}{error}")


async def test_time_stands_while_a_record_is_hidden_because_a_replica_does_not_have_it(
    cluster: Cluster, tmp_path: Path
) -> None:
    group = f"{PREFIX}sequencer"
    leader = await _coordinator(cluster, group)  # which the sequencer needs, too
    follower = next(number for number in (1, 2, 3) if number != leader)
    await _create(cluster, {PIPECAT: [leader, follower]}, STAMPED)
    others = [topic for topic in (*INPUT_TOPICS, EVENTS_TOPIC) if PREFIX + topic != PIPECAT]
    await _create(cluster, {PREFIX + topic: [leader] for topic in others}, STAMPED)
    await _create(cluster, {PREFIX + topic: [leader] for topic in (QUARANTINE_TOPIC, SEQUENCER_TOPIC)}, {})
    with sequencer(tmp_path / "sequencer.log", cluster.bootstrap, PREFIX) as running:
        await asyncio.to_thread(running.term)
        async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap, acks=1) as producer:
            await producer.send_and_wait(PIPECAT, b"{}", key=b"seen")
            await _read_until(cluster, b"seen")
            cluster.nodes[follower - 1].freeze()
            try:
                # In sync, as far as the leader knows, until the other nodes have missed it for some seconds.
                hidden = await producer.send_and_wait(PIPECAT, b"{}", key=b"hidden")
                told = await _read_until(cluster, b"hidden")
            finally:
                cluster.nodes[follower - 1].thaw()
    assert told[-1] < hidden.timestamp, "known time is never above a record that is not in the log"
    assert told.count(told[-1]) >= STOOD, "it was hidden long enough to tell"


async def _coordinator(cluster: Cluster, group: str) -> int:
    async with asyncio.timeout(patient(WAIT_SECONDS)), admin_of(cluster.bootstrap) as admin:
        while True:
            try:
                return await admin.find_coordinator(group)
            except GroupCoordinatorNotAvailableError:  # which makes the cluster make its topic
                await asyncio.sleep(0.2)


async def _create(cluster: Cluster, replicas: dict[str, list[int]], settings: dict[str, str]) -> None:
    wanted = [NewTopic(name, 1, replica_assignment=[nodes], config=settings) for name, nodes in replicas.items()]
    for created in cluster.admin.create_topics(wanted).values():
        await asyncio.to_thread(created.result)


async def _read_until(cluster: Cluster, key: bytes) -> list[int]:
    """The times that the ticks in front of an event tell, once it is in the log."""
    async with asyncio.timeout(patient(WAIT_SECONDS)):
        while True:
            reader, told = LogReader(), [0]
            for record in (await records_of(cluster.bootstrap, PREFIX + EVENTS_TOPIC))[0]:
                read = reader.read(record)
                if isinstance(read, Tick):
                    told.append(read.known_ms)
                elif isinstance(read, Event) and read.key == key:
                    return told
            await asyncio.sleep(0.2)
