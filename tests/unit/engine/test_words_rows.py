"""The rows of words of a call: what the transcript has, when a text is complete, bounded, and
without personal data.
"""

import json
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from consumers.engine.admission import Arrival, admit
from consumers.engine.effects import PublishRow, PublishTranscript, PublishWords
from consumers.engine.evaluator import NO_LIMITS, PartitionEvaluator
from consumers.engine.limits import Limits
from consumers.engine.redaction.redactor import (
    MAX_CHARS_PER_STEP,
    CallRedactor,
    Redactor,
    may_hold_any,
)
from consumers.engine.turns.heard import HeardTurns, Purpose
from consumers.engine.turns.live import LiveCall
from consumers.engine.words_rows import CUT, CallWords, _Said, _Use, cut
from schemas.rows import (
    MAX_ROW_BYTES,
    MAX_TEXT_BYTES,
    MAX_TOOL_TEXT_BYTES,
    MAX_TOOLS,
    CallRow,
    ToolWords,
    WordsRow,
    decode_words,
    encode,
)
from schemas.transcript import TRANSCRIPT, TranscriptTurn
from streamer.recordings.reader import read_recordings
from streamer.sources.simulator.profile import HEALTHY, Incident, with_incidents
from streamer.sources.simulator.traffic import simulate_call
from tests.golden.calls import SAMPLE, arrivals_of_recorded
from tests.support.calls.long_calls import long_inputs
from tests.support.calls.rows_of_calls import START_MS, effects_in_steps
from tests.unit.engine.test_transcripts import TranscriptFeed


def published(
    seed: int, limits: Limits | None = None
) -> tuple[list[WordsRow], list[TranscriptTurn]]:
    return _published(simulate_call(seed, start_ms=START_MS).call, limits)


def _published(
    call: Any, limits: Limits | None = None
) -> tuple[list[WordsRow], list[TranscriptTurn]]:
    evaluator = PartitionEvaluator(limits or Limits(), "test", writes_transcripts=True)
    rows, transcript = [], b"[]"
    for effect in effects_in_steps(evaluator, arrivals_of_recorded(call)):
        if isinstance(effect, PublishWords):
            rows.append(effect.row)
        elif isinstance(effect, PublishTranscript):
            transcript = effect.value
    return rows, list(TRANSCRIPT.validate_json(transcript))


def said_by(transcript: list[TranscriptTurn], role: str) -> list[str]:
    return [turn.message for turn in transcript if turn.role == role and turn.message]


@pytest.mark.parametrize("seed", range(12))
def test_the_newest_rows_have_the_words_and_tools_of_the_transcript(seed: int) -> None:
    rows, transcript = published(seed)
    _require_equal(rows, transcript)
    assert [decode_words(encode(row)) for row in rows] == rows


def test_they_do_so_for_the_recorded_sample() -> None:
    for call in read_recordings(SAMPLE):
        _require_equal(*_published(call))


def _require_equal(rows: list[WordsRow], transcript: list[TranscriptTurn]) -> None:
    newest = [row for _, row in sorted({row.turn: row for row in rows}.items())]
    assert sorted(row.user for row in newest if row.user) == sorted(said_by(transcript, "user"))
    assert sorted(row.assistant for row in newest if row.assistant) == sorted(
        said_by(transcript, "agent")
    )
    assert [row.written for row in newest if row.written] == [
        turn.original_message
        for turn in transcript
        if turn.original_message and turn.original_message != turn.message
    ]
    called = {tool.params_as_json for turn in transcript for tool in turn.tool_calls}
    answered = {tool.result_value for turn in transcript for tool in turn.tool_results}
    tools = [tool for row in newest for tool in row.tools]
    assert {tool.arguments for tool in tools if tool.arguments} == called
    assert {tool.answer for tool in tools if tool.answer} == answered - {"null"}, (
        "no answer is no text"
    )


def test_the_callers_words_are_there_when_the_agent_begins_and_the_agents_when_the_turn_is_left() -> (
    None
):
    rows, _ = published(3)
    of_first = [row for row in rows if row.turn == 1]
    assert [(bool(row.user), bool(row.assistant)) for row in of_first] == [
        (True, False),
        (True, True),
    ]
    assert all(older.revision < newer.revision for older, newer in pairwise(of_first))
    assert all(older.known_ms < newer.known_ms for older, newer in pairwise(of_first))


def test_what_a_caller_has_said_is_there_once_he_waits_in_silence() -> None:
    """Of a mute agent no answer begins: its callers' words came with the end of the call."""
    of_mute = with_incidents(HEALTHY, [Incident("agent_mute")])
    call = simulate_call(3, start_ms=START_MS, kind="phone", profile_of=of_mute).call
    effects = list(
        effects_in_steps(PartitionEvaluator(Limits(), "test"), arrivals_of_recorded(call))
    )
    rows = [each.row for each in effects if isinstance(each, PublishRow | PublishWords)]
    waits = [
        (place, row.waiting)
        for place, row in enumerate(rows)
        if isinstance(row, CallRow) and row.waiting is not None and row.state == "running"
    ]
    assert max(wait.silences for _, wait in waits) > 1, "he asks whether anybody is there"
    heard: dict[int, str] = {}
    for place, wait in waits:
        heard |= {each.turn: each.user for each in rows[:place] if isinstance(each, WordsRow)}
        assert heard[wait.turn], "before or with the row that says he waits"
    newest = {each.turn: each.user for each in rows if isinstance(each, WordsRow)}
    assert newest[waits[-1][1].turn].startswith(heard[waits[-1][1].turn])


def test_no_words_are_written_where_the_setting_says_so() -> None:
    rows, transcript = published(3, Limits(words=False))
    assert rows == []
    assert transcript, "transcripts have a setting of their own"


def test_a_silent_fold_writes_none_and_knows_what_was_written() -> None:
    arrivals = arrivals_of_recorded(simulate_call(3, start_ms=START_MS).call)
    whole = PartitionEvaluator(Limits(), "test")
    successor = PartitionEvaluator(Limits(), "test")
    successor.is_silent = True
    half = len(arrivals) // 2
    for arrival in arrivals[:half]:
        whole.advance(arrival.broker_time_ms)
        whole.receive(arrival)
        successor.advance(arrival.broker_time_ms)
        effects = successor.receive(arrival)
        assert not any(isinstance(effect, PublishWords) for effect in effects)
    successor.speak()
    rest = list(words_in(whole, arrivals[half:]))
    assert rest
    assert rest == list(words_in(successor, arrivals[half:]))


def words_in(evaluator: PartitionEvaluator, arrivals: list[Any]) -> Iterator[WordsRow]:
    for effect in effects_in_steps(evaluator, arrivals):
        if isinstance(effect, PublishWords):
            yield effect.row


def row_of(user: str = "", assistant: str = "", *uses: tuple[int, str, object, object]) -> WordsRow:
    words = CallWords(CallRedactor(Redactor()))
    return words._row(
        _Said(user, assistant, "", tuple(_Use(*use) for use in uses)),
        1,
        CallRow(conversation_id="c"),
        2,
        3,
    )


def test_texts_are_without_personal_data() -> None:
    row = row_of(
        "my card is 4111 1111 1111 1111",
        "thank you",
        (0, "pay", {"card": "4111111111111111"}, "4111111111111111 paid"),
    )
    assert "4111" not in encode(row).decode()
    assert row.user == "my card is [CARD]"


def test_each_text_has_its_bound_and_the_row_says_what_is_missing() -> None:
    many = tuple((index, "look_up", "a" * 3_000, "b" * 3_000) for index in range(MAX_TOOLS + 3))
    row = row_of("word " * 3_000, "é" * MAX_TEXT_BYTES, *many)
    assert len(row.user.encode()) <= MAX_TEXT_BYTES
    assert len(row.assistant.encode()) <= MAX_TEXT_BYTES
    assert row.user.endswith(CUT)
    assert all(len(each.arguments.encode()) <= MAX_TOOL_TEXT_BYTES for each in row.tools)
    assert len(row.tools) == MAX_TOOLS
    assert row.left_out == (
        "user",
        "assistant",
        *(f"tools.{index}" for index in range(MAX_TOOLS)),
        "tools",
    )
    assert len(encode(row)) <= MAX_ROW_BYTES


def test_of_a_tools_value_that_is_too_long_to_redact_the_row_has_the_length() -> None:
    row = row_of("", "", (0, "look_up", "b" * 100_000, None))
    assert row.tools == (ToolWords(0, "look_up", '{"left_out_characters":100000}'),)
    assert row.left_out == ("tools.0",)


def test_each_text_is_redacted_once_for_all_its_rows_and_the_transcript(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_at: Counter[str] = Counter()
    search = Redactor._look

    def look(redactor: Redactor, text: str, lead: str) -> str:
        looked_at[lead + text] += may_hold_any(lead + text)
        return search(redactor, text, lead)

    monkeypatch.setattr(Redactor, "_look", look)
    rows, _ = published(3)
    assert len(rows) > len({row.turn for row in rows}), "turns with several rows"
    assert max(looked_at.values()) == 1


def test_what_one_step_may_not_redact_is_redacted_in_the_next() -> None:
    number = "4111 1111 1111 1111 "
    redactor = CallRedactor(Redactor())
    words, call = CallWords(redactor), CallRow(conversation_id="c")
    live = LiveOf({1: number * 600, 2: number * 601, 3: number * 602, 4: "nothing"})
    words.finish(live)  # type: ignore[arg-type]  # the part of a call that is asked
    rows: list[WordsRow] = []
    steps = 0
    while words.is_due:
        redactor.left_chars, steps = MAX_CHARS_PER_STEP, steps + 1
        rows += words.rows(live, live.heard(), call, 2)  # type: ignore[arg-type]
    assert [row.turn for row in rows] == [1, 2, 3, 4]
    assert steps == 2
    assert not redactor.texts_left_out, "nothing is missing, so nothing counts as missing"
    assert all(row.user.startswith("[CARD] [CARD]") for row in rows[:3])


class LiveOf:
    """A call with these words of the caller, and of the agent by purpose."""

    broker_ms = 5

    def __init__(
        self, said: dict[int, str], answers: dict[int, dict[Purpose, str]] | None = None
    ) -> None:
        self.said, self.answers = said, answers or {}
        self.turns = SimpleNamespace(view=lambda _: None)

    def heard(self, _since: int = 0) -> Any:
        turns = {number: self._turn(number, text) for number, text in self.said.items()}
        return SimpleNamespace(turn=turns.get, numbers=lambda: set(turns))

    def _turn(self, number: int, text: str) -> Any:
        answer = self.answers.get(number, {})
        return SimpleNamespace(
            number=number,
            words=SimpleNamespace(mark=0, is_corrected=False),
            user=SimpleNamespace(said=lambda _: text),
            assistant=SimpleNamespace(said=lambda purpose: answer.get(purpose, ""), starts=()),
            tools=(),
        )


def words_of(feed: TranscriptFeed) -> list[tuple[int, str, str]]:
    """The rows of words of the newest step: turn, caller, agent."""
    return [
        (effect.row.turn, effect.row.user, effect.row.assistant)
        for effect in feed.latest
        if isinstance(effect, PublishWords)
    ]


def test_the_caller_is_not_written_while_the_agent_speaks_over_half_a_number() -> None:
    feed = (
        TranscriptFeed()
        .speech("user_speech_started", 1_000)
        .heard("my card is 4111 1111", 2_000)
        .speech("bot_speech_started", 2_500)
    )
    assert words_of(feed) == [], "the caller goes on"
    feed.heard("1111 1111", 3_500).speech("user_speech_stopped", 3_600)
    assert words_of(feed) == [(1, "my card is [CARD]", "")]


def test_an_answer_is_written_when_its_sound_has_ended() -> None:
    feed = TranscriptFeed().speech("bot_speech_started", 1_000).words("Welcome aboard.", 1_001)
    assert words_of(feed) == []
    feed.speech("bot_speech_stopped", 2_000)
    assert words_of(feed) == [(0, "", "Welcome aboard.")]
    feed.speech("user_speech_started", 3_000)
    assert words_of(feed) == [], "nothing is new when the call leaves the turn"


def test_an_answer_of_many_pieces_has_few_rows_until_the_turn_is_left() -> None:
    feed = TranscriptFeed()
    for place in range(33):
        (
            feed.speech("bot_speech_started", 1_000 * place)
            .words(f"Piece {place}.", 1_000 * place + 1)
            .speech("bot_speech_stopped", 1_000 * place + 500)
        )
    feed.speech("user_speech_started", 60_000)
    rows = [effect.row for effect in feed.effects if isinstance(effect, PublishWords)]
    assert len(rows) <= 8
    assert rows[-1].assistant.endswith("Piece 31. Piece 32.")


def test_words_that_come_late_make_another_row_of_the_turn_of_their_sound() -> None:
    feed = TranscriptFeed()
    for at_ms in (1_000, 5_000, 9_000):
        feed.spoke("user", at_ms, at_ms + 1_000).spoke("bot", at_ms + 1_500, at_ms + 2_500)
    feed.heard("It is late", 2_100)
    assert words_of(feed) == [(1, "It is late", "")]


def test_the_first_spoken_words_take_back_what_the_log_alone_had() -> None:
    words, call = CallWords(CallRedactor(Redactor())), CallRow(conversation_id="c")
    live = LiveOf({1: "Hello"}, {1: {Purpose.WRITTEN: "I only thought this."}})
    words.finish(live)  # type: ignore[arg-type]
    assert [row.assistant for row in words.rows(live, live.heard(), call, 2)] == [  # type: ignore[arg-type]
        "I only thought this."
    ]
    live = LiveOf(
        {1: "Hello", 2: "What?"}, {1: live.answers[1], 2: {Purpose.SPOKEN: "I say this."}}
    )
    words.finish(live)  # type: ignore[arg-type]
    rows: dict[int, str] = {}
    while words.is_due:
        rows |= {row.turn: row.assistant for row in words.rows(live, live.heard(), call, 4)}  # type: ignore[arg-type]
    assert rows == {1: "", 2: "I say this."}


def test_another_version_says_all_of_it_again_with_its_own_revision() -> None:
    arrivals = arrivals_of_recorded(simulate_call(3, start_ms=START_MS).call)
    evaluator = PartitionEvaluator(Limits(), "test")
    rows = {}
    for arrival in arrivals[: len(arrivals) * 2 // 3]:
        for effect in (*evaluator.advance(arrival.broker_time_ms), *evaluator.receive(arrival)):
            if isinstance(effect, PublishWords):
                rows[effect.row.turn] = effect.row
    again = [
        row
        for row in evaluator.say_again(arrivals[0].conversation_id, 9_001)
        if isinstance(row, WordsRow)
    ]
    assert {row.revision for row in again} == {9_001}
    assert [structs.replace(row, revision=0, known_ms=0) for row in again] == [
        structs.replace(rows[turn], revision=0, known_ms=0) for turn in sorted(rows)
    ]


def test_the_work_of_a_turn_is_the_same_in_a_long_call(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: Counter[int] = Counter()
    said_in = CallWords._said_in

    def count(words: CallWords, live: LiveCall, heard: HeardTurns, number: int) -> object:
        looks[number] += 1
        return said_in(words, live, heard, number)

    monkeypatch.setattr(CallWords, "_said_in", count)
    feed = TranscriptFeed(Limits(max_turns_per_call=10_000))
    for turn in range(300):
        at_ms = 10_000 * turn
        (
            feed.spoke("user", at_ms, at_ms + 1_000)
            .heard(f"Words {turn}", at_ms + 1_100)
            .speech("bot_speech_started", at_ms + 2_000)
            .words(f"An answer to {turn}.", at_ms + 2_001)
            .speech("bot_speech_stopped", at_ms + 3_000)
        )
    assert max(looks.values()) <= 3
    assert sum(isinstance(effect, PublishWords) for effect in feed.effects) <= 2 * 300


def test_a_row_of_signs_that_json_writes_long_is_within_its_bound() -> None:
    many = tuple((index, "look_up", "\x01" * 2_000, "\x01" * 2_000) for index in range(MAX_TOOLS))
    row = row_of("\x01" * 9_000, "\x01" * 9_000, *many)
    sent = decode_words(encode(row))
    assert len(encode(row)) <= MAX_ROW_BYTES
    assert sent.left_out[-2:] == ("tools", "written")
    assert sent.user == row.user


def test_a_text_is_cut_between_two_characters() -> None:
    assert cut("äöü", 6) == "äöü"
    assert cut("äöüß", 6) == f"ä{CUT}"
    assert len(cut("🙂" * 9, 11).encode()) <= 11


def test_a_simulated_call_has_few_rows_with_its_words() -> None:
    rows = [
        effect.row
        for seed in range(12)
        for effect in effects_in_steps(
            PartitionEvaluator(Limits(), "test"),
            arrivals_of_recorded(simulate_call(seed, start_ms=START_MS).call),
        )
        if isinstance(effect, PublishRow | PublishWords)
    ]
    assert len(rows) <= 12 * 50
    assert sum(len(encode(row)) for row in rows) <= 12 * 80_000


def test_a_call_whose_tools_are_asked_100_kilobytes_has_small_rows_of_words() -> None:
    turns = 10
    arrivals = []
    for source, record in long_inputs(turns):
        event = json.loads(record.value)
        if event.get("data", {}).get("arguments"):
            event["data"]["arguments"] = {"items": ["a" * 1_000] * 100}
        arrival = admit(source, record._replace(value=json.dumps(event).encode()), NO_LIMITS)
        assert isinstance(arrival, Arrival)
        arrivals.append(arrival)
    rows = list(words_in(PartitionEvaluator(NO_LIMITS, "test"), arrivals))
    assert max(len(encode(row)) for row in rows) < 2_000
    assert len(rows) <= 3 * turns
    newest = {row.turn: row for row in rows}
    assert [row.left_out for row in newest.values() if row.tools] == [("tools.0",)] * turns
    assert {tool.arguments for row in newest.values() for tool in row.tools} == {
        '{"left_out_characters":100311}'
    }
