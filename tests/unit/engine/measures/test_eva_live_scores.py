"""EVA's metrics: of a turn when it is left, revised when more is known, EVA's own at the end, and
why something is not known.
"""

from typing import Any

import pytest

from consumers.engine.limits import Limits
from consumers.engine.measures import rows as measures
from schemas.rows import Eva, TurnTaking
from tests.support.calls.agent_calls import envelope_of, heard, tool_replied, tool_requested
from tests.support.calls.agent_calls import said as agent_said
from tests.support.fakes.engine_feed import T0_MS, Feed, plain

LIMITS = Limits(closing_grace_ms=1_000, call_values_every_ms=1)
ENDED = {"type": "call_ended", "reason": "goodbye"}
GOODBYE = {
    "type": "connection_state",
    "data": {"state": "session_ended", "details": {"reason": "goodbye"}},
}


def timing(feed: Feed, turn: int) -> TurnTaking:
    """The timing of a turn, as its newest row has it."""
    found = feed.turn(turn).turn_taking
    assert found is not None
    return found


def timings(feed: Feed, turn: int) -> list[float | str | None]:
    """What the timing of a turn has been since it was known, one after the other."""
    parts: list[TurnTaking | None] = feed.values("turn_taking", turn)
    values = [None if part is None else plain(part.result) for part in parts]
    return values[1:] if values[:1] == [None] else values


def metric(feed: Feed, name: str) -> Eva:
    """The value of a metric in the newest row of the call."""
    return feed.call().eva[name]


def metrics(feed: Feed, name: str) -> list[float | str]:
    """What a metric of the call has been, one after the other."""
    found: list[dict[str, Eva]] = feed.values("eva")
    values = [plain(each[name].result) for each in found if name in each]
    return [value for place, value in enumerate(values) if place == 0 or value != values[place - 1]]


@pytest.fixture
def every_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls are long from the start: their values are published whenever a turn is left."""
    monkeypatch.setattr(measures, "LONG_CALL_MS", 0)


def ended(feed: Feed, at_ms: int = 60_000, *, event: dict[str, Any] = ENDED) -> Feed:
    """The call is over."""
    feed.send("judge", event, at_ms).advance(at_ms + 10_000)
    assert feed.evaluator.open_calls == ()
    return feed


def greeted() -> Feed:
    return Feed(LIMITS).assistant_audio(0, 900)


def phoned() -> Feed:
    """A call that only the bot hears, of which it has spoken the greeting."""
    return Feed(LIMITS).spoke("bot", 0, 900)


def spoken(feed: Feed, start_ms: int, end_ms: int) -> None:
    feed.spoke("user", start_ms, end_ms)


# While the call runs.


@pytest.fixture
def feed() -> Feed:
    return greeted()


@pytest.mark.usefixtures("every_turn")
def test_a_turn_is_scored_when_it_was_left(feed: Feed) -> None:
    feed.user_audio(2_000, 3_000).assistant_audio(5_750)
    assert timings(feed, 1) == metrics(feed, "eva_response_speed") == []
    feed.user_audio(9_000, 10_000)
    found = timing(feed, 1)
    assert (plain(found.result), found.reason, found.latency_ms, found.anchor) == (
        0.5,
        "latency",
        2_750.0,
        "audio",
    )
    assert (found.has_tool_call, found.overlap_ms, found.yield_ms) == (False, None, None)
    assert "turn_taking" in feed.news(1)
    assert metrics(feed, "eva_response_speed") == [2.75]
    mean = metric(feed, "eva_x_mean")
    assert (plain(mean.result), mean.sub_metrics) == (0.5, {"turn_taking": 0.5})


@pytest.mark.usefixtures("every_turn")
def test_a_tool_that_is_noticed_late_changes_the_curve(feed: Feed) -> None:
    feed.user_audio(2_000, 3_000).assistant_audio(7_000, 8_000).user_audio(9_000, 10_000)
    assert timings(feed, 1) == [0.0]
    assert metric(feed, "eva_response_speed").sub_metrics == {"no_tool_calls": 4.0}
    feed.tool_call("book", 4_000).assistant_audio(11_000, 12_000).user_audio(13_000, 14_000)
    assert timings(feed, 1) == [0.0, 0.5]
    assert metric(feed, "eva_response_speed").sub_metrics == {
        "with_tool_calls": 4.0,
        "no_tool_calls": 1.0,
    }


def test_while_the_user_is_still_heard_nothing_is_known(feed: Feed) -> None:
    feed.user_audio(2_000).assistant_audio(3_000, 3_400).user_audio(9_000, 10_000)
    assert timings(feed, 1) == ["user_still_speaking"]
    assert "turn_taking" not in feed.news(1)
    feed = greeted()
    (
        feed.user_audio(2_000)
        .assistant_audio(3_000, 3_400)
        .send(
            "user_sim",
            {
                "event_type": "audio_end",
                "user": "simulated_user",
                "audio_timestamp": 1_790_000_004.0,
            },
            4_000,
        )
        .assistant_audio(6_750, 8_000)
        .user_audio(9_000, 10_000)
    )
    found = timing(feed, 1)
    assert (plain(found.result), found.reason, found.overlap_ms, found.interrupt_segments) == (
        0.4,
        "agent_interrupt",
        400.0,
        1,
    )
    assert found.post_interrupt_latency_ms == 2_750.0


def test_how_soon_the_assistant_yields_is_known_when_it_falls_silent(feed: Feed) -> None:
    (
        feed.user_audio(2_000, 3_000)
        .assistant_audio(3_500)
        .user_audio(6_000, 7_000)
        .assistant_audio(7_500)
        .user_audio(9_000, 10_000)
    )
    assert timings(feed, 2) == ["assistant_still_speaking"]
    late_end = {"event_type": "audio_end", "user": "assistant", "audio_timestamp": 1_790_000_006.5}
    # filed under the turn in which it began last, as EVA does
    (
        feed.send("user_sim", late_end, 10_500)
        .assistant_audio(11_000, 12_000)
        .user_audio(13_000, 14_000)
    )
    assert plain(timing(feed, 2).result) == "assistant_still_speaking"


@pytest.mark.usefixtures("every_turn")
def test_a_turn_that_turns_out_to_be_none_is_taken_back() -> None:
    feed = phoned()
    for at_ms in (2_000, 6_000):
        spoken(feed, at_ms, at_ms + 1_000)
        feed.spoke("bot", at_ms + 2_000, at_ms + 3_000)
    assert metrics(feed, "eva_response_speed") == [1.0]
    # there is a simulated caller: it has heard the greeting so far
    feed.assistant_audio(0, 900, behind_ms=9_000)
    assert timings(feed, 1) == [1.0, None]
    assert feed.turn(1).status == "withdrawn"
    assert "eva_response_speed" not in feed.call().eva


def test_a_fallback_is_worth_nothing(feed: Feed) -> None:
    (
        feed.user_audio(2_000, 3_000)
        .send("audit", {"message_type": "turn_fallback", "value": "[fallback]"}, 9_000)
        .assistant_audio(10_000, 11_000)
        .user_audio(12_000, 13_000)
    )
    found = timing(feed, 1)
    assert (plain(found.result), found.reason, found.latency_ms) == (0.0, "turn_end_fallback", None)


@pytest.mark.usefixtures("every_turn")
def test_tool_answers_are_counted_one_by_one(feed: Feed) -> None:
    feed.user_audio(2_000, 3_000)
    for at_ms, response in ((4_000, "done"), (5_000, {"error_type": "tool_not_found"})):
        feed.tool_call("book", at_ms).tool_answer("book", at_ms + 100, response)
    feed.assistant_audio(6_000, 7_000).user_audio(8_000, 9_000)
    validity = metric(feed, "eva_tool_call_validity")
    rates = {name: rate for name, rate in validity.sub_metrics.items() if rate}
    assert (plain(validity.result), rates) == (
        0.5,
        {"tool_not_found_rate": 0.5, "num_tool_calls": 2.0},
    )


# Without a simulated caller.


def test_the_bot_s_own_hearing_is_scored_the_same_and_says_so() -> None:
    feed = phoned()
    spoken(feed, 2_000, 3_000)
    feed.spoke("bot", 5_750, 7_000)
    spoken(feed, 6_500, 8_000)
    found = timing(feed, 1)
    assert (plain(found.result), found.reason, found.anchor) == (0.5, "latency", "vad")
    feed.spoke("bot", 9_000, 9_500).spoke("user", 12_000, 12_100)
    ended(feed)
    found = timing(feed, 2)
    assert (plain(found.result), found.reason, found.yield_ms) == (0.75, "user_interrupt", 500.0)
    final = metric(feed, "eva_turn_taking")
    assert (plain(final.result), final.anchor) == (0.625, "vad")
    assert final.sub_metrics["mean_latency_ms"] == 1_875.0


def test_a_bot_that_is_interrupted_is_scored_by_how_it_yields() -> None:
    feed = phoned()
    spoken(feed, 2_000, 3_000)
    (
        feed.speech("bot_speech_started", 4_000)
        .speech("user_speech_started", 6_000)
        .speech("bot_speech_stopped", 7_000)
        .speech("user_speech_stopped", 8_000)
        .spoke("bot", 9_000, 10_000)
    )
    spoken(feed, 11_000, 12_000)
    feed.speech("bot_speech_started", 13_000)
    found = timing(feed, 2)
    assert (plain(found.result), found.reason, found.yield_ms) == (0.5, "user_interrupt", 1_000.0)


def test_a_call_of_texts_alone_is_scored_by_their_times() -> None:
    feed = (
        Feed(LIMITS)
        .bot_text("Welcome.", 0)
        .heard("My badge is lost.", 3_000)
        .bot_text("Certainly.", 4_000)
        .heard("Thanks.", 7_000)
    )
    assert (plain(timing(feed, 1).result), timing(feed, 1).anchor) == (1.0, "transcript")


def test_a_fallback_counts_where_only_the_bot_hears_the_call() -> None:
    feed = phoned()
    feed.send("audit", {"message_type": "turn_fallback", "value": "[fallback]"}, 9_000)
    spoken(feed, 12_000, 13_000)
    feed.speech("bot_speech_started", 14_000)
    found = timing(feed, 0)
    assert (plain(found.result), found.reason, found.anchor) == (
        0.0,
        "turn_end_fallback",
        "estimated",
    )
    assert metrics(ended(feed), "eva_turn_taking") == [0.5]


def test_production_says_what_it_cannot_know() -> None:
    feed = ended(phoned())
    last = {name: plain(score.result) for name, score in feed.call().eva.items()}
    assert last == {
        "eva_turn_taking": "no_user_speech",
        "eva_response_speed": "no_user_speech",
        "eva_tool_call_validity": "no tool was used",
        "eva_tool_schema_validity": "the schemas of the agent's tools are not known",
        "eva_conversation_correctly_finished": 1.0,
        "eva_conversation_completed_on_time": 1.0,
        "eva_conversation_valid_end": "there is no simulated caller",
        "eva_authentication_success": "the expected final state is not known",
        "eva_task_completion": "the expected final state is not known",
        "eva_a_mean": "neither the task's completion nor faithfulness is known",
        "eva_a_pass": "agent speech fidelity is judged from sound, which callgauge does not hear",
        "eva_x_mean": "no_turn_judged",
        "eva_x_pass": "conciseness and conversation progression are not both judged",
    }


@pytest.mark.parametrize(
    ("reason", "score"), [("time_limit_exceeded", 0.0), ("timeout", 0.0), ("goodbye", 1.0)]
)
def test_a_time_limit_has_two_names(reason: str, score: float) -> None:
    feed = ended(phoned(), event={"type": "call_ended", "reason": reason})
    assert metrics(feed, "eva_conversation_completed_on_time") == [score]


def test_a_call_of_which_nothing_is_heard_and_nobody_says_why_it_ended() -> None:
    feed = Feed(LIMITS).send("audit", {"message_type": "llm_call"}, 0)
    feed = ended(feed, event={"type": "call_ended"})
    assert metrics(feed, "eva_turn_taking") == ["no_speech_events"]
    assert metrics(feed, "eva_conversation_correctly_finished") == ["end_reason_unknown"]
    assert metrics(feed, "eva_conversation_completed_on_time") == ["end_reason_unknown"]
    idle = Feed(LIMITS).send("audit", {"message_type": "llm_call"}, 0)
    ended(idle, event={"type": "call_ended", "reason": "inactivity_timeout"})
    assert metrics(idle, "eva_conversation_correctly_finished") == ["no_speech_events"]


def test_a_user_left_without_an_answer_is_the_end_of_a_bad_call() -> None:
    feed = phoned()
    spoken(feed, 2_000, 3_000)
    ended(feed, event={"type": "call_ended", "reason": "inactivity_timeout"})
    assert metrics(feed, "eva_conversation_correctly_finished") == [0.0]
    assert metrics(feed, "eva_turn_taking") == [0.0]
    assert timings(feed, 1) == ["the call ended before an answer"]


# Values that a producer supplies.


@pytest.mark.parametrize(("name", "success"), [("ada", 1.0), ("Bob", 0.0)])
def test_the_state_that_is_expected_is_compared(name: str, success: float) -> None:
    feed = phoned()
    feed.send(
        "audit",
        {"type": "call_started", "expected_state": {"fees": {}, "session": {"name": "Ada"}}},
        0,
    )
    ended(feed, event={**ENDED, "final_state": {"fees": {}, "session": {"name": name}}})
    assert metrics(feed, "eva_authentication_success") == [success]
    assert metrics(feed, "eva_task_completion") == [success]
    assert metrics(feed, "eva_a_mean") == [success]


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
        assert metrics(feed, "eva_task_completion") == [completion]


def test_a_final_state_that_nobody_tells_is_unknown() -> None:
    feed = phoned()
    feed.send("audit", {"type": "call_started", "expected_state": {"fees": {}}}, 0)
    # omitted values stay as they were
    feed.send("audit", {"type": "call_started", "agent": "ava"}, 10)
    ended(feed)
    assert metrics(feed, "eva_authentication_success") == ["final_state_unknown"]
    feed = phoned()
    feed.send("audit", {"type": "call_started", "expected_state": {"fees": {}}}, 0)
    ended(feed, event={**ENDED, "final_state": {"fees": {}}})
    assert metrics(feed, "eva_authentication_success") == ["the user need not be identified"]
    assert metrics(feed, "eva_task_completion") == [1.0]


def test_tool_calls_are_compared_with_the_schemas_of_the_agents_tools() -> None:
    feed = phoned()
    tools = [
        {"name": "book", "parameters": {"type": "object", "required": ["seat"]}},
        {"name": "wait"},
    ]
    feed.send("audit", {"type": "call_started", "tools": tools}, 0)
    for at_ms, tool in ((3_000, "book"), (4_000, "wait")):
        feed.tool_call(tool, at_ms)
    ended(feed)
    score = metric(feed, "eva_tool_schema_validity")
    assert (plain(score.result), score.sub_metrics["unfit_arguments_rate"]) == (0.5, 0.5)


# An ElevenLabs agent's tools, of which EVA knows nothing.


def agent_ended(feed: Feed) -> Feed:
    """The call is over, and no record of it comes."""
    feed.send("judge", ENDED, 60_000).advance(3_600_000)
    assert feed.evaluator.open_calls == ()
    return feed


def agent_call(*tools: dict[str, Any]) -> Feed:
    """A call with a real agent, its tools between a question and the answer; `book`
    takes a seat.
    """
    feed = Feed(LIMITS)
    schema = {"type": "object", "required": ["seat"]}
    feed.send(
        "audit", {"type": "call_started", "tools": [{"name": "book", "parameters": schema}]}, 0
    )
    for event in (
        heard("A seat", 3_000, 1),
        *tools,
        agent_said("Done.", 6_000, 2),
        heard("Thanks", 9_000, 3),
    ):
        feed.send("user_sim", event, int(event["timestamp"]) - T0_MS, envelope=envelope_of(event))
    return feed


@pytest.mark.usefixtures("every_turn")
def test_the_tools_of_an_agent_count_in_the_end_as_they_did_live() -> None:
    feed = agent_call(
        tool_requested("book", "t1", 4_000, "client_tool_call", parameters={"seat": 1}),
        tool_replied("book", "t1", 4_100, full_tool_result='{"error_type": "invalid_parameter"}'),
        tool_requested("book", "t2", 4_200, "client_tool_call", parameters={}),
        tool_replied("book", "t2", 4_300, full_tool_result="ok"),
        tool_requested("book", "t3", 4_400, "client_tool_call", parameters={"seat": 2}),
        tool_replied("book", "t3", 4_500, full_tool_result=None, is_error=True),
    )
    assert metrics(feed, "eva_tool_call_validity") == [0.6667]
    agent_ended(feed)
    assert metrics(feed, "eva_tool_call_validity") == [0.6667]
    assert metric(feed, "eva_tool_call_validity").sub_metrics["num_tool_calls"] == 3.0
    assert metrics(feed, "eva_tool_schema_validity") == [0.6667]
    assert metric(feed, "eva_tool_schema_validity").sub_metrics["num_tool_calls"] == 3.0


def test_a_tool_of_which_nothing_more_is_told_was_used_all_the_same() -> None:
    feed = agent_ended(agent_call(tool_requested("book", "t1", 4_000)))
    assert metrics(feed, "eva_tool_call_validity") == ["no answer of a tool is known"]
    assert metrics(feed, "eva_tool_schema_validity") == ["the arguments of the tools are not known"]
    feed = agent_ended(agent_call())
    assert (
        metrics(feed, "eva_tool_call_validity")
        == metrics(feed, "eva_tool_schema_validity")
        == ["no tool was used"]
    )


# The end.


def test_a_call_whose_times_only_order_says_so_as_its_turns_do() -> None:
    feed = Feed(LIMITS)
    for event in (
        heard("Hello", 3_000, 1, is_time_exact=False),
        agent_said("Hi.", 4_000, 2, is_time_exact=False),
    ):
        feed.send("user_sim", event, int(event["timestamp"]) - T0_MS, envelope=envelope_of(event))
    agent_ended(feed)
    assert plain(timing(feed, 1).result) == "times_unknown"
    assert feed.call().unscored_turns["turn_taking"] == {"times_unknown": 1}
    assert (
        metrics(feed, "eva_turn_taking") == metrics(feed, "eva_response_speed") == ["times_unknown"]
    )


def test_the_end_is_eva_s_own_and_the_last_turn_is_not_held_against_the_agent(feed: Feed) -> None:
    (
        feed.user_audio(2_000, 3_000)
        .assistant_audio(4_000, 5_000)
        .user_audio(6_000, 7_000)
        .send("user_sim", GOODBYE, 8_000)
    )
    ended(feed)
    assert timings(feed, 1) == [1.0]
    assert timings(feed, 2) == ["the call ended before an answer"]
    assert metrics(feed, "eva_turn_taking") == [1.0]
    assert metrics(feed, "eva_conversation_valid_end") == [1.0]
    assert [row.state for row in feed.call_rows() if row.eva] == ["closed"]


@pytest.mark.parametrize("kind", ["timeout", "of a later EVA", "audio", "ping", "user_transcript"])
def test_something_after_the_goodbye_makes_it_no_valid_end(feed: Feed, kind: str) -> None:
    """Whatever its type: some are also those of a real agent, whose events say what they say under
    another name.
    """
    feed.send("user_sim", GOODBYE, 8_000).send(
        "user_sim", {"type": kind, "data": {"duration": 90}}, 8_100
    )
    assert metrics(ended(feed), "eva_conversation_valid_end") == [0.0]


def test_settled_turns_that_stay_as_they_are_count_as_settled_only(feed: Feed) -> None:
    (
        feed.user_audio(2_000, 3_000)
        .assistant_audio(4_000, 5_000)
        .user_audio(6_000, 7_000)
        .bot_text("Well.", 20_000)
        .user_audio(20_000, 21_000)
    )
    ended(feed)
    assert feed.counts("callgauge_settled_turns_total") == {(): 2}
    assert feed.counts("callgauge_settled_turns_changed_total") == {}


def test_a_settled_turn_that_a_late_event_changes_is_counted_with_its_cause(feed: Feed) -> None:
    (
        feed.user_audio(2_000, 3_000)
        .assistant_audio(6_000, 7_000)
        .user_audio(8_000, 9_000)
        .bot_text("Well.", 20_000)
        .user_audio(20_000, 21_000)
        .tool_call("book", 4_000)
    )
    ended(feed)
    assert timings(feed, 1) == [0.3333, 1.0]
    assert feed.counts("callgauge_settled_turns_changed_total") == {("late_event",): 1}
