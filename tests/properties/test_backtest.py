"""A call evaluated again with the facts of its log ends as it did, however its topics are interleaved and time passes."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from consumers.engine.effects import CloseCall, Effect
from consumers.engine.intake.admission import Arrival
from consumers.engine.limits import Limits
from consumers.engine.partition import PartitionEvaluator
from schemas.scores.all_records import AnyScoreRecord, ClosedFact, DeadAirFact
from tests.properties.evaluation import closing_of_one, end_of, final_state, fresh
from tests.properties.steered_calls import drawn
from tests.support.calls.wire_calls import arrivals_of
from tests.support.fakes.engine_feed import T0_MS, Feed, Json, closings_of, records_of, said
from tests.support.laws import examples

PAUSES_MS = [0, 0, 0, 1, 400, 4_000, 400_000]
SOON = {"dead_air_ms": 1, "delivery_allowance_ms": 0}
LIMITS_THEN = [
    Limits(),
    Limits(**SOON),
    Limits(closing_grace_ms=0, **SOON),
    Limits(idle_ms=60_000, **SOON),
    Limits(max_events_per_call=12, **SOON),
    Limits(max_call_duration_ms=20_000, **SOON),
]
LIMITS_NOW = [
    *LIMITS_THEN,
    Limits(max_turns_per_call=1, max_kept_bytes_per_call=1, max_replayed_elements_per_call=1, max_open_calls=1),
]


def _with_pauses(data: st.DataObject, arrivals: Sequence[Arrival]) -> list[Arrival]:
    """The broker takes them with pauses in between: long enough for dead air, for idleness, for the end of a call."""
    pauses = data.draw(st.lists(st.sampled_from(PAUSES_MS), min_size=1, max_size=12))
    waited = 0
    result = []
    for place, arrival in enumerate(arrivals):
        waited += pauses[place % len(pauses)]
        result.append(replace(arrival, broker_time_ms=arrival.broker_time_ms + waited))
    return result


def _live(arrivals: Sequence[Arrival], limits: Limits) -> list[Effect]:
    """As it was read while it happened: time passes between records, then nothing comes any more."""
    evaluator = fresh(limits)
    effects: list[Effect] = []
    for arrival in arrivals:
        effects += evaluator.advance(arrival.broker_time_ms - 1)
        effects += evaluator.receive(arrival)
    return [*effects, *evaluator.advance(end_of(arrivals))]


def _interleaved(data: st.DataObject, arrivals: Sequence[Arrival]) -> list[Arrival]:
    """The same log read in another order of its topics, each topic in its own."""
    waiting: dict[str, list[Arrival]] = {}
    for arrival in arrivals:
        waiting.setdefault(arrival.source, []).append(arrival)
    turns = [arrival.source for arrival in arrivals]
    random.Random(data.draw(st.integers(0, 1_000))).shuffle(turns)  # noqa: S311  # an order, nothing secret
    return [waiting[source].pop(0) for source in turns]


def _again(
    data: st.DataObject, facts: Sequence[AnyScoreRecord], log: Sequence[Arrival], limits: Limits
) -> tuple[PartitionEvaluator, list[Effect]]:
    """Evaluated again with the facts, time passing anyhow."""
    evaluator = fresh(limits)
    for record in facts:
        evaluator.obey(record)
    leaps = data.draw(st.lists(st.sampled_from([None, None, 0, 5_000, 10**9]), min_size=1, max_size=6))
    effects: list[Effect] = []
    for place, arrival in enumerate(log):
        effects += evaluator.receive(arrival)
        leap_ms = leaps[place % len(leaps)]
        if leap_ms is not None:
            effects += evaluator.advance(arrival.broker_time_ms + leap_ms)
    return evaluator, effects


def _final(effects: Sequence[Effect]) -> list[Json]:
    """All values of the close of the only call."""
    return [said(record) for record in closing_of_one(effects).records[-2:]]


def _dead_air(records: Sequence[AnyScoreRecord]) -> list[Json]:
    """The facts of every silence; their labels are those of the moment when it was noticed."""
    told = [said(record) for record in records if isinstance(record, DeadAirFact)]
    return [{name: value for name, value in each.items() if name != "labels"} for each in told]


@examples(times=2)
@given(st.data())
def test_with_the_facts_of_then_a_call_ends_as_it_did(data: st.DataObject) -> None:
    call, order = drawn(data, updates=False)
    arrivals = _with_pauses(data, arrivals_of(call, order))
    then = _live(arrivals, data.draw(st.sampled_from(LIMITS_THEN)))
    (closing,) = closings_of(then)
    closed = closing.records[-1]
    assert isinstance(closed, ClosedFact)
    event(f"closed by {closed.reason}")
    event(f"{min(2, len(_dead_air(records_of(then))))} dead airs")

    log = _interleaved(data, arrivals)
    evaluator, now = _again(data, records_of(then), log, data.draw(st.sampled_from(LIMITS_NOW)))
    assert evaluator.end() == [], "it closed when all that counted was folded"
    assert _final(now) == _final(then)
    assert _dead_air(records_of(now)) == _dead_air(records_of(then))
    assert final_state(now) == final_state(then)
    (again,) = closings_of(now)
    told = again.records[-1]
    assert isinstance(told, ClosedFact)
    assert (told.through, told.caused_at_ms) == (closed.through, closed.caused_at_ms)
    counted = sum(offset + 1 for offset in closed.through.values())
    outcomes = Counter[str]()
    for count in evaluator.drain_counts():
        outcomes[count.labels[1]] += count.by
    assert outcomes["after_close"] == len(arrivals) - counted
    assert evaluator.open_calls == 0


@given(st.data())
def test_the_same_log_gives_the_same_bytes(data: st.DataObject) -> None:
    call, order = drawn(data)
    arrivals = _with_pauses(data, arrivals_of(call, order))
    then = _live(arrivals, data.draw(st.sampled_from(LIMITS_THEN)))
    limits = data.draw(st.sampled_from(LIMITS_NOW))

    def again() -> list[bytes]:
        evaluator = fresh(limits)
        for record in records_of(then):
            evaluator.obey(record)
        effects = [effect for arrival in arrivals for effect in evaluator.receive(arrival)]
        return [record.model_dump_json().encode() for record in records_of(effects)]

    assert again() == again()


@given(st.data())
def test_a_call_whose_last_record_is_gone_still_closes(data: st.DataObject) -> None:
    """Records that were accepted then may be refused today, or deleted by retention: the end of the inputs is the end of the call."""
    call, order = drawn(data, updates=False)
    arrivals = _with_pauses(data, arrivals_of(call, order))
    then = _live(arrivals, Limits(**SOON))
    (closing,) = closings_of(then)
    closed = closing.records[-1]
    assert isinstance(closed, ClosedFact)
    kept = arrivals[: data.draw(st.integers(1, len(arrivals) - 1))] if len(arrivals) > 1 else arrivals
    evaluator, now = _again(data, records_of(then), kept, Limits())
    now += evaluator.end()
    (again,) = closings_of(now)
    assert evaluator.open_calls == 0
    told = again.records[-1]
    assert isinstance(told, ClosedFact)
    assert (told.reason, told.ended_reason) == (closed.reason, closed.ended_reason)
    assert _dead_air(records_of(now)) == _dead_air(records_of(then))


@pytest.mark.parametrize("dead_air_ms", [1_000, 3_000, 10_000])
def test_a_silence_is_none_and_no_more_by_the_threshold_of_today(dead_air_ms: int) -> None:
    feed = Feed(Limits(dead_air_ms=3_000))
    _a_call_with_waiting(feed)
    (dead_air,) = feed.records("dead_air")
    assert dead_air.silent_since_ms == T0_MS + 6_000
    again = Feed(Limits(dead_air_ms=dead_air_ms))
    for record in feed.records():
        again.evaluator.obey(record)
    _a_call_with_waiting(again)
    assert [said(record) for record in again.records("dead_air")] == [said(dead_air)]
    assert again.records()[-1].model_dump(exclude={"offsets"}) == feed.records()[-1].model_dump(exclude={"offsets"})


def _a_call_with_waiting(feed: Feed) -> None:
    """Two seconds and a half of it, then four."""
    feed.user_audio(0, 1_000)
    feed.assistant_audio(3_500, 4_500)
    feed.user_audio(5_000, 6_000)
    feed.advance(9_900)
    feed.assistant_audio(10_000, 11_000)
    feed.send("audit", {"type": "call_ended", "reason": "goodbye"}, 12_000)
    feed.advance(100_000)


def test_what_is_missing_now_takes_no_silence_away() -> None:
    feed = Feed()
    _a_call_with_waiting(feed)
    again = Feed()
    for record in feed.records():
        again.evaluator.obey(record)
    again.user_audio(0, 1_000)
    assert again.records("dead_air") == again.records("closed") == []
    again.effects += again.evaluator.end()
    assert [record.index for record in again.records("dead_air")] == [1]
    assert [record.name for record in again.records()][-1] == "closed"


def test_a_record_from_after_the_end_opens_no_call() -> None:
    feed = Feed()
    feed.heard("Hello", 0)
    feed.advance(1_000_000)
    again = Feed()
    for record in feed.records():
        again.evaluator.obey(record)
    again.send("pipecat", {"type": "tts_text", "data": {"frame": "Hm."}}, 1_000_001)
    assert (again.evaluator.open_calls, again.evaluator.end()) == (0, [])
    assert again.counts("callgauge_events_total") == {("pipecat", "after_close"): 1}


def test_time_does_nothing_to_a_call_that_obeys() -> None:
    feed = Feed()
    _a_call_with_waiting(feed)
    again = Feed(Limits(idle_ms=1, max_call_duration_ms=1, closing_grace_ms=0))
    for record in feed.records():
        again.evaluator.obey(record)
    again.user_audio(0, 1_000)
    assert again.evaluator.next_wakeup() is None
    again.advance(10**9)
    assert again.evaluator.open_calls == 1


def test_of_two_reasons_to_end_the_one_that_came_last_then_holds() -> None:
    ends = [("audit", "goodbye"), ("pipecat", "timeout")]
    feed = Feed()
    for stream, reason in ends:
        feed.send(stream, {"type": "call_ended", "reason": reason}, 0)
    feed.advance(100_000)
    again = Feed()
    for record in feed.records():
        again.evaluator.obey(record)
    for stream, reason in reversed(ends):
        again.send(stream, {"type": "call_ended", "reason": reason}, 0)
    assert [record.ended_reason for record in again.records("closed")] == ["timeout"]


def test_calls_that_obey_are_not_limited_in_number() -> None:
    """As many were open then; another that does not obey is closed in their stead."""
    word = {"message_type": "user", "value": "Hello"}
    feed = Feed(Limits(max_open_calls=2))
    for at_ms in (0, 1_000):
        for key in ("one", "two"):
            feed.send("audit", word, at_ms, key=key, offset=at_ms // 200 + (key == "two"))
    feed.advance(10_000_000)
    again = Feed(Limits(max_open_calls=1))
    for record in feed.records():
        again.evaluator.obey(record)
    for offset, conversation_id in ((0, "one"), (1, "two"), (2, "other"), (3, "another"), (5, "one"), (6, "two")):
        again.send("audit", word, 100 * offset, key=conversation_id, offset=offset)
    closed = [(record.conversation_id, record.reason) for record in again.records("closed")]
    assert closed == [("other", "limit_open_calls"), ("one", "idle"), ("two", "idle")]


def test_calls_without_facts_decide_for_themselves() -> None:
    """Silences alone are no facts of a closed call: the end of its log is not known."""
    feed = Feed()
    feed.user_audio(0, 1_000)
    feed.advance(10_000)
    (dead_air,) = feed.records("dead_air")
    again = Feed()
    again.evaluator.obey(dead_air)
    again.user_audio(0, 1_000)
    assert again.records("dead_air") == []
    again.advance(10_000)
    assert [said(record) for record in again.records("dead_air")] == [said(dead_air)]
    assert any(isinstance(effect, CloseCall) for effect in again.advance(10_000_000))
