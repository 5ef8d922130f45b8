"""A call from its first record to its close: its parts in the order in which they see an event, and
its final records.
"""

from bisect import insort
from collections.abc import Callable, Generator, Iterator, Mapping
from collections.abc import Set as AbstractSet
from functools import partial
from math import inf
from typing import Any, Final, TypeVar, cast

from consumers.engine.admission import Arrival
from consumers.engine.contexts import CallFacts, context_by_the_bot, with_facts
from consumers.engine.effects import (
    Count,
    Effect,
    NotUnderstood,
    PublishRow,
    PublishTranscript,
    PublishWords,
)
from consumers.engine.goals.progress import ChosenGoals, JudgedScores
from consumers.engine.goals.text_judges import Ratings
from consumers.engine.limits import Limits
from consumers.engine.measures.rows import Measures
from consumers.engine.redaction.redactor import MAX_CHARS_PER_STEP, CallRedactor, Redactor
from consumers.engine.rows import CallRows
from consumers.engine.sources.elevenlabs import AgentFacts
from consumers.engine.sources.facts import (
    AgentError,
    Corrected,
    CutOff,
    Detailed,
    Ended,
    EvaElement,
    Fallback,
    Layer,
    Line,
    Lost,
    NoteFact,
    Recorded,
    RecordFollows,
    Recording,
    SpeechFact,
    Started,
    Teller,
    Text,
    TextBorder,
    ToldWait,
    ToolFact,
    ToolUsed,
    Unread,
    Verdict,
    WordsFact,
)
from consumers.engine.sources.findings import EventFindings
from consumers.engine.sources.pipecat import NAMELESS
from consumers.engine.sources.repeats import MAX_ORIGINS, NUMBERED, Repeats
from consumers.engine.sources.rules import RULES, UNKNOWN, VERDICT, reports_of
from consumers.engine.transcripts import (
    CallTranscript,
    RecordedTranscript,
    order_of_details,
    transcript_bytes,
)
from consumers.engine.turns.bot import BotElementKind
from consumers.engine.turns.eva import EvaHistory
from consumers.engine.turns.heard import HeardTurns
from consumers.engine.turns.live import INPUT_RANK, NEVER_MS, NO_CHANGES, Cause, LiveCall
from consumers.engine.turns.timeline import BrokerMoment, ElementKind, SilenceKind
from consumers.engine.words_rows import CallWords
from schemas.closed_sets import CloseReason
from schemas.metric_context import MetricContext
from schemas.rows import CallRow, Labels, Row, TurnRow, WordsRow
from schemas.wire import MAX_NAME_CHARS

_LINE: Final = Layer.LINE  # looked up once
LONG_CALL_TURNS: Final = 100
"""The close of a call with more turns than this takes several steps: that of a shorter one takes 20
ms at most.
"""
LONG_CALL_EVENTS: Final = 3_000
"""The same for its events."""
MAX_DETAILS: Final = 1_000
"""Most `turn_details` of a call that are kept: as many as a call may have turns. Their bytes count
among those that a call keeps.
"""
CALL_ROW_EVERY_MS: Final = 60_000
"""From one row of a call to the next, in ms of broker time, also when nothing changes: who begins
to read knows the call by then.
"""
ENTRIES_OF_ONE_STEP: Final = 200
"""Entries of a transcript that are written in one step: 10 ms."""

Done = TypeVar("Done")


# Decides when a call without further events is over: announced, silent for too long, or too long
# altogether.


class CallEnd:
    """The end of one call, by the broker times of its records.

    Attributes:
        last_ms: Broker time of the latest record so far, or of the end of a later gap in which none
            could come.
        event_ms: Broker time of the latest record so far.
        due_ms: Broker time from which the call is over if no record follows.
        reason: Why it is over then.
    """

    def __init__(self, first_ms: int, limits: Limits) -> None:
        self.last_ms = self.event_ms = first_ms
        self._limits = limits
        self._first_ms = first_ms
        self._announced: BrokerMoment | None = None
        self._announced_reason = CloseReason.ENDED
        self._recorded_ms: int | None = None
        self._awaits_record = False
        # up to this due time, nothing but silence ends the call: nearly always
        self._idle_until_ms = 0
        self._plan()

    def heard(self, broker_ms: int) -> None:
        """Notes a record with this broker time."""
        if broker_ms > self.last_ms:
            self.last_ms = self.event_ms = broker_ms
            due_ms = broker_ms + self._limits.idle_ms
            if due_ms <= self._idle_until_ms:
                self.due_ms = due_ms
            else:
                self._plan()
        elif broker_ms == self.last_ms:
            self.event_ms = broker_ms  # a gap may have ended at the same moment
        elif broker_ms < self._first_ms:
            self._first_ms = broker_ms
            self._plan()

    @property
    def is_told(self) -> bool:
        """Whether an event said that the call ended, or a record of the whole call came; unlike the
        reason of its close it does not depend on what came first.
        """
        return self._announced is not None or self._recorded_ms is not None

    @property
    def heard_ms(self) -> int:
        """Broker time of its latest record; of a call that ended no later than that, because a
        record of it may come minutes later.
        """
        return (
            self.event_ms
            if self._announced is None
            else min(self.event_ms, self._announced.broker_ms)
        )

    def pass_gap(self, until_ms: int) -> None:
        """Notes that no records could come up to this time."""
        event_ms = self.event_ms
        self.heard(until_ms)
        self.event_ms = event_ms

    def go_back(self, to_ms: int) -> None:
        """Notes that all records so far came before this time: the clock that dated
        them was ahead.
        """
        self.last_ms, self._first_ms = min(self.last_ms, to_ms), min(self._first_ms, to_ms)
        self.event_ms = min(self.event_ms, to_ms)
        if self._announced is not None:
            self._announced = min(self._announced, BrokerMoment(to_ms, self._announced.input_rank))
        if self._recorded_ms is not None:
            self._recorded_ms = min(self._recorded_ms, to_ms)
        self._plan()

    def announce(self, at: BrokerMoment, reason: CloseReason) -> bool:
        """Notes an announced end of the call. Of several the first in the broker's order counts.
        The end of a session gives the reason, wherever it is in that order: which of two topics was
        faster says nothing of the call.

        Returns:
            Whether this is the first so far.
        """
        if reason is CloseReason.SESSION_ENDED:
            self._announced_reason = reason
        is_first = self._announced is None or at < self._announced
        if is_first:
            self._announced = at
        self._plan()
        return is_first

    def await_record(self) -> None:
        """Notes that a record of the call follows its end."""
        if not self._awaits_record:
            self._awaits_record = True
            self._plan()

    def recorded(self, at: BrokerMoment) -> None:
        """Notes the record of a call that is over; of several the first counts."""
        if self._recorded_ms is None or at.broker_ms < self._recorded_ms:
            self._recorded_ms = at.broker_ms
            self._plan()

    def _plan(self) -> None:
        limits = self._limits
        due_ms, reason = self.last_ms + limits.idle_ms, CloseReason.IDLE
        longest_ms = self._first_ms + limits.max_call_duration_ms
        self._idle_until_ms = longest_ms if self._announced is None else 0
        if longest_ms < due_ms:
            due_ms, reason = longest_ms, CloseReason.LIMIT_DURATION
        if self._announced is not None:
            announced_ms = self._announced.broker_ms + limits.closing_grace_ms
            if self._recorded_ms is not None:
                announced_ms = max(announced_ms, self._recorded_ms + limits.closing_grace_ms)
            elif self._awaits_record:
                announced_ms = max(
                    announced_ms, self._announced.broker_ms + limits.agent_record_grace_ms
                )
            if announced_ms <= due_ms:
                due_ms, reason = announced_ms, self._announced_reason
        self.due_ms, self.reason = due_ms, reason


# One call: events of every source in, effects out. It owns EVA's history, the live call and the
# closing.


class Call:
    """One open call, from its first record to its closed row. `receive` and `advance` append
    effects to `out`. While `is_closing`, its final values and its transcript are made, and no
    further record is folded.

    Attributes:
        end: When silence ends the call; later records are not part of it.
        next_decision_ms: Broker time of the next decision that silence can make about it.
    """

    def __init__(
        self,
        first: Arrival,
        limits: Limits,
        code_version: str,
        goals: ChosenGoals | None = None,
        *,
        partition: int = 0,
        writes_transcript: bool = False,
        redactor: Redactor | None = None,
        counts: bool = True,
        is_silent: bool = False,
    ) -> None:
        self.conversation_id = first.conversation_id
        row = CallRow(
            conversation_id=first.conversation_id,
            code_version=code_version,
            partition=partition,
            first_place=first.offset,
            first_known_ms=first.broker_time_ms,
        )
        self.rows = CallRows(row, redactor, counts=counts, is_silent=is_silent)
        self.history = EvaHistory()
        self._replays = self.history.replays
        self.ended_reason: str | None = None
        self.events = 0
        self.kept_bytes = 0
        self.first_offset = first.offset
        self.is_closed = False
        self.wakeup_ms: int | None = None
        self.replaced_wakeup_ms: int | None = None
        self.end = CallEnd(first.broker_time_ms, limits)
        self.next_decision_ms = self.end.due_ms
        self._limits = limits
        self.redactor = self.rows.redactor
        self.live = LiveCall(self.history, self.rows, limits)
        self._words = CallWords(self.redactor) if limits.words else None
        self._repeats = Repeats(limits.max_remembered_ids)
        self._origins = self._repeats.origins
        self._agent = AgentFacts()
        # for speech and for words: whether a record had them first
        self._are_from_record: dict[type, bool] = {}
        self._recorded_words: list[WordsFact] = []  # late ones, until the record ends
        self._details: list[Detailed] = []
        ratings = Ratings()
        self._judged = JudgedScores(
            first.conversation_id, goals or ChosenGoals(), self.rows, ratings
        )
        self._measures = Measures(self.rows, limits, ratings)
        self.supplied = self._measures.eva.supplied
        self.writes_transcript = writes_transcript
        self.is_over = self.is_closing = False
        self._closing: Iterator[bool] | None = None
        self._last_effects: list[Effect] = []
        self._is_real = False
        self._row_due_ms = NEVER_MS  # before its first row
        self._closes_as: tuple[CloseReason, int]  # once it is closing

    @property
    def tenant(self) -> str:
        """Whose call it is, as known now."""
        return self.rows.call.labels.tenant

    def receive(self, arrival: Arrival, revision: int, out: list[Effect]) -> str:
        """Folds one record, and has the rows with this revision written that it changes; returns
        its outcome, a label of the events counter.
        """
        self.decides_as(revision)
        outcome = self._fold(arrival, out)
        self.publish(out)
        self._plan()
        return outcome

    @property
    def is_none(self) -> bool:
        """Whether nothing shows that this is a call: a trace has spans around a call, also where
        no speech ever comes. Its rows wait for the first speech, word or tool. If it ends before,
        it ends without a row, and a later one may have its id.
        """
        return not self._is_real and self.live.is_told_later and self.live.tells_nothing

    def publish(self, out: list[Effect]) -> None:
        """Has the rows written that are another than at the end of the step before."""
        rows, words = self.rows, self._words
        has_words = words is not None and words.is_due
        if not (rows.is_changed or has_words) or self.is_none:
            return
        self._is_real = True
        heard = self.live.heard(words.since if words is not None and has_words else None)
        if words is not None and has_words:
            self._publish_words(words, heard, out)
        if not rows.is_changed:
            return
        self._row_due_ms = rows.call.known_ms + CALL_ROW_EVERY_MS
        self._plan()
        rows.note_sounds(self.live.sounds)
        if rows.is_silent:
            rows.pass_over()
        else:
            out += map(PublishRow, self._changed_rows(heard))

    def _publish_words(self, words: CallWords, heard: HeardTurns, out: list[Effect]) -> None:
        made = [
            *map(PublishWords, words.rows(self.live, heard, self.rows.call, self.rows.revision))
        ]
        if not self.rows.is_silent:  # otherwise a former owner has written them
            out += made

    def say_again(self, revision: int) -> Iterator[Row | WordsRow]:
        """All rows once again, with this revision, and without news."""
        if self._words is not None:
            yield from self._words.say_again(self.live, self.rows.call, revision)
        self.rows.say_again()
        yield from self._changed_rows(self.live.heard(), revision)

    def _changed_rows(self, heard: HeardTurns, revision: int | None = None) -> Iterator[Row]:
        """The changed rows, with all that is no reason to make one."""
        live, call = self.live, self.rows.call

        def completed(row: TurnRow) -> None:
            if row.status != "withdrawn" or live.turns.view(row.turn) is not None:
                row.status = live.turns.status(row.turn)
            turn = heard.turn(row.turn)
            row.user_sounds = () if turn is None else turn.user.heard.in_row()
            row.assistant_sounds = () if turn is None else turn.assistant.heard.in_row()

        call.began_ms, call.turns, call.events = live.first_ms, live.turns.highest_turn, self.events
        call.last_known_ms = self.end.heard_ms
        return self.rows.drain(completed, revision, is_told=self.end.is_told)

    def _fold(self, arrival: Arrival, out: list[Effect]) -> str:
        self.redactor.left_chars = MAX_CHARS_PER_STEP
        source, event, broker_ms = arrival.source, arrival.event, arrival.broker_time_ms
        rule = RULES.get(type(event)) or UNKNOWN[source]
        self.rows.call.last_place = arrival.offset
        if rule is not VERDICT:  # a verdict is no event of the call
            self.end.heard(broker_ms)
        if (arrival.envelope is not None or source in NUMBERED) and self._repeats_another(arrival):
            return "repeated"
        if rule.may_be_from_record and self._is_told_otherwise(event):
            return "repeated"
        origins = self._origins[source]
        origins.append(arrival.origin)
        if len(origins) > MAX_ORIGINS:
            del origins[: MAX_ORIGINS // 2]
        self.events += rule is not VERDICT
        live, limits = self.live, self._limits
        outcome, timestamp = rule.outcome, event.timestamp
        if timestamp is not None:
            time_ms = int(timestamp)
            live.broker_ms, live.input_rank = broker_ms, INPUT_RANK[source]
            if rule.is_of_a_stream and live.note_time(source, time_ms):
                outcome = "late" if outcome == "folded" else outcome
                out.append(Count("callgauge_late_events_total", (source.value,)))
            for fact in rule.facts(event):
                _READERS[type(fact)](self, fact, time_ms, out)
            if self.is_closing:
                return outcome
            changes = NO_CHANGES
            # Nine of ten events neither change nor settle a turn.
            machine = live.history.machine if live.bot is None else live.bot.machine
            settles = time_ms >= live.settle_at_ms <= live.low_ms
            if machine.touched or settles or live.records.is_any:
                cause = Cause(time_ms, broker_ms)
                # first: measures read the tool uses and settled turns it updates
                changes = live.refresh(cause, out)
                if changes.touched or changes.settled:
                    self._measures.follow(live, changes, cause, self._judged, out)
                if changes.touched:
                    self._follow_agent(live, changes.touched, broker_ms)
            if self._words is not None and (changes.touched or machine.reworded):
                self._words.follow(live, changes.touched, changes.with_tools)
            if self._judged.is_any and (
                changes.with_tools or machine.turn != self._judged.seen_turn
            ):
                self._judged.follow(live, changes, broker_ms, out)
            if changes.touched and live.turns.highest_turn > limits.max_turns_per_call:
                self._hit_limit(CloseReason.LIMIT_TURNS, "turns", self.end.last_ms, out)
            if rule.is_kept:
                self.kept_bytes += len(arrival.value)
        if event.__pydantic_extra__ or outcome == "unknown":
            out += reports_of(source, event, outcome, self.conversation_id)
        if self.events >= limits.max_events_per_call:
            self._hit_limit(CloseReason.LIMIT_EVENTS, "events", self.end.last_ms, out)
        elif self.kept_bytes > limits.max_kept_bytes_per_call:
            self._hit_limit(CloseReason.LIMIT_KEPT_BYTES, "kept_bytes", self.end.last_ms, out)
        elif self._replays.elements > limits.max_replayed_elements_per_call:
            self._hit_limit(CloseReason.LIMIT_REPLAYS, "replays", self.end.last_ms, out)
        return outcome

    def _follow_agent(self, live: LiveCall, touched: AbstractSet[int], broker_ms: int) -> None:
        """Has the row of a turn made when the agent falls silent: until somebody speaks again
        nothing else of it changes. A caller who speaks over an answer is in the next turn.
        """
        for turn in touched:
            has_row = turn in self.rows.turns or turn == live.turn >= 0
            if has_row and live.is_agent_silent(turn):
                self.rows.hear(turn, broker_ms, live.sounds(turn))

    def _repeats_another(self, arrival: Arrival) -> bool:
        """Whether the record came before, was put back before, or is made from the record of a
        conversation whose live events came.
        """
        repeats = self._repeats
        return (
            repeats.is_repeat(arrival)
            or repeats.is_put_back_again(arrival)
            or self._agent.repeats_live(arrival.event)
        )

    def _is_told_otherwise(self, event: Any) -> bool:
        """Whether a record and live events tell the same of the call, and the other came first:
        nothing counts twice.
        """
        is_from_record = event.is_from_record is True
        return self._are_from_record.setdefault(type(event), is_from_record) is not is_from_record

    def advance(self, now_ms: int, out: list[Effect]) -> None:
        """Lets broker time reach `now_ms`: dead air, closing. Decisions keep the order of their
        times, however far it leaps.
        """
        self.redactor.left_chars = MAX_CHARS_PER_STEP
        due_ms, reason = self.end.due_ms, self.end.reason
        if self._row_due_ms <= now_ms < due_ms and not self.is_over:
            self._row_due_ms = now_ms + CALL_ROW_EVERY_MS
            self.rows.announce(now_ms)
        if self._judged.is_any and self._awaits_verdicts(now_ms, due_ms, out):
            pass  # it is over, and verdicts may still come
        elif now_ms < due_ms:
            self.live.reached(now_ms)
        elif reason is CloseReason.LIMIT_DURATION:
            self._hit_limit(reason, "duration", due_ms, out)
        else:
            self.close(reason, due_ms)
        if self._words is not None:
            self._words.follow_silences(self.live.dead_air.count)
        self._plan()

    def pass_gap(self, from_ms: int, until_ms: int) -> None:
        """Notes that no events were taken in this time: no silence in it ends the call, is dead
        air, or is a stall.
        """
        if until_ms < from_ms:
            self.end.go_back(until_ms)
            if self._row_due_ms != NEVER_MS:
                self._row_due_ms = until_ms + CALL_ROW_EVERY_MS
        self.end.pass_gap(until_ms)
        self.live.pass_gap(from_ms, until_ms)
        self._judged.pass_gap(until_ms)
        self._plan()

    def _plan(self) -> None:
        due_ms, judged_ms = self.end.due_ms, self._judged.wakeup_ms
        silence_ms = self.live.dead_air.wakeup_at_ms
        if silence_ms is not None and silence_ms < due_ms:
            due_ms = silence_ms
        # A call that is over only waits for verdicts, and says nothing more until then.
        if judged_ms is not None and (judged_ms < due_ms or self.is_over):
            due_ms = judged_ms
        self.next_decision_ms = due_ms if self.is_over else min(due_ms, self._row_due_ms)

    def release(self) -> None:
        """Cuts the reference cycles of a closed call, so that its memory is freed immediately."""
        self._closing = None
        self.history.release()
        self.__dict__.pop("live")

    def speak(self) -> None:
        """Makes rows from here on, if none were made because a former owner has written them."""
        self.rows.is_silent = False

    def decides_as(self, revision: int) -> None:
        """Gives a revision to what is decided from here on, until the next event."""
        self.rows.revision = revision

    def context(self) -> MetricContext:
        """The context of the call so far: EVA's where a simulated caller hears it, otherwise that
        of the turns its bot heard.
        """
        if self.live.is_simulated:
            return self.as_eva_has_it()
        return context_by_the_bot(self._facts())

    def eva_context(self) -> MetricContext:
        """EVA's own context of the call so far, core and tail; also of a call without a simulated
        caller, where it has little.
        """
        return self.history.context(self.ended_reason)

    def as_eva_has_it(self) -> MetricContext:
        """EVA's own context with the facts that the events have, for a call that is known to be
        EVA's.
        """
        return with_facts(self.eva_context(), self._facts())

    def _facts(self) -> CallFacts:
        agent, record = self.rows.call.labels.agent, self.live.record
        agent_id = None if agent == Labels().agent else agent
        if record is not None and record.agent_id is not None:
            agent_id = record.agent_id
        return CallFacts(
            self.live,
            self.supplied,
            self.history.pipeline_type,
            agent_id,
            self.ended_reason,
            self._ended_ms,
        )

    @property
    def _ended_ms(self) -> int:
        """Time of its newest event, or of its end if that is later; 0 before both."""
        recorded_ms = 0 if self.live.record is None else self.live.record.ended_ms
        return max(self.live.newest_ms, self.live.announced_end_ms, recorded_ms)

    def close(self, reason: CloseReason, now_ms: int) -> None:
        """Begins the close: no record is folded any more. `go_on_closing` does all its work,
        whenever there is time.
        """
        self.is_closing = True
        self._closes_as = reason, now_ms

    def go_on_closing(self, out: list[Effect]) -> None:
        """Does as much of the close as fits into one step. All that it publishes comes with the
        last step, the closed row at the end: so it does not matter between which records the steps
        are taken.
        """
        self.redactor.left_chars = MAX_CHARS_PER_STEP
        if self._closing is None:
            self._closing = self._steps_of_the_close(*self._closes_as, self._last_effects)
        self.is_closed = next(self._closing, True)
        if self.is_closed:
            out += self._last_effects
            self.publish(out)

    def _steps_of_the_close(
        self, reason: CloseReason, now_ms: int, out: list[Effect]
    ) -> Iterator[bool]:
        """Closes the call, and yields False where a step ends: texts are compared, the final values
        set, the transcript written.

        No record is folded any more, so time may pass between two steps.
        """
        if not self.is_over:
            self.live.reached(now_ms)
        self.live.announce(now_ms)
        cause = Cause(self.history.last_time_ms(), now_ms)
        self.live.finish(now_ms)
        if (recorded := self.live.record) is not None:
            self.ended_reason = self.ended_reason or recorded.ended_reason
        if not self.is_over:
            self._judged.finish(self.live, now_ms, out, asks=False)
        is_long = len(self.live.turns.turns) > LONG_CALL_TURNS or self.events > LONG_CALL_EVENTS
        if is_long:
            yield False  # the moments of the live call are work enough for one step
        context = self.eva_context()
        while not self._measures.compare_at_close(context):
            yield False
        if is_long:
            yield False
        self._judged.give_up(now_ms)
        yield from _in_steps(
            self._measures.finish(
                self.live, context, cause, self._judged, has_ended=self.end.is_told
            ),
            takes_several=is_long,
        )
        self.rows.hear_all(now_ms, self.live.sounds)
        out += self._measures.closing_counts()
        if self.live.nameless_tools:
            self._unread(NAMELESS, 0, out)
        if is_long:
            yield False
        value = None
        if self.writes_transcript:
            transcript, entries = self.transcript(self.redactor), []
            if is_long:
                yield False  # its words are found, and not yet in order
            for place, entry in enumerate(() if transcript.is_too_large else transcript, 1):
                if entry is not None:
                    entries.append(entry)
                if not self.redactor.has_room or place % ENTRIES_OF_ONE_STEP == 0:
                    yield False
            value = None if transcript.is_too_large else transcript_bytes(entries)
            if value is None:
                out.append(Count("callgauge_limits_hit_total", ("transcript",)))
            else:
                out.append(PublishTranscript(self.conversation_id, value))
        if (words := self._words) is not None:
            words.finish(self.live)
            while words.is_due:
                self._publish_words(words, self.live.heard(words.since), out)
                if words.is_due:
                    yield False
        self._set_closed(reason, now_ms)

    def _set_closed(self, reason: CloseReason, known_ms: int) -> None:
        ended_reason = (
            None
            if self.ended_reason is None
            else self.redactor.redact(self.ended_reason)[:MAX_NAME_CHARS]
        )
        self.rows.leave(inf, known_ms)
        self.rows.set_call(
            known_ms,
            state="closed",
            close_reason=reason,
            ended_reason=ended_reason,
            ended_ms=self._ended_ms or None,
        )
        self.rows.count(None, "closed")

    def transcript(self, redactor: Redactor | CallRedactor) -> CallTranscript | RecordedTranscript:
        """The transcript as it is now. It yields None where a step may end."""
        live, record, agent = self.live, self.live.record, self.rows.call.labels.agent
        if record is not None and record.entries:
            return RecordedTranscript(
                self.conversation_id, record.entries, record.agent_id or agent, redactor
            )
        metrics_of = partial(self._measures.stages.turn_metrics, live.heard(), record)
        return CallTranscript(
            self.conversation_id, live, agent, redactor, metrics_of, self._details
        )

    def _awaits_verdicts(self, now_ms: int, due_ms: int, out: list[Effect]) -> bool:
        """Expires verdicts and finds stalls; returns whether the call is over and still waits for
        verdicts.
        """
        self._judged.reached(self.live, now_ms if self.is_over else min(now_ms, due_ms), out)
        if now_ms >= due_ms and not self.is_over:
            self.is_over = True
            self.live.reached(due_ms)
            self._judged.finish(self.live, due_ms, out, asks=True)
            self._judged.reached(self.live, now_ms, out)
            if self._judged.awaits_verdicts:
                self._measures.announce_end(self.live, due_ms, self._judged, out)
        return self.is_over and self._judged.awaits_verdicts

    def _hit_limit(self, reason: CloseReason, limit: str, now_ms: int, out: list[Effect]) -> None:
        if not self.is_closing:
            out.append(Count("callgauge_limits_hit_total", (limit,)))
            self.close(reason, now_ms)

    def _plan_close(self, reason: CloseReason) -> None:
        at = self.live.broker_moment
        if self.end.announce(at, reason):
            self._say_ended(at.broker_ms)
            self.live.dead_air.note(SilenceKind.LINE_DOWN, 0, at)

    def _say_ended(self, broker_ms: int) -> None:
        """Sets the state of a call whose end was announced. A call without a row gets none for that."""
        if self._row_due_ms == NEVER_MS:
            self.rows.call.state = "ended"
        elif self.rows.call.state == "running":
            self.rows.set_call(broker_ms, state="ended")

    # One reader for each type of fact, by the table below. EVA's history comes first: the live call
    # reads its machine.

    def _speech(self, heard: SpeechFact, time_ms: int, _out: list[Effect]) -> None:
        layer, is_user, is_start, at_s, started_s, sound_id = heard
        if layer is _LINE:
            self.history.simulator(_ELEMENTS[is_user, is_start], time_ms, at_s)
            self.live.audio(is_user=is_user, is_start=is_start, at_s=at_s)
        elif self.live.bot is not None:
            self.live.moment(_MOMENTS[layer, is_user, is_start], at_s, started_s, sound_id)

    def _text(self, text: Text, _time_ms: int, _out: list[Effect]) -> None:
        stamp_ms, frame, is_written = text
        if is_written:
            self.history.text_stream.response(stamp_ms, frame)
        else:
            self.history.text_stream.speech(stamp_ms, frame)
        if self.live.bot is not None:
            self.live.bot_text(stamp_ms, frame, is_reply=is_written)

    def _text_border(self, border: TextBorder, _time_ms: int, _out: list[Effect]) -> None:
        self.history.text_stream.marker(border.name, border.stamp_ms)
        if self.live.bot is not None:
            self.live.bot.marked()

    def _said(self, said: WordsFact, time_ms: int, _out: list[Effect]) -> None:
        if said.teller is Teller.BOT:
            self.kept_bytes += len(said.text)
            if said.is_from_record and time_ms < self.live.newest_ms:
                self._recorded_words.append(said)
            else:
                self.live.message(said)
        elif said.teller is not Teller.LOG:
            self._agent.fold(said, self.live)
        elif said.is_user:
            self.live.user_text(time_ms, self.history.audit_user(time_ms, said.text, said.id))
        else:
            self.live.assistant_text(
                time_ms, self.history.audit(ElementKind.AUDIT_ASSISTANT, time_ms, said.text)
            )

    def _corrected(self, said: Corrected, _time_ms: int, _out: list[Effect]) -> None:
        if said.teller is Teller.LOG:
            self.history.update_user_text(said.text, said.id)
            machine = self.live.machine
            machine.reworded.update((machine.turn - 1, machine.turn))
        else:
            self._agent.fold(said, self.live)

    def _cut_off(self, cut: CutOff, _time_ms: int, _out: list[Effect]) -> None:
        self._agent.fold(cut, self.live)

    def _tool_used(self, tool: ToolUsed, time_ms: int, _out: list[Effect]) -> None:
        kind, moment = _OF_TOOLS[tool.is_response]
        self.history.audit(kind, time_ms, tool.use)
        self.live.tool_used(moment, tool.use, time_ms)

    def _tool_run(self, run: ToolFact, _time_ms: int, _out: list[Effect]) -> None:
        if run.teller is Teller.BOT:
            self.live.function_call(run)
        else:
            self._agent.fold(run, self.live)

    def _fallback(self, _fact: Fallback, time_ms: int, _out: list[Effect]) -> None:
        self.history.audit(ElementKind.FALLBACK, time_ms, None)
        if self.live.bot is not None:
            self.live.bot.fell_back(time_ms)

    def _element(self, element: EvaElement, time_ms: int, _out: list[Effect]) -> None:
        if element.is_audit:
            self.history.audit(element.kind, time_ms, element.text)
        else:
            self.history.simulator(element.kind, time_ms, element.text)

    def _line(self, line: Line, time_ms: int, _out: list[Effect]) -> None:
        self.history.simulator(ElementKind.SESSION_ENDED if line.has_ended else None, time_ms, None)
        self.history.line_state(line.details)
        if line.has_ended:
            self._plan_close(CloseReason.SESSION_ENDED)

    def _findings(self, findings: EventFindings, time_ms: int, _out: list[Effect]) -> None:
        self._measures.stages.observe(findings, time_ms)

    def _told_wait(self, wait: ToldWait, _time_ms: int, _out: list[Effect]) -> None:
        self.live.waited(wait)

    def _note(self, note: NoteFact, _time_ms: int, _out: list[Effect]) -> None:
        self._measures.notes.add(note)

    def _detailed(self, details: Detailed, _time_ms: int, out: list[Effect]) -> None:
        insort(self._details, details, key=order_of_details)
        if len(self._details) > MAX_DETAILS:  # the earliest stay, in whatever order they come
            self._details.pop()
            out.append(Count("callgauge_limits_hit_total", ("turn_details",)))

    def _error(self, error: AgentError, time_ms: int, out: list[Effect]) -> None:
        if self.live.errors.is_told_again(error.told_twice, time_ms):
            return
        out.append(Count("callgauge_agent_errors_total", (error.source.value,)))
        self.live.agent_failed(time_ms, error.component)

    def _lost(self, lost: Lost, _time_ms: int, out: list[Effect]) -> None:
        out.append(Count("callgauge_source_events_dropped_total", (lost.what.value,), lost.events))

    def _unread(self, unread: Unread, _time_ms: int, out: list[Effect]) -> None:
        out.append(NotUnderstood(unread.source, self.conversation_id, unread.misread))

    def _record_follows(self, _fact: RecordFollows, _time_ms: int, _out: list[Effect]) -> None:
        self.end.await_record()

    def _recorded(self, record: Recorded, _time_ms: int, _out: list[Effect]) -> None:
        self.live.records.fold(record)
        if record.is_final:
            self.end.recorded(self.live.broker_moment)
            self._plan_close(CloseReason.ENDED)

    def _started(self, started: Started, time_ms: int, out: list[Effect]) -> None:
        known = self.rows.call.labels
        self.live.began(time_ms)
        # otherwise live events came first
        if started.is_told_later and not self.live.has_speech_events:
            self.live.told_later()
        self._measures.eva.supplied.started(started)
        if started.language:
            self._measures.speaks(started.language)
        if started.pipeline_type is not None:
            self.history.set_pipeline_type(started.pipeline_type)
            self.live.pipeline_type_set()
        keeps_agent = started.is_from_record and known.agent != Labels().agent
        labels = Labels(
            agent=known.agent if keeps_agent else started.agent or known.agent,
            version=started.version or known.version,
            tenant=started.tenant or known.tenant,
            environment=started.environment or known.environment,
            pipeline_type=self.history.pipeline_type,
        )
        self.live.set_labels(labels, started.traceparent, self.end.last_ms)
        self._judged.started(started, labels.agent, self.live, self.end.last_ms, out)
        self._recorded_at(started.recording)

    def _ended(self, ended: Ended, time_ms: int, _out: list[Effect]) -> None:
        self.live.announced_end_ms = max(self.live.announced_end_ms, time_ms)
        self.ended_reason = self.ended_reason if ended.reason is None else ended.reason
        self._measures.eva.supplied.ended(ended)
        self._recorded_at(ended.recording)
        if ended.awaits_record:
            self.end.await_record()
        elif ended.awaits_record is False:
            self.end.recorded(self.live.broker_moment)
            self.live.recorded_words(self._recorded_words)
            self._recorded_words = []
        self._plan_close(CloseReason.ENDED)

    def _recorded_at(self, recording: Recording | None) -> None:
        """Sets where the sound of the call is kept. The address is no text: redaction would break
        its signature.
        """
        if recording is not None:
            self.rows.set_call(
                self.end.last_ms,
                recording_url=recording.url,
                recording_starts_ms=recording.starts_ms,
            )

    def _verdict(self, verdict: Verdict, _time_ms: int, out: list[Effect]) -> None:
        broker_ms = self.live.broker_ms
        self._judged.fold(verdict, self.live, broker_ms, out)
        if self.is_over and not self._judged.awaits_verdicts:
            self.close(self.end.reason, broker_ms)


def _in_steps(
    work: Generator[None, None, Done], *, takes_several: bool
) -> Generator[bool, None, Done]:
    """Does work that can pause, and yields False where it does; with one step alone it never
    pauses.
    """
    while True:
        try:
            next(work)
        except StopIteration as done:
            return cast("Done", done.value)
        if takes_several:
            yield False


_ELEMENTS: Final = {
    (True, True): ElementKind.USER_AUDIO_START,
    (True, False): ElementKind.USER_AUDIO_END,
    (False, True): ElementKind.ASSISTANT_AUDIO_START,
    (False, False): ElementKind.ASSISTANT_AUDIO_END,
}
"""EVA's element of sound on the line, by (whether the user's, whether a start)."""
_MOMENTS: Final = {
    (Layer.SOUND, True, True): BotElementKind.VAD_STARTED,
    (Layer.SOUND, True, False): BotElementKind.VAD_STOPPED,
    (Layer.RULING, True, True): BotElementKind.TURN_STARTED,
    (Layer.RULING, True, False): BotElementKind.TURN_RELEASED,
    (Layer.SOUND, False, True): BotElementKind.BOT_STARTED,
    (Layer.SOUND, False, False): BotElementKind.BOT_STOPPED,
}
"""The bot's moment of speech, by (layer, whether the user's, whether a start)."""
_OF_TOOLS: Final = (
    (ElementKind.TOOL_CALL, BotElementKind.TOOL_CALL),
    (ElementKind.TOOL_RESPONSE, BotElementKind.TOOL_RESPONSE),
)
"""Element and moment of a tool of the audit log: of its call, then of its answer."""

_READERS: Final[Mapping[type, Callable[[Call, Any, int, list[Effect]], None]]] = {
    Started: Call._started,
    Ended: Call._ended,
    Line: Call._line,
    SpeechFact: Call._speech,
    Text: Call._text,
    TextBorder: Call._text_border,
    WordsFact: Call._said,
    Corrected: Call._corrected,
    CutOff: Call._cut_off,
    ToolUsed: Call._tool_used,
    ToolFact: Call._tool_run,
    Fallback: Call._fallback,
    EvaElement: Call._element,
    EventFindings: Call._findings,
    ToldWait: Call._told_wait,
    NoteFact: Call._note,
    Detailed: Call._detailed,
    AgentError: Call._error,
    Lost: Call._lost,
    Unread: Call._unread,
    RecordFollows: Call._record_follows,
    Recorded: Call._recorded,
    Verdict: Call._verdict,
}
"""A table, because a `match` over as many types costs more than most facts do."""
