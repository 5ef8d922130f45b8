"""Records that stand in an input and that its broker shows to nobody, for want of a replica: time
waits for them.
"""

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
from schemas.topics import (
    EVENTS_TOPIC,
    INPUT_TOPICS,
    QUARANTINE_TOPIC,
    SEQUENCER_TOPIC,
    TOPIC_BY_SOURCE,
)
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
STOOD: Final = 8
"""Newest ticks that tell the same time: of four seconds. The follower is in sync for longer, as far
as its leader knows, and a record that too few replicas have is not shown even then.
"""
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
    await _create(
        cluster, {PREFIX + topic: [leader] for topic in (QUARANTINE_TOPIC, SEQUENCER_TOPIC)}, {}
    )
    bootstrap = cluster.nodes[leader - 1].address  # not that of the node that will not answer
    with sequencer(tmp_path / "sequencer.log", bootstrap, PREFIX) as running:
        await asyncio.to_thread(running.term)
        async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks=1) as producer:
            await producer.send_and_wait(PIPECAT, b"{}", key=b"seen")
            await _until(bootstrap, b"seen")
            cluster.nodes[follower - 1].freeze()
            try:
                hidden = await producer.send_and_wait(PIPECAT, b"{}", key=b"hidden")
                stood = await _stands(bootstrap)
                is_in_the_log = b"hidden" in await _keys(bootstrap)
            finally:
                cluster.nodes[follower - 1].thaw()
            await _until(bootstrap, b"hidden")
    assert not is_in_the_log
    assert stood <= hidden.timestamp, "known time is never above a record that is not in the log"


async def _coordinator(cluster: Cluster, group: str) -> int:
    async with asyncio.timeout(patient(WAIT_SECONDS)), admin_of(cluster.bootstrap) as admin:
        while True:
            try:
                return int(await admin.find_coordinator(group))
            except GroupCoordinatorNotAvailableError:  # which makes the cluster make its topic
                await asyncio.sleep(0.2)


async def _create(
    cluster: Cluster, replicas: dict[str, list[int]], settings: dict[str, str]
) -> None:
    wanted = [
        NewTopic(name, 1, replica_assignment=[nodes], config=settings)
        for name, nodes in replicas.items()
    ]
    for created in cluster.admin.create_topics(wanted).values():
        await asyncio.to_thread(created.result)


async def _until(bootstrap: str, key: bytes) -> None:
    async with asyncio.timeout(patient(WAIT_SECONDS)):
        while True:
            if key in await _keys(bootstrap):
                return
            await asyncio.sleep(0.2)


async def _keys(bootstrap: str) -> list[bytes | None]:
    """Returns the keys of the events in the log, and checks that no event is older than the known
    time before it.
    """
    reader, keys = LogReader(), []
    for record in (await records_of(bootstrap, PREFIX + EVENTS_TOPIC))[0]:
        if isinstance(read := reader.read(record), Event):
            assert read.timestamp >= reader.known_ms, (
                "known time is never above a record that was not read"
            )
            keys.append(read.key)
    return keys


async def _stands(bootstrap: str) -> int:
    """The time that ticks tell, once it does not go on."""
    async with asyncio.timeout(patient(WAIT_SECONDS)):
        while True:
            records = (await records_of(bootstrap, PREFIX + EVENTS_TOPIC))[0]
            told = [Tick.parse(record.value).known_ms for record in records if record.key is None]
            if len(set(told[-STOOD:])) == 1:
                return told[-1]
            await asyncio.sleep(0.2)
