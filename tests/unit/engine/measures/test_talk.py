"""Talk: its arithmetic and what a call's rows say of it."""

import pytest

from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.limits import Limits
from consumers.engine.measures import rows as measures
from consumers.engine.measures.talk import (
    MAX_QUESTIONS_PER_TURN,
    MAX_RUNNING_WORK,
    CallMeasures,
    SpokenTurn,
    ToolRunTimes,
    measures_of,
    questions_in,
    repeated,
)
from consumers.engine.measures.words import MAX_RUNNING_CHARS
from consumers.engine.turns.timeline import TimeSpan
from schemas.rows import Disagreement, NotApplicable, Speech, TurnTalk, WordErrors
from tests.support.fakes.engine_feed import Feed, plain
from tests.support.known import some

LIMITS = Limits(closing_grace_ms=1_000, idle_ms=60_000, call_values_every_ms=1)
STARTED = {"type": "call_started", "pipeline_type": "cascade", "agent": "ava"}
ENDED = {"type": "call_ended", "reason": "goodbye"}


@pytest.fixture(autouse=True)
def every_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls are long from the start: their values are published whenever a turn is left."""
    monkeypatch.setattr(measures, "LONG_CALL_MS", 0)


def speech(feed: Feed) -> Speech:
    """The newest."""
    return some(feed.call().speech)


def rate(feed: Feed) -> WordErrors:
    """The newest of the call."""
    return some(feed.call().stt_wer)


def rates_by_turn(feed: Feed) -> dict[int, float | str]:
    """Those of the turns that have one."""
    newest = {row.turn: row.stt_wer for row in feed.turn_rows()}
    return {turn: plain(found.result) for turn, found in newest.items() if found is not None}


def of_user(feed: Feed) -> Disagreement:
    """The differences in the caller's words, of the call so far."""
    return some(feed.call().user_disagreement)


def of_assistant(feed: Feed) -> Disagreement:
    """The differences in the agent's words, of the call so far."""
    return some(feed.call().assistant_disagreement)


def of_both(feed: Feed) -> float | str:
    """Both together."""
    found = feed.call().transcript_disagreement
    assert found is not None
    return plain(found)


def talk_in(feed: Feed, turn: int) -> TurnTalk:
    """Who spoke how long in a turn, by its newest row."""
    return some(feed.turn(turn).talk)


def talk(feed: Feed) -> None:
    """A greeting of 1 s and two turns: the caller's 2 s and 3 s, the assistant's 1 s and 3 s, a
    wait of 4 s.
    """
    (
        feed.send("audit", STARTED, 0)
        .assistant_audio(500, 1_500)
        .user_audio(2_000, 4_000, text="What is my seat?")
        .heard("What is my seat?", 4_100)
        .assistant_audio(8_000, 9_000)
        .user_audio(10_000, 13_000, text="What is my seat number four")
        .heard("What was my seat number 4?", 13_100)
        .assistant_audio(13_500, 16_500)
    )


@pytest.fixture
def feed() -> Feed:
    return Feed(LIMITS)


def test_a_turn_counts_when_it_is_left(feed: Feed) -> None:
    (
        feed.send("audit", STARTED, 0)
        .assistant_audio(100, 600)
        .user_audio(1_000, 3_000)
        .assistant_audio(4_000, 9_500)
    )
    assert (feed.call().through_turn, plain(speech(feed).result)) == (0, 1.0)
    assert plain(talk_in(feed, 0).assistant.speech_ms) == 500
    feed.user_audio(12_000, 13_000)
    found = speech(feed)
    assert (plain(found.result), feed.call().state, found.source) == (0.75, "running", "elevenlabs")
    assert feed.values("through_turn") == [None, 0, 1]
    talked = talk_in(feed, 1)
    assert (plain(talked.user.speech_ms), plain(talked.assistant.speech_ms)) == (2_000, 5_500)
    assert (talked.user.words, talked.assistant.words) == (1, 1)


def test_the_final_record_has_the_whole_call(feed: Feed) -> None:
    talk(feed)
    feed.send("judge", ENDED, 18_000).advance(60_000)
    assert (feed.call().state, feed.call().through_turn) == ("closed", 2)
    record = speech(feed)
    assert [
        plain(each)
        for each in (record.result, record.overlap_ms, record.dead_air_ms, record.first_word_ms)
    ] == [
        0.5,
        0,
        4_000,
        500,
    ]
    user, assistant = record.user, record.assistant
    assert [
        plain(each) for each in (user.speech_ms, user.longest_monologue_ms, user.words_per_minute)
    ] == [
        5_000,
        3_000,
        120.0,
    ]
    assert (plain(assistant.longest_monologue_ms), plain(assistant.words_per_minute)) == (
        3_000,
        36.0,
    )
    assert (plain(user.repeated_questions), user.repeated_in_turns) == (0, ())


def test_a_question_asked_again_names_its_turn(feed: Feed) -> None:
    for turn in range(3):
        (
            feed.user_audio(turn * 10_000, turn * 10_000 + 2_000, text="Sorry, what is my seat?")
            .heard("Sorry, what is my seat?" if turn else "what is my seat", turn * 10_000 + 2_100)
            .assistant_audio(turn * 10_000 + 3_000, turn * 10_000 + 5_000)
        )
    feed.send("judge", ENDED, 40_000).advance(90_000)
    record = speech(feed)
    assert (plain(record.user.repeated_questions), record.user.repeated_in_turns) == (2, (1, 2))
    assert plain(record.assistant.repeated_questions) == 0


def test_a_late_transcript_revises_what_was_said(feed: Feed) -> None:
    (
        feed.assistant_audio(0, 500)
        .user_audio(1_000, 3_000, text="A window seat")
        .assistant_audio(4_000, 5_000)
        .user_audio(6_000, 7_000, text="Yes")
    )
    assert plain(speech(feed).user.words_per_minute) == 90.0
    assert talk_in(feed, 1).user.words == 3
    (
        feed.heard("I would like a window seat", 3_100)
        .assistant_audio(8_000, 9_000)
        .user_audio(10_000, 11_000)
    )
    assert plain(speech(feed).user.words_per_minute) == 140.0
    assert talk_in(feed, 1).user.words == 6


def test_the_bots_own_events_are_heard_too(feed: Feed) -> None:
    (
        feed.send("audit", STARTED, 0)
        .spoke("bot", 1_500, 3_500)
        .spoke("user", 4_000, 6_000)
        .heard("Where is my bag", 6_100)
        .speech("bot_speech_started", 7_000)
        .spoke("bot", 7_050, 9_000)
        .speech("user_speech_started", 10_000)
    )
    assert (speech(feed).source, plain(speech(feed).result)) == ("pipecat", 0.6667)
    feed.speech("user_speech_stopped", 11_000).send("judge", ENDED, 12_000).advance(60_000)
    record = speech(feed)
    assert (plain(record.first_word_ms), plain(record.user.words_per_minute)) == (1_500, 120.0)
    assert isinstance(record.assistant.repeated_questions, NotApplicable)


def test_sound_that_never_ends_lasts_to_the_end_of_the_call(feed: Feed) -> None:
    (
        feed.assistant_audio(0, 1_000)
        .user_audio(2_000, None)
        .send(
            "user_sim",
            {"type": "connection_state", "data": {"state": "session_ended", "details": {}}},
            7_000,
        )
        .send("judge", ENDED, 7_100)
        .advance(60_000)
    )
    assert (plain(speech(feed).user.speech_ms), plain(speech(feed).result)) == (5_000, 0.1667)


def test_the_assistants_words_are_those_that_were_spoken() -> None:
    """Speech synthesis knows best; pipecat's own record was cut where the bot was cut; the log has
    the whole text.
    """
    texts = ["one two three", "one two", "one"]
    for spoken in (3, 2):
        feed = (
            Feed(LIMITS)
            .speech("bot_speech_started", 1_000)
            .send("audit", {"message_type": "assistant", "value": " ".join(texts)}, 1_100)
            .send("pipecat", {"type": "assistant_message", "data": {"content": texts[1]}}, 1_200)
        )
        if spoken == 3:
            feed.bot_text(texts[0], 1_300)
        (
            feed.speech("bot_speech_stopped", 2_000)
            .spoke("bot", 2_500, 2_500 + 1_000)
            .speech("user_speech_started", 4_000)
        )
        assert (plain(talk_in(feed, 0).assistant.speech_ms), talk_in(feed, 0).assistant.words) == (
            2_000,
            spoken,
        )
        feed.send("judge", ENDED, 5_000).advance(60_000)
        assert plain(speech(feed).assistant.words_per_minute) == spoken * 30
        assert plain(speech(feed).assistant.speech_ms) == 2_000


def test_words_that_no_synthesis_reports_are_those_that_the_caller_heard(feed: Feed) -> None:
    (
        feed._audio("audio_start", "assistant", 0, 0)
        .send("user_sim", {"type": "assistant_speech", "data": {"text": "What can I do?"}}, 500)
        ._audio("audio_end", "assistant", 2_000, 0)
        .user_audio(3_000, 4_000)
    )
    assert talk_in(feed, 0).assistant.words == 4
    feed.send("judge", ENDED, 5_000).advance(60_000)
    assert plain(speech(feed).assistant.words_per_minute) == 120.0


def test_the_first_sound_of_a_simulated_caller_starts_over(feed: Feed) -> None:
    for start_ms in (0, 10_000):
        (
            feed.spoke("user", start_ms, start_ms + 2_000)
            .heard("What is my seat?", start_ms + 2_100)
            .spoke("bot", start_ms + 3_000, start_ms + 4_000)
        )
    feed.speech("user_speech_started", 20_000)
    assert (speech(feed).source, plain(speech(feed).user.repeated_questions)) == ("pipecat", 1)
    (
        feed.assistant_audio(21_000, 22_000)
        .user_audio(23_000, 24_000, text="Hello")
        .assistant_audio(25_000, 26_000)
        .user_audio(27_000, 28_000, text="Bye")
    )
    assert (speech(feed).source, plain(speech(feed).user.repeated_questions)) == ("elevenlabs", 0)


def test_a_text_that_comes_when_its_turn_was_left_is_read_later(feed: Feed) -> None:
    """It changes nothing that is heard, so nothing says that there is more to read."""

    def assistant(start_ms: int, text: str, at_ms: int) -> None:
        (
            feed._audio("audio_start", "assistant", start_ms, 0)
            ._audio("audio_end", "assistant", start_ms + 1_000, 0)
            .send("user_sim", {"type": "assistant_speech", "data": {"text": text}}, at_ms)
        )

    (
        feed.assistant_audio(0, 1_000)
        .user_audio(2_000, 3_000)
        .assistant_audio(4_000, 5_000)
        .user_audio(6_000, 7_000)
        .send("user_sim", {"type": "assistant_speech", "data": {"text": "Certain."}}, 7_100)
    )
    assistant(8_000, "Sure, one two.", 9_000)
    feed.user_audio(10_000, 11_000)
    assert feed.call().transcript_disagreement is None
    assistant(12_000, "No.", 13_100)
    feed.send("pipecat", {"type": "of a later version"}, 13_200)
    assert feed.status(1) == "settled"
    turn = feed.turn(1)
    assert turn.assistant_disagreement is not None
    assert (turn.assistant_disagreement.turns, plain(turn.assistant_disagreement.result)) == (
        1,
        1.0,
    )
    feed.user_audio(14_000, 15_000)
    assert (of_assistant(feed).turns, plain(of_assistant(feed).result)) == (1, 1.0)
    before = plain(speech(feed).assistant.words_per_minute)
    feed.send("user_sim", {"type": "assistant_speech", "data": {"text": "No way at all"}}, 15_100)
    assistant(16_000, "Bye.", 17_100)
    assert plain(speech(feed).assistant.words_per_minute) == before
    feed.user_audio(18_000, 19_000)
    words = ["Certainly.", "Certainly.", "Sure, one two.", "No. No way at all", "Bye."]
    assert plain(speech(feed).assistant.words_per_minute) == 60 * len(
        " ".join(words).split()
    ) / len(words)


def test_a_call_that_falls_back_takes_back_what_was_said_of_the_turn(feed: Feed) -> None:
    """The caller coughs: EVA begins a turn, and when nothing was said it is none."""
    (
        feed.assistant_audio(0, 1_000)
        .send("user_sim", {"type": "assistant_speech", "data": {"text": "Certain."}}, 900)
        .user_audio(1_500, 1_700)
        .assistant_audio(1_800, 1_900)
        .user_audio(2_000, text=None)
    )
    assert (feed.call().through_turn, of_assistant(feed).turns) == (1, 1)
    feed._audio("audio_end", "simulated_user", 3_000, 0)
    assert (feed.call().through_turn, of_assistant(feed).turns) == (0, 1)
    assert of_both(feed) == 1.0


def test_a_side_that_nothing_tells_of_is_unknown_and_not_silent(feed: Feed) -> None:
    (
        feed.spoke("user", 1_000, 3_000)
        .bot_text("Certainly.", 4_000)
        .send("judge", ENDED, 6_000)
        .advance(60_000)
    )
    record = speech(feed)
    assert (
        plain(record.result)
        == plain(record.assistant.speech_ms)
        == plain(record.overlap_ms)
        == "no_assistant_speech"
    )
    assert plain(record.user.speech_ms) == 2_000


def test_once_a_side_is_heard_it_was_silent_in_the_turns_before(feed: Feed) -> None:
    """Also where the call ends before it leaves another turn."""
    for at_ms in (1_000, 1_600, 2_200):
        feed.spoke("user", at_ms, at_ms + 200)
        if at_ms < 2_200:
            feed.bot_text("Certainly.", at_ms + 400)
    assert plain(talk_in(feed, 1).assistant.speech_ms) == "no_assistant_speech"
    feed.spoke("bot", 2_600, 2_800).send("judge", ENDED, 3_000).advance(60_000)
    assert [plain(talk_in(feed, turn).assistant.speech_ms) for turn in (1, 2)] == [0, 0]


def test_a_call_without_sound_says_so(feed: Feed) -> None:
    feed.heard("Hello", 1_000).send("judge", ENDED, 2_000).advance(60_000)
    record = speech(feed)
    assert (
        plain(record.result)
        == plain(record.dead_air_ms)
        == plain(record.first_word_ms)
        == "no_speech_events"
    )
    assert record.source is None


def test_the_first_word_takes_a_beginning(feed: Feed) -> None:
    feed.assistant_audio(1_000, 2_000).send("judge", ENDED, 3_000).advance(60_000)
    assert plain(speech(feed).first_word_ms) == "times_unknown"


@pytest.mark.parametrize("has_start", [True, False])
def test_the_first_word_counts_from_the_first_event_as_from_a_start_then(
    feed: Feed, has_start: bool
) -> None:
    if has_start:
        feed.send("judge", {"type": "call_started"}, 300)
    (
        feed.send("user_sim", {"type": "connection_state", "data": {"state": "connected"}}, 300)
        .send("audit", {"message_type": "user", "value": "Hi"}, 700)
        .assistant_audio(1_000, 2_000)
        .send("judge", ENDED, 3_000)
        .advance(60_000)
    )
    assert plain(speech(feed).first_word_ms) == 700


def test_word_errors_run_with_the_call(feed: Feed) -> None:
    talk(feed)
    feed.user_audio(20_000, 21_000, text="Bye")
    rates: list[WordErrors | None] = feed.values("stt_wer")
    assert [found and plain(found.result) for found in rates] == [None, 0.0, 0.1]
    assert rates_by_turn(feed) == {1: 0.0, 2: 0.167}
    feed.send("judge", ENDED, 22_000).advance(60_000)
    # The last turn was not understood: EVA's backfill completes it with the intended words.
    assert (plain(rate(feed).result), rates_by_turn(feed)) == (0.091, {1: 0.0, 2: 0.167, 3: 0.0})
    assert (rate(feed).substitutions, rate(feed).reference_words, rate(feed).turns) == (1, 11, 3)
    assert [found and found.result for found in feed.values("stt_wer", 2)] == [None, 0.167]


def test_disagreement_is_that_of_both_sides(feed: Feed) -> None:
    (
        feed.send("audit", STARTED, 0)
        .user_audio(1_000, 3_000, text="Two bags please")
        .heard("Two backs please", 3_100)
        .assistant_audio(4_000, 5_000)
        .send("user_sim", {"type": "assistant_speech", "data": {"text": "Certain lee"}}, 5_100)
        .user_audio(7_000, 8_000)
    )
    turn = feed.turn(0)
    assert turn.user_disagreement is not None
    assert turn.assistant_disagreement is not None
    assert (plain(turn.user_disagreement.result), plain(turn.assistant_disagreement.result)) == (
        0.333,
        2.0,
    )
    feed.send("judge", ENDED, 9_000).advance(60_000)
    # one word was spoken, whatever the other side heard
    assert plain(speech(feed).assistant.words_per_minute) == 60.0
    # The second turn was not understood: EVA's backfill completes it with the intended words.
    assert (plain(of_user(feed).result), plain(of_assistant(feed).result)) == (0.25, 2.0)
    assert (of_user(feed).words, of_assistant(feed).words, of_assistant(feed).turns) == (4, 1, 1)


def test_only_a_simulated_caller_knows_what_it_meant(feed: Feed) -> None:
    feed.heard("Hello", 1_000).send("judge", ENDED, 2_000).advance(60_000)
    assert plain(rate(feed).result) == "only a simulated caller knows what it meant to say"
    assert of_both(feed) == plain(of_user(feed).result) == "there are no two transcripts of it"


def test_an_agent_that_hears_sound_has_no_word_errors(feed: Feed) -> None:
    (
        feed.send("audit", STARTED | {"pipeline_type": "audio_llm"}, 0)
        .user_audio(1_000, 3_000, text="Two bags")
        .heard("Two backs", 3_100)
        .assistant_audio(4_000, 5_000)
        .user_audio(7_000, 8_000)
        .send("judge", ENDED, 9_000)
        .advance(60_000)
    )
    assert (
        plain(rate(feed).result)
        == "the agent hears sound: no transcript has the words that it understood"
    )
    assert (rate(feed).reference_words, rates_by_turn(feed)) == (0, {})
    turn = feed.turn(0)
    assert turn.user_disagreement is not None
    assert plain(turn.user_disagreement.result) == 0.5


@pytest.mark.parametrize("told_ms", [0, 6_500])
@pytest.mark.parametrize(
    ("language", "meant", "understood", "expected"),
    [
        (None, "I need the first one", "I need the 1st 1", (0.0, 6, "en")),
        ("de", "Zweiundzwanzig Koffer", "22 Koffer", (0.0, 2, "de")),
        ("de-AT", "Zweiundzwanzig Koffer", "22 Koffer", (0.0, 2, "de")),
        ("fr_CA", "Quatre-vingts valises", "80 valises", (0.0, 2, "fr-CA")),
        ("ja", "\u4e8c\u5341\u4fbf", "20\u4fbf", (0.0, 3, "ja")),
        ("it", "due valigie", "2 valigie", (0.5, 2, "basic")),
    ],
)
def test_words_are_compared_in_the_language_of_the_call(
    feed: Feed,
    language: str | None,
    meant: str,
    understood: str,
    expected: tuple[float, int, str],
    told_ms: int,
) -> None:
    """Also if the language comes after words that were compared in English."""
    feed.send("audit", STARTED, 0)
    if told_ms == 0:
        feed.send("audit", STARTED | {"language": language}, 0)
    (
        feed.user_audio(1_000, 3_000, text=meant)
        .heard(understood, 3_100)
        .assistant_audio(4_000, 5_000)
        .user_audio(6_000, 6_400)
    )
    if told_ms:
        feed.send("audit", STARTED | {"language": language}, told_ms)
    feed.assistant_audio(7_000, 7_500).user_audio(8_000, 8_500, text="")
    (turn,) = rates_by_turn(feed)
    found = some(feed.turn(turn).stt_wer)
    assert (plain(found.result), found.reference_words, found.normalizer) == expected
    feed.send("judge", ENDED, 9_000).advance(60_000)
    assert (plain(rate(feed).result), rate(feed).reference_words, rate(feed).normalizer) == expected


def test_a_caller_who_was_never_understood_has_no_rate(feed: Feed) -> None:
    (
        feed.send("audit", STARTED, 0)
        .user_audio(1_000, 3_000, text="[coughs]")
        .send("judge", ENDED, 9_000)
        .advance(60_000)
    )
    assert plain(rate(feed).result) == "no_user_speech"


def test_a_successor_goes_on() -> None:
    feed, moved = Feed(LIMITS), Feed(LIMITS)
    talk(feed)
    talk(moved)
    moved.hand_over(PartitionEvaluator(LIMITS, "test"))
    for each in (feed, moved):
        each.latest = []
        each.user_audio(20_000, 21_000).send("judge", ENDED, 22_000).advance(60_000)
    assert feed.rows() == moved.rows()


def test_running_values_have_an_end_and_final_ones_do_not(feed: Feed) -> None:
    talk(feed)
    running = feed.evaluator._calls["call"]._measures
    running._work = MAX_RUNNING_WORK
    running._transcripts._chars = MAX_RUNNING_CHARS
    before = feed.values("through_turn")
    for at_ms in (20_000, 30_000, 40_000):
        (
            feed.user_audio(at_ms, at_ms + 1_000, text="Hello")
            .heard("Hello", at_ms + 1_100)
            .assistant_audio(at_ms + 2_000, at_ms + 3_000)
        )
    assert feed.counts("callgauge_limits_hit_total") == {
        ("running_speech",): 1,
        ("running_comparison",): 1,
    }
    assert (before, feed.values("through_turn")) == ([None, 0, 1], [None, 0, 1, 2])
    assert sorted(rates_by_turn(feed)) == [1, 2, 3, 4], "a turn is compared once"
    feed.send("judge", ENDED, 50_000).advance(90_000)
    assert (feed.call().through_turn, rate(feed).turns, sorted(rates_by_turn(feed))) == (
        5,
        5,
        [1, 2, 3, 4, 5],
    )


PAUSE_MS = 3_000
Times = tuple[float, float]


def spans(*times: Times) -> tuple[TimeSpan, ...]:
    return tuple(TimeSpan(int(start * 1000), int(end * 1000)) for start, end in times)


def call(
    user: tuple[Times, ...],
    assistant: tuple[Times, ...],
    tools: tuple[ToolRunTimes, ...] = (),
    ended: float | None = None,
) -> CallMeasures:
    """A call of one turn; which turn a sound is filed under makes no difference."""
    turns = {1: SpokenTurn(spans(*user), spans(*assistant))}
    return measures_of(turns, tools, PAUSE_MS, None if ended is None else int(ended * 1000))


def test_the_talk_ratio_is_the_assistants_share() -> None:
    assert call(((0, 2),), ((3, 9),)).talk_ratio == 0.75
    assert call(((0, 2),), ()).talk_ratio == 0.0
    assert call((), ((3, 9),)).talk_ratio == 1.0
    assert call((), ()).talk_ratio is None


def test_what_one_side_says_twice_at_once_counts_once() -> None:
    measured = call(((0, 4), (2, 5), (5, 6)), ((4, 8),))
    assert (measured.user.speech_ms, measured.assistant.speech_ms, measured.overlap_ms) == (
        6_000,
        4_000,
        2_000,
    )


def test_sound_of_other_turns_overlaps_too() -> None:
    """The caller barges in: that is the next turn, while the assistant still speaks in the turn
    before.
    """
    turns = {1: SpokenTurn(assistant=spans((0, 5))), 2: SpokenTurn(user=spans((4, 6)))}
    assert measures_of(turns, [], PAUSE_MS).overlap_ms == 1_000


def test_a_stretch_that_ends_before_it_begins_has_no_length() -> None:
    measured = call(((5, 3),), ((6, 6),))
    assert (measured.talk_ratio, measured.first_assistant_ms, measured.overlap_ms) == (
        None,
        None,
        0,
    )


@pytest.mark.parametrize(
    ("user", "assistant", "tools", "ended", "dead_air_ms"),
    [
        (((0, 1),), ((3.9, 5),), (), None, 0),  # 2.9 s: not too long yet
        (((0, 1),), ((4, 5),), (), None, 3_000),  # counted whole, not only the surplus
        (((0, 1),), (), (), None, 0),  # the call goes on, the answer may still come
        (((0, 1),), (), (), 6, 5_000),  # it did not
        (((0, 1), (5, 6)), ((6, 9),), (), None, 4_000),  # "hello?"
        ((), ((0, 1), (9, 10)), (), 20, 0),  # the caller is the one who does not speak
        (((0, 1),), ((0.5, 2), (9, 10)), (), None, 0),  # the assistant spoke last
        (((0, 1),), ((9, 10),), (ToolRunTimes(2_000, 8_000),), None, 0),  # waiting is explained
        (((0, 1),), ((9, 10),), (ToolRunTimes(2_000, 5_000),), None, 4_000),  # and then it is not
        # before the tool and after it
        (((0, 1),), ((9, 10),), (ToolRunTimes(5_000, 6_000),), None, 7_000),
        # it answered at once: 2.5 s before it and after it
        (((0, 1),), ((6, 7),), (ToolRunTimes(3_500, 3_500),), None, 0),
        # two at once
        (((0, 1),), ((9, 10),), (ToolRunTimes(2_000, 3_000), ToolRunTimes(2_500, 8_000)), None, 0),
        # never answered, but the assistant spoke
        (((0, 1),), ((9, 10),), (ToolRunTimes(2_000, None),), None, 0),
        (((0, 1),), (), (ToolRunTimes(2_000, None),), 20, 0),
        # explains nothing in the next turn
        (((0, 1), (9, 10)), ((15, 16),), (ToolRunTimes(2_000, None),), None, 5_000),
        (((0, 1),), ((0, 1), (5, 6)), (), None, 4_000),  # both stopped at once
    ],
)
def test_dead_air(
    user: tuple[Times, ...],
    assistant: tuple[Times, ...],
    tools: tuple[ToolRunTimes, ...],
    ended: float | None,
    dead_air_ms: int,
) -> None:
    assert call(user, assistant, tools, ended).dead_air_ms == dead_air_ms


@pytest.mark.parametrize(
    ("user", "assistant", "longest_ms"),
    [
        ((), ((0, 2), (3, 5)), 5_000),  # a breath
        ((), ((0, 2), (5, 8)), 3_000),  # a pause
        (((2.2, 2.5),), ((0, 2), (3, 5)), 2_000),  # the other had a word
        (((1, 1.5),), ((0, 2), (3, 5)), 5_000),  # into one's own
        (((1, 2.5),), ((0, 2), (3, 5)), 2_000),  # and on in the pause
        (((1, 2),), ((0, 2), (3, 5)), 5_000),  # and no longer
        (((4, 9),), ((0, 2), (3, 5)), 5_000),
        ((), (), 0),
    ],
)
def test_a_monologue_ends_where_the_other_speaks_or_one_pauses(
    user: tuple[Times, ...], assistant: tuple[Times, ...], longest_ms: int
) -> None:
    assert call(user, assistant).assistant.longest_ms == longest_ms
    assert call(assistant, user).user.longest_ms == longest_ms


def test_pace_is_that_of_the_turns_whose_words_are_known() -> None:
    turns = {
        1: SpokenTurn(user=spans((0, 6)), user_words=15),
        2: SpokenTurn(user=spans((10, 40)), assistant=spans((41, 42))),
        3: SpokenTurn(user_words=99, assistant_words=3),
    }
    measured = measures_of(turns, [], PAUSE_MS)
    assert measured.user.words_per_minute == 150.0
    assert (measured.user.words, measured.user.worded_ms, measured.user.speech_ms) == (
        15,
        6_000,
        36_000,
    )
    assert measured.assistant.words_per_minute is None


def test_the_first_word_is_the_first_sound() -> None:
    assert call(((0, 1),), ((5, 6), (2, 3))).first_assistant_ms == 2_000


@pytest.mark.parametrize(
    ("text", "questions"),
    [
        ("What is your name?", {"what is your name"}),
        ("Sorry, what's your name, please?", {"what's your name"}),
        ("can you hear me", {"can you hear me"}),
        ("And can you hear me. Hello?", {"can you hear me"}),
        ("You want a window seat?", {"you want a window seat"}),
        ("I know what it is. It is late.", set()),
        ("Really? And you?", set()),
        ("Can I? No.", set()),
        ("", set()),
        ("Is it A12? Is it A12?", {"is it a12"}),
        ("¿Dónde está usted?", {"dónde está usted"}),
    ],
)
def test_questions_of_a_text(text: str, questions: set[str]) -> None:
    assert questions_in(text) == questions


def test_a_list_that_is_read_out_does_not_grow_without_end() -> None:
    assert (
        len(questions_in(" ".join(f"Do you like number {n}?" for n in range(99))))
        == MAX_QUESTIONS_PER_TURN
    )
    (long,) = questions_in("do you like " + "this and that " * 99)
    assert len(long.split()) == 40


def test_questions_that_are_asked_again() -> None:
    name, code = "what is your name", "what is your code"
    assert repeated({1: frozenset({name})}) == repeated({}) == (0, ())
    assert repeated({4: frozenset({name, code}), 3: frozenset({name}), 1: frozenset({name})}) == (
        2,
        (3, 4),
    )
    assert repeated({1: frozenset({name}), 2: frozenset({code}), 4: frozenset({name, code})}) == (
        2,
        (4,),
    )
