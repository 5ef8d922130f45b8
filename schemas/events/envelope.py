"""The envelope of an input record: CloudEvents attributes in Kafka headers (binary mode), every one optional."""

from collections.abc import Sequence
from typing import NamedTuple

AGENT_TYPE_PREFIX = "callgauge.elevenlabs."
"""Type prefix of events of a real ElevenLabs agent; EVA's simulated caller shares the topic as `callgauge.user_sim.`."""
AGENT_RECORD_TYPE = "callgauge.elevenlabs.conversation_record.v1"
"""Type of the record of a conversation with an ElevenLabs agent, as a webhook or GET gives it when the call is over."""

MAX_SEQUENCE_DIGITS = 19
"""Longest sequence. A longer one fits no 64-bit counter of a producer and counts as missing."""


class Envelope(NamedTuple):
    """Attributes in the headers: `ce_source` with `ce_id` identifies an event, `sequence` grows within its source."""

    id: str | None
    source: str | None
    type: str | None
    sequence: int | None

    @property
    def is_agent_event(self) -> bool:
        """Whether a real ElevenLabs agent wrote it, not EVA's simulated caller."""
        return self.type is not None and self.type.startswith(AGENT_TYPE_PREFIX)


def agent_event_type(name: str) -> str:
    """Returns the `ce_type` of an event of a real ElevenLabs agent by its type; `conversation_record` is the record.

    Example:
        >>> agent_event_type("user_transcript")
        'callgauge.elevenlabs.user_transcript.v1'
        >>> agent_event_type("conversation_record") == AGENT_RECORD_TYPE
        True
    """
    return f"{AGENT_TYPE_PREFIX}{name}.v1"


def read_envelope(headers: Sequence[tuple[str, bytes]]) -> Envelope | None:
    """Returns the envelope in `headers`; None when there is none.

    A sequence that is not a number counts as missing, because headers are optional and the event has fields of its own.

    Example:
        >>> read_envelope([("ce_id", b"e-1"), ("ce_source", b"bot-7"), ("ce_sequence", b"12")])
        Envelope(id='e-1', source='bot-7', type=None, sequence=12)
        >>> read_envelope([]) is None
        True
    """
    if not headers:
        return None
    named = dict(headers)
    sequence = named.get("ce_sequence")
    return Envelope(
        _text(named.get("ce_id")),
        _text(named.get("ce_source")),
        _text(named.get("ce_type")),
        int(sequence) if sequence and len(sequence) <= MAX_SEQUENCE_DIGITS and sequence.isdigit() else None,
    )


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", errors="replace")
