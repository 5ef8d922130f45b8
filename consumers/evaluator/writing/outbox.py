"""What a partition has decided and nobody has written yet: in order, in groups that are written whole or not at all."""

import asyncio
from collections import deque
from itertools import islice
from typing import Final

from schemas.judging import JudgeRequest
from schemas.quarantine import QuarantineRecord
from schemas.scores.all_records import AnyScoreRecord
from schemas.transcript import Transcript

Written = AnyScoreRecord | QuarantineRecord | JudgeRequest | Transcript
Group = tuple[Written, ...]

MAX_TRANSACTION_RECORDS: Final = 1_000
"""Records after which a transaction takes no further group: some 500 kB, a small part of what the broker accepts."""


class Outbox:
    """Groups waiting to be written, and who waits for that."""

    def __init__(self) -> None:
        self._groups: deque[Group] = deque()
        self._records = 0
        self._put = 0
        self._done = 0
        self._filled = asyncio.Event()
        self._emptied = asyncio.Event()
        self._emptied.set()

    @property
    def records(self) -> int:
        """Records not written yet."""
        return self._records

    @property
    def put_so_far(self) -> int:
        """Groups put since the beginning: a moment that `until_written` and `has_written` understand."""
        return self._put

    def put(self, group: Group) -> None:
        """One more group, behind all others."""
        if group:
            self._groups.append(group)
            self._records += len(group)
            self._put += 1
            self._filled.set()
            self._emptied.clear()

    def first(self) -> list[Group]:
        """The groups to write next, which stay here until `written` says so: as many as one transaction takes."""
        groups: list[Group] = []
        records = 0
        for group in self._groups:
            groups.append(group)
            records += len(group)
            if records >= MAX_TRANSACTION_RECORDS:
                break
        return groups

    def written(self, count: int) -> None:
        """The first `count` groups are written; after `clear` meanwhile there is nothing to take out."""
        count = min(count, len(self._groups))
        self._records -= sum(len(group) for group in islice(self._groups, count))
        for _ in range(count):
            self._groups.popleft()
        self._done += count
        self._settle()

    def clear(self) -> None:
        """Forget everything: it is no longer ours to write."""
        self._done += len(self._groups)
        self._groups.clear()
        self._records = 0
        self._settle()

    async def until_filled(self) -> None:
        """Wait until there is something to write."""
        await self._filled.wait()

    def has_written(self, put: int) -> bool:
        """Whether everything is written, or cleared, that was put up to this moment, as `put_so_far` gave it."""
        return self._done >= put

    async def until_written(self, put: int | None = None) -> None:
        """Wait until everything is written, or cleared, that was put up to this moment; None is this call's."""
        put = self._put if put is None else put
        while self._done < put:
            self._emptied.clear()
            await self._emptied.wait()

    def _settle(self) -> None:
        if not self._groups:
            self._filled.clear()
        self._emptied.set()
