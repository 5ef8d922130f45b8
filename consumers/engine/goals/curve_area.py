"""The area under a progress curve, equal to agent-inspect's to the last bit: numpy's trapezoid rule rounded to 4 places.

At rounding ties the order of summation decides the last digit, so this adds in numpy's order, without numpy.
"""

from collections.abc import Sequence

PLACES = 4
"""Decimal places of every progress, AUC and success value of agent-inspect."""

_BLOCK = 128  # numpy sums up to so many terms with eight accumulators, and halves longer sums
_LANES = 8


def sum_in_numpy_order(terms: Sequence[float]) -> float:
    """The sum in the order of numpy's pairwise summation, equal to the last bit.

    Added from left to right it would be 0.9999999999999999:

    >>> sum_in_numpy_order([0.1] * 10)
    1.0
    """
    count = len(terms)
    if count > _BLOCK:
        half = count // 2
        half -= half % _LANES
        return sum_in_numpy_order(terms[:half]) + sum_in_numpy_order(terms[half:])
    if count < _LANES:
        return _added(0.0, terms)
    whole = count - count % _LANES
    lanes = [_added(terms[lane], terms[lane + _LANES : whole : _LANES]) for lane in range(_LANES)]
    quarters = [lanes[lane] + lanes[lane + 1] for lane in range(0, _LANES, 2)]
    return _added((quarters[0] + quarters[1]) + (quarters[2] + quarters[3]), terms[whole:])


def area_under(heights: Sequence[float]) -> float:
    """Area under the polygon through `heights` at equal distances from 0 to 1; not rounded.

    Raises:
        ValueError: There are fewer than two heights.
    """
    if len(heights) < 2:
        raise ValueError(f"The area under a curve needs two points or more; there were {len(heights)}.")
    last = len(heights) - 1
    places = [index / last for index in range(last + 1)]
    return sum_in_numpy_order([(places[i + 1] - places[i]) * (heights[i + 1] + heights[i]) / 2.0 for i in range(last)])


def _added(start: float, terms: Sequence[float]) -> float:
    # Not sum(): from Python 3.12 on it corrects for lost bits, and numpy does not.
    total = start
    for term in terms:
        total += term
    return total
