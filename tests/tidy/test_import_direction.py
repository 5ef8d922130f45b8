"""Imports go one way: schemas, engine, runtime and store side by side, the log and the view, the
shells, streamer. No module needs itself.
"""

import ast
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.tidy.source_tree import ROOT, imports, is_within, modules

OURS = ("schemas", "consumers", "streamer", "tests", "deploy")
OBSERVERS_FOLDER = ("streamer", "observers")
"""The distributions that run inside other people's bots: they import nothing of ours, and nothing
of ours imports them.
"""
OBSERVERS = {
    "send": "callgauge_send",
    "pipecat": "pipecat_callgauge",
    "livekit": "callgauge_livekit",
}
"""The package of each, by its folder."""
OBSERVER_MAY_IMPORT = {
    "callgauge_send": ("aiohttp", "aiokafka"),
    "pipecat_callgauge": ("callgauge_send", "loguru", "pipecat"),
    "callgauge_livekit": ("callgauge_send", "livekit"),
}
OBSERVER_NEEDS = {
    "callgauge_send": {"aiohttp", "aiokafka"},
    "pipecat_callgauge": {"callgauge-send", "pipecat-ai"},  # loguru comes with pipecat
    "callgauge_livekit": {"callgauge-send", "livekit-agents"},
}

# Common libraries of the field, as pure as the rest.
ENGINE_LIBRARIES = (
    "jaconv",  # widths of Japanese letters
    "jiwer",  # aligns two texts and counts the errors
    "phonenumbers",  # the world's numbering plans; it reads its own table of a country, once
    "stdnum",  # check digits of cards and bank accounts; it reads its own table of countries, once
    # one spelling of numbers and contractions; it reads its own table of spellings, once
    "whisper_normalizer",
)

# Pure computation only: nothing here reads a clock, a file, a random number or the network.
ENGINE_MAY_IMPORT = (
    *(
        "__future__",
        "abc",
        "array",
        "bisect",
        "collections",
        "copy",
        "dataclasses",
        "enum",
        "fractions",
        "functools",
        "hashlib",
        "msgspec",
    ),
    *(
        "heapq",
        "itertools",
        "json",
        "math",
        "operator",
        "re",
        "statistics",
        "string",
        "struct",
        "types",
        "typing",
    ),
    *(
        "unicodedata",
        "zlib",
        "typing_extensions",
        "pydantic",
        "pydantic_core",
        "schemas",
        "consumers.engine",
    ),
    *ENGINE_LIBRARIES,
)


def _package(path: Path) -> str:
    """The package of a module: schemas, consumers.engine, consumers.evaluator, ..., streamer, or
    the package of an observer.
    """
    if path.parts[:2] == OBSERVERS_FOLDER:
        return OBSERVERS[path.parts[2]]
    return (
        ".".join(path.parts[:2])
        if path.parts[0] == "consumers" and len(path.parts) > 2
        else path.parts[0]
    )


def _may_import(package: str) -> tuple[str, ...]:
    match package:
        case "callgauge_send" | "pipecat_callgauge" | "callgauge_livekit":
            return (package, *OBSERVER_MAY_IMPORT[package])
        case "schemas" | "consumers":  # consumers/__init__.py is in no part: it imports nothing
            return ("schemas",) if package == "schemas" else ()
        case "consumers.engine" | "consumers.runtime" | "consumers.store":
            return ("schemas", package)
        case "consumers.log":
            return ("schemas", "consumers.runtime", "consumers.store", package)
        case "consumers.view":
            return ("schemas", "consumers.engine", package)
        case "streamer":
            return ("schemas", "consumers", "streamer")
    return (
        "schemas",
        "consumers.engine",
        "consumers.runtime",
        "consumers.log",
        "consumers.store",
        "consumers.view",
        package,
    )


def _offences(path: Path, tree: ast.Module) -> list[str]:
    allowed = _may_import(_package(path))
    return [
        f"{path}:{line} imports {name}"
        for line, name in imports(tree)
        if any(is_within(name, top) for top in (*OURS, *OBSERVER_MAY_IMPORT))
        and not any(is_within(name, top) for top in allowed)
    ]


@pytest.mark.parametrize("folder", ["schemas", "consumers", "streamer"])
def test_imports_go_one_way(folder: str) -> None:
    assert [
        offence for path, tree in modules(folder).items() for offence in _offences(path, tree)
    ] == []


def _circles(trees: Mapping[Path, ast.Module]) -> list[list[str]]:
    """Modules that import each other while they are loaded, directly or through others."""
    names = {path: path.with_suffix("").as_posix().replace("/", ".") for path in trees}
    known = set(names.values())
    needs: dict[str, set[str]] = {}
    for path, tree in trees.items():
        loaded = ast.Module(
            [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)], []
        )
        found = {name if name in known else name.rpartition(".")[0] for _, name in imports(loaded)}
        needs[names[path]] = (found & known) - {names[path]}
    while leaves := {name for name, needed in needs.items() if not needed}:
        needs = {name: needed - leaves for name, needed in needs.items() if name not in leaves}
    return [[name, *sorted(needed)] for name, needed in sorted(needs.items())]


def test_no_module_needs_itself() -> None:
    folders = ("schemas", "consumers", "streamer")
    assert (
        _circles({path: tree for folder in folders for path, tree in modules(folder).items()}) == []
    )


def test_a_circle_is_seen() -> None:
    trees = {
        Path("a/x.py"): ast.parse("from a.y import Y"),
        Path("a/y.py"): ast.parse("from a import z"),
        Path("a/z.py"): ast.parse("import a.x"),
        Path("a/above.py"): ast.parse("import a.x"),
        Path("a/below.py"): ast.parse("def f():\n    import a.x"),
    }
    assert [name for name, *_ in _circles(trees)] == ["a.above", "a.x", "a.y", "a.z"]


def test_the_engine_imports_only_pure_computation() -> None:
    offences = [
        f"{path}:{line} imports {name}"
        for path, tree in modules("consumers/engine").items()
        for line, name in imports(tree)
        if not any(is_within(name, top) for top in ENGINE_MAY_IMPORT)
    ]
    assert offences == []


@pytest.mark.parametrize(("folder", "package"), OBSERVERS.items())
def test_an_observer_needs_its_framework_and_the_sender_only(folder: str, package: str) -> None:
    project = tomllib.loads(
        (ROOT / Path(*OBSERVERS_FOLDER, folder) / "pyproject.toml").read_text()
    )["project"]
    assert {Requirement(each).name for each in project["dependencies"]} == OBSERVER_NEEDS[package]
    strange = [
        f"{path}:{line} imports {name}"
        for path, tree in modules("/".join((*OBSERVERS_FOLDER, folder))).items()
        for line, name in imports(tree)
        if path.parts[3] == package
        and name.split(".")[0] not in sys.stdlib_module_names
        and not any(is_within(name, top) for top in (package, *OBSERVER_MAY_IMPORT[package]))
    ]
    assert strange == []


def test_the_wheel_leaves_the_observers_out() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"][
        "targets"
    ]["wheel"]
    assert "/".join(OBSERVERS_FOLDER) in wheel["exclude"]


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("streamer/observers/pipecat/pipecat_callgauge/x.py", "from schemas.events import codec"),
        ("streamer/cli/x.py", "import pipecat_callgauge"),
        ("streamer/observers/send/callgauge_send/x.py", "import pipecat_callgauge"),
        (
            "streamer/observers/livekit/callgauge_livekit/x.py",
            "from pipecat_callgauge import reading",
        ),
        ("schemas/x.py", "import consumers.engine.x"),
        ("schemas/x.py", "from streamer import cli"),
        ("consumers/engine/x.py", "from consumers.runtime.kafka.connection import client"),
        ("consumers/engine/x.py", "from consumers import exporter"),
        ("consumers/runtime/x.py", "from consumers.engine import call"),
        ("consumers/exporter/x.py", "def f():\n    from consumers.evaluator import shell"),
        ("consumers/exporter/x.py", "import streamer"),
        ("consumers/runtime/x.py", "from consumers.log import stretches"),
        ("consumers/log/x.py", "from consumers.engine import call"),
        ("consumers/x.py", "import schemas"),
        ("streamer/x.py", "from tests import oracle"),
    ],
)
def test_a_wrong_direction_is_seen(path: str, line: str) -> None:
    assert len(_offences(Path(path), ast.parse(line))) == 1
