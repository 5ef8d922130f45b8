"""EVA's curves for one turn: its latency, the assistant speaking over the user, and how soon it yields."""

from typing import Any

import pytest

from consumers.engine.measures.eva_timing import TurnReason, TurnTimes, latency_score, turn_score

USER = [(10.0, 12.0)]
ANSWER = [(13.0, 15.0)]
PLAIN = TurnTimes(
    user=USER, assistant=ANSWER, assistant_before_end_s=9.0, latency_s=1.0, has_tool_call=False, is_fallback=False,
    assistant_interrupted=False, user_interrupted=False,
)  # fmt: skip
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
    score = turn_score(PLAIN._replace(latency_s=2.354169))
    assert score is not None
    assert (score.score, score.reason) == (0.7639, TurnReason.LATENCY)
    assert score.evidence == {"has_tool_call": False, "latency_ms": 2354.169, "latency_score": 0.7639}


def test_a_turn_with_a_fallback_is_worth_nothing_whatever_was_heard() -> None:
    for times in (PLAIN._replace(is_fallback=True), PLAIN._replace(user=(), latency_s=None, is_fallback=True)):
        score = turn_score(times)
        assert score is not None
        assert (score.score, score.reason) == (0.0, TurnReason.TURN_END_FALLBACK)
        assert score.evidence == {"has_tool_call": False}


@pytest.mark.parametrize("missing", [{"user": ()}, {"assistant": ()}, {"latency_s": None}])
def test_a_turn_in_which_one_side_is_missing_has_no_score(missing: dict[str, Any]) -> None:
    assert turn_score(PLAIN._replace(**missing)) is None


def test_overlap_counts_every_pair_of_sounds() -> None:
    score = turn_score(OVER_USER._replace(user=[(10.0, 11.0), (11.5, 12.0)], assistant=[(10.5, 11.75)]))
    assert score is not None
    assert score.evidence["overlap_ms"] == 750.0  # 500 with the one, 250 with the other
    assert score.evidence["overlap_score"] == 0.3125
    assert (score.score, score.reason) == (0.3125, TurnReason.AGENT_INTERRUPT)


@pytest.mark.parametrize(("sounds", "by_count"), [(0, None), (1, 0.5), (2, 0.25), (3, 0.0), (4, 0.0)])
def test_every_sound_that_overlaps_costs(sounds: int, by_count: float | None) -> None:
    overlapping = [(10.1 + 0.2 * place, 10.15 + 0.2 * place) for place in range(sounds)]
    score = turn_score(OVER_USER._replace(assistant=[*overlapping, (20.0, 21.0)]))
    assert score is not None
    assert score.evidence["n_interrupt_segments"] == sounds
    assert score.evidence.get("interrupt_count_score") == by_count


def test_sounds_that_only_touch_are_no_interruption() -> None:
    score = turn_score(OVER_USER._replace(assistant=[(11.9995, 13.0)]))
    assert score is not None
    assert score.evidence["n_interrupt_segments"] == 0


def test_after_an_interruption_the_wait_for_the_real_answer_counts() -> None:
    score = turn_score(OVER_USER._replace(assistant=[(10.5, 10.6), (14.75, 16.0), (17.0, 18.0)]))
    assert score is not None
    assert score.evidence["post_interrupt_latency_ms"] == 2750.0
    assert score.evidence["post_interrupt_latency_score"] == 0.5
    assert score.score == 0.475  # the overlap of 100 ms is the worst of the three


@pytest.mark.parametrize("assistant", [[(11.0, 13.0)], [(12.0, 13.0)], [(10.5, 10.6)]])
def test_who_speaks_on_or_never_again_is_not_waited_for(assistant: list[tuple[float, float]]) -> None:
    score = turn_score(OVER_USER._replace(assistant=assistant))
    assert score is not None
    assert "post_interrupt_latency_ms" not in score.evidence


def test_a_user_who_interrupts_is_to_be_yielded_to() -> None:
    times = PLAIN._replace(user_interrupted=True, assistant_before_end_s=10.5)
    score = turn_score(times)
    assert score is not None
    assert (score.score, score.reason) == (0.75, TurnReason.USER_INTERRUPT)
    assert score.evidence == {"has_tool_call": False, "yield_ms": 500.0, "yield_score": 0.75}
    already_silent = turn_score(times._replace(assistant_before_end_s=9.0))
    assert already_silent is not None
    assert (already_silent.score, already_silent.evidence["yield_ms"]) == (1.0, 0.0)


def test_without_an_answer_before_it_there_was_nothing_to_yield() -> None:
    score = turn_score(PLAIN._replace(user_interrupted=True, assistant_before_end_s=None))
    assert score is not None
    assert (score.score, score.reason) == (1.0, TurnReason.LATENCY)


def test_of_both_interruptions_the_worse_counts() -> None:
    score = turn_score(OVER_USER._replace(user_interrupted=True, assistant_before_end_s=11.8, assistant=[(11.5, 13.0)]))
    assert score is not None
    assert (score.score, score.reason) == (0.1, TurnReason.DUAL_INTERRUPT)
    assert score.evidence["overlap_score"] == 0.375
