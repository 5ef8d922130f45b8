"""Size, names, docstrings and stray text of the tree, and that its commands exist."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tidy.source_tree import PACKAGES, ROOT, kept_files, kept_texts, modules

MOST_LINES = 300
MOST_LINES_OF_ONE_THING = 500
LONGER = {
    "consumers/engine/call.py": "a call: one handler for each type of event, and the order in which its parts see it",
    "consumers/engine/transcripts.py": "one format, entry by entry; the numbers of an entry have a file of their own",
    "consumers/engine/goals/progress.py": "judging of a turn, from its facts to its records, in one pass",
    "consumers/engine/goals/curve.py": "one formula with its corner cases and doctests",
    "consumers/engine/goals/checks.py": "a function for each kind of check",
    "consumers/engine/evaluator.py": "the five verbs of the engine",
    "consumers/engine/turns/bot.py": "one state machine: a function for each moment of speech",
    "consumers/engine/turns/eva_text.py": "one rule of EVA's, with the patches that spare a replay",
    "consumers/engine/turns/eva.py": "one state machine: EVA's, in EVA's order",
    "consumers/engine/turns/live.py": "a method for each kind of event that the live call reads",
    "consumers/evaluator/assignment.py": "the owned partitions: each change of ownership needs all of their state",
    "consumers/evaluator/service.py": "the role: reading, folding and ticks under one lock",
    "consumers/evaluator/partition.py": "the state of a partition: every step is noted where it is taken",
    "consumers/runtime/kafka/log_ends.py": "the ends of logs, and the agreement of replicas that makes them believable",
    "consumers/exporter/projection.py": "a rule for each kind of record",
    "schemas/closed_sets.py": "every closed set of labels",
    "schemas/metrics/exporter.py": "every metric of one role",
    "schemas/judging.py": "questions, votes and verdicts, which refer to each other",
    "streamer/settings/all_settings.py": "every setting of one section each",
    "streamer/sources/replay.py": "one pure transformation, with its model of arrival",
    "streamer/sources/tail.py": "one record with its files, as they grow",
}
"""Files above the limit, each with the reason why it is one thing."""
TARGETS = {
    "setup",
    "demo",
    "test",
    "test-long",
    "laws",
    "durations",
    "check",
    "lock",
    "bench",
    "pressure",
    "conformance",
    "drills",
    "chaos",
    "kafka",
    "clean",
    "help",
}
# These names do not say what a module owns: anything may be put there, so anything will be.
EMPTY_WORDS = {"base", "common", "helper", "helpers", "manager", "managers", "misc", "stuff", "util", "utils"}

UNFINISHED = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|X" + r"XX)\b")
# Folders of one person's machine, and the folder of this checkout.
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:root|home|Users|work|workspace|mnt)/|" + re.escape(f"{ROOT}/"))
REGISTRY = re.compile(
    r"(?:pypi|pythonhosted|npmjs|maven|debian|ubuntu|crates|golang)[a-z0-9.-]*\.(?:org|com|io|net)\b", re.I
)


def _lines_with(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{path}:{number}: {line.strip()[:100]}"
        for path, text in kept_texts().items()
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]


@pytest.mark.parametrize("package", PACKAGES)
def test_modules_are_short(package: str) -> None:
    lengths = {str(path): len((ROOT / path).read_text().splitlines()) for path in modules(package)}
    longer = {path: lines for path, lines in lengths.items() if lines > MOST_LINES}
    assert sorted(longer) == sorted(path for path in LONGER if path.split("/")[0] == package)
    assert {path: lines for path, lines in longer.items() if lines > MOST_LINES_OF_ONE_THING} == {}


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
    assert [name for path, tree in modules(folder).items() for name in _undocumented(path, tree)] == []


def test_a_missing_docstring_is_seen() -> None:
    tree = ast.parse('class A:\n    "a"\n    def b(self): ...\n    def _c(self): ...\ndef _d(): ...\ndef e(): ...')
    assert list(_undocumented(Path("x.py"), tree)) == ["x.py:6 e", "x.py:3 A.b"]


FEWEST_WORDS = 3
NO_FIRST_WORDS = {"What", "Whoever", "Who", "Which", "Those", "That"}
"""A docstring that begins with one of them has a relative clause in place of a noun, and must be read twice."""


def _unreadable(path: Path, tree: ast.Module) -> Iterator[str]:
    """Public docstrings that are too short to say something, or that begin with a relative clause."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if not isinstance(node, kinds) or getattr(node, "name", "").startswith("_"):
            continue
        words = (ast.get_docstring(node) or "").split()
        if words and (len(words) < FEWEST_WORDS or words[0] in NO_FIRST_WORDS):
            yield f"{path}:{getattr(node, 'lineno', 1)} {' '.join(words[:6])}"


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_are_read_once(package: str) -> None:
    assert [found for path, tree in modules(package).items() for found in _unreadable(path, tree)] == []


def test_a_docstring_that_is_read_twice_is_seen() -> None:
    tree = ast.parse(
        '"""Which."""\nclass A:\n    "What is known of it."\n    def b(self):\n        "Returns the best one."'
    )
    assert list(_unreadable(Path("x.py"), tree)) == ["x.py:1 Which.", "x.py:2 What is known of it."]


def test_make_help_lists_every_target() -> None:
    shown = subprocess.run(["make", "--no-print-directory", "help"], cwd=ROOT, capture_output=True, text=True).stdout
    assert set(re.findall(r"^  make ([a-z-]+) ", shown, re.M)) == TARGETS
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.M)
    assert phony is not None
    assert set(phony[1].split()) == TARGETS


def test_documents_name_only_targets_that_exist() -> None:
    named = {
        (str(path), target)
        for path, text in kept_texts().items()
        if path.suffix == ".md"
        for target in re.findall(r"(?:`|^|\s{2}|\$ )make ([a-z-]+)", text, re.M)
    }
    assert {(path, target) for path, target in named if target not in TARGETS} == set()
    assert not (ROOT / "README.md").read_text() or {("README.md", "demo"), ("README.md", "test")} <= named


def test_what_every_checkout_has_is_there() -> None:
    wanted = [
        "README.md",
        "LICENSE",
        "Makefile",
        "pyproject.toml",
        "requirements.lock",
        "requirements-dev.lock",
        ".ci/run",
    ]
    assert [name for name in wanted if not (ROOT / name).is_file()] == []
