"""The partitions that are ours, and how far each of their inputs is read."""

import time
from collections.abc import Collection, Iterable, Mapping, Sequence

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.structs import OffsetAndMetadata

from consumers.evaluator.held import Held
from consumers.evaluator.partition_clock import End, InputProgress, LogEnd, broker_time_ms, in_order_until_ms, lag_ms
from consumers.evaluator.record_order import Records

LabelValues = tuple[str, ...]


class NotCoPartitionedError(Exception):
    """The group gave us a partition number of some inputs only: calls would be torn apart, so the process must end."""


def wall_clock_ms() -> int:
    """Milliseconds since 1970 on this machine's clock."""
    return time.time_ns() // 1_000_000


def assigned_numbers(assigned: Iterable[TopicPartition], topics: Iterable[str]) -> list[int]:
    """The partition numbers of an assignment, ascending.

    Raises:
        NotCoPartitionedError: A number came with some of the topics only.
    """
    assigned, topics = set(assigned), tuple(topics)
    numbers = sorted({tp.partition for tp in assigned})
    wanted = {TopicPartition(topic, number) for topic in topics for number in numbers}
    if missing := wanted - assigned:
        raise NotCoPartitionedError(
            f"Assignment: the group gave us partitions {numbers}, but not "
            f"{', '.join(sorted(f'{tp.topic}[{tp.partition}]' for tp in missing))}. A conversation needs all inputs in one "
            "process, so the evaluator ends. All inputs are there with equal numbers of partitions, as far as the broker "
            "says; check that every member of the group runs the same version, and with the same topic prefix."
        )
    return numbers


class Assignment:
    """The partitions that are ours. A rebalance takes some away and adds others; the rest keep their state.

    Attributes:
        held: By number.
        paused: Inputs that are not read on, because they are far ahead of another of their number.
    """

    def __init__(self, topics: Iterable[str], log_ends: Mapping[TopicPartition, LogEnd | None]) -> None:
        """Starts with none.

        Args:
            topics: The inputs, by their names on this cluster.
            log_ends: As `LogEnds.ends`; read each time.
        """
        self.held: dict[int, Held] = {}
        self.paused: set[TopicPartition] = set()
        self._topics = tuple(topics)
        self._log_ends = log_ends
        self._since_ms = wall_clock_ms()
        self._progress: dict[TopicPartition, InputProgress] = {}
        self._caught_up_at_ms: dict[TopicPartition, int] = {}
        self._told: dict[TopicPartition, tuple[int | None, int | None]] = {}
        self._committed: dict[TopicPartition, OffsetAndMetadata] = {}

    @property
    def active(self) -> dict[int, Held]:
        """Those whose records are folded, by number."""
        return {number: each for number, each in self.held.items() if each.partition.is_active}

    @property
    def waiting(self) -> list[int]:
        """Numbers of those that are ours and not folded yet."""
        return [number for number, each in self.held.items() if not each.partition.is_active]

    @property
    def unwritten_records(self) -> int:
        """Records decided and not written, of all partitions."""
        return sum(each.partition.outbox.records for each in self.held.values())

    def inputs_of(self, numbers: Iterable[int]) -> list[TopicPartition]:
        """The input partitions of these numbers."""
        return [TopicPartition(topic, number) for number in numbers for topic in self._topics]

    def keep_only(self, numbers: Collection[int]) -> list[Held]:
        """Gives up the others, and what was known of where the broker is with any of them.

        Returns:
            Those given up, dropped.
        """
        gone = [self.held.pop(number) for number in list(self.held) if number not in numbers]
        for each in gone:
            each.partition.drop()
        for each in self.held.values():
            each.partition.read_again()
        self.paused.clear()
        self._since_ms = wall_clock_ms()
        self._progress.clear()
        self._told.clear()
        self._caught_up_at_ms.clear()
        self._committed.clear()
        return gone

    async def look(self, consumer: AIOKafkaConsumer) -> None:
        """Learns how far each input is read, from what the client knows: it never waits for the broker."""
        assigned = consumer.assignment()  # in the middle of a rebalance it may be the next one
        now_ms = wall_clock_ms()
        for number, held in self.active.items():
            positions: dict[str, int] = {}
            for topic in self._topics:
                tp = TopicPartition(topic, number)
                end = self._end(consumer, tp) if tp in assigned else None
                if end is None:  # no answer yet, so perhaps no position either, and asking for that would wait
                    continue
                position = await consumer.position(tp)
                is_paused = tp in self.paused
                before = self._progress.get(tp)
                if before is None or position != before.position or position >= end.offset or is_paused:
                    moved_at_ms = now_ms
                else:
                    moved_at_ms = before.moved_at_ms
                progress = InputProgress(
                    position=position,
                    end=end.offset,
                    told_at_ms=end.told_at_ms,
                    newest_told_at_ms=end.newest_told_at_ms,
                    is_paused=is_paused,
                    last_record_ms=held.partition.last_record_ms.get(topic),
                    since_ms=self._since_ms,
                    moved_at_ms=moved_at_ms,
                )
                self._progress[tp] = progress
                partition = held.partition
                positions[topic] = partition.next_offsets[topic] if partition.merge.waits(topic) else progress.position
                if progress.is_at_end and progress.told_at_ms is not None:
                    self._caught_up_at_ms[tp] = progress.told_at_ms
            held.read_to(positions)

    def _end(self, consumer: AIOKafkaConsumer, tp: TopicPartition) -> End | None:
        """Where an input ends, as it is known at the moment; None as long as the client has no answer about it."""
        visible_end = consumer.highwater(tp)
        if visible_end is None:
            return None
        told_at_ms = consumer.last_poll_timestamp(tp)
        earlier_ms, latest_ms = self._told.get(tp, (None, None))
        if told_at_ms != latest_ms:
            earlier_ms = latest_ms
            self._told[tp] = (earlier_ms, told_at_ms)
        stable_end = consumer.last_stable_offset(tp)
        # What stands after an open transaction cannot be read: for us it is not written yet.
        readable_end = visible_end if stable_end is None or stable_end < 0 else stable_end
        # An answer may lie unread for as long as we are frozen, and says how things were when it was asked for: after
        # the one before it had come.
        end = End(readable_end, earlier_ms, told_at_ms)
        is_of_log = tp in self._log_ends and readable_end >= visible_end
        return end.or_of_log(self._log_ends[tp]) if is_of_log else end

    def fold(self, number: int, runs: Sequence[Records]) -> None:
        """Folds one poll's records of an active partition, and those that waited, as far as all of its inputs are known."""
        self.held[number].partition.fold(runs, self.known_ms(number), self._until_ms(number))

    def advance(self) -> None:
        """Lets broker time pass in each partition, as far as all of its inputs are known."""
        for number, held in self.active.items():
            if held.partition.merge.waiting_records:
                self.fold(number, ())
            known_ms = self.known_ms(number)
            if known_ms is not None:
                held.partition.advance(known_ms)

    def hold_back(self, consumer: AIOKafkaConsumer, full: Collection[int] = ()) -> None:
        """Stops reading inputs that are far ahead of another of their number, and goes on where the other has come near.

        Args:
            consumer: Whose partitions they are.
            full: Numbers of which nothing is read on, because too much of them waits to be written.
        """
        for number, held in self.active.items():
            merge = held.partition.merge
            for tp in self.inputs_of([number]):
                is_paused = tp in self.paused
                is_full = number in full or merge.is_full(tp.topic, is_paused=is_paused)
                if is_full and not is_paused:
                    consumer.pause(tp)
                    self.paused.add(tp)
                elif is_paused and not is_full:
                    consumer.resume(tp)
                    self.paused.remove(tp)

    def known_ms(self, number: int) -> int | None:
        """Broker time up to which all inputs of a partition are known; None if one of them is not known at all."""
        inputs = [self._progress.get(tp) for tp in self.inputs_of([number])]
        known = [progress for progress in inputs if progress is not None]
        return broker_time_ms(known) if len(known) == len(inputs) else None

    def _until_ms(self, number: int) -> int | None:
        inputs = [self._progress.get(tp) for tp in self.inputs_of([number])]
        return in_order_until_ms(inputs, self._since_ms, wall_clock_ms())

    @property
    def waiting_records(self) -> int:
        """Records handed over that wait for another input of their number."""
        return sum(held.partition.merge.waiting_records for held in self.held.values())

    def to_commit(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Where a successor must start to read each input, with its note."""
        now_ms = wall_clock_ms()
        return {tp: at for held in self.active.values() for tp, at in held.to_commit(now_ms).items()}

    def not_committed(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Those of them that differ from what is committed."""
        return {tp: at for tp, at in offsets.items() if self._committed.get(tp) != at}

    def committed(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """These are committed now."""
        self._committed.update(offsets)

    def watermark_lag_messages(self, group_id: str) -> dict[LabelValues, float]:
        """Records between the oldest open call's first and the last one folded, by group, topic and partition."""
        return {
            (group_id, topic, str(number)): float(held.partition.next_offsets[topic] - offset)
            for number, held in self.active.items()
            for topic, offset in held.partition.offsets_to_commit().items()
        }

    def lag_messages(self, group_id: str) -> dict[LabelValues, float]:
        """Outstanding records, by group, topic and partition."""
        return {(group_id, tp.topic, str(tp.partition)): seen.lag_messages for tp, seen in self._progress.items()}

    def lag_seconds(self, group_id: str) -> dict[LabelValues, float]:
        """Age of the oldest outstanding record, by group, topic and partition."""
        now_ms = wall_clock_ms()
        return {
            (group_id, tp.topic, str(tp.partition)): lag_ms(seen, self._caught_up_at_ms.get(tp), now_ms) / 1_000
            for tp, seen in self._progress.items()
        }

    def newest_records_ms(self) -> dict[str, int]:
        """Broker timestamp of the newest record of each topic that was read at all."""
        newest_ms: dict[str, int] = {}
        for held in self.held.values():
            for topic, time_ms in held.partition.last_record_ms.items():
                newest_ms[topic] = max(time_ms, newest_ms.get(topic, time_ms))
        return newest_ms
