"""The partitions that are ours between two rebalances, and how far each of their inputs is read."""

import time
from collections.abc import Iterable, Mapping

from aiokafka import AIOKafkaConsumer, TopicPartition

from consumers.evaluator.partition import Partition
from consumers.evaluator.partition_clock import InputProgress, broker_time_ms, lag_ms

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
            "process, so the evaluator ends. Check that every member of the group runs the same version and that all "
            "inputs have the same number of partitions."
        )
    return numbers


class Assignment:
    """The partitions of one assignment. It dies as a whole at the next rebalance.

    Attributes:
        partitions: By number.
    """

    def __init__(self, partitions: Mapping[int, Partition], topics: Iterable[str]) -> None:
        """Starts with nothing known of the inputs.

        Args:
            partitions: By number.
            topics: The inputs, by their names on this cluster.
        """
        self.partitions = partitions
        self._topics = tuple(topics)
        self._since_ms = wall_clock_ms()
        self._progress: dict[TopicPartition, InputProgress] = {}
        self._caught_up_at_ms: dict[TopicPartition, int] = {}

    async def look(self, consumer: AIOKafkaConsumer) -> None:
        """Learns how far each input is read, from what the client knows: it never waits for the broker."""
        for number, partition in self.partitions.items():
            for topic in self._topics:
                tp = TopicPartition(topic, number)
                end = consumer.highwater(tp)
                if end is None:  # no answer yet, so perhaps no position either, and asking for that would wait
                    continue
                stable_end = consumer.last_stable_offset(tp)
                progress = InputProgress(
                    position=await consumer.position(tp),
                    # What stands after an open transaction cannot be read: for us it is not written yet.
                    end=end if stable_end is None or stable_end < 0 else stable_end,
                    told_at_ms=consumer.last_poll_timestamp(tp),
                    last_record_ms=partition.last_record_ms.get(topic),
                    since_ms=self._since_ms,
                )
                self._progress[tp] = progress
                if progress.is_at_end and progress.told_at_ms is not None:
                    self._caught_up_at_ms[tp] = progress.told_at_ms

    def advance(self) -> None:
        """Lets broker time pass in each partition, as far as all of its inputs are known."""
        for number, partition in self.partitions.items():
            inputs = [self._progress.get(TopicPartition(topic, number)) for topic in self._topics]
            known = [progress for progress in inputs if progress is not None]
            now_ms = broker_time_ms(known) if len(known) == len(inputs) else None
            if now_ms is not None:
                partition.advance(now_ms)

    def offsets_to_commit(self) -> dict[TopicPartition, int]:
        """Where a successor must start to read, for each input that was read at all."""
        return {
            TopicPartition(topic, number): offset
            for number, partition in self.partitions.items()
            for topic, offset in partition.offsets_to_commit().items()
        }

    def drop(self) -> None:
        """Forgets what was not written in time: whoever is still writing it finds nothing more to write."""
        for partition in self.partitions.values():
            partition.outbox.clear()
            partition.refused.clear()

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
        for partition in self.partitions.values():
            for topic, time_ms in partition.last_record_ms.items():
                newest_ms[topic] = max(time_ms, newest_ms.get(topic, time_ms))
        return newest_ms
