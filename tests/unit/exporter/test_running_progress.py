"""Sums over the running calls with goals, by agent."""

import pytest

from consumers.exporter import projection as running_progress
from consumers.exporter.projection import ActiveCalls, Counted, Observed, RunningProgress, Sample, project
from schemas.scores.live_view import CallGoals, JudgedTurn
from tests.support.fakes.engine_feed import records_of
from tests.unit.engine.goals.test_progress import END_MS, SAID, USED, GoalFeed, goal_set


def so_far(subgoals: int, *judged: tuple[int, int, float | None]) -> CallGoals:
    """After these turns: number, subgoals reached, progress."""
    return CallGoals(subgoals, tuple(JudgedTurn(turn, 1, reached, 0, share) for turn, reached, share in judged))


def test_sums_are_by_agent_and_exact() -> None:
    running = RunningProgress()
    for agent, call in (
        ("ava", so_far(3, (1, 1, 0.3333))),
        ("ava", so_far(3, (1, 0, 0.0), (4, 2, 0.6667))),
        ("ava", so_far(4, (2, 1, None))),
        ("bob", CallGoals(2)),
    ):
        running.add(agent, call)
    assert running.calls() == {
        ("ava", "known"): 2, ("ava", "unknown"): 1, ("bob", "known"): 0, ("bob", "unknown"): 1,
    }  # fmt: skip
    assert running.progress() == {("ava",): 1.0, ("bob",): 0.0}
    assert running.subgoals() == {
        ("ava", "reached"): 4, ("ava", "open"): 6, ("bob", "reached"): 0, ("bob", "open"): 2,
    }  # fmt: skip


def test_what_is_taken_away_leaves_nothing_behind() -> None:
    running = RunningProgress()
    calls = [so_far(of, (some, some, round(some / of, 4))) for of in (6, 7, 9, 13) for some in range(of + 1)]
    for call in calls:
        running.add("ava", call)
    for call in calls:
        running.remove("ava", call)
    assert running.progress() == {("ava",): 0.0}
    assert set(running.calls().values()) | set(running.subgoals().values()) == {0}


def test_lines_at_zero_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_progress, "MAX_KNOWN_AGENTS", 2)
    running = RunningProgress()
    for number in range(3):
        running.add(f"agent-{number}", CallGoals(1))
    running.remove("agent-0", CallGoals(1))
    assert set(running.progress()) == {("agent-1",), ("agent-2",)}


def test_the_engine_s_own_records_move_it_turn_by_turn_and_end_in_the_histogram() -> None:
    feed = GoalFeed(
        goal_set(SAID, USED, {"id": "more", "details": "More.", "check": {"kind": "tool_called", "tool": "x"}})
    )
    active = ActiveCalls(max_calls=10, forget_after_ms=1000)
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
        Counted("callgauge_calls_scored_total", ("desk", "failure")),
        Observed("callgauge_call_progress_ratio", ("desk",), 0.6667),
        Observed("callgauge_goal_set_progress_ratio", ("flights", "unknown"), 0.6667),
    ]
    reached = [sample for sample in samples if sample.metric == "callgauge_subgoals_reached_total"]
    assert reached == [Counted("callgauge_subgoals_reached_total", ("desk", "code"))] * 2
