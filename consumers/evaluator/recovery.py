"""Recovery: a successor folds again what the former owner of a partition had folded, silently,
until its state is the same.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from consumers.engine.admission import Arrival
from consumers.engine.effects import Effect, RequestVerdict
from consumers.engine.evaluator import PartitionEvaluator
from schemas.goals.goal_set import GoalSet
from schemas.judging import JudgeRequest
from schemas.log import Event
from schemas.owners import PartitionRow

MAX_KEPT_REQUESTS: Final = 256
"""Questions of a call that are asked once again; the oldest are left out."""


class Withheld:
    """The questions of calls that are folded again, which another version may ask otherwise."""

    def __init__(self) -> None:
        self._requests: dict[str, dict[str, JudgeRequest]] = {}

    def keep_questions(self, effects: Iterable[Effect]) -> None:
        """Keeps the questions among the effects."""
        for effect in effects:
            if isinstance(effect, RequestVerdict):
                request = effect.request
                requests = self._requests.setdefault(request.conversation_id, {})
                requests[request.request_id] = request
                if len(requests) > MAX_KEPT_REQUESTS:
                    del requests[next(iter(requests))]

    def again(self, conversation_id: str) -> Collection[JudgeRequest]:
        """The questions of this call."""
        return self._requests.pop(conversation_id, {}).values()


class Recovery(NamedTuple):
    """What a successor knows of a partition before it folds: the last row, and what `scores` says
    of its calls.

    Attributes:
        row: The last row of the partition; None if it never had an owner.
        start: Offset of the first record to fold.
        place: Offset before which nothing is published; None if the log is another one than that of
            the row. Then nothing is published until known time is that of the row.
        closed: Calls that have closed, in order, with a place behind the record that closed them.
        open: Calls that have rows and did not close.
        lacking: Those of which records are lost: what they lack may have counted.
        goals: Goal sets of calls that got one, each with the revision of its row.
        is_cut: Whether records of open calls are gone from the log now, and were there for the
            former owner.
        base: What is added to revisions: see `PartitionRow.base`.
    """

    row: PartitionRow | None
    start: int
    place: int | None
    closed: Mapping[str, int] = {}
    open: Collection[str] = ()
    lacking: Collection[str] = ()
    goals: Mapping[str, tuple[int, GoalSet]] = {}
    is_cut: bool = False
    base: int = 0


class Recovering:
    """Leads the engine of a successor to the state of the former owner, which had seen more than is
    folded again.

    Attributes:
        known: What is known of the former owner.
        withheld: Questions of calls that have to be published once again; None if none has, because
            the same version published them.
        goals: Goal sets of the calls that had one by now.
    """

    def __init__(self, known: Recovery, evaluator: PartitionEvaluator, version: str) -> None:
        """Tells the engine which calls have closed, and how far time had come."""
        row = known.row
        is_other = known.is_cut or (row is not None and row.version != version)
        self.known = known
        self.withheld = Withheld() if is_other else None
        self.goals: dict[str, GoalSet] = {}
        self._evaluator = evaluator
        self._closed = {
            conversation_id.encode(): place for conversation_id, place in known.closed.items()
        }
        self._is_same_log = is_same_log = row is not None and known.place is not None
        base, evicted = (0, {}) if row is None else (row.base, row.evicted)
        self._evicted = {at: each for each, at in evicted.items()} if is_same_log else {}
        # the place of the record that brought them
        self._goals = {
            each: (max(0, revision - base) // 2, goal_set)
            for each, (revision, goal_set) in known.goals.items()
        }
        evaluator.is_silent = True
        evaluator.base = known.base
        evaluator.lacking = set(known.lacking)
        for conversation_id in known.closed:
            if conversation_id not in known.open:
                evaluator.has_closed(conversation_id)

    def skips(self, event: Event) -> bool:
        """Whether this is an event of a call that has closed: it is not even decoded."""
        return event.place < self._closed.get(event.key or b"", 0)

    def precede(self, arrival: Arrival) -> None:
        """Closes the call that this record closed then, for want of room, and has the goals of its
        own call if it brought them.
        """
        place, goal_set = self._goals.get(arrival.conversation_id, (0, None))
        if goal_set is not None and (arrival.offset >= place or not self._is_same_log):
            self.goals[arrival.conversation_id] = goal_set
        if (evicted := self._evicted.get(arrival.offset)) is not None:
            self._evaluator.evict(evicted, arrival)

    def is_done(self, place: int, known_ms: int) -> bool:
        """Whether all is folded that the former owner had folded."""
        row, until = self.known.row, self.known.place
        if until is None:
            return row is None or known_ms >= row.known_ms
        return place >= until
