"""Takes snapshots of partitions that go on, one after the other, so that a kill costs no replay of whole calls."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final
from weakref import WeakKeyDictionary

from consumers.evaluator.partition.owned_partition import OwnedPartition
from consumers.evaluator.snapshots.handing_over import SnapshotWriting
from schemas.units import to_seconds

SMALLEST_PAUSE_SECONDS: Final = 0.05
"""Least time between two snapshots, however many partitions there are."""


class SnapshotsBetweenStops:
    """Takes a snapshot of each partition once in an interval, evenly spread over it."""

    def __init__(self, writing: SnapshotWriting | None, interval_ms: int) -> None:
        """Stores its settings.

        Args:
            writing: Writes snapshots; None without a key.
            interval_ms: Time between two snapshots of a partition; 0 for none between stops.
        """
        self._writing = writing
        self._seconds = to_seconds(interval_ms)
        self._taken: WeakKeyDictionary[OwnedPartition, tuple[float, Mapping[str, int]]] = WeakKeyDictionary()

    async def take_for_ever(self, active: Callable[[], Mapping[int, OwnedPartition]]) -> bool:
        """Takes one after the other until it is cancelled. A partition that has read nothing since its last one is passed over.

        Args:
            active: Returns the active partitions by number.
        """
        writing = self._writing
        if writing is None or not self._seconds:
            await asyncio.Event().wait()
            return False
        while True:
            await asyncio.sleep(max(SMALLEST_PAUSE_SECONDS, self._seconds / max(1, len(active()))))
            owned = self._due(active().values())
            if owned is not None:
                self._taken[owned] = time.monotonic(), dict(owned.partition.next_offsets)
                owned.snapshot = await writing.write_now(owned) or owned.snapshot

    def _due(self, active: Iterable[OwnedPartition]) -> OwnedPartition | None:
        """The partition whose last snapshot is the oldest."""
        due = [
            each for each in active
            if each.may_be_snapshotted and self._taken.get(each, (0.0, {}))[1] != each.partition.next_offsets
        ]  # fmt: skip
        return min(due, key=lambda each: self._taken.get(each, (0.0, {}))[0], default=None)
