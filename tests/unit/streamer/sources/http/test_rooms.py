"""Each sender has its own room and its own rate: nobody keeps others waiting with bodies that never
end, with gzip, or with webhooks.
"""

import asyncio
import gzip
import json
import time
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from schemas.closed_sets import WebhookOutcome
from streamer.settings.all_settings import IngestSettings, SenderSettings
from streamer.sources.http import receiving
from streamer.sources.http.posted import MAX_BODY_BYTES
from tests.support.webhooks import delivery, entry, record_of_a_call, signature_header
from tests.unit.streamer.sources.http.receiver import Receiver
from tests.unit.streamer.sources.http.test_posted import started

REQUESTS = "callgauge_ingest_requests_total"
ROOM = 100_000
NOW_S = int(time.time())


def tenants(**more: Any) -> Receiver:
    named = {
        name: {"token": f"of-{name}", "elevenlabs_secret": f"secret-of-{name}", **more}
        for name in ("acme", "globex")
    }
    return Receiver(
        IngestSettings(),
        {name: SenderSettings.model_validate(each) for name, each in named.items()},
    )


class Client:
    """A client at an address of its own."""

    def __init__(self, receiver: Receiver, host: str = "192.0.2.1") -> None:
        self._client = httpx.AsyncClient(
            transport=httpx.ASGITransport(receiver.app, client=(host, 1)), base_url="http://ingest"
        )

    async def events(self, tenant: str, body: Any, **headers: str) -> httpx.Response:
        content = json.dumps(body).encode() if isinstance(body, list) else body
        named = {
            "authorization": f"Bearer of-{tenant}",
            **{name.replace("_", "-"): each for name, each in headers.items()},
        }
        return await self._client.post("/events", content=content, headers=named)

    async def webhook(self, tenant: str, body: Any, header: str | None = None) -> httpx.Response:
        if header is None:
            header = signature_header(body, int(time.time()), f"secret-of-{tenant}")
        path = f"/webhooks/elevenlabs/{tenant}"
        return await self._client.post(path, content=body, headers={"elevenlabs-signature": header})


class Unfinished:
    """A body of so many bytes, whose end does not come."""

    def __init__(self, total_bytes: int) -> None:
        self._bytes = total_bytes
        self.arrived = asyncio.Event()
        self.ends = asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b" " * self._bytes
        self.arrived.set()
        await self.ends.wait()
        yield b" "


@pytest.fixture(autouse=True)
def small_rooms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiving, "MAX_PENDING_BYTES", ROOM)
    monkeypatch.setattr(receiving, "MAX_PENDING_BYTES_A_SENDER", ROOM // 2)


async def hold(
    answers: list["asyncio.Task[httpx.Response]"], answer: Any, body: Unfinished
) -> None:
    answers.append(asyncio.create_task(answer))
    await body.arrived.wait()


async def ended(answers: list["asyncio.Task[httpx.Response]"]) -> list[int]:
    """The statuses of the requests that are answered by now."""
    for _ in range(20):
        await asyncio.sleep(0)
    return [each.result().status_code for each in answers if each.done()]


async def cancelled(answers: list["asyncio.Task[httpx.Response]"]) -> None:
    for each in answers:
        each.cancel()
    await asyncio.gather(*answers, return_exceptions=True)


async def test_a_tenant_s_unfinished_bodies_end_each_other_and_are_charged() -> None:
    receiver, answers = tenants(events_per_second=50), list[Any]()
    client = Client(receiver)
    for _ in range(3):
        body = Unfinished(ROOM // 5)
        await hold(answers, client.events("globex", body), body)
    assert await ended(answers) == [503], "the oldest one: two fifths fit into a half"
    assert answers[0].done()
    assert receiver.bodies.pending_bytes == 2 * (ROOM // 5)
    assert (await client.events("acme", [started()])).status_code == 202
    body = Unfinished(ROOM // 2 - 1)
    for _ in range(12):  # 500 events at once are allowed, and each of these is charged as 120
        body = Unfinished(ROOM // 2 - 1)
        answers.append(asyncio.create_task(client.events("globex", body)))
        await ended(answers)
    assert (await client.events("globex", [started(conversation_id="g")])).status_code == 429
    assert (await client.events("acme", [started()])).status_code == 202
    assert receiver.count(REQUESTS, tenant="globex", outcome="busy") >= 4
    await cancelled(answers)
    assert receiver.bodies.pending_bytes == 0


async def test_a_full_room_is_made_by_the_sender_that_holds_most() -> None:
    receiver, answers = tenants(), list[Any]()
    for host, part in (("192.0.2.1", 0.45), ("192.0.2.2", 0.4)):
        body = Unfinished(int(ROOM * part))
        header = signature_header(b"another body", NOW_S)
        await hold(answers, Client(receiver, host).webhook("acme", body, header), body)
    body = Unfinished(int(ROOM * 0.2))
    await hold(answers, Client(receiver, "192.0.2.3").webhook("globex", body, header), body)
    assert await ended(answers) == [503]
    assert answers[0].done(), "of the address that holds most"
    assert receiver.bodies.pending_bytes < ROOM
    await cancelled(answers)


@pytest.mark.parametrize("honest", ["192.0.2.1", "192.0.2.9"])
async def test_without_a_secret_no_signed_delivery_is_kept_out(honest: str) -> None:
    """Of the same address too, as behind a proxy that names none."""
    receiver, answers = tenants(), list[Any]()
    for _ in range(9):
        body = Unfinished(ROOM // 4)
        header = signature_header(b"another body", NOW_S)
        await hold(answers, Client(receiver).webhook("acme", body, header), body)
        record = record_of_a_call(
            f"conv_{len(answers)}", NOW_S - 40, entry("user", "x" * (ROOM // 6), 4)
        )
        signed = delivery("post_call_transcription", record, NOW_S)
        assert (await Client(receiver, honest).webhook("acme", signed)).text == "accepted\n"
    assert set(await ended(answers)) == {503}
    await cancelled(answers)


@pytest.mark.parametrize("reason", ["too_slow", "gone"])
async def test_what_came_of_a_body_without_an_end_is_charged(
    reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver = tenants(events_per_second=2)
    monkeypatch.setattr(
        receiving, "MAX_DRAINED_BYTES" if reason == "gone" else "BODY_SECONDS", 1e-3
    )
    answer = await Client(receiver).events("acme", Unfinished(20_000))
    assert answer.status_code == {"too_slow": 408, "gone": 400}[reason]
    monkeypatch.undo()
    assert (await Client(receiver).events("acme", [started()])).status_code == 429
    assert (await Client(receiver).events("globex", [started()])).status_code == 202
    assert receiver.count(REQUESTS, tenant="acme", outcome=reason) == 1


# Bodies in gzip.


class Endless:
    """A body in gzip that goes on for ever, and how much of it was taken."""

    def __init__(self, begin: bytes, piece: bytes) -> None:
        self.taken_bytes = 0
        self._begin, self._piece = begin, piece

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._begin
        while self.taken_bytes < 100_000_000:
            self.taken_bytes += len(self._piece)
            yield self._piece


WHOLE = gzip.compress(json.dumps([started()]).encode())


@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        (WHOLE, b"x" * 65_536),
        (WHOLE, WHOLE),
        (WHOLE, bytes(65_536)),
        (WHOLE[:10], b"\0\0\0\xff\xff" * 13_107),
    ],
    ids=["anything", "another member", "zeros", "blocks of nothing"],
)
async def test_gzip_without_an_end_is_refused_at_once(begin: bytes, piece: bytes) -> None:
    receiver, body = tenants(), Endless(begin, piece)
    tracemalloc.start()
    try:
        answer = await Client(receiver).events("acme", body, content_encoding="gzip")
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (answer.status_code, "gzip" in answer.text) == (400, True)
    assert body.taken_bytes <= (MAX_BODY_BYTES + 500_000 if len(begin) == 10 else len(piece))
    assert peak_bytes < 2_000_000
    assert receiver.writer.records == []


async def test_broken_gzip_is_charged() -> None:
    receiver = tenants(events_per_second=1)
    client = Client(receiver)
    assert (
        await client.events("acme", gzip.compress(bytes(20_000))[:-4], content_encoding="gzip")
    ).status_code == 400
    assert (await client.events("acme", [started()])).status_code == 429


async def test_many_bodies_at_once_are_within_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each began while the sender was allowed to send."""
    monkeypatch.undo()
    receiver = tenants(events_per_second=1)
    client = Client(receiver)
    answers = await asyncio.gather(*(client.events("acme", [started()] * 30) for _ in range(10)))
    assert sorted(each.status_code for each in answers) == [202] + [429] * 9
    assert len(receiver.writer.records) == 30


# Webhooks.


def talk(number: int, entries: int = 20) -> bytes:
    said = [entry("user" if each % 2 else "agent", "hm", each) for each in range(entries)]
    return delivery(
        "post_call_transcription", record_of_a_call(f"conv_{number}", NOW_S - 600, *said), NOW_S
    )


async def test_webhooks_are_within_the_rate_of_their_tenant() -> None:
    receiver = tenants(events_per_second=9)  # a delivery has 23 events, of a new conversation
    client = Client(receiver)
    answers = [await client.webhook("acme", talk(number)) for number in range(6)]
    assert [each.status_code for each in answers] == [200, 200, 200, 429, 429, 429]
    assert int(answers[-1].headers["retry-after"]) >= 2
    assert (
        receiver.count(
            "callgauge_ingest_webhooks_total", kind="unknown", outcome=WebhookOutcome.LIMITED
        )
        == 3
    )
    assert (await client.events("acme", [started()])).status_code == 429, "it is one rate"
    assert (await client.webhook("globex", talk(9))).status_code == 200
    assert len(receiver.writer.records) == 4 * 23


@pytest.mark.parametrize(
    "body",
    [
        b'{"type":"post_call_transcription","x":' + b" " * 40_000 + b"1}",
        b'{"type":"post_call_transcription", ' + b"x" * 40_000,
        b'{"type":"of_tomorrow","x":"' + b"x" * 40_000 + b'"}',
        delivery(
            "post_call_transcription",
            record_of_a_call("old", NOW_S - 40 * 86_400, analysis="x" * 40_000),
            NOW_S,
        ),
    ],
    ids=["no record", "no JSON", "ignored", "too old"],
)
async def test_a_delivery_without_a_call_is_charged_by_its_size(body: bytes) -> None:
    client = Client(tenants(events_per_second=8))
    assert (await client.webhook("acme", body)).status_code == 200
    assert (await client.webhook("acme", talk(1))).status_code == 429


async def test_an_unknown_tenant_is_answered_as_a_wrong_signature_is() -> None:
    receiver = tenants()
    receiver_of_tokens = Receiver(
        IngestSettings(), {"initech": SenderSettings.model_validate({"token": "t"})}
    )
    client, body = Client(receiver), talk(1)
    for header in (
        signature_header(body, NOW_S, "another"),
        signature_header(body, NOW_S - 9_000),
        "t=1",
        "",
    ):
        answers = [
            await client.webhook(name, body, header) for name in ("acme", "nobody", "x" * 500)
        ]
        assert len({(each.status_code, each.text, tuple(each.headers)) for each in answers}) == 1
        assert answers[0].status_code == 401
    assert (await Client(receiver_of_tokens).webhook("initech", body)).status_code == 404, (
        "there is none for anybody"
    )


async def test_a_refused_event_claims_no_conversation() -> None:
    client = Client(tenants())
    assert (await client.events("globex", [started(agent=5)])).status_code == 422
    unreadable = delivery(
        "post_call_transcription", {"conversation_id": "c1", "transcript": 5}, NOW_S
    )
    assert (await client.webhook("globex", unreadable)).text == "quarantined\n"
    assert (await client.events("acme", [started()])).status_code == 202
    assert (await client.events("globex", [started()])).status_code == 422
    foreign = delivery("post_call_transcription", record_of_a_call("c1", NOW_S - 40), NOW_S)
    assert (await client.webhook("globex", foreign)).text == "foreign\n"
