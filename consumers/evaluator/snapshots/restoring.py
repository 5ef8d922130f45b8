"""Reads the state that the previous owner of a partition wrote. If it does not fit exactly, the partition is replayed."""

import asyncio
import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from consumers.engine.partition import PartitionEvaluator
from consumers.engine.state_bytes import SnapshotError
from consumers.evaluator.recall.commit_note import SnapshotPlace
from consumers.evaluator.settings import EvaluatorSettings
from consumers.evaluator.snapshots.handing_over import ID_HEADER
from consumers.evaluator.snapshots.manifest import (
    Basis,
    Manifest,
    Refusal,
    RefusedError,
    opened,
    require_fit,
    require_whole,
)
from consumers.evaluator.snapshots.packing import CHUNK_BYTES, Unpacker
from consumers.evaluator.snapshots.tail import InputReader, Redoing, pieces_after, tail_of
from consumers.evaluator.writing.outbox import Group
from consumers.evaluator.writing.outgoing import Addresses
from consumers.runtime.kafka.connection import KafkaSettings
from consumers.runtime.registry import Instruments
from schemas.goals.goal_set import ChoosesGoals
from schemas.quarantine import QuarantineRecord
from schemas.topics import SCORES_TOPIC, SNAPSHOTS_TOPIC, SOURCE_BY_TOPIC
from schemas.undecodable import UndecodableRecord

MAX_SILENT_SECONDS: Final = 10.0
"""How long nothing may come of reading snapshots and taking the steps after them. As long as something does, it is cheaper than the
replay, which is the alternative and has the same steps to take."""
READERS: Final = 2
"""Most snapshots that are read at the same time, and so kept in memory: one is read, mostly waiting for a dozen answers, while the
state of another is made. Four are no faster."""
POLL_MS: Final = 200
MAX_POLL_RECORDS: Final = 16
"""Most records of one poll, of half a megabyte each."""
FETCH_WAIT_MS: Final = 10
"""How long the broker may delay an empty answer. All records to read exist already, and the next partition waits."""

log = structlog.get_logger()


class NotedSnapshot(NamedTuple):
    """A snapshot that an earlier owner's note names.

    Attributes:
        place: Its place on the topic.
        mark: Offset of our own mark in the partition of `scores`, at which our ownership starts.
        firsts: By input topic, the first available offset.
        ends: By input topic, the offset after the last record.
    """

    place: SnapshotPlace
    mark: int
    firsts: Mapping[str, int]
    ends: Mapping[str, int]


class Restored(NamedTuple):
    """A restored state.

    Attributes:
        evaluator: The engine's state.
        positions: By input topic, the offset at which reading goes on.
        unwritten: Groups of records that the earlier owner had decided and not written.
        refused: Refused records after the snapshot.
        steps: Number of steps after the snapshot that were taken again.
    """

    evaluator: PartitionEvaluator
    positions: Mapping[str, int]
    unwritten: Sequence[Group] = ()
    refused: Sequence[QuarantineRecord] = ()
    steps: int = 0


class SnapshotRestoring:
    """Restores partitions from snapshots."""

    def __init__(
        self,
        kafka: KafkaSettings,
        settings: EvaluatorSettings,
        basis: Basis,
        key: bytes,
        goals: ChoosesGoals | None,
        instruments: Instruments,
    ) -> None:
        """Stores its settings; nothing is connected.

        Args:
            kafka: The cluster.
            settings: Bounds on records.
            basis: The required basis of a snapshot.
            key: Key of the seal.
            goals: Chooses the goal sets of later calls.
            instruments: Where snapshots are counted.
        """
        self._kafka = kafka
        self._limits = settings.limits
        self._sources = {kafka.topic(topic): source for topic, source in SOURCE_BY_TOPIC.items()}
        self._basis = basis
        self._key = key
        self._goals = goals
        self._instruments = instruments
        self._gets_on: Callable[[], None] = lambda: None
        self._unpickling = asyncio.Lock()  # two at a time would take as long, and the cycle collector is off meanwhile

    async def restore(self, wanted: Mapping[int, NotedSnapshot]) -> dict[int, Restored]:
        """Returns the states of the partitions with a usable snapshot, by number. Former owners must be fenced off before.

        A snapshot that cannot be read is left out, and so are all that are left when nothing has come for `MAX_SILENT_SECONDS`.
        """
        restored: dict[int, Restored] = {}
        if not wanted:
            return restored
        began = time.monotonic()
        outstanding = dict(wanted)
        waiting = iter(wanted.items())  # each reader takes the next one
        try:
            async with asyncio.timeout(MAX_SILENT_SECONDS) as patience, asyncio.TaskGroup() as readers:
                self._gets_on = lambda: patience.reschedule(asyncio.get_running_loop().time() + MAX_SILENT_SECONDS)
                for _ in range(min(READERS, len(wanted))):
                    readers.create_task(self._read_on(waiting, outstanding, restored))
        except* (TimeoutError, KafkaError) as errors:
            error = errors.exceptions[0]
            for number in outstanding:
                self._refuse(number, RefusedError(Refusal.NOT_READ, str(error) or type(error).__name__))
        self._instruments.inc("callgauge_snapshot_seconds_total", ("read",), time.monotonic() - began)
        self._instruments.inc("callgauge_snapshots_read_total", ("restored",), len(restored))
        log.info(
            "snapshots_restored",
            partitions=sorted(restored),
            calls=sum(each.evaluator.open_calls for each in restored.values()),
            steps=sum(each.steps for each in restored.values()),
            seconds=round(time.monotonic() - began, 2),
        )
        return restored

    async def _read_on(
        self,
        waiting: Iterator[tuple[int, NotedSnapshot]],
        outstanding: dict[int, NotedSnapshot],
        restored: dict[int, Restored],
    ) -> None:
        """Restores the next waiting partition until none waits, with a client of its own.

        Raises:
            KafkaError: A snapshot cannot be read.
        """
        consumer = self._kafka.consumer(
            "snapshots",
            enable_auto_commit=False,
            max_poll_records=MAX_POLL_RECORDS,
            fetch_max_wait_ms=FETCH_WAIT_MS,
            max_partition_fetch_bytes=4 * CHUNK_BYTES,
        )
        try:
            await consumer.start()
            for number, each in waiting:
                try:
                    restored[number] = await self._restored(consumer, number, each)
                except RefusedError as error:
                    self._refuse(number, error)
                del outstanding[number]
                self._gets_on()
        finally:
            await consumer.stop()

    async def _restored(self, consumer: AIOKafkaConsumer, number: int, wanted: NotedSnapshot) -> Restored:
        """Returns the state of one partition.

        Raises:
            RefusedError: Its snapshot cannot be used.
            KafkaError: The snapshot cannot be read.
        """
        manifest, chunks = await self._read(consumer, number, wanted.place)
        require_whole(manifest, chunks)
        for topic, position in manifest.positions.items():
            if not wanted.firsts.get(topic, 0) <= position <= wanted.ends.get(topic, -1):
                raise RefusedError(
                    Refusal.INPUTS_MOVED, f"it goes on at {topic}[{number}]@{position}, which is not there"
                )
        if manifest.positions.keys() != wanted.ends.keys():
            raise RefusedError(Refusal.INPUTS_MOVED, "it was taken with other inputs")
        scores = TopicPartition(self._kafka.topic(SCORES_TOPIC), number)
        tail = tail_of(manifest.journal, await pieces_after(consumer, scores, manifest.scores_end, wanted.mark))
        self._instruments.inc("callgauge_snapshot_bytes_total", ("read",), manifest.size_bytes)
        source = Unpacker(chunks, manifest.unpacked_bytes)
        try:
            async with self._unpickling:
                evaluator = await asyncio.to_thread(_restored, source, self._goals)
        except SnapshotError as error:
            raise RefusedError(Refusal.DAMAGED, str(error)) from error
        if not tail.steps:
            return Restored(evaluator, manifest.positions)
        inputs = InputReader(consumer, number, manifest.positions, tail.steps)
        redoing = Redoing(self._sources, self._limits, Addresses(number, self._kafka))
        redone = await redoing.redo(evaluator, manifest.positions, tail, inputs, self._gets_on)
        return Restored(evaluator, redone.positions, redone.unwritten, redone.refused, len(tail.steps))

    async def _read(
        self, consumer: AIOKafkaConsumer, number: int, place: SnapshotPlace
    ) -> tuple[Manifest, list[bytes]]:
        """Reads the manifest at its place and the chunks with its id behind it, not more bytes than the manifest names."""
        tp = TopicPartition(self._kafka.topic(SNAPSHOTS_TOPIC), place.partition)
        consumer.assign([tp])
        firsts, ends = await consumer.beginning_offsets([tp]), await consumer.end_offsets([tp])
        if not firsts[tp] <= place.first <= place.last < ends[tp]:
            raise RefusedError(Refusal.MISSING, f"nothing is at {tp.topic}[{tp.partition}]@{place.first} any more")
        consumer.seek(tp, place.first)
        manifest: Manifest | None = None
        chunks: list[bytes] = []
        size_bytes = 0
        while await consumer.position(tp) <= place.last:
            for records in (await consumer.getmany(tp, timeout_ms=POLL_MS)).values():
                for record in records:
                    if isinstance(record, UndecodableRecord) or record.offset > place.last:
                        continue
                    if manifest is None:
                        if record.offset != place.first:
                            raise RefusedError(
                                Refusal.MISSING, f"nothing is at {tp.topic}[{tp.partition}]@{place.first}"
                            )
                        manifest = opened(record.value, self._key)
                        require_fit(manifest, self._basis, number)
                    elif _is_chunk_of(record, manifest) and size_bytes <= manifest.size_bytes:
                        chunks.append(record.value)
                        size_bytes += len(record.value)
        if manifest is None:
            raise RefusedError(Refusal.MISSING, f"nothing is at {tp.topic}[{tp.partition}]@{place.first}")
        return manifest, chunks

    def _refuse(self, number: int, error: RefusedError) -> None:
        self._instruments.inc("callgauge_snapshots_read_total", (error.reason.value,))
        log.warning(
            "snapshot_not_used",
            partition=number,
            reason=error.reason.value,
            seen=str(error),
            what_happens_now="The open calls of the partition are replayed: it takes longer, and nothing is lost.",
            what_to_do=_WHAT_TO_DO[error.reason],
        )


def _restored(source: Unpacker, goals: ChoosesGoals | None) -> PartitionEvaluator:
    """Unpickles the state with the cycle collector off: all objects stay, and searching them takes a fifth of the time."""
    gc.disable()
    try:
        return PartitionEvaluator.restore(source, goals)
    finally:
        gc.enable()


def _is_chunk_of(record: Any, manifest: Manifest) -> bool:
    return record.value is not None and (ID_HEADER, manifest.snapshot_id.encode()) in record.headers


_VERSIONS: Final = "Nothing while versions or settings change: with the next stop it is over."
_WHAT_TO_DO: Final[Mapping[Refusal, str]] = {
    Refusal.MISSING: "Keep the records of `snapshots` for longer than a restart takes: retention.ms of an hour will do.",
    Refusal.WRONG_KEY: "Give all evaluators of the group the same snapshots.key. If they have it, find who else writes to "
    "`snapshots`, and take that right away.",
    Refusal.DAMAGED: "Find who else writes to `snapshots`, and take that right away.",
    Refusal.OTHER_VERSION: _VERSIONS,
    Refusal.OTHER_SETTINGS: _VERSIONS,
    Refusal.MISPLACED: "Find who else writes to `snapshots` or commits for this group, and take that right away.",
    Refusal.STALE: "Nothing: its owner went on after it, and then ended before it had committed.",
    Refusal.INPUTS_MOVED: "Nothing, if inputs were made anew, or their records deleted.",
    Refusal.TOO_FAR_BACK: "Nothing, unless it comes again: then set a shorter snapshots.interval_ms, or use more partitions.",
    Refusal.DIFFERS: "Nothing, if the goal sets of calls changed in that moment. Otherwise report it: the engine came to other records "
    "from the same steps.",
    Refusal.NOT_READ: "Check the right to read `snapshots`, and the broker.",
}
