"""Evaluators with one thing broken, so that the checker can show that it would notice.

`python -m tests.chaos.evaluators.altered without KIND run ...`

Each is the real command with one part replaced before it starts.
"""

import asyncio
import importlib
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from aiokafka import TopicPartition
from pydantic import ValidationError

from consumers.engine.partition import PartitionEvaluator
from consumers.evaluator.ownership import takeover
from consumers.evaluator.partition.owned_partition import OwnedPartition
from consumers.evaluator.partition.partition import Partition
from consumers.evaluator.recall.commit_note import CommitNote, SnapshotPlace
from consumers.evaluator.snapshots import restoring
from consumers.evaluator.writing.partition_writer import PartitionWriter
from consumers.runtime.kafka.connection import KafkaSettings
from schemas.scores.all_records import SCORE_RECORD
from schemas.topics import SCORES_TOPIC

SLOW_SECONDS: Final = 0.5
"""How long the unfenced evaluator hesitates between deciding and writing: long enough to be frozen in it."""

_background: set["asyncio.Task[Any]"] = set()


def _without_transactions() -> None:
    """Scores are written one by one. Nothing more is broken: fencing is compared with this."""
    make: Callable[..., None] = PartitionWriter.__init__

    def plain(self: PartitionWriter, *arguments: Any) -> None:
        make(self, *arguments)
        _replace(self, "_is_transactional", by=False)

    _replace(PartitionWriter, "__init__", plain)


def _without_fencing() -> None:
    """The former owner of a partition can go on writing to it."""
    _without_transactions()
    write: Callable[..., Awaitable[None]] = PartitionWriter._write

    async def hesitant(self: PartitionWriter, groups: Any) -> None:
        await asyncio.sleep(SLOW_SECONDS)
        await write(self, groups)

    _replace(PartitionWriter, "_write", hesitant)


def _without_ledger() -> None:
    """Earlier records are not read."""

    async def unread(kafka: KafkaSettings, starts: Mapping[int, int], *_: Any) -> dict[int, int]:
        return await _ends(kafka, starts)

    _replace(takeover, "read_ledger", unread)


def _without_gate() -> None:
    """Earlier records are read while inputs are folded already."""

    read: Callable[..., Any] = vars(takeover)["read_ledger"]

    async def late(kafka: KafkaSettings, starts: Mapping[int, int], *more: Any) -> dict[int, int]:
        reading = asyncio.create_task(read(kafka, starts, *more))
        _background.add(reading)
        return await _ends(kafka, starts)

    _replace(takeover, "read_ledger", late)


def _without_watermark() -> None:
    """The position is committed, as if no call were open."""
    _replace(Partition, "offsets_to_commit", lambda self: dict(self.next_offsets))


def _without_versions() -> None:
    """A record of `scores` that this version cannot read whole is passed over, even if it says that a call is closed."""
    from consumers.evaluator.recall import ledger

    read: Callable[[bytes], Any] = vars(ledger)["read_ledger_record"]

    def blind(value: bytes) -> Any:
        try:
            SCORE_RECORD.validate_json(value)
        except ValidationError:
            return None
        return read(value)

    _replace(ledger, "read_ledger_record", blind)


def _without_clock() -> None:
    """The wall clock counts as the time, even when it steps."""
    clock: Any = importlib.import_module("consumers.evaluator.reading.broker_clock")
    make: Callable[..., None] = clock.BrokerClock.__init__

    def wall() -> Any:
        now_ms = time.time_ns() // 1_000_000
        return clock.Reading(now_ms, now_ms)

    _replace(clock.BrokerClock, "__init__", lambda self, instruments: make(self, instruments, wall))
    _replace(clock.BrokerClock, "correct", lambda _: False)


def _without_newest() -> None:
    """A snapshot is used although records were written after it, as if there were no steps; each owner names the first snapshot."""
    places: dict[int, SnapshotPlace] = {}
    restored: Callable[..., Awaitable[Any]] = takeover.Takeover._restored
    to_commit: Callable[..., Any] = OwnedPartition.to_commit

    async def remembering(self: Any, numbers: Any, notes: Mapping[TopicPartition, CommitNote], *more: Any) -> Any:
        places.update({tp.partition: note.snapshot for tp, note in notes.items() if note.snapshot is not None})
        return await restored(self, numbers, notes, *more)

    def repeating(
        self: OwnedPartition, now_ms: int, *, hands_over: bool = False, snapshot: SnapshotPlace | None = None
    ) -> Any:
        if (newest := snapshot or self.snapshot) is not None:
            places.setdefault(self.partition.number, newest)
        place = places.get(self.partition.number)
        return to_commit(self, now_ms, hands_over=hands_over, snapshot=place)

    async def any_will_do(*_: Any) -> tuple[()]:
        return ()

    _replace(takeover.Takeover, "_restored", remembering)
    _replace(OwnedPartition, "to_commit", repeating)
    _replace(restoring, "pieces_after", any_will_do)


def _without_wholeness() -> None:
    """A snapshot of which a part is missing is gone on with."""
    restore = PartitionEvaluator.restore

    def torn(*snapshot: Any) -> PartitionEvaluator:
        evaluator = restore(*snapshot)
        for conversation_id in sorted(evaluator._calls)[::2]:
            del evaluator._calls[conversation_id]
        return evaluator

    _replace(PartitionEvaluator, "restore", torn)


KINDS: Final[Mapping[str, Callable[[], None]]] = {
    "transactions": _without_transactions,
    "fencing": _without_fencing,
    "ledger": _without_ledger,
    "gate": _without_gate,
    "watermark": _without_watermark,
    "versions": _without_versions,
    "clock": _without_clock,
    "newest": _without_newest,
    "wholeness": _without_wholeness,
}
"""By the missing protection."""


async def _ends(kafka: KafkaSettings, starts: Mapping[int, int]) -> dict[int, int]:
    consumer = kafka.consumer("broken", enable_auto_commit=False)
    await consumer.start()
    try:
        ends = await consumer.end_offsets([TopicPartition(kafka.topic(SCORES_TOPIC), number) for number in starts])
        return {tp.partition: end for tp, end in ends.items()}
    finally:
        await consumer.stop()


def _replace(owner: Any, name: str, by: Any) -> None:
    getattr(owner, name)  # a missing line cannot be broken: better to fail here than to break nothing
    setattr(owner, name, by)
