"""Creates and checks topics."""

import asyncio
import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import typer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import TopicAlreadyExistsError, TopicAuthorizationFailedError, for_code

from consumers.engine.limits import Limits, needs_of
from consumers.runtime.kafka.connection import REQUEST_TIMEOUT_MS, KafkaSettings, TopicsRequest
from consumers.runtime.process import OperatorError
from schemas.topics import (
    EVENTS_TOPIC,
    SEQUENCER_TOPIC,
    TOPICS,
    Severity,
    Topic,
    TopicFault,
    TopicNeeds,
    least_message_bytes,
)
from schemas.units import DAY_MS, HOUR_MS
from streamer.terminal import say

DEFAULT_PARTITIONS: Final = 4
"""Partitions of each topic where no other number is given."""
IN_FORCE_SECONDS: Final = 10.0
"""How long a broker may take to give new topics their leaders. A quiet one takes a tenth of a
second.
"""
_LOOK_AGAIN_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class TopicState:
    """One row of the topic table with its state on the broker.

    Attributes:
        topic: The row.
        name: The topic's full name, prefix included.
        partitions: Number of partitions; None when the topic does not exist.
        problem: The fault of the topic, or None.
    """

    topic: Topic
    name: str
    partitions: int | None
    problem: str | None


async def create_topics(
    kafka: KafkaSettings,
    *,
    partitions: int | None,
    replication_factor: int,
    shards: int = 1,
    needs: TopicNeeds | None = None,
) -> dict[str, bool]:
    """Creates every topic of the table that does not exist; existing topics stay as they are.

    It looks first, and makes none if they would not fit those that are there. Inputs, `events` and
    `scores` take the broker's time: idleness and dead air are judged by one clock, not by each
    producer's, and scores are found again by the same.

    Args:
        kafka: The cluster, and the prefix of topic names.
        partitions: Number for every topic but `sequencer`. None takes that of `events`, `scores` or
            `words` if one is there, otherwise `DEFAULT_PARTITIONS`.
        replication_factor: Number of brokers that hold each record.
        shards: Sequencers that are active at a time: the partitions of `sequencer`.
        needs: The limits of calls: `events` must take the largest event. None is those of settings
            that say nothing of it.

    Returns:
        Whether each topic was created now, by full name.

    Raises:
        KafkaUnreachableError: No broker answers.
        OperatorError: `events`, `scores` or `words` has another number, or the broker refused a
            topic; the topics before it exist.
    """
    count = _count_for(await topic_states(kafka), kafka, partitions)
    async with kafka.administration("topics") as admin:
        made: dict[str, bool] = {}
        for topic in TOPICS:
            configs = {
                "cleanup.policy": topic.cleanup_policy,
                "retention.ms": str(topic.retention_ms),
            }
            if topic.has_broker_time:
                configs["message.timestamp.type"] = "LogAppendTime"
            # the default of brokers is for an event without what we add to it
            if topic.name == EVENTS_TOPIC:
                configs["max.message.bytes"] = str(
                    least_message_bytes(topic, needs or needs_of(Limits()))
                )
            name = kafka.topic(topic.name)
            number = shards if topic.name == SEQUENCER_TOPIC else count
            new = NewTopic(name, number, replication_factor, topic_configs=configs)
            answer = await admin.create_topics([new], timeout_ms=REQUEST_TIMEOUT_MS)
            (_, code, *text) = answer.topic_errors[0]
            error = for_code(code)
            if code and error is not TopicAlreadyExistsError:
                reason = text[0] if text and text[0] else error.__name__
                raise OperatorError(
                    f"The topic {name} could not be made: {reason}\n"
                    "  Made before it: "
                    f"{', '.join(key for key, new in made.items() if new) or 'none'}.\n"
                    "  Check the replication factor against the number of brokers, and the rights "
                    "of this user."
                )
            made[name] = not code
        await _until_in_force(admin, made)
        return made


def _count_for(states: Iterable[TopicState], kafka: KafkaSettings, wanted: int | None) -> int:
    """The number of partitions of `events`, `scores` and `words`, of which some may be there: a
    call has the same partition in all.

    Raises:
        OperatorError: One is there with another number than the wanted one, and another one is to
            be made.
    """
    tied = [
        each
        for each in states
        if each.topic.name == EVENTS_TOPIC or each.topic.partitions == "same as events"
    ]
    there = [each for each in tied if each.partitions]
    if not there:
        return wanted or DEFAULT_PARTITIONS
    known = next((each for each in there if each.topic.name == EVENTS_TOPIC), there[0])
    count = known.partitions or 0
    if wanted in (None, count):
        return count
    if len(there) == len(tied):  # none is made that could not fit
        return wanted or count
    raise OperatorError(
        f"Topics on {kafka.bootstrap_servers}: expected {wanted} partitions, as --partitions says; "
        f"seen {known.name} with {count}. "
        "What is written of a call is in the partition of its events, so no topic was made.\n"
        f"  Leave --partitions out, and all get {count}; or delete {known.name}, or set another "
        "topic prefix."
    )


async def topic_states(kafka: KafkaSettings) -> tuple[TopicState, ...]:
    """Every topic of the table as it is on the broker: whether it exists and has the right number
    of partitions.

    Raises:
        KafkaUnreachableError: No broker answers.
    """
    async with kafka.first_contact("topics") as connection:
        answer = await connection.send(TopicsRequest([kafka.topic(topic.name) for topic in TOPICS]))
    seen = answer.to_object()["topics"]
    hidden = {
        entry["topic"]
        for entry in seen
        if entry["error_code"] == TopicAuthorizationFailedError.errno
    }
    counts = {entry["topic"]: len(entry["partitions"]) for entry in seen if not entry["error_code"]}
    return judged(counts, kafka, hidden)


def judged(
    partitions_by_name: Mapping[str, int], kafka: KafkaSettings, hidden: Collection[str] = ()
) -> tuple[TopicState, ...]:
    """The state of each topic, with its fault.

    Args:
        partitions_by_name: Partition counts of the existing topics.
        kafka: The prefix of topic names.
        hidden: Topics that this user may not see; they may exist or not.
    """
    log = kafka.topic(EVENTS_TOPIC)
    needed = partitions_by_name.get(log)
    states = []
    for topic in TOPICS:
        name = kafka.topic(topic.name)
        partitions = partitions_by_name.get(name)
        problem = None
        if partitions is None:
            problem = (
                f"does not exist, or {kafka.security.who} may not see it"
                if name in hidden
                else "does not exist"
            )
        elif topic.partitions == "same as events" and needed is not None and partitions != needed:
            problem = f"has {partitions} partitions, not {needed} as {log}"
        states.append(TopicState(topic, name, partitions, problem))
    return tuple(states)


async def _until_in_force(admin: AIOKafkaAdminClient, names: Collection[str]) -> None:
    """Waits until every partition of the topics has a leader: the broker confirms a topic a little
    earlier.

    After `IN_FORCE_SECONDS` it goes on; the next check reports a missing topic.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(IN_FORCE_SECONDS):
            # Kafka sends no notice
            while not set(names) <= await _led_topics(admin):  # noqa: ASYNC110
                await asyncio.sleep(_LOOK_AGAIN_SECONDS)


async def _led_topics(admin: AIOKafkaAdminClient) -> set[str]:
    """The topics of which every partition has a leader. All are asked for: to ask for a name could
    make the topic.
    """
    return {
        entry["topic"]
        for entry in await admin.describe_topics()
        if not entry["error_code"] and all(each["leader"] >= 0 for each in entry["partitions"])
    }


# The work of the command `topics`: the topic table, and the faults of topics.


def report_faults(
    states: tuple[TopicState, ...], faults: Sequence[TopicFault], kafka: KafkaSettings
) -> None:
    """Ends with exit code 1 when a topic is not as it must be."""
    faulty = [f"{state.name} {state.problem}" for state in states if state.problem]
    faulty += [f"{kafka.topic(fault.topic)} needs {fault.setting}" for fault in faults]
    if faulty:
        say(f"Not as it must be: {'; '.join(faulty)}.")
        raise typer.Exit(1)


def faults_of(state: TopicState, faults: Sequence[TopicFault]) -> list[str]:
    """The faults of one topic in words, each with its remedy."""
    missing = [state.problem] if state.problem else []
    return [*missing, *(_remedy(fault) for fault in faults if fault.topic == state.topic.name)]


def _remedy(fault: TopicFault) -> str:
    start = "warning: " if fault.severity is Severity.WARNING else ""
    return f"{start}{fault.seen}. Set {fault.setting}."


def kept_text(topic: Topic) -> str:
    """How long a topic keeps its records, in words."""
    if topic.cleanup_policy == "compact":
        return "newest of each key"
    if 0 <= topic.retention_ms < DAY_MS:
        return f"{topic.retention_ms // HOUR_MS} h"
    return "for ever" if topic.retention_ms < 0 else f"{topic.retention_ms // DAY_MS} days"
