"""Recorded calls as a table for the terminal: how long callers waited, how far the calls got, and
what stands out.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rich.table import Table

from consumers.view.calls import ReportedCall
from consumers.view.contents import Moment, Standout, standouts
from consumers.view.running import end_in_words
from consumers.view.words import Redacts, duration, seconds
from schemas.rows import CallRow, GoalsRow, OwnRow, TurnRow, number
from streamer.fitting import FittedColumn, fitted
from streamer.offline.scoring import RecordedScoring


def reported_call(
    scoring: RecordedScoring, anchor_id: str, redactor: Redacts, own: Sequence[OwnRow] = ()
) -> ReportedCall:
    """A call that was scored, with its words and sounds and the values of one's own measures, as a
    report or a table shows it.
    """
    newest = scoring.newest_rows()
    return ReportedCall(
        next(
            (row for row in newest if isinstance(row, CallRow)),
            CallRow(conversation_id=scoring.call.conversation_id),
        ),
        (row for row in newest if isinstance(row, TurnRow)),
        next((row for row in newest if isinstance(row, GoalsRow)), None),
        scoring.words,
        anchor_id,
        redactor,
        own=own,
    )


_COLUMNS: Final = (
    FittedColumn("agent", (), is_cut=True),
    FittedColumn("length", (), leaves=5, is_number=True),
    FittedColumn("turns", (), leaves=6, is_number=True),
    FittedColumn("answers", (), leaves=7, is_number=True),
    FittedColumn("median", (), leaves=1, is_number=True),
    FittedColumn("longest", (), leaves=2, is_number=True),
    FittedColumn("dead air", (), leaves=4, is_number=True),
    FittedColumn("goals", (), leaves=1, is_number=True),
    FittedColumn("end", (), leaves=3, is_cut=True),
)
"""The columns behind the id of the call: median and longest are of its waits."""


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
        end_in_words(call.row),
    )
    return CallSummary(call.conversation_id, cells, standouts(call))


def summary_table(calls: Sequence[CallSummary], width: int) -> Table:
    """A row for each call, in so many characters."""
    cells = zip(*(call.cells for call in calls), strict=True) if calls else [()] * len(_COLUMNS)
    ids = FittedColumn("call", [call.name for call in calls])
    columns = (column._replace(cells=of) for column, of in zip(_COLUMNS, cells, strict=True))
    return fitted([ids, *columns], width)


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
