"""The partitions that this process owns, and how far their inputs are read; which of them closes calls or pauses."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from aiokafka import AIOKafkaConsumer, TopicPartition

from consumers.evaluator.lost_records import InputGaps
from consumers.evaluator.partition import Offsets, Partition
from consumers.evaluator.reading import End, InputProgress, Records, broker_time_ms, in_order_until_ms, lag_ms
from consumers.evaluator.settings import EvaluatorSettings
from consumers.runtime.kafka.broker_clock import LOG_APPEND_TIME, BrokerClock
from consumers.runtime.kafka.log_ends import LogEnd
from consumers.runtime.process import OperatorError, end_tasks
from consumers.runtime.registry import Instruments
from schemas.closed_sets import InputSource
from schemas.quarantine import UndecodableRecord
from schemas.units import to_seconds

LabelValues = tuple[str, ...]


class NotCoPartitionedError(OperatorError):
    """The group assigned a partition number of some inputs only. Calls would be split, so the process must end."""


def assigned_numbers(assigned: Iterable[TopicPartition], topics: Iterable[str]) -> list[int]:
    """Returns the partition numbers of an assignment, ascending.

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


class _Answers(NamedTuple):
    """Times of the broker's latest answers about an input, on the steady clock.

    Attributes:
        stamp: The client's timestamp of the latest answer, on the wall clock.
        earlier_ms: When the answer before it had arrived. The latest answer was true at least until then.
        latest_ms: When the latest answer had arrived, or earlier; None if it is not known.
    """

    stamp: int | None
    earlier_ms: int | None
    latest_ms: int | None


_NO_ANSWERS = _Answers(None, None, None)


class _Empty(NamedTuple):
    """Nothing of an input was outstanding behind `position`, at a moment of the steady clock."""

    position: int
    at_ms: int


class _Input:
    """State of one input of a partition number.

    Attributes:
        tp: Topic and number.
        answers: Times of the broker's latest answers about it.
        empty: When nothing of it was outstanding; None while something is.
        progress: Progress at the last look; None before the first, and after the estimate of broker time was corrected.
        caught_up_at_ms: When its end was last reached, in our estimate of broker time; None if never.
    """

    __slots__ = ("answers", "caught_up_at_ms", "empty", "progress", "tp")

    def __init__(self, tp: TopicPartition) -> None:
        self.tp = tp
        self.answers = _NO_ANSWERS
        self.empty: _Empty | None = None
        self.progress: InputProgress | None = None
        self.caught_up_at_ms: int | None = None


class Assignment:
    """The partitions that this process owns. A rebalance removes some and adds others; the rest keep their state.

    Attributes:
        gaps: Gaps between the offsets that were read.
        owned: The partitions by number.
        paused: Inputs whose reading is paused: far ahead of another input of their number, or too much is unwritten.
    """

    def __init__(
        self, topics: Iterable[str], log_ends: Mapping[TopicPartition, LogEnd | None], clock: BrokerClock
    ) -> None:
        self.owned: dict[int, Partition] = {}
        self.paused: set[TopicPartition] = set()
        self._topics = tuple(topics)
        self.gaps = InputGaps()
        self._log_ends = log_ends
        self._clock = clock
        self._since_ms = clock.now_ms()
        self._inputs: dict[int, dict[str, _Input]] = {}
        self._committed: Offsets = {}

    @property
    def active(self) -> dict[int, Partition]:
        """The partitions whose records are folded, by number."""
        return {number: each for number, each in self.owned.items() if each.is_active}

    def of_ours(self, numbers: Collection[int]) -> list[int]:
        """Returns the numbers whose state is in this process."""
        return [number for number in numbers if number in self.owned and self.owned[number].is_active]

    @property
    def waiting(self) -> list[int]:
        """Numbers of the owned partitions that are not folded yet."""
        return [number for number, each in self.owned.items() if not each.is_active]

    @property
    def has_more_to_replay(self) -> bool:
        """Whether a partition can go on to replay without a new record."""
        return any(each.has_more_to_replay for each in self.owned.values())

    def count_events(self) -> None:
        """Moves the counts that the engine keeps of its events to the metrics."""
        for each in self.owned.values():
            each.count_events()

    @property
    def unwritten_records(self) -> int:
        """Number of unwritten records of all partitions."""
        return sum(each.outbox.records for each in self.owned.values())

    @property
    def waiting_since(self) -> float | None:
        """Since when scores of an active partition wait and none of it is written, as `Outbox.waiting_since`; the oldest of all."""
        since = [each.outbox.waiting_since for each in self.active.values()]
        return min((each for each in since if each is not None), default=None)

    async def until_written(self, seconds: float) -> None:
        """Waits until everything that is decided by now is written, but no longer than this."""
        writing = [asyncio.ensure_future(each.outbox.until_written()) for each in self.active.values()]
        if writing:
            try:
                await asyncio.wait(writing, timeout=seconds)
            finally:
                await end_tasks(writing)

    def inputs_of(self, numbers: Iterable[int]) -> list[TopicPartition]:
        """Returns the input partitions of these numbers."""
        return [TopicPartition(topic, number) for number in numbers for topic in self._topics]

    def keep_only(self, numbers: Collection[int]) -> list[Partition]:
        """Drops the other partitions, and the reading progress of all inputs.

        Returns:
            The dropped partitions.
        """
        gone = [self.owned.pop(number) for number in list(self.owned) if number not in numbers]
        for each in gone:
            each.count_events()  # also what it folded since the last scrape: a successor counts it as replayed
            each.drop()
        for each in self.owned.values():
            each.read_again()
        self.paused.clear()
        self.gaps.forget_positions()
        self._clock.forget()
        self._inputs.clear()
        self._since_ms = self._clock.now_ms()
        self._committed.clear()
        return gone

    def _inputs_of(self, number: int) -> dict[str, _Input]:
        """By topic."""
        inputs = self._inputs.get(number)
        if inputs is None:
            inputs = {topic: _Input(TopicPartition(topic, number)) for topic in self._topics}
            self._inputs[number] = inputs
        return inputs

    def polled(self, polled: Mapping[int, Sequence[Records]]) -> None:
        """Notes records before they are folded: gaps, the times of the inputs, and proofs of the broker's time.

        Args:
            polled: Records of one poll by number, in runs of one topic each.

        Raises:
            InputMadeAnewError: An offset of an input came twice.
        """
        for number, runs in polled.items():
            partition = self.owned[number]
            inputs = self._inputs_of(number)
            for run in runs:
                first, last = run[0], run[-1]
                tp, empty = inputs[first.topic].tp, inputs[first.topic].empty
                begins_at = first.first_offset if isinstance(first, UndecodableRecord) else first.offset
                self.gaps.handed_over(tp, partition.next_offsets[first.topic], begins_at, last.offset)
                # Times of undecodable records prove nothing.
                is_dated = not isinstance(first, UndecodableRecord) and not isinstance(last, UndecodableRecord)
                if empty is not None and is_dated and first.offset >= empty.position:
                    is_of_broker = first.timestamp_type == LOG_APPEND_TIME
                    self._clock.weigh(tp, empty.at_ms, first.timestamp, last.timestamp, is_of_broker=is_of_broker)
            partition.polled(runs)
        if self._clock.correct():  # the broker times of how far the inputs are known do not hold any more
            self._since_ms = self._clock.now_ms()
            for inputs in self._inputs.values():
                for each in inputs.values():
                    each.progress = each.caught_up_at_ms = None

    async def look(self, consumer: AIOKafkaConsumer, numbers: Iterable[int] | None = None) -> None:
        """Updates the progress of inputs from the state of the client, without waiting for the broker.

        Args:
            consumer: The client.
            numbers: Active partitions to update; None for all. An input that is updated rarely is known up to an earlier time.
        """
        assigned = consumer.assignment()  # in the middle of a rebalance it may be the next one
        clock = self._clock
        was_stepped = clock.was_stepped()
        now_ms = clock.now_ms()
        came_ms: dict[int, int] = {}  # by stamp: one answer is about many inputs
        # After a step of the wall clock all are updated: later, the time of answers from before it could not be computed.
        for number in self.active if numbers is None or was_stepped else numbers:
            partition = self.owned[number]
            is_recovering = partition.is_recovering
            for topic, each in self._inputs_of(number).items():
                tp = each.tp
                # Without an answer there may be no position yet, and asking for it would wait.
                visible_end = consumer.highwater(tp) if tp in assigned else None
                if visible_end is None:
                    continue
                stamp = consumer.last_poll_timestamp(tp)
                if stamp is not None and stamp != each.answers.stamp:
                    if stamp not in came_ms:
                        came_ms[stamp] = clock.steady_ms_of(stamp)
                    # If the wall clock, with which the client stamps answers, was set about then, the time of this answer is
                    # not known. It came after the one before it.
                    latest_ms = each.answers.latest_ms
                    each.answers = _Answers(stamp, latest_ms, latest_ms if was_stepped else came_ms[stamp])
                end = self._end(each, visible_end, consumer.last_stable_offset(tp))
                position = await consumer.position(tp)
                if is_recovering:
                    partition.read_to(topic, position)
                is_paused = tp in self.paused
                before = each.progress
                is_stuck = (
                    before is not None and position == before.position and position < end.offset and not is_paused
                )
                each.progress = progress = InputProgress(
                    position=position,
                    end=end.offset,
                    valid_until_ms=None if end.valid_until_ms is None else clock.broker_ms(end.valid_until_ms),
                    answered_at_ms=None if end.answered_at_ms is None else clock.broker_ms(end.answered_at_ms),
                    is_paused=is_paused,
                    last_record_ms=partition.last_record_ms.get(topic),
                    since_ms=self._since_ms,
                    moved_at_ms=before.moved_at_ms if before is not None and is_stuck else now_ms,
                )
                if progress.is_at_end:
                    each.caught_up_at_ms = progress.valid_until_ms
                is_hidden = visible_end > end.offset  # by a transaction: older than it will seem
                is_empty = position >= end.offset and not is_hidden
                each.empty = (
                    _Empty(position, end.valid_until_ms) if is_empty and end.valid_until_ms is not None else None
                )

    def _end(self, each: _Input, visible_end: int, stable_end: int | None) -> End:
        """Returns the end of an input as it is known now."""
        # Records behind an open transaction cannot be read, so they do not count as written yet.
        readable_end = visible_end if stable_end is None or stable_end < 0 else stable_end
        # An answer may wait unread while this process is frozen. It is true for the moment of its request, which was sent after
        # the previous answer had arrived.
        end = End(readable_end, each.answers.earlier_ms, each.answers.latest_ms)
        return end.or_of_log(self._log_ends[each.tp], visible_end) if each.tp in self._log_ends else end

    def fold(self, number: int, runs: Sequence[Records]) -> None:
        """Folds one poll's records of an active partition and the waiting ones, then lets time pass, as far as all its inputs
        are known.
        """
        partition = self.owned[number]
        was_recovering = partition.is_recovering
        known_ms = self.known_ms(number)
        if runs or partition.merge.waiting_records or partition.is_recovering:
            partition.fold(runs, known_ms, self._until_ms(number))
        if known_ms is not None and not was_recovering:  # then records behind what is recovered come before the time
            partition.advance(known_ms)

    def advance(self) -> None:
        """Lets broker time pass in each partition, as far as all of its inputs are known."""
        for number in self.active:
            self.fold(number, ())

    def pause_leading_inputs(self, consumer: AIOKafkaConsumer, full: Collection[int] = ()) -> None:
        """Pauses inputs that are far ahead of another of their number, and resumes them when the other has caught up.

        Args:
            consumer: The client.
            full: Numbers to pause as a whole, because too many of their records are unwritten.
        """
        for number, partition in self.owned.items():
            has_waiting = partition.is_recovering or partition.merge.waiting_records
            if not partition.is_active or not (self.paused or number in full or has_waiting):
                continue
            for topic, each in self._inputs_of(number).items():
                is_paused = each.tp in self.paused
                is_full = number in full or partition.is_full(topic, is_paused=is_paused)
                if is_full and not is_paused:
                    consumer.pause(each.tp)
                    self.paused.add(each.tp)
                elif is_paused and not is_full:
                    consumer.resume(each.tp)
                    self.paused.remove(each.tp)

    def known_ms(self, number: int) -> int | None:
        """Returns the broker time up to which all inputs of a partition are known; None if one is not known at all."""
        inputs = [each.progress for each in self._inputs_of(number).values()]
        known = [progress for progress in inputs if progress is not None]
        known_ms = broker_time_ms(known) if len(known) == len(inputs) else None
        if known_ms is None or self._clock.is_trusted():
            return known_ms
        return min(known_ms, max(self.newest_records_ms().values(), default=0))

    def _until_ms(self, number: int) -> int | None:
        inputs = [each.progress for each in self._inputs_of(number).values()]
        return in_order_until_ms(inputs, self._since_ms, self._clock.now_ms())

    @property
    def waiting_records(self) -> int:
        """Records handed over that wait for another input of their number."""
        return sum(owned.merge.waiting_records for owned in self.owned.values())

    def to_commit(self) -> Offsets:
        """Offsets at which successors must start, of the partitions whose decisions up to them are written."""
        return {tp: at for owned in self.active.values() for tp, at in owned.due_offsets().items()}

    def not_committed(self, offsets: Offsets) -> Offsets:
        """The offsets that differ from the committed ones."""
        return {tp: at for tp, at in offsets.items() if self._committed.get(tp) != at}

    def committed(self, offsets: Offsets) -> None:
        """These are committed now."""
        self._committed.update(offsets)

    def watermark_lag_messages(self, group_id: str) -> dict[LabelValues, float]:
        """Records between the oldest open call's first and the last one folded, by group, topic and partition."""
        return {
            (group_id, topic, str(number)): float(owned.next_offsets[topic] - offset)
            for number, owned in self.active.items()
            for topic, offset in owned.offsets_to_commit().items()
        }

    def lag_messages(self, group_id: str) -> dict[LabelValues, float]:
        """Outstanding records, by group, topic and partition."""
        return {
            (group_id, each.tp.topic, str(each.tp.partition)): each.progress.lag_messages
            for inputs in self._inputs.values()
            for each in inputs.values()
            if each.progress is not None
        }

    def lag_seconds(self, group_id: str) -> dict[LabelValues, float]:
        """Age of the oldest outstanding record, by group, topic and partition."""
        now_ms = self._clock.now_ms()
        return {
            (group_id, each.tp.topic, str(each.tp.partition)): to_seconds(
                lag_ms(each.progress, each.caught_up_at_ms, now_ms)
            )
            for inputs in self._inputs.values()
            for each in inputs.values()
            if each.progress is not None
        }

    def newest_records_ms(self) -> dict[str, int]:
        """Broker timestamp of the newest record of each topic that was read at all."""
        newest_ms: dict[str, int] = {}
        for owned in self.owned.values():
            for topic, time_ms in owned.last_record_ms.items():
                newest_ms[topic] = max(time_ms, newest_ms.get(topic, time_ms))
        return newest_ms


# Decides which partition closes calls next.

MAX_CLOSING_CALLS: Final = 200
"""Calls of a partition that may be over and not closed: beyond it, its inputs pause until half of them are closed."""


class ClosingTurns:
    """Whose calls close next: each partition in its turn, so that none waits for all the calls of another.

    Attributes:
        has_more: Whether there was more to close after the last step. Then the next one should come soon.
        behind: Partitions of which too many calls are over and not closed: they read no more until half of these are closed.
    """

    def __init__(self, max_unwritten_records: int) -> None:
        self.has_more = False
        self.behind: set[int] = set()
        self._last = -1
        self._max_unwritten_records = max_unwritten_records

    def close_some(self, active: Mapping[int, Partition]) -> None:
        """Takes one step of one partition, which closes as many calls as fit into it.

        Never more than one, because heartbeats wait for it: thousands of calls can be over at once.
        """
        ready = [
            number
            for number, owned in active.items()
            if owned.closing_calls and owned.outbox.records <= self._max_unwritten_records
        ]
        if ready:
            self._last = min((each for each in ready if each > self._last), default=min(ready))
            active[self._last].close_some()
        self.behind = {
            number
            for number in ready
            if active[number].closing_calls > MAX_CLOSING_CALLS / (2 if number in self.behind else 1)
        }
        self.has_more = len(ready) > 1 or any(active[number].closing_calls for number in ready)


# The gauges of an evaluator on `/metrics`, read at each scrape.


def read_gauges(
    instruments: Instruments,
    assignment: Assignment,
    settings: EvaluatorSettings,
    sources: Mapping[str, InputSource],
) -> None:
    """Registers every gauge of the evaluator. `sources` has the input of each topic, by its name on this cluster."""
    group_id = settings.group_id
    readers: dict[str, Callable[[], dict[tuple[str, ...], float]]] = {
        "callgauge_calls_open": lambda: {(): float(sum(len(owned.open_calls) for owned in assignment.owned.values()))},
        "callgauge_consumer_lag_messages": lambda: assignment.lag_messages(group_id),
        "callgauge_consumer_lag_seconds": lambda: assignment.lag_seconds(group_id),
        "callgauge_watermark_lag_messages": lambda: assignment.watermark_lag_messages(group_id),
        "callgauge_input_records_waiting": lambda: {(): float(assignment.waiting_records)},
        "callgauge_scores_unwritten": lambda: {(): float(assignment.unwritten_records)},
        "callgauge_source_last_event_timestamp_seconds": lambda: {
            (sources[topic].value,): to_seconds(time_ms) for topic, time_ms in assignment.newest_records_ms().items()
        },
    }
    for name, reader in readers.items():
        instruments.read_gauge(name, reader)
    instruments.before_scrape(assignment.count_events)
