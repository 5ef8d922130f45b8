"""Remembers closed calls, so that a repeated or late record of one is recognised and opens no second call of its name."""

from collections import OrderedDict
from collections.abc import Mapping

from schemas.closed_sets import InputSource

_Through = tuple[int, ...]
# later records are late; repeated ones have known offsets
_CLOSED_HERE: _Through = tuple(-1 for _ in InputSource)


class ClosedCalls:
    """Ids of closed calls: all that a replay can still meet, and of the others the newest.

    A replay may begin long before the newest calls closed: at the first record of the oldest open call or, in a group without
    offsets, at the first record of the log. It meets a closed call only if the call has records at or after the offset at which
    reading starts; the size of the inputs bounds their number. They are kept until the replay has passed the last of them. The
    others matter only for records that come after their end, and their number is bounded.
    """

    def __init__(self, most: int) -> None:
        """Starts without closed calls.

        Args:
            most: Closed calls remembered that no replay meets again.
        """
        self._most = most
        self._starts: Mapping[InputSource, int] | None = None
        self._awaited: dict[str, _Through] = {}
        self._awaited_until: _Through = _CLOSED_HERE
        self._past: OrderedDict[str, _Through] = OrderedDict()

    def __len__(self) -> int:
        return len(self._awaited) + len(self._past)

    def __contains__(self, conversation_id: str) -> bool:
        return conversation_id in self._awaited or conversation_id in self._past

    def reading_starts_at(self, offsets: Mapping[InputSource, int]) -> None:
        """Notes the first offset that will be read of each input. Without it, every recalled call may be met again."""
        self._starts = dict(offsets)

    def recall(self, conversation_id: str, through: Mapping[InputSource, int]) -> None:
        """Notes that an earlier evaluator closed this call after folding the inputs `through` these offsets."""
        last = tuple(through.get(source, -1) for source in InputSource)
        self._awaited.pop(conversation_id, None)
        self._past.pop(conversation_id, None)
        starts = self._starts
        if starts is None or any(offset >= starts.get(source, 0) for source, offset in through.items()):
            self._awaited[conversation_id] = last
            self._awaited_until = tuple(map(max, self._awaited_until, last))
        else:
            self._remember(conversation_id, last)

    def close(self, conversation_id: str, last_offsets: Mapping[InputSource, int]) -> None:
        """Notes that a call has closed here. `last_offsets` are the newest offsets read."""
        self._remember(conversation_id, _CLOSED_HERE)
        if self._awaited and all(
            last_offsets.get(source, -1) >= offset
            for source, offset in zip(InputSource, self._awaited_until, strict=True)
        ):
            recalled, self._awaited = self._awaited, {}
            newest, self._past = self._past, OrderedDict()
            for each, last in (*recalled.items(), *newest.items()):
                self._remember(each, last)

    def was_folded(self, conversation_id: str, source: InputSource, offset: int) -> bool | None:
        """Whether the closed call had folded this record; None when no such call has closed."""
        last = self._awaited.get(conversation_id) or self._past.get(conversation_id)
        return None if last is None else offset <= last[_PLACES[source]]

    def _remember(self, conversation_id: str, last: _Through) -> None:
        self._past[conversation_id] = last
        if len(self._past) > self._most:
            self._past.popitem(last=False)


_PLACES: Mapping[InputSource, int] = {source: place for place, source in enumerate(InputSource)}
