"""The shells' foundation: the first of several works, failures that FastStream would swallow, and topics that fit."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from aiokafka import TopicPartition
from faststream import AckPolicy
from pydantic import ValidationError
from structlog.testing import capture_logs

from consumers.runtime.kafka.connection import KafkaSettings, TopicsUnfitError, require_equal_counts
from consumers.runtime.polling.subscription import Subscription
from consumers.runtime.stopping import finish_unless, first_of


async def give(result: str) -> str:
    return result


async def wait_for_ever(ended: list[str]) -> str:
    try:
        return str(await asyncio.Event().wait())
    finally:
        ended.append("cancelled")


async def fail() -> str:
    raise ZeroDivisionError


async def test_the_first_work_decides_and_the_others_have_ended() -> None:
    ended: list[str] = []
    assert await first_of(wait_for_ever(ended), give("done")) == "done"
    assert ended == ["cancelled"]


async def test_a_failure_is_never_lost_behind_a_success() -> None:
    ended: list[str] = []
    with pytest.raises(ZeroDivisionError):
        await first_of(give("done"), fail(), wait_for_ever(ended))
    assert ended == ["cancelled"]


async def test_cancelling_the_whole_ends_every_work() -> None:
    ended: list[str] = []
    whole = asyncio.create_task(first_of(wait_for_ever(ended), wait_for_ever(ended)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    whole.cancel()
    with pytest.raises(asyncio.CancelledError):
        await whole
    assert ended == ["cancelled", "cancelled"]


async def test_work_ends_when_stopping_is_asked_for() -> None:
    ended: list[str] = []
    stop = asyncio.Event()
    asyncio.get_running_loop().call_soon(stop.set)
    assert await finish_unless(stop, wait_for_ever(ended)) is None
    assert ended == ["cancelled"]
    assert await finish_unless(asyncio.Event(), give("done")) == "done"


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


def test_partition_counts_must_be_equal() -> None:
    assert require_equal_counts({"a": 4, "b": 4}) == 4
    with pytest.raises(TopicsUnfitError, match=r"must be equal, but are a 4, b 6\."):
        require_equal_counts({"a": 4, "b": 6})


def test_topic_names_have_the_clusters_prefix() -> None:
    assert KafkaSettings(topic_prefix="t7f3a.").topic("scores") == "t7f3a.scores"
    with pytest.raises(ValidationError):
        KafkaSettings(topic_prefix="a/b")


@pytest.mark.parametrize("is_embedded", [True, False])
def test_checksums_are_left_unchecked_on_the_embedded_broker_only(*, is_embedded: bool) -> None:
    options = KafkaSettings(is_embedded=is_embedded).reader_options()
    assert options == {"isolation_level": "read_committed", "check_crcs": not is_embedded}
