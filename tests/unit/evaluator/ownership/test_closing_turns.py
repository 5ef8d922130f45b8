"""Calls that are over close a few at a time, partition by partition."""

from prometheus_client import CollectorRegistry

from consumers.engine.limits import Limits
from consumers.evaluator.ownership.closing_turns import ClosingTurns
from consumers.evaluator.partition.owned_partition import OwnedPartition
from consumers.evaluator.partition.partition import Partition
from consumers.runtime.registry import Instruments
from schemas.topics import SOURCE_BY_TOPIC
from tests.support.fakes.evaluator_fakes import StubEvaluator, fact, owned_of

MOST_UNWRITTEN = 2


def owned(closing: int, *, unwritten: int = 0) -> tuple[StubEvaluator, OwnedPartition]:
    evaluator = StubEvaluator()
    evaluator.closing_calls = closing
    partition = Partition(0, evaluator, Limits(), SOURCE_BY_TOPIC, Instruments(CollectorRegistry(), ["evaluator"]))
    for _ in range(unwritten):
        partition.outbox.put((fact("c-1"),))
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


def test_nothing_closes_while_a_partition_is_stopped() -> None:
    evaluator, stopped = owned(1)
    stopped.partition.stops = {}
    turns = ClosingTurns(MOST_UNWRITTEN)
    turns.close_some({0: stopped})
    assert (evaluator.closing_calls, turns.has_more) == (1, False)


def test_without_partitions_there_is_nothing_to_do() -> None:
    turns = ClosingTurns(MOST_UNWRITTEN)
    turns.close_some({})
    assert not turns.has_more
