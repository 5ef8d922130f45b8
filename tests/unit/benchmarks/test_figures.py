"""The benchmark's report: figures by name, and when a machine was too busy to measure."""

import math

import pytest

from tests.benchmarks.live_cost import (
    MOST_BEHIND_MS,
    MOST_LAG_SECONDS,
    Following,
    buckets_in,
    quantile_ms,
)

AMPLE = [10] * 200


def following(behind_ms: list[int], lag_seconds: list[float], waited_share: float = 0.0) -> str:
    made = Following()
    made.behind_ms, made.lag_seconds, made.waited_share = behind_ms, lag_seconds, waited_share
    return made.why_not()


def test_a_machine_that_follows_gives_figures() -> None:
    assert following(AMPLE, [0.0, MOST_LAG_SECONDS]) == ""
    assert following([*AMPLE[2:], MOST_BEHIND_MS + 1, MOST_BEHIND_MS + 1], []) == "", (
        "they decide nothing"
    )


@pytest.mark.parametrize(
    ("why", "behind_ms", "lag_seconds", "waited_share"),
    [
        ("the load sent events up to 1,300 ms late", [*AMPLE[3:], 400, 500, 1_300], [], 0.0),
        ("the evaluator lagged by up to 4.2 s", AMPLE, [0.0, 4.2], 0.0),
        (
            "the evaluator waited for a processor 1.30 times as long as it had one",
            AMPLE,
            [0.0],
            1.3,
        ),
    ],
)
def test_one_that_cannot_follow_gives_the_reason(
    why: str, behind_ms: list[int], lag_seconds: list[float], waited_share: float
) -> None:
    assert following(behind_ms, lag_seconds, waited_share) == (
        f"the machine could not follow: {why}; measure where nothing else runs"
    )


PAGE = """
a_seconds_bucket{step="x",le="0.1"} 2.0
a_seconds_bucket{step="x",le="0.5"} 4.0 # {conversation_id="c"} 0.3 1790000000.1
a_seconds_bucket{step="x",le="+Inf"} 5.0
a_seconds_bucket{kind="b",step="x",le="0.1"} 1.0
a_seconds_bucket{step="y",le="0.1"} 7.0
b_seconds_bucket{step="x",le="0.1"} 9.0
"""


def test_the_buckets_of_a_label_are_added_up() -> None:
    assert buckets_in(PAGE, "a_seconds", 'step="x"') == {0.1: 3.0, 0.5: 4.0, float("inf"): 5.0}


@pytest.mark.parametrize(
    ("share", "value_ms"), [(0.25, 50), (0.5, 100), (0.625, 300), (0.75, 500), (0.99, float("inf"))]
)
def test_a_share_of_the_values_since_the_first_look_is_at_most_so_large(
    share: float, value_ms: float
) -> None:
    before = {0.1: 10.0, 0.5: 20.0, float("inf"): 20.0}
    after = {0.1: 12.0, 0.5: 23.0, float("inf"): 24.0}
    assert quantile_ms(share, before, after) == pytest.approx(value_ms)
    assert math.isnan(quantile_ms(share, after, after)), "nothing was measured"
