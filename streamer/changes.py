"""Two lots of calls beside each other, for people at a terminal and for programs."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from rich.table import Table

from consumers.console.page.drawing import counted, percent
from consumers.store.changes import (
    SUBGOAL,
    Change,
    ComparedMeasure,
    Comparison,
    SubgoalChange,
    changes_json,
    judgement,
    more_calls,
    told,
)

_UNKNOWN: Final = "-"


def changes_table(
    changes: Iterable[Change],
    calls: tuple[int, int],
    heads: tuple[str, str],
    shares: Iterable[str] = (),
) -> Table:
    """The measures that are known in at least one lot; `calls` are all calls of each, and `shares`
    are shown in percent.
    """
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
        *(
            f"+{text}" if value and value > 0 else text
            for text, value in zip(shown[2:], values[2:], strict=True)
        ),
    ]


def _numbers(values: Sequence[float | None]) -> list[str]:
    """Numbers of one unit with as many digits as the largest needs."""
    largest = max((abs(value) for value in values if value is not None), default=0.0)
    digits = 3
    if largest >= 10:
        digits = 0 if largest >= 100 else 1
    return [_UNKNOWN if value is None else f"{value:,.{digits}f}" for value in values]


# Two versions.

MOST_NAMED: Final = 5
"""Calls of one subgoal on a terminal."""


def comparison_table(found: Comparison) -> Table:
    """The measures and subgoals of two lots, each with what can be said of it."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("", overflow="fold", min_width=17)
    for head in ("A", "B", "B less A [95 % interval]"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    table.add_row("Calls", *(f"{number:,}" for number in found.calls), "", "")
    for measure, change in found.changes:
        table.add_row(*_compared(measure, change, measure.title))
    for each in found.subgoals:
        table.add_row(*_compared(SUBGOAL, each.change, f"{each.goal_set}: {each.name}"))
    return table


def _compared(measure: ComparedMeasure, change: Change, title: str) -> Iterator[str]:
    said = told(measure, change)
    yield from (title, *said.values)
    yield said.apart if change.low is None else f"{said.apart} {said.ends}"
    yield said.more or said.judged


def flipped_lines(subgoals: Iterable[SubgoalChange]) -> Iterator[str]:
    """The calls of the second lot that have another result of a subgoal than most of the first; of
    subgoals that changed.
    """
    for each in subgoals:
        if each.change.is_more_than_chance and each.flipped:
            all_of_them = len(each.flipped) + each.others
            more = f" and {all_of_them - MOST_NAMED} more" if all_of_them > MOST_NAMED else ""
            named = ", ".join(each.flipped[:MOST_NAMED])
            yield (
                f"{each.name} came out otherwise in {counted(all_of_them, 'call')} of B: "
                f"{named}{more}"
            )


def comparison_document(found: Comparison) -> dict[str, Any]:
    """The same as plain values; an unknown value is null."""
    changes = {measure.name: (measure, change) for measure, change in found.changes}
    return {
        "a": {"name": found.names[0], "calls": found.calls[0]},
        "b": {"name": found.names[1], "calls": found.calls[1]},
        "verdict": found.verdict(),
        "measures": {name: _judged(*changes[name]) for name in changes},
        "subgoals": [
            {
                "goal_set": each.goal_set,
                "id": each.name,
                **_judged(SUBGOAL, each.change),
                "flipped": list(each.flipped),
            }
            for each in found.subgoals
        ],
    }


def _judged(measure: ComparedMeasure, change: Change) -> dict[str, Any]:
    judged = {"judgement": judgement(measure, change), "more_calls": more_calls(measure, change)}
    return {**changes_json([change])[change.measure], **judged}
