"""The command `demo`: every role on simulated calls, in one process."""

import asyncio
from typing import Annotated, Final

import typer

from streamer.cli.options import ConfigOption
from streamer.terminal import output_console

DEMO_SEED: Final = 199
"""Its first calls have latencies, goals and interruptions in their first minute."""
app = typer.Typer(add_completion=False)


@app.command()
def demo(
    *,
    port: Annotated[
        int | None,
        typer.Option(
            "--port", metavar="N", help="Port of its page (8080 unless set); 0 takes a free one."
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            "--seconds", metavar="N", min=0.1, help="End after this long; otherwise with Ctrl-C."
        ),
    ] = None,
    calls: Annotated[
        int, typer.Option("--calls", metavar="N", min=1, max=200, help="Calls at the same time.")
    ] = 12,
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", help="Decides the calls.")
    ] = DEMO_SEED,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Do not open the page in a browser.")
    ] = False,
    config: ConfigOption = None,
) -> None:
    """Shows callgauge at work, without any set-up.

    One process runs simulated calls in real time and every role, as `callgauge serve` does, and
    opens its page in a browser if there is one. It tells a story of five minutes: all agents are
    well, a bad version of one is deployed, it fails, is rolled back, and the agent is well again.
    A line says each step, with the address at which to look. About 200 calls of the last two days
    are there some seconds later, with two versions of another agent. A table shows the running
    calls and the progress of each. If the port is taken, the next free one is used.
    Ctrl-C ends it.

    Nothing stays: past calls are in a temporary folder until it ends. Nothing leaves the machine
    unless a key for the judge is set (OPENAI_API_KEY): then a model judges one more subgoal of each
    call.

    Examples:
        callgauge demo
        callgauge demo --calls 24 --seconds 60 --port 0 --no-browser
    """
    from streamer.roles.demo import Demo, run_demo
    from streamer.settings.listing import settings_from

    settings = settings_from(config, http_port=port)
    shown = Demo(
        settings, output_console(), concurrent_calls=calls, seed=seed, opens_browser=not no_browser
    )
    asyncio.run(run_demo(settings, shown, seconds))
