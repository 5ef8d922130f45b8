"""Goal files: YAML documents, and their mistakes with their places."""

import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from consumers.runtime.process import OperatorError
from schemas.goals.goal_set import DocumentPath, GoalMistake, GoalSet, read_goals

# Reads YAML, JSON and JSON lines into plain values, and keeps the line number of each value.
#
# YAML is read with few surprises: a value without quotes is a number only if JSON would read it as
# one, `true`, `false` and `null` in the usual spellings keep their meaning, and every other value
# is a text: dates, times of day, `yes`, `no`, `0042`. Anchors and tags are refused, since a short
# file with them can expand to a huge one. Several YAML documents, and several lines of JSON lines,
# are a list.

MAX_DEPTH: Final = 40
"""Values inside values; EVA's records have 12."""
MAX_SHOWN_CHARS: Final = 60
"""How much of a name of a field a message shows."""

_NUMBER: Final = re.compile(r"-?(0|[1-9][0-9]{0,308})(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?")
_WORDS: Final[Mapping[str, bool | None]] = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys(("null", "Null", "NULL", "~", ""), None),
}
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+|\n')
# libyaml where the wheel has it: the parser in Python takes seconds for a data set.
_YAML_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class DocumentError(Exception):
    """A text that cannot be read at all.

    Attributes:
        line: Line number from 1; None for the whole text.
        text: The fault and the remedy, a sentence without a full stop.
    """

    def __init__(self, line: int | None, text: str) -> None:
        self.line = line
        self.text = text
        super().__init__(text if line is None else f"line {line}: {text}")


class Document:
    """A value as JSON has it, and the lines of its parts."""

    def __init__(self, value: Any, lines: Mapping[DocumentPath, int]) -> None:
        self.value = value
        self._lines = lines

    def line_of(self, path: DocumentPath) -> int:
        """The line of a part, counted from 1; of the nearest part around it that there is."""
        return next(
            self._lines[path[:length]]
            for length in range(len(path), -1, -1)
            if path[:length] in self._lines
        )


def read_yaml(text: str) -> Document:
    """Reads YAML.

    Raises:
        DocumentError: The text is not YAML, or uses anchors or tags.
    """
    builder = _Builder()
    documents = 0
    try:
        for event in yaml.parse(text, Loader=_YAML_LOADER):
            documents += isinstance(event, yaml.DocumentStartEvent)
            _take_event(builder, event)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = None if mark is None else mark.line + 1
        raise DocumentError(line, f"not YAML: {_problem(error, text)}") from error
    except (yaml.YAMLError, UnicodeEncodeError) as error:
        raise DocumentError(None, f"not YAML: {' '.join(str(error).split())}") from error
    return builder.document(is_list=documents != 1)


def _problem(error: yaml.MarkedYAMLError, text: str) -> str:
    """The fault, and what to do about it; a tab is the one fault that a person cannot see."""
    mark = error.problem_mark
    lines = text.split("\n")
    is_token = "cannot start any token" in (error.problem or "")
    if is_token and mark is not None and mark.line < len(lines) and "\t" in lines[mark.line]:
        return "a tab; indent with spaces"
    return f"{error.problem or error.context}; check indentation and quotes"


def read_json(text: str) -> Document:
    """Reads JSON.

    Raises:
        DocumentError: It is none.
    """
    builder = _Builder()
    _take_json(builder, text, 1)
    return builder.document(is_list=False)


def read_json_lines(text: str) -> Document:
    """Reads one JSON value a line; empty lines are left out.

    Raises:
        DocumentError: A line is none.
    """
    builder = _Builder()
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            _take_json(builder, line, number)
    return builder.document(is_list=True)


class _Builder:
    """Puts a value together from its parts as they come, and notes the line of each."""

    def __init__(self) -> None:
        self._documents: list[Any] = []
        self._lines: dict[DocumentPath, int] = {}
        self._open: list[tuple[dict[str, Any] | list[Any], DocumentPath]] = [(self._documents, ())]
        self._name: str | None = None

    @property
    def expects_name(self) -> bool:
        """Whether the next scalar is the name of a field."""
        return isinstance(self._open[-1][0], dict) and self._name is None

    def name(self, name: str, line: int) -> None:
        """The name of the field whose value comes next."""
        fields, path = self._open[-1]
        _require_unicode(name, line)
        if name in fields:
            first = self._lines[*path, name]
            raise DocumentError(
                line,
                f"{name[:MAX_SHOWN_CHARS]!r} is there twice, first on line {first}; leave one out",
            )
        self._lines[*path, name] = line
        self._name = name

    def value(self, value: Any, line: int) -> DocumentPath:
        """A value, in the place that is next; where that is."""
        if isinstance(value, str):
            _require_unicode(value, line)
        elif isinstance(value, float) and not math.isfinite(value):
            raise DocumentError(
                line, "not a number that JSON has; leave the field out or give a smaller one"
            )
        holder, path = self._open[-1]
        if isinstance(holder, list):
            path = (*path, len(holder))
            holder.append(value)
        elif self._name is None:
            raise DocumentError(line, "a list or mapping cannot be the name of a field; use a text")
        else:
            path = (*path, self._name)
            holder[self._name] = value
            self._name = None
        self._lines.setdefault(path, line)
        return path

    def begin(self, holder: dict[str, Any] | list[Any], line: int) -> None:
        """A mapping or list whose parts come next."""
        if len(self._open) > MAX_DEPTH:
            raise DocumentError(line, f"values are nested deeper than {MAX_DEPTH}")
        self._open.append((holder, self.value(holder, line)))

    def end(self) -> None:
        """The mapping or list that was begun last is complete."""
        self._open.pop()

    def document(self, *, is_list: bool) -> Document:
        """The result: all documents as a list, or the only one."""
        if is_list or not self._documents:
            return Document(self._documents, {(): 1, **self._lines})
        return Document(self._documents[0], {path[1:]: line for path, line in self._lines.items()})


def _take_event(builder: _Builder, event: yaml.Event) -> None:
    line = 1 if event.start_mark is None else event.start_mark.line + 1
    if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
        raise DocumentError(
            line, "anchors and aliases (& and *) are not taken; write the value out"
        )
    if (tag := getattr(event, "tag", None)) is not None:
        raise DocumentError(line, f"tags such as {tag} are not taken; put a text in quotes instead")
    match event:
        case yaml.ScalarEvent() if builder.expects_name:
            builder.name(event.value, line)
        case yaml.ScalarEvent():
            builder.value(event.value if event.style else _plain_scalar(event.value), line)
        case yaml.MappingStartEvent():
            builder.begin({}, line)
        case yaml.SequenceStartEvent():
            builder.begin([], line)
        case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
            builder.end()


def _plain_scalar(text: str) -> str | int | float | bool | None:
    """The value of a YAML scalar without quotes."""
    if text in _WORDS:
        return _WORDS[text]
    number = _NUMBER.fullmatch(text)
    if number is None:
        return text
    if not (number[2] or number[3]):
        return int(text)
    value = float(text)
    return value if math.isfinite(value) else text


def _take_json(builder: _Builder, text: str, first_line: int) -> None:
    """One JSON value: checked as a whole, then taken part by part, since the parser does not say
    where parts are.
    """
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        line = first_line + error.lineno - 1
        raise DocumentError(
            line, f"not JSON: {_json_problem(error)} at column {error.colno}"
        ) from error
    except RecursionError as error:
        raise DocumentError(first_line, f"values are nested deeper than {MAX_DEPTH}") from error
    except ValueError as error:
        raise DocumentError(
            first_line, "a number has thousands of digits; put it in quotes"
        ) from error
    line = first_line
    for found in _TOKEN.finditer(text):
        match found[0]:
            case "\n":
                line += 1
            case "{":
                builder.begin({}, line)
            case "[":
                builder.begin([], line)
            case "}" | "]":
                builder.end()
            case "," | ":":
                pass
            case scalar if builder.expects_name:
                builder.name(json.loads(scalar), line)
            case scalar:
                builder.value(json.loads(scalar), line)


def _json_problem(error: json.JSONDecodeError) -> str:
    """The fault; the parser of some versions of Python does not name a comma too many."""
    rest = error.doc[error.pos :].lstrip()
    is_comma = rest.startswith(",") or error.doc[: error.pos].rstrip().endswith(",")
    after = rest.removeprefix(",").lstrip()[:1]
    return f"a comma too many before {after}" if is_comma and after in {"}", "]"} else error.msg


def _require_unicode(text: str, line: int) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DocumentError(
            line, "half a character (a lone surrogate) in a text; write it whole"
        ) from error


# Goal sets in files: the contents of a file, every mistake with its line, and the changed files of
# a folder.

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


SAMPLE_GOALS: Final = Path(__file__).parents[1] / "recordings" / "sample" / "goals.yaml"
"""The goal set of the sample call."""
SIMULATED_GOALS: Final = Path(__file__).parents[1] / "roles" / "demo_goals"
"""The goal sets of simulated calls, one for each agent, with the agent's name as its id."""


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
        text: The place in the goal set, the expected and the seen value, and the remedy: a sentence
            without a full stop.
    """

    path: Path
    line: int | None
    text: str

    def __str__(self) -> str:
        return (
            f"{self.path}: {self.text}"
            if self.line is None
            else f"{self.path}:{self.line}: {self.text}"
        )


@dataclass(frozen=True, slots=True)
class GoalFile:
    """The contents of a file. A file with a mistake is not used at all: half a file could judge
    calls wrongly.

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
        return _unusable(
            path, f"the file cannot be read ({error.strerror or type(error).__name__})"
        )
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        return _unusable(
            path,
            f"its name ends with none of {', '.join(GOAL_SUFFIXES)}, so its format is unknown it",
        )
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
    mistakes = sorted(
        _placed(path, document, found.mistakes), key=lambda mistake: mistake.line or 0
    )
    sets = tuple(PlacedSet(document.line_of(place), goals) for place, goals in found.sets)
    return GoalFile(path, sets, tuple(mistakes))


def goal_files_of(folder: Path) -> dict[Path, FileState]:
    """The goal files that are directly in a folder, in the order of their names; hidden ones are
    left out.

    Raises:
        GoalFolderError: There is no such folder, or it has too many files.
    """
    try:
        found = {
            Path(entry.path): _state_of(entry)
            for entry in os.scandir(folder)
            if _is_goal_file(entry)
        }
    except OSError as error:
        raise GoalFolderError(
            f"{folder}: the folder of goals cannot be read "
            f"({error.strerror or type(error).__name__}). No goals come from it. Check the path "
            "and its rights."
        ) from error
    states = {path: state for path, state in sorted(found.items()) if state is not None}
    if len(states) > MAX_FILES:
        raise GoalFolderError(
            f"{folder}: has {len(states)} goal files, and {MAX_FILES} are read at most, so none "
            "is. Put several goal sets into one file."
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
                text = (
                    f"goal set {goals.id!r} is in {other} too; the first file's is used. Give one "
                    "of them another id"
                )
                yield FileMistake(file.path, line, text)
            for agent in goals.agents:
                other = agents.setdefault(agent, file.path)
                if other != file.path:
                    text = (
                        f"agent {agent!r} is in {other} too; the first file's set is used. Leave "
                        "it to one goal set"
                    )
                    yield FileMistake(file.path, line, text)


def _is_goal_file(entry: os.DirEntry[str]) -> bool:
    return (
        not entry.name.startswith(".")
        and entry.name.lower().endswith(GOAL_SUFFIXES)
        and entry.is_file()
    )


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


def sample_sets() -> Iterator[GoalSet]:
    """The goal sets of the sample call and of simulated calls. It reads the files that callgauge
    brings.
    """
    for path in (SAMPLE_GOALS, *goal_files_of(SIMULATED_GOALS)):
        yield from (placed.goals for placed in read_goal_file(path).sets)


# Finds a goal set by its id or by an agent; the same for every source of goals.


class GoalIndex:
    """Goal sets at one moment. While the source changes, a reader has the old index or
    the new one.
    """

    def __init__(self, goals: Iterable[GoalSet] = ()) -> None:
        """The first set with an id has it, and the first one with an agent has the agent."""
        self._by_id: dict[str, GoalSet] = {}
        self._by_agent: dict[str, GoalSet] = {}
        for each in goals:
            # A set that cannot be found by its id is not found by its agents either.
            if self._by_id.setdefault(each.id, each) is each:
                for agent in each.agents:
                    self._by_agent.setdefault(agent, each)

    def __len__(self) -> int:
        return len(self._by_id)

    def named(self, goals_id: str) -> GoalSet | None:
        """The set with this id."""
        return self._by_id.get(goals_id)

    def of_agent(self, agent: str) -> GoalSet | None:
        """The set that is for this agent's calls."""
        return self._by_agent.get(agent)
