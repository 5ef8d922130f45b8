"""The page of running calls: no text of a call becomes markup, and many calls give few rows and a count."""

from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from urllib.parse import parse_qsl

import pytest

from consumers.console.api import CallsQuery
from consumers.console.fleet import Fleet
from consumers.console.pages import (
    MOST_ALERTS,
    MOST_NAMES,
    MOST_ROWS,
    Alert,
    Alerts,
    Site,
    common_boxes,
    now_boxes,
    now_page,
    query_of,
)
from schemas.closed_sets import SortKey
from schemas.rows import Goals, Labels, Stall, Waiting
from schemas.scores.running import EVERY_CALL, WantedCalls
from tests.support.calls.console_calls import AT_MS, call_row

NO_ALERTS = Alerts((), "none")
SITE = Site("./", "1", "s", has_past=True)
HOSTILE = [
    "<script>alert(1)</script>",
    "\"'><img src=x onerror=alert(1)>",
    "</title></style><svg onload=alert(1)>",
    "{{ 7*7 }}${7*7}",
    "javascript:alert(1)",
]


class Shape(HTMLParser):
    """Tags, and all attributes but those that hold texts."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.text: list[str] = []
        self.links: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(f"{tag} {' '.join(sorted(name for name, _ in attrs))}")
        self.links += [value or "" for name, value in attrs if name in {"href", "src"}]

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def fleet_of(names: Sequence[str], *, at_ms: int = AT_MS, text: str = "tool") -> Fleet:
    """Running calls with these ids, in each of which a tool has failed."""
    fleet = Fleet()
    labels = Labels(text, None, text, text)
    for name in names:
        fleet.take(call_row(name, known_ms=at_ms, labels=labels, failing_tools={text: 1}))
    return fleet


def boxes_of(
    fleet: Fleet, wanted: WantedCalls = EVERY_CALL, alerts: Alerts = NO_ALERTS, at_ms: int = AT_MS
) -> Mapping[str, Mapping[str, str]]:
    now = fleet.now(at_ms)
    return now_boxes(SITE, now, wanted, fleet, common_boxes(now, fleet, alerts))


def shown(fleet: Fleet, wanted: WantedCalls = EVERY_CALL, alerts: Alerts = NO_ALERTS) -> str:
    return now_page(SITE, boxes_of(fleet, wanted, alerts, AT_MS + 1_000), wanted, wall=False)


def calls_of(name: str) -> WantedCalls:
    names = frozenset({name})
    return WantedCalls(text=name, agents=names, tenants=names, environments=names)


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_of_a_call_becomes_markup(text: str) -> None:
    alert = Alert(text, "critical", text, text, AT_MS)
    alerts = Alerts([alert], text, [alert._replace(fires_ms=AT_MS + 1)], text)
    for makes in (lambda _: EVERY_CALL, calls_of):
        hostile = Shape(shown(fleet_of([text], text=text), makes(text), alerts))
        plain = Shape(shown(fleet_of(["x"], text="x"), makes("x"), alerts))
        assert hostile.tags == plain.tags
        assert text in "".join(hostile.text)
        assert all(link.startswith(("./", "data:image/svg+xml,")) for link in hostile.links)


def test_an_id_with_slashes_has_one_place() -> None:
    assert SITE.call_href("../a?b#c/d") == "./calls/..%2Fa%3Fb%23c%2Fd"


def test_many_calls_give_few_rows_and_a_count() -> None:
    fleet = fleet_of([f"call-{number}" for number in range(5_000)])
    boxes = boxes_of(fleet)
    assert len(boxes["calls"]) == MOST_ROWS == 50
    assert "and 4,950 further calls, 4,950 of them in trouble" in boxes["rest"]["more"]
    few = boxes_of(fleet, WantedCalls(text="call-499"))
    assert len(few["calls"]) == 11
    assert len(set(boxes["calls"])) == MOST_ROWS


def test_names_and_alerts_are_bounded() -> None:
    fleet = Fleet()
    for number in range(2 * MOST_NAMES):
        fleet.take(call_row(str(number), labels=Labels(agent=f"agent-{number:04}")))
    many = [Alert(f"Alert{number}", "warning", "", "", 0) for number in range(1_000)]
    alerts = Alerts(many, "", [each._replace(fires_ms=1) for each in many])
    boxes = boxes_of(fleet, EVERY_CALL, alerts)
    assert boxes["names"]["lists"].count("<option") <= MOST_NAMES + 2
    assert boxes["alerts"]["firing"].count("<li") == 2 * MOST_ALERTS


def test_each_part_carries_its_id_and_an_empty_page_says_so() -> None:
    fleet = Fleet()
    boxes = boxes_of(fleet)
    assert boxes["calls"] == {}
    assert "<code>callgauge serve</code> has printed a line that sends a first one" in boxes["rest"]["more"]
    full = fleet_of(["a", "b"])
    others = boxes_of(full, WantedCalls(text="nothing like this"))
    assert "No call like this runs now." in others["rest"]["more"]
    for parts in (boxes, boxes_of(full)):
        for part, markup in ((part, markup) for each in parts.values() for part, markup in each.items()):
            assert f'id="{part}"' in markup.partition(">")[0]


def test_a_call_that_ended_says_how() -> None:
    fleet = fleet_of(["c"], at_ms=AT_MS)
    fleet.take(call_row("c", state="closed", close_reason="ended", ended_reason="<b>goodbye</b>"))
    row = next(iter(boxes_of(fleet)["calls"].values()))
    assert "over: &lt;b&gt;goodbye&lt;/b&gt;" in row


@pytest.mark.parametrize("sort", ["trouble", "quiet", "latency", "began", "agent"])
def test_a_choice_survives_its_address(sort: SortKey) -> None:
    wanted = WantedCalls(frozenset({"a&b", "c"}), frozenset({"ü"}), text="x=y&z", only_bad=True, sort=sort)
    assert CallsQuery.model_validate(dict(parse_qsl(query_of(wanted)))).wanted() == wanted


def test_a_call_that_ended_badly_says_why() -> None:
    fleet = fleet_of([])
    fleet.take(call_row("c", state="closed", close_reason="ended", turn=4, waiting=Waiting(4, AT_MS, 1)))
    (row,) = boxes_of(fleet)["calls"].values()
    assert '<li class="bad">ended: no answer in turn 4</li>' in row
    assert 'class="over"' in row


def test_a_stalled_call_is_in_trouble() -> None:
    fleet = fleet_of([])
    fleet.take(call_row(goals=Goals("g", "d", stalls=(Stall(1, "turns"),), is_stalled=True)))
    assert "stalled" in shown(fleet)
