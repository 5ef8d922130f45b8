"""The shape of a transcript: ElevenLabs' keys in ElevenLabs' order, all of them on every turn, and
ids like theirs.
"""

import json
import uuid
from typing import Any

import pytest
from elevenlabs.types import ConversationHistoryTranscriptResponseModel as SdkTurn
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from schemas.json_schemas import json_schema
from schemas.transcript import (
    TRANSCRIPT,
    AgentMetadata,
    ConversationTurnMetrics,
    ElapsedTime,
    LlmUsage,
    ModelUsage,
    TokenCount,
    ToolCall,
    ToolDetails,
    TranscriptToolResult,
    TranscriptTurn,
    request_id,
)

KEYS = [
    "role",
    "agent_metadata",
    "message",
    "multivoice_message",
    "tool_calls",
    "tool_results",
    "feedback",
    "llm_override",
    "time_in_call_secs",
    "conversation_turn_metrics",
    "rag_retrieval_info",
    "llm_usage",
    "interrupted",
    "original_message",
    "source_medium",
]
FULL = TranscriptTurn(
    role="agent",
    agent_metadata=AgentMetadata(agent_id="desk"),
    message="I see it.",
    tool_calls=(
        ToolCall(
            request_id=request_id("c", 1, 0),
            tool_name="book",
            params_as_json="{}",
            tool_has_been_called=True,
            tool_details=ToolDetails(parameters="{}"),
        ),
    ),
    tool_results=(
        TranscriptToolResult(
            request_id=request_id("c", 1, 0),
            tool_name="book",
            result_value="{}",
            is_error=False,
            tool_latency_secs=0.25,
        ),
    ),
    time_in_call_secs=4,
    conversation_turn_metrics=ConversationTurnMetrics(
        metrics={"convai_llm_service_ttfb": ElapsedTime(elapsed_time=1.5)}
    ),
    llm_usage=LlmUsage(model_usage={"m": ModelUsage(output_total=TokenCount(tokens=50))}),
    interrupted=True,
    original_message="I see it there.",
)


def written(*turns: TranscriptTurn) -> list[Any]:
    plain: list[Any] = json.loads(TRANSCRIPT.dump_json(turns))
    return plain


@pytest.mark.parametrize(
    "turn", [FULL, TranscriptTurn(role="user", time_in_call_secs=0)], ids=["full", "bare"]
)
def test_every_key_is_there_in_the_order_of_the_format(turn: TranscriptTurn) -> None:
    (plain,) = written(turn)
    assert list(plain) == KEYS
    assert TRANSCRIPT.validate_json(json.dumps([plain])) == (turn,)


def test_nested_keys_are_in_their_order_too() -> None:
    (plain,) = written(FULL)
    assert list(plain["agent_metadata"]) == ["agent_id", "workflow_node_id"]
    assert list(plain["tool_calls"][0]) == [
        *(
            "type",
            "request_id",
            "tool_name",
            "params_as_json",
            "tool_has_been_called",
            "tool_details",
        )
    ]
    assert list(plain["tool_calls"][0]["tool_details"]) == ["type", "parameters"]
    assert list(plain["tool_results"][0]) == [
        *(
            "request_id",
            "tool_name",
            "result_value",
            "is_error",
            "tool_has_been_called",
            "tool_latency_secs",
        ),
        *("dynamic_variable_updates", "type"),
    ]
    assert list(plain["llm_usage"]["model_usage"]["m"]) == [
        *("input", "input_cache_read", "input_cache_write", "output_total")
    ]


def test_metrics_are_null_where_there_are_none_and_prices_always_there() -> None:
    bare, full = written(TranscriptTurn(role="user", time_in_call_secs=0), FULL)
    assert bare["conversation_turn_metrics"] is None
    assert full["conversation_turn_metrics"] == {
        "metrics": {"convai_llm_service_ttfb": {"elapsed_time": 1.5}}
    }
    usage = full["llm_usage"]["model_usage"]["m"]
    assert {kind: (counted["tokens"], counted["price"]) for kind, counted in usage.items()} == {
        "input": (0, 0.0),
        "input_cache_read": (0, 0.0),
        "input_cache_write": (0, 0.0),
        "output_total": (50, 0.0),
    }
    assert b'"price":0.0' in TRANSCRIPT.dump_json((FULL,)), "a number of USD, not an integer"


def test_the_sdk_reads_every_part() -> None:
    turn = SdkTurn.model_validate(written(FULL)[0])
    assert turn.tool_calls is not None
    assert turn.tool_calls[0].tool_details is not None
    assert turn.tool_calls[0].tool_details.type == "client"
    assert turn.tool_results is not None
    assert turn.tool_results[0].tool_latency_secs == 0.25
    assert turn.llm_usage is not None
    assert turn.model_extra == {}


def test_the_sdk_refuses_what_the_format_description_allows() -> None:
    """It says that tool details may be of type `server`; this is why ours are of type `client`."""
    (plain,) = written(FULL)
    plain["tool_calls"][0]["tool_details"]["type"] = "server"
    with pytest.raises(ValidationError, match="tool_details"):
        SdkTurn.model_validate(plain)


@given(st.text(), st.integers(-1, 1_000), st.integers(0, 1_000))
def test_ids_are_version_4_uuids_by_their_bits(conversation_id: str, turn: int, index: int) -> None:
    name = request_id(conversation_id, turn, index)
    parsed = uuid.UUID(name)
    assert (str(parsed), parsed.version, parsed.variant) == (name, 4, uuid.RFC_4122)
    assert name == request_id(conversation_id, turn, index)


def test_ids_differ_with_each_part_of_what_they_name() -> None:
    named = [("c", 1, 0), ("d", 1, 0), ("c", 2, 0), ("c", 1, 1), ("c", 11, 0), ("c", 1, 10)]
    assert len({request_id(*each) for each in named}) == len(named)


def test_the_topic_has_a_schema() -> None:
    schema = json_schema("transcript")
    assert schema["type"] == "array"
    assert list(schema["$defs"]["TranscriptTurn"]["properties"]) == KEYS
