"""The work of the command `top`: watches the calls, and shows them."""

import asyncio
import json
from collections.abc import Callable
from typing import Final

import typer
from rich.live import Live

from consumers.runtime.process import first_of, wall_clock_ms
from streamer.operations.live_calls.shown import calls_document, live_screen, plain_table
from streamer.operations.live_calls.watching import WatchedCalls
from streamer.settings.all_settings import Settings
from streamer.signals import stop_on_signals
from streamer.terminal import output_console

REFRESH_SECONDS: Final = 0.25
PLAIN_SECONDS: Final = 5.0
"""From one table to the next where there is no terminal."""


async def watch(settings: Settings, since_ms: int, *, once: bool, as_json: bool) -> None:
    """Reads the topic, and shows the calls until a signal; with `once` a single time."""
    watched = WatchedCalls(since_ms)
    place = f"topic {settings.kafka.topic('scores')} at {settings.bootstrap}"
    show = _print_json if as_json else _print_once if once else _show
    with stop_on_signals() as stop:
        await first_of(stop.wait(), watched.read(settings.kafka), show(watched, place))


async def _print_json(watched: WatchedCalls, _place: str) -> None:
    await watched.caught_up.wait()
    typer.echo(json.dumps(calls_document(watched, wall_clock_ms()), indent=2))


async def _print_once(watched: WatchedCalls, place: str) -> None:
    await watched.caught_up.wait()
    output_console().print(plain_table(watched, place, wall_clock_ms()))


async def _show(watched: WatchedCalls, place: str) -> None:
    """Shows the calls until cancelled: a screen on a terminal, otherwise a table every few seconds."""
    await watched.caught_up.wait()
    console = output_console()
    if not console.is_terminal:
        await _again_and_again(lambda: console.print(plain_table(watched, place, wall_clock_ms())), PLAIN_SECONDS)
    with Live(console=console, auto_refresh=False) as live:
        await _again_and_again(
            lambda: live.update(
                live_screen(watched, place, wall_clock_ms(), width=console.width, height=console.height), refresh=True
            ),
            REFRESH_SECONDS,
        )


async def _again_and_again(show: Callable[[], None], seconds: float) -> None:
    while True:
        show()
        await asyncio.sleep(seconds)
