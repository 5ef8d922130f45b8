"""Every error that reaches the command line is one that a person can fix; no list by hand names
them.
"""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.tidy.source_tree import modules


def _names(node: ast.expr | None) -> Iterator[str]:
    """The classes of an `except` clause or of a list of bases, without their modules."""
    if isinstance(node, ast.Tuple):
        for element in node.elts:
            yield from _names(element)
    elif isinstance(node, ast.Attribute):
        yield node.attr
    elif isinstance(node, ast.Name):
        yield node.id


def _never_caught(trees: Mapping[Path, ast.Module]) -> list[str]:
    """Classes that derive from `Exception` itself and are in no `except` clause: they would end in
    a traceback.
    """
    nodes = [(path, node) for path, tree in trees.items() for node in ast.walk(tree)]
    caught = {
        name
        for _, node in nodes
        if isinstance(node, ast.ExceptHandler)
        for name in _names(node.type)
    }
    return [
        f"{path}:{node.lineno} {node.name}"
        for path, node in nodes
        if isinstance(node, ast.ClassDef)
        and any(name == "Exception" for base in node.bases for name in _names(base))
        and node.name not in caught
    ]


def test_an_error_that_nothing_catches_is_an_operator_error() -> None:
    trees = modules("consumers") | modules("streamer")
    outside_engine = {
        path: tree for path, tree in trees.items() if path.parts[:2] != ("consumers", "engine")
    }
    assert _never_caught(outside_engine) == []


def test_a_forgotten_error_is_seen() -> None:
    tree = ast.parse(
        "class AError(Exception): ...\nclass BError(Exception): ...\ntry: ...\nexcept (m.BError, "
        "OSError): ..."
    )
    assert _never_caught({Path("x.py"): tree}) == ["x.py:1 AError"]
