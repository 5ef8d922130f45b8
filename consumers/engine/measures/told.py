"""What the agent tells of a call beside its turns: what its models used and cost, and notes of its framework."""

from bisect import bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from math import fsum, inf
from typing import Any, Final, NamedTuple

from consumers.engine.limits import MILLION, SECONDS_IN_MINUTE, Price
from consumers.engine.sources.facts import Note, Used
from consumers.engine.turns.bot import PRICE_DIGITS, TokenUsage
from consumers.engine.turns.heard import HeardTurn
from schemas.closed_sets import UnscoredReason
from schemas.scores.latency_stages import ServiceKind
from schemas.scores.records import Result, Scored, Unscored
from schemas.units import MS_PER_SECOND

SECOND_DIGITS: Final = 3
"""Decimals of seconds of sound."""


class Use(NamedTuple):
    """What one model used in the call: an amount by its name in `ServiceUse`, and its cost if it is known."""

    kind: ServiceKind
    provider: str
    model: str
    amounts: tuple[tuple[str, float], ...]
    cost: float | None

    def fields(self) -> dict[str, Any]:
        """The fields of a `ServiceUse`."""
        named = {"provider": self.provider or None, "model": self.model or None, "cost": self.cost}
        return {"kind": self.kind, **named, **dict(self.amounts)}


def uses_of(
    used: Sequence[Used], recorded: Iterable[Mapping[str, TokenUsage]], prices: Mapping[str, Price]
) -> list[Use]:
    """The uses of a call, by kind and model.

    Args:
        used: As sources report it. Of each kind of service the best source counts.
        recorded: By turn, the tokens by model in the record of an ElevenLabs agent, with their prices. It counts before the reports.
        prices: Prices by model. They count before those of a record.
    """
    sums: dict[tuple[ServiceKind, str, str], tuple[TokenUsage, float]] = {}
    for by_model in recorded:
        for model, usage in by_model.items():
            _add(sums, (ServiceKind.LLM, "", model), usage, 0.0)
    has_record = bool(sums)
    best = {kind: min((each.rank for each in used if each.kind is kind), default=0) for kind in ServiceKind}
    for each in used:
        if each.rank == best[each.kind] and not (has_record and each.kind is ServiceKind.LLM):
            _add(sums, (each.kind, each.provider, each.model), each.usage, each.amount)
    return [_use(*key, *amounts, prices.get(key[2])) for key, amounts in sorted(sums.items())]


def cost_of(uses: Sequence[Use]) -> Result | None:
    """The cost of all uses; None without a use."""
    costs = [use.cost for use in uses]
    if not costs:
        return None
    known = [cost for cost in costs if cost is not None]
    if len(known) < len(costs):
        return Unscored(reason=UnscoredReason.NO_PRICE)
    return Scored(value=round(fsum(known), PRICE_DIGITS))


def _add(
    sums: dict[tuple[ServiceKind, str, str], tuple[TokenUsage, float]],
    key: tuple[ServiceKind, str, str],
    usage: TokenUsage,
    amount: float,
) -> None:
    before, so_far = sums.get(key, (TokenUsage(), 0.0))
    sums[key] = before.plus(usage), so_far + amount


def _use(kind: ServiceKind, provider: str, model: str, usage: TokenUsage, amount: float, price: Price | None) -> Use:
    if kind is ServiceKind.LLM:
        counts = usage[:4]
        amounts = dict(
            zip(
                ("input_tokens", "cached_tokens", "cache_write_tokens", "output_tokens"),
                map(float, counts),
                strict=True,
            )
        )
        its_own = usage[4:]
        if price is not None:
            by_kind = (
                price.input,
                _first(price.cached, price.input),
                _first(price.cache_write, price.input),
                price.output,
            )
            cost = _sum(zip(counts, by_kind, strict=True), MILLION)
        else:
            cost = round(fsum(its_own), PRICE_DIGITS) if any(its_own) else None
    elif kind is ServiceKind.TTS:
        amounts = {"characters": amount}
        cost = None if price is None else _sum([(amount, price.characters)], MILLION)
    else:
        amounts = {"audio_seconds": round(amount, SECOND_DIGITS)}
        cost = None if price is None else _sum([(amount, price.audio_minute)], SECONDS_IN_MINUTE)
    return Use(kind, provider, model, tuple((name, count) for name, count in amounts.items() if count), cost)


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
        self._notes: list[Note] = []

    def add(self, note: Note) -> None:
        """Keeps a note, unless it came before."""
        if note in self._notes:
            return
        insort(self._notes, note)
        if len(self._notes) > MAX_NOTES:
            self.is_full = True
            self._notes.pop()

    def fields(self, turns: Iterable[HeardTurn]) -> list[dict[str, Any]]:
        """The fields of each `FrameworkNote`; the turns of the call say in which one it was."""
        begun: list[tuple[float, float]] = sorted(
            (turn.begin_s * MS_PER_SECOND, turn.number) for turn in turns if turn.begin_s is not None
        )
        return [
            {"what": note.what, "at_ms": note.at_ms, "turn": _turn_at(begun, note.at_ms), **dict(note.more)}
            for note in self._notes
        ]


def _turn_at(begun: Sequence[tuple[float, float]], at_ms: int) -> int | None:
    place = bisect_right(begun, (at_ms, inf))
    return int(begun[place - 1][1]) if place else None
