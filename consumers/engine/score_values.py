"""What is known of a score: its value, why it has none, or nothing yet."""

from schemas.scores import Result, Scored, Unscored, UnscoredReason

Value = float | UnscoredReason | None
"""A score inside the engine; None while a verdict that it needs is open, so that there is nothing to publish."""


def result_of(value: float | UnscoredReason) -> Result:
    """The value as a score record says it.

    >>> result_of(0.5)
    Scored(outcome='scored', value=0.5)
    >>> result_of(UnscoredReason.NO_SUBGOALS)
    Unscored(outcome='unscored', reason=<UnscoredReason.NO_SUBGOALS: 'no_subgoals'>)
    """
    return Unscored(reason=value) if isinstance(value, UnscoredReason) else Scored(value=value)
