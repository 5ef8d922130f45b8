"""Writes the state of partitions, so that a successor goes on from it instead of replaying them.

The state is that of one moment: nothing is folded while it is packed, and all scores that it decided are written before it is. Of a
partition that is given up these are all. Each snapshot is written in a transaction of its partition's producer, so an owner that
was fenced off writes none.
"""

import asyncio
import secrets
import time
from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

import structlog

from consumers.evaluator.partition.owned_partition import OwnedPartition
from consumers.evaluator.recall.commit_note import SnapshotPlace
from consumers.evaluator.recall.journal_piece import JournalPlace
from consumers.evaluator.snapshots.manifest import Basis, Manifest, digest_of, sealed
from consumers.evaluator.snapshots.packing import Packed, TooLargeError, TooLateError, packed
from consumers.evaluator.writing.outgoing import LeftOut, Outgoing
from consumers.evaluator.writing.partition_writer import FencedError, RejectedWriteError, WriteError
from consumers.runtime.registry import Instruments

SNAPSHOT_SECONDS: Final = 5.0
"""How long all partitions together may take. With the writes before it, it is well within the session timeout and the usual time
for a container to stop."""
ID_HEADER: Final = "callgauge-snapshot"
"""Name of the header in which each record of a snapshot carries its id."""

_LEFT_OUT: Final = LeftOut("snapshot", "A successor replays the open calls of the partition.")

log = structlog.get_logger()


class _Taken(NamedTuple):
    """A packed state, and its moment: as in `Manifest`, and `put`, the groups of records that were put into the outbox by then."""

    state: Packed
    positions: Mapping[str, int]
    scores_end: int
    journal: JournalPlace | None
    put: int


class SnapshotWriting:
    """Writes snapshots. Without a key there is None instead."""

    def __init__(self, topic: str, basis: Basis, key: bytes, instruments: Instruments) -> None:
        """Stores its settings.

        Args:
            topic: Name of the topic on this cluster.
            basis: Decides which evaluators can use the snapshots.
            key: Key of the seal.
            instruments: Where snapshots are counted.
        """
        self._topic = topic
        self._basis = basis
        self._key = key
        self._instruments = instruments
        self._one_at_a_time = asyncio.Lock()

    async def write_now(self, owned: OwnedPartition, seconds: float = SNAPSHOT_SECONDS) -> SnapshotPlace | None:
        """Writes a snapshot of an active partition that goes on. From then on its journal is written with its scores.

        Records that come meanwhile wait while the state is packed, and no longer.

        Args:
            owned: The partition.
            seconds: How long it may take.

        Returns:
            Its place; None if there is none.
        """
        began = time.monotonic()
        partition, outbox = owned.partition, owned.partition.outbox
        if partition.stops is not None or not owned.writer.is_transactional:
            return None
        try:
            async with asyncio.timeout(seconds):
                journal = outbox.journal
                if journal.has_ended:
                    journal = outbox.begin_journal(partition.next_offsets)
                    await outbox.until_written()  # the snapshot being written now has no piece of it
                taken = await self._taken(owned, began + seconds)
                await outbox.until_written(taken.put)
        except (TooLargeError, TooLateError) as error:
            self._leave_out(owned, "too_large" if isinstance(error, TooLargeError) else "too_late")
            return None
        except TimeoutError:
            self._leave_out(owned, "unwritten")
            return None
        if not partition.is_active or outbox.journal is not journal or journal.has_ended:
            return None
        writing = asyncio.create_task(self._write(owned, taken), name=f"snapshot-{partition.number}")
        await asyncio.wait([writing])  # and if we are cancelled, it goes on: a transaction is not left open
        place = self._place(owned, writing, "between_stops")
        self._instruments.inc("callgauge_snapshot_seconds_total", ("between_stops",), time.monotonic() - began)
        return place

    async def write(
        self, leaving: Collection[OwnedPartition], seconds: float = SNAPSHOT_SECONDS
    ) -> list[tuple[OwnedPartition, SnapshotPlace]]:
        """Writes a snapshot of each partition that fits into the time.

        Nothing may be folded, and no time may pass, until this returns, even if it is cancelled.

        Args:
            leaving: Active partitions.
            seconds: How long it may take.

        Returns:
            The partitions with a written snapshot, and its place.
        """
        began = time.monotonic()
        deadline = began + seconds
        writing: dict[asyncio.Task[SnapshotPlace], OwnedPartition] = {}
        for owned in leaving:
            partition = owned.partition
            if partition.stops is not None or not owned.writer.is_transactional:
                continue
            if partition.outbox.records:
                self._leave_out(owned, "unwritten")
                continue
            try:
                taken = await self._taken(owned, deadline)
            except TooLargeError:
                self._leave_out(owned, "too_large")
            except TooLateError:
                self._leave_out(owned, "too_late")
            else:
                # One is written while the next is packed.
                writing[asyncio.create_task(self._write(owned, taken), name=f"snapshot-{partition.number}")] = owned
        if not writing:
            return []
        done, late = await asyncio.wait(writing, timeout=max(0.0, deadline - time.monotonic()))
        for task in late:  # it goes on, and is of no use: nobody learns where it is
            task.add_done_callback(_forget)
            self._leave_out(writing[task], "too_late")
        written = [(writing[task], place) for task in done if (place := self._place(writing[task], task)) is not None]
        self._instruments.inc("callgauge_snapshot_seconds_total", ("written",), time.monotonic() - began)
        log.info(
            "snapshots_written",
            partitions=sorted(owned.partition.number for owned, _ in written),
            seconds=round(time.monotonic() - began, 2),
        )
        return written

    async def _taken(self, owned: OwnedPartition, deadline: float) -> _Taken:
        async with self._one_at_a_time:
            partition, outbox = owned.partition, owned.partition.outbox
            partition.count_events()  # a restored state has nothing to count
            positions, scores_end = dict(partition.next_offsets), owned.scores_end
            journal, put = outbox.journal.place, outbox.put_so_far
            partition.is_being_snapshotted = True
            packing = asyncio.ensure_future(asyncio.to_thread(packed, partition.write_snapshot, deadline))
            try:
                state = await asyncio.shield(packing)
            finally:
                if not packing.done():  # we are cancelled, and the thread still reads the state
                    await asyncio.wait([packing])
                partition.is_being_snapshotted = False
            return _Taken(state, positions, scores_end, journal, put)

    async def _write(self, owned: OwnedPartition, taken: _Taken) -> SnapshotPlace:
        partition, state, chunks = owned.partition, taken.state, taken.state.chunks
        manifest = Manifest(
            snapshot_id=secrets.token_hex(16),
            basis=self._basis,
            number=partition.number,
            positions=taken.positions,
            scores_end=taken.scores_end,
            journal=taken.journal,
            chunks=len(chunks),
            size_bytes=sum(map(len, chunks)),
            unpacked_bytes=state.unpacked_bytes,
            chunks_digest=digest_of(chunks),
        )
        key = f"{self._basis.group}/{partition.number}".encode()
        headers = [(ID_HEADER, manifest.snapshot_id.encode())]
        values = (sealed(manifest, self._key), *chunks)
        written = await owned.writer.write_apart(
            [Outgoing(self._topic, key, value, None, headers, None, _LEFT_OUT) for value in values]
        )
        self._instruments.inc("callgauge_snapshot_bytes_total", ("written",), manifest.size_bytes)
        return _place_of(written)

    def _place(
        self, owned: OwnedPartition, task: "asyncio.Task[SnapshotPlace]", outcome: str = "written"
    ) -> SnapshotPlace | None:
        try:
            place = task.result()
        except (RejectedWriteError, FencedError, WriteError) as error:  # of the last two the next write says more
            self._leave_out(owned, "not_taken", seen=str(error))
            return None
        self._instruments.inc("callgauge_snapshots_written_total", (outcome,))
        return place

    def _leave_out(self, owned: OwnedPartition, why: str, seen: str = "") -> None:
        self._instruments.inc("callgauge_snapshots_written_total", (why,))
        log.warning(
            "snapshot_left_out",
            partition=owned.partition.number,
            reason=why,
            seen=seen or _SEEN[why],
            what_happens_now="Who takes the partition over goes on from an older state, or replays its open calls.",
            what_to_do=_WHAT_TO_DO[why],
        )


_SEEN: Final[Mapping[str, str]] = {
    "unwritten": "Scores of the partition were not all written in time.",
    "too_large": "The state is larger than a snapshot may be.",
    "too_late": f"Snapshots of all partitions took longer than {SNAPSHOT_SECONDS:.0f} s.",
}
_WHAT_TO_DO: Final[Mapping[str, str]] = {
    "unwritten": "Nothing, unless it is so at each stop: then look at the broker, which takes scores slowly.",
    "too_large": "Use more partitions.",
    "too_late": "Use more evaluators, each with fewer open calls.",
    "not_taken": "Check the topic `snapshots` with `callgauge topics check`, and the right to write it.",
}


def _place_of(written: list[Any]) -> SnapshotPlace:
    offsets = [each.offset for each in written]
    return SnapshotPlace(written[0].partition, min(offsets), max(offsets))


def _forget(task: "asyncio.Task[SnapshotPlace]") -> None:
    if not task.cancelled():
        task.exception()
