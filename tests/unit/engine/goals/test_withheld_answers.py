"""Goals on arguments or answers of tools, of bots and agents that withhold them: unknown, and never false."""

from typing import Any

import pytest

from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.goals.progress import ChosenGoals
from consumers.engine.limits import GoalRules, Limits
from schemas.closed_sets import UnscoredReason
from schemas.goals.goal_set import GoalSet
from tests.support.calls.agent_calls import heard, said, tool_replied, tool_requested
from tests.support.fakes.engine_feed import T0_MS, Feed, Json, plain, value_of

ENDED: Json = {"type": "call_ended", "reason": "goodbye"}
WITHHELD = UnscoredReason.WITHHELD.value
STATUS_ALONE: Json = {"status": "success", "withheld": True}


class OneSet:
    def __init__(self, goals: GoalSet) -> None:
        self.goals = goals

    def choose(self, _goals_id: str | None, _agent: str | None) -> GoalSet:
        return self.goals


def feed_with(check: Json) -> Feed:
    """A call with this goal and one that is reached in turn 1."""
    goals = GoalSet.model_validate(
        {
            "id": "g",
            "subgoals": [
                {"id": "a", "details": "d", "check": check},
                {"id": "b", "details": "d", "check": {"kind": "tool_called", "tool": "book"}},
            ],
        }
    )
    feed = Feed()
    feed.evaluator = PartitionEvaluator(Limits(), "test", ChosenGoals(OneSet(goals), GoalRules()))
    feed.send("audit", {"type": "call_started", "agent": "desk"}, 0)
    return feed


def of_pipecat(check: Json, **answer: Any) -> Feed:
    """Two turns, the tool in the first."""
    feed = feed_with(check)
    for at_ms in (1_000, 8_000):
        feed.speech("user_speech_started", at_ms)
        feed.speech("user_speech_stopped", at_ms + 1_000)
        if at_ms == 1_000:
            began = {"timestamp": (T0_MS + 2_100) / 1000}
            named = {"function_name": "book", "tool_call_id": "t1"}
            given = {"arguments": answer.pop("arguments")} if "arguments" in answer else {}
            event = {"kind": "function_call_in_progress", **named, **began, **given}
            feed.send("pipecat", {"type": "function_call_event", "data": event}, 2_100)
            ended = {"timestamp": (T0_MS + 2_900) / 1000}
            event = {"kind": "function_call_completed", **named, **ended, **answer}
            feed.send("pipecat", {"type": "function_call_event", "data": event}, 2_900)
        feed.speech("bot_speech_started", at_ms + 3_000)
        feed.speech("bot_speech_stopped", at_ms + 4_000)
    feed.send("pipecat", ENDED, 13_000)
    feed.advance(60_000)
    return feed


def first_subgoal(feed: Feed) -> float | str:
    return value_of([record for record in feed.records("subgoal") if record.index == 0][-1])


SUCCESS: Json = {"kind": "tool_result", "tool": "book", "outcome": "success"}
SEAT: Json = {"kind": "tool_result", "tool": "book", "result": {"seat": {"equals": 4}}}
NO_SEAT: Json = {"kind": "tool_result", "tool": "book", "result": {"seat": {"present": False}}}
FOR_ANN: Json = {"kind": "tool_called", "tool": "book", "arguments": {"name": {"equals": "Ann"}}}


@pytest.mark.parametrize(
    ("check", "answer", "value"),
    [
        (SUCCESS, {}, WITHHELD),
        (SUCCESS, {"result": STATUS_ALONE}, 1.0),
        (SUCCESS | {"outcome": "error"}, {"result": STATUS_ALONE}, 0.0),
        (SUCCESS, {"result": {"status": "error", "withheld": True}}, 0.0),
        (SEAT, {}, WITHHELD),
        (SEAT, {"result": STATUS_ALONE}, WITHHELD),
        (SEAT, {"result": {"seat": 4}}, 1.0),
        (SEAT, {"result": {"seat": 5}}, 0.0),
        (NO_SEAT, {"result": STATUS_ALONE}, WITHHELD),
        ({"kind": "not", "check": SEAT}, {"result": STATUS_ALONE}, WITHHELD),
        (SEAT | {"tool": "find"}, {"result": STATUS_ALONE}, 0.0),
        ({"kind": "within", "turns": 1, "check": SEAT}, {"result": STATUS_ALONE}, WITHHELD),
        (FOR_ANN, {"result": STATUS_ALONE}, WITHHELD),
        (FOR_ANN, {"arguments": {"name": "Ann"}, "result": STATUS_ALONE}, 1.0),
        (FOR_ANN, {"arguments": {"name": "Bob"}, "result": STATUS_ALONE}, 0.0),
    ],
)
def test_a_goal_on_what_is_withheld_is_unknown_and_any_other_is_known(
    check: Json, answer: Json, value: float | str
) -> None:
    feed = of_pipecat(check, **answer)
    assert first_subgoal(feed) == value
    unknown = feed.call_values().unscored_subgoals
    assert unknown == ({WITHHELD: 1} if value == WITHHELD else {})
    success = feed.call_values().success_final_turn
    assert success is not None
    assert plain(success) == value
    progress = value_of(feed.records("progress", turn=1)[-1])
    assert progress == (WITHHELD if value == WITHHELD else (1 + float(value)) / 2)


def test_a_later_answer_that_is_sent_decides() -> None:
    """The tool of turn 1 withholds, an equal one of turn 2 does not."""
    feed = feed_with(SEAT)
    for turn, answer in ((1, STATUS_ALONE), (2, {"seat": 4})):
        at_ms = turn * 5_000
        feed.speech("user_speech_started", at_ms)
        feed.speech("user_speech_stopped", at_ms + 1_000)
        times = {"timestamp": (T0_MS + at_ms + 1_900) / 1000, "in_progress_at": (T0_MS + at_ms + 1_100) / 1000}
        event = {
            "kind": "function_call_completed",
            "function_name": "book",
            "tool_call_id": f"t{turn}",
            **times,
            "result": answer,
        }
        feed.send("pipecat", {"type": "function_call_event", "data": event}, at_ms + 1_900)
        feed.speech("bot_speech_started", at_ms + 2_000)
        feed.speech("bot_speech_stopped", at_ms + 3_000)
    feed.send("pipecat", ENDED, 15_000)
    feed.advance(60_000)
    assert first_subgoal(feed) == 1.0
    assert [record.reached_turn for record in feed.records("subgoal") if record.index == 0][-1] == 2


@pytest.mark.parametrize(
    ("kind", "more", "check", "value"),
    [
        ("agent_tool_response", {}, SEAT, WITHHELD),
        ("agent_tool_response", {}, SUCCESS, 1.0),
        ("agent_tool_response_full_payload", {"full_tool_result": {"seat": 4}}, SEAT, 1.0),
        ("agent_tool_response", {}, FOR_ANN, WITHHELD),
    ],
)
def test_tools_of_an_agent_whose_monitor_sends_neither(kind: str, more: Json, check: Json, value: float | str) -> None:
    feed = feed_with(check)
    for event in (
        heard("A seat, please.", 2_000, 1), tool_requested("book", "t1", 2_100), tool_replied("book", "t1", 2_900, kind, **more),
        said("Booked.", 3_000, 1),
    ):  # fmt: skip
        feed.send("user_sim", event, event["timestamp"] - T0_MS)
    feed.send("audit", ENDED, 6_000)
    feed.advance(600_000)
    assert first_subgoal(feed) == value
