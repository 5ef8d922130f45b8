"""The transcript of a call as ElevenLabs' agents platform has it: one JSON array of turns, in its field names and order.

The shape is that of ElevenLabs' SDK 2.16 to 2.40, and every later one reads it: fifteen keys on each turn, none left out, with
null where there is nothing to say.
"""

import hashlib
from typing import Final, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, TypeAdapter


class TranscriptModel(BaseModel):
    """A part of a transcript: a closed shape, never changed after it is made. Fields are written in the order in which they stand."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class AgentMetadata(TranscriptModel):
    """Which agent spoke: its id in ElevenLabs' record of the call, else the name that `call_started` gives it, else `unknown`."""

    agent_id: str
    workflow_node_id: str | None = None


class ToolDetails(TranscriptModel):
    """How the tool ran. To ElevenLabs a tool that the caller of its platform runs is a `client` tool: so are all of ours.

    `parameters` is the JSON text of the arguments, as in the call itself.
    """

    type: Literal["client"] = "client"
    parameters: str


class ToolCall(TranscriptModel):
    """One use of a tool, as the model asked for it. `request_id` names the result that belongs to it.

    `params_as_json` is JSON text, `null` where the log has no arguments. `tool_has_been_called` says that the tool answered:
    nothing else shows that it ran.
    """

    type: Literal["client"] = "client"
    request_id: str
    tool_name: str
    params_as_json: str
    tool_has_been_called: bool
    tool_details: ToolDetails


class ToolResult(TranscriptModel):
    """What a tool answered: text as it came, anything else as JSON. The latency is null where no call is known."""

    request_id: str
    tool_name: str
    result_value: str
    is_error: bool
    tool_has_been_called: Literal[True] = True
    tool_latency_secs: float | None
    dynamic_variable_updates: tuple[()] = ()
    type: Literal["client"] = "client"


class ElapsedTime(TranscriptModel):
    """How long something took, in seconds."""

    elapsed_time: float


class ConversationTurnMetrics(TranscriptModel):
    """By ElevenLabs' name of it, how long each stage of the turn took; empty where nobody measured."""

    metrics: dict[str, ElapsedTime] = {}


class TokenCount(TranscriptModel):
    """Tokens of one kind, and what they cost in USD, as ElevenLabs' record has it; without one the price is not known and 0."""

    tokens: int = 0
    price: float = 0.0


class ModelUsage(TranscriptModel):
    """Tokens of one model in one turn. `input` are those that no cache served."""

    input: TokenCount = TokenCount()
    input_cache_read: TokenCount = TokenCount()
    input_cache_write: TokenCount = TokenCount()
    output_total: TokenCount = TokenCount()


class LlmUsage(TranscriptModel):
    """Tokens of one turn by model."""

    model_usage: dict[str, ModelUsage]


class TranscriptTurn(TranscriptModel):
    """One entry of a transcript: what one side said, or tools that were called, or what they answered.

    `time_in_call_secs` counts whole seconds from the call's start and never decreases. `message` is null where somebody was
    heard and no text is known, and on entries of tools. `interrupted` is about the agent: the caller spoke over it, and then
    `message` is as far as it came and `original_message` what it had meant to say, null where that is not known.
    """

    role: Literal["agent", "user"]
    agent_metadata: AgentMetadata | None = None
    message: str | None = None
    multivoice_message: None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_results: tuple[ToolResult, ...] = ()
    feedback: None = None
    llm_override: None = None
    time_in_call_secs: int
    conversation_turn_metrics: ConversationTurnMetrics = ConversationTurnMetrics()
    rag_retrieval_info: None = None
    llm_usage: LlmUsage | None = None
    interrupted: bool = False
    original_message: str | None = None
    source_medium: Literal["audio"] | None = None


TRANSCRIPT: Final = TypeAdapter(tuple[TranscriptTurn, ...])
"""Turns to JSON and back."""


class Transcript(NamedTuple):
    """A record of the topic `transcripts`: whose call it is, and the JSON array of its turns in UTF-8."""

    conversation_id: str
    value: bytes


def request_id(conversation_id: str, turn: int, index: int) -> str:
    """The id of the use of a tool with this number in this turn: the same for the same use, in any process.

    Its bits are those of a version-4 UUID, as readers of transcripts expect; the rest is a hash and no chance.

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
