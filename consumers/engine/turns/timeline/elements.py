"""The elements of a call's merged timeline: their kinds, their payloads and the key that orders them."""

from enum import IntEnum

from schemas.closed_sets import InputSource

INDEX_BITS = 32
RANK_BITS = 2
TIME_SHIFT = INDEX_BITS + RANK_BITS

AUDIT_RANK = 0
PIPECAT_RANK = 1
SIMULATOR_RANK = 2
AGENT_RANK = 3


class ElementKind(IntEnum):
    """Kinds of elements that rules read."""

    AUDIT_USER = 0
    AUDIT_ASSISTANT = 1
    FALLBACK = 2
    TOOL_CALL = 3
    TOOL_RESPONSE = 4
    TEXT_GROUP = 5
    USER_AUDIO_START = 6
    USER_AUDIO_END = 7
    ASSISTANT_AUDIO_START = 8
    ASSISTANT_AUDIO_END = 9
    USER_SPEECH = 10
    ASSISTANT_SPEECH = 11
    SESSION_ENDED = 12


def order_key(time_ms: int, rank: int, index: int) -> int:
    """One integer that sorts by time, then source (audit, pipecat, simulator, agent), then place within the source.

    Example:
        >>> order_key(5, AUDIT_RANK, 9) < order_key(5, SIMULATOR_RANK, 0) < order_key(6, AUDIT_RANK, 0)
        True
        >>> key_time_ms(order_key(1_790_000_000_123, PIPECAT_RANK, 7))
        1790000000123
    """
    return (time_ms << TIME_SHIFT) | (rank << INDEX_BITS) | index


def key_time_ms(key: int) -> int:
    """The event time inside an order key."""
    return key >> TIME_SHIFT


class ToolUse:
    """Payload of a tool call or response: the tool, and its parameters or its answer (None without any).

    ElevenLabs agents and pipecat pair calls and responses by `call_id`; the audit log has none (None). `is_error` marks a
    failed tool, whatever its answer; `is_withheld` an answer that the producer does not send, but perhaps its status. `is_exact`
    is false where the time gives only the order, `took_ms` is the tool's time as the response itself has it; `source` is the
    reporting input.
    """

    __slots__ = ("call_id", "is_error", "is_exact", "is_withheld", "name", "source", "took_ms", "value")

    def __init__(
        self,
        name: str,
        value: object,
        call_id: str | None = None,
        *,
        is_error: bool = False,
        is_withheld: bool = False,
        is_exact: bool = True,
        took_ms: int | None = None,
        source: InputSource = InputSource.AUDIT,
    ) -> None:
        self.is_withheld = is_withheld
        self.is_exact = is_exact
        self.took_ms = took_ms
        self.name = name
        self.value = value
        self.call_id = call_id
        self.is_error = is_error
        self.source = source
