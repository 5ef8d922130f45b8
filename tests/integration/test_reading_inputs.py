"""Inputs of a real broker as the evaluator reads them: records that are hidden or deleted, and how often they are taken."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import NewTopic, RecordsToDelete
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from consumers.evaluator.assignment import Assignment
from consumers.evaluator.lost_records import LostRecords
from consumers.runtime.kafka.broker_clock import BrokerClock
from consumers.runtime.kafka.connection import KafkaSettings
from consumers.runtime.kafka.log_ends import LogEnds
from consumers.runtime.kafka.polling import ENOUGH_BYTES, Subscription
from consumers.runtime.registry import Instruments
from tests.chaos.cluster import cluster as clusters
from tests.support.brokers import kafka_broker
from tests.support.brokers.topic_changes import admin_of, create_topics
from tests.support.fakes.evaluator_fakes import PIPECAT, StubEvaluator, partition_of
from tests.support.patience import patient
from tests.support.required_tools import MISSING

# -- records that a broker deletes before they are read, beside gaps that its transactions leave -----------------------

pytestmark = pytest.mark.kafka

LOSS_SECONDS = 30


class LossyReading:
    """One input, read as the evaluator reads it."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.consumer: AIOKafkaConsumer = KafkaSettings(bootstrap_servers=bootstrap).consumer(
            "test", auto_offset_reset="earliest", fetch_max_wait_ms=100
        )
        self.tp = TopicPartition(topic, 0)
        self.registry = CollectorRegistry()
        instruments = Instruments(self.registry, ["evaluator"])
        self.evaluator = StubEvaluator()
        self.evaluator.open_calls = ("c-1",)
        partition, _ = partition_of(self.evaluator)
        partition.next_offsets = {topic: 0}
        self.assignment = Assignment([topic], {}, BrokerClock(instruments))
        self.assignment.owned = {0: partition}
        self.lost_records = LostRecords(self.assignment.gaps, lambda: self.assignment.active, instruments)

    async def to(self, last: bytes) -> None:
        """Reads until this record has come, and asks for lost records."""
        async with asyncio.timeout(patient(LOSS_SECONDS)):
            values: list[bytes | None] = []
            while last not in values:
                for records in (await self.consumer.getmany(timeout_ms=100)).values():
                    self.assignment.polled({0: [records]})
                    values += [record.value for record in records]
        await self.lost_records.ask(self.consumer)

    @property
    def lost(self) -> float | None:
        return self.registry.get_sample_value("callgauge_input_records_lost_total")


async def test_what_the_broker_deleted_is_counted_and_what_transactions_leave_out_is_not(
    bootstrap: str, topic_prefix: str
) -> None:
    topic = topic_prefix + PIPECAT
    await create_topics(bootstrap, {topic: 1})
    reading = LossyReading(bootstrap, topic)
    await reading.consumer.start()
    reading.consumer.assign([reading.tp])
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=f"{topic_prefix}test")
    await producer.start()

    async def send(*values: bytes, is_aborted: bool = False) -> None:
        await producer.begin_transaction()
        for value in values:
            await producer.send_and_wait(topic, value, partition=0)
        await (producer.abort_transaction() if is_aborted else producer.commit_transaction())

    try:
        await send(b"first")
        await send(b"aborted", b"aborted", is_aborted=True)
        await send(b"second")
        with capture_logs() as logged:
            await reading.to(b"second")
        assert (reading.lost, logged) == (0, [])
        begins = await reading.consumer.position(reading.tp)
        await send(b"unread", b"unread", b"unread")
        (end,) = (await reading.consumer.end_offsets([reading.tp])).values()
        async with admin_of(bootstrap) as admin:
            await admin.delete_records({reading.tp: RecordsToDelete(before_offset=end)})
        await send(b"last")
        reading.consumer.seek(reading.tp, begins)  # its fetched records are fetched again, and are not there
        with capture_logs() as logged:
            await reading.to(b"last")
        assert [line["event"] for line in logged] == ["input_not_where_it_was", "calls_incomplete"]
        assert logged[0]["seen"] == f"the topic begins at {end} now"
        # The ends of transactions take offsets too: perhaps of the last read records, and of the unread ones.
        assert reading.lost is not None
        assert 0 <= reading.lost - (end - begins) <= 1
    finally:
        await producer.stop()
        await reading.consumer.stop()


# -- a record that only the leader has: readers get the answer that there is nothing, and the evaluator knows better ---


A = TopicPartition("a", 0)
SECONDS = 20
"""For each thing that is waited for."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[clusters.Cluster]:
    """Two brokers: when one of them is frozen, no majority can decide to do without it."""
    try:
        with clusters.running(tmp_path, 2) as cluster:
            yield cluster
    except kafka_broker.NoBrokerError as error:
        pytest.skip(f"{MISSING}{error}")


class Reading:
    """One replicated input, read as the evaluator reads it."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self.consumer: AIOKafkaConsumer = kafka.consumer("test", fetch_max_wait_ms=100)
        clock = BrokerClock(Instruments(CollectorRegistry(), ["evaluator"]))
        self.log_ends = LogEnds(kafka, [A.topic], clock.steady_ms)
        self.partition, _ = partition_of(StubEvaluator())
        self.assignment = Assignment([A.topic], self.log_ends.ends, clock)
        self.assignment.owned = {0: self.partition}

    async def until(self, condition: Callable[[], bool]) -> None:
        """Reads and looks, as often as it takes."""
        async with asyncio.timeout(patient(SECONDS)):
            while True:
                polled = await self.consumer.getmany(timeout_ms=10)
                self.partition.polled(list(polled.values()))
                await self.assignment.look(self.consumer)
                if condition():
                    return

    @property
    def known_ms(self) -> int:
        """0 if nothing is known."""
        return self.assignment.known_ms(0) or 0


@pytest.fixture
async def reading(cluster: clusters.Cluster) -> AsyncIterator[Reading]:
    kafka = KafkaSettings(bootstrap_servers=cluster.bootstrap)
    admin = kafka.admin("test")
    await admin.start()
    async with asyncio.timeout(patient(SECONDS)):
        while cluster.leaders().get((A.topic, 0), -1) < 0 or cluster.unreplicated():
            # Asked for until it is there: the controller refuses two replicas while it misses a heartbeat of the other broker.
            await admin.create_topics([NewTopic(A.topic, 1, 2)])
            await asyncio.sleep(0.05)
    await admin.close()
    reading = Reading(kafka)
    await reading.log_ends.start()
    await reading.consumer.start()
    reading.consumer.assign([A])
    asking = asyncio.create_task(reading.log_ends.ask_for_ever(lambda: [A]))
    yield reading
    asking.cancel()
    await asyncio.wait([asking])
    assert asking.cancelled(), asking
    await reading.log_ends.stop()
    await reading.consumer.stop()


async def test_silence_is_not_read_from_records_that_are_hidden_still(
    cluster: clusters.Cluster, reading: Reading
) -> None:
    (follower,) = [node for node in cluster.nodes if node.number != cluster.leaders()[A.topic, 0]]
    assert follower._process is not None
    async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap, acks=1) as producer:
        first = await producer.send_and_wait(A.topic, b"seen", partition=0)
        await reading.until(lambda: reading.partition.last_record_ms == {A.topic: first.timestamp})
        now_ms = time.time_ns() // 1_000_000
        await reading.until(lambda: reading.known_ms > now_ms)

        follower._process.send_signal(signal.SIGSTOP)
        try:
            hidden = await producer.send_and_wait(A.topic, b"hidden", partition=0)
            frozen_ms = time.time_ns() // 1_000_000
            await reading.until(lambda: reading.assignment.lag_messages("g")["g", A.topic, "0"] == 1)
            told_ms = reading.consumer.last_poll_timestamp(A)
            # Three answers later: the client has asked once more since, and still gets the answer that it has read everything.
            await reading.until(lambda: reading.consumer.last_poll_timestamp(A) > told_ms + 300)
            assert (reading.consumer.highwater(A), await reading.consumer.position(A)) == (1, 1)
            assert reading.known_ms == first.timestamp, "up to the last record that was handed over"
        finally:
            follower._process.send_signal(signal.SIGCONT)
        await reading.until(lambda: reading.partition.last_record_ms[A.topic] == hidden.timestamp)
        await reading.until(lambda: reading.known_ms > frozen_ms)


# -- how often records are taken: together after a moment, at once with a backlog --------------------------------------

PACED_TOPIC = "scores"
ANSWER_BYTES = 2 * ENOUGH_BYTES
RECORD_BYTES = 1_000


class _Polls:
    """Takes records and keeps how many came with each poll."""

    def __init__(self) -> None:
        self.polls: list[int] = []
        self._came = asyncio.Event()

    async def take(self, records: Sequence[Any]) -> None:
        self.polls.append(len(records))
        self._came.set()

    async def until(self, records: int) -> None:
        async with asyncio.timeout(patient(30)):
            while sum(self.polls) < records:
                self._came.clear()
                await self._came.wait()


@asynccontextmanager
async def _polling(bootstrap: str, prefix: str, interval_ms: int) -> AsyncIterator[tuple[_Polls, Subscription]]:
    reading = _Polls()
    made = Subscription(
        KafkaSettings(bootstrap_servers=bootstrap, topic_prefix=prefix), "reader", [PACED_TOPIC], reading.take,
        group_id=prefix + "reader", max_records=50, poll_interval_ms=interval_ms,
        options={"auto_offset_reset": "earliest", "max_partition_fetch_bytes": ANSWER_BYTES},
    )  # fmt: skip
    await made.start()
    try:
        yield reading, made
    finally:
        await made.stop()


async def test_what_comes_one_by_one_is_taken_together(bootstrap: str, topic_prefix: str) -> None:
    interval_ms, records = 300, 60
    await create_topics(bootstrap, {topic_prefix + PACED_TOPIC: 2})
    async with (
        AIOKafkaProducer(bootstrap_servers=bootstrap) as producer,
        _polling(bootstrap, topic_prefix, interval_ms) as (reading, _),
    ):
        begin = time.monotonic()
        for number in range(records):
            await producer.send_and_wait(topic_prefix + PACED_TOPIC, b"value", partition=number % 2)
        await reading.until(records)
        passed_ms = (time.monotonic() - begin) * 1_000
    assert len(reading.polls) <= passed_ms / interval_ms + 2


async def test_a_backlog_waits_for_nothing(bootstrap: str, topic_prefix: str) -> None:
    answers, interval_ms = 16, 10_000
    records = answers * ANSWER_BYTES // RECORD_BYTES
    await create_topics(bootstrap, {topic_prefix + PACED_TOPIC: 1})
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, linger_ms=20) as producer:
        for _ in range(records):
            await producer.send(topic_prefix + PACED_TOPIC, bytes(RECORD_BYTES))
    async with _polling(bootstrap, topic_prefix, interval_ms) as (reading, _):
        await reading.until(records)  # which is not that patient: a wait for each answer would take minutes
    assert max(reading.polls) <= 50


async def test_the_end_does_not_wait_for_records(bootstrap: str, topic_prefix: str) -> None:
    await create_topics(bootstrap, {topic_prefix + PACED_TOPIC: 1})
    async with _polling(bootstrap, topic_prefix, 60_000) as (_, made):
        await made.stop()
        assert made._subscriber.consumer is None, "it was given up in the middle"
