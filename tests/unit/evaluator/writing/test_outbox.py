"""Decisions that wait to be written stay in order and whole, and their waiters wake at the right moment."""

import asyncio
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.evaluator import writer as outbox_module
from consumers.evaluator.writer import MAX_TRANSACTION_RECORDS, MAX_TRANSACTION_STEPS_BYTES, Outbox
from tests.support.fakes.evaluator_fakes import decision, fact, until_idle, waiting_in


def outbox_of(*decisions: str) -> Outbox:
    """Each word is a decision; its letters are conversations."""
    outbox = Outbox()
    for each in decisions:
        outbox.put(decision(*map(fact, each)))
    return outbox


def test_decisions_stay_until_they_are_written_in_order_and_whole() -> None:
    outbox = outbox_of("a", "bcd", "e")
    assert waiting_in(outbox) == [["a"], ["b", "c", "d"], ["e"]]
    assert outbox.records == 5
    outbox.written(2)
    assert waiting_in(outbox) == [["e"]]
    assert outbox.records == 1


async def test_steps_that_decided_nothing_are_written_too() -> None:
    outbox = Outbox()
    filling = asyncio.create_task(outbox.until_filled())
    await until_idle()
    assert not filling.done()
    outbox.put(decision(steps=b"1"))
    await filling
    assert (waiting_in(outbox), outbox.records) == ([[]], 0)


@pytest.mark.parametrize(
    ("sizes", "taken"),
    [
        pytest.param([MAX_TRANSACTION_RECORDS, 1], 1, id="a full one"),
        pytest.param([MAX_TRANSACTION_RECORDS - 1, 2, 1], 2, id="a decision is never torn"),
        pytest.param([MAX_TRANSACTION_RECORDS * 2, 1], 1, id="one decision may be larger"),
        pytest.param([1, 1, 1], 3, id="all there is"),
    ],
)
def test_a_transaction_takes_whole_decisions_up_to_its_size(sizes: list[int], taken: int) -> None:
    outbox = outbox_of(*("a" * size for size in sizes))
    assert [len(each.records) for each in outbox.first()] == sizes[:taken]


def test_its_steps_have_a_bound_too() -> None:
    outbox = Outbox()
    half = bytes(MAX_TRANSACTION_STEPS_BYTES // 2)
    for steps in (half, half, b"1"):
        outbox.put(decision(steps=steps))
    assert [each.steps for each in outbox.first()] == [half, half]


def test_a_transaction_is_of_one_version() -> None:
    outbox = Outbox()
    for version in ("1", "1", "2", "1"):
        outbox.put(decision(fact("a"), version=version))
    taken = []
    while decisions := outbox.first():
        taken.append([each.version for each in decisions])
        outbox.written(len(decisions))
    assert taken == [["1", "1"], ["2"], ["1"]]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.sampled_from("12")), max_size=12))
def test_taking_all_transactions_out_gives_everything_once_and_in_order(drawn: list[tuple[int, int, str]]) -> None:
    put = [decision(*[fact("a")] * records, steps=bytes(size), version=version) for records, size, version in drawn]
    outbox, taken = Outbox(), []
    for each in put:
        outbox.put(each)
    with (
        mock.patch.object(outbox_module, "MAX_TRANSACTION_RECORDS", 10),
        mock.patch.object(outbox_module, "MAX_TRANSACTION_STEPS_BYTES", 20),
    ):
        while decisions := outbox.first():
            assert sum(len(each.records) for each in decisions[:-1]) < 10
            assert sum(len(each.steps) for each in decisions[:-1]) < 20
            assert len({each.version for each in decisions}) == 1
            taken += decisions
            outbox.written(len(decisions))
    assert taken == put
    assert outbox.records == 0


async def test_one_waits_for_what_was_put_before_and_for_nothing_later() -> None:
    outbox = outbox_of("a", "b")
    waiting = asyncio.create_task(outbox.until_written())
    await until_idle()
    outbox.put(decision(fact("c")))
    outbox.written(1)
    await until_idle()
    assert not waiting.done()
    outbox.written(1)
    await waiting
    assert waiting_in(outbox) == [["c"]]


def test_a_moment_is_over_when_all_that_was_put_before_it_is_written() -> None:
    outbox = outbox_of("a", "b")
    moment = outbox.put_so_far
    outbox.put(decision(fact("c")))
    seen = [outbox.has_written(moment)]
    for _ in range(2):
        outbox.written(1)
        seen.append(outbox.has_written(moment))
    assert seen == [False, False, True]
    assert not outbox.has_written(outbox.put_so_far)


async def test_nobody_waits_for_an_empty_outbox() -> None:
    outbox = Outbox()
    await outbox.until_written()
    outbox.put(decision(fact("a")))
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
    outbox.put(decision(fact("c")))
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
    outbox.put(decision(fact("b")))
    await filling
