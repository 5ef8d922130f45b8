"""What a bot reports: its phone line, its function calls, and the calls of real pipecat bots."""

import itertools
from typing import Any

import pytest

from consumers.engine.effects import NotUnderstood
from consumers.engine.limits import Limits
from consumers.engine.turns.bot import BotElementKind, BotTurnMachine
from schemas.closed_sets import Anchor, ToolOutcome
from tests.support.calls.agent_calls import envelope_of, tool_replied, tool_requested
from tests.support.calls.pipecat_calls import Outcome, outcome_of, recorded_calls
from tests.support.fakes.engine_feed import T0_MS, Feed


def _interruptions(feed: Feed) -> list[tuple[str, int]]:
    return [(by, turn) for turn, by in feed.interruptions()]


def _sources(feed: Feed) -> set[tuple[str, str | None]]:
    """How the end of the caller's speech is known in the rows with a wait, and by which stream."""
    return {
        (row.anchor.value, row.wait_source)
        for row in feed.turn_rows()
        if row.turn and row.anchor is not None
    }


def _greeted() -> Feed:
    return Feed().spoke("bot", 0, 900)


def _spoken(feed: Feed, start_ms: int, end_ms: int) -> None:
    (
        feed.speech("user_speech_started", start_ms, behind_ms=200)
        .speech("user_turn_started", start_ms + 100, behind_ms=150)
        .speech("user_speech_stopped", end_ms, behind_ms=200)
        .speech("user_turn_stopped", end_ms + 400, behind_ms=0)
    )


def test_detector_and_rulings() -> None:
    feed = _greeted()
    _spoken(feed, 2_000, 3_000)
    feed.spoke("bot", 4_500, 6_000)
    _spoken(feed, 7_000, 8_000)
    feed.speech("bot_speech_started", 8_700)
    assert feed.latencies() == {1: 1_500.0, 2: 700.0}
    assert _sources(feed) == {("vad", "pipecat")}
    assert feed.turns() == {0, 1, 2}
    assert _interruptions(feed) == []


def test_rulings_alone_written_twice_as_eva_does() -> None:
    feed = (
        Feed()
        .bot_text("Welcome.", 0)
        .ruling("user_started_speaking", 2_000, times=2)
        .ruling("user_stopped_speaking", 3_000, times=2)
        .bot_text("Certainly.", 4_250)
    )
    assert feed.latencies() == {1: 1_250.0}
    assert _sources(feed) == {("turn_release", "pipecat")}
    assert feed.turns() == {0, 1}


def test_a_transcript_alone() -> None:
    feed = (
        Feed()
        .bot_text("Welcome.", 0)
        .heard("My badge is lost.", 3_000)
        .bot_text("Certainly.", 4_000)
    )
    assert feed.latencies() == {1: 1_000.0}
    assert _sources(feed) == {("transcript", "audit")}


def test_two_transcripts_before_an_answer_are_one_turn() -> None:
    feed = (
        Feed()
        .bot_text("Welcome.", 0)
        .heard("My badge", 3_000)
        .heard("is lost.", 3_600)
        .bot_text("Certainly.", 4_000)
    )
    assert (feed.latencies(), feed.turns()) == ({1: 400.0}, {0, 1})


def test_the_bot_s_own_event_is_taken_rather_than_its_text() -> None:
    feed = _greeted()
    _spoken(feed, 2_000, 3_000)
    feed.bot_text("Certainly.", 3_800).speech("bot_speech_started", 4_000)
    assert feed.latencies() == {1: 1_000.0}


def test_a_cough_without_a_ruling_is_no_turn() -> None:
    feed = _greeted()
    _spoken(feed, 2_000, 3_000)
    feed.spoke("bot", 4_000, 5_000).spoke("user", 6_000, 6_200)
    _spoken(feed, 8_000, 9_000)
    feed.speech("bot_speech_started", 9_500)
    assert (feed.latencies(), feed.turns()) == ({1: 1_000.0, 2: 500.0}, {0, 1, 2})


def test_a_user_who_speaks_over_the_bot() -> None:
    feed = _greeted()
    _spoken(feed, 2_000, 3_000)
    feed.speech("bot_speech_started", 4_000)
    _spoken(feed, 4_500, 5_000)
    feed.speech("bot_speech_stopped", 4_700).speech("bot_speech_started", 6_000)
    assert _interruptions(feed) == [("user", 2)]
    assert feed.latencies() == {1: 1_000.0, 2: 1_000.0}


def test_a_cough_over_the_bot_is_no_interruption() -> None:
    feed = _greeted()
    _spoken(feed, 2_000, 3_000)
    feed.speech("bot_speech_started", 4_000).spoke("user", 4_500, 4_600)
    assert _interruptions(feed) == []
    assert feed.turns() == {0, 1}


def test_an_assistant_that_speaks_over_the_user() -> None:
    feed = _greeted()
    (
        feed.speech("user_speech_started", 2_000)
        .speech("user_turn_started", 2_100)
        .speech("bot_speech_started", 2_600)
    )
    assert feed.latencies() == {}
    feed.speech("user_speech_stopped", 3_000).speech("user_turn_stopped", 3_200)
    assert _interruptions(feed) == [("assistant", 1)]
    assert feed.latencies() == {1: -400.0}


def test_a_greeting_is_never_interrupted_by_the_assistant() -> None:
    machine = BotTurnMachine()
    machine.apply(BotElementKind.BOT_STARTED, 1.0, 1_000)
    assert machine.turns[0].bot_starts == (1.0,)
    assert not machine.turns[0].assistant_interrupted


def test_moments_count_when_they_happened_not_when_they_came() -> None:
    feed = _greeted()
    (
        feed.speech("user_speech_started", 2_000)
        .speech("bot_speech_started", 4_000)
        .speech("user_speech_stopped", 3_000, behind_ms=5_000)
    )
    assert feed.latencies() == {1: 1_000.0}
    assert feed.interruptions() == [], "who spoke over whom is known at the end of the speech"


def test_the_first_audio_event_switches_to_audio_as_a_revision() -> None:
    feed = Feed().bot_text("Welcome.", 0).heard("Hello", 3_000).bot_text("Certainly.", 4_000)
    assert feed.latencies() == {1: 1_000.0}
    feed.user_audio(1_000, 2_400, behind_ms=2_000).assistant_audio(4_100, behind_ms=400)
    newest = feed.turn(1)
    assert (newest.wait_ms, newest.anchor, newest.wait_source) == (
        1_700.0,
        Anchor.AUDIO,
        "elevenlabs",
    )
    assert feed.news(1).count("wait") == 1
    assert "wait_revised" in feed.news(1)


def test_other_kinds_of_speech_events_change_no_turn_and_an_unknown_one_is_reported() -> None:
    feed = _greeted()
    feed.speech("interruption", 2_000)
    assert feed.latest == []
    feed.speech("of a later version", 2_000)
    assert [type(effect) for effect in feed.latest] == [NotUnderstood]


@pytest.mark.parametrize("is_told_first", [True, False])
def test_only_a_cascade_s_transcripts_end_a_wait_whenever_it_is_told(is_told_first: bool) -> None:
    feed = Feed()
    started = {"type": "call_started", "pipeline_type": "audio_llm"}
    if is_told_first:
        feed.send("audit", started, 0)
    feed.bot_text("Welcome.", 0).heard("[user audio]", 3_000).bot_text("Certainly.", 4_000)
    if not is_told_first:
        assert feed.latencies() == {1: 1_000.0}
        feed.send("audit", started, 4_100)
        assert feed.latencies() == {1: "withdrawn"}
    feed.advance(900_000)
    assert feed.call().turns == 1, "the order of the log is known"
    assert feed.latencies() == {1: "no_user_speech"}
    feed = (
        Feed()
        .send("audit", started, 0)
        .bot_text("Welcome.", 0)
        .heard("[user audio]", 3_000)
        .bot_text("Certainly.", 4_000)
        .send("audit", started | {"pipeline_type": "cascade"}, 4_100)
    )
    assert feed.latencies() == {1: 1_000.0}


LIMITS = Limits(dead_air_ms=3_000, delivery_allowance_ms=500)
ASKED, RUNS, DONE = "started", "in_progress", "completed"


def _report(
    feed: Feed,
    moment: str,
    at_ms: int,
    *,
    call_id: str = "one",
    tool: str | None = "rebook",
    **fields: Any,
) -> None:
    times = {
        name: (T0_MS + fields.pop(name)) / 1000 for name in ("in_progress_at",) if name in fields
    }
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
    return Feed(limits).speech("user_turn_started", 1_000).speech("user_turn_stopped", 2_000)


def _tools(feed: Feed) -> list[tuple[int, int, str, ToolOutcome | None, int | None]]:
    """The newest of each tool call: turn, index, tool, outcome, how long it ran."""
    return [(*place, use.tool, use.outcome, use.duration_ms) for place, use in feed.tools().items()]


def _end(feed: Feed, at_ms: int = 20_000) -> None:
    feed.send("pipecat", {"type": "call_ended"}, at_ms).advance(at_ms + 100_000)


@pytest.fixture
def feed() -> Feed:
    return _waiting_user()


def test_a_tool_that_pipecat_reports_is_a_tool_of_the_call(feed: Feed) -> None:
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
    feed: Feed, fields: dict[str, Any], outcome: ToolOutcome
) -> None:
    _report(feed, DONE, 2_910, in_progress_at=2_110, **fields)
    assert [tool[3:] for tool in _tools(feed)] == [(outcome, 800)]


def test_waiting_for_it_is_no_dead_air_and_waiting_after_it_is(feed: Feed) -> None:
    _report(feed, RUNS, 2_100)
    feed.advance(60_000)
    assert feed.silences() == []
    _report(feed, DONE, 60_000)
    feed.advance(63_521)
    assert [each.since_ms - T0_MS for _, each in feed.silences()] == [60_000]


@pytest.mark.parametrize("moment", ["failed", "timed_out"])
def test_one_that_fails_or_takes_too_long_is_an_error(feed: Feed, moment: str) -> None:
    _report(feed, RUNS, 2_100)
    _report(
        feed,
        moment,
        2_900,
        in_progress_at=2_100,
        **({"error": "no seat"} if moment == "failed" else {}),
    )
    assert _tools(feed) == [(1, 0, "rebook", ToolOutcome.ERROR, 800)]


def test_one_that_was_cancelled_has_not_answered_and_explains_no_waiting(feed: Feed) -> None:
    _report(feed, RUNS, 2_100)
    _report(feed, "cancelled", 2_900, in_progress_at=2_100)
    feed.advance(6_500)
    assert [each.since_ms - T0_MS for _, each in feed.silences()] == [2_900]
    _end(feed)
    assert _tools(feed) == [(1, 0, "rebook", ToolOutcome.UNANSWERED, None)]


def test_one_that_was_only_asked_for_never_ran(feed: Feed) -> None:
    _report(feed, ASKED, 2_100)
    _end(feed)
    assert _tools(feed) == []
    assert feed.silences()


def test_the_moment_that_settles_it_says_when_it_began_where_nothing_else_does(feed: Feed) -> None:
    _report(feed, DONE, 2_900, in_progress_at=2_100, result={})
    assert _tools(feed) == [(1, 0, "rebook", ToolOutcome.SUCCESS, 800)]


def test_moments_that_come_twice_count_once(feed: Feed) -> None:
    for _ in range(2):
        _report(feed, RUNS, 2_100)
    for _ in range(2):
        _report(feed, DONE, 2_900, in_progress_at=2_100, result={})
    feed.advance(6_500)
    assert _tools(feed) == [(1, 0, "rebook", ToolOutcome.SUCCESS, 800)]
    assert [each.since_ms - T0_MS for _, each in feed.silences()] == [2_900]


@pytest.mark.parametrize("order", sorted(set(itertools.permutations("ppll"))))
def test_where_the_audit_log_has_tools_it_is_the_one_that_counts_whatever_comes_first(
    order: tuple[str, ...],
) -> None:
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
    assert [each.since_ms - T0_MS for _, each in feed.silences()] == [2_800]
    _end(feed)
    assert _tools(feed) == [(1, 0, "rebook", ToolOutcome.SUCCESS, 600)]


@pytest.mark.parametrize("order", sorted(set(itertools.permutations("ppaa"))))
def test_they_give_way_to_an_elevenlabs_agent_s_tools_as_well(
    feed: Feed, order: tuple[str, ...]
) -> None:
    """The agent's tool runs from 2.2 s to 2.8 s, pipecat's report of it from 2.1 s to 2.9 s: one
    tool, and one silence.
    """
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
    assert [each.since_ms - T0_MS for _, each in feed.silences()] == [2_800]
    _end(feed)
    assert [tool[:3] for tool in _tools(feed)] == [(1, 0, "rebook")]


def test_a_call_that_was_never_settled_is_no_tool_that_runs_once_the_log_has_one(
    feed: Feed,
) -> None:
    _report(feed, RUNS, 2_100)
    feed.tool_call("rebook", 2_200).tool_answer("rebook", 2_800).advance(6_301)
    assert [each.since_ms - T0_MS for _, each in feed.silences()] == [2_800]


def test_a_report_without_an_id_is_no_tool_and_is_reported(feed: Feed) -> None:
    data = {"kind": "function_call_in_progress", "function_name": "rebook"}
    feed.send("pipecat", {"type": "function_call_event", "data": data}, 2_100)
    assert [each.misread.reason for each in feed.latest if isinstance(each, NotUnderstood)] == [
        "tool_without_id"
    ]
    feed.advance(6_000)
    assert len(feed.silences()) == 1
    _end(feed)
    assert _tools(feed) == []


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_one_report_of_a_tool_has_its_name_and_the_others_need_none(
    order: tuple[int, ...], feed: Feed
) -> None:
    nameless: dict[str, Any] = {"tool": None}
    reports = [
        (ASKED, 2_100, nameless),
        (RUNS, 2_110, {}),
        (DONE, 2_910, {**nameless, "result": {}}),
    ]
    for place in order:
        moment, at_ms, fields = reports[place]
        _report(feed, moment, at_ms, **fields)
    _end(feed)
    assert _tools(feed) == [(1, 0, "rebook", ToolOutcome.SUCCESS, 800)]
    assert [each for each in feed.effects if isinstance(each, NotUnderstood)] == []


def test_a_tool_that_nothing_names_is_reported_at_the_end(feed: Feed) -> None:
    _report(feed, DONE, 2_910, tool=None, result={})
    _end(feed)
    assert _tools(feed) == []
    told = [each.misread for each in feed.effects if isinstance(each, NotUnderstood)]
    assert [(each.reason, "function_name" in each.what) for each in told] == [
        ("tool_without_name", True)
    ]


HELLO = ("agent", "Hello, how can I help you?", False)
SAME_MS = 1.5
"""Two observers of one frame read the clock one after the other."""
FLIGHTS = (
    "There are many flights today. The first one leaves at nine in the morning. The second leaves "
    "at ten."
)

TRANSCRIPTS = {
    "plain": [
        HELLO,
        ("user", "When does my flight leave?", False),
        ("agent", "Your flight leaves at nine.", False),
        ("user", "Thank you.", False),
        ("agent", "You are welcome, goodbye.", False),
    ],
    "barge_in": [
        HELLO,
        ("user", "List all flights.", False),
        ("agent", "There are many flights today.", True),
        ("user", "Stop, the first one.", False),
        ("agent", "Booked, the first one.", False),
    ],
    "segments": [
        HELLO,
        ("user", "I would like to change my booking.", False),
        ("agent", "I have nothing more to say.", False),
    ],
    "silent_user": [("agent", "Hello, how can I help you? Are you still there?", False)],
    "tts_without_text": [
        HELLO,
        ("user", "When does my flight leave?", False),
        ("agent", "Your flight leaves at nine.", False),
    ],
    "tools": [
        HELLO,
        ("user", "Find booking A1.", False),
        ("agent", "I found your booking.", False),
        ("user", "Cancel it and find B.", False),
        ("agent", "That did not work.", False),
        ("user", "Do the slow thing. Oh, never mind.", False),
        ("agent", "Never mind then.", False),
    ],
    "llm_without_tts": [
        HELLO,
        ("user", "When does my flight leave?", False),
        ("agent", "Your flight leaves at nine.", False),
    ],
    "aborted": [
        HELLO,
        ("user", "When does my flight leave tomorrow?", False),
        ("agent", "Tomorrow at nine.", False),
    ],
    "speculative": [
        HELLO,
        ("user", "When does it leave tomorrow?", False),
        ("agent", "Tomorrow at nine.", False),
    ],
    "attached_late": [
        ("user", "When does my flight leave?", False),
        ("agent", "Your flight leaves at nine.", False),
        ("user", "Thank you.", False),
        ("agent", "Goodbye then.", False),
    ],
    "cough": [
        HELLO,
        ("user", "List all flights.", False),
        ("agent", f"{FLIGHTS} The third at noon.", False),
        ("user", "Thank you so much.", False),
        ("agent", "Goodbye.", False),
    ],
    "no_vad": [
        HELLO,
        ("user", "When does it leave?", False),
        ("agent", "At nine.", False),
        ("user", "Thanks.", False),
        ("agent", "Bye bye.", False),
    ],
    "llm_error": [
        HELLO,
        ("user", "When does it leave? Hello?", False),
        ("agent", "Back again.", False),
    ],
    # Of a phrase that was cut off before its end nothing is known to have been heard.
    "over_greeting": [
        ("agent", None, True),
        ("user", "When does it leave?", False),
        ("agent", "At nine.", False),
    ],
}
INTERRUPTIONS = {"barge_in": {("user", 2)}, "over_greeting": {("user", 1)}}
TOOLS = {
    "tools": [
        (1, "find_booking", "success"),
        (2, "cancel", "error"),
        (2, "find_booking", "success"),
        (3, "slow", "unanswered"),
    ]
}
ANCHORS = {"no_vad": "turn_release"}
FIRST_BYTES = {"STT": "stt_trailing", "LLM": "llm_first_token", "TTS": "tts_first_byte"}


@pytest.fixture(params=sorted(TRANSCRIPTS))
def name(request: pytest.FixtureRequest) -> str:
    """A recorded call."""
    return str(request.param)


@pytest.fixture
def outcome(name: str) -> Outcome:
    """Its published records."""
    return outcome_of(recorded_calls()[name].events)


def test_every_recorded_call_is_checked() -> None:
    assert set(recorded_calls()) == set(TRANSCRIPTS)


def test_turns_words_interruptions_and_tools(name: str, outcome: Outcome) -> None:
    assert outcome.transcript == TRANSCRIPTS[name]
    assert outcome.interruptions == INTERRUPTIONS.get(name, set())
    assert outcome.tools == TOOLS.get(name, [])


def test_latencies_are_those_of_pipecat(name: str, outcome: Outcome) -> None:
    own_ms = list(recorded_calls()[name].latencies_ms)
    if name in ANCHORS:
        assert own_ms == []  # without a detector pipecat measures nothing
        assert outcome.latencies_ms == pytest.approx({1: 508, 2: 568}, abs=1)
    else:
        assert list(outcome.latencies_ms.values()) == pytest.approx(own_ms, abs=SAME_MS)
    assert outcome.ever_ms == set(outcome.latencies_ms.values()), "none is published and taken back"
    assert set(outcome.anchors.values()) <= {ANCHORS.get(name, "vad")}


def test_stages_are_those_of_the_answered_request(name: str, outcome: Outcome) -> None:
    call = recorded_calls()[name]
    for turn, breakdown in zip(outcome.latencies_ms, call.breakdowns, strict=False):
        for service, elapsed_ms in breakdown["ttfb"].items():
            stage = FIRST_BYTES[service.removeprefix("Fake").removesuffix("Service")]
            assert outcome.stages_ms[turn, stage] == pytest.approx(elapsed_ms, abs=SAME_MS), (
                turn,
                stage,
            )
        if breakdown["handlers"]:
            assert outcome.stages_ms[turn, "tool_run"] == pytest.approx(
                breakdown["handlers"], abs=SAME_MS
            )
