"""A backlog that is merged in any steps: whoever folds the log finds the same silences in it as in the one that came live."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import pytest
from aiokafka import TopicPartition
from hypothesis import event, given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from consumers.engine.admission import Arrival, admit
from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.limits import Limits
from consumers.runtime.kafka.connection import KafkaSettings, murmur2_place
from consumers.runtime.registry import Instruments
from consumers.sequencer.appending import LogWriter, Share
from consumers.sequencer.merge import InputPartition
from consumers.sequencer.service import Shard
from consumers.sequencer.settings import SequencerSettings
from schemas.closed_sets import InputSource
from schemas.log import Event, LogReader, Tick
from schemas.scores.records import DeadAirFact
from schemas.topics import TOPIC_BY_SOURCE
from tests.chaos.load.silences import LENGTHS_MS, LONG_MS, Silence
from tests.support.fakes.engine_feed import T0_MS, closings_of, records_of, said
from tests.support.fakes.log_writer import LogRecord

Place = tuple[InputSource, int]
"""A partition of an input."""
Came = tuple[InputSource, int, int, str, bytes]
"""Where a record came, when, its key and its value."""

PARTITIONS: Final = 2
"""Of the log."""
INPUTS: Final = tuple(
    (source, number) for source in (InputSource.PIPECAT, InputSource.ELEVENLABS, InputSource.AUDIT) for number in (0, 1)
)
IDLE_MS: Final = 30_000
LIMITS: Final = Limits(idle_ms=IDLE_MS)
SETTINGS: Final = SequencerSettings()
LIVE_STEP_MS: Final = 100


class InputRecord(NamedTuple):
    """A record as aiokafka hands it over."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes
    value: bytes
    headers: Sequence[tuple[str, bytes]] = ()
    timestamp_type: int = 1


class Brokers:
    """The inputs, and the log in memory. It is the reader of a sequencer and its producer; records come when the test says so."""

    def __init__(self, records: Iterable[Came]) -> None:
        self.now_ms_ = T0_MS
        self.inputs = {}
        self.waiting: dict[Place, list[InputRecord]] = {}
        for source, number in INPUTS:
            tp = TopicPartition(TOPIC_BY_SOURCE[source], number)
            self.inputs[source, number] = each = InputPartition(source, tp, T0_MS)
            each.begin(0, T0_MS)
            self.waiting[source, number] = []
        for source, number, at_ms, key, value in sorted(records, key=lambda each: each[2]):
            waiting = self.waiting[source, number]
            waiting.append(InputRecord(TOPIC_BY_SOURCE[source], number, len(waiting), at_ms, key.encode(), value))
        self.log: list[list[LogRecord]] = [[] for _ in range(PARTITIONS)]
        self.anew: list[InputPartition] = []
        self.partitions_ms = 0
        self.most: dict[Place, int] = {}
        self.asked_ms: int | None = None
        self.difference_ms = 0

    # What the broker has by now, and what a sequencer reads of it.

    def end(self, place: Place) -> int:
        """The end of an input as of now."""
        return self.inputs[place].handed + sum(each.timestamp <= self.now_ms_ for each in self.waiting[place])

    def now_ms(self) -> int:
        return self.now_ms_

    def stamped(self, sent_ms: int, stamps_ms: Sequence[int]) -> None:
        pass

    def waited_for(self) -> list[InputPartition]:
        return list(self.inputs.values())

    def ask(self) -> None:
        self.asked_ms = self.now_ms_

    async def poll(self) -> None:
        """So many records of each input as the test allows, and the answer to the question of before."""
        for place, each in self.inputs.items():
            end = self.end(place)
            if self.asked_ms is not None:
                each.told(
                    self.asked_ms,
                    sum(one.timestamp <= self.asked_ms for one in self.waiting[place]) + each.handed,
                    each.handed,
                )
            count = min(self.most.get(place, 10**6), end - each.handed)
            if count and not each.is_full:
                assert each.put(self.waiting[place][:count], self.now_ms_)
                del self.waiting[place][:count]
            each.answered(self.now_ms_, end, self.now_ms_)
        if self.asked_ms is not None:
            self.partitions_ms, self.asked_ms = self.asked_ms, None

    # The log.

    def create_batch(self) -> Any:
        batch: list[tuple[bytes | None, bytes | None, Sequence[tuple[str, bytes]]]] = []

        def append(
            timestamp: int, key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes]]
        ) -> bool:
            del timestamp
            batch.append((key, value, headers))
            return True

        return SimpleNamespace(append=append, close=lambda: None, records=batch)

    async def send_batch(self, batch: Any, topic: str, *, partition: int) -> Any:
        log = self.log[partition]
        for key, value, headers in batch.records:
            log.append(LogRecord(topic, len(log), self.now_ms_, key, value, partition, headers))
        acknowledged = asyncio.get_running_loop().create_future()
        acknowledged.set_result(SimpleNamespace(timestamp=self.now_ms_))
        return acknowledged


async def sequenced(brokers: Brokers, steps: Iterable[tuple[int, dict[Place, int]]]) -> None:
    """Runs a sequencer in these steps: each at a time, with so many records of each input at most; then until all is in the log."""
    instruments = Instruments(CollectorRegistry(), ["sequencer"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KafkaSettings, "producer", lambda *_: brokers)
        writer = LogWriter(KafkaSettings(), SETTINGS, instruments, Share(0, 1, PARTITIONS), term=1)
    shard = Shard(KafkaSettings(is_embedded=True), SETTINGS, instruments, 0, 1)
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
    """What a fold of the log finds: dead airs by call, and the final records of each call that closed, once for each time."""

    dead_airs: Counter[str]
    closings: Counter[str]


def place_of(key: str) -> int:
    """The partition of a call."""
    return murmur2_place(key.encode(), PARTITIONS)


def folded(log: Sequence[LogRecord], limits: Limits = LIMITS) -> Found:
    """Folds a partition of the log, and checks on the way that no event comes behind a tick above it."""
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
    dead_airs = Counter(each.conversation_id for each in records_of(effects) if isinstance(each, DeadAirFact))
    closings = Counter(
        f"{closing.conversation_id}: {[said(record) for record in closing.records]}" for closing in closings_of(effects)
    )
    return Found(dead_airs, closings)


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


begins_ms = st.integers(0, 60_000).map(lambda ms: T0_MS + 1_000 + ms)
# Live it is noticed up to 1 s later that a call is idle: what comes meanwhile still belongs to it.
pauses_ms = st.lists(st.sampled_from([1_000, IDLE_MS - 2_000, IDLE_MS + 2_000, 3 * IDLE_MS]), min_size=1, max_size=2)


@st.composite
def some_calls(draw: st.DrawFn) -> list[Came]:
    """Silent calls, and ids that come back."""
    records: list[Came] = []
    for number, begin_ms in enumerate(draw(st.lists(begins_ms, min_size=1, max_size=6))):
        records += a_silence(number, begin_ms)
    for number, (begin_ms, each) in enumerate(draw(st.lists(st.tuples(begins_ms, pauses_ms), max_size=4))):
        records += one_that_comes_back("back" + number * "-", begin_ms, each)
    return records


def live(records: Sequence[Came]) -> Brokers:
    """The log of records that were read as they came."""
    brokers = Brokers(records)
    last_ms = max(record[2] for record in records) + 2 * IDLE_MS
    asyncio.run(sequenced(brokers, ((at_ms, {}) for at_ms in range(T0_MS, last_ms, LIVE_STEP_MS))))
    return brokers


polls = st.lists(st.dictionaries(st.sampled_from(INPUTS), st.integers(0, 20)), max_size=12)


@given(some_calls(), polls, st.integers(1, 60))
def test_a_fold_of_a_backlog_finds_the_same_silences_as_live(
    records: list[Came],
    polls: list[dict[Place, int]],
    step_ms: int,
) -> None:
    came = live(records)
    late = Brokers(records)
    begin_ms = max(record[2] for record in records) + 2 * IDLE_MS
    steps = ((begin_ms + place * step_ms, most) for place, most in enumerate([*polls, {}]))
    asyncio.run(sequenced(late, steps))
    for then, now in zip(came.log, late.log, strict=True):
        assert folded(now) == folded(then)
    dead_airs = sum((folded(log).dead_airs for log in late.log), Counter[str]())
    silences = {key: int(key.removeprefix("silence-")) for _, _, _, key, _ in records if key.startswith("silence-")}
    assert dead_airs == {key: 1 for key, number in silences.items() if LENGTHS_MS[number % 4] == LONG_MS}
    event(f"{min(9, sum(len(log) for log in late.log) // 20)} times 20 records")


def test_an_id_that_comes_back_after_its_idle_time_is_two_calls() -> None:
    """Also if nothing else happens in between, and all of it is one poll."""
    other = next(key for key in ("a", "b", "c", "d") if place_of(key) == place_of("back"))
    records = [
        *one_that_comes_back("back", T0_MS + 1_000, [3 * IDLE_MS]),
        *one_that_comes_back(other, T0_MS + 2_000, []),  # so that the first one is forgotten
    ]
    late = Brokers(records)
    asyncio.run(sequenced(late, [(T0_MS + 10 * IDLE_MS, {})]))
    limits = Limits(idle_ms=IDLE_MS, max_closed_calls_remembered=1)
    found = folded(late.log[0], limits).closings + folded(late.log[1], limits).closings
    assert sorted(text.partition(":")[0] for text in found.elements()) == ["back", "back", other]


@pytest.mark.parametrize("most", [{}, {INPUTS[1]: 50}], ids=["one poll", "one input lags"])
def test_between_two_ticks_of_a_backlog_lies_no_more_time_than_a_tick_apart(most: dict[Place, int]) -> None:
    dense = [(*INPUTS[1], T0_MS + 100 + 90 * number, f"call-{number % 5}", b"{}") for number in range(400)]
    sparse = [(*INPUTS[0], T0_MS + at_ms, "call-0", b"{}") for at_ms in (50, 37_000)]
    late = Brokers([*dense, *sparse])
    asyncio.run(sequenced(late, [(T0_MS + 10 * IDLE_MS + number, most) for number in range(10)]))
    for log in late.log:
        reader = LogReader()
        for record in log:
            if isinstance(read := reader.read(record), Event):
                assert reader.known_ms <= read.timestamp < reader.known_ms + SETTINGS.tick_ms
        ticks = sum(record.key is None for record in log)
        assert ticks <= 400 * 90 / SETTINGS.tick_ms + 20, "and not a tick for each event"
