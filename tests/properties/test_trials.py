"""pass@k and pass^k are the shares of all choices of k trials in which one succeeds, and in which
all do; intervals are seeded.
"""

from dataclasses import replace
from itertools import combinations
from math import sqrt
from statistics import mean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.closed_sets import UnscoredReason
from schemas.goals.checks import Judge
from schemas.goals.goal_set import GoalSet, Subgoal
from schemas.rows import SubgoalResult, Unscored
from streamer.trials.calls import Trial, Versus
from streamer.trials.comparison import compared

GOALS = GoalSet(
    id="any", subgoals=(Subgoal(id="done", details="it is done", check=Judge(kind="judge")),)
)
SUCCESSES = st.lists(st.sampled_from([True, False, "judge_disabled"]), min_size=1, max_size=9)


def trial(number: int, success: bool | str) -> Trial:
    progress = success if isinstance(success, str) else float(success)
    result = Unscored(UnscoredReason(success)) if isinstance(success, str) else float(success)
    subgoals = {"done": SubgoalResult(result, 1 if success is True else None)}
    return Trial(f"c{number}", "", GOALS, GOALS.digest, success, progress, subgoals, None, ())


@given(SUCCESSES, st.integers(1, 9))
def test_the_estimates_are_shares_of_all_choices(successes: list[bool | str], k: int) -> None:
    (group,) = compared(trial(number, success) for number, success in enumerate(successes))
    known = [success for success in successes if isinstance(success, bool)]
    choices = list(combinations(known, k))
    passes = group.passes(k)
    if not choices:
        assert passes[1:] == (None, None)
        return
    assert passes.pass_at_k == pytest.approx(mean(map(any, choices)))
    assert passes.pass_hat_k == pytest.approx(mean(map(all, choices)))
    assert group.success_rate == pytest.approx(group.passes(1).pass_at_k)


@pytest.mark.parametrize("shift", [0, 100], ids=["paired", "independent"])
def test_an_interval_is_seeded_and_as_wide_as_the_normal_one(shift: int) -> None:
    """Of 60 calls with distinct values; without partners the two variances add up."""
    before = {f"c{number}": (number * 37 % 60) / 60 for number in range(60)}
    after = {f"c{number + shift}": (number * 23 % 60) ** 2 / 3_600 for number in range(60)}
    lots = [
        [
            replace(trial(0, success=True), conversation_id=name, progress=value)
            for name, value in lot.items()
        ]
        for lot in (before, after)
    ]
    apart, again = (
        next(each for each in Versus(*lots).changes() if each.measure == "progress")
        for _ in range(2)
    )
    assert again == apart
    assert apart.is_paired is (shift == 0)
    assert apart.low is not None
    assert apart.high is not None
    if shift:
        spread = sqrt(pstdev(before.values()) ** 2 + pstdev(after.values()) ** 2)
    else:
        spread = pstdev(after[name] - before[name] for name in before)
    middle = mean(after.values()) - mean(before.values())
    half = 1.96 * spread / sqrt(60)
    assert apart.low == pytest.approx(middle - half, abs=half / 5)
    assert apart.high == pytest.approx(middle + half, abs=half / 5)
