"""Polls that fail: tried again, counted, logged as often as it matters, and a reason to restart when it lasts."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import SimpleNamespace
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
from consumers.runtime.kafka.connection import KafkaSettings, murmur2_place
from consumers.runtime.kafka.polling import (
    ENOUGH_BYTES,
    MAX_FAILING_SECONDS,
    POLL_MS,
    Commits,
    Placement,
    PollWatch,
    Subscription,
    Unreadable,
)
from consumers.runtime.registry import Instruments
from schemas.topics import JUDGE_VERDICTS_TOPIC, SOURCE_BY_TOPIC
from tests.support.brokers.record_bytes import stand_in
from tests.support.fakes.evaluator_fakes import AUDIT, PIPECAT
from tests.support.fakes.evaluator_fakes import Record as KeyedRecord
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


class MisledClient:
    """The client underneath: whom it believes to lead, and how often it was made to look."""

    def __init__(self, leaders: dict[TopicPartition, int]) -> None:
        self.leaders = leaders
        self.cluster = self
        self.looks = 0

    def leader_for_partition(self, tp: TopicPartition) -> int | None:
        return self.leaders.get(tp)

    def force_metadata_update(self) -> None:
        self.looks += 1


async def test_who_reads_from_a_former_leader_looks_until_it_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, unknown, not_ours = (TopicPartition("scores", number) for number in range(4))
    client = MisledClient({first: 1, second: 2, not_ours: 1})
    made = subscription([])
    made.read_from({first: 2})  # not started yet
    consumer = SimpleNamespace(_client=client, assignment=lambda: frozenset({first, second, unknown}))
    monkeypatch.setattr(made, "_subscriber", SimpleNamespace(consumer=consumer))
    made.read_from({first: 1, second: -1, unknown: 3, not_ours: 3})
    assert client.looks == 0, "nobody leads, nothing is known yet, or it is not ours"
    with capture_logs() as lines:
        for _ in range(3):
            made.read_from({first: 3, second: 2})
        assert client.looks == 3
        client.leaders[first] = 3
        made.read_from({first: 3, second: 2})
    assert client.looks == 3
    assert [(line["event"], line["partitions"]) for line in lines] == [("reads_from_former_leader", ["scores[0]"])]


# Records on another partition than their key's hash gives: counted by source, logged once, and nothing more.


PARTITIONS = 6
KEYS = [f"call-{number}".encode() for number in range(30)]
HASHES_IN_JAVA = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536, b"abc": 479470107}
"""As in the tests of Kafka's own Utils.murmur2."""


class Topology:
    """Knows every topic, but for the unknown one."""

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return None if topic == "unknown" else set(range(PARTITIONS))


class Looking:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        sources = SOURCE_BY_TOPIC | {"unknown": SOURCE_BY_TOPIC[PIPECAT]}
        self.placement = Placement(sources, Instruments(self.registry, ["evaluator"]))

    def look(self, *runs: Sequence[KeyedRecord]) -> None:
        self.placement.look(runs, Topology())

    def counted(self, source: str) -> float | None:
        return self.registry.get_sample_value("callgauge_misplaced_records_total", {"source": source})


def run_of(topic: str, number: int, keys: Sequence[bytes | None]) -> list[KeyedRecord]:
    return [KeyedRecord(topic, offset, key=key, partition=number) for offset, key in enumerate(keys)]


@pytest.mark.parametrize(("key", "hashed"), HASHES_IN_JAVA.items())
def test_places_are_those_of_java(key: bytes, hashed: int) -> None:
    assert murmur2_place(key, PARTITIONS) == (hashed & 0x7FFFFFFF) % PARTITIONS


def test_what_lies_where_its_key_says_is_not_counted() -> None:
    looking = Looking()
    with capture_logs() as logged:
        for number in range(PARTITIONS):
            here = [key for key in KEYS if murmur2_place(key, PARTITIONS) == number]
            looking.look(run_of(PIPECAT, number, here * 2)) if here else None
    assert (looking.counted("pipecat"), logged) == (0, [])


def test_each_record_elsewhere_counts_for_its_source_and_the_first_is_logged() -> None:
    looking = Looking()
    here = next(key for key in KEYS if murmur2_place(key, PARTITIONS) == 2)
    elsewhere = next(key for key in KEYS if murmur2_place(key, PARTITIONS) == 5)
    with capture_logs() as logged:
        for _ in range(2):
            looking.look(
                run_of(PIPECAT, 2, [here, elsewhere, here, elsewhere]), run_of(AUDIT, 2, [here]),
            )  # fmt: skip
    assert [looking.counted(source) for source in ("pipecat", "audit")] == [4, 0]
    (told,) = logged
    assert (told["event"], told["record"]) == ("record_misplaced", f"{PIPECAT}[2]@1")
    assert (told["conversation_id"], told["expected"]) == (
        elsewhere.decode(), "partition 5 of 6, by murmur2 of the key",
    )  # fmt: skip


@pytest.mark.parametrize("topic", [JUDGE_VERDICTS_TOPIC, "unknown"])
def test_verdicts_and_topics_that_the_client_does_not_know_yet_are_not_looked_at(topic: str) -> None:
    looking = Looking()
    with capture_logs() as logged:
        looking.look(run_of(topic, 0, KEYS))
    assert (looking.counted("pipecat"), logged) == (0, [])


def test_a_record_without_a_key_belongs_nowhere() -> None:
    looking = Looking()
    looking.look(run_of(PIPECAT, 0, [None, b""]))
    assert looking.counted("pipecat") == 0
