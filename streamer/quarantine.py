"""Refused records: reads them, shows them, and puts them back after a fix."""

import asyncio
import heapq
import sys
from collections import Counter
from collections.abc import (
    AsyncIterator,
    Collection,
    Coroutine,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

import typer
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError, MessageSizeTooLargeError
from aiokafka.structs import ConsumerRecord
from pydantic import ValidationError
from rich.console import Group, RenderableType
from rich.styled import Styled
from rich.table import Table
from rich.text import Text

from consumers.engine.admission import Arrival, admit
from consumers.engine.limits import Limits, needs_of
from consumers.engine.redaction.redactor import MARGIN_CHARS, Redactor
from consumers.log.file import reading
from consumers.runtime.kafka.connection import (
    KafkaSettings,
    explained,
    murmur2_place,
    partition_counts,
    require_access,
)
from consumers.runtime.kafka.ranges import onlooker
from consumers.runtime.process import wall_clock_ms
from consumers.runtime.visible import visible
from consumers.view.words import counted
from schemas.closed_sets import InputSource, RefusalReason
from schemas.log import REPLAY_OF_HEADER
from schemas.quarantine import QuarantineRecord
from schemas.rows import CallRow, RowError, decode
from schemas.topics import QUARANTINE_TOPIC, SCORES_TOPIC, SOURCE_BY_TOPIC
from schemas.wire import MAX_NAME_CHARS
from streamer.cluster.facts import PUT_BACK_NEEDS
from streamer.cluster.readers import (
    Coordinates,
    RecordGoneError,
    RecordReader,
    record_reader,
    records_so_far,
)
from streamer.facts import PUT_BACK_PATH, STOPPED_BY_SIGNAL
from streamer.settings.all_settings import Settings
from streamer.signals import stop_on_signals
from streamer.sources.posting import post_command
from streamer.terminal import (
    output_console,
    plain_table,
    print_line,
    print_lines,
    quiet_libraries,
    say,
)
from streamer.time_bounds import moment_given, shown_moment

# Reads the `quarantine` topic: refused records and the reasons. It uses no consumer group, so it
# disturbs no other reader.


@dataclass(frozen=True, slots=True)
class Wanted:
    """Filter of quarantine entries; empty and None select all.

    Attributes:
        reasons: Any of these.
        topics: Any of these, by full name.
        conversation: The key of the refused record.
        since_ms: When the broker took the refused record: at this moment or later.
        until_ms: Before this moment.
        places: Any of these.
    """

    reasons: Collection[RefusalReason] = ()
    topics: Collection[str] = ()
    conversation: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    places: Collection[Coordinates] = ()

    def matches(self, record: QuarantineRecord) -> bool:
        """Whether an entry is one of them."""
        return (
            (not self.reasons or record.reason in self.reasons)
            and (not self.topics or record.topic in self.topics)
            and (self.conversation is None or record.key == self.conversation)
            and (self.since_ms is None or record.quarantined_at_ms >= self.since_ms)
            and (self.until_ms is None or record.quarantined_at_ms < self.until_ms)
            and (not self.places or Coordinates.of(record) in self.places)
        )


@dataclass(slots=True)
class Entries:
    """The entries found by a search.

    Attributes:
        newest: The newest entries that match, oldest first, each refused record once.
        by_reason: Number of all matching entries, by reason.
        unreadable: Records of another program or of a newer version.
    """

    newest: list[QuarantineRecord] = field(default_factory=list)
    by_reason: Counter[RefusalReason] = field(default_factory=Counter)
    unreadable: int = 0

    @property
    def matching(self) -> int:
        """How many entries match."""
        return self.by_reason.total()


async def quarantined(
    kafka: KafkaSettings, wanted: Wanted, *, most: int, folder: Path | None = None
) -> Entries:
    """Reads the topic, or what a folder of `serve` has of it, up to where it ends now.

    Args:
        kafka: Where the broker is.
        wanted: Which entries.
        most: How many to keep at most; memory is bounded by it.
        folder: The folder of a `serve`; None for Kafka.

    Raises:
        LogFileError: There is no log in the folder, or it cannot be read.
        KafkaUnreachableError: No broker answers, or not any more.
        TopicsUnfitError: There is no quarantine topic.
    """
    found = Entries()
    kept: list[tuple[int, Coordinates]] = []
    by_place: dict[Coordinates, QuarantineRecord] = {}
    values = (
        _values(kafka, wanted.since_ms) if folder is None else _values_in(folder, wanted.since_ms)
    )
    async for value in values:
        try:
            record = QuarantineRecord.model_validate_json(value or b"")
        except ValidationError:
            found.unreadable += 1
            continue
        if not wanted.matches(record):
            continue
        found.by_reason[record.reason] += 1
        place = Coordinates.of(record)
        if place in by_place:  # an evaluator that was killed may have refused it once more
            continue
        by_place[place] = record
        heapq.heappush(kept, (record.quarantined_at_ms, place))
        if len(kept) > most:
            del by_place[heapq.heappop(kept)[1]]
    found.newest = [by_place[place] for _, place in sorted(kept)]
    return found


async def _values_in(folder: Path, since_ms: int | None) -> AsyncIterator[bytes | None]:
    with reading(folder) as log_file:
        for record in log_file.records(QUARANTINE_TOPIC):
            if record.timestamp >= (since_ms or 0):
                yield record.value


async def _values(kafka: KafkaSettings, since_ms: int | None) -> AsyncIterator[bytes | None]:
    """The values of the quarantine topic, partition by partition in order, up to where each ends
    now.
    """
    topic = kafka.topic(QUARANTINE_TOPIC)
    count = (await partition_counts(kafka, [QUARANTINE_TOPIC]))[QUARANTINE_TOPIC]
    partitions = [TopicPartition(topic, number) for number in range(count)]
    async with onlooker(kafka, "quarantine", auto_offset_reset="earliest") as consumer:
        async for record in records_so_far(consumer, partitions, since_ms):
            yield record.value


# Puts refused records back: read again by their coordinates and appended to the same partition of
# their input as new records, from where the sequencer takes them.
#
# A call takes a record once, whether it is put back twice or a fixed evaluator takes it where it
# was refused too: a copy names where it stood first. Records of closed calls stay where they are:
# an evaluator remembers closed calls for a while only, and would open a new call for a record that
# arrives days later.

Headers = list[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class ReplayOutcome:
    """The outcome for one quarantine entry.

    Attributes:
        place: Coordinates of the refused record.
        appended: Coordinates of the new record; None when it was not appended.
        reason: The obstacle, a sentence without a full stop; None if nothing is wrong.
    """

    place: Coordinates
    appended: Coordinates | None = None
    reason: str | None = None

    def __str__(self) -> str:
        if self.reason is not None:
            return f"{self.place}: not put back: {self.reason}"
        return (
            f"{self.place}: "
            f"{'was put back before' if self.appended is None else f'put back as {self.appended}'}"
        )


class CannotReplayError(Exception):
    """This record cannot be put back; the text says why, as a sentence without a full stop."""


_MARK = b'"state":"closed"'
"""Part of the JSON of every closing record; parsing all other records would take ten
times as long.
"""
Closed = Mapping[str, CallRow | None]
"""Calls that have closed, by conversation id; in a folder without their rows."""


@dataclass(frozen=True, slots=True)
class TopicRecords:
    """Refused records in the input topics.

    Attributes:
        kafka: The cluster.
        reader: Reads single records.
        producer: Appends them; None where nothing is appended.
    """

    kafka: KafkaSettings
    reader: RecordReader
    producer: AIOKafkaProducer | None = None

    async def read(self, entry: QuarantineRecord) -> Any:
        """The record at the place of a refused one.

        Raises:
            RecordGoneError: There is none.
        """
        return await self.reader.read(Coordinates.of(entry))

    async def append(self, record: Any, headers: Headers) -> Coordinates | None:
        """Appends a record to its own partition once more, with these headers; says where it is."""
        assert self.producer is not None, "something is to be appended"  # noqa: S101 - so it is
        written = await self.producer.send_and_wait(
            record.topic, record.value, key=record.key, partition=record.partition, headers=headers
        )
        return Coordinates(written.topic, written.partition, written.offset)

    async def closed(self, entries: Sequence[QuarantineRecord], since_ms: int | None) -> Closed:
        """The calls of refused records that have closed, by what `scores` has of them since a
        moment; None looks through all that is kept.
        """
        keys = {entry.key.encode() for entry in entries if entry.key}
        if not keys:
            return {}
        count = (await partition_counts(self.kafka, [SCORES_TOPIC]))[SCORES_TOPIC]
        topic = self.kafka.topic(SCORES_TOPIC)
        places = sorted({TopicPartition(topic, murmur2_place(key, count)) for key in keys})
        closed: dict[str, CallRow | None] = {}
        async with onlooker(self.kafka, "quarantine", auto_offset_reset="earliest") as consumer:
            async for record in records_so_far(consumer, places, since_ms):
                # what cannot be read is of a version to come, or not ours
                if record.key in keys and _MARK in (record.value or b""):
                    with suppress(RowError):
                        row = decode(record.value)
                        if isinstance(row, CallRow) and row.state == "closed":
                            closed[row.conversation_id] = row
        return closed


@dataclass(frozen=True, slots=True)
class FolderRecords:
    """Refused records in the log of a folder, which the process that serves it writes."""

    folder: Path

    async def read(self, entry: QuarantineRecord) -> Any:
        """As of `TopicRecords`. The log forgets a call of which nothing was taken, so its entry
        says it.
        """
        with reading(self.folder) as log:
            event = log.event_at(entry.offset)
        if event is None:
            raise RecordGoneError(
                "it is not in the log any more: retention took it, or it was forgotten"
            )
        key, value = event.key or entry.key.encode(), event.value or b""
        sizes = len(key), len(value)
        place = event.topic, event.partition, event.offset, event.timestamp, 0
        return ConsumerRecord(*place, key, value, None, *sizes, event.headers)

    async def append(self, record: Any, _: Headers) -> Coordinates | None:
        """As of `TopicRecords`; None if the record was put back before. The process that serves
        names itself where it was refused.
        """
        asked = [(record.offset, record.key.decode())]
        (place,) = await post_command(self.folder, PUT_BACK_PATH, asked)
        return None if place is None else Coordinates(record.topic, record.partition, place)

    async def closed(self, entries: Sequence[QuarantineRecord], _: int | None) -> Closed:
        """As of `TopicRecords`."""
        with reading(self.folder) as log:
            return dict.fromkeys(entry.key for entry in entries if log.has_closed(entry.key))


@asynccontextmanager
async def records_of(
    settings: Settings, folder: Path | None, *, writes: bool = False
) -> AsyncIterator[TopicRecords | FolderRecords]:
    """Refused records on Kafka or in a folder; `writes` says whether any is put back.

    Raises:
        KafkaUnreachableError: No broker answers, or not any more.
    """
    if folder is not None:
        yield FolderRecords(folder)
        return
    async with AsyncExitStack() as stack:
        reader = await stack.enter_async_context(record_reader(settings.kafka))
        producer = settings.kafka.producer("quarantine") if writes else nullcontext()
        yield TopicRecords(settings.kafka, reader, await stack.enter_async_context(producer))


@dataclass(frozen=True, slots=True)
class RefusedRecords:
    """Refused records, checked with today's code and settings.

    Attributes:
        kafka: The cluster.
        limits: Limits of the evaluator: they decide which records are refused again.
        home: Where the records are.
        closed: Which of their calls have closed.
        redactor: Redacts their texts in messages.
    """

    kafka: KafkaSettings
    limits: Limits
    home: TopicRecords | FolderRecords
    closed: Closed = field(default_factory=dict)
    redactor: Redactor = field(default_factory=Redactor)

    async def read(self, entry: QuarantineRecord) -> Any:
        """Reads the refused record.

        Raises:
            RecordGoneError: The record was deleted, or another one has its offset.
            KafkaError: The broker does not answer.
            TimeoutError: It does not hand the record over.
        """
        record = await self.home.read(entry)
        key = (record.key or b"")[:MAX_NAME_CHARS].decode("utf-8", "replace")
        if key != entry.key or record.timestamp != entry.quarantined_at_ms:
            raise RecordGoneError("another record is there now: the topic was recreated since")
        return record

    def judged(self, record: Any, now_ms: int) -> Arrival | QuarantineRecord:
        """Checks the record as the evaluator would if the broker accepted it at `now_ms`."""
        return admit(
            self._source_of(record.topic),
            replace(record, timestamp=now_ms),
            self.limits,
            self.redactor,
        )

    async def ready(self, entry: QuarantineRecord, now_ms: int) -> tuple[Any, Headers]:
        """The record to put back, and the headers to do it with.

        Raises:
            CannotReplayError: The record is deleted, would be refused again, or belongs to a closed
                call.
            KafkaError: The broker does not answer.
            TimeoutError: It does not hand the record over.
        """
        try:
            record = await self.read(entry)
        except RecordGoneError as error:
            raise CannotReplayError(str(error)) from error
        arrival = self.judged(record, now_ms)
        if isinstance(arrival, QuarantineRecord):
            raise CannotReplayError(
                f"it would be refused again: {arrival.what}, {arrival.expected_and_seen}"
            )
        if entry.key in self.closed:
            closed = self.closed[entry.key]
            why = (
                ""
                if closed is None
                else f" ({closed.close_reason}, {shown_moment(closed.known_ms)} UTC)"
            )
            raise CannotReplayError(f"its call has closed{why} and is not reopened")
        return record, replay_headers(record)

    def _source_of(self, topic: str) -> InputSource:
        source = SOURCE_BY_TOPIC.get(topic.removeprefix(self.kafka.topic_prefix))
        if source is None:
            raise CannotReplayError(f"{topic} is no input topic of this installation")
        return source


def replay_headers(record: Any) -> Headers:
    """The headers of a record, and where it was refused first: by that a call takes it once,
    however often it is put back.
    """
    headers: Headers = list(record.headers)
    if dict(headers).get(REPLAY_OF_HEADER) is None:
        headers.append(
            (
                REPLAY_OF_HEADER,
                str(Coordinates(record.topic, record.partition, record.offset)).encode(),
            )
        )
    return headers


async def put_back(
    records: RefusedRecords,
    entries: Sequence[QuarantineRecord],
    now_ms: int,
    stop: asyncio.Event,
    *,
    is_dry_run: bool = False,
) -> AsyncIterator[ReplayOutcome]:
    """Appends each record to its own partition again, in the order of `entries`; ends early when
    `stop` is set.

    After a failure of the broker the remaining records are not tried.

    Args:
        records: Reads, checks and appends them.
        entries: Entries to put back; those of one partition in the order of their offsets.
        now_ms: Broker time of the new records.
        stop: Ends it before the next record.
        is_dry_run: Whether to append nothing: then each that could be is where it was.
    """
    for entry in entries:
        if stop.is_set():
            return
        place = Coordinates.of(entry)
        try:
            record, headers = await records.ready(entry, now_ms)
            appended = place if is_dry_run else await records.home.append(record, headers)
        except CannotReplayError as error:
            yield ReplayOutcome(place, reason=str(error))
        except MessageSizeTooLargeError:
            size = len(record.value or b"")
            text = (
                f"its {size} bytes are more than a producer of callgauge sends: fix it and send it "
                "where it came from"
            )
            yield ReplayOutcome(place, reason=text)
        except (KafkaError, TimeoutError) as error:
            why = explained(error, records.kafka.security)
            yield ReplayOutcome(
                place,
                reason=f"the broker {why.seen}"
                if why.answers
                else f"no broker answers: {why.seen}",
            )
            return
        else:
            yield ReplayOutcome(place, appended=appended)


def _closed_since_ms(settings: Settings, entries: Sequence[QuarantineRecord]) -> int | None:
    """Since when the calls can have closed: not before they began, as far as that is known.

    A record came while its call was open, or later by less than a call may take; unless its time
    was so far from the broker's that it was refused for it: then its call may have closed at any
    time.
    """
    if any(entry.reason is RefusalReason.TIME_OUT_OF_BOUNDS for entry in entries):
        return None
    return (
        min(entry.quarantined_at_ms for entry in entries) - needs_of(settings.limits).least_kept_ms
    )


# Refused records as terminal text. Pure: entries in, text out. Texts of producers cannot control
# the terminal.

MAX_VALUE_BYTES: Final = 2_000
MAX_HEADERS: Final = 20
_MAX_HEADER_BYTES: Final = 200


def shown_bytes(raw: bytes, most: int) -> str:
    """Bytes as text as far as they are UTF-8, at most `most` of them, with how many are
    left out.
    """
    text = visible(raw[:most].decode("utf-8", "backslashreplace"), "\n")
    return text if len(raw) <= most else f"{text}\n... {len(raw) - most} more bytes"


def shown_value(raw: bytes, redactor: Redactor) -> str:
    """The beginning of a record without personal data, as far as it is UTF-8, and how much is left
    out.
    """
    text = raw[: MAX_VALUE_BYTES + 2 * MARGIN_CHARS + 1].decode("utf-8", "backslashreplace")
    more = f"\n... of {len(raw)} bytes" if len(raw) > MAX_VALUE_BYTES else ""
    return redactor.beginning(text, MAX_VALUE_BYTES) + more


def listing(entries: Sequence[QuarantineRecord]) -> RenderableType:
    """The entries, one to a row."""
    table = plain_table("refused (UTC)", "record", "conversation", "reason", "what")
    for entry in entries:
        cells = (
            str(Coordinates.of(entry)),
            entry.key,
            entry.reason.value,
            f"{entry.what}; {entry.expected_and_seen}",
        )
        table.add_row(shown_moment(entry.quarantined_at_ms), *cells)
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
    of = f" of conversation {entry.key}" if entry.key else ""
    return Group(
        Styled(f"{Coordinates.of(entry)}{of}", "bold"),
        _rows(
            ("refused", f"{shown_moment(entry.quarantined_at_ms)} UTC, {entry.reason.value}"),
            ("what", entry.what),
            ("details", entry.expected_and_seen),
            ("now", entry.what_happens_now),
            ("to do", entry.what_to_do),
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
        verdict = f"it would be refused again: {judged.what}, {judged.expected_and_seen}"
    return _rows(
        (
            "key",
            Text("(none)" if record.key is None else shown_bytes(record.key, _MAX_HEADER_BYTES)),
        ),
        ("headers", Text("\n".join(headers) or "(none)")),
        ("put back", verdict),
        ("value", "(none)" if value is None else f"{len(value)} bytes:"),
    )


def _rows(*rows: tuple[str, RenderableType]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for name, text in rows:
        table.add_row(name, text)
    return table


# The work of the command `quarantine`: finds, shows and puts back refused records.

Result = TypeVar("Result")
UNTIMELY: Final = (
    "A record that is put back gets a new broker time, so one that was refused for its time is "
    "refused again unless max_event_time_skew_ms is raised, or 0, for the evaluator and for this "
    "command."
)
MAX_REPLAYED: Final = 10_000
"""One replay is checked, confirmed and reported as a whole; more records need several."""


def finished(work: Coroutine[Any, Any, Result]) -> Result:
    """Runs the work to its end, without the log lines of the Kafka client."""
    with quiet_libraries():
        return asyncio.run(work)


async def show_entry(settings: Settings, place: Coordinates, folder: Path | None = None) -> bool:
    """Prints an entry and its record; returns whether both were found."""
    console = output_console()
    found = await quarantined(settings.kafka, Wanted(places={place}), most=1, folder=folder)
    tell_unreadable(found)
    if not found.newest:
        say(
            f"{place} is not in quarantine: it was not refused, or the entry is gone. `callgauge "
            "quarantine list` shows what is."
        )
        return False
    entry = found.newest[0]
    console.print(entry_details(entry))
    console.print()
    async with records_of(settings, folder) as home:
        redactor = Redactor(settings.redaction)
        records = RefusedRecords(settings.kafka, settings.all_limits, home, redactor=redactor)
        try:
            record = await records.read(entry)
            judged = records.judged(record, wall_clock_ms())
        except (RecordGoneError, CannotReplayError) as error:
            say(f"The record itself cannot be shown: {error}.")
            return False
    console.print(record_details(record, judged))
    print_lines(shown_value(record.value or b"", redactor))
    return True


async def replay(
    settings: Settings, wanted: Wanted, folder: Path | None, *, is_dry_run: bool, is_agreed: bool
) -> bool:
    """Puts back each record that can be, and prints what became of each; returns whether that is
    all of them.

    Args:
        settings: Those of the evaluator: they decide which records are refused again.
        wanted: Which records.
        folder: The folder of a `serve`; None for Kafka.
        is_dry_run: Whether to append nothing.
        is_agreed: Whether no question is to be asked.

    Raises:
        BadParameter: Too many match.
        KafkaUnreachableError: No broker answers, or a right is missing.
        Exit: The user did not agree, or a signal came.
    """
    if folder is None:
        await require_access(settings.kafka, PUT_BACK_NEEDS)
    found = await quarantined(settings.kafka, wanted, most=MAX_REPLAYED + 1, folder=folder)
    if len(found.newest) > MAX_REPLAYED:
        raise typer.BadParameter(
            f"more than {MAX_REPLAYED} records match: narrow them with --since, --until, --topic "
            "or --reason."
        )
    tell_unreadable(found)
    entries = sorted(found.newest, key=Coordinates.of)
    missing = sorted(set(wanted.places) - {Coordinates.of(entry) for entry in entries})
    for place in missing:
        print_line(ReplayOutcome(place, reason="it is not in quarantine"))
    if not is_dry_run:
        confirm(len(entries), is_agreed=is_agreed)
    outcomes, is_stopped = await _put_back_in(settings, entries, folder, is_dry_run=is_dry_run)
    left = {outcome.place for outcome in outcomes if outcome.reason is not None}
    if any(
        entry.reason is RefusalReason.TIME_OUT_OF_BOUNDS and Coordinates.of(entry) in left
        for entry in entries
    ):
        say(UNTIMELY)
    if is_dry_run or not entries:
        say(f"{counted(len(outcomes) - len(left), 'record')} to put back; nothing was appended.")
    else:
        done = sum(outcome.appended is not None for outcome in outcomes)
        say(
            f"{counted(done, 'record')} of {len(entries)} put back. A call that closes meanwhile "
            "counts its record as after_close."
        )
    if is_stopped:
        say("Stopped. The entries above are done; the others are unchanged.")
        raise typer.Exit(STOPPED_BY_SIGNAL)
    if len(outcomes) < len(entries):
        say(
            f"The broker failed, so {len(entries) - len(outcomes)} were not tried. Run the command "
            "again once it is well."
        )
    return not missing and not left and len(outcomes) == len(entries)


async def _put_back_in(
    settings: Settings,
    entries: Sequence[QuarantineRecord],
    folder: Path | None,
    *,
    is_dry_run: bool,
) -> tuple[Sequence[ReplayOutcome], bool]:
    """What became of each record that was tried, which is printed, and whether a signal came before
    the last.
    """
    outcomes: list[ReplayOutcome] = []
    async with records_of(settings, folder, writes=not is_dry_run) as home:
        closed = await home.closed(entries, _closed_since_ms(settings, entries)) if entries else {}
        redactor = Redactor(settings.redaction)
        records = RefusedRecords(settings.kafka, settings.all_limits, home, closed, redactor)
        with stop_on_signals() as stop:
            replaying = put_back(records, entries, wall_clock_ms(), stop, is_dry_run=is_dry_run)
            async for outcome in replaying:
                outcomes.append(outcome)
                would_be = is_dry_run and outcome.reason is None
                print_line(f"{outcome.place}: would be put back" if would_be else outcome)
            return outcomes, stop.is_set() and len(outcomes) < len(entries)


def wanted_by(
    settings: Settings,
    reasons: Sequence[RefusalReason] | None,
    topics: Sequence[str] | None,
    conversation: str | None,
    since: str | None,
    until: str | None,
    places: frozenset[Coordinates] = frozenset(),
) -> Wanted:
    """The entries that the options choose."""
    return Wanted(
        reasons=frozenset(reasons or ()),
        topics=frozenset(_topic(settings.kafka, name) for name in topics or ()),
        conversation=conversation,
        since_ms=None if since is None else moment_given(since),
        until_ms=None if until is None else moment_given(until),
        places=places,
    )


def _topic(kafka: KafkaSettings, name: str) -> str:
    """The full name of an input topic; the given one may lack the prefix."""
    if name in SOURCE_BY_TOPIC:
        return kafka.topic(name)
    if name.removeprefix(kafka.topic_prefix) in SOURCE_BY_TOPIC:
        return name
    raise typer.BadParameter(f"{name!r} is no input topic: there are {', '.join(SOURCE_BY_TOPIC)}.")


def place_named(kafka: KafkaSettings, text: str) -> Coordinates:
    """The coordinates that a text names; its topic may lack the prefix.

    Raises:
        BadParameter: It names none.
    """
    try:
        place = Coordinates.parse(text)
    except ValueError as error:
        raise typer.BadParameter(f"{error}.") from error
    return place._replace(topic=_topic(kafka, place.topic))


def confirm(count: int, *, is_agreed: bool) -> None:
    """Asks before more than one record is appended; ends the command without consent."""
    if count <= 1 or is_agreed:
        return
    if not sys.stdin.isatty():
        _refuse(
            f"{count} records would be put back; nothing was: give --yes to append them without "
            "being asked."
        )
    if not typer.confirm(
        f"Append {count} records to the input topics, those that can be taken?", err=True
    ):
        _refuse("Nothing was appended.")


def _refuse(text: str) -> NoReturn:
    say(text)
    raise typer.Exit(1)


def tell_unreadable(found: Entries) -> None:
    """Says how many records of the quarantine topic could not be read, if any."""
    if found.unreadable:
        say(
            f"{counted(found.unreadable, 'record')} of the quarantine topic could not be read: not "
            "ours, or of a newer version."
        )


def counted_entries(count: int) -> str:
    """A number of entries, in words."""
    return f"{count} entr{'y' if count == 1 else 'ies'}"
