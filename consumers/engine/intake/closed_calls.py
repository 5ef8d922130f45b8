"""Remembers closed calls, so that a late record of one opens no second call of its name."""

from collections import OrderedDict


class ClosedCalls:
    """The ids of the calls that closed last."""

    def __init__(self, most: int) -> None:
        """Starts without closed calls.

        Args:
            most: Closed calls that are remembered.
        """
        self._most = most
        self._ids: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._ids)

    def __contains__(self, conversation_id: str) -> bool:
        return conversation_id in self._ids

    def close(self, conversation_id: str) -> None:
        """Notes that a call has closed."""
        self._ids.pop(conversation_id, None)
        self._ids[conversation_id] = None
        if len(self._ids) > self._most:
            self._ids.popitem(last=False)
