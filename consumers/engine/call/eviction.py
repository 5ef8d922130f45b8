"""Chooses the call that closes when too many are open: one with few events if there is one, otherwise the quietest."""

import heapq
from collections.abc import Mapping
from typing import Final

from consumers.engine.call.call import Call

FEWEST_EVENTS: Final = 3
"""A call with fewer events goes first: an invented id has one event, a real call has more within a second."""
_SPARE: Final = 64
"""Places of closed calls that may remain, beside twice the number of open calls."""

_Place = tuple[bool, int, str]


class Eviction:
    """The open calls in the order of eviction, as of the last look.

    An open call only moves back in the order: it gets more and later events. So the first place that is still correct is the
    first of all, and finding it costs no more than the events that outdated the places before it.
    """

    def __init__(self) -> None:
        """Starts without open calls."""
        self._places: list[_Place] = []

    def add(self, call: Call, calls: Mapping[str, Call]) -> None:
        """Adds a call that has opened. `calls` are all open calls, this one included."""
        if len(self._places) > 2 * len(calls) + _SPARE:
            self._places = [_place(each) for each in calls.values()]
            heapq.heapify(self._places)
        else:
            heapq.heappush(self._places, _place(call))

    def next(self, calls: Mapping[str, Call]) -> Call | None:
        """The call to close next, out of the open ones; None when none may be closed."""
        places = self._places
        while places:
            *_, conversation_id = first = places[0]
            call = calls.get(conversation_id)
            if call is None or call.is_closing:
                heapq.heappop(places)
            elif (place := _place(call)) != first:
                heapq.heapreplace(places, place)
            else:
                heapq.heappop(places)
                return call
        return None


def _place(call: Call) -> _Place:
    return call.events >= FEWEST_EVENTS, call.last_broker_ms, call.conversation_id
