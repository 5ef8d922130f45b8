"""Whatever is read live is read from a file, by every command; and what is refused is refused by
all of them in the same words.
"""

import gzip
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import httpx
import pytest

from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.limits import Limits
from consumers.engine.sources.otlp import PROTOBUF
from schemas.events.envelope import read_envelope
from schemas.rows import Row
from streamer.notebook import score
from streamer.recordings.files import RecordingError
from streamer.sources.replayed_calls import ReplayPlan, calls_to_play
from tests.integration.processes import ran_here
from tests.support.calls.rows_of_calls import call_of, turns_of
from tests.support.fakes.engine_feed import T0_MS, Feed, plain, rows_of, transcripts_of
from tests.support.webhooks import as_spans, delivery, entry, record_of_a_call, signature_header
from tests.unit.streamer.sources.http.receiver import TOKEN, Receiver
from tests.unit.streamer.sources.http.test_frameworks import CALL_OF_VAPI, NOW_MS, call_of_openai
from tests.unit.streamer.sources.http.test_traces import OF_LIVEKIT, exported, in_json

Json = dict[str, Any]
NOW_S = NOW_MS // 1000


@pytest.fixture
async def receiver() -> Receiver:
    return Receiver()


def own(kind: str, at_ms: int, **fields: Any) -> Json:
    return {"conversation_id": "c1", "type": kind, "timestamp": NOW_MS + at_ms, **fields}


def spoke(kind: str, at_ms: int) -> Json:
    return own("speech_event", at_ms, data={"kind": kind, "timestamp": (NOW_MS + at_ms) / 1000})


CALL: tuple[Json, ...] = (
    own("call_started", 0, agent="desk"),
    spoke("user_speech_started", 2_000),
    spoke("user_speech_stopped", 3_000),
    own("user_message", 3_100, data={"content": "My badge is lost."}),
    spoke("bot_speech_started", 3_900),
    own("assistant_message", 4_000, data={"content": "Which one?"}),
    spoke("bot_speech_stopped", 5_000),
    own("call_ended", 6_000, reason="goodbye"),
)
TOOL = {"request_id": "r1", "tool_name": "find", "params_as_json": '{"badgeId": 1}'}
ANSWER = {
    "request_id": "r1",
    "tool_name": "find",
    "result_value": '{"isLost": true}',
    "is_error": False,
    "tool_latency_secs": 0.8,
}
RECORD = record_of_a_call(
    "conv_1",
    NOW_S,
    entry("agent", "Welcome.", 0),
    entry("user", "My badge is lost.", 4),
    entry("agent", None, 5, tool_calls=[TOOL], tool_results=[ANSWER]),
    entry("agent", "Which one?", 6, 1.7),
    entry("user", "The blue one.", 9),
)
WEBHOOK = json.loads(delivery("post_call_transcription", RECORD, NOW_S + 40))
SPANS = exported(
    (*OF_LIVEKIT, ("session_close", 9_900, 10_000, {"lk.close_reason": "user_initiated"}))
)


def camel(value: Any) -> Any:
    """As ElevenLabs' package for JavaScript names the fields of what the API sends; the keys of its
    maps stay.
    """
    if isinstance(value, list):
        return list(map(camel, value))
    if not isinstance(value, dict):
        return value
    return {_camel(name): camel(each) for name, each in value.items()}


def _camel(name: str) -> str:
    first, *parts = [name] if name.startswith("convai_") else name.split("_")
    return "".join((first, *map(str.title, parts)))


def lines(events: Iterable[Any]) -> bytes:
    return "".join(json.dumps(event) + "\n" for event in events).encode()


def cloud_event(event: Json, number: int) -> Json:
    data = {name: value for name, value in event.items() if name != "conversation_id"}
    named = {
        "id": str(number),
        "source": "/bots/1",
        "type": "com.example.event",
        "subject": event["conversation_id"],
    }
    return {"specversion": "1.0", **named, "data": data}


def in_batches(document: Json) -> list[Json]:
    """A request of each span, as a collector that sends them when they end."""
    (resource,) = document["resourceSpans"]
    (scope,) = resource["scopeSpans"]
    return [
        {"resourceSpans": [{**resource, "scopeSpans": [{**scope, "spans": [span]}]}]}
        for span in scope["spans"]
    ]


OTLP = json.loads(in_json(SPANS))
WIRE = {
    "id": "c1",
    "pipecat": [{k: v for k, v in event.items() if k != "conversation_id"} for event in CALL[1:-1]],
    "control": [CALL[0], CALL[-1]],
}
FORMS: dict[str, tuple[str, bytes]] = {
    "events": ("calls.jsonl", lines(CALL)),
    "events, an array": ("calls.json", json.dumps(CALL, indent=1).encode()),
    "events, an array in a line": ("calls.json", json.dumps(CALL).encode()),
    "events, by another name": ("calls.log", b"\n" + lines(CALL)),
    "events, packed by another name": ("calls.txt", gzip.compress(lines(CALL))),
    "one event": ("call.json", json.dumps(CALL[1], indent=1).encode()),
    "CloudEvents": ("calls.jsonl", lines(map(cloud_event, CALL, range(9)))),
    "CloudEvents, an array": (
        "calls.json",
        json.dumps(list(map(cloud_event, CALL, range(9)))).encode(),
    ),
    "Vapi": ("vapi.jsonl", lines(CALL_OF_VAPI)),
    "Vapi, an array": ("vapi.json", json.dumps(CALL_OF_VAPI, indent=2).encode()),
    "Vapi, one message": ("vapi.json", json.dumps(CALL_OF_VAPI[0], indent=2).encode()),
    "OpenAI": ("openai.jsonl", lines(call_of_openai())),
    "OpenAI, an array": ("openai.json", json.dumps(call_of_openai()).encode()),
    "OTLP in JSON": ("traces.json", json.dumps(OTLP, indent=1).encode()),
    "OTLP in a line": ("traces.json", json.dumps(OTLP).encode()),
    "OTLP, a request a line": ("traces.jsonl", lines(in_batches(OTLP))),
    "OTLP, an array of requests": ("traces.json", json.dumps(in_batches(OTLP)).encode()),
    "OTLP in protobuf": ("body", SPANS.SerializeToString()),
    "OTLP in protobuf, packed": ("traces.pb.gz", gzip.compress(SPANS.SerializeToString())),
    "a record": ("call.json", json.dumps(RECORD, indent=1).encode()),
    "a record of JavaScript": ("call.json", json.dumps(camel(RECORD)).encode()),
    "records of JavaScript, an array": ("calls.json", json.dumps([camel(RECORD)]).encode()),
    "the entries of JavaScript": ("call.json", json.dumps(camel(RECORD["transcript"])).encode()),
    "records": ("calls.jsonl", lines([RECORD, {**RECORD, "conversation_id": "conv_2"}])),
    "a webhook": ("call.json", json.dumps(WEBHOOK).encode()),
    "webhooks": (
        "calls.jsonl",
        lines([WEBHOOK, WEBHOOK | {"data": {**RECORD, "conversation_id": "conv_2"}}]),
    ),
    "a webhook of spans": (
        "call.json",
        json.dumps(
            {
                "type": "post_call_transcription_otel",
                "event_timestamp": NOW_S,
                "data": {
                    "conversation_id": "conv_1",
                    "agent_id": "a",
                    "otlp_traces": as_spans(RECORD),
                },
            }
        ).encode(),
    ),
    "a whole call": ("calls.jsonl", lines([WIRE])),
    "whole calls, an array": ("calls.json", json.dumps([WIRE], indent=1).encode()),
    "a whole call in a document": ("call.json", json.dumps(WIRE, indent=1).encode()),
    "everything in one file": (
        "all.jsonl",
        lines([*CALL, *CALL_OF_VAPI, WEBHOOK, OTLP, WIRE | {"id": "c2"}]),
    ),
}


def replayed(path: Path) -> str:
    """What `callgauge replay` sends, or its refusal before it connects."""
    try:
        plan = ReplayPlan((path,), None, None, keeps_times=True, agent=None)
        return "".join(
            f"{call.conversation_id} {len(call.events)}\n"
            for call in calls_to_play(plan, lambda: NOW_MS)
        )
    except RecordingError as error:
        return str(error)


COMMANDS: dict[str, Callable[[Path], str]] = {
    "score": lambda path: "".join(ran_here("score", str(path))[1:]),
    "score --format eva": lambda path: "".join(ran_here("score", str(path), "--format", "eva")[1:]),
    "transcript": lambda path: "".join(ran_here("transcript", str(path))[1:]),
    "context": lambda path: "".join(ran_here("context", str(path))[1:]),
    "report": lambda path: "".join(
        ran_here("report", str(path), "-o", str(path.parent / "report.html"))[1:]
    ),
    "events check": lambda path: "".join(ran_here("events", "check", str(path))[1:]),
    "replay": replayed,
}
READS: dict[str, str] = {
    "score": '"state":"closed"',
    "score --format eva": '"metrics"',
    "transcript": '"role":',
    "context": '"context"',
    "report": "Report of ",
    "events check": " 0 refused.",
    "replay": "\n",
}


@pytest.mark.parametrize("form", FORMS)
def test_every_command_reads_every_form(tmp_path: Path, form: str) -> None:
    name, content = FORMS[form]
    path = tmp_path / name
    path.write_bytes(content)
    for command, run in COMMANDS.items():
        told = run(path)
        assert READS[command] in told or (
            command == "transcript" and form.startswith(("one event", "Vapi, one"))
        ), command
        assert [word for word in ("; seen ", ", saw ") if word in told] == [], command


REFUSED: dict[str, tuple[bytes, str, str, str]] = {
    "no JSON": (
        b"hello",
        "this is not JSON",
        "expected a JSON object",
        "Repair or remove the line",
    ),
    "a broken line": (
        lines(CALL[:2]) + b'{"type": \n',
        ":3: this is not JSON",
        "expected a JSON object",
        "Repair or remove the line",
    ),
    "a broken first line": (
        b'{"type": }\n' + lines(CALL),
        ":1: this is not JSON",
        "expected a JSON object",
        "Repair or remove",
    ),
    "empty": (b"\n\n", "has another shape", "seen an empty file", "docs/sources/recordings.md"),
    "an empty list": (
        b"[]",
        "has another shape",
        "seen an empty list",
        "docs/sources/recordings.md",
    ),
    "a number": (b"[5]", ":1: ", "seen a number", "docs/sources/recordings.md"),
    "an unknown type": (
        lines([*CALL, {"type": "of_tomorrow"}]),
        ":9: its type is not known",
        "`type` 'of_tomorrow'",
        "docs/sources/other.md",
    ),
    "a near type": (
        lines([{"type": "speech_evnt"}]),
        "its type is not known",
        "nearest known: ",
        "docs/sources/other.md",
    ),
    "a stream without a type": (
        lines([{"stream": "elevenlabs", "conversation_id": "c", "timestamp": NOW_MS, "foo": 1}]),
        "its type is not known",
        "seen no `type`",
        "docs/sources/other.md",
    ),
    "an event of EVA's under another stream": (
        lines(
            [
                {
                    "stream": "elevenlabs",
                    "timestamp": NOW_MS,
                    "event_type": "audio_start",
                    "user": "assistant",
                }
            ]
        ),
        "its type is not known",
        "`event_type` 'audio_start'",
        "docs/sources/other.md",
    ),
    "another document": (
        b'{"conversations": [], "has_more": false}',
        "its type is not known",
        "with conversations, has_more",
        "other.md",
    ),
    "no time": (
        lines([{"type": "input_audio_buffer.speech_started", "event_id": "e"}]),
        "it cannot be read",
        "`timestamp`: live it is",
        "recordings.md",
    ),
    "a CloudEvent without a source": (
        lines([{"specversion": "1.0", "id": "1", "type": "t", "data": CALL[1]}]),
        "it cannot be read",
        "lacks source",
        "recordings.md",
    ),
    "no spans": (
        b'{"resourceSpans": 5}',
        "has another shape",
        "no export request of traces",
        "recordings.md",
    ),
    "a broken span": (
        b'{"resourceSpans": [{"scopeSpans": [{"spans": [{}]}]}]}',
        "it cannot be read",
        "no span in JSON",
        "recordings.md",
    ),
    "what no rule reads": (
        lines([CALL_OF_VAPI[3]]),
        "has another shape",
        "seen 1 others",
        "recordings.md",
    ),
    "a trace": (
        lines([{"id": "t", "agent_trace": {}}]),
        "a trace of agent-inspect",
        "expected the events of a call",
        "--format agent-inspect",
    ),
    "scores": (
        lines([{"row": "call", "conversation_id": "c", "revision": 2}]),
        "these are rows of turns and calls",
        "expected events of calls",
        "callgauge trials",
    ),
    "a call of the topics": (
        json.dumps({"conversation_id": "c", "records": [], "transcript": []}).encode(),
        "these are the scores of a call",
        "events of a call",
        "--from-topics",
    ),
    "a whole call without an id": (
        lines([{"audit": []}]),
        "has another shape",
        '"id" as a text',
        "recordings.md",
    ),
    "a broken record": (
        json.dumps(RECORD | {"transcript": [{"role": "user", "message": 5}]}).encode(),
        "transcript.0.message",
        "a valid string",
        "recordings.md",
    ),
    "recorded sound": (
        json.dumps(
            {"type": "post_call_audio", "event_timestamp": NOW_S, "data": {"full_audio": ""}}
        ).encode(),
        "'post_call_audio' holds no call",
        "expected post_call_transcription",
        "Nothing needs to be done",
    ),
}


@pytest.mark.parametrize("form", REFUSED)
def test_every_command_refuses_it_in_the_same_words(tmp_path: Path, form: str) -> None:
    content, *words = REFUSED[form]
    path = tmp_path / "file"
    path.write_bytes(content)
    for command, run in COMMANDS.items():
        told = run(path)
        assert [word for word in words if word not in told] == [], (command, told)
        assert str(path) in told, command
        assert "events check" not in told, command


# Live and from a file.


def values_of(rows: Iterable[Row], transcript: Iterable[Any]) -> Json:
    """What a call has at its end, but for what says how it was read."""
    rows = list(rows)
    turns, tools = {}, []
    for number, row in turns_of(rows).items():
        stages = [(each.stage, each.latency_ms) for each in row.stages]
        turns[number] = (
            None if row.wait_ms is None else plain(row.wait_ms),
            row.anchor,
            row.outcome,
            stages,
        )
        tools += [(number, use.tool, use.outcome, use.duration_ms) for use in row.tools]
    call = call_of(rows)
    said = [
        (each["role"], each["message"], [call["tool_name"] for call in each["tool_calls"]])
        for each in transcript
    ]
    return {
        "turns": turns,
        "tools": tools,
        "reason": call.ended_reason,
        "agent": call.labels.agent,
        "said": said,
    }


def of_live(receiver: Receiver) -> dict[str, Json]:
    """The calls whose records the receiver has written."""
    by_key: dict[str, list[Any]] = {}
    for record in receiver.writer.records:
        by_key.setdefault(record.key.decode(), []).append(record)
    found = {}
    for key, records in by_key.items():
        feed = Feed()
        feed.evaluator = PartitionEvaluator(Limits(), "test", writes_transcripts=True)
        timed = [(json.loads(record.value), record) for record in records]
        for event, record in sorted(
            timed, key=lambda each: (each[0]["timestamp"], each[0].get("type") == "call_ended")
        ):
            at_ms = int(event["timestamp"]) - T0_MS
            stream = {"audit": "audit", "pipecat": "pipecat", "elevenlabs": "user_sim"}[
                record.source.value
            ]
            feed.send(stream, event, at_ms, envelope=read_envelope(record.headers), key=key)
        feed.advance(NOW_MS - T0_MS + 3_600_000)
        feed.close_all()
        (transcript,) = transcripts_of(feed.effects)
        found[key] = values_of(rows_of(feed.effects), json.loads(transcript))
    return found


async def posted(receiver: Receiver, form: str) -> httpx.Response:
    body = FORMS[form][1]
    token = {"authorization": f"Bearer {TOKEN}"}
    if "webhook" in form:
        return await receiver.post(
            "/webhooks/elevenlabs", body, elevenlabs_signature=signature_header(body, NOW_S + 60)
        )
    if "OTLP" in form:
        kind = PROTOBUF if "protobuf" in form else "application/json"
        return await receiver.post("/v1/traces", body, content_type=kind, **token)
    kind = (
        "application/cloudevents-batch+json"
        if form == "CloudEvents, an array"
        else "application/json"
    )
    return await receiver.post("/events", body, content_type=kind, **token)


@pytest.mark.parametrize(
    "form",
    [
        "events",
        "events, an array",
        "CloudEvents, an array",
        "Vapi",
        "Vapi, an array",
        "OpenAI",
        "OTLP in JSON",
        "OTLP in protobuf",
        "a webhook",
        "a webhook of spans",
    ],
)
async def test_a_file_gives_what_the_same_bytes_give_live(
    receiver: Receiver, tmp_path: Path, form: str
) -> None:
    answer = await posted(receiver, form)
    assert answer.status_code in (200, 202), answer.text
    path = tmp_path / FORMS[form][0]
    path.write_bytes(FORMS[form][1])
    live = of_live(receiver)
    assert live
    for call in score(path):
        entries = [turn.model_dump(mode="json") for turn in call.transcript or ()]
        assert values_of([*call.turns, call.call], entries) == live.pop(call.conversation_id)
    assert not live


def test_a_message_that_was_sent_again_counts_once(tmp_path: Path) -> None:
    once, twice = tmp_path / "once.jsonl", tmp_path / "twice.jsonl"
    once.write_bytes(lines(CALL_OF_VAPI))
    twice.write_bytes(lines(each for message in CALL_OF_VAPI for each in (message, message)))
    assert score(once) == score(twice)


def test_spans_of_a_call_may_be_in_several_files(tmp_path: Path) -> None:
    batches = in_batches(OTLP)
    for name, part in (("1.json", batches[:5]), ("2.json", batches[5:])):
        (tmp_path / name).write_text(json.dumps(part))
    whole = tmp_path / "folder" / "traces.json"
    whole.parent.mkdir()
    whole.write_text(json.dumps(OTLP))
    in_parts = ran_here("transcript", str(tmp_path / "1.json"), str(tmp_path / "2.json"))
    assert in_parts == ran_here("transcript", str(whole))
    assert ran_here("transcript", str(tmp_path)) == in_parts


def test_a_record_beside_its_live_events_is_one_call(tmp_path: Path) -> None:
    live = {
        "type": "user_transcript",
        "timestamp": NOW_MS + 4_000,
        "conversation_id": "conv_1",
        "stream": "elevenlabs",
        "user_transcription_event": {"user_transcript": "My badge is lost."},
    }
    path = tmp_path / "calls.jsonl"
    path.write_bytes(lines([live, RECORD]))
    (call,) = score(path)
    assert call.conversation_id == "conv_1"
    assert {row.stages[0].source for row in call.turns if row.stages} == {"elevenlabs"}


def test_an_agent_that_javascript_saved_is_known_with_its_tool(tmp_path: Path) -> None:
    calls = []
    for record in (RECORD, camel(RECORD)):
        path = tmp_path / "call.json"
        path.write_text(json.dumps(record))
        calls += score(path)
    ours, theirs = (
        values_of(
            [*call.turns, call.call],
            [turn.model_dump(mode="json") for turn in call.transcript or ()],
        )
        for call in calls
    )
    assert ours == theirs
    assert (ours["agent"], ours["reason"], len(ours["tools"])) == ("desk", "client ended", 1)
