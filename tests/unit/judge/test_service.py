"""The judge's shell without a broker: its commits, its verdicts, and the work that a rebalance lets through."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import CommitFailedError, KafkaTimeoutError
from aiokafka.structs import OffsetAndMetadata
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from consumers.judge import service
from consumers.judge.asking.judge import Judge
from consumers.judge.ledger import Answered
from consumers.judge.open_offsets import OpenOffsets
from consumers.judge.service import MAX_REFUSED_LINES, JudgeWorker, VerdictWriteError
from consumers.runtime.kafka.connection import KafkaSettings
from consumers.runtime.polling.commits import Commits
from consumers.runtime.registry import Instruments
from schemas.judging import REPLY_PARTITION_HEADER, JudgeRequest, JudgeVerdict
from schemas.undecodable import UndecodableRecord
from tests.support.brokers.record_bytes import stand_in
from tests.support.calls.judge_questions import ScriptedEndpoint, answer, judge_settings, question
from tests.support.patience import patient

P0, P1 = TopicPartition("judge.requests", 0), TopicPartition("judge.requests", 1)


class Record(NamedTuple):
    value: bytes | None
    offset: int
    partition: int = 0
    headers: tuple[tuple[str, bytes], ...] = ()
    key: bytes = b"c-1"
    topic: str = "judge.requests"


def record_of(asked: JudgeRequest, offset: int, partition: int = 0, **headers: str) -> Record:
    named = tuple((name, value.encode()) for name, value in headers.items())
    return Record(asked.model_dump_json().encode(), offset, partition, named)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(patient(5)):
        while not condition():  # noqa: ASYNC110 - the condition has no event, and is a few steps away
            await asyncio.sleep(0)


class FakeConsumer:
    def __init__(self) -> None:
        self.commits: list[dict[int, int]] = []
        self.sought: dict[int, int] = {}
        self.paused: set[int] = set()
        self.error: Exception | None = None
        self.start = 0

    def pause(self, *partitions: TopicPartition) -> None:
        self.paused |= {tp.partition for tp in partitions}

    def resume(self, *partitions: TopicPartition) -> None:
        self.paused -= {tp.partition for tp in partitions}

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self.sought[partition.partition] = offset

    async def beginning_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)

    async def committed(self, partition: TopicPartition) -> int | None:
        last = [commit[partition.partition] for commit in self.commits if partition.partition in commit]
        return last[-1] if last else self.start or None

    async def commit(self, offsets: dict[TopicPartition, OffsetAndMetadata]) -> None:
        if self.error is not None:
            raise self.error
        self.commits.append({tp.partition: at.offset for tp, at in offsets.items()})


class FakeProducer:
    def __init__(self) -> None:
        self.sent: list[tuple[JudgeVerdict, int | None, dict[str, str]]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: Exception | None = None

    async def send_and_wait(self, topic: str, value: bytes, key: bytes, partition: int | None, headers: Any) -> None:
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        verdict = JudgeVerdict.model_validate_json(value)
        assert (topic, key.decode()) == ("judge.verdicts", verdict.conversation_id)
        self.sent.append((verdict, partition, {name: text.decode() for name, text in headers}))


class FakeSubscription:
    def __init__(self, consumer: FakeConsumer) -> None:
        self.consumer = consumer
        self.failures: list[Exception] = []

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], seconds: float) -> bool:
        return await Commits(None).commit(self.consumer, offsets, seconds)

    def fail(self, error: Exception) -> None:
        self.failures.append(error)


class House:
    """A worker with a made-up broker, and the parts it was made with. The ledger holds `recalled`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.endpoint = ScriptedEndpoint(lambda _: answer("C"))
        self.consumer, self.producer = FakeConsumer(), FakeProducer()
        self.subscription = FakeSubscription(self.consumer)
        self.recalled: list[JudgeVerdict] = []
        self.reads = 0
        self.ledger_gate = asyncio.Event()
        self.ledger_gate.set()
        self.instruments = Instruments(CollectorRegistry(), ["judge"])
        monkeypatch.setattr(
            service, "Judge", lambda given, counted, redactor: Judge(given, counted, self.endpoint, redactor)
        )
        monkeypatch.setattr(service, "read_verdicts", self._read_verdicts)
        self.worker = JudgeWorker(KafkaSettings(), judge_settings(), self.instruments, group_id="judges")
        monkeypatch.setattr(self.worker, "_subscription", self.subscription)
        monkeypatch.setattr(self.worker, "_producer", self.producer)
        monkeypatch.setattr(self.worker, "_reply_partitions", 4)

    async def _read_verdicts(self, _kafka: Any, _questions: Any, _from_ms: int, _overlap_ms: int, recall: Any) -> None:
        self.reads += 1
        await self.ledger_gate.wait()
        for verdict in self.recalled:
            recall(verdict)

    async def assigned(self, *partitions: TopicPartition) -> None:
        await self.worker.on_partitions_assigned(set(partitions))
        assert self.worker._loading is not None
        await self.worker._loading

    async def take(self, *records: Record | UndecodableRecord) -> None:
        await self.worker._take(records)

    async def until_written(self, count: int) -> None:
        await until(lambda: len(self.producer.sent) >= count)

    async def committed(self) -> dict[int, int]:
        await self.worker._commit(1)
        return {number: offset for commit in self.consumer.commits for number, offset in commit.items()}


@pytest.fixture
async def house(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[House]:
    async with _running(House(monkeypatch)) as made:
        yield made


@asynccontextmanager
async def _running(made: House) -> AsyncIterator[House]:
    judging = asyncio.create_task(made.worker._judge.run())
    try:
        yield made
    finally:
        judging.cancel()
        for task in made.worker._writing:
            task.cancel()
        await asyncio.gather(judging, *made.worker._writing, return_exceptions=True)


async def test_an_offset_is_committed_when_all_before_it_are_answered(house: House) -> None:
    await house.assigned(P0)
    house.endpoint.gate.clear()
    slow, quick = question(subgoal_id="slow"), question(subgoal_id="quick", deadline_ms=1)
    await house.take(record_of(slow, 0), record_of(quick, 1), Record(b"junk", 2))
    await house.until_written(1)
    assert await house.committed() == {0: 0}
    house.endpoint.gate.set()
    await house.until_written(2)
    assert await house.committed() == {0: 3}


async def test_a_question_whose_answer_is_not_taken_is_not_committed(house: House) -> None:
    await house.assigned(P0)
    house.producer.gate.clear()
    await house.take(record_of(question(), 7))
    await house.endpoint.until_asked(3)
    assert await house.committed() == {0: 7}
    house.producer.error = KafkaTimeoutError()
    house.producer.gate.set()
    await until(lambda: bool(house.subscription.failures))
    (failure,) = house.subscription.failures
    assert isinstance(failure, VerdictWriteError)
    assert "asks it again" in str(failure)
    assert await house.committed() == {0: 7}


async def test_the_answer_goes_where_the_question_says_and_says_where_it_stood(house: House) -> None:
    await house.assigned(P1)
    ids = [question(subgoal_id=name) for name in "abcd"]
    named = {REPLY_PARTITION_HEADER: "3"}
    await house.take(
        record_of(ids[0], 0, 1, **named), record_of(ids[1], 1, 1),
        record_of(ids[2], 2, 1, **{REPLY_PARTITION_HEADER: "4"}), record_of(ids[3], 3, 1, **{REPLY_PARTITION_HEADER: "x"}),
    )  # fmt: skip
    await house.until_written(4)
    found = {verdict.request_id: (partition, headers) for verdict, partition, headers in house.producer.sent}
    assert [found[asked.request_id][0] for asked in ids] == [3, None, None, None]
    assert found[ids[0].request_id][1] == {
        "ce_specversion": "1.0", "ce_id": ids[0].request_id, "ce_source": "callgauge.judge",
        "ce_type": "callgauge.judge.verdict.v1", "ce_subject": ids[0].conversation_id, "content-type": "application/json",
        "callgauge_request_partition": "1",
    }  # fmt: skip


async def test_what_was_answered_is_neither_asked_nor_written_again(house: House) -> None:
    await house.assigned(P0)
    asked = question()
    await house.take(record_of(asked, 0), record_of(asked, 1))
    await house.until_written(1)
    await house.take(record_of(asked, 2))
    assert await house.committed() == {0: 3}
    assert (len(house.endpoint.questions), len(house.producer.sent)) == (3, 1)


async def test_what_the_ledger_holds_is_not_asked(house: House) -> None:
    asked = question()
    house.recalled = [_verdict_on(asked)]
    await house.assigned(P0)
    await house.take(record_of(asked, 0))
    assert await house.committed() == {0: 1}
    assert (house.endpoint.questions, house.producer.sent) == ([], [])


async def test_nothing_is_read_before_the_ledger_is(house: House) -> None:
    house.ledger_gate.clear()
    house.consumer.start = 5
    await house.worker.on_partitions_assigned({P0})
    assert house.consumer.paused == {0}
    assert house.worker.problems()
    await house.take(record_of(question(), 6))
    house.ledger_gate.set()
    assert house.worker._loading is not None
    await house.worker._loading
    assert (house.consumer.paused, house.consumer.sought) == (set(), {0: 5})
    assert house.endpoint.questions == []
    assert house.worker.problems() == ()


async def test_a_partition_that_stays_ours_loses_no_work_and_pays_for_none_twice(house: House) -> None:
    await house.assigned(P0, P1)
    house.endpoint.gate.clear()
    stays, goes = question(subgoal_id="stays"), question(subgoal_id="goes")
    await house.take(record_of(stays, 0), record_of(goes, 0, 1))
    await house.endpoint.until_asked(6)
    await house.worker.on_partitions_revoked({P0, P1})
    house.endpoint.gate.set()
    await house.assigned(P0)
    await house.take(record_of(stays, 0))  # read again from the committed offset
    await house.until_written(1)
    assert [verdict.request_id for verdict, _, _ in house.producer.sent] == [stays.request_id]
    assert await house.committed() == {0: 1, 1: 0}
    assert len(house.endpoint.questions) == 6
    assert house.reads == 2


async def test_no_verdict_goes_out_while_partitions_are_shared_out(house: House) -> None:
    """A question that is answered meanwhile may be another judge's by now."""
    await house.assigned(P0)
    house.endpoint.gate.clear()
    asked = question()
    await house.take(record_of(asked, 0))
    await house.endpoint.until_asked(3)
    await house.worker.on_partitions_revoked({P0})
    house.endpoint.gate.set()
    await until(lambda: bool(house.worker._writing))
    await asyncio.sleep(0)
    assert house.producer.sent == []
    await house.assigned(P1)
    await until(lambda: not house.worker._writing)
    assert house.producer.sent == []


async def test_what_is_another_judge_s_is_not_asked_on(house: House) -> None:
    await house.assigned(P0)
    house.endpoint.gate.clear()
    await house.take(record_of(question(), 0))
    await house.endpoint.until_asked(3)
    await house.worker.on_partitions_revoked({P0})
    await house.assigned(P1)
    await until(lambda: house.endpoint._at_once == 0)


async def test_a_verdict_that_another_judge_has_written_is_not_written_again(house: House) -> None:
    await house.assigned(P0)
    house.endpoint.gate.clear()
    asked = question()
    await house.take(record_of(asked, 0))
    await house.endpoint.until_asked(3)
    await house.worker.on_partitions_revoked({P0})
    house.endpoint.gate.set()
    await until(lambda: bool(house.worker._writing))
    house.recalled = [_verdict_on(asked)]
    await house.assigned(P0)
    await house.take(record_of(asked, 0))
    await until(lambda: not house.worker._writing)
    assert house.producer.sent == []
    assert await house.committed() == {0: 1}


def _verdict_on(asked: JudgeRequest) -> JudgeVerdict:
    return JudgeVerdict.model_validate(
        {**asked.model_dump(include={"conversation_id", "turn", "kind", "input_hash", "prompt_version", "request_id"}),
         "timestamp": 1, "result": {"outcome": "judged", "is_completed": True}}
    )  # fmt: skip


async def test_what_is_no_question_is_told_and_counted_and_not_without_end(house: House) -> None:
    await house.assigned(P0)
    with capture_logs() as lines:
        await house.take(*(Record(b"{}", offset) for offset in range(MAX_REFUSED_LINES + 5)))
    refused = [line for line in lines if line["event"] == "question_refused"]
    assert len(refused) == MAX_REFUSED_LINES
    assert {"conversation_id": "c-1", "topic": "judge.requests", "partition": 0, "offset": 0}.items() <= refused[
        0
    ].items()
    assert [line["records"] for line in lines if line["event"] == "more_questions_refused"] == [5]
    value = house.instruments.registry.get_sample_value("callgauge_judge_questions_refused_total")
    assert value == MAX_REFUSED_LINES + 5
    assert await house.committed() == {0: MAX_REFUSED_LINES + 5}


async def test_questions_that_the_client_cannot_decode_are_passed(house: House) -> None:
    await house.assigned(P0)
    with capture_logs() as lines:
        await house.take(stand_in("judge.requests", 0, 6), record_of(question(), 7))
    assert [line["reason"][:26] for line in lines if line["event"] == "question_refused"] == [
        "judge.requests[0]@0 to @6:"
    ]
    await until(lambda: len(house.producer.sent) == 1)
    await until(lambda: not house.worker._writing)
    assert await house.committed() == {0: 8}


@pytest.mark.parametrize("value", [None, b"", b"-1", b"x", b"9" * 5_000, b"99"])
async def test_a_reply_partition_that_is_none_harms_nobody(house: House, value: bytes | None) -> None:
    await house.assigned(P0)
    asked = question().model_dump_json().encode()
    headers: Any = ((REPLY_PARTITION_HEADER, value),)
    await house.take(Record(asked, 0, headers=headers))
    await until(lambda: len(house.producer.sent) == 1)


async def test_a_commit_that_fails_is_made_up_for_by_the_next(house: House) -> None:
    await house.assigned(P0)
    await house.take(Record(b"junk", 0))
    house.consumer.error = CommitFailedError()
    with capture_logs() as lines:
        await house.worker._commit(1)
    assert [line["event"] for line in lines] == ["commit_failed"]
    house.consumer.error = None
    assert await house.committed() == {0: 1}
    await house.worker._commit(1)
    assert len(house.consumer.commits) == 1, "what is committed is not committed again"


async def test_what_is_being_asked_is_answered_before_it_leaves(house: House) -> None:
    await house.assigned(P0)
    house.endpoint.gate.clear()
    await house.take(record_of(question(), 0))
    await house.endpoint.until_asked(3)
    finishing = asyncio.create_task(house.worker._finish())
    house.endpoint.gate.set()
    await finishing
    await house.worker._hand_over()
    assert len(house.producer.sent) == 1
    assert house.consumer.commits[-1] == {0: 1}


def test_offsets_of_partitions_that_are_gone_are_forgotten() -> None:
    offsets = OpenOffsets()
    offsets.begin_partition(P0, 3)
    offsets.begin_partition(P1, 0)
    for offset in (3, 4, 5):
        offsets.read(P0, offset)
    offsets.answered(P0, 4)
    assert offsets.to_commit() == {P0: 3, P1: 0}
    offsets.answered(P0, 3)
    assert offsets.to_commit() == {P0: 5, P1: 0}
    offsets.keep_only({P1})
    offsets.answered(P0, 5)
    assert (offsets.to_commit(), offsets.is_ours(P0)) == ({P1: 0}, False)


def test_the_memory_of_answers_is_bounded() -> None:
    answered = Answered(2)
    for name in "abc":
        answered.add(name)
    assert [name in answered for name in "abc"] == [False, True, True]
