"""POST /events reads bodies that the cloudevents package writes, in every mode, and plain JSON."""

import json
from typing import Any

import pytest
from cloudevents.core.bindings import http
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from hypothesis import given
from hypothesis import strategies as st

from streamer.sources.http.posted import MAX_EVENTS, Posted, UnreadableBodyError, posted_events

words = st.text(st.characters(exclude_categories=("C", "Z"), exclude_characters='"'), min_size=1, max_size=30)
scalars = st.none() | st.booleans() | st.integers(min_value=-(2**53), max_value=2**53) | st.text(max_size=20)
data = st.dictionaries(st.text(max_size=10), scalars, max_size=4)


def attributes_of(event_id: str, source: str, kind: str, subject: str) -> dict[str, Any]:
    return {"id": event_id, "source": source, "type": kind, "specversion": "1.0", "subject": subject}


def lowered(headers: dict[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


@given(words, words, words, words, data)
def test_both_modes_of_the_package_are_read(source: str, event_id: str, kind: str, subject: str, event: Any) -> None:
    attributes = attributes_of(event_id, source, kind, subject)
    written = CloudEvent(attributes={**attributes, "datacontenttype": "application/json"}, data=event)
    for message in (http.to_binary(written, JSONFormat()), http.to_structured(written, JSONFormat())):
        headers = lowered(message.headers)
        (posted,) = posted_events(message.body, headers.get("content-type", ""), headers)
        assert posted.fault is None
        assert posted.event == event
        assert posted.attributes is not None
        assert attributes.items() <= posted.attributes.items()


@given(st.lists(st.tuples(words, data), min_size=1, max_size=5))
def test_a_batch_is_read_event_by_event(events: list[tuple[str, Any]]) -> None:
    written = [CloudEvent(attributes=attributes_of(name, "s", "t", "c"), data=event) for name, event in events]
    documents = [json.loads(http.to_structured(each, JSONFormat()).body) for each in written]
    body = json.dumps(documents).encode()
    posted = posted_events(body, "application/cloudevents-batch+json; charset=utf-8", {})
    assert [(each.place, each.event, each.fault) for each in posted] == [
        (place, event, None) for place, (_, event) in enumerate(events, 1)
    ]


def test_plain_bodies() -> None:
    one, two = {"type": "a"}, {"type": "b"}
    assert posted_events(b'{"type": "a"}', "application/json", {}) == [Posted(1, one)]
    assert posted_events(b'{\n "type":\n "a"}', "", {}) == [Posted(1, one)]
    assert posted_events(b'[{"type": "a"}, {"type": "b"}]', "application/json", {}) == [Posted(1, one), Posted(2, two)]
    assert posted_events(b'\r\n[{"type": "a"}]', "text/plain", {}) == [Posted(1, one)]
    lines = b'{"type": "a"}\r\n\n{"type": "b"}\n'
    assert posted_events(lines, "application/x-ndjson", {}) == [Posted(1, one), Posted(3, two)]
    assert posted_events(lines, "application/json", {}) == [Posted(1, one), Posted(3, two)]


def test_a_broken_line_is_named_and_the_others_are_read() -> None:
    posted = posted_events(b'{"type": "a"}\n{"type": \n{"type": "b"}\n{"x": NaN}\n{"type', "application/x-ndjson", {})
    assert [(each.place, each.fault is None) for each in posted] == [
        (1, True), (2, False), (3, True), (4, False), (5, False),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"", "application/json"),
        (b"hello", "application/json"),
        (b'[{"type": "a"}, ', "application/json"),
        (b"\xff\xfe", "application/json"),
        (b'{"type": "a"}', "application/cloudevents-batch+json"),
        (b"[" * 100_000, "application/json"),
        (b"[" + b"0," * MAX_EVENTS + b"0]", "application/json"),
        (b"0\n" * (MAX_EVENTS + 1), "application/x-ndjson"),
    ],
)
def test_bodies_that_are_refused_as_a_whole(body: bytes, content_type: str) -> None:
    with pytest.raises(UnreadableBodyError):
        posted_events(body, content_type, {})


@given(st.binary(max_size=200), st.sampled_from(["", "application/json", "application/x-ndjson", "application/cloudevents+json",
       "application/cloudevents-batch+json"]), st.dictionaries(st.sampled_from(["ce-id", "ce-type", "ce-specversion"]),
       st.text(max_size=5)))  # fmt: skip
def test_no_body_breaks_the_reader(body: bytes, content_type: str, headers: dict[str, str]) -> None:
    try:
        posted = posted_events(body, content_type, headers)
    except UnreadableBodyError:
        return
    assert all(isinstance(each, Posted) for each in posted)


@pytest.mark.parametrize(
    ("document", "fault"),
    [
        ({"id": "1", "source": "s", "type": "t"}, "lacks specversion"),
        ({"specversion": "0.3", "id": "1", "source": "s", "type": "t"}, 'expected "1.0"'),
        ({"specversion": "1.0"}, "lacks id, source, type"),
        ({"specversion": "1.0", "id": "1", "source": "s", "type": "t", "data_base64": "!"}, "data_base64"),
        ({"specversion": "1.0", "id": "1", "source": "s", "type": "t", "data_base64": 5}, "data_base64"),
        ([], "as a JSON object"),
    ],
)
def test_an_event_that_is_no_cloudevent(document: object, fault: str) -> None:
    (posted,) = posted_events(json.dumps(document).encode(), "application/cloudevents+json", {})
    assert posted.fault is not None
    assert fault in posted.fault


def test_data_in_base64() -> None:
    document = {"specversion": "1.0", "id": "1", "source": "s", "type": "t", "data_base64": "eyJ0eXBlIjogImEifQ=="}
    (posted,) = posted_events(json.dumps(document).encode(), "application/cloudevents+json", {})
    assert (posted.event, posted.fault) == ({"type": "a"}, None)
