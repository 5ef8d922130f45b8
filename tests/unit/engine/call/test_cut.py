"""A call is closed so that its partition makes progress: the choice of the call, its records, and that it stays closed."""

from collections import Counter

import pytest

from consumers.engine.effects import CloseCall
from consumers.engine.goals.chosen_goals import ChosenGoals
from consumers.engine.limits import Limits
from consumers.engine.partition import PartitionEvaluator
from schemas.scores.all_records import ClosedFact, CloseReason, TurnStatus
from tests.support.fakes.engine_feed import T0_MS, Feed, records_of


def feed_of(*keys: str, words: int = 1) -> Feed:
    """Calls of which the last keeps most."""
    feed = Feed()
    feed.evaluator = PartitionEvaluator(Limits(), "test", ChosenGoals(), writes_transcripts=True)
    for number, key in enumerate(keys, 1):
        feed.send("audit", {"message_type": "user", "value": "word " * words * number}, 0, key=key)
    return feed


def test_the_call_that_keeps_most_is_the_heaviest() -> None:
    feed = feed_of("a", "b", "c")
    feed.send("audit", {"message_type": "user", "value": "Hello"}, 10, key="a")
    heaviest = feed.evaluator.heaviest_call()
    assert heaviest is not None
    assert (heaviest[1], heaviest[2]) == (2, "a")
    assert Feed().evaluator.heaviest_call() is None


@pytest.mark.parametrize("is_scored", [True, False])
def test_it_is_closed_as_a_limit_without_a_transcript_and_stays_so(is_scored: bool) -> None:
    feed = feed_of("a", "call")
    feed.user_audio(100, 1_000)
    feed.assistant_audio(1_500, 2_500)
    effects = feed._keep(feed.evaluator.cut("call", is_scored=is_scored))
    (closing,) = (effect for effect in effects if isinstance(effect, CloseCall))
    assert (closing.conversation_id, closing.transcript) == ("call", None)
    *scores, closed = closing.records
    assert isinstance(closed, ClosedFact)
    assert (closed.reason, closed.status) == (CloseReason.LIMIT_KEPT_BYTES, TurnStatus.FINAL)
    assert bool(scores) == is_scored
    assert feed.counts("callgauge_limits_hit_total") == Counter({("takeovers",): 1})
    assert feed.evaluator.open_calls == 1
    feed.send("audit", {"message_type": "user", "value": "Hello"}, 3_000)
    assert feed.counts("callgauge_events_total")["audit", "after_close"] == 1


@pytest.mark.parametrize("is_scored", [True, False])
def test_a_call_that_is_cut_in_the_middle_of_its_replay_says_nothing_twice(is_scored: bool) -> None:
    """Its last owner had written more than this one has read again."""
    first = feed_of("call")
    first.user_audio(100, 1_000)
    first.assistant_audio(1_500, 2_500)
    first.user_audio(4_000, 5_000)
    first.assistant_audio(5_500, 6_500)
    written = first.records()
    second = feed_of()
    for record in written:
        second.evaluator.recall(record)
    second.send("audit", {"message_type": "user", "value": "word "}, 0)
    second.user_audio(100, 1_000)
    second.assistant_audio(1_500, 2_500)
    assert second.records() == []
    closing = records_of(second.evaluator.cut("call", is_scored=is_scored))
    ids = Counter(record.record_id for record in [*written, *closing])
    assert max(ids.values()) == 1
    assert [record.name for record in closing].count("closed") == 1
    assert second.evaluator.open_calls == 0


@pytest.mark.parametrize("is_scored", [True, False])
def test_a_call_whose_close_is_under_way_ends_at_once(is_scored: bool) -> None:
    """Its transcript takes several steps, and time rests while a partition does not get on."""
    feed = feed_of("call")
    for number in range(8):
        at_ms = 1_000 + 5_000 * number
        feed.user_audio(at_ms, at_ms + 1_000, text=f"{number} " + "1," * 8_000)
        feed.assistant_audio(at_ms + 1_500, at_ms + 2_500)
    feed.send("audit", {"type": "call_ended", "reason": "goodbye"}, 60_000)
    feed.evaluator.pass_time(T0_MS + 600_000)
    feed.evaluator.close_some()
    assert feed.evaluator.open_calls == 1, "the close takes more than one step"
    effects = feed._keep(feed.evaluator.cut("call", is_scored=is_scored))
    (closing,) = (effect for effect in effects if isinstance(effect, CloseCall))
    assert [record.name for record in closing.records].count("closed") == 1
    assert feed.evaluator.open_calls == 0
    assert feed.evaluator.advance(700_000) == []
