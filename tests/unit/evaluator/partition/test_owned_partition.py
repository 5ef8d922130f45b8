"""A partition between two owners: the facts that a commit passes to the next one."""

from typing import NamedTuple

import pytest
from aiokafka import TopicPartition
from aiokafka.structs import OffsetAndMetadata

from consumers.evaluator.ownership.assignment import Assignment
from consumers.evaluator.partition.owned_partition import OwnedPartition
from consumers.evaluator.partition.partition import InputStart
from consumers.evaluator.recall.commit_note import CommitNote
from schemas.closed_sets import InputSource
from tests.support.fakes.evaluator_fakes import (
    AUDIT,
    NOW_MS,
    PIPECAT,
    Record,
    StubEvaluator,
    owned_of,
    partition_of,
    trusted_clock,
)

OVERLAP_MS = 900_000
LEDGER_START, LEDGER_END = 100, 5_000
INPUT_END = 1_000
"""How far the former owner may have read: each of its scores is below `LEDGER_END`."""


class Replaying(NamedTuple):
    """A partition that was taken over at offset 10 and is read again up to `INPUT_END`."""

    evaluator: StubEvaluator
    owned: OwnedPartition

    def fold(self, offset: int) -> None:
        """Everything up to this offset is read."""
        self.owned.partition.fold([[Record(PIPECAT, offset)]], None)
        self.owned.read_to({PIPECAT: offset + 1})

    def scores(self, now_ms: int) -> int:
        """The offset from which a successor would read the ledger."""
        (committed,) = self.owned.to_commit(now_ms).values()
        return CommitNote.parse(committed.metadata).scores


@pytest.fixture
def replaying() -> Replaying:
    evaluator = StubEvaluator()
    owned = owned_of(partition_of(evaluator)[0])
    owned.began(
        {PIPECAT: InputStart(10, INPUT_END)}, {PIPECAT: INPUT_END}, LEDGER_START, LEDGER_END,
        now_ms=0, overlap_ms=OVERLAP_MS,
    )  # fmt: skip
    return Replaying(evaluator, owned)


def test_a_commit_says_where_to_read_and_what_to_recall() -> None:
    evaluator = StubEvaluator()
    partition, _ = partition_of(evaluator)
    owned = owned_of(partition)
    assert owned.to_commit(NOW_MS) == {}  # the written scores are not recalled yet: the committed offsets stay
    starts = {PIPECAT: InputStart(5, 0), AUDIT: InputStart(2, 0)}
    owned.began(starts, {PIPECAT: 5, AUDIT: 2}, 40, 60, now_ms=NOW_MS, overlap_ms=0)
    partition.fold([[Record(PIPECAT, 5), Record(PIPECAT, 6)]], None)
    evaluator.watermarks = {InputSource.PIPECAT: 6}
    assert owned.to_commit(NOW_MS) == {
        TopicPartition(PIPECAT, 0): OffsetAndMetadata(6, CommitNote(40, 7).text()),
        TopicPartition(AUDIT, 0): OffsetAndMetadata(2, CommitNote(40, 2).text()),
    }


def test_a_replay_on_its_way_says_nothing_of_where_scores_begin(replaying: Replaying) -> None:
    """A call began at 700 and is open still; the former owner wrote its first scores, so they are below LEDGER_END."""
    replaying.evaluator.watermarks = {InputSource.PIPECAT: 10}
    replaying.fold(500)
    assert replaying.scores(10_000) == LEDGER_START
    replaying.fold(1_500)
    replaying.evaluator.watermarks = {InputSource.PIPECAT: 700}
    assert replaying.scores(10_000 + OVERLAP_MS) == LEDGER_START
    assert replaying.scores(20_000 + 2 * OVERLAP_MS) == LEDGER_START


def test_what_begins_behind_the_replay_has_its_scores_behind_the_ledger(replaying: Replaying) -> None:
    replaying.fold(INPUT_END - 1)
    assert replaying.scores(10_000) == LEDGER_START
    assert replaying.scores(OVERLAP_MS) == LEDGER_START
    assert replaying.scores(10_000 + OVERLAP_MS) == LEDGER_END


def test_a_replay_is_over_by_position_and_not_by_records(replaying: Replaying) -> None:
    """The end of a transaction takes an offset and is no record."""
    replaying.owned.partition.fold([[Record(PIPECAT, INPUT_END - 2)]], None)
    replaying.owned.read_to({PIPECAT: INPUT_END})
    replaying.scores(10_000)
    assert replaying.scores(20_000 + OVERLAP_MS) == LEDGER_END


@pytest.mark.parametrize(
    "positions",
    [
        pytest.param({PIPECAT: INPUT_END}, id="an input is not known"),
        pytest.param({PIPECAT: INPUT_END, AUDIT: 6}, id="an input is behind"),
        pytest.param({}, id="none is known"),
    ],
)
def test_every_input_must_have_been_read_again(positions: dict[str, int]) -> None:
    owned = owned_of(partition_of(StubEvaluator())[0])
    starts = {PIPECAT: InputStart(INPUT_END, 0), AUDIT: InputStart(7, 0)}
    owned.began(starts, {PIPECAT: INPUT_END, AUDIT: 7}, LEDGER_START, LEDGER_END, now_ms=0, overlap_ms=0)

    def scores(now_ms: int) -> set[int]:
        return {CommitNote.parse(at.metadata).scores for at in owned.to_commit(now_ms).values()}

    owned.read_to(positions)
    assert scores(10_000) == {LEDGER_START}
    owned.read_to({PIPECAT: INPUT_END, AUDIT: 7})
    owned.read_to({})  # once is enough: later scores were never the former owner's
    assert scores(20_000) == {LEDGER_END}


async def test_looking_at_the_client_tells_how_far_it_is(replaying: Replaying) -> None:
    class Consumer:
        at = INPUT_END - 1

        def assignment(self) -> set[TopicPartition]:
            return {TopicPartition(PIPECAT, 0)}

        def highwater(self, _: TopicPartition) -> int:
            return INPUT_END + 1

        def last_stable_offset(self, _: TopicPartition) -> int:
            return INPUT_END + 1

        def last_poll_timestamp(self, _: TopicPartition) -> int:
            return NOW_MS

        async def position(self, _: TopicPartition) -> int:
            return self.at

    consumer = Consumer()
    assignment = Assignment([PIPECAT], {}, trusted_clock())
    assignment.owned = {0: replaying.owned}
    replaying.owned.partition.fold([[Record(PIPECAT, INPUT_END - 2)]], None)
    for at, expected in ((INPUT_END - 1, LEDGER_START), (INPUT_END, LEDGER_END)):
        consumer.at = at
        await assignment.look(consumer)
        replaying.scores(at * OVERLAP_MS)
        assert replaying.scores((at + 1) * OVERLAP_MS) == expected
