"""Writes the state of a partition as bytes and reads it back. Reading creates only objects of the engine and the contract."""

import pickle
from typing import Any, Final, Protocol

PROTOCOL: Final = 5

_OUR_PACKAGES: Final = ("consumers.engine.", "schemas.")
_OTHERS: Final = frozenset({
    ("array", "_array_reconstructor"), ("array", "array"), ("builtins", "frozenset"), ("builtins", "set"),
    ("builtins", "type"), ("collections", "Counter"), ("collections", "OrderedDict"), ("collections", "defaultdict"),
    ("collections", "deque"), ("re", "_compile"),
})  # fmt: skip
"""Types in the state from outside our packages. Add new ones here; the snapshot tests fail without."""


class SnapshotError(ValueError):
    """A snapshot cannot be used: rebuild the partition by replaying its inputs instead."""


class TakesBytes(Protocol):
    """A sink of bytes, written piece by piece."""

    def write(self, piece: Any, /) -> object:
        """Writes some bytes, or a view that is valid during this call only; an exception ends the writing."""


class GivesBytes(Protocol):
    """A source of bytes."""

    def read(self, size: int, /) -> bytes:
        """Reads `size` bytes; fewer at the end."""

    def readline(self) -> bytes:
        """Reads to the next line break."""


class InMemory:
    """A sink of bytes that can be read back."""

    def __init__(self, given: bytes = b"") -> None:
        """Starts with the given bytes."""
        self._pieces = [given]
        self._at = 0

    @property
    def collected(self) -> bytes:
        """All bytes written so far."""
        return b"".join(self._pieces)

    def write(self, piece: Any) -> None:
        """Appends a piece."""
        self._pieces.append(bytes(piece))

    def read(self, size: int) -> bytes:
        """Reads `size` bytes; fewer at the end."""
        return self._until(self._at + size)

    def readline(self) -> bytes:
        """Reads to the next line break."""
        return self._until((self._whole().find(b"\n", self._at) + 1) or len(self._whole()))

    def _until(self, end: int) -> bytes:
        found = self._whole()[self._at : end]
        self._at += len(found)
        return found

    def _whole(self) -> bytes:
        if len(self._pieces) > 1:
            self._pieces = [self.collected]
        return self._pieces[0]


def write_state(version: int, state: object, into: TakesBytes) -> None:
    """Writes the state. It must not change meanwhile."""
    pickle.Pickler(into, protocol=PROTOCOL).dump((version, state))


def read_state(version: int, source: GivesBytes) -> Any:
    """The state that `write_state` wrote.

    The bytes must come from a trusted place: the checks here are a second line of defence.

    Raises:
        SnapshotError: The bytes are of another version, or no such state.
    """
    try:
        found = _Unpickler(source).load()
    except SnapshotError:
        raise
    except Exception as error:  # damaged bytes can reach any constructor and raise anything
        raise SnapshotError(
            f"the snapshot cannot be read ({type(error).__name__}): replay the inputs instead"
        ) from error
    if not isinstance(found, tuple) or len(found) != 2:
        raise SnapshotError("these bytes are no snapshot: replay the inputs instead")
    if found[0] != version:
        raise SnapshotError(f"snapshot version {found[0]}, expected {version}: replay the inputs instead")
    return found[1]


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _OTHERS:
            return super().find_class(module, name)
        if "." not in name and f"{module}.".startswith(_OUR_PACKAGES):
            found = super().find_class(module, name)
            if f"{getattr(found, '__module__', '')}.".startswith(_OUR_PACKAGES):  # defined there, not merely imported
                return found
        raise SnapshotError(f"a snapshot has no {module}.{name}: replay the inputs instead")
