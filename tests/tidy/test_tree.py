"""Names, docstrings and stray text of the tree, and that the commands of its documents exist."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tidy.source_tree import ROOT, kept_files, kept_texts, modules

TARGETS = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.M))
# These names do not say what a module owns: anything may be put there, so anything will be.
EMPTY_WORDS = {
    "base",
    "common",
    "helper",
    "helpers",
    "manager",
    "managers",
    "misc",
    "stuff",
    "util",
    "utils",
}

UNFINISHED = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|X" + r"XX)\b")
# Folders of one person's machine, and the folder of this checkout.
MACHINE_PATH = re.compile(
    r"(?<![\w.])/(?:root|home|Users|work|workspace|mnt)/|" + re.escape(f"{ROOT}/")
)
REGISTRY = re.compile(
    r"(?:pypi|pythonhosted|npmjs|maven|debian|ubuntu|crates|golang)[a-z0-9.-]*\.(?:org|com|io|net)\b",
    re.I,
)


def _lines_with(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{path}:{number}: {line.strip()[:100]}"
        for path, text in kept_texts().items()
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]


def test_names_say_what_they_own() -> None:
    offences = [
        path
        for path in kept_files()
        for part in path.with_suffix("").parts
        if EMPTY_WORDS & set(re.split(r"[_-]", part))
    ]
    assert offences == []


def test_nothing_is_left_for_later() -> None:
    assert _lines_with(UNFINISHED) == []


def test_no_path_of_a_machine() -> None:
    image = "deploy/Dockerfile:"  # its paths are the image's, the same everywhere
    assert [line for line in _lines_with(MACHINE_PATH) if not line.startswith(image)] == []


def test_no_package_registry() -> None:
    assert _lines_with(REGISTRY) == []


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        (UNFINISHED, "# TO" + "DO: later"),
        (MACHINE_PATH, "path = '/ho" + "me/me/callgauge'"),
        (MACHINE_PATH, f"{ROOT}/schemas"),
        (REGISTRY, "https://py" + "pi.org/simple"),
        (REGISTRY, "https://files.python" + "hosted.org/x"),
        (REGISTRY, "https://repo.maven" + ".apache.org"),
    ],
)
def test_stray_text_is_seen(pattern: re.Pattern[str], line: str) -> None:
    assert pattern.search(line)


def _undocumented(path: Path, tree: ast.Module) -> Iterator[str]:
    """Public classes, functions, and methods of public classes, without a docstring."""
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    owners: list[tuple[str, ast.Module | ast.ClassDef]] = [("", tree)]
    for prefix, owner in owners:
        for node in owner.body:
            if isinstance(node, kinds) and not node.name.startswith("_"):
                if ast.get_docstring(node) is None:
                    yield f"{path}:{node.lineno} {prefix}{node.name}"
                if isinstance(node, ast.ClassDef):
                    owners.append((f"{prefix}{node.name}.", node))


@pytest.mark.parametrize("folder", ["schemas", "consumers/engine"])
def test_public_names_are_documented(folder: str) -> None:
    assert [
        name for path, tree in modules(folder).items() for name in _undocumented(path, tree)
    ] == []


def test_documents_name_only_targets_that_exist() -> None:
    named = {
        (str(path), target)
        for path, text in kept_texts().items()
        if path.suffix == ".md"
        for target in re.findall(r"(?:`|^|\s{2}|\$ )make ([a-z-]+)", text, re.M)
    }
    assert {(path, target) for path, target in named if target not in TARGETS} == set()
    assert (
        not (ROOT / "README.md").read_text()
        or {("README.md", "demo"), ("README.md", "test")} <= named
    )
