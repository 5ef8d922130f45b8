"""Calls of a real ElevenLabs agent: its live events, the record of the conversation, and both in
orders drawn at random.
"""

import json
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from consumers.engine.admission import Arrival
from schemas.closed_sets import InputSource
from schemas.events.codec import decode
from schemas.events.envelope import AGENT_RECORD_TYPE, AGENT_TYPE_PREFIX, Envelope

Json = dict[str, Any]
T0_MS = 1_790_000_000_000


def heard(text: str, at_ms: int, event_id: int | None = None, **more: Any) -> Json:
    """The caller's turn is over and understood."""
    data = {"user_transcript": text} | ({} if event_id is None else {"event_id": event_id})
    return {
        "type": "user_transcript",
        "timestamp": T0_MS + at_ms,
        "user_transcription_event": data,
        **more,
    }


def said(text: str, at_ms: int, event_id: int | None = None, **more: Any) -> Json:
    """The agent begins to answer."""
    data = {"agent_response": text} | ({} if event_id is None else {"event_id": event_id})
    return {
        "type": "agent_response",
        "timestamp": T0_MS + at_ms,
        "agent_response_event": data,
        **more,
    }


def corrected(original: str, heard_of_it: str, at_ms: int, event_id: int | None = None) -> Json:
    """The caller cut the agent off."""
    data: Json = {"original_agent_response": original, "corrected_agent_response": heard_of_it}
    data |= {} if event_id is None else {"event_id": event_id}
    event = {"type": "agent_response_correction", "agent_response_correction_event": data}
    return event | {"timestamp": T0_MS + at_ms}


def interrupted(at_ms: int, event_id: int) -> Json:
    """The agent stops, because the caller speaks."""
    return {
        "type": "interruption",
        "timestamp": T0_MS + at_ms,
        "interruption_event": {"event_id": event_id},
    }


def tool_requested(
    tool: str, call_id: str, at_ms: int, kind: str = "agent_tool_request", **more: Any
) -> Json:
    """A tool is about to run."""
    data = {"tool_name": tool, "tool_call_id": call_id, "tool_type": "webhook", **more}
    return {"type": kind, "timestamp": T0_MS + at_ms, kind: data}


def tool_replied(
    tool: str, call_id: str, at_ms: int, kind: str = "agent_tool_response", **more: Any
) -> Json:
    """A tool has answered."""
    data = {
        "tool_name": tool,
        "tool_call_id": call_id,
        "tool_type": "webhook",
        "is_error": False,
        "is_called": True,
    }
    return {"type": kind, "timestamp": T0_MS + at_ms, kind: data | more}


def entry(role: str, message: str | None, secs: int = 0, **more: Any) -> Json:
    """One entry of a record's transcript."""
    return {"role": role, "message": message, "time_in_call_secs": secs, **more}


def metrics(**seconds: float) -> Json:
    """`conversation_turn_metrics` of an entry; names without their `convai_`."""
    inner = {f"convai_{name}": {"elapsed_time": elapsed} for name, elapsed in seconds.items()}
    return {"conversation_turn_metrics": {"metrics": inner}}


def waited(seconds: float) -> Json:
    """The metric of the wait that the caller felt."""
    return metrics(ttf_audio_since_silence=seconds)


def record(*entries: Json, at_ms: int = 60_000, **more: Any) -> Json:
    """The record of a conversation, as GET gives it, with the bridge's time."""
    metadata = {"start_time_unix_secs": T0_MS // 1000, "call_duration_secs": 30}
    shape = {
        "agent_id": "agent-1",
        "conversation_id": "conv-1",
        "status": "done",
        "metadata": metadata,
    }
    return {"timestamp": T0_MS + at_ms, **shape, "transcript": list(entries), **more}


def envelope_of(event: Json, event_id: str | None = None) -> Envelope:
    """Its headers: the conversation, and the bridge's own id of it."""
    kind = (
        AGENT_RECORD_TYPE
        if "transcript" in event or "data" in event
        else f"{AGENT_TYPE_PREFIX}{event['type']}.v1"
    )
    return Envelope(event_id, "bridge", kind, None)


def arrivals_of(
    events: Sequence[Json], *, control: Sequence[Json] = (), key: str = "call"
) -> list[Arrival]:
    """The events in this order as the reader of a partition gets them; `control` comes first, on
    the audit topic.
    """
    result = []
    offsets = dict.fromkeys(InputSource, 0)
    for place, event in enumerate([*control, *events]):
        source = InputSource.AUDIT if place < len(control) else InputSource.ELEVENLABS
        value = json.dumps(event).encode()
        envelope = envelope_of(event) if source is InputSource.ELEVENLABS else None
        taken_ms = T0_MS + 100_000 + place  # so that no silence ends the call in any order
        typed = decode(source, value, envelope)
        result.append(Arrival(source, offsets[source], taken_ms, key, typed, value, envelope))
        offsets[source] += 1
    return result


# --- drawn calls
# -----------------------------------------------------------------------------------------------------

_WORDS = ("Hello", "I lost my badge.", "Yes.", "Yes.", "...", "Move it, please")
_REPLIES = ("Certainly.", "One moment, I look that up.", "Done. Is there more?")
_turns: st.SearchStrategy[list[Json]] = st.lists(
    st.fixed_dictionaries(
        {
            "request": st.sampled_from(_WORDS),
            "reply": st.sampled_from([*_REPLIES, None]),
            "wait_ms": st.sampled_from([700, 0, 1_500, 3_999]),
            "tool": st.sampled_from([None, None, "find", "find and pay"]),
            "is_cut_off": st.booleans(),
            "is_exact": st.sampled_from([True, True, True, False]),
            "latency": st.sampled_from([None, 1.2, 2.5]),
        }
    ),
    max_size=7,
)
_facts: st.SearchStrategy[Json] = st.fixed_dictionaries(
    {
        "greeting": st.booleans(),
        "ids": st.sampled_from(["all", "all", "none"]),
        "record": st.sampled_from(["with ids", "without ids", "shorter", "absent"]),
    }
)


@st.composite
def agent_calls(draw: st.DrawFn) -> tuple[list[Json], Json | None]:
    """The live events of a call in the order of their times, no two at the same time; and its
    record, if it has one.
    """
    facts = draw(_facts)
    events: list[Json] = []
    entries: list[Json] = []
    now_ms = 0

    def at(after_ms: int = 1) -> int:
        nonlocal now_ms
        now_ms += max(1, after_ms)
        return now_ms

    def link(number: int) -> Json:
        return (
            {"source_event_id": number}
            if facts["record"] == "with ids" and facts["ids"] == "all"
            else {}
        )

    def numbered(number: int) -> int | None:
        return number if facts["ids"] == "all" else None

    if facts["greeting"]:
        events.append(said("Welcome.", at(), numbered(1)))
        entries.append(entry("agent", "Welcome.", **link(1)))
    for number, turn in enumerate(draw(_turns), 2):
        exact = {} if turn["is_exact"] else {"is_time_exact": False}
        events.append(heard(turn["request"], at(2_000), numbered(number), **exact))
        entries.append(entry("user", turn["request"], **link(number)))
        for tool in (turn["tool"] or "").split(" and ") if turn["tool"] else ():
            call_id = f"{tool}-{number}"
            events.append(tool_requested(tool, call_id, at(10)))
            events.append(
                tool_requested(tool, call_id, at(), "client_tool_call", parameters={"n": number})
            )
            events.append(tool_replied(tool, call_id, at(300)))
            kind = "agent_tool_response_full_payload"
            events.append(
                tool_replied(tool, call_id, at(), kind, full_tool_result='{"status": "error"}')
            )
        if turn["reply"] is not None:
            events.append(said(turn["reply"], at(turn["wait_ms"]), numbered(number), **exact))
            wait = {} if turn["latency"] is None else waited(turn["latency"])
            entries.append(entry("agent", turn["reply"], **link(number), **wait))
            if turn["is_cut_off"]:
                events.append(interrupted(at(500), number))
                events.append(corrected(turn["reply"], turn["reply"][:5], at(), numbered(number)))
    if facts["record"] == "absent":
        return events, None
    return events, record(
        *(entries[: len(entries) // 2] if facts["record"] == "shorter" else entries)
    )
