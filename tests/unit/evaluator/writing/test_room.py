"""Partitions that are read on while much waits to be written: memory is bounded, and none waits for another's writer."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.evaluator.writing.outbox import Outbox
from consumers.evaluator.writing.room import until_there_is_room, without_room
from tests.support.fakes.evaluator_fakes import fact, until_idle
from tests.support.patience import patient

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
    outboxes[0].put((fact("a"), fact("a"), fact("a")))
    outboxes[1].put((fact("b"),))
    waiting = asyncio.create_task(until_there_is_room(outboxes, 2, ()))
    await until_idle()
    assert not waiting.done()
    outboxes[0].written(1)
    await until_idle()
    assert waiting.done()


async def test_nobody_waits_where_there_is_room_or_reading_has_stopped_already() -> None:
    outboxes = {0: Outbox(), 1: Outbox()}
    outboxes[0].put((fact("a"), fact("a"), fact("a")))
    await asyncio.wait_for(until_there_is_room(outboxes, 3, ()), patient(1))
    await asyncio.wait_for(until_there_is_room(outboxes, 2, {0}), patient(1))
