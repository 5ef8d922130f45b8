"""Events of the audit log, and the control events of a call, which every input may carry."""

from typing import Annotated, Any, Final, Literal

from pydantic import Field, FiniteFloat, StringConstraints, model_validator

from schemas.closed_sets import PipelineType
from schemas.wire import (
    MAX_INSTRUCTIONS_CHARS,
    JsonObject,
    JsonValue,
    Name,
    Text,
    WireModel,
    WireTimeMs,
)


class AuditEntry(WireModel):
    """Base of all entries. `timestamp` is in milliseconds, usually as a string of digits."""

    timestamp: WireTimeMs
    display_name: Name | None = Field(default=None, alias="displayName")
    is_bot_message: bool | None = Field(default=None, alias="isBotMessage")
    type: Name | None = None


class AuditUser(AuditEntry):
    """The caller's turn as the agent received it. `turn_id` identifies a placeholder that is
    replaced later.
    """

    message_type: Literal["user"]
    value: Text
    turn_id: int | None = None


class AuditAssistant(AuditEntry):
    """One reply of the language model, before it is spoken."""

    message_type: Literal["assistant"]
    value: Text


class ToolRequest(WireModel):
    """Name and arguments of a tool call."""

    tool: Name
    parameters: JsonValue = None


class AuditToolCall(AuditEntry):
    """A tool is about to run."""

    message_type: Literal["tool_call"]
    value: ToolRequest


class ToolReply(WireModel):
    """Answer of a tool; `response` may be missing."""

    tool: Name
    response: JsonValue = None


class AuditToolResponse(AuditEntry):
    """A tool has answered."""

    message_type: Literal["tool_response"]
    value: ToolReply


class AuditFallback(AuditEntry):
    """The agent's turn-end timer fired and nudged the model."""

    message_type: Literal["turn_fallback"]
    value: Any = None
    llm_content: Any = None


class AuditLlmCall(AuditEntry):
    """One step of the language model. None of EVA's rules reads it, but its time counts.

    `latency_ms` is from the request to the end of the answer, `usage` counts its tokens; both only
    if the framework logs them.
    """

    message_type: Literal["llm_call"]
    value: Any = None
    model: Any = None
    latency_ms: Any = None
    usage: Any = None


AuditEvent = Annotated[
    AuditUser | AuditAssistant | AuditToolCall | AuditToolResponse | AuditFallback | AuditLlmCall,
    Field(discriminator="message_type"),
]


# Control events of a call, which belong to none of the three sources: accepted on every input
# topic, never in EVA's history.

MAX_TOOLS: Final = 256
"""Most tools of one agent. EVA's agents have some fifteen."""
TRACEPARENT: Final = "^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$"
MAX_CHUNKS: Final = 100
"""Most parts of documents of one retrieval: ElevenLabs' agents take 20 at most."""
MAX_RETRIEVAL_SECONDS: Final = 3_600
"""Longest time of a retrieval that is plausible: nobody waits for an hour."""
MAX_RESPONSE_LATENCIES: Final = 10_000
"""Most latencies of one call. A call of an hour has some hundreds of turns."""
MAX_URL_CHARS: Final = 2_000
"""Longest address of a recording. A signed one has some 1,500 characters."""
RECORDING_URL: Final = r"^https?://[A-Za-z0-9._~%:\[\]-]+(?:[/?#][!#-;=?-\[\]-~]*)?$"
"""An address on the web in visible ASCII, without a user name or a password, and without double
quotes, angle brackets and backslashes, which no address has unescaped.
"""
RecordingUrl = Annotated[str, StringConstraints(max_length=MAX_URL_CHARS, pattern=RECORDING_URL)]


class AgentTool(WireModel):
    """A tool that the agent may call. `parameters` is the JSON schema of its arguments. `tool_type`
    is `auth` for a tool that identifies the user. It may stand under `function`, the shape that
    OpenAI's models take.
    """

    name: Name
    parameters: JsonObject | None = None
    tool_type: Name | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_function(cls, tool: object) -> object:
        function = tool.get("function") if isinstance(tool, dict) and "name" not in tool else None
        return function if isinstance(function, dict) else tool


class CallStarted(WireModel):
    """Facts of a call. It may come at any time and several times; a field that a later one omits
    stays unchanged.

    `expected_state` is the state that the call should produce: records by table, and under
    `session` the facts about the user.

    `version` is that of the agent: of its prompt, model or code, in your words. It is kept with the
    scores, so that versions can be compared; no metric has it.

    `role`, `instructions` (the system prompt) and `current_date_time` are what the agent was told.
    With its tools, judges of faithfulness read them, without personal data.

    `language` is what the caller speaks, as a code with or without a region: `de`, `fr-CA`. Words
    are compared by the rules of that language, without it by those of English.

    `traceparent` is the span of the call, in the words of W3C's trace context: evaluation events of
    the call are part of it.

    `is_told_later` says that events come long after what they tell, as spans do: then no silence is
    called dead air while the call runs, unless somebody was heard before.

    `is_from_record` says that it was made from a record of the whole call: `agent` counts only
    where none is known.

    `recording_url` is where the sound of the call is kept, an address of `http` or `https` without
    a user name. It is written to the row of the call as it came, whatever is redacted: whoever may
    read that row has the address, with all that it gives access to. `recording_starts_ms` is when
    the recording begins; without it, it begins with the call. The newest address counts, with its
    own beginning, whether it comes with the start or with the end of the call.
    """

    type: Literal["call_started"]
    timestamp: WireTimeMs
    pipeline_type: PipelineType | None = None
    agent: Name | None = None
    tenant: Name | None = None
    environment: Name | None = None
    version: Name | None = None
    goals: Name | None = None
    tools: Annotated[list[AgentTool], Field(max_length=MAX_TOOLS)] | None = None
    expected_state: JsonObject | None = None
    role: Text | None = None
    instructions: Annotated[str, StringConstraints(max_length=MAX_INSTRUCTIONS_CHARS)] | None = None
    current_date_time: Name | None = None
    language: Name | None = None
    is_told_later: bool | None = None
    is_from_record: bool | None = None
    traceparent: Annotated[str, StringConstraints(pattern=TRACEPARENT)] | None = None
    recording_url: RecordingUrl | None = None
    recording_starts_ms: WireTimeMs | None = None


class CallEnded(WireModel):
    """The end of the call. `reason` is a word of EVA's or of your own: `goodbye`, `transfer`,
    `error`; `inactivity_timeout` if somebody fell silent; `time_limit_exceeded` or `timeout` if the
    call was cut off at its time limit.

    `final_state` is the state that the call produced, in the form of `expected_state`.
    `final_state_hash` is its SHA-256 as EVA's run computed it; `eva_task_completion` uses it if it
    comes with the state.

    `response_latencies_ms` are the waits for the assistant in the order of the turns, as the run
    itself measured them. They are compared with the times of speech if there is one for each turn
    that has a latency.

    `awaits_record` says that a record of the whole call is made after its end and still to come:
    the call stays open for it, as long as `agent_record_grace_ms` says. False says that this event
    comes with that record, or that there will be none.

    `recording_url` and `recording_starts_ms` are those of `call_started`.
    """

    type: Literal["call_ended"]
    timestamp: WireTimeMs
    reason: Name | None = None
    awaits_record: bool | None = None
    final_state: JsonObject | None = None
    final_state_hash: Name | None = None
    response_latencies_ms: (
        Annotated[list[FiniteFloat], Field(max_length=MAX_RESPONSE_LATENCIES)] | None
    ) = None
    recording_url: RecordingUrl | None = None
    recording_starts_ms: WireTimeMs | None = None


class UserTextUpdated(WireModel):
    """The text that replaces the placeholder of an audio LLM: in the audit `user` entry with
    `turn_id`, or in the last one.
    """

    type: Literal["user_text_updated"]
    timestamp: WireTimeMs
    text: Text
    turn_id: int | None = None


class RagChunk(WireModel):
    """A part of a document that was retrieved."""

    document_id: Name
    chunk_id: Name
    vector_distance: FiniteFloat


class RagRetrieval(WireModel):
    """What was retrieved for an answer, in ElevenLabs' words: the parts of documents, and how they
    were found.
    """

    chunks: Annotated[list[RagChunk], Field(max_length=MAX_CHUNKS)]
    embedding_model: Name
    retrieval_query: Text
    rag_latency_secs: Annotated[FiniteFloat, Field(ge=0, le=MAX_RETRIEVAL_SECONDS)]


class UserFeedback(WireModel):
    """What the caller thinks of an answer."""

    score: Literal["like", "dislike"]


class TurnDetails(WireModel):
    """What no sound and no word tells of a turn of the agent; any of it. The transcript of the call
    has it in ElevenLabs' form.

    `rag_retrieval_info` and `llm_override` are of the turn in which `timestamp` lies: from the
    caller's first word to the next one. Of several the last counts. `feedback` is about the newest
    answer that had begun by then. `workflow_node_id` holds for what the agent says and does from
    then on, until another one is told. Where the event is sent later, `turn_at`, a time in ms too,
    says when it was.
    """

    type: Literal["turn_details"]
    timestamp: WireTimeMs
    turn_at: WireTimeMs | None = None
    rag_retrieval_info: RagRetrieval | None = None
    feedback: UserFeedback | None = None
    llm_override: Name | None = None
    workflow_node_id: Name | None = None
