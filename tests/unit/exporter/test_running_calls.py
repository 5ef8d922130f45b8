"""Which calls the exporter takes for running, and when it stops doing so."""

from typing import Any

import pytest

from consumers.exporter import projection
from consumers.exporter.projection import Counted, Observed, OpenCalls, Sample, project
from schemas.closed_sets import UnscoredReason
from schemas.rows import CallRow, Goals, Labels, Progress, SubgoalResult, Unscored, Value
from tests.unit.exporter.simulated import GOALS_OF_CODE, rows_with_goals_of_code

AVA, BOB, NOBODY = ((agent, "unknown", "unknown") for agent in ("ava", "bob", "unknown"))
UNKNOWN = Unscored(UnscoredReason.DEADLINE)


@pytest.fixture
def calls() -> OpenCalls:
    return OpenCalls(max_calls=10, forget_after_ms=1000)


def row(
    conversation_id: str, agent: str = "ava", *, state: Any = "running", goals: Goals | None = None
) -> CallRow:
    return CallRow(
        conversation_id=conversation_id, labels=Labels(agent=agent), state=state, goals=goals
    )


def so_far(subgoals: int, reached: int | None = None, progress: Value = UNKNOWN) -> Goals:
    """Goals of a call; without a number of reached ones no turn is judged."""
    after = None
    if reached is not None:
        after = Progress(progress, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, reached, 0, subgoals)
    return Goals("set", "d", (SubgoalResult(UNKNOWN),) * subgoals, progress=after)


def halfway(conversation_id: str, agent: str = "ava", **more: Any) -> CallRow:
    return row(conversation_id, agent, goals=so_far(4, 2, 0.5), **more)


def running(calls: OpenCalls) -> dict[tuple[str, ...], float]:
    calls.sum_up()
    return dict(calls.running())


def with_goals(calls: OpenCalls) -> dict[tuple[str, ...], float]:
    calls.sum_up()
    return {who: number for who, number in calls.with_goals().items() if number}


def test_a_call_runs_from_its_first_row_to_its_closed_one(calls: OpenCalls) -> None:
    calls.replace_row(row("c-1"), 0, 0)
    calls.replace_row(row("c-1"), 0, 1)
    calls.replace_row(row("c-2", "bob"), 0, 1)
    assert running(calls) == {AVA: 1, BOB: 1}
    calls.replace_row(row("c-1", state="closed"), 0, 2)
    assert running(calls) == {AVA: 0, BOB: 1}  # 0, so that the line goes on
    assert len(calls) == 1


def test_labels_that_become_known_move_the_call_and_its_progress(calls: OpenCalls) -> None:
    calls.replace_row(halfway("c-1", "unknown"), 0, 0)
    assert running(calls) == {NOBODY: 1}
    calls.replace_row(halfway("c-1", "ava"), 0, 1)
    assert running(calls) == {NOBODY: 0, AVA: 1}
    assert calls.progress() == {NOBODY: 0, AVA: 0.5}


def test_a_call_that_was_never_seen_may_close(calls: OpenCalls) -> None:
    assert calls.replace_row(row("c-1", state="closed"), 0, 0) == 0
    assert running(calls) == {}


def test_beyond_the_bound_the_quietest_call_is_forgotten() -> None:
    calls = OpenCalls(max_calls=2, forget_after_ms=1000)
    forgotten = [
        calls.replace_row(row(name), 0, now_ms)
        for now_ms, name in enumerate(["c-1", "c-2", "c-1", "c-3"])
    ]
    assert forgotten == [0, 0, 0, 1]
    calls.replace_row(row("c-2", state="closed"), 0, 5)
    assert len(calls) == 2  # c-2 was the one
    assert running(calls) == {AVA: 2}


def test_silent_calls_are_forgotten(calls: OpenCalls) -> None:
    calls.replace_row(row("c-1"), 0, 0)
    calls.replace_row(row("c-2"), 0, 500)
    assert (calls.forget_silent(1000), calls.forget_silent(1001)) == (0, 1)
    assert running(calls) == {AVA: 1}
    assert calls.forget_silent(10_000) == 1


def test_calls_of_partitions_taken_away_are_dropped(calls: OpenCalls) -> None:
    calls.replace_row(row("c-1"), 0, 0)
    calls.replace_row(row("c-2", "bob"), 1, 0)
    assert running(calls) == {AVA: 1, BOB: 1}
    calls.keep_only({1, 2})
    assert running(calls) == {AVA: 0, BOB: 1}


def test_lines_at_zero_are_bounded(calls: OpenCalls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projection, "MAX_KNOWN_GROUPS", 2)
    calls.replace_row(halfway("c-0", "agent-0"), 0, 0)
    assert len(running(calls)) == 1
    calls.replace_row(row("c-0", state="closed"), 0, 1)
    for number in (1, 2):
        calls.replace_row(halfway(f"c-{number}", f"agent-{number}"), 0, 0)
    assert set(running(calls)) == {
        ("agent-1", "unknown", "unknown"),
        ("agent-2", "unknown", "unknown"),
    }
    assert set(calls.progress()) == set(calls.running())


def test_however_a_call_goes_its_progress_goes_too() -> None:
    calls = OpenCalls(max_calls=2, forget_after_ms=1000)
    for number in range(3):
        calls.replace_row(halfway(f"c-{number}"), number, 0)  # c-0 has no room any more
    assert with_goals(calls) == {(*AVA, "known"): 2}
    calls.keep_only({2})
    assert with_goals(calls) == {(*AVA, "known"): 1}
    calls.forget_silent(1001)
    assert with_goals(calls) == {}
    assert calls.subgoals() == {(*AVA, "reached"): 0, (*AVA, "open"): 0}


def test_a_call_that_only_waits_for_verdicts_is_no_running_one(calls: OpenCalls) -> None:
    calls.replace_row(halfway("c-1"), 0, 0)
    assert running(calls) == {AVA: 1}
    assert not calls.is_over("c-1")
    calls.replace_row(halfway("c-1", state="over"), 0, 2)
    assert running(calls) == {AVA: 0}
    assert with_goals(calls) == {}
    assert calls.is_over("c-1")
    calls.replace_row(row("c-1", state="closed"), 0, 4)
    assert len(calls) == 0
    assert not calls.is_over("c-1")


def test_sums_are_by_whose_calls_they_are_and_exact(calls: OpenCalls) -> None:
    for number, (agent, goals) in enumerate(
        (
            ("ava", so_far(3, 1, 0.3333)),
            ("ava", so_far(3, 2, 0.6667)),
            ("ava", so_far(4, 1)),
            ("ava", None),
            ("bob", so_far(2)),
        )
    ):
        calls.replace_row(row(f"c-{number}", agent, goals=goals), 0, 0)
    assert running(calls) == {AVA: 4, BOB: 1}
    assert calls.with_goals() == {
        (*AVA, "known"): 2,
        (*AVA, "unknown"): 1,
        (*BOB, "known"): 0,
        (*BOB, "unknown"): 1,
    }
    assert calls.progress() == {AVA: 1.0, BOB: 0.0}
    assert calls.subgoals() == {
        (*AVA, "reached"): 4,
        (*AVA, "open"): 6,
        (*BOB, "reached"): 0,
        (*BOB, "open"): 2,
    }


def test_sums_do_not_depend_on_the_order_of_the_calls() -> None:
    shares = [round(some / of, 4) for of in (6, 7, 9, 13) for some in range(of + 1)]
    calls = OpenCalls(max_calls=100, forget_after_ms=1000)
    for order in (shares, shares[::-1]):
        for number, share in enumerate(order):
            calls.replace_row(row(f"c-{number}", goals=so_far(2, 1, share)), 0, 0)
        calls.sum_up()
        assert calls.progress() == {AVA: round(sum(shares), 4)}


def test_the_rows_of_a_call_move_the_gauges_and_end_in_the_histogram(calls: OpenCalls) -> None:
    samples: list[Sample] = []
    seen: list[float] = []
    for each in rows_with_goals_of_code(3):
        samples.extend(project(each, 0, is_over=calls.is_over(each.conversation_id)))
        if isinstance(each, CallRow):
            calls.replace_row(each, 0, 0)
            calls.sum_up()
            (shown,) = set(calls.progress().values()) - {0} or {0}
            seen += [shown] if [shown] != seen[-1:] else []
    observed = [each for each in samples if isinstance(each, Observed)]
    (final,) = [each.value for each in observed if each.metric == "callgauge_call_progress_ratio"]
    assert seen == [0, *sorted(seen[1:-1]), 0], (
        "it rises turn by turn, and is gone when the call has closed"
    )
    assert seen[-2] == final > 0
    reached = [each for each in samples if each.metric == "callgauge_subgoals_reached_total"]
    assert reached == [
        Counted("callgauge_subgoals_reached_total", (*observed[-1].labels[:3], "code"))
    ] * len(reached)
    assert len(reached) == final * len(GOALS_OF_CODE.subgoals)
