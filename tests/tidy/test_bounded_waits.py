"""The product waits with `asyncio.timeout`, and ends tasks with `end_tasks`: no lost cancel holds
anything up for ever.
"""

import ast
from collections.abc import Callable, Iterator

import pytest

from tests.tidy.source_tree import modules


def _swallowing(tree: ast.Module) -> Iterator[int]:
    """Lines that name `wait_for`: on Python 3.11 it swallows a cancel that comes in the same turn
    of the loop as its result.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "wait_for":
            yield node.lineno
        if isinstance(node, ast.ImportFrom) and any(each.name == "wait_for" for each in node.names):
            yield node.lineno


def _unbounded(tree: ast.Module) -> Iterator[int]:
    """Lines that wait without a bound in a function that cancels: a task that goes on after its
    cancel holds them up for ever.
    """
    for function in ast.walk(tree):
        if not isinstance(function, ast.AsyncFunctionDef):
            continue
        calls = [
            (node, node.func)
            for node in ast.walk(function)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        ]
        cancelled = {ast.unparse(method.value) for _, method in calls if method.attr == "cancel"}
        for call, method in calls:
            given = {keyword.arg for keyword in call.keywords}
            if cancelled and method.attr == "gather" and "return_exceptions" in given:
                yield call.lineno
            if (
                method.attr == "wait"
                and "timeout" not in given
                and cancelled & {*map(ast.unparse, _members(call))}
            ):
                yield call.lineno


def _members(call: ast.Call) -> list[ast.expr]:
    """The elements of a list that is the first argument."""
    return call.args[0].elts if call.args and isinstance(call.args[0], ast.List) else []


RULES = (_swallowing, _unbounded)


@pytest.mark.parametrize("rule", RULES)
def test_every_wait_of_the_product_is_bounded(rule: Callable[[ast.Module], Iterator[int]]) -> None:
    trees = modules("consumers") | modules("streamer")
    assert [f"{path}:{line}" for path, tree in trees.items() for line in rule(tree)] == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("await asyncio.wait_for(x, 1)", ([1], [])),
        ("from asyncio import wait_for", ([1], [])),
        (
            "async def f():\n  t.cancel()\n  await asyncio.gather(t, return_exceptions=True)",
            ([], [3]),
        ),
        ("async def f():\n  t.cancel()\n  await asyncio.wait([t])", ([], [3])),
        ("async def f():\n  t.cancel()\n  await asyncio.wait([t], timeout=1)", ([], [])),
        ("async def f():\n  await asyncio.gather(t, return_exceptions=True)", ([], [])),
    ],
)
def test_an_unbounded_wait_is_seen(text: str, found: tuple[list[int], list[int]]) -> None:
    assert tuple([*rule(ast.parse(text))] for rule in RULES) == found
