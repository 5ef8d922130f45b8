"""The bound on a pattern's work is one: a plain backtracking matcher that tries everything never
exceeds it.
"""

import re
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from schemas.goals.patterns import PatternError, compiled, worst_steps

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


class Matcher:
    """Tries every way in which a node fits, and counts the characters it looks at."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.steps = 0

    def ends(self, node: Node, at: int) -> Iterator[int]:
        match node:
            case "one", str(character):
                self.steps += 1
                if at < len(self.text) and character in (".", self.text[at]):
                    yield at + 1
            case "all", tuple(parts):
                yield from self._in_order(parts, at)
            case "any", tuple(parts):
                for part in parts:
                    yield from self.ends(part, at)
            case "repeat", (tuple(part), (int(least), int(most))):
                yield from self._repeated(part, least, most, at)

    def _in_order(self, parts: tuple[Node, ...], at: int) -> Iterator[int]:
        if not parts:
            yield at
            return
        for end in self.ends(parts[0], at):
            yield from self._in_order(parts[1:], end)

    def _repeated(self, part: Node, least: int, most: int, at: int) -> Iterator[int]:
        if most > 0:
            for end in self.ends(part, at):
                yield from self._repeated(part, max(0, least - 1), most - 1, end)
        if least == 0:
            yield at


@given(nodes, st.text("abc", max_size=12))
def test_no_search_takes_more_steps_than_the_bound(node: Node, text: str) -> None:
    pattern = written(node)
    try:
        most = worst_steps(pattern)
    except PatternError:
        return
    matcher = Matcher(text)
    ends = list(matcher.ends(node, 0))
    assert matcher.steps <= most
    assert bool(ends) is (re.compile(pattern).match(text) is not None)
    assert (compiled(pattern).search(text) is not None) is any(
        list(Matcher(text).ends(node, start)) for start in range(len(text) + 1)
    )
