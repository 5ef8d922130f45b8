"""`/metrics`, `/healthz` and `/readyz` over a real loopback socket."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from prometheus_client import CollectorRegistry, generate_latest
from pydantic import SecretStr, ValidationError

from consumers.runtime.http import MAX_TOKEN_CHARS, AddressInUseError, HttpSettings, MetricsServer
from consumers.runtime.registry import Instruments
from streamer.settings import SettingsError, load_settings

OPENMETRICS = {"accept": "application/openmetrics-text; version=1.0.0, text/plain;q=0.5"}


class Serving:
    def __init__(self, token: str | None = None) -> None:
        self.instruments = Instruments(CollectorRegistry(), ["exporter"])
        self.stalled: list[str] = []
        self.not_ready: list[str] = []
        settings = HttpSettings(port=0, token=None if token is None else SecretStr(token))
        self.server = MetricsServer(
            settings, self.instruments, stalled=lambda: self.stalled, not_ready=lambda: self.not_ready
        )

    async def get(self, path: str, headers: Mapping[str, str | bytes] | None = None) -> httpx.Response:
        async with httpx.AsyncClient() as client:
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


async def test_health_and_readiness_name_every_problem_of_their_own(serving: Serving) -> None:
    for path in ("/healthz", "/readyz"):
        answer = await serving.get(path)
        assert (answer.status_code, answer.text) == (200, "ok\n")
    serving.stalled += ["exporter: no tick for 31 s", "evaluator: its work has ended with an error"]
    serving.not_ready += ["exporter: not reading scores"]
    answer = await serving.get("/healthz")
    assert answer.status_code == 503
    assert answer.text == "exporter: no tick for 31 s\nevaluator: its work has ended with an error\n"
    answer = await serving.get("/readyz")
    assert (answer.status_code, answer.text) == (503, "exporter: not reading scores\n")


async def test_a_role_that_waits_is_alive(serving: Serving) -> None:
    serving.not_ready += ["exporter: not reading scores"]
    assert (await serving.get("/healthz")).status_code == 200


async def test_with_a_token_the_metrics_are_for_who_has_it(guarded: Serving) -> None:
    for scheme in ("Bearer", "bearer"):
        assert (await guarded.get("/metrics", {"authorization": f"{scheme} {TOKEN}"})).status_code == 200


@pytest.mark.parametrize(
    "authorization",
    [TOKEN, f"Basic {TOKEN}", "Bearer", f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}x", b"Bearer \xe9"],
)
async def test_who_has_another_token_learns_only_that(guarded: Serving, authorization: str | bytes) -> None:
    answer = await guarded.get("/metrics", {"authorization": authorization})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == 'Bearer realm="callgauge", error="invalid_token"'
    assert "callgauge_" not in answer.text
    assert TOKEN not in answer.text


async def test_who_has_no_token_is_told_that_one_is_needed(guarded: Serving) -> None:
    answer = await guarded.get("/metrics")
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, 'Bearer realm="callgauge"')
    assert "`Authorization: Bearer` with the token of the setting http_token; seen: no Authorization" in answer.text


async def test_probes_need_no_token(guarded: Serving) -> None:
    assert {(await guarded.get(path)).status_code for path in ("/healthz", "/readyz")} == {200}


@pytest.mark.parametrize("token", ["", "two words", "tab\there", "l\u00e9", "x" * (MAX_TOKEN_CHARS + 1)])
def test_a_token_that_no_header_can_carry_is_a_mistake_and_is_not_shown(token: str) -> None:
    with pytest.raises(ValidationError) as refused:
        HttpSettings.model_validate({"token": token})
    assert not token or token not in str(refused.value)


def test_the_token_is_never_shown() -> None:
    assert TOKEN not in repr(HttpSettings(token=SecretStr(TOKEN)))


def test_the_token_comes_from_the_environment_or_a_file(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    for environment in ({"CALLGAUGE_HTTP_TOKEN": TOKEN}, {"CALLGAUGE_HTTP_TOKEN_FILE": str(path)}):
        token = load_settings(None, {}, environment).http.token
        assert token is not None
        assert token.get_secret_value() == TOKEN
    assert load_settings(None, {}, {}).http.token is None


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("CALLGAUGE_HTTP_TOKEN", "", "CALLGAUGE_HTTP_TOKEN is set: it must not be empty"),
        ("CALLGAUGE_HTTP_TOKEN", f"{TOKEN} x", "CALLGAUGE_HTTP_TOKEN is set: expected visible ASCII"),
        ("CALLGAUGE_HTTP_TOKEN_FILE", "{folder}/none", ": the file cannot be read (No such file or directory)"),
        ("CALLGAUGE_HTTP_TOKEN_FILE", "{folder}/bad", ": expected visible ASCII characters without spaces"),
    ],
)
def test_a_token_that_cannot_be_used_is_told_and_not_shown(
    tmp_path: Path, variable: str, value: str, said: str
) -> None:
    (tmp_path / "bad").write_text(f"{TOKEN} x")
    with pytest.raises(SettingsError) as refused:
        load_settings(None, {}, {variable: value.replace("{folder}", str(tmp_path))})
    assert said in str(refused.value)
    assert TOKEN not in str(refused.value)


def test_two_tokens_are_one_too_many(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    both = {"CALLGAUGE_HTTP_TOKEN": "another", "CALLGAUGE_HTTP_TOKEN_FILE": str(tmp_path / "token")}
    with pytest.raises(SettingsError, match="CALLGAUGE_HTTP_TOKEN is set: http_token_file is set too"):
        load_settings(None, {}, both)


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
