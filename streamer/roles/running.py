"""Runs roles in one process: makes them, starts them, ends them."""

import asyncio
import os
import re
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Final, Protocol

import structlog
import typer
from prometheus_client import CollectorRegistry, ProcessCollector

from consumers.engine.redaction.redactor import Redactor
from consumers.runtime.http import MetricsServer
from consumers.runtime.kafka.connection import (
    KafkaRefusedError,
    KafkaSettings,
    KafkaUnreachableError,
    LoginWatch,
    require_access,
)
from consumers.runtime.logs import configure_logging, is_json
from consumers.runtime.process import (
    OperatorError,
    end_tasks,
    finish_unless,
    wall_clock_ms,
    watch_loop,
)
from consumers.runtime.registry import Instruments
from schemas.closed_sets import ROLE_NAMES, RoleName
from schemas.metrics.process import LOOP_METRIC
from streamer.cluster.facts import needs_of
from streamer.facts import STOP_OVERDUE, installed_version
from streamer.roles.state import state_of
from streamer.settings.all_settings import Settings
from streamer.signals import stop_on_signals
from streamer.terminal import say

# Keeps one role running: a failed role is started again after a pause, and the log says once why.
#
# A supervisor that restarts the process would do the same. A bare machine has no supervisor, and
# the end of one role would end the other roles and the HTTP pages. So a role that has worked before
# is started again here: as a new member of its group with nothing in memory, like in a new process.
# A role that has never worked ends the process at once, unless its error passes by itself, and so
# does a role that fails again and again: a person has to see that.

FIRST_PAUSE_SECONDS: Final = 1.0
"""From the end of a role to its next start; twice as long after each failure of a row."""
LONGEST_PAUSE_SECONDS: Final = 60.0
"""Bound of the pause: a restored right or topic is noticed within a minute."""
QUIET_SECONDS: Final = 60.0
"""A role that has worked for this long has recovered: its next failure begins a new row."""
MOST_RESTARTS: Final = 10
"""Restarts of one row, some 5 minutes of pauses, after which the process ends and its supervisor
sees it.
"""

_DIGITS: Final = re.compile(r"\d+")

log = structlog.get_logger()


class RunsUntilStopped(Protocol):
    """A role, as its process sees it.

    Attributes:
        ready: Set when the role first does its work; cleared when it stops.
    """

    ready: asyncio.Event

    async def run(self, stop: asyncio.Event) -> None:
        """Works until `stop` is set; then finishes, commits and returns. Raises its failure."""

    def problems(self) -> Sequence[str]:
        """The reasons why the role does not work now, a sentence each, for `/readyz`; waiting for
        the broker is one.
        """

    def stalled(self) -> Sequence[str]:
        """The faults that only a restart repairs, a sentence each, for `/healthz`; waiting for the
        broker is none.
        """


class RoleRunner:
    """One role; every restart creates a new object.

    Attributes:
        was_ready: Set when the role first does its work, and never cleared.
    """

    def __init__(
        self,
        name: RoleName,
        make: Callable[[], RunsUntilStopped],
        instruments: Instruments,
        may_start: Callable[[], Awaitable[None]],
    ) -> None:
        """Creates the role; nothing is connected before `run`. Call it inside a running event loop.

        Args:
            name: Name of the role.
            make: Creates the role, ready to run.
            instruments: Gets the metrics of the role and the number of restarts.
            may_start: Called before each start but the first; raises the obstacle.
        """
        self.was_ready = asyncio.Event()
        self._name = name
        self._make = make
        self._instruments = instruments
        self._may_start = may_start
        self._role = self._made()
        self._ready_at: float | None = None
        self._restarts = 0  # of this row
        self._failure: Exception | None = None
        self._shown = ""
        self._starts_at: float | None = None

    @property
    def address(self) -> str | None:
        """Address of its page, once it is ready; None for a role without one."""
        return getattr(self._role, "address", None)

    async def run(self, stop: asyncio.Event) -> None:
        """Runs the role until `stop` is set, again and again if need be.

        Raises:
            Exception: The failure of the role: before it ever worked, while it stopped, or too
                often in a row.
        """
        while True:
            try:
                if self._failure is not None:
                    await finish_unless(stop, self._asked())
                if not stop.is_set():
                    await self._run_once(stop)
            # every kind of error: a new start has none of the state that led to it
            except Exception as error:
                if stop.is_set() or not self._may_go_on(error):
                    raise
                self._failure = error
            else:
                return
            self._role = self._made()  # the failed object shows nothing any more
            await self._pause(stop)

    def problems(self) -> Sequence[str]:
        """The reasons why the role does not work now, for `/readyz`. An error is named by its
        class: its text may be confidential.
        """
        if self._role.ready.is_set() or self._failure is None:
            return self._role.problems() or (
                () if self._role.ready.is_set() else (f"{self._name}: not ready yet",)
            )
        when = (
            "now"
            if self._starts_at is None
            else f"in {max(0.0, self._starts_at - time.monotonic()):.0f} s"
        )
        return (
            f"{self._name}: ended with {type(self._failure).__name__} and starts again {when} "
            f"(restart {self._restarts} of {MOST_RESTARTS}); the log says why: role_failed",
        )

    def stalled(self) -> Sequence[str]:
        """The faults that only a restart of the process repairs, for `/healthz`; waiting for the
        next start is none.
        """
        return () if self._starts_at is not None else self._role.stalled()

    def _made(self) -> RunsUntilStopped:
        with self._instruments.registering(self._name):
            return self._make()

    async def _asked(self) -> None:
        await self._may_start()

    async def _run_once(self, stop: asyncio.Event) -> None:
        watching = asyncio.create_task(self._note_ready(self._role))
        try:
            await self._role.run(stop)
        finally:
            watching.cancel()

    async def _note_ready(self, role: RunsUntilStopped) -> None:
        await role.ready.wait()
        self._ready_at = time.monotonic()
        self.was_ready.set()
        if self._restarts:
            log.info("role_works_again", role=self._name, restarts=self._restarts)

    def _may_go_on(self, error: Exception) -> bool:
        """Whether there is another start; logs a new failure."""
        is_passing = isinstance(error, OperatorError) and error.passes
        if not (self.was_ready.is_set() or is_passing):
            return False
        if isinstance(
            error, MemoryError
        ):  # what filled it is still there, and the next start would fail for odd reasons
            log.error(
                "out_of_memory",
                role=self._name,
                what_happens_now=(
                    "The process ends; a supervisor starts it again, and nothing is lost."
                ),
                what_to_do="Give it more memory: deploy/sizing.md says how much open calls need.",
            )
            return False
        ready_at, self._ready_at = self._ready_at, None
        if ready_at is not None and time.monotonic() - ready_at >= QUIET_SECONDS:
            self._restarts, self._shown = 0, ""
        if self._restarts >= MOST_RESTARTS:
            log.error(
                "role_given_up",
                role=self._name,
                restarts=self._restarts,
                what_happens_now="The process ends.",
            )
            return False
        self._restarts += 1
        self._instruments.inc("callgauge_role_restarts_total", (self._name,))
        reason = f"{type(error).__name__}: {error}"
        # Numbers of partitions and offsets differ from one try to the next, and the reason is the
        # same.
        if (shown := _DIGITS.sub("", reason)) != self._shown:
            self._shown = shown
            log.error(
                "role_failed",
                role=self._name,
                error=reason,
                what_happens_now="It is started again after a pause of "
                f"{self._pause_seconds():.0f} s, "
                f"{MOST_RESTARTS} times "
                "at most, with longer and longer pauses; other roles of this process go on.",
                what_to_do="Repair what the error says. The line comes again only when the reason "
                "changes; /readyz and "
                "callgauge_role_restarts_total say how it goes on.",
                # Our own errors say all there is to know.
                exc_info=None
                if type(error).__module__.startswith(("consumers.", "streamer."))
                else error,
            )
        return True

    def _pause_seconds(self) -> float:
        return min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** (self._restarts - 1))

    async def _pause(self, stop: asyncio.Event) -> None:
        seconds = self._pause_seconds()
        self._starts_at = time.monotonic() + seconds
        await finish_unless(stop, asyncio.sleep(seconds))
        self._starts_at = None


# Roles in one process with one page of metrics, for `callgauge run` and the demo.

STOP_SECONDS: Final = 10.0
"""Longest time from the signal or the failure to the end of the process. Each step of a role has a
shorter deadline of its own, some 5 s together; a supervisor should wait longer than this before it
kills (Kubernetes: 30 s).
"""


class Service:
    """Some roles and the HTTP server that shows their metrics; they begin and end together.

    A role that fails after it has worked is started again (`RoleRunner`); the others go on
    meanwhile.

    Attributes:
        ready: Set when every role is.
        stopping: Set when the end begins; from then on `/readyz` says no.
    """

    def __init__(
        self, settings: Settings, kafka: KafkaSettings, roles: Collection[RoleName]
    ) -> None:
        """Nothing is connected before `run`. Call it inside a running event loop."""
        self.ready = asyncio.Event()
        self.stopping = asyncio.Event()
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)  # memory, processor time, start: `process_*`
        instruments = self._instruments = Instruments(registry, roles, settings.max_series)
        # read once: it is in a file
        build: dict[tuple[str, ...], float] = {(installed_version(),): 1.0}
        instruments.read_gauge("callgauge_build_info", lambda: build)
        self._kafka = kafka
        self._needs = needs_of(roles, settings)
        self._roles = {
            name: RoleRunner(
                name,
                _maker(name, settings, kafka, instruments, roles),
                instruments,
                partial(require_access, kafka, needs_of([name], settings)),
            )
            for name in ROLE_NAMES
            if name in roles
        }
        self._running: dict[RoleName, asyncio.Task[None]] = {}
        self._login = LoginWatch(kafka, instruments)
        told = partial(state_of, settings, roles, instruments, wall_clock_ms())
        self._server = MetricsServer(
            settings.http,
            instruments,
            stalled=self._stalled,
            not_ready=self._not_ready,
            state=lambda: told(problems=[*self._stalled(), *self._not_ready()]).model_dump_json(),
        )

    @property
    def metrics_url(self) -> str:
        """The address of `/metrics`; right once `ready` is set."""
        return self._server.url

    @property
    def page_url(self) -> str | None:
        """The address of the page of calls, right once `ready` is set; None if this process does
        not serve it.
        """
        return self._roles["console"].address if "console" in self._roles else None

    async def run(self, stop: asyncio.Event) -> None:
        """Runs every role until `stop` is set, a role fails for good, or the task is cancelled;
        then all roles finish.

        Raises:
            AddressInUseError: The HTTP address is taken; no role was started.
            KafkaUnreachableError: No broker answers, or a right of a role is missing; no role was
                started.
            TopicsUnfitError: Topics are missing or do not fit together.
            Exception: The final failure of a role; if several failed, the first one, and the others
                are in the log.
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
        self._running = {
            name: asyncio.create_task(role.run(self.stopping)) for name, role in self._roles.items()
        }
        announcing, stopped = (
            asyncio.create_task(self._announce()),
            asyncio.create_task(stop.wait()),
        )
        watching = asyncio.create_task(self._login.follow(self.stopping))
        watching_loop = asyncio.create_task(
            watch_loop(lambda seconds: self._instruments.observe(LOOP_METRIC, (), seconds))
        )
        failed: list[RoleName] = []
        try:
            await asyncio.wait(
                [*self._running.values(), stopped], return_when=asyncio.FIRST_COMPLETED
            )
            failed += (name for name in self._running if self._has_failed(name))
        finally:
            began_seconds = time.monotonic()
            self.stopping.set()
            log.info("service_stopping", roles=list(self._roles), failed=failed)
            # A role ends by itself now; `_end_overdue` ends the process with one that does not.
            await asyncio.gather(*self._running.values(), return_exceptions=True)
            await end_tasks([announcing, stopped, watching, watching_loop])
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
        """The faults for `/healthz`. A stopping role reports none: stopping has a deadline of its
        own.
        """
        if self.stopping.is_set():
            return [
                f"{name}: its work has ended with an error"
                for name in self._running
                if self._has_failed(name)
            ]
        return [sentence for role in self._roles.values() for sentence in role.stalled()]


def _maker(
    name: RoleName,
    settings: Settings,
    kafka: KafkaSettings,
    instruments: Instruments,
    roles: Collection[RoleName],
) -> Callable[[], RunsUntilStopped]:
    """Imports a role; gives the function that makes it. A process pays only for the roles that it
    runs.

    Args:
        name: The role.
        settings: Groups and limits.
        kafka: Where Kafka is.
        instruments: Where the role registers its metrics.
        roles: All roles of this process: a judge among them changes the rules of the evaluator.
    """
    match name:
        case "sequencer":
            from consumers.sequencer.service import Sequencer
            from consumers.sequencer.settings import SequencerSettings

            sequencer = SequencerSettings(
                group_id=settings.group("sequencer"),
                max_record_bytes=settings.limits.max_record_bytes,
            )
            return partial(Sequencer, kafka, sequencer, instruments)
        case "evaluator":
            from streamer.roles.evaluator_role import EvaluatorRole

            return partial(EvaluatorRole, kafka, settings, instruments, settings.goal_rules(roles))
        case "exporter":
            from consumers.exporter.service import Exporter
            from consumers.exporter.settings import ExporterSettings

            exporter = ExporterSettings(
                group_id=settings.group("exporter"),
                otlp=settings.otlp,
                code_version=installed_version(),
            )
            return partial(Exporter, kafka, exporter, instruments)
        case "judge":
            from consumers.judge.service import JudgeWorker

            group, redactor = settings.group("judge"), Redactor(settings.redaction)
            return partial(
                JudgeWorker, kafka, settings.judge, instruments, group_id=group, redactor=redactor
            )
        case "history":
            from consumers.history.service import HistoryRole

            return partial(
                HistoryRole,
                kafka,
                settings.history,
                instruments,
                Redactor(settings.redaction),
                reads_own=settings.measures.is_on,
            )
        case "measures":
            from consumers.measures.service import MeasuresRole
            from streamer.one_call import context_in_topics

            return partial(
                MeasuresRole,
                kafka,
                settings.measures,
                instruments,
                group_id=settings.group("measures"),
                redactor=Redactor(settings.redaction),
                context_of=partial(context_in_topics, settings),
            )
        case "console":
            from consumers.console.service import ConsoleRole
            from streamer.deploy_files import runbooks
            from streamer.history.people import annotate
            from streamer.roles.past_calls import StoredCalls

            redactor = Redactor(settings.redaction)
            return partial(
                ConsoleRole,
                kafka,
                settings.console,
                redactor,
                instruments,
                annotate=partial(annotate, kafka, redactor),
                past=StoredCalls(settings.history, settings.console_url)
                if settings.history.is_read
                else None,
                version=installed_version(),
                names=settings.http_names,
                reads_own=settings.measures.is_on,
                runbooks=runbooks(settings.console.contacts),
            )
        case "monitor":
            from streamer.sources.monitor import MonitorRole

            return partial(MonitorRole, kafka, settings.monitor, instruments)
        case "ingest":
            from streamer.sources.http.role import IngestRole

            return partial(
                IngestRole,
                kafka,
                settings.ingest,
                settings.all_limits,
                instruments,
                Redactor(settings.redaction),
                names=settings.http_names,
            )


# What `callgauge run` states at its start: what the doctor says of goals and the judge.


def start_facts(settings: Settings, roles: Collection[RoleName]) -> dict[str, str]:
    """A sentence for each subject that concerns one of the roles, by subject. It reads the files of
    goals.
    """
    # brings the doctor, and YAML
    from streamer.doctor.examination import goals_and_finding, judge_finding

    facts = {}
    if "evaluator" in roles:
        sets, of_goals = goals_and_finding(settings)
        found = (of_goals, judge_finding(settings, sets))
        facts = {each.check: each.text for each in found}
    if not settings.redaction.enabled:
        facts["redaction"] = "off: texts of calls are written as they are"
    return facts


# The work of the commands `run` and `ingest`: roles in this process, until a signal.


def roles_named(text: str | None, settings: Settings) -> tuple[RoleName, ...]:
    """The named roles, or all that have something to do."""
    switches = {
        "history": settings.history.is_on,
        "measures": settings.measures.is_on,
        "ingest": settings.ingest.is_on,
        "monitor": settings.monitor.is_on,
    }
    if text is None:
        return tuple(role for role in ROLE_NAMES if role not in switches or switches[role])
    names = [name.strip() for name in text.split(",")]
    roles = tuple(role for role in ROLE_NAMES if role in names)
    if unknown := [name for name in names if name not in ROLE_NAMES]:
        raise typer.BadParameter(
            f"{unknown[0]!r} is no role: give one or more of {','.join(ROLE_NAMES)}."
        )
    return roles


def run_roles(settings: Settings, chosen: tuple[RoleName, ...]) -> None:
    """Runs roles in this process until a signal.

    Args:
        settings: The settings of all of them.
        chosen: The roles.
    """
    configure_logging(
        settings.log_format, settings.log_level, redact=Redactor(settings.redaction).redact
    )
    try:
        asyncio.run(_run(settings, chosen))
    except KafkaUnreachableError as error:
        if not isinstance(error, KafkaRefusedError):
            say("On one machine, `callgauge serve` does all this without Kafka.")
        raise


async def _run(settings: Settings, roles: tuple[RoleName, ...]) -> None:
    with stop_on_signals() as stop:
        service = Service(settings, settings.kafka, roles)
        beside = [
            asyncio.create_task(_announce(service, settings, roles)),
            asyncio.create_task(_end_in_time(service)),
        ]
        try:
            await service.run(stop)
        finally:
            for task in beside:
                task.cancel()


async def _announce(service: Service, settings: Settings, roles: tuple[RoleName, ...]) -> None:
    await service.ready.wait()
    facts = await asyncio.to_thread(start_facts, settings, roles)
    if is_json(settings.log_format):  # a plain sentence would be no log line
        log.info(
            "service_ready",
            roles=roles,
            bootstrap=settings.bootstrap,
            metrics_url=service.metrics_url,
            page_url=service.page_url,
            **facts,
        )
        return
    say(
        f"callgauge runs {' and '.join(roles)} on {settings.bootstrap}; metrics: "
        f"{service.metrics_url}"
    )
    if service.page_url is not None:
        say(f"  {'calls:':<13}{service.page_url}")
    for subject, fact in facts.items():
        say(f"  {subject + ':':<13}{fact}")


async def _end_in_time(service: Service) -> None:
    """Sets the deadline once stopping begins. A thread keeps it: a task that hangs could keep the
    loop from it.
    """
    await service.stopping.wait()
    deadline = threading.Timer(STOP_SECONDS, _end_overdue, [service])
    # the end of the process does not wait for it, and it runs while the loop shuts down
    deadline.daemon = True
    deadline.start()


def _end_overdue(service: Service) -> None:
    log.error(
        "stop_overdue",
        unfinished=service.unfinished(),
        seconds=STOP_SECONDS,
        detail="ended nevertheless; the next evaluator reads the uncommitted records again",
    )
    os._exit(STOP_OVERDUE)
