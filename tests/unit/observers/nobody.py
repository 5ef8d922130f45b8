"""The end of a sender whose other side is away."""

import asyncio

from callgauge_send.sender import Sender


async def stop(sender: Sender | None) -> None:
    """Ends the task, as the end of the process would."""
    assert sender is not None
    assert sender._task is not None
    sender._task.cancel()
    await asyncio.wait({sender._task})
