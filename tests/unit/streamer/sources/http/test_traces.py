"""Spans of LiveKit's agents and of pipecat's bots, in both encodings, are calls with the turns that
they tell.
"""

import base64
import gzip
import json
import time
import tracemalloc
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

# it brings no types
from google.protobuf.json_format import MessageToDict  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Status, StatusCode

from consumers.engine.sources.otlp import PROTOBUF
from schemas.closed_sets import Anchor
from schemas.rows import CallRow, Row
from streamer.sources.http.body import UnreadableBodyError
from streamer.sources.http.posted import MAX_BODY_BYTES
from streamer.sources.http.traces import posted_spans
from tests.support.calls.rows_of_calls import call_of, tools_of, turns_of
from tests.support.fakes.engine_feed import T0_MS as FEED_T0_MS
from tests.support.fakes.engine_feed import Feed, plain, rows_of
from tests.unit.streamer.sources.http.receiver import TOKEN, Receiver

NOW_MS = int(time.time() * 1000) - 60_000
HEADERS = {"authorization": f"Bearer {TOKEN}"}


class Kept(SpanExporter):
    """Keeps the spans that the SDK exports."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.spans += spans
        return SpanExportResult.SUCCESS


Given = tuple[str, float, float, dict[str, Any]]
RECORDED = Path(__file__).with_name("livekit_trace.jsonl")
OF_LIVEKIT: tuple[Given, ...] = (
    ("user_speaking", 2_000, 3_000, {}),
    (
        "user_turn",
        2_000,
        3_300,
        {"lk.pii.user_transcript": "My badge is lost.", "lk.transcription_delay": 0.2},
    ),
    (
        "llm_request",
        3_300,
        3_600,
        {"gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": 12},
    ),
    ("llm_node", 3_300, 3_600, {"lk.pii.response.text": "Which one?", "lk.response.ttft": 0.25}),
    (
        "function_tool",
        3_350,
        3_550,
        {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": "find",
            "gen_ai.tool.call.id": "t1",
            "gen_ai.tool.call.arguments": '{"n": 1}',
            "lk.function_tool.is_error": True,
        },
    ),
    ("tts_node", 3_600, 4_500, {"lk.response.ttfb": 0.1}),
    ("agent_speaking", 3_900, 5_000, {}),
    ("user_speaking", 9_000, 9_500, {}),
    ("agent_session", 1_000, 10_000, {"lk.agent_name": "desk"}),
)
OF_PIPECAT: tuple[Given, ...] = (
    (
        "stt",
        2_000,
        3_100,
        {"transcript": "My badge is lost.", "is_final": True, "metrics.ttfb": 0.1},
    ),
    ("llm", 3_100, 3_500, {"gen_ai.operation.name": "chat", "metrics.ttfb": 0.3}),
    ("tts", 3_500, 3_800, {"text": "Which one?", "metrics.ttfb": 0.2}),
    ("turn", 2_000, 5_000, {"turn.number": 1, "turn.user_bot_latency_seconds": 0.9}),
    ("conversation", 1_000, 6_000, {"conversation.id": "c", "conversation.type": "voice"}),
)


def exported(given_spans: Sequence[Given], *, fails: str | None = None) -> Any:
    """The request in which OpenTelemetry's own SDK and encoder send these spans of one trace."""
    provider, kept = TracerProvider(resource=Resource({"service.name": "desk"})), Kept()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    tracer = provider.get_tracer("test")
    with tracer.start_as_current_span("root"):
        for name, begin_ms, end_ms, attributes in given_spans:
            span = tracer.start_span(
                name, attributes=attributes, start_time=int((NOW_MS + begin_ms) * 1_000_000)
            )
            if name == fails:
                span.set_status(Status(StatusCode.ERROR))
            span.end(int((NOW_MS + end_ms) * 1_000_000))
    return encode_spans(kept.spans)


def in_json(request: Any) -> bytes:
    """The same in OTLP's JSON, whose ids are in hexadecimal digits."""
    document = MessageToDict(request)
    for resource in document["resourceSpans"]:
        for span in (span for scope in resource["scopeSpans"] for span in scope["spans"]):
            for name in ("traceId", "spanId", "parentSpanId"):
                if name in span:
                    span[name] = base64.b64decode(span[name]).hex()
    return json.dumps(document).encode()


async def sent(receiver: Receiver, request: Any, encoding: str) -> Any:
    body, kind = (
        (request.SerializeToString(), PROTOBUF)
        if encoding == "protobuf"
        else (in_json(request), "application/json")
    )
    return await receiver.post("/v1/traces", body, content_type=kind, **HEADERS)


def scored(receiver: Receiver) -> list[Row]:
    feed = Feed()
    for (source, event), record in zip(receiver.written, receiver.writer.records, strict=True):
        # Each event comes five seconds late, in the order of the spans' ends: silence would be
        # taken for dead air.
        feed.send(
            source,
            event,
            event["timestamp"] - FEED_T0_MS,
            broker_ms=event["timestamp"] - FEED_T0_MS + 5_000,
            key=record.key.decode(),
        )
        feed.advance(event["timestamp"] - FEED_T0_MS + 9_000)
    feed.advance(NOW_MS - FEED_T0_MS + 3_600_000)
    feed.close_all()
    return rows_of(feed.effects)


@pytest.mark.parametrize("encoding", ["protobuf", "json"])
async def test_spans_of_livekit_are_a_call_with_latency_words_stages_and_tool(
    receiver: Receiver, encoding: str
) -> None:
    request = exported(OF_LIVEKIT)
    answer = await sent(receiver, request, encoding)
    assert (answer.status_code, answer.json()["refused_events"]) == (202, 0)
    trace_id = request.resource_spans[0].scope_spans[0].spans[0].trace_id.hex()
    assert {record.key.decode() for record in receiver.writer.records} == {f"trace-{trace_id}"}
    rows = scored(receiver)
    row = turns_of(rows)[1]
    assert row.wait_ms is not None
    assert (plain(row.wait_ms), row.anchor, row.labels.agent) == (900, Anchor.VAD, "desk")
    tool = row.tools[-1]
    assert (tool.tool, tool.outcome, tool.duration_ms) == ("find", "error", 200)
    assert [
        event["value"] for _, event in receiver.written if event.get("type") == "TTFBMetricsData"
    ] == [0.25, 0.1]
    said = [
        event.get("value") or event["data"]["content"]
        for _, event in receiver.written
        if "message_type" in event or event["type"].endswith("_message")
    ]
    assert said == ["My badge is lost.", "Which one?"]
    assert call_of(rows).dead_airs == 0
    spans = {
        each.name: each.span_id.hex() for each in request.resource_spans[0].scope_spans[0].spans
    }
    told = [
        row.traceparent for row in rows if isinstance(row, CallRow) and row.traceparent is not None
    ]
    begun = list(dict.fromkeys(told))
    assert begun == [f"00-{trace_id}-{spans[name]}-01" for name in ("root", "agent_session")]
    call = call_of(rows)
    assert (call.began_ms, call.ended_ms) == (NOW_MS + 1_000, NOW_MS + 10_000)


async def test_a_trace_of_livekit_s_own_has_the_latencies_that_livekit_measured(
    receiver: Receiver,
) -> None:
    """The spans of a session of livekit-agents 1.8.9 without a room, and its `e2e_latency` of each
    turn.
    """
    given_spans = [json.loads(line) for line in RECORDED.read_text().splitlines()]
    await sent(
        receiver,
        exported([(name, begin, end, attributes) for name, begin, end, attributes in given_spans]),
        "protobuf",
    )
    rows = scored(receiver)
    found = [
        plain(row.wait_ms)
        for turn, row in turns_of(rows).items()
        if turn and row.wait_ms is not None
    ]
    assert found == pytest.approx([1_371, 814, 815, 1_074], abs=2)
    outcomes = {turn: row.outcome for turn, row in turns_of(rows).items() if turn}
    assert outcomes == {1: "answered", 2: "interrupted", 3: "answered", 4: "answered"}
    tools = {each.tool: each.outcome for each in tools_of(rows)}
    assert tools == {"find_badge": "success", "broken": "error"}
    assert call_of(rows).ended_reason == "user_initiated"
    heard = [
        event["data"] for _, event in receiver.written if event.get("type") == "assistant_message"
    ]
    assert [(each["content"][:20], each["interrupted"]) for each in heard] == [
        ("Hello, this is the d", False),
        ("I found it.", False),
        ("This is a very long ", True),
        ("Yes, I stop.", False),
        ("It failed.", False),
    ]


async def test_a_request_of_spans_that_no_rule_reads_is_no_fault_of_its_sender(
    receiver: Receiver,
) -> None:
    answer = await sent(
        receiver, exported([("turn", 1_000, 2_000, {"turn.number": 1})]), "protobuf"
    )
    assert (answer.status_code, answer.json()) == (
        202,
        {"accepted_events": 0, "refused_events": 0, "left_out_events": 2},
    )


async def test_a_request_that_is_sent_again_has_the_same_ids(receiver: Receiver) -> None:
    request = exported(OF_LIVEKIT)
    for encoding in ("protobuf", "json"):
        await sent(receiver, request, encoding)
    records = receiver.writer.records
    first, second = records[: len(records) // 2], records[len(records) // 2 :]
    assert [each.headers for each in first] == [each.headers for each in second]


async def test_spans_of_pipecat_are_words_and_stages_and_a_failure_is_an_error(
    receiver: Receiver,
) -> None:
    await sent(receiver, exported(OF_PIPECAT, fails="llm"), "protobuf")
    kinds = [event.get("type", event.get("message_type")) for _, event in receiver.written]
    assert kinds == [
        "call_started",
        "user",
        "TTFBMetricsData",
        "TTFBMetricsData",
        "error",
        "tts_text",
        "TTFBMetricsData",
        "user_bot_latency",
        "call_started",
        "call_ended",
    ]
    assert [
        row.errors.number
        for row in scored(receiver)
        if isinstance(row, CallRow) and "errors" in row.news and row.errors
    ] == [1]


async def test_a_compressed_body_is_taken_within_the_same_bound(receiver: Receiver) -> None:
    body = exported(OF_LIVEKIT).SerializeToString()
    headers = {"content_type": PROTOBUF, "content_encoding": "gzip", **HEADERS}
    whole = await receiver.post("/v1/traces", body, content_type=PROTOBUF, **HEADERS)
    zipped = await receiver.post("/v1/traces", gzip.compress(body), **headers)
    assert (zipped.status_code, zipped.json()) == (202, whole.json())
    bomb = await receiver.post("/v1/traces", gzip.compress(bytes(MAX_BODY_BYTES + 1)), **headers)
    assert (bomb.status_code, "more when unpacked" in bomb.text) == (413, True)
    for wrong in (body, gzip.compress(body)[:-9]):
        answer = await receiver.post("/v1/traces", wrong, **headers)
        assert (answer.status_code, "Expected a body in gzip" in answer.text) == (400, True)
    other = await receiver.post("/v1/traces", body, **{**headers, "content_encoding": "br"})
    assert (other.status_code, "'br'" in other.text) == (415, True)
    assert receiver.bodies.pending_bytes == 0


@pytest.mark.parametrize("encoding", ["protobuf", "json"])
@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan"), 1e300])
async def test_a_span_with_an_impossible_figure_is_told_without_it(
    receiver: Receiver, encoding: str, value: float
) -> None:
    answer = await sent(
        receiver, exported([("llm", 3_100, 3_500, {"metrics.ttfb": value})]), encoding
    )
    assert (answer.status_code, answer.json()["accepted_events"]) == (202, 0)


async def test_what_is_no_export_request_is_refused(receiver: Receiver) -> None:
    for body, kind in (
        (b"\xff\xff", PROTOBUF),
        (b"[]", "application/json"),
        (b"{", "application/json"),
        (b'{"resourceSpans": 5}', "application/json"),
        (b'{"resourceSpans": [{"scopeSpans": [{"spans": [', "application/json"),
    ):
        answer = await receiver.post("/v1/traces", body, content_type=kind, **HEADERS)
        assert (answer.status_code, "no export request" in answer.text) == (400, True)
    assert (await receiver.post("/v1/traces", b"")).status_code == 401
    assert receiver.written == []


def field(number: int, content: bytes) -> bytes:
    """A field of protobuf that holds a message or a text."""
    size, length = len(content), bytearray()
    while size > 127:
        length.append(size & 127 | 128)
        size >>= 7
    return bytes([number << 3 | 2, *length, size]) + content


def empty(number: int, content: bytes = b"") -> bytes:
    part = field(number, content)
    return part * (4_000_000 // len(part))


MANY_PARTS = {
    "resources in JSON": b'{"resourceSpans":[' + b"{}," * 1_300_000 + b"{}]}",
    "resources": empty(1),
    "scopes": field(1, empty(2)),
    "spans": field(1, field(2, empty(2))),
    "attributes": field(1, field(2, field(2, empty(9)))),
    "attributes of many fields": field(1, field(2, field(2, empty(9, empty(1)[:400])))),
    "attributes of a resource": field(1, field(1, empty(1))),
}


@pytest.mark.parametrize("name", MANY_PARTS)
def test_a_request_of_millions_of_parts_is_refused_in_little_memory(name: str) -> None:
    body, refusal = MANY_PARTS[name], ""
    tracemalloc.start()
    try:
        for posted in posted_spans(body, kind_of(body), {}):
            refusal = refusal if posted is None else posted.fault or ""
    except UnreadableBodyError as error:
        refusal = str(error)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert "expected at most" in refusal or name == "attributes of a resource"  # it has no spans
    assert peak < 4 * len(body)


def kind_of(body: bytes) -> str:
    return "application/json" if body[:1] == b"{" else PROTOBUF


@given(st.binary(max_size=300), st.sampled_from([PROTOBUF, "application/json"]))
def test_no_body_breaks_the_reading(body: bytes, kind: str) -> None:
    with suppress(UnreadableBodyError):
        list(posted_spans(body, kind, {}))
