"""Decides which partition closes calls next, and which pause because too many of their records wait to be written."""

import asyncio
from collections.abc import Collection, Mapping
from typing import Final

from consumers.evaluator.partition.owned_partition import OwnedPartition
from consumers.evaluator.writing.outbox import Outbox

MAX_CLOSING_CALLS: Final = 200
"""Calls of a partition that may be over and not closed: beyond it, they are closed before more is read."""
PATIENCE_SECONDS: Final = 0.5
"""How long reading waits for a writer before it pauses the writer's partition: some transactions. The client drops the fetched
records of a paused partition, so with a backlog, an immediate pause costs more than the wait."""


class ClosingTurns:
    """Whose calls close next: each partition in its turn, so that none waits for all the calls of another.

    Attributes:
        has_more: Whether there was more to close after the last step. Then the next one should come soon.
    """

    def __init__(self, max_unwritten_records: int) -> None:
        self.has_more = False
        self._last = -1
        self._max_unwritten_records = max_unwritten_records

    def close_some(self, active: Mapping[int, OwnedPartition]) -> None:
        """Takes one step of one partition, which closes as many calls as fit into it; more steps where too many calls wait."""
        ready = [
            number
            for number, owned in active.items()
            if owned.partition.closing_calls and owned.partition.outbox.records <= self._max_unwritten_records
        ]
        if ready:
            self._last = min((each for each in ready if each > self._last), default=min(ready))
            active[self._last].partition.close_some()
        for number in ready:
            while active[number].partition.closing_calls > MAX_CLOSING_CALLS:
                active[number].partition.close_some()
        self.has_more = len(ready) > 1 or any(active[number].partition.closing_calls for number in ready)


async def until_there_is_room(outboxes: Mapping[int, Outbox], most: int, before: Collection[int]) -> None:
    """Waits a moment for the writers of partitions that would have to pause now, but not for those that are paused already.

    Args:
        outboxes: Unwritten records by partition number.
        most: Most unwritten records of all partitions.
        before: Partitions that are paused already.
    """
    waiting = {number: outbox.records for number, outbox in outboxes.items()}
    full = without_room(waiting, most, ()) - set(before)
    writing = [asyncio.ensure_future(outboxes[number].until_written()) for number in full]
    if writing:
        _, late = await asyncio.wait(writing, timeout=PATIENCE_SECONDS)
        for each in late:
            each.cancel()


def without_room(waiting: Mapping[int, int], most: int, before: Collection[int]) -> set[int]:
    """Returns the partitions to pause, so that memory stays bounded and each partition waits for its own writer only.

    As long as the unwritten records of all partitions are within `most`, none pauses. Beyond it, a partition with more than an
    even share pauses until half of that share is left. So all partitions together keep at most twice `most`, and the
    records of one poll.

    Args:
        waiting: Number of unwritten records by partition number.
        most: Most unwritten records of all partitions before any pauses.
        before: Partitions that are paused already.
    """
    share = most / max(1, len(waiting))
    is_full = sum(waiting.values()) > most
    if not is_full and not before:
        return set()
    return {
        number
        for number, records in waiting.items()
        if (is_full and records > share) or (number in before and records > share / 2)
    }
