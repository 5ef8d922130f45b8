"""What the console costs: 5,000 running calls, 300 pages of them, 100 pages of calls that go on,
and the end with all open.
"""

import asyncio
import multiprocessing
import re
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final
from zlib import crc32

import httpx2 as httpx
from confluent_kafka import Producer
from msgspec import structs
from prometheus_client import CollectorRegistry

from consumers.console.fleet import Fleet
from consumers.console.pages import names_boxes, now_boxes
from consumers.console.settings import ConsoleSettings
from consumers.console.site import ConsoleSite
from consumers.engine.admission import Arrival, admit
from consumers.engine.evaluator import NO_LIMITS
from consumers.engine.redaction.redactor import Redactor
from consumers.runtime.process import wall_clock_ms
from consumers.runtime.registry import Instruments
from schemas.rows import CallRow, GoalsRow, Row, encode
from schemas.scores.running import EVERY_CALL, RunningCalls, WantedCalls
from tests.benchmarks.evaluator_cost import PARTITIONS, create_topics, environment, folded_of
from tests.benchmarks.figures import Figures, say
from tests.benchmarks.traffic import interleaved, simulated_events
from tests.chaos.load.load import LoadProcess
from tests.integration.metrics_page import answer_of, total
from tests.integration.processes import Process, started, wait_for
from tests.support.calls.console_calls import HeldCalls
from tests.support.calls.rows_of_calls import rows_in_steps

CALLS: Final = 5_000
PAGES: Final = 300
WATCHED: Final = 100
KINDS: Final = 30
"""Different calls that are simulated; the others are copies under other names."""
CHANGES_PER_SECOND: Final = 1_000
"""Rows of one second: each call has one every five."""
SECONDS: Final = 60.0
WARM_SECONDS: Final = 15.0
"""Until the calls of the load have begun."""
WINDOW_SECONDS: Final = 8.0
"""How long one cost is measured: the load goes on, and there is nothing to wait for."""
WINDOWS: Final = 12
"""With and without a console each. The mean of so many differs by 2 % from run to run on a quiet
machine.
"""
STEP_SECONDS: Final = 0.1
REPEATS: Final = 5


def measure_console(figures: Figures) -> None:
    """Measures what it computes."""
    say()
    say(f"The console: {CALLS:,} running calls")
    fleet = Fleet()
    for record in running_calls()[0]:
        fleet.put_row(record)
    _measure_list(figures, fleet)


def measure_console_process(figures: Figures, bootstrap: str, folder: Path) -> None:
    """Measures a console as a process of its own on a real Kafka, and what an evaluator costs with
    and without one.
    """
    say()
    say(
        f"A console as a process: {CALLS:,} running calls, {PAGES} pages of them; {WATCHED} pages "
        "of calls; processor time of the kernel"
    )
    _measure_pages(figures, environment(bootstrap, "pages."), folder)
    _measure_watched(figures, environment(bootstrap, "watched."), folder)


def _measure_pages(figures: Figures, variables: dict[str, str], folder: Path) -> None:
    create_topics(variables["CALLGAUGE_BOOTSTRAP"], variables["CALLGAUGE_TOPIC_PREFIX"])
    records, changes = running_calls()
    feed = Feed(variables)
    for record in records:
        feed.put(record)
    feed.flush()
    with console_process(folder, variables) as (process, address):
        with feed.running(changes):
            figures.add(
                "console_reading_core_share",
                _share(process),
                f"{CHANGES_PER_SECOND:,} records/s are read, nobody looks, of a core",
                "%",
            )
            figures.add(
                "console_first_byte_ms",
                1_000 * _first_byte_seconds(address),
                "first byte of the page of running calls, wall clock",
                "ms",
                goal=500,
            )
            with _readers(address, ["/live/now"] * PAGES):
                wait_for(
                    "the pages",
                    lambda: total(process.metrics(), "callgauge_console_pages_open") == PAGES,
                    60,
                )
                figures.add(
                    "console_now_core_share",
                    _share(process),
                    f"{PAGES} pages of running calls too",
                    "%",
                    goal=10,
                )
                code, seconds = process.signalled(signal.SIGTERM)
        assert code == 0, process.text
        figures.add(
            "console_stop_seconds",
            seconds,
            f"end with {PAGES} streams open, wall clock",
            "s",
            goal=2,
        )


def _measure_watched(figures: Figures, variables: dict[str, str], folder: Path) -> None:
    bootstrap, prefix = variables["CALLGAUGE_BOOTSTRAP"], variables["CALLGAUGE_TOPIC_PREFIX"]
    create_topics(bootstrap, prefix)
    with (
        started(folder / "sequencer.log", "run", "--roles", "sequencer", **variables),
        started(folder / "evaluator.log", "run", "--roles", "evaluator", **variables) as evaluator,
    ):
        page_of_evaluator = evaluator.metrics(60)
        load = LoadProcess(
            bootstrap,
            prefix,
            partitions=PARTITIONS,
            lines=2 * WATCHED,
            ramp_seconds=5,
            seed=7,
            poison=(),
        )
        with ExitStack() as running_load:
            running_load.callback(load.stop)
            wait_for("events of the load", lambda: folded_of(page_of_evaluator)[0] > 0, 60)
            time.sleep(WARM_SECONDS)

            def event_us() -> float:
                began, spent = folded_of(page_of_evaluator)[0], evaluator.processor_seconds
                time.sleep(WINDOW_SECONDS)
                return (
                    1e6
                    * (evaluator.processor_seconds - spent)
                    / (folded_of(page_of_evaluator)[0] - began)
                )

            with console_process(folder, variables) as (process, address):
                running = [
                    each["call"]["conversation_id"]
                    for each in _asked(f"{address}/api/v1/calls?limit=1000&sort=began")["calls"]
                ]
                names = [name for name in running[::-1] if not name.startswith("probe")][:WATCHED]
                with _readers(address, [f"/live/calls/{name}" for name in names]):
                    wait_for(
                        "the calls",
                        lambda: (
                            total(process.metrics(), "callgauge_console_pages_open") == len(names)
                        ),
                        60,
                    )
                    figures.add(
                        "console_watched_core_share",
                        _share(process),
                        f"{len(names)} watched calls, of a core",
                        "%",
                        goal=50,
                    )
                    spent_us: dict[signal.Signals, list[float]] = {
                        signal.SIGSTOP: [],
                        signal.SIGCONT: [],
                    }
                    for number in range(2 * WINDOWS):
                        # Each comes first in half of the pairs, because the load is never the same.
                        change = signal.SIGSTOP if number % 4 in {0, 3} else signal.SIGCONT
                        process.send(change)
                        spent_us[change].append(event_us())
                    process.send(signal.SIGCONT)
            alone_us, beside_us = (sum(each) / WINDOWS for each in spent_us.values())
            figures.add(
                "evaluator_alone_us",
                alone_us,
                "an event costs the evaluator while the console is stopped",
                "us",
            )
            figures.add(
                "evaluator_beside_console_ratio",
                beside_us / alone_us,
                "beside a console, times as much",
                "x",
                goal=1.02,
            )


class Feed:
    """Writes rows."""

    def __init__(self, variables: dict[str, str]) -> None:
        self._producer = Producer(
            {"bootstrap.servers": variables["CALLGAUGE_BOOTSTRAP"], "linger.ms": 5, "log_level": 0}
        )
        self._topic = f"{variables['CALLGAUGE_TOPIC_PREFIX']}scores"

    def put(self, record: Row) -> None:
        key = record.conversation_id.encode()
        self._producer.produce(self._topic, encode(record), key, partition=crc32(key) % PARTITIONS)
        self._producer.poll(0)

    def flush(self) -> None:
        assert self._producer.flush(60) == 0

    @contextmanager
    def running(self, changes: deque[CallRow]) -> Iterator[None]:
        """Writes changes all the time, each call's in turn."""
        ended = Event()

        def write() -> None:
            for revision in count(1_000):
                for _ in range(int(CHANGES_PER_SECOND * STEP_SECONDS)):
                    record = changes.popleft()
                    changes.append(record)
                    self.put(
                        structs.replace(record, known_ms=wall_clock_ms(), revision=2 * revision)
                    )
                if ended.wait(STEP_SECONDS):
                    return

        writing = Thread(target=write)
        writing.start()
        try:
            yield
        finally:
            ended.set()
            writing.join()


def running_calls() -> tuple[list[Row], deque[CallRow]]:
    """The rows of calls two thirds on their way, and further ones, to be taken again and again."""
    kinds = []
    for seed in range(KINDS):
        arrivals = [each for each in _arrivals(seed) if isinstance(each, Arrival)]
        rows = rows_in_steps(arrivals[: len(arrivals) * 2 // 3])
        kinds.append(
            [row for row in rows if not (isinstance(row, CallRow) and row.state == "closed")]
        )
    all_records, changes, now_ms = list[Row](), deque[CallRow](), wall_clock_ms()
    for number in range(CALLS):
        rows_of_kind = kinds[number % KINDS]
        newest = next(row for row in reversed(rows_of_kind) if isinstance(row, CallRow))
        name, late_ms = f"conversation-{number:05}", now_ms - newest.known_ms - number % 5_000
        for row in rows_of_kind:
            moved = structs.replace(row, conversation_id=name)
            if not isinstance(moved, GoalsRow):
                moved.known_ms += late_ms
            all_records.append(moved)
        changes.append(structs.replace(newest, conversation_id=name))
    return all_records, changes


def _arrivals(seed: int) -> Iterable[object]:
    return (
        admit(source, record, NO_LIMITS) for source, record in interleaved([simulated_events(seed)])
    )


def _measure_list(figures: Figures, fleet: Fleet) -> None:
    now_ms = wall_clock_ms()
    now = fleet.now(now_ms)
    site = ConsoleSite(
        ConsoleSettings(), fleet, HeldCalls(), None, None, Redactor(), _instruments(), "1"
    )
    tick_ms = 1_000 * min(_spent(lambda: fleet.now(now_ms)) for _ in range(REPEATS))
    figures.add("console_fold_ms", tick_ms, f"state of {CALLS:,} calls", "ms", goal=100)
    for name, wanted in (("every", EVERY_CALL), ("filtered", WantedCalls(text="0123"))):
        boxes_ms = 1_000 * min(
            _spent(partial(_boxes, site, now, wanted, fleet)) for _ in range(REPEATS)
        )
        figures.add(f"console_boxes_{name}_ms", boxes_ms, f"page of them, {name}", "ms", goal=100)


def _boxes(site: ConsoleSite, now: RunningCalls, wanted: WantedCalls, fleet: Fleet) -> object:
    return now_boxes(site._site("./"), now, wanted, fleet, site.alerts, names_boxes(now))


def _spent(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def _instruments() -> Instruments:
    return Instruments(CollectorRegistry(), ["console"])


@contextmanager
def console_process(folder: Path, variables: dict[str, str]) -> Iterator[tuple[Process, str]]:
    with started(
        folder / "console.log",
        "run",
        "--roles",
        "console",
        CALLGAUGE_CONSOLE__PORT="0",
        **variables,
    ) as process:
        found = wait_for(
            "the console", lambda: re.search(r"console_listens.*?address=(\S+)/", process.text), 60
        )
        ready = process.metrics(60).replace("/metrics", "/readyz")
        wait_for("rows that are read", lambda: answer_of(ready).status_code == 200, 120)
        yield process, found[1]


def _first_byte_seconds(address: str) -> float:
    """The shortest of some, one after the other: other work on the machine only adds to it."""
    shortest = float("inf")
    for _ in range(REPEATS):
        began = time.perf_counter()
        with httpx.stream("GET", f"{address}/", timeout=60) as answer:
            next(answer.iter_raw())
        shortest = min(shortest, time.perf_counter() - began)
    return shortest


def _asked(url: str) -> Any:
    return httpx.get(url, timeout=60).raise_for_status().json()


def _share(process: Process) -> float:
    """Processor time of the process, as a share of a core in percent."""
    began, spent = time.perf_counter(), process.processor_seconds
    time.sleep(SECONDS)
    return 100 * (process.processor_seconds - spent) / (time.perf_counter() - began)


@contextmanager
def _readers(address: str, paths: list[str]) -> Iterator[BaseProcess]:
    host, _, port = address.removeprefix("http://").partition(":")
    process = multiprocessing.get_context("spawn").Process(
        target=_read, args=(host, int(port), paths), daemon=True
    )
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
