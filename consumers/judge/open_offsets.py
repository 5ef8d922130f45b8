"""Tracks the open questions of each partition of `judge.requests`. Questions are answered in any order, offsets committed in one."""

from collections.abc import Mapping

from aiokafka import TopicPartition


class OpenOffsets:
    """Open questions and the position after them, by partition."""

    def __init__(self) -> None:
        """Starts without partitions."""
        self._open: dict[TopicPartition, dict[int, None]] = {}  # ascending, since they are read in order
        self._next: dict[TopicPartition, int] = {}

    def begin_partition(self, partition: TopicPartition, start: int) -> None:
        """Adds a partition that is read from `start`. Its open questions are read again."""
        self._open[partition] = {}
        self._next[partition] = start

    def keep_only(self, partitions: set[TopicPartition]) -> None:
        """Drops the other partitions."""
        for partition in self._next.keys() - partitions:
            del self._open[partition], self._next[partition]

    def read(self, partition: TopicPartition, offset: int) -> None:
        """Adds an open question."""
        self._open[partition][offset] = None
        self._next[partition] = offset + 1

    def answered(self, partition: TopicPartition, offset: int) -> None:
        """Removes a question whose answer is written or not needed. Ignores other partitions."""
        self._open.get(partition, {}).pop(offset, None)

    def is_ours(self, partition: TopicPartition) -> bool:
        """Whether questions of the partition are answered here."""
        return partition in self._next

    def to_commit(self) -> Mapping[TopicPartition, int]:
        """Returns by partition the first offset that a successor must read."""
        return {partition: next(iter(self._open[partition]), position) for partition, position in self._next.items()}
