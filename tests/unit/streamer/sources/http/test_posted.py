"""`POST /events`: permitted senders, bodies in every mode of CloudEvents, slow clients, and the
text of a refusal.
"""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from cloudevents.core.bindings import http
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from hypothesis import given
from hypothesis import strategies as st

from consumers.runtime.http import BoundedConnection, ConnectionBounds, HttpLimit, HttpListener
from schemas.events.envelope import Envelope, read_envelope
from streamer.settings.all_settings import IngestSettings, SenderSettings
from streamer.sources.http import posted as events
from streamer.sources.http import receiving as bodies
from streamer.sources.http.body import MAX_EVENTS, Posted, UnreadableBodyError, posted_events
from streamer.sources.http.receiving import NEW_CALL_EVENTS, Senders
from tests.support.patience import patient
from tests.unit.streamer.sources.http.receiver import TOKEN, Receiver

NOW_MS = int(time.time() * 1000)
REQUESTS = "callgauge_ingest_requests_total"
TENANTS = {
    name: SenderSettings.model_validate({"token": f"of-{name}"}) for name in ("acme", "globex")
}


def started(**more: Any) -> dict[str, Any]:
    return {"conversation_id": "c1", "type": "call_started", "timestamp": NOW_MS, **more}


def spoke(kind: str, **more: Any) -> dict[str, Any]:
    data = {"kind": kind, "timestamp": NOW_MS / 1000}
    return {
        "conversation_id": "c1",
        "type": "speech_event",
        "timestamp": NOW_MS,
        "data": data,
        **more,
    }


async def test_events_of_every_stream_go_to_their_topics(receiver: Receiver) -> None:
    posted = [
        started(agent="desk"),
        spoke("user_speech_started"),
        {"conversation_id": 7, "message_type": "user", "value": "Hi", "timestamp": str(NOW_MS)},
        {
            "conversation_id": "c2",
            "type": "user_transcript",
            "user_transcription_event": {"user_transcript": "Hi"},
        },
        {
            "conversation_id": "c3",
            "stream": "user_sim",
            "event_type": "audio_start",
            "user": "simulated_user",
            "audio_timestamp": NOW_MS / 1000,
            "timestamp": NOW_MS,
        },
    ]
    response = await receiver.events(posted)
    assert (response.status_code, response.json()) == (
        202,
        {"accepted_events": 5, "refused_events": 0},
    )
    assert [source for source, _ in receiver.written] == [
        "pipecat",
        "pipecat",
        "audit",
        "elevenlabs",
        "elevenlabs",
    ]
    assert [each.key for each in receiver.writer.records] == [b"c1", b"c1", b"7", b"c2", b"c3"]
    assert all({"conversation_id", "stream"}.isdisjoint(event) for _, event in receiver.written)
    types = [dict(each.headers)["ce_type"].decode() for each in receiver.writer.records]
    assert types == [
        "callgauge.call.call_started.v1",
        "callgauge.pipecat.speech_event.v1",
        "callgauge.audit.user.v1",
        "callgauge.elevenlabs.user_transcript.v1",
        "callgauge.user_sim.audio_start.v1",
    ]
    # the time of its arrival
    assert abs(receiver.written[3][1]["timestamp"] - time.time() * 1000) < 60_000
    assert receiver.count("callgauge_ingest_events_total", tenant="", source="audit") == 1


async def test_a_number_that_no_float_holds_is_null(receiver: Receiver) -> None:
    value = {"tool": "fee", "response": "?"}
    event = {
        "conversation_id": "c",
        "message_type": "tool_response",
        "timestamp": NOW_MS,
        "value": value,
    }
    assert (
        await receiver.events(json.dumps(event).replace('"?"', "1e999").encode())
    ).status_code == 202
    assert receiver.written[0][1]["value"] == {"tool": "fee", "response": None}


async def test_a_request_that_comes_again_with_its_key_is_a_repeat(receiver: Receiver) -> None:
    for _ in range(2):
        await receiver.events([started(), spoke("user_speech_started")], idempotency_key="k1")
    await receiver.events([started()])
    # there is one
    ids = [read_envelope(each.headers).id for each in receiver.writer.records]  # type: ignore[union-attr]
    assert ids[:4] == ["k1/1", "k1/2"] * 2
    assert ids[4] not in ids[:4]


async def test_attributes_of_a_cloudevent_are_kept(receiver: Receiver) -> None:
    headers = {
        "ce_specversion": "1.0",
        "ce_id": "e%201",
        "ce_source": "/bot/7",
        "ce_type": "callgauge.pipecat.speech_event.v1",
        "ce_subject": "c9",
        "ce_sequence": "12",
    }
    event = {
        key: value
        for key, value in spoke("user_speech_started").items()
        if key != "conversation_id"
    }
    response = await receiver.events(json.dumps(event).encode(), **headers)
    assert response.status_code == 202
    (record,) = receiver.writer.records
    assert record.key == b"c9"
    assert read_envelope(record.headers) == Envelope(
        "e 1", "/bot/7", "callgauge.pipecat.speech_event.v1", 12
    )


async def test_of_half_a_batch_the_other_half_is_accepted(receiver: Receiver) -> None:
    lines = [
        json.dumps(started()),
        '{"conversation_id": "c1", "type": "speech_event"',
        json.dumps(spoke("user_speech_started")),
        json.dumps({**spoke("x"), "timestamp": 5}),
        json.dumps({"type": "call_ended", "timestamp": NOW_MS}),
        json.dumps({"conversation_id": "c1", "type": "of_tomorrow", "timestamp": NOW_MS}),
        json.dumps(
            {**spoke("x"), "data": {"kind": "x", "timestamp": "call me at +1 202 555 0143"}}
        ),
        json.dumps(
            {
                "conversation_id": "c1",
                "stream": "pipecat",
                "type": "of_tomorrow",
                "timestamp": NOW_MS,
            }
        ),
    ]
    response = await receiver.events("\n".join(lines).encode(), content_type="application/x-ndjson")
    assert response.status_code == 207
    answer = response.json()
    assert (answer["accepted_events"], answer["refused_events"]) == (3, 5)
    assert [(each["line"], each["reason"]) for each in answer["refused"]] == [
        (2, "undecodable"),
        (4, "time_out_of_bounds"),
        (5, "empty_key"),
        (6, "invalid_event"),
        (7, "invalid_event"),
    ]
    assert all(
        each["what"] and each["expected_and_seen"] and each["what_to_do"]
        for each in answer["refused"]
    )
    assert "data.timestamp" in answer["refused"][4]["what"]
    assert "202 555" not in response.text
    assert [(each["events"], each["what"]) for each in answer["not_understood"]] == [
        (1, "an event of type 'of_tomorrow'")
    ]
    assert "callgauge schema" in answer["not_understood"][0]["what_to_do"]
    assert receiver.count(REQUESTS, tenant="", outcome="partly_refused") == 1
    assert receiver.count("callgauge_ingest_events_refused_total", tenant="") == 5


async def test_a_batch_of_nothing_good_is_refused(receiver: Receiver) -> None:
    response = await receiver.events([{"conversation_id": "c1"}, 5])
    assert response.status_code == 422
    assert receiver.writer.records == []
    many = await receiver.events([5] * 500)
    assert (many.json()["refused_events"], len(many.json()["refused"])) == (
        500,
        events.MAX_SHOWN_REFUSALS,
    )


@pytest.mark.parametrize(
    "authorization",
    ["", "Bearer", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer é"],
)
async def test_a_request_without_the_token_is_refused_unread(
    receiver: Receiver, authorization: str
) -> None:
    headers = [(b"authorization", authorization.encode())] if authorization else []
    response = await receiver._client.post("/events", content=b"[]", headers=headers)
    assert response.status_code == 401
    assert response.headers["www-authenticate"].startswith("Bearer")
    assert TOKEN not in response.text
    assert receiver.count(REQUESTS, tenant="", outcome="unauthorized") == 1


async def test_a_tenant_sends_its_own_calls_alone() -> None:
    receiver = Receiver(IngestSettings(), TENANTS)
    assert (await receiver.events([started()], TOKEN)).status_code == 401
    assert (await receiver.events([started()], "of-acme")).status_code == 202
    assert receiver.written[0][1]["tenant"] == "acme"
    foreign = await receiver.events([started(conversation_id="c2", tenant="acme")], "of-globex")
    assert foreign.status_code == 422
    assert foreign.json()["refused"][0]["what"] == "its tenant is another one"
    stolen = await receiver.events([spoke("user_speech_started")], "of-globex")
    assert stolen.json()["refused"][0]["what"] == "the conversation is another tenant's"
    assert len(receiver.writer.records) == 1
    assert receiver.count(REQUESTS, tenant="acme", outcome="accepted") == 1


async def test_a_tenant_over_its_limit_waits_and_another_one_does_not() -> None:
    few = {
        name: SenderSettings.model_validate({"token": f"of-{name}", "events_per_second": 1})
        for name in ("acme", "globex")
    }
    receiver = Receiver(IngestSettings(), few)
    assert (await receiver.events([started()] * 30, "of-acme")).status_code == 202
    limited = await receiver.events([started()], "of-acme")
    assert limited.status_code == 429
    assert 15 <= int(limited.headers["retry-after"]) - NEW_CALL_EVENTS <= 25
    assert (await receiver.events([started(conversation_id="c2")], "of-globex")).status_code == 202
    assert receiver.count(REQUESTS, tenant="acme", outcome="limited") == 1


def test_new_conversations_cost_more_than_events_of_known_ones() -> None:
    """So a sender of ever new ids cannot keep the evaluators of all busy at its allowed rate of
    events.
    """
    senders = Senders(
        {"": SenderSettings.model_validate({"token": "of-all", "events_per_second": 10})}
    )
    sender = senders.by_tenant[""]
    for _ in range(1_000):
        senders.claim(sender, b"known")
    assert sender.wait_seconds() == 0
    for number in range(10):
        senders.claim(sender, b"new-%d" % number)
    assert sender.wait_seconds() > NEW_CALL_EVENTS / 10


async def test_ten_megabytes_are_refused_with_an_answer(receiver: Receiver) -> None:
    response = await receiver.events([started(x="y" * 10_000_000)])
    assert response.status_code == 413
    assert str(events.MAX_BODY_BYTES) in response.json()["error"]
    assert receiver.bodies.pending_bytes == 0
    one_event = await receiver.events([started(x="y" * 2_000_000), started()])
    assert one_event.json()["refused"][0]["reason"] == "record_too_large"


async def test_what_is_not_written_is_503_and_never_202(receiver: Receiver) -> None:
    receiver.writer.is_away = True
    response = await receiver.events([started()])
    assert (response.status_code, response.headers["retry-after"]) == (503, "5")
    assert response.json()["accepted_events"] == 0
    assert receiver.count(REQUESTS, tenant="", outcome="unwritten") == 1


async def test_the_answer_waits_for_the_acknowledgement(receiver: Receiver) -> None:
    receiver.writer.hold()
    answering = asyncio.create_task(receiver.events([started()]))
    await receiver.writer.asked.wait()
    assert not answering.done()
    receiver.writer.release()
    assert (await answering).status_code == 202


async def test_slow_and_too_many_bodies(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "BODY_SECONDS", 0.01)
    forever = asyncio.Event()

    async def trickle() -> Any:
        yield b"["
        await forever.wait()

    headers = {"authorization": f"Bearer {TOKEN}"}
    slow = await receiver._client.post("/events", content=trickle(), headers=headers)
    assert slow.status_code == 408
    assert receiver.bodies.pending_bytes == 0
    monkeypatch.setattr(bodies, "BODY_SECONDS", 60)
    monkeypatch.setattr(bodies, "MAX_PENDING_BYTES", 20)
    assert (await receiver.events([started()])).status_code == 503
    assert receiver.bodies.pending_bytes == 0
    assert receiver.count(REQUESTS, tenant="", outcome="busy") == 1


async def test_bodies_that_are_refused_as_a_whole(receiver: Receiver) -> None:
    answers = [
        await receiver.events(b"hello"),
        await receiver.events(b"[]"),
        await receiver.events(b"[]", content_encoding="gzip"),
    ]
    assert [each.status_code for each in answers] == [400, 400, 400]


words = st.text(
    st.characters(exclude_categories=("C", "Z"), exclude_characters='"'), min_size=1, max_size=30
)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(min_value=-(2**53), max_value=2**53)
    | st.text(max_size=20)
)
data = st.dictionaries(st.text(max_size=10), scalars, max_size=4)


def attributes_of(event_id: str, source: str, kind: str, subject: str) -> dict[str, Any]:
    return {
        "id": event_id,
        "source": source,
        "type": kind,
        "specversion": "1.0",
        "subject": subject,
    }


def read(body: bytes, content_type: str, headers: dict[str, str]) -> list[Posted]:
    return list(posted_events(body, content_type, headers))


def lowered(headers: dict[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


@given(words, words, words, words, data)
def test_both_modes_of_the_package_are_read(
    source: str, event_id: str, kind: str, subject: str, event: Any
) -> None:
    attributes = attributes_of(event_id, source, kind, subject)
    written = CloudEvent(
        attributes={**attributes, "datacontenttype": "application/json"}, data=event
    )
    for message in (
        http.to_binary(written, JSONFormat()),
        http.to_structured(written, JSONFormat()),
    ):
        headers = lowered(message.headers)
        (posted,) = read(message.body, headers.get("content-type", ""), headers)
        assert posted.fault is None
        assert posted.event == event
        assert posted.attributes is not None
        assert attributes.items() <= posted.attributes.items()


@given(st.lists(st.tuples(words, data), min_size=1, max_size=5))
def test_a_batch_is_read_event_by_event(events: list[tuple[str, Any]]) -> None:
    written = [
        CloudEvent(attributes=attributes_of(name, "s", "t", "c"), data=event)
        for name, event in events
    ]
    documents = [json.loads(http.to_structured(each, JSONFormat()).body) for each in written]
    body = json.dumps(documents).encode()
    posted = read(body, "application/cloudevents-batch+json; charset=utf-8", {})
    assert [(each.place, each.event, each.fault) for each in posted] == [
        (place, event, None) for place, (_, event) in enumerate(events, 1)
    ]


def test_plain_bodies() -> None:
    one, two = {"type": "a"}, {"type": "b"}
    assert read(b'{"type": "a"}', "application/json", {}) == [Posted(1, one)]
    assert read(b'{\n "type":\n "a"}', "", {}) == [Posted(1, one)]
    assert read(b'[{"type": "a"}, {"type": "b"}]', "application/json", {}) == [
        Posted(1, one),
        Posted(2, two),
    ]
    assert read(b'\r\n[{"type": "a"}]', "text/plain", {}) == [Posted(1, one)]
    lines = b'{"type": "a"}\r\n\n{"type": "b"}\n'
    assert read(lines, "application/x-ndjson", {}) == [Posted(1, one), Posted(3, two)]
    assert read(lines, "application/json", {}) == [Posted(1, one), Posted(3, two)]


def test_a_broken_line_is_named_and_the_others_are_read() -> None:
    posted = read(
        b'{"type": "a"}\n{"type": \n{"type": "b"}\n{"x": NaN}\n{"type', "application/x-ndjson", {}
    )
    assert [(each.place, each.fault is None) for each in posted] == [
        (1, True),
        (2, False),
        (3, True),
        (4, False),
        (5, False),
    ]


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
def test_a_body_of_no_mode_is_refused_as_a_whole(body: bytes, content_type: str) -> None:
    with pytest.raises(UnreadableBodyError):
        read(body, content_type, {})


@given(
    st.binary(max_size=200),
    st.sampled_from(
        [
            "",
            "application/json",
            "application/x-ndjson",
            "application/cloudevents+json",
            "application/cloudevents-batch+json",
        ]
    ),
    st.dictionaries(st.sampled_from(["ce-id", "ce-type", "ce-specversion"]), st.text(max_size=5)),
)
def test_no_body_breaks_the_reader(body: bytes, content_type: str, headers: dict[str, str]) -> None:
    try:
        posted = read(body, content_type, headers)
    except UnreadableBodyError:
        return
    assert all(isinstance(each, Posted) for each in posted)


@pytest.mark.parametrize(
    ("document", "fault"),
    [
        ({"id": "1", "source": "s", "type": "t"}, "lacks specversion"),
        ({"specversion": "0.3", "id": "1", "source": "s", "type": "t"}, 'expected "1.0"'),
        ({"specversion": "1.0"}, "lacks id, source, type"),
        (
            {"specversion": "1.0", "id": "1", "source": "s", "type": "t", "data_base64": "!"},
            "data_base64",
        ),
        (
            {"specversion": "1.0", "id": "1", "source": "s", "type": "t", "data_base64": 5},
            "data_base64",
        ),
        ([], "as a JSON object"),
    ],
)
def test_an_event_that_is_no_cloudevent(document: object, fault: str) -> None:
    (posted,) = read(json.dumps(document).encode(), "application/cloudevents+json", {})
    assert posted.fault is not None
    assert fault in posted.fault


def test_data_in_base64() -> None:
    document = {
        "specversion": "1.0",
        "id": "1",
        "source": "s",
        "type": "t",
        "data_base64": "eyJ0eXBlIjogImEifQ==",
    }
    (posted,) = read(json.dumps(document).encode(), "application/cloudevents+json", {})
    assert (posted.event, posted.fault) == ({"type": "a"}, None)


HEAD = f"POST /events HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {TOKEN}\r\n".encode()


class Listening:
    """A receiver and its address."""

    def __init__(self) -> None:
        self.receiver = Receiver()
        self.limits: list[HttpLimit] = []
        bounds = ConnectionBounds(
            request_seconds=0.2, answer_seconds=patient(30), most_connections=8
        )
        self.listener = HttpListener(
            "127.0.0.1",
            0,
            self.receiver.app.routes,
            self.limits.append,
            bounds=bounds,
            without_it="Nothing is received",
        )

    async def sent(self, *pieces: bytes) -> bytes:
        """Sends these bytes and returns the whole answer, until the connection ends."""
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", int(self.listener.address.rpartition(":")[2])
        )
        for piece in pieces:
            writer.write(piece)
        try:
            return await asyncio.wait_for(reader.read(), patient(30))
        except ConnectionResetError:
            return b""
        finally:
            writer.close()


@pytest.fixture
async def listening() -> AsyncIterator[Listening]:
    listening = Listening()
    await listening.listener.start()
    yield listening
    await listening.listener.stop()


async def test_a_body_that_does_not_come_gets_an_answer(
    listening: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "BODY_SECONDS", 0.1)
    answer = await listening.sent(HEAD + b"content-length: 100\r\n\r\n[{")
    assert answer.startswith(b"HTTP/1.1 408")
    assert listening.receiver.bodies.pending_bytes == 0


async def test_headers_that_do_not_end_are_cut(listening: Listening) -> None:
    assert await listening.sent(HEAD + b"x-slow: ") == b""
    assert listening.limits == ["request_time"]


async def test_ten_megabytes_are_answered_although_they_are_dropped(listening: Listening) -> None:
    body = b"[" + b" " * 10_000_000 + b"]"
    async with httpx.AsyncClient(timeout=patient(30)) as client:
        headers = {"authorization": f"Bearer {TOKEN}"}
        answer = await client.post(
            f"{listening.listener.address}/events", content=body, headers=headers
        )
        assert answer.status_code == 413
        assert str(events.MAX_BODY_BYTES) in answer.text


async def test_an_answer_in_two_pieces_is_sent_at_once(
    listening: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_delay: list[bool] = []
    made = BoundedConnection.connection_made

    def noted(connection: BoundedConnection, transport: asyncio.Transport) -> None:
        found = transport.get_extra_info("socket")
        without_delay.append(bool(found.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)))
        made(connection, transport)

    monkeypatch.setattr(BoundedConnection, "connection_made", noted)
    await listening.sent(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n", b"")
    assert without_delay == [True]


async def test_a_body_in_pieces_is_read(listening: Listening) -> None:
    body = json.dumps(
        [{"conversation_id": "c1", "type": "of_tomorrow", "stream": "pipecat"}]
    ).encode()
    pieces = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (body[:10], body[10:]))
    answer = await listening.sent(
        HEAD + b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n", pieces + b"0\r\n\r\n"
    )
    assert answer.startswith(b"HTTP/1.1 202")
    assert len(listening.receiver.writer.records) == 1


async def test_who_goes_away_before_the_end_of_the_body_leaves_nothing(
    listening: Listening,
) -> None:
    _, writer = await asyncio.open_connection(
        "127.0.0.1", int(listening.listener.address.rpartition(":")[2])
    )
    writer.write(HEAD + b"content-length: 100\r\n\r\n[{")
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    async with asyncio.timeout(patient(30)):
        while not listening.receiver.count(  # noqa: ASYNC110 - a count has no event
            "callgauge_ingest_requests_total", tenant="", outcome="gone"
        ):
            await asyncio.sleep(0.01)
    assert listening.receiver.bodies.pending_bytes == 0
