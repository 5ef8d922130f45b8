"""The command `simulate`: simulated calls onto the topics."""

import asyncio
import secrets
from collections.abc import Iterable
from typing import Annotated

import typer

from consumers.runtime.process import wall_clock_ms
from streamer.cli.options import BootstrapOption, ConfigOption, PrefixOption, ServedOption
from streamer.facts import MAX_OPEN_CALLS
from streamer.sources.simulator.profile import (
    AGENTS,
    PROFILES,
    Incident,
    IncidentName,
    ProfileName,
    with_incidents,
)
from streamer.terminal import error_console, print_line, say

app = typer.Typer(add_completion=False)


@app.command()
def simulate(
    calls: Annotated[
        int,
        typer.Option(
            "--calls", metavar="N", min=1, max=MAX_OPEN_CALLS, help="Calls at the same time."
        ),
    ] = 5,
    seconds: Annotated[
        float | None,
        typer.Option(
            "--seconds",
            metavar="N",
            min=0.1,
            help="End after this long; running calls are cut off.",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option("--seed", metavar="N", help="Decides the calls; printed when not given."),
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="Tenant named in every call.")] = None,
    environment: Annotated[
        str, typer.Option(help="Environment named in every call.")
    ] = "simulated",
    profile: Annotated[
        ProfileName,
        typer.Option(help="How well the agents do: as they should, or awkward on purpose."),
    ] = "healthy",
    incident: Annotated[
        IncidentName | None,
        typer.Option(
            help="A trouble that the agents have from the start, to see which alert fires."
        ),
    ] = None,
    agent: Annotated[
        str | None, typer.Option(help="The agent that has the trouble; otherwise all of them.")
    ] = None,
    *,
    prints: Annotated[
        bool,
        typer.Option(
            "--print",
            help="Print the events of N calls immediately, one JSON object a line; none is sent.",
        ),
    ] = False,
    folder: ServedOption = None,
    bootstrap: BootstrapOption = None,
    topic_prefix: PrefixOption = None,
    config: ConfigOption = None,
) -> None:
    """Sends simulated calls, in real time.

    They go to the topics, or with --folder to `callgauge serve`. The agents meet the objectives;
    --incident makes a trouble, of one --agent or of all. With the profile `awkward` most calls are
    difficult: interruptions, empty sessions, late, missing and repeated events, slow tools. The
    same seed makes the same calls. Ctrl-C ends it.

    Calls name the goal set of their agent, which `run` brings; a set of yours with that id or for
    that agent counts instead.

    --print shows the events and sends nothing: each line is an event as POST /events takes it.

    Examples:
        callgauge simulate --calls 20 --seconds 60 --seed 7
        callgauge simulate --print --calls 1 | head
        callgauge simulate --print --seed 7 | callgauge events check -
        callgauge simulate --incident agent_mute --agent library-desk
    """
    from streamer.settings.listing import settings_from
    from streamer.sources.publisher import PlayProgress, publish_calls
    from streamer.sources.replay import PlayedCall
    from streamer.sources.simulator.traffic import event_lines, simulated_traffic, traffic_text

    if agent is not None and agent not in AGENTS:
        raise typer.BadParameter(
            f"{agent!r} is no simulated agent; known are {', '.join(AGENTS)}.", param_hint="--agent"
        )
    settings = settings_from(config, bootstrap=bootstrap, topic_prefix=topic_prefix)
    troubles = [] if incident is None else [Incident(incident, agent)]
    chosen = secrets.randbelow(1_000_000) if seed is None else seed

    def traffic(limit: int | None = None) -> Iterable[PlayedCall]:
        return simulated_traffic(
            chosen,
            concurrent_calls=calls,
            start_ms=wall_clock_ms(),
            limit=limit,
            tenant=tenant,
            environment=environment,
            profile_of=with_incidents(PROFILES[profile], troubles),
            names_goals=True,
        )

    if prints:
        for line in event_lines(traffic(calls)):
            print_line(line)
        return
    say(f"Simulating {calls} calls at a time, seed {chosen}, to {folder or settings.bootstrap}.")
    with error_console().status("") as shown:

        def show(progress: PlayProgress) -> None:
            shown.update(traffic_text(progress))

        _, progress = asyncio.run(
            publish_calls(
                settings,
                "callgauge.simulator",
                traffic,
                1.0,
                show=show,
                seconds=seconds,
                folder=folder,
            )
        )
    say(f"Simulated: {traffic_text(progress)}.")
