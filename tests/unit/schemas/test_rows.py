"""Rows on the wire: one that is too large loses fields, says which, and keeps what counts."""

from typing import Any

import pytest

from schemas.rows import (
    MAX_ROW_BYTES,
    CallRow,
    Goals,
    Note,
    SubgoalResult,
    ToolUse,
    TurnRow,
    decode,
    encode,
)

LONG = "x" * 4_000
TOOLS = tuple(ToolUse(index=index, tool=LONG) for index in range(40))
NOTES = tuple(Note("handoff", index, to_agent=LONG) for index in range(40))
GOALS = Goals(
    goal_set="g",
    digest="d",
    subgoals=tuple(SubgoalResult(1.0, reached_turn=index, trials=(LONG,)) for index in range(40)),
)


@pytest.mark.parametrize(
    ("row", "left_out"),
    [
        (TurnRow(conversation_id="c", turn=1, wait_ms=9.0, tools=TOOLS), ("tools",)),
        (CallRow(conversation_id="c", notes=NOTES), ("notes",)),
        (CallRow(conversation_id="c", goals=GOALS), ("goals",)),
    ],
)
def test_a_row_that_is_too_large_loses_a_field_and_says_so(
    row: Any, left_out: tuple[str, ...]
) -> None:
    value = encode(row)
    sent: Any = decode(value)
    assert (len(value) <= MAX_ROW_BYTES, sent.left_out) == (True, left_out)


def test_goals_of_a_row_that_is_too_large_keep_what_counts() -> None:
    sent: Any = decode(encode(CallRow(conversation_id="c", goals=GOALS)))
    assert [each.reached_turn for each in sent.goals.subgoals] == list(range(40))
    assert {each.trials for each in sent.goals.subgoals} == {()}
