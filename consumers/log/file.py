"""The log in a file, for one machine: what `events` and the topics of rows are on Kafka, in one
SQLite database that one process writes.

Events stand in it in one order, and time does too, as ticks. What is decided is written with the
place up to which it was decided, in one transaction. What has been acknowledged is on the disk.
Readers of decided records say how far they have come, and what all have read is deleted; events are
deleted by age and by size, in steps of a few milliseconds, and never those of a call that is open.
"""

import asyncio
import contextlib
import secrets
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from consumers.log.commits import NotWrittenError, StepCommits
from consumers.log.retention import MAX_BYTES, Retention, free_some, size_of
from consumers.runtime.private_files import FolderLockedError, ensure_file, lock_folder, make_folder
from consumers.runtime.process import OperatorError, wall_clock_ms
from consumers.store.rows import transaction
from schemas.events.envelope import ID_HEADER, SOURCE_HEADER
from schemas.log import REPLAY_OF_HEADER, SOURCES, Begin, Event, LogReader, OutgoingRecord, Tick
from schemas.owners import PartitionRow
from schemas.topics import ANNOTATIONS_TOPIC, SCORES_TOPIC, TOPIC_BY_SOURCE
from schemas.units import DAY_MS

FILE_NAME: Final = "log.sqlite"
FORMAT: Final = 2
"""`user_version` of the database. A file with another one is of another version of callgauge."""
FIRST_PLACE: Final = 1
"""Place of the first record of a new log."""
READ_AT_ONCE: Final = 1_000
"""Records that one question of a long reader gets; between two questions the writer may tidy the
file.
"""
GAP_MS: Final = 5_000
"""Time without a record of the log, twice a second of which are ticks, after which no record has
listened: the process did not run.
"""
BACK_MS: Final = 60_000
"""How far a clock may be behind the log, and time stands until it has caught up. One that is
further behind was wrong before and is right now: time goes back with it.
"""
BUSY_SECONDS: Final = 5.0
"""How long a reader in another process may keep a commit waiting."""

_TABLES: Final = (
    "CREATE TABLE log (place INTEGER PRIMARY KEY, call INTEGER, source INTEGER, at_ms INTEGER NOT "
    "NULL, said BLOB, value BLOB, headers BLOB)",
    "CREATE UNIQUE INDEX log_of_call ON log (call, said) WHERE call IS NOT NULL",
    "CREATE INDEX log_ticks ON log (place) WHERE call IS NULL",
    "CREATE TABLE call (id INTEGER PRIMARY KEY AUTOINCREMENT, key BLOB NOT NULL UNIQUE, closed "
    "INTEGER, goals BLOB)",
    "CREATE INDEX call_closed ON call (closed)",
    "CREATE TABLE record (offset INTEGER PRIMARY KEY AUTOINCREMENT, topic TEXT NOT NULL, at_ms "
    "INTEGER NOT NULL, key BLOB NOT NULL, value BLOB NOT NULL)",
    "CREATE INDEX record_of_topic ON record (topic)",
    "CREATE TABLE state (name TEXT PRIMARY KEY, value) WITHOUT ROWID",
)
_EVENT: Final = (
    "SELECT place, at_ms, source, value, headers, (SELECT key FROM call WHERE id = log.call) FROM "
    "log"
)
_NEXT: Final = f"{_EVENT} WHERE place >= ? ORDER BY place LIMIT ?"
# our names, as below
_OF_CALL: Final = f"{_EVENT} WHERE call = (SELECT id FROM call WHERE key = ?) ORDER BY place"  # noqa: S608
_PLACES: Final = (
    "SELECT place FROM log WHERE call IS NULL AND place >= ?1 AND place < ?2 UNION ALL SELECT "
    "place FROM call CROSS JOIN log ON log.call = call.id WHERE closed IS NULL AND place >= ?1 AND "
    "place < ?2"
)
_OF_OPEN_CALLS: Final = f"{_EVENT} WHERE place IN ({_PLACES}) ORDER BY place"
_LAST: Final = "SELECT place, at_ms FROM log ORDER BY place DESC LIMIT 1"
_LAST_TICK: Final = "SELECT at_ms FROM log WHERE call IS NULL ORDER BY place DESC LIMIT 1"
_APPEND: Final = (
    "INSERT OR IGNORE INTO log (call, source, at_ms, said, value, headers) SELECT id, ?, ?, ?, ?, "
    "? FROM call WHERE key = ?"
)
_APPEND_TICK: Final = "INSERT INTO log (at_ms, value) VALUES (?, ?)"
_HEADERS: Final[msgspec.msgpack.Decoder[list[tuple[str, bytes]]]] = msgspec.msgpack.Decoder(
    list[tuple[str, bytes]]
)


class LogFileError(OperatorError):
    """The file cannot be used: it is damaged, of another version, not writable, or another process
    writes it.
    """


class LogInUseError(LogFileError):
    """Another process writes the folder."""


class FileRecord(NamedTuple):
    """A record of the log.

    Attributes:
        offset: Its place.
        timestamp: When it was appended, in ms since 1970.
        read: What it is.
    """

    offset: int
    timestamp: int
    read: Event | Tick


class DecidedRecord(NamedTuple):
    """A record that was decided, as a topic of Kafka would have it.

    Attributes:
        topic: Name in the topic table.
        key: The conversation's id.
        value: The bytes.
        offset: Its number, which rises in its topic; 0 before it is written.
        timestamp: When it was written, in ms since 1970; 0 before.
    """

    topic: str
    key: bytes
    value: bytes
    offset: int = 0
    timestamp: int = 0


class Decided(NamedTuple):
    """What one transaction has: the evaluator's, one of what people say of calls, or one of their
    measures.

    Attributes:
        records: The records, in order.
        row: How far the log was folded when all of them were decided; None of what no evaluator
            decided.
        opened: Ids of the calls that have begun: one that closed long ago may have had the same.
        closed: Ids of the calls that have closed.
        goals: By id of a call, the row of its goal set.
        reached: By name of a reader, the offset in front of which its work is done.
    """

    records: Sequence[DecidedRecord]
    row: PartitionRow | None = None
    opened: Sequence[str] = ()
    closed: Sequence[str] = ()
    goals: Mapping[str, bytes] = {}
    reached: Mapping[str, int] = {}


class LogFileState(NamedTuple):
    """What a look at the file tells.

    Attributes:
        bytes: Its size, without free pages.
        open_calls: Calls that have begun and not closed.
        newest_ms: When the newest event was appended, in ms since 1970; None without one.
    """

    bytes: int
    open_calls: int
    newest_ms: int | None


class ReadStart(NamedTuple):
    """Where a log begins that is read from a time on.

    Attributes:
        start: The place of its first record of then or later; its end without one.
        start_ms: When that was appended, in ms since 1970.
        end: The place behind its last record.
        is_cut: Whether it has lost records of then or later.
    """

    start: int
    start_ms: int
    end: int
    is_cut: bool


class FileTicks(LogReader):
    """Reads the log in a file as `LogReader` does a partition on Kafka. One process writes it, and
    an event that is sent again is not written again: so nothing is void, and nothing a repeat.
    """

    # what it is stands in the record
    def read(self, record: FileRecord) -> Event | Tick:  # type: ignore[override]
        """Takes the next record."""
        if isinstance(record.read, Tick):
            self.known_ms = record.read.known_ms
            self.begin = Begin(record.offset, self.known_ms)
        return record.read


# Reading: short questions, so that no reader keeps the file from being tidied.


class FileReader:
    """Reads a log in a file that this or another process writes."""

    def __init__(self, reader: sqlite3.Connection) -> None:
        self._reader = reader

    @property
    def row(self) -> PartitionRow | None:
        """How far the evaluator came; None before it began."""
        row = _state(self._reader, "row")
        return None if row is None else PartitionRow.model_validate_json(row)

    @property
    def end(self) -> int:
        """The place of the next record."""
        return _last(self._reader)[0] + 1

    @property
    def first(self) -> int:
        """The place of the first record there is; that of the next one in an empty log."""
        (place,) = self._reader.execute("SELECT min(place) FROM log").fetchone()
        return self.end if place is None else int(place)

    def read(self, place: int = 0, most: int = -1) -> list[FileRecord]:
        """The next records from a place on; all without a number."""
        return list(self._records(_NEXT, place, most))

    def read_of_open_calls(self, first: int, until: int) -> Iterator[FileRecord]:
        """The ticks from a place to another, and the events of calls that have not closed, in
        order.
        """
        return self._records(_OF_OPEN_CALLS, first, until)

    def events_of(self, conversation_id: str) -> list[Event]:
        """The events of a call, in order."""
        found = (record.read for record in self._records(_OF_CALL, conversation_id.encode()))
        return [each for each in found if isinstance(each, Event)]

    def event_at(self, place: int) -> Event | None:
        """The event at a place; None if there is none. Of a call of which nothing was taken it may
        have no key.
        """
        found = self.read(place, 1)
        read = found[0].read if found and found[0].offset == place else None
        return read if isinstance(read, Event) else None

    def since(self, since_ms: int) -> ReadStart:
        """Where to begin to read from a time on."""

        def at(place: int) -> tuple[int, int]:
            found = self._reader.execute(
                "SELECT place, at_ms FROM log WHERE place >= ? ORDER BY place LIMIT 1", [place]
            )
            return found.fetchone() or (end, 2**62)

        end = self.end
        first, first_ms = at(0)
        low, high = first, end
        # there is no index of times, which fall only where a wrong clock was set right
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if at(middle)[1] >= since_ms else (middle + 1, high)
        start, start_ms = at(low)
        return ReadStart(start, start_ms, end, start == first > FIRST_PLACE and first_ms > since_ms)

    def between(self, start: int, end: int) -> Iterator[FileRecord]:
        """The records from a place to before another, read in short questions."""
        while records := self.read(start, min(READ_AT_ONCE, end - start)):
            yield from (record for record in records if record.offset < end)
            start = records[-1].offset + 1

    def has_closed(self, conversation_id: str) -> bool | None:
        """Whether a call has closed; None if the log has no events of it."""
        asked = (
            "SELECT closed FROM call WHERE key = ? AND EXISTS (SELECT 1 FROM log WHERE call = "
            "call.id)"
        )
        found = self._reader.execute(asked, [conversation_id.encode()]).fetchone()
        return None if found is None else found[0] is not None

    def state(self) -> LogFileState:
        """A look at the whole file."""
        (open_calls,) = self._reader.execute(
            "SELECT count(*) FROM call WHERE closed IS NULL"
        ).fetchone()
        newest = self._reader.execute(
            "SELECT at_ms FROM log WHERE call IS NOT NULL ORDER BY place DESC LIMIT 1"
        ).fetchone()
        return LogFileState(size_of(self._reader), open_calls, newest and newest[0])

    def closed_calls(self, most: int) -> dict[str, int]:
        """The calls that closed last, in order, each with a place behind its end."""
        found = self._reader.execute(
            "SELECT key, closed FROM call WHERE closed IS NOT NULL ORDER BY closed DESC LIMIT ?",
            [most],
        )
        return {key.decode(): place for key, place in reversed(found.fetchall())}

    def goals(self) -> Sequence[bytes]:
        """The rows of the goal sets of the calls that have not closed."""
        return [
            value
            for (value,) in self._reader.execute(
                "SELECT goals FROM call WHERE goals IS NOT NULL"
            ).fetchall()
        ]

    def records(self, topic: str, offset: int = 0, most: int = -1) -> list[DecidedRecord]:
        """The next records of a topic from an offset on; all without a number."""
        asked = (
            "SELECT topic, key, value, offset, at_ms FROM record WHERE topic = ? AND offset >= ? "
            "ORDER BY offset LIMIT ?"
        )
        return [
            DecidedRecord(*each)
            for each in self._reader.execute(asked, [topic, offset, most]).fetchall()
        ]

    def next_offset(self, topic: str) -> int:
        """The offset behind the last record of a topic that there is; 0 without any."""
        (end,) = self._reader.execute(
            "SELECT ifnull(max(offset) + 1, 0) FROM record WHERE topic = ?", [topic]
        ).fetchone()
        return int(end)

    def reached(self, name: str) -> int:
        """The offset in front of which the work of a reader is done; 0 before it began."""
        return _state(self._reader, f"reached {name}") or 0

    def _records(self, asked: str, *given: object) -> Iterator[FileRecord]:
        return (_record(*each) for each in self._reader.execute(asked, given))


@contextlib.contextmanager
def reading(folder: Path) -> Iterator[FileReader]:
    """Reads the log of a folder while this or another process writes it.

    Raises:
        LogFileError: It cannot be read.
    """
    path = folder / FILE_NAME
    try:
        with contextlib.closing(_connected(path, "ro")) as connection:
            _require_format(connection, path, FORMAT)
            yield FileReader(connection)
    except sqlite3.Error as error:
        raise LogFileError(
            f"{path}: it cannot be read ({error}). Nothing was changed. Read it as a user who may "
            "write in its folder, because SQLite makes files beside it; a damaged file can only be "
            "moved away."
        ) from error


# Writing: each verb is a step of a transaction that it shares with those that wait beside it.


class FileLog(FileReader):
    """The log of one folder. Its methods belong to the event loop; a thread of its own writes.

    Attributes:
        grown: Set when there are new events or ticks; its reader clears it.
        decided: Set when there are new records of topics; their reader clears it.
        id: Names this log; another one in its place, which counts from 0 again, has another name.
        commits: Its way to the disk, which says why nothing can be written now.
        retention: What is deleted, and how large the file is.
    """

    def __init__(
        self,
        folder: Path,
        *,
        retention_ms: int = 7 * DAY_MS,
        max_bytes: int = MAX_BYTES,
        clock_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        """Nothing is opened before `open`."""
        self.grown, self.decided = asyncio.Event(), asyncio.Event()
        self.id = ""
        self._folder = folder
        self._path = folder / FILE_NAME
        self._clock_ms = clock_ms
        self.commits = StepCommits(self._path)
        self.retention = Retention(self._path, retention_ms, max_bytes)
        self._has_deleted = False
        self._lock: sqlite3.Connection
        self._writer: sqlite3.Connection

    def open(self) -> None:
        """Opens the file, or makes it.

        Raises:
            LogFileError: It cannot be used.
        """
        try:
            make_folder(self._folder)
            self._lock = lock_folder(self._folder)
            ensure_file(self._path)
            self._writer = _connected(self._path, "rw")
            self._set_up()
            self._reader = _connected(self._path, "ro")
        except FolderLockedError as error:
            raise LogInUseError(
                f"{self._folder}: another callgauge writes this folder. Stop it, or give this one "
                "a --folder of its own."
            ) from error
        except (OSError, sqlite3.Error) as error:
            raise LogFileError(
                f"{self._path}: it cannot be used ({error}). Nothing was changed. See to the disk "
                "and to the rights of the folder, or choose another one with --folder; a damaged "
                "file can be moved away, and the calls that ran are lost with it."
            ) from error
        self.commits.start(self._writer)

    def _set_up(self) -> None:
        writer = self._writer
        is_new = not _require_format(writer, self._path, 0, FORMAT)
        if is_new:
            writer.execute("PRAGMA auto_vacuum = INCREMENTAL")
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("PRAGMA synchronous = FULL")
        # overwrites where that writes no further page
        writer.execute("PRAGMA secure_delete = FAST")
        if is_new:
            with transaction(writer):
                for statement in _TABLES:
                    writer.execute(statement)
                _set_state(writer, "id", secrets.token_hex(8))
                writer.execute(f"PRAGMA user_version = {FORMAT}")
        self.id = _state(writer, "id")

    async def close(self) -> None:
        """Writes what waits, and lets another process write. Harmless when repeated."""
        if await self.commits.close():
            for connection in (self._reader, self._writer, self._lock):
                connection.close()

    async def append(
        self, records: Collection[OutgoingRecord], *, answers: int | None = None
    ) -> None:
        """Appends events; returns when they are on the disk. One that is in the log already, by its
        source and id, is passed over.

        Args:
            records: The events.
            answers: Offset of a question that they answer: it goes in the same transaction.

        Raises:
            NotWrittenError: The disk did not take them.
        """
        await self.commits.of(partial(self._append, records, answers))
        self.grown.set()

    async def tick(self) -> None:
        """Tells that time passes. Raises as `append`."""
        await self.commits.of(self._tick)
        self.grown.set()

    async def publish(self, decided: Decided) -> None:
        """Writes what was decided, and the place; all or nothing. Raises as `append`."""
        await self.commits.of(partial(self._publish, decided))
        self.decided.set()

    async def settle(self, open_calls: Iterable[str], place: int) -> None:
        """Forgets the calls without an event from a place on that are not open and have not closed:
        they ended without a row, and a later call may have the id of one. Raises as `append`.
        """
        await self.commits.of(partial(self._settle, {each.encode() for each in open_calls}, place))

    async def forget_records(self, reached: Mapping[str, int]) -> None:
        """Deletes the records of topics in front of an offset of each: all who need them have read
        them. Raises as `append`.
        """
        delete = "DELETE FROM record WHERE topic = ? AND offset < ?"
        await self.commits.of(lambda: self._writer.executemany(delete, reached.items()))

    async def forget(self, conversation_ids: Collection[str]) -> None:
        """Deletes the events of calls that have closed, and the records about them, so that nothing
        of them is in the file any more but their ids, and figures until all have read these. The
        events of a call that is open are needed until it closes, and stay.

        Raises:
            NotWrittenError: The disk did not take it, or a reader keeps the deleted pages. It can
                be tried again.
        """
        deleted = await self.commits.of(
            partial(self._forget, [each.encode() for each in conversation_ids])
        )
        self._has_deleted |= deleted > 0
        if not self._has_deleted:
            return
        # free pages have what was deleted otherwise
        while await self.commits.of(lambda: free_some(self._writer)):
            pass
        if await self.commits.between(self._empty):
            raise NotWrittenError("a reader keeps deleted pages from being overwritten")
        self._has_deleted = False

    async def put_back(self, refused: Sequence[tuple[int, str]]) -> list[int | None]:
        """Appends events of the log once more, as new ones that name the place where they were
        refused first. Raises as `append`.

        Args:
            refused: The place of each, and the id of its call, which the log has forgotten if all
                its events were refused.

        Returns:
            Where each stands now; None for one that is not there any more, or was put back before.
        """
        places = await self.commits.of(lambda: [self._put_back(*each) for each in refused])
        self.grown.set()
        return places

    async def trim(self) -> int:
        """Deletes some of the events that are too old, or too many for the size of the file;
        returns how many. Raises as `append`.
        """
        return await self.commits.of(self._trim)

    # The steps, in the thread.

    def _now_ms(self) -> int:
        """The time of the log. Where no reader was active for a while, or the clock went back, a
        tick says so first.
        """
        _, last_ms = _last(self._writer)
        now_ms = self._clock_ms()
        if last_ms and not -BACK_MS <= now_ms - last_ms <= GAP_MS:
            self._writer.execute(_APPEND_TICK, [now_ms, now_ms - last_ms])
            return now_ms
        return max(last_ms, now_ms)

    def _tick(self) -> None:
        now_ms, last = self._now_ms(), self._writer.execute(_LAST_TICK).fetchone()
        if last is None or last[0] < now_ms:
            self._writer.execute(_APPEND_TICK, [now_ms, None])

    def _append(self, records: Collection[OutgoingRecord], answers: int | None) -> None:
        now_ms, writer = self._now_ms(), self._writer
        writer.executemany(
            "INSERT OR IGNORE INTO call (key) VALUES (?)", {(record.key,) for record in records}
        )
        events = [
            (
                SOURCES.index(source),
                now_ms,
                _digest_of(headers),
                value,
                msgspec.msgpack.encode(headers),
                key,
            )
            for source, key, value, headers in records
        ]
        writer.executemany(_APPEND, events)
        if answers is not None:
            writer.execute("DELETE FROM record WHERE offset = ?", [answers])

    def _put_back(self, place: int, conversation_id: str) -> int | None:
        event = FileReader(self._writer).event_at(place)
        if event is None:
            return None
        self._now_ms()  # a tick that it may write is not the event
        before = _last(self._writer)
        named = {
            REPLAY_OF_HEADER: f"{event.topic}[{event.partition}]@{event.offset}".encode(),
            **dict(event.headers),
        }
        again = OutgoingRecord(
            event.source, conversation_id.encode(), event.value or b"", [*named.items()]
        )
        self._append([again], None)
        after = _last(self._writer)
        return None if after == before else after[0]

    def _publish(self, decided: Decided) -> None:
        now_ms, change = self._clock_ms(), self._writer.executemany
        records = [(topic, now_ms, key, value) for topic, key, value, *_ in decided.records]
        change("INSERT INTO record (topic, at_ms, key, value) VALUES (?, ?, ?, ?)", records)
        change(
            "UPDATE call SET closed = NULL WHERE key = ?",
            [(each.encode(),) for each in decided.opened],
        )
        goals = [(goals, each.encode()) for each, goals in decided.goals.items()]
        change("UPDATE call SET goals = ? WHERE key = ?", goals)
        if decided.row is not None:
            closed = [(decided.row.place, each.encode()) for each in decided.closed]
            change("UPDATE call SET closed = ?, goals = NULL WHERE key = ?", closed)
            _set_state(self._writer, "row", decided.row.model_dump_json())
        for name, offset in decided.reached.items():
            _set_state(self._writer, f"reached {name}", offset)

    def _settle(self, open_calls: Collection[bytes], place: int) -> None:
        asked = (
            "SELECT id, key FROM call WHERE closed IS NULL AND NOT EXISTS (SELECT 1 FROM log WHERE "
            "call = call.id AND place >= ?)"
        )
        found = self._writer.execute(asked, [place]).fetchall()
        gone = [(call,) for call, key in found if key not in open_calls]
        self._writer.executemany("DELETE FROM call WHERE id = ?", gone)

    def _forget(self, keys: Sequence[bytes]) -> int:
        ask, before = self._writer.execute, self._writer.total_changes
        # for events that are only too old that is not worth its time
        ask("PRAGMA secure_delete = ON")
        try:
            for key in keys:
                closed = ask(
                    "SELECT id FROM call WHERE key = ? AND closed IS NOT NULL", [key]
                ).fetchone()
                if closed is not None:
                    ask("DELETE FROM log WHERE call = ?", closed)
                    # Rows without words are counted and shown first: readers delete them.
                    kept = [ANNOTATIONS_TOPIC, SCORES_TOPIC]
                    ask("DELETE FROM record WHERE key = ? AND topic NOT IN (?, ?)", [key, *kept])
        finally:
            ask("PRAGMA secure_delete = FAST")
        return self._writer.total_changes - before

    def _empty(self) -> bool:
        """Empties SQLite's own log, which has pages as they were before; returns whether a reader
        keeps it from that.
        """
        return bool(self._writer.execute("PRAGMA wal_checkpoint (TRUNCATE)").fetchone()[0])

    def _trim(self) -> int:
        row = FileReader(self._writer).row
        return self.retention.trim(
            self._writer, 0 if row is None else row.first, _last(self._writer)[1]
        )


def _record(
    place: int, at_ms: int, source: int | None, value: Any, headers: bytes | None, key: bytes | None
) -> FileRecord:
    if source is None:
        tick = Tick.model_construct(
            term=0, known_ms=at_ms, inputs={}, left_out=(), gap_ms=value or 0, place=place
        )
        return FileRecord(place, at_ms, tick)
    of = SOURCES[source]
    return FileRecord(
        place,
        at_ms,
        Event(
            TOPIC_BY_SOURCE[of],
            0,
            place,
            at_ms,
            key,
            value,
            _HEADERS.decode(headers or b"\x90"),
            of,
            0,
            0,
            place,
        ),
    )


def _digest_of(headers: Sequence[tuple[str, bytes]]) -> bytes | None:
    """Names an event by its source and id, or by the place from which it was put back; None for one
    without.
    """
    named = {
        name: value
        for name, value in headers
        if name in (ID_HEADER, SOURCE_HEADER, REPLAY_OF_HEADER)
    }
    if (first := named.pop(REPLAY_OF_HEADER, None)) is not None:
        return blake2b(b"\0put back\0" + first, digest_size=12).digest()
    if len(named) < 2:  # both of them
        return None
    return blake2b(named[SOURCE_HEADER] + b"\0" + named[ID_HEADER], digest_size=12).digest()


def _connected(path: Path, mode: str) -> sqlite3.Connection:
    uri = f"{path.resolve().as_uri()}?mode={mode}"
    return sqlite3.connect(
        uri, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, uri=True
    )


def _require_format(connection: sqlite3.Connection, path: Path, *known: int) -> int:
    (seen,) = connection.execute("PRAGMA user_version").fetchone()
    if seen not in known:
        raise LogFileError(
            f"{path}: its format is {seen}, and this callgauge knows {FORMAT}: another version "
            "wrote it. Install that one again, or choose another --folder. Nothing was changed."
        )
    return int(seen)


def _last(connection: sqlite3.Connection) -> tuple[int, int]:
    """Place and time of the last record; zeros in an empty log."""
    return connection.execute(_LAST).fetchone() or (0, 0)


def _state(connection: sqlite3.Connection, name: str) -> Any:
    found = connection.execute("SELECT value FROM state WHERE name = ?", [name]).fetchone()
    return None if found is None else found[0]


def _set_state(connection: sqlite3.Connection, name: str, value: object) -> None:
    connection.execute("INSERT OR REPLACE INTO state VALUES (?, ?)", [name, value])
