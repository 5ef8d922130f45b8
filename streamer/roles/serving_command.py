"""The work of the command `serve`: everything on this machine, until a signal."""

import asyncio
import os
from pathlib import Path
from typing import Final

import structlog

from consumers.engine.redaction.redactor import Redactor
from consumers.runtime.logs import configure_logging, is_json
from streamer.facts import TOKEN_FILE
from streamer.roles.serving import OneMachine
from streamer.served_folder import data_folder
from streamer.settings.all_settings import Settings
from streamer.signals import stop_on_signals
from streamer.terminal import say

_HEARD: Final = (
    ("user_speech_started", 5, ""),
    ("user_speech_stopped", 3, "Are you there?"),
    ("bot_speech_started", 2, "Yes, I am."),
    ("bot_speech_stopped", 0, ""),
)
"""A caller speaks, and the agent answers after a second: what was heard, how many seconds ago, and
the words that are known then.
"""

log = structlog.get_logger()


def run_serve(settings: Settings, folder: Path | None, host: str | None, port: int | None) -> None:
    """Serves until a signal.

    Args:
        settings: The settings of all roles.
        folder: Where calls are kept; None for the data folder of this user.
        host: Address to listen on; None for that of the settings, `http_host`.
        port: Port to listen on; None for that of the settings, `console.port`.
    """
    configure_logging(
        settings.log_format, settings.log_level, redact=Redactor(settings.redaction).redact
    )
    host, port = host or settings.http_host, settings.console.port if port is None else port
    for remark in settings.left_out_by_serve():
        log.warning(
            "setting_left_out",
            problem=f"{remark}.",
            what_to_do="Leave it out, or see docs/serve.md for Kafka.",
        )
    asyncio.run(_serve(settings, folder or data_folder(), host, port))


def first_call(address: str, token: str) -> str:
    """A line for a shell that sends a call which has just begun.

    >>> first_call("http://127.0.0.1:8070", "secret").startswith("t=$(date +%s); curl http://127.0.0.1:8070/events -H ")
    True
    """
    events = [_event("$((t-6))", "call_started", '"agent":"me"')]
    for kind, ago, words in _HEARD:
        data = f'"data":{{"kind":"{kind}","timestamp":$((t-{ago}))}}'
        events.append(_event(f"$((t-{ago}))", "speech_event", data))
        if words:
            whose = "user_message" if kind.startswith("user") else "assistant_message"
            events.append(_event(f"$((t-{ago}))", whose, f'"data":{{"content":"{words}"}}'))
    body = ",".join(events).replace('"', '\\"')
    return (
        f"t=$(date +%s); curl {address}/events -H 'Authorization: Bearer {token}' -H "
        f"'Content-Type: application/json' -d \"[{body}]\""
    )


def sends_a_call(machine: OneMachine, folder: Path) -> str:
    """A line for a shell of this system that sends a first call."""
    if os.name == "posix":
        return first_call(machine.address, machine.token)
    return f'callgauge replay sample --folder "{folder}"'


def _event(at_seconds: str, kind: str, rest: str) -> str:
    return f'{{"conversation_id":"first-$t","type":"{kind}","timestamp":{at_seconds}000,{rest}}}'


async def _serve(settings: Settings, folder: Path, host: str, port: int) -> None:
    with stop_on_signals() as stop:
        machine = OneMachine(settings, folder, host, port)
        announcing = asyncio.create_task(_announce(machine, settings, folder))
        try:
            await machine.run(stop)
        finally:
            announcing.cancel()


async def _announce(machine: OneMachine, settings: Settings, folder: Path) -> None:
    await machine.ready.wait()
    # a plain sentence would be no log line, and a log is no place for a token
    if is_json(settings.log_format):
        token_file = str(folder / TOKEN_FILE) if settings.ingest.token is None else None
        log.info(
            "service_ready",
            page_url=f"{machine.address}/",
            folder=str(folder),
            token_file=token_file,
        )
        return
    say(f"callgauge serves {machine.address}/   Ctrl-C ends it; calls are kept in {folder}")
    if machine.opens_pages:
        say(
            "  Others than this machine reach it: its pages ask for the token that is in the next "
            "line."
        )
    say("  A first call:")
    say(f"  {sends_a_call(machine, folder)}")
    say(f"  pipecat and LiveKit: CALLGAUGE_URL={machine.address} CALLGAUGE_TOKEN={machine.token}")
