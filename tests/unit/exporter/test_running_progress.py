"""How far a running call is by the records of it, and what all of them come to by agent."""

from typing import Any

import pytest

from consumers.exporter import running_progress
from consumers.exporter.active_calls import ActiveCalls
from consumers.exporter.projection import Counted, Observed, Sample, project
from consumers.exporter.running_progress import CallGoals, JudgedTurn, RunningProgress, goals_after
from schemas.scores.all_records import AnyScoreRecord, Scored, StallFact, Unscored, UnscoredReason
from tests.support.fakes.engine_feed import records_of
from tests.unit.engine.goals.test_goal_progress import END_MS, SAID, USED, GoalFeed, goal_set
from tests.unit.exporter.test_projection import FIRST, goals, progress

THIRD = Scored(value=0.3333)
MISSING = Unscored(reason=UnscoredReason.JUDGE_DISABLED)
WITHDRAWN = Unscored(reason=UnscoredReason.WITHDRAWN)


def so_far(subgoals: int, *judged: tuple[int, int, float | None]) -> CallGoals:
    """After these turns: number, subgoals reached, progress."""
    return CallGoals(subgoals, tuple(JudgedTurn(*each) for each in judged))


def after(*records: AnyScoreRecord) -> CallGoals | None:
    known = None
    for record in records:
        known = goals_after(known, record)
    return known


def judged(turn: int, value: float, reached: int, **fields: Any) -> AnyScoreRecord:
    return progress(Scored(value=value), turn=turn, reached=reached, subgoals=3, **fields)


@pytest.mark.parametrize(
    ("records", "known"),
    [
        ([], None),
        ([StallFact(**FIRST, since_turn=0, by="turns")], None),
        ([goals()], CallGoals(3)),
        ([goals(), goals()], CallGoals(3)),
        ([goals(), judged(1, 0.3333, 1)], so_far(3, (1, 1, 0.3333))),
        ([judged(7, 0.6667, 2)], so_far(3, (7, 2, 0.6667))),
        ([judged(1, 0.3333, 1), judged(2, 0.3333, 1)], so_far(3, (1, 1, 0.3333), (2, 1, 0.3333))),
        ([judged(1, 0.3333, 1), judged(2, 1.0, 3), goals()], so_far(3, (1, 1, 0.3333), (2, 3, 1.0))),
        ([judged(2, 0.6667, 2), judged(2, 0.3333, 1)], so_far(3, (2, 1, 0.3333))),
        ([judged(2, 0.6667, 2), judged(1, 0.3333, 1)], so_far(3, (1, 1, 0.3333), (2, 2, 0.6667))),
        ([judged(1, 0.0, 0), progress(MISSING, turn=2, reached=1, subgoals=3)], so_far(3, (1, 0, 0.0), (2, 1, None))),
        ([judged(1, 0.3333, 1), progress(WITHDRAWN, turn=1, reached=0, subgoals=3)], CallGoals(3)),
        (
            [judged(1, 0.3333, 1), judged(2, 0.6667, 2), progress(WITHDRAWN, turn=2, reached=0, subgoals=3)],
            so_far(3, (1, 1, 0.3333)),
        ),
        (
            [judged(2, 0.3333, 1), progress(WITHDRAWN, turn=1, reached=0, subgoals=3)],
            so_far(3, (2, 1, 0.3333)),
        ),
        ([progress(WITHDRAWN, turn=1, reached=0, subgoals=3)], None),
    ],
    ids=[
        "of no record nothing is known",
        "nor of one that says nothing of progress",
        "goals alone: nothing is reached yet",
        "goals said again change nothing",
        "the first turn judged",
        "a call that was under way before",
        "the next turn replaces it",
        "whatever comes between changes nothing",
        "the turn judged again replaces it",
        "an older turn judged again stays the older one",
        "a missing verdict makes it unknown",
        "so does a turn that is none any more, if it was the only one",
        "else the one before it counts again",
        "a withdrawn turn that was not the newest changes nothing",
        "what nobody has seen cannot be taken back",
    ],
)
def test_the_newest_turn_judged_says_how_far_a_call_is(records: list[AnyScoreRecord], known: CallGoals | None) -> None:
    assert after(*records) == known


def test_turns_that_are_withdrawn_give_way_to_the_one_before_them() -> None:
    """Nothing is published again of those before."""
    records = [judged(turn, value, 1) for turn, value in ((1, 0.0), (2, 0.3333), (3, 0.6667), (4, 1.0), (5, 1.0))]
    records += [progress(WITHDRAWN, turn=turn, subgoals=3) for turn in (4, 5)]
    found = after(*records)
    assert found == so_far(3, (1, 1, 0.0), (2, 1, 0.3333), (3, 1, 0.6667))
    assert (found.reached, found.progress) == (1, 0.6667)


def test_turns_kept_of_a_call_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_progress, "MAX_JUDGED_TURNS", 2)
    assert after(*(judged(turn, 0.3333, 1) for turn in range(1, 9))) == so_far(3, (7, 1, 0.3333), (8, 1, 0.3333))


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
            samples.extend(project(record, record.caused_at_ms, active.progress_of(record.conversation_id)))
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
    ]
    reached = [sample for sample in samples if sample.metric == "callgauge_subgoals_reached_total"]
    assert reached == [Counted("callgauge_subgoals_reached_total", ("desk", "code"))] * 2
