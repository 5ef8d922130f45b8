"""Patterns of goals: the part of regular expressions whose search is fast on any text.

Every repetition has a bound, and the ways in which a pattern can fit at one place are counted when
it is read. A pattern with too many is refused. Python's `re` searches the others, ignoring case.
RE2 is no replacement: its words and borders of words are ASCII.
"""

import re
from typing import Annotated, Final, NamedTuple

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

_ESCAPED_SETS: Final = frozenset("dDwWsS")
_ESCAPED_PLACES: Final = frozenset("bB")
_ESCAPED_SPACES: Final = frozenset("nt")
_MEANINGFUL: Final = frozenset("{}[])*+?|")
_FLAGS: Final = re.IGNORECASE | re.DOTALL
_COUNTS: Final = re.compile(r"\{(\d{1,9})(?:(,)(\d{0,9}))?\}")


class PatternError(ValueError):
    """A pattern is refused. The text has the place, the reason, and what to write instead."""


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
        (9, 1737)
        >>> worst_steps("a+")
        Traceback (most recent call last):
        ...
        schemas.goals.patterns.PatternError: character 2: + repeats without a bound; say how often at most, for example {1,80}
    """
    cost = _Reader(pattern).whole()
    try:
        compiled(pattern)
    except re.error as error:
        raise PatternError(f"{error}; see the syntax of Python's regular expressions") from error
    if cost.steps > MAX_PATTERN_STEPS:
        seen = "more than a billion" if cost.steps >= _TOO_MANY else f"{cost.steps:,}"
        raise PatternError(
            f"fits in so many ways that a search may take {seen} steps at each character, and "
            f"{MAX_PATTERN_STEPS:,} are "
            "allowed; use fewer or shorter repetitions, or make several checks of it"
        )
    return cost.steps


def _checked(pattern: str) -> str:
    worst_steps(pattern)
    return pattern


PatternText = Annotated[
    str, StringConstraints(min_length=1, max_length=MAX_PATTERN_CHARS), AfterValidator(_checked)
]
"""A pattern that has been read and is not too costly."""


class _Reader:
    """Reads a pattern from left to right and counts its cost."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._depth = 0

    def whole(self) -> _Cost:
        cost = self._alternatives()
        if self._at < len(self._pattern):
            raise self._error("this ) closes nothing; write \\) for the character")
        return cost

    def _alternatives(self) -> _Cost:
        ways = steps = 0
        while True:
            one = self._sequence()
            ways, steps = ways + one.ways, steps + one.steps
            if self._next() != "|":
                return _bounded(ways, steps)
            self._at += 1

    def _sequence(self) -> _Cost:
        cost = _NOTHING
        while self._next() not in ("", "|", ")"):
            cost = cost.then(self._quantified(self._part()))
        return cost

    def _part(self) -> _Cost:
        character = self._next()
        if character == "(":
            return self._group()
        if character == "[":
            self._set()
        elif character == "\\":
            self._escape(_ESCAPED_SETS | _ESCAPED_PLACES | _ESCAPED_SPACES)
        elif character in _MEANINGFUL:
            raise self._error(
                f"{character} has nothing before it to repeat or close; write \\{character} for "
                "the character"
            )
        else:
            self._at += 1
        return _ONE_CHARACTER

    def _group(self) -> _Cost:
        start = self._at
        self._at += 1
        if self._next() == "?":
            if self._pattern[self._at : self._at + 2] != "?:":
                raise self._error(
                    "of the groups that begin with (? only (?: is taken; case is ignored in any "
                    "case"
                )
            self._at += 2
        self._depth += 1
        if self._depth > MAX_GROUP_DEPTH:
            raise self._error(f"groups are nested deeper than {MAX_GROUP_DEPTH}")
        cost = self._alternatives()
        self._depth -= 1
        if self._next() != ")":
            raise self._error("this ( is never closed; write \\( for the character", start)
        self._at += 1
        return cost

    def _set(self) -> None:
        start = self._at
        self._at += 1
        if self._next() == "^":
            self._at += 1
        if self._next() == "]":
            raise self._error("a set needs a character; write \\] for the bracket itself")
        while (character := self._next()) != "]":
            if not character:
                raise self._error("this [ is never closed; write \\[ for the character", start)
            if character == "\\":
                self._escape(_ESCAPED_SETS | _ESCAPED_SPACES)
                continue
            # Python warns that their meaning will change one day.
            if character == "[" or self._pattern[self._at : self._at + 2] in (
                "--",
                "&&",
                "||",
                "~~",
            ):
                raise self._error(f"write \\{character} for this character in a set")
            self._at += 1
        self._at += 1

    def _escape(self, letters: frozenset[str]) -> None:
        escaped = self._pattern[self._at + 1 : self._at + 2]
        if not escaped:
            raise self._error("a backslash at the end; write two for the character")
        if escaped.isascii() and escaped.isalnum() and escaped not in letters:
            known = ", ".join("\\" + each for each in sorted(letters))
            raise self._error(f"\\{escaped} is not taken; there are {known}")
        self._at += 2

    def _quantified(self, one: _Cost) -> _Cost:
        match self._next():
            case "?":
                self._at += 1
                counts = 0, 1
            case "{":
                counts = self._counts()
            case "*" | "+" as sign:
                example = "{0,80}" if sign == "*" else "{1,80}"
                raise self._error(
                    f"{sign} repeats without a bound; say how often at most, for example {example}"
                )
            case _:
                return one
        if self._next() in ("?", "+", "*", "{"):
            raise self._error(
                f"{self._next()} behind a repetition is not taken; put the repetition in a group "
                "(?:...)"
            )
        return _repeated(one, *counts)

    def _counts(self) -> tuple[int, int]:
        found = _COUNTS.match(self._pattern, self._at)
        if found is None:
            raise self._error("{ is no repetition like {2} or {0,80}; write \\{ for the character")
        if found[2] and not found[3]:
            raise self._error(
                f"{found[0]} repeats without a bound; say how often at most, for example "
                f"{{{found[1]},80}}"
            )
        least = int(found[1])
        most = int(found[3]) if found[2] else least
        if most < least or most > MAX_REPEATS:
            raise self._error(
                f"{found[0]} must go from a smaller to a larger number, {MAX_REPEATS} at most"
            )
        self._at = found.end()
        return least, most

    def _next(self) -> str:
        """The character that comes next; empty at the end."""
        return self._pattern[self._at : self._at + 1]

    def _error(self, text: str, at: int | None = None) -> PatternError:
        return PatternError(f"character {(self._at if at is None else at) + 1}: {text}")


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
