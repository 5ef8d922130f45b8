"""Finds one call on the topics: its score records and its transcript. It uses no consumer group, so it disturbs no other reader."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Final

from aiokafka import TopicPartition
from pydantic import ValidationError

from consumers.runtime.kafka.connection import KafkaSettings, partition_counts
from schemas.scores.records import SCORE_RECORD, AnyScoreRecord
from schemas.topics import SCORES_TOPIC, TRANSCRIPTS_TOPIC
from schemas.transcript import TRANSCRIPT, TranscriptTurn
from streamer.cluster.onlooker import onlooker, records_so_far
from streamer.operations.one_call.ids import is_wanted

MAX_CALLS: Final = 20
"""Calls kept whose ids end in the same way: as many as a person chooses from."""
MAX_RECORDS: Final = 50_000
"""Records kept of one call: a call of two hours has a tenth."""


@dataclass(slots=True)
class FoundCalls:
    """The calls that were found, and their records.

    Attributes:
        records: Score records by conversation id, in the order of the topic.
        transcripts: Transcripts by conversation id.
        unreadable: Records of another program or of a newer version.
    """

    records: dict[str, list[AnyScoreRecord]] = field(default_factory=dict)
    transcripts: dict[str, tuple[TranscriptTurn, ...]] = field(default_factory=dict)
    unreadable: int = 0


async def find_calls(kafka: KafkaSettings, wanted: str, since_ms: int) -> FoundCalls:
    """Looks for the calls whose id is the wanted text, or ends with it.

    Args:
        kafka: The cluster.
        wanted: A conversation id, or its end; with less than `ids.LEAST_CHARS` characters only a whole id is found.
        since_ms: Older records are not looked at.

    Raises:
        KafkaUnreachableError: No broker answers, or it refuses.
        TopicsUnfitError: A topic does not exist.
    """
    found = FoundCalls()
    async for call, value in _records(kafka, SCORES_TOPIC, since_ms):
        if not is_wanted(call, wanted) or (call not in found.records and len(found.records) >= MAX_CALLS):
            continue
        records = found.records.setdefault(call, [])
        try:
            if len(records) < MAX_RECORDS:
                records.append(SCORE_RECORD.validate_json(value))
        except ValidationError:
            found.unreadable += 1
    if found.records:
        async for call, value in _records(kafka, TRANSCRIPTS_TOPIC, since_ms):
            if call in found.records:
                try:
                    found.transcripts[call] = TRANSCRIPT.validate_json(value)
                except ValidationError:
                    found.unreadable += 1
    exact = found.records.get(wanted)
    if exact is not None:  # another id may end with it
        found.records = {wanted: exact}
    return found


async def _records(kafka: KafkaSettings, name: str, since_ms: int) -> AsyncIterator[tuple[str, Any]]:
    counts = await partition_counts(kafka, [name])
    topic = kafka.topic(name)
    partitions = [TopicPartition(topic, number) for number in range(counts[name])]
    async with onlooker(kafka, "call", auto_offset_reset="earliest") as consumer:
        async for record in records_so_far(consumer, partitions, since_ms):
            if isinstance(record.key, bytes) and record.value is not None:
                yield record.key.decode("utf-8", "replace"), record.value
