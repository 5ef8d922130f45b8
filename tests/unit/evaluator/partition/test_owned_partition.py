"""A partition between two owners: which offsets may be committed, and the note beside them."""

from aiokafka import TopicPartition
from aiokafka.structs import OffsetAndMetadata
from hypothesis import given
from hypothesis import strategies as st

from consumers.engine.effects import PublishScore
from consumers.evaluator.partition import OwnedPartition
from consumers.evaluator.recovery import CommitNote, OrderStarts, PlacedStart
from schemas.closed_sets import InputSource
from tests.support.fakes.evaluator_fakes import AUDIT, PIPECAT, Record, StubEvaluator, fact, owned_of, partition_of


def owned(evaluator: StubEvaluator | None = None) -> OwnedPartition:
    engine = evaluator or StubEvaluator([PublishScore(fact("c-1"))])
    return owned_of(partition_of(engine, offsets={PIPECAT: 5, AUDIT: 2})[0])


def fold(each: OwnedPartition, *offsets: int) -> None:
    each.partition.fold([[Record(PIPECAT, offset) for offset in offsets]], None)


def due(each: OwnedPartition) -> dict[str, int]:
    return {tp.topic: at.offset for tp, at in each.due_offsets().items()}


def test_a_commit_says_where_to_read_the_inputs_and_the_order() -> None:
    evaluator = StubEvaluator()
    each = owned(evaluator)
    placed = [PlacedStart(n, {InputSource.PIPECAT: at}, 40 + n) for n, at in enumerate((5, 6, 7))]
    each.writer.starts = OrderStarts(placed, 0)
    fold(each, 5, 6)
    evaluator.watermarks = {InputSource.PIPECAT: 6}
    assert each.due_offsets() == {
        TopicPartition(PIPECAT, 0): OffsetAndMetadata(6, CommitNote(41, read=7).text()),
        TopicPartition(AUDIT, 0): OffsetAndMetadata(2, CommitNote(41, read=2).text()),
    }


def test_only_what_is_written_is_committed_and_what_came_since_is_not() -> None:
    each = owned()
    outbox = each.partition.outbox
    fold(each, 5)
    assert due(each) == {}
    fold(each, 6)
    outbox.written(1)
    assert due(each) == {PIPECAT: 6, AUDIT: 2}, "as it was at the first time of asking"
    assert due(each) == {}
    outbox.written(1)
    assert due(each) == {PIPECAT: 7, AUDIT: 2}


def test_the_note_is_of_the_same_moment_as_the_offsets() -> None:
    each = owned()
    each.writer.starts = OrderStarts([PlacedStart(1, {InputSource.PIPECAT: 5}, 40)], 0)
    fold(each, 5)
    assert due(each) == {}
    each.writer.starts.add(PlacedStart(2, {InputSource.PIPECAT: 6}, 41))
    fold(each, 6)
    each.partition.outbox.written(1)
    assert each.due_offsets()[TopicPartition(PIPECAT, 0)] == OffsetAndMetadata(6, CommitNote(40, read=6).text())


def test_a_partition_that_is_not_ours_commits_nothing() -> None:
    each = owned()
    fold(each, 5)
    each.partition.drop()
    assert [due(each) for _ in range(2)] == [{}, {}]


@given(st.lists(st.sampled_from(["fold", "write", "commit"]), max_size=30))
def test_no_offset_is_ahead_of_what_is_written(steps: list[str]) -> None:
    each, folded, written, committed = owned(), 5, 5, 5
    for step in steps:
        if step == "fold":
            fold(each, folded)
            folded += 1
        elif step == "write" and written < folded:
            each.partition.outbox.written(1)
            written += 1
        elif offsets := due(each):
            assert committed <= offsets[PIPECAT] <= written
            committed = offsets[PIPECAT]
    each.partition.outbox.written(30)
    due(each)
    assert due(each)[PIPECAT] == folded
