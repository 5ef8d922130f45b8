"""The parity layer beyond the conformance cases: the faults that stop agent-inspect, and their order."""

from collections.abc import Callable
from typing import Any

import pytest

from consumers.engine.agent_inspect import (
    KEEPS_COMPLETIONS,
    KEEPS_VALIDATIONS,
    Argument,
    CheckedValue,
    EvaluationError,
    ExpectedCall,
    InvalidInputValueError,
    Required,
    Step,
    Subgoal,
    Turn,
    auc_of,
    input_tokens,
    ppt_of,
    progress_through_turns,
    static_progress,
    success_of,
    tool_correctness,
    total_latency_ms,
    voted_on_subgoal,
    voted_on_value,
)
from tests.support.calls.agent_inspect_votes import JudgeAnswer, driven

TURN = Turn("A question.", "An answer.")
GOAL = (0, 0, Subgoal("a"))
VALUE = (0, 0, CheckedValue("x", "check", 1, Step("a")))
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
        return [ANSWERS[self._row[place % len(self._row)]] for place in range(self.requests - wave, self.requests)]

    def of(self, *_: Any) -> Callable[[int], list[JudgeAnswer]]:
        return self.ask


def _told(error: BaseException) -> tuple[str, str | None]:
    return type(error).__name__, getattr(error, "internal_code", None)


def test_blank_and_unreadable_completions_are_kept_and_empty_and_failed_ones_are_not() -> None:
    vote = driven(voted_on_subgoal(*GOAL, {}), Judges("CWXBNECCCCCC").of)
    assert vote.completions == ("GRADE: C", " \n", "No idea.", *["GRADE: C"] * 4)


def test_a_grade_in_a_failed_response_does_not_count() -> None:
    with pytest.raises(EvaluationError) as caught:
        driven(voted_on_value(*VALUE, {}), Judges("E").of)
    assert _told(caught.value) == ("EvaluationError", "050007")


@pytest.mark.parametrize(
    ("config", "row", "requests", "told"),
    [
        ({"num_judge_trials": 4}, "C", 0, ("EvaluationError", "050000")),
        ({"num_judge_trials": None}, "C", 0, ("TypeError", None)),
        ({"num_judge_trials": 2.5}, "C", 0, ("TypeError", None)),
        ({"max_retry_judge_trials": None}, "X", 5, ("TypeError", None)),
        ({"max_retry_judge_trials": -1}, "X", 5, ("EvaluationError", "050000")),
        ({"max_retry_judge_trials": 1.5}, "X", 15, ("EvaluationError", "050000")),
        ({"optimize_judge_trials": True, "max_retry_judge_trials": None}, "X", 3, ("EvaluationError", "050007")),
    ],
)
def test_a_vote_with_settings_that_make_no_sense(
    config: dict[str, Any], row: str, requests: int, told: tuple[str, str | None]
) -> None:
    judges = Judges(row)
    with pytest.raises((EvaluationError, TypeError)) as caught:
        driven(voted_on_subgoal(*GOAL, config), judges.of)
    assert (_told(caught.value), judges.requests) == (told, requests)


def test_settings_that_are_not_needed_do_no_harm() -> None:
    assert driven(voted_on_subgoal(*GOAL, {"max_retry_judge_trials": None}), Judges("C").of).is_complete
    config = {"max_retry_judge_trials": None, "optimize_judge_trials": None}
    assert driven(voted_on_value(*VALUE, config), Judges("C").of).is_complete


DUMB = Turn("A question.", None)
WITHOUT_ARGUMENTS = TURN._replace(steps=[Step("a", None)])


@pytest.mark.parametrize(
    ("turns", "config", "requests", "told"),
    [
        ([], {}, 0, ("IndexError", None)),
        ([TURN], {"max_turns": None}, 0, ("TypeError", None)),
        ([TURN], {"max_turns": "5"}, 0, ("TypeError", None)),
        ([TURN] * 3, {"max_turns": 2.5}, 0, ("TypeError", None)),
        ([TURN], {"max_turns": 2.0}, 5, ("TypeError", None)),  # found out when the curve is lengthened
        ([TURN, DUMB], {}, 5, ("InvalidInputValueError", "050008")),
        ([DUMB], {"num_judge_trials": 4}, 0, ("InvalidInputValueError", "050008")),
        ([Turn("", "An answer.")], {}, 0, ("InvalidInputValueError", "050008")),
        ([Turn("A question.", {"text": "An answer."})], {}, 0, ("TypeError", None)),
        ([WITHOUT_ARGUMENTS], {}, 0, ("TypeError", None)),
        ([TURN], {"template_subgoal": "{subgoal} {userTask}"}, 0, ("KeyError", None)),
        ([TURN], {"template_subgoal": "{subgoal} {nothing}"}, 0, ("KeyError", None)),
    ],
)
def test_what_stops_the_judging_and_when(
    turns: list[Turn], config: dict[str, Any], requests: int, told: tuple[str, str | None]
) -> None:
    judges = Judges("I")
    with pytest.raises((InvalidInputValueError, TypeError, IndexError, KeyError)) as caught:
        driven(progress_through_turns(turns, [Subgoal("a")], config, user_instruction=" "), judges.of)
    assert (_told(caught.value), judges.requests) == (told, requests)


def test_a_template_may_ask_for_the_instruction_that_there_is() -> None:
    config = {"template_subgoal": "{subgoal} {userTask} {trajectories} {answers} {dynamicDialogue}", "max_turns": 1}
    assert driven(progress_through_turns([TURN], [Subgoal("a")], config, "Do it."), Judges().of)[0].progress == 1.0


def test_a_subgoal_without_details_stops_it() -> None:
    with pytest.raises(InvalidInputValueError) as caught:
        driven(progress_through_turns([TURN], [Subgoal("")], {}), Judges().of)
    assert caught.value.internal_code == "050008"


def test_of_two_equal_subgoals_the_first_leaves_whichever_is_completed() -> None:
    subgoals = [Subgoal("a"), Subgoal("b"), Subgoal("a")]
    config = {"num_judge_trials": 1, "max_turns": 2, KEEPS_VALIDATIONS: True}
    entries = driven(progress_through_turns([TURN] * 2, subgoals, config), Judges("IICII").of)
    assert [each.subgoal.details for each in entries[-1].validations or ()] == ["a", "b", "a"]
    assert [each.is_completed for each in entries[-1].validations or ()] == [True, False, False]


def test_completions_and_validations_are_given_only_when_asked_for() -> None:
    entry = driven(progress_through_turns([TURN], [Subgoal("a")], {"max_turns": 1}), Judges().of)[0]
    assert ([each.completions for each in entry.explained], entry.validations) == ([()], None)
    config = {"max_turns": 2, KEEPS_COMPLETIONS: True, KEEPS_VALIDATIONS: True, "num_judge_trials": 1}
    first, last = driven(progress_through_turns([TURN], [Subgoal("a")], config), Judges().of)
    assert first.explained == last.explained
    assert [each.completions for each in last.explained] == [("GRADE: C",)]
    assert first.validations is None
    assert last.validations is not None


@pytest.mark.parametrize("turn", [0, 0.0, False])
def test_a_static_subgoal_s_turn_is_compared_as_python_does(turn: Any) -> None:
    judges = Judges()
    assert driven(static_progress([TURN, DUMB], [Subgoal("a", turn)], {}), judges.of).progress == 1.0
    assert judges.requests == 5


def test_without_turns_no_static_subgoal_is_judged() -> None:
    with pytest.raises(InvalidInputValueError) as caught:
        driven(static_progress([], [Subgoal("a", 0)], {}), Judges().of)
    assert caught.value.internal_code == "050004"


CALLED = TURN._replace(steps=[Step("a", [Argument("x", 1)], 2), Step(None)])


@pytest.mark.parametrize(
    ("turns", "expected", "row", "told"),
    [
        ([CALLED], ExpectedCall("a", [("x", Required(1, "check"))], turn=0), "C", "050009"),
        ([CALLED], ExpectedCall("a", output=Required(2, "check"), turn=0), "C", "050009"),
        ([CALLED], ExpectedCall("", turn=0), "C", "050008"),
        ([CALLED], ExpectedCall(None, turn=0), "C", "050008"),
        ([CALLED, DUMB], ExpectedCall("a", turn=1), "C", "050008"),
        ([CALLED], ExpectedCall("a", [("x", Required(check="check"))], turn=0), "X", "050007"),
        ([CALLED], ExpectedCall("a", turn=1), "C", "050004"),
    ],
)
def test_what_stops_tool_correctness(turns: list[Turn], expected: ExpectedCall, row: str, told: str) -> None:
    with pytest.raises((InvalidInputValueError, EvaluationError)) as caught:
        driven(tool_correctness(turns, [expected], {}), Judges(row).of)
    assert getattr(caught.value, "internal_code", None) == told


@pytest.mark.parametrize(
    "expected",
    [
        ExpectedCall("b", [("x", Required(1, "check"))], turn=0),  # no call of that tool, so nobody looks
        ExpectedCall(" ", turn=0),
    ],
)
def test_what_does_not_stop_it(expected: ExpectedCall) -> None:
    assert driven(tool_correctness([CALLED], [expected], {}), Judges().of).score == 0.0


@pytest.mark.parametrize("required", [Required(1), Required(check="check")])
def test_arguments_that_are_none_stop_it_only_where_they_are_looked_for(required: Required) -> None:
    judges = Judges()
    with pytest.raises(TypeError):
        driven(tool_correctness([WITHOUT_ARGUMENTS], [ExpectedCall("a", [("x", required)], turn=0)], {}), judges.of)
    assert judges.requests == 0
    expected = ExpectedCall("a", output=Required(check="check"), turn=0)
    assert driven(tool_correctness([WITHOUT_ARGUMENTS], [expected], {}), judges.of).score == 1.0


def test_steps_that_are_none_stop_it() -> None:
    with pytest.raises(TypeError):
        driven(tool_correctness([TURN._replace(steps=None)], [ExpectedCall("a", turn=0)], {}), Judges().of)


def test_the_highest_progress_counts_wherever_it_is() -> None:
    assert ppt_of([0.25, 1.0, 0.5]) == 0.5


@pytest.mark.parametrize("progress", [0.9999, 1.0001])
def test_only_one_is_success(progress: float) -> None:
    assert success_of(progress).value == 0


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
def test_a_curve_that_is_none(compute: Callable[[Any], float], progress: list[Any], told: tuple[str, str]) -> None:
    with pytest.raises((InvalidInputValueError, EvaluationError)) as caught:
        compute(progress)
    assert _told(caught.value) == told


def test_a_turn_needs_steps_for_its_tokens_and_a_latency_for_the_total() -> None:
    with pytest.raises(InvalidInputValueError) as without_steps:
        input_tokens([TURN._replace(steps=[])])
    with pytest.raises(InvalidInputValueError) as without_latency:
        total_latency_ms([TURN._replace(latency_ms=0.0), TURN])
    assert without_steps.value.internal_code == without_latency.value.internal_code == "050008"


@pytest.mark.parametrize(
    ("parameter", "output", "row", "told"),
    [
        (
            Required(2), Required("ok"), "",
            ["was made as expected.", "The argument 'n' is 2, as expected.", "The output is 'ok', as expected."],
        ),
        (
            Required(3), Required("ok"), "",
            [
                "was not made as expected.", "The argument 'n' is 2; expected is 3.", "The output is 'ok', as expected.",
            ],
        ),
        (
            Required(check="two"), Required(None, "polite"), "CCCIII",
            [
                "was not made as expected.", "By the judge, the argument 'n' complies with 'two'.",
                "By the judge, the output does not comply with 'polite'.",
            ],
        ),
    ],
)  # fmt: skip
def test_each_condition_of_an_expected_call_reads_as_held_or_as_failed(
    parameter: Required, output: Required, row: str, told: list[str]
) -> None:
    called = TURN._replace(steps=[Step("book", [Argument("n", 2)], "ok")])
    expected = ExpectedCall("book", [("n", parameter)], output, turn=0)
    (found,) = driven(tool_correctness([called], [expected], {}), Judges(row).of).found
    assert found.explanations[0].endswith(told[0])
    assert list(found.explanations[1:]) == told[1:]
    (missing,) = driven(tool_correctness([TURN], [expected], {}), Judges(row).of).found
    assert missing.explanations[1:] == ("No call of this tool is in the turn.",)
