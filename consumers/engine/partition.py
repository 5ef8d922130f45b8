"""The five verbs: one evaluator for the calls of one partition number over the four inputs. The only mutable front of the engine.

Pure: it reads no clock, performs no I/O and draws no random numbers. Equal inputs in equal order give equal effects.
"""

import heapq
from collections import Counter, deque
from collections.abc import Mapping, Sequence

from consumers.engine.call.call import Call
from consumers.engine.call.eviction import Eviction
from consumers.engine.call.logged_call import LoggedCall, LoggedFacts
from consumers.engine.effects import Count, Effect
from consumers.engine.goals.chosen_goals import ChosenGoals
from consumers.engine.intake.admission import Arrival
from consumers.engine.intake.closed_calls import ClosedCalls
from consumers.engine.limits import Limits
from consumers.engine.records.call_memory import CallMemory, sources
from consumers.engine.redaction.redactor import Redactor
from consumers.engine.state_bytes import GivesBytes, InMemory, TakesBytes, read_state, write_state
from schemas.events.codec import InputSource
from schemas.goals.goal_set import ChoosesGoals
from schemas.judging import JudgeVerdict
from schemas.ledger_record import ClosedElsewhere, LedgerRecord
from schemas.metric_context import MetricContext
from schemas.scores.all_records import AnyScoreRecord, ClosedFact, CloseReason, DeadAirFact, GoalsFact

SNAPSHOT_VERSION = 12
MAX_WAITING_PER_CALL = 1_000
"""Records of a call kept because an input lags: five minutes of a call. Beyond it they are folded as they come."""


class PartitionEvaluator:
    """Open calls of one partition.

    `receive` folds a record, `advance` lets broker time pass, `next_wakeup` says when to call it, `snapshot` and `restore`
    carry the state over. A call lives from its first record to its `closed` fact; what comes later is only counted.

    An evaluator that takes a partition over is first told what its predecessor published (`recall`), then replays the
    inputs: closed calls stay closed, and open ones are silent until they are where they were.

    An evaluator that judges past traffic anew is first told the facts of then (`obey`): those calls have the dead air and
    the end that they had, and `end` closes them where the inputs do not reach as far as they did.
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
            goals: Where calls get their goals, and how they are judged.
            writes_transcripts: Whether a call that closes gets a transcript.
            redactor: Goes over every text that leaves; None is one with the default rules.
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
        self._wakeups: list[tuple[int, str]] = []
        self._now_ms: int | None = None
        self._last_offsets: dict[InputSource, int] = {}
        self._folded = dict.fromkeys(InputSource, 0)
        self._outcomes: Counter[tuple[InputSource, str]] = Counter()
        self._replayed_by_closed = 0

    @property
    def open_calls(self) -> int:
        """Number of open calls."""
        return len(self._calls)

    @property
    def replayed_elements(self) -> int:
        """Elements folded again because something came late, ever."""
        return self._replayed_by_closed + sum(call.replayed_elements for call in self._calls.values())

    def reading_starts_at(self, offsets: Mapping[InputSource, int]) -> None:
        """The first record that will be received of each input. Said before `recall`, it bounds what that remembers."""
        self._closed.reading_starts_at(offsets)

    def recall(self, record: LedgerRecord) -> None:
        """A record that an earlier evaluator of this partition published; all of them in order, before anything is received."""
        conversation_id = record.conversation_id
        if isinstance(record, ClosedFact | ClosedElsewhere):
            self._memories.pop(conversation_id, None)
            self._closed.recall(conversation_id, sources(record.through))
        elif conversation_id not in self._closed:
            memory = self._memories.get(conversation_id)
            if memory is None:
                memory = self._memories[conversation_id] = CallMemory()
            memory.fold(record)

    def obey(self, record: AnyScoreRecord) -> None:
        """A record of the log of calls to be evaluated again; all of them in order, before anything is received.

        A call whose closing is among them takes its silences and its end from there; any other decides for itself.
        """
        if isinstance(record, DeadAirFact | GoalsFact | ClosedFact):
            facts = self._logged.get(record.conversation_id)
            if facts is None:
                facts = self._logged[record.conversation_id] = LoggedFacts()
            facts.fold(record)

    def receive(self, arrival: Arrival) -> Sequence[Effect]:
        """Fold one record into its call, opening the call if it is the first."""
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
            )  # an answer to what nobody here has asked opens no call
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
        if not isinstance(arrival.event, JudgeVerdict):  # which counts by its own time, whenever it is read
            if call.is_over:
                self._outcomes[source, "after_close"] += 1
                return ()
            # What follows a held record of its input waits behind it.
            if self._is_ahead(call, arrival.broker_time_ms) or (
                call.waiting and any(each.source is source for _, each in call.waiting)
            ):
                self._let_wait(call, arrival, out)
                return out
        self._fold(call, arrival, out)
        if call.waiting and self._now_ms is not None:
            self._pass_time(call, self._now_ms, out)
        return out

    def advance(self, now_ms: int) -> Sequence[Effect]:
        """Broker time has reached `now_ms`: what silence decides until then, oldest first. A close that takes several steps
        goes on by one.
        """
        out: list[Effect] = []
        if self._closing:
            self._go_on_closing(out)
        if self._now_ms is None or now_ms > self._now_ms:
            self._now_ms = now_ms
        wakeups = self._wakeups
        while wakeups and wakeups[0][0] <= now_ms:
            due_ms, conversation_id = heapq.heappop(wakeups)
            call = self._calls.get(conversation_id)
            if call is None or call.wakeup_ms != due_ms:
                continue  # closed, or an earlier wake-up took its place
            call.wakeup_ms = None
            self._pass_time(call, now_ms, out)
            if not call.is_closing:
                self._schedule(call, max(call.next_wakeup(), now_ms + 1))
        return out

    def heaviest_call(self) -> tuple[int, int, str] | None:
        """Bytes kept, events and id of the open call that keeps most; None while none is open."""
        return max(((call.kept_bytes, call.events, key) for key, call in self._calls.items()), default=None)

    def cut(self, conversation_id: str, *, is_scored: bool) -> Sequence[Effect]:
        """Close an open call because its partition does not get on: without a transcript, and with final scores if `is_scored`."""
        out: list[Effect] = [Count("callgauge_limits_hit_total", ("takeovers",))]
        call = self._calls[conversation_id]
        self._refuse_waiting(call)
        call.writes_transcript = False
        if is_scored and not call.is_closing:
            call.close(CloseReason.LIMIT_KEPT_BYTES, call.last_broker_ms, out)
            while not call.is_closed:  # all of it now: time is at rest until the call is gone
                call.redactor.begin_step()
                call.go_on_closing(out)
        else:
            if call.is_closing:
                self._closing.remove(conversation_id)
            call.close_unscored(CloseReason.LIMIT_KEPT_BYTES, call.last_broker_ms, out)
        self._forget(call)
        return out

    def end(self) -> Sequence[Effect]:
        """The inputs have ended: calls that obey the log close as it says, though not every record of then is there."""
        out: list[Effect] = []
        for call in [call for call in self._calls.values() if isinstance(call, LoggedCall)]:
            call.close_as_logged(out)
            self._leave(call)
        return out

    def next_wakeup(self) -> int | None:
        """Broker time in ms at which `advance` may have something to do; None while no call is open. While a close is under
        way that is at once, whatever time it is.
        """
        if self._closing:
            return self._now_ms or 0
        return self._wakeups[0][0] if self._wakeups else None

    @property
    def redactor(self) -> Redactor:
        """Goes over every text that leaves."""
        return self._redactor

    def snapshot(self) -> bytes:
        """The state as bytes, for the same code on the other side of a restart."""
        into = InMemory()
        self.write_snapshot(into)
        return into.collected

    def write_snapshot(self, into: TakesBytes) -> None:
        """The same, piece by piece. Nothing may be received, advanced or drained meanwhile."""
        write_state(SNAPSHOT_VERSION, self.__dict__, into)

    @classmethod
    def restore(cls, snapshot: bytes | GivesBytes, goals: ChoosesGoals | None = None) -> "PartitionEvaluator":
        """An evaluator that goes on where the snapshot was taken, with goal sets for further calls from this source.

        The bytes must be known to be ours: see `state_bytes`.

        Raises:
            SnapshotError: They are of another version, or damaged.
        """
        state = read_state(SNAPSHOT_VERSION, InMemory(snapshot) if isinstance(snapshot, bytes) else snapshot)
        evaluator = cls.__new__(cls)
        evaluator.__dict__.update(state)
        state["_goals"].source = goals
        return evaluator

    def context(self, conversation_id: str) -> MetricContext | None:
        """EVA's context of an open call; None when no such call is open."""
        call = self._calls.get(conversation_id)
        return None if call is None else call.context()

    def low_watermarks(self) -> dict[InputSource, int]:
        """First offset of the oldest open call, for each input that has one: replay must start there."""
        lowest: dict[InputSource, int] = {}
        for call in self._calls.values():
            for source, offset in call.first_offsets.items():
                if offset < lowest.get(source, offset + 1):
                    lowest[source] = offset
        return lowest

    def unfinished_calls(self) -> Sequence[str]:
        """Ids of the calls that have begun and not closed: the open ones, and those recalled of which nothing came again."""
        return [*self._calls, *self._memories]

    def drain_counts(self) -> list[Count]:
        """What became of the records since this was last asked, for the events counter."""
        for source, number in self._folded.items():
            if number:
                self._outcomes[source, "folded"] = number
                self._folded[source] = 0
        counts = [
            Count("callgauge_events_total", (source.value, outcome), number)
            for (source, outcome), number in self._outcomes.items()
        ]
        self._outcomes.clear()
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
        if call.redactor.texts_left_out:
            out += call.redactor.drain_counts()
        if call.is_closing:
            self._leave(call)
        elif call.live.needs_wakeup:
            call.live.needs_wakeup = False
            self._schedule(call, call.next_wakeup())

    def _is_ahead(self, call: Call, broker_ms: int) -> bool:
        """Whether the record came after the call may be over, and broker time is not there yet.

        Another input may still have a record from before that. When a call ends must not depend on which is read first.
        """
        now_ms, wakeup_ms = self._now_ms, call.wakeup_ms
        if now_ms is None or wakeup_ms is None or broker_ms < wakeup_ms:
            return False
        return now_ms < call.ends_at() <= broker_ms

    def _let_wait(self, call: Call, arrival: Arrival, out: list[Effect]) -> None:
        """Keep the record until broker time is there: for as long as it takes to hear from every input."""
        call.keep_waiting(arrival)
        if len(call.waiting) > MAX_WAITING_PER_CALL:
            out.append(Count("callgauge_limits_hit_total", ("held",)))
            self._fold(call, call.waiting.pop(0)[1], out)

    def _pass_time(self, call: Call, now_ms: int, out: list[Effect]) -> None:
        """Let the call come to `now_ms`, with what was held for it in its place."""
        waiting = call.waiting
        while self._is_open(call):
            until_ms = min(now_ms, waiting[0][0]) if waiting else now_ms
            due_ms = call.next_wakeup()
            if due_ms <= until_ms:
                call.advance(until_ms, out)
                out += call.redactor.drain_counts()
                if call.is_closing:
                    self._leave(call)
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
        """The call was over when these came."""
        for _, arrival in call.waiting:
            self._outcomes[arrival.source, "after_close"] += 1
        call.waiting.clear()

    def _schedule(self, call: Call, due_ms: int) -> None:
        """Wake the call at `due_ms`, unless it wakes sooner anyway: one entry of the heap for each change to sooner."""
        if call.wakeup_ms is None or due_ms < call.wakeup_ms:
            call.wakeup_ms = due_ms
            heapq.heappush(self._wakeups, (due_ms, call.conversation_id))

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
        """Close the call that is missed least. Those that obey the log are left: how many are open was limited then."""
        evicted = self._eviction.next(self._calls)
        if evicted is not None:
            out.append(Count("callgauge_limits_hit_total", ("open_calls",)))
            evicted.close(CloseReason.LIMIT_OPEN_CALLS, now_ms, out)
            self._leave(evicted)
        if self._closing:  # so that they cannot pile up
            self._go_on_closing(out)

    def _go_on_closing(self, out: list[Effect]) -> None:
        """One step of the close that began first."""
        call = self._calls[self._closing[0]]
        call.redactor.begin_step()
        call.go_on_closing(out)
        if call.is_closed:
            self._closing.popleft()
            self._forget(call)

    def _leave(self, call: Call) -> None:
        """The call is over: it is gone when its close is written."""
        if call.is_closed:
            self._forget(call)
        else:
            self._closing.append(call.conversation_id)

    def _forget(self, call: Call) -> None:
        del self._calls[call.conversation_id]
        self._replayed_by_closed += call.replayed_elements
        call.release()
        self._closed.close(call.conversation_id, self._last_offsets)
