"""Records that wait to be written stay in order and in whole groups, and their waiters wake at the right moment."""

import asyncio
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.evaluator.writing import outbox as outbox_module
from consumers.evaluator.writing.outbox import MAX_TRANSACTION_RECORDS, Outbox
from tests.support.fakes.evaluator_fakes import fact, until_idle, waiting_in


def outbox_of(*groups: str) -> Outbox:
    """Each word is a group; its letters are conversations."""
    outbox = Outbox()
    for group in groups:
        outbox.put(tuple(fact(letter) for letter in group))
    return outbox


def test_groups_stay_until_they_are_written_in_order_and_whole() -> None:
    outbox = outbox_of("a", "bcd", "e")
    assert waiting_in(outbox) == [["a"], ["b", "c", "d"], ["e"]]
    assert outbox.records == 5
    outbox.written(2)
    assert waiting_in(outbox) == [["e"]]
    assert outbox.records == 1


async def test_an_empty_group_is_nothing_to_write() -> None:
    outbox = outbox_of("")
    assert outbox.first() == []
    filling = asyncio.create_task(outbox.until_filled())
    await until_idle()
    assert not filling.done()
    outbox.put((fact("a"),))
    await filling


@pytest.mark.parametrize(
    ("sizes", "taken"),
    [
        pytest.param([MAX_TRANSACTION_RECORDS, 1], 1, id="a full one"),
        pytest.param([MAX_TRANSACTION_RECORDS - 1, 2, 1], 2, id="a group is never torn"),
        pytest.param([MAX_TRANSACTION_RECORDS * 2, 1], 1, id="one group may be larger"),
        pytest.param([1, 1, 1], 3, id="all there is"),
    ],
)
def test_a_transaction_takes_whole_groups_up_to_its_size(sizes: list[int], taken: int) -> None:
    outbox = outbox_of(*("a" * size for size in sizes))
    assert [len(group) for group in outbox.first()] == sizes[:taken]


@given(st.lists(st.integers(1, 9), max_size=12))
def test_taking_all_transactions_out_gives_everything_once_and_in_order(sizes: list[int]) -> None:
    taken: list[int] = []
    with mock.patch.object(outbox_module, "MAX_TRANSACTION_RECORDS", 10):
        outbox = outbox_of(*("a" * size for size in sizes))
        while groups := outbox.first():
            assert sum(len(group) for group in groups[:-1]) < 10
            taken += [len(group) for group in groups]
            outbox.written(len(groups))
    assert taken == sizes
    assert outbox.records == 0


async def test_one_waits_for_what_was_put_before_and_for_nothing_later() -> None:
    outbox = outbox_of("a", "b")
    waiting = asyncio.create_task(outbox.until_written())
    await until_idle()
    outbox.put((fact("c"),))
    outbox.written(1)
    await until_idle()
    assert not waiting.done()
    outbox.written(1)
    await waiting
    assert waiting_in(outbox) == [["c"]]


async def test_nobody_waits_for_an_empty_outbox() -> None:
    outbox = Outbox()
    await outbox.until_written()
    outbox.put((fact("a"),))
    outbox.written(1)
    await outbox.until_written()


async def test_what_is_forgotten_is_waited_for_no_longer() -> None:
    outbox = outbox_of("a", "b")
    waiting = asyncio.create_task(outbox.until_written())
    await until_idle()
    outbox.clear()
    await waiting
    assert outbox.records == 0
    assert outbox.first() == []


async def test_a_transaction_that_ends_after_everything_was_forgotten_takes_nothing_out() -> None:
    outbox = outbox_of("a", "b")
    outbox.clear()
    outbox.written(2)
    assert outbox.records == 0
    outbox.put((fact("c"),))
    waiting = asyncio.create_task(outbox.until_written())
    await until_idle()
    assert not waiting.done()
    outbox.written(1)
    await waiting


async def test_who_writes_sleeps_until_there_is_something() -> None:
    outbox = outbox_of("a")
    await outbox.until_filled()
    outbox.written(1)
    filling = asyncio.create_task(outbox.until_filled())
    await until_idle()
    assert not filling.done()
    outbox.put((fact("b"),))
    await filling
