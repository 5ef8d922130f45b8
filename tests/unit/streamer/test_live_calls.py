"""The watched calls: who is asked for, how old the data are, and what a program gets."""

import json
from typing import Any

import pytest

from schemas.rows import CallRow, Labels, Row, encode
from schemas.scores.running import WantedCalls
from streamer.live_calls import (
    MOST_HEALTHY_ROWS,
    CallsOnScreen,
    calls_document,
    live_screen,
    plain_table,
)
from streamer.terminal import Screen
from tests.support.calls.made_rows import NOW_MS, answer, call_row, closed_row, waited, waiting

PLACE = "topic scores at kafka:9092"


def watched(*rows: Row, **wanted: Any) -> CallsOnScreen:
    found = CallsOnScreen(NOW_MS, WantedCalls(**wanted))
    for row in rows:
        found.read_record(encode(row))
    return found


def call(
    name: str,
    *,
    agent: str = "ava",
    tenant: str = "acme",
    environment: str = "live",
    bad: bool = False,
) -> list[Row]:
    labels = Labels(agent=agent, tenant=tenant, environment=environment)
    wait_ms = 2_000 if bad else 900
    turn = waited(1, wait_ms, labels=labels)
    turn.conversation_id = name
    return [turn, call_row(name, labels=labels, turn=1, answer=answer(1, wait_ms))]


def silent(name: str, **parts: Any) -> CallRow:
    """The caller waits in the second turn."""
    return call_row(
        name, revision=2, turn=2, waiting=waiting(2), dead_airs=1, dead_air_turns=(2,), **parts
    )


MIXED = (
    *call("first", agent="bob"),
    *call("second", bad=True),
    *call("third", tenant="birch"),
    *call("fourth", environment="ci"),
)


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
def test_the_calls_that_are_asked_for_come_in_their_order(
    wanted: dict[str, Any], calls: list[str]
) -> None:
    shown = watched(*MIXED, **wanted).shown(NOW_MS)
    assert [each.call.conversation_id for each in shown.calls] == calls
    bad = {"second"} & set(calls)
    assert (shown.running, shown.bad) == (
        4 if wanted in ({}, {"sort": "agent"}, {"only_bad": True}) else len(calls),
        len(bad),
    )


def test_totals_and_news_are_of_the_calls_that_are_asked_for() -> None:
    over = closed_row("fifth", labels=Labels(agent="ava"))
    bobs = watched(*MIXED, over, agents={"bob"})
    assert "ended: none" in lines_of(plain_table(bobs, PLACE, NOW_MS), 200)[1]
    assert "ended: goodbye 1" in lines_of(plain_table(watched(*MIXED, over), PLACE, NOW_MS), 200)[1]
    assert bobs.totals.text().startswith("answers 1 ")
    assert bobs.news.newest(9) == []


def test_a_dead_evaluator_is_named_first_and_waits_are_counted_up_to_the_newest_score() -> None:
    calls = watched(*MIXED, silent("third", labels=Labels(agent="ava", tenant="birch")))
    later_ms = NOW_MS + 25_000
    lines = lines_of(live_screen(calls, PLACE, later_ms, width=80, height=24))
    assert lines[0].startswith(
        "SCORES ARE 25 s OLD: does callgauge run?, 4 calls running, 2 in trouble"
    )
    assert lines[5].split()[:2] == ["!!", "third"]
    assert lines[5].endswith("silent for 3 s"), "nobody knows whether it goes on"
    assert lines_of(plain_table(calls, PLACE, later_ms), 200)[0].endswith(PLACE)
    fresh = lines_of(live_screen(calls, PLACE, NOW_MS + 2_000, width=80, height=24))
    assert fresh[0].startswith("4 calls running, 2 in trouble, newest score 2.0 s old")
    assert fresh[5].endswith("silent for 5 s")


def test_a_file_has_every_call_in_trouble_and_counts_the_healthy_ones_behind_them() -> None:
    healthy = [row for number in range(60) for row in call(f"h{number:05}")]
    bad = [row for number in range(30) for row in call(f"b{number:05}", bad=True)]
    lines = lines_of(plain_table(watched(*healthy, *bad), PLACE, NOW_MS), 200)
    assert [line.split()[1] for line in lines[5:-1]] == [f"b{number:05}" for number in range(30)]
    assert lines[-1] == "and 60 more calls without trouble: ava 60"
    some = lines_of(plain_table(watched(*healthy, *bad[:2]), PLACE, NOW_MS), 200)
    assert len(some[5:-1]) == MOST_HEALTHY_ROWS
    by_age = lines_of(plain_table(watched(*healthy, *bad, sort="began"), PLACE, NOW_MS), 200)
    assert len(by_age[5:-1]) == 90, "every other order lists all calls"


def test_a_program_gets_troubles_waits_and_the_age_of_the_data() -> None:
    listed = calls_document(
        watched(*MIXED, silent("second", answer=answer(1, 2_000))), NOW_MS + 16_000
    )
    document = json.loads(json.dumps(listed))
    assert (document["newest_score_ms"], document["is_stale"]) == (NOW_MS, True)
    assert (
        document["calls_running"],
        document["calls_in_trouble"],
        document["calls_left_out"],
    ) == (4, 1, 0)
    second = document["calls"][0]
    assert (second["call"]["conversation_id"], second["quiet_ms"]) == ("second", 16_000)
    assert second["call"]["waiting"]["since_ms"] == NOW_MS - 3_000
    assert [(each["kind"], each["reason"]) for each in second["troubles"]] == [
        ("silent", "silent for 3 s"),
        ("slow", "turn 1 slow: 2.0 s"),
    ]
    assert document["calls"][1]["troubles"] == []
    assert "waiting" not in document["calls"][1]["call"]
