"""Where an evaluator gets goal sets from: a folder that is watched, and whatever else
gives some.
"""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from consumers.runtime.process import pause_unless
from schemas.goals.goal_set import GoalSet
from streamer.goals.files import (
    FileMistake,
    FileState,
    GoalFile,
    GoalFolderError,
    GoalIndex,
    doubles_in,
    goal_files_of,
    read_goal_file,
    sample_sets,
)

if TYPE_CHECKING:
    from streamer.goals.topic import GoalsTopic  # which brings a client of Kafka

log = structlog.get_logger()


class GoalFolder:
    """The goal sets of a folder whose files may change at any time.

    If a file becomes broken, the log reports it and its last valid sets stay. The sets of a deleted
    file go. A call keeps its set in every case.

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
        """Reads the files that changed since the last time. It waits for the disk, so call it in a
        thread.
        """
        try:
            states = goal_files_of(self._folder)
        except GoalFolderError as error:
            self._tell([f"{error} What was read before stays in use."])
            return
        if states != self._states:
            self._read(states)

    def _read(self, states: dict[Path, FileState]) -> None:
        for path in [path for path, state in states.items() if self._states.get(path) != state]:
            self._note_file(read_goal_file(path))
        for path in self._states.keys() - states.keys():
            self.broken.pop(path, None)
            if self._good.pop(path, None) is not None:
                log.info("goal_file_gone", file=str(path))
        self._states = states
        # By name, so that which file comes first does not depend on which one was changed last.
        files = [self._good[path] for path in sorted(self._good)]
        self.index = GoalIndex(placed.goals for file in files for placed in file.sets)
        self._tell(map(str, doubles_in(files)))

    def _note_file(self, file: GoalFile) -> None:
        if not file.mistakes:
            self.broken.pop(file.path, None)
            self._good[file.path] = file
            log.info(
                "goal_file_read",
                file=str(file.path),
                goal_sets=[placed.goals.id for placed in file.sets][:20],
            )
            return
        self.broken[file.path] = file.mistakes
        log.error(
            "goal_file_broken",
            file=str(file.path),
            mistakes=len(file.mistakes),
            first=f"{file.mistakes[0]}.",
            now="its earlier content stays in use"
            if file.path in self._good
            else "no goals come from it",
            remedy=f"callgauge goals check {file.path}",
        )

    def _tell(self, problems: Iterable[str]) -> None:
        """Problems of the folder as a whole, each once for as long as it lasts."""
        current = set(problems)
        for problem in sorted(current - self._warned_of):
            log.warning("goal_folder_problem", problem=problem)
        self._warned_of = current


# The sources of goal sets: a folder of files, the topic `goals`, both, or none.

POLL_SECONDS: Final = 2.0
"""Interval of the folder checks: a saved file is in use before a person has placed the
next call.
"""
MAX_NAMES_TOLD: Final = 100
"""Bound of logged unknown goal sets, each logged once; the first ones show the fault."""


class GoalSources:
    """Chooses the goals of calls; a `schemas.goals.goal_set.ChoosesGoals`. The folder is asked
    first, then the topic.

    The sample call and simulated calls name sets that callgauge brings. They count only where
    neither has that set nor one for the agent.

    Attributes:
        ready: Set when every source was read once, or could not be; calls that begin before may
            miss their goals.
    """

    def __init__(
        self,
        folder: GoalFolder | None,
        topic: "GoalsTopic | None",
        *,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        """Nothing is read before `run`; the folder is looked at every `poll_seconds`."""
        self.ready = asyncio.Event()
        self._folder = folder
        self._topic = topic
        self._poll_seconds = poll_seconds
        self._samples = GoalIndex()
        self._unknown: set[str] = set()

    def choose(self, goals_id: str | None, agent: str | None) -> GoalSet | None:
        """The set that a call names, or without a name its agent's; None when there is none."""
        indexes = [source.index for source in (self._folder, self._topic) if source is not None]
        sample = None
        if goals_id is not None:
            found = next(
                (goals for index in indexes if (goals := index.named(goals_id)) is not None), None
            )
            if found is not None:
                return found
            sample = self._samples.named(goals_id)
            if sample is None:
                self._tell_unknown(goals_id)
                return None
        if agent is None:
            return sample
        return next(
            (goals for index in indexes if (goals := index.of_agent(agent)) is not None), sample
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Reads the sources and follows their changes until `stop` is set.

        Raises:
            GoalFolderError: The folder cannot be read at the start.
        """
        self._samples = GoalIndex(await asyncio.to_thread(lambda: list(sample_sets())))
        if self._folder is not None:
            await asyncio.to_thread(self._folder.load)
        async with asyncio.TaskGroup() as tasks:
            if self._folder is not None:
                tasks.create_task(self._watch(self._folder, stop))
            if self._topic is not None:
                tasks.create_task(self._topic.follow(stop))
                await self._topic.tried.wait()
            self.ready.set()

    async def _watch(self, folder: GoalFolder, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await asyncio.to_thread(folder.reload)
            await pause_unless(stop, self._poll_seconds)

    def _tell_unknown(self, goals_id: str) -> None:
        """A call named an unknown set: once for each name."""
        if goals_id not in self._unknown and len(self._unknown) < MAX_NAMES_TOLD:
            self._unknown.add(goals_id)
            log.warning(
                "goal_set_unknown", goal_set=goals_id, now="calls that name it have no goals"
            )
