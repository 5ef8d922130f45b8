"""Parts of every process: errors for operators, stopping, the clock, and garbage collection."""

import asyncio
import contextlib
import gc
import time
from collections.abc import Coroutine
from typing import Any, ClassVar, Final, TypeVar

# The one class of errors that a person can fix.


class OperatorError(Exception):
    """A fault of settings, files, rights, topics or the network: the person who runs the command can fix it.

    Its text has the mistake and the remedy. The command line prints it without a traceback and ends with `exit_code`.
    Every error of that kind derives from this class; every other error is a defect of the program and gets a traceback.

    Attributes:
        exit_code: 1 when work failed, 2 when the command was set up wrongly and nothing was started.
    """

    exit_code: ClassVar[int] = 1


# Awaits several things at once, until the first one ends.

Result = TypeVar("Result")


async def first_of(*works: Coroutine[Any, Any, Result]) -> Result:
    """Returns the result of the task that ends first. The others are cancelled, and have ended when this returns.

    Raises:
        Exception: The error of an ended task, even if another ended well at the same moment.
    """
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finished = [task for task in tasks if task.done()]
        for task in finished:
            task.result()
        return finished[0].result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def finish_unless(stop: asyncio.Event, work: Coroutine[Any, Any, Result]) -> Result | None:
    """Returns the result of the work, or None if `stop` was set first; errors as in `first_of`."""

    async def stopped() -> None:
        await stop.wait()

    return await first_of(work, stopped())


async def pause_unless(stop: asyncio.Event, seconds: float) -> None:
    """Waits so long, or until `stop` is set."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), seconds)


# The clock of this machine that people set. How long something took is measured by `time.monotonic` instead.

_NS_PER_MS: Final = 1_000_000


def wall_clock_ms() -> int:
    """Returns the milliseconds since 1970 that this machine shows."""
    return time.time_ns() // _NS_PER_MS


# Sets how often Python searches reference cycles, for a process with many long-lived objects.

YOUNG_OBJECTS = 50_000
MIDDLE_ROUNDS = 20
OLD_ROUNDS = 50


def tune_collection() -> None:
    """Makes collections of cycles rare.

    State is freed by reference counts, because a closed call breaks its own cycles. So collections find almost nothing, but
    with 10,000 open calls each searches millions of objects: a fifth of the time per event at Python's default thresholds.
    """
    gc.set_threshold(YOUNG_OBJECTS, MIDDLE_ROUNDS, OLD_ROUNDS)
