"""The line of waiting questions: which is next, which has expired, and which is superseded. Pure.

Calls at risk come first, then the nearest deadline, then the earliest arrival. The line is bounded: when it is full, the last
question in this order leaves.
"""

from bisect import bisect_left, insort
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

from schemas.judging import JudgeKind, JudgeRequest, UnjudgedReason

RUNNING_KINDS: Final = frozenset({JudgeKind.CONVERSATION_PROGRESSION})
"""Kinds that judge the whole call again and again. Of each call, one is asked at a time, and only the newest waits."""

Subject = tuple[str, JudgeKind, str | None]
_Rank = tuple[int, int, int, str]


@dataclass(frozen=True, slots=True)
class Waiting:
    """One question in the line.

    Attributes:
        request: The question.
        arrived_ms: When it arrived.
        deadline_ms: When a verdict is too late.
        number: Grows with every question, so that no two have the same rank.
    """

    request: JudgeRequest
    arrived_ms: int
    deadline_ms: int
    number: int

    @property
    def request_id(self) -> str:
        """Id of the question."""
        return self.request.request_id

    @property
    def subject(self) -> Subject:
        """The judged subject of the call, without the turn."""
        return (self.request.conversation_id, self.request.kind, self.request.subgoal_id)

    @property
    def rank(self) -> _Rank:
        """Sort key of the line; the question with the lowest is next."""
        return (-self.request.priority, self.deadline_ms, self.number, self.request_id)


class WaitingLine:
    """The bounded line of waiting questions."""

    def __init__(self, max_waiting: int, *, skips_superseded: bool) -> None:
        """Starts empty.

        Args:
            max_waiting: Most waiting questions.
            skips_superseded: Whether a question leaves when one about a later state of the same subject arrives.
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
        """The earliest deadline; None if the line is empty."""
        return self._deadlines[0][0] if self._deadlines else None

    @property
    def oldest_ms(self) -> int | None:
        """Arrival of the question that has waited longest; None if the line is empty."""
        return min((waiting.arrived_ms for waiting in self._by_id.values()), default=None)

    def put(self, waiting: Waiting) -> Iterator[tuple[Waiting, UnjudgedReason]]:
        """Adds a question.

        Yields:
            Questions that leave the line for it, with the reason; it may be the new one.
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
        """Removes and returns the next question; None when none may be asked now."""
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
        """Notes that a taken question is finished, with or without a verdict."""
        self._running.discard(waiting.subject)

    def expired(self, now_ms: int) -> list[Waiting]:
        """Removes and returns the questions past their deadline."""
        gone = []
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            gone.append(self._by_id[self._deadlines[0][1]])
            self._remove(gone[-1])
        return gone

    def withdraw(self, request_ids: Collection[str]) -> list[Waiting]:
        """Removes questions by id, if they are in the line."""
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
