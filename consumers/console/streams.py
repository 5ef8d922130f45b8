"""Server-sent events: a reader gets the newest state of a channel, again and again, as fast as it
reads and no faster.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from starlette.types import Receive, Send

from consumers.console.channels import Channel

BEAT_SECONDS: Final = 5.0
"""Time between beats while nothing changes: a page that hears nothing for longer says that the
connection is lost.
"""
END_SECONDS: Final = 1.0
"""How long a stream that is ended may take to end."""
RETRY_MS: Final = 2_000
"""When a browser tries again after a connection that ended."""
HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


class Streams:
    """The streams that are open, so that all of them can be ended at once."""

    def __init__(self, most: int) -> None:
        """`most` is how many may be open."""
        self._most = most
        self._open: set[asyncio.Task[Any]] = set()
        self._is_closing = False

    def __len__(self) -> int:
        return len(self._open)

    @property
    def is_full(self) -> bool:
        """Whether another reader has to wait."""
        return self._is_closing or len(self._open) >= self._most

    def close(self) -> None:
        """Ends all streams: a server waits for its answers before it stops."""
        self._is_closing = True
        for task in self._open:
            task.cancel()

    async def answer(self, receive: Receive, send: Send, events: AsyncIterator[bytes]) -> None:
        """Sends events until they end, the reader goes away, or the streams are closed.

        The connection of a reader who does not read ends by its own bound, which is as if he had
        gone away.
        """
        sending = asyncio.create_task(_send_all(send, events))
        leaving = asyncio.create_task(_wait_for_leaving(receive))
        self._open.add(sending)
        try:
            await asyncio.wait([sending, leaving], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._open.discard(sending)
            for task in (sending, leaving):
                task.cancel()
            # It ends at once: it waits for the next event, or for the client to read.
            await asyncio.wait([sending, leaving], timeout=END_SECONDS)
            if sending.done():
                await events.aclose()  # type: ignore[attr-defined]  # every one is a generator
                with contextlib.suppress(asyncio.CancelledError, OSError):
                    sending.result()
        with contextlib.suppress(OSError):
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send_all(send: Send, events: AsyncIterator[bytes]) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    await send(
        {"type": "http.response.body", "body": f"retry: {RETRY_MS}\n\n".encode(), "more_body": True}
    )
    async for event in events:
        await send({"type": "http.response.body", "body": event, "more_body": True})


async def _wait_for_leaving(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def version_in(last_event_id: str, stream: str) -> int:
    """The number of the last event that a reader took of the stream with this name, by its id; 0
    for one that it cannot go on from.
    """
    name, _, version = last_event_id.rpartition(".")
    if name != stream or not version.isascii() or not version.isdigit() or len(version) > 15:
        return 0
    return int(version)


async def events_of(
    channel: Channel, since: int, now_ms: Callable[[], int]
) -> AsyncIterator[bytes]:
    """The states of a channel from a version on, one after the other, with a beat where nothing
    changes.
    """
    yield f'event: clock\ndata: {{"now":{now_ms()}}}\n\n'.encode()
    version = since if since <= channel.version else 0
    while True:
        if channel.version != version:
            event, version = channel.event(version), channel.version
            yield event
            continue
        try:
            async with asyncio.timeout(BEAT_SECONDS):
                await channel.newer_than(version)
        except TimeoutError:
            yield b"event: beat\ndata: 0\n\n"
