"""The bootstrap interval: how far a mean, or the difference of two, may be from chance alone. Pure."""

import math
import random
from collections.abc import Sequence
from typing import Final

SEED: Final = 1
"""The same values have the same interval, whenever and wherever it is computed."""
MOST_RESAMPLES: Final = 2_000
LEAST_RESAMPLES: Final = 200
MOST_DRAWS: Final = 5_000_000
"""Draws for one interval: some seconds. With many values fewer resamples are as good."""
_TAIL: Final = 0.025


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
