"""The call that is closed when too many are open, and the cost of finding it."""

import heapq
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.engine import evaluator as eviction
from consumers.engine.effects import CloseCall
from consumers.engine.evaluator import FEWEST_EVENTS, PartitionEvaluator
from consumers.engine.limits import Limits
from tests.support.fakes.engine_feed import Feed, closings_of

LIMITS = Limits(max_open_calls=4)


def _say(feed: Feed, key: str, at_ms: int) -> None:
    feed.send("audit", {"message_type": "user", "value": "hello"}, at_ms, key=key)


def _evicted(feed: Feed) -> list[str]:
    feed.close_all()
    return [closing.conversation_id for closing in closings_of(feed.effects)]


def test_ids_with_one_event_go_before_a_real_call_that_is_quieter() -> None:
    feed = Feed(LIMITS)
    for at_ms in range(FEWEST_EVENTS):
        _say(feed, "real", at_ms)
    for number in range(20):
        _say(feed, f"made-up-{number}", 1_000 + number)
    assert _evicted(feed) == [f"made-up-{number}" for number in range(17)]
    assert feed.counts("callgauge_limits_hit_total") == {("open_calls",): 17}


def test_of_real_calls_the_quietest_goes() -> None:
    feed = Feed(LIMITS)
    for key, last_ms in (("a", 400), ("b", 100), ("c", 300), ("d", 200)):
        for at_ms in (0, 1, last_ms):
            _say(feed, key, at_ms)
    _say(feed, "e", 500)
    assert _evicted(feed) == ["b"]
    _say(feed, "d", 600)
    _say(feed, "e", 601)
    _say(feed, "e", 602)
    _say(feed, "f", 700)
    assert _evicted(feed) == ["b", "c"]


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 50)), max_size=120),
    st.integers(1, 5),
    st.booleans(),
    st.sampled_from([0, 1, 5]),
)
def test_the_call_that_goes_is_the_first_by_events_then_time_then_name(
    arrivals: list[tuple[int, int]], most: int, is_moved: bool, closes_every: int
) -> None:
    limits = Limits(max_open_calls=most)
    feed = Feed(limits)
    open_calls: dict[str, tuple[int, int]] = {}
    expected: list[str] = []
    closed: set[str] = set()
    for place, (number, at_ms) in enumerate(arrivals):
        key = f"call-{number}"
        if key not in closed:
            if key not in open_calls and len(open_calls) == most:
                gone = min(
                    open_calls, key=lambda each: (open_calls[each][0] >= FEWEST_EVENTS, open_calls[each][1], each)
                )
                del open_calls[gone]
                expected.append(gone)
                closed.add(gone)
            events, last_ms = open_calls.get(key, (0, at_ms))
            open_calls[key] = events + 1, max(last_ms, at_ms)
        _say(feed, key, at_ms)
        if closes_every and place % closes_every == 0:
            feed.close_all()
        if is_moved and place % 7 == 6:
            feed.hand_over(PartitionEvaluator(limits, "test"))
    assert _evicted(feed) == expected


def test_ten_times_as_many_ids_as_fit_cost_no_more_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    place_of = eviction._place

    def counted(call: Any) -> tuple[bool, int, str]:
        nonlocal looks
        looks += 1
        return place_of(call)

    monkeypatch.setattr(eviction, "_place", counted)
    most = 100
    feed = Feed(Limits(max_open_calls=most))
    for number in range(10 * most):
        _say(feed, f"made-up-{number}", number)
        _say(feed, "real", number)
        feed.close_all()
    assert len(_evicted(feed)) == 10 * most + 1 - most
    assert "real" not in _evicted(feed)
    assert looks <= 3 * 10 * most, "one when it opens, one when it goes, and those of places that are old"
    assert len(feed.evaluator._eviction._places) <= 2 * most + eviction._SPARE + 1
    assert heapq.nsmallest(1, feed.evaluator._eviction._places)[0] == feed.evaluator._eviction._places[0]


def test_calls_that_close_by_themselves_leave_no_places_behind() -> None:
    feed = Feed(Limits(max_open_calls=1_000, idle_ms=10))
    for number in range(2_000):
        _say(feed, f"short-{number}", 100 * number)
        feed.advance(100 * number + 50)
    assert feed.evaluator.open_calls == ()
    assert len(feed.evaluator._eviction._places) <= eviction._SPARE + 3
    assert all(isinstance(closing, CloseCall) for closing in closings_of(feed.effects))
