"""The command `replay`: recorded calls sent again, once or as they are written; with --from-topics,
past traffic evaluated again.
"""

import asyncio
import math
import secrets
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from consumers.runtime.process import wall_clock_ms
from streamer.cli.options import (
    PATHS_HELP,
    SINCE_HELP,
    AgentOption,
    BootstrapOption,
    ConfigOption,
    PrefixOption,
    ServedOption,
)
from streamer.facts import ID_MARK, MAX_OPEN_CALLS, POSITION_FILE, STOPPED_BY_SIGNAL
from streamer.terminal import error_console, say

if TYPE_CHECKING:  # brought when the command runs
    from streamer.settings.all_settings import Settings
    from streamer.sources.watch import WatchedFacts

PAST_PANEL: Final = "Past traffic"
WATCH_PANEL: Final = "Calls that are being written"
_OF_PLAYING: Final = {
    "speed": "--speed",
    "keep_ids": "--keep-ids",
    "keep_times": "--keep-times",
    "concurrent": "--calls",
}
_OF_WATCHING: Final = {"run_name": "--run-name", "position": "--position"}
_OF_RECORDINGS: Final = {
    "paths": "PATH",
    "watches": "--watch",
    "agent": "--agent",
    "goals": "--goals",
}
_OF_PAST_TRAFFIC: Final = {
    "since": "--since",
    "until": "--until",
    "without_facts": "--without-facts",
    "as_json": "--json",
}
app = typer.Typer(add_completion=False)


def _speed(text: str) -> float:
    """The speed of a text; infinity for `max`."""
    try:
        speed = math.inf if text == "max" else float(text)
    except ValueError:
        speed = 0.0
    if not speed > 0 or (speed == math.inf and text != "max"):
        raise typer.BadParameter(
            f"{text!r} is no speed: give a number above 0, for example 20, or max."
        )
    return speed


@app.command()
def replay(
    context: typer.Context,
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="PATH...",
            help=PATHS_HELP,
        ),
    ] = None,
    *,
    speed: Annotated[
        float,
        typer.Option(
            "--speed",
            metavar="N|max",
            parser=_speed,
            help="How many times faster than they happened.",
        ),
    ] = 1.0,  # the parser gets the default too
    keep_ids: Annotated[
        bool,
        typer.Option(
            "--keep-ids", help="Keep the recorded conversation ids; playing twice is then a repeat."
        ),
    ] = False,
    keep_times: Annotated[
        bool,
        typer.Option(
            "--keep-times",
            help="Keep the recorded times; the evaluator refuses old ones unless its limit is off.",
        ),
    ] = False,
    agent: AgentOption = None,
    goals: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=(
                f"Goal set for calls whose recording names none; {ID_MARK} in it is the recorded "
                "id."
            ),
        ),
    ] = None,
    concurrent: Annotated[
        int,
        typer.Option(
            "--calls",
            metavar="N",
            min=1,
            max=MAX_OPEN_CALLS,
            help="Calls at the same time, at most.",
        ),
    ] = 200,
    watches: Annotated[
        bool,
        typer.Option(
            "--watch",
            help="Send what is there and what is written from now on.",
            rich_help_panel=WATCH_PANEL,
        ),
    ] = False,
    run_name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=(
                "Put behind the conversation ids: needed if calls with the same ids were sent "
                "before."
            ),
            rich_help_panel=WATCH_PANEL,
        ),
    ] = None,
    position: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help=f"Where the position is kept. Unless given, {POSITION_FILE} in the folder, or "
            f".NAME{POSITION_FILE} next to a single file.",
            rich_help_panel=WATCH_PANEL,
        ),
    ] = None,
    from_topics: Annotated[
        bool,
        typer.Option(
            "--from-topics",
            help="Evaluate past traffic again and compare.",
            rich_help_panel=PAST_PANEL,
        ),
    ] = False,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN",
            help=SINCE_HELP,
            rich_help_panel=PAST_PANEL,
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN",
            help="Before then; as --since, now unless given.",
            rich_help_panel=PAST_PANEL,
        ),
    ] = None,
    without_facts: Annotated[
        bool,
        typer.Option(
            "--without-facts",
            help="The calls that began then; choose goals again.",
            rich_help_panel=PAST_PANEL,
        ),
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print the differences as one JSON object.", rich_help_panel=PAST_PANEL
        ),
    ] = False,
    folder: ServedOption = None,
    bootstrap: BootstrapOption = None,
    topic_prefix: PrefixOption = None,
    config: ConfigOption = None,
) -> None:
    """Plays recorded calls, or evaluates past traffic again.

    Recorded calls are sent to the topics as if they happened now. Each gets a new conversation id,
    and its times move to the present by whole seconds, so a recording can be played many times.
    Calls run side by side. With --folder they go to the `callgauge serve` that runs there.

    With --watch one PATH is followed while others write there, and ids and times stay as they are.
    A record of an EVA run is sent when it is whole, the lines of a file (.jsonl, .ndjson) as they
    come, any other file when nothing has changed in it for 2 s. What is added later is sent too.
    The position is kept in the folder: run the same command again to continue after Ctrl-C or a
    crash, and nothing is evaluated twice. It ends by itself when EVA has written
    evaluation_summary.json and every call was sent. Calls that are more than a day old are left
    out, because the evaluator refuses them; the exit code is then 1.

    With --from-topics the calls that closed between --since and --until are read from the topic
    events again and evaluated with this version and these settings, and compared with their rows in
    `scores`. The running system is not touched: no consumer group is used, and nothing is written.
    Give this command the settings to try, for example in the environment. With --folder the events
    are those of the log of `serve`, which may run, and the rows those of its history.

    Events are folded in the order of the log, as they were then, and calls have the goals that they
    had: with the same version and settings the same scores come out. With --without-facts the calls
    that began in that time are evaluated, and goals are chosen again. Calls with other goals than
    then are counted, and the subgoals that were won or lost are named call by call.

    The topic events must still hold the calls. Calls whose beginning it does not have are left out
    and counted. Records written more than a day after the end of a call are not compared, and calls
    whose records have an older schema version are left out. Differences are a result: exit code 0.

    Examples:
        callgauge replay sample
        callgauge replay records/1.1.2 --speed 20
        callgauge replay calls.jsonl.gz --speed max --agent booking-bot
        callgauge replay records --goals '{id}'
        callgauge replay --watch output/my-run --folder calls
        callgauge replay --watch output/next-run --run-name next
        callgauge replay --from-topics --since 2h --folder calls
        CALLGAUGE_LIMITS__DEAD_AIR_MS=2000 callgauge replay --from-topics --since 2h
        callgauge replay --from-topics --since 2026-08-01 --until 2026-08-02
    """
    from consumers.view.words import counted
    from streamer.recordings.files import is_sample
    from streamer.settings.listing import settings_from
    from streamer.sources.publisher import PlayProgress, publish_calls
    from streamer.sources.replayed_calls import ReplayPlan, amount_of, calls_to_play
    from streamer.sources.watch import WatchedFacts

    _require_one_kind(context, from_topics=from_topics, watches=watches)
    settings = settings_from(config, bootstrap=bootstrap, topic_prefix=topic_prefix)
    if from_topics:
        # brings the engine, which playing does not need
        from streamer.backtest import run_backtest

        run_backtest(
            settings,
            since=since,
            until=until,
            obeys_facts=not without_facts,
            as_json=as_json,
            folder=folder,
        )
        return
    if not paths:
        raise typer.BadParameter(
            "Missing argument 'PATH...': what to play; or --from-topics to evaluate past traffic."
        )
    if watches:
        _watch(settings, paths, position, WatchedFacts(agent, goals, run_name), folder)
        return
    plan = ReplayPlan(
        paths=tuple(paths),
        speed=None if speed == math.inf else speed,
        run_name=None if keep_ids else secrets.token_hex(3),
        keeps_times=keep_times,
        agent=agent,
        goals="sample" if goals is None and all(map(is_sample, paths)) else goals,
    )
    amount = amount_of(plan)
    if plan.run_name is not None:
        given = {
            "--folder": folder,
            "--bootstrap": bootstrap,
            "--topic-prefix": topic_prefix,
            "--config": config,
        }
        options = "".join(f" {name} {value}" for name, value in given.items() if value is not None)
        others = f"; the others end with {plan.run_name}-2 and so on" if amount.calls > 1 else ""
        say(f"To see it: callgauge call {plan.run_name}-1{options}{others}.")
    console = error_console()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("events"),
    )
    bar = Progress(*columns, TimeRemainingColumn(), console=console)
    with bar if console.is_terminal else nullcontext():
        task = bar.add_task(_calls_text(0, amount.calls), total=amount.events)

        def show(progress: PlayProgress) -> None:
            text = _calls_text(progress.calls_finished, amount.calls)
            bar.update(task, completed=progress.events_published, description=text)

        calls = calls_to_play(plan, wall_clock_ms)
        completed, progress = asyncio.run(
            publish_calls(
                settings,
                "callgauge.replay",
                lambda: calls,
                plan.speed,
                show=show,
                max_open_calls=concurrent,
                folder=folder,
            )
        )
    if not completed:
        say(f"Stopped: {progress.events_published} of {amount.events} events were sent.")
        raise typer.Exit(STOPPED_BY_SIGNAL)
    say(
        f"Played {counted(progress.calls_finished, 'call')}, {progress.events_published} events, "
        f"to {folder or settings.bootstrap}."
    )


def _watch(
    settings: "Settings",
    paths: list[Path],
    position: Path | None,
    facts: "WatchedFacts",
    folder: Path | None,
) -> None:
    """Follows one path.

    Raises:
        Exit: A signal came before all was sent, or calls of the past were left out.
    """
    from streamer.sources.watch import WatchError, watch

    path = paths[0]
    if len(paths) > 1 or not path.exists():
        seen = (
            f"{len(paths)} paths were named"
            if len(paths) > 1
            else "there is no such file or folder"
        )
        raise WatchError(
            f"{path}: {seen}, so nothing is watched. Name one: the folder that EVA writes the run "
            "to (output/<run>), a folder of files, or a file; make it if nothing is written yet."
        )
    beside = (
        path / POSITION_FILE if path.is_dir() else path.with_name(f".{path.name}{POSITION_FILE}")
    )
    is_over, progress = asyncio.run(watch(settings, path, position or beside, facts, folder))
    say(f"{'The run is over' if is_over else 'Stopped'}: {progress}.")
    if not is_over and progress.waiting:
        say("Run the same command again to continue.")
        raise typer.Exit(STOPPED_BY_SIGNAL)
    if progress.past_calls:
        raise typer.Exit(1)


def _require_one_kind(context: typer.Context, *, from_topics: bool, watches: bool) -> None:
    """Refuses options that mean nothing in this kind of replay."""
    for names, other, is_excluded in (
        (_OF_RECORDINGS | _OF_PLAYING | _OF_WATCHING, "--from-topics", from_topics),
        (_OF_PLAYING, "--watch", watches),
    ):
        if is_excluded and (given := _given(context, names)):
            raise typer.BadParameter(f"{names[given[0]]} cannot be combined with {other}.")
    for names, other, is_there in (
        (_OF_PAST_TRAFFIC, "--from-topics", from_topics),
        (_OF_WATCHING, "--watch", watches),
    ):
        if not is_there and (given := _given(context, names)):
            raise typer.BadParameter(f"{names[given[0]]} is of use only with {other}.")


def _given(context: typer.Context, names: Iterable[str]) -> list[str]:
    """Which of these parameters stand on the command line."""
    sources = {name: context.get_parameter_source(name) for name in names}
    return [
        name
        for name, source in sources.items()
        if source is not None and source.name == "COMMANDLINE"
    ]


def _calls_text(finished: int, of: int) -> str:
    return f"{finished}/{of} calls"
