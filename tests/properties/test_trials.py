"""pass@k and pass^k are the shares of all choices of k trials in which one succeeds, and in which all do."""

from itertools import combinations
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.goals.checks import Judge
from schemas.goals.goal_set import GoalSet, Subgoal
from streamer.trials.calls import SubgoalOutcome, Trial
from streamer.trials.comparison import compared

GOALS = GoalSet(id="any", subgoals=(Subgoal(id="done", details="it is done", check=Judge(kind="judge")),))
SUCCESSES = st.lists(st.sampled_from([True, False, "judge_disabled"]), min_size=1, max_size=9)


def trial(number: int, success: bool | str) -> Trial:
    progress = success if isinstance(success, str) else float(success)
    outcome = SubgoalOutcome("done", success, 1 if success is True else None)
    return Trial(f"c{number}", "", GOALS, GOALS.digest, success, progress, (outcome,), None, ())


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
