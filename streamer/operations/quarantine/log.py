"""Reads the `quarantine` topic: refused records and the reasons. It uses no consumer group, so it disturbs no other reader."""

import heapq
from collections import Counter
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass, field

from aiokafka import TopicPartition
from pydantic import ValidationError

from consumers.runtime.kafka.connection import KafkaSettings, partition_counts
from schemas.closed_sets import RefusalReason
from schemas.quarantine import QuarantineRecord
from schemas.topics import QUARANTINE_TOPIC
from streamer.cluster.coordinates import Coordinates
from streamer.cluster.onlooker import onlooker, records_so_far


@dataclass(frozen=True, slots=True)
class Wanted:
    """Filter of quarantine entries; empty and None select all.

    Attributes:
        reasons: Any of these.
        topics: Any of these, by full name.
        conversation: The key of the refused record.
        since_ms: When the broker took the refused record: at this moment or later.
        until_ms: Before this moment.
        places: Any of these.
    """

    reasons: Collection[RefusalReason] = ()
    topics: Collection[str] = ()
    conversation: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    places: Collection[Coordinates] = ()

    def matches(self, record: QuarantineRecord) -> bool:
        """Whether an entry is one of them."""
        return (
            (not self.reasons or record.reason in self.reasons)
            and (not self.topics or record.topic in self.topics)
            and (self.conversation is None or record.key == self.conversation)
            and (self.since_ms is None or record.quarantined_at_ms >= self.since_ms)
            and (self.until_ms is None or record.quarantined_at_ms < self.until_ms)
            and (not self.places or Coordinates.of(record) in self.places)
        )


@dataclass(slots=True)
class Entries:
    """The entries found by a search.

    Attributes:
        newest: The newest entries that match, oldest first, each refused record once.
        by_reason: Number of all matching entries, by reason.
        unreadable: Records of another program or of a newer version.
    """

    newest: list[QuarantineRecord] = field(default_factory=list)
    by_reason: Counter[RefusalReason] = field(default_factory=Counter)
    unreadable: int = 0

    @property
    def matching(self) -> int:
        """How many entries match."""
        return self.by_reason.total()


async def quarantined(kafka: KafkaSettings, wanted: Wanted, *, most: int) -> Entries:
    """Reads the topic up to where it ends now.

    Args:
        kafka: Where the broker is.
        wanted: Which entries.
        most: How many to keep at most; memory is bounded by it.

    Raises:
        KafkaUnreachableError: No broker answers, or not any more.
        TopicsUnfitError: There is no quarantine topic.
    """
    found = Entries()
    kept: list[tuple[int, Coordinates]] = []
    by_place: dict[Coordinates, QuarantineRecord] = {}
    async for value in _values(kafka, wanted.since_ms):
        try:
            record = QuarantineRecord.model_validate_json(value or b"")
        except ValidationError:
            found.unreadable += 1
            continue
        if not wanted.matches(record):
            continue
        found.by_reason[record.reason] += 1
        place = Coordinates.of(record)
        if place in by_place:  # an evaluator that was killed may have refused it once more
            continue
        by_place[place] = record
        heapq.heappush(kept, (record.quarantined_at_ms, place))
        if len(kept) > most:
            del by_place[heapq.heappop(kept)[1]]
    found.newest = [by_place[place] for _, place in sorted(kept)]
    return found


async def _values(kafka: KafkaSettings, since_ms: int | None) -> AsyncIterator[bytes | None]:
    """The values of the quarantine topic, partition by partition in order, up to where each ends now."""
    topic = kafka.topic(QUARANTINE_TOPIC)
    count = (await partition_counts(kafka, [QUARANTINE_TOPIC]))[QUARANTINE_TOPIC]
    partitions = [TopicPartition(topic, number) for number in range(count)]
    async with onlooker(kafka, "quarantine", auto_offset_reset="earliest") as consumer:
        async for record in records_so_far(consumer, partitions, since_ms):
            yield record.value
