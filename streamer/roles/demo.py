"""The demo: `serve` in a temporary folder, a story of simulated calls, and what happens on the
screen.
"""

import asyncio
import heapq
import itertools
import os
import shutil
import socket
import sys
import time
import webbrowser
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Final

from rich.text import Text

from consumers.engine.redaction.redactor import Redactor
from consumers.history.sqlite import SqliteHistory
from consumers.log.file import FileLog
from consumers.runtime.logs import configure_logging
from consumers.runtime.process import end_tasks, first_of, wall_clock_ms
from schemas.units import to_seconds
from streamer.goals.files import SIMULATED_GOALS
from streamer.history.importing import Imported, Importing, imported
from streamer.live_calls import CallsOnScreen, show_live
from streamer.offline.scoring import plan_from, scored
from streamer.recordings.reader import read_recorded_goals
from streamer.roles.demo_story import (
    IN_TROUBLE,
    PRICES,
    TRIED,
    TRIED_BY,
    USUAL_VERSION,
    Step,
    last_days,
    live_calls,
    tell,
)
from streamer.roles.serving import OneMachine
from streamer.roles.serving_command import sends_a_call
from streamer.settings.all_settings import Settings
from streamer.signals import over_after, stop_on_signals
from streamer.sources.publisher import PlayProgress, play, record_of
from streamer.sources.replay import PlayedCall, WireEvent
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


# Calls of the last two days: brought into history in the background, as `history import` brings
# recordings.

CALLS_AT_ONCE: Final = 5
"""Calls that are scored and written in one step."""
PAUSE: Final = 2
"""How many times as long as the work of a step the pause behind it is: a third of a processor at
most, so that live calls are not late.
"""


def keep(store: SqliteHistory, calls: Sequence[Imported]) -> None:
    """Writes scored calls into history."""
    importing = Importing(store)
    for call in calls:
        importing.add(call)
    importing.flush()


async def bring_last_days(machine: OneMachine, settings: Settings, seed: int, now_ms: int) -> int:
    """Brings the calls of the last two days into the history of a machine that is ready; returns
    how many there are.
    """
    goals = await asyncio.to_thread(read_recorded_goals, SIMULATED_GOALS)
    plan = plan_from(settings, goals, writes_transcripts=settings.history.words)
    calls, brought = last_days(seed, now_ms), 0

    def some() -> tuple[list[Imported], float]:
        began_seconds = time.thread_time()
        rows = [imported(scored(each.call, plan)) for each in islice(calls, CALLS_AT_ONCE)]
        return rows, time.thread_time() - began_seconds

    while True:
        rows, worked_seconds = await asyncio.to_thread(some)
        if not rows:
            return brought
        await machine.history.run_on_store(partial(keep, calls=rows))
        brought += len(rows)
        await asyncio.sleep(PAUSE * worked_seconds)


# The browser.

CONTAINER_MARKS: Final = (Path("/.dockerenv"), Path("/run/.containerenv"))
"""Files that Docker and Podman put into a container."""


def why_no_browser(*, is_terminal: bool) -> str | None:
    """Why no browser can show a page here; None if one can."""
    if not is_terminal:
        return "this is no terminal"
    if any(mark.exists() for mark in CONTAINER_MARKS):
        return "this is a container"
    if sys.platform == "linux" and not (
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    ):
        return "there is no DISPLAY"
    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        return "none was found"
    # one of text, which would take the terminal
    return (
        "only one for terminals was found" if type(browser) is webbrowser.GenericBrowser else None
    )


# The demo. Its first calls are a minute old when it begins, so that there is something to see at
# once.

PORTS_TRIED: Final = 20
"""Ports from the given one on, of which the first free one is taken: 8080 is often in use."""
KEEPS_NOTHING: Final = (
    "Calls are kept in a temporary folder: when the program ends, all of it is gone."
)
LEAD_MS: Final = 2_000
"""How long it may take until the calls go on: an event that is sent later than it happens has other
times on the page of its call than in the headline.
"""
PAST_TICK_MS: Final = 500
"""Between two ticks of the head start."""
MAX_WAITING: Final = 500
"""Events on their way to the disk."""
NEXT_STEPS: Final = """
Next{}:
  callgauge serve            does all this with calls of your agents, and prints a line that sends a first one
  callgauge report sample    one page about a recorded call: who spoke when, why the caller waited, goals, scores
  callgauge score sample     the records behind it, as JSON
  callgauge run              does it on Kafka
"""
CONTACTS: Final = {"voice": "#voice-oncall, made up for the demo"}
"""How the team of the story is reached, as an operator sets it in `console.contacts`."""
SAID_SHARE: Final = 4
"""A part of the terminal, one of so many, is left to the lines of the story."""
COMMAND_NAME: Final = "callgauge"
CE_SOURCE: Final = "callgauge.demo"


class Demo:
    """One showing, from the first event to the sum."""

    def __init__(
        self,
        settings: Settings,
        console: Screen,
        *,
        concurrent_calls: int,
        seed: int,
        opens_browser: bool = False,
    ) -> None:
        """The broker of the settings is not used; the seed decides the calls."""
        self._settings = own_settings(settings)
        self._opens_browser = opens_browser
        self._console = console
        self._concurrent_calls = concurrent_calls
        self._seed = seed
        self._watched = CallsOnScreen(0)
        self._events_published = self._past_events = 0
        self._page_url = ""

    async def run(self, seconds: float | None) -> None:
        """Shows calls until cancelled, or for so many seconds of traffic.

        Raises:
            AddressInUseError: The HTTP address is taken.
            Exception: The failure of a role.
        """
        self._say(
            "callgauge demo: calls are scored while they run. Callers and agents are simulated. "
            f"For some minutes {IN_TROUBLE} has a bad version."
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
            folder, now_ms = Path(place), wall_clock_ms() + LEAD_MS
            calls = await self._write_the_past(folder, now_ms)
            http = self._settings.http
            machine = OneMachine(
                self._settings, folder, http.host, http.port, watch=self._watched.read_record
            )
            await first_of(
                machine.run(asyncio.Event()), self._show(machine, folder, calls, now_ms, seconds)
            )

    def _say(self, text: str, *, is_command: bool = False) -> None:
        # A command is copied, so it stays one line.
        self._console.print(text, soft_wrap=is_command or not self._console.is_terminal)

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
            self._say(f"Port {wanted} is taken, so the demo is on port {free}.")
            self._settings = self._settings.model_copy(update={"http_port": free})

    async def _write_the_past(self, folder: Path, now_ms: int) -> Iterator[PlayedCall]:
        """Writes the events of the head start, and returns the calls from now on."""
        began_ms = now_ms - HEAD_START_MS
        traffic = live_calls(self._seed, self._concurrent_calls, began_ms, now_ms)
        past, calls = split_at(traffic, HEAD_START_MS)
        await write_past(past, folder, began_ms)
        self._past_events = self._events_published = len(past)
        return calls

    async def _show(
        self,
        machine: OneMachine,
        folder: Path,
        calls: Iterator[PlayedCall],
        now_ms: int,
        seconds: float | None,
    ) -> None:
        # the calls go on while the roles start
        began_seconds = time.monotonic()
        playing = asyncio.create_task(self._play(machine, calls, now_ms))
        try:
            await machine.ready.wait()
            self._page_url = f"{machine.address}/"
            self._say("From another terminal, a call of your own, and the calls there:")
            self._say(f"  {sends_a_call(machine, folder)}", is_command=True)
            self._say(f"  {COMMAND_NAME} top --folder {folder}", is_command=True)
            self._say(f"See the calls: {self._page_url}   Metrics: {machine.address}/metrics")
            self._open_page()
            self._watched.caught_up.set()
            showing = show_live(
                self._watched, self._page_url, self._console, self._console.height // SAID_SHARE
            )
            telling = tell(partial(self._tell, machine), began_seconds)
            await first_of(
                over_after(seconds),
                _all_of(playing, telling, self._bring_last_days(machine, now_ms)),
                showing,
            )
        finally:
            await end_tasks([playing])
            if self._page_url:
                self._sum_up()

    def _open_page(self) -> None:
        """Opens the page in a browser where there is one, and says whether it does."""
        if not self._opens_browser:
            return
        why = why_no_browser(is_terminal=self._console.is_terminal)
        if why is not None:
            self._say(f"No browser is opened: {why}.")
            return
        self._say("Your browser opens it; --no-browser leaves that out.")
        # It may take seconds, and nothing waits for it, not even the end.
        Thread(target=webbrowser.open, args=(self._page_url,), daemon=True).start()

    def _tell(self, machine: OneMachine, step: Step) -> None:
        """Says a step of the story, here and on the page."""
        said = f"{time.strftime('%H:%M:%S')}  {step.sentence}"
        self._say(f"{said} See {self._page_url}{step.view}")
        machine.console.fleet.note = said

    async def _bring_last_days(self, machine: OneMachine, now_ms: int) -> None:
        brought = await bring_last_days(machine, self._settings, self._seed, now_ms)
        self._say(
            f"{brought} calls of the last two days are there: {self._page_url}past   "
            f"{USUAL_VERSION} and {TRIED} of {TRIED_BY}: {self._page_url}versions"
        )

    async def _play(self, machine: OneMachine, calls: Iterator[PlayedCall], now_ms: int) -> None:
        await asyncio.sleep(max(0.0, to_seconds(now_ms - wall_clock_ms())))
        await play(calls, LogPublisher(machine.log), speed=1.0, on_progress=self._on_progress)

    def _on_progress(self, progress: PlayProgress) -> None:
        self._events_published = self._past_events + progress.events_published

    def _sum_up(self) -> None:
        ended, running = self._watched.totals.ends.total(), self._watched.table.calls_running
        self._say(
            f"Over: {ended} calls ended, {running} were running, {self._events_published} events "
            "were sent."
        )
        self._say(self._watched.totals.text())
        self._console.print(Text(NEXT_STEPS.format(place_of_command())), soft_wrap=True, end="")


def place_of_command() -> str:
    """Returns a remark about the place of the command where a shell does not find it by its name,
    as after `make demo`.
    """
    program = Path(sys.argv[0])
    if program.name != COMMAND_NAME or shutil.which(COMMAND_NAME):
        return ""
    return f" ({COMMAND_NAME} is {os.path.relpath(program)})"


async def _all_of(*works: Awaitable[None]) -> None:
    await asyncio.gather(*works)


def _is_free(host: str, port: int) -> bool:
    """Whether a server could listen there now."""
    try:
        with socket.create_server((host, port)):
            return True
    except OSError:
        return False


def own_settings(settings: Settings) -> Settings:
    """The settings with what belongs to the simulated calls: their goals, a history that goes with
    them, and prices and contacts unless a person has set some.
    """
    folder = SIMULATED_GOALS / "judged" if settings.judge.is_on else SIMULATED_GOALS
    goals = settings.goals.model_copy(update={"folder": folder, "reads_topic": False})
    history = settings.history.model_copy(update={"folder": None})
    limits = settings.limits.model_copy(update={"prices": settings.limits.prices or PRICES})
    contacts = settings.console.contacts or CONTACTS
    console = settings.console.model_copy(update={"contacts": contacts})
    return settings.model_copy(
        update={"goals": goals, "history": history, "limits": limits, "console": console}
    )


# The work of the command `demo`: runs it until a signal.


async def run_demo(settings: Settings, demo: Demo, seconds: float | None) -> None:
    """Runs the demo for some seconds; None means until a signal."""
    configure_logging(settings.log_format, "warning", redact=Redactor(settings.redaction).redact)
    with stop_on_signals() as stop:
        await first_of(stop.wait(), demo.run(seconds))
