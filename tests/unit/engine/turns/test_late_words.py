"""Words that come after the caller's next sound has begun belong to the turn in which
they sounded.
"""

import json
from datetime import UTC, datetime
from typing import Any, Self

import pytest

from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.limits import Limits
from consumers.engine.sources.frameworks import translated
from consumers.engine.turns.heard import Purpose
from tests.support.calls.agent_calls import envelope_of, heard, said
from tests.support.fakes.engine_feed import T0_MS, Feed, Json, transcripts_of

FIRST, SECOND = "I lost my badge.", "The blue one."


class Line(Feed):
    """A call on a line, with its transcript."""

    def __init__(self) -> None:
        super().__init__()
        self.evaluator = PartitionEvaluator(Limits(), "test", writes_transcripts=True)

    def user_said(self, text: str, at_ms: int, *, sounded_ms: int | None = None) -> Self:
        """The words come at `at_ms`; their record may say when they sounded."""
        data: Json = {"content": text}
        if sounded_ms is not None:
            data["timestamp"] = datetime.fromtimestamp((T0_MS + sounded_ms) / 1000, UTC).isoformat()
        return self.send("pipecat", {"type": "user_message", "data": data}, at_ms)

    def said(self) -> list[list[str]]:
        """The words of the caller by turn, from the transcript of the call that ends now."""
        self.advance(900_000)
        (transcript,) = transcripts_of(self.effects)
        turns: list[list[str]] = []
        for entry in json.loads(transcript):
            if entry["role"] == "agent":
                turns.append([])
            elif entry["message"] is not None:
                turns[-1].append(entry["message"])
        return turns


@pytest.fixture
def line() -> Line:
    """Greeting, a turn of the caller from 1 s to 2 s, and the answer from 2.8 s to 3.8 s, which the
    caller cuts off at 3.5 s.
    """
    return (
        Line()
        .bot_text("Hello.", 0)
        .spoke("bot", 0, 800)
        .spoke("user", 1_000, 2_000)
        .bot_text("Which", 2_700)
        .speech("bot_speech_started", 2_800)
        .speech("user_speech_started", 3_500)
    )


def ends(line: Line, *, at_ms: int = 4_500) -> None:
    """The second sound ends, and is answered."""
    (
        line.speech("bot_speech_stopped", 3_800)
        .speech("user_speech_stopped", at_ms)
        .bot_text("Done.", at_ms + 600)
        .spoke("bot", at_ms + 700, at_ms + 1_700)
    )


BOTH: Any = [[FIRST], [SECOND], []]


@pytest.mark.parametrize("sounded_ms", [None, 1_000, 1_150, 1_900])
@pytest.mark.parametrize("late_ms", [50, 100, 900])
def test_words_that_come_while_the_next_sound_is_open_are_of_the_one_before(
    line: Line, late_ms: int, sounded_ms: int | None
) -> None:
    line.user_said(FIRST, 3_500 + late_ms, sounded_ms=sounded_ms)
    ends(line)
    line.user_said(SECOND, 4_700, sounded_ms=None if sounded_ms is None else 3_600)
    assert line.said() == BOTH


def test_words_with_a_time_are_of_that_sound_however_late_they_come(line: Line) -> None:
    ends(line)
    line.user_said(SECOND, 4_700, sounded_ms=3_500).user_said(FIRST, 30_000, sounded_ms=1_000)
    assert line.said() == BOTH


def test_words_with_the_time_of_their_record_alone_are_of_the_sound_that_ended_last(
    line: Line,
) -> None:
    line.user_said(FIRST, 3_550, sounded_ms=3_500)
    ends(line)
    line.user_said(SECOND, 4_700, sounded_ms=4_690)
    assert line.said() == BOTH


def test_words_of_the_audit_log_come_late_too(line: Line) -> None:
    line.heard(FIRST, 3_600)
    ends(line)
    line.heard(SECOND, 4_700)
    assert line.said() == BOTH


def test_words_in_the_middle_of_a_sound_are_of_it_where_the_sound_before_has_its_own(
    line: Line,
) -> None:
    line.user_said(FIRST, 2_300).user_said("The blue", 4_100)
    ends(line)
    line.user_said("one.", 4_700)
    assert line.said() == [[FIRST], ["The blue one."], []]


def test_a_second_part_of_the_words_before_is_no_part_of_a_sound_that_began_just_now(
    line: Line,
) -> None:
    line.user_said("I lost", 2_300).user_said("my badge.", 3_600)
    ends(line)
    line.user_said(SECOND, 4_700)
    assert line.said() == BOTH


def test_later_than_a_slow_transcription_they_are_of_the_sound_that_is_heard(line: Line) -> None:
    line.user_said(SECOND, 7_100)
    ends(line, at_ms=8_000)
    assert line.said() == [[], [SECOND], []]


def test_after_both_sounds_words_without_a_time_are_of_the_one_that_ended_last(line: Line) -> None:
    ends(line)
    line.user_said(SECOND, 4_600)
    assert line.said() == [[], [SECOND], []]


@pytest.mark.parametrize("sounded_ms", [None, 1_100])
def test_late_words_make_no_turn_of_a_sound_that_nothing_ruled(sounded_ms: int | None) -> None:
    line = (
        Line()
        .bot_text("Hello.", 0)
        .spoke("bot", 0, 800)
        .speech("user_speech_started", 1_000)
        .speech("user_turn_started", 1_100)
        .speech("user_speech_stopped", 2_000)
        .speech("user_turn_stopped", 2_300)
        .bot_text("Which", 2_700)
        .speech("bot_speech_started", 2_800)
        .speech("user_speech_started", 3_500)  # a cough
        .user_said(FIRST, 3_600, sounded_ms=sounded_ms)
        .speech("user_speech_stopped", 3_700)
        .speech("bot_speech_stopped", 4_800)
    )
    assert (line.turns(), line.interruptions(), line.said()) == ({0, 1}, [], [[FIRST], []])


def test_late_words_revise_the_turn_that_the_call_has_left(line: Line) -> None:
    ends(line)
    before = line.turn(1)
    line.user_said(FIRST, 6_000, sounded_ms=1_000).spoke("user", 8_000, 9_000)
    assert before.talk is not None
    assert before.talk.user.words is None
    after = line.turn(1)
    assert after.talk is not None
    assert (after.talk.user.words, after.revision > before.revision) == (4, True)


def answered(line: Line) -> list[str | None]:
    """The words of the agent, from the transcript of the call that ends now."""
    line.advance(900_000)
    (transcript,) = transcripts_of(line.effects)
    return [entry["message"] for entry in json.loads(transcript) if entry["role"] == "agent"]


@pytest.fixture
def quick() -> Line:
    """The bot greets and answers, and the caller's second turn is over at 5 s; no words
    have come.
    """
    return (
        Line()
        .spoke("bot", 0, 800)
        .spoke("user", 1_000, 2_000)
        .spoke("bot", 2_800, 3_800)
        .spoke("user", 4_000, 5_000)
    )


def bot_said(line: Line, text: str, at_ms: int) -> None:
    line.send("pipecat", {"type": "assistant_message", "data": {"content": text}}, at_ms)


def test_a_message_of_an_answer_that_comes_after_the_caller_s_next_turn_is_of_that_answer(
    quick: Line,
) -> None:
    bot_said(quick, "Which one?", 5_100)
    quick.spoke("bot", 5_800, 6_800)
    bot_said(quick, "Done.", 6_900)
    assert answered(quick) == [None, "Which one?", "Done."]


def test_a_message_that_comes_before_its_sound_is_of_it_where_the_answer_before_has_its_words(
    quick: Line,
) -> None:
    bot_said(quick, "Which one?", 3_900)
    bot_said(quick, "Done.", 5_100)
    quick.spoke("bot", 5_800, 6_800)
    assert answered(quick) == [None, "Which one?", "Done."]


def test_a_first_answer_before_its_sound_is_no_greeting() -> None:
    line = Line().spoke("bot", 0, 800).spoke("user", 1_000, 2_000)
    bot_said(line, "Which one?", 2_100)
    line.spoke("bot", 2_800, 3_800)
    assert answered(line) == [None, "Which one?"]


# OpenAI's realtime API: a transcript names the item that its sound became, and comes when it is
# ready.


def realtime(*events: tuple[str, int, Json]) -> Line:
    line = Line()
    for kind, at_ms, fields in events:
        event = {"type": kind, "timestamp": T0_MS + at_ms, "conversation_id": "call", **fields}
        found = translated(event, T0_MS)
        assert found is not None
        for each in found.events:
            line.send("pipecat", {**each, "conversation_id": "call"}, at_ms)
    return line


def test_a_transcript_of_openai_is_of_its_item_however_late_it_comes() -> None:
    buffer, done = (
        "input_audio_buffer.speech",
        "conversation.item.input_audio_transcription.completed",
    )
    first, second = {"item_id": "item_1"}, {"item_id": "item_2"}
    line = realtime(
        (f"{buffer}_started", 1_000, first),
        (f"{buffer}_stopped", 2_000, first),
        ("output_audio_buffer.started", 2_800, {}),
        (f"{buffer}_started", 3_500, second),
        ("output_audio_buffer.cleared", 3_600, {}),
        (f"{buffer}_stopped", 4_000, second),
        (done, 4_500, {**second, "transcript": SECOND}),
        ("output_audio_buffer.started", 4_700, {}),
        (done, 4_900, {**first, "transcript": FIRST}),
        ("response.output_audio_transcript.done", 5_000, {"transcript": "Done."}),
        ("output_audio_buffer.stopped", 6_000, {}),
    )
    heard_turns = line.evaluator._calls["call"].live.heard()
    said_by_turn = {
        number: turn.user.said(Purpose.SPOKEN) for number, turn in heard_turns.turns([1, 2]).items()
    }
    assert said_by_turn == {1: FIRST, 2: SECOND}


def test_the_id_of_a_sound_counts_whichever_record_comes_first() -> None:
    line = Line()
    for name, start_ms in (("a", 1_000), ("b", 3_500)):
        words = {"content": name, "sound_id": name}
        line.send("pipecat", {"type": "user_message", "data": words}, 6_000)
        started = {
            "kind": "user_speech_started",
            "timestamp": (T0_MS + start_ms) / 1000,
            "sound_id": name,
        }
        (
            line.send("pipecat", {"type": "speech_event", "data": started}, start_ms)
            .speech("user_speech_stopped", start_ms + 1_000)
            .spoke("bot", start_ms + 1_500, start_ms + 2_000)
        )
    heard_turns = line.evaluator._calls["call"].live.heard()
    assert {
        number: turn.user.said(Purpose.SPOKEN) for number, turn in heard_turns.turns([1, 2]).items()
    } == {
        1: "a",
        2: "b",
    }


# An ElevenLabs agent: the ids of its events grow, whenever they arrive.


def spoken(*events: Json) -> list[tuple[int, str, str]]:
    """Turn, side and words of the agent's events, in this order of their times."""
    line = Line()
    for event in events:
        line.send("user_sim", event, event["timestamp"] - T0_MS, envelope=envelope_of(event))
    turns = line.evaluator._calls["call"].live.heard()
    return [
        (number, side, text)
        for number in sorted(turns.numbers())
        if (turn := turns.turn(number)) is not None
        for side, text in (
            ("user", turn.user.said(Purpose.SPOKEN)),
            ("agent", turn.assistant.said(Purpose.SPOKEN)),
        )
        if text
    ]


TALK = [
    said("Hello.", 0, 1),
    heard("One.", 2_000, 3),
    said("First.", 3_000, 5),
    heard("Two.", 6_000, 8),
    said("Second.", 7_000, 9),
]
SPOKEN = [
    (0, "agent", "Hello."),
    (1, "user", "One."),
    (1, "agent", "First."),
    (2, "user", "Two."),
    (2, "agent", "Second."),
]


@pytest.mark.parametrize(("place", "by"), [(0, 1), (1, 1), (2, 1), (3, 1), (0, 2), (2, 2)])
def test_an_agent_s_words_that_come_late_are_filed_by_their_ids(place: int, by: int) -> None:
    """One event comes after the next ones: its time is then later than theirs, and within a slow
    transcription.
    """
    late = TALK[place]
    after = TALK[min(place + by, len(TALK) - 1)]
    moved = {**late, "timestamp": after["timestamp"] + 100}
    others = [event for event in TALK if event is not late]
    assert spoken(*sorted([*others, moved], key=lambda event: event["timestamp"])) == SPOKEN


@pytest.mark.parametrize("place", [1, 3])
def test_a_late_transcript_gives_its_turn_no_estimate(place: int) -> None:
    late = {**TALK[place], "timestamp": TALK[place + 1]["timestamp"] + 100}
    line = Line()
    for event in sorted(
        [*TALK[:place], *TALK[place + 1 :], late], key=lambda event: event["timestamp"]
    ):
        line.send("user_sim", event, event["timestamp"] - T0_MS, envelope=envelope_of(event))
    line.advance(900_000)
    assert [turn for turn, value in line.latencies().items() if value == 1000.0] == [
        2 if place == 1 else 1
    ]


def test_a_transcript_without_an_id_is_of_a_turn_of_its_own() -> None:
    events = [said("Hello.", 0, 1), said("First.", 3_000, 5), heard("One.", 3_100)]
    assert spoken(*events) == [(0, "agent", "Hello. First."), (1, "user", "One.")]


def test_after_a_late_transcript_nobody_waits_for_the_answer_that_has_come() -> None:
    line = Line()
    for event in (said("Hello.", 0, 1), said("First.", 3_000, 5), heard("One.", 3_100, 3)):
        line.send("user_sim", event, event["timestamp"] - T0_MS, envelope=envelope_of(event))
    line.advance(20_000)
    assert line.silences() == []
