"""What ends a running command from outside: Ctrl-C, the SIGTERM of whatever supervises it, and time."""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stop_on_signals() -> Iterator[asyncio.Event]:
    """Gives an event that the first SIGINT or SIGTERM sets; a second one ends the process at once.

    At once means with nothing tidied up, whatever the process is doing, with exit code 128 and the signal's number. That
    holds to the end of the process, since tidying up after this block can hang too.

    To be entered inside a running event loop, in the main thread.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    is_stopping = False

    def on_signal(number: int, _frame: FrameType | None) -> None:
        nonlocal is_stopping
        if is_stopping:
            # Not the signal's default action: the first process of a container is not ended by it.
            os._exit(128 + number)
        is_stopping = True

    for each in _SIGNALS:
        loop.add_signal_handler(each, stop.set)  # also makes a signal wake the loop from its sleep
        signal.signal(each, on_signal)  # called by the interpreter: also when the loop hangs in a step of its own
    try:
        yield stop
    finally:
        if not is_stopping:
            for each in _SIGNALS:
                loop.remove_signal_handler(each)


async def over_after(seconds: float | None) -> None:
    """Returns after so many seconds; None never does."""
    if seconds is None:
        await asyncio.Event().wait()
    else:
        await asyncio.sleep(seconds)
