"""The broker of the other tests: it answers, keeps committed offsets, and ends with the process that started it."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import TopicAlreadyExistsError, UnknownTopicOrPartitionError

from tests.support import required_tools
from tests.support.brokers.topic_changes import create_topics
from tests.support.patience import patient

READ_SECONDS = 60


async def _read_all(bootstrap: str, topic: str, isolation: str, until: bytes) -> list[bytes]:
    """Values of the topic from its start up to `until`."""
    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest", isolation_level=isolation
    )
    values: list[bytes] = []
    async with consumer, asyncio.timeout(patient(READ_SECONDS)):
        while not values or values[-1] != until:
            values.append((await consumer.getone()).value)
    return values


async def test_what_is_produced_is_consumed(bootstrap: str, topic_prefix: str) -> None:
    topic = topic_prefix + "plain"
    await create_topics(bootstrap, {topic: 1})
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        for value in (b"one", b"two", b"three"):
            await producer.send_and_wait(topic, value, key=b"call")
    assert await _read_all(bootstrap, topic, "read_uncommitted", b"three") == [b"one", b"two", b"three"]


async def test_only_what_was_committed_is_read(bootstrap: str, topic_prefix: str) -> None:
    topic = topic_prefix + "transactions"
    await create_topics(bootstrap, {topic: 1})
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=topic_prefix + "writer") as producer:
        async with producer.transaction():
            await producer.send_and_wait(topic, b"committed")
        await producer.begin_transaction()
        await producer.send_and_wait(topic, b"aborted")
        await producer.abort_transaction()
        async with producer.transaction():
            await producer.send_and_wait(topic, b"last")
    assert await _read_all(bootstrap, topic, "read_committed", b"last") == [b"committed", b"last"]
    assert await _read_all(bootstrap, topic, "read_uncommitted", b"last") == [b"committed", b"aborted", b"last"]


async def test_a_topic_is_made_once_and_never_by_itself(bootstrap: str, topic_prefix: str) -> None:
    await create_topics(bootstrap, {topic_prefix + "once": 4}, configs={"retention.ms": "60000"})
    with pytest.raises(TopicAlreadyExistsError):
        await create_topics(bootstrap, {topic_prefix + "once": 4})
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, request_timeout_ms=round(1_000 * patient(2))) as producer:
        with pytest.raises(UnknownTopicOrPartitionError):
            await producer.send_and_wait(topic_prefix + "never", b"value")


def _answers(address: str) -> bool:
    host, port = address.split(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True


def test_a_broker_ends_when_its_owner_is_killed(tmp_path: Path) -> None:
    if required_tools.provide(required_tools.JAVA, required_tools.MAVEN) and not required_tools.has_docker():
        pytest.skip(f"{required_tools.MISSING}{required_tools.names((required_tools.JAVA, required_tools.MAVEN))}")
    program = """if True:
        import time
        from tests.support.brokers import kafka_broker
        with kafka_broker.running() as address:
            print(address, flush=True)
            time.sleep(600)
    """
    environment = {name: value for name, value in os.environ.items() if name != "CALLGAUGE_TEST_BOOTSTRAP"}
    environment["TMPDIR"] = str(tmp_path)
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=root, env=environment, stdout=subprocess.PIPE, text=True
    ) as owner:
        try:
            assert owner.stdout is not None
            address = owner.stdout.readline().strip()
            assert _answers(address)
        finally:
            owner.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + patient(20)
    while time.monotonic() < deadline and (_answers(address) or any(tmp_path.iterdir())):
        time.sleep(0.1)
    assert not _answers(address)
    assert not any(tmp_path.iterdir()), "its folder is removed too"
