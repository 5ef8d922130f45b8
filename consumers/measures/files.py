"""Where measures of one's own come from: the Python files of a folder, and the entry points of
installed distributions.

A file runs as a part of this process, with its rights, when it is read: it is code of who runs
callgauge.
"""

from collections.abc import Iterator, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from consumers.measures.own import Measure, MeasureError

ENTRY_POINTS: Final = "callgauge.measures"
"""The group of entry points. Each names a measure, or a module with measures."""
MAX_MEASURES: Final = 20
"""Measures that count; further ones are left out, by the order of files and entry points."""
MAX_FILES: Final = 100
"""Files of a folder that are read, in the order of the alphabet."""


class MeasureSettings(BaseModel):
    """Measures of one's own."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    folder: Path | None = Field(
        None,
        examples=["measures"],
        description="folder of Python files with functions under @measure",
    )
    seconds: Annotated[float, Field(gt=0, le=60)] = Field(
        5.0, description="how long one call of such a function may take; then its value is missing"
    )

    @property
    def is_on(self) -> bool:
        """Whether there is a folder, or an installed distribution with measures."""
        return self.folder is not None or bool(_installed())


class FoundMeasures:
    """The measures that were found.

    Attributes:
        measures: By name.
        mistakes: What could not be used, a sentence each.
    """

    def __init__(self, folder: Path | None) -> None:
        """Reads the files and the entry points; a mistake in one does not concern the others."""
        self.measures: dict[str, Measure] = {}
        self.mistakes: list[str] = []
        for where, load in (*_files(folder, self.mistakes), *_installed()):
            try:
                loaded = load()
            # code of others can raise anything
            except (Exception, SystemExit) as error:  # noqa: BLE001
                why = (
                    str(error)
                    if isinstance(error, MeasureError)
                    else f"{type(error).__name__}: {error}"
                )
                self.mistakes.append(
                    f"{where}: {why} Its measures are left out; the others count. Correct it."
                )
                continue
            self._add_measures(where, loaded)

    def _add_measures(self, where: str, loaded: Any) -> None:
        for each in vars(loaded).values() if isinstance(loaded, ModuleType) else [loaded]:
            if not isinstance(each, Measure) or self.measures.get(each.name) is each:
                continue
            if each.name in self.measures:
                self.mistakes.append(
                    f"{where}: there is another measure {each.name}. This one is left out: rename "
                    "it."
                )
            elif len(self.measures) >= MAX_MEASURES:
                self.mistakes.append(
                    f"{where}: {each.name} is left out, because {MAX_MEASURES} measures count at "
                    "most."
                )
            else:
                self.measures[each.name] = each


def stamp_of(folder: Path | None) -> tuple[tuple[str, int, int], ...]:
    """Another value whenever a file of the folder is another one."""
    stamps = []
    for path in _paths(folder):
        try:
            state = path.stat()
        except OSError:  # deleted meanwhile
            continue
        stamps.append((path.name, state.st_mtime_ns, state.st_size))
    return tuple(stamps)


def _paths(folder: Path | None) -> list[Path]:
    if folder is None or not folder.is_dir():
        return []
    return sorted(path for path in folder.glob("*.py") if not path.name.startswith("_"))[:MAX_FILES]


def _files(folder: Path | None, mistakes: list[str]) -> Iterator[tuple[str, Any]]:
    if folder is not None and not folder.is_dir():
        mistakes.append(
            f"{folder}: there is no such folder of measures. Make it, or correct measures.folder."
        )
    for path in _paths(folder):
        yield str(path), lambda path=path: _module(path)


def _module(path: Path) -> ModuleType:
    # Compiled here and not by the import system, whose cache tells two versions of the same second
    # and size not apart.
    module = ModuleType(f"callgauge_measures_{path.stem}")
    module.__file__ = str(path)
    # it is what the setting asks for
    exec(compile(path.read_bytes(), str(path), "exec"), vars(module))  # noqa: S102
    return module


def _installed() -> Sequence[tuple[str, Any]]:
    return [
        (f"entry point {each.name} of {ENTRY_POINTS}", each.load)
        for each in entry_points(group=ENTRY_POINTS)
    ]
