"""The events of one call on their way: bounded, and dropped events are counted."""

import asyncio
import json
import time
from collections import Counter, deque
from collections.abc import Sequence
from typing import Final

from callgauge_send.events import Rank, Record

MAX_WAITING: Final = 2_000
"""Events of one call that wait for the broker. A call has 200 to 340 a minute, so this is at least
six minutes of it.
"""
LOSS: Final = "events_dropped"
"""Type of the record with the number of dropped events of a call, by what they contained."""
UNREAD: Final = "unread"
"""What could not be read, and events that a sink did not take; counted with the dropped events."""


class EventOutbox:
    """Events that wait, and the few that are being sent. `put` neither waits nor raises."""

    def __init__(self, conversation_id: str, source: str, most: int = MAX_WAITING) -> None:
        """Begins empty.

        Args:
            conversation_id: Key of all its records.
            source: Name of the producer. With the number of a record it identifies the record for
                ever.
            most: Bound of the events that wait or are being sent.
        """
        self.conversation_id = conversation_id
        self.source = source
        self.lost: Counter[str] = Counter()
        self.is_empty = asyncio.Event()
        self.is_empty.set()
        self._most = most
        self._waiting: deque[Record] = deque()
        self._being_sent: list[Record] = []
        self._held = [0] * len(Rank)
        self._unreported: Counter[str] = Counter()
        # stays the same until it is acknowledged, so that nothing is counted twice
        self._loss: Record | None = None
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._waiting) + len(self._being_sent)

    def put(self, rank: Rank, kind: str, value: bytes) -> None:
        """Adds an event. Without room for it, the oldest event of the lowest rank is dropped."""
        if len(self) >= self._most and not self._make_room(rank):
            self.lose(rank.name.lower())
            return
        self._waiting.append(self._record(rank, kind, value))
        self._held[rank] += 1
        self.is_empty.clear()

    def lose(self, what: str) -> None:
        """Counts a lost event, for the next record that reports them."""
        self.lost[what] += 1
        self._unreported[what] += 1
        self.is_empty.clear()

    def refuse(self, record: Record) -> None:
        """Counts a record that the other side will never take. A refused report of losses is not
        reported again.
        """
        if record.type != LOSS:
            self.lose(record.rank.name.lower())

    def next_records(self, most: int) -> Sequence[Record]:
        """Returns the next records to send, oldest first; `settle` must follow. A report of losses
        goes first.
        """
        if self._loss is None and self._unreported:
            event = {
                "type": LOSS,
                "timestamp": int(time.time() * 1000),
                "data": dict(self._unreported),
            }
            self._loss = self._record(
                Rank.CALL, LOSS, json.dumps(event, separators=(",", ":")).encode()
            )
            self._unreported.clear()
        for _ in range(min(most, len(self._waiting))):
            record = self._waiting.popleft()
            self._held[record.rank] -= 1
            self._being_sent.append(record)
        return [self._loss, *self._being_sent] if self._loss is not None else list(self._being_sent)

    def settle(self, unsent: Sequence[Record]) -> None:
        """Ends what `next_records` began: records that the broker did not acknowledge are first again."""
        self._being_sent = []
        if self._loss not in unsent:
            self._loss = None
        for record in reversed(unsent):
            if record is not self._loss:
                self._waiting.appendleft(record)
                self._held[record.rank] += 1
        if not self._waiting and not self._unreported and self._loss is None:
            self.is_empty.set()

    def drop_all(self) -> None:
        """Drops all waiting events, for one record that reports them."""
        for record in self._waiting:
            self.lose(record.rank.name.lower())
        self._waiting.clear()
        self._held = [0] * len(Rank)

    def _record(self, rank: Rank, kind: str, value: bytes) -> Record:
        self._sequence += 1
        return Record(rank, kind, value, self._sequence)

    def _make_room(self, rank: Rank) -> bool:
        """Drops the oldest of the lowest rank that waits, unless the new event's rank is lower
        still.
        """
        lowest = next((Rank(each) for each, count in enumerate(self._held) if count), None)
        if lowest is None or lowest > rank:
            return False
        place = next(index for index, record in enumerate(self._waiting) if record.rank is lowest)
        del self._waiting[place]
        self._held[lowest] -= 1
        self.lose(lowest.name.lower())
        return True
