"""The receiver on a real socket: slow clients, large bodies, bodies in pieces."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator

import httpx
import pytest

from consumers.runtime.http import BoundedConnection, ConnectionBounds, HttpLimit, HttpListener
from streamer.sources.http import posted as events
from streamer.sources.http import receiving as bodies
from tests.support.patience import patient
from tests.unit.streamer.sources.http.receiver import TOKEN, Receiver

HEAD = f"POST /events HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\n".encode()


class Listening:
    """A receiver and its address."""

    def __init__(self) -> None:
        self.receiver = Receiver()
        self.limits: list[HttpLimit] = []
        bounds = ConnectionBounds(request_seconds=0.2, answer_seconds=patient(30), most_connections=8)
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
        reader, writer = await asyncio.open_connection("127.0.0.1", int(self.listener.address.rpartition(":")[2]))
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


async def test_a_body_that_does_not_come_gets_an_answer(listening: Listening, monkeypatch: pytest.MonkeyPatch) -> None:
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
        answer = await client.post(f"{listening.listener.address}/events", content=body, headers=headers)
        assert answer.status_code == 413
        assert str(events.MAX_BODY_BYTES) in answer.text


async def test_an_answer_in_two_pieces_is_sent_at_once(listening: Listening, monkeypatch: pytest.MonkeyPatch) -> None:
    without_delay: list[bool] = []
    made = BoundedConnection.connection_made

    def noted(connection: BoundedConnection, transport: asyncio.Transport) -> None:
        found = transport.get_extra_info("socket")
        without_delay.append(bool(found.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)))
        made(connection, transport)

    monkeypatch.setattr(BoundedConnection, "connection_made", noted)
    await listening.sent(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n", b"")
    assert without_delay == [True]


async def test_a_body_in_pieces_is_read(listening: Listening) -> None:
    body = json.dumps([{"conversation_id": "c1", "type": "of_tomorrow", "stream": "pipecat"}]).encode()
    pieces = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (body[:10], body[10:]))
    answer = await listening.sent(
        HEAD + b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n", pieces + b"0\r\n\r\n"
    )
    assert answer.startswith(b"HTTP/1.1 202")
    assert len(listening.receiver.writer.records) == 1


async def test_who_goes_away_before_the_end_of_the_body_leaves_nothing(listening: Listening) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", int(listening.listener.address.rpartition(":")[2]))
    writer.write(HEAD + b"content-length: 100\r\n\r\n[{")
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    async with asyncio.timeout(patient(30)):
        while not listening.receiver.count("callgauge_ingest_requests_total", tenant="", outcome="gone"):  # noqa: ASYNC110 - a count has no event
            await asyncio.sleep(0.01)
    assert listening.receiver.bodies.pending_bytes == 0
