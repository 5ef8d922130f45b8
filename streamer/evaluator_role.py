"""The evaluator role as `callgauge run` has it: the evaluator, and beside it the sources of its calls' goals."""

import asyncio
from collections.abc import Sequence

from consumers.engine.goal_rules import GoalRules
from consumers.evaluator.service import Evaluator
from consumers.evaluator.settings import EvaluatorSettings
from consumers.runtime.kafka import KafkaSettings
from consumers.runtime.registry import Instruments
from streamer.goal_folder import GoalFolder
from streamer.goal_sources import GoalSources
from streamer.goals_topic import GoalsTopic
from streamer.settings import Settings
from streamer.version import installed_version


class EvaluatorRole:
    """Reads the goal sets, then evaluates calls and follows changes of the sets for as long as it does.

    Attributes:
        ready: Set while calls are read.
    """

    def __init__(self, kafka: KafkaSettings, settings: Settings, instruments: Instruments, rules: GoalRules) -> None:
        """Wires it; nothing is read before `run`.

        Args:
            kafka: Where Kafka is: the settings' own, or the embedded broker.
            settings: Group, limits, and where goal sets come from.
            instruments: Built for the role `evaluator`, perhaps among others.
            rules: How goals are judged.
        """
        self._sources = goal_sources(kafka, settings)
        evaluation = EvaluatorSettings(
            group_id=settings.evaluator_group,
            group_instance_id=settings.evaluator_instance,
            limits=settings.limits,
            goals=rules,
            code_version=installed_version(),
        )
        self._evaluator = Evaluator(kafka, evaluation, instruments, self._sources)
        self.ready = self._evaluator.ready

    async def run(self, stop: asyncio.Event) -> None:
        """Evaluates until `stop` is set.

        Raises:
            GoalFolderError: The folder of goals cannot be read; no call was.
            Exception: What the evaluator failed on.
        """
        working = [asyncio.create_task(self._sources.run(stop)), asyncio.create_task(self._evaluate(stop))]
        try:
            # Both end when `stop` is set. The evaluator has something to finish then, so it is not cancelled.
            done, _ = await asyncio.wait(working, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for task in working:
                task.cancel()
            await asyncio.gather(*working, return_exceptions=True)
        for task in done:
            task.result()

    def problems(self) -> Sequence[str]:
        """Why the role is not ready, for `/readyz`."""
        return self._evaluator.problems() if self._sources.ready.is_set() else ("evaluator: reading the goal sets",)

    def stalled(self) -> Sequence[str]:
        """What is stuck although the process runs, for `/healthz`."""
        return self._evaluator.stalled()

    async def _evaluate(self, stop: asyncio.Event) -> None:
        await self._sources.ready.wait()  # a call that began before would have no goals, for good
        await self._evaluator.run(stop)


def goal_sources(kafka: KafkaSettings, settings: Settings) -> GoalSources:
    """Where goal sets come from by these settings; perhaps nowhere."""
    goals = settings.goals
    folder = None if goals.folder is None else GoalFolder(goals.folder)
    return GoalSources(folder, GoalsTopic(kafka) if goals.reads_topic else None)
