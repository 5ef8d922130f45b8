"""Turns records of the input topics into arrivals, or into quarantine records with the reason."""

from dataclasses import dataclass
from typing import Any, Protocol

from consumers.engine.limits import Limits
from consumers.engine.redaction.redactor import Redactor
from schemas.closed_sets import InputSource, RefusalReason
from schemas.events.codec import MAX_SHOWN_CHARS, RefusedRecordError, StructuredModeError, decode
from schemas.events.envelope import Envelope, read_envelope
from schemas.log import REPLAY_OF_HEADER, Event, LogRecord
from schemas.quarantine import QuarantineRecord, UndecodableRecord
from schemas.units import MS_PER_SECOND
from schemas.wire import MAX_NAME_CHARS

MAX_TOLD_CHARS = 300
"""Longest explanation of a refusal: it names fields, and a field's name may be anybody's text."""
MAX_HEADERS, MAX_HEADERS_BYTES = 64, 32_768
"""Headers of a record, and bytes of their names and values together: a dozen say where an event
comes from and trace it.
"""
FIRST_SECONDS, FIRST_MS = 10**9, 10**11
"""September 2001 in seconds, March 1973 in milliseconds: a time between them is one in seconds."""
WHAT_HAPPENS_NOW = "The record is in quarantine; its conversation goes on without it."
WHAT_HAPPENS_NOW_OF_UNDECODABLE = (
    "Its place is in quarantine; conversations go on without its content."
)


@dataclass(slots=True)
class Arrival:
    """One decoded input record with its place, broker time, conversation id and event, and where it
    stands at its input.
    """

    source: InputSource
    offset: int
    broker_time_ms: int
    conversation_id: str
    event: Any
    value: bytes
    envelope: Envelope | None
    origin: int = 0


class BrokerRecord(LogRecord, Protocol):
    """A record as aiokafka returns it; the topic's settings decide whether `timestamp`, in ms, is
    the broker's or the producer's.
    """

    @property
    def topic(self) -> str:
        """Name of the topic."""

    @property
    def partition(self) -> int:
        """The partition number of the record."""

    @property
    def timestamp(self) -> int:
        """Milliseconds since 1970."""


def admit(
    source: InputSource,
    record: BrokerRecord | UndecodableRecord,
    limits: Limits,
    redactor: Redactor | None = None,
) -> Arrival | QuarantineRecord:
    """Decode and check one record.

    Args:
        source: The input that the record's topic is.
        record: The record from the broker, or a stand-in for records that the client could not
            decode.
        limits: Bounds on size and on the distance between an event's own time and the broker's.
        redactor: Redacts the parts of the record that a quarantine record repeats; by default one
            with the default rules.

    Returns:
        The arrival, or the quarantine record to write instead. Bad input never raises.
    """
    if (unfit := unfit_bytes(record, limits.max_record_bytes)) is not None:
        return unfit
    value, key = record.value or b"", record.key or b""
    if (
        len(value) > limits.small_record_bytes
        and (overfull := _overfull(source, record, value, limits)) is not None
    ):
        return overfull
    envelope = read_envelope(record.headers) if record.headers else None
    try:
        event, conversation_id = decode(source, value, envelope), key.decode()
    except UnicodeDecodeError:  # with replaced bytes, the calls of two such keys would become one
        return _without_key(record, f"{key[:MAX_SHOWN_CHARS]!r}")
    except StructuredModeError as found:
        headers = [
            *found.headers,
            *(each for each in record.headers if each[0] == REPLAY_OF_HEADER),
        ]
        # the event alone as its value, and the attributes of the event as headers
        in_binary_mode = Event(
            record.topic,
            record.partition,
            record.offset,
            record.timestamp,
            key,
            found.value,
            headers,
            source,
            generation=0,
            term=0,
            place=record.offset,
        )
        return admit(source, in_binary_mode, limits, redactor)
    except RefusedRecordError as error:
        shortened = (redactor or Redactor()).beginning
        seen = shortened(error.seen, MAX_SHOWN_CHARS, error.where)
        return _refused(
            record,
            error.reason,
            shortened(error.what, MAX_TOLD_CHARS),
            f"{shortened(error.expected, MAX_TOLD_CHARS)}, saw "
            f"{seen}{'...' if len(error.seen) > MAX_SHOWN_CHARS else ''}",
            "Compare with `callgauge schema`, fix the producer, then put the record back.",
        )
    skew_ms = limits.max_event_time_skew_ms
    broker_ms, origin = record.timestamp, record.partition << 44 | record.offset
    time_ms = event.timestamp
    if skew_ms and time_ms is not None and not -skew_ms <= time_ms - broker_ms <= skew_ms:
        return _refused(
            record,
            RefusalReason.TIME_OUT_OF_BOUNDS,
            "the event's time is far from that of its arrival",
            f"expected within {skew_ms} ms of {broker_ms}, saw {str(time_ms)[:MAX_SHOWN_CHARS]} "
            "(milliseconds since 1970)",
            _remedy_for_time(time_ms),
        )
    return Arrival(
        source, record.offset, broker_ms, conversation_id, event, value, envelope, origin
    )


def origin_of(partition: int, offset: int) -> int:
    """Where a record stands at its input, as one number of 64 bits; `admit` has the same without a
    call for each event.
    """
    return (partition << 44 | offset) % 2**64


def unfit_bytes(
    record: BrokerRecord | UndecodableRecord, max_record_bytes: int
) -> QuarantineRecord | None:
    """Returns the refusal of a record for what can be seen without reading its value; None for one
    that may be an event.
    """
    if isinstance(record, UndecodableRecord):
        return _undecodable(record)
    value, key = record.value, record.key
    if not key or len(key) > MAX_NAME_CHARS:
        return _without_key(record, f"a key of {len(key)} bytes" if key else "no key")
    if value is None:
        return _refused(
            record,
            RefusalReason.UNDECODABLE,
            "the record has no value",
            "expected one JSON object",
            "Input topics are not compacted: do not write tombstones to them.",
        )
    if len(value) > max_record_bytes:
        return _refused(
            record,
            RefusalReason.RECORD_TOO_LARGE,
            "the record is too large",
            f"expected at most {max_record_bytes} bytes, saw {len(value)}",
            "Leave audio and prompts out of events, or raise max_record_bytes.",
        )
    return None


def unfit_headers(record: BrokerRecord) -> QuarantineRecord | None:
    """Returns the refusal of a record whose headers are too many, or too large together; None for
    any other.
    """
    size = sum(len(name) + len(value or b"") for name, value in record.headers)
    if len(record.headers) <= MAX_HEADERS and size <= MAX_HEADERS_BYTES:
        return None
    return _refused(
        record,
        RefusalReason.RECORD_TOO_LARGE,
        "the record's headers are too large",
        f"expected at most {MAX_HEADERS} of {MAX_HEADERS_BYTES} bytes together, saw "
        f"{len(record.headers)} of {size}",
        "Put into headers only what says where an event comes from, and all else into its value.",
    )


def _overfull(
    source: InputSource, record: BrokerRecord, value: bytes, limits: Limits
) -> QuarantineRecord | None:
    """The refusal of a record with too many values; None for one that is read."""
    most_parts = limits.max_record_parts * (2 if source is InputSource.ELEVENLABS else 1)
    if (parts := parts_of(value)) > most_parts:
        return _refused(
            record,
            RefusalReason.RECORD_TOO_LARGE,
            "the record has too many values",
            f"expected at most {most_parts} commas and opening brackets, saw {parts}",
            "Leave large tables out of the arguments and answers of tools.",
        )
    return None


def parts_of(text: bytes) -> int:
    """How many values JSON may have, as far as a quick look tells: its commas and opening brackets,
    those inside of texts too.

    Example:
        >>> parts_of(b'{"a": [1, 2], "b": {}}')
        5
    """
    return text.count(b",") + text.count(b"[") + text.count(b"{")


def _remedy_for_time(time_ms: float) -> str:
    if FIRST_SECONDS <= time_ms < FIRST_MS:
        return (
            "This looks like seconds: send milliseconds since 1970, here "
            f"{int(time_ms * MS_PER_SECOND)}."
        )
    return (
        "Check the producer's clock and unit, or raise limits.max_event_time_skew_ms to take recorded "
        "calls as they are."
    )


def _without_key(record: BrokerRecord, seen: str) -> QuarantineRecord:
    return _refused(
        record,
        RefusalReason.EMPTY_KEY,
        "the record has no usable key",
        f"expected the conversation id of 1 to {MAX_NAME_CHARS} bytes in UTF-8, saw {seen}",
        "Set the Kafka key to the conversation id in the producer.",
    )


def _undecodable(record: UndecodableRecord) -> QuarantineRecord:
    return QuarantineRecord(
        topic=record.topic,
        partition=record.partition,
        offset=record.first_offset,
        last_offset=record.offset if record.offset > record.first_offset else None,
        key="",
        reason=RefusalReason.UNDECODABLE,
        what=record.what,
        expected_and_seen=record.expected_and_seen,
        what_happens_now=WHAT_HAPPENS_NOW_OF_UNDECODABLE,
        what_to_do=record.what_to_do,
        quarantined_at_ms=record.timestamp,
    )


def _refused(
    record: BrokerRecord, reason: RefusalReason, what: str, expected_and_seen: str, what_to_do: str
) -> QuarantineRecord:
    return QuarantineRecord(
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        key=(record.key or b"")[:MAX_NAME_CHARS].decode("utf-8", "replace"),
        reason=reason,
        what=what,
        expected_and_seen=expected_and_seen,
        what_happens_now=WHAT_HAPPENS_NOW,
        what_to_do=what_to_do,
        quarantined_at_ms=record.timestamp,
    )
