"""The table of two lots of calls, for people at a terminal."""

from collections.abc import Iterable, Sequence
from typing import Final

from rich.table import Table

from consumers.console.page.drawing import percent
from consumers.store.changes import Change

_UNKNOWN: Final = "-"


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
