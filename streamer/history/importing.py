"""Brings recorded calls into history: the rows that the role `history` would have read of them."""

from collections.abc import Sequence
from typing import Final

from consumers.history.sqlite import Batch, SqliteHistory
from schemas.rows import CallRow, StoredRow
from streamer.offline.scoring import RecordedScoring

BATCH_ROWS: Final = 2_000
"""Rows of one transaction, as the role writes them."""

Imported = tuple[Sequence[StoredRow], bytes | None]
"""The rows of a call in every revision, and its transcript."""


def imported(scoring: RecordedScoring) -> Imported:
    """What the evaluator would have published of a call."""
    return (*scoring.rows, *scoring.words), scoring.transcript


class Importing:
    """Writes calls into a store, many in one transaction.

    Attributes:
        written: Calls that were written.
        there: Calls that history had already and kept as they were.
        forgotten: Calls that were deleted on request, and are left out.
        first_ms: When the oldest written call was known first, in epoch ms; None before one was
            written.
    """

    def __init__(self, store: SqliteHistory, *, replaces: bool = False) -> None:
        """Takes a store that this process writes. `replaces`: whether a call that is there is
        deleted first.
        """
        self.written = 0
        self.there = 0
        self.forgotten = 0
        self.first_ms: int | None = None
        self._store = store
        self._replaces = replaces
        self._rows: list[StoredRow] = []
        self._transcripts: list[tuple[str, int, bytes]] = []
        self._waiting: set[str] = set()

    def add(self, call: Imported) -> None:
        """Takes a call, which is written at the latest by `flush`.

        Raises:
            HistoryBrokenError, OSError, sqlite3.Error: As `SqliteHistory.write`.
        """
        rows, transcript = call
        conversation_id = rows[0].conversation_id
        if any(map(self._store.forgets, rows)):
            self.forgotten += 1
            return
        if conversation_id in self._waiting or self._store.has(conversation_id):
            if not self._replaces:
                self.there += 1
                return
            self.flush()
            self._store.remove([conversation_id])
        self._waiting.add(conversation_id)
        self._rows += rows
        first_ms = min(row.first_known_ms for row in rows if isinstance(row, CallRow))
        if transcript is not None:
            self._transcripts.append((conversation_id, first_ms, transcript))
        self.first_ms = first_ms if self.first_ms is None else min(self.first_ms, first_ms)
        if len(self._rows) >= BATCH_ROWS:
            self.flush()

    def flush(self) -> None:
        """Writes what waits."""
        if self._waiting:
            self._store.write(Batch(self._rows, self._transcripts, {}))
            self.written += len(self._waiting)
            self._rows, self._transcripts, self._waiting = [], [], set()
