"""The pages of past calls and of versions: what is unknown is not zero, no text becomes markup, and
an address keeps the question.
"""

import html
import re
from html.parser import HTMLParser
from typing import Any
from urllib.parse import parse_qsl

import pytest

from consumers.console.agents import BadTime
from consumers.console.pages import Site
from consumers.console.past import (
    BESIDE,
    FACETS,
    PRESETS,
    InCommon,
    LotsQuery,
    PastFound,
    PastQuery,
    Usual,
    Versions,
    bad_times_page,
    comparison_page,
    marked,
    past_href,
    past_page,
    versions_page,
    why,
)
from consumers.store.changes import (
    COMPARED,
    Comparison,
    Lot,
    LotCalls,
    SubgoalChange,
    change_of,
    worse_than_the_others,
)
from consumers.view.calls import ReportedCall
from consumers.view.words import clock
from schemas.closed_sets import UnscoredReason
from schemas.rows import (
    Goals,
    GoalsRow,
    Labels,
    NotApplicable,
    Progress,
    SideSpeech,
    Speech,
    SubgoalResult,
    Unscored,
    WordsRow,
)
from tests.support.calls.console_calls import AT_MS, call_row, reported_rows, sounds, turn_row
from tests.support.calls.report_calls import goal_set
from tests.unit.console.test_pages import HOSTILE, Shape

SITE = Site("./", "1", "s", has_past=True)


def shown(*rows: dict[str, Any], asked: PastQuery | None = None, **more: Any) -> str:
    return past_page(SITE, asked or PastQuery(), PastFound(rows, len(rows), **more), "")


class Cells(HTMLParser):
    """The cells of the last row of a table by their headings."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.cells: dict[str, str] = {}
        self._head = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "td":
            self._head = dict(attrs).get("data-head") or ""
            self.cells[self._head] = ""

    def handle_endtag(self, tag: str) -> None:
        self._head = "" if tag == "td" else self._head

    def handle_data(self, data: str) -> None:
        if self._head:
            self.cells[self._head] += data


def test_zero_is_zero_and_unknown_is_a_dash() -> None:
    cells = Cells(
        shown(
            {"conversation_id": "a", "unanswered": 0, "goals.progress.result": 0.0, "p50_ms": None}
        )
    ).cells
    assert (cells["Unanswered"], cells["Subgoals"], cells["Median wait"]) == ("0", "0 %", "\u2013")


@pytest.mark.parametrize(
    ("call", "reasons"),
    [
        (
            {
                "outcome": "never_answered",
                "troubles": " unanswered dead_air ",
                "unanswered": 3,
                "dead_airs": 2,
            },
            ["never answered", "dead air 2 times"],
        ),
        ({"outcome": "never_answered", "waiting.turn": 0}, ["the agent never spoke"]),
        (
            {
                "outcome": "hung_up",
                "waiting.turn": 4,
                "troubles": " unanswered slow ",
                "unanswered": 2,
                "longest_wait_ms": 5_400,
                "worst_wait_ms": 5_400,
            },
            ["hung up unanswered, turn 4", "2 turns unanswered", "slow: 5.40 s"],
        ),
        (
            {"outcome": "failed", "troubles": " agent_error ", "errors.number": 2},
            ["failed: agent error", "2 agent errors"],
        ),
        (
            {
                "outcome": "ended",
                "troubles": " slow tool_fails goals_missed interruptions ",
                "p50_ms": 1_900.0,
                "longest_wait_ms": 2_000.0,
                "worst_wait_ms": 2_000.0,
                "failed_tools": "pay",
                "user_interruptions": 2,
                "assistant_interruptions": 1,
            },
            ["slow: median 1.90 s", "pay failed", "goals missed", "3 interruptions"],
        ),
        (
            {"outcome": "ended", "troubles": " goals_missed ", "missed_subgoals": ["a", "b", "c"]},
            ["missed a and 2 more"],
        ),
        (
            {"outcome": "ended", "troubles": " goals_missed ", "missed_subgoals": ["a"]},
            ["missed a"],
        ),
        ({"outcome": "ended", "troubles": " "}, []),
    ],
)
def test_why_a_call_was_bad(call: dict[str, Any], reasons: list[str]) -> None:
    assert [*why(call)] == reasons


def test_an_address_keeps_the_question_and_turns_the_order_around() -> None:
    asked = PastQuery(agent="a&b", text="x y", sort="p50_ms", page=3)
    assert PastQuery.model_validate(dict(parse_qsl(asked.query(page=3).removeprefix("?")))) == asked
    page = Shape(shown({"conversation_id": "a"}, asked=asked))
    addresses = [
        dict(parse_qsl(link.partition("?")[2])) for link in page.links if link.startswith("past?")
    ]
    orders = {
        each["sort"]: each for each in addresses if each.get("agent") == "a&b" and "sort" in each
    }
    assert orders["p50_ms"]["up"] == "1"
    assert "up" not in orders["length_ms"]
    assert "page" not in orders["length_ms"]


def test_what_is_chosen_can_be_left_out_by_a_click() -> None:
    facets = {"outcome": [("ended", 4), ("hung_up", 2)], "version": [("", 6)]}
    page = Shape(shown(asked=PastQuery(outcome="hung_up"), facets=facets))
    assert "hung up unanswered, after answers" in page.text
    assert "unknown" in page.text
    addresses = [
        dict(parse_qsl(link.partition("?")[2])).get("outcome")
        for link in page.links
        if link.startswith("past?")
    ]
    assert "ended" in addresses
    assert None in addresses


def test_main_troubles_stand_in_the_order_of_how_bad_they_are() -> None:
    facets = {
        "main": [("none", 9), ("slow", 8), ("goals_missed", 7), ("stalled", 6), ("hung_up", 5)],
        "agent": [("desk", 9), ("care", 8)],
    }
    page = shown(asked=PastQuery(), facets=facets)
    told = {name: re.findall(rf'href="past\?{name}=(\w+)"', page) for name in ("main", "agent")}
    assert told["main"] == ["hung_up", "goals_missed", "slow", "stalled", "none"]
    assert told["agent"] == ["desk", "care"]


@pytest.mark.parametrize(
    ("asked", "when"),
    [
        (PastQuery(), "of the last 24 hours"),
        (PastQuery(day="yesterday"), "of that day"),
        (PastQuery(since="7d"), "since 7d"),
    ],
)
def test_the_list_says_of_when_it_is(asked: PastQuery, when: str) -> None:
    page = past_page(SITE, asked, PastFound([{"conversation_id": "a"}], 1), "")
    assert f"<caption>1 call {when}. <a" in page


def test_presets_show_the_newest_call_first() -> None:
    page = shown(asked=PastQuery(since="7d", agent="desk"))
    presets = page[page.index('class="presets"') : page.index('<form id="filter"')]
    worst, *others = [
        dict(parse_qsl(link.partition("?")[2])) for link in Shape(presets).links if "past" in link
    ]
    assert worst == {"since": "7d", "agent": "desk"}
    assert len(others) == len(PRESETS)
    of_a_day = [each for each in others if each.get("day") in ("today", "yesterday")]
    assert [each.get("sort") for each in of_a_day] == [None, None], "the worst first"
    assert {each["sort"] for each in others if each not in of_a_day} == {"first_known_ms"}
    assert all("up" not in each for each in others)


def test_cost_is_a_column_where_it_is_known() -> None:
    cells = Cells(shown({"conversation_id": "a", "cost_dollars": 0.0123})).cells
    assert cells["Cost"] == "0.0123 $"
    assert "Cost" not in Cells(shown({"conversation_id": "a", "cost_dollars": None})).cells


def test_what_bad_calls_have_in_common_chooses_them() -> None:
    in_common = [
        InCommon("version", ["v2"], 0.92, 0.1),
        InCommon("goal_set", ["pay"], 0.5, 0.0, is_within=True),
    ]
    page = shown(asked=PastQuery(trouble="slow"), in_common=in_common)
    assert (
        'href="past?version=v2&amp;trouble=slow">version v2</a> 92 % (10 % of the others)' in page
    )
    assert "of these, <a" in page
    assert "goal set pay</a> 50 % (0 % of the others)." in page
    assert "More often" not in shown(asked=PastQuery(trouble="slow"))


def test_a_version_of_several_agents_is_chosen_with_its_agent() -> None:
    facets = {"version": [(f"desk{BESIDE}2", 5), (f"care{BESIDE}2", 3), (f"care{BESIDE}", 1)]}
    page = shown(
        asked=PastQuery(), facets=facets, in_common=[InCommon("version", [f"desk{BESIDE}2"], 1, 0)]
    )
    assert '<a href="past?agent=desk&amp;version=2">desk 2</a> <b>5</b>' in page
    assert "<span>care unknown</span> <b>1</b>" in page
    assert 'href="past?agent=desk&amp;version=2">desk 2</a> 100 % (0 % of the others)' in page
    chosen = shown(asked=PastQuery(version="2"), facets=facets)
    assert '<a href="past?" aria-current="true">desk 2</a>' in chosen


def test_calls_that_still_run_are_no_part_of_those_that_are_listed() -> None:
    assert ">12 more calls</a> run, or just ended." in shown(running=12)
    assert ">1 more call</a> runs, or just ended." in shown(running=1)
    assert "still run" not in shown()


def test_a_length_is_rounded_as_on_the_page_of_the_call() -> None:
    cells = Cells(shown({"conversation_id": "a", "length_ms": 107_600})).cells
    assert cells["Length"] == clock(108_000) == "1:48"


def test_nothing_found_says_what_to_do_and_not_what_was_done() -> None:
    assert "Look 30 days back" in shown(asked=PastQuery(agent="a"))
    alarms = shown(asked=PastQuery(**PRESETS["False alarms"]))
    assert "Look 30 days back" not in alarms
    assert "callgauge call ID --label false-alarm" in alarms
    assert "--label" not in shown(asked=PastQuery(since="30d"))


def test_a_choice_that_no_call_has_can_be_taken_back() -> None:
    asked = PastQuery(agent="a, b")
    page = shown(asked=asked, facets={"agent": [("a, b", 0)]})
    assert '<a href="past?" aria-current="true">a, b</a> <b>0</b>' in page


def test_the_words_that_were_found_lead_to_their_turn() -> None:
    page = shown(
        {"conversation_id": "a/b"},
        asked=PastQuery(text="REFUND"),
        said={"a/b": (4, "agent", "a refund <now>")},
    )
    assert '<a href="./calls/a%2Fb?turn=4">turn 4</a>, agent: <q>' in page
    assert "<mark>refund</mark> &lt;now&gt;" in page
    assert marked("a.c abc", "a.c") == [(True, "a.c"), (False, " abc")]


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_becomes_markup(text: str) -> None:
    def of(name: str) -> Shape:
        row = {
            "conversation_id": name,
            "labels.agent": name,
            "labels.version": name,
            "failed_tools": name,
            "troubles": " tool_fails ",
        }
        asked = PastQuery(agent=name, where=name, since=name)
        found = PastFound(
            [row],
            1,
            0,
            {facet: [(name, 1)] for facet in FACETS},
            {name: (1, name, name)},
            {name: [name]},
        )
        return Shape(past_page(SITE, asked, found, name))

    assert of(text).tags == of("x").tags
    assert all(
        link.startswith(("./", "past", "versions?", "bad-times", "#facets", "data:image/svg+xml,"))
        for link in of(text).links
    )
    lots = Lot(text), Lot(text, "2")
    change = change_of("g", [1.0, 0.0], [1.0, 1.0])

    def compared(name: str) -> Shape:
        found = Comparison(
            (Lot(name), Lot(name, "2")),
            (2, 2),
            [change._replace(measure="p50_ms")],
            [SubgoalChange(name, name, change, [name], 1)],
        )
        return Shape(
            versions_page(
                SITE,
                LotsQuery(),
                Versions(found, [LotCalls(Lot(name, name), 2, 0, 1, {})]),
                name,
            )
        )

    assert compared(text).tags == compared("x").tags
    address, _, _ = LotsQuery(since="7d").between(*lots).removeprefix("versions?").partition("#")
    asked = LotsQuery.model_validate(dict(parse_qsl(address)))
    assert (asked.lots(), asked.since) == (lots, "7d")

    def listed(name: str) -> Shape:
        time = BadTime(
            agent=name,
            version=name,
            since_ms=1,
            calls_affected=1,
            calls_meanwhile=1,
            tenants_affected=((name, 1),),
            environments_affected=(name,),
            seen_ms=2,
        )
        return Shape(bad_times_page(SITE, [time], 2))

    assert listed(text).tags == listed("x").tags


def test_a_figure_leads_to_its_calls_the_worst_first() -> None:
    lot = Lot("desk", "2", since="7d")
    links = {
        measure.name: dict(parse_qsl(past_href(lot, measure).partition("?")[2]))
        for measure in COMPARED
    }
    assert links["p95_ms"] == {"agent": "desk", "version": "2", "since": "7d", "sort": "p95_ms"}
    assert links["success"]["trouble"] == "goals_missed"
    assert links["goals.progress.result"]["up"] == "1"
    assert past_href(Lot()) == "past?since=30d"


def test_the_calls_that_flipped_and_are_not_named_are_among_those_behind_a_link() -> None:
    lots = Lot("desk", "1"), Lot("desk", "2")
    for before, more in ((1.0, {"subgoal": "g"}), (0.0, {})):
        of = SubgoalChange("pay", "g", change_of("g", [before], [1 - before]), ["a"], 17)
        found = Comparison(lots, (1, 18), [change_of("p50_ms", [1.0], [2.0])], [of])
        page = versions_page(SITE, LotsQuery(), Versions(found, [], lots), "")
        (href,) = re.findall(r'<a href="past\?([^"]*)">and 17 more</a>', page)
        asked = {"agent": "desk", "version": "2", "since": "30d", "goal_set": "pay"}
        assert dict(parse_qsl(html.unescape(href))) == asked | more


def two_calls(**of_b: Any) -> tuple[ReportedCall, ReportedCall]:
    """A of two turns, and B of one."""
    said: dict[str, Any] = {"user": "hello <b>", "assistant": "good day"}
    return (
        reported_rows(
            call_row("call-a", p50_ms=2_000.0, dead_airs=1, state="closed"),
            turn_row(1, "call-a", wait_ms=2_000.0, user_sounds=sounds((0, 1_000))),
            turn_row(2, "call-a", assistant_sounds=sounds((3_000, 8_000))),
            words=[WordsRow(conversation_id="call-a", turn=turn, **said) for turn in (1, 2)],
            anchor_id="a",
        ),
        reported_rows(
            call_row("call-b", **{"p50_ms": 500.0, "state": "closed"} | of_b),
            turn_row(1, "call-b", assistant_sounds=sounds((0, 4_000))),
            words=[WordsRow(conversation_id="call-b", turn=1, **said)],
            anchor_id="b",
        ),
    )


def measures(page: str) -> dict[str, list[str]]:
    """By measure its cells."""
    found = re.findall(r'<th scope="row">(.*?)</th>(.*?)</tr>', page)
    return {
        name: [re.sub(r"<[^>]*>", "", cell) for cell in re.findall(r"<td.*?</td>", cells)]
        for name, cells in found
    }


def test_the_base_is_named_and_each_difference_has_unit_and_direction() -> None:
    page = comparison_page(SITE, two_calls())
    assert 'A, the base: <a href="./calls/call-a">call-a</a>' in page
    assert "A is the base: a difference is B minus A." in page
    assert 'href="compare?id=call-b&amp;id=call-a"' in page
    found = measures(page)
    assert found["Median wait"] == ["2.00 s", "0.50 s", "\u22121.50 s", "better"]
    assert found["Dead air"] == ["1", "0", "\u22121", "better"]
    assert found["Length"] == ["8.00 s", "4.00 s", "\u22124.00 s", "lower"]
    a, b = two_calls()
    assert measures(comparison_page(SITE, (b, a)))["Median wait"][2:] == ["+1.50 s", "worse"]


@pytest.mark.parametrize("p50_ms", [1_999.0, 2_000.0, 2_001.0])
def test_a_difference_that_cannot_be_shown_has_no_sign(p50_ms: float) -> None:
    page = comparison_page(SITE, two_calls(p50_ms=p50_ms))
    assert measures(page)["Median wait"] == ["2.00 s", "2.00 s", "0.00 s", "no different"]


def test_a_value_that_one_call_lacks_is_compared_with_nothing() -> None:
    found = measures(comparison_page(SITE, two_calls(p50_ms=None)))
    assert found["Median wait"] == ["2.00 s", "\u2013", "\u2013", "unknown"]
    assert "Longest wait" not in found


def test_turns_stand_beside_each_other_and_a_missing_one_is_blank() -> None:
    page = comparison_page(SITE, two_calls())
    turns = page[page.index('<ol class="turns') :]
    assert re.findall(r"[AB], turn \d|[AB] has no turn \d", turns) == [
        "A, turn 1",
        "B, turn 1",
        "A, turn 2",
        "B has no turn 2",
    ]
    assert "hello &lt;b&gt;" in turns
    a, b = two_calls()
    assert "A has no turn 2" in comparison_page(SITE, (b, a))


def test_timelines_have_one_scale_of_time() -> None:
    """B is half as long, so what is heard at its end is in the middle of the drawing."""
    a, b = comparison_page(SITE, two_calls()).split("<title>Timeline of call ")[1:]
    assert 'x="37.5%" y="66" width="62.5%"' in a
    assert 'x="0%" y="66" width="50%"' in b
    assert set(re.findall(r">(\d:\d\d)</text>", a)) == set(re.findall(r">(\d:\d\d)</text>", b))


def test_one_call_is_compared_with_the_median_of_its_agent() -> None:
    _, call = two_calls(p50_ms=900.0)
    page = comparison_page(SITE, [call], Usual("desk", 40, {"p50_ms": 500.0}))
    assert "A, the base: the median of desk" in page
    assert "40 other calls" in page
    assert measures(page)["Median wait"] == ["0.50 s", "0.90 s", "+0.40 s", "worse"]
    assert "Swap" not in page


def with_goals(name: str, p50_ms: float, *turns: int | None) -> ReportedCall:
    """A call that is over, with the turns that reached its goals: 0 for none, None for unknown."""
    found = tuple(
        SubgoalResult(Unscored(UnscoredReason.NO_TURN_JUDGED))
        if turn is None
        else SubgoalResult(float(turn > 0), reached_turn=turn or None)
        for turn in turns
    )
    goals = Goals("hello", "digest", found, progress=Progress(0.0, 0.0, 0.0, 0.0, 0.0, 0, 0, 2))
    row = call_row(name, state="closed", p50_ms=p50_ms, goals=goals, turn=3)
    of_set = goal_set().model_dump(mode="json")
    set_row = GoalsRow(conversation_id=name, revision=1, digest="digest", goal_set=of_set)
    return reported_rows(row, turn_row(3, name), goals=set_row)


def test_a_sentence_says_what_is_better_and_what_is_worse() -> None:
    first, second = (each.id for each in goal_set().subgoals)
    a, b = with_goals("call-a", 2_000.0, 1, 2), with_goals("call-b", 1_200.0, 1, 0)
    page = comparison_page(SITE, (a, b))
    assert (
        '<p class="verdict">Better in B: answers 0.80 s sooner. '
        f"Worse in B: misses 1 subgoal more ({second}).</p>"
    ) in page
    turned = comparison_page(SITE, (b, a))
    assert (
        f"Better in B: reaches 1 subgoal more ({second}). Worse in B: answers 0.80 s later."
        in turned
    )
    found = measures(page)
    assert found[first] == ["Reached in turn 1", "Reached in turn 1", "no different"]
    assert found[second] == ["Reached in turn 2", "Not reached", "worse"]
    assert "B is neither better nor worse." in comparison_page(SITE, (a, a))


def test_a_greeting_that_came_sooner_is_no_praise_where_nobody_was_answered() -> None:
    def call(name: str, first_word_ms: float, p50_ms: float | None) -> ReportedCall:
        none = NotApplicable("nothing was heard")
        side = SideSpeech(none, none, none, none)
        speech = Speech(0.5, side, side, none, none, first_word_ms)
        return reported_rows(call_row(name, state="closed", p50_ms=p50_ms, speech=speech))

    muted = comparison_page(SITE, (call("a", 900.0, None), call("b", 500.0, None)))
    assert "B is neither better nor worse." in muted
    answered = comparison_page(SITE, (call("a", 900.0, 800.0), call("b", 500.0, None)))
    assert "first word 0.40 s sooner" in answered


def test_a_goal_that_is_not_known_is_neither_reached_nor_missed() -> None:
    a, b = with_goals("call-a", 1_000.0, 1, 2), with_goals("call-b", 1_000.0, 1, None)
    page = comparison_page(SITE, (a, b))
    assert "B is neither better nor worse." in page
    assert measures(page)[goal_set().subgoals[1].id][2] == "unknown"
    assert "Subgoals" not in comparison_page(SITE, two_calls())


def test_each_version_is_a_row_that_chooses_what_is_compared() -> None:
    means = {"p50_ms": 900.0, "worst_wait_ms": 6_200.0, "unanswered_share": 0.25, "success": 0.0}
    every = [
        LotCalls(Lot("desk", "3"), 7, AT_MS, AT_MS + 86_400_000, means, judged=5, unjudged=2),
        LotCalls(Lot("desk", "2"), 40, AT_MS, AT_MS, {"cost_dollars": 0.02}),
        LotCalls(Lot("desk"), 3, AT_MS, AT_MS, {}),
        LotCalls(Lot("care", "1"), 5, AT_MS, AT_MS, {}),
    ]
    asked = LotsQuery(since="7d")
    page = versions_page(SITE, asked, Versions(None, every, (Lot("care", "1"), Lot("desk"))), "")
    rows = re.findall(r'<tr><th scope="row">(.*?)</tr>', page)
    cells = [re.findall(r"<td.*?</td>", each) for each in rows]
    assert [re.sub(r"<[^>]*>", "", each.partition("</th>")[0]) for each in rows] == [
        "desk 3",
        "desk 2",
        "desk without a version",
        "care 1",
    ]
    address = html.unescape(re.findall(r'href="([^"]*)"', rows[0])[0])
    assert address.endswith("#compared")
    chosen = LotsQuery.model_validate(dict(parse_qsl(address.partition("?")[2].partition("#")[0])))
    assert (chosen.lots(), chosen.since) == ((Lot("desk", "2"), Lot("desk", "3")), "7d")
    assert not any("href" in each.partition("</th>")[0] for each in rows[1:]), "none came before"
    plain = [[re.sub(r"<[^>]*>", "", each) for each in row] for row in cells]
    all_goals = "0 % 0 of 5; 2 not judged"
    assert plain[0][1:9] == [
        *("7", "0.90 s", "\u2013", "6.20 s"),
        *("25 %", "\u2013", all_goals, "\u2013"),
    ]
    assert plain[1][9] == "0.0200 $"
    assert plain[2][0] == "", "calls of no version are no side"
    assert plain[0][10] != plain[0][11]
    assert [each[0].count("aria-current") for each in cells] == [0, 0, 0, 1]
    assert "past?since=7d&amp;agent=desk&amp;version=3" in cells[0][1]
    assert 'href="versions?since=24h"' in page
    assert '<a href="versions?since=7d" aria-current="true">7 days</a>' in page


def test_a_preset_keeps_whose_calls_and_which_day_are_asked_for() -> None:
    asked = PastQuery(agent="desk", day="2026-11-20", outcome="hung_up", text="refund")
    page = Shape(shown({"conversation_id": "a"}, asked=asked))
    slow = next(
        fields
        for link in page.links
        if (fields := dict(parse_qsl(link.partition("?")[2]))).get("trouble") == "slow"
    )
    assert (slow["agent"], slow["day"]) == ("desk", "2026-11-20")
    assert {"outcome", "text"}.isdisjoint(slow), "what the preset asks for comes in its place"


def test_what_is_in_common_says_that_a_subgoal_is_missed() -> None:
    common = [
        InCommon("subgoal", ["paid", "booked"], 0.9, 0.1),
        InCommon("agent", ["desk"], 0.8, 0.2),
    ]
    text = shown({"conversation_id": "a"}, asked=PastQuery(outcome="hung_up"), in_common=common)
    assert "missed subgoal paid and 1 more" in text
    assert "agent desk" in text


def test_a_tenant_that_is_worse_than_all_others_is_named() -> None:
    every = [
        LotCalls(Lot(tenant="a"), 40, 0, 1, {"ended_badly": 0.05, "success": 0.9}, judged=40),
        LotCalls(Lot(tenant="b"), 40, 0, 1, {"ended_badly": 0.5, "success": 0.5}, judged=4),
        LotCalls(Lot(tenant="c"), 3, 0, 1, {"ended_badly": 1.0}),
    ]
    page = versions_page(SITE, LotsQuery(by="tenant"), Versions(None, every), "")
    text = " ".join("".join(Shape(page).text).split())
    worse = "Worse than the others together, first where most calls are concerned: "
    assert (
        f"{worse}b ends badly more often by 38 points [19, 55] (about 15 more such calls than expected)."
        in text
    )
    assert "goals" not in text[text.index(worse) :][:120], "four calls are too few"
    assert "Choose A and B in the table." in text
    assert "Compared" not in text
    worst = [
        LotCalls(Lot(tenant="a"), 100, 0, 1, {"ended_badly": 0.5, "success": 0.2}, judged=100),
        LotCalls(Lot(tenant="b"), 200, 0, 1, {"ended_badly": 0.05, "success": 0.9}, judged=200),
        LotCalls(Lot(tenant="c"), 20, 0, 1, {"ended_badly": 0.6, "success": 0.8}, judged=20),
    ]
    told = [(each.lot.tenant, text) for each, text in worse_than_the_others(worst)]
    assert [name for name, _ in told] == ["a", "c"], "it has fewer such calls too many"
    assert " and reaches all goals less often by " in told[0][1]
    assert told[0][1].endswith("(about 69 more such calls than expected)")
    two = [every[0]._replace(lot=Lot("desk", "1"), first_ms=0, last_ms=10**9), every[1]]
    two[1] = two[1]._replace(lot=Lot("desk", "2"), first_ms=10**6, last_ms=10**7)
    pair = (two[0].lot, two[1].lot)
    compared = Comparison(pair, (40, 40), [], [])
    other = ((Lot("care", "1"), Lot("care", "2")), "Version 2 is slower.")
    two += [each._replace(lot=each.lot._replace(agent="care")) for each in two]
    page = versions_page(SITE, LotsQuery(), Versions(compared, two, pair, others=[other]), "")
    text = " ".join("".join(Shape(page).text).split())
    replaced = "2 has had no call since 01-01 02:46:40 UTC; 1 has."
    assert text.count(replaced) == 2
    assert f"care: Version 2 is slower. {replaced}" in text


def test_lots_are_listed_with_the_worst_first() -> None:
    every = [
        LotCalls(Lot(tenant="a"), 9, 0, 1, {"p50_ms": 900.0, "success": 0.5}, unanswered=3),
        LotCalls(Lot(tenant="b"), 7, 0, 1, {"p50_ms": 1_900.0, "success": 0.9}),
        LotCalls(Lot(tenant=""), 1, 0, 1, {}),
    ]
    for sort, names in (
        ("", ["a", "b", "unknown"]),
        ("p50_ms", ["b", "a", "unknown"]),
        ("success", ["a", "b", "unknown"]),
    ):
        asked = LotsQuery(by="tenant", sort=sort)
        versions = Versions(None, every, today="2026-11-29", yesterday="2026-11-28")
        page = versions_page(SITE, asked, versions, "")
        assert re.findall(r'<tr><th scope="row">(.*?)</th>', page) == names
    assert "3 turns unanswered" in page
    links = [html.unescape(each) for each in re.findall(r'href="(versions\?[^"]*)"', page)]
    assert any("since=2026-11-28&until=2026-11-29" in each for each in links), "yesterday"


def test_calls_of_different_agents_are_compared_with_a_remark() -> None:
    a, b = two_calls()
    assert "different agents" not in comparison_page(SITE, (a, b))
    other = reported_rows(call_row("call-c", labels=Labels(agent="night"), state="closed"))
    assert "different agents" in comparison_page(SITE, (a, other))


def test_what_a_person_found_to_be_well_is_not_shown_as_bad() -> None:
    row = {"conversation_id": "c", "outcome": "hung_up", "waiting.turn": 2}
    for labels, level in (([], "bad"), (["false-alarm"], "calm"), (["other"], "bad")):
        page = past_page(SITE, PastQuery(), PastFound([row], 1, labels={"c": labels}), "")
        assert f'<li class="{level}">hung up unanswered, turn 2</li>' in page
