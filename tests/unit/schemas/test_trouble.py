"""What is wrong with a call now: each kind of trouble from its records, its reason in words, and the order of the kinds."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from schemas.closed_sets import ToolOutcome
from schemas.scores.latency_stages import ServiceKind, Stage, StageSource
from schemas.scores.live_view import CallView, Wait
from schemas.scores.records import AgentErrorsFact, AnyScoreRecord, CallValues, DeadAirFact, StageLatency, ToolUseFact
from schemas.scores.trouble import ERROR_MS, FRESH_MS, RECENT_TURNS, SLOW_MS, VERY_SLOW_MS, TroubleKind, troubles_of
from tests.unit.exporter.test_projection import CAUSED_AT_MS, FIRST, latency, row
from tests.unit.schemas.test_live_view import closed, interruption, judged, stall, started, view_of

SLO = Path(__file__).parents[3] / "deploy" / "slo.yaml"
THRESHOLD_MS = 3_000


def dead_air(turn: int, index: int = 0, **fields: Any) -> AnyScoreRecord:
    silence = {"turn": turn, "index": index, "silent_since_ms": 0, "threshold_ms": THRESHOLD_MS}
    return DeadAirFact(**FIRST | silence | fields)


def tool(turn: int, index: int = 0, *, name: str = "payment", fails: bool = False) -> AnyScoreRecord:
    outcome = ToolOutcome.ERROR if fails else ToolOutcome.SUCCESS
    return ToolUseFact(**FIRST | {"turn": turn, "index": index, "tool": name, "outcome": outcome, "duration_ms": 5})


def left(turn: int, **stages: float) -> AnyScoreRecord:
    measured = [
        StageLatency(stage=Stage(name), latency_ms=latency_ms, source=StageSource.PIPECAT)
        for name, latency_ms in stages.items()
    ]
    return row(turn=turn, stages=tuple(measured))


def reasons(*records: AnyScoreRecord, later_ms: int = 0) -> list[str]:
    return [each.reason for each in troubles_of(view_of(started(), *records), CAUSED_AT_MS + later_ms)]


def test_the_figures_are_those_of_the_objectives() -> None:
    objectives = {each["name"]: each for each in yaml.safe_load(SLO.read_text())["objectives"]}
    assert float(objectives["response-latency"]["limit"]) * 1_000 == SLOW_MS
    assert "p95 below 3.5 s" in objectives["response-latency"]["source"]
    assert VERY_SLOW_MS == 3_500
    assert float(objectives["scoring-freshness"]["limit"]) * 1_000 == FRESH_MS


def test_a_healthy_call_has_no_trouble() -> None:
    assert reasons() == []
    assert reasons(latency(SLOW_MS, turn=1), left(1), tool(1), interruption(1), interruption(2, "assistant")) == []


def test_a_caller_who_waits_in_silence() -> None:
    assert reasons(latency(900, turn=1), dead_air(2), later_ms=3_400) == ["silent for 6 s"]
    assert view_of(started(), dead_air(2)).wait == Wait(2, CAUSED_AT_MS - THRESHOLD_MS, 1)


def test_the_wait_is_over_when_the_turn_is_answered_or_left() -> None:
    answered = latency(4_000, turn=2, caused_at_ms=CAUSED_AT_MS + 1)
    assert view_of(started(), dead_air(2), answered).wait is None
    assert view_of(started(), answered, dead_air(2)).wait is None, "in any order"
    assert view_of(started(), dead_air(2), interruption(3)).wait is None
    before = latency(900, turn=2, caused_at_ms=CAUSED_AT_MS - 1)
    assert view_of(started(), before, dead_air(2)).wait is not None, "that answer came before the silence"
    late = latency(900, turn=1, caused_at_ms=CAUSED_AT_MS + 1)
    assert view_of(started(), late, dead_air(2)).wait is not None, "that answer is another turn's"


def test_an_agent_that_does_not_answer_although_the_caller_asks_again_is_mute() -> None:
    again = dead_air(1, 1, caused_at_ms=CAUSED_AT_MS + 8_000)
    assert reasons(dead_air(1), again, later_ms=11_000) == ["agent mute for 14 s"]


@pytest.mark.parametrize(
    ("latency_ms", "kind", "reason"),
    [
        (SLOW_MS + 1, TroubleKind.SLOW, "turn 3 slow: 1.5 s, model 1.0 s"),
        (VERY_SLOW_MS, TroubleKind.SLOW, "turn 3 slow: 3.5 s"),
        (VERY_SLOW_MS + 1, TroubleKind.VERY_SLOW, "turn 3 slow: 3.5 s"),
    ],
)
def test_the_newest_answer_is_slow(latency_ms: float, kind: TroubleKind, reason: str) -> None:
    slow = view_of(started(), latency(latency_ms, turn=3), left(3, llm_first_token=1_000, voice_to_voice=9_000))
    (found,) = troubles_of(slow, CAUSED_AT_MS)
    assert (found.kind, found.reason) == (kind, reason)
    assert reasons(latency(latency_ms, turn=3), latency(700, turn=4)) == []


def errors(count: int, revision: int = 1, component: ServiceKind | None = ServiceKind.LLM) -> AnyScoreRecord:
    return AgentErrorsFact(**FIRST | {"revision": revision, "errors": count, "last_ms": 0, "component": component})


def test_an_error_of_the_agent_is_trouble_for_a_minute() -> None:
    assert reasons(errors(1)) == ["agent error: LLM"]
    assert reasons(errors(4, 3), errors(1, component=None), errors(2, 2)) == ["4 agent errors: LLM"]
    assert reasons(errors(1, component=None)) == ["agent error"]
    assert reasons(errors(1), later_ms=ERROR_MS) != []
    assert reasons(errors(1), later_ms=ERROR_MS + 1) == []


def test_a_tool_fails_until_it_works_again() -> None:
    assert reasons(tool(1, fails=True)) == ["payment fails"]
    assert reasons(tool(1, fails=True), tool(1, 1, fails=True)) == ["payment fails twice"]
    assert reasons(*(tool(turn, fails=True) for turn in (1, 2, 3))) == ["payment fails 3 times"]
    assert reasons(tool(1, fails=True), tool(2)) == []
    assert reasons(tool(1, fails=True), tool(2, name="search")) == ["payment fails"]


def test_a_call_is_stalled() -> None:
    assert reasons(judged(1, 1), judged(5, 1), stall(1)) == ["stalled for 4 turns"]
    assert reasons(judged(1, 1), stall(1)) == ["stalled"]


def test_interruptions_are_trouble_when_there_are_many_of_late() -> None:
    cut = [interruption(2), interruption(4), interruption(4, "assistant")]
    assert reasons(*cut[:2]) == []
    assert reasons(*cut) == ["third interruption"]
    assert reasons(*cut, *(interruption(turn) for turn in (5, 6, 7, 8))) == ["7 interruptions"]
    assert reasons(*cut, latency(900, turn=2 + RECENT_TURNS)) == []


def test_dead_air_that_was_answered_is_trouble_for_some_turns() -> None:
    answered = latency(1_000, turn=1, caused_at_ms=CAUSED_AT_MS + 1)
    assert reasons(dead_air(1), answered) == ["dead air in turn 1"]
    assert reasons(dead_air(1), answered, latency(900, turn=1 + RECENT_TURNS)) == []
    slow = latency(5_000, turn=1, caused_at_ms=CAUSED_AT_MS + 1)
    assert reasons(dead_air(1), slow) == ["turn 1 slow: 5.0 s"], "one trouble, said once"


def test_a_call_that_is_over_has_no_trouble() -> None:
    over = CallValues(through_turn=1, is_over=True, **FIRST)
    assert reasons(dead_air(1), over) == reasons(dead_air(1), closed()) == []
    assert view_of(started(), over).is_over
    assert not view_of(started()).is_over


def rank_of(call: CallView, later_ms: int = 0) -> float:
    return troubles_of(call, CAUSED_AT_MS + later_ms)[0].rank


def test_the_worst_trouble_has_the_highest_rank() -> None:
    worst_first = [
        (dead_air(1), dead_air(1, 1)),
        (dead_air(1),),
        (errors(1),),
        (latency(60_000, turn=1),),
        (latency(4_000, turn=1),),
        tuple(tool(turn, fails=True) for turn in range(1, 9)),
        (tool(1, fails=True),),
        (judged(1, 1), judged(9, 1), stall(1)),
        (latency(3_000, turn=1),),
        (latency(1_600, turn=1),),
        tuple(interruption(turn) for turn in (1, 2, 3, 4)),
        (dead_air(1), latency(1_000, turn=1, caused_at_ms=CAUSED_AT_MS + 1)),
    ]
    ranks = [rank_of(view_of(started(), *records)) for records in worst_first]
    assert ranks == sorted(ranks, reverse=True)
    assert len(set(ranks)) == len(ranks)
    silent = view_of(started(), dead_air(1))
    assert rank_of(silent, 60_000) > rank_of(silent, 5_000), "the longer, the worse"


def test_several_troubles_are_told_the_worst_first() -> None:
    assert reasons(latency(2_000, turn=1), tool(1, fails=True), dead_air(2)) == [
        "silent for 3 s",
        "payment fails",
        "turn 1 slow: 2.0 s",
    ]
