"""The sources of goal sets: a folder of files, the topic `goals`, both, or none."""

import asyncio
import contextlib
from typing import Final

import structlog

from schemas.goals.goal_set import GoalSet
from streamer.goals.folder import GoalFolder
from streamer.goals.topic import GoalsTopic

POLL_SECONDS: Final = 2.0
"""Interval of the folder checks: a saved file is in use before a person has placed the next call."""
MAX_NAMES_TOLD: Final = 100
"""Bound of logged unknown goal sets, each logged once; the first ones show the fault."""

log = structlog.get_logger()


class GoalSources:
    """Chooses the goals of calls; a `schemas.goals.goal_set.ChoosesGoals`. The folder is asked first, then the topic.

    Attributes:
        ready: Set when every source was read once, or could not be; calls that begin before may miss their goals.
    """

    def __init__(
        self, folder: GoalFolder | None, topic: GoalsTopic | None, *, poll_seconds: float = POLL_SECONDS
    ) -> None:
        """Keeps the sources; nothing is read before `run`.

        Args:
            folder: The folder, if there is one.
            topic: The topic, if it is to be read.
            poll_seconds: How often the folder is looked at.
        """
        self.ready = asyncio.Event()
        self._folder = folder
        self._topic = topic
        self._poll_seconds = poll_seconds
        self._unknown: set[str] = set()

    def choose(self, goals_id: str | None, agent: str | None) -> GoalSet | None:
        """The set that a call names, or without a name its agent's; None when there is none."""
        indexes = [source.index for source in (self._folder, self._topic) if source is not None]
        if goals_id is not None:
            found = next((goals for index in indexes if (goals := index.named(goals_id)) is not None), None)
            if found is None:
                self._tell_unknown(goals_id)
            return found
        if agent is None:
            return None
        return next((goals for index in indexes if (goals := index.of_agent(agent)) is not None), None)

    async def run(self, stop: asyncio.Event) -> None:
        """Reads the sources and follows their changes until `stop` is set.

        Raises:
            GoalFolderError: The folder cannot be read at the start.
        """
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
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), self._poll_seconds)
                return
            await asyncio.to_thread(folder.reload)

    def _tell_unknown(self, goals_id: str) -> None:
        """A call named a set that nobody knows: once for each name."""
        if goals_id not in self._unknown and len(self._unknown) < MAX_NAMES_TOLD:
            self._unknown.add(goals_id)
            log.warning("goal_set_unknown", goal_set=goals_id, now="calls that name it have no goals")
