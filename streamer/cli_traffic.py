"""The commands that put events on topics: `replay` and `simulate`."""

import asyncio
import math
import secrets
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Annotated, Final

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from consumers.runtime.kafka import partition_counts
from consumers.runtime.stopping import first_of
from schemas.codec import InputSource
from schemas.topics import TOPIC_BY_SOURCE
from streamer.cli import STOPPED_BY_SIGNAL
from streamer.cli_options import (
    BootstrapOption,
    ConfigOption,
    PathsArgument,
    PrefixOption,
    error_console,
    say,
    settings_from,
    with_example,
)
from streamer.playback import SOURCES, PlayedCall
from streamer.publisher import MAX_OPEN_CALLS, EventPublisher, PlayProgress, play
from streamer.replay import ReplayPlan, amount_of, calls_to_play
from streamer.settings import Settings
from streamer.signals import over_after, stop_on_signals
from streamer.simulator import simulated_traffic

REPLAY_HELP: Final = with_example(
    "Play recorded calls onto the topics as if they happened now.\n\nEvery call gets a conversation id of its own and "
    "is moved to the present by whole seconds, so it can be played again and again. Calls run side by side.",
    "callgauge replay records/1.1.2 --speed 20",
    "callgauge replay calls.jsonl.gz --speed max --agent booking-bot",
)
SIMULATE_HELP: Final = with_example(
    "Put simulated calls onto the topics in real time, the awkward ones included: barge-ins, empty sessions, late, "
    "missing and repeated events, slow tools.\n\nThe same seed makes the same calls. Ctrl-C ends it.",
    "callgauge simulate --calls 20 --seconds 60 --seed 7",
)

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
    paths: PathsArgument,
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
    agent: Annotated[str | None, typer.Option(help="Agent name for calls whose recording has none.")] = None,
    concurrent: Annotated[
        int, typer.Option("--calls", metavar="N", min=1, max=MAX_OPEN_CALLS, help="Calls at the same time, at most.")
    ] = 200,
    bootstrap: BootstrapOption = None,
    topic_prefix: PrefixOption = None,
    config: ConfigOption = None,
) -> None:
    settings = settings_from(config, bootstrap=bootstrap, topic_prefix=topic_prefix)
    plan = ReplayPlan(
        paths=tuple(paths),
        speed=None if speed == math.inf else speed,
        run_name=None if keep_ids else secrets.token_hex(3),
        keeps_times=keep_times,
        agent=agent,
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
        await partition_counts(settings.kafka, [TOPIC_BY_SOURCE[InputSource(source)] for source in SOURCES])
        publisher = EventPublisher(settings.bootstrap, ce_source=ce_source, topic_prefix=settings.topic_prefix)
        async with publisher:
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
