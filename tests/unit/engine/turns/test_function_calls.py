"""Tools that pipecat reports: those of a call whose audit log has none."""

import itertools
from typing import Any

import pytest

from consumers.engine.limits import Limits
from schemas.closed_sets import ToolOutcome
from schemas.scores.records import ToolUseFact
from tests.support.calls.agent_calls import envelope_of, tool_replied, tool_requested
from tests.support.fakes.engine_feed import T0_MS, Feed

LIMITS = Limits(dead_air_ms=3_000, delivery_allowance_ms=500)
ASKED, RUNS, DONE = "started", "in_progress", "completed"


def _report(feed: Feed, moment: str, at_ms: int, *, call_id: str = "one", tool: str = "rebook", **fields: Any) -> None:
    times = {name: (T0_MS + fields.pop(name)) / 1000 for name in ("in_progress_at",) if name in fields}
    happened = {"timestamp": (T0_MS + at_ms) / 1000}
    data = {
        "kind": f"function_call_{moment}",
        "function_name": tool,
        "tool_call_id": call_id,
        **happened,
        **times,
        **fields,
    }
    feed.send("pipecat", {"type": "function_call_event", "data": data}, at_ms + 20)


def _waiting_user(limits: Limits = LIMITS) -> Feed:
    feed = Feed(limits)
    feed.speech("user_turn_started", 1_000)
    feed.speech("user_turn_stopped", 2_000)
    return feed


def _tools(feed: Feed) -> list[tuple[int | None, int, str, ToolOutcome, int | None]]:
    """The newest of each tool call: turn, index, tool, outcome, how long it ran."""
    newest = {(fact.turn, fact.index): fact for fact in feed.records("tool_call") if isinstance(fact, ToolUseFact)}
    return [(*place, fact.tool, fact.outcome, fact.duration_ms) for place, fact in newest.items()]


def _end(feed: Feed, at_ms: int = 20_000) -> None:
    feed.send("pipecat", {"type": "call_ended"}, at_ms)
    feed.advance(at_ms + 100_000)


def test_a_tool_that_pipecat_reports_is_a_tool_of_the_call() -> None:
    feed = _waiting_user()
    _report(feed, ASKED, 2_100)
    assert _tools(feed) == []
    _report(feed, RUNS, 2_110, arguments={"seat": 4})
    _report(feed, DONE, 2_910, in_progress_at=2_110, result={})
    assert _tools(feed) == [(1, 0, "rebook", ToolOutcome.SUCCESS, 800)]


@pytest.mark.parametrize(
    ("fields", "outcome"),
    [
        ({}, ToolOutcome.UNKNOWN),
        ({"result": None}, ToolOutcome.UNKNOWN),
        ({"result": {"status": "ok"}}, ToolOutcome.SUCCESS),
        ({"result": "booked"}, ToolOutcome.SUCCESS),
        ({"result": {"status": "error"}}, ToolOutcome.ERROR),
        ({"result": ' {"status": "error"}'}, ToolOutcome.ERROR),
        ({"result": "{broken"}, ToolOutcome.SUCCESS),
    ],
)
def test_an_answer_that_is_withheld_is_no_success_and_one_in_json_text_is_read(
    fields: dict[str, Any], outcome: ToolOutcome
) -> None:
    feed = _waiting_user()
    _report(feed, DONE, 2_910, in_progress_at=2_110, **fields)
    assert [tool[3:] for tool in _tools(feed)] == [(outcome, 800)]


def test_waiting_for_it_is_no_dead_air_and_waiting_after_it_is() -> None:
    feed = _waiting_user()
    _report(feed, RUNS, 2_100)
    feed.advance(60_000)
    assert feed.records("dead_air") == []
    _report(feed, DONE, 60_000)
    feed.advance(63_521)
    assert [fact.silent_since_ms - T0_MS for fact in feed.records("dead_air")] == [60_000]


@pytest.mark.parametrize("moment", ["failed", "timed_out"])
def test_one_that_fails_or_takes_too_long_is_an_error(moment: str) -> None:
    feed = _waiting_user()
    _report(feed, RUNS, 2_100)
    _report(feed, moment, 2_900, in_progress_at=2_100, **({"error": "no seat"} if moment == "failed" else {}))
    assert _tools(feed) == [(1, 0, "rebook", ToolOutcome.ERROR, 800)]


def test_one_that_was_cancelled_has_not_answered_and_explains_no_waiting() -> None:
    feed = _waiting_user()
    _report(feed, RUNS, 2_100)
    _report(feed, "cancelled", 2_900, in_progress_at=2_100)
    feed.advance(6_500)
    assert [fact.silent_since_ms - T0_MS for fact in feed.records("dead_air")] == [2_900]
    _end(feed)
    assert _tools(feed) == [(1, 0, "rebook", ToolOutcome.UNANSWERED, None)]


def test_one_that_was_only_asked_for_never_ran() -> None:
    feed = _waiting_user()
    _report(feed, ASKED, 2_100)
    _end(feed)
    assert _tools(feed) == []
    assert feed.records("dead_air")


def test_the_moment_that_settles_it_says_when_it_began_where_nothing_else_does() -> None:
    feed = _waiting_user()
    _report(feed, DONE, 2_900, in_progress_at=2_100, result={})
    assert _tools(feed) == [(1, 0, "rebook", ToolOutcome.SUCCESS, 800)]


def test_moments_that_come_twice_count_once() -> None:
    feed = _waiting_user()
    for _ in range(2):
        _report(feed, RUNS, 2_100)
    for _ in range(2):
        _report(feed, DONE, 2_900, in_progress_at=2_100, result={})
    feed.advance(6_500)
    assert _tools(feed) == [(1, 0, "rebook", ToolOutcome.SUCCESS, 800)]
    assert [fact.silent_since_ms - T0_MS for fact in feed.records("dead_air")] == [2_900]


@pytest.mark.parametrize("order", sorted(set(itertools.permutations("ppll"))))
def test_where_the_audit_log_has_tools_it_is_the_one_that_counts_whatever_comes_first(order: tuple[str, ...]) -> None:
    """The log's tool runs from 2.2 s to 2.8 s, pipecat's report of it from 2.1 s to 2.9 s."""
    feed = _waiting_user()
    log, pipecat = iter(("call", "answer")), iter((RUNS, DONE))
    for source in order:
        if source == "p":
            moment = next(pipecat)
            _report(feed, moment, 2_100 if moment == RUNS else 2_900)
        elif next(log) == "call":
            feed.tool_call("rebook", 2_200)
        else:
            feed.tool_answer("rebook", 2_800)
    feed.advance(6_301)
    assert [fact.silent_since_ms - T0_MS for fact in feed.records("dead_air")] == [2_800]
    _end(feed)
    assert _tools(feed) == [(1, 0, "rebook", ToolOutcome.SUCCESS, 600)]


@pytest.mark.parametrize("order", sorted(set(itertools.permutations("ppaa"))))
def test_they_give_way_to_an_elevenlabs_agent_s_tools_as_well(order: tuple[str, ...]) -> None:
    """The agent's tool runs from 2.2 s to 2.8 s, pipecat's report of it from 2.1 s to 2.9 s: one tool, and one silence."""
    feed = _waiting_user()
    agent, pipecat = iter((tool_requested, tool_replied)), iter((RUNS, DONE))
    for source in order:
        if source == "p":
            moment = next(pipecat)
            _report(feed, moment, 2_100 if moment == RUNS else 2_900)
        else:
            reported = next(agent)
            at_ms = 2_200 if reported is tool_requested else 2_800
            event = reported("rebook", "two", at_ms)
            feed.send("user_sim", event, at_ms, envelope=envelope_of(event))
    feed.advance(6_301)
    assert [fact.silent_since_ms - T0_MS for fact in feed.records("dead_air")] == [2_800]
    _end(feed)
    assert [tool[:3] for tool in _tools(feed)] == [(1, 0, "rebook")]


def test_a_call_that_was_never_settled_is_no_tool_that_runs_once_the_log_has_one() -> None:
    feed = _waiting_user()
    _report(feed, RUNS, 2_100)
    feed.tool_call("rebook", 2_200)
    feed.tool_answer("rebook", 2_800)
    feed.advance(6_301)
    assert [fact.silent_since_ms - T0_MS for fact in feed.records("dead_air")] == [2_800]


def test_a_report_without_a_name_or_an_id_is_no_tool() -> None:
    feed = _waiting_user()
    feed.send("pipecat", {"type": "function_call_event", "data": {"kind": "function_call_in_progress"}}, 2_100)
    feed.advance(6_000)
    assert len(feed.records("dead_air")) == 1
    _end(feed)
    assert _tools(feed) == []
