"""Every kind of request at its largest allowed size, over HTTP: no step of the loop takes longer
than a twentieth of a second.
"""

import asyncio
import base64
import gzip
import json
import socket
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from consumers.engine.limits import Limits
from consumers.engine.sources.otlp import PROTOBUF
from consumers.runtime.http import ConnectionBounds, HttpListener
from streamer.settings.all_settings import IngestSettings
from streamer.sources.http import elevenlabs
from streamer.sources.http.body import MAX_EVENTS, MAX_PARTS
from streamer.sources.http.posted import MAX_BODY_BYTES
from tests.support.held_loop import MOST_SECONDS, in_short_steps, times_slower
from tests.support.patience import patient
from tests.support.webhooks import SECRET, delivery, entry, record_of_a_call, signature_header
from tests.unit.streamer.sources.http.receiver import TOKEN, Receiver
from tests.unit.streamer.sources.http.test_hostile_bodies import HOSTILE, hostile
from tests.unit.streamer.sources.http.test_traces import MANY_PARTS, field, kind_of

NOW_MS = int(time.time() * 1000)
MAX_RECORD_PARTS = Limits().max_record_parts
NDJSON, CLOUDEVENT = "application/x-ndjson", "application/cloudevents+json"
ATTRIBUTES = {
    "specversion": "1.0",
    "id": "1",
    "source": "s",
    "type": "callgauge.pipecat.user_message.v1",
    "subject": "c",
}
Json = dict[str, Any]


def said(words: str = "hello", **more: Any) -> Json:
    return {
        "conversation_id": "c",
        "type": "user_message",
        "timestamp": NOW_MS,
        "data": {"content": words},
        **more,
    }


def used(arguments: Any) -> Json:
    data = {
        "kind": "function_call_in_progress",
        "tool_call_id": "1",
        "function_name": "f",
        "arguments": arguments,
    }
    return {
        "conversation_id": "c",
        "type": "function_call_event",
        "timestamp": NOW_MS,
        "data": data,
    }


def many(*, each: int = 0) -> list[Json]:
    return [said("x" * each)] * MAX_EVENTS


def array(*events: Json) -> bytes:
    return json.dumps(events).encode()


def with_arguments(text: bytes) -> bytes:
    return array(used("?")).replace(b'"?"', text)


def span(number: int) -> Json:
    words = {"key": "lk.pii.user_transcript", "value": {"stringValue": "hello there my friend"}}
    time_ns = str(NOW_MS * 1_000_000)
    named = {"traceId": "ab" * 16, "spanId": f"{number:016x}", "name": "user_turn"}
    return {
        **named,
        "startTimeUnixNano": time_ns,
        "endTimeUnixNano": time_ns,
        "attributes": [words] * 3,
    }


def traces(spans: list[Json]) -> bytes:
    return json.dumps(
        {"resourceSpans": [{"resource": {}, "scopeSpans": [{"spans": spans}]}]}
    ).encode()


def message(number: int, words: bytes = b"hello") -> bytes:
    at = (NOW_MS * 1_000_000).to_bytes(8, "little")
    attribute = field(9, field(1, b"lk.pii.user_transcript") + field(2, field(1, words)))
    times = bytes([7 << 3 | 1]) + at + bytes([8 << 3 | 1]) + at
    return field(
        2,
        field(1, b"\xab" * 16)
        + field(2, number.to_bytes(8, "big"))
        + field(5, b"user_turn")
        + times
        + attribute * 3,
    )


def record(entries: int, words: str) -> bytes:
    talk = [
        entry("user" if number % 2 else "agent", words, number % 500, 1.5)
        for number in range(entries)
    ]
    return delivery(
        "post_call_transcription",
        record_of_a_call("conv_1", int(time.time()) - 600, *talk),
        time.time(),
    )


def in_chunks(body: bytes) -> bytes:
    return b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"


def fitting(made: Callable[[int], bytes], number: int, most_bytes: int) -> bytes:
    """What is made of so many parts, or of fewer if that is too long."""
    while len(body := made(number)) > most_bytes:
        number = int(number * 0.98 * most_bytes / len(body))
    return body


EVENTS: dict[str, tuple[Callable[[], bytes], Json, int]] = {
    "an event of one text": (lambda: array(said("x" * (2**21 - 200))), {}, 422),
    "an event of escaped letters": (
        lambda: array(said("ü" * (2**21 // 6 - 50))),
        {},
        422,
    ),
    "an event as large as the body": (lambda: array(said("x" * (MAX_BODY_BYTES - 200))), {}, 422),
    "an event of numbers": (lambda: array(used([0] * (MAX_RECORD_PARTS - 20))), {}, 202),
    "an event of objects": (
        lambda: array(used([{"a": 1}] * (MAX_RECORD_PARTS // 2 - 20))),
        {},
        202,
    ),
    "an event of long numbers": (
        lambda: with_arguments(b"[%b]" % b",".join([b"9" * 4_000] * 187)),
        {},
        202,
    ),
    "an event of long fractions": (
        lambda: with_arguments(b"[%b]" % b",".join([b"0." + b"12345" * 16] * 9_000)),
        {},
        202,
    ),
    "one number": (lambda: with_arguments(b"9" * (MAX_BODY_BYTES - 400)), {}, 400),
    "as many events as there may be": (lambda: array(*many(each=280)), {}, 202),
    "small events": (lambda: array(*many()), {}, 202),
    "refused events": (
        lambda: array(*[{"conversation_id": "c", "type": "x" * 300}] * MAX_EVENTS),
        {},
        422,
    ),
    "lines": (
        lambda: b"\n".join(array(each)[1:-1] for each in many(each=280)),
        {"content-type": NDJSON},
        202,
    ),
    "lines that do not say so": (
        lambda: b"\n".join(array(each)[1:-1] for each in many(each=280)),
        {},
        202,
    ),
    "a cloudevent": (
        lambda: json.dumps({**ATTRIBUTES, "data": said("x" * 2_000_000)}).encode(),
        {"content-type": CLOUDEVENT},
        422,
    ),
    "a cloudevent in base64": (
        lambda: json.dumps(
            {
                **ATTRIBUTES,
                "data_base64": base64.b64encode(array(used([0] * 24_900))[1:-1]).decode(),
            }
        ).encode(),
        {"content-type": CLOUDEVENT},
        202,
    ),
    "cloudevents": (
        lambda: fitting(
            lambda most: json.dumps(
                [{**ATTRIBUTES, "data": each} for each in many(each=80)[:most]]
            ).encode(),
            MAX_EVENTS,
            MAX_BODY_BYTES,
        ),
        {"content-type": "application/cloudevents-batch+json"},
        202,
    ),
    "a cloudevent in headers": (
        lambda: array(said("x" * 2_000_000))[1:-1],
        {f"ce-{name}": value for name, value in ATTRIBUTES.items()},
        422,
    ),
    "tools in one message of Vapi": (
        lambda: (
            json.dumps(
                {
                    "message": {
                        "type": "end-of-call-report",
                        "call": {"id": "c"},
                        "artifact": {
                            "messages": [
                                {
                                    "toolCallId": "1",
                                    "role": "tool_call_result",
                                    "name": "x",
                                    "result": "?",
                                }
                            ]
                            * 3
                        },
                    }
                }
            )
            .replace("?", "\\u005b" + "\\u005b\\u005d," * 33_000 + "0]")
            .replace(",", "\\u002c")
            .encode()
        ),
        {},
        422,
    ),
    "a gzip bomb": (
        lambda: gzip.compress(bytes(100_000_000), 1),
        {"content-encoding": "gzip"},
        413,
    ),
    "blanks in gzip": (
        lambda: gzip.compress(b"[" + b" " * (MAX_BODY_BYTES - 2) + b"]"),
        {"content-encoding": "gzip"},
        400,
    ),
    "events in gzip": (
        lambda: gzip.compress(array(*many(each=280))),
        {"content-encoding": "gzip"},
        202,
    ),
    "twenty million blank lines": (lambda: b"\n" * 20_000_000, {}, 413),
    "blank lines and an event": (
        lambda: b"\n" * (MAX_BODY_BYTES - 200) + array(said())[1:-1],
        {"content-type": NDJSON},
        202,
    ),
    "chunks of one byte": (
        lambda: in_chunks(array(*many()[:500])),
        {"transfer-encoding": "chunked"},
        202,
    ),
}
TRACES: dict[str, tuple[Callable[[], bytes], str, int]] = {
    "spans": (
        lambda: fitting(
            lambda most: traces([span(each) for each in range(most)]), 5_000, MAX_BODY_BYTES
        ),
        "",
        202,
    ),
    "more spans than are read at once": (
        lambda: traces([span(each) for each in range(6_000)]),
        "",
        400,
    ),
    "a span of attributes": (
        lambda: traces([{**span(1), "attributes": span(1)["attributes"] * 1_900}]),
        "",
        202,
    ),
    "scopes": (
        lambda: b'{"resourceSpans":[' + b",".join([b'{"scopeSpans":[{},{}]}'] * 5_000) + b"]}",
        "",
        400,
    ),
    "scopes of one resource": (
        lambda: (
            b'{"resourceSpans":[{"scopeSpans":['
            + b",".join([b'{"scope":{},"spans":[]}'] * MAX_EVENTS)
            + b"]}]}"
        ),
        "",
        400,
    ),
    "spans in protobuf": (
        lambda: field(1, field(2, b"".join(map(message, range(MAX_EVENTS - 1))))),
        PROTOBUF,
        202,
    ),
    "a span of one text in protobuf": (
        lambda: field(1, field(2, message(1, b"x" * 1_390_000))),
        PROTOBUF,
        207,
    ),
    "spans of attributes in protobuf": (
        lambda: field(
            1, field(2, field(2, field(9, field(1, b"a") + field(2, field(1, b"x"))) * 1_900) * 80)
        ),
        PROTOBUF,
        202,
    ),
}
DELIVERIES: dict[str, tuple[Callable[[], bytes], str]] = {
    "long entries": (lambda: record(1_500, "w" * 5_000), "too_large_to_keep"),
    "many entries": (
        lambda: fitting(lambda most: record(most, "hm"), 36_000, elevenlabs.MAX_BODY_BYTES),
        "too_large_to_keep",
    ),
    "entries of usual length": (lambda: record(5_000, "hm, yes"), "accepted"),
    "parts": (
        lambda: (
            b'{"type":"post_call_transcription","data":[' + b"[]," * (MAX_PARTS // 2 - 9) + b"0]}"
        ),
        "quarantined",
    ),
    "parts that are not read": (
        lambda: b'{"type":"post_call_transcription","data":[' + b"[]," * 2_000_000 + b"0]}",
        "quarantined",
    ),
    "no call": (lambda: b'{"type":"of_tomorrow","data":"' + b"x" * 8_300_000 + b'"}', "ignored"),
    "sound": (
        lambda: delivery("post_call_audio", {"full_audio": "QUJD" * 2_500_000}, time.time()),
        "ignored",
    ),
    "a record that is too long": (lambda: record(1_800, "w" * 5_000), "too_large"),
}


class Ingest:
    """The routes on a port."""

    def __init__(self) -> None:
        settings = {"token": TOKEN, "elevenlabs_secret": SECRET, "events_per_second": 1_000_000}
        self.receiver = Receiver(IngestSettings.model_validate(settings))
        bounds = ConnectionBounds(patient(60), patient(60), 8)
        self.listener = HttpListener(
            "127.0.0.1",
            0,
            self.receiver.app.routes,
            lambda _: None,
            bounds=bounds,
            without_it="Nothing is received",
        )

    async def answer(self, path: str, body: bytes, headers: Json) -> tuple[int, bytes]:
        """Sends a request from another thread; the status and the text of its answer."""
        port = int(self.listener.address.rpartition(":")[2])
        return await asyncio.to_thread(_posted, port, path, body, headers)


def _posted(port: int, path: str, body: bytes, headers: Json) -> tuple[int, bytes]:
    length = {} if "transfer-encoding" in headers else {"content-length": len(body)}
    named = {
        "host": "127.0.0.1",
        "authorization": f"Bearer {TOKEN}",
        "connection": "close",
        "content-type": "application/json",
    }
    lines = [f"{name}: {value}" for name, value in {**named, **length, **headers}.items()]
    with socket.create_connection(("127.0.0.1", port), timeout=patient(60)) as connection:
        connection.sendall("\r\n".join([f"POST {path} HTTP/1.1", *lines, "", ""]).encode() + body)
        answer = b"".join(iter(lambda: connection.recv(65_536), b""))
    return int(answer[9:12]), answer.partition(b"\r\n\r\n")[2]


@pytest.fixture
async def ingest() -> AsyncIterator[Ingest]:
    ingest = Ingest()
    await ingest.listener.start()
    yield ingest
    await ingest.listener.stop()


@pytest.mark.parametrize("name", EVENTS)
async def test_events(ingest: Ingest, name: str) -> None:
    made, headers, status = EVENTS[name]
    body = made()
    found, text = await in_short_steps(lambda: ingest.answer("/events", body, headers))
    assert found == status, text[:500]


@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_bodies(ingest: Ingest, name: str) -> None:
    body, content_type = hostile(name, MAX_BODY_BYTES)
    status, _ = await in_short_steps(
        lambda: ingest.answer("/events", body, {"content-type": content_type})
    )
    assert status in (400, 422)


@pytest.mark.parametrize("name", TRACES)
async def test_traces(ingest: Ingest, name: str) -> None:
    made, content_type, status = TRACES[name]
    body = made()
    found, text = await in_short_steps(
        lambda: ingest.answer("/v1/traces", body, {"content-type": content_type})
    )
    assert found == status, text[:500]


@pytest.mark.parametrize("name", MANY_PARTS)
async def test_traces_of_millions_of_parts(ingest: Ingest, name: str) -> None:
    body = MANY_PARTS[name]
    found, text = await in_short_steps(
        lambda: ingest.answer("/v1/traces", body, {"content-type": kind_of(body)})
    )
    assert found in (202, 400, 422), text[:500]


@pytest.mark.parametrize("name", DELIVERIES)
async def test_deliveries(ingest: Ingest, name: str) -> None:
    made, outcome = DELIVERIES[name]
    body = made()
    header = {"elevenlabs-signature": signature_header(body, int(time.time()))}
    status, text = await in_short_steps(lambda: ingest.answer("/webhooks/elevenlabs", body, header))
    assert (status, text) == (200, f"{outcome}\n".encode())


async def test_a_step_that_is_too_long_is_seen(ingest: Ingest) -> None:
    """Of a callback of the loop, whatever else the machine does."""

    def compute() -> None:
        # the bound is asked a moment later, when the machine may be slower
        until = time.thread_time() + 3 * MOST_SECONDS * times_slower()
        while time.thread_time() <= until:
            pass

    async def hold() -> None:
        asyncio.get_running_loop().call_soon(compute)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    with pytest.raises(AssertionError, match="compute"):
        await in_short_steps(hold)
