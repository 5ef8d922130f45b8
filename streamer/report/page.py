"""The report: one HTML page about recorded calls."""

import base64
import contextlib
import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.table import Table
from rich.text import Text

from consumers.runtime.process import OperatorError
from schemas.closed_sets import CloseReason, Speaker, ToolOutcome
from schemas.scores.records import InterruptionFact, Scored, ToolUseFact
from streamer.report.calls import ReportedCall
from streamer.report.drawing import (
    Child,
    Markup,
    counted,
    day_and_time,
    document,
    duration,
    element,
    in_words,
    number,
    percent,
    seconds,
    style_sheet,
)
from streamer.report.sections import (
    MOST_MOMENTS,
    Standout,
    latency,
    progress,
    scores,
    speech,
    standouts,
    timeline,
    transcript,
)

# The report: one self-contained HTML file, with an index and a section for each call. It runs no script.

_STYLE: Final = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
_ICON: Final = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E"
    "%3Crect x='1' y='2' width='9' height='5' rx='1' fill='%230072b2'/%3E"
    "%3Crect x='6' y='9' width='9' height='5' rx='1' fill='%23d55e00'/%3E%3C/svg%3E"
)
_INDEX_ID: Final = "calls"
_REASON_CHARS: Final = 60
_FIRST_MS: Final = 946_684_800_000
"""The year 2000: no call is older."""


def page(
    sections: Sequence[Markup],
    index: Markup | None,
    notes: Sequence[str],
    version: str,
    over_many_calls: Markup | None = None,
) -> Markup:
    """The whole HTML file.

    Args:
        sections: The calls, as `section` makes them.
        index: The links to them, as `index` makes it; None for one call.
        notes: Parts that are left out, and why.
        version: Of callgauge.
        over_many_calls: The calls compared with each other; None if there is nothing to compare.
    """
    heading = "Call report" if len(sections) == 1 else f"Report of {counted(len(sections), 'call')}"
    return document(
        element(
            "html",
            element(
                "head",
                element("meta", charset="utf-8"),
                element("meta", http_equiv="Content-Security-Policy", content=_policy(_STYLE)),
                element("meta", name="viewport", content="width=device-width, initial-scale=1"),
                element("meta", name="color-scheme", content="light dark"),
                element("meta", name="referrer", content="no-referrer"),
                element("title", f"{heading}, callgauge"),
                element("link", rel="icon", href=_ICON),
                style_sheet(_STYLE),
            ),
            element(
                "body",
                _patterns(),
                element("header", element("h1", heading), element("p", f"callgauge {version}"), class_="page"),
                element(
                    "main", [element("p", note, class_="note") for note in notes], index, over_many_calls, sections
                ),
            ),
            lang="en",
        )
    )


def _policy(style: str) -> str:
    """The content security policy: text of a call that got into the markup could neither run nor load anything."""
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"


def _patterns() -> Markup:
    """Fill patterns of the drawings, for readers who cannot distinguish the colours."""
    line = element("path", d="M-2,2 l4,-4 M0,8 l8,-8 M6,10 l4,-4", class_="hatch")
    dot = element("circle", cx=3, cy=3, r=1.3, class_="dot")
    units = "userSpaceOnUse"
    return element(
        "svg",
        element(
            "defs",
            element("pattern", line, id="overlap", width=8, height=8, patternUnits=units),
            element("pattern", dot, id="dead-air", width=6, height=6, patternUnits=units),
        ),
        width=0,
        height=0,
        aria_hidden="true",
        class_="patterns",
    )


def index(calls: Sequence[ReportedCall]) -> Markup:
    """A row for each call, which leads to its section."""
    heads = ("Call", "Agent", "Length", "Turns", "Median wait", "Longest wait", "Dead air", "Progress", "End")
    return element(
        "nav",
        element("h2", "Calls", id=_INDEX_ID),
        element(
            "table",
            element("thead", element("tr", [element("th", head, scope="col") for head in heads])),
            element("tbody", [_index_row(call, heads) for call in calls]),
            class_="index",
        ),
        aria_labelledby=_INDEX_ID,
    )


def _index_row(call: ReportedCall, heads: Sequence[str]) -> Markup:
    waits_ms = call.waits_ms
    closed = call.closed
    cells: list[Child] = [
        call.labels.agent,
        duration(call.length_ms),
        None if closed is None else closed.turns,
        _or_unknown(call.median_wait_ms),
        _or_unknown(max(waits_ms.values(), default=None)),
        "not known" if call.dead_air_times is None else str(call.dead_air_times),
        _progress_value(call),
        end_in_words(call),
    ]
    link = element("a", call.conversation_id, href=f"#{call.anchor_id}")
    return element(
        "tr",
        element("th", link, scope="row"),
        [element("td", cell, data_head=head) for head, cell in zip(heads[1:], cells, strict=True)],
    )


def _or_unknown(length_ms: float | None) -> str:
    return "not known" if length_ms is None else seconds(length_ms)


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
    curve = progress(call)
    parts: list[tuple[str, Markup | None]] = [
        ("What stands out", _standouts(call)),
        ("Timeline", timeline(call)),
        ("Wait for the answer, by turn", latency(call)),
        ("Progress", curve or element("p", "No goals were given for this call: see --goals.", class_="note")),
        ("Speech", speech(call)),
        ("Scores", scores(call)),
        ("Transcript", transcript(call)),
    ]
    heading_id = f"{call.anchor_id}-head"
    return element(
        "article",
        element(
            "header",
            element("h2", f"Call {call.conversation_id}", id=heading_id),
            element("a", "All calls", href=f"#{_INDEX_ID}") if has_index else None,
        ),
        _facts(call),
        _figures(call),
        [element("section", element("h3", name), content) for name, content in parts if content is not None],
        id=call.anchor_id,
        aria_labelledby=heading_id,
    )


def _facts(call: ReportedCall) -> Markup:
    labels = call.labels
    facts = [
        ("Agent", labels.agent),
        ("Tenant", labels.tenant),
        ("Environment", labels.environment),
        ("Pipeline", in_words(labels.pipeline_type)),
        ("Began", _began(call.heard.start_ms)),
        ("Ended", end_in_words(call)),
    ]
    shown = [(name, value) for name, value in facts if value != "unknown" or name == "Agent"]
    return element(
        "dl", [element("div", element("dt", name), element("dd", value)) for name, value in shown], class_="facts"
    )


def _began(start_ms: float) -> str:
    """A recording without a time of day counts from the beginning of the epoch."""
    return "not known" if start_ms < _FIRST_MS else day_and_time(start_ms)


def _figures(call: ReportedCall) -> Markup:
    """The call in a few numbers."""
    closed, median_ms, waits_ms = call.closed, call.median_wait_ms, call.waits_ms
    slowest = max(waits_ms, key=lambda turn: waits_ms[turn], default=None)
    by = [fact.by for fact in call.of(InterruptionFact)]
    uses = call.of(ToolUseFact)
    failed = sum(use.outcome in (ToolOutcome.ERROR, ToolOutcome.UNANSWERED) for use in uses)
    dead_times, dead_ms = call.dead_air_times, call.dead_air_ms
    figures = [
        ("Length", duration(call.length_ms), "" if closed is None else counted(closed.turns, "turn")),
        ("Median wait", _or_unknown(median_ms), f"of {counted(len(waits_ms), 'turn')}"),
        (
            "Longest wait",
            "not known" if slowest is None else seconds(waits_ms[slowest]),
            "" if slowest is None else f"turn {slowest}",
        ),
        (
            "Dead air",
            "not known" if dead_times is None else counted(dead_times, "time"),
            seconds(dead_ms) if dead_ms else "",
        ),
        (
            "Interruptions",
            str(len(by)),
            f"{by.count(Speaker.USER)} by the user, {by.count(Speaker.ASSISTANT)} by the assistant",
        ),
        ("Tools", counted(len(uses), "use"), f"{failed} without success" if failed else ""),
        *_score_figures(call),
    ]
    return element(
        "dl",
        [
            element(
                "div", element("dt", name), element("dd", value), element("dd", more, class_="more") if more else None
            )
            for name, value, more in figures
        ],
        class_="figures",
    )


def _score_figures(call: ReportedCall) -> list[tuple[str, str, str]]:
    figures = []
    if call.goals is not None:
        last = call.last_progress
        more = "" if last is None else f"{last.reached} of {counted(last.subgoals, 'subgoal')}"
        figures.append(("Progress", _progress_value(call), more))
    timing = None if call.whole is None else call.whole.eva.get("eva_turn_taking")
    if timing is not None and isinstance(timing.result, Scored):
        figures.append(("Turn taking", number(timing.result.value), "from 0 to 1"))
    return figures


def _standouts(call: ReportedCall) -> Markup:
    found = standouts(call)
    if not found:
        return element("p", _nothing(call), class_="note")
    return element("dl", [_standout(call, each) for each in found], class_="standouts")


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


def _standout(call: ReportedCall, found: Standout) -> Markup:
    moments = [
        element("li", element("a", f"turn {each.turn}", href=f"#{call.turn_anchor(each.turn)}"), " ", each.text)
        for each in found.moments[:MOST_MOMENTS]
    ]
    if (more := len(found.moments) - MOST_MOMENTS) > 0:
        moments.append(element("li", f"and {more} more"))
    kind = "fault" if found.is_fault else "remark"
    return element("div", element("dt", found.heading), element("dd", element("ul", moments)), class_=kind)


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


# The work of the command `report`: writes the page.


class ReportFileError(OperatorError):
    """The page cannot be written."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(
            f"{path}: the report cannot be written here: {why}. Nothing was written; name another --html file."
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
