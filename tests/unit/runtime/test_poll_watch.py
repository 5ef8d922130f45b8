"""Polls that fail: tried again, counted, logged as often as it matters, and a reason to restart when it lasts."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiokafka.errors import ConsumerStoppedError, KafkaConnectionError, TopicAuthorizationFailedError
from faststream import AckPolicy
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from consumers.runtime.kafka import polling as poll_watch
from consumers.runtime.kafka.connection import KafkaSettings
from consumers.runtime.kafka.polling import ENOUGH_BYTES, MAX_FAILING_SECONDS, POLL_MS, PollWatch, Subscription
from consumers.runtime.registry import Instruments


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
        KafkaSettings(), "judge", ["scores"], handle, group_id="g", max_records=10, ack_policy=AckPolicy.MANUAL,
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

    made = Subscription(
        KafkaSettings(), "judge", ["scores"], handle, group_id="g", max_records=10, ack_policy=AckPolicy.MANUAL
    )
    async with asyncio.timeout(POLL_MS / 1_000):
        assert await made._subscriber.get_msg(Consumer()) == (1, 2, 3)
        assert await made._subscriber.get_msg(Consumer()) == ()
    assert asked == [{"timeout_ms": POLL_MS, "max_records": 10}] * 2


async def test_the_broker_is_told_how_long_records_may_gather() -> None:
    async def handle(_: Any) -> None: ...

    made = Subscription(
        KafkaSettings(), "judge", ["scores"], handle, group_id="g", max_records=10, ack_policy=AckPolicy.MANUAL,
        poll_interval_ms=40,
    )  # fmt: skip
    options = made._subscriber._connection_args
    assert (options["fetch_max_wait_ms"], options["fetch_min_bytes"]) == (40, ENOUGH_BYTES)
