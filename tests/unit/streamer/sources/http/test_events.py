"""`POST /events`: permitted senders, accepted events, and the text of a refusal."""

import asyncio
import json
import time
from typing import Any

import pytest

from schemas.events.envelope import read_envelope
from streamer.settings.all_settings import IngestSettings, SenderSettings
from streamer.sources.http import posted as events
from streamer.sources.http import receiving as bodies
from tests.unit.streamer.sources.http.receiver import TOKEN, Receiver

NOW_MS = int(time.time() * 1000)
REQUESTS = "callgauge_ingest_requests_total"
TENANTS = {name: SenderSettings.model_validate({"token": f"of-{name}"}) for name in ("acme", "globex")}


def started(**more: Any) -> dict[str, Any]:
    return {"conversation_id": "c1", "type": "call_started", "timestamp": NOW_MS, **more}


def spoke(kind: str, **more: Any) -> dict[str, Any]:
    data = {"kind": kind, "timestamp": NOW_MS / 1000}
    return {"conversation_id": "c1", "type": "speech_event", "timestamp": NOW_MS, "data": data, **more}


async def test_events_of_every_stream_go_to_their_topics() -> None:
    receiver = Receiver()
    posted = [
        started(agent="desk"),
        spoke("user_speech_started"),
        {"conversation_id": 7, "message_type": "user", "value": "Hi", "timestamp": str(NOW_MS)},
        {"conversation_id": "c2", "type": "user_transcript", "user_transcription_event": {"user_transcript": "Hi"}},
        {"conversation_id": "c3", "stream": "user_sim", "event_type": "audio_start", "user": "simulated_user",
         "audio_timestamp": NOW_MS / 1000, "timestamp": NOW_MS},
    ]  # fmt: skip
    response = await receiver.events(posted)
    assert (response.status_code, response.json()) == (202, {"accepted_events": 5, "refused_events": 0})
    assert [source for source, _ in receiver.written] == ["audit", "pipecat", "audit", "elevenlabs", "elevenlabs"]
    assert [each.key for each in receiver.writer.records] == [b"c1", b"c1", b"7", b"c2", b"c3"]
    assert all({"conversation_id", "stream"}.isdisjoint(event) for _, event in receiver.written)
    types = [dict(each.headers)["ce_type"].decode() for each in receiver.writer.records]
    assert types == [
        "callgauge.call.call_started.v1", "callgauge.pipecat.speech_event.v1", "callgauge.audit.user.v1",
        "callgauge.elevenlabs.user_transcript.v1", "callgauge.user_sim.audio_start.v1",
    ]  # fmt: skip
    assert abs(receiver.written[3][1]["timestamp"] - time.time() * 1000) < 60_000  # the time of its arrival
    assert receiver.count("callgauge_ingest_events_total", tenant="", source="audit") == 2


async def test_a_number_that_no_float_holds_is_null() -> None:
    receiver = Receiver()
    event = {
        "conversation_id": "c",
        "message_type": "tool_response",
        "timestamp": NOW_MS,
        "value": {"tool": "fee", "response": "?"},
    }
    response = await receiver.post(
        "/events", json.dumps(event).replace('"?"', "1e999").encode(), authorization=f"Bearer {TOKEN}"
    )
    assert response.status_code == 202
    assert receiver.written[0][1]["value"] == {"tool": "fee", "response": None}


async def test_a_request_that_comes_again_with_its_key_is_a_repeat() -> None:
    receiver = Receiver()
    for _ in range(2):
        await receiver.events([started(), spoke("user_speech_started")], idempotency_key="k1")
    await receiver.events([started()])
    ids = [read_envelope(each.headers).id for each in receiver.writer.records]  # type: ignore[union-attr]  # there is one
    assert ids[:4] == ["k1/1", "k1/2"] * 2
    assert ids[4] not in ids[:4]


async def test_attributes_of_a_cloudevent_are_kept() -> None:
    receiver = Receiver()
    headers = {"ce_specversion": "1.0", "ce_id": "e%201", "ce_source": "/bot/7", "ce_type": "callgauge.pipecat.speech_event.v1",
               "ce_subject": "c9", "ce_sequence": "12"}  # fmt: skip
    event = {key: value for key, value in spoke("user_speech_started").items() if key != "conversation_id"}
    response = await receiver.events(json.dumps(event).encode(), **headers)
    assert response.status_code == 202
    (record,) = receiver.writer.records
    assert record.key == b"c9"
    assert read_envelope(record.headers) == ("e 1", "/bot/7", "callgauge.pipecat.speech_event.v1", 12)


async def test_of_half_a_batch_the_other_half_is_accepted() -> None:
    receiver = Receiver()
    lines = [
        json.dumps(started()),
        '{"conversation_id": "c1", "type": "speech_event"',
        json.dumps(spoke("user_speech_started")),
        json.dumps({**spoke("x"), "timestamp": 5}),
        json.dumps({"type": "call_ended", "timestamp": NOW_MS}),
        json.dumps({"conversation_id": "c1", "type": "of_tomorrow", "timestamp": NOW_MS}),
        json.dumps({**spoke("x"), "data": {"kind": "x", "timestamp": "call me at +1 202 555 0143"}}),
        json.dumps({"conversation_id": "c1", "stream": "pipecat", "type": "of_tomorrow", "timestamp": NOW_MS}),
    ]
    response = await receiver.events("\n".join(lines).encode(), content_type="application/x-ndjson")
    assert response.status_code == 207
    answer = response.json()
    assert (answer["accepted_events"], answer["refused_events"]) == (3, 5)
    assert [(each["line"], each["reason"]) for each in answer["refused"]] == [
        (2, "undecodable"), (4, "time_out_of_bounds"), (5, "empty_key"), (6, "invalid_event"), (7, "invalid_event"),
    ]  # fmt: skip
    assert all(each["what"] and each["expected_and_seen"] and each["what_to_do"] for each in answer["refused"])
    assert "data.timestamp" in answer["refused"][4]["what"]
    assert "555" not in response.text
    assert [(each["events"], each["what"]) for each in answer["not_understood"]] == [
        (1, "an event of type 'of_tomorrow'")
    ]
    assert "callgauge schema" in answer["not_understood"][0]["what_to_do"]
    assert receiver.count(REQUESTS, tenant="", outcome="partly_refused") == 1
    assert receiver.count("callgauge_ingest_events_refused_total", tenant="") == 5


async def test_a_batch_of_nothing_good_is_refused() -> None:
    receiver = Receiver()
    response = await receiver.events([{"conversation_id": "c1"}, 5])
    assert response.status_code == 422
    assert receiver.writer.records == []
    many = await receiver.events([5] * 500)
    assert (many.json()["refused_events"], len(many.json()["refused"])) == (500, events.MAX_SHOWN_REFUSALS)


@pytest.mark.parametrize(
    "authorization", ["", "Bearer", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer é"]
)
async def test_a_request_without_the_token_is_refused_unread(authorization: str) -> None:
    receiver = Receiver()
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
    assert 15 <= int(limited.headers["retry-after"]) <= 25
    assert (await receiver.events([started(conversation_id="c2")], "of-globex")).status_code == 202
    assert receiver.count(REQUESTS, tenant="acme", outcome="limited") == 1


async def test_ten_megabytes_are_refused_with_an_answer() -> None:
    receiver = Receiver()
    response = await receiver.events([started(x="y" * 10_000_000)])
    assert response.status_code == 413
    assert str(events.MAX_BODY_BYTES) in response.json()["error"]
    assert receiver.bodies.pending_bytes == 0
    one_event = await receiver.events([started(x="y" * 2_000_000), started()])
    assert one_event.json()["refused"][0]["reason"] == "record_too_large"


async def test_kafka_away_is_503_and_never_202() -> None:
    receiver = Receiver()
    receiver.writer.is_away = True
    response = await receiver.events([started()])
    assert (response.status_code, response.headers["retry-after"]) == (503, "5")
    assert response.json()["accepted_events"] == 0
    assert receiver.count(REQUESTS, tenant="", outcome="kafka_away") == 1


async def test_the_answer_waits_for_the_acknowledgement() -> None:
    receiver = Receiver()
    receiver.writer.hold()
    answering = asyncio.create_task(receiver.events([started()]))
    await receiver.writer.asked.wait()
    assert not answering.done()
    receiver.writer.release()
    assert (await answering).status_code == 202


async def test_slow_and_too_many_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    receiver = Receiver()
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


async def test_bodies_that_are_refused_as_a_whole() -> None:
    receiver = Receiver()
    assert (await receiver.events(b"hello")).status_code == 400
    assert (await receiver.events(b"[]")).status_code == 400
    assert (await receiver.events(b"[]", content_encoding="gzip")).status_code == 415
