"""Records that a real broker deletes before they are read, beside gaps that its transactions leave."""

import asyncio

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import RecordsToDelete
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from consumers.evaluator.assignment import Assignment
from consumers.evaluator.lost_records import LostRecords
from consumers.runtime.kafka.broker_clock import BrokerClock
from consumers.runtime.kafka.connection import KafkaSettings
from consumers.runtime.registry import Instruments
from tests.support.brokers.topic_changes import admin_of, create_topics
from tests.support.fakes.evaluator_fakes import PIPECAT, StubEvaluator, owned_of, partition_of
from tests.support.patience import patient

pytestmark = pytest.mark.kafka

SECONDS = 30


class Reading:
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
        self.assignment.owned = {0: owned_of(partition)}
        self.lost_records = LostRecords(self.assignment.gaps, lambda: self.assignment.active, instruments)

    async def to(self, last: bytes) -> None:
        """Reads until this record has come, and asks for lost records."""
        async with asyncio.timeout(patient(SECONDS)):
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
    reading = Reading(bootstrap, topic)
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
