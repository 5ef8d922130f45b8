"""What a source's events mean is decided in `engine/sources` alone: the rest of the engine reads
facts.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tidy.source_tree import imports, is_within, modules

SOURCES = Path("consumers/engine/sources")
EVENTS = tuple(
    f"schemas.events.{source}" for source in ("audit", "elevenlabs", "pipecat", "simulator")
)
NAMED = {
    # the bound of its records is twice that of the others
    "consumers/engine/admission.py": {"ELEVENLABS"},
    "consumers/engine/evaluator.py": {"JUDGE"},  # verdicts have no time of a call
    "consumers/engine/measures/stages.py": {
        "AUDIT",
        "ELEVENLABS",
    },  # a label of `callgauge_stage_values_unmapped_total`
    # what a use of a tool lacks depends on who reports it
    "consumers/engine/turns/timeline.py": {"AUDIT", "PIPECAT"},
}
"""Inputs that other modules name: where a metric, a bound or a rank needs it."""


def _offences(path: Path, tree: ast.Module) -> Iterator[str]:
    for line, name in imports(tree):
        if any(is_within(name, events) for events in EVENTS):
            yield f"{path}:{line} imports {name}: translate it into a fact in {SOURCES}"
    for name in sorted(_inputs_in(tree) - NAMED.get(path.as_posix(), set())):
        yield f"{path} knows the input {name}"


def _inputs_in(tree: ast.Module) -> set[str]:
    """The inputs that a module names."""
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "InputSource"
    }


def test_only_the_sources_know_their_events() -> None:
    others = {
        path: tree
        for path, tree in modules("consumers/engine").items()
        if not path.is_relative_to(SOURCES)
    }
    assert [offence for path, tree in others.items() for offence in _offences(path, tree)] == []


def test_an_input_that_may_be_named_is_named() -> None:
    trees = modules("consumers/engine")
    assert {name: _inputs_in(trees[Path(name)]) for name in NAMED} == NAMED


@pytest.mark.parametrize(
    "line",
    [
        "from schemas.events.audit import AuditUser",
        "from schemas.events import pipecat",
        "import schemas.events.elevenlabs",
        "is_agent = source is InputSource.ELEVENLABS",
    ],
)
def test_a_module_that_knows_a_source_is_seen(line: str) -> None:
    assert len(list(_offences(Path("consumers/engine/x.py"), ast.parse(line)))) == 1
