"""One partition of the log, as long as it is assigned to this process."""

import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Final, NamedTuple

import structlog

from consumers.engine.admission import Arrival, admit, unfit_bytes
from consumers.engine.effects import Effect, RequestVerdict
from consumers.engine.evaluator import PartitionEvaluator
from consumers.evaluator.decisions import Outlet, Trip, Written, carry_out
from consumers.evaluator.refusals import LOG, Refusals, not_of_the_log
from consumers.runtime.process import wall_clock_ms
from consumers.runtime.registry import Instruments
from schemas.closed_sets import InputSource
from schemas.goals.goal_set import GoalSet
from schemas.judging import JudgeRequest
from schemas.log import Begin, Event, LogError, LogReader, Tick
from schemas.owners import PartitionRow
from schemas.quarantine import QuarantineRecord, UndecodableRecord
from schemas.rows import revision_again
from schemas.units import to_seconds

BEGINS_APART_MS: Final = 10_000
"""Time between two ticks that are remembered as places to begin: a successor folds at most this
much more than it needs.
"""
ROW_EVERY_SECONDS: Final = 10.0
"""Time between two rows of a partition that decides nothing: a heartbeat, and the place is not too
far behind.
"""
MAX_CLOSING_CALLS: Final = 200
"""Calls that may be over and not closed: with more of them, nothing more is read."""
FOLD_SECONDS: Final = 0.01
"""How long records are folded before others have their turn."""
PUBLISHED_AGAIN_IN_A_STEP: Final = 100
"""Records that are published once again in one step: some ms."""
MAX_KEPT_REQUESTS: Final = 256
"""Questions of a call that are asked once again; the oldest are left out."""

log = structlog.get_logger()

# A successor folds again what the former owner of a partition had folded, silently, until its
# state is the same.


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


# The partition.


class Partition:
    """The state of one partition of the log, and the way out of what it decides.

    State is a function of the log: records are folded in its order, repeats and void records left
    out, and time passes at ticks alone. What one step decides is published whole, with the place
    behind the step. So a successor folds the log again up to the place of the last decision that
    was published, silently, and goes on. No method waits, and each leaves a whole state behind.

    Attributes:
        number: The partition number.
        outlet: The way out of its decisions.
        outbox: Where its decisions wait, among those of others.
        is_active: Whether records are folded. Before, the partition is being taken over;
            afterwards, it is given up.
        next_offset: Offset in the log of the next record to fold.
        last_ms: The broker's time of the last record of the log that was folded; 0 before the
            first.
        last_event_ms: By source, the broker's time of its newest event.
        event_ms: The broker's time of the newest event that is no verdict; 0 before the first.
        evaluator: The engine's state.
        goals: The goals that its calls choose from.
    """

    def __init__(
        self,
        outlet: Outlet,
        evaluator: PartitionEvaluator,
        instruments: Instruments,
        version: str = "test",
        reader: LogReader | None = None,
    ) -> None:
        self.number = outlet.number
        self.outlet = outlet
        self.outbox = outlet.outbox
        self.is_active = False
        self.next_offset = 0
        self.last_ms = 0
        self.last_event_ms: dict[str, int] = {}
        self.event_ms = 0
        self.evaluator = evaluator
        self.goals = evaluator.goals
        self._instruments = instruments
        self._refusals = Refusals(instruments)
        self._own_version = self._version = version
        self._reader = reader or LogReader()
        self._begins: deque[Begin] = deque([Begin(0, 0)])
        self._cut = 0
        self._recovering: Recovering | None = None
        self._again: Iterator[Written] | None = None
        self._row_at = time.monotonic()
        self._counted: dict[str, int] = {}

    @property
    def is_recovering(self) -> bool:
        """Whether it folds what a former owner has folded. Until then nothing is published, and
        nothing closes.
        """
        return self._recovering is not None

    @property
    def is_publishing_again(self) -> bool:
        """Whether it has to publish values once again that a former owner had decided. Until then
        nothing should be folded.
        """
        return self._again is not None

    @property
    def known_ms(self) -> int:
        """Time up to which the log is folded."""
        return self._reader.known_ms

    @property
    def first(self) -> int:
        """Offset in the log from which a successor must fold."""
        return self._first().offset

    @property
    def closing_calls(self) -> int:
        """Calls that are over and not closed yet; 0 while the partition is recovering, because they
        then wait. What is to be published once again counts as one more.
        """
        return 0 if self.is_recovering else self.evaluator.closing_calls + self.is_publishing_again

    @property
    def is_behind(self) -> bool:
        """Whether it has so much to publish again, or to close, that nothing more
        should be read.
        """
        return self.is_publishing_again or self.closing_calls > MAX_CLOSING_CALLS

    def start(self, recovery: Recovery) -> None:
        """Begins to fold at `next_offset`. What a former owner has folded is folded again first."""
        row, place = recovery.row, recovery.place
        self.next_offset = recovery.start if place is None else min(recovery.start, place)
        if row is not None:
            self._version, self._cut, self.event_ms = row.version, row.cut, row.event_ms
            if place is not None:
                self._reader.known_ms = row.first_known_ms
        self._begins = deque([Begin(recovery.start, self._reader.known_ms)])
        self._recovering = Recovering(recovery, self.evaluator, self._own_version)
        self.evaluator.pass_time(self._reader.known_ms)
        self.goals.logged = self._recovering.goals
        self.is_active = True
        self._go_live(self._recovering)

    def drop(self) -> None:
        """Stops folding and writing for good, because the partition is given up."""
        self.is_active = False
        self.outbox.forget(self.outlet)

    # The steps. Each puts what it decides into the outbox, whole.

    def fold(self, record: Any, polled_ms: int) -> None:
        """Folds the next record of the log.

        Args:
            record: The record, or a stand-in for records that cannot be decoded.
            polled_ms: When the poll began that had it, by the wall clock.
        """
        is_undecodable = isinstance(record, UndecodableRecord)
        first = record.first_offset if is_undecodable else record.offset
        if first > self.next_offset:  # the sequencer leaves no gaps
            self._refusals.lost(f"{record.topic}[{record.partition}]", self.next_offset, first)
            self._refusals.incomplete(self.evaluator.open_calls)
            self.move_to(first)
        while self._again is not None:  # callers that can give way have called `close_some` before
            self.close_some()
        self.next_offset = record.offset + 1
        self.last_ms = record.timestamp
        try:
            read = None if is_undecodable else self._reader.read(record)
        except LogError as error:
            self._refuse(LOG, not_of_the_log(record, error))
        else:
            if isinstance(read, Event):
                self._receive(read, polled_ms)
            elif isinstance(read, Tick):
                self._pass_time(read)
            elif is_undecodable and (refused := unfit_bytes(record, 0)) is not None:
                self._refuse(LOG, refused)
        if self._recovering is not None:
            self._go_live(self._recovering)

    def move_to(self, offset: int) -> None:
        """Passes over what the log does not have in front of an offset, and what is of calls that
        have closed.
        """
        if offset > self.next_offset:
            self.next_offset = offset
            if self._recovering is not None:
                self._go_live(self._recovering)

    def _receive(self, event: Event, polled_ms: int) -> None:
        source, recovering = event.source, self._recovering
        self.last_event_ms[source.value] = max(
            event.timestamp, self.last_event_ms.get(source.value, 0)
        )
        if source is not InputSource.JUDGE:
            self.event_ms = max(event.timestamp, self.event_ms)
        if recovering is not None:
            self._instruments.inc("callgauge_events_total", (source.value, "replayed"))
            if recovering.skips(event):
                return
        arrival = admit(source, event, self.evaluator.limits, self.evaluator.redactor)
        if not isinstance(arrival, Arrival):
            self._refuse(
                source.value, arrival.model_copy(update={"topic": self.outlet.topic(arrival.topic)})
            )
            return
        arrival.offset = event.place
        if recovering is not None:
            recovering.precede(arrival)
        effects = self.evaluator.receive(arrival)
        if effects and (decided := self._carry_out(effects)):
            self._put(decided, Trip(event.timestamp, polled_ms, wall_clock_ms()))

    def _pass_time(self, tick: Tick) -> None:
        if tick.gap_ms:
            self.evaluator.pass_gap(tick.known_ms - tick.gap_ms, tick.known_ms)
        if tick.gap_ms < 0:
            self.event_ms = min(self.event_ms, tick.known_ms)
        if tick.gap_ms < 0 and not self.is_recovering:
            log.error(
                "time_went_back",
                by_seconds=to_seconds(-tick.gap_ms),
                open_calls=len(self.evaluator.open_calls),
                what_happens_now="The clock was ahead and is not any more. Time goes on from where "
                "it is now; calls that began before have the dates of then.",
                what_to_do=(
                    "Let a service keep the clock right. If it is wrong now, set it: events of "
                    "another day are refused."
                ),
            )
        if decided := self._carry_out(self.evaluator.pass_time(self._reader.known_ms, tick.place)):
            self._put(decided)
        self._refusals.tick()
        begin, begins = self._reader.begin, self._begins
        if begin is not None and begin is not begins[-1]:
            if len(begins) > 1 and 0 <= begin.known_ms - begins[-2].known_ms < BEGINS_APART_MS:
                begins.pop()
            begins.append(begin)

    def _refuse(self, source: str, record: QuarantineRecord) -> None:
        if not self.is_recovering:
            self._put((record,))
            self._refusals.count(source, record)

    def close_some(self) -> None:
        """Publishes once again what is left of that; then closes calls that are over: as much as
        fits into a step.
        """
        if self._again is not None and (
            some := tuple(islice(self._again, PUBLISHED_AGAIN_IN_A_STEP))
        ):
            self._put(some)
        elif decided := self._carry_out(self.evaluator.close_some()):
            self._put(decided)
        elif self._again is not None and not self.evaluator.closing_calls:
            self._again, self._version = None, self._own_version
            self._put(())

    def write_row(self, *, is_last: bool = False) -> None:
        """Has the place written although nothing was decided, if that was not done for a while, or
        if this is the last moment.
        """
        is_due = is_last or time.monotonic() - self._row_at >= ROW_EVERY_SECONDS
        if is_due and self.is_active and not self.is_recovering:
            self._put(())

    # What a step decides, and the row behind it.

    def _carry_out(self, effects: Sequence[Effect]) -> Sequence[Written]:
        """Returns the records to write; none of what a former owner has decided."""
        if self._recovering is None:
            return carry_out(effects, self._instruments)
        if self._recovering.withheld is not None:
            self._recovering.withheld.keep_questions(effects)
        return ()

    def _put(self, records: Sequence[Written], trip: Trip | None = None) -> None:
        self._row_at = time.monotonic()
        self.outlet.put(records, self._row(), trip)

    def _row(self) -> PartitionRow:
        offset, known_ms = self._first()
        return PartitionRow(
            place=self.next_offset,
            first=offset,
            first_known_ms=known_ms,
            known_ms=self._reader.known_ms,
            version=self._version,
            event_ms=self.event_ms,
            base=self.evaluator.base,
            cut=self._cut,
            evicted=self.evaluator.evicted,
        )

    def _first(self) -> Begin:
        """The last tick in front of the first record of the oldest open call that is remembered;
        the last one if none is open.
        """
        oldest, begins = self.evaluator.low_watermark(), self._begins
        while len(begins) > 1 and (oldest is None or begins[1].offset < oldest):
            begins.popleft()
        return begins[0]

    def count_events(self) -> None:
        """Moves counts of the engine and of the reader to the metrics. What is recovered was
        counted by a former owner.
        """
        if self.is_recovering:
            return
        for count in self.evaluator.drain_counts():
            self._instruments.inc(count.metric, count.labels, count.by)
        counts = self._counts()
        for name, number in counts.items():
            self._instruments.inc(name, (), number - self._counted.get(name, 0))
        self._counted = counts

    def _counts(self) -> dict[str, int]:
        return {
            "callgauge_replayed_elements_total": self.evaluator.replayed_elements,
            "callgauge_log_repeats_total": self._reader.repeats,
            "callgauge_log_void_total": self._reader.void,
        }

    # The end of a recovery.

    def _go_live(self, recovering: Recovering) -> None:
        """Publishes from now on, if all is folded that a former owner has folded."""
        if not recovering.is_done(self.next_offset, self._reader.known_ms):
            return
        self._recovering = self.goals.logged = None
        self.evaluator.speak()
        self.evaluator.drain_counts()
        self._counted = self._counts()
        known, withheld = recovering.known, recovering.withheld
        if records := self.next_offset - known.start:
            log.info(
                "partition_recovered",
                partition=self.number,
                records=records,
                open_calls=len(self.evaluator.open_calls),
                are_published_again=withheld is not None,
            )
        if withheld is not None:
            self._publish_again(known, withheld)

    def _publish_again(self, known: Recovery, withheld: Withheld) -> None:
        """Publishes the rows of the open calls once again: another version decided them, or they
        lack records. `close_some` goes on.

        Calls that are over close with the same revision, because the former owner may have decided
        more of them than this one. Until the last of it is written, the row has no version: who
        takes over in between does all of it again.
        """
        revision, calls = known.base + revision_again(self.next_offset), self.evaluator.open_calls
        self.evaluator.close_as(revision)
        by_call = (
            chain(self.evaluator.say_again(each, revision), withheld.again(each)) for each in calls
        )
        self._again, self._version = chain.from_iterable(by_call), ""
        if known.is_cut:
            self._cut = self.next_offset
            self._refusals.incomplete(dict.fromkeys([*calls, *known.lacking]))
        self._put(())
