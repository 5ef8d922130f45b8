"""What the agent tells of a call beside its turns: what its models used and cost, and notes of its
framework.
"""

from bisect import bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from math import fsum, inf
from typing import Final

from msgspec import convert
from msgspec.structs import replace

from consumers.engine.limits import MILLION, SECONDS_IN_MINUTE, Price
from consumers.engine.sources.facts import NoteFact, Used
from consumers.engine.turns.bot import PRICE_DIGITS, TokenUsage
from consumers.engine.turns.heard import HeardTurn
from schemas import rows
from schemas.closed_sets import UnscoredReason
from schemas.scores.latency_stages import ServiceKind
from schemas.units import MS_PER_SECOND

SECOND_DIGITS: Final = 3
"""Decimals of seconds of sound."""


def uses_of(
    used: Sequence[Used], recorded: Iterable[Mapping[str, TokenUsage]], prices: Mapping[str, Price]
) -> tuple[rows.ServiceUse, ...]:
    """The uses of a call, by kind and model.

    Args:
        used: As sources report it. Of each kind of service the best source counts.
        recorded: By turn, the tokens by model in the record of an ElevenLabs agent, with their
            prices. It counts before the reports.
        prices: Prices by model. They count before those of a record.
    """
    sums: dict[tuple[ServiceKind, str, str], tuple[TokenUsage, float]] = {}
    for by_model in recorded:
        for model, usage in by_model.items():
            _add(sums, (ServiceKind.LLM, "", model), usage, 0.0)
    has_record = bool(sums)
    best = {
        kind: min((each.rank for each in used if each.kind is kind), default=0)
        for kind in ServiceKind
    }
    for each in used:
        if each.rank == best[each.kind] and not (has_record and each.kind is ServiceKind.LLM):
            _add(sums, (each.kind, each.provider, each.model), each.usage, each.amount)
    return tuple(_use(*key, *amounts, prices.get(key[2])) for key, amounts in sorted(sums.items()))


def cost_of(uses: Sequence[rows.ServiceUse]) -> rows.Value | None:
    """The cost of all uses; None without a use."""
    costs = [use.cost for use in uses]
    if not costs:
        return None
    known = [cost for cost in costs if cost is not None]
    if len(known) < len(costs):
        return rows.Unscored(UnscoredReason.NO_PRICE)
    return round(fsum(known), PRICE_DIGITS)


def _add(
    sums: dict[tuple[ServiceKind, str, str], tuple[TokenUsage, float]],
    key: tuple[ServiceKind, str, str],
    usage: TokenUsage,
    amount: float,
) -> None:
    before, so_far = sums.get(key, (TokenUsage(), 0.0))
    sums[key] = before.plus(usage), so_far + amount


def _use(
    kind: ServiceKind,
    provider: str,
    model: str,
    usage: TokenUsage,
    amount: float,
    price: Price | None,
) -> rows.ServiceUse:
    use = rows.ServiceUse(kind, provider or None, model or None)
    if kind is ServiceKind.TTS:
        cost = None if price is None else _sum([(amount, price.characters)], MILLION)
        return replace(use, characters=int(amount), cost=cost)
    if kind is not ServiceKind.LLM:
        cost = None if price is None else _sum([(amount, price.audio_minute)], SECONDS_IN_MINUTE)
        return replace(use, audio_seconds=round(amount, SECOND_DIGITS), cost=cost)
    counts, its_own = usage[:4], usage[4:]
    if price is not None:
        cached, cache_write = (
            _first(price.cached, price.input),
            _first(price.cache_write, price.input),
        )
        cost = _sum(
            zip(counts, (price.input, cached, cache_write, price.output), strict=True), MILLION
        )
    else:
        cost = round(fsum(its_own), PRICE_DIGITS) if any(its_own) else None
    return rows.ServiceUse(kind, provider or None, model or None, *counts, cost=cost)


def _first(price: float | None, otherwise: float | None) -> float | None:
    return otherwise if price is None else price


def _sum(priced: Iterable[tuple[float, float | None]], unit: int) -> float | None:
    """The cost of amounts, each with the price of a unit of it; None if one has no price."""
    costs = [None if price is None else count * price / unit for count, price in priced if count]
    known = [cost for cost in costs if cost is not None]
    return round(fsum(known), PRICE_DIGITS) if len(known) == len(costs) else None


# Notes: events of a framework that no sound shows. They are few, and kept in the order of time.

MAX_NOTES: Final = 100
"""Notes of one call, the earliest ones. A call has some; more is a loop."""


class Notes:
    """The notes of one call. Which are kept does not depend on the order in which they arrive."""

    def __init__(self) -> None:
        self.is_full = False
        self._notes: list[NoteFact] = []

    def add(self, note: NoteFact) -> None:
        """Keeps a note, unless it came before."""
        if note in self._notes:
            return
        insort(self._notes, note)
        if len(self._notes) > MAX_NOTES:
            self.is_full = True
            self._notes.pop()

    def in_row(self, turns: Iterable[HeardTurn]) -> tuple[rows.Note, ...]:
        """The notes as the row of the call has them; its turns say in which one each was."""
        begun: list[tuple[float, float]] = sorted(
            (turn.begin_s * MS_PER_SECOND, turn.number)
            for turn in turns
            if turn.begin_s is not None
        )
        return tuple(
            convert(
                {
                    "what": note.what,
                    "at_ms": note.at_ms,
                    "turn": _turn_at(begun, note.at_ms),
                    **dict(note.more),
                },
                rows.Note,
            )
            for note in self._notes
        )


def _turn_at(begun: Sequence[tuple[float, float]], at_ms: int) -> int | None:
    place = bisect_right(begun, (at_ms, inf))
    return int(begun[place - 1][1]) if place else None
