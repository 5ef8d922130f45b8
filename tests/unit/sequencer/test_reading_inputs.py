"""Which partitions there are, from where each is read, and what its broker tells of its end."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from aiokafka import TopicPartition
from aiokafka.consumer.fetcher import OffsetResetStrategy
from aiokafka.errors import KafkaConnectionError, OffsetOutOfRangeError
from prometheus_client import CollectorRegistry

from consumers.runtime.kafka.connection import KafkaSettings
from consumers.runtime.registry import Instruments
from consumers.sequencer.merge import PATIENCE_MS, SILENT_MS, STAMP_MS, InputPartition, Witness
from consumers.sequencer.reading import ONLOOKER, InputReader
from consumers.sequencer.settings import SequencerSettings
from schemas.closed_sets import InputSource
from schemas.log import Next
from schemas.topics import TOPIC_BY_SOURCE
from tests.support.known import Logged
from tests.unit.sequencer.input_records import NOW_MS, Record

PIPECAT, AUDIT = InputSource.PIPECAT, InputSource.AUDIT
TP = TopicPartition("pipecat.events", 0)


class Log(NamedTuple):
    """What a broker has of a partition: its first offset, and its records behind each other."""

    first: int
    records: list[Record]

    @property
    def end(self) -> int:
        return self.first + len(self.records)


class Clock:
    """That of this machine and of all brokers."""

    ms = NOW_MS

    def now_ms(self) -> int:
        return self.ms


class Cluster:
    """Brokers that know their logs, and a client of them that reads when it is told to. It is
    cluster, client and consumer in one.
    """

    def __init__(self) -> None:
        self.logs: dict[TopicPartition, Log] = {
            TopicPartition(topic, 0): Log(0, []) for topic in TOPIC_BY_SOURCE.values()
        }
        self.known: dict[TopicPartition, int] = {}
        self.positions: dict[TopicPartition, int] = {}
        self.leaders: dict[TopicPartition, int] = {}
        self.silent: set[int] = set()
        # records that stand in the log and that readers may not see yet
        self.hidden: dict[TopicPartition, int] = {}
        self.clock = Clock()
        self.on_metadata: Any = None
        self.on_answer: Callable[[], None] = lambda: None
        self.cluster = self._client = self

    # The cluster's metadata, as of the latest look.

    def add_listener(self, listener: Any) -> None:
        self.on_metadata = listener

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return {tp.partition for tp in self.known if tp.topic == topic} or None

    def leader_for_partition(self, tp: TopicPartition) -> int | None:
        return self.known.get(tp)

    def look(self) -> None:
        self.known = {tp: self.leaders.get(tp, 1) for tp in self.logs}
        self.on_metadata(self)

    # The client.

    async def set_topics_(self, _: list[str]) -> None:
        self.look()

    def set_topics(self, topics: list[str]) -> Any:
        return asyncio.ensure_future(self.set_topics_(topics)) if not self.known else None

    def get_random_node(self) -> int:
        return 1

    def force_metadata_update(self) -> None:
        self.look()

    async def send(self, node: int, request: Any) -> Any:
        if node in self.silent:
            raise KafkaConnectionError
        if not hasattr(request, "_replica_id"):
            told: dict[str, list[tuple[int, int, int]]] = {}
            for tp in self.logs:
                told.setdefault(tp.topic, []).append((0, tp.partition, self.leaders.get(tp, 1)))
            return SimpleNamespace(
                topics=[(0, topic, False, partitions) for topic, partitions in told.items()]
            )
        answers = []
        for topic, partitions in request._topics:
            for number, which in partitions:
                log = self.logs.get(TopicPartition(topic, number))
                if log is None:
                    answers.append((topic, [(number, 3, -1, -1)]))
                else:
                    end = log.end + (
                        self.hidden.get(TopicPartition(topic, number), 0)
                        if request._replica_id == ONLOOKER
                        else 0
                    )
                    answers.append(
                        (
                            topic,
                            [
                                (
                                    number,
                                    0,
                                    -1,
                                    end if which == OffsetResetStrategy.LATEST else log.first,
                                )
                            ],
                        )
                    )
        self.on_answer()
        return SimpleNamespace(topics=answers)

    # The consumer.

    async def start(self) -> None:
        pass

    stop = start

    def assign(self, tps: list[TopicPartition]) -> None:
        self.positions = dict.fromkeys(tps, 0)

    def seek(self, tp: TopicPartition, offset: int) -> None:
        self.positions[tp] = offset

    async def getmany(
        self, *only: TopicPartition, timeout_ms: int, max_records: int
    ) -> dict[TopicPartition, list[Record]]:
        found = {}
        for tp, position in self.positions.items():
            log = self.logs.get(tp)
            if log is None or (only and tp not in only):
                continue
            if not log.first <= position <= log.end:
                raise OffsetOutOfRangeError({tp: position})
            if records := log.records[position - log.first :][:max_records]:
                found[tp] = records
                self.positions[tp] += len(records)
        await asyncio.sleep(0)
        return found

    async def position(self, tp: TopicPartition) -> int:
        return self.positions[tp]


class Reading:
    """A reader of the cluster."""

    def __init__(self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cluster, self.clock = cluster, cluster.clock
        self.instruments = Instruments(CollectorRegistry(), ["sequencer"])
        monkeypatch.setattr(KafkaSettings, "consumer", lambda *_, **__: cluster)
        monkeypatch.setattr("consumers.sequencer.reading.RETRY_SECONDS", 0)
        monkeypatch.setattr("consumers.sequencer.reading.POLL_MS", 0)

    async def start(self, **places: tuple[Next, Witness]) -> InputReader:
        at = {(InputSource[name], 0): place for name, place in places.items()}
        reader = InputReader(
            KafkaSettings(),
            SequencerSettings(),
            self.instruments,
            self.clock,  # type: ignore[arg-type]
            at,
            counts_lost=True,
        )
        await reader.start()
        return reader

    @property
    def lost(self) -> float:
        (metric,) = [
            each
            for each in self.instruments.collect()
            if each.name == "callgauge_input_records_lost"
        ]
        return sum(each.value for each in metric.samples if each.name.endswith("_total"))


@pytest.fixture
async def reading(monkeypatch: pytest.MonkeyPatch) -> Reading:
    return Reading(Cluster(), monkeypatch)


async def polls(reader: InputReader, number: int = 4) -> None:
    for _ in range(number):
        await reader.poll()
        await answers()


async def answers() -> None:
    """Lets questions have their answers."""
    for _ in range(10):
        await asyncio.sleep(0)


def records(first: int, end: int, *, value: bytes = b"{}") -> list[Record]:
    return [Record(at, NOW_MS + at, value=value) for at in range(first, end)]


def an_input(reader: InputReader, source: InputSource = PIPECAT, number: int = 0) -> InputPartition:
    return reader.inputs[TopicPartition(TOPIC_BY_SOURCE[source], number)]


def waiting(reader: InputReader, source: InputSource = PIPECAT, number: int = 0) -> list[int]:
    return [record.offset for record in an_input(reader, source, number).records]


async def test_all_partitions_of_all_inputs_are_read_from_their_first_records(
    reading: Reading,
) -> None:
    reading.cluster.logs[TP] = Log(5, records(5, 8))
    reader = await reading.start()
    await polls(reader)
    assert waiting(reader) == [5, 6, 7]
    assert an_input(reader).next == Next(0, 5)
    assert not reader.missing
    assert not reading.lost
    reading.cluster.logs[TopicPartition("audit.events", 1)] = Log(0, records(0, 2))
    reading.cluster.look()
    await polls(reader)
    assert waiting(reader, AUDIT, 1) == [0, 1]
    assert waiting(reader) == [5, 6, 7], "reading of the others goes on where it was"


async def test_a_successor_reads_on_from_the_place_in_the_log(reading: Reading) -> None:
    reading.cluster.logs[TP] = Log(0, records(0, 8))
    reader = await reading.start(PIPECAT=(Next(2, 6), Witness.of(NOW_MS + 5, b"call-1", b"{}")))
    await polls(reader)
    assert waiting(reader) == [6, 7]
    assert an_input(reader).generation == 2


@pytest.mark.parametrize(
    "log",
    [
        pytest.param(Log(0, records(0, 3)), id="smaller"),
        pytest.param(Log(0, records(0, 9, value=b"[]")), id="larger"),
    ],
)
async def test_a_log_that_is_another_is_read_from_its_first_record_when_the_old_one_is_appended(
    reading: Reading, log: Log, logged: Logged
) -> None:
    reading.cluster.logs[TP] = log
    reader = await reading.start(PIPECAT=(Next(2, 6), Witness.of(NOW_MS + 5, b"call-1", b"{}")))
    await polls(reader)
    assert [each["event"] for each in logged] == ["input_not_where_it_was"]
    each = an_input(reader)
    assert each.is_recreated
    assert not each.records
    each.renew()
    assert each.next == Next(3, 0)
    await polls(reader)
    assert waiting(reader) == [record.offset for record in log.records]
    assert not reading.lost


async def test_a_topic_that_was_away_for_a_moment_is_looked_at_again(reading: Reading) -> None:
    reading.cluster.logs[TP] = Log(0, records(0, 3))
    reader = await reading.start()
    await polls(reader)
    old = reading.cluster.logs.pop(TP)
    reading.cluster.look()
    assert reader.missing == ["pipecat.events"]
    assert an_input(reader) in reader.waited_for(), "time waits for it"
    reading.cluster.logs[TP] = old
    reading.cluster.look()
    await polls(reader)
    assert waiting(reader) == [0, 1, 2], "it is the same"
    del reading.cluster.logs[TP]
    reading.cluster.look()
    reading.cluster.logs[TP] = Log(0, records(0, 5, value=b"[]"))
    reading.cluster.look()
    await polls(reader)
    assert an_input(reader).is_recreated


async def test_a_log_that_took_the_place_of_another_during_a_silence_is_noticed(
    reading: Reading,
) -> None:
    reading.cluster.logs[TP] = Log(0, records(0, 3))
    reader = await reading.start()
    await polls(reader)
    each = an_input(reader)
    reading.clock.ms += SILENT_MS + 1
    await polls(reader)
    assert (waiting(reader), each.next) == ([0, 1, 2], Next(0, 0)), "it is the same"
    reading.clock.ms += SILENT_MS + 1
    reading.cluster.logs[TP] = Log(0, records(0, 9, value=b"[]"))
    await polls(reader)
    assert each.is_recreated
    assert waiting(reader) == [0, 1, 2], "nothing of the new one is taken for the old one's"
    each.pop_until(None)
    each.renew()
    await polls(reader)
    assert waiting(reader) == list(range(9))


async def test_answers_that_are_always_late_are_taken(reading: Reading) -> None:
    reading.cluster.logs[TP] = Log(0, records(0, 3))
    reader = await reading.start()
    await polls(reader)
    for end in range(4, 8):
        reading.cluster.logs[TP] = Log(0, records(0, end))
        for _ in range(3):  # one that is silent, one at its place again, one with records
            reading.clock.ms += 2 * SILENT_MS
            await polls(reader, 1)
        assert waiting(reader) == list(range(end))
    assert not an_input(reader).is_recreated


async def test_records_that_were_deleted_unread_are_counted_and_told(
    reading: Reading, logged: Logged
) -> None:
    reading.cluster.logs[TP] = Log(9, records(9, 11))
    reader = await reading.start(PIPECAT=(Next(0, 6), Witness.of(NOW_MS + 5, b"call-1", b"{}")))
    await polls(reader)
    assert reading.lost == 3
    assert [each["event"] for each in logged] == ["input_not_where_it_was"]
    assert waiting(reader) == [9, 10]


async def test_records_that_are_deleted_while_it_reads_are_counted_too(reading: Reading) -> None:
    reader = await reading.start()
    await polls(reader)
    reading.cluster.logs[TP] = Log(4, records(4, 6))
    await polls(reader)
    assert (reading.lost, waiting(reader)) == (4, [4, 5])


async def test_an_end_counts_from_the_moment_before_the_question(reading: Reading) -> None:
    reader = await reading.start()
    await polls(reader)
    reading.clock.ms += 1_000

    def frozen() -> None:
        reading.clock.ms += 20_000

    reading.cluster.on_answer = frozen
    reader.ask()
    await answers()
    for each in reader.waited_for():
        each.settle()
    assert {each.known_ms for each in reader.waited_for()} == {NOW_MS + 1_000 - STAMP_MS}


async def test_a_partition_that_is_not_known_yet_stops_the_time(reading: Reading) -> None:
    reader = await reading.start()
    await polls(reader)
    reading.cluster.logs[TopicPartition("audit.events", 1)] = Log(0, [])
    reading.clock.ms += 1_000
    reader.ask()
    await polls(reader)
    assert reader.partitions_ms < NOW_MS + 1_000
    assert TopicPartition("audit.events", 1) in reader.inputs, "the client looks at once"
    reader.ask()
    await polls(reader)
    assert reader.partitions_ms == NOW_MS + 1_000


async def test_another_leader_than_the_one_that_is_read_stops_the_time(reading: Reading) -> None:
    reader = await reading.start()
    await polls(reader)
    reading.cluster.leaders[TP] = 2
    reading.clock.ms += 1_000
    reader.ask()
    await polls(reader)
    assert reader.partitions_ms < NOW_MS + 1_000
    assert an_input(reader).leader == 2, "the client looks at once"


async def test_partitions_that_their_topic_has_no_more_are_not_waited_for(reading: Reading) -> None:
    second = TopicPartition("audit.events", 1)
    reading.cluster.logs[second] = Log(0, [])
    reader = await reading.start()
    await polls(reader)
    del reading.cluster.logs[second]
    reading.cluster.look()
    assert an_input(reader, AUDIT, 1) not in reader.waited_for()
    assert an_input(reader, AUDIT) in reader.waited_for()


async def test_after_a_time_without_any_answer_each_input_has_its_patience_again(
    reading: Reading,
) -> None:
    reading.cluster.leaders[TP] = 2
    reader = await reading.start()
    await polls(reader)
    reading.cluster.silent = {1, 2}
    reading.clock.ms += 10 * PATIENCE_MS
    reader.ask()
    await polls(reader)
    assert all(each.is_left_out(reading.clock.ms) for each in reader.waited_for())
    reading.cluster.silent = {2}
    reader.ask()
    await polls(reader)
    assert not any(each.is_left_out(reading.clock.ms) for each in reader.waited_for()), (
        "also those of the other broker"
    )
    for _ in range(10):
        reading.clock.ms += 4_000
        reader.ask()
        await polls(reader)
    assert [each.is_left_out(reading.clock.ms) for each in reader.waited_for()].count(True) == 1, (
        "but not for ever"
    )


async def test_time_waits_for_records_that_stand_in_the_log_and_that_readers_may_not_see_yet(
    reading: Reading,
) -> None:
    reading.cluster.hidden[TP] = 1
    reader = await reading.start()
    await polls(reader)
    reader.ask()
    await polls(reader)
    for each in reader.inputs.values():
        each.settle()
    assert {
        each.tp.topic: each.settled_ms for each in reader.inputs.values() if not each.settled_ms
    } == {TP.topic: 0}
    reading.cluster.hidden.clear()
    reader.ask()
    await polls(reader)
    an_input(reader).settle()
    assert an_input(reader).settled_ms == NOW_MS


async def test_records_that_take_long_on_their_way_are_taken(
    reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading.cluster.logs[TP] = Log(0, records(0, 3))
    reader = await reading.start()
    await polls(reader)
    getmany, fetched = reading.cluster.getmany, [0]

    async def slow(*only: Any, **how: int) -> Any:
        """An answer comes with the fourth poll behind a seek, two seconds later."""
        fetched[0] += 1
        reading.clock.ms += SILENT_MS // 2
        return await getmany(*only, **how) if fetched[0] > 3 else {}

    seek = reading.cluster.seek

    def seeks(tp: TopicPartition, offset: int) -> None:
        fetched[0] = 0
        seek(tp, offset)

    monkeypatch.setattr(reading.cluster, "getmany", slow)
    monkeypatch.setattr(reading.cluster, "seek", seeks)
    reading.cluster.logs[TP] = Log(0, records(0, 9))
    reading.clock.ms += 2 * SILENT_MS
    await polls(reader, 30)
    assert waiting(reader) == list(range(9))
