"""Failures that FastStream would swallow, and readers of a former leader."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from aiokafka import TopicPartition
from faststream import AckPolicy
from structlog.testing import capture_logs

from consumers.runtime.kafka.connection import KafkaSettings
from consumers.runtime.kafka.polling import Subscription


class Record(NamedTuple):
    value: bytes = b"{}"
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

    return Subscription(
        KafkaSettings(), "exporter", ["scores"], handle, group_id="g", max_records=10, ack_policy=AckPolicy.MANUAL
    )


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
