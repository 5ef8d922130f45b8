"""The fleet: figures of all calls by minute, which are bounded, for every choice of labels."""

from typing import Any

import pytest

from consumers.console import agents as module
from consumers.console.agents import MINUTES, Figures, Minute
from consumers.console.fleet import Fleet
from schemas.closed_sets import UnscoredReason
from schemas.rows import CallRow, Goals, Labels, Progress, SubgoalResult, Unscored, Waiting
from schemas.scores.running import EVERY_CALL, WantedCalls
from schemas.units import MINUTE_MS
from tests.support.calls.console_calls import AT_MS, call_row, turn_row

UNKNOWN = Unscored(UnscoredReason.NO_TURN_JUDGED)
DESK, LINE = Labels(agent="desk", tenant="acme"), Labels(agent="line", tenant="acme")


def answered(fleet: Fleet, turn: int, wait_ms: Any, *news: str, labels: Labels = DESK) -> None:
    fleet.put_row(turn_row(turn, wait_ms=wait_ms, news=news, labels=labels))


def minutes(fleet: Fleet, at_ms: int = AT_MS, wanted: WantedCalls = EVERY_CALL) -> list[Figures]:
    fleet.now(at_ms)
    return [each for _, each in fleet.agents.figures(wanted)[1]]


def ended(name: str, reached: int, missing: int = 0, **more: Any) -> CallRow:
    share = UNKNOWN if missing else reached / 4
    score = Progress(share, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, reached, missing, subgoals=4)
    goals = Goals(
        "g",
        "d",
        (SubgoalResult(UNKNOWN),) * 4,
        progress=score,
        success_final_turn=UNKNOWN if missing else float(reached == 4),
    )
    return call_row(name, labels=DESK, goals=goals, state="closed", **more)


def test_there_is_a_quarter_of_an_hour_of_minutes_with_their_begins() -> None:
    fleet = Fleet()
    fleet.put_row(call_row("a"))
    for ago in range(MINUTES + 5):
        fleet.now(AT_MS + ago * MINUTE_MS)
    begins = [begin_ms for begin_ms, _ in fleet.agents.figures(EVERY_CALL)[1]]
    assert begins == [AT_MS - AT_MS % MINUTE_MS + ago * MINUTE_MS for ago in range(5, MINUTES + 5)]
    assert [each.calls_running for _, each in fleet.agents.figures(EVERY_CALL)[1]] == [1] * MINUTES


def test_a_wait_counts_once_and_in_the_minute_in_which_it_became_known() -> None:
    fleet = Fleet()
    for number, value in enumerate((100.0, 204.0, 300.0)):
        answered(fleet, number, value, "turn", "wait")
    answered(fleet, 0, 900.0, "wait_revised")
    answered(fleet, 5, UNKNOWN, "wait")
    newest = minutes(fleet)[-1]
    assert (newest.wait_p50_ms, newest.wait_p95_ms, newest.turns_answered) == (200.0, 300.0, 3)
    later = minutes(fleet, AT_MS + MINUTE_MS)
    assert (later[-1].wait_p95_ms, later[-2].wait_p95_ms) == (None, 300.0)


def test_waits_of_a_minute_are_bounded() -> None:
    fleet = Fleet()
    for wait_ms in (module.MAX_WAIT_MS + 50.0, 9e12, -9e12, -1.0):
        answered(fleet, 1, wait_ms, "wait")
    newest = minutes(fleet)[-1]
    assert (newest.wait_p50_ms, newest.wait_p95_ms, newest.turns_answered) == (0.0, 600_000.0, 4)


def test_figures_are_those_of_the_chosen_labels() -> None:
    fleet = Fleet()
    for name, labels in (("a", DESK), ("b", DESK), ("c", LINE)):
        fleet.put_row(call_row(name, labels=labels, failing_tools={"find": 1}))
        answered(fleet, 1, 100.0, "wait", labels=labels)
    for wanted, calls in (
        (EVERY_CALL, 3),
        (WantedCalls(agents=frozenset({"desk"})), 2),
        (WantedCalls(tenants=frozenset({"acme"})), 3),
        (WantedCalls(agents=frozenset({"nobody"})), 0),
    ):
        newest = minutes(fleet, wanted=wanted)[-1]
        assert (newest.calls_running, newest.calls_in_trouble, newest.turns_answered) == (
            calls,
            calls,
            calls,
        )


def test_goals_are_those_of_the_calls_that_closed_each_once() -> None:
    fleet = Fleet()
    fleet.put_row(ended("a", 4))
    fleet.put_row(ended("a", 4, revision=2))
    fleet.put_row(ended("b", 1))
    fleet.put_row(call_row("goes on", goals=ended("c", 0).goals))
    fleet.put_row(ended("withheld", 2, missing=2))
    newest = minutes(fleet)[-1]
    assert (newest.calls_judged, newest.calls_unjudged) == (2, 1), "unknown is not zero"
    assert newest.success == 0.5, "one of the two reached all of its goals"
    assert Minute().figures().success is None


def test_a_bad_end_counts_once_and_is_taken_back_if_an_answer_comes_late() -> None:
    fleet = Fleet()
    gone = call_row("a", state="over", unanswered=1, waiting=Waiting(1, AT_MS, 2))
    fleet.put_row(gone)
    fleet.put_row(
        call_row("a", state="closed", unanswered=1, waiting=Waiting(1, AT_MS, 2), revision=2)
    )
    assert (minutes(fleet)[-1].calls_ended_badly, minutes(fleet)[-1].turns_unanswered) == (1, 1)
    fleet.put_row(call_row("a", state="closed", revision=3))
    assert (minutes(fleet)[-1].calls_ended_badly, minutes(fleet)[-1].turns_unanswered) == (0, 0)


@pytest.mark.parametrize(
    ("percent", "expected"), [(1, 10.0), (50, 20.0), (51, 30.0), (95, 40.0), (100, 40.0)]
)
def test_a_percentile_is_a_wait_that_was_given(percent: int, expected: float) -> None:
    minute = Minute()
    minute.waits.update([1, 2, 3, 4])
    assert minute.wait_ms(percent) == expected
    assert Minute().wait_ms(percent) is None
