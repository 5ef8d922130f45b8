"""The calls that the console has read: their rows, in a store of its own, and a number that tells
one state of a call from the next.
"""

import asyncio
import contextlib
import itertools
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from consumers.store.rows import MAX_STORE_BYTES, RowStore
from schemas.rows import StoredRow

MAX_EDITIONS: Final = 50_000
"""Calls whose state has a number; of the others, read longest ago, the page is drawn anew for who
comes.
"""

_EDITIONS: Final = itertools.count(1)


class ReadCalls(RowStore):
    """The calls that were read: their rows.

    Attributes:
        since_ms: From when on rows were read, in epoch ms; None before reading begins. Turns
            without a row since then are not known.
    """

    def __init__(self, path: Path | None = None, *, max_bytes: int = MAX_STORE_BYTES) -> None:
        """As of `RowStore`; the file may have rows of an earlier process."""
        super().__init__(path, max_bytes=max_bytes)
        self.since_ms: int | None = None
        self._editions: OrderedDict[str, int] = OrderedDict()
        self._awaited: dict[str, asyncio.Event] = {}

    def note(self, rows: Sequence[StoredRow]) -> None:
        """Gives the calls of these rows, which are kept now, another edition."""
        for row in rows:
            self._editions[row.conversation_id] = next(_EDITIONS)
            self._editions.move_to_end(row.conversation_id)
            if (awaited := self._awaited.get(row.conversation_id)) is not None:
                awaited.set()
        while len(self._editions) > MAX_EDITIONS:
            self._editions.popitem(last=False)

    async def await_rows(self, conversation_id: str, most_seconds: float) -> None:
        """Waits until rows of the call are noted, no longer than so many seconds. One at a time may
        wait for those of a call.
        """
        awaited = self._awaited[conversation_id] = asyncio.Event()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(most_seconds):
                    await awaited.wait()
        finally:
            del self._awaited[conversation_id]

    def edition(self, conversation_id: str) -> int:
        """Names a state of a call: what is made of the same edition is the same. 0 for a call
        without rows since the start.
        """
        return self._editions.get(conversation_id, 0)
