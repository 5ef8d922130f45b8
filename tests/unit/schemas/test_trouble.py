"""What is wrong with a call now: each kind of trouble from its row, its reason in words, and the
order of the kinds.
"""

from pathlib import Path
from typing import Any

import pytest
import yaml

from schemas.rows import CallRow, Errors
from schemas.scores.latency_stages import ServiceKind, Stage
from schemas.scores.trouble import (
    ERROR_MS,
    FRESH_MS,
    RECENT_TURNS,
    SLOW_MS,
    VERY_SLOW_MS,
    TroubleKind,
    bad_end,
    troubles_of,
)
from tests.support.calls.made_rows import (
    NOW_MS,
    THRESHOLD_MS,
    answer,
    call_row,
    closed_row,
    goals,
    waiting,
)

SLO = Path(__file__).parents[3] / "deploy" / "slo.yaml"


def reasons(later_ms: int = 0, **parts: Any) -> list[str]:
    return [each.reason for each in troubles_of(call_row(**parts), NOW_MS + later_ms)]


def test_the_figures_are_those_of_the_objectives() -> None:
    objectives = {each["name"]: each for each in yaml.safe_load(SLO.read_text())["objectives"]}
    assert float(objectives["response-latency"]["limit"]) * 1_000 == SLOW_MS
    assert "p95 below 3.5 s" in objectives["response-latency"]["source"]
    assert VERY_SLOW_MS == 3_500
    assert float(objectives["scoring-freshness"]["limit"]) * 1_000 == FRESH_MS


def test_a_healthy_call_has_no_trouble() -> None:
    assert reasons() == []
    assert reasons(turn=2, answer=answer(1, SLOW_MS), tool_calls=1, interrupted_turns=(1, 2)) == []


def test_a_caller_who_waits_in_silence() -> None:
    assert reasons(3_400, turn=2, answer=answer(1, 900), waiting=waiting(2)) == ["silent for 6 s"]
    assert reasons(turn=2, dead_airs=1, dead_air_turns=(2,), waiting=waiting(2)) == [
        "silent for 3 s"
    ], "said once"


def test_an_agent_that_does_not_answer_although_the_caller_asks_again_is_mute() -> None:
    assert reasons(11_000, turn=1, waiting=waiting(1, 2)) == ["agent mute for 14 s"]


@pytest.mark.parametrize(
    ("wait_ms", "kind", "reason"),
    [
        (SLOW_MS + 1, TroubleKind.SLOW, "turn 3 slow: 1.501 s, model 1.0 s"),
        (VERY_SLOW_MS, TroubleKind.SLOW, "turn 3 slow: 3.5 s"),
        (VERY_SLOW_MS + 1, TroubleKind.VERY_SLOW, "turn 3 slow: 3.5 s"),
    ],
)
def test_the_newest_answer_is_slow(wait_ms: float, kind: TroubleKind, reason: str) -> None:
    slow = answer(3, wait_ms, slowest_stage=Stage.LLM_FIRST_TOKEN, slowest_stage_ms=1_000)
    (found,) = troubles_of(call_row(turn=3, answer=slow), NOW_MS)
    assert (found.kind, found.reason) == (kind, reason)


def errors(number: int, component: ServiceKind | None = ServiceKind.LLM) -> Errors:
    return Errors(number, 0, NOW_MS, component)


def test_an_error_of_the_agent_is_trouble_for_a_minute() -> None:
    assert reasons(errors=errors(1)) == ["agent error: LLM"]
    assert reasons(errors=errors(4)) == ["4 agent errors: LLM"]
    assert reasons(errors=errors(1, None)) == ["agent error"]
    assert reasons(ERROR_MS, errors=errors(1)) != []
    assert reasons(ERROR_MS + 1, errors=errors(1)) == []


def test_a_tool_fails_until_it_works_again() -> None:
    assert reasons(failing_tools={"payment": 1}) == ["payment fails"]
    assert reasons(failing_tools={"payment": 2}) == ["payment fails twice"]
    assert reasons(failing_tools={"payment": 3}) == ["payment fails 3 times"]


def test_a_call_is_stalled() -> None:
    assert reasons(turn=5, goals=goals(1, since_turn=1)) == ["stalled for 4 turns"]
    assert reasons(turn=1, goals=goals(1, since_turn=1)) == ["stalled"]


def test_interruptions_are_trouble_when_there_are_many_of_late() -> None:
    assert reasons(turn=4, interrupted_turns=(2, 4)) == []
    assert reasons(turn=4, interrupted_turns=(2, 4, 4)) == ["third interruption"]
    assert reasons(turn=8, interrupted_turns=(2, 4, 4, 5, 6, 7, 8)) == ["7 interruptions"]
    assert reasons(turn=2 + RECENT_TURNS, interrupted_turns=(2, 4, 4)) == []


def test_dead_air_that_was_answered_is_trouble_for_some_turns() -> None:
    assert reasons(turn=1, dead_air_turns=(1,), answer=answer(1, 1_000)) == ["dead air in turn 1"]
    assert (
        reasons(turn=1 + RECENT_TURNS, dead_air_turns=(1,), answer=answer(1 + RECENT_TURNS, 900))
        == []
    )
    assert reasons(turn=1, dead_air_turns=(1,), answer=answer(1, 5_000)) == [
        "turn 1 slow: 5.0 s"
    ], "said once"
    assert reasons(turn=2, dead_air_turns=(1,), answer=answer(2, 5_000)) == ["turn 2 slow: 5.0 s"]


@pytest.mark.parametrize("state", ["over", "closed"])
def test_a_call_that_is_over_has_no_trouble_and_may_have_ended_badly(state: str) -> None:
    assert reasons(state=state, turn=1, waiting=waiting(1), errors=errors(1)) == []
    hung_up = call_row(state=state, answer=answer(1, 900), waiting=waiting(2))
    assert bad_end(hung_up) == "hung up unanswered, turn 2"
    assert bad_end(call_row(state=state, waiting=waiting(2), unanswered=2)) == "never answered"
    assert (
        bad_end(call_row(state=state, turns=3, waiting=waiting(3))) == "hung up unanswered, turn 3"
    )
    assert bad_end(call_row(state=state, waiting=waiting(0))) == "never answered"
    assert bad_end(call_row(state=state, errors=errors(1))) == "failed: agent error: LLM"
    assert bad_end(call_row(state=state, errors=errors(3, None))) == "failed: agent error"
    assert bad_end(call_row(state=state, known_ms=NOW_MS + ERROR_MS + 1, errors=errors(1))) is None
    assert bad_end(call_row(state="running", waiting=waiting(2), errors=errors(1))) is None
    assert bad_end(closed_row()) is None


def rank_of(call: CallRow, later_ms: int = 0) -> float:
    return troubles_of(call, NOW_MS + later_ms)[0].rank


def test_the_worst_trouble_has_the_highest_rank() -> None:
    worst_first: list[dict[str, Any]] = [
        {"waiting": waiting(1, 2)},
        {"waiting": waiting(1)},
        {"errors": errors(1)},
        {"answer": answer(1, 60_000)},
        {"answer": answer(1, 4_000)},
        {"failing_tools": {"payment": 8}},
        {"failing_tools": {"payment": 1}},
        {"turn": 9, "goals": goals(1, since_turn=1)},
        {"answer": answer(1, 3_000)},
        {"answer": answer(1, 1_600)},
        {"turn": 4, "interrupted_turns": (1, 2, 3, 4)},
        {"turn": 1, "dead_air_turns": (1,), "answer": answer(1, 1_000)},
    ]
    ranks = [rank_of(call_row(**{"turn": 1} | parts)) for parts in worst_first]
    assert ranks == sorted(ranks, reverse=True)
    assert len(set(ranks)) == len(ranks)
    silent = call_row(turn=1, waiting=waiting(1))
    assert rank_of(silent, 60_000) > rank_of(silent, 5_000), "the longer, the worse"


def test_several_troubles_are_told_the_worst_first() -> None:
    parts: dict[str, Any] = {
        "turn": 2,
        "answer": answer(1, 2_000),
        "failing_tools": {"payment": 1},
        "waiting": waiting(2),
    }
    assert THRESHOLD_MS == 3_000
    assert reasons(**parts) == ["silent for 3 s", "payment fails", "turn 1 slow: 2.0 s"]
