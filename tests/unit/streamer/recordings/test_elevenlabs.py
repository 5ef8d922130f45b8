"""The record of a conversation with an ElevenLabs agent, read from a file in the released and in
older formats.
"""

import gzip
import json
from collections import deque
from pathlib import Path
from typing import Any

import pytest
from elevenlabs import GetConversationResponseModel
from msgspec import to_builtins

from consumers.engine.limits import GoalRules, Limits
from schemas.events.elevenlabs import ConversationRecord
from schemas.rows import CallRow, TurnRow
from streamer.offline.contexts import context_of, folded_recording
from streamer.offline.scoring import RecordedScoring, ScoringPlan
from streamer.recordings.files import RecordedCall, RecordingError
from streamer.recordings.reader import read_recordings
from streamer.sources.replay import in_time_order, renamed, shifted, with_control_events
from tests.support.calls.rows_of_calls import call_of, tools_of, turns_of
from tests.support.fakes.engine_feed import plain
from tests.support.webhooks import as_spans

Json = dict[str, Any]
START_S = 1_790_000_000
START_MS = START_S * 1_000


def entry(
    role: str, message: str | None, secs: int, made_ms: int | None = None, **more: Any
) -> Json:
    made = {} if made_ms is None else {"created_at_unix_ms": START_MS + made_ms}
    return {"role": role, "message": message, "time_in_call_secs": secs} | made | more


def waited(seconds: float) -> Json:
    inner = {"convai_ttf_audio_since_silence": {"elapsed_time": seconds}}
    return {"conversation_turn_metrics": {"metrics": inner, "convai_asr_provider": "scribe"}}


CALL = {
    "type": "webhook",
    "request_id": "r1",
    "tool_name": "find_badge",
    "params_as_json": '{"id": 7}',
    "tool_has_been_called": True,
}
RESULT = {
    "type": "webhook",
    "request_id": "r1",
    "tool_name": "find_badge",
    "result_value": '{"status": "ok"}',
    "is_error": False,
    "tool_has_been_called": True,
    "tool_latency_secs": 0.8,
}
TALK = (
    entry("agent", "Welcome.", 0),
    entry("user", "I lost my badge", 5),
    entry("agent", None, 6, tool_calls=[CALL]),
    entry("agent", None, 7, tool_results=[RESULT]),
    entry("agent", "I found", 8, original_message="I found it", interrupted=True, **waited(2.35)),
    entry("user", "Great", 12),
    entry("agent", "Goodbye", 13),
)


def released(*entries: Json, **more: Any) -> Json:
    """A record as GET returns it today, built and written by the package's own models."""
    facts = {
        "has_audio": True,
        "has_user_audio": True,
        "has_response_audio": True,
        "has_auxiliary_audio": False,
    }
    metadata = {
        "start_time_unix_secs": START_S,
        "call_duration_secs": 30,
        "termination_reason": "client ended",
    }
    identity = {"agent_id": "agent_1", "conversation_id": "conv_1", "status": "done"}
    model = GetConversationResponseModel.model_validate(
        identity | facts | {"metadata": metadata, "transcript": list(entries)} | more
    )
    written: Json = json.loads(model.model_dump_json())
    return written


def stored(path: Path, document: object) -> Path:
    path.write_text(json.dumps(document))
    return path


def read(path: Path) -> RecordedCall:
    (call,) = read_recordings(path)
    return call


def finals(call: RecordedCall, seed: int | None = None) -> tuple[dict[int, TurnRow], CallRow]:
    """The newest rows of the turns, and of the call."""
    plan = ScoringPlan(Limits(), GoalRules(), "test", seed)
    scoring = RecordedScoring(with_control_events(call), plan, None)
    deque(scoring.run(), maxlen=0)
    assert scoring.refused == []
    return turns_of(scoring.rows), call_of(scoring.rows)


def latency_of(row: TurnRow) -> tuple[object, str | None]:
    assert row.wait_ms is not None
    return plain(row.wait_ms), row.anchor and row.anchor.value


def test_a_record_of_today_becomes_a_call_like_any_other(tmp_path: Path) -> None:
    call = read(stored(tmp_path / "call.json", released(*TALK)))
    assert (call.conversation_id, call.conversation_ended_reason) == ("conv_1", "client ended")
    turns, row = finals(call)
    assert set(turns) == {0, 1, 2}
    assert latency_of(turns[1]) == (2_350.0, "record")
    assert latency_of(turns[2]) == ("times_unknown", "estimated")
    (use,) = turns[1].tools
    assert (use.tool, use.outcome, use.duration_ms) == ("find_badge", "success", 800)
    assert turns[2].interruptions == ("user",)
    assert (row.ended_reason, row.turns, row.labels.agent) == ("client ended", 2, "agent_1")


def test_a_record_that_comes_as_spans_is_the_same_call(tmp_path: Path) -> None:
    tokens = {
        "input": {"tokens": 812, "price": 0.0004},
        "output_total": {"tokens": 24, "price": 1.5e-05},
    }
    used: Json = {"llm_usage": {"model_usage": {"gemini-2.5-flash": tokens}}}
    talk = [
        entry("agent", "Welcome.", 0),
        entry("user", "I lost my badge", 5),
        entry("agent", None, 6, tool_calls=[CALL], tool_results=[RESULT]),
        entry("agent", "I found it", 8, **waited(2.35), **used),
        entry("user", "Great", 12),
        entry(
            "agent",
            "Goodbye",
            13,
            conversation_turn_metrics={
                "metrics": {"convai_llm_service_ttfb": {"elapsed_time": 0.25}}
            },
        ),
    ]
    record = released(*talk)
    spans = {name: record[name] for name in ("agent_id", "conversation_id")} | {
        "otlp_traces": as_spans(record)
    }
    webhook = {
        "type": "post_call_transcription_otel",
        "event_timestamp": START_S + 60,
        "data": spans,
    }
    ours, theirs = (read(stored(tmp_path / "call.json", each)) for each in (webhook, record))
    assert (ours.conversation_id, ours.conversation_ended_reason) == ("conv_1", "client ended")
    *turns, row = said_at_the_end(ours)
    *their_turns, their_row = said_at_the_end(theirs)
    assert turns == their_turns
    # a record is one event, spans are several, and a trace has an id
    of_its_form = {"events", "traceparent"}
    assert {
        name: row.get(name) for name in {**row, **their_row} if row.get(name) != their_row.get(name)
    }.keys() <= of_its_form
    (last,) = [event for event in ours.agent or () if "transcript" in event]
    assert [each["llm_usage"] for each in last["transcript"] if each["llm_usage"]] == [
        used["llm_usage"]
    ]
    assert "otlp_traces" not in last
    both = read(stored(tmp_path / "call.json", {**record, "otlp_traces": as_spans(record)}))
    assert both.agent == theirs.agent, "where it has entries, they are better"
    broken: tuple[Json, ...] = (
        {"resourceSpans": 5},
        {"resourceSpans": [{"scopeSpans": [{"spans": [{}]}]}]},
    )
    for traces in broken:
        with pytest.raises(RecordingError, match="otlp_traces"):
            read(stored(tmp_path / "call.json", {**spans, "otlp_traces": traces}))


def test_times_to_the_millisecond_give_an_estimate_and_its_error(tmp_path: Path) -> None:
    talk = [
        entry("agent", "Welcome.", 0, 400),
        entry("user", "My badge", 5, 5_100),
        entry("agent", "Yes?", 6, 6_350, **waited(1.9)),
        entry("user", "Bye", 9, 9_000),
        entry("agent", "Bye.", 10, 9_800),
    ]
    turns, _ = finals(read(stored(tmp_path / "call.json", released(*talk))))
    assert latency_of(turns[1]) == (1_900.0, "record")
    assert latency_of(turns[2]) == (800.0, "estimated")
    first, second = turns[1], turns[2]
    assert first.estimate_error is not None
    assert (first.estimate_error.error_ms, first.estimate_error.estimated_ms) == (-650.0, 1_250.0)
    assert second.estimate_error is None


FIFTEEN = (
    "agent_metadata",
    "multivoice_message",
    "tool_calls",
    "tool_results",
    "feedback",
    "llm_override",
    "conversation_turn_metrics",
    "rag_retrieval_info",
    "llm_usage",
    "interrupted",
    "original_message",
    "source_medium",
)


def seed_entry(values: Json) -> Json:
    """An entry with the fifteen fields of the older releases and no other."""
    return (
        dict.fromkeys(FIFTEEN)
        | {"tool_calls": [], "tool_results": [], "interrupted": False}
        | values
    )


@pytest.mark.parametrize("shape", ["record", "webhook", "list"])
def test_the_fifteen_fields_of_older_releases(tmp_path: Path, shape: str) -> None:
    entries = [seed_entry(each) for each in TALK]
    whole: Json = {
        "conversation_id": "conv_1",
        "metadata": {"start_time_unix_secs": START_S, "call_duration_secs": 30},
        "transcript": entries,
    }
    webhook = {"type": "post_call_transcription", "event_timestamp": START_S + 60, "data": whole}
    document: object = {"record": whole, "webhook": webhook, "list": entries}[shape]
    call = read(stored(tmp_path / "conv_1.json", document))
    assert call.conversation_id == "conv_1"
    turns, _ = finals(call)
    assert latency_of(turns[1]) == (2_350.0, "record")
    assert set(turns) == {0, 1, 2}


def test_shapes_before_that(tmp_path: Path) -> None:
    """Metrics lack the level `metrics`, null replaces today's lists, and entries have only speaker,
    text and time.
    """
    old = {"tool_calls": None, "tool_results": None, "feedback": None}
    metrics = {
        "convai_ttf_audio_since_silence": {"elapsed_time": 1.25},
        "convai_llm_service_ttfb": {"elapsed_time": 0.5},
    }
    talk = [
        entry("agent", "Welcome.", 0, **old),
        entry("user", "My badge", 5, **old, conversation_turn_metrics=None),
        entry("agent", "Yes?", 6, **old, conversation_turn_metrics=metrics),
    ]
    turns, _ = finals(read(stored(tmp_path / "call.json", {"transcript": talk, "status": "done"})))
    assert latency_of(turns[1]) == (1_250.0, "record")


def test_keys_and_words_of_later_releases(tmp_path: Path) -> None:
    talk = [{**each, "mood": "odd", "source_medium": "hologram"} for each in TALK]
    document = released(*TALK) | {
        "transcript": talk,
        "status": "embalmed",
        "aura": {"colour": "blue"},
    }
    call = read(stored(tmp_path / "call.json", document))
    typed = ConversationRecord.model_validate({**document, "timestamp": 0})
    assert typed.model_extra is None
    assert typed.is_final
    assert latency_of(finals(call)[0][1]) == (2_350.0, "record")


def test_a_silent_turn_and_a_sound_that_took_none(tmp_path: Path) -> None:
    talk = [
        entry("agent", "Welcome.", 0),
        entry("user", "...", 5),
        entry("agent", "Are you there?", 6, **waited(9.0)),
        entry("user", "Mhm", 7, ignored_as_backchannel=True),
        entry("user", "Yes", 9),
        entry("agent", "Good.", 10, **waited(1.1)),
    ]
    turns, _ = finals(read(stored(tmp_path / "call.json", released(*talk))))
    assert set(turns) == {0, 1}
    assert latency_of(turns[1]) == (1_100.0, "record")


def test_a_call_in_text_has_turns_and_no_latency(tmp_path: Path) -> None:
    text: Json = {
        "conversation_turn_metrics": {
            "metrics": {"convai_llm_service_ttfb": {"elapsed_time": 0.4}}
        },
        "source_medium": "text",
    }
    talk = [entry("user", "Hi", 0, source_medium="text"), entry("agent", "Hello.", 1, **text)]
    turns, _ = finals(read(stored(tmp_path / "call.json", released(*talk))))
    assert latency_of(turns[1]) == ("times_unknown", "estimated")
    assert [(each.stage, each.latency_ms) for each in turns[1].stages] == [
        ("llm_first_token", 400.0)
    ]


def test_tools_without_ids_are_paired_in_their_order(tmp_path: Path) -> None:
    calls = [
        {"tool_name": "find", "params_as_json": "no json"},
        {"tool_name": "find", "params_as_json": None},
    ]
    results: list[Json] = [
        {
            "tool_name": "find",
            "result_value": "4A",
            "tool_latency_secs": 0.5,
            "tool_has_been_called": True,
        },
        {"tool_name": "find", "result_value": "gone", "is_error": True, "tool_latency_secs": None},
    ]
    talk = [
        entry("user", "Hi", 2),
        entry("agent", None, 3, tool_calls=calls),
        entry("agent", "So.", 6, tool_results=results),
    ]
    call = read(stored(tmp_path / "call.json", talk))
    plan = ScoringPlan(Limits(), GoalRules(), "test", None)
    scoring = RecordedScoring(with_control_events(call), plan, None)
    deque(scoring.run(), maxlen=0)
    uses = tools_of(scoring.rows)
    assert [(use.outcome, use.duration_ms) for use in uses] == [("success", 500), ("error", None)]


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(
            {"conversation_id": "c1", "agent_id": "a1", "transcript": []}, id="nobody spoke"
        ),
        pytest.param(
            {
                "type": "post_call_transcription",
                "data": {"conversation_id": "c1", "agent_id": "a1", "transcript": None},
            },
            id="excluded",
        ),
    ],
)
def test_a_record_without_entries_is_a_call_without_turns(tmp_path: Path, document: Json) -> None:
    call = read(stored(tmp_path / "call.json", document))
    assert call.conversation_id == "c1"
    scoring = RecordedScoring(
        with_control_events(call), ScoringPlan(Limits(), GoalRules(), "test", None), None
    )
    deque(scoring.run(), maxlen=0)
    assert call_of(scoring.rows).turns == 0


def test_several_voices_are_one_answer(tmp_path: Path) -> None:
    parts = {
        "parts": [{"text": "Once upon", "voice_label": "a"}, {"text": "a time", "voice_label": "b"}]
    }
    call = read(
        stored(
            tmp_path / "call.json",
            [entry("user", "Hi", 1), entry("agent", None, 2, multivoice_message=parts)],
        )
    )
    assert call.agent is not None
    assert [
        event["agent_response_event"]["agent_response"]
        for event in call.agent
        if event.get("type") == "agent_response"
    ] == ["Once upon a time"]


def test_its_events_are_in_order_and_none_is_lost(tmp_path: Path) -> None:
    call = read(stored(tmp_path / "call.json", released(*TALK)))
    events = list(in_time_order(call))
    assert [event.event_name for event in events if event.is_agent_event] == [
        "conversation_initiation_metadata",
        "agent_response",
        "user_transcript",
        "agent_tool_request",
        "agent_tool_response_full_payload",
        "agent_response",
        "agent_response_correction",
        "interruption",
        "user_transcript",
        "agent_response",
        "conversation_record",
    ]
    times_ms = [event.time_ms for event in events]
    assert times_ms == sorted(times_ms)
    assert (times_ms[0], times_ms[-1]) == (START_MS, START_MS + 30_000)


def said_at_the_end(call: RecordedCall, seed: int | None = None) -> list[Json]:
    """The newest rows without what says when and where they were written, and turns without labels,
    which are as known then.
    """
    turns, row = finals(call, seed)
    moment = {"known_ms", "first_known_ms", "revision", "news", "first_place", "last_place"}
    return [
        {name: part for name, part in to_builtins(each).items() if name not in moment | of}
        for each, of in (*((turn, {"labels"}) for turn in turns.values()), (row, set()))
    ]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_read_in_any_order_it_has_the_same_scores(tmp_path: Path, seed: int) -> None:
    call = read(stored(tmp_path / "call.json", released(*TALK)))
    assert said_at_the_end(call, seed) == said_at_the_end(call)


def test_its_context_has_its_turns_and_eva_s_own_has_none(tmp_path: Path) -> None:
    recorded = next(read_recordings(stored(tmp_path / "call.json", released(*TALK))))
    context = context_of(recorded)
    assert (context.refused, context.turns_by) == ((), "bot")
    assert context.values["conversation_trace"][0]["content"] == "Welcome."
    assert context.values["conversation_ended_reason"] == "client ended"
    assert folded_recording(recorded)[0].eva_context().conversation_trace == []


def test_moved_to_another_time_and_under_another_id(tmp_path: Path) -> None:
    call = read(
        stored(
            tmp_path / "call.json",
            released(entry("user", "Hi", 1, 1_200), entry("agent", "Hello.", 2, 2_100)),
        )
    )
    moved = renamed(shifted(call, 3_600), "other")
    assert moved.agent is not None
    *_, last = moved.agent
    assert (last["conversation_id"], last["timestamp"]) == ("other", START_MS + 3_630_000)
    assert last["metadata"]["start_time_unix_secs"] == START_S + 3_600
    assert [each["created_at_unix_ms"] for each in last["transcript"]] == [
        START_MS + 3_601_200,
        START_MS + 3_602_100,
    ]
    assert latency_of(finals(moved)[0][1]) == (900.0, "estimated")


def test_a_live_capture_is_a_stream_of_a_wire_level_call(tmp_path: Path) -> None:
    call = read(stored(tmp_path / "call.json", released(*TALK)))
    line = {"id": "captured", "agent": call.agent}
    path = tmp_path / "calls.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(line).encode()))
    captured = read(path)
    assert captured.agent == call.agent
    assert latency_of(finals(captured)[0][1]) == (2_350.0, "record")


@pytest.mark.parametrize(
    ("document", "seen"),
    [
        ({"transcript": [{"message_type": "user", "value": "Hi"}]}, "no `type`, with transcript"),
        ({"conversations": [], "has_more": False}, "no `type`, with conversations, has_more"),
        ([], "an empty list"),
        ("text", "a text"),
        ({"data": {"transcript": []}}, "no `type`, with data"),
        ({"type": "post_call_audio", "data": {"conversation_id": "c"}}, "post_call_audio"),
    ],
)
def test_other_documents_are_refused_in_a_sentence(
    tmp_path: Path, document: object, seen: str
) -> None:
    with pytest.raises(RecordingError) as caught:
        read(stored(tmp_path / "call.json", document))
    assert caught.value.seen == seen


@pytest.mark.parametrize("transcript", [{"transcript": []}, {"transcript": None}, {}])
@pytest.mark.parametrize("wraps", [False, True])
def test_a_call_in_which_nobody_spoke_has_no_turns(
    tmp_path: Path, transcript: Json, *, wraps: bool
) -> None:
    record = {key: value for key, value in released().items() if key != "transcript"} | transcript
    document = (
        {"type": "post_call_transcription", "event_timestamp": START_S, "data": record}
        if wraps
        else record
    )
    call = read(stored(tmp_path / "call.json", document))
    assert [event.get("type") for event in call.agent or ()] == [
        "conversation_initiation_metadata",
        None,
    ]
    turns, row = finals(call)
    assert (turns, row.state) == ({}, "closed")


def test_a_folder_of_webhooks_is_read_past_those_without_a_call(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored(
        tmp_path / "a.json",
        {"type": "post_call_audio", "data": {"conversation_id": "c", "full_audio": "UklGRg=="}},
    )
    stored(
        tmp_path / "b.json",
        {"type": "call_initiation_failure", "data": {"conversation_id": "c", "metadata": {}}},
    )
    stored(tmp_path / "c.json", {"type": "post_call_transcription", "data": released(*TALK)})
    assert [call.agent is not None for call in read_recordings(tmp_path)] == [True]
    told = capsys.readouterr().err
    assert "a.json: a webhook of the type 'post_call_audio' holds no call" in told
    assert "'call_initiation_failure'" in told


def test_an_entry_of_another_type_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordingError) as caught:
        read(
            stored(
                tmp_path / "call.json",
                released(*TALK)
                | {"transcript": [entry("user", "Hi", 1), {"role": "agent", "message": 5}]},
            )
        )
    assert caught.value.where.endswith("call.json: transcript.1.message")


def transcript_of(call: RecordedCall) -> list[Json]:
    """The transcript that is written at the call's close."""
    plan = ScoringPlan(Limits(), GoalRules(), "test", None, writes_transcripts=True)
    scoring = RecordedScoring(with_control_events(call), plan, None)
    deque(scoring.run(), maxlen=0)
    assert scoring.transcript is not None
    turns: list[Json] = json.loads(scoring.transcript)
    return turns


@pytest.mark.parametrize(
    "after",
    [(), (entry("user", "...", 12),), (entry("user", "Mhm", 12, ignored_as_backchannel=True),)],
)
def test_a_caller_who_cuts_off_and_hangs_up_has_no_further_turn(
    tmp_path: Path, after: tuple[Json, ...]
) -> None:
    talk = [
        entry("user", "Hi", 1),
        entry("agent", "It is", 2, original_message="It is a long story", interrupted=True),
    ]
    call = read(stored(tmp_path / "call.json", released(*talk, *after)))
    turns, row = finals(call)
    assert row.turns == 1
    assert 2 not in turns
    _, answer, *_ = transcript_of(call)
    assert (answer["message"], answer["original_message"], answer["interrupted"]) == (
        "It is",
        "It is a long story",
        True,
    )


def test_stages_of_a_record_are_elevenlabs_own(tmp_path: Path) -> None:
    measured = {
        "convai_asr_trailing_service_latency": {"elapsed_time": 0.15},
        "convai_ttf_audio_since_silence": {"elapsed_time": 2.35},
    }
    talk = [
        entry("user", "My badge", 5, 5_100),
        entry("agent", None, 6, 6_000, tool_calls=[CALL]),
        entry("agent", None, 7, 6_900, tool_results=[RESULT]),
        entry("agent", "Yes?", 8, 7_500, conversation_turn_metrics={"metrics": measured}),
    ]
    turns, _ = finals(read(stored(tmp_path / "call.json", released(*talk))))
    stages = turns[1].stages
    assert {each.stage: (each.source, each.anchor, each.latency_ms) for each in stages} == {
        "stt_trailing": ("elevenlabs", "record", 150.0),
        "tool_run": ("elevenlabs", None, 800.0),
        "voice_to_voice": ("elevenlabs", "record", 2_350.0),
    }


def test_a_packed_record_and_a_folder_of_records(tmp_path: Path) -> None:
    nameless = [seed_entry(each) for each in TALK]
    (tmp_path / "call_2.json.gz").write_bytes(gzip.compress(json.dumps(nameless).encode()))
    stored(tmp_path / "call_1.json", released(*TALK))
    stored(tmp_path / "._call_1.json", "of the file system")
    (tmp_path / "notes.txt").write_text("no record")
    assert read(tmp_path / "call_2.json.gz").conversation_id == "call_2"
    assert [call.conversation_id for call in read_recordings(tmp_path)] == ["conv_1", "call_2"]


def test_a_folder_with_another_document_is_refused_when_it_comes_to_that(tmp_path: Path) -> None:
    stored(tmp_path / "a.json", released(*TALK))
    stored(tmp_path / "b.json", {"model": {}})
    calls = read_recordings(tmp_path)
    assert next(calls).conversation_id == "conv_1"
    with pytest.raises(RecordingError, match=r"b\.json"):
        next(calls)


@pytest.mark.parametrize(
    ("packed", "seen"),
    [
        (b"{}", "Not a gzipped file"),
        (gzip.compress(b'{"a": 1}')[:-6], "ended before"),
        (gzip.compress(b"[" + b" " * 2_000), "more, unpacked"),
    ],
    ids=["not packed", "cut off", "too large"],
)
def test_a_packed_record_that_cannot_be_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bytes, seen: str
) -> None:
    monkeypatch.setattr("streamer.recordings.elements.MAX_DOCUMENT_BYTES", 1_000)
    (tmp_path / "call.json.gz").write_bytes(packed)
    with pytest.raises(RecordingError, match=seen):
        read(tmp_path / "call.json.gz")
