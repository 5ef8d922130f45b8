"""One example of every event, as a producer writes it; `callgauge schema` shows them."""

from collections.abc import Mapping
from typing import Any, Final

_AT_MS: Final = 1_790_000_000_000
_AT_S: Final = 1_790_000_000.25
_ISO: Final = "2026-09-21T14:13:20.250+00:00"


def _event(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": kind, "timestamp": _AT_MS, **fields}


def _log(kind: str, **fields: Any) -> dict[str, Any]:
    return {"message_type": kind, "timestamp": str(_AT_MS), **fields}


EXAMPLES: Final[Mapping[str, Mapping[str, Any]]] = {
    # pipecat.events
    "TtsText": _event("tts_text", data={"frame": "Hello"}),
    "LlmResponse": _event("llm_response", data={"frame": "Hello, how can I help you?"}),
    "EventsDropped": _event("events_dropped", data={"metrics": 12, "words": 3}),
    "TurnMarker": _event("turn_start", data={"frame": "UserStartedSpeakingFrame"}),
    "UserSpeaking": _event("user_started_speaking", data={"frame": "UserStartedSpeakingFrame"}),
    "IgnoredLine": _event("transcript", data={"frame": " my flight"}),
    "CallNote": _event("agent_handoff", data={"old_agent": "desk", "new_agent": "guard"}),
    "ProcessorFailed": _event(
        "error", data={"message": "the model is down", "processor": "OpenAILLMService#0"}
    ),
    "ToolLine": _event(
        "tool_call", data={"tool_name": "find_booking", "arguments": {"code": "A1"}}
    ),
    "SpeechEventRecord": _event(
        "speech_event",
        data={"kind": "user_speech_stopped", "timestamp": _AT_S, "started_at": _AT_S - 1.5},
    ),
    "FunctionCallRecord": _event(
        "function_call_event",
        data={
            "kind": "function_call_completed",
            "function_name": "find_booking",
            "tool_call_id": "call-1",
            "timestamp": _AT_S,
            "in_progress_at": _AT_S - 0.8,
            "result": {"status": "ok"},
        },
    ),
    "MessageRecord": _event(
        "assistant_message",
        data={"content": "Your flight leaves at nine.", "timestamp": _ISO, "interrupted": False},
    ),
    "ObserverRecord": _event("user_bot_latency", data={"latency_seconds": 1.298}),
    "PipecatMetric": _event(
        "TTFBMetricsData", processor="OpenAILLMService#0", model="gpt-4o", value=0.31
    ),
    # elevenlabs.events, by a simulated caller
    "AudioEvent": {
        "event_type": "audio_start",
        "user": "simulated_user",
        "audio_timestamp": _AT_S,
        "timestamp": _AT_MS,
    },
    "UserSpeech": _event("user_speech", data={"text": "When does my flight leave?"}),
    "AssistantSpeech": _event("assistant_speech", data={"text": "Your flight leaves at nine."}),
    "ConnectionState": _event(
        "connection_state", data={"state": "session_ended", "details": {"reason": "goodbye"}}
    ),
    "CarriedSimulatorEvent": _event("audio_sent", data={}),
    # elevenlabs.events, by a real agent
    "UserTranscript": _event(
        "user_transcript",
        user_transcription_event={"user_transcript": "Where is my parcel?", "event_id": 12},
    ),
    "AgentResponse": _event(
        "agent_response",
        agent_response_event={"agent_response": "It arrives tomorrow at nine.", "event_id": 20},
    ),
    "AgentResponseCorrection": _event(
        "agent_response_correction",
        agent_response_correction_event={
            "original_agent_response": "It arrives tomorrow at nine.",
            "corrected_agent_response": "It arrives",
            "event_id": 20,
        },
    ),
    "Interruption": _event("interruption", interruption_event={"event_id": 25}),
    "ToolRequested": _event(
        "agent_tool_request",
        agent_tool_request={
            "tool_name": "track",
            "tool_call_id": "t1",
            "tool_type": "webhook",
            "event_id": 13,
        },
    ),
    "ToolReplied": _event(
        "agent_tool_response",
        agent_tool_response={
            "tool_name": "track",
            "tool_call_id": "t1",
            "is_error": False,
            "is_called": True,
            "event_id": 14,
        },
    ),
    "McpToolCalled": _event(
        "mcp_tool_call",
        mcp_tool_call={
            "service_id": "s1",
            "tool_call_id": "t2",
            "tool_name": "track",
            "parameters": {"parcel": "P1"},
            "timestamp": _ISO,
            "state": "success",
            "result": [{"type": "text", "text": "tomorrow"}],
        },
    ),
    "ConversationInitiated": _event(
        "conversation_initiation_metadata",
        conversation_initiation_metadata_event={"conversation_id": "conv_1"},
    ),
    "AgentResponseComplete": _event(
        "agent_response_complete", agent_response_complete_event={"event_id": 20}
    ),
    "AgentFailed": _event(
        "client_error", error_event={"code": 1008, "message": "the quota is used up"}
    ),
    "CarriedAgentEvent": _event("ping"),
    "ConversationRecord": {
        "conversation_id": "conv_1",
        "agent_id": "agent_1",
        "status": "done",
        "transcript": [
            {"role": "agent", "message": "Hello!", "time_in_call_secs": 0},
            {"role": "user", "message": "Where is my parcel?", "time_in_call_secs": 4},
        ],
        "metadata": {"start_time_unix_secs": _AT_MS // 1_000, "call_duration_secs": 31},
    },
    # audit.events
    "AuditUser": _log("user", value="When does my flight leave?"),
    "AuditAssistant": _log("assistant", value="Your flight leaves at nine."),
    "AuditToolCall": _log(
        "tool_call", value={"tool": "find_booking", "parameters": {"code": "A1"}}
    ),
    "AuditToolResponse": _log(
        "tool_response", value={"tool": "find_booking", "response": {"status": "ok"}}
    ),
    "AuditFallback": _log("turn_fallback"),
    "AuditLlmCall": _log(
        "llm_call", latency_ms=640, usage={"prompt_tokens": 812, "completion_tokens": 24}
    ),
    # any of them
    "CallStarted": _event(
        "call_started", agent="airline", environment="production", goals="rebooking"
    ),
    "CallEnded": _event("call_ended", reason="goodbye"),
    "TurnDetails": _event(
        "turn_details",
        rag_retrieval_info={
            "chunks": [{"document_id": "fares", "chunk_id": "fares-7", "vector_distance": 0.21}],
            "embedding_model": "e5_mistral_7b_instruct",
            "retrieval_query": "fee for a later flight",
            "rag_latency_secs": 0.18,
        },
        llm_override="gpt-5",
        workflow_node_id="node_rebooking",
    ),
    "UserTextUpdated": _event("user_text_updated", text="When does my flight leave?", turn_id=3),
}
"""Examples by the name of the model. Times: `timestamp` in milliseconds since 1970, those inside
`data` in seconds.
"""


def with_examples(schema: dict[str, Any]) -> dict[str, Any]:
    """Adds the examples to a JSON Schema and to its definitions, by their titles; returns the same
    schema.
    """
    for part in (schema, *schema.get("$defs", {}).values()):
        example = EXAMPLES.get(part.get("title", ""))
        if example is not None:
            part["examples"] = [example]
    return schema
