"""Which partitions are read on while what others decided waits to be written. Pure: numbers in, numbers out."""

from collections.abc import Collection, Mapping


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
    return {
        number
        for number, records in waiting.items()
        if (is_full and records > share) or (number in before and records > share / 2)
    }
