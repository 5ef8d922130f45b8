"""Records and bodies of somebody who means harm: every event as a producer writes it, spoiled in
its values or in its bytes.

Equal seeds make equal ones, but for the time of each, which is the present.
"""

import json
import random
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from schemas.closed_sets import InputSource
from schemas.events.examples import EXAMPLES
from schemas.events.simulator import source_of, stream_of
from tests.support.webhooks import SECRET, delivery, signature_header

Json = dict[str, Any]

GOOD: Final = "good"
"""How the names of calls begin that nobody may change."""
_RECORDS_OF_A_CALL: Final = 40
_MOST_CHANGES: Final = 3
_AT_MS: Final = 1_790_000_000_000
_NEAR_MS: Final = 10_000
_VALUES: Final[tuple[Any, ...]] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    -0.0,
    0.1,
    2**31,
    2**53,
    -(2**63),
    2**64,
    10**15,
    10**18,
    10**308,
    10**400,
    -(10**4_200),
    1e15,
    1e308,
    -1e308,
    5e-324,
    float("inf"),
    -float("inf"),
    float("nan"),
    "",
    " ",
    "\x00",
    "a\x00b",
    "\u2028\u2029",
    "\x1b]0;pwn\x07\x1b[2J",
    "\u202e\u2066",
    "\ud83d",
    "\U0001f4a3" * 50,
    "\ufdfa" * 300,
    "1" * 4_500,
    "NaN",
    "-0",
    "1e400",
    "0x10",
    "\uff11\uff12",
    "\u00b2",
    "\u2167",
    "true",
    "null",
    '{"a":1}',
    "[1,2",
    "\u0130" * 100,
    "2026-01-01T00:00:00",
    "9999-12-31T23:59:59.999999+00:00",
    "0001-01-01T00:00:00+23:59",
    "../../etc/passwd",
    "<script>",
    "%00%ff",
    "[assistant interrupts]",
    "[pause]",
    "4111 1111 1111 1111",
    "+1(" * 1_000,
    "a@b." * 1_000,
    "one two three " * 500,
    "x" * 32_768,
    "x" * 40_000,
    [],
    {},
    [[]] * 5,
    [None],
    ["x"],
    {"": None},
    {"a": {"a": {"a": 1}}},
    {"type": ["x"]},
    [{}] * 200,
    *GOOD,
    GOOD,
    "pipecat",
    "audit",
    "judge",
    "call_ended",
    "call_started",
    "judge_verdict",
    "assistant",
    "user",
    "pipecat_agent",
)
_VERDICT: Final[Json] = {
    "type": "judge_verdict",
    "timestamp": _AT_MS,
    "request_id": "r1",
    "conversation_id": "c1",
    "kind": "subgoal",
    "turn": 1,
    "goal_set": {"id": "g", "digest": "h"},
    "subgoal_id": "s1",
    "input_hash": "h",
    "prompt_version": "1",
    "cost": 0.1,
    "result": {"outcome": "judged", "is_completed": True},
    "votes": {"complete": 3},
    "answers": [{"trial": 1, "outcome": "answered", "grade": True}],
    "confidence": 1.0,
    "model": "m",
    "tokens": {"prompt": 10, "cached": 0, "answer": 5},
    "requests": 3,
    "latency_ms": 900,
}
_TOOLS: Final[Json] = {
    "type": "call_started",
    "timestamp": _AT_MS,
    "pipeline_type": "cascade",
    "agent": "a",
    "tenant": "t",
    "environment": "e",
    "tools": [
        {
            "name": "find",
            "parameters": {
                "type": "object",
                "required": ["x"],
                "additionalProperties": False,
                "properties": {
                    "x": {
                        "type": "integer",
                        "minimum": 0,
                        "multipleOf": 2,
                        "enum": [1],
                        "const": 1,
                    },
                    "s": {"type": "string", "pattern": "a{1,3}"},
                },
                "$ref": "#/properties/x",
                "anyOf": [{}],
                "not": {"type": "null"},
            },
        }
    ],
    "expected_state": {"flights": {"f1": {"seat": 1}}, "session": {"user": "u"}},
}
_EVENTS: Final = (*EXAMPLES.values(), _VERDICT, _TOOLS)
_OF_FRAMEWORKS: Final[tuple[Json, ...]] = (
    *(
        {"message": {"timestamp": _AT_MS, "call": {"id": "c1", "assistantId": "a"}, **each}}
        for each in (
            {"type": "status-update", "status": "in-progress", "assistant": {"name": "desk"}},
            {"type": "speech-update", "status": "stopped", "role": "user"},
            {
                "type": "transcript",
                "role": "user",
                "transcriptType": "final",
                "transcript": "Hello",
            },
            {
                "type": "tool-calls",
                "toolCallList": [
                    {"id": "t1", "function": {"name": "find", "arguments": '{"a":1}'}}
                ],
            },
            {
                "type": "end-of-call-report",
                "endedReason": "bye",
                "endedAt": "2026-09-21T14:13:20Z",
                "artifact": {
                    "messages": [
                        {
                            "role": "tool_call_result",
                            "time": _AT_MS,
                            "toolCallId": "t1",
                            "name": "find",
                            "result": "{}",
                        }
                    ]
                },
            },
        )
    ),
    *(
        {"conversation_id": "c1", "timestamp": _AT_MS, "event_id": "e1", **each}
        for each in (
            {"type": "input_audio_buffer.speech_stopped", "silence_duration_ms": 500},
            {"type": "output_audio_buffer.started"},
            {
                "type": "conversation.item.input_audio_transcription.completed",
                "transcript": "Hello",
            },
            {
                "type": "response.function_call_arguments.done",
                "call_id": "t1",
                "name": "find",
                "arguments": '{"a":1}',
            },
            {
                "type": "conversation.item.create",
                "name": "find",
                "item": {"type": "function_call_output", "call_id": "t1", "output": "{}"},
            },
            {"type": "error", "error": {"message": "no"}},
        )
    ),
)
_SPAN_NAMES: Final = (
    "user_speaking",
    "agent_speaking",
    "user_turn",
    "llm_node",
    "tts_node",
    "tts_request",
    "function_tool",
    "session_close",
    "agent_session",
    "conversation",
    "turn",
    "stt",
    "llm",
    "tts",
    "another",
)
_SPAN_ATTRIBUTES: Final[Mapping[str, Json]] = {
    **{
        name: {"doubleValue": 0.25}
        for name in (
            "lk.response.ttft",
            "lk.response.ttfb",
            "metrics.ttfb",
            "turn.user_bot_latency_seconds",
        )
    },
    **{
        name: {"stringValue": "Hello"}
        for name in (
            "lk.agent_name",
            "lk.user_transcript",
            "lk.response.text",
            "lk.close_reason",
            "transcript",
            "text",
            "lk.function_tool.name",
        )
    },
    "gen_ai.operation.name": {"stringValue": "execute_tool"},
    "gen_ai.tool.call.arguments": {"stringValue": '{"a":1}'},
    "gen_ai.tool.call.id": {"intValue": "7"},
    "is_final": {"boolValue": True},
    "lk.function_tool.is_error": {"boolValue": True},
}


class HostileRecord(NamedTuple):
    """A record of an input topic."""

    source: InputSource
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class HostileBody(NamedTuple):
    """A POST to the role `ingest`, by a sender whose token is its own."""

    path: str
    body: bytes
    headers: dict[str, str]


class Hostile:
    """What comes next of one seed."""

    def __init__(self, seed: int, now_ms: Callable[[], int]) -> None:
        """Starts the calls of this seed.

        Args:
            seed: Decides everything but the times.
            now_ms: The wall clock, in epoch ms.
        """
        self._rng = random.Random(f"hostile {seed}")  # noqa: S311 - play, not secrets
        self._now_ms = now_ms
        self._seed = seed
        self._made = 0

    def records(self, count: int) -> Iterator[HostileRecord]:
        """Records for all inputs. Those with the key of a good call are never JSON."""
        rng = self._rng
        for _ in range(count):
            event = self._event()
            source, value = self._source_of(event), self._written(event)
            key: bytes | None = self._call().encode()
            odd = rng.random()
            if odd < 0.02:
                key = rng.choice(
                    (
                        None,
                        b"",
                        b"k" * 5_000,
                        b"\xff\xfe",
                        b"\x00",
                        b"good\xe2\x80\x8b-0",
                        b"Good-0",
                        b"\x1b[2J\n",
                    )
                )
            elif odd < 0.06:
                key, value = (
                    f"{GOOD}-{rng.randrange(4)}".encode(),
                    value[: rng.randrange(len(value) + 1)].rstrip(b"}"),
                )
            yield HostileRecord(source, key, None if odd > 0.995 else value, self._record_headers())

    def bodies(self, count: int) -> Iterator[HostileBody]:
        """Bodies for every route. They may name good calls, which are another tenant's."""
        for _ in range(count):
            yield self._rng.choice(
                (
                    self._lines,
                    self._array,
                    self._cloudevent,
                    self._spans,
                    self._protobuf,
                    self._webhook,
                )
            )()

    def _source_of(self, event: Any) -> InputSource:
        """The input where the event belongs, in most cases."""
        stream = stream_of(event) if isinstance(event, dict) and self._rng.random() < 0.8 else None
        if stream is not None:
            return InputSource(source_of(stream))
        is_verdict = isinstance(event, dict) and event.get("type") == "judge_verdict"
        return InputSource.JUDGE if is_verdict else self._rng.choice(tuple(InputSource))

    def _call(self) -> str:
        self._made += 1
        return f"hostile-{self._seed}-{self._made // _RECORDS_OF_A_CALL}"

    # Events.

    def _event(self) -> Any:
        event = _as_of(self._now_ms() - self._rng.randrange(_NEAR_MS), self._rng.choice(_EVENTS))
        for _ in range(self._rng.choice((0, 1, 1, 1, 2, _MOST_CHANGES))):
            event = self._changed(event)
        return event

    def _changed(self, event: Any) -> Any:
        """The event with one part replaced, left out, or with one more."""
        rng = self._rng
        path = rng.choice(list(_paths(event)) or [()])
        if not path:
            return self._value()
        *before, last = path
        inner = event
        for step in before:
            inner = inner[step]
        choice = rng.random()
        if choice < 0.8:
            inner[last] = self._value()
        elif choice < 0.88:
            inner[last] = deepcopy(event)
        elif choice < 0.96 or isinstance(inner, list):
            del inner[last]
        else:
            inner[
                rng.choice(("timestamp", "stream", "type", "data", "conversation_id", "sequence"))
            ] = self._value()
        return event

    def _value(self) -> Any:
        return deepcopy(self._rng.choice(_VALUES))

    def _written(self, value: Any) -> bytes:
        """JSON of it, in some cases damaged."""
        rng = self._rng
        text = json.dumps(value, ensure_ascii=rng.random() < 0.7).encode("utf-8", "surrogatepass")
        if rng.random() < 0.85 or not text:
            return text
        at = rng.randrange(len(text))
        match rng.randrange(6):
            case 0:
                return text[:at]
            case 1:
                return text[:at] + rng.randbytes(rng.randrange(1, 5)) + text[at:]
            case 2:
                return text[:at] + text[at // 2 : at] + text[at:]
            case 3:
                return b"[" * rng.choice((5, 150, 5_000)) + text
            case 4:
                return text.replace(
                    b":", b":" + rng.choice((b"1e999", b"NaN", b"[", b"-", b'"', b"9" * 5_000)), 1
                )
            case _:
                return text[:1] + text[1:].replace(b"{", b'{"type":"call_ended","type":7,', 1)

    def _event_bytes(self) -> bytes:
        return self._written(self._event())

    def _record_headers(self) -> tuple[tuple[str, bytes | None], ...]:
        rng = self._rng
        if rng.random() < 0.6:
            return ()
        names = (
            "ce_id",
            "ce_source",
            "ce_type",
            "ce_sequence",
            "ce_specversion",
            "content-type",
            "ce_subject",
            "other",
        )
        values = (
            b"",
            b"7",
            b"7" * 5_000,
            b"\xff\xfe",
            b"-1",
            b"callgauge.elevenlabs.x.v1",
            b"callgauge.elevenlabs.conversation_record.v1",
            b"application/cloudevents+json",
            b"application/cloudevents+json; charset=utf-16",
            b"1.0",
            None,
            GOOD.encode(),
        )
        return tuple((rng.choice(names), rng.choice(values)) for _ in range(rng.randrange(1, 5)))

    # Bodies.

    def _posted(self) -> Any:
        """An event with the id of a call: the sender's own, or one of those that are not."""
        rng = self._rng
        if rng.random() < 0.2:
            event = _as_of(self._now_ms(), rng.choice(_OF_FRAMEWORKS))
            return self._changed(event) if rng.random() < 0.8 else event
        event = self._event()
        if isinstance(event, dict):
            event["conversation_id"] = self._some_call()
        return event

    def _some_call(self) -> Any:
        odd = self._rng.random()
        if odd < 0.7:
            return self._call()
        return f"{GOOD}-{self._rng.randrange(4)}" if odd < 0.85 else self._value()

    def _lines(self) -> HostileBody:
        lines = [self._written(self._posted()) for _ in range(self._rng.randrange(1, 6))]
        kind = self._rng.choice(("application/x-ndjson", "application/json", "text/plain", ""))
        return HostileBody("/events", b"\n".join(lines), {"content-type": kind})

    def _array(self) -> HostileBody:
        body = (
            b"["
            + b",".join(self._written(self._posted()) for _ in range(self._rng.randrange(5)))
            + b"]"
        )
        return HostileBody("/events", body, {"content-type": "application/json"})

    def _cloudevent(self) -> HostileBody:
        rng = self._rng
        named: Any = {
            "specversion": "1.0",
            "id": "1",
            "source": "s",
            "subject": self._some_call(),
            "type": rng.choice(
                ("callgauge.pipecat.tts_text.v1", "callgauge.call.call_ended.v1", "x")
            ),
        }
        if rng.random() < 0.5:
            named = self._changed(named)
        if rng.random() < 0.5:
            document = (
                {**named, rng.choice(("data", "data", "data_base64")): self._event()}
                if isinstance(named, dict)
                else named
            )
            kind = rng.choice(
                ("application/cloudevents+json", "application/cloudevents-batch+json")
            )
            return HostileBody(
                "/events",
                self._written([document] if "batch" in kind else document),
                {"content-type": kind},
            )
        texts = named.items() if isinstance(named, dict) else ()
        headers = {f"ce-{name}": _header_text(value) for name, value in texts}
        return HostileBody(
            "/events", self._event_bytes(), {"content-type": "application/json", **headers}
        )

    def _request_of_traces(self) -> Json:
        rng, end_ms = self._rng, self._now_ms()
        spans = [
            {
                "traceId": f"{rng.randrange(2**20):032x}",
                "spanId": f"{rng.getrandbits(64):016x}",
                "name": rng.choice(_SPAN_NAMES),
                "startTimeUnixNano": str((end_ms - 900) * 1_000_000),
                "endTimeUnixNano": str(end_ms * 1_000_000),
                "attributes": [
                    {"key": key, "value": dict(value)}
                    for key, value in _SPAN_ATTRIBUTES.items()
                    if rng.random() < 0.5
                ],
                "status": {"code": rng.randrange(3)},
            }
            for _ in range(rng.randrange(1, 4))
        ]
        service = {"attributes": [{"key": "service.name", "value": {"stringValue": "bot"}}]}
        return {"resourceSpans": [{"resource": service, "scopeSpans": [{"spans": spans}]}]}

    def _spans(self) -> HostileBody:
        request: Any = self._request_of_traces()
        for _ in range(self._rng.randrange(_MOST_CHANGES)):
            request = self._changed(request)
        return HostileBody(
            "/v1/traces", self._written(request), {"content-type": "application/json"}
        )

    def _protobuf(self) -> HostileBody:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
            ExportTraceServiceRequest,
        )

        rng = self._rng
        request = ExportTraceServiceRequest()
        spans = request.resource_spans.add().scope_spans.add().spans
        for _ in range(rng.randrange(1, 4)):
            ids = {
                "trace_id": rng.randbytes(rng.choice((0, 4, 16))),
                "span_id": rng.randbytes(rng.choice((0, 8))),
            }
            times = (0, 1, 2**63, 2**64 - 1, self._now_ms() * 1_000_000)
            span = spans.add(
                name=rng.choice(_SPAN_NAMES),
                start_time_unix_nano=rng.choice(times),
                end_time_unix_nano=rng.choice(times),
                **ids,
            )
            for key in _SPAN_ATTRIBUTES:
                value = span.attributes.add(key=key).value
                match rng.randrange(5):
                    case 0:
                        value.double_value = rng.choice(
                            (0.1, -1.0, 1e308, float("inf"), float("nan"))
                        )
                    case 1:
                        value.int_value = rng.choice((0, 2**63 - 1, -(2**63)))
                    case 2:
                        value.string_value = rng.choice(
                            ("", "\x00", "x" * 40_000, '{"a":1e999}', "[" * 5_000)
                        )
                    case 3:
                        value.bool_value = True
        body = bytearray(request.SerializeToString())
        for _ in range(rng.choice((0, 0, 1, 5))):
            body[rng.randrange(len(body))] = rng.randrange(256)
        return HostileBody("/v1/traces", bytes(body), {"content-type": "application/x-protobuf"})

    def _webhook(self) -> HostileBody:
        rng, seconds = self._rng, self._now_ms() // 1_000
        record = _as_of(self._now_ms(), EXAMPLES["ConversationRecord"]) | {
            "conversation_id": self._some_call()
        }
        kind = rng.choice(
            (
                "post_call_transcription",
                "post_call_transcription",
                "call_initiation_failure",
                "post_call_audio",
            )
        )
        document: Any = json.loads(delivery(kind, record, seconds))
        for _ in range(rng.randrange(_MOST_CHANGES)):
            document = self._changed(document)
        body = self._written(document)
        header = signature_header(body, seconds, SECRET if rng.random() < 0.9 else "wrong")
        return HostileBody("/webhooks/elevenlabs/hostile", body, {"elevenlabs-signature": header})


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    for step, inner in (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    ):
        yield (*path, step)
        if len(path) < 6:
            yield from _paths(inner, (*path, step))


def _as_of(time_ms: int, value: Any) -> Any:
    """A copy of an example whose times are those of this moment."""
    if isinstance(value, Mapping):
        return {name: _as_of(time_ms, inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_as_of(time_ms, inner) for inner in value]
    if isinstance(value, str) and value.startswith("2026-09-21T"):
        return datetime.fromtimestamp(time_ms / 1_000, UTC).isoformat()
    if value == str(_AT_MS):
        return str(time_ms)
    if isinstance(value, int | float) and abs(value - _AT_MS) < _NEAR_MS:
        return time_ms
    if isinstance(value, int | float) and abs(value - _AT_MS / 1_000) < _NEAR_MS:
        return time_ms / 1_000 if isinstance(value, float) else time_ms // 1_000
    return value


def _header_text(value: Any) -> str:
    """What a header line can hold of it, in percent signs where it must."""
    text = str(value)[:200].encode("utf-8", "surrogatepass")
    return "".join(chr(byte) if 32 < byte < 127 else f"%{byte:02X}" for byte in text)
