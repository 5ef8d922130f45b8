"""agent-inspect's observed values of a trace: latencies, tokens of the agent, tool calls. Nothing is judged."""

from collections.abc import Sequence

from consumers.engine.agent_inspect.errors import Code, InvalidInputValueError
from consumers.engine.agent_inspect.traces import Step, Turn
from consumers.engine.goals.curve_area import PLACES


def total_latency_ms(turns: Sequence[Turn]) -> float:
    """Sum of the turns' latencies; 0 without turns.

    Raises:
        InvalidInputValueError: 050008 when a turn has none.
    """
    missing = [number for number, turn in enumerate(turns, 1) if turn.latency_ms is None]
    if missing:
        raise InvalidInputValueError(Code.MISSING_VALUE, f"Turns without a latency: {missing}.")
    total_ms = 0.0  # one by one: from Python 3.12 on sum() corrects for lost bits
    for turn in turns:
        total_ms += turn.latency_ms or 0.0
    return round(total_ms, PLACES)


def average_latency_ms(turns: Sequence[Turn]) -> float:
    """The rounded total divided by the number of turns; 0 without turns.

    Raises:
        InvalidInputValueError: 050008 when a turn has none.
    """
    total_ms = total_latency_ms(turns)
    return round(total_ms / len(turns), PLACES) if turns else 0.0


def input_tokens(turns: Sequence[Turn]) -> int:
    """Input tokens of all steps. Raises InvalidInputValueError 050008 when a turn has no steps."""
    return sum(step.input_tokens or 0 for step in _steps(turns))


def output_tokens(turns: Sequence[Turn]) -> int:
    """Output tokens of all steps. Raises InvalidInputValueError 050008 when a turn has no steps."""
    return sum(step.output_tokens or 0 for step in _steps(turns))


def reasoning_tokens(turns: Sequence[Turn]) -> int:
    """Reasoning tokens of all steps. Raises InvalidInputValueError 050008 when a turn has no steps."""
    return sum(step.reasoning_tokens or 0 for step in _steps(turns))


def total_tokens(turns: Sequence[Turn]) -> int:
    """Tokens of all three kinds. Raises InvalidInputValueError 050008 when a turn has no steps."""
    return input_tokens(turns) + output_tokens(turns) + reasoning_tokens(turns)


def tool_call_count(turns: Sequence[Turn]) -> int:
    """Steps that name a tool. Raises TypeError when a turn has None for its steps."""
    count = 0
    for turn in turns:
        if turn.steps is None:
            raise TypeError("A turn has None for its steps.")
        count += sum(bool(step.tool and step.tool.strip()) for step in turn.steps)
    return count


def _steps(turns: Sequence[Turn]) -> list[Step]:
    steps: list[Step] = []
    for number, turn in enumerate(turns, 1):
        if not turn.steps:
            raise InvalidInputValueError(Code.MISSING_VALUE, f"Turn {number} has no steps.")
        steps += turn.steps
    return steps
