"""Recognising repeated records: by producer and event id, or by the simulator's sequence with the same bytes.

Never by content alone: callers do say the same thing twice. Ids and bytes are remembered as 8-byte hashes in flat arrays.
"""

import hashlib
from array import array


class SeenEvents:
    """What one producer sent in one call, newest `bound` events.

    An event whose sequence is above all earlier ones is new without a look; only others are searched for.
    """

    __slots__ = ("_bound", "_digests", "_highest")

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._digests = array("Q")
        self._highest: int | None = None

    def is_repeat(self, identity: bytes, sequence: int | None) -> bool:
        """Whether this event was seen before; if not, it is from now on.

        Args:
            identity: What makes it the same event: its id, or its sequence and bytes.
            sequence: Its number among the producer's events; None when it has none.
        """
        digest = int.from_bytes(hashlib.blake2b(identity, digest_size=8).digest(), "big")
        highest = self._highest
        is_ahead = sequence is not None and (highest is None or sequence > highest)
        if not is_ahead and digest in self._digests:
            return True
        if is_ahead:
            self._highest = sequence
        self._digests.append(digest)
        if len(self._digests) > self._bound:
            del self._digests[: self._bound // 2]  # in halves, so that it stays cheap
        return False
