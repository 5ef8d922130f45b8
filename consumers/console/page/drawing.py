"""Axes of drawings: positions in percent of the width, and round tick values. Pure.

Drawings are placed in percent and lettered in pixels, so they fit every width and their text never
shrinks.
"""

import math
from collections.abc import Iterable
from typing import Final, NamedTuple

from schemas.units import MS_PER_SECOND

_TIME_STEPS_S: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 14_400)
_ROUND_STEPS: Final = (1, 2, 5, 10)


class Scale(NamedTuple):
    """A scale from `start` at 0 % to `end` at 100 %; values outside are drawn at the border."""

    start: float
    end: float

    def place(self, value: float) -> float:
        """Percent of the width.

        Example:
            >>> Scale(0, 4).place(1), Scale(0, 4).place(9), Scale(3, 3).place(3)
            (25.0, 100.0, 0.0)
        """
        if self.end <= self.start:
            return 0.0
        return min(100.0, max(0.0, 100 * (value - self.start) / (self.end - self.start)))

    def at(self, value: float) -> str:
        """The same as an attribute of SVG.

        Example:
            >>> Scale(0, 3).at(1)
            '33.3333%'
        """
        return share(self.place(value))

    def length(self, start: float, end: float, least: float = 0.0) -> str:
        """How wide something is; at least so many percent, that it can be seen.

        Example:
            >>> Scale(0, 10).length(2, 4), Scale(0, 10).length(2, 2, 0.5)
            ('20%', '0.5%')
        """
        return share(max(least, self.place(end) - self.place(start)))


def share(percent: float) -> str:
    """Percent as an attribute of SVG."""
    return f"{percent:.4f}".rstrip("0").rstrip(".") + "%"


def time_ticks(length_ms: float, most: int) -> list[int]:
    """Round moments of a call, in ms from its start, not more than `most` and one.

    Example:
        >>> time_ticks(65_000, 5)
        [0, 15000, 30000, 45000, 60000]
    """
    wanted_s = length_ms / MS_PER_SECOND / max(1, most)
    longest_s = _TIME_STEPS_S[-1]
    step_s = next(
        (each for each in _TIME_STEPS_S if each >= wanted_s),
        longest_s * int(wanted_s // longest_s + 1),
    )
    return list(range(0, int(length_ms) + 1, step_s * MS_PER_SECOND))


def round_ticks(highest: float, most: int) -> list[float]:
    """Round values from 0 to the first that is not below `highest`.

    Example:
        >>> round_ticks(17.6, 5), round_ticks(0.7, 4), round_ticks(0, 4)
        ([0.0, 5.0, 10.0, 15.0, 20.0], [0.0, 0.2, 0.4, 0.6, 0.8], [0.0, 1.0])
    """
    if highest <= 0:
        return [0.0, 1.0]
    wanted = highest / max(1, most)
    magnitude: float = 10.0 ** math.floor(math.log10(wanted))
    step = next(
        (each * magnitude for each in _ROUND_STEPS if each * magnitude >= wanted), 10 * magnitude
    )
    count = math.ceil(round(highest / step, 6))
    return [round(index * step, 10) for index in range(count + 1)]


def spaced(
    letterings: Iterable[tuple[float, float]], most_shift: float = 0.0
) -> list[float | None]:
    """How far each lettering, a place and a width in the order of the places, must move on so that
    no two touch.

    Args:
        letterings: Each with the space behind it.
        most_shift: One that would have to move further is left out, which is None.

    Example:
        >>> spaced([(0, 4), (1, 4), (5, 3), (6, 4), (8, 4)])
        [0.0, None, 0.0, None, 0.0]
        >>> spaced([(0, 4), (1, 4)], most_shift=3)
        [0.0, 3.0]
    """
    shifts: list[float | None] = []
    free_from = -math.inf
    for place, width in letterings:
        shift = max(0.0, free_from - place)
        if shift > most_shift:
            shifts.append(None)
            continue
        shifts.append(shift)
        free_from = place + shift + width
    return shifts
