"""The values in rows of turns and of calls, one by one: each has the name of its field, and only
measured ones appear.
"""

from consumers.view.calls import ScorePart, part_of, parts_of
from schemas.closed_sets import Anchor, UnscoredReason
from schemas.rows import (
    Agreement,
    CallRow,
    EstimateError,
    Eva,
    FinalWaits,
    Goals,
    NotApplicable,
    Progress,
    Rating,
    SideTalk,
    StageLatency,
    TurnRow,
    TurnTaking,
    TurnTalk,
    Unscored,
    WordErrors,
)
from schemas.scores.latency_stages import Stage, StageSource
from tests.support.calls.console_calls import call_row, turn_row

NOT_KNOWN = Unscored(UnscoredReason.NO_USER_SPEECH)


def named(row: TurnRow | CallRow) -> dict[str, ScorePart]:
    parts = list(parts_of(row))
    by_name = {part.name: part for part in parts}
    assert len(by_name) == len(parts)
    return by_name


def test_a_turn_of_which_nothing_is_measured_has_no_value() -> None:
    assert named(turn_row()) == {}
    assert named(call_row()) == {}
    assert named(turn_row(wait_ms=NOT_KNOWN))["wait_ms"].value == NOT_KNOWN
    assert named(turn_row(0, wait_ms=NotApplicable("greeting"))) == {}


def test_each_value_of_a_turn_has_a_name_of_its_own() -> None:
    talk = TurnTalk(SideTalk(900.0, 4), SideTalk(NOT_KNOWN))
    stages = (StageLatency(Stage.TOOL_RUN, 1.0, StageSource.AUDIT),)
    parts = named(
        turn_row(
            wait_ms=900.0,
            anchor=Anchor.VAD,
            wait_source="pipecat",
            turn_taking=TurnTaking(0.5, anchor=Anchor.VAD),
            talk=talk,
            estimate_error=EstimateError(-850.0, 1_150.0, 2_000.0),
            conciseness=Rating(NOT_KNOWN, 1),
            stages=stages,
        )
    )
    assert parts["wait_ms"] == ScorePart(
        "wait_ms", 900.0, {"anchor": Anchor.VAD, "source": "pipecat"}
    )
    assert parts["turn_taking"].value == 0.5
    assert parts["turn_taking"].fields["anchor"] is Anchor.VAD
    assert parts["turn_taking"].meaning.startswith("How well a turn was timed")
    assert parts["estimate_error"].value == -850.0
    assert parts["estimate_error"].fields == {"estimated_ms": 1_150.0, "recorded_ms": 2_000.0}
    assert parts["conciseness"].value == NOT_KNOWN
    assert parts["talk"].value is None
    assert parts["talk"].fields["user"] == talk.user
    assert parts["stages"].fields == {"stages": stages}
    assert parts.keys() == {
        "wait_ms",
        "turn_taking",
        "talk",
        "estimate_error",
        "conciseness",
        "stages",
    }


def test_values_of_a_call_have_their_own_names() -> None:
    agreement = {Stage.TOOL_RUN: Agreement(1, 0)}
    goals = Goals("g", "d", tool_correctness=NOT_KNOWN)
    row = call_row(
        eva={"eva_x_mean": Eva(0.5, 0.5)},
        stages=agreement,
        goals=goals,
        stt_wer=WordErrors(0.25, turns=3),
        waits={Anchor.VAD: FinalWaits(1, 900.0, 0)},
        cost_dollars=0.5,
    )
    parts = named(row)
    assert parts["eva_x_mean"].value == 0.5
    assert parts["eva_x_mean"].fields["normalized"] == 0.5
    assert parts["tool_correctness"] == ScorePart("tool_correctness", NOT_KNOWN, {})
    assert parts["stages"].fields == {"stages": agreement}
    assert parts["stt_wer"].fields["turns"] == 3
    assert parts.keys() == {
        "eva_x_mean",
        "tool_correctness",
        "stages",
        "stt_wer",
        "waits",
        "cost_dollars",
    }


def test_the_fields_beside_a_value_are_those_of_its_struct() -> None:
    part = part_of("progress", Progress(0.5, 0.5, 0.5, 0.5, 0.0, 1, 0, 2))
    assert part.value == 0.5
    assert set(part.fields) == {
        "auc",
        "auc_if_ended_now",
        "ppt",
        "success",
        "reached",
        "missing",
        "subgoals",
    }
