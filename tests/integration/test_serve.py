"""`callgauge serve` as its user has it: one process and a folder. It starts at once, ends at once,
and lets in nobody but its user.
"""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from streamer.facts import ADDRESS_FILE, TOKEN_FILE
from tests.chaos.serve import Plan, chaos
from tests.integration.metrics_page import total
from tests.integration.processes import COMMAND, Process, ended, started, wait_for
from tests.support.patience import patient

SOON = {"CALLGAUGE_LIMITS__CLOSING_GRACE_MS": "500", "CALLGAUGE_JUDGE__ENABLED": "false"}
STOP_SECONDS = 2.0


class Served(NamedTuple):
    process: Process
    folder: Path
    address: str

    @property
    def token(self) -> str:
        return (self.folder / TOKEN_FILE).read_text().strip()

    def post(self, events: Any, token: str | None = None, **headers: str) -> httpx.Response:
        given = {"authorization": f"Bearer {self.token if token is None else token}", **headers}
        return httpx.post(f"{self.address}/events", json=events, headers=given, timeout=patient(10))

    def get(self, path: str = "/", **headers: str) -> httpx.Response:
        return httpx.get(f"{self.address}{path}", headers=headers, timeout=patient(10))


def address_of(process: Process) -> str:
    found = wait_for(
        lambda: f"the address in:\n{process.text}",
        lambda: re.search(r"callgauge serves (http://\S+)/ ", process.text),
        30,
    )
    return found[1]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    folder = tmp_path / "calls"
    with started(
        tmp_path / "serve.log", "serve", "--folder", str(folder), "--port", "0", **SOON
    ) as process:
        yield Served(process, folder, address_of(process))


def call(name: str, *, is_over: bool = True) -> list[dict[str, Any]]:
    """A call in which the caller speaks and the agent answers after 900 ms."""
    now_ms = time.time_ns() // 1_000_000

    def event(kind: str, at_ms: int, **more: Any) -> dict[str, Any]:
        return {"conversation_id": name, "type": kind, "timestamp": now_ms + at_ms, **more}

    def spoke(kind: str, at_ms: int) -> dict[str, Any]:
        return event(
            "speech_event", at_ms, data={"kind": kind, "timestamp": (now_ms + at_ms) / 1000}
        )

    end = [event("call_ended", -1_000, reason="goodbye")] if is_over else []
    return [
        event("call_started", -8_000, agent="desk"),
        spoke("user_speech_started", -7_000),
        spoke("user_speech_stopped", -5_000),
        spoke("bot_speech_started", -4_100),
        spoke("bot_speech_stopped", -2_000),
        *end,
    ]


def test_what_was_acknowledged_survives_kills_and_counts_once(tmp_path: Path) -> None:
    plan = Plan(kills=6, seed=3, calls=4, rate=10.0)
    outcome = asyncio.run(chaos(plan, tmp_path, CALLGAUGE_LIMITS__IDLE_MS="2500"))
    print(outcome.line())
    assert outcome.findings == []
    assert outcome.figures["events"] > 100
    assert outcome.figures["calls"] >= plan.calls


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_it_at_once_with_a_call_open_and_a_page_that_looks(
    tmp_path: Path, number: signal.Signals
) -> None:
    folder, began = tmp_path / "calls", time.monotonic()
    arguments = ["serve", "--folder", str(folder), "--port", "0"]
    with started(tmp_path / "serve.log", *arguments, command=[str(COMMAND)], **SOON) as process:
        served = Served(process, folder, address_of(process))
        print(f"ready after {time.monotonic() - began:.2f} s")
        assert (folder / ADDRESS_FILE).read_text().strip() == served.address
        assert served.post(call("open", is_over=False)).status_code == 202
        wait_for("the call on its page", lambda: "open" in served.get("/").text, 10)
        with httpx.Client() as client:
            client.get(served.address)  # its connection stays open
            code, seconds = process.signalled(number)
        print(f"ended after {seconds:.2f} s")
        assert code == 0
        assert seconds < patient(STOP_SECONDS)
        assert "Traceback" not in process.text
        assert not (folder / ADDRESS_FILE).exists(), (
            "nobody is sent to an address at which nobody listens"
        )


def test_a_call_is_measured_and_is_there_after_a_restart(tmp_path: Path) -> None:
    arguments = ["serve", "--folder", str(tmp_path / "calls"), "--port", "0"]
    with started(tmp_path / "first.log", *arguments, **SOON) as process:
        served = Served(process, tmp_path / "calls", address_of(process))
        assert served.post([*call("over"), *call("open", is_over=False)]).status_code == 202
        metrics = f"{served.address}/metrics"
        wait_for(
            "the end of a call", lambda: total(metrics, "callgauge_calls_ended_total") == 1, 20
        )
        wait_for("it in history", lambda: 'title="over"' in served.get("/past").text, 20)
        assert process.signalled(signal.SIGINT)[0] == 0
    with started(tmp_path / "second.log", *arguments, **SOON) as process:
        served = Served(process, tmp_path / "calls", address_of(process))
        assert "open" in served.get("/").text
        assert 'title="over"' in served.get("/past").text
        metrics = f"{served.address}/metrics"
        assert total(metrics, "callgauge_calls_ended_total") == 0, "it counted before"
        end = {
            "conversation_id": "open",
            "type": "call_ended",
            "timestamp": time.time_ns() // 1_000_000,
        }
        assert served.post([end]).status_code == 202
        wait_for(
            "the end of the other", lambda: total(metrics, "callgauge_calls_ended_total") == 1, 20
        )


NOTES_CONNECTIONS = """
import os, sys


def note(event, arguments):
    if event in {"socket.connect", "socket.getaddrinfo", "socket.sendto"}:
        with open(os.environ["NOTED"], "a") as noted:
            print(event, arguments[-1 if event == "socket.connect" else 0], file=noted)


sys.addaudithook(note)
"""
"""Loaded by Python before all else: writes down whom a process connects to, or looks up."""


def test_it_connects_to_nobody(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(NOTES_CONNECTIONS)
    noted = tmp_path / "noted"
    arguments = ["serve", "--folder", str(tmp_path / "calls"), "--port", "0"]
    watched = {"PYTHONPATH": str(tmp_path), "NOTED": str(noted)}
    command = [str(COMMAND)]
    with started(tmp_path / "serve.log", *arguments, command=command, **watched, **SOON) as process:
        served = Served(process, tmp_path / "calls", address_of(process))
        assert served.post(call("over")).status_code == 202
        wait_for("it in history", lambda: 'title="over"' in served.get("/past").text, 20)
        assert process.signalled(signal.SIGINT)[0] == 0
    known = "import socket; socket.socket().connect_ex(('127.0.0.1', 9))"
    for each in ([*command, "score", "sample"], [sys.executable, "-c", known]):
        subprocess.run(each, env=os.environ | watched, check=True, capture_output=True)
    seen = noted.read_text().splitlines()
    assert "socket.connect ('127.0.0.1', 9)" in seen, "it is written down"
    assert [each for each in seen if "127.0.0.1" not in each] == []


def test_a_second_process_on_the_folder_ends_with_a_sentence(served: Served) -> None:
    second = ended(
        "serve", "--folder", str(served.folder), "--port", "0", CALLGAUGE_LOG_FORMAT="console"
    )
    said = " ".join((second.out + second.err).split())
    assert second.code == 1
    assert (
        "another callgauge writes this folder. Stop it, or give this one a --folder of its own."
        in said
    )
    assert "Traceback" not in said
    assert served.post(call("still")).status_code == 202


def test_a_port_that_is_taken_ends_with_a_sentence_and_frees_the_folder(
    served: Served, tmp_path: Path
) -> None:
    port = served.address.rpartition(":")[2]
    folder = tmp_path / "other"
    second = ended("serve", "--folder", str(folder), "--port", port, CALLGAUGE_LOG_FORMAT="console")
    assert second.code == 1
    assert "Choose another port" in " ".join((second.out + second.err).split())
    assert "Traceback" not in second.out + second.err


@pytest.mark.parametrize("path", ["/", "/past", "/metrics", "/readyz", "/nothing"])
def test_pages_answer_only_by_the_names_of_this_machine(served: Served, path: str) -> None:
    port = served.address.rpartition(":")[2]
    answer = served.get(path).status_code
    assert answer == (404 if path == "/nothing" else 200)
    for name in (f"localhost:{port}", f"127.0.0.1:{port}", "localhost", f"[::1]:{port}"):
        assert served.get(path, host=name).status_code == answer
    for name in (
        "calls.example.com",
        f"calls.example.com:{port}",
        "127.0.0.1.example.com",
        "0.0.0.0",  # noqa: S104
    ):
        refused = served.get(path, host=name)
        assert refused.status_code == 421
        assert "http_names" in refused.text


@pytest.mark.parametrize("mode", ["cors", "no-cors", "navigate"])
def test_what_a_page_of_another_site_asks_is_refused(served: Served, mode: str) -> None:
    """As a browser marks it: `fetch`, a picture, and a frame."""
    foreign = {
        "origin": "http://calls.example.com",
        "sec-fetch-site": "cross-site",
        "sec-fetch-mode": mode,
        "sec-fetch-dest": "iframe" if mode == "navigate" else "empty",
    }
    served.post(call("secret-call", is_over=False))
    wait_for("the call on its page", lambda: "secret-call" in served.get("/").text, 10)
    without_origin = {name: value for name, value in foreign.items() if name != "origin"}
    for headers in (foreign, without_origin):  # a picture has none
        for path in ("/", "/past", "/calls/secret-call"):
            refused = served.get(path, **headers)
            assert refused.status_code == 403
            assert "secret-call" not in refused.text
    assert (
        served.get(
            "/", **{**foreign, "origin": served.address, "sec-fetch-site": "same-origin"}
        ).status_code
        == 200
    )


@pytest.mark.parametrize("origin", ["http://calls.example.com", "null", "http://localhost:3000"])
def test_no_path_answers_a_page_of_another_site(served: Served, origin: str) -> None:
    for path in (
        "/",
        "/past",
        "/static/console.js",
        "/api/v1/calls",
        "/metrics",
        "/healthz",
        "/readyz",
        "/nothing",
    ):
        assert served.get(path, origin=origin).status_code == 403, path
    for path in (
        "/events",
        "/v1/traces",
        "/webhooks/elevenlabs",
        "/webhooks/vapi",
        "/calls/c1/annotations",
        "/login",
    ):
        headers = {"origin": origin, "authorization": f"Bearer {served.token}"}
        for ask in ("POST", "OPTIONS"):
            answer = httpx.request(
                ask,
                f"{served.address}{path}",
                json=call("c1"),
                headers=headers,
                timeout=patient(10),
            )
            assert answer.status_code == 403, path
            assert not [name for name in answer.headers if name.startswith("access-control")], (
                "and it may read nothing"
            )
    assert total(f"{served.address}/metrics", "callgauge_events_total") == 0
    assert served.post(call("c1"), origin=served.address).status_code == 202
    assert served.post(call("c1")).status_code == 202, "programs name no origin"


def test_a_webhook_comes_through_a_tunnel_whose_name_is_set(tmp_path: Path) -> None:
    """A tunnel asks by its own name, of which callgauge must have been told; then pages need the
    token, because others come through it.
    """
    arguments = ["serve", "--folder", str(tmp_path / "calls"), "--port", "0"]
    names = {
        "CALLGAUGE_HTTP_NAMES": "calls.example.com",
        "CALLGAUGE_INGEST__ELEVENLABS_SECRET": "wsec_1",
    }
    with started(tmp_path / "serve.log", *arguments, **SOON, **names) as process:
        served = Served(process, tmp_path / "calls", address_of(process))
        for host, status in (("calls.example.com", 401), ("other.example.com", 421)):
            answer = httpx.post(
                f"{served.address}/webhooks/elevenlabs",
                content=b"{}",
                headers={"host": host},
                timeout=patient(10),
            )
            assert answer.status_code == status, (
                "a webhook without a signature is refused by the webhook itself"
            )
        assert served.post(call("c1"), host="calls.example.com").status_code == 202
        known = {"host": "calls.example.com", "authorization": f"Bearer {served.token}"}
        assert served.get("/", **known, origin="https://calls.example.com").status_code == 200
        assert served.get("/", **known, origin="https://other.example.com").status_code == 403
        for path in ("/past", "/api/v1/calls", "/metrics"):
            assert served.get(path, **known).status_code == 200
            for name in ("calls.example.com", served.address.removeprefix("http://")):
                assert served.get(path, host=name).status_code in (303, 401), path


def test_events_need_the_token_which_only_its_user_may_read(served: Served) -> None:
    without = httpx.post(f"{served.address}/events", json=call("c1"), timeout=patient(10))
    assert without.status_code == 401
    assert served.post(call("c1"), token="another").status_code == 401  # noqa: S106  # no secret
    assert total(f"{served.address}/metrics", "callgauge_events_total") == 0
    assert served.post(call("c1"), host="calls.example.com").status_code == 421
    assert served.post(call("c1")).status_code == 202
    assert (served.folder / TOKEN_FILE).stat().st_mode & 0o077 == 0
    assert served.token in served.process.text, "it is printed for the first call"


def test_the_token_stays_the_same(tmp_path: Path) -> None:
    tokens = []
    for number in range(2):
        arguments = ["serve", "--folder", str(tmp_path / "calls"), "--port", "0"]
        with started(tmp_path / f"{number}.log", *arguments, **SOON) as process:
            served = Served(process, tmp_path / "calls", address_of(process))
            tokens.append(served.token)
            process.signalled(signal.SIGKILL)
    assert tokens[0] == tokens[1] != ""


def test_beyond_this_machine_pages_ask_for_the_token_that_is_printed(tmp_path: Path) -> None:
    """The settings say where it listens, as in a container; what is printed is for this machine."""
    where = {"CALLGAUGE_HTTP_HOST": "0.0.0.0", "CALLGAUGE_CONSOLE__PORT": "0"}  # noqa: S104
    with started(
        tmp_path / "serve.log", "serve", "--folder", str(tmp_path / "calls"), **where, **SOON
    ) as process:
        served = Served(process, tmp_path / "calls", address_of(process))
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", served.address)
        assert "its pages ask for the token" in process.text
        assert served.token in process.text
        assert served.get("/").status_code == served.get("/metrics").status_code == 401
        assert served.get("/", authorization=f"Bearer {served.token}").status_code == 200
        assert served.post(call("c1")).status_code == 202


def test_a_log_of_programs_names_the_file_of_the_token_and_not_the_token(tmp_path: Path) -> None:
    arguments = ["serve", "--folder", str(tmp_path / "calls"), "--port", "0"]
    with started(
        tmp_path / "serve.log", *arguments, **SOON, CALLGAUGE_LOG_FORMAT="json"
    ) as process:
        process.printed("service_ready")
        token = (tmp_path / "calls" / TOKEN_FILE).read_text().strip()
        assert token not in process.text
        (line,) = (line for line in process.text.splitlines() if "service_ready" in line)
        assert json.loads(line)["token_file"] == str(tmp_path / "calls" / TOKEN_FILE)
