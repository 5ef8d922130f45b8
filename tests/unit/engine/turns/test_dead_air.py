"""Dead air: when silence counts, when it is explained, and that it is said once."""

from collections.abc import Callable

import pytest

from consumers.engine.admission import Arrival
from consumers.engine.limits import Limits
from consumers.engine.turns.dead_air import DeadAir, DeadAirWatch
from consumers.engine.turns.timeline import BrokerMoment, HeardBy, SilenceKind
from schemas.closed_sets import InputSource
from schemas.events.codec import decode
from schemas.rows import Silence, Waiting
from streamer.recordings.files import RecordedCall
from streamer.recordings.reader import read_recordings
from streamer.sources.replay import in_random_order, in_time_order, with_control_events
from streamer.sources.simulator.traffic import simulate_call
from tests.support.conformance_data import conformance
from tests.support.fakes.engine_feed import T0_MS, Feed

LIMITS = Limits(dead_air_ms=3_000, delivery_allowance_ms=500)


def _dead_airs(feed: Feed) -> list[tuple[int, int]]:
    return [(turn, silence.since_ms - T0_MS) for turn, silence in feed.silences()]


def _until(feed: Feed) -> list[int | None]:
    """Until when each silence lasted."""
    return [None if each.until_ms is None else each.until_ms - T0_MS for _, each in feed.silences()]


@pytest.fixture
def feed() -> Feed:
    return Feed(LIMITS)


def test_silence_is_known_when_threshold_and_delivery_time_have_passed(feed: Feed) -> None:
    feed.user_audio(1_000, 2_000)
    assert feed.evaluator.next_wakeup() == T0_MS + 5_500
    feed.advance(5_499)
    assert _dead_airs(feed) == []
    feed.advance(5_500)
    assert _dead_airs(feed) == [(0, 2_000)]
    assert feed.silences() == [(0, Silence(1, T0_MS + 2_000, T0_MS + 5_500, 3_000))]
    assert feed.news(0) == ["user_turn.1", "dead_air.1"]


def test_a_silence_is_found_although_time_leaps_beyond_the_end_of_the_call(feed: Feed) -> None:
    feed.user_audio(1_000, 2_000).advance(10 * 3_600_000)
    assert _dead_airs(feed) == [(0, 2_000)]
    assert feed.call().state == "closed"


def test_a_silence_lasts_until_the_assistant_is_heard_and_its_end_never_moves(feed: Feed) -> None:
    feed.user_audio(1_000, 2_000).advance(5_500)
    assert _until(feed) == [None]
    assert feed.call().waiting == Waiting(0, T0_MS + 2_500, 1)
    (
        feed.assistant_audio(9_000, 9_500)
        .assistant_audio(9_900, 10_000)
        .assistant_audio(7_000, 8_000, behind_ms=4_000)  # comes late, and was heard before
        .advance(60_000)
    )
    assert _until(feed) == [9_000]
    assert feed.call().waiting is None


def test_a_caller_who_goes_on_does_not_end_a_silence(feed: Feed) -> None:
    for start_ms in (1_000, 8_000):
        feed.user_audio(start_ms, start_ms + 1_000).advance(start_ms + 4_500)
    assert _until(feed) == [None, None]
    feed.assistant_audio(20_000)
    assert _until(feed) == [20_000, 20_000]


def test_an_answer_that_is_known_before_its_silence_ends_it(feed: Feed) -> None:
    feed.user_audio(1_000, 2_000).assistant_audio(9_000).advance(9_500)
    assert _until(feed) == [9_000]


def test_the_detector_s_delay_is_silence_already_passed(feed: Feed) -> None:
    feed.user_audio(1_000, 2_000, behind_ms=800)  # logged and taken at 2,800
    feed.advance(5_499)
    assert _dead_airs(feed) == []
    feed.advance(5_500)
    assert _dead_airs(feed) == [(0, 2_000)]


def test_a_delay_longer_than_the_threshold_makes_it_due_after_the_delivery_time(feed: Feed) -> None:
    feed.user_audio(1_000, 2_000, behind_ms=60_000).advance(62_499)
    assert _dead_airs(feed) == []
    feed.advance(62_500)
    assert _dead_airs(feed) == [(0, 2_000)]


@pytest.mark.parametrize(
    ("answered_ms", "expected"), [(4_999, []), (5_000, [(0, 2_000)]), (9_000, [(0, 2_000)])]
)
def test_a_late_answer_shows_that_it_had_been_dead_air(
    answered_ms: int, expected: list[tuple[int, int]]
) -> None:
    feed = (
        Feed(LIMITS)
        .user_audio(1_000, 2_000)
        .assistant_audio(answered_ms)  # no time passed in between: a backlog is being read
    )
    assert _dead_airs(feed) == []
    feed.advance(5_500)
    assert _dead_airs(feed) == expected
    feed.advance(60_000)
    assert _dead_airs(feed) == expected


def test_one_silence_counts_once(feed: Feed) -> None:
    feed.user_audio(1_000, 2_000)
    for now_ms in (6_000, 7_000, 60_000):
        feed.advance(now_ms)
    feed.assistant_audio(61_000, 62_000)
    assert _dead_airs(feed) == [(0, 2_000)]


def test_the_next_silence_counts_again(feed: Feed) -> None:
    for start_ms in (0, 20_000):
        (
            feed.user_audio(start_ms + 1_000, start_ms + 2_000)
            .advance(start_ms + 9_000)
            .assistant_audio(start_ms + 10_000, start_ms + 11_000)
        )
    assert _dead_airs(feed) == [(0, 2_000), (1, 22_000)]
    assert [each.number for _, each in feed.silences()] == [1, 2]
    assert _until(feed) == [10_000, 30_000]


def test_a_user_who_waits_while_the_assistant_speaks_is_not_left_in_silence(feed: Feed) -> None:
    (
        feed.assistant_audio(500)
        .user_audio(1_000, 2_000)  # ends while the assistant still speaks
        .advance(60_000)
    )
    assert _dead_airs(feed) == []


def test_a_user_who_goes_on_is_not_left_in_silence(feed: Feed) -> None:
    feed.user_audio(1_000, 2_000).user_audio(4_000, None).advance(60_000)
    assert _dead_airs(feed) == []


def test_waiting_for_a_tool_is_no_dead_air(feed: Feed) -> None:
    feed.user_audio(1_000, 2_000).tool_call("rebook", 3_000).advance(60_000)
    assert _dead_airs(feed) == []
    feed.tool_answer("rebook", 60_000).advance(63_499)
    assert _dead_airs(feed) == []
    feed.advance(63_500)
    assert _dead_airs(feed) == [(0, 60_000)]


def test_a_silence_before_the_tool_still_counts(feed: Feed) -> None:
    feed.user_audio(1_000, 2_000).tool_call("rebook", 5_000).advance(5_500)
    assert _dead_airs(feed) == [(0, 2_000)]
    assert [each.known_ms - T0_MS for _, each in feed.silences()] == [5_000]


def test_of_two_tools_both_must_have_answered(feed: Feed) -> None:
    (
        feed.user_audio(1_000, 2_000)
        .tool_call("one", 2_100)
        .tool_call("two", 2_100)
        .tool_answer("one", 2_500)
        .advance(60_000)
    )
    assert _dead_airs(feed) == []


def test_a_tool_of_an_earlier_turn_that_never_answered_explains_nothing(feed: Feed) -> None:
    feed.tool_call("rebook", 500).user_audio(1_000, 2_000).advance(5_500)
    assert _dead_airs(feed) == [(0, 2_000)]


def test_an_end_that_comes_after_the_answer_is_no_silence(feed: Feed) -> None:
    (
        feed.user_audio(1_000, None)
        .assistant_audio(2_500, 2_900)
        ._audio("audio_end", "simulated_user", 2_000, 4_000)
        .advance(60_000)
    )
    assert _dead_airs(feed) == []


def test_the_rules_without_a_call() -> None:
    watch = DeadAirWatch(3_000, 500)
    assert watch.reached(10**12) == []
    watch.note(SilenceKind.SPEECH_STARTED, 0, BrokerMoment(50_000, 0))
    # the broker's clock is not the call's
    watch.user_ended(1_000, 1_000, BrokerMoment(51_000, 0), 4)
    assert (watch.wakeup_at_ms, watch.reached(54_499)) == (54_500, [])
    assert watch.reached(54_500) == [DeadAir(1_000, 4, 1, 54_500, 1_000)]
    assert watch.wakeup_at_ms is None


def _by_detector(feed: Feed) -> None:
    feed.spoke("user", 1_000, 2_000)


def _by_ruling(feed: Feed) -> None:
    feed.ruling("user_started_speaking", 1_000).ruling("user_stopped_speaking", 2_000)


def _by_transcript(feed: Feed) -> None:
    feed.heard("Hello", 2_000)


@pytest.mark.parametrize("hear", [_by_detector, _by_ruling, _by_transcript])
def test_dead_air_on_a_phone_line(feed: Feed, hear: Callable[[Feed], None]) -> None:
    hear(feed)
    feed.advance(5_499)
    assert _dead_airs(feed) == []
    feed.advance(5_500)
    assert _dead_airs(feed) == [(1, 2_000)]


@pytest.mark.parametrize("answer", ["event", "text"])
def test_an_answer_on_a_phone_line_ends_the_silence(feed: Feed, answer: str) -> None:
    _by_detector(feed)
    if answer == "event":
        feed.speech("bot_speech_started", 3_000)
    else:
        feed.bot_text("Certainly.", 3_000)
    feed.advance(60_000)
    assert _dead_airs(feed) == []


def test_only_a_cascade_s_transcript_says_when_the_user_ended(feed: Feed) -> None:
    (
        feed.send("audit", {"type": "call_started", "pipeline_type": "audio_llm"}, 0)
        .heard("[user audio]", 2_000)
        .advance(60_000)
    )
    assert _dead_airs(feed) == []


def test_nobody_waits_for_an_answer_when_the_line_is_down(feed: Feed) -> None:
    feed.user_audio(1_000, 2_000).send("audit", {"type": "call_ended"}, 3_000).advance(9_000)
    assert _dead_airs(feed) == []


CALLS = "calls.jsonl.gz"
READ_IN_MANY_ORDERS = (
    "fuzz-101-0013",
    "fuzz-101-0045",
    "fuzz-101-0046",
    "fuzz-101-0047",
    "fuzz-101-0053",
    "fuzz-101-0167",
)
"""Calls whose silences once were other ones, or in other turns, when topics were read one after the
other.
"""


def _silences(call: RecordedCall, seed: int | None) -> list[tuple[int, Silence]]:
    """Time is known as far as everything is read."""
    called, feed = with_control_events(call), Feed(Limits())
    events = [*(in_time_order(called) if seed is None else in_random_order(called, seed))]
    for offset, event in enumerate(events):
        source, at_ms = InputSource(event.source), int(event.arrival_ms)
        known_ms = min(int(each.arrival_ms) for each in events[offset:]) - 1
        arrival = Arrival(
            source, offset, at_ms, "call", decode(source, event.value), event.value, None
        )
        feed.effects += [*feed.evaluator.advance(known_ms), *feed.evaluator.receive(arrival)]
    feed.effects += feed.evaluator.advance(10**15)
    return feed.silences()


def test_the_order_in_which_topics_are_read_changes_no_silence_and_no_turn_of_one() -> None:
    recorded = [
        call
        for call in read_recordings(conformance(CALLS))
        if call.conversation_id in READ_IN_MANY_ORDERS
    ]
    phone_call = simulate_call(16, start_ms=T0_MS).call
    assert len(recorded) == len(READ_IN_MANY_ORDERS)
    for call in (*recorded, phone_call):
        expected = _silences(call, None)
        assert [_silences(call, seed) for seed in (1, 2, 3, 4)] == [expected] * 4, (
            call.conversation_id
        )


def at(broker_ms: int, rank: int = 0) -> BrokerMoment:
    return BrokerMoment(broker_ms, rank)


@pytest.mark.parametrize(("heard_ms", "silences"), [(1_500, []), (2_500, [2_000])])
def test_a_better_source_drops_what_a_poorer_one_reports_from_then_on(
    heard_ms: int, silences: list[int]
) -> None:
    watch = DeadAirWatch(3_000, 0)
    watch.user_ended(2_000, 2_000, at(2_000), 1, HeardBy.BOT)  # read before the caller's topic
    watch.is_heard(HeardBy.CALLER, at(heard_ms, 1))
    assert [dead_air.silent_since_ms for dead_air in watch.reached(60_000)] == silences
    watch.is_heard(HeardBy.BOT, at(0))
    watch.user_ended(70_000, 70_000, at(70_000), 2)
    assert [dead_air.silent_since_ms for dead_air in watch.reached(90_000)] == [70_000]


WORDS = "Your flight leaves at 9."  # 24 characters: three seconds at the slowest pace


def a_waiting_user() -> Feed:
    """Of a bot that reports its speech; she has finished at 2,000 and dead air is due at 5,500."""
    return Feed(LIMITS).spoke("bot", 100, 500).spoke("user", 1_000, 2_000)


def synthesised(feed: Feed, at_ms: int) -> None:
    feed.send("pipecat", {"type": "tts_text", "data": {"frame": WORDS}}, at_ms)


def test_a_bot_that_stops_has_spoken_although_its_start_is_lost() -> None:
    feed = a_waiting_user()
    (
        feed.speech("bot_speech_stopped", 4_000)
        .speech("bot_speech_stopped", 500, behind_ms=3_600)  # one that comes again shows nothing
        .advance(60_000)
    )
    assert _dead_airs(feed) == []
    feed = a_waiting_user()
    feed.speech("bot_speech_stopped", 500, behind_ms=3_600).advance(60_000)
    assert len(_dead_airs(feed)) == 1


def test_words_that_may_be_heard_put_dead_air_off_until_they_would_be_over() -> None:
    """The bot's start may be lost; and a synthesis that makes no sound is still noticed."""
    feed = a_waiting_user()
    for at_ms in (3_000, 3_100):
        synthesised(feed, at_ms)
    feed.advance(9_499)
    assert _dead_airs(feed) == []
    feed.advance(9_500)
    assert _dead_airs(feed) == [(1, 2_000)]


def test_words_of_the_answer_before_put_nothing_off(feed: Feed) -> None:
    feed.speech("bot_speech_started", 100)
    synthesised(feed, 200)
    feed.speech("bot_speech_stopped", 500).spoke("user", 1_000, 2_000).advance(5_500)
    assert _dead_airs(feed) == [(1, 2_000)]


@pytest.mark.parametrize(("has_words", "expected"), [(False, [(1, 2_000)]), (True, [])])
def test_a_user_who_asks_again_proves_a_silence_only_where_no_words_came(
    *, has_words: bool, expected: list[tuple[int, int]]
) -> None:
    feed = a_waiting_user()
    if has_words:
        synthesised(feed, 3_000)
    feed.speech("user_speech_started", 5_400).advance(60_000)
    assert _dead_airs(feed) == expected


def test_the_bot_s_own_start_proves_a_silence_with_words_too() -> None:
    feed = a_waiting_user()
    synthesised(feed, 3_000)
    feed.speech("bot_speech_started", 5_200).advance(60_000)
    assert _dead_airs(feed) == [(1, 2_000)]


def test_a_ruling_without_its_sound_proves_no_silence() -> None:
    """The start of her sound is lost; the ruling comes later than she began."""
    feed = a_waiting_user()
    feed.speech("user_turn_started", 5_100).advance(60_000)
    assert _dead_airs(feed) == []
