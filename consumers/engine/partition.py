"""Evaluates the calls of one partition number over the four inputs. Its five verbs are the only mutable front of the engine.

Pure: it reads no clock, performs no I/O and draws no random numbers. Equal inputs in equal order give equal effects.
"""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Final

from consumers.engine.call.call import Call
from consumers.engine.call.eviction import Eviction
from consumers.engine.call.logged_call import LoggedCall, LoggedFacts
from consumers.engine.call.wakeups import Wakeups
from consumers.engine.effects import Count, Effect
from consumers.engine.goals.chosen_goals import ChosenGoals
from consumers.engine.intake.admission import Arrival
from consumers.engine.intake.clock_skew import SkewCounts, count_skew
from consumers.engine.intake.closed_calls import ClosedCalls
from consumers.engine.limits import Limits
from consumers.engine.records.call_memory import CallMemory, sources
from consumers.engine.redaction.redactor import Redactor
from consumers.engine.state_bytes import GivesBytes, InMemory, TakesBytes, read_state, write_state
from schemas.closed_sets import InputSource
from schemas.goals.goal_set import ChoosesGoals
from schemas.judging import JudgeVerdict
from schemas.ledger_record import ClosedElsewhere, LedgerRecord
from schemas.metric_context import MetricContext
from schemas.scores.all_records import AnyScoreRecord, ClosedFact, CloseReason, DeadAirFact, GoalsFact

SNAPSHOT_VERSION = 13
MAX_WAITING_PER_CALL = 1_000
"""Arrivals of a call that may wait because another input lags: five minutes of a call. Beyond it the oldest is
folded at once.
"""
CLOSING_WORK_OF_A_CALL: Final = 50
"""Work of a close beside the events of its call, counted in events."""
MOST_CLOSING_WORK: Final = 4_000
"""Most events of the calls that close in one step, unless a single call has more: 70 ms, in which nothing else runs."""


class PartitionEvaluator:
    """The open calls of one partition.

    The five verbs: `receive` folds a record, `advance` lets broker time pass, `next_wakeup` returns the next time at which
    `advance` can have an effect, `snapshot` and `restore` carry the state over a restart. A call lives from its first record to
    its `closed` fact; later records of it are only counted.

    After a takeover, `recall` reads the records that the predecessor published, and the inputs are replayed: closed calls stay
    closed, and open ones publish nothing until the replay reaches the predecessor's last record of them.

    To judge past traffic anew, `obey` reads the facts of its log: those calls keep their logged dead air and end, and `end`
    closes them where the inputs no longer reach their logged end.
    """

    def __init__(
        self,
        limits: Limits,
        code_version: str,
        goals: ChosenGoals | None = None,
        *,
        writes_transcripts: bool = False,
        redactor: Redactor | None = None,
    ) -> None:
        """Starts without calls.

        Args:
            limits: Bounds of the calls.
            code_version: Written into every record.
            goals: Source of the calls' goal sets, and the rules of judging.
            writes_transcripts: Whether a call that closes gets a transcript.
            redactor: Redacts every text that leaves; by default one with the default rules.
        """
        self._limits = limits
        self._goals = goals or ChosenGoals()
        self._code_version = code_version
        self._writes_transcripts = writes_transcripts
        self._redactor = redactor or Redactor()
        self._calls: dict[str, Call] = {}
        self._closing: deque[str] = deque()
        self._closed = ClosedCalls(limits.max_closed_calls_remembered)
        self._eviction = Eviction()
        self._memories: dict[str, CallMemory] = {}
        self._logged: dict[str, LoggedFacts] = {}
        self._wakeups = Wakeups()
        self._now_ms: int | None = None
        self._last_offsets: dict[InputSource, int] = {}
        self._folded = dict.fromkeys(InputSource, 0)
        self._outcomes: Counter[tuple[InputSource, str]] = Counter()
        self._skewed: SkewCounts = Counter()
        self._replayed_by_closed = 0

    @property
    def open_calls(self) -> int:
        """Number of open calls."""
        return len(self._calls)

    @property
    def closing_calls(self) -> int:
        """Number of calls that are over and not closed yet."""
        return len(self._closing)

    @property
    def replayed_elements(self) -> int:
        """Elements folded again because of late events, since the start."""
        return self._replayed_by_closed + sum(call.replayed_elements for call in self._calls.values())

    def reading_starts_at(self, offsets: Mapping[InputSource, int]) -> None:
        """Notes where reading starts on each input, before `recall`: it bounds the closed calls to remember."""
        self._closed.reading_starts_at(offsets)

    def recall(self, record: LedgerRecord) -> None:
        """Reads one record that an earlier evaluator of this partition published; all of them in order, before `receive`."""
        conversation_id = record.conversation_id
        if isinstance(record, ClosedFact | ClosedElsewhere):
            self._memories.pop(conversation_id, None)
            self._closed.recall(conversation_id, sources(record.through))
        elif conversation_id not in self._closed:
            self._memories.setdefault(conversation_id, CallMemory()).fold(record)

    def obey(self, record: AnyScoreRecord) -> None:
        """Reads one record of the log of calls that are evaluated again; all of them in order, before `receive`.

        A call whose `closed` fact is among them takes its dead air and its end from the log; any other call decides for itself.
        """
        if isinstance(record, DeadAirFact | GoalsFact | ClosedFact):
            self._logged.setdefault(record.conversation_id, LoggedFacts()).fold(record)

    def receive(self, arrival: Arrival) -> Sequence[Effect]:
        """Folds one record into its call; its first record opens the call."""
        source = arrival.source
        if arrival.offset <= self._last_offsets.get(source, -1):
            self._outcomes[source, "repeated"] += 1
            return ()
        self._last_offsets[source] = arrival.offset
        conversation_id = arrival.conversation_id
        call = self._calls.get(conversation_id)
        out: list[Effect] = []
        if call is None:
            is_replayed = self._closed.was_folded(conversation_id, source, arrival.offset)
            if is_replayed is not None:
                self._outcomes[source, "replayed" if is_replayed else "after_close"] += 1
                return ()
            facts = self._logged.get(conversation_id)
            is_verdict = isinstance(
                arrival.event, JudgeVerdict
            )  # a verdict opens no call: nobody here has asked for it
            if is_verdict or (facts is not None and facts.is_after_close(arrival)):
                self._outcomes[source, "after_close"] += 1
                return ()
            if len(self._calls) >= self._limits.max_open_calls:
                self._make_room(arrival.broker_time_ms, out)
            call = self._calls[conversation_id] = self._opened(arrival, facts)
            self._eviction.add(call, self._calls)
        if call.is_closing:
            self._outcomes[source, "after_close"] += 1
            return ()
        if type(arrival.event) is not JudgeVerdict:  # a verdict counts by its own time, whenever it is read
            if call.is_over:
                self._outcomes[source, "after_close"] += 1
                return ()
            # Later arrivals of an input wait behind an earlier one that waits.
            broker_ms, wakeup_ms = arrival.broker_time_ms, call.wakeup_ms
            if (wakeup_ms is not None and broker_ms >= wakeup_ms and self._is_ahead(call, broker_ms)) or (
                call.waiting and any(each.source is source for _, each in call.waiting)
            ):
                self._let_wait(call, arrival, out)
                return out
        self._fold(call, arrival, out)
        if call.waiting and self._now_ms is not None:
            self._pass_time(call, self._now_ms, out)
        return out

    def advance(self, now_ms: int) -> Sequence[Effect]:
        """Decides by silence up to broker time `now_ms` and closes ended calls: `pass_time` and `close_some` in one."""
        out = [*self.pass_time(now_ms)]
        while self._closing:
            self._go_on_closing(out)
        return out

    def pass_time(self, now_ms: int) -> Sequence[Effect]:
        """Decides by silence up to broker time `now_ms`, oldest first; calls that are over wait for `close_some`."""
        out: list[Effect] = []
        if self._now_ms is None or now_ms > self._now_ms:
            self._now_ms = now_ms
        while (call := self._wakeups.next_due(now_ms, self._calls)) is not None:
            self._pass_time(call, now_ms, out)
            if not call.is_closing and (due_ms := call.next_wakeup()) is not None:
                self._wakeups.schedule(call, max(due_ms, now_ms + 1))
        return out

    def close_some(self) -> Sequence[Effect]:
        """Closes calls that are over, in the order of their ends: as many as fit into a step, or one step of a large one."""
        out: list[Effect] = []
        work, is_whole = 0, True
        while self._closing and is_whole and work < MOST_CLOSING_WORK:
            work += CLOSING_WORK_OF_A_CALL + self._calls[self._closing[0]].events
            is_whole = self._go_on_closing(out)
        return out

    def heaviest_call(self) -> tuple[int, int, str] | None:
        """Kept bytes, events and id of the open call that keeps the most bytes; None while no call is open."""
        return max(((call.kept_bytes, call.events, key) for key, call in self._calls.items()), default=None)

    def cut(self, conversation_id: str, *, is_scored: bool) -> Sequence[Effect]:
        """Closes a call that blocks its partition: without a transcript, and with final scores if `is_scored`."""
        out: list[Effect] = [Count("callgauge_limits_hit_total", ("takeovers",))]
        call = self._calls[conversation_id]
        self._refuse_waiting(call)
        call.writes_transcript = False
        if is_scored and not call.is_closing:
            call.close(CloseReason.LIMIT_KEPT_BYTES, call.last_broker_ms)
            while not call.is_closed:  # all steps at once: no time passes until the call is gone
                call.go_on_closing(out)
        else:
            if call.is_closing:
                self._closing.remove(conversation_id)
            call.close_unscored(CloseReason.LIMIT_KEPT_BYTES, call.last_broker_ms, out)
        self._forget(call)
        return out

    def end(self) -> Sequence[Effect]:
        """Closes the logged calls as their log says, at the end of the inputs, although some of their records are missing."""
        out: list[Effect] = []
        for call in [call for call in self._calls.values() if isinstance(call, LoggedCall) and not call.is_closing]:
            call.close_as_logged(out)
            self._closing.append(call.conversation_id)
        while self._closing:
            self._go_on_closing(out)
        return out

    def next_wakeup(self) -> int | None:
        """Broker time in ms at which `advance` can have an effect; None while no call is open. While a call is closing, now."""
        return (self._now_ms or 0) if self._closing else self._wakeups.first_ms

    @property
    def redactor(self) -> Redactor:
        """Redacts every text that leaves."""
        return self._redactor

    def snapshot(self) -> bytes:
        """The state as bytes, to be restored by the same version of the code."""
        into = InMemory()
        self.write_snapshot(into)
        return into.collected

    def write_snapshot(self, into: TakesBytes) -> None:
        """Writes the snapshot piece by piece. The evaluator must not change meanwhile."""
        write_state(SNAPSHOT_VERSION, self.__dict__, into)

    @classmethod
    def restore(cls, snapshot: bytes | GivesBytes, goals: ChoosesGoals | None = None) -> "PartitionEvaluator":
        """An evaluator in the state of the snapshot; `goals` gives goal sets to calls that open later.

        The bytes must come from a trusted place: see `state_bytes`.

        Raises:
            SnapshotError: The snapshot is damaged or of another version.
        """
        state = read_state(SNAPSHOT_VERSION, InMemory(snapshot) if isinstance(snapshot, bytes) else snapshot)
        evaluator = cls.__new__(cls)
        evaluator.__dict__.update(state)
        state["_goals"].source = goals
        return evaluator

    def context(self, conversation_id: str) -> MetricContext | None:
        """EVA's context of an open call; None when it is not open."""
        return None if (call := self._calls.get(conversation_id)) is None else call.context()

    def low_watermarks(self) -> dict[InputSource, int]:
        """First offset of the oldest open call on each input that has one: a replay must start there."""
        lowest: dict[InputSource, int] = {}
        for call in self._calls.values():
            for source, offset in call.first_offsets.items():
                if offset < lowest.get(source, offset + 1):
                    lowest[source] = offset
        return lowest

    def unfinished_calls(self) -> Sequence[str]:
        """Ids of the calls that are not closed: the open ones, and recalled ones without a new record so far."""
        return [*self._calls, *self._memories]

    def drain_counts(self) -> list[Count]:
        """Counts since the last drain: records by outcome, events of a wrong time, and redactions."""
        for source, number in self._folded.items():
            if number:
                self._outcomes[source, "folded"] = number
                self._folded[source] = 0
        counts = [
            Count("callgauge_events_total", (source.value, outcome), number)
            for (source, outcome), number in self._outcomes.items()
        ]
        self._outcomes.clear()
        counts += [Count("callgauge_skewed_events_total", key, number) for key, number in self._skewed.items()]
        self._skewed.clear()
        found = self._redactor.counts
        counts += [Count("callgauge_redactions_total", (kind,), number) for kind, number in sorted(found.items())]
        found.clear()
        return counts

    def _fold(self, call: Call, arrival: Arrival, out: list[Effect]) -> None:
        source = arrival.source
        outcome = call.receive(arrival, out)
        if outcome == "folded":
            self._folded[source] += 1
        else:
            self._outcomes[source, outcome] += 1
        if outcome != "replayed":
            count_skew(self._skewed, arrival)
        if call.redactor.texts_left_out:
            out += call.redactor.drain_counts()
        if call.is_closing:
            self._closing.append(call.conversation_id)
            self._go_on_closing(out)  # one step for each call that a record closes, so that they do not pile up
        else:
            self._wakeups.schedule(call, call.next_wakeup())

    def _is_ahead(self, call: Call, broker_ms: int) -> bool:
        """Whether the call may be over before this record, and broker time has not reached the call's end yet.

        Another input may still hold an earlier record. The end of a call must not depend on the order in which inputs are read.
        """
        return self._now_ms is not None and self._now_ms < call.ends_at() <= broker_ms

    def _let_wait(self, call: Call, arrival: Arrival, out: list[Effect]) -> None:
        """Keeps the arrival until broker time reaches it, so that every input was read that far."""
        call.keep_waiting(arrival)
        if len(call.waiting) > MAX_WAITING_PER_CALL:
            out.append(Count("callgauge_limits_hit_total", ("held",)))
            self._fold(call, call.waiting.pop(0)[1], out)

    def _pass_time(self, call: Call, now_ms: int, out: list[Effect]) -> None:
        """Advances the call to `now_ms`, and folds its waiting arrivals at their times."""
        waiting = call.waiting
        while self._is_open(call):
            until_ms = min(now_ms, waiting[0][0]) if waiting else now_ms
            due_ms = call.next_wakeup()
            if due_ms is not None and due_ms <= until_ms:
                call.advance(until_ms, out)
                out += call.redactor.drain_counts()
                if call.is_closing:
                    self._closing.append(call.conversation_id)
                elif call.is_over:
                    self._refuse_waiting(call)
            elif waiting and (now_ms >= waiting[0][0] or call.ends_at() > waiting[0][0]):
                self._fold(call, waiting.pop(0)[1], out)
            else:
                return
        self._refuse_waiting(call)

    def _is_open(self, call: Call) -> bool:
        return not call.is_closing

    def _refuse_waiting(self, call: Call) -> None:
        """Drops the waiting arrivals: the call was over before them."""
        for _, arrival in call.waiting:
            self._outcomes[arrival.source, "after_close"] += 1
        call.waiting.clear()

    def _opened(self, arrival: Arrival, facts: LoggedFacts | None) -> Call:
        memory = self._memories.pop(arrival.conversation_id, None)
        if facts is not None and facts.closed is not None:
            goals, redactor = self._goals, self._redactor
            return LoggedCall(arrival, self._limits, self._code_version, facts, facts.closed, goals, redactor)
        return Call(
            arrival, self._limits, self._code_version, memory, self._goals,
            writes_transcript=self._writes_transcripts, redactor=self._redactor,
        )  # fmt: skip

    def _make_room(self, now_ms: int, out: list[Effect]) -> None:
        """Closes the call that is missed least. Logged calls stay: their number was limited when they were live."""
        if len(self._calls) - len(self._closing) >= self._limits.max_open_calls:
            evicted = self._eviction.next(self._calls)
            if evicted is not None:
                out.append(Count("callgauge_limits_hit_total", ("open_calls",)))
                evicted.close(CloseReason.LIMIT_OPEN_CALLS, now_ms)
                self._closing.append(evicted.conversation_id)
        if self._closing:
            self._go_on_closing(out)

    def _go_on_closing(self, out: list[Effect]) -> bool:
        """Takes one step of the close that was due first; returns whether it was its last."""
        call = self._calls[self._closing[0]]
        call.go_on_closing(out)
        if call.is_closed:
            self._closing.popleft()
            self._forget(call)
        return call.is_closed

    def _forget(self, call: Call) -> None:
        del self._calls[call.conversation_id]
        self._replayed_by_closed += call.replayed_elements
        call.release()
        self._closed.close(call.conversation_id, self._last_offsets)
