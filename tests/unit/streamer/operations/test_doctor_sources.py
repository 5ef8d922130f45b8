"""The doctor looks at `ingest` and `monitor`: secrets, the address, and ElevenLabs' API, over real sockets."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from starlette.routing import Route

from consumers.runtime.http import HttpListener
from streamer.doctor.examination import address_finding, reach_finding, secret_findings, source_findings
from streamer.doctor.findings import Finding, Verdict
from streamer.settings.all_settings import Settings
from tests.support.fakes.http_answers import Answer, Request, answering

KEY = "key-of-tests"


def settings_of(ingest: dict[str, Any] | None = None, monitor: dict[str, Any] | None = None, **more: Any) -> Settings:
    return Settings.model_validate({"ingest": ingest or {}, "monitor": monitor or {}, **more})


def told(finding: Finding) -> tuple[str, Verdict]:
    return finding.check, finding.verdict


@contextmanager
def held_port() -> Iterator[int]:
    """A port with a program that listens and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield taken.getsockname()[1]


def free_port() -> int:
    with held_port() as port:
        return port


@contextmanager
def elevenlabs(status: int, body: object) -> Iterator[tuple[str, list[str]]]:
    """A server that answers the request for calls; yields its address and the keys that it saw."""
    keys: list[str] = []

    def answer(request: Request) -> Answer:
        keys.append(request.headers["xi-api-key"])
        return Answer(status, json.dumps(body).encode())

    with answering(answer) as address:
        yield address, keys


async def test_roles_that_are_off_are_said_to_be_off_and_nothing_is_asked() -> None:
    found = [finding async for finding in source_findings(settings_of())]
    assert [told(finding) for finding in found] == [("ingest", Verdict.OK), ("monitor", Verdict.OK)]
    assert all(finding.seen.startswith("off: ") for finding in found)


def test_who_may_send_is_told_without_a_secret() -> None:
    ingest, _ = secret_findings(settings_of({"token": "of-tests"}))
    assert ingest.seen == "POST /events has 1 token; ElevenLabs' webhook is off"
    ingest, monitor = secret_findings(settings_of({"elevenlabs_secret": "wsec"}, {"agents": "a,b"}))
    assert ingest.seen == "POST /events is off, without a token; ElevenLabs' webhook has 1 secret"
    assert monitor.seen.startswith("off: ")


def test_the_monitor_and_the_webhook_may_have_the_same_calls() -> None:
    monitor = {"api_key": KEY, "agents": "a,b"}
    *_, last = secret_findings(settings_of({"elevenlabs_secret": "wsec"}, monitor))
    assert (last.verdict, last.seen) == (Verdict.OK, "follows the calls of 2 agents at https://api.elevenlabs.io")


def test_a_free_port_is_free_and_stays_free() -> None:
    settings = settings_of({"token": "t", "port": free_port()})
    for _ in range(2):
        finding = address_finding(settings)
        assert (finding.verdict, "is free on this machine" in finding.seen) == (Verdict.OK, True)


def test_a_port_of_another_program_is_wrong() -> None:
    with held_port() as port:
        finding = address_finding(settings_of({"token": "t", "port": port}))
    assert (finding.verdict, "nobody can listen on" in finding.seen) == (Verdict.WRONG, True)
    assert "ingest.port" in finding.what_to_do


@pytest.mark.parametrize(("path", "verdict"), [("/events", Verdict.OK), ("/other", Verdict.WRONG)])
async def test_a_port_is_ours_if_events_may_be_posted_there(path: str, verdict: Verdict) -> None:
    async def refuse(_: Any) -> Any:
        raise AssertionError("the doctor posts nothing")

    route = Route(path, refuse, methods=["POST"])
    listener = HttpListener("127.0.0.1", 0, [route], lambda _: None, without_it="Nothing")
    await listener.start()
    try:
        settings = settings_of({"token": "t", "port": int(listener.address.rpartition(":")[2])})
        found = [finding async for finding in source_findings(settings)]
    finally:
        await listener.stop()
    assert [told(finding) for finding in found if finding.check == "ingest address"] == [("ingest address", verdict)]


def test_an_address_that_is_not_of_this_machine_is_wrong() -> None:
    finding = address_finding(settings_of({"token": "t", "host": "192.0.2.1", "port": 0}))
    assert finding.verdict is Verdict.WRONG


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])  # noqa: S104 - as in a container
def test_events_and_metrics_need_two_ports(host: str) -> None:
    port = free_port()
    finding = address_finding(settings_of({"token": "t", "host": host, "port": port}, http_port=port))
    assert (finding.verdict, "also the address of /metrics" in finding.seen) == (Verdict.WRONG, True)


async def test_the_monitor_reaches_elevenlabs_with_its_key() -> None:
    listed = {"conversations": [{"conversation_id": "c", "status": "in-progress"}], "has_more": False}
    with elevenlabs(200, listed) as (url, keys):
        finding = await reach_finding(settings_of(monitor={"api_key": KEY, "base_url": url}))
    assert (finding.verdict, keys) == (Verdict.OK, [KEY])
    assert "1 call in progress" in finding.seen


@pytest.mark.parametrize(("status", "body"), [(401, {"detail": "no"}), (200, ["another service"])])
async def test_an_answer_that_is_no_list_of_calls_is_wrong(status: int, body: object) -> None:
    with elevenlabs(status, body) as (url, _):
        finding = await reach_finding(settings_of(monitor={"api_key": KEY, "base_url": url}))
    assert finding.verdict is Verdict.WRONG
    assert KEY not in finding.seen + finding.what_to_do


async def test_an_api_that_is_away_is_wrong() -> None:
    settings = settings_of(monitor={"api_key": KEY, "base_url": f"http://127.0.0.1:{free_port()}"})
    found = [finding async for finding in source_findings(settings)]
    assert told(found[-1]) == ("monitor reach", Verdict.WRONG)
