"""Chooses the call that closes when too many are open: one with few events if there is one, otherwise the quietest."""

import heapq
from collections.abc import Mapping
from typing import Final

from consumers.engine.call.call import Call

FEWEST_EVENTS: Final = 3
"""A call with fewer events goes first: an id that somebody made up has one, and a real call has more within a second."""
_SPARE: Final = 64
"""Places of calls that have closed that are kept although they are many compared with the open ones."""

_Place = tuple[bool, int, str]


class Eviction:
    """The open calls in the order in which they would go, as it was when somebody last looked.

    A call's place only moves back while it is open: it gets events, and later ones. So the first place that is still right is
    the first of all, and looking for it costs no more than the events that made the others wrong.
    """

    def __init__(self) -> None:
        """No call is open."""
        self._places: list[_Place] = []

    def add(self, call: Call, calls: Mapping[str, Call]) -> None:
        """A call has opened. `calls` are all that are open, this one included."""
        if len(self._places) > 2 * len(calls) + _SPARE:
            self._places = [_place(each) for each in calls.values()]
            heapq.heapify(self._places)
        else:
            heapq.heappush(self._places, _place(call))

    def next(self, calls: Mapping[str, Call]) -> Call | None:
        """The call that goes, out of those that are open; None when none may."""
        places = self._places
        while places:
            *_, conversation_id = first = places[0]
            call = calls.get(conversation_id)
            if call is None or call.is_closing or not call.may_be_evicted:
                heapq.heappop(places)
            elif (place := _place(call)) != first:
                heapq.heapreplace(places, place)
            else:
                heapq.heappop(places)
                return call
        return None


def _place(call: Call) -> _Place:
    return call.events >= FEWEST_EVENTS, call.last_broker_ms, call.conversation_id
