"""Values of scores inside the engine: a number, a reason why there is none, or nothing yet."""

from typing import NamedTuple

from schemas.scores.all_records import Result, Scored, Unscored, UnscoredReason

Value = float | UnscoredReason | None
"""A score inside the engine; None while it waits for a verdict, with nothing to publish."""


class GoalValues(NamedTuple):
    """The goals' values for a call as a whole.

    Attributes:
        tool_correctness: Share of the expected tool calls that were made; None without any, or before the first turn.
        success_final_turn: Whether every subgoal was reached by the last turn; None while the call runs.
        unscored_subgoals: Number of subgoals without a judgement, by reason; at the close.
    """

    tool_correctness: Value
    success_final_turn: Value
    unscored_subgoals: tuple[tuple[UnscoredReason, int], ...]


def result_of(value: float | UnscoredReason) -> Result:
    """The value as the result of a score record.

    >>> result_of(0.5)
    Scored(outcome='scored', value=0.5)
    >>> result_of(UnscoredReason.NO_SUBGOALS)
    Unscored(outcome='unscored', reason=<UnscoredReason.NO_SUBGOALS: 'no_subgoals'>)
    """
    return Unscored(reason=value) if isinstance(value, UnscoredReason) else Scored(value=value)
