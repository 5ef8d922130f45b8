"""Deliveries of ElevenLabs' webhook as its servers sign and send them."""

import hashlib
import hmac
import json
from typing import Any

Json = dict[str, Any]
SECRET = "wsec_test"  # noqa: S105 - a secret of tests


def signature_header(body: bytes, at_seconds: int | str, secret: str = SECRET) -> str:
    """The header of a delivery, as the scheme of the webhook has it."""
    digest = hmac.new(secret.encode(), f"{at_seconds}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at_seconds},v0={digest}"


def delivery(kind: str, data: Json, at_seconds: float) -> bytes:
    return json.dumps({"type": kind, "event_timestamp": int(at_seconds), "data": data}).encode()


def record_of_a_call(conversation_id: str, start_seconds: int, *entries: Json, **more: Any) -> Json:
    """The record of a call of half a minute, as the webhook holds it."""
    metadata = {
        "start_time_unix_secs": start_seconds,
        "call_duration_secs": 30,
        "termination_reason": "client ended",
    }
    shape = {
        "agent_id": "agent_7",
        "agent_name": "desk",
        "conversation_id": conversation_id,
        "status": "done",
    }
    return {**shape, "metadata": metadata, "transcript": list(entries), **more}


def entry(
    role: str, message: str | None, secs: int, waited_seconds: float | None = None, **more: Any
) -> Json:
    """One entry of the transcript, with the wait that ElevenLabs measured."""
    metrics = {"convai_ttf_audio_since_silence": {"elapsed_time": waited_seconds}}
    known = {} if waited_seconds is None else {"conversation_turn_metrics": {"metrics": metrics}}
    return {"role": role, "message": message, "time_in_call_secs": secs, **known, **more}


TRACE, ROOT = "ab" * 16, "cd" * 8


def as_spans(record: Json) -> Json:
    """The same record as ElevenLabs' OpenTelemetry format has it: a span of the call, of each
    entry, and of each tool in it.
    """
    begin_s = record["metadata"]["start_time_unix_secs"]
    told = {"elevenlabs.termination_reason": record["metadata"]["termination_reason"]}
    spans = [
        _span(
            "elevenlabs.conversation",
            ROOT,
            "",
            begin_s,
            record["metadata"]["call_duration_secs"],
            told,
        )
    ]
    for place, each in enumerate(record["transcript"]):
        name, span_id = (
            {"user": "user_transcript"}.get(each["role"], "agent_response"),
            f"{place + 1:016x}",
        )
        side, at_s = each["role"], begin_s + each["time_in_call_secs"]
        usage = (each.get("llm_usage") or {}).get("model_usage", {})
        attributes = {
            "elevenlabs.turn.index": place,
            **({} if each["message"] is None else {f"elevenlabs.{side}.text": each["message"]}),
            **{
                f"elevenlabs.metric.{metric}_ms": value["elapsed_time"] * 1000
                for metric, value in (each.get("conversation_turn_metrics") or {})
                .get("metrics", {})
                .items()
            },
            **{
                f"elevenlabs.llm_usage.{model}.{kind}": repr(tokens)  # as ElevenLabs does
                for model, kinds in usage.items()
                for kind, tokens in kinds.items()
            },
        }
        spans.append(_span(f"elevenlabs.recv.{name}", span_id, ROOT, at_s, 0.0, attributes))
        for call, result in zip(
            each.get("tool_calls", ()), each.get("tool_results", ()), strict=True
        ):
            tool = {
                "elevenlabs.tool.name": call["tool_name"],
                "elevenlabs.tool.parameters": call["params_as_json"],
                "elevenlabs.tool.result": result["result_value"],
                "elevenlabs.tool.latency_ms": result["tool_latency_secs"] * 1000,
            }
            own_id = f"f{place:015x}"
            spans.append(
                _span(f"elevenlabs.tool.{call['tool_name']}", own_id, span_id, at_s, 0.0, tool)
            )
    resource = {"attributes": _attributes({"service.name": "elevenlabs-convai"})}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": spans}]}]}


def _span(
    name: str, span_id: str, parent_id: str, begin_s: float, length_s: float, attributes: Json
) -> Json:
    begin, end = (str(round(at_s * 1_000_000_000)) for at_s in (begin_s, begin_s + length_s))
    identity = {"traceId": TRACE, "spanId": span_id, "parentSpanId": parent_id, "name": name}
    return {
        **identity,
        "startTimeUnixNano": begin,
        "endTimeUnixNano": end,
        "status": {"code": 1},
        "attributes": _attributes(attributes),
    }


def _attributes(values: Json) -> list[Json]:
    kinds = {str: "stringValue", int: "intValue", float: "doubleValue"}
    return [
        {"key": key, "value": {kinds[type(value)]: str(value) if type(value) is int else value}}
        for key, value in values.items()
    ]
