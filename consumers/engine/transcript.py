"""A call's transcript at its close, in ElevenLabs' format: who said what when, which tools were used, how long stages took.

Who says what is decided in `heard_turns`: of the caller what the agent understood, of the agent what was spoken. Each side of
a turn is one entry. The calls of tools are an entry of the agent's without a message, and so are their results, as on
ElevenLabs' platform; neighbours of one turn share one. Entries stand in the order of time.
"""

from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, NamedTuple, Protocol

from pydantic_core import from_json, to_json

from consumers.engine.effects import Count, Effect
from consumers.engine.heard_turns import HeardTurn, cut_off_turns, heard_turns
from consumers.engine.live_side import LiveSide
from consumers.engine.tool_uses import PairedUse, ToolUses
from consumers.engine.turn_metrics import TokenUsage, TurnMetrics
from schemas.scores import ToolOutcome
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
    ToolResult,
    TranscriptTurn,
    request_id,
)

MAX_TRANSCRIPT_BYTES: Final = 1_000_000
"""Largest transcript that is written: brokers and clients take a megabyte, and two hours of talk have a third of that."""
MAX_TOOL_TEXT_CHARS: Final = 1_000
"""What a tool was given or answered is left out beyond this length, in a transcript that would be too large with it."""
MS_PER_SECOND: Final = 1_000

_OF_THE_USER: Final = "convai_asr_"
_OF_TOOL_CALLS: Final = "convai_llm_tool_request_generation_latency"
_NO_METRICS: Final = ConversationTurnMetrics()
_UNMEASURED: Final = TurnMetrics({}, {})

MetricsOf = Callable[[int], TurnMetrics]


class Redacts(Protocol):
    """Takes out of texts what must not be stored."""

    def redact(self, text: str) -> str:
        """The text without it."""

    def redact_value(self, value: Any) -> Any:
        """The JSON value without it, in any of its texts."""


def transcript_of(
    conversation_id: str,
    live: LiveSide,
    agent: str,
    redactor: Redacts | None = None,
    metrics_of: MetricsOf | None = None,
) -> tuple[TranscriptTurn, ...]:
    """The transcript of a call as it is known now.

    Args:
        conversation_id: Names the uses of tools, with their turn and their number in it.
        live: The call.
        agent: The agent's name, which stands for its id where no record of the conversation has one.
        redactor: Goes over every text, and every value of a tool; None leaves them as they are.
        metrics_of: Says what was measured of a turn; None where nothing was.

    Returns:
        The entries. A call in which nothing was said, heard or used has none.
    """
    return _Transcript(conversation_id, live, agent, redactor, metrics_of).turns()


def transcript_bytes(turns: Sequence[TranscriptTurn]) -> bytes | None:
    """The JSON array, in UTF-8; long values of tools are left out where it would be too large with them.

    Returns:
        None when it is too large without them too.
    """
    value = TRANSCRIPT.dump_json(tuple(turns))
    if len(value) > MAX_TRANSCRIPT_BYTES:
        value = TRANSCRIPT.dump_json(tuple(map(_without_long_values, turns)))
    return value if len(value) <= MAX_TRANSCRIPT_BYTES else None


def closing_transcript(
    conversation_id: str,
    live: LiveSide,
    agent: str,
    out: list[Effect],
    redactor: Redacts | None = None,
    metrics_of: MetricsOf | None = None,
) -> bytes | None:
    """What is written of a call that closes; None when it is too large, which is counted in `out`. Arguments as `transcript_of`."""
    value = transcript_bytes(transcript_of(conversation_id, live, agent, redactor, metrics_of))
    if value is None:
        out.append(Count("callgauge_limits_hit_total", ("transcript",)))
    return value


class _Kind(IntEnum):
    USER = 0
    TOOL_CALL = 1
    TOOL_RESULT = 2
    AGENT = 3


class _Entry(NamedTuple):
    at_ms: int
    turn: int
    kind: _Kind
    use: PairedUse | None


class _Transcript:
    def __init__(
        self,
        conversation_id: str,
        live: LiveSide,
        agent: str,
        redactor: Redacts | None,
        metrics_of: MetricsOf | None,
    ) -> None:
        self._conversation_id = conversation_id
        known_id = None if live.record is None else live.record.agent_id
        self._metadata = AgentMetadata(agent_id=known_id or agent)
        self._redactor = redactor
        self._metrics_of = metrics_of
        self._measured: dict[int, TurnMetrics] = {}
        self._turns = heard_turns(live.machine, live.history)
        self._cut_off = cut_off_turns(self._turns)
        # Where replies are known as they were spoken, one that is only in the log was not, unless something was heard.
        self._knows_speech = any(turn.spoken for turn in self._turns.values())
        self._first_ms = live.history.first_time_ms()
        uses = ToolUses()
        uses.follow(live.machine.last_tool)
        self._uses: dict[int, list[PairedUse]] = {}
        for use in uses:
            self._uses.setdefault(use.turn, []).append(use)
        self._places: set[tuple[int, _Kind]] = set()
        self._told: set[tuple[int, _Kind]] = set()

    def turns(self) -> tuple[TranscriptTurn, ...]:
        entries = sorted(self._entries(), key=attrgetter("at_ms"))
        if not entries:
            return ()
        self._places = {(entry.turn, entry.kind) for entry in entries}
        start_ms = entries[0].at_ms if self._first_ms is None else min(self._first_ms, entries[0].at_ms)
        turns = []
        for (turn, kind), group in groupby(entries, key=attrgetter("turn", "kind")):
            at_ms, *_ = first = next(group)
            after_secs = (at_ms - start_ms) // MS_PER_SECOND
            if kind is _Kind.USER:
                turns.append(self._user(turn, after_secs))
            elif kind is _Kind.AGENT:
                turns.append(self._agent(turn, after_secs))
            else:
                uses = [entry.use for entry in (first, *group) if entry.use is not None]
                turns.append((self._calls if kind is _Kind.TOOL_CALL else self._results)(turn, uses, after_secs))
            self._told.add((turn, kind))
        return tuple(turns)

    def _entries(self) -> Iterator[_Entry]:
        """What was said, asked for and answered, turn by turn. What has no time of its own stands behind what was before it."""
        latest_ms = self._first_ms or 0
        for turn in sorted({*self._turns, *self._uses}):
            for own_ms, kind, use in self._of_turn(turn):
                at_ms = latest_ms if own_ms is None else own_ms
                latest_ms = max(latest_ms, at_ms)
                yield _Entry(at_ms, turn, kind, use)

    def _of_turn(self, number: int) -> Iterator[tuple[int | None, _Kind, PairedUse | None]]:
        turn = self._turns.get(number, HeardTurn())
        if turn.user or turn.user_starts:
            yield _at_ms(turn.user_starts, turn.user_ms), _Kind.USER, None
        for use in self._uses.get(number, ()):
            if use.called_at_ms is not None:
                yield use.called_at_ms, _Kind.TOOL_CALL, use
            if use.outcome is not None:
                answered_ms = None if use.called_at_ms is None else use.called_at_ms + (use.duration_ms or 0)
                yield answered_ms, _Kind.TOOL_RESULT, use
        if turn.spoken or turn.agent_spans or (turn.written and not self._knows_speech):
            yield _at_ms([start_s for start_s, _ in turn.agent_spans], turn.agent_ms), _Kind.AGENT, None

    def _user(self, turn: int, after_secs: int) -> TranscriptTurn:
        return TranscriptTurn(
            role="user",
            message=self._redacted(self._turns[turn].user),
            time_in_call_secs=after_secs,
            conversation_turn_metrics=self._metrics(turn, _Kind.USER),
            source_medium="audio",
        )

    def _agent(self, turn: int, after_secs: int) -> TranscriptTurn:
        said = self._turns[turn]
        is_cut_off = turn in self._cut_off
        # A log that has less than was spoken does not have the whole of it.
        has_original = is_cut_off and len(said.written) >= len(said.spoken) > 0
        return TranscriptTurn(
            role="agent",
            agent_metadata=self._metadata,
            message=self._redacted(said.spoken or said.written),
            time_in_call_secs=after_secs,
            conversation_turn_metrics=self._metrics(turn, _Kind.AGENT),
            llm_usage=self._usage(turn, _Kind.AGENT),
            interrupted=is_cut_off,
            original_message=self._redacted(said.written) if has_original else None,
        )

    def _calls(self, turn: int, uses: Sequence[PairedUse], after_secs: int) -> TranscriptTurn:
        return TranscriptTurn(
            role="agent",
            agent_metadata=self._metadata,
            tool_calls=tuple(map(self._call, uses)),
            time_in_call_secs=after_secs,
            conversation_turn_metrics=self._metrics(turn, _Kind.TOOL_CALL),
            llm_usage=self._usage(turn, _Kind.TOOL_CALL),
        )

    def _call(self, use: PairedUse) -> ToolCall:
        arguments = _parsed(use.arguments)
        parameters = self._json(arguments, use.arguments)
        return ToolCall(
            request_id=request_id(self._conversation_id, use.turn, use.index),
            tool_name=use.tool,
            params_as_json=parameters,
            tool_has_been_called=use.outcome is not None,
            tool_details=ToolDetails(parameters=parameters),
        )

    def _results(self, _turn: int, uses: Sequence[PairedUse], after_secs: int) -> TranscriptTurn:
        results = tuple(map(self._result, uses))
        return TranscriptTurn(
            role="agent", agent_metadata=self._metadata, tool_results=results, time_in_call_secs=after_secs
        )

    def _result(self, use: PairedUse) -> ToolResult:
        answer = _parsed(use.answer)
        return ToolResult(
            request_id=request_id(self._conversation_id, use.turn, use.index),
            tool_name=use.tool,
            result_value=(self._redacted(answer) or "") if isinstance(answer, str) else self._json(answer, use.answer),
            is_error=use.outcome is ToolOutcome.ERROR,
            tool_latency_secs=None if use.duration_ms is None else use.duration_ms / MS_PER_SECOND,
        )

    def _redacted(self, text: str) -> str | None:
        if not text:
            return None
        return text if self._redactor is None else self._redactor.redact(text)

    def _json(self, value: object, logged: object) -> str:
        """The value without what must not be stored, as JSON: value by value, so that it stays JSON.

        Args:
            value: The value.
            logged: The same as it stood in the log. Where that was text, and nothing had to go, it stays as it was.
        """
        redacted = value if self._redactor is None else self._redactor.redact_value(value)
        if isinstance(logged, str) and logged is not value and redacted == value:
            return logged
        return to_json(redacted, inf_nan_mode="null").decode()  # JSON has no word for infinity

    def _metrics(self, turn: int, kind: _Kind) -> ConversationTurnMetrics:
        here = {
            name: ElapsedTime(elapsed_time=seconds)
            for name, seconds in self._of(turn).seconds.items()
            if self._place(turn, name) is kind
        }
        return ConversationTurnMetrics(metrics=here) if here else _NO_METRICS

    def _usage(self, turn: int, kind: _Kind) -> LlmUsage | None:
        usage = self._of(turn).usage
        if not usage or self._place(turn) is not kind:
            return None
        return LlmUsage(model_usage={model or "unknown": _model_usage(used) for model, used in usage.items()})

    def _of(self, turn: int) -> TurnMetrics:
        if self._metrics_of is None:
            return _UNMEASURED
        measured = self._measured.get(turn)
        if measured is None:
            measured = self._measured[turn] = self._metrics_of(turn)
        return measured

    def _place(self, turn: int, name: str = "") -> _Kind | None:
        """The entry of the turn on which a number of this name stands; None when it is not there, or has been told."""
        wanted: tuple[_Kind, ...] = (_Kind.AGENT, _Kind.TOOL_CALL)
        if name.startswith(_OF_THE_USER):
            wanted = (_Kind.USER,)
        elif name == _OF_TOOL_CALLS:
            wanted = (_Kind.TOOL_CALL, _Kind.AGENT)
        place = next(((turn, kind) for kind in wanted if (turn, kind) in self._places), None)
        return None if place is None or place in self._told else place[1]


def _at_ms(starts_s: Sequence[float], logged_ms: int | None) -> int | None:
    return int(min(starts_s) * MS_PER_SECOND) if starts_s else logged_ms


def _model_usage(used: TokenUsage) -> ModelUsage:
    return ModelUsage(
        input=TokenCount(tokens=used.input_tokens, price=used.input_price),
        input_cache_read=TokenCount(tokens=used.cache_read_tokens, price=used.cache_read_price),
        input_cache_write=TokenCount(tokens=used.cache_write_tokens, price=used.cache_write_price),
        output_total=TokenCount(tokens=used.output_tokens, price=used.output_price),
    )


def _parsed(value: object) -> object:
    """A tool's value; where it is text that holds an object or a list, that one, so that what is in it can be told apart."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return from_json(value, allow_inf_nan=False)
        except ValueError:
            return value
    return value


def _without_long_values(turn: TranscriptTurn) -> TranscriptTurn:
    calls = tuple(
        call.model_copy(update={"params_as_json": short, "tool_details": ToolDetails(parameters=short)})
        for call in turn.tool_calls
        for short in (_shortened(call.params_as_json),)
    )
    results = tuple(
        result.model_copy(update={"result_value": _shortened(result.result_value)}) for result in turn.tool_results
    )
    return turn.model_copy(update={"tool_calls": calls, "tool_results": results})


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_TOOL_TEXT_CHARS else f'{{"left_out_characters":{len(text)}}}'
