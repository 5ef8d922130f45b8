"""The sequencer on a real Kafka: the log has the inputs in their order, each record once, whoever
appends it and whatever happens.
"""

import asyncio
import json
import signal
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from prometheus_client import CollectorRegistry

from consumers.runtime.kafka.connection import KafkaSettings, murmur2_place
from consumers.runtime.registry import Instruments
from consumers.sequencer import service
from consumers.sequencer.appending import LogEndFacts, LogWriter, Share, read_back
from consumers.sequencer.service import Shard
from consumers.sequencer.settings import SequencerSettings
from schemas.closed_sets import InputSource
from schemas.log import Event, LogReader, Next, Tick
from schemas.topics import (
    EVENTS_TOPIC,
    INPUT_TOPICS,
    QUARANTINE_TOPIC,
    SEQUENCER_TOPIC,
    TOPIC_BY_SOURCE,
)
from tests.integration.processes import wait_for
from tests.support.brokers.topic_changes import add_partitions, create_topics, delete_topic
from tests.support.patience import patient
from tests.support.sequencer_process import SequencerProcess, sequencer

WAIT_SECONDS = 40
SESSION_MS = 6_000
PIPECAT, AUDIT = TOPIC_BY_SOURCE[InputSource.PIPECAT], TOPIC_BY_SOURCE[InputSource.AUDIT]
COUNTS = dict(zip(INPUT_TOPICS, (1, 2, 3, 4), strict=True))
STAMPED = {"message.timestamp.type": "LogAppendTime", "max.message.bytes": "1200000"}

pytestmark = pytest.mark.kafka


class Inputs:
    """The inputs as their producers know them, and the log as its readers do."""

    def __init__(self, bootstrap: str, prefix: str, producer: AIOKafkaProducer) -> None:
        self.bootstrap, self.prefix, self._producer = bootstrap, prefix, producer
        self.sent: dict[bytes, tuple[str, int, int, int]] = {}
        """Topic, partition, offset and time by value."""
        self.generations = 0
        self._number = 0

    async def send(self, topic: str, count: int, partitions: int | None = None) -> None:
        """Sends events of several calls to all partitions of an input in turn, by no hash that
        others know.
        """
        partitions = partitions or COUNTS[topic]
        pending = []
        for number in range(self._number, self._number + count):
            value = b'{"number": %d}' % number
            pending.append(
                (
                    value,
                    await self._producer.send(
                        self.prefix + topic,
                        value,
                        key=b"call-%d" % (number % 11),
                        partition=number % partitions,
                        headers=[("ce_id", b"%d" % number), ("callgauge-placed", b"forged")],
                    ),
                )
            )
        self._number += count
        for value, future in pending:
            placed = await future
            self.sent[value] = topic, placed.partition, placed.offset, placed.timestamp

    async def send_to_all(self, count: int) -> None:
        for topic in INPUT_TOPICS:
            await self.send(topic, count)

    async def log(self, until: Callable[["Log"], bool]) -> "Log":
        """Reads the whole log again and again until it is as far; checks on the way what holds for
        every log.
        """
        deadline = time.monotonic() + patient(WAIT_SECONDS)
        while True:
            found = await self._read()
            if until(found) or time.monotonic() > deadline:
                assert until(found), f"{len(found.events)} events, ticks {found.ticks[-3:]}"
                return found
            await asyncio.sleep(0.2)

    async def everything(self) -> "Log":
        """The log when it has every event that was sent, and a tick behind the last one."""
        newest_ms = max(time_ms for *_, time_ms in self.sent.values())
        found = await self.log(
            lambda log: len(log.by_value) >= len(self.sent) and log.known_ms > newest_ms
        )
        assert {
            value: (each.topic, each.partition, each.offset, each.timestamp)
            for value, each in found.by_value.items()
        } == (self.sent)
        return found

    async def _read(self) -> "Log":
        partitions = await records_of(self.bootstrap, self.prefix + EVENTS_TOPIC)
        found = Log(len(partitions))
        for records in partitions:
            for record in records:
                found.take(record)
        return found


async def records_of(bootstrap: str, topic: str) -> list[list[Any]]:
    """The records of each partition of a topic."""
    async with AIOKafkaConsumer(
        bootstrap_servers=bootstrap, auto_offset_reset="earliest"
    ) as consumer:
        await consumer._client.add_topic(topic)
        partitions = [
            TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic))
        ]
        ends = await consumer.end_offsets(partitions)
        consumer.assign(partitions)
        found: list[list[Any]] = []
        for tp in partitions:
            consumer.seek(tp, 0)
            found.append([])
            while await consumer.position(tp) < ends[tp]:
                found[-1] += (await consumer.getmany(tp, timeout_ms=200)).get(tp, [])
        return found


class Log:
    """Everything in the log, read as every reader does."""

    def __init__(self, partitions: int) -> None:
        self.readers = [LogReader() for _ in range(partitions)]
        self.events: list[Event] = []
        self.by_value: dict[bytes, Event] = {}
        self.ticks: list[Tick] = []
        self._last: dict[tuple[int, str, int], tuple[int, int]] = {}
        self._partitions = partitions

    @property
    def known_ms(self) -> int:
        return min(reader.known_ms for reader in self.readers)

    @property
    def repeats(self) -> int:
        return sum(reader.repeats for reader in self.readers)

    @property
    def void(self) -> int:
        return sum(reader.void for reader in self.readers)

    def take(self, record: Any) -> None:
        reader = self.readers[record.partition]
        known_ms = reader.known_ms
        read = reader.read(record)
        if isinstance(read, Tick):
            self.ticks.append(read)
        elif read is not None:
            place = record.partition, read.topic, read.partition
            assert self._last.get(place, (0, -1)) < (read.generation, read.offset), (
                "in the order of its input"
            )
            self._last[place] = read.generation, read.offset
            assert read.value is not None
            assert read.key is not None
            assert read.value not in self.by_value, "once"
            assert record.partition == murmur2_place(read.key, self._partitions), (
                "where its key belongs"
            )
            assert read.timestamp >= known_ms, (
                "known time is never above a record that was not read"
            )
            assert read.headers == [("ce_id", b"%d" % json.loads(read.value)["number"])], (
                "its producer's headers, and none of ours"
            )
            self.events.append(read)
            self.by_value[read.value] = read


@pytest.fixture
async def inputs(bootstrap: str, topic_prefix: str) -> AsyncIterator[Inputs]:
    """Topics of this test's own: the inputs with different numbers of partitions, and three of the
    log.
    """
    await create_topics(
        bootstrap, {topic_prefix + topic: count for topic, count in COUNTS.items()}, STAMPED
    )
    await create_topics(bootstrap, {topic_prefix + EVENTS_TOPIC: 3}, STAMPED)
    await create_topics(
        bootstrap, {topic_prefix + QUARANTINE_TOPIC: 1, topic_prefix + SEQUENCER_TOPIC: 1}
    )
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, metadata_max_age_ms=500) as producer:
        yield Inputs(bootstrap, topic_prefix, producer)


@pytest.fixture
def start(
    bootstrap: str, topic_prefix: str, tmp_path: Path
) -> Iterator[Callable[[], SequencerProcess]]:
    """Starts sequencers of one group; all are killed at the end."""
    with ExitStack() as running:

        def start_one() -> SequencerProcess:
            output = tmp_path / f"{time.monotonic_ns()}.log"
            return running.enter_context(
                sequencer(output, bootstrap, topic_prefix, session_timeout_ms=SESSION_MS)
            )

        yield start_one


async def test_inputs_with_any_partitions_become_one_order(
    inputs: Inputs, start: Callable[[], SequencerProcess]
) -> None:
    await inputs.send_to_all(50)
    start()
    await inputs.everything()
    for _ in range(5):
        await inputs.send_to_all(20)
    log = await inputs.everything()
    assert not log.repeats
    by_log = defaultdict(list)
    for event in log.events:
        by_log[murmur2_place(event.key or b"", 3)].append(event.timestamp)
    assert all(times == sorted(times) for times in by_log.values()), "merged by the broker's time"
    assert {place: (0, offset + 1) for place, offset in _newest(inputs.sent).items()} == {
        (TOPIC_BY_SOURCE[source], partition): tuple(reached)
        for (source, partition), reached in log.ticks[-1].positions.items()
    }


def _newest(sent: Mapping[bytes, tuple[str, int, int, int]]) -> dict[tuple[str, int], int]:
    newest: dict[tuple[str, int], int] = {}
    for topic, partition, offset, _ in sent.values():
        newest[topic, partition] = max(offset, newest.get((topic, partition), 0))
    return newest


async def test_after_kill_9_a_standby_goes_on_and_nothing_is_lost_or_doubled(
    inputs: Inputs, start: Callable[[], SequencerProcess]
) -> None:
    running = start()
    terms = [running.term()]
    for _ in range(3):
        standby = start()
        standby.until_it_stands_by()
        terms.append(
            await asyncio.to_thread(running.term)
        )  # a new one in the same process, because the group shared out anew
        assert standby.stands_by, "a standby that joins moves nothing"
        load = asyncio.create_task(_steady(inputs, 3))
        await asyncio.sleep(1.5)
        running.popen.kill()
        killed = time.monotonic()
        terms.append(await asyncio.to_thread(standby.term))
        assert time.monotonic() - killed < patient(SESSION_MS / 1_000 + 10)
        await load
        running = standby
    log = await inputs.everything()
    assert terms == sorted(terms)
    assert len(set(terms)) == 7, "each begins a term of its own"
    assert log.repeats, "what was appended behind the last tick is appended again"


async def _steady(inputs: Inputs, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        await inputs.send_to_all(5)
        await asyncio.sleep(0.02)


async def test_one_that_thaws_after_another_took_over_writes_nothing_that_counts(
    inputs: Inputs, start: Callable[[], SequencerProcess]
) -> None:
    frozen = start()
    frozen.term()
    standby = start()
    standby.until_it_stands_by()
    load = asyncio.create_task(_steady(inputs, SESSION_MS / 1_000 + 10))
    await asyncio.sleep(1)
    frozen.popen.send_signal(signal.SIGSTOP)
    term = await asyncio.to_thread(standby.term)
    frozen.popen.send_signal(signal.SIGCONT)
    # It is a member again: it stands by, or the group has given the shard back to it.
    await asyncio.to_thread(
        wait_for,
        lambda: frozen.text,
        lambda: frozen.stands_by or (frozen.is_active and frozen.term() > term),
        40,
    )
    active = frozen if frozen.is_active else standby
    assert await asyncio.to_thread(active.term) > term
    await load
    await inputs.everything()


@pytest.mark.parametrize("again", [20, 400])
async def test_an_input_that_was_made_anew_is_read_whatever_its_size(
    inputs: Inputs, start: Callable[[], SequencerProcess], again: int
) -> None:
    start().term()
    await inputs.send_to_all(100)
    await inputs.everything()
    await delete_topic(inputs.bootstrap, inputs.prefix + PIPECAT)
    await create_topics(inputs.bootstrap, {inputs.prefix + PIPECAT: COUNTS[PIPECAT]}, STAMPED)
    await inputs.send(PIPECAT, again)
    await inputs.send(AUDIT, 10)
    log = await inputs.everything()
    assert {event.generation for event in log.events if event.topic == PIPECAT} == {0, 1}
    assert {event.generation for event in log.events if event.topic != PIPECAT} == {0}


async def recreated_while_none_runs(inputs: Inputs, first: SequencerProcess) -> None:
    """An input is recreated when all of it is read and the one sequencer has ended in order."""
    await inputs.send_to_all(100)
    await inputs.everything()
    first.popen.terminate()
    assert first.popen.wait(patient(10)) == 0
    await delete_topic(inputs.bootstrap, inputs.prefix + PIPECAT)
    await create_topics(inputs.bootstrap, {inputs.prefix + PIPECAT: COUNTS[PIPECAT]}, STAMPED)


@pytest.mark.parametrize("again", [20, 400])
async def test_an_input_that_was_made_anew_while_no_sequencer_ran_is_read(
    inputs: Inputs, start: Callable[[], SequencerProcess], again: int
) -> None:
    await recreated_while_none_runs(inputs, start())
    await inputs.send(PIPECAT, again)
    start()
    log = await inputs.everything()
    assert {event.generation for event in log.events if event.topic == PIPECAT} == {0, 1}
    assert not log.repeats, "an orderly stop leaves nothing to repeat"


async def test_what_another_appends_before_the_new_term_begins_is_no_secret_to_it(
    inputs: Inputs, start: Callable[[], SequencerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that thawed has seen an input recreated twice, and says so in the log when its successor
    has read that to its end already. If the successor counted once, all that it appends of the input
    would be taken for repeats.
    """
    await recreated_while_none_runs(inputs, start())
    await inputs.send(PIPECAT, 400)
    instruments = Instruments(CollectorRegistry(), ["sequencer"])
    settings = SequencerSettings()

    async def read_back_and_be_late(kafka: KafkaSettings, share: Share, *more: Any) -> LogEndFacts:
        found = await read_back(kafka, share, *more)
        former = LogWriter(kafka, settings, instruments, share, found.term)
        await former.start()
        places = found.places | {(InputSource.PIPECAT, 0): Next(2, 0)}
        await former.tick(Tick.of(found.term, found.known_ms, places))
        await former.stop()
        return found

    monkeypatch.setattr(service, "read_back", read_back_and_be_late)
    kafka = KafkaSettings(bootstrap_servers=inputs.bootstrap, topic_prefix=inputs.prefix)
    shard = Shard(kafka, settings, instruments, 0, generation=0)

    async def begun() -> None:
        assert shard.is_active

    running = asyncio.create_task(shard.run(0, begun))
    log = await inputs.everything()
    shard.stop.set()
    await running
    assert {event.generation for event in log.events if event.topic == PIPECAT} == {0, 2}


async def test_an_input_may_get_another_number_of_partitions(
    inputs: Inputs, start: Callable[[], SequencerProcess]
) -> None:
    start().term()
    await inputs.send_to_all(50)
    await inputs.everything()
    await add_partitions(inputs.bootstrap, {inputs.prefix + AUDIT: 7})
    await asyncio.sleep(1)
    await inputs.send(AUDIT, 70, partitions=7)
    await inputs.everything()
    await delete_topic(inputs.bootstrap, inputs.prefix + AUDIT)
    await create_topics(inputs.bootstrap, {inputs.prefix + AUDIT: 2}, STAMPED)
    await asyncio.sleep(1)
    await inputs.send(AUDIT, 70, partitions=2)
    log = await inputs.everything()
    assert not log.ticks[-1].left_out, "partitions that are gone are not waited for"


async def test_a_strangers_open_transaction_delays_its_records_and_not_the_time(
    inputs: Inputs, start: Callable[[], SequencerProcess]
) -> None:
    start().term()
    await inputs.send_to_all(10)
    await inputs.everything()
    stranger = AIOKafkaProducer(
        bootstrap_servers=inputs.bootstrap, transactional_id=f"{inputs.prefix}stranger"
    )
    async with stranger:
        await stranger.begin_transaction()
        hidden = await stranger.send_and_wait(
            inputs.prefix + PIPECAT, b'{"number": 900}', key=b"call-9", partition=0
        )
        begun = await inputs.log(lambda log: log.known_ms > hidden.timestamp + 2_000)
        assert b'{"number": 900}' not in begun.by_value
        await stranger.abort_transaction()
    await inputs.send(PIPECAT, 10)
    await inputs.everything()


async def test_a_topic_that_is_missing_is_said_and_others_go_on_after_the_wait(
    inputs: Inputs, start: Callable[[], SequencerProcess]
) -> None:
    await delete_topic(inputs.bootstrap, inputs.prefix + AUDIT)
    running = start()
    told = [f"sequencer: the topic {inputs.prefix}{AUDIT} is not there, or may not be read"]
    wait_for(lambda: running.text, lambda: running.said["problems"] == told, WAIT_SECONDS)
    await inputs.send(PIPECAT, 10)
    log = await inputs.everything()
    assert log.ticks[-1].left_out == (f"{inputs.prefix}{AUDIT}[0]",)
    await create_topics(inputs.bootstrap, {inputs.prefix + AUDIT: 2}, STAMPED)
    await inputs.send(AUDIT, 10, partitions=2)
    await inputs.everything()
    wait_for(lambda: running.text, lambda: running.is_active, WAIT_SECONDS)


async def test_without_the_topic_that_is_shared_out_it_is_not_ready_and_with_it_goes_on(
    inputs: Inputs, start: Callable[[], SequencerProcess]
) -> None:
    running = start()
    running.term()
    await delete_topic(inputs.bootstrap, inputs.prefix + SEQUENCER_TOPIC)
    problem = (
        f"sequencer: the topic {inputs.prefix}{SEQUENCER_TOPIC} is not there, or may not be read, "
        "so nobody is active"
    )
    await asyncio.to_thread(
        wait_for, lambda: running.text, lambda: running.said["problems"] == [problem], WAIT_SECONDS
    )
    await create_topics(inputs.bootstrap, {inputs.prefix + SEQUENCER_TOPIC: 1})
    await asyncio.to_thread(running.term)
    await inputs.send_to_all(10)
    await inputs.everything()


async def test_shards_share_the_log_and_each_reads_everything(
    inputs: Inputs, start: Callable[[], SequencerProcess]
) -> None:
    await add_partitions(inputs.bootstrap, {inputs.prefix + SEQUENCER_TOPIC: 2})
    first = start()
    first.term()
    await inputs.send_to_all(50)
    log = await inputs.everything()
    assert len(first.said["terms"]) == 2
    second = start()
    second.term()
    first.term()
    assert len(first.said["terms"]) == len(second.said["terms"]) == 1
    await inputs.send_to_all(50)
    await inputs.everything()
    first.popen.kill()
    await inputs.send_to_all(50)
    log = await inputs.everything()
    assert len(second.said["terms"]) == 2
    assert {tick.left_out for tick in log.ticks} == {()}
