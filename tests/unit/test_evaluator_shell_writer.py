"""Writing scores: in order, bounded on the way, and never forgetting that something was not acknowledged."""

import asyncio
from collections import deque
from typing import Any

import pytest
from aiokafka.errors import KafkaTimeoutError, MessageSizeTooLargeError
from prometheus_client import CollectorRegistry

from consumers.evaluator.score_writer import ScoreWriter, WriteError
from consumers.runtime.kafka import KafkaSettings
from consumers.runtime.registry import Instruments
from schemas.codec import RefusalReason
from schemas.quarantine import QuarantineRecord
from schemas.scores import SCORE_RECORD, AnyScoreRecord
from tests.unit.test_evaluator_shell_partition import fact


class FakeProducer:
    """Keeps what was sent; each record is acknowledged when the test says so."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes, bytes, int | None]] = []
        self.acknowledgements: list[asyncio.Future[None]] = []
        self.has_room = asyncio.Event()
        self.has_room.set()
        self.error: Exception | None = None
        self.stops_after: asyncio.Event | None = None

    async def send(self, topic: str, value: bytes, *, key: bytes, partition: int | None) -> "asyncio.Future[None]":
        await self.has_room.wait()
        if self.error is not None:
            raise self.error
        self.sent.append((topic, value, key, partition))
        self.acknowledgements.append(asyncio.get_running_loop().create_future())
        return self.acknowledgements[-1]

    async def stop(self) -> None:
        if self.stops_after is not None:
            await self.stops_after.wait()

    def acknowledge_all(self) -> None:
        for acknowledgement in self.acknowledgements:
            if not acknowledgement.done():
                acknowledgement.set_result(None)


class Writing:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, max_unacknowledged: int = 100) -> None:
        self.registry = CollectorRegistry()
        self.producer = FakeProducer()
        kafka = KafkaSettings(topic_prefix="t.")
        self.writer = ScoreWriter(kafka, Instruments(self.registry, ["evaluator"]), max_unacknowledged)
        monkeypatch.setattr(self.writer, "_producer", self.producer)

    @property
    def keys(self) -> list[str]:
        return [key.decode() for _, _, key, _ in self.producer.sent]


def outbox_of(*conversation_ids: str) -> deque[AnyScoreRecord]:
    return deque(fact(conversation_id) for conversation_id in conversation_ids)


async def until_idle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_scores_go_to_their_partition_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    writing = Writing(monkeypatch)
    outbox = outbox_of("c-1", "c-2", "c-1")
    await writing.writer.write_scores(3, outbox)
    assert [(topic, key, partition) for topic, _, key, partition in writing.producer.sent] == [
        ("t.scores", b"c-1", 3), ("t.scores", b"c-2", 3), ("t.scores", b"c-1", 3),
    ]  # fmt: skip
    assert SCORE_RECORD.validate_json(writing.producer.sent[0][1]) == fact("c-1")
    assert not outbox
    assert writing.registry.get_sample_value("callgauge_scores_published_total", {"kind": "fact"}) == 3


async def test_refused_records_go_to_quarantine(monkeypatch: pytest.MonkeyPatch) -> None:
    writing = Writing(monkeypatch)
    record = QuarantineRecord(
        topic="t.audit.events", partition=1, offset=7, key="c-1", reason=RefusalReason.UNDECODABLE, what="a",
        expected_and_seen="b", what_happens_now="c", what_to_do="d", quarantined_at_ms=0,
    )  # fmt: skip
    await writing.writer.write_refused(deque([record]))
    topic, value, key, partition = writing.producer.sent[0]
    assert (topic, key, partition) == ("t.quarantine", b"c-1", None)
    assert QuarantineRecord.model_validate_json(value) == record


async def test_acknowledged_waits_for_what_was_sent_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    writing = Writing(monkeypatch)
    await writing.writer.acknowledged()  # nothing is on its way
    await writing.writer.write_scores(0, outbox_of("c-1"))
    waiting = asyncio.create_task(writing.writer.acknowledged())
    await until_idle()
    assert not waiting.done()
    await writing.writer.write_scores(0, outbox_of("c-2"))
    writing.producer.acknowledgements[0].set_result(None)
    await waiting


async def test_writing_waits_when_too_much_is_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    writing = Writing(monkeypatch, max_unacknowledged=2)
    task = asyncio.create_task(writing.writer.write_scores(0, outbox_of("c-1", "c-2", "c-3")))
    await until_idle()
    assert writing.keys == ["c-1", "c-2"]
    writing.producer.acknowledge_all()
    await task
    assert writing.keys == ["c-1", "c-2", "c-3"]


@pytest.mark.parametrize("error", [MessageSizeTooLargeError("too large"), KafkaTimeoutError()])
async def test_a_record_that_cannot_be_sent_is_an_error(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    writing = Writing(monkeypatch)
    writing.producer.error = error
    with pytest.raises(WriteError, match=r"not acknowledged by 127\.0\.0\.1:9092: .*ends without committing"):
        await writing.writer.write_scores(0, outbox_of("c-1"))


async def test_a_record_that_is_not_acknowledged_is_never_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    writing = Writing(monkeypatch)
    await writing.writer.write_scores(0, outbox_of("c-1", "c-2"))
    writing.producer.acknowledgements[0].set_exception(KafkaTimeoutError())
    writing.producer.acknowledgements[1].set_result(None)
    for _ in range(2):
        with pytest.raises(WriteError):
            await writing.writer.acknowledged()
    with pytest.raises(WriteError):
        await writing.writer.write_scores(0, outbox_of("c-3"))


async def test_when_writing_is_cancelled_exactly_the_unsent_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    writing = Writing(monkeypatch)
    outbox = outbox_of("c-1", "c-2", "c-3")
    await writing.writer.write_scores(0, deque([outbox.popleft()]))
    writing.producer.has_room.clear()
    task: asyncio.Task[Any] = asyncio.create_task(writing.writer.write_scores(0, outbox))
    await until_idle()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert [record.conversation_id for record in outbox] == ["c-2", "c-3"]
    assert writing.keys == ["c-1"]


async def test_an_outbox_cleared_meanwhile_ends_the_writing(monkeypatch: pytest.MonkeyPatch) -> None:
    writing = Writing(monkeypatch)
    outbox = outbox_of("c-1", "c-2")
    writing.producer.has_room.clear()
    task = asyncio.create_task(writing.writer.write_scores(0, outbox))
    await until_idle()
    outbox.clear()
    writing.producer.has_room.set()
    await task
    assert writing.keys == ["c-1"]


async def test_nothing_is_written_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    writing = Writing(monkeypatch)
    await writing.writer.stop(1)
    await writing.writer.stop(1)
    with pytest.raises(WriteError, match="stopped"):
        await writing.writer.write_scores(0, outbox_of("c-1"))


async def test_the_end_does_not_wait_for_a_broker_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    writing = Writing(monkeypatch)
    writing.producer.stops_after = asyncio.Event()
    async with asyncio.timeout(5):
        await writing.writer.stop(0.01)
