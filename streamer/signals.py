"""The ends of a running command: Ctrl-C, the SIGTERM of a supervisor, and time."""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stop_on_signals() -> Iterator[asyncio.Event]:
    """Gives an event that the first SIGINT or SIGTERM sets; a second one ends the process
    immediately.

    The second signal ends it without cleaning up, with exit code 128 plus the signal's number. That
    is so until the end of the process, since cleaning up after this block can hang too.

    Enter it inside a running event loop, in the main thread.
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
        loop.call_soon_threadsafe(stop.set)

    for each in _SIGNALS:
        with suppress(NotImplementedError):  # on Windows, whose loop wakes by itself
            # also makes a signal wake the loop from its sleep
            loop.add_signal_handler(each, stop.set)
        # called by the interpreter: also when the loop hangs in a step of its own
        signal.signal(each, on_signal)
    try:
        yield stop
    finally:
        if not is_stopping:
            for each in _SIGNALS:
                with suppress(NotImplementedError):
                    loop.remove_signal_handler(each)


async def over_after(seconds: float | None) -> None:
    """Returns after so many seconds; never for None."""
    if seconds is None:
        await asyncio.Event().wait()
    else:
        await asyncio.sleep(seconds)
