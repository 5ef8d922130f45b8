"""Closed calls are recognised by their ids, the ones that closed last, so that a late record of one opens no other."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from consumers.engine.evaluator import ClosedCalls
from consumers.engine.limits import Limits
from tests.support.fakes.engine_feed import Feed

WORD = {"message_type": "user", "value": "hello"}


@given(st.lists(st.integers(0, 9), max_size=60), st.integers(1, 5))
def test_the_calls_that_closed_last_are_known_and_no_other(closings: list[int], most: int) -> None:
    closed = ClosedCalls(most)
    for number in closings:
        closed.close(f"call-{number}")
    newest = list(dict.fromkeys(reversed(closings)))[:most]
    assert {number for number in range(10) if f"call-{number}" in closed} == set(newest)
    assert len(closed) == len(newest)


def test_late_records_of_calls_that_an_earlier_owner_closed_are_only_counted() -> None:
    feed = Feed(Limits(max_closed_calls_remembered=2))
    for number in range(3):
        feed.evaluator.has_closed(f"call-{number}")
    for number in (1, 2):
        feed.send("audit", WORD, number, key=f"call-{number}")
    assert (feed.evaluator.open_calls, feed.records()) == ((), [])
    assert feed.counts("callgauge_events_total") == Counter({("audit", "after_close"): 2})
    feed.send("audit", WORD, 3, key="call-0")
    assert feed.evaluator.open_calls == ("call-0",), "more have closed since than are remembered"
