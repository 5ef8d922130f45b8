"""Two lots of calls beside each other, for people at a terminal and for programs."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from rich.table import Table

from consumers.store.changes import (
    SUBGOAL,
    Change,
    ComparedMeasure,
    Comparison,
    SubgoalChange,
    changes_json,
    judgement,
    measure_of,
    more_calls,
    told,
)
from consumers.view.words import counted

MOST_NAMED: Final = 5
"""Calls of one subgoal on a terminal."""


def changes_table(
    changes: Iterable[Change],
    calls: tuple[int, int],
    heads: tuple[str, str] = ("A", "B"),
    subgoals: Iterable[SubgoalChange] = (),
) -> Table:
    """The measures that are known in at least one lot, and subgoals, each with what can be said of
    it; `calls` are all calls of each lot.
    """
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("", overflow="fold", min_width=17)
    for head in (*heads, f"{heads[1]} minus {heads[0]} [95 % interval]"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    table.add_row("Calls", *(f"{number:,}" for number in calls), "", "")
    measures = (
        (measure_of(each.measure).title, measure_of(each.measure), each) for each in changes
    )
    goals = ((f"{each.goal_set}: {each.name}", SUBGOAL, each.change) for each in subgoals)
    for title, measure, change in (*measures, *goals):
        known = (change.calls_before, change.calls_after)
        if any(known):
            of = "" if known == calls else f" ({known[0]:,} and {known[1]:,} calls)"
            said = told(measure, change)
            apart = said.apart if change.low is None else f"{said.apart} {said.ends}"
            table.add_row(f"{title}{of}", *said.values, apart, said.more or said.judged)
    return table


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


def comparison_document(found: Comparison, group: Mapping[str, str]) -> dict[str, Any]:
    """The same as plain values; an unknown value is null. `group` is what the calls of both lots
    have in common.
    """
    return {
        "group": group,
        "a": {"name": found.names[0], "calls": found.calls[0]},
        "b": {"name": found.names[1], "calls": found.calls[1]},
        "verdict": found.verdict(),
        "measures": {
            each.measure: _judged(measure_of(each.measure), each) for each in found.changes
        },
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
