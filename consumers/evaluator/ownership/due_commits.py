"""Holds the offsets of each partition until the records that follow from them are written; then they may be committed."""

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
    """Offsets that wait for writers, by partition number: a partition that is written waits for no other."""

    def __init__(self) -> None:
        """Starts with none."""
        self._due: dict[int, _Due] = {}

    def note(self, offsets: Offsets, active: Mapping[int, OwnedPartition]) -> None:
        """These may be committed when all that is decided by now is written. What still waits stays as it was noted.

        Args:
            offsets: As `Assignment.to_commit`, of this moment.
            active: The partitions they are of.
        """
        by_number: defaultdict[int, Offsets] = defaultdict(dict)
        for tp, at in offsets.items():
            by_number[tp.partition][tp] = at
        for number, each in by_number.items():
            if number not in self._due:
                outbox = active[number].partition.outbox
                self._due[number] = _Due(each, outbox, outbox.put_so_far)

    async def until_written(self, seconds: float) -> None:
        """Waits until all that was noted is written, at most so long."""
        waiting = [asyncio.ensure_future(due.outbox.until_written(due.put)) for due in self._due.values()]
        if waiting:
            _, late = await asyncio.wait(waiting, timeout=seconds)
            for each in late:
                each.cancel()

    def take_written(self) -> Offsets:
        """The offsets of those partitions that are written, once."""
        written = [number for number, due in self._due.items() if due.outbox.has_written(due.put)]
        return {tp: at for number in written for tp, at in self._due.pop(number).offsets.items()}

    def clear(self) -> None:
        """Forgets all: partitions come and go, and each is noted anew."""
        self._due.clear()
