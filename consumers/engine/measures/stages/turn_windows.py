"""The window of each turn of a call, to find the turn of a time."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from math import inf

from consumers.engine.turns.heard.heard_turn import HeardTurns


class TurnWindows:
    """A turn's window reaches from its user's first sound to the next turn's; the first turn has no earlier end.
    Epoch seconds.
    """

    __slots__ = (
        "_begins_s",
        "_order",
    )

    def __init__(self) -> None:
        self._begins_s: dict[int, float] = {}
        self._order: list[tuple[float, int]] = []

    def update(self, heard: HeardTurns, touched: Iterable[int]) -> set[int]:
        """Updates the windows of turns that may have changed; returns the turns with a new window, neighbours included."""
        moved: set[int] = set()
        # The start of a turn of transcripts depends on the speech before it.
        for turn in {turn for first in touched for turn in (first, first + 1)}:
            there = heard.turn(turn)
            begin_s = None if there is None else there.begin_s
            if begin_s != self._begins_s.get(turn):
                self._move(turn, begin_s, moved)
        return moved

    def window(self, turn: int) -> tuple[float, float]:
        """Start and end of the window, end excluded; equal for a turn without sound."""
        begin_s = self._begins_s.get(turn)
        if begin_s is None:
            return inf, inf
        place = bisect_left(self._order, (begin_s, turn))
        end_s = self._order[place + 1][0] if place + 1 < len(self._order) else inf
        return begin_s if place else -inf, end_s

    def turn_at(self, at_s: float) -> int | None:
        """The turn at that time; None before the first turn."""
        if not self._order:
            return None
        place = bisect_right(self._order, at_s, key=lambda begun: begun[0])
        return self._order[max(0, place - 1)][1]

    def _move(self, turn: int, begin_s: float | None, moved: set[int]) -> None:
        order = self._order
        moved.add(turn)
        old_s = self._begins_s.pop(turn, None)
        if old_s is not None:
            place = bisect_left(order, (old_s, turn))
            del order[place]
            moved.update(each for _, each in order[max(0, place - 1) : place + 1])
        if begin_s is not None:
            self._begins_s[turn] = begin_s
            place = bisect_left(order, (begin_s, turn))
            moved.update(each for _, each in order[max(0, place - 1) : place + 1])
            order.insert(place, (begin_s, turn))
