"""When a value of the call so far is said again: such a value takes longer the more turns there are."""

from typing import Final

OFTEN_TURNS: Final = 50
"""Up to here at every turn."""
SELDOM_TURNS: Final = 10
"""After that at every so many turns, so that two hours cost no more for each event than five minutes."""


def are_said_at(turn: int) -> bool:
    """Whether values of the call so far are said when it comes to this turn; the final ones are said in any case."""
    return turn <= OFTEN_TURNS or turn % SELDOM_TURNS == 0
