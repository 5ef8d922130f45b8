"""Whether a subgoal is reached, where code can tell: the facts of a turn, and a function for each
kind of check.
"""

import hashlib
import json
import re
from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol, assert_never

from schemas.closed_sets import UnscoredReason
from schemas.goals.checks import (
    AllOf,
    AnyOf,
    Between,
    CodeCheck,
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
    TurnCheck,
    Within,
)
from schemas.goals.goal_set import GoalSet
from schemas.goals.patterns import compiled, is_found
from schemas.units import MS_PER_SECOND

# The facts of one turn that checks by code read, and whether the leaves of a check hold in it.

MAX_SEARCHED_CALLS: Final = 50
"""Tool calls of a turn that are checked, the first ones; a turn makes some five, a loop of the
agent more.
"""
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
        is_success: Whether the tool succeeded; None without an answer, or where a withheld answer
            hides it.
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
        """Whether it holds in this turn alone; None where withheld arguments or a withheld answer
        decide that.
        """


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
                return (
                    is_number
                    and (least is None or value >= least)
                    and (most is None or value <= most)
                )
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
        if True in found:
            return True
        return None if None in found else False

    def _fits(self, call: CalledTool) -> bool | None:
        if call.tool != self._tool:
            return False
        return _all_of(
            self._fit_of_arguments(call), self._fit_of_outcome(call), self._fit_of_answer(call)
        )

    def _fit_of_arguments(self, call: CalledTool) -> bool | None:
        if self._arguments and call.lacks_arguments:
            return None
        return all(each.fits(call.arguments) for each in self._arguments)

    def _fit_of_outcome(self, call: CalledTool) -> bool | None:
        if call.is_success is not None:
            return self._is_success is None or call.is_success is self._is_success
        if call.is_withheld:  # it has answered, and the answer is unknown
            return True if self._is_success is None else None
        return not self._must_answer

    def _fit_of_answer(self, call: CalledTool) -> bool | None:
        if self._answer and call.is_withheld:
            return None
        return all(each.fits(call.answer) for each in self._answer)


def _all_of(*parts: bool | None) -> bool | None:
    if False in parts:
        return False
    return None if None in parts else True


def _wanted(matchers: Mapping[str, Matcher]) -> tuple[_Wanted, ...]:
    return tuple(
        _Wanted(path, matcher, compiled(matcher.matches) if isinstance(matcher, Matches) else None)
        for path, matcher in matchers.items()
    )


def _at(whole: object, path: str) -> Any:
    """The value at a path of names and indexes joined by dots. A name that contains dots itself
    comes first.
    """
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
        return value.keys() == wanted.keys() and all(
            is_same(value[name], wanted[name]) for name in wanted
        )
    if isinstance(value, list) and isinstance(wanted, list):
        return len(value) == len(wanted) and all(
            is_same(*pair) for pair in zip(value, wanted, strict=True)
        )
    return value == wanted


def _text(value: object) -> str:
    """The text in which a pattern is searched."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


# Evaluates the code checks of a call turn by turn: which subgoals are reached, and the evidence.
#
# A check is known to be true, known to be false, or open, and a known result for a part of a call
# holds when the call goes on. The rules:
#
# - A leaf (`says`, `tool_called`, `tool_result`) is true from the first turn in which it holds. It
# is false only when
# its time is over: the call's end, or the end of the `within` around it. - `all_of` is true at the
# last of its parts and false at the first that is false; `any_of` is true at the first of its parts
# and false at the last. - `not` swaps the two. So a negated leaf is decided when its time is over,
# never before: outside a `within` that is the end of the call. `not` of a true part is false at
# once. - `within` n turns is over at turn n, as soon as there is that turn or a later one. `within`
# s seconds counts from the start of turn 1; a turn is in time when it ends in time, and the first
# turn that ends later is where the time is over. Checks inside a `within` are under its limit too,
# so of two limits the stricter one holds. `max_turns` of the set is a `within` around each check:
# what comes later counts for nothing, as with a judge, who is not asked about it. - A turn without
# times may be in time or not. A leaf about arguments or an answer that a producer withholds may
# hold or not. If that decides, the check stays open, even when the call is over.


class CheckState(StrEnum):
    """States of a subgoal: not decided; reached; not reached, and it cannot be any more."""

    OPEN = "open"
    REACHED = "reached"
    MISSED = "missed"


class CheckResult(NamedTuple):
    """The result of one subgoal.

    Attributes:
        state: State of the subgoal.
        turn: The deciding turn; None while it is open.
    """

    state: CheckState
    turn: int | None = None


OPEN: Final = CheckResult(CheckState.OPEN)


class Undecided(NamedTuple):
    """The first turn of which it is unknown whether it decided a subgoal, and the reason."""

    since: int
    reason: UnscoredReason


@dataclass(frozen=True, slots=True)
class _One:
    """A leaf, by its number among those of the set."""

    leaf: int


@dataclass(frozen=True, slots=True)
class _Several:
    """Parts of which all must be true, or any."""

    parts: tuple["_Node", ...]
    needs_all: bool


@dataclass(frozen=True, slots=True)
class _Negated:
    part: "_Node"


@dataclass(frozen=True, slots=True)
class _Limited:
    part: "_Node"
    turns: int | None
    ms: float | None


_Node = _One | _Several | _Negated | _Limited


class CheckPlan:
    """The checks of a goal set, ready to be used by any number of calls."""

    def __init__(self, goals: GoalSet) -> None:
        self.max_turns = goals.max_turns
        self.leaves: list[Leaf] = []
        self.nodes: dict[str, _Node] = {
            subgoal.id: self._node(subgoal.check)
            for subgoal in goals.subgoals
            if not isinstance(subgoal.check, Judge)
        }

    def _node(self, check: CodeCheck) -> _Node:
        match check:
            case AllOf() | AnyOf():
                return _Several(
                    tuple(map(self._node, check.checks)), needs_all=isinstance(check, AllOf)
                )
            case Not():
                return _Negated(self._node(check.check))
            case Within():
                ms = None if check.seconds is None else check.seconds * MS_PER_SECOND
                return _Limited(self._node(check.check), check.turns, ms)
            case _:
                self.leaves.append(leaf_of(check))
                return _One(len(self.leaves) - 1)


class _Window(NamedTuple):
    """The time of a check: up to a turn, up to a number of ms from the call's start (None is no
    limit), and to the end.
    """

    is_over: bool
    turns: int | None = None
    ms: float | None = None

    def narrowed(self, limited: _Limited) -> "_Window":
        """The stricter of its own limits and those of a `within`."""
        turns = [each for each in (self.turns, limited.turns) if each is not None]
        ms = [each for each in (self.ms, limited.ms) if each is not None]
        return _Window(self.is_over, min(turns, default=None), min(ms, default=None))


class _Known(NamedTuple):
    """A decided result: its value and its turn."""

    value: bool
    turn: int


class SubgoalChecks:
    """The subgoals of one call that code checks. It keeps of each turn the leaves that hold and its
    times: no texts.
    """

    def __init__(self, plan: CheckPlan) -> None:
        self._plan = plan
        self._hashes: dict[int, str] = {}
        self._times: dict[int, tuple[int | None, int | None]] = {}
        self._turns: list[int] = []
        self._hits: list[list[int]] = [[] for _ in plan.leaves]
        self._doubts: list[list[int]] = [[] for _ in plan.leaves]
        self._late_turns: dict[float, int | None] = {}
        self._results: dict[bool, Mapping[str, CheckResult]] = {}

    def set_turn(self, turn: int, facts: TurnFacts) -> bool:
        """Sets the facts of a new or changed turn; only its own leaves are evaluated again.

        Args:
            turn: Its number, from 1.
            facts: Its facts as known now.

        Returns:
            Whether anything in it is different.
        """
        times = (facts.start_ms, facts.end_ms)
        is_new = turn not in self._hashes
        if not is_new and self._hashes[turn] == facts.content_hash and self._times[turn] == times:
            return False
        if is_new:
            insort(self._turns, turn)
        if self._hashes.get(turn) != facts.content_hash:
            for leaf, hits, doubts in zip(self._plan.leaves, self._hits, self._doubts, strict=True):
                holds = leaf.holds_in(facts)
                _note(hits, turn, is_hit=holds is True)
                _note(doubts, turn, is_hit=holds is None)
        self._hashes[turn] = facts.content_hash
        self._times[turn] = times
        self._forget()
        return True

    def drop_turn(self, turn: int) -> None:
        """Drops a turn, for example when the call's events turn out to be fewer turns."""
        if self._hashes.pop(turn, None) is None:
            return
        del self._times[turn]
        self._turns.remove(turn)
        for turns in (*self._hits, *self._doubts):
            _note(turns, turn, is_hit=False)
        self._forget()

    def results(self, *, is_over: bool) -> Mapping[str, CheckResult]:
        """The result of every subgoal that code checks, by its id.

        Args:
            is_over: Whether the call is over, so that nothing more can happen. A call without a
                turn decides nothing.
        """
        if is_over not in self._results:
            window = _Window(is_over, self._plan.max_turns)
            self._results[is_over] = {
                subgoal: _result(self._known(node, window))
                for subgoal, node in self._plan.nodes.items()
            }
        return self._results[is_over]

    def undecidable(self) -> Mapping[str, Undecided]:
        """Subgoals that would be undecidable if the call ended now, by id.

        Each with the first turn that may have decided it: something happened there, but whether in
        time is unknown; or a tool was used there, and its arguments or its answer are unknown.
        """
        over, window = self.results(is_over=True), _Window(is_over=True, turns=self._plan.max_turns)
        return {
            subgoal: undecided
            for subgoal, node in self._plan.nodes.items()
            if over[subgoal].state is CheckState.OPEN
            and (undecided := self._first_undecided(node, window)) is not None
        }

    def _forget(self) -> None:
        """Drops the results derived from turns; they are derived again on demand."""
        self._late_turns.clear()
        self._results.clear()

    def _known(self, node: _Node, window: _Window) -> _Known | None:
        match node:
            case _One(leaf):
                return self._known_of_leaf(leaf, window)
            case _Negated(part):
                known = self._known(part, window)
                return None if known is None else known._replace(value=not known.value)
            case _Limited(part):
                return self._known(part, window.narrowed(node))
            case _Several(parts, needs_all):
                return _combined([self._known(part, window) for part in parts], needs_all=needs_all)
            case _:
                assert_never(node)

    def _first_undecided(self, node: _Node, window: _Window) -> Undecided | None:
        """The first turn that may have decided a part with this window: its times, or a tool's
        answer, are missing.
        """
        match node:
            case _One(leaf):
                untimed = (
                    turn for turn in self._hits[leaf] if self._is_in_time(turn, window) is None
                )
                doubted = (
                    turn
                    for turn in self._doubts[leaf]
                    if self._is_in_time(turn, window) is not False
                )
                found = [
                    Undecided(turn, UnscoredReason.TIMES_UNKNOWN) for turn in islice(untimed, 1)
                ]
                found += [Undecided(turn, UnscoredReason.WITHHELD) for turn in islice(doubted, 1)]
                return min(found, default=None)
            case _Negated(part):
                return self._first_undecided(part, window)
            case _Limited(part):
                return self._first_undecided(part, window.narrowed(node))
            case _Several(parts):
                of_parts = (self._first_undecided(part, window) for part in parts)
                return min((each for each in of_parts if each is not None), default=None)
            case _:
                assert_never(node)

    def _known_of_leaf(self, leaf: int, window: _Window) -> _Known | None:
        may_be_in_time = any(
            self._is_in_time(turn, window) is not False for turn in self._doubts[leaf]
        )
        for turn in self._hits[leaf]:
            is_in_time = self._is_in_time(turn, window)
            if is_in_time:
                return _Known(value=True, turn=turn)
            may_be_in_time |= is_in_time is None
        over_at = self._over_at(window)
        return None if over_at is None or may_be_in_time else _Known(value=False, turn=over_at)

    def _is_in_time(self, turn: int, window: _Window) -> bool | None:
        """Whether a turn is inside this window; None when its times do not show it."""
        if window.turns is not None and turn > window.turns:
            return False
        if window.ms is None:
            return True
        late_turn = self._late_turn(window.ms)
        if late_turn is not None and turn >= late_turn:
            return False
        return None if self._ended_after_ms(turn) is None else True

    def _over_at(self, window: _Window) -> int | None:
        """The turn at which this window is over; None while it is not."""
        ends = []
        if window.turns is not None:
            ends += self._turns[bisect_left(self._turns, window.turns) :][:1]
        if window.ms is not None and (late_turn := self._late_turn(window.ms)) is not None:
            ends.append(late_turn)
        if window.is_over:
            ends += self._turns[-1:]
        return min(ends, default=None)

    def _late_turn(self, ms: float) -> int | None:
        """The first turn known to have ended later than this after the call's start; None without
        one.
        """
        if ms not in self._late_turns:
            ended = ((turn, self._ended_after_ms(turn)) for turn in self._turns)
            self._late_turns[ms] = next(
                (turn for turn, after in ended if after is not None and after > ms), None
            )
        return self._late_turns[ms]

    def _ended_after_ms(self, turn: int) -> int | None:
        """Time in ms from the start of turn 1 to the end of a turn; None when one of them is
        unknown.
        """
        start_ms = self._times.get(1, (None, None))[0]
        end_ms = self._times[turn][1]
        return None if start_ms is None or end_ms is None else end_ms - start_ms


def _combined(parts: Sequence[_Known | None], *, needs_all: bool) -> _Known | None:
    """The result of all parts, or of any of them."""
    known = [part for part in parts if part is not None]
    decisive = [part for part in known if part.value is not needs_all]
    if decisive:
        return min(decisive, key=lambda part: part.turn)
    if len(known) < len(parts):
        return None
    return _Known(needs_all, max(part.turn for part in known))


def _result(known: _Known | None) -> CheckResult:
    if known is None:
        return OPEN
    return CheckResult(CheckState.REACHED if known.value else CheckState.MISSED, known.turn)


def _note(hits: list[int], turn: int, *, is_hit: bool) -> None:
    """Notes whether a leaf holds in a turn, in an ordered list of turns."""
    place = bisect_left(hits, turn)
    was_hit = place < len(hits) and hits[place] == turn
    if is_hit and not was_hit:
        hits.insert(place, turn)
    elif was_hit and not is_hit:
        del hits[place]
