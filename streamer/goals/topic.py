"""Goal sets on a compacted topic."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from consumers.runtime.kafka.connection import (
    KafkaSettings,
    KafkaUnreachableError,
    TopicsUnfitError,
    partition_counts,
)
from consumers.runtime.kafka.ranges import Ranges, onlooker, records_between
from consumers.runtime.logs import about_record
from consumers.runtime.process import finish_unless, pause_unless
from schemas.goals.goal_set import GoalSet, read_goals
from schemas.quarantine import UndecodableRecord
from schemas.topics import GOALS_TOPIC
from streamer.cluster.readers import POLL_MS, ranges_since
from streamer.goals.files import (
    DocumentError,
    GoalIndex,
    read_json,
)

# The topic `goals`: one record for each goal set. The newest record of a key counts; a record
# without a value deletes the set.
#
# It is read from its beginning, in no consumer group and beside the subscription of the inputs, by
# each process for itself.

RETRY_SECONDS: Final = 10.0
"""How long until the topic is tried again that was not there, or whose broker was away."""
METADATA_MS: Final = 60_000
"""How long until partitions that were added to the topic are seen."""
MAX_BATCH_RECORDS: Final = 500
"""Records of one poll, which are in memory together."""
MAX_SETS: Final = 10_000
"""Goal sets that are kept; a set has some kilobytes."""

log = structlog.get_logger()


class GoalRecordError(Exception):
    """A record that is no goal set; the text says why, as a sentence without a full stop."""


class GoalsTopic:
    """The goal sets on the topic `goals`, followed for as long as the process runs.

    A record that is no goal set is logged, counted and ignored. A missing topic or an unreachable
    broker is logged too: calls go on without goals, or with the goals that were read before.

    Attributes:
        index: The present goal sets; replaced as a whole. Of two sets for one agent, the one whose
            id comes first in the alphabet is found.
        refused: Number of records that were no goal sets.
        tried: Set when the topic was read to its end, or could not be read.
    """

    def __init__(self, kafka: KafkaSettings) -> None:
        self.index = GoalIndex()
        self.refused = 0
        self.tried = asyncio.Event()
        self._kafka = kafka
        self._warned_of = ""

    async def follow(self, stop: asyncio.Event) -> None:
        """Reads the topic, and later records, until `stop` is set."""
        try:
            while not stop.is_set():
                try:
                    await self._read(stop)
                except (KafkaError, KafkaUnreachableError, TopicsUnfitError, TimeoutError) as error:
                    self._tell(str(error))
                    self.tried.set()
                    await pause_unless(stop, RETRY_SECONDS)
        finally:
            self.tried.set()  # no one has to wait any longer

    async def _read(self, stop: asyncio.Event) -> None:
        """From the beginning, until `stop` is set or the topic has more partitions than before. Up
        to the present end, the earlier goal sets count.
        """
        count = await finish_unless(stop, partition_counts(self._kafka, [GOALS_TOPIC]))
        if count is None:
            return
        topic = self._kafka.topic(GOALS_TOPIC)
        partitions = [TopicPartition(topic, number) for number in range(count[GOALS_TOPIC])]
        options = {
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
            "metadata_max_age_ms": METADATA_MS,
        }
        async with onlooker(self._kafka, "goals", **options) as consumer:
            ranges = await ranges_since(consumer, partitions, None)
            sets = await finish_unless(stop, self._sets_in(consumer, ranges))
            if sets is None:
                return
            self._use(sets)
            self._warned_of = ""
            self.tried.set()
            log.info("goals_topic_read", goal_sets=len(sets), refused=self.refused)
            consumer.assign(partitions)
            for tp, (_, end) in ranges.items():
                consumer.seek(tp, end)
            while not stop.is_set() and not self._has_grown(consumer, len(partitions)):
                if await self._take_batch(consumer, sets):
                    self._use(sets)

    async def _sets_in(self, consumer: AIOKafkaConsumer, ranges: Ranges) -> dict[str, GoalSet]:
        sets: dict[str, GoalSet] = {}
        async for record in records_between(consumer, ranges):
            self._read_record(record, sets)
        return sets

    async def _take_batch(self, consumer: AIOKafkaConsumer, sets: dict[str, GoalSet]) -> bool:
        """Takes the records that have arrived; returns whether there were any."""
        batches = await consumer.getmany(timeout_ms=POLL_MS, max_records=MAX_BATCH_RECORDS)
        for records in batches.values():
            for record in records:
                self._read_record(record, sets)
        return bool(batches)

    def _read_record(self, record: Any, sets: dict[str, GoalSet]) -> None:
        try:
            goals_id = _id_of(record)
            if record.value is None:
                sets.pop(goals_id, None)
                return
            goals = _goals_in(goals_id, record.value)
            _require_room(sets, goals_id)
        except GoalRecordError as error:
            self.refused += 1
            where = {
                name: value
                for name, value in about_record(record).items()
                if name != "conversation_id"
            }
            now = "the record before it with the same key counts, as long as the topic has it"
            log.warning("goal_record_refused", error=f"{error}.", now=now, **where)
            return
        sets[goals_id] = goals

    def _tell(self, problem: str) -> None:
        """Why the topic is not read now, once for as long as it lasts."""
        if self._warned_of != problem:
            log.warning("goals_topic_unread", error=problem, goal_sets=len(self.index))
        self._warned_of = problem

    def _use(self, sets: dict[str, GoalSet]) -> None:
        self.index = GoalIndex(sets[goals_id] for goals_id in sorted(sets))

    def _has_grown(self, consumer: AIOKafkaConsumer, count: int) -> bool:
        return len(consumer.partitions_for_topic(self._kafka.topic(GOALS_TOPIC)) or ()) > count


def _id_of(record: Any) -> str:
    if isinstance(record, UndecodableRecord):
        raise GoalRecordError(f"{record.what}, {record.expected_and_seen}")
    try:
        goals_id = (record.key or b"").decode()
    except UnicodeDecodeError as error:
        raise GoalRecordError("its key is not UTF-8; the key is the id of the goal set") from error
    if not goals_id:
        raise GoalRecordError("it has no key; the key is the id of the goal set")
    return goals_id


def _require_room(sets: Mapping[str, GoalSet], goals_id: str) -> None:
    if len(sets) >= MAX_SETS and goals_id not in sets:
        raise GoalRecordError(
            f"there are {MAX_SETS} goal sets already; take some away with records without a value"
        )


def _goals_in(goals_id: str, value: bytes) -> GoalSet:
    """The one goal set in a record, in any of the formats."""
    try:
        document = read_json(value.decode())
    except UnicodeDecodeError as error:
        raise GoalRecordError("its value is not UTF-8") from error
    except DocumentError as error:
        raise GoalRecordError(str(error)) from error
    found = read_goals(document.value, fallback_id=goals_id)
    if found.mistakes:
        first = found.mistakes[0]
        more = f" (and {len(found.mistakes) - 1} more mistakes)" if len(found.mistakes) > 1 else ""
        raise GoalRecordError(f"{first.place or 'goal set'}: {first.text}{more}")
    if len(found.sets) != 1:
        raise GoalRecordError(
            f"it holds {len(found.sets)} goal sets; write each one to a record of its own"
        )
    goals = found.sets[0][1]
    if goals.id != goals_id:
        raise GoalRecordError(
            f"its key is {goals_id!r} and its id {goals.id!r}; they must be the same"
        )
    return goals
