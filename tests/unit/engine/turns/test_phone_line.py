"""Live turns of a call without a simulated caller: heard through the bot's own events, at whichever layer it has."""

import pytest

from consumers.engine.effects import NotUnderstood
from consumers.engine.turns.bot import BotTurnMachine, SpeechMoment
from tests.support.fakes.engine_feed import LATENCY, Feed


def _interruptions(feed: Feed) -> list[tuple[str, int]]:
    return [(fact.by.value, fact.turn) for fact in feed.records() if fact.name.startswith("interruption")]


def _greeted() -> Feed:
    feed = Feed()
    feed.speech("bot_speech_started", 0)
    feed.speech("bot_speech_stopped", 900)
    return feed


def _spoken(feed: Feed, start_ms: int, end_ms: int) -> None:
    feed.speech("user_speech_started", start_ms, behind_ms=200)
    feed.speech("user_turn_started", start_ms + 100, behind_ms=150)
    feed.speech("user_speech_stopped", end_ms, behind_ms=200)
    feed.speech("user_turn_stopped", end_ms + 400, behind_ms=0)


def test_detector_and_rulings() -> None:
    feed = _greeted()
    _spoken(feed, 2_000, 3_000)
    feed.speech("bot_speech_started", 4_500)
    feed.speech("bot_speech_stopped", 6_000)
    _spoken(feed, 7_000, 8_000)
    feed.speech("bot_speech_started", 8_700)
    assert feed.latencies() == {1: 1_500.0, 2: 700.0}
    assert {(r.anchor.value, r.source) for r in feed.records(LATENCY)} == {("vad", "pipecat")}
    assert feed.turns() == {0, 1, 2}
    assert _interruptions(feed) == []


def test_rulings_alone_written_twice_as_eva_does() -> None:
    feed = Feed()
    feed.bot_text("Welcome.", 0)
    feed.ruling("user_started_speaking", 2_000, times=2)
    feed.ruling("user_stopped_speaking", 3_000, times=2)
    feed.bot_text("Certainly.", 4_250)
    assert feed.latencies() == {1: 1_250.0}
    assert [r.anchor.value for r in feed.records(LATENCY)] == ["turn_release"]
    assert feed.turns() == {0, 1}


def test_a_transcript_alone() -> None:
    feed = Feed()
    feed.bot_text("Welcome.", 0)
    feed.heard("My badge is lost.", 3_000)
    feed.bot_text("Certainly.", 4_000)
    assert feed.latencies() == {1: 1_000.0}
    assert [(r.anchor.value, r.source) for r in feed.records(LATENCY)] == [("transcript", "audit")]


def test_two_transcripts_before_an_answer_are_one_turn() -> None:
    feed = Feed()
    feed.bot_text("Welcome.", 0)
    feed.heard("My badge", 3_000)
    feed.heard("is lost.", 3_600)
    feed.bot_text("Certainly.", 4_000)
    assert feed.latencies() == {1: 400.0}
    assert feed.turns() == {0, 1}


def test_the_bot_s_own_event_is_taken_rather_than_its_text() -> None:
    feed = _greeted()
    _spoken(feed, 2_000, 3_000)
    feed.bot_text("Certainly.", 3_800)
    feed.speech("bot_speech_started", 4_000)
    assert feed.latencies() == {1: 1_000.0}


def test_a_cough_without_a_ruling_is_no_turn() -> None:
    feed = _greeted()
    _spoken(feed, 2_000, 3_000)
    feed.speech("bot_speech_started", 4_000)
    feed.speech("bot_speech_stopped", 5_000)
    feed.speech("user_speech_started", 6_000)
    feed.speech("user_speech_stopped", 6_200)
    _spoken(feed, 8_000, 9_000)
    feed.speech("bot_speech_started", 9_500)
    assert feed.latencies() == {1: 1_000.0, 2: 500.0}
    assert feed.turns() == {0, 1, 2}


def test_a_user_who_speaks_over_the_bot() -> None:
    feed = _greeted()
    _spoken(feed, 2_000, 3_000)
    feed.speech("bot_speech_started", 4_000)
    _spoken(feed, 4_500, 5_000)
    feed.speech("bot_speech_stopped", 4_700)
    feed.speech("bot_speech_started", 6_000)
    assert _interruptions(feed) == [("user", 2)]
    assert feed.latencies() == {1: 1_000.0, 2: 1_000.0}


def test_a_cough_over_the_bot_is_no_interruption() -> None:
    feed = _greeted()
    _spoken(feed, 2_000, 3_000)
    feed.speech("bot_speech_started", 4_000)
    feed.speech("user_speech_started", 4_500)
    feed.speech("user_speech_stopped", 4_600)
    assert _interruptions(feed) == []
    assert feed.turns() == {0, 1}


def test_an_assistant_that_speaks_over_the_user() -> None:
    feed = _greeted()
    feed.speech("user_speech_started", 2_000)
    feed.speech("user_turn_started", 2_100)
    feed.speech("bot_speech_started", 2_600)
    assert feed.latencies() == {}
    feed.speech("user_speech_stopped", 3_000)
    feed.speech("user_turn_stopped", 3_200)
    assert _interruptions(feed) == [("assistant", 1)]
    assert feed.latencies() == {1: -400.0}


def test_a_greeting_is_never_interrupted_by_the_assistant() -> None:
    machine = BotTurnMachine()
    machine.apply(SpeechMoment.BOT_STARTED, 1.0, 1_000)
    assert machine.turns[0].bot_starts == (1.0,)
    assert not machine.turns[0].assistant_interrupted


def test_moments_count_when_they_happened_not_when_they_came() -> None:
    feed = _greeted()
    feed.speech("user_speech_started", 2_000)
    feed.speech("bot_speech_started", 4_000)
    feed.speech("user_speech_stopped", 3_000, behind_ms=5_000)
    assert feed.latencies() == {1: 1_000.0}
    assert feed.records("interruption_by_assistant") == [], "who spoke over whom is known at the end of the speech"


def test_the_first_audio_event_switches_to_audio_as_a_revision() -> None:
    feed = Feed()
    feed.bot_text("Welcome.", 0)
    feed.heard("Hello", 3_000)
    feed.bot_text("Certainly.", 4_000)
    assert feed.latencies() == {1: 1_000.0}
    feed.user_audio(1_000, 2_400, behind_ms=2_000)
    feed.assistant_audio(4_100, behind_ms=400)
    newest = feed.records(LATENCY, turn=1)[-1]
    assert (newest.result.value, newest.anchor.value, newest.source) == (1_700.0, "audio", "elevenlabs")
    assert newest.revision == len(feed.records(LATENCY, turn=1))
    assert [record.is_first for record in feed.records(LATENCY, turn=1)].count(True) == 1


def test_other_kinds_of_speech_events_change_no_turn_and_an_unknown_one_is_reported() -> None:
    feed = _greeted()
    feed.speech("interruption", 2_000)
    assert feed.latest == []
    feed.speech("of a later version", 2_000)
    assert [type(effect) for effect in feed.latest] == [NotUnderstood]


@pytest.mark.parametrize("is_told_first", [True, False])
def test_only_a_cascade_s_transcripts_make_turns_whenever_it_is_told(is_told_first: bool) -> None:
    feed = Feed()
    started = {"type": "call_started", "pipeline_type": "audio_llm"}
    if is_told_first:
        feed.send("audit", started, 0)
    feed.bot_text("Welcome.", 0)
    feed.heard("[user audio]", 3_000)
    feed.bot_text("Certainly.", 4_000)
    if not is_told_first:
        assert feed.latencies() == {1: 1_000.0}
        feed.send("audit", started, 4_100)
        assert feed.latencies() == {1: "withdrawn"}
    feed.advance(900_000)
    assert feed.records("closed")[0].turns == 0
    feed = Feed()
    feed.send("audit", started, 0)
    feed.bot_text("Welcome.", 0)
    feed.heard("[user audio]", 3_000)
    feed.bot_text("Certainly.", 4_000)
    feed.send("audit", started | {"pipeline_type": "cascade"}, 4_100)
    assert feed.latencies() == {1: 1_000.0}
