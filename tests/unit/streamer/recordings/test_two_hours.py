"""A call of two hours is read whole, in the form of every source: 600 turns, one every twelve
seconds.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from streamer.notebook import score
from tests.support.webhooks import delivery, entry, record_of_a_call
from tests.unit.streamer.sources.http.test_frameworks import NOW_MS
from tests.unit.streamer.sources.http.test_traces import Given, exported

Json = dict[str, Any]
TURNS = 600
TURN_MS = 12_000
WORDS = "some twenty words of an answer " * 3


def own(kind: str, at_ms: int, **fields: Any) -> Json:
    return {"conversation_id": "long", "type": kind, "timestamp": NOW_MS + at_ms, **fields}


def spoke(kind: str, at_ms: int) -> Json:
    return own("speech_event", at_ms, data={"kind": kind, "timestamp": (NOW_MS + at_ms) / 1000})


def of_pipecat() -> Iterator[Json]:
    """As its observer tells a call, with a tool and the pieces of each answer."""
    yield own("call_started", 0, agent="desk")
    for at_ms in range(0, TURNS * TURN_MS, TURN_MS):
        yield spoke("user_speech_started", at_ms + 1_000)
        yield spoke("user_speech_stopped", at_ms + 3_000)
        yield own("user_message", at_ms + 3_100, data={"content": WORDS})
        used = {"tool_call_id": f"t{at_ms}", "function_name": "find"}
        yield own(
            "function_call_event", at_ms + 3_200, data={"kind": "function_call_in_progress", **used}
        )
        result = {"kind": "function_call_completed", **used, "result": {"text": WORDS}}
        yield own("function_call_event", at_ms + 3_400, data=result)
        ttfb = {
            "kind": "ttfb",
            "processor": "LLMService#0",
            "seconds": 0.3,
            "timestamp": (NOW_MS + at_ms + 3_700) / 1e3,
        }
        yield own("service_latency", at_ms + 3_700, data=ttfb)
        yield spoke("bot_speech_started", at_ms + 4_000)
        for piece in range(20):
            yield own("tts_text", at_ms + 4_000 + piece * 200, data={"frame": "word"})
        yield spoke("bot_speech_stopped", at_ms + 9_000)
        yield own("assistant_message", at_ms + 9_000, data={"content": WORDS})
    yield own("call_ended", TURNS * TURN_MS, reason="goodbye")


def of_elevenlabs() -> Iterator[Json]:
    """As a socket of its agent tells a call."""
    yield own("call_started", 0, agent="desk")
    for number in range(TURNS):
        at_ms = number * TURN_MS
        heard = {"user_transcript": WORDS, "event_id": 2 * number + 1}
        yield own(
            "user_transcript", at_ms + 3_000, stream="elevenlabs", user_transcription_event=heard
        )
        said = {"agent_response": WORDS, "event_id": 2 * number + 2}
        yield own("agent_response", at_ms + 4_000, stream="elevenlabs", agent_response_event=said)
    yield own("call_ended", TURNS * TURN_MS, reason="goodbye")


def webhook() -> bytes:
    """The record of such a call, with a tool in every turn."""
    entries = []
    for number in range(TURNS):
        tool = {"request_id": f"r{number}", "tool_name": "find", "params_as_json": "{}"}
        answer = {
            "request_id": f"r{number}",
            "tool_name": "find",
            "result_value": "{}",
            "is_error": False,
        }
        at_s = number * TURN_MS // 1_000
        entries += [
            entry("user", WORDS, at_s + 1),
            entry("agent", None, at_s + 3, tool_calls=[tool]),
        ]
        entries += [
            entry("agent", None, at_s + 3, tool_results=[answer]),
            entry("agent", WORDS, at_s + 4, 1.0),
        ]
    return delivery(
        "post_call_transcription",
        record_of_a_call("long", NOW_MS // 1000, *entries),
        NOW_MS / 1000 + 7_200,
    )


def of_livekit() -> Iterator[Given]:
    for at_ms in range(0, TURNS * TURN_MS, TURN_MS):
        yield "user_speaking", at_ms + 1_000, at_ms + 3_000, {}
        yield "user_turn", at_ms + 1_000, at_ms + 3_300, {"lk.pii.user_transcript": WORDS}
        yield (
            "llm_node",
            at_ms + 3_300,
            at_ms + 3_600,
            {"lk.pii.response.text": WORDS, "lk.response.ttft": 0.25},
        )
        yield "agent_speaking", at_ms + 4_000, at_ms + 9_000, {}
        yield "agent_turn", at_ms + 3_300, at_ms + 9_000, {"lk.pii.response.text": WORDS}
    yield "agent_session", 0, TURNS * TURN_MS, {"lk.agent_name": "desk"}


def of_pipecat_in_spans() -> Iterator[Given]:
    for at_ms in range(0, TURNS * TURN_MS, TURN_MS):
        yield "stt", at_ms + 1_000, at_ms + 3_100, {"transcript": WORDS, "metrics.ttfb": 0.1}
        yield (
            "llm",
            at_ms + 3_100,
            at_ms + 3_500,
            {"gen_ai.operation.name": "chat", "metrics.ttfb": 0.3},
        )
        yield "tts", at_ms + 3_800, at_ms + 3_900, {"text": WORDS, "metrics.ttfb": 0.2}
        yield "turn", at_ms + 1_000, at_ms + 9_000, {"turn.user_bot_latency_seconds": 1.0}
    yield "conversation", 0, TURNS * TURN_MS, {"conversation.id": "c"}


def lines(events: Iterator[Json]) -> bytes:
    return "".join(json.dumps(event) + "\n" for event in events).encode()


FORMS: dict[str, Callable[[], bytes]] = {
    "pipecat": lambda: lines(of_pipecat()),
    "ElevenLabs live": lambda: lines(of_elevenlabs()),
    "the record of ElevenLabs": webhook,
    "spans of LiveKit": lambda: exported(list(of_livekit())).SerializeToString(),
    "spans of pipecat": lambda: exported(list(of_pipecat_in_spans())).SerializeToString(),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_call_of_two_hours_is_read_whole(tmp_path: Path, form: str) -> None:
    path = tmp_path / "call.jsonl"
    path.write_bytes(FORMS[form]())
    (call,) = score(path)
    assert (call.call.close_reason, call.call.turns) == ("ended", TURNS)
    rows = {row.turn: row for row in call.turns}
    measured = [turn for turn in range(1, TURNS + 1) if isinstance(rows[turn].wait_ms, float)]
    assert measured == list(range(1, TURNS + 1))
    talks = [rows[turn].talk for turn in measured]
    assert {talk and talk.user.words for talk in talks} == {18}
