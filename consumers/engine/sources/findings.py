"""The measurements that one event reports: latencies of stages, and what the models used."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, TypeGuard

from consumers.engine.sources.facts import Measured, Used
from consumers.engine.turns.bot import TokenUsage
from schemas.closed_sets import InputSource
from schemas.scores.latency_stages import MAX_STAGE_SECONDS, ServiceKind, Stage, StageSource
from schemas.wire import MAX_NAME_CHARS, MAX_TIME_MS

# Sources fill it by the tables of `schemas.scores.latency_stages`, and read leniently: a value that
# is no number, or not positive, or has an unknown name is left out. A zero is a service's first
# report, before it did anything. Every other omission is named in `Findings.unknown`.

MAX_ITEMS: Final = 64
"""Entries of one list in one event that are read. A breakdown has about a dozen."""
MAX_TOKENS: Final = 10**9
"""Largest plausible number of tokens; a larger one is a fault."""

_NO_TOKENS: Final = TokenUsage()


class EventFindings:
    """The values in one event of `source`. `unknown` has the names and values that are left out."""

    __slots__ = ("measured", "source", "unknown", "used")

    def __init__(self, source: InputSource) -> None:
        self.source = source
        self.measured: list[Measured] = []
        self.used: list[Used] = []
        self.unknown: list[str] = []

    def took(
        self,
        key: str,
        stage: Stage | None,
        source: StageSource,
        seconds: Any,
        *,
        begin_s: float | None = None,
        end_s: float = 0.0,
        rank: int = 0,
        model: Any = None,
    ) -> None:
        """Adds a number under `key`, with its start or its end."""
        if seconds == 0 and not isinstance(seconds, bool):
            return
        if stage is None or not is_number(seconds) or not 0 < seconds <= MAX_STAGE_SECONDS:
            self.unknown.append(key)
            return
        begun_s = end_s - seconds if begin_s is None else begin_s
        self.measured.append(Measured(begun_s, stage, source, float(seconds), rank, text_in(model)))

    def used_tokens(
        self, key: str, at_s: float, rank: int, model: Any, counts: Any, provider: str = ""
    ) -> None:
        """Adds counts of tokens under `key`."""
        usage = _token_usage(counts)
        if usage is None:
            self.unknown.append(key)
        elif any(usage):
            self.used.append(Used(at_s, rank, text_in(model), usage, ServiceKind.LLM, provider))

    def used_amount(
        self,
        key: str,
        at_s: float,
        rank: int,
        model: Any,
        kind: ServiceKind,
        amount: Any,
        provider: str,
    ) -> None:
        """Adds characters that were spoken, or seconds of sound that were transcribed."""
        if not is_number(amount) or not 0 <= amount <= MAX_TOKENS:
            self.unknown.append(key)
        elif amount:
            self.used.append(
                Used(at_s, rank, text_in(model), _NO_TOKENS, kind, provider, float(amount))
            )


def is_number(value: object) -> TypeGuard[float]:
    """Whether arithmetic on it is safe: JSON has integers that are no float, and non-finite numbers
    compare with nothing.
    """
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < MAX_TIME_MS
    )


def moment_in(value: Any, otherwise_s: float) -> float:
    """A time in epoch seconds; the other one if it is none."""
    return float(value) if is_number(value) else otherwise_s


def text_in(value: object) -> str:
    """A name; empty if it is none."""
    return _shared(value[:MAX_NAME_CHARS]) if isinstance(value, str) else ""


@lru_cache(maxsize=1_024)
def _shared(name: str) -> str:
    """The same text, which all calls share: each has the names of its models some ten times a
    turn.
    """
    return name


def name_in(value: object) -> str:
    """A name for messages; for anything that is no name only its type, because it may be large."""
    return value[:MAX_NAME_CHARS] if isinstance(value, str) else type(value).__name__


def items_in(value: object) -> list[Mapping[str, Any]]:
    """The objects of a list, at most `MAX_ITEMS`; none for anything else."""
    return (
        [item for item in value[:MAX_ITEMS] if isinstance(item, Mapping)]
        if isinstance(value, list)
        else []
    )


def _token_usage(counts: Any) -> TokenUsage | None:
    """Tokens by kind. Services count input with or without the cache; the total has all of it, so
    the input follows from it.
    """
    if not isinstance(counts, Mapping):
        return None

    def count(name: str) -> int:
        value = counts.get(name)
        return int(value) if is_number(value) and 0 <= value <= MAX_TOKENS else 0

    read, written = count("cache_read_input_tokens"), count("cache_creation_input_tokens")
    output, total = count("completion_tokens"), count("total_tokens")
    sent = total - output - read - written if total else count("prompt_tokens")
    return TokenUsage(max(0, sent), read, written, output)
