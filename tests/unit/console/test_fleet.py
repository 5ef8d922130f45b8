"""The fleet: moving figures of all calls, which are bounded."""

from typing import Any

import pytest

from consumers.console import fleet as module
from consumers.console.fleet import STEP_MS, STEPS, Fleet, Step
from schemas.closed_sets import UnscoredReason
from schemas.rows import Goals, Progress, Unscored
from tests.support.calls.console_calls import AT_MS, call_row, turn_row

NOW_MS = AT_MS - AT_MS % STEP_MS
UNKNOWN = Unscored(UnscoredReason.NO_TURN_JUDGED)


def answered(fleet: Fleet, turn: int, wait_ms: Any, *news: str) -> None:
    fleet.take(turn_row(turn, wait_ms=wait_ms, news=news))


def test_steps_end_with_their_time_and_are_bounded() -> None:
    fleet = Fleet()
    fleet.take(call_row("a"))
    for number in range(STEPS + 5):
        fleet.now(NOW_MS + number * STEP_MS)
        fleet.now(NOW_MS + number * STEP_MS + STEP_MS - 1)
    assert len(fleet.steps) == STEPS
    assert [step.end_ms for step in fleet.steps][-2:] == [
        NOW_MS + (STEPS + 3) * STEP_MS,
        NOW_MS + (STEPS + 4) * STEP_MS,
    ]
    assert {step.running for step in fleet.steps} == {1}
    assert {step.progress for step in fleet.steps} == {None}


def test_a_latency_counts_once_and_where_it_became_known() -> None:
    fleet = Fleet()
    fleet.now(NOW_MS)
    for number, value in enumerate((100.0, 200.0, 300.0)):
        answered(fleet, number, value, "turn", "wait")
    answered(fleet, 0, 900.0, "wait_revised")
    answered(fleet, 5, UNKNOWN, "wait")
    assert fleet.latencies().percentile_ms(50) == 200.0
    fleet.now(NOW_MS + STEP_MS)
    assert fleet.steps[-1].latencies_ms == [100.0, 200.0, 300.0]
    assert fleet.steps[-1].percentile_ms(95) == 300.0
    fleet.now(NOW_MS + 2 * STEP_MS)
    assert fleet.steps[-1].percentile_ms(95) is None
    assert fleet.latencies(1).percentile_ms(95) is None
    assert fleet.latencies(2).percentile_ms(95) == 300.0


def test_latencies_of_a_step_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ANSWERS", 2)
    fleet = Fleet()
    fleet.now(NOW_MS)
    for number in range(5):
        answered(fleet, number, 1.0, "wait")
    fleet.now(NOW_MS + STEP_MS)
    assert fleet.steps[-1].latencies_ms == [1.0, 1.0]


def test_progress_is_the_mean_of_running_calls_with_goals() -> None:
    fleet = Fleet()
    score = Progress(UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, reached=1, subgoals=3)
    fleet.take(call_row("a", goals=Goals("g", "d", progress=score)))
    fleet.take(call_row("without goals"))
    fleet.take(call_row("over", goals=Goals("g", "d", progress=score), state="closed"))
    fleet.now(NOW_MS)
    assert fleet.steps[-1].progress == pytest.approx(1 / 3)
    assert fleet.steps[-1].running == 2


@pytest.mark.parametrize(("percent", "expected"), [(1, 1.0), (50, 2.0), (51, 3.0), (95, 4.0), (100, 4.0)])
def test_a_percentile_is_an_answer_that_was_given(percent: int, expected: float) -> None:
    assert Step(0, [1.0, 2.0, 3.0, 4.0]).percentile_ms(percent) == expected


def test_no_answer_has_no_percentile() -> None:
    assert Step(0).percentile_ms(95) is None
    assert Fleet().latencies().percentile_ms(50) is None
