"""Calls close and make way for others; events of a closed call, dropped ones and skewed clocks."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.engine import evaluator as eviction
from consumers.engine.evaluator import (
    AHEAD_MS,
    BEHIND_MS,
    FEWEST_EVENTS,
    ClosedCalls,
    PartitionEvaluator,
)
from consumers.engine.limits import Limits
from schemas.closed_sets import CloseReason, InputSource, UnscoredReason
from schemas.events.codec import RefusedRecordError, decode
from schemas.rows import CallRow, TurnRow
from tests.support.fakes.engine_feed import T0_MS, Feed, closings_of, rows_of

LIMITS = Limits(closing_grace_ms=10_000, idle_ms=60_000, max_call_duration_ms=600_000)
ENDED = {"type": "call_ended", "reason": "goodbye"}
SESSION_ENDED = {"type": "connection_state", "data": {"state": "session_ended"}}


def _closed(feed: Feed) -> list[tuple[str, int]]:
    return [(str(row.close_reason), row.known_ms - T0_MS) for row in closings_of(feed.effects)]


@pytest.fixture
def feed() -> Feed:
    return Feed(LIMITS)


@pytest.mark.parametrize(
    ("stream", "event", "reason"),
    [
        ("judge", ENDED, "ended"),
        ("pipecat", ENDED, "ended"),
        ("user_sim", SESSION_ENDED, "session_ended"),
    ],
)
def test_an_end_event_closes_after_a_grace(
    feed: Feed, stream: str, event: dict[str, object], reason: str
) -> None:
    feed.user_audio(0, 1_000).send(stream, event, 2_000).advance(11_999)
    assert _closed(feed) == []
    assert feed.silences() == []  # the line is down: no caller waits
    feed.advance(12_000)
    assert _closed(feed) == [(reason, 12_000)]


def test_what_comes_in_the_grace_counts_and_does_not_prolong_it(feed: Feed) -> None:
    (
        feed.user_audio(0, 1_000)
        .send("audit", ENDED, 2_000)
        .tool_call("rebook", 11_000)
        .send("user_sim", SESSION_ENDED, 11_500)
        .advance(12_000)
    )
    assert _closed(feed) == [("session_ended", 12_000)]
    assert [use.tool for use in feed.tools().values()] == ["rebook"]


def test_silence_of_all_streams_closes(feed: Feed) -> None:
    feed.heard("Hello", 0).bot_text("Hello", 5_000).advance(64_999)
    assert _closed(feed) == []
    feed.advance(65_000)
    assert _closed(feed) == [("idle", 65_000)]


def test_idleness_is_of_the_broker_s_clock(feed: Feed) -> None:
    feed.send("audit", {"message_type": "user", "value": "x"}, 0, broker_ms=90_000).advance(149_999)
    assert _closed(feed) == []
    feed.advance(150_000)
    assert _closed(feed) == [("idle", 150_000)]


def test_the_duration_limit_closes_a_call_that_never_falls_silent(feed: Feed) -> None:
    for at_ms in range(0, 600_000, 30_000):
        feed.bot_text("and", at_ms).advance(at_ms)
    assert _closed(feed) == []
    feed.advance(600_000)
    assert [reason for reason, _ in _closed(feed)] == ["limit_duration"]
    assert feed.counts("callgauge_limits_hit_total") == {("duration",): 1}


def test_the_events_limit() -> None:
    feed = Feed(Limits(max_events_per_call=3)).heard("one", 0).heard("two", 100)
    assert _closed(feed) == []
    feed.heard("three", 200)
    assert (_closed(feed), feed.evaluator.closing_calls) == ([], 1), "a record does no closing work"
    feed.close_all()
    assert _closed(feed) == [("limit_events", 200)]
    assert feed.call().events == 3
    assert feed.counts("callgauge_limits_hit_total") == {("events",): 1}
    feed.heard("four", 300)
    assert feed.counts("callgauge_events_total")["audit", "after_close"] == 1


def test_the_turns_limit() -> None:
    feed = Feed(Limits(max_turns_per_call=2))
    for turn in range(4):
        feed.user_audio(10_000 * turn, 10_000 * turn + 1_000).assistant_audio(
            10_000 * turn + 2_000, 10_000 * turn + 3_000
        )
    feed.close_all()
    assert feed.call().turns == 3
    assert [reason for reason, _ in _closed(feed)] == ["limit_turns"]
    assert feed.counts("callgauge_limits_hit_total") == {("turns",): 1}


def test_beyond_the_open_calls_the_quietest_is_closed() -> None:
    feed = Feed(Limits(max_open_calls=2))
    for at_ms, key in ((0, "one"), (100, "two"), (200, "one"), (300, "three")):
        feed.send("audit", {"message_type": "user", "value": "Hello"}, at_ms, key=key)
    assert (feed.evaluator.evicted, closings_of(feed.latest)) == ({"two": 3}, []), (
        "a record does no closing work"
    )
    assert [*feed.evaluator.open_calls] == ["one", "two", "three"]
    feed.close_all()
    assert [(c.conversation_id, c.close_reason) for c in closings_of(feed.effects)] == [
        ("two", CloseReason.LIMIT_OPEN_CALLS)
    ]
    assert ([*feed.evaluator.open_calls], feed.evaluator.evicted) == (["one", "three"], {})
    assert feed.counts("callgauge_limits_hit_total") == {("open_calls",): 1}


def test_the_close_ends_with_the_row_of_the_call_behind_what_has_changed(feed: Feed) -> None:
    (
        feed.user_audio(0, 1_000)
        .assistant_audio(1_500, 2_500)
        .user_audio(4_000, 5_000)
        .assistant_audio(6_000, 7_000)
        .send("user_sim", SESSION_ENDED, 8_000)
        .send("judge", ENDED, 8_100)
        .advance(30_000)
    )
    turn, closed = rows_of(feed.latest)  # the greeting has not changed
    assert isinstance(turn, TurnRow)
    assert isinstance(closed, CallRow)
    assert (turn.turn, closed.state, closed.turns, closed.ended_reason) == (
        1,
        "closed",
        1,
        "goodbye",
    )
    assert (closed.first_place, closed.last_place, closed.events) == (0, 15, 16)
    assert (closed.began_ms, closed.ended_ms) == (T0_MS, T0_MS + 8_100)
    assert (closed.through_turn, closed.news) == (1, ("closed",))


def test_a_turn_nobody_answered_before_the_end_is_not_measured_and_not_counted(feed: Feed) -> None:
    (
        feed.assistant_audio(0, 900)
        .user_audio(1_000, 2_000, text="Goodbye")
        .send("user_sim", SESSION_ENDED, 2_500)
        .advance(30_000)
    )
    assert (feed.latencies(), feed.news(1)) == ({1: "the call ended before an answer"}, [])


def test_sound_without_an_end_is_closed_as_eva_closes_it(feed: Feed) -> None:
    feed.assistant_audio(0, 900).user_audio(1_000, None).assistant_audio(3_000, 4_000)
    assert feed.latencies() == {}
    feed.send("user_sim", SESSION_ENDED, 5_000).advance(30_000)
    assert feed.latencies() == {1: -2_000.0}


def test_a_turn_never_answered_says_so(feed: Feed) -> None:
    (
        feed.assistant_audio(0, 900)
        .user_audio(1_000, 2_000)
        .bot_text("Nobody hears this.", 2_500)
        .user_audio(4_000, 5_000)
        .assistant_audio(6_000, 7_000)
        .send("user_sim", SESSION_ENDED, 8_000)
        .advance(30_000)
    )
    assert feed.latencies() == {1: "no_assistant_speech", 2: 1_000.0}
    assert ("wait" in feed.news(1), "wait" in feed.news(2)) == (False, True)
    assert feed.call().unscored_turns["voice_to_voice_latency_ms"] == {
        UnscoredReason.NO_ASSISTANT_SPEECH: 1
    }


def test_after_the_end_everything_is_only_counted(feed: Feed) -> None:
    feed.heard("Hello", 0).send("judge", ENDED, 100).advance(20_000)
    before = len(feed.rows())
    (
        feed.heard("Hello?", 21_000)
        .send("judge", {"type": "call_started", "agent": "desk"}, 22_000)
        .advance(900_000)
    )
    assert len(feed.rows()) == before
    counts = feed.counts("callgauge_events_total")
    assert (counts["audit", "after_close"], counts["judge", "after_close"]) == (1, 1)
    assert feed.evaluator.low_watermark() is None


def test_only_so_many_closed_calls_are_remembered() -> None:
    feed = Feed(Limits(max_closed_calls_remembered=1, max_events_per_call=1))
    for key in ("one", "two", "two", "one"):
        feed.send("audit", {"message_type": "user", "value": "Hello"}, 0, key=key).close_all()
    assert [closing.conversation_id for closing in closings_of(feed.effects)] == [
        "one",
        "two",
        "one",
    ]


def test_a_leap_of_time_declares_nothing_that_lies_behind_the_closing() -> None:
    feed = (
        Feed(Limits(idle_ms=3_000))
        .user_audio(0, 1_000)
        .advance(900_000)  # idle from 4,000 on, dead air would have been due at 4,500
    )
    assert feed.silences() == []
    assert [reason for reason, _ in _closed(feed)] == ["idle"]


def test_of_two_deadlines_the_earlier_decides(feed: Feed) -> None:
    feed.heard("Hello", 0).advance(10_000_000)  # past idleness, then past the longest call
    assert [reason for reason, _ in _closed(feed)] == ["idle"]


def test_the_low_watermark_is_the_first_record_of_the_oldest_open_call(feed: Feed) -> None:
    (
        feed.send("audit", {"message_type": "user", "value": "Hello"}, 0, key="one", offset=5)
        .send("audit", {"message_type": "user", "value": "Hello"}, 50_000, key="two", offset=9)
        .send(
            "pipecat", {"type": "tts_text", "data": {"frame": "Hi"}}, 50_000, key="one", offset=12
        )
    )
    assert feed.evaluator.low_watermark() == 5
    feed.evaluator.pass_time(T0_MS + 110_000)
    assert feed.evaluator.low_watermark() == 5, "it is over and has not closed"
    feed.close_all()
    assert feed.evaluator.low_watermark() is None


def test_spans_of_a_job_that_are_no_call_are_forgotten_when_they_are_over_and_the_call_may_follow(
    feed: Feed,
) -> None:
    """At once, and not when there is time to close: what a later record means must not depend on
    that.
    """
    feed.send("audit", {"type": "call_started", "agent": "desk", "is_told_later": True}, 0)
    feed.evaluator.pass_time(T0_MS + 60_000)
    assert (feed.evaluator.open_calls, feed.evaluator.closing_calls) == ((), 0)
    feed.heard("Hello", 70_000)
    assert feed.evaluator.open_calls == ("call",)


def test_calls_that_end_together_close_a_few_at_a_time() -> None:
    """Closing all at once would delay all other work of the process for seconds."""
    feed, at_once = Feed(LIMITS), Feed(LIMITS)
    for each in (feed, at_once):
        for number in range(200):
            each.send(
                "audit", {"message_type": "user", "value": "Hello"}, 0, key=f"call-{number}"
            ).send("audit", ENDED, 1_000, key=f"call-{number}")
    assert closings_of(feed.evaluator.pass_time(T0_MS + 11_000)) == []
    assert len(feed.evaluator.open_calls) == feed.evaluator.closing_calls == 200
    closings: list[list[CallRow]] = []
    while feed.evaluator.closing_calls:
        closings.append(closings_of(feed.evaluator.close_some()))
    assert [len(each) for each in closings] == [29] * 6 + [26]
    assert [each for some in closings for each in some] == closings_of(
        at_once.advance(11_000).latest
    )
    assert feed.evaluator.close_some() == []


def test_calls_that_wait_for_their_close_need_no_room() -> None:
    """Whether a call is closed for want of room must not depend on the pace of closing."""
    limits = Limits(closing_grace_ms=10_000, max_open_calls=3)
    feed = Feed(limits)
    for number in range(3):
        feed.send("audit", ENDED, 0, key=f"over-{number}")
    feed.evaluator.pass_time(T0_MS + 10_000)
    for number in range(4):
        feed.send(
            "audit",
            {"message_type": "user", "value": "Hello"},
            11_000 + number,
            key=f"new-{number}",
        )
    feed.close_all()
    reasons = {each.conversation_id: str(each.close_reason) for each in closings_of(feed.effects)}
    assert reasons == {
        "over-0": "ended",
        "over-1": "ended",
        "over-2": "ended",
        "new-0": "limit_open_calls",
    }


@pytest.mark.parametrize("ended_ms", [1_990, 2_000, 2_010])
def test_the_end_of_the_session_gives_the_reason_whichever_topic_is_faster(
    feed: Feed, ended_ms: int
) -> None:
    feed.user_audio(0, 1_000)
    if ended_ms <= 2_000:
        feed.send("audit", ENDED, ended_ms)
    feed.send("user_sim", SESSION_ENDED, 2_000)
    if ended_ms > 2_000:
        feed.send("audit", ENDED, ended_ms)
    feed.advance(60_000)
    assert _closed(feed) == [("session_ended", min(ended_ms, 2_000) + 10_000)]


FOUR_CALLS = Limits(max_open_calls=4)


def _say(feed: Feed, key: str, at_ms: int) -> None:
    feed.send("audit", {"message_type": "user", "value": "hello"}, at_ms, key=key)


def _evicted(feed: Feed) -> list[str]:
    feed.close_all()
    return [closing.conversation_id for closing in closings_of(feed.effects)]


def test_ids_with_one_event_go_before_a_real_call_that_is_quieter() -> None:
    feed = Feed(FOUR_CALLS)
    for at_ms in range(FEWEST_EVENTS):
        _say(feed, "real", at_ms)
    for number in range(20):
        _say(feed, f"made-up-{number}", 1_000 + number)
    assert _evicted(feed) == [f"made-up-{number}" for number in range(17)]
    assert feed.counts("callgauge_limits_hit_total") == {("open_calls",): 17}


def test_of_real_calls_the_quietest_goes() -> None:
    feed = Feed(FOUR_CALLS)
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
                    open_calls,
                    key=lambda each: (
                        open_calls[each][0] >= FEWEST_EVENTS,
                        open_calls[each][1],
                        each,
                    ),
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


def places_of(feed: Feed) -> int:
    return sum(map(len, feed.evaluator._eviction._places.values()))


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often eviction looks at the place of a call, under `places`."""
    found = Counter[str]()
    place_of = eviction.Eviction._place

    def counted(self: eviction.Eviction, call: Any) -> tuple[bool, int, str]:
        found["places"] += 1
        return place_of(self, call)

    monkeypatch.setattr(eviction.Eviction, "_place", counted)
    return found


def test_ten_times_as_many_ids_as_fit_cost_no_more_for_each(looks: Counter[str]) -> None:
    most = 100
    feed = Feed(Limits(max_open_calls=most))
    for number in range(10 * most):
        _say(feed, f"made-up-{number}", number)
        _say(feed, "real", number)
        feed.close_all()
    assert len(_evicted(feed)) == 10 * most + 1 - most
    assert "real" not in _evicted(feed)
    assert looks["places"] <= 3 * 10 * most, (
        "one when it opens, one when it goes, and those of places that are old"
    )
    assert places_of(feed) <= 2 * most + eviction._SPARE + 1


def _start(feed: Feed, key: str, tenant: str, at_ms: int) -> None:
    feed.send(
        "audit", {"type": "call_started", "timestamp": at_ms, "tenant": tenant}, at_ms, key=key
    )


@pytest.mark.parametrize("most", [10, 200])
def test_a_tenant_that_sends_ever_new_ids_closes_its_own_calls_alone(most: int) -> None:
    feed = Feed(Limits(max_open_calls=most))
    for number in range(3):  # one event each, and quiet for longest
        _start(feed, f"quiet-{number}", "acme", number)
    for number in range(10 * most):
        _start(feed, f"flood-{number}", "globex", 100 + number)
        if number % 5 == 0:
            feed.close_all()
    assert len(_evicted(feed)) == 9 * most + 3
    assert all(name.startswith("flood-") for name in _evicted(feed))
    # A second tenant that floods takes turns with the first.
    for number in range(10 * most):
        _start(feed, f"other-{number}", "umbrella", 10_000 + number)
        feed.close_all()
    assert [name for name in _evicted(feed) if name.startswith("quiet-")] == []


def test_what_a_tenant_s_flood_costs_does_not_grow_with_the_open_calls(looks: Counter[str]) -> None:
    costs = []
    for most in (200, 800):
        feed = Feed(Limits(max_open_calls=most))
        looks.clear()
        _start(feed, "quiet", "acme", 0)
        for number in range(3 * most):
            _start(feed, f"flood-{number}", "globex", 1 + number)
            feed.close_all()
        costs.append(looks["places"] / (3 * most))
    assert costs[1] < 1.2 * costs[0] < 30


def test_calls_that_close_by_themselves_leave_no_places_behind() -> None:
    feed = Feed(Limits(max_open_calls=1_000, idle_ms=10))
    for number in range(2_000):
        _say(feed, f"short-{number}", 100 * number)
        feed.advance(100 * number + 50)
    assert feed.evaluator.open_calls == ()
    assert places_of(feed) == 0
    assert len(feed.evaluator._eviction._largest) <= eviction._SPARE + 3
    assert len(closings_of(feed.effects)) == 2_000


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
    assert (feed.evaluator.open_calls, rows_of(feed.effects)) == ((), [])
    assert feed.counts("callgauge_events_total") == Counter({("audit", "after_close"): 2})
    feed.send("audit", WORD, 3, key="call-0")
    assert feed.evaluator.open_calls == ("call-0",), "more have closed since than are remembered"


DROPPED = "callgauge_source_events_dropped_total"


def test_dropped_events_are_counted_by_their_subject() -> None:
    feed = (
        Feed()
        .send(
            "pipecat",
            {"type": "events_dropped", "data": {"metrics": 7, "speech": 1, "tools": 0}},
            0,
        )
        .send("pipecat", {"type": "events_dropped", "data": {"metrics": 3, "smells": 2}}, 10)
    )
    assert feed.counts(DROPPED) == {("metrics",): 10, ("speech",): 1}
    assert feed.counts("callgauge_events_total") == {("pipecat", "folded"): 2}


def test_errors_of_processors_are_counted_and_nothing_of_them_is_kept() -> None:
    feed = (
        Feed()
        .send(
            "pipecat",
            {
                "type": "error",
                "data": {"message": "the model is down", "processor": "OneLLMService#0"},
            },
            0,
        )
        .send(
            "pipecat",
            {"type": "error", "data": {"frame": "ErrorFrame#0(error: the model is down)"}},
            10,
        )
    )
    assert feed.counts("callgauge_agent_errors_total") == {("pipecat",): 2}
    assert feed.counts("callgauge_events_total") == {("pipecat", "folded"): 2}


@pytest.mark.parametrize(
    "data", [{"metrics": -1}, {"metrics": 10**10}, {"metrics": "many"}, [], None]
)
def test_a_count_that_is_none_is_refused(data: object) -> None:
    import json

    with pytest.raises(RefusedRecordError):
        decode(
            InputSource.PIPECAT,
            json.dumps({"type": "events_dropped", "timestamp": 1, "data": data}).encode(),
        )


SKEWED = "callgauge_skewed_events_total"
LINE = {"type": "turn_start", "data": {"frame": "StartFrame#0"}}


@pytest.mark.parametrize(
    ("broker_ms", "expected"),
    [
        (100_000 - AHEAD_MS - 1, {("pipecat", "ahead"): 1}),
        (100_000 - AHEAD_MS, {}),
        (100_000 + 40, {}),
        (100_000 + BEHIND_MS, {}),
        (100_000 + BEHIND_MS + 1, {("pipecat", "behind"): 1}),
    ],
)
def test_an_event_far_from_the_brokers_time_is_counted(
    broker_ms: int, expected: dict[tuple[str, str], int]
) -> None:
    feed = Feed().send("pipecat", LINE, 100_000, broker_ms=broker_ms)
    assert feed.counts(SKEWED) == expected


def test_every_drain_begins_anew() -> None:
    feed = Feed().send("pipecat", LINE, 100_000, broker_ms=0)
    assert feed.counts(SKEWED) == {("pipecat", "ahead"): 1}
    feed.send("audit", {"type": "call_started", "agent": "desk"}, 0, broker_ms=0)
    assert [count for count in feed.evaluator.drain_counts() if count.metric == SKEWED] == []
