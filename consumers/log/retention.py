"""Which events of the log in a file may go, because they are too old or too many: in steps of a few
milliseconds.
"""

import sqlite3
from pathlib import Path
from typing import Final

import structlog

DELETED_IN_A_STEP: Final = 500
"""Events that one step of deletion takes: some ms."""
PAGES_FREED_IN_A_STEP: Final = 200
"""Pages that one step gives back to the disk."""
MAX_BYTES: Final = 4 * 2**30
"""Size of the file beyond which the oldest events go before their time."""
NEARLY_FULL: Final = 0.8
"""Share of that at which a person is told."""

log = structlog.get_logger()


class Retention:
    """Deletes what may go. Its methods belong to whoever writes the file.

    Attributes:
        bytes: Size of the file, without pages that are free.
    """

    def __init__(self, file: Path, retention_ms: int, max_bytes: int) -> None:
        self.bytes = 0
        self._file = file
        self._retention_ms = retention_ms
        self._max_bytes = max_bytes
        self._is_nearly_full = False

    def trim(self, writer: sqlite3.Connection, first: int, now_ms: int) -> int:
        """Deletes some of the events in front of a place, and the records that were not taken;
        returns how many events.

        A call that has closed so long ago is forgotten with its events. The last record of the log
        stays: the next place follows it.
        """
        self.measure(writer)
        old_ms = now_ms - self._retention_ms
        asked = (
            "SELECT place, at_ms FROM log WHERE place < min(?, (SELECT max(place) FROM log)) ORDER "
            "BY place LIMIT ?"
        )
        found = writer.execute(asked, [first, DELETED_IN_A_STEP]).fetchall()
        gone = [place for place, at_ms in found if at_ms < old_ms or self.bytes > self._max_bytes]
        if gone:
            writer.execute("DELETE FROM log WHERE place <= ?", [gone[-1]])
            writer.execute("DELETE FROM call WHERE closed <= ?", [gone[-1]])
        old_records = (
            "DELETE FROM record WHERE offset IN (SELECT offset FROM record ORDER BY offset LIMIT "
            "?) AND at_ms < ?"
        )
        writer.execute(old_records, [DELETED_IN_A_STEP, old_ms])
        free_some(writer)
        return len(gone)

    def measure(self, writer: sqlite3.Connection) -> None:
        """Sets the size, and says once that the file will soon be as large as it may be."""
        self.bytes = size_of(writer)
        was_nearly_full, self._is_nearly_full = (
            self._is_nearly_full,
            self.bytes > NEARLY_FULL * self._max_bytes,
        )
        if self._is_nearly_full and not was_nearly_full:
            log.warning(
                "log_nearly_full",
                file=str(self._file),
                bytes=self.bytes,
                most_bytes=self._max_bytes,
                what_happens_now=(
                    "At the limit the oldest events of closed calls go before their time; their "
                    "rows stay in history."
                ),
                what_to_do=(
                    "Nothing, unless events of the last days must be evaluated again. More calls "
                    "than this are for Kafka."
                ),
            )


def free_some(writer: sqlite3.Connection) -> int:
    """Gives some free pages back to the disk; returns how many there were."""
    (free,) = writer.execute("PRAGMA freelist_count").fetchone()
    # Python ends the statement after its first page
    for _ in range(min(free, PAGES_FREED_IN_A_STEP)):
        writer.execute("PRAGMA incremental_vacuum (1)")
    return int(free)


def size_of(connection: sqlite3.Connection) -> int:
    """Bytes of the file, without those of free pages."""
    pages, free, each = (
        connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * each)
