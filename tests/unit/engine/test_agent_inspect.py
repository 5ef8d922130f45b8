"""The parity layer beyond the conformance cases: the faults that stop agent-inspect, and their
order.
"""

from collections.abc import Callable
from dataclasses import replace as with_fields
from typing import Any

import pytest
from msgspec.structs import replace

from consumers.engine.agent_inspect import (
    AgentStep,
    AgentTurn,
    Argument,
    Ballot,
    EvaluationError,
    ExpectedCall,
    InvalidInputValueError,
    NumericalScore,
    Options,
    Parameter,
    PlainSubgoal,
    Required,
    Trace,
    auc_of,
    ppt_of,
    progress_through_turns,
    static_progress,
    success_from,
    tokens,
    tool_correctness,
    total_latency_ms,
    voted,
)
from tests.support.calls.agent_inspect_votes import JudgeAnswer, driven
from tests.support.known import some

TURN = AgentTurn("A question.", "An answer.", ())


def _judged(*subgoals: PlainSubgoal, turns: int = 1, **options: Any) -> Trace:
    return Trace("a", [TURN] * turns, subgoals, options=Options(**options))


def _called(turns: list[AgentTurn], expected: ExpectedCall) -> Trace:
    return Trace("a", turns, expected_calls=[expected])


def _is_made(found: list[NumericalScore]) -> bool:
    return found[0].score == 1


GOAL = Ballot(0, 0, PlainSubgoal("a"), 5, stops_early=False, retry_waves=5)
ANSWERS = {
    "C": JudgeAnswer(200, "GRADE: C"),
    "I": JudgeAnswer(200, "GRADE: I"),
    "X": JudgeAnswer(200, "No idea."),
    "W": JudgeAnswer(200, " \n"),
    "B": JudgeAnswer(200, ""),
    "N": JudgeAnswer(200, None),
    "E": JudgeAnswer(500, "GRADE: C"),
}


class Judges:
    """Judges of all questions, who answer from one row in turn and start it again at its end."""

    def __init__(self, row: str = "C") -> None:
        self._row = row
        self.requests = 0

    def ask(self, wave: int) -> list[JudgeAnswer]:
        self.requests += wave
        return [
            ANSWERS[self._row[place % len(self._row)]]
            for place in range(self.requests - wave, self.requests)
        ]

    def of(self, *_: Any) -> Callable[[int], list[JudgeAnswer]]:
        return self.ask


def _told(error: BaseException) -> tuple[str, str | None]:
    return type(error).__name__, getattr(error, "internal_code", None)


def test_blank_and_unreadable_completions_are_kept_and_empty_and_failed_ones_are_not() -> None:
    vote = driven(voted(GOAL), Judges("CWXBNECCCCCC").of)
    assert vote.completions == ("GRADE: C", " \n", "No idea.", *["GRADE: C"] * 4)


def test_a_grade_in_a_failed_response_does_not_count() -> None:
    with pytest.raises(EvaluationError) as caught:
        driven(voted(GOAL._replace(stops_early=True)), Judges("E").of)
    assert _told(caught.value) == ("EvaluationError", "050007")


@pytest.mark.parametrize(
    ("options", "row", "requests", "told"),
    [
        ({"trials": 4}, "C", 0, ("EvaluationError", "050000")),
        ({"retry_waves": 0}, "X", 5, ("EvaluationError", "050000")),
        ({"retry_waves": 2}, "X", 15, ("EvaluationError", "050000")),
        ({"stops_early": True}, "X", 3, ("EvaluationError", "050007")),
    ],
)
def test_a_vote_that_comes_to_nothing(
    options: dict[str, Any], row: str, requests: int, told: tuple[str, str | None]
) -> None:
    judges = Judges(row)
    with pytest.raises(EvaluationError) as caught:
        driven(voted(GOAL._replace(**options)), judges.of)
    assert (_told(caught.value), judges.requests) == (told, requests)


def test_fewer_retries_than_none_are_none() -> None:
    judges = Judges("X")
    with pytest.raises(EvaluationError):
        driven(
            static_progress(_judged(PlainSubgoal("a", 0), max_retry_judge_trials=-1)),
            judges.of,
        )
    assert judges.requests == 5


DUMB = AgentTurn("A question.", None)
WITHOUT_ARGUMENTS = replace(TURN, steps=[AgentStep("a", None)])


@pytest.mark.parametrize(
    ("turns", "options", "requests", "told"),
    [
        ([], {}, 0, ("IndexError", None)),
        ([TURN, DUMB], {}, 5, ("InvalidInputValueError", "050008")),
        ([DUMB], {"num_judge_trials": 4}, 0, ("InvalidInputValueError", "050008")),
        ([AgentTurn("", "An answer.")], {}, 0, ("InvalidInputValueError", "050008")),
        ([WITHOUT_ARGUMENTS], {}, 0, ("TypeError", None)),
        ([TURN], {"template_subgoal": "{subgoal} {userTask}"}, 0, ("KeyError", None)),
        ([TURN], {"template_subgoal": "{subgoal} {nothing}"}, 0, ("KeyError", None)),
    ],
)
def test_what_stops_the_judging_and_when(
    turns: list[AgentTurn], options: dict[str, Any], requests: int, told: tuple[str, str | None]
) -> None:
    judges = Judges("I")
    with pytest.raises((InvalidInputValueError, TypeError, IndexError, KeyError)) as caught:
        driven(
            progress_through_turns(
                Trace("a", turns, [PlainSubgoal("a")], None, " ", Options(**options))
            ),
            judges.of,
        )
    assert (_told(caught.value), judges.requests) == (told, requests)


def test_a_template_may_ask_for_the_instruction_that_there_is() -> None:
    template = "{subgoal} {userTask} {trajectories} {answers} {dynamicDialogue}"
    trace = _judged(PlainSubgoal("a"), template_subgoal=template, max_turns=1)
    asking = progress_through_turns(with_fields(trace, user_instruction="Do it."))
    assert driven(asking, Judges().of)[0].score == 1.0


def test_a_subgoal_without_details_stops_it() -> None:
    with pytest.raises(InvalidInputValueError) as caught:
        driven(progress_through_turns(_judged(PlainSubgoal(""))), Judges().of)
    assert caught.value.internal_code == "050008"


def test_of_two_equal_subgoals_the_first_leaves_whichever_is_completed() -> None:
    subgoals = [PlainSubgoal("a"), PlainSubgoal("b"), PlainSubgoal("a")]
    options = {"num_judge_trials": 1, "max_turns": 2, "include_validation_results": True}
    entries = driven(
        progress_through_turns(_judged(*subgoals, turns=2, **options)), Judges("IICII").of
    )
    results = entries[-1].validation_results or ()
    assert [each.sub_goal.details for each in results] == ["a", "b", "a"]
    assert [each.is_completed for each in results] == [True, False, False]


def test_completions_and_validations_are_given_only_when_asked_for() -> None:
    summary = "After turn 1 the subgoal is completed: a"
    (entry,) = driven(progress_through_turns(_judged(PlainSubgoal("a"), max_turns=1)), Judges().of)
    assert (entry.explanations, entry.validation_results) == ([{"a": [summary]}], None)
    trace = _judged(
        PlainSubgoal("a"),
        max_turns=2,
        include_judge_explanation=True,
        include_validation_results=True,
        num_judge_trials=1,
    )
    first, last = driven(progress_through_turns(trace), Judges().of)
    assert first.explanations == last.explanations == [{"a": [summary, "GRADE: C"]}]
    assert first.validation_results is None
    (verdict,) = some(last.validation_results)
    assert (verdict.is_completed, verdict.explanations) == (True, [summary, "GRADE: C"])


@pytest.mark.parametrize("turn", [0, 0.0, False])
def test_a_static_subgoal_s_turn_is_compared_as_python_does(turn: Any) -> None:
    judges = Judges()
    trace = Trace("a", [TURN, DUMB], [PlainSubgoal("a", turn)])
    (found,) = driven(static_progress(trace), judges.of)
    assert found.score == 1
    assert judges.requests == 5


def test_without_turns_no_static_subgoal_is_judged() -> None:
    judges = Judges()
    with pytest.raises(InvalidInputValueError) as caught:
        driven(static_progress(_judged(PlainSubgoal("a", 0), turns=0)), judges.of)
    assert judges.requests == 0
    assert caught.value.internal_code == "050004"


CALLED = replace(TURN, steps=[AgentStep("a", [Argument("x", 1)], 2), AgentStep(None)])


@pytest.mark.parametrize(
    ("turns", "expected", "row", "told"),
    [
        ([CALLED], ExpectedCall("a", [Parameter(1, "check", name="x")], turn=0), "C", "050009"),
        ([CALLED], ExpectedCall("a", output=Required(2, "check"), turn=0), "C", "050009"),
        ([CALLED], ExpectedCall("", turn=0), "C", "050008"),
        ([CALLED], ExpectedCall(None, turn=0), "C", "050008"),
        ([CALLED, DUMB], ExpectedCall("a", turn=1), "C", "050008"),
        ([CALLED], ExpectedCall("a", [Parameter(check="check", name="x")], turn=0), "X", "050007"),
    ],
)
def test_what_stops_tool_correctness(
    turns: list[AgentTurn], expected: ExpectedCall, row: str, told: str
) -> None:
    with pytest.raises((InvalidInputValueError, EvaluationError)) as caught:
        driven(tool_correctness(_called(turns, expected)), Judges(row).of)
    assert getattr(caught.value, "internal_code", None) == told


@pytest.mark.parametrize(
    "expected",
    [
        # no call of that tool, so nobody looks
        ExpectedCall("b", [Parameter(1, "check", name="x")], turn=0),
        ExpectedCall(" ", turn=0),
    ],
)
def test_what_does_not_stop_it(expected: ExpectedCall) -> None:
    assert not _is_made(driven(tool_correctness(_called([CALLED], expected)), Judges().of))


@pytest.mark.parametrize("required", [Parameter(1, name="x"), Parameter(check="check", name="x")])
def test_arguments_that_are_none_stop_it_only_where_they_are_looked_for(
    required: Parameter,
) -> None:
    judges = Judges()
    with pytest.raises(TypeError):
        driven(
            tool_correctness(_called([WITHOUT_ARGUMENTS], ExpectedCall("a", [required], turn=0))),
            judges.of,
        )
    assert judges.requests == 0
    expected = ExpectedCall("a", output=Required(check="check"), turn=0)
    assert _is_made(driven(tool_correctness(_called([WITHOUT_ARGUMENTS], expected)), judges.of))


def test_steps_that_are_none_stop_it() -> None:
    with pytest.raises(TypeError):
        driven(
            tool_correctness(_called([replace(TURN, steps=None)], ExpectedCall("a", turn=0))),
            Judges().of,
        )


def test_the_highest_progress_counts_wherever_it_is() -> None:
    assert ppt_of([0.25, 1.0, 0.5]) == 0.5


@pytest.mark.parametrize("progress", [0.9999, 1.0001])
def test_only_one_is_success(progress: float) -> None:
    assert success_from(NumericalScore(progress)).score == 0


@pytest.mark.parametrize(
    ("compute", "progress", "told"),
    [
        (auc_of, [], ("InvalidInputValueError", "050005")),
        (auc_of, [0.7], ("EvaluationError", "050006")),
        (auc_of, [0.7, None], ("EvaluationError", "050006")),
        (ppt_of, [], ("InvalidInputValueError", "050005")),
        (ppt_of, [0.7, None], ("EvaluationError", "050012")),
    ],
)
def test_a_curve_that_is_none(
    compute: Callable[[Any], float], progress: list[Any], told: tuple[str, str]
) -> None:
    with pytest.raises((InvalidInputValueError, EvaluationError)) as caught:
        compute(progress)
    assert _told(caught.value) == told


def test_a_turn_needs_steps_for_its_tokens_and_a_latency_for_the_total() -> None:
    with pytest.raises(InvalidInputValueError) as without_steps:
        tokens([TURN], "input")
    with pytest.raises(InvalidInputValueError) as without_latency:
        total_latency_ms([replace(TURN, latency_ms=0.0), TURN])
    assert without_steps.value.internal_code == without_latency.value.internal_code == "050008"


@pytest.mark.parametrize(
    ("parameter", "output", "row", "told"),
    [
        (
            Parameter(2, name="n"),
            Required("ok"),
            "",
            [
                "was made as expected.",
                "The argument 'n' is 2, as expected.",
                "The output is 'ok', as expected.",
            ],
        ),
        (
            Parameter(3, name="n"),
            Required("ok"),
            "",
            [
                "was not made as expected.",
                "The argument 'n' is 2; expected is 3.",
                "The output is 'ok', as expected.",
            ],
        ),
        (
            Parameter(check="two", name="n"),
            Required(None, "polite"),
            "CCCIII",
            [
                "was not made as expected.",
                "By the judge, the argument 'n' complies with 'two'.",
                "By the judge, the output does not comply with 'polite'.",
            ],
        ),
    ],
)
def test_each_condition_of_an_expected_call_reads_as_held_or_as_failed(
    parameter: Parameter, output: Required, row: str, told: list[str]
) -> None:
    called = replace(TURN, steps=[AgentStep("book", [Argument("n", 2)], "ok")])
    expected = ExpectedCall("book", [parameter], output, turn=0)
    (found,) = driven(tool_correctness(_called([called], expected)), Judges(row).of)
    (explained,) = some(found.explanations)
    assert explained["book"][0].endswith(told[0])
    assert explained["book"][1:] == told[1:]
    (missing,) = driven(tool_correctness(_called([TURN], expected)), Judges(row).of)
    (explained,) = some(missing.explanations)
    assert explained["book"][1:] == ["No call of this tool is in the turn."]
