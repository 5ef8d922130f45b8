"""The page of running calls: no text of a call becomes markup, and many calls give few rows and a
count.
"""

import re
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from urllib.parse import parse_qsl

import pytest

from consumers.console.api import CallsQuery
from consumers.console.fleet import Fleet, Runbook
from consumers.console.pages import (
    _WRONG,
    MOST_ALERTS,
    MOST_HEALTHY,
    MOST_NAMES,
    MOST_ROWS,
    ROLL_BACK,
    Alert,
    Alerts,
    Site,
    names_boxes,
    now_boxes,
    now_page,
    query_of,
)
from consumers.view.words import time_of_day
from schemas.closed_sets import SortKey
from schemas.rows import Answer, Goals, Labels, Stall, Waiting
from schemas.scores.latency_stages import Stage
from schemas.scores.running import EVERY_CALL, WantedCalls
from schemas.units import MINUTE_MS
from streamer.deploy_files import runbooks
from tests.support.calls.console_calls import AT_MS, call_row, turn_row

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
        fleet.put_row(call_row(name, known_ms=at_ms, labels=labels, failing_tools={text: 1}))
    return fleet


def boxes_of(
    fleet: Fleet, wanted: WantedCalls = EVERY_CALL, alerts: Alerts = NO_ALERTS, at_ms: int = AT_MS
) -> Mapping[str, Mapping[str, str]]:
    now = fleet.now(at_ms)
    return now_boxes(SITE, now, wanted, fleet, alerts, names_boxes(now))


def shown(fleet: Fleet, wanted: WantedCalls = EVERY_CALL, alerts: Alerts = NO_ALERTS) -> str:
    return now_page(SITE, boxes_of(fleet, wanted, alerts, AT_MS + 1_000), wanted, wall=False)


def calls_in(boxes: Mapping[str, Mapping[str, str]]) -> list[str]:
    """The rows of calls, without headings and folded ones."""
    return [markup for part, markup in boxes["calls"].items() if part.startswith("r-")]


def calls_of(name: str) -> WantedCalls:
    names = frozenset({name})
    return WantedCalls(text=name, agents=names, tenants=names, environments=names)


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_of_a_call_becomes_markup(text: str) -> None:
    def alerts(name: str) -> Alerts:
        alert = Alert(name, "critical", {"agent": name}, name, AT_MS, what_to_do=name)
        return Alerts([alert], name, [alert._replace(fires_ms=AT_MS + 1)], name)

    for makes in (lambda _: EVERY_CALL, calls_of):
        hostile = Shape(shown(fleet_of([text], text=text), makes(text), alerts(text)))
        plain = Shape(shown(fleet_of(["x"], text="x"), makes("x"), alerts("x")))
        assert hostile.tags == plain.tags
        assert text in "".join(hostile.text)
        assert all(link.startswith(("./", "data:image/svg+xml,")) for link in hostile.links)


def test_a_sentence_of_whoever_runs_it_stands_below_the_counts() -> None:
    fleet = fleet_of(["x"])
    without = Shape(shown(fleet))
    fleet.note = "12:40 <b>v2</b> is deployed."
    told = Shape(shown(fleet))
    assert fleet.note in "".join(told.text)
    assert sorted(told.tags) == sorted([*without.tags, "p class"]), "it is text"


def test_an_id_with_slashes_has_one_place() -> None:
    assert SITE.call_href("../a?b#c/d") == "./calls/..%2Fa%3Fb%23c%2Fd"


def test_many_calls_give_few_rows_and_a_count() -> None:
    fleet = fleet_of([f"call-{number}" for number in range(5_000)])
    boxes = boxes_of(fleet)
    assert len(calls_in(boxes)) == MOST_ROWS == 50
    assert "and 4,950 further calls, 4,950 of them in trouble" in boxes["rest"]["more"]
    few = boxes_of(fleet, WantedCalls(text="call-499"))
    assert len(calls_in(few)) == 11


def test_names_and_alerts_are_bounded() -> None:
    fleet = Fleet()
    for number in range(2 * MOST_NAMES):
        fleet.put_row(call_row(str(number), labels=Labels(agent=f"agent-{number:04}")))
    many = [Alert(f"Alert{number}", "warning", {}, "", 0) for number in range(1_000)]
    alerts = Alerts(many, "", [each._replace(fires_ms=1) for each in many])
    boxes = boxes_of(fleet, EVERY_CALL, alerts)
    assert boxes["names"]["lists"].count("<option") <= MOST_NAMES + 2
    assert boxes["alerts"]["firing"].count("<li") == 2 * MOST_ALERTS


def test_each_part_carries_its_id_and_an_empty_page_says_so() -> None:
    fleet = Fleet()
    boxes = boxes_of(fleet)
    assert boxes["calls"] == {}
    assert (
        "<code>callgauge serve</code> has printed a line that sends a first one"
        in boxes["rest"]["more"]
    )
    full = fleet_of(["a", "b"])
    others = boxes_of(full, WantedCalls(text="nothing like this"))
    assert "No call like this runs now." in others["rest"]["more"]
    for parts in (boxes, boxes_of(full)):
        for part, markup in (
            (part, markup) for each in parts.values() for part, markup in each.items()
        ):
            assert f'id="{part}"' in markup.partition(">")[0]


def test_a_call_that_ended_says_how() -> None:
    fleet = fleet_of(["c"], at_ms=AT_MS)
    fleet.put_row(
        call_row("c", state="closed", close_reason="ended", ended_reason="<b>goodbye</b>")
    )
    (row,) = calls_in(boxes_of(fleet))
    assert "over: &lt;b&gt;goodbye&lt;/b&gt;" in row


@pytest.mark.parametrize("sort", ["trouble", "quiet", "latency", "began", "agent"])
def test_a_choice_survives_its_address(sort: SortKey) -> None:
    wanted = WantedCalls(
        frozenset({"a&b", "c"}), frozenset({"ü"}), text="x=y&z", only_bad=True, sort=sort
    )
    assert CallsQuery.model_validate(dict(parse_qsl(query_of(wanted)))).wanted() == wanted


def test_a_call_that_ended_badly_says_why() -> None:
    fleet = fleet_of([])
    fleet.put_row(
        call_row("c", state="closed", close_reason="ended", turn=4, waiting=Waiting(4, AT_MS, 1))
    )
    (row,) = calls_in(boxes_of(fleet))
    assert '<li class="bad">hung up unanswered, turn 4</li>' in row
    assert 'class="over"' in row


def test_a_stalled_call_is_in_trouble() -> None:
    fleet = fleet_of([])
    fleet.put_row(call_row(goals=Goals("g", "d", stalls=(Stall(1, "turns"),), is_stalled=True)))
    assert "stalled" in shown(fleet)


def test_calls_in_trouble_come_first_then_those_that_ended_badly_and_many_healthy_ones_are_folded() -> (
    None
):
    fleet = fleet_of(["bad"])
    fleet.put_row(call_row("gone", state="closed", turn=2, waiting=Waiting(2, AT_MS, 1)))
    for number in range(MOST_HEALTHY + 1):
        fleet.put_row(call_row(f"well-{number}", labels=Labels(agent="desk", version="2")))
    fleet.put_row(call_row("single", labels=Labels(agent="line")))
    boxes = boxes_of(fleet)
    assert [part if part.startswith("g-") else part[:2] for part in boxes["calls"]] == [
        *("g-in", "r-", "g-ended", "r-", "g-well", "r-", "ga")
    ]
    folded = list(boxes["calls"].values())[-1]
    assert 'href="./?agent=desk&amp;version=2"' in folded
    assert "6 healthy calls" in folded
    chosen = boxes_of(fleet, WantedCalls(agents=frozenset({"desk"}), versions=frozenset({"2"})))
    assert len(calls_in(chosen)) == MOST_HEALTHY + 1


def test_a_chosen_agent_filters_figures_and_alerts_and_leads_back() -> None:
    fleet = fleet_of(["bad"], text="desk")
    fleet.put_row(call_row("other", labels=Labels(agent="line")))
    alerts = Alerts([Alert("Slow", "warning", {"agent": name}, "", 0) for name in ("desk", "line")])
    boxes = boxes_of(fleet, WantedCalls(agents=frozenset({"line"})), alerts)
    assert "<strong>0</strong>" in boxes["lines"]["line-trouble"]
    assert "<strong>1</strong>" in boxes["lines"]["line-calls"]
    assert boxes["alerts"]["firing"].count("Show its calls") == 1
    (row,) = (each for each in boxes["agents"].values() if "current" in each)
    assert 'href="./" aria-current="true"' in row
    assert "desk" not in boxes["head"]["counts"], "another agent is bad"


def test_an_alert_says_what_to_do_and_leads_on() -> None:
    alert = Alert(
        "Slow",
        "warning",
        {"agent": "desk", "tenant": "a&b"},
        "",
        0,
        None,
        "Look.",
        "https://x/Slow.md",
    )
    text = boxes_of(Fleet(), alerts=Alerts([alert]))["alerts"]["firing"]
    assert 'href="./?agent=desk&amp;tenant=a%26b"' in text
    assert 'href="https://x/Slow.md"' in text
    assert "<summary>What to do</summary><p>Look.</p>" in text


def test_the_headline_is_worse_when_callers_have_given_up() -> None:
    fleet = fleet_of([])
    fleet.put_row(
        call_row("gone", state="closed", turn=2, unanswered=2, waiting=Waiting(2, AT_MS, 1))
    )
    boxes = boxes_of(fleet)
    assert (
        '<strong class="bad">1</strong> ended badly in the last 15 minutes'
        in boxes["head"]["counts"]
    )
    assert "was bad from" in boxes["head"]["counts"]
    assert "and 1 ended badly" in boxes["lines"]["line-trouble"]
    assert "100 %" in boxes["lines"]["line-unanswered"]


def text_of(markup: str) -> str:
    """The markup without its tags."""
    return re.sub(r"<[^>]*>", "", markup)


def test_the_headline_says_what_to_do_first_and_which_tenants_call() -> None:
    fleet = Fleet()
    steps = ["Model: see its status.", "Voice or transcription: the same."]
    fleet.runbooks = {"CallgaugeAnswersSlow": Runbook("voice", steps, "# Slow", "#voice <1>")}
    slow = Answer(2, 9_000.0, slowest_stage=Stage.TTS_FIRST_BYTE)
    for tenant in ("acme", "<bolt>"):
        fleet.put_row(call_row(tenant, labels=Labels("desk", None, tenant), answer=slow))
    head = boxes_of(fleet)["head"]["counts"]
    assert (
        "2 of 2 callers so far, 1 of &lt;bolt&gt;, 1 of acme; mostly answers are slow (voice)."
        in text_of(head)
    )
    assert "<summary>First: Voice or transcription: the same.</summary>" in head
    assert head.count("<li>") == 2
    assert "Whom to ask: the team <strong>voice</strong> (#voice &lt;1&gt;)." in head
    assert 'href="./runbooks/CallgaugeAnswersSlow"' in head
    one = boxes_of(fleet_of(["bad", "worse"]))["head"]["counts"]
    so_far = "2 of 2 callers so far, environment tool; mostly tools fail."
    assert so_far in text_of(one), "one tenant is in its rows"
    assert "First" not in one, "no runbook is known"


def test_the_headline_says_why_a_bad_time_is_over() -> None:
    fleet = fleet_of([])
    fleet.put_row(call_row("a", waiting=Waiting(2, AT_MS - 9_000, 2)))
    fleet.now(AT_MS)
    fleet.put_row(
        call_row("a", state="closed", known_ms=AT_MS + 5_000, waiting=Waiting(2, AT_MS, 2))
    )
    head = boxes_of(fleet, at_ms=AT_MS + 6_000)["head"]["counts"]
    assert "was bad from" in head
    assert "1 of 1 caller; trouble: callers get no answer. Its last bad call ended." in text_of(
        head
    )
    assert "was bad" not in boxes_of(fleet, at_ms=AT_MS + 66_000)["head"]["counts"], "it was short"


SLOW = Answer(2, 5_800.0, slowest_stage=Stage.LLM_FIRST_TOKEN)
V1, V2 = Labels("desk", "v1"), Labels("desk", "v2")
STEPS = ["After a deployment: roll it back first.", "Voice: look.", "Model: see its status."]


def deployed(calls_of_v2: int, *, was_well: bool = True) -> Fleet:
    """A second version, of which every call is slow, after one of which none is in trouble."""
    fleet = Fleet()
    fleet.runbooks = {"CallgaugeAnswersSlow": Runbook("voice", STEPS, "")}
    for number in range(3):
        row = call_row(f"a{number}", labels=V1, first_known_ms=AT_MS - 60_000)
        fleet.put_row(row if was_well else call_row(f"a{number}", labels=V1, answer=SLOW))
    for number in range(calls_of_v2):
        began_ms = AT_MS - 20_000 + number
        fleet.put_row(call_row(f"b{number}", labels=V2, answer=SLOW, first_known_ms=began_ms))
    return fleet


def test_a_version_of_which_the_few_answers_are_slow_is_not_called_well() -> None:
    fleet = deployed(1)
    fleet.put_row(call_row("b1", labels=V2))
    boxes = boxes_of(fleet)
    rows = "".join(boxes["agents"].values())
    assert rows.count('<span class="calm">no turn yet</span>') == 1, "v1"
    assert '<span class="bad">1 of 1 answered call slow (5.80 s)</span>' in rows
    head = boxes["head"]["counts"]
    assert "desk v2: 1 of 1 answered call slow (5.80 s), too few to say." in head
    other = boxes_of(fleet, WantedCalls(agents=frozenset({"other"})))["head"]["counts"]
    assert "answered call" not in other


def test_a_new_bad_version_is_rolled_back_first_if_the_one_before_is_well() -> None:
    head = boxes_of(deployed(3))["head"]["counts"]
    assert "<summary>First: Roll back v2: v1 was well.</summary>" in head
    assert [step.partition("<")[0] for step in head.split("<li>")[1:]] == [
        "Roll back v2: v1 was well.",
        "Model: see its status.",
        "Voice: look.",
    ]
    assert "The first call of desk v2 began <time" in head
    assert "v1 was well until then" in head
    compared = 'href="./versions?a_agent=desk&amp;a_version=v1&amp;b_agent=desk&amp;b_version=v2'
    assert compared not in head, "no call of v2 is over, so there is nothing to compare"
    fleet = deployed(3)
    fleet.now(AT_MS)
    fleet.put_row(call_row("b0", labels=V2, revision=9, state="closed"))
    ended = boxes_of(fleet, at_ms=AT_MS + 1_000)["head"]["counts"]
    assert compared in ended
    assert '<a class="past" href="./past?agent=desk&amp;version=v2&amp;since=' in ended
    neither = boxes_of(deployed(3, was_well=False))["head"]["counts"]
    assert "First, for desk v2: Model: see its status." in neither
    assert "was well until then" not in neither


def test_the_runbooks_of_what_the_headline_says_begin_with_the_rollback() -> None:
    steps = {name: each.steps for name, each in runbooks({}).items()}
    for alert in {alert for _, alert in _WRONG.values()} - {""}:
        assert steps[alert][0].startswith(ROLL_BACK), alert


def test_a_bad_time_that_is_over_is_told_without_a_first_step_and_with_its_version_chosen() -> None:
    fleet = deployed(3)
    fleet.now(AT_MS)
    fleet.now(AT_MS + 90_000)
    for number in range(3):
        fleet.put_row(
            call_row(f"b{number}", labels=V2, revision=1, known_ms=AT_MS + 90_000, state="closed")
        )
    chosen = WantedCalls(agents=frozenset({"desk"}), versions=frozenset({"v2"}))
    for at_ms in (AT_MS + 91_000, AT_MS + 91_000 + 14 * 60_000):
        head = boxes_of(fleet, chosen, at_ms=at_ms)["head"]["counts"]
        assert "was bad from" in head
        assert "3 of 3 callers" in head
        assert "First" not in head


def test_a_bad_version_that_gets_no_more_calls_says_so() -> None:
    fleet = deployed(3)
    assert "No new" not in boxes_of(fleet)["head"]["counts"], "it has the newest call"
    fleet.put_row(call_row("a9", labels=V1, first_known_ms=AT_MS - 19_000))
    assert "No new" not in boxes_of(fleet)["head"]["counts"], "another one may come"
    head = boxes_of(fleet, at_ms=AT_MS + 1_000)["head"]["counts"]
    assert "No new v2 call since <time" in head
    assert "</time>, 3 still in trouble." in head


def test_the_tiles_tell_of_now() -> None:
    fleet = Fleet()
    fleet.put_row(call_row("c"))
    for number in range(40):
        fleet.put_row(turn_row(number, wait_ms=900.0, known_ms=AT_MS - 120_000, news=("wait",)))
    fleet.put_row(turn_row(50, wait_ms=5_800.0, news=("wait",)))
    waits = boxes_of(fleet)["lines"]["line-wait"]
    begins = time_of_day(AT_MS - 120_000)[:5]
    said = f"in the newest minute; 0.90 s since {begins} UTC; objective 1.50 s"
    assert f"<strong>5.80 s</strong><small>{said}</small>" in waits
    fleet.put_row(call_row("gone", state="closed", waiting=Waiting(2, AT_MS, 1)))
    trouble = boxes_of(fleet)["lines"]["line-trouble"]
    assert "<strong>0</strong><small>and 1 ended badly" in trouble
    assert "urgent" not in trouble


def test_calls_that_are_over_are_not_counted_among_those_that_do_well() -> None:
    fleet = Fleet()
    fleet.put_row(call_row("a"))
    fleet.put_row(call_row("b", state="closed"))
    groups = [each for each in boxes_of(fleet)["calls"].values() if "rowgroup" in each]
    assert ["Well <small>1" in each or "Over <small>1" in each for each in groups] == [True, True]


def test_a_silent_source_is_said_before_any_agent_is_blamed() -> None:
    fleet = Fleet()
    fleet.known.take_partition(0, AT_MS, event_ms=AT_MS)
    for name in ("a", "b", "c"):
        fleet.put_row(call_row(name, waiting=Waiting(1, AT_MS, 1)))
    at_ms = AT_MS + 70_000
    fleet.known.take_partition(0, at_ms, event_ms=AT_MS)
    head = text_of(boxes_of(fleet, at_ms=at_ms)["head"]["counts"])
    assert (
        "No event has come from any agent for 1:10, while 3 calls are open: check the senders of "
        "events and the network before any agent; callgauge doctor looks at both."
    ) in head
    assert "bad" not in head
    assert "well" not in head
    fleet.known.take_partition(0, at_ms, event_ms=at_ms)
    assert "No event" not in boxes_of(fleet, at_ms=at_ms)["head"]["counts"]


def test_a_version_that_is_replaced_is_not_to_be_rolled_back_and_the_other_one_is_told() -> None:
    fleet = Fleet()
    v1, v2 = Labels("desk", "1"), Labels("desk", "2")
    fleet.put_row(call_row("old", labels=v1, first_known_ms=AT_MS - 60_000))
    bad = {"failing_tools": {"pay": 1}}
    fleet.put_row(call_row("a", labels=v2, first_known_ms=AT_MS - 30_000, **bad))
    fleet.put_row(call_row("b", labels=v2, first_known_ms=AT_MS - 30_000, **bad))
    assert "First: Roll back 2: 1 was well." in text_of(boxes_of(fleet)["head"]["counts"])
    fleet.put_row(call_row("new", labels=v1, first_known_ms=AT_MS))
    replaced = text_of(boxes_of(fleet)["head"]["counts"])
    assert "First: 2 gets no new calls: wait until its last ones have ended." in replaced
    assert "No new 2 call since" in replaced
    for name in ("a", "b"):
        fleet.put_row(call_row(name, labels=v2, revision=9, state="closed", known_ms=AT_MS))
    over = text_of(boxes_of(fleet, at_ms=AT_MS + 1_000)["head"]["counts"])
    assert "1: 2 calls now, 0 with an answer, 0 in trouble." in over


def test_a_new_version_of_an_agent_is_marked_in_the_lines() -> None:
    fleet = Fleet()
    old, new = (Labels(agent="desk", version=each) for each in ("1", "2"))
    began_ms = AT_MS - 12 * MINUTE_MS
    fleet.put_row(call_row("a", labels=old, known_ms=began_ms, first_known_ms=began_ms))
    boxes_of(fleet, at_ms=AT_MS - 3 * MINUTE_MS)
    assert "began" not in boxes_of(fleet)["lines"]["line-calls"], "nothing was before it"
    fleet.put_row(call_row("b", labels=new, first_known_ms=AT_MS - 2 * MINUTE_MS))
    lines = boxes_of(fleet)["lines"]
    assert lines["line-wait"].count('class="mark"') == 1
    assert lines["line-calls"].count("; desk 2 began") == 2, "to be seen, and to be heard"
    for wanted in (
        WantedCalls(tenants=frozenset({"nobody"})),
        WantedCalls(versions=frozenset({"1"})),
    ):
        assert 'class="mark"' not in boxes_of(fleet, wanted)["lines"]["line-calls"]
    restarted = Fleet()
    for name, labels in (("a", old), ("b", new)):
        restarted.put_row(call_row(name, labels=labels, first_known_ms=AT_MS - (name == "a")))
    assert 'class="mark"' not in boxes_of(restarted)["lines"]["line-calls"], "both may run for long"
    others = WantedCalls(agents=frozenset({"care"}))
    assert 'class="mark"' not in boxes_of(fleet, others)["lines"]["line-calls"]


def test_the_worst_call_is_one_of_what_the_headline_names() -> None:
    fleet = Fleet()
    v1, v2 = (Labels(agent="desk", version=each) for each in ("1", "2"))
    for number in range(8):
        fleet.put_row(call_row(f"well-{number}", labels=v1))
    fleet.put_row(call_row("other", labels=v1, waiting=Waiting(2, AT_MS - 60_000, 3)))
    assert 'class="worst" href="./calls/other"' in boxes_of(fleet)["head"]["counts"]
    for name in ("c", "d"):
        end = {"state": "closed", "unanswered": 3, "waiting": Waiting(3, AT_MS - 9_000, 2)}
        fleet.put_row(call_row(name, labels=v2, **end))
    head = boxes_of(fleet)["head"]["counts"]
    assert "desk 2" in head.partition("</a>")[0]
    assert 'class="worst" href="./calls/c"' in head


def test_healthy_calls_in_one_row_stand_with_those_that_are_well() -> None:
    fleet = fleet_of([])
    for number in range(8):
        fleet.put_row(call_row(f"w{number}", labels=Labels(agent="desk")))
    fleet.put_row(call_row("gone", labels=Labels(agent="desk"), state="closed"))
    rows = list(boxes_of(fleet)["calls"])
    assert rows.index("g-well") + 1 == next(
        place for place, part in enumerate(rows) if part.startswith("ga-")
    )
    assert rows.index("g-over") > rows.index("g-well") + 1


def test_what_was_known_before_the_start_is_in_no_figure() -> None:
    fleet = Fleet()
    fleet.agents.counts_from_ms = AT_MS
    for known_ms in (AT_MS - 60_000, AT_MS):
        fleet.put_row(turn_row(1, wait_ms=900.0, known_ms=known_ms, news=("wait",)))
    fleet.put_row(call_row("c", known_ms=AT_MS - 60_000, first_known_ms=AT_MS - 120_000))
    waits = boxes_of(fleet)["lines"]["line-wait"]
    assert f"since {time_of_day(AT_MS)[:5]} UTC" in waits
    assert fleet.agents.figures(EVERY_CALL)[0].turns_answered == 1
