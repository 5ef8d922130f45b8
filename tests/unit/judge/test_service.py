"""The judge's shell without a broker: its transactions, its verdicts, and the work that a rebalance
lets through.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError, KafkaTimeoutError, ProducerFenced
from aiokafka.structs import OffsetAndMetadata
from faststream.kafka import TestKafkaBroker
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from consumers.judge import progress, service
from consumers.judge.ask import QuestionAnswerer
from consumers.judge.progress import VerdictWriteError
from consumers.judge.service import JudgeWorker
from consumers.runtime.kafka.connection import KafkaSettings
from consumers.runtime.kafka.polling import GroupCommits
from consumers.runtime.received import MAX_REFUSED_LINES
from consumers.runtime.registry import Instruments
from schemas.judging import JudgeRequest, JudgeVerdict
from schemas.quarantine import UndecodableRecord
from tests.support.brokers.record_bytes import stand_in
from tests.support.calls.judge_questions import (
    ScriptedEndpoint,
    answer,
    judge_settings,
    question,
    running_judge,
    wall_clock_ms,
)
from tests.support.fakes.broker_records import BrokerRecord
from tests.support.known import Logged
from tests.support.patience import patient

P0, P1 = TopicPartition("judge.requests", 0), TopicPartition("judge.requests", 1)


def record_with(
    value: bytes | None,
    offset: int,
    partition: int = 0,
    headers: tuple[tuple[str, bytes], ...] = (),
    key: bytes = b"c-1",
) -> BrokerRecord:
    return BrokerRecord("judge.requests", offset, 0, key, value, partition, headers)


def record_of(asked: JudgeRequest, offset: int, partition: int = 0, **headers: str) -> BrokerRecord:
    named = tuple((name, value.encode()) for name, value in headers.items())
    return record_with(asked.model_dump_json().encode(), offset, partition, named)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(patient(5)):
        while not condition():  # noqa: ASYNC110 - the condition has no event, and is a few steps away
            await asyncio.sleep(0)


class Cluster:
    """What a broker keeps: committed verdicts and progress, and which producer has each
    transactional id.
    """

    def __init__(self) -> None:
        self.verdicts: list[tuple[JudgeVerdict, dict[str, str]]] = []
        self.committed: dict[TopicPartition, OffsetAndMetadata] = {}
        self.owners: dict[str | None, FakeProducer] = {}
        self.starts = 0
        self.transactions = 0
        self.may_start = asyncio.Event()
        self.may_start.set()
        self.may_begin = asyncio.Event()
        self.may_begin.set()
        self.may_write = asyncio.Event()
        self.may_write.set()
        self.error: KafkaError | None = None


class FakeProducer:
    def __init__(self, cluster: Cluster, transactional_id: str | None) -> None:
        self._cluster = cluster
        self._id = transactional_id
        self._verdicts: list[tuple[JudgeVerdict, dict[str, str]]] = []
        self._offsets: dict[TopicPartition, OffsetAndMetadata] = {}

    async def start(self) -> None:
        await self._cluster.may_start.wait()
        self._cluster.starts += 1
        self._cluster.owners[self._id] = self

    async def stop(self) -> None:
        pass

    async def begin_transaction(self) -> None:
        assert self._id is not None
        await self._cluster.may_begin.wait()
        assert (self._verdicts, self._offsets) == ([], {})

    async def send(
        self, topic: str, value: bytes, *, key: bytes, headers: Any
    ) -> "asyncio.Future[None]":
        verdict = JudgeVerdict.model_validate_json(value)
        assert (topic, key.decode()) == ("judge.verdicts", verdict.conversation_id)
        self._verdicts.append((verdict, {name: text.decode() for name, text in headers}))
        return asyncio.ensure_future(self._sent())

    async def _sent(self) -> None:
        await self._cluster.may_write.wait()
        if self._cluster.error is not None:
            raise self._cluster.error
        if self._id is None:
            self._cluster.verdicts += self._verdicts
            self._verdicts = []

    async def send_offsets_to_transaction(
        self, offsets: dict[TopicPartition, OffsetAndMetadata], group_id: str
    ) -> None:
        assert group_id == "judges"
        self._offsets = offsets

    async def commit_transaction(self) -> None:
        if self._cluster.owners[self._id] is not self:
            raise ProducerFenced
        self._cluster.verdicts += self._verdicts
        self._cluster.committed |= self._offsets
        self._cluster.transactions += 1
        self._verdicts, self._offsets = [], {}


class FakeConsumer:
    def __init__(self, cluster: Cluster) -> None:
        self.sought: dict[int, int] = {}
        self.paused: set[int] = set()
        self.error: Exception | None = None
        self._coordinator = self
        self._cluster = cluster

    def pause(self, *partitions: TopicPartition) -> None:
        self.paused |= {tp.partition for tp in partitions}

    def resume(self, *partitions: TopicPartition) -> None:
        self.paused -= {tp.partition for tp in partitions}

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self.sought[partition.partition] = offset

    async def beginning_offsets(
        self, partitions: list[TopicPartition]
    ) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)

    async def end_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 100)

    async def fetch_committed_offsets(
        self, partitions: list[TopicPartition]
    ) -> dict[TopicPartition, Any]:
        return {
            tp: self._cluster.committed[tp] for tp in partitions if tp in self._cluster.committed
        }

    async def commit(self, offsets: dict[TopicPartition, OffsetAndMetadata]) -> None:
        if self.error is not None:
            raise self.error
        self._cluster.committed |= offsets


class FakeReader:
    def __init__(self, consumer: FakeConsumer) -> None:
        self.consumer = consumer
        self.failures: list[Exception] = []

    async def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], seconds: float
    ) -> bool:
        return await GroupCommits(None).commit(self.consumer, offsets, seconds)

    def fail(self, error: Exception) -> None:
        self.failures.append(error)


class House:
    """A worker with a made-up broker, and the parts it was made with."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cluster: Cluster | None = None) -> None:
        self.endpoint = ScriptedEndpoint(lambda _: answer("C"))
        self.cluster = cluster or Cluster()
        self.consumer = FakeConsumer(self.cluster)
        self.reader = FakeReader(self.consumer)
        self.instruments = Instruments(CollectorRegistry(), ["judge"])
        monkeypatch.setattr(
            service,
            "QuestionAnswerer",
            lambda given, counted, redactor: QuestionAnswerer(
                given, counted, self.endpoint, redactor
            ),
        )
        monkeypatch.setattr(
            KafkaSettings, "producer", lambda _, __, given, ___: FakeProducer(self.cluster, given)
        )
        kafka = KafkaSettings()
        self.worker = JudgeWorker(kafka, judge_settings(), self.instruments, group_id="judges")
        self.made = self.worker.reader
        monkeypatch.setattr(self.worker, "reader", self.reader)

    async def assigned(self, *partitions: TopicPartition) -> None:
        await self.worker.on_partitions_assigned(set(partitions))
        await until(lambda: self.worker._has_taken_over)

    async def revoked(self, *partitions: TopicPartition) -> None:
        await self.worker.on_partitions_revoked(set(partitions))

    async def take(self, *records: BrokerRecord | UndecodableRecord) -> None:
        async with TestKafkaBroker(self.made.broker):
            await self.made.subscriber.process_message(records)
        if self.made.has_failed:
            await self.made.failure()

    async def asking(self) -> JudgeRequest:
        """The first record of P0 is a question, and the endpoint thinks about it until the test
        opens its gate.
        """
        await self.assigned(P0)
        self.endpoint.gate.clear()
        asked = question()
        await self.take(record_of(asked, 0))
        await self.endpoint.until_asked(3)
        return asked

    async def answered_while_shared_out(self) -> JudgeRequest:
        asked = await self.asking()
        await self.revoked(P0)
        self.endpoint.gate.set()
        await until(lambda: bool(self.worker._verdicts))
        return asked

    async def until_written(self, count: int) -> None:
        await until(lambda: len(self.cluster.verdicts) >= count)

    def written(self) -> list[str]:
        return [verdict.request_id for verdict, _ in self.cluster.verdicts]

    async def committed(self) -> dict[int, int]:
        """By partition, the first offset that a successor reads, once all that is answered is
        written.
        """
        await asyncio.gather(*(writer.write() for writer in self.worker._writers.values()))
        return {tp.partition: at.offset for tp, at in self.cluster.committed.items()}

    def answered_after(self, partition: TopicPartition) -> set[int]:
        """The offsets after it that the note names."""
        at = self.cluster.committed[partition]
        bits = int(json.loads(at.metadata)[0], 16)
        return {at.offset + place for place in range(bits.bit_length()) if bits >> place & 1}


@pytest.fixture
async def house(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[House]:
    async with running(House(monkeypatch)) as made:
        yield made


@pytest.fixture
async def judging(house: House) -> House:
    """It has the partition P0."""
    await house.assigned(P0)
    return house


@asynccontextmanager
async def running(made: House) -> AsyncIterator[House]:
    judging = asyncio.create_task(made.worker._judge.run())
    try:
        yield made
        assert not judging.done()
    finally:
        judging.cancel()
        await made.worker._let_go()
        await asyncio.gather(judging, return_exceptions=True)


async def test_a_published_question_is_answered(judging: House) -> None:
    asked = question()
    async with TestKafkaBroker(judging.made.broker) as broker:
        await broker.publish(asked.model_dump_json().encode(), "judge.requests", key=b"c-1")
    await judging.until_written(1)
    assert judging.written() == [asked.request_id]


async def test_an_offset_is_committed_when_all_before_it_are_answered(judging: House) -> None:
    """And the note beside it names the answered ones after it."""
    judging.endpoint.gate.clear()
    slow, quick = question(subgoal_id="slow"), question(subgoal_id="quick", deadline_ms=1)
    await judging.take(record_of(slow, 0), record_of(quick, 1), record_with(b"junk", 3))
    await judging.until_written(1)
    assert await judging.committed() == {0: 0}
    assert judging.answered_after(P0) == {1, 2, 3}
    judging.endpoint.gate.set()
    await judging.until_written(2)
    assert await judging.committed() == {0: 4}
    assert judging.answered_after(P0) == set()


async def test_a_question_whose_answer_is_not_taken_is_not_committed(judging: House) -> None:
    judging.cluster.may_write.clear()
    await judging.take(record_of(question(), 7))
    await judging.endpoint.until_asked(3)
    await until(lambda: bool(judging.worker._writers[P0].outgoing))
    judging.cluster.error = KafkaTimeoutError()
    judging.cluster.may_write.set()
    await until(lambda: bool(judging.reader.failures))
    (failure,) = judging.reader.failures
    assert isinstance(failure, VerdictWriteError)
    assert "asks these questions again" in str(failure)
    assert (judging.cluster.verdicts, judging.cluster.committed) == ([], {})


async def test_verdicts_that_come_during_a_transaction_share_the_next(judging: House) -> None:
    judging.cluster.may_write.clear()
    await judging.take(
        *(record_of(question(subgoal_id=str(number), deadline_ms=1), number) for number in range(9))
    )
    await until(lambda: len(judging.worker._writers[P0].outgoing) == 9)
    judging.cluster.may_write.set()
    await judging.until_written(9)
    assert await judging.committed() == {0: 9}
    assert judging.cluster.transactions <= 2


async def test_a_verdict_that_comes_as_a_transaction_begins_is_written_once_with_its_progress(
    judging: House,
) -> None:
    judging.cluster.may_begin.clear()
    asked = [question(subgoal_id=name, deadline_ms=1) for name in "ab"]
    await judging.take(record_of(asked[0], 0))
    await until(
        lambda: not judging.worker._writers[P0]._has_changed.is_set() and not judging.worker._places
    )
    await judging.take(record_of(asked[1], 1))
    await until(lambda: not judging.worker._places)
    judging.cluster.may_begin.set()
    await judging.until_written(1)
    assert judging.cluster.committed[P0].offset == 1
    assert await judging.committed() == {0: 2}
    assert judging.written() == [each.request_id for each in asked]


async def test_the_answer_goes_by_its_key_and_says_which_question_it_is_of(house: House) -> None:
    """The sequencer places a verdict with the events of its call, whatever partition it
    has here.
    """
    await house.assigned(P1)
    asked = question()
    await house.take(record_of(asked, 0, 1))
    await house.until_written(1)
    ((_, headers),) = house.cluster.verdicts
    assert headers == {
        "ce_specversion": "1.0",
        "ce_id": asked.request_id,
        "ce_source": "callgauge.judge",
        "ce_type": "callgauge.judge.verdict.v1",
        "ce_subject": asked.conversation_id,
        "content-type": "application/json",
    }


async def test_what_was_answered_is_neither_asked_nor_written_again(judging: House) -> None:
    asked = question()
    await judging.take(record_of(asked, 0), record_of(asked, 1))
    await judging.until_written(1)
    await judging.take(record_of(asked, 2))
    assert await judging.committed() == {0: 3}
    assert (len(judging.endpoint.questions), len(judging.cluster.verdicts)) == (3, 1)


async def test_a_repeat_in_another_partition_is_answered_too(house: House) -> None:
    """After partitions were added, the same question may be there."""
    await house.assigned(P0, P1)
    asked = question()
    await house.take(record_of(asked, 0), record_of(asked, 0, 1))
    await house.until_written(1)
    assert await house.committed() == {0: 1, 1: 1}
    assert (len(house.endpoint.questions), len(house.cluster.verdicts)) == (3, 1)


async def test_a_successor_asks_exactly_what_has_no_verdict(
    judging: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    judging.endpoint.gate.clear()
    records = [
        record_of(
            question(subgoal_id=str(number), deadline_ms=10**13 if number in {0, 3} else 1), number
        )
        for number in range(5)
    ]
    await judging.take(*records)
    await judging.until_written(3)
    async with running(House(monkeypatch, judging.cluster)) as successor:
        await successor.assigned(P0)
        assert successor.consumer.sought == {0: 0}
        await successor.take(*records)
        await successor.until_written(5)
        assert await successor.committed() == {0: 5}
        assert len(successor.endpoint.questions) == 2 * 3
    assert len(set(judging.written())) == 5


async def test_who_is_fenced_off_writes_nothing(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A judge that was frozen for longer than its session: another one has its partition."""
    await house.asking()
    async with running(House(monkeypatch, house.cluster)) as successor:
        await successor.assigned(P0)
        house.endpoint.gate.set()
        await until(lambda: bool(house.reader.failures))
        (failure,) = house.reader.failures
        assert isinstance(failure, VerdictWriteError)
        assert "another judge has judge.requests[0]" in str(failure)
        assert (house.cluster.verdicts, house.cluster.committed) == ([], {})


async def test_nothing_is_read_before_the_former_owner_is_fenced_off(house: House) -> None:
    house.cluster.may_start.clear()
    house.cluster.committed[P0] = OffsetAndMetadata(5, "")
    await house.worker.on_partitions_assigned({P0})
    assert house.consumer.paused == {0}
    assert house.worker.problems()
    await house.take(record_of(question(), 6))
    house.cluster.committed[P0] = OffsetAndMetadata(6, "")  # its last transaction
    house.cluster.may_start.set()
    await until(lambda: house.worker._has_taken_over)
    assert (house.consumer.paused, house.consumer.sought) == (set(), {0: 6})
    assert house.endpoint.questions == []
    await until(house.worker.ready.is_set)
    assert house.worker.problems() == ()


async def test_a_takeover_that_is_revoked_ends(house: House) -> None:
    house.cluster.may_start.clear()
    await house.worker.on_partitions_assigned({P0})
    await asyncio.sleep(0)
    async with asyncio.timeout(patient(5)):
        await house.revoked(P0)
    house.cluster.may_start.set()
    await house.assigned(P1)
    assert house.cluster.owners.keys() == {"judges-judge-1"}


async def test_a_partition_that_stays_ours_loses_no_work_and_pays_for_none_twice(
    house: House,
) -> None:
    await house.assigned(P0, P1)
    house.endpoint.gate.clear()
    stays, goes = question(subgoal_id="stays"), question(subgoal_id="goes")
    await house.take(record_of(stays, 0), record_of(goes, 0, 1))
    await house.endpoint.until_asked(6)
    await house.revoked(P0, P1)
    house.endpoint.gate.set()
    await house.assigned(P0)
    await house.take(record_of(stays, 0))  # read again from the committed offset
    await house.until_written(1)
    assert house.written() == [stays.request_id]
    assert await house.committed() == {0: 1}
    assert len(house.endpoint.questions) == 6
    assert house.cluster.starts == 3


async def test_no_verdict_goes_out_while_partitions_are_shared_out(house: House) -> None:
    """A question that is answered meanwhile may be another judge's by now. If it comes back open,
    it is asked again.
    """
    asked = await house.answered_while_shared_out()
    await house.assigned(P1)
    assert house.worker._verdicts == []
    assert await house.committed() == {}
    assert (house.cluster.verdicts, house.reader.failures) == ([], [])
    await house.revoked(P1)
    await house.assigned(P0)
    await house.take(record_of(asked, 0))
    await house.until_written(1)
    assert len(house.endpoint.questions) == 6


async def test_what_is_answered_meanwhile_goes_out_when_its_partition_comes_back(
    house: House,
) -> None:
    asked = await house.answered_while_shared_out()
    await house.assigned(P0)
    await house.until_written(1)  # before its question is read again
    assert await house.committed() == {0: 1}
    await house.take(record_of(asked, 0))
    assert await house.committed() == {0: 1}
    assert len(house.endpoint.questions) == 3


async def test_what_is_another_judge_s_is_not_asked_on(house: House) -> None:
    await house.asking()
    await house.revoked(P0)
    await house.assigned(P1)
    await until(lambda: house.endpoint._at_once == 0)


async def test_a_verdict_that_another_judge_has_written_is_not_written_again(house: House) -> None:
    asked = await house.answered_while_shared_out()
    house.cluster.committed[P0] = OffsetAndMetadata(1, "")
    await house.assigned(P0)
    await house.take(record_of(asked, 1))
    assert await house.committed() == {0: 2}
    assert house.cluster.verdicts == []


async def test_a_broker_that_does_not_answer_holds_a_revocation_up_for_a_bounded_time(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows whether the verdict was written. If not, its question is asked again."""
    monkeypatch.setattr(service, "HAND_OVER_SECONDS", 0.05)
    await house.assigned(P0)
    house.cluster.may_write.clear()
    asked = question()
    await house.take(record_of(asked, 0))
    await until(lambda: bool(house.worker._writers[P0].outgoing))
    with capture_logs() as lines:
        async with asyncio.timeout(patient(5)):
            await house.revoked(P0)
    assert [(line["event"], line["verdicts"]) for line in lines] == [("handed_over_unwritten", 1)]
    house.cluster.may_write.set()
    await house.assigned(P0)
    await house.take(record_of(asked, 0))
    await house.until_written(1)
    assert await house.committed() == {0: 1}
    assert house.written() == [asked.request_id]


async def test_a_verdict_whose_write_fails_at_a_revocation_is_asked_for_again(
    judging: House,
) -> None:
    judging.cluster.error = KafkaTimeoutError()
    asked = question(deadline_ms=1)
    await judging.take(record_of(asked, 0))
    await until(lambda: bool(judging.worker._writers[P0].outgoing))
    await judging.revoked(P0)
    judging.cluster.error = None
    await judging.assigned(P0)
    await judging.take(record_of(asked, 0))
    assert await judging.committed() == {0: 1}
    assert judging.written() == [asked.request_id]


async def test_reading_pauses_far_from_the_oldest_open_question(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the note would not have room for the answered ones in between."""
    monkeypatch.setattr(progress, "MAX_SPAN", 8)
    await house.assigned(P0)
    house.endpoint.gate.clear()
    reading = asyncio.create_task(
        house.take(
            record_of(question(), 0), *(record_with(b"junk", number) for number in range(1, 30))
        )
    )
    await until(lambda: house.worker._writers[P0].progress._next == 8)
    await asyncio.sleep(3 * service.PAUSE_SECONDS)
    assert await house.committed() == {0: 0}
    assert house.answered_after(P0) == set(range(1, 8))
    house.endpoint.gate.set()
    await reading
    await house.until_written(1)
    assert await house.committed() == {0: 30}


@pytest.mark.parametrize("way_out", ["written", "revoked"])
async def test_reading_pauses_while_too_much_is_unwritten(
    house: House, monkeypatch: pytest.MonkeyPatch, way_out: str
) -> None:
    monkeypatch.setattr(service, "MAX_UNWRITTEN", 2)
    monkeypatch.setattr(service, "HAND_OVER_SECONDS", 0.05)
    await house.assigned(P0)
    house.cluster.may_write.clear()
    records = [
        record_of(question(subgoal_id=str(number), deadline_ms=1), number) for number in range(3)
    ]
    await house.take(*records)
    await until(lambda: len(house.worker._writers[P0].outgoing) == 3)
    reading = asyncio.create_task(house.take(record_with(b"junk", 3)))
    await asyncio.sleep(3 * service.PAUSE_SECONDS)
    assert not reading.done()
    if way_out == "written":
        house.cluster.may_write.set()
    else:
        await house.revoked(P0)
    async with asyncio.timeout(patient(5)):
        await reading
    assert await house.committed() == ({0: 4} if way_out == "written" else {})


async def test_a_new_owner_knows_the_money_of_this_hour(
    judging: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    await judging.take(record_of(question(), 0))
    await judging.until_written(1)
    spent = judging.worker._judge.budget.left(wall_clock_ms())["hour"]
    assert spent < 1_000
    async with running(House(monkeypatch, judging.cluster)) as successor:
        await successor.assigned(P0)
        assert successor.worker._judge.budget.left(wall_clock_ms())["hour"] == pytest.approx(spent)


async def test_what_is_no_question_is_told_and_counted_and_not_without_end(
    judging: House, logged: Logged
) -> None:
    await judging.take(*(record_with(b"{}", offset) for offset in range(MAX_REFUSED_LINES + 5)))
    refused = [line for line in logged if line["event"] == "record_refused"]
    assert len(refused) == MAX_REFUSED_LINES
    assert {
        "conversation_id": "c-1",
        "topic": "judge.requests",
        "partition": 0,
        "offset": 0,
    }.items() <= refused[0].items()
    assert [line["records"] for line in logged if line["event"] == "more_records_refused"] == [5]
    value = judging.instruments.registry.get_sample_value("callgauge_judge_questions_refused_total")
    assert value == MAX_REFUSED_LINES + 5
    assert await judging.committed() == {0: MAX_REFUSED_LINES + 5}


async def test_questions_that_the_client_cannot_decode_are_passed(
    judging: House, logged: Logged
) -> None:
    await judging.take(stand_in("judge.requests", 0, 6), record_of(question(), 7))
    assert [line["reason"][:26] for line in logged if line["event"] == "record_refused"] == [
        "judge.requests[0]@0 to @6:"
    ]
    await judging.until_written(1)
    assert await judging.committed() == {0: 8}


async def test_what_is_being_asked_is_answered_before_it_leaves(house: House) -> None:
    await house.asking()
    finishing = asyncio.create_task(house.worker._judge.finish())
    house.endpoint.gate.set()
    await finishing
    await house.worker._hand_over()
    assert len(house.cluster.verdicts) == 1
    assert await house.committed() == {0: 1}


async def test_the_memory_of_answers_is_bounded(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MAX_ANSWERED", 2)
    await house.assigned(P0)
    asked = [question(subgoal_id=name, deadline_ms=1) for name in "abc"]
    await house.take(*(record_of(each, offset) for offset, each in enumerate(asked)))
    await house.until_written(3)
    assert list(house.worker._answered) == [each.request_id for each in asked[1:]]


# The judge reads on past any record on `judge.requests`: it answers or refuses each, ends for none.


HOUR_MS = 3_600_000
GOOD = json.loads(question(conversation_id="c", transcript=[]).model_dump_json())
DEEP = b'{"transcript":' + b"[" * 200_000

odd = (
    st.none()
    | st.booleans()
    | st.integers(-2, 6)
    | st.text(max_size=5)
    | st.sampled_from(
        [
            10**18,
            -(10**18),
            10**400,
            10**4_000,
            1e308,
            float("nan"),
            float("inf"),
            "9" * 5_000,
            "x" * 300,
            [],
            [None],
            {},
            "\x00",
            "conciseness",
            "subgoal.1",
        ]
    )
)
header_values = (
    st.none()
    | st.binary(max_size=4)
    | st.sampled_from(
        [
            b"0",
            b"3",
            b"4",
            b"-1",
            b"9" * 5_000,
            b"9" * 10,
            "²".encode(),
            b"1e3",
            b"0x1",
            b" 1",
            b"1_0",
        ]
    )
)


@st.composite
def values(draw: st.DrawFn) -> bytes | None:
    """Questions with odd fields, and values that are no question at all."""
    if draw(st.integers(0, 9)) == 0:
        return draw(
            st.none()
            | st.binary(max_size=20)
            | st.sampled_from([DEEP, b"null", b"[]", b'"\\ud800"', b"1e999"])
        )
    changed = draw(st.dictionaries(st.sampled_from(sorted(GOOD)), odd, max_size=3))
    return json.dumps({**GOOD, "deadline_ms": wall_clock_ms() + 5_000, **changed}).encode()


headers = st.lists(st.tuples(st.sampled_from(["ce_id", "other"]), header_values), max_size=3)


@given(
    st.lists(
        st.tuples(values(), headers, st.none() | st.binary(max_size=3)), min_size=1, max_size=6
    )
)
def test_every_record_is_answered_or_refused(
    drawn: list[tuple[bytes | None, list[tuple[str, Any]], bytes | None]],
) -> None:
    records = [
        record_with(value, offset, headers=tuple(named), key=key or b"")
        for offset, (value, named, key) in enumerate(drawn)
    ]

    async def scenario() -> tuple[dict[int, int], list[Exception], list[str]]:
        with pytest.MonkeyPatch.context() as patch:
            async with running(House(patch)) as house:
                await house.assigned(P0)
                await house.take(*records)
                await house.take(record_of(question(conversation_id="last"), len(records)))
                await until(lambda: not house.worker._places)
                committed = await house.committed()
                written = [verdict.conversation_id for verdict, _ in house.cluster.verdicts]
                return committed, house.reader.failures, written

    committed, failures, written = asyncio.run(scenario())
    assert failures == []
    assert committed == {0: len(records) + 1}
    assert "last" in written


async def test_money_of_the_future_does_not_switch_the_budget_off() -> None:
    """Its hour would never come, and until that hour nothing would be counted."""
    settings = judge_settings(budget_per_hour=0.05)
    now_ms = wall_clock_ms()
    async with running_judge(settings, ScriptedEndpoint(lambda _: answer("C"))) as (judge, _):
        judge.budget.recall(now_ms // HOUR_MS + 10, {"ava": 0.01}, now_ms)
        results = [
            (await judge.ask(question(subgoal_id=str(number)))).result.outcome
            for number in range(4)
        ]
    assert results == ["judged", "unscored", "unscored", "unscored"]
