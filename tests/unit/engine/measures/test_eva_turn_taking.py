"""EVA's `turn_taking` of a whole call: the turns that count, calls whose score is zero, and its sub-metrics."""

from typing import Any

import pytest

from consumers.engine.measures.eva_timing import last_speaker, missed_turn, turn_taking
from consumers.engine.measures.eva_tools import pre_tool_speech_rate
from consumers.engine.turns.timeline import ElementKind, ToolUse
from tests.support.calls.metric_contexts import context

TOOL = {"type": "tool_call", "turn_id": 2, "tool_name": "book", "parameters": {}}
TWO_TURNS: dict[str, Any] = {
    "user": {1: [(10.0, 12.0)], 2: [(20.0, 22.0)]},
    "assistant": {0: [(1.0, 5.0)], 1: [(13.0, 15.0)], 2: [(26.0, 28.0)]},
    "trace": [TOOL],
}


def test_the_score_is_the_mean_of_the_turns() -> None:
    result = turn_taking(context(**TWO_TURNS), None)
    assert result.score == result.normalized_score == 0.75  # 1 at 1,000 ms, 0.5 at 4,000 ms with a tool
    assert result.details["per_turn_score"] == {"1": 1.0, "2": 0.5}
    assert result.details["per_turn_reason"] == {"1": "latency", "2": "latency"}
    assert (result.details["num_turns"], result.details["num_evaluated"]) == (2, 2)
    assert not result.details["missed_turn"]


def test_latencies_are_early_on_time_or_late_and_a_tool_allows_for_more() -> None:
    parts = turn_taking(context(**TWO_TURNS), 0.5).sub_metrics
    assert (parts["mean_latency_ms"], parts["p50_latency_ms"], parts["p90_latency_ms"]) == (2500.0, 4000.0, 4000.0)
    assert (parts["early_rate"], parts["on_time_rate"], parts["late_rate"]) == (0.0, 0.5, 0.5)
    assert parts["pretoolspeech_rate"] == 0.5
    early = context(user={1: [(10.0, 12.0)]}, assistant={1: [(12.199, 15.0)]})
    assert turn_taking(early, None).sub_metrics["early_rate"] == 1.0


def test_what_the_model_wrote_is_told_beside_it() -> None:
    assert (
        turn_taking(context(**TWO_TURNS), None, mean_tokens={"mean_output_tokens": 12.5}).sub_metrics[
            "mean_output_tokens"
        ]
        == 12.5
    )
    assert turn_taking(context(), None, mean_tokens={"mean_output_tokens": 12.5}).sub_metrics == {}


def test_what_did_not_happen_is_absent_or_open_and_rates_are_zero() -> None:
    parts = turn_taking(context(**TWO_TURNS), None).sub_metrics
    assert (parts["agent_interruption.rate"], parts["user_interruption.rate"], parts["fallback_nudge.rate"]) == (
        0,
        0,
        0,
    )
    assert parts["agent_interruption.num_interruptions"] is None
    assert parts["fallback_nudge.count"] is None
    assert not [name for name in parts if "mean_" in name and name != "mean_latency_ms"]
    assert "pretoolspeech_rate" not in parts


def test_interruptions_are_averaged_without_fallback_turns_and_rated_with_them() -> None:
    interrupted = context(
        user={1: [(10.0, 12.0)], 2: [(20.0, 22.0)]},
        assistant={0: [(1.0, 5.0)], 1: [(11.5, 15.0)], 2: [(21.0, 23.0)]},
        assistant_interrupted=(1, 2), user_interrupted=(1,), fallbacks=(2,),
    )  # fmt: skip
    parts = turn_taking(interrupted, None).sub_metrics
    assert parts["agent_interruption.rate"] == 1.0
    assert (parts["agent_interruption.num_interruptions"], parts["agent_interruption.mean_overlap_ms"]) == (1.0, 500.0)
    assert parts["agent_interruption.mean_overlap_score"] == 0.375
    assert (parts["user_interruption.rate"], parts["user_interruption.mean_yield_ms"]) == (0.5, 0.0)
    assert (parts["fallback_nudge.count"], parts["fallback_nudge.rate"]) == (1.0, 0.3333)


def test_the_greeting_is_no_turn_but_its_fallback_counts() -> None:
    result = turn_taking(context(user={0: [(1.0, 2.0)]}, assistant={0: [(3.0, 4.0)]}, fallbacks=(0,)), None)
    assert result.details["per_turn_reason"] == {"0": "turn_end_fallback"}
    assert (result.score, result.sub_metrics) == (0.0, {})
    assert turn_taking(context(user={0: [(1.0, 2.0)]}, assistant={0: [(3.0, 4.0)]}), None).details["num_evaluated"] == 0


def test_without_turns_there_is_eva_s_zero_and_no_error() -> None:
    result = turn_taking(context(user={3: None}, assistant={}), None)
    assert (result.score, result.normalized_score, result.error, result.skipped) == (0.0, 0.0, None, False)
    assert (result.details["num_turns"], result.sub_metrics) == (3, {})


@pytest.mark.parametrize(
    ("reason", "assistant_end_s", "is_missed"),
    [("inactivity_timeout", 21.0, True), ("inactivity_timeout", 22.0, False), ("goodbye", 21.0, False)],
)
def test_a_call_that_idles_after_the_user_spoke_is_worth_nothing(
    reason: str, assistant_end_s: float, is_missed: bool
) -> None:
    call = context(
        user={1: [(10.0, 12.0)], 2: [(20.0, 22.0)]}, assistant={1: [(13.0, assistant_end_s)]}, ended_reason=reason
    )
    assert missed_turn(call) is is_missed
    assert last_speaker(call) == ("assistant" if assistant_end_s == 22.0 else "user")
    assert turn_taking(call, None).score == (0.0 if is_missed else 1.0)


def _history(*entries: tuple[ElementKind, object]) -> list[tuple[int, int, object]]:
    return [(place, kind, payload) for place, (kind, payload) in enumerate(entries)]


CALL, ANSWER = (ElementKind.TOOL_CALL, ToolUse("t", {})), (ElementKind.TOOL_RESPONSE, ToolUse("t", {}))
USER, SAID, SILENT = (
    (ElementKind.AUDIT_USER, "hi"),
    (ElementKind.AUDIT_ASSISTANT, "One moment."),
    (ElementKind.AUDIT_ASSISTANT, "  "),
)


@pytest.mark.parametrize(
    ("history", "rate"),
    [
        ([USER, SAID], None),
        ([USER, CALL, ANSWER], 0.0),
        ([USER, SAID, CALL, ANSWER, CALL, ANSWER], 1.0),
        ([USER, SILENT, CALL], 0.0),
        ([USER, CALL, (ElementKind.FALLBACK, None), ANSWER], 0.0),  # one group, whatever comes in between
        ([USER, SAID, CALL, SAID, CALL], 1.0),
        ([USER, CALL, SAID, CALL, USER, CALL], 0.3333),
        ([SAID, (ElementKind.TEXT_GROUP, "words"), CALL], 1.0),
    ],
)
def test_how_often_tools_were_announced(history: list[tuple[ElementKind, object]], rate: float | None) -> None:
    assert pre_tool_speech_rate(_history(*history)) == rate
