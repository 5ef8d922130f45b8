"""What the agent's audit log says of a call, and the call's own events, which every input may
carry.
"""

from collections.abc import Mapping
from typing import Final

from consumers.engine.sources.facts import (
    Corrected,
    Detailed,
    Ended,
    EvaElement,
    EventRule,
    Fallback,
    Recording,
    Started,
    Teller,
    ToolUsed,
    WordsFact,
)
from consumers.engine.sources.findings import EventFindings, is_number
from consumers.engine.turns.timeline import ToolPayload
from schemas.closed_sets import InputSource, PipelineType
from schemas.events.audit import (
    AuditAssistant,
    AuditFallback,
    AuditLlmCall,
    AuditToolCall,
    AuditToolResponse,
    AuditUser,
    CallEnded,
    CallStarted,
    RagRetrieval,
    TurnDetails,
    UserTextUpdated,
)
from schemas.scores.latency_stages import MS, Stage, StageSource

UNREAD_ENTRY: Final = (EvaElement(is_audit=True),)
"""EVA reads the time of every entry, and its place in the log."""
_FALLBACK: Final = (Fallback(),)


def _user(event: AuditUser) -> tuple[WordsFact]:
    return (
        WordsFact(Teller.LOG, event.value, int(event.timestamp), is_user=True, id=event.turn_id),
    )


def _assistant(event: AuditAssistant) -> tuple[WordsFact]:
    return (WordsFact(Teller.LOG, event.value, int(event.timestamp), is_user=False),)


def _tool_call(event: AuditToolCall) -> tuple[ToolUsed]:
    return (ToolUsed(ToolPayload(event.value.tool, event.value.parameters), is_response=False),)


def _tool_response(event: AuditToolResponse) -> tuple[ToolUsed]:
    return (ToolUsed(ToolPayload(event.value.tool, event.value.response), is_response=True),)


def _fallback(_event: AuditFallback) -> tuple[Fallback]:
    return _FALLBACK


def _llm_call(event: AuditLlmCall) -> tuple[EvaElement | EventFindings, ...]:
    """One step of the model: the agent waits for all of it. A step without words in its answer was
    a tool call.
    """
    if event.latency_ms is None and event.usage is None:
        return UNREAD_ENTRY
    findings, at_s = EventFindings(InputSource.AUDIT), int(event.timestamp) / 1000
    if event.latency_ms is not None:
        said = event.value.get("response") if isinstance(event.value, Mapping) else event.value
        stage = Stage.LLM_LAST_SENTENCE if said else Stage.TOOL_REQUEST
        seconds = event.latency_ms * MS if is_number(event.latency_ms) else event.latency_ms
        findings.took(
            "llm_call latency_ms", stage, StageSource.AUDIT, seconds, end_s=at_s, model=event.model
        )
    if event.usage is not None:
        findings.used_tokens("llm_call usage", at_s, 2, event.model, event.usage)
    return (*UNREAD_ENTRY, findings)


# The call's own events.


def _started(event: CallStarted) -> tuple[Started]:
    return (
        Started(
            event.pipeline_type,
            event.agent,
            event.tenant,
            event.environment,
            event.version,
            event.goals,
            event.tools,
            event.expected_state,
            event.role,
            event.instructions,
            event.current_date_time,
            event.language,
            bool(event.is_told_later),
            event.traceparent,
            bool(event.is_from_record),
            _recording(event),
        ),
    )


def _ended(event: CallEnded) -> tuple[Ended]:
    return (
        Ended(
            event.reason,
            event.final_state,
            event.final_state_hash,
            event.response_latencies_ms,
            event.awaits_record,
            _recording(event),
        ),
    )


def _recording(event: CallStarted | CallEnded) -> Recording | None:
    """A beginning without an address says nothing."""
    if event.recording_url is None:
        return None
    starts_ms = event.recording_starts_ms
    return Recording(event.recording_url, None if starts_ms is None else int(starts_ms))


def _text_updated(event: UserTextUpdated) -> tuple[Corrected]:
    return (Corrected(Teller.LOG, event.text, event.turn_id),)


def _details(event: TurnDetails) -> tuple[Detailed]:
    told_ms = int(event.timestamp)
    return (
        Detailed(
            told_ms if event.turn_at is None else int(event.turn_at),
            told_ms,
            None if event.rag_retrieval_info is None else _retrieval(event.rag_retrieval_info),
            None if event.feedback is None else event.feedback.score,
            event.llm_override,
            event.workflow_node_id,
        ),
    )


def _retrieval(info: RagRetrieval) -> Mapping[str, object]:
    """The fields of the format alone, in its order."""
    chunks = [
        {
            "document_id": each.document_id,
            "chunk_id": each.chunk_id,
            "vector_distance": each.vector_distance,
        }
        for each in info.chunks
    ]
    return {
        "chunks": chunks,
        "embedding_model": info.embedding_model,
        "retrieval_query": info.retrieval_query,
        "rag_latency_secs": info.rag_latency_secs,
    }


def start_of(pipeline_type: PipelineType) -> CallStarted:
    """The event with which a recording begins that has none of its own."""
    return CallStarted(type="call_started", timestamp=0, pipeline_type=pipeline_type)


RULES: Final[Mapping[type, EventRule]] = {
    AuditUser: EventRule(_user),
    AuditAssistant: EventRule(_assistant),
    AuditFallback: EventRule(_fallback, is_kept=False),
    # the largest of all events, and only numbers of it are kept
    AuditLlmCall: EventRule(_llm_call, is_kept=False),
    AuditToolCall: EventRule(_tool_call),
    AuditToolResponse: EventRule(_tool_response),
    CallStarted: EventRule(_started, is_of_a_stream=False),
    CallEnded: EventRule(_ended, is_of_a_stream=False),
    UserTextUpdated: EventRule(_text_updated, is_of_a_stream=False),
    TurnDetails: EventRule(_details, is_of_a_stream=False),
}
"""How each type of their events is read."""
