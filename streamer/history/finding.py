"""Past calls that were found, as a table that fits the terminal, and where to look when
none was.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from rich.cells import cell_len, set_cell_size
from rich.table import Table

from consumers.history.search import CallSearch, HistoryStore
from schemas.columns import Flat
from schemas.units import DAY_MS
from streamer.time_bounds import shown_moment

_SHOWN: Final = {
    "labels.agent": "agent",
    "turns": "turns",
    "p50_ms": "p50_ms",
    "p95_ms": "p95_ms",
    "unanswered": "unanswered",
    "goals.progress.result": "progress",
    "goals.progress.success": "success",
    "dead_airs": "dead_airs",
    "failed_tools": "failed_tools",
    "labels.version": "version",
}
"""Columns of the table for people, and what stands above them; where there is no room, the last are
left out. Programs get all of them.
"""
_GAP: Final = 2
_LEAST_TEXT: Final = 10
"""Characters to which a text is cut before a column is left out."""


def calls_table(rows: Sequence[Mapping[str, Flat]], labels: Mapping[str, str], width: int) -> Table:
    """A line for each call, with its whole id: other texts are cut, and columns are left out, until
    it fits.
    """
    ids = [str(row["conversation_id"]) for row in rows]
    when = [_when(row["began_ms"] or row["first_known_ms"]) for row in rows]
    columns = {"started (UTC)": when} | {
        head: [_cell(row[name]) for row in rows] for name, head in _SHOWN.items()
    }
    columns |= {"conversation_id": ids} | (
        {"labels": [labels.get(each, "") for each in ids]} if any(labels.values()) else {}
    )
    while (
        excess := sum(_width(head, cells) + _GAP for head, cells in columns.items()) - _GAP - width
    ) > 0:
        texts = {
            head: _width("", columns[head])
            for head in ("agent", "failed_tools", "labels")
            if head in columns
        }
        longest = max(texts, key=lambda head: texts[head])
        if texts[longest] > _LEAST_TEXT:
            room = max(_LEAST_TEXT, texts[longest] - excess)
            columns[longest] = [_cut(cell, room) for cell in columns[longest]]
            continue
        left_out = next(
            (head for head in reversed(_SHOWN.values()) if head in columns and head != "agent"),
            None,
        )
        if left_out is None:
            break
        del columns[left_out]
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, _GAP, 0, 0))
    for head in columns:
        is_number = head in _SHOWN.values() and head not in {"agent", "version", "failed_tools"}
        table.add_column(
            head,
            justify="right" if is_number else "left",
            no_wrap=head != "conversation_id",
            overflow="fold",
        )
    for cells in zip(*columns.values(), strict=True):
        table.add_row(*cells)
    return table


def _width(head: str, cells: Sequence[str]) -> int:
    return max(map(cell_len, (head, *cells)))


def _cut(text: str, room: int) -> str:
    return text if cell_len(text) <= room else f"{set_cell_size(text, room - 1)}\u2026"


def _when(moment: Flat) -> str:
    return shown_moment(moment)[:16] if isinstance(moment, int) else ""


def _cell(value: Flat) -> str:
    if isinstance(value, float):
        # ms, or a share
        return f"{value:.0f}" if value >= 10 else f"{value:.2f}".rstrip("0").rstrip(".")
    return "-" if value is None else str(value)


def where_others_are(store: HistoryStore, question: CallSearch) -> str:
    """What to say where no call was found: how many are like that at other times, and which option
    shows them.
    """
    ever = question._replace(since_ms=0, until_ms=2**53, most=None, counts=True)
    days = sorted(
        (int(day_ms), int(number))
        for day_ms, number in store.values(ever, ["day_ms"])
        if day_ms and number
    )
    if not days:
        return ""
    first, last = (shown_moment(days[place][0])[:10] for place in (0, -1))
    when = first if first == last else f"{first} to {last}"
    number = sum(number for _, number in days)
    are = "1 call is, but began" if number == 1 else f"{number:,} calls are, but began"
    until = shown_moment(days[-1][0] + DAY_MS)[:10]
    return (
        f" At other times {are} on {when}: --since {first} --until {until} shows "
        f"{'it' if number == 1 else 'them'}."
    )
