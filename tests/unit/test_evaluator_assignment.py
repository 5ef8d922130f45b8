"""The partitions that are ours: how far their inputs are known, what is committed, what is given up."""

from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.structs import OffsetAndMetadata

from consumers.engine.effects import PublishScore
from consumers.evaluator.assignment import Assignment, NotCoPartitionedError, assigned_numbers
from consumers.evaluator.partition import InputStart
from schemas.codec import InputSource
from tests.evaluator_fakes import AUDIT, NOW_MS, PIPECAT, Record, StubEvaluator, fact, held_of, partition_of


def test_an_assignment_is_the_same_numbers_of_all_inputs() -> None:
    topics = ("a", "b")
    assert assigned_numbers({TopicPartition(topic, number) for topic in topics for number in (2, 0)}, topics) == [0, 2]
    assert assigned_numbers(set(), topics) == []
    torn = {TopicPartition("a", 0), TopicPartition("b", 0), TopicPartition("a", 1)}
    with pytest.raises(NotCoPartitionedError, match=r"but not b\[1\]\. "):
        assigned_numbers(torn, topics)


class FakeConsumer:
    """What an assignment asks the client: (position, end, stable end, told at) by partition."""

    def __init__(self, known: dict[TopicPartition, tuple[int, int, int | None, int]]) -> None:
        self.known = known
        self.assigned = {TopicPartition(topic, number) for topic in ("a", "b", PIPECAT, AUDIT) for number in range(4)}

    def assignment(self) -> set[TopicPartition]:
        return self.assigned

    def highwater(self, tp: TopicPartition) -> int | None:
        assert tp in self.assigned, "as the client does"
        return self.known[tp][1] if tp in self.known else None

    def last_stable_offset(self, tp: TopicPartition) -> int | None:
        return self.known[tp][2]

    def last_poll_timestamp(self, tp: TopicPartition) -> int:
        return self.known[tp][3]

    async def position(self, tp: TopicPartition) -> int:
        return self.known[tp][0]


TOLD_EVERY_MS = 100


async def told_twice(assignment: Assignment, consumer: FakeConsumer) -> None:
    """The broker has said the same twice; the second time it was asked after the first answer."""
    await assignment.look(consumer)
    for tp, (position, end, stable_end, told_at_ms) in consumer.known.items():
        consumer.known[tp] = (position, end, stable_end, told_at_ms + TOLD_EVERY_MS)
    await assignment.look(consumer)


async def test_time_passes_in_a_partition_once_every_input_is_known() -> None:
    evaluators = [StubEvaluator(), StubEvaluator()]
    for evaluator in evaluators:
        evaluator.wakeup_ms = 0
    assignment = Assignment(["a", "b"])
    assignment.held = {number: held_of(partition_of(evaluators[number])[0]) for number in (0, 1)}
    known: dict[TopicPartition, Any] = {TopicPartition(topic, 0): (4, 4, 4, NOW_MS) for topic in "ab"}
    known[TopicPartition("a", 1)] = (4, 4, 4, NOW_MS)
    consumer = FakeConsumer(known)
    await told_twice(assignment, consumer)
    assignment.advance()
    assert [evaluator.advanced_to_ms for evaluator in evaluators] == [[NOW_MS], []]
    consumer.known[TopicPartition("b", 1)] = (4, 4, None, NOW_MS + 5)
    await told_twice(assignment, consumer)
    assignment.advance()
    assert evaluators[1].advanced_to_ms == [NOW_MS + 5]


async def test_an_answer_says_how_things_were_when_the_one_before_had_come() -> None:
    evaluator = StubEvaluator()
    evaluator.wakeup_ms = 0
    assignment = Assignment(["a"])
    assignment.held = {0: held_of(partition_of(evaluator)[0])}
    consumer = FakeConsumer({TopicPartition("a", 0): (4, 4, 4, NOW_MS)})
    for told_at_ms in (NOW_MS, NOW_MS, NOW_MS + 100, NOW_MS + 100, NOW_MS + 9_000):
        consumer.known[TopicPartition("a", 0)] = (4, 4, 4, told_at_ms)
        await assignment.look(consumer)
        assignment.advance()
    # The last one lay unread while we were frozen, and says nothing of the time since.
    assert evaluator.advanced_to_ms == [NOW_MS, NOW_MS, NOW_MS + 100]


async def test_what_the_client_has_no_more_is_not_asked_for() -> None:
    """A tick may come when the client knows its next assignment already and we do not."""
    evaluators = [StubEvaluator(), StubEvaluator()]
    for evaluator in evaluators:
        evaluator.wakeup_ms = 0
    assignment = Assignment(["a"])
    assignment.held = {number: held_of(partition_of(evaluators[number])[0]) for number in (0, 1)}
    consumer = FakeConsumer({TopicPartition("a", number): (4, 4, 4, NOW_MS) for number in (0, 1)})
    consumer.assigned = {TopicPartition("a", 1)}
    await told_twice(assignment, consumer)
    assignment.advance()
    assert [evaluator.advanced_to_ms for evaluator in evaluators] == [[], [NOW_MS]]
    assert assignment.lag_messages("g") == {("g", "a", "1"): 0}


@pytest.mark.parametrize(
    ("stable_end", "lag"),
    [(4, 0), (9, 5), (None, 6), (-1, 6)],
    ids=["an open transaction is not there yet", "committed so far", "an old broker", "reading uncommitted"],
)
async def test_the_end_is_what_can_be_read(stable_end: int | None, lag: int) -> None:
    assignment = Assignment(["a"])
    assignment.held = {3: held_of(partition_of(StubEvaluator(), 3)[0])}
    await assignment.look(FakeConsumer({TopicPartition("a", 3): (4, 10, stable_end, NOW_MS)}))
    assert assignment.lag_messages("g") == {("g", "a", "3"): lag}


async def test_lag_and_newest_records_are_told_by_topic() -> None:
    partition, _ = partition_of(StubEvaluator())
    assignment = Assignment([PIPECAT, AUDIT])
    assignment.held = {0: held_of(partition)}
    assert assignment.newest_records_ms() == {}
    assert assignment.lag_seconds("g") == {}
    partition.polled([[Record(PIPECAT, 0, NOW_MS - 500), Record(PIPECAT, 1, NOW_MS - 700)]])
    assert assignment.newest_records_ms() == {PIPECAT: NOW_MS - 700}
    told_at_ms = 2**52  # far ahead of any clock, so that it is never stale
    await told_twice(assignment, FakeConsumer({TopicPartition(PIPECAT, 0): (2, 2, 2, told_at_ms)}))
    assert assignment.lag_seconds("g") == {("g", PIPECAT, "0"): 0}


def test_what_is_given_up_is_dropped_and_the_rest_is_known_anew() -> None:
    partitions = [partition_of(StubEvaluator([PublishScore(fact("c-1"))]), number)[0] for number in (0, 1)]
    assignment = Assignment([PIPECAT])
    assignment.held = {partition.number: held_of(partition) for partition in partitions}
    for partition in partitions:
        partition.fold([[Record(PIPECAT, 0, partition=partition.number)]], None)
    at = {TopicPartition(PIPECAT, 1): OffsetAndMetadata(1, "")}
    assignment.committed(at)
    assert assignment.not_committed(at) == {}
    assert assignment.unwritten_records == 2
    assert [held.partition.number for held in assignment.keep_only([1])] == [0]
    assert [partition.is_active for partition in partitions] == [False, True]
    assert list(assignment.active) == [1]
    assert assignment.unwritten_records == 1
    assert assignment.not_committed(at) == at  # somebody else may have committed since


def test_the_lag_of_the_watermark_is_what_a_restart_reads_again() -> None:
    evaluator = StubEvaluator()
    evaluator.watermarks = {InputSource.PIPECAT: 2}
    partition, _ = partition_of(evaluator, 3, {PIPECAT: InputStart(2, 0), AUDIT: InputStart(0, 0)})
    partition.fold([[Record(PIPECAT, 2, partition=3), Record(PIPECAT, 8, partition=3)]], None)
    assignment = Assignment([PIPECAT, AUDIT])
    assignment.held = {3: held_of(partition)}
    assert assignment.watermark_lag_messages("g") == {("g", PIPECAT, "3"): 7, ("g", AUDIT, "3"): 0}
    partition.drop()
    assert assignment.watermark_lag_messages("g") == {}
    assert assignment.waiting == [3]
