"""What a real ElevenLabs agent says of a call: its live events, how they belong together, and the
record of the call afterwards.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from consumers.engine.sources.facts import (
    UNREAD,
    AgentError,
    Corrected,
    CutOff,
    EventRule,
    Recorded,
    RecordedTurn,
    RecordFollows,
    Teller,
    ToolFact,
    ToolState,
    WordsFact,
    nothing,
    plain_words,
)
from consumers.engine.turns.bot import (
    AgentWords,
    BotElementKind,
    BotHistory,
    RankedWords,
    TokenUsage,
)
from consumers.engine.turns.live import LiveCall
from consumers.engine.turns.reported import ReportedTools
from consumers.engine.turns.timeline import MS_DIGITS
from schemas.closed_sets import InputSource
from schemas.events.elevenlabs import (
    LATENCY_METRIC,
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
    RecordEntry,
    TimedAgentEvent,
    ToolReplied,
    ToolRequested,
    UserTranscript,
)
from schemas.scores.latency_stages import CONVAI_METRICS, MAX_STAGE_SECONDS, SEVERAL, Several
from schemas.units import MS_PER_SECOND

# Live events. A record follows whatever the event says.

_FOLLOWS: Final = RecordFollows()
_IN_TOOLS: Final[Mapping[str, ToolState]] = {
    "loading": ToolState.RUNS,
    "success": ToolState.ANSWERED,
    "failure": ToolState.ANSWERED,
}
"""What a tool of an MCP server does, by its state there; in any other it does not run yet, for
example because it waits for approval.
"""


_CLIENT: Final = "client"
_MCP: Final = "mcp"
"""Kinds of tools whose events are of a type of their own."""


def _teller(event: TimedAgentEvent) -> Teller:
    return Teller.RECORD if event.is_from_record else Teller.AGENT


def _user(event: UserTranscript) -> tuple[RecordFollows, WordsFact]:
    said = event.user_transcription_event
    text, at_ms = said.user_transcript.strip(), int(event.timestamp)
    return _FOLLOWS, WordsFact(
        _teller(event), text, at_ms, is_user=True, id=said.event_id, is_exact=event.is_time_exact
    )


def _reply(event: AgentResponse) -> tuple[RecordFollows, WordsFact]:
    said = event.agent_response_event
    text, at_ms = said.agent_response.strip(), int(event.timestamp)
    return _FOLLOWS, WordsFact(
        _teller(event), text, at_ms, is_user=False, id=said.event_id, is_exact=event.is_time_exact
    )


def _correction(event: AgentResponseCorrection) -> tuple[RecordFollows, Corrected]:
    said = event.agent_response_correction_event
    original, corrected = (
        said.original_agent_response.strip(),
        said.corrected_agent_response.strip(),
    )
    return _FOLLOWS, Corrected(_teller(event), corrected, said.event_id, original)


def _interruption(event: Interruption) -> tuple[RecordFollows, CutOff]:
    return _FOLLOWS, CutOff(
        _teller(event), int(event.timestamp), event.interruption_event.event_id, event.is_time_exact
    )


def _tool(event: ToolRequested) -> tuple[RecordFollows, ToolFact]:
    tool = event.data
    return _FOLLOWS, ToolFact(
        _teller(event),
        ToolState.RUNS,
        tool.tool_call_id,
        tool.tool_name,
        int(event.timestamp),
        tool.parameters,
        tool.event_id,
        is_exact=event.is_time_exact,
        kind=_CLIENT if event.type == "client_tool_call" else tool.tool_type or None,
    )


def _tool_reply(event: ToolReplied) -> tuple[RecordFollows, ToolFact]:
    """A tool that did not run has not answered."""
    tool, state = (
        event.data,
        ToolState.CANCELLED if event.data.is_called is False else ToolState.ANSWERED,
    )
    return _FOLLOWS, ToolFact(
        _teller(event),
        state,
        tool.tool_call_id,
        tool.tool_name,
        int(event.timestamp),
        tool.full_tool_result,
        tool.event_id,
        is_error=bool(tool.is_error),
        is_withheld=tool.full_tool_result is None,
        is_exact=event.is_time_exact,
        took_ms=tool.took_ms,
        kind=tool.tool_type or None,
    )


def _mcp_tool(event: McpToolCalled) -> tuple[RecordFollows, ToolFact]:
    tool, state = event.data, _IN_TOOLS.get(event.data.state, ToolState.ASKED)
    has_answered = state is ToolState.ANSWERED
    return _FOLLOWS, ToolFact(
        _teller(event),
        state,
        tool.tool_call_id,
        tool.tool_name,
        int(event.timestamp),
        tool.answer if has_answered else tool.parameters,
        is_error=tool.state == "failure",
        is_withheld=has_answered and tool.answer is None,
        is_exact=event.is_time_exact,
        kind=_MCP,
    )


def _failed(event: AgentFailed) -> tuple[AgentError | RecordFollows, ...]:
    """An error out of the past was counted when it happened, or before anybody watched."""
    return (
        (AgentError(InputSource.ELEVENLABS, None), _FOLLOWS) if event.is_time_exact else (_FOLLOWS,)
    )


def _of_no_turn(_event: TimedAgentEvent) -> tuple[RecordFollows]:
    return (_FOLLOWS,)


# The record of a conversation that is over. Its entries group into turns as the live events do.

MAX_AMOUNT: Final = 1e12
"""Largest number of tokens, or price, of a turn."""


def _record(record: ConversationRecord) -> tuple[Recorded]:
    metadata = record.metadata
    start_s, duration_s = metadata.start_time_unix_secs, metadata.call_duration_secs
    return (
        Recorded(
            record.is_final,
            (record.is_final, len(record.transcript), float(record.timestamp)),
            _turns(record),
            record.transcript if record.is_final else (),
            record.agent_id,
            metadata.termination_reason,
            0
            if start_s is None or duration_s is None
            else int((start_s + duration_s) * MS_PER_SECOND),
        ),
    )


class _Entry(NamedTuple):
    """An entry of a record with its words, which are looked up once."""

    entry: RecordEntry
    user_words: str
    has_agent_words: bool


def _turns(record: ConversationRecord) -> tuple[RecordedTurn, ...]:
    grouped: list[list[_Entry]] = [[]]
    has_agent_spoken = False
    for entry in record.transcript:
        each = _Entry(entry, entry.user_words, bool(entry.agent_words))
        if each.user_words and (has_agent_spoken or len(grouped) == 1):
            grouped.append([])
            has_agent_spoken = False
        has_agent_spoken = has_agent_spoken or each.has_agent_words
        grouped[-1].append(each)
    return tuple(map(_turn, grouped))


def _turn(entries: list[_Entry]) -> RecordedTurn:
    measured = [(each.entry.role == "user", each.entry.metrics) for each in entries]
    waits_s = (seconds.get(LATENCY_METRIC, 0.0) for is_user, seconds in measured if not is_user)
    # The first wait only: a turn with tools has several, and the caller's silence precedes none of
    # the later ones.
    wait_s = next((seconds for seconds in waits_s if 0 < seconds <= MAX_STAGE_SECONDS), None)
    return RecordedTurn(
        user_words=plain_words(" ".join(each.user_words for each in entries if each.user_words)),
        ids=frozenset(
            (each.entry.role == "user", each.entry.source_event_id)
            for each in entries
            if each.entry.source_event_id is not None and (each.user_words or each.has_agent_words)
        ),
        latency_ms=round(wait_s * MS_PER_SECOND, MS_DIGITS) if wait_s is not None else None,
        metrics=_together(seconds for _, seconds in measured),
        usage=usage_in(each.entry.llm_usage for each in entries),
    )


def _together(entries: Iterable[Mapping[str, float]]) -> Mapping[str, float]:
    """A turn with tools has several entries, and an entry after a tool may repeat earlier
    measurements.
    """
    metrics: dict[str, float] = {}
    for seconds in entries:
        for name, elapsed in seconds.items():
            known = CONVAI_METRICS.get(name)
            if name not in metrics or (known is not None and SEVERAL[known.stage] is Several.LAST):
                metrics[name] = elapsed
    return metrics


def usage_in(entries: Iterable[object]) -> Mapping[str, TokenUsage]:
    """Tokens of a turn by model, from `llm_usage` of its entries. Equal counts are one count
    repeated: requests to a model grow from one to the next.
    """
    counted: list[tuple[str, TokenUsage]] = []
    for entry in entries:
        by_model = entry.get("model_usage") if isinstance(entry, Mapping) else None
        if isinstance(by_model, Mapping):
            counted += [
                (str(model), _token_usage(each))
                for model, each in by_model.items()
                if isinstance(each, Mapping)
            ]
    usage: dict[str, TokenUsage] = {}
    for model, used in dict.fromkeys(counted):
        usage[model] = usage.get(model, TokenUsage()).plus(used)
    return usage


def _token_usage(counts: Mapping[str, object]) -> TokenUsage:
    kinds = [
        counts.get(kind)
        for kind in ("input", "input_cache_read", "input_cache_write", "output_total")
    ]
    found = [each if isinstance(each, Mapping) else {} for each in kinds]
    tokens = [int(_amount(each.get("tokens"))) for each in found]
    return TokenUsage(*tokens, *(_amount(each.get("price")) for each in found))


def _amount(value: Any) -> float:
    """A number of tokens or of dollars; 0 for an impossible one."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value <= MAX_AMOUNT else 0.0


RULES: Final[Mapping[type, EventRule]] = {
    UserTranscript: EventRule(_user),
    AgentResponse: EventRule(_reply),
    AgentResponseCorrection: EventRule(_correction),
    Interruption: EventRule(_interruption, is_kept=False),
    ToolRequested: EventRule(_tool),
    ToolReplied: EventRule(_tool_reply),
    McpToolCalled: EventRule(_mcp_tool),
    ConversationInitiated: EventRule(_of_no_turn, is_kept=False),
    AgentResponseComplete: EventRule(_of_no_turn, is_kept=False),
    AgentFailed: EventRule(_failed, is_kept=False),
    ConversationRecord: EventRule(_record, is_of_a_stream=False),
    CarriedAgentEvent: UNREAD,
    AgentEvent: EventRule(nothing, is_kept=False, outcome="unknown"),
}
"""How each type of its events is read."""


# Joins the facts of one call that belong together, in any order: a correction with the corrected
# answer, the two announcements of a client's tool, a tool's answer with its full form.

MAX_REPLIES_OF_AN_ID: Final = 256
"""Answers with the same id, or without one, that a correction can match; a provider gives each
answer an id of its own.
"""

_WITHOUT_ID: Final = -1
# Ranks of these words among those of the other sources, the best known first: of an answer, the
# part that was heard, then the whole of it, as in the audit log; of the caller, the agent's
# transcript ranks behind that log.
_HEARD_RANK, _WRITTEN_RANK, _USER_RANK = 0, 1, 1


class _Reply(NamedTuple):
    key: int
    text: str
    event_id: int | None
    is_exact: bool
    at_ms: int

    def said(self, heard: str | None) -> AgentWords:
        """The words for the timeline; `heard` is the part that was heard of an answer that the
        caller cut off.
        """
        whole = RankedWords(
            is_user=False, rank=_HEARD_RANK, ref=self.text, event_id=self.event_id, at_ms=self.at_ms
        )
        if heard is None:
            return AgentWords((whole,), self.is_exact)
        return AgentWords(
            (whole._replace(ref=heard), whole._replace(rank=_WRITTEN_RANK)), self.is_exact
        )


AgentFact = WordsFact | Corrected | CutOff | ToolFact


class AgentFacts:
    """The agent's words and tools in one call. EVA's history has none of them, and a call with a
    simulated caller does not need them.

    Facts that are made from the record of the conversation give way to live ones: with the first
    live one of a turn they leave the timeline, and further ones are repeats.
    """

    def __init__(self) -> None:
        self._live: _AgentStream | None = None
        self._recorded: _AgentStream | None = None

    def repeats_live(self, event: Any) -> bool:
        """Whether the event is made from a record of which the live events are here."""
        return (
            self._live is not None and isinstance(event, TimedAgentEvent) and event.is_from_record
        )

    def fold(self, fact: AgentFact, live: LiveCall) -> None:
        """Folds one fact."""
        bot = live.bot
        if bot is None:
            return
        if fact.teller is Teller.RECORD:
            if self._recorded is None:
                self._recorded = _AgentStream()
            self._recorded.fold(fact, live, bot)
            return
        if self._live is None:
            self._live = _AgentStream()
            if self._recorded is not None:
                self._recorded.withdraw(bot)
        self._live.fold(fact, live, bot)


class _AgentStream:
    """The facts of one call from one producer: live ones, or those of the record."""

    def __init__(self) -> None:
        self._keys: list[int] = []
        self._replies: dict[int, list[_Reply]] = {}
        self._heard: dict[int, dict[str, str]] = {}
        self._tools = ReportedTools()

    def withdraw(self, bot: BotHistory) -> None:
        """Removes these events from the timeline, and forgets them."""
        for key in self._keys:
            bot.timeline.remove(key)
        self._tools.withdraw(bot)
        self._keys.clear()
        self._replies.clear()
        self._heard.clear()

    def fold(self, fact: AgentFact, live: LiveCall, bot: BotHistory) -> None:
        """Folds one fact."""
        match fact:
            case WordsFact() if fact.is_user:
                self._on_user(fact, live, bot)
            case WordsFact():
                self._on_reply(fact, live, bot)
            case Corrected():
                self._on_correction(fact, bot)
            case CutOff():
                self._on_cut_off(fact, live, bot)
            case ToolFact():
                self._on_tool(fact, live, bot)

    def _on_user(self, said: WordsFact, live: LiveCall, bot: BotHistory) -> None:
        if said.text in NO_WORDS:
            return
        words = RankedWords(
            is_user=True, rank=_USER_RANK, ref=said.text, event_id=said.id, at_ms=said.at_ms
        )
        heard = AgentWords((words,), said.is_exact)
        self._keys.append(bot.from_agent(BotElementKind.AGENT_HEARD, said.at_ms, said.id, heard))
        if (
            said.is_exact
            and not bot.machine.has_user_events
            and not bot.machine.was_answered(said.at_ms)
        ):
            live.user_fell_silent(said.at_ms, bot.machine.turn)

    def _on_reply(self, said: WordsFact, live: LiveCall, bot: BotHistory) -> None:
        reply = _Reply(0, said.text, said.id, said.is_exact, said.at_ms)
        if not reply.text:
            return
        key = bot.from_agent(BotElementKind.AGENT_SAID, said.at_ms, said.id, reply.said(None))
        self._keys.append(key)
        event_id = _WITHOUT_ID if said.id is None else said.id
        replies = self._replies.setdefault(event_id, [])
        if len(replies) < MAX_REPLIES_OF_AN_ID:
            replies.append(reply._replace(key=key))
            self._correct(event_id, bot)
        if said.is_exact:
            live.someone_speaks(said.at_ms, is_assistant=True)

    def _on_correction(self, said: Corrected, bot: BotHistory) -> None:
        event_id = _WITHOUT_ID if said.id is None else said.id
        heard = self._heard.setdefault(event_id, {})
        heard[said.instead_of] = min(
            heard.get(said.instead_of, said.text), said.text, key=_shortest
        )
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

    def _on_cut_off(self, cut: CutOff, live: LiveCall, bot: BotHistory) -> None:
        self._keys.append(bot.from_agent(BotElementKind.AGENT_CUT_OFF, cut.at_ms, cut.id, ()))
        if cut.is_exact:
            live.someone_speaks(cut.at_ms, is_assistant=False)

    def _on_tool(self, run: ToolFact, live: LiveCall, bot: BotHistory) -> None:
        if run.state is ToolState.RUNS:
            moment, is_news = BotElementKind.TOOL_CALL, self._tools.called(bot, run)
        elif run.state is ToolState.ANSWERED:
            moment, is_news = BotElementKind.TOOL_RESPONSE, self._tools.answered(bot, run)
        else:
            return
        if is_news:
            live.other_tool(moment, run.at_ms, is_exact=run.is_exact)


def _shortest(text: str) -> tuple[int, str]:
    """Sort key: after several cuts the shortest text is the part that was heard."""
    return len(text), text
