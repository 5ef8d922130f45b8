"""Of lines, one that is no JSON is refused alone, and of any body an event that a check refuses: the
others are accepted, and the answer says which one, what, and why. An array is JSON as a whole.
"""

import json
from typing import Any

import pytest

from consumers.engine.sources.otlp import PROTOBUF
from tests.unit.streamer.sources.http.receiver import TOKEN, Receiver
from tests.unit.streamer.sources.http.test_posted import NOW_MS, started
from tests.unit.streamer.sources.http.test_traces import field

ODD = {
    "nested 300 deep": b"[" * 300 + b"]" * 300,
    "nested 100,000 deep": b"[" * 100_000 + b"]" * 100_000,
    "objects nested 5,000 deep": b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
    "half a pair": b'"\\ud83d"',
    "no number": b"NaN",
    "infinity": b"-Infinity",
    "5,000 digits": b"9" * 5_000,
    "a million digits": b"9" * 1_000_000,
    "a control character": b'"\x01"',
    "no UTF-8": b'"\xff"',
    "a word": b"hello",
    "nothing": b"",
    "brackets that do not match": b"[1}",
}
ATTRIBUTES = {
    "specversion": "1.0",
    "id": "1",
    "source": "s",
    "type": "callgauge.call.call_started.v1",
    "subject": "c",
}
SPAN = {
    "traceId": "ab" * 16,
    "spanId": "1" * 16,
    "name": "user_speaking",
    "startTimeUnixNano": str(NOW_MS * 1_000_000),
    "endTimeUnixNano": str(NOW_MS * 1_000_000),
}


def with_odd(event: Any, odd: bytes) -> bytes:
    """The event with this in place of its field `odd`."""
    return json.dumps({**event, "odd": "?"}).encode().replace(b'"?"', odd)


def between(odd: bytes, separator: bytes) -> bytes:
    good = json.dumps(started()).encode()
    return separator.join([good, with_odd(started(), odd), good])


@pytest.mark.parametrize("name", ODD)
async def test_of_events(name: str, receiver: Receiver) -> None:
    for content_type in ("application/x-ndjson", ""):
        answer = await receiver.events(between(ODD[name], b"\n"), content_type=content_type)
        found = answer.json()
        assert (answer.status_code, found["accepted_events"], found["refused_events"]) == (
            207,
            2,
            1,
        ), content_type
        (refused,) = found["refused"]
        assert refused["line"] == 2
        assert all(refused[part] for part in ("reason", "what", "expected_and_seen", "what_to_do"))
    receiver.writer.records.clear()
    for content_type in ("application/json", "application/cloudevents-batch+json"):
        answer = await receiver.events(
            b"[" + between(ODD[name], b",") + b"]", content_type=content_type
        )
        assert answer.status_code == 400, content_type
        assert "JSON lines" in answer.text
    assert receiver.writer.records == []


@pytest.mark.parametrize("name", ODD)
async def test_of_an_event_alone(name: str, receiver: Receiver) -> None:
    for body, content_type in (
        (with_odd(started(), ODD[name]), "application/json"),
        (with_odd({**ATTRIBUTES, "data": started()}, ODD[name]), "application/cloudevents+json"),
    ):
        answer = await receiver.events(body, content_type=content_type)
        assert (answer.status_code, answer.json()["refused_events"]) == (422, 1)


@pytest.mark.parametrize("element", [b"5", b"null", b'"x"', b"[]", b'{"conversation_id": ["x"]}'])
async def test_of_any_other_type(element: bytes, receiver: Receiver) -> None:
    good = json.dumps(started()).encode()
    answer = await receiver.events(b"[" + b",".join([good, element, good]) + b"]")
    assert (answer.status_code, answer.json()["accepted_events"]) == (207, 2)


SPANS: dict[str, bytes] = {
    "no object": b"5",
    "no time": json.dumps({**SPAN, "startTimeUnixNano": "soon"}).encode(),
    "a time of 400 digits": json.dumps({**SPAN, "endTimeUnixNano": "9" * 400}).encode(),
    "no id": json.dumps({**SPAN, "traceId": 5}).encode(),
    "an attribute that is none": json.dumps({**SPAN, "attributes": [5]}).encode(),
    "an attribute without a value": json.dumps({**SPAN, "attributes": [{"key": "a"}]}).encode(),
    "a number that is none": json.dumps(
        {**SPAN, "attributes": [{"key": "a", "value": {"intValue": "x"}}]}
    ).encode(),
}


@pytest.mark.parametrize("name", SPANS)
async def test_of_spans_in_json(name: str, receiver: Receiver) -> None:
    good = json.dumps(SPAN).encode()
    body = (
        b'{"resourceSpans": [{"scopeSpans": [{"spans": ['
        + b",".join([good, SPANS[name], good])
        + b"]}]}]}"
    )
    answer = await traces(receiver, body, "application/json")
    assert (answer["refused_events"], answer["refused"][0]["line"]) == (1, 2)
    assert answer["accepted_events"] == 5  # the start of the call, and two of each good span


async def test_of_resources_and_scopes_in_json(receiver: Receiver) -> None:
    good = (
        b'{"scopeSpans": [{"spans": ['
        + json.dumps(SPAN).encode()
        + b'], "scope": {}}], "resource": {}}'
    )
    odd = [
        b"5",
        b'{"scopeSpans": 5}',
        b'{"scopeSpans": [5]}',
        b'{"scopeSpans": [{"spans": 5}]}',
    ]
    for each in odd:
        answer = await traces(
            receiver, b'{"resourceSpans": [' + b",".join([good, each, good]) + b"]}", ""
        )
        assert (
            answer["accepted_events"],
            answer["refused_events"],
            answer["refused"][0]["line"],
        ) == (5, 1, 2)
    named = {
        "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "desk"}}]}
    }
    for resource in (named, {"resource": {"attributes": [5]}}, {"resource": 5}):
        receiver.writer.records.clear()
        await traces(
            receiver,
            json.dumps(
                {"resourceSpans": [{"scopeSpans": [{"spans": [SPAN]}], **resource}]}
            ).encode(),
            "",
        )
        assert receiver.written[0][1].get("agent") == ("desk" if resource is named else None)


def message(*more: bytes) -> bytes:
    at = (NOW_MS * 1_000_000).to_bytes(8, "little")
    times = bytes([7 << 3 | 1]) + at + bytes([8 << 3 | 1]) + at
    return (
        field(1, b"\xab" * 16)
        + field(2, bytes(8))
        + field(5, b"user_speaking")
        + times
        + b"".join(more)
    )


MESSAGES = {
    "a name that is no text": message(field(5, b"\xff")),
    "a value that is no text": message(field(9, field(1, b"a") + field(2, field(1, b"\xff")))),
    "an attribute beyond its end": message(field(9, b"\x0a\x7f")),
    "a field beyond the end": message(b"\xff\xff"),
    "a number for a status": message(bytes([15 << 3]) + b"\x05"),
    "too many attributes": message(field(9, b"") * 10_001),
}


@pytest.mark.parametrize("name", MESSAGES)
async def test_of_spans_in_protobuf(name: str, receiver: Receiver) -> None:
    spans = b"".join(field(2, each) for each in (message(), MESSAGES[name], message()))
    answer = await traces(receiver, field(1, field(2, spans)), PROTOBUF)
    assert (answer["accepted_events"], answer["refused_events"], answer["refused"][0]["line"]) == (
        5,
        1,
        2,
    )
    apart = b"".join(field(1, field(2, field(2, each))) for each in (message(), message()))
    answer = await traces(
        receiver, field(1, b"\x12\x7f") + apart + field(1, field(2, b"\x12\x7f")), PROTOBUF
    )
    assert (answer["accepted_events"], [each["line"] for each in answer["refused"]]) == (5, [1, 4])


async def traces(receiver: Receiver, body: bytes, content_type: str) -> Any:
    answer = await receiver.post(
        "/v1/traces", body, authorization=f"Bearer {TOKEN}", content_type=content_type
    )
    assert answer.status_code in (202, 207), answer.text
    return answer.json()
