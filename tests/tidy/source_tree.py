"""The tree as the tidy tests read it: files, modules, imports and public names."""

import ast
import gc
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.required_tools import require_tool

ROOT = Path(__file__).parents[2]
PACKAGES = ("schemas", "consumers", "streamer")


@cache
def kept_files() -> tuple[Path, ...]:
    """Every file that is or would be committed, relative to the root."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: nothing says which files belong to it")
    command = [
        require_tool("git", "apt-get install git"),
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return tuple(
        sorted(Path(name) for name in listed.split("\0") if name and (ROOT / name).is_file())
    )


@cache
def kept_texts() -> dict[Path, str]:
    """The text of those files, without binary files."""
    texts = {}
    for path in kept_files():
        raw = (ROOT / path).read_bytes()
        if b"\0" not in raw:
            texts[path] = raw.decode()
    return texts


@cache
def modules(folder: str) -> dict[Path, ast.Module]:
    """The Python modules under a folder, by path relative to the root."""
    paths = sorted((ROOT / folder).rglob("*.py"))
    # a finaliser may parse too in the middle, and before 3.11.9 Python takes that for an internal
    # error
    gc.disable()
    try:
        return {path.relative_to(ROOT): ast.parse(path.read_text(), str(path)) for path in paths}
    finally:
        gc.enable()


def imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and dotted name of every import anywhere in a module; `from a import b` is `a.b`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def is_within(name: str, package: str) -> bool:
    """Whether a dotted name is the package or in it."""
    return name == package or name.startswith(package + ".")
