"""Puts the measured values of a turn on the transcript entry where ElevenLabs has them."""

from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Final

from consumers.engine.turns.bot.usage import TokenUsage, TurnMetrics
from schemas.transcript import ConversationTurnMetrics, ElapsedTime, LlmUsage, ModelUsage, TokenCount

_OF_THE_USER: Final = "convai_asr_"
_OF_TOOL_CALLS: Final = "convai_llm_tool_request_generation_latency"
_NO_METRICS: Final = ConversationTurnMetrics()
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

    def is_written(self, turn: int, kind: EntryKind) -> None:
        """Notes that an entry of this kind is written: no later entry gets its numbers."""
        self._written.add((turn, kind))

    def metrics(self, turn: int, kind: EntryKind) -> ConversationTurnMetrics:
        """Stage latencies for this entry."""
        here = {
            name: ElapsedTime(elapsed_time=seconds)
            for name, seconds in self._of(turn).seconds.items()
            if self._place(turn, name) is kind
        }
        return ConversationTurnMetrics(metrics=here) if here else _NO_METRICS

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
        """The entry of the turn for a number of this name; None when there is none, or it is already written."""
        wanted: tuple[EntryKind, ...] = (EntryKind.AGENT, EntryKind.TOOL_CALL)
        if name.startswith(_OF_THE_USER):
            wanted = (EntryKind.USER,)
        elif name == _OF_TOOL_CALLS:
            wanted = (EntryKind.TOOL_CALL, EntryKind.AGENT)
        place = next(((turn, kind) for kind in wanted if (turn, kind) in self._places), None)
        return None if place is None or place in self._written else place[1]


def llm_usage(usage: Mapping[str, TokenUsage]) -> LlmUsage:
    """Tokens by model in the format of a transcript."""
    return LlmUsage(model_usage={model or "unknown": _model_usage(used) for model, used in usage.items()})


def _model_usage(used: TokenUsage) -> ModelUsage:
    return ModelUsage(
        input=_count(used.input_tokens, used.input_price),
        input_cache_read=_count(used.cache_read_tokens, used.cache_read_price),
        input_cache_write=_count(used.cache_write_tokens, used.cache_write_price),
        output_total=_count(used.output_tokens, used.output_price),
    )


def _count(tokens: int, price: float) -> TokenCount:
    return TokenCount(tokens=tokens, price=price) if tokens or price else _NO_TOKENS
