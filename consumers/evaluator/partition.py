"""One partition of the log, as long as it is assigned to this process."""

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import structlog

from consumers.engine.admission import admit, unfit_bytes
from consumers.engine.effects import Effect, NotUnderstood, PublishScore, RequestVerdict
from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.goals.progress import ChosenGoals
from consumers.engine.limits import Limits
from consumers.engine.redaction.redactor import Redactor
from consumers.evaluator.writer import Decision, Outlet, Trip, Written, carry_out
from consumers.runtime.process import wall_clock_ms
from consumers.runtime.registry import Instruments
from schemas.closed_sets import RefusalReason
from schemas.goals.goal_set import GoalSet
from schemas.judging import JudgeRequest
from schemas.log import Begin, Event, LogError, LogReader, Tick
from schemas.owners import Generation, PartitionRow
from schemas.quarantine import QuarantineRecord, UndecodableRecord
from schemas.scores.live_view import Subject
from schemas.scores.records import AnyScoreRecord, TurnValues, next_generation

log = structlog.get_logger()

# Counts records that are taken and not understood, and logs each kind of them once, with the remedy.

MAX_KINDS: Final = 256
"""Kinds that one process logs. A producer that makes up a new one for each record would fill the disk otherwise."""


class MisreadRecords:
    """The kinds that this process has met, over all of its partitions."""

    def __init__(self, instruments: Instruments) -> None:
        self._instruments = instruments
        self._logged: set[tuple[str, str]] = set()

    def take(self, report: NotUnderstood) -> None:
        """Counts a record that was not understood, and logs it if it is the first of its kind."""
        misread, source = report.misread, report.source.value
        self._instruments.inc("callgauge_misread_records_total", (source, misread.reason.value))
        kind = source, misread.what
        if kind in self._logged or len(self._logged) >= MAX_KINDS:
            return
        self._logged.add(kind)
        log.warning(
            "records_not_understood", source=source, seen=misread.what, conversation_id=report.conversation_id,
            what_happens_now="They are counted and do nothing, or less than they could. This kind is logged once.",
            what_to_do=misread.what_to_do,
        )  # fmt: skip


# Decisions that a former owner has published, and that another version publishes once again.

MAX_KEPT_REQUESTS: Final = 256
"""Questions of a call that are asked once again; the oldest are left out."""


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

    def of(self, conversation_id: str, revision: int) -> tuple[AnyScoreRecord | JudgeRequest, ...]:
        """Returns the records of a call with this revision, which count nothing a second time, and its questions."""
        again: list[AnyScoreRecord | JudgeRequest] = []
        for record in self._records.pop(conversation_id, {}).values():
            counted: dict[str, Any] = {"first_known": ()} if isinstance(record, TurnValues) else {}
            again.append(record.model_copy(update={"revision": revision, "is_first": False, **counted}))
        again += self._requests.pop(conversation_id, {}).values()
        return tuple(again)


class Recovery(NamedTuple):
    """What a successor knows of a partition before it folds: the last row, and what `scores` says of its calls.

    Attributes:
        row: The last row of the partition; None if it never had an owner.
        start: Offset of the first record to fold.
        place: Offset before which nothing is published; None if the log is another one than that of the row. Then nothing is
            published until known time is that of the row.
        closed: Calls that have closed, in order, with a place behind the record that closed them.
        open: Calls that have scores and did not close.
        goals: Goal sets of calls that got one.
        is_cut: Whether records of open calls are gone from the log.
    """

    row: PartitionRow | None
    start: int
    place: int | None
    closed: Mapping[str, int] = {}
    open: Sequence[str] = ()
    goals: Mapping[str, GoalSet] = {}
    is_cut: bool = False


BEGINS_APART_MS: Final = 10_000
"""Time between two ticks that are remembered as places to begin: a successor folds at most this much more than it needs."""
ROW_EVERY_SECONDS: Final = 10.0
"""Time between two rows of a partition that decides nothing: a heartbeat, and the place is not too far behind."""
MAX_QUARANTINE_LINES: Final = 5
"""Most log lines about refused records between two ticks. A broken producer sends thousands, and the quarantine topic has them all."""
MAX_INCOMPLETE_NAMED: Final = 20
"""Most incomplete calls that one log line names. The metric counts all of them."""
MAX_GENERATIONS: Final = 64
"""Most generations that a row names: another version takes over a few times while a call runs."""


class Partition:
    """The state of one partition of the log, and the way out of what it decides.

    State is a function of the log: records are folded in its order, repeats and void records left out, and time passes at ticks
    alone. What one step decides is published whole, with the place behind the step. So a successor folds the log again up to the
    place of the last decision that was published, silently, and goes on. No method waits, and each leaves a whole state behind.

    Attributes:
        number: The partition number.
        outlet: The way out of its decisions.
        outbox: Decisions to write, in order.
        is_active: Whether records are folded. Before, the partition is being taken over; afterwards, it is given up.
        next_offset: Offset in the log of the next record to fold.
        last_ms: The broker's time of the last record of the log that was folded; 0 before the first.
        last_event_ms: By source, the broker's time of its newest event.
        evaluator: The engine's state.
        goals: The goals that its calls choose from.
    """

    def __init__(
        self,
        outlet: Outlet,
        evaluator: PartitionEvaluator,
        limits: Limits,
        instruments: Instruments,
        redactor: Redactor | None = None,
        misread: MisreadRecords | None = None,
        goals: ChosenGoals | None = None,
        version: str = "test",
    ) -> None:
        self.number = outlet.number
        self.outlet = outlet
        self.outbox = outlet.outbox
        self.is_active = False
        self.next_offset = 0
        self.last_ms = 0
        self.last_event_ms: dict[str, int] = {}
        self.evaluator = evaluator
        self.goals = goals or ChosenGoals()
        self._limits = limits
        self._instruments = instruments
        self._redactor = redactor or Redactor()
        self._misread = misread or MisreadRecords(instruments)
        self._own_version = self._version = version
        self._reader = LogReader()
        self._begins: deque[Begin] = deque([Begin(0, 0)])
        self._revision = 0
        self._generations: tuple[Generation, ...] = ()
        self._recovery: Recovery | None = None
        self._closed: dict[bytes, int] = {}
        self._withheld: Withheld | None = None
        self._generations_left: deque[Generation] = deque()
        self._evicted: dict[int, str] = {}
        self._row_at = time.monotonic()
        self._refused = 0
        self._counted = (0, 0, 0)
        self._incomplete: frozenset[str] = frozenset()

    @property
    def is_recovering(self) -> bool:
        """Whether it folds what a former owner has folded. Until then nothing is published, and nothing closes."""
        return self._recovery is not None

    @property
    def first(self) -> int:
        """Offset in the log from which a successor must fold."""
        return self._first().offset

    def start(self, recovery: Recovery) -> None:
        """Begins to fold at `next_offset`. What a former owner has folded is folded again first."""
        row, place = recovery.row, recovery.place
        self.next_offset = recovery.start if place is None else min(recovery.start, place)
        self._recovery = recovery
        self._closed = {each.encode(): place for each, place in recovery.closed.items()}
        still_open = set(recovery.open)  # some ids were used again, long after they closed
        for conversation_id in recovery.closed:
            if conversation_id not in still_open:
                self.evaluator.has_closed(conversation_id)
        if row is not None:
            self._version, self._revision = row.version, row.revision
            if place is not None:
                self._reader.known_ms = row.first_known_ms
                self._generations = row.generations
                self._generations_left = deque(row.generations)
                self._evicted = {offset: conversation_id for conversation_id, offset in row.evicted.items()}
        if recovery.is_cut or self._version != self._own_version:
            self._withheld = Withheld()
        self._begins = deque([Begin(recovery.start, self._reader.known_ms)])
        self.evaluator.pass_time(self._reader.known_ms)
        self.goals.logged = recovery.goals
        self.is_active = True
        self._end_recovery()

    def drop(self) -> None:
        """Stops folding and writing for good, because the partition is given up."""
        self.is_active = False
        self.outbox.clear()

    def fold(self, record: Any, polled_ms: int) -> None:
        """Folds the next record of the log, and decides what follows from it. This is one step.

        Args:
            record: The record, or a stand-in for records that cannot be decoded.
            polled_ms: When the poll began that had it, by the wall clock.
        """
        is_undecodable = isinstance(record, UndecodableRecord)
        first = record.first_offset if is_undecodable else record.offset
        if first > self.next_offset:  # the sequencer leaves no gaps
            self._lost(first)
        self._begin_generations(first)
        self.next_offset = record.offset + 1
        self.last_ms = record.timestamp
        try:
            read = None if is_undecodable else self._reader.read(record)
        except LogError as error:
            self._quarantine("control", self._not_of_the_log(record, error))
        else:
            if isinstance(read, Event):
                self._receive(read, polled_ms)
            elif isinstance(read, Tick):
                self._pass_time()
            elif is_undecodable and (refused := unfit_bytes(record, 0)) is not None:
                self._quarantine("control", refused)
        if self._recovery is not None:
            self._end_recovery()

    def _receive(self, event: Event, polled_ms: int) -> None:
        source = event.source
        self.last_event_ms[source.value] = max(event.timestamp, self.last_event_ms.get(source.value, 0))
        if self._recovery is not None:
            self._instruments.inc("callgauge_events_total", (source.value, "replayed"))
            if event.place < self._closed.get(event.key or b"", 0):  # of a call that closed: it is not even decoded
                return
        arrival = admit(source, event, self._limits, self._redactor)
        if isinstance(arrival, QuarantineRecord):
            self._quarantine(source.value, arrival.model_copy(update={"topic": self.outlet.topic(arrival.topic)}))
            return
        arrival.offset = event.place
        if self._recovery is not None and (evicted := self._evicted.get(event.place)) is not None:
            self.evaluator.evict(evicted, arrival)
        effects = self.evaluator.receive(arrival)
        if effects and (decided := self._carry_out(effects)):
            self._put(decided, Trip(event.timestamp, polled_ms, wall_clock_ms()))

    def _pass_time(self) -> None:
        if decided := self._carry_out(self.evaluator.pass_time(self._reader.known_ms)):
            self._put(decided)
        begin, begins = self._reader.begin, self._begins
        if begin is not None and begin is not begins[-1]:
            if len(begins) > 1 and begin.known_ms - begins[-2].known_ms < BEGINS_APART_MS:
                begins.pop()
            begins.append(begin)
        if self._refused > MAX_QUARANTINE_LINES:
            log.warning("more_records_quarantined", partition=self.number, records=self._refused - MAX_QUARANTINE_LINES)
        self._refused = 0

    @property
    def closing_calls(self) -> int:
        """Calls that are over and not closed yet; 0 while the partition is recovering, because they then wait."""
        return 0 if self.is_recovering else self.evaluator.closing_calls

    def close_some(self) -> None:
        """Closes calls that are over: as many as fit into a step. Nothing else depends on when they close."""
        if decided := self._carry_out(self.evaluator.close_some()):
            self._put(decided)

    def write_row(self, *, is_last: bool = False) -> None:
        """Has the place written although nothing was decided, if that was not done for a while, or if this is the last moment."""
        if self.is_active and not self.is_recovering and (
            is_last or time.monotonic() - self._row_at >= ROW_EVERY_SECONDS
        ):  # fmt: skip
            self._put(())

    def count_events(self) -> None:
        """Moves counts of the engine and of the reader to the metrics. What is recovered was counted by a former owner."""
        if self.is_recovering:
            return
        for count in self.evaluator.drain_counts():
            self._instruments.inc(count.metric, count.labels, count.by)
        counts = self._counts()
        names = ("callgauge_replayed_elements_total", "callgauge_log_repeats_total", "callgauge_log_void_total")
        for name, now, before in zip(names, counts, self._counted, strict=True):
            self._instruments.inc(name, (), now - before)
        self._counted = counts

    def _counts(self) -> tuple[int, int, int]:
        return self.evaluator.replayed_elements, self._reader.repeats, self._reader.void

    def _carry_out(self, effects: Sequence[Effect]) -> Sequence[Written]:
        """Returns the records to write; none of what a former owner has decided."""
        if self._recovery is None:
            return carry_out(effects, self._instruments, self._misread.take)
        if self._withheld is not None:
            self._withheld.take(effects)
        return ()

    def _put(self, records: Sequence[Written], trip: Trip | None = None) -> None:
        self._row_at = time.monotonic()
        self.outbox.put(Decision(tuple(records), self._row(), trip))

    def _row(self) -> PartitionRow:
        """The row behind what is decided by now."""
        offset, known_ms = self._first()
        return PartitionRow(
            place=self.next_offset,
            first=offset,
            first_known_ms=known_ms,
            known_ms=self._reader.known_ms,
            version=self._version,
            revision=self._revision,
            generations=tuple(each for each in self._generations if each.place > offset)[-MAX_GENERATIONS:],
            evicted=self.evaluator.evicted,
        )

    def _first(self) -> Begin:
        """The last tick in front of the first record of the oldest open call that is remembered; the last one if none is open."""
        oldest, begins = self.evaluator.low_watermark(), self._begins
        while len(begins) > 1 and (oldest is None or begins[1].offset < oldest):
            begins.popleft()
        return begins[0]

    # What cannot be folded, and what is gone.

    def _quarantine(self, source: str, record: QuarantineRecord) -> None:
        if self.is_recovering:
            return
        self._put((record,))
        self._instruments.inc("callgauge_events_total", (source, "quarantined"))
        self._instruments.inc("callgauge_quarantined_total", (source, record.reason))
        self._refused += 1
        if self._refused <= MAX_QUARANTINE_LINES:
            log.warning(
                "record_quarantined", conversation_id=record.key or None, topic=record.topic, partition=record.partition,
                offset=record.offset, reason=record.reason.value, message=record.message(),
            )  # fmt: skip

    def _not_of_the_log(self, record: Any, error: LogError) -> QuarantineRecord:
        return QuarantineRecord(
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            key=(record.key or b"").decode("utf-8", "replace"),
            reason=RefusalReason.UNDECODABLE,
            what="this is no record of the log",
            expected_and_seen=str(error),
            what_happens_now="It is passed over.",
            what_to_do="Find who writes there, and give the right to write this topic to the sequencer alone.",
            quarantined_at_ms=record.timestamp,
        )

    def _lost(self, first: int) -> None:
        """Counts and logs records that were deleted before they were folded."""
        records = first - self.next_offset
        self._instruments.inc("callgauge_log_records_lost_total", (), records)
        log.error(
            "log_not_where_it_was", record=f"{self.outlet.events}[{self.number}]@{self.next_offset}",
            seen=f"the log goes on at {first}", records=records,
            what_happens_now="These records were deleted before they were folded. Calls that were open are incomplete, and calls that were "
            "in them alone are missing.",
            what_to_do="Keep `events` for longer than the longest outage; see `callgauge doctor`.",
        )  # fmt: skip
        self._calls_incomplete()

    def _calls_incomplete(self, without_any: Iterable[str] = ()) -> None:
        """Counts and logs the calls that lack records, each call once; those that lack all of them are not open here."""
        unfinished = frozenset(self.evaluator.open_calls).union(without_any)
        incomplete = sorted(unfinished - self._incomplete)
        self._incomplete = unfinished
        if incomplete:
            self._instruments.inc("callgauge_calls_incomplete_total", (), len(incomplete))
            log.error(
                "calls_incomplete", partition=self.number, calls=len(incomplete),
                conversation_ids=incomplete[:MAX_INCOMPLETE_NAMED],
                what_happens_now="They go on and close without the lost records: their scores may lack turns and ends.",
                what_to_do="Leave these calls out where it matters; only their producers still have the lost records.",
            )  # fmt: skip

    # Recovery.

    def _begin_generations(self, offset: int) -> None:
        """Gives the open calls the revisions that former owners gave them in front of this record."""
        while self._generations_left and self._generations_left[0].place <= offset:
            _, revision, counts = self._generations_left.popleft()
            for conversation_id in self.evaluator.open_calls:
                self.evaluator.renumber(conversation_id, revision, counts=counts)

    def _end_recovery(self) -> None:
        """Goes live, if all is folded that a former owner has folded."""
        recovery, reached = self._recovery, self.next_offset
        if recovery is None:
            return
        if recovery.place is not None:
            is_done = reached >= recovery.place
        else:
            is_done = recovery.row is None or self._reader.known_ms >= recovery.row.known_ms
        if not is_done:
            return
        self._begin_generations(reached)
        withheld = self._withheld
        self._recovery = self._withheld = None
        self._closed = {}
        self.goals.logged = None
        self.evaluator.drain_counts()
        self._counted = self._counts()
        log.info(
            "partition_recovered", partition=self.number, records=reached - recovery.start, open_calls=len(self.evaluator.open_calls),
            are_published_again=withheld is not None,
        )  # fmt: skip
        if withheld is not None:
            self._publish_again(recovery, withheld)

    def _publish_again(self, recovery: Recovery, withheld: Withheld) -> None:
        """Publishes the values of the open calls once again: another version decided them, or they lack records.

        Until the last of them is written, the row has the version from before: who takes over in between does all of it again.
        """
        counts = not recovery.is_cut
        calls = dict.fromkeys([*self.evaluator.open_calls, *(recovery.open if recovery.is_cut else ())])
        self._revision = next_generation(self._revision)
        for conversation_id in calls:
            self.evaluator.renumber(conversation_id, self._revision, counts=counts)
            if again := withheld.of(conversation_id, self._revision):
                self._put(again)
        self._version = self._own_version
        self._generations += (Generation(self.next_offset, self._revision, counts),)
        self._put(())
        if recovery.is_cut:
            self._calls_incomplete(calls)
