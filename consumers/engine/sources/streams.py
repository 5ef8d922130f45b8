"""The meaning of each source's events for a call: their readers, their counts, and the end of the call."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from consumers.engine.effects import Count, Effect, NotUnderstood
from consumers.engine.limits import Limits
from consumers.engine.turns.bot import AgentWords, BotHistory, SpeechMoment, Words
from consumers.engine.turns.live import LiveCall
from consumers.engine.turns.reported import ReportedTools
from consumers.engine.turns.timeline import BrokerMoment, ElementKind
from schemas.closed_sets import CloseReason, InputSource
from schemas.events.audit import AuditFallback, AuditLlmCall, CallEnded, CallStarted, UserTextUpdated
from schemas.events.codec import UnrecognizedEvent, misread_of
from schemas.events.elevenlabs import (
    NO_WORDS,
    AgentEvent,
    AgentFailed,
    AgentResponse,
    AgentResponseComplete,
    AgentResponseCorrection,
    CarriedAgentEvent,
    ConversationInitiated,
    ConversationRecord,
    Interruption,
    McpToolCalled,
    TimedAgentEvent,
    ToolReplied,
    ToolRequested,
    UserTranscript,
)
from schemas.events.pipecat import (
    EventsDropped,
    IgnoredLine,
    MessageRecord,
    ObserverRecord,
    PipecatMetric,
    ProcessorFailed,
    SpeechEventRecord,
    ToolLine,
    TurnMarker,
    UserSpeaking,
)
from schemas.events.simulator import AudioEvent, CarriedSimulatorEvent, ConnectionState
from schemas.judging import JudgeVerdict

# Reports the parts of an event that the contract does not know. They are rare, so other events do not pay for this.


def reports_of(source: InputSource, event: Any, outcome: str, conversation_id: str) -> list[Effect]:
    """The effects that report unknown fields of an event, or that it is not understood."""
    reports: list[Effect] = []
    extra = event.__pydantic_extra__
    if extra and outcome != "unknown":
        reports.append(Count("callgauge_unknown_fields_total", (source.value,), len(extra)))
    misread = misread_of(event)
    if misread is not None:
        reports.append(NotUnderstood(source, conversation_id, misread))
    return reports


# Tables of event types: the ones that steer a call, the ones whose content is not kept, and EVA's kind of each audio
# event.

AUDIO_KINDS: Final = {
    (True, True): ElementKind.USER_AUDIO_START, (True, False): ElementKind.USER_AUDIO_END,
    (False, True): ElementKind.ASSISTANT_AUDIO_START, (False, False): ElementKind.ASSISTANT_AUDIO_END,
}  # fmt: skip
"""Kind by (whether the user's, whether a start)."""

UNKNOWN: Final = frozenset({UnrecognizedEvent, AgentEvent})
"""Events of types that this version does not know."""

UNREAD: Final = frozenset({IgnoredLine, ToolLine, CarriedAgentEvent})
"""Known events without a handler: only their time counts. Every other known type has one."""

STEERING: Final = frozenset({CallStarted, CallEnded, UserTextUpdated, JudgeVerdict, ConversationRecord})
"""Events outside the streams: their time does not advance a stream's watermark."""

FLEETING: Final = frozenset(
    (TurnMarker, UserSpeaking, SpeechEventRecord, ObserverRecord, PipecatMetric, AudioEvent, ConnectionState)
) | {
    MessageRecord,
    CarriedSimulatorEvent,
    AuditFallback,
    AuditLlmCall,
    JudgeVerdict,
    AgentFailed,
    AgentResponseComplete,
    ConversationInitiated,
    EventsDropped,
    Interruption,
    ProcessorFailed,
}
"""Events of which no text and no value is kept until the call closes: of an LLM call, the largest of all, only the time is kept.
The bytes of every other event count, so a type that is missing here costs too much rather than nothing.
"""

EventHandler = Callable[[Any, Any, int, list[Effect]], None]
"""Takes the call, the event, its time in ms and the list of effects."""


class EventRule(NamedTuple):
    """Treatment of one type of event.

    Attributes:
        handler: Reads it; None where nothing does.
        is_of_a_stream: Whether its time advances the watermark of its stream.
        is_kept: Whether some of its content is kept until the call closes.
        outcome: Label in the events counter when it comes in time.
    """

    handler: EventHandler | None
    is_of_a_stream: bool
    is_kept: bool
    outcome: str


def rule_of(kind: type, handler: EventHandler | None) -> EventRule:
    """The rule for a type of event, made once instead of at each event."""
    is_kept = handler is not None and kind not in FLEETING
    return EventRule(handler, kind not in STEERING, is_kept, "unknown" if kind in UNKNOWN else "folded")


# Decides when a call without further events is over: announced, silent for too long, or too long altogether.


class CallEnd:
    """The end of one call, by the broker times of its records.

    Attributes:
        last_ms: Broker time of the latest record so far.
        due_ms: Broker time from which the call is over if no record follows.
        reason: Why it is over then.
    """

    def __init__(self, first_ms: int, limits: Limits) -> None:
        self.last_ms = first_ms
        self._limits = limits
        self._first_ms = first_ms
        self._announced: BrokerMoment | None = None
        self._announced_reason = CloseReason.ENDED
        self._recorded_ms: int | None = None
        self._awaits_record = False
        self._plan()

    def heard(self, broker_ms: int) -> None:
        """Notes a record with this broker time."""
        if broker_ms > self.last_ms:
            self.last_ms = broker_ms
            self._plan()
        elif broker_ms < self._first_ms:
            self._first_ms = broker_ms
            self._plan()

    def announce(self, at: BrokerMoment, reason: CloseReason) -> bool:
        """Notes an announced end of the call. Of several the first in the broker's order counts. The end of a session gives the
        reason, wherever it is in that order: which of two topics was faster says nothing of the call.

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
        """Notes that a record of the call follows its end, as of each agent of ElevenLabs."""
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
        if longest_ms < due_ms:
            due_ms, reason = longest_ms, CloseReason.LIMIT_DURATION
        if self._announced is not None:
            announced_ms = self._announced.broker_ms + limits.closing_grace_ms
            if self._recorded_ms is not None:
                announced_ms = max(announced_ms, self._recorded_ms + limits.closing_grace_ms)
            elif self._awaits_record:
                announced_ms = max(announced_ms, self._announced.broker_ms + limits.agent_record_grace_ms)
            if announced_ms <= due_ms:
                due_ms, reason = announced_ms, self._announced_reason
        self.due_ms, self.reason = due_ms, reason


# Reads the live events of a real ElevenLabs agent: its words, its tools, and their times.
#
# Events that belong together are joined in any order: a correction with the corrected answer, the two announcements
# of a client's tool, a tool's answer with its full form.

AGENT_EVENTS: Final = (
    UserTranscript,
    AgentResponse,
    AgentResponseCorrection,
    Interruption,
    ToolRequested,
    ToolReplied,
    McpToolCalled,
    ConversationInitiated,
    AgentResponseComplete,
    AgentFailed,
    ConversationRecord,
)
"""Types of events of an ElevenLabs agent and its provider that a rule reads."""
_OF_A_TURN: Final = (
    UserTranscript, AgentResponse, AgentResponseCorrection, Interruption, ToolRequested, ToolReplied, McpToolCalled
)  # fmt: skip
"""Types of events that are part of a turn."""

MAX_REPLIES_OF_AN_ID: Final = 256
"""Answers with the same id, or without one, that a correction can match; a provider gives each answer an id of its own."""

_WITHOUT_ID: Final = -1
_RUNS: Final = "loading"
_FAILED: Final = "failure"
_ENDED: Final = ("success", _FAILED)
"""States of a tool of an MCP server."""
# Ranks of these words among those of the other sources, the best known first: of an answer, the part that was heard, then the
# whole of it, as in the audit log; of the caller, the agent's transcript ranks behind that log.
_HEARD_RANK, _WRITTEN_RANK, _USER_RANK = 0, 1, 1


class _Reply(NamedTuple):
    key: int
    text: str
    event_id: int | None
    is_exact: bool

    def said(self, heard: str | None) -> AgentWords:
        """The words for the timeline; `heard` is the part that was heard of an answer that the caller cut off."""
        whole = Words(is_user=False, rank=_HEARD_RANK, ref=self.text, event_id=self.event_id)
        if heard is None:
            return AgentWords((whole,), self.is_exact)
        return AgentWords((whole._replace(ref=heard), whole._replace(rank=_WRITTEN_RANK)), self.is_exact)


class AgentEvents:
    """The agent's events of one call. EVA's history has none of them, and a call with a simulated caller does not need them.

    Events that are made from the record of the conversation give way to live ones: with the first live event of a turn they leave
    the timeline, and further ones are repeats.
    """

    def __init__(self) -> None:
        self._live: _AgentStream | None = None
        self._recorded: _AgentStream | None = None

    def repeats_live(self, event: Any) -> bool:
        """Whether the event is made from a record of which the live events are here."""
        return self._live is not None and isinstance(event, TimedAgentEvent) and event.is_from_record

    def fold(self, event: Any, time_ms: int, live: LiveCall, end: CallEnd) -> bool:
        """Folds one event, received at `time_ms`, or the record of the conversation.

        Returns:
            Whether the call is over by it.
        """
        if isinstance(event, ConversationRecord):
            return self._on_record(event, live, end)
        end.await_record()
        bot = live.bot
        if bot is None:
            return False
        if not isinstance(event, _OF_A_TURN):
            return False
        if event.is_from_record:
            if self._recorded is None:
                self._recorded = _AgentStream()
            self._recorded.fold(event, time_ms, live, bot)
            return False
        if self._live is None:
            self._live = _AgentStream()
            if self._recorded is not None:
                self._recorded.withdraw(bot)
        self._live.fold(event, time_ms, live, bot)
        return False

    def _on_record(self, record: ConversationRecord, live: LiveCall, end: CallEnd) -> bool:
        live.records.fold(record)
        if record.is_final:
            end.recorded(live.broker_moment)
        return record.is_final


class _AgentStream:
    """The events of one call from one producer: live ones, or those of the record."""

    def __init__(self) -> None:
        self._keys: list[int] = []
        self._replies: dict[int, list[_Reply]] = {}
        self._heard: dict[int, dict[str, str]] = {}
        self._tools = ReportedTools(InputSource.ELEVENLABS)

    def withdraw(self, bot: BotHistory) -> None:
        """Removes these events from the timeline, and forgets them."""
        for key in self._keys:
            bot.timeline.remove(key)
        self._tools.withdraw(bot)
        self._keys.clear()
        self._replies.clear()
        self._heard.clear()

    def fold(self, event: Any, time_ms: int, live: LiveCall, bot: BotHistory) -> None:
        """Folds one event."""
        match event:
            case UserTranscript():
                self._on_user(event, time_ms, live, bot)
            case AgentResponse():
                self._on_reply(event, time_ms, live, bot)
            case AgentResponseCorrection():
                self._on_correction(event, bot)
            case Interruption():
                self._on_interruption(event, time_ms, live, bot)
            case ToolRequested():
                self._on_tool(event, time_ms, live, bot)
            case ToolReplied():
                self._on_tool_reply(event, time_ms, live, bot)
            case McpToolCalled():
                self._on_mcp_tool(event, time_ms, live, bot)

    def _on_user(self, event: UserTranscript, time_ms: int, live: LiveCall, bot: BotHistory) -> None:
        said = event.user_transcription_event
        text = said.user_transcript.strip()
        if text in NO_WORDS:
            return
        words = Words(is_user=True, rank=_USER_RANK, ref=text, event_id=said.event_id)
        heard = AgentWords((words,), event.is_time_exact)
        self._keys.append(bot.from_agent(SpeechMoment.AGENT_HEARD, time_ms, said.event_id, heard))
        if event.is_time_exact and not bot.machine.has_user_events:
            live.user_fell_silent(time_ms, bot.machine.turn)

    def _on_reply(self, event: AgentResponse, time_ms: int, live: LiveCall, bot: BotHistory) -> None:
        said = event.agent_response_event
        reply = _Reply(0, said.agent_response.strip(), said.event_id, event.is_time_exact)
        if not reply.text:
            return
        key = bot.from_agent(SpeechMoment.AGENT_SAID, time_ms, said.event_id, reply.said(None))
        self._keys.append(key)
        event_id = _WITHOUT_ID if said.event_id is None else said.event_id
        replies = self._replies.setdefault(event_id, [])
        if len(replies) < MAX_REPLIES_OF_AN_ID:
            replies.append(reply._replace(key=key))
            self._correct(event_id, bot)
        if event.is_time_exact:
            live.someone_speaks(time_ms)

    def _on_correction(self, event: AgentResponseCorrection, bot: BotHistory) -> None:
        said = event.agent_response_correction_event
        event_id = _WITHOUT_ID if said.event_id is None else said.event_id
        heard = self._heard.setdefault(event_id, {})
        original, corrected = said.original_agent_response.strip(), said.corrected_agent_response.strip()
        heard[original] = min(heard.get(original, corrected), corrected, key=_shortest)
        self._correct(event_id, bot)

    def _correct(self, event_id: int, bot: BotHistory) -> None:
        """Replaces the answers with this id by the part of them that was heard."""
        corrections = self._heard.get(event_id)
        replies = self._replies.get(event_id, ())
        if not corrections:
            return
        for reply in replies:
            heard = corrections.get(reply.text)
            if heard is None and len(replies) == 1 and event_id != _WITHOUT_ID:
                heard = min(
                    corrections.values(), key=_shortest
                )  # the provider sometimes repeats the original in slightly other words
            said = reply.said(heard)
            if bot.timeline.payload(reply.key) != said:
                bot.timeline.replace(reply.key, said)

    def _on_interruption(self, event: Interruption, time_ms: int, live: LiveCall, bot: BotHistory) -> None:
        self._keys.append(bot.from_agent(SpeechMoment.AGENT_CUT_OFF, time_ms, event.interruption_event.event_id, ()))
        if event.is_time_exact:
            live.someone_speaks(time_ms)

    def _on_tool(self, event: ToolRequested, time_ms: int, live: LiveCall, bot: BotHistory) -> None:
        called = event.data
        is_news = self._tools.called(
            bot, called.tool_call_id, called.tool_name, time_ms, called.parameters, called.event_id,
            is_exact=event.is_time_exact,
        )  # fmt: skip
        if is_news:
            live.other_tool(SpeechMoment.TOOL_CALL, time_ms, is_exact=event.is_time_exact)

    def _on_tool_reply(self, event: ToolReplied, time_ms: int, live: LiveCall, bot: BotHistory) -> None:
        replied = event.data
        if replied.is_called is False:
            return  # a tool that did not run has not answered
        is_news = self._tools.answered(
            bot, replied.tool_call_id, replied.tool_name, time_ms, replied.full_tool_result, replied.event_id,
            is_error=bool(replied.is_error), is_withheld=replied.full_tool_result is None, is_exact=event.is_time_exact,
            took_ms=replied.took_ms,
        )  # fmt: skip
        if is_news:
            live.other_tool(SpeechMoment.TOOL_RESPONSE, time_ms, is_exact=event.is_time_exact)

    def _on_mcp_tool(self, event: McpToolCalled, time_ms: int, live: LiveCall, bot: BotHistory) -> None:
        """A tool that waits for approval does not run yet."""
        tool, is_exact = event.data, event.is_time_exact
        if tool.state == _RUNS:
            is_news = self._tools.called(
                bot, tool.tool_call_id, tool.tool_name, time_ms, tool.parameters, is_exact=is_exact
            )
            if is_news:
                live.other_tool(SpeechMoment.TOOL_CALL, time_ms, is_exact=is_exact)
        elif tool.state in _ENDED:
            is_news = self._tools.answered(
                bot, tool.tool_call_id, tool.tool_name, time_ms, tool.answer, is_error=tool.state == _FAILED,
                is_withheld=tool.answer is None, is_exact=is_exact,
            )  # fmt: skip
            if is_news:
                live.other_tool(SpeechMoment.TOOL_RESPONSE, time_ms, is_exact=is_exact)


def _shortest(text: str) -> tuple[int, str]:
    """Sort key: after several cuts the shortest text is the part that was heard."""
    return len(text), text
