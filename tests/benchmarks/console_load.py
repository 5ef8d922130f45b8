"""What the console costs: 5,000 running calls, 300 pages of them, 100 pages of calls that go on, and the end with all open.

The site serves over real sockets to readers in another process; its calls are in memory, so that its own work is measured
and not Kafka's.
"""

import asyncio
import multiprocessing
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from itertools import count
from multiprocessing.process import BaseProcess
from typing import Final

import structlog
from prometheus_client import CollectorRegistry

from consumers.console.fleet import Fleet
from consumers.console.pages import now_boxes
from consumers.console.service import ConsoleRole
from consumers.console.settings import ConsoleSettings
from consumers.console.site import ConsoleSite
from consumers.console.watched import WatchedCall
from consumers.engine.admission import Arrival, admit
from consumers.engine.evaluator import NO_LIMITS
from consumers.engine.redaction.redactor import Redactor
from consumers.runtime.http import HttpListener
from consumers.runtime.process import wall_clock_ms
from consumers.runtime.registry import Instruments
from schemas.scores.records import AnyScoreRecord
from schemas.scores.running import EVERY_CALL, WantedCalls
from tests.benchmarks.figures import Figures, say
from tests.benchmarks.traffic import interleaved, simulated_events
from tests.support.calls.watched_calls import Input, scores_of
from tests.support.fakes.watched import HeldCalls

CALLS: Final = 5_000
PAGES: Final = 300
WATCHED: Final = 100
KINDS: Final = 30
"""Different calls that are simulated; the others are copies under other names."""
CHANGES_PER_SECOND: Final = 1_000
"""Score records of one second: each call has one every five."""
SECONDS: Final = 30.0
STEP_SECONDS: Final = 0.1
REPEATS: Final = 5


def measure_console(figures: Figures) -> None:
    """Measures all of it."""
    say()
    say(f"The console: {CALLS:,} running calls, {PAGES} pages of them, {WATCHED} pages of calls")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("warning"))  # without who opened which call
    asyncio.run(_measure(figures))


async def _measure(figures: Figures) -> None:
    fleet, changes = _running_calls()
    _measure_list(figures, fleet)
    async with _serving(fleet, {}) as (site, listener):
        figures.add(
            "console_first_byte_ms",
            1_000 * await _first_byte_seconds(listener),
            "first byte of the page of running calls",
            "ms",
            goal=500,
        )
        with _readers(listener, ["/live/now"] * PAGES):
            await _until(lambda: len(site.streams) == PAGES)
            share = await _share(_change(fleet, changes))
            figures.add(
                "console_now_core_share", 100 * share, f"{PAGES} pages of running calls, of a core", "%", goal=10
            )
            began = time.perf_counter()
            site.streams.close()
            await listener.stop()
            figures.add(
                "console_stop_seconds", time.perf_counter() - began, f"end with {PAGES} streams open", "s", goal=2
            )
    calls = {f"call-{number}": WatchedCall(f"call-{number}", NO_LIMITS, Redactor()) for number in range(WATCHED)}
    async with _serving(Fleet(), calls) as (site, listener):
        feed = _feed(calls)
        await anext(feed)
        with _readers(listener, [f"/live/calls/{name}" for name in calls]):
            await _until(lambda: len(site.streams) == WATCHED)
            figures.add(
                "console_watched_core_share",
                100 * await _share(feed),
                f"{WATCHED} watched calls, of a core",
                "%",
                goal=50,
            )


def _running_calls() -> tuple[Fleet, deque[AnyScoreRecord]]:
    """Calls two thirds on their way, and further records of them, to be taken again and again."""
    kinds = []
    for seed in range(KINDS):
        arrivals = [each for each in _arrivals(seed) if isinstance(each, Arrival)]
        scores = scores_of(arrivals[: len(arrivals) * 2 // 3])
        kinds.append([record for record in scores if record.name not in {"closed", "call"}])
    fleet, changes, now_ms = Fleet(), deque[AnyScoreRecord](), wall_clock_ms()
    for number in range(CALLS):
        records = kinds[number % KINDS]
        name, late_ms = f"conversation-{number:05}", now_ms - records[-1].caused_at_ms - number % 5_000
        for record in records:
            moved = record.model_copy(update={"conversation_id": name, "caused_at_ms": record.caused_at_ms + late_ms})
            fleet.fold(moved, 0, 0)
        changes.append(moved)
    return fleet, changes


def _arrivals(seed: int) -> Iterable[object]:
    return (admit(source, record, NO_LIMITS) for source, record in interleaved([simulated_events(seed)]))


def _measure_list(figures: Figures, fleet: Fleet) -> None:
    now_ms = wall_clock_ms()
    now = fleet.now(now_ms)
    site = ConsoleSite(ConsoleSettings(), fleet, HeldCalls({}), None, Redactor(), _instruments(), "1")
    tick_ms = 1_000 * min(_spent(lambda: fleet.now(now_ms)) for _ in range(REPEATS))
    figures.add("console_fold_ms", tick_ms, f"state of {CALLS:,} calls", "ms", goal=100)
    for name, wanted in (("every", EVERY_CALL), ("filtered", WantedCalls(text="0123"))):
        boxes_ms = 1_000 * min(
            _spent(partial(now_boxes, site._site("./"), now, wanted, fleet, site.alerts)) for _ in range(REPEATS)
        )
        figures.add(f"console_boxes_{name}_ms", boxes_ms, f"page of them, {name}", "ms", goal=100)


def _spent(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def _instruments() -> Instruments:
    return Instruments(CollectorRegistry(), ["console"])


@asynccontextmanager
async def _serving(fleet: Fleet, calls: dict[str, WatchedCall]) -> AsyncIterator[tuple[ConsoleSite, HttpListener]]:
    instruments = _instruments()
    settings = ConsoleSettings(port=0)
    role = ConsoleRole.__new__(ConsoleRole)  # its ticks and its bounds alone: nothing is read
    role._settings, role._instruments, role._fleet = settings, instruments, fleet
    role._site = ConsoleSite(settings, fleet, HeldCalls(calls), None, Redactor(), instruments, "1")
    listener = role._at(0)
    await listener.start()
    ticking = asyncio.create_task(role._tick())
    try:
        yield role._site, listener
    finally:
        ticking.cancel()
        role._site.streams.close()
        await listener.stop()


async def _first_byte_seconds(listener: HttpListener) -> float:
    """The longest of some, one after the other."""
    host, _, port = listener.address.removeprefix("http://").partition(":")
    longest = 0.0
    for _ in range(REPEATS):
        began = time.perf_counter()
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"GET / HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n".encode())
        await reader.read(1)
        longest = max(longest, time.perf_counter() - began)
        writer.close()
    return longest


async def _share(work: AsyncIterator[None]) -> float:
    """Processor time of this process while it serves and this work is done, as a share of a core."""
    began, spent = time.perf_counter(), time.process_time()
    while time.perf_counter() - began < SECONDS:
        await anext(work)
        await asyncio.sleep(STEP_SECONDS)
    return (time.process_time() - spent) / (time.perf_counter() - began)


async def _change(fleet: Fleet, changes: deque[AnyScoreRecord]) -> AsyncIterator[None]:
    for revision in count(1_000):
        for _ in range(int(CHANGES_PER_SECOND * STEP_SECONDS)):
            record = changes.popleft()
            changes.append(record)
            moved = record.model_copy(update={"caused_at_ms": wall_clock_ms(), "revision": revision})
            fleet.fold(moved, 0, 0)
        yield


async def _feed(calls: dict[str, WatchedCall]) -> AsyncIterator[None]:
    """Gives the calls their events in real time, each begun at another moment before."""
    queues: dict[str, deque[Input]] = {}
    began_ms = wall_clock_ms()
    for number, name in enumerate(calls):
        traffic = interleaved([simulated_events(number % KINDS)])
        first_ms = traffic[0][1].timestamp
        late_ms = began_ms - first_ms - 1_000 * (number % 60)
        for _, record in traffic:
            record.timestamp += late_ms
            record.key = name.encode()
        queues[name] = deque(traffic)
    while True:
        now_ms = wall_clock_ms()
        for name, queue in queues.items():
            while queue and queue[0][1].timestamp <= now_ms:
                calls[name].take_event(*queue.popleft())
        yield


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  # nothing tells of it
            await asyncio.sleep(STEP_SECONDS)  # nothing tells of it


@contextmanager
def _readers(listener: HttpListener, paths: list[str]) -> Iterator[BaseProcess]:
    host, _, port = listener.address.removeprefix("http://").partition(":")
    process = multiprocessing.get_context("spawn").Process(target=_read, args=(host, int(port), paths), daemon=True)
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()


def _read(host: str, port: int, paths: list[str]) -> None:
    """Reads all of these until it is killed, and does nothing with what it reads."""

    async def one(path: str) -> None:
        reader, writer = await asyncio.open_connection(host, port, limit=2**20)
        writer.write(f"GET {path} HTTP/1.1\r\nhost: {host}:{port}\r\n\r\n".encode())
        while await reader.read(2**20):
            pass

    async def every() -> None:
        await asyncio.gather(*(one(path) for path in paths))

    asyncio.run(every())
