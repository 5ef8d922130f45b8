"""The transcript of a call in the format of ElevenLabs' agents platform: one JSON array of turns,
in its field names and order.

The format is that of ElevenLabs' SDK 2.16 to 2.40, and later versions read it. Each turn has all
fifteen keys, with null for unknown values.
"""

import hashlib
from typing import Any, Final, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, TypeAdapter


class TranscriptModel(BaseModel):
    """Base of the parts of a transcript: immutable, without extra fields. Fields are written in the
    order of the class.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")


class AgentMetadata(TranscriptModel):
    """The agent: its id in ElevenLabs' record of the call, or its name in `call_started`, or
    `unknown`. Only a record has the node of the workflow.
    """

    agent_id: str
    workflow_node_id: str | None = None


class ToolDetails(TranscriptModel):
    """Details of a call of a `client` tool: ElevenLabs' word for a tool that runs outside its
    platform, as all tools do of which ElevenLabs has no record.

    `parameters` is the JSON text of the arguments, as in the tool call.
    """

    type: Literal["client"] = "client"
    parameters: str


class ToolCall(TranscriptModel):
    """One tool call as the model requested it. Its result has the same `request_id`.

    `type` and `request_id` are those of an ElevenLabs agent, live or in its record; for other
    agents `client` and an id of our own. `params_as_json` is JSON text, `null` if the arguments are
    not told. `tool_has_been_called` is true if the tool answered, because nothing else shows that
    it ran. `tool_details` of other tools than `client` are those of ElevenLabs' record, null
    without one: they say how ElevenLabs calls a tool, which its live events do not.
    """

    type: str = "client"
    request_id: str
    tool_name: str
    params_as_json: str
    tool_has_been_called: bool
    tool_details: ToolDetails | dict[str, Any] | None


class TranscriptToolResult(TranscriptModel):
    """Answer of a tool: a text unchanged, other values as JSON.

    The latency is a number in any case, as the format has it: 0, ElevenLabs' own default of the
    field, if the time is not known, for example of an answer without a call. Scores (`tool_call`)
    say `unscored` instead.
    """

    request_id: str
    tool_name: str
    result_value: str
    is_error: bool
    tool_has_been_called: bool = True
    tool_latency_secs: float
    dynamic_variable_updates: tuple[Any, ...] = ()
    type: str = "client"


class ElapsedTime(TranscriptModel):
    """A duration in seconds."""

    elapsed_time: float


class ConversationTurnMetrics(TranscriptModel):
    """Duration of each stage of the turn, by ElevenLabs' name of the stage; empty only if a record
    of ElevenLabs has it so.
    """

    metrics: dict[str, ElapsedTime] = {}


class TokenCount(TranscriptModel):
    """Tokens of one kind and their price in USD from ElevenLabs' record; 0 without such a record,
    as the price is unknown.
    """

    tokens: int = 0
    price: float = 0.0


class ModelUsage(TranscriptModel):
    """Tokens of one model in one turn. `input` excludes tokens from a cache."""

    input: TokenCount = TokenCount()
    input_cache_read: TokenCount = TokenCount()
    input_cache_write: TokenCount = TokenCount()
    output_total: TokenCount = TokenCount()


class LlmUsage(TranscriptModel):
    """Tokens of one turn by model."""

    model_usage: dict[str, ModelUsage]


class TranscriptTurn(TranscriptModel):
    """One entry of a transcript: an utterance, tool calls, or tool results.

    `time_in_call_secs` counts whole seconds from the call's start and never decreases. `message` is
    null for speech without a known text, and on entries of tools. `interrupted` is about the agent:
    the caller spoke over it. Then `message` is the part that was spoken and `original_message` the
    whole intended text, null if that is not known. `conversation_turn_metrics` is null if nothing
    was measured.

    `multivoice_message`, `feedback`, `llm_override` and `rag_retrieval_info` come from ElevenLabs'
    record of the call, and so does a `source_medium` other than `audio`.
    """

    role: Literal["agent", "user"]
    agent_metadata: AgentMetadata | None = None
    message: str | None = None
    multivoice_message: dict[str, Any] | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_results: tuple[TranscriptToolResult, ...] = ()
    feedback: dict[str, Any] | None = None
    llm_override: str | None = None
    time_in_call_secs: int
    conversation_turn_metrics: ConversationTurnMetrics | None = None
    rag_retrieval_info: dict[str, Any] | None = None
    llm_usage: LlmUsage | None = None
    interrupted: bool = False
    original_message: str | None = None
    source_medium: str | None = None


TRANSCRIPT: Final = TypeAdapter(tuple[TranscriptTurn, ...])
"""Converts transcripts to JSON and back."""


class Transcript(NamedTuple):
    """A record of the topic `transcripts`: the conversation id, and the JSON array of the turns in
    UTF-8.
    """

    conversation_id: str
    value: bytes


def request_id(conversation_id: str, turn: int, index: int) -> str:
    """Returns the id of the tool call with this number in this turn. It is the same in every
    process.

    It has the form of a version-4 UUID, which readers of transcripts expect, but is a hash instead
    of a random number.

    Example:
        >>> request_id("c-1", 2, 0)
        'fb459604-bd9a-489c-8f0c-00f3af17ae74'
    """
    identity = f"{conversation_id}\x00{turn}\x00{index}".encode()
    digest = bytearray(hashlib.blake2b(identity, digest_size=16).digest())
    digest[6] = digest[6] & 0x0F | 0x40  # the version
    digest[8] = digest[8] & 0x3F | 0x80  # the variant of RFC 9562
    text = digest.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
