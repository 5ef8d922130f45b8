"""The transcript of a call in ElevenLabs' format, from its turns or from the agent's own record."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from functools import cached_property
from itertools import groupby
from math import inf
from operator import attrgetter, itemgetter
from typing import Any, Final, NamedTuple, TypeVar

from pydantic_core import from_json, to_json

from consumers.engine.redaction.redactor import CallRedactor, Redactor
from consumers.engine.sources.elevenlabs import usage_in
from consumers.engine.sources.facts import (
    Detailed,
    RecordedToolCall,
    RecordedToolResult,
    RecordEntry,
)
from consumers.engine.turns.bot import TokenUsage, TurnMetrics
from consumers.engine.turns.heard import HeardSide, HeardTurn, Purpose, answers_of, cut_off_turns
from consumers.engine.turns.live import LiveCall
from consumers.engine.turns.timeline import PairedUse
from schemas.closed_sets import ToolOutcome
from schemas.transcript import (
    TRANSCRIPT,
    AgentMetadata,
    ConversationTurnMetrics,
    ElapsedTime,
    LlmUsage,
    ModelUsage,
    TokenCount,
    ToolCall,
    ToolDetails,
    TranscriptToolResult,
    TranscriptTurn,
    request_id,
)
from schemas.units import MS_PER_SECOND

# Puts the measured values of a turn on the transcript entry where ElevenLabs has them.

_OF_THE_USER: Final = "convai_asr_"
_OF_TOOL_CALLS: Final = "convai_llm_tool_request_generation_latency"
_NO_TOKENS: Final = TokenCount()
_UNMEASURED: Final = TurnMetrics({}, {})

MetricsOf = Callable[[int], TurnMetrics]


class EntryKind(IntEnum):
    """Kinds of transcript entries."""

    USER = 0
    TOOL_CALL = 1
    TOOL_RESULT = 2
    AGENT = 3


class EntryNumbers:
    """Places each number of a turn on one entry, the first of its kind."""

    def __init__(self, places: set[tuple[int, EntryKind]], metrics_of: MetricsOf | None) -> None:
        """Starts with nothing written.

        Args:
            places: The future entries, by turn and kind.
            metrics_of: Gives the measured values of a turn; None without any.
        """
        self._places = places
        self._metrics_of = metrics_of
        self._measured: dict[int, TurnMetrics] = {}
        self._written: set[tuple[int, EntryKind]] = set()

    def is_main(self, turn: int, kind: EntryKind) -> bool:
        """Whether an entry of this kind has what is told of the turn as a whole: the first answer;
        without one the first tool calls.
        """
        return self._place(turn) is kind

    def is_written(self, turn: int, kind: EntryKind) -> None:
        """Notes that an entry of this kind is written: no later entry gets its numbers."""
        self._written.add((turn, kind))

    def metrics(self, turn: int, kind: EntryKind) -> ConversationTurnMetrics | None:
        """Stage latencies for this entry; None without any."""
        here = {
            name: ElapsedTime(elapsed_time=seconds)
            for name, seconds in self._of(turn).seconds.items()
            if self._place(turn, name) is kind
        }
        return ConversationTurnMetrics(metrics=here) if here else None

    def usage(self, turn: int, kind: EntryKind) -> LlmUsage | None:
        """Tokens for this entry; None without any."""
        usage = self._of(turn).usage
        if not usage or self._place(turn) is not kind:
            return None
        return llm_usage(usage)

    def _of(self, turn: int) -> TurnMetrics:
        if self._metrics_of is None:
            return _UNMEASURED
        measured = self._measured.get(turn)
        if measured is None:
            measured = self._measured[turn] = self._metrics_of(turn)
        return measured

    def _place(self, turn: int, name: str = "") -> EntryKind | None:
        """The entry of the turn for a number of this name; None when there is none, or it is
        already written.
        """
        wanted: tuple[EntryKind, ...] = (EntryKind.AGENT, EntryKind.TOOL_CALL)
        if name.startswith(_OF_THE_USER):
            wanted = (EntryKind.USER,)
        elif name == _OF_TOOL_CALLS:
            wanted = (EntryKind.TOOL_CALL, EntryKind.AGENT)
        place = next(((turn, kind) for kind in wanted if (turn, kind) in self._places), None)
        return None if place is None or place in self._written else place[1]


def llm_usage(usage: Mapping[str, TokenUsage]) -> LlmUsage:
    """Tokens by model in the format of a transcript."""
    return LlmUsage(
        model_usage={model or "unknown": _model_usage(used) for model, used in usage.items()}
    )


def _model_usage(used: TokenUsage) -> ModelUsage:
    return ModelUsage(
        input=_count(used.input_tokens, used.input_price),
        input_cache_read=_count(used.cache_read_tokens, used.cache_read_price),
        input_cache_write=_count(used.cache_write_tokens, used.cache_write_price),
        output_total=_count(used.output_tokens, used.output_price),
    )


def _count(tokens: int, price: float) -> TokenCount:
    return TokenCount(tokens=tokens, price=price) if tokens or price else _NO_TOKENS


# Puts what a bot tells of its turns on the entry where ElevenLabs has it.


class EntryDetails:
    """Finds the entry of each detail.

    Attributes:
        of_turn: Fields of the main entry of a turn, by their names in the transcript.
    """

    def __init__(
        self, told: Iterable[Detailed], entries: Sequence["_Entry"], start_ms: int
    ) -> None:
        """Places all of them.

        Args:
            told: The details of the call, in the order of `order_of_details`.
            entries: The future entries, in their order.
            start_ms: Start of the call.
        """
        self.of_turn: dict[int, dict[str, Any]] = {}
        self._nodes: list[tuple[int, str]] = []
        starts = [entry.at_ms for entry in entries]
        answers = [entry for entry in entries if entry.kind is EntryKind.AGENT]
        answered = [entry.at_ms for entry in answers]
        self._by_ms = [0.0] * len(entries)
        next_ms = inf  # what nothing times was before the next entry
        for place in range(len(entries) - 1, -1, -1):
            entry = entries[place]
            self._by_ms[place] = entry.at_ms if entry.is_timed else next_ms
            next_ms = entry.at_ms if entry.is_timed else next_ms
        for each in told:
            if each.workflow_node_id is not None:
                self._nodes.append((each.at_ms, each.workflow_node_id))
            fields = self.of_turn.setdefault(entries[_last_by(starts, each.at_ms)].turn, {})
            if each.rag_retrieval_info is not None:
                fields["rag_retrieval_info"] = each.rag_retrieval_info
            if each.llm_override is not None:
                fields["llm_override"] = each.llm_override
            if each.feedback is not None and answers:
                after_secs = max(0, each.told_ms - start_ms) // MS_PER_SECOND
                rated = answers[_last_by(answered, each.at_ms)].turn
                feedback = {"score": each.feedback, "time_in_call_secs": after_secs}
                self.of_turn.setdefault(rated, {})["feedback"] = feedback

    def node_of(self, place: int) -> str | None:
        """The node of the workflow in which the agent was at this entry; None if none is told."""
        known = bisect_right(self._nodes, self._by_ms[place], key=itemgetter(0))
        return self._nodes[known - 1][1] if known else None


def order_of_details(details: Detailed) -> tuple[int, int, str]:
    """Their order, whatever that of their arrival is."""
    return details.at_ms, details.told_ms, repr(details)


def _last_by(starts: Sequence[int], at_ms: int) -> int:
    """Place of the last of them that has begun by then; of the first one if none has."""
    return max(0, bisect_right(starts, at_ms) - 1)


# Redacts the texts and the tool values of a transcript, and leaves values out that are too long.

MAX_VALUE_CHARS: Final = 100_000
"""Longest parameters or answer of a tool in a transcript. A longer value is left out before it is
redacted.
"""
MAX_TOOL_TEXT_CHARS: Final = 1_000
"""Longest parameters or answer of a tool that stay in a transcript that would be too large
otherwise.
"""


class TranscriptTexts:
    """The texts of one transcript.

    Attributes:
        longest_value: Characters of the longest tool value that is not left out.
    """

    def __init__(self, redactor: CallRedactor | Redactor) -> None:
        self.longest_value = MAX_VALUE_CHARS
        self._redactor = redactor

    def text(self, text: str) -> str | None:
        """The text without personal data; None for an empty one."""
        return self._redactor.redact(text) if text else None

    def value(self, value: Any) -> Any:
        """A JSON value of the same shape without personal data; None for one that is too long."""
        return None if length(value) > self.longest_value else self._redactor.redact_value(value)

    def parameters(self, value: object, chars: int) -> str:
        """The arguments of a tool as JSON text; `chars` is their `length`."""
        return left_out(chars) if chars > self.longest_value else self._json(_parsed(value), value)

    def answer(self, value: object, chars: int) -> str:
        """The answer of a tool as text, other values than texts as JSON; `chars` is its
        `length`.
        """
        if chars > self.longest_value:
            return left_out(chars)
        answer = _parsed(value)
        return (self.text(answer) or "") if isinstance(answer, str) else self._json(answer, value)

    def _json(self, value: object, logged: object) -> str:
        """The value as JSON without personal data, redacted text by text, so that it stays valid
        JSON.

        Args:
            value: The value.
            logged: The value as logged. A text stays as logged if nothing was redacted.
        """
        redacted = self._redactor.redact_value(value)
        if isinstance(logged, str) and logged is not value and redacted == value:
            return logged
        return to_json(redacted, inf_nan_mode="null").decode()  # JSON has no word for infinity


def length(value: object) -> int:
    """Characters of a tool's value, as JSON if it is no text."""
    return len(value) if isinstance(value, str) else len(to_json(value, inf_nan_mode="null"))


def left_out(chars: int) -> str:
    """The text in place of a value of this many characters."""
    return f'{{"left_out_characters":{chars}}}'


def _parsed(value: object) -> object:
    """A tool's value, parsed where it is a text that holds a JSON object or list, so that its parts
    can be redacted.
    """
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return from_json(value, allow_inf_nan=False)
        except ValueError:
            return value
    return value


# Writes a call's transcript at its close, in ElevenLabs' format: words and tools with their times,
# and stage latencies.
#
# `heard` chooses the words: of the caller those that the agent understood, of the agent those that
# sounded. Each side of a turn is one entry. Tool calls form an entry of the agent without a
# message, and so do their results, as on ElevenLabs' platform; neighbours in one turn share an
# entry. Entries are in the order of time.

MAX_TRANSCRIPT_BYTES: Final = 1_000_000
"""Largest transcript that is written: brokers and clients accept a megabyte, and two hours of talk
have a third of that.
"""
LEAST_ENTRY_BYTES: Final = 100
LEAST_USE_BYTES: Final = 100
"""Lower bounds of the bytes of an entry, and of a tool call in it, beside their texts."""


CLIENT: Final = "client"
"""ElevenLabs' word for a tool that runs outside its platform: every tool of which no event of
ElevenLabs says another.
"""

Entries = Iterator[TranscriptTurn | None]
"""The entries of a transcript. A None comes between two texts of one entry: the reader may pause
behind each text.
"""


def transcript_bytes(turns: Sequence[TranscriptTurn]) -> bytes | None:
    """The JSON array in UTF-8. Long tool values, and long lists of what was retrieved, are left out
    where it would be too large with them.

    Returns:
        None when it is too large even so.
    """
    value = TRANSCRIPT.dump_json(tuple(turns))
    if len(value) > MAX_TRANSCRIPT_BYTES:
        value = TRANSCRIPT.dump_json(tuple(map(_without_long_values, turns)))
    return value if len(value) <= MAX_TRANSCRIPT_BYTES else None


class _Words(NamedTuple):
    """The words of a turn: the caller's; the agent's as spoken, as its model wrote them, and as
    shown.
    """

    user: str
    spoken: str
    written: str
    answer: str


class _Entry(NamedTuple):
    """An entry of one text or value. `chars` is the length of a tool's value, as JSON if it is no
    text. `is_timed` is false where nothing tells its time, and `at_ms` is that of the entry before
    it.
    """

    at_ms: int
    turn: int
    kind: EntryKind
    use: PairedUse | None
    chars: int = 0
    is_timed: bool = True


class CallTranscript:
    """The transcript of a call as it is now; of a call without words, sound or tools it has no
    entries.
    """

    def __init__(
        self,
        conversation_id: str,
        live: LiveCall,
        agent: str,
        redactor: CallRedactor | Redactor,
        metrics_of: MetricsOf | None,
        details: Sequence[Detailed] = (),
    ) -> None:
        """Finds the entries to write.

        Args:
            conversation_id: Begins the ids of tool uses; turn and number follow.
            live: The call.
            agent: The agent's name, used where no conversation record has the agent's id.
            redactor: Redacts every text and every tool value.
            metrics_of: Gives the measured values of a turn; None without any.
            details: What the bot tells of its turns, in the order of `order_of_details`.
        """
        self._conversation_id = conversation_id
        self._agent_id = (None if live.record is None else live.record.agent_id) or agent
        self._texts = TranscriptTexts(redactor)
        heard = live.heard()
        turns = heard.turns(sorted(heard.numbers()))
        self._turns = turns
        self._words = _words_of(turns)
        self._cut_off = cut_off_turns(turns)
        self._first_ms = live.first_ms
        self._told = details
        self._metrics_of = metrics_of

    @cached_property
    def _in_order(self) -> list[_Entry]:
        return sorted(self._entries(self._turns), key=attrgetter("at_ms"))

    @cached_property
    def is_too_large(self) -> bool:
        """Whether it would be too large however much redaction shortens it. The first look puts the
        entries in order.
        """
        if self._least_bytes(self._in_order) <= MAX_TRANSCRIPT_BYTES:
            return False
        self._texts.longest_value = MAX_TOOL_TEXT_CHARS
        return self._least_bytes(self._in_order) > MAX_TRANSCRIPT_BYTES

    def __iter__(self) -> Entries:
        if self.is_too_large or not self._in_order:
            return
        self._numbers = EntryNumbers(
            {(entry.turn, entry.kind) for entry in self._in_order}, self._metrics_of
        )
        first_ms = self._in_order[0].at_ms
        start_ms = first_ms if self._first_ms is None else min(self._first_ms, first_ms)
        details = EntryDetails(self._told, self._in_order, start_ms)
        place = 0
        for (turn, kind), group in groupby(self._in_order, key=attrgetter("turn", "kind")):
            several = list(group)
            after_secs = (several[0].at_ms - start_ms) // MS_PER_SECOND
            node = details.node_of(place)
            place += len(several)
            if kind is EntryKind.USER:
                yield self._user(turn, after_secs)
                self._numbers.is_written(turn, kind)
                continue
            metadata = AgentMetadata(agent_id=self._agent_id, workflow_node_id=node)
            fields: dict[str, Any] = {"agent_metadata": metadata, "time_in_call_secs": after_secs}
            if turn in details.of_turn and self._numbers.is_main(turn, kind):
                fields |= yield from self._redacted(details.of_turn[turn])
            match kind:
                case EntryKind.AGENT:
                    original = None
                    if self._has_original(turn):
                        original = self._texts.text(self._words[turn].written)
                        yield None
                    yield self._agent(turn, original, fields)
                case EntryKind.TOOL_CALL:
                    calls = yield from _one_by_one(
                        self._call(each.use, each.chars) for each in several if each.use
                    )
                    yield self._tools_called(turn, calls, fields)
                case EntryKind.TOOL_RESULT:
                    results = yield from _one_by_one(
                        self._result(each.use, each.chars) for each in several if each.use
                    )
                    yield TranscriptTurn(role="agent", tool_results=results, **fields)
            self._numbers.is_written(turn, kind)

    def _redacted(self, details: Mapping[str, Any]) -> Generator[None, None, dict[str, Any]]:
        """What is told of a turn, without personal data; it pauses behind each text and value."""
        fields = {}
        for name, value in details.items():
            fields[name] = (
                self._texts.text(value) if isinstance(value, str) else self._texts.value(value)
            )
            yield
        return fields

    def _least_bytes(self, entries: Sequence[_Entry]) -> int:
        """Least size of the transcript, if redaction shortens nothing."""
        size = 0
        for _, number, kind, use, chars, _ in entries:
            if kind is EntryKind.USER:
                size += LEAST_ENTRY_BYTES + len(self._words[number].user)
            elif kind is EntryKind.AGENT:
                size += LEAST_ENTRY_BYTES + len(self._words[number].answer)
            elif use is not None:
                copies = 2 if kind is EntryKind.TOOL_CALL else 1
                size += LEAST_USE_BYTES + (
                    copies * chars if chars <= self._texts.longest_value else 0
                )
            if size > MAX_TRANSCRIPT_BYTES:
                break
        return size

    def _entries(self, turns: Mapping[int, HeardTurn]) -> Iterator[_Entry]:
        """Words, tool calls and results, turn by turn. An entry without a time of its own follows
        the one before it.
        """
        latest_ms = self._first_ms or 0
        for number, turn in turns.items():
            for own_ms, kind, use in self._of_turn(turn):
                at_ms = latest_ms if own_ms is None else own_ms
                latest_ms = max(latest_ms, at_ms)
                chars = 0
                if use is not None:
                    chars = length(use.arguments if kind is EntryKind.TOOL_CALL else use.answer)
                yield _Entry(at_ms, number, kind, use, chars, own_ms is not None)

    def _of_turn(self, turn: HeardTurn) -> Iterator[tuple[int | None, EntryKind, PairedUse | None]]:
        words = self._words[turn.number]
        if words.user or turn.user.starts:
            yield _at_ms(turn.user), EntryKind.USER, None
        for use in turn.tools:
            if use.called_at_ms is not None:
                yield use.called_at_ms, EntryKind.TOOL_CALL, use
            if use.outcome is not None:
                answered_ms = (
                    None if use.called_at_ms is None else use.called_at_ms + (use.duration_ms or 0)
                )
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

    def _agent(self, turn: int, original: str | None, fields: Mapping[str, Any]) -> TranscriptTurn:
        return TranscriptTurn(
            role="agent",
            message=self._texts.text(self._words[turn].answer),
            conversation_turn_metrics=self._numbers.metrics(turn, EntryKind.AGENT),
            llm_usage=self._numbers.usage(turn, EntryKind.AGENT),
            interrupted=turn in self._cut_off,
            original_message=original,
            **fields,
        )

    def _has_original(self, turn: int) -> bool:
        """Whether the answer was cut off and the log has all of it: no less than was spoken."""
        said = self._words[turn]
        return turn in self._cut_off and len(said.written) >= len(said.spoken) > 0

    def _tools_called(
        self, turn: int, calls: tuple[ToolCall, ...], fields: Mapping[str, Any]
    ) -> TranscriptTurn:
        return TranscriptTurn(
            role="agent",
            tool_calls=calls,
            conversation_turn_metrics=self._numbers.metrics(turn, EntryKind.TOOL_CALL),
            llm_usage=self._numbers.usage(turn, EntryKind.TOOL_CALL),
            **fields,
        )

    def _call(self, use: PairedUse, chars: int) -> ToolCall:
        parameters, kind = self._texts.parameters(use.arguments, chars), use.kind or CLIENT
        return ToolCall(
            type=kind,
            request_id=self._id_of(use),
            tool_name=use.tool,
            params_as_json=parameters,
            tool_has_been_called=use.outcome is not None,
            tool_details=ToolDetails(parameters=parameters) if kind == CLIENT else None,
        )

    def _result(self, use: PairedUse, chars: int) -> TranscriptToolResult:
        return TranscriptToolResult(
            request_id=self._id_of(use),
            tool_name=use.tool,
            result_value=self._texts.answer(use.answer, chars),
            is_error=use.outcome is ToolOutcome.ERROR,
            tool_latency_secs=(use.duration_ms or 0) / MS_PER_SECOND,
            type=use.kind or CLIENT,
        )

    def _id_of(self, use: PairedUse) -> str:
        """ElevenLabs' own id, as its record will have it; otherwise one in the form of
        the format.
        """
        return use.provider_id or request_id(self._conversation_id, use.turn, use.index)


Made = TypeVar("Made")


def _one_by_one(made: Iterable[Made]) -> Generator[None, None, tuple[Made, ...]]:
    """Makes parts of an entry, each with one text or value to redact, and pauses behind each."""
    parts = []
    for part in made:
        parts.append(part)
        yield
    return tuple(parts)


def _words_of(turns: Mapping[int, HeardTurn]) -> dict[int, _Words]:
    spoken = {number: turn.assistant.said(Purpose.SPOKEN) for number, turn in turns.items()}
    answers = answers_of(turns, spoken)
    return {
        number: _Words(
            turn.user.said(Purpose.SPOKEN),
            spoken[number],
            turn.assistant.said(Purpose.WRITTEN),
            answers[number],
        )
        for number, turn in turns.items()
    }


def _at_ms(side: HeardSide) -> int | None:
    return int(min(side.starts) * MS_PER_SECOND) if side.starts else side.logged_ms


def _without_long_values(turn: TranscriptTurn) -> TranscriptTurn:
    calls = tuple(
        call.model_copy(
            update={"params_as_json": short, "tool_details": _short_details(call, short)}
        )
        for call in turn.tool_calls
        for short in (_shortened(call.params_as_json),)
    )
    results = tuple(
        result.model_copy(update={"result_value": _shortened(result.result_value)})
        for result in turn.tool_results
    )
    retrieved = turn.rag_retrieval_info
    if retrieved is not None and length(retrieved) > MAX_TOOL_TEXT_CHARS:
        retrieved = None
    return turn.model_copy(
        update={"tool_calls": calls, "tool_results": results, "rag_retrieval_info": retrieved}
    )


def _short_details(call: ToolCall, parameters: str) -> ToolDetails | dict[str, Any] | None:
    details = call.tool_details
    if isinstance(details, ToolDetails):
        return ToolDetails(parameters=parameters)
    return details if details is None or length(details) <= MAX_TOOL_TEXT_CHARS else None


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_TOOL_TEXT_CHARS else left_out(len(text))


# Writes the transcript of a call of which ElevenLabs has a record: the entries of the record
# itself, redacted.
#
# A record is in the format of a transcript already, and has more of the call than its events: nodes
# of a workflow, feedback, retrieved documents, the kind of each tool. So nothing of it is computed
# again. Of an entry the fifteen keys of the format are written, and of a tool the keys that the
# format has.

ROLES: Final = frozenset({"agent", "user"})
HIDDEN_HEADER: Final = "[HEADER]"
"""In place of the value of an HTTP header that a tool was called with: it can be a password."""

_TEXTS: Final = ("message", "original_message", "llm_override")
_VALUES: Final = ("multivoice_message", "feedback", "rag_retrieval_info")


class RecordedTranscript:
    """The transcript of a call of which ElevenLabs has a record.

    Attributes:
        is_too_large: Whether it would be too large however much redaction shortens it.
    """

    def __init__(
        self,
        conversation_id: str,
        entries: Sequence[RecordEntry],
        agent_id: str,
        redactor: CallRedactor | Redactor,
    ) -> None:
        """Finds the entries to write.

        Args:
            conversation_id: Begins the ids of tool uses that have none in the record.
            entries: The entries of the record.
            agent_id: Id of the agent, where an entry does not name it.
            redactor: Redacts every text and every value.
        """
        self._entries = tuple(entry for entry in entries if entry.role in ROLES)
        self._agent_id = agent_id
        self._texts = TranscriptTexts(redactor)
        self._ids = dict(_ids_of(self._entries, conversation_id))
        self._answered = frozenset(
            each for (_, kind, _), each in self._ids.items() if kind is RecordedToolResult
        )
        if self._least_bytes() > MAX_TRANSCRIPT_BYTES:
            self._texts.longest_value = MAX_TOOL_TEXT_CHARS
        self.is_too_large = self._least_bytes() > MAX_TRANSCRIPT_BYTES

    def __iter__(self) -> Entries:
        after_secs = 0
        for place, entry in enumerate(self._entries):
            after_secs = max(after_secs, int(entry.time_in_call_secs or 0))
            redacted: dict[str, Any] = {}
            for name in _TEXTS:
                if isinstance(text := getattr(entry, name), str):
                    redacted[name] = self._texts.text(text)
                    yield None
            for name in _VALUES:
                if isinstance(value := getattr(entry, name), dict):
                    redacted[name] = self._texts.value(value)
                    yield None
            calls = []
            for number, call in enumerate(entry.tool_calls):
                calls.append(
                    (yield from self._call(self._ids[place, RecordedToolCall, number], call))
                )
            results = []
            for number, result in enumerate(entry.tool_results):
                results.append(
                    (yield from self._result(self._ids[place, RecordedToolResult, number], result))
                )
            usage = usage_in([entry.llm_usage])
            measured = None
            if entry.conversation_turn_metrics is not None:
                seconds_of = {
                    name: ElapsedTime(elapsed_time=seconds)
                    for name, seconds in entry.metrics.items()
                }
                measured = ConversationTurnMetrics(metrics=seconds_of)
            yield TranscriptTurn(
                role="agent" if entry.role == "agent" else "user",
                agent_metadata=self._agent(entry.agent_metadata) if entry.role == "agent" else None,
                tool_calls=tuple(calls),
                tool_results=tuple(results),
                time_in_call_secs=after_secs,
                conversation_turn_metrics=measured,
                llm_usage=llm_usage(usage) if usage else None,
                interrupted=bool(entry.interrupted),
                source_medium=_text_or_none(entry.source_medium),
                **redacted,
            )

    def _least_bytes(self) -> int:
        """Least size of the transcript, if redaction shortens nothing."""
        size = 0
        for entry in self._entries:
            size += LEAST_ENTRY_BYTES + len(entry.message or "") + len(entry.original_message or "")
            values = [call.params_as_json or "" for call in entry.tool_calls]
            values += [result.result_value for result in entry.tool_results]
            lengths = map(length, values)
            size += sum(
                LEAST_USE_BYTES + (chars if chars <= self._texts.longest_value else 0)
                for chars in lengths
            )
        return size

    def _agent(self, metadata: object) -> AgentMetadata:
        known = metadata if isinstance(metadata, Mapping) else {}
        return AgentMetadata(
            agent_id=_text_or_none(known.get("agent_id")) or self._agent_id,
            workflow_node_id=_text_or_none(known.get("workflow_node_id")),
        )

    def _call(self, identity: str, call: RecordedToolCall) -> Generator[None, None, ToolCall]:
        parameters = self._texts.parameters(call.params_as_json, length(call.params_as_json))
        yield
        kind = call.type or CLIENT
        known = call.tool_details if isinstance(call.tool_details, dict) else None
        details: ToolDetails | dict[str, Any] | None = None
        if kind != CLIENT:
            if known is not None:
                details = self._texts.value(_without_headers(known))
                yield
        else:
            of_client = known and known.get("parameters")
            details = ToolDetails(parameters=parameters)
            if isinstance(of_client, str):
                details = ToolDetails(
                    parameters=self._texts.parameters(of_client, length(of_client))
                )
                yield
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

    def _result(
        self, identity: str, result: RecordedToolResult
    ) -> Generator[None, None, TranscriptToolResult]:
        value = self._texts.answer(result.result_value, length(result.result_value))
        yield
        updates = None
        if isinstance(result.dynamic_variable_updates, list):
            updates = self._texts.value(result.dynamic_variable_updates)
            yield
        return TranscriptToolResult(
            request_id=identity,
            tool_name=result.tool_name,
            result_value=value,
            is_error=bool(result.is_error),
            tool_has_been_called=result.tool_has_been_called is not False,
            tool_latency_secs=result.tool_latency_secs or 0.0,
            dynamic_variable_updates=tuple(updates or ()),
            type=result.type or CLIENT,
        )


def _ids_of(
    entries: Sequence[RecordEntry], conversation_id: str
) -> Iterator[tuple[tuple[int, type, int], str]]:
    """Ids of tool uses, by entry, kind and place in it. Without ids of the record's own, the first
    result of a tool belongs to its first call, and so on.
    """
    seen: Counter[tuple[type, str]] = Counter()
    for place, entry in enumerate(entries):
        calls: Sequence[RecordedToolCall | RecordedToolResult] = entry.tool_calls
        for tools in (calls, entry.tool_results):
            for number, tool in enumerate(tools):
                own = tool.request_id
                if own is None:
                    seen[type(tool), tool.tool_name] += 1
                    own = request_id(
                        f"{conversation_id}\x00{tool.tool_name}",
                        seen[type(tool), tool.tool_name],
                        0,
                    )
                yield (place, type(tool), number), own


def _without_headers(details: Mapping[str, Any]) -> dict[str, Any]:
    """The details without the values of headers, also of a webhook inside of them."""
    shown: dict[str, Any] = {}
    for name, value in details.items():
        if name == "headers" and isinstance(value, dict):
            shown[name] = dict.fromkeys(value, HIDDEN_HEADER)
        else:
            shown[name] = (
                _without_headers(value)
                if name == "webhook_details" and isinstance(value, dict)
                else value
            )
    return shown


def _text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) else None
