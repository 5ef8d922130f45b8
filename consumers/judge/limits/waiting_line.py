"""Questions that wait for their turn: who is next, who has waited too long, who is not wanted any more. Pure.

Calls at risk come first, then the nearest deadline, then who came first. The line is bounded: when it is full, whoever
would come last has to go.
"""

from bisect import bisect_left, insort
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

from schemas.judging import JudgeKind, JudgeRequest, UnjudgedReason

RUNNING_KINDS: Final = frozenset({JudgeKind.CONVERSATION_PROGRESSION})
"""Judged over the whole call again and again: one at a time for each call, and only the newest of those that wait."""

Subject = tuple[str, JudgeKind, str | None]
_Rank = tuple[int, int, int, str]


@dataclass(frozen=True, slots=True)
class Waiting:
    """One question in the line.

    Attributes:
        request: The question.
        arrived_ms: When it came.
        deadline_ms: When it is too late.
        number: Grows with every question, so that none have the same rank.
    """

    request: JudgeRequest
    arrived_ms: int
    deadline_ms: int
    number: int

    @property
    def request_id(self) -> str:
        """Names the question."""
        return self.request.request_id

    @property
    def subject(self) -> Subject:
        """What is judged, whatever the turn."""
        return (self.request.conversation_id, self.request.kind, self.request.subgoal_id)

    @property
    def rank(self) -> _Rank:
        """Its place among the others; the least is next."""
        return (-self.request.priority, self.deadline_ms, self.number, self.request_id)


class WaitingLine:
    """The line."""

    def __init__(self, max_waiting: int, *, skips_superseded: bool) -> None:
        """Nobody waits.

        Args:
            max_waiting: How many may.
            skips_superseded: Whether a question leaves when one about a later state of the same subject comes.
        """
        self._max_waiting = max_waiting
        self._skips_superseded = skips_superseded
        self._by_id: dict[str, Waiting] = {}
        self._ranks: list[_Rank] = []
        self._deadlines: list[tuple[int, str]] = []
        self._newest: dict[Subject, Waiting] = {}
        self._running: set[Subject] = set()

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def next_deadline_ms(self) -> int | None:
        """When the first of them will have waited too long."""
        return self._deadlines[0][0] if self._deadlines else None

    @property
    def oldest_ms(self) -> int | None:
        """When the one came that has waited longest."""
        return min((waiting.arrived_ms for waiting in self._by_id.values()), default=None)

    def put(self, waiting: Waiting) -> Iterator[tuple[Waiting, UnjudgedReason]]:
        """One more, perhaps in the place of others.

        Yields:
            Who leaves the line for it, and why; it may be itself.
        """
        if self._skips_superseded or waiting.request.kind in RUNNING_KINDS:
            other = self._newest.get(waiting.subject)
            if other is not None:
                if other.request.turn > waiting.request.turn:
                    yield waiting, UnjudgedReason.SUPERSEDED
                    return
                self._remove(other)
                yield other, UnjudgedReason.SUPERSEDED
            self._newest[waiting.subject] = waiting
        self._by_id[waiting.request_id] = waiting
        insort(self._ranks, waiting.rank)
        insort(self._deadlines, (waiting.deadline_ms, waiting.request_id))
        if len(self._by_id) > self._max_waiting:
            last = self._by_id[self._ranks[-1][-1]]
            self._remove(last)
            yield last, UnjudgedReason.QUEUE_FULL

    def take(self) -> Waiting | None:
        """The next one, who leaves the line; None when nobody may be asked now."""
        for rank in self._ranks:
            waiting = self._by_id[rank[-1]]
            if waiting.subject in self._running:
                continue
            self._remove(waiting)
            if waiting.request.kind in RUNNING_KINDS:
                self._running.add(waiting.subject)
            return waiting
        return None

    def finished(self, waiting: Waiting) -> None:
        """One that was taken is done with, for whatever reason."""
        self._running.discard(waiting.subject)

    def expired(self, now_ms: int) -> list[Waiting]:
        """Those who have waited too long; they leave the line."""
        gone = []
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            gone.append(self._by_id[self._deadlines[0][1]])
            self._remove(gone[-1])
        return gone

    def withdraw(self, request_ids: Collection[str]) -> list[Waiting]:
        """Takes those out of the line who are in it."""
        gone = [self._by_id[request_id] for request_id in request_ids if request_id in self._by_id]
        for waiting in gone:
            self._remove(waiting)
        return gone

    def _remove(self, waiting: Waiting) -> None:
        del self._by_id[waiting.request_id]
        del self._ranks[bisect_left(self._ranks, waiting.rank)]
        del self._deadlines[bisect_left(self._deadlines, (waiting.deadline_ms, waiting.request_id))]
        if self._newest.get(waiting.subject) is waiting:
            del self._newest[waiting.subject]
