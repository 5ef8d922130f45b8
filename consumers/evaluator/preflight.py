"""Checks the topics before the evaluator reads the first record."""

import asyncio
from collections.abc import Iterable
from typing import Final

import structlog
from aiokafka.errors import KafkaError

from consumers.engine.limits import Limits
from consumers.runtime.kafka.connection import (
    CONNECT_SECONDS,
    KafkaSettings,
    KafkaUnreachableError,
    TopicsUnfitError,
    partition_counts,
    require_equal_counts,
)
from consumers.runtime.kafka.first_contact import TopicsRequest
from consumers.runtime.kafka.topic_settings import topic_settings
from schemas.topic_rules import Severity, TopicFault, TopicNeeds, topic_faults
from schemas.topics import (
    INPUT_TOPICS,
    JUDGE_REQUESTS_TOPIC,
    QUARANTINE_TOPIC,
    SCORES_TOPIC,
    SNAPSHOTS_TOPIC,
    TRANSCRIPTS_TOPIC,
)

LEDGERED_TOPICS: Final = (*INPUT_TOPICS, SCORES_TOPIC)
"""Topics on which all records of a call have the same partition number."""

log = structlog.get_logger()


async def require_fit_topics(
    kafka: KafkaSettings,
    limits: Limits,
    *,
    writes_transcripts: bool = False,
    asks_judge: bool = False,
    hands_over_state: bool = False,
) -> int:
    """Checks that the topics fit exactly-once scores, before anything is read.

    The embedded broker only reports partition counts. If this user may not read settings, a warning is logged and they count
    as right. Faults that do not prevent a start are logged, one line each.

    Args:
        kafka: Where the broker is.
        limits: How long a call may last and be silent: its records must be kept for longer.
        writes_transcripts: Whether there must be a topic for them.
        asks_judge: Whether there must be a topic for questions to a judge.
        hands_over_state: Whether there must be a topic for snapshots.

    Returns:
        The partition count of the inputs and `scores`.

    Raises:
        KafkaUnreachableError: No broker answers.
        TopicsUnfitError: A topic is missing, partition counts differ, an input or `scores` is compacted, its records are
            not kept for as long as a call may take, or a topic that is written takes smaller records than are written;
            the text names all such topics.
    """
    names = used_topics(writes_transcripts=writes_transcripts, asks_judge=asks_judge, hands_over_state=hands_over_state)
    counts = await partition_counts(kafka, names)
    partitions = require_equal_counts({name: counts[name] for name in LEDGERED_TOPICS})
    if kafka.is_embedded:
        return partitions
    settings = await topic_settings(kafka, names)
    if unknown := [kafka.topic(name) for name in names if name not in settings]:
        log.warning(
            "topic_settings_not_known",
            topics=unknown,
            what_happens_now="Retention, cleanup and the largest record are taken to be right.",
            what_to_do="Give this user the right to DescribeConfigs on them, or run `callgauge doctor` as one who has it.",
        )
    faults = topic_faults(settings, needs_of(limits))
    if refused := [fault for fault in faults if fault.severity is Severity.REFUSED]:
        raise TopicsUnfitError(_refusal(kafka, refused))
    for fault in faults:
        log.warning(
            "topic_not_as_it_should_be", topic=kafka.topic(fault.topic), severity=fault.severity.value, seen=fault.seen,
            what_happens_now="callgauge starts all the same.", what_to_do=f"Set {fault.setting} on it.",
        )  # fmt: skip
    return partitions


def used_topics(*, writes_transcripts: bool, asks_judge: bool, hands_over_state: bool = False) -> tuple[str, ...]:
    """Returns the topics that the evaluator reads or writes, by their names in the topic table."""
    perhaps = {
        TRANSCRIPTS_TOPIC: writes_transcripts,
        JUDGE_REQUESTS_TOPIC: asks_judge,
        SNAPSHOTS_TOPIC: hands_over_state,
    }
    return (*LEDGERED_TOPICS, QUARANTINE_TOPIC, *(name for name, is_used in perhaps.items() if is_used))


async def misfit_now(kafka: KafkaSettings, names: Iterable[str]) -> TopicsUnfitError | None:
    """Looks for missing topics and different partition counts while the evaluator runs.

    Args:
        kafka: The cluster.
        names: Topics, from `used_topics`.

    Returns:
        The error to end with; None if nothing is wrong, or no broker answers.
    """
    names = tuple(names)
    if kafka.is_embedded:
        return None
    try:
        async with asyncio.timeout(CONNECT_SECONDS), kafka.first_contact("topics") as connection:
            answer = await connection.send(TopicsRequest([kafka.topic(name) for name in names]))
    except (KafkaError, KafkaUnreachableError, TimeoutError):
        return None
    counts = {topic["topic"]: len(topic["partitions"]) for topic in answer.to_object()["topics"]}
    if gone := [kafka.topic(name) for name in names if not counts.get(kafka.topic(name))]:
        return TopicsUnfitError(
            f"Topics: {', '.join(gone)} {'is' if len(gone) == 1 else 'are'} gone from {kafka.bootstrap_servers}, or this "
            "user may not see it any more. callgauge cannot work like this, so the evaluator ends. Make what is missing again with "
            "`callgauge topics create`, with as many partitions as before, or give the right back."
        )
    shared = {kafka.topic(name): counts[kafka.topic(name)] for name in LEDGERED_TOPICS}
    if len(set(shared.values())) == 1:
        return None
    seen = ", ".join(f"{topic} {count}" for topic, count in sorted(shared.items()))
    return TopicsUnfitError(
        f"Topics: partition counts must be equal, but are {seen} now. A conversation is found by its partition number, so the "
        "evaluator ends. Add partitions to those that have fewer, while no call runs."
    )


def needs_of(limits: Limits) -> TopicNeeds:
    """Returns the needs of the engine's limits."""
    return TopicNeeds(
        longest_call_ms=limits.max_call_duration_ms, idle_ms=limits.idle_ms, max_record_bytes=limits.max_record_bytes
    )


def _refusal(kafka: KafkaSettings, faults: Iterable[TopicFault]) -> str:
    lines = [f"  {kafka.topic(fault.topic)}: {fault.seen}. Set {fault.setting}." for fault in faults]
    return "\n".join(
        [
            f"Topics on {kafka.bootstrap_servers} cannot hold what callgauge needs: scores would be lost, counted twice "
            "or not written, so callgauge does not start.",
            *lines,
            "  `kafka-configs.sh --alter --entity-type topics --entity-name TOPIC --add-config NAME=VALUE` changes a "
            "setting; where a call may be shorter, lower max_call_duration_ms instead.",
        ]
    )
