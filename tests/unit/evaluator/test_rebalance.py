"""The evaluator in a rebalance: the work it takes, leaves and overtakes."""

import asyncio
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.errors import KafkaConnectionError

from consumers.evaluator import service
from consumers.evaluator.service import SharedNameError
from consumers.evaluator.writer import FencedError
from consumers.runtime.kafka.connection import KafkaSettings, KafkaUnreachableError
from schemas.topics import EVENTS_TOPIC
from tests.support.fakes.evaluator_fakes import (
    START,
    FakeConsumer,
    Shell,
    ended,
    logs_of,
    until_idle,
)


@pytest.fixture
async def shell(monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(monkeypatch)


@pytest.fixture
async def owner(shell: Shell) -> Shell:
    """It has partition 0."""
    await shell.assigned(0)
    return shell


async def test_the_group_is_offered_one_way_of_sharing_out(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client joins once for each, so with two of them members that start together join again
    and again.
    """
    offered: list[Any] = []

    def consumer(_: KafkaSettings, role: str, **options: Any) -> FakeConsumer:
        offered.extend(options["partition_assignment_strategy"])
        raise KafkaConnectionError(role)

    monkeypatch.setattr(KafkaSettings, "consumer", consumer)
    with pytest.raises(KafkaConnectionError):
        await shell.role._join()
    (keeping,) = offered
    assert issubclass(keeping, StickyPartitionAssignor)
    assert keeping.name == "range", "a stranger who knows the usual one alone does not keep us out"
    assert keeping is not StickyPartitionAssignor, (
        "the client keeps the shares of a member in the class"
    )


async def test_records_are_folded_and_written_to_their_own_partition_number(shell: Shell) -> None:
    await shell.assigned(0, 1)
    await shell.folds(4, 5, number=1)
    assert (shell.folded, shell.journal) == ([[], [4, 5]], ["write c-1 to 1", "write c-1 to 1"])


async def test_a_new_partition_is_read_only_when_it_is_taken_over(shell: Shell) -> None:
    shell.takeover.gate.clear()
    await shell.assigned(0)
    assert (shell.consumer.pauses, shell.consumer.positions) == (logs_of(0), {})
    assert shell.writers[0].numbers == []
    assert not shell.role.ready.is_set()
    assert shell.role.problems() == ("evaluator: taking over partitions 0",)
    await shell.folds(4)  # is dropped: it is read again
    assert shell.folded == [[]]
    shell.takeover.gate.set()
    await until_idle()
    assert shell.consumer.positions == dict.fromkeys(logs_of(0), START)
    assert shell.consumer.pauses == set()
    assert (shell.writers[0].runs, shell.writers[0].numbers) == (True, [0])
    assert shell.role.ready.is_set()
    await shell.folds(4)
    assert shell.folded == [[4]]


async def test_what_stays_ours_goes_on_while_the_new_is_taken_over(owner: Shell) -> None:
    await owner.folds(4, 5)
    owner.takeover.gate.clear()
    await owner.rebalanced(0, 1)
    assert owner.consumer.pauses == logs_of(1)
    assert owner.consumer.positions == {TopicPartition(EVENTS_TOPIC, 0): 6}
    await owner.folds(6)
    await owner.folds(4, number=1)
    assert owner.folded == [[4, 5, 6], []]
    assert owner.takeover.kept == [0]
    assert [(writer.runs, writer.stopped, writer.numbers) for writer in owner.writers] == [
        (False, True, [0]),
        (True, False, [0]),
    ]
    owner.takeover.gate.set()
    await until_idle()
    await owner.folds(4, number=1)
    assert owner.folded == [[4, 5, 6], [4]]


async def test_what_is_no_longer_ours_is_dropped_and_its_writer_stopped(shell: Shell) -> None:
    await shell.assigned(0, 1)
    shell.may_write.clear()
    await shell.folds(4, number=1)
    lost = shell.role.owned[1]
    revoking = asyncio.create_task(shell.revoked())
    await until_idle()
    shell.may_write.set()
    await revoking
    await shell.assigned(0)
    assert not lost.is_active
    assert not lost.outbox.is_filled
    assert [(writer.runs, writer.stopped, writer.numbers) for writer in shell.writers] == [
        (False, True, [0, 1]),
        (True, False, [0]),
    ]
    shell.journal.clear()
    await shell.folds(5, number=1)
    await shell.role._commit(1)
    assert shell.journal == [f"commit events[0]@{START}"], "nothing of what another has now"


async def test_if_the_last_write_is_not_known_nothing_is_kept(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it was made only `scores` say, which a takeover reads."""
    for name in ("HAND_OVER_SECONDS", "CLOSE_SECONDS"):
        monkeypatch.setattr(service, name, 0.01)
    await shell.assigned(0)
    shell.may_write.clear()
    await shell.folds(4)
    await shell.rebalanced(0)
    assert (shell.takeover.begun, shell.takeover.kept) == (2, [])
    assert shell.folded == [[4], []]


async def test_what_is_taken_over_for_a_writer_that_was_fenced_off_is_not_folded(
    owner: Shell,
) -> None:
    owner.takeover.gate.clear()
    await owner.rebalanced(0, 1)
    owner.writers[1].error = FencedError("0")
    await owner.folds(4)
    owner.takeover.gate.set()
    await until_idle()
    assert not owner.role.active
    assert isinstance(owner.failures[0], SharedNameError)
    assert owner.registry.get_sample_value("callgauge_partitions_fenced_total") == 2


async def test_who_hands_over_what_another_one_has_already_joins_again_with_nothing(
    owner: Shell,
) -> None:
    """A process that was frozen beyond its session, for example."""
    owner.may_write.clear()
    await owner.folds(4)
    revoking = asyncio.create_task(owner.revoked())
    await until_idle()
    owner.writers[0].error = FencedError("0")
    owner.may_write.set()
    await revoking
    assert (owner.failures, owner.role.owned) == ([], {})
    await owner.assigned(0)
    assert (owner.takeover.begun, owner.takeover.kept) == (2, [])


@pytest.mark.parametrize("generations", [0, 2, 5, -1])
async def test_a_rebalance_without_us_leaves_us_nothing(owner: Shell, generations: int) -> None:
    await owner.folds(4)
    await owner.rebalanced(0, generations=generations)
    assert owner.takeover.begun == 2
    assert [(writer.runs, writer.stopped) for writer in owner.writers] == [
        (False, True),
        (True, False),
    ]
    assert owner.consumer.positions == dict.fromkeys(logs_of(0), START)
    await owner.folds(4)
    assert owner.folded == [[4], [4]]
    await owner.rebalanced(0)  # and from there on state is kept again
    assert (owner.takeover.begun, owner.takeover.kept) == (2, [0])


async def test_records_polled_before_a_rebalance_are_not_folded_after_it(
    owner: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "FOLD_SECONDS", -1.0)  # others have a turn before each record
    taking = owner.polled(4, 5)
    await asyncio.sleep(0)
    await owner.rebalanced(0, generations=2)
    await taking
    assert owner.folded == [[], []]
    assert owner.consumer.positions == dict.fromkeys(logs_of(0), START)  # so they come again
    await owner.folds(4)
    assert owner.folded == [[], [4]]


async def test_records_polled_in_the_middle_of_a_rebalance_are_not_folded_after_it(
    owner: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    await owner.revoked()
    monkeypatch.setattr(service, "FOLD_SECONDS", -1.0)
    taking = owner.polled(4)
    await asyncio.sleep(0)
    await owner.assigned(0)
    await taking
    assert owner.folded == [[]]


async def test_calls_close_a_step_at_a_time_in_turns_and_the_steps_follow_without_a_wait(
    shell: Shell,
) -> None:
    await shell.assigned(0, 3, 5, 7)
    counts = {0: 1, 3: 0, 5: 3, 7: 2}
    for evaluator, closing in zip(shell.evaluators, counts.values(), strict=True):
        evaluator.closing_calls = closing
    seen: list[list[int]] = []
    while shell.closing != [0, 0, 0, 0]:
        await shell.goes_round()
        seen.append(shell.closing)
    assert seen == [
        [0, 0, 3, 2],
        [0, 0, 2, 2],
        [0, 0, 2, 1],
        [0, 0, 1, 1],
        [0, 0, 1, 0],
        [0, 0, 0, 0],
    ]
    await shell.goes_round()
    assert [wait_ms for _, wait_ms in shell.consumer.polls] == [0, 0, 0, 0, 0, 0, 1]


async def test_a_poll_closes_calls_too(owner: Shell) -> None:
    """Otherwise a process that always has records to fold would close no calls."""
    owner.evaluators[0].closing_calls = 2
    await owner.goes_round(ended(START))
    assert (owner.folded, owner.closing) == ([[START]], [1])


async def test_a_takeover_cancelled_by_the_next_rebalance_leaves_nothing_behind(
    shell: Shell,
) -> None:
    await shell.assigned(1)
    shell.takeover.gate.clear()
    await shell.rebalanced(0, 1)
    await shell.revoked()
    shell.takeover.gate.set()
    await shell.assigned(1)
    assert [(writer.runs, writer.stopped, writer.numbers) for writer in shell.writers] == [
        (False, True, [1]),
        (False, True, [1]),
        (True, False, [1]),
    ]
    assert list(shell.role.owned) == [1]
    assert not shell.failures
    assert shell.consumer.pauses == set()


async def test_a_takeover_that_was_cancelled_begins_anew(shell: Shell) -> None:
    shell.takeover.gate.clear()
    await shell.assigned(0)
    await shell.revoked()
    shell.takeover.gate.set()
    await shell.assigned(0)
    assert shell.takeover.begun == 2
    assert [(writer.runs, writer.stopped) for writer in shell.writers] == [
        (False, True),
        (True, False),
    ]
    await shell.folds(4)
    assert shell.folded == [[], [4]]


async def test_a_takeover_that_fails_ends_the_role(shell: Shell) -> None:
    shell.takeover.error = ZeroDivisionError("boom")
    await shell.assigned(0)
    assert shell.failures == [shell.takeover.error]
    assert shell.consumer.pauses == logs_of(0)
    assert not shell.role.ready.is_set()


async def test_a_broker_that_refuses_a_takeover_is_named(shell: Shell) -> None:
    shell.takeover.error = KafkaConnectionError("gone")
    await shell.assigned(0)
    (failure,) = shell.failures
    assert isinstance(failure, KafkaUnreachableError)
    assert "127.0.0.1:9092" in str(failure)


async def test_what_is_given_to_us_while_we_leave_is_not_taken_over(shell: Shell) -> None:
    """Leaving the group takes a moment, in which a rebalance may end: work that begins then would
    never be ended.
    """
    shell.role._is_leaving = True
    await shell.assigned(0)
    assert shell.takeover.begun == 0
    assert shell.writers == []
    assert not shell.role.owned
    assert not shell.role.ready.is_set()


async def test_without_partitions_the_role_is_ready(shell: Shell) -> None:
    await shell.assigned()
    assert shell.role.ready.is_set()
    assert shell.takeover.begun == 0
