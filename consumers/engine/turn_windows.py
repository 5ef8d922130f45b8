"""From when to when each turn of a call lasts, so that what has a time has a turn."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from math import inf

from consumers.engine.speaking import SpeakingMachine, SpeakingTurn
from consumers.engine.turn_machine import TurnMachine
from consumers.engine.turn_state import TurnState


class TurnWindows:
    """A turn lasts from its user's first sound to the next turn's, the earliest one from ever. Times in epoch seconds."""

    def __init__(self) -> None:
        self._begins_s: dict[int, float] = {}
        self._order: list[tuple[float, int]] = []

    def update(self, machine: TurnMachine | SpeakingMachine, touched: Iterable[int]) -> set[int]:
        """These turns may have changed; returns those whose window is another now, the neighbours included."""
        moved: set[int] = set()
        # Where a turn of transcripts begins hangs on the speech before it.
        for turn in {turn for first in touched for turn in (first, first + 1)}:
            begin_s = _begin_s(machine, turn)
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


def _begin_s(machine: TurnMachine | SpeakingMachine, turn: int) -> float | None:
    state: TurnState | SpeakingTurn | None = machine.turns.get(turn)
    if state is None:
        return None
    if isinstance(state, TurnState):
        starts = state.user_starts or state.assistant_starts
        return starts[0] if starts else None
    starts = state.vad_starts or state.release_starts
    if not starts and state.transcripts:
        # A transcript comes when the user has spoken, and its latency began before it: at the earliest behind the bot's last
        # words of the turn before.
        before = machine.turns.get(turn - 1)
        said = (before.bot_starts or before.bot_texts) if isinstance(before, SpeakingTurn) else ()
        starts = said[-1:] or state.transcripts
    return starts[0] if starts else min(state.times_s, default=None)
