"""How far each partition of `judge.requests` is answered: questions are answered in any order, offsets committed in one."""

from collections.abc import Mapping

from aiokafka import TopicPartition


class OpenOffsets:
    """The questions read and not yet answered, and the position after them, by partition."""

    def __init__(self) -> None:
        """No partition is ours."""
        self._open: dict[TopicPartition, dict[int, None]] = {}  # ascending, since they are read in order
        self._next: dict[TopicPartition, int] = {}

    def begin_partition(self, partition: TopicPartition, start: int) -> None:
        """A partition is ours, read from `start`; what was open in it is read again."""
        self._open[partition] = {}
        self._next[partition] = start

    def keep_only(self, partitions: set[TopicPartition]) -> None:
        """The others are not ours any more."""
        for partition in self._next.keys() - partitions:
            del self._open[partition], self._next[partition]

    def read(self, partition: TopicPartition, offset: int) -> None:
        """A question was read and waits for its answer."""
        self._open[partition][offset] = None
        self._next[partition] = offset + 1

    def answered(self, partition: TopicPartition, offset: int) -> None:
        """Its answer is written, or it needs none; of a partition that is not ours that is no matter."""
        self._open.get(partition, {}).pop(offset, None)

    def is_ours(self, partition: TopicPartition) -> bool:
        """Whether questions of the partition are answered here."""
        return partition in self._next

    def to_commit(self) -> Mapping[TopicPartition, int]:
        """By partition, the first offset that a successor must read."""
        return {partition: next(iter(self._open[partition]), position) for partition, position in self._next.items()}
