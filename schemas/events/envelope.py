"""The envelope of a record of an input topic: its headers."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from schemas.log import REPLAY_OF_HEADER

AGENT_TYPE_PREFIX = "callgauge.elevenlabs."
"""Type prefix of events of a real ElevenLabs agent; EVA's simulated caller shares the topic as
`callgauge.user_sim.`.
"""
AGENT_RECORD_TYPE = "callgauge.elevenlabs.conversation_record.v1"
"""Type of the record of a conversation with an ElevenLabs agent, as a webhook or GET gives it when
the call is over.
"""

ID_HEADER: Final = "ce_id"
SOURCE_HEADER: Final = "ce_source"
TYPE_HEADER: Final = "ce_type"
_SEQUENCE_HEADER: Final = "ce_sequence"
HEADERS: Final = (ID_HEADER, SOURCE_HEADER, TYPE_HEADER, _SEQUENCE_HEADER)
"""The headers that an `Envelope` is read from, in its order."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

MAX_SEQUENCE_DIGITS = 19
"""Longest sequence. A longer one fits no 64-bit counter of a producer and counts as missing."""


class Envelope(NamedTuple):
    """Attributes in the headers: `ce_source` with `ce_id` identifies an event, `sequence` grows
    within its source.

    `replay_of` is where the record was refused first, of one that was put back from quarantine.
    """

    id: str | None
    source: str | None
    type: str | None
    sequence: int | None
    replay_of: str | None = None

    @property
    def is_agent_event(self) -> bool:
        """Whether a real ElevenLabs agent wrote it, not EVA's simulated caller."""
        return self.type is not None and self.type.startswith(AGENT_TYPE_PREFIX)


def agent_event_type(name: str) -> str:
    """Returns the `ce_type` of an event of a real ElevenLabs agent by its type;
    `conversation_record` is the record.

    Example:
        >>> agent_event_type("user_transcript")
        'callgauge.elevenlabs.user_transcript.v1'
        >>> agent_event_type("conversation_record") == AGENT_RECORD_TYPE
        True
    """
    return f"{AGENT_TYPE_PREFIX}{name}.v1"


def envelope_headers(
    *,
    event_id: str,
    source: str,
    event_type: str,
    subject: str,
    time_ms: int | None = None,
    sequence: int | None = None,
) -> list[tuple[str, bytes]]:
    """Returns the Kafka headers of an event: its CloudEvents attributes in binary mode, the four
    required ones first.

    Args:
        event_id: Id of the event, unique within `source`: a record that is sent again has the same
            one.
        source: The producer.
        event_type: Type of the event.
        subject: The conversation id.
        time_ms: Milliseconds since 1970; a time that no ISO form can express, after the year 9999,
            is left out.
        sequence: The number of the event within its source.

    Example:
        >>> dict(envelope_headers(event_id="1", source="bot", event_type="t", subject="call", time_ms=0))["ce_time"]
        b'1970-01-01T00:00:00.000+00:00'
    """
    attributes = {
        "ce_specversion": "1.0",
        ID_HEADER: event_id,
        SOURCE_HEADER: source,
        TYPE_HEADER: event_type,
        "ce_subject": subject,
    }
    if sequence is not None:
        attributes[_SEQUENCE_HEADER] = str(sequence)
    if time_ms is not None and (time := _iso(time_ms)) is not None:
        attributes["ce_time"] = time
    attributes["content-type"] = "application/json"
    return [(name, value.encode("utf-8", "replace")) for name, value in attributes.items()]


def read_envelope(headers: Sequence[tuple[str, bytes]]) -> Envelope | None:
    """Returns the envelope in `headers`; None when there is none.

    A sequence that is not a number counts as missing, because headers are optional and the event
    has fields of its own.

    Example:
        >>> read_envelope([("ce_id", b"e-1"), ("ce_source", b"bot-7"), ("ce_sequence", b"12")])
        Envelope(id='e-1', source='bot-7', type=None, sequence=12, replay_of=None)
        >>> read_envelope([]) is None
        True
    """
    if not headers:
        return None
    named = dict(headers)
    sequence = named.get(_SEQUENCE_HEADER)
    return Envelope(
        _text(named.get(ID_HEADER)),
        _text(named.get(SOURCE_HEADER)),
        _text(named.get(TYPE_HEADER)),
        int(sequence)
        if sequence and len(sequence) <= MAX_SEQUENCE_DIGITS and sequence.isdigit()
        else None,
        _text(named.get(REPLAY_OF_HEADER)),
    )


def _text(value: bytes | None) -> str | None:
    # two ids stay two
    return None if value is None else value.decode("utf-8", errors="backslashreplace")


def _iso(time_ms: int) -> str | None:
    try:
        return (_EPOCH + timedelta(milliseconds=time_ms)).isoformat(timespec="milliseconds")
    except OverflowError:
        return None
