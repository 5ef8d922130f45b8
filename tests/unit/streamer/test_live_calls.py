"""The watched calls: who is asked for, how old the data are, and what a program gets."""

import json
from typing import Any

import pytest

from schemas.scores.records import AnyScoreRecord, CallLabels
from schemas.scores.running import WantedCalls
from streamer.live_calls import MOST_HEALTHY_ROWS, CallsOnScreen, calls_document, live_screen, plain_table
from streamer.terminal import Screen
from tests.unit.streamer.roles.test_demo_view import NOW_MS, closed, dead_air, latency, started

PLACE = "topic scores at kafka:9092"


def watched(*records: AnyScoreRecord, **wanted: Any) -> CallsOnScreen:
    found = CallsOnScreen(NOW_MS, WantedCalls(**wanted))
    for record in records:
        found.take(record.model_dump_json().encode())
    return found


def call(
    name: str, *, agent: str = "ava", tenant: str = "acme", environment: str = "live", bad: bool = False
) -> list[AnyScoreRecord]:
    labels = CallLabels(agent=agent, tenant=tenant, environment=environment)
    return [started(name, labels=labels), latency(1, 2_000 if bad else 900, labels=labels, conversation_id=name)]


MIXED = (
    *call("first", agent="bob"), *call("second", bad=True), *call("third", tenant="birch"), *call("fourth", environment="ci"),
)  # fmt: skip


def lines_of(what: object, width: int = 80) -> list[str]:
    console = Screen(width=width, height=24, color_system=None)
    with console.capture() as captured:
        console.print(what)
    return [line.rstrip() for line in captured.get().splitlines()]


@pytest.mark.parametrize(
    ("wanted", "calls"),
    [
        ({}, ["second", "first", "fourth", "third"]),
        ({"only_bad": True}, ["second"]),
        ({"agents": {"bob"}}, ["first"]),
        ({"agents": {"bob", "ava"}, "tenants": {"birch"}}, ["third"]),
        ({"environments": {"ci"}}, ["fourth"]),
        ({"environments": {"nowhere"}}, []),
        ({"sort": "agent"}, ["fourth", "second", "third", "first"]),
    ],
)
def test_the_calls_that_are_asked_for_come_in_their_order(wanted: dict[str, Any], calls: list[str]) -> None:
    shown = watched(*MIXED, **wanted).shown(NOW_MS)
    assert [each.view.conversation_id for each in shown.calls] == calls
    bad = {"second"} & set(calls)
    assert (shown.running, shown.bad) == (
        4 if wanted in ({}, {"sort": "agent"}, {"only_bad": True}) else len(calls),
        len(bad),
    )


def test_totals_and_news_are_of_the_calls_that_are_asked_for() -> None:
    over = closed(conversation_id="fifth", is_first=True, labels=CallLabels(agent="ava"))
    bobs = watched(*MIXED, over, agents={"bob"})
    assert "ended: none" in lines_of(plain_table(bobs, PLACE, NOW_MS), 200)[1]
    assert "ended: goodbye 1" in lines_of(plain_table(watched(*MIXED, over), PLACE, NOW_MS), 200)[1]
    assert bobs.totals.text().startswith("answers 1 ")
    assert bobs.news.newest(9) == []


def test_a_dead_evaluator_is_named_first_and_waits_are_counted_up_to_the_newest_score() -> None:
    calls = watched(*MIXED, dead_air(2, conversation_id="third", labels=CallLabels(agent="ava", tenant="birch")))
    later_ms = NOW_MS + 25_000
    lines = lines_of(live_screen(calls, PLACE, later_ms, width=80, height=24))
    assert lines[0].startswith("SCORES ARE 25 s OLD: does an evaluator run?, 4 calls running, 2 in trouble")
    assert lines[5].split()[:2] == ["!!", "third"]
    assert lines[5].endswith("silent for 3 s"), "nobody knows whether it goes on"
    assert lines_of(plain_table(calls, PLACE, later_ms), 200)[0].endswith(PLACE)
    fresh = lines_of(live_screen(calls, PLACE, NOW_MS + 2_000, width=80, height=24))
    assert fresh[0].startswith("4 calls running, 2 in trouble, newest score 2.0 s old")
    assert fresh[5].endswith("silent for 5 s")


def test_a_file_has_every_call_in_trouble_and_counts_the_healthy_ones_behind_them() -> None:
    healthy = [record for number in range(60) for record in call(f"h{number:05}")]
    bad = [record for number in range(30) for record in call(f"b{number:05}", bad=True)]
    lines = lines_of(plain_table(watched(*healthy, *bad), PLACE, NOW_MS), 200)
    assert [line.split()[1] for line in lines[5:-1]] == [f"b{number:05}" for number in range(30)]
    assert lines[-1] == "and 60 more calls without trouble: ava 60"
    some = lines_of(plain_table(watched(*healthy, *bad[:2]), PLACE, NOW_MS), 200)
    assert len(some[5:-1]) == MOST_HEALTHY_ROWS
    by_age = lines_of(plain_table(watched(*healthy, *bad, sort="began"), PLACE, NOW_MS), 200)
    assert len(by_age[5:-1]) == 90, "every other order lists all calls"


def test_a_program_gets_troubles_waits_and_the_age_of_the_data() -> None:
    document = calls_document(watched(*MIXED, dead_air(2, conversation_id="second")), NOW_MS + 11_000)
    assert json.loads(json.dumps(document)) == document
    assert (document["newest_score_ms"], document["is_stale"]) == (NOW_MS, True)
    assert (document["calls_running"], document["calls_in_trouble"], document["calls_left_out"]) == (4, 1, 0)
    second = document["calls"][0]
    assert (second["conversation_id"], second["quiet_ms"], second["waiting_since_ms"]) == (
        "second",
        11_000,
        NOW_MS - 3_000,
    )
    assert [(each["kind"], each["reason"]) for each in second["troubles"]] == [
        ("silent", "silent for 3 s"),
        ("slow", "turn 1 slow: 2.0 s"),
    ]
    assert (document["calls"][1]["troubles"], document["calls"][1]["waiting_since_ms"]) == ([], None)
