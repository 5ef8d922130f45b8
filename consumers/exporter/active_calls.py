"""The running calls as the score records show them: how many, their progress, and who waits; bounded in number and in time."""

from collections import Counter, OrderedDict
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from consumers.exporter.interruptions import Interruptions
from consumers.exporter.running_progress import RunningProgress
from consumers.exporter.user_turns import UserTurns
from schemas.scores.all_records import AnyScoreRecord, CallValues, ClosedFact
from schemas.scores.live_view import CallGoals

MAX_KNOWN_GROUPS: Final = 10_000
"""Most combinations of agent, tenant and environment that stay on the page at 0 after their last call."""

Who = tuple[str, ...]


class CallSoFar(NamedTuple):
    """A call as its records before the newest one show it; the default is a call without any.

    Attributes:
        goals: Its progress.
        user_turns: Waits for an answer in its newest turn.
        interruptions: Those in turns that it has not left.
        is_over: Whether it only waits for verdicts.
    """

    goals: CallGoals = CallGoals()
    user_turns: UserTurns = UserTurns()
    interruptions: Interruptions = Interruptions()
    is_over: bool = False

    @property
    def progress(self) -> float | None:
        """Progress after the newest judged turn, from 0 to 1; None if it is not known or the call has no goals."""
        return self.goals.progress

    def after(self, record: AnyScoreRecord) -> "CallSoFar":
        """Returns the call after one more record."""
        is_over = self.is_over or (isinstance(record, CallValues) and record.is_over)
        return CallSoFar(
            self.goals.after(record), self.user_turns.after(record), self.interruptions.after(record), is_over
        )


@dataclass(slots=True)
class _ActiveCall:
    partition: int
    who: Who
    heard_at_ms: int
    so_far: CallSoFar


class ActiveCalls:
    """Calls with a record, and without a closing record so far. Those that are over and wait for verdicts are kept and do not
    count as running.

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
        so_far = self._drop(conversation_id).so_far if conversation_id in self._calls else CallSoFar()
        if isinstance(record, ClosedFact):
            return 0
        who = (record.labels.agent, record.labels.tenant, record.labels.environment)
        call = _ActiveCall(partition, who, now_ms, so_far.after(record))
        self._calls[conversation_id] = call
        self._count(call, 1)
        if len(self._calls) <= self._max_calls:
            return 0
        self._drop(next(iter(self._calls)))
        return 1

    def so_far(self, conversation_id: str) -> CallSoFar:
        """Returns the call as its records so far show it."""
        call = self._calls.get(conversation_id)
        return CallSoFar() if call is None else call.so_far

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
        self._count(call, -1)
        return call

    def _count(self, call: _ActiveCall, sign: Literal[1, -1]) -> None:
        """Adds a running call to the sums, or removes it exactly as it was added."""
        goals = call.so_far.goals
        self._running[call.who] += 0 if call.so_far.is_over else sign
        if not goals.subgoals or call.so_far.is_over:
            return
        if sign > 0:
            self.progress.add(call.who[0], goals)
        else:
            self.progress.remove(call.who[0], goals)
