"""Whole calls as Vapi, OpenAI's realtime API and Deepgram tell them, from their bytes to the
scores: reports, errors, long calls.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import structlog.testing

from consumers.engine.admission import admit
from consumers.engine.limits import Limits
from consumers.engine.sources.frameworks import translated
from schemas.closed_sets import InputSource
from schemas.events.codec import RefusedRecordError, decode
from schemas.events.envelope import AGENT_RECORD_TYPE, Envelope, read_envelope
from schemas.quarantine import QuarantineRecord
from schemas.rows import Row, TurnRow
from tests.integration.processes import ran_here
from tests.support.calls.rows_of_calls import call_of, tools_of, turns_of
from tests.support.fakes.broker_records import BrokerRecord
from tests.support.fakes.engine_feed import T0_MS as FEED_T0_MS
from tests.support.fakes.engine_feed import Feed, plain, rows_of
from tests.support.known import instance_of, some
from tests.unit.streamer.sources.http.receiver import TOKEN, Receiver
from tests.unit.streamer.sources.http.test_frameworks import (
    CALL_OF_VAPI,
    NOW_MS,
    heard,
    realtime,
    spoke,
    vapi,
)

Json = dict[str, Any]
ASSISTANT = {"id": "a-1", "name": "desk"}


async def told(receiver: Receiver, messages: Sequence[Json]) -> list[Json]:
    """Posts the messages one by one, as their frameworks do; the answers."""
    answers = [await receiver.events(json.dumps(each).encode()) for each in messages]
    assert {answer.status_code for answer in answers} == {202}
    return [answer.json() for answer in answers]


def scores(
    receiver: Receiver, broker_ms: Callable[[Json], int] = lambda event: event["timestamp"]
) -> list[Row]:
    """The rows of the calls that were written, of which the broker took each event at that time."""
    feed = Feed()
    for (source, event), record in zip(receiver.written, receiver.writer.records, strict=True):
        feed.advance(broker_ms(event) - FEED_T0_MS)
        feed.send(
            source,
            event,
            event["timestamp"] - FEED_T0_MS,
            broker_ms=broker_ms(event) - FEED_T0_MS,
            envelope=read_envelope(record.headers),
            key=record.key.decode(),
        )
    feed.advance(max(broker_ms(event) for _, event in receiver.written) - FEED_T0_MS + 3_600_000)
    feed.close_all()
    return rows_of(feed.effects)


def wait_of(row: TurnRow) -> float | str | None:
    return None if row.wait_ms is None else plain(row.wait_ms)


def words_of(receiver: Receiver) -> list[str]:
    return [
        event["data"]["content"]
        for _, event in receiver.written
        if event["type"].endswith("_message")
    ]


def entry(
    role: str, start_ms: int, end_ms: int | None = None, message: str = "", **fields: Any
) -> Json:
    times = {"time": NOW_MS + start_ms, **({} if end_ms is None else {"endTime": NOW_MS + end_ms})}
    return {
        "role": role,
        "message": message,
        **times,
        "secondsFromStart": start_ms / 1000,
        **fields,
    }


def use(**fields: Any) -> Json:
    return {
        "id": "t-1",
        "type": "function",
        "function": {"name": "find", "arguments": '{"n": 1}'},
        **fields,
    }


ENTRIES = [
    entry("system", 0, message="You are a desk."),
    entry("bot", 100, 1_100, "Hello."),
    entry("user", 2_000, 3_000, "My badge is lost."),
    entry("tool_calls", 3_300, toolCalls=[use()]),
    entry("tool_call_result", 3_600, toolCallId="t-1", name="find", result='{"status": "error"}'),
    entry("bot", 3_900, 5_000, "Which one?"),
]
LATENCIES = [
    {
        "modelLatency": 400,
        "voiceLatency": 150,
        "transcriberLatency": 120,
        "endpointingLatency": 300,
        "turnLatency": 900,
    }
]


def report(
    at_ms: int = 30_000,
    entries: list[Json] | None = None,
    latencies: Any = LATENCIES,
    **fields: Any,
) -> Json:
    artifact = {
        "messages": ENTRIES if entries is None else entries,
        "performanceMetrics": {"turnLatencies": latencies},
    }
    return vapi(
        "end-of-call-report",
        at_ms,
        assistant=ASSISTANT,
        endedReason="customer-ended-call",
        artifact=artifact,
        cost=0.1,
        **fields,
    )


LIVE = CALL_OF_VAPI[:-1]


async def test_a_report_of_vapi_alone_is_the_whole_call(receiver: Receiver) -> None:
    await told(receiver, [report()])
    assert words_of(receiver) == ["Hello.", "My badge is lost.", "Which one?"]
    rows = scores(receiver, lambda _: NOW_MS + 30_000)
    row = turns_of(rows)[1]
    assert (wait_of(row), row.outcome, row.labels.agent) == (900, "answered", "desk")
    stages = {each.stage: each.latency_ms for each in row.stages}
    assert stages == {
        "endpointing": 300,
        "stt_trailing": 120,
        "llm_first_token": 400,
        "tts_first_byte": 150,
        "tool_run": 300,
        "voice_to_voice": 900,
    }
    (tool,) = row.tools
    assert (tool.tool, tool.outcome, tool.duration_ms) == ("find", "error", 300)
    call = call_of(rows)
    assert (call.close_reason, call.ended_reason) == ("ended", "customer-ended-call")
    assert call.dead_airs == 0


@pytest.mark.parametrize("order", ["report last", "report first"])
async def test_nothing_that_a_report_of_vapi_repeats_counts_twice(
    receiver: Receiver, order: str
) -> None:
    await told(receiver, [*LIVE, report()] if order == "report last" else [report(), *LIVE])
    turns = turns_of(scores(receiver, lambda _: NOW_MS + 30_000))
    assert set(turns) == {0, 1}
    assert wait_of(turns[1]) == 900
    talk = some(turns[1].talk)
    assert (talk.user.words, talk.assistant.words) == (4, 2)
    assert [use.index for use in turns[1].tools] == [0]


@pytest.mark.parametrize(
    ("in_artifact", "beside_it", "url"),
    [
        ({"recordingUrl": "https://v.example/a.wav"}, {}, "https://v.example/a.wav"),
        (
            {"recording": {"mono": {"combinedUrl": "https://v.example/m.wav"}, "stereoUrl": "s"}},
            {},
            "https://v.example/m.wav",
        ),
        (
            {"recording": {"stereoUrl": "https://v.example/s.wav"}},
            {},
            "https://v.example/s.wav",
        ),
        ({}, {"recordingUrl": "https://v.example/old.wav"}, "https://v.example/old.wav"),
        ({"recording": {"mono": {"customerUrl": "https://v.example/c.wav"}}}, {}, None),
        ({"recordingUrl": "javascript:alert(1)"}, {}, None),
        ({"recordingUrl": 7, "recording": "none"}, {"recordingUrl": ""}, None),
    ],
)
@pytest.mark.parametrize("is_large", [True, False])
async def test_the_report_of_vapi_says_where_the_recording_is(
    receiver: Receiver, in_artifact: Json, beside_it: Json, url: str | None, *, is_large: bool
) -> None:
    """One that is too large is read without what no rule reads."""
    unread: Json = {"transcript": ["w"] * 60_000} if is_large else {}
    message = report(**beside_it, **unread)
    message["message"]["artifact"] |= in_artifact
    await told(receiver, [message])
    call = call_of(scores(receiver, lambda _: NOW_MS + 30_000))
    assert (call.recording_url, call.recording_starts_ms) == (url, None)
    assert call.ended_reason == "customer-ended-call"


@pytest.mark.parametrize("late_ms", [2_000, 20_000, 60_000])
async def test_the_report_of_vapi_is_waited_for(receiver: Receiver, late_ms: int) -> None:
    await told(receiver, [*LIVE, report(6_000 + late_ms)])
    came = {"from_report": 0}

    def broker_ms(event: Json) -> int:
        came["from_report"] += event["type"] == "call_started" and event.get(
            "is_from_record", False
        )
        return NOW_MS + 6_000 + late_ms if came["from_report"] else event["timestamp"]

    row = turns_of(scores(receiver, broker_ms))[1]
    assert [(use.tool, use.outcome, use.duration_ms) for use in row.tools] == [
        ("find", "error", 300)
    ]
    assert wait_of(row) == 900


async def test_no_report_is_waited_for_that_the_assistant_does_not_send(receiver: Receiver) -> None:
    wanted = {**ASSISTANT, "serverMessages": ["status-update", "speech-update"]}
    await told(receiver, [vapi("status-update", 0, status="ended", assistant=wanted)])
    ((_, event),) = receiver.written
    assert event["awaits_record"] is False


@pytest.mark.parametrize(
    "latencies",
    [
        [],
        LATENCIES * 2,
        None,
        "?",
        [{"turnLatency": "900"}],
        [{"turnLatency": -1, "modelLatency": None}],
    ],
    ids=repr,
)
async def test_latencies_of_vapi_that_fit_no_turn_are_no_stages(
    receiver: Receiver, latencies: Any
) -> None:
    await told(receiver, [report(latencies=latencies)])
    row = turns_of(scores(receiver))[1]
    assert {each.stage for each in row.stages} <= {"tool_run"}


@pytest.mark.parametrize(
    "fields",
    [
        {"toolCallList": [use()]},
        {"toolCalls": [use()]},
        {"toolCallList": [{"id": "t-1", "name": "find", "parameters": {"n": 1}}]},
        {"toolWithToolCallList": [{"type": "function", "name": "find", "toolCall": use()}]},
        {
            "toolCallList": [use()],
            "toolCalls": [use()],
            "toolWithToolCallList": [{"toolCall": use()}],
        },
    ],
    ids=["list", "older list", "flat", "inside of the tool", "all"],
)
def test_the_tools_of_vapi_in_each_of_its_shapes(fields: Json) -> None:
    found = some(translated(vapi("tool-calls", 0, **fields), 0))
    (event,) = found.events
    assert (
        event["data"].items()
        >= {"tool_call_id": "t-1", "function_name": "find", "arguments": {"n": 1}}.items()
    )


def test_other_messages_of_vapi_that_say_something() -> None:
    def events(kind: str, **fields: Any) -> list[Json]:
        found = some(translated(vapi(kind, 0, **fields), 0))
        return [{"type": each["type"], **each.get("data", {})} for each in found.events]

    (older,) = events("function-call", functionCall={"name": "find", "parameters": {"n": 1}})
    assert (older["function_name"], older["arguments"]) == ("find", {"n": 1})
    (cut,) = events("user-interrupted", turnId="x")
    assert (cut["kind"], cut["cause"]) == ("interruption", "user_speech")
    (handed,) = events(
        "transfer-update", fromAssistant={"name": "desk"}, toAssistant={"name": "sales"}
    )
    assert handed == {"type": "agent_handoff", "old_agent": "desk", "new_agent": "sales"}
    assert (
        events("transfer-update", destination={"type": "number"})
        == events("hang")
        == events("conversation-update")
        == []
    )


# Long calls.


def history(turns: int, *, seconds: int = 20) -> list[Json]:
    """What each message of Vapi repeats after so many turns."""
    entries = [entry("system", 0, message="You are a desk.")]
    for turn in range(turns):
        at_ms = turn * seconds * 1_000
        confidence = [
            {"word": "w", "start": 1.5, "end": 1.7, "confidence": 0.99, "punctuated_word": "W"}
        ] * 20
        entries.append(
            entry(
                "user",
                at_ms + 1_000,
                at_ms + 8_000,
                "w " * 20,
                metadata={"wordLevelConfidence": confidence},
            )
        )
        entries.append(
            entry("bot", at_ms + 9_000, at_ms + 18_000, "b " * 20, source="", metadata={})
        )
    return entries


async def test_a_call_of_two_hours_at_vapi_passes_whole(receiver: Receiver) -> None:
    turns = 360
    call = {"id": "long", "assistantId": "a-1"}

    def message(kind: str, at_ms: int, so_far: list[Json], **fields: Any) -> Json:
        artifact = {"messages": so_far, "messagesOpenAIFormatted": so_far}
        whole = vapi(
            kind, at_ms, assistant=ASSISTANT, messages=so_far, conversation=so_far, **fields
        )
        whole["message"] |= {
            "artifact": artifact,
            "call": {**call, "artifact": {"messages": so_far}, "messages": so_far},
        }
        return whole

    entire = history(turns)
    live = [message("status-update", 0, [], status="in-progress")]
    for turn in range(turns):
        at_ms, so_far = turn * 20_000, entire[: 2 * turn + 1] if turn == turns - 1 else entire[:3]
        live += [
            message("speech-update", at_ms + 1_000, so_far, role="user", status="started"),
            message("speech-update", at_ms + 8_000, so_far, role="user", status="stopped"),
            message("conversation-update", at_ms + 8_100, so_far),
            message("speech-update", at_ms + 9_000, so_far, role="assistant", status="started"),
            message("speech-update", at_ms + 18_000, so_far, role="assistant", status="stopped"),
        ]
    live.append(
        message("end-of-call-report", turns * 20_000, entire, endedReason="customer-ended-call")
    )
    # those with a short history: together, which is faster
    for first in range(0, len(live) - 6, 200):
        answer = await receiver.events(live[first : min(first + 200, len(live) - 6)])
        assert (answer.status_code, answer.json()["refused_events"]) == (202, 0)
    await told(receiver, live[-6:])
    written = scores(receiver)
    rows = turns_of(written)
    assert [wait_of(rows[turn]) for turn in range(1, turns + 1)] == [1_000] * turns
    assert {
        talk.user.words for turn in range(1, turns + 1) if (talk := rows[turn].talk) is not None
    } == {20}
    assert call_of(written).ended_reason == "customer-ended-call"


async def test_a_report_of_two_hours_alone_passes_whole(receiver: Receiver) -> None:
    await told(receiver, [report(7_200_000, history(360), latencies=[])])
    assert set(turns_of(scores(receiver))) == set(range(1, 361))


async def test_a_call_of_two_hours_at_openai_passes_whole(receiver: Receiver) -> None:
    turns = 360
    sent = [{"type": "call_started", "conversation_id": "c", "timestamp": NOW_MS, "agent": "desk"}]
    for turn in range(turns):
        at_ms = turn * 20_000
        sound = "AAAA" * 5_000
        item = {
            "id": f"item_{turn}",
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_audio", "transcript": "b"}],
        }
        sent += [
            heard("started", at_ms + 1_000),
            heard("stopped", at_ms + 8_000),
            realtime(
                "conversation.item.input_audio_transcription.completed",
                at_ms + 8_100,
                transcript="w " * 20,
            ),
            realtime("response.output_audio.delta", at_ms + 8_900, delta=sound),
            realtime("output_audio_buffer.started", at_ms + 9_000),
            realtime("response.output_audio_transcript.done", at_ms + 9_100, transcript="b " * 20),
            realtime(
                "response.done", at_ms + 9_200, response={"status": "completed", "output": [item]}
            ),
            realtime("output_audio_buffer.stopped", at_ms + 18_000),
        ]
    for first in range(0, len(sent), 100):
        answer = await receiver.events(sent[first : first + 100])
        assert (answer.status_code, answer.json()["refused_events"]) == (202, 0)
    rows = turns_of(scores(receiver))
    assert [wait_of(rows[turn]) for turn in range(1, turns + 1)] == [1_000] * turns


@pytest.mark.parametrize("form", ["alone", "lines", "array", "many lines"])
async def test_what_no_rule_reads_is_skipped_in_each_form_of_a_body(
    receiver: Receiver, form: str
) -> None:
    large = spoke("user", "stopped", 3_000)
    large["message"]["artifact"] = {"messages": history(300)}
    one, other = json.dumps(large).encode(), json.dumps(spoke("user", "started", 2_000)).encode()
    bodies = {
        "alone": one,
        "lines": other + b"\n" + one,
        "array": b"[" + other + b"," + one + b"]",
        "many lines": json.dumps(large, indent=1).encode(),
    }
    answer = await receiver.events(bodies[form])
    assert (answer.status_code, answer.json()["accepted_events"]) == (
        202,
        bodies[form].count(b"speech-update"),
    )


@pytest.mark.parametrize(
    "event",
    [
        {
            "type": "call_started",
            "timestamp": NOW_MS,
            "conversation_id": "c",
            "artifact": {"messages": [[1]] * 30_000},
        },
        vapi("tool-calls", 0, toolCallList=[use(parameters={"rows": [[1]] * 30_000})]),
    ],
    ids=["no framework's", "what is kept"],
)
async def test_what_is_kept_is_bounded_and_other_json_is_not_cut(
    receiver: Receiver, event: Json
) -> None:
    answer = await receiver.events(event)
    (refused,) = answer.json()["refused"]
    assert "commas and opening brackets" in refused["expected_and_seen"]


# Errors, and tools that are told several times.


def failed(
    at_ms: int,
    code: str | None = "insufficient_quota",
    kind: str = "insufficient_quota",
    **details: Any,
) -> Json:
    error = {"type": kind, "code": code, "message": "quota used up"}
    return realtime(
        "response.done",
        at_ms,
        response={
            "status": "failed",
            "status_details": {"type": "failed", "error": error, **details},
        },
    )


def error(
    at_ms: int, code: str | None = "insufficient_quota", kind: str = "insufficient_quota"
) -> Json:
    told_error = {
        "type": kind,
        "code": code,
        "message": "You exceeded your quota",
        "param": None,
        "event_id": None,
    }
    return realtime("error", at_ms, error=told_error)


def incomplete(at_ms: int, reason: str) -> Json:
    return realtime(
        "response.done",
        at_ms,
        response={
            "status": "incomplete",
            "status_details": {"type": "incomplete", "reason": reason},
        },
    )


def cancelled(at_ms: int) -> Json:
    return realtime(
        "response.done",
        at_ms,
        response={"status": "cancelled", "status_details": {"reason": "turn_detected"}},
    )


@pytest.mark.parametrize(
    ("events", "errors"),
    [
        ([failed(1_000)], 1),
        ([failed(1_000), error(1_010)], 1),
        ([error(1_000), failed(1_010)], 1),
        ([failed(1_000, None, "server_error"), error(1_010, None, "server_error")], 1),
        ([failed(1_000), error(1_010, "unknown_parameter", "invalid_request_error")], 2),
        ([failed(1_000), failed(3_000)], 2),
        ([error(1_000), error(3_000)], 2),
        ([failed(1_000), error(1_010), failed(3_000), error(3_010)], 2),
        ([error(1_000), failed(60_000)], 2),
        ([incomplete(1_000, "content_filter")], 1),
        ([incomplete(1_000, "max_output_tokens"), cancelled(2_000)], 0),
        ([realtime("response.done", 1_000, response={"status": "failed"})], 1),
        (
            [
                realtime(
                    "conversation.item.input_audio_transcription.failed",
                    1_000,
                    error={"code": "audio", "message": "?"},
                )
            ],
            1,
        ),
    ],
)
async def test_an_error_of_an_answer_counts_once_however_it_is_told(
    receiver: Receiver, events: list[Json], errors: int
) -> None:
    turn = [heard("started", 0), heard("stopped", 500)]
    await told(
        receiver,
        [
            *turn,
            *events,
            {"type": "call_ended", "conversation_id": "c", "timestamp": NOW_MS + 70_000},
        ],
    )
    rows = scores(receiver)
    told_errors = call_of(rows).errors
    assert (0 if told_errors is None else told_errors.number) == errors
    assert turns_of(rows)[1].outcome == ("failed" if errors else None)


async def test_an_answer_that_fails_after_others_leaves_a_failed_turn(receiver: Receiver) -> None:
    answered = [
        realtime("output_audio_buffer.started", 900),
        realtime("output_audio_buffer.stopped", 1_500),
    ]
    await told(
        receiver,
        [
            heard("started", 0),
            heard("stopped", 500),
            *answered,
            heard("started", 2_000),
            heard("stopped", 2_500),
            failed(2_700),
            {"type": "call_ended", "conversation_id": "c", "timestamp": NOW_MS + 9_000},
        ],
    )
    rows = turns_of(scores(receiver))
    assert [rows[turn].outcome for turn in (1, 2)] == ["answered", "failed"]


OUTPUT = {
    "id": "item_9",
    "type": "function_call_output",
    "call_id": "call_1",
    "output": '{"status": "error"}',
}
CALLED = {
    "id": "item_8",
    "type": "function_call",
    "call_id": "call_1",
    "name": "find",
    "arguments": '{"n": 1}',
    "status": "completed",
}
ARGUMENTS = realtime(
    "response.function_call_arguments.done",
    700,
    call_id="call_1",
    name="find",
    arguments='{"n": 1}',
)
CREATED = {
    "type": "conversation.item.create",
    "conversation_id": "c",
    "timestamp": NOW_MS + 900,
    "item": OUTPUT,
}


@pytest.mark.parametrize(
    "told_as",
    [
        [ARGUMENTS, CREATED],
        [
            ARGUMENTS,
            realtime("conversation.item.added", 900, item=OUTPUT),
            realtime("conversation.item.done", 901, item=OUTPUT),
        ],
        [ARGUMENTS, realtime("conversation.item.created", 900, item=OUTPUT)],
        [
            ARGUMENTS,
            CREATED,
            *(
                realtime(f"conversation.item.{name}", 950 + place, item=OUTPUT)
                for place, name in enumerate(("created", "added", "done", "retrieved"))
            ),
        ],
        [
            realtime(
                "response.output_item.added",
                600,
                item={**CALLED, "arguments": "", "status": "in_progress"},
            ),
            realtime(
                "response.function_call_arguments.done", 700, call_id="call_1", arguments='{"n": 1}'
            ),
            realtime("response.output_item.done", 701, item=CALLED),
            realtime("conversation.item.created", 900, item=OUTPUT),
        ],
        [
            realtime("response.done", 700, response={"status": "completed", "output": [CALLED]}),
            CREATED,
        ],
        [
            realtime(
                "conversation.item.added",
                600,
                item={**CALLED, "arguments": "", "status": "in_progress"},
            ),
            realtime("conversation.item.done", 700, item=CALLED),
            realtime("conversation.item.done", 900, item=OUTPUT),
        ],
    ],
    ids=[
        "own answer",
        "a second connection",
        "in the beta",
        "both connections",
        "name in the item alone",
        "answer alone",
        "items alone",
    ],
)
async def test_a_tool_of_openai_counts_once_however_often_it_is_told(
    receiver: Receiver, told_as: list[Json]
) -> None:
    await told(receiver, [heard("started", 0), heard("stopped", 500), *told_as])
    uses = tools_of(scores(receiver))
    assert [(each.tool, each.outcome, each.duration_ms) for each in uses] == [
        ("find", "error", 200)
    ]


async def test_two_tools_of_one_answer_are_two(receiver: Receiver) -> None:
    other = {**CALLED, "call_id": "call_2", "name": "book"}
    await told(
        receiver,
        [
            heard("started", 0),
            heard("stopped", 500),
            realtime("response.done", 700, response={"output": [CALLED, other]}),
        ],
    )
    tools = [
        event["data"]["function_name"]
        for _, event in receiver.written
        if event["type"] == "function_call_event"
    ]
    assert tools == ["find", "book"]
    assert (
        len(
            {
                read.id
                for record in receiver.writer.records
                if (read := read_envelope(record.headers))
            }
        )
        == 4
    )


@pytest.mark.parametrize(
    ("error_of", "outcome"),
    [(None, "success"), ({"type": "http_error", "code": 500, "message": "no"}, "error")],
)
async def test_a_tool_of_an_mcp_server(
    receiver: Receiver, error_of: Json | None, outcome: str
) -> None:
    item = {
        "id": "mcp_1",
        "type": "mcp_call",
        "name": "find",
        "server_label": "s",
        "arguments": "{}",
        "output": None if error_of else "[]",
    }
    await told(
        receiver,
        [
            heard("started", 0),
            heard("stopped", 500),
            realtime(
                "response.output_item.added", 600, item={**item, "arguments": "", "output": None}
            ),
            realtime("response.mcp_call.in_progress", 700, item_id="mcp_1"),
            realtime("response.mcp_call.completed", 890, item_id="mcp_1"),
            realtime("response.output_item.done", 900, item={**item, "error": error_of}),
            realtime("conversation.item.done", 901, item={**item, "error": error_of}),
        ],
    )
    uses = tools_of(scores(receiver))
    assert [(each.tool, each.outcome, each.duration_ms) for each in uses] == [
        ("find", outcome, 200)
    ]


@pytest.mark.parametrize(
    ("kind", "fields", "expected"),
    [
        ("output_audio_buffer.audio_started", {}, "bot_speech_started"),
        ("output_audio_buffer.audio_stopped", {}, "bot_speech_stopped"),
        ("response.text.done", {"text": "Yes."}, "Yes."),
        ("response.output_text.done", {"text": "Yes."}, "Yes."),
        ("response.audio_transcript.done", {"transcript": "Yes."}, "Yes."),
        ("response.output_audio_transcript.done", {"transcript": "Yes."}, "Yes."),
    ],
)
def test_names_of_the_beta_and_those_since(kind: str, fields: Json, expected: str) -> None:
    found = some(translated(realtime(kind, 0, **fields), 0))
    (event,) = found.events
    assert event["data"].get("kind", event["data"].get("content")) == expected


# Deepgram's voice agent.


def deepgram(kind: str, at_ms: int, **fields: Any) -> Json:
    return {"type": kind, "conversation_id": "d", "timestamp": NOW_MS + at_ms, **fields}


async def test_messages_of_deepgrams_agent_are_a_call_with_its_latency_words_tool_and_error(
    receiver: Receiver,
) -> None:
    latencies = {"total_latency": 0.9, "tts_latency": 0.15, "ttt_latency": 0.4}
    answers = await told(
        receiver,
        [
            {"type": "call_started", "conversation_id": "d", "timestamp": NOW_MS, "agent": "desk"},
            deepgram("Welcome", 10, request_id="r"),
            deepgram("SettingsApplied", 20),
            deepgram("UserStartedSpeaking", 2_000),
            deepgram("ConversationText", 3_000, role="user", content="My badge is lost."),
            deepgram(
                "FunctionCallRequest",
                3_100,
                functions=[
                    {"id": "f-1", "name": "find", "arguments": '{"n": 1}', "client_side": True}
                ],
            ),
            deepgram(
                "FunctionCallResponse", 3_300, id="f-1", name="find", content='{"status": "error"}'
            ),
            deepgram("ConversationText", 3_800, role="assistant", content="Which one?"),
            deepgram("AgentStartedSpeaking", 3_900, **latencies),
            deepgram(
                "LatencyReport", 3_901, ttt_text_latency=0.4, tts_latency=0.15, total_latency=0.9
            ),
            deepgram("AgentAudioDone", 5_000),
            deepgram("Error", 5_100, description="The server had an error", code="INTERNAL"),
            {"type": "call_ended", "conversation_id": "d", "timestamp": NOW_MS + 6_000},
        ],
    )
    assert sum(answer.get("left_out_events", 0) for answer in answers) == 2
    assert words_of(receiver) == ["My badge is lost.", "Which one?"]
    rows = scores(receiver)
    row = turns_of(rows)[1]
    assert (wait_of(row), row.anchor, row.labels.agent) == (900, "turn_release", "desk")
    assert {each.stage: each.latency_ms for each in row.stages if each.stage != "endpointing"} == {
        "llm_first_token": 400,
        "tts_first_byte": 150,
        "voice_to_voice": 900,
    }
    assert [(use.tool, use.outcome, use.duration_ms) for use in row.tools] == [
        ("find", "error", 200)
    ]
    errors = some(call_of(rows).errors)
    assert errors.number == 1


# What a person sees of refusals, and events without a type.


COMMANDS = (("score",), ("events", "check"))
WITHOUT_TYPE: list[Json] = [
    {"foo": 1},
    {},
    {"data": {"text": "Hello"}},
    {"type": None},
    {"type": ""},
    {"error_event": {}},
]


@pytest.mark.parametrize("stream", ["pipecat", "audit", "elevenlabs", "user_sim"])
@pytest.mark.parametrize("fields", WITHOUT_TYPE, ids=repr)
async def test_an_event_without_a_type_is_refused_by_all_ways_with_the_same_sentence(
    receiver: Receiver, tmp_path: Path, stream: str, fields: Json
) -> None:
    event = {"timestamp": NOW_MS, **fields}
    source = InputSource({"user_sim": "elevenlabs"}.get(stream, stream))
    headers = (("ce_type", f"callgauge.{stream}.unknown.v1".encode()),)
    value = json.dumps(event).encode()
    on_kafka = BrokerRecord("audit.events", 17, NOW_MS, b"call-7", value, 3, headers)
    refused = instance_of(QuarantineRecord, admit(source, on_kafka, Limits()))
    assert (refused.partition, refused.offset, refused.reason) == (3, 17, "invalid_event")
    answer = await receiver.events({"stream": stream, "conversation_id": "c", **event})
    assert f"`stream` '{stream}'" in answer.json()["refused"][0]["expected_and_seen"]
    path = tmp_path / "events.jsonl"
    path.write_text(json.dumps({"stream": stream, "conversation_id": "c", **event}))
    expected, _, seen = refused.expected_and_seen.partition(", saw ")
    for told in (
        json.dumps(answer.json()["refused"]),
        *("".join(ran_here(*command, str(path))[1:]) for command in COMMANDS),
    ):
        assert [
            each
            for each in (refused.what, expected.removeprefix("expected "), seen)
            if each not in told
        ] == [], told


@pytest.mark.parametrize(
    "event", [{"foo": 1}, {"data": {"text": "Hello"}}, {"agent_id": "a"}], ids=repr
)
def test_no_record_of_a_conversation_is_without_a_transcript_on_kafka_too(event: Json) -> None:
    envelope = Envelope("1", "s", AGENT_RECORD_TYPE, None)
    with pytest.raises(RefusedRecordError, match="transcript"):
        decode(
            InputSource.ELEVENLABS, json.dumps({"timestamp": NOW_MS, **event}).encode(), envelope
        )


@pytest.mark.parametrize(
    "event",
    [
        {"type": "user_speech", "data": {"text": "Hello"}},
        {"type": "connection_state", "data": {"state": "connected"}},
        {"event_type": "audio_start", "user": "simulated_user", "audio_timestamp": 1.0},
        {"message_type": "user", "value": "Hello"},
        {"type": "tts_text", "data": {"frame": "Hello"}},
    ],
    ids=repr,
)
async def test_an_event_with_the_stream_of_another_is_refused(
    receiver: Receiver, event: Json
) -> None:
    answer = await receiver.events(
        {"stream": "elevenlabs", "conversation_id": "c", "timestamp": NOW_MS, **event}
    )
    assert (answer.status_code, answer.json()["accepted_events"]) == (422, 0)


async def test_each_kind_of_refusal_of_a_sender_is_in_the_log_once(receiver: Receiver) -> None:
    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            await receiver.events({"conversation_id": "c", "type": "what"})
            await receiver.events({"type": "speech_event"})
            await receiver.events(b"{", token=TOKEN)
            await receiver.events({}, token="another")  # noqa: S106 - a secret of tests
    lines = [each for each in logs if each["event"] == "events_refused"]
    assert sorted(each["kind"] for each in lines) == [
        "empty_key",
        "invalid_event",
        "unauthorized",
        "unreadable",
    ]
    assert all(each["seen"] and each["what_to_do"] and each["what_happens_now"] for each in lines)


# What the agent was told, where the framework says it.


def told_agents(event: Json) -> Json:
    """The fields of `call_started` that say what the agent was told."""
    translation = translated(event, NOW_MS)
    started = (
        [each for each in translation.events if each["type"] == "call_started"]
        if translation
        else []
    )
    return {
        name: each[name]
        for each in started
        for name in ("pipeline_type", "instructions", "tools")
        if name in each
    }


def session(**fields: Any) -> Json:
    return realtime("session.updated", 10, session={"type": "realtime", **fields})


@pytest.mark.parametrize(
    ("tools", "known"),
    [
        (
            [{"type": "function", "name": "find", "parameters": {"type": "object"}}],
            [{"name": "find", "parameters": {"type": "object"}}],
        ),
        ([{"type": "function", "function": {"name": "find"}}], [{"name": "find"}]),
        (
            [{"name": "find", "input_schema": {"type": "object"}}],
            [{"name": "find", "parameters": {"type": "object"}}],
        ),
        (
            [{"function_declarations": [{"name": "find"}, {"name": "book"}]}],
            [{"name": "find"}, {"name": "book"}],
        ),
        (
            [{"name": "find", "properties": {"n": {}}}],
            [{"name": "find", "parameters": {"properties": {"n": {}}}}],
        ),
        # A list that lacks one is no list: uses of that one would count as wrong.
        ([{"name": "find"}, {"type": "mcp", "server_label": "x"}], None),
        ([{"name": "find"}, {"type": "endCall"}], None),
        ([{"name": "find"}, {"name": "n" * 300}], None),
        ([{"name": "find"}, {"name": 7}], None),
        ([{"name": "find"}, 7], None),
        ([{"function_declarations": [{"name": "find"}] * 257}], None),
        ([], []),
        ([{"name": "find"}] * 257, None),  # more than a call can have
        ("find", None),
        (None, None),
    ],
)
def test_the_tools_of_a_session_in_each_of_their_shapes(
    tools: Any, known: list[Json] | None
) -> None:
    assert told_agents(session(tools=tools)) == ({} if known is None else {"tools": known})


@pytest.mark.parametrize(
    ("fields", "known"),
    [
        ({"instructions": "Be short."}, {"instructions": "Be short."}),
        ({"instructions": " "}, {}),
        ({"instructions": "x" * 100_001}, {}),  # half of a prompt is another prompt
        ({"instructions": 7}, {}),
        ({"output_modalities": ["audio"]}, {"pipeline_type": "s2s"}),
        ({"modalities": ["audio", "text"]}, {"pipeline_type": "s2s"}),
        ({"output_modalities": ["text"]}, {"pipeline_type": "audio_llm"}),
        ({"type": "transcription", "instructions": "Be short.", "output_modalities": ["text"]}, {}),
    ],
)
def test_what_a_session_of_openai_is_told_and_what_it_makes_of_sound(
    fields: Json, known: Json
) -> None:
    assert told_agents(session(**fields)) == known


@pytest.mark.parametrize(
    ("model", "known"),
    [
        (
            {
                "messages": [
                    {"role": "system", "content": "Be short."},
                    {"role": "user", "content": "No."},
                ]
            },
            {"instructions": "Be short."},
        ),
        ({"systemPrompt": "Be short."}, {"instructions": "Be short."}),
        ({"functions": [{"name": "find"}]}, {"tools": [{"name": "find"}]}),
        # which one that is, nobody says
        ({"functions": [{"name": "find"}], "toolIds": ["t-1"]}, {}),
        ("gpt", {}),
    ],
)
@pytest.mark.parametrize("where", ["message", "call", "report"])
def test_what_an_assistant_of_vapi_is_told(model: Any, known: Json, where: str) -> None:
    assistant = {**ASSISTANT, "model": model}
    event = vapi(
        "end-of-call-report" if where == "report" else "status-update", 0, status="in-progress"
    )
    (event["message"]["call"] if where == "call" else event["message"])["assistant"] = assistant
    assert told_agents(event) == known
