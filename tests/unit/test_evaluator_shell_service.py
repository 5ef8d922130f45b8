"""The evaluator without a broker: rebalances that overtake records, order of writing and committing, the end."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import CommitFailedError, KafkaConnectionError
from aiokafka.structs import OffsetAndMetadata
from prometheus_client import CollectorRegistry

from consumers.engine.effects import PublishScore
from consumers.evaluator.score_writer import WriteError
from consumers.evaluator.service import Evaluator
from consumers.evaluator.settings import EvaluatorSettings
from consumers.runtime.kafka import KafkaSettings
from consumers.runtime.registry import Instruments
from schemas.quarantine import QuarantineRecord
from schemas.scores import AnyScoreRecord
from schemas.topics import INPUT_TOPICS
from tests.unit.test_evaluator_shell_partition import NOW_MS, PIPECAT, Record, StubEvaluator, fact

ALL_OF_0 = {TopicPartition(topic, 0) for topic in INPUT_TOPICS}
ALL_OF_1 = {TopicPartition(topic, 1) for topic in INPUT_TOPICS}


class FakeConsumer:
    def __init__(self, journal: list[str]) -> None:
        self.journal = journal
        self.error: Exception | None = None

    def highwater(self, tp: TopicPartition) -> int:
        return 0

    def last_stable_offset(self, tp: TopicPartition) -> int:
        return 0

    def last_poll_timestamp(self, tp: TopicPartition) -> int:
        return NOW_MS

    async def position(self, tp: TopicPartition) -> int:
        return 0

    async def commit(self, offsets: dict[TopicPartition, OffsetAndMetadata]) -> None:
        self.journal += sorted(f"commit {tp.topic}[{tp.partition}]@{to.offset}" for tp, to in offsets.items())
        if self.error is not None:
            raise self.error


class FakeSubscription:
    def __init__(self, journal: list[str]) -> None:
        self.consumer = FakeConsumer(journal)
        self.failures: list[Exception] = []
        self.stopped = False

    def fail(self, error: Exception) -> None:
        self.failures.append(error)

    async def stop(self) -> None:
        self.stopped = True


class FakeWriter:
    def __init__(self, journal: list[str]) -> None:
        self.journal = journal
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: WriteError | None = None

    async def write_scores(self, partition: int, outbox: deque[AnyScoreRecord]) -> None:
        while outbox:
            record = outbox[0]
            await self.gate.wait()
            self.journal.append(f"write {record.conversation_id} to {partition}")
            if outbox:
                outbox.popleft()

    async def write_refused(self, outbox: deque[QuarantineRecord]) -> None:
        outbox.clear()

    async def acknowledged(self) -> None:
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        self.journal.append("acknowledged")

    async def stop(self, deadline_seconds: float) -> None:
        self.journal.append("writer stopped")


class Shell:
    """An evaluator with fakes around it; `journal` is what it did to the outside, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.journal: list[str] = []
        self.evaluators: list[StubEvaluator] = []
        monkeypatch.setattr("consumers.evaluator.service.PartitionEvaluator", self._evaluator)
        instruments = Instruments(CollectorRegistry(), ["evaluator"])
        self.role = Evaluator(KafkaSettings(), EvaluatorSettings(), instruments)
        self.subscription = FakeSubscription(self.journal)
        self.writer = FakeWriter(self.journal)
        monkeypatch.setattr(self.role, "_subscription", self.subscription)
        monkeypatch.setattr(self.role, "_writer", self.writer)

    def _evaluator(self, *_: Any) -> StubEvaluator:
        self.evaluators.append(StubEvaluator([PublishScore(fact("c-1"))]))
        return self.evaluators[-1]

    async def assign(self, assigned: set[TopicPartition]) -> None:
        await self.role.on_partitions_assigned(assigned)

    async def revoke(self) -> None:
        await self.role.on_partitions_revoked(set())

    def polled(self, *offsets: int, partition: int = 0) -> "asyncio.Task[None]":
        records = [Record(PIPECAT, offset, partition=partition) for offset in offsets]
        return asyncio.create_task(self.role._take(records))

    @property
    def folded(self) -> list[list[int]]:
        """Offsets folded, by evaluator in the order in which they were made."""
        return [[arrival.offset for arrival in evaluator.arrivals] for evaluator in self.evaluators]


@pytest.fixture
def make_shell(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Shell]:
    return lambda: Shell(monkeypatch)


async def until_idle() -> None:
    """Lets every task run until it waits for something outside."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_records_are_folded_and_written_to_their_own_partition_number(make_shell: Callable[[], Shell]) -> None:
    shell = make_shell()
    await shell.assign(ALL_OF_0 | ALL_OF_1)
    await shell.polled(4, 5, partition=1)
    assert shell.folded == [[], [4, 5]]
    assert shell.journal == ["write c-1 to 1", "write c-1 to 1"]


async def test_records_that_come_before_their_partitions_wait_for_them(make_shell: Callable[[], Shell]) -> None:
    shell = make_shell()
    await shell.revoke()  # as the client does before a first assignment
    taking = shell.polled(4)
    await until_idle()
    assert not taking.done()
    await shell.assign(ALL_OF_0)
    await taking
    assert shell.folded == [[4]]


async def test_records_overtaken_by_a_rebalance_are_left_to_their_next_owner(make_shell: Callable[[], Shell]) -> None:
    shell = make_shell()
    await shell.assign(ALL_OF_0)
    async with shell.role._lock:  # somebody is at work
        taking = shell.polled(4)
        await until_idle()
        revoking = asyncio.create_task(shell.revoke())
        await until_idle()
    await revoking
    await shell.assign(ALL_OF_0)
    await taking
    # The state is new: it starts at what was committed, below these records, and must see those first.
    assert shell.folded == [[], []]


async def test_records_waiting_through_two_rebalances_are_dropped(make_shell: Callable[[], Shell]) -> None:
    shell = make_shell()
    await shell.revoke()
    taking = shell.polled(4)
    await until_idle()
    await shell.revoke()
    await shell.assign(ALL_OF_1)
    await taking
    assert shell.folded == [[]]


async def test_before_partitions_go_all_is_written_acknowledged_and_committed(make_shell: Callable[[], Shell]) -> None:
    shell = make_shell()
    await shell.assign(ALL_OF_0)
    await shell.polled(4)
    await shell.revoke()
    assert shell.journal == ["write c-1 to 0", "acknowledged", "commit pipecat.events[0]@5"]
    assert shell.role._open_calls() == {(): 0}


async def test_a_commit_waits_for_what_was_folded_to_be_acknowledged(make_shell: Callable[[], Shell]) -> None:
    shell = make_shell()
    await shell.assign(ALL_OF_0)
    await shell.polled(4)
    shell.writer.gate.clear()
    committing = asyncio.create_task(shell.role._commit())
    await until_idle()
    taking = shell.polled(5)  # folding goes on meanwhile, and does not move what is being committed
    await until_idle()
    assert shell.folded == [[4, 5]]
    shell.writer.gate.set()
    await asyncio.gather(committing, taking)
    assert "commit pipecat.events[0]@5" in shell.journal
    assert "commit pipecat.events[0]@6" not in shell.journal


async def test_only_what_changed_is_committed(make_shell: Callable[[], Shell]) -> None:
    shell = make_shell()
    await shell.assign(ALL_OF_0)
    await shell.role._commit()
    assert shell.journal == []
    await shell.polled(4)
    await shell.role._commit()
    await shell.role._commit()
    assert shell.journal.count("commit pipecat.events[0]@5") == 1


async def test_a_commit_overtaken_by_a_rebalance_is_not_made(make_shell: Callable[[], Shell]) -> None:
    shell = make_shell()
    await shell.assign(ALL_OF_0)
    await shell.polled(4)
    shell.writer.gate.clear()
    committing = asyncio.create_task(shell.role._commit())
    await until_idle()
    revoking = asyncio.create_task(shell.revoke())
    await until_idle()
    shell.writer.gate.set()
    await asyncio.gather(committing, revoking)
    assert shell.journal.count("commit pipecat.events[0]@5") == 1  # the one before the partitions went


@pytest.mark.parametrize("error", [CommitFailedError("rebalance"), KafkaConnectionError("gone")])
async def test_a_commit_that_fails_is_tried_again(make_shell: Callable[[], Shell], error: Exception) -> None:
    shell = make_shell()
    await shell.assign(ALL_OF_0)
    await shell.polled(4)
    shell.subscription.consumer.error = error
    await shell.role._commit()
    shell.subscription.consumer.error = None
    await shell.role._commit()
    assert shell.journal.count("commit pipecat.events[0]@5") == 2


async def test_what_cannot_be_written_is_never_committed(make_shell: Callable[[], Shell]) -> None:
    shell = make_shell()
    await shell.assign(ALL_OF_0)
    await shell.polled(4)
    shell.writer.error = WriteError("refused")
    with pytest.raises(WriteError):
        await shell.role._commit()
    await shell.revoke()  # the client would only log it
    assert shell.subscription.failures == [shell.writer.error]
    assert not [line for line in shell.journal if line.startswith("commit")]


async def test_a_broker_that_does_not_answer_does_not_hold_up_a_rebalance(
    make_shell: Callable[[], Shell], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consumers.evaluator.service.HAND_OVER_SECONDS", 0.01)
    shell = make_shell()
    await shell.assign(ALL_OF_0)
    shell.writer.gate.clear()
    taking = shell.polled(4, 5, 6)
    await until_idle()
    await shell.revoke()
    assert shell.journal == []
    shell.writer.gate.set()
    await taking
    assert shell.journal == ["write c-1 to 0"]  # the one that was already on its way; the next owner decides the others


async def test_a_torn_assignment_ends_the_role(make_shell: Callable[[], Shell]) -> None:
    shell = make_shell()
    await shell.assign(ALL_OF_0 - {TopicPartition(PIPECAT, 0)})
    assert len(shell.subscription.failures) == 1
    assert not shell.role._assigned.is_set()


async def test_a_tick_lets_time_pass_and_writes_what_silence_means(make_shell: Callable[[], Shell]) -> None:
    shell = make_shell()
    await shell.assign(ALL_OF_0)
    shell.evaluators[0].wakeup_ms = NOW_MS
    await shell.role._tick()
    assert shell.evaluators[0].advanced_to_ms == [NOW_MS]
    assert shell.journal == ["write c-1 to 0"]


async def test_writing_interrupted_by_the_end_loses_nothing(
    make_shell: Callable[[], Shell], monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = make_shell()
    await shell.assign(ALL_OF_0)
    await shell.polled(4)
    stop = asyncio.Event()

    async def read() -> bool:
        shell.evaluators[0].wakeup_ms = NOW_MS
        shell.writer.gate.clear()
        asyncio.get_running_loop().call_soon(stop.set)
        asyncio.get_running_loop().call_later(0.01, shell.writer.gate.set)
        await shell.role._tick()  # is cancelled in the middle of writing
        return True

    async def never() -> bool:
        return await asyncio.Event().wait()

    monkeypatch.setattr(shell.role, "_read", read)
    monkeypatch.setattr(shell.subscription, "failure", never, raising=False)
    await shell.role.run(stop)
    assert shell.journal == [
        "write c-1 to 0",
        "write c-1 to 0",
        "acknowledged",
        "commit pipecat.events[0]@5",
        "writer stopped",
    ]
    assert shell.subscription.stopped
    await shell.polled(5)  # polled after the last commit: the successor's
    assert shell.folded == [[4]]


async def test_a_failure_ends_the_role_without_a_commit(
    make_shell: Callable[[], Shell], monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = make_shell()
    await shell.assign(ALL_OF_0)
    await shell.polled(4)

    async def fail() -> bool:
        raise ZeroDivisionError

    async def read() -> bool:
        return await asyncio.Event().wait()

    monkeypatch.setattr(shell.role, "_read", read)
    monkeypatch.setattr(shell.subscription, "failure", fail, raising=False)
    with pytest.raises(ZeroDivisionError):
        await shell.role.run(asyncio.Event())
    assert shell.journal == ["write c-1 to 0", "writer stopped"]


async def test_it_is_well_while_it_ticks(make_shell: Callable[[], Shell], monkeypatch: pytest.MonkeyPatch) -> None:
    role = make_shell().role
    assert role.problems() == ("evaluator: not reading the inputs",)
    role.ready.set()
    now_seconds = 1_000.0
    monkeypatch.setattr("time.monotonic", lambda: now_seconds)
    role._ticked_at = now_seconds - 1
    assert role.problems() == ()
    role._ticked_at = now_seconds - 31
    assert role.problems() == ("evaluator: no tick for 31 s",)
