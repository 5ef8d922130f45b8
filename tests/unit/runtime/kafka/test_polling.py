"""Polls that fail: tried again, counted, logged as often as it matters, and a reason to restart when it lasts."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

import pytest
from aiokafka import OffsetAndMetadata, TopicPartition
from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.errors import ConsumerStoppedError, KafkaConnectionError, TopicAuthorizationFailedError
from faststream.kafka import TestKafkaBroker
from prometheus_client import CollectorRegistry
from pydantic import TypeAdapter
from structlog.testing import capture_logs

from consumers.runtime.kafka import polling as poll_watch
from consumers.runtime.kafka.connection import KafkaSettings
from consumers.runtime.kafka.polling import (
    ENOUGH_BYTES,
    MAX_FAILING_SECONDS,
    POLL_MS,
    Commits,
    PollWatch,
    Subscription,
    Unreadable,
)
from consumers.runtime.registry import Instruments
from tests.support.brokers.record_bytes import stand_in
from tests.support.patience import patient


class Watched:
    """A watch on a clock that the test moves."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.now = 1_000.0
        self.watch = PollWatch("evaluator", Instruments(self.registry, ["evaluator", "exporter"]), lambda: self.now)

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
    assert watched.registry.get_sample_value("callgauge_poll_failures_total", {"role": "evaluator"}) == 0
    assert await watched.watch.watched(poll_of(ZeroDivisionError())) == ()
    assert watched.registry.get_sample_value("callgauge_poll_failures_total", {"role": "evaluator"}) == 1
    with pytest.raises(ConsumerStoppedError):
        await watched.watch.watched(poll_of(ConsumerStoppedError()))


def test_it_is_logged_at_once_and_then_each_thirty_seconds_with_its_place(watched: Watched) -> None:
    error = ZeroDivisionError("boom")
    error.add_note("pipecat.events[3]@17")
    with capture_logs() as lines:
        watched.fail_for(65, error)
    assert [(line["event"], line["role"], line["record"], line["failures"]) for line in lines] == [
        ("kafka_poll_failed", "evaluator", "pipecat.events[3]@17", failures) for failures in (1, 30, 30)
    ]


@pytest.mark.parametrize("error", [ZeroDivisionError(), TopicAuthorizationFailedError()])
def test_it_stalls_when_that_lasts_and_is_well_when_it_is_over(watched: Watched, error: Exception) -> None:
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


async def test_a_subscription_watches_its_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poll_watch, "RETRY_SECONDS", 0)

    class FailingConsumer:
        async def getmany(self, **_: Any) -> Any:
            raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")

    async def handle(_: Any) -> None: ...

    registry = CollectorRegistry()
    made = Subscription(
        KafkaSettings(), "judge", ["scores"], handle, group_id="g", max_records=10,
        instruments=Instruments(registry, ["judge"]),
    )  # fmt: skip
    assert await made._subscriber.get_msg(FailingConsumer()) == ()
    assert registry.get_sample_value("callgauge_poll_failures_total", {"role": "judge"}) == 1
    assert made.stalled() == ()


async def test_a_poll_takes_what_its_client_has_and_an_empty_one_is_not_followed_by_a_pause() -> None:
    asked: list[dict[str, Any]] = []

    class Consumer:
        async def getmany(self, **options: Any) -> Any:
            asked.append(options)
            return {"a": [1, 2], "b": [3]} if len(asked) == 1 else {}

    async def handle(_: Any) -> None: ...

    made = Subscription(KafkaSettings(), "judge", ["scores"], handle, group_id="g", max_records=10)
    async with asyncio.timeout(POLL_MS / 1_000):
        assert await made._subscriber.get_msg(Consumer()) == (1, 2, 3)
        assert await made._subscriber.get_msg(Consumer()) == ()
    assert asked == [{"timeout_ms": POLL_MS, "max_records": 10}] * 2


async def test_the_broker_is_told_how_long_records_may_gather() -> None:
    async def handle(_: Any) -> None: ...

    made = Subscription(
        KafkaSettings(), "judge", ["scores"], handle, group_id="g", max_records=10,
        poll_interval_ms=40,
    )  # fmt: skip
    options = made._subscriber._connection_args
    assert (options["fetch_max_wait_ms"], options["fetch_min_bytes"]) == (40, ENOUGH_BYTES)


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
        self.commits = Commits(self)
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


async def test_an_open_commit_ends_with_the_revocation_and_none_begins_before_the_assignment() -> None:
    client = Client()
    commits = Commits(None)
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

    commits = Commits(Failing())
    open_commit = asyncio.create_task(commits.commit(Client(), OFFSETS, 60))
    await asyncio.sleep(0)
    with pytest.raises(ZeroDivisionError):
        await commits.on_partitions_revoked(OURS)
    with pytest.raises(TimeoutError):
        await open_commit


# Failures that FastStream would swallow, and readers of a former leader.


class Record(NamedTuple):
    value: bytes | None = b"{}"
    topic: str = "scores"
    partition: int = 0
    offset: int = 0
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes]] = ()


def subscription(handled: list[Any], error: Exception | None = None) -> Subscription:
    async def handle(records: Sequence[Any]) -> None:
        handled.append(records)
        if error is not None:
            raise error

    return Subscription(KafkaSettings(), "exporter", ["scores"], handle, group_id="g", max_records=10)


async def test_records_are_handed_over_as_they_came_whatever_their_headers() -> None:
    made = subscription([])
    records = (Record(headers=[("x", b"\xff\xfe")]),)
    message = await made._wrap(records)
    assert message.raw_message is records


async def test_a_failure_ends_the_subscription_and_later_batches_are_dropped() -> None:
    handled: list[Any] = []
    error = ZeroDivisionError("boom")
    made = subscription(handled, error)
    await made._take([Record()])
    await made._take([Record()])
    assert len(handled) == 1
    with pytest.raises(ZeroDivisionError, match="boom"):
        await made.failure()


async def test_a_record_of_another_type_stops_no_other_of_its_batch() -> None:
    handled: list[Any] = []

    async def handle(received: Sequence[Any]) -> None:
        handled.extend(received)

    made = Subscription(
        KafkaSettings(), "exporter", ["scores"], handle, group_id="g", max_records=10, message=TypeAdapter(list[int])
    )
    gone = stand_in("scores", 4, 6)
    async with TestKafkaBroker(made._broker) as broker:
        await broker.publish(b"[1, 2]", "scores", headers={"x": "1"})
        await made._subscriber.process_message((Record(b"{}"), Record(b"[3]"), gone, Record(None)))
    messages = [received.message for received in handled]
    assert messages == [
        [1, 2],
        Unreadable("1 validation error for list[int]"),
        [3],
        Unreadable(str(gone)),
        None,
    ]
    assert handled[3].record is gone


async def test_the_first_failure_counts() -> None:
    made = subscription([])
    made.fail(ValueError("first"))
    made.fail(ValueError("second"))
    with pytest.raises(ValueError, match="first"):
        await made.failure()


async def test_there_is_no_client_before_the_start() -> None:
    with pytest.raises(RuntimeError, match="not started"):
        _ = subscription([]).consumer
    await subscription([]).stop()
