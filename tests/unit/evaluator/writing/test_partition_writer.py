"""Writing a partition's scores: whole groups in one transaction, counted when it is committed, and never by two at a time."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from aiokafka.errors import (
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    OutOfOrderSequenceNumber,
    ProducerFenced,
)
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from consumers.evaluator.settings import EvaluatorSettings
from consumers.evaluator.writing.outbox import MAX_TRANSACTION_RECORDS, Outbox, Written
from consumers.evaluator.writing.outgoing import LeftOut, Outgoing
from consumers.evaluator.writing.partition_writer import FencedError, PartitionWriter, RejectedWriteError, WriteError
from consumers.runtime.kafka.connection import KafkaSettings
from consumers.runtime.registry import Instruments
from schemas.closed_sets import RefusalReason
from schemas.judging import JudgeRequest
from schemas.quarantine import QuarantineRecord
from schemas.scores.all_records import SCORE_RECORD
from schemas.transcript import Transcript
from tests.support.fakes.evaluator_fakes import fact, question, until_idle
from tests.support.patience import patient

REFUSED = QuarantineRecord(
    topic="t.audit.events", partition=1, offset=7, key="c-1", reason=RefusalReason.UNDECODABLE, what="a",
    expected_and_seen="b", what_happens_now="c", what_to_do="d", quarantined_at_ms=0,
)  # fmt: skip


MARK = 77
"""The offset of a new owner's mark."""


class Sent(NamedTuple):
    topic: str
    value: bytes
    key: bytes
    partition: int | None
    headers: object = None


class FakeProducer:
    """Keeps the sent records, by transaction; fails where the test says so."""

    def __init__(self) -> None:
        self.journal: list[str] = []
        self.sent: list[Sent] = []
        self.errors: dict[str, KafkaError] = {}
        self.offset = 100
        self.may_commit = asyncio.Event()
        self.may_commit.set()
        self.may_stop = asyncio.Event()
        self.may_stop.set()
        self.most_bytes: dict[str, int] = {}
        self.sends_at_most = 10_000
        self.epochs = 1  # how far a start moves the epoch: by one, unless another owner has started meanwhile
        self._txn_manager = SimpleNamespace(producer_id=9, producer_epoch=0)

    async def start(self) -> None:
        self._do("start")
        self._txn_manager.producer_epoch += self.epochs

    async def stop(self) -> None:
        await self.may_stop.wait()
        self._do("stop")

    async def send_and_wait(self, topic: str, value: None, *, key: bytes, partition: int) -> SimpleNamespace:
        self._do("mark", f"{key.decode()} in {topic}[{partition}]: {value}")
        return SimpleNamespace(topic=topic, offset=MARK)

    async def begin_transaction(self) -> None:
        self._do("begin")

    async def send(
        self, topic: str, value: bytes, *, key: bytes, partition: int | None, headers: object
    ) -> "asyncio.Future[Any]":
        if len(value) > self.sends_at_most:
            raise MessageSizeTooLargeError
        self._do("send", key.decode())
        self.sent.append(Sent(topic, value, key, partition, headers))
        acknowledged: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if (error := self.errors.get("acknowledge")) is not None:
            acknowledged.set_exception(error)
        elif len(value) > self.most_bytes.get(topic, len(value)):
            acknowledged.set_exception(MessageSizeTooLargeError())
        else:
            acknowledged.set_result(SimpleNamespace(topic=topic, offset=self.offset))
            self.offset += 1
        return acknowledged

    async def commit_transaction(self) -> None:
        await self.may_commit.wait()
        self._do("commit")

    async def abort_transaction(self) -> None:
        self._do("abort")

    def _do(self, what: str, of: str = "") -> None:
        if (error := self.errors.get(what)) is not None:
            raise error
        self.journal.append(of or what)


class Writing:
    """A writer of partition 3 with a fake producer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, is_embedded: bool = False, **settings: Any) -> None:
        self.registry = CollectorRegistry()
        self.outbox = Outbox()
        self.producer = FakeProducer()
        self.asked: dict[str, Any] = {}
        self.is_fenced = False
        monkeypatch.setattr(KafkaSettings, "producer", self._producer)
        kafka = KafkaSettings(topic_prefix="t.", is_embedded=is_embedded)
        evaluator = EvaluatorSettings(**({"group_id": "g", "write_interval_ms": 0} | settings))
        instruments = Instruments(self.registry, ["evaluator"])
        self.writer = PartitionWriter(3, self.outbox, kafka, evaluator, instruments)

    def _producer(self, role: str, **asked: Any) -> FakeProducer:
        self.asked = {"role": role, **asked}
        return self.producer

    def put(self, *groups: str) -> None:
        """Each word is a group; its letters are conversations."""
        for group in groups:
            self.outbox.put(tuple(fact(letter) for letter in group))

    async def fence(self) -> None:
        """Fences, so that only later steps go into the journal, or fail."""
        await self.writer.fence()
        self.producer.journal.clear()
        self.is_fenced = True

    async def run(self) -> "asyncio.Task[None]":
        if not self.is_fenced:
            await self.fence()
        running = asyncio.create_task(self.writer.run())
        await until_idle()
        return running

    @property
    def published(self) -> float | None:
        return self.registry.get_sample_value("callgauge_scores_published_total", {"kind": "fact"})


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Writing]:
    return lambda **settings: Writing(monkeypatch, **settings)


async def ended(running: "asyncio.Task[None]") -> None:
    running.cancel()
    await asyncio.wait([running])


async def test_the_producer_has_the_groups_and_the_partitions_name(make: Callable[..., Writing]) -> None:
    writing = make(transaction_timeout_ms=5_000)
    await writing.writer.fence()
    assert writing.asked == {"role": "evaluator-3", "transactional_id": "g-3", "transaction_timeout_ms": 5_000}
    assert writing.producer.journal == ["start", "begin", "callgauge-owner in t.scores[3]: None", "commit"]


async def test_the_fence_ends_behind_everything_that_a_former_owner_wrote(make: Callable[..., Writing]) -> None:
    """A transaction of our own ends there, so a reader past its mark has read everything."""
    writing = make()
    assert await writing.writer.fence() == MARK + 1
    assert writing.writer.scores_end is None  # it is no score
    assert writing.published == 0


@pytest.mark.parametrize("settings", [{"is_embedded": True}, {"uses_transactions": False}])
async def test_without_transactions_there_is_no_mark(make: Callable[..., Writing], settings: dict[str, Any]) -> None:
    writing = make(**settings)
    assert await writing.writer.fence() == 0
    assert writing.producer.journal == ["start"]


@pytest.mark.parametrize("where", ["start", "begin", "mark", "commit"])
async def test_a_fence_that_fails_leaves_a_producer_that_can_be_stopped(
    make: Callable[..., Writing], where: str
) -> None:
    writing = make()
    writing.producer.errors[where] = KafkaConnectionError("gone")
    with pytest.raises(KafkaConnectionError):
        await writing.writer.fence()
    await writing.writer.stop(1)
    assert writing.producer.journal[-1] == "stop"


async def test_what_gathers_goes_in_one_transaction(make: Callable[..., Writing]) -> None:
    writing = make()
    await writing.fence()
    writing.producer.may_commit.clear()
    writing.put("a")
    running = await writing.run()
    writing.put("b", "cd")
    writing.put("e")
    await until_idle()
    assert writing.producer.journal == ["begin", "a"]
    writing.producer.may_commit.set()
    await writing.outbox.until_written()
    assert writing.producer.journal == ["begin", "a", "commit", "begin", "b", "c", "d", "e", "commit"]
    await ended(running)


async def test_scores_go_to_their_own_partition_and_refused_records_anywhere(make: Callable[..., Writing]) -> None:
    writing = make()
    writing.outbox.put((fact("c-2"),))
    writing.outbox.put((REFUSED,))
    running = await writing.run()
    score, refused = writing.producer.sent
    assert (score.topic, score.key, score.partition) == ("t.scores", b"c-2", 3)
    assert SCORE_RECORD.validate_json(score.value) == fact("c-2")
    assert (refused.topic, refused.key, refused.partition) == ("t.quarantine", b"c-1", None)
    assert QuarantineRecord.model_validate_json(refused.value) == REFUSED
    assert writing.published == 1  # a refused record is no score
    await ended(running)


async def test_a_transcript_goes_to_its_topic_in_the_transaction_of_the_closing(make: Callable[..., Writing]) -> None:
    writing = make()
    writing.outbox.put((Transcript("c-2", b'[{"role":"user"}]'), fact("c-2")))
    running = await writing.run()
    assert writing.producer.journal == ["begin", "c-2", "c-2", "commit"]
    transcript, closed = writing.producer.sent
    assert transcript == ("t.transcripts", b'[{"role":"user"}]', b"c-2", None, None)
    assert closed.topic == "t.scores"
    assert writing.published == 1, "it is no score"
    assert writing.registry.get_sample_value("callgauge_transcripts_published_total") == 1
    assert writing.writer.scores_end == 102
    await ended(running)


async def test_a_call_is_closed_in_one_transaction_however_much_goes_with_it(make: Callable[..., Writing]) -> None:
    writing = make()
    closing = "x" * (MAX_TRANSACTION_RECORDS + 1)
    writing.put("a", closing, "b")
    running = await writing.run()
    await writing.outbox.until_written()
    assert writing.producer.journal == ["begin", "a", *closing, "commit", "begin", "b", "commit"]
    await ended(running)


async def test_nothing_is_written_and_nothing_counted_before_the_commit(make: Callable[..., Writing]) -> None:
    writing = make()
    await writing.fence()
    writing.producer.may_commit.clear()
    writing.put("a", "b")
    running = await writing.run()
    assert writing.producer.journal == ["begin", "a", "b"]
    assert writing.outbox.records == 2
    assert writing.published == 0
    ends = [writing.writer.scores_end]
    writing.producer.may_commit.set()
    await writing.outbox.until_written()
    assert writing.published == 2
    assert [*ends, writing.writer.scores_end] == [None, 102]
    await ended(running)


async def test_where_scores_end_is_not_where_quarantine_ends(make: Callable[..., Writing]) -> None:
    writing = make()
    writing.outbox.put((REFUSED,))
    running = await writing.run()
    ends = [writing.writer.scores_end]
    writing.put("a")
    writing.outbox.put((REFUSED,))
    await writing.outbox.until_written()
    assert [*ends, writing.writer.scores_end] == [None, 102]  # `a` is at 101
    await ended(running)


@pytest.mark.parametrize("where", ["begin", "send", "acknowledge", "commit"])
@pytest.mark.parametrize("error", [ProducerFenced(), OutOfOrderSequenceNumber()])
async def test_who_is_fenced_off_has_written_nothing(
    make: Callable[..., Writing], where: str, error: KafkaError
) -> None:
    writing = make()
    await writing.fence()
    writing.producer.errors[where] = error
    writing.put("ab")
    running = await writing.run()
    with pytest.raises(FencedError, match="partition 3 is written by another evaluator"):
        await running
    assert writing.outbox.records == 2
    assert writing.published == 0
    assert writing.writer.scores_end is None


@pytest.mark.parametrize("where", ["begin", "send", "acknowledge", "commit"])
@pytest.mark.parametrize("error", [MessageSizeTooLargeError("too large"), KafkaTimeoutError()])
async def test_what_cannot_be_written_ends_the_writing(
    make: Callable[..., Writing], where: str, error: KafkaError
) -> None:
    writing = make()
    await writing.fence()
    writing.producer.errors[where] = error
    writing.put("ab")
    running = await writing.run()
    with pytest.raises(
        WriteError, match=r"partition 3 were not taken by 127\.0\.0\.1:9092: .* ends without committing"
    ):
        await running
    assert writing.outbox.records == 2
    assert writing.published == 0


# Records that a topic does not take because of their size.

LARGE_TRANSCRIPT = Transcript("c-2", b"[" + b" " * 2_000 + b"]")
LARGE_QUESTION = question("c-2").model_copy(update={"subgoal": "Done. " * 300})
LARGE_REFUSED = REFUSED.model_copy(update={"what": "a" * 2_000})
LARGE: dict[str, tuple[str, Written]] = {
    "transcript": ("t.transcripts", LARGE_TRANSCRIPT),
    "judge_request": ("t.judge.requests", LARGE_QUESTION),
    "quarantine_record": ("t.quarantine", LARGE_REFUSED),
}


@pytest.mark.parametrize("limit", LARGE)
@pytest.mark.parametrize("refuses", ["broker", "client"])
async def test_what_is_too_large_is_left_out_counted_and_told_and_the_rest_is_written(
    make: Callable[..., Writing], limit: str, refuses: str
) -> None:
    writing = make()
    topic, large = LARGE[limit]
    if refuses == "broker":
        writing.producer.most_bytes[topic] = 1_000
    else:
        writing.producer.sends_at_most = 1_000
    writing.outbox.put((fact("before"),))
    writing.outbox.put((large, fact("closed")))
    with capture_logs() as logged:
        running = await writing.run()
        await writing.outbox.until_written()
    sent = [writing.producer.sent[1].key.decode()] if refuses == "broker" else []
    assert writing.producer.journal == [
        "begin", "before", *sent, "closed", "abort", "stop", "start", "begin", "before", "closed", "commit",
    ]  # fmt: skip
    assert writing.registry.get_sample_value("callgauge_limits_hit_total", {"limit": limit}) == 1
    assert writing.published == 2
    assert writing.registry.get_sample_value("callgauge_transcripts_published_total") == 0
    (line,) = logged
    assert (line["event"], line["topic"], line["partition"], line["records"]) == (
        "record_too_large_to_write",
        topic,
        3,
        1,
    )
    assert line["largest_bytes"] > 1_800
    assert line["what_to_do"].startswith(f"Set max.message.bytes=1048576 on {topic}")
    await ended(running)


async def test_what_is_taken_of_its_kind_goes_with_the_rest(make: Callable[..., Writing]) -> None:
    writing = make()
    writing.producer.most_bytes["t.transcripts"] = 1_000
    writing.outbox.put((Transcript("c-1", b"[]"), fact("c-1")))
    writing.outbox.put((LARGE_TRANSCRIPT, fact("c-2")))
    with capture_logs() as logged:
        running = await writing.run()
        await writing.outbox.until_written()
    begin = writing.producer.journal.index("abort")
    assert writing.producer.journal[begin:] == ["abort", "stop", "start", "begin", "c-1", "c-1", "c-2", "commit"]
    assert writing.registry.get_sample_value("callgauge_transcripts_published_total") == 1
    assert [line["conversation_id"] for line in logged] == ["c-2"]
    await ended(running)


async def test_a_storm_of_what_is_too_large_is_one_line(make: Callable[..., Writing]) -> None:
    writing = make()
    writing.producer.most_bytes["t.quarantine"] = 1_000
    for _ in range(30):
        writing.outbox.put((LARGE_REFUSED,))
    with capture_logs() as logged:
        running = await writing.run()
        await writing.outbox.until_written()
    assert [(line["event"], line["records"]) for line in logged] == [("record_too_large_to_write", 30)]
    assert writing.registry.get_sample_value("callgauge_limits_hit_total", {"limit": "quarantine_record"}) == 30
    await ended(running)


@pytest.mark.parametrize("refuses", ["broker", "client"])
async def test_a_score_is_never_left_out(make: Callable[..., Writing], refuses: str) -> None:
    writing = make()
    if refuses == "broker":
        writing.producer.most_bytes["t.scores"] = 10
    await writing.fence()
    writing.producer.sends_at_most = 10_000 if refuses == "broker" else 10
    writing.put("a")
    running = await writing.run()
    with pytest.raises(
        WriteError, match=r"a score of \d+ bytes is too large for t\.scores\. Set max\.message\.bytes=1048576"
    ):
        await running
    assert writing.outbox.records == 1
    assert writing.producer.journal[-1] == "abort"
    assert writing.registry.get_sample_value("callgauge_limits_hit_total", {"limit": "transcript"}) == 0


async def test_nothing_is_written_when_the_partition_had_another_owner_while_the_producer_was_replaced(
    make: Callable[..., Writing],
) -> None:
    """A new producer fences off every holder of the id, also the rightful owner, which recalled records that we had not written."""
    writing = make()
    writing.producer.most_bytes["t.transcripts"] = 1_000
    await writing.fence()
    writing.producer.epochs = 2
    writing.outbox.put((LARGE_TRANSCRIPT, fact("c-2")))
    running = await writing.run()
    with pytest.raises(FencedError, match="partition 3 was written by another evaluator in between"):
        await running
    assert writing.producer.journal[-2:] == ["stop", "start"]
    assert writing.outbox.records == 2
    assert writing.published == 0


@pytest.mark.parametrize(("error", "raised"), [(ProducerFenced(), FencedError), (KafkaTimeoutError(), WriteError)])
async def test_a_transaction_that_cannot_be_aborted_ends_the_writing(
    make: Callable[..., Writing], error: KafkaError, raised: type[Exception]
) -> None:
    writing = make()
    writing.producer.most_bytes["t.transcripts"] = 1_000
    writing.producer.errors["abort"] = error
    writing.outbox.put((LARGE_TRANSCRIPT, fact("c-2")))
    running = await writing.run()
    with pytest.raises(raised):
        await running
    assert writing.outbox.records == 2


@pytest.mark.parametrize("settings", [{"is_embedded": True}, {"uses_transactions": False}])
async def test_without_transactions_what_is_too_large_ends_the_writing(
    make: Callable[..., Writing], settings: dict[str, Any]
) -> None:
    """The records written before it cannot be taken back and must not be written again."""
    writing = make(**settings)
    writing.producer.most_bytes["t.transcripts"] = 1_000
    writing.outbox.put((LARGE_TRANSCRIPT, fact("c-2")))
    running = await writing.run()
    with pytest.raises(WriteError):
        await running
    assert writing.producer.journal == ["c-2", "c-2"]


async def test_it_says_since_when_it_writes(make: Callable[..., Writing]) -> None:
    writing = make()
    await writing.fence()
    since = [writing.writer.writing_since]
    writing.producer.may_commit.clear()
    writing.put("a")
    running = await writing.run()
    since.append(writing.writer.writing_since)
    writing.producer.may_commit.set()
    await writing.outbox.until_written()
    since.append(writing.writer.writing_since)
    assert [each is None for each in since] == [True, False, True]
    await ended(running)


@pytest.mark.parametrize("settings", [{"is_embedded": True}, {"uses_transactions": False}])
async def test_without_transactions_records_are_written_one_by_one(
    make: Callable[..., Writing], settings: dict[str, Any]
) -> None:
    writing = make(write_interval_ms=60_000, **settings)
    writing.put("a", "bc")
    running = await writing.run()
    assert writing.asked["transactional_id"] is None
    assert writing.outbox.records == 0
    writing.put("d")  # and nothing waits for company
    async with asyncio.timeout(patient(5)):
        await writing.outbox.until_written()
    assert writing.producer.journal == ["a", "b", "c", "d"]
    assert writing.writer.scores_end == 104
    await ended(running)


async def test_the_next_transaction_waits_for_company(
    make: Callable[..., Writing], monkeypatch: pytest.MonkeyPatch
) -> None:
    writing = make(write_interval_ms=100)
    pauses: list[float] = []
    goes_on = asyncio.Event()

    async def wait(seconds: float) -> None:
        pauses.append(seconds)
        await goes_on.wait()

    monkeypatch.setattr("asyncio.sleep", wait)
    writing.put("a")
    running = await writing.run()
    assert len(pauses) == 1
    assert 0 < pauses[0] <= 0.1
    writing.put("b")
    await until_idle()
    assert writing.producer.journal == ["begin", "a", "commit"]
    goes_on.set()
    await writing.outbox.until_written()
    assert writing.producer.journal[3:] == ["begin", "b", "commit"]
    await ended(running)


async def test_a_whole_transaction_of_records_waits_for_nobody(
    make: Callable[..., Writing], monkeypatch: pytest.MonkeyPatch
) -> None:
    writing = make(write_interval_ms=100)
    waits = asyncio.Event()

    async def wait(_: float) -> None:
        waits.set()
        await asyncio.Event().wait()

    monkeypatch.setattr("asyncio.sleep", wait)
    writing.put("a" * MAX_TRANSACTION_RECORDS, "b" * MAX_TRANSACTION_RECORDS, "c")
    running = await writing.run()
    await waits.wait()
    assert writing.producer.journal.count("commit") == 2
    assert writing.outbox.records == 1
    await ended(running)


async def test_nothing_is_written_before_the_fence_and_after_the_end(make: Callable[..., Writing]) -> None:
    writing = make()
    writing.put("a")
    with pytest.raises(WriteError, match="not started, or stopped"):
        await writing.writer.run()
    await writing.fence()
    await writing.writer.stop(1)
    await writing.writer.stop(1)
    with pytest.raises(WriteError, match="not started, or stopped"):
        await writing.writer.run()
    assert writing.producer.journal == ["stop"]


async def test_the_end_does_not_wait_for_a_broker_for_ever(make: Callable[..., Writing]) -> None:
    writing = make()
    await writing.writer.fence()
    writing.producer.may_stop.clear()
    with capture_logs() as logged:
        async with asyncio.timeout(patient(5)):
            await writing.writer.stop(0.01)
    assert [(line["event"], line["partition"]) for line in logged] == [("producer_not_stopped", 3)]


async def test_a_producer_that_cannot_be_stopped_is_told(make: Callable[..., Writing]) -> None:
    writing = make()
    await writing.writer.fence()
    writing.producer.errors["stop"] = ProducerFenced()
    with capture_logs() as logged:
        await writing.writer.stop(1)
    assert [(line["event"], line["partition"]) for line in logged] == [("producer_not_stopped", 3)]


async def test_what_is_given_up_in_the_middle_of_a_transaction_is_not_written(make: Callable[..., Writing]) -> None:
    writing = make()
    await writing.fence()
    writing.producer.may_commit.clear()
    writing.put("a")
    running = await writing.run()
    writing.outbox.clear()
    await ended(running)
    writing.producer.may_commit.set()
    await until_idle()
    assert writing.producer.journal == ["begin", "a"]
    assert writing.published == 0


async def test_a_question_is_written_with_where_its_answer_belongs(make: Callable[..., Writing]) -> None:
    writing = make()
    writing.outbox.put((question("c-1"),))
    running = await writing.run()
    (sent,) = writing.producer.sent
    assert (sent.topic, sent.key, sent.partition) == ("t.judge.requests", b"c-1", None)
    assert sent.headers == [("callgauge_reply_partition", b"3")]
    assert JudgeRequest.model_validate_json(sent.value) == question("c-1")
    assert writing.producer.journal == ["begin", "c-1", "commit"]
    running.cancel()


# Records that the partition can do without, in a transaction of their own.

APART = [
    Outgoing("t.snapshots", b"g/3", value, None, [("id", b"1")], None, LeftOut("snapshot", ""))
    for value in (b"a", b"bb")
]


async def test_what_is_written_apart_goes_in_a_transaction_of_its_own(make: Callable[..., Writing]) -> None:
    writing = make()
    await writing.fence()
    assert [each.offset for each in await writing.writer.write_apart(APART)] == [100, 101]
    assert writing.producer.journal == ["begin", "g/3", "g/3", "commit"]
    assert writing.producer.sent[0] == ("t.snapshots", b"a", b"g/3", None, [("id", b"1")])
    assert writing.writer.scores_end is None


async def test_scores_and_what_is_written_apart_do_not_meet(make: Callable[..., Writing]) -> None:
    writing = make()
    await writing.fence()
    writing.producer.may_commit.clear()
    apart = asyncio.create_task(writing.writer.write_apart(APART))
    await until_idle()
    writing.put("a")
    running = await writing.run()
    assert writing.producer.journal == ["begin", "g/3", "g/3"]
    writing.producer.may_commit.set()
    await apart
    await writing.outbox.until_written()
    assert writing.producer.journal == ["begin", "g/3", "g/3", "commit", "begin", "a", "commit"]
    await ended(running)


@pytest.mark.parametrize("error", [MessageSizeTooLargeError(), KafkaTimeoutError()])
@pytest.mark.parametrize("where", ["send", "acknowledge"])
async def test_what_is_not_taken_apart_leaves_the_writer_as_it_was(
    make: Callable[..., Writing], where: str, error: KafkaError
) -> None:
    writing = make()
    await writing.fence()
    writing.producer.errors[where] = error
    with pytest.raises(RejectedWriteError):
        await writing.writer.write_apart(APART)
    assert writing.producer.journal[-3:] == ["abort", "stop", "start"]
    writing.producer.errors.clear()
    running = await writing.run()
    writing.put("a")
    await writing.outbox.until_written()
    assert writing.producer.journal[-3:] == ["begin", "a", "commit"]
    await ended(running)


@pytest.mark.parametrize("where", ["begin", "send", "acknowledge", "commit"])
async def test_who_is_fenced_off_writes_nothing_apart(make: Callable[..., Writing], where: str) -> None:
    writing = make()
    await writing.fence()
    writing.producer.errors[where] = ProducerFenced()
    with pytest.raises(FencedError):
        await writing.writer.write_apart(APART)


async def test_what_is_not_known_to_be_written_apart_is_no_success(make: Callable[..., Writing]) -> None:
    writing = make()
    await writing.fence()
    writing.producer.errors["commit"] = KafkaTimeoutError()
    with pytest.raises(WriteError):
        await writing.writer.write_apart(APART)


@pytest.mark.parametrize("settings", [{"is_embedded": True}, {"uses_transactions": False}])
async def test_without_transactions_nothing_is_written_apart(
    make: Callable[..., Writing], settings: dict[str, Any]
) -> None:
    writing = make(**settings)
    await writing.fence()
    with pytest.raises(RejectedWriteError):
        await writing.writer.write_apart(APART)
    assert writing.producer.sent == []
