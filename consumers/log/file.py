"""The log in a file, for one machine: what `events` and the topics of rows are on Kafka, in one SQLite database that one process writes.

Events stand in it in one order, and time does too, as ticks. What is decided is written with the place up to which it was decided, in one
transaction. What has been acknowledged is on the disk. Readers of decided records say how far they have come, and what all have read is
deleted; events are deleted by age and by size, in steps of a few milliseconds, and never those of a call that is open.
"""

import asyncio
import contextlib
import secrets
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import blake2b
from heapq import merge
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import structlog

from consumers.runtime.private_files import FolderLockedError, ensure_file, lock_folder, make_folder
from consumers.runtime.process import OperatorError, end_tasks, wall_clock_ms
from schemas.events.envelope import ID_HEADER, SOURCE_HEADER
from schemas.log import SOURCES, Begin, Event, OutgoingRecord, Tick
from schemas.owners import PartitionRow
from schemas.topics import TOPIC_BY_SOURCE
from schemas.units import DAY_MS

FILE_NAME: Final = "log.sqlite"
FORMAT: Final = 1
"""`user_version` of the database. A file with a higher one is of a newer callgauge."""
GATHER_SECONDS: Final = 0.004
"""How long requests gather before they are committed together: a commit to the disk costs the same for one and for fifty."""
MAX_REQUESTS: Final = 500
"""Requests of one commit. Further ones wait for the next."""
GAP_MS: Final = 5_000
"""Time without a record of the log, twice a second of which are ticks, after which nobody has listened: the process did not run."""
MAX_KEPT_NUMBERS: Final = 20_000
"""Calls whose number is remembered; that of others is looked up."""
DELETED_IN_A_STEP: Final = 500
"""Events that one step of deletion takes: some ms."""
MAX_BYTES: Final = 4 * 2**30
"""Size of the file beyond which the oldest events go before their time."""
NEARLY_FULL: Final = 0.8
"""Share of that at which a person is told."""
PAGES_FREED_IN_A_STEP: Final = 200
"""Pages that one step gives back to the disk."""
BUSY_SECONDS: Final = 5.0
"""How long a reader in another process may keep a commit waiting."""
CLOSE_SECONDS: Final = 1.5
"""How long the last commit may take."""

_TABLES: Final = (
    "CREATE TABLE log (place INTEGER PRIMARY KEY, call INTEGER, source INTEGER, at_ms INTEGER NOT NULL, said BLOB, value BLOB, "
    "headers BLOB)",
    "CREATE UNIQUE INDEX log_of_call ON log (call, said) WHERE call IS NOT NULL",
    "CREATE INDEX log_ticks ON log (place) WHERE call IS NULL",
    "CREATE TABLE call (id INTEGER PRIMARY KEY AUTOINCREMENT, key BLOB NOT NULL UNIQUE, closed INTEGER, goals BLOB)",
    "CREATE INDEX call_closed ON call (closed)",
    "CREATE TABLE record (topic TEXT, offset INTEGER, at_ms INTEGER NOT NULL, key BLOB NOT NULL, value BLOB NOT NULL, "
    "PRIMARY KEY (topic, offset)) WITHOUT ROWID",
    "CREATE TABLE state (name TEXT PRIMARY KEY, value) WITHOUT ROWID",
)
_EVENT: Final = "place, at_ms, source, value, headers, (SELECT key FROM call WHERE id = log.call)"
_NEXT: Final = f"SELECT {_EVENT} FROM log WHERE place >= ? ORDER BY place LIMIT ?"  # noqa: S608  # our names, as below
_TICKS: Final = f"SELECT {_EVENT} FROM log WHERE call IS NULL AND place >= ? AND place < ? ORDER BY place"  # noqa: S608
_OF_CALL: Final = f"SELECT {_EVENT} FROM log WHERE call = ? AND place >= ? AND place < ?"  # noqa: S608
_HEADERS: Final[msgspec.msgpack.Decoder[list[tuple[str, bytes]]]] = msgspec.msgpack.Decoder(list[tuple[str, bytes]])

Result = TypeVar("Result")

log = structlog.get_logger()


class LogFileError(OperatorError):
    """The file cannot be used: it is damaged, of a newer version, not writable, or another process writes it."""


class NotWrittenError(Exception):
    """The disk did not take a request, and nothing of it is written. It can be made again."""


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
        offset: Its number in its topic; 0 before it is written.
        timestamp: When it was written, in ms since 1970; 0 before.
    """

    topic: str
    key: bytes
    value: bytes
    offset: int = 0
    timestamp: int = 0


class Decided(NamedTuple):
    """What one transaction of the evaluator has.

    Attributes:
        records: The records, in order.
        row: How far the log was folded when all of them were decided.
        opened: Ids of the calls that have begun: one that closed long ago may have had the same.
        closed: Ids of the calls that have closed.
        goals: By id of a call, the row of its goal set.
    """

    records: Sequence[DecidedRecord]
    row: PartitionRow
    opened: Sequence[str] = ()
    closed: Sequence[str] = ()
    goals: Mapping[str, bytes] = {}


class FileTicks:
    """Knows the time of the log as `LogReader` does of a partition on Kafka. One process writes the file, so nothing in it is void.

    Attributes:
        known_ms: Time up to which everything is in the log in front of here.
        begin: Newest tick.
        repeats: Always 0: an event that is sent again is not written again.
        void: Always 0.
    """

    repeats = void = 0

    def __init__(self) -> None:
        self.known_ms = 0
        self.begin: Begin | None = None

    def read(self, record: FileRecord) -> Event | Tick:
        """Takes the next record."""
        if isinstance(record.read, Tick):
            self.known_ms = max(self.known_ms, record.read.known_ms)
            self.begin = Begin(record.offset, self.known_ms)
        return record.read


class _Counts(NamedTuple):
    """What a transaction moves on; it is as before if the transaction fails."""

    place: int
    last_ms: int
    known_ms: int


class FileLog:
    """The log of one folder. Its methods belong to the event loop; a thread of its own writes.

    Attributes:
        grown: Set when there are new events or ticks; its reader clears it.
        decided: Set when there are new records of topics; their reader clears it.
        id: Names this log; another one in its place, which counts from 0 again, has another name.
        fault: Why nothing can be written now; None if it can.
        failures: Writes that failed.
        bytes: Size of the file.
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
        self.fault: str | None = None
        self.failures = self.bytes = 0
        self._is_nearly_full = False
        self._folder = folder
        self._retention_ms = retention_ms
        self._max_bytes = max_bytes
        self._clock_ms = clock_ms
        self._waiting: list[tuple[Callable[[], Any], asyncio.Future[Any]]] = []
        self._wake = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "log")
        self._numbers: dict[bytes, int] = {}
        self._counts = _Counts(0, 0, 0)
        self._offsets: dict[str, int] = {}
        self._committing: asyncio.Task[None] | None = None
        self._lock: sqlite3.Connection | None = None
        self._writer: sqlite3.Connection
        self._reader: sqlite3.Connection

    def open(self) -> None:
        """Opens the file, or makes it.

        Raises:
            LogFileError: It cannot be used.
        """
        path = self._folder / FILE_NAME
        try:
            make_folder(self._folder)
            self._lock = lock_folder(self._folder)
            ensure_file(path)
            self._writer = _connected(path, "rw")
            self._set_up()
            self._reader = _connected(path, "ro")
        except FolderLockedError as error:
            raise LogFileError(
                f"{self._folder}: another callgauge writes this folder. Stop it, or give this one a --folder of its own."
            ) from error
        except (OSError, sqlite3.Error) as error:
            raise LogFileError(
                f"{path}: it cannot be used ({error}). Nothing was changed. See to the disk and to the rights of the folder, or choose "
                "another one with --folder; a damaged file can be moved away, and the calls that ran are lost with it."
            ) from error
        self._committing = asyncio.create_task(self._commit_for_ever(), name="log")

    def _set_up(self) -> None:
        writer = self._writer
        (seen,) = writer.execute("PRAGMA user_version").fetchone()
        if seen > FORMAT:
            raise LogFileError(
                f"{self._folder / FILE_NAME}: its format is {seen}, and this callgauge knows {FORMAT}: a newer one wrote it. Install that "
                "one again, or choose another --folder. Nothing was changed."
            )
        if not seen:
            writer.execute("PRAGMA auto_vacuum = INCREMENTAL")
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("PRAGMA synchronous = FULL")
        if not seen:
            with _transaction(writer):
                for statement in _TABLES:
                    writer.execute(statement)
                _set_state(writer, "id", secrets.token_hex(8))
                writer.execute(f"PRAGMA user_version = {FORMAT}")
        self.id = _state(writer, "id")
        last_place, last_ms = writer.execute("SELECT max(place), max(at_ms) FROM log").fetchone()
        row = _state(writer, "row")
        place = 0 if row is None else PartitionRow.model_validate_json(row).place
        self._counts = _Counts(max(place, (last_place or 0) + 1), last_ms or 0, 0)
        self._offsets = dict(
            writer.execute("SELECT substr(name, 6), value FROM state WHERE name LIKE 'next %'").fetchall()
        )
        self.bytes = self._size()

    async def close(self) -> None:
        """Writes what waits, and lets another process write. Harmless when repeated."""
        committing, self._committing = self._committing, None
        if committing is None:
            return
        with contextlib.suppress(TimeoutError, NotWrittenError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._request(lambda: None)
        await end_tasks([committing])
        self._thread.shutdown()
        for connection in (self._reader, self._writer, self._lock):
            if connection is not None:
                connection.close()

    # Writing. Each request is a step of a transaction that it shares with those that wait beside it.

    async def append(self, records: Sequence[OutgoingRecord], *, answers: tuple[str, int] | None = None) -> None:
        """Appends events; returns when they are on the disk. One that is in the log already, by its source and id, is passed over.

        Args:
            records: The events.
            answers: Topic and offset of a question that they answer: it goes in the same transaction.

        Raises:
            NotWrittenError: The disk did not take them.
        """
        await self._request(partial(self._append, records, answers))
        self.grown.set()

    async def tick(self) -> None:
        """Tells that time passes.

        Raises:
            NotWrittenError: The disk did not take it.
        """
        await self._request(self._now_ms_told)
        self.grown.set()

    async def publish(self, decided: Decided) -> None:
        """Writes what was decided, and the place; all or nothing.

        Raises:
            NotWrittenError: The disk did not take it.
        """
        await self._request(partial(self._publish, decided))
        self.decided.set()

    async def write(self, records: Sequence[DecidedRecord]) -> None:
        """Writes records that no evaluator decided: what people say of calls.

        Raises:
            NotWrittenError: The disk did not take them.
        """
        await self._request(partial(self._write_records, records))
        self.decided.set()

    async def settle(self, open_calls: Iterable[str], place: int) -> None:
        """Forgets the calls without an event from a place on that are not open and have not closed: they ended without a row, and a later
        call may have the id of one.

        Raises:
            NotWrittenError: The disk did not take it.
        """
        await self._request(partial(self._settle, {each.encode() for each in open_calls}, place))

    async def forget_records(self, topic: str, before: int) -> None:
        """Deletes the records of a topic in front of an offset: all who need them have read them.

        Raises:
            NotWrittenError: The disk did not take it.
        """
        statement = "DELETE FROM record WHERE topic = ? AND offset < ?"
        await self._request(lambda: self._writer.execute(statement, [topic, before]))

    async def trim(self) -> int:
        """Deletes some of the events that are too old, or too many for the size of the file; returns how many.

        Raises:
            NotWrittenError: The disk did not take it.
        """
        return await self._request(self._trim)

    async def _request(self, step: Callable[[], Result]) -> Result:
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((step, future))
        self._wake.set()
        return await future

    async def _commit_for_ever(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._wake.wait()
            if len(self._waiting) < MAX_REQUESTS:
                await asyncio.sleep(GATHER_SECONDS)
            requests, self._waiting = self._waiting[:MAX_REQUESTS], self._waiting[MAX_REQUESTS:]
            if not self._waiting:
                self._wake.clear()
            steps, written = [step for step, _ in requests], self._writer.total_changes
            try:
                results = await loop.run_in_executor(self._thread, self._commit, steps)
            except (sqlite3.Error, OSError) as error:
                self.failures += 1
                self._tell(str(error))
                for _, future in requests:
                    if not future.done():
                        future.set_exception(NotWrittenError(str(error)))
                        future.exception()  # who waited may be gone
            except Exception as error:  # noqa: BLE001  # a defect in a step: it is raised where that was asked for
                for _, future in requests:
                    if not future.done():
                        future.set_exception(error)
                        future.exception()
            else:
                if self._writer.total_changes > written:  # a step that found nothing to do says nothing of the disk
                    self._tell(None)
                for (_, future), result in zip(requests, results, strict=True):
                    if not future.done():
                        future.set_result(result)

    def _commit(self, steps: Iterable[Callable[[], Any]]) -> list[Any]:
        """Takes the steps in one transaction, in order."""
        before, offsets = self._counts, dict(self._offsets)
        try:
            with _transaction(self._writer):
                return [step() for step in steps]
        except BaseException:
            self._counts, self._offsets = before, offsets
            self._numbers.clear()
            raise

    def _tell(self, fault: str | None) -> None:
        if fault is not None and self.fault is None:
            log.error(
                "log_not_written", file=str(self._folder / FILE_NAME), error=fault,
                what_happens_now="Senders get 503 and send again; nothing that was acknowledged is lost. It is tried again.",
                what_to_do="Make room on the disk, and see to the rights of the folder.",
            )  # fmt: skip
        elif fault is None and self.fault is not None:
            log.info("log_written_again", file=str(self._folder / FILE_NAME))
        self.fault = fault

    def _now_ms(self) -> int:
        """The time of the log: never less than before. Where nobody has listened for a while, a tick says so first."""
        place, last_ms, known_ms = self._counts
        now_ms = max(last_ms, self._clock_ms())
        if last_ms and now_ms - last_ms > GAP_MS:
            self._insert_tick(place, now_ms, now_ms - last_ms)
            place, known_ms = place + 1, now_ms
        self._counts = _Counts(place, now_ms, known_ms)
        return now_ms

    def _now_ms_told(self) -> None:
        now_ms = self._now_ms()
        place, _, known_ms = self._counts
        if known_ms < now_ms:
            self._insert_tick(place, now_ms, 0)
            self._counts = _Counts(place + 1, now_ms, now_ms)

    def _insert_tick(self, place: int, known_ms: int, gap_ms: int) -> None:
        self._writer.execute(
            "INSERT INTO log (place, at_ms, value) VALUES (?, ?, ?)", [place, known_ms, gap_ms or None]
        )

    def _append(self, records: Iterable[OutgoingRecord], answers: tuple[str, int] | None) -> None:
        now_ms = self._now_ms()
        place, _, known_ms = self._counts
        for source, key, value, headers in records:
            event = [
                place, self._number_of(key), SOURCES.index(source), now_ms, _digest_of(headers), value,
                msgspec.msgpack.encode(headers),
            ]  # fmt: skip
            written = self._writer.execute("INSERT OR IGNORE INTO log VALUES (?, ?, ?, ?, ?, ?, ?)", event)
            place += written.rowcount
        self._counts = _Counts(place, now_ms, known_ms)
        if answers is not None:
            self._writer.execute("DELETE FROM record WHERE topic = ? AND offset = ?", answers)

    def _publish(self, decided: Decided) -> None:
        self._write_records(decided.records)
        for conversation_id in decided.opened:
            self._writer.execute("UPDATE call SET closed = NULL WHERE key = ?", [conversation_id.encode()])
        for conversation_id, goals in decided.goals.items():
            self._writer.execute("UPDATE call SET goals = ? WHERE key = ?", [goals, conversation_id.encode()])
        place = decided.row.place
        for conversation_id in decided.closed:
            closed = [place, conversation_id.encode()]
            self._writer.execute("UPDATE call SET closed = ?, goals = NULL WHERE key = ?", closed)
        _set_state(self._writer, "row", decided.row.model_dump_json())

    def _settle(self, open_calls: "set[bytes]", place: int) -> None:
        ask = self._writer.execute
        for call, key in ask("SELECT id, key FROM call WHERE closed IS NULL").fetchall():
            if (
                key not in open_calls
                and not ask("SELECT 1 FROM log WHERE call = ? AND place >= ?", [call, place]).fetchone()
            ):
                ask("DELETE FROM call WHERE id = ?", [call])
        self._numbers.clear()

    def _write_records(self, records: Iterable[DecidedRecord]) -> None:
        now_ms, topics = self._clock_ms(), set()
        for topic, key, value, *_ in records:
            offset = self._offsets.get(topic, 0)
            self._offsets[topic] = offset + 1
            topics.add(topic)
            self._writer.execute("INSERT INTO record VALUES (?, ?, ?, ?, ?)", [topic, offset, now_ms, key, value])
        for topic in topics:
            _set_state(self._writer, f"next {topic}", self._offsets[topic])

    def _trim(self) -> int:
        """Events in front of the first open call may go; a call that has closed so long ago is forgotten with them."""
        writer = self._writer
        row = _state(writer, "row")
        first = 0 if row is None else PartitionRow.model_validate_json(row).first
        self.bytes = self._size()
        is_full = self.bytes > self._max_bytes
        self._tell_size()
        old_ms = self._counts.last_ms - (0 if is_full else self._retention_ms)
        found = writer.execute("SELECT place, at_ms FROM log ORDER BY place LIMIT ?", [DELETED_IN_A_STEP]).fetchall()
        gone = [place for place, at_ms in found if place < first and at_ms < old_ms]
        if gone:
            writer.execute("DELETE FROM log WHERE place <= ?", [gone[-1]])
            writer.execute("DELETE FROM call WHERE closed <= ?", [gone[-1]])
            self._numbers.clear()
        old_records = (
            "DELETE FROM record WHERE (topic, offset) IN (SELECT topic, offset FROM record WHERE at_ms < ? LIMIT ?)"
        )
        writer.execute(old_records, [self._clock_ms() - self._retention_ms, DELETED_IN_A_STEP])
        (free,) = writer.execute("PRAGMA freelist_count").fetchone()
        for _ in range(
            min(free, PAGES_FREED_IN_A_STEP)
        ):  # Python ends the statement after its first page, however many it may free
            writer.execute("PRAGMA incremental_vacuum (1)")
        return len(gone)

    def _tell_size(self) -> None:
        """Says once that the file will soon be as large as it may be."""
        was_nearly_full, self._is_nearly_full = self._is_nearly_full, self.bytes > NEARLY_FULL * self._max_bytes
        if self._is_nearly_full and not was_nearly_full:
            log.warning(
                "log_nearly_full", file=str(self._folder / FILE_NAME), bytes=self.bytes, most_bytes=self._max_bytes,
                what_happens_now="At the limit the oldest events of closed calls go before their time; their rows stay in history.",
                what_to_do="Nothing, unless events of the last days must be evaluated again. More calls than this are for Kafka.",
            )  # fmt: skip

    def _size(self) -> int:
        pages, free, each = (
            self._writer.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_count", "freelist_count", "page_size")
        )
        return int((pages - free) * each)

    def _number_of(self, key: bytes) -> int:
        number = self._numbers.get(key)
        if number is None:
            if len(self._numbers) >= MAX_KEPT_NUMBERS:
                self._numbers.clear()
            self._writer.execute("INSERT OR IGNORE INTO call (key) VALUES (?)", [key])
            (number,) = self._writer.execute("SELECT id FROM call WHERE key = ?", [key]).fetchone()
            self._numbers[key] = number
        return int(number)

    # Reading: short questions, so that no reader keeps the file from being tidied.

    @property
    def row(self) -> PartitionRow | None:
        """How far the evaluator came; None before it began."""
        row = _state(self._reader, "row")
        return None if row is None else PartitionRow.model_validate_json(row)

    @property
    def end(self) -> int:
        """The place of the next record."""
        return self._counts.place

    @property
    def first(self) -> int:
        """The place of the first record there is; that of the next one in an empty log."""
        (place,) = self._reader.execute("SELECT min(place) FROM log").fetchone()
        return self.end if place is None else int(place)

    def read(self, place: int, most: int) -> list[FileRecord]:
        """The next records from a place on."""
        found = self._reader.execute(_NEXT, [place, most])
        return [_record(*each) for each in found.fetchall()]

    def read_of_open_calls(self, first: int, until: int) -> Iterator[FileRecord]:
        """The ticks from a place to another, and the events of calls that have not closed, in order."""
        ask = self._reader.execute
        calls = ask("SELECT id FROM call WHERE closed IS NULL").fetchall()
        ticks = ask(_TICKS, [first, until])
        events = [_record(*each) for (call,) in calls for each in ask(_OF_CALL, [call, first, until])]
        by_place = attrgetter("offset")
        yield from merge((_record(*each) for each in ticks), sorted(events, key=by_place), key=by_place)

    def closed_calls(self, most: int) -> dict[str, int]:
        """The calls that closed last, in order, each with a place behind its end."""
        found = self._reader.execute(
            "SELECT key, closed FROM call WHERE closed IS NOT NULL ORDER BY closed DESC LIMIT ?", [most]
        ).fetchall()
        return {key.decode(): place for key, place in reversed(found)}

    def goals(self) -> Sequence[bytes]:
        """The rows of the goal sets of the calls that have not closed."""
        return [value for (value,) in self._reader.execute("SELECT goals FROM call WHERE goals IS NOT NULL").fetchall()]

    def records(self, topic: str, offset: int, most: int) -> list[DecidedRecord]:
        """The next records of a topic from an offset on."""
        found = self._reader.execute(
            "SELECT topic, key, value, offset, at_ms FROM record WHERE topic = ? AND offset >= ? ORDER BY offset LIMIT ?",
            [topic, offset, most],
        )
        return [DecidedRecord(*each) for each in found.fetchall()]

    def first_offset(self, topic: str) -> int:
        """The offset of the first record of a topic that there is; that of the next one without any."""
        (offset,) = self._reader.execute("SELECT min(offset) FROM record WHERE topic = ?", [topic]).fetchone()
        return self.next_offset(topic) if offset is None else int(offset)

    def next_offset(self, topic: str) -> int:
        """The offset of the next record of a topic."""
        return self._offsets.get(topic, 0)


def records_of(folder: Path, topic: str, since_ms: int) -> list[DecidedRecord]:
    """The records of a topic in a folder that this or another process writes, from a time on, in order.

    Raises:
        LogFileError: The file cannot be read.
    """
    asked = "SELECT topic, key, value, offset, at_ms FROM record WHERE topic = ? AND at_ms >= ? ORDER BY offset"
    try:
        with contextlib.closing(_connected(folder / FILE_NAME, "ro")) as reader:
            return [DecidedRecord(*each) for each in reader.execute(asked, [topic, since_ms]).fetchall()]
    except sqlite3.Error as error:
        raise LogFileError(f"{folder / FILE_NAME}: it cannot be read ({error}).") from error


def events_of(folder: Path, conversation_id: str) -> list[Event]:
    """The events of a call in a folder that this or another process writes, in order.

    Raises:
        LogFileError: The file cannot be read.
    """
    try:
        with contextlib.closing(_connected(folder / FILE_NAME, "ro")) as reader:
            call = reader.execute("SELECT id FROM call WHERE key = ?", [conversation_id.encode()]).fetchone()
            found = [] if call is None else reader.execute(_OF_CALL, [call[0], 0, 2**62]).fetchall()
    except sqlite3.Error as error:
        raise LogFileError(f"{folder / FILE_NAME}: it cannot be read ({error}).") from error
    events = (_record(*each).read for each in found)
    return sorted((each for each in events if isinstance(each, Event)), key=attrgetter("place"))


def _record(
    place: int, at_ms: int, source: int | None, value: Any, headers: bytes | None, key: bytes | None
) -> FileRecord:
    if source is None:
        tick = Tick.model_construct(term=0, known_ms=at_ms, inputs={}, left_out=(), gap_ms=value or 0, place=place)
        return FileRecord(place, at_ms, tick)
    of = SOURCES[source]
    return FileRecord(
        place, at_ms,
        Event(TOPIC_BY_SOURCE[of], 0, place, at_ms, key, value, _HEADERS.decode(headers or b"\x90"), of, 0, 0, place),
    )  # fmt: skip


def _digest_of(headers: Sequence[tuple[str, bytes]]) -> bytes | None:
    """Names an event by its source and id; None for one without."""
    named = {name: value for name, value in headers if name in (ID_HEADER, SOURCE_HEADER)}
    if len(named) < 2:  # both of them
        return None
    return blake2b(named[SOURCE_HEADER] + b"\0" + named[ID_HEADER], digest_size=12).digest()


def _connected(path: Path, mode: str) -> sqlite3.Connection:
    uri = f"{path.resolve().as_uri()}?mode={mode}"
    return sqlite3.connect(uri, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, uri=True)


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


def _state(connection: sqlite3.Connection, name: str) -> Any:
    found = connection.execute("SELECT value FROM state WHERE name = ?", [name]).fetchone()
    return None if found is None else found[0]


def _set_state(connection: sqlite3.Connection, name: str, value: object) -> None:
    connection.execute("INSERT OR REPLACE INTO state VALUES (?, ?)", [name, value])
