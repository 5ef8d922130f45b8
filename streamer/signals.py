"""What ends a running command from outside: Ctrl-C, the SIGTERM of whatever supervises it, and time."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stop_on_signals() -> Iterator[asyncio.Event]:
    """Gives an event that the first SIGINT or SIGTERM sets; a second one ends the process at once.

    To be entered inside a running event loop, in the main thread.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def on_signal() -> None:
        stop.set()
        unhandle()

    def unhandle() -> None:
        for each in _SIGNALS:
            loop.remove_signal_handler(each)

    for each in _SIGNALS:
        loop.add_signal_handler(each, on_signal)
    try:
        yield stop
    finally:
        unhandle()


async def over_after(seconds: float | None) -> None:
    """Returns after so many seconds; None never does."""
    if seconds is None:
        await asyncio.Event().wait()
    else:
        await asyncio.sleep(seconds)
