"""EVA's turn taking: the score of each turn and of the call."""

from typing import Any

import pytest

from consumers.engine.measures.eva_timing import (
    TurnReason,
    TurnTimes,
    last_speaker,
    latency_score,
    missed_turn,
    turn_score,
    turn_taking,
)
from consumers.engine.measures.eva_tools import pre_tool_speech_rate
from consumers.engine.turns.timeline import ElementKind, ToolPayload
from tests.support.calls.metric_contexts import context
from tests.support.known import some

TOOL = {"type": "tool_call", "turn_id": 2, "tool_name": "book", "parameters": {}}
TWO_TURNS: dict[str, Any] = {
    "user": {1: [(10.0, 12.0)], 2: [(20.0, 22.0)]},
    "assistant": {0: [(1.0, 5.0)], 1: [(13.0, 15.0)], 2: [(26.0, 28.0)]},
    "trace": [TOOL],
}


def test_the_score_is_the_mean_of_the_turns() -> None:
    result = turn_taking(context(**TWO_TURNS), None)
    # 1 at 1,000 ms, 0.5 at 4,000 ms with a tool
    assert result.score == result.normalized_score == 0.75
    assert result.details["per_turn_score"] == {"1": 1.0, "2": 0.5}
    assert result.details["per_turn_reason"] == {"1": "latency", "2": "latency"}
    assert (result.details["num_turns"], result.details["num_evaluated"]) == (2, 2)
    assert not result.details["missed_turn"]


def test_latencies_are_early_on_time_or_late_and_a_tool_allows_for_more() -> None:
    parts = turn_taking(context(**TWO_TURNS), 0.5).sub_metrics
    assert (parts["mean_latency_ms"], parts["p50_latency_ms"], parts["p90_latency_ms"]) == (
        2500.0,
        4000.0,
        4000.0,
    )
    assert (parts["early_rate"], parts["on_time_rate"], parts["late_rate"]) == (0.0, 0.5, 0.5)
    assert parts["pretoolspeech_rate"] == 0.5
    early = context(user={1: [(10.0, 12.0)]}, assistant={1: [(12.199, 15.0)]})
    assert turn_taking(early, None).sub_metrics["early_rate"] == 1.0


def test_what_the_model_wrote_is_told_beside_it() -> None:
    assert (
        turn_taking(
            context(**TWO_TURNS), None, mean_tokens={"mean_output_tokens": 12.5}
        ).sub_metrics["mean_output_tokens"]
        == 12.5
    )
    assert turn_taking(context(), None, mean_tokens={"mean_output_tokens": 12.5}).sub_metrics == {}


def test_what_did_not_happen_is_absent_or_open_and_rates_are_zero() -> None:
    parts = turn_taking(context(**TWO_TURNS), None).sub_metrics
    assert (
        parts["agent_interruption.rate"],
        parts["user_interruption.rate"],
        parts["fallback_nudge.rate"],
    ) == (
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
        assistant_interrupted=(1, 2),
        user_interrupted=(1,),
        fallbacks=(2,),
    )
    parts = turn_taking(interrupted, None).sub_metrics
    assert parts["agent_interruption.rate"] == 1.0
    assert (
        parts["agent_interruption.num_interruptions"],
        parts["agent_interruption.mean_overlap_ms"],
    ) == (1.0, 500.0)
    assert parts["agent_interruption.mean_overlap_score"] == 0.375
    assert (parts["user_interruption.rate"], parts["user_interruption.mean_yield_ms"]) == (0.5, 0.0)
    assert (parts["fallback_nudge.count"], parts["fallback_nudge.rate"]) == (1.0, 0.3333)


def test_the_greeting_is_no_turn_but_its_fallback_counts() -> None:
    result = turn_taking(
        context(user={0: [(1.0, 2.0)]}, assistant={0: [(3.0, 4.0)]}, fallbacks=(0,)), None
    )
    assert result.details["per_turn_reason"] == {"0": "turn_end_fallback"}
    assert (result.score, result.sub_metrics) == (0.0, {})
    assert (
        turn_taking(context(user={0: [(1.0, 2.0)]}, assistant={0: [(3.0, 4.0)]}), None).details[
            "num_evaluated"
        ]
        == 0
    )


def test_without_turns_there_is_eva_s_zero_and_no_error() -> None:
    result = turn_taking(context(user={3: None}, assistant={}), None)
    assert (result.score, result.normalized_score, result.error, result.skipped) == (
        0.0,
        0.0,
        None,
        False,
    )
    assert (result.details["num_turns"], result.sub_metrics) == (3, {})


@pytest.mark.parametrize(
    ("reason", "assistant_end_s", "is_missed"),
    [
        ("inactivity_timeout", 21.0, True),
        ("inactivity_timeout", 22.0, False),
        ("goodbye", 21.0, False),
    ],
)
def test_a_call_that_idles_after_the_user_spoke_is_worth_nothing(
    reason: str, assistant_end_s: float, is_missed: bool
) -> None:
    call = context(
        user={1: [(10.0, 12.0)], 2: [(20.0, 22.0)]},
        assistant={1: [(13.0, assistant_end_s)]},
        ended_reason=reason,
    )
    assert missed_turn(call) is is_missed
    assert last_speaker(call) == ("assistant" if assistant_end_s == 22.0 else "user")
    assert turn_taking(call, None).score == (0.0 if is_missed else 1.0)


def _history(*entries: tuple[ElementKind, object]) -> list[tuple[int, int, object]]:
    return [(place, kind, payload) for place, (kind, payload) in enumerate(entries)]


CALL, ANSWER = (
    (ElementKind.TOOL_CALL, ToolPayload("t", {})),
    (ElementKind.TOOL_RESPONSE, ToolPayload("t", {})),
)
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
        # one group, whatever comes in between
        ([USER, CALL, (ElementKind.FALLBACK, None), ANSWER], 0.0),
        ([USER, SAID, CALL, SAID, CALL], 1.0),
        ([USER, CALL, SAID, CALL, USER, CALL], 0.3333),
        ([SAID, (ElementKind.TEXT_GROUP, "words"), CALL], 1.0),
    ],
)
def test_how_often_tools_were_announced(
    history: list[tuple[ElementKind, object]], rate: float | None
) -> None:
    assert pre_tool_speech_rate(_history(*history)) == rate


CALLER = [(10.0, 12.0)]
REPLY = [(13.0, 15.0)]
PLAIN = TurnTimes(
    user=CALLER,
    assistant=REPLY,
    assistant_before_end_s=9.0,
    latency_s=1.0,
    has_tool_call=False,
    is_fallback=False,
    assistant_interrupted=False,
    user_interrupted=False,
)
OVER_USER = PLAIN._replace(assistant_interrupted=True)


@pytest.mark.parametrize(
    ("latency_ms", "plain", "with_tool"),
    [
        (-600, 0.0, 0.0),
        (-500, 0.0, 0.0),
        (0, 0.5, 0.5),
        (200, 0.7, 0.7),
        (500, 1.0, 1.0),
        (2000, 1.0, 1.0),
        (2750, 0.5, 1.0),
        (3000, 1 / 3, 1.0),
        (3500, 0.0, 0.75),
        (4000, 0.0, 0.5),
        (5000, 0.0, 0.0),
    ],
)
def test_the_latency_curve(latency_ms: float, plain: float, with_tool: float) -> None:
    assert latency_score(latency_ms, has_tool_call=False) == pytest.approx(plain)
    assert latency_score(latency_ms, has_tool_call=True) == pytest.approx(with_tool)


def test_an_ordinary_turn_is_worth_its_latency() -> None:
    score = some(turn_score(PLAIN._replace(latency_s=2.354169)))
    assert (score.score, score.reason) == (0.7639, TurnReason.LATENCY)
    assert score.evidence == {
        "has_tool_call": False,
        "latency_ms": 2354.169,
        "latency_score": 0.7639,
    }


def test_a_turn_with_a_fallback_is_worth_nothing_whatever_was_heard() -> None:
    for times in (
        PLAIN._replace(is_fallback=True),
        PLAIN._replace(user=(), latency_s=None, is_fallback=True),
    ):
        score = some(turn_score(times))
        assert (score.score, score.reason) == (0.0, TurnReason.TURN_END_FALLBACK)
        assert score.evidence == {"has_tool_call": False}


@pytest.mark.parametrize("missing", [{"user": ()}, {"assistant": ()}, {"latency_s": None}])
def test_a_turn_in_which_one_side_is_missing_has_no_score(missing: dict[str, Any]) -> None:
    assert turn_score(PLAIN._replace(**missing)) is None


def test_overlap_counts_every_pair_of_sounds() -> None:
    score = some(
        turn_score(OVER_USER._replace(user=[(10.0, 11.0), (11.5, 12.0)], assistant=[(10.5, 11.75)]))
    )
    assert score.evidence["overlap_ms"] == 750.0  # 500 with the one, 250 with the other
    assert score.evidence["overlap_score"] == 0.3125
    assert (score.score, score.reason) == (0.3125, TurnReason.AGENT_INTERRUPT)


@pytest.mark.parametrize(
    ("sounds", "by_count"), [(0, None), (1, 0.5), (2, 0.25), (3, 0.0), (4, 0.0)]
)
def test_every_sound_that_overlaps_costs(sounds: int, by_count: float | None) -> None:
    overlapping = [(10.1 + 0.2 * place, 10.15 + 0.2 * place) for place in range(sounds)]
    score = some(turn_score(OVER_USER._replace(assistant=[*overlapping, (20.0, 21.0)])))
    assert score.evidence["n_interrupt_segments"] == sounds
    assert score.evidence.get("interrupt_count_score") == by_count


def test_sounds_that_only_touch_are_no_interruption() -> None:
    score = some(turn_score(OVER_USER._replace(assistant=[(11.9995, 13.0)])))
    assert score.evidence["n_interrupt_segments"] == 0


def test_after_an_interruption_the_wait_for_the_real_answer_counts() -> None:
    score = some(
        turn_score(OVER_USER._replace(assistant=[(10.5, 10.6), (14.75, 16.0), (17.0, 18.0)]))
    )
    assert score.evidence["post_interrupt_latency_ms"] == 2750.0
    assert score.evidence["post_interrupt_latency_score"] == 0.5
    assert score.score == 0.475  # the overlap of 100 ms is the worst of the three


@pytest.mark.parametrize("assistant", [[(11.0, 13.0)], [(12.0, 13.0)], [(10.5, 10.6)]])
def test_who_speaks_on_or_never_again_is_not_waited_for(
    assistant: list[tuple[float, float]],
) -> None:
    score = some(turn_score(OVER_USER._replace(assistant=assistant)))
    assert "post_interrupt_latency_ms" not in score.evidence


def test_a_user_who_interrupts_is_to_be_yielded_to() -> None:
    times = PLAIN._replace(user_interrupted=True, assistant_before_end_s=10.5)
    score = some(turn_score(times))
    assert (score.score, score.reason) == (0.75, TurnReason.USER_INTERRUPT)
    assert score.evidence == {"has_tool_call": False, "yield_ms": 500.0, "yield_score": 0.75}
    already_silent = some(turn_score(times._replace(assistant_before_end_s=9.0)))
    assert (already_silent.score, already_silent.evidence["yield_ms"]) == (1.0, 0.0)


def test_without_an_answer_before_it_there_was_nothing_to_yield() -> None:
    score = some(turn_score(PLAIN._replace(user_interrupted=True, assistant_before_end_s=None)))
    assert (score.score, score.reason) == (1.0, TurnReason.LATENCY)


def test_of_both_interruptions_the_worse_counts() -> None:
    score = some(
        turn_score(
            OVER_USER._replace(
                user_interrupted=True, assistant_before_end_s=11.8, assistant=[(11.5, 13.0)]
            )
        )
    )
    assert (score.score, score.reason) == (0.1, TurnReason.DUAL_INTERRUPT)
    assert score.evidence["overlap_score"] == 0.375
