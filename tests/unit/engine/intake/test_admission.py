"""Admitting a Kafka record: an arrival, or the quarantine record that says what is wrong in five parts."""

import json
from dataclasses import dataclass, replace

import pytest

from consumers.engine.admission import WHAT_HAPPENS_NOW, Arrival, admit
from consumers.engine.limits import Limits
from schemas.closed_sets import InputSource, RefusalReason
from schemas.events.envelope import Envelope
from schemas.quarantine import QuarantineRecord
from schemas.wire import MAX_NAME_CHARS
from tests.support.brokers.record_bytes import stand_in

NOW_MS = 1_790_000_000_000
DAY_MS = 24 * 3_600_000
LIMITS = Limits(max_record_bytes=100_000, max_event_time_skew_ms=DAY_MS)


@dataclass(frozen=True)
class Record:
    """The parts of a broker's record that intake reads."""

    topic: str = "audit.events"
    partition: int = 3
    offset: int = 41
    timestamp: int = NOW_MS
    key: bytes | None = b"call-7"
    value: bytes | None = b""
    headers: tuple[tuple[str, bytes], ...] = ()


def _value(**fields: object) -> bytes:
    return json.dumps({"message_type": "user", "value": "Hello", "timestamp": NOW_MS} | fields).encode()


def test_a_good_record_is_an_arrival() -> None:
    record = Record(value=_value(), headers=(("ce_id", b"e-1"),))
    admitted = admit(InputSource.AUDIT, record, LIMITS)
    assert isinstance(admitted, Arrival)
    assert (admitted.source, admitted.offset, admitted.broker_time_ms) == (InputSource.AUDIT, 41, NOW_MS)
    assert admitted.conversation_id == "call-7"
    assert admitted.event.value == "Hello"
    assert admitted.envelope == Envelope("e-1", None, None, None)


def test_the_key_wins_over_an_id_in_the_body() -> None:
    admitted = admit(InputSource.AUDIT, Record(value=_value(conversation_id="another")), LIMITS)
    assert isinstance(admitted, Arrival)
    assert admitted.conversation_id == "call-7"


REFUSED = [
    (Record(value=b"{"), RefusalReason.UNDECODABLE, "JSON"),
    (Record(value=None), RefusalReason.UNDECODABLE, "no value"),
    (Record(value=_value(value=None)), RefusalReason.INVALID_EVENT, "value"),
    (Record(value=_value(value="x" * 40_000)), RefusalReason.TEXT_TOO_LONG, "40000 characters"),
    (Record(value=_value(), key=None), RefusalReason.EMPTY_KEY, "no key"),
    (Record(value=_value(), key=b""), RefusalReason.EMPTY_KEY, "no key"),
    (Record(value=_value(), key=b"k" * (MAX_NAME_CHARS + 1)), RefusalReason.EMPTY_KEY, f"{MAX_NAME_CHARS + 1} bytes"),
    (Record(value=b"x" * 100_001), RefusalReason.RECORD_TOO_LARGE, "saw 100001"),
    (Record(value=_value(timestamp=NOW_MS + DAY_MS + 1)), RefusalReason.TIME_OUT_OF_BOUNDS, str(NOW_MS + DAY_MS + 1)),
    (Record(value=_value(timestamp=NOW_MS // 1000)), RefusalReason.TIME_OUT_OF_BOUNDS, "looks like seconds"),
    (Record(value=_value(timestamp=NOW_MS // 7)), RefusalReason.TIME_OUT_OF_BOUNDS, "clock and unit"),
    (
        Record(
            topic="elevenlabs.events",
            value=json.dumps({"event_type": "audio_end", "user": "x", "audio_timestamp": 1, "timestamp": 1}).encode(),
        ),
        RefusalReason.UNKNOWN_ROLE,
        "role",
    ),
]


@pytest.mark.parametrize(("record", "reason", "words"), REFUSED)
def test_a_refusal_says_what_where_why_and_what_to_do(record: Record, reason: RefusalReason, words: str) -> None:
    source = InputSource.ELEVENLABS if record.topic.startswith("eleven") else InputSource.AUDIT
    refused = admit(source, record, LIMITS)
    assert isinstance(refused, QuarantineRecord)
    assert refused.reason is reason
    message = refused.message()
    assert f"{record.topic}[3]@41" in message
    assert words in message
    for part in (refused.what, refused.expected_and_seen, WHAT_HAPPENS_NOW, refused.what_to_do):
        assert part
        assert part in message
    assert len(message) < 1_000
    assert len(refused.key) <= MAX_NAME_CHARS
    assert refused.quarantined_at_ms == NOW_MS
    assert QuarantineRecord.model_validate_json(refused.model_dump_json()) == refused


@pytest.mark.parametrize(("last", "where"), [(41, "@41: "), (47, "@41 to @47: ")])
def test_records_that_the_client_cannot_decode_are_refused_by_their_places(last: int, where: str) -> None:
    refused = admit(InputSource.AUDIT, stand_in("audit.events", 41, last), LIMITS)
    assert isinstance(refused, QuarantineRecord)
    assert (refused.reason, refused.offset, refused.key) == (RefusalReason.UNDECODABLE, 41, "")
    assert refused.last_offset == (None if last == 41 else last)
    assert f"audit.events[0]{where}the batch cannot be unpacked" in refused.message()
    assert QuarantineRecord.model_validate_json(refused.model_dump_json()) == refused


def test_every_reason_is_tried() -> None:
    assert {reason for _, reason, _ in REFUSED} == set(RefusalReason)


def test_the_payload_stays_where_it_is() -> None:
    refused = admit(InputSource.AUDIT, Record(value=_value(value={"secret": "s3cret" * 10_000})), LIMITS)
    assert isinstance(refused, QuarantineRecord)
    assert refused.model_dump_json().count("s3cret") <= 13


@pytest.mark.parametrize("offset_ms", [DAY_MS, -DAY_MS])
def test_times_within_the_bounds_pass(offset_ms: int) -> None:
    assert isinstance(admit(InputSource.AUDIT, Record(value=_value(timestamp=NOW_MS + offset_ms)), LIMITS), Arrival)


def test_zero_takes_recorded_calls_of_any_year() -> None:
    limits = LIMITS.model_copy(update={"max_event_time_skew_ms": 0})
    assert isinstance(admit(InputSource.AUDIT, Record(value=_value(timestamp=1)), limits), Arrival)


def test_events_without_a_time_have_no_bounds() -> None:
    record = Record(topic="elevenlabs.events", value=b'{"type": "timeout"}')
    assert isinstance(admit(InputSource.ELEVENLABS, record, LIMITS), Arrival)


def test_a_key_that_is_no_text_is_still_a_key() -> None:
    admitted = admit(InputSource.AUDIT, replace(Record(value=_value()), key=b"\xff\xfe"), LIMITS)
    assert isinstance(admitted, Arrival)
    assert admitted.conversation_id == "\ufffd\ufffd"
