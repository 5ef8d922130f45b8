"""Folds the inputs of a partition again in the order of its former owners, silently, until its state is theirs."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from consumers.engine.effects import Effect, OpenCall, PublishScore, RequestVerdict
from consumers.engine.goals.chosen_goals import ChosenGoals
from consumers.engine.intake.admission import Arrival
from consumers.engine.partition import PartitionEvaluator
from consumers.evaluator.reading.input_merge import Records
from consumers.evaluator.recovery.order_log import OrderLog
from schemas.closed_sets import InputSource
from schemas.goals.goal_set import GoalSet
from schemas.judging import JudgeRequest
from schemas.order import Closed, Evicted, Fold, GoalsChosen, OrderStart, Positions, Renumbered, Step, TimePassed
from schemas.scores.all_records import AnyScoreRecord, TurnValues
from schemas.scores.newest_scores import Subject
from schemas.scores.record import next_generation

MAX_STEPS_AT_A_TIME: Final = 500
"""Steps that are taken before anything else has a turn: some 15 ms of work."""
MAX_WAITING_RECORDS: Final = 2_000
"""Records of an input that may wait for another one; then its reading pauses."""
MAX_KEPT_REQUESTS: Final = 256
"""Questions of a call that are asked once again; the oldest are left out."""

Admits = Callable[[InputSource, Any], object]
"""Decodes a record: an `Arrival`, or something else if it was refused."""


class Withheld:
    """Unpublished decisions of the engine: the newest record of each subject of a call, and its questions."""

    def __init__(self) -> None:
        self._records: dict[str, dict[Subject, AnyScoreRecord]] = {}
        self._requests: dict[str, dict[str, JudgeRequest]] = {}

    def take(self, effects: Iterable[Effect]) -> None:
        """Keeps the records and questions among the effects."""
        for effect in effects:
            match effect:
                case PublishScore(record):
                    by_subject = self._records.setdefault(record.conversation_id, {})
                    by_subject[record.name, record.turn, record.index] = record
                case RequestVerdict(request):
                    requests = self._requests.setdefault(request.conversation_id, {})
                    requests[request.request_id] = request
                    if len(requests) > MAX_KEPT_REQUESTS:
                        del requests[next(iter(requests))]
                case _:
                    pass

    def of(self, conversation_id: str, least_revision: int) -> tuple[AnyScoreRecord | JudgeRequest, ...]:
        """Returns the records of a call with this revision, which count nothing a second time, and its questions."""
        again: list[AnyScoreRecord | JudgeRequest] = []
        for record in self._records.pop(conversation_id, {}).values():
            counted: dict[str, Any] = {"first_known": ()} if isinstance(record, TurnValues) else {}
            again.append(record.model_copy(update={"revision": least_revision, "is_first": False, **counted}))
        again += self._requests.pop(conversation_id, {}).values()
        return tuple(again)


class Replay:
    """Takes the steps of a partition's order once more. Records of calls that the order closes are skipped, undecoded.

    Attributes:
        positions: By input, the offset after the last record that was folded or skipped.
        replayed: By input, how many of them.
        time_ms: Broker time up to which silence is decided.
        lost: Records that the order has and the inputs do not have any more.
        read_to: By input, the offset up to which it was read.
        withheld: Results of the open calls that another version published.
    """

    def __init__(
        self,
        log: OrderLog,
        starts: Positions,
        ends: Positions,
        version: str,
        evaluator: PartitionEvaluator,
        admits: Admits,
        goals: ChosenGoals | None = None,
        sets: Mapping[str, GoalSet] | None = None,
        firsts: Positions | None = None,
    ) -> None:
        """Starts before the first step.

        Args:
            log: The order, as it was read.
            starts: By input, the first record of the oldest open call. All earlier records are of closed calls.
            ends: By input, the offset at which it ends.
            version: This process's own, from `order_version`.
            evaluator: Folds the records.
            admits: Decodes them.
            goals: Gives the calls what they got then.
            sets: Goal sets of that time, by digest.
            firsts: By input, the offset at which it begins, if that is after its start.
        """
        self.positions = dict(starts)
        self.replayed = dict.fromkeys(starts, 0)
        self.time_ms = 0
        self.lost = 0
        self.read_to: dict[InputSource, int] = {}
        self.withheld = Withheld()
        self._steps: Iterator[OrderStart | Step] = log.steps()
        self._step: Fold | None = None
        self._closings = log.closings.copy()
        self._ends = ends
        self._firsts = firsts or {}
        self._version = version
        self._written_by: str | None = None  # until the first start
        self._evaluator = evaluator
        self._admits = admits
        self._goals = goals or ChosenGoals()
        self._sets = sets or {}
        self._goals.logged = {}
        self._version_of: dict[str, str | None] = {}  # by call that the order leaves open: who published its records
        self._least_revisions: dict[str, int] = {}  # of these calls, where it is not 1
        self._evicted: str | None = None
        is_cut = any(first > starts.get(source, 0) for source, first in self._firsts.items())
        self._withholds = is_cut or log.versions != {version}
        self._waiting: dict[InputSource, deque[Any]] = {source: deque() for source in starts}

    def put(self, source: InputSource, records: Records) -> None:
        """Takes records of an input that were read, in order."""
        self._waiting[source].extend(records)

    def clear(self) -> None:
        """Drops the records that wait: reading begins again at `positions`."""
        self.read_to.clear()
        for waiting in self._waiting.values():
            waiting.clear()

    @property
    def can_go_on(self) -> bool:
        """Whether the next step needs no record that was not read yet."""
        return self._step is None or self.waits(self._step.source)

    def waits(self, source: InputSource) -> bool:
        """Whether a record of this input waits."""
        return bool(self._waiting[source])

    def is_full(self, source: InputSource, *, is_paused: bool) -> bool:
        """Whether reading of this input should pause, or stay paused."""
        return len(self._waiting[source]) * (2 if is_paused else 1) > MAX_WAITING_RECORDS

    def go_on(self) -> bool:
        """Takes some steps, as far as their records are there; returns whether the last one is taken."""
        for _ in range(MAX_STEPS_AT_A_TIME):
            step = self._step or next(self._steps, None)
            if step is None:
                return True
            if isinstance(step, Fold):
                if not self._fold(step):
                    self._step = step
                    return False
                self._step = None
            else:
                self._take(step)
        return False

    def rest(self) -> Sequence[tuple[InputSource, Records]]:
        """Returns the records behind the last step, which belong to nobody's order yet."""
        return [(source, tuple(waiting)) for source, waiting in self._waiting.items() if waiting]

    def of_other_versions(self) -> Sequence[Renumbered]:
        """Returns the open calls whose records another version published, with the first revision of the next generation; all of them
        after a loss, because the state is not that of the former owner, those of which no record is left included.
        """
        return [
            Renumbered(conversation_id, next_generation(self._least_revisions.get(conversation_id, 1)), not self.lost)
            for conversation_id, version in self._version_of.items()
            if self.lost or version != self._version
        ]

    def _fold(self, step: Fold) -> bool:
        """Folds or skips the record of a step; returns whether it did: the record may not be there yet."""
        source, offset, opened = step
        if opened is not None and not self._closings[opened]:
            self._version_of[opened] = self._written_by
        if offset < self.positions[source]:  # of a call that closed before reading begins, or whose first record was lost
            self._evicted = None
            return True
        record = self._record(source, offset)
        is_gone = not self._firsts.get(source, 0) <= offset < self._ends[source] or offset < self.read_to.get(source, 0)
        if record is None and not is_gone and not self._waiting[source]:
            return False
        self.positions[source] = offset + 1
        evicted, self._evicted = self._evicted, None
        if record is None:
            self.lost += 1
            return True
        self.replayed[source] += 1
        if (record.key or b"").decode("utf-8", "replace") in self._version_of:
            arrival = self._admits(source, record)
            if isinstance(arrival, Arrival):
                opening = None if opened is None else OpenCall(evicted)
                self._withhold(self._evaluator.receive_again(arrival, opening))
                self._goals.logged = {}
        return True

    def _withhold(self, effects: Iterable[Effect]) -> None:
        if self._withholds:
            self.withheld.take(effects)

    def _record(self, source: InputSource, offset: int) -> Any:
        """Returns the record at this offset; None while it is not there, or if it is gone."""
        waiting = self._waiting[source]
        while waiting and waiting[0].offset < offset:
            waiting.popleft()
        return waiting.popleft() if waiting and waiting[0].offset == offset else None

    def _take(self, step: OrderStart | Step) -> None:
        match step:
            case OrderStart(version=version, time_ms=time_ms):
                is_first, self._written_by = self._written_by is None, version
                if is_first:
                    self.time_ms = time_ms
                    self._evaluator.pass_time(time_ms)
            case TimePassed(now_ms):
                self.time_ms = now_ms
                self._withhold(self._evaluator.pass_time(now_ms))
                self._goals.logged = {}
            case Evicted(conversation_id):
                self._evicted = conversation_id
            case Closed(conversation_id):
                self._closings[conversation_id] -= 1
                self._evaluator.has_closed(conversation_id)
            case Renumbered(conversation_id, least_revision, counts):
                if not self._closings[conversation_id]:
                    self._version_of[conversation_id] = self._written_by
                    self._least_revisions[conversation_id] = least_revision
                    self._evaluator.renumber(conversation_id, least_revision, counts=counts)
            case GoalsChosen(conversation_id, _, digest) if digest in self._sets:
                self._goals.logged = {**(self._goals.logged or {}), conversation_id: self._sets[digest]}
            case _:
                pass
