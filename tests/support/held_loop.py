"""How long one step of an event loop takes, in processor time: while it lasts, nobody else has a turn."""

import asyncio
import gc
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

MOST_SECONDS = 0.05
"""The longest step that the product allows itself."""


class Steps:
    """The steps of one loop.

    Attributes:
        longest_seconds: Processor time of the longest one.
        longest: What was called in it.
    """

    def __init__(self) -> None:
        self.longest_seconds = 0.0
        self.longest = ""


@contextmanager
def watched_steps() -> Iterator[Steps]:
    """Measures every step of the loop of this thread.

    The processor time of the thread is what counts, so other processes and threads change nothing. Objects of other tests are left to
    no collection meanwhile: to search them takes longer than any step.
    """
    steps, run, thread = Steps(), asyncio.Handle._run, threading.get_ident()

    def measured(self: asyncio.Handle) -> None:
        begin = time.thread_time()
        run(self)
        took = time.thread_time() - begin
        if took > steps.longest_seconds and threading.get_ident() == thread:
            steps.longest_seconds, steps.longest = took, repr(self)

    gc.collect()
    gc.freeze()
    asyncio.Handle._run = measured  # type: ignore[method-assign]  # each callback passes through it, and nothing else does
    try:
        yield steps
    finally:
        asyncio.Handle._run = run  # type: ignore[method-assign]
        gc.unfreeze()
