"""Answers that the bot writes and the caller does not hear: turns of their own, with a reason and without dead air."""

import pytest

from consumers.engine.limits import Limits
from schemas.closed_sets import UnscoredReason
from tests.support.fakes.engine_feed import Feed, Json

LIMITS = Limits(dead_air_ms=3_000, delivery_allowance_ms=500)
ENDED: Json = {"type": "call_ended", "reason": "goodbye"}
IN_TEXT = UnscoredReason.ANSWERED_IN_TEXT.value
NEVER = "the call ended before an answer"


def asks(feed: Feed, at_ms: int) -> None:
    """One second of the caller, and the ruling behind it."""
    feed.speech("user_speech_started", at_ms)
    feed.speech("user_turn_started", at_ms + 100)
    feed.speech("user_speech_stopped", at_ms + 1_000)
    feed.speech("user_turn_stopped", at_ms + 1_200)


def writes(feed: Feed, at_ms: int, source: str = "pipecat") -> None:
    """The answer as pipecat's aggregator, or the agent's log, has it."""
    if source == "pipecat":
        feed.send(
            "pipecat", {"type": "assistant_message", "data": {"content": "At nine.", "interrupted": False}}, at_ms
        )
    else:
        feed.send("audit", {"message_type": "assistant", "value": "At nine."}, at_ms)


@pytest.mark.parametrize("source", ["pipecat", "audit"])
def test_each_written_answer_has_its_turn_and_says_why_it_has_no_latency(source: str) -> None:
    feed = Feed(LIMITS)
    for at_ms in (1_000, 6_000):
        asks(feed, at_ms)
        writes(feed, at_ms + 2_500, source)
    feed.send("pipecat", ENDED, 9_000)
    feed.advance(60_000)
    assert feed.latencies() == {1: IN_TEXT, 2: IN_TEXT}
    assert feed.call_values().unscored_turns["voice_to_voice_latency_ms"] == {IN_TEXT: 2}
    assert feed.call_values().unscored_turns["turn_taking"] == {IN_TEXT: 2}
    assert feed.records("dead_air") == []


def test_a_caller_who_waits_for_a_written_answer_waits() -> None:
    feed = Feed(LIMITS)
    asks(feed, 1_000)
    feed.advance(6_000)
    assert len(feed.records("dead_air")) == 1
    writes(feed, 6_500)
    feed.advance(30_000)
    assert len(feed.records("dead_air")) == 1


def test_a_question_without_any_answer_has_the_old_reason() -> None:
    feed = Feed(LIMITS)
    asks(feed, 1_000)
    feed.send("pipecat", ENDED, 3_000)
    feed.advance(60_000)
    assert feed.latencies() == {1: NEVER}


@pytest.mark.parametrize("is_late", [False, True])
def test_words_are_no_answer_of_a_bot_that_speaks(*, is_late: bool) -> None:
    """Whether it speaks may be known after the words: then the turns are made anew."""
    feed = Feed(LIMITS)
    if not is_late:
        feed.speech("bot_speech_started", 100)
        feed.speech("bot_speech_stopped", 800)
    asks(feed, 1_000)
    writes(feed, 2_600)  # and both moments of its sound are lost
    asks(feed, 4_000)
    assert feed.turns() == ({1, 2} if is_late else {0, 1})
    feed.speech("bot_speech_started", 6_200)
    assert feed.turns() == ({1} if is_late else {0, 1})
    feed.speech("bot_speech_stopped", 7_000)
    feed.send("pipecat", ENDED, 9_000)
    feed.advance(60_000)
    assert feed.latencies()[1] == 1_200.0
