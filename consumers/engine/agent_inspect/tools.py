"""agent-inspect's tool correctness: which of the expected tool calls were made in the turns that they name."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

from consumers.engine.agent_inspect.curves import progress_of
from consumers.engine.agent_inspect.errors import Code, InvalidInputValueError
from consumers.engine.agent_inspect.judging import KEEPS_COMPLETIONS, Asking, Config, voted_on_value
from consumers.engine.agent_inspect.traces import CheckedValue, ExpectedCall, Required, Step, Turn, require_texts


class ExpectedFound(NamedTuple):
    """One expected call: whether it was made, and why it counts as made or not, in sentences."""

    expected: ExpectedCall
    is_made: bool
    explanations: tuple[str, ...]


class ToolCorrectness(NamedTuple):
    """The share of expected calls that were made, and each of them in the order of judging."""

    score: float
    found: tuple[ExpectedFound, ...]


def tool_correctness(
    turns: Sequence[Turn], expected_calls: Sequence[ExpectedCall], config: Config
) -> Asking[ToolCorrectness]:
    """Looks for every expected call in its turn. One that names no turn of the conversation is left out silently.

    A tool call that was made may serve several expected ones, and further calls and arguments cost nothing.

    Raises:
        InvalidInputValueError: 050004 when all were left out; 050008 when a turn in reach has no text or an expected call
            no tool; 050009 when something is to be both equal to a value and checked by a judge.
        EvaluationError: A vote failed: 050000 or 050007.
        TypeError: The turn has None for its steps, or a step None for the arguments that are looked for.
    """
    questions = count()
    found = []
    for index in range(len(turns)):
        for expected in expected_calls:
            if expected.turn == index:
                require_texts(turns[: index + 1])
                if not expected.tool:
                    raise InvalidInputValueError(Code.MISSING_VALUE, "An expected tool call names no tool.")
                search = _Search(index, expected, config, questions)
                is_made = yield from search.is_made(turns[index].steps)
                found.append(ExpectedFound(expected, is_made, search.summary(is_made=is_made)))
    return ToolCorrectness(progress_of([each.is_made for each in found]), tuple(found))


@dataclass(slots=True)
class _Search:
    """The search for one expected call in its turn. `_reasons` are of the tool calls that were compared."""

    _index: int
    _expected: ExpectedCall
    _config: Config
    _questions: "count[int]"
    _reasons: list[str] = field(default_factory=list)

    def is_made(self, steps: Sequence[Step] | None) -> Asking[bool]:
        if steps is None:
            raise TypeError("The turn has None for its steps.")
        for step in [step for step in steps if step.tool is not None]:
            if self._expected.tool.strip() == step.tool.strip() and (yield from self._is_as_expected(step)):
                return True
        return False

    def summary(self, *, is_made: bool) -> tuple[str, ...]:
        """A sentence about the call, then those about its parts."""
        made = "was made as expected" if is_made else "was not made as expected"
        missing = () if self._reasons or is_made else ("No call of this tool is in the turn.",)
        return (f"The call of {self._expected.tool!r} in turn {self._index + 1} {made}.", *missing, *self._reasons)

    def _is_as_expected(self, step: Step) -> Asking[bool]:
        # Everything is looked at, and every judge asked, even when it has failed already. Of a repeated name the last counts.
        found = {}
        for name, required in self._expected.parameters or ():
            found[name] = yield from self._is_argument_right(name, required, step)
        output = self._expected.output
        is_output_right = output is None or (yield from self._is_right(None, output, step.output, step))
        return all(found.values()) and is_output_right

    def _is_argument_right(self, name: str, required: Required, step: Step) -> Asking[bool]:
        _require_one_way(required)
        if step.arguments is None:
            raise TypeError("A tool call has None for its arguments.")
        for argument in step.arguments:
            if argument.name.strip() == name.strip():
                return (yield from self._is_right(name, required, argument.value, step))
        if required.check is not None:
            return (yield from self._is_right(name, required, "", step))
        self._reasons.append(f"The argument {name!r} is missing.")
        return False

    def _is_right(self, name: str | None, required: Required, value: Any, step: Step) -> Asking[bool]:
        _require_one_way(required)
        what = "output" if name is None else f"argument {name!r}"
        if required.check is None:
            is_equal = bool(value == required.value)
            seen = "" if is_equal else f"; it is {value!r}"
            self._reasons.append(f"The {what} is expected to equal {required.value!r}{seen}.")
            return is_equal
        checked = CheckedValue(name, required.check, value, step)
        vote = yield from voted_on_value(self._index, next(self._questions), checked, self._config)
        verdict = "complies" if vote.is_complete else "does not comply"
        self._reasons.append(f"By the judge, the {what} {verdict} with {required.check!r}.")
        self._reasons += vote.completions if self._config.get(KEEPS_COMPLETIONS, False) else ()
        return bool(vote.is_complete)


def _require_one_way(required: Required) -> None:
    if required.value is not None and required.check is not None:
        raise InvalidInputValueError(
            Code.INVALID_VALUE, "A value is given and a check too; only one of them is possible."
        )
