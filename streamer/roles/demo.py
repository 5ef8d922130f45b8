"""The demo: an embedded broker, simulated calls in real time, every role in this process, and a table of the calls."""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from rich.console import Console, RenderableType
from rich.live import Live

from consumers.runtime.clock import wall_clock_ms
from consumers.runtime.kafka.connection import KafkaSettings
from consumers.runtime.stopping import first_of
from schemas.scores.all_records import SCORE_RECORD
from schemas.topics import SCORES_TOPIC, TOPICS
from streamer.roles.demo_screen import Headline, plain_line, screen
from streamer.roles.demo_table import CallTable
from streamer.roles.embedded_broker import KEEPS_NOTHING, embedded_broker
from streamer.roles.running import Service
from streamer.settings.all_settings import Settings
from streamer.signals import over_after
from streamer.sources.publisher import EventPublisher, PlayProgress, play
from streamer.sources.simulator.profile import HEALTHY, always
from streamer.sources.simulator.traffic import simulated_traffic

REFRESH_SECONDS: Final = 0.25
RATE_WINDOW_SECONDS: Final = 5.0
FETCH_WAIT_MS: Final = 100
MAX_RECORDS_PER_POLL: Final = 500
GOALS_FOLDER: Final = Path(__file__).with_name("demo_goals")
"""Goals of the simulated calls that code checks; in the folder `judged` below it the same with a subgoal for a judge."""


class Demo:
    """One showing, from the broker to the table."""

    def __init__(self, settings: Settings, console: Console, *, concurrent_calls: int, seed: int) -> None:
        """Prepares a showing.

        Args:
            settings: Groups, limits and the HTTP address; the broker of the settings is not used.
            console: Gets the table; plain lines if it is no terminal.
            concurrent_calls: Number of calls that run at the same time.
            seed: Decides the calls.
        """
        self._settings = _with_goals(settings)
        self._console = console
        self._concurrent_calls = concurrent_calls
        self._seed = seed
        self._table = CallTable()
        self._published: deque[tuple[float, int]] = deque(maxlen=64)  # more than the window has refreshes
        self._events_published = 0
        self._metrics_url = ""

    async def run(self, seconds: float | None) -> None:
        """Shows calls until cancelled, or for so many seconds of traffic.

        Raises:
            EmbeddedBrokerError: The broker did not come up.
            AddressInUseError: The HTTP address is taken.
            Exception: The failure of a role.
        """
        self._console.print(f"callgauge demo. {KEEPS_NOTHING} Ctrl-C ends it.", soft_wrap=not self._console.is_terminal)
        if self._settings.judge.is_on:
            judge = self._settings.judge
            text = f"A key is set, so the judge is on: {judge.model} at {judge.base_url} judges a subgoal of each call."
            self._console.print(text, soft_wrap=not self._console.is_terminal)
        with embedded_broker([topic.name for topic in TOPICS]) as bootstrap:
            kafka = KafkaSettings(bootstrap_servers=bootstrap, is_embedded=True)
            service = Service(self._settings, kafka, ("evaluator", "exporter", "judge"))
            try:
                await first_of(service.run(asyncio.Event()), self._show(service, kafka, seconds))
            finally:
                began, ended = self._table.calls_started, self._table.calls_ended
                self._console.print(
                    f"Over: {began} calls began, {ended} ended, {self._events_published} events were sent."
                )

    async def _show(self, service: Service, kafka: KafkaSettings, seconds: float | None) -> None:
        await service.ready.wait()
        self._metrics_url = service.metrics_url
        with self._screen() as refresh:
            await first_of(over_after(seconds), self._play(kafka), self._read(kafka), self._refresh(refresh))

    async def _play(self, kafka: KafkaSettings) -> None:
        calls = simulated_traffic(
            self._seed, concurrent_calls=self._concurrent_calls, start_ms=wall_clock_ms(), environment="demo",
            profile_of=always(HEALTHY),
        )  # fmt: skip
        async with EventPublisher(kafka, ce_source="callgauge.demo") as publisher:
            await play(calls, publisher, speed=1.0, on_progress=self._on_progress)

    async def _read(self, kafka: KafkaSettings) -> None:
        """Reads `scores` from the beginning, without a group: looking on changes nothing."""
        consumer = kafka.consumer(
            "demo", kafka.topic(SCORES_TOPIC), auto_offset_reset="earliest", fetch_max_wait_ms=FETCH_WAIT_MS
        )
        await consumer.start()
        try:
            while True:
                polled = await consumer.getmany(timeout_ms=FETCH_WAIT_MS, max_records=MAX_RECORDS_PER_POLL)
                for records in polled.values():
                    for record in records:
                        self._take(record.value)
        finally:
            await consumer.stop()

    def _take(self, value: bytes) -> None:
        record = SCORE_RECORD.validate_json(value)
        self._table.fold(record)
        if not self._console.is_terminal and (line := plain_line(record)) is not None:
            self._console.print(line, soft_wrap=True)

    async def _refresh(self, refresh: Callable[[], None]) -> None:
        while True:
            self._published.append((time.monotonic(), self._events_published))
            refresh()
            await asyncio.sleep(REFRESH_SECONDS)

    def _on_progress(self, progress: PlayProgress) -> None:
        self._events_published = progress.events_published

    def _headline(self) -> Headline:
        now_seconds = time.monotonic()
        while len(self._published) > 1 and self._published[0][0] < now_seconds - RATE_WINDOW_SECONDS:
            self._published.popleft()
        began_seconds, before = self._published[0]
        rate = (self._events_published - before) / max(now_seconds - began_seconds, REFRESH_SECONDS)
        return Headline(self._metrics_url, self._table.calls_running, self._table.calls_ended, rate)

    @contextlib.contextmanager
    def _screen(self) -> Iterator[Callable[[], None]]:
        """Gives a function that shows the present state: the table, or without a terminal a line each second."""
        console = self._console
        if not console.is_terminal:
            console.print(f"Metrics: {self._metrics_url}", soft_wrap=True)
            next_line_seconds = 0.0

            def print_line() -> None:
                nonlocal next_line_seconds
                if (now_seconds := time.monotonic()) >= next_line_seconds:
                    next_line_seconds = now_seconds + 1
                    self._table.rows(wall_clock_ms())  # lets go of calls that are over
                    console.print(self._headline().text(), soft_wrap=True)

            yield print_line
            return

        def render() -> RenderableType:
            now_ms = wall_clock_ms()
            return screen(
                self._headline(), self._table.rows(now_ms), now_ms, width=console.width, height=console.height
            )

        with Live(console=console, auto_refresh=False, transient=False) as live:
            yield lambda: live.update(render(), refresh=True)


def _with_goals(settings: Settings) -> Settings:
    """The settings with the goals of the simulated calls: a person's own would not fit them."""
    folder = GOALS_FOLDER / "judged" if settings.judge.is_on else GOALS_FOLDER
    goals = settings.goals.model_copy(update={"folder": folder, "reads_topic": False})
    return settings.model_copy(update={"goals": goals})
