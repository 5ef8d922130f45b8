"""The table of scored calls says how long callers waited, how far calls got, and what
to look at.
"""

from typing import Any

import pytest

from consumers.view.calls import ReportedCall
from consumers.view.contents import Moment, Standout, standouts
from schemas.rows import Goals, Stall, SubgoalResult
from streamer.summaries import CallSummary, standout_lines, summary_of, summary_table
from streamer.terminal import Screen
from tests.support.calls.console_calls import call_row, reported_rows
from tests.support.calls.report_calls import goal_set, recorded, reported


def call_of(**more: Any) -> ReportedCall:
    return reported(recorded(**more), goal_set("hello"))


def test_a_call_is_one_row_with_what_is_known() -> None:
    summary = summary_of(call_of(conversation_id="call-7"))
    console = Screen(width=200, color_system=None)
    with console.capture() as captured:
        console.print(summary_table([summary], 200))
    heads, row = (line.split("  ") for line in captured.get().splitlines())
    assert [each.strip() for each in heads if each.strip()] == [
        "call",
        "agent",
        "length",
        "turns",
        "answers",
        "median",
        "longest",
        "dead air",
        "goals",
        "end",
    ]
    assert row[0] == "call-7"
    assert "4.00 s" in summary.cells


def test_what_stands_out_names_the_turns() -> None:
    lines = list(standout_lines([summary_of(call_of(conversation_id="call-7"))]))
    assert lines[0] == "What stands out:"
    (wait,) = [line for line in lines if "Waits over" in line]
    assert wait.startswith("  call-7: Waits over 1.50 s, the objective: turn ")
    assert "(4.00 s)" in wait
    assert any("Failed tools" in line for line in lines)
    whole = Standout("Task not completed", (Moment(None, "other records"),), is_fault=True)
    turn = Standout("Waits", (Moment(2, ""), Moment(3, "4 s")), is_fault=True)
    assert list(standout_lines([CallSummary("c", (), (whole, turn))]))[1:] == [
        "  c: Task not completed: other records",
        "  c: Waits: turn 2, turn 3 (4 s)",
    ]
    assert list(standout_lines([])) == ["Nothing stands out."]


def stalled(
    reached: tuple[int, ...], stalls: tuple[int, ...], state: str = "running"
) -> ReportedCall:
    """A call that reached subgoals in these turns, and stood still after these."""
    subgoals = tuple(SubgoalResult(1.0, turn) for turn in reached)
    return reported_rows(
        call_row(
            goals=Goals("g", "d", subgoals, stalls=tuple(Stall(turn, "turns") for turn in stalls)),
            state=state,
        )
    )


@pytest.mark.parametrize(
    ("state", "end"), [("closed", "to the end of the call"), ("running", "until now")]
)
def test_a_stall_says_until_when_the_call_stood_still(state: str, end: str) -> None:
    """A call that made progress afterwards was not stalled to its end, and may have reached all of
    its goals.
    """
    (found,) = standouts(stalled((3, 9), (3, 9), state))
    assert found.heading == "No goal reached after"
    assert [(each.turn, each.text) for each in found.moments] == [(3, "until turn 9"), (9, end)]
    assert found.is_fault


@pytest.mark.parametrize(("reached_turn", "is_fault"), [(9, False), (2, True)])
def test_a_stall_that_the_call_came_out_of_is_no_fault(reached_turn: int, is_fault: bool) -> None:
    (found,) = standouts(stalled((reached_turn,), (3,)))
    assert found.is_fault is is_fault
