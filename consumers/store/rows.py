"""The rows of calls in SQLite: every revision of them, so that a call can be seen as it was known
at any moment.

A row replaces one of the same revision and kind, so reading a topic twice leaves what reading it
once leaves. Once its call is closed they are packed together: they repeat each other, so they
become a tenth as long.
"""

import contextlib
import sqlite3
import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from schemas.rows import (
    CallRow,
    GoalsRow,
    OwnRow,
    Row,
    StoredRow,
    TurnRow,
    WordsRow,
    decode,
    decode_own,
    decode_words,
    encode,
)

MAX_STORE_BYTES: Final = 512 * 2**20
"""Bytes of rows that a store in memory keeps by default: some 40,000 calls of ten turns that are
over, each with all its revisions.
"""
BUSY_SECONDS: Final = 5.0
"""How long one process may wait for the commit of another."""
PACKING_LEVEL: Final = 6
"""Of zlib. The highest saves 2 % and takes twice the time."""
_CALLS_OF_ONE_LOOK: Final = 64
"""Calls that are looked at together for what has to go."""

TABLES: Final = (
    "CREATE TABLE IF NOT EXISTS revision (call INTEGER, kind TEXT, turn INTEGER, revision INTEGER, "
    "known_ms INTEGER NOT NULL, row BLOB NOT NULL, PRIMARY KEY (call, kind, turn, revision))",
    "CREATE TABLE IF NOT EXISTS call (id INTEGER PRIMARY KEY, conversation_id TEXT NOT NULL "
    "UNIQUE, revision INTEGER NOT NULL, known_ms INTEGER NOT NULL, is_closed INTEGER NOT NULL, "
    "bytes INTEGER NOT NULL, row BLOB, packed BLOB)",
    "CREATE INDEX IF NOT EXISTS call_by_age ON call (is_closed DESC, known_ms)",
    "CREATE TABLE IF NOT EXISTS position (topic TEXT, partition INTEGER, next INTEGER NOT NULL, "
    "PRIMARY KEY (topic, partition)) WITHOUT ROWID",
)
"""What has to be there. `call.row` is the newest row of a call that is not closed; `packed` are all
rows of one that is. Revisions stand in the order in which they came, and an index finds them: in
the order of their key, one that comes moves its neighbours, which takes a third longer in a file.
"""
_NO_TURN: Final = -(2**31)
"""Stands for the turn of a row that is of the whole call. EVA can number a turn -1."""
_FOR_EVER_MS: Final = 2**62

_CALL: Final = str(CallRow.__struct_config__.tag)
_OWN: Final = "own."
"""Stands in the kind of the row of a value of one's own in front of the name of its measure."""

Place = tuple[str, int]
"""A topic and the number of one of its partitions."""
_Key = tuple[str, int, int]
"""Kind, turn and revision of a row."""
_Kept = tuple[int, bytes]
"""When a row was known, and the row."""
_PACKED: Final[msgspec.msgpack.Decoder[list[tuple[_Key, _Kept]]]] = msgspec.msgpack.Decoder(
    list[tuple[_Key, _Kept]]
)


class StoredCall(NamedTuple):
    """The rows of a call, as known at one moment.

    Attributes:
        call: The row of the call.
        turns: Those of its turns, in order; withdrawn ones too.
        goals: Its goal set; None without goals, or where the row was written before reading began.
        words: What was said in its turns, in order; nothing of turns whose words are not known.
        own: Values of one's own measures, by name and then by turn.
    """

    call: CallRow
    turns: tuple[TurnRow, ...]
    goals: GoalsRow | None
    words: tuple[WordsRow, ...]
    own: tuple[OwnRow, ...] = ()


class Rows:
    """The rows in one database. Its methods write within the transaction of their caller.

    Attributes:
        connection: The database, which has `TABLES`.
        bytes: Bytes of the rows that are kept.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        (kept,) = connection.execute("SELECT coalesce(sum(bytes), 0) FROM call").fetchone()
        self.bytes = int(kept)

    def put(self, rows: Iterable[StoredRow]) -> list[CallRow]:
        """Keeps rows, in any order and any number of times; returns the rows of calls that are the
        newest of theirs now.
        """
        of_calls: dict[str, list[StoredRow]] = {}
        for row in rows:
            of_calls.setdefault(row.conversation_id, []).append(row)
        found = (
            self._put(conversation_id, of_call) for conversation_id, of_call in of_calls.items()
        )
        return [newest for newest in found if newest is not None]

    def _put(self, conversation_id: str, rows: Sequence[StoredRow]) -> CallRow | None:
        found = self.connection.execute(
            "SELECT id, revision, known_ms, is_closed, bytes FROM call WHERE conversation_id = ?",
            [conversation_id],
        ).fetchone()
        if found is None:
            found = self.added(conversation_id), -1, 0, 0, 0
        call, revision, known_ms, was_closed, bytes_before = found
        new = dict(map(_keyed, rows))
        of_call = [row for row in rows if isinstance(row, CallRow) and row.revision >= revision]
        newest = max(of_call, key=lambda row: (row.revision, row.state == "closed"), default=None)
        known_ms = max(known_ms, *(each_ms for each_ms, _ in new.values()))
        is_closed = newest.state == "closed" if newest is not None else bool(was_closed)
        value = packed = None
        if is_closed:
            packed = _packed(dict(self._all(call)) | new)
            kept = len(packed)
            self.connection.execute("DELETE FROM revision WHERE call = ?", [call])
        else:
            kept = bytes_before + self._add(call, new)
            value = None if newest is None else new[_CALL, _NO_TURN, newest.revision][1]
        self.connection.execute(
            "UPDATE call SET revision = ?, known_ms = ?, is_closed = ?, bytes = ?, packed = ?, row "
            "= CASE WHEN ? THEN NULL ELSE coalesce(?, row) END WHERE id = ?",
            [
                revision if newest is None else newest.revision,
                known_ms,
                is_closed,
                kept,
                packed,
                is_closed,
                value,
                call,
            ],
        )
        self.bytes += kept - bytes_before
        return newest

    def _add(self, call: int, new: Mapping[_Key, _Kept]) -> int:
        """Adds rows of a call that is not closed; returns how many bytes there are more."""
        more = 0
        for (kind, turn, revision), (known_ms, value) in new.items():
            row = [call, kind, turn, revision, known_ms, value]
            insert = "INSERT OR {} INTO revision VALUES (?, ?, ?, ?, ?, ?)"
            more += len(value)
            # to look first whether it is there would cost as much again
            if not self.connection.execute(insert.format("IGNORE"), row).rowcount:
                (there,) = self.connection.execute(
                    "SELECT length(row) FROM revision WHERE call = ? AND kind = ? AND turn = ? AND "
                    "revision = ?",
                    row[:4],
                ).fetchone()
                more -= int(there)
                self.connection.execute(insert.format("REPLACE"), row)
        return more

    def _all(self, call: int) -> list[tuple[_Key, _Kept]]:
        """Every row of a call by kind, turn and revision."""
        (packed,) = self.connection.execute(
            "SELECT packed FROM call WHERE id = ?", [call]
        ).fetchone()
        if packed is not None:
            return _PACKED.decode(zlib.decompress(packed))
        found = self.connection.execute(
            "SELECT kind, turn, revision, known_ms, row FROM revision WHERE call = ? ORDER BY "
            "kind, turn, revision",
            [call],
        )
        return [
            ((kind, turn, revision), (known_ms, value))
            for kind, turn, revision, known_ms, value in found
        ]

    def call(self, conversation_id: str, at_ms: int | None = None) -> StoredCall | None:
        """The rows of a call as they were known at a moment of the broker's time; None where there
        is no row of the call by then.
        """
        call = self.id_of(conversation_id)
        until_ms = _FOR_EVER_MS if at_ms is None else at_ms
        newest: dict[tuple[str, int], bytes] = {}
        for (kind, turn, _), (known_ms, value) in () if call is None else self._all(call):
            if known_ms <= until_ms:
                newest[kind, turn] = value
        if (_CALL, _NO_TURN) not in newest:
            return None
        of_call, goals, turns, words, own = None, None, [], [], []
        for (kind, _), value in newest.items():
            if kind == "words":
                words.append(decode_words(value))
                continue
            if kind.startswith(_OWN):
                own.append(decode_own(value))
                continue
            match decode(value):
                case CallRow() as row:
                    of_call = row
                case GoalsRow() as row:
                    goals = row
                case TurnRow() as row:
                    turns.append(row)
        return (
            None
            if of_call is None
            else StoredCall(of_call, tuple(turns), goals, tuple(words), tuple(own))
        )

    def open_calls(self) -> list[CallRow]:
        """The newest rows of the calls that are not closed, those that nothing was heard of for
        longest first.
        """
        found = self.connection.execute(
            "SELECT row FROM call WHERE is_closed = 0 AND row IS NOT NULL ORDER BY known_ms, "
            "conversation_id"
        )
        rows = [decode(value) for (value,) in found.fetchall()]
        return [row for row in rows if isinstance(row, CallRow)]

    def known_since(self, known_ms: int) -> list[str]:
        """The calls with a row that was known then or later."""
        asked = (
            "SELECT conversation_id FROM call WHERE is_closed = ? AND known_ms >= ? ORDER BY "
            "known_ms"
        )
        return [
            name
            for is_closed in (1, 0)
            for (name,) in self.connection.execute(asked, [is_closed, known_ms])
        ]

    def after(self, conversation_id: str, revision: int) -> list[Row]:
        """The rows of a call with a higher revision, in order, its own behind those of its turns;
        without words.
        """
        call = self.id_of(conversation_id)
        found = [] if call is None else self._all(call)
        newer = sorted(
            (number, kind == _CALL, kind, value)
            for (kind, _, number), (_, value) in found
            if number > revision and kind != "words" and not kind.startswith(_OWN)
        )
        return [decode(value) for _, _, _, value in newer]

    def added(self, conversation_id: str) -> int:
        """The number of a call, which gets one if it has none."""
        self.connection.execute(
            "INSERT OR IGNORE INTO call (conversation_id, revision, known_ms, is_closed, bytes) "
            "VALUES (?, -1, 0, 0, 0)",
            [conversation_id],
        )
        (call,) = self.connection.execute(
            "SELECT id FROM call WHERE conversation_id = ?", [conversation_id]
        ).fetchone()
        return int(call)

    def id_of(self, conversation_id: str) -> int | None:
        """The number of a call; None if it is not here."""
        found = self.connection.execute(
            "SELECT id FROM call WHERE conversation_id = ?", [conversation_id]
        ).fetchone()
        return None if found is None else int(found[0])

    def delete(self, conversation_id: str) -> bool:
        """Deletes all rows of a call; returns whether it was here."""
        found = self.connection.execute(
            "SELECT id, bytes FROM call WHERE conversation_id = ?", [conversation_id]
        ).fetchone()
        if found is None:
            return False
        self.bytes -= int(found[1])
        self.connection.execute("DELETE FROM revision WHERE call = ?", [found[0]])
        self.connection.execute("DELETE FROM call WHERE id = ?", [found[0]])
        return True

    def positions(self) -> dict[Place, int]:
        """Where to read on, by topic and partition."""
        found = self.connection.execute("SELECT topic, partition, next FROM position").fetchall()
        return {(topic, partition): offset for topic, partition, offset in found}

    def keep_positions(self, positions: Mapping[Place, int]) -> None:
        """Notes where to read on."""
        self.connection.executemany(
            "INSERT OR REPLACE INTO position VALUES (?, ?, ?)",
            [(*place, offset) for place, offset in positions.items()],
        )


class RowStore:
    """Every revision of the rows of many calls, within a bound. Several threads may use
    one object.
    """

    def __init__(self, path: Path | None = None, *, max_bytes: int = MAX_STORE_BYTES) -> None:
        """Opens a file, or begins in memory.

        Args:
            path: The file, which its owner alone may read if `private_files` made it; None for
                memory.
            max_bytes: Bytes of rows that are kept. Beyond them calls go whole: closed ones before
                open ones, and of these the one that nothing was heard of for longest.
        """
        self.max_bytes = max_bytes
        self.forgotten = 0
        """Calls that had to go."""
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(
            ":memory:" if path is None else path,
            timeout=BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
        )
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = NORMAL")
        for statement in TABLES:
            self._connection.execute(statement)
        self._rows = Rows(self._connection)

    @property
    def bytes(self) -> int:
        """Bytes of the rows that are kept."""
        return self._rows.bytes

    def put(self, rows: Iterable[StoredRow], positions: Mapping[Place, int] | None = None) -> None:
        """Keeps rows, in any order and any number of times, and the places to read on from, in one
        transaction.
        """
        with self._transaction():
            self._rows.put(rows)
            self._rows.keep_positions(positions or {})
            while self.bytes > self.max_bytes and self._forget_oldest():
                pass

    def call(self, conversation_id: str, at_ms: int | None = None) -> StoredCall | None:
        """The rows of a call as they were known at a moment of the broker's time; None where there
        is no row of the call by then.
        """
        with self._lock:
            return self._rows.call(conversation_id, at_ms)

    def open_calls(self) -> list[CallRow]:
        """The newest rows of the calls that are not closed, those that nothing was heard of for
        longest first.
        """
        with self._lock:
            return self._rows.open_calls()

    def positions(self) -> dict[Place, int]:
        """Where to read on, by topic and partition."""
        with self._lock:
            return self._rows.positions()

    def close(self) -> None:
        """Closes the file."""
        with self._lock:
            self._connection.close()

    def _forget_oldest(self) -> bool:
        """Deletes some calls until the rest fits; returns whether there was one."""
        found = self._connection.execute(
            "SELECT conversation_id FROM call ORDER BY is_closed DESC, known_ms LIMIT ?",
            [_CALLS_OF_ONE_LOOK],
        ).fetchall()
        for (conversation_id,) in found:
            if self.bytes <= self.max_bytes:
                break
            self._rows.delete(conversation_id)
            self.forgotten += 1
        return bool(found)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        before = self._rows.bytes
        with self._lock:
            try:
                with transaction(self._connection):
                    yield
            except BaseException:
                self._rows.bytes = before
                raise


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All that is written inside is written, or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


def _keyed(row: StoredRow) -> tuple[_Key, _Kept]:
    turn = _NO_TURN if isinstance(row, (CallRow, GoalsRow)) or row.turn is None else row.turn
    known_ms = 0 if isinstance(row, GoalsRow) else row.known_ms
    kind = _OWN + row.measure if isinstance(row, OwnRow) else str(row.__struct_config__.tag)
    return (kind, turn, row.revision), (known_ms, encode(row))


def _packed(rows: Mapping[_Key, _Kept]) -> bytes:
    """Rows of a call in one piece, by kind, turn and revision, so that those that are alike stand
    together.
    """
    return zlib.compress(msgspec.msgpack.encode(sorted(rows.items())), PACKING_LEVEL)
