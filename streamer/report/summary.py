"""Recorded calls as a table for the terminal: how long callers waited, how far the calls got, and what stands out."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from schemas.scores.records import Scored
from streamer.report.call.reported_call import ReportedCall
from streamer.report.drawing.numbers import duration, seconds
from streamer.report.page import end_in_words
from streamer.report.sections.standouts import Standout, standouts

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
    waits_ms = call.waits_ms
    closed, progress = call.closed, call.last_progress
    goals = "-"
    if progress is not None:
        unknown = "" if isinstance(progress.result, Scored) else "?"
        goals = f"{progress.reached} of {progress.subgoals}{unknown}"
    cells = (
        call.labels.agent,
        duration(call.length_ms),
        "-" if closed is None else str(closed.turns),
        f"{len(waits_ms)} of {len(call.latencies)}",
        "-" if call.median_wait_ms is None else seconds(call.median_wait_ms),
        "-" if not waits_ms else seconds(max(waits_ms.values())),
        "-" if call.dead_air_times is None else str(call.dead_air_times),
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
        table.add_row(Text(call.name), *map(Text, call.cells))
    return table


def standout_lines(calls: Sequence[CallSummary]) -> Iterator[str]:
    """The parts of the calls to look at first; one sentence if there are none."""
    if not any(call.standouts for call in calls):
        yield "Nothing stands out."
        return
    yield "What stands out:"
    for call in calls:
        for found in call.standouts:
            moments = ", ".join(f"turn {each.turn}{f' ({each.text})' if each.text else ''}" for each in found.moments)
            yield f"  {call.name}: {found.heading}: {moments}"
