"""The figures of a call say whether they are good by the objectives, and what stands out names
every fault.
"""

from typing import Any

import pytest
from msgspec import structs

from consumers.view.calls import ReportedCall
from consumers.view.contents import (
    FigureGrade,
    NoAnswer,
    Tile,
    no_answer,
    standouts,
    summary,
    tiles,
    turn_to_look_at,
    verdict,
    waits_now,
)
from schemas.closed_sets import Anchor, Speaker, ToolOutcome, UnscoredReason
from schemas.rows import (
    Answer,
    CallRow,
    Errors,
    Eva,
    Goals,
    GoalsRow,
    Labels,
    NotApplicable,
    Progress,
    Silence,
    Stall,
    SubgoalResult,
    ToolUse,
    TurnRow,
    Unscored,
    Waiting,
)
from schemas.scores.latency_stages import ServiceKind
from tests.support.calls.console_calls import AT_MS, call_row, reported_rows, sounds, turn_row
from tests.support.calls.report_calls import goal_set

GOOD, FAIR, BAD = FigureGrade.GOOD, FigureGrade.FAIR, FigureGrade.BAD
SILENCE = Silence(1, AT_MS + 2_000, AT_MS + 5_000, 3_000)
UNKNOWN = Unscored(UnscoredReason.NO_USER_SPEECH)


def tile(
    name: str, call: CallRow | None = None, *turns: TurnRow, goals: GoalsRow | None = None
) -> Tile:
    (found,) = [
        each for each in tiles(reported_rows(call, *turns, goals=goals)) if each.name == name
    ]
    return found


def waited(turn: int, wait_ms: float, anchor: Anchor = Anchor.AUDIO) -> TurnRow:
    return turn_row(turn, wait_ms=wait_ms, anchor=anchor)


@pytest.mark.parametrize(
    ("wait_ms", "judged"),
    [
        (1_500.0, (GOOD, "within 1.50 s")),
        (1_501.0, (FAIR, "over 1.50 s")),
        (3_500.0, (FAIR, "over 1.50 s")),
        (3_501.0, (BAD, "over 3.50 s")),
    ],
)
def test_a_wait_is_judged_by_the_objective_and_by_what_is_usual(
    wait_ms: float, judged: tuple[FigureGrade, str]
) -> None:
    call = call_row(p50_ms=wait_ms, longest_wait_ms=wait_ms)
    for name in ("Median wait", "Longest wait"):
        assert tile(name, call, waited(1, wait_ms)).judged == judged
    assert tile("Median wait", call, waited(1, wait_ms), waited(2, 1_500.0)).more == (
        f"{1 + (wait_ms <= 1_500)} of 2 turns within 1.50 s"
    )


def test_an_unknown_figure_is_not_judged() -> None:
    nothing = list(tiles(reported_rows()))
    assert [each.name for each in nothing if each.judged] == ["Interruptions"]
    assert tile("Dead air").value == "not known"
    assert tile("Longest wait").value == "not known"


def test_a_median_says_how_its_waits_are_known_and_how_many_can_still_change() -> None:
    settled = turn_row(2, wait_ms=900.0, anchor=Anchor.AUDIO, status="settled")
    median = tile("Median wait", call_row(p50_ms=900.0), waited(1, 900.0, Anchor.VAD), settled)
    assert (
        "End of the caller's speech",
        "by voice detector (1 turn), heard on the line (1 turn)",
    ) in median.why
    assert ("Status", "1 provisional, 1 settled") in median.why


def test_the_longest_wait_says_its_anchor_and_its_status() -> None:
    longest = tile("Longest wait", None, waited(1, 900.0, Anchor.VAD), waited(2, 300.0))
    assert longest.more == "turn 1"
    assert longest.why[:2] == (
        ("End of the caller's speech", "by voice detector"),
        ("Status", "provisional: late events can change it"),
    )
    final = tile("Longest wait", call_row(state="closed"), waited(1, 900.0, Anchor.VAD))
    assert final.why[1] == ("Status", "final: the call is over")


def test_a_long_wait_names_the_tool_that_took_most_of_it() -> None:
    def said(run_ms: int) -> str:
        use = ToolUse(0, "find_outage", ToolOutcome.SUCCESS, run_ms, 1)
        turn = turn_row(1, wait_ms=8_000.0, anchor=Anchor.VAD, tools=(use,))
        return verdict(reported_rows(call_row(state="closed", turn=1), turn))

    assert "the longest 8.00 s (find_outage 6.71 s) in turn 1" in said(6_710)
    for other_ms in (3_000, 9_000):  # the lesser part, or a run that went on behind the answer
        assert "the longest 8.00 s in turn 1" in said(other_ms)


def test_interruptions_are_judged_by_who_did_it_and_how_often() -> None:
    def by(user: int, assistant: int) -> Tile:
        return tile(
            "Interruptions", call_row(user_interruptions=user, assistant_interruptions=assistant)
        )

    assert by(0, 0).judged == (GOOD, "none")
    assert by(4, 0).judged is None
    assert by(1, 1).judged == (FAIR, "the agent spoke over the caller")
    assert by(0, 3).judged == (BAD, "the agent again and again")


@pytest.mark.parametrize(
    ("outcomes", "judged"),
    [
        ([], None),
        ([ToolOutcome.SUCCESS], (GOOD, "all with success")),
        (
            [ToolOutcome.SUCCESS, ToolOutcome.ERROR, ToolOutcome.UNANSWERED],
            (BAD, "2 without success"),
        ),
    ],
)
def test_tools_are_judged_by_their_success(
    outcomes: list[ToolOutcome], judged: tuple[FigureGrade, str] | None
) -> None:
    uses = tuple(ToolUse(index, "t", outcome, 1) for index, outcome in enumerate(outcomes))
    failed = sum(each is not ToolOutcome.SUCCESS for each in outcomes)
    call = call_row(tool_calls=len(uses), failed_tool_calls=failed)
    found = tile("Tools", call, turn_row(tools=uses))
    assert found.judged == judged
    assert found.why == (
        (("Outcomes", ", ".join(f"1 {each}" for each in outcomes)),) if outcomes else ()
    )


def with_progress(reached: int, *, state: str = "running", is_stalled: bool = False) -> CallRow:
    score = Progress(reached / 2, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, reached=reached, subgoals=2)
    subgoals = tuple(
        SubgoalResult(float(place < reached), 1 if place < reached else None) for place in range(2)
    )
    stalls = (Stall(1, "turns"),) if is_stalled else ()
    goals = Goals(
        "g", "d", subgoals, judged_turn=3, progress=score, stalls=stalls, is_stalled=is_stalled
    )
    return call_row(goals=goals, state=state, turn=3)


def test_progress_is_judged_when_it_is_complete_or_the_call_is_over() -> None:
    goals = GoalsRow(
        conversation_id="c", revision=1, digest="d", goal_set=goal_set().model_dump(mode="json")
    )
    over = tile("Subgoals", with_progress(1, state="closed"), turn_row(3), goals=goals)
    assert over[:4] == ("Subgoals", "50 %", "1 of 2 subgoals", (BAD, "not every goal reached"))
    assert over.why == (("Known", "up to turn 3"), ("Status", "final: the call is over"))
    assert tile("Subgoals", with_progress(1), goals=goals).judged is None
    assert tile("Subgoals", with_progress(1, is_stalled=True), goals=goals).judged == (
        FAIR,
        "stalled",
    )
    assert tile("Subgoals", with_progress(2), goals=goals).judged == (GOOD, "every goal reached")


def test_the_verdict_of_a_call_that_is_over_names_the_goals_it_missed() -> None:
    goals = GoalsRow(
        conversation_id="c", revision=1, digest="d", goal_set=goal_set().model_dump(mode="json")
    )
    missed = goal_set().subgoals[1].id
    over = reported_rows(with_progress(1, state="closed"), turn_row(3), goals=goals)
    assert verdict(over).startswith(f"1 of 2 goals reached, missed {missed}.")
    row = with_progress(0, state="closed")
    assert row.goals is not None
    assert row.goals.progress is not None
    # as lists of calls say it, although the others could not be judged
    unknown = structs.replace(row.goals.progress, result=UNKNOWN, missing=1)
    results = (SubgoalResult(UNKNOWN), SubgoalResult(0.0))
    in_part = structs.replace(
        row, goals=structs.replace(row.goals, progress=unknown, subgoals=results)
    )
    assert verdict(reported_rows(in_part, turn_row(3), goals=goals)).startswith(
        f"0 of 2 goals reached, 1 not judged, missed {missed}."
    )
    for call in (with_progress(1), with_progress(2, state="closed")):
        assert "missed" not in verdict(reported_rows(call, turn_row(3), goals=goals))


def evaluated(name: str, value: float | NotApplicable) -> CallRow:
    return call_row(eva={name: Eva(value)})


def test_turn_taking_and_task_are_judged_as_eva_does() -> None:
    for value, judged in ((0.8, (GOOD, "EVA passes from 0.8")), (0.79, (BAD, "below EVA's 0.8"))):
        assert tile("Turn taking", evaluated("eva_turn_taking", value)).judged == judged
    for value, told in (
        (1.0, ("done", (GOOD, "as expected"))),
        (0.0, ("not done", (BAD, "not as expected"))),
    ):
        found = tile("Task", evaluated("eva_task_completion", value))
        assert (found.value, found.judged) == told
    unknown = reported_rows(evaluated("eva_task_completion", NotApplicable("nobody says")))
    assert not [each for each in tiles(unknown) if each.name == "Task"]


def test_a_failed_task_and_a_failed_authentication_stand_out() -> None:
    for name, heading in (
        ("eva_task_completion", "Task not completed"),
        ("eva_authentication_success", "Authentication failed"),
    ):
        (found,) = standouts(reported_rows(evaluated(name, 0.0)))
        assert (found.heading, found.is_fault, [each.turn for each in found.moments]) == (
            heading,
            True,
            [None],
        )
        assert standouts(reported_rows(evaluated(name, 1.0))) == ()
        assert standouts(reported_rows(evaluated(name, NotApplicable("no")))) == ()
    assert standouts(reported_rows()) == ()


def found_in(call: ReportedCall) -> list[tuple[str, int | None, str]]:
    return [(each.heading, each.moments[0].turn, each.moments[0].text) for each in standouts(call)]


def test_turns_without_an_answer_and_errors_of_the_agent_stand_out() -> None:
    silent = turn_row(3, wait_ms=NotApplicable("no"), outcome="failed")
    answered = turn_row(4, wait_ms=NotApplicable("no"), outcome="answered")
    call = call_row(errors=Errors(3, AT_MS + 65_000, AT_MS, component=ServiceKind.LLM))
    assert found_in(reported_rows(call, silent, answered)) == [
        ("Turns without an answer", 3, "the agent reported an error"),
        ("Errors of the agent", None, "3 errors, the newest of its LLM at 1:05"),
    ]


def test_a_call_that_ended_badly_says_so_first() -> None:
    waiting = Waiting(4, AT_MS, 2)
    assert found_in(reported_rows(call_row(waiting=waiting, turn=4))) == [], "it goes on"
    ended = call_row(waiting=waiting, turn=4, state="closed")
    assert found_in(reported_rows(ended, turn_row(4, outcome="abandoned"))) == [
        ("Ended badly", 4, "hung up unanswered"),
    ]
    earlier = turn_row(2, outcome="abandoned")
    assert found_in(reported_rows(ended, earlier))[1] == (
        "Turns without an answer",
        2,
        "the call ended",
    )
    failed = call_row(errors=Errors(1, 1, AT_MS), turn=4, state="over")
    assert found_in(reported_rows(failed))[0] == ("Ended badly", 4, "failed: agent error")
    later = call_row(errors=Errors(1, 1, AT_MS), turn=4, state="over", known_ms=AT_MS + 60_001)
    assert found_in(reported_rows(later))[0][0] == "Errors of the agent"


def test_every_wait_beyond_the_objective_stands_out() -> None:
    (found,) = standouts(
        reported_rows(None, waited(1, 1_500.0), waited(2, 1_501.0), waited(3, 9_000.0))
    )
    assert found.heading == "Waits over 1.50 s, the objective"
    assert [(each.turn, each.text) for each in found.moments] == [(3, "9.00 s"), (2, "1.501 s")]


def test_interruptions_tools_and_stalls_stand_out() -> None:
    both: dict[str, Any] = {
        "user_sounds": sounds((1_000, 3_000)),
        "assistant_sounds": sounds((2_500, 4_000)),
    }
    uses = (
        ToolUse(0, "find", ToolOutcome.ERROR),
        ToolUse(1, "book", ToolOutcome.UNANSWERED),
        ToolUse(2, "say"),
    )
    turn = turn_row(1, interruptions=(Speaker.ASSISTANT, Speaker.USER), tools=uses, **both)
    call = with_progress(1, is_stalled=True)
    assert found_in(reported_rows(call, turn)) == [
        ("Failed tools", 1, "find failed"),
        ("Agent spoke over the caller", 1, "0.50 s together"),
        ("Caller spoke over the agent", 1, "0.50 s together"),
        ("No goal reached after", 1, "until now"),
    ]


def test_dead_air_counts_once_and_has_the_length_that_is_drawn() -> None:
    turn = turn_row(
        1,
        dead_air=(structs.replace(SILENCE, until_ms=AT_MS + 7_000),),
        user_sounds=sounds((0, 2_000)),
    )
    found = tile("Dead air", call_row(dead_airs=1), turn)
    assert found[:4] == ("Dead air", "1 time", "5.00 s", (BAD, "silent for over 3.00 s"))
    heard = turn_row(1, user_sounds=sounds((0, 2_000)))
    assert tile("Dead air", None, heard)[1:4] == ("0 times", None, (GOOD, "never over 3.00 s"))
    assert found_in(reported_rows(None, turn)) == [("Dead air", 1, "5.00 s")]
    assert found_in(reported_rows(None, structs.replace(turn, wait_ms=5_000.0)))[0][0].startswith(
        "Waits over"
    )


def slow_call(**more: Any) -> ReportedCall:
    """Four turns of which the second and third were answered late."""
    waits_ms = (900.0, 4_000.0, 5_910.0, 800.0)
    turns = [turn_row(number, wait_ms=wait_ms) for number, wait_ms in enumerate(waits_ms, 1)]
    labels = Labels(agent="desk", version="2", tenant="acme")
    return reported_rows(call_row(labels=labels, turn=4, began_ms=AT_MS, **more), *turns)


@pytest.mark.parametrize(
    ("more", "told", "looked_at"),
    [
        ({}, "The trouble is over.", 4),
        ({"answer": Answer(4, 5_910.0)}, "Now: turn 4 slow: 5.9 s.", 3),
        ({"state": "closed"}, "The last fault was in turn 3 of 4.", 3),
    ],
)
def test_a_verdict_says_what_where_how_often_and_whether_it_goes_on(
    more: dict[str, Any], told: str, looked_at: int
) -> None:
    assert (
        verdict(slow_call(**more))
        == f"2 of 4 waits over 1.50 s, the longest 5.91 s in turn 3. {told}"
    )
    assert turn_to_look_at(slow_call(**more)) == looked_at


def test_a_verdict_names_the_worst_and_counts_the_rest() -> None:
    use = ToolUse(0, "find", ToolOutcome.ERROR)
    turns = [turn_row(1, wait_ms=4_000.0, tools=(use, use)), turn_row(2, outcome="abandoned")]
    gone = call_row(
        state="closed",
        turn=2,
        unanswered=1,
        answer=Answer(1, 4_000.0),
        waiting=Waiting(2, AT_MS, 2),
    )
    said = verdict(reported_rows(gone, *turns))
    assert said == (
        "Hung up unanswered, turn 2; tool find failed in turn 1; 1 other tool call failed too; 1 of 1 "
        "answer over 1.50 s, the slowest 4.00 s in turn 1."
    )


def test_a_call_that_was_said_to_have_ended_does_not_go_on() -> None:
    ended = call_row(
        state="ended",
        turn=1,
        unanswered=1,
        known_ms=AT_MS + 22_500,
        waiting=Waiting(1, AT_MS, 2),
    )
    call = reported_rows(ended, turn_row(1, outcome="abandoned"))
    assert call.is_over
    assert not call.is_closed
    assert verdict(call).startswith("Never answered after 22.5 s")
    assert "trouble is over" not in verdict(call)
    assert waits_now(call) is None


def test_a_call_without_faults_has_a_verdict_too() -> None:
    well = reported_rows(call_row(), turn_row(1, wait_ms=900.0), turn_row(2, wait_ms=950.0))
    assert verdict(well).startswith("So far nothing went wrong: no wait over 1.50 s")
    assert turn_to_look_at(well) == 2, "the newest one"
    over = call_row(state="closed")
    late = (turn_row(1, wait_ms=950.0), turn_row(2, wait_ms=900.0))
    assert turn_to_look_at(reported_rows(over, *late)) == 1, "the longest wait"
    assert turn_to_look_at(reported_rows(over, turn_row(1))) is None


@pytest.mark.parametrize(
    ("of_turn", "said", "waited_ms"),
    [
        (
            {"dead_air": (Silence(1, AT_MS + 5_000, AT_MS + 8_000, 3_000),)},
            "No answer in 25.0 s: the caller waited 24.0 s of it in silence, then the call ended",
            25_000.0,
        ),
        ({}, "No answer: the caller waited 22.0 s, then the call ended", 22_000.0),
        ({"user_sounds": ()}, "No answer: the call ended", 0.0),
    ],
)
def test_a_turn_without_an_answer_says_how_long_the_caller_waited(
    of_turn: dict[str, Any], said: str, waited_ms: float
) -> None:
    heard = {"user_sounds": sounds((3_000, 5_000), (7_000, 8_000)), "outcome": "abandoned"}
    row = turn_row(1, **heard | of_turn)
    call = reported_rows(call_row(state="closed", began_ms=AT_MS, ended_ms=AT_MS + 30_000), row)
    assert no_answer(call, row) == NoAnswer(said, None, waited_ms)


def test_a_caller_who_is_heard_again_in_the_next_turn_has_waited_until_then() -> None:
    row = turn_row(1, user_sounds=sounds((1_000, 2_000)), outcome="unanswered")
    call = reported_rows(
        call_row(began_ms=AT_MS), row, turn_row(2, user_sounds=sounds((6_500, 7_000)))
    )
    found = no_answer(call, row)
    assert found is not None
    assert found.said == "No answer: the caller waited 4.50 s, then the call went on"


def test_an_open_turn_says_since_when_the_caller_waits() -> None:
    row = turn_row(2, status="open")
    waits = call_row(known_ms=AT_MS + 9_000, turn=2, waiting=Waiting(2, AT_MS + 4_000, 1))
    call = reported_rows(waits, turn_row(1, wait_ms=900.0), row)
    assert no_answer(call, row) == NoAnswer("No answer yet", AT_MS + 4_000, 5_000)
    assert no_answer(call, call.turns[0]) is None
    assert turn_to_look_at(call) == 2


def test_a_summary_has_whose_call_it_is_its_verdict_and_when_it_was() -> None:
    first, second = summary(slow_call(state="closed", ended_ms=AT_MS + 61_000)).splitlines()
    assert first.startswith("desk 2, acme: 2 of 4 waits over 1.50 s")
    assert second == "Call c, 2026-09-21 14:13:20 UTC, 1 min 1 s long"
