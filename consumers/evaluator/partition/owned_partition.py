"""One partition that this process owns: its state, its writer, and the offsets and notes for a successor."""

import asyncio
from collections.abc import Mapping

from aiokafka import TopicPartition
from aiokafka.structs import OffsetAndMetadata

from consumers.evaluator.partition.partition import InputStart, Partition
from consumers.evaluator.partition.progress import Progress
from consumers.evaluator.recall.commit_note import CommitNote, SnapshotPlace
from consumers.evaluator.recall.ledger_marks import LedgerMarks, Mark
from consumers.evaluator.writing.partition_writer import PartitionWriter


class OwnedPartition:
    """A partition from its takeover until it is given up.

    Attributes:
        partition: Its state.
        writer: Writes the records that follow from the state.
        writing: Task of the writer; None until it has begun.
        snapshot: Place of the newest snapshot that was written while it went on; None without one.
        fenced_at: When another process was found to own it, in seconds of the monotonic clock; None as long as it is ours.
    """

    def __init__(self, partition: Partition, writer: PartitionWriter) -> None:
        """Starts before the takeover: nothing of the partition is known."""
        self.partition = partition
        self.writer = writer
        self.writing: asyncio.Task[None] | None = None
        self.snapshot: SnapshotPlace | None = None
        self.fenced_at: float | None = None
        self._marks: LedgerMarks | None = None
        self._ledger_end = 0
        self._input_ends: Mapping[str, int] = {}
        self._has_caught_up = False
        self._ledger_start = 0
        self._starts: Mapping[str, InputStart] = {}
        self._positions: Mapping[str, int] = {}
        self._progress = Progress({}, 0)

    @property
    def takeovers(self) -> int:
        """Owners since the partition last made progress, this one included; 0 once this one has made progress."""
        return self._progress.takeovers

    @property
    def may_be_snapshotted(self) -> bool:
        """Whether its state may serve a successor while it goes on: all is read that was there at the takeover, and it has got on."""
        return self._has_caught_up and not self.takeovers and self.partition.is_active

    @property
    def scores_end(self) -> int:
        """Offset after the last record of `scores` that this owner wrote or recalled."""
        return self._ledger_end if self.writer.scores_end is None else self.writer.scores_end

    @property
    def is_at_stops(self) -> bool:
        """Whether everything before `partition.stops` is folded; false if there are no stops."""
        partition = self.partition
        return partition.stops is not None and all(
            max(self._positions.get(topic, -1), partition.merge.first_offset(topic)) >= stop
            for topic, stop in partition.stops.items()
        )

    def began(
        self,
        starts: Mapping[str, InputStart],
        input_ends: Mapping[str, int],
        ledger_start: int,
        ledger_end: int,
        *,
        now_ms: int,
        overlap_ms: int,
        takeovers: int = 0,
        goes_on_at: Mapping[str, int] | None = None,
    ) -> None:
        """Starts folding, once the scores are recalled or the state is restored.

        Args:
            starts: By topic, the offset at which a replay begins.
            input_ends: By topic, the end when the former owner was fenced off. It had read no further.
            ledger_start: First recalled offset of `scores`.
            ledger_end: Offset of `scores` after the recalled records.
            now_ms: Time on the steady clock.
            overlap_ms: The overlap of the settings.
            takeovers: Owners since the partition last made progress, this one included; 0 if owners are not counted.
            goes_on_at: By topic, the offset at which the restored state goes on; None for a replay.
        """
        positions = {topic: start.offset for topic, start in starts.items()}
        self._marks = LedgerMarks(Mark(now_ms, positions, ledger_start), overlap_ms)
        self._ledger_end = ledger_end
        self._input_ends = input_ends
        self._ledger_start = ledger_start
        self._starts = starts
        self._progress = Progress(starts, takeovers)
        self.partition.start(starts, goes_on_at)
        self.partition.stops = self._progress.stops

    def read_to(self, positions: Mapping[str, int]) -> None:
        """Notes the positions of the client, by topic."""
        self._positions = positions
        if not self._has_caught_up:
            ends = self._input_ends
            self._has_caught_up = bool(ends) and all(positions.get(topic, -1) >= end for topic, end in ends.items())

    def as_found(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Returns the offsets and notes from before the takeover. An owner that ends because of the broker commits them, so that it
        does not count as an owner without progress.
        """
        takeovers = self.takeovers
        if not takeovers:
            return {}
        return {
            TopicPartition(topic, self.partition.number): OffsetAndMetadata(
                start.offset, CommitNote(self._ledger_start, start.seen_before, takeovers - 1).text()
            )
            for topic, start in self._starts.items()
        }

    def to_commit(
        self, now_ms: int, *, hands_over: bool = False, snapshot: SnapshotPlace | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Returns the offsets at which a successor must start, with its notes; nothing before `began`.

        Args:
            now_ms: Time on the steady clock.
            hands_over: Whether this owner gives the partition up in order. Then it does not count as an owner without progress.
            snapshot: Place of the snapshot of this moment; None for the newest that was written before.
        """
        if self._marks is None:
            return {}
        partition = self.partition
        positions = dict(partition.next_offsets)
        if self._has_caught_up:  # before, calls whose records come now may have been closed by our predecessor
            self._marks.note(Mark(now_ms, positions, self.scores_end))
        watermarks = partition.offsets_to_commit()
        scores = self._marks.start_for(watermarks)
        self._progress.note(now_ms, partition.time_ms, watermarks, positions, has_caught_up=self._has_caught_up)
        takeovers = max(0, self.takeovers - hands_over)
        place = snapshot or self.snapshot
        return {
            TopicPartition(topic, partition.number): OffsetAndMetadata(
                offset,
                CommitNote(scores, max(positions[topic], self._starts[topic].seen_before), takeovers, place).text(),
            )
            for topic, offset in watermarks.items()
        }
