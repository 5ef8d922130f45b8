"""The benchmark's report: figures by name, and when a machine was too busy to measure."""

import json
import math
import platform
from pathlib import Path

import pytest

from tests.benchmarks.figures import Figures, interpreter
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


@pytest.mark.parametrize(
    ("configured", "said"),
    [("'--enable-optimizations'", "built with PGO"), (None, "PGO not in its configuration")],
)
def test_the_interpreter_says_whether_it_was_built_with_pgo(
    configured: str | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sysconfig.get_config_var", {"CONFIG_ARGS": configured}.get)
    assert interpreter() == f"Python {platform.python_version()}, {said}"


def test_what_was_not_measured_keeps_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = Figures()
    figures.add("bare_us_per_event", 3.51234, "bare loop", "us/event", goal=4)
    figures.add("two_evaluators_of_one", 1.5, "two", "x", at_least=1.8)
    figures.not_measured(
        "event_to_counted_p99_ms", "99 of 100 within", "the machine could not follow"
    )
    figures.write(tmp_path / "figures.json")
    written = json.loads((tmp_path / "figures.json").read_text())
    assert written["figures"]["bare_us_per_event"] == {
        "value": 3.512,
        "unit": "us/event",
        "what": "bare loop",
        "goal": 4,
    }
    assert written["figures"]["event_to_counted_p99_ms"]["why"] == "the machine could not follow"
    assert written["python"] == interpreter()
    assert figures.value("event_to_counted_p99_ms") is None
    shown = capsys.readouterr().out
    assert "3.51 us/event   goal 4" in shown
    assert "1.50 x   goal 1.8 or more" in shown
    assert "the machine could not follow" in shown
