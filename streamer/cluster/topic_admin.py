"""Makes and checks the topics of the topic table on a broker."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError, TopicAlreadyExistsError, TopicAuthorizationFailedError, for_code

from consumers.runtime.errors import OperatorError
from consumers.runtime.kafka.connection import REQUEST_TIMEOUT_MS, KafkaSettings
from consumers.runtime.kafka.first_contact import TopicsRequest
from schemas.topics import TOPICS, Topic

VISIBLE_SECONDS: Final = 5.0
_LOOK_AGAIN_SECONDS: Final = 0.1


class TopicsError(OperatorError):
    """The broker refused to make a topic; a person must change what was asked for, or the rights of the user."""


@dataclass(frozen=True, slots=True)
class TopicState:
    """One row of the topic table as the broker has it.

    Attributes:
        topic: The row.
        name: The topic's full name, prefix included.
        partitions: How many it has; None when it does not exist.
        problem: What is wrong with it, or None.
    """

    topic: Topic
    name: str
    partitions: int | None
    problem: str | None


async def create_topics(kafka: KafkaSettings, *, partitions: int, replication_factor: int) -> dict[str, bool]:
    """Makes every topic of the table that is not there yet; those that exist are left as they are.

    Input topics take the broker's time: idleness and dead air are judged by one clock, not by each producer's.

    Args:
        kafka: Where, and what is put before each name.
        partitions: Of every topic, so that a call is on the same number everywhere.
        replication_factor: How many brokers hold each record.

    Returns:
        For each full name whether it was made now.

    Raises:
        KafkaUnreachableError: No broker answers.
        TopicsError: It refused one of them; those before it are made.
    """
    async with _admin(kafka) as admin:
        made: dict[str, bool] = {}
        for topic in TOPICS:
            configs = {"cleanup.policy": topic.cleanup_policy, "retention.ms": str(topic.retention_ms)}
            if topic.direction == "input":
                configs["message.timestamp.type"] = "LogAppendTime"
            name = kafka.topic(topic.name)
            new = NewTopic(name, partitions, replication_factor, topic_configs=configs)
            answer = await admin.create_topics([new], timeout_ms=REQUEST_TIMEOUT_MS)
            (_, code, *text) = answer.topic_errors[0]
            error = for_code(code)
            if code and error is not TopicAlreadyExistsError:
                reason = text[0] if text and text[0] else error.__name__
                raise TopicsError(
                    f"The topic {name} could not be made: {reason}\n"
                    f"  Made before it: {', '.join(key for key, new in made.items() if new) or 'none'}.\n"
                    "  Check the replication factor against the number of brokers, and the rights of this user."
                )
            made[name] = not code
        await _until_visible(admin, made)
        return made


async def topic_states(kafka: KafkaSettings) -> tuple[TopicState, ...]:
    """Every topic of the table as it is on the broker: whether it exists and has the right number of partitions.

    Raises:
        KafkaUnreachableError: No broker answers.
    """
    async with kafka.first_contact("topics") as connection:
        answer = await connection.send(TopicsRequest([kafka.topic(topic.name) for topic in TOPICS]))
    seen = answer.to_object()["topics"]
    hidden = {entry["topic"] for entry in seen if entry["error_code"] == TopicAuthorizationFailedError.errno}
    counts = {entry["topic"]: len(entry["partitions"]) for entry in seen if not entry["error_code"]}
    return judged(counts, kafka, hidden)


def judged(
    partitions_by_name: Mapping[str, int], kafka: KafkaSettings, hidden: Collection[str] = ()
) -> tuple[TopicState, ...]:
    """What is wrong with each topic.

    Args:
        partitions_by_name: How many partitions those have that exist.
        kafka: What topics are called here.
        hidden: Those that this user may not see, so that nobody knows whether they exist.
    """
    first = kafka.topic(TOPICS[0].name)
    needed = partitions_by_name.get(first)
    states = []
    for topic in TOPICS:
        name = kafka.topic(topic.name)
        partitions = partitions_by_name.get(name)
        problem = None
        if partitions is None:
            problem = f"does not exist, or {kafka.security.who} may not see it" if name in hidden else "does not exist"
        elif topic.partitions == "same as the inputs" and needed is not None and partitions != needed:
            problem = f"has {partitions} partitions, not {needed} as {first}"
        states.append(TopicState(topic, name, partitions, problem))
    return tuple(states)


async def _partitions_by_name(admin: AIOKafkaAdminClient) -> dict[str, int]:
    """Of every topic that there is; asking for names instead could make them."""
    described = await admin.describe_topics()
    return {entry["topic"]: len(entry["partitions"]) for entry in described if not entry["error_code"]}


async def _until_visible(admin: AIOKafkaAdminClient, names: Collection[str]) -> None:
    """Waits until the broker shows the topics: it says that one is made a little before it does.

    After `VISIBLE_SECONDS` it goes on without: whoever looks next says what is missing.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(VISIBLE_SECONDS):
            while not set(names) <= set(await _partitions_by_name(admin)):  # noqa: ASYNC110  # Kafka tells nobody
                await asyncio.sleep(_LOOK_AGAIN_SECONDS)


@contextlib.asynccontextmanager
async def _admin(kafka: KafkaSettings) -> AsyncIterator[AIOKafkaAdminClient]:
    admin = kafka.admin("topics")
    try:
        await admin.start()
        yield admin
    except (TimeoutError, KafkaError) as error:
        raise kafka.unreachable(error) from error
    finally:
        await admin.close()
