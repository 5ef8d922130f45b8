"""A folder of goal files that may change at any time: changed files are read again, broken files are not used."""

from collections.abc import Iterable
from pathlib import Path

import structlog

from streamer.goals.files import (
    FileMistake,
    FileState,
    GoalFile,
    GoalFolderError,
    doubles_in,
    goal_files_of,
    read_goal_file,
)
from streamer.goals.index import GoalIndex

log = structlog.get_logger()


class GoalFolder:
    """The goal sets of a folder.

    If a file becomes broken, the log reports it and its last valid sets stay. The sets of a deleted file go. A call keeps
    its set in every case.

    Attributes:
        index: The present goal sets; replaced as a whole.
        broken: The mistakes of each broken file.
    """

    def __init__(self, folder: Path) -> None:
        self.index = GoalIndex()
        self.broken: dict[Path, tuple[FileMistake, ...]] = {}
        self._folder = folder
        self._states: dict[Path, FileState] = {}
        self._good: dict[Path, GoalFile] = {}
        self._warned_of: set[str] = set()

    def load(self) -> None:
        """Reads everything for the first time. It waits for the disk, so a thread should do it.

        Raises:
            GoalFolderError: It cannot be read as a folder.
        """
        self._read(goal_files_of(self._folder))

    def reload(self) -> None:
        """Reads the files that changed since the last time. It waits for the disk, so call it in a thread."""
        try:
            states = goal_files_of(self._folder)
        except GoalFolderError as error:
            self._tell([f"{error} What was read before stays in use."])
            return
        if states != self._states:
            self._read(states)

    def _read(self, states: dict[Path, FileState]) -> None:
        for path in [path for path, state in states.items() if self._states.get(path) != state]:
            self._take(read_goal_file(path))
        for path in self._states.keys() - states.keys():
            self.broken.pop(path, None)
            if self._good.pop(path, None) is not None:
                log.info("goal_file_gone", file=str(path))
        self._states = states
        # By name, so that which file comes first does not depend on which one was changed last.
        files = [self._good[path] for path in sorted(self._good)]
        self.index = GoalIndex(placed.goals for file in files for placed in file.sets)
        self._tell(map(str, doubles_in(files)))

    def _take(self, file: GoalFile) -> None:
        if not file.mistakes:
            self.broken.pop(file.path, None)
            self._good[file.path] = file
            log.info("goal_file_read", file=str(file.path), goal_sets=[placed.goals.id for placed in file.sets][:20])
            return
        self.broken[file.path] = file.mistakes
        log.error(
            "goal_file_broken",
            file=str(file.path),
            mistakes=len(file.mistakes),
            first=f"{file.mistakes[0]}.",
            now="its earlier content stays in use" if file.path in self._good else "no goals come from it",
            remedy=f"callgauge goals check {file.path}",
        )

    def _tell(self, problems: Iterable[str]) -> None:
        """Problems of the folder as a whole, each once for as long as it lasts."""
        current = set(problems)
        for problem in sorted(current - self._warned_of):
            log.warning("goal_folder_problem", problem=problem)
        self._warned_of = current
