"""From when to when each turn of a call lasts, so that what has a time has a turn."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from math import inf

from consumers.engine.turns.heard.heard_turn import HeardTurns


class TurnWindows:
    """A turn lasts from its user's first sound to the next turn's, the earliest one from ever. Times in epoch seconds."""

    def __init__(self) -> None:
        self._begins_s: dict[int, float] = {}
        self._order: list[tuple[float, int]] = []

    def update(self, heard: HeardTurns, touched: Iterable[int]) -> set[int]:
        """These turns may have changed; returns those whose window is another now, the neighbours included."""
        moved: set[int] = set()
        # Where a turn of transcripts begins hangs on the speech before it.
        for turn in {turn for first in touched for turn in (first, first + 1)}:
            there = heard.turn(turn)
            begin_s = None if there is None else there.begin_s
            if begin_s != self._begins_s.get(turn):
                self._move(turn, begin_s, moved)
        return moved

    def window(self, turn: int) -> tuple[float, float]:
        """From when to before when; both the same for a turn without any sound."""
        begin_s = self._begins_s.get(turn)
        if begin_s is None:
            return inf, inf
        place = bisect_left(self._order, (begin_s, turn))
        end_s = self._order[place + 1][0] if place + 1 < len(self._order) else inf
        return begin_s if place else -inf, end_s

    def turn_at(self, at_s: float) -> int | None:
        """The turn of that moment; None while no turn has begun."""
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
