"""The work of the commands `run` and `ingest`: roles in this process, until a signal."""

import asyncio
import os
import threading

import structlog
import typer

from consumers.engine.redaction.redactor import Redactor
from consumers.runtime.logs import configure_logging, is_json
from schemas.closed_sets import ROLE_NAMES, RoleName
from streamer.exit_codes import STOP_OVERDUE
from streamer.roles.running import STOP_SECONDS, Service
from streamer.roles.start_facts import start_facts
from streamer.settings.all_settings import Settings
from streamer.signals import stop_on_signals
from streamer.terminal import say

log = structlog.get_logger()


def roles_named(text: str | None, settings: Settings) -> tuple[RoleName, ...]:
    """The named roles, or all that have something to do."""
    switches = {"ingest": settings.ingest.is_on, "monitor": settings.monitor.is_on}
    if text is None:
        return tuple(role for role in ROLE_NAMES if role not in switches or switches[role])
    names = [name.strip() for name in text.split(",")]
    roles = tuple(role for role in ROLE_NAMES if role in names)
    if unknown := [name for name in names if name not in ROLE_NAMES]:
        raise typer.BadParameter(f"{unknown[0]!r} is no role: give one or more of {','.join(ROLE_NAMES)}.")
    return roles


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
