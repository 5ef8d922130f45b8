"""Goal sets in plain words: their contents, and how each subgoal is checked."""

from collections.abc import Iterator, Mapping
from typing import assert_never

from schemas.goals.checks import (
    AllOf,
    AnyCheck,
    AnyOf,
    Between,
    Equals,
    Judge,
    Matcher,
    Matches,
    Not,
    OneOf,
    Present,
    Says,
    ToolCalled,
    ToolResult,
    Within,
)
from schemas.goals.goal_set import ExpectedParameter, ExpectedToolCall, GoalSet, seen


def set_in_words(goals: GoalSet) -> Iterator[str]:
    """The set as lines: a heading, and one indented line for each part."""
    agents = f"for calls of {', '.join(goals.agents)}" if goals.agents else "for calls that name it"
    yield f"{goals.id}: {agents}, up to {goals.max_turns} turns, digest {goals.digest}"
    width = max(len(subgoal.id) for subgoal in goals.subgoals)
    for subgoal in goals.subgoals:
        how = f"by a judge: {subgoal.details}" if subgoal.is_judged else f"by code: {check_in_words(subgoal.check)}"
        yield f"  {subgoal.id:<{width}}  {how}"
    for call in goals.expected_tool_calls:
        yield f"  expected tool call: {_call_in_words(call)}"


def check_in_words(check: AnyCheck) -> str:
    """How a subgoal is checked.

    Example:
        >>> thanks = Says(kind="says", speaker="user", pattern="thank(s| you)")
        >>> check_in_words(Within(kind="within", turns=3, check=Not(kind="not", check=thanks)))
        'within 3 turns: not (the user says /thank(s| you)/)'
    """
    match check:
        case Judge():
            return "a judge decides"
        case Says():
            return f"the {check.speaker} says /{check.pattern}/"
        case ToolCalled():
            return f"{check.tool} is called{_with(check.arguments)}"
        case ToolResult():
            how = f" {check.outcome}" if check.outcome else ""
            return f"{check.tool}{_with(check.arguments)} answers{how}{_with(check.result)}"
        case Within():
            limit = f"{check.turns} turns" if check.turns is not None else f"{check.seconds:g} s"
            return f"within {limit}: {check_in_words(check.check)}"
        case AllOf() | AnyOf():
            word = "all" if isinstance(check, AllOf) else "any"
            return f"{word} of ({'; '.join(map(check_in_words, check.checks))})"
        case Not():
            return f"not ({check_in_words(check.check)})"
        case _:
            assert_never(check)


def _with(matchers: Mapping[str, Matcher]) -> str:
    matched = ", ".join(_matcher_in_words(path, matcher) for path, matcher in matchers.items())
    return f" with {matched}" if matched else ""


def _matcher_in_words(path: str, matcher: Matcher) -> str:
    match matcher:
        case Equals():
            return f"{path} = {seen(matcher.equals)}"
        case OneOf():
            return f"{path} one of {', '.join(map(seen, matcher.one_of))}"
        case Matches():
            return f"{path} like /{matcher.matches}/"
        case Between(at_least=least, at_most=most):
            if least is not None and most is not None:
                return f"{path} from {least:g} to {most:g}"
            return f"{path} at most {most:g}" if most is not None else f"{path} at least {least:g}"
        case Present():
            return f"{path} {'present' if matcher.present else 'absent'}"
        case _:
            assert_never(matcher)


def _call_in_words(call: ExpectedToolCall) -> str:
    arguments = ", ".join(f"{each.name}{_value_in_words(each)}" for each in call.expected_parameters)
    turn = "" if call.turn is None else f", turn {call.turn}"
    return f"{call.tool}({arguments}){turn}"


def _value_in_words(expected: ExpectedParameter) -> str:
    return f"={seen(expected.value)}" if expected.check is None else f" as a judge sees it: {expected.check}"
