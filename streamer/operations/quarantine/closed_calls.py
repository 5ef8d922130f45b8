"""Finds closed calls in `scores`, the only memory of calls that outlives every evaluator."""

from collections.abc import Collection, Mapping

from aiokafka import TopicPartition
from pydantic import ValidationError

from consumers.runtime.kafka.connection import KafkaSettings
from schemas.scores.records import SCORE_RECORD, ClosedFact
from schemas.topics import SCORES_TOPIC
from streamer.cluster.onlooker import onlooker, records_so_far

_MARK = b'"closed"'
"""Part of the JSON of every closing record; parsing all other records would take ten times as long."""


async def closed_calls(
    kafka: KafkaSettings, calls: Mapping[int, Collection[str]], since_ms: int | None
) -> Mapping[str, ClosedFact]:
    """The closing records of those of the calls that have closed.

    Args:
        kafka: Where the broker is.
        calls: Conversation ids by partition number.
        since_ms: Closing records before this are not looked for; None looks through all that are kept.

    Raises:
        KafkaUnreachableError: No broker answers, or it does not let us read `scores`.
    """
    topic = kafka.topic(SCORES_TOPIC)
    keys = {number: {conversation.encode() for conversation in ids} for number, ids in calls.items()}
    found: dict[str, ClosedFact] = {}
    async with onlooker(kafka, "quarantine", auto_offset_reset="earliest") as consumer:
        partitions = [TopicPartition(topic, number) for number in keys]
        async for record in records_so_far(consumer, partitions, since_ms):
            if record.key in keys[record.partition] and _MARK in (record.value or b""):
                closed = _closed(record.value)
                if closed is not None:
                    found[closed.conversation_id] = closed
    return found


def _closed(value: bytes) -> ClosedFact | None:
    try:
        score = SCORE_RECORD.validate_json(value)
    except ValidationError:  # of a version to come, or not ours
        return None
    return score if isinstance(score, ClosedFact) else None
