"""Fixtures of integration tests: the address of a real broker, and topics of their own on it."""

import os
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from consumers.runtime.kafka.connection import KafkaSettings
from streamer.cluster import topic_admin
from tests.integration.processes import Process, started
from tests.support.brokers import kafka_broker
from tests.support.brokers.secured_broker import SecuredBroker
from tests.support.brokers.topic_changes import admin_of
from tests.support.required_tools import MISSING

PARTITIONS = 4


@pytest.fixture(scope="session")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real broker as "host:port", the same for every test of the run, on every xdist worker."""
    with _shared(tmp_path_factory) as address:
        yield address


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    """A real broker with TLS, logins and an authorizer, the same for every test of the run."""
    with _shared(tmp_path_factory, secured=True) as announcement:
        yield SecuredBroker.read(announcement)


@contextmanager
def _shared(tmp_path_factory: pytest.TempPathFactory, *, secured: bool = False) -> Iterator[str]:
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # a worker's own folder is in the folder of the run
    try:
        with kafka_broker.shared(folder, secured=secured) as announcement:
            yield announcement
    except kafka_broker.NoBrokerError as error:
        pytest.skip(f"{MISSING}{error}")


@pytest.fixture
async def topic_prefix(bootstrap: str) -> AsyncIterator[str]:
    """How this test's topics, groups and transactional ids begin, so that tests can share a broker.

    Topics that begin with it are deleted after the test: the broker may be a person's own.
    """
    prefix = f"t{uuid.uuid4().hex[:8]}."
    yield prefix
    async with admin_of(bootstrap) as admin:
        mine = [name for name in await admin.list_topics() if name.startswith(prefix)]
        if mine:
            await admin.delete_topics(mine)


@pytest.fixture
async def environment(
    bootstrap: str, topic_prefix: str, request: pytest.FixtureRequest
) -> dict[str, str]:
    """Variables of a `callgauge` process with topics and groups of this test's own; the topics are
    there.

    The mark `service` says how many partitions they have, if not 4, and further settings.
    """
    mark = request.node.get_closest_marker("service")
    given = {} if mark is None else dict(mark.kwargs)
    partitions = given.pop("partitions", PARTITIONS)
    environment = variables(bootstrap, topic_prefix, **given)
    await make_topics(environment, partitions)
    return environment


@pytest.fixture
def service(environment: dict[str, str], tmp_path: Path) -> Iterator[tuple[Process, str]]:
    """A running `callgauge run` with every role, and the address of its metrics."""
    with started(tmp_path / "run.log", "run", **environment) as process:
        yield process, process.metrics()


@pytest.fixture
async def producer(environment: dict[str, str]) -> AsyncIterator[AIOKafkaProducer]:
    """A client that writes as any program does."""
    async with AIOKafkaProducer(bootstrap_servers=environment["CALLGAUGE_BOOTSTRAP"]) as client:
        yield client


@pytest.fixture
def kafka(bootstrap: str, topic_prefix: str) -> KafkaSettings:
    """Settings of a client with topics of this test's own."""
    return KafkaSettings(
        bootstrap_servers=bootstrap, topic_prefix=topic_prefix, client_id=f"{topic_prefix}reader"
    )


def variables(bootstrap: str, topic_prefix: str, **settings: str) -> dict[str, str]:
    """Variables of a `callgauge` process that shares a broker with others: a port of its own."""
    return {
        "CALLGAUGE_BOOTSTRAP": bootstrap,
        "CALLGAUGE_TOPIC_PREFIX": topic_prefix,
        "CALLGAUGE_HTTP_PORT": "0",
        **{f"CALLGAUGE_{name.upper()}": value for name, value in settings.items()},
    }


async def make_topics(environment: Mapping[str, str], partitions: int = PARTITIONS) -> None:
    """Makes every topic as `callgauge topics create` does, without the second that a process takes
    to start.
    """
    kafka = KafkaSettings(
        bootstrap_servers=environment["CALLGAUGE_BOOTSTRAP"],
        topic_prefix=environment["CALLGAUGE_TOPIC_PREFIX"],
    )
    await topic_admin.create_topics(kafka, partitions=partitions, replication_factor=1)
