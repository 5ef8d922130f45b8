"""The evaluator role of `callgauge run`: the evaluator, the sources of goals, and the transcript
files.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from consumers.engine.limits import GoalRules
from consumers.evaluator.service import Evaluator
from consumers.evaluator.settings import EvaluatorSettings
from consumers.runtime.kafka.connection import KafkaSettings
from consumers.runtime.process import END_SECONDS, end_tasks
from consumers.runtime.registry import Instruments
from streamer.cluster.facts import FILES_GROUP
from streamer.facts import installed_version
from streamer.goals.sources import GoalFolder, GoalSources
from streamer.goals.topic import GoalsTopic
from streamer.roles.transcript_files import TranscriptFiler, TranscriptFiles
from streamer.settings.all_settings import Settings


class EvaluatorRole:
    """Reads the goal sets, then evaluates calls and follows changes of the sets for as long as it
    does.

    Attributes:
        ready: Set while calls are read.
    """

    def __init__(
        self, kafka: KafkaSettings, settings: Settings, instruments: Instruments, rules: GoalRules
    ) -> None:
        """Nothing is read before `run`."""
        self._folder, self._topic = _folder_and_topic(kafka, settings)
        self._sources = GoalSources(self._folder, self._topic)
        evaluation = EvaluatorSettings(
            group_id=settings.group("evaluator"),
            group_instance_id=settings.evaluator_instance,
            limits=settings.all_limits,
            goals=rules,
            code_version=installed_version(),
            redaction=settings.redaction,
            writes_transcripts=settings.transcripts.enabled,
        )
        self._evaluator = Evaluator(kafka, evaluation, instruments, self._sources)
        self.ready = self._evaluator.ready
        self._filer = None
        if settings.transcripts.folder is not None:
            files = TranscriptFiles(settings.transcripts.folder)
            self._filer = TranscriptFiler(kafka, settings.group(FILES_GROUP), files, instruments)
        self._instruments = instruments
        self._refused_counted = 0
        instruments.read_gauge("callgauge_goal_files_broken", self._broken_files)
        instruments.before_scrape(self._count_refused)

    async def run(self, stop: asyncio.Event) -> None:
        """Evaluates until `stop` is set.

        Raises:
            GoalFolderError: The folder of goals cannot be read; no call was read.
            OperatorError: The folder of transcripts cannot be written to.
            Exception: The failure of the evaluator.
        """
        working = [
            asyncio.create_task(self._sources.run(stop)),
            asyncio.create_task(self._evaluate(stop)),
        ]
        if self._filer is not None:
            working.append(asyncio.create_task(self._filer.follow(stop)))
        try:
            # Both end when `stop` is set. The evaluator has something to finish then, so it is not
            # cancelled.
            done, _ = await asyncio.wait(working, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            await end_tasks(working)
        for task in done:
            task.result()

    def problems(self) -> Sequence[str]:
        """Why the role is not ready, for `/readyz`."""
        return (
            self._evaluator.problems()
            if self._sources.ready.is_set()
            else ("evaluator: reading the goal sets",)
        )

    def stalled(self) -> Sequence[str]:
        """The stuck parts of a running process, for `/healthz`."""
        return self._evaluator.stalled()

    def _broken_files(self) -> dict[tuple[str, ...], float]:
        return {} if self._folder is None else {(): float(len(self._folder.broken))}

    def _count_refused(self) -> None:
        refused = 0 if self._topic is None else self._topic.refused
        self._instruments.inc(
            "callgauge_goal_records_refused_total", (), refused - self._refused_counted
        )
        self._refused_counted = refused

    async def _evaluate(self, stop: asyncio.Event) -> None:
        await self._sources.ready.wait()  # a call that began before would have no goals, for good
        await self._evaluator.run(stop)


@asynccontextmanager
async def goals_of_now(kafka: KafkaSettings, settings: Settings) -> AsyncIterator[GoalSources]:
    """Goal sets by these settings, read and followed while the block runs.

    Raises:
        GoalFolderError: The folder of goals cannot be read.
    """
    sources, stop = GoalSources(*_folder_and_topic(kafka, settings)), asyncio.Event()
    following = asyncio.create_task(sources.run(stop))
    reading = asyncio.create_task(sources.ready.wait())
    try:
        await asyncio.wait([following, reading], return_when=asyncio.FIRST_COMPLETED)
        if not sources.ready.is_set():
            await following  # which says why
        yield sources
    finally:
        stop.set()
        await asyncio.wait([following], timeout=END_SECONDS)
        await end_tasks([following, reading])


def _folder_and_topic(
    kafka: KafkaSettings, settings: Settings
) -> tuple[GoalFolder | None, GoalsTopic | None]:
    goals = settings.goals
    return None if goals.folder is None else GoalFolder(goals.folder), GoalsTopic(
        kafka
    ) if goals.reads_topic else None
