"""The context of one call of each source, worked out by hand from its events, in the words and
numbers of EVA's documents.

Times are in seconds from the start of the call. What is expected was written down before the call
was run.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from streamer.notebook import score

T0_S: Final = 1_790_000_000
Json = dict[str, Any]

NEVER_TOLD: Final = {
    *(
        "record_id",
        "user_goal",
        "user_persona",
        "initial_scenario_db",
        "initial_scenario_db_hash",
        "final_scenario_db",
    ),
    *("final_scenario_db_hash", "expected_scenario_db", "language", "intended_user_turns"),
    *("transcribed_assistant_turns", "fallback_turn_ids", "output_dir"),
    *("audio_assistant_path", "audio_user_path", "audio_mixed_path"),
}
"""What no event of any of these calls tells; of `transcribed_assistant_turns` only the part of an
answer that was cut off.
"""
OF_THE_AGENT: Final = {"agent_role", "agent_instructions", "agent_tools", "current_date_time"}
SOUNDS: Final = {"audio_timestamps_user_turns", "audio_timestamps_assistant_turns"}
OVERLAPS: Final = {"assistant_interrupted_turns", "user_interrupted_turns"}
END: Final = {"conversation_ended_reason", "conversation_finished"}


def ms(at_s: float) -> int:
    return round((T0_S + at_s) * 1000)


def event(kind: str, at_s: float, **fields: Any) -> Json:
    return {"conversation_id": "c", "type": kind, "timestamp": ms(at_s), **fields}


def spoke(kind: str, begin_s: float, end_s: float) -> list[Json]:
    return [
        event("speech_event", at_s, data={"kind": f"{kind}_{edge}", "timestamp": T0_S + at_s})
        for edge, at_s in (("started", begin_s), ("stopped", end_s))
    ]


def said(role: str, at_s: float, content: str, **data: Any) -> Json:
    return event(f"{role}_message", at_s, data={"content": content, **data})


def tool(kind: str, at_s: float, **data: Any) -> Json:
    data = {
        "kind": f"function_call_{kind}",
        "tool_call_id": "t-1",
        "timestamp": T0_S + at_s,
        **data,
    }
    return event("function_call_event", at_s, data=data)


def voiced(at_s: float, frame: str) -> Json:
    return event("tts_text", at_s, data={"frame": frame})


def span(name: str, begin_s: float, end_s: float, **attributes: Any) -> Json:
    """A span of OTLP's JSON; two underscores in a name of an attribute are a dot."""
    kinds = {bool: "boolValue", int: "intValue", float: "doubleValue", str: "stringValue"}
    listed = [
        {"key": key.replace("__", "."), "value": {kinds[type(value)]: value}}
        for key, value in attributes.items()
    ]
    return {
        "traceId": "ab" * 16,
        "spanId": f"{ms(begin_s) * 7 + ms(end_s) + len(name):016x}",
        "name": name,
        "attributes": listed,
        "startTimeUnixNano": str(ms(begin_s) * 1_000_000),
        "endTimeUnixNano": str(ms(end_s) * 1_000_000),
    }


def context_of(call: Path | Iterable[Mapping[str, Any]]) -> Json:
    """The context as JSON, without the times of the trace, with the others from the start of the
    call; of `unknown` the names.
    """
    (scored,) = score(call)
    assert not scored.remarks
    found: Json = json.loads(json.dumps(scored.context.to_dict()))
    for side in ("user", "assistant"):
        segments: Json = found.get(f"audio_timestamps_{side}_turns", {})
        for turn, sounds in segments.items():
            segments[turn] = (
                None
                if sounds is None
                else [[round(at_s - T0_S, 3) for at_s in each] for each in sounds]
            )
    for entry in found["conversation_trace"]:
        entry.pop("timestamp", None)
    found["unknown"] = set(found["unknown"])
    return found


def of_spans(tmp_path: Path, *spans: Json, service: str = "desk") -> Json:
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": service}}]}
    path = tmp_path / "spans.json"
    path.write_text(
        json.dumps(
            {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": list(spans)}]}]}
        )
    )
    return context_of(path)


def user(turn: int, content: str) -> Json:
    return {"role": "user", "content": content, "type": "transcribed", "turn_id": turn}


def bot(turn: int, content: str) -> Json:
    return {"role": "assistant", "content": content, "type": "intended", "turn_id": turn}


def call_of(turn: int, parameters: Any, name: str = "find") -> Json:
    return {"tool_name": name, "parameters": parameters, "type": "tool_call", "turn_id": turn}


def answer_of(turn: int, answer: Any, name: str = "find") -> Json:
    return {"tool_name": name, "tool_response": answer, "type": "tool_response", "turn_id": turn}


def one_tool(parameters: Any, answer: Any) -> Json:
    return {
        "num_tool_calls": 1,
        "tool_called": ["find"],
        "tools_called": ["find"],
        "tool_params": [{"tool_name": "find", "tool_parameters": parameters}],
        "tool_responses": [{"tool_name": "find", "tool_response": answer}],
    }


NO_TOOL: Final[Json] = {
    "num_tool_calls": 0,
    "tool_called": [],
    "tools_called": [],
    "tool_params": [],
    "tool_responses": [],
}


TOOLS: Final = '[{"type": "function", "name": "find", "parameters": {"type": "object"}}]'
OF_MODEL: Final[Json] = {
    "gen_ai__system_instructions": '[{"type": "text", "content": "Be short."}]',
    "gen_ai__tool__definitions": TOOLS,
}
TOLD: Final[Json] = {
    "agent_instructions": "Be short.",
    "agent_tools": [{"name": "find", "parameters": {"type": "object"}, "tool_type": None}],
}
"""What the agent was told, in spans of its model and in the context."""


def expected(trace: list[Json], unknown: set[str], **fields: Any) -> Json:
    """The whole context."""
    flags: Json = {"pipeline_type": "cascade", "is_audio_native": False, "turns_by": "bot"}
    return {**flags, "conversation_trace": trace, "unknown": NEVER_TOLD | unknown, **fields}


# pipecat by its events: a greeting, a tool between two parts of an answer, a late transcript, an
# answer that is cut off.

PIPECAT: Final = [
    event(
        "call_started",
        0,
        agent="desk",
        pipeline_type="cascade",
        role="You answer for the desk.",
        instructions="Be short.",
        current_date_time="2026-09-21 14:13",
        tools=[{"name": "find", "parameters": {"type": "object"}}],
    ),
    voiced(0.4, "Welcome to the desk."),
    *spoke("bot_speech", 0.5, 2.5),
    said("assistant", 2.5, "Welcome to the desk.", timestamp=T0_S + 0.5, interrupted=False),
    *spoke("user_speech", 3.0, 4.5),
    *spoke("user_turn", 3.2, 4.9),
    said("user", 5.0, "Where is my badge?", timestamp=T0_S + 3.2),
    voiced(5.3, "Let me look."),
    *spoke("bot_speech", 5.4, 6.4),
    said("assistant", 6.4, "Let me look.", timestamp=T0_S + 5.3, interrupted=False),
    tool("in_progress", 6.5, function_name="find", arguments={"n": 1}),
    tool(
        "completed",
        7.5,
        function_name="find",
        result={"status": "ok", "room": 7},
        in_progress_at=T0_S + 6.5,
    ),
    voiced(7.9, "It is in room seven."),
    *spoke("bot_speech", 8.0, 9.5),
    said("assistant", 9.5, "It is in room seven.", timestamp=T0_S + 7.9, interrupted=False),
    *spoke("user_speech", 11.0, 12.0),
    *spoke("user_turn", 11.2, 12.4),
    voiced(12.9, "Your key is at the gate, and it opens at nine."),
    *spoke("bot_speech", 13.0, 15.2),
    said("user", 13.6, "And my key?", timestamp=T0_S + 11.2),
    *spoke("user_speech", 15.0, 16.0),
    *spoke("user_turn", 15.1, 16.4),
    said("assistant", 15.3, "Your key is at the gate,", timestamp=T0_S + 12.9, interrupted=True),
    said("user", 16.5, "Thank you, bye.", timestamp=T0_S + 15.1),
    voiced(16.9, "Goodbye."),
    *spoke("bot_speech", 17.0, 18.0),
    said("assistant", 18.0, "Goodbye.", timestamp=T0_S + 16.9, interrupted=False),
    event("call_ended", 19.0, reason="goodbye"),
]
IN_ORDER: Final = sorted(PIPECAT, key=lambda each: int(each["timestamp"]))
OF_PIPECAT: Final = expected(
    [
        bot(0, "Welcome to the desk."),
        user(1, "Where is my badge?"),
        bot(1, "Let me look."),
        call_of(1, {"n": 1}),
        answer_of(1, {"status": "ok", "room": 7}),
        bot(1, "It is in room seven."),
        user(2, "And my key?"),
        bot(2, "Your key is at the gate,"),
        user(3, "Thank you, bye."),
        bot(3, "Goodbye."),
    ],
    set(),
    **one_tool({"n": 1}, {"status": "ok", "room": 7}),
    transcribed_user_turns={"1": "Where is my badge?", "2": "And my key?", "3": "Thank you, bye."},
    transcribed_assistant_turns={"2": "Your key is at the gate,"},
    intended_assistant_turns={
        "0": "Welcome to the desk.",
        "1": "Let me look. It is in room seven.",
        "2": "Your key is at the gate, and it opens at nine.",
        "3": "Goodbye.",
    },
    audio_timestamps_user_turns={"1": [[3.0, 4.5]], "2": [[11.0, 12.0]], "3": [[15.0, 16.0]]},
    audio_timestamps_assistant_turns={
        "0": [[0.5, 2.5]],
        "1": [[5.4, 6.4], [8.0, 9.5]],
        "2": [[13.0, 15.2]],
        "3": [[17.0, 18.0]],
    },
    num_turns=3,
    num_user_turns=3,
    num_assistant_turns=4,
    assistant_interrupted_turns=[],
    user_interrupted_turns=[3],
    latency_assistant_turns={"1": 0.9, "2": 1.0, "3": 1.0},
    conversation_ended_reason="goodbye",
    conversation_finished=True,
    duration_seconds=19.0,
    agent_id="desk",
    agent_role="You answer for the desk.",
    agent_instructions="Be short.",
    current_date_time="2026-09-21 14:13",
    agent_tools=[{"name": "find", "parameters": {"type": "object"}, "tool_type": None}],
)


def test_pipecat_by_its_events() -> None:
    assert context_of(IN_ORDER) == OF_PIPECAT


@pytest.mark.parametrize("are_timed", [True, False])
def test_the_order_of_answers_and_tools_is_that_of_their_sounds_when_messages_alone_have_the_words(
    *, are_timed: bool
) -> None:
    events = [dict(each) for each in IN_ORDER if each["type"] != "tts_text"]
    for each in events:
        if each["type"].endswith("_message") and not are_timed:
            each["data"] = {
                name: value for name, value in each["data"].items() if name != "timestamp"
            }
    intended = {**OF_PIPECAT["intended_assistant_turns"], "2": "Your key is at the gate,"}
    assert context_of(events) == {
        **OF_PIPECAT,
        "intended_assistant_turns": intended,
        "unknown": {*NEVER_TOLD, "intended_assistant_turns"},
    }


# pipecat by its spans: no span has an end of speech, so there is no sound, and the wait is from the
# transcript.


def test_pipecat_by_the_spans_of_separate_services(tmp_path: Path) -> None:
    found = of_spans(
        tmp_path,
        span("tts", 1.0, 3.0, text="Welcome.", metrics__ttfb=0.2),
        span("stt", 10.0, 12.31, transcript="Where is my badge?", is_final=True),
        span(
            "llm",
            12.4,
            13.0,
            output="Let me look.",
            tools=TOOLS,
            gen_ai__system_instructions="Be short.",
        ),
        span("tts", 13.1, 15.0, text="Let me look.", metrics__ttfb=0.2),
        span(
            "execute_tool find",
            15.1,
            15.4,
            gen_ai__operation__name="execute_tool",
            gen_ai__tool__name="find",
            gen_ai__tool__call__id="t-1",
            gen_ai__tool__call__arguments='{"n": 1}',
            gen_ai__tool__call__result='{"room": 7}',
        ),
        span("tts", 15.6, 17.0, text="It is in room seven.", metrics__ttfb=0.2),
        span("stt", 20.0, 22.31, transcript="Thank you.", is_final=False),
        span("tts", 23.1, 24.0, text="Goodbye.", metrics__ttfb=0.2),
        span("conversation", 0.0, 40.0, conversation__type="voice"),
    )
    assert found == expected(
        [
            bot(0, "Welcome."),
            user(1, "Where is my badge?"),
            bot(1, "Let me look."),
            call_of(1, {"n": 1}),
            answer_of(1, {"room": 7}),
            bot(1, "It is in room seven."),
            user(2, "Thank you."),
            bot(2, "Goodbye."),
        ],
        {"agent_role", "current_date_time", *SOUNDS, *OVERLAPS, *END, "pipeline_type"},
        **one_tool({"n": 1}, {"room": 7}),
        **TOLD,
        transcribed_user_turns={"1": "Where is my badge?", "2": "Thank you."},
        intended_assistant_turns={
            "0": "Welcome.",
            "1": "Let me look. It is in room seven.",
            "2": "Goodbye.",
        },
        num_turns=2,
        num_user_turns=2,
        num_assistant_turns=3,
        latency_assistant_turns={"1": 0.99, "2": 0.99},
        duration_seconds=40.0,
        agent_id="desk",
    )


def test_pipecat_by_the_spans_of_a_realtime_model(tmp_path: Path) -> None:
    found = of_spans(
        tmp_path,
        span("llm_setup", 0.1, 0.2, session__instructions="Be short.", tools__definitions=TOOLS),
        span("llm_response", 0.9, 0.91, output="Welcome."),
        span("stt", 3.4, 3.41, transcript="Where is my badge?"),
        span(
            "llm_tool_call",
            4.0,
            4.01,
            tool__function_name="find",
            tool__call_id="t-1",
            tool__arguments='{"n": 1}',
        ),
        span(
            "llm_tool_result",
            4.9,
            4.91,
            tool__function_name="find",
            tool__call_id="t-1",
            tool__result='{"error": "timeout"}',
            tool__result_status="error",
        ),
        span("llm_response", 6.5, 6.51, output="I cannot find it."),
        span("turn", 1.0, 12.0, turn__user_bot_latency_seconds=0.9),
        span("stt", 15.4, 15.41, transcript="A pity."),
        span("llm_response", 18.5, 18.51, output="Goodbye."),
        span("turn", 13.0, 24.0, turn__user_bot_latency_seconds=1.2),
        span("conversation", 0.0, 25.0),
    )
    assert found == expected(
        [
            bot(0, "Welcome."),
            user(1, "Where is my badge?"),
            call_of(1, {"n": 1}),
            answer_of(1, {"error": "timeout"}),
            bot(1, "I cannot find it."),
            user(2, "A pity."),
            bot(2, "Goodbye."),
        ],
        {"agent_role", "current_date_time", *SOUNDS, *OVERLAPS, *END, "pipeline_type"},
        **one_tool({"n": 1}, {"error": "timeout"}),
        **TOLD,
        transcribed_user_turns={"1": "Where is my badge?", "2": "A pity."},
        intended_assistant_turns={"0": "Welcome.", "1": "I cannot find it.", "2": "Goodbye."},
        num_turns=2,
        num_user_turns=2,
        num_assistant_turns=3,
        latency_assistant_turns={"1": 0.9, "2": 1.2},
        duration_seconds=25.0,
        agent_id="desk",
    )


# LiveKit, by its observer and by its spans: the same call. Only spans have the words that the model
# wrote.

LIVEKIT_SOUNDS: Final[Json] = {
    "audio_timestamps_user_turns": {"1": [[4.0, 6.0]], "2": [[8.5, 9.4]]},
    "audio_timestamps_assistant_turns": {"0": [[0.8, 2.5]], "1": [[7.2, 8.8]], "2": [[10.5, 11.5]]},
    "assistant_interrupted_turns": [],
    "user_interrupted_turns": [2],
    "latency_assistant_turns": {"1": 1.2, "2": 1.1},
    "num_turns": 2,
    "num_user_turns": 2,
    "num_assistant_turns": 3,
    "transcribed_user_turns": {"1": "Which rooms are free?", "2": "The red one."},
    "transcribed_assistant_turns": {"1": "We have four rooms"},
}
LIVEKIT_TRACE: Final = [
    bot(0, "Welcome."),
    user(1, "Which rooms are free?"),
    call_of(1, {"n": 1}),
    answer_of(1, "four"),
    bot(1, "We have four rooms"),
    user(2, "The red one."),
    bot(2, "It is yours."),
]


def test_livekit_by_our_observer() -> None:
    events = [
        event("call_started", 0, agent="desk"),
        event("call_started", 0.1, instructions="Rent rooms.", tools=[{"name": "find"}]),
        *spoke("bot_speech", 0.8, 2.5),
        said("assistant", 2.6, "Welcome.", timestamp=T0_S + 0.8, interrupted=False),
        *spoke("user_speech", 4.0, 6.0),
        said("user", 6.6, "Which rooms are free?", timestamp=T0_S + 4.0),
        tool("in_progress", 6.7, function_name="find", arguments={"n": 1}),
        tool("completed", 7.0, function_name="find", result="four", in_progress_at=T0_S + 6.7),
        *spoke("bot_speech", 7.2, 8.8),
        *spoke("user_speech", 8.5, 9.4),
        event(
            "speech_event",
            8.8,
            data={"kind": "interruption", "timestamp": T0_S + 8.8, "cause": "user_speech"},
        ),
        said("assistant", 8.9, "We have four rooms", timestamp=T0_S + 7.2, interrupted=True),
        said("user", 10.0, "The red one.", timestamp=T0_S + 8.5),
        *spoke("bot_speech", 10.5, 11.5),
        said("assistant", 11.6, "It is yours.", timestamp=T0_S + 10.5, interrupted=False),
        event("call_ended", 12.0, reason="user_initiated"),
    ]
    assert context_of(sorted(events, key=lambda each: int(each["timestamp"]))) == expected(
        LIVEKIT_TRACE,
        # Only the heard part of the answer that was cut off is known, and not what was to be said.
        {"agent_role", "current_date_time", "pipeline_type", "intended_assistant_turns"},
        **one_tool({"n": 1}, "four"),
        **LIVEKIT_SOUNDS,
        intended_assistant_turns={"0": "Welcome.", "1": "We have four rooms", "2": "It is yours."},
        conversation_ended_reason="user_initiated",
        conversation_finished=False,
        duration_seconds=12.0,
        agent_id="desk",
        agent_instructions="Rent rooms.",
        agent_tools=[{"name": "find", "parameters": None, "tool_type": None}],
    )


def test_livekit_by_its_spans(tmp_path: Path) -> None:
    found = of_spans(
        tmp_path,
        span("agent_turn", 0.5, 2.6, lk__pii__response__text="Welcome.", lk__interrupted=False),
        span("agent_speaking", 0.8, 2.5),
        span("user_speaking", 4.0, 6.0),
        span("user_turn", 4.0, 6.6, lk__pii__user_transcript="Which rooms are free?"),
        span(
            "function_tool",
            6.7,
            7.0,
            lk__function_tool__id="t-1",
            lk__function_tool__name="find",
            lk__pii__function_tool__arguments='{"n": 1}',
            lk__pii__function_tool__output="four",
        ),
        span(
            "llm_node",
            7.0,
            7.5,
            lk__pii__response__text="We have four rooms left. The red one is large.",
            **OF_MODEL,
        ),
        span("agent_speaking", 7.2, 8.8),
        span("user_speaking", 8.5, 9.4),
        span(
            "agent_turn",
            6.6,
            8.9,
            lk__pii__response__text="We have four rooms",
            lk__interrupted=True,
        ),
        span("user_turn", 8.5, 10.0, lk__pii__user_transcript="The red one."),
        span("llm_node", 10.0, 10.4, lk__pii__response__text="It is yours."),
        span("agent_speaking", 10.5, 11.5),
        span(
            "agent_turn", 10.0, 11.6, lk__pii__response__text="It is yours.", lk__interrupted=False
        ),
        span(
            "agent_session", 0.0, 12.0, lk__agent_name="billing", lk__close_reason="user_initiated"
        ),
    )
    assert found == expected(
        LIVEKIT_TRACE,
        {"agent_role", "current_date_time", "pipeline_type"},
        **one_tool({"n": 1}, "four"),
        **LIVEKIT_SOUNDS,
        **TOLD,
        intended_assistant_turns={
            "0": "Welcome.",
            "1": "We have four rooms left. The red one is large.",
            "2": "It is yours.",
        },
        conversation_ended_reason="user_initiated",
        conversation_finished=False,
        duration_seconds=12.0,
        agent_id="billing",
    )


# ElevenLabs, while the call runs and by its record: no sound, but the agent says itself that it was
# cut off.


def of_elevenlabs(kind: str, at_s: float, inside: str, **data: Any) -> Json:
    return event(kind, at_s, **{inside: data})


def heard_by_elevenlabs(at_s: float, words: str, event_id: int) -> Json:
    return of_elevenlabs(
        "user_transcript",
        at_s,
        "user_transcription_event",
        user_transcript=words,
        event_id=event_id,
    )


def said_by_elevenlabs(at_s: float, words: str, event_id: int) -> Json:
    return of_elevenlabs(
        "agent_response", at_s, "agent_response_event", agent_response=words, event_id=event_id
    )


ELEVENLABS: Final = [
    of_elevenlabs(
        "conversation_initiation_metadata",
        0,
        "conversation_initiation_metadata_event",
        conversation_id="c",
    ),
    said_by_elevenlabs(0.5, "Welcome.", 1),
    heard_by_elevenlabs(6.0, "Where is my badge?", 5),
    of_elevenlabs(
        "client_tool_call",
        6.2,
        "client_tool_call",
        tool_name="find",
        tool_call_id="t-1",
        parameters={"n": 1},
        event_id=6,
    ),
    of_elevenlabs(
        "agent_tool_request",
        6.2,
        "agent_tool_request",
        tool_name="find",
        tool_call_id="t-1",
        tool_type="client",
        parameters={"n": 1},
        event_id=6,
    ),
    of_elevenlabs(
        "agent_tool_response_full_payload",
        6.7,
        "agent_tool_response_full_payload",
        tool_name="find",
        tool_call_id="t-1",
        tool_type="client",
        is_error=False,
        is_called=True,
        full_tool_result='{"room": 7}',
        event_id=7,
    ),
    said_by_elevenlabs(7.1, "It is in room seven, behind the gate.", 8),
    of_elevenlabs("interruption", 8.5, "interruption_event", event_id=9),
    of_elevenlabs(
        "agent_response_correction",
        8.6,
        "agent_response_correction_event",
        event_id=8,
        original_agent_response="It is in room seven, behind the gate.",
        corrected_agent_response="It is in room seven,",
    ),
    heard_by_elevenlabs(10.0, "Thank you.", 12),
    said_by_elevenlabs(10.8, "Goodbye.", 14),
]
ELEVENLABS_TURNS: Final[Json] = {
    "transcribed_user_turns": {"1": "Where is my badge?", "2": "Thank you."},
    "transcribed_assistant_turns": {"1": "It is in room seven,"},
    "intended_assistant_turns": {
        "0": "Welcome.",
        "1": "It is in room seven, behind the gate.",
        "2": "Goodbye.",
    },
    "num_turns": 2,
    "num_user_turns": 2,
    "num_assistant_turns": 3,
    "user_interrupted_turns": [2],
}
ELEVENLABS_TRACE: Final = [
    bot(0, "Welcome."),
    user(1, "Where is my badge?"),
    call_of(1, {"n": 1}),
    answer_of(1, {"room": 7}),
    bot(1, "It is in room seven,"),
    user(2, "Thank you."),
    bot(2, "Goodbye."),
]


def test_elevenlabs_while_the_call_runs() -> None:
    assert context_of(ELEVENLABS) == expected(
        ELEVENLABS_TRACE,
        {*OF_THE_AGENT, *SOUNDS, *END, "assistant_interrupted_turns", "agent_id", "pipeline_type"},
        **one_tool({"n": 1}, {"room": 7}),
        **ELEVENLABS_TURNS,
        latency_assistant_turns={"1": 1.1, "2": 0.8},
        duration_seconds=10.8,
    )


RECORD: Final[Json] = {
    "conversation_id": "c",
    "agent_id": "agent_7",
    "agent_name": "desk",
    "status": "done",
    "metadata": {
        "start_time_unix_secs": T0_S,
        "call_duration_secs": 14,
        "termination_reason": "Client disconnected",
    },
    "conversation_initiation_client_data": {
        "conversation_config_override": {"agent": {"prompt": {"prompt": "Be short."}}}
    },
    "transcript": [
        {"role": "agent", "message": "Welcome.", "time_in_call_secs": 0},
        {"role": "user", "message": "Where is my badge?", "time_in_call_secs": 4},
        {
            "role": "agent",
            "message": None,
            "time_in_call_secs": 6,
            "tool_calls": [
                {
                    "type": "client",
                    "request_id": "t-1",
                    "tool_name": "find",
                    "params_as_json": '{"n": 1}',
                }
            ],
            "tool_results": [
                {
                    "type": "client",
                    "request_id": "t-1",
                    "tool_name": "find",
                    "result_value": '{"room": 7}',
                    "is_error": False,
                    "tool_latency_secs": 0.5,
                }
            ],
        },
        {
            "role": "agent",
            "message": "It is in room seven,",
            "original_message": "It is in room seven, behind the gate.",
            "interrupted": True,
            "time_in_call_secs": 7,
            "conversation_turn_metrics": {
                "metrics": {"convai_ttf_audio_since_silence": {"elapsed_time": 1.7}}
            },
        },
        {"role": "user", "message": "Thank you.", "time_in_call_secs": 10},
        {
            "role": "agent",
            "message": "Goodbye.",
            "time_in_call_secs": 12,
            "conversation_turn_metrics": {
                "metrics": {"convai_ttf_audio_since_silence": {"elapsed_time": 0.9}}
            },
        },
    ],
}


def test_elevenlabs_by_its_record_alone(tmp_path: Path) -> None:
    path = tmp_path / "conversation.json"
    path.write_text(json.dumps(RECORD))
    assert context_of(path) == expected(
        ELEVENLABS_TRACE,
        {
            *SOUNDS,
            "agent_role",
            "agent_tools",
            "current_date_time",
            "assistant_interrupted_turns",
            "pipeline_type",
        },
        **one_tool({"n": 1}, {"room": 7}),
        **ELEVENLABS_TURNS,
        latency_assistant_turns={"1": 1.7, "2": 0.9},
        duration_seconds=14.0,
        agent_id="agent_7",
        agent_instructions="Be short.",
        conversation_ended_reason="Client disconnected",
        conversation_finished=False,
    )


# OpenAI's realtime API: one model hears and speaks; the transcript of the user comes when it likes.


def heard_by_openai(kind: str, at_s: float, item: str) -> Json:
    return event(f"input_audio_buffer.speech_{kind}", at_s, item_id=item, silence_duration_ms=500)


def understood_by_openai(at_s: float, item: str, words: str) -> Json:
    kind = "conversation.item.input_audio_transcription.completed"
    return event(kind, at_s, item_id=item, content_index=0, transcript=words)


OPENAI: Final = [
    event("call_started", 0, agent="desk"),
    event(
        "session.updated",
        0.2,
        session={
            "type": "realtime",
            "output_modalities": ["audio"],
            "instructions": "Be short.",
            "tools": [
                {
                    "type": "function",
                    "name": "find",
                    "description": "Finds.",
                    "parameters": {"type": "object"},
                }
            ],
        },
    ),
    event("output_audio_buffer.started", 1.0),
    event("response.output_audio_transcript.done", 1.2, transcript="Welcome."),
    event("output_audio_buffer.stopped", 2.0),
    heard_by_openai("started", 3.0, "i-1"),
    heard_by_openai("stopped", 5.0, "i-1"),
    event(
        "response.function_call_arguments.done",
        5.3,
        call_id="t-1",
        name="find",
        arguments='{"n": 1}',
    ),
    event(
        "conversation.item.create",
        5.8,
        item={"type": "function_call_output", "call_id": "t-1", "output": '{"room": 7}'},
    ),
    event("output_audio_buffer.started", 6.0),
    event("response.output_audio_transcript.done", 6.4, transcript="It is in room seven."),
    understood_by_openai(6.6, "i-1", "Where is my badge?"),
    heard_by_openai("started", 7.0, "i-2"),
    event("output_audio_buffer.cleared", 7.2),
    event(
        "response.done",
        7.2,
        response={
            "status": "cancelled",
            "status_details": {"reason": "turn_detected"},
            "output": [],
        },
    ),
    heard_by_openai("stopped", 8.5, "i-2"),
    understood_by_openai(8.8, "i-2", "Thank you."),
    event("output_audio_buffer.started", 9.0),
    event("response.output_audio_transcript.done", 9.3, transcript="Goodbye."),
    event("output_audio_buffer.stopped", 10.0),
    event("call_ended", 11.0, reason="goodbye"),
]


def test_openai_s_realtime_api() -> None:
    assert context_of(OPENAI) == expected(
        [
            bot(0, "Welcome."),
            user(1, "Where is my badge?"),
            call_of(1, {"n": 1}),
            answer_of(1, {"room": 7}),
            bot(1, "It is in room seven."),
            user(2, "Thank you."),
            bot(2, "Goodbye."),
        ],
        {"agent_role", "current_date_time"},
        **one_tool({"n": 1}, {"room": 7}),
        transcribed_user_turns={"1": "Where is my badge?", "2": "Thank you."},
        intended_assistant_turns={"0": "Welcome.", "1": "It is in room seven.", "2": "Goodbye."},
        audio_timestamps_user_turns={"1": [[3.0, 4.5]], "2": [[7.0, 8.0]]},
        audio_timestamps_assistant_turns={"0": [[1.0, 2.0]], "1": [[6.0, 7.2]], "2": [[9.0, 10.0]]},
        num_turns=2,
        num_user_turns=2,
        num_assistant_turns=3,
        assistant_interrupted_turns=[],
        user_interrupted_turns=[2],
        latency_assistant_turns={"1": 1.5, "2": 1.0},
        conversation_ended_reason="goodbye",
        conversation_finished=True,
        duration_seconds=11.0,
        agent_id="desk",
        agent_instructions="Be short.",
        pipeline_type="s2s",
        is_audio_native=True,
        agent_tools=[{"name": "find", "parameters": {"type": "object"}, "tool_type": None}],
    )


# Vapi, while the call runs and by its report: the same call.

ASSISTANT: Final[Json] = {
    "name": "desk",
    "model": {
        "provider": "openai",
        "model": "gpt-4o",
        "messages": [{"role": "system", "content": "Be short."}],
        "tools": [
            {"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}
        ],
    },
}


def of_vapi(kind: str, at_s: float, **fields: Any) -> Json:
    return {
        "message": {
            "type": kind,
            "timestamp": ms(at_s),
            "call": {"id": "c", "assistantId": "a-1"},
            **fields,
        }
    }


def spoke_to_vapi(role: str, begin_s: float, end_s: float) -> list[Json]:
    return [
        of_vapi("speech-update", at_s, role=role, status=status)
        for status, at_s in (("started", begin_s), ("stopped", end_s))
    ]


def heard_by_vapi(role: str, at_s: float, words: str) -> Json:
    return of_vapi("transcript", at_s, role=role, transcriptType="final", transcript=words)


FOUND: Final[Json] = {
    "id": "t-1",
    "type": "function",
    "function": {"name": "find", "arguments": '{"n": 1}'},
}
VAPI: Final = [
    of_vapi("status-update", 0, status="in-progress", assistant=ASSISTANT),
    *spoke_to_vapi("assistant", 0.5, 1.5),
    heard_by_vapi("assistant", 1.4, "Welcome."),
    *spoke_to_vapi("user", 3.0, 5.0),
    heard_by_vapi("user", 5.2, "Where is my badge?"),
    of_vapi("tool-calls", 5.3, toolCallList=[FOUND]),
    *spoke_to_vapi("assistant", 6.0, 7.4),
    heard_by_vapi("assistant", 6.8, "It is in room seven."),
    *spoke_to_vapi("user", 7.0, 8.0),
    of_vapi("user-interrupted", 7.1),
    heard_by_vapi("user", 8.2, "Thank you."),
    *spoke_to_vapi("assistant", 9.0, 9.8),
    heard_by_vapi("assistant", 9.7, "Goodbye."),
    of_vapi("status-update", 11.0, status="ended", endedReason="customer-ended-call"),
]
VAPI_TURNS: Final[Json] = {
    "transcribed_user_turns": {"1": "Where is my badge?", "2": "Thank you."},
    "intended_assistant_turns": {"0": "Welcome.", "1": "It is in room seven.", "2": "Goodbye."},
    "audio_timestamps_user_turns": {"1": [[3.0, 5.0]], "2": [[7.0, 8.0]]},
    "audio_timestamps_assistant_turns": {"0": [[0.5, 1.5]], "1": [[6.0, 7.4]], "2": [[9.0, 9.8]]},
    "num_turns": 2,
    "num_user_turns": 2,
    "num_assistant_turns": 3,
    "assistant_interrupted_turns": [],
    "user_interrupted_turns": [2],
    "latency_assistant_turns": {"1": 1.0, "2": 1.0},
    "conversation_ended_reason": "customer-ended-call",
    "conversation_finished": False,
    "duration_seconds": 11.0,
    "agent_id": "desk",
    "agent_instructions": "Be short.",
    "agent_tools": [{"name": "find", "parameters": {"type": "object"}, "tool_type": None}],
}
BY_VAPI: Final = {"agent_role", "current_date_time", "pipeline_type"}


def test_vapi_while_the_call_runs() -> None:
    in_order = sorted(VAPI, key=lambda each: int(each["message"]["timestamp"]))
    assert context_of(in_order) == expected(
        [
            bot(0, "Welcome."),
            user(1, "Where is my badge?"),
            call_of(1, {"n": 1}),
            bot(1, "It is in room seven."),
            user(2, "Thank you."),
            bot(2, "Goodbye."),
        ],
        {*BY_VAPI, "tool_responses"},  # no message has an answer of a tool
        **{
            name: value
            for name, value in one_tool({"n": 1}, None).items()
            if name != "tool_responses"
        }
        | VAPI_TURNS,
    )


def test_vapi_by_its_report_alone() -> None:
    def entry(role: str, begin_s: float, end_s: float | None = None, **fields: Any) -> Json:
        return {
            "role": role,
            "time": ms(begin_s),
            **({} if end_s is None else {"endTime": ms(end_s)}),
            **fields,
        }

    entries = [
        entry("system", 0.0, message="Be short."),
        entry("bot", 0.5, 1.5, message="Welcome."),
        entry("user", 3.0, 5.0, message="Where is my badge?"),
        entry("tool_calls", 5.3, toolCalls=[FOUND]),
        entry("tool_call_result", 5.7, toolCallId="t-1", name="find", result='{"room": 7}'),
        entry("bot", 6.0, 7.4, message="It is in room seven."),
        entry("user", 7.0, 8.0, message="Thank you."),
        entry("bot", 9.0, 9.8, message="Goodbye."),
    ]
    report = of_vapi(
        "end-of-call-report",
        30.0,
        assistant=ASSISTANT,
        startedAt=ms(0),
        endedAt=ms(11.0),
        endedReason="customer-ended-call",
        artifact={"messages": entries},
    )
    assert context_of([report]) == expected(
        [
            bot(0, "Welcome."),
            user(1, "Where is my badge?"),
            call_of(1, {"n": 1}),
            answer_of(1, {"room": 7}),
            bot(1, "It is in room seven."),
            user(2, "Thank you."),
            bot(2, "Goodbye."),
        ],
        BY_VAPI,
        **one_tool({"n": 1}, {"room": 7}) | VAPI_TURNS,
    )


# Spans in the names of the conventions alone: tools, and nobody's words.


def test_spans_of_the_conventions_alone(tmp_path: Path) -> None:
    found = of_spans(
        tmp_path,
        span(
            "chat gpt-4o",
            1.0,
            2.0,
            gen_ai__operation__name="chat",
            gen_ai__usage__input_tokens=10,
            **OF_MODEL,
        ),
        span(
            "execute_tool find",
            2.0,
            2.5,
            gen_ai__operation__name="execute_tool",
            gen_ai__tool__name="find",
            gen_ai__tool__call__id="t-1",
            gen_ai__tool__call__arguments='{"n": 1}',
            gen_ai__tool__call__result='{"room": 7}',
        ),
        span(
            "chat gpt-4o", 2.6, 3.0, gen_ai__operation__name="chat", gen_ai__usage__input_tokens=20
        ),
    )
    assert found == expected(
        [call_of(0, {"n": 1}), answer_of(0, {"room": 7})],
        {
            "agent_role",
            "current_date_time",
            *SOUNDS,
            *OVERLAPS,
            *END,
            "pipeline_type",
            "transcribed_user_turns",
            "intended_assistant_turns",
        },
        **one_tool({"n": 1}, {"room": 7}),
        **TOLD,
        num_turns=0,
        num_user_turns=0,
        num_assistant_turns=0,
        latency_assistant_turns={},
        duration_seconds=2.0,
        agent_id="desk",
    )


# Deepgram's agent: the caller's words are the ruling that the turn is over.


def test_deepgram_s_voice_agent() -> None:
    events = [
        event("call_started", 0, agent="desk"),
        event("AgentStartedSpeaking", 0.5),
        event("ConversationText", 0.6, role="assistant", content="Welcome."),
        event("AgentAudioDone", 1.5),
        event("UserStartedSpeaking", 3.0),
        event("ConversationText", 5.0, role="user", content="Where is my badge?"),
        event(
            "FunctionCallRequest",
            5.2,
            functions=[{"id": "t-1", "name": "find", "arguments": '{"n": 1}'}],
        ),
        event("FunctionCallResponse", 5.6, id="t-1", name="find", content='{"room": 7}'),
        event("AgentStartedSpeaking", 6.0),
        event("ConversationText", 6.1, role="assistant", content="It is in room seven."),
        event("UserStartedSpeaking", 7.0),
        event("AgentAudioDone", 7.2),
        event("ConversationText", 8.0, role="user", content="Thank you."),
        event("AgentStartedSpeaking", 9.0),
        event("ConversationText", 9.1, role="assistant", content="Goodbye."),
        event("AgentAudioDone", 9.8),
        event("call_ended", 11.0, reason="goodbye"),
    ]
    assert context_of(events) == expected(
        [
            bot(0, "Welcome."),
            user(1, "Where is my badge?"),
            call_of(1, {"n": 1}),
            answer_of(1, {"room": 7}),
            bot(1, "It is in room seven."),
            user(2, "Thank you."),
            bot(2, "Goodbye."),
        ],
        {*OF_THE_AGENT, "pipeline_type"},
        **one_tool({"n": 1}, {"room": 7}),
        transcribed_user_turns={"1": "Where is my badge?", "2": "Thank you."},
        intended_assistant_turns={"0": "Welcome.", "1": "It is in room seven.", "2": "Goodbye."},
        audio_timestamps_user_turns={"1": [[3.0, 5.0]], "2": [[7.0, 8.0]]},
        audio_timestamps_assistant_turns={"0": [[0.5, 1.5]], "1": [[6.0, 7.2]], "2": [[9.0, 9.8]]},
        num_turns=2,
        num_user_turns=2,
        num_assistant_turns=3,
        assistant_interrupted_turns=[],
        user_interrupted_turns=[2],
        latency_assistant_turns={"1": 1.0, "2": 1.0},
        conversation_ended_reason="goodbye",
        conversation_finished=True,
        duration_seconds=11.0,
        agent_id="desk",
    )


# Any other framework: rulings in the place of a detector, a message of each turn, nothing else. The
# caller speaks first.


def test_a_framework_of_one_s_own() -> None:
    events = [
        event("call_started", 0, agent="desk"),
        *spoke("user_turn", 1.0, 2.0),
        said("user", 2.1, "Hello?"),
        *spoke("bot_speech", 2.8, 4.0),
        said("assistant", 4.0, "Welcome."),
        *spoke("user_turn", 5.0, 6.0),
        said("user", 6.1, "Where is my badge?"),
        tool("in_progress", 6.2, function_name="find", arguments={"n": 1}),
        tool("failed", 6.6, function_name="find", error="no such badge"),
        *spoke("bot_speech", 7.0, 8.0),
        said("assistant", 8.0, "I cannot find it."),
        event("call_ended", 9.0, reason="timeout"),
    ]
    failed = {"status": "error", "message": "no such badge"}
    assert context_of(events) == expected(
        [
            user(1, "Hello?"),
            bot(1, "Welcome."),
            user(2, "Where is my badge?"),
            call_of(2, {"n": 1}),
            answer_of(2, failed),
            bot(2, "I cannot find it."),
        ],
        {*OF_THE_AGENT, "pipeline_type"},
        **one_tool({"n": 1}, failed),
        transcribed_user_turns={"1": "Hello?", "2": "Where is my badge?"},
        intended_assistant_turns={"1": "Welcome.", "2": "I cannot find it."},
        audio_timestamps_user_turns={"1": [[1.0, 2.0]], "2": [[5.0, 6.0]]},
        audio_timestamps_assistant_turns={"1": [[2.8, 4.0]], "2": [[7.0, 8.0]]},
        num_turns=2,
        num_user_turns=2,
        num_assistant_turns=2,
        assistant_interrupted_turns=[],
        user_interrupted_turns=[],
        latency_assistant_turns={"1": 0.8, "2": 1.0},
        conversation_ended_reason="timeout",
        conversation_finished=False,
        duration_seconds=9.0,
        agent_id="desk",
    )


# Logs in EVA's shape of a call that no simulated caller hears: the audit log, and pipecat's.


def entry(kind: str, at_s: float, value: Any, **more: Any) -> Json:
    return {
        "conversation_id": "c",
        "message_type": kind,
        "timestamp": str(ms(at_s)),
        "value": value,
        **more,
    }


@pytest.mark.parametrize("pipeline", ["cascade", "audio_llm", "s2s"])
def test_logs_in_eva_s_shape_without_a_simulated_caller(pipeline: str) -> None:
    events = [
        event("call_started", 0, agent="desk", pipeline_type=pipeline),
        voiced(0.5, "Welcome."),
        entry("user", 5.0, "Where is my badge?"),
        entry("tool_call", 5.2, {"tool": "find", "parameters": {"n": 1}}),
        entry("tool_response", 5.6, {"tool": "find", "response": {"status": "success", "room": 7}}),
        entry("assistant", 5.9, "It is in room seven."),
        voiced(6.0, "It is in room seven."),
        entry("user", 8.0, "Thank you."),
        entry("assistant", 8.9, "Goodbye."),
        voiced(9.0, "Goodbye."),
        event("call_ended", 11.0, reason="goodbye"),
    ]
    is_native = pipeline != "cascade"
    unmeasured = {"latency_assistant_turns"} if is_native else set()
    assert context_of(events) == expected(
        [
            bot(0, "Welcome."),
            user(1, "Where is my badge?"),
            call_of(1, {"n": 1}),
            answer_of(1, {"status": "success", "room": 7}),
            bot(1, "It is in room seven."),
            user(2, "Thank you."),
            bot(2, "Goodbye."),
        ],
        {*OF_THE_AGENT, *SOUNDS, *OVERLAPS, *unmeasured},
        **one_tool({"n": 1}, {"status": "success", "room": 7}),
        transcribed_user_turns={"1": "Where is my badge?", "2": "Thank you."},
        intended_assistant_turns={"0": "Welcome.", "1": "It is in room seven.", "2": "Goodbye."},
        num_turns=2,
        num_user_turns=2,
        num_assistant_turns=3,
        # Where the model hears the sound itself, a transcript tells the order and no time.
        **{} if is_native else {"latency_assistant_turns": {"1": 1.0, "2": 1.0}},
        conversation_ended_reason="goodbye",
        conversation_finished=True,
        duration_seconds=11.0,
        agent_id="desk",
        pipeline_type=pipeline,
        is_audio_native=is_native,
    )


# What any of them may have.


def test_words_alone_in_a_call_without_any_sound() -> None:
    events = [
        event("call_started", 0, agent="desk"),
        said("assistant", 1.0, "Welcome."),
        said("user", 3.0, "Where is my badge?"),
        said("assistant", 4.0, "In room seven."),
        said("user", 6.0, "Thank you."),
        said("assistant", 7.0, "Goodbye."),
    ]
    assert context_of(events) == expected(
        [
            bot(0, "Welcome."),
            user(1, "Where is my badge?"),
            bot(1, "In room seven."),
            user(2, "Thank you."),
            bot(2, "Goodbye."),
        ],
        {*OF_THE_AGENT, *SOUNDS, *OVERLAPS, *END, "pipeline_type", "latency_assistant_turns"},
        **NO_TOOL,
        transcribed_user_turns={"1": "Where is my badge?", "2": "Thank you."},
        intended_assistant_turns={"0": "Welcome.", "1": "In room seven.", "2": "Goodbye."},
        num_turns=2,
        num_user_turns=2,
        num_assistant_turns=3,
        duration_seconds=7.0,
        agent_id="desk",
    )


THREE_TURNS: Final = [
    bot(0, "Welcome."),
    user(1, "Where?"),
    bot(1, "There."),
    user(2, "Thanks."),
    bot(2, "Goodbye."),
]


@pytest.mark.parametrize("late_s", [-0.1, 0.1, 1.1])
def test_messages_that_repeat_the_agent_s_log_are_no_turns_of_their_own(late_s: float) -> None:
    events = [
        said("assistant", 1.0, "Welcome."),
        entry("user", 3.0, "Where?"),
        said("user", 3.0 + late_s, "Where?"),
        said("assistant", 4.0, "There."),
        entry("user", 6.0, "Thanks."),
        said("user", 6.0 + late_s, "Thanks."),
        said("assistant", 7.0, "Goodbye."),
    ]
    assert (
        context_of(sorted(events, key=lambda each: int(each["timestamp"])))["conversation_trace"]
        == THREE_TURNS
    )


FILLER: Final = spoke("bot_speech", 5.4, 6.2)
ANSWER: Final = spoke("bot_speech", 7.1, 9.0)
IN_TWO_PARTS: Final = [*spoke("bot_speech", 7.1, 8.0), *spoke("bot_speech", 8.3, 9.0)]


@pytest.mark.parametrize(
    "answer",
    [
        # The words come before their sound is heard, one text for each sound.
        [
            *FILLER,
            said("assistant", 5.3, "Let me look."),
            *ANSWER,
            said("assistant", 7.0, "In room seven."),
        ],
        # They come when their sound is over, which had a pause.
        [
            *FILLER,
            said("assistant", 6.25, "Let me look."),
            *IN_TWO_PARTS,
            said("assistant", 9.0, "In room seven."),
        ],
        # They come then, and have the time at which the model began.
        [
            *FILLER,
            said("assistant", 6.25, "Let me look.", timestamp=T0_S + 5.2),
            *IN_TWO_PARTS,
            said("assistant", 9.0, "In room seven.", timestamp=T0_S + 6.9),
        ],
        # The first words are of no message, and those that came before any sound were cut off: that
        # was the last one.
        [
            *FILLER,
            said("assistant", 5.3, "In room seven.", interrupted=True),
            *ANSWER,
            *spoke("user_speech", 8.5, 9.5),
        ],
    ],
)
def test_a_tool_stands_between_the_parts_of_an_answer(answer: list[Json]) -> None:
    events = [
        *spoke("user_speech", 3.0, 4.0),
        said("user", 4.3, "Where?"),
        tool("in_progress", 6.3, function_name="find", arguments={"n": 1}),
        tool("completed", 6.8, result={"room": 7}),
        *answer,
    ]
    filler = (
        [bot(1, "Let me look.")]
        if any("Let me look." in json.dumps(each) for each in answer)
        else []
    )
    assert context_of(sorted(events, key=lambda each: int(each["timestamp"])))[
        "conversation_trace"
    ] == [
        user(1, "Where?"),
        *filler,
        call_of(1, {"n": 1}),
        answer_of(1, {"room": 7}),
        bot(1, "In room seven."),
    ]


def test_words_of_a_caller_whom_nobody_hears_beside_the_sound_of_the_bot() -> None:
    events = [
        *spoke("bot_speech", 0.5, 1.5),
        said("assistant", 1.5, "Welcome."),
        said("user", 3.0, "Where?"),
        *spoke("bot_speech", 4.0, 5.0),
        said("assistant", 5.0, "There."),
        said("user", 6.0, "Thanks."),
        *spoke("bot_speech", 7.0, 8.0),
        said("assistant", 8.0, "Goodbye."),
    ]
    found = context_of(events)
    assert found["conversation_trace"] == THREE_TURNS
    assert found["audio_timestamps_assistant_turns"] == {
        "0": [[0.5, 1.5]],
        "1": [[4.0, 5.0]],
        "2": [[7.0, 8.0]],
    }
    assert {"audio_timestamps_user_turns", "latency_assistant_turns", *OVERLAPS} <= found["unknown"]
    assert "audio_timestamps_user_turns" not in found


def test_two_utterances_before_an_answer_a_tool_before_the_caller_and_an_answer_without_words() -> (
    None
):
    events = [
        event("call_started", 0, agent="desk"),
        tool("in_progress", 0.1, function_name="find", arguments={"n": 1}),
        tool("completed", 0.4, result={"room": 7}),
        *spoke("bot_speech", 0.5, 1.5),
        said("assistant", 1.5, "Welcome."),
        *spoke("user_speech", 3.0, 4.0),
        said("user", 4.3, "Where is", timestamp=T0_S + 3.0),
        *spoke("user_speech", 5.0, 6.0),
        said("user", 6.3, "my badge?", timestamp=T0_S + 5.0),
        *spoke("bot_speech", 7.0, 8.0),  # its words never come
        *spoke("user_speech", 9.0, 10.0),  # nor do these
        *spoke("bot_speech", 11.0, 12.0),
        said("assistant", 12.1, "In room seven."),
        event("call_ended", 13.0, reason="goodbye"),
    ]
    assert context_of(events) == expected(
        [
            call_of(0, {"n": 1}),
            answer_of(0, {"room": 7}),
            bot(0, "Welcome."),
            user(1, "Where is my badge?"),
            bot(2, "In room seven."),
        ],
        {*OF_THE_AGENT, "pipeline_type"},
        **one_tool({"n": 1}, {"room": 7}),
        transcribed_user_turns={"1": "Where is my badge?"},
        intended_assistant_turns={"0": "Welcome.", "2": "In room seven."},
        audio_timestamps_user_turns={"1": [[3.0, 4.0], [5.0, 6.0]], "2": [[9.0, 10.0]]},
        audio_timestamps_assistant_turns={
            "0": [[0.5, 1.5]],
            "1": [[7.0, 8.0]],
            "2": [[11.0, 12.0]],
        },
        num_turns=2,
        num_user_turns=2,
        num_assistant_turns=3,
        assistant_interrupted_turns=[],
        user_interrupted_turns=[],
        latency_assistant_turns={"1": 1.0, "2": 1.0},
        conversation_ended_reason="goodbye",
        conversation_finished=True,
        duration_seconds=13.0,
        agent_id="desk",
    )


def test_both_sides_speak_over_each_other() -> None:
    events = [
        event("call_started", 0, agent="desk"),
        *spoke("user_speech", 1.0, 4.0),
        *spoke("bot_speech", 3.0, 6.0),
        *spoke("user_speech", 5.0, 7.0),
        *spoke("bot_speech", 8.0, 9.0),
    ]
    found = context_of(sorted(events, key=lambda each: int(each["timestamp"])))
    assert (found["assistant_interrupted_turns"], found["user_interrupted_turns"]) == ([1], [2])
    assert found["latency_assistant_turns"] == {"1": -1.0, "2": 1.0}
    assert found["audio_timestamps_user_turns"] == {"1": [[1.0, 4.0]], "2": [[5.0, 7.0]]}
