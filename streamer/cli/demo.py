"""The command `demo`: every role on simulated calls, in one process."""

import asyncio
from typing import Annotated, Final

import typer

from streamer.cli.options import ConfigOption, HttpPortOption
from streamer.terminal import output_console

DEMO_SEED: Final = 47
"""Its first calls are of all four agents, and have latencies, goals, interruptions and dead air in
their first minute.
"""
app = typer.Typer(add_completion=False)


@app.command()
def demo(
    *,
    http_port: HttpPortOption = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            "--seconds", metavar="N", min=0.1, help="End after this long; otherwise with Ctrl-C."
        ),
    ] = None,
    calls: Annotated[
        int, typer.Option("--calls", metavar="N", min=1, max=200, help="Calls at the same time.")
    ] = 6,
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", help="Decides the calls.")
    ] = DEMO_SEED,
    config: ConfigOption = None,
) -> None:
    """Shows callgauge at work, without any set-up.

    One process runs simulated calls in real time and every role, as `callgauge serve` does. A table
    shows the calls and the progress of each; below it is what happens in them. The first calls are
    a minute old. One agent is in trouble on purpose. If the port of /metrics is taken, the next
    free one is used. Ctrl-C ends it.

    Nothing stays: past calls are in a temporary folder until it ends. Nothing leaves the machine
    unless a key for the judge is set (OPENAI_API_KEY): then a model judges one more subgoal of each
    call.

    Examples:
        callgauge demo
        callgauge demo --calls 12 --seconds 60 --http-port 0
    """
    from streamer.roles.demo import run_demo
    from streamer.settings.listing import settings_from

    settings = settings_from(config, http_port=http_port)
    asyncio.run(run_demo(settings, output_console(), seconds, calls, seed))
