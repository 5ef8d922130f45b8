"""How each turn ended, and the errors that agents report, in any order of arrival."""

import itertools
from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import Any

import pytest

from consumers.engine.limits import Limits
from consumers.engine.turns.live import ERRORS_EVERY_MS, MAX_ERROR_TIMES
from schemas.rows import Errors
from schemas.scores.latency_stages import ServiceKind
from tests.support.fakes.engine_feed import T0_MS, Feed, closings_of

OVER_MS = 400_000
ENDED = {"type": "call_ended", "reason": "goodbye"}
ERROR = {
    "type": "error",
    "data": {"message": "the model is down", "processor": "OpenAILLMService#0"},
}


def outcome(feed: Feed, turn: int) -> str | None:
    return feed.turn(turn).outcome


def greeted() -> Feed:
    return Feed(Limits()).assistant_audio(0, 1_000).user_audio(2_000, 3_000)


def test_a_turn_is_answered_when_the_call_has_left_it() -> None:
    feed = greeted()
    feed.assistant_audio(4_000, 5_000).user_audio(6_000, 7_000)
    assert outcome(feed, 1) == "answered"
    assert outcome(feed, 0) is None, "the greeting answers nobody"
    assert [row.outcome for row in feed.turn_rows(2)] in ([], [None]), "the call is in it"


def test_an_answer_that_the_caller_speaks_over_is_interrupted() -> None:
    feed = greeted()
    (
        feed.assistant_audio(4_000, None)
        .user_audio(6_000, None)
        ._audio("audio_end", "assistant", 6_500, 0)
        ._audio("audio_end", "simulated_user", 8_000, 0)
        .heard("Wait", 8_000)
        .assistant_audio(9_000, 10_000)
        .user_audio(11_000, 12_000)
    )
    assert (outcome(feed, 1), outcome(feed, 2)) == ("interrupted", "answered")


def test_one_interruption_is_none_of_the_later_turns() -> None:
    """EVA's flag stays set until the audit log has an entry of the user, which many agents never
    write.
    """
    feed = greeted()
    said = partial(feed.send, "user_sim", {"type": "user_speech", "data": {"text": "And then?"}})
    said(3_000)
    (
        feed.assistant_audio(4_000, None)
        .user_audio(6_000, None)
        ._audio("audio_end", "assistant", 6_500, 0)
        ._audio("audio_end", "simulated_user", 8_000, 0)
    )
    for begin_ms in (8_000, 12_000, 16_000):
        said(begin_ms)
        feed.assistant_audio(begin_ms + 1_000, begin_ms + 2_000).user_audio(
            begin_ms + 3_000, begin_ms + 4_000
        )
    assert [outcome(feed, turn) for turn in (1, 2, 3, 4)] == [
        "interrupted",
        "answered",
        "answered",
        "answered",
    ]
    assert feed.interruptions() == [(2, "user")]


def test_an_interruption_counts_when_the_call_has_left_its_turn() -> None:
    feed = greeted()
    (
        feed.assistant_audio(4_000, None)
        .user_audio(6_000, None)
        ._audio("audio_end", "assistant", 6_500, 0)
    )
    assert feed.interruptions() == [(2, "user")]
    feed._audio("audio_end", "simulated_user", 8_000, 0).assistant_audio(9_000, 10_000)
    assert "interruption.user" not in feed.news(2)
    feed.user_audio(11_000, 12_000)
    assert feed.news(2).count("interruption.user") == 1


def test_an_interruption_that_is_known_late_changes_the_outcome() -> None:
    feed = Feed(Limits())
    for start_ms in (0, 4_000):
        feed.spoke("user", start_ms, start_ms + 1_000).speech(
            "bot_speech_started", start_ms + 2_000
        )
        if start_ms:
            feed.speech("bot_speech_stopped", start_ms + 3_000)
    (
        feed.spoke("user", 8_000, 9_000)
        .speech("bot_speech_stopped", 4_500, behind_ms=6_000)
        .advance(OVER_MS)
    )
    assert feed.values("outcome", 1)[-2:] == ["answered", "interrupted"]


def test_a_call_that_ends_before_an_answer_is_abandoned() -> None:
    feed = greeted()
    feed.send("judge", ENDED, 4_000).advance(OVER_MS)
    assert outcome(feed, 1) == "abandoned"


def test_a_call_that_ends_in_dead_air_is_abandoned() -> None:
    feed = greeted()
    feed.advance(8_000).send("judge", ENDED, 9_000).advance(OVER_MS)
    assert outcome(feed, 1) == "abandoned"


@pytest.mark.parametrize(
    ("again_ms", "known"), [(None, (None, 0)), (5_000, (None, 0)), (9_000, ("abandoned", 1))]
)
def test_events_that_only_stop_leave_the_outcome_open_unless_the_caller_asked_again_in_vain(
    again_ms: int | None, known: tuple[str | None, int]
) -> None:
    feed = greeted()
    if again_ms is not None:
        feed.user_audio(again_ms, again_ms + 1_000)
    feed.advance(OVER_MS)
    (closed,) = closings_of(feed.effects)
    assert closed.close_reason == "idle"
    assert (outcome(feed, 1), closed.unanswered) == known


def test_an_error_in_a_turn_without_an_answer_makes_it_fail() -> None:
    feed = greeted()
    feed.send("pipecat", ERROR, 3_200).send("judge", ENDED, 4_000).advance(OVER_MS)
    assert outcome(feed, 1) == "failed"


@pytest.mark.parametrize("at_ms", [500, 4_100])
def test_an_error_elsewhere_or_before_an_answer_fails_no_turn(at_ms: int) -> None:
    feed = greeted()
    feed.send("pipecat", ERROR, at_ms)
    if at_ms > 4_000:
        feed.assistant_audio(4_500, 5_000)
    feed.send("judge", ENDED, 5_000).advance(OVER_MS)
    assert outcome(feed, 1) == ("answered" if at_ms > 4_000 else "abandoned")


def test_an_agent_that_nothing_ever_hears_leaves_the_outcome_open() -> None:
    feed = Feed(Limits()).spoke("user", 1_000, 2_000).send("judge", ENDED, 3_000).advance(OVER_MS)
    assert outcome(feed, 1) is None, "perhaps its producer reports no speech of the bot"


# The answer behind a filler.


def with_a_tool(
    *sounds: tuple[int, int | None], tool: tuple[int, int] | None = (4_500, 7_000)
) -> Feed:
    feed = greeted()
    acts: list[tuple[int, Callable[[], object]]] = [
        (start_ms, partial(feed.assistant_audio, start_ms, end_ms)) for start_ms, end_ms in sounds
    ]
    if tool is not None:
        acts.append((tool[0], partial(feed.tool_call, "find", tool[0])))
        acts.append((tool[1], partial(feed.tool_answer, "find", tool[1])))
    for _, act in sorted(acts, key=itemgetter(0)):
        act()
    return feed.user_audio(12_000, 13_000).advance(OVER_MS)


@pytest.mark.parametrize(
    ("sounds", "tool", "after_ms"),
    [
        ([(4_000, 5_000), (8_000, 9_000)], (4_500, 7_000), 5_000.0),
        ([(4_000, 5_000), (5_500, 6_000), (8_000, 9_000)], (4_500, 7_000), 5_000.0),
        ([(8_000, 9_000)], (4_500, 7_000), None),
        ([(4_000, 5_000)], (4_500, 7_000), None),
        ([(4_000, 5_000), (8_000, 9_000)], None, None),
        ([(4_000, 5_000), (8_000, 9_000)], (3_100, 3_900), None),
    ],
    ids=[
        "one filler",
        "two fillers",
        "no filler",
        "one sound across the tool",
        "no tool",
        "the tool was done before the first sound",
    ],
)
def test_the_answer_behind_a_filler_is_measured(
    sounds: list[tuple[int, int]], tool: tuple[int, int] | None, after_ms: float | None
) -> None:
    row = with_a_tool(*sounds, tool=tool).turn(1)
    assert row.after_tools_ms == after_ms


# Errors of the agent.


def errors_of(feed: Feed) -> list[Errors]:
    """What the rows of the call have said of its errors, one after the other."""
    return [errors for errors in feed.values("errors") if errors is not None]


def test_errors_are_published_at_the_first_and_at_the_close() -> None:
    feed = greeted()
    for at_ms in (3_000, 3_100, 3_200):
        feed.send("pipecat", ERROR, at_ms)
    feed.send("pipecat", {"type": "error", "data": "no object"}, 3_300).send(
        "pipecat", {"type": "error", "data": {"processor": "OpenAITTSService#1"}}, 3_400
    )
    first, second, fourth = errors_of(feed)
    assert (first.number, first.component, first.last_ms) == (1, ServiceKind.LLM, T0_MS + 3_000)
    assert (second.number, fourth.number, fourth.component) == (2, 4, None)
    feed.advance(OVER_MS)
    last = errors_of(feed)[-1]
    assert (last.number, last.component, feed.call().state) == (5, ServiceKind.TTS, "closed")
    assert feed.news().count("errors") == 1


def test_a_call_without_errors_says_nothing_of_them() -> None:
    feed = greeted()
    feed.advance(OVER_MS)
    assert errors_of(feed) == []


def failed(at_ms: int, processor: str) -> dict[str, Any]:
    return {
        "type": "error",
        "timestamp": T0_MS + at_ms,
        "data": {"processor": processor, "message": str(at_ms)},
    }


def test_what_is_said_of_errors_in_the_end_does_not_depend_on_their_order() -> None:
    errors = [
        failed(3_000, "OneSTTService#0"),
        failed(7_000, "Other#0"),
        failed(7_000, "OneLLMService#0"),
    ]
    finals = []
    for order in itertools.permutations(errors):
        feed = greeted()
        for error in order:
            feed.send("pipecat", error, 8_000)
        found = feed.evaluator._calls["call"].live.errors
        begin_s = T0_MS / 1_000
        assert found.is_any(begin_s + 2.9, begin_s + 3.1)
        assert not found.is_any(begin_s + 3.001, begin_s + 7.0)
        assert found.is_any(begin_s + 7.0, begin_s + 7.001)
        feed.advance(OVER_MS)
        last = feed.call().errors
        assert last is not None
        finals.append((last.number, last.last_ms, last.component))
    assert set(finals) == {(3, T0_MS + 7_000, "LLM")}


def test_a_flood_of_errors_makes_few_rows_and_keeps_bounded_times() -> None:
    feed = greeted()
    flood = range(3_000, 63_000, 20)
    for at_ms in flood:
        feed.send("pipecat", failed(at_ms, "OneLLMService#0"), at_ms)
    published = errors_of(feed)
    assert [errors.number for errors in published][:4] == [1, 2, 4, 8]
    assert len(published) <= len(flood).bit_length() + 60_000 // ERRORS_EVERY_MS
    assert published[-1].number > 2_500, "the newest row with errors is at most 10 s old"
    found, begin_s = feed.evaluator._calls["call"].live.errors, T0_MS / 1_000
    assert found.is_any(begin_s, begin_s + 4)
    assert not found.is_any(begin_s + 3 + MAX_ERROR_TIMES * 0.02, begin_s + 1_000)
