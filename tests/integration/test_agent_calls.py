"""Calls of a real ElevenLabs agent through a real broker: estimated while they run, put right by
the record afterwards.
"""

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from schemas.closed_sets import Anchor
from schemas.events.envelope import AGENT_RECORD_TYPE, agent_event_type
from schemas.rows import CallRow, TurnRow
from tests.integration.metrics_page import total
from tests.integration.processes import Process, ran, wait_for
from tests.integration.score_log import closings_of, written_rows
from tests.support.calls.rows_of_calls import turns_of

Json = dict[str, Any]
LATENCY = "callgauge_turn_response_latency_seconds_count"
ERRORS = "callgauge_estimate_error_seconds"
START_S = 1_790_000_000

pytestmark = pytest.mark.service(limits__closing_grace_ms="1500")


def entry(role: str, message: str, made_ms: int, **more: Any) -> Json:
    made = {"created_at_unix_ms": START_S * 1_000 + made_ms, "time_in_call_secs": made_ms // 1_000}
    return {"role": role, "message": message, **made, **more}


def waited(seconds: float) -> Json:
    return {
        "conversation_turn_metrics": {
            "metrics": {"convai_ttf_audio_since_silence": {"elapsed_time": seconds}}
        }
    }


def conversation() -> Json:
    """Three turns: of two ElevenLabs knows how long the caller waited."""
    return {
        "agent_id": "agent_1",
        "conversation_id": "conv_1",
        "status": "done",
        "metadata": {"start_time_unix_secs": START_S, "call_duration_secs": 20},
        "transcript": [
            entry("agent", "Welcome.", 300),
            entry("user", "My badge is lost", 4_000),
            entry("agent", "Which one?", 4_900, **waited(1.7)),
            entry("user", "The blue one", 8_000),
            entry("agent", "I see.", 9_250, **waited(2.05)),
            entry("user", "Thank you", 14_000),
            entry("agent", "Goodbye.", 14_600),
        ],
    }


async def test_a_record_played_again_is_estimated_and_then_put_right(
    service: tuple[Process, str], environment: dict[str, str], tmp_path: Path
) -> None:
    process, address = service
    path = tmp_path / "conversation.json"
    path.write_text(json.dumps(conversation()))
    ran("replay", str(path), "--speed", "10", **environment)
    wait_for(
        "the call to be closed", lambda: total(address, "callgauge_calls_ended_total") == 1, 30
    )
    assert total(address, LATENCY, anchor="estimated", source="elevenlabs", agent="agent_1") == 3
    assert total(address, "callgauge_turns_total") == 3
    assert total(address, f"{ERRORS}_count") == 2
    assert total(address, f"{ERRORS}_sum") == pytest.approx(0.8 + 0.8, abs=1e-6)
    assert total(address, "callgauge_turn_revisions_total") == 2
    assert total(address, "callgauge_quarantined_total") == 0

    rows = await written_rows(environment)
    turns = turns_of(rows)
    final = {
        number: (turn.wait_ms, turn.anchor)
        for number, turn in turns.items()
        if isinstance(turn.wait_ms, float)
    }
    assert final == {
        1: (1_700.0, Anchor.RECORD),
        2: (2_050.0, Anchor.RECORD),
        3: (600.0, Anchor.ESTIMATED),
    }
    first = {
        row.turn: (row.wait_ms, row.anchor)
        for row in rows
        if isinstance(row, TurnRow) and "wait" in row.news
    }
    assert first == {
        1: (900.0, Anchor.ESTIMATED),
        2: (1_250.0, Anchor.ESTIMATED),
        3: (600.0, Anchor.ESTIMATED),
    }
    errors = {
        number: turn.estimate_error.error_ms
        for number, turn in turns.items()
        if turn.estimate_error is not None
    }
    assert errors == {1: -800.0, 2: -800.0}
    assert process.signalled(signal.SIGTERM)[0] == 0


async def test_events_of_a_bridge_and_a_webhook_that_comes_later(
    service: tuple[Process, str], environment: dict[str, str], producer: AIOKafkaProducer
) -> None:
    _, address = service
    topic = f"{environment['CALLGAUGE_TOPIC_PREFIX']}elevenlabs.events"
    now_ms = time.time_ns() // 1_000_000

    async def send(kind: str, event: Json) -> None:
        headers = [("ce_type", kind.encode())]
        await producer.send_and_wait(
            topic, json.dumps(event).encode(), key=b"conv_2", headers=headers
        )

    async def live(kind: str, at_ms: int, **payload: Any) -> None:
        await send(agent_event_type(kind), {"type": kind, "timestamp": now_ms + at_ms, **payload})

    await live(
        "user_transcript",
        0,
        user_transcription_event={"user_transcript": "My badge", "event_id": 3},
    )
    await live("vad_score", 10, vad_score_event={"vad_score": 0.1})
    await live(
        "agent_response", 800, agent_response_event={"agent_response": "Yes?", "event_id": 3}
    )
    wait_for(
        "an estimate",
        lambda: total(address, LATENCY, anchor="estimated", source="elevenlabs") == 1,
        30,
    )
    # The monitor was disconnected, and is sent the last events again.
    await live(
        "user_transcript",
        5_000,
        user_transcription_event={"user_transcript": "My badge", "event_id": 3},
    )
    await live(
        "agent_response", 5_001, agent_response_event={"agent_response": "Yes?", "event_id": 3}
    )
    wait_for(
        "the repeats", lambda: total(address, "callgauge_events_total", outcome="repeated") == 2, 30
    )
    audit = f"{environment['CALLGAUGE_TOPIC_PREFIX']}audit.events"
    ended = json.dumps({"type": "call_ended", "timestamp": now_ms + 6_000}).encode()
    for key in (b"conv_2", b"another"):
        await producer.send_and_wait(audit, ended, key=key)
    # The other call, which no agent of ElevenLabs speaks in, closes after the grace; this one waits
    # for its record.
    wait_for(
        "the other call to be closed",
        lambda: total(address, "callgauge_calls_ended_total") == 1,
        30,
    )
    assert [row.conversation_id for row in closings_of(await written_rows(environment))] == [
        "another"
    ]
    body = {
        "conversation_id": "conv_2",
        "status": "done",
        "transcript": [
            {
                "role": "user",
                "message": "My badge",
                "time_in_call_secs": 2,
                "source_event_id": 3,
                "tool_calls": None,
            },
            {
                "role": "agent",
                "message": "Yes?",
                "time_in_call_secs": 3,
                "source_event_id": 3,
                **waited(1.95),
            },
        ],
    }
    await send(
        AGENT_RECORD_TYPE,
        {"type": "post_call_transcription", "event_timestamp": time.time(), "data": body},
    )
    wait_for("the error of the estimate", lambda: total(address, f"{ERRORS}_count") == 1, 30)
    assert total(address, f"{ERRORS}_sum") == pytest.approx(1.15, abs=1e-6)
    wait_for(
        "the call to be closed", lambda: total(address, "callgauge_calls_ended_total") == 2, 30
    )
    rows = [row for row in await written_rows(environment) if row.conversation_id == "conv_2"]
    assert isinstance(rows[-1], CallRow)
    assert rows[-1].state == "closed"
    turn = turns_of(rows)[1]
    assert (turn.wait_ms, turn.anchor) == (1_950.0, Anchor.RECORD)
