"""Inputs and a log in memory, which a sequencer reads and appends to step by step, live or late;
and what a fold of the log finds.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import pytest
from aiokafka import TopicPartition
from prometheus_client import CollectorRegistry

from consumers.engine.admission import Arrival, admit
from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.limits import Limits
from consumers.runtime.kafka.connection import KafkaSettings
from consumers.runtime.registry import Instruments
from consumers.sequencer.appending import LogWriter, Share
from consumers.sequencer.merge import InputPartition
from consumers.sequencer.service import Shard
from consumers.sequencer.settings import SequencerSettings
from schemas.closed_sets import InputSource
from schemas.log import Event, LogReader, Tick
from schemas.topics import TOPIC_BY_SOURCE
from tests.chaos.load.silences import Silence
from tests.properties.evaluation import lasting
from tests.support.fakes.broker_records import BrokerRecord
from tests.support.fakes.engine_feed import closings_of

Place = tuple[InputSource, int]
"""A partition of an input."""
Came = tuple[InputSource, int, int, str, bytes]
"""Where a record came, when, its key and its value."""

PARTITIONS: Final = 2
"""Of the log."""
INPUTS: Final = tuple(
    (source, number)
    for source in (InputSource.PIPECAT, InputSource.ELEVENLABS, InputSource.AUDIT)
    for number in (0, 1)
)
IDLE_MS: Final = 30_000
LIMITS: Final = Limits(idle_ms=IDLE_MS)
SETTINGS: Final = SequencerSettings()
LIVE_STEP_MS: Final = 100


class Brokers:
    """The inputs, and the log in memory. It is the reader of a sequencer and its producer; records
    come when the test says so.
    """

    def __init__(self, records: Sequence[Came]) -> None:
        self.begin_ms = min(record[2] for record in records) - 1_000
        self.now_ms_ = self.begin_ms
        self.inputs = {}
        self.waiting: dict[Place, list[BrokerRecord]] = {}
        for source, number in INPUTS:
            tp = TopicPartition(TOPIC_BY_SOURCE[source], number)
            self.inputs[source, number] = InputPartition(source, tp, self.begin_ms)
            self.waiting[source, number] = []
        for source, number, at_ms, key, value in sorted(records, key=lambda each: each[2]):
            waiting = self.waiting[source, number]
            waiting.append(
                BrokerRecord(
                    TOPIC_BY_SOURCE[source], len(waiting), at_ms, key.encode(), value, number
                )
            )
        self.log: list[list[BrokerRecord]] = [[] for _ in range(PARTITIONS)]
        self.partitions_ms = 0
        self.most: dict[Place, int] = {}
        self.asked_ms: int | None = None
        self.difference_ms = 0

    # What the broker has by now, and what a sequencer reads of it.

    def _end(self, place: Place, at_ms: int) -> int:
        """The end of an input at a time."""
        read = max(0, self.inputs[place].handed)
        return read + sum(each.timestamp <= at_ms for each in self.waiting[place])

    def now_ms(self) -> int:
        return self.now_ms_

    def stamped(self, sent_ms: int, stamps_ms: Sequence[int]) -> None:
        pass

    def waited_for(self) -> list[InputPartition]:
        return list(self.inputs.values())

    def ask(self) -> None:
        self.asked_ms = self.now_ms_

    async def poll(self) -> None:
        """So many records of each input as the test allows, and the answer to the question of
        before.
        """
        for place, each in self.inputs.items():
            if not each.is_placed:
                self.asked_ms = self.now_ms_
                each.begin(0, self.now_ms_)
            if self.asked_ms is not None:
                each.told(self.asked_ms, self._end(place, self.asked_ms), each.handed)
            count = min(self.most.get(place, 10**6), self._end(place, self.now_ms_) - each.handed)
            if count and not each.is_full:
                assert each.put(self.waiting[place][:count], self.now_ms_)
                del self.waiting[place][:count]
        if self.asked_ms is not None:
            self.partitions_ms, self.asked_ms = self.asked_ms, None

    # The log.

    def create_batch(self) -> Any:
        batch: list[tuple[bytes | None, bytes | None, Sequence[tuple[str, bytes]]]] = []

        def append(
            timestamp: int,
            key: bytes | None,
            value: bytes | None,
            headers: Sequence[tuple[str, bytes]],
        ) -> bool:
            del timestamp
            batch.append((key, value, headers))
            return True

        return SimpleNamespace(append=append, close=lambda: None, records=batch)

    async def send_batch(self, batch: Any, topic: str, *, partition: int) -> Any:
        log = self.log[partition]
        for key, value, headers in batch.records:
            log.append(BrokerRecord(topic, len(log), self.now_ms_, key, value, partition, headers))
        acknowledged = asyncio.get_running_loop().create_future()
        acknowledged.set_result(SimpleNamespace(timestamp=self.now_ms_))
        return acknowledged


async def sequenced(brokers: Brokers, steps: Iterable[tuple[int, dict[Place, int]]]) -> None:
    """Runs a sequencer in these steps: each at a time, with so many records of each input at most;
    then until all is in the log.
    """
    instruments = Instruments(CollectorRegistry(), ["sequencer"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KafkaSettings, "producer", lambda *_: brokers)
        writer = LogWriter(KafkaSettings(), SETTINGS, instruments, Share(0, 1, PARTITIONS), term=1)
    shard = Shard(KafkaSettings(), SETTINGS, instruments, 0, 1)
    shard.clock = brokers  # type: ignore[assignment]  # the test's time
    shard.term = 1
    reader: Any = brokers
    await shard._tick(reader, writer)
    for brokers.now_ms_, brokers.most in steps:
        await shard._step(reader, writer)
    for _ in range(40):
        brokers.now_ms_, brokers.most = brokers.now_ms_ + LIVE_STEP_MS, {}
        await shard._step(reader, writer)


class Found(NamedTuple):
    """What a fold of the log finds: dead airs by call, and the last row of each call that closed,
    once for each time.
    """

    dead_airs: Counter[str]
    closings: Counter[str]


def folded(log: Sequence[BrokerRecord], limits: Limits = LIMITS) -> Found:
    """Folds a partition of the log, and checks on the way that no event comes behind a tick above
    it.
    """
    reader, evaluator = LogReader(), PartitionEvaluator(limits, "test")
    effects: list[Any] = []
    for record in log:
        read = reader.read(record)
        if isinstance(read, Tick):
            effects += evaluator.advance(reader.known_ms)
        elif isinstance(read, Event):
            assert read.timestamp >= reader.known_ms, "known time is never above an unread record"
            arrival = admit(read.source, read, limits)
            assert isinstance(arrival, Arrival)
            arrival.offset = read.place
            effects += evaluator.receive(arrival)
    assert (reader.repeats, reader.void) == (0, 0)
    dead_airs: Counter[str] = Counter()
    closings: Counter[str] = Counter()
    for closed in closings_of(effects):
        dead_airs[closed.conversation_id] += closed.dead_airs
        closings[f"{closed.conversation_id}: {lasting(closed)}"] += 1
    return Found(+dead_airs, closings)


# The calls.


def a_silence(number: int, begin_ms: int) -> Iterator[Came]:
    """A call with a silence of 2.9 or 3.1 s."""
    call, at_ms = Silence(number), begin_ms
    while (wait_ms := call.wait_ms) is not None:
        at_ms += wait_ms
        source, value = call.event(at_ms)
        yield InputSource(source), number % 2, at_ms, f"silence-{number}", value


def one_that_comes_back(key: str, begin_ms: int, pauses_ms: Sequence[int]) -> Iterator[Came]:
    """An id whose events pause for so long: after `IDLE_MS` its call is over."""
    at_ms = begin_ms
    for pause_ms in (0, *pauses_ms):
        at_ms += pause_ms
        value = b'{"type":"call_started","timestamp":%d,"agent":"desk"}' % at_ms
        yield InputSource.PIPECAT, len(key) % 2, at_ms, key, value


def live(records: Sequence[Came]) -> Brokers:
    """The log of records that were read as they came."""
    brokers = Brokers(records)
    last_ms = max(record[2] for record in records) + 2 * IDLE_MS
    asyncio.run(
        sequenced(
            brokers, ((at_ms, {}) for at_ms in range(brokers.begin_ms, last_ms, LIVE_STEP_MS))
        )
    )
    return brokers
