"""The command `tail`: a run of EVA onto the topics, while EVA writes it."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from streamer.cli.options import AgentOption, BootstrapOption, ConfigOption, PrefixOption
from streamer.facts import ID_MARK, POSITION_FILE, STOPPED_BY_SIGNAL
from streamer.terminal import say

app = typer.Typer(add_completion=False)


@app.command()
def tail(
    run_dir: Annotated[
        Path, typer.Argument(metavar="RUN_DIR", help="EVA's folder of the run: the one with `records` in it.")
    ],
    *,
    goals: Annotated[
        str | None, typer.Option(metavar="NAME", help=f"Goal set of the calls; {ID_MARK} in it is the record's id.")
    ] = None,
    agent: AgentOption = None,
    run_name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Put behind the conversation ids: needed if these topics had a run of the same records.",
        ),
    ] = None,
    is_endless: Annotated[
        bool, typer.Option("--forever", help="Go on when EVA has finished the run: it may be started again.")
    ] = False,
    position: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help=f"Where the position is kept; {POSITION_FILE} in RUN_DIR unless given."),
    ] = None,
    bootstrap: BootstrapOption = None,
    topic_prefix: PrefixOption = None,
    config: ConfigOption = None,
) -> None:
    """Sends a run of EVA to the topics while EVA writes it.

    Start it before EVA, beside it, or after it. Each line goes to the topics when its end is written, and a call ends
    when its result.json is there. The conversation id is the record's id, and with several trials <record>/trial_<n>, as
    in `callgauge score`. The final records of a call equal those of `callgauge score RUN_DIR`, except for dead air,
    which is decided while the call runs.

    Stock EVA writes the pipecat log and the metrics during a call, and everything else at its end. Until then the live
    values come from pipecat alone.

    The position is kept in RUN_DIR. Run the same command again to continue after Ctrl-C or a crash: nothing is
    evaluated twice. It ends by itself when EVA has written evaluation_summary.json and every call was sent.

    If EVA puts an attempt aside and tries again, the call ends with the reason `discarded`, and the next attempt is a
    call of its own: <record>/attempt_2.

    A call of the past is left out, and the exit code is then 1: the evaluator refuses events that are more than a day old.
    `callgauge replay` plays such a run.

    A call closes once, so the topics take each id once: give a second run with the same records a --run-name.

    Examples:
        callgauge tail output/my-run
        callgauge tail output/next-run --run-name next
        callgauge tail output/my-run --agent airline-desk --goals '{id}'
        callgauge tail output/my-run --topic-prefix lab. --position lab.json
    """
    from streamer.settings.listing import settings_from
    from streamer.sources.tail import CallFacts, RunFolderError, follow, progress_text

    settings = settings_from(config, bootstrap=bootstrap, topic_prefix=topic_prefix)
    if not run_dir.is_dir():
        raise RunFolderError(
            f"{run_dir}: there is no such folder, so there is nothing to follow. Name the folder that EVA writes the run to "
            "(output/<run>); make it if EVA has not begun."
        )
    completed, progress = asyncio.run(
        follow(
            settings,
            run_dir,
            position or run_dir / POSITION_FILE,
            CallFacts(agent, goals, run_name),
            is_endless=is_endless,
        )
    )
    say(f"{'The run is over' if completed else 'Stopped'}: {progress_text(progress)}.")
    if not completed and progress.open_calls:
        say("Run the same command again to continue with the open calls.")
        raise typer.Exit(STOPPED_BY_SIGNAL)
    if progress.past_calls:
        raise typer.Exit(1)
