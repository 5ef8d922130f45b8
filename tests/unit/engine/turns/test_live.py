"""Live turns: their moments, and when they are settled."""

from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from consumers.engine.effects import Effect
from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.limits import Limits
from consumers.engine.measures.eva_timing import SettledTurns
from consumers.engine.rows import CallRows
from consumers.engine.turns.live import LiveCall
from schemas.closed_sets import Anchor, PipelineType, ToolOutcome, UnscoredReason
from schemas.rows import (
    CallRow,
    Labels,
    NotApplicable,
    StageLatency,
    ToolUse,
    TurnRow,
    TurnTaking,
    Unscored,
    Value,
    number,
)
from schemas.scores.latency_stages import Stage, StageSource
from tests.support.calls.wire_calls import Json, arrivals_of, in_time_order, record_call
from tests.support.conformance_data import RECORD, conformance
from tests.support.fakes.engine_feed import T0_MS, Feed, closings_of, rows_of


def _measured(feed: Feed, turn: int) -> list[TurnRow]:
    """The rows of a turn since the call has left it."""
    return [row for row in feed.turn_rows(turn) if row.talk is not None]


def _statuses(feed: Feed, turn: int) -> list[str]:
    return [row.status for row in _measured(feed, turn)]


def _dialogue(feed: Feed) -> None:
    feed.assistant_audio(0, 1_000)
    for start_ms in (2_000, 12_000):
        (
            feed.user_audio(start_ms, start_ms + 1_000)
            .heard("Hello", start_ms + 1_000)
            .assistant_audio(start_ms + 2_000, start_ms + 4_000)
        )


def test_a_turn_is_open_then_provisional_then_settled_and_published_when_it_was_left() -> None:
    feed = Feed(Limits(allowed_lateness_ms=5_000)).assistant_audio(0, 1_000)
    assert (feed.status(0), _statuses(feed, 0)) == ("open", [])
    feed.user_audio(2_000, 3_000)
    assert (feed.status(0), _statuses(feed, 0)) == ("provisional", ["provisional"])
    feed = Feed(Limits(allowed_lateness_ms=5_000))
    _dialogue(feed)
    assert [feed.status(turn) for turn in (0, 1, 2)] == ["settled", "provisional", "open"]
    feed.user_audio(17_500, None).heard("Bye", 17_500)
    assert feed.status(1) == "provisional"  # the bot's stream is not past it yet
    feed.bot_text("Bye.", 17_500)
    assert feed.status(1) == "settled"
    feed.advance(400_000)
    assert [_statuses(feed, turn) for turn in (0, 1, 2, 3)] == [
        ["provisional"],
        ["provisional"],
        ["provisional"],
        ["provisional"] * 2,
    ]


def test_a_turn_that_is_left_is_published_again_only_if_a_value_changes() -> None:
    feed = Feed(Limits(allowed_lateness_ms=5_000))
    _dialogue(feed)
    (first,) = _measured(feed, 1)
    assert (first.wait_ms, first.anchor, first.wait_source) == (1_000.0, Anchor.AUDIO, "elevenlabs")
    assert "turn" in first.news
    feed.tool_call("book", 3_500)  # comes late: the turn may take longer
    assert _measured(feed, 1) == [first]  # the next change of turn is soon enough
    feed.user_audio(22_000, 23_000)
    _, second = _measured(feed, 1)
    assert first.turn_taking is not None
    assert second.turn_taking is not None
    assert (first.turn_taking.has_tool_call, second.turn_taking.has_tool_call) == (False, True)
    assert second.news == ()
    feed.user_audio(32_000, 33_000).advance(800_000)
    assert [row.tools for row in _measured(feed, 1)] == [
        (),
        (),
        (ToolUse(0, "book", ToolOutcome.UNANSWERED, called_ms=T0_MS + 3_500),),
    ]


def test_a_turn_that_settles_with_another_value_is_published_when_it_settles() -> None:
    feed = Feed(Limits(allowed_lateness_ms=5_000))
    _dialogue(feed)
    (
        feed.tool_call("book", 3_500)
        .send("audit", {"message_type": "llm_call"}, 18_000)
        .send("pipecat", {"type": "of a later version"}, 18_000)
        .send("user_sim", {"type": "timeout"}, 18_000)
    )
    assert (feed.status(1), _statuses(feed, 1)) == ("settled", ["provisional", "settled"])


def test_a_stream_that_is_absent_holds_nothing_up() -> None:
    feed = (
        Feed(Limits(allowed_lateness_ms=5_000))
        .assistant_audio(0, 1_000)
        .user_audio(2_000, 3_000)
        .bot_text("Hm.", 7_000)
    )
    assert feed.status(0) == "provisional"
    feed.send("user_sim", {"type": "timeout"}, 7_000)
    assert feed.status(0) == "settled"


def test_control_events_of_the_judge_s_topic_hold_nothing_up() -> None:
    feed = Feed(Limits(allowed_lateness_ms=5_000)).send(
        "judge", {"type": "call_started", "agent": "desk"}, 0
    )
    _dialogue(feed)
    assert feed.status(0) == "settled"


@pytest.fixture
def feed() -> Feed:
    return Feed()


def test_latency_is_said_when_the_assistant_starts(feed: Feed) -> None:
    feed.assistant_audio(0, 1_000).user_audio(2_000, 3_000)
    assert feed.turn_rows(1) == []
    feed.assistant_audio(3_750)
    row = feed.turn(1)
    assert (row.wait_ms, row.anchor, row.wait_source, row.status) == (
        750.0,
        Anchor.AUDIO,
        "elevenlabs",
        "open",
    )
    assert feed.news(1) == ["user_turn.1", "wait"]


def test_the_greeting_has_no_latency(feed: Feed) -> None:
    feed.user_audio(0, 1_000).assistant_audio(2_000, 3_000)
    assert feed.turns() == {0}
    feed.advance(400_000)
    assert feed.values("wait_ms", 0) == [None, NotApplicable("the greeting answers nobody")]
    assert feed.news(0) == []


def test_a_late_end_of_the_user_is_a_revision(feed: Feed) -> None:
    (
        feed.assistant_audio(0, 1_000)
        .user_audio(2_000, 3_000)
        .assistant_audio(4_000, 5_000)
        .user_audio(3_100, 3_600, behind_ms=2_500)  # the user went on, which came late
    )
    values = feed.values("wait_ms", 1)
    assert values[0] == 1_000.0
    assert [name for name in feed.news(1) if name.startswith("wait")] == [
        "wait",
        *["wait_revised"] * (len(values) - 1),
    ]


def test_an_empty_session_takes_its_turn_back(feed: Feed) -> None:
    (
        feed.assistant_audio(0, 1_000)
        .user_audio(2_000, 2_100, text=None)  # a noise
        .user_audio(4_000, 5_000)
        .assistant_audio(6_000, 7_000)
    )
    assert feed.latencies() == {1: 1_000.0}
    feed.advance(400_000)
    assert feed.call().turns == 1


def test_a_turn_that_never_was_is_withdrawn(feed: Feed) -> None:
    (
        feed.send("pipecat", {"type": "tts_text", "data": {"frame": "Welcome here"}}, 0)
        .user_audio(2_000, 3_000)
        .assistant_audio(4_000)
    )
    assert feed.turns() == {0, 1}
    # A second phrase at the stamp of the first: both are previews, so the user spoke first.
    feed.send("pipecat", {"type": "tts_text", "data": {"frame": "Hello there"}}, 0)
    assert (feed.turns(), feed.latencies()) == ({0}, {1: "withdrawn"})
    feed.advance(400_000)
    assert feed.turn(1).status == "withdrawn"
    assert (feed.call().turn, feed.call().turns, feed.call().p50_ms) == (0, 0, None)


def test_a_turn_that_was_left_and_never_was_is_withdrawn(feed: Feed) -> None:
    feed.spoke("bot", 0, 1_000)
    for at_ms in (2_000, 6_000, 10_000):
        feed.spoke("user", at_ms, at_ms + 1_000).spoke("bot", at_ms + 2_000, at_ms + 3_000)
    assert [len(_measured(feed, turn)) for turn in (0, 1, 2)] == [1, 1, 1]
    before = feed.news(1)
    feed.assistant_audio(0, 900)  # there is a simulated caller: it has heard the greeting so far
    statuses = [feed.turn(turn).status for turn in (0, 1, 2)]
    assert statuses == ["open", "withdrawn", "withdrawn"]
    withdrawn = feed.turn(1)
    assert (withdrawn.wait_ms, withdrawn.turn_taking, withdrawn.talk) == (
        Unscored(UnscoredReason.WITHDRAWN),
        None,
        None,
    )
    assert feed.news(1) == [*before, "wait_revised"]
    feed.advance(400_000)
    assert {feed.turn(turn).status for turn in (1, 2)} == {"withdrawn"}
    assert feed.call().turns == 0


def test_rows_have_revisions_labels_and_the_time_at_which_they_were_known(feed: Feed) -> None:
    (
        feed.send("judge", {"type": "call_started", "agent": "desk", "tenant": "acme"}, 0)
        .assistant_audio(0, 1_000)
        .user_audio(2_000, 3_000)
        .assistant_audio(4_000)
    )
    row = feed.turn(1)
    assert row.labels == Labels(agent="desk", tenant="acme")
    assert (row.revision, row.known_ms) == (2 * 8, T0_MS + 4_000)
    assert (feed.call().code_version, feed.call().last_place) == ("test", 8)


def test_labels_that_become_known_are_published_at_once(feed: Feed) -> None:
    (
        feed.heard("Hello", 0)
        .send("judge", {"type": "call_started", "agent": "desk"}, 100)
        .send("judge", {"type": "call_started", "agent": "desk"}, 200)
        .send("judge", {"type": "call_started", "environment": "test"}, 300)
    )
    assert [(labels.agent, labels.environment) for labels in feed.values("labels")] == [
        ("unknown", "unknown"),
        ("desk", "unknown"),
        ("desk", "test"),
    ]
    assert feed.news() == ["started"]


def test_events_that_every_stream_is_past_are_late() -> None:
    feed = (
        Feed(Limits(allowed_lateness_ms=5_000))
        .heard("Hello", 10_000)
        .heard("Hello", 5_000)
        .heard("Hello", 4_999)
    )
    assert feed.counts("callgauge_late_events_total") == {("audit",): 1}
    assert feed.counts("callgauge_events_total") == {("audit", "folded"): 2, ("audit", "late"): 1}


def test_unknown_types_and_fields_are_counted(feed: Feed) -> None:
    (
        feed.send("pipecat", {"type": "of a later version", "x": 1}, 0)
        .send("user_sim", {"type": "of a later version", "timestamp": None}, 0)
        .send("audit", {"message_type": "user", "value": "Hello", "mood": "good", "volume": 3}, 0)
    )
    assert feed.counts("callgauge_events_total") == {
        ("pipecat", "unknown"): 1,
        ("elevenlabs", "unknown"): 1,
        ("audit", "folded"): 1,
    }
    assert feed.counts("callgauge_unknown_fields_total") == {("audit",): 2}


@pytest.mark.parametrize(
    ("stream", "event", "expected_ms"),
    [
        ("audit", {"message_type": "of a later version"}, 9_000),
        ("user_sim", {"type": "of a later version"}, 9_000),
        ("user_sim", {"event_type": "of a later version"}, 9_000),
        (
            "pipecat",
            {"type": "of a later version", "message_type": "user", "event_type": "audio_end"},
            1_000,
        ),
        ("judge", {"type": "of a later version", "message_type": "user"}, 1_000),
    ],
)
def test_unknown_events_happened_on_the_streams_whose_every_event_counts(
    feed: Feed, stream: str, event: Json, expected_ms: int
) -> None:
    feed.heard("Hello", 1_000).send(stream, event, 9_000)
    assert feed.evaluator._calls["call"].history.last_time_ms() == T0_MS + expected_ms


def test_a_text_can_be_updated_before_its_entry_comes(feed: Feed) -> None:
    feed.send(
        "judge", {"type": "user_text_updated", "text": "My badge is lost.", "turn_id": 7}, 0
    ).send("audit", {"message_type": "user", "value": "[user audio]", "turn_id": 7}, 100)
    context = feed.evaluator.context("call")
    assert context is not None
    assert context.transcribed_user_turns == {1: "My badge is lost."}


@pytest.fixture(scope="module")
def recorded() -> Json:
    return record_call(conformance(RECORD.name))


def test_a_recorded_call_says_each_latency_once_and_right(recorded: Json) -> None:
    evaluator = PartitionEvaluator(Limits(), "test")
    arrivals = arrivals_of(recorded, in_time_order(recorded))
    live = turn_rows(effect for arrival in arrivals for effect in evaluator.receive(arrival))
    closing = evaluator.advance(arrivals[-1].broker_time_ms + 600_000)
    expected = {
        int(turn): round(1000 * s, 3)
        for turn, s in recorded["expected"]["latency_assistant_turns"].items()
    }
    first: dict[int, Value | None] = {}
    for row in live:
        if number(row.wait_ms) is not None:
            first.setdefault(row.turn, row.wait_ms)
    assert len(expected) == 9
    assert first == expected
    assert {turn for turn, value in expected.items() if value < 0} == {3}
    final = {row.turn: row.wait_ms for row in [*live, *turn_rows(closing)] if row.turn}
    assert {turn: value for turn, value in final.items() if turn in expected} == expected
    assert set(final) - set(expected) <= {10}  # the goodbye, which got no answer
    assert {row.turn for row in turn_rows(closing) if not row.dead_air} <= {10}, (
        "nothing is restated"
    )
    assert closings_of(closing) == rows_of(closing)[-1:]


def test_a_recorded_call_without_its_simulator_has_live_turns(recorded: Json) -> None:
    call = {**recorded, "user_sim": None}
    evaluator = PartitionEvaluator(Limits(), "test")
    arrivals = arrivals_of(call, in_time_order(call))
    rows = turn_rows(effect for arrival in arrivals for effect in evaluator.receive(arrival))
    waits = {
        row.turn: (wait_ms, row) for row in rows if (wait_ms := number(row.wait_ms)) is not None
    }
    assert len(waits) >= 8
    assert {row.anchor for _, row in waits.values()} == {Anchor.TURN_RELEASE}
    assert {row.wait_source for _, row in waits.values()} == {"pipecat"}
    assert all(-25_000 < wait_ms < 25_000 for wait_ms, _ in waits.values())


def turn_rows(effects: Iterable[Effect]) -> list[TurnRow]:
    return [row for row in rows_of(effects) if isinstance(row, TurnRow)]


LIMITS = Limits(allowed_lateness_ms=5_000)


def value(score: float) -> TurnTaking:
    return TurnTaking(score, "latency")


def live(*, pipeline: PipelineType = PipelineType.CASCADE, newest_ms: int = 9_000) -> LiveCall:
    """The part of a live call that is looked at."""
    stand_in: Any = SimpleNamespace(
        newest_ms=newest_ms, history=SimpleNamespace(pipeline_type=pipeline)
    )
    return cast("LiveCall", stand_in)


def counted(settled: SettledTurns) -> dict[tuple[str, ...], int]:
    return {
        (count.metric.removeprefix("callgauge_settled_turns_"), *count.labels): count.by
        for count in settled.counts()
    }


@pytest.mark.parametrize(
    ("pipeline", "time_ms", "cause"),
    [
        (PipelineType.CASCADE, 5_000, "late_event"),
        (PipelineType.S2S, 5_000, "backdated_log"),
        (PipelineType.CASCADE, 9_000, "counted_anew"),
        (PipelineType.S2S, 9_000, "counted_anew"),
    ],
)
def test_a_change_has_the_cause_of_the_first_event_that_made_it(
    pipeline: PipelineType, time_ms: int, cause: str
) -> None:
    settled, side = SettledTurns(), live(pipeline=pipeline)
    settled.settle(1, value(1.0))
    settled.settle(2, value(1.0))
    settled.changed(side, 1, value(0.5), time_ms)
    settled.changed(side, 1, value(0.7), 9_500)
    settled.close({1: value(0.7), 2: value(1.0)})
    assert counted(settled) == {("total",): 2, ("changed_total", cause): 1}


def test_a_change_that_is_undone_is_none() -> None:
    settled = SettledTurns()
    settled.settle(1, value(0.5))
    settled.changed(live(), 1, value(0.7), 5_000)
    settled.close({1: value(0.5)})
    assert counted(settled) == {("total",): 1}


def test_a_turn_that_is_settled_again_is_compared_with_what_it_first_was() -> None:
    settled = SettledTurns()
    settled.settle(1, value(0.5))
    settled.changed(live(), 1, value(0.7), 5_000)
    settled.settle(1, value(0.7))
    settled.close({1: value(0.7)})
    assert counted(settled) == {("total",): 1, ("changed_total", "late_event"): 1}


def test_an_event_that_leaves_the_value_as_it_is_causes_nothing() -> None:
    settled = SettledTurns()
    settled.settle(1, value(0.5))
    settled.changed(live(), 1, value(0.5), 5_000)
    settled.close({1: value(0.7)})
    assert counted(settled) == {("total",): 1, ("changed_total", "end_of_call"): 1}


def test_a_turn_that_is_not_settled_may_change() -> None:
    settled = SettledTurns()
    settled.changed(live(), 1, value(0.5), 5_000)
    settled.close({1: value(0.7)})
    assert counted(settled) == {}


def test_what_only_the_end_of_the_call_shows_has_that_cause() -> None:
    settled = SettledTurns()
    settled.settle(1, value(0.5))
    settled.settle(2, None)
    settled.close({1: value(0.7), 2: value(1.0)})
    assert counted(settled) == {("total",): 2, ("changed_total", "end_of_call"): 2}


def _passed(feed: Feed, at_ms: int) -> None:
    """Every stream that the call has is past this time."""
    feed.send("pipecat", {"type": "of a later version"}, at_ms).send(
        "user_sim", {"type": "timeout", "data": {}}, at_ms
    )


def test_a_turn_with_a_sound_without_an_end_is_not_settled() -> None:
    feed = (
        Feed(LIMITS)
        .assistant_audio(0, 900)
        .user_audio(2_000)
        .assistant_audio(4_000, 5_000)
        .user_audio(6_000, 7_000)
    )
    _passed(feed, 30_000)
    assert (feed.status(0), feed.status(1)) == ("settled", "provisional")
    assert feed.latencies() == {1: "user_still_speaking"}
    assert feed.evaluator.next_wakeup() is not None


def test_nor_is_one_in_which_the_user_spoke_over_an_answer_without_an_end() -> None:
    feed = (
        Feed(LIMITS)
        .assistant_audio(0, 900)
        .user_audio(2_000, 3_000)
        .assistant_audio(4_000)
        .user_audio(6_000, 7_000)
        .assistant_audio(8_000, 9_000)
        .user_audio(11_000, 12_000)
    )
    _passed(feed, 30_000)
    assert [feed.status(turn) for turn in (0, 1, 2)] == ["settled", "provisional", "provisional"]


def test_the_end_of_a_sound_settles_a_turn_that_waited_for_it_and_changes_none() -> None:
    feed = (
        Feed(LIMITS)
        .assistant_audio(0, 900)
        .user_audio(2_000, 3_000)
        .assistant_audio(6_000)
        .user_audio(8_000, 9_000)
    )
    _passed(feed, 30_000)
    assert feed.status(1) == "provisional"
    assert feed._audio("audio_end", "assistant", 7_000, 24_000).status(1) == "settled"
    feed.send("judge", {"type": "call_ended"}, 32_000).advance(100_000)
    assert feed.counts("callgauge_settled_turns_changed_total") == {}
    assert sum(feed.counts("callgauge_settled_turns_total").values()) >= 2


def test_a_row_says_that_the_agent_has_fallen_silent_before_anybody_speaks_again(
    feed: Feed,
) -> None:
    feed.spoke("bot", 0, 1_000)
    (greeting,) = feed.turn_rows(0)
    assert [each.end_ms for each in greeting.assistant_sounds] == [T0_MS + 1_000]
    feed.spoke("user", 2_000, 3_000).spoke("bot", 4_000, 6_000)
    calls = len([row for row in feed.rows() if isinstance(row, CallRow)])
    assert [each.end_ms for each in feed.turn(1).assistant_sounds] == [T0_MS + 6_000]
    feed.spoke("bot", 7_000, 8_000)
    assert len(feed.turn(1).assistant_sounds) == 2
    assert len([row for row in feed.rows() if isinstance(row, CallRow)]) == calls, (
        "nothing of the call is another"
    )


def test_a_call_that_said_its_end_is_over_and_its_row_knows_its_last_event(feed: Feed) -> None:
    feed.spoke("bot", 0, 1_000).send("audit", {"type": "call_ended"}, 5_000)
    assert (feed.call().state, feed.call().last_known_ms) == ("ended", T0_MS + 5_000)
    feed.advance(400_000)
    assert (feed.call().state, feed.call().last_known_ms) == ("closed", T0_MS + 5_000)
    assert feed.call().known_ms > T0_MS + 5_000


def test_an_event_after_the_end_does_not_move_the_end(feed: Feed) -> None:
    feed.spoke("bot", 0, 1_000).send("audit", {"type": "call_ended"}, 5_000)
    feed.speech("bot_speech_started", 4_000).speech("user_speech_started", 9_000).advance(400_000)
    assert (feed.call().state, feed.call().last_known_ms) == ("closed", T0_MS + 5_000)


def test_an_end_that_comes_first_makes_no_row(feed: Feed) -> None:
    feed.send("audit", {"type": "call_ended"}, 1_000)
    assert feed.rows() == []
    feed.spoke("bot", 2_000, 3_000)
    assert feed.call().state == "ended"


def test_the_end_of_an_answer_that_was_cut_off_is_in_the_row_of_its_turn(feed: Feed) -> None:
    feed.spoke("bot", 0, 1_000).spoke("user", 2_000, 3_000).speech("bot_speech_started", 4_000)
    feed.speech("user_speech_started", 6_000)  # over the answer
    feed.speech("bot_speech_stopped", 6_400)
    assert [each.end_ms for each in feed.turn(1).assistant_sounds] == [T0_MS + 6_400]


@pytest.mark.parametrize(
    ("stages", "slowest"),
    [
        ({Stage.LLM_LAST_SENTENCE: 900.0, Stage.STT_TRAILING: 300.0}, Stage.LLM_LAST_SENTENCE),
        ({Stage.LLM_LAST_SENTENCE: 2_900.0, Stage.STT_TRAILING: 300.0}, Stage.STT_TRAILING),
        (
            {
                Stage.LLM_LAST_SENTENCE: 900.0,
                Stage.LLM_FIRST_TOKEN: 200.0,
                Stage.STT_TRAILING: 300.0,
            },
            Stage.STT_TRAILING,
        ),
    ],
)
def test_the_whole_answer_of_a_model_explains_a_wait_if_nobody_spoke_before_it_was_there(
    stages: Mapping[Stage, float], slowest: Stage
) -> None:
    rows = CallRows(CallRow(conversation_id="c"))
    told = tuple(
        StageLatency(stage, length_ms, StageSource.PIPECAT) for stage, length_ms in stages.items()
    )
    rows.set_turn(1, 1, wait_ms=2_000.0, stages=told)
    *_, call = rows.drain(lambda _: None, is_told=True)
    assert isinstance(call, CallRow)
    assert call.answer is not None
    assert call.answer.slowest_stage is slowest
