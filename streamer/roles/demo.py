"""The demo: simulated calls, every role in one process, and what happens on the screen."""

import asyncio
import heapq
import itertools
import os
import shutil
import socket
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from rich.text import Text

from consumers.engine.redaction.redactor import Redactor
from consumers.log.file import FileLog
from consumers.runtime.logs import configure_logging
from consumers.runtime.process import end_tasks, first_of, wall_clock_ms
from streamer.goals.files import SIMULATED_GOALS
from streamer.live_calls import CallsOnScreen, show_live
from streamer.roles.serving import OneMachine
from streamer.settings.all_settings import Settings
from streamer.signals import over_after, stop_on_signals
from streamer.sources.publisher import PlayProgress, play, record_of
from streamer.sources.replay import PlayedCall, WireEvent
from streamer.sources.simulator.profile import HEALTHY, LLM_SLOW_MS, Incident, with_incidents
from streamer.sources.simulator.traffic import simulated_traffic
from streamer.terminal import Screen

# A head start of the demo: the past of calls that are under way, written before any role reads, so
# that the first screen is full.

HEAD_START_MS: Final = 60_000
"""Age of the oldest call at the first screen: it has had answers, a goal and an interruption by
then.
"""


def split_at(
    traffic: Iterator[PlayedCall], head_ms: int
) -> tuple[list[tuple[str, WireEvent]], Iterator[PlayedCall]]:
    """Splits traffic at a moment.

    Args:
        traffic: Calls in the order in which they start.
        head_ms: The moment, in milliseconds since the traffic began.

    Returns:
        The events before it, each with its conversation id, in the order of their arrival; and the
        calls from then on, with starts that count from the moment. Calls that are under way come
        first, with the rest of their events.
    """
    past: list[tuple[int, int, str, WireEvent]] = []
    under_way: list[PlayedCall] = []
    later: Iterator[PlayedCall] = iter(())
    numbers = itertools.count()
    for call in traffic:
        if call.start_offset_ms >= head_ms:
            later = itertools.chain([call], traffic)
            break
        begins_ms = call.events[0].arrival_ms - call.start_offset_ms
        cut = [event for event in call.events if event.arrival_ms - begins_ms < head_ms]
        past += ((event.arrival_ms, next(numbers), call.conversation_id, event) for event in cut)
        if rest := call.events[len(cut) :]:
            offset_ms = rest[0].arrival_ms - begins_ms - head_ms
            under_way.append(replace(call, events=rest, start_offset_ms=offset_ms))
    moved = (replace(call, start_offset_ms=call.start_offset_ms - head_ms) for call in later)
    under_way.sort(key=lambda call: call.start_offset_ms)
    return [(call, event) for _, _, call, event in sorted(past)], heapq.merge(
        under_way, moved, key=lambda call: call.start_offset_ms
    )


async def write_past(past: Sequence[tuple[str, WireEvent]], folder: Path, began_ms: int) -> None:
    """Writes events into a log as their producers had sent them then: each stands there at the time
    of its arrival, among ticks.
    """
    now_ms = began_ms
    written = FileLog(folder, clock_ms=lambda: now_ms)
    written.open()
    try:
        for until_ms, events in groupby(
            past, key=lambda each: each[1].arrival_ms // PAST_TICK_MS * PAST_TICK_MS
        ):
            now_ms = until_ms
            await written.append([record_of(call, event, CE_SOURCE) for call, event in events])
            await written.tick()
    finally:
        await written.close()


class LogPublisher:
    """Appends played events to the log of this process."""

    def __init__(self, log: FileLog) -> None:
        self._log = log
        self._waiting: set[asyncio.Task[None]] = set()

    async def publish(self, conversation_id: str, event: WireEvent) -> None:
        """Appends one event, behind those before it."""
        if len(self._waiting) >= MAX_WAITING:
            await self.flush()
        task = asyncio.create_task(self._log.append([record_of(conversation_id, event, CE_SOURCE)]))
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)

    async def flush(self) -> None:
        """Waits until all are on the disk."""
        if self._waiting:
            await asyncio.gather(*self._waiting)


# The demo: `serve` in a temporary folder, simulated calls in real time, and a table of the calls.
#
# The first calls are a minute old when it begins, so that there is something to see at once. One
# agent is in trouble on purpose.

IN_TROUBLE: Final = "internet-outage"
"""The agent whose model is slow on purpose, so that a trouble is seen beside three agents without
one.
"""
TROUBLES: Final = (Incident("llm_slow", IN_TROUBLE),)
TROUBLE: Final = f"its model is {LLM_SLOW_MS // 1000} s late, on purpose"
PORTS_TRIED: Final = 20
"""Ports from the given one on, of which the first free one is taken: 8080 is often in use."""
KEEPS_NOTHING: Final = (
    "Calls are kept in a temporary folder: when the program ends, all of it is gone."
)
PAST_TICK_MS: Final = 500
"""Between two ticks of the head start."""
MAX_WAITING: Final = 500
"""Events on their way to the disk."""
NEXT_STEPS: Final = """
Next{}:
  callgauge report sample    one page about a recorded call: who spoke when, why the caller waited, goals, scores
  callgauge score sample     the records behind it, as JSON
  callgauge serve            does all this with the calls of your agents; `callgauge run` does it on Kafka
"""
COMMAND_NAME: Final = "callgauge"
CE_SOURCE: Final = "callgauge.demo"


class Demo:
    """One showing, from the broker to the table."""

    def __init__(
        self, settings: Settings, console: Screen, *, concurrent_calls: int, seed: int
    ) -> None:
        """The broker of the settings is not used; the seed decides the calls."""
        self._settings = _with_goals(settings)
        self._console = console
        self._concurrent_calls = concurrent_calls
        self._seed = seed
        self._watched = CallsOnScreen(0)
        self._events_published = self._past_events = 0
        self._page_url = ""

    async def run(self, seconds: float | None) -> None:
        """Shows calls until cancelled, or for so many seconds of traffic.

        Raises:
            OperatorError: The broker did not come up.
            AddressInUseError: The HTTP address is taken.
            Exception: The failure of a role.
        """
        self._say(
            "callgauge demo: calls are scored while they run. Callers and agents are simulated. "
            f"{IN_TROUBLE} is in trouble: {TROUBLE}."
        )
        self._say(f"{KEEPS_NOTHING} Ctrl-C ends it.")
        if self._settings.judge.is_on:
            judge = self._settings.judge
            self._say(
                f"A key is set, so the judge is on: {judge.model} at {judge.base_url} judges a "
                "subgoal of each call."
            )
        self._take_a_free_port()
        with TemporaryDirectory(prefix="callgauge-demo-", ignore_cleanup_errors=True) as place:
            folder = Path(place)
            calls = await self._write_the_past(folder, wall_clock_ms())
            http = self._settings.http
            machine = OneMachine(
                self._settings, folder, http.host, http.port, watch=self._watched.take
            )
            await first_of(machine.run(asyncio.Event()), self._show(machine, calls, seconds))

    def _say(self, text: str) -> None:
        self._console.print(text, soft_wrap=not self._console.is_terminal)

    def _take_a_free_port(self) -> None:
        """Moves on to the next free port if the given one is taken, and says so."""
        host, wanted = self._settings.http_host, self._settings.http_port
        free = next(
            (
                port
                for port in range(wanted, wanted + PORTS_TRIED)
                if not wanted or _is_free(host, port)
            ),
            wanted,
        )
        if free != wanted:
            self._say(f"Port {wanted} is taken, so /metrics is on port {free}.")
            self._settings = self._settings.model_copy(update={"http_port": free})

    async def _write_the_past(self, folder: Path, now_ms: int) -> Iterator[PlayedCall]:
        """Writes the events of the head start, and returns the calls from now on."""
        began_ms = now_ms - HEAD_START_MS
        traffic = simulated_traffic(
            self._seed,
            concurrent_calls=self._concurrent_calls,
            start_ms=began_ms,
            environment="demo",
            profile_of=with_incidents(HEALTHY, TROUBLES),
        )
        past, calls = split_at(traffic, HEAD_START_MS)
        await write_past(past, folder, began_ms)
        self._past_events = self._events_published = len(past)
        return calls

    async def _show(
        self, machine: OneMachine, calls: Iterator[PlayedCall], seconds: float | None
    ) -> None:
        # the calls go on while the roles start
        playing = asyncio.create_task(self._play(machine, calls))
        try:
            await machine.ready.wait()
            self._page_url = f"{machine.address}/"
            self._say(f"See the calls: {self._page_url}   Metrics: {machine.address}/metrics")
            self._watched.caught_up.set()
            showing = show_live(self._watched, self._page_url, self._console)
            await first_of(over_after(seconds), _result_of(playing), showing)
        finally:
            await end_tasks([playing])
            if self._page_url:
                self._sum_up()

    async def _play(self, machine: OneMachine, calls: Iterator[PlayedCall]) -> None:
        await play(calls, LogPublisher(machine.log), speed=1.0, on_progress=self._on_progress)

    def _on_progress(self, progress: PlayProgress) -> None:
        self._events_published = self._past_events + progress.events_published

    def _sum_up(self) -> None:
        ended, running = self._watched.totals.ends.total(), self._watched.table.calls_running
        self._say(
            f"Over: {ended} calls ended, {running} were running, {self._events_published} events "
            "were sent."
        )
        self._console.print(self._watched.totals.by_agent(IN_TROUBLE))
        self._say(f"{IN_TROUBLE}: {TROUBLE}.")
        self._console.print(Text(NEXT_STEPS.format(place_of_command())), soft_wrap=True, end="")


def place_of_command() -> str:
    """Returns a remark about the place of the command where a shell does not find it by its name,
    as after `make demo`.
    """
    program = Path(sys.argv[0])
    if program.name != COMMAND_NAME or shutil.which(COMMAND_NAME):
        return ""
    return f" ({COMMAND_NAME} is {os.path.relpath(program)})"


async def _result_of(task: asyncio.Task[None]) -> None:
    await task


def _is_free(host: str, port: int) -> bool:
    """Whether a server could listen there now."""
    try:
        with socket.create_server((host, port)):
            return True
    except OSError:
        return False


def _with_goals(settings: Settings) -> Settings:
    """The settings with the goals of the simulated calls: a person's own would not fit them."""
    folder = SIMULATED_GOALS / "judged" if settings.judge.is_on else SIMULATED_GOALS
    goals = settings.goals.model_copy(update={"folder": folder, "reads_topic": False})
    return settings.model_copy(update={"goals": goals})


# The work of the command `demo`: runs it until a signal.


async def run_demo(
    settings: Settings, console: Screen, seconds: float | None, calls: int, seed: int
) -> None:
    """Runs the demo for some seconds; None means until a signal."""
    configure_logging(settings.log_format, "warning", redact=Redactor(settings.redaction).redact)
    with stop_on_signals() as stop:
        await first_of(
            stop.wait(), Demo(settings, console, concurrent_calls=calls, seed=seed).run(seconds)
        )
