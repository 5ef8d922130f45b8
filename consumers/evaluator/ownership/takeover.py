"""Takes partitions over: fences off former writers, then recalls the written scores, then starts to read the inputs."""

import asyncio
from collections.abc import Collection, Mapping, Sequence

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError
from aiokafka.structs import OffsetAndMetadata

from consumers.evaluator.ownership.membership import likely_given_away, members_of
from consumers.evaluator.partition.owned_partition import OwnedPartition
from consumers.evaluator.partition.partition import InputStart
from consumers.evaluator.partition.progress import MAX_TAKEOVERS_WITHOUT_PROGRESS
from consumers.evaluator.reading.broker_clock import BrokerClock
from consumers.evaluator.recall.commit_note import CommitNote
from consumers.evaluator.recall.ledger import read_ledger
from consumers.evaluator.settings import EvaluatorSettings
from consumers.evaluator.snapshots.restoring import NotedSnapshot, Restored, SnapshotRestoring
from consumers.runtime.kafka.connection import KafkaSettings
from consumers.runtime.polling.subscription import Subscription
from consumers.runtime.registry import Instruments

log = structlog.get_logger()


class Takeover:
    """Takes over partitions from their former owners."""

    def __init__(
        self,
        kafka: KafkaSettings,
        settings: EvaluatorSettings,
        instruments: Instruments,
        topics: Sequence[str],
        clock: BrokerClock,
        restoring: SnapshotRestoring | None = None,
    ) -> None:
        """Stores its parts; `start` connects.

        Args:
            kafka: Where the broker is.
            settings: Names the group, whose committed offsets are read.
            instruments: Where lost records are counted.
            topics: The inputs, by their names on this cluster.
            clock: Its steady clock dates the marks.
            restoring: Restores states that former owners have written; None if calls are always replayed.
        """
        self._restoring = restoring
        self._clock = clock
        self._kafka = kafka
        self._settings = settings
        self._instruments = instruments
        self._topics = tuple(topics)
        self._admin: AIOKafkaAdminClient | None = None

    async def start(self) -> None:
        """Connects the administration client."""
        if not self._kafka.is_embedded:
            self._admin = self._kafka.admin("evaluator")
            await self._admin.start()

    async def stop(self) -> None:
        """Disconnects the administration client."""
        admin, self._admin = self._admin, None
        if admin is not None:
            await admin.close()

    async def likely_given_away(self, ours: Collection[int], subscription: Subscription) -> Sequence[int]:
        """Returns our partition numbers that another member will probably get in this rebalance; all if it is not known."""
        members = frozenset[str]() if self._admin is None else await members_of(self._admin, self._settings.group_id)
        partitions = len(subscription.consumer.partitions_for_topic(self._topics[0]) or ())
        return likely_given_away(ours, partitions, members, subscription.member_id)

    async def take(self, owned: Sequence[OwnedPartition], consumer: AIOKafkaConsumer) -> None:
        """Fences off former owners, recalls their scores, and sets the start offsets. Then the partitions are active.

        Args:
            owned: The new partitions with their writers.
            consumer: Reports the ends of the inputs.

        Raises:
            KafkaError: The broker refused a request.
            LedgerError: The written scores cannot be read.
        """
        marks = await asyncio.gather(*(each.writer.fence() for each in owned))
        at_least = {each.partition.number: mark for each, mark in zip(owned, marks, strict=True)}
        numbers = [each.partition.number for each in owned]
        inputs = [TopicPartition(topic, number) for number in numbers for topic in self._topics]
        committed = await self._committed(inputs)
        firsts, ends = await asyncio.gather(consumer.beginning_offsets(inputs), consumer.end_offsets(inputs))
        # A note with offsets beyond the end is about topics that were created again since.
        notes = {tp: CommitNote.parse(at.metadata if at.offset <= ends[tp] else "") for tp, at in committed.items()}
        restored = await self._restored(numbers, notes, at_least, firsts, ends)
        starts: dict[int, dict[str, InputStart]] = {number: {} for number in numbers}
        for tp in inputs:
            if tp.partition in restored:
                offset = max(committed[tp].offset, firsts[tp])  # records deleted before they were folded
            else:
                offset = self._start(tp, committed[tp].offset, firsts[tp], ends[tp])
            starts[tp.partition][tp.topic] = InputStart(offset, min(notes[tp].read, ends[tp]))
        has_lost = {
            tp.partition
            for tp in inputs
            if 0 <= committed[tp].offset != starts[tp.partition][tp.topic].offset and tp.partition not in restored
        }
        ledger_starts = {
            number: min(notes[TopicPartition(topic, number)].scores for topic in self._topics) for number in numbers
        }
        recalls = {}
        for each in owned:
            number = each.partition.number
            if number in restored:
                each.partition.go_on_with(restored[number].evaluator, restored[number].unwritten)
            else:
                each.partition.reading_starts_at(starts[number])
                recalls[number] = each.partition.recall
        ledger_ends = {
            number: at_least[number] if number in restored else start for number, start in ledger_starts.items()
        }
        takeovers = dict.fromkeys(numbers, 0)
        if not self._kafka.is_embedded:  # which ends with its process, so nobody has written there before
            if recalls:
                recalled = {number: ledger_starts[number] for number in recalls}
                ledger_ends |= await read_ledger(self._kafka, recalled, at_least, recalls, self._instruments)
            takeovers = await self._note_takeovers(consumer, starts, ledger_starts, notes)
        now_ms = self._clock.steady_ms()
        for each in owned:
            number = each.partition.number
            each.began(
                starts[number],
                {topic: ends[TopicPartition(topic, number)] for topic in self._topics},
                ledger_starts[number],
                ledger_ends[number],
                now_ms=now_ms,
                overlap_ms=self._settings.ledger_overlap_ms,
                takeovers=takeovers[number],
                goes_on_at=restored[number].positions if number in restored else None,
            )
            if number in has_lost:
                each.partition.records_lost()
            if number in restored:
                each.partition.refuse(restored[number].refused)

    async def _restored(
        self,
        numbers: Sequence[int],
        notes: Mapping[TopicPartition, CommitNote],
        at_least: Mapping[int, int],
        firsts: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
    ) -> Mapping[int, Restored]:
        """Returns the usable states of former owners, by partition number. These are fenced off before."""
        if self._restoring is None:
            return {}
        wanted: dict[int, NotedSnapshot] = {}
        for number in numbers:
            inputs = [TopicPartition(topic, number) for topic in self._topics]
            (place, *others) = {notes[tp].snapshot for tp in inputs}
            # A partition without progress is replayed, because its state may be the cause.
            if place is None or others or max(notes[tp].takeovers for tp in inputs) >= MAX_TAKEOVERS_WITHOUT_PROGRESS:
                continue
            there = {tp.topic: firsts[tp] for tp in inputs}, {tp.topic: ends[tp] for tp in inputs}
            wanted[number] = NotedSnapshot(place, at_least[number] - 1, *there)
        return await self._restoring.restore(wanted)

    async def _note_takeovers(
        self,
        consumer: AIOKafkaConsumer,
        starts: Mapping[int, Mapping[str, InputStart]],
        ledger_starts: Mapping[int, int],
        notes: Mapping[TopicPartition, CommitNote],
    ) -> dict[int, int]:
        """Commits the number of owners before anything is folded, because a process that a call kills cannot do it later.

        Returns:
            By partition number, the owners since the partition last made progress, this one included.
        """
        takeovers = dict.fromkeys(starts, 1)
        for tp, note in notes.items():
            takeovers[tp.partition] = max(takeovers[tp.partition], note.takeovers + 1)
        offsets = {
            TopicPartition(topic, number): OffsetAndMetadata(
                start.offset, CommitNote(ledger_starts[number], start.seen_before, takeovers[number]).text()
            )
            for number, inputs in starts.items()
            for topic, start in inputs.items()
        }
        try:
            await consumer.commit(offsets)
        except KafkaError as error:  # the partitions may be another's already; then it counts
            log.warning("commit_failed", error=str(error) or type(error).__name__)
        if again := {number: count - 1 for number, count in takeovers.items() if count > 1}:
            log.warning(
                "partitions_did_not_get_on",
                owners_before=again,
                what_happens_now="They are read again from where the oldest open call began. After "
                f"{MAX_TAKEOVERS_WITHOUT_PROGRESS} owners that ended before they got on, the next one closes a call.",
                what_to_do="Where the number grows, see how the evaluators before this one ended.",
            )
        return takeovers

    async def _committed(self, inputs: Sequence[TopicPartition]) -> Mapping[TopicPartition, OffsetAndMetadata]:
        if self._kafka.is_embedded:
            return dict.fromkeys(inputs, OffsetAndMetadata(-1, ""))
        if self._admin is None:
            raise RuntimeError("taking over before it was started, or after it was stopped")
        found = await self._admin.list_consumer_group_offsets(self._settings.group_id, partitions=list(inputs))
        return {tp: found.get(tp, OffsetAndMetadata(-1, "")) for tp in inputs}

    def _start(self, tp: TopicPartition, committed: int, first: int, end: int) -> int:
        """Returns the committed offset, or the first offset if that is later or nothing is committed."""
        if committed < 0 or first <= committed <= end:
            return max(committed, first)
        if committed < first:
            self._instruments.inc("callgauge_input_records_lost_total", (), first - committed)
        log.error(
            "input_not_where_it_was",
            record=f"{tp.topic}[{tp.partition}]@{committed}",
            seen=f"the topic has {first} to {end}",
            what_happens_now="Reading begins at the first record there is; calls that began before are incomplete.",
            what_to_do="Keep inputs for longer than the longest call and the longest outage; see `callgauge doctor`.",
        )
        return first
