"""`/metrics`, `/healthz` and `/readyz` over a real loopback socket."""

import asyncio
import gc
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from pydantic import SecretStr, ValidationError

from consumers.runtime import http
from consumers.runtime import http as http_connections
from consumers.runtime.http import (
    MAX_CONNECTIONS,
    MAX_SCRAPES,
    RETRY_SCRAPE_SECONDS,
    AddressInUseError,
    BoundedConnection,
    HttpLimit,
    HttpListener,
    MetricsServer,
)
from consumers.runtime.registry import Instruments
from consumers.runtime.settings import MAX_HEADER_SECRET_CHARS, HttpSettings
from streamer.settings.all_settings import SettingsError, load_settings
from tests.support.patience import patient

OPENMETRICS = {"accept": "application/openmetrics-text; version=1.0.0, text/plain;q=0.5"}


SOON_SECONDS = 40  # a bound, not a goal: the machine may be busy


class Serving:
    def __init__(self, token: str | None = None) -> None:
        self.instruments = Instruments(CollectorRegistry(), ["exporter"])
        self.stalled: list[str] = []
        self.not_ready: list[str] = []
        settings = HttpSettings(port=0, token=None if token is None else SecretStr(token))
        self.server = MetricsServer(
            settings,
            self.instruments,
            stalled=lambda: self.stalled,
            not_ready=lambda: self.not_ready,
            state=lambda: '{"roles":["exporter"]}',
        )

    async def get(
        self, path: str, headers: Mapping[str, str | bytes] | None = None
    ) -> httpx.Response:
        async with httpx.AsyncClient(timeout=patient(SOON_SECONDS)) as client:
            raw = {
                name.encode(): value if isinstance(value, bytes) else value.encode()
                for name, value in (headers or {}).items()
            }
            return await client.get(self.server.url.removesuffix("/metrics") + path, headers=raw)


@pytest_asyncio.fixture
async def serving() -> AsyncIterator[Serving]:
    made = Serving()
    await made.server.start()
    yield made
    await made.server.stop()


TOKEN = "corre~ct.horse+battery/staple=="  # noqa: S105 - a secret of this test only


@pytest_asyncio.fixture
async def guarded() -> AsyncIterator[Serving]:
    made = Serving(TOKEN)
    await made.server.start()
    yield made
    await made.server.stop()


async def test_the_plain_path_answers_in_the_text_format(serving: Serving) -> None:
    serving.instruments.inc("callgauge_overlap_seconds_total", ("ava", "acme", "live"))
    answer = await serving.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert (
        'callgauge_overlap_seconds_total{agent="ava",environment="live",tenant="acme"} 1.0\n'
        in answer.text
    )


async def test_openmetrics_is_spoken_to_who_asks_for_it(serving: Serving) -> None:
    serving.instruments.inc(
        "callgauge_overlap_seconds_total", ("ava", "acme", "live"), 1, {"conversation_id": "c-1"}
    )
    answer = await serving.get("/metrics", OPENMETRICS)
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert '# {conversation_id="c-1"} 1.0' in answer.text
    assert answer.text.endswith("# EOF\n")


async def test_a_page_is_compressed_for_readers_that_accept_it(serving: Serving) -> None:
    serving.instruments.inc("callgauge_overlap_seconds_total", ("ava", "acme", "live"))
    plain = await serving.get("/metrics", OPENMETRICS | {"accept-encoding": "identity"})
    packed = await serving.get("/metrics", OPENMETRICS | {"accept-encoding": "br, gzip;q=0.5"})
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.text == plain.text  # the client has unpacked it
    assert int(packed.headers["content-length"]) * 4 < int(plain.headers["content-length"])
    assert packed.headers["vary"] == plain.headers["vary"] == "accept-encoding"


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

    monkeypatch.setattr(
        "consumers.runtime.http.choose_encoder", lambda _accept: (render, "text/plain")
    )
    serving.instruments.read_gauge("callgauge_calls_active", read)
    answer = await serving.get("/metrics")
    assert 'callgauge_calls_active{agent="ava",environment="live",tenant="acme"} 3.0' in answer.text
    assert threads["read"] == threading.get_ident() != threads["render"]


async def test_health_and_readiness_name_every_problem_of_their_own(serving: Serving) -> None:
    for path in ("/healthz", "/readyz"):
        answer = await serving.get(path)
        assert (answer.status_code, answer.text) == (200, "ok\n")
    serving.not_ready += ["exporter: not reading scores"]
    assert (await serving.get("/healthz")).status_code == 200, "a role that waits is alive"
    serving.stalled += ["exporter: no tick for 31 s", "evaluator: its work has ended with an error"]
    answer = await serving.get("/healthz")
    assert answer.status_code == 503
    assert (
        answer.text == "exporter: no tick for 31 s\nevaluator: its work has ended with an error\n"
    )
    answer = await serving.get("/readyz")
    assert (answer.status_code, answer.text) == (503, "exporter: not reading scores\n")


async def test_with_a_token_the_metrics_are_for_who_has_it(guarded: Serving) -> None:
    for scheme in ("Bearer", "bearer"):
        assert (
            await guarded.get("/metrics", {"authorization": f"{scheme} {TOKEN}"})
        ).status_code == 200


@pytest.mark.parametrize(
    "authorization",
    [TOKEN, f"Basic {TOKEN}", "Bearer", f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}x", b"Bearer \xe9"],
)
async def test_who_has_another_token_learns_only_that(
    guarded: Serving, authorization: str | bytes
) -> None:
    answer = await guarded.get("/metrics", {"authorization": authorization})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == 'Bearer realm="callgauge", error="invalid_token"'
    assert "callgauge_" not in answer.text
    assert TOKEN not in answer.text


async def test_who_has_no_token_is_told_that_one_is_needed(guarded: Serving) -> None:
    answer = await guarded.get("/metrics")
    assert (answer.status_code, answer.headers["www-authenticate"]) == (
        401,
        'Bearer realm="callgauge"',
    )
    assert (
        "`Authorization: Bearer` with the token of the setting http_token; seen: no Authorization"
        in answer.text
    )


@pytest.mark.parametrize(
    "token", ["", "two words", "tab\there", "l\u00e9", "x" * (MAX_HEADER_SECRET_CHARS + 1)]
)
def test_a_token_that_no_header_can_carry_is_a_mistake_and_is_not_shown(token: str) -> None:
    with pytest.raises(ValidationError) as refused:
        HttpSettings.model_validate({"token": token})
    assert not token or token not in str(refused.value)


def test_the_token_is_never_shown() -> None:
    assert TOKEN not in repr(HttpSettings(token=SecretStr(TOKEN)))


def test_the_token_comes_from_the_environment_or_a_file(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    for environment in ({"CALLGAUGE_HTTP_TOKEN": TOKEN}, {"CALLGAUGE_HTTP_TOKEN": f"file:{path}"}):
        token = load_settings(None, {}, environment).http.token
        assert token is not None
        assert token.get_secret_value() == TOKEN
    assert load_settings(None, {}, {}).http.token is None


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("", "CALLGAUGE_HTTP_TOKEN is set: it must not be empty"),
        (f"{TOKEN} x", "CALLGAUGE_HTTP_TOKEN is set: expected visible ASCII"),
        ("file:{folder}/none", "/none: the file cannot be read (No such file or directory)"),
        ("file:{folder}/bad", ": expected visible ASCII characters without spaces"),
    ],
)
def test_a_token_that_cannot_be_used_is_told_and_not_shown(
    tmp_path: Path, value: str, said: str
) -> None:
    (tmp_path / "bad").write_text(f"{TOKEN} x")
    with pytest.raises(SettingsError) as refused:
        load_settings(None, {}, {"CALLGAUGE_HTTP_TOKEN": value.replace("{folder}", str(tmp_path))})
    assert said in str(refused.value)
    assert TOKEN not in str(refused.value)


async def test_other_paths_are_not_there(serving: Serving) -> None:
    assert (await serving.get("/")).status_code == 404


async def test_it_listens_on_this_machine_only_unless_told(serving: Serving) -> None:
    assert HttpSettings().host == "127.0.0.1"
    assert serving.server.url.startswith("http://127.0.0.1:")


async def test_it_stops_within_a_second_even_with_a_connection_held_open(serving: Serving) -> None:
    port = int(serving.server.url.split(":")[2].split("/")[0])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n")  # never finished
    await writer.drain()
    async with asyncio.timeout(patient(1)):
        await serving.server.stop()
    await reader.read()
    writer.close()
    await writer.wait_closed()
    await serving.server.stop()  # twice is harmless


async def test_it_stops_within_a_second_even_in_the_middle_of_an_answer(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, goes_on, loop = asyncio.Event(), threading.Event(), asyncio.get_running_loop()

    def slowly(*_: Any, **__: Any) -> bytes:
        loop.call_soon_threadsafe(asked.set)
        goes_on.wait(patient(SOON_SECONDS))
        return b""

    monkeypatch.setattr(http, "_rendered", slowly)
    request = asyncio.create_task(serving.get("/metrics"))
    async with asyncio.timeout(patient(SOON_SECONDS)):
        await asked.wait()
    async with asyncio.timeout(patient(1)):
        await serving.server.stop()
    goes_on.set()
    (answer,) = await asyncio.gather(request, return_exceptions=True)
    assert isinstance(answer, Exception) or (
        isinstance(answer, httpx.Response) and answer.is_server_error
    )


class Client:
    """A connection that sends and reads only as a test says."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def of(cls, serving: Serving) -> "Client":
        host, port = httpx.URL(serving.server.url).host, httpx.URL(serving.server.url).port
        return cls(*await asyncio.open_connection(host, port, limit=READ_AHEAD_BYTES))

    async def sent(self, request: bytes) -> "Client":
        self.writer.write(request)
        await self.writer.drain()
        return self

    async def ended(self) -> bytes:
        """The bytes that the server sent until it ended the connection."""
        try:
            async with asyncio.timeout(patient(SOON_SECONDS)):
                return await self.reader.read()
        except ConnectionError:  # it ended with something unread on its way
            return b""
        finally:
            self.writer.close()


READ_AHEAD_BYTES = 1_000
SCRAPE = b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n"


def times(serving: Serving, limit: HttpLimit) -> float | None:
    """How often a bound was reached."""
    return serving.instruments.registry.get_sample_value(
        "callgauge_http_limits_hit_total", {"limit": limit}
    )


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(patient(SOON_SECONDS)):
        while not condition():  # noqa: ASYNC110 - sockets and counters signal nothing: they have to be asked
            await asyncio.sleep(0.01)


async def probed(serving: Serving) -> set[int]:
    """The status codes of both probes."""
    return {(await serving.get(path)).status_code for path in ("/healthz", "/readyz")}


def bound(serving: Serving, **bounds: Any) -> None:
    """Changes bounds of the connections."""
    connections = serving.server._connections
    connections.bounds = replace(connections.bounds, **bounds)


@pytest.mark.parametrize("begun", [b"", b"GET /metr", SCRAPE[:-2]])
async def test_a_connection_without_a_whole_request_ends(serving: Serving, begun: bytes) -> None:
    assert http_connections.REQUEST_SECONDS == 5
    bound(serving, request_seconds=0.05)
    client = await (await Client.of(serving)).sent(begun)
    await client.ended()
    assert times(serving, "request_time") == 1


BODY = b"GET /metrics HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99999\r\n\r\n"


@pytest.mark.parametrize(
    "begun",
    [b"GET /healthz HTTP/1.1\r\nx: ", SCRAPE + b"GET /healthz HTTP/1.1\r\nx: ", BODY],
    ids=["headers", "headers of the second request", "a body"],
)
async def test_what_comes_byte_by_byte_extends_nothing(serving: Serving, begun: bytes) -> None:
    bound(serving, request_seconds=0.2)
    client = await (await Client.of(serving)).sent(begun)
    ended = asyncio.create_task(client.ended())
    while not ended.done():
        client.writer.write(b"a")
        await asyncio.sleep(0.01)
    await ended
    assert times(serving, "request_time") == 1


async def test_a_connection_that_has_had_its_answer_ends_uncounted(serving: Serving) -> None:
    bound(serving, request_seconds=0.05)
    client = await (await Client.of(serving)).sent(SCRAPE)
    assert (await client.ended()).startswith(b"HTTP/1.1 200 OK")
    assert times(serving, "request_time") == 0


async def test_idle_connections_keep_no_probe_out(serving: Serving) -> None:
    extra = 40
    idle = [await Client.of(serving) for _ in range(MAX_CONNECTIONS + extra)]
    assert await probed(serving) == {200}
    assert (await serving.get("/metrics")).status_code == 200
    await asyncio.gather(*(client.ended() for client in idle[:extra]))  # the oldest gave way
    assert (times(serving, "connections") or 0) >= extra
    assert (times(serving, "scrapes"), times(serving, "request_time")) == (0, 0)
    assert not idle[-1].reader.at_eof()
    for client in idle:
        client.writer.close()


async def test_connections_that_are_answered_give_way_last(serving: Serving) -> None:
    bound(serving, most_connections=3)
    wide_page(serving, 5_000_000)
    reading = await (await Client.of(serving)).sent(SCRAPE[:-2] + b"connection: close\r\n\r\n")
    # its page has begun
    await until(lambda: bool(reading.reader._buffer))  # type: ignore[attr-defined]
    others = [await Client.of(serving) for _ in range(3)]
    assert await probed(serving) == {200}
    assert len(await reading.ended()) > 5_000_000
    for client in others:
        client.writer.close()


async def test_probes_are_answered_though_every_connection_has_a_request(serving: Serving) -> None:
    bound(serving, most_connections=MAX_SCRAPES)
    wide_page(serving, 5_000_000)
    slow = [await (await Client.of(serving)).sent(SCRAPE) for _ in range(MAX_SCRAPES)]
    # as above
    await until(lambda: all(client.reader._buffer for client in slow))  # type: ignore[attr-defined]
    assert await probed(serving) == {200}
    for client in slow:
        client.writer.close()


def wide_page(serving: Serving, size: int, line_bytes: int = 100_000) -> None:
    """Makes the page of metrics at least `size` bytes large, out of lines of `line_bytes` bytes."""

    class Wide(Collector):
        def collect(self) -> Iterator[GaugeMetricFamily]:
            family = GaugeMetricFamily("wide", "Makes the page large.", labels=["at", "with"])
            for at in range(size // line_bytes + 1):
                family.add_metric([str(at), "x" * line_bytes], at)
            yield family

    serving.instruments.registry.register(Wide())


async def test_a_client_that_does_not_read_its_page_is_left(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And makes room for the next reader, though it never ends its connection."""
    deadlines: list[tuple[BoundedConnection, float, HttpLimit]] = []
    keep = BoundedConnection._set_deadline

    def noted(connection: BoundedConnection, seconds: float, limit: HttpLimit) -> None:
        deadlines.append((connection, seconds, limit))
        keep(connection, seconds, limit)

    monkeypatch.setattr(BoundedConnection, "_set_deadline", noted)
    monkeypatch.setattr(http, "MAX_SCRAPES", 1)
    bound(serving, answer_seconds=3_600)
    wide_page(serving, 20_000_000)
    slow = await (await Client.of(serving)).sent(SCRAPE)
    # its page has begun
    await until(lambda: bool(slow.reader._buffer))  # type: ignore[attr-defined]
    connection, *told = deadlines[-1]
    assert told == [3_600, "answer_time"]
    refused = await serving.get("/metrics")
    assert (refused.status_code, refused.headers["retry-after"]) == (503, str(RETRY_SCRAPE_SECONDS))
    assert await probed(serving) == {200}
    connection.end("answer_time")  # its time is over
    assert times(serving, "answer_time") == 1
    assert 0 < len(await slow.ended()) < 20_000_000
    assert (await serving.get("/metrics")).status_code == 200
    assert times(serving, "scrapes") == 1


def test_an_answer_may_take_longer_than_prometheus_waits() -> None:
    assert http_connections.ANSWER_SECONDS == 15


async def test_the_last_piece_of_an_answer_has_a_deadline_too(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is with the operating system and our buffer by then, so the answer counts as sent."""
    bound(serving, request_seconds=0.2)
    monkeypatch.setattr(http, "PAGE_PIECE_BYTES", 50_000_000)
    wide_page(serving, 20_000_000)
    slow = await (await Client.of(serving)).sent(SCRAPE)
    await until(lambda: times(serving, "answer_time") == 1)
    assert len(await slow.ended()) < 20_000_000


async def test_who_is_refused_without_a_token_takes_no_place(
    guarded: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "MAX_SCRAPES", 0)
    assert (await guarded.get("/metrics")).status_code == 401
    assert (await guarded.get("/metrics", {"authorization": f"Bearer {TOKEN}"})).status_code == 503
    assert await probed(guarded) == {200}


async def _bytes_of(client: httpx.AsyncClient, url: str) -> int:
    """How long an answer is as it was sent. To unpack it would hold up the loop by itself."""
    async with client.stream("GET", url) as answer:
        return sum([len(piece) async for piece in answer.aiter_raw()])


async def test_probes_are_answered_while_a_large_page_is_made_and_sent(serving: Serving) -> None:
    """None waits for more than a quarter of the work on the page, in processor time: others may use
    the machine too.
    """
    bound(serving, answer_seconds=3_600)
    wide_page(serving, 20_000_000, line_bytes=500)
    waits_seconds: list[float] = []
    probe = serving.server.url.replace("/metrics", "/healthz")
    async with httpx.AsyncClient(timeout=patient(SOON_SECONDS)) as client:
        await client.get(probe)  # to connect is no wait
        gc.freeze()  # as `tune_python`: to look through what other tests left takes as long as a page
        began = time.thread_time()
        scrape = asyncio.create_task(_bytes_of(client, serving.server.url))
        while not scrape.done():
            asked = time.thread_time()
            answer = await client.get(probe)
            assert answer.status_code == 200
            waits_seconds.append(time.thread_time() - asked)
            await asyncio.sleep(0.01)
    gc.unfreeze()
    assert await scrape > 200_000, "20 MB, compressed"
    assert len(waits_seconds) > 5, "the page is not made between two probes"
    assert max(waits_seconds) < (time.thread_time() - began) / 4


async def test_an_address_in_use_is_said_plainly() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        server = MetricsServer(
            HttpSettings(port=port), Instruments(CollectorRegistry(), ["exporter"])
        )
        with pytest.raises(
            AddressInUseError, match=f"cannot listen on 127.0.0.1:{port}: .*another port"
        ):
            await server.start()


STRANGE = [
    "",
    "evil.example",
    "evil.example:8080",
    "localhost.evil.example",
    "127.0.0.1.evil.example:80",
    "evil.example/127.0.0.1",
    "127.0.0.1.nip.io",
    "0",
    "2130706433",
    "127.1",
    "[::2]:8070",
    "10.0.0.1",
    "localhost:1@evil.example",
]
OURS = [
    "127.0.0.1:8070",
    "localhost:8070",
    "LOCALHOST",
    "localhost.",
    "[::1]:8070",
    "127.3.2.1:1",
    "[::1]",
]


@pytest.mark.parametrize("host", STRANGE)
async def test_a_strange_name_for_this_machine_is_answered_nowhere(
    serving: Serving, host: str
) -> None:
    """Its owner could let it lead here, and then his page could read what is answered: names of
    agents and tenants, and ids.
    """
    for path in ("/metrics", "/healthz", "/readyz", "/none"):
        answer = await serving.get(path, {"host": host})
        assert answer.status_code == 421, path
        assert "http_names" in answer.text
    assert times(serving, "host") == 4


@pytest.mark.parametrize("host", OURS)
async def test_this_machine_is_answered_by_each_of_its_names(serving: Serving, host: str) -> None:
    assert (await serving.get("/metrics", {"host": host})).status_code == 200


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example.com",
        "https://127.0.0.1.example.com",
        "http://localhost:3000",
        "null",
        "",
    ],
)
async def test_a_page_of_another_site_is_answered_nowhere(serving: Serving, origin: str) -> None:
    for path in ("/metrics", "/healthz", "/readyz", "/none"):
        answer = await serving.get(path, {"origin": origin})
        assert answer.status_code == 403, path
        assert "http_names" in answer.text
    assert times(serving, "origin") == 4


async def test_our_own_pages_are_answered_and_those_of_a_proxy_by_its_name_or_by_the_one_that_it_passes_on(
    serving: Serving,
) -> None:
    host = serving.server.address.removeprefix("http://")
    assert (await serving.get("/metrics", {"origin": f"http://{host}"})).status_code == 200
    passed_on = {"origin": "https://calls.example.com", "x-forwarded-host": "calls.example.com"}
    assert (await serving.get("/metrics", passed_on)).status_code == 200
    server = MetricsServer(
        HttpSettings(host="127.0.0.1", port=0, names=("calls.example.com",)),
        Instruments(CollectorRegistry(), []),
    )
    await server.start()
    try:
        async with httpx.AsyncClient(timeout=patient(SOON_SECONDS)) as client:
            for host in (server.address.removeprefix("http://"), "calls.example.com"):
                headers = {"host": host, "origin": "https://calls.example.com"}
                assert (await client.get(server.url, headers=headers)).status_code == 200
    finally:
        await server.stop()


async def test_a_proxy_on_this_machine_asks_by_the_names_that_are_set() -> None:
    for host, names, status in (
        ("127.0.0.1", ("Calls.example.com",), 200),
        ("127.0.0.1", (), 421),
        ("0.0.0.0", (), 200),  # noqa: S104  # every name is right where others may ask
    ):
        settings = HttpSettings(host=host, port=0, names=names)
        server = MetricsServer(settings, Instruments(CollectorRegistry(), ["exporter"]))
        await server.start()
        try:
            port = server.url.rpartition(":")[2].partition("/")[0]
            async with httpx.AsyncClient(timeout=patient(SOON_SECONDS)) as client:
                headers = {"host": f"calls.example.com:{port}"}
                assert (
                    await client.get(f"http://127.0.0.1:{port}/metrics", headers=headers)
                ).status_code == status
        finally:
            await server.stop()


async def test_a_scrape_waits_for_no_other_work(serving: Serving) -> None:
    """Searches, drawing and writing fill the threads that all of a process share."""
    goes_on = threading.Event()
    shared = [
        asyncio.create_task(asyncio.to_thread(goes_on.wait, patient(SOON_SECONDS)))
        for _ in range(64)
    ]
    try:
        assert (await serving.get("/metrics")).status_code == 200
        assert not any(each.done() for each in shared)
    finally:
        goes_on.set()
        await asyncio.gather(*shared)


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "http://127.0.0.1:8070"),
        ("calls.example.com", "http://calls.example.com:8070"),
        ("::1", "http://[::1]:8070"),
        # nothing is listened on
        ("0.0.0.0", "http://127.0.0.1:8070"),  # noqa: S104
        ("::", "http://[::1]:8070"),
    ],
)
def test_the_address_is_one_at_which_this_machine_reaches_it(host: str, address: str) -> None:
    assert HttpListener(host, 8070, [], lambda _: None, without_it="").address == address


async def test_the_state_needs_the_token_of_the_metrics(serving: Serving, guarded: Serving) -> None:
    answer = await serving.get("/state")
    assert (answer.json(), answer.headers["content-type"]) == (
        {"roles": ["exporter"]},
        "application/json",
    )
    refused = await guarded.get("/state")
    assert (refused.status_code, refused.text.partition(" needs")[0]) == (401, "/state")
    assert (await guarded.get("/state", {"authorization": f"Bearer {TOKEN}"})).json() == {
        "roles": ["exporter"]
    }
