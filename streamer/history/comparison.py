"""Compares the calls of two periods: each measure with its change, and whether the change is more than chance."""

from array import array
from collections.abc import Iterable, Sequence
from datetime import date, timedelta
from typing import Any, Final, NamedTuple

import typer

from consumers.history.search import Condition, HistoryStore, Question
from consumers.runtime.process import SetupError
from consumers.store.changes import MEASURES, Change, change_of, changes_json, draws_of_one
from schemas.columns import Flat
from streamer.time_bounds import moment_given

GROUPS: Final = (
    *("labels.agent", "labels.version", "labels.tenant", "labels.environment", "labels.pipeline_type"),
    *("code_version", "goals.goal_set", "close_reason"),
)
"""Columns by which calls can be compared: those with few values."""
MOST_GROUPS: Final = 200
"""Most groups of one comparison."""
_RANGE: Final = ".."

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
    draws = draws_of_one(len(MEASURES) * len(lots))
    found = [
        Compared(group, was.calls, now.calls, [_change(measure, was, now, draws) for measure in MEASURES])
        for group, (was, now) in lots.items()
    ]
    return sorted(found, key=lambda each: (-each.calls_before - each.calls_after, each.group))


def _change(measure: str, was: _Lot, now: _Lot, draws: int) -> Change:
    before, after = (sorted(lot.values[measure]) for lot in (was, now))  # a store may give them in any order
    return change_of(measure, before, after, most_draws=draws)


def comparison_json(groups: Sequence[Compared], by: Group) -> list[dict[str, Any]]:
    """The comparison as plain values."""
    return [
        {
            "group": dict(zip(by, each.group, strict=True)),
            "calls_before": each.calls_before,
            "calls_after": each.calls_after,
            "measures": changes_json(each.changes),
        }
        for each in groups
    ]
