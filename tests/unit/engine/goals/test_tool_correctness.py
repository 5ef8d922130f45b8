"""Expected tool calls against those that were made, live: calls that count as made, questions to a
judge, unknown results.
"""

from ast import literal_eval
from typing import Any

import pytest

from consumers.engine.goals.checks import CalledTool
from consumers.engine.goals.tool_correctness import (
    Difference,
    Finding,
    ToolCorrectness,
    ToolQuestion,
)
from schemas.closed_sets import UnscoredReason
from schemas.goals.goal_set import ExpectedToolCall
from schemas.rows import ExpectedTool, ToolDifference
from tests.support.fakes.engine_feed import plain

LATE = UnscoredReason.USER_STILL_SPEAKING  # any reason: it is only passed on


def _expected(
    tool: str = "book", turn: Any = 0, *, output: Any = None, **parameters: Any
) -> ExpectedToolCall:
    """`x=1` requires a value, `x="?text"` asks a judge."""

    def required(value: Any) -> dict[str, Any]:
        is_check = isinstance(value, str) and value.startswith("?")
        return {"check": value} if is_check else {"value": value}

    return ExpectedToolCall(
        tool=tool,
        turn=turn,
        expected_parameters=[
            {"name": name, **required(value)} for name, value in parameters.items()
        ],
        expected_output=None if output is None else required(output[0]),
    )


def _made(tool: str = "book", answer: Any = None, /, **arguments: Any) -> CalledTool:
    return CalledTool(tool, arguments, answer, is_success=True)


def _nobody(question: ToolQuestion) -> Finding:
    raise AssertionError(f"nobody should be asked: {question}")


def _at(tools: ToolCorrectness, turn: int, *, is_over: bool = False) -> float | str | None:
    """The score after a turn, or the reason why it is not known; None while a question is open."""
    value = tools.at_end(turn) if is_over else tools.at(turn)
    return None if value is None else plain(value)


def _found(tools: ToolCorrectness, turn: int, *, is_over: bool = False) -> list[ExpectedTool]:
    """What is told of the expected calls after a turn, all that was seen written as it is."""

    def in_words(difference: Difference) -> ToolDifference:
        return ToolDifference(
            difference.parameter, "", repr(difference.value) if difference.is_there else None
        )

    return list(tools.found(turn, {}, in_words, is_over=is_over))


def _results(tools: ToolCorrectness, turn: int) -> dict[int, float | str]:
    """The result of each expected call that is known, by its place."""
    return {each.index: plain(each.result) for each in _found(tools, turn)}


def _score(expected: ExpectedToolCall, *made: CalledTool) -> Any:
    tools = ToolCorrectness([expected])
    tools.look(1, made, _nobody)
    return _at(tools, 1)


@pytest.mark.parametrize(
    ("expected", "made", "score"),
    [
        (_expected(), [], 0.0),
        (_expected(), [_made()], 1.0),
        (_expected(" book "), [_made("book ")], 1.0),
        (_expected(), [_made("Book")], 0.0),
        (_expected(x=1), [_made(x=1, y=2)], 1.0),
        (_expected(x=1), [_made(y=1)], 0.0),
        (_expected(x=1), [_made(**{" x ": 1})], 1.0),
        (_expected(x=1), [_made(x="1")], 0.0),
        (_expected(x=1), [_made(x=1.0)], 1.0),
        (_expected(x=1), [_made(x=True)], 1.0),
        (_expected(x="v"), [_made(x="V")], 0.0),
        (_expected(x={"p": 1, "q": 2}), [_made(x={"q": 2, "p": 1})], 1.0),
        (_expected(x=[2, 1]), [_made(x=[1, 2])], 0.0),
        (_expected(x=None), [_made(x=None)], 1.0),
        (_expected(x=None), [_made(x=1)], 0.0),
        (_expected(x=None), [_made()], 0.0),
        (_expected(x=""), [_made()], 0.0),
        (_expected(output=[350.9]), [_made("book", 350.9)], 1.0),
        (_expected(output=[350.9]), [_made("book", "350.9")], 0.0),
        (_expected(output=[None]), [_made("book", None)], 1.0),
        (_expected(output=[None]), [_made("book", 1)], 0.0),
        (_expected(), [_made("book", 1)], 1.0),
        (_expected(x=1, y=2), [_made(x=1, y=1), _made(x=1, y=2)], 1.0),
        # two half right ones are none
        (_expected(x=1, y=2), [_made(x=1, y=1), _made(x=2, y=2)], 0.0),
    ],
)
def test_a_call_is_made_when_everything_required_of_it_is_there(
    expected: ExpectedToolCall, made: list[CalledTool], score: float
) -> None:
    assert _score(expected, *made) == score


WITHHELD: dict[str, Any] = {"answer": None, "is_success": None, "is_withheld": True}
NO_ARGUMENTS: dict[str, Any] = {"arguments": {}, "lacks_arguments": True}


@pytest.mark.parametrize(
    ("expected", "made", "score"),
    [
        (_expected(output=[350.9]), WITHHELD, UnscoredReason.WITHHELD),
        (_expected(output=["?about the price"]), WITHHELD, UnscoredReason.WITHHELD),
        (_expected(output=[None]), WITHHELD, UnscoredReason.WITHHELD),
        (_expected(x=1), WITHHELD, 1.0),
        (_expected(x=2, output=[350.9]), WITHHELD, 0.0),  # it is wrong with any answer
        (_expected(x=1), NO_ARGUMENTS, UnscoredReason.WITHHELD),
        (_expected(x=1, output=[7]), NO_ARGUMENTS, 0.0),
        (_expected(), NO_ARGUMENTS, 1.0),
    ],
)
def test_what_the_producer_withholds_is_not_wrong(
    expected: ExpectedToolCall, made: dict[str, Any], score: Any
) -> None:
    assert _score(expected, _made(x=1)._replace(**made)) == score
    right = _made("book", 350.9, x=1)
    if (
        expected.expected_output is not None
        and score is UnscoredReason.WITHHELD
        and expected.expected_output.value == 350.9
    ):
        assert _score(expected, _made(x=1)._replace(**made), right) == 1.0


def test_of_a_repeated_name_the_last_requirement_and_the_first_argument_count() -> None:
    expected = _expected()
    twice = [{"name": "x", "value": 1}, {"name": "x", "value": 2}]
    assert (
        _score(
            ExpectedToolCall.model_validate(
                {**expected.model_dump(), "expected_parameters": twice}
            ),
            _made(x=2),
        )
        == 1
    )
    assert _score(_expected(x=2), CalledTool("book", {"x": 1, " x": 2}, None, is_success=True)) == 0


def test_calls_count_in_their_own_turn_and_one_may_serve_several() -> None:
    tools = ToolCorrectness(
        [_expected("a", 1), _expected("a", 0), _expected("a", 0), _expected("b", 0)]
    )
    tools.look(1, [_made("a")], _nobody)
    assert _results(tools, 1) == {1: 1.0, 2: 1.0, 3: 0.0}
    assert _at(tools, 1) == 0.6667
    tools.look(2, [_made("b")], _nobody)
    assert _results(tools, 2) == {0: 0.0, 1: 1.0, 2: 1.0, 3: 0.0}
    assert (_at(tools, 1), _at(tools, 2)) == (0.6667, 0.5)
    tools.look(2, [_made("b")], _nobody)
    tools.look(2, [_made("b"), _made("a")], _nobody)
    assert _at(tools, 2) == 0.75


def _missed(expected: ExpectedToolCall, *made: CalledTool, no: str = "") -> Any:
    """What is wrong in the nearest call: names with their values, `...` for an argument that is not
    there.
    """
    tools = ToolCorrectness([expected])
    tools.look(1, made, lambda question: question.check != no)
    (found,) = _found(tools, 1)
    if found.missed == ("name",):
        return None
    return {
        each.parameter: ... if each.seen is None else literal_eval(each.seen)
        for each in found.differences
    }


@pytest.mark.parametrize(
    ("expected", "made", "missed"),
    [
        (_expected(), [], None),
        (_expected(), [_made("other")], None),
        (_expected(x=1), [_made(x=1)], {}),
        (_expected(x=1, y=2), [_made(x=2)], {"x": 2, "y": ...}),
        (_expected(x=1, output=["ok"]), [_made("book", "no", x=1)], {None: "no"}),
        # of several the nearest
        (_expected(x=1, y=2), [_made(x=3, y=3), _made(x=1, y=4)], {"y": 4}),
        # and of those the first
        (_expected(x=1, y=2), [_made(x=1, y=4), _made(x=3, y=3), _made(x=5, y=2)], {"y": 4}),
        (_expected(x=1, y="?a date"), [_made(x=1, y="soon")], {"y": "soon"}),
        (_expected(y="?a date"), [_made()], {"y": ...}),
        # nobody was asked about the date
        (_expected(x=1, y="?a date"), [_made(x=2, y="soon")], {"x": 2}),
    ],
)
def test_it_says_what_is_wrong_with_a_call(
    expected: ExpectedToolCall, made: list[CalledTool], missed: Any
) -> None:
    assert _missed(expected, *made, no="?a date") == missed


def test_what_is_known_is_told_as_the_call_goes_on() -> None:
    tools = ToolCorrectness(
        [_expected("a", 0), _expected("b", 1), _expected("c", None), _expected("d", 7)]
    )

    def told(last_turn: int, *, is_over: bool) -> list[tuple[str, int | None, Any]]:
        return [
            (each.tool, each.turn, plain(each.result))
            for each in _found(tools, last_turn, is_over=is_over)
        ]

    assert told(0, is_over=False) == []
    tools.look(1, [_made("a")], _nobody)
    assert told(1, is_over=False) == [("a", 1, 1.0)]
    tools.look(2, [_made("a")], _nobody)
    assert told(2, is_over=False) == [("a", 1, 1.0), ("b", 2, 0.0)]
    not_reached, no_turn = (
        UnscoredReason.EXPECTED_TURN_NOT_REACHED,
        "the goal set names no turn for it",
    )
    assert told(2, is_over=True) == [
        ("a", 1, 1.0),
        ("b", 2, 0.0),
        ("c", None, no_turn),
        ("d", 8, not_reached),
    ]
    tools.forget_from(2)
    assert told(1, is_over=True)[1] == ("b", 2, not_reached)


def test_a_call_that_comes_later_clears_what_was_wrong() -> None:
    tools = ToolCorrectness([_expected(x=1)])
    steps: list[tuple[list[CalledTool], float, tuple[str, ...]]] = [
        ([_made(x=2)], 0.0, ("arguments",)),
        ([_made(x=2), _made(x=1)], 1.0, ()),
        ([], 0.0, ("name",)),
    ]
    for made, value, missed in steps:
        tools.look(1, made, _nobody)
        (found,) = _found(tools, 1)
        assert (found.result, found.missed) == (value, missed)


def test_what_is_expected_in_no_turn_of_the_call_leaves_the_final_score_unknown() -> None:
    tools = ToolCorrectness([_expected("a", 0), _expected("b", 1)])
    tools.look(1, [_made("a")], _nobody)
    assert (_at(tools, 1), _at(tools, 1, is_over=True)) == (
        1.0,
        UnscoredReason.EXPECTED_TURN_NOT_REACHED,
    )
    tools.look(2, [_made("b")], _nobody)
    assert _at(tools, 2, is_over=True) == 1.0


@pytest.mark.parametrize("turn", [None, "0", "all", -1])
def test_a_call_that_names_no_turn_is_never_due_and_left_out(turn: Any) -> None:
    tools = ToolCorrectness([_expected(turn=turn)])
    tools.look(1, [_made()], _nobody)
    assert (_at(tools, 1), _at(tools, 1, is_over=True)) == (
        UnscoredReason.NO_TOOL_CALL_DUE,
        UnscoredReason.NO_TOOL_CALL_DUE,
    )
    tools = ToolCorrectness([_expected(turn=turn), _expected("a", 0)])
    tools.look(1, [_made("a")], _nobody)
    assert _at(tools, 1, is_over=True) == 1.0


def test_where_nothing_is_expected_there_is_no_score() -> None:
    assert _at(ToolCorrectness([]), 3, is_over=True) == UnscoredReason.NO_TOOL_CALL_DUE


def test_a_judge_is_asked_about_what_may_still_be_right() -> None:
    tools = ToolCorrectness([_expected(x="?is a date", y=1, output=["?confirms it"])])
    wrong, right = _made("book", "done", x="now", y=2), _made("book", "done", x="now", y=1)
    tools.look(1, [wrong, right], lambda _: None)
    asked = list(tools.open_questions())
    assert asked == [
        ToolQuestion(1, 0, 1, "x", "?is a date", "now", right),
        ToolQuestion(1, 0, 1, None, "?confirms it", "done", right),
    ]
    assert _at(tools, 1) is None


def test_an_argument_that_is_not_there_is_shown_to_the_judge_as_empty() -> None:
    tools = ToolCorrectness([_expected(x="?is a date")])
    tools.look(1, [_made()], lambda _: None)
    assert [question.value for question in tools.open_questions()] == [""]


@pytest.mark.parametrize(
    ("first", "second", "score", "open_calls"),
    [
        (True, None, 1.0, []),
        (False, True, 1.0, []),
        (False, False, 0.0, []),
        (False, None, None, [1]),
        (None, True, None, [0]),  # the first is asked about before the second
        (LATE, True, 1.0, []),
        (LATE, False, LATE, []),
        (False, LATE, LATE, []),
    ],
)
def test_the_first_call_that_is_right_decides(
    first: Finding, second: Finding, score: Any, open_calls: list[int]
) -> None:
    tools = ToolCorrectness([_expected(x="?is a date")])
    tools.look(1, [_made(x="a"), _made(x="b")], lambda question: (first, second)[question.made])
    assert _at(tools, 1) == score
    assert [question.made for question in tools.open_questions()] == open_calls


@pytest.mark.parametrize(
    ("x", "y", "score", "open_parameters"),
    [
        (True, True, 1.0, []),
        (False, None, 0.0, []),
        (LATE, False, 0.0, []),
        (LATE, True, LATE, []),
        (LATE, None, None, ["y"]),
        (None, True, None, ["x"]),
    ],
)
def test_every_check_of_a_call_must_hold(
    x: Finding, y: Finding, score: Any, open_parameters: list[str]
) -> None:
    tools = ToolCorrectness([_expected(x="?is a date", y="?is a place")])
    tools.look(
        1, [_made(x="a", y="b")], lambda question: {"x": x, "y": y}[question.parameter or ""]
    )
    assert _at(tools, 1) == score
    assert [question.parameter for question in tools.open_questions()] == open_parameters


def test_answers_come_in_later() -> None:
    tools = ToolCorrectness([_expected(x="?is a date"), _expected("pay")])
    made = [_made(x="a"), _made("pay")]
    tools.look(1, made, lambda _: None)
    assert (_results(tools, 1), _at(tools, 1)) == ({1: 1.0}, None)
    tools.look(1, made, lambda _: True)
    assert (_results(tools, 1), _at(tools, 1)) == ({0: 1.0, 1: 1.0}, 1.0)
    assert list(tools.open_questions()) == []


def test_one_unknown_finding_makes_the_score_unknown() -> None:
    tools = ToolCorrectness([_expected(x="?is a date"), _expected("pay", 1)])
    tools.look(1, [_made(x="a")], lambda _: LATE)
    tools.look(2, [], _nobody)
    assert (_at(tools, 1), _at(tools, 2)) == (LATE, LATE)


def test_a_turn_that_is_gone_takes_its_findings_with_it() -> None:
    tools = ToolCorrectness([_expected("a", 0), _expected("b", 1, x="?"), _expected("c", None)])
    tools.look(1, [_made("a")], _nobody)
    tools.look(2, [_made("b", x=1)], lambda _: None)
    tools.forget_from(2)
    assert (_results(tools, 2), _at(tools, 1), list(tools.open_questions())) == ({0: 1.0}, 1.0, [])
