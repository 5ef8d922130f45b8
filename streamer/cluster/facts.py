"""Facts about a cluster: brokers, topics, groups, and the rights that commands need."""

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
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
    NotCoordinatorForGroupError,
    for_code,
)

from consumers.runtime.kafka.connection import CONNECT_SECONDS, READ, WRITE, Needs
from schemas.closed_sets import InputSource
from schemas.topics import (
    ANNOTATIONS_TOPIC,
    EVENTS_TOPIC,
    GOALS_TOPIC,
    INPUT_TOPICS,
    JUDGE_REQUESTS_TOPIC,
    JUDGE_VERDICTS_TOPIC,
    OWN_TOPIC,
    QUARANTINE_TOPIC,
    SCORES_TOPIC,
    SEQUENCER_TOPIC,
    TOPIC_BY_SOURCE,
    TRANSCRIPTS_TOPIC,
    WORDS_TOPIC,
)
from streamer.settings.all_settings import Settings

# Facts of a broker, its topics and its consumer groups. Reading them writes nothing and joins no
# group.

_LOOK_AGAIN_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """A Kafka cluster.

    Attributes:
        brokers: Number of brokers that answer.
        version: Protocol version of the brokers, for example `3.9-IV0`; None if unknown.
        max_transaction_ms: How long they let a transaction take; None if unknown.
        topics: How many partitions every topic has that this user may see, by full name.
    """

    brokers: int
    version: str | None
    topics: Mapping[str, int]
    max_transaction_ms: int | None = None


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """A consumer group.

    Attributes:
        state: In Kafka's words: `Stable`, `Empty`, `Dead` when it never was, or one of a rebalance.
        members: Number of members.
        assigned: The partitions of all members; a partition that two members have appears twice.
        committed: How far it has read: the offsets at which a member that starts now begins, except
            an evaluator, which knows that from the log.
    """

    state: str
    members: int
    assigned: tuple[TopicPartition, ...]
    committed: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class LogBounds:
    """The first offset of a partition and the one after its last."""

    start: int
    end: int


async def cluster_facts(admin: AIOKafkaAdminClient) -> ClusterFacts:
    """The brokers and all topics; asking for topics by name could make them."""
    cluster = await admin.describe_cluster()
    brokers = [entry["node_id"] for entry in cluster["brokers"]]
    topics = {
        entry["topic"]: len(entry["partitions"])
        for entry in await admin.describe_topics()
        if not entry["error_code"]
    }
    settings = await _settings(admin, brokers[0]) if brokers else {}
    # Brokers before 4.0 name the protocol they speak among their settings; later ones do not.
    version = settings.get("inter.broker.protocol.version") or (
        "4.0 or newer" if settings else None
    )
    max_transaction = settings.get("transaction.max.timeout.ms") or ""
    return ClusterFacts(
        len(brokers), version, topics, int(max_transaction) if max_transaction.isdigit() else None
    )


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
            # a coordinator that begins takes a moment
            except (GroupLoadInProgressError, NotCoordinatorForGroupError):
                await asyncio.sleep(_LOOK_AGAIN_SECONDS)


async def _group_facts(admin: AIOKafkaAdminClient, group_id: str) -> GroupFacts:
    coordinator = await _coordinator(admin, group_id)
    answers: list[Any] = await admin.describe_consumer_groups(
        [group_id], group_coordinator_id=coordinator
    )
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
    return GroupFacts(state, len(members), assigned, committed)


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


def partitions_of(counts: Mapping[str, int], names: Iterable[str]) -> list[TopicPartition]:
    """Every partition of those topics, by full name."""
    return [TopicPartition(name, number) for name in names for number in range(counts.get(name, 0))]


async def _settings(admin: AIOKafkaAdminClient, broker: int) -> Mapping[str, str | None]:
    """The settings of a broker; none if it is too old for the question, or this user may not see
    them.
    """
    try:
        answers: list[Any] = await admin.describe_configs(
            [ConfigResource(ConfigResourceType.BROKER, str(broker))]
        )
    except IncompatibleBrokerVersion:
        return {}
    code, _, _, _, entries = answers[0].resources[0]
    return {} if code else {entry[0]: entry[1] for entry in entries}


async def _coordinator(admin: AIOKafkaAdminClient, group_id: str) -> int:
    """Finds the coordinator of a group. A cluster without groups creates it at the first request,
    which takes a moment.
    """
    async with asyncio.timeout(CONNECT_SECONDS):
        while True:
            try:
                found: int = await admin.find_coordinator(group_id)
            except GroupCoordinatorNotAvailableError:
                await asyncio.sleep(_LOOK_AGAIN_SECONDS)
            # the library's has a sentence where the name should be
            except GroupAuthorizationFailedError as error:
                raise GroupAuthorizationFailedError(group_id) from error
            else:
                return found


# The rights that each command needs on the cluster; deploy/security.md has the same list.

_TRAFFIC_SOURCES: Final = (InputSource.AUDIT, InputSource.PIPECAT, InputSource.ELEVENLABS)
_ROLE_OPERATIONS: Final[Mapping[str, Mapping[str, Collection[str]]]] = {
    "sequencer": {
        **{topic: {READ} for topic in INPUT_TOPICS},
        SEQUENCER_TOPIC: {READ},
        EVENTS_TOPIC: {READ, WRITE},  # read: where the one before has come
        QUARANTINE_TOPIC: {WRITE},
    },
    "evaluator": {
        EVENTS_TOPIC: {READ},
        SCORES_TOPIC: {READ, WRITE},  # read: where the one before has come, and what it has closed
        QUARANTINE_TOPIC: {WRITE},
    },
    "exporter": {SCORES_TOPIC: {READ}},
    "judge": {
        JUDGE_REQUESTS_TOPIC: {READ},
        JUDGE_VERDICTS_TOPIC: {WRITE},
    },
    "history": {topic: {READ} for topic in (SCORES_TOPIC, ANNOTATIONS_TOPIC)},
    "measures": {SCORES_TOPIC: {READ}, OWN_TOPIC: {WRITE}},
    "console": {SCORES_TOPIC: {READ}},
    "monitor": {
        TOPIC_BY_SOURCE[source]: {WRITE} for source in (InputSource.AUDIT, InputSource.ELEVENLABS)
    },
    "ingest": {TOPIC_BY_SOURCE[source]: {WRITE} for source in _TRAFFIC_SOURCES},
}

TRAFFIC_NEEDS: Final = Needs(
    {TOPIC_BY_SOURCE[source]: frozenset({WRITE}) for source in _TRAFFIC_SOURCES}
)
"""The rights to put calls onto the topics."""


PUT_BACK_NEEDS: Final = Needs(dict.fromkeys((QUARANTINE_TOPIC, SCORES_TOPIC), frozenset({READ})))
"""The rights to put quarantined records of any topic back: `scores` says which calls
have closed.
"""


FILES_GROUP: Final = "evaluator-files"
"""Role in the name of the group that writes the files of transcripts."""


def needs_of(roles: Collection[str], settings: Settings) -> Needs:
    """The rights that roles of one process need together, as one user."""
    operations: defaultdict[str, set[str]] = defaultdict(set)
    for role in roles:
        for topic, needed in _ROLE_OPERATIONS[role].items():
            operations[topic] |= set(needed)
    groups = [
        settings.group(role)
        for role in roles
        if role in ("sequencer", "evaluator", "exporter", "judge", "measures")
    ]
    if "evaluator" in roles:
        if settings.goals.reads_topic:
            operations[GOALS_TOPIC].add(READ)
        if settings.goal_rules(roles).asks_judge:
            operations[JUDGE_REQUESTS_TOPIC].add(WRITE)
        if settings.limits.words:
            operations[WORDS_TOPIC].add(WRITE)
        if settings.transcripts.enabled:
            operations[TRANSCRIPTS_TOPIC].add(WRITE)
        if settings.transcripts.folder is not None:
            operations[TRANSCRIPTS_TOPIC].add(READ)
            groups.append(settings.group(FILES_GROUP))
    if "history" in roles and settings.history.words:
        operations[TRANSCRIPTS_TOPIC].add(READ)
        operations[WORDS_TOPIC].add(READ)
    if "console" in roles and settings.console.words and settings.limits.words:
        operations[WORDS_TOPIC].add(READ)
    if "measures" in roles and settings.limits.words:
        operations[WORDS_TOPIC].add(READ)
    if settings.measures.is_on and not {"console", "history"}.isdisjoint(roles):
        operations[OWN_TOPIC].add(READ)
    return Needs(
        operations={topic: frozenset(needed) for topic, needed in operations.items()},
        groups=tuple(groups),
        # One of each role is enough: the right is granted for a prefix.
        transactional_ids=(
            *([f"{settings.group('evaluator')}-0"] if "evaluator" in roles else []),
            *([f"{settings.group('judge')}-judge-0"] if "judge" in roles else []),
        ),
    )
