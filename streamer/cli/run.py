"""The command `run`: roles in one process, until a signal."""

import asyncio
import os
import threading
from typing import Annotated

import structlog
import typer

from consumers.engine.redaction.redactor import Redactor
from consumers.runtime.logs import configure_logging, is_json
from streamer.cli.exit_codes import STOP_OVERDUE
from streamer.cli.options import (
    BootstrapOption,
    ConfigOption,
    HttpPortOption,
    PrefixOption,
)
from streamer.cli.settings_options import settings_from
from streamer.roles.running import ROLE_NAMES, STOP_SECONDS, RoleName, Service
from streamer.roles.start_facts import start_facts
from streamer.settings.all_settings import Settings
from streamer.signals import stop_on_signals
from streamer.terminal import say

app = typer.Typer(add_completion=False)
log = structlog.get_logger()


def _roles(text: str | None, settings: Settings) -> tuple[RoleName, ...]:
    """The named roles, or all that have something to do."""
    switches = {"ingest": settings.ingest.is_on, "monitor": settings.monitor.is_on}
    if text is None:
        return tuple(role for role in ROLE_NAMES if role not in switches or switches[role])
    names = [name.strip() for name in text.split(",")]
    roles = tuple(role for role in ROLE_NAMES if role in names)
    if unknown := [name for name in names if name not in ROLE_NAMES]:
        raise typer.BadParameter(f"{unknown[0]!r} is no role: give one or more of {','.join(ROLE_NAMES)}.")
    return roles


@app.command()
def run(
    *,
    roles: Annotated[
        str | None,
        typer.Option(
            "--roles",
            metavar="NAMES",
            help=f"Which of {', '.join(ROLE_NAMES)}, separated by commas. Without it all, but ingest and monitor only if "
            "they have a token, a secret or a key.",
        ),
    ] = None,
    http_port: HttpPortOption = None,
    bootstrap: BootstrapOption = None,
    topic_prefix: PrefixOption = None,
    config: ConfigOption = None,
) -> None:
    """Runs the roles: evaluator, exporter, judge, receivers.

    The evaluator rebuilds calls from their events and writes scores. The exporter turns scores into metrics. The judge
    asks a model the questions of the evaluator. Ingest receives events over HTTP; `callgauge ingest --help` explains it.
    Monitor follows live calls of ElevenLabs agents; it needs CALLGAUGE_MONITOR__API_KEY, and runs in one process only.
    All roles run in one process until Ctrl-C or SIGTERM.

    /metrics has the metrics of all of them. /readyz says whether every role does its work, /healthz whether the process
    needs a restart; a broker that is down needs none. A role that fails after it has worked is started again, and the
    log says why.

    The first signal lets the roles finish, which may take 10 s; a second one ends the process at once.

    Every setting is an environment variable, CALLGAUGE_ and its name, and a line of a TOML file. The command line wins
    over the environment, and the environment over the file. `callgauge settings` lists all of them.

    Examples:
        callgauge run --bootstrap kafka:9092
        CALLGAUGE_LIMITS__IDLE_MS=120000 callgauge run --roles evaluator
        CALLGAUGE_GOALS__FOLDER=goals OPENAI_API_KEY=... callgauge run
        callgauge run --config callgauge.toml
    """
    settings = settings_from(config, bootstrap=bootstrap, topic_prefix=topic_prefix, http_port=http_port)
    run_roles(settings, _roles(roles, settings))


def run_roles(settings: Settings, chosen: tuple[RoleName, ...]) -> None:
    """Runs roles in this process until a signal.

    Args:
        settings: The settings of all of them.
        chosen: The roles.
    """
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
    facts = await asyncio.to_thread(start_facts, settings, roles)
    if is_json(settings.log_format):  # a plain sentence would be no log line
        log.info("service_ready", roles=roles, bootstrap=settings.bootstrap, metrics_url=service.metrics_url, **facts)
        return
    say(f"callgauge runs {' and '.join(roles)} on {settings.bootstrap}; metrics: {service.metrics_url}")
    for subject, fact in facts.items():
        say(f"  {subject + ':':<13}{fact}")


async def _end_in_time(service: Service) -> None:
    """Sets the deadline once stopping begins. A thread keeps it: a task that hangs could keep the loop from it."""
    await service.stopping.wait()
    deadline = threading.Timer(STOP_SECONDS, _end_overdue, [service])
    deadline.daemon = True  # the end of the process does not wait for it, and it runs while the loop shuts down
    deadline.start()


def _end_overdue(service: Service) -> None:
    log.error(
        "stop_overdue", unfinished=service.unfinished(), seconds=STOP_SECONDS,
        detail="ended nevertheless; the next evaluator reads the uncommitted records again",
    )  # fmt: skip
    os._exit(STOP_OVERDUE)
