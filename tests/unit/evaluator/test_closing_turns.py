"""Calls that are over close a few at a time, partition by partition."""

from consumers.evaluator.partition import Partition
from consumers.evaluator.recovery import Recovery
from consumers.evaluator.service import MAX_CLOSING_CALLS, ClosingTurns
from tests.support.fakes.evaluator_fakes import (
    StubEvaluator,
    decision,
    fact,
    partition_of,
    row,
)

MOST_UNWRITTEN = 2


def owned(closing: int, *, unwritten: int = 0) -> tuple[StubEvaluator, Partition]:
    evaluator = StubEvaluator()
    evaluator.closing_calls = closing
    partition, _ = partition_of(evaluator)
    for _ in range(unwritten):
        partition.outbox.put(decision(fact("c-1")))
    return evaluator, partition


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
    partition, _ = partition_of(evaluator, recovery=Recovery(row(1), 0, 1))
    turns = ClosingTurns(MOST_UNWRITTEN)
    turns.close_some({0: partition})
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
