"""History in SQLite: one file a day in one folder, which one process writes and any number read.

A file has the rows of the calls that began on its day (`consumers/store/rows.py`), the newest row
of each call as columns, and transcripts with an index of their words. The rows of a batch and the
place to read on from are one transaction of the newest file; older files, which get the ends of
calls of yesterday, come before it. So after a crash the batch is read again, and nothing is missing
and nothing is twice.
"""

import contextlib
import datetime
import math
import re
import sqlite3
import time
import zlib
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import structlog

from consumers.history.annotations import FILE_NAME, Annotations, FromPeople
from consumers.history.annotations import TABLES as TABLES_OF_PEOPLE
from consumers.history.search import COLUMNS, DERIVED, CallSearch, found, quoted, sql_of
from consumers.runtime.private_files import FolderLockedError, lock_folder, make_file, make_folder
from consumers.runtime.process import OperatorError
from consumers.store.rows import (
    BUSY_SECONDS,
    PACKING_LEVEL,
    TABLES,
    Place,
    Rows,
    StoredCall,
    transaction,
)
from schemas.annotations import Annotation
from schemas.columns import CALL_COLUMNS, Flat, flat
from schemas.rows import CallRow, GoalsRow, Row, StoredRow, WordsRow
from schemas.transcript import TRANSCRIPT
from schemas.units import DAY_MS

MAX_PLACES: Final = 50_000
"""Calls whose file is remembered; of others it is looked up."""
LOOKBACK_FILES: Final = 3
"""Newest files in which a record's call may be: a call lasts hours, an outage a day or two. Later,
the same id is a new call.
"""
STEPS_BETWEEN_LOOKS: Final = 20_000
"""Steps of SQLite after which it is looked whether a question has taken too long: less than a
millisecond.
"""
MAX_WORDS_CHARS: Final = 1_000_000
"""Longest text of one transcript that can be searched; the rest is kept and not searched."""
_FILE_NAME: Final = re.compile(r"calls-(\d{4}-\d{2}-\d{2})\.sqlite")
_SQL_KIND: Final = {"text": "TEXT", "integer": "INTEGER", "real": "REAL"}

log = structlog.get_logger()


class HistoryFolderError(OperatorError):
    """The folder of history cannot be used: it is not there, not writable, or another process
    writes it.
    """


class FolderInUseError(HistoryFolderError):
    """Another process writes the folder."""


class HistoryBrokenError(Exception):
    """A file is damaged. It was set aside; what it had must be read from the topics again, from the
    `positions` of now on.
    """


class Batch(NamedTuple):
    """Records that were read, and the places to read on from.

    Attributes:
        rows: Rows of `scores` and `words`, in order.
        transcripts: Transcripts by conversation, in order, each with the broker's time.
        positions: By topic and partition, the offset after the last record of the batch.
        people: What people said, and what is to be forgotten.
        at_ms: The broker's time of the first record: a goal set says no time.
    """

    rows: Sequence[StoredRow]
    transcripts: Sequence[tuple[str, int, bytes]]
    positions: Mapping[Place, int]
    people: FromPeople = FromPeople()
    at_ms: int = 0


class NotKept(NamedTuple):
    """How many records of a batch were not kept: annotations beyond a bound, and records of
    forgotten calls.
    """

    refused: int
    forgotten: int


_COLUMNS: Final = ", ".join(
    f"{quoted(column.name)} {_SQL_KIND[column.kind]}" for column in CALL_COLUMNS
)
_TABLES: Final = (
    *TABLES,
    f"CREATE TABLE calls (call INTEGER PRIMARY KEY, {_COLUMNS})",
    "CREATE INDEX calls_by_wait ON calls (longest_wait_ms)",
    f"CREATE INDEX calls_by_agent ON calls ({quoted('labels.agent')}, first_known_ms)",
    "CREATE TABLE transcript (call INTEGER PRIMARY KEY, value BLOB NOT NULL)",
)
_SET_CALL: Final = (
    # our names
    "INSERT OR REPLACE INTO calls (call, "  # noqa: S608
    f"{', '.join(quoted(column.name) for column in CALL_COLUMNS)}) "
    f"VALUES (?{', ?' * len(CALL_COLUMNS)})"
)
_UNINDEX: Final = "INSERT INTO words (words, rowid, text) VALUES ('delete', ?, ?)"


def _connected(path: Path, mode: str) -> sqlite3.Connection:
    uri = f"{path.resolve().as_uri()}?mode={mode}"
    return sqlite3.connect(
        uri, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, uri=True
    )


def _new(path: Path) -> Path:
    """An empty file, under another name first: a reader sees it whole or not at all."""
    new = path.with_suffix(".new")
    make_file(new)
    return new


def _set_up(connection: sqlite3.Connection) -> None:
    """Readers and the writer do not wait for each other, and what is deleted is overwritten."""
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA secure_delete = ON")


def _make(path: Path, positions: Mapping[Place, int]) -> None:
    """Makes the file of a day."""
    new = _new(path)
    connection = _connected(new, "rw")
    try:
        with transaction(connection):
            for statement in _TABLES:
                connection.execute(statement)
            # A build without FTS5 finds words by looking at each text.
            with contextlib.suppress(sqlite3.OperationalError):
                connection.execute(
                    "CREATE VIRTUAL TABLE words USING fts5 (text, content = '', tokenize = "
                    "'unicode61 remove_diacritics 2')"
                )
            Rows(connection).keep_positions(positions)
    finally:
        connection.close()
    new.replace(path)


class _Day:
    """The file of one day."""

    def __init__(
        self, path: Path, *, writes: bool, positions: Mapping[Place, int] | None = None
    ) -> None:
        """Opens the file of a day, or makes it.

        Args:
            path: The file.
            writes: Whether this process writes it; otherwise it is there.
            positions: For a new file, where to read on so far.
        """
        if writes and not path.exists():
            _make(path, positions or {})
        self.connection = _connected(path, "rw" if writes else "ro")
        try:
            if writes:
                _set_up(self.connection)
            self.columns = {
                str(row[1]) for row in self.connection.execute("PRAGMA table_info(calls)")
            }
            if writes:
                self._add_columns()
            self.rows = Rows(self.connection)
            self.has_words = (
                self.connection.execute(
                    "SELECT 1 FROM sqlite_master WHERE name = 'words'"
                ).fetchone()
                is not None
            )
        except BaseException:
            self.connection.close()
            raise

    def _add_columns(self) -> None:
        """Adds the columns that this version has and the one that made the file did not have."""
        for column in CALL_COLUMNS:
            if column.name not in self.columns:
                kind = _SQL_KIND[column.kind]
                self.connection.execute(
                    f"ALTER TABLE calls ADD COLUMN {quoted(column.name)} {kind}"
                )
                self.columns.add(column.name)

    def put(self, rows: Iterable[StoredRow]) -> None:
        """Keeps rows, and the newest of each call as columns."""
        newest = [
            (self.rows.id_of(row.conversation_id), *flat(CALL_COLUMNS, row))
            for row in self.rows.put(rows)
        ]
        self.connection.executemany(_SET_CALL, newest)

    def put_transcript(self, conversation_id: str, value: bytes) -> None:
        """Keeps a transcript, in place of the one before it."""
        call, before = self.rows.added(conversation_id), self.transcript(conversation_id)
        if before == value:
            return
        if self.has_words:
            if before is not None:
                self.connection.execute(_UNINDEX, [call, words_of(before)])
            self.connection.execute(
                "INSERT INTO words (rowid, text) VALUES (?, ?)", [call, words_of(value)]
            )
        packed = zlib.compress(value, PACKING_LEVEL)
        self.connection.execute("INSERT OR REPLACE INTO transcript VALUES (?, ?)", [call, packed])

    def has(self, conversation_id: str) -> bool:
        """Whether a call is in this file."""
        return self.rows.id_of(conversation_id) is not None

    def remove(self, conversation_id: str) -> bool:
        """Deletes all of a call; returns whether it was here. Free pages are overwritten as the
        file is set.
        """
        call = self.rows.id_of(conversation_id)
        if call is None:
            return False
        if self.has_words and (said := self.transcript(conversation_id)) is not None:
            self.connection.execute(_UNINDEX, [call, words_of(said)])
        self.connection.execute("DELETE FROM transcript WHERE call = ?", [call])
        self.connection.execute("DELETE FROM calls WHERE call = ?", [call])
        return self.rows.delete(conversation_id)

    def transcript(self, conversation_id: str) -> bytes | None:
        """Returns the transcript of a call; None without one."""
        call = self.rows.id_of(conversation_id)
        found = self.connection.execute(
            "SELECT value FROM transcript WHERE call = ?", [call]
        ).fetchone()
        return None if found is None else zlib.decompress(found[0])


class _Share(NamedTuple):
    """The part of a batch that belongs to one day."""

    rows: list[StoredRow]
    transcripts: list[tuple[str, bytes]]


class SqliteHistory:
    """The folder of history. One object is used by one thread at a time."""

    def __init__(
        self,
        folder: Path,
        *,
        writes: bool = False,
        keeps_words: bool = True,
        retention_days: int = 30,
        seconds: float | None = None,
    ) -> None:
        """Opens the folder.

        Args:
            folder: Where the files are; made if it is not there and this process writes.
            writes: Whether this process writes; only one may.
            keeps_words: Whether transcripts are kept.
            retention_days: Files of earlier days are deleted.
            seconds: How long a reader may ask from now on; None for ever.

        Raises:
            HistoryFolderError: The folder cannot be used, or another process writes it.
        """
        self.folder = folder
        self._writes = writes
        self._keeps_words = keeps_words
        self._retention_days = retention_days
        self._seconds = seconds
        self._ends_at = math.inf if seconds is None else time.monotonic() + seconds
        self._days: dict[str, _Day] = {}
        self._people: Annotations | None = None
        self._places: OrderedDict[str, str] = OrderedDict()
        self._lock: sqlite3.Connection | None = None
        try:
            if writes:
                make_folder(folder)
                self._lock = self._locked()
            elif not folder.is_dir():
                raise HistoryFolderError(
                    f"History: there is no folder {folder}. Set history.folder to that of the role "
                    "`history`."
                )
        except (OSError, sqlite3.Error) as error:
            raise HistoryFolderError(
                f"History: the folder {folder} cannot be written to ({error}). Make it, give this "
                "user the right to write there, or choose another one."
            ) from error

    def _locked(self) -> sqlite3.Connection:
        try:
            return lock_folder(self.folder)
        except FolderLockedError as error:
            raise FolderInUseError(
                f"History: another process writes {self.folder}, and two would read each record "
                "twice for nothing. Stop it, or give this one a folder of its own."
            ) from error

    @property
    def place(self) -> str:
        """The folder, for people."""
        return str(self.folder)

    def close(self) -> None:
        """Closes all files, and lets another process write."""
        for day in self._days.values():
            day.connection.close()
        self._days.clear()
        if self._people is not None:
            self._people.connection.close()
            self._people = None
        if self._lock is not None:
            self._lock.close()

    # Writing.

    def positions(self) -> dict[Place, int]:
        """Returns by topic and partition the offset from which to read; a place that is not there
        begins at its first record.
        """
        people = self._annotations()
        return self._positions_of_days() | {
            (topic, number): at for topic, number, at in people.positions()
        }

    def _positions_of_days(self) -> dict[Place, int]:
        found: dict[Place, int] = {}
        for name in self._names():
            for place, offset in self._day(name).rows.positions().items():
                found[place] = max(offset, found.get(place, 0))
        return found

    def write(self, batch: Batch) -> NotKept:
        """Writes a batch; returns what was left out of it. If it fails, it can be written again.

        Raises:
            HistoryBrokenError: A file is damaged, and was set aside.
            sqlite3.OperationalError: The disk is full, the folder not writable, or a reader holds a
                file for too long.
        """
        refused = self._write_people(batch.people) if any(batch.people) else 0
        if tenants := self._annotations().tenants():
            self.forget({row.conversation_id for row in batch.rows if _is_of(row, tenants)})
        rows = (
            batch.rows
            if self._keeps_words
            else [row for row in batch.rows if not isinstance(row, WordsRow)]
        )
        began_ms: dict[str, int] = {}
        for row in rows:
            began_ms[row.conversation_id] = min(
                began_ms.get(row.conversation_id, 2**62), _known_ms(row) or 2**62
            )
        days: dict[str, _Share] = {}
        new: dict[str, str] = {}
        forgotten = 0
        for row in rows:
            at_ms = began_ms[row.conversation_id]
            name = self._day_of(row.conversation_id, batch.at_ms if at_ms == 2**62 else at_ms, new)
            if name is None:
                forgotten += 1
            else:
                days.setdefault(name, _Share([], [])).rows.append(row)
        for conversation_id, at_ms, value in batch.transcripts if self._keeps_words else ():
            name = self._day_of(conversation_id, at_ms, new)
            if name is None:
                forgotten += 1
            else:
                days.setdefault(name, _Share([], [])).transcripts.append((conversation_id, value))
        if not days and (names := self._names()):
            days[names[-1]] = _Share([], [])
        for name in sorted(days):
            self._write_day(name, days[name], batch.positions if name == max(days) else {})
        if days:
            self._delete_old(max(days))
        return NotKept(refused, forgotten)

    def _write_people(self, people: FromPeople) -> int:
        """Takes what people said; returns how much of it was refused. Calls are deleted before it
        is noted that this was read.
        """
        tenants = {each.tenant: each.at_ms for each in people.tenants}
        gone = sorted({*people.forgotten, *self._calls_of(tenants)}) if people.forgets else []
        self._delete(gone)
        with self._writing() as there:
            # also of a tenant: a console that has rows of a call asks by its id
            there.forget(gone)
            for tenant, at_ms in tenants.items():
                there.forget_tenant(tenant, at_ms)
            refused = there.annotate(people.annotations)
            there.keep_positions(people.positions)
        if people.forgets:
            _emptied(self._annotations().connection)
        return refused

    def forget(self, conversation_ids: Collection[str]) -> int:
        """Deletes calls for good, with what people said of them, and keeps nothing of them from now
        on; returns how many were here.

        Raises:
            HistoryBrokenError, sqlite3.OperationalError: As `remove`.
        """
        if not conversation_ids:
            return 0
        there = sum(self.has(each) for each in conversation_ids)
        self._write_people(FromPeople(forgotten=tuple(conversation_ids)))
        return there

    def forgotten_in(self, batch: Batch) -> set[str]:
        """Returns the calls that a batch wants forgotten, and those of its rows that are forgotten
        already or are of a forgotten tenant.
        """
        people = self._annotations()
        new = {each.tenant: each.at_ms for each in batch.people.tenants}
        tenants = people.tenants() | new
        ids = {row.conversation_id for row in batch.rows}
        return {
            *batch.people.forgotten,
            *self._calls_of(new),
            *filter(people.is_forgotten, ids),
            *(row.conversation_id for row in batch.rows if _is_of(row, tenants)),
        }

    def forgets(self, row: StoredRow) -> bool:
        """Whether the call of a row is forgotten, or one of a forgotten tenant."""
        people = self._annotations()
        return people.is_forgotten(row.conversation_id) or _is_of(row, people.tenants())

    def is_forgotten(self, conversation_id: str) -> bool:
        """Whether a call was deleted on request."""
        return self._annotations().is_forgotten(conversation_id)

    def forgotten_calls(self) -> int:
        """Returns how many calls are remembered as forgotten."""
        return self._annotations().forgotten_calls()

    def _calls_of(self, tenants: Mapping[str, int]) -> Iterator[str]:
        """The calls of tenants that began before their moments."""
        for name in self._names() if tenants else ():
            for tenant, at_ms in tenants.items():
                found = (
                    f"SELECT conversation_id FROM calls WHERE {quoted('labels.tenant')} = ? AND "  # noqa: S608
                    "first_known_ms < ?"
                )
                yield from (
                    each
                    for (each,) in self._day(name)
                    .connection.execute(found, [tenant, at_ms])
                    .fetchall()
                )

    def _delete(self, conversation_ids: Iterable[str]) -> None:
        """Deletes calls so that no file has their words any more: in tables, in the index of words,
        and in the log of a file.
        """
        if wanted := set(conversation_ids):
            self.remove(wanted, for_good=True)
            for name in self._names():
                _emptied(self._day(name).connection)

    def has(self, conversation_id: str) -> bool:
        """Whether a call is here."""
        return self._day_with(conversation_id) is not None

    def remove(self, conversation_ids: Iterable[str], *, for_good: bool = False) -> int:
        """Deletes calls with all that is known of them, from every file; returns how many were
        here.

        Args:
            conversation_ids: The calls.
            for_good: Whether their words must leave the index of words, which is rewritten.
                Otherwise it keeps them, unfound, until it is.

        Raises:
            HistoryBrokenError: A file is damaged, and was set aside.
            sqlite3.OperationalError: The folder is not writable, or a reader holds a file for too
                long.
        """
        wanted = list(conversation_ids)
        removed = 0
        for name in self._names():
            day = self._day(name)
            with self._changing(name, day):
                before = removed
                for conversation_id in wanted:
                    if day.remove(conversation_id):
                        removed += 1
                        self._places.pop(conversation_id, None)
                if for_good and removed > before and day.has_words:
                    day.connection.execute("INSERT INTO words (words) VALUES ('optimize')")
        return removed

    @contextlib.contextmanager
    def _changing(self, name: str, day: _Day) -> Iterator[None]:
        """A transaction of the file of a day."""
        try:
            with transaction(day.connection):
                yield
        except sqlite3.DatabaseError as error:
            self._places.clear()  # calls that were new are not there
            if _is_damage(error):
                raise self._set_aside(_path_of(self.folder, name), error) from error
            raise

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Annotations]:
        """A transaction of the file of annotations."""
        people = self._annotations()
        try:
            with transaction(people.connection):
                yield people
        except sqlite3.DatabaseError as error:
            if _is_damage(error):
                raise self._set_aside(self.folder / FILE_NAME, error) from error
            raise

    def _write_day(self, name: str, share: _Share, positions: Mapping[Place, int]) -> None:
        day = self._day(name)
        with self._changing(name, day):
            for conversation_id in {
                *(row.conversation_id for row in share.rows),
                *(each for each, _ in share.transcripts),
            }:
                self._places[conversation_id] = name
                self._places.move_to_end(conversation_id)
            while len(self._places) > MAX_PLACES:
                self._places.popitem(last=False)
            day.put(share.rows)
            for conversation_id, value in share.transcripts:
                day.put_transcript(conversation_id, value)
            day.rows.keep_positions(positions)

    def _day_of(self, conversation_id: str, at_ms: int, new: dict[str, str]) -> str | None:
        """Returns the day in whose file a call is: that of its first record. `new` has the calls
        that no file has yet.

        None for a call that is forgotten.
        """
        there = self._places.get(conversation_id) or new.get(conversation_id)
        if there is not None:
            return there
        if self._annotations().is_forgotten(conversation_id):
            return None
        for name in self._names()[: -LOOKBACK_FILES - 1 : -1]:
            if self._day(name).has(conversation_id):
                return name
        new[conversation_id] = name = _day_name(at_ms)
        return name

    def _delete_old(self, newest: str) -> None:
        first = datetime.date.fromisoformat(newest) - datetime.timedelta(days=self._retention_days)
        for name in [name for name in self._names() if datetime.date.fromisoformat(name) < first]:
            self._delete_annotations(self._day(name), first)
            if (day := self._days.pop(name, None)) is not None:
                day.connection.close()
            for path in self.folder.glob(f"{_path_of(self.folder, name).name}*"):
                path.unlink(missing_ok=True)
            log.info("history_day_deleted", day=name, retention_days=self._retention_days)

    def _delete_annotations(self, day: _Day, first: datetime.date) -> None:
        """Deletes what people said of the calls of a day that goes, and what they said before the
        first day that stays of calls that history does not have.
        """
        first_ms = (
            datetime.datetime(first.year, first.month, first.day, tzinfo=datetime.UTC).timestamp()
            * 1_000
        )
        with self._writing() as there:
            gone = [
                name
                for name, at_ms in there.all_calls()
                if day.has(name) or (at_ms < first_ms and not self.has(name))
            ]
            there.delete(gone)

    def _set_aside(self, path: Path, error: sqlite3.DatabaseError) -> HistoryBrokenError:
        for name in [name for name in self._days if _path_of(self.folder, name) == path]:
            self._days.pop(name).connection.close()
        if path.name == FILE_NAME and self._people is not None:
            self._people.connection.close()
            self._people = None
        self._places.clear()
        aside = next(
            each
            for number in range(10_000)
            if not (each := path.with_suffix(f".broken-{number}")).exists()
        )
        path.rename(aside)
        for rest in ("-wal", "-shm"):
            Path(f"{path}{rest}").unlink(missing_ok=True)
        log.error(
            "history_file_broken",
            file=str(path),
            error=str(error),
            what_happens_now=(
                f"It is called {aside.name} now, and its calls are read again as far as their rows "
                "are still there."
            ),
            what_to_do=(
                "See to the disk. Delete the file when its calls are back, or when you do not miss "
                "them."
            ),
        )
        return HistoryBrokenError(str(error))

    # Reading.

    def find(
        self, question: CallSearch, columns: Collection[str] = COLUMNS
    ) -> list[dict[str, Flat]]:
        """Returns these columns of the calls that a question asks for, in its order."""
        return found(self, question, columns)

    def values(self, question: CallSearch, columns: Sequence[str]) -> Iterator[tuple[Flat, ...]]:
        """Yields these columns of the calls that a question asks for: of each file at most as many
        as it asks for, highest first.

        Raises:
            OperatorError: It takes longer than it may.
        """
        for name in self._names():
            day_ms = int(
                datetime.datetime.fromisoformat(f"{name}T00:00:00+00:00").timestamp() * 1_000
            )
            # A call's file is that of its first record, and its start may be earlier by the age of
            # that record.
            if day_ms < question.until_ms + DAY_MS and day_ms + 2 * DAY_MS > question.since_ms:
                with self._in_time():
                    yield from self._within_time(
                        self._values_in(self._day(name), question, columns)
                    )

    @contextlib.contextmanager
    def _in_time(self) -> Iterator[None]:
        """Says it plainly where SQLite was stopped because a question took too long."""
        try:
            yield
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
                raise
            raise self._took_too_long() from error

    def _require_time(self) -> None:
        if time.monotonic() > self._ends_at:
            raise self._took_too_long()

    def _took_too_long(self) -> OperatorError:
        return OperatorError(
            f"The search took longer than {self._seconds or 0:.0f} s and was stopped, so nothing "
            "is shown. Ask for fewer days, an agent or rarer words."
        )

    def _bound(self, connection: sqlite3.Connection) -> sqlite3.Connection:
        """Stops what a reader asks of a file when its time is over."""
        if self._seconds is not None:
            connection.set_progress_handler(
                lambda: time.monotonic() > self._ends_at, STEPS_BETWEEN_LOOKS
            )
        return connection

    def _within_time(self, rows: Iterable[Any]) -> Iterator[Any]:
        for row in rows:
            self._require_time()
            yield row

    def _values_in(
        self, day: _Day, question: CallSearch, asked: Sequence[str]
    ) -> Iterator[tuple[Flat, ...]]:
        """In the file of an earlier version, a column that it does not have is unknown for every
        call.
        """
        if any(
            each.column not in day.columns and each.column not in DERIVED
            for each in question.conditions
        ):
            return
        where = ["first_known_ms >= ?", "first_known_ms < ?"]
        values: list[Any] = [question.since_ms, question.until_ms]
        for column, comparison, value in question.conditions:
            name = sql_of(column, day.columns)
            where.append(f"instr({name}, ?) > 0" if comparison == "~" else f"{name} {comparison} ?")
            values.append(value)
        if question.ids is not None:
            where.append(f"conversation_id IN ({', '.join('?' * len(question.ids))})")
            values += question.ids
        if question.results is not None:
            marks = ", ".join("?" * len(question.results))
            where.append(f"{sql_of('subgoal_results', day.columns)} IN ({marks})")
            values += question.results
        if question.words and day.has_words:
            # Not a join: half of all calls have a common word, and most of them are not among the
            # first.
            where.append("call IN (SELECT rowid FROM words WHERE words MATCH ?)")
            # Each word quoted, so that none is an operator; FTS5 takes a NUL for the end.
            values.append(
                " ".join(
                    '"' + word.replace('"', '""').replace("\0", " ") + '"'
                    for word in question.words
                )
            )
        scans = bool(question.words) and not day.has_words
        most = -1 if scans or question.most is None else question.most
        # All names in the statement are ours.
        columns = ", ".join(sql_of(name, day.columns) for name in asked)
        order = ""
        if question.counts:
            columns += ", 1" if scans else ", count(*)"
            order = (
                ""
                if scans
                else f"GROUP BY {', '.join(str(2 + place) for place in range(len(asked)))}"
            )
        elif question.most is not None:
            by = sql_of(question.order_by, day.columns)
            order = f"ORDER BY {by} {question.order_sql}, conversation_id LIMIT {most}"
        rows: Iterable[Any] = day.connection.execute(
            (f"SELECT conversation_id, {columns} FROM calls WHERE {' AND '.join(where)} {order}"),  # noqa: S608
            values,
        )
        if scans:
            wanted = [word.casefold() for word in question.words]
            texts = (
                (words_of(day.transcript(row[0]) or b"[]").casefold(), row)
                for row in self._within_time(rows)
            )
            rows = islice(
                (row for text, row in texts if all(word in text for word in wanted)), question.most
            )
        for row in rows:
            yield row[1:]

    def call(self, conversation_id: str, at_ms: int | None = None) -> StoredCall | None:
        """Returns a call as it was known at a moment of the broker's time; None if it is not here,
        or was not known by then.
        """
        with self._in_time():
            day = self._day_with(conversation_id)
            return None if day is None else day.rows.call(conversation_id, at_ms)

    def open_calls(self) -> list[str]:
        """Returns the calls of the newest days that have not closed."""
        names = self._names()[-LOOKBACK_FILES:]
        return [row.conversation_id for name in names for row in self._day(name).rows.open_calls()]

    def rows_of(self, conversation_id: str) -> list[Row]:
        """Returns every row of a call, in order, without words; none of one that is not here."""
        day = self._day_with(conversation_id)
        return [] if day is None else day.rows.after(conversation_id, -1)

    def rows_since(self, known_ms: int, seen: Mapping[str, int]) -> Iterator[Row]:
        """Yields the rows of the newest days that were known then or later, without words: of each
        call those above its revision in `seen`, in order.
        """
        for name in self._names()[-LOOKBACK_FILES:]:
            day = self._day(name)
            for conversation_id in day.rows.known_since(known_ms):
                yield from day.rows.after(conversation_id, seen.get(conversation_id, -1))

    def transcript(self, conversation_id: str) -> bytes | None:
        """Returns the transcript of a call; None without one."""
        with self._in_time():
            day = self._day_with(conversation_id)
            return None if day is None else day.transcript(conversation_id)

    def labelled(self, label: str) -> list[str]:
        """Returns the calls that people gave a label, the newest label first; at most
        `MAX_ROWS`.
        """
        return self._annotations().labelled(label)

    def labels(self) -> list[tuple[str, str]]:
        """Returns the labels of calls, each with its call, the newest first; at most `MAX_ROWS`."""
        return self._annotations().labels()

    def annotations_of(self, conversation_ids: Collection[str]) -> dict[str, list[Annotation]]:
        """Returns what people said of these calls, by conversation; calls without any are
        left out.
        """
        people = self._annotations()
        return {each: said for each in conversation_ids if (said := people.of(each))}

    def _day_with(self, conversation_id: str) -> _Day | None:
        days = (self._day(name) for name in reversed(self._names()))
        return next((day for day in days if day.has(conversation_id)), None)

    # Files.

    def _names(self) -> list[str]:
        """The days that have a file, ascending."""
        found = (_FILE_NAME.fullmatch(path.name) for path in self.folder.iterdir())
        return sorted({each.group(1) for each in found if each is not None})

    def _day(self, name: str) -> _Day:
        if (day := self._days.get(name)) is not None:
            return day
        path = _path_of(self.folder, name)
        positions = self._positions_of_days() if self._writes and not path.exists() else {}
        try:
            day = self._days[name] = _Day(path, writes=self._writes, positions=positions)
            self._bound(day.connection)
        except sqlite3.DatabaseError as error:
            if not _is_damage(error):
                raise
            if self._writes:
                raise self._set_aside(path, error) from error
            raise _damaged(path, error) from error
        return day

    def _annotations(self) -> Annotations:
        """What people said. A reader of a folder that has no such file gets an empty
        one in memory.
        """
        if self._people is not None:
            return self._people
        path = self.folder / FILE_NAME
        if not self._writes and not path.exists():
            return _made(sqlite3.connect(":memory:", isolation_level=None))
        if not path.exists():
            new = _new(path)
            _made(_connected(new, "rw")).connection.close()
            new.replace(path)
        connection = _connected(path, "rw" if self._writes else "ro")
        try:
            if self._writes:
                _set_up(connection)
            connection.execute("SELECT count(*) FROM position").fetchone()
        except sqlite3.DatabaseError as error:
            connection.close()
            if not _is_damage(error):
                raise
            raise (self._set_aside if self._writes else _damaged)(path, error) from error
        self._people = Annotations(connection)
        return self._people


def _made(connection: sqlite3.Connection) -> Annotations:
    for statement in TABLES_OF_PEOPLE:
        connection.execute(statement)
    return Annotations(connection)


def _damaged(path: Path, error: sqlite3.DatabaseError) -> HistoryFolderError:
    return HistoryFolderError(
        f"History: {path} is damaged ({error}). The role `history` sets it aside and reads again."
    )


def _emptied(connection: sqlite3.Connection) -> None:
    """Empties the log of a file, which still has the pages as they were before something was
    deleted.

    Raises:
        sqlite3.OperationalError: A reader needs these pages. It can be tried again.
    """
    (is_busy, _, _) = connection.execute("PRAGMA wal_checkpoint (TRUNCATE)").fetchone()
    if is_busy:
        raise sqlite3.OperationalError("a reader keeps deleted pages from being overwritten")


def _known_ms(row: StoredRow) -> int | None:
    """When the call was known at the latest, by a row of it in epoch ms; None if it says nothing of
    time.
    """
    if isinstance(row, CallRow):
        return row.first_known_ms
    return None if isinstance(row, GoalsRow) else row.known_ms


def _is_of(row: StoredRow, tenants: Mapping[str, int]) -> bool:
    known_ms = _known_ms(row)
    if known_ms is None or isinstance(row, GoalsRow):
        return False
    tenant = row.tenant if isinstance(row, WordsRow) else row.labels.tenant
    return known_ms < tenants.get(tenant, 0)


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    return getattr(error, "sqlite_errorcode", None) in {
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
    }


def words_of(transcript: bytes) -> str:
    """Returns what both sides said, for a search."""
    turns = TRANSCRIPT.validate_json(transcript)
    return "\n".join(turn.message for turn in turns if turn.message)[:MAX_WORDS_CHARS]


def _day_name(at_ms: int) -> str:
    return datetime.datetime.fromtimestamp(at_ms / 1_000, datetime.UTC).date().isoformat()


def _path_of(folder: Path, name: str) -> Path:
    return folder / f"calls-{name}.sqlite"
