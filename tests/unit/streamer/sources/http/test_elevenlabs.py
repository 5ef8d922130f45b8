"""ElevenLabs' webhook: its signature, its answers, the records that it writes, and how often it
writes them.
"""

import asyncio
import json
import time
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import structlog
from elevenlabs.errors import BadRequestError
from elevenlabs.webhooks_custom import WebhooksClient
from hypothesis import example, given
from hypothesis import strategies as st

from consumers.engine.admission import admit
from consumers.engine.limits import Limits
from schemas.closed_sets import InputSource
from schemas.events.envelope import AGENT_RECORD_TYPE, read_envelope
from schemas.quarantine import QuarantineRecord
from streamer.settings.all_settings import IngestSettings, SenderSettings
from streamer.sources.http import elevenlabs as webhook
from streamer.sources.http import receiving as bodies
from streamer.sources.http.elevenlabs import (
    MAX_AGE_SECONDS,
    MAX_AHEAD_SECONDS,
    MAX_HEADER_BYTES,
    MAX_SIGNATURES,
    Signature,
    SignatureError,
    SignedBody,
    check_time,
    read_signature,
)
from streamer.sources.outgoing import MAX_VALUE_BYTES
from tests.support.webhooks import (
    ROOT,
    SECRET,
    TRACE,
    as_spans,
    delivery,
    entry,
    record_of_a_call,
    signature_header,
)
from tests.unit.streamer.sources.http.receiver import Receiver

NOW = 1_790_000_000
BODY = b'{"type": "post_call_transcription"}'


def verify(header: bytes, body: bytes = BODY, now: float = NOW) -> Signature:
    """Runs all checks, in their order."""
    signature = read_signature(header)
    check_time(signature, now)
    signed = SignedBody(signature, SECRET.encode())
    signed.add(body)
    signed.check()
    return signature


def fault_of(header: bytes, body: bytes = BODY, now: float = NOW) -> str:
    with pytest.raises(SignatureError) as caught:
        verify(header, body, now)
    return caught.value.fault


def header(at: int | str = NOW, body: bytes = BODY) -> bytes:
    return signature_header(body, at).encode()


@given(
    st.binary(max_size=300),
    st.integers(min_value=NOW - MAX_AGE_SECONDS, max_value=NOW + MAX_AHEAD_SECONDS),
)
def test_what_was_signed_with_our_secret_is_taken(body: bytes, at: int) -> None:
    assert verify(header(at, body), body).time_seconds == at


@given(st.text(max_size=200))
def test_the_vendors_own_check_agrees_on_what_it_signs(text: str) -> None:
    body = json.dumps({"data": text}).encode()
    now = int(time.time())
    client = WebhooksClient(client_wrapper=None)  # it sends no request
    assert client.construct_event(body.decode(), signature_header(body, now), SECRET) == {
        "data": text
    }
    assert verify(header(now, body), body, now)
    with pytest.raises(BadRequestError):
        client.construct_event(body.decode() + " ", signature_header(body, now), SECRET)
    assert fault_of(header(now, body), body + b" ", now) == "forged"


@given(
    st.binary(max_size=200)
    | st.text(max_size=100).map(lambda text: text.encode("utf-8", "surrogatepass"))
)
@example(b"")
@example(b"t=1790000000")
@example(b"v0=" + b"a" * 64)
@example("t=١٧٩٠٠٠٠٠٠٠,v0=".encode() + b"a" * 64)
def test_no_other_header_is_taken_and_none_breaks_the_parser(other: bytes) -> None:
    assert fault_of(other) in ("malformed", "stale", "ahead", "forged")


@given(st.integers(min_value=0, max_value=10**12 - 1))
def test_a_time_outside_the_window_is_refused(at: int) -> None:
    if at < NOW - MAX_AGE_SECONDS:
        assert fault_of(header(at)) == "stale"
    elif at > NOW + MAX_AHEAD_SECONDS:
        assert fault_of(header(at)) == "ahead"
    else:
        verify(header(at))


@given(st.data())
def test_one_changed_byte_is_a_forgery(data: st.DataObject) -> None:
    good = bytearray(header())
    place = data.draw(st.integers(min_value=good.index(b"v0=") + 3, max_value=len(good) - 1))
    good[place] = data.draw(
        st.integers(min_value=0, max_value=255).filter(lambda byte: byte not in (good[place], 44))
    )
    # malformed: blanks at the end do not count
    assert fault_of(bytes(good)) in ("forged", "malformed")


@pytest.mark.parametrize(
    ("written", "fault"),
    [
        (str(NOW + 10 * 365 * 86_400), "ahead"),
        (str(NOW - MAX_AGE_SECONDS - 1), "stale"),
        ("1_790_000_000", "malformed"),
        ("١٧٩٠٠٠٠٠٠٠", "malformed"),
        ("+1790000000", "malformed"),
        ("-1790000000", "malformed"),
        ("1790000000.0", "malformed"),
        ("9" * 13, "malformed"),
        ("abc", "malformed"),
        ("", "malformed"),
    ],
)
def test_times_that_look_like_one(written: str, fault: str) -> None:
    """Each is signed with our secret, so that only the time can be the fault."""
    assert fault_of(header(written)) == fault


def test_shapes_of_the_header() -> None:
    time_part, digest_part = header().split(b",")
    forged = b"v0=" + b"0" * 64
    assert verify(b" " + time_part + b" ,\t" + digest_part + b" ")
    assert verify(digest_part + b"," + time_part)
    assert verify(time_part + b",v1=unknown," + digest_part)
    # While a secret is exchanged there are two signatures, in any order.
    assert verify(b",".join((time_part, forged, digest_part)))
    assert verify(b",".join((time_part, digest_part, forged)))
    assert fault_of(b",".join((time_part, forged, forged))) == "forged"
    assert fault_of(b",".join((time_part, time_part, digest_part))) == "malformed"
    assert fault_of(b",".join((time_part, *[digest_part] * (MAX_SIGNATURES + 1)))) == "malformed"
    assert fault_of(time_part + b"," + digest_part[:-1]) == "malformed"
    assert fault_of(time_part + b"," + digest_part + b"0") == "malformed"
    assert fault_of(time_part + b"," + "v0=é".encode() + b"0" * 62) == "forged"
    assert fault_of(time_part + b"," + digest_part + b"," + b" " * MAX_HEADER_BYTES) == "malformed"


def test_pieces_of_a_body_are_the_body() -> None:
    signed = SignedBody(read_signature(header()), SECRET.encode())
    for byte in BODY:
        signed.add(bytes([byte]))
    signed.check()


PATH = "/webhooks/elevenlabs"
COUNTER = "callgauge_ingest_webhooks_total"
NOW_S = int(time.time())
TALK = (
    entry("agent", "Welcome.", 0),
    entry("user", "My badge is lost", 4),
    entry("agent", "Which one?", 6, 1.7),
)


def body_of(*entries: dict[str, Any], conversation_id: str = "conv_1", **more: Any) -> bytes:
    record = record_of_a_call(conversation_id, NOW_S - 40, *entries, **more)
    return delivery("post_call_transcription", record, NOW_S)


async def send(
    receiver: Receiver, body: bytes, header: str | None = None, path: str = PATH
) -> httpx.Response:
    header = signature_header(body, int(time.time())) if header is None else header
    return await receiver.post(path, body, elevenlabs_signature=header)


async def test_a_call_is_written_as_its_start_its_events_and_its_record(receiver: Receiver) -> None:
    response = await send(receiver, body_of(*TALK))
    assert (response.status_code, response.text) == (200, "accepted\n")
    kinds = [event.get("type") for _, event in receiver.written]
    assert kinds == [
        "call_started",
        "conversation_initiation_metadata",
        "agent_response",
        "user_transcript",
        "agent_response",
        None,
    ]
    assert receiver.written[0][1]["agent"] == "desk"
    assert receiver.written[-1][1]["transcript"][2]["message"] == "Which one?"
    assert {each.key for each in receiver.writer.records} == {b"conv_1"}
    envelopes = [read_envelope(each.headers) for each in receiver.writer.records]
    assert envelopes[-1] is not None
    assert envelopes[-1].type == AGENT_RECORD_TYPE
    assert len({each.id for each in envelopes if each is not None}) == len(envelopes)
    assert receiver.count(COUNTER, kind="transcription", outcome="accepted") == 1
    assert receiver.bodies.pending_bytes == 0


async def test_a_call_that_comes_as_spans_names_its_span(receiver: Receiver) -> None:
    now = int(time.time())
    record = record_of_a_call(
        "c1", now - 40, entry("agent", "Welcome.", 0), entry("user", "A badge", 4)
    )
    data = {"conversation_id": "c1", "agent_id": "agent_7", "otlp_traces": as_spans(record)}
    body = delivery("post_call_transcription_otel", data, now)
    answer = await receiver.post(
        "/webhooks/elevenlabs", body, elevenlabs_signature=signature_header(body, now)
    )
    assert answer.text.strip() == "accepted"
    assert {source for source, _ in receiver.written} == {"elevenlabs"}, (
        "in one topic the labels come first"
    )
    started, *events = [event for _, event in receiver.written]
    assert (started["agent"], started["traceparent"]) == ("agent_7", f"00-{TRACE}-{ROOT}-01")
    assert [each["message"] for each in events[-1]["transcript"]] == ["Welcome.", "A badge"]
    body = delivery(
        "post_call_transcription_otel", {**data, "otlp_traces": {"resourceSpans": [5]}}, now
    )
    with structlog.testing.capture_logs() as logs:
        answer = await receiver.post(
            "/webhooks/elevenlabs", body, elevenlabs_signature=signature_header(body, now)
        )
    assert answer.text.strip() == "quarantined"
    assert "data.otlp_traces: expected an export request" in logs[0]["what"]


async def test_events_that_are_made_from_a_record_say_so(receiver: Receiver) -> None:
    await send(receiver, body_of(*TALK))
    started, *events, record = [event for _, event in receiver.written]
    assert [event["is_from_record"] for event in events] == [True] * 4
    assert "is_from_record" not in started.keys() | record.keys()


async def test_a_number_that_no_float_holds_stops_no_delivery(receiver: Receiver) -> None:
    body = body_of(
        *TALK, entry("agent", None, 8, tool_results=[{"tool_name": "fee", "result_value": "?"}])
    )
    assert (await send(receiver, body.replace(b'"?"', b"1e999"))).text == "accepted\n"
    assert receiver.written[-1][1]["transcript"][-1]["tool_results"] == [
        {"tool_name": "fee", "result_value": None}
    ]


@pytest.mark.parametrize("transcript", [{"transcript": []}, {"transcript": None}])
async def test_a_call_without_words_is_a_call(
    receiver: Receiver, transcript: dict[str, Any]
) -> None:
    assert (await send(receiver, body_of(**transcript))).status_code == 200
    kinds = [event.get("type") for _, event in receiver.written]
    assert kinds == ["call_started", "conversation_initiation_metadata", None]


@pytest.mark.parametrize(
    ("header", "outcome"),
    [
        (f"t={NOW_S},v0={'0' * 64}", "forged"),
        (signature_header(b"another body", NOW_S), "forged"),
        (signature_header(body_of(*TALK), NOW_S, "another secret"), "forged"),
        (signature_header(body_of(*TALK), NOW_S - 1_900), "stale"),
        (signature_header(body_of(*TALK), NOW_S + 10 * 365 * 86_400), "ahead"),
        (signature_header(body_of(*TALK), "1_790_000_000"), "malformed"),
        ("", "malformed"),
        ("v0=é", "malformed"),
    ],
    # Names without the time, which differs between the workers that share the tests.
    ids=[
        "made up",
        "another body",
        "another secret",
        "too old",
        "ahead",
        "underscores",
        "empty",
        "not ASCII",
    ],
)
async def test_what_is_not_signed_by_our_secret_now_is_refused(
    receiver: Receiver, header: str, outcome: str
) -> None:
    response = await receiver._client.post(
        PATH, content=body_of(*TALK), headers=[(b"ElevenLabs-Signature", header.encode())]
    )
    assert response.status_code == 401
    assert response.text.startswith(outcome)
    assert (receiver.written, receiver.count(COUNTER, kind="unknown", outcome=outcome)) == ([], 1)


async def test_a_request_without_a_signature_or_with_two_is_refused(receiver: Receiver) -> None:
    body = body_of(*TALK)
    good = signature_header(body, NOW_S)
    assert (await receiver.post(PATH, body)).status_code == 401
    twice = await receiver._client.post(
        PATH, content=body, headers=[("elevenlabs-signature", good)] * 2
    )
    assert twice.status_code == 401
    truncated = await send(receiver, body[:-10], good)
    assert truncated.text.startswith("forged")
    assert receiver.written == []


async def test_a_replay_is_answered_and_not_written_again(receiver: Receiver) -> None:
    body = body_of(*TALK)
    header = signature_header(body, NOW_S)
    first, second = await send(receiver, body, header), await send(receiver, body, header)
    assert [first.text, second.text] == ["accepted\n", "repeated\n"]
    later = await send(receiver, body, signature_header(body, NOW_S + 1))
    assert later.text == "repeated\n"
    assert receiver.writer.writes == 1


async def test_the_same_delivery_twice_at_once_is_written_once(receiver: Receiver) -> None:
    body = body_of(*TALK)
    receiver.writer.hold()
    both = [asyncio.create_task(send(receiver, body)) for _ in range(2)]
    await receiver.writer.asked.wait()
    receiver.writer.release()
    assert sorted([(await each).text for each in both]) == ["accepted\n", "repeated\n"]
    assert receiver.writer.writes == 1


async def test_without_kafka_a_delivery_comes_again_and_is_then_accepted(
    receiver: Receiver,
) -> None:
    body = body_of(*TALK)
    receiver.writer.is_away = True
    both = await asyncio.gather(send(receiver, body), send(receiver, body))
    assert [each.status_code for each in both] == [503, 503]
    assert all(each.headers["retry-after"] for each in both)
    receiver.writer.is_away = False
    assert (await send(receiver, body)).text == "accepted\n"
    assert receiver.count(COUNTER, kind="transcription", outcome="unwritten") == 2


@pytest.mark.parametrize(
    ("kind", "data", "counted"),
    [
        ("post_call_audio", {"conversation_id": "c", "full_audio": "UklGRg=="}, "audio"),
        (
            "call_initiation_failure",
            {"conversation_id": "c", "failure_reason": "busy", "metadata": {}},
            "initiation_failure",
        ),
        ("answering_machine_detection", {"conversation_id": "c"}, "unknown"),
        ("of_tomorrow", {}, "unknown"),
    ],
)
async def test_deliveries_without_a_call_get_200_and_a_count(
    receiver: Receiver, kind: str, data: dict[str, Any], counted: str
) -> None:
    receiver.writer.is_away = True  # they need no Kafka
    response = await send(receiver, delivery(kind, data, NOW_S))
    assert (response.status_code, response.text) == (200, "ignored\n")
    assert receiver.count(COUNTER, kind=counted, outcome="ignored") == 1


async def test_the_type_of_a_delivery_need_not_come_first(receiver: Receiver) -> None:
    data = record_of_a_call(
        "conv_1",
        NOW_S - 40,
        entry("agent", "Hi", 0, tool_calls=[{"type": "webhook", "tool_name": "t"}]),
    )
    body = json.dumps(
        {"data": data, "event_timestamp": NOW_S, "type": "post_call_transcription"}
    ).encode()
    assert (await send(receiver, body)).text == "accepted\n"


async def test_an_hour_of_sound_takes_no_memory(receiver: Receiver) -> None:
    body = delivery(
        "post_call_audio", {"conversation_id": "c", "full_audio": "QUJD" * 10_000_000}, NOW_S
    )
    most = 0
    header = signature_header(body, NOW_S)

    async def pieces() -> Any:
        nonlocal most
        for begin in range(0, len(body), 65_536):
            yield body[begin : begin + 65_536]
            most = max(most, receiver.bodies.pending_bytes)

    response = await receiver._client.post(
        PATH, content=pieces(), headers={"elevenlabs-signature": header}
    )
    assert response.text == "ignored\n"
    assert most <= webhook.SNIFFED_BYTES
    forged = await receiver._client.post(
        PATH, content=pieces(), headers={"elevenlabs-signature": header[:-1] + "x"}
    )
    assert forged.status_code == 401


async def test_a_huge_record_is_counted_and_a_body_without_an_end_is_left(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    huge = body_of(*TALK, analysis={"text": "x" * webhook.MAX_BODY_BYTES})
    response = await send(receiver, huge)
    assert (response.status_code, response.text) == (200, "too_large\n")
    assert receiver.written == []
    monkeypatch.setattr(bodies, "MAX_DRAINED_BYTES", 1_000)
    assert (await send(receiver, huge)).status_code == 400
    assert receiver.bodies.pending_bytes == 0


async def test_a_record_that_no_kafka_record_can_carry_leaves_its_turns(receiver: Receiver) -> None:
    response = await send(receiver, body_of(*TALK, analysis={"text": "x" * 2_000_000}))
    assert (response.status_code, response.text) == (200, "accepted\n")
    last = receiver.written[-1][1]
    assert "analysis" not in last  # nothing reads it
    assert last["transcript"][2] == TALK[2]


async def test_a_record_with_too_many_words_leaves_its_figures_and_says_so(
    receiver: Receiver,
) -> None:
    speech = [entry("user", "für 🙂 " * 5_000, 8)] * 40
    with structlog.testing.capture_logs() as logs:
        response = await send(receiver, body_of(*TALK, *speech))
    assert (response.status_code, response.text) == (200, "too_large_to_keep\n")
    record, ended = (event for _, event in receiver.written[-2:])
    assert ended["type"] == "call_ended"
    # so the words of the transcript are those of the events
    assert record["status"] == "processing"
    assert (
        record["transcript"][2]["conversation_turn_metrics"] == TALK[2]["conversation_turn_metrics"]
    )
    assert [len(each["message"]) for each in record["transcript"]] == [8, 16, 10] + [
        webhook.OUTLINE_CHARS
    ] * 40
    assert f"at most {MAX_VALUE_BYTES} bytes" in logs[-1]["what"]
    assert "quarantine" not in str(logs)


async def test_a_record_with_too_many_entries_for_an_outline_leaves_its_turns(
    receiver: Receiver,
) -> None:
    many = [entry("user", "für 🙂 " * 10, 8 + number) for number in range(12_000)]
    assert (await send(receiver, body_of(*TALK, *many))).text == "too_large_to_keep\n"
    assert [event["type"] for _, event in receiver.written[-2:]] == [
        "user_transcript",
        "call_ended",
    ]


async def test_a_role_of_tomorrow_costs_its_entry_alone(receiver: Receiver) -> None:
    with structlog.testing.capture_logs() as logs:
        response = await send(
            receiver, body_of(*TALK, entry("alien", "Beep", 8), entry("user", "Blue", 10))
        )
    assert (response.status_code, response.text) == (200, "accepted\n")
    said = [
        event["user_transcription_event"]["user_transcript"]
        for _, event in receiver.written
        if "user_transcription_event" in event
    ]
    assert said == ["My badge is lost", "Blue"]
    assert (
        logs[-1]["what"] == "call conv_1: transcript[3].role: expected user or agent, saw 'alien'"
    )


async def test_a_call_that_is_too_old_is_answered_so_and_not_written(receiver: Receiver) -> None:
    old = record_of_a_call("conv_1", NOW_S - 30 * 86_400, *TALK)
    with structlog.testing.capture_logs() as logs:
        response = await send(receiver, delivery("post_call_transcription", old, NOW_S))
    assert (response.status_code, response.text) == (200, "too_old\n")
    assert receiver.written == []
    assert "call conv_1 began at" in logs[-1]["what"]
    assert receiver.count(COUNTER, kind="transcription", outcome="too_old") == 1


@pytest.mark.parametrize("body", [b"{{{", b"[]", b"", b'{"type": 5}'])
async def test_a_signed_body_without_a_type_is_ignored_and_named(
    receiver: Receiver, body: bytes
) -> None:
    with structlog.testing.capture_logs() as logs:
        assert (await send(receiver, body)).text == "ignored\n"
    assert logs[-1]["expected"] == "a JSON object with a `type`"


@pytest.mark.parametrize(
    "body",
    [
        b'{"type": "post_call_transcription", "data": ',
        b'{"type": "post_call_transcription", "data": {"conversation_id": "conv_1", "transcript": '
        b"5}}",
        body_of({"role": "agent", "message": 5}),
        body_of(*TALK, conversation_id=""),
    ],
)
async def test_a_call_that_cannot_be_read_goes_to_its_topic_for_the_quarantine(
    receiver: Receiver, body: bytes
) -> None:
    response = await send(receiver, body)
    assert (response.status_code, response.text) == (200, "quarantined\n")
    (record,) = receiver.writer.records
    assert record.value == body
    posted = SimpleNamespace(
        topic="elevenlabs.events",
        partition=0,
        offset=0,
        timestamp=NOW_S * 1000,
        key=record.key,
        value=record.value,
        headers=list(record.headers),
    )
    # as the answer says
    assert isinstance(admit(InputSource.ELEVENLABS, posted, Limits()), QuarantineRecord)
    envelope = read_envelope(record.headers)
    assert envelope is not None
    assert envelope.is_agent_event


async def test_each_tenant_has_its_own_webhook_and_secret() -> None:
    tenants = {"acme": SenderSettings.model_validate({"elevenlabs_secret": "of acme"})}
    receiver, body = Receiver(tenants=tenants), body_of(*TALK)
    assert (await send(receiver, body, path=f"{PATH}/acme")).status_code == 401
    header = signature_header(body, NOW_S, "of acme")
    assert (await send(receiver, body, header, path=f"{PATH}/acme")).status_code == 200
    assert json.loads(receiver.writer.records[0].value)["tenant"] == "acme"


async def test_a_tenant_cannot_send_the_record_of_another_ones_call() -> None:
    tenants = {
        name: SenderSettings.model_validate({"elevenlabs_secret": name})
        for name in ("acme", "globex")
    }
    receiver = Receiver(IngestSettings(), tenants)
    answers = []
    for name, talk in (("acme", TALK), ("globex", TALK[:1])):
        body = body_of(*talk)
        answers.append(
            (await send(receiver, body, signature_header(body, NOW_S, name), f"{PATH}/{name}")).text
        )
    for name in tenants:  # what names no call is nobody's
        body = delivery("post_call_transcription", {"of": name}, NOW_S)
        answers.append(
            (await send(receiver, body, signature_header(body, NOW_S, name), f"{PATH}/{name}")).text
        )
    assert answers == ["accepted\n", "foreign\n", "quarantined\n", "quarantined\n"]
    assert receiver.writer.writes == 3


async def test_a_receiver_without_a_secret_has_no_webhook() -> None:
    receiver = Receiver(IngestSettings.model_validate({"token": "token"}))
    assert (await send(receiver, body_of(*TALK))).status_code == 404
