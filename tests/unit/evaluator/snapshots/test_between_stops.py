"""Snapshots of partitions that go on: taken in turn, of one moment, and restored with everything written after them."""

import asyncio
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest
from aiokafka import TopicPartition

from consumers.evaluator.partition.owned_partition import OwnedPartition
from consumers.evaluator.recall.commit_note import CommitNote, SnapshotPlace
from consumers.evaluator.snapshots import handing_over, packing
from consumers.evaluator.snapshots.between_stops import SnapshotsBetweenStops
from consumers.evaluator.snapshots.both_ends import snapshots_of
from consumers.evaluator.snapshots.manifest import Refusal
from consumers.evaluator.writing.partition_writer import PartitionWriter, RejectedWriteError
from consumers.runtime.kafka.connection import KafkaSettings
from schemas.topics import INPUT_TOPICS, OWNER_MARK_KEY, TOPIC_BY_SOURCE
from tests.support.fakes.evaluator_fakes import Record, fact, pause, until_idle
from tests.unit.evaluator.snapshots.test_snapshots import ENDS, NUMBER, SCORES, SETTINGS, Scene, Stored


class Going:
    """An owner that goes on after its snapshot: it writes the scores of later records to the log of scores, with its journal."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.scene = Scene(monkeypatch)
        self.owned = self.scene.owned
        self.writing = snapshots_of(KafkaSettings(), SETTINGS, None, self.scene.instruments).writing
        partition = self.owned.partition
        self._writer = PartitionWriter(NUMBER, partition.outbox, KafkaSettings(), SETTINGS, self.scene.instruments)
        self.scene.broker.logs[SCORES] = [Stored(49, b'{"code_version": 1}')]
        for each in self.scene.arrivals:
            topic = TOPIC_BY_SOURCE[each.source]
            tp = TopicPartition(topic, NUMBER)
            key = each.conversation_id.encode()
            stored = Stored(each.offset, each.value, (), key, topic, each.broker_time_ms, NUMBER)
            self.scene.broker.logs[tp].append(stored)

    async def snapshot(self) -> SnapshotPlace | None:
        assert self.writing is not None
        self.scene.place = await self.writing.write_now(self.owned, 1.0)
        return self.scene.place

    def fold_the_rest(self) -> None:
        for each in self.scene.arrivals[self.scene.half :]:
            topic = TOPIC_BY_SOURCE[each.source]
            key = each.conversation_id.encode()
            self.owned.partition.fold([[Record(topic, each.offset, each.broker_time_ms, key, each.value)]], None)

    def write(self) -> None:
        outbox, log = self.owned.partition.outbox, self.scene.broker.logs[SCORES]
        groups = outbox.first()
        for each in self._writer._outgoing(groups):
            log.append(Stored(log[-1].offset + 1, each.value, tuple(each.headers or ()), each.key))
        outbox.written(len(groups))

    @property
    def end(self) -> int:
        return self.scene.broker.logs[SCORES][-1].offset + 1

    async def restore(self) -> Any:
        return await self.scene.restore(mark=self._mark())

    async def refused(self, reason: Refusal) -> None:
        await self.scene.refused(reason, mark=self._mark())

    def _mark(self) -> int:
        """The successor's."""
        self.scene.broker.logs[SCORES].append(Stored(self.end, None, (), OWNER_MARK_KEY))
        return self.end - 1


@pytest.fixture
def going(monkeypatch: pytest.MonkeyPatch) -> Going:
    return Going(monkeypatch)


async def test_a_snapshot_is_restored_with_what_was_written_after_it(going: Going) -> None:
    assert await going.snapshot() is not None
    going.fold_the_rest()
    assert going.owned.partition.outbox.records
    going.write()
    restored = await going.restore()
    assert restored is not None
    assert restored.steps > 10
    assert restored.unwritten == []
    assert restored.evaluator.drain_counts() == [], "the owner has counted"
    for each in going.scene.arrivals:
        if each.offset >= restored.positions[TOPIC_BY_SOURCE[each.source]]:
            restored.evaluator.receive(each)
    conversation_id = going.scene.arrivals[0].conversation_id
    assert restored.evaluator.context(conversation_id) == going.scene.owner.context(conversation_id)


async def test_a_record_of_somebody_else_in_between_harms_nothing(going: Going) -> None:
    await going.snapshot()
    going.fold_the_rest()
    log = going.scene.broker.logs[SCORES]
    for value in (b"{}", b"", None):
        log.append(Stored(going.end, value, (), b"foreign-1"))
    going.write()
    assert await going.restore() is not None


@pytest.mark.parametrize("value", [b'{"code_version": "1"}', None])
async def test_a_score_in_no_piece_makes_it_stale(going: Going, value: bytes | None) -> None:
    await going.snapshot()
    going.fold_the_rest()
    going.write()
    going.scene.broker.logs[SCORES].append(Stored(going.end, value, (), OWNER_MARK_KEY))
    await going.refused(Refusal.STALE)


async def test_a_score_that_is_gone_makes_it_stale(going: Going) -> None:
    await going.snapshot()
    going.fold_the_rest()
    going.write()
    del going.scene.broker.logs[SCORES][1]
    await going.refused(Refusal.STALE)


async def test_records_wait_while_the_state_is_packed_and_are_folded_then(
    going: Going, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, may_end = threading.Event(), threading.Event()
    pack = packing.packed

    def slow(*more: Any) -> Any:
        began.set()
        may_end.wait(10)
        return pack(*more)

    monkeypatch.setattr(handing_over, "packed", slow)
    partition = going.owned.partition
    positions = dict(partition.next_offsets)
    task = asyncio.create_task(going.snapshot())
    await asyncio.to_thread(began.wait, 10)
    going.fold_the_rest()
    partition.advance(2**50)
    assert partition.next_offsets == positions
    assert (partition.time_ms, partition.closing_calls, partition.outbox.records) == (0, 0, 0)
    may_end.set()
    await task
    partition.fold([], None)
    assert partition.next_offsets != positions
    assert partition.outbox.records
    going.write()
    assert (await going.restore()).steps > 10


async def test_it_waits_until_everything_decided_before_it_is_written(going: Going) -> None:
    going.owned.partition.outbox.put((fact("c-1"),))
    task = asyncio.create_task(going.snapshot())
    await until_idle()
    assert not task.done()
    going.write()
    assert await task is not None
    going.fold_the_rest()
    going.owned.partition.outbox.put((fact("c-1"),))  # nothing that a step decided
    assert going.scene.written("between_stops") == 1


async def test_the_second_one_waits_too(going: Going) -> None:
    await going.snapshot()
    going.fold_the_rest()
    task = asyncio.create_task(going.snapshot())
    await asyncio.to_thread(_packed_by_now)
    await until_idle()
    assert not task.done()
    assert going.scene.written("between_stops") == 1
    going.write()
    assert await task is not None
    assert (await going.restore()).steps == 0


async def test_a_transaction_that_was_under_way_when_the_journal_began_is_before_the_state(going: Going) -> None:
    outbox, log = going.owned.partition.outbox, going.scene.broker.logs[SCORES]
    outbox.put((fact("c-1"),))
    (under_way,) = going._writer._outgoing(outbox.first())
    task = asyncio.create_task(going.snapshot())
    await asyncio.to_thread(_packed_by_now)
    await until_idle()
    log.append(Stored(going.end, under_way.value, (), under_way.key))
    going.scene.writer.scores_end = going.end
    outbox.written(1)
    assert await task is not None
    going.fold_the_rest()
    going.write()
    assert (await going.restore()).steps > 10


def _packed_by_now() -> None:
    """Gives a thread that packs one call the time to be done; a longer pause would only make the test surer."""
    time.sleep(0.3)


async def test_what_is_not_written_in_time_is_left_out(going: Going) -> None:
    going.owned.partition.outbox.put((fact("c-1"),))
    assert going.writing is not None
    assert await going.writing.write_now(going.owned, 0.01) is None
    assert going.scene.written("unwritten") == 1


async def test_what_the_broker_does_not_take_is_left_out(going: Going) -> None:
    going.scene.writer.error = RejectedWriteError("too large")
    assert await going.snapshot() is None
    assert going.scene.written("not_taken") == 1


async def test_a_partition_that_goes_meanwhile_gets_none(going: Going, monkeypatch: pytest.MonkeyPatch) -> None:
    pack = packing.packed

    def slow(*more: Any) -> Any:
        going.owned.partition.drop()
        return pack(*more)

    monkeypatch.setattr(handing_over, "packed", slow)
    assert await going.snapshot() is None


async def test_the_note_names_the_newest_and_at_a_stop_that_of_the_stop(going: Going) -> None:
    def noted(**how: Any) -> set[SnapshotPlace | None]:
        return {CommitNote.parse(at.metadata).snapshot for at in going.owned.to_commit(0, **how).values()}

    assert noted() == {None}
    going.owned.snapshot = SnapshotPlace(1, 2, 3)
    assert noted() == noted(hands_over=True) == {SnapshotPlace(1, 2, 3)}
    assert noted(hands_over=True, snapshot=SnapshotPlace(1, 8, 9)) == {SnapshotPlace(1, 8, 9)}


class _Writing:
    """Notes whose snapshot was taken."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self._took = asyncio.Condition()

    async def until(self, number: int) -> None:
        async with self._took:
            await self._took.wait_for(lambda: len(self.taken) >= number)

    async def write_now(self, owned: OwnedPartition) -> SnapshotPlace:
        async with self._took:
            self.taken.append(owned.partition.number)
            self._took.notify_all()
        return SnapshotPlace(0, len(self.taken), len(self.taken) + 1)


def _all_of(scene: Scene, numbers: Sequence[int]) -> dict[int, OwnedPartition]:
    found = {number: scene.held_with(scene.owner, scene.writer, number) for number in numbers}
    for owned in found.values():
        owned.read_to(ENDS)
    return found


async def test_partitions_take_turns_and_one_that_reads_nothing_is_passed_over(going: Going) -> None:
    writing: Any = _Writing()
    active = _all_of(going.scene, (1, 2, 3))
    taking = asyncio.create_task(SnapshotsBetweenStops(writing, 1).take_for_ever(lambda: active))
    await writing.until(3)
    assert sorted(writing.taken) == [1, 2, 3]
    assert active[3].snapshot is not None
    active[2].partition.next_offsets[INPUT_TOPICS[0]] += 1
    await writing.until(4)
    await pause(0.2)
    taking.cancel()
    assert writing.taken[3:] == [2]


async def test_a_partition_that_has_not_caught_up_is_not_taken(going: Going) -> None:
    owned = going.scene.held_with(going.scene.owner, going.scene.writer)
    seen = [owned.may_be_snapshotted]
    owned.read_to(ENDS)
    seen.append(owned.may_be_snapshotted)
    owned.partition.is_active = False
    assert [*seen, owned.may_be_snapshotted] == [False, True, False]


async def test_without_a_key_or_an_interval_none_is_taken() -> None:
    writing: Any = _Writing()
    for off in (SnapshotsBetweenStops(None, 1), SnapshotsBetweenStops(writing, 0)):
        taking = asyncio.create_task(off.take_for_ever(dict))
        await until_idle()
        assert not taking.done()
        taking.cancel()
