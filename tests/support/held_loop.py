"""How long one step of an event loop holds it, in processor time: meanwhile nothing else of the
process has a turn. What a test asks of such times is asked of the least of a few tries.
"""

import asyncio
import gc
import json
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Self, TypeVar

MOST_SECONDS: Final = 0.05
"""The longest step that the product allows itself at default limits."""
TRIES: Final = 12
"""Memory that is new to the process lengthens a step, and so does another process that takes the
processor's caches: the same step takes 17 to 37 ms beside four busy ones. A step that is too long
is so in every try.
"""
KNOWN_WORK_SECONDS: Final = 0.0025
"""What `_known_work` takes on the machine on which the bounds were chosen. A machine that takes
longer gets as much longer for everything.
"""

T = TypeVar("T")


@contextmanager
def kept_out_of_collections() -> Iterator[None]:
    """Keeps the objects of other tests out of collections of cycles: to search them takes longer
    than any step.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class HeldLoop:
    """Measures every step of the event loop of the thread that enters it.

    Only the processor time of that thread counts, so other programs change little.

    Attributes:
        longest_seconds: Processor time of the longest step so far.
        longest_step: What that step was, for the message of a test.
    """

    def __init__(self) -> None:
        self.longest_seconds = 0.0
        self.longest_step = ""
        self._run = asyncio.Handle._run
        self._thread = 0

    def __enter__(self) -> Self:
        self._thread = threading.get_ident()
        run, held = self._run, self

        def measured(handle: Any) -> Any:
            if threading.get_ident() != held._thread:
                return run(handle)
            began = time.thread_time()
            try:
                return run(handle)
            finally:
                held._note(time.thread_time() - began, handle)

        self._keeping = kept_out_of_collections()
        self._keeping.__enter__()
        # every step of a loop goes through it
        asyncio.Handle._run = measured  # type: ignore[method-assign,assignment]
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.Handle._run = self._run  # type: ignore[method-assign]
        self._keeping.__exit__(None, None, None)

    def _note(self, seconds: float, handle: Any) -> None:
        if seconds > self.longest_seconds:
            self.longest_seconds, self.longest_step = seconds, repr(handle)[:500]


def seconds_of(step: Callable[[], T]) -> tuple[T, float]:
    """What a step comes to, and its processor time."""
    began = time.thread_time()
    return step(), time.thread_time() - began


def times_slower() -> float:
    """How many times longer than the machine of the bounds this one takes for the same work; at
    least 1. Measured anew each time: a machine that others use is not as fast in every minute.
    """
    least = min(seconds_of(_known_work)[1] for _ in range(TRIES))
    return max(1.0, least / KNOWN_WORK_SECONDS)


def _known_work() -> object:
    rows = [{"name": f"n{number}", "of": [number, str(number)]} for number in range(2_000)]
    return json.loads(json.dumps(rows))


def in_short_time(measured: Callable[[], tuple[T, float]], most_seconds: float = MOST_SECONDS) -> T:
    """What comes of work that is short in one of a few tries.

    Args:
        measured: Does the work anew, and returns with what comes of it the processor time that
            counts, in seconds.
        most_seconds: The longest time that is short, on the machine of the bounds.

    Raises:
        AssertionError: None of the tries was short.
    """
    tries = []
    for _ in range(TRIES):
        found, seconds = measured()
        if seconds <= most_seconds * times_slower():
            return found
        tries.append(seconds)
    raise AssertionError(f"{min(tries):.3f} s of a processor, expected at most {most_seconds} s")


async def in_short_steps(work: Callable[[], Awaitable[T]]) -> T:
    """What comes of work whose steps hold the loop for a moment only, in one of a few tries.

    Args:
        work: Does it anew.

    Raises:
        AssertionError: Each try had a step that held the loop for too long.
    """
    tries = []
    for _ in range(TRIES):
        with HeldLoop() as held:
            found = await work()
        if held.longest_seconds <= MOST_SECONDS * times_slower():
            return found
        tries.append((held.longest_seconds, held.longest_step))
    raise AssertionError(f"the loop is held for too long in each try, at best {min(tries)}")
