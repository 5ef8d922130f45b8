"""Work that a signal ends: what Ctrl-C and a supervisor's SIGTERM do to a running command."""

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


async def until_stopped(work: Coroutine[Any, Any, object]) -> bool:
    """Runs `work` to its end, or until the first SIGINT or SIGTERM, which cancels it and waits for it to clean up.

    A second signal ends the process at once.

    Returns:
        Whether the work came to its own end.
    """
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    stopped = False

    def stop() -> None:
        nonlocal stopped
        stopped = True
        for each in _SIGNALS:
            loop.remove_signal_handler(each)
        task.cancel()

    for each in _SIGNALS:
        loop.add_signal_handler(each, stop)
    try:
        await task
    except asyncio.CancelledError:
        if not stopped:
            raise
    finally:
        for each in _SIGNALS:
            loop.remove_signal_handler(each)
    return not stopped
