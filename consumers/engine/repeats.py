"""Recognising repeated records: by producer and event id, or by the simulator's sequence with the same bytes.

Never by content alone: callers do say the same thing twice. Ids and bytes are remembered as 8-byte hashes in flat arrays.
"""

import hashlib
from array import array

from consumers.engine.intake import Arrival
from schemas.codec import InputSource

MAX_PRODUCERS = 16
"""Producers of one call whose event ids are remembered; three write a call, and a bot that moves hosts adds one."""


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


class Repeats:
    """What the producers of one call have sent."""

    __slots__ = ("_bound", "_seen")

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._seen: dict[str, SeenEvents] = {}

    def is_repeat(self, arrival: Arrival) -> bool:
        """Whether the record was there before: by its envelope's id, of the simulator by sequence and bytes."""
        envelope = arrival.envelope
        sequence: int | None
        if envelope is not None and envelope.id is not None:
            producer, identity, sequence = envelope.source or "", envelope.id.encode(), envelope.sequence
        else:
            sequence = getattr(arrival.event, "sequence", None)
            # Where no model declares it, a field of that name holds whatever the producer put there.
            if arrival.source is not InputSource.ELEVENLABS or not isinstance(sequence, int):
                return False
            producer, identity = "", b"%d:%s" % (sequence, arrival.value)
        seen = self._seen.get(producer)
        if seen is None:
            if len(self._seen) >= MAX_PRODUCERS:
                return False
            seen = self._seen[producer] = SeenEvents(self._bound)
        return seen.is_repeat(identity, sequence)
