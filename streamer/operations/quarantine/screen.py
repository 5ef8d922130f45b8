"""Refused records as terminal text. Pure: entries in, text out. Texts of producers cannot control the terminal."""

from collections.abc import Sequence
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from consumers.engine.admission import Arrival
from consumers.engine.redaction.redactor import MARGIN_CHARS, Redactor
from schemas.quarantine import QuarantineRecord
from streamer.cluster.coordinates import Coordinates
from streamer.operations.quarantine.log import Entries
from streamer.terminal import safe
from streamer.time_bounds import shown_moment

MAX_VALUE_BYTES: Final = 2_000
MAX_HEADERS: Final = 20
_MAX_HEADER_BYTES: Final = 200
_WIDE_COLUMNS: Final = 150
"""Width from which an entry fits on one line of a table."""


def shown_bytes(raw: bytes, most: int) -> str:
    """Bytes as text as far as they are UTF-8, at most `most` of them, with how many are left out."""
    lines = raw[:most].decode("utf-8", "backslashreplace").split("\n")
    text = "\n".join(safe(line) for line in lines)
    return text if len(raw) <= most else f"{text}\n... {len(raw) - most} more bytes"


def shown_value(raw: bytes, redactor: Redactor) -> str:
    """The beginning of a record without personal data, as far as it is UTF-8, and how much is left out."""
    text = raw[: MAX_VALUE_BYTES + 2 * MARGIN_CHARS + 1].decode("utf-8", "backslashreplace")
    lines = redactor.beginning(text, MAX_VALUE_BYTES).split("\n")
    more = f"\n... of {len(raw)} bytes" if len(raw) > MAX_VALUE_BYTES else ""
    return "\n".join(safe(line) for line in lines) + more


def listing(entries: Sequence[QuarantineRecord], width: int) -> RenderableType:
    """The entries, one to a line where the terminal is wide enough."""
    if width < _WIDE_COLUMNS:
        return Group(*(_in_two_lines(entry) for entry in entries))
    table = Table(box=None, pad_edge=False)
    for column in ("refused (UTC)", "record", "conversation", "reason", "what"):
        table.add_column(column, overflow="fold", no_wrap=column == "refused (UTC)")
    for entry in entries:
        cells = (str(Coordinates.of(entry)), entry.key, entry.reason.value, _what(entry))
        table.add_row(shown_moment(entry.quarantined_at_ms), *(Text(safe(cell)) for cell in cells))
    return table


def summary(found: Entries) -> RenderableType:
    """How many entries match, by reason, the most frequent first."""
    table = Table(box=None, pad_edge=False)
    table.add_column("entries", justify="right")
    table.add_column("reason")
    for reason, count in found.by_reason.most_common():
        table.add_row(str(count), reason.value)
    return table


def entry_details(entry: QuarantineRecord) -> RenderableType:
    """The five parts of the message."""
    of = f" of conversation {safe(entry.key)}" if entry.key else ""
    return Group(
        Text(f"{Coordinates.of(entry)}{of}", style="bold"),
        _rows(
            ("refused", f"{shown_moment(entry.quarantined_at_ms)} UTC, {entry.reason.value}"),
            ("what", safe(entry.what)),
            ("details", safe(entry.expected_and_seen)),
            ("now", safe(entry.what_happens_now)),
            ("to do", safe(entry.what_to_do)),
        ),
    )


def record_details(record: Any, judged: Arrival | QuarantineRecord) -> RenderableType:
    """The record without its value, for a person, and the verdict of today's code."""
    headers = [
        f"{name}: {'(none)' if value is None else shown_bytes(value, _MAX_HEADER_BYTES)}"
        for name, value in record.headers[:MAX_HEADERS]
    ]
    if (more := len(record.headers) - MAX_HEADERS) > 0:
        headers.append(f"... {more} more headers")
    value = record.value
    if isinstance(judged, Arrival):
        verdict = "it would be taken, with this version and these settings"
    else:
        verdict = safe(f"it would be refused again: {judged.what}, {judged.expected_and_seen}")
    return _rows(
        ("key", "(none)" if record.key is None else shown_bytes(record.key, _MAX_HEADER_BYTES)),
        ("headers", "\n".join(headers) or "(none)"),
        ("put back", verdict),
        ("value", "(none)" if value is None else f"{len(value)} bytes:"),
    )


def _in_two_lines(entry: QuarantineRecord) -> RenderableType:
    head = Text(f"{shown_moment(entry.quarantined_at_ms)}  {entry.reason.value}  {Coordinates.of(entry)}")
    whose = f"conversation {entry.key}: " if entry.key else ""
    return Group(head, Padding(Text(safe(f"{whose}{_what(entry)}")), (0, 0, 0, 4)))


def _what(entry: QuarantineRecord) -> str:
    return f"{entry.what}; {entry.expected_and_seen}"


def _rows(*rows: tuple[str, str]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for name, text in rows:
        table.add_row(name, Text(text))
    return table
