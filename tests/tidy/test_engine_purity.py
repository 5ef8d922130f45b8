"""The engine is pure: no clock, no input or output, nothing asynchronous, no randomness, no
logging.
"""

import ast
from pathlib import Path

import pytest

from tests.tidy.source_tree import imports, is_within, modules

# The allow-list of test_import_direction forbids these too; here they stay forbidden even if that
# list is widened.
FORBIDDEN_MODULES = (
    *(
        "time",
        "datetime",
        "calendar",
        "random",
        "secrets",
        "uuid",
        "os",
        "io",
        "sys",
        "pathlib",
        "tempfile",
        "socket",
    ),
    *(
        "asyncio",
        "threading",
        "multiprocessing",
        "concurrent",
        "subprocess",
        "logging",
        "structlog",
        "warnings",
    ),
)
FORBIDDEN_CALLS = {
    *(
        "print",
        "open",
        "input",
        "eval",
        "exec",
        "compile",
        "breakpoint",
        "globals",
        "__import__",
        "id",
        "hash",
    )
}
ASYNCHRONOUS = (ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith, ast.Await)


def _offences(path: Path, tree: ast.Module) -> list[str]:
    found = [
        f"{path}:{line} imports {name}"
        for line, name in imports(tree)
        if any(is_within(name, forbidden) for forbidden in FORBIDDEN_MODULES)
    ]
    for node in ast.walk(tree):
        if isinstance(node, ASYNCHRONOUS):
            found.append(f"{path}:{node.lineno} is asynchronous")
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in FORBIDDEN_CALLS
        ):
            found.append(f"{path}:{node.lineno} calls {node.func.id}")
        elif isinstance(node, ast.Global):
            found.append(f"{path}:{node.lineno} changes a global name")
    return found


def test_the_engine_is_pure() -> None:
    assert [
        offence
        for path, tree in modules("consumers/engine").items()
        for offence in _offences(path, tree)
    ] == []


@pytest.mark.parametrize(
    "line",
    [
        "import time",
        "from datetime import datetime",
        "import os.path",
        "async def f(): pass",
        "print(1)",
        "x = open('x')",
        "key = hash('text')",  # differs from process to process, so a replay would differ
        "def f():\n    global x\n    x = 1",
    ],
)
def test_what_is_not_pure_is_seen(line: str) -> None:
    assert len(_offences(Path("x.py"), ast.parse(line))) == 1
