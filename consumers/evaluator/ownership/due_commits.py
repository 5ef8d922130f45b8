"""Keeps the offsets of each partition until the scores that follow from them are written. Then they may be committed."""

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from aiokafka import TopicPartition
from aiokafka.structs import OffsetAndMetadata

from consumers.evaluator.partition.owned_partition import OwnedPartition
from consumers.evaluator.writing.outbox import Outbox

Offsets = dict[TopicPartition, OffsetAndMetadata]


class _Due(NamedTuple):
    offsets: Offsets
    outbox: Outbox
    put: int


class DueCommits:
    """Offsets that wait for writers, by partition number. No partition waits for the writer of another."""

    def __init__(self) -> None:
        """Starts without offsets."""
        self._due: dict[int, _Due] = {}

    def note(self, offsets: Offsets, active: Mapping[int, OwnedPartition]) -> None:
        """Notes offsets to commit once all records decided by now are written. Partitions that still wait keep earlier offsets.

        Args:
            offsets: `Assignment.to_commit` of this moment.
            active: The partitions of these offsets.
        """
        by_number: defaultdict[int, Offsets] = defaultdict(dict)
        for tp, at in offsets.items():
            by_number[tp.partition][tp] = at
        for number, each in by_number.items():
            if number not in self._due:
                outbox = active[number].partition.outbox
                self._due[number] = _Due(each, outbox, outbox.put_so_far)

    async def until_written(self, seconds: float) -> None:
        """Waits until the records of all noted offsets are written, at most for the given time."""
        waiting = [asyncio.ensure_future(due.outbox.until_written(due.put)) for due in self._due.values()]
        if waiting:
            _, late = await asyncio.wait(waiting, timeout=seconds)
            for each in late:
                each.cancel()

    def take_written(self) -> Offsets:
        """Returns the offsets of the partitions that are written, and removes them."""
        written = [number for number, due in self._due.items() if due.outbox.has_written(due.put)]
        return {tp: at for number in written for tp, at in self._due.pop(number).offsets.items()}

    def clear(self) -> None:
        """Drops all offsets, because partitions come and go in a rebalance."""
        self._due.clear()
