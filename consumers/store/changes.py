"""Compares the calls of two lots, measure by measure: how far apart their means are, and whether that is more than chance. Pure."""

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from schemas.columns import CALL_COLUMNS, Column

_NO_MEASURES: Final = frozenset({"revision", "partition", "first_place", "last_place", "turn", "through_turn"})
MEASURES: Final[Mapping[str, Column]] = {
    column.name: column
    for column in CALL_COLUMNS
    if column.kind != "text"
    and column.name not in _NO_MEASURES
    and not column.name.endswith(("_turn", ".turn", "known_ms", "last_ms", "ed_ms", "an_ms"))
}
"""Numbers of a call of which a mean says something: no places, no moments, no numbers of turns."""
SEED: Final = 1
"""The same values have the same interval, whenever and wherever it is computed."""
MOST_RESAMPLES: Final = 2_000
LEAST_RESAMPLES: Final = 200
MOST_DRAWS: Final = 5_000_000
"""Draws for one interval: some seconds. With many values fewer resamples are as good."""
_TAIL: Final = 0.025
MOST_DRAWS_OF_ALL: Final = 4_000_000
"""Draws for all intervals of one comparison: a second or two."""
LEAST_DRAWS: Final = 20_000
"""Draws for one of them."""


class Change(NamedTuple):
    """One measure of two lots of calls.

    Attributes:
        measure: Name of its column.
        before: Its mean over the calls of the first lot in which it is known; None without any.
        after: The same of the second.
        calls_before: Number of these calls.
        calls_after: The same of the second.
        low: Lower end of the 95 % bootstrap interval of the change; None with fewer than two calls in a lot.
        high: Its upper end.
        is_paired: Whether calls are resampled with both of their values: each value has a partner in the other lot.
    """

    measure: str
    before: float | None
    after: float | None
    calls_before: int
    calls_after: int
    low: float | None
    high: float | None
    is_paired: bool = False

    @property
    def change(self) -> float | None:
        """How much higher it is in the second lot; None if it is unknown in one of them."""
        return None if self.before is None or self.after is None else self.after - self.before

    @property
    def is_more_than_chance(self) -> bool | None:
        """Whether the interval of the change is on one side of 0; None without an interval."""
        return None if self.low is None or self.high is None else self.low > 0 or self.high < 0


def change_of(
    measure: str,
    before: Sequence[float],
    after: Sequence[float],
    pairs: Sequence[tuple[float, float]] = (),
    most_draws: int = MOST_DRAWS,
) -> Change:
    """Compares the known values of one measure.

    Args:
        measure: Its name.
        before: Those of the first lot.
        after: Those of the second.
        pairs: Both values of the calls that are in both lots.
        most_draws: About how many values are drawn for the interval.
    """
    is_paired = len(pairs) == len(before) == len(after)
    lots = [[now - then for then, now in pairs]] if is_paired else [before, after]
    mean, mean_after = (sum(lot) / len(lot) if lot else None for lot in (before, after))
    low = high = None
    if min(map(len, lots)) > 1:
        low, high = interval(lots, most_draws)
    return Change(measure, mean, mean_after, len(before), len(after), low, high, is_paired)


def draws_of_one(intervals: int) -> int:
    """How many values may be drawn for one of so many intervals."""
    return max(LEAST_DRAWS, MOST_DRAWS_OF_ALL // max(1, intervals))


def changes_json(changes: Iterable[Change]) -> dict[str, Mapping[str, float | bool | None]]:
    """The same measures as plain values; an unknown value is null."""
    return {each.measure: _plain(each) for each in changes if each.before is not None or each.after is not None}


def _plain(each: Change) -> Mapping[str, Any]:
    known = each._asdict()
    del known["measure"]
    return known | {"change": each.change, "is_more_than_chance": each.is_more_than_chance}


def remark_on_chance(changes: Iterable[Change]) -> str | None:
    """What a reader of many intervals must know; None without one."""
    judged = sum(each.is_more_than_chance is not None for each in changes)
    if not judged:
        return None
    by_chance = round(judged * 0.05)
    return f"{judged} changes have an interval. If nothing had changed, about {by_chance} would be called more than chance."


# The bootstrap interval: how far a mean, or the difference of two, may be from chance alone.


def interval(lots: Sequence[Sequence[float]], most_draws: int = MOST_DRAWS) -> tuple[float, float]:
    """Returns the 95 % interval of the last lot's mean less the first's, or of the mean of the only lot.

    Where the fewest resamples of all values are more draws than allowed, each resample has fewer values, and its distance from the mean is
    scaled by the root of their share: the bootstrap of m out of n.

    Args:
        lots: One or two lots, each with a value or more.
        most_draws: About how many values are drawn in all.

    Example:
        >>> low, high = interval([[0.0, 1.0] * 50, [3.0, 4.0] * 50])
        >>> 2.8 < low < 3 < high < 3.2
        True
    """
    rng = random.Random(SEED)  # noqa: S311 - nothing is secret
    size = sum(map(len, lots))
    resamples = max(LEAST_RESAMPLES, min(MOST_RESAMPLES, most_draws // size))
    share = min(1.0, most_draws / (resamples * size))
    means = [sum(lot) / len(lot) for lot in lots]
    found = []
    for _ in range(resamples):
        resampled = [_mean(rng, lot, mean, share) for lot, mean in zip(lots, means, strict=True)]
        found.append(resampled[-1] - (resampled[0] if len(resampled) > 1 else 0.0))
    found.sort()
    cut = round(resamples * _TAIL)
    return found[cut], found[-cut - 1]


def _mean(rng: random.Random, lot: Sequence[float], mean: float, share: float) -> float:
    drawn = math.ceil(len(lot) * share)
    resampled = sum(rng.choices(lot, k=drawn)) / drawn
    return resampled if drawn == len(lot) else mean + (resampled - mean) * math.sqrt(drawn / len(lot))
