"""Calls that are over close a few at a time, partition by partition; and partitions that are read on while much waits to be
written: memory is bounded, and none waits for another's writer."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.evaluator.assignment import (
    MAX_CLOSING_CALLS,
    ClosingTurns,
    until_there_is_room,
    without_room,
)
from consumers.evaluator.partition import CatchingUp, OwnedPartition
from consumers.evaluator.recovery import PublishedCalls
from consumers.evaluator.writer import Outbox
from tests.support.fakes.evaluator_fakes import (
    PIPECAT,
    StubEvaluator,
    decision,
    fact,
    owned_of,
    partition_of,
    until_idle,
)
from tests.support.patience import patient

MOST_UNWRITTEN = 2


def owned(closing: int, *, unwritten: int = 0) -> tuple[StubEvaluator, OwnedPartition]:
    evaluator = StubEvaluator()
    evaluator.closing_calls = closing
    partition, _ = partition_of(evaluator)
    for _ in range(unwritten):
        partition.outbox.put(decision(fact("c-1")))
    return evaluator, owned_of(partition)


def test_each_partition_has_its_turn() -> None:
    calls = {0: owned(1), 3: owned(0), 5: owned(3), 7: owned(2)}
    active = {number: each for number, (_, each) in calls.items()}
    turns = ClosingTurns(MOST_UNWRITTEN)
    seen: list[list[int]] = []
    while not seen or turns.has_more:
        turns.close_some(active)
        seen.append([evaluator.closing_calls for evaluator, _ in calls.values()])
    assert seen == [[0, 0, 3, 2], [0, 0, 2, 2], [0, 0, 2, 1], [0, 0, 1, 1], [0, 0, 1, 0], [0, 0, 0, 0]]


def test_a_partition_that_cannot_write_waits() -> None:
    (slow, behind), (quick, ready) = owned(1, unwritten=MOST_UNWRITTEN + 1), owned(1, unwritten=MOST_UNWRITTEN)
    turns = ClosingTurns(MOST_UNWRITTEN)
    turns.close_some({0: behind, 1: ready})
    assert (slow.closing_calls, quick.closing_calls, turns.has_more) == (1, 0, False)


def test_nothing_closes_while_a_partition_recovers() -> None:
    evaluator = StubEvaluator()
    evaluator.closing_calls = MAX_CLOSING_CALLS + 1
    partition, _ = partition_of(evaluator, catching_up=CatchingUp({PIPECAT: 1}, PublishedCalls()))
    turns = ClosingTurns(MOST_UNWRITTEN)
    turns.close_some({0: owned_of(partition)})
    assert (evaluator.closing_calls, turns.has_more) == (MAX_CLOSING_CALLS + 1, False)


def test_one_round_takes_one_step_however_many_calls_are_over() -> None:
    many, more = owned(MAX_CLOSING_CALLS + 5), owned(10 * MAX_CLOSING_CALLS)
    turns = ClosingTurns(MOST_UNWRITTEN)
    turns.close_some({0: many[1], 1: more[1]})
    assert (many[0].closing_calls, more[0].closing_calls) == (MAX_CLOSING_CALLS + 4, 10 * MAX_CLOSING_CALLS)
    assert turns.has_more


def test_where_too_many_calls_are_over_no_more_is_read_until_half_of_them_are_closed() -> None:
    evaluator, each = owned(MAX_CLOSING_CALLS + 2)
    turns = ClosingTurns(MOST_UNWRITTEN)
    behind_at = []
    while evaluator.closing_calls:
        turns.close_some({0: owned(0)[1], 1: each})
        if turns.behind:
            assert turns.behind == {1}
            behind_at.append(evaluator.closing_calls)
    assert behind_at == list(range(MAX_CLOSING_CALLS + 1, MAX_CLOSING_CALLS // 2, -1))


def test_without_partitions_there_is_nothing_to_do() -> None:
    turns = ClosingTurns(MOST_UNWRITTEN)
    turns.close_some({})
    assert not turns.has_more


# Room.

NUMBERS = st.integers(0, 9)
WAITING = st.dictionaries(NUMBERS, st.integers(0, 500), min_size=1)


@given(WAITING, st.integers(1, 1_000), st.sets(NUMBERS))
def test_who_has_nothing_waiting_is_always_read(waiting: dict[int, int], most: int, before: set[int]) -> None:
    assert all(waiting[number] > 0 for number in without_room(waiting, most, before))


@given(WAITING, st.integers(1, 1_000), st.sets(NUMBERS))
def test_when_too_much_waits_those_that_are_read_have_no_more_than_an_even_share(
    waiting: dict[int, int], most: int, before: set[int]
) -> None:
    held_back = without_room(waiting, most, before)
    if sum(waiting.values()) > most:
        assert held_back
        assert sum(records for number, records in waiting.items() if number not in held_back) <= most


@given(WAITING, st.integers(1, 1_000))
def test_as_long_as_there_is_room_everyone_is_read(waiting: dict[int, int], most: int) -> None:
    if sum(waiting.values()) <= most:
        assert without_room(waiting, most, ()) == set()


@pytest.mark.parametrize(("records", "is_held_back"), [(500, False), (501, True), (1_000, True)])
def test_who_was_held_back_is_read_again_when_half_of_its_share_is_written(records: int, *, is_held_back: bool) -> None:
    assert without_room({0: records, 1: 0}, 2_000, {0}) == ({0} if is_held_back else set())


@given(st.integers(0, 9), st.lists(st.integers(0, 300), max_size=60))
def test_one_writer_that_never_writes_holds_at_most_the_bound_and_one_poll(stuck: int, polls: list[int]) -> None:
    most, waiting, held_back = 1_000, dict.fromkeys(range(10), 0), set[int]()
    for records in polls:
        if stuck not in held_back:
            waiting[stuck] += records
        held_back = without_room(waiting, most, held_back)
    assert waiting[stuck] <= most + 300
    assert held_back <= {stuck}


async def test_reading_waits_a_moment_for_a_writer_before_its_partition_stops() -> None:
    outboxes = {0: Outbox(), 1: Outbox()}
    outboxes[0].put(decision(fact("a"), fact("a"), fact("a")))
    outboxes[1].put(decision(fact("b")))
    waiting = asyncio.create_task(until_there_is_room(outboxes, 2, ()))
    await until_idle()
    assert not waiting.done()
    outboxes[0].written(1)
    await until_idle()
    assert waiting.done()


async def test_nobody_waits_where_there_is_room_or_reading_has_stopped_already() -> None:
    outboxes = {0: Outbox(), 1: Outbox()}
    outboxes[0].put(decision(fact("a"), fact("a"), fact("a")))
    await asyncio.wait_for(until_there_is_room(outboxes, 3, ()), patient(1))
    await asyncio.wait_for(until_there_is_room(outboxes, 2, {0}), patient(1))
