"""Headers that we write are read by the `cloudevents` package, and headers that it writes are read by us."""

from datetime import UTC, datetime

from cloudevents.core.bindings import kafka
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from hypothesis import given
from hypothesis import strategies as st

from schemas.events.envelope import Envelope, envelope_headers, read_envelope

NOW_MS = 1_790_000_000_123
# The standard allows no control characters in attributes; `cloudevents` strips nothing, so neither end may be blank.
words = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=40)
sequences = st.integers(min_value=0, max_value=2**63 - 1)


@given(words, words, words, words, st.integers(min_value=0, max_value=4 * 10**12), st.none() | sequences)
def test_the_package_reads_our_headers(
    event_id: str, source: str, event_type: str, subject: str, time_ms: int, sequence: int | None
) -> None:
    headers = envelope_headers(
        event_id=event_id, source=source, event_type=event_type, subject=subject, time_ms=time_ms, sequence=sequence
    )
    event = kafka.from_binary(kafka.KafkaMessage(dict(headers), subject, b'{"type": "x"}'), JSONFormat())
    assert (event.get_id(), event.get_source(), event.get_type()) == (event_id, source, event_type)
    assert (event.get_subject(), event.get_datacontenttype()) == (subject, "application/json")
    assert event.get_time() == datetime.fromtimestamp(time_ms // 1000, UTC).replace(microsecond=time_ms % 1000 * 1000)
    assert event.get_extension("partitionkey") == subject
    assert event.get_extension("sequence") == (None if sequence is None else str(sequence))
    assert event.get_data() == {"type": "x"}
    assert read_envelope(headers) == Envelope(event_id, source, event_type, sequence)


@given(words, words, words, st.none() | sequences)
def test_we_read_the_headers_of_the_package(event_id: str, source: str, event_type: str, sequence: int | None) -> None:
    attributes = {"id": event_id, "source": source, "type": event_type, "specversion": "1.0"}
    if sequence is not None:
        attributes["sequence"] = str(sequence)
    written = kafka.to_binary(CloudEvent(attributes=attributes, data={"type": "x"}), JSONFormat())
    assert read_envelope(list(written.headers.items())) == Envelope(event_id, source, event_type, sequence)


def test_a_time_without_an_iso_form_and_a_missing_sequence_leave_no_header() -> None:
    headers = dict(envelope_headers(event_id="1", source="s", event_type="t", subject="c", time_ms=10**18))
    assert headers.keys().isdisjoint({"ce_time", "ce_sequence"})
    assert "ce_time" not in dict(envelope_headers(event_id="1", source="s", event_type="t", subject="c"))
