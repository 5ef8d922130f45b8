"""The running calls of the topics as a table."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition
from rich.console import Group, RenderableType
from rich.live import Live

from consumers.runtime.kafka.connection import KafkaSettings, partition_counts
from consumers.runtime.kafka.ranges import STALL_SECONDS, onlooker
from consumers.runtime.process import first_of, wall_clock_ms
from consumers.view.words import counted
from schemas.owners import row_in
from schemas.rows import CallRow, GoalsRow, Row, RowError, decode
from schemas.scores.running import (
    EVERY_CALL,
    CallTable,
    KnownTime,
    ShownCalls,
    WantedCalls,
    call_list,
    running_now,
)
from schemas.topics import SCORES_TOPIC
from streamer.cluster.readers import CLOCK_MARGIN_MS, POLL_MS
from streamer.roles.demo_view import MOST_NEWS, PLAIN_LINES, News, Totals, screen
from streamer.settings.all_settings import Settings
from streamer.signals import stop_on_signals
from streamer.terminal import FILE_COLUMNS, Screen, output_console, print_document

# Reads `scores` as it grows, for a table of the running calls. It uses no consumer group, so it
# disturbs no other reader.

MAX_RECORDS_PER_POLL: Final = 500


class CallsOnScreen:
    """The calls with a record since a moment, as far as `scores` was read.

    Attributes:
        table: The calls, with those that were not asked for.
        totals: Totals of the calls that are asked for.
        news: The newest lines of note of the calls that are asked for.
        known: Up to when what happened is known.
        unreadable: Values that are no rows: of another program or of a newer version.
        since_ms: Rows of what was known before are left out.
        caught_up: Set when the records that were there at the start are read.
    """

    def __init__(self, since_ms: int, wanted: WantedCalls = EVERY_CALL) -> None:
        """Rows of what was known before `since_ms` are left out."""
        self.table = CallTable()
        self.totals = Totals()
        self.news = News()
        self.known = KnownTime()
        self.unreadable = 0
        self.caught_up = asyncio.Event()
        self.since_ms = since_ms
        self._wanted = wanted

    def read_record(self, value: bytes) -> None:
        """Takes in the value of one record."""
        try:
            row = decode(value)
        except RowError:
            self.unreadable += 1
            return
        self.take_row(row)

    def take_row(self, row: Row) -> None:
        """Takes in a row."""
        if isinstance(row, GoalsRow):
            self.news.tell(row)
            return
        if row.known_ms < self.since_ms:
            return
        self.known.note(row.known_ms)
        if isinstance(row, CallRow):
            self.table.put_row(row)
        if self._wanted.include(row.labels):
            self.totals.count_row(row)
            self.news.tell(row)

    def shown(self, now_ms: int) -> ShownCalls:
        """The calls that are asked for as they are now."""
        return running_now(self.table, self.known, now_ms).chosen(self._wanted)

    async def read(self, kafka: KafkaSettings) -> None:
        """Reads until cancelled.

        Raises:
            KafkaUnreachableError: No broker answers, it refuses, or it delivers nothing although
                there are more records.
            TopicsUnfitError: The topic does not exist.
        """
        counts = await partition_counts(kafka, [SCORES_TOPIC])
        partitions = [
            TopicPartition(kafka.topic(SCORES_TOPIC), number)
            for number in range(counts[SCORES_TOPIC])
        ]
        async with onlooker(
            kafka, "top", auto_offset_reset="earliest", fetch_max_wait_ms=POLL_MS
        ) as consumer:
            consumer.assign(partitions)
            behind = await consumer.end_offsets(partitions)
            await self._go_back(consumer, behind)
            clock = asyncio.get_running_loop().time
            patience = clock() + STALL_SECONDS
            while True:
                batches = await consumer.getmany(
                    timeout_ms=POLL_MS, max_records=MAX_RECORDS_PER_POLL
                )
                for records in batches.values():
                    for record in records:
                        if isinstance(record.value, bytes):
                            self.read_record(record.value)
                        elif (of_partition := row_in(record.headers)) is not None:
                            self.known.take_partition(
                                record.partition, of_partition.known_ms, of_partition.event_ms
                            )
                if self.caught_up.is_set():
                    continue
                # By position, not by record: a transaction's marker has an offset and is no record.
                behind = {
                    tp: end for tp, end in behind.items() if await consumer.position(tp) < end
                }
                if not behind:
                    self.caught_up.set()
                elif batches:
                    patience = clock() + STALL_SECONDS
                elif clock() > patience:
                    raise TimeoutError(f"nothing more of {SCORES_TOPIC} for {STALL_SECONDS:.0f} s")

    async def _go_back(self, consumer: AIOKafkaConsumer, ends: dict[TopicPartition, int]) -> None:
        """Moves each partition to its first record of the time."""
        found = await consumer.offsets_for_times(
            dict.fromkeys(ends, max(0, self.since_ms - CLOCK_MARGIN_MS))
        )
        for tp, at in found.items():
            consumer.seek(tp, at.offset if at else ends[tp])


# The watched calls as a screen, as plain lines and as JSON. Pure: values in, text out.

EVERY_ROW = 10_000
"""Height of a table that is no screen: no row is left out."""
MOST_HEALTHY_ROWS: Final = 25
"""Rows of a table for a file up to which healthy calls are listed behind those in trouble; beyond
it they are counted by agent.
"""


def live_screen(
    watched: CallsOnScreen, place: str, now_ms: int, *, width: int, height: int
) -> RenderableType:
    """The calls as they are now, for a terminal of this size; `place` says where they come from."""
    shown = watched.shown(now_ms)
    return screen(
        headline(watched, shown, place),
        shown.calls,
        now_ms,
        width=width,
        height=height,
        totals=watched.totals.text(),
        news=watched.news.newest(MOST_NEWS),
        is_stale=shown.is_stale,
    )


def plain_table(
    watched: CallsOnScreen, place: str, now_ms: int, width: int = FILE_COLUMNS
) -> RenderableType:
    """The calls as they are now, without news and legend, in lines of so many characters: every
    call in trouble, the others up to a bound.
    """
    shown = watched.shown(now_ms)
    rows = max(MOST_HEALTHY_ROWS, shown.bad) if shown.is_ranked else EVERY_ROW
    table = screen(
        watched.totals.text(),
        shown.calls,
        now_ms,
        width=width,
        height=rows + PLAIN_LINES,
        wraps=True,
    )
    return Group(headline(watched, shown, place), table)


def calls_document(watched: CallsOnScreen, now_ms: int) -> Any:
    """The calls as they are now, for a program: a `CallList`."""
    shown = watched.shown(now_ms)
    listing = call_list(
        watched.table,
        shown,
        now_ms,
        newest_ms=watched.known.newest_ms,
        ended=watched.totals.ends.total(),
        unreadable=watched.unreadable,
    )
    return msgspec.to_builtins(listing)


def headline(watched: CallsOnScreen, shown: ShownCalls, place: str) -> str:
    """How many calls run and are in trouble, how old that is, and the place that it is from."""
    unreadable = f", {watched.unreadable} records not understood" if watched.unreadable else ""
    dropped = (
        f", {watched.table.calls_dropped} calls left out" if watched.table.calls_dropped else ""
    )
    ended = f", {shown.ended_badly} ended badly" if shown.ended_badly else ""
    counts = f"{counted(shown.running, 'call')} running, {shown.bad} in trouble{ended}"
    parts = (shown.age, counts) if shown.is_stale else (counts, shown.age)
    return f"{', '.join(parts)}, {place}{unreadable}{dropped}"


# The work of the command `top`: watches the calls, and shows them.

REFRESH_SECONDS: Final = 0.25
PLAIN_SECONDS: Final = 5.0
"""From one table to the next where there is no terminal."""


async def watch(
    settings: Settings,
    since_ms: int,
    wanted: WantedCalls,
    show: "Shows",
    folder: Path | None = None,
) -> None:
    """Reads the topic, or the folder of a `serve`, and shows the wanted calls until that ends, or
    until a signal.
    """
    watched = CallsOnScreen(since_ms, wanted)
    with stop_on_signals() as stop:
        if folder is None:
            place = f"topic {settings.kafka.topic('scores')} at {settings.bootstrap}"
            await first_of(stop.wait(), watched.read(settings.kafka), show(watched, place))
            return
        from streamer.served_calls import watch_in
        from streamer.served_folder import served

        reading = watch_in(watched, served(settings, folder), folder)
        await first_of(stop.wait(), reading, show(watched, str(folder)))


Shows = Callable[[CallsOnScreen, str], Coroutine[Any, Any, None]]
"""Shows calls that are read from a place, once or until it is cancelled."""


async def print_json(watched: CallsOnScreen, _place: str) -> None:
    """Prints the calls once, for programs."""
    await watched.caught_up.wait()
    print_document(calls_document(watched, wall_clock_ms()), indent=2)


async def print_rows(parquet: Path | None, watched: CallsOnScreen, _place: str) -> None:
    """Prints the calls once as rows, or writes them to a file."""
    from streamer.tables import RUNNING_COLUMNS, RunningCall, print_table, row_of

    await watched.caught_up.wait()
    at_ms = wall_clock_ms()
    calls = watched.shown(at_ms).calls
    print_table(
        RUNNING_COLUMNS,
        (row_of(RUNNING_COLUMNS, RunningCall(call, at_ms)) for call in calls),
        parquet,
    )


async def print_once(watched: CallsOnScreen, place: str) -> None:
    """Prints the calls once, for a person."""
    await watched.caught_up.wait()
    console = output_console()
    console.print(plain_table(watched, place, wall_clock_ms(), console.width))


async def show_live(
    watched: CallsOnScreen, place: str, console: Screen | None = None, lines_above: int = 0
) -> None:
    """Shows the calls until cancelled, on standard output or a console: a screen on a terminal,
    otherwise a table every few seconds. `lines_above` of the terminal are left to what was printed
    last.
    """
    await watched.caught_up.wait()
    console = console or output_console()
    if not console.is_terminal:
        await _again_and_again(
            lambda: console.print(plain_table(watched, place, wall_clock_ms())), PLAIN_SECONDS
        )
    with Live(console=console, auto_refresh=False) as live:
        await _again_and_again(
            lambda: live.update(
                live_screen(
                    watched,
                    place,
                    wall_clock_ms(),
                    width=console.width,
                    height=console.height - lines_above,
                ),
                refresh=True,
            ),
            REFRESH_SECONDS,
        )


async def _again_and_again(show: Callable[[], None], seconds: float) -> None:
    while True:
        show()
        await asyncio.sleep(seconds)
