"""Messages of Vapi and events of OpenAI's realtime API, as they are sent: calls with their
latencies, tools and words.
"""

import io
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.realtime import RealtimeServerEvent
from pydantic import TypeAdapter

from consumers.engine.sources.frameworks import translated
from schemas.closed_sets import Anchor
from schemas.events.envelope import read_envelope
from schemas.rows import Row
from streamer.event_check import check_events, finding_lines
from tests.support.calls.rows_of_calls import call_of, turns_of
from tests.support.fakes.engine_feed import T0_MS as FEED_T0_MS
from tests.support.fakes.engine_feed import Feed, plain, rows_of
from tests.unit.streamer.sources.http.receiver import Receiver

Json = dict[str, Any]
NOW_MS = int(time.time() * 1000) - 60_000
VENDORS_OWN: TypeAdapter[Any] = TypeAdapter(RealtimeServerEvent)


def vapi(kind: str, at_ms: int, **fields: Any) -> Json:
    call = {
        "id": "0197-call",
        "orgId": "o",
        "type": "webCall",
        "assistantId": "a-1",
        "status": "in-progress",
    }
    return {
        "message": {
            "type": kind,
            "timestamp": NOW_MS + at_ms,
            "call": call,
            "artifact": {"messages": []},
            **fields,
        }
    }


def spoke(role: str, status: str, at_ms: int) -> Json:
    return vapi("speech-update", at_ms, role=role, status=status, turn=0)


CALL_OF_VAPI = (
    vapi(
        "status-update",
        0,
        status="in-progress",
        assistant={"name": "desk", "model": {"provider": "openai"}},
    ),
    spoke("assistant", "started", 100),
    spoke("assistant", "stopped", 1_100),
    vapi("conversation-update", 1_150, conversation=[{"role": "assistant", "content": "Hello."}]),
    spoke("user", "started", 2_000),
    spoke("user", "stopped", 3_000),
    vapi("transcript", 3_100, role="user", transcriptType="partial", transcript="My bad"),
    vapi("transcript", 3_200, role="user", transcriptType="final", transcript="My badge is lost."),
    vapi(
        "tool-calls",
        3_300,
        toolCallList=[
            {"id": "t-1", "type": "function", "function": {"name": "find", "arguments": '{"n": 1}'}}
        ],
    ),
    spoke("assistant", "started", 3_900),
    vapi("transcript", 4_500, role="assistant", transcriptType="final", transcript="Which one?"),
    spoke("assistant", "stopped", 5_000),
    vapi("status-update", 6_000, status="ended", endedReason="customer-ended-call"),
    vapi(
        "end-of-call-report",
        9_000,
        endedReason="customer-ended-call",
        cost=0.1,
        artifact={
            "messages": [
                {
                    "role": "tool_call_result",
                    "toolCallId": "t-1",
                    "name": "find",
                    "result": "{}",
                    "time": NOW_MS + 3_600,
                }
            ]
        },
    ),
)


def realtime(kind: str, at_ms: int, **fields: Any) -> Json:
    return {
        "type": kind,
        "event_id": f"event_{at_ms}",
        "conversation_id": "c",
        "timestamp": NOW_MS + at_ms,
        **fields,
    }


def heard(kind: str, at_ms: int, **fields: Any) -> Json:
    return realtime(f"input_audio_buffer.speech_{kind}", at_ms, item_id="item_1", **fields)


def call_of_openai(**setting: Any) -> tuple[Json, ...]:
    of_response = {"response_id": "resp_1", "output_index": 0, "content_index": 0}
    output = {"type": "function_call_output", "call_id": "call_1", "output": '{"status": "error"}'}
    return (
        {"type": "call_started", "conversation_id": "c", "timestamp": NOW_MS, "agent": "desk"},
        heard("started", 2_000, audio_start_ms=1_700, **setting),
        heard("stopped", 3_500, audio_end_ms=3_400, **setting),
        realtime(
            "conversation.item.input_audio_transcription.completed",
            3_600,
            item_id="item_1",
            content_index=0,
            transcript="My badge is lost.",
            usage={"type": "duration", "seconds": 1.0},
        ),
        realtime(
            "response.function_call_arguments.done",
            3_700,
            call_id="call_1",
            item_id="item_2",
            name="find",
            arguments='{"n": 1}',
            response_id="resp_1",
            output_index=0,
        ),
        {
            "type": "conversation.item.create",
            "conversation_id": "c",
            "timestamp": NOW_MS + 3_900,
            "item": output,
        },
        realtime("output_audio_buffer.started", 4_000, response_id="resp_1"),
        realtime(
            "response.output_audio_transcript.delta",
            4_100,
            item_id="item_3",
            delta="Which",
            **of_response,
        ),
        realtime(
            "response.output_audio_transcript.done",
            4_200,
            item_id="item_3",
            transcript="Which one?",
            **of_response,
        ),
        realtime("output_audio_buffer.stopped", 5_000, response_id="resp_1"),
        realtime(
            "error",
            5_100,
            error={
                "type": "server_error",
                "code": None,
                "message": "try again",
                "param": None,
                "event_id": None,
            },
        ),
        {"type": "call_ended", "conversation_id": "c", "timestamp": NOW_MS + 6_000},
    )


async def scored(receiver: Receiver) -> list[Row]:
    """The rows of the call that the receiver has written."""
    feed = Feed()
    streams = {"audit": "audit", "pipecat": "pipecat"}
    for (source, event), record in zip(receiver.written, receiver.writer.records, strict=True):
        at_ms = event["timestamp"] - FEED_T0_MS
        feed.send(
            streams[source],
            event,
            at_ms,
            envelope=read_envelope(record.headers),
            key=record.key.decode(),
        )
    feed.advance(NOW_MS - FEED_T0_MS + 3_600_000)
    feed.close_all()
    return rows_of(feed.effects)


async def test_messages_of_vapi_are_a_call_with_its_latency_words_and_tool(
    receiver: Receiver,
) -> None:
    answers = [await receiver.events(message) for message in CALL_OF_VAPI]
    assert [answer.status_code for answer in answers] == [202] * len(CALL_OF_VAPI)
    assert [answer.json().get("left_out_events", 0) for answer in answers].count(
        1
    ) == 2  # the partial words, the conversation
    rows = await scored(receiver)
    row = turns_of(rows)[1]
    assert row.wait_ms is not None
    assert (plain(row.wait_ms), row.anchor, row.labels.agent) == (900, Anchor.VAD, "desk")
    tools = row.tools
    assert (tools[-1].tool, tools[-1].outcome, tools[-1].duration_ms) == ("find", "success", 300)
    assert call_of(rows).ended_reason == "customer-ended-call"
    words = [
        event["data"]["content"]
        for _, event in receiver.written
        if event["type"].endswith("_message")
    ]
    assert words == ["My badge is lost.", "Which one?"]


async def test_a_message_that_vapi_sends_again_is_a_repeat(receiver: Receiver) -> None:
    for _ in range(2):
        await receiver.events(CALL_OF_VAPI[4])
    first, second = (read_envelope(record.headers) for record in receiver.writer.records)
    assert first is not None
    assert (first, first.source) == (second, "vapi")


@pytest.mark.parametrize(
    ("setting", "latency_ms", "anchor"),
    [({}, 500, Anchor.TURN_RELEASE), ({"silence_duration_ms": 500}, 1_000, Anchor.VAD)],
    ids=["ruling of the server", "end of the speech"],
)
async def test_events_of_openai_are_a_call_with_its_latency_words_tool_and_error(
    receiver: Receiver, setting: Json, latency_ms: int, anchor: Anchor
) -> None:
    events = call_of_openai(**setting)
    for event in events:
        if not event["type"].startswith(("call_", "conversation.item.create")):
            VENDORS_OWN.validate_python(event)  # the shapes are the vendor's
    answer = (await receiver.events(list(events))).json()
    assert (answer["refused_events"], answer["left_out_events"]) == (0, 1)
    rows = await scored(receiver)
    row = turns_of(rows)[1]
    assert row.wait_ms is not None
    assert (plain(row.wait_ms), row.anchor) == (latency_ms, anchor)
    tools = row.tools
    assert (tools[-1].tool, tools[-1].outcome, tools[-1].duration_ms) == ("find", "error", 200)
    errors = call_of(rows).errors
    assert errors is not None
    assert errors.number == 1


def test_a_file_of_such_events_is_checked_as_it_would_be_taken() -> None:
    body = "\n".join(json.dumps(event) for event in (*CALL_OF_VAPI, *call_of_openai())).encode()
    findings = check_events(io.BytesIO(body))
    assert findings.refused == []
    assert "  yes  voice-to-voice latency of each turn" in list(finding_lines(findings))


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda of: st.lists(of) | st.dictionaries(st.text(), of),
)
FIELDS = (
    "status",
    "role",
    "transcript",
    "toolCallList",
    "artifact",
    "timestamp",
    "call",
    "item",
    "error",
    "silence_duration_ms",
    "endedAt",
)


@given(
    st.sampled_from(
        ["speech-update", "tool-calls", "end-of-call-report", "transcript", "status-update"]
    ),
    st.dictionaries(st.sampled_from(FIELDS), JSON),
)
def test_no_message_of_vapi_breaks_the_reading(kind: str, fields: Json) -> None:
    assert translated({"message": {"type": kind, **fields}}, NOW_MS) is not None


@given(
    st.sampled_from(
        ["input_audio_buffer.speech_stopped", "conversation.item.create", "response.done", "error"]
    ),
    st.dictionaries(st.sampled_from(FIELDS), JSON),
)
def test_no_event_of_openai_breaks_the_reading(kind: str, fields: Json) -> None:
    found = translated({"type": kind, **fields}, NOW_MS)
    assert found is not None or kind == "error"
