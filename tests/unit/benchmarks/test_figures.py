"""The benchmark's report: figures by name, and when a machine was too busy to measure."""

import json
from pathlib import Path

import pytest

from tests.benchmarks.figures import Figures
from tests.benchmarks.metrics_delay import MOST_BEHIND_MS, MOST_LAG_SECONDS, Following

AMPLE = [10] * 200


def following(behind_ms: list[int], lag_seconds: list[float], lost_answer: str = "") -> str:
    made = Following()
    made.behind_ms, made.lag_seconds, made.lost_answer = behind_ms, lag_seconds, lost_answer
    return made.why_not()


def test_a_machine_that_follows_gives_figures() -> None:
    assert following(AMPLE, [0.0, MOST_LAG_SECONDS]) == ""
    assert following([*AMPLE[2:], MOST_BEHIND_MS + 1, MOST_BEHIND_MS + 1], []) == "", "they decide nothing"


@pytest.mark.parametrize(
    ("why", "behind_ms", "lag_seconds", "lost_answer"),
    [
        ("the load sent events up to 1,300 ms late", [*AMPLE[3:], 400, 500, 1_300], [], ""),
        ("the evaluator lagged by up to 4.2 s", AMPLE, [0.0, 4.2], ""),
        ("answer 7 was not on /metrics after 10 s", [], [], "answer 7 was not on /metrics after 10 s"),
    ],
)
def test_one_that_cannot_follow_gives_the_reason(
    why: str, behind_ms: list[int], lag_seconds: list[float], lost_answer: str
) -> None:
    assert following(behind_ms, lag_seconds, lost_answer) == (
        f"the machine could not follow: {why}; measure where nothing else runs"
    )


def test_what_was_not_measured_keeps_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures = Figures()
    figures.add("bare_us_per_event", 3.51234, "bare loop", "us/event", goal=4)
    figures.not_measured("event_to_metrics_p99_ms", "99 of 100 within", "the machine could not follow")
    figures.write(tmp_path / "figures.json")
    written = json.loads((tmp_path / "figures.json").read_text())
    assert (written["bare_us_per_event"], written["event_to_metrics_p99_ms"]) == (3.512, None)
    shown = capsys.readouterr().out
    assert "3.51 us/event   goal 4" in shown
    assert "the machine could not follow" in shown
