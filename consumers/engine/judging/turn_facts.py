"""The facts of one turn that checks by code read, and whether the leaves of a check hold in it."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple, Protocol, assert_never

from schemas.goals.checks import (
    Between,
    Equals,
    Matcher,
    Matches,
    OneOf,
    Present,
    Says,
    ToolCalled,
    ToolResult,
    TurnCheck,
)
from schemas.goals.patterns import compiled, is_found

MAX_SEARCHED_CALLS: Final = 50
"""Tool calls of a turn that are checked, the first ones; a turn makes some five, a loop of the agent more."""
WHOLE_ANSWER: Final = "."
"""Path of a tool's whole answer."""

_ABSENT: Final = object()
"""Value at a path that leads nowhere."""


class CalledTool(NamedTuple):
    """One use of a tool.

    Attributes:
        tool: Its name.
        arguments: Its parameters by name.
        answer: Its answer as a JSON value.
        is_success: Whether the tool succeeded; None without an answer, or where a withheld answer hides it.
        is_withheld: Whether it has answered, and its producer does not send the answer.
        lacks_arguments: Whether its producer does not send the arguments.
    """

    tool: str
    arguments: Mapping[str, Any]
    answer: Any
    is_success: bool | None
    is_withheld: bool = False
    lacks_arguments: bool = False


@dataclass(frozen=True)
class TurnFacts:
    """One turn, from the end of the assistant's previous answer to the end of its own.

    Attributes:
        user_words: The user's words; empty without any, or before they are known.
        assistant_words: The assistant's answer; likewise.
        calls: The tools used, in the order of their calls.
        start_ms: Start of the turn on the clock of the call's events; None when unknown.
        end_ms: Time of the last known event of the turn; None when unknown.
    """

    user_words: str
    assistant_words: str
    calls: tuple[CalledTool, ...] = ()
    start_ms: int | None = None
    end_ms: int | None = None

    @cached_property
    def content_hash(self) -> str:
        """Hash of the words and tools without the times: the input of a check's leaves."""
        facts = [self.user_words, self.assistant_words, [list(call) for call in self.calls]]
        text = json.dumps(facts, sort_keys=True, ensure_ascii=False, default=str)
        return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()


class Leaf(Protocol):
    """The part of a check that looks at one turn."""

    def holds_in(self, turn: TurnFacts) -> bool | None:
        """Whether it holds in this turn alone; None where withheld arguments or a withheld answer decide that."""


def leaf_of(check: TurnCheck) -> Leaf:
    """The leaf of a check, with its patterns ready to search."""
    match check:
        case Says():
            return _Said(check)
        case ToolCalled() | ToolResult():
            return _ToolUsed(check)
        case _:
            assert_never(check)


class _Said:
    def __init__(self, check: Says) -> None:
        self._is_user = check.speaker == "user"
        self._pattern = compiled(check.pattern)

    def holds_in(self, turn: TurnFacts) -> bool:
        return is_found(self._pattern, turn.user_words if self._is_user else turn.assistant_words)


class _Wanted(NamedTuple):
    """The wanted value of one argument or one part of an answer."""

    path: str
    matcher: Matcher
    pattern: re.Pattern[str] | None

    def fits(self, whole: object) -> bool:
        value = _at(whole, self.path)
        match self.matcher:
            case Present(present=is_wanted):
                return (value is not _ABSENT) is is_wanted
            case _ if value is _ABSENT:
                return False
            case Equals(equals=wanted):
                return is_same(value, wanted)
            case OneOf(one_of=several):
                return any(is_same(value, wanted) for wanted in several)
            case Between(at_least=least, at_most=most):
                is_number = isinstance(value, int | float) and not isinstance(value, bool)
                return is_number and (least is None or value >= least) and (most is None or value <= most)
        return self.pattern is not None and is_found(self.pattern, _text(value))


class _ToolUsed:
    def __init__(self, check: ToolCalled | ToolResult) -> None:
        self._tool = check.tool
        self._arguments = _wanted(check.arguments)
        self._must_answer = isinstance(check, ToolResult)
        self._is_success = None
        self._answer: tuple[_Wanted, ...] = ()
        if isinstance(check, ToolResult):
            self._is_success = None if check.outcome is None else check.outcome == "success"
            self._answer = _wanted(check.result)

    def holds_in(self, turn: TurnFacts) -> bool | None:
        found = [self._fits(call) for call in turn.calls[:MAX_SEARCHED_CALLS]]
        return True if True in found else None if None in found else False

    def _fits(self, call: CalledTool) -> bool | None:
        if call.tool != self._tool:
            return False
        return _all_of(self._fit_of_arguments(call), self._fit_of_outcome(call), self._fit_of_answer(call))

    def _fit_of_arguments(self, call: CalledTool) -> bool | None:
        if self._arguments and call.lacks_arguments:
            return None
        return all(each.fits(call.arguments) for each in self._arguments)

    def _fit_of_outcome(self, call: CalledTool) -> bool | None:
        if call.is_success is not None:
            return self._is_success is None or call.is_success is self._is_success
        if call.is_withheld:  # it has answered, and nobody knows how
            return True if self._is_success is None else None
        return not self._must_answer

    def _fit_of_answer(self, call: CalledTool) -> bool | None:
        if self._answer and call.is_withheld:
            return None
        return all(each.fits(call.answer) for each in self._answer)


def _all_of(*parts: bool | None) -> bool | None:
    return False if False in parts else None if None in parts else True


def _wanted(matchers: Mapping[str, Matcher]) -> tuple[_Wanted, ...]:
    return tuple(
        _Wanted(path, matcher, compiled(matcher.matches) if isinstance(matcher, Matches) else None)
        for path, matcher in matchers.items()
    )


def _at(whole: object, path: str) -> Any:
    """The value at a path of names and indexes joined by dots. A name that contains dots itself comes first."""
    if path == WHOLE_ANSWER:
        return whole
    if isinstance(whole, Mapping) and path in whole:
        return whole[path]
    value = whole
    for name in path.split("."):
        if isinstance(value, Mapping) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            return _ABSENT
    return value


def is_same(value: object, wanted: object) -> bool:
    """Equality of JSON values: numbers by value, and a truth value is no number."""
    if isinstance(value, bool) or isinstance(wanted, bool):
        return value is wanted
    if isinstance(value, Mapping) and isinstance(wanted, Mapping):
        return value.keys() == wanted.keys() and all(is_same(value[name], wanted[name]) for name in wanted)
    if isinstance(value, list) and isinstance(wanted, list):
        return len(value) == len(wanted) and all(is_same(*pair) for pair in zip(value, wanted, strict=True))
    return value == wanted


def _text(value: object) -> str:
    """The text in which a pattern is searched."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
