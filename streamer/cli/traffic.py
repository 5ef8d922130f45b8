"""The commands that put events on topics, `replay` and `simulate`; `replay --from-topics` evaluates what is there."""

import asyncio
import math
import secrets
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from consumers.runtime.kafka.access import require_access
from consumers.runtime.stopping import first_of
from streamer.cli.backtest import run_backtest
from streamer.cli.exit_codes import STOPPED_BY_SIGNAL
from streamer.cli.options import AgentOption, BootstrapOption, ConfigOption, PrefixOption, settings_from, with_example
from streamer.cluster.rights import TRAFFIC_NEEDS
from streamer.operations.backtest.run import DEFAULT_INTO
from streamer.settings.all_settings import Settings
from streamer.signals import over_after, stop_on_signals
from streamer.sources.publisher import MAX_OPEN_CALLS, EventPublisher, PlayProgress, play
from streamer.sources.replay.playback import PlayedCall
from streamer.sources.replay.replayed_calls import ID_MARK, ReplayPlan, amount_of, calls_to_play
from streamer.sources.simulator.traffic import simulated_traffic
from streamer.terminal import error_console, say

REPLAY_HELP: Final = with_example(
    "Play recorded calls onto the topics as if they happened now; or, with --from-topics, evaluate past traffic again.\n\n"
    "Recorded: every call gets a conversation id of its own and is moved to the present by whole seconds, so it can be "
    "played again and again. Calls run side by side.\n\n"
    "Past traffic: calls that closed between --since and --until are read from the input topics again, evaluated with "
    "this version and these settings, written to the topic --into and compared with what `scores` says of them. The "
    "running system is not touched: no group, and nothing in scores. What was known by waiting, dead air and when a call "
    "was over, is taken from the log, and so are the goals of calls; --without-facts decides that anew, for calls that began in "
    "that time. Give this "
    "command the settings to try, for example in the environment. Differences are a result: exit code 0. The inputs must "
    "still have the calls, what was written more than a day after a call's end is not compared, and calls of which an older schema "
    "version of `scores` was written are left out.",
    "callgauge replay records/1.1.2 --speed 20",
    "callgauge replay calls.jsonl.gz --speed max --agent booking-bot",
    "callgauge replay records --goals '{id}'",
    "callgauge replay --from-topics --since 2h",
    "CALLGAUGE_LIMITS__DEAD_AIR_MS=2000 callgauge replay --from-topics --since 2026-08-01 --until 2026-08-02 --without-facts",
)
SIMULATE_HELP: Final = with_example(
    "Put simulated calls onto the topics in real time, the awkward ones included: barge-ins, empty sessions, late, "
    "missing and repeated events, slow tools.\n\nThe same seed makes the same calls. Ctrl-C ends it.",
    "callgauge simulate --calls 20 --seconds 60 --seed 7",
)

PAST_PANEL: Final = "Past traffic"
_OF_RECORDINGS: Final = {
    "paths": "PATH",
    "speed": "--speed",
    "keep_ids": "--keep-ids",
    "keep_times": "--keep-times",
    "agent": "--agent",
    "goals": "--goals",
    "concurrent": "--calls",
}
_OF_PAST_TRAFFIC: Final = {
    "since": "--since",
    "until": "--until",
    "into": "--into",
    "without_facts": "--without-facts",
    "as_json": "--json",
}
_REFRESH_SECONDS: Final = 0.1


def _speed(text: str) -> float:
    """A speed as typed; infinity stands for `max`."""
    try:
        speed = math.inf if text == "max" else float(text)
    except ValueError:
        speed = 0.0
    if not speed > 0 or (speed == math.inf and text != "max"):
        raise typer.BadParameter(f"{text!r} is no speed: give a number above 0, for example 20, or max.")
    return speed


def replay(
    context: typer.Context,
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="PATH...",
            help="EVA record directories, wire-level .jsonl(.gz) files, and .json(.gz) records of ElevenLabs agents or folders of them.",
        ),
    ] = None,
    *,
    speed: Annotated[
        float, typer.Option("--speed", metavar="N|max", parser=_speed, help="How many times faster than they happened.")
    ] = 1.0,  # the parser gets the default too
    keep_ids: Annotated[
        bool, typer.Option("--keep-ids", help="Keep the recorded conversation ids; playing twice is then a repeat.")
    ] = False,
    keep_times: Annotated[
        bool,
        typer.Option(
            "--keep-times", help="Keep the recorded times; the evaluator refuses old ones unless its limit is off."
        ),
    ] = False,
    agent: AgentOption = None,
    goals: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help=f"Goal set for calls whose recording names none; {ID_MARK} in it is the recorded id."
        ),
    ] = None,
    concurrent: Annotated[
        int, typer.Option("--calls", metavar="N", min=1, max=MAX_OPEN_CALLS, help="Calls at the same time, at most.")
    ] = 200,
    from_topics: Annotated[
        bool,
        typer.Option("--from-topics", help="Evaluate past traffic again and compare.", rich_help_panel=PAST_PANEL),
    ] = False,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN",
            help="From then on: 90s, 30m, 2h or 7d ago, or a UTC time, 2026-08-01T14:30.",
            rich_help_panel=PAST_PANEL,
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(metavar="WHEN", help="Before then; as --since, now unless given.", rich_help_panel=PAST_PANEL),
    ] = None,
    into: Annotated[
        str,
        typer.Option(metavar="TOPIC", help="Where the new records go; it must exist.", rich_help_panel=PAST_PANEL),
    ] = DEFAULT_INTO,
    without_facts: Annotated[
        bool,
        typer.Option("--without-facts", help="Decide dead air and the ends of calls anew.", rich_help_panel=PAST_PANEL),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the differences as one JSON object.", rich_help_panel=PAST_PANEL)
    ] = False,
    bootstrap: BootstrapOption = None,
    topic_prefix: PrefixOption = None,
    config: ConfigOption = None,
) -> None:
    _require_one_kind(context, from_topics=from_topics)
    settings = settings_from(config, bootstrap=bootstrap, topic_prefix=topic_prefix)
    if from_topics:
        run_backtest(settings, since=since, until=until, into=into, obeys_facts=not without_facts, as_json=as_json)
        return
    if not paths:
        raise typer.BadParameter("Missing argument 'PATH...': what to play; or --from-topics to evaluate past traffic.")
    plan = ReplayPlan(
        paths=tuple(paths),
        speed=None if speed == math.inf else speed,
        run_name=None if keep_ids else secrets.token_hex(3),
        keeps_times=keep_times,
        agent=agent,
        goals=goals,
    )
    amount = amount_of(plan)
    console = error_console()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("events"))
    bar = Progress(*columns, TimeRemainingColumn(), console=console)
    with bar if console.is_terminal else nullcontext():
        task = bar.add_task(_calls_text(0, amount.calls), total=amount.events)

        def show(progress: PlayProgress) -> None:
            text = _calls_text(progress.calls_finished, amount.calls)
            bar.update(task, completed=progress.events_published, description=text)

        calls = calls_to_play(plan, _now_ms)
        completed, progress = asyncio.run(
            _publish(settings, "callgauge.replay", lambda: calls, plan.speed, show=show, max_open_calls=concurrent)
        )
    if not completed:
        say(f"Stopped: {progress.events_published} of {amount.events} events were sent.")
        raise typer.Exit(STOPPED_BY_SIGNAL)
    say(f"Played {progress.calls_finished} calls, {progress.events_published} events, to {settings.bootstrap}.")


def _require_one_kind(context: typer.Context, *, from_topics: bool) -> None:
    """Refuses options that say nothing in this kind of replay."""
    strangers = _OF_RECORDINGS if from_topics else _OF_PAST_TRAFFIC
    sources = {name: context.get_parameter_source(name) for name in strangers}
    given = [strangers[name] for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    if given:
        kind = "cannot be combined with" if from_topics else "is of use only with"
        raise typer.BadParameter(f"{given[0]} {kind} --from-topics.")


def simulate(
    calls: Annotated[
        int, typer.Option("--calls", metavar="N", min=1, max=MAX_OPEN_CALLS, help="Calls at the same time.")
    ] = 5,
    seconds: Annotated[
        float | None,
        typer.Option("--seconds", metavar="N", min=0.1, help="End after this long; running calls are cut off."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", help="Decides the calls; printed when not given.")
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="Tenant named in every call.")] = None,
    bootstrap: BootstrapOption = None,
    topic_prefix: PrefixOption = None,
    config: ConfigOption = None,
) -> None:
    settings = settings_from(config, bootstrap=bootstrap, topic_prefix=topic_prefix)
    chosen = secrets.randbelow(1_000_000) if seed is None else seed
    say(f"Simulating {calls} calls at a time, seed {chosen}, to {settings.bootstrap}.")
    console = error_console()
    columns = TextColumn("{task.description}")
    with Progress(columns, console=console) if console.is_terminal else nullcontext() as line:
        task = line.add_task("") if line else None

        def show(progress: PlayProgress) -> None:
            if line is not None and task is not None:
                line.update(task, description=_traffic_text(progress))

        def traffic() -> Iterable[PlayedCall]:
            return simulated_traffic(chosen, concurrent_calls=calls, start_ms=_now_ms(), tenant=tenant)

        _, progress = asyncio.run(_publish(settings, "callgauge.simulator", traffic, 1.0, show=show, seconds=seconds))
    say(f"Simulated: {_traffic_text(progress)}.")


async def _publish(
    settings: Settings,
    ce_source: str,
    calls: Callable[[], Iterable[PlayedCall]],
    speed: float | None,
    *,
    show: Callable[[PlayProgress], None],
    seconds: float | None = None,
    max_open_calls: int = MAX_OPEN_CALLS,
) -> tuple[bool, PlayProgress]:
    """Plays the calls until they are over, the time is, or a signal comes; says whether no signal came, and how far."""
    latest = PlayProgress(0, 0, 0, 0)
    next_look = 0.0

    def on_progress(progress: PlayProgress) -> None:
        nonlocal latest, next_look
        latest = progress
        if (now := time.monotonic()) >= next_look:
            next_look = now + _REFRESH_SECONDS
            show(progress)

    async def work() -> None:
        await require_access(settings.kafka, TRAFFIC_NEEDS)
        async with EventPublisher(settings.kafka, ce_source=ce_source) as publisher:
            playing = play(calls(), publisher, speed=speed, on_progress=on_progress, max_open_calls=max_open_calls)
            await first_of(over_after(seconds), playing)  # closing the publisher has a deadline of its own

    with stop_on_signals() as stop:
        await first_of(stop.wait(), work())
        completed = not stop.is_set()
    show(latest)
    return completed, latest


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _calls_text(finished: int, of: int) -> str:
    return f"{finished}/{of} calls"


def _traffic_text(progress: PlayProgress) -> str:
    return (
        f"{progress.calls_started - progress.calls_finished} calls running, {progress.calls_finished} over, "
        f"{progress.events_published} events sent"
    )
