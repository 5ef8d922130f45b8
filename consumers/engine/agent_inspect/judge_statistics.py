"""agent-inspect's statistics of a judge's votes: the expected progress of one conversation and its deviation."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from consumers.engine.agent_inspect.errors import ANALYSIS, Code, InvalidInputValueError
from consumers.engine.goals.curve_area import sum_in_numpy_order
from consumers.engine.judging.votes import grade_of


class JudgeStatistics(NamedTuple):
    """Both None when there are no subgoals."""

    expectation: float | None
    std: float | None


def judge_statistics(completions_by_subgoal: Sequence[Sequence[str]]) -> JudgeStatistics:
    """Expected progress and its standard deviation when each subgoal is completed as often as the judge said so.

    Completions without a grade are left out, which usually makes the numbers of votes unequal.

    Raises:
        InvalidInputValueError: 080008 when a subgoal has no completions or none with a grade; 080009 when subgoals have
            different numbers of votes.
    """
    if not completions_by_subgoal:
        return JudgeStatistics(None, None)
    if not all(completions_by_subgoal):
        raise InvalidInputValueError(Code.MISSING_VALUE, "A subgoal has no completions of a judge.", ANALYSIS)
    votes = [
        [grade for completion in completions if (grade := grade_of(completion)) is not None]
        for completions in completions_by_subgoal
    ]
    if len({len(of_subgoal) for of_subgoal in votes}) > 1:
        raise InvalidInputValueError(Code.INVALID_VALUE, "The subgoals have different numbers of votes.", ANALYSIS)
    if not votes[0]:
        raise InvalidInputValueError(Code.MISSING_VALUE, "No completion of the judge has a grade.", ANALYSIS)
    shares = [sum(of_subgoal) / len(of_subgoal) for of_subgoal in votes]
    count = len(shares)
    variance = sum_in_numpy_order([share * (1 - share) for share in shares]) / count**2
    return JudgeStatistics(sum_in_numpy_order(shares) / count, math.sqrt(variance))
