"""Holds questions back until the words that they are about have been the same for a while.

Topics may arrive one after the other, and words late. Each change of words is another question, and each question costs.
"""

from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from consumers.engine.judging.rules import GoalRules

MAX_HELD_MS: Final = 5_000
"""Longest that a question about a turn is held back, in ms of broker time: half of the time within which scores are promised."""

About = TypeVar("About")


class SteadyWords:
    """The turns of one call whose words have changed lately.

    Attributes:
        ask_at_ms: Broker time from when held questions may be asked; None when no question is held.
    """

    __slots__ = ("_first_ms", "_for_ms", "_steady_at_ms", "ask_at_ms")

    def __init__(self, rules: GoalRules) -> None:
        """Starts without a turn."""
        # Without a judge nothing costs, so nothing waits.
        self._for_ms = rules.steady_words_ms if rules.asks_judge else 0
        self._first_ms: dict[int, int] = {}
        self._steady_at_ms: dict[int, int] = {}
        self.ask_at_ms: int | None = None

    def changed(self, turns: Iterable[int], broker_ms: int) -> None:
        """Notes that the words or tools of these turns changed at this broker time."""
        for turn in turns:
            until_ms = self._first_ms.setdefault(turn, broker_ms) + MAX_HELD_MS
            self._steady_at_ms[turn] = min(broker_ms + self._for_ms, until_ms)

    def steady(self, abouts: list[About], turn_of: Callable[[About], int], now_ms: int | None) -> list[About]:
        """The questions that may be asked now.

        Args:
            abouts: Open questions. Those about later turns than a held one are held too, because they contain its words.
            turn_of: The turn of a question.
            now_ms: Broker time; None when nothing is held any more, because the call is over.
        """
        for turn in [turn for turn, at_ms in self._steady_at_ms.items() if now_ms is None or at_ms <= now_ms]:
            del self._steady_at_ms[turn]
        first = min(self._steady_at_ms, default=None)
        steady = [about for about in abouts if first is None or turn_of(about) < first]
        self.ask_at_ms = max(self._steady_at_ms.values(), default=None) if len(steady) < len(abouts) else None
        return steady
