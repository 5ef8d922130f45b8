"""Writes the transcript of a call of which ElevenLabs has a record: the entries of the record itself, redacted.

A record is in the format of a transcript already, and has more of the call than its events: nodes of a workflow, feedback,
retrieved documents, the kind of each tool. So nothing of it is computed again. Of an entry the fifteen keys of the format are
written, and of a tool the keys that the format has.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from consumers.engine.call.transcripts.from_turns import (
    LEAST_ENTRY_BYTES,
    LEAST_USE_BYTES,
    MAX_TRANSCRIPT_BYTES,
)
from consumers.engine.call.transcripts.numbers import llm_usage
from consumers.engine.call.transcripts.texts import MAX_TOOL_TEXT_CHARS, Redacts, TranscriptTexts, length
from consumers.engine.turns.bot.agent_record import usage_in
from schemas.events.elevenlabs_record import RecordedToolCall, RecordedToolResult, RecordEntry
from schemas.transcript import (
    AgentMetadata,
    ConversationTurnMetrics,
    ElapsedTime,
    ToolCall,
    ToolDetails,
    ToolResult,
    TranscriptTurn,
    request_id,
)

ROLES: Final = frozenset({"agent", "user"})
CLIENT: Final = "client"
HIDDEN_HEADER: Final = "[HEADER]"
"""In place of the value of an HTTP header that a tool was called with: it can be a password."""

_TEXTS: Final = ("message", "original_message", "llm_override")
_VALUES: Final = ("multivoice_message", "feedback", "rag_retrieval_info")


class _Part(NamedTuple):
    """A part of an entry with at most one text or value to redact. The last part completes the entry."""

    place: int
    name: str
    tool: int
    value: Any
    is_last: bool


class RecordedTranscript:
    """Writes the entries one by one; the caller decides how far it may go at a time.

    Attributes:
        turns: The entries so far.
        is_too_large: Whether the transcript would be too large however much redaction shortens it.
    """

    def __init__(
        self, conversation_id: str, entries: Sequence[RecordEntry], agent_id: str, redactor: Redacts | None
    ) -> None:
        """Finds the texts to redact.

        Args:
            conversation_id: Begins the ids of tool uses that have none in the record.
            entries: The entries of the record.
            agent_id: Id of the agent, where an entry does not name it.
            redactor: Redacts every text and every value; None leaves them unchanged.
        """
        self.turns: list[TranscriptTurn] = []
        self._entries = tuple(entry for entry in entries if entry.role in ROLES)
        self._agent_id = agent_id
        self._texts = TranscriptTexts(redactor)
        self._redacted: dict[tuple[str, int], Any] = {}
        self._ids = dict(_ids_of(self._entries, conversation_id))
        self._answered = frozenset(each for (_, kind, _), each in self._ids.items() if kind is RecordedToolResult)
        self._after_secs = 0
        if self._least_bytes() > MAX_TRANSCRIPT_BYTES:
            self._texts.longest_value = MAX_TOOL_TEXT_CHARS
        self.is_too_large = self._least_bytes() > MAX_TRANSCRIPT_BYTES
        self._parts = deque(part for place, entry in enumerate(self._entries) for part in _parts_of(place, entry))

    def go_on(self, may_go_on: Callable[[], bool]) -> bool:
        """Writes the next part, and more while `may_go_on` is true; returns whether all is written."""
        parts = self._parts
        while parts:
            part = parts.popleft()
            self._redacted[part.name, part.tool] = self._without_personal_data(part)
            if part.is_last:
                self.turns.append(self._turn(part.place, self._entries[part.place]))
                self._redacted = {}
            if not may_go_on():
                break
        return not parts

    def _least_bytes(self) -> int:
        """Least size of the transcript, if redaction shortens nothing."""
        size = 0
        for entry in self._entries:
            size += LEAST_ENTRY_BYTES + len(entry.message or "") + len(entry.original_message or "")
            values = [call.params_as_json or "" for call in entry.tool_calls]
            values += [result.result_value for result in entry.tool_results]
            lengths = map(length, values)
            size += sum(LEAST_USE_BYTES + (chars if chars <= self._texts.longest_value else 0) for chars in lengths)
        return size

    def _without_personal_data(self, part: _Part) -> Any:
        texts, value = self._texts, part.value
        match part.name:
            case "params_as_json" | "client_parameters":
                return texts.parameters(value, length(value))
            case "result_value":
                return texts.answer(value, length(value))
            case name if name in _TEXTS:
                return texts.text(value)
        return texts.value(value)

    def _turn(self, place: int, entry: RecordEntry) -> TranscriptTurn:
        self._after_secs = max(self._after_secs, int(entry.time_in_call_secs or 0))
        redacted = {name: value for (name, _), value in self._redacted.items() if name in (*_TEXTS, *_VALUES)}
        measured = {name: ElapsedTime(elapsed_time=seconds) for name, seconds in entry.metrics.items()}
        usage = usage_in([entry.llm_usage])
        return TranscriptTurn(
            role="agent" if entry.role == "agent" else "user",
            agent_metadata=self._agent(entry.agent_metadata) if entry.role == "agent" else None,
            tool_calls=tuple(self._call(place, number, call) for number, call in enumerate(entry.tool_calls)),
            tool_results=tuple(self._result(place, number, result) for number, result in enumerate(entry.tool_results)),
            time_in_call_secs=self._after_secs,
            conversation_turn_metrics=ConversationTurnMetrics(metrics=measured),
            llm_usage=llm_usage(usage) if usage else None,
            interrupted=bool(entry.interrupted),
            source_medium=_text_or_none(entry.source_medium),
            **redacted,
        )

    def _agent(self, metadata: object) -> AgentMetadata:
        known = metadata if isinstance(metadata, Mapping) else {}
        return AgentMetadata(
            agent_id=_text_or_none(known.get("agent_id")) or self._agent_id,
            workflow_node_id=_text_or_none(known.get("workflow_node_id")),
        )

    def _call(self, place: int, number: int, call: RecordedToolCall) -> ToolCall:
        identity = self._ids[place, RecordedToolCall, number]
        kind = call.type or CLIENT
        parameters: str = self._redacted["params_as_json", number]
        details: ToolDetails | dict[str, Any] | None = self._redacted.get(("tool_details", number))
        if kind == CLIENT:
            details = ToolDetails(parameters=self._redacted.get(("client_parameters", number), parameters))
        return ToolCall(
            type=kind,
            request_id=identity,
            tool_name=call.tool_name,
            params_as_json=parameters,
            tool_has_been_called=identity in self._answered
            if call.tool_has_been_called is None
            else call.tool_has_been_called,
            tool_details=details,
        )

    def _result(self, place: int, number: int, result: RecordedToolResult) -> ToolResult:
        return ToolResult(
            request_id=self._ids[place, RecordedToolResult, number],
            tool_name=result.tool_name,
            result_value=self._redacted["result_value", number],
            is_error=bool(result.is_error),
            tool_has_been_called=result.tool_has_been_called is not False,
            tool_latency_secs=result.tool_latency_secs,
            dynamic_variable_updates=tuple(self._redacted.get(("dynamic_variable_updates", number)) or ()),
            type=result.type or CLIENT,
        )


def _ids_of(entries: Sequence[RecordEntry], conversation_id: str) -> Iterator[tuple[tuple[int, type, int], str]]:
    """Ids of tool uses, by entry, kind and place in it. Without ids of the record's own, the first result of a tool belongs to its
    first call, and so on.
    """
    seen: Counter[tuple[type, str]] = Counter()
    for place, entry in enumerate(entries):
        calls: Sequence[RecordedToolCall | RecordedToolResult] = entry.tool_calls
        for tools in (calls, entry.tool_results):
            for number, tool in enumerate(tools):
                own = tool.request_id
                if own is None:
                    seen[type(tool), tool.tool_name] += 1
                    own = request_id(f"{conversation_id}\x00{tool.tool_name}", seen[type(tool), tool.tool_name], 0)
                yield (place, type(tool), number), own


def _parts_of(place: int, entry: RecordEntry) -> Iterator[_Part]:
    """The texts and values of an entry."""
    found: list[tuple[str, int, Any]] = [
        *((name, 0, text) for name in _TEXTS if isinstance(text := getattr(entry, name), str)),
        *((name, 0, value) for name in _VALUES if isinstance(value := getattr(entry, name), dict)),
    ]
    for number, call in enumerate(entry.tool_calls):
        found.append(("params_as_json", number, call.params_as_json))
        if not isinstance(call.tool_details, dict):
            continue
        if (call.type or CLIENT) != CLIENT:
            found.append(("tool_details", number, _without_headers(call.tool_details)))
        elif isinstance(parameters := call.tool_details.get("parameters"), str):
            found.append(("client_parameters", number, parameters))
    for number, result in enumerate(entry.tool_results):
        found.append(("result_value", number, result.result_value))
        if isinstance(result.dynamic_variable_updates, list):
            found.append(("dynamic_variable_updates", number, result.dynamic_variable_updates))
    for name, number, value in found or [("", 0, None)]:
        yield _Part(place, name, number, value, is_last=(name, number) == found[-1][:2] if found else True)


def _without_headers(details: Mapping[str, Any]) -> dict[str, Any]:
    """The details without the values of headers, also of a webhook inside of them."""
    shown: dict[str, Any] = {}
    for name, value in details.items():
        if name == "headers" and isinstance(value, dict):
            shown[name] = dict.fromkeys(value, HIDDEN_HEADER)
        else:
            shown[name] = _without_headers(value) if name == "webhook_details" and isinstance(value, dict) else value
    return shown


def _text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) else None
