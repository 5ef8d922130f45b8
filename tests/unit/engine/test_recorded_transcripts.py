"""The transcript of a call of which ElevenLabs has a record: it keeps the record's content, without
personal data.
"""

import json
from typing import Any

import pytest
from elevenlabs.types import ConversationHistoryTranscriptResponseModel as SdkTurn

from consumers.engine import transcripts as from_record
from consumers.engine.effects import Effect
from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.limits import Limits
from consumers.engine.redaction.redactor import Redactor
from consumers.engine.transcripts import RecordedTranscript, transcript_bytes
from schemas.events.elevenlabs import ConversationRecord
from schemas.redaction import RedactionRules
from tests.support.calls.agent_calls import (
    arrivals_of,
    entry,
    heard,
    metrics,
    record,
    said,
    tool_replied,
    tool_requested,
)
from tests.support.fakes.engine_feed import Json, transcripts_of
from tests.unit.schemas.test_transcript import KEYS

END_MS = 1_790_000_000_000 + 24 * 3_600_000
NODE: Json = {
    "agent_metadata": {"agent_id": "agent_7", "workflow_node_id": "node_2", "branch_id": "b"}
}
RAG: Json = {
    "chunks": [{"document_id": "d1", "chunk_id": "k1", "vector_distance": 0.25}],
    "embedding_model": "e5",
    "retrieval_query": "badge",
    "rag_latency_secs": 0.2,
}
CALL: Json = {
    "type": "webhook",
    "request_id": "call_1",
    "tool_name": "find",
    "params_as_json": '{ "id":7 }',
    "tool_has_been_called": True,
    "tool_details": {
        "type": "webhook",
        "method": "GET",
        "url": "https://example.com/find",
        "headers": {"Key": "secret"},
    },
}
UPDATE: Json = {
    "variable_name": "badge",
    "old_value": None,
    "new_value": "7",
    "updated_at": 1.5,
    "tool_name": "find",
    "tool_request_id": "call_1",
}
RESULT: Json = {
    "type": "webhook",
    "request_id": "call_1",
    "tool_name": "find",
    "result_value": '{ "ok":true }',
    "is_error": False,
    "tool_has_been_called": True,
    "tool_latency_secs": 0.8,
    "dynamic_variable_updates": [UPDATE],
}


def transcript(*entries: Json, redacts: bool = True, **more: Any) -> list[Json]:
    """The transcript of a record with these entries."""
    typed = ConversationRecord.model_validate(record(*entries, **more))
    redactor = Redactor(RedactionRules(enabled=redacts))
    written = RecordedTranscript("c", typed.transcript, typed.agent_id or "desk", redactor)
    value = transcript_bytes([turn for turn in written if turn is not None])
    assert value is not None
    turns: list[Json] = json.loads(value)
    assert all(list(turn) == KEYS for turn in turns)
    return turns


@pytest.mark.parametrize(
    ("role", "field", "value"),
    [
        (
            "agent",
            "multivoice_message",
            {"parts": [{"text": "Hi", "voice_label": "Bo", "time_in_call_secs": 1}]},
        ),
        ("agent", "feedback", {"score": "like", "time_in_call_secs": 9}),
        ("agent", "llm_override", "gpt-5"),
        ("agent", "rag_retrieval_info", RAG),
        ("user", "source_medium", "text"),
        ("user", "source_medium", None),
        ("agent", "interrupted", True),
        ("agent", "original_message", "I found it there."),
        ("agent", "message", None),
        ("agent", "conversation_turn_metrics", None),
        ("agent", "conversation_turn_metrics", {"metrics": {}}),
    ],
)
def test_an_entry_keeps_what_the_record_has(role: str, field: str, value: Any) -> None:
    (turn,) = transcript({**entry(role, "Found."), field: value})
    assert turn[field] == value
    assert SdkTurn.model_validate(turn).model_extra == {}


def test_the_agent_s_node_in_the_workflow_stays() -> None:
    user, agent, plain = transcript(
        entry("user", "Hi"), entry("agent", "Yes?", **NODE), entry("agent", "So?")
    )
    assert agent["agent_metadata"] == {"agent_id": "agent_7", "workflow_node_id": "node_2"}
    assert plain["agent_metadata"] == {"agent_id": "agent-1", "workflow_node_id": None}
    assert user["agent_metadata"] is None


def test_tools_keep_their_ids_types_details_texts_and_updates() -> None:
    called, answered = transcript(
        entry("agent", None, 6, tool_calls=[CALL]), entry("agent", None, 8, tool_results=[RESULT])
    )
    assert called["tool_calls"] == [
        CALL | {"tool_details": {**CALL["tool_details"], "headers": {"Key": "[HEADER]"}}}
    ]
    assert (answered["tool_results"], answered["time_in_call_secs"]) == ([RESULT], 8)
    for turn in (called, answered):
        assert SdkTurn.model_validate(turn).model_extra == {}


def test_a_webhook_inside_of_the_details_shows_no_header_either() -> None:
    details = {
        "type": "api_integration_webhook",
        "webhook_details": {"method": "GET", "url": "u", "headers": {"K": "secret"}},
    }
    (turn,) = transcript(entry("agent", None, tool_calls=[CALL | {"tool_details": details}]))
    assert "secret" not in json.dumps(turn)


def test_tools_without_ids_belong_together_in_order() -> None:
    call = {"tool_name": "find", "params_as_json": "{}"}
    first, second = transcript(
        entry("agent", None, tool_calls=[call, call]),
        entry("agent", None, tool_results=[{"tool_name": "find"}]),
    )
    ids = [each["request_id"] for each in first["tool_calls"]]
    assert [each["request_id"] for each in second["tool_results"]] == ids[:1]
    assert len(set(ids)) == 2
    assert [each["tool_has_been_called"] for each in first["tool_calls"]] == [True, False]
    assert [each["tool_details"] for each in first["tool_calls"]] == [
        {"type": "client", "parameters": "{}"}
    ] * 2
    assert first["tool_calls"][0]["type"] == second["tool_results"][0]["type"] == "client"


def test_each_entry_keeps_its_own_metrics_and_tokens() -> None:
    used = {"input": {"tokens": 1_200, "price": 0.1}, "output_total": {"tokens": 50, "price": 0.2}}
    tool = entry(
        "agent",
        None,
        tool_calls=[CALL],
        llm_usage={"model_usage": {"gpt": used}},
        **metrics(tts_service_ttfb=2.1),
    )
    answer = entry(
        "agent", "Yes.", llm_usage={"model_usage": {"gpt": used}}, **metrics(tts_service_ttfb=4.1)
    )
    found = transcript(tool, answer)
    assert [turn["conversation_turn_metrics"]["metrics"] for turn in found] == [
        {"convai_tts_service_ttfb": {"elapsed_time": seconds}} for seconds in (2.1, 4.1)
    ]
    assert [turn["llm_usage"]["model_usage"]["gpt"]["input"] for turn in found] == [
        {"tokens": 1_200, "price": 0.1}
    ] * 2


@pytest.mark.parametrize("fields", [{"tool_latency_secs": None}, {}])
def test_a_latency_that_a_record_lacks_is_elevenlabs_own_default(fields: Json) -> None:
    result = {name: value for name, value in RESULT.items() if name != "tool_latency_secs"} | fields
    (turn,) = transcript(entry("agent", None, tool_results=[result]))
    assert turn["tool_results"][0]["tool_latency_secs"] == 0.0


def live(*events: Json) -> list[Json]:
    """The transcript of a call of which the events came, and no record."""
    evaluator = PartitionEvaluator(Limits(), "test", writes_transcripts=True)
    effects: list[Effect] = []
    for arrival in arrivals_of(events):
        effects += evaluator.receive(arrival)
    effects += evaluator.advance(END_MS)
    (transcript,) = transcripts_of(effects)
    turns: list[Json] = json.loads(transcript)
    for turn in turns:
        assert SdkTurn.model_validate(turn).model_extra == {}
    return turns


@pytest.mark.parametrize("kind", ["webhook", "client", "system", "mcp", "a word of tomorrow"])
def test_tools_of_a_running_agent_keep_id_type_and_parameters(kind: str) -> None:
    """So that they are the same before and after the record of the call comes."""
    called, answered = (
        turn
        for turn in live(
            heard("Where is it?", 1_000, 1),
            tool_requested("find", "call_1", 1_500, tool_type=kind, parameters={"id": 7}),
            tool_replied("find", "call_1", 2_300, tool_type=kind),
            said("There.", 3_000, 2),
        )
        if turn["tool_calls"] or turn["tool_results"]
    )
    (call,), (result,) = called["tool_calls"], answered["tool_results"]
    assert (call["type"], call["request_id"], call["params_as_json"]) == (
        kind,
        "call_1",
        '{"id":7}',
    )
    assert call["tool_details"] == (
        {"type": "client", "parameters": '{"id":7}'} if kind == "client" else None
    )
    assert (result["type"], result["request_id"], result["tool_latency_secs"]) == (
        kind,
        "call_1",
        0.8,
    )


def test_the_type_of_a_tool_is_known_from_any_of_its_events() -> None:
    def kinds(*events: Json) -> list[str]:
        turns = live(heard("Where?", 1_000, 1), *events, said("There.", 3_000, 2))
        return [
            each["type"] for turn in turns for each in (*turn["tool_calls"], *turn["tool_results"])
        ]

    answer = tool_replied("find", "c", 2_000)
    assert kinds(tool_requested("find", "c", 1_500, "client_tool_call", tool_type=None)) == [
        "client"
    ]
    assert kinds(tool_requested("find", "c", 1_500, tool_type=None), answer) == [
        "webhook",
        "webhook",
    ]
    assert kinds(answer) == ["webhook"]
    state = {"tool_name": "find", "tool_call_id": "m", "parameters": {}}
    mcp = [
        {
            "type": "mcp_tool_call",
            "timestamp": 1_790_000_001_500 + at_ms,
            "mcp_tool_call": state | {"state": each},
        }
        for at_ms, each in enumerate(("loading", "success"))
    ]
    assert kinds(*mcp) == ["mcp", "mcp"]


def test_times_do_not_fall_and_other_roles_are_left_out() -> None:
    turns = transcript(
        entry("user", "Hi", 5), entry("system", "note", 6), entry("agent", "Yes?", 3)
    )
    assert [(turn["role"], turn["time_in_call_secs"]) for turn in turns] == [
        ("user", 5),
        ("agent", 5),
    ]


SECRET = "jane@example.com"  # noqa: S105 - no password


@pytest.mark.parametrize(
    "fields",
    [
        {"message": f"I am {SECRET}"},
        {"original_message": f"I am {SECRET}"},
        {"llm_override": SECRET},
        {"multivoice_message": {"parts": [{"text": SECRET}]}},
        {"feedback": {"score": "like", "comment": SECRET}},
        {"rag_retrieval_info": RAG | {"retrieval_query": SECRET}},
        {"tool_calls": [CALL | {"params_as_json": json.dumps({"mail": SECRET})}]},
        {
            "tool_calls": [
                CALL
                | {
                    "tool_details": {
                        "type": "webhook",
                        "url": f"https://x/{SECRET}",
                        "body": SECRET,
                    }
                }
            ]
        },
        {
            "tool_calls": [
                {"tool_name": "find", "tool_details": {"parameters": json.dumps({"mail": SECRET})}}
            ]
        },
        {"tool_results": [RESULT | {"result_value": f"It is {SECRET}"}]},
        {"tool_results": [RESULT | {"dynamic_variable_updates": [UPDATE | {"new_value": SECRET}]}]},
    ],
)
def test_nothing_personal_is_in_it(fields: Json) -> None:
    given = entry("agent", "Yes?") | fields
    assert SECRET in json.dumps(transcript(given, redacts=False))
    assert SECRET not in json.dumps(transcript(given))


def test_a_transcript_that_is_too_large_loses_long_values_and_then_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(from_record, "MAX_TRANSCRIPT_BYTES", 5_000)
    long = CALL | {"params_as_json": json.dumps({"text": "x" * 6_000})}
    (turn,) = transcript(entry("agent", None, tool_calls=[long]))
    assert turn["tool_calls"][0]["params_as_json"] == '{"left_out_characters":6012}'
    typed = ConversationRecord.model_validate(record(entry("agent", "x" * 6_000)))
    assert RecordedTranscript("c", typed.transcript, "desk", Redactor()).is_too_large


def test_each_step_redacts_one_text(monkeypatch: pytest.MonkeyPatch) -> None:
    typed = ConversationRecord.model_validate(
        record(entry("agent", "Yes?", original_message="Yes? And so on", feedback={"a": 1}))
    )
    written = RecordedTranscript("c", typed.transcript, "desk", Redactor())
    assert [turn is None for turn in written] == [True, True, True, False], (
        "a pause behind each of three, then the entry"
    )


@pytest.mark.parametrize(
    ("status", "media"),
    [("done", ["text", None]), ("processing", ["audio", None]), (None, ["text", None])],
)
def test_the_transcript_of_a_call_is_its_final_record(
    status: str | None, media: list[str | None]
) -> None:
    evaluator = PartitionEvaluator(Limits(), "test", writes_transcripts=True)
    report = record(
        entry("user", "Hi", 1, source_medium="text"), entry("agent", "Yes?", 2), status=status
    )
    effects: list[Effect] = []
    for arrival in arrivals_of([heard("Hi", 1_000, 1), said("Yes?", 2_000, 2), report]):
        effects += evaluator.receive(arrival)
    effects += evaluator.advance(END_MS)
    (transcript,) = transcripts_of(effects)
    assert [turn["source_medium"] for turn in json.loads(transcript)] == media
