"""The figures of a call say whether they are good by the objectives, and what stands out names every fault."""

from typing import Any

import pytest

from consumers.console.page.calls import HeardCall, ReportedCall
from consumers.console.page.sections import Tile, Verdict, standouts, tiles
from schemas.closed_sets import Anchor
from schemas.scores.records import (
    AgentErrorsFact,
    AnyScoreRecord,
    InterruptionFact,
    NotApplicable,
    ProgressScore,
    Scored,
    ToolUseFact,
    TurnOutcome,
)
from tests.support.calls.report_calls import Marks, goal_set, recorded, reported
from tests.unit.exporter.test_projection import call as call_record
from tests.unit.exporter.test_projection import eva, progress, row

GOOD, FAIR, BAD = Verdict.GOOD, Verdict.FAIR, Verdict.BAD
SILENT = HeardCall(0.0, 1_000.0, (), (), ())


def of(*records: AnyScoreRecord) -> ReportedCall:
    return ReportedCall("c", SILENT, records, "c1", Marks("\x00"))


def tile(name: str, *records: AnyScoreRecord) -> Tile:
    (found,) = [each for each in tiles(of(*records)) if each.name == name]
    return found


def waited(turn: int, wait_ms: float) -> AnyScoreRecord:
    return row(turn=turn, voice_to_voice_ms=Scored(value=wait_ms), anchor=Anchor.AUDIO)


def common(**more: Any) -> dict[str, Any]:
    return {**row().model_dump(exclude={"name", "kind", "record_id", "index"}), **more}


@pytest.mark.parametrize(
    ("wait_ms", "judged"),
    [
        (1_500, (GOOD, "within 1.50 s")),
        (1_501, (FAIR, "over 1.50 s")),
        (3_500, (FAIR, "over 1.50 s")),
        (3_501, (BAD, "over 3.50 s")),
    ],
)
def test_a_wait_is_judged_by_the_objective_and_by_what_is_usual(wait_ms: float, judged: tuple[Verdict, str]) -> None:
    for name in ("Median wait", "Longest wait"):
        assert tile(name, waited(1, wait_ms)).judged == judged
    assert tile("Median wait", waited(1, wait_ms), waited(2, 1_500)).more == (
        f"{1 + (wait_ms <= 1_500)} of 2 turns within 1.50 s"
    )


def test_an_unknown_figure_is_not_judged() -> None:
    nothing = list(tiles(of()))
    assert [each.name for each in nothing if each.judged] == ["Interruptions"]
    assert tile("Dead air").value == "not known"
    assert tile("Longest wait").value == "not known"


def test_interruptions_are_judged_by_who_did_it_and_how_often() -> None:
    def by(*names: str) -> Tile:
        facts = (InterruptionFact(**common(name=f"interruption_by_{who}", turn=turn)) for turn, who in enumerate(names))
        return tile("Interruptions", *facts)

    assert by().judged == (GOOD, "none")
    assert by("user", "user", "user", "user").judged is None
    assert by("assistant", "user").judged == (FAIR, "the assistant spoke over the user")
    assert by("assistant", "assistant", "assistant").judged == (BAD, "the assistant again and again")


@pytest.mark.parametrize(
    ("outcomes", "judged"),
    [
        ([], None),
        (["success"], (GOOD, "all with success")),
        (["success", "error", "unanswered"], (BAD, "2 without success")),
    ],
)
def test_tools_are_judged_by_their_success(outcomes: list[str], judged: tuple[Verdict, str] | None) -> None:
    uses = [
        ToolUseFact(**common(tool="t", outcome=outcome, duration_ms=1, index=index))
        for index, outcome in enumerate(outcomes)
    ]
    assert tile("Tools", *uses).judged == judged


def test_progress_is_judged_when_it_is_complete_or_the_call_is_over() -> None:
    call = reported(recorded(turns=8), goal_set())
    (closed,) = [each for each in tiles(call) if each.name == "Progress"]
    assert closed[:4] == ("Progress", "50 %", "1 of 2 subgoals", (BAD, "not every subgoal reached"))
    open_records = [each for each in call.records if each.name not in ("closed", "stall")]
    assert tile("Progress", *open_records).judged is None
    assert tile("Progress", *open_records, *(each for each in call.records if each.name == "stall")).judged == (
        FAIR,
        "stalled",
    )
    done = progress(Scored(value=1))
    reached = ProgressScore(**dict(done) | {"reached": done.subgoals})
    assert tile("Progress", *open_records, reached.model_copy(update={"turn": 99})).judged == (
        GOOD,
        "every subgoal reached",
    )


def test_turn_taking_and_task_are_judged_as_eva_does() -> None:
    for value, judged in ((0.8, (GOOD, "EVA passes from 0.8")), (0.79, (BAD, "below EVA's 0.8"))):
        assert tile("Turn taking", eva("eva_turn_taking", Scored(value=value), value)).judged == judged
    for value, told in ((1, ("done", (GOOD, "as expected"))), (0, ("not done", (BAD, "not as expected")))):
        found = tile("Task", eva("eva_task_completion", Scored(value=value), value))
        assert (found.value, found.judged) == told
    unknown = NotApplicable(reason="nobody says")
    assert not [each for each in tiles(of(eva("eva_task_completion", unknown, None))) if each.name == "Task"]


def test_a_failed_task_and_a_failed_authentication_stand_out() -> None:
    for name, heading in (
        ("eva_task_completion", "Task not completed"),
        ("eva_authentication_success", "Authentication failed"),
    ):
        (found,) = standouts(of(eva(name, Scored(value=0), 0)))
        assert (found.heading, found.is_fault, [each.turn for each in found.moments]) == (heading, True, [None])
        assert standouts(of(eva(name, Scored(value=1), 1))) == []
        assert standouts(of(eva(name, NotApplicable(reason="no"), None))) == []
    assert standouts(of(call_record())) == []


def test_turns_without_an_answer_and_errors_of_the_agent_stand_out() -> None:
    silent = row(turn=3, voice_to_voice_ms=NotApplicable(reason="no"), outcome=TurnOutcome.FAILED)
    answered = row(turn=4, voice_to_voice_ms=NotApplicable(reason="no"), outcome=TurnOutcome.ANSWERED)
    errors = AgentErrorsFact(**common(turn=None, errors=3, last_ms=1, component="LLM"))
    found = [
        (each.heading, each.moments[0].turn, each.moments[0].text) for each in standouts(of(silent, answered, errors))
    ]
    assert found == [
        ("Turns without an answer", 3, "the agent reported an error"),
        ("Errors of the agent", None, "3 errors, the newest of its LLM"),
    ]


def test_every_wait_beyond_the_objective_stands_out() -> None:
    (found,) = standouts(of(waited(1, 1_500), waited(2, 1_501), waited(3, 9_000)))
    assert found.heading == "Waits over 1.50 s, the objective"
    assert [(each.turn, each.text) for each in found.moments] == [(3, "9.00 s"), (2, "1.50 s")]
