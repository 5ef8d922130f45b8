"""The line of a running call says the same wherever it is printed."""

from typing import Any

import pytest

from consumers.console.fleet import Fleet
from consumers.console.page.running import running_line
from consumers.console.pages import Alerts, Site, now_boxes
from schemas.rows import Answer
from schemas.scores.running import EVERY_CALL, ShownCall, running_now
from schemas.scores.trouble import troubles_of
from streamer.roles.demo_view import screen
from streamer.terminal import Screen
from tests.support.calls.console_calls import AT_MS, call_row

CLOSED = {
    "state": "closed",
    "close_reason": "ended",
    "ended_reason": "goodbye",
    "known_ms": AT_MS + 90_000,
}


@pytest.mark.parametrize(
    ("more", "length_ms"),
    [
        ({}, None),
        (CLOSED, 90_000),
        (CLOSED | {"began_ms": AT_MS, "ended_ms": AT_MS + 61_500}, 61_500),
    ],
)
def test_a_call_that_is_over_is_as_long_as_its_own_clock_says(
    more: dict[str, Any], length_ms: float | None
) -> None:
    assert running_line(ShownCall(call_row(**more), ())).length_ms == length_ms


def test_the_page_and_the_terminal_say_the_same_of_a_call() -> None:
    row = call_row(turn=4, answer=Answer(4, 10_160.0))
    fleet = Fleet()
    fleet.take(row)
    now = running_now(fleet.table, fleet.known, AT_MS)
    markup = now_boxes(Site("/", "1", "s", has_past=False), now, EVERY_CALL, fleet, Alerts(), {})[
        "calls"
    ]
    console = Screen(width=120, color_system=None)
    with console.capture() as captured:
        console.print(
            screen("", [ShownCall(row, troubles_of(row, AT_MS))], AT_MS, width=120, height=40)
        )
    for text in ("10.2 s", "turn 4 slow: 10.2 s", "desk"):
        assert text in list(markup.values())[-1]
        assert text in captured.get()
