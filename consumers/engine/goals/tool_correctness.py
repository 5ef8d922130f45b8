"""Whether a call used the tools that its goals expect."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from consumers.engine.goals.checks import CalledTool
from consumers.engine.goals.curve import PLACES
from schemas.closed_sets import UnscoredReason
from schemas.goals.goal_set import ExpectedOutput, ExpectedParameter, ExpectedToolCall
from schemas.rows import ExpectedTool, NotApplicable, ToolDifference, Unscored, Value


class ToolQuestion(NamedTuple):
    """A question to a judge about a tool call that was made.

    Attributes:
        turn: The turn in which it was made.
        expected: Place of the expected call in the goal set, from 0.
        made: Place of the call among those made in the turn, from 0.
        parameter: The argument it is about; None for the answer.
        check: The condition, in plain words.
        value: The value it applies to; empty when the argument is missing.
        call: The call that was made.
    """

    turn: int
    expected: int
    made: int
    parameter: str | None
    check: str
    value: Any
    call: CalledTool


class Difference(NamedTuple):
    """A part of a call that is not as expected.

    Attributes:
        parameter: The argument; None for the answer.
        required: What is required of it.
        is_there: Whether the call has it.
        value: Its value.
    """

    parameter: str | None
    required: ExpectedParameter | ExpectedOutput
    is_there: bool
    value: Any


MOST_DIFFERENCES: Final = 5
"""Differences of one expected tool call that its row names: what follows is rarely
another mistake.
"""
MOST_OTHER_TURNS: Final = 10
"""Turns in which a missed tool was called that its row names."""
_NO_TURN: Final = NotApplicable("the goal set names no turn for it")

Finding = bool | UnscoredReason | None
"""Whether something is as expected; a reason when that cannot be known, None when it is not known
yet.
"""

Answers = Callable[[ToolQuestion], Finding]
"""The judge's finding for a question; None without a verdict so far."""

InWords = Callable[[Difference], ToolDifference]
"""Writes a difference down, without personal data."""


class ToolCorrectness:
    """The expected tool calls of one conversation and their findings.

    One call may serve several expected ones, and unexpected calls cost nothing: the score shows
    missing calls, not surplus ones.
    """

    def __init__(self, expected: Sequence[ExpectedToolCall]) -> None:
        self._expected = tuple(expected)
        self._findings: dict[int, Finding] = {}
        self._differences: dict[int, tuple[Difference, ...]] = {}
        self._questions: dict[int, tuple[ToolQuestion, ...]] = {}

    def look(self, turn: int, made: Sequence[CalledTool], answers: Answers) -> None:
        """Looks for the calls expected in this turn among those made in it; again when either
        changes.
        """
        for place, expected in enumerate(self._expected):
            if _turn_of(expected) == turn:
                search = _Search(turn, place, answers)
                self._findings[place] = search.finding(expected, made)
                self._questions[place] = tuple(search.open)
                self._differences.pop(place, None)
                if search.nearest is not None:
                    self._differences[place] = search.nearest

    def forget_from(self, first_gone: int) -> None:
        """Forgets this turn and all after it."""
        for place, expected in enumerate(self._expected):
            turn = _turn_of(expected)
            if turn is not None and turn >= first_gone:
                self._findings.pop(place, None)
                self._differences.pop(place, None)
                self._questions.pop(place, None)

    def open_questions(self) -> Iterator[ToolQuestion]:
        """Questions for a judge now. Of several calls of a tool only the first that may be right is
        asked about.
        """
        for questions in self._questions.values():
            yield from questions

    def found(
        self,
        last_turn: int,
        called_in: Mapping[str, Collection[int]],
        in_words: InWords,
        *,
        is_over: bool,
    ) -> Iterator[ExpectedTool]:
        """The expected calls that are known after this turn, in the order of the goal set; all of
        them once the call is over.

        Args:
            last_turn: The turn.
            called_in: By tool, the turns in which it was called.
            in_words: Writes differences down.
            is_over: Whether the call is over.
        """
        for place, expected in enumerate(self._expected):
            turn = _turn_of(expected)
            finding = self._findings.get(place)
            if is_over and turn is not None and turn > last_turn:
                finding = UnscoredReason.EXPECTED_TURN_NOT_REACHED
            if finding is False:
                yield self._missed(place, called_in.get(expected.tool.strip(), ()), in_words)
            elif finding is not None:
                yield ExpectedTool(place, expected.tool, _value(finding), turn)
            elif is_over and turn is None:
                yield ExpectedTool(place, expected.tool, _NO_TURN)

    def _missed(self, place: int, called_in: Collection[int], in_words: InWords) -> ExpectedTool:
        expected, differences = (
            self._expected[place],
            self._differences.get(place, ())[:MOST_DIFFERENCES],
        )
        turn = _turn_of(expected)
        missed: dict[Literal["name", "arguments", "output"], None] = {}
        for each in differences:
            missed["output" if each.parameter is None else "arguments"] = None
        elsewhere = [other for other in called_in if other != turn]
        return ExpectedTool(
            place,
            expected.tool,
            0.0,
            turn,
            missed=tuple(missed) or ("name",),
            differences=tuple(map(in_words, differences)),
            called_in_turns=tuple(elsewhere[:MOST_OTHER_TURNS]),
        )

    def at(self, turn: int) -> Value | None:
        """The share of the calls expected up to this turn that were made: agent-inspect's number
        for these turns. None while one of them is open.
        """
        due = [
            self._findings.get(place)
            for place, each in enumerate(self._expected)
            if _is_due(each, turn)
        ]
        if not due:
            return Unscored(UnscoredReason.NO_TOOL_CALL_DUE)
        if None in due:
            return None
        unknown = next((finding for finding in due if isinstance(finding, UnscoredReason)), None)
        return round(due.count(True) / len(due), PLACES) if unknown is None else Unscored(unknown)

    def at_end(self, last_turn: int) -> Value | None:
        """As `at`, but a call that is expected in a turn that never came leaves the score unknown.
        One that names no turn is left out, as in agent-inspect.
        """
        if any(
            _turn_of(each) is not None and not _is_due(each, last_turn) for each in self._expected
        ):
            return Unscored(UnscoredReason.EXPECTED_TURN_NOT_REACHED)
        return self.at(last_turn)


class _Search:
    """The search for one expected call in one turn.

    Attributes:
        open: The unanswered questions that it waits for.
        nearest: What is not as expected in the call of this tool with the fewest differences; None
            without a wrong one.
    """

    def __init__(self, turn: int, expected: int, answers: Answers) -> None:
        self._turn = turn
        self._expected = expected
        self._answers = answers
        self.open: list[ToolQuestion] = []
        self.nearest: tuple[Difference, ...] | None = None

    def finding(self, expected: ExpectedToolCall, made: Sequence[CalledTool]) -> Finding:
        """The first call that is as expected decides; one that may be leaves the result open."""
        reason: Finding = False
        for place, call in enumerate(made):
            if call.tool.strip() == expected.tool.strip():
                finding = self._is_as_expected(place, expected, call)
                if finding is True or finding is None:
                    return finding
                reason = reason or finding
        return reason

    def _is_as_expected(self, place: int, expected: ExpectedToolCall, call: CalledTool) -> Finding:
        required: dict[str | None, ExpectedParameter | ExpectedOutput] = {
            parameter.name: parameter
            for parameter in expected.expected_parameters  # of a repeated name the last counts
        }
        if expected.expected_output is not None:
            required[None] = expected.expected_output
        questions = []
        wrong: list[Difference] = []
        is_withheld = False
        for name, each in required.items():
            if call.is_withheld if name is None else call.lacks_arguments:
                is_withheld = True
                continue
            is_there, value = (True, call.answer) if name is None else _argument(call, name)
            if each.check is not None:
                questions.append(
                    ToolQuestion(self._turn, self._expected, place, name, each.check, value, call)
                )
            elif not is_there or value != each.value:
                wrong.append(Difference(name, each, is_there, value))
        answered = [] if wrong else [(question, self._answers(question)) for question in questions]
        for question, answer in answered:
            if answer is False:
                name = question.parameter
                is_there = name is None or _argument(call, name)[0]
                wrong.append(Difference(name, required[name], is_there, question.value))
        if wrong:
            if self.nearest is None or len(wrong) < len(self.nearest):
                self.nearest = tuple(wrong)
            return False
        unanswered = [question for question, answer in answered if answer is None]
        self.open += unanswered
        known = UnscoredReason.WITHHELD if is_withheld else True
        return (
            None
            if unanswered
            else next((answer for _, answer in answered if answer is not True), known)
        )


def _argument(call: CalledTool, name: str) -> tuple[bool, Any]:
    """Whether the call has such an argument, and its value; names match without the blanks around
    them.
    """
    return next(
        ((True, value) for each, value in call.arguments.items() if each.strip() == name.strip()),
        (False, ""),
    )


def _turn_of(expected: ExpectedToolCall) -> int | None:
    """The turn in which the call is expected; None when it names none, as agent-inspect
    reads it.
    """
    return expected.turn + 1 if isinstance(expected.turn, int) and expected.turn >= 0 else None


def _is_due(expected: ExpectedToolCall, turn: int) -> bool:
    due = _turn_of(expected)
    return due is not None and due <= turn


def _value(finding: bool | UnscoredReason) -> Value:  # noqa: FBT001  # a finding is data
    return Unscored(finding) if isinstance(finding, UnscoredReason) else float(finding)
