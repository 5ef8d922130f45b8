"""What `callgauge serve` takes for calls that run beside each other, with pages open: processor,
memory, file, delay, and a start.

python -m tests.benchmarks.serve_load --calls 300 --minutes 10
"""

import argparse
import asyncio
import itertools
import re
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx

from consumers.log.file import FILE_NAME, FileLog
from schemas.closed_sets import InputSource
from schemas.log import OutgoingRecord
from streamer.facts import TOKEN_FILE
from tests.benchmarks.figures import Figures, say
from tests.integration.processes import COMMAND, Process, started, wait_for

CALLS: Final = 300
MINUTES: Final = 3.0
"""Of `make bench`. Memory needs ten minutes until it has what it takes for longer."""
OLD_CALL_MS: Final = 2 * 3_600_000
"""Age of the oldest call that is open at the start."""
TICK_MS: Final = 500
EVENT_EVERY_TICKS: Final = 20
KINDS: Final = (
    "user_speech_started",
    "user_speech_stopped",
    "bot_speech_started",
    "bot_speech_stopped",
)
PROBE: Final = "probe"
"""The call whose page is looked at to see how long an event takes."""
PROBE_SECONDS: Final = 0.5
WARM_SECONDS: Final = 90.0
"""Until so many calls have begun as run at the same time."""
READY_SECONDS: Final = 120.0
PAGES_OF_CALLS: Final = 3


class Moment(NamedTuple):
    """What the process has used by now."""

    at: float
    processor_seconds: float
    resident_bytes: int


class Serve(NamedTuple):
    """A process that serves a folder, and how long it took to be ready."""

    process: Process
    address: str
    seconds: float
    folder: Path

    @property
    def moment(self) -> Moment:
        """What it has used by now."""
        return Moment(time.monotonic(), self.process.processor_seconds, self.process.resident_bytes)

    @property
    def file_bytes(self) -> int:
        """Size of its log."""
        return (self.folder / FILE_NAME).stat().st_size


@contextmanager
def serving(folder: Path, output: Path) -> Iterator[Serve]:
    """Starts it by the installed command, as a person does."""
    began = time.monotonic()
    arguments = ["serve", "--folder", str(folder), "--port", "0"]
    with started(output, *arguments, command=[str(COMMAND)]) as process:
        found = wait_for(
            lambda: process.text,
            lambda: re.search(r"callgauge serves (http://\S+)/ ", process.text),
            READY_SECONDS,
        )
        yield Serve(process, found[1], time.monotonic() - began, folder)


async def write_old_call(folder: Path) -> None:
    """Writes a log in which a call has been open for two hours."""
    now_ms = time.time_ns() // 1_000_000
    times_ms = iter(range(now_ms - OLD_CALL_MS, now_ms, TICK_MS))  # each write takes the next one
    log = FileLog(folder, clock_ms=lambda: next(times_ms, now_ms))
    log.open()
    try:
        for number in range(OLD_CALL_MS // TICK_MS // EVENT_EVERY_TICKS):
            at_ms = now_ms - OLD_CALL_MS + number * EVENT_EVERY_TICKS * TICK_MS
            event = OutgoingRecord(
                InputSource.PIPECAT,
                b"two-hours-old",
                _speech(KINDS[number % len(KINDS)], at_ms),
                [],
            )
            await asyncio.gather(
                log.append([event]), *(log.tick() for _ in range(EVENT_EVERY_TICKS - 1))
            )
    finally:
        await log.close()


def _speech(kind: str, at_ms: int) -> bytes:
    return f'{{"type":"speech_event","timestamp":{at_ms},"data":{{"kind":"{kind}","timestamp":{at_ms / 1000}}}}}'.encode()


async def look(client: httpx.AsyncClient, path: str, seen: asyncio.Event) -> None:
    """Reads a page's stream until cancelled; sets the event with each piece of it."""
    async with client.stream("GET", path, timeout=None) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if line:
                seen.set()


async def delays_ms(client: httpx.AsyncClient, token: str, seconds: float) -> list[float]:
    """How long it takes from a posted event until the page of its call has it, for answers of a
    call that goes on.
    """
    seen, found = asyncio.Event(), []
    headers = {"authorization": f"Bearer {token}"}
    kinds = itertools.cycle(KINDS)

    async def post(kind: str) -> None:
        at_ms = time.time_ns() // 1_000_000
        data = {"kind": kind, "timestamp": at_ms / 1000}
        event = {"conversation_id": PROBE, "type": "speech_event", "timestamp": at_ms, "data": data}
        while True:
            answer = await client.post("/events", json=[event], headers=headers)
            if answer.status_code != HTTPStatus.TOO_MANY_REQUESTS:
                answer.raise_for_status()
                return
            # as every sender does where more events come than the settings allow
            await asyncio.sleep(float(answer.headers["retry-after"]))

    await post(next(kinds))
    # with many calls, its first row takes longer
    page = f"/calls/{PROBE}"
    while (await client.get(page)).status_code == HTTPStatus.NOT_FOUND:  # noqa: ASYNC110
        await asyncio.sleep(PROBE_SECONDS)
    looking = asyncio.create_task(look(client, f"/live/calls/{PROBE}", seen))
    until = time.monotonic() + seconds
    try:
        while time.monotonic() < until:
            await asyncio.sleep(PROBE_SECONDS)
            kind = next(kinds)
            # an answer has a wait, so a row; the others may change nothing at once
            if kind != "bot_speech_started":
                await post(kind)
                continue
            seen.clear()
            began = time.perf_counter()
            await post(kind)
            await asyncio.wait_for(seen.wait(), READY_SECONDS)
            found.append((time.perf_counter() - began) * 1000)
    finally:
        looking.cancel()
    return found


async def measure(figures: Figures, serve: Serve, minutes: float) -> None:
    """Opens the pages and measures what it takes."""
    token = (serve.folder / TOKEN_FILE).read_text().strip()
    async with httpx.AsyncClient(base_url=serve.address, timeout=READY_SECONDS) as client:
        listed: Any = (await client.get("/api/v1/calls")).json()
        names = [each["call"]["conversation_id"] for each in listed["calls"][:PAGES_OF_CALLS]]
        paths = ["/live/now", *(f"/live/calls/{name}" for name in names)]
        looking = [asyncio.create_task(look(client, path, asyncio.Event())) for path in paths]
        first, first_bytes = serve.moment, serve.file_bytes
        found = await delays_ms(client, token, minutes * 60)
        last, last_bytes = serve.moment, serve.file_bytes
        for task in looking:
            assert not task.done(), task
            task.cancel()
        began = time.perf_counter()
        (await client.get(f"/calls/{names[0]}")).raise_for_status()
        opened_ms = (time.perf_counter() - began) * 1000
    passed = last.at - first.at
    share = (last.processor_seconds - first.processor_seconds) / passed
    percents = statistics.quantiles(found, n=100)
    say(f"serve: {listed['calls_running']} calls, {len(paths)} pages, {passed:.0f} s")
    figures.add("serve_core_share", share, "of a core", "cores", goal=0.5)
    first_mb, last_mb = first.resident_bytes / 1e6, last.resident_bytes / 1e6
    figures.add("serve_first_mb", first_mb, f"memory after {WARM_SECONDS:.0f} s", "MB")
    figures.add("serve_mb", last_mb, "memory at the end", "MB")
    a_minute_mb = (last_bytes - first_bytes) / 1e6 / passed * 60
    figures.add("serve_log_mb_per_minute", a_minute_mb, "its log, in a minute", "MB")
    figures.add("serve_event_to_page_p50_ms", percents[49], "from an event to its page, p50", "ms")
    figures.add("serve_event_to_page_p99_ms", percents[98], "the same, p99", "ms", goal=500)
    figures.add("serve_page_ms", opened_ms, "the page of a running call opens", "ms", goal=500)


def measure_serve(
    figures: Figures, folder: Path, calls: int = CALLS, minutes: float = MINUTES
) -> None:
    """Measures a start with an old call, then calls that run, then a start after a kill."""
    calls_folder = folder / "calls"
    asyncio.run(write_old_call(calls_folder))
    with serving(calls_folder, folder / "first.log") as serve:
        command = ["simulate", "--calls", str(calls), "--folder", str(calls_folder)]
        with (folder / "simulate.log").open("wb") as output:
            simulating = subprocess.Popen(
                [str(COMMAND), *command], stdout=output, stderr=subprocess.STDOUT
            )
        try:
            time.sleep(WARM_SECONDS)
            asyncio.run(measure(figures, serve, minutes))
            serve.process.signalled(signal.SIGKILL)
        finally:
            simulating.kill()
            simulating.wait()
    what = "a start with two hours of one call to fold"
    figures.add("serve_first_start_seconds", serve.seconds, what, "s")
    with serving(calls_folder, folder / "second.log") as serve:
        what = "a start after kill -9, all calls open"
        figures.add("serve_start_seconds", serve.seconds, what, "s", goal=5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=CALLS)
    parser.add_argument("--minutes", type=float, default=10.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure_serve(Figures(), Path(folder), arguments.calls, arguments.minutes)


if __name__ == "__main__":
    main()
