"""How a subgoal is checked: by code on words and tool calls, or by a judge who reads the call.

A check by code is a tree. Its leaves look at one turn: the words of a side, a tool call, the answer
of the tool. `all_of`, `any_of` and `not` combine them, `within` gives them a time. What each means,
and when it is decided, stands with the evaluation in `consumers/engine/goals/checks.py`.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal, assert_never, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    JsonValue,
    StringConstraints,
    Tag,
    ValidationInfo,
    field_validator,
    model_validator,
)

from schemas.goals.patterns import PatternText
from schemas.wire import MAX_NAME_CHARS

MAX_CHECK_DEPTH: Final = 6
"""Checks inside checks. `within` of `all_of` of `any_of` of `not` has five levels."""
MAX_CHECKS_PER_SUBGOAL: Final = 50
"""Checks of one tree; a subgoal that needs more is several subgoals."""
MAX_MATCHERS_PER_CHECK: Final = 50
"""Arguments or parts of an answer that one check looks at; tools have some ten."""
MAX_WITHIN_TURNS: Final = 1_000
"""As many turns as a call may have."""
MAX_WITHIN_SECONDS: Final = 14_400
"""Four hours: the longest call."""


class GoalModel(BaseModel):
    """A part of a goal set: never changed after it is read, and a misspelt field is a mistake."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


NonEmptyName = Annotated[str, StringConstraints(min_length=1, max_length=MAX_NAME_CHARS)]


class Equals(GoalModel):
    """The value is this one, as JSON has it: `5` and `5.0` are equal, `5` and `"5"`, `1` and `true`
    are not.
    """

    equals: JsonValue

    @model_validator(mode="before")
    @classmethod
    def _bare_value(cls, value: Any) -> Any:
        return value if isinstance(value, Mapping | Equals) else {"equals": value}


class OneOf(GoalModel):
    """The value equals one of these."""

    one_of: tuple[JsonValue, ...] = Field(min_length=1, max_length=MAX_MATCHERS_PER_CHECK)


class Matches(GoalModel):
    """The pattern is found in the value: in a text as it is, in any other value as compact JSON."""

    matches: PatternText


class Between(GoalModel):
    """The value is a number within these bounds, both included; at least one is given."""

    at_least: float | None = None
    at_most: float | None = None

    @model_validator(mode="after")
    def _is_a_range(self) -> "Between":
        if self.at_least is not None and self.at_most is not None and self.at_least > self.at_most:
            raise ValueError("at_least is more than at_most, so no value fits; swap them")
        if self.at_least is None and self.at_most is None:
            raise ValueError("both bounds are null; give a number for one of them")
        return self


class Present(GoalModel):
    """A value exists (null is one), or there is none."""

    present: bool


_MATCHER_OF_FIELD: Final = {
    "equals": "equals",
    "one_of": "one_of",
    "matches": "matches",
    "at_least": "between",
    "at_most": "between",
    "present": "present",
}
_TAG_OF_MATCHER: Final[Mapping[type, str]] = {
    Equals: "equals",
    OneOf: "one_of",
    Matches: "matches",
    Between: "between",
    Present: "present",
}


def _matcher_tag(value: Any) -> str | None:
    """Which matcher is meant; a value that is no mapping is meant to be equal."""
    if isinstance(value, Mapping):
        return next((tag for field, tag in _MATCHER_OF_FIELD.items() if field in value), None)
    return _TAG_OF_MATCHER.get(type(value), "equals")


Matcher = Annotated[
    Annotated[Equals, Tag("equals")]
    | Annotated[OneOf, Tag("one_of")]
    | Annotated[Matches, Tag("matches")]
    | Annotated[Between, Tag("between")]
    | Annotated[Present, Tag("present")],
    Discriminator(
        _matcher_tag,
        custom_error_type="unknown_matcher",
        custom_error_message=(
            "expected a value, or one of equals, one_of, matches, at_least, at_most, present"
        ),
    ),
]
"""Condition on a value. A bare value means `equals`."""

Matchers = Annotated[dict[NonEmptyName, Matcher], Field(max_length=MAX_MATCHERS_PER_CHECK)]
"""By name of an argument, or path into nested ones: `flight.date`, `seats.0`. All of them must
hold.
"""


class ToolCalled(GoalModel):
    """The tool was called, with arguments that match; how it answered does not matter."""

    kind: Literal["tool_called"]
    tool: NonEmptyName
    arguments: Matchers = {}


class ToolResult(GoalModel):
    """A call of the tool, with arguments that match, was answered like this.

    Attributes:
        outcome: Whether the answer says that it worked; None takes either.
        result: Parts of the answer by path; `.` is the whole of it.
    """

    kind: Literal["tool_result"]
    tool: NonEmptyName
    arguments: Matchers = {}
    outcome: Literal["success", "error"] | None = None
    result: Matchers = {}

    @model_validator(mode="after")
    def _says_which_answer(self) -> "ToolResult":
        if self.outcome is None and not self.result:
            raise ValueError(
                "nothing is said of the answer; give outcome (success or error) or result, or use "
                "tool_called"
            )
        return self


class Says(GoalModel):
    """A side said something in which the pattern is found, in one turn."""

    kind: Literal["says"]
    speaker: Literal["user", "assistant"]
    pattern: PatternText


_ONE_LIMIT: Final = "expected either turns or seconds; for both, put one within inside the other"


class Within(GoalModel):
    """The check is decided by the call's first turns, or in turns that end in its first seconds.

    Attributes:
        turns: The last turn that counts.
        seconds: From the start of turn 1 to the end of the last turn that counts.
    """

    kind: Literal["within"]
    turns: int | None = Field(None, ge=1, le=MAX_WITHIN_TURNS)
    seconds: float | None = Field(None, gt=0, le=MAX_WITHIN_SECONDS)
    check: "CodeCheck"

    @field_validator("seconds")
    @classmethod
    def _is_the_only_limit(cls, seconds: float | None, known: ValidationInfo) -> float | None:
        """Looked at by itself, so that it is reported together with mistakes of the
        check inside.
        """
        if seconds is not None and known.data.get("turns") is not None:
            raise ValueError(_ONE_LIMIT)
        return seconds

    @model_validator(mode="after")
    def _has_a_limit(self) -> "Within":
        if self.turns is None and self.seconds is None:
            raise ValueError(_ONE_LIMIT)
        return self


class AllOf(GoalModel):
    """All of the checks, in any order and in any turns."""

    kind: Literal["all_of"]
    checks: tuple["CodeCheck", ...] = Field(min_length=1, max_length=MAX_CHECKS_PER_SUBGOAL)


class AnyOf(GoalModel):
    """At least one of the checks."""

    kind: Literal["any_of"]
    checks: tuple["CodeCheck", ...] = Field(min_length=1, max_length=MAX_CHECKS_PER_SUBGOAL)


class Not(GoalModel):
    """The check does not come true: known when the call is over, or when the time of a `within`
    around it is.
    """

    kind: Literal["not"]
    check: "CodeCheck"


class Judge(GoalModel):
    """A judge reads the call and says whether the subgoal's `details` hold."""

    kind: Literal["judge"]


TurnCheck = ToolCalled | ToolResult | Says
"""A check that looks at one turn: a leaf of the tree."""
CodeCheck = Annotated[TurnCheck | Within | AllOf | AnyOf | Not, Field(discriminator="kind")]
"""A check that needs no judge."""

AnyCheck = Annotated[TurnCheck | Within | AllOf | AnyOf | Not | Judge, Field(discriminator="kind")]
CHECKS: Final[Mapping[str, type[GoalModel]]] = {
    get_args(model.model_fields["kind"].annotation)[0]: model
    for model in get_args(get_args(AnyCheck)[0])
}
"""Every check by its kind."""

for _model in (Within, AllOf, AnyOf, Not):
    _model.model_rebuild()


def parts_of(check: AnyCheck) -> tuple[CodeCheck, ...]:
    """The checks directly inside a check."""
    match check:
        case AllOf() | AnyOf():
            return check.checks
        case Not() | Within():
            return (check.check,)
        case ToolCalled() | ToolResult() | Says() | Judge():
            return ()
        case _:
            assert_never(check)


def with_depths(check: AnyCheck, depth: int = 1) -> Iterator[tuple[AnyCheck, int]]:
    """The check and all inside it, each with how deep it is; the outermost is at 1.

    Example:
        >>> thanks = Says(kind="says", speaker="user", pattern="thanks")
        >>> [(each.kind, depth) for each, depth in with_depths(Not(kind="not", check=thanks))]
        [('not', 1), ('says', 2)]
    """
    yield check, depth
    for part in parts_of(check):
        yield from with_depths(part, depth + 1)


def patterns_of(check: AnyCheck) -> Iterator[str]:
    """Every pattern that one look at a turn may search."""
    for each, _ in with_depths(check):
        match each:
            case Says():
                yield each.pattern
            case ToolCalled() | ToolResult():
                matchers = [
                    *each.arguments.values(),
                    *(each.result.values() if isinstance(each, ToolResult) else ()),
                ]
                yield from (matcher.matches for matcher in matchers if isinstance(matcher, Matches))
            case Within() | AllOf() | AnyOf() | Not() | Judge():
                pass
            case _:
                assert_never(each)
