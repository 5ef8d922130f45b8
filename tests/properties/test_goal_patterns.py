"""The bound on a pattern's work is one: a plain backtracking matcher that tries everything never
exceeds it.
"""

import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from schemas.goals.patterns import PatternError, compiled, worst_steps

PARSER: Any = import_module("re._parser")
Node = tuple[str, object]

_leaves = st.sampled_from([("one", "a"), ("one", "b"), ("one", ".")])


def _grown(nodes: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    several = st.lists(nodes, min_size=1, max_size=3).map(tuple)
    counts = st.tuples(st.integers(0, 2), st.integers(0, 2)).map(
        lambda pair: (pair[0], pair[0] + pair[1])
    )
    return st.one_of(
        st.tuples(st.just("all"), several),
        st.tuples(st.just("any"), several),
        st.tuples(st.just("repeat"), st.tuples(nodes, counts)),
    )


nodes: st.SearchStrategy[Node] = st.recursive(_leaves, _grown, max_leaves=6)


def written(node: Node) -> str:
    """The node as a pattern."""
    match node:
        case "one", str(character):
            return character
        case "all", tuple(parts):
            return "".join(f"(?:{written(part)})" for part in parts)
        case "any", tuple(parts):
            return "|".join(f"(?:{written(part)})" for part in parts)
        case "repeat", (tuple(part), (int(least), int(most))):
            return f"(?:{written(part)}){{{least},{most}}}"
    raise AssertionError(node)


Parts = list[tuple[Any, Any]]


class Matcher:
    """Tries every way in which a pattern fits, as Python reads it, and counts the characters it
    looks at.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.steps = 0

    def ends(self, parts: Parts, at: int) -> Iterator[int]:
        if not parts:
            yield at
            return
        for end in self._part(*parts[0], at):
            yield from self.ends(parts[1:], end)

    def _part(self, kind: Any, content: Any, at: int) -> Iterator[int]:
        match str(kind):
            case "BRANCH":
                for parts in content[1]:
                    yield from self.ends(list(parts), at)
            case "SUBPATTERN":
                yield from self.ends(list(content[3]), at)
            case "MAX_REPEAT":
                least, most, parts = content
                yield from self._repeated(list(parts), least, most, at)
            case _:
                self.steps += 1
                if at < len(self.text) and self._is_one(str(kind), content, self.text[at]):
                    yield at + 1

    def _is_one(self, kind: str, content: Any, character: str) -> bool:
        if kind == "ANY":
            return True
        if kind == "IN":
            return any(each == ord(character) for _, each in content)
        return bool(content == ord(character))

    def _repeated(self, parts: Parts, least: int, most: int, at: int) -> Iterator[int]:
        if most > 0:
            for end in self.ends(parts, at):
                yield from self._repeated(parts, max(0, least - 1), most - 1, end)
        if least == 0:
            yield at


@given(nodes, st.text("abc", max_size=12))
def test_no_search_takes_more_steps_than_the_bound(node: Node, text: str) -> None:
    pattern = written(node)
    try:
        most = worst_steps(pattern)
    except PatternError:
        return
    parts = list(PARSER.parse(pattern))
    matcher = Matcher(text)
    ends = list(matcher.ends(parts, 0))
    assert matcher.steps <= most
    assert bool(ends) is (re.compile(pattern).match(text) is not None)
    assert (compiled(pattern).search(text) is not None) is any(
        list(Matcher(text).ends(parts, start)) for start in range(len(text) + 1)
    )
