"""Polls that fail: tried again, counted, logged as often as it matters, and a reason to restart
when it lasts.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiokafka
import anyio
import pytest
import yaml
from aiokafka import OffsetAndMetadata, TopicPartition
from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.errors import (
    ConsumerStoppedError,
    KafkaConnectionError,
    TopicAuthorizationFailedError,
)
from faststream.kafka import TestKafkaBroker
from faststream.specification import AsyncAPI
from prometheus_client import CollectorRegistry
from pydantic import TypeAdapter

from consumers.runtime.kafka import polling as poll_watch
from consumers.runtime.kafka.connection import KafkaSettings
from consumers.runtime.kafka.polling import (
    ENOUGH_BYTES,
    GATHER_MS,
    MAX_FAILING_SECONDS,
    POLL_MS,
    GroupCommits,
    GroupReader,
    PollWatch,
)
from consumers.runtime.received import Batch, Received, RecordPlace, Unreadable
from consumers.runtime.registry import Instruments
from tests.support.brokers.record_bytes import stand_in
from tests.support.fakes.broker_records import BrokerRecord
from tests.support.known import Logged
from tests.support.patience import patient


class Watched:
    """A watch on a clock that the test moves."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.now = 1_000.0
        self.watch = PollWatch(
            "evaluator", Instruments(self.registry, ["evaluator", "exporter"]), lambda: self.now
        )

    def fail_for(self, seconds: float, error: Exception) -> None:
        """Fails once a second, at the beginning and at the end too."""
        end = self.now + seconds
        self.watch.failed(error)
        while self.now < end:
            self.now += 1.0
            self.watch.failed(error)


@pytest.fixture
def watched() -> Watched:
    return Watched()


def poll_of(outcome: tuple[Any, ...] | Exception) -> Callable[[], Awaitable[tuple[Any, ...]]]:
    async def poll() -> tuple[Any, ...]:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return poll


async def test_a_poll_goes_through_and_a_failure_is_an_empty_one(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poll_watch, "RETRY_SECONDS", 0)
    assert await watched.watch.watched(poll_of(("record",))) == ("record",)
    assert (
        watched.registry.get_sample_value("callgauge_poll_failures_total", {"role": "evaluator"})
        == 0
    )
    assert await watched.watch.watched(poll_of(ZeroDivisionError())) == ()
    assert (
        watched.registry.get_sample_value("callgauge_poll_failures_total", {"role": "evaluator"})
        == 1
    )
    with pytest.raises(ConsumerStoppedError):
        await watched.watch.watched(poll_of(ConsumerStoppedError()))


def test_it_is_logged_at_once_and_then_each_thirty_seconds_with_its_place(
    watched: Watched, logged: Logged
) -> None:
    error = ZeroDivisionError("boom")
    error.add_note("pipecat.events[3]@17")
    watched.fail_for(65, error)
    assert [(line["event"], line["role"], line["record"], line["failures"]) for line in logged] == [
        ("kafka_poll_failed", "evaluator", "pipecat.events[3]@17", failures)
        for failures in (1, 30, 30)
    ]


@pytest.mark.parametrize("error", [ZeroDivisionError(), TopicAuthorizationFailedError()])
def test_it_stalls_when_that_lasts_and_is_well_when_it_is_over(
    watched: Watched, error: Exception
) -> None:
    watched.fail_for(MAX_FAILING_SECONDS, error)
    assert watched.watch.stalled() == ()
    watched.fail_for(1, error)
    assert watched.watch.stalled() == ("evaluator: its polls of Kafka have failed for 31 s",)
    watched.now += 11
    assert watched.watch.stalled() == ()
    watched.fail_for(5, error)
    assert watched.watch.stalled() == (), "another time, counted from its own beginning"


def test_a_broker_that_is_away_is_no_stall(watched: Watched) -> None:
    watched.fail_for(1_000, KafkaConnectionError())
    assert watched.watch.stalled() == ()


# No commit goes on while a member joins its group.


OURS = {TopicPartition("a", 0)}
OFFSETS = {TopicPartition("a", 0): OffsetAndMetadata(7, "")}


class Client:
    """A client that commits once it may, and tries until then."""

    def __init__(self) -> None:
        self.may = asyncio.Event()
        self.committed: list[Mapping[TopicPartition, OffsetAndMetadata]] = []

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        await self.may.wait()
        self.committed.append(offsets)


class Owner(ConsumerRebalanceListener):  # type: ignore[misc]  # the library has no type hints
    """Commits at a revocation and at an assignment."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.commits = GroupCommits(self)
        self.heard: list[str] = []

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        self.heard.append(f"revoked {len(revoked)}")
        await self.commit()

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        self.heard.append(f"assigned {len(assigned)}")
        await self.commit()

    async def commit(self, seconds: float = 60) -> None:
        await self.commits.commit(self.client, OFFSETS, seconds)


async def test_the_owner_hands_over_and_begins_with_a_commit() -> None:
    client = Client()
    client.may.set()
    owner = Owner(client)
    await owner.commits.on_partitions_revoked(OURS)
    await owner.commits.on_partitions_assigned(OURS)
    assert owner.heard == ["revoked 1", "assigned 1"]
    assert client.committed == [OFFSETS, OFFSETS]


async def test_a_commit_takes_no_longer_than_it_may() -> None:
    with pytest.raises(TimeoutError):
        await Owner(Client()).commit(0.01)


async def test_an_open_commit_ends_with_the_revocation_and_none_begins_before_the_assignment() -> (
    None
):
    client = Client()
    commits = GroupCommits(None)
    open_commit = asyncio.create_task(commits.commit(client, OFFSETS, 60))
    await asyncio.sleep(0)
    async with asyncio.timeout(patient(5)):
        await commits.on_partitions_revoked(OURS)
        with pytest.raises(TimeoutError):
            await open_commit
    client.may.set()
    assert not await commits.commit(client, OFFSETS, 60)
    assert client.committed == []
    await commits.on_partitions_assigned(OURS)
    assert await commits.commit(client, OFFSETS, 60)
    assert client.committed == [OFFSETS]


async def test_a_hand_over_that_fails_keeps_no_commit_going() -> None:
    class Failing(ConsumerRebalanceListener):  # type: ignore[misc]  # the library has no type hints
        async def on_partitions_revoked(self, _revoked: Any) -> None:
            raise ZeroDivisionError

        async def on_partitions_assigned(self, _assigned: Any) -> None: ...

    commits = GroupCommits(Failing())
    open_commit = asyncio.create_task(commits.commit(Client(), OFFSETS, 60))
    await asyncio.sleep(0)
    with pytest.raises(ZeroDivisionError):
        await commits.on_partitions_revoked(OURS)
    with pytest.raises(TimeoutError):
        await open_commit


# A topic that is read with FastStream: what it swallows by itself ends reading, and what a stranger
# wrote does not.


NUMBERS = TypeAdapter(list[int]).validate_json


def readable(offset: int = 0) -> BrokerRecord:
    return BrokerRecord(offset=offset, value=b"[1]")


class Handled:
    """A reader of lists of numbers, whose handler keeps its batches, or fails."""

    def __init__(
        self, error: Exception | None = None, decode: Callable[[bytes], list[int]] = NUMBERS
    ) -> None:
        self.batches: list[Batch[list[int]]] = []
        self.error = error
        self.came = asyncio.Event()
        self.registry = CollectorRegistry()
        self.reader = GroupReader(
            KafkaSettings(),
            "exporter",
            "scores",
            self.handle,
            message=list[int],
            decode=decode,
            group_id="g",
            max_records=10,
            begins="earliest",
            instruments=Instruments(self.registry, ["exporter"]),
        )

    async def handle(self, batch: Batch[list[int]]) -> None:
        self.batches.append(batch)
        self.came.set()
        if self.error is not None:
            raise self.error

    async def take(self, *records: Any) -> None:
        """Hands records over as a poll does."""
        async with TestKafkaBroker(self.reader.broker):
            await self.reader.subscriber.process_message(records)

    @property
    def failed_polls(self) -> float | None:
        return self.registry.get_sample_value("callgauge_poll_failures_total", {"role": "exporter"})


async def test_a_published_record_comes_with_its_place() -> None:
    handled = Handled()
    async with TestKafkaBroker(handled.reader.broker) as broker:
        await broker.publish(
            b"[1, 2]", "scores", key=b"c-7", partition=3, timestamp_ms=17, headers={"x": "1"}
        )
    assert handled.batches == [[Received(RecordPlace("scores", 3, 0, 17, b"c-7"), [1, 2])]]


async def test_a_record_of_another_type_stops_no_other_of_its_batch() -> None:
    handled = Handled()
    gone = stand_in("scores", 4, 6)
    odd = BrokerRecord(value=b"[3]", headers=[("x", b"\xff\xfe")])
    await handled.take(
        BrokerRecord(), odd, gone, BrokerRecord(value=None), BrokerRecord(value=b"\xff")
    )
    (batch,) = handled.batches
    assert [message for _, message in batch[:-1]] == [
        Unreadable("1 validation error for list[int]"),
        [3],
        Unreadable(str(gone), gone.what_to_do),
        None,
    ]
    assert isinstance(batch[-1].message, Unreadable)
    assert batch[2].place == RecordPlace("scores", 0, 6, gone.timestamp, None)
    assert not handled.reader.has_failed


async def test_the_first_failure_ends_reading_and_later_batches_are_dropped(logged: Logged) -> None:
    handled = Handled(ZeroDivisionError("boom"))
    await handled.take(readable(7), readable(8))
    await handled.take(readable())
    assert len(handled.batches) == 1
    handled.reader.fail(ValueError("second"))
    with pytest.raises(ZeroDivisionError, match="boom"):
        await handled.reader.failure()
    (line,) = logged
    assert (line["event"], line["role"], line["offset"], line["records"]) == (
        "batch_failed",
        "exporter",
        7,
        2,
    )
    assert handled.failed_polls == 0


async def test_a_fault_of_the_decoder_ends_reading_too(logged: Logged) -> None:
    def decode(_value: bytes) -> list[int]:
        raise ZeroDivisionError

    handled = Handled(decode=decode)
    await handled.take(readable())
    assert [line["event"] for line in logged] == ["batch_failed"]
    with pytest.raises(ZeroDivisionError):
        await handled.reader.failure()
    assert handled.batches == []


async def test_nothing_runs_between_a_poll_and_its_handler() -> None:
    """The position has moved by then, and a commit in between would skip the records."""
    handled = Handled()
    async with TestKafkaBroker(handled.reader.broker):
        handling = handled.reader.subscriber.process_message((readable(),))
        with pytest.raises(StopIteration):
            handling.send(None)
    assert len(handled.batches) == 1


class FakeConsumer:
    """A client whose polls have given outcomes, then nothing."""

    def __init__(self, *outcomes: tuple[Any, ...] | Exception) -> None:
        self.outcomes = list(outcomes)
        self.options: dict[str, Any] = {}
        self.polls: list[dict[str, Any]] = []

    def __call__(self, **options: Any) -> "FakeConsumer":
        self.options = options
        return self

    def subscribe(self, **_: Any) -> None: ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def getmany(self, **options: Any) -> dict[TopicPartition, tuple[Any, ...]]:
        self.polls.append(options)
        await asyncio.sleep(0)
        outcome = self.outcomes.pop(0) if self.outcomes else ()
        if isinstance(outcome, Exception):
            raise outcome
        return {TopicPartition("scores", 0): outcome} if outcome else {}


class Polling:
    """A client that FastStream polls, and the pauses it makes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pauses: list[float] = []
        self._monkeypatch = monkeypatch
        monkeypatch.setattr(anyio, "sleep", self._pause)

    async def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await asyncio.sleep(0)

    @asynccontextmanager
    async def started(
        self, handled: Handled, *outcomes: tuple[Any, ...] | Exception
    ) -> AsyncIterator[FakeConsumer]:
        consumer = FakeConsumer(*outcomes)
        self._monkeypatch.setattr(aiokafka, "AIOKafkaConsumer", consumer)
        await handled.reader.start()
        try:
            async with asyncio.timeout(patient(5)):
                yield consumer
        finally:
            await handled.reader.stop()


@pytest.fixture
def polling(monkeypatch: pytest.MonkeyPatch) -> Polling:
    return Polling(monkeypatch)


async def test_a_poll_that_kafka_refuses_is_counted_told_and_tried_again(
    polling: Polling, logged: Logged
) -> None:
    handled = Handled()
    async with polling.started(
        handled, TopicAuthorizationFailedError("scores"), KafkaConnectionError(), (readable(),)
    ):
        await handled.came.wait()
    assert handled.failed_polls == 2
    assert polling.pauses[:2] == [5, 5]
    assert [line["event"] for line in logged] == ["kafka_poll_failed"]
    assert not handled.reader.has_failed


async def test_it_stalls_when_kafka_refuses_its_polls_for_long(
    polling: Polling, monkeypatch: pytest.MonkeyPatch
) -> None:
    handled = Handled()
    assert handled.reader.stalled() == ()
    monkeypatch.setattr(
        handled.reader, "_watch", PollWatch("exporter", clock=lambda: 5.0 * len(polling.pauses))
    )
    refused = [TopicAuthorizationFailedError("scores")] * 8
    async with polling.started(handled, *refused, (readable(),)):
        await handled.came.wait()
        assert handled.reader.stalled() == ("exporter: its polls of Kafka have failed for 35 s",)


async def test_any_other_fault_of_a_poll_ends_reading_each_time(polling: Polling) -> None:
    """FastStream says so once an hour, and polls again at once, for ever."""
    for _ in range(2):
        handled = Handled()
        async with polling.started(
            handled, UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
        ):
            with pytest.raises(UnicodeDecodeError):
                await handled.reader.failure()
        assert handled.failed_polls == 1


async def test_records_gather_at_the_broker_and_an_empty_poll_delays_nothing_for_longer(
    polling: Polling,
) -> None:
    handled = Handled()
    async with polling.started(handled, (), (readable(),)) as consumer:
        await handled.came.wait()
    assert consumer.polls[0] == {"timeout_ms": POLL_MS, "max_records": 10}
    assert polling.pauses[0] == POLL_MS / 1_000
    told = {
        "fetch_max_wait_ms": GATHER_MS,
        "fetch_min_bytes": ENOUGH_BYTES,
        "auto_offset_reset": "earliest",
    }
    assert told.items() <= consumer.options.items()
    ours = {"enable_auto_commit": False, "isolation_level": "read_committed", "group_id": "g"}
    assert ours.items() <= consumer.options.items()


async def test_there_is_no_client_before_the_start() -> None:
    handled = Handled()
    with pytest.raises(RuntimeError, match="not started"):
        _ = handled.reader.consumer
    await handled.reader.stop()


def test_asyncapi_shows_one_record_of_its_topic() -> None:
    document = yaml.safe_load(AsyncAPI(Handled().reader.broker).to_specification().to_yaml())
    assert document["channels"]["scores:exporter"]["address"] == "scores"
    (payload,) = document["components"]["schemas"].values()
    assert (payload["type"], payload["items"]) == ("array", {"type": "integer"})
