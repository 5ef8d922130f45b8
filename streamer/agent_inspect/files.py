"""Finds traces in files and folders, and reads samples of a file of their own."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from streamer.agent_inspect.documents import Samples, TraceDocument, document_in
from streamer.recordings.files.json_files import (
    RecordingError,
    kind_of,
    object_in,
    raw_lines_of,
    read_json,
    require_text,
    shape_error,
)

_LINES: Final = (".jsonl", ".jsonl.gz")
_WHOLE: Final = (".json", ".json.gz")
_LEFT_OUT: Final = "This trace is left out; the others are not concerned."
_REMEDY: Final = "The form of traces is described in docs/sources/agent-inspect.md."
_MOST_COUNTED_BYTES: Final = 16 * 1024 * 1024
"""Largest document that is read an additional time to count its traces, for the bar."""


@dataclass(frozen=True, slots=True)
class PlacedTrace:
    """A trace that is not read yet: its text, or its value in a document.

    Attributes:
        where: Its place, for messages.
        fallback_id: Its id if it has none.
    """

    where: str
    fallback_id: str
    value: object

    def read(self, samples: Samples, options: Mapping[str, Any]) -> TraceDocument:
        """Reads it, with these options where it has none of its own.

        Raises:
            RecordingError: It is no trace, or has no sample.
        """
        try:
            if isinstance(self.value, bytes):
                require_text(self.value, self.where)
                line: object = object_in(self.value, self.where)
            else:
                line = self.value
            if not isinstance(line, Mapping):
                raise shape_error(self.where, "a trace as an object", kind_of(line))
            return document_in(line, self.where, self.fallback_id, samples, options)
        except RecordingError as error:
            error.consequence = _LEFT_OUT
            error.remedy = _REMEDY
            raise


class TraceFiles:
    """The files of traces below some paths."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Looks for files, and reads none.

        Raises:
            RecordingError: At one of the paths there is none.
        """
        self._files = [file for path in paths for file in _files_at(path)]

    def count(self) -> int | None:
        """The number of traces; None if a file cannot be read, which is said where it is read."""
        try:
            return sum(_count(file) for file in self._files)
        except RecordingError:
            return None

    def __iter__(self) -> Iterator[PlacedTrace | RecordingError]:
        """The traces in their order; an error for the rest of a file that cannot be read further."""
        for file in self._files:
            try:
                yield from _traces_in(file)
            except RecordingError as error:
                error.consequence = f"The traces before it were read; the rest of {file} is left out."
                yield error


def read_samples(path: Path | None) -> Samples:
    """Reads agent-inspect's samples: a list, one object, or one per line.

    Raises:
        RecordingError: The file cannot be read, or a sample has no id of its own.
    """
    if path is None:
        return Samples()
    try:
        return Samples(_samples_in(path))
    except RecordingError as error:
        error.consequence = "Nothing was scored."
        error.remedy = _REMEDY
        raise


def _samples_in(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for placed in _traces_in(path):
        value = object_in(placed.value, placed.where) if isinstance(placed.value, bytes) else placed.value
        if not isinstance(value, Mapping):
            raise shape_error(placed.where, "a sample as an object", kind_of(value))
        yield placed.where, value


def _files_at(path: Path) -> list[Path]:
    if path.is_dir():
        try:
            found = sorted(child for child in path.iterdir() if child.name.endswith((*_LINES, *_WHOLE)))
        except OSError as error:
            found, seen = [], error.strerror or type(error).__name__
        else:
            seen = "a folder without such files"
        if found:
            return found
    elif not path.exists():
        seen = "no such file or directory"
    elif path.name.endswith((*_LINES, *_WHOLE)):
        return [path]
    else:
        seen = path.name
    raise RecordingError(
        what="there are no traces of agent-inspect",
        where=str(path),
        expected="a .jsonl or .json file of traces, perhaps packed (.gz), or a folder of them",
        seen=seen,
        consequence="Nothing was scored.",
        remedy="Check the path. Each line of a .jsonl file is one trace with its sample.",
    )


def _traces_in(path: Path) -> Iterator[PlacedTrace]:
    stem = path.name.split(".json")[0]
    if path.name.endswith(_LINES):
        for number, text in raw_lines_of(path):
            yield PlacedTrace(f"{path}:{number}", f"{stem}:{number}", text)
        return
    document = read_json(path)
    if not isinstance(document, list):
        yield PlacedTrace(str(path), stem, document)
        return
    for number, value in enumerate(document, 1):
        yield PlacedTrace(f"{path}: [{number - 1}]", f"{stem}:{number}", value)


def _count(path: Path) -> int:
    if path.name.endswith(_LINES):
        return sum(1 for _ in raw_lines_of(path))
    document = read_json(path) if path.stat().st_size <= _MOST_COUNTED_BYTES else None
    return len(document) if isinstance(document, list) else 1
