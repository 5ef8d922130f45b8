"""The report: one self-contained HTML file about recorded calls, with an index and a section for each. It runs no script."""

import base64
import contextlib
import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from markupsafe import Markup
from rich.table import Table

from consumers.runtime.process import OperatorError
from schemas.closed_sets import CloseReason, ToolOutcome
from schemas.scores.records import InterruptionFact, Scored, ToolUseFact
from streamer.report.calls import ReportedCall
from streamer.report.drawing import counted, day_and_time, duration, in_words, percent, seconds, seconds_if_known
from streamer.report.rendering import render
from streamer.report.sections import (
    MOST_MOMENTS,
    Standout,
    latency,
    over_many_calls,
    progress,
    scores,
    speech,
    standouts,
    timeline,
    transcript,
)

_STYLE: Final = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
_ICON: Final = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E"
    "%3Crect x='1' y='2' width='9' height='5' rx='1' fill='%230072b2'/%3E"
    "%3Crect x='6' y='9' width='9' height='5' rx='1' fill='%23d55e00'/%3E%3C/svg%3E"
)
_SECTIONS: Final = {
    "Timeline": timeline,
    "Wait for the answer, by turn": latency,
    "Progress": progress,
    "Speech": speech,
    "Scores": scores,
    "Transcript": transcript,
}
"""The sections of a call below its figures: each is one function and the template that it fills."""
_REASON_CHARS: Final = 60
_FIRST_MS: Final = 946_684_800_000
"""The year 2000: no call is older."""


def page(calls: Sequence[ReportedCall], notes: Sequence[str], version: str) -> Markup:
    """The whole HTML file.

    Args:
        calls: Those that are shown; more than one have an index, and are compared with each other.
        notes: Parts that are left out, and why.
        version: Of callgauge.
    """
    several = len(calls) != 1
    return render(
        "page.html",
        heading=f"Report of {counted(len(calls), 'call')}" if several else "Call report",
        policy=_policy(_STYLE),
        icon=_ICON,
        style=Markup(_STYLE),  # noqa: S704  # a file of ours
        version=version,
        notes=notes,
        index=index(calls) if len(calls) > 1 else None,
        over_many_calls=over_many_calls(calls),
        sections=[section(call, has_index=several) for call in calls],
    )


def _policy(style: str) -> str:
    """The content security policy: text of a call that got into the markup could neither run nor load anything."""
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"


def index(calls: Sequence[ReportedCall]) -> Markup:
    """A row for each call, which leads to its section."""
    return render("index.html", rows=[(call.conversation_id, call.anchor_id, _index_cells(call)) for call in calls])


def _index_cells(call: ReportedCall) -> list[tuple[str, str | int | None]]:
    return [
        ("Agent", call.labels.agent),
        ("Length", duration(call.length_ms)),
        ("Turns", None if call.closed is None else call.closed.turns),
        ("Median wait", seconds_if_known(call.median_wait_ms)),
        ("Longest wait", seconds_if_known(max(call.waits_ms.values(), default=None))),
        ("Dead air", "not known" if call.dead_air_times is None else call.dead_air_times),
        ("Progress", _progress_value(call)),
        ("End", end_in_words(call)),
    ]


def _progress_value(call: ReportedCall) -> str:
    last = call.last_progress
    if last is None:
        return "no goals" if call.goals is None else "not judged"
    return percent(last.result.value) if isinstance(last.result, Scored) else "unscored"


def end_in_words(call: ReportedCall) -> str:
    """How the call ended."""
    closed = call.closed
    if closed is None:
        return "not closed"
    if closed.ended_reason:
        return call.shown(in_words(closed.ended_reason), _REASON_CHARS)
    return "no reason given" if closed.reason is CloseReason.ENDED else in_words(closed.reason)


def section(call: ReportedCall, *, has_index: bool) -> Markup:
    """Everything about one call."""
    uses = call.of(ToolUseFact)
    return render(
        "call.html",
        call=call,
        has_index=has_index,
        labels=_labels(call),
        interrupted_by=[fact.by for fact in call.of(InterruptionFact)],
        tools=len(uses),
        failed=sum(use.outcome in (ToolOutcome.ERROR, ToolOutcome.UNANSWERED) for use in uses),
        progress=_progress_value(call),
        timing=None if call.whole is None else call.whole.eva.get("eva_turn_taking"),
        standouts=standouts(call),
        most_moments=MOST_MOMENTS,
        nothing=_nothing(call),
        sections=[(name, fill(call)) for name, fill in _SECTIONS.items()],
    )


def _labels(call: ReportedCall) -> list[tuple[str, str]]:
    labels = call.labels
    facts = [
        ("Agent", labels.agent),
        ("Tenant", labels.tenant),
        ("Environment", labels.environment),
        ("Pipeline", in_words(labels.pipeline_type)),
        ("Began", _began(call.heard.start_ms)),
        ("Ended", end_in_words(call)),
    ]
    return [(name, value) for name, value in facts if value != "unknown" or name == "Agent"]


def _began(start_ms: float) -> str:
    """A recording without a time of day counts from the beginning of the epoch."""
    return "not known" if start_ms < _FIRST_MS else day_and_time(start_ms)


def _nothing(call: ReportedCall) -> str:
    """The sentence for a call without standouts; it names the kinds that could be measured."""
    known = {
        "long wait": bool(call.waits_ms),
        "interruption": True,
        "dead air": call.dead_air_times is not None,
        "tool that failed": True,
    }
    said = "Nothing: " + ", ".join(f"no {fault}" for fault in known if known[fault]) + "."
    unknown = [fault for fault in known if not known[fault]]
    return f"{said} Not known: {', '.join(unknown)}." if unknown else said


# Recorded calls as a table for the terminal: how long callers waited, how far the calls got, and what stands out.

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
        table.add_row(call.name, *call.cells)
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


# The work of the command `report`: writes the page.


class ReportFileError(OperatorError):
    """The page cannot be written."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(
            f"{path}: the report cannot be written here: {why}. Nothing was written; name another place with -o."
        )
        self.path = path


def require_place(path: Path) -> None:
    """Checks the place before anything is read, so that nobody waits for a page that cannot be written."""
    folder = path.parent
    if path.is_dir():
        raise ReportFileError(path, "it is a folder")
    if not folder.is_dir():
        raise ReportFileError(path, f"there is no folder {folder}")
    if not os.access(folder, os.W_OK):
        raise ReportFileError(path, f"the folder {folder} is not ours to write in")


def write_page(path: Path, text: str) -> None:
    """Writes the whole file or none of it."""
    beside = path.with_name(f".{path.name}.part")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise ReportFileError(path, error.strerror or type(error).__name__) from error
