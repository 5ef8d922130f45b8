"""Makes and checks the topics of the topic table on a broker."""

import contextlib
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError, TopicAlreadyExistsError, for_code

from schemas.topics import TOPICS, Topic

REQUEST_TIMEOUT_MS: Final = 10_000


class TopicsError(Exception):
    """The broker cannot be asked, or refused what was asked; the message says what to do."""


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


async def create_topics(
    bootstrap_servers: str, prefix: str, *, partitions: int, replication_factor: int
) -> dict[str, bool]:
    """Makes every topic of the table that is not there yet; those that exist are left as they are.

    Input topics take the broker's time: idleness and dead air are judged by one clock, not by each producer's.

    Args:
        bootstrap_servers: `host:port`, several separated by commas.
        prefix: Put before each name.
        partitions: Of every topic, so that a call is on the same number everywhere.
        replication_factor: How many brokers hold each record.

    Returns:
        For each full name whether it was made now.

    Raises:
        TopicsError: No broker answers, or it refused one of them.
    """
    async with _admin(bootstrap_servers) as admin:
        made: dict[str, bool] = {}
        for topic in TOPICS:
            configs = {"cleanup.policy": topic.cleanup_policy, "retention.ms": str(topic.retention_ms)}
            if topic.direction == "input":
                configs["message.timestamp.type"] = "LogAppendTime"
            name = prefix + topic.name
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
        return made


async def topic_states(bootstrap_servers: str, prefix: str) -> tuple[TopicState, ...]:
    """Every topic of the table as it is on the broker: whether it exists and has the right number of partitions.

    Raises:
        TopicsError: No broker answers.
    """
    async with _admin(bootstrap_servers) as admin:
        described = await admin.describe_topics()
    partitions: dict[str, int] = {}
    for entry in described:
        if not entry["error_code"]:
            partitions[entry["topic"]] = len(entry["partitions"])
    return judged(partitions, prefix)


async def require_topics(bootstrap_servers: str, prefix: str, names: Collection[str]) -> None:
    """Makes sure that topics can be used before anything is started.

    Args:
        bootstrap_servers: `host:port`, several separated by commas.
        prefix: Put before each name.
        names: Which topics of the table are needed.

    Raises:
        TopicsError: No broker answers, or one of them is missing or has a wrong number of partitions.
    """
    states = await topic_states(bootstrap_servers, prefix)
    faults = [f"{state.name} {state.problem}" for state in states if state.problem and state.topic.name in names]
    if faults:
        raise TopicsError(
            f"Topics at {bootstrap_servers} are not as they must be: {'; '.join(faults)}.\n"
            "  Nothing was started. Missing ones are made by `callgauge topics create`; all are shown by "
            "`callgauge topics check`."
        )


def judged(partitions_by_name: Mapping[str, int], prefix: str) -> tuple[TopicState, ...]:
    """What is wrong with each topic, given how many partitions the existing ones have."""
    needed = next((partitions_by_name[prefix + t.name] for t in TOPICS if prefix + t.name in partitions_by_name), None)
    states = []
    for topic in TOPICS:
        name = prefix + topic.name
        partitions = partitions_by_name.get(name)
        problem = None
        if partitions is None:
            problem = "does not exist"
        elif topic.partitions == "same as the inputs" and partitions != needed:
            problem = f"needs {needed} partitions as {prefix}{TOPICS[0].name} has"
        states.append(TopicState(topic, name, partitions, problem))
    return tuple(states)


@contextlib.asynccontextmanager
async def _admin(bootstrap_servers: str) -> AsyncIterator[Any]:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap_servers, request_timeout_ms=REQUEST_TIMEOUT_MS)
    try:
        await admin.start()
        yield admin
    except (TimeoutError, KafkaError) as error:
        raise TopicsError(
            f"The broker at {bootstrap_servers} could not be asked about topics: {error}\n"
            "  Check that it runs at this address (--bootstrap or CALLGAUGE_BOOTSTRAP)."
        ) from error
    finally:
        await admin.close()
