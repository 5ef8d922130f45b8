"""Which partitions are read on while what others decided waits to be written."""

import asyncio
from collections.abc import Collection, Mapping
from typing import Final

from consumers.evaluator.writing.outbox import Outbox

PATIENCE_SECONDS: Final = 0.5
"""How long reading waits for a writer before it stops the writer's partition: some transactions. The client forgets what it has
fetched of a partition that stops, so to stop at once, with a backlog, costs more than to wait."""


async def until_there_is_room(outboxes: Mapping[int, Outbox], most: int, before: Collection[int]) -> None:
    """Waits a moment for the writers of partitions that would have to stop now; for none that has stopped already.

    Args:
        outboxes: What waits to be written, by partition number.
        most: How many records may wait, of all partitions.
        before: Partitions that are not read on so far.
    """
    waiting = {number: outbox.records for number, outbox in outboxes.items()}
    full = without_room(waiting, most, ()) - set(before)
    writing = [asyncio.ensure_future(outboxes[number].until_written()) for number in full]
    if writing:
        _, late = await asyncio.wait(writing, timeout=PATIENCE_SECONDS)
        for each in late:
            each.cancel()


def without_room(waiting: Mapping[int, int], most: int, before: Collection[int]) -> set[int]:
    """The partitions that must not be read on for now, so that memory stays bounded and each waits for its own writer only.

    As long as all partitions together have room, every one is read. Beyond that the room is shared evenly: who has more
    than an even share waiting is not read on until half of it is written. So all of them together hold at most twice
    `most`, and what comes of one poll.

    Args:
        waiting: Records decided and not written, by partition number.
        most: How many of them there may be of all partitions before anything is held back.
        before: Those that were not read on so far.
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
