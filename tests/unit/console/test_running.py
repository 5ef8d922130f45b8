"""The line of a running call says the same wherever it is printed."""

from typing import Any

import pytest

from consumers.console.fleet import Fleet
from consumers.console.pages import Alerts, Site, now_boxes
from consumers.view.contents import tiles
from consumers.view.running import running_line
from schemas.rows import Answer
from schemas.scores.running import EVERY_CALL, ShownCall, running_now
from schemas.scores.trouble import troubles_of
from streamer.roles.demo_view import screen
from streamer.terminal import Screen
from tests.support.calls.console_calls import AT_MS, call_row, reported_rows

CLOSED = {
    "state": "closed",
    "close_reason": "ended",
    "ended_reason": "goodbye",
    "known_ms": AT_MS + 90_000,
}


def calls_of(fleet: Fleet) -> str:
    """The newest row of the page."""
    now = running_now(fleet.table, fleet.known, AT_MS)
    boxes = now_boxes(Site("/", "1", "s", has_past=False), now, EVERY_CALL, fleet, Alerts(), {})
    return list(boxes["calls"].values())[-1]


@pytest.mark.parametrize(
    ("more", "length_ms"),
    [
        ({}, None),
        (CLOSED, 90_000),
        (CLOSED | {"began_ms": AT_MS, "ended_ms": AT_MS + 61_500}, 61_500),
        ({"state": "over", "known_ms": AT_MS + 40_000, "began_ms": AT_MS - 700}, 40_000),
    ],
)
def test_a_call_that_is_over_is_as_long_as_its_own_clock_says(
    more: dict[str, Any], length_ms: float | None
) -> None:
    row = call_row(**more)
    assert running_line(ShownCall(row, ())).length_ms == length_ms
    if length_ms is not None:
        page = reported_rows(row)
        (told,) = (tile.value for tile in tiles(page) if tile.name == "Length")
        fleet = Fleet()
        fleet.put_row(row)
        assert f">{told}</td>" in calls_of(fleet), "as its page says"


def test_the_page_and_the_terminal_say_the_same_of_a_call() -> None:
    row = call_row(turn=4, answer=Answer(4, 10_160.0))
    fleet = Fleet()
    fleet.put_row(row)
    markup = calls_of(fleet)
    console = Screen(width=120, color_system=None)
    with console.capture() as captured:
        console.print(
            screen("", [ShownCall(row, troubles_of(row, AT_MS))], AT_MS, width=120, height=40)
        )
    for text in ("10.2 s", "turn 4 slow: 10.2 s", "desk"):
        assert text in markup
        assert text in captured.get()
