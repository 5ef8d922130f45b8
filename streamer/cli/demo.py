"""The command `demo`: every role on simulated calls, in one process."""

import asyncio
from typing import Annotated, Final

import typer
from rich.console import Console

from consumers.engine.redaction.redactor import Redactor
from consumers.runtime.logs import configure_logging
from consumers.runtime.stopping import first_of
from streamer.cli.options import ConfigOption, HttpPortOption
from streamer.cli.settings_options import settings_from
from streamer.roles.demo import Demo
from streamer.settings.all_settings import Settings
from streamer.signals import stop_on_signals

DEMO_SEED: Final = 47
"""Its first calls are of all four agents, and have latencies, goals, interruptions and dead air in their first minute."""

app = typer.Typer(add_completion=False)


@app.command()
def demo(
    *,
    http_port: HttpPortOption = None,
    seconds: Annotated[
        float | None,
        typer.Option("--seconds", metavar="N", min=0.1, help="End after this long; otherwise with Ctrl-C."),
    ] = None,
    calls: Annotated[int, typer.Option("--calls", metavar="N", min=1, max=200, help="Calls at the same time.")] = 6,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Decides the calls.")] = DEMO_SEED,
    config: ConfigOption = None,
) -> None:
    """Shows callgauge at work, without any set-up.

    One process runs a broker, simulated calls in real time and every role. A table shows the calls and the progress of
    each; below it is what happens in them. The first calls are a minute old. One agent is in trouble on purpose. If the
    port of /metrics is taken, the next free one is used. Ctrl-C ends it.

    Nothing is stored. Nothing leaves the machine unless a key for the judge is set (OPENAI_API_KEY): then a model judges
    one more subgoal of each call.

    Examples:
        callgauge demo
        callgauge demo --calls 12 --seconds 60 --http-port 0
    """
    settings = settings_from(config, http_port=http_port)
    asyncio.run(_demo(settings, Console(highlight=False), seconds, calls, seed))


async def _demo(settings: Settings, console: Console, seconds: float | None, calls: int, seed: int) -> None:
    configure_logging(settings.log_format, "warning", redact=Redactor(settings.redaction).redact)
    with stop_on_signals() as stop:
        await first_of(stop.wait(), Demo(settings, console, concurrent_calls=calls, seed=seed).run(seconds))
