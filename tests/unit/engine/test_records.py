"""When the values of turns and calls are published: once, again if they change, over a restart too, and how many records that is."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest

from consumers.engine.admission import Arrival
from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.limits import Limits
from consumers.engine.records import Fields, Revisions, Unsaid
from schemas.closed_sets import InputSource, UnscoredReason
from schemas.events.codec import decode
from schemas.scores.records import AnyScoreRecord, CallValues, TurnValues, Unscored
from tests.benchmarks.traffic import recorded_events, simulated_events
from tests.support.conformance_data import RECORD, needs_conformance
from tests.support.fakes.engine_feed import T0_MS, Feed, plain, records_of

ENDED = {"type": "call_ended", "reason": "goodbye"}
HOUR_MS = 3_600_000


def talk(feed: Feed, first: int, last: int, *, apart_ms: int = 10_000) -> None:
    """Turns of a dialogue, the greeting as turn 0."""
    for turn in range(first, last + 1):
        at_ms = turn * apart_ms
        if turn:
            feed.user_audio(at_ms, at_ms + 1_000)
            at_ms += 2_000
        feed.assistant_audio(at_ms, at_ms + 2_000)


def spoken(feed: Feed, *starts_ms: int) -> None:
    """Turns of a call that only the bot hears."""
    for at_ms in starts_ms:
        feed.spoke("user", at_ms, at_ms + 1_000)
        feed.spoke("bot", at_ms + 2_000, at_ms + 3_000)


Events = Sequence[tuple[int, InputSource, bytes]]


def arrivals_of(events: Events) -> list[Arrival]:
    return [
        Arrival(source, offset, at_ms, "call", decode(source, value, None), value, None)
        for offset, (at_ms, source, value) in enumerate(events)
    ]


def written_by(events: Events, *, taken_over: int = 0) -> list[AnyScoreRecord]:
    """The records of a call from an evaluator, which may have taken it over after so many events."""
    evaluator = PartitionEvaluator(Limits(), "test")
    arrivals = arrivals_of(events)
    for arrival in arrivals[:taken_over]:
        evaluator.receive(arrival)
    records = records_of(effect for arrival in arrivals[taken_over:] for effect in evaluator.receive(arrival))
    return [*records, *records_of(evaluator.advance(events[-1][0] + HOUR_MS))]


@pytest.mark.parametrize("counts", [True, False])
def test_after_a_loss_no_value_counts_as_the_first_one(*, counts: bool) -> None:
    """A former owner may have counted it."""
    feed = Feed()
    feed.evaluator.lacking = set() if counts else {"call"}
    talk(feed, 0, 3)
    feed.send("audit", ENDED, 60_000)
    feed.advance(HOUR_MS)
    assert {record.is_first for record in feed.records("closed")} == {counts}
    assert any(record.first_known for record in feed.records("turn") if isinstance(record, TurnValues)) is counts


# The record of the call.


def times_ms(feed: Feed) -> list[int]:
    return [record.caused_at_ms - T0_MS for record in feed.records("call")]


def test_a_call_that_is_not_long_has_one_record_of_its_own_at_the_close() -> None:
    feed = Feed()
    talk(feed, 0, 11)
    assert feed.records("call") == []
    feed.send("judge", ENDED, 116_000)
    feed.advance(HOUR_MS)
    (record,) = feed.records("call")
    assert (record.status, feed.nth(record), record.is_first, record.through_turn) == ("final", 1, True, 11)
    assert [each.name for each in feed.records()][-2:] == ["call", "closed"]


@pytest.mark.parametrize(("every_ms", "expected"), [(30_000, [120, 150, 180, 210]), (15_000, [*range(120, 240, 20)])])
def test_a_long_call_has_one_every_so_often_when_it_leaves_a_turn(every_ms: int, expected: list[int]) -> None:
    feed = Feed(Limits(call_values_every_ms=every_ms))
    talk(feed, 0, 23)
    assert times_ms(feed) == [1_000 * at_s for at_s in expected]
    assert [record.through_turn for record in feed.records("call")] == [at_s // 10 - 1 for at_s in expected]
    assert {record.status for record in feed.records("call")} == {"provisional"}
    assert [record.is_first for record in feed.records("call")] == [True] + [False] * (len(expected) - 1)


def test_without_another_turn_a_long_call_says_nothing_more_of_itself() -> None:
    feed = Feed(Limits(call_values_every_ms=1))
    talk(feed, 0, 14)
    before = times_ms(feed)
    for at_ms in range(146_000, 300_000, 1_000):
        feed.send("audit", {"message_type": "llm_call"}, at_ms)
        feed.advance(at_ms)
    assert times_ms(feed)[: len(before)] == before
    assert len(times_ms(feed)) <= len(before) + 1  # when the last turns settle


def test_a_long_call_keeps_its_rhythm_when_it_is_taken_over() -> None:
    whole = Feed()
    talk(whole, 0, 30)
    feed = Feed()
    talk(feed, 0, 19)
    feed.hand_over(PartitionEvaluator(Limits(), "test"))
    talk(feed, 20, 30)
    assert times_ms(feed) == times_ms(whole)
    assert [feed.nth(record) for record in feed.records("call")] == [*range(1, 8)]
    assert all(later - sooner >= 30_000 for sooner, later in pairwise(times_ms(whole)))


def test_the_close_publishes_the_call_also_if_nothing_of_it_is_known() -> None:
    feed = Feed()
    feed.send("audit", {"message_type": "llm_call"}, 0)
    feed.advance(HOUR_MS)
    assert [record.name for record in feed.records()] == ["call_started", "call", "closed"]


# Values that are not known.


def test_the_close_says_in_how_many_turns_a_value_is_not_known_and_why() -> None:
    feed = Feed()
    talk(feed, 0, 1)
    feed.user_audio(20_000, 21_000)
    feed.bot_text("Nobody hears this.", 22_000)
    feed.user_audio(30_000, 31_000)
    feed.bot_text("Nor this.", 32_000)
    feed.user_audio(40_000)
    feed.assistant_audio(42_000, 43_000)
    feed.user_audio(50_000, 51_000)  # which gets no answer, since the call ends
    feed.send("judge", ENDED, 52_000)
    feed.advance(HOUR_MS)
    turns = [feed.turn_values(turn) for turn in range(1, 6)]
    waits = [turn.voice_to_voice_ms for turn in turns]
    assert [plain(wait) for wait in waits][:3] == [1_000.0, "no_assistant_speech", "no_assistant_speech"]
    timings = [turn.turn_taking.result for turn in turns if turn.turn_taking is not None]
    unscored = feed.call_values().unscored_turns
    assert unscored == {
        "voice_to_voice_latency_ms": Counter(wait.reason for wait in waits if isinstance(wait, Unscored)),
        "turn_taking": Counter(timing.reason for timing in timings if isinstance(timing, Unscored)),
    }
    assert unscored["voice_to_voice_latency_ms"][UnscoredReason.NO_ASSISTANT_SPEECH] == 2
    assert unscored["turn_taking"]


def test_while_a_call_runs_nobody_counts_what_is_not_known() -> None:
    feed = Feed()
    feed.user_audio(0, 1_000)
    talk(feed, 1, 20)
    assert feed.records("call")
    assert {len(record.unscored_turns) + len(record.unscored_subgoals) for record in feed.records("call")} == {0}


# Over a restart.


def test_turns_that_turn_out_to_be_none_are_withdrawn_once_over_a_restart_too() -> None:
    feed = Feed()
    feed.speech("bot_speech_started", 0)
    spoken(feed, 2_000, 6_000, 10_000)
    assert {record.turn for record in feed.records("turn")} == {0, 1, 2}
    feed.hand_over(PartitionEvaluator(Limits(), "test"))
    feed.assistant_audio(0, 900)  # on another topic, which lags: there is a simulated caller
    withdrawn = [record for record in feed.records("turn") if record.is_withdrawn]
    assert [(record.turn, feed.nth(record), plain(record.voice_to_voice_ms)) for record in withdrawn] == [
        (1, 2, "withdrawn"), (2, 2, "withdrawn"),
    ]  # fmt: skip
    feed.hand_over(PartitionEvaluator(Limits(), "test"))
    feed.user_audio(20_000, 21_000)
    feed.assistant_audio(22_000, 23_000)
    feed.user_audio(30_000, 31_000)
    assert [record for record in feed.records("turn") if record.is_withdrawn] == withdrawn


def _errs(at_ms: int) -> tuple[int, InputSource, bytes]:
    error = {"type": "error", "data": {"error": "gone"}, "timestamp": at_ms}
    return at_ms, InputSource.PIPECAT, json.dumps(error).encode()


@pytest.mark.parametrize("turns", [3, 1_000])
def test_a_silent_fold_makes_no_records_and_knows_what_one_with_records_knows(turns: int) -> None:
    """Also where it is decided by there being a record: whether the call was announced, and how many turns it may have."""
    events = simulated_events(2)
    arrivals = arrivals_of([_errs(events[0][0]), *events])
    for cut in (1, len(arrivals) // 2, len(arrivals) - 1):
        loud, silent = (PartitionEvaluator(Limits(max_turns_per_call=turns), "test") for _ in range(2))
        silent.is_silent = True
        for arrival in arrivals[:cut]:
            records = records_of(loud.receive(arrival))
            stand_ins: list[Any] = records_of(silent.receive(arrival))
            assert [type(each) for each in stand_ins] == [Unsaid] * len(records)
        silent.speak()
        assert (silent.next_wakeup(), silent.closing_calls) == (loud.next_wakeup(), loud.closing_calls)
        for arrival in arrivals[cut:]:
            assert silent.receive(arrival) == loud.receive(arrival)
        assert silent.advance(events[-1][0] + HOUR_MS, 10**6) == loud.advance(events[-1][0] + HOUR_MS, 10**6)


@pytest.mark.parametrize("seed", [2, 4])
def test_each_value_of_a_turn_is_known_for_the_first_time_once_wherever_a_successor_takes_over(seed: int) -> None:
    events = simulated_events(seed)
    whole = [record for record in written_by(events) if isinstance(record, TurnValues)]
    expected = Counter((record.turn, name) for record in whole for name in record.first_known)
    assert expected
    assert set(expected.values()) == {1}
    records = written_by(events)
    for cut in range(1, len(events), len(events) // 9):
        after = written_by(events, taken_over=cut)
        assert 0 < len(after) <= len(records)
        assert after == records[-len(after) :], "what a successor publishes is the rest of what one evaluator publishes"
    ids = Counter(record.record_id for record in records)
    assert max(ids.values()) == 1


def test_a_value_that_goes_and_comes_back_is_not_known_for_the_first_time_again() -> None:
    feed = Feed()
    feed.spoke("bot", 0, 900)
    spoken(feed, 2_000, 12_000)
    feed.heard("Yes", 13_200)
    assert feed.turn_values(1).first_known == ("turn_taking",)
    feed.assistant_audio(14_000, 14_500)  # a simulated caller is heard: other turns, without this one
    assert feed.turn_values(1).is_withdrawn
    feed.user_audio(20_000, 21_000)
    feed.assistant_audio(22_000, 23_000)
    feed.user_audio(30_000, 31_000)
    again = feed.turn_values(1)
    assert (feed.nth(again), again.is_withdrawn, again.is_first, again.first_known) == (3, False, False, ())


# How much it is.


def unchanged(records: Sequence[AnyScoreRecord]) -> list[tuple[str, int | None, int]]:
    """Subjects of which two records in a row were computed from the same."""
    last: dict[tuple[str, int | None, int], str] = {}
    found: list[tuple[str, int | None, int]] = []
    for record in records:
        subject: tuple[str, int | None, int] = (record.name, record.turn, record.index)
        if last.get(subject) == record.input_hash:
            found.append(subject)
        last[subject] = record.input_hash
    return found


def test_a_simulated_call_has_at_most_twenty_records_on_average() -> None:
    calls = [written_by(simulated_events(seed)) for seed in range(100)]
    assert all([record.name for record in records][-1] == "closed" for records in calls)
    assert sum(map(len, calls)) / len(calls) <= 20
    assert [subject for records in calls for subject in unchanged(records)] == []


@needs_conformance(RECORD.name)
def test_the_recorded_call_has_at_most_forty_five() -> None:
    records = written_by(recorded_events())
    assert records[-1].name == "closed"
    assert len(records) <= 45
    assert unchanged(records) == []
    assert [record.status.value for record in records if isinstance(record, CallValues)][-1] == "final"


def test_a_record_that_says_the_same_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fields are the work of a record: it is not done for a record that is not published."""
    looks: Counter[str] = Counter()
    make = Revisions.make

    def counting(*arguments: Any, fields: Callable[[], Fields] | None = None, **more: Any) -> Any:
        def counted() -> Fields:
            assert fields is not None
            looks["worked out"] += 1
            return fields()

        record = make(*arguments, fields=None if fields is None else counted, **more)
        looks["asked"] += 1
        looks["made"] += record is not None
        looks["made by work"] += record is not None and fields is not None
        return record

    monkeypatch.setattr(Revisions, "make", counting)
    records = written_by(simulated_events(3))
    assert looks["made"] == len(records)
    assert looks["asked"] > looks["made"]
    assert looks["worked out"] == looks["made by work"] > 0
