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
