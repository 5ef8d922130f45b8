"""Facts of a broker, its topics and its consumer groups. Reading them writes nothing and joins no group."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment
from aiokafka.errors import (
    GroupAuthorizationFailedError,
    GroupCoordinatorNotAvailableError,
    GroupLoadInProgressError,
    IncompatibleBrokerVersion,
    KafkaError,
    NotCoordinatorForGroupError,
    for_code,
)

from consumers.runtime.kafka.connection import CONNECT_SECONDS, KafkaSettings
from consumers.runtime.process import wall_clock_ms

WATCH_SECONDS: Final = 2.0
"""How long to wait for a record to be written by somebody, to read the broker's clock from it."""
_LOG_APPEND_TIME: Final = 1
_LOOK_AGAIN_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True)
class PartitionState:
    """How a partition is replicated: whether it has a leader, how many copies it has, and how many are up to date."""

    has_leader: bool
    replicas: int
    in_sync: int


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """A Kafka cluster.

    Attributes:
        brokers: Number of brokers that answer.
        version: Protocol version of the brokers, for example `3.9-IV0`; None if unknown.
        topics: The partitions of every topic that this user may see, by full name.
    """

    brokers: int
    version: str | None
    topics: Mapping[str, tuple[PartitionState, ...]]


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """A consumer group.

    Attributes:
        state: In Kafka's words: `Stable`, `Empty`, `Dead` when it never was, or one of a rebalance.
        members: Number of members.
        assigned: The partitions of all members; a partition that two members have appears twice.
        committed: The offsets at which a member that starts now begins.
        read: How far it has read: an evaluator commits where its oldest open call begins, and notes this beside it.
    """

    state: str
    members: int
    assigned: tuple[TopicPartition, ...]
    committed: Mapping[TopicPartition, int]
    read: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class LogBounds:
    """The first offset of a partition and the one after its last."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ClockFacts:
    """By how much the broker's clock is ahead of this machine's, in ms: between these two; negative when it is behind."""

    least_ms: int
    most_ms: int


@asynccontextmanager
async def administration(kafka: KafkaSettings) -> AsyncIterator[AIOKafkaAdminClient]:
    """A client that is connected.

    Raises:
        KafkaUnreachableError: No broker answers, at the start or later, or it refuses.
    """
    admin = kafka.admin("doctor")
    try:
        await admin.start()
        yield admin
    except (KafkaError, TimeoutError) as error:
        raise kafka.unreachable(error) from error
    finally:
        await admin.close()


async def cluster_facts(admin: AIOKafkaAdminClient) -> ClusterFacts:
    """The brokers and all topics; asking for topics by name could make them."""
    cluster = await admin.describe_cluster()
    brokers = [entry["node_id"] for entry in cluster["brokers"]]
    topics = {
        entry["topic"]: tuple(
            PartitionState(part["leader"] >= 0, len(part["replicas"]), len(part["isr"])) for part in entry["partitions"]
        )
        for entry in await admin.describe_topics()
        if not entry["error_code"]
    }
    return ClusterFacts(len(brokers), await _version(admin, brokers[0]) if brokers else None, topics)


async def group_facts(admin: AIOKafkaAdminClient, group_id: str) -> GroupFacts:
    """A group as its coordinator knows it.

    Raises:
        KafkaError: For example when this user may not see the group.
        TimeoutError: The coordinator does not answer.
    """
    async with asyncio.timeout(CONNECT_SECONDS):
        while True:
            try:
                return await _group_facts(admin, group_id)
            except (GroupLoadInProgressError, NotCoordinatorForGroupError):  # a coordinator that begins takes a moment
                await asyncio.sleep(_LOOK_AGAIN_SECONDS)


async def _group_facts(admin: AIOKafkaAdminClient, group_id: str) -> GroupFacts:
    coordinator = await _coordinator(admin, group_id)
    answers: list[Any] = await admin.describe_consumer_groups([group_id], group_coordinator_id=coordinator)
    code, _, state, _, _, members, *_ = answers[0].groups[0]
    if code:
        raise for_code(code)(group_id)
    assigned = tuple(
        TopicPartition(topic, number)
        for *_, assignment in members
        if assignment
        for topic, numbers in ConsumerProtocolMemberAssignment.decode(assignment).assignment
        for number in numbers
    )
    offsets = await admin.list_consumer_group_offsets(group_id, group_coordinator_id=coordinator)
    committed = {tp: found.offset for tp, found in offsets.items() if found.offset >= 0}
    read = {tp: max(offset, _read_in(offsets[tp].metadata)) for tp, offset in committed.items()}
    return GroupFacts(state, len(members), assigned, committed, read)


async def log_bounds(
    consumer: AIOKafkaConsumer, partitions: Collection[TopicPartition]
) -> Mapping[TopicPartition, LogBounds]:
    """Where each partition begins and ends.

    Raises:
        KafkaError: The broker refuses.
        TimeoutError: It does not answer.
    """
    async with asyncio.timeout(CONNECT_SECONDS):
        starts = await consumer.beginning_offsets(partitions)
        ends = await consumer.end_offsets(partitions)
    return {tp: LogBounds(starts[tp], ends[tp]) for tp in partitions}


async def clock_facts(
    consumer: AIOKafkaConsumer, partitions: Collection[TopicPartition], seconds: float = WATCH_SECONDS
) -> ClockFacts | None:
    """Compares the clocks by a record that a producer writes meanwhile; None if no record arrives.

    Args:
        consumer: A started consumer without a group; its assignment changes.
        partitions: Partitions to read. Records without the broker's time are skipped.
        seconds: How long to wait.
    """
    consumer.assign(partitions)
    since_ms = wall_clock_ms()
    for tp, end in (await consumer.end_offsets(partitions)).items():
        consumer.seek(tp, end)
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        for records in (await consumer.getmany(timeout_ms=max(1, int(left * 1_000)))).values():
            for record in records:
                if record.timestamp_type == _LOG_APPEND_TIME:
                    return ClockFacts(record.timestamp - wall_clock_ms(), record.timestamp - since_ms)
    return None


def partitions_of(counts: Mapping[str, int], names: Iterable[str]) -> list[TopicPartition]:
    """Every partition of those topics, by full name."""
    return [TopicPartition(name, number) for name in names for number in range(counts.get(name, 0))]


def _read_in(note: str) -> int:
    """How far an evaluator has read, as it notes beside its offset; 0 if it does not note it."""
    try:
        found = json.loads(note or "{}")
    except (ValueError, RecursionError):
        return 0
    read = found.get("read") if isinstance(found, dict) else None
    return read if isinstance(read, int) else 0


async def _version(admin: AIOKafkaAdminClient, broker: int) -> str | None:
    """Brokers before 4.0 name the protocol they speak among their settings; later ones do not."""
    try:
        answers: list[Any] = await admin.describe_configs([ConfigResource(ConfigResourceType.BROKER, str(broker))])
    except IncompatibleBrokerVersion:
        return None
    code, _, _, _, entries = answers[0].resources[0]
    settings = {entry[0]: entry[1] for entry in entries}
    if code or not settings:
        return None
    return settings.get("inter.broker.protocol.version") or "4.0 or newer"


async def _coordinator(admin: AIOKafkaAdminClient, group_id: str) -> int:
    """Finds the coordinator of a group. A cluster without groups creates it at the first request, which takes a moment."""
    async with asyncio.timeout(CONNECT_SECONDS):
        while True:
            try:
                found: int = await admin.find_coordinator(group_id)
            except GroupCoordinatorNotAvailableError:
                await asyncio.sleep(_LOOK_AGAIN_SECONDS)
            except GroupAuthorizationFailedError as error:  # the library's has a sentence where the name should be
                raise GroupAuthorizationFailedError(group_id) from error
            else:
                return found
