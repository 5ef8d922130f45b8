"""Which calls the exporter takes for running, and when it stops doing so."""

from typing import Any

import pytest

from consumers.exporter import projection as active_calls
from consumers.exporter import projection as running_progress
from consumers.exporter.projection import ActiveCalls, Counted, Observed, RunningProgress, Sample, project
from schemas.closed_sets import CloseReason
from schemas.scores.live_view import CallGoals, JudgedTurn
from schemas.scores.records import (
    CallLabels,
    CallStartedFact,
    CallValues,
    ClosedFact,
    ProgressScore,
    Scored,
)
from tests.support.fakes.engine_feed import records_of
from tests.unit.engine.goals.test_progress import END_MS, SAID, USED, GoalFeed, goal_set
from tests.unit.exporter.test_projection import AnyRecord

AVA, BOB, NOBODY = ((agent, "unknown", "unknown") for agent in ("ava", "bob", "unknown"))
BOB = ("bob", "unknown", "unknown")


def fields_of(conversation_id: str, agent: str) -> dict[str, Any]:
    return AnyRecord | {"conversation_id": conversation_id, "labels": CallLabels(agent=agent)}


@pytest.fixture
def active() -> ActiveCalls:
    return ActiveCalls(max_calls=10, forget_after_ms=1000)


def record(conversation_id: str, agent: str = "ava", *, closes: bool = False) -> CallStartedFact | ClosedFact:
    fields = fields_of(conversation_id, agent)
    if closes:
        return ClosedFact(**fields, reason=CloseReason.ENDED, ended_reason=None, turns=0, events=0, through={})
    return CallStartedFact(**fields)


def halfway(conversation_id: str, agent: str = "ava") -> ProgressScore:
    """Turn 2 of a call with four subgoals, two of them reached."""
    fields = fields_of(conversation_id, agent) | dict.fromkeys(
        ["result", "auc", "auc_if_ended_now", "ppt", "success"], Scored(value=0.5)
    )
    return ProgressScore(**fields, turn=2, reached=2, missing=0, subgoals=4)


def test_a_call_runs_from_its_first_record_to_its_closing_one(active: ActiveCalls) -> None:
    active.take(record("c-1"), 0, 0)
    active.take(record("c-1"), 0, 1)
    active.take(record("c-2", "bob"), 0, 1)
    assert active.by_who() == {AVA: 1, BOB: 1}
    active.take(record("c-1", closes=True), 0, 2)
    assert active.by_who() == {AVA: 0, BOB: 1}  # 0, so that the line goes on
    assert len(active) == 1


def test_labels_that_become_known_move_the_call(active: ActiveCalls) -> None:
    active.take(record("c-1", "unknown"), 0, 0)
    active.take(record("c-1", "ava"), 0, 1)
    assert active.by_who() == {("unknown", "unknown", "unknown"): 0, AVA: 1}


def test_a_call_that_was_never_seen_may_close(active: ActiveCalls) -> None:
    assert active.take(record("c-1", closes=True), 0, 0) == 0
    assert active.by_who() == {}


def test_beyond_the_bound_the_quietest_call_is_forgotten() -> None:
    active = ActiveCalls(max_calls=2, forget_after_ms=1000)
    forgotten = [active.take(record(name), 0, now_ms) for now_ms, name in enumerate(["c-1", "c-2", "c-1", "c-3"])]
    assert forgotten == [0, 0, 0, 1]
    active.take(record("c-2", closes=True), 0, 5)
    assert len(active) == 2  # c-2 was the one
    assert active.by_who() == {AVA: 2}


def test_silent_calls_are_forgotten(active: ActiveCalls) -> None:
    active.take(record("c-1"), 0, 0)
    active.take(record("c-2"), 0, 500)
    assert active.forget_silent(1000) == 0
    assert active.forget_silent(1001) == 1
    assert active.by_who() == {AVA: 1}
    assert active.forget_silent(10_000) == 1


def test_calls_of_partitions_taken_away_are_dropped(active: ActiveCalls) -> None:
    active.take(record("c-1"), 0, 0)
    active.take(record("c-2", "bob"), 1, 0)
    active.keep_only({1, 2})
    assert active.by_who() == {AVA: 0, BOB: 1}


def test_lines_at_zero_are_bounded(active: ActiveCalls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(active_calls, "MAX_KNOWN_GROUPS", 2)
    for number in range(3):
        active.take(record(f"c-{number}", f"agent-{number}"), 0, 0)
    active.take(record("c-0", closes=True), 0, 1)
    assert set(active.by_who()) == {("agent-1", "unknown", "unknown"), ("agent-2", "unknown", "unknown")}


def calls_with_goals(active: ActiveCalls) -> dict[tuple[str, ...], float]:
    return {who: calls for who, calls in active.progress.calls().items() if calls}


def test_a_call_s_progress_stays_while_other_records_of_it_come_and_goes_with_the_call(active: ActiveCalls) -> None:
    active.take(record("c-1"), 0, 0)
    assert active.so_far("c-1").progress is None
    active.take(halfway("c-1"), 0, 1)
    active.take(record("c-1"), 0, 2)
    active.take(halfway("c-2", "bob"), 0, 2)
    assert active.so_far("c-1").progress == 0.5
    assert calls_with_goals(active) == {(*AVA, "known"): 1, (*BOB, "known"): 1}
    active.take(record("c-1", closes=True), 0, 3)
    assert active.so_far("c-1").progress is None
    assert calls_with_goals(active) == {(*BOB, "known"): 1}
    assert active.progress.progress() == {AVA: 0, BOB: 0.5}


def test_labels_that_become_known_move_the_progress_of_the_call_too(active: ActiveCalls) -> None:
    active.take(halfway("c-1", "unknown"), 0, 0)
    active.take(record("c-1", "ava"), 0, 1)
    assert active.progress.progress() == {NOBODY: 0, AVA: 0.5}


def test_however_a_call_is_forgotten_its_progress_goes_too() -> None:
    active = ActiveCalls(max_calls=2, forget_after_ms=1000)
    for number in range(3):
        active.take(halfway(f"c-{number}"), number, 0)  # c-0 has no room any more
    assert calls_with_goals(active) == {(*AVA, "known"): 2}
    active.keep_only({2})
    assert calls_with_goals(active) == {(*AVA, "known"): 1}
    active.forget_silent(1001)
    assert calls_with_goals(active) == {}
    assert active.progress.subgoals() == {(*AVA, "reached"): 0, (*AVA, "open"): 0}


def test_a_call_that_only_waits_for_verdicts_is_no_running_one(active: ActiveCalls) -> None:
    active.take(record("c-1"), 0, 0)
    active.take(halfway("c-1"), 0, 0)
    values = CallValues(**fields_of("c-1", "ava"), through_turn=2)
    active.take(values, 0, 1)
    assert active.by_who() == {AVA: 1}  # values of a long call while it runs
    active.take(values.model_copy(update={"is_over": True}), 0, 2)
    assert active.by_who() == {AVA: 0}
    active.take(halfway("c-1"), 0, 3)  # a verdict came
    assert active.by_who() == {AVA: 0}
    assert active.so_far("c-1").is_over
    active.take(record("c-1", closes=True), 0, 4)
    assert active.by_who() == {AVA: 0}
    assert len(active) == 0


# Sums over the running calls with goals, by agent, tenant and environment.


def so_far(subgoals: int, *judged: tuple[int, int, float | None]) -> CallGoals:
    """After these turns: number, subgoals reached, progress."""
    return CallGoals(subgoals, tuple(JudgedTurn(turn, 1, reached, 0, share) for turn, reached, share in judged))


def test_sums_are_by_whose_calls_they_are_and_exact() -> None:
    running = RunningProgress()
    for who, call in (
        (AVA, so_far(3, (1, 1, 0.3333))),
        (AVA, so_far(3, (1, 0, 0.0), (4, 2, 0.6667))),
        (AVA, so_far(4, (2, 1, None))),
        (BOB, CallGoals(2)),
    ):
        running.add(who, call)
    assert running.calls() == {
        (*AVA, "known"): 2, (*AVA, "unknown"): 1, (*BOB, "known"): 0, (*BOB, "unknown"): 1,
    }  # fmt: skip
    assert running.progress() == {AVA: 1.0, BOB: 0.0}
    assert running.subgoals() == {
        (*AVA, "reached"): 4, (*AVA, "open"): 6, (*BOB, "reached"): 0, (*BOB, "open"): 2,
    }  # fmt: skip


def test_what_is_taken_away_leaves_nothing_behind() -> None:
    running = RunningProgress()
    calls = [so_far(of, (some, some, round(some / of, 4))) for of in (6, 7, 9, 13) for some in range(of + 1)]
    for call in calls:
        running.add(AVA, call)
    for call in calls:
        running.remove(AVA, call)
    assert running.progress() == {AVA: 0.0}
    assert set(running.calls().values()) | set(running.subgoals().values()) == {0}


def test_lines_at_zero_of_sums_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_progress, "MAX_KNOWN_GROUPS", 2)
    running = RunningProgress()
    for number in range(3):
        running.add((f"agent-{number}", "t", "e"), CallGoals(1))
    running.remove(("agent-0", "t", "e"), CallGoals(1))
    assert set(running.progress()) == {("agent-1", "t", "e"), ("agent-2", "t", "e")}


def test_the_engine_s_own_records_move_it_turn_by_turn_and_end_in_the_histogram(active: ActiveCalls) -> None:
    feed = GoalFeed(
        goal_set(SAID, USED, {"id": "more", "details": "More.", "check": {"kind": "tool_called", "tool": "x"}})
    )
    samples: list[Sample] = []
    read = 0

    def shown() -> list[float]:
        """The gauges after all that the engine has written so far: progress, subgoals reached and open."""
        nonlocal read
        for record in records_of(feed.effects[read:]):
            samples.extend(project(record, record.caused_at_ms, active.so_far(record.conversation_id)))
            active.take(record, 0, 0)
        read = len(feed.effects)
        return [*active.progress.progress().values(), *active.progress.subgoals().values()]

    feed.greet()
    seen = [shown()]
    for words, tool in (("hello", None), ("find me a flight", "find"), ("thanks", None)):
        feed.turn(words, tool=tool)
        seen.append(shown())
    assert seen == [[0, 0, 3], [0, 0, 3], [0.3333, 1, 2], [0.6667, 2, 1]]
    assert [sample for sample in samples if sample.metric == "callgauge_call_progress_ratio"] == []
    feed.end(END_MS)
    assert shown() == [0, 0, 0]
    assert [sample for sample in samples if "progress_ratio" in sample.metric or "scored" in sample.metric] == [
        Counted("callgauge_calls_scored_total", ("desk", "unknown", "unknown", "failure")),
        Observed("callgauge_call_progress_ratio", ("desk", "unknown", "unknown"), 0.6667),
        Observed("callgauge_goal_set_progress_ratio", ("desk", "unknown", "unknown", "flights"), 0.6667),
    ]
    reached = [sample for sample in samples if sample.metric == "callgauge_subgoals_reached_total"]
    assert reached == [Counted("callgauge_subgoals_reached_total", ("desk", "unknown", "unknown", "code"))] * 2
