"""Goal sets in files: the contents of a file, every mistake with its line, and the changed files of a folder."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from consumers.runtime.process import OperatorError
from schemas.goals.goal_set import GoalMistake, GoalSet, read_goals
from streamer.goals.documents import Document, DocumentError, read_json, read_json_lines, read_yaml

MAX_FILE_BYTES: Final = 16 * 1_048_576
"""Largest file that is read. EVA's data sets have 2 MB."""
MAX_FILES: Final = 1_000
"""Files of a folder; with more it is not a folder of goals."""

_READERS: Final[Mapping[str, Callable[[str], Document]]] = {
    ".yaml": read_yaml,
    ".yml": read_yaml,
    ".json": read_json,
    ".jsonl": read_json_lines,
}
GOAL_SUFFIXES: Final = tuple(_READERS)


class PlacedSet(NamedTuple):
    """A goal set and the line it begins on."""

    line: int
    goals: GoalSet


@dataclass(frozen=True, slots=True)
class FileMistake:
    """A mistake in a file.

    Attributes:
        path: The file.
        line: Line number from 1; None for the file as a whole.
        text: The place in the goal set, the expected and the seen value, and the remedy: a sentence without a full stop.
    """

    path: Path
    line: int | None
    text: str

    def __str__(self) -> str:
        return f"{self.path}: {self.text}" if self.line is None else f"{self.path}:{self.line}: {self.text}"


@dataclass(frozen=True, slots=True)
class GoalFile:
    """The contents of a file. A file with a mistake is not used at all: half a file could judge calls wrongly.

    Attributes:
        path: The file.
        sets: Its goal sets without a mistake, in order.
        mistakes: All mistakes, in the order of their lines.
    """

    path: Path
    sets: tuple[PlacedSet, ...] = ()
    mistakes: tuple[FileMistake, ...] = ()


class FileState(NamedTuple):
    """The properties by which a changed or replaced file is recognised."""

    modified_ns: int
    size_bytes: int
    inode: int


class GoalFolderError(OperatorError):
    """A folder of goals cannot be used; the text has the reason and the remedy."""


def read_goal_file(path: Path) -> GoalFile:
    """Reads a file; the result has its mistakes."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        return _unusable(path, f"the file cannot be read ({error.strerror or type(error).__name__})")
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        return _unusable(path, f"its name ends with none of {', '.join(GOAL_SUFFIXES)}, so nobody knows how to read it")
    if len(raw) > MAX_FILE_BYTES:
        return _unusable(path, f"has more than {MAX_FILE_BYTES} bytes; make several files of it")
    try:
        document = reader(raw.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        return _unusable(path, "not UTF-8; save it in that encoding", line)
    except DocumentError as error:
        return _unusable(path, error.text, error.line)
    found = read_goals(document.value, fallback_id=path.stem)
    mistakes = sorted(_placed(path, document, found.mistakes), key=lambda mistake: mistake.line or 0)
    sets = tuple(PlacedSet(document.line_of(place), goals) for place, goals in found.sets)
    return GoalFile(path, sets, tuple(mistakes))


def goal_files_of(folder: Path) -> dict[Path, FileState]:
    """The goal files that are directly in a folder, in the order of their names; hidden ones are left out.

    Raises:
        GoalFolderError: There is no such folder, or it has too many files.
    """
    try:
        found = {Path(entry.path): _state_of(entry) for entry in os.scandir(folder) if _is_goal_file(entry)}
    except OSError as error:
        raise GoalFolderError(
            f"{folder}: the folder of goals cannot be read ({error.strerror or type(error).__name__}). No goals come from it. "
            "Check the path and its rights."
        ) from error
    states = {path: state for path, state in sorted(found.items()) if state is not None}
    if len(states) > MAX_FILES:
        raise GoalFolderError(
            f"{folder}: has {len(states)} goal files, and {MAX_FILES} are read at most, so none is. Put several goal sets into "
            "one file."
        )
    return states


def doubles_in(files: Iterable[GoalFile]) -> Iterator[FileMistake]:
    """Ids and agents that more than one file has; within a file they are mistakes of it already."""
    ids: dict[str, Path] = {}
    agents: dict[str, Path] = {}
    for file in files:
        for line, goals in file.sets:
            other = ids.setdefault(goals.id, file.path)
            if other != file.path:
                text = f"goal set {goals.id!r} is in {other} too; the first file's is used. Give one of them another id"
                yield FileMistake(file.path, line, text)
            for agent in goals.agents:
                other = agents.setdefault(agent, file.path)
                if other != file.path:
                    text = f"agent {agent!r} is in {other} too; the first file's set is used. Leave it to one goal set"
                    yield FileMistake(file.path, line, text)


def _is_goal_file(entry: os.DirEntry[str]) -> bool:
    return not entry.name.startswith(".") and entry.name.lower().endswith(GOAL_SUFFIXES) and entry.is_file()


def _state_of(entry: os.DirEntry[str]) -> FileState | None:
    """None for a file that has gone meanwhile."""
    try:
        status = entry.stat()
    except FileNotFoundError:
        return None
    return FileState(status.st_mtime_ns, status.st_size, status.st_ino)


def _placed(path: Path, document: Document, mistakes: list[GoalMistake]) -> Iterator[FileMistake]:
    for mistake in mistakes:
        text = f"{mistake.place}: {mistake.text}" if mistake.place else mistake.text
        yield FileMistake(path, document.line_of(mistake.path), text)


def _unusable(path: Path, text: str, line: int | None = None) -> GoalFile:
    return GoalFile(path, mistakes=(FileMistake(path, line, text),))
