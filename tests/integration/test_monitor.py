"""A live call of an ElevenLabs agent, from the monitor of a server on loopback through a real
broker to its latency.
"""

import asyncio
import http
import json
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from elevenlabs import ConversationSummaryResponseModel, GetConversationsPageResponseModel
from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response

from schemas.closed_sets import Anchor
from tests.integration.metrics_page import address_in, total
from tests.integration.processes import started, wait_for
from tests.integration.score_log import records_on, written_rows
from tests.support.calls.rows_of_calls import turns_of
from tests.support.patience import patient

KEY = "key-of-tests"
ANSWER_SECONDS = 0.6


def listed(status: str) -> bytes:
    """The list of conversations as the released package reads it."""
    call = ConversationSummaryResponseModel(
        agent_id="agent_7",
        agent_name="desk",
        conversation_id="conv_1",
        start_time_unix_secs=int(time.time()),
        call_duration_secs=0,
        message_count=0,
        status=status,
        call_successful="unknown",
    )
    text: str = GetConversationsPageResponseModel(
        conversations=[call], has_more=False
    ).model_dump_json()
    return text.encode()


class Vendor:
    """ElevenLabs' side: one call that is over when its script is."""

    def __init__(self) -> None:
        self.url = ""
        self.keys: set[str] = set()
        self.over = asyncio.Event()

    def answer(self, connection: ServerConnection, request: Request) -> Response | None:
        self.keys.add(request.headers.get("xi-api-key", ""))
        if request.path.endswith("/monitor"):
            return None
        response = connection.respond(http.HTTPStatus.OK, "")
        response.body = listed("done" if self.over.is_set() else "in-progress")
        del response.headers["Content-Length"]
        response.headers["Content-Length"] = str(len(response.body))
        return response

    async def speak(self, socket: ServerConnection) -> None:
        async def say(kind: str, part: str, **data: Any) -> None:
            await socket.send(json.dumps({"type": kind, part: data}))

        await say("agent_response", "agent_response_event", agent_response="Welcome.", event_id=1)
        await say(
            "user_transcript",
            "user_transcription_event",
            user_transcript="My badge is lost",
            event_id=2,
        )
        await say("agent_response", "agent_response_event", agent_response="Which one?", event_id=2)
        await asyncio.sleep(1)
        await say(
            "user_transcript",
            "user_transcription_event",
            user_transcript="The blue one",
            event_id=3,
        )
        await asyncio.sleep(ANSWER_SECONDS)
        await say("agent_response", "agent_response_event", agent_response="I see.", event_id=3)
        self.over.set()


@pytest.fixture
async def vendor() -> AsyncIterator[Vendor]:
    vendor = Vendor()
    async with serve(vendor.speak, "127.0.0.1", 0, process_request=vendor.answer) as server:
        vendor.url = f"http://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"
        yield vendor


@pytest.mark.service(limits__closing_grace_ms="1000", limits__agent_record_grace_ms="1500")
async def test_a_live_call_is_found_joined_and_measured(
    vendor: Vendor, environment: dict[str, str], tmp_path: Path
) -> None:
    settings = {
        "CALLGAUGE_MONITOR__API_KEY": KEY,
        "CALLGAUGE_MONITOR__BASE_URL": vendor.url,
    }
    with started(tmp_path / "run.log", "run", **environment, **settings) as process:
        await asyncio.wait_for(vendor.over.wait(), patient(60))

        def closed() -> bool:
            address = address_in(process.text)
            return (
                address is not None
                and total(address, "callgauge_calls_ended_total", agent="desk") == 1
            )

        await asyncio.to_thread(
            wait_for, lambda: f"the close of the call in:\n{process.text}", closed, 60
        )
        address = address_in(process.text)
        assert address is not None
        page = await asyncio.to_thread(
            total, address, "callgauge_monitor_messages_total", outcome="past"
        )
        assert page == 3
        assert (await asyncio.to_thread(process.signalled, signal.SIGTERM))[0] == 0
    turns = turns_of(await written_rows(environment))
    assert set(turns) == {0, 1, 2}
    assert not isinstance(turns[1].wait_ms, float)
    arrived_ms = [
        json.loads(each.value)["timestamp"]
        for each in await records_on(environment, "elevenlabs.events")
    ]
    *_, asked_ms, answered_ms, _ended_ms = arrived_ms
    assert turns[2].wait_ms == answered_ms - asked_ms
    assert turns[2].anchor is Anchor.ESTIMATED
    assert vendor.keys == {KEY}
