"""Areas and sums to the last bit: the expected ones were computed with numpy and scikit-learn."""

import pytest

from consumers.engine.goals.curve import ProgressCurve, area_under, sum_in_numpy_order

TERMS = [(place * 37 % 101) / 101 for place in range(300)]


@pytest.mark.parametrize(
    ("count", "bits"),
    [
        (0, "0x0.0p+0"),
        (7, "0x1.58b67ebb9079bp+1"),  # one after the other
        (8, "0x1.a0f353a4c0a24p+1"),  # eight accumulators
        (9, "0x1.0c0a237c32b17p+2"),  # and a rest
        (128, "0x1.f4ac5b3f5dc84p+5"),
        (129, "0x1.fbcd4e930288ep+5"),  # two halves
        (137, "0x1.0f2b16cfd7721p+6"),
        (300, "0x1.286562d9faee4p+7"),  # four quarters
    ],
)
def test_a_sum_has_numpy_s_bits(count: int, bits: str) -> None:
    assert sum_in_numpy_order(TERMS[:count]).hex() == bits


@pytest.mark.parametrize(
    ("subgoals", "reached_at", "turns", "bits", "auc"),
    [  # added from left to right, each of them is rounded to the other side
        (9, [2, 3, 4, 5, 6, 7], 10, "0x1.c71de69ad42c3p-2", 0.4444),
        (9, [2], 12, "0x1.b2617c1bda512p-4", 0.1061),
        (6, [4, 5, 8, 13], 20, "0x1.d318fc504816fp-2", 0.4561),
        (4, [3], 21, "0x1.d99999999999ap-3", 0.2313),
        (3, [20, 24], 40, "0x1.43d70a3d70a3dp-2", 0.3162),
        (9, [2, 39, 43, 65, 71, 98, 101, 108], 150, "0x1.027bb2fec56d6p-1", 0.5049),
    ],
)
def test_a_tie_falls_where_scikit_learn_s_does(
    subgoals: int, reached_at: list[int], turns: int, bits: str, auc: float
) -> None:
    heights = [round(sum(turn <= last for turn in reached_at) / subgoals, 4) for last in range(1, turns + 1)]
    assert area_under(heights).hex() == bits
    curve = ProgressCurve(subgoals, turns)
    for subgoal in range(subgoals):
        curve.know(subgoal, reached_at[subgoal] if subgoal < len(reached_at) else None)
    curve.set_input(turns, "")
    assert (curve.now.auc, curve.now.auc_if_ended_now) == (auc, auc)


@pytest.mark.parametrize("heights", [[], [0.5]])
def test_nothing_lies_between_fewer_than_two_points(heights: list[float]) -> None:
    with pytest.raises(ValueError, match=f"two points or more; there were {len(heights)}"):
        area_under(heights)
