"""The running calls and their progress, as the score records show them; bounded in number and in time."""

from collections import Counter, OrderedDict
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from consumers.exporter.running_progress import RunningProgress
from schemas.scores.all_records import AnyScoreRecord, ClosedFact
from schemas.scores.live_view import CallGoals

MAX_KNOWN_GROUPS: Final = 10_000
"""Most combinations of agent, tenant and environment that stay on the page at 0 after their last call."""

Who = tuple[str, ...]


@dataclass(slots=True)
class _ActiveCall:
    partition: int
    who: Who
    heard_at_ms: int
    goals: CallGoals


class ActiveCalls:
    """Calls with a record, and without a closing record so far.

    An exporter that starts in the middle of a call sees it at the call's next record. Times are of the reader's clock, in ms.

    Attributes:
        progress: Sums over the calls that have goals.
    """

    def __init__(self, max_calls: int, forget_after_ms: int) -> None:
        """Starts empty.

        Args:
            max_calls: Most calls to remember.
            forget_after_ms: Silence after which a call counts as lost.
        """
        self.progress = RunningProgress()
        self._max_calls = max_calls
        self._forget_after_ms = forget_after_ms
        self._calls: OrderedDict[str, _ActiveCall] = OrderedDict()  # the quietest first
        self._running: Counter[Who] = Counter()

    def __len__(self) -> int:
        return len(self._calls)

    def take(self, record: AnyScoreRecord, partition: int, now_ms: int) -> int:
        """Folds one record.

        Returns:
            Number of calls that were forgotten to make room: 0 or 1.
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
        """Returns the progress of a running call after its newest judged turn; None if it is not known or has no goals."""
        call = self._calls.get(conversation_id)
        return None if call is None else call.goals.progress

    def forget_silent(self, now_ms: int) -> int:
        """Forgets the calls without a record for too long, and returns their number."""
        forgotten = 0
        while self._calls:
            conversation_id, call = next(iter(self._calls.items()))
            if now_ms - call.heard_at_ms <= self._forget_after_ms:
                break
            self._drop(conversation_id)
            forgotten += 1
        return forgotten

    def keep_only(self, partitions: Collection[int]) -> None:
        """Drops the calls of other partitions, because another exporter counts them now."""
        for conversation_id in [key for key, call in self._calls.items() if call.partition not in partitions]:
            self._drop(conversation_id)

    def by_who(self) -> dict[Who, int]:
        """Returns the number of running calls by agent, tenant and environment; 0 for groups of former calls, so that their lines
        in graphs go on.
        """
        if len(self._running) > MAX_KNOWN_GROUPS:
            self._running = +self._running
        return dict(self._running)

    def _drop(self, conversation_id: str) -> _ActiveCall:
        call = self._calls.pop(conversation_id)
        self._running[call.who] -= 1
        if call.goals.subgoals:
            self.progress.remove(call.who[0], call.goals)
        return call
