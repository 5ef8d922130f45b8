"""The exporter without a broker: rows in, metrics out, its handling of records that say nothing,
its commits and its look back.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Never

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import CommitFailedError, KafkaConnectionError
from aiokafka.structs import OffsetAndMetadata, OffsetAndTimestamp
from faststream.kafka import TestKafkaBroker
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from consumers.exporter import counting, service
from consumers.exporter.service import LOOK_BACK_MS, MAX_SILENT_SECONDS, Exporter
from consumers.exporter.settings import ExporterSettings
from consumers.runtime.kafka.connection import KafkaSettings, KafkaUnreachableError
from consumers.runtime.kafka.polling import GroupCommits
from consumers.runtime.received import MAX_REFUSED_LINES, Received, RecordPlace, Unreadable
from consumers.runtime.registry import Instruments
from schemas.metrics.process import STEP_METRIC
from schemas.rows import CallRow, Row, encode
from tests.support.brokers.record_bytes import stand_in
from tests.support.fakes.broker_records import BrokerRecord
from tests.support.known import Logged
from tests.support.patience import patient
from tests.unit.exporter.test_projection import NOT_KNOWN, call, closed, waited
from tests.unit.exporter.test_running_calls import row as call_row
from tests.unit.exporter.test_running_calls import so_far


def exporter(**settings: Any) -> tuple[Exporter, CollectorRegistry]:
    registry = CollectorRegistry()
    instruments = Instruments(registry, ["exporter"])
    made = Exporter(KafkaSettings(), ExporterSettings(**settings), instruments)
    return made, registry


def score(conversation_id: str) -> bytes:
    """The row of a call that has just started."""
    return encode(call("started", conversation_id=conversation_id))


def values(*rows: Row) -> list[BrokerRecord]:
    return [BrokerRecord(value=encode(row), offset=offset) for offset, row in enumerate(rows)]


async def take(role: Exporter, records: Sequence[Any]) -> None:
    """Hands over records as a poll does: FastStream's subscriber gets them."""
    reader = getattr(role.reader, "real", role.reader)
    async with TestKafkaBroker(reader.broker):
        await reader.subscriber.process_message(tuple(records))
    if reader.has_failed:
        await reader.failure()


def sample(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(name, labels)


async def test_rows_become_metrics() -> None:
    role, registry = exporter()
    await take(role, values(call("started"), waited(1500.0), closed(conversation_id="c-2")))
    role._instruments.refresh()
    who = {"agent": "ava", "tenant": "acme", "environment": "live"}
    labels = who | {"source": "pipecat", "anchor": "vad"}
    assert sample(registry, "callgauge_turn_response_latency_seconds_sum", **labels) == 1.5
    assert sample(registry, "callgauge_calls_active", **who) == 1
    assert sample(registry, "callgauge_calls_started_total", **who) == 1
    assert sample(registry, "callgauge_calls_ended_total", **who, outcome="ended") == 1
    assert sample(registry, "callgauge_scores_read_total", kind="call") == 2
    assert sample(registry, "callgauge_scores_read_total", kind="turn") == 1


async def test_a_published_row_is_counted() -> None:
    role, registry = exporter()
    async with TestKafkaBroker(role.reader.broker) as broker:
        await broker.publish(score("c-1"), "scores", key=b"c-1")
    assert sample(registry, "callgauge_scores_read_total", kind="call") == 1


async def test_whoever_reads_can_hand_it_messages(logged: Logged) -> None:
    """As a loop over a file does, without a broker and without a record of one."""
    role, registry = exporter()
    place = RecordPlace("scores", 0, 4, 0, b"c-1")
    await role.handle(
        [
            Received(place, call("started")),
            Received(place._replace(offset=5), Unreadable("why")),
        ]
    )
    assert sample(registry, "callgauge_scores_read_total", kind="call") == 1
    assert [(line["event"], line["offset"], line["reason"]) for line in logged] == [
        ("record_refused", 5, "why")
    ]


async def test_the_last_step_of_an_event_ends_when_its_row_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(service, "wall_clock_ms", lambda: 1_040)
    role, registry = exporter()
    written = BrokerRecord(value=score("c-1"), timestamp=1_000)
    # the second one by a clock that is ahead
    await take(role, [written, written._replace(timestamp=1_050, offset=1)])
    assert sample(registry, f"{STEP_METRIC}_sum", step="counted") == pytest.approx(0.04)
    assert sample(registry, f"{STEP_METRIC}_count", step="counted") == 2


async def test_progress_is_on_the_page_while_a_call_runs_and_in_the_histogram_when_it_has_closed() -> (
    None
):
    role, registry = exporter()
    seen = []
    who = {"agent": "ava", "tenant": "unknown", "environment": "unknown"}
    rows: list[CallRow] = [
        call_row("c-1", goals=so_far(3)),
        call_row("c-1", goals=so_far(3, 0, 0.0)),
        call_row("c-1", goals=so_far(3, 1, 0.3333)),
        call_row("c-1", goals=so_far(3, 1, NOT_KNOWN)),
        call_row("c-1", goals=so_far(3, 2, 0.6667)),
        closed(labels=call_row("c-1").labels, goals=so_far(3, 2, 0.6667)),
    ]
    for offset, row in enumerate(rows):
        await take(role, [BrokerRecord(value=encode(row), offset=offset)])
        role._instruments.refresh()
        seen.append(
            (
                sample(registry, "callgauge_calls_with_goals_active", **who, progress="known"),
                sample(registry, "callgauge_calls_with_goals_active", **who, progress="unknown"),
                sample(registry, "callgauge_progress_active", **who),
                sample(registry, "callgauge_subgoals_active", **who, state="reached"),
                sample(registry, "callgauge_subgoals_active", **who, state="open"),
            )
        )
        assert sample(registry, "callgauge_call_progress_ratio_count", **who) == (
            1 if row is rows[-1] else None
        )
    assert seen == [
        (0, 1, 0, 0, 3),
        (1, 0, 0, 0, 3),
        (1, 0, 0.3333, 1, 2),
        (0, 1, 0, 1, 2),
        (1, 0, 0.6667, 2, 1),
        (0, 0, 0, 0, 0),
    ]
    assert sample(registry, "callgauge_call_progress_ratio_bucket", **who, le="0.6") == 0
    assert sample(registry, "callgauge_call_progress_ratio_bucket", **who, le="0.7") == 1


async def test_what_cannot_be_read_is_counted_and_the_rest_goes_on() -> None:
    role, registry = exporter()
    broken = [
        b'{"row":',
        b'{"row":"turn"}',
        b'{"row":"call","conversation_id":7}',
        b'{"row":"of a later version"}',
        encode(waited(1500.0, anchor=None)),
    ]
    later = (
        score("c-1")
        .replace(b"{", b'{"row":"call","of_a_later_version": 1, ', 1)
        .replace(b', "row":"call"', b"")
    )
    usual = [None, score("c-1"), later]  # None: an evaluator said how far it has come
    await take(
        role,
        [
            BrokerRecord(value=value, offset=offset)
            for offset, value in enumerate([*broken, *usual])
        ],
    )
    assert sample(registry, "callgauge_scores_refused_total") == len(broken)
    assert sample(registry, "callgauge_scores_read_total", kind="call") == 2


async def test_what_the_client_cannot_decode_is_counted_and_passed(logged: Logged) -> None:
    role, registry = exporter()
    await take(role, [stand_in("scores", 3, 8), BrokerRecord(value=score("c-1"), offset=9)])
    assert sample(registry, "callgauge_scores_refused_total") == 1
    assert sample(registry, "callgauge_scores_read_total", kind="call") == 1
    assert [line["reason"] for line in logged if line["event"] == "record_refused"] == [
        "scores[0]@3 to @8: the batch cannot be unpacked, expected what zstd writes, saw less"
    ]
    assert role._next == {TopicPartition("scores", 0): 10}


async def test_forgotten_calls_are_counted() -> None:
    role, registry = exporter(max_active_calls=1)
    await take(role, values(call_row("c-1"), call_row("c-2")))
    assert sample(registry, "callgauge_calls_forgotten_total") == 1


async def test_running_calls_of_partitions_taken_away_are_dropped() -> None:
    role, registry = exporter()
    await take(role, [BrokerRecord(value=score("c-1"), partition=3)])
    role._instruments.refresh()
    assert (
        sample(registry, "callgauge_calls_active", agent="ava", tenant="acme", environment="live")
        == 1
    )
    await role.on_partitions_assigned({TopicPartition("scores", 1)})
    role._instruments.refresh()
    assert (
        sample(registry, "callgauge_calls_active", agent="ava", tenant="acme", environment="live")
        == 0
    )


async def test_what_is_refused_is_told_with_its_place_and_not_without_end(logged: Logged) -> None:
    role, _ = exporter()
    junk = [
        BrokerRecord(value=b'{"row":0}', key=b"c-7", partition=2, offset=offset)
        for offset in range(MAX_REFUSED_LINES + 5)
    ]
    await take(role, junk)
    await take(role, [junk[0]._replace(offset=MAX_REFUSED_LINES + 5)])
    assert [line["event"] for line in logged] == [
        *["record_refused"] * MAX_REFUSED_LINES,
        "more_records_refused",
        "record_refused",
    ]
    place = {"conversation_id": "c-7", "topic": "scores", "partition": 2, "offset": 1}
    assert place.items() <= logged[1].items()
    assert logged[MAX_REFUSED_LINES]["records"] == 5


class FakeConsumer:
    """A client that is given partitions, and keeps the committed offsets in
    `committed`, in order.
    """

    def __init__(self, **starts: int) -> None:
        self.starts = {
            TopicPartition("scores", int(name[1:])): offset for name, offset in starts.items()
        }
        self.committed: list[dict[int, int]] = []
        self.two_minutes_ago: dict[int, int] = {}
        self.looked_up: list[int] = []
        self.sought: list[tuple[int, int]] = []
        self.error: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset(self.starts)

    async def position(self, partition: TopicPartition) -> int:
        start = self.starts[partition]
        await self.on_position()
        return start

    async def offsets_for_times(
        self, times: dict[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        self.looked_up += times.values()
        found = {each: self.two_minutes_ago.get(each.partition) for each in times}
        return {
            each: None if offset is None else OffsetAndTimestamp(offset, 0)
            for each, offset in found.items()
        }

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self.sought.append((partition.partition, offset))

    async def on_position(self) -> None:
        """Runs while a position is asked for, and does nothing."""

    async def commit(self, offsets: dict[TopicPartition, OffsetAndMetadata]) -> None:
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        assert offsets
        self.committed.append({partition.partition: to.offset for partition, to in offsets.items()})


class FakeReader:
    def __init__(self, role: Exporter, consumer: FakeConsumer) -> None:
        self.real = role.reader
        self._role = role
        self._failed = asyncio.Event()
        self.consumer = consumer
        self.is_stopped = False

    async def start(self) -> None:
        await self._role.on_partitions_assigned(set(self.consumer.starts))

    async def failure(self) -> Never:
        await self._failed.wait()
        raise ZeroDivisionError

    def fail(self) -> None:
        self._failed.set()

    async def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], seconds: float
    ) -> bool:
        return await GroupCommits(None).commit(self.consumer, offsets, seconds)

    def stalled(self) -> Sequence[str]:
        return ()

    async def stop(self) -> None:
        self.is_stopped = True


class Shell:
    """An exporter with a made-up client and broker."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **starts: int) -> None:
        self.role, self.registry = exporter()
        self.consumer = FakeConsumer(**starts)
        self.reader = FakeReader(self.role, self.consumer)
        self.stop = asyncio.Event()
        self.running: asyncio.Task[None] | None = None
        monkeypatch.setattr(self.role, "reader", self.reader)
        monkeypatch.setattr(service, "partition_counts", self._partition_counts)

    async def _partition_counts(self, *_: Any) -> dict[str, int]:
        return {"scores": len(self.consumer.starts)}

    async def refuse(self) -> None:
        raise KafkaConnectionError

    async def run(self) -> None:
        self.running = asyncio.create_task(self.role.run(self.stop))
        async with asyncio.timeout(patient(5)):
            await self.role.ready.wait()

    async def ended(self) -> None:
        assert self.running is not None
        self.stop.set()
        async with asyncio.timeout(patient(5)):
            await self.running

    async def count(self, partition: int, *offsets: int) -> None:
        value = score("c-1")
        await take(
            self.role,
            [BrokerRecord(value=value, partition=partition, offset=offset) for offset in offsets],
        )


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(patient(5)):
        while not condition():  # noqa: ASYNC110 - no other code needs an event for these steps
            await asyncio.sleep(0)


ShellMaker = Callable[..., Shell]


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> ShellMaker:
    return lambda **starts: Shell(monkeypatch, **starts)


async def test_where_a_new_group_begins_is_committed_before_it_is_ready(shell: ShellMaker) -> None:
    made = shell(p0=7, p1=0)
    await made.run()
    assert made.consumer.committed == [{0: 7, 1: 0}]
    await made.ended()
    assert made.consumer.committed == [{0: 7, 1: 0}], (
        "nothing was counted, so nothing is left to commit"
    )


async def test_a_graceful_stop_commits_what_was_counted_and_counts_nothing_more(
    shell: ShellMaker,
) -> None:
    made = shell(p0=7, p1=0)
    await made.run()
    await made.count(0, 7, 8, 12)  # the offsets between are no records: marks of transactions
    made.stop.set()
    made.consumer.gate.clear()
    stopping = asyncio.create_task(made.ended())
    await until(lambda: not made.role.ready.is_set())
    await made.count(1, 0)  # polled while stopping: it is the next process's
    made.consumer.gate.set()
    await stopping
    assert made.consumer.committed[1:] == [{0: 13}]
    assert sample(made.registry, "callgauge_scores_read_total", kind="call") == 3
    assert made.reader.is_stopped


async def test_positions_are_committed_as_time_passes(
    shell: ShellMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "COMMIT_INTERVAL_SECONDS", 0)
    made = shell(p0=0)
    await made.run()
    await made.count(0, 0)
    await until(lambda: made.consumer.committed[-1] == {0: 1})
    assert made.consumer.committed == [{0: 0}, {0: 1}]
    await made.ended()


async def test_a_failure_commits_what_was_counted_before_it(
    shell: ShellMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = shell(p0=0)
    await made.run()
    counted = made.role._counts._count

    def count_one(record: Any, *counted_with: Any) -> None:
        if record.offset == 1:
            raise ZeroDivisionError
        counted(record, *counted_with)

    monkeypatch.setattr(made.role._counts, "_count", count_one)
    with pytest.raises(ZeroDivisionError):
        await made.count(0, 0, 1, 2)
    made.reader.fail()
    with pytest.raises(ZeroDivisionError):
        await made.ended()
    assert made.consumer.committed[1:] == [{0: 1}]


async def test_partitions_taken_away_are_committed_and_forgotten(shell: ShellMaker) -> None:
    made = shell(p0=0, p1=5)
    await made.run()
    await made.count(1, 5)
    await made.role.on_partitions_revoked(set(made.consumer.starts))
    assert made.consumer.committed[1:] == [{1: 6}]
    assert made.role.problems() == ("exporter: its group reassigns the partitions of scores",)
    made.consumer.starts = {TopicPartition("scores", 2): 3}
    await made.count(2, 3)  # the client may hand over records before it calls its listener
    await made.role.on_partitions_assigned(set(made.consumer.starts))
    assert made.role.problems() == ()
    await made.ended()
    assert made.consumer.committed[2:] == [{2: 4}]


async def test_a_partition_that_comes_back_is_where_others_have_brought_it(
    shell: ShellMaker,
) -> None:
    made = shell(p0=0, p1=5)
    await made.run()
    await made.count(1, 5)
    await made.role.on_partitions_revoked(set(made.consumer.starts))
    made.consumer.starts = {TopicPartition("scores", 1): 9, TopicPartition("scores", 2): 0}
    await made.role.on_partitions_assigned(set(made.consumer.starts))
    await made.count(2, 0)
    await made.ended()
    assert made.consumer.committed[2:] == [{2: 1}], (
        "an older position of the other is not committed again"
    )


async def test_records_that_come_while_a_position_is_asked_for_count(shell: ShellMaker) -> None:
    made = shell(p0=7)
    # runs meanwhile
    made.consumer.on_position = lambda: made.count(0, 7, 8)  # type: ignore[method-assign]
    await made.run()
    assert made.consumer.committed == [{0: 9}]
    await made.ended()


async def test_a_broker_that_tells_no_position_at_the_start_is_told_in_plain_words(
    shell: ShellMaker,
) -> None:
    made = shell(p0=0)
    made.consumer.on_position = made.refuse  # type: ignore[method-assign]  # runs meanwhile
    with pytest.raises(KafkaUnreachableError):
        await made.role.run(made.stop)


async def test_a_commit_that_fails_is_told_and_tried_again(shell: ShellMaker) -> None:
    made = shell(p0=0)
    await made.run()
    await made.count(0, 0)
    made.consumer.error = CommitFailedError("rebalanced")
    with capture_logs() as lines:
        await made.role._commit(1)
    assert [(line["event"], line["role"]) for line in lines] == [("commit_failed", "exporter")]
    made.consumer.error = None
    await made.ended()
    assert made.consumer.committed[1:] == [{0: 1}]


async def test_a_broker_that_does_not_answer_holds_up_no_stop(
    shell: ShellMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "HAND_OVER_SECONDS", 0.01)
    made = shell(p0=0)
    await made.run()
    await made.count(0, 0)
    made.consumer.gate.clear()
    with capture_logs() as lines:
        await made.ended()
    assert [line["event"] for line in lines] == ["commit_failed", "exporter_stopped"]
    assert (lines[0]["error"], lines[1]["records"]) == ("TimeoutError", 1)


async def test_a_tick_waits_for_no_broker_for_ever(
    shell: ShellMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "COMMIT_INTERVAL_SECONDS", 0)
    monkeypatch.setattr(service, "COMMIT_SECONDS", 0.01)
    made = shell(p0=0)
    await made.run()
    made.consumer.gate.clear()
    await made.count(0, 0)
    ticked_at = made.role._ticked_at
    await until(lambda: made.role._ticked_at != ticked_at)
    made.consumer.gate.set()
    await made.ended()


async def test_it_stalls_only_when_its_ticks_stop(shell: ShellMaker) -> None:
    made = shell(p0=0)
    assert not made.role.stalled(), "waiting for the broker at the start is no stall"
    await made.run()
    assert not made.role.stalled()
    made.role._ticked_at -= MAX_SILENT_SECONDS + 1
    (told,) = made.role.stalled()
    assert told.startswith("exporter: no tick for 31 s")
    await made.ended()


async def test_it_is_not_ready_before_it_reads_and_after_it_stopped(shell: ShellMaker) -> None:
    made = shell(p0=0)
    (told,) = made.role.problems()
    assert told.startswith("exporter: not reading scores")
    await made.run()
    assert made.role.problems() == ()
    await made.ended()
    assert made.role.problems()


# Which calls run is read from two minutes back; what counts begins at the commit.


async def test_a_new_owner_reads_from_two_minutes_back_and_counts_from_its_position(
    shell: ShellMaker, monkeypatch: pytest.MonkeyPatch, logged: Logged
) -> None:
    monkeypatch.setattr(service, "wall_clock_ms", lambda: 1_000_000)
    monkeypatch.setattr(counting, "wall_clock_ms", lambda: 1_000_000)
    made = shell(p0=7, p1=9)
    made.consumer.two_minutes_ago = {0: 4}
    await made.run()
    assert made.consumer.looked_up == [1_000_000 - LOOK_BACK_MS] * 2
    assert made.consumer.sought == [(0, 4)], "nothing was written to the other one since then"
    rows: list[Row] = [
        call("started"),
        waited(1500.0),
        closed(conversation_id="c-2"),
        waited(900.0),
    ]
    await take(
        made.role,
        [BrokerRecord(value=encode(row), offset=offset) for offset, row in enumerate(rows, 4)],
    )
    made.role._instruments.refresh()
    who = {"agent": "ava", "tenant": "acme", "environment": "live"}
    assert sample(made.registry, "callgauge_calls_active", **who) == 1
    assert not sample(made.registry, "callgauge_calls_started_total", **who)
    assert not sample(made.registry, "callgauge_calls_ended_total", **who, outcome="ended")
    latency = "callgauge_turn_response_latency_seconds_sum"
    assert sample(made.registry, latency, **who, source="pipecat", anchor="vad") == 0.9
    assert sample(made.registry, "callgauge_scores_read_total", kind="turn") == 1
    await made.ended()
    assert [line["records"] for line in logged if line["event"] == "exporter_stopped"] == [1]
    assert made.consumer.committed == [{0: 7, 1: 9}, {0: 8}], "a position never goes back"


async def test_a_place_that_is_behind_two_minutes_ago_stays(shell: ShellMaker) -> None:
    made = shell(p0=7)
    made.consumer.two_minutes_ago = {0: 100}
    await made.run()
    assert made.consumer.sought == []
    await made.count(0, 7)
    await made.ended()
    assert made.consumer.committed == [{0: 7}, {0: 8}]


async def test_what_is_refused_in_front_of_the_place_was_refused_before(shell: ShellMaker) -> None:
    made = shell(p0=7)
    await made.run()
    with capture_logs() as lines:
        await take(made.role, [BrokerRecord(value=b'{"row":0}', offset=5)])
    assert lines == []
    assert not sample(made.registry, "callgauge_scores_refused_total")
    await made.ended()


async def test_a_partition_that_stays_is_not_looked_back_at_again(shell: ShellMaker) -> None:
    made = shell(p0=7, p1=9)
    made.consumer.two_minutes_ago = {0: 4, 1: 4, 2: 4}
    await made.run()
    await made.role.on_partitions_revoked(set(made.consumer.starts))
    made.consumer.starts = {TopicPartition("scores", 1): 9, TopicPartition("scores", 2): 9}
    await made.role.on_partitions_assigned(set(made.consumer.starts))
    await made.role._commit(1)
    assert sorted(made.consumer.sought) == [(0, 4), (1, 4), (2, 4)]
    await made.ended()


@pytest.mark.parametrize("comes_back", [True, False])
async def test_a_partition_that_goes_while_it_is_looked_up_is_left_alone(
    shell: ShellMaker, *, comes_back: bool
) -> None:
    made = shell(p0=7)
    made.consumer.two_minutes_ago = {0: 4}
    asked = made.consumer.offsets_for_times

    async def asked_too_late(times: Any) -> Any:
        found = await asked(times)
        made.consumer.starts = made.consumer.starts if comes_back else {}
        made.role._next.clear()
        return found

    # runs meanwhile
    made.consumer.offsets_for_times = asked_too_late  # type: ignore[method-assign]
    await made.run()
    assert made.consumer.sought == []
    await made.ended()
