"""The time when a turn is settled, and changes of settled turns that count."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from consumers.engine.limits import Limits
from consumers.engine.measures.eva_timing import SettledTurns, TurnReason, TurnScore, TurnValue
from consumers.engine.turns.live import LiveCall
from schemas.closed_sets import PipelineType
from schemas.scores.records import Scored
from tests.support.fakes.engine_feed import T0_MS, Feed

LIMITS = Limits(allowed_lateness_ms=5_000)


def value(score: float) -> TurnValue:
    return TurnValue(TurnScore(score, TurnReason.LATENCY, {}), Scored(value=score), None, is_open=False)


def live(*, pipeline: PipelineType = PipelineType.CASCADE, newest_ms: int = 9_000) -> LiveCall:
    """The part of a live call that is looked at."""
    stand_in: Any = SimpleNamespace(newest_ms=newest_ms, history=SimpleNamespace(pipeline_type=pipeline))
    return cast("LiveCall", stand_in)


def counted(settled: SettledTurns) -> dict[tuple[str, ...], int]:
    return {
        (count.metric.removeprefix("callgauge_settled_turns_"), *count.labels): count.by for count in settled.counts()
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


def test_a_turn_settled_by_the_very_event_that_changes_it_was_not_settled_before() -> None:
    feed = Feed(LIMITS)
    feed.assistant_audio(0, 900)
    feed.user_audio(2_000, 3_000)
    feed.assistant_audio(6_000)
    feed.user_audio(8_000, 9_000)
    _passed(feed, 30_000)
    assert feed.status(1) == "provisional"
    end = {"event_type": "audio_end", "user": "assistant", "audio_timestamp": (T0_MS + 7_000) / 1000}
    feed.send("user_sim", end, 31_000)
    assert feed.status(1) == "settled"
    feed.send("judge", {"type": "call_ended"}, 32_000)
    feed.advance(100_000)
    assert feed.counts("callgauge_settled_turns_changed_total") == {}
    assert sum(feed.counts("callgauge_settled_turns_total").values()) >= 2


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
    feed.send("pipecat", {"type": "of a later version"}, at_ms)
    feed.send("user_sim", {"type": "timeout", "data": {}}, at_ms)


def test_a_turn_with_a_sound_without_an_end_is_not_settled() -> None:
    feed = Feed(LIMITS)
    feed.assistant_audio(0, 900)
    feed.user_audio(2_000)
    feed.assistant_audio(4_000, 5_000)
    feed.user_audio(6_000, 7_000)
    _passed(feed, 30_000)
    assert (feed.status(0), feed.status(1)) == ("settled", "provisional")
    assert feed.latencies() == {1: "user_still_speaking"}
    assert feed.evaluator.next_wakeup() is not None


def test_nor_is_one_in_which_the_user_spoke_over_an_answer_without_an_end() -> None:
    feed = Feed(LIMITS)
    feed.assistant_audio(0, 900)
    feed.user_audio(2_000, 3_000)
    feed.assistant_audio(4_000)
    feed.user_audio(6_000, 7_000)
    feed.assistant_audio(8_000, 9_000)
    feed.user_audio(11_000, 12_000)
    _passed(feed, 30_000)
    assert [feed.status(turn) for turn in (0, 1, 2)] == ["settled", "provisional", "provisional"]


def test_the_end_of_a_sound_settles_a_turn_that_waited_for_it() -> None:
    feed = Feed(LIMITS)
    feed.assistant_audio(0, 900)
    feed.user_audio(2_000, 3_000)
    feed.assistant_audio(4_000)
    feed.user_audio(6_000, 7_000)
    _passed(feed, 30_000)
    assert feed.status(1) == "provisional"
    end = {"event_type": "audio_end", "user": "assistant", "audio_timestamp": (T0_MS + 6_200) / 1000}
    feed.send("user_sim", end, 31_000)
    assert feed.status(1) == "settled"
