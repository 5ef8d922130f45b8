"""The compacted topic of goals on a real broker: existing records count, new ones are followed, and
no group is joined.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka.admin import AdminClient
from structlog.testing import capture_logs

from consumers.runtime.kafka.connection import KafkaSettings
from schemas.topics import GOALS_TOPIC
from streamer.goals import topic as goals_topic
from streamer.goals.sources import GoalSources
from streamer.goals.topic import GoalsTopic
from tests.support.brokers.topic_changes import add_partitions, create_topics
from tests.support.patience import patient

PATIENCE_SECONDS = 30


def goal_set(goals_id: str, *agents: str, details: str = "d") -> dict[str, Any]:
    subgoal = {"id": "one", "details": details, "check": {"kind": "judge"}}
    return {"id": goals_id, "agents": list(agents), "subgoals": [subgoal]}


@pytest.fixture
def name(kafka: KafkaSettings) -> str:
    return kafka.topic(GOALS_TOPIC)


async def make(kafka: KafkaSettings, partitions: int = 3) -> None:
    await create_topics(
        kafka.bootstrap_servers,
        {kafka.topic(GOALS_TOPIC): partitions},
        {"cleanup.policy": "compact"},
    )


async def write(
    kafka: KafkaSettings,
    *records: tuple[str, dict[str, Any] | bytes | None],
    partition: int | None = None,
) -> None:
    async with kafka.producer("test") as producer:
        for key, value in records:
            raw = json.dumps(value).encode() if isinstance(value, dict) else value
            await producer.send_and_wait(
                kafka.topic(GOALS_TOPIC), raw, key=key.encode(), partition=partition
            )


@contextlib.asynccontextmanager
async def followed(topic: GoalsTopic) -> AsyncIterator[GoalsTopic]:
    stop = asyncio.Event()
    running = asyncio.create_task(topic.follow(stop))
    try:
        await asyncio.wait_for(topic.tried.wait(), patient(PATIENCE_SECONDS))
        yield topic
    finally:
        stop.set()
        await asyncio.wait_for(running, patient(PATIENCE_SECONDS))


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(patient(PATIENCE_SECONDS)):
        while not is_so():  # noqa: ASYNC110 - an index that is replaced sends no event
            await asyncio.sleep(0.02)


def details(topic: GoalsTopic, goals_id: str) -> str | None:
    goals = topic.index.named(goals_id)
    return None if goals is None else goals.subgoals[0].details


async def test_the_newest_record_of_each_key_counts_and_changes_are_followed(
    kafka: KafkaSettings,
) -> None:
    await make(kafka)
    await write(
        kafka, ("a", goal_set("a", "desk")), ("b", goal_set("b")), ("gone", goal_set("gone"))
    )
    await write(kafka, ("a", goal_set("a", "desk", details="newer")), ("gone", None))
    async with followed(GoalsTopic(kafka)) as topic:
        assert [details(topic, each) for each in ("a", "b", "gone")] == ["newer", "d", None]
        assert topic.index.of_agent("desk") == topic.index.named("a")
        await write(kafka, ("a", goal_set("a", "night", details="newest")), ("b", None))
        await until(lambda: details(topic, "a") == "newest" and details(topic, "b") is None)
        assert topic.index.of_agent("desk") is None


async def test_only_what_is_committed_counts(kafka: KafkaSettings, topic_prefix: str) -> None:
    await make(kafka, partitions=1)
    await write(kafka, ("a", goal_set("a")))
    async with kafka.producer("test", transactional_id=f"{topic_prefix}writer") as producer:
        await producer.begin_transaction()
        aborted = json.dumps(goal_set("a", details="never")).encode()
        await producer.send_and_wait(kafka.topic(GOALS_TOPIC), aborted, key=b"a")
        await producer.abort_transaction()
    # whose end is the mark of the abort, which is no record
    async with followed(GoalsTopic(kafka)) as topic:
        assert details(topic, "a") == "d"


async def test_no_group_is_joined(kafka: KafkaSettings, topic_prefix: str) -> None:
    await make(kafka)
    member = AIOKafkaConsumer(
        kafka.topic(GOALS_TOPIC),
        group_id=f"{topic_prefix}group",
        client_id=f"{kafka.client_id}.member",
        bootstrap_servers=kafka.bootstrap_servers,
    )
    async with member, followed(GoalsTopic(kafka)), followed(GoalsTopic(kafka)):
        assert members(kafka) == [f"{kafka.client_id}.member"]


def members(kafka: KafkaSettings) -> list[str]:
    """The names of our clients that are members of a group; tests beside this one have theirs."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    groups = [
        group.group_id
        for group in admin.list_consumer_groups().result(patient(PATIENCE_SECONDS)).valid
    ]
    described = [
        each.result(patient(PATIENCE_SECONDS))
        for each in admin.describe_consumer_groups(groups).values()
    ]
    clients = [member.client_id for group in described for member in group.members]
    return [client for client in clients if client.startswith(kafka.client_id)]


async def test_a_topic_that_comes_later_is_found(
    kafka: KafkaSettings, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(goals_topic, "RETRY_SECONDS", 0.1)
    with capture_logs() as lines:
        async with followed(GoalsTopic(kafka)) as topic:
            assert len(topic.index) == 0
            await make(kafka)
            await write(kafka, ("a", goal_set("a")))
            await until(lambda: details(topic, "a") == "d")
    unread = [line for line in lines if line["event"] == "goals_topic_unread"]
    assert len(unread) == 1  # reported once, however often it was tried
    assert f"{name} not found" in unread[0]["error"]


async def test_partitions_that_are_added_are_read(
    kafka: KafkaSettings, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(goals_topic, "METADATA_MS", 200)
    await make(kafka, partitions=1)
    await write(kafka, ("a", goal_set("a")))
    async with followed(GoalsTopic(kafka)) as topic:
        await add_partitions(kafka.bootstrap_servers, {name: 2})
        assert len(topic.index) == 1
        await write(kafka, ("b", goal_set("b")), partition=1)
        await until(lambda: details(topic, "b") == "d")
        assert details(topic, "a") == "d"


async def test_a_call_finds_its_goals_on_the_topic(kafka: KafkaSettings) -> None:
    await make(kafka)
    await write(kafka, ("a", goal_set("a", "desk")))
    sources, stop = GoalSources(None, GoalsTopic(kafka)), asyncio.Event()
    running = asyncio.create_task(sources.run(stop))
    await asyncio.wait_for(sources.ready.wait(), patient(PATIENCE_SECONDS))
    found = sources.choose(None, "desk")
    assert found is not None
    assert found.id == "a"
    stop.set()
    await asyncio.wait_for(running, patient(PATIENCE_SECONDS))
