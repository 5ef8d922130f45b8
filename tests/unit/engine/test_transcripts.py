"""Transcripts of calls: words, tools, interruptions, and their times; on EVA's turns and on the
bot's own.
"""

import json
from collections.abc import Callable
from math import inf
from typing import Any, Self

import pytest
from elevenlabs.types import ConversationHistoryTranscriptResponseModel as SdkTurn

from consumers.engine import call as call_module
from consumers.engine import transcripts as transcript_module
from consumers.engine.call import Call
from consumers.engine.effects import Count
from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.limits import Limits
from consumers.engine.redaction.redactor import Redactor
from consumers.engine.transcripts import CallTranscript, MetricsOf, transcript_bytes
from consumers.engine.turns.bot import BotTurn, BotTurnMachine, TokenUsage, TurnMetrics
from consumers.engine.turns.eva import EvaHistory
from consumers.engine.turns.heard import HeardByTheBot, cut_off_turns
from consumers.engine.turns.timeline import ToolUses
from schemas.redaction import RedactionRules
from schemas.transcript import TRANSCRIPT, TranscriptTurn
from tests.support.fakes.engine_feed import T0_MS, Feed, Json, transcripts_of

END_MS = 24 * 3_600_000
PLAIN = Redactor(RedactionRules(enabled=False))


class TranscriptFeed(Feed):
    """A feed whose calls get transcripts."""

    def __init__(self, limits: Limits | None = None) -> None:
        super().__init__(limits)
        self.evaluator = PartitionEvaluator(limits or Limits(), "test", writes_transcripts=True)

    def closed(self) -> list[Json]:
        """The turns of the call, after it has ended by silence."""
        self.advance(END_MS)
        (transcript,) = transcripts_of(self.effects)
        TRANSCRIPT.validate_json(transcript)
        turns: list[Json] = json.loads(transcript)
        return turns

    def reply(self, text: str, at_ms: int) -> Self:
        """The model's reply in the audit log."""
        return self.send("audit", {"message_type": "assistant", "value": text}, at_ms)

    def words(self, text: str, at_ms: int) -> Self:
        """Words come to speech synthesis one by one."""
        self.send("pipecat", {"type": "turn_start", "data": {"frame": "turn_start"}}, at_ms)
        for place, word in enumerate(text.split()):
            self.send("pipecat", {"type": "tts_text", "data": {"frame": word}}, at_ms + place)
        return self

    def agent(
        self, start_ms: int, end_ms: int | None, spoken: str, written: str | None = None
    ) -> Self:
        """The simulated caller hears the agent say this part of its text."""
        if written is not None:
            self.reply(written, start_ms - 5)
        self._audio("audio_start", "assistant", start_ms, 0).words(spoken, start_ms)
        if end_ms is not None:
            self._audio("audio_end", "assistant", end_ms, 0)
        return self

    def caller(self, start_ms: int, end_ms: int, meant: str, understood: str | None = None) -> Self:
        """The simulated caller says this, and the agent understands something."""
        self.user_audio(start_ms, end_ms, text=meant)
        if understood is not None:
            self.heard(understood, end_ms + 100)
        return self

    def uses(
        self, tool: str, at_ms: int, arguments: object, response: object, *, for_ms: int = 300
    ) -> Self:
        """A tool is called, and answers unless the response is None."""
        self.send(
            "audit",
            {"message_type": "tool_call", "value": {"tool": tool, "parameters": arguments}},
            at_ms,
        )
        if response is not None:
            self.tool_answer(tool, at_ms + for_ms, response)
        return self


def brief(turns: list[Json]) -> list[tuple[int, str, str | None]]:
    """When, who, what."""
    return [(turn["time_in_call_secs"], turn["role"], turn["message"]) for turn in turns]


@pytest.fixture
def feed() -> TranscriptFeed:
    return TranscriptFeed()


def test_both_sides_say_what_was_heard_of_them(feed: TranscriptFeed) -> None:
    (
        feed.agent(1_000, 2_500, "Welcome aboard.", "Welcome aboard.")
        .caller(4_200, 6_000, "I lost my badge", "I lost my bag")
        .agent(8_999, 9_900, "Which bag?", "Which bag?")
    )
    turns = feed.closed()
    assert brief(turns) == [
        (0, "agent", "Welcome aboard."),
        (3, "user", "I lost my bag"),
        (8, "agent", "Which bag?"),
    ]
    assert [turn["source_medium"] for turn in turns] == [None, "audio", None]
    assert [turn["agent_metadata"] for turn in turns] == [
        {"agent_id": "unknown", "workflow_node_id": None},
        None,
        {"agent_id": "unknown", "workflow_node_id": None},
    ]
    assert not any(turn["interrupted"] for turn in turns)


def test_time_counts_from_the_start_that_the_call_names(feed: TranscriptFeed) -> None:
    (
        feed.send("audit", {"type": "call_started", "agent": "desk"}, 5_000)
        .send("audit", {"type": "call_started"}, 9_000)
        .agent(9_100, 9_500, "Welcome.")
    )
    (turn,) = feed.closed()
    assert (turn["time_in_call_secs"], turn["agent_metadata"]["agent_id"]) == (4, "desk")


def test_what_the_caller_meant_stands_in_where_nobody_understood(feed: TranscriptFeed) -> None:
    feed.agent(0, 500, "Welcome.").caller(1_000, 2_000, "Hello there")
    assert brief(feed.closed())[1] == (1, "user", "Hello there")


def test_a_placeholder_is_no_message(feed: TranscriptFeed) -> None:
    (
        feed.send("audit", {"type": "call_started", "pipeline_type": "audio_llm"}, 0)
        .agent(0, 500, "Welcome.")
        .caller(1_000, 2_000, "Hello there", "[user audio]")
        .agent(3_000, 3_500, "Yes?")
        .caller(4_000, 5_000, "A seat", "[user audio]")
        .send("audit", {"type": "user_text_updated", "text": "A sheet"}, 5_300)
    )
    assert [message for _, role, message in brief(feed.closed()) if role == "user"] == [
        "Hello there",
        "A sheet",
    ]


def test_a_caller_who_was_heard_and_not_understood_has_no_message(feed: TranscriptFeed) -> None:
    feed.agent(0, 500, "Welcome.").user_audio(1_000, 2_000, text=None)
    assert (1, "user", None) in brief(feed.closed())


def test_a_barge_in_cuts_the_message_and_keeps_what_was_written(feed: TranscriptFeed) -> None:
    (
        feed.agent(0, 500, "Welcome.", "Welcome.")
        .caller(1_000, 2_000, "Any seats?", "Any seats?")
        .agent(
            3_000,
            None,
            "There are many seats",
            "There are many seats on the first and the last flight.",
        )
        .caller(4_000, 5_000, "Stop", "Stop")
        ._audio("audio_end", "assistant", 4_100, 0)
        .agent(6_000, 7_000, "Yes?", "Yes?")
    )
    turns = feed.closed()
    assert [
        (turn["message"], turn["original_message"]) for turn in turns if turn["interrupted"]
    ] == [("There are many seats", "There are many seats on the first and the last flight.")]
    assert not any("[" in (turn["message"] or "") for turn in turns), "EVA's labels are not in it"
    talks = [feed.turn(turn).talk for turn in (1, 2)]
    assert [(talk.assistant.words, talk.written_words) for talk in talks if talk] == [
        (4, 11),
        (1, None),
    ]


def _spoken_at(start_s: float | None = None, end_s: float = inf) -> BotTurn:
    starts = () if start_s is None else (start_s,)
    return BotTurn(bot_starts=starts, bot_ends=() if end_s == inf else (end_s,))


def _barge_in_at(*starts: float, own: tuple[float, float] | None = None) -> BotTurn:
    return BotTurn(
        vad_starts=starts,
        bot_starts=own[:1] if own else (),
        bot_ends=own[1:] if own else (),
        user_interrupted=True,
    )


@pytest.mark.parametrize(
    ("turns", "cut"),
    [
        pytest.param({1: _spoken_at(1.0, 5.0), 2: _barge_in_at(4.0)}, {1}, id="the turn before"),
        pytest.param({2: _barge_in_at(0.0, 4.0, own=(2.0, 5.0))}, {2}, id="the same turn"),
        pytest.param(
            {1: _spoken_at(1.0, 5.0), 2: _barge_in_at(4.0, 8.0, own=(6.0, 7.0))},
            {1},
            id="not what was over by then",
        ),
        pytest.param(
            {1: _spoken_at(1.0, 5.0), 2: _barge_in_at(4.0, 8.0, own=(6.0, 9.0))},
            {1, 2},
            id="and the answer again",
        ),
        pytest.param(
            {1: _spoken_at(1.0, 3.9), 2: _barge_in_at(4.0, own=(6.0, 9.0))}, {1}, id="noticed late"
        ),
        pytest.param({1: _spoken_at(), 2: _barge_in_at()}, {1}, id="no sound tells"),
        pytest.param(
            {1: _spoken_at(1.0, inf), 2: _barge_in_at(4.0)}, {1}, id="sound that never ended"
        ),
        pytest.param(
            {1: _spoken_at(1.0, 5.0), 2: BotTurn(vad_starts=(4.0,))}, set(), id="nobody says so"
        ),
    ],
)
def test_a_barge_in_cuts_off_the_turn_whose_sound_it_was(
    turns: dict[int, BotTurn], cut: set[int]
) -> None:
    machine = BotTurnMachine()
    machine.turns = turns
    assert cut_off_turns(HeardByTheBot(machine, EvaHistory(), ToolUses()).turns(turns)) == cut


def test_what_it_had_written_is_null_where_the_log_has_less_than_was_said(
    feed: TranscriptFeed,
) -> None:
    feed.agent(0, None, "Welcome to the desk of the line", "Welcome.").caller(
        1_000, 2_000, "Stop", "Stop"
    )
    (cut,) = [turn for turn in feed.closed() if turn["interrupted"]]
    assert (cut["message"], cut["original_message"]) == ("Welcome to the desk of the line", None)


def test_a_reply_that_nobody_heard_is_left_out(feed: TranscriptFeed) -> None:
    (
        feed.agent(0, 500, "Welcome.", "Welcome.")
        .caller(1_000, 2_000, "Hello", "Hello")
        .reply("I never came to say this.", 2_500)
    )
    assert [message for _, _, message in brief(feed.closed())] == ["Welcome.", "Hello"]


def test_without_any_sign_of_speech_the_log_is_what_was_said(feed: TranscriptFeed) -> None:
    feed.reply("Welcome.", 0).heard("Hello", 2_000).reply("Yes?", 3_000)
    assert brief(feed.closed()) == [
        (0, "agent", "Welcome."),
        (2, "user", "Hello"),
        (3, "agent", "Yes?"),
    ]


def test_tools_are_entries_of_their_own_joined_by_an_id(feed: TranscriptFeed) -> None:
    (
        feed.agent(0, 500, "Welcome.", "Welcome.")
        .caller(1_000, 2_000, "Book it", "Book it")
        .uses("book", 2_500, {"seat": "window", "at": ["1", 2]}, {"status": "error", "why": "full"})
        .agent(4_000, 5_000, "It is full.", "It is full.")
    )
    turns = feed.closed()
    assert [
        (len(turn["tool_calls"]), len(turn["tool_results"]), turn["message"]) for turn in turns
    ] == [(0, 0, "Welcome."), (0, 0, "Book it"), (1, 0, None), (0, 1, None), (0, 0, "It is full.")]
    (call,), (result,) = turns[2]["tool_calls"], turns[3]["tool_results"]
    assert (
        call["params_as_json"]
        == call["tool_details"]["parameters"]
        == '{"seat":"window","at":["1",2]}'
    )
    assert (call["type"], call["tool_details"]["type"], result["type"]) == (
        "client",
        "client",
        "client",
    )
    assert call["request_id"] == result["request_id"]
    assert result["result_value"] == '{"status":"error","why":"full"}'
    assert (
        result["is_error"],
        result["tool_latency_secs"],
        result["dynamic_variable_updates"],
    ) == (True, 0.3, [])
    assert (call["tool_has_been_called"], result["tool_has_been_called"]) == (True, True)


def test_calls_side_by_side_share_an_entry_and_ids_differ(feed: TranscriptFeed) -> None:
    (
        feed.agent(0, 500, "Welcome.")
        .caller(1_000, 2_000, "Book both", "Book both")
        .uses("book", 2_500, {"n": 1}, "first", for_ms=1_000)
        .uses("rebook", 2_600, {"n": 2}, "second", for_ms=500)
        .uses("pay", 4_000, None, None)
    )
    turns = [turn for turn in feed.closed() if turn["tool_calls"] or turn["tool_results"]]
    named = [
        [each["tool_name"] for each in (*turn["tool_calls"], *turn["tool_results"])]
        for turn in turns
    ]
    assert named == [["book", "rebook"], ["rebook", "book"], ["pay"]]
    assert [turn["tool_results"] == [] for turn in turns] == [True, False, True]
    assert len({call["request_id"] for turn in turns for call in turn["tool_calls"]}) == 3
    pay = turns[2]["tool_calls"][0]
    assert (pay["params_as_json"], pay["tool_has_been_called"]) == ("null", False), (
        "nothing shows that it ran"
    )


def test_an_answer_that_nobody_asked_for_has_the_format_s_own_number_for_no_latency(
    feed: TranscriptFeed,
) -> None:
    """ElevenLabs' schema has a number there, 0 unless it is known. What was measured is in scores,
    where unknown is not zero.
    """
    feed.heard("Hello", 0).tool_answer("book", 500, "done")
    (result,) = [each for turn in feed.closed() for each in turn["tool_results"]]
    assert (result["result_value"], result["tool_latency_secs"]) == ("done", 0.0)
    assert [use.duration_ms for use in feed.tools().values()] == [None]


def test_where_nothing_was_measured_there_are_no_metrics(feed: TranscriptFeed) -> None:
    feed.agent(0, 500, "Welcome.").caller(1_000, 2_000, "Hello", "Hello")
    assert [turn["conversation_turn_metrics"] for turn in feed.closed()] == [None, None]


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("plain text", "plain text"),
        ("", ""),
        ('{"a":  1}', '{"a":  1}'),  # as it came
        ("{no json", "{no json"),
        ('{"a": NaN}', '{"a": NaN}'),  # nor is this
        (17, "17"),
        ([], "[]"),
        (None, "null"),
        (float("inf"), "null"),
        ({"é": "✓"}, '{"é":"✓"}'),
    ],
)
def test_an_answer_is_its_text_or_json(feed: TranscriptFeed, answer: object, value: str) -> None:
    feed.send(
        "audit", {"message_type": "tool_call", "value": {"tool": "t", "parameters": answer}}, 0
    ).send(
        "audit",
        {"message_type": "tool_response", "value": {"tool": "t", "response": answer}},
        10,
    )
    turns = feed.closed()
    assert turns[1]["tool_results"][0]["result_value"] == value
    parameters = turns[0]["tool_calls"][0]["params_as_json"]
    is_text = isinstance(answer, str) and answer != '{"a":  1}'
    assert parameters == (json.dumps(answer) if is_text else value), (
        "arguments are JSON in any case"
    )


def test_a_phone_line_has_the_bot_s_own_turns(feed: TranscriptFeed) -> None:
    (
        feed.reply("Welcome to the desk.", 900)
        .speech("bot_speech_started", 1_000)
        .words("Welcome to the desk.", 1_000)
        .speech("bot_speech_stopped", 2_000)
        .spoke("user", 3_500, 5_000)
        .heard("Any seats?", 5_500)
        .uses("look", 5_600, {}, "two")
        .reply("There are two seats, one at the window.", 5_950)
        .speech("bot_speech_started", 6_000)
        .words("There are two", 6_000)
        .speech("user_speech_started", 6_500)
        .speech("bot_speech_stopped", 6_600)
        .speech("user_speech_stopped", 7_000)
        .heard("The window", 7_100)
    )
    turns = feed.closed()
    assert [entry for entry in brief(turns) if entry[2]] == [
        (0, "agent", "Welcome to the desk."),
        (2, "user", "Any seats?"),
        (5, "agent", "There are two"),
        (5, "user", "The window"),
    ]
    assert [turn["original_message"] for turn in turns if turn["interrupted"]] == [
        "There are two seats, one at the window."
    ]
    assert sum(len(turn["tool_calls"]) for turn in turns) == 1


def test_pipecat_s_own_record_is_what_was_spoken(feed: TranscriptFeed) -> None:
    (
        feed.speech("bot_speech_started", 1_000)
        .reply("Welcome to the desk.", 900)
        .send("pipecat", {"type": "assistant_message", "data": {"content": "Welcome to"}}, 1_500)
        .speech("user_speech_started", 1_600)
        .speech("bot_speech_stopped", 1_700)
        .speech("user_speech_stopped", 1_900)
        .send("pipecat", {"type": "user_message", "data": {"content": "Stop"}}, 2_000)
    )
    agent, user = feed.closed()
    assert (agent["message"], agent["original_message"], agent["interrupted"]) == (
        "Welcome to",
        "Welcome to the desk.",
        True,
    )
    assert user["message"] == "Stop"


def test_a_message_that_was_cut_off_belongs_to_the_turn_that_was(feed: TranscriptFeed) -> None:
    """Pipecat writes it when the turn is over, and then the caller has begun the next
    one already.
    """
    (
        feed.speech("bot_speech_started", 1_000)
        .speech("user_speech_started", 1_600)
        .speech("bot_speech_stopped", 1_700)
    )
    cut = {"content": "Welcome to", "timestamp": "2026-09-21T14:13:20.990+00:00"}  # T0 and 0.99 s
    (
        feed.send("pipecat", {"type": "assistant_message", "data": cut}, 1_800)
        .speech("user_speech_stopped", 1_900)
        .heard("Stop", 2_000)
    )
    assert brief(feed.closed()) == [(0, "agent", "Welcome to"), (0, "user", "Stop")]


def entries_of(
    call: Call, redactor: Redactor = PLAIN, metrics_of: MetricsOf | None = None
) -> tuple[TranscriptTurn, ...]:
    """The entries of the transcript of a call as it is now."""
    transcript = CallTranscript("call", call.live, "desk", redactor, metrics_of)
    return tuple(entry for entry in transcript if entry is not None)


def test_the_redactor_goes_over_every_text_and_leaves_json_whole(feed: TranscriptFeed) -> None:
    (
        feed.agent(0, None, "Is it SECRET", "Is it SECRET or SECRET?")
        .caller(1_000, 2_000, "It is SECRET", "It is SECRET")
        .uses("book", 2_500, {"name": 'a "SECRET"'}, '{"note": ["SECRET"]}')
        .uses("pay", 3_000, "SECRET", "SECRET")
    )
    call = feed.evaluator._calls["call"]
    turns = entries_of(call, Redactor(RedactionRules(patterns={"XX": "SECRET"})))
    text = TRANSCRIPT.dump_json(turns).decode()
    assert "SECRET" not in text
    assert text.count("[XX]") == 4 + 2 * 2 + 2, (
        "messages, the original, arguments twice each, results"
    )
    plain = json.loads(text)
    tools = [each for turn in plain for each in (*turn["tool_calls"], *turn["tool_results"])]
    assert [json.loads(each["params_as_json"]) for each in tools if "params_as_json" in each] == [
        {"name": 'a "[XX]"'},
        "[XX]",
    ]
    assert [each["result_value"] for each in tools if "result_value" in each] == [
        '{"note":["[XX]"]}',
        "[XX]",
    ]
    assert "SECRET" in TRANSCRIPT.dump_json(entries_of(call)).decode(), "only where it is asked to"


MEASURED = TurnMetrics(
    {
        "convai_asr_trailing_service_latency": 0.2,
        "convai_llm_service_ttfb": 1.5,
        "convai_llm_tool_request_generation_latency": 1.25,
    },
    {"gpt": TokenUsage(1500, 3, 4, 50), "": TokenUsage(1, 0, 0, 2)},
)

NOTHING = TurnMetrics({}, {})


def measured(turns: tuple[TranscriptTurn, ...]) -> list[tuple[str, str, dict[str, float]]]:
    """Of the entries with content: the role, whether it has calls, and the content."""
    return [
        (
            turn.role,
            "calls" if turn.tool_calls else "",
            {name: each.elapsed_time for name, each in found.metrics.items()},
        )
        for turn in turns
        if (found := turn.conversation_turn_metrics) is not None
    ]


def test_each_number_stands_once_on_the_entry_that_it_is_about(feed: TranscriptFeed) -> None:
    (
        feed.agent(0, 500, "Welcome.")
        .caller(1_000, 2_000, "Book both", "Book both")
        .uses("book", 2_500, {}, "done")
        .uses("pay", 3_500, {}, "done")
        .agent(5_000, 6_000, "Done.")
    )
    turns = entries_of(
        feed.evaluator._calls["call"], metrics_of=lambda turn: MEASURED if turn == 1 else NOTHING
    )
    assert measured(turns) == [
        ("user", "", {"convai_asr_trailing_service_latency": 0.2}),
        ("agent", "calls", {"convai_llm_tool_request_generation_latency": 1.25}),
        ("agent", "", {"convai_llm_service_ttfb": 1.5}),
    ]
    (used,) = [turn for turn in turns if turn.llm_usage is not None]
    assert used.message == "Done."
    assert used.llm_usage is not None
    usage = {model: each.model_dump() for model, each in used.llm_usage.model_usage.items()}
    assert {model: [each[kind]["tokens"] for kind in each] for model, each in usage.items()} == {
        "gpt": [1500, 3, 4, 50],
        "unknown": [1, 0, 0, 2],
    }


def test_numbers_move_to_the_entry_that_is_there(feed: TranscriptFeed) -> None:
    (
        feed.agent(0, 500, "Welcome.")
        .caller(1_000, 2_000, "Book both", "Book both")
        .uses("book", 2_500, {}, "done")
        .uses("pay", 3_500, {}, "done")
    )
    turns = entries_of(feed.evaluator._calls["call"], metrics_of=lambda _turn: MEASURED)
    everything = {
        "convai_llm_service_ttfb": 1.5,
        "convai_llm_tool_request_generation_latency": 1.25,
    }
    assert measured(turns) == [
        ("agent", "", everything),  # the greeting has no calls, and no caller
        ("user", "", {"convai_asr_trailing_service_latency": 0.2}),
        ("agent", "calls", everything),
    ]
    assert [turn.tool_calls != () for turn in turns if turn.llm_usage is not None] == [False, True]


def test_a_call_of_nothing_has_no_turns(feed: TranscriptFeed) -> None:
    feed.send("audit", {"type": "call_started"}, 0)
    assert feed.closed() == []


def _small(
    monkeypatch: pytest.MonkeyPatch, most_bytes: int
) -> Callable[[], tuple[bytes | None, Any]]:
    monkeypatch.setattr(transcript_module, "MAX_TRANSCRIPT_BYTES", most_bytes)
    feed = (
        TranscriptFeed()
        .agent(0, 500, "Welcome.")
        .caller(1_000, 2_000, "Book it", "Book it")
        .uses("book", 2_500, {"seat": "x" * 2_000}, {"seat": "y" * 3_000})
        .uses("pay", 3_500, {"by": "card"}, "done")
    )

    def close() -> tuple[bytes | None, Any]:
        feed.advance(END_MS)
        assert feed.call().state == "closed", "the call closes in any case"
        return next(iter(transcripts_of(feed.effects)), None), feed.counts(
            "callgauge_limits_hit_total"
        )

    return close


def test_long_values_of_tools_are_left_out_where_they_make_it_too_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    value, hits = _small(monkeypatch, 20_000)()
    assert value is not None
    assert (len(value) > 7_000, hits) == (True, {}), "with them it is small enough"
    value, hits = _small(monkeypatch, 5_000)()
    assert (value is not None, hits) == (True, {})
    tools = [
        each
        for turn in json.loads(value or b"")
        for each in (*turn["tool_calls"], *turn["tool_results"])
    ]
    assert [each.get("params_as_json", each.get("result_value")) for each in tools] == [
        '{"left_out_characters":2011}',
        '{"left_out_characters":3011}',
        '{"by":"card"}',
        "done",
    ]
    assert tools[0]["tool_details"]["parameters"] == tools[0]["params_as_json"]


def test_a_transcript_that_is_too_large_in_any_case_is_not_written_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    value, hits = _small(monkeypatch, 500)()
    assert (value, hits) == (None, {("transcript",): 1})


def test_the_bound_is_what_kafka_takes() -> None:
    turns = [TranscriptTurn(role="user", message="x" * 10_000, time_in_call_secs=0)] * 90
    assert transcript_bytes(turns) is not None
    assert transcript_bytes([*turns, *turns]) is None


def test_calls_have_transcripts_only_where_they_are_wanted() -> None:
    feed = Feed().heard("Hello", 0).advance(END_MS)
    assert (feed.call().state, transcripts_of(feed.effects)) == ("closed", [])


# -- what only a transcript shows
# ---------------------------------------------------------------------------------------

RAG: Json = {
    "chunks": [{"document_id": "fares", "chunk_id": "fares-7", "vector_distance": 0.25}],
    "embedding_model": "e5",
    "retrieval_query": "fee of SECRET",
    "rag_latency_secs": 0.2,
}


def details(feed: TranscriptFeed, at_ms: int, source: str = "audit", **fields: object) -> None:
    feed.send(source, {"type": "turn_details", **fields}, at_ms)


def two_turns(feed: TranscriptFeed) -> None:
    """The agent answers at 3 and at 8 s."""
    (
        feed.agent(0, 500, "Welcome.", "Welcome.")
        .caller(1_000, 2_000, "Any fee?", "Any fee?")
        .agent(3_000, 4_000, "None.", "None.")
        .caller(5_000, 6_000, "Book it", "Book it")
        .uses("book", 6_500, {}, "ok")
        .agent(8_000, 9_000, "Booked.", "Booked.")
    )


def told(turns: list[Json], field: str) -> dict[str, Any]:
    """By message, or by what the entry has of tools, the field of entries that have it."""
    names = {"tool_calls": "calls", "tool_results": "results"}
    found = {}
    for turn in turns:
        name = turn["message"] or next(name for key, name in names.items() if turn[key])
        value = (
            (turn["agent_metadata"] or {}).get(field)
            if field == "workflow_node_id"
            else turn[field]
        )
        if value is not None:
            found[name] = value
    return found


@pytest.mark.parametrize("source", ["audit", "pipecat", "user_sim"])
def test_a_bot_tells_what_it_retrieved_and_which_model_answered(
    feed: TranscriptFeed, source: str
) -> None:
    """Of the turn in which the time lies, on its answer, whatever topic has it."""
    two_turns(feed)
    details(feed, 2_200, source, rag_retrieval_info=RAG | {"of_ours": 1}, llm_override="gpt-5")
    turns = feed.closed()
    assert told(turns, "rag_retrieval_info") == {"None.": RAG}
    assert told(turns, "llm_override") == {"None.": "gpt-5"}
    for turn in turns:
        assert SdkTurn.model_validate(turn).model_extra == {}


@pytest.mark.parametrize("backwards", [False, True])
def test_of_several_details_of_a_turn_the_last_counts_in_any_order(
    feed: TranscriptFeed, backwards: bool
) -> None:
    two_turns(feed)
    given = [(6_100, "first"), (6_300, "second"), (6_200, "third"), (6_300, "Second")]
    for at_ms, model in reversed(given) if backwards else given:
        details(feed, at_ms, llm_override=model)
    assert told(feed.closed(), "llm_override") == {"Booked.": "second"}


def test_feedback_is_about_the_newest_answer_by_then_or_the_one_that_it_names(
    feed: TranscriptFeed,
) -> None:
    two_turns(feed)
    details(feed, 5_500, feedback={"score": "like"})  # while the caller speaks again
    details(feed, 12_000, feedback={"score": "dislike"}, turn_at=T0_MS + 9_000)
    assert told(feed.closed(), "feedback") == {
        "None.": {"score": "like", "time_in_call_secs": 5},
        "Booked.": {"score": "dislike", "time_in_call_secs": 12},
    }


def test_a_node_of_the_workflow_holds_until_the_next_one(feed: TranscriptFeed) -> None:
    two_turns(feed)
    details(feed, 2_500, workflow_node_id="fares")
    details(feed, 7_500, workflow_node_id="booking")
    found = told(feed.closed(), "workflow_node_id")
    assert found == {"None.": "fares", "calls": "fares", "results": "fares", "Booked.": "booking"}


def test_a_turn_of_tools_alone_has_its_details_on_their_calls(feed: TranscriptFeed) -> None:
    (
        feed.agent(0, 500, "Welcome.", "Welcome.")
        .caller(1_000, 2_000, "Book it", "Book it")
        .uses("book", 2_500, {}, "ok")
    )
    details(feed, 2_200, rag_retrieval_info=RAG)
    assert told(feed.closed(), "rag_retrieval_info") == {"calls": RAG}


def test_details_of_a_call_of_nothing_and_before_everything_do_no_harm(
    feed: TranscriptFeed,
) -> None:
    details(
        feed,
        100,
        feedback={"score": "like"},
        llm_override="m",
        rag_retrieval_info=RAG,
        workflow_node_id="n",
    )
    assert feed.closed() == []
    feed = TranscriptFeed()
    details(feed, 100, feedback={"score": "like"}, llm_override="m", turn_at=5)
    two_turns(feed)
    turns = feed.closed()
    assert (told(turns, "llm_override"), list(told(turns, "feedback"))) == (
        {"Welcome.": "m"},
        ["Welcome."],
    )


def test_details_are_redacted(feed: TranscriptFeed) -> None:
    two_turns(feed)
    details(
        feed,
        2_200,
        rag_retrieval_info=RAG | {"retrieval_query": "mail jane@example.com"},
        llm_override="jane@example.com",
    )
    turns = feed.closed()
    assert "jane" not in json.dumps(turns)
    assert told(turns, "rag_retrieval_info")["None."]["chunks"] == RAG["chunks"]


def test_details_have_a_bound_that_is_counted(
    feed: TranscriptFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_module, "MAX_DETAILS", 1)
    two_turns(feed)
    details(feed, 6_200, llm_override="later")
    details(feed, 2_200, llm_override="earlier")
    assert told(feed.closed(), "llm_override") == {"None.": "earlier"}
    assert Count("callgauge_limits_hit_total", ("turn_details",)) in feed.effects


def test_a_transcript_that_is_too_large_loses_long_lists_of_what_was_retrieved(
    feed: TranscriptFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_turns(feed)
    details(feed, 2_200, rag_retrieval_info=RAG | {"chunks": RAG["chunks"] * 100})
    details(feed, 6_200, rag_retrieval_info=RAG)
    monkeypatch.setattr(transcript_module, "MAX_TRANSCRIPT_BYTES", 6_000)
    assert told(feed.closed(), "rag_retrieval_info") == {"Booked.": RAG}
