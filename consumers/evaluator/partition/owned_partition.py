"""One partition that this process owns: its state, its writer, and the offsets for a successor."""

import asyncio
from collections.abc import Mapping

from aiokafka import TopicPartition
from aiokafka.structs import OffsetAndMetadata

from consumers.evaluator.partition.partition import Partition
from consumers.evaluator.recovery.order_log import CommitNote
from consumers.evaluator.writing.partition_writer import PartitionWriter
from schemas.closed_sets import InputSource

Offsets = dict[TopicPartition, OffsetAndMetadata]


class OwnedPartition:
    """A partition from its takeover until it is given up.

    Attributes:
        partition: Its state.
        writer: Writes the records that follow from the state.
        writing: Task of the writer; None until it has begun.
        fenced_at: When another process was found to own it, in seconds of the monotonic clock; None as long as it is ours.
    """

    def __init__(
        self, partition: Partition, writer: PartitionWriter, source_by_topic: Mapping[str, InputSource]
    ) -> None:
        self.partition = partition
        self.writer = writer
        self.writing: asyncio.Task[None] | None = None
        self.fenced_at: float | None = None
        self._source_by_topic = source_by_topic
        self._due: tuple[Offsets, int] | None = None

    def due_offsets(self) -> Offsets:
        """Returns offsets to commit: those of an earlier moment whose decisions are all written by now.

        Call it again and again. A successor that starts at them, and at the place in `order` that their note names, has every
        record of every open call.
        """
        outbox = self.partition.outbox
        if self._due is None:
            self._due = self._offsets(), outbox.put_so_far
        offsets, put = self._due
        if not outbox.has_written(put):
            return {}
        self._due = None
        return offsets

    def _offsets(self) -> Offsets:
        partition = self.partition
        if not partition.is_active or partition.is_recovering:
            return {}
        watermarks = partition.offsets_to_commit()
        order = self.writer.starts.offset_for({self._source_by_topic[topic]: at for topic, at in watermarks.items()})
        return {
            TopicPartition(topic, partition.number): OffsetAndMetadata(
                offset, CommitNote(order, read=partition.next_offsets[topic]).text()
            )
            for topic, offset in watermarks.items()
        }
