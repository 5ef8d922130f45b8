"""Which calls run now and how far they are: what the score records seen so far say, bounded in number and in time."""

from collections import Counter, OrderedDict
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from consumers.exporter.running_progress import RunningProgress
from schemas.scores.all_records import AnyScoreRecord, ClosedFact
from schemas.scores.live_view import CallGoals

MAX_KNOWN_GROUPS: Final = 10_000
"""Combinations of agent, tenant and environment that are shown at 0 after their last call; beyond it they are dropped."""

Who = tuple[str, ...]


@dataclass(slots=True)
class _ActiveCall:
    partition: int
    who: Who
    heard_at_ms: int
    goals: CallGoals


class ActiveCalls:
    """Calls of which a record was read and no closing record yet.

    An exporter that starts in the middle of a call learns of it at the call's next record. Times are the reader's own
    clock, in ms.

    Attributes:
        progress: Of those that have goals.
    """

    def __init__(self, max_calls: int, forget_after_ms: int) -> None:
        """Starts empty.

        Args:
            max_calls: How many are remembered.
            forget_after_ms: Silence after which a call is taken for lost.
        """
        self.progress = RunningProgress()
        self._max_calls = max_calls
        self._forget_after_ms = forget_after_ms
        self._calls: OrderedDict[str, _ActiveCall] = OrderedDict()  # the quietest first
        self._running: Counter[Who] = Counter()

    def __len__(self) -> int:
        return len(self._calls)

    def take(self, record: AnyScoreRecord, partition: int, now_ms: int) -> int:
        """Learns from one record.

        Returns:
            How many calls were forgotten to make room: 0 or 1.
        """
        conversation_id = record.conversation_id
        goals = self._drop(conversation_id).goals if conversation_id in self._calls else CallGoals()
        if isinstance(record, ClosedFact):
            return 0
        who = (record.labels.agent, record.labels.tenant, record.labels.environment)
        call = _ActiveCall(partition, who, now_ms, goals.after(record))
        self._calls[conversation_id] = call
        self._running[who] += 1
        if call.goals.subgoals:
            self.progress.add(record.labels.agent, call.goals)
        if len(self._calls) <= self._max_calls:
            return 0
        self._drop(next(iter(self._calls)))
        return 1

    def progress_of(self, conversation_id: str) -> float | None:
        """A running call's progress after the newest turn judged; None when it is not known or has no goals."""
        call = self._calls.get(conversation_id)
        return None if call is None else call.goals.progress

    def forget_silent(self, now_ms: int) -> int:
        """Forgets the calls not heard of for too long, and returns how many."""
        forgotten = 0
        while self._calls:
            conversation_id, call = next(iter(self._calls.items()))
            if now_ms - call.heard_at_ms <= self._forget_after_ms:
                break
            self._drop(conversation_id)
            forgotten += 1
        return forgotten

    def keep_only(self, partitions: Collection[int]) -> None:
        """Drops the calls of other partitions: another exporter counts them now."""
        for conversation_id in [key for key, call in self._calls.items() if call.partition not in partitions]:
            self._drop(conversation_id)

    def by_who(self) -> dict[Who, int]:
        """How many run, by agent, tenant and environment; 0 where calls did run before, so that the line goes on."""
        if len(self._running) > MAX_KNOWN_GROUPS:
            self._running = +self._running
        return dict(self._running)

    def _drop(self, conversation_id: str) -> _ActiveCall:
        call = self._calls.pop(conversation_id)
        self._running[call.who] -= 1
        if call.goals.subgoals:
            self.progress.remove(call.who[0], call.goals)
        return call
