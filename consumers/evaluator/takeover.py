"""Takes partitions over: claims them, fences off former writers, reads the order in which they folded, then reads the inputs."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.structs import OffsetAndMetadata

from consumers.evaluator.partition import CatchingUp, Partition
from consumers.evaluator.recovery import (
    CommitNote,
    OrderLog,
    OrderStarts,
    PlacedStart,
    PublishedCalls,
    PublishedGoals,
    Replay,
    read_back,
)
from consumers.evaluator.settings import EvaluatorSettings
from consumers.evaluator.writer import Claims, Mark
from consumers.runtime.kafka.connection import KafkaSettings
from consumers.runtime.registry import Instruments
from schemas.closed_sets import InputSource
from schemas.goals.goal_set import ChoosesGoals, GoalSet
from schemas.topics import ORDER_TOPIC, SCORES_TOPIC

GOALS_SLACK_MS: Final = 60_000
"""How long before its step in `order` a goal set may have been written to `scores`, by the timestamps of the two."""

log = structlog.get_logger()


class _Inputs:
    """The inputs of one partition number, when it is taken over: by topic where each begins and ends, and what was committed."""

    def __init__(
        self, number: int, topics: Sequence[str], committed: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> None:
        self.number = number
        self.firsts: dict[str, int] = {}
        self.ends: dict[str, int] = {}
        self._places = {topic: TopicPartition(topic, number) for topic in topics}
        self.committed = {topic: committed[tp].offset for topic, tp in self._places.items()}
        self.notes = {
            topic: CommitNote.parse(committed[tp].metadata, committed[tp].offset) for topic, tp in self._places.items()
        }

    def reach(self, firsts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> None:
        """Takes where each input begins and ends."""
        self.firsts = {topic: firsts[tp] for topic, tp in self._places.items()}
        self.ends = {topic: ends[tp] for topic, tp in self._places.items()}

    @property
    def foreign(self) -> dict[str, int]:
        """The offsets that somebody else committed, by topic."""
        return {topic: at for topic, at in self.committed.items() if at >= 0 and self.notes[topic] is None}

    @property
    def anew(self) -> set[str]:
        """The topics that were created again."""
        return {topic for topic, note in self.notes.items() if note is not None and note.is_anew}

    @property
    def writers(self) -> set[str]:
        """Ids of the producers that the notes name."""
        return {note.writer for note in self.notes.values() if note is not None and note.writer is not None}

    @property
    def order_start(self) -> int | None:
        """First offset of `order` to read, by the notes; 0 if nobody of ours has committed, None without an order to use."""
        notes = [note for note in self.notes.values() if note is not None]
        orders = [note.order for note in notes if note.order is not None]
        return min(orders, default=0) if len(orders) == len(notes) else None


class Takeover:
    """Takes over partitions from their former owners."""

    def __init__(
        self,
        kafka: KafkaSettings,
        settings: EvaluatorSettings,
        instruments: Instruments,
        source_by_topic: Mapping[str, InputSource],
        version: str,
        goals: ChoosesGoals | None = None,
    ) -> None:
        self._kafka = kafka
        self._settings = settings
        self._instruments = instruments
        self._source_by_topic = source_by_topic
        self._version = version
        self._goals = goals
        self._claims = Claims(kafka, settings) if settings.uses_transactions and not kafka.is_embedded else None
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

    async def keep(self, owned: Sequence[Partition], writer_id: str) -> None:
        """Claims partitions for the writer of a new assignment. They were ours all the time.

        Raises:
            KafkaError: The broker refused a request.
        """
        await self._claimed([each.number for each in owned], writer_id)
        for each in owned:
            each.writer_id = writer_id

    async def take(self, owned: Sequence[Partition], consumer: AIOKafkaConsumer, writer_id: str) -> None:
        """Fences off former owners, reads their order, and sets the start offsets. Then the partitions are active.

        Args:
            owned: The new partitions.
            consumer: Reports the ends of the inputs.
            writer_id: Id of the producer that will write them.

        Raises:
            KafkaError: The broker refused a request.
            ReadBackError: What was written cannot be read to its end.
        """
        numbers = [each.number for each in owned]
        # From here on no former owner can let another producer write.
        claimed = await self._claimed(numbers, writer_id)
        tps = [TopicPartition(topic, number) for number in numbers for topic in self._source_by_topic]
        if self._kafka.is_embedded:  # which ends with its process, so nobody has written there before
            firsts = await consumer.beginning_offsets(tps)
            for each in owned:
                offsets = {topic: firsts[TopicPartition(topic, each.number)] for topic in self._source_by_topic}
                self._begin(each, offsets, [], Mark(0, 0))
            return
        committed = await self._committed(tps)
        inputs = {number: _Inputs(number, tuple(self._source_by_topic), committed) for number in numbers}
        logs = {number: OrderLog() for number in numbers}
        starts = await self._order_starts(inputs, consumer)
        readable = await self._ends(numbers, consumer)
        for number, each_inputs in inputs.items():
            is_first = claimed[number].order == 1 if claimed else not readable[number].order  # our own claim
            self._look_at_foreign(each_inputs, is_first=is_first)
        ends = {number: mark.order for number, mark in readable.items()}
        await self._read_orders(logs, starts, ends)
        await self._read_earlier(inputs, logs, starts, ends, consumer)
        await self._fence_writers(inputs, logs, writer_id)
        # A reader that is past these marks has read everything that the former owners have written.
        marks = await self._claimed(numbers, writer_id) or await self._ends(numbers, consumer)
        rests = {number: max(starts[number], end) for number, end in ends.items()}
        await self._read_orders(logs, rests, {number: mark.order for number, mark in marks.items()})
        input_firsts, input_ends = await asyncio.gather(consumer.beginning_offsets(tps), consumer.end_offsets(tps))
        for there in inputs.values():
            there.reach(input_firsts, input_ends)
        usable = self._usable(inputs, logs, starts, claimed or readable)
        published = await self._published(
            [each for each in inputs.values() if each.number not in usable], marks, consumer
        )
        sets = await self._goal_sets(usable, marks, consumer)
        for each in owned:
            number = each.number
            each.writer_id = writer_id
            if number in usable:
                self._replay(each, inputs[number], usable[number], marks[number], sets)
            else:
                self._catch_up(each, inputs[number], published[number], marks[number])

    async def _claimed(self, numbers: Sequence[int], writer_id: str) -> dict[int, Mark]:
        """Claims partitions; returns the marks by partition number, none without transactions."""
        if self._claims is None:
            return {}
        marks = await asyncio.gather(*(self._claims.claim(number, writer_id) for number in numbers))
        return dict(zip(numbers, marks, strict=True))

    def _begin(
        self, owned: Partition, offsets: Mapping[str, int], starts: Sequence[PlacedStart], mark: Mark, **how: Any
    ) -> None:
        first = PlacedStart(0, {self._source_by_topic[topic]: offset for topic, offset in offsets.items()}, mark.order)
        owned.outlet.starts = OrderStarts(starts or [first], self._settings.closed_overlap_ms)
        owned.start(offsets, **how)

    def _replay(
        self,
        owned: Partition,
        inputs: _Inputs,
        order: OrderLog,
        mark: Mark,
        sets: Mapping[str, GoalSet],
    ) -> None:
        """Begins to fold in the order of the former owners."""
        sources = self._source_by_topic
        # An offset without our note was committed by somebody else: the order says from where to read.
        committed = {
            topic: order.starts[0].positions.get(source, 0)
            if inputs.notes[topic] is None and order.starts
            else inputs.committed[topic]
            for topic, source in sources.items()
        }
        offsets = {topic: self._start(inputs, topic, offset) for topic, offset in committed.items()}
        replay = Replay(
            order,
            {sources[topic]: max(0, offset) for topic, offset in committed.items()},
            {sources[topic]: end for topic, end in inputs.ends.items()},
            self._version,
            owned.evaluator,
            owned.admitted,
            owned.goals,
            sets,
            {sources[topic]: first for topic, first in inputs.firsts.items()},
        )
        self._begin(owned, offsets, order.starts, mark, replay=replay)

    def _catch_up(self, owned: Partition, inputs: _Inputs, published: PublishedCalls, mark: Mark) -> None:
        """Begins to fold without an order: silently as far as `scores` goes, if anything was written there before."""
        offsets = {topic: self._start(inputs, topic, inputs.committed[topic]) for topic in inputs.committed}
        until = {
            topic: 0 if topic in inputs.anew else min(published.reached.get(source, 0), inputs.ends[topic])
            for topic, source in self._source_by_topic.items()
        }
        is_cut = any(offset > max(0, inputs.committed[topic]) for topic, offset in offsets.items())
        catching_up = CatchingUp(until, published, is_cut=is_cut)
        if any(until[topic] > offset for topic, offset in offsets.items()):
            self._instruments.inc("callgauge_order_unusable_total")
            log.warning(
                "order_unusable",
                partition=inputs.number,
                what_happens_now="What was folded before is folded again in the order of broker time; every value of the open calls is "
                "published once again, and nothing is counted or closed twice.",
                what_to_do="Nothing after an upgrade from a release without `order`. Otherwise keep `order` for as long as `scores`, "
                "and see who deleted records of it.",
            )
        self._begin(owned, offsets, [], mark, catching_up=catching_up)

    async def _order_starts(self, inputs: Mapping[int, _Inputs], consumer: AIOKafkaConsumer) -> dict[int, int]:
        """Returns by partition number the first offset of `order` to read: as the notes say, or the first that there is."""
        topic = self._kafka.topic(ORDER_TOPIC)
        firsts = await consumer.beginning_offsets([TopicPartition(topic, number) for number in inputs])
        return {
            number: max(firsts[TopicPartition(topic, number)], each.order_start or 0) for number, each in inputs.items()
        }

    async def _read_orders(
        self, logs: Mapping[int, OrderLog], starts: Mapping[int, int], ends: Mapping[int, int]
    ) -> None:
        takes = {number: order.take for number, order in logs.items()}
        await read_back(self._kafka, self._kafka.topic(ORDER_TOPIC), starts, ends, takes)

    async def _read_earlier(
        self,
        inputs: Mapping[int, _Inputs],
        logs: dict[int, OrderLog],
        starts: Mapping[int, int],
        ends: Mapping[int, int],
        consumer: AIOKafkaConsumer,
    ) -> None:
        """Reads the whole order where an offset is not ours and there is no start since the notes: only one says from where to read."""
        topic = self._kafka.topic(ORDER_TOPIC)
        numbers = [
            number for number, order in logs.items() if not order.starts and None in inputs[number].notes.values()
        ]
        firsts = (
            await consumer.beginning_offsets([TopicPartition(topic, number) for number in numbers]) if numbers else {}
        )
        earlier = {tp.partition: first for tp, first in firsts.items() if first < starts[tp.partition]}
        logs |= {number: OrderLog() for number in earlier}
        await self._read_orders(
            {number: logs[number] for number in earlier}, earlier, {number: ends[number] for number in earlier}
        )

    async def _fence_writers(self, inputs: Mapping[int, _Inputs], logs: Mapping[int, OrderLog], writer_id: str) -> None:
        """Fences off every producer but ours with which a former owner of these partitions may still write."""
        numbers: dict[str, set[int]] = {}
        for number, order in logs.items():
            for former in (order.writers | inputs[number].writers) - {writer_id}:
                numbers.setdefault(former, set()).add(number)
        if self._claims is not None:
            await asyncio.gather(*(self._claims.fence(former, sorted(each)) for former, each in numbers.items()))

    def _usable(
        self,
        inputs: Mapping[int, _Inputs],
        logs: Mapping[int, OrderLog],
        starts: Mapping[int, int],
        marks: Mapping[int, Mark],
    ) -> dict[int, OrderLog]:
        """Returns the orders that can be used, by partition number."""
        usable = {}
        for number, order in logs.items():
            each = inputs[number]
            noted = each.order_start
            if noted is None or (noted and not starts[number] == noted <= marks[number].order):
                continue
            is_beyond = any(
                order.positions.get(source, 0) > each.ends[topic] for topic, source in self._source_by_topic.items()
            )
            if order.fault is not None or is_beyond:
                log.error("order_unreadable", partition=number, seen=order.fault or "it goes beyond the end of an input",
                          what_happens_now="It is not used.", what_to_do="See who writes `order`, or made an input anew.")  # fmt: skip
            elif order.starts or each.order_start:
                usable[number] = order
        return usable

    def _look_at_foreign(self, inputs: _Inputs, *, is_first: bool) -> None:
        """Says which offsets somebody else committed, and forgets them unless this is the first owner of the partition ever."""
        foreign = inputs.foreign
        if not foreign:
            return
        log.error(
            "offsets_not_ours",
            records=[f"{topic}[{inputs.number}]@{offset}" for topic, offset in foreign.items()],
            seen=f"somebody else has committed offsets for the group {self._settings.group_id}",
            what_happens_now="No evaluator was here before, so reading begins there."
            if is_first
            else "They are not obeyed: these inputs are read from where the last evaluator was, or from their first record, and "
            "nothing is published twice.",
            what_to_do="Find the program or the person that uses this group's name, and give it another one.",
        )
        if not is_first:
            inputs.committed |= dict.fromkeys(foreign, -1)

    async def _published(
        self, without: Sequence[_Inputs], marks: Mapping[int, Mark], consumer: AIOKafkaConsumer
    ) -> dict[int, PublishedCalls]:
        """Returns what `scores` says of the calls of partitions without an order, by partition number."""
        topic = self._kafka.topic(SCORES_TOPIC)
        published = {each.number: PublishedCalls() for each in without}
        if without:
            firsts = await consumer.beginning_offsets([TopicPartition(topic, each.number) for each in without])
            ends = {each.number: marks[each.number].scores for each in without}
            starts = {}
            for each in without:
                first = firsts[TopicPartition(topic, each.number)]
                noted = min((note.scores for note in each.notes.values() if note is not None), default=0)
                starts[each.number] = noted if first <= noted <= ends[each.number] else first
            await read_back(self._kafka, topic, starts, ends, {number: each.take for number, each in published.items()})
        return published

    async def _goal_sets(
        self, logs: Mapping[int, OrderLog], marks: Mapping[int, Mark], consumer: AIOKafkaConsumer
    ) -> dict[str, GoalSet]:
        """Returns the goal sets of past calls by digest: those of today, and from `scores` those that have changed since."""
        found: dict[str, GoalSet] = {}
        missing: dict[int, dict[str, int]] = {}
        for number, order in logs.items():
            for digest, chosen in order.goals.items():
                if chosen.calls <= order.closings.keys():
                    continue
                today = None if self._goals is None else self._goals.choose(chosen.goals_id, None)
                if today is not None and today.digest == digest:
                    found[digest] = today
                elif digest not in found:
                    missing.setdefault(number, {})[digest] = chosen.at_ms
        if missing:
            topic = self._kafka.topic(SCORES_TOPIC)
            ends = {number: marks[number].scores for number in missing}
            times_ms = {
                TopicPartition(topic, number): max(0, min(digests.values()) - GOALS_SLACK_MS)
                for number, digests in missing.items()
            }
            places = await consumer.offsets_for_times(times_ms)
            starts = {tp.partition: ends[tp.partition] if at is None else at.offset for tp, at in places.items()}
            readers = {number: PublishedGoals(set(digests)) for number, digests in missing.items()}
            await read_back(self._kafka, topic, starts, ends, {number: each.take for number, each in readers.items()})
            for each in readers.values():
                found |= each.found
        return found

    async def _ends(self, numbers: Sequence[int], consumer: AIOKafkaConsumer) -> dict[int, Mark]:
        """Returns the ends of what can be read of `order` and `scores`."""
        order, scores = (self._kafka.topic(topic) for topic in (ORDER_TOPIC, SCORES_TOPIC))
        ends = await consumer.end_offsets(
            [TopicPartition(topic, number) for topic in (order, scores) for number in numbers]
        )
        return {
            number: Mark(ends[TopicPartition(order, number)], ends[TopicPartition(scores, number)])
            for number in numbers
        }

    async def _committed(self, inputs: Sequence[TopicPartition]) -> Mapping[TopicPartition, OffsetAndMetadata]:
        if self._admin is None:
            raise RuntimeError("taking over before it was started, or after it was stopped")
        found = await self._admin.list_consumer_group_offsets(self._settings.group_id, partitions=list(inputs))
        return {tp: found.get(tp, OffsetAndMetadata(-1, "")) for tp in inputs}

    def _start(self, inputs: _Inputs, topic: str, committed: int) -> int:
        """Returns the committed offset, or the first offset if that is later or nothing is committed."""
        first, end = inputs.firsts[topic], inputs.ends[topic]
        if committed < 0 or first <= committed <= end:
            return max(committed, first)
        if committed < first:
            self._instruments.inc("callgauge_input_records_lost_total", (), first - committed)
        log.error(
            "input_not_where_it_was",
            record=f"{topic}[{inputs.number}]@{committed}",
            seen=f"the topic has {first} to {end}",
            what_happens_now="Reading begins at the first record there is; calls that began before are incomplete.",
            what_to_do="Keep inputs for longer than the longest call and the longest outage; see `callgauge doctor`.",
        )
        return first
