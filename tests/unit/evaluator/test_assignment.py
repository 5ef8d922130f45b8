"""Partitions that are ours: how far their inputs are known, which offsets they commit, and which ones are given up."""

from typing import Any, NamedTuple

import pytest
from aiokafka import TopicPartition
from aiokafka.structs import OffsetAndMetadata

from consumers.engine.effects import Count, PublishScore
from consumers.evaluator import reading as input_merge
from consumers.evaluator.assignment import Assignment, NotCoPartitionedError, assigned_numbers
from consumers.evaluator.reading import PATIENCE_MS
from consumers.runtime.kafka.log_ends import LogEnd
from schemas.closed_sets import InputSource
from tests.support.brokers.record_bytes import stand_in
from tests.support.fakes.evaluator_fakes import (
    AUDIT,
    NOW_MS,
    PIPECAT,
    Clocks,
    Record,
    StubEvaluator,
    fact,
    partition_of,
    trusted_clock,
)


def test_an_assignment_is_the_same_numbers_of_all_inputs() -> None:
    topics = ("a", "b")
    assert assigned_numbers({TopicPartition(topic, number) for topic in topics for number in (2, 0)}, topics) == [0, 2]
    assert assigned_numbers(set(), topics) == []
    torn = {TopicPartition("a", 0), TopicPartition("b", 0), TopicPartition("a", 1)}
    with pytest.raises(NotCoPartitionedError, match=r"but not b\[1\]\. "):
        assigned_numbers(torn, topics)


class FakeConsumer:
    """The client's answers to an assignment: (position, end, stable end, time of the last poll) by partition."""

    def __init__(self, known: dict[TopicPartition, tuple[int, int, int | None, int]]) -> None:
        self.known = known
        self.paused: set[TopicPartition] = set()
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

    def pause(self, tp: TopicPartition) -> None:
        self.paused.add(tp)

    def resume(self, tp: TopicPartition) -> None:
        self.paused.remove(tp)


TOLD_EVERY_MS = 100
LATER = Clocks(NOW_MS + 10_000, NOW_MS + 10_000)


async def told_twice(assignment: Assignment, consumer: FakeConsumer) -> None:
    """The broker has said the same twice; the second time it was asked after the first answer."""
    await assignment.look(consumer)
    for tp, (position, end, stable_end, answered_at_ms) in consumer.known.items():
        consumer.known[tp] = (position, end, stable_end, answered_at_ms + TOLD_EVERY_MS)
    await assignment.look(consumer)


async def test_time_passes_in_a_partition_once_every_input_is_known() -> None:
    evaluators = [StubEvaluator(), StubEvaluator()]
    for evaluator in evaluators:
        evaluator.wakeup_ms = 0
    assignment = Assignment(["a", "b"], {}, trusted_clock(LATER))
    assignment.owned = {number: partition_of(evaluators[number])[0] for number in (0, 1)}
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


async def test_what_cannot_be_decoded_leaves_no_gap_and_says_nothing_of_the_time() -> None:
    clock = trusted_clock(LATER)
    assignment = Assignment(["a"], {}, clock)
    partition, _ = partition_of(StubEvaluator())
    partition.next_offsets["a"] = 4
    assignment.owned = {0: partition}
    consumer = FakeConsumer({TopicPartition("a", 0): (4, 4, 4, NOW_MS)})
    await told_twice(assignment, consumer)
    assignment.polled({0: [[stand_in("a", 4, 9)]]})
    assert assignment.gaps.gaps == {}
    assert not clock.correct()
    assert not clock._proofs


async def test_an_answer_says_how_things_were_when_the_one_before_had_come() -> None:
    evaluator = StubEvaluator()
    evaluator.wakeup_ms = 0
    assignment = Assignment(["a"], {}, trusted_clock(LATER))
    assignment.owned = {0: partition_of(evaluator)[0]}
    consumer = FakeConsumer({TopicPartition("a", 0): (4, 4, 4, NOW_MS)})
    for answered_at_ms in (NOW_MS, NOW_MS, NOW_MS + 100, NOW_MS + 100, NOW_MS + 9_000):
        consumer.known[TopicPartition("a", 0)] = (4, 4, 4, answered_at_ms)
        await assignment.look(consumer)
        assignment.advance()
    # The last one lay unread while we were frozen, and says nothing of the time since.
    assert evaluator.advanced_to_ms == [NOW_MS, NOW_MS, NOW_MS + 100]


async def test_what_the_client_has_no_more_is_not_asked_for() -> None:
    """A tick may come when the client knows its next assignment already and we do not."""
    evaluators = [StubEvaluator(), StubEvaluator()]
    for evaluator in evaluators:
        evaluator.wakeup_ms = 0
    assignment = Assignment(["a"], {}, trusted_clock())
    assignment.owned = {number: partition_of(evaluators[number])[0] for number in (0, 1)}
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
    assignment = Assignment(["a"], {}, trusted_clock())
    assignment.owned = {3: partition_of(StubEvaluator(), 3)[0]}
    await assignment.look(FakeConsumer({TopicPartition("a", 3): (4, 10, stable_end, NOW_MS)}))
    assert assignment.lag_messages("g") == {("g", "a", "3"): lag}


async def test_lag_and_newest_records_are_told_by_topic() -> None:
    partition, _ = partition_of(StubEvaluator())
    assignment = Assignment([PIPECAT, AUDIT], {}, trusted_clock())
    assignment.owned = {0: partition}
    assert assignment.newest_records_ms() == {}
    assert assignment.lag_seconds("g") == {}
    partition.polled([[Record(PIPECAT, 0, NOW_MS - 500), Record(PIPECAT, 1, NOW_MS - 700)]])
    assert assignment.newest_records_ms() == {PIPECAT: NOW_MS - 500}  # a producer's clock stepped back
    answered_at_ms = 2**52  # far ahead of any clock, so that it is never stale
    await told_twice(assignment, FakeConsumer({TopicPartition(PIPECAT, 0): (2, 2, 2, answered_at_ms)}))
    assert assignment.lag_seconds("g") == {("g", PIPECAT, "0"): 0}


def test_what_is_given_up_is_dropped_and_the_rest_is_known_anew() -> None:
    partitions = [partition_of(StubEvaluator([PublishScore(fact("c-1"))]), number)[0] for number in (0, 1)]
    assignment = Assignment([PIPECAT], {}, trusted_clock())
    assignment.owned = {partition.number: partition for partition in partitions}
    for partition in partitions:
        partition.fold([[Record(PIPECAT, 0, partition=partition.number)]], None)
    at = {TopicPartition(PIPECAT, 1): OffsetAndMetadata(1, "")}
    assignment.committed(at)
    assert assignment.not_committed(at) == {}
    assert assignment.unwritten_records == 2
    assert [owned.number for owned in assignment.keep_only([1])] == [0]
    assert [partition.is_active for partition in partitions] == [False, True]
    assert list(assignment.active) == [1]
    assert assignment.unwritten_records == 1
    assert assignment.not_committed(at) == at  # another owner may have committed since


def test_what_a_given_up_partition_has_folded_is_counted() -> None:
    """A poll may end between the last scrape and the hand-over; the successor counts its records as replayed, and nobody as folded."""
    evaluator = StubEvaluator()
    partition, registry = partition_of(evaluator)
    assignment = Assignment([PIPECAT], {}, trusted_clock())
    assignment.owned = {0: partition}
    evaluator.counts = [Count("callgauge_events_total", ("audit", "folded"), 15)]
    assignment.keep_only(())
    assert registry.get_sample_value("callgauge_events_total", {"source": "audit", "outcome": "folded"}) == 15


def test_the_lag_of_the_watermark_is_what_a_restart_reads_again() -> None:
    evaluator = StubEvaluator()
    evaluator.watermarks = {InputSource.PIPECAT: 2}
    partition, _ = partition_of(evaluator, 3, {PIPECAT: 2, AUDIT: 0})
    partition.fold([[Record(PIPECAT, 2, partition=3), Record(PIPECAT, 8, partition=3)]], None)
    assignment = Assignment([PIPECAT, AUDIT], {}, trusted_clock())
    assignment.owned = {3: partition}
    assert assignment.watermark_lag_messages("g") == {("g", PIPECAT, "3"): 7, ("g", AUDIT, "3"): 0}
    partition.drop()
    assert assignment.watermark_lag_messages("g") == {}
    assert assignment.waiting == [3]


class Lagging(NamedTuple):
    """Two inputs have ten records each; the audit log is read as far as the tests say."""

    evaluator: StubEvaluator
    assignment: Assignment
    consumer: FakeConsumer
    clocks: Clocks

    @property
    def folded(self) -> list[tuple[str, int]]:
        return [(arrival.source, arrival.offset) for arrival in self.evaluator.arrivals]

    async def read(self, *records: Record) -> None:
        """These are handed over."""
        runs = [[record for record in records if record.topic == topic] for topic in (PIPECAT, AUDIT)]
        runs = [run for run in runs if run]
        for run in runs:
            tp = TopicPartition(run[0].topic, 0)
            self.consumer.known[tp] = (run[-1].offset + 1, *self.consumer.known[tp][1:])
        self.assignment.owned[0].polled(runs)
        await self.assignment.look(self.consumer)
        self.assignment.fold(0, runs)
        self.assignment.pause_leading_inputs(self.consumer)


@pytest.fixture
async def lagging() -> Lagging:
    evaluator = StubEvaluator()
    clocks = Clocks()
    assignment = Assignment([PIPECAT, AUDIT], {}, trusted_clock(clocks))
    assignment.owned = {0: partition_of(evaluator)[0]}
    consumer = FakeConsumer({TopicPartition(topic, 0): (0, 10, 10, NOW_MS) for topic in (PIPECAT, AUDIT)})
    await told_twice(assignment, consumer)
    return Lagging(evaluator, assignment, consumer, clocks)


async def test_an_input_that_is_ahead_waits_for_the_one_that_lags(lagging: Lagging) -> None:
    await lagging.read(*(Record(PIPECAT, offset, NOW_MS + offset * 1_000) for offset in range(10)))
    assert lagging.folded == []
    assert lagging.assignment.waiting_records == 10
    partition = lagging.assignment.owned[0]
    assert partition.offsets_to_commit()[PIPECAT] == 0  # a successor reads the waiting records again
    await lagging.read(Record(AUDIT, 0, NOW_MS + 500), Record(AUDIT, 1, NOW_MS + 2_500))
    assert lagging.folded == [("pipecat", 0), ("audit", 0), ("pipecat", 1), ("pipecat", 2), ("audit", 1)]
    assert partition.next_offsets[PIPECAT] == 3
    await lagging.read(*(Record(AUDIT, offset, NOW_MS + 2_500) for offset in range(2, 10)))
    assert lagging.assignment.waiting_records == 0  # neither lags any more
    assert len(lagging.folded) == 20


async def test_what_waits_is_folded_when_the_other_input_has_nothing_more(lagging: Lagging) -> None:
    await lagging.read(*(Record(PIPECAT, offset, NOW_MS + 90_000) for offset in range(10)))
    assert lagging.folded == []
    lagging.consumer.known[TopicPartition(AUDIT, 0)] = (10, 10, 10, NOW_MS)  # markers of transactions, no records
    await lagging.assignment.look(lagging.consumer)
    lagging.assignment.advance()
    assert len(lagging.folded) == 10


async def test_an_input_far_ahead_is_not_read_on(lagging: Lagging, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_merge, "MAX_AHEAD_RECORDS", 4)
    ahead = TopicPartition(PIPECAT, 0)
    await lagging.read(*(Record(PIPECAT, offset, NOW_MS + offset * 1_000) for offset in range(4)))
    assert lagging.consumer.paused == set()
    await lagging.read(Record(PIPECAT, 4, NOW_MS + 4_000))
    assert lagging.consumer.paused == {ahead}
    await lagging.read(Record(AUDIT, 0, NOW_MS + 1_000))
    assert lagging.consumer.paused == {ahead}, "three wait still"
    await lagging.read(Record(AUDIT, 1, NOW_MS + 2_000))
    assert lagging.consumer.paused == set()


async def test_a_producer_s_clock_that_steps_back_stops_nothing(
    lagging: Lagging, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_merge, "MAX_AHEAD_RECORDS", 1)
    backwards = [Record(topic, 0, NOW_MS + 9_000) for topic in (PIPECAT, AUDIT)]
    backwards += [Record(topic, offset, NOW_MS) for topic in (PIPECAT, AUDIT) for offset in (1, 2)]
    await lagging.read(*backwards)
    assert len(lagging.folded) == 6
    assert lagging.consumer.paused == set()


async def test_after_a_rebalance_what_waited_is_read_again(lagging: Lagging) -> None:
    await lagging.read(*(Record(PIPECAT, offset, NOW_MS) for offset in range(5)))
    assert lagging.assignment.keep_only([0]) == []
    assert lagging.assignment.waiting_records == 0
    assert lagging.assignment.owned[0].next_offsets[PIPECAT] == 0
    assert lagging.assignment.newest_records_ms() == {}


# Inputs with replicas.


class Replicated(Lagging):
    """The audit log has replicas; all visible records of both inputs were read a hundred milliseconds ago."""

    def leader_says(self, offset: int, asked_at_ms: int) -> None:
        self.assignment._log_ends[TopicPartition(AUDIT, 0)] = LogEnd(offset, asked_at_ms)  # type: ignore[index]  # a dict here

    async def known_ms(self) -> int | None:
        await self.assignment.look(self.consumer)
        return self.assignment.known_ms(0)


@pytest.fixture
async def replicated() -> Replicated:
    evaluator = StubEvaluator()
    clocks = Clocks()
    assignment = Assignment([PIPECAT, AUDIT], {TopicPartition(AUDIT, 0): None}, trusted_clock(clocks))
    assignment.owned = {0: partition_of(evaluator)[0]}
    consumer = FakeConsumer({TopicPartition(topic, 0): (10, 10, 10, NOW_MS) for topic in (PIPECAT, AUDIT)})
    await told_twice(assignment, consumer)
    return Replicated(evaluator, assignment, consumer, clocks)


async def test_that_readers_see_nothing_more_does_not_say_that_there_is_nothing(replicated: Replicated) -> None:
    assert await replicated.known_ms() is None
    replicated.leader_says(10, NOW_MS - 70)
    assert await replicated.known_ms() == NOW_MS - 70
    replicated.leader_says(11, NOW_MS + 30)
    assert await replicated.known_ms() is None, "nothing was handed over that would say up to when it is known"
    assert replicated.assignment.lag_messages("g")["g", AUDIT, "0"] == 1
    await replicated.read(Record(AUDIT, 10, NOW_MS - 20))
    assert await replicated.known_ms() == NOW_MS, "the other input's word is older than the leader's now"


async def test_records_that_cannot_be_seen_yet_are_waited_for(replicated: Replicated) -> None:
    replicated.leader_says(11, NOW_MS - 70)
    await replicated.read(Record(PIPECAT, 10, NOW_MS - 10))
    assert replicated.folded == []
    await replicated.read(Record(AUDIT, 10, NOW_MS - 80))
    assert replicated.folded == [("audit", 10), ("pipecat", 10)]


async def test_what_an_open_transaction_hides_is_not_written_yet(replicated: Replicated) -> None:
    replicated.leader_says(14, NOW_MS - 70)
    replicated.consumer.known[TopicPartition(AUDIT, 0)] = (10, 12, 10, NOW_MS + TOLD_EVERY_MS)
    assert await replicated.known_ms() == NOW_MS - 70, "it may have been replaced since"
    assert replicated.assignment.lag_messages("g")["g", AUDIT, "0"] == 0


async def test_what_is_never_shown_is_not_waited_for_for_ever(replicated: Replicated) -> None:
    replicated.leader_says(11, NOW_MS - 70)
    await replicated.read(Record(PIPECAT, 10, NOW_MS - 10))

    async def waits_after(passed_ms: int) -> int:
        replicated.clocks.go(NOW_MS + passed_ms - replicated.clocks.steady_ms)
        replicated.consumer.known[TopicPartition(PIPECAT, 0)] = (11, 11, 11, NOW_MS + passed_ms)
        await replicated.assignment.look(replicated.consumer)
        replicated.assignment.advance()
        return replicated.assignment.waiting_records

    assert await waits_after(PATIENCE_MS - 1) == 1
    replicated.leader_says(13, NOW_MS + PATIENCE_MS)  # more records that cannot be seen change nothing
    assert await waits_after(PATIENCE_MS + 1) == 0
    assert replicated.assignment.known_ms(0) is None, "of silence nothing is known all the same"
    await replicated.read(Record(AUDIT, 10, NOW_MS), Record(PIPECAT, 11, NOW_MS + PATIENCE_MS))
    assert replicated.assignment.waiting_records == 1, "it moves again, so it is waited for again"


async def test_an_input_that_we_do_not_read_on_is_waited_for(replicated: Replicated) -> None:
    replicated.leader_says(10, NOW_MS - 70)
    ahead, behind = TopicPartition(PIPECAT, 0), TopicPartition(AUDIT, 0)
    replicated.assignment.paused.add(ahead)
    for passed_ms in (0, PATIENCE_MS + 1):
        replicated.clocks.go(passed_ms)
        replicated.consumer.known |= {ahead: (10, 15, 15, NOW_MS), behind: (10, 10, 10, NOW_MS + passed_ms)}
        await replicated.assignment.look(replicated.consumer)
    replicated.assignment.paused.clear()
    await replicated.read(Record(AUDIT, 10, NOW_MS))
    assert replicated.assignment.waiting_records == 1


# Partitions to look at.


async def test_only_the_partitions_of_a_poll_are_looked_at() -> None:
    assignment = Assignment([PIPECAT], {}, trusted_clock(LATER))
    assignment.owned = {number: partition_of(StubEvaluator(), number)[0] for number in (0, 1)}
    consumer = FakeConsumer({TopicPartition(PIPECAT, number): (0, 0, 0, NOW_MS) for number in (0, 1)})
    await assignment.look(consumer, [1])
    assert assignment.lag_messages("g") == {("g", PIPECAT, "1"): 0}
    await assignment.look(consumer)
    assert assignment.lag_messages("g") == {("g", PIPECAT, "0"): 0, ("g", PIPECAT, "1"): 0}


async def test_what_was_looked_at_less_often_is_known_up_to_less() -> None:
    assignment = Assignment([PIPECAT], {}, trusted_clock(LATER))
    assignment.owned = {number: partition_of(StubEvaluator(), number)[0] for number in (0, 1)}
    consumer = FakeConsumer({})
    for answered_at_ms, numbers in ((0, [0, 1]), (25, [1]), (50, [1]), (75, [0, 1])):
        consumer.known = {TopicPartition(PIPECAT, number): (0, 0, 0, NOW_MS + answered_at_ms) for number in (0, 1)}
        await assignment.look(consumer, numbers)
    # Each answer is true up to when the one before it had come, as far as we saw that one.
    assert [assignment.known_ms(number) for number in (0, 1)] == [NOW_MS, NOW_MS + 50]


async def test_when_the_clock_was_set_every_partition_is_looked_at() -> None:
    clocks = Clocks()
    assignment = Assignment([PIPECAT], {}, trusted_clock(clocks))
    assignment.owned = {number: partition_of(StubEvaluator(), number)[0] for number in (0, 1)}
    consumer = FakeConsumer({})

    async def looks(numbers: list[int] | None = None) -> None:
        consumer.known = {TopicPartition(PIPECAT, number): (0, 0, 0, clocks.wall_ms) for number in (0, 1)}
        clocks.go(1_000)
        await assignment.look(consumer, numbers)

    await looks()
    await looks()
    assert assignment.known_ms(1) == NOW_MS
    consumer.known = {TopicPartition(PIPECAT, number): (0, 0, 0, clocks.wall_ms) for number in (0, 1)}
    clocks.go(5_000)  # we are frozen, and meanwhile the clock is set back
    clocks.wall_ms -= 3_000
    await assignment.look(consumer, [0])
    await assignment.look(consumer)
    await looks()
    # By the clock as it is now, the answer before the step came later than it did.
    assert assignment.known_ms(1) == assignment.known_ms(0) == NOW_MS + 1_000
