"""agent-inspect's numbers of a whole progress curve, AUC and PPT, and of success; defaults and errors included."""

from collections.abc import Sequence
from typing import NamedTuple

from consumers.engine.agent_inspect.errors import Code, EvaluationError, InvalidInputValueError
from consumers.engine.goals.curve_area import PLACES, area_under


class Score(NamedTuple):
    """A number with the progress values that it was computed from, by agent-inspect's names."""

    value: float
    sub_scores: dict[str, float]


def progress_of(flags: Sequence[bool]) -> float:
    """The share of completed subgoals.

    Raises:
        InvalidInputValueError: 050004 when there are none.
    """
    if not flags:
        raise InvalidInputValueError(Code.NOTHING_JUDGED, "No subgoal was judged, so there is no progress to compute.")
    return round(sum(map(bool, flags)) / len(flags), PLACES)


def success_of(progress: float) -> Score:
    """1 when the progress is 1 exactly, else 0. Progress is rounded before, so 19,999 of 20,000 subgoals succeed."""
    return Score(int(progress == 1), {"progress_score": progress})


def auc_of(progress: Sequence[float]) -> float:
    """Area under the curve through these values, which start at turn 1 and span the whole width whatever their number.

    Raises:
        InvalidInputValueError: 050005 when there are none.
        EvaluationError: 050006 when there is only one, or one is no number.
    """
    if not progress:
        raise InvalidInputValueError(Code.NO_PROGRESS, "There is no progress to compute an AUC of.")
    try:
        return round(area_under(progress), PLACES)
    except (TypeError, ValueError) as error:
        raise EvaluationError(Code.AREA_FAILED, f"The AUC could not be computed: {error}") from error


def ppt_of(progress: Sequence[float]) -> float:
    """The highest progress divided by the number of the turn that reached it first; not rounded.

    Raises:
        InvalidInputValueError: 050005 when there are none.
        EvaluationError: 050012 when one is no number.
    """
    if not progress:
        raise InvalidInputValueError(Code.NO_PROGRESS, "There is no progress to compute a PPT of.")
    try:
        highest = max(progress)
        return highest / (list(progress).index(highest) + 1)
    except TypeError as error:
        raise EvaluationError(Code.PER_TURN_FAILED, f"The PPT could not be computed: {error}") from error


def auc_of_conversation(progress: Sequence[float]) -> Score:
    """The AUC of the values that judging a conversation returned, one per turn.

    Raises:
        EvaluationError: 050005 when there are none.
        ValueError: There is only one.
    """
    sub_scores = _by_turn(progress)
    return Score(round(area_under(progress), PLACES), sub_scores)


def ppt_of_conversation(progress: Sequence[float]) -> Score:
    """The PPT of the values that judging a conversation returned, rounded.

    Raises:
        EvaluationError: 050005 when there are no values.
    """
    sub_scores = _by_turn(progress)
    return Score(round(ppt_of(progress), PLACES), sub_scores)


def success_at_final_turn(progress: Sequence[float]) -> Score:
    """Whether the last value that judging a conversation returned is 1.

    Raises:
        EvaluationError: 050005 when there are no values.
    """
    sub_scores = _by_turn(progress)
    return Score(success_of(progress[-1]).value, sub_scores)


def _by_turn(progress: Sequence[float]) -> dict[str, float]:
    if not progress:
        raise EvaluationError(Code.NO_PROGRESS, "The judging of the conversation gave no progress.")
    return {f"Turn_{number}_progress_score": value for number, value in enumerate(progress, 1)}
