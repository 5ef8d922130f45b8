"""What is appended where, in which order, and what the end of the log says to a successor."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaTimeoutError
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from prometheus_client import CollectorRegistry

from consumers.engine.admission import MAX_HEADERS, MAX_HEADERS_BYTES
from consumers.runtime.kafka.connection import KafkaSettings, murmur2_place
from consumers.runtime.registry import Instruments
from consumers.sequencer import appending
from consumers.sequencer.appending import (
    AppendError,
    LogEndFacts,
    LogWriter,
    Share,
    read_back,
    read_on,
)
from consumers.sequencer.merge import InputPartition, Witness
from consumers.sequencer.settings import SequencerSettings
from schemas.closed_sets import InputSource
from schemas.log import PLACED_HEADER, LogError, Next, Origin, Placed, Tick
from schemas.quarantine import QuarantineRecord
from tests.support.brokers.record_bytes import stand_in
from tests.support.known import Logged
from tests.unit.sequencer.input_records import NOW_MS, Record, read

PARTITIONS = 3


class Producer:
    """A producer whose sends end when the test says so, or at once."""

    def __init__(self, batch_bytes: int) -> None:
        self.batch_bytes = batch_bytes
        self.sent: defaultdict[int, list[bytes]] = defaultdict(list)
        self.refused: list[tuple[bytes, QuarantineRecord]] = []
        self.failing: set[int] = set()

    def create_batch(self) -> BatchBuilder:
        return BatchBuilder(self.batch_bytes, 0)

    async def send_batch(self, batch: BatchBuilder, topic: str, *, partition: int) -> Any:
        assert topic == "t.events"
        self.sent[partition].append(bytes(batch._build()))
        future = asyncio.get_running_loop().create_future()
        if partition in self.failing:
            future.set_exception(KafkaTimeoutError())
        else:
            future.set_result(SimpleNamespace(timestamp=NOW_MS + partition))
        return future

    async def send(self, topic: str, value: bytes, *, key: bytes) -> Any:
        assert topic == "t.quarantine"
        self.refused.append((key, QuarantineRecord.model_validate_json(value)))
        future = asyncio.get_running_loop().create_future()
        future.set_result(SimpleNamespace(timestamp=NOW_MS))
        return future

    def records(self, partition: int) -> list[Any]:
        found = []
        for raw in self.sent[partition]:
            batches = MemoryRecords(raw)
            while batches.has_next():
                found += list(batches.next_batch())
        return found


class Writing:
    """A writer of a share, and its producer."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, share: Share, batch_bytes: int = 100_000
    ) -> None:
        self.producer = Producer(batch_bytes)
        monkeypatch.setattr(KafkaSettings, "producer", lambda *_: self.producer)
        self.instruments = Instruments(CollectorRegistry(), ["sequencer"])
        settings = SequencerSettings(max_record_bytes=1_000)
        self.writer = LogWriter(
            KafkaSettings(topic_prefix="t."), settings, self.instruments, share, term=4
        )

    def counted(self, name: str) -> dict[tuple[str, ...], float]:
        (metric,) = [each for each in self.instruments.collect() if each.name == name]
        return {
            tuple(each.labels.values()): each.value
            for each in metric.samples
            if each.value and "_total" in each.name
        }


def of_one(records: Sequence[Any]) -> list[tuple[InputPartition, Any]]:
    each = read()
    return [(each, record) for record in records]


async def test_an_event_is_where_its_key_belongs_and_says_where_it_came_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writing = Writing(monkeypatch, Share(0, 1, PARTITIONS))
    forged = (
        (PLACED_HEADER, b"forged"),
        ("callgauge-tick", b"forged"),
        ("ce_id", b"e-1"),
        ("odd", None),
    )
    records = [Record(at, key=b"call-%d" % (at % 5), headers=forged) for at in range(50)]  # type: ignore[arg-type]
    await writing.writer.append(of_one(records), 0)
    for number in range(PARTITIONS):
        found = writing.producer.records(number)
        assert [each.key for each in found] == [
            each.key for each in records if murmur2_place(each.key or b"", 3) == number
        ]
        for each in found:
            *theirs, ours = each.headers
            assert theirs == [("ce_id", b"e-1"), ("odd", None)]
            assert ours[0] == PLACED_HEADER
    assert writing.counted("callgauge_sequencer_events") == {("pipecat",): 50}
    expected = [
        Placed(4, Origin(InputSource.PIPECAT, 0, 0, each.offset, NOW_MS)).header()
        for each in records
    ]
    assert sorted(
        each.headers[-1] for number in range(3) for each in writing.producer.records(number)
    ) == sorted(expected)


async def test_a_share_leaves_the_others_events_and_refusals_to_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    records: list[Any] = [Record(at, key=b"call-%d" % at) for at in range(50)]
    records += [Record(50, key=None, partition=0), Record(51, key=None, partition=1)]
    for shard in (0, 1):
        writing = Writing(monkeypatch, Share(shard, 2, PARTITIONS))
        await writing.writer.append(of_one(records), 0)
        assert set(writing.producer.sent) == {
            number for number in range(PARTITIONS) if number % 2 == shard
        }
        assert [each.offset for _, each in writing.producer.refused] == [50 + shard]
        await writing.writer.tick(Tick.of(4, 1, {}))
        assert set(writing.producer.sent) == {
            number for number in range(PARTITIONS) if number % 2 == shard
        }


async def test_a_batch_is_sent_only_when_the_one_before_it_is_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writing = Writing(monkeypatch, Share(0, 1, 1), batch_bytes=300)
    records = [Record(at, value=b"x" * 200) for at in range(4)]
    await writing.writer.append(of_one(records), 0)
    assert len(writing.producer.sent[0]) == 4
    assert [each.value for each in writing.producer.records(0)] == [each.value for each in records]
    writing.producer.failing = {0}
    with pytest.raises(AppendError, match="goes on from what the log has"):
        await writing.writer.append(of_one(records), 0)
    assert len(writing.producer.sent[0]) == 5, "nothing behind one that may be lost"


async def test_a_record_of_any_size_that_is_allowed_has_a_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writing = Writing(monkeypatch, Share(0, 1, 1), batch_bytes=300)
    await writing.writer.append(of_one([Record(0, value=b"x" * 1_000)]), 0)
    assert [each.value for each in writing.producer.records(0)] == [b"x" * 1_000]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (Record(0, key=None), "empty_key"),
        (Record(0, key=b"k" * 257), "empty_key"),
        (Record(0, value=None), "undecodable"),
        (Record(0, value=b"x" * 1_001), "record_too_large"),
        (Record(0, headers=(("h", b""),) * (MAX_HEADERS + 1)), "record_too_large"),
        (Record(0, headers=(("h", b"x" * MAX_HEADERS_BYTES),)), "record_too_large"),
        (stand_in("pipecat.events", 0, 0), "undecodable"),
    ],
)
async def test_what_can_never_be_an_event_goes_to_quarantine(
    monkeypatch: pytest.MonkeyPatch, record: Any, reason: str
) -> None:
    writing = Writing(monkeypatch, Share(0, 1, 1))
    await writing.writer.append(of_one([record, Record(1)]), 0)
    ((key, refused),) = writing.producer.refused
    assert (refused.reason, refused.topic, refused.partition, refused.offset) == (
        reason,
        "pipecat.events",
        0,
        0,
    )
    assert key == refused.key.encode()
    assert len(writing.producer.records(0)) == 1
    assert writing.counted("callgauge_sequencer_refused") == {("pipecat", reason): 1}


async def test_a_tick_is_in_each_partition_and_brings_the_brokers_stamps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writing = Writing(monkeypatch, Share(0, 1, PARTITIONS))
    tick = Tick.of(4, 1_000, {(InputSource.AUDIT, 0): Next(0, 7)})
    stamps_ms = [each.timestamp for each in await writing.writer.tick(tick)]
    assert stamps_ms == [NOW_MS, NOW_MS + 1, NOW_MS + 2]
    for number in range(PARTITIONS):
        (record,) = writing.producer.records(number)
        assert record.key is None
        assert list(record.headers) == [tick.header()]
        assert Tick.parse(record.value) == tick


async def test_in_front_of_an_event_of_a_backlog_a_tick_tells_the_time_that_has_passed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writing = Writing(monkeypatch, Share(0, 1, 1))
    await writing.writer.tick(
        Tick.of(4, NOW_MS, {(InputSource.AUDIT, 0): Next(0, 7)}, ["judge.verdicts[0]"])
    )
    times_ms = [0, 499, 500, 999, 60_000, 60_400, 70_000, 80_000]
    await writing.writer.append(
        of_one([Record(at, NOW_MS + ms) for at, ms in enumerate(times_ms)]),
        known_ms=NOW_MS + 70_200,
    )
    told: list[int | str] = []
    for each in writing.producer.records(0)[1:]:
        if each.key is None:
            tick = Tick.parse(each.value)
            assert (tick.term, tick.inputs, tick.left_out) == (4, {}, ("judge.verdicts[0]",))
            told.append(tick.known_ms - NOW_MS)
        else:
            told.append("event")
    assert told == [
        *[
            "event",
            "event",
            500,
            "event",
            "event",
            60_000,
            "event",
            "event",
            70_000,
            "event",
            "event",
        ],
    ], "at most what is known behind all of them"


# The end of the log.

PLACE = (InputSource.PIPECAT, 0)


def event(term: int, offset: int, generation: int = 0, value: bytes = b"{}") -> Record:
    placed = Placed(term, Origin(InputSource.PIPECAT, generation, 0, offset, NOW_MS))
    return Record(0, NOW_MS + 10, value=value, headers=(placed.header(),), topic="events")


def tick(
    term: int, offset: int, known_ms: int = 5, generation: int = 0, time_ms: int = 0
) -> Record:
    told = Tick.of(term, known_ms, {PLACE: Next(generation, offset)}, times_ms={PLACE: time_ms})
    return Record(0, key=None, value=told.value(), headers=(told.header(),), topic="events")


def test_a_successor_begins_where_the_newest_ticks_of_the_highest_term_say() -> None:
    found = LogEndFacts()
    taken = [
        tick(2, 9, known_ms=90),
        tick(3, 5, known_ms=50),
        event(3, 6),
        tick(3, 7, known_ms=70),
        tick(2, 11, known_ms=110),
    ]
    assert [found.read_record(each) for each in taken] == [2, 3, None, 3, 2]
    assert (found.term, found.known_ms, found.places) == (3, 70, {PLACE: Next(0, 7)})
    found.read_record(tick(3, 6, known_ms=60))  # of another partition
    assert (found.known_ms, found.places) == (70, {PLACE: Next(0, 7)})
    found.read_record(tick(3, 1, generation=1))
    assert found.places == {PLACE: Next(1, 1)}


def test_a_tick_that_tells_time_alone_says_nothing_of_places_and_of_other_partitions() -> None:
    found = LogEndFacts()
    told = Tick.of(3, 900, {})
    assert (
        found.read_record(Record(0, key=None, value=told.value(), headers=(told.header(),))) is None
    )
    assert (found.term, found.known_ms, found.places) == (3, 0, {})
    assert found.read_record(tick(2, 9, known_ms=90)) == 2
    assert (found.known_ms, found.places) == (90, {PLACE: Next(0, 9)})


def a_log_to_read(
    monkeypatch: pytest.MonkeyPatch, log: Sequence[Record], partitions: int
) -> list[int]:
    """Each partition of the log has these records; returns the offsets that are looked at."""
    looked_at: list[int] = []

    @asynccontextmanager
    async def onlooker(*_: object, **__: object) -> AsyncIterator[Any]:
        async def begins(tps: Any) -> dict[TopicPartition, int]:
            return dict.fromkeys(tps, 0)

        async def ends(tps: Any) -> dict[TopicPartition, int]:
            return dict.fromkeys(tps, len(log))

        yield SimpleNamespace(beginning_offsets=begins, end_offsets=ends)

    async def records_between(
        _: object, ranges: dict[TopicPartition, tuple[int, int]]
    ) -> AsyncIterator[Record]:
        for tp, (first, end) in ranges.items():
            assert tp in [TopicPartition("t.events", number) for number in range(partitions)]
            for offset in range(first, end):
                looked_at.append(offset)
                yield log[offset]._replace(offset=offset, partition=tp.partition)

    monkeypatch.setattr(appending, "onlooker", onlooker)
    monkeypatch.setattr(appending, "records_between", records_between)
    return looked_at


async def test_what_another_appends_until_the_term_has_begun_is_read_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = [tick(3, 7), event(3, 7)]
    looked_at = a_log_to_read(monkeypatch, log, partitions=2)
    kafka = KafkaSettings(topic_prefix="t.")
    found = await read_back(kafka, Share(0, 1, 2), 10, 0)
    assert (found.places, found.read_up_to) == ({PLACE: Next(0, 7)}, {0: 2, 1: 2})
    looked_at.clear()
    log += [tick(3, 0, generation=2), tick(3, 4, generation=2)]
    await read_on(kafka, found, {0: 4, 1: 2})
    assert looked_at == [2, 3]
    assert found.places == {PLACE: Next(2, 4)}


@pytest.mark.parametrize(
    ("least_term", "void", "place"),
    [
        pytest.param(0, 3, 7, id="nothing is known of the terms"),
        pytest.param(3, 3, 7, id="not looked at further than needed"),
        pytest.param(3, 500, 7, id="a replaced one filled the end"),
        pytest.param(0, 500, 99, id="which is believed by who does not know of the term"),
        pytest.param(9, 500, 7, id="the log lost what is known: to its beginning"),
    ],
)
async def test_it_is_read_back_to_a_tick_of_the_term_that_has_begun(
    monkeypatch: pytest.MonkeyPatch, least_term: int, void: int, place: int, logged: Logged
) -> None:
    """Void ticks of a sequencer that was replaced may fill the end of each partition."""
    log = [
        tick(1, 1),
        *[event(1, at) for at in range(300)],
        tick(2, 3),
        tick(3, 7),
        *[tick(2, 99)] * void,
    ]
    looked_at = a_log_to_read(monkeypatch, log, partitions=2)
    found = await read_back(KafkaSettings(topic_prefix="t."), Share(0, 1, 2), 10, least_term)
    assert found.places == {PLACE: Next(0, place)}
    assert (min(looked_at) == 0) == (least_term == 9)
    assert [each["event"] for each in logged] == (["log_lost_its_end"] if least_term == 9 else [])
    monkeypatch.setattr(appending, "MAX_BACK_RECORDS", 20)
    looked_at.clear()
    await read_back(KafkaSettings(topic_prefix="t."), Share(0, 1, 2), 10, 9)
    assert min(looked_at) == len(log) - 20


def test_a_term_without_a_tick_counts_for_the_next_one() -> None:
    found = LogEndFacts()
    found.read_record(tick(2, 9))
    found.read_record(event(7, 9))
    assert (found.term, found.places) == (7, {PLACE: Next(0, 9)})
    assert LogEndFacts().term == 0


def test_the_event_before_a_place_is_its_witness() -> None:
    found = LogEndFacts()
    for each in (event(1, 5, value=b"[5]"), event(1, 6, value=b"[6]"), tick(1, 7)):
        found.read_record(each)
    assert found.witnessed() == {PLACE: (Next(0, 7), Witness.of(NOW_MS, b"call-1", b"[6]"))}


@pytest.mark.parametrize("seen", [event(1, 7), event(1, 4), event(1, 6, generation=3)])
def test_without_that_event_the_time_in_the_tick_is(seen: Record) -> None:
    found = LogEndFacts()
    for each in (seen, tick(1, 7, time_ms=NOW_MS - 3), tick(1, 6, time_ms=NOW_MS - 9)):
        found.read_record(each)
    assert found.witnessed() == {PLACE: (Next(0, 7), Witness(NOW_MS - 3, None))}


def test_a_place_of_which_nothing_is_known_has_no_witness() -> None:
    found = LogEndFacts()
    found.read_record(tick(1, 7))
    assert found.witnessed() == {PLACE: (Next(0, 7), None)}


def test_a_strangers_record_without_our_headers_is_passed_over_and_one_that_forges_them_is_told() -> (
    None
):
    found = LogEndFacts()
    assert not found.read_record(Record(0))
    with pytest.raises(LogError):
        found.read_record(Record(0, headers=((PLACED_HEADER, b"forged"),)))
