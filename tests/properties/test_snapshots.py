"""A snapshot carries everything: an evaluator restored from it goes on as the one it was taken of."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.engine.partition import SNAPSHOT_VERSION, PartitionEvaluator
from consumers.engine.state_bytes import SnapshotError
from tests.properties.evaluation import EveryCall, end_of, fresh
from tests.properties.steered_calls import drawn
from tests.support.calls.wire_calls import arrivals_of


@given(st.data())
def test_snapshot_and_restore_anywhere_change_nothing(data: st.DataObject) -> None:
    call, order = drawn(data)
    arrivals = arrivals_of(call, order)
    every = data.draw(st.sampled_from([1, 1, 2, 7, 10_000]))
    first = data.draw(st.integers(0, len(arrivals)))
    kept, moved = fresh(), fresh()
    for place, arrival in enumerate(arrivals):
        if place >= first and (place - first) % every == 0:
            moved = PartitionEvaluator.restore(moved.snapshot(), EveryCall())
        assert moved.receive(arrival) == kept.receive(arrival), f"at {place}"
        assert moved.context(arrival.conversation_id) == kept.context(arrival.conversation_id)
        assert moved.next_wakeup() == kept.next_wakeup()
    moved = PartitionEvaluator.restore(moved.snapshot(), EveryCall())
    assert moved.drain_counts() == kept.drain_counts()
    assert moved.low_watermarks() == kept.low_watermarks()
    assert moved.advance(end_of(arrivals)) == kept.advance(end_of(arrivals))
    after_close = PartitionEvaluator.restore(moved.snapshot(), EveryCall())
    assert after_close.receive(arrivals[-1]) == ()


def test_a_snapshot_of_another_version_is_refused() -> None:
    other = pickle.dumps((SNAPSHOT_VERSION + 1, {}))
    with pytest.raises(SnapshotError, match="replay the inputs"):
        PartitionEvaluator.restore(other)
