"""The input of agent-inspect, and the errors that stop it before a request is sent.

Fields are typed Any where it takes any value and fails, if at all, when it uses it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from consumers.engine.agent_inspect.errors import Code, InvalidInputValueError

TEMPLATE = "template_subgoal"


class Argument(NamedTuple):
    """One argument of a tool call that was made."""

    name: str
    value: Any


class Step(NamedTuple):
    """One step of the agent inside a turn: usually a tool call, with the tokens it cost."""

    tool: Any = None
    arguments: Sequence[Argument] | None = ()
    output: Any = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None


class Turn(NamedTuple):
    """One user input with the agent's response and the steps in between."""

    user_text: Any
    assistant_text: Any
    steps: Sequence[Step] | None = ()
    latency_ms: float | None = None


class Subgoal(NamedTuple):
    """A subgoal in plain words; `turn` counts for static conversations only, from zero, and is compared as it is."""

    details: str
    turn: Any = None
    type: Any = None


class Required(NamedTuple):
    """The expected argument or output: equal to `value`, or as `check` says to a judge."""

    value: Any = None
    check: str | None = None


class ExpectedCall(NamedTuple):
    """A tool call that should be made in the turn with the index `turn`, from zero."""

    tool: Any
    parameters: Sequence[tuple[str, Required]] | None = None
    output: Required | None = None
    turn: Any = None


class CheckedValue(NamedTuple):
    """An argument or the output of a tool call that was made, which a judge checks.

    Attributes:
        name: The argument; None for the output.
        check: The condition, in plain words.
        value: The value; empty when the argument is missing.
        step: The tool call.
    """

    name: str | None
    check: str
    value: Any
    step: Step


def require_texts(turns: Sequence[Turn]) -> None:
    """Every one of these turns needs both its texts.

    Raises:
        InvalidInputValueError: 050008 when one has none.
    """
    for number, turn in enumerate(turns, 1):
        if not turn.user_text:
            raise InvalidInputValueError(Code.MISSING_VALUE, f"Turn {number} has no user text.")
        if not turn.assistant_text:
            raise InvalidInputValueError(Code.MISSING_VALUE, f"Turn {number} has no assistant text.")


def require_judgeable(turns: Sequence[Turn], subgoal: Subgoal) -> None:
    """All that must hold before a subgoal is judged on these turns.

    Raises:
        InvalidInputValueError: 050008 when a turn has no text or the subgoal no details.
        TypeError: A text is not a string, or a tool call has None for its arguments.
    """
    require_texts(turns)
    if not subgoal.details:
        raise InvalidInputValueError(Code.MISSING_VALUE, "A subgoal has no details to judge by.")
    for number, turn in enumerate(turns, 1):
        if not isinstance(turn.user_text, str) or not isinstance(turn.assistant_text, str):
            raise TypeError(f"A text of turn {number} is not a string.")
        if any(step.tool and step.arguments is None for step in turn.steps or ()):
            raise TypeError(f"A tool call of turn {number} has None for its arguments.")


def require_fillable(config: Mapping[str, Any], user_instruction: str | None) -> None:
    """A prompt template of one's own may name only existing values.

    Raises:
        KeyError: It asks for another value, or for the user's instruction when there is none.
    """
    if TEMPLATE not in config:
        return
    fields = dict.fromkeys(("subgoal", "trajectories", "answers", "dynamicDialogue"), "")
    if user_instruction and user_instruction.strip():
        fields["userTask"] = ""
    config[TEMPLATE].format(**fields)
