"""The report of recorded calls: the file, the comparison of trials in it, and a table for the
terminal.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup
from rich.table import Table

from consumers.console.page.calls import ReportedCall
from consumers.console.page.drawing import Redacts, duration, seconds
from consumers.console.page.rendering import render
from consumers.console.page.view import Moment, Standout, end_in_words, standouts
from consumers.console.page.whole import page_of
from schemas.rows import CallRow, OwnRow, number
from streamer.offline.scoring import RecordedScoring
from streamer.trials.calls import NewestRows
from streamer.trials.comparison import (
    compared,
    errors,
    figures,
    fitting,
    judge_errors,
    remarks,
    shown,
)


def page(calls: Sequence[ReportedCall], notes: Sequence[str], version: str) -> Markup:
    """The whole HTML file: the calls, and more than one of them compared with each other. The
    arguments are those of `page_of`.
    """
    return page_of(calls, notes, version, over_many_calls(calls))


# The section "Over many calls": repeated calls of each goal set compared, and their errors with
# links to the calls.

MOST_LINKS: Final = 12
"""Calls of one error that are linked; the others are counted."""


def over_many_calls(calls: Sequence[ReportedCall]) -> Markup | None:
    """The calls as trials of their goal sets; None if no two of them have goals."""
    found = (
        NewestRows(
            [*([] if call.goals_row is None else [call.goals_row]), *call.turns, call.row]
        ).trial(call.anchor_id)
        for call in calls
    )
    trials = [trial for trial in found if trial is not None]
    if len(trials) < 2:
        return None
    redacted = calls[0].shown  # by the settings, as every call does
    groups = compared(trials)
    ks = shown(fitting(groups, None), None)
    return render(
        "trials.html",
        rows=[(redacted(group.goal_set.id), None, list(figures(group, ks))) for group in groups],
        remarks=map(redacted, remarks(groups, None)),
        groups=[
            (
                redacted(group.goal_set.id),
                [(redacted(phrase), trials) for phrase, trials in errors(group)],
                (judge_errors(group) or "").removeprefix("judge: "),
            )
            for group in groups
        ],
        most_links=MOST_LINKS,
    )


def reported_call(
    scoring: RecordedScoring, anchor_id: str, redactor: Redacts, own: Sequence[OwnRow] = ()
) -> ReportedCall:
    """A call that was scored, with its words and sounds and the values of one's own measures, as a
    report or a table shows it.
    """
    newest = NewestRows(scoring.rows)
    row = newest.call or CallRow(conversation_id=scoring.call.conversation_id)
    return ReportedCall(
        row, newest.turns.values(), newest.goals, scoring.words, anchor_id, redactor, own=own
    )


# Recorded calls as a table for the terminal: how long callers waited, how far the calls got, and
# what stands out.

_NUMBERS = ("length", "turns", "answers", "median", "longest", "dead air", "goals")


@dataclass(frozen=True, slots=True)
class CallSummary:
    """One call in a line, and what stands out in it.

    Attributes:
        name: Its conversation id.
        cells: The values of the columns, in their order.
        standouts: The parts of the call to look at first.
    """

    name: str
    cells: tuple[str, ...]
    standouts: tuple[Standout, ...]


def summary_of(call: ReportedCall) -> CallSummary:
    """The summary of a scored call; `-` is a value that is not known."""
    waits_ms, progress = call.waits_ms, call.progress
    goals = "-"
    if progress is not None:
        unknown = "?" if number(progress.result) is None else ""
        goals = f"{progress.reached} of {progress.subgoals}{unknown}"
    cells = (
        call.row.labels.agent,
        duration(call.length_ms),
        str(call.row.turns) if call.is_closed else "-",
        f"{len(waits_ms)} of {len(call.waits)}",
        "-" if call.row.p50_ms is None else seconds(call.row.p50_ms),
        "-" if not waits_ms else seconds(max(waits_ms.values())),
        "-" if call.dead_airs is None else str(call.dead_airs),
        goals,
        end_in_words(call),
    )
    return CallSummary(call.conversation_id, cells, tuple(standouts(call)))


def summary_table(calls: Iterable[CallSummary]) -> Table:
    """A row for each call."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("call", overflow="fold")
    table.add_column("agent", overflow="fold")
    for column in _NUMBERS:
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("end", overflow="fold")
    for call in calls:
        table.add_row(call.name, *call.cells)
    return table


def unknown_lines(calls: Iterable[CallSummary]) -> Iterator[str]:
    """What the question mark of the table means, if it has one."""
    if any(cell.endswith("?") for call in calls for cell in call.cells):
        yield (
            "goals: ? marks a call with subgoals whose verdict is not known; `callgauge report` "
            "says why."
        )


def standout_lines(calls: Sequence[CallSummary]) -> Iterator[str]:
    """The parts of the calls to look at first; one sentence if there are none."""
    if not any(call.standouts for call in calls):
        yield "Nothing stands out."
        return
    yield "What stands out:"
    for call in calls:
        for found in call.standouts:
            yield f"  {call.name}: {found.heading}: {', '.join(map(_in_words, found.moments))}"


def _in_words(moment: Moment) -> str:
    if moment.turn is None:
        return moment.text
    return f"turn {moment.turn}{f' ({moment.text})' if moment.text else ''}"
