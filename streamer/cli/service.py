"""The commands that run roles: `run` and `demo`."""

import asyncio
import os
import threading
from typing import Annotated, Final

import structlog
import typer
from rich.console import Console

from consumers.engine.redaction.redactor import Redactor
from consumers.runtime.logs import configure_logging
from consumers.runtime.stopping import first_of
from streamer.cli.options import (
    BootstrapOption,
    ConfigOption,
    HttpPortOption,
    PrefixOption,
    settings_from,
    with_example,
)
from streamer.roles.demo import Demo
from streamer.roles.running import ROLE_NAMES, STOP_SECONDS, RoleName, Service
from streamer.settings.all_settings import Settings
from streamer.signals import stop_on_signals
from streamer.terminal import say

RUN_HELP: Final = with_example(
    "Run the roles in one process until Ctrl-C or SIGTERM: the evaluator rebuilds calls from their events and writes "
    "scores, the exporter turns scores into metrics, the judge puts questions about calls to a model. All are on /metrics. "
    "/readyz says whether every role does its work, /healthz whether a restart is needed; a broker that is down needs "
    "none. A role that fails after it has worked is started again, and the log says why.\n\nThe first signal lets the roles finish, "
    f"which may take {STOP_SECONDS:.0f} s; a second one ends the process at once.\n\nEvery setting is an environment "
    "variable too, CALLGAUGE_ and its name, or a line of a TOML file. The command line wins over the environment, and that "
    "over the file.",
    "callgauge run --bootstrap kafka:9092",
    "CALLGAUGE_LIMITS__IDLE_MS=120000 callgauge run --roles evaluator",
    "CALLGAUGE_GOALS__FOLDER=goals OPENAI_API_KEY=... callgauge run",
    "callgauge run --config callgauge.toml",
)
DEMO_HELP: Final = with_example(
    "Show callgauge at work, with nothing to set up: a broker inside the process, simulated calls in real time, every "
    "role, and a table of the running calls with how far each is. Ctrl-C ends it.\n\nNothing is kept, and nothing leaves the "
    "machine unless a key for the judge is set (OPENAI_API_KEY): a model then judges one more subgoal of each call.",
    "callgauge demo",
    "callgauge demo --calls 12 --seconds 60 --http-port 0",
)

DEMO_SEED: Final = 71
"""Its first calls are of every kind, most have goals that move within half a minute, and awkward things happen."""
STOP_OVERDUE: Final = 1
"""Exit code of `run` when ending took too long."""

log = structlog.get_logger()


def _roles(text: str) -> tuple[RoleName, ...]:
    names = [name.strip() for name in text.split(",")]
    roles = tuple(role for role in ROLE_NAMES if role in names)
    if unknown := [name for name in names if name not in ROLE_NAMES]:
        raise typer.BadParameter(f"{unknown[0]!r} is no role: give one or more of {','.join(ROLE_NAMES)}.")
    return roles


def run(
    *,
    roles: Annotated[
        str, typer.Option("--roles", metavar="NAMES", help="Which roles, separated by commas.")
    ] = ",".join(ROLE_NAMES),
    http_port: HttpPortOption = None,
    bootstrap: BootstrapOption = None,
    topic_prefix: PrefixOption = None,
    config: ConfigOption = None,
) -> None:
    chosen = _roles(roles)
    settings = settings_from(config, bootstrap=bootstrap, topic_prefix=topic_prefix, http_port=http_port)
    configure_logging(settings.log_format, settings.log_level, redact=Redactor(settings.redaction).redact)
    asyncio.run(_run(settings, chosen))


async def _run(settings: Settings, roles: tuple[RoleName, ...]) -> None:
    with stop_on_signals() as stop:
        service = Service(settings, settings.kafka, roles)
        beside = [asyncio.create_task(_announce(service, settings, roles)), asyncio.create_task(_end_in_time(service))]
        try:
            await service.run(stop)
        finally:
            for task in beside:
                task.cancel()


async def _announce(service: Service, settings: Settings, roles: tuple[RoleName, ...]) -> None:
    await service.ready.wait()
    if settings.log_format == "json":  # a sentence among them would be no log line
        log.info("service_ready", roles=roles, bootstrap=settings.bootstrap, metrics_url=service.metrics_url)
    else:
        say(f"callgauge runs {' and '.join(roles)} on {settings.bootstrap}; metrics: {service.metrics_url}")


async def _end_in_time(service: Service) -> None:
    """Sets the deadline once stopping begins. A thread keeps it: a task that hangs could keep the loop from it."""
    await service.stopping.wait()
    deadline = threading.Timer(STOP_SECONDS, _end_overdue, [service])
    deadline.daemon = True  # it holds nothing up, and goes on while the loop is taken down
    deadline.start()


def _end_overdue(service: Service) -> None:
    log.error(
        "stop_overdue", unfinished=service.unfinished(), seconds=STOP_SECONDS,
        detail="ended nevertheless; what was not committed is read again by whoever takes over",
    )  # fmt: skip
    os._exit(STOP_OVERDUE)


def demo(
    *,
    http_port: HttpPortOption = None,
    seconds: Annotated[
        float | None, typer.Option("--seconds", metavar="N", min=0.1, help="End after this long; else with Ctrl-C.")
    ] = None,
    calls: Annotated[int, typer.Option("--calls", metavar="N", min=1, max=200, help="Calls at the same time.")] = 6,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Decides the calls.")] = DEMO_SEED,
    config: ConfigOption = None,
) -> None:
    settings = settings_from(config, http_port=http_port)
    asyncio.run(_demo(settings, Console(highlight=False), seconds, calls, seed))


async def _demo(settings: Settings, console: Console, seconds: float | None, calls: int, seed: int) -> None:
    configure_logging(settings.log_format, "warning", redact=Redactor(settings.redaction).redact)
    with stop_on_signals() as stop:
        await first_of(stop.wait(), Demo(settings, console, concurrent_calls=calls, seed=seed).run(seconds))
