"""Checks by code: turn by turn they reach the result of the definition for the whole call, whatever
changed on the way.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from consumers.engine.goals.checks import (
    CalledTool,
    CheckPlan,
    CheckState,
    SubgoalChecks,
    TurnFacts,
)
from schemas.goals.checks import CHECKS, CodeCheck, with_depths
from schemas.goals.goal_set import GoalSet

Json = dict[str, Any]
Turns = Mapping[int, TurnFacts]

WORDS = ("yes", "no", "bye")
TOOLS = ("find", "book")
MOST_TURNS = 6
_CHECK: TypeAdapter[CodeCheck] = TypeAdapter(CodeCheck)

_leaves = st.one_of(
    st.fixed_dictionaries(
        {
            "kind": st.just("says"),
            "speaker": st.sampled_from(["user", "assistant"]),
            "pattern": st.sampled_from([*WORDS, "yes|bye"]),
        }
    ),
    st.fixed_dictionaries(
        {"kind": st.just("tool_called"), "tool": st.sampled_from(TOOLS)},
        optional={"arguments": st.sampled_from([{"n": 1}, {"n": {"at_most": 1}}])},
    ),
    st.fixed_dictionaries(
        {
            "kind": st.just("tool_result"),
            "tool": st.sampled_from(TOOLS),
            "outcome": st.sampled_from(["success", "error"]),
        }
    ),
)


def _grown(checks: st.SearchStrategy[Json]) -> st.SearchStrategy[Json]:
    several = st.lists(checks, min_size=1, max_size=3)
    return st.one_of(
        st.builds(
            lambda kind, parts: {"kind": kind, "checks": parts},
            st.sampled_from(["all_of", "any_of"]),
            several,
        ),
        st.builds(lambda part: {"kind": "not", "check": part}, checks),
        st.builds(
            lambda part, turns: {"kind": "within", "turns": turns, "check": part},
            checks,
            st.integers(1, 5),
        ),
        st.builds(
            lambda part, s: {"kind": "within", "seconds": s, "check": part},
            checks,
            st.sampled_from([1, 5, 9.5]),
        ),
    )


def _depth(check: Json) -> int:
    parts = [*check.get("checks", ()), *([check["check"]] if "check" in check else ())]
    return 1 + max(map(_depth, parts), default=0)


checks = st.recursive(_leaves, _grown, max_leaves=6).filter(lambda check: _depth(check) <= 6)
_called = st.builds(
    CalledTool,
    st.sampled_from(TOOLS),
    st.fixed_dictionaries({}, optional={"n": st.integers(0, 2)}),
    st.none(),
    st.sampled_from([True, False, None]),
)
_calls = st.one_of(
    _called,
    st.builds(lambda call: call._replace(is_success=None, is_withheld=True), _called),
    st.builds(lambda call: call._replace(arguments={}, lacks_arguments=True), _called),
)
_times_ms = st.one_of(st.none(), st.integers(0, 12_000))
turns = st.builds(
    TurnFacts,
    st.sampled_from(["", *WORDS]),
    st.sampled_from(["", *WORDS]),
    st.lists(_calls, max_size=2).map(tuple),
    _times_ms,
    _times_ms,
)
numbers = st.integers(1, MOST_TURNS)
calls = st.dictionaries(numbers, turns, max_size=MOST_TURNS)
changes = st.lists(st.tuples(numbers, st.one_of(st.none(), turns)), max_size=20)


def test_the_laws_hold_of_every_kind_of_check() -> None:
    """Also the meaning of a new kind is written down here, in `truth` or `_holds`."""
    drawn: set[str] = set()

    @settings(database=None, derandomize=True, max_examples=200, deadline=None)
    @given(checks)
    def draw(check: Json) -> None:
        drawn.update(each.kind for each, _ in with_depths(_CHECK.validate_python(check)))

    draw()
    assert drawn == {*CHECKS} - {"judge"}


def plan_of(*wanted: Json) -> CheckPlan:
    subgoals = [
        {"id": str(number), "details": "d", "check": check} for number, check in enumerate(wanted)
    ]
    return CheckPlan(GoalSet.model_validate({"id": "x", "subgoals": subgoals}))


def fed(plan: CheckPlan, call: Turns) -> SubgoalChecks:
    state = SubgoalChecks(plan)
    for number in sorted(call):
        state.set_turn(number, call[number])
    return state


# The definition, of a call as far as it is known, without any turn being more than a member of a
# set: which of true, false and open a check is. Where it is decided is then the first beginning of
# the call of which it is known.


def truth(check: Json, call: Turns, *, is_over: bool, limits: Sequence[Json] = ()) -> bool | None:
    match check["kind"]:
        case "not":
            inner = truth(check["check"], call, is_over=is_over, limits=limits)
            return None if inner is None else not inner
        case "within":
            return truth(check["check"], call, is_over=is_over, limits=[*limits, check])
        case "all_of" | "any_of":
            parts = [truth(part, call, is_over=is_over, limits=limits) for part in check["checks"]]
            deciding = bool(check["kind"] == "any_of")
            if deciding in parts:
                return deciding
            return None if None in parts else not deciding
    found = {number: _holds(check, turn) for number, turn in call.items()}
    timely = [_is_timely(number, call, limits) for number, holds in found.items() if holds]
    if True in timely:
        return True
    may_hold = [number for number, holds in found.items() if holds is None]
    is_doubted = any(_is_timely(number, call, limits) is not False for number in may_hold)
    is_past = (is_over and bool(call)) or any(_is_past(limit, call) for limit in limits)
    return False if is_past and None not in timely and not is_doubted else None


def _is_timely(number: int, call: Turns, limits: Sequence[Json]) -> bool | None:
    answers = [_is_timely_for(limit, number, call) for limit in limits]
    return False if False in answers else None if None in answers else True


def _is_timely_for(limit: Json, number: int, call: Turns) -> bool | None:
    if "turns" in limit:
        return bool(number <= limit["turns"])
    after_ms = {each: _after_ms(each, call) for each in call if each <= number}
    if any(after is not None and after > limit["seconds"] * 1_000 for after in after_ms.values()):
        return False
    return None if after_ms[number] is None else True


def _is_past(limit: Json, call: Turns) -> bool:
    if "turns" in limit:
        return any(number >= limit["turns"] for number in call)
    return any(
        (after := _after_ms(number, call)) is not None and after > limit["seconds"] * 1_000
        for number in call
    )


def _after_ms(number: int, call: Turns) -> int | None:
    start_ms = call[1].start_ms if 1 in call else None
    end_ms = call[number].end_ms
    return None if start_ms is None or end_ms is None else end_ms - start_ms


def _holds(check: Json, turn: TurnFacts) -> bool | None:
    """None where that hangs on something that is withheld: on either side of it, the answer would
    be another.
    """
    if check["kind"] == "says":
        words = turn.user_words if check["speaker"] == "user" else turn.assistant_words
        return words in check["pattern"].split("|")
    possible = [[_is_wanted(check, each) for each in _possible(call)] for call in turn.calls]
    if any(all(each) for each in possible):
        return True
    return None if any(any(each) for each in possible) else False


def _possible(call: CalledTool) -> list[CalledTool]:
    """The call with everything that the withheld parts of it can be."""
    outcomes = [True, False] if call.is_withheld and call.is_success is None else [call.is_success]
    arguments = [{}, {"n": 0}, {"n": 1}, {"n": 2}] if call.lacks_arguments else [call.arguments]
    return [
        call._replace(is_success=outcome, arguments=each)
        for outcome in outcomes
        for each in arguments
    ]


def _is_wanted(check: Json, call: CalledTool) -> bool:
    outcome = {"success": True, "error": False}.get(check.get("outcome", ""))
    return (
        call.tool == check["tool"]
        and ("arguments" not in check or _fits(check["arguments"]["n"], call.arguments.get("n")))
        and (outcome is None or call.is_success is outcome)
    )


def _fits(wanted: Any, given: int | None) -> bool:
    return given is not None and (
        given == wanted if isinstance(wanted, int) else given <= wanted["at_most"]
    )


def defined(check: Json, call: Turns, *, is_over: bool) -> tuple[CheckState, int | None]:
    """The result of the call, and the turn where it was decided."""
    for last in sorted(call):
        beginning = {number: turn for number, turn in call.items() if number <= last}
        known = truth(check, beginning, is_over=is_over and last == max(call))
        if known is not None:
            return CheckState.REACHED if known else CheckState.MISSED, last
    return CheckState.OPEN, None


@given(checks, calls, st.booleans())
def test_a_check_is_what_the_definition_says(
    check: Json, call: dict[int, TurnFacts], is_over: bool
) -> None:
    found = fed(plan_of(check), call).results(is_over=is_over)["0"]
    assert (found.state, found.turn) == defined(check, call, is_over=is_over)


@given(st.lists(checks, min_size=1, max_size=3), changes, st.booleans())
def test_turn_by_turn_is_the_same_as_from_scratch(
    wanted: list[Json], changed: list[tuple[int, TurnFacts | None]], is_over: bool
) -> None:
    plan = plan_of(*wanted)
    state, call = SubgoalChecks(plan), dict[int, TurnFacts]()
    for number, turn in changed:
        if turn is None:
            state.drop_turn(number)
            call.pop(number, None)
        else:
            assert state.set_turn(number, turn) or call[number] == turn
            call[number] = turn
        again = fed(plan, call)
        assert state.results(is_over=False) == again.results(is_over=False)
        assert state.results(is_over=is_over) == again.results(is_over=is_over)


@given(checks, calls, numbers, turns, st.booleans())
def test_what_is_decided_does_not_hang_on_later_turns(
    check: Json, call: dict[int, TurnFacts], number: int, turn: TurnFacts, is_over: bool
) -> None:
    state = fed(plan_of(check), call)
    before = state.results(is_over=is_over)["0"]
    if before.turn is None or number <= before.turn or number not in call:
        return
    state.set_turn(number, turn)
    assert state.results(is_over=is_over)["0"] == before
