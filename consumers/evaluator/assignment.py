"""The partitions that are ours, and how far each of their inputs is read."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.structs import OffsetAndMetadata

from consumers.evaluator.clock import LOG_APPEND_TIME, BrokerClock
from consumers.evaluator.held import Held
from consumers.evaluator.input_gaps import InputGaps
from consumers.evaluator.partition_clock import End, InputProgress, LogEnd, broker_time_ms, in_order_until_ms, lag_ms
from consumers.evaluator.record_order import Records
from schemas.undecodable import UndecodableRecord

LabelValues = tuple[str, ...]


class NotCoPartitionedError(Exception):
    """The group gave us a partition number of some inputs only: calls would be torn apart, so the process must end."""


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


class _Told(NamedTuple):
    """The latest answers of the broker about an input, on the steady clock.

    Attributes:
        stamp: What the client shows as the time of the latest one, on the wall clock.
        earlier_ms: When the one before it had come: what the latest says was true until then at least.
        latest_ms: When the latest had come, or before that; None if nobody knows.
    """

    stamp: int | None
    earlier_ms: int | None
    latest_ms: int | None


_NOT_TOLD = _Told(None, None, None)


class _Empty(NamedTuple):
    """Of an input nothing was outstanding from `position` on, at a moment of the steady clock."""

    position: int
    at_ms: int


class Assignment:
    """The partitions that are ours. A rebalance takes some away and adds others; the rest keep their state.

    Attributes:
        gaps: Offsets that were not handed over.
        held: By number.
        paused: Inputs that are not read on, because they are far ahead of another of their number.
    """

    def __init__(
        self, topics: Iterable[str], log_ends: Mapping[TopicPartition, LogEnd | None], clock: BrokerClock
    ) -> None:
        """Starts with none.

        Args:
            topics: The inputs, by their names on this cluster.
            log_ends: As `LogEnds.ends`; read each time.
            clock: What time it is at the broker.
        """
        self.held: dict[int, Held] = {}
        self.paused: set[TopicPartition] = set()
        self._topics = tuple(topics)
        self.gaps = InputGaps()
        self._log_ends = log_ends
        self._clock = clock
        self._since_ms = clock.now_ms()
        self._progress: dict[TopicPartition, InputProgress] = {}
        self._caught_up_at_ms: dict[TopicPartition, int] = {}
        self._told: dict[TopicPartition, _Told] = {}
        self._empty: dict[TopicPartition, _Empty] = {}
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
        self.gaps.forget_positions()
        self._clock.forget()
        self._told.clear()
        self._empty.clear()
        self._know_anew()
        self._committed.clear()
        return gone

    def _know_anew(self) -> None:
        """Forgets how far the inputs are known: the broker times of that do not hold any more."""
        self._since_ms = self._clock.now_ms()
        self._progress.clear()
        self._caught_up_at_ms.clear()

    def polled(self, polled: Mapping[int, Sequence[Records]]) -> None:
        """These are about to be folded: how far the inputs are known depends on them, and what time it is.

        Args:
            polled: Records of one poll, by number; each run is of one topic, in order.

        Raises:
            InputMadeAnewError: An input hands over other records under offsets that were read already.
        """
        for number, runs in polled.items():
            partition = self.held[number].partition
            for run in runs:
                first, last = run[0], run[-1]
                tp = TopicPartition(first.topic, number)
                begins_at = first.first_offset if isinstance(first, UndecodableRecord) else first.offset
                self.gaps.handed_over(tp, partition.next_offsets[first.topic], begins_at, last.offset)
                empty = self._empty.get(tp)
                # The times of what cannot be decoded prove nothing.
                is_dated = not isinstance(first, UndecodableRecord) and not isinstance(last, UndecodableRecord)
                if empty is not None and is_dated and first.offset >= empty.position:
                    is_of_broker = first.timestamp_type == LOG_APPEND_TIME
                    self._clock.weigh(tp, empty.at_ms, first.timestamp, last.timestamp, is_of_broker=is_of_broker)
            partition.polled(runs)
        if self._clock.correct():
            self._know_anew()

    async def look(self, consumer: AIOKafkaConsumer) -> None:
        """Learns how far each input is read, from what the client knows: it never waits for the broker."""
        assigned = consumer.assignment()  # in the middle of a rebalance it may be the next one
        clock = self._clock
        was_stepped = clock.was_stepped()
        now_ms = clock.now_ms()
        for number, held in self.active.items():
            positions: dict[str, int] = {}
            for topic in self._topics:
                tp = TopicPartition(topic, number)
                end = self._end(consumer, tp, was_stepped=was_stepped) if tp in assigned else None
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
                    told_at_ms=None if end.told_at_ms is None else clock.broker_ms(end.told_at_ms),
                    newest_told_at_ms=None if end.newest_told_at_ms is None else clock.broker_ms(end.newest_told_at_ms),
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
                self._note_empty(tp, position, end, consumer.highwater(tp))
            held.read_to(positions)

    def _note_empty(self, tp: TopicPartition, position: int, end: End, visible_end: int | None) -> None:
        is_hidden = visible_end is not None and visible_end > end.offset  # by a transaction: older than it will seem
        if end.told_at_ms is None or position < end.offset or is_hidden:
            self._empty.pop(tp, None)
        else:
            self._empty[tp] = _Empty(position, end.told_at_ms)

    def _end(self, consumer: AIOKafkaConsumer, tp: TopicPartition, *, was_stepped: bool) -> End | None:
        """Where an input ends, as it is known at the moment; None as long as the client has no answer about it.

        Args:
            consumer: The client.
            tp: The input.
            was_stepped: Whether somebody has set the wall clock since the last look, by which the client stamps answers.
        """
        visible_end = consumer.highwater(tp)
        if visible_end is None:
            return None
        stamp = consumer.last_poll_timestamp(tp)
        told = self._told.get(tp, _NOT_TOLD)
        if stamp is not None and stamp != told.stamp:
            # When it came is not known if the clock was set about then; it was after the one before it, at any rate.
            came_ms = told.latest_ms if was_stepped else self._clock.steady_ms_of(stamp)
            told = self._told[tp] = _Told(stamp, told.latest_ms, came_ms)
        stable_end = consumer.last_stable_offset(tp)
        # What stands after an open transaction cannot be read: for us it is not written yet.
        readable_end = visible_end if stable_end is None or stable_end < 0 else stable_end
        # An answer may lie unread for as long as we are frozen, and says how things were when it was asked for: after
        # the one before it had come.
        end = End(readable_end, told.earlier_ms, told.latest_ms)
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
        known_ms = broker_time_ms(known) if len(known) == len(inputs) else None
        if known_ms is None or self._clock.is_trusted():
            return known_ms
        return min(known_ms, max(self.newest_records_ms().values(), default=0))

    def _until_ms(self, number: int) -> int | None:
        inputs = [self._progress.get(tp) for tp in self.inputs_of([number])]
        return in_order_until_ms(inputs, self._since_ms, self._clock.now_ms())

    @property
    def waiting_records(self) -> int:
        """Records handed over that wait for another input of their number."""
        return sum(held.partition.merge.waiting_records for held in self.held.values())

    def to_commit(self, *, hands_over: bool = False) -> dict[TopicPartition, OffsetAndMetadata]:
        """Where a successor must start to read each input, with its note; `hands_over` as for `Held.to_commit`."""
        now_ms = self._clock.steady_ms()
        active = self.active.values()
        return {tp: at for held in active for tp, at in held.to_commit(now_ms, hands_over=hands_over).items()}

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
        now_ms = self._clock.now_ms()
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
