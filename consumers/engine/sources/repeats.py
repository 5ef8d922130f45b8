"""Recognises repeated records, by what each source says of the identity of its events."""

import hashlib
import re
from array import array
from collections import defaultdict
from typing import Final

from consumers.engine.admission import Arrival, origin_of
from schemas.closed_sets import InputSource
from schemas.events.elevenlabs import AgentEvent

# By producer and event id, by the simulator's sequence and bytes, by an ElevenLabs event id with
# its words, or by the place at its input where a record stood first. Never by content alone:
# callers do say the same thing twice. Ids, bytes and places are remembered as 8 bytes each in flat
# arrays.

MAX_PRODUCERS = 16
"""Producers of one call whose event ids are remembered; three write a call, and a bot that moves
hosts adds one.
"""

MAX_ORIGINS: Final = 65_536
"""Places at an input that are remembered of one call: more than a call has events by default."""
NUMBERED: Final = frozenset({InputSource.ELEVENLABS})
"""Inputs whose events can be recognised without an envelope."""

_PLACE: Final = re.compile(r"\[(\d{1,9})\]@(\d{1,18})$")
# the agent's own ids of its events, whichever producer sent them; no producer has this name
_AGENT = "\0agent"


class SeenEvents:
    """The newest `bound` events of one producer in one call.

    An event with a sequence above all earlier ones is new without a search; others are searched
    for.
    """

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._digests = array("Q")
        self._highest: int | None = None

    def is_repeat(self, identity: bytes, sequence: int | None) -> bool:
        """Whether this event was seen before; from now on it was.

        Args:
            identity: Equal for repeats of one event: its id, or its sequence and bytes.
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
            del self._digests[: self._bound // 2]  # half at once: one deletion for many appends
        return False


class Repeats:
    """The events that the producers of one call have sent.

    Attributes:
        origins: By source, where each record of the call stands at its input. Its owner adds each
            that it takes.
    """

    def __init__(self, bound: int) -> None:
        self.origins: defaultdict[InputSource, array[int]] = defaultdict(lambda: array("Q"))
        self._bound = bound
        self._seen: dict[str, SeenEvents] = {}

    def is_put_back_again(self, arrival: Arrival) -> bool:
        """Whether the record is a copy of one that the call has: of one put back before, or of one
        that was refused where it stands and is taken there now. Otherwise it stands from now on
        where its first stood.
        """
        first = None if arrival.envelope is None else arrival.envelope.replay_of
        place = None if first is None else _PLACE.search(first)
        if place is None:
            return False
        arrival.origin = origin_of(int(place[1]), int(place[2]))
        return arrival.origin in self.origins[arrival.source]  # a copy is in the topic of its first

    def is_repeat(self, arrival: Arrival) -> bool:
        """Whether the record was seen before: by the id of its envelope, or for the simulator by
        sequence and bytes.
        """
        envelope = arrival.envelope
        sequence: int | None
        is_elevenlabs = arrival.source is InputSource.ELEVENLABS
        if (
            is_elevenlabs
            and isinstance(arrival.event, AgentEvent)
            and self._is_repeated_by_agent(arrival)
        ):
            return True
        if envelope is not None and envelope.id is not None:
            producer, identity, sequence = (
                envelope.source or "",
                envelope.id.encode(),
                envelope.sequence,
            )
        else:
            sequence = getattr(arrival.event, "sequence", None)
            # Without a declared field of the model, `sequence` is any value of the producer.
            if not is_elevenlabs or not isinstance(sequence, int):
                return False
            producer, identity = "", b"%d:%s" % (sequence, arrival.value)
        return self._has_seen(producer, identity, sequence)

    def _is_repeated_by_agent(self, arrival: Arrival) -> bool:
        """A monitor that reconnects is sent the last events again, and the bridge gives them new
        ids and times.
        """
        identity = arrival.event.identity
        return identity is not None and self._has_seen(_AGENT, identity, None)

    def _has_seen(self, producer: str, identity: bytes, sequence: int | None) -> bool:
        seen = self._seen.get(producer)
        if seen is None:
            if len(self._seen) >= MAX_PRODUCERS:
                return False
            seen = self._seen[producer] = SeenEvents(self._bound)
        return seen.is_repeat(identity, sequence)
