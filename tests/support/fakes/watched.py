"""Calls that are watched without a broker."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from consumers.console.fleet import Place
from consumers.console.reading import TooManyWatchedError, UnknownCallError, WatchedCalls
from consumers.console.watched import WatchedCall


class HeldCalls(WatchedCalls):
    """Calls held in memory, of which only so many may be watched at the same time.

    Attributes:
        calls: By id.
        pages: Pages that are open.
        left: Set once a page was closed.
        began_ms: When the call that was opened last is said to have begun.
    """

    def __init__(self, calls: Mapping[str, WatchedCall], most: int = 1_000) -> None:
        self.calls = dict(calls)
        self.pages = 0
        self.left = asyncio.Event()
        self.began_ms: int | None = None
        self._most_pages = most

    def follows(self, conversation_id: str) -> bool:
        """Whether a page of it is open."""
        return self.pages > 0 and conversation_id in self.calls

    @asynccontextmanager
    async def watch(
        self, conversation_id: str, place: Place | None, began_ms: int | None = None
    ) -> AsyncIterator[WatchedCall]:
        """The call, as the one of Kafka has it."""
        self.began_ms = began_ms
        if self.pages >= self._most_pages:
            raise TooManyWatchedError("too many")
        if conversation_id not in self.calls:
            raise UnknownCallError
        self.pages += 1
        try:
            yield self.calls[conversation_id]
        finally:
            self.pages -= 1
            self.left.set()
