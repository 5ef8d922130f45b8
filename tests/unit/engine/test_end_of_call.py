"""How a call ended for its caller."""

from typing import Any

import pytest

from consumers.engine.end_of_call import set_end
from schemas.closed_sets import CallOutcome, CloseReason
from schemas.rows import CallRow, Errors, Waiting
from schemas.scores.trouble import ERROR_MS

END_MS = 1_790_000_060_000
WAITS = Waiting(2, END_MS - 9_000, 1)
ASKS_AGAIN = Waiting(2, END_MS - 9_000, 2)


def ended(*, has_answer: bool = True, is_told: bool = True, **parts: Any) -> CallRow:
    row = CallRow(conversation_id="one", state="closed", last_known_ms=END_MS, **parts)
    set_end(row, has_answer=has_answer, is_told=is_told)
    return row


@pytest.mark.parametrize(
    ("parts", "outcome", "in_vain_ms"),
    [
        ({}, "ended", None),
        ({"waiting": WAITS, "turns": 2}, "hung_up", 9_000),
        ({"waiting": WAITS, "turns": 2, "is_told": False}, "events_stopped", None),
        ({"waiting": ASKS_AGAIN, "turns": 2, "is_told": False}, "hung_up", 9_000),
        (
            {"waiting": ASKS_AGAIN, "is_told": False, "close_reason": CloseReason.LIMIT_TURNS},
            "events_stopped",
            None,
        ),
        ({"waiting": WAITS, "ended_reason": "error"}, "failed", 9_000),
        ({"errors": Errors(1, 1, END_MS - ERROR_MS)}, "failed", None),
        ({"errors": Errors(1, 1, END_MS - ERROR_MS - 1)}, "ended", None),
    ],
)
def test_how_a_call_with_an_answer_ended(
    parts: dict[str, Any], outcome: str, in_vain_ms: int | None
) -> None:
    row = ended(**parts)
    assert (row.outcome, row.in_vain_ms) == (outcome, in_vain_ms)


@pytest.mark.parametrize(
    ("parts", "outcome"),
    [
        ({"waiting": Waiting(0, END_MS, 1)}, "never_answered"),
        ({"unanswered": 1, "turns": 1}, "never_answered"),
        ({"unanswered": 1, "turns": 1, "ended_reason": "error"}, "never_answered"),
        ({"waiting": WAITS, "unanswered": 1, "turns": 2}, "never_answered"),
        ({"waiting": Waiting(3, END_MS, 1), "turns": 3}, "hung_up"),
        ({"unanswered": 1, "turns": 3}, "ended"),
        ({"turns": 2}, "ended"),
    ],
)
def test_a_call_without_an_answer_was_never_answered_if_its_turns_say_so(
    parts: dict[str, Any], outcome: str
) -> None:
    assert ended(has_answer=False, **parts).outcome == outcome


def test_an_answer_that_began_before_the_caller_had_ended_is_one() -> None:
    """Its wait is negative, so it is left out of the median."""
    assert ended(unanswered=1, turns=2).outcome is CallOutcome.ENDED
    assert ended(unanswered=1, turns=2, has_answer=False).outcome is CallOutcome.NEVER_ANSWERED
