"""agent-inspect's tool correctness: which of the expected tool calls were made in the turns that they name."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from consumers.engine.agent_inspect.curves import progress_of
from consumers.engine.agent_inspect.errors import Code, InvalidInputValueError
from consumers.engine.agent_inspect.judging import Config, Judge, voted_on_tool
from consumers.engine.agent_inspect.traces import ExpectedCall, Required, Step, Turn, require_texts

JudgeOfCheck = Callable[[str, Any, Step], Judge]
"""The judge of one check: its text, the value that it looks at, and the tool call with that value."""


class ToolCorrectness(NamedTuple):
    """The share of expected calls that were made, and which, in the order of judging."""

    score: float
    flags: tuple[bool, ...]


def tool_correctness(
    turns: Sequence[Turn],
    expected_calls: Sequence[ExpectedCall],
    judge_of: JudgeOfCheck,
    config: Mapping[str, Any],
) -> ToolCorrectness:
    """Look for every expected call in its turn. One that names no turn of the conversation is left out silently.

    A tool call that was made may serve several expected ones, and further calls and arguments cost nothing.

    Raises:
        InvalidInputValueError: 050004 when all were left out; 050008 when a turn in reach has no text or an expected call
            no tool; 050009 when something is to be both equal to a value and checked by a judge.
        EvaluationError: A vote failed: 050000 or 050007.
        TypeError: The turn has None for its steps, or a step None for the arguments that are looked for.
    """
    flags = []
    for index in range(len(turns)):
        for expected in expected_calls:
            if expected.turn == index:
                require_texts(turns[: index + 1])
                if not expected.tool:
                    raise InvalidInputValueError(Code.MISSING_VALUE, "An expected tool call names no tool.")
                flags.append(_is_made(expected, turns[index].steps, judge_of, config))
    return ToolCorrectness(progress_of(flags), tuple(flags))


def _is_made(expected: ExpectedCall, steps: Sequence[Step] | None, judge_of: JudgeOfCheck, config: Config) -> bool:
    if steps is None:
        raise TypeError("The turn has None for its steps.")
    for step in [step for step in steps if step.tool is not None]:
        if expected.tool.strip() == step.tool.strip() and _is_as_expected(expected, step, judge_of, config):
            return True
    return False


def _is_as_expected(expected: ExpectedCall, step: Step, judge_of: JudgeOfCheck, config: Config) -> bool:
    # Everything is looked at, and every judge asked, even when it has failed already. Of a repeated name the last counts.
    found = {
        name: _is_argument_right(name, required, step, judge_of, config) for name, required in expected.parameters or ()
    }
    is_output_right = expected.output is None or _is_right(expected.output, step.output, step, judge_of, config)
    return all(found.values()) and is_output_right


def _is_argument_right(name: str, required: Required, step: Step, judge_of: JudgeOfCheck, config: Config) -> bool:
    _require_one_way(required)
    if step.arguments is None:
        raise TypeError("A tool call has None for its arguments.")
    for argument in step.arguments:
        if argument.name.strip() == name.strip():
            return _is_right(required, argument.value, step, judge_of, config)
    return required.check is not None and _is_right(required, "", step, judge_of, config)


def _is_right(required: Required, value: Any, step: Step, judge_of: JudgeOfCheck, config: Config) -> bool:
    _require_one_way(required)
    if required.check is None:
        return bool(value == required.value)
    return voted_on_tool(judge_of(required.check, value, step), config).is_complete


def _require_one_way(required: Required) -> None:
    if required.value is not None and required.check is not None:
        raise InvalidInputValueError(
            Code.INVALID_VALUE, "A value is given and a check too; only one of them is possible."
        )
