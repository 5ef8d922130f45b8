"""Unwritten decisions of a partition, in order. What one step decided is written whole or not at all."""

import asyncio
from collections import deque
from itertools import islice
from typing import Final, NamedTuple

from schemas.judging import JudgeRequest
from schemas.order import Positions
from schemas.quarantine import QuarantineRecord
from schemas.scores.all_records import AnyScoreRecord
from schemas.transcript import Transcript

Written = AnyScoreRecord | QuarantineRecord | JudgeRequest | Transcript

MAX_TRANSACTION_RECORDS: Final = 1_000
"""Number of records at which a transaction takes no further decision: some 500 kB, far below the broker's limit."""
MAX_TRANSACTION_STEPS_BYTES: Final = 256 * 1_024
"""Bytes of steps at which it takes no further decision either: its record of `order` stays below the broker's limit."""


class Decision(NamedTuple):
    """The records that one step decided, and the steps before it.

    Attributes:
        records: Records to write.
        steps: All steps since the decision before it, encoded; this step is the last.
        version: Version of the steps, from `order_version`.
        positions: By input, the offset after the last record folded before them.
        time_ms: Broker time up to which silence was decided before them.
    """

    records: tuple[Written, ...]
    steps: bytes
    version: str
    positions: Positions
    time_ms: int


class Outbox:
    """Decisions that wait to be written, and the tasks that wait for that."""

    def __init__(self) -> None:
        self._decisions: deque[Decision] = deque()
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
        """Number of decisions put since the start. It marks a moment for `has_written`."""
        return self._put

    def put(self, decision: Decision) -> None:
        """Adds a decision behind all others."""
        self._decisions.append(decision)
        self._records += len(decision.records)
        self._put += 1
        self._filled.set()
        self._emptied.clear()

    def first(self) -> list[Decision]:
        """Returns the decisions of the next transaction, all of one version. They stay here until `written`."""
        decisions: list[Decision] = []
        records = steps_bytes = 0
        for decision in self._decisions:
            if decisions and decision.version != decisions[0].version:
                break
            decisions.append(decision)
            records += len(decision.records)
            steps_bytes += len(decision.steps)
            if records >= MAX_TRANSACTION_RECORDS or steps_bytes >= MAX_TRANSACTION_STEPS_BYTES:
                break
        return decisions

    def written(self, count: int) -> None:
        """Removes the first `count` decisions, which are written. After a `clear` in between there may be none."""
        count = min(count, len(self._decisions))
        self._records -= sum(len(decision.records) for decision in islice(self._decisions, count))
        for _ in range(count):
            self._decisions.popleft()
        self._done += count
        self._settle()

    def clear(self) -> None:
        """Drops all decisions, because another owner takes these steps."""
        self._done += len(self._decisions)
        self._decisions.clear()
        self._records = 0
        self._settle()

    async def until_filled(self) -> None:
        """Waits until there is a decision to write."""
        await self._filled.wait()

    def has_written(self, put: int) -> bool:
        """Whether all decisions put until a moment, a value of `put_so_far`, are written or cleared."""
        return self._done >= put

    async def until_written(self) -> None:
        """Waits until all decisions put by now are written or cleared."""
        put = self._put
        while self._done < put:
            self._emptied.clear()
            await self._emptied.wait()

    def _settle(self) -> None:
        if not self._decisions:
            self._filled.clear()
        self._emptied.set()
