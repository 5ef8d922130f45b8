"""When a turn is settled, and what counts as a settled turn that changed."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from consumers.engine.eva_metrics.turn_scores import TurnReason, TurnScore
from consumers.engine.eva_metrics.turn_values import TurnValue
from consumers.engine.limits import Limits
from consumers.engine.live_side import LiveSide
from consumers.engine.settled_turns import SettledTurns
from schemas.call_events import PipelineType
from schemas.score_record import Scored
from tests.engine_feed import T0_MS, Feed

LIMITS = Limits(allowed_lateness_ms=5_000)


def value(score: float) -> TurnValue:
    return TurnValue(TurnScore(score, TurnReason.LATENCY, {}), Scored(value=score), None, is_open=False)


def live(
    *,
    ever: set[int],
    just: set[int] | None = None,
    pipeline: PipelineType = PipelineType.CASCADE,
    newest_ms: int = 9_000,
) -> LiveSide:
    """As much of a live side as is looked at."""
    turns = SimpleNamespace(ever_settled=ever, just_settled=just or set())
    stand_in: Any = SimpleNamespace(
        turns=turns, newest_ms=newest_ms, history=SimpleNamespace(pipeline_type=pipeline)
    )  # fmt: skip
    return cast("LiveSide", stand_in)


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
    settled, side = SettledTurns(), live(ever={1, 2}, pipeline=pipeline)
    settled.changed(side, 1, value(0.5), time_ms)
    settled.changed(side, 1, value(0.7), 9_500)
    settled.close(side, {1: value(0.7), 2: value(1.0)}, {1: value(0.7), 2: value(1.0)})
    assert counted(settled) == {("total",): 2, ("changed_total", cause): 1}


def test_a_change_that_is_undone_is_none() -> None:
    settled, side = SettledTurns(), live(ever={1})
    settled.changed(side, 1, value(0.5), 5_000)
    settled.close(side, {1: value(0.5)}, {1: value(0.5)})
    assert counted(settled) == {("total",): 1}


def test_a_turn_settled_by_the_very_event_that_changes_it_was_not_settled_before() -> None:
    settled, side = SettledTurns(), live(ever={1}, just={1})
    settled.changed(side, 1, value(0.5), 9_000)
    settled.close(side, {1: value(0.7)}, {1: value(0.7)})
    assert counted(settled) == {("total",): 1}


def test_a_turn_that_is_not_settled_may_change() -> None:
    settled, side = SettledTurns(), live(ever=set())
    settled.changed(side, 1, value(0.5), 5_000)
    settled.close(side, {1: value(0.7)}, {1: value(0.7)})
    assert counted(settled) == {}


def test_what_only_the_end_of_the_call_shows_has_that_cause() -> None:
    settled, side = SettledTurns(), live(ever={1, 2})
    settled.close(side, {1: value(0.5)}, {1: value(0.7), 2: value(1.0)})
    assert counted(settled) == {("total",): 2, ("changed_total", "end_of_call"): 2}


def _statuses(feed: Feed, turn: int) -> list[str]:
    return [fact.status.value for fact in feed.records("turn", turn)]


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
    assert _statuses(feed, 0) == ["open", "provisional", "settled"]
    assert _statuses(feed, 1) == ["open", "provisional"]
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
    assert [_statuses(feed, turn)[-1] for turn in (0, 1, 2)] == ["settled", "provisional", "provisional"]


def test_the_end_of_a_sound_settles_a_turn_that_waited_for_it() -> None:
    feed = Feed(LIMITS)
    feed.assistant_audio(0, 900)
    feed.user_audio(2_000, 3_000)
    feed.assistant_audio(4_000)
    feed.user_audio(6_000, 7_000)
    _passed(feed, 30_000)
    assert "settled" not in _statuses(feed, 1)
    end = {"event_type": "audio_end", "user": "assistant", "audio_timestamp": (T0_MS + 6_200) / 1000}
    feed.send("user_sim", end, 31_000)
    assert _statuses(feed, 1)[-1] == "settled"
