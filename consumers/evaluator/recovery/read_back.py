"""Reads back what the former owners of partitions wrote, before their inputs are folded again."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from pydantic import ValidationError
from pydantic_core import from_json

from consumers.runtime.errors import OperatorError
from consumers.runtime.kafka.connection import KafkaSettings
from schemas.closed_sets import InputSource
from schemas.goals.goal_set import GoalSet
from schemas.scores.all_records import GoalsFact
from schemas.scores.record import next_generation
from schemas.topics import SOURCE_BY_TOPIC
from schemas.undecodable import UndecodableRecord

POLL_MS: Final = 200
MAX_POLL_RECORDS: Final = 2_000
MAX_SILENT_SECONDS: Final = 30.0
"""How long reading may wait for a record that the broker says is there."""
MAX_ODD_RECORD_LINES: Final = 5
"""Log lines of one reading about records that no callgauge wrote."""

log = structlog.get_logger()


class ReadBackError(OperatorError):
    """The end of a topic was not reached. Without it scores would be published twice, so the process must end."""


async def read_back(
    kafka: KafkaSettings,
    topic: str,
    starts: Mapping[int, int],
    ends: Mapping[int, int],
    takes: Mapping[int, Callable[[Any], None]],
) -> None:
    """Passes every committed record of some partitions of a topic on, in order.

    Args:
        kafka: The cluster.
        topic: Full name of the topic.
        starts: By partition number, the first offset to read.
        ends: By partition number, the offset to read up to, which our own mark proves to be there.
        takes: By partition number, the function that takes the records.

    Raises:
        ReadBackError: The end was not reached.
        KafkaError: The broker refused.
    """
    unread = {TopicPartition(topic, number): end for number, end in ends.items() if starts[number] < end}
    if not unread:
        return
    consumer = kafka.consumer("read-back", enable_auto_commit=False, max_poll_records=MAX_POLL_RECORDS)
    try:
        await consumer.start()
        consumer.assign(list(unread))
        for tp in unread:
            consumer.seek(tp, starts[tp.partition])
        await _read(consumer, unread, takes)
    finally:
        await consumer.stop()


async def _read(
    consumer: AIOKafkaConsumer, ends: Mapping[TopicPartition, int], takes: Mapping[int, Callable[[Any], None]]
) -> None:
    loop = asyncio.get_running_loop()
    unread = dict(ends)
    heard_at = loop.time()
    while True:
        # By position and not by record count: the end of a transaction takes an offset and is no record.
        unread = {tp: end for tp, end in unread.items() if await consumer.position(tp) < end}
        if not unread:
            return
        batches = await consumer.getmany(*unread, timeout_ms=POLL_MS)
        if batches:
            heard_at = loop.time()
        elif loop.time() - heard_at > MAX_SILENT_SECONDS:
            behind = ", ".join(f"{tp.topic}[{tp.partition}] before {end}" for tp, end in sorted(unread.items()))
            raise ReadBackError(
                f"Recovery: nothing came for {MAX_SILENT_SECONDS:.0f} s, with records outstanding in {behind}. Without them "
                "scores would be written twice, so the evaluator ends. Check the broker and whether a transaction of "
                "another producer hangs there."
            )
        for tp, batch in batches.items():
            for record in batch:
                if record.offset < ends[tp]:
                    takes[tp.partition](record)


class PublishedCalls:
    """The calls of one partition as `scores` has them, where there is no order. It reads records of any version.

    Attributes:
        open: Ids of the calls that have records and did not close.
        closed: Ids of the calls that closed, in order.
        reached: By input, the offset after the last record that any score covers.
        generation: First revision of a generation that no record has.
    """

    def __init__(self) -> None:
        self.open: dict[str, None] = {}
        self.closed: dict[str, None] = {}
        self.reached: dict[InputSource, int] = {}
        self.generation = next_generation(0)
        self._odd = 0

    def take(self, record: Any) -> None:
        """Reads the next record."""
        if not isinstance(record, UndecodableRecord) and record.value is None:
            return  # a new owner
        fields = _fields_of(record)
        conversation_id, offsets, revision = (fields.get(name) for name in ("conversation_id", "offsets", "revision"))
        if not isinstance(conversation_id, str) or not isinstance(offsets, dict) or not isinstance(revision, int):
            self._odd += 1
            if self._odd <= MAX_ODD_RECORD_LINES:
                log.warning(
                    "score_not_ours", record=f"{record.topic}[{record.partition}]@{record.offset}",
                    what_happens_now="It is passed over.",
                    what_to_do="Find who writes there, and give the right to write `scores` to evaluators alone.",
                )  # fmt: skip
            return
        self.generation = max(self.generation, next_generation(revision))
        for topic, offset in offsets.items():
            source = SOURCE_BY_TOPIC.get(topic)
            if source is not None and isinstance(offset, int):
                self.reached[source] = max(self.reached.get(source, 0), offset + 1)
        self.open[conversation_id] = None
        if fields.get("name") == "closed":
            del self.open[conversation_id]
            self.closed.pop(conversation_id, None)
            self.closed[conversation_id] = None


class PublishedGoals:
    """Goal sets that `scores` has, by digest."""

    def __init__(self, wanted: set[str]) -> None:
        self.wanted = wanted
        self.found: dict[str, GoalSet] = {}

    def take(self, record: Any) -> None:
        """Reads the next record."""
        fields = _fields_of(record)
        if fields.get("name") != "goals" or fields.get("digest") not in self.wanted:
            return
        try:
            goal_set = GoalsFact.model_validate_json(record.value).goal_set
        except ValidationError:  # of another version, with a check that this one does not know
            return
        self.found[goal_set.digest] = goal_set
        self.wanted.discard(goal_set.digest)


def _fields_of(record: Any) -> dict[str, Any]:
    try:
        fields = from_json(record.value or b"")
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}
