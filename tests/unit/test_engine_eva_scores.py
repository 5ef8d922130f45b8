"""EVA's metrics while a call runs: at once, revised when more is known, EVA's own at the end, and why something is not known."""

from typing import Any

import pytest

from consumers.engine.limits import Limits
from schemas.score_record import NotApplicable, Scored, Unscored
from tests.agent_calls import envelope_of, heard, tool_replied, tool_requested
from tests.agent_calls import said as agent_said
from tests.engine_feed import T0_MS, Feed

LIMITS = Limits(closing_grace_ms=1_000)
ENDED = {"type": "call_ended", "reason": "goodbye"}
GOODBYE = {"type": "connection_state", "data": {"state": "session_ended", "details": {"reason": "goodbye"}}}


def value(record: Any) -> float | str:
    """What a record says, or why it says nothing."""
    match record.result:
        case Scored(value=number):
            return number
        case Unscored(reason=reason):
            return str(reason)
        case NotApplicable(reason=reason):
            return reason
    raise AssertionError(record)


def timing(feed: Feed, turn: int) -> list[float | str]:
    """What was said of a turn, one after the other."""
    return [value(record) for record in feed.records("turn_taking", turn)]


def said(feed: Feed, name: str) -> list[float | str]:
    """What was said of the call under this name, one after the other."""
    return [value(record) for record in feed.records(name)]


def ended(feed: Feed, at_ms: int = 60_000, *, event: dict[str, Any] = ENDED) -> Feed:
    """The call is over."""
    feed.send("judge", event, at_ms)
    feed.advance(at_ms + 10_000)
    assert feed.evaluator.open_calls == 0
    return feed


def greeted() -> Feed:
    feed = Feed(LIMITS)
    feed.assistant_audio(0, 900)
    return feed


def phoned() -> Feed:
    """A call that only the bot hears, of which it has spoken the greeting."""
    feed = Feed(LIMITS)
    feed.speech("bot_speech_started", 0)
    feed.speech("bot_speech_stopped", 900)
    return feed


def spoken(feed: Feed, start_ms: int, end_ms: int) -> None:
    feed.speech("user_speech_started", start_ms)
    feed.speech("user_speech_stopped", end_ms)


# While the call runs.


def test_a_turn_is_scored_when_the_assistant_is_first_heard() -> None:
    feed = greeted()
    feed.user_audio(2_000, 3_000)
    assert timing(feed, 1) == []
    feed.assistant_audio(5_750)
    (record,) = feed.records("turn_taking", 1)
    assert (value(record), record.reason, record.latency_ms, record.anchor) == (0.5, "latency", 2_750.0, "audio")
    assert (record.status, record.has_tool_call, record.overlap_ms, record.yield_ms) == ("open", False, None, None)
    assert said(feed, "eva_response_speed") == []
    feed.user_audio(9_000, 10_000)
    assert said(feed, "eva_response_speed") == [2.75]
    (mean,) = feed.records("eva_x_mean")
    assert (value(mean), mean.sub_metrics) == (0.5, {"turn_taking": 0.5})


def test_a_tool_that_is_noticed_late_changes_the_curve() -> None:
    feed = greeted()
    feed.user_audio(2_000, 3_000)
    feed.assistant_audio(7_000, 8_000)
    feed.tool_call("book", 4_000)
    assert timing(feed, 1) == [0.0, 0.5]
    feed.user_audio(9_000, 10_000)
    assert [record.sub_metrics for record in feed.records("eva_response_speed")] == [{"with_tool_calls": 4.0}]


def test_while_the_user_is_still_heard_nothing_is_known() -> None:
    feed = greeted()
    feed.user_audio(2_000)
    feed.assistant_audio(3_000, 3_400)
    assert timing(feed, 1) == ["user_still_speaking"]
    feed.send(
        "user_sim", {"event_type": "audio_end", "user": "simulated_user", "audio_timestamp": 1_790_000_004.0}, 4_000
    )
    assert timing(feed, 1) == ["user_still_speaking", 0.4]
    record = feed.records("turn_taking", 1)[-1]
    assert (record.reason, record.overlap_ms, record.interrupt_segments) == ("agent_interrupt", 400.0, 1)
    feed.assistant_audio(6_750, 8_000)
    assert feed.records("turn_taking", 1)[-1].post_interrupt_latency_ms == 2_750.0


def test_how_soon_the_assistant_yields_is_known_when_it_falls_silent() -> None:
    feed = greeted()
    feed.user_audio(2_000, 3_000)
    feed.assistant_audio(3_500)
    feed.user_audio(6_000, 7_000)
    feed.assistant_audio(7_500)
    assert timing(feed, 2) == ["assistant_still_speaking"]
    late_end = {"event_type": "audio_end", "user": "assistant", "audio_timestamp": 1_790_000_006.5}
    feed.send("user_sim", late_end, 8_000)  # filed under the turn in which it began last, as EVA does
    assert timing(feed, 2) == ["assistant_still_speaking"]


def test_a_turn_that_turns_out_to_be_none_is_taken_back() -> None:
    feed = phoned()
    spoken(feed, 2_000, 3_000)
    feed.speech("bot_speech_started", 4_000)
    feed.assistant_audio(0, 900)  # there is a simulated caller: it has heard the greeting so far
    assert timing(feed, 1) == [1.0, "withdrawn"]
    assert said(feed, "eva_response_speed") == []


def test_a_fallback_is_worth_nothing_at_once() -> None:
    feed = greeted()
    feed.user_audio(2_000, 3_000)
    feed.send("audit", {"message_type": "turn_fallback", "value": "[fallback]"}, 9_000)
    (record,) = feed.records("turn_taking", 1)
    assert (value(record), record.reason, record.latency_ms) == (0.0, "turn_end_fallback", None)


def test_tool_answers_are_counted_one_by_one() -> None:
    feed = greeted()
    feed.user_audio(2_000, 3_000)
    for at_ms, response in ((4_000, "done"), (5_000, {"error_type": "tool_not_found"})):
        feed.tool_call("book", at_ms)
        feed.tool_answer("book", at_ms + 100, response)
    feed.assistant_audio(6_000, 7_000)
    feed.user_audio(8_000, 9_000)
    assert said(feed, "eva_tool_call_validity") == [0.5]
    assert feed.records("eva_tool_call_validity")[-1].sub_metrics == {"tool_not_found_rate": 0.5, "num_tool_calls": 2.0}


# Without a simulated caller.


def test_the_bot_s_own_hearing_is_scored_the_same_and_says_so() -> None:
    feed = phoned()
    spoken(feed, 2_000, 3_000)
    feed.speech("bot_speech_started", 5_750)
    (record,) = feed.records("turn_taking", 1)
    assert (value(record), record.reason, record.anchor) == (0.5, "latency", "vad")
    feed.speech("bot_speech_stopped", 7_000)
    spoken(feed, 6_500, 8_000)
    feed.speech("bot_speech_started", 9_000)
    record = feed.records("turn_taking", 2)[-1]
    assert (value(record), record.reason, record.yield_ms) == (0.75, "user_interrupt", 500.0)
    ended(feed)
    final = feed.records("eva_turn_taking")[-1]
    assert (value(final), final.anchor) == (0.625, "vad")
    assert final.sub_metrics["mean_latency_ms"] == 1_875.0


def test_a_bot_that_is_interrupted_is_scored_by_how_it_yields() -> None:
    feed = phoned()
    spoken(feed, 2_000, 3_000)
    feed.speech("bot_speech_started", 4_000)
    feed.speech("user_speech_started", 6_000)
    feed.speech("bot_speech_stopped", 7_000)
    feed.speech("user_speech_stopped", 8_000)
    feed.speech("bot_speech_started", 9_000)
    record = feed.records("turn_taking", 2)[-1]
    assert (value(record), record.reason, record.yield_ms) == (0.5, "user_interrupt", 1_000.0)


def test_a_call_of_texts_alone_is_scored_by_their_times() -> None:
    feed = Feed(LIMITS)
    feed.bot_text("Welcome.", 0)
    feed.heard("My badge is lost.", 3_000)
    feed.bot_text("Certainly.", 4_000)
    (record,) = feed.records("turn_taking", 1)
    assert (value(record), record.anchor) == (1.0, "transcript")


def test_a_fallback_counts_where_only_the_bot_hears_the_call() -> None:
    feed = phoned()
    feed.send("audit", {"message_type": "turn_fallback", "value": "[fallback]"}, 9_000)
    (record,) = feed.records("turn_taking")
    assert (value(record), record.reason, record.anchor, record.turn) == (0.0, "turn_end_fallback", "estimated", 0)
    spoken(feed, 12_000, 13_000)
    feed.speech("bot_speech_started", 14_000)
    assert said(ended(feed), "eva_turn_taking") == [0.5]


def test_production_says_what_it_cannot_know() -> None:
    feed = ended(phoned())
    last = {record.name: value(record) for record in feed.records() if record.name.startswith("eva_")}
    assert last == {
        "eva_turn_taking": "no_user_speech",
        "eva_response_speed": "no_user_speech",
        "eva_tool_call_validity": "no tool was used",
        "eva_tool_schema_validity": "nobody said what the agent's tools take",
        "eva_conversation_correctly_finished": 1.0,
        "eva_conversation_completed_on_time": 1.0,
        "eva_conversation_valid_end": "there is no simulated caller",
        "eva_authentication_success": "nobody said what the call should leave behind",
        "eva_task_completion": "nobody said what the call should leave behind",
        "eva_x_mean": "no_turn_judged",
        "eva_x_pass": "conciseness and conversation progression are not both judged",
    }


def test_a_call_of_which_nothing_is_heard_and_nobody_says_why_it_ended() -> None:
    feed = Feed(LIMITS)
    feed.send("audit", {"message_type": "llm_call"}, 0)
    feed = ended(feed, event={"type": "call_ended"})
    assert said(feed, "eva_turn_taking") == ["no_speech_events"]
    assert said(feed, "eva_conversation_correctly_finished") == ["end_reason_unknown"]
    assert said(feed, "eva_conversation_completed_on_time") == ["end_reason_unknown"]
    idle = Feed(LIMITS)
    idle.send("audit", {"message_type": "llm_call"}, 0)
    ended(idle, event={"type": "call_ended", "reason": "inactivity_timeout"})
    assert said(idle, "eva_conversation_correctly_finished") == ["no_speech_events"]


def test_a_user_left_without_an_answer_is_the_end_of_a_bad_call() -> None:
    feed = phoned()
    spoken(feed, 2_000, 3_000)
    ended(feed, event={"type": "call_ended", "reason": "inactivity_timeout"})
    assert said(feed, "eva_conversation_correctly_finished") == [0.0]
    assert said(feed, "eva_turn_taking") == [0.0]
    assert timing(feed, 1) == ["the call ended before an answer"]


# What a producer supplies.


@pytest.mark.parametrize(("name", "success"), [("ada", 1.0), ("Bob", 0.0)])
def test_the_state_that_is_expected_is_compared(name: str, success: float) -> None:
    feed = phoned()
    feed.send("audit", {"type": "call_started", "expected_state": {"fees": {}, "session": {"name": "Ada"}}}, 0)
    ended(feed, event={**ENDED, "final_state": {"fees": {}, "session": {"name": name}}})
    assert said(feed, "eva_authentication_success") == [success]
    assert said(feed, "eva_task_completion") == [success]


def test_the_hash_of_the_final_state_counts_where_it_comes_with_the_state() -> None:
    cases: list[tuple[list[dict[str, Any]], float]] = [
        ([{**ENDED, "final_state": {"fees": {}}, "final_state_hash": "abc"}], 0.0),
        ([{**ENDED, "final_state_hash": "abc"}, {**ENDED, "final_state": {"fees": {}}}], 1.0),
    ]
    for events, completion in cases:
        feed = phoned()
        feed.send("audit", {"type": "call_started", "expected_state": {"fees": {}}}, 0)
        for event in events:
            feed.send("judge", event, 59_000)
        ended(feed)
        assert said(feed, "eva_task_completion") == [completion]


def test_a_final_state_that_nobody_tells_is_unknown() -> None:
    feed = phoned()
    feed.send("audit", {"type": "call_started", "expected_state": {"fees": {}}}, 0)
    feed.send("audit", {"type": "call_started", "agent": "ava"}, 10)  # what it leaves out stays as it was
    ended(feed)
    assert said(feed, "eva_authentication_success") == ["final_state_unknown"]
    feed = phoned()
    feed.send("audit", {"type": "call_started", "expected_state": {"fees": {}}}, 0)
    ended(feed, event={**ENDED, "final_state": {"fees": {}}})
    assert said(feed, "eva_authentication_success") == ["the user need not be identified"]
    assert said(feed, "eva_task_completion") == [1.0]


def test_tool_calls_are_compared_with_the_schemas_of_the_agents_tools() -> None:
    feed = phoned()
    tools = [{"name": "book", "parameters": {"type": "object", "required": ["seat"]}}, {"name": "wait"}]
    feed.send("audit", {"type": "call_started", "tools": tools}, 0)
    for at_ms, tool in ((3_000, "book"), (4_000, "wait")):
        feed.tool_call(tool, at_ms)
    ended(feed)
    (record,) = feed.records("eva_tool_schema_validity")
    assert (value(record), record.sub_metrics["unfit_arguments_rate"]) == (0.5, 0.5)


# An ElevenLabs agent's tools, of which EVA knows nothing.


def agent_ended(feed: Feed) -> Feed:
    """The call is over, and no record of it comes."""
    feed.send("judge", ENDED, 60_000)
    feed.advance(3_600_000)
    assert feed.evaluator.open_calls == 0
    return feed


def agent_call(*tools: dict[str, Any]) -> Feed:
    """A call with a real agent, its tools between a question and the answer; `book` takes a seat."""
    feed = Feed(LIMITS)
    schema = {"type": "object", "required": ["seat"]}
    feed.send("audit", {"type": "call_started", "tools": [{"name": "book", "parameters": schema}]}, 0)
    for event in (heard("A seat", 3_000, 1), *tools, agent_said("Done.", 6_000, 2), heard("Thanks", 9_000, 3)):
        feed.send("user_sim", event, int(event["timestamp"]) - T0_MS, envelope=envelope_of(event))
    return feed


def test_the_tools_of_an_agent_count_in_the_end_as_they_did_live() -> None:
    feed = agent_call(
        tool_requested("book", "t1", 4_000, "client_tool_call", parameters={"seat": 1}),
        tool_replied("book", "t1", 4_100, full_tool_result='{"error_type": "invalid_parameter"}'),
        tool_requested("book", "t2", 4_200, "client_tool_call", parameters={}),
        tool_replied("book", "t2", 4_300, full_tool_result="ok"),
        tool_requested("book", "t3", 4_400, "client_tool_call", parameters={"seat": 2}),
        tool_replied("book", "t3", 4_500, full_tool_result=None, is_error=True),
    )
    assert said(feed, "eva_tool_call_validity") == [0.6667]
    agent_ended(feed)
    assert said(feed, "eva_tool_call_validity") == [0.6667, 0.6667]
    assert feed.records("eva_tool_call_validity")[-1].sub_metrics["num_tool_calls"] == 3.0
    (record,) = feed.records("eva_tool_schema_validity")
    assert (value(record), record.sub_metrics["num_tool_calls"]) == (0.6667, 3.0)


def test_a_tool_of_which_nothing_more_is_told_was_used_all_the_same() -> None:
    feed = agent_ended(agent_call(tool_requested("book", "t1", 4_000)))
    assert said(feed, "eva_tool_call_validity") == ["no answer of a tool is known"]
    assert said(feed, "eva_tool_schema_validity") == ["what the tools were given is not known"]
    feed = agent_ended(agent_call())
    assert said(feed, "eva_tool_call_validity") == said(feed, "eva_tool_schema_validity") == ["no tool was used"]


# The end.


def test_a_call_whose_times_only_order_says_so_as_its_turns_do() -> None:
    feed = Feed(LIMITS)
    for event in (heard("Hello", 3_000, 1, is_time_exact=False), agent_said("Hi.", 4_000, 2, is_time_exact=False)):
        feed.send("user_sim", event, int(event["timestamp"]) - T0_MS, envelope=envelope_of(event))
    agent_ended(feed)
    assert timing(feed, 1)[-1] == "times_unknown"
    assert said(feed, "eva_turn_taking") == said(feed, "eva_response_speed") == ["times_unknown"]


def test_the_end_is_eva_s_own_and_the_last_turn_is_not_held_against_the_agent() -> None:
    feed = greeted()
    feed.user_audio(2_000, 3_000)
    feed.assistant_audio(4_000, 5_000)
    feed.user_audio(6_000, 7_000)
    feed.send("user_sim", GOODBYE, 8_000)
    ended(feed)
    assert timing(feed, 1) == [1.0, 1.0]
    assert timing(feed, 2) == ["the call ended before an answer"]
    assert said(feed, "eva_turn_taking") == [1.0]
    assert said(feed, "eva_conversation_valid_end") == [1.0]
    assert {record.status.value for record in feed.records("eva_turn_taking")} == {"final"}


def test_something_after_the_goodbye_makes_it_no_valid_end() -> None:
    feed = greeted()
    feed.send("user_sim", GOODBYE, 8_000)
    feed.send("user_sim", {"type": "timeout", "data": {"duration": 90}}, 8_100)
    assert said(ended(feed), "eva_conversation_valid_end") == [0.0]


def test_settled_turns_that_stay_as_they_are_count_as_settled_only() -> None:
    feed = greeted()
    feed.user_audio(2_000, 3_000)
    feed.assistant_audio(4_000, 5_000)
    feed.user_audio(6_000, 7_000)
    feed.bot_text("Well.", 20_000)
    feed.user_audio(20_000, 21_000)
    ended(feed)
    assert feed.counts("callgauge_settled_turns_total") == {(): 2}
    assert feed.counts("callgauge_settled_turns_changed_total") == {}


def test_a_settled_turn_that_a_late_event_changes_is_counted_with_its_cause() -> None:
    feed = greeted()
    feed.user_audio(2_000, 3_000)
    feed.assistant_audio(6_000, 7_000)
    feed.user_audio(8_000, 9_000)
    feed.bot_text("Well.", 20_000)
    feed.user_audio(20_000, 21_000)
    feed.tool_call("book", 4_000)
    assert timing(feed, 1) == [0.3333, 1.0]
    ended(feed)
    assert feed.counts("callgauge_settled_turns_changed_total") == {("late_event",): 1}
