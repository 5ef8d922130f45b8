"""Unwritten records of a partition: in order, in groups that are written whole or not at all."""

import asyncio
from collections import deque
from collections.abc import Mapping
from itertools import islice
from typing import Final

from consumers.evaluator.recall.journal import Journal
from schemas.judging import JudgeRequest
from schemas.quarantine import QuarantineRecord
from schemas.scores.all_records import AnyScoreRecord
from schemas.transcript import Transcript

Written = AnyScoreRecord | QuarantineRecord | JudgeRequest | Transcript
Group = tuple[Written, ...]

MAX_TRANSACTION_RECORDS: Final = 1_000
"""Number of records at which a transaction takes no further group: some 500 kB, far below the broker's limit."""


class Outbox:
    """Groups of records that wait to be written, and the tasks that wait for that.

    Attributes:
        journal: The steps that decided the groups; one that has ended, while nothing needs them.
    """

    def __init__(self) -> None:
        self.journal = Journal.ended()
        self._groups: deque[Group] = deque()
        self._records = 0
        self._put = 0
        self._done = 0
        self._filled = asyncio.Event()
        self._emptied = asyncio.Event()
        self._emptied.set()

    @property
    def records(self) -> int:
        """Number of unwritten records."""
        return self._records

    @property
    def put_so_far(self) -> int:
        """Number of groups put since the start. It marks a moment for `until_written` and `has_written`."""
        return self._put

    def put(self, group: Group) -> None:
        """Adds a group behind all others."""
        if group:
            self._groups.append(group)
            self._records += len(group)
            self._put += 1
            self._filled.set()
            self._emptied.clear()

    def begin_journal(self, positions: Mapping[str, int]) -> Journal:
        """Begins a journal of the steps from now on, in place of an earlier one.

        Args:
            positions: By topic, the offset after the last folded record.
        """
        self.journal = Journal(positions, sum(map(is_decided, self._groups)))
        return self.journal

    def first(self) -> list[Group]:
        """Returns the groups of the next transaction. They stay here until `written`."""
        groups: list[Group] = []
        records = 0
        for group in self._groups:
            groups.append(group)
            records += len(group)
            if records >= MAX_TRANSACTION_RECORDS:
                break
        return groups

    def written(self, count: int) -> None:
        """Removes the first `count` groups, which are written. After a `clear` in between there may be none."""
        count = min(count, len(self._groups))
        self._records -= sum(len(group) for group in islice(self._groups, count))
        decided = 0
        for _ in range(count):
            decided += is_decided(self._groups.popleft())
        self.journal.wrote(decided)
        self._done += count
        self._settle()

    def clear(self) -> None:
        """Drops all groups, because another owner writes them."""
        self._done += len(self._groups)
        self._groups.clear()
        self._records = 0
        self.journal.end()
        self._settle()

    async def until_filled(self) -> None:
        """Waits until there is a group to write."""
        await self._filled.wait()

    def has_written(self, put: int) -> bool:
        """Whether all groups put until a moment, a value of `put_so_far`, are written or cleared."""
        return self._done >= put

    async def until_written(self, put: int | None = None) -> None:
        """Waits until all groups put until a moment, a value of `put_so_far`, are written or cleared; None means now."""
        put = self._put if put is None else put
        while self._done < put:
            self._emptied.clear()
            await self._emptied.wait()

    def _settle(self) -> None:
        if not self._groups:
            self._filled.clear()
        self._emptied.set()


def is_decided(group: Group) -> bool:
    """Whether the engine decided the group. The others are reports of refused records, which no step of it repeats."""
    return not isinstance(group[0], QuarantineRecord)
