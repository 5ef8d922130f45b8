"""Reads the live events of a real ElevenLabs agent: its words, its tools, and their times.

Events that belong together are joined in any order: a correction with the corrected answer, the two announcements of a
client's tool, a tool's answer with its full form.
"""

from typing import Any, Final, NamedTuple

from consumers.engine.turns.bot.bot_turn import AgentWords, SpeechMoment, Words
from consumers.engine.turns.bot.history import BotHistory
from consumers.engine.turns.bot.reported_tools import ReportedTools
from consumers.engine.turns.call_end import CallEnd
from consumers.engine.turns.live_call import LiveCall
from schemas.closed_sets import InputSource
from schemas.events.elevenlabs_agent import (
    NO_WORDS,
    AgentFailed,
    AgentResponse,
    AgentResponseComplete,
    AgentResponseCorrection,
    ConversationInitiated,
    Interruption,
    McpToolCalled,
    TimedAgentEvent,
    ToolReplied,
    ToolRequested,
    UserTranscript,
)
from schemas.events.elevenlabs_record import ConversationRecord

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

    __slots__ = ("_live", "_recorded")

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
        end.awaits_record = True
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
        live.fold_agent_record(record)
        if record.is_final:
            end.recorded(live.broker_moment)
        return record.is_final


class _AgentStream:
    """The events of one call from one producer: live ones, or those of the record."""

    __slots__ = ("_heard", "_keys", "_replies", "_tools")

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
