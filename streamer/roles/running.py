"""Roles in one process with one page of metrics, for `callgauge run` and the demo."""

import asyncio
import time
from collections.abc import Callable, Collection
from functools import partial
from typing import Final

import structlog
from prometheus_client import CollectorRegistry, ProcessCollector

from consumers.engine.redaction.redactor import Redactor
from consumers.runtime.http import MetricsServer
from consumers.runtime.kafka.connection import KafkaSettings, LoginWatch, require_access
from consumers.runtime.process import finish_unless
from consumers.runtime.registry import Instruments
from schemas.closed_sets import ROLE_NAMES, RoleName
from streamer.cluster.rights import needs_of
from streamer.roles.role_runner import RoleRunner, RunsUntilStopped
from streamer.settings.all_settings import Settings
from streamer.version import installed_version

STOP_SECONDS: Final = 10.0
"""Longest time from the signal or the failure to the end of the process. Each step of a role has a shorter deadline of
its own, some 5 s together; a supervisor should wait longer than this before it kills (Kubernetes: 30 s)."""

log = structlog.get_logger()


class Service:
    """Some roles and the HTTP server that shows their metrics; they begin and end together.

    A role that fails after it has worked is started again (`RoleRunner`); the others go on meanwhile.

    Attributes:
        ready: Set when every role is.
        stopping: Set when the end begins; from then on `/readyz` says no.
    """

    def __init__(self, settings: Settings, kafka: KafkaSettings, roles: Collection[RoleName]) -> None:
        """Creates the roles; nothing is connected before `run`. Call it inside a running event loop.

        Args:
            settings: Groups, limits, and the HTTP address.
            kafka: The cluster of the settings, or the embedded broker.
            roles: The roles to run.
        """
        self.ready = asyncio.Event()
        self.stopping = asyncio.Event()
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)  # memory, processor time, start: `process_*`
        instruments = self._instruments = Instruments(registry, roles, settings.max_series)
        instruments.read_gauge("callgauge_build_info", lambda: {(installed_version(),): 1.0})
        self._kafka = kafka
        self._needs = needs_of(roles, settings)
        self._roles = {
            name: RoleRunner(
                name,
                _maker(name, settings, kafka, instruments, roles),
                instruments,
                partial(require_access, kafka, needs_of([name], settings)),
                is_restarted=not kafka.is_embedded,  # there a role would count records twice
            )
            for name in ROLE_NAMES
            if name in roles
        }
        self._running: dict[RoleName, asyncio.Task[None]] = {}
        self._login = LoginWatch(kafka, instruments)
        self._server = MetricsServer(settings.http, instruments, stalled=self._stalled, not_ready=self._not_ready)

    @property
    def metrics_url(self) -> str:
        """The address of `/metrics`; right once `ready` is set."""
        return self._server.url

    async def run(self, stop: asyncio.Event) -> None:
        """Runs every role until `stop` is set, a role fails for good, or the task is cancelled; then all roles finish.

        Raises:
            AddressInUseError: The HTTP address is taken; no role was started.
            KafkaUnreachableError: No broker answers, or a right of a role is missing; no role was started.
            TopicsUnfitError: Topics are missing or do not fit together.
            Exception: The final failure of a role; if several failed, the first one, and the others are in the log.
        """
        await self._server.start()
        try:
            await finish_unless(stop, require_access(self._kafka, self._needs))
            if not stop.is_set():
                await self._run_roles(stop)
        finally:
            self.stopping.set()
            await self._server.stop()

    async def _run_roles(self, stop: asyncio.Event) -> None:
        self._running = {name: asyncio.create_task(role.run(self.stopping)) for name, role in self._roles.items()}
        announcing, stopped = asyncio.create_task(self._announce()), asyncio.create_task(stop.wait())
        watching = asyncio.create_task(self._login.follow(self.stopping))
        failed: list[RoleName] = []
        try:
            await asyncio.wait([*self._running.values(), stopped], return_when=asyncio.FIRST_COMPLETED)
            failed += (name for name in self._running if self._has_failed(name))
        finally:
            began_seconds = time.monotonic()
            self.stopping.set()
            log.info("service_stopping", roles=list(self._roles), failed=failed)
            announcing.cancel()
            stopped.cancel()
            watching.cancel()
            await asyncio.gather(*self._running.values(), announcing, stopped, watching, return_exceptions=True)
            log.info("service_stopped", seconds=round(time.monotonic() - began_seconds, 3))
        failed += (name for name in self._running if self._has_failed(name) and name not in failed)
        for name in failed[1:]:
            log.error("role_failed", role=name, error=repr(self._running[name].exception()))
        for name in failed[:1]:
            self._running[name].result()

    def unfinished(self) -> list[str]:
        """The roles that have not ended yet; callable from any thread."""
        return [name for name, task in self._running.items() if not task.done()] or ["process"]

    async def _announce(self) -> None:
        for role in self._roles.values():
            await role.was_ready.wait()
        self.ready.set()

    def _has_failed(self, name: RoleName) -> bool:
        task = self._running[name]
        return task.done() and not task.cancelled() and task.exception() is not None

    def _not_ready(self) -> list[str]:
        if self.stopping.is_set():
            return [f"{name}: stopping" for name in self._roles]
        roles = [problem for role in self._roles.values() for problem in role.problems()]
        return [*self._login.problems(), *roles]

    def _stalled(self) -> list[str]:
        """The faults for `/healthz`. A stopping role reports none: stopping has a deadline of its own."""
        if self.stopping.is_set():
            return [f"{name}: its work has ended with an error" for name in self._running if self._has_failed(name)]
        return [sentence for role in self._roles.values() for sentence in role.stalled()]


def _maker(
    name: RoleName, settings: Settings, kafka: KafkaSettings, instruments: Instruments, roles: Collection[RoleName]
) -> Callable[[], RunsUntilStopped]:
    """Imports a role; gives the function that makes it. A process pays only for the roles that it runs.

    Args:
        name: The role.
        settings: Groups and limits.
        kafka: Where Kafka is.
        instruments: Where the role registers its metrics.
        roles: All roles of this process: a judge among them changes the rules of the evaluator.
    """
    match name:
        case "evaluator":
            from streamer.roles.evaluator_role import EvaluatorRole

            return partial(EvaluatorRole, kafka, settings, instruments, settings.goal_rules(roles))
        case "exporter":
            from consumers.exporter.service import Exporter
            from consumers.exporter.settings import ExporterSettings

            exporter = ExporterSettings(
                group_id=settings.exporter_group, otlp=settings.otlp, code_version=installed_version()
            )
            return partial(Exporter, kafka, exporter, instruments)
        case "judge":
            from consumers.judge.service import JudgeWorker

            group, redactor = settings.judge_group, Redactor(settings.redaction)
            return partial(JudgeWorker, kafka, settings.judge, instruments, group_id=group, redactor=redactor)
        case "monitor":
            from streamer.sources.monitor.role import MonitorRole

            return partial(MonitorRole, kafka, settings.monitor, instruments)
        case "ingest":
            from streamer.sources.http.role import IngestRole

            return partial(
                IngestRole, kafka, settings.ingest, settings.limits, instruments, Redactor(settings.redaction)
            )
