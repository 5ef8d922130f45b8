"""Takes partitions over: claims them, fences off former writers, and reads from `scores` how far
they came.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from pydantic import ValidationError

from consumers.evaluator.partition import Partition, Recovery
from consumers.evaluator.settings import EvaluatorSettings
from consumers.evaluator.writer import Claims
from consumers.runtime.kafka.connection import KafkaSettings
from consumers.runtime.kafka.ranges import FETCH_BYTES, onlooker, records_between
from schemas.goals.goal_set import GoalSet
from schemas.owners import PartitionRow, row_in, writer_in
from schemas.quarantine import UndecodableRecord
from schemas.rows import revision_again, revision_at
from schemas.topics import EVENTS_TOPIC, SCORES_TOPIC

FIRST_LOOK_RECORDS: Final = 256
"""Offsets before the end of `scores` in which the last row is looked for first: most transactions
are smaller. Then twice as many.
"""
LOOKED_AT_IN_A_TURN: Final = 500
"""Records of `scores` that are looked at before anything else has a turn: some ms."""
MAX_ODD_RECORD_LINES: Final = 5
"""Log lines of one takeover about records that no callgauge wrote."""
_CLOSED: Final = b'"state":"closed"'
_GOALS: Final = b'{"row":"goals"'
"""In the bytes of a row: nine of ten are not decoded. Inside of a text the quotes would
be escaped.
"""

log = structlog.get_logger()


class Owners:
    """Reads the records of `scores` without a value: they name the last row, and who may write
    since then.

    Attributes:
        row: The last row; None without one.
        writers: Ids of the producers that it and the marks after it name.
    """

    def __init__(self) -> None:
        self.row: PartitionRow | None = None
        self.writers: set[str] = set()

    def read_record(self, record: Any) -> None:
        """Reads the next record."""
        if isinstance(record, UndecodableRecord) or record.value is not None:
            return
        if (row := row_in(record.headers)) is not None:
            self.row, self.writers = row, set()
        if (writer := writer_in(record.headers)) is not None:
            self.writers.add(writer)


class _SeenRow(msgspec.Struct):
    """What a takeover needs of a row, whichever version wrote it: another version may have words
    here that this one does not know.
    """

    conversation_id: str
    revision: int = 0
    state: str = ""
    digest: str = ""
    goal_set: dict[str, Any] = {}


_SEEN: Final = msgspec.json.Decoder(_SeenRow)


class PublishedCalls:
    """The calls of one partition, as `scores` has them.

    Attributes:
        open: Keys of the calls that have rows and did not close, each with the revision of its
            first row.
        closed: Ids of the calls that closed, in order, with the place in the row behind.
        goals: The goal sets of calls that did not close, each with the revision of its row: a call
            may name its agent only after some turns.
    """

    def __init__(self) -> None:
        self.open: dict[bytes, int] = {}
        self.closed: dict[str, int] = {}
        self.goals: dict[str, tuple[int, GoalSet]] = {}
        self._sets: dict[str, GoalSet] = {}
        self._odd = 0
        self._closed: list[str] = []  # since the last row

    def read_record(self, record: Any) -> None:
        """Reads the next record."""
        value = record.value
        if value is None and (row := row_in(record.headers)) is not None:
            for conversation_id in self._closed:
                self.closed.pop(conversation_id, None)
                self.closed[conversation_id] = row.place
            self._closed.clear()
        if value is None or record.key is None:
            return
        is_of_goals = value.startswith(_GOALS)
        if record.key in self.open and not is_of_goals and _CLOSED not in value:
            return
        try:
            read = _SEEN.decode(value)
        except msgspec.DecodeError:
            self._odd += 1
            if self._odd <= MAX_ODD_RECORD_LINES:
                log.warning(
                    "score_not_ours",
                    record=f"{record.topic}[{record.partition}]@{record.offset}",
                    what_happens_now="It is passed over.",
                    what_to_do=(
                        "Find who writes there, and give the right to write `scores` to evaluators "
                        "alone."
                    ),
                )
            return
        self.open.setdefault(record.key, read.revision)
        if is_of_goals:
            self._choose(read)
        elif read.state == "closed":
            del self.open[record.key]
            self.goals.pop(read.conversation_id, None)
            self._closed.append(read.conversation_id)

    def _choose(self, row: _SeenRow) -> None:
        if row.digest not in self._sets:
            try:
                self._sets[row.digest] = GoalSet.model_validate(row.goal_set)
            except ValidationError:  # of another version, with a check that this one does not know
                return
        self.goals[row.conversation_id] = row.revision, self._sets[row.digest]


class Takeover:
    """Takes over partitions from their former owners."""

    def __init__(self, kafka: KafkaSettings, settings: EvaluatorSettings) -> None:
        self._kafka = kafka
        self._events, self._scores = kafka.topic(EVENTS_TOPIC), kafka.topic(SCORES_TOPIC)
        self._overlap_ms = settings.closed_overlap_ms
        self._claims = Claims(kafka, settings)

    async def claim(self, numbers: Iterable[int], writer_id: str) -> dict[int, int]:
        """Claims partitions for the writer of a new assignment.

        Returns:
            By partition number the offset in `scores` after the mark.

        Raises:
            FencedError: Another process claimed one at the same moment.
            KafkaError: The broker refused a request.
        """
        numbers = tuple(numbers)
        marks = await asyncio.gather(*(self._claims.claim(number, writer_id) for number in numbers))
        return dict(zip(numbers, marks, strict=True))

    async def take_over(
        self, owned: Sequence[Partition], consumer: AIOKafkaConsumer, writer_id: str
    ) -> None:
        """Fences off former owners, and finds out what they published. Then the partitions are
        active.

        Args:
            owned: The new partitions.
            consumer: Reports where the log begins and ends.
            writer_id: Id of the producer that will write them.

        Raises:
            FencedError: Another process claimed one at the same moment.
            KafkaError: The broker refused a request.
            KafkaUnreachableError: The same while a reader of `scores` is connected, or what was
                written cannot be read to its end.
        """
        logs = {each.number: TopicPartition(self._events, each.number) for each in owned}
        firsts = await consumer.beginning_offsets(list(logs.values()))
        async with onlooker(
            self._kafka,
            "read-back",
            enable_auto_commit=False,
            max_partition_fetch_bytes=FETCH_BYTES,
        ) as reader:
            marks = await self._end(reader, logs, writer_id)
            rows = {
                number: each.row for number, each in (await self._owners(reader, marks)).items()
            }
            ends = await consumer.end_offsets(list(logs.values()))
            # Of a log that was recreated, all calls that ever closed may come again.
            since_ms = dict.fromkeys(rows, 0)
            for number, row in rows.items():
                if row is not None and not _is_anew(row, ends[logs[number]]):
                    since_ms[number] = row.first_known_ms - self._overlap_ms
            published = await self._published(reader, marks, since_ms)
        for each in owned:
            tp = logs[each.number]
            each.start(
                _recovery(tp, rows[each.number], firsts[tp], ends[tp], published[each.number])
            )

    async def _end(
        self, reader: AIOKafkaConsumer, numbers: Iterable[int], writer_id: str
    ) -> dict[int, int]:
        """Claims the partitions and ends all that others may still write there.

        Returns:
            By partition number the end of `scores`: whatever former owners wrote is in front of it,
                and can be read.
        """
        # from here on no former owner can let another producer write
        await self.claim(numbers, writer_id)
        fenced: set[tuple[str, int]] = set()
        while True:
            ends = await reader.end_offsets(
                [TopicPartition(self._scores, number) for number in numbers]
            )
            owners = await self._owners(reader, {tp.partition: end for tp, end in ends.items()})
            named = {
                (writer, number)
                for number, each in owners.items()
                for writer in each.writers - {writer_id}
            }
            by_writer: dict[str, list[int]] = {}
            for writer, number in sorted(named - fenced):
                by_writer.setdefault(writer, []).append(number)
            if not by_writer:  # nothing of them hides our next mark
                return await self.claim(numbers, writer_id)
            # What one of them left without its end hid what others wrote behind it: so look again.
            await asyncio.gather(
                *(self._claims.fence(writer, each) for writer, each in by_writer.items())
            )
            fenced |= named

    async def _owners(self, reader: AIOKafkaConsumer, ends: Mapping[int, int]) -> dict[int, Owners]:
        """Looks for the last row before an offset of `scores`, ever further back; by partition
        number.
        """
        firsts = await reader.beginning_offsets(
            [TopicPartition(self._scores, number) for number in ends]
        )
        found: dict[int, Owners] = {}
        left, looked_at = dict(ends), FIRST_LOOK_RECORDS
        while left:
            starts = {
                tp: max(first, left[tp.partition] - looked_at)
                for tp, first in firsts.items()
                if tp.partition in left
            }
            found |= {number: Owners() for number in left}
            async for record in records_between(
                reader, {tp: (start, left[tp.partition]) for tp, start in starts.items()}
            ):
                found[record.partition].read_record(record)
            left = {
                tp.partition: left[tp.partition]
                for tp, start in starts.items()
                if found[tp.partition].row is None and start > firsts[tp]
            }
            looked_at *= 2
        return found

    async def _published(
        self, reader: AIOKafkaConsumer, ends: Mapping[int, int], since_ms: Mapping[int, int]
    ) -> dict[int, PublishedCalls]:
        """Reads the calls of the partitions since that time of the broker."""
        asked = {
            TopicPartition(self._scores, number): max(0, at_ms)
            for number, at_ms in since_ms.items()
        }
        found = await reader.offsets_for_times(asked)
        ranges = {
            tp: (
                ends[tp.partition] if (at := found.get(tp)) is None else at.offset,
                ends[tp.partition],
            )
            for tp in asked
        }
        published = {number: PublishedCalls() for number in ends}
        looked_at = 0
        async for record in records_between(reader, ranges):
            published[record.partition].read_record(record)
            looked_at += 1
            if looked_at % LOOKED_AT_IN_A_TURN == 0:
                await asyncio.sleep(0)
        return published


def _is_anew(row: PartitionRow, end: int) -> bool:
    """Whether a log that ends there is another than that of the row, or has lost nearly
    all of it.
    """
    return end <= row.first < row.place


def _recovery(
    tp: TopicPartition, row: PartitionRow | None, first: int, end: int, calls: PublishedCalls
) -> Recovery:
    still_open = {key.decode("utf-8", "replace"): revision for key, revision in calls.open.items()}
    if row is None:
        return Recovery(None, first, first, calls.closed, still_open, (), calls.goals)
    what_happens_now = (
        "Reading begins at the first record there is; calls that began before are incomplete."
    )
    base, start = row.base, max(first, row.first)
    place: int | None = min(row.place, max(first, end))
    is_anew = _is_anew(row, end)
    if is_anew:
        what_happens_now += (
            " Nothing is published of what happened before the time that was reached."
        )
        start, place = first, None
    is_cut = is_anew or first > row.first
    if is_cut:
        log.error(
            "log_not_where_it_was",
            record=f"{tp.topic}[{tp.partition}]@{row.first}",
            seen=f"the log has {first} to {end}",
            what_happens_now=what_happens_now,
            what_to_do="Keep `events` for longer than the longest call and the longest outage, do "
            "not delete it while calls run, and let no broker lead that is not in sync; see "
            "`callgauge doctor`.",
        )
    missed = base + revision_again(row.cut)
    lacking = [each for each, revision in still_open.items() if is_cut or revision < missed]
    # Where the log ends before the place, its places come a second time.
    if row.place > end:
        base += revision_at(row.place)
    return Recovery(row, start, place, calls.closed, still_open, lacking, calls.goals, is_cut, base)
