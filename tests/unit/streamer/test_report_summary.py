"""The table of scored calls says how long callers waited, how far calls got, and what to look at."""

from typing import Any

import pytest

from consumers.console.page.calls import ReportedCall
from consumers.console.page.sections import Moment, Standout, standouts
from schemas.scores.records import CallLabels, Scored, StallFact, SubgoalScore, TurnStatus
from streamer.report import CallSummary, standout_lines, summary_of, summary_table
from streamer.terminal import Screen
from tests.support.calls.report_calls import Marks, goal_set, recorded, reported

PLAIN = Marks("\x00")


def call_of(**more: Any) -> ReportedCall:
    return reported(recorded(**more), goal_set("hello"))


def test_a_call_is_one_row_with_what_is_known() -> None:
    summary = summary_of(call_of(conversation_id="call-7"))
    console = Screen(width=200, color_system=None)
    with console.capture() as captured:
        console.print(summary_table([summary]))
    heads, row = (line.split("  ") for line in captured.get().splitlines())
    assert [each.strip() for each in heads if each.strip()] == [
        "call", "agent", "length", "turns", "answers", "median", "longest", "dead air", "goals", "end",
    ]  # fmt: skip
    assert row[0] == "call-7"
    assert "4.00 s" in summary.cells


def test_what_stands_out_names_the_turns() -> None:
    lines = list(standout_lines([summary_of(call_of(conversation_id="call-7"))]))
    assert lines[0] == "What stands out:"
    (wait,) = [line for line in lines if "Waits over" in line]
    assert wait.startswith("  call-7: Waits over 1.50 s, the objective: turn ")
    assert "(4.00 s)" in wait
    assert any("Tools without success" in line for line in lines)
    whole = Standout("Task not completed", (Moment(None, "other records"),), is_fault=True)
    turn = Standout("Waits", (Moment(2, ""), Moment(3, "4 s")), is_fault=True)
    assert list(standout_lines([CallSummary("c", (), (whole, turn))]))[1:] == [
        "  c: Task not completed: other records",
        "  c: Waits: turn 2, turn 3 (4 s)",
    ]
    assert list(standout_lines([])) == ["Nothing stands out."]


def common(**more: Any) -> dict[str, Any]:
    return {
        "conversation_id": "c", "revision": 1, "status": TurnStatus.FINAL, "input_hash": "", "offsets": {},
        "event_time_ms": 1, "caused_at_ms": 1, "labels": CallLabels(), "code_version": "1", **more,
    }  # fmt: skip


def test_a_stall_says_until_when_the_call_stood_still() -> None:
    """A call that made progress afterwards was not stalled to its end, and may have reached all of its goals."""
    call = call_of()
    stalls = [StallFact(since_turn=turn, by="turns", **common(turn=turn + 4, index=turn)) for turn in (3, 9)]
    reached = [
        SubgoalScore(
            result=Scored(value=True), subgoal_id=f"s{turn}", checked_by="code", reached_turn=turn,
            **common(turn=None, index=turn),
        )
        for turn in (3, 9)
    ]  # fmt: skip
    assert call.closed is not None
    for closed, end in (([call.closed], "to the end of the call"), ([], "until now")):
        other = ReportedCall("c", call.heard, [*reached, *stalls, *closed], "c1", PLAIN)
        (found,) = [each for each in standouts(other) if each.heading == "No progress after"]
        assert [(each.turn, each.text) for each in found.moments] == [(3, "until turn 9"), (9, end)]
        assert found.is_fault


@pytest.mark.parametrize(("reached_turn", "is_fault"), [(9, False), (2, True)])
def test_a_stall_that_the_call_came_out_of_is_no_fault(reached_turn: int, is_fault: bool) -> None:
    call = call_of()
    stall = StallFact(since_turn=3, by="turns", **common(turn=7, index=3))
    reached = SubgoalScore(
        result=Scored(value=True), subgoal_id="s", checked_by="code", reached_turn=reached_turn,
        **common(turn=None, index=1),
    )  # fmt: skip
    other = ReportedCall("c", call.heard, [reached, stall], "c1", PLAIN)
    assert [each.is_fault for each in standouts(other) if each.heading == "No progress after"] == [is_fault]
