"""Live turns of a call with a real ElevenLabs agent, from the arrival of its events, and the record
that puts them right.
"""

import json
from typing import Any

import pytest

from consumers.engine.goals.checks import TurnFacts
from consumers.engine.goals.text_judges import facts_of as facts_of_turns
from consumers.engine.goals.text_judges import transcript_of
from consumers.engine.limits import Limits
from consumers.engine.redaction.redactor import Redactor
from consumers.engine.rows import CallRows
from consumers.engine.sources.elevenlabs import AgentFacts
from consumers.engine.sources.facts import RecordFollows
from consumers.engine.sources.rules import RULES
from consumers.engine.turns.eva import EvaHistory
from consumers.engine.turns.live import Cause, LiveCall
from schemas.closed_sets import Anchor, InputSource, ToolOutcome
from schemas.events.codec import decode
from schemas.redaction import RedactionRules
from schemas.rows import CallRow, EstimateError, ToolUse, Value
from streamer.recordings.elevenlabs import agent_call
from tests.support.calls.agent_calls import (
    corrected,
    entry,
    envelope_of,
    heard,
    interrupted,
    metrics,
    record,
    said,
    tool_replied,
    tool_requested,
    waited,
)
from tests.support.fakes.engine_feed import T0_MS, Feed, Json, closings_of


def fed(*events: Json, feed: Feed | None = None) -> Feed:
    """An evaluator that has received these, each when its time says."""
    feed = feed or Feed()
    for event in events:
        feed.send("user_sim", event, int(event["timestamp"]) - T0_MS, envelope=envelope_of(event))
    return feed


def estimate_error(feed: Feed, turn: int) -> EstimateError:
    """How far the newest record of the turn says that the estimate was off."""
    error = feed.turn(turn).estimate_error
    assert error is not None
    return error


def wait(feed: Feed, turn: int) -> tuple[Value | None, Anchor | None]:
    """The wait of a turn as it is now, and how the end of the caller's speech is known."""
    return feed.turn(turn).wait_ms, feed.turn(turn).anchor


def test_turns_latencies_and_their_anchor() -> None:
    feed = fed(
        said("Welcome.", 0, 1),
        heard("Hello", 3_000, 2),
        said("Hi.", 4_250, 2),
        heard("My badge", 8_000, 3),
        said("Certainly.", 8_900, 3),
    )
    assert feed.latencies() == {1: 1_250.0, 2: 900.0}
    assert {(row.anchor, row.wait_source) for row in feed.turn_rows() if row.turn} == {
        (Anchor.ESTIMATED, "elevenlabs")
    }
    assert feed.turns() == {0, 1, 2}


def test_an_agent_s_events_leave_eva_s_history_empty() -> None:
    feed = fed(said("Welcome.", 0, 1), heard("Hello", 3_000, 2), said("Hi.", 4_250, 2))
    history = feed.evaluator._calls["call"].history
    assert history.context(None).to_dict() == EvaHistory().context(None).to_dict()


def test_two_transcripts_before_an_answer_are_one_turn() -> None:
    feed = fed(
        said("Welcome.", 0, 1),
        heard("My", 3_000, 2),
        heard("badge", 3_500, 3),
        said("Yes?", 4_000, 3),
    )
    assert (feed.latencies(), feed.turns()) == ({1: 500.0}, {0, 1})


def test_a_caller_who_says_nothing_has_no_turn() -> None:
    feed = fed(said("Welcome.", 0, 1), heard("...", 9_000, 2), said("Are you there?", 9_900, 2))
    assert (feed.latencies(), feed.turns()) == ({}, {0})


def test_a_latency_is_that_of_the_first_answer_of_a_turn() -> None:
    feed = fed(
        heard("Hello", 0, 2), said("One moment.", 800, 2), said("It is on its way.", 4_000, 2)
    )
    assert feed.latencies() == {1: 800.0}


def test_who_cuts_the_agent_off_begins_a_turn() -> None:
    feed = fed(said("Welcome to the long speech.", 0, 1), interrupted(900, 1))
    assert feed.interruptions() == [(1, "user")]
    fed(heard("Stop", 1_500, 2), said("Yes?", 2_000, 2), feed=feed)
    assert (feed.latencies(), feed.turns()) == ({1: 500.0}, {0, 1})


def test_a_cut_off_that_is_told_after_the_transcript_is_of_the_same_turn() -> None:
    feed = fed(
        said("Welcome.", 0, 1),
        heard("Stop", 1_500, 2),
        interrupted(1_510, 1),
        said("Yes?", 2_000, 2),
    )
    assert (feed.interruptions(), feed.turns()) == ([(1, "user")], {0, 1})


def test_a_caller_who_cuts_off_and_hangs_up_leaves_no_turn_that_counts() -> None:
    feed = fed(
        said("Welcome.", 0, 1),
        heard("Hi", 2_000, 2),
        said("A long answer", 3_000, 2),
        interrupted(4_000, 2),
    )
    feed.advance(900_000)
    assert feed.latencies() == {1: 1_000.0, 2: "the call ended before an answer"}
    assert ["turn" in feed.news(turn) for turn in (0, 1, 2)] == [False, True, False]


def test_times_that_only_order_give_no_latency() -> None:
    feed = fed(
        heard("Hello", 0, 2, is_time_exact=False),
        said("Hi.", 1, 2, is_time_exact=False),
        heard("Badge", 9_000, 3),
        said("Yes.", 10_000, 3),
    )
    assert feed.latencies() == {1: "times_unknown", 2: 1_000.0}
    feed.advance(900_000)
    assert feed.latencies() == {1: "times_unknown", 2: 1_000.0}
    assert ["wait" in feed.news(turn) for turn in (1, 2)] == [False, True]
    assert feed.call().unscored_turns["voice_to_voice_latency_ms"] == {"times_unknown": 1}
    assert feed.silences() == []


def test_an_inexact_answer_later_in_a_turn_is_no_matter() -> None:
    feed = fed(
        heard("Hello", 0, 2), said("Hi.", 700, 2), said("And more.", 900, 2, is_time_exact=False)
    )
    assert feed.latencies() == {1: 700.0}


def test_what_a_reconnected_monitor_sends_again_is_a_repeat() -> None:
    events = [
        said("Welcome.", 0, 1),
        heard("Hello", 3_000, 2),
        tool_requested("find", "c1", 3_100),
        tool_replied("find", "c1", 3_300),
        said("Hi.", 4_000, 2),
        interrupted(4_500, 2),
        corrected("Hi.", "H", 4_501, 2),
    ]
    feed = fed(*events)
    before = len(feed.rows())
    fed(*({**event, "timestamp": event["timestamp"] + 20_000} for event in events), feed=feed)
    assert len(feed.rows()) == before
    assert feed.counts("callgauge_events_total") == {
        ("elevenlabs", "folded"): 7,
        ("elevenlabs", "repeated"): 7,
    }


def test_the_same_words_twice_are_said_twice() -> None:
    feed = fed(
        heard("Yes.", 0, 2), said("Sure?", 500, 2), heard("Yes.", 3_000, 3), said("Sure?", 3_700, 3)
    )
    assert feed.latencies() == {1: 500.0, 2: 700.0}
    assert feed.counts("callgauge_events_total") == {("elevenlabs", "folded"): 4}


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)])
def test_a_client_s_tool_is_one_use_whatever_is_told_of_it_first(order: tuple[int, ...]) -> None:
    events = [
        tool_requested("find", "c1", 3_100),
        tool_requested("find", "c1", 3_110, "client_tool_call", parameters={"a": 1}),
        tool_replied("find", "c1", 3_900),
        tool_replied(
            "find",
            "c1",
            3_950,
            "agent_tool_response_full_payload",
            full_tool_result={"status": "ok"},
        ),
    ]
    feed = fed(
        said("Welcome.", 0, 1), heard("Hello", 3_000, 2), *(events[place] for place in order)
    )
    assert feed.tools() == {(1, 0): ToolUse(0, "find", ToolOutcome.SUCCESS, 800, T0_MS + 3_100)}


def test_uses_of_one_tool_at_a_time_are_paired_by_their_ids() -> None:
    feed = fed(
        heard("Hello", 0, 2),
        tool_requested("find", "a", 100),
        tool_requested("find", "b", 200),
        tool_replied("find", "b", 300),
        tool_replied("find", "a", 900),
    )
    assert [feed.tools()[1, index].duration_ms for index in (0, 1)] == [800, 100]


@pytest.mark.parametrize(
    ("more", "outcome"),
    [
        ({"is_error": True}, "error"),
        ({"is_error": True, "full_tool_result": '{"status": "ok"}'}, "error"),
        ({"full_tool_result": '{"status": "error"}'}, "error"),
        ({"full_tool_result": "{no json"}, "success"),
        ({"full_tool_result": {"seat": "4A"}}, "success"),
        ({"is_called": False}, "unanswered"),
    ],
)
def test_how_a_tool_ended(more: Json, outcome: str) -> None:
    feed = fed(
        heard("Hello", 0, 2),
        tool_requested("find", "a", 100),
        tool_replied("find", "a", 300, **more),
    )
    feed.advance(900_000)
    assert feed.tools()[1, 0].outcome == outcome


@pytest.mark.parametrize("past", [{0}, {1}, {0, 1}])
def test_a_tool_out_of_the_past_has_no_time(past: set[int]) -> None:
    """A monitor that joins late receives the events before it all at once."""
    pair = [tool_requested("find", "a", 100), tool_replied("find", "a", 101)]
    for place in past:
        pair[place]["is_time_exact"] = False
    feed = fed(heard("Hello", 0, 2), *pair, said("There.", 900, 3), heard("Thanks", 3_000, 4))
    assert (feed.tools()[1, 0].outcome, feed.tools()[1, 0].duration_ms) == ("success", None)
    assert [stage.stage for stage in feed.turn(1).stages] == []


def test_an_answer_that_has_its_own_time_keeps_it() -> None:
    reply = tool_replied("find", "a", 101, tool_latency_secs=0.75) | {"is_time_exact": False}
    feed = fed(heard("Hello", 0, 2), tool_requested("find", "a", 100), reply)
    assert feed.tools()[1, 0].duration_ms == 750


def test_an_answer_under_the_other_name_of_its_payload() -> None:
    event = tool_replied("find", "a", 300)
    event["agent_tool_response_event"] = event.pop("agent_tool_response")
    feed = fed(heard("Hello", 0, 2), tool_requested("find", "a", 100), event)
    assert feed.tools()[1, 0].duration_ms == 200


def mcp(state: str, at_ms: int, call_id: str = "m1", **more: Any) -> Json:
    """A state of a tool of an MCP server, as ElevenLabs' document has it."""
    data = {
        "service_id": "s1",
        "tool_call_id": call_id,
        "tool_name": "track",
        "tool_description": None,
        "parameters": {"parcel": "P1"},
        "timestamp": "2026-09-21T14:13:20.250+00:00",
        "state": state,
        **more,
    }
    return {"type": "mcp_tool_call", "timestamp": T0_MS + at_ms, "mcp_tool_call": data}


@pytest.mark.parametrize(
    ("ended", "outcome", "answer"),
    [
        (
            mcp("success", 900, result=[{"type": "text", "text": "tomorrow"}]),
            "success",
            [{"type": "text", "text": "tomorrow"}],
        ),
        (
            mcp("failure", 900, error_message="no such parcel"),
            "error",
            {"status": "error", "message": "no such parcel"},
        ),
    ],
)
def test_a_tool_of_an_mcp_server_is_a_tool(ended: Json, outcome: str, answer: object) -> None:
    """Its time begins when it runs, and not when a person is asked for approval."""
    feed = fed(
        heard("Where is it?", 0, 2),
        mcp("awaiting_approval", 100, approval_timeout_secs=300),
        mcp("loading", 400),
        ended,
    )
    assert feed.tools() == {(1, 0): ToolUse(0, "track", ToolOutcome(outcome), 500, T0_MS + 400)}
    (call,) = facts_of(heard("Where is it?", 0, 2), mcp("loading", 400), ended)[1].calls
    assert (call.arguments, call.answer) == ({"parcel": "P1"}, answer)


def test_an_mcp_tool_that_both_events_report_is_one_use() -> None:
    both = (
        tool_requested("track", "m1", 110, tool_type="mcp"),
        mcp("loading", 100),
        mcp("success", 900, result=[]),
    )
    feed = fed(
        heard("Where is it?", 0, 2),
        *both,
        tool_replied("track", "m1", 950, tool_type="mcp"),
        said("There.", 1_500, 2),
    )
    assert [use.duration_ms for use in feed.tools().values()] == [800]


def test_nobody_waits_in_silence_while_an_mcp_tool_runs_and_a_replay_adds_none() -> None:
    feed = fed(said("Welcome.", 0, 1), heard("Where is it?", 3_000, 2), mcp("loading", 3_100))
    feed.advance(20_000)
    assert feed.silences() == []
    fed(mcp("loading", 21_000), mcp("success", 21_500, result=[]), feed=feed)
    assert feed.counts("callgauge_events_total") == {
        ("elevenlabs", "folded"): 4,
        ("elevenlabs", "repeated"): 1,
    }
    feed.advance(30_000)
    assert len(feed.silences()) == 1


def test_an_mcp_tool_of_the_record_is_a_tool() -> None:
    """The webhook alone: its request and its result are of the type `mcp`."""
    entries = (
        entry("user", "Where is it?", 1),
        entry(
            "agent",
            None,
            2,
            tool_calls=[
                {"request_id": "m1", "tool_name": "track", "type": "mcp", "params_as_json": "{}"}
            ],
        ),
        entry(
            "agent",
            "Tomorrow.",
            3,
            tool_results=[
                {
                    "request_id": "m1",
                    "tool_name": "track",
                    "type": "mcp",
                    "result_value": "{}",
                    "is_error": False,
                    "tool_latency_secs": 0.5,
                },
            ],
        ),
    )
    feed = fed(*agent_call(record(*entries)).events)
    use = feed.tools()[1, 0]
    assert (use.tool, use.outcome, use.duration_ms) == ("track", "success", 500)


RECORDED = (
    said("Welcome.", 0, 1),
    heard("My badge is lost", 4_100, 2),
    tool_requested("find", "find-1", 4_200),
    tool_replied("find", "find-1", 4_300),
    said("Which one?", 6_200, 2),
)
HEARD_LIVE = (
    said("Welcome.", 10, 1),
    heard("My badge is lost", 4_000, 2),
    tool_requested("find", "find-1", 4_050),
    tool_replied("find", "find-1", 4_450),
    said("Which one?", 5_000, 2),
)


def of_the_record(*events: Json) -> list[Json]:
    return [event | {"is_from_record": True} for event in events]


def found_in(feed: Feed) -> tuple[Any, ...]:
    """Turns, latencies, durations of tools and words of a call, which then closes."""
    turns = feed.turns()
    feed.advance(3_600_000)
    tools = {index: each.duration_ms for (_, index), each in feed.tools().items()}
    talks = [feed.turn(turn).talk for turn in (0, 1)]
    return turns, feed.latencies()[1], tools, [talk and talk.assistant.words for talk in talks]


def test_a_call_of_which_only_the_record_came_has_turns() -> None:
    feed = fed(*of_the_record(*RECORDED))
    assert found_in(feed) == ({0, 1}, 2_100.0, {0: 100}, [1, 2])


@pytest.mark.parametrize("recorded_first", range(6))
def test_live_events_count_alone_whichever_come_first(recorded_first: int) -> None:
    recorded = of_the_record(*RECORDED)
    feed = Feed()
    for event in (
        *recorded[:recorded_first],
        *HEARD_LIVE[:3],
        *recorded[recorded_first:],
        *HEARD_LIVE[3:],
    ):
        feed.send("user_sim", event, 10_000, envelope=envelope_of(event))
    assert found_in(feed) == ({0, 1}, 1_000.0, {0: 400}, [1, 2])
    assert (
        feed.counts("callgauge_events_total")["elevenlabs", "repeated"]
        == len(RECORDED) - recorded_first
    )


def test_a_live_event_that_is_no_part_of_a_turn_leaves_the_record_s_turns() -> None:
    initiated = {
        "type": "conversation_initiation_metadata",
        "timestamp": T0_MS,
        "conversation_initiation_metadata_event": {},
    }
    feed = fed(*of_the_record(*RECORDED), initiated)
    assert found_in(feed)[:2] == ({0, 1}, 2_100.0)


ERROR: Json = {"type": "error", "error_event": {"code": 1008, "message": "the quota is used up"}}


@pytest.mark.parametrize("kind", ["error", "client_error"])
@pytest.mark.parametrize("has_header", [True, False])
def test_an_error_of_the_agent_is_counted_with_its_header_and_without(
    kind: str, *, has_header: bool
) -> None:
    feed = fed(heard("Hello", 0, 2))
    for at_ms, is_exact in ((1_000, True), (2_000, True), (3_000, False)):
        error = ERROR | {"type": kind, "timestamp": T0_MS + at_ms, "is_time_exact": is_exact}
        feed.send("user_sim", error, at_ms, envelope=envelope_of(error) if has_header else None)
    assert feed.counts("callgauge_agent_errors_total") == {("elevenlabs",): 2}
    assert feed.counts("callgauge_unknown_fields_total") == {}


def test_an_error_of_the_simulated_caller_is_none_of_an_agent() -> None:
    feed = Feed()
    for event in ({"type": "error"}, {"type": "audio_sent", "error_event": {}}):
        feed.send("user_sim", event | {"data": {"error_event": "the line broke"}}, 100)
    assert feed.counts("callgauge_agent_errors_total") == {}
    assert feed.counts("callgauge_events_total") == {("elevenlabs", "folded"): 2}


@pytest.mark.parametrize(
    ("answer", "is_error", "shown"),
    [
        ("Timed out", True, '{"status":"error","result":"Timed out"}'),
        (None, True, '{"status":"error"}'),
        ('{"status": "failed", "why": "full"}', True, '{"status":"failed","why":"full"}'),
        ("Timed out", False, '"Timed out"'),
    ],
)
def test_a_judge_is_told_that_a_tool_failed(
    answer: str | None, shown: str, *, is_error: bool
) -> None:
    reply = tool_replied("find", "a", 300, is_error=is_error, full_tool_result=answer)
    facts = facts_of(heard("Hello", 0, 2), tool_requested("find", "a", 100), reply)
    *_, item = transcript_of(1, facts[1], Redactor(RedactionRules()))
    assert (item.kind, item.text) == ("tool_response", shown)


def test_dead_air_from_the_transcript_on() -> None:
    feed = fed(said("Welcome.", 0, 1), heard("Hello", 3_000, 2))
    feed.advance(5_999)
    assert feed.silences() == []
    feed.advance(7_000)
    assert [(turn, each.since_ms - T0_MS) for turn, each in feed.silences()] == [(1, 3_000)]


def test_no_dead_air_while_a_tool_runs() -> None:
    feed = fed(said("Welcome.", 0, 1), heard("Hello", 3_000, 2), tool_requested("find", "a", 3_100))
    feed.advance(9_000)
    assert feed.silences() == []


def test_a_simulated_caller_s_audio_wins() -> None:
    feed = Feed().bot_text("Welcome.", 0)
    fed(heard("Hello", 3_000, 2), said("Hi.", 4_000, 2), feed=feed)
    feed.user_audio(1_000, 2_400, behind_ms=3_100).assistant_audio(4_100, behind_ms=400)
    fed(
        record(entry("user", "Hello"), entry("agent", "Hi.", **waited(2.0)), at_ms=5_000), feed=feed
    )
    assert wait(feed, 1) == (1_700.0, Anchor.AUDIO)
    feed.advance(900_000)
    assert feed.turn(1).estimate_error is None


def test_audio_after_the_record_takes_the_record_s_word_back() -> None:
    feed = Feed().bot_text("Welcome.", 0)
    fed(heard("Hello", 3_000, 2), said("Hi.", 4_000, 2), feed=feed)
    fed(
        record(entry("user", "Hello"), entry("agent", "Hi.", **waited(2.0)), at_ms=5_000), feed=feed
    )
    fed(heard("Bye", 5_500, 3), feed=feed)
    assert estimate_error(feed, 1).error_ms == -1_000.0
    feed.user_audio(1_000, 2_400, behind_ms=4_500).assistant_audio(4_100, behind_ms=2_000)
    assert wait(feed, 1)[1] is Anchor.AUDIO
    feed.user_audio(7_000, 8_000)
    assert feed.turn(1).estimate_error is None


def test_the_record_replaces_the_estimate_and_says_how_far_it_was_off() -> None:
    feed = fed(
        said("Welcome.", 0, 1),
        heard("Hello", 3_000, 2),
        said("Hi.", 4_000, 2),
        heard("Bye", 8_000, 3),
        said("Goodbye.", 8_900, 3),
    )
    fed(
        record(
            entry("agent", "Welcome.", **metrics(tts_service_ttfb=0.2)),
            entry("user", "Hello"),
            entry("agent", "Hi.", **waited(2.4)),
            entry("user", "Bye"),
            entry("agent", "Goodbye."),
            at_ms=12_000,
        ),
        feed=feed,
    )
    assert (wait(feed, 1), wait(feed, 2)) == ((2_400.0, Anchor.RECORD), (900.0, Anchor.ESTIMATED))
    assert feed.news(1).count("wait_revised") == 1
    feed.advance(900_000)
    error = estimate_error(feed, 1)
    assert (error.error_ms, error.estimated_ms, error.recorded_ms) == (-1_400.0, 1_000.0, 2_400.0)
    assert feed.turn(2).estimate_error is None
    assert (feed.news(1).count("estimate_error"), feed.news(2).count("estimate_error")) == (1, 0)


def test_a_webhook_s_body_is_a_record_too() -> None:
    feed = fed(heard("Hello", 3_000, 2), said("Hi.", 4_000, 2))
    body = record(entry("user", "Hello"), entry("agent", "Hi.", **waited(2.4)))
    del body["timestamp"]
    webhook = {
        "type": "post_call_transcription",
        "event_timestamp": T0_MS // 1000 + 20,
        "data": body,
    }
    feed.send(
        "user_sim", {**webhook, "timestamp": T0_MS + 20_000}, 20_000, envelope=envelope_of(webhook)
    )
    assert feed.latencies() == {1: 2_400.0}


def test_metrics_of_an_older_shape_and_nulls() -> None:
    old: Json = {
        "conversation_turn_metrics": {"convai_ttf_audio_since_silence": {"elapsed_time": 1.5}},
        "tool_calls": None,
    }
    feed = fed(heard("Hello", 3_000, 2), said("Hi.", 4_000, 2))
    fed(record(entry("user", "Hello", tool_results=None), entry("agent", "Hi.", **old)), feed=feed)
    assert feed.latencies() == {1: 1_500.0}


def test_of_a_turn_with_tools_the_first_sound_counts() -> None:
    feed = fed(heard("Hello", 3_000, 2), said("A moment.", 4_000, 2), said("Found it.", 7_000, 2))
    tool: Json = {"tool_calls": [{"request_id": "r", "tool_name": "find", "params_as_json": "{}"}]}
    fed(
        record(
            entry("user", "Hello"),
            entry("agent", None, **tool),
            entry("agent", "A moment.", **waited(1.9)),
            entry("agent", "Found it.", **waited(4.8)),
        ),
        feed=feed,
    )
    assert feed.latencies() == {1: 1_900.0}


def test_turns_are_told_by_the_ids_of_their_events() -> None:
    feed = fed(
        heard("Yes.", 3_000, 12),
        said("Sure?", 4_000, 12),
        heard("Yes.", 8_000, 14),
        said("Sure?", 9_000, 14),
    )
    fed(
        record(
            entry("user", "Yes.", source_event_id=10),
            entry("agent", "Sure?", source_event_id=10, **waited(1.0)),
            entry("user", "Yes.", source_event_id=12),
            entry("agent", "Sure?", source_event_id=12, **waited(2.0)),
            entry("user", "Yes.", source_event_id=14),
            entry("agent", "Sure?", source_event_id=14, **waited(3.0)),
        ),
        feed=feed,
    )
    assert feed.latencies() == {1: 2_000.0, 2: 3_000.0}


def test_turns_are_told_by_their_place_where_words_were_redacted() -> None:
    feed = fed(
        heard("I am Ann", 3_000),
        said("Hi Ann.", 4_000),
        heard("Bye", 8_000),
        said("Bye Ann.", 9_000),
    )
    fed(
        record(
            entry("user", "I am [name]"),
            entry("agent", "Hi.", **waited(1.1)),
            entry("user", "..."),
            entry("agent", "Still there?", **waited(9.0)),
            entry("user", "Bye"),
            entry("agent", "Bye.", **waited(1.2)),
        ),
        feed=feed,
    )
    assert feed.latencies() == {1: 1_100.0, 2: 1_200.0}


def test_turns_are_told_by_words_where_the_live_events_miss_some() -> None:
    feed = fed(
        heard("It is  lost", 3_000), said("Oh.", 4_000), heard("Bye", 8_000), said("Bye.", 9_000)
    )
    fed(
        record(
            entry("user", "Hello"),
            entry("agent", "Hi.", **waited(1.1)),
            entry("user", "It is lost"),
            entry("agent", "Oh.", **waited(1.2)),
            entry("user", "Bye"),
            entry("agent", "Bye.", **waited(1.3)),
        ),
        feed=feed,
    )
    assert feed.latencies() == {1: 1_200.0, 2: 1_300.0}


@pytest.mark.parametrize("is_early_first", [True, False])
def test_of_several_records_the_one_of_the_whole_call_counts(is_early_first: bool) -> None:
    feed = fed(heard("Hello", 3_000, 2), said("Hi.", 4_000, 2))
    early = record(
        entry("user", "Hello"),
        entry("agent", "Hi.", **waited(9.9)),
        status="in-progress",
        at_ms=5_000,
    )
    late = record(entry("user", "Hello"), entry("agent", "Hi.", **waited(2.4)), at_ms=20_000)
    fed(*((early, late) if is_early_first else (late, early)), feed=feed)
    assert feed.latencies() == {1: 2_400.0}


@pytest.mark.parametrize(
    ("announced", "reason"), [(None, "Client ended call"), ("goodbye", "goodbye")]
)
def test_a_call_ends_for_the_reason_in_its_record_unless_an_event_names_one(
    announced: str | None, reason: str
) -> None:
    metadata = {
        "start_time_unix_secs": T0_MS // 1000,
        "call_duration_secs": 24,
        "termination_reason": "Client ended call",
    }
    feed = fed(
        heard("Hello", 3_000, 2),
        said("Hi.", 4_000, 2),
        record(entry("user", "Hello"), metadata=metadata),
    )
    if announced is not None:
        feed.send("audit", {"type": "call_ended", "reason": announced}, 61_000)
    feed.advance(100_000).close_all()
    (closed,) = closings_of(feed.effects)
    assert (closed.ended_reason, closed.began_ms) == (reason, T0_MS + 3_000)
    assert closed.ended_ms == T0_MS + (24_000 if announced is None else 61_000)


def test_the_record_s_metrics_are_stages_of_their_turns() -> None:
    feed = fed(said("Welcome.", 0, 1), heard("Hello", 3_000, 2), said("Hi.", 4_000, 2))
    fed(
        record(
            entry("agent", "Welcome."),
            entry("user", "Hello", **metrics(asr_trailing_service_latency=0.15)),
            entry("agent", None, **metrics(llm_service_ttfb=0.7, llm_service_tt_last_sentence=0.9)),
            entry(
                "agent",
                "Hi.",
                **metrics(
                    llm_service_ttfb=0.8, llm_service_tt_last_sentence=1.4, tts_service_ttfb=0.1
                ),
            ),
        ),
        feed=feed,
    )
    feed.advance(900_000)
    found = feed.turn(1)
    values = {
        each.stage.value: each.latency_ms for each in found.stages if each.source == "elevenlabs"
    }
    assert values == {
        "stt_trailing": 150.0,
        "llm_first_token": 700.0,
        "llm_last_sentence": 1_400.0,
        "tts_first_byte": 100.0,
    }


def test_a_better_record_that_does_not_know_a_turn_gives_it_back_to_the_estimate() -> None:
    feed = fed(heard("Hello", 3_000), said("Hi.", 4_000))
    fed(
        record(
            entry("user", "Hello"),
            entry("agent", "Hi.", **waited(2.4)),
            status="processing",
            at_ms=5_000,
        ),
        heard("Bye", 6_000),
        feed=feed,
    )
    assert feed.latencies() == {1: 2_400.0}
    assert estimate_error(feed, 1).error_ms == -1_400.0
    other = [
        entry("user", "One"),
        entry("agent", "Hi.", **waited(1.0)),
        entry("user", "Two"),
        entry("agent", "Hi."),
        entry("user", "Three"),
    ]
    fed(record(*other, at_ms=9_000), feed=feed)
    assert wait(feed, 1) == (1_000.0, Anchor.ESTIMATED)
    feed.advance(900_000)
    assert feed.turn(1).estimate_error is None


def test_a_turn_that_the_bot_s_detector_heard_keeps_its_latency() -> None:
    feed = Feed().spoke("user", 2_000, 3_000).speech("bot_speech_started", 4_000)
    fed(
        heard("Hello", 3_200, 2),
        said("Hi.", 3_900, 2),
        record(
            entry("user", "Hello", source_event_id=2),
            entry("agent", "Hi.", **waited(2.4)),
            at_ms=9_000,
        ),
        feed=feed,
    )
    assert wait(feed, 1) == (1_000.0, Anchor.VAD)


def test_a_wait_of_years_is_no_measurement() -> None:
    feed = fed(heard("Hello", 3_000, 2), said("Hi.", 4_000, 2))
    fed(
        record(
            entry("user", "Hello"),
            entry("agent", "Hi.", **waited(1e6)),
            entry("agent", "So.", **waited(-1.0)),
        ),
        feed=feed,
    )
    assert feed.latencies() == {1: 1_000.0}


def test_equal_words_are_told_apart_by_their_order() -> None:
    feed = fed(heard("Yes", 3_000), said("A?", 4_000), heard("Yes", 8_000), said("B?", 9_000))
    fed(
        record(
            entry("user", "Hello"),
            entry("agent", "Hi.", **waited(0.9)),
            entry("user", "Yes"),
            entry("agent", "A?", **waited(1.1)),
            entry("user", "Yes"),
            entry("agent", "B?", **waited(1.2)),
        ),
        feed=feed,
    )
    assert feed.latencies() == {1: 1_100.0, 2: 1_200.0}


def test_a_sound_that_took_no_turn_is_none_in_the_record() -> None:
    feed = fed(
        heard("I am Ann", 3_000), said("Hi.", 4_000), heard("Bye", 8_000), said("Bye.", 9_000)
    )
    fed(
        record(
            entry("user", "I am [name]"),
            entry("agent", "Hi.", **waited(1.1)),
            entry("user", "Mhm", ignored_as_backchannel=True),
            entry("agent", "As I said."),
            entry("user", "Bye"),
            entry("agent", "Bye.", **waited(1.2)),
        ),
        feed=feed,
    )
    assert feed.latencies() == {1: 1_100.0, 2: 1_200.0}


def test_the_time_of_a_record_makes_nothing_late() -> None:
    feed = fed(heard("Hello", 3_000, 2), record(entry("user", "Hello"), at_ms=60_000))
    fed(said("Hi.", 4_000, 2), feed=feed)
    assert (feed.counts("callgauge_late_events_total"), feed.latencies()) == ({}, {1: 1_000.0})


def test_the_agent_s_own_log_beside_its_events_makes_no_further_turns() -> None:
    feed = fed(said("Welcome.", 0, 1), heard("Hello", 3_000, 2), said("Hi.", 4_000, 2))
    feed.heard("Hello", 4_100)
    assert (feed.turns(), feed.latencies()) == ({0, 1}, {1: 1_000.0})


def facts_of(*events: Json) -> dict[int, TurnFacts]:
    """The turns as goals are judged on them."""
    live = LiveCall(EvaHistory(), CallRows(CallRow(conversation_id="call")), Limits())
    agent = AgentFacts()
    for event in events:
        typed = decode(InputSource.ELEVENLABS, json.dumps(event).encode(), envelope_of(event))
        for fact in RULES[type(typed)].facts(typed):
            if not isinstance(fact, RecordFollows):
                agent.fold(fact, live)
    live.refresh(Cause(T0_MS, T0_MS), [])
    return facts_of_turns(live, range(live.turn + 1))


def words_of(*events: Json) -> list[tuple[str, str]]:
    """The words of each side by turn, as goals are judged on them."""
    facts = facts_of(*events)
    return [(facts[turn].user_words, facts[turn].assistant_words) for turn in sorted(facts)]


PAST: Json = {"is_time_exact": False}


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4), (4, 3, 2, 1, 0), (3, 1, 0, 4, 2)])
def test_a_call_s_past_that_comes_in_one_millisecond_is_put_in_order(
    order: tuple[int, ...],
) -> None:
    events = [
        said("Welcome.", 0, 1, **PAST),
        heard("Hello", 0, 2, **PAST),
        said("Hi.", 0, 2, **PAST),
        heard("Bye", 0, 3, **PAST),
        said("Bye.", 0, 3, **PAST),
    ]
    past = [events[place] for place in order]
    assert words_of(*past) == [("", "Welcome."), ("Hello", "Hi."), ("Bye", "Bye.")]
    feed = fed(*past)
    feed.advance(900_000)
    assert feed.latencies() == {1: "times_unknown", 2: "times_unknown"}


def test_two_answers_with_one_id_in_one_millisecond_stay_as_they_came() -> None:
    events = (
        heard("Hello", 0, 2, **PAST),
        said("A moment.", 0, 2, **PAST),
        said("Hi.", 0, 2, **PAST),
    )
    assert words_of(*events, corrected("Hi.", "H", 0, 2))[1] == ("Hello", "A moment. H")


def test_words_of_a_call() -> None:
    assert words_of(
        said("Welcome.", 0, 1),
        heard("My", 3_000, 2),
        heard(" badge ", 3_500, 3),
        said("A moment.", 4_000, 3),
        said("Here it is.", 6_000, 3),
        heard("...", 9_000, 4),
    ) == [("", "Welcome."), ("My badge", "A moment. Here it is.")]


@pytest.mark.parametrize("event_id", [2, None])
@pytest.mark.parametrize("is_correction_first", [True, False])
def test_words_that_were_cut_off_are_those_that_were_heard(
    event_id: int | None, is_correction_first: bool
) -> None:
    reply, cut = (
        said("Your badge is here.", 4_000, event_id),
        corrected("Your badge is here.", "Your badge", 5_000, event_id),
    )
    events = [cut, reply] if is_correction_first else [reply, cut]
    assert words_of(heard("Where", 3_000, 2), *events) == [("", ""), ("Where", "Your badge")]


ASKED = heard("Where", 3_000, 2)
A_MOMENT, HERE = said("A moment.", 4_000, 2), said("It is here.", 6_000, 2)


@pytest.mark.parametrize(
    ("events", "words"),
    [
        # Of two answers with one id the right one is corrected, or neither where none fits.
        ((A_MOMENT, HERE, corrected("It is here.", "It is", 7_000, 2)), "A moment. It is"),
        ((A_MOMENT, HERE, corrected("Other", "O", 7_000, 2)), "A moment. It is here."),
        # An answer told in other words.
        ((said("[warmly] It is here.", 4_000, 2), corrected("It is here.", "It", 5_000, 2)), "It"),
        # The shortest of several counts.
        (
            (
                HERE,
                corrected("It is here.", "It", 7_000, 2),
                corrected("It is here.", "It is", 7_100, 2),
            ),
            "It",
        ),
    ],
)
def test_which_answer_a_correction_cuts(events: tuple[Json, ...], words: str) -> None:
    assert words_of(ASKED, *events)[1] == ("Where", words)


def test_a_call_waits_for_its_record_and_not_longer() -> None:
    limits = Limits(closing_grace_ms=10_000, agent_record_grace_ms=120_000)
    ended = {"type": "call_ended"}
    feed = fed(heard("Hello", 3_000, 2), said("Hi.", 4_000, 2), feed=Feed(limits))
    feed.send("audit", ended, 5_000).advance(100_000)
    assert feed.call().state == "ended"
    fed(
        record(entry("user", "Hello"), entry("agent", "Hi.", **waited(2.4)), at_ms=101_000),
        feed=feed,
    )
    feed.advance(110_999)
    assert feed.call().state == "ended"
    feed.advance(111_000)
    assert wait(feed, 1)[0] == 2_400.0
    assert feed.call().close_reason == "ended"


def test_a_call_whose_record_does_not_come_closes_all_the_same() -> None:
    feed = fed(
        heard("Hello", 3_000, 2),
        said("Hi.", 4_000, 2),
        feed=Feed(Limits(agent_record_grace_ms=120_000)),
    )
    feed.send("audit", {"type": "call_ended"}, 5_000).advance(124_999)
    assert feed.call().state == "ended"
    feed.advance(125_000)
    assert feed.call().close_reason == "ended"


def test_a_record_ends_a_call_of_which_nobody_says_that_it_ended() -> None:
    feed = fed(
        heard("Hello", 3_000, 2),
        said("Hi.", 4_000, 2),
        record(entry("user", "Hello"), at_ms=30_000),
    )
    feed.advance(40_000)
    assert feed.call().close_reason == "ended"


def test_other_calls_close_as_before() -> None:
    feed = Feed().heard("Hello", 1_000).send("audit", {"type": "call_ended"}, 5_000).advance(15_000)
    assert feed.call().close_reason == "ended"


def test_events_of_later_versions_and_those_that_nobody_reads() -> None:
    strange: list[Json] = [
        {"type": "agent_sighed", "timestamp": T0_MS + 3_000, "mood": 3},
        {"type": "vad_score", "vad_score_event": {"vad_score": 0.2}},
        {
            "type": "error",
            "timestamp": T0_MS + 3_100,
            "error_event": {"error_type": "llm_timeout", "code": 1011},
        },
        {
            "type": "agent_response_complete",
            "timestamp": T0_MS + 3_200,
            "agent_response_complete_event": {"event_id": 2},
        },
    ]
    feed = Feed()
    for event in strange:
        feed.send("user_sim", event, 3_000, envelope=envelope_of(event))
    assert feed.counts("callgauge_events_total") == {
        ("elevenlabs", "unknown"): 1,
        ("elevenlabs", "folded"): 3,
    }
    assert feed.turns() == set()
