"""Writes a call's transcript at its close, in ElevenLabs' format: words and tools with their times, and stage latencies.

`turn_words` chooses the words: of the caller those that the agent understood, of the agent those that sounded. Each side of
a turn is one entry. Tool calls form an entry of the agent without a message, and so do their results, as on ElevenLabs'
platform; neighbours in one turn share an entry. Entries are in the order of time.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, NamedTuple

from consumers.engine.call.transcripts.numbers import EntryKind, EntryNumbers, MetricsOf
from consumers.engine.call.transcripts.texts import (
    MAX_TOOL_TEXT_CHARS,
    Redacts,
    TranscriptTexts,
    left_out,
    length,
)
from consumers.engine.turns.heard.heard_turn import HeardSide, HeardTurn, answers_of, cut_off_turns
from consumers.engine.turns.heard.turn_words import Purpose
from consumers.engine.turns.live_call import LiveCall
from consumers.engine.turns.timeline.tool_uses import PairedUse
from schemas.scores.all_records import ToolOutcome
from schemas.transcript import (
    TRANSCRIPT,
    AgentMetadata,
    ToolCall,
    ToolDetails,
    ToolResult,
    TranscriptTurn,
    request_id,
)

MAX_TRANSCRIPT_BYTES: Final = 1_000_000
"""Largest transcript that is written: brokers and clients accept a megabyte, and two hours of talk have a third of that."""
LEAST_ENTRY_BYTES: Final = 100
LEAST_USE_BYTES: Final = 100
"""Lower bounds of the bytes of an entry, and of a tool call in it, beside their texts."""
MS_PER_SECOND: Final = 1_000


def transcript_of(
    conversation_id: str,
    live: LiveCall,
    agent: str,
    redactor: Redacts | None = None,
    metrics_of: MetricsOf | None = None,
) -> tuple[TranscriptTurn, ...]:
    """The transcript of a call as it is now.

    Args:
        conversation_id: Begins the ids of tool uses; turn and number follow.
        live: The call.
        agent: The agent's name, used where no conversation record has the agent's id.
        redactor: Redacts every text and every tool value; None leaves them unchanged.
        metrics_of: Gives the measured values of a turn; None without any.

    Returns:
        The entries; none for a call without words, sound or tools.
    """
    writer = TranscriptWriter(conversation_id, live, agent, redactor, metrics_of)
    writer.go_on(lambda: True)
    return tuple(writer.turns)


def transcript_bytes(turns: Sequence[TranscriptTurn]) -> bytes | None:
    """The JSON array in UTF-8. Long tool values are left out where it would be too large with them.

    Returns:
        None when it is too large even so.
    """
    value = TRANSCRIPT.dump_json(tuple(turns))
    if len(value) > MAX_TRANSCRIPT_BYTES:
        value = TRANSCRIPT.dump_json(tuple(map(_without_long_values, turns)))
    return value if len(value) <= MAX_TRANSCRIPT_BYTES else None


class _Words(NamedTuple):
    """The words of a turn: the caller's; the agent's as spoken, as its model wrote them, and as shown."""

    user: str
    spoken: str
    written: str
    answer: str


class _Entry(NamedTuple):
    """An entry of one text or value. `chars` is the length of a tool's value, as JSON if it is no text."""

    at_ms: int
    turn: int
    kind: EntryKind
    use: PairedUse | None
    chars: int = 0


class _Part(NamedTuple):
    """A part of an entry with one text or value to redact. The last part completes the entry."""

    turn: int
    kind: EntryKind
    after_secs: int
    use: PairedUse | None = None
    chars: int = 0
    is_last: bool = True


class TranscriptWriter:
    """Writes the entries one by one; the caller decides how far it may go at a time.

    Attributes:
        turns: The entries so far.
    """

    def __init__(
        self,
        conversation_id: str,
        live: LiveCall,
        agent: str,
        redactor: Redacts | None,
        metrics_of: MetricsOf | None,
    ) -> None:
        """Finds the entries to write; arguments as in `transcript_of`."""
        self.turns: list[TranscriptTurn] = []
        self._conversation_id = conversation_id
        known_id = None if live.record is None else live.record.agent_id
        self._metadata = AgentMetadata(agent_id=known_id or agent)
        self._texts = TranscriptTexts(redactor)
        heard = live.heard()
        turns = heard.turns(sorted(heard.numbers()))
        self._words = _words_of(turns)
        self._cut_off = cut_off_turns(turns)
        self._first_ms = live.first_ms
        self._calls: list[ToolCall] = []
        self._results: list[ToolResult] = []
        self._original: str | None = None
        entries = sorted(self._entries(turns), key=attrgetter("at_ms"))
        self._numbers = EntryNumbers({(entry.turn, entry.kind) for entry in entries}, metrics_of)
        if self._least_bytes(entries) > MAX_TRANSCRIPT_BYTES:
            self._texts.longest_value = MAX_TOOL_TEXT_CHARS
        self.is_too_large = self._least_bytes(entries) > MAX_TRANSCRIPT_BYTES
        self._parts = deque(self._in_parts(entries))

    def go_on(self, may_go_on: Callable[[], bool]) -> bool:
        """Writes the next part, and more while `may_go_on` is true; returns whether all is written."""
        parts = self._parts
        while parts:
            self._write(parts.popleft())
            if not may_go_on():
                break
        return not parts

    def _write(self, part: _Part) -> None:
        turn, kind, after_secs, use, chars, is_last = part
        match kind:
            case EntryKind.USER:
                self.turns.append(self._user(turn, after_secs))
            case EntryKind.AGENT if is_last:
                self.turns.append(self._agent(turn, after_secs))
            case EntryKind.AGENT:
                self._original = self._texts.text(self._words[turn].written)
            case EntryKind.TOOL_CALL if use is not None:
                self._calls.append(self._call(use, chars))
                if is_last:
                    self.turns.append(self._tools_called(turn, after_secs))
            case EntryKind.TOOL_RESULT if use is not None:
                self._results.append(self._result(use, chars))
                if is_last:
                    self.turns.append(self._tools_answered(after_secs))
        if is_last:
            self._numbers.is_written(turn, kind)

    def _in_parts(self, entries: Sequence[_Entry]) -> Iterator[_Part]:
        if not entries:
            return
        start_ms = entries[0].at_ms if self._first_ms is None else min(self._first_ms, entries[0].at_ms)
        for (turn, kind), group in groupby(entries, key=attrgetter("turn", "kind")):
            several = list(group)
            after_secs = (several[0].at_ms - start_ms) // MS_PER_SECOND
            if kind in {EntryKind.TOOL_CALL, EntryKind.TOOL_RESULT}:
                for entry in several:
                    yield _Part(turn, kind, after_secs, entry.use, entry.chars, is_last=entry is several[-1])
                continue
            if kind is EntryKind.AGENT and self._has_original(turn):
                yield _Part(turn, kind, after_secs, is_last=False)
            yield _Part(turn, kind, after_secs)

    def _least_bytes(self, entries: Sequence[_Entry]) -> int:
        """Least size of the transcript, if redaction shortens nothing."""
        size = 0
        for _, number, kind, use, chars in entries:
            if kind is EntryKind.USER:
                size += LEAST_ENTRY_BYTES + len(self._words[number].user)
            elif kind is EntryKind.AGENT:
                size += LEAST_ENTRY_BYTES + len(self._words[number].answer)
            elif use is not None:
                copies = 2 if kind is EntryKind.TOOL_CALL else 1
                size += LEAST_USE_BYTES + (copies * chars if chars <= self._texts.longest_value else 0)
            if size > MAX_TRANSCRIPT_BYTES:
                break
        return size

    def _entries(self, turns: Mapping[int, HeardTurn]) -> Iterator[_Entry]:
        """Words, tool calls and results, turn by turn. An entry without a time of its own follows the one before it."""
        latest_ms = self._first_ms or 0
        for number, turn in turns.items():
            for own_ms, kind, use in self._of_turn(turn):
                at_ms = latest_ms if own_ms is None else own_ms
                latest_ms = max(latest_ms, at_ms)
                chars = 0
                if use is not None:
                    chars = length(use.arguments if kind is EntryKind.TOOL_CALL else use.answer)
                yield _Entry(at_ms, number, kind, use, chars)

    def _of_turn(self, turn: HeardTurn) -> Iterator[tuple[int | None, EntryKind, PairedUse | None]]:
        words = self._words[turn.number]
        if words.user or turn.user.starts:
            yield _at_ms(turn.user), EntryKind.USER, None
        for use in turn.tools:
            if use.called_at_ms is not None:
                yield use.called_at_ms, EntryKind.TOOL_CALL, use
            if use.outcome is not None:
                answered_ms = None if use.called_at_ms is None else use.called_at_ms + (use.duration_ms or 0)
                yield answered_ms, EntryKind.TOOL_RESULT, use
        if words.answer or turn.assistant.starts:
            yield _at_ms(turn.assistant), EntryKind.AGENT, None

    def _user(self, turn: int, after_secs: int) -> TranscriptTurn:
        return TranscriptTurn(
            role="user",
            message=self._texts.text(self._words[turn].user),
            time_in_call_secs=after_secs,
            conversation_turn_metrics=self._numbers.metrics(turn, EntryKind.USER),
            source_medium="audio",
        )

    def _agent(self, turn: int, after_secs: int) -> TranscriptTurn:
        original, self._original = self._original, None
        return TranscriptTurn(
            role="agent",
            agent_metadata=self._metadata,
            message=self._texts.text(self._words[turn].answer),
            time_in_call_secs=after_secs,
            conversation_turn_metrics=self._numbers.metrics(turn, EntryKind.AGENT),
            llm_usage=self._numbers.usage(turn, EntryKind.AGENT),
            interrupted=turn in self._cut_off,
            original_message=original,
        )

    def _has_original(self, turn: int) -> bool:
        """Whether the answer was cut off and the log has all of it: no less than was spoken."""
        said = self._words[turn]
        return turn in self._cut_off and len(said.written) >= len(said.spoken) > 0

    def _tools_called(self, turn: int, after_secs: int) -> TranscriptTurn:
        calls, self._calls = self._calls, []
        return TranscriptTurn(
            role="agent",
            agent_metadata=self._metadata,
            tool_calls=tuple(calls),
            time_in_call_secs=after_secs,
            conversation_turn_metrics=self._numbers.metrics(turn, EntryKind.TOOL_CALL),
            llm_usage=self._numbers.usage(turn, EntryKind.TOOL_CALL),
        )

    def _call(self, use: PairedUse, chars: int) -> ToolCall:
        parameters = self._texts.parameters(use.arguments, chars)
        return ToolCall(
            request_id=request_id(self._conversation_id, use.turn, use.index),
            tool_name=use.tool,
            params_as_json=parameters,
            tool_has_been_called=use.outcome is not None,
            tool_details=ToolDetails(parameters=parameters),
        )

    def _tools_answered(self, after_secs: int) -> TranscriptTurn:
        results, self._results = tuple(self._results), []
        return TranscriptTurn(
            role="agent", agent_metadata=self._metadata, tool_results=results, time_in_call_secs=after_secs
        )

    def _result(self, use: PairedUse, chars: int) -> ToolResult:
        return ToolResult(
            request_id=request_id(self._conversation_id, use.turn, use.index),
            tool_name=use.tool,
            result_value=self._texts.answer(use.answer, chars),
            is_error=use.outcome is ToolOutcome.ERROR,
            tool_latency_secs=None if use.duration_ms is None else use.duration_ms / MS_PER_SECOND,
        )


def _words_of(turns: Mapping[int, HeardTurn]) -> dict[int, _Words]:
    answers = answers_of(turns)
    return {
        number: _Words(
            turn.user.said(Purpose.SPOKEN),
            turn.assistant.said(Purpose.SPOKEN),
            turn.assistant.said(Purpose.WRITTEN),
            answers[number],
        )
        for number, turn in turns.items()
    }


def _at_ms(side: HeardSide) -> int | None:
    return int(min(side.starts) * MS_PER_SECOND) if side.starts else side.logged_ms


def _without_long_values(turn: TranscriptTurn) -> TranscriptTurn:
    calls = tuple(
        call.model_copy(update={"params_as_json": short, "tool_details": _short_details(call, short)})
        for call in turn.tool_calls
        for short in (_shortened(call.params_as_json),)
    )
    results = tuple(
        result.model_copy(update={"result_value": _shortened(result.result_value)}) for result in turn.tool_results
    )
    return turn.model_copy(update={"tool_calls": calls, "tool_results": results})


def _short_details(call: ToolCall, parameters: str) -> ToolDetails | dict[str, Any] | None:
    details = call.tool_details
    if isinstance(details, ToolDetails):
        return ToolDetails(parameters=parameters)
    return details if details is None or length(details) <= MAX_TOOL_TEXT_CHARS else None


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_TOOL_TEXT_CHARS else left_out(len(text))
