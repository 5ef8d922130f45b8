"""State that one evaluator hands over and the next restores; and every reason for the next one to replay instead."""

import asyncio
import dataclasses
import io
import pickle
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaConnectionError, MessageSizeTooLargeError
from prometheus_client import CollectorRegistry
from pydantic import SecretStr
from structlog.testing import capture_logs

from consumers.engine.intake.admission import Arrival, admit
from consumers.engine.limits import Limits
from consumers.engine.partition import SNAPSHOT_VERSION, PartitionEvaluator
from consumers.engine.state_bytes import SnapshotError, read_state
from consumers.evaluator.partition.owned_partition import OwnedPartition
from consumers.evaluator.partition.partition import InputStart, Partition
from consumers.evaluator.recall.commit_note import SnapshotPlace
from consumers.evaluator.service import Evaluator
from consumers.evaluator.settings import EvaluatorSettings
from consumers.evaluator.snapshots import handing_over, manifest, packing
from consumers.evaluator.snapshots.basis import basis_of, say_if_off
from consumers.evaluator.snapshots.both_ends import snapshots_of
from consumers.evaluator.snapshots.manifest import SEAL_BYTES, Refusal, digest_of, opened, sealed
from consumers.evaluator.snapshots.restoring import READERS, NotedSnapshot, Restored
from consumers.evaluator.writing.outgoing import Outgoing
from consumers.evaluator.writing.partition_writer import FencedError, RejectedWriteError
from consumers.runtime.kafka.connection import KafkaSettings
from consumers.runtime.registry import Instruments
from schemas.closed_sets import InputSource
from schemas.redaction import RedactionRules
from schemas.topics import INPUT_TOPICS, OWNER_MARK_KEY, SCORES_TOPIC, SNAPSHOTS_TOPIC, SOURCE_BY_TOPIC, TOPIC_BY_SOURCE
from streamer.settings.all_settings import load_settings
from tests.benchmarks.traffic import interleaved, simulated_events
from tests.properties.evaluation import LIMITS, fresh
from tests.support.fakes.evaluator_fakes import fact, until_idle

NUMBER = 3
SNAPSHOTS = TopicPartition(SNAPSHOTS_TOPIC, 1)
SCORES = TopicPartition(SCORES_TOPIC, NUMBER)
SETTINGS = EvaluatorSettings(group_id="g", code_version="1", snapshot_key=SecretStr("k" * 32))
SCORES_END = 50
MARK = 53
"""Of the successor; only ends of transactions lie between: they take offsets and are no records."""
ENDS = dict.fromkeys(INPUT_TOPICS, 10_000)


class Bomb:
    """A stranger's pickle: it goes off as soon as it is unpickled."""

    def __reduce__(self) -> tuple[Callable[[str], NoReturn], tuple[str]]:
        return _explode, ("unpickled",)


def _explode(what: str) -> NoReturn:
    raise AssertionError(what)


@dataclasses.dataclass(frozen=True)
class Stored:
    offset: int
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()
    key: bytes | None = None
    topic: str = ""
    timestamp: int = 0
    partition: int = 0


class Broker:
    """Topics as lists of records, with clients that each read one partition at a time."""

    def __init__(self) -> None:
        self.logs: defaultdict[TopicPartition, list[Stored]] = defaultdict(list)
        self.logs[SNAPSHOTS] = [Stored(offset, b"of another partition") for offset in range(7)]
        self.logs[SCORES] = [Stored(SCORES_END - 1, b"{}"), Stored(MARK, None)]
        self.firsts: dict[TopicPartition, int] = {}
        self.error: Exception | None = None
        self.is_silent = False
        self.started = 0
        self.stopped = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    def end(self, tp: TopicPartition) -> int:
        return self.logs[tp][-1].offset + 1 if self.logs[tp] else 0


class Client:
    """A consumer of the broker; a poll gives one record of one partition."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._at: dict[TopicPartition, int] = {}

    async def start(self) -> None:
        self._broker.started += 1
        if self._broker.error is not None:
            raise self._broker.error

    async def stop(self) -> None:
        self._broker.stopped += 1

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        self._at = dict.fromkeys(partitions, 0)

    def seek(self, tp: TopicPartition, offset: int) -> None:
        assert tp in self._at
        self._at[tp] = offset

    async def position(self, tp: TopicPartition) -> int:
        return self._at[tp]

    async def beginning_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        await self._broker.may_answer.wait()
        return {tp: self._broker.firsts.get(tp, 0) for tp in partitions}

    async def end_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: self._broker.end(tp) for tp in partitions}

    async def getmany(
        self, *partitions: TopicPartition, timeout_ms: int, max_records: int | None = None
    ) -> dict[TopicPartition, list[Stored]]:
        del max_records
        if self._broker.is_silent:
            await asyncio.sleep(timeout_ms / 1_000)
            return {}
        tp = partitions[0]
        found = [each for each in self._broker.logs[tp] if each.offset >= self._at[tp]][:1]
        self._at[tp] = found[0].offset + 1 if found else self._broker.end(tp)
        return {tp: found} if found else {}


class Writer:
    """Writes to the broker, or does not."""

    def __init__(self, broker: Broker) -> None:
        self.scores_end: int | None = SCORES_END
        self.is_transactional = True
        self.error: Exception | None = None
        self.may_write = asyncio.Event()
        self.may_write.set()
        self._broker = broker

    async def write_apart(self, records: Sequence[Outgoing]) -> list[Any]:
        await self.may_write.wait()
        if self.error is not None:
            raise self.error
        written = []
        for each in records:
            assert each.topic == SNAPSHOTS.topic
            offset = self._broker.end(SNAPSHOTS) + 1  # another process's record comes in between
            self._broker.logs[SNAPSHOTS].append(Stored(offset - 1, b"another's", (("callgauge-snapshot", b"x"),)))
            self._broker.logs[SNAPSHOTS].append(Stored(offset, each.value, tuple(each.headers or ())))
            written.append(SimpleNamespace(topic=each.topic, partition=SNAPSHOTS.partition, offset=offset))
        return written


class Scene:
    """One owner that has folded a part of a call, and its successor."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, settings: EvaluatorSettings = SETTINGS) -> None:
        self.broker = Broker()
        monkeypatch.setattr(KafkaSettings, "consumer", lambda *_, **__: Client(self.broker))
        self.registry = CollectorRegistry()
        self.instruments = Instruments(self.registry, ["evaluator"])
        admitted = [admit(source, record, LIMITS) for source, record in interleaved([simulated_events(11)])]
        self.arrivals = [arrival for arrival in admitted if isinstance(arrival, Arrival)]
        self.half = len(self.arrivals) // 2
        self.owner = fresh()
        for arrival in self.arrivals[: self.half]:
            self.owner.receive(arrival)
        self.positions = dict.fromkeys(INPUT_TOPICS, 0) | {
            TOPIC_BY_SOURCE[arrival.source]: arrival.offset + 1 for arrival in self.arrivals[: self.half]
        }
        self.writer = Writer(self.broker)
        self.owned = self.held_with(self.owner, self.writer)
        self.successor = settings
        self.place: SnapshotPlace | None = None
        self.places: Mapping[int, SnapshotPlace] = {}

    def held_with(self, evaluator: PartitionEvaluator, writer: Any, number: int = NUMBER) -> OwnedPartition:
        partition = Partition(number, evaluator, Limits(), SOURCE_BY_TOPIC, self.instruments)
        owned = OwnedPartition(partition, writer)
        starts = {topic: InputStart(0, 0) for topic in INPUT_TOPICS}
        owned.began(starts, ENDS, 0, 0, now_ms=0, overlap_ms=0, goes_on_at=self.positions)
        return owned

    async def hand_over(self, *more: OwnedPartition, seconds: float = 5.0) -> "Scene":
        writing = snapshots_of(KafkaSettings(), SETTINGS, None, self.instruments).writing
        assert writing is not None
        self.places = {
            owned.partition.number: place for owned, place in await writing.write([self.owned, *more], seconds)
        }
        self.place = self.places.get(NUMBER)
        return self

    async def restore(self, number: int = NUMBER, mark: int = MARK, **moved: Mapping[str, int]) -> Restored | None:
        restoring = snapshots_of(KafkaSettings(), self.successor, None, self.instruments).restoring
        assert restoring is not None
        assert self.place is not None
        firsts, ends = moved.get("firsts", dict.fromkeys(INPUT_TOPICS, 0)), moved.get("ends", ENDS)
        return (await restoring.restore({number: NotedSnapshot(self.place, mark, firsts, ends)})).get(number)

    async def refused(self, reason: Refusal, **how: Any) -> None:
        """The successor does not use it, says why, and unpickles nothing."""
        with capture_logs() as lines:
            assert await self.restore(**how) is None
        (line,) = [line for line in lines if line["event"] == "snapshot_not_used"]
        assert (line["reason"], line["partition"]) == (reason.value, how.get("number", NUMBER))
        assert self.read(reason.value) == 1
        assert self.read("restored") == 0

    def chunk(self, index: int = 0) -> int:
        """Where in the log the manifest (0) or a chunk is."""
        assert self.place is not None
        ours = [
            place
            for place, each in enumerate(self.broker.logs[SNAPSHOTS])
            if each.offset >= self.place.first and each.value != b"another's"
        ]
        return ours[index]

    def replace(self, index: int, value: bytes) -> None:
        log, place = self.broker.logs[SNAPSHOTS], self.chunk(index)
        log[place] = dataclasses.replace(log[place], value=value)

    def reseal(self, key: str = "k" * 32, chunks: Iterable[bytes] | None = None, **changes: Any) -> None:
        """Another manifest, as a holder of the key could write it."""
        value = self.broker.logs[SNAPSHOTS][self.chunk()].value
        changed = opened(value, b"k" * 32).model_copy(update=changes)
        if chunks is not None:
            parts = list(chunks)
            sizes = {"chunks": len(parts), "size_bytes": sum(map(len, parts)), "chunks_digest": digest_of(parts)}
            changed = changed.model_copy(update=sizes)
            for index, part in enumerate(parts, 1):
                self.replace(index, part)
            del self.broker.logs[SNAPSHOTS][self.chunk(len(parts)) + 1 :]
            self.broker.logs[SNAPSHOTS].append(Stored(10_000, b"another's"))
        self.replace(0, sealed(changed, key.encode()))

    def count(self, name: str, outcome: str) -> float:
        return self.registry.get_sample_value(f"callgauge_{name}_total", {"outcome": outcome}) or 0.0

    def read(self, outcome: str) -> float:
        return self.count("snapshots_read", outcome)

    def written(self, outcome: str) -> float:
        return self.count("snapshots_written", outcome)


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(monkeypatch)


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "CHUNK_BYTES", 1_500)  # so that a state has several


# Cases that go well.


async def test_a_successor_goes_on_where_the_owner_was(scene: Scene) -> None:
    restored = await (await scene.hand_over()).restore()
    assert restored is not None
    assert restored.positions == scene.positions
    assert scene.broker.logs[SNAPSHOTS][scene.chunk(2)].value  # it had several chunks
    for arrival in scene.arrivals[scene.half :]:
        assert restored.evaluator.receive(arrival) == scene.owner.receive(arrival)
    assert (scene.written("written"), scene.read("restored")) == (1, 1)
    assert scene.count("snapshot_bytes", "written") == scene.count("snapshot_bytes", "read") > 0
    assert scene.broker.stopped == 1


async def test_the_owner_counts_its_events_before_so_that_the_successor_does_not(scene: Scene) -> None:
    restored = await (await scene.hand_over()).restore()
    assert restored is not None
    assert restored.evaluator.drain_counts() == []
    counted = scene.registry.get_sample_value("callgauge_events_total", {"source": "pipecat", "outcome": "folded"})
    assert counted is not None
    assert counted > 0
    assert not scene.owned.partition.is_being_snapshotted


async def test_a_partition_that_takes_a_state_goes_on_at_its_positions(scene: Scene) -> None:
    restored = await (await scene.hand_over()).restore()
    assert restored is not None
    owned = scene.held_with(fresh(), scene.writer)
    owned.partition.go_on_with(restored.evaluator)
    starts = {topic: InputStart(5, 8) for topic in INPUT_TOPICS}
    owned.began(starts, ENDS, 40, MARK + 1, now_ms=0, overlap_ms=0, goes_on_at=restored.positions)
    assert owned.partition.next_offsets == scene.positions
    assert owned.partition.open_calls == 1
    # And the next owner, without a state, begins where the oldest open call did.
    offsets = {tp.topic: at.offset for tp, at in owned.to_commit(0).items()}
    first = min(arrival.offset for arrival in scene.arrivals if arrival.source is InputSource.PIPECAT)
    assert offsets[TOPIC_BY_SOURCE[InputSource.PIPECAT]] == first


async def test_two_partitions_are_written_and_each_finds_its_own(scene: Scene) -> None:
    other = scene.held_with(fresh(), Writer(scene.broker), number=4)
    restored = await (await scene.hand_over(other)).restore()
    assert restored is not None
    assert restored.evaluator.open_calls == 1
    assert scene.written("written") == 2


# States that a successor does not use.


async def test_nothing_is_unpickled_that_is_not_sealed_with_our_key(scene: Scene) -> None:
    await scene.hand_over()
    scene.reseal("s" * 32, chunks=[pickle.dumps(Bomb())])
    await scene.refused(Refusal.WRONG_KEY)


async def test_a_manifest_that_was_changed_is_not_believed(scene: Scene) -> None:
    await scene.hand_over()
    value = scene.broker.logs[SNAPSHOTS][scene.chunk()].value or b""
    assert b'"scores_end":50' in value
    scene.replace(0, value.replace(b'"scores_end":50', b'"scores_end":51'))
    await scene.refused(Refusal.WRONG_KEY)


@pytest.mark.parametrize("value", [b"", b"{}", b"x" * SEAL_BYTES, b"x" * 100_000])
async def test_what_is_no_manifest_is_not_used(scene: Scene, value: bytes) -> None:
    await scene.hand_over()
    scene.replace(0, value)
    await scene.refused(Refusal.DAMAGED)


async def test_a_manifest_of_another_form_is_of_another_version(scene: Scene) -> None:
    await scene.hand_over()
    scene.replace(0, _sealed(b'{"snapshot_id": "later"}'))
    await scene.refused(Refusal.OTHER_VERSION)


def _sealed(text: bytes) -> bytes:
    """As a later version would, with our key."""
    return manifest._seal(text, b"k" * 32) + text


@pytest.mark.parametrize("index", [1, 2, -1])
async def test_a_chunk_that_is_gone_tears_it(scene: Scene, index: int) -> None:
    await scene.hand_over()
    del scene.broker.logs[SNAPSHOTS][scene.chunk(index)]
    if index == -1:  # its place is still there
        scene.broker.logs[SNAPSHOTS].append(Stored(scene.broker.end(SNAPSHOTS), b"another's"))
    await scene.refused(Refusal.MISSING)


async def test_a_manifest_that_is_gone_takes_all_with_it(scene: Scene) -> None:
    await scene.hand_over()
    del scene.broker.logs[SNAPSHOTS][scene.chunk()]
    await scene.refused(Refusal.MISSING)


async def test_what_the_topic_does_not_keep_any_more_is_gone(scene: Scene) -> None:
    await scene.hand_over()
    assert scene.place is not None
    scene.broker.firsts[SNAPSHOTS] = scene.place.first + 1
    await scene.refused(Refusal.MISSING)


async def test_a_place_of_a_topic_that_was_made_anew_is_not_there(scene: Scene) -> None:
    await scene.hand_over()
    scene.broker.logs[SNAPSHOTS].clear()
    await scene.refused(Refusal.MISSING)


async def test_a_changed_chunk_is_not_unpickled(scene: Scene) -> None:
    await scene.hand_over()
    value = scene.broker.logs[SNAPSHOTS][scene.chunk(1)].value or b""
    scene.replace(1, value[:-1] + bytes([value[-1] ^ 1]))
    await scene.refused(Refusal.DAMAGED)


async def test_a_chunk_of_a_stranger_under_its_id_is_one_too_many(scene: Scene) -> None:
    await scene.hand_over()
    log, place = scene.broker.logs[SNAPSHOTS], scene.chunk(2)
    log[place - 1] = dataclasses.replace(log[place], offset=log[place].offset - 1, value=pickle.dumps(Bomb()))
    await scene.refused(Refusal.MISSING)


async def test_even_under_the_seal_only_our_own_classes_are_made(scene: Scene) -> None:
    """A second door: only a holder of the key comes to it."""
    await scene.hand_over()
    state = packing.packed(lambda into: into.write(pickle.dumps((SNAPSHOT_VERSION, Bomb()))), time.monotonic() + 5)
    scene.reseal(chunks=state.chunks, unpacked_bytes=state.unpacked_bytes)
    await scene.refused(Refusal.DAMAGED)


async def test_it_unpacks_to_no_more_than_it_says(scene: Scene) -> None:
    await scene.hand_over()
    scene.reseal(unpacked_bytes=1_000)
    await scene.refused(Refusal.DAMAGED)


async def test_a_snapshot_that_is_stale_by_one_record_is_not_used(scene: Scene) -> None:
    await scene.hand_over()
    scene.broker.logs[SCORES].insert(1, Stored(SCORES_END + 1, b'{"code_version":"1"}'))
    await scene.refused(Refusal.STALE)


async def test_another_owner_in_between_makes_it_stale_even_if_it_wrote_nothing(scene: Scene) -> None:
    await scene.hand_over()
    scene.broker.logs[SCORES].insert(1, Stored(SCORES_END + 1, None, key=OWNER_MARK_KEY))
    await scene.refused(Refusal.STALE)


async def test_scores_that_were_made_anew_or_deleted_make_it_stale(scene: Scene) -> None:
    await scene.hand_over()
    await scene.refused(Refusal.STALE, mark=SCORES_END - 10)
    scene.broker.firsts[SCORES] = SCORES_END + 1
    assert await scene.restore() is None
    assert scene.read("stale") == 2


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"code_version": "2"}, Refusal.OTHER_VERSION),
        ({"limits": Limits(idle_ms=1_234_567)}, Refusal.OTHER_SETTINGS),
        ({"writes_transcripts": True}, Refusal.OTHER_SETTINGS),
        ({"group_id": "h"}, Refusal.MISPLACED),
        ({"snapshot_key": SecretStr("j" * 32)}, Refusal.WRONG_KEY),
    ],
)
async def test_another_version_or_other_settings_replay(
    scene: Scene, changes: Mapping[str, Any], reason: Refusal
) -> None:
    await scene.hand_over()
    scene.successor = SETTINGS.model_copy(update=changes)
    await scene.refused(reason)


async def test_other_code_under_the_same_version_replays(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    await scene.hand_over()
    monkeypatch.setattr("consumers.evaluator.snapshots.basis.code_digest", lambda: "0" * 64)
    await scene.refused(Refusal.OTHER_VERSION)


async def test_several_are_read_at_once_but_never_all(scene: Scene) -> None:
    numbers = range(NUMBER, NUMBER + READERS + 2)
    await scene.hand_over(*(scene.held_with(scene.owner, scene.writer, number) for number in numbers[1:]))
    for number in numbers:
        scene.broker.logs[TopicPartition(SCORES_TOPIC, number)] = [Stored(MARK, None)]
    firsts = dict.fromkeys(INPUT_TOPICS, 0)
    wanted = {number: NotedSnapshot(scene.places[number], MARK, firsts, ENDS) for number in numbers}
    restoring = snapshots_of(KafkaSettings(), SETTINGS, None, scene.instruments).restoring
    assert restoring is not None
    scene.broker.may_answer.clear()
    reading = asyncio.create_task(restoring.restore(wanted))
    await until_idle()
    assert scene.broker.started == READERS
    scene.broker.may_answer.set()
    assert (await reading).keys() == set(numbers)
    assert scene.broker.started == scene.broker.stopped == READERS


async def test_a_snapshot_of_another_partition_is_not_used(scene: Scene) -> None:
    await scene.hand_over()
    await scene.refused(Refusal.MISPLACED, number=NUMBER + 1)


async def test_where_an_input_does_not_have_its_position_it_is_not_used(scene: Scene) -> None:
    await scene.hand_over()
    await scene.refused(Refusal.INPUTS_MOVED, ends=dict.fromkeys(INPUT_TOPICS, 1))
    assert await scene.restore(firsts=dict.fromkeys(INPUT_TOPICS, 9_000)) is None
    assert await scene.restore(ends=ENDS | {"fifth.events": 1}) is None
    assert scene.read("inputs_moved") == 3


async def test_a_broker_that_does_not_answer_costs_a_replay_and_no_more(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scene.hand_over()
    scene.broker.error = KafkaConnectionError("gone")
    await scene.refused(Refusal.NOT_READ)
    scene.broker.error, scene.broker.is_silent = None, True
    monkeypatch.setattr("consumers.evaluator.snapshots.restoring.MAX_SILENT_SECONDS", 0.05)
    assert await scene.restore() is None
    assert scene.read("not_read") == 2
    assert scene.broker.stopped == 2


# States that are not written.


async def test_a_partition_with_unwritten_scores_is_left_out(scene: Scene) -> None:
    scene.owned.partition.outbox.put((fact("c-1"),))
    assert (await scene.hand_over()).place is None
    assert scene.written("unwritten") == 1


async def test_a_stopped_partition_hands_nothing_over(scene: Scene) -> None:
    scene.owned.partition.stops = {}
    assert (await scene.hand_over()).place is None
    assert scene.broker.end(SNAPSHOTS) == 7


async def test_without_transactions_nothing_is_handed_over(scene: Scene) -> None:
    scene.writer.is_transactional = False
    assert (await scene.hand_over()).place is None


@pytest.mark.parametrize("bound", ["MAX_PACKED_BYTES", "MAX_UNPACKED_BYTES"])
async def test_a_state_above_its_bound_is_left_out(scene: Scene, monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    monkeypatch.setattr(packing, bound, 5_000)
    with capture_logs() as lines:
        assert (await scene.hand_over()).place is None
    assert scene.written("too_large") == 1
    assert lines[0]["event"] == "snapshot_left_out"


async def test_what_is_not_packed_in_time_is_left_out(scene: Scene) -> None:
    assert (await scene.hand_over(seconds=-1.0)).place is None
    assert scene.written("too_late") == 1
    assert not scene.owned.partition.is_being_snapshotted


async def test_what_is_not_written_in_time_is_left_out_and_the_others_are_not(scene: Scene) -> None:
    slow = Writer(scene.broker)
    slow.may_write.clear()
    await scene.hand_over(scene.held_with(fresh(), slow, number=4), seconds=0.2)
    assert scene.place is not None
    assert (scene.written("written"), scene.written("too_late")) == (1, 1)
    slow.may_write.set()  # and it goes to its end without harm
    await asyncio.sleep(0)


@pytest.mark.parametrize("error", [RejectedWriteError("too large"), FencedError("partition 3")])
async def test_what_the_broker_does_not_take_is_left_out(scene: Scene, error: Exception) -> None:
    scene.writer.error = error
    assert (await scene.hand_over()).place is None
    assert scene.written("not_taken") == 1


async def test_the_state_stays_unchanged_until_the_thread_has_ended_even_when_we_are_cancelled(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, may_end = threading.Event(), threading.Event()

    def slow(*_: Any) -> NoReturn:
        began.set()
        may_end.wait(10)
        raise packing.TooLateError

    monkeypatch.setattr(handing_over, "packed", slow)
    task = asyncio.create_task(scene.hand_over())
    await asyncio.to_thread(began.wait, 10)
    scene.owner.receive(scene.arrivals[scene.half])
    assert scene.owned.partition.is_being_snapshotted
    scene.owned.partition.count_events()  # a scrape comes by
    assert scene.owner.drain_counts()
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not scene.owned.partition.is_being_snapshotted


def test_there_are_no_snapshots_without_a_key_or_on_a_broker_that_keeps_nothing() -> None:
    instruments = Instruments(CollectorRegistry(), ["evaluator"])
    for kafka, changes in (
        (KafkaSettings(), {"snapshot_key": None}),
        (KafkaSettings(), {"uses_transactions": False}),
        (KafkaSettings(is_embedded=True), {}),
    ):
        assert snapshots_of(kafka, SETTINGS.model_copy(update=changes), None, instruments)[:2] == (None, None)


def test_without_a_key_a_start_says_what_it_costs() -> None:
    off = SETTINGS.model_copy(update={"snapshot_key": None})
    with capture_logs() as lines:
        say_if_off(off, is_embedded=False)
        say_if_off(off, is_embedded=True)
        say_if_off(SETTINGS, is_embedded=False)
    assert [line["event"] for line in lines] == ["snapshots_are_off"]


def test_the_key_is_shown_nowhere() -> None:
    assert "kkkk" not in repr(SETTINGS) + str(basis_of(SETTINGS))


# The bytes of a state.


def test_damaged_bytes_are_an_error_of_ours() -> None:
    state = fresh().snapshot()
    for damaged in (b"", state[:-20], state[:40] + state[60:], pickle.dumps([1]), b"cos\nsystem\n(S'true'\ntR."):
        with pytest.raises(SnapshotError, match="replay the inputs"):
            PartitionEvaluator.restore(damaged)


@pytest.mark.parametrize("what", [Bomb(), time.sleep, MessageSizeTooLargeError, eval, OwnedPartition])
def test_no_class_but_those_of_a_state_is_made(what: object) -> None:
    with pytest.raises(SnapshotError, match="a snapshot has no"):
        read_state(1, io.BytesIO(pickle.dumps((1, what))))


def test_what_an_engine_module_has_only_imported_is_not_made() -> None:
    with pytest.raises(SnapshotError, match=r"a snapshot has no consumers\.engine\.call\.wakeups\.heapq"):
        PartitionEvaluator.restore(b"\x80\x05cconsumers.engine.call.wakeups\nheapq\n.")


def test_packing_and_unpacking_give_the_same_bytes() -> None:
    text = bytes(range(256)) * 5_000

    def in_pieces(into: Any) -> None:
        for at in range(0, len(text), 70_001):
            into.write(text[at : at + 70_001])

    state = packing.packed(in_pieces, 1e12)
    assert state.unpacked_bytes == len(text)
    assert all(len(chunk) <= packing.CHUNK_BYTES for chunk in state.chunks)
    assert packing.Unpacker(state.chunks, len(text)).read() == text
    lines = packing.Unpacker(state.chunks, len(text))
    assert lines.readline() == text[:11]
    assert lines.read(5) == text[11:16]


async def test_settings_that_are_derived_from_the_engines_are_none_of_its_state() -> None:
    """The command line turns settings into classes of its own, which no snapshot may name."""
    told = load_settings(None, {}, {"CALLGAUGE_LIMITS__IDLE_MS": "1234"})
    settings = EvaluatorSettings(limits=told.limits, redaction=told.redaction, goals=told.goal_rules(()))
    assert (type(settings.limits), type(settings.redaction)) == (Limits, RedactionRules)
    assert settings.limits.idle_ms == 1_234
    assert settings.redaction == RedactionRules()
    role = Evaluator(KafkaSettings(), settings, Instruments(CollectorRegistry(), ["evaluator"]))
    into = io.BytesIO()
    role._new_owned(0).partition.write_snapshot(into)
    assert PartitionEvaluator.restore(into.getvalue()).open_calls == 0
