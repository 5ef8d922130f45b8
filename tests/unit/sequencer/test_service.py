"""What a step of the sequencer does first and last, and what the role says of itself."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import pytest
from aiokafka import TopicPartition
from prometheus_client import CollectorRegistry

from consumers.runtime.kafka.connection import KafkaSettings, TopicsUnfitError
from consumers.runtime.kafka.polling import SLOW_SECONDS
from consumers.runtime.registry import Instruments
from consumers.sequencer import service
from consumers.sequencer.appending import LogEndFacts
from consumers.sequencer.merge import STAMP_MS, InputPartition
from consumers.sequencer.service import MAX_SILENT_SECONDS, Sequencer, Shard
from consumers.sequencer.settings import SequencerSettings
from schemas.closed_sets import InputSource
from schemas.log import Next, Tick
from schemas.topics import EVENTS_TOPIC, SEQUENCER_TOPIC
from tests.unit.sequencer.input_records import NOW_MS, an_input, read

PIPECAT, AUDIT = InputSource.PIPECAT, InputSource.AUDIT
KAFKA = KafkaSettings(topic_prefix="t.")


class Clock:
    now_ms_ = NOW_MS

    def now_ms(self) -> int:
        return self.now_ms_

    def stamped(self, sent_ms: int, stamps_ms: Sequence[int]) -> None:
        """It is right already."""

    difference_ms = 0


class Reader:
    """Inputs that are read by the test."""

    def __init__(self, *inputs: InputPartition) -> None:
        self.inputs = {(each.source, each.tp.partition): each for each in inputs}
        self.partitions_ms = 0
        self.missing: list[str] = []
        self.asked = 0
        self.on_poll: Callable[[], None] = lambda: None

    async def poll(self) -> None:
        self.on_poll()

    def ask(self) -> None:
        self.asked += 1

    def waited_for(self) -> list[InputPartition]:
        return list(self.inputs.values())

    def all_told(self, now_ms: int) -> None:
        self.partitions_ms = now_ms
        for each in self.inputs.values():
            each.told(now_ms, each.handed, each.handed)


class Writer:
    """Keeps what is appended, in order: offsets of records, and ticks; and the times that could be
    told with records.
    """

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.known_ms: list[int] = []

    async def append(self, records: Iterable[tuple[InputPartition, Any]], known_ms: int) -> None:
        self.known_ms.append(known_ms)
        if found := [(each.source, each.generation, record.offset) for each, record in records]:
            self.log.append(found)

    async def tick(self, tick: Tick) -> Sequence[int]:
        self.log.append(tick)
        return []


class Steps:
    """A shard whose steps the test takes."""

    def __init__(self, *inputs: InputPartition) -> None:
        self.reader, self.writer, self.clock = Reader(*inputs), Writer(), Clock()
        instruments = Instruments(CollectorRegistry(), ["sequencer"])
        self.shard = Shard(KAFKA, SequencerSettings(max_batch_records=2), instruments, 0, 1)
        self.shard.clock = self.clock  # type: ignore[assignment]  # it is set by the test
        self.shard.term = 3

    async def step(self, ms: int = 0) -> list[Any]:
        """What is appended in a step so many ms later."""
        self.clock.now_ms_ += ms
        self.writer.log.clear()
        # the parts that it uses
        await self.shard._step(self.reader, self.writer)  # type: ignore[arg-type]
        return list(self.writer.log)


async def test_a_tick_is_appended_behind_what_it_tells_of() -> None:
    steps = Steps(read(1, 5), read(2, source=AUDIT))
    steps.reader.on_poll = lambda: steps.reader.all_told(NOW_MS)
    *events, tick = await steps.step()
    assert events == [[(PIPECAT, 0, 0), (AUDIT, 0, 0)], [(PIPECAT, 0, 1)]], "in pieces of two"
    places = {(PIPECAT, 0): Next(0, 2), (AUDIT, 0): Next(0, 1)}
    times_ms = {(PIPECAT, 0): 5, (AUDIT, 0): 2}
    assert tick == Tick.of(3, NOW_MS - STAMP_MS, places, times_ms=times_ms)


async def test_time_is_asked_for_twice_a_second_and_told_when_all_have_answered() -> None:
    steps = Steps(read())
    assert await steps.step() == []
    assert steps.reader.asked == 1
    assert await steps.step(100) == [], "an answer that is due is waited for"
    steps.reader.all_told(NOW_MS)
    assert [each.known_ms for each in await steps.step(10)] == [NOW_MS - STAMP_MS]
    assert await steps.step(100) == []
    assert steps.reader.asked == 1
    assert await steps.step(290) == []
    assert steps.reader.asked == 2
    assert [each.known_ms for each in await steps.step(251)] == [NOW_MS - STAMP_MS], (
        "half of the time is enough to wait"
    )


async def test_time_waits_for_the_answer_which_partitions_there_are() -> None:
    steps = Steps(read())
    await steps.step()
    steps.reader.all_told(NOW_MS)
    steps.reader.partitions_ms = NOW_MS - 700
    assert await steps.step(10) == []
    assert [each.known_ms for each in await steps.step(250)] == [NOW_MS - 700]


async def test_what_an_input_may_still_have_is_not_overtaken_after_a_pause() -> None:
    """Nobody has told where it ends now. So of a backlog no more is appended than what its time is
    known of.
    """
    steps = Steps(read(NOW_MS + 500, NOW_MS + 5_000), read(source=AUDIT))
    steps.reader.partitions_ms = NOW_MS
    (events,) = await steps.step(20_000)
    assert events == [(PIPECAT, 0, 0)]
    assert steps.reader.asked == 1
    steps.reader.all_told(NOW_MS + 20_000)
    events, _ = await steps.step(10)
    assert events == [(PIPECAT, 0, 1)]
    assert steps.writer.known_ms == [NOW_MS - STAMP_MS, NOW_MS + 19_010], (
        "of what is younger the ticks by the clock tell"
    )


async def test_known_time_never_falls() -> None:
    steps = Steps(read())
    steps.shard.known_ms = NOW_MS + 5
    await steps.step()
    steps.reader.all_told(NOW_MS)
    assert [each.known_ms for each in await steps.step(10)] == [NOW_MS + 5]


async def test_before_the_events_of_a_new_generation_the_old_ones_and_a_tick_are_appended() -> None:
    each = read(1, 5)
    steps = Steps(each, an_input(AUDIT))  # for which the others wait

    await steps.step()
    await steps.step(251)  # so that no other tick is due
    each.is_placed, each.is_recreated = False, True
    events, tick = await steps.step(10)
    assert events == [(PIPECAT, 0, 0), (PIPECAT, 0, 1)]
    assert tick.positions == {(PIPECAT, 0): Next(1, 0)}


async def test_inputs_without_an_answer_are_named_and_time_goes_on() -> None:
    steps = Steps(read(), an_input(AUDIT, now_ms=NOW_MS - 29_000))
    await steps.step()
    steps.reader.inputs[PIPECAT, 0].told(NOW_MS, 0, 0)
    steps.reader.partitions_ms = NOW_MS
    assert [(each.known_ms, each.left_out) for each in await steps.step(251)] == [(0, ())]
    await steps.step(1_000)
    steps.reader.inputs[PIPECAT, 0].told(NOW_MS + 1_251, 0, 0)
    steps.reader.partitions_ms = NOW_MS + 1_251
    assert [(each.known_ms, each.left_out) for each in await steps.step(251)] == [
        (NOW_MS + 1_251 - STAMP_MS, ("audit.events[0]",))
    ]


# The role.


class Group:
    """The client as a member of the group, which knows of no term."""

    def __init__(self) -> None:
        self._coordinator = self
        self.generation = 1
        self.shards: set[int] | None = {0}

    async def fetch_committed_offsets(self, _: object) -> dict[TopicPartition, Any]:
        return {}

    async def commit(self, offsets: dict[TopicPartition, tuple[int, str]]) -> None:
        assert offsets == {TopicPartition("t.sequencer", 0): (0, "3")}

    async def getone(self) -> None:
        await asyncio.Event().wait()

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return self.shards if topic == "t.sequencer" else None


def a_role(instruments: Instruments) -> Sequencer:
    role = Sequencer(KAFKA, SequencerSettings(), instruments)
    role._group = Group()
    return role


@pytest.fixture
async def role() -> Sequencer:
    return a_role(Instruments(CollectorRegistry(), ["sequencer"]))


async def test_it_is_not_ready_before_the_group_has_answered_and_standing_by_is_no_problem(
    role: Sequencer,
) -> None:
    assert role.problems() == ("sequencer: joining its group",)
    await role.on_partitions_assigned(set())
    assert role.ready.is_set()
    assert not role.problems()
    assert not role.stalled()
    await role.on_partitions_revoked(set())
    assert role.problems() == ("sequencer: joining its group",)


async def never() -> None:
    raise AssertionError("it has not begun")


async def test_without_the_topic_that_is_shared_out_nobody_is_active_and_each_says_so(
    role: Sequencer,
) -> None:
    await role.on_partitions_assigned(set())
    assert not role.problems()
    role._group.shards = None
    assert list(role.problems()) == [
        "sequencer: the topic t.sequencer is not there, or may not be read, so nobody is active"
    ]


class FakeShard:
    """A shard that is active when the test says so, and ends when it is told to."""

    def __init__(self, *_: Any) -> None:
        self.number, self.term, self.known_ms = 0, 3, 0
        self.left_out: list[str] = []
        self.reader: Reader | None = None
        self.clock = Clock()
        self.is_active, self.stop = False, asyncio.Event()
        self.stepped_at = time.monotonic()
        self.failure: Exception | None = None
        self.begun: Callable[[], Awaitable[None]] = never

    async def run(self, least_term: int, begun: Callable[[], Awaitable[None]]) -> None:
        assert least_term == 0, "the group knows of none"
        self.begun = begun
        if self.failure is not None:
            raise self.failure
        await self.stop.wait()


async def test_it_is_ready_when_it_is_active_in_all_its_shards(
    role: Sequencer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "Shard", FakeShard)
    await role.on_partitions_assigned({TopicPartition("t.sequencer", 0)})
    await asyncio.sleep(0)
    assert role.problems() == ("sequencer: reading back the log",)
    (shard,) = role._shards
    shard.is_active = True
    await shard.begun()  # type: ignore[attr-defined]  # of the fake
    assert role.ready.is_set()
    assert not role.problems()
    reader = Reader()
    reader.missing = ["t.audit.events"]
    shard.reader = reader  # type: ignore[assignment]  # the parts that are shown
    assert list(role.problems()) == [
        "sequencer: the topic t.audit.events is not there, or may not be read"
    ]
    reader.missing = []
    shard.stepped_at -= SLOW_SECONDS + 1
    assert list(role.problems()) == [
        f"sequencer: nothing read or appended for {SLOW_SECONDS + 1:.0f} s"
    ]
    shard.stepped_at -= MAX_SILENT_SECONDS
    assert role.stalled() == (f"sequencer: no step in shard 0 for {MAX_SILENT_SECONDS:.0f} s",)
    await role.on_partitions_revoked(set())
    assert not role._shards
    assert shard.stop.is_set()
    await shard.begun()  # type: ignore[attr-defined]  # too late
    assert not role.ready.is_set()


async def test_a_shard_that_fails_ends_the_role(monkeypatch: pytest.MonkeyPatch) -> None:
    async def counts(*_: Any) -> dict[str, int]:
        return {EVENTS_TOPIC: 3, SEQUENCER_TOPIC: 1}

    class Failing(FakeShard):
        async def run(self, least_term: int, begun: Callable[[], Awaitable[None]]) -> None:
            raise TopicsUnfitError("gone")

    monkeypatch.setattr(service, "Shard", Failing)
    monkeypatch.setattr(service, "partition_counts", counts)
    role = a_role(Instruments(CollectorRegistry(), ["sequencer"]))

    async def join(_ending: Any) -> None:
        await role.on_partitions_assigned({TopicPartition("t.sequencer", 0)})

    monkeypatch.setattr(role, "_join", join)
    with pytest.raises(TopicsUnfitError, match="gone"):
        await role.run(asyncio.Event())
    assert not role._shards
    assert role.problems() == ("sequencer: leaving",)
    await role.on_partitions_assigned({TopicPartition("t.sequencer", 0)})
    assert not role._shards, "what comes too late begins nothing"


async def test_the_page_shows_what_an_active_one_knows_and_nothing_of_one_that_stands_by(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(service, "Shard", FakeShard)
    monkeypatch.setattr(service, "wall_clock_ms", lambda: NOW_MS + 2_000)
    instruments = Instruments(CollectorRegistry(), ["sequencer"])
    role = a_role(instruments)

    def shown() -> dict[str, float]:
        instruments.refresh()
        gauges = [
            each
            for each in instruments.collect()
            if each.type == "gauge" and "sequencer" in each.name
        ]
        return {
            each.name.removeprefix("callgauge_sequencer_"): one.value
            for each in gauges
            for one in each.samples
        }

    await role.on_partitions_assigned(set())
    assert not shown()
    await role.on_partitions_assigned({TopicPartition("t.sequencer", 0)})
    (shard,) = role._shards
    shard.is_active, shard.known_ms, shard.left_out = True, NOW_MS, ["audit.events[0]"]
    behind = read(NOW_MS - 4_000)
    behind.pop_until(None)
    behind.told(NOW_MS, 3, 0)
    shard.reader = Reader(behind)  # type: ignore[assignment]  # as above
    assert shown() == {
        "lag_messages": 2,
        "lag_seconds": 4,
        "known_behind_seconds": 2,
        "term": 3,
        "inputs_left_out": 1,
        "clock_difference_seconds": 0,
    }
    shard.known_ms = 0
    assert "known_behind_seconds" not in shown(), "of a new log no time is known yet"
    await role.on_partitions_revoked(set())


# What the topics must be.


@pytest.mark.parametrize(
    ("counts", "most", "message"),
    [
        (
            {EVENTS_TOPIC: 2, SEQUENCER_TOPIC: 3},
            None,
            "t.sequencer has 3 partitions, and t.events only 2",
        ),
        (
            {EVENTS_TOPIC: 3, SEQUENCER_TOPIC: 3},
            1_048_588,
            "max.message.bytes is 1048588, expected at least",
        ),
    ],
)
async def test_it_does_not_begin_on_topics_that_do_not_fit(
    monkeypatch: pytest.MonkeyPatch, counts: dict[str, int], most: int | None, message: str
) -> None:
    async def asked(*_: Any) -> dict[str, int]:
        return counts

    async def settings(*_: Any) -> dict[str, dict[str, str]]:
        return {EVENTS_TOPIC: {"max.message.bytes": str(most)}}

    async def read_back(*_: Any) -> LogEndFacts:
        raise AssertionError("before anything is read")

    monkeypatch.setattr(service, "partition_counts", asked)
    monkeypatch.setattr(service, "topic_settings", settings)
    monkeypatch.setattr(service, "read_back", read_back)
    instruments = Instruments(CollectorRegistry(), ["sequencer"])
    shard = Shard(KafkaSettings(topic_prefix="t."), SequencerSettings(), instruments, 2, 1)
    with pytest.raises(TopicsUnfitError, match=message), contextlib.suppress(AssertionError):
        await shard.run(0, never)
    assert not shard.is_active
