"""Folders show the way: few things in each, and imports that only go down, so that no two folders need each other."""

import ast
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Final

import pytest

from tests.tidy.source_tree import PACKAGES, imports, modules

MOST_THINGS: Final = 9
"""The most files and folders in one folder: as many as a reader takes in at a glance."""
LARGER: Final[Mapping[str, str]] = {
    "consumers/engine": "its nine rooms, and the four files that every room may use or that use them all",
    "consumers/runtime": "what every role needs, and its settings",
    "consumers/runtime/kafka": "one way to a broker, and the batches that come back",
    "consumers/engine/redaction/personal_data": "a file for each type of personal data",
    "schemas": "a file for each kind of record, and four folders",
    "schemas/events": "a file for each kind of event, and their reading, their examples and what is not understood",
    "streamer": "thirteen rooms, and what all of them share",
    "streamer/cli": "a file for each command",
    "streamer/commands": "a file for each command, and the four that they share",
}

# From the ground up: a room imports only from the lines above its own. A room is a folder, or a module beside the folders.
FLOORS: Final[Mapping[str, Sequence[Sequence[str]]]] = {
    "schemas": (
        ("closed_sets", "judge_options", "transcript", "undecodable", "units"),
        ("order", "wire"),
        ("goals", "judging"),
        ("events", "redaction"),
        ("metric_context", "quarantine", "scores"),
        ("evaluation_event", "json_schemas", "metrics", "topics"),
        ("topic_rules",),
    ),
    "consumers/engine": (
        ("effects", "limits", "redaction/personal_data", "turns/timeline"),
        ("redaction", "turns/bot", "turns/eva"),
        ("records", "turns/heard"),
        ("measures/stages", "turns"),
        ("judging", "measures/eva/timing", "measures/talk", "measures/words"),
        ("goals", "measures/eva/tools"),
        ("agent_inspect", "measures/eva"),
        ("measures",),
        ("intake",),
        ("call/transcripts",),
        ("call",),
        ("partition",),
    ),
    "consumers/evaluator": (
        ("reading", "settings"),
        ("recovery",),
        ("writing",),
        ("partition",),
        ("topics",),
        ("ownership",),
        ("gauges",),
        ("service",),
    ),
    "consumers/judge": (
        ("limits", "progress", "prompting"),
        ("partition_writer", "settings"),
        ("asking",),
        ("service",),
    ),
    "streamer": (
        (
            "exit_codes",
            "help_facts",
            "pipecat_observer",
            "pipecat_observer/pipecat_callgauge",
            "quiet_libraries",
            "recordings/files",
            "report/drawing",
            "roles/demo_view",
            "roles/transcripts",
            "settings",
            "signals",
            "terminal",
            "time_bounds",
            "version",
        ),
        ("cluster", "report/call", "trials"),
        ("goals", "operations/quarantine", "report/sections"),
        ("recordings", "report"),
        ("sources/replay",),
        ("offline/judging",),
        ("offline", "sources", "sources/simulator"),
        ("sources/http/receiving", "sources/monitor"),
        ("sources/http/elevenlabs", "sources/http/posted"),
        ("sources/http", "sources/tail"),
        ("roles",),
        (
            "agent_inspect",
            "operations/backtest",
            "operations/doctor",
            "operations/event_check",
            "operations/live_calls",
            "operations/one_call",
            "operations/repeated_calls",
        ),
        ("commands",),
        ("cli",),
    ),
}


def _room(top: str, path: PurePosixPath) -> str:
    inside = path.with_suffix("").relative_to(top)
    return inside.parent.as_posix() if len(inside.parts) > 1 else inside.name


def _climbs(top: str, trees: Mapping[Path, ast.Module]) -> Iterator[str]:
    """Imports from a room on the same floor or above, and rooms that have no floor."""
    floor_by_room = {room: floor for floor, rooms in enumerate(FLOORS[top]) for room in rooms}
    there = {path.with_suffix("").as_posix().replace("/", "."): _room(top, PurePosixPath(path)) for path in trees}
    for path, tree in trees.items():
        if path.name == "__init__.py":
            continue
        own = _room(top, PurePosixPath(path))
        if own not in floor_by_room:
            yield f"{path}: {own} has no floor"
            continue
        for line, name in imports(tree):
            other = there.get(name) or there.get(name.rpartition(".")[0])
            if other is not None and other != own and floor_by_room.get(other, len(FLOORS[top])) >= floor_by_room[own]:
                yield f"{path}:{line}: {own} imports {other}"


@pytest.mark.parametrize("top", FLOORS)
def test_imports_go_down(top: str) -> None:
    assert list(_climbs(top, modules(top))) == []


@pytest.mark.parametrize("top", FLOORS)
def test_every_floor_is_lived_on(top: str) -> None:
    rooms = {_room(top, PurePosixPath(path)) for path in modules(top) if path.name != "__init__.py"}
    assert {room for floor in FLOORS[top] for room in floor} == rooms


def test_a_way_up_is_seen() -> None:
    trees = {
        Path("consumers/engine/turns/eva/x.py"): ast.parse("from consumers.engine.call.y import Call"),
        Path("consumers/engine/call/y.py"): ast.parse("from consumers.engine.turns.eva import x"),
        Path("consumers/engine/new/z.py"): ast.parse(""),
    }
    assert list(_climbs("consumers/engine", trees)) == [
        "consumers/engine/turns/eva/x.py:1: turns/eva imports call",
        "consumers/engine/new/z.py: new has no floor",
    ]


@pytest.mark.parametrize("package", PACKAGES)
def test_a_folder_is_taken_in_at_a_glance(package: str) -> None:
    things: dict[str, set[str]] = {}
    for path in modules(package):
        if path.name == "__init__.py":
            continue
        for place in (path, *path.parents[:-1]):
            if place.parent != Path():
                things.setdefault(place.parent.as_posix(), set()).add(place.name)
    larger = {folder for folder, inside in things.items() if len(inside) > MOST_THINGS}
    assert larger == {folder for folder in LARGER if folder.split("/")[0] == package}
