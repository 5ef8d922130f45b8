"""A record from after a deadline of its call waits until broker time is there: decisions by silence come first."""

import json
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from consumers.engine import evaluator as partition
from consumers.engine.admission import Arrival
from consumers.engine.effects import Effect
from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.limits import Limits
from schemas.closed_sets import CloseReason, InputSource
from schemas.events.codec import decode
from schemas.scores.records import ClosedFact, DeadAirFact
from tests.properties.evaluation import end_of, final_state, fresh
from tests.support.calls.wire_calls import SOURCE_OF
from tests.support.fakes.engine_feed import T0_MS, Feed, Json, closings_of, records_of
from tests.support.laws import examples

IDLE_MS = 60_000
WORD = {"message_type": "assistant", "value": "Hello"}  # after which no caller waits: no dead air
ANSWER = {"type": "tts_text", "data": {"frame": "Certainly."}}
EVENTS = "callgauge_events_total"
LIMIT_HITS = "callgauge_limits_hit_total"


@pytest.fixture
def feed() -> Feed:
    """A call that began at 0 and is over at `IDLE_MS`, when nothing comes; broker time is 0."""
    feed = Feed(Limits(idle_ms=IDLE_MS))
    feed.send("audit", WORD, 0)
    feed.advance(0)
    return feed


def folded(feed: Feed) -> Counter[str]:
    """By input: the records folded or refused so far, so those that wait are not among them."""
    return Counter({labels[0]: number for labels, number in feed.counts(EVENTS).items() if labels[1] == "folded"})


def through(feed: Feed) -> list[dict[str, int]]:
    return [record.through for record in feed.records("closed")]


@pytest.mark.parametrize(("at_ms", "waits"), [(IDLE_MS - 1, False), (IDLE_MS, True), (IDLE_MS + 40_000, True)])
def test_a_record_from_behind_a_deadline_waits(feed: Feed, at_ms: int, *, waits: bool) -> None:
    expected = {"audit": 1} if waits else {"audit": 1, "pipecat": 1}
    feed.send("pipecat", ANSWER, at_ms)
    assert folded(feed) == expected
    assert feed.evaluator.open_calls == ("call",)
    feed.advance(IDLE_MS - 1)  # nothing is due, so nothing changes
    assert folded(feed) == expected


def test_a_call_is_over_before_the_record_that_came_after_its_end(feed: Feed) -> None:
    feed.send("pipecat", ANSWER, 100_000)
    feed.advance(IDLE_MS)
    assert through(feed) == [{"audit.events": 0}]
    assert [record.reason for record in feed.records("closed")] == ["idle"]
    assert feed.counts(EVENTS) == {("audit", "folded"): 1, ("pipecat", "after_close"): 1}
    assert (feed.evaluator.open_calls, feed.evaluator.low_watermarks()) == ((), {})


def test_the_end_is_that_of_the_end_event_and_not_of_what_was_read_first(feed: Feed) -> None:
    feed.send("audit", {"type": "call_ended", "reason": "goodbye"}, 1_000)
    feed.send("pipecat", ANSWER, 11_000)
    feed.send("pipecat", ANSWER, 11_001)
    feed.advance(100_000)
    assert through(feed) == [{"audit.events": 1}]
    assert feed.counts(EVENTS)["pipecat", "after_close"] == 2


def test_first_the_deadline_then_the_record() -> None:
    feed = Feed(Limits(dead_air_ms=3_000, delivery_allowance_ms=500))
    feed.user_audio(1_000, 2_000)
    feed.advance(2_000)
    feed.assistant_audio(5_600)
    assert folded(feed) == {"elevenlabs": 4, "pipecat": 2}  # a turn is published as it comes; only the silence waits
    feed.advance(5_499)
    assert feed.records("dead_air") == []
    feed.advance(5_500)
    (fact,) = feed.records("dead_air")
    assert fact.caused_at_ms - T0_MS == 5_500  # and not when the answer came


def test_however_far_time_leaps_each_record_has_its_place(feed: Feed) -> None:
    """Of three waiting records, the third came when the call had been silent for too long again."""
    feed.send("audit", {"type": "call_started"}, 59_000)
    for at_ms in (119_000, 119_001, 250_000):
        feed.send("pipecat", ANSWER, at_ms)
    feed.advance(10_000_000)
    assert through(feed) == [{"audit.events": 1}]
    assert feed.counts(EVENTS)["pipecat", "after_close"] == 3


def test_what_another_input_tells_lets_the_records_behind_it_in(feed: Feed) -> None:
    """There was no silence: the other input lagged."""
    feed.send("pipecat", ANSWER, 70_000)
    feed.send("pipecat", ANSWER, 71_000)
    feed.send("pipecat", ANSWER, 150_000)
    feed.send("audit", WORD, 30_000)
    assert folded(feed) == {"audit": 2, "pipecat": 2}  # of the call's silence, 41 s had passed by then
    feed.advance(150_000)
    assert through(feed) == [{"audit.events": 1, "pipecat.events": 1}]


def test_what_waits_is_in_the_order_of_the_broker(feed: Feed) -> None:
    """Each input shows that there was no silence before the next record of the other."""
    for at_ms in (100_000, 200_000):
        feed.send("pipecat", ANSWER, at_ms)
    for at_ms in (50_000, 140_000, 180_000):
        feed.send("audit", WORD, at_ms)
    feed.advance(10_000_000)
    assert through(feed) == [{"audit.events": 3, "pipecat.events": 1}]
    assert feed.counts(EVENTS) == {("audit", "folded"): 4, ("pipecat", "folded"): 2}


def test_what_comes_behind_a_record_that_waits_keeps_its_place_in_the_topic(feed: Feed) -> None:
    """A producer's clock may step back, an offset does not."""
    feed.send("pipecat", ANSWER, 70_000)
    feed.send("pipecat", ANSWER, 70_001, broker_ms=50_000)
    assert folded(feed) == {"audit": 1}
    feed.advance(IDLE_MS)
    assert through(feed) == [{"audit.events": 0}]
    assert feed.counts(EVENTS)["pipecat", "after_close"] == 2


def test_where_a_successor_must_read_counts_what_waits(feed: Feed) -> None:
    feed.send("pipecat", ANSWER, 100_000, offset=7)
    feed.send("pipecat", ANSWER, 100_001, offset=9)
    assert feed.evaluator.low_watermarks() == {InputSource.AUDIT: 0, InputSource.PIPECAT: 7}
    feed.send("audit", WORD, 200_000, key="other", offset=5)
    assert feed.evaluator.low_watermarks() == {InputSource.AUDIT: 0, InputSource.PIPECAT: 7}
    feed.advance(IDLE_MS)
    assert feed.evaluator.low_watermarks() == {InputSource.AUDIT: 5}


def test_a_record_that_waits_is_not_taken_twice(feed: Feed) -> None:
    for _ in range(2):
        feed.send("pipecat", ANSWER, 100_000, offset=7)
    feed.advance(IDLE_MS)
    assert feed.counts(EVENTS) == {
        ("audit", "folded"): 1, ("pipecat", "repeated"): 1, ("pipecat", "after_close"): 1,
    }  # fmt: skip


def test_only_so_many_wait_for_an_input_that_lags(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition, "MAX_WAITING_PER_CALL", 3)
    for place in range(5):
        feed.send("pipecat", ANSWER, 100_000 + place)
        (call,) = feed.evaluator._calls.values()
        assert len(call.waiting) == min(3, place + 1)
        assert folded(feed)["pipecat"] == max(0, place - 2)  # the oldest is folded as it comes
    assert feed.counts(LIMIT_HITS) == {("held",): 2}
    feed.advance(IDLE_MS)
    assert feed.evaluator.open_calls == ("call",)  # it is known not to be silent now
    assert folded(feed)["pipecat"] == 5


def test_the_bound_is_the_one_that_is_documented() -> None:
    feed = Feed(Limits(idle_ms=IDLE_MS))
    feed.send("audit", WORD, 0)
    feed.advance(0)
    for place in range(partition.MAX_WAITING_PER_CALL):
        feed.send("pipecat", ANSWER, 100_000 + place)
    assert feed.counts(LIMIT_HITS) == {}
    feed.send("pipecat", ANSWER, 200_000)
    assert feed.counts(LIMIT_HITS) == {("held",): 1}


def test_while_broker_time_is_not_known_nothing_waits() -> None:
    feed = Feed(Limits(idle_ms=IDLE_MS))
    feed.send("audit", WORD, 0)
    feed.send("pipecat", ANSWER, 100_000)
    assert folded(feed) == {"audit": 1, "pipecat": 1}


def test_one_call_that_waits_holds_up_no_other(feed: Feed) -> None:
    feed.send("pipecat", ANSWER, 100_000)
    feed.send("pipecat", ANSWER, 100_001, key="other")
    feed.send("audit", WORD, 100_002, key="other")
    assert folded(feed) == {"audit": 2, "pipecat": 1}


def test_time_that_is_there_already_lets_a_record_in_at_once(feed: Feed) -> None:
    feed.send("audit", WORD, 50_000)
    feed.advance(100_000)
    feed.send("pipecat", ANSWER, 105_000)
    assert folded(feed) == {"audit": 2, "pipecat": 1}


def test_for_a_successor_the_same_records_wait(feed: Feed) -> None:
    feed.send("pipecat", ANSWER, 70_000)
    feed.send("pipecat", ANSWER, 70_001)
    before = feed.evaluator
    feed.hand_over(PartitionEvaluator(Limits(idle_ms=IDLE_MS), "test"))
    assert feed.evaluator.low_watermarks() == before.low_watermarks()
    assert feed.evaluator.next_wakeup() == before.next_wakeup()
    assert feed.advance(IDLE_MS) == before.advance(T0_MS + IDLE_MS)
    assert len(closings_of(feed.latest)) == 1
    assert feed.counts(EVENTS)["pipecat", "after_close"] == 2


# Whichever topic is read first, a call ends as for an evaluator that reads its records as they come.

LIMITS = [Limits(idle_ms=IDLE_MS), Limits(idle_ms=IDLE_MS, max_call_duration_ms=100_000)]
PAUSES_MS = [1, 4_000, 25_000, 40_000, IDLE_MS - 1, IDLE_MS, 100_000]
"""Before each record; after the first that ends the call there are none, so that all come within the closing grace."""
SAYS: list[tuple[str, Json]] = [
    ("audit", WORD),
    ("audit", {"message_type": "user", "value": "Hello"}),
    ("audit", {"message_type": "tool_call", "value": {"tool": "find", "parameters": {}}}),
    ("audit", {"message_type": "tool_response", "value": {"tool": "find", "response": "found"}}),
    ("pipecat", ANSWER),
    ("pipecat", {"type": "turn_start", "data": {"frame": "turn_start"}}),
    ("user_sim", {"type": "user_speech", "data": {"text": "Hello"}}),
    ("user_sim", {"type": "session_timed", "data": {}}),
]
ENDS: list[tuple[str, Json]] = [
    ("audit", {"type": "call_ended", "reason": "goodbye"}),
    ("pipecat", {"type": "call_ended", "reason": "goodbye"}),
    ("user_sim", {"type": "connection_state", "data": {"state": "session_ended"}}),
]


def _sound(kind: str, role: str) -> tuple[str, Json]:
    return "user_sim", {"event_type": kind, "user": role}


WAITS: list[tuple[str, Json]] = [
    _sound("audio_start", "simulated_user"),
    _sound("audio_end", "simulated_user"),
    _sound("audio_start", "assistant"),
    _sound("audio_end", "assistant"),
    ("audit", {"message_type": "tool_call", "value": {"tool": "find", "parameters": {}}}),
    ("audit", {"message_type": "tool_response", "value": {"tool": "find", "response": "found"}}),
]
WAITS_MS = [0, 1, 900, 2_000, 2_999, 3_000, 3_499, 3_500, 9_000]


@st.composite
def logs(
    draw: st.DrawFn, what: Sequence[tuple[str, Json]] = SAYS, pauses_ms: Sequence[int] = PAUSES_MS
) -> list[Arrival]:
    """The records of one call as the broker took them."""
    said = draw(st.lists(st.tuples(st.sampled_from(what), st.sampled_from(pauses_ms)), min_size=1, max_size=10))
    over = draw(st.lists(st.sampled_from([*ENDS, *SAYS]), max_size=3)) if draw(st.booleans()) else []
    ended = [(each, 1) for each in ([draw(st.sampled_from(ENDS)), *over] if over else [])]
    at_ms, log = T0_MS, []
    next_offset: Counter[InputSource] = Counter()
    for (stream, says), pause_ms in [*said, *ended]:
        at_ms += pause_ms
        heard = {"audio_timestamp": at_ms / 1_000} if "user" in says else {}
        source, value = SOURCE_OF[stream], json.dumps({"timestamp": at_ms} | says | heard).encode()
        log.append(Arrival(source, next_offset[source], at_ms, "call", decode(source, value), value, None))
        next_offset[source] += 1
    return log


@st.composite
def interleaved(draw: st.DrawFn, log: Sequence[Arrival]) -> list[Arrival]:
    """The topics in another order, each in its own; the record that opened the call opens it again."""
    waiting: dict[InputSource, list[Arrival]] = {}
    for arrival in log[1:]:
        waiting.setdefault(arrival.source, []).append(arrival)
    order = draw(st.permutations([arrival.source for arrival in log[1:]]))
    return [log[0], *(waiting[source].pop(0) for source in order)]


def _as_it_came(evaluator: PartitionEvaluator, log: Sequence[Arrival]) -> list[Effect]:
    effects: list[Effect] = []
    for arrival in log:
        effects += evaluator.advance(arrival.broker_time_ms)
        effects += evaluator.receive(arrival)
    return [*effects, *evaluator.advance(end_of(log))]


def _as_far_as_known(evaluator: PartitionEvaluator, log: Sequence[Arrival]) -> list[Effect]:
    """Broker time is where the hindmost of the topics is that go on; at the beginning, before the log."""
    unread = Counter(arrival.source for arrival in log)
    read_ms = dict.fromkeys(unread, T0_MS)
    effects = [*evaluator.advance(T0_MS)]
    for arrival in log:
        effects += evaluator.receive(arrival)
        unread[arrival.source] -= 1
        read_ms[arrival.source] = arrival.broker_time_ms
        goes_on = [source for source, number in unread.items() if number]
        effects += evaluator.advance(min((read_ms[source] for source in goes_on), default=max(read_ms.values())))
    return [*effects, *evaluator.advance(end_of(log))]


def _closed(effects: Sequence[Effect]) -> tuple[dict[str, int], CloseReason]:
    """How much of the call counted, and why it closed; of two end events either may be read first."""
    (closing,) = closings_of(effects)
    told = closing.records[-1]
    assert isinstance(told, ClosedFact)
    return told.through, CloseReason.ENDED if told.reason is CloseReason.SESSION_ENDED else told.reason


@examples(times=3)
@given(logs(), st.data(), st.sampled_from(LIMITS))
def test_whichever_topic_lags_a_call_ends_as_it_does_when_none_does(
    log: list[Arrival], data: st.DataObject, limits: Limits
) -> None:
    steady, lagging = fresh(limits), fresh(limits)
    as_it_came = _as_it_came(steady, log)
    as_far_as_known = _as_far_as_known(lagging, data.draw(interleaved(log)))
    through, reason = _closed(as_it_came)
    late = len(log) - sum(offset + 1 for offset in through.values())
    event(f"closed by {reason}, {'some' if late else 'none'} after it")
    assert _closed(as_far_as_known) == (through, reason)
    assert final_state(as_far_as_known) == final_state(as_it_came)
    for evaluator in (steady, lagging):
        outcomes = Counter[str]()
        for count in evaluator.drain_counts():
            outcomes[count.labels[1]] += count.by
        assert (outcomes["after_close"], outcomes.total()) == (late, len(log))


@examples(times=5)
@given(logs([*WAITS, *WAITS[:3]], WAITS_MS), st.data())
def test_whichever_topic_lags_the_same_silences_are_dead_air(log: list[Arrival], data: st.DataObject) -> None:
    def dead_airs(effects: Sequence[Effect]) -> list[tuple[int, int]]:
        facts = [record for record in records_of(effects) if isinstance(record, DeadAirFact)]
        return [(fact.silent_since_ms, fact.caused_at_ms) for fact in facts]

    as_it_came = dead_airs(_as_it_came(fresh(), _in_one_order(log)))
    event(f"{len(as_it_came)} dead airs")
    assert dead_airs(_as_far_as_known(fresh(), data.draw(interleaved(log)))) == as_it_came


def _in_one_order(log: Sequence[Arrival]) -> list[Arrival]:
    """Of records that were taken at once, on two topics, any may be read first."""
    return [log[0], *sorted(log[1:], key=lambda arrival: arrival.broker_time_ms)]
