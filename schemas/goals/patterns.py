"""Patterns of goals: the part of regular expressions whose search is fast on any text.

Every repetition has a bound, and the ways in which a pattern can fit at one place are counted when
it is read. A pattern with too many is refused. Python's `re` searches the others, ignoring case.
RE2 is no replacement: its words and borders of words are ASCII.
"""

import re
import warnings
from collections.abc import Iterable
from importlib import import_module
from typing import Annotated, Any, Final, NamedTuple

from pydantic import AfterValidator, StringConstraints

MAX_PATTERN_CHARS: Final = 500
"""Longest pattern. A list of twenty phrases has 400 characters."""
MAX_REPEATS: Final = 500
"""Most that one `{m,n}` may ask for: a long sentence."""
MAX_PATTERN_STEPS: Final = 10_000
"""Steps that a search may take at each character, at worst: two gaps of sixty characters have
8,000. See `MAX_SET_STEPS`.
"""
MAX_GROUP_DEPTH: Final = 20
"""Groups inside groups; more is no pattern that a person wrote."""
MAX_SEARCHED_CHARS: Final = 8_192
"""A text is searched up to here: some eight minutes of one side speaking without a pause."""

_FLAGS: Final = re.IGNORECASE | re.DOTALL
_PARSER: Final[Any] = import_module("re._parser")
"""What `re.compile` reads a pattern with: so what is counted here is what `re` searches."""


class PatternError(ValueError):
    """A pattern is refused. The text has the reason, and what to write instead."""


class _Cost(NamedTuple):
    """Worst cost of a part at one place of a text.

    `ways` are the different ways to fit, each of which what follows may have to try; `steps` are
    the characters looked at until all of them were tried.
    """

    ways: int
    steps: int

    def then(self, following: "_Cost") -> "_Cost":
        """This part and one behind it, which is tried again for each way of this one."""
        return _bounded(self.ways * following.ways, self.steps + self.ways * following.steps)


_NOTHING: Final = _Cost(1, 0)
_ONE_CHARACTER: Final = _Cost(1, 1)
_TOO_MANY: Final = 10**9


def compiled(pattern: str) -> re.Pattern[str]:
    """The pattern ready for `search`; `PatternText` has checked it."""
    return re.compile(pattern, _FLAGS)


def is_found(pattern: re.Pattern[str], text: str) -> bool:
    """Whether a compiled pattern fits anywhere in the first `MAX_SEARCHED_CHARS` characters of a
    text.

    Example:
        >>> is_found(compiled(r"confirm(ed)?.{0,20}number"), "I CONFIRMED your number.")
        True
    """
    return pattern.search(text[:MAX_SEARCHED_CHARS]) is not None


def worst_steps(pattern: str) -> int:
    """How many steps a search may take at each character of a text, at worst.

    Raises:
        PatternError: It is none of the patterns that are taken.

    Example:
        >>> worst_steps("thank you"), worst_steps("(?:yes|yeah){1,2}.{0,40}please")
        (9, 1731)
        >>> worst_steps("a+")
        Traceback (most recent call last):
        ...
        schemas.goals.patterns.PatternError: it repeats without a bound (*, + or {3,}); say how often at most, for example {1,80}
    """
    try:
        with warnings.catch_warnings():
            # of sets whose meaning will change one day
            warnings.simplefilter("error", FutureWarning)
            tree = _PARSER.parse(pattern, _FLAGS)
    except (re.error, FutureWarning, OverflowError, RecursionError) as error:
        raise PatternError(f"{error}; see the syntax of Python's regular expressions") from error
    if tree.state.flags & ~(_FLAGS | re.UNICODE):
        raise PatternError("flags such as (?m) are not taken; case is ignored in any case")
    cost = _of_sequence(tree)
    if cost.steps > MAX_PATTERN_STEPS:
        seen = "more than a billion" if cost.steps >= _TOO_MANY else f"{cost.steps:,}"
        raise PatternError(
            f"fits in so many ways that a search may take {seen} steps at each character, and "
            f"{MAX_PATTERN_STEPS:,} are allowed; use fewer or shorter repetitions, or make several "
            "checks of it"
        )
    return cost.steps


def _checked(pattern: str) -> str:
    worst_steps(pattern)
    return pattern


PatternText = Annotated[
    str, StringConstraints(min_length=1, max_length=MAX_PATTERN_CHARS), AfterValidator(_checked)
]
"""A pattern that has been read and is not too costly."""


def _of_sequence(parts: Iterable[tuple[Any, Any]], depth: int = 0) -> _Cost:
    """The cost of parts as Python's own reader of patterns has them."""
    if depth > MAX_GROUP_DEPTH:
        raise PatternError(f"groups are nested deeper than {MAX_GROUP_DEPTH}")
    cost = _NOTHING
    for kind, content in parts:
        cost = cost.then(_of_part(str(kind), content, depth))
    return cost


def _of_part(kind: str, content: Any, depth: int) -> _Cost:
    match kind:
        case "LITERAL" | "NOT_LITERAL" | "ANY" | "IN" | "AT":
            return _ONE_CHARACTER
        case "BRANCH":
            each = [_of_sequence(parts, depth + 1) for parts in content[1]]
            return _bounded(sum(one.ways for one in each), sum(one.steps for one in each))
        case "SUBPATTERN" if not content[1] and not content[2]:  # flags that begin and end there
            return _of_sequence(content[3], depth + 1)
        case "MAX_REPEAT":
            least, most, parts = content
            if most == _PARSER.MAXREPEAT:
                raise PatternError(
                    "it repeats without a bound (*, + or {3,}); say how often at most, for example "
                    "{1,80}"
                )
            if most > MAX_REPEATS:
                raise PatternError(f"{{{least},{most}}} repeats more than {MAX_REPEATS} times")
            return _repeated(_of_sequence(parts, depth + 1), least, most)
    raise PatternError(
        "it has more than characters, sets, groups, alternatives and bounded repetitions: no "
        f"{kind.lower().replace('_', ' ')} is taken"
    )


def _bounded(ways: int, steps: int) -> _Cost:
    return _Cost(min(ways, _TOO_MANY), min(steps, _TOO_MANY))


def _repeated(one: _Cost, least: int, most: int) -> _Cost:
    """As often as must be, each with all that may follow; and behind each one that may be there,
    the choice to stop.
    """
    cost = _NOTHING
    for _ in range(most - least):
        more = one.then(cost)
        cost = _bounded(1 + more.ways, more.steps)
    for _ in range(least):
        cost = one.then(cost)
    return cost
