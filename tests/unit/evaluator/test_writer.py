"""Writing a partition's scores: whole decisions and the row behind them in one transaction, counted
when it is committed, and never by two at a time.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple, get_args
from unittest import mock

import pytest
from aiokafka.errors import (
    IllegalOperation,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    OutOfOrderSequenceNumber,
    ProducerFenced,
    UnknownError,
)
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from consumers.engine.effects import (
    Count,
    Effect,
    NotUnderstood,
    PublishRow,
    PublishTranscript,
    PublishWords,
    RequestVerdict,
)
from consumers.evaluator import decisions as outbox_module
from consumers.evaluator.decisions import (
    MAX_TRANSACTION_RECORDS,
    Outbox,
    Outlet,
    Trip,
    Written,
    carry_out,
)
from consumers.evaluator.settings import EvaluatorSettings
from consumers.evaluator.writer import Claims, FencedError, WriteError, Writer
from consumers.runtime.kafka.connection import KafkaSettings
from consumers.runtime.process import end_tasks
from consumers.runtime.registry import Instruments
from schemas.closed_sets import InputSource, MisreadReason, RefusalReason
from schemas.events.codec import Misread
from schemas.judging import JudgeRequest
from schemas.metrics.process import STEP_METRIC
from schemas.owners import PartitionRow, row_in, writer_in
from schemas.quarantine import QuarantineRecord
from schemas.rows import CallRow, TurnRow, WordsRow, decode, decode_words
from schemas.transcript import Transcript
from tests.support.fakes.evaluator_fakes import (
    call_row,
    moment,
    question,
    row,
    until_idle,
    waiting_in,
)
from tests.support.known import Logged
from tests.support.patience import patient

REFUSED = QuarantineRecord(
    topic="t.audit.events",
    partition=1,
    offset=7,
    key="c-1",
    reason=RefusalReason.UNDECODABLE,
    what="a",
    expected_and_seen="b",
    what_happens_now="c",
    what_to_do="d",
    quarantined_at_ms=0,
)


class Sent(NamedTuple):
    topic: str
    value: bytes | None
    key: bytes
    partition: int | None
    headers: Any


class FakeProducer:
    """Keeps the sent records, by transaction; fails where the test says so. Offsets count up,
    whatever the topic.
    """

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
        self.mark_headers: list[Any] = []
        # how far a start moves the epoch: by one, unless another owner has started meanwhile
        self.epochs = 1
        self._txn_manager = SimpleNamespace(producer_id=9, producer_epoch=0)

    async def start(self) -> None:
        self._do("start")
        self._txn_manager.producer_epoch += self.epochs

    async def stop(self) -> None:
        await self.may_stop.wait()
        self._do("stop")

    async def begin_transaction(self) -> None:
        self._do("begin")

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes,
        partition: int | None,
        headers: Any = None,
    ) -> "asyncio.Future[Any]":
        acknowledged: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        metadata = SimpleNamespace(topic=topic, offset=self.offset, timestamp=1_000 + self.offset)
        self.offset += 1
        if value is None and row_in(headers or ()) is None:
            self.mark_headers.append(headers)
            self._do("mark", f"{key.decode()} in {topic}[{partition}]")
            acknowledged.set_result(metadata)
            return acknowledged
        if len(value or b"") > self.sends_at_most:
            raise MessageSizeTooLargeError
        self._do("send", "row" if value is None else key.decode())
        self.sent.append(Sent(topic, value, key, partition, headers))
        if (error := self.errors.get("acknowledge")) is not None:
            acknowledged.set_exception(error)
        elif value is not None and len(value) > self.most_bytes.get(topic, len(value)):
            acknowledged.set_exception(MessageSizeTooLargeError())
        else:
            acknowledged.set_result(metadata)
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

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        self.registry = CollectorRegistry()
        self.producer = FakeProducer()
        self.asked: dict[str, Any] = {}
        self.is_started = False
        self.runs: list[asyncio.Task[None]] = []
        monkeypatch.setattr(KafkaSettings, "producer", self._producer)
        kafka = KafkaSettings(topic_prefix="t.")
        evaluator = EvaluatorSettings(**({"group_id": "g", "write_interval_ms": 0} | settings))
        instruments = Instruments(self.registry, ["evaluator"])
        self.outbox = Outbox(evaluator.write_interval_ms / 1_000)
        self.writer = Writer(kafka, evaluator, instruments, self.outbox)
        self.claims = Claims(kafka, evaluator)
        self.outlet = Outlet(3, kafka.topic, self.outbox)

    def _producer(self, role: str, **asked: Any) -> FakeProducer:
        self.asked = {"role": role, **asked}
        return self.producer

    def put(self, *decisions: str) -> None:
        """Each word is a decision; its letters are conversations."""
        for each in decisions:
            self.decide(*map(moment, each))

    def decide(self, *records: Written, place: int = 0) -> None:
        """A step of partition 3."""
        self.outlet.put(records, row(place))

    async def until_written(self) -> None:
        async with asyncio.timeout(patient(5)):
            await self.outbox.until(lambda: not self.outbox.is_filled)

    async def start(self) -> None:
        """Connects, so that only later steps go into the journal, or fail."""
        await self.writer.start()
        self.producer.journal.clear()
        self.is_started = True

    async def run(self) -> "asyncio.Task[None]":
        """Begins to write; the end of the test ends it."""
        if not self.is_started:
            await self.start()
        running = asyncio.create_task(self.writer.run())
        self.runs.append(running)
        await until_idle()
        return running

    async def write(self) -> None:
        """Writes what waits."""
        running = await self.run()
        await self.until_written()
        await ended(running)

    @property
    def rows(self) -> list[PartitionRow | None]:
        return [row_in(sent.headers or ()) for sent in self.producer.sent if sent.value is None]

    @property
    def published(self) -> float | None:
        return self.registry.get_sample_value("callgauge_scores_published_total", {"kind": "turn"})


@pytest.fixture
async def make(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[..., Writing]]:
    made: list[Writing] = []

    def one(**settings: Any) -> Writing:
        made.append(Writing(monkeypatch, **settings))
        return made[-1]

    yield one
    await end_tasks(running for each in made for running in each.runs)


@pytest.fixture
def writing(make: Callable[..., Writing]) -> Writing:
    return make()


async def ended(running: "asyncio.Task[None]") -> None:
    running.cancel()
    await asyncio.wait([running])


async def test_a_claim_is_a_transaction_under_the_partitions_name_that_names_the_writer(
    make: Callable[..., Writing],
) -> None:
    writing = make(transaction_timeout_ms=5_000)
    assert await writing.claims.claim(3, "w-1") == 101
    assert writing.asked == {
        "role": "evaluator-claim",
        "transactional_id": "g-3",
        "transaction_timeout_ms": 5_000,
    }
    assert writing.producer.journal == [
        "start",
        "begin",
        "callgauge-owner in t.scores[3]",
        "commit",
        "stop",
    ]
    assert [writer_in(each) for each in writing.producer.mark_headers] == ["w-1"]
    assert writing.published == 0, "they are no scores"


async def test_a_fence_is_a_transaction_under_the_writers_name_in_all_of_its_partitions(
    writing: Writing,
) -> None:
    await writing.claims.fence("w-1", [3, 4])
    assert writing.asked["transactional_id"] == "w-1"
    marks = [
        f"callgauge-owner in {topic}[{number}]" for number in (3, 4) for topic in ("t.scores",)
    ]
    assert writing.producer.journal == ["start", "begin", *marks, "commit", "stop"]
    assert [writer_in(each or ()) for each in writing.producer.mark_headers] == [None] * 2


@pytest.mark.parametrize("where", ["start", "begin", "mark", "commit"])
async def test_a_claim_that_fails_leaves_no_producer_behind(writing: Writing, where: str) -> None:
    writing.producer.errors[where] = KafkaConnectionError("gone")
    with pytest.raises(KafkaConnectionError):
        await writing.claims.claim(3, "w-1")
    assert writing.producer.journal[-1] == "stop"


def _fenced_in_a_way_that_the_client_does_not_know() -> KafkaError:
    error = KafkaError("Unexpected error during batch delivery")
    error.__cause__ = UnknownError()
    return error


@pytest.mark.parametrize(
    "error",
    [
        ProducerFenced(),
        IllegalOperation("not in transaction"),
        _fenced_in_a_way_that_the_client_does_not_know(),
    ],
)
async def test_a_claim_that_another_one_overtakes_is_told(
    writing: Writing, error: KafkaError
) -> None:
    writing.producer.errors["commit"] = error
    with pytest.raises(FencedError, match="another process claimed them at the same moment"):
        await writing.claims.claim(3, "w-1")
    assert writing.producer.journal[-1] == "stop"


async def test_each_writer_has_an_id_of_its_own_that_the_groups_rights_cover(
    make: Callable[..., Writing],
) -> None:
    other, one = make(), make(transaction_timeout_ms=5_000)
    assert one.writer.id != other.writer.id
    assert one.writer.id.startswith("g-writer-")
    await one.writer.start()
    assert one.asked == {
        "role": "evaluator",
        "transactional_id": one.writer.id,
        "transaction_timeout_ms": 5_000,
    }


async def test_all_partitions_share_a_transaction_and_each_has_its_row(writing: Writing) -> None:
    other = Outlet(4, KafkaSettings(topic_prefix="t.").topic, writing.outbox)
    writing.put("a")
    other.put([moment("b")], row(2))
    await writing.run()
    await writing.until_written()
    assert writing.producer.journal == ["begin", "a", "row", "b", "row", "commit"]
    assert writing.rows == [row(0), row(2)]
    assert [
        (sent.topic, sent.key, sent.partition)
        for sent in writing.producer.sent
        if sent.value is None
    ] == [
        ("t.scores", b"callgauge-owner", 3),
        ("t.scores", b"callgauge-owner", 4),
    ]
    assert [each.place for each in (writing.outlet, other)] == [0, 2]


async def test_what_does_not_fit_into_a_transaction_comes_first_in_the_next(
    writing: Writing,
) -> None:
    other = Outlet(4, KafkaSettings(topic_prefix="t.").topic, writing.outbox)
    for _ in range(2):
        writing.put("a" * MAX_TRANSACTION_RECORDS)
    other.put([moment("b")], row())
    await writing.run()
    await writing.until_written()
    assert [what for what in writing.producer.journal if what in {"b", "commit"}] == [
        "commit",
        "commit",
        "b",
        "commit",
    ]


async def test_what_gathers_goes_in_one_transaction(writing: Writing) -> None:
    await writing.start()
    writing.producer.may_commit.clear()
    writing.put("a")
    await writing.run()
    writing.put("b", "cd")
    writing.put("e")
    await until_idle()
    assert writing.producer.journal == ["begin", "a", "row"]
    writing.producer.may_commit.set()
    await writing.until_written()
    assert writing.producer.journal == [
        "begin",
        "a",
        "row",
        "commit",
        "begin",
        *"bcde",
        "row",
        "commit",
    ]


async def test_scores_go_to_their_own_partition_and_refused_records_anywhere(
    writing: Writing,
) -> None:
    score_row = moment("c-2")
    writing.decide(score_row)
    writing.decide(REFUSED)
    await writing.run()
    score, refused, _ = writing.producer.sent
    assert (score.topic, score.key, score.partition) == ("t.scores", b"c-2", 3)
    assert decode(score.value or b"") == score_row
    assert (refused.topic, refused.key, refused.partition) == ("t.quarantine", b"c-1", None)
    assert QuarantineRecord.model_validate_json(refused.value or b"") == REFUSED
    assert writing.published == 1  # a refused record is no score


async def test_a_transcript_goes_to_its_topic_in_the_transaction_of_the_closing(
    writing: Writing,
) -> None:
    writing.decide(Transcript("c-2", b'[{"role":"user"}]'), moment("c-2"))
    await writing.run()
    assert writing.producer.journal == ["begin", "c-2", "c-2", "row", "commit"]
    transcript, closed, _ = writing.producer.sent
    assert transcript == ("t.transcripts", b'[{"role":"user"}]', b"c-2", None, None)
    assert closed.topic == "t.scores"
    assert writing.published == 1, "it is no score"
    assert writing.registry.get_sample_value("callgauge_transcripts_published_total") == 1


async def test_a_call_is_closed_in_one_transaction_however_much_goes_with_it(
    writing: Writing,
) -> None:
    closing = "x" * (MAX_TRANSACTION_RECORDS + 1)
    writing.put("a", closing, "b")
    await writing.run()
    await writing.until_written()
    assert writing.producer.journal == [
        "begin",
        "a",
        *closing,
        "row",
        "commit",
        "begin",
        "b",
        "row",
        "commit",
    ]


async def test_nothing_is_written_and_nothing_counted_before_the_commit(writing: Writing) -> None:
    await writing.start()
    writing.producer.may_commit.clear()
    writing.put("a", "b")
    await writing.run()
    assert writing.producer.journal == ["begin", "a", "b", "row"]
    assert writing.outbox.records == 2
    assert writing.published == 0
    writing.producer.may_commit.set()
    await writing.until_written()
    assert writing.published == 2


@pytest.mark.parametrize("where", ["begin", "send", "acknowledge", "commit"])
@pytest.mark.parametrize(
    "error", [ProducerFenced(), OutOfOrderSequenceNumber(), IllegalOperation()]
)
async def test_who_is_fenced_off_has_written_nothing(
    writing: Writing, where: str, error: KafkaError
) -> None:
    await writing.start()
    writing.producer.errors[where] = error
    writing.put("ab")
    running = await writing.run()
    with pytest.raises(FencedError, match="another evaluator writes partition 3"):
        await running
    assert writing.outbox.records == 2
    assert writing.published == 0


@pytest.mark.parametrize("where", ["begin", "send", "acknowledge", "commit"])
@pytest.mark.parametrize("error", [MessageSizeTooLargeError("too large"), KafkaTimeoutError()])
async def test_what_cannot_be_written_ends_the_writing(
    writing: Writing, where: str, error: KafkaError
) -> None:
    await writing.start()
    writing.producer.errors[where] = error
    writing.put("ab")
    running = await writing.run()
    with pytest.raises(
        WriteError,
        match=r"partition 3 were not taken by 127\.0\.0\.1:9092: .* ends without committing",
    ):
        await running
    assert writing.outbox.records == 2
    assert writing.published == 0


# Records that a topic does not take because of their size.

LARGE_TRANSCRIPT = Transcript("c-2", b"[" + b" " * 2_000 + b"]")
LARGE_QUESTION = question("c-2").model_copy(update={"subgoal": "Done. " * 300})
LARGE_WORDS = WordsRow(conversation_id="c-2", turn=1, user="Done. " * 300)
LARGE_REFUSED = REFUSED.model_copy(update={"what": "a" * 2_000})
LARGE: dict[str, tuple[str, Written]] = {
    "transcript": ("t.transcripts", LARGE_TRANSCRIPT),
    "judge_request": ("t.judge.requests", LARGE_QUESTION),
    "quarantine_record": ("t.quarantine", LARGE_REFUSED),
    "words": ("t.words", LARGE_WORDS),
}


async def test_words_go_to_their_own_topic_in_the_same_transaction_on_the_partition_of_their_call(
    writing: Writing,
) -> None:
    first, newest = (
        WordsRow(conversation_id="c-1", turn=1, revision=each, user="Hello") for each in (2, 4)
    )
    other = WordsRow(conversation_id="c-1", turn=2, revision=4, user="Thanks")
    writing.decide(first, moment("a"))
    writing.decide(newest, other)
    await writing.write()
    assert writing.producer.journal == ["begin", "a", "c-1", "c-1", "row", "commit"]
    words = [sent for sent in writing.producer.sent if sent.topic == "t.words"]
    assert [decode_words(sent.value or b"") for sent in words] == [newest, other]
    assert {sent.partition for sent in words} == {3}
    assert writing.published == 1, "they are no scores"


@pytest.mark.parametrize("limit", LARGE)
@pytest.mark.parametrize("refuses", ["broker", "client"])
async def test_what_is_too_large_is_left_out_counted_and_told_and_the_rest_is_written(
    writing: Writing, limit: str, refuses: str, logged: Logged
) -> None:
    topic, large = LARGE[limit]
    if refuses == "broker":
        writing.producer.most_bytes[topic] = 1_000
    else:
        writing.producer.sends_at_most = 1_000
    writing.decide(moment("before"))
    writing.decide(large, moment("closed"))
    await writing.run()
    await writing.until_written()
    sent = [writing.producer.sent[1].key.decode()] if refuses == "broker" else []
    assert writing.producer.journal == [
        "begin",
        "before",
        *sent,
        "closed",
        "row",
        "abort",
        "stop",
        "start",
        "begin",
        "before",
        "closed",
        "row",
        "commit",
    ]
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


async def test_what_is_taken_of_its_kind_goes_with_the_rest(
    writing: Writing, logged: Logged
) -> None:
    writing.producer.most_bytes["t.transcripts"] = 1_000
    writing.decide(Transcript("c-1", b"[]"), moment("c-1"))
    writing.decide(LARGE_TRANSCRIPT, moment("c-2"))
    await writing.run()
    await writing.until_written()
    begin = writing.producer.journal.index("abort")
    assert writing.producer.journal[begin:] == [
        "abort",
        "stop",
        "start",
        "begin",
        "c-1",
        "c-1",
        "c-2",
        "row",
        "commit",
    ]
    assert writing.registry.get_sample_value("callgauge_transcripts_published_total") == 1
    assert [line["conversation_id"] for line in logged] == ["c-2"]


async def test_a_storm_of_what_is_too_large_is_one_line(writing: Writing, logged: Logged) -> None:
    writing.producer.most_bytes["t.quarantine"] = 1_000
    for _ in range(30):
        writing.decide(LARGE_REFUSED)
    await writing.run()
    await writing.until_written()
    assert [(line["event"], line["records"]) for line in logged] == [
        ("record_too_large_to_write", 30)
    ]
    assert (
        writing.registry.get_sample_value(
            "callgauge_limits_hit_total", {"limit": "quarantine_record"}
        )
        == 30
    )


@pytest.mark.parametrize("refuses", ["broker", "client"])
async def test_a_score_is_never_left_out(writing: Writing, refuses: str) -> None:
    if refuses == "broker":
        writing.producer.most_bytes["t.scores"] = 10
    await writing.start()
    writing.producer.sends_at_most = 10_000 if refuses == "broker" else 10
    writing.put("a")
    running = await writing.run()
    with pytest.raises(
        WriteError,
        match=r"a record of \d+ bytes is too large for t\.scores\. Set max\.message\.bytes=1048576",
    ):
        await running
    assert writing.outbox.records == 1
    assert writing.producer.journal[-1] == "abort"
    assert (
        writing.registry.get_sample_value("callgauge_limits_hit_total", {"limit": "transcript"})
        == 0
    )


async def test_nothing_is_written_when_the_partition_had_another_owner_while_the_producer_was_replaced(
    writing: Writing,
) -> None:
    """A new producer fences off every holder of the id, also the rightful owner, which has read our
    last row.
    """
    writing.producer.most_bytes["t.transcripts"] = 1_000
    await writing.start()
    writing.producer.epochs = 2
    writing.decide(LARGE_TRANSCRIPT, moment("c-2"))
    running = await writing.run()
    with pytest.raises(FencedError, match="taken over by another evaluator in between"):
        async with asyncio.timeout(patient(5)):
            await running
    assert writing.producer.journal[-2:] == ["stop", "start"]
    assert writing.outbox.records == 2
    assert writing.published == 0


@pytest.mark.parametrize(
    ("error", "raised"), [(ProducerFenced(), FencedError), (KafkaTimeoutError(), WriteError)]
)
async def test_a_transaction_that_cannot_be_aborted_ends_the_writing(
    writing: Writing, error: KafkaError, raised: type[Exception]
) -> None:
    writing.producer.most_bytes["t.transcripts"] = 1_000
    writing.producer.errors["abort"] = error
    writing.decide(LARGE_TRANSCRIPT, moment("c-2"))
    running = await writing.run()
    with pytest.raises(raised):
        await running
    assert writing.outbox.records == 2


async def test_it_says_since_when_it_writes(writing: Writing) -> None:
    await writing.start()
    since = [writing.writer.writing_since]
    writing.producer.may_commit.clear()
    writing.put("a")
    await writing.run()
    since.append(writing.writer.writing_since)
    writing.producer.may_commit.set()
    await writing.until_written()
    since.append(writing.writer.writing_since)
    assert [each is None for each in since] == [True, False, True]


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
    await writing.run()
    assert len(pauses) == 1
    assert 0 < pauses[0] <= 0.1
    writing.put("b")
    await until_idle()
    assert writing.producer.journal == ["begin", "a", "row", "commit"]
    goes_on.set()
    await writing.until_written()
    assert writing.producer.journal[4:] == ["begin", "b", "row", "commit"]


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
    await writing.run()
    await waits.wait()
    assert writing.producer.journal.count("commit") == 2
    assert writing.outbox.records == 1


async def test_nothing_is_written_before_the_fence_and_after_the_end(writing: Writing) -> None:
    writing.put("a")
    with pytest.raises(WriteError, match="not started, or stopped"):
        await writing.writer.run()
    await writing.start()
    await writing.writer.stop(1)
    await writing.writer.stop(1)
    with pytest.raises(WriteError, match="not started, or stopped"):
        await writing.writer.run()
    assert writing.producer.journal == ["stop"]


async def test_the_end_does_not_wait_for_a_broker_for_ever(
    writing: Writing, logged: Logged
) -> None:
    await writing.writer.start()
    writing.producer.may_stop.clear()
    async with asyncio.timeout(patient(5)):
        await writing.writer.stop(0.01)
    assert [line["event"] for line in logged] == ["producer_not_stopped"]


async def test_a_producer_that_cannot_be_stopped_is_told(writing: Writing, logged: Logged) -> None:
    await writing.writer.start()
    writing.producer.errors["stop"] = ProducerFenced()
    await writing.writer.stop(1)
    assert [line["event"] for line in logged] == ["producer_not_stopped"]


async def test_what_is_given_up_in_the_middle_of_a_transaction_is_not_written(
    writing: Writing,
) -> None:
    await writing.start()
    writing.producer.may_commit.clear()
    writing.put("a")
    running = await writing.run()
    writing.outbox.forget(writing.outlet)
    await ended(running)
    writing.producer.may_commit.set()
    await until_idle()
    assert writing.producer.journal == ["begin", "a", "row"]
    assert writing.published == 0


async def test_a_question_is_written_in_the_transaction_of_its_step(writing: Writing) -> None:
    writing.decide(question("c-1"))
    await writing.run()
    sent, _ = writing.producer.sent
    assert (sent.topic, sent.key, sent.partition) == ("t.judge.requests", b"c-1", None)
    assert JudgeRequest.model_validate_json(sent.value or b"") == question("c-1")
    assert writing.producer.journal == ["begin", "c-1", "row", "commit"]


# The row of the partition.


async def test_each_transaction_ends_with_the_row_behind_its_last_decision(
    writing: Writing,
) -> None:
    writing.decide(moment("a"), place=1)
    writing.decide(place=2)
    writing.decide(moment("c"), place=3)
    await writing.write()
    writing.decide(place=9)
    await writing.write()
    assert writing.producer.journal == [
        "begin",
        "a",
        "c",
        "row",
        "commit",
        "begin",
        "row",
        "commit",
    ]
    assert writing.rows == [row(3), row(9)]
    assert {writer_in(sent.headers) for sent in writing.producer.sent if sent.value is None} == {
        writing.writer.id
    }
    assert writing.outlet.place == 9
    assert writing.published == 2


async def test_the_way_of_an_event_is_a_time_for_each_step(
    writing: Writing, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock_ms = iter((1_200, 1_207))  # a transaction begins, and is committed
    monkeypatch.setattr("consumers.evaluator.writer.wall_clock_ms", lambda: next(clock_ms))
    trip = Trip(produced=1_000, polled=1_030, folded=1_040)
    writing.outlet.put([moment("a")], row(1), trip)
    writing.outlet.put([moment("a")], row(1), trip._replace(produced=1_035))  # by a wrong clock
    writing.outlet.put([Transcript("a", b"[]")], row(1), trip)  # waits on purpose
    writing.decide(moment("b"), place=2)  # was decided as time passed
    await writing.write()
    steps = {
        step: writing.registry.get_sample_value(f"{STEP_METRIC}_sum", {"step": step})
        for step in ("polled", "folded", "written", "committed", "counted")
    }
    assert steps == pytest.approx(
        {"polled": 0.03, "folded": 0.02, "written": 0.32, "committed": 0.014, "counted": 0.0}
    )
    assert writing.registry.get_sample_value(f"{STEP_METRIC}_count", {"step": "polled"}) == 2


async def test_a_row_of_a_transaction_that_was_aborted_comes_with_the_next_attempt(
    writing: Writing,
) -> None:
    writing.producer.most_bytes["t.transcripts"] = 1_000
    writing.decide(LARGE_TRANSCRIPT, moment("a"), place=5)
    await writing.write()
    assert writing.rows == [row(5), row(5)]
    assert writing.producer.journal[-4:] == ["begin", "a", "row", "commit"]


async def test_a_place_that_was_not_written_is_none(writing: Writing) -> None:
    await writing.start()
    writing.producer.errors["commit"] = KafkaTimeoutError()
    writing.put("a")
    running = await writing.run()
    with pytest.raises(WriteError):
        await running
    assert writing.outlet.place is None


# Decisions that wait to be written stay in order and whole, and their waiters wake at the right
# moment.


PATIENCE = 600.0


def outlet_of(*decisions: str, patience_seconds: float = 0.0) -> Outlet:
    """Each word is a decision; its letters are conversations."""
    outlet = Outlet(0, KafkaSettings().topic, Outbox(patience_seconds))
    for each in decisions:
        outlet.put(map(moment, each), row())
    return outlet


def taken(outbox: Outbox, count: int) -> None:
    """So many decisions are written."""
    outbox.written(outbox.first()[:count])


def test_decisions_stay_until_they_are_written_in_order_and_whole() -> None:
    outbox = outlet_of("a", "bcd", "e").outbox
    assert waiting_in(outbox) == [["a"], ["b", "c", "d"], ["e"]]
    assert outbox.records == 5
    taken(outbox, 2)
    assert waiting_in(outbox) == [["e"]]
    assert outbox.records == 1


@given(st.lists(st.integers(0, 9), max_size=12))
def test_transactions_take_as_many_whole_decisions_as_fit_and_all_in_order(
    drawn: list[int],
) -> None:
    outlet, places = Outlet(0, KafkaSettings().topic), list[int]()
    for place, records in enumerate(drawn):
        outlet.put([moment("a") for _ in range(records)], row(place))
    with mock.patch.object(outbox_module, "MAX_TRANSACTION_RECORDS", 10):
        while decisions := outlet.outbox.first():
            was_full, is_full = (
                sum(len(each.records) for each in some) >= 10
                for some in (decisions[:-1], decisions)
            )
            assert not was_full
            places += [each.row.place for each in decisions]
            assert is_full or places == list(range(len(drawn))), "the next one would fit"
            outlet.outbox.written(decisions)
    assert places == list(range(len(drawn)))
    assert outlet.outbox.records == 0


async def sleeps(outbox: Outbox) -> "asyncio.Task[None]":
    """A writer that has nothing to write yet."""
    waiting = asyncio.create_task(outbox.until_due())
    await until_idle()
    assert not waiting.done()
    return waiting


async def wakes(waiting: "asyncio.Task[Any]") -> None:
    async with asyncio.timeout(patient(5)):
        await waiting


async def test_who_writes_sleeps_until_there_is_a_decision_though_without_a_record() -> None:
    outlet = outlet_of("a")
    await outlet.outbox.until_due()
    taken(outlet.outbox, 1)
    waiting = await sleeps(outlet.outbox)
    outlet.put((), row(1))
    await wakes(waiting)
    assert (waiting_in(outlet.outbox), outlet.outbox.records) == ([[]], 0)


@pytest.mark.parametrize(
    ("news", "is_due"),
    [
        (("turn", "wait"), True),
        (("user_turn.2",), True),
        (("dead_air.1",), True),
        (("tool.0",), True),
        (("turn", "stages.llm_first_token", "interruption.user"), False),
        (("wait_revised",), False),
        ((), False),
    ],
)
async def test_a_row_is_due_at_once_if_something_just_happened(
    news: tuple[str, ...], is_due: bool
) -> None:
    outlet = outlet_of(patience_seconds=PATIENCE)
    outlet.put([TurnRow(conversation_id="a", turn=1, news=news), call_row("a", news=())], row())
    waiting = asyncio.create_task(outlet.outbox.until_due())
    await until_idle()
    assert waiting.done() is is_due
    waiting.cancel()


async def test_of_a_transaction_only_the_last_row_of_a_turn_and_of_a_call_is_written_with_all_that_counts(
    writing: Writing,
) -> None:
    turn: dict[str, Any] = {"conversation_id": "a", "turn": 1}
    writing.decide(TurnRow(**turn, revision=2, news=("wait",)), call_row("a", revision=2))
    writing.decide(
        TurnRow(**turn | {"turn": 2}, revision=4),
        TurnRow(conversation_id="b", turn=1, news=("turn",)),
    )
    writing.decide(
        TurnRow(**turn, revision=6, news=("turn", "wait")),
        call_row("a", revision=6, news=("errors",)),
    )
    await writing.write()
    written = [decode(sent.value) for sent in writing.producer.sent if sent.value is not None]
    assert written == [
        TurnRow(**turn | {"turn": 2}, revision=4),
        TurnRow(conversation_id="b", turn=1, news=("turn",)),
        TurnRow(**turn, revision=6, news=("wait", "turn")),
        CallRow(conversation_id="a", revision=6, news=("started", "errors")),
    ]


async def test_a_moment_is_due_at_once_and_what_is_over_waits_for_one_or_for_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    over, outlet = Transcript("a", b"[]"), outlet_of(patience_seconds=PATIENCE)
    for due in (moment("a"), question("a")):
        outlet.put([over], row())
        waiting = await sleeps(outlet.outbox)
        outlet.put([due], row())
        await wakes(waiting)
        taken(outlet.outbox, 2)
    outlet.put([over], row())
    await sleeps(outlet.outbox)
    later = time.monotonic() + PATIENCE
    monkeypatch.setattr("time.monotonic", lambda: later)
    await wakes(asyncio.create_task(outlet.outbox.until_due()))


async def test_what_is_over_does_not_wait_if_it_fills_a_transaction_or_somebody_waits_for_it() -> (
    None
):
    over, outlet = Transcript("a", b"[]"), outlet_of(patience_seconds=PATIENCE)
    waiting = await sleeps(outlet.outbox)
    outlet.put([over] * MAX_TRANSACTION_RECORDS, row())
    await wakes(waiting)
    taken(outlet.outbox, 1)
    outlet.put([over], row())
    waiting = await sleeps(outlet.outbox)
    written = asyncio.create_task(outlet.outbox.until(lambda: not outlet.outbox.is_filled))
    await wakes(waiting)
    taken(outlet.outbox, 1)
    await wakes(written)
    outlet.put([over], row())
    await sleeps(outlet.outbox)


async def test_what_came_during_a_transaction_waits_for_no_more() -> None:
    outlet = outlet_of("a", patience_seconds=PATIENCE)
    outlet.put([Transcript("b", b"[]")], row())
    taken(outlet.outbox, 1)
    await wakes(asyncio.create_task(outlet.outbox.until_due()))


async def test_a_condition_that_holds_hurries_nobody() -> None:
    outlet = outlet_of(patience_seconds=PATIENCE)
    outlet.put([Transcript("b", b"[]")], row())
    await outlet.outbox.until(lambda: True)
    await sleeps(outlet.outbox)


async def test_what_is_forgotten_is_waited_for_no_longer() -> None:
    gone = outlet_of("a", "b")
    stays = Outlet(1, KafkaSettings().topic, gone.outbox)
    stays.put([moment("c")], row())
    waiting = asyncio.create_task(gone.outbox.until(lambda: gone.outbox.records < 2))
    await until_idle()
    assert not waiting.done()
    gone.outbox.forget(gone)
    await wakes(waiting)
    assert waiting_in(gone.outbox) == [["c"]]
    gone.outbox.forget(stays)
    assert (gone.outbox.records, gone.outbox.waiting_since, gone.outbox.first()) == (0, None, [])


def test_a_transaction_that_ends_after_its_partition_was_forgotten_takes_nothing_else_out() -> None:
    gone = outlet_of("a", "b")
    stays = Outlet(1, KafkaSettings().topic, gone.outbox)
    stays.put([moment("c")], row(7))
    decided = gone.outbox.first()[:2]
    gone.outbox.forget(gone)
    gone.outbox.written(decided)
    assert (waiting_in(gone.outbox), gone.outbox.records, gone.place) == ([["c"]], 1, None)
    taken(gone.outbox, 1)
    assert stays.place == 7


# Effects are carried out: records to write, and counts.

MISREAD = NotUnderstood(InputSource.AUDIT, "c-1", Misread(MisreadReason.UNKNOWN_TYPE, "x", "y"))
SAID = call_row("c-1")
WORDS = WordsRow(conversation_id="c-1", turn=2, revision=4, user="Hello")
EFFECTS: list[tuple[Effect, Sequence[Written]]] = [
    (PublishRow(SAID), [SAID]),
    (PublishWords(WORDS), [WORDS]),
    (PublishTranscript("c-1", b"[]"), [Transcript("c-1", b"[]")]),
    (Count("callgauge_late_events_total", ("audit",), 2), []),
    (RequestVerdict(question("asked")), [question("asked")]),
    (MISREAD, []),
]


@pytest.mark.parametrize(
    ("effect", "records"), EFFECTS, ids=[type(effect).__name__ for effect, _ in EFFECTS]
)
def test_each_effect_is_carried_out(effect: Effect, records: Sequence[Written]) -> None:
    registry, before = CollectorRegistry(), moment("before")
    instruments = Instruments(registry, ["evaluator"])
    written = carry_out([PublishRow(before), effect], instruments)
    assert written == [before, *records]
    late = registry.get_sample_value("callgauge_late_events_total", {"source": "audit"})
    assert late == (2 if isinstance(effect, Count) else 0)
    assert len(instruments.not_understood) == isinstance(effect, NotUnderstood)


def test_every_effect_has_a_case() -> None:
    assert {type(effect) for effect, _ in EFFECTS} == set(get_args(Effect))
