"""Closed calls are recognised for as long as something of them may be read, and no longer than that without a bound."""

from hypothesis import given
from hypothesis import strategies as st

from consumers.engine.effects import CloseCall
from consumers.engine.intake.closed_calls import ClosedCalls
from consumers.engine.partition import PartitionEvaluator
from schemas.closed_sets import InputSource
from tests.support.fakes.engine_feed import Feed, closings_of

AUDIT, PIPECAT = InputSource.AUDIT, InputSource.PIPECAT
MOST = 10


def _recalled(number: int, starts: dict[InputSource, int] | None) -> ClosedCalls:
    closed = ClosedCalls(MOST)
    if starts is not None:
        closed.reading_starts_at(starts)
    for place in range(number):
        closed.recall(f"call-{place}", {AUDIT: 10 * place + 9, PIPECAT: 10 * place + 9})
    return closed


def test_calls_that_the_replay_cannot_meet_are_remembered_up_to_the_bound() -> None:
    closed = _recalled(1_000, {AUDIT: 9_950, PIPECAT: 9_950})
    assert len(closed) == MOST + 5
    assert all(f"call-{place}" in closed for place in range(985, 1_000))
    assert closed.was_folded("call-995", AUDIT, 9_955) is True
    assert closed.was_folded("call-995", AUDIT, 9_960) is False
    assert closed.was_folded("call-3", AUDIT, 39) is None


def test_one_input_that_is_read_from_further_back_is_enough_to_remember() -> None:
    assert len(_recalled(1_000, {AUDIT: 0, PIPECAT: 9_950})) == 1_000
    assert len(_recalled(1_000, None)) == 1_000, "where reading starts is not known"


def test_behind_the_replay_the_bound_counts_again() -> None:
    closed = _recalled(1_000, {AUDIT: 0, PIPECAT: 0})
    closed.close("here", {AUDIT: 9_999, PIPECAT: 9_000})
    assert len(closed) == 1_001, "pipecat's input is not there yet"
    closed.close("there", {AUDIT: 9_999, PIPECAT: 9_999})
    assert len(closed) == MOST
    assert "there" in closed
    assert "here" in closed
    assert closed.was_folded("here", AUDIT, 5) is False


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=60), st.integers(0, 60), st.integers(0, 60))
def test_no_call_that_is_read_again_is_forgotten(
    throughs: list[tuple[int, int]], audit_start: int, pipecat_start: int
) -> None:
    closed = ClosedCalls(3)
    closed.reading_starts_at({AUDIT: audit_start, PIPECAT: pipecat_start})
    for number, (audit, pipecat) in enumerate(throughs):
        closed.recall(f"call-{number}", {AUDIT: audit, PIPECAT: pipecat})
    for number, (audit, pipecat) in enumerate(throughs):
        for source, through, start in ((AUDIT, audit, audit_start), (PIPECAT, pipecat, pipecat_start)):
            if through >= start:
                assert closed.was_folded(f"call-{number}", source, through) is True
    assert len(closed) <= 3 + sum(audit >= audit_start or pipecat >= pipecat_start for audit, pipecat in throughs)


def test_a_replay_recognises_closed_calls_when_it_is_known_where_it_starts() -> None:
    before = Feed()
    for number in range(3):
        before.send("audit", {"message_type": "user", "value": "hello"}, number, key=f"call-{number}")
    before.advance(10_000_000)
    (first, *_) = closings_of(before.effects)
    assert isinstance(first, CloseCall)
    after = Feed()
    evaluator: PartitionEvaluator = after.evaluator
    evaluator.reading_starts_at(dict.fromkeys(InputSource, 1))
    for record in before.records():
        evaluator.recall(record)
    for number in (1, 2):
        after.send("audit", {"message_type": "user", "value": "hello"}, number, key=f"call-{number}", offset=number)
    assert evaluator.open_calls == 0
    assert after.counts("callgauge_events_total") == {("audit", "replayed"): 2}
