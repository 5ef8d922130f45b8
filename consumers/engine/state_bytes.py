"""The state of a partition as bytes, and back. Reading makes objects of the engine and the contract, and of nothing else."""

import pickle
from typing import Any, Final, Protocol

PROTOCOL: Final = 5

_OUR_PACKAGES: Final = ("consumers.engine.", "schemas.")
_OTHERS: Final = frozenset({
    ("array", "_array_reconstructor"), ("array", "array"), ("builtins", "frozenset"), ("builtins", "set"),
    ("builtins", "type"), ("collections", "Counter"), ("collections", "OrderedDict"), ("collections", "defaultdict"),
    ("collections", "deque"), ("re", "_compile"),
})  # fmt: skip
"""What the state has beside objects of our own packages. A new kind of value must be added here; tests of snapshots fail before."""


class SnapshotError(ValueError):
    """A snapshot cannot be used: rebuild the partition by replaying its inputs instead."""


class TakesBytes(Protocol):
    """Where the bytes go, piece by piece."""

    def write(self, piece: Any, /) -> object:
        """Takes some bytes, or a view of them that is good for this call only; what it raises ends the writing."""


class GivesBytes(Protocol):
    """Where the bytes come from."""

    def read(self, size: int, /) -> bytes:
        """So many bytes; fewer at the end."""

    def readline(self) -> bytes:
        """Up to the next line break."""


class InMemory:
    """Takes bytes and gives them again."""

    def __init__(self, given: bytes = b"") -> None:
        """Has what is given."""
        self._pieces = [given]
        self._at = 0

    @property
    def collected(self) -> bytes:
        """All there is."""
        return b"".join(self._pieces)

    def write(self, piece: Any) -> None:
        """Takes a piece."""
        self._pieces.append(bytes(piece))

    def read(self, size: int) -> bytes:
        """So many bytes; fewer at the end."""
        return self._until(self._at + size)

    def readline(self) -> bytes:
        """Up to the next line break."""
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
    """The state that `write_state` has written.

    The bytes must be known to be ours: what is refused here is a second door, not the first.

    Raises:
        SnapshotError: They are of another version, or not such a state.
    """
    try:
        found = _Unpickler(source).load()
    except SnapshotError:
        raise
    except Exception as error:  # damaged bytes raise whatever the constructor that they reach raises
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
            if f"{getattr(found, '__module__', '')}.".startswith(_OUR_PACKAGES):  # and not what it has imported
                return found
        raise SnapshotError(f"a snapshot has no {module}.{name}: replay the inputs instead")
