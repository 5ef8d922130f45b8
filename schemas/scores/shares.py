"""Keys that several owners share room with, and which of them makes room: no owner pushes out what
another one has. Pure.
"""

from collections import OrderedDict


class Shares:
    """Keys with their owners, each owner's in the order in which they were used last. Every method
    takes constant time.

    When there is no room, the owner with the most keys loses the one that was not used for longest.
    So one that comes with ever new keys pushes out its own, however many they are.
    """

    def __init__(self) -> None:
        self._owners: dict[str, str] = {}
        self._keys: dict[str, OrderedDict[str, None]] = {}
        self._by_size: dict[int, OrderedDict[str, None]] = {}
        self._largest = 0

    def __len__(self) -> int:
        return len(self._owners)

    def __contains__(self, key: str) -> bool:
        return key in self._owners

    def use(self, key: str, owner: str) -> None:
        """Notes that a key is used now. It may be new, or have got another owner."""
        before = self._owners.get(key)
        if before == owner:
            self._keys[owner].move_to_end(key)
            return
        if before is not None:
            self.discard(key)
        self._owners[key] = owner
        keys = self._keys.setdefault(owner, OrderedDict())
        keys[key] = None
        self._resize(owner, len(keys) - 1, len(keys))

    def discard(self, key: str) -> None:
        """Removes a key; harmless if it is not there."""
        owner = self._owners.pop(key, None)
        if owner is None:
            return
        keys = self._keys[owner]
        del keys[key]
        if not keys:
            del self._keys[owner]
        self._resize(owner, len(keys) + 1, len(keys))

    def make_room(self) -> str:
        """Removes and returns the key that was not used for longest, of the owner with the most
        keys.

        Raises:
            KeyError: There is no key.
        """
        owner = next(iter(self._by_size.get(self._largest, ())), None)
        if owner is None:
            raise KeyError("there is no key")
        key = next(iter(self._keys[owner]))
        self.discard(key)
        return key

    def _resize(self, owner: str, before: int, after: int) -> None:
        """Notes how many keys an owner has: one more or one fewer than before."""
        if before:
            del self._by_size[before][owner]
            if not self._by_size[before]:
                del self._by_size[before]
        if after:
            self._by_size.setdefault(after, OrderedDict())[owner] = None
        if after > self._largest or self._largest not in self._by_size:
            self._largest = after
