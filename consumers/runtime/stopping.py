"""Awaits several things at once, until the first one ends."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

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
