"""Compares the calls of two lots, measure by measure: how far apart their means are, and whether that is more than chance. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from rich.table import Table

from consumers.console.page.drawing import percent
from schemas.columns import CALL_COLUMNS, Column
from streamer.bootstrap import MOST_DRAWS, interval

_NO_MEASURES: Final = frozenset({"revision", "partition", "first_place", "last_place", "turn", "through_turn"})
MEASURES: Final[Mapping[str, Column]] = {
    column.name: column
    for column in CALL_COLUMNS
    if column.kind != "text"
    and column.name not in _NO_MEASURES
    and not column.name.endswith(("_turn", ".turn", "known_ms", "last_ms", "ed_ms", "an_ms"))
}
"""Numbers of a call of which a mean says something: no places, no moments, no numbers of turns."""
MOST_DRAWS_OF_ALL: Final = 4_000_000
"""Draws for all intervals of one comparison: a second or two."""
LEAST_DRAWS: Final = 20_000
"""Draws for one of them."""
_UNKNOWN: Final = "-"


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


def changes_table(
    changes: Iterable[Change], calls: tuple[int, int], heads: tuple[str, str], shares: Iterable[str] = ()
) -> Table:
    """The measures that are known in at least one lot; `calls` are all calls of each, and `shares` are shown in percent."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("")
    for head in (*heads, "change", "95 % interval"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("more than chance")
    table.add_row("calls", *(f"{number:,}" for number in calls), "", "", "")
    for each in changes:
        if each.before is None and each.after is None:
            continue
        values = [each.before, each.after, each.change, each.low, each.high]
        shown = _shares(values) if each.measure in shares else _numbers(values)
        name = each.measure
        if (each.calls_before, each.calls_after) != calls:
            name += f" ({each.calls_before:,} and {each.calls_after:,} calls)"
        ends = _UNKNOWN if each.low is None else f"{shown[3]} to {shown[4]}"
        verdict = {True: "yes", False: "no", None: _UNKNOWN}[each.is_more_than_chance]
        table.add_row(name, *shown[:3], ends, verdict)
    return table


def changes_json(changes: Iterable[Change]) -> dict[str, Mapping[str, float | bool | None]]:
    """The same measures as plain values; an unknown value is null."""
    return {each.measure: _plain(each) for each in changes if each.before is not None or each.after is not None}


def remark_on_chance(changes: Iterable[Change]) -> str | None:
    """What a reader of many intervals must know; None without one."""
    judged = sum(each.is_more_than_chance is not None for each in changes)
    if not judged:
        return None
    by_chance = round(judged * 0.05)
    return f"{judged} changes have an interval. If nothing had changed, about {by_chance} would be called more than chance."


def _plain(each: Change) -> Mapping[str, Any]:
    known = each._asdict()
    del known["measure"]
    return known | {"change": each.change, "is_more_than_chance": each.is_more_than_chance}


def _shares(values: Sequence[float | None]) -> list[str]:
    """Two shares, and how far they are apart."""
    shown = [_UNKNOWN if value is None else percent(value) for value in values]
    return [
        *shown[:2],
        *(f"+{text}" if value and value > 0 else text for text, value in zip(shown[2:], values[2:], strict=True)),
    ]


def _numbers(values: Sequence[float | None]) -> list[str]:
    """Numbers of one unit with as many digits as the largest needs."""
    largest = max((abs(value) for value in values if value is not None), default=0.0)
    digits = 0 if largest >= 100 else 1 if largest >= 10 else 3
    return [_UNKNOWN if value is None else f"{value:,.{digits}f}" for value in values]
