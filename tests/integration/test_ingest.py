"""Events over HTTP, through a real broker, to scores: ElevenLabs' webhook, POST /events, and Kafka
that is away.
"""

import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from schemas.closed_sets import Anchor
from tests.integration.conftest import make_topics, variables
from tests.integration.metrics_page import address_in, answer_of, total
from tests.integration.processes import Process, started, wait_for
from tests.integration.score_log import written_rows
from tests.support.brokers import kafka_broker
from tests.support.calls.rows_of_calls import turns_of
from tests.support.patience import patient
from tests.support.required_tools import MISSING
from tests.support.webhooks import SECRET, delivery, entry, record_of_a_call, signature_header

TOKEN = "token-of-tests"  # noqa: S105 - a secret of tests
SETTINGS = {
    "ingest__port": "0",
    "ingest__token": TOKEN,
    "ingest__elevenlabs_secret": SECRET,
    "limits__closing_grace_ms": "1500",
}
pytestmark = pytest.mark.service(**SETTINGS)
CALLS = 20


class Ingest:
    """A running process that receives events."""

    def __init__(self, process: Process, metrics: str, address: str) -> None:
        self.process = process
        self.metrics = metrics
        self.address = address

    def events(self, events: Any, token: str = TOKEN) -> httpx.Response:
        return httpx.post(
            f"{self.address}/events",
            timeout=patient(30),
            json=events,
            headers={"authorization": f"Bearer {token}"},
        )

    def webhook(self, body: bytes) -> httpx.Response:
        header = {"elevenlabs-signature": signature_header(body, int(time.time()))}
        return httpx.post(
            f"{self.address}/webhooks/elevenlabs", timeout=patient(30), content=body, headers=header
        )

    def probed(self, name: str) -> int:
        return answer_of(self.metrics.replace("metrics", name)).status_code


def listening(process: Process) -> Ingest:
    def found() -> Ingest | None:
        metrics, address = (
            address_in(process.text),
            re.search(r"ingest_listens.*?(http://[\d.]+:\d+)", process.text),
        )
        return None if metrics is None or address is None else Ingest(process, metrics, address[1])

    return wait_for(lambda: f"both addresses in:\n{process.text}", found, 30)


@pytest.fixture
def service(environment: dict[str, str], tmp_path: Path) -> Iterator[Ingest]:
    """Every role in one process, as in a first try."""
    with started(tmp_path / "run.log", "run", **environment) as process:
        yield listening(process)


async def test_a_webhook_becomes_a_measured_call(
    service: Ingest, environment: dict[str, str], tmp_path: Path
) -> None:
    now_s = int(time.time())
    record = record_of_a_call(
        "conv_1",
        now_s - 600,
        entry("agent", "Welcome.", 0),
        entry("user", "My badge is lost", 4),
        entry("agent", "Which one?", 6, 1.7),
        entry("user", "The blue one", 9),
        entry("agent", "I see.", 12, 2.05),
        entry("user", "Thank you, goodbye", 14),
    )
    body = delivery("post_call_transcription", record, now_s)
    assert (service.webhook(body).text, service.webhook(body).text) == ("accepted\n", "repeated\n")
    with started(tmp_path / "second.log", "run", "--roles", "ingest", **environment) as process:
        # another process does not know the delivery
        assert listening(process).webhook(body).text == "accepted\n"
        assert process.signalled(signal.SIGTERM)[0] == 0
    wait_for(
        "the call to be closed",
        lambda: total(service.metrics, "callgauge_calls_ended_total") == 1,
        30,
    )
    silent = delivery("post_call_transcription", record_of_a_call("conv_2", now_s - 60), now_s)
    assert service.webhook(silent).text == "accepted\n"
    wait_for(
        "the other call to be closed",
        lambda: total(service.metrics, "callgauge_calls_ended_total") == 2,
        30,
    )

    rows = await written_rows(environment)
    turns = turns_of(rows)
    measured = {
        number: (turn.wait_ms, turn.anchor)
        for number, turn in turns.items()
        if isinstance(turn.wait_ms, float)
    }
    assert measured == {1: (1_700.0, Anchor.RECORD), 2: (2_050.0, Anchor.RECORD)}
    assert {turn.conversation_id for turn in turns.values()} == {"conv_1"}
    assert {turn.labels.agent for turn in turns.values()} == {"desk"}
    assert total(service.metrics, "callgauge_dead_air_total") == 0
    assert total(service.metrics, "callgauge_quarantined_total") == 0
    again = sum(
        total(service.metrics, "callgauge_events_total", outcome=one)
        for one in ("repeated", "after_close")
    )
    # of the second process: the closing of the call decides which of the two they are
    assert again == 9


async def test_what_counts_of_a_call_counts_under_its_agent(service: Ingest) -> None:
    """On another topic than the events, the start of a call could be read after them."""
    now_ms = time.time_ns() // 1_000_000
    failed = {
        "type": "error",
        "data": {"error": "the model is down", "processor": "OpenAILLMService#0"},
    }
    used = [
        {"message_type": "tool_call", "value": {"tool": "look_up", "parameters": {}}},
        {
            "message_type": "tool_response",
            "value": {"tool": "look_up", "response": {"status": "error"}},
        },
    ]
    for number in range(CALLS):
        for name, stream, events in (("bot", {}, [failed]), ("log", {"stream": "audit"}, used)):
            start: dict[str, Any] = {"type": "call_started", "agent": "desk", **stream}
            whole: list[dict[str, Any]] = [start, *events, {"type": "call_ended", **stream}]
            service.events(
                [
                    {"conversation_id": f"{name}{number}", "timestamp": now_ms, **event}
                    for event in whole
                ]
            )
    wait_for(
        "the calls to close",
        lambda: total(service.metrics, "callgauge_calls_ended_total") == 2 * CALLS,
        60,
    )
    for metric in ("callgauge_calls_with_agent_errors_total", "callgauge_tool_calls_total"):
        assert (total(service.metrics, metric), total(service.metrics, metric, agent="desk")) == (
            CALLS,
            CALLS,
        ), metric


async def test_posted_events_become_a_measured_call_and_what_cannot_be_read_is_quarantined(
    service: Ingest, environment: dict[str, str]
) -> None:
    now_ms = time.time_ns() // 1_000_000

    def event(kind: str, at_ms: int, **more: Any) -> dict[str, Any]:
        return {"conversation_id": "c1", "type": kind, "timestamp": now_ms + at_ms, **more}

    def spoke(kind: str, at_ms: int) -> dict[str, Any]:
        return event(
            "speech_event", at_ms, data={"kind": kind, "timestamp": (now_ms + at_ms) / 1000}
        )

    call = [
        event("call_started", -9_000, agent="desk"),
        spoke("user_speech_started", -8_000),
        spoke("user_speech_stopped", -6_000),
        spoke("bot_speech_started", -5_100),
        spoke("bot_speech_stopped", -3_000),
        event("call_ended", -2_000, reason="goodbye"),
    ]
    answer = service.events([*call[:3], {"type": "broken"}, *call[3:]])
    assert (answer.status_code, answer.json()["accepted_events"]) == (207, 6)
    assert answer.json()["refused"][0]["line"] == 4
    assert service.events(call, token="another").status_code == 401  # noqa: S106 - a secret of tests
    wait_for(
        "the call to be closed",
        lambda: total(service.metrics, "callgauge_calls_ended_total") == 1,
        30,
    )
    assert turns_of(await written_rows(environment))[1].wait_ms == pytest.approx(900)
    assert total(service.metrics, "callgauge_ingest_events_total", source="pipecat") == 6

    unreadable = (
        b'{"type": "post_call_transcription", "data": {"conversation_id": "conv_9", "transcript": '
        b"5}}"
    )
    assert service.webhook(unreadable).text == "quarantined\n"
    wait_for(
        "the quarantine", lambda: total(service.metrics, "callgauge_quarantined_total") == 1, 30
    )
    assert service.process.signalled(signal.SIGTERM)[0] == 0


async def test_without_kafka_senders_are_asked_to_come_again(tmp_path: Path) -> None:
    event = {
        "conversation_id": "c1",
        "type": "call_started",
        "timestamp": time.time_ns() // 1_000_000,
    }
    body = delivery(
        "post_call_transcription", record_of_a_call("conv_1", int(time.time()) - 60), time.time()
    )
    try:
        with kafka_broker.running() as bootstrap:
            environment = variables(bootstrap, "alone.", **SETTINGS)
            await make_topics(environment)
            running = started(tmp_path / "ingest.log", "run", "--roles", "ingest", **environment)
            process = running.__enter__()
            ingest = listening(process)
            assert ingest.events([event]).status_code == 202
    except kafka_broker.NoBrokerError as error:
        pytest.skip(f"{MISSING}{error}")
    try:  # the broker has ended
        for answer in (ingest.events([event]), ingest.webhook(body)):
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        assert [ingest.probed(name) for name in ("readyz", "healthz")] == [503, 200]
        sound = delivery("post_call_audio", {"full_audio": "QUJD"}, time.time())
        assert ingest.webhook(sound).status_code == 200  # it needs no Kafka
        assert process.signalled(signal.SIGTERM)[0] == 0
    finally:
        running.__exit__(None, None, None)
