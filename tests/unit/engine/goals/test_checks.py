"""Checks by code, turn by turn: the meaning of each kind, and the time of its decision."""

from collections.abc import Mapping
from typing import Any

import pytest

from consumers.engine.goals.checks import (
    MAX_SEARCHED_CALLS,
    OPEN,
    CalledTool,
    CheckPlan,
    CheckResult,
    CheckState,
    SubgoalChecks,
    TurnFacts,
    Undecided,
)
from schemas.closed_sets import UnscoredReason
from schemas.goals.goal_set import GoalSet

Json = dict[str, Any]
TIMES = UnscoredReason.TIMES_UNKNOWN

THANKS: Json = {"kind": "says", "speaker": "user", "pattern": "thanks"}
SORRY: Json = {"kind": "says", "speaker": "assistant", "pattern": "sorry"}


def reached(turn: int) -> CheckResult:
    return CheckResult(CheckState.REACHED, turn)


def missed(turn: int) -> CheckResult:
    return CheckResult(CheckState.MISSED, turn)


def said(
    user: str = "", assistant: str = "", *calls: CalledTool, at_s: tuple[float, float] | None = None
) -> TurnFacts:
    """A turn; `at_s` are its start and its end."""
    start_ms, end_ms = (
        (None, None) if at_s is None else (int(at_s[0] * 1_000), int(at_s[1] * 1_000))
    )
    return TurnFacts(user, assistant, calls, start_ms, end_ms)


def called(
    tool: str, answer: object = None, *, ok: bool | None = True, **arguments: Any
) -> CalledTool:
    return CalledTool(tool, arguments, answer, ok)


def plan_of(**checks: Json) -> CheckPlan:
    subgoals = [{"id": name, "details": "d", "check": check} for name, check in checks.items()]
    return CheckPlan(GoalSet.model_validate({"id": "x", "subgoals": subgoals}))


def checks_of(check: Json, *turns: TurnFacts) -> SubgoalChecks:
    checks = SubgoalChecks(plan_of(one=check))
    for number, turn in enumerate(turns, 1):
        checks.set_turn(number, turn)
    return checks


def result(check: Json, *turns: TurnFacts, is_over: bool = False) -> CheckResult:
    return checks_of(check, *turns).results(is_over=is_over)["one"]


def negated(check: Json) -> Json:
    return {"kind": "not", "check": check}


def within(check: Json, **limit: float) -> Json:
    return {"kind": "within", "check": check, **limit}


def several(kind: str, *checks: Json) -> Json:
    return {"kind": kind, "checks": list(checks)}


def tool(**fields: Any) -> Json:
    return {"kind": "tool_called", "tool": "book", **fields}


def test_a_leaf_is_reached_in_the_first_turn_in_which_it_holds() -> None:
    assert result(THANKS, said("no"), said("thanks"), said("thanks")) == reached(2)
    assert result(THANKS, said("no"), said("", "thanks")) == OPEN
    assert result(THANKS, said("no"), said("no"), is_over=True) == missed(2)


def test_a_call_without_turns_decides_nothing() -> None:
    assert result(THANKS, is_over=True) == result(negated(THANKS), is_over=True) == OPEN


def test_subgoals_for_a_judge_are_left_out() -> None:
    plan = plan_of(a=THANKS, b={"kind": "judge"}, c=SORRY)
    assert list(SubgoalChecks(plan).results(is_over=False)) == ["a", "c"]


@pytest.mark.parametrize(
    ("arguments", "given", "expected"),
    [
        ({}, {}, True),
        ({"a": 1}, {"a": 1.0, "b": 2}, True),
        ({"a": 1}, {"a": "1"}, False),
        ({"a": 1}, {"a": True}, False),
        ({"a": True}, {"a": 1}, False),
        ({"a": True}, {"a": True}, True),
        ({"a": None}, {"a": None}, True),
        ({"a": None}, {}, False),
        ({"a": 1}, {}, False),
        ({"a": {"equals": {"x": [1, {"y": False}]}}}, {"a": {"x": [1.0, {"y": False}]}}, True),
        ({"a": {"equals": {"x": [1, {"y": False}]}}}, {"a": {"x": [1, {"y": 0}]}}, False),
        ({"a": {"equals": {"x": 1}}}, {"a": {"x": 1, "y": 2}}, False),
        ({"a": [1, 2]}, {"a": [2, 1]}, False),
        ({"a": [1, 2]}, {"a": [1, 2, 3]}, False),
        ({"a": {"one_of": [1, "x"]}}, {"a": "x"}, True),
        ({"a": {"one_of": [1, "x"]}}, {"a": True}, False),
        ({"a": {"matches": "^zk3"}}, {"a": "ZK3FFW"}, True),
        ({"a": {"matches": '"y":null'}}, {"a": {"x": 1, "y": None}}, True),
        ({"a": {"matches": "^5$"}}, {"a": 5}, True),
        ({"a": {"matches": "x"}}, {}, False),
        ({"a": {"at_least": 2}}, {"a": 2}, True),
        ({"a": {"at_least": 2}}, {"a": 1.9}, False),
        ({"a": {"at_most": 2}}, {"a": 2.1}, False),
        ({"a": {"at_least": 1, "at_most": 2}}, {"a": 1.5}, True),
        ({"a": {"at_most": 2}}, {"a": "1"}, False),
        ({"a": {"at_most": 2}}, {"a": True}, False),
        ({"a": {"present": True}}, {"a": None}, True),
        ({"a": {"present": True}}, {}, False),
        ({"a": {"present": False}}, {}, True),
        ({"a": {"present": False}}, {"a": None}, False),
        ({"a.b.1": 5}, {"a": {"b": [4, 5]}}, True),
        ({"a.b.2": 5}, {"a": {"b": [4, 5]}}, False),
        ({"a.b": 5}, {"a.b": 5}, True),
        ({"a.b": 5}, {"a.b": 4, "a": {"b": 5}}, False),
        ({"a.b": 5}, {"a": 5}, False),
        ({"a": 1, "b": 2}, {"a": 1, "b": 3}, False),
    ],
)
def test_arguments(arguments: Json, given: Json, expected: bool) -> None:
    found = result(tool(arguments=arguments), said("", "", called("book", **given)))
    assert found == (reached(1) if expected else OPEN)


def test_the_arguments_must_be_those_of_one_call() -> None:
    check = tool(arguments={"a": 1, "b": 2})
    assert result(check, said("", "", called("book", a=1, b=0), called("book", a=0, b=2))) == OPEN
    assert result(
        check, said("", "", called("other", a=1, b=2), called("book", a=1, b=2))
    ) == reached(1)


def test_a_loop_of_tool_calls_is_looked_at_up_to_a_limit() -> None:
    loop = [called("other")] * (MAX_SEARCHED_CALLS - 1)
    assert result(tool(), said("", "", *loop, called("book"))) == reached(1)
    assert result(tool(), said("", "", called("other"), *loop, called("book"))) == OPEN


@pytest.mark.parametrize(
    ("fields", "call", "expected"),
    [
        ({"outcome": "success"}, called("book", {"ok": 1}), True),
        ({"outcome": "success"}, called("book", {"error": 1}, ok=False), False),
        ({"outcome": "error"}, called("book", {"error": 1}, ok=False), True),
        ({"outcome": "error"}, called("book"), False),
        ({"outcome": "success"}, called("book", ok=None), False),
        ({"result": {"x": {"present": False}}}, called("book", ok=None), False),
        ({"result": {"r.0.s": "yes"}}, called("book", {"r": [{"s": "yes"}]}, ok=False), True),
        ({"result": {".": {"matches": "done"}}}, called("book", "all done"), True),
        ({"result": {".": 5}}, called("book", 5), True),
        ({"result": {"x": 1}}, called("book", "x"), False),
        ({"outcome": "success", "arguments": {"a": 1}}, called("book", a=1), True),
        ({"outcome": "success", "arguments": {"a": 1}}, called("book", a=2), False),
        ({"outcome": "success"}, called("cancel"), False),
    ],
)
def test_results(fields: Json, call: CalledTool, expected: bool) -> None:
    found = result({"kind": "tool_result", "tool": "book", **fields}, said("", "", call))
    assert found == (reached(1) if expected else OPEN)


def test_all_of_is_reached_at_its_last_part_and_missed_with_the_first() -> None:
    check = several("all_of", THANKS, SORRY)
    assert result(check, said("thanks")) == OPEN
    assert result(check, said("thanks"), said("", ""), said("", "sorry")) == reached(3)
    assert result(
        several("all_of", THANKS, within(SORRY, turns=1)), said("no"), said("thanks")
    ) == missed(1)


def test_any_of_is_reached_at_its_first_part_and_missed_with_the_last() -> None:
    check = several("any_of", THANKS, SORRY)
    assert result(check, said("", "sorry"), said("thanks")) == reached(1)
    assert result(check, said("no"), said("no"), is_over=True) == missed(2)


def test_not_is_missed_at_once_and_reached_only_when_the_call_is_over() -> None:
    assert result(negated(SORRY), said("", "sorry"), said()) == missed(1)
    assert result(negated(SORRY), said("", "fine"), said()) == OPEN
    assert result(negated(SORRY), said("", "fine"), said(), is_over=True) == reached(2)
    assert result(negated(negated(SORRY)), said(), said("", "sorry")) == reached(2)


def test_within_turns_is_over_at_that_turn() -> None:
    assert result(within(THANKS, turns=2), said(), said("thanks")) == reached(2)
    assert result(within(THANKS, turns=2), said(), said(), said("thanks")) == missed(2)
    assert result(within(THANKS, turns=5), said(), said(), is_over=True) == missed(2)


def test_not_inside_within_is_decided_when_the_time_is_over() -> None:
    check = within(negated(SORRY), turns=2)
    assert result(check, said()) == OPEN
    assert result(check, said(), said()) == reached(2)
    assert result(check, said(), said(), said("", "sorry")) == reached(2)
    assert result(check, said(), said("", "sorry")) == missed(2)


def test_within_seconds_counts_to_the_end_of_the_turn() -> None:
    check = within(THANKS, seconds=10)
    early, late = said("thanks", at_s=(4, 10)), said("thanks", at_s=(4, 10.001))
    first = said(at_s=(0, 4))
    assert result(check, first, early) == reached(2)
    assert result(check, first, late) == missed(2)
    assert result(within(negated(THANKS), seconds=10), first, said(at_s=(4, 9)), late) == reached(3)


def test_the_clock_of_within_seconds_starts_with_turn_1() -> None:
    """Event times are epoch times, and the time of the greeting does not count."""
    start_s = 1_790_000_000.0
    turns = said(at_s=(start_s, start_s + 2)), said("thanks", at_s=(start_s + 2, start_s + 5))
    assert result(within(THANKS, seconds=5), *turns) == reached(2)
    assert result(within(THANKS, seconds=4.9), *turns) == missed(2)


def test_a_turn_without_times_leaves_within_seconds_open_where_it_decides() -> None:
    check = within(THANKS, seconds=10)
    first, over = said(at_s=(0, 4)), said(at_s=(20, 24))
    assert result(check, first, said("thanks"), over, is_over=True) == OPEN
    assert result(check, first, said("no"), over) == missed(3)
    assert result(check, said("thanks"), is_over=True) == OPEN
    assert result(check, first, said("thanks"), said("thanks", at_s=(5, 8))) == reached(3)


def test_what_nobody_can_tell_is_told_apart_from_what_has_not_happened() -> None:
    first, over = said(at_s=(0, 4)), said(at_s=(20, 24))
    for check in (within(THANKS, seconds=10), negated(within(THANKS, seconds=10))):
        checks = checks_of(check, first, said("no"), said("thanks"), said("thanks"))
        assert checks.undecidable() == {"one": Undecided(3, TIMES)}
        checks.set_turn(3, said("thanks", at_s=(5, 8)))
        assert checks.undecidable() == {}
        assert checks_of(check, first, said("no"), over).undecidable() == {}
    either = several("any_of", within(THANKS, seconds=10), within(SORRY, turns=5))
    assert checks_of(either, first, said("thanks")).undecidable() == {"one": Undecided(2, TIMES)}
    assert checks_of(either, first, said("thanks"), said("", "sorry")).undecidable() == {}


def test_times_that_become_known_later_are_looked_at_again() -> None:
    checks = checks_of(within(THANKS, seconds=10), said(at_s=(0, 4)), said("thanks", at_s=(4, 12)))
    assert checks.results(is_over=False)["one"] == missed(2)
    assert checks.set_turn(2, said("thanks", at_s=(4, 9)))
    assert checks.results(is_over=False)["one"] == reached(2)
    assert checks.set_turn(1, said(at_s=(-5, 4)))
    assert checks.results(is_over=False)["one"] == missed(2)


def test_of_two_limits_the_stricter_one_holds() -> None:
    turns = said(at_s=(0, 4)), said(at_s=(4, 8)), said("thanks", at_s=(8, 12))
    for check in (
        within(within(THANKS, turns=2), turns=9),
        within(within(THANKS, turns=9), turns=2),
        within(within(THANKS, turns=9), seconds=7),
        within(within(THANKS, seconds=7), seconds=90),
    ):
        assert result(check, *turns) == missed(2)


def test_a_turn_that_changes_is_looked_at_again() -> None:
    checks = checks_of(THANKS, said("no"), said("thanks"))
    assert not checks.set_turn(2, said("thanks"))
    assert checks.set_turn(1, said("thanks"))
    assert checks.results(is_over=False)["one"] == reached(1)
    assert checks.set_turn(1, said("no"))
    assert checks.results(is_over=False)["one"] == reached(2)
    assert checks.set_turn(2, said("no"))
    assert checks.results(is_over=False)["one"] == OPEN


def test_a_turn_that_is_no_more_takes_its_words_with_it() -> None:
    checks = checks_of(THANKS, said("no"), said("thanks"))
    checks.drop_turn(2)
    checks.drop_turn(2)
    assert checks.results(is_over=False)["one"] == OPEN
    assert checks.results(is_over=True)["one"] == missed(1)


def test_only_the_leaves_of_the_changed_turn_are_evaluated() -> None:
    looked_at: list[str] = []

    class Counting:
        def holds_in(self, turn: TurnFacts) -> bool:
            looked_at.append(turn.user_words)
            return False

    plan = plan_of(one=THANKS)
    plan.leaves[0] = Counting()
    checks = SubgoalChecks(plan)
    for number in range(1, 6):
        checks.set_turn(number, said(str(number), at_s=(number, number + 1)))
    checks.set_turn(3, said("3", at_s=(3, 3.5)))  # other times, the same words
    checks.set_turn(3, said("three"))
    checks.results(is_over=True)
    assert looked_at == ["1", "2", "3", "4", "5", "three"]


def test_a_turn_s_hash_depends_on_all_that_was_said_and_done_and_on_no_time() -> None:
    turn = said("a", "b", called("t", {"x": 1}, y=2), at_s=(0, 1))
    assert turn.content_hash == said("a", "b", called("t", {"x": 1}, y=2), at_s=(0, 9)).content_hash
    others: Mapping[str, TurnFacts] = {
        "user": said("a2", "b", called("t", {"x": 1}, y=2)),
        "side": said("ab", "", called("t", {"x": 1}, y=2)),
        "tool": said("a", "b", called("t2", {"x": 1}, y=2)),
        "answer": said("a", "b", called("t", {"x": 2}, y=2)),
        "argument": said("a", "b", called("t", {"x": 1}, y=3)),
        "outcome": said("a", "b", called("t", {"x": 1}, ok=False, y=2)),
        "no call": said("a", "b"),
    }
    assert turn.content_hash not in {other.content_hash for other in others.values()}
    assert len({other.content_hash for other in others.values()}) == len(others)
