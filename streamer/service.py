"""Roles in one process, with one page of metrics: what `callgauge run` starts and the demo shows."""

import asyncio
from collections.abc import Collection, Sequence
from typing import Final, Literal, Protocol, get_args

from prometheus_client import CollectorRegistry

from consumers.evaluator.service import Evaluator
from consumers.evaluator.settings import EvaluatorSettings
from consumers.exporter.service import Exporter
from consumers.exporter.settings import ExporterSettings
from consumers.runtime.http import MetricsServer
from consumers.runtime.kafka import KafkaSettings
from consumers.runtime.registry import Instruments
from streamer.settings import Settings
from streamer.version import installed_version

RoleName = Literal["evaluator", "exporter"]
ROLE_NAMES: Final[tuple[RoleName, ...]] = get_args(RoleName)


class RunsUntilStopped(Protocol):
    """What a role is to the process that runs it."""

    ready: asyncio.Event

    async def run(self, stop: asyncio.Event) -> None:
        """Works until `stop` is set; raises what it failed on."""

    def problems(self) -> Sequence[str]:
        """What is wrong now, a sentence each."""


class Service:
    """Some roles and the HTTP server that shows their metrics; they begin and end together.

    Attributes:
        ready: Set when every role is.
    """

    def __init__(self, settings: Settings, kafka: KafkaSettings, roles: Collection[RoleName]) -> None:
        """Builds the roles; nothing is connected before `run`. To be called inside a running event loop.

        Args:
            settings: Groups, limits, and where to serve HTTP.
            kafka: Where Kafka is: the settings' own, or the embedded broker.
            roles: Which roles to run.
        """
        self.ready = asyncio.Event()
        instruments = Instruments(CollectorRegistry(), roles)
        self._roles: dict[RoleName, RunsUntilStopped] = {}
        if "evaluator" in roles:
            evaluation = EvaluatorSettings(
                group_id=settings.evaluator_group, limits=settings.limits, code_version=installed_version()
            )
            self._roles["evaluator"] = Evaluator(kafka, evaluation, instruments)
        if "exporter" in roles:
            export = ExporterSettings(group_id=settings.exporter_group)
            self._roles["exporter"] = Exporter(kafka, export, instruments)
        self._server = MetricsServer(settings.http, instruments, self._problems)

    @property
    def metrics_url(self) -> str:
        """The address of `/metrics`; right once `ready` is set."""
        return self._server.url

    async def run(self) -> None:
        """Runs every role until cancelled or until one of them fails; then all end.

        Raises:
            AddressInUseError: The HTTP address is taken; no role was started.
            KafkaUnreachableError: No broker answers.
            TopicsUnfitError: Topics are missing or do not fit together.
            Exception: What a role failed on.
        """
        await self._server.start()
        ending = asyncio.Event()
        running = [asyncio.create_task(role.run(ending), name=name) for name, role in self._roles.items()]
        announcing = asyncio.create_task(self._announce())
        try:
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ending.set()
            announcing.cancel()
            results = await asyncio.gather(*running, announcing, return_exceptions=True)
            await self._server.stop()
        for failure in results:
            if isinstance(failure, Exception):
                raise failure

    async def _announce(self) -> None:
        for role in self._roles.values():
            await role.ready.wait()
        self.ready.set()

    def _problems(self) -> list[str]:
        return [problem for role in self._roles.values() for problem in role.problems()]
