"""Evaluates the calls of one partition of the log. Its verbs are the only mutable front of the
engine.

Pure: it reads no clock, performs no I/O and draws no random numbers. Equal steps in equal order
give equal effects.
"""

import heapq
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from consumers.engine.admission import Arrival
from consumers.engine.call import Call
from consumers.engine.effects import Count, Effect
from consumers.engine.goals.progress import ChosenGoals
from consumers.engine.limits import Limits
from consumers.engine.redaction.redactor import Redactor
from consumers.engine.sources.audit import start_of
from schemas.closed_sets import ClockSkew, CloseReason, InputSource, PipelineType
from schemas.judging import JudgeVerdict
from schemas.metric_context import MetricContext
from schemas.rows import Row, WordsRow, revision_at

# Chooses the call that closes when too many are open: of the tenant with the most calls, one with
# few events if there is one, otherwise the quietest. So a tenant that sends ever new ids closes its
# own calls, and no other tenant's.

FEWEST_EVENTS: Final = 3
"""A call with fewer events goes first: an invented id has one event, a real call has more within a
second.
"""
_SPARE: Final = 64
"""Places that may be out of date, beside twice the number of those that are not."""

_Place = tuple[bool, int, str]


class Eviction:
    """The calls that may be closed, by tenant. Which one is next follows from these calls alone,
    not from what was before them.

    Places are heaps of which only the first must be up to date. A call only moves back in the order
    of its tenant, because it gets more and later events. So the first place that is still right is
    the first of all.
    """

    def __init__(self) -> None:
        self._tenants: dict[str, str] = {}  # of each call
        self._numbers: Counter[str] = Counter()  # of calls, by tenant
        self._largest: list[tuple[int, str]] = []  # minus the number of calls, and the tenant
        self._places: dict[str, list[_Place]] = {}

    def add(self, call: Call) -> None:
        """Adds a call that has opened, or whose tenant has another name now."""
        conversation_id, tenant = call.conversation_id, call.tenant
        self.remove(conversation_id)
        self._tenants[conversation_id] = tenant
        self._count(tenant, 1)
        places = self._places.setdefault(tenant, [])
        heapq.heappush(places, self._place(call))
        if len(places) > 2 * self._numbers[tenant] + _SPARE:
            first_of = {place[2]: place for place in sorted(places, reverse=True)}
            places[:] = sorted(
                place for each, place in first_of.items() if self._tenants.get(each) == tenant
            )

    def remove(self, conversation_id: str) -> None:
        """Removes a call that is over. One that is not there is passed over."""
        if (tenant := self._tenants.pop(conversation_id, None)) is not None:
            self._count(tenant, -1)

    def next(self, calls: Mapping[str, Call]) -> Call | None:
        """The call to close next, out of all open ones; None when none may be closed."""
        while self._largest and -self._largest[0][0] != self._numbers[self._largest[0][1]]:
            heapq.heappop(self._largest)
        if not self._tenants:
            return None
        tenant = self._largest[0][1]
        places = self._places[tenant]
        while True:
            first = places[0]
            if self._tenants.get(first[2]) != tenant:
                heapq.heappop(places)
            elif (place := self._place(calls[first[2]])) != first:
                heapq.heapreplace(places, place)
            else:
                return calls[first[2]]

    def _count(self, tenant: str, by: int) -> None:
        self._numbers[tenant] += by
        if not self._numbers[tenant]:
            del self._numbers[tenant], self._places[tenant]
        if len(self._largest) > 2 * len(self._numbers) + _SPARE:
            self._largest = [(-number, each) for each, number in self._numbers.items()]
            heapq.heapify(self._largest)
        else:
            heapq.heappush(self._largest, (-self._numbers[tenant], tenant))

    def _place(self, call: Call) -> _Place:
        return call.events >= FEWEST_EVENTS, call.end.last_ms, call.conversation_id


# When silence next decides about a call: a heap of times, with few entries for each call.


class Wakeups:
    """The next wake-up of each open call, which its `wakeup_ms` has too."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, str]] = []

    @property
    def first_ms(self) -> int | None:
        """Broker time of the first wake-up; None without one."""
        return self._heap[0][0] if self._heap else None

    def schedule(self, call: Call, due_ms: int) -> None:
        """Wakes the call at `due_ms` or sooner, unless it wakes sooner anyway.

        A wake-up far ahead that a sooner one replaced stays in the heap and is used again: an idle
        time of ten minutes would leave an entry for each turn in between.
        """
        soon_ms = call.wakeup_ms
        if soon_ms is not None and soon_ms <= due_ms:
            return
        if soon_ms is not None and call.replaced_wakeup_ms is None:
            call.replaced_wakeup_ms = soon_ms
        elif call.replaced_wakeup_ms is not None and call.replaced_wakeup_ms <= due_ms:
            call.wakeup_ms, call.replaced_wakeup_ms = call.replaced_wakeup_ms, None
            return
        call.wakeup_ms = due_ms
        heapq.heappush(self._heap, (due_ms, call.conversation_id))

    def next_due(self, now_ms: int, calls: Mapping[str, Call]) -> Call | None:
        """Takes the first wake-up up to `now_ms` and returns its call; None if there is none."""
        heap = self._heap
        while heap and heap[0][0] <= now_ms:
            woken_ms, conversation_id = heapq.heappop(heap)
            call = calls.get(conversation_id)
            if call is None or call.is_closing:
                continue
            if call.wakeup_ms == woken_ms:
                call.wakeup_ms = None
                return call
            if call.replaced_wakeup_ms == woken_ms:
                call.replaced_wakeup_ms = None
        return None


# Remembers closed calls, so that a late record of one opens no second call of its name.


class ClosedCalls(OrderedDict[str, None]):
    """The ids of the calls that closed last, of so many."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def close(self, conversation_id: str) -> None:
        """Notes that a call has closed."""
        self[conversation_id] = None
        self.move_to_end(conversation_id)
        if len(self) > self._most:
            self.popitem(last=False)


# Events whose own time is far from the broker's timestamp of their record: signs of a wrong clock.

SkewCounts = Counter[tuple[InputSource, ClockSkew]]

AHEAD_MS: Final = 1_000
"""Lead over the broker beyond which a producer's clock is wrong: an event cannot reach the broker
before it happens. Clocks that are kept by NTP differ by some ten milliseconds, and brokers take a
timestamp to the millisecond.
"""
BEHIND_MS: Final = 60_000
"""Delay beyond which an event is not live. Producers retry for seconds, and the simulated caller
sends texts up to 5 s late.
"""


def skew_of(event_ms: float, broker_ms: int) -> ClockSkew | None:
    """Returns how an event's time differs from the broker's timestamp of its record; None if they
    are close.

    >>> skew_of(1_000_000.0, 999_500), skew_of(1_000_000.0, 998_000), skew_of(1_000_000.0, 1_100_000)
    (None, <ClockSkew.AHEAD: 'ahead'>, <ClockSkew.BEHIND: 'behind'>)
    """
    if event_ms - broker_ms > AHEAD_MS:
        return ClockSkew.AHEAD
    return ClockSkew.BEHIND if broker_ms - event_ms > BEHIND_MS else None


def count_skew(counts: SkewCounts, arrival: Arrival) -> None:
    """Adds an arrival whose time is far from the broker's. Verdicts have no time of a call."""
    event_ms = arrival.event.timestamp
    skew = None if event_ms is None else skew_of(event_ms, arrival.broker_time_ms)
    if skew is not None and arrival.source is not InputSource.JUDGE:
        counts[arrival.source, skew] += 1


CLOSING_WORK_OF_A_CALL: Final = 50
"""Work of a close beside the events of its call, counted in events."""
MOST_CLOSING_WORK: Final = 1_500
"""Most events of the calls that close in one step, unless a single call has more: 30 ms, in which
nothing else runs.
"""


class PartitionEvaluator:
    """The open calls of one partition. A call lives from its first record to its closed row; later
    records are only counted.

    The four verbs:

    - `receive` folds a record. The first record of a call opens it.
    - `pass_time` lets broker time pass, and decides by silence.
    - `close_some` closes calls that are over. Nothing depends on when it is called.
    - `next_wakeup` returns the next time at which `pass_time` can have an effect.

    What a step decides has the place of the step as its revision, and a close that of the step that
    ended its call.

    Calls act on each other in two ways only: too many of them close the one that is missed least,
    and the id of a closed call opens no other. A successor folds only the calls that are still
    open, so it has to say both: `evict` and `has_closed`.

    Attributes:
        limits: Bounds of the calls.
        goals: Source of the calls' goal sets, and the rules of judging.
        redactor: Redacts every text that leaves.
        evicted: Calls that are over because too many were open, and have not closed: the offset of
            the record that opened another.
        base: What is added to revisions: more than those of a log that was there before this one; 0
            without one.
        is_silent: Whether what a former owner has published is folded again, and no rows are made.
        lacking: Ids of calls of which records are lost: what becomes known of them may have counted
            before, and does not count.
    """

    def __init__(
        self,
        limits: Limits,
        code_version: str,
        goals: ChosenGoals | None = None,
        *,
        writes_transcripts: bool = False,
        redactor: Redactor | None = None,
        partition: int = 0,
    ) -> None:
        """Starts without calls.

        Args:
            limits: Bounds of the calls.
            code_version: Written into the row of every call.
            goals: Source of the calls' goal sets, and the rules of judging.
            writes_transcripts: Whether a call that closes gets a transcript.
            redactor: Redacts every text that leaves; by default one with the default rules.
            partition: Its number, for the rows.
        """
        self._partition = partition
        self.limits = limits
        self.goals = goals or ChosenGoals()
        self._code_version = code_version
        self._writes_transcripts = writes_transcripts
        self.redactor = redactor or Redactor()
        self.evicted: dict[str, int] = {}
        self.base = 0
        self.is_silent = False
        self.lacking: set[str] = set()
        self._calls: dict[str, Call] = {}
        self._closing: deque[str] = deque()
        self._closed = ClosedCalls(limits.max_closed_calls_remembered)
        self._eviction = Eviction()
        self._wakeups = Wakeups()
        self._now_ms = 0
        self._place = 0
        self._folded = dict.fromkeys(InputSource, 0)
        self._outcomes: Counter[tuple[InputSource, str]] = Counter()
        self._skewed: SkewCounts = Counter()
        self._replayed_by_closed = 0

    @property
    def open_calls(self) -> Sequence[str]:
        """Ids of the calls that are not closed, in the order in which they opened."""
        return tuple(self._calls)

    @property
    def closing_calls(self) -> int:
        """Number of calls that are over and not closed yet."""
        return len(self._closing)

    @property
    def replayed_elements(self) -> int:
        """Elements folded again because of late events, since the start."""
        return self._replayed_by_closed + sum(
            call.history.replays.elements for call in self._calls.values()
        )

    def receive(self, arrival: Arrival) -> Sequence[Effect]:
        """Folds one record into its call; its first record opens the call."""
        source, conversation_id = arrival.source, arrival.conversation_id
        self._place = arrival.offset
        call = self._calls.get(conversation_id)
        out: list[Effect] = []
        if call is None:
            # A verdict opens no call: it was not asked for here.
            if conversation_id in self._closed or isinstance(arrival.event, JudgeVerdict):
                self._outcomes[source, "after_close"] += 1
                return ()
            call = self._opened(arrival, out)
        # A verdict counts by its own time, whenever it is read.
        if call.is_closing or (call.is_over and type(arrival.event) is not JudgeVerdict):
            self._outcomes[source, "after_close"] += 1
            return ()
        self._fold(call, arrival, out)
        return out

    def say_again(self, conversation_id: str, revision: int) -> Iterator[Row | WordsRow]:
        """All rows of an open call once again, with this revision, and without news: another
        version decides them.
        """
        return self._calls[conversation_id].say_again(revision)

    def evict(self, conversation_id: str, arrival: Arrival) -> None:
        """Closes a call because too many are open: this record opens another. An earlier owner may
        have had more of them.
        """
        call = self._calls.get(conversation_id)
        if call is not None and not call.is_closing:
            call.decides_as(self.base + revision_at(arrival.offset))
            call.close(CloseReason.LIMIT_OPEN_CALLS, arrival.broker_time_ms)
            self.evicted[conversation_id] = arrival.offset
            self._end(call)

    def has_closed(self, conversation_id: str) -> None:
        """Notes that an earlier owner closed this call: its later records open no other."""
        self._closed.close(conversation_id)

    def speak(self) -> None:
        """Makes rows from here on."""
        self.is_silent = False
        for call in self._calls.values():
            call.speak()

    def close_as(self, revision: int) -> None:
        """Gives this revision to the close of the calls that are over: what was in front of it is
        published once again.
        """
        for conversation_id in self._closing:
            self._calls[conversation_id].decides_as(revision)

    def advance(self, now_ms: int, place: int | None = None) -> Sequence[Effect]:
        """Lets broker time pass and closes all calls that are over, for readers that wait for
        nothing else.
        """
        out = [*self.pass_time(now_ms, place)]
        while self._closing:
            self._go_on_closing(out)
        return out

    def pass_time(self, now_ms: int, place: int | None = None) -> Sequence[Effect]:
        """Decides by silence up to broker time `now_ms`, oldest first; calls that are over wait for
        `close_some`.

        Args:
            now_ms: The time.
            place: Offset of the tick that tells it; by default time passes behind the last record,
                with the odd revision there.
        """
        out: list[Effect] = []
        revision = self.base + revision_at(self._place) + 1
        if place is not None:
            revision = self.base + revision_at(place)
        self._now_ms = max(self._now_ms, now_ms)
        while (call := self._wakeups.next_due(now_ms, self._calls)) is not None:
            call.decides_as(revision)
            while not call.is_closing and call.next_decision_ms <= now_ms:
                call.advance(now_ms, out)
                out += call.redactor.drain_counts()
            call.publish(out)
            if call.is_closing:
                self._end(call)
            else:
                self._wakeups.schedule(call, max(call.next_decision_ms, now_ms + 1))
        return out

    def pass_gap(self, from_ms: int, until_ms: int) -> None:
        """Notes that no events were taken in this time, as while the machine slept: what seems
        silent was only not heard.

        Call it before `pass_time` lets that time pass. A silence that lasted by its beginning is
        decided then as ever. A gap that ends before it begins is a clock that was ahead and is set
        right: time goes on from its end.
        """
        for call in self._calls.values():
            if not call.is_closing:
                call.pass_gap(from_ms, until_ms)
                self._wakeups.schedule(call, call.next_decision_ms)

    def close_some(self) -> Sequence[Effect]:
        """Closes calls that are over, in the order of their ends: as many as fit into a step, or
        one step of a large one.
        """
        out: list[Effect] = []
        work, is_whole = 0, True
        while self._closing and is_whole and work < MOST_CLOSING_WORK:
            work += CLOSING_WORK_OF_A_CALL + self._calls[self._closing[0]].events
            is_whole = self._go_on_closing(out)
        return out

    def next_wakeup(self) -> int | None:
        """Broker time in ms at which `advance` can have an effect; None while no call is open.
        While a call is closing, now.
        """
        if self._closing:
            return self._now_ms
        return self._wakeups.first_ms if self._calls else None

    def context(self, conversation_id: str) -> MetricContext | None:
        """EVA's context of an open call; None when it is not open."""
        return None if (call := self._calls.get(conversation_id)) is None else call.context()

    def low_watermark(self) -> int | None:
        """Offset of the first record of the oldest open call: who folds again must start there.
        None while no call is open.
        """
        return next((call.first_offset for call in self._calls.values()), None)

    def drain_counts(self) -> list[Count]:
        """Counts since the last drain: records by outcome, events of a wrong time, and
        redactions.
        """
        for source, number in self._folded.items():
            if number:
                self._outcomes[source, "folded"] = number
                self._folded[source] = 0
        counts = [
            Count("callgauge_events_total", (source.value, outcome), number)
            for (source, outcome), number in self._outcomes.items()
        ]
        self._outcomes.clear()
        counts += [
            Count("callgauge_skewed_events_total", key, number)
            for key, number in self._skewed.items()
        ]
        self._skewed.clear()
        found = self.redactor.counts
        counts += [
            Count("callgauge_redactions_total", (kind,), number)
            for kind, number in sorted(found.items())
        ]
        found.clear()
        return counts

    def _fold(self, call: Call, arrival: Arrival, out: list[Effect]) -> None:
        source, tenant = arrival.source, call.tenant
        outcome = call.receive(arrival, self.base + revision_at(arrival.offset), out)
        if outcome == "folded":
            self._folded[source] += 1
        else:
            self._outcomes[source, outcome] += 1
        count_skew(self._skewed, arrival)
        if call.redactor.texts_left_out:
            out += call.redactor.drain_counts()
        if call.is_closing:
            self._end(call)
            return
        if call.tenant != tenant:
            self._eviction.add(call)
        self._wakeups.schedule(call, call.next_decision_ms)

    def _opened(self, arrival: Arrival, out: list[Effect]) -> Call:
        is_full = len(self._calls) - len(self._closing) >= self.limits.max_open_calls
        if is_full and (evicted := self._eviction.next(self._calls)) is not None:
            out.append(Count("callgauge_limits_hit_total", ("open_calls",)))
            self.evict(evicted.conversation_id, arrival)
        call = self._calls[arrival.conversation_id] = Call(
            arrival,
            self.limits,
            self._code_version,
            self.goals,
            writes_transcript=self._writes_transcripts,
            redactor=self.redactor,
            counts=arrival.conversation_id not in self.lacking,
            is_silent=self.is_silent,
            partition=self._partition,
        )
        self._eviction.add(call)
        return call

    def _end(self, call: Call) -> None:
        """Lets a call that is over close, when there is time for it. What was no call is forgotten
        at once, without a word: spans of a job may come long before those of its call.
        """
        self._eviction.remove(call.conversation_id)
        if call.is_none:
            self._forget(call)
        else:
            self._closing.append(call.conversation_id)

    def _forget(self, call: Call) -> None:
        del self._calls[call.conversation_id]
        self.evicted.pop(call.conversation_id, None)
        self._replayed_by_closed += call.history.replays.elements
        call.release()

    def _go_on_closing(self, out: list[Effect]) -> bool:
        """Takes one step of the close that was due first; returns whether it was its last."""
        call = self._calls[self._closing[0]]
        call.go_on_closing(out)
        if call.is_closed:
            self._closed.close(self._closing.popleft())
            self.lacking.discard(call.conversation_id)
            self._forget(call)
        return call.is_closed


# Folds recorded calls through the live engine without a broker, for the `context` command and for
# tests of laws.

NO_LIMITS = Limits(
    max_events_per_call=2**31,
    max_kept_bytes_per_call=2**62,
    max_replayed_elements_per_call=2**62,
    max_turns_per_call=2**31,
    max_stage_values_per_call=2**31,
    max_event_time_skew_ms=0,
)
"""A recording is complete, so no limit may cut it off."""


def folded(
    arrivals: Iterable[Arrival],
    pipeline_type: PipelineType | str,
    ended_reason: str | None,
    limits: Limits = NO_LIMITS,
) -> Call:
    """One call, folded event by event in the given order and not closed.

    Args:
        arrivals: The call's events; each source in its own order.
        pipeline_type: Type of the agent's pipeline, as in a `call_started` event.
        ended_reason: Why the call ended, unless a `call_ended` among the events has a reason.
        limits: Bounds; by default none that a recording can reach.
    """
    first = Arrival(InputSource.JUDGE, 0, 0, "", start_of(PipelineType(pipeline_type)), b"", None)
    call = Call(first, limits, "offline")
    call.history.set_pipeline_type(PipelineType(pipeline_type))
    effects: list[Effect] = []
    for arrival in arrivals:
        call.receive(arrival, 0, effects)
        effects.clear()
    if call.ended_reason is None:
        call.ended_reason = ended_reason
    return call


def context_of(
    arrivals: Iterable[Arrival],
    pipeline_type: PipelineType | str,
    ended_reason: str | None,
    limits: Limits = NO_LIMITS,
) -> dict[str, Any]:
    """EVA's context of one call in the conformance encoding; the arguments are those of
    `folded`.
    """
    return folded(arrivals, pipeline_type, ended_reason, limits).eva_context().to_dict()
