"""Compares the calls of two periods: each measure with its change, and whether the change is more than chance."""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, timedelta
from typing import Any, Final, NamedTuple

import typer
from rich.table import Table

from consumers.history.search import COLUMNS, Condition, HistoryStore, Question
from consumers.runtime.process import SetupError
from schemas.columns import Flat
from streamer.bootstrap import interval
from streamer.time_bounds import moment_given

GROUPS: Final = (
    "labels.agent", "labels.tenant", "labels.environment", "labels.pipeline_type", "code_version", "goals.goal_set", "close_reason"
)  # fmt: skip
"""Columns by which calls can be compared: those with few values."""
_NO_MEASURES: Final = frozenset({"revision", "partition", "first_place", "last_place", "turn", "through_turn"})
MEASURES: Final = tuple(
    name
    for name, column in COLUMNS.items()
    if column.kind != "text"
    and name not in _NO_MEASURES
    and not name.endswith(("_turn", ".turn", "known_ms", "last_ms", "ed_ms", "an_ms"))
)
"""Numbers of a call of which a mean says something: no places, no moments, no numbers of turns."""
MOST_GROUPS: Final = 200
"""Most groups of one comparison."""
MOST_DRAWS: Final = 4_000_000
"""Draws for all intervals of one comparison: a second or two."""
LEAST_DRAWS: Final = 20_000
"""Draws for one of them."""
_RANGE: Final = ".."
_UNKNOWN: Final = "-"

Group = tuple[str, ...]


class Period(NamedTuple):
    """A stretch of time in epoch ms; the end is not part of it."""

    since_ms: int
    until_ms: int

    @classmethod
    def parse(cls, text: str) -> "Period":
        """Reads a day in UTC, as `2026-11-20`, or a range, as `2026-11-13..2026-11-20`, whose last day is part of it.

        The ends of a range may be moments, too: `7d..2026-11-20T12:00`.

        Raises:
            BadParameter: It is neither, or ends before it begins.
        """
        first, dots, last = text.partition(_RANGE)
        try:
            end_ms = moment_given((date.fromisoformat(last if dots else first) + timedelta(days=1)).isoformat())
        except (ValueError, OverflowError):
            if not dots:
                raise typer.BadParameter(
                    f"{text!r} is no day: give a day in UTC, for example 2026-11-20, or a range, 2026-11-13..2026-11-20."
                ) from None
            end_ms = moment_given(last)
        period = cls(moment_given(first), end_ms)
        if period.since_ms >= period.until_ms:
            raise typer.BadParameter(f"{text!r} ends before it begins.")
        return period


class Change(NamedTuple):
    """One measure of the calls of one group.

    Attributes:
        measure: Name of its column.
        before: Its mean over the calls of the first period in which it is known; None without any.
        after: The same of the second.
        calls_before: Number of these calls.
        calls_after: The same of the second.
        low: Lower end of the 95 % bootstrap interval of the change; None with fewer than two calls in a period.
        high: Its upper end.
    """

    measure: str
    before: float | None
    after: float | None
    calls_before: int
    calls_after: int
    low: float | None
    high: float | None

    @property
    def change(self) -> float | None:
        """How much higher it is in the second period; None if it is unknown in one of them."""
        return None if self.before is None or self.after is None else self.after - self.before

    @property
    def is_more_than_chance(self) -> bool | None:
        """Whether the interval of the change is on one side of 0; None without an interval."""
        return None if self.low is None or self.high is None else self.low > 0 or self.high < 0


class Compared(NamedTuple):
    """The calls of one group, with as many of them as each period has."""

    group: Group
    calls_before: int
    calls_after: int
    changes: Sequence[Change]


class _Lot:
    """The known values of the calls of one group in one period."""

    def __init__(self) -> None:
        self.calls = 0
        self.values = {measure: array("d") for measure in MEASURES}

    def add(self, row: Iterable[Flat]) -> None:
        self.calls += 1
        for measure, value in zip(MEASURES, row, strict=True):
            if isinstance(value, int | float):
                self.values[measure].append(value)


def groups_given(text: str | None) -> Group:
    """Reads the columns of `--by`.

    Raises:
        SetupError: Calls cannot be compared by one of them.
    """
    names = tuple(dict.fromkeys(name.strip() for name in (text or "").split(",") if name.strip()))
    for name in names:
        if name not in GROUPS:
            raise SetupError(f"--by {name!r}: calls can be compared by {', '.join(GROUPS)}. Nothing was compared.")
    return names


def compared(
    store: HistoryStore, before: Period, after: Period, by: Group = (), conditions: Sequence[Condition] = ()
) -> list[Compared]:
    """Compares the closed calls of two periods.

    Args:
        store: History.
        before: The first period.
        after: The second.
        by: Columns whose values make a group; without any, all calls are one.
        conditions: Only calls that meet them.

    Returns:
        The groups, those with most calls first.

    Raises:
        SetupError: There are too many groups.
    """
    lots: dict[Group, tuple[_Lot, _Lot]] = {}
    for place, period in enumerate((before, after)):
        question = Question(
            period.since_ms, period.until_ms, [Condition("state", "=", "closed"), *conditions], most=None
        )
        for row in store.values(question, [*by, *MEASURES]):
            group = tuple("" if value is None else str(value) for value in row[: len(by)])
            if group not in lots:
                if len(lots) == MOST_GROUPS:
                    raise SetupError(
                        f"--by {','.join(by)}: there are more than {MOST_GROUPS} groups. Nothing was compared. Compare by fewer "
                        "columns, or only the calls of one agent."
                    )
                lots[group] = (_Lot(), _Lot())
            lots[group][place].add(row[len(by) :])
    draws = max(LEAST_DRAWS, MOST_DRAWS // (len(MEASURES) * max(1, len(lots))))
    found = [
        Compared(group, was.calls, now.calls, [_change(measure, was, now, draws) for measure in MEASURES])
        for group, (was, now) in lots.items()
    ]
    return sorted(found, key=lambda each: (-each.calls_before - each.calls_after, each.group))


def _change(measure: str, was: _Lot, now: _Lot, draws: int) -> Change:
    lots = [sorted(lot.values[measure]) for lot in (was, now)]  # a store may give them in any order
    before, after = (sum(lot) / len(lot) if lot else None for lot in lots)
    low = high = None
    if min(map(len, lots)) > 1:
        low, high = interval(lots, draws)
    return Change(measure, before, after, len(lots[0]), len(lots[1]), low, high)


# For people and for programs.


def comparison_table(each: Compared) -> Table:
    """The measures of a group that are known in at least one period."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("")
    for head in ("before", "after", "change", "95 % interval"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("more than chance")
    table.add_row("calls", f"{each.calls_before:,}", f"{each.calls_after:,}", "", "", "")
    for change in each.changes:
        if change.before is None and change.after is None:
            continue
        values = _shown([change.before, change.after, change.change, change.low, change.high])
        ends = _UNKNOWN if change.low is None else f"{values[3]} to {values[4]}"
        verdict = {True: "yes", False: "no", None: _UNKNOWN}[change.is_more_than_chance]
        name = change.measure
        if (change.calls_before, change.calls_after) != (each.calls_before, each.calls_after):
            name += f" ({change.calls_before:,} and {change.calls_after:,} calls)"
        table.add_row(name, values[0], values[1], values[2], ends, verdict)
    return table


def remarks(groups: Sequence[Compared]) -> Iterator[str]:
    """What a reader of the table must know."""
    judged = sum(change.is_more_than_chance is not None for each in groups for change in each.changes)
    if judged:
        by_chance = round(judged * 0.05)
        yield f"{judged} changes have an interval. If nothing had changed, about {by_chance} would be called more than chance."


def comparison_json(groups: Sequence[Compared], by: Group) -> list[dict[str, Any]]:
    """The comparison as plain values; an unknown value is null."""
    return [
        {
            "group": dict(zip(by, each.group, strict=True)),
            "calls_before": each.calls_before,
            "calls_after": each.calls_after,
            "measures": {
                change.measure: _plain(change)
                for change in each.changes
                if change.before is not None or change.after is not None
            },
        }
        for each in groups
    ]


def _plain(change: Change) -> Mapping[str, float | bool | None]:
    known = change._asdict()
    del known["measure"]
    return known | {"change": change.change, "is_more_than_chance": change.is_more_than_chance}


def _shown(values: Sequence[float | None]) -> list[str]:
    """Numbers of one unit with as many digits as the largest needs."""
    largest = max((abs(value) for value in values if value is not None), default=0.0)
    digits = 0 if largest >= 100 else 1 if largest >= 10 else 3
    return [_UNKNOWN if value is None else f"{value:,.{digits}f}" for value in values]
