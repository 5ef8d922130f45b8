"""A call from its first record to its close: its parts in the order in which they see an event, and its final records."""

import hashlib
from array import array
from bisect import insort
from collections.abc import Generator, Iterator
from functools import partial
from operator import itemgetter
from typing import Any, Final, TypeVar, cast

from consumers.engine.admission import Arrival
from consumers.engine.effects import CloseCall, Count, Effect, NotUnderstood
from consumers.engine.goals.progress import ChosenGoals, JudgedScores
from consumers.engine.goals.text_judges import Ratings
from consumers.engine.limits import Limits
from consumers.engine.measures.rows import Measures
from consumers.engine.records import Cause, Revisions
from consumers.engine.redaction.redactor import MAX_CHARS_PER_STEP, CallRedactor, Redactor
from consumers.engine.sources.streams import (
    AGENT_EVENTS,
    AUDIO_KINDS,
    STEERING,
    UNKNOWN,
    UNREAD,
    AgentEvents,
    CallEnd,
    EventHandler,
    reports_of,
    rule_of,
)
from consumers.engine.transcripts import CallTranscript, RecordedTranscript, transcript_bytes
from consumers.engine.turns.bot import MOMENT_BY_KIND, MOMENT_BY_LINE, SpeechMoment
from consumers.engine.turns.eva import EvaHistory
from consumers.engine.turns.live import INPUT_RANK, NO_CHANGES, LiveCall
from consumers.engine.turns.timeline import ElementKind, SilenceKind, ToolUse
from schemas.closed_sets import CloseReason, InputSource
from schemas.events.audit import (
    AuditAssistant,
    AuditFallback,
    AuditLlmCall,
    AuditToolCall,
    AuditToolResponse,
    AuditUser,
    CallEnded,
    CallStarted,
    UserTextUpdated,
)
from schemas.events.codec import NAMELESS_TOOL, UnrecognizedEvent, misread_of
from schemas.events.elevenlabs import AgentEvent, AgentFailed
from schemas.events.pipecat import (
    CallNote,
    EventsDropped,
    FunctionCallRecord,
    LlmResponse,
    MessageRecord,
    ObserverRecord,
    PipecatMetric,
    ProcessorFailed,
    SpeechEventRecord,
    TtsText,
    TurnMarker,
    UserSpeaking,
)
from schemas.events.simulator import (
    USER_ROLES,
    AssistantSpeech,
    AudioEvent,
    CarriedSimulatorEvent,
    ConnectionState,
    UserSpeech,
)
from schemas.judging import JudgeVerdict
from schemas.metric_context import MetricContext
from schemas.scores.records import CallLabels, ClosedFact, TurnStatus
from schemas.wire import MAX_NAME_CHARS

LONG_CALL_TURNS: Final = 100
"""The close of a call with more turns than this takes several steps: that of a shorter one takes 20 ms at most."""
LONG_CALL_RECORDS: Final = 300
"""The same for its moments: latencies, interruptions and uses of tools."""
ENTRIES_OF_ONE_STEP: Final = 200
"""Entries of a transcript that are written in one step: 10 ms."""

Done = TypeVar("Done")


# Recognises repeated records: by producer and event id, by the simulator's sequence and bytes, or by an ElevenLabs
# event id with its words.
#
# Never by content alone: callers do say the same thing twice. Ids and bytes are remembered as 8-byte hashes in flat
# arrays.

MAX_PRODUCERS = 16
"""Producers of one call whose event ids are remembered; three write a call, and a bot that moves hosts adds one."""

_AGENT = "\0agent"  # the agent's own ids of its events, whichever producer sent them; no producer has this name


class SeenEvents:
    """The newest `bound` events of one producer in one call.

    An event with a sequence above all earlier ones is new without a search; others are searched for.
    """

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._digests = array("Q")
        self._highest: int | None = None

    def is_repeat(self, identity: bytes, sequence: int | None) -> bool:
        """Whether this event was seen before; from now on it was.

        Args:
            identity: Equal for repeats of one event: its id, or its sequence and bytes.
            sequence: Its number among the producer's events; None when it has none.
        """
        digest = int.from_bytes(hashlib.blake2b(identity, digest_size=8).digest(), "big")
        highest = self._highest
        is_ahead = sequence is not None and (highest is None or sequence > highest)
        if not is_ahead and digest in self._digests:
            return True
        if is_ahead:
            self._highest = sequence
        self._digests.append(digest)
        if len(self._digests) > self._bound:
            del self._digests[: self._bound // 2]  # half at once: one deletion for many appends
        return False


class Repeats:
    """The events that the producers of one call have sent."""

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._seen: dict[str, SeenEvents] = {}

    def is_repeat(self, arrival: Arrival) -> bool:
        """Whether the record was seen before: by the id of its envelope, or for the simulator by sequence and bytes."""
        envelope = arrival.envelope
        sequence: int | None
        is_elevenlabs = arrival.source is InputSource.ELEVENLABS
        if is_elevenlabs and isinstance(arrival.event, AgentEvent) and self._is_repeated_by_agent(arrival):
            return True
        if envelope is not None and envelope.id is not None:
            producer, identity, sequence = envelope.source or "", envelope.id.encode(), envelope.sequence
        else:
            sequence = getattr(arrival.event, "sequence", None)
            # Without a declared field of the model, `sequence` is any value of the producer.
            if not is_elevenlabs or not isinstance(sequence, int):
                return False
            producer, identity = "", b"%d:%s" % (sequence, arrival.value)
        return self._has_seen(producer, identity, sequence)

    def _is_repeated_by_agent(self, arrival: Arrival) -> bool:
        """A monitor that reconnects is sent the last events again, and the bridge gives them new ids and times."""
        identity = arrival.event.identity
        return identity is not None and self._has_seen(_AGENT, identity, None)

    def _has_seen(self, producer: str, identity: bytes, sequence: int | None) -> bool:
        seen = self._seen.get(producer)
        if seen is None:
            if len(self._seen) >= MAX_PRODUCERS:
                return False
            seen = self._seen[producer] = SeenEvents(self._bound)
        return seen.is_repeat(identity, sequence)


# One call: events of every source in, effects out. It owns EVA's history, the live call and the closing.


class Call:
    """One open call, from its first record to its `closed` fact. `receive` and `advance` append effects to `out`. While
    `is_closing`, its final records and its transcript are made, and no further record is folded.

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
        writes_transcript: bool = False,
        redactor: Redactor | None = None,
    ) -> None:
        self.conversation_id = first.conversation_id
        self.history = EvaHistory()
        self._replays = self.history.replays
        self.ended_reason: str | None = None
        self.events = 0
        self.kept_bytes = 0
        self.first_offsets: dict[InputSource, int] = {}
        self.is_closed = False
        self.waiting: list[tuple[int, Arrival]] = []
        self.wakeup_ms: int | None = None
        self.replaced_wakeup_ms: int | None = None
        self.end = CallEnd(first.broker_time_ms, limits)
        self.next_decision_ms = self.end.due_ms
        self._limits = limits
        self._revisions = Revisions(first.conversation_id, code_version, redactor)
        self.redactor = self._revisions.redactor
        self._offsets = self._revisions.offsets
        self.live = LiveCall(self.history, self._revisions, limits)
        self._repeats = Repeats(limits.max_remembered_ids)
        self._agent = AgentEvents()
        ratings = Ratings()
        self._judged = JudgedScores(first.conversation_id, goals or ChosenGoals(), self._revisions, ratings)
        self._measures = Measures(self._revisions, limits, ratings)
        self.supplied = self._measures.eva.supplied
        self.writes_transcript = writes_transcript
        self.is_over = self.is_closing = False
        self._closing: Iterator[bool] | None = None
        self._last_effects: list[Effect] = []
        self._closes_as: tuple[CloseReason, int]  # once it is closing

    @property
    def tenant(self) -> str:
        """Whose call it is, as known now."""
        return self._revisions.labels.tenant

    def receive(self, arrival: Arrival, out: list[Effect]) -> str:
        """Folds one record; returns its outcome, a label of the events counter."""
        outcome = self._fold(arrival, out)
        self._plan()
        return outcome

    def _fold(self, arrival: Arrival, out: list[Effect]) -> str:
        self.redactor.left_chars = MAX_CHARS_PER_STEP
        source, event, broker_ms = arrival.source, arrival.event, arrival.broker_time_ms
        rule = _RULES.get(type(event), _UNREAD)
        offsets = self._offsets
        if source not in offsets:
            self.first_offsets[source] = arrival.offset
        offsets[source] = arrival.offset
        if rule is not _VERDICT:  # a verdict is no event of the call
            self.end.heard(broker_ms)
        if (arrival.envelope is not None or source is InputSource.ELEVENLABS) and self._repeats_another(arrival):
            return "repeated"
        self.events += rule is not _VERDICT
        live, limits = self.live, self._limits
        outcome = rule.outcome
        timestamp = event.timestamp
        if timestamp is not None:
            time_ms = int(timestamp)
            live.broker_ms, live.input_rank = broker_ms, INPUT_RANK[source]
            if rule.is_of_a_stream and live.note_time(source, time_ms):
                outcome = "late" if outcome == "folded" else outcome
                out.append(Count("callgauge_late_events_total", (source.value,)))
            if rule.handler is not None:
                rule.handler(self, event, time_ms, out)
            elif rule is _UNRECOGNIZED:
                self._on_unrecognized(source, time_ms)
            if self.is_closing:
                return outcome
            changes = NO_CHANGES
            # Nine of ten events neither change nor settle a turn.
            machine = live.history.machine if live.bot is None else live.bot.machine
            if machine.touched or live.settle_at_ms <= min(time_ms, live.low_ms) or live.records.is_any:
                cause = Cause(time_ms, broker_ms)
                changes = live.refresh(cause, out)  # first: measures read the tool uses and settled turns it updates
                if changes.touched or changes.settled:
                    self._measures.follow(live, changes, cause, self._judged, out)
            judged = self._judged
            if judged.is_any and (changes.with_tools or machine.turn != judged.seen_turn):
                judged.follow(live, changes, time_ms, broker_ms, out)
            if out and live.turns.highest_turn > limits.max_turns_per_call:
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

    def _repeats_another(self, arrival: Arrival) -> bool:
        """Whether the record came before, or is made from the record of a conversation whose live events came."""
        return self._repeats.is_repeat(arrival) or self._agent.repeats_live(arrival.event)

    def advance(self, now_ms: int, out: list[Effect]) -> None:
        """Lets broker time reach `now_ms`: dead air, closing. Decisions keep the order of their times, however far it leaps."""
        self.redactor.left_chars = MAX_CHARS_PER_STEP
        due_ms, reason = self.end.due_ms, self.end.reason
        if self._judged.is_any and self._awaits_verdicts(now_ms, due_ms, out):
            pass  # it is over, and verdicts may still come
        elif now_ms < due_ms:
            self.live.reached(now_ms, out)
        elif reason is CloseReason.LIMIT_DURATION:
            self._hit_limit(reason, "duration", due_ms, out)
        else:
            self.close(reason, due_ms)
        self._plan()

    def _plan(self) -> None:
        due_ms, silence_ms, judged_ms = self.end.due_ms, self.live.dead_air.wakeup_at_ms, self._judged.wakeup_ms
        if silence_ms is not None and silence_ms < due_ms:
            due_ms = silence_ms
        # A call that is over only waits for verdicts.
        if judged_ms is not None and (judged_ms < due_ms or self.is_over):
            due_ms = judged_ms
        self.next_decision_ms = due_ms

    def release(self) -> None:
        """Cuts the reference cycles of a closed call, so that its memory is freed at once."""
        self._closing = None
        self.history.release()
        self.__dict__.pop("live")

    def keep_waiting(self, arrival: Arrival) -> None:
        """Keeps an arrival, ordered by broker time; arrivals of one topic keep the order of the topic, whatever their times."""
        source = arrival.source
        self.first_offsets.setdefault(source, arrival.offset)
        broker_ms = max([arrival.broker_time_ms, *(at_ms for at_ms, each in self.waiting if each.source is source)])
        insort(self.waiting, (broker_ms, arrival), key=itemgetter(0))

    def renumber(self, least_revision: int, *, counts: bool) -> None:
        """Gives all published records this revision; later ones are higher. Without `counts` no value counts as new any more."""
        self._revisions.renumber(least_revision, counts=counts)

    def context(self) -> MetricContext:
        """EVA's context of the call so far, core and tail."""
        return self.history.context(self.ended_reason)

    def close(self, reason: CloseReason, now_ms: int) -> None:
        """Begins the close: no record is folded any more. `go_on_closing` does all its work, whenever there is time."""
        self.is_closing = True
        self._closes_as = reason, now_ms

    def go_on_closing(self, out: list[Effect]) -> None:
        """Does as much of the close as fits into one step. All that it publishes comes with the last step, the `closed` fact at the
        end: so it does not matter between which records the steps are taken.
        """
        self.redactor.left_chars = MAX_CHARS_PER_STEP
        if self._closing is None:
            self._closing = self._steps_of_the_close(*self._closes_as, self._last_effects)
        self.is_closed = next(self._closing, True)
        if self.is_closed:
            out += self._last_effects

    def _steps_of_the_close(self, reason: CloseReason, now_ms: int, out: list[Effect]) -> Iterator[bool]:
        """Closes the call, and yields False where a step ends: texts are compared, the final records made, the transcript written.

        No record is folded any more, so time may pass between two steps.
        """
        if not self.is_over:
            self.live.reached(now_ms, out)
        self.live.announce(now_ms, out)
        cause = Cause(self.history.last_time_ms(), now_ms)
        records = self.live.final_records(cause)
        ended_ms = max(self.live.newest_ms, self.live.announced_end_ms)
        if (recorded := self.live.record) is not None:
            self.ended_reason = self.ended_reason or recorded.ended_reason
            ended_ms = max(ended_ms, recorded.ended_ms)
        if not self.is_over:
            self._judged.finish(self.live, cause.event_time_ms, now_ms, out, asks=False)
        is_long = len(self.live.turns.turns) > LONG_CALL_TURNS or len(records) > LONG_CALL_RECORDS
        if is_long:
            yield False  # the records of the live call are work enough for one step
        context = self.context()
        while not self._measures.compare_at_close(context):
            yield False
        if is_long:
            yield False
        records += self._judged.final_records(cause)
        records += yield from _in_steps(
            self._measures.final_records(self.live, context, cause, self._judged), takes_several=is_long
        )
        out += self._measures.closing_counts()
        if self.live.nameless_tools:
            out.append(NotUnderstood(InputSource.PIPECAT, self.conversation_id, NAMELESS_TOOL))
        ended_reason = None if self.ended_reason is None else self.redactor.redact(self.ended_reason)[:MAX_NAME_CHARS]
        closed = self._revisions.make(
            ClosedFact, ("closed", None, 0), TurnStatus.FINAL, (reason, ended_reason), cause, reason=reason,
            ended_reason=ended_reason, turns=self.live.turns.highest_turn, events=self.events,
            through=self._revisions.offsets_by_topic(), began_at_ms=self.live.first_ms, ended_at_ms=ended_ms or None,
        )  # fmt: skip
        if closed is not None:
            records.append(closed)
        if is_long:
            yield False
        value = None
        if self.writes_transcript:
            transcript, entries = self.transcript(self.redactor), []
            for place, entry in enumerate(() if transcript.is_too_large else transcript, 1):
                if entry is not None:
                    entries.append(entry)
                if not self.redactor.has_room or place % ENTRIES_OF_ONE_STEP == 0:
                    yield False
            value = None if transcript.is_too_large else transcript_bytes(entries)
            if value is None:
                out.append(Count("callgauge_limits_hit_total", ("transcript",)))
        out.append(CloseCall(self.conversation_id, tuple(records), value))

    def transcript(self, redactor: Redactor | CallRedactor) -> CallTranscript | RecordedTranscript:
        """The transcript as it is now. It yields None where a step may end."""
        live, record, agent = self.live, self.live.record, self._revisions.labels.agent
        if record is not None and record.entries:
            return RecordedTranscript(self.conversation_id, record.entries, record.agent_id or agent, redactor)
        metrics_of = partial(self._measures.stages.turn_metrics, live.heard(), record)
        return CallTranscript(self.conversation_id, live, agent, redactor, metrics_of)

    def _awaits_verdicts(self, now_ms: int, due_ms: int, out: list[Effect]) -> bool:
        """Expires verdicts and finds stalls; returns whether the call is over and still waits for verdicts."""
        self._judged.reached(self.live, now_ms if self.is_over else min(now_ms, due_ms), out)
        if now_ms >= due_ms and not self.is_over:
            self.is_over = True
            self.live.reached(due_ms, out)
            self._judged.finish(self.live, self.history.last_time_ms(), due_ms, out, asks=True)
            self._judged.reached(self.live, now_ms, out)
            if self._judged.awaits_verdicts:
                self._measures.announce_end(self.live, Cause(self.history.last_time_ms(), due_ms), self._judged, out)
        return self.is_over and self._judged.awaits_verdicts

    def _hit_limit(self, reason: CloseReason, limit: str, now_ms: int, out: list[Effect]) -> None:
        if not self.is_closing:
            out.append(Count("callgauge_limits_hit_total", (limit,)))
            self.close(reason, now_ms)

    def _plan_close(self, reason: CloseReason) -> None:
        at = self.live.broker_moment
        if self.end.announce(at, reason):
            self.live.dead_air.note(SilenceKind.LINE_DOWN, 0, at)

    # One handler for each type of event, by the table below. EVA's history comes first: the live call reads its machine.

    def _on_audio(self, event: AudioEvent, time_ms: int, _out: list[Effect]) -> None:
        is_user, is_start = event.user in USER_ROLES, event.event_type == "audio_start"
        self.history.simulator(AUDIO_KINDS[is_user, is_start], time_ms, event.audio_timestamp)
        self.live.audio(is_user=is_user, is_start=is_start, at_s=event.audio_timestamp)

    def _on_tts_text(self, event: TtsText, _time_ms: int, _out: list[Effect]) -> None:
        self.history.text_stream.speech(event.timestamp, event.data.frame)
        if self.live.bot is not None:
            self.live.bot_text(event.timestamp, event.data.frame)

    def _on_llm_response(self, event: LlmResponse, _time_ms: int, _out: list[Effect]) -> None:
        self.history.text_stream.response(event.timestamp, event.data.frame)
        self.live.bot_text(event.timestamp, event.data.frame, is_reply=True)

    def _on_marker(self, event: TurnMarker, _time_ms: int, _out: list[Effect]) -> None:
        self.history.text_stream.marker(event.type, event.timestamp)
        if self.live.bot is not None:
            self.live.bot.marked()

    def _on_user_speaking(self, event: UserSpeaking, _time_ms: int, _out: list[Effect]) -> None:
        self.live.moment(MOMENT_BY_LINE[event.type], event.timestamp / 1000)

    def _on_speech_event(self, event: SpeechEventRecord, _time_ms: int, _out: list[Effect]) -> None:
        moment = MOMENT_BY_KIND.get(event.data.kind)
        if moment is not None:
            self.live.moment(moment, event.data.timestamp, event.data.started_at, event.data.sound_id)
        elif event.data.cause is not None:
            self._measures.notes.interrupted(event.data.cause, event.data.timestamp)

    def _on_message(self, event: MessageRecord, time_ms: int, _out: list[Effect]) -> None:
        text = event.data.content
        if text is not None:
            self.live.message(time_ms, text, event.data, is_user=event.type == "user_message")
            self.kept_bytes += len(text)

    def _on_function_call(self, event: FunctionCallRecord, time_ms: int, out: list[Effect]) -> None:
        if event.data.tool_call_id is None and (misread := misread_of(event)) is not None:
            out.append(NotUnderstood(InputSource.PIPECAT, self.conversation_id, misread))
        self.live.function_call(event.data, time_ms)
        self._measures.stages.observe(InputSource.PIPECAT, event, time_ms)

    def _on_measurement(self, event: ObserverRecord | PipecatMetric, time_ms: int, _out: list[Effect]) -> None:
        self._measures.stages.observe(InputSource.PIPECAT, event, time_ms)

    def _on_note(self, event: CallNote, time_ms: int, _out: list[Effect]) -> None:
        self._measures.notes.told(event, time_ms)

    def _on_dropped(self, event: EventsDropped, _time_ms: int, out: list[Effect]) -> None:
        dropped = event.dropped()
        out += [Count("callgauge_source_events_dropped_total", (what.value,), count) for what, count in dropped]

    def _on_processor_failed(self, event: ProcessorFailed, time_ms: int, out: list[Effect]) -> None:
        out.append(Count("callgauge_agent_errors_total", (InputSource.PIPECAT.value,)))
        self.live.agent_failed(time_ms, event.component, out)

    def _on_user_speech(self, event: UserSpeech, time_ms: int, _out: list[Effect]) -> None:
        self.history.simulator(ElementKind.USER_SPEECH, time_ms, event.data.text)

    def _on_assistant_speech(self, event: AssistantSpeech, time_ms: int, _out: list[Effect]) -> None:
        self.history.simulator(ElementKind.ASSISTANT_SPEECH, time_ms, event.data.text)

    def _on_connection(self, event: ConnectionState, time_ms: int, _out: list[Effect]) -> None:
        has_ended = event.data.state == "session_ended"
        self.history.simulator(ElementKind.SESSION_ENDED if has_ended else None, time_ms, None)
        self.history.line_state(event.data.details)
        if has_ended:
            self._plan_close(CloseReason.SESSION_ENDED)

    def _on_carried(self, _event: CarriedSimulatorEvent, time_ms: int, _out: list[Effect]) -> None:
        self.history.simulator(None, time_ms, None)

    def _on_audit_user(self, event: AuditUser, time_ms: int, _out: list[Effect]) -> None:
        self.live.user_text(time_ms, self.history.audit_user(time_ms, event.value, event.turn_id))

    def _on_audit_assistant(self, event: AuditAssistant, time_ms: int, _out: list[Effect]) -> None:
        self.live.assistant_text(time_ms, self.history.audit(ElementKind.AUDIT_ASSISTANT, time_ms, event.value))

    def _on_fallback(self, _event: AuditFallback, time_ms: int, _out: list[Effect]) -> None:
        self.history.audit(ElementKind.FALLBACK, time_ms, None)
        if self.live.bot is not None:
            self.live.bot.fell_back(time_ms)

    def _on_llm_call(self, event: AuditLlmCall, time_ms: int, _out: list[Effect]) -> None:
        self.history.audit(None, time_ms, None)
        self._measures.stages.observe(InputSource.AUDIT, event, time_ms)

    def _on_tool_call(self, event: AuditToolCall, time_ms: int, _out: list[Effect]) -> None:
        use = ToolUse(event.value.tool, event.value.parameters)
        self.history.audit(ElementKind.TOOL_CALL, time_ms, use)
        self.live.tool_used(SpeechMoment.TOOL_CALL, use, time_ms)

    def _on_tool_response(self, event: AuditToolResponse, time_ms: int, _out: list[Effect]) -> None:
        use = ToolUse(event.value.tool, event.value.response)
        self.history.audit(ElementKind.TOOL_RESPONSE, time_ms, use)
        self.live.tool_used(SpeechMoment.TOOL_RESPONSE, use, time_ms)

    def _on_agent_event(self, event: Any, time_ms: int, out: list[Effect]) -> None:
        # An error out of the past was counted when it happened, or before anybody watched.
        if isinstance(event, AgentFailed) and event.is_time_exact:
            out.append(Count("callgauge_agent_errors_total", (InputSource.ELEVENLABS.value,)))
            self.live.agent_failed(time_ms, None, out)
        if self._agent.fold(event, time_ms, self.live, self.end):
            self._plan_close(CloseReason.ENDED)

    def _on_unrecognized(self, source: InputSource, time_ms: int) -> None:
        if source is InputSource.AUDIT:
            self.history.audit(None, time_ms, None)
        elif source is InputSource.ELEVENLABS:
            self.history.simulator(None, time_ms, None)

    def _on_call_started(self, event: CallStarted, time_ms: int, out: list[Effect]) -> None:
        known = self._revisions.labels
        self.live.began(time_ms)
        if event.is_told_later:
            self.live.without_dead_air()
        self._measures.eva.supplied.started(event)
        if event.pipeline_type is not None:
            self.history.set_pipeline_type(event.pipeline_type)
            self.live.pipeline_type_set()
        labels = CallLabels(
            agent=event.agent or known.agent,
            tenant=event.tenant or known.tenant,
            environment=event.environment or known.environment,
            pipeline_type=self.history.pipeline_type,
        )
        self.live.set_labels(labels, event.version, event.traceparent, self.end.last_ms, out)
        self._judged.started(event, labels.agent, self.live, self.end.last_ms, out)

    def _on_call_ended(self, event: CallEnded, time_ms: int, _out: list[Effect]) -> None:
        self.live.announced_end_ms = max(self.live.announced_end_ms, time_ms)
        self.ended_reason = self.ended_reason if event.reason is None else event.reason
        self._measures.eva.supplied.ended(event)
        self._plan_close(CloseReason.ENDED)

    def _on_verdict(self, event: JudgeVerdict, _time_ms: int, out: list[Effect]) -> None:
        broker_ms = self.live.broker_ms
        self._judged.fold(event, self.live, broker_ms, out)
        if self.is_over and not self._judged.awaits_verdicts:
            self.close(self.end.reason, broker_ms)

    def _on_user_text_updated(self, event: UserTextUpdated, _time_ms: int, _out: list[Effect]) -> None:
        self.history.update_user_text(event.text, event.turn_id)


def _in_steps(work: Generator[None, None, Done], *, takes_several: bool) -> Generator[bool, None, Done]:
    """Does work that can pause, and yields False where it does; with one step alone it never pauses."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            return cast("Done", done.value)
        if takes_several:
            yield False


_HANDLERS: Final[dict[type, EventHandler]] = {
    AudioEvent: Call._on_audio,
    UserSpeech: Call._on_user_speech,
    AssistantSpeech: Call._on_assistant_speech,
    ConnectionState: Call._on_connection,
    CarriedSimulatorEvent: Call._on_carried,
    AuditUser: Call._on_audit_user,
    AuditAssistant: Call._on_audit_assistant,
    AuditFallback: Call._on_fallback,
    AuditLlmCall: Call._on_llm_call,
    AuditToolCall: Call._on_tool_call,
    AuditToolResponse: Call._on_tool_response,
    CallStarted: Call._on_call_started,
    CallEnded: Call._on_call_ended,
    UserTextUpdated: Call._on_user_text_updated,
    JudgeVerdict: Call._on_verdict,
    TtsText: Call._on_tts_text,
    LlmResponse: Call._on_llm_response,
    TurnMarker: Call._on_marker,
    UserSpeaking: Call._on_user_speaking,
    SpeechEventRecord: Call._on_speech_event,
    MessageRecord: Call._on_message,
    FunctionCallRecord: Call._on_function_call,
    ObserverRecord: Call._on_measurement,
    PipecatMetric: Call._on_measurement,
    EventsDropped: Call._on_dropped,
    CallNote: Call._on_note,
    ProcessorFailed: Call._on_processor_failed,
    **dict.fromkeys(AGENT_EVENTS, Call._on_agent_event),
}


_RULES: Final = {kind: rule_of(kind, _HANDLERS.get(kind)) for kind in (*_HANDLERS, *STEERING, *UNKNOWN, *UNREAD)}
_UNREAD: Final = rule_of(object, None)
_VERDICT: Final = _RULES[JudgeVerdict]
_UNRECOGNIZED: Final = _RULES[UnrecognizedEvent]
