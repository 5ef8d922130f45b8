"""Long work is done beside the loop, once for all who want the same, one piece for each subject at
a time, and within its bounds.
"""

import asyncio
import itertools
import math
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from consumers.console.workshop import MAX_OF_ONE, Bounds, BusyError, Pace, Workshop, size_of
from tests.support.patience import patient

SECONDS = 20


class Gate:
    """Work that begins and then waits until it may go on."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.times = 0
        self._loop = asyncio.get_running_loop()
        self._goes_on = threading.Event()

    def work(self) -> int:
        self.times += 1
        times = self.times
        self._loop.call_soon_threadsafe(self.begun.set)
        assert self._goes_on.wait(patient(SECONDS))
        return times

    def open(self) -> None:
        self._goes_on.set()


@asynccontextmanager
async def workshop(
    threads: int = 1, waiting: int = 10, kept_bytes: int = 0
) -> AsyncIterator[Workshop]:
    made = Workshop("test", Bounds(threads, waiting, kept_bytes))
    try:
        yield made
    finally:
        await made.close(patient(SECONDS))


async def begun(
    made: Workshop, gate: Gate, subject: str = "a", version: Any = object
) -> asyncio.Task[int]:
    task = asyncio.create_task(made.make(subject, "page", version, gate.work))
    async with asyncio.timeout(patient(SECONDS)):
        await gate.begun.wait()
    return task


async def test_who_wants_the_same_version_gets_the_same_work() -> None:
    async with workshop() as made:
        gate = Gate()
        first = await begun(made, gate, version=lambda: 1)
        others = [
            asyncio.create_task(made.make("a", "page", lambda: 1, gate.work)) for _ in range(50)
        ]
        await asyncio.sleep(0)
        gate.open()
        assert {await each for each in (first, *others)} == {1}
        assert gate.times == 1


async def test_who_wants_a_newer_version_waits_for_one_further_piece_of_work() -> None:
    async with workshop() as made:
        gate, version = Gate(), 1
        first = await begun(made, gate, version=lambda: version)
        version = 2
        second = [
            asyncio.create_task(made.make("a", "page", lambda: version, gate.work))
            for _ in range(20)
        ]
        await asyncio.sleep(0)
        version = 3
        third = [
            asyncio.create_task(made.make("a", "page", lambda: version, gate.work))
            for _ in range(20)
        ]
        await asyncio.sleep(0)
        gate.open()
        assert await first == 1
        assert {await each for each in (*second, *third)} == {2}, (
            "it had not begun, so it sees the newest"
        )


async def test_what_was_made_is_kept_until_the_version_changes_and_within_its_bound() -> None:
    times = 0

    def work() -> bytes:
        nonlocal times
        times += 1
        return b"x" * 10_000

    async with workshop(kept_bytes=25_000) as made:
        for version, expected in ((1, 1), (1, 1), (2, 2), (2, 2)):
            await made.make("a", "page", partial(int, version), work)
            assert times == expected
        for subject in "bcd":
            await made.make(subject, "page", lambda: 2, work)
        assert times == 5
        await made.make("d", "page", lambda: 2, work)
        assert times == 5
        await made.make("a", "page", lambda: 2, work)
        assert times == 6, "it made room"
    async with workshop(kept_bytes=100) as made:
        for _ in range(2):
            await made.make("a", "page", lambda: 1, work)
    assert times == 8, "what is larger than the room is not kept"


async def test_one_subject_leaves_threads_and_room_to_others() -> None:
    async with workshop(threads=2, waiting=20) as made:
        gate = Gate()
        tasks = [await begun(made, gate)]
        tasks += [
            asyncio.create_task(made.make("a", number, object, gate.work))
            for number in range(MAX_OF_ONE - 1)
        ]
        await asyncio.sleep(0)
        with pytest.raises(BusyError):
            await made.make("a", "one more", object, gate.work)
        async with asyncio.timeout(patient(SECONDS)):
            assert await made.make("b", "page", object, lambda: "of another") == "of another"
        assert gate.times == 1
        gate.open()
        await asyncio.gather(*tasks)


async def test_no_more_waits_than_is_allowed() -> None:
    async with workshop(threads=1, waiting=3) as made:
        gate = Gate()
        tasks = [await begun(made, gate)]
        tasks += [
            asyncio.create_task(made.make(f"b{number}", "page", object, gate.work))
            for number in range(3)
        ]
        await asyncio.sleep(0)
        with pytest.raises(BusyError):
            await made.make("c", "page", object, gate.work)
        gate.open()
        await asyncio.gather(*tasks)
        assert await made.make("c", "page", object, lambda: 1) == 1, "there is room again"


async def test_who_leaves_takes_nothing_from_others() -> None:
    async with workshop() as made:
        gate = Gate()
        first = await begun(made, gate, version=lambda: 1)
        other = asyncio.create_task(made.make("a", "page", lambda: 1, gate.work))
        await asyncio.sleep(0)
        first.cancel()
        gate.open()
        assert await other == 1


async def test_an_error_is_everybodys_and_is_not_kept() -> None:
    def fails() -> int:
        raise ValueError("torn")

    async with workshop(kept_bytes=10_000) as made:
        with pytest.raises(ValueError, match="torn"):
            await made.make("a", "page", lambda: 1, fails)
        assert await made.make("a", "page", lambda: 1, lambda: 7) == 7


async def test_a_closed_workshop_waits_for_nothing_and_takes_nothing() -> None:
    made = Workshop("test", Bounds(1, 5))
    gate = Gate()
    task = await begun(made, gate)
    waiting = asyncio.create_task(made.make("b", "page", object, gate.work))
    await asyncio.sleep(0)
    async with asyncio.timeout(patient(SECONDS)):
        await made.close(0.01)
    with pytest.raises(BusyError):
        await made.make("c", "page", object, gate.work)
    for each in (task, waiting):
        with pytest.raises(asyncio.CancelledError):
            await each
    gate.open()


def test_a_pace_allows_so_much_at_once_and_so_much_a_second_on_the_average() -> None:
    now = 100.0
    pace = Pace(10, 30, lambda: now)
    for _ in range(3):
        assert pace.wait_seconds() == 0
        pace.spend(10)
    assert pace.wait_seconds() == 0
    pace.spend(25)
    assert pace.wait_seconds() == pytest.approx(2.5), (
        "it may be overdrawn, and the next one waits for it"
    )
    now += 2.0
    assert pace.wait_seconds() == pytest.approx(0.5)
    now += 1_000.0
    pace.spend(35)
    assert pace.wait_seconds() == pytest.approx(0.5), "no more is saved than may be used at once"


def test_an_infinite_pace_never_waits() -> None:
    pace = Pace(math.inf, 0, lambda: 5.0)
    for _ in range(10):
        pace.spend(1e9)
        assert pace.wait_seconds() == 0


async def test_work_beyond_its_share_of_the_processor_waits_and_says_how_long() -> None:
    waited: list[float] = []
    began: list[float] = []

    def busy() -> None:
        began.append(time.monotonic())
        until = time.thread_time() + 0.02
        while time.thread_time() < until:
            pass

    made = Workshop("test", Bounds(2, 10, share=0.1), waited.append)
    try:
        for number in range(3):
            await made.make("a", number, object, busy)
    finally:
        await made.close(patient(SECONDS))
    assert [later - earlier >= 0.2 for earlier, later in itertools.pairwise(began)] == [True, True]
    assert sum(waited) <= began[-1] - began[0]


def test_sizes_are_those_of_texts_and_what_holds_them() -> None:
    assert size_of("x" * 10_000) >= 10_000
    assert size_of(({"a": {"b": "x" * 10_000}}, b"y" * 5_000)) >= 15_000
    assert size_of(None) > 0
