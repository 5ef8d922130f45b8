"""One merged timeline of a call: sorted elements, the machine's state after the last, and checkpoints to return to.

An element in order costs one step of the machine. An insertion before the end, a removal or a changed text returns to the
nearest checkpoint at or before it and replays the elements after it.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterator, MutableSequence
from typing import Protocol

CHECKPOINT_EVERY = 8
"""Elements between checkpoints: a slightly late event replays about four of them and itself."""

MOST_BITS_OF_A_KEY = 62
"""Difference of two keys that fits into eight bytes: three days, of order keys. Keys further apart are kept as whole numbers."""

RECENT_CHECKPOINTS = 3
"""Checkpoints kept at that spacing; older ones thin out by powers of two, so their number grows with the logarithm."""


class Machine(Protocol):
    """A pure state machine whose state can be frozen and restored."""

    def apply(self, kind: int, payload: object, time_ms: int) -> None:
        """Applies one element."""

    def freeze(self) -> object:
        """The state as a value that later steps do not change."""

    def thaw(self, frozen: object) -> None:
        """Restores a frozen state."""


class Replays:
    """Counts the elements of one call that were folded or read again because of late or changed events; a limit bounds it.

    Going back is cheap for a slightly late event and costs the whole call for a very late one, so a producer whose
    events run backwards could keep a partition busy with one call.
    """

    __slots__ = ("elements",)

    def __init__(self) -> None:
        self.elements = 0


class Timeline:
    """Elements ordered by key, and a machine that has applied all of them."""

    __slots__ = ("_checkpoints", "_first_key", "_keys", "_kinds", "_machine", "_payloads", "_replays", "_time_shift")

    def __init__(self, machine: Machine, time_shift: int, replays: Replays) -> None:
        self._machine = machine
        self._time_shift = time_shift
        self._replays = replays
        self._first_key = 0
        self._keys: MutableSequence[int] = array("q")  # differences to the first key: eight bytes each
        self._kinds = bytearray()
        self._payloads: list[object] = []
        self._checkpoints: list[tuple[int, object]] = [(0, machine.freeze())]

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[tuple[int, int, object]]:
        first = self._first_key
        return zip((first + key for key in self._keys), self._kinds, self._payloads, strict=True)

    @property
    def last_key(self) -> int | None:
        """Key of the last element; None while empty."""
        return self._first_key + self._keys[-1] if self._keys else None

    def insert(self, key: int, kind: int, payload: object) -> None:
        """Inserts an element at the place of its key."""
        keys = self._keys
        if not keys:
            self._first_key = key
        own = key - self._first_key
        if own.bit_length() > MOST_BITS_OF_A_KEY and isinstance(keys, array):
            keys = self._keys = list(keys)  # its times are days apart
        if not keys or own > keys[-1]:
            keys.append(own)
            self._kinds.append(kind)
            self._payloads.append(payload)
            self._machine.apply(kind, payload, key >> self._time_shift)
            if len(keys) % CHECKPOINT_EVERY == 0:
                self._keep_checkpoint(len(keys))
            return
        place = bisect_left(keys, own)
        keys.insert(place, own)
        self._kinds.insert(place, kind)
        self._payloads.insert(place, payload)
        self._replay(place)

    def payload(self, key: int) -> object:
        """The payload of the element with this key; None without one."""
        own, place = key - self._first_key, self._place(key)
        return self._payloads[place] if place < len(self._keys) and self._keys[place] == own else None

    def remove(self, key: int) -> None:
        """Removes the element with this key."""
        place = self._place(key)
        del self._keys[place], self._kinds[place], self._payloads[place]
        self._replay(place)

    def replace(self, key: int, payload: object) -> None:
        """Replaces the payload of the element with this key."""
        place = self._place(key)
        self._payloads[place] = payload
        self._replay(place)

    def reread(self, key: int) -> None:
        """Replays from the element with this key, whose payload changed in place in a way that rules read."""
        self._replay(self._place(key))

    def _place(self, key: int) -> int:
        return bisect_left(self._keys, key - self._first_key)

    def _replay(self, place: int) -> None:
        checkpoints = self._checkpoints
        while checkpoints[-1][0] > place:
            checkpoints.pop()
        start, state = checkpoints[-1]
        machine = self._machine
        machine.thaw(state)
        shift, first = self._time_shift, self._first_key
        for position in range(start, len(self._keys)):
            machine.apply(self._kinds[position], self._payloads[position], (first + self._keys[position]) >> shift)
            if (position + 1) % CHECKPOINT_EVERY == 0:
                self._keep_checkpoint(position + 1)
        self._replays.elements += len(self._keys) - start

    def _keep_checkpoint(self, position: int) -> None:
        recent = position - RECENT_CHECKPOINTS * CHECKPOINT_EVERY
        self._checkpoints = [
            checkpoint
            for checkpoint in self._checkpoints
            if checkpoint[0] >= recent or checkpoint[0] % (1 << ((position - checkpoint[0]).bit_length() - 1)) == 0
        ]
        self._checkpoints.append((position, self._machine.freeze()))
