"""Parts of every process: errors for operators, stopping, the clock, and garbage collection."""

import asyncio
import contextlib
import gc
import sys
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, ClassVar, Final, Never, TypeVar

# The one class of errors that a person can fix.


class OperatorError(Exception):
    """A fault of settings, files, rights, topics or the network: the person who runs the command
    can fix it.

    Its text has the mistake and the remedy. The command line prints it without a traceback and ends
    with `exit_code`. Every error of that kind derives from this class; every other error is a
    defect of the program and gets a traceback.

    Attributes:
        exit_code: 1 when work failed, 2 when the command was set up wrongly and nothing was
            started.
        passes: Whether a role that failed with it may start again although it has never worked.
        is_away: Whether what is written to is away, so that the same may work later.
    """

    exit_code: ClassVar[int] = 1
    passes: ClassVar[bool] = False
    is_away: ClassVar[bool] = False


class SetupError(OperatorError):
    """The command was set up wrongly, or asked something that it cannot answer; nothing was
    started.
    """

    exit_code = 2


# Ends tasks, and waits no longer than a bound for anything to end.
#
# A cancel can be lost: `asyncio.wait_for` of Python 3.11 swallows one that comes in the same turn
# of the loop as its result, and a library may use it, or catch every exception. Who waits for such
# a task without a bound waits for ever, in silence.

END_SECONDS: Final = 10.0
"""How long cancelled tasks may take to end: twice the longest disconnection that one of them waits
for.
"""
CANCEL_EVERY_SECONDS: Final = 1.0
"""Time between two cancels of a task that goes on."""

Result = TypeVar("Result")

_left_behind: set[asyncio.Task[Any]] = set()  # the loop itself keeps tasks by weak references only


class StuckTaskError(Exception):
    """A task goes on although it was cancelled, so what it works on is in no known state. Its role
    must fail.
    """


async def end_tasks(tasks: Iterable[asyncio.Task[Any]], most_seconds: float | None = None) -> None:
    """Cancels tasks, again and again if need be, and returns when all have ended. Their errors stay
    in them.

    Args:
        tasks: The tasks; those that have ended already cost nothing.
        most_seconds: How long they may take; `END_SECONDS` unless it is given.

    Raises:
        StuckTaskError: Some go on after so many seconds.
    """
    loop = asyncio.get_running_loop()
    seconds = END_SECONDS if most_seconds is None else most_seconds
    deadline = loop.time() + seconds
    tasks = tuple(tasks)
    going_on = {task for task in tasks if not task.done()}
    while going_on:
        left_seconds = deadline - loop.time()
        if left_seconds <= 0:
            names = ", ".join(sorted(task.get_name() for task in going_on))
            raise StuckTaskError(f"cancelled {seconds:.0f} s ago and still going on: {names}")
        for task in going_on:
            task.cancel()
        _, going_on = await asyncio.wait(going_on, timeout=min(CANCEL_EVERY_SECONDS, left_seconds))
    for task in tasks:
        if not task.cancelled():
            task.exception()  # otherwise asyncio reports it as never looked at


async def in_time(seconds: float, work: Coroutine[Any, Any, Result]) -> Result:
    """Returns the result of work that ends within so many seconds. Otherwise it is cancelled, and
    it is not waited for.

    Raises:
        TimeoutError: It goes on.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait([task], timeout=seconds)
    finally:
        if not task.done():
            _left_behind.add(task)
            task.add_done_callback(_leave)
            task.cancel()
    if not task.done():
        raise TimeoutError(f"no end after {seconds:.1f} s")
    return task.result()


def _leave(task: asyncio.Task[Any]) -> None:
    _left_behind.discard(task)
    if not task.cancelled():
        task.exception()


# Awaits several things at once, until the first one ends.


async def first_of(*works: Coroutine[Any, Any, Result]) -> Result:
    """Returns the result of the task that ends first. The others are cancelled, and have ended when
    this returns.

    Raises:
        Exception: The error of an ended task, even if another ended well at the same moment.
        StuckTaskError: Another one does not end.
    """
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finished = [task for task in tasks if task.done()]
        for task in finished:
            task.result()
        return finished[0].result()
    finally:
        await end_tasks(tasks)


async def finish_unless(stop: asyncio.Event, work: Coroutine[Any, Any, Result]) -> Result | None:
    """Returns the result of the work, or None if `stop` was set first; errors as in `first_of`."""

    async def stopped() -> None:
        await stop.wait()

    return await first_of(work, stopped())


async def pause_unless(stop: asyncio.Event, seconds: float) -> None:
    """Waits so long, or until `stop` is set."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()


# How late the event loop is: the time for which one step of one task held up everything else.

LOOK_AT_LOOP_SECONDS: Final = 0.05
"""Time between two looks at the loop: as long as a step may hold it."""


async def watch_loop(observe: Callable[[float], None]) -> Never:
    """Observes again and again by how many seconds the loop is late, until it is cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + LOOK_AT_LOOP_SECONDS
        await asyncio.sleep(LOOK_AT_LOOP_SECONDS)
        observe(max(0.0, loop.time() - due))


# The clock of this machine that people set. How long something took is measured by `time.monotonic`
# instead.

_NS_PER_MS: Final = 1_000_000


def wall_clock_ms() -> int:
    """Returns the milliseconds since 1970 that this machine shows."""
    return time.time_ns() // _NS_PER_MS


# How Python shares its time among threads, and how often it searches reference cycles, for a
# process with a busy loop and many long-lived objects.

THREAD_TURN_SECONDS: Final = 0.001
"""How long a thread goes on while the loop waits for its turn. An event comes to its score in some
ten steps of the loop: at Python's 5 ms a page that is being drawn makes it late by ten times as
much.
"""
YOUNG_OBJECTS = 50_000
MIDDLE_ROUNDS = 4
OLD_ROUNDS = 250


def tune_python() -> None:
    """Gives the loop its turn soon while a thread works, and makes collections of cycles rare.

    State is freed by reference counts, because a closed call breaks its own cycles. So collections
    find almost nothing, but with 10,000 open calls each searches millions of objects: a fifth of
    the time per event at Python's default thresholds. The middle generation has 200,000 objects at
    most: to search them takes 40 ms, in which nothing else runs.
    """
    sys.setswitchinterval(THREAD_TURN_SECONDS)
    gc.set_threshold(YOUNG_OBJECTS, MIDDLE_ROUNDS, OLD_ROUNDS)
