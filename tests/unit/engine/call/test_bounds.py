"""State and repeated work of one call are bounded, whatever a hostile producer repeats."""

from typing import Any

import pytest

from consumers.engine.measures import eva as eva_scores
from consumers.engine.measures.eva_timing import MAX_LIVE_SOUNDS, heard_times
from consumers.engine.sources import MAX_REPLIES_OF_AN_ID
from consumers.engine.turns.bot import BotTurnMachine
from schemas.scores.records import Scored
from schemas.wire import MAX_NAME_CHARS
from tests.support.calls.agent_calls import corrected, envelope_of, said
from tests.support.fakes.engine_feed import T0_MS, Feed, Json

BREAKDOWN: Json = {
    "type": "latency_breakdown",
    "data": {"contributions": [{"key": "k" * 100_000, "duration_secs": 1.0}]},
}


def test_a_name_without_a_stage_is_kept_short() -> None:
    feed = Feed()
    feed.send("pipecat", BREAKDOWN, 1_000)
    feed.send("pipecat", {**BREAKDOWN, "data": {"contributions": [{"key": ["x"] * 1_000}]}}, 2_000)
    (call,) = feed.evaluator._calls.values()
    kept = call._measures.stages.unknown_keys
    assert {len(key) for key in kept} == {MAX_NAME_CHARS, len("contribution list")}


def test_answers_with_one_id_are_kept_up_to_a_number() -> None:
    feed = Feed()
    for number in range(MAX_REPLIES_OF_AN_ID + 10):
        event = said(f"Answer {number}.", number, 7)
        feed.send("user_sim", event, int(event["timestamp"]) - T0_MS, envelope=envelope_of(event))
    event = corrected("Answer 3.", "Answer", 10_000, 7)
    feed.send("user_sim", event, 10_000, envelope=envelope_of(event))
    (call,) = feed.evaluator._calls.values()
    assert call._agent._live is not None
    assert len(call._agent._live._replies[7]) == MAX_REPLIES_OF_AN_ID
    machine = call.live.machine
    assert isinstance(machine, BotTurnMachine)
    refs = {each.ref for each in machine.words[0]}
    assert {"Answer", "Answer 4."} <= refs


def test_a_turn_with_sounds_without_end_is_scored_again_at_the_close(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0

    def counted(*args: Any, **more: Any) -> Any:
        nonlocal looks
        looks += 1
        return heard_times(*args, **more)

    monkeypatch.setattr(eva_scores, "heard_times", counted)
    feed = Feed()
    feed.assistant_audio(0, 500)
    feed.user_audio(1_000, 2_000)
    for number in range(2 * MAX_LIVE_SOUNDS):
        feed.assistant_audio(4_000 + 10 * number, 4_005 + 10 * number)
    feed.user_audio(30_000, 31_000)
    assert looks == 0, "the greeting has no score, and turn 1 too many sounds to have one while the call runs"
    assert feed.turn_values(1).turn_taking is None
    feed.advance(10_000_000)
    assert looks == 3
    timing = feed.turn_values(1).turn_taking
    assert timing is not None
    assert isinstance(timing.result, Scored)


def test_a_call_has_two_wake_ups_however_long_it_is() -> None:
    """Each silence sets a deadline before the idle time; when it is over, the idle time counts again."""
    feed = Feed()
    for turn in range(50):
        at_ms = 10_000 * turn
        feed.user_audio(at_ms, at_ms + 1_000)
        feed.advance(at_ms + 5_500)
        feed.assistant_audio(at_ms + 6_000, at_ms + 7_000)
        feed.advance(at_ms + 9_000)
        assert len(feed.evaluator._wakeups._heap) <= 2
    assert feed.records("dead_air") != []
    feed.advance(3_600_000)
    assert [record.reason.value for record in feed.records("closed")] == ["idle"]
    assert feed.evaluator.next_wakeup() is None
