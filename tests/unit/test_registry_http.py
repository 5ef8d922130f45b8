"""`/metrics` and `/healthz` over a real loopback socket."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from prometheus_client import CollectorRegistry, generate_latest

from consumers.runtime.http import AddressInUseError, HttpSettings, MetricsServer
from consumers.runtime.registry import Instruments

OPENMETRICS = {"accept": "application/openmetrics-text; version=1.0.0, text/plain;q=0.5"}


class Serving:
    def __init__(self) -> None:
        self.instruments = Instruments(CollectorRegistry(), ["exporter"])
        self.problems: list[str] = []
        self.server = MetricsServer(HttpSettings(port=0), self.instruments, lambda: self.problems)

    async def get(self, path: str, headers: dict[str, str] | None = None) -> httpx.Response:
        async with httpx.AsyncClient() as client:
            return await client.get(self.server.url.removesuffix("/metrics") + path, headers=headers)


@pytest_asyncio.fixture
async def serving() -> AsyncIterator[Serving]:
    made = Serving()
    await made.server.start()
    yield made
    await made.server.stop()


async def test_the_plain_path_answers_in_the_text_format(serving: Serving) -> None:
    serving.instruments.inc("callgauge_dead_air_total", ("ava",))
    answer = await serving.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'callgauge_dead_air_total{agent="ava"} 1.0\n' in answer.text


async def test_openmetrics_is_spoken_to_who_asks_for_it(serving: Serving) -> None:
    serving.instruments.inc("callgauge_dead_air_total", ("ava",), 1, {"conversation_id": "c-1"})
    answer = await serving.get("/metrics", OPENMETRICS)
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert '# {conversation_id="c-1"} 1.0' in answer.text
    assert answer.text.endswith("# EOF\n")


async def test_gauges_are_read_on_the_event_loop_and_rendered_off_it(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: dict[str, int] = {}

    def read() -> dict[tuple[str, ...], float]:
        threads["read"] = threading.get_ident()
        return {("ava", "acme", "live"): 3}

    def render(registry: CollectorRegistry) -> bytes:
        threads["render"] = threading.get_ident()
        return generate_latest(registry)

    monkeypatch.setattr("consumers.runtime.http.choose_encoder", lambda _accept: (render, "text/plain"))
    serving.instruments.read_gauge("callgauge_calls_active", read)
    answer = await serving.get("/metrics")
    assert 'callgauge_calls_active{agent="ava",environment="live",tenant="acme"} 3.0' in answer.text
    assert threads["read"] == threading.get_ident() != threads["render"]


async def test_health_names_every_problem(serving: Serving) -> None:
    assert (await serving.get("/healthz")).status_code == 200
    serving.problems += ["exporter: not reading scores", "evaluator: no tick for 31 s"]
    answer = await serving.get("/healthz")
    assert (answer.status_code, answer.text) == (503, "exporter: not reading scores\nevaluator: no tick for 31 s\n")


async def test_other_paths_are_not_there(serving: Serving) -> None:
    assert (await serving.get("/")).status_code == 404


async def test_it_listens_on_this_machine_only_unless_told(serving: Serving) -> None:
    assert HttpSettings().host == "127.0.0.1"
    assert serving.server.url.startswith("http://127.0.0.1:")


async def test_it_stops_within_a_second_even_with_a_connection_held_open(serving: Serving) -> None:
    port = int(serving.server.url.split(":")[2].split("/")[0])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /metrics HTTP/1.1\r\nhost: x\r\n")  # never finished
    await writer.drain()
    async with asyncio.timeout(1):
        await serving.server.stop()
    await reader.read()
    writer.close()
    await writer.wait_closed()
    await serving.server.stop()  # twice is harmless


async def test_it_stops_within_a_second_even_in_the_middle_of_an_answer(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asyncio.Event()

    async def never(*_: Any) -> bytes:
        asked.set()
        return bytes(await asyncio.Event().wait())

    monkeypatch.setattr("asyncio.to_thread", never)
    request = asyncio.create_task(serving.get("/metrics"))
    await asked.wait()
    async with asyncio.timeout(1):
        await serving.server.stop()
    (answer,) = await asyncio.gather(request, return_exceptions=True)
    assert isinstance(answer, Exception) or (isinstance(answer, httpx.Response) and answer.is_server_error)


async def test_an_address_in_use_is_said_plainly() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        server = MetricsServer(HttpSettings(port=port), Instruments(CollectorRegistry(), ["exporter"]))
        with pytest.raises(AddressInUseError, match=f"cannot listen on 127.0.0.1:{port}: .*another port"):
            await server.start()
