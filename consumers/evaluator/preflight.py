"""What must be true of the topics before the evaluator reads the first record."""

from collections.abc import Iterable
from typing import Final

import structlog

from consumers.engine.limits import Limits
from consumers.runtime.kafka import KafkaSettings, TopicsUnfitError, partition_counts, require_equal_counts
from consumers.runtime.topic_settings import topic_settings
from schemas.topic_rules import Severity, TopicFault, TopicNeeds, topic_faults
from schemas.topics import INPUT_TOPICS, QUARANTINE_TOPIC, SCORES_TOPIC, TRANSCRIPTS_TOPIC

LEDGERED_TOPICS: Final = (*INPUT_TOPICS, SCORES_TOPIC)
"""Topics with one partition number for everything about a call."""

log = structlog.get_logger()


async def require_fit_topics(kafka: KafkaSettings, limits: Limits, *, writes_transcripts: bool = False) -> int:
    """Asks the broker whether the topics are as exactly-once scores need them, before anything is read.

    On the embedded broker only the partition counts can be asked for. Where the user may not see settings, a warning is
    logged and they are taken to be right.

    Args:
        kafka: Where the broker is.
        limits: How long a call may last and be silent: its records must be kept for longer.
        writes_transcripts: Whether there must be a topic for them.

    Returns:
        The partition count of the inputs and `scores`.

    Raises:
        KafkaUnreachableError: No broker answers.
        TopicsUnfitError: A topic is missing, partition counts differ, an input or `scores` is compacted, or its records
            are not kept for as long as a call may take; the text names all such topics.
    """
    written = (QUARANTINE_TOPIC, TRANSCRIPTS_TOPIC) if writes_transcripts else (QUARANTINE_TOPIC,)
    counts = await partition_counts(kafka, (*LEDGERED_TOPICS, *written))
    partitions = require_equal_counts({name: counts[name] for name in LEDGERED_TOPICS})
    if kafka.is_embedded:
        return partitions
    settings = await topic_settings(kafka, LEDGERED_TOPICS)
    if unknown := [kafka.topic(name) for name in LEDGERED_TOPICS if name not in settings]:
        log.warning(
            "topic_settings_not_known",
            topics=unknown,
            what_happens_now="Retention and cleanup are taken to be right.",
            what_to_do="Give this user the right to DescribeConfigs on them, or run `callgauge doctor` as one who has it.",
        )
    faults = [fault for fault in topic_faults(settings, needs_of(limits)) if fault.severity is Severity.REFUSED]
    if faults:
        raise TopicsUnfitError(_refusal(kafka, faults))
    return partitions


def needs_of(limits: Limits) -> TopicNeeds:
    """What the engine's limits ask of the topics."""
    return TopicNeeds(
        longest_call_ms=limits.max_call_duration_ms, idle_ms=limits.idle_ms, max_record_bytes=limits.max_record_bytes
    )


def _refusal(kafka: KafkaSettings, faults: Iterable[TopicFault]) -> str:
    lines = [f"  {kafka.topic(fault.topic)}: {fault.seen}. Set {fault.setting}." for fault in faults]
    return "\n".join(
        [
            f"Topics on {kafka.bootstrap_servers} cannot hold what callgauge needs; a crash would lose scores or count "
            "some twice, so callgauge does not start.",
            *lines,
            "  `kafka-configs.sh --alter --entity-type topics --entity-name TOPIC --add-config NAME=VALUE` changes a "
            "setting; where a call may be shorter, lower max_call_duration_ms instead.",
        ]
    )
