"""Every part of a record that is not understood is named with a remedy, and nothing is refused for a field that no rule reads."""

import json
from typing import Any

import pytest

from schemas.closed_sets import InputSource, MisreadReason
from schemas.events.codec import RefusedRecordError, decode, misread_of
from schemas.events.elevenlabs import (
    AgentResponse,
    AgentResponseCorrection,
    ConversationRecord,
    ToolRequested,
    UserTranscript,
)
from schemas.events.examples import EXAMPLES
from schemas.json_schemas import SCHEMA_NAMES, json_schema

P, E, A = InputSource.PIPECAT, InputSource.ELEVENLABS, InputSource.AUDIT
AT_MS = 1_790_000_000_000


def read(source: InputSource, event: dict[str, Any]) -> Any:
    return decode(source, json.dumps(event).encode())


@pytest.mark.parametrize(
    ("source", "event", "reason", "what", "remedy"),
    [
        (
            P,
            {"type": "speech_event", "timestamp": AT_MS, "data": {"kind": "bot_started_speaking", "timestamp": 1.0}},
            MisreadReason.UNKNOWN_KIND,
            "speech_event of kind 'bot_started_speaking'",
            "bot_speech_started",
        ),
        (
            P,
            {"type": "function_call_event", "timestamp": AT_MS, "data": {"kind": "completed"}},
            MisreadReason.UNKNOWN_KIND,
            "function_call_event of kind 'completed'",
            "function_call_completed",
        ),
        (
            P,
            {"type": "note", "timestamp": AT_MS},
            MisreadReason.UNKNOWN_TYPE,
            "an event of type 'note'",
            "callgauge schema",
        ),
        (A, {"timestamp": AT_MS}, MisreadReason.UNKNOWN_TYPE, "an event without type", "callgauge schema"),
        (
            P,
            {"specversion": "1.0", "id": "1", "source": "bot", "type": "callgauge.pipecat.tts_text.v1", "data": {}},
            MisreadReason.CLOUDEVENT_IN_BODY,
            "a CloudEvent in structured mode",
            "headers",
        ),
    ],
)
def test_what_is_not_understood(
    source: InputSource, event: dict[str, Any], reason: MisreadReason, what: str, remedy: str
) -> None:
    misread = misread_of(read(source, event))
    assert misread is not None
    assert (misread.reason, misread.what.startswith(what), remedy in misread.what_to_do) == (reason, True, True)


@pytest.mark.parametrize(
    ("source", "event", "field"),
    [
        (P, {"type": "tts_text", "data": {"frame": "Hello"}, "conversation_id": 112}, "conversation_id"),
        (P, {"type": "tts_text", "data": {"frame": "Hello"}, "source": 5}, "source"),
        (P, {"type": "turn_start", "data": {"frame": "", "was_interrupted": "perhaps"}}, "was_interrupted"),
        (A, {"message_type": "user", "value": "Hi", "displayName": 5}, "displayName"),
        (A, {"message_type": "user", "value": "Hi", "displayName": "x" * 300}, "displayName"),
        (A, {"message_type": "user", "value": "Hi", "isBotMessage": "maybe"}, "isBotMessage"),
        (A, {"message_type": "user", "value": "Hi", "turn_id": "t-1"}, "turn_id"),
        (E, {"type": "user_speech", "data": {"text": "Hi"}, "sequence": "a1"}, "sequence"),
        (E, {"type": "user_speech", "data": {"text": "Hi", "source": 7}}, "source"),
        (E, {"event_type": "audio_start", "user": "assistant", "audio_timestamp": 1.0, "provider": {}}, "provider"),
        (E, {"event_type": "audio_end", "user": "assistant", "audio_timestamp": 1.0, "sequence": 1.5}, "sequence"),
    ],
)
def test_a_field_that_no_rule_reads_refuses_nothing(source: InputSource, event: dict[str, Any], field: str) -> None:
    whole = {"timestamp": AT_MS, **event}
    found = read(source, whole)
    without = json.loads(json.dumps(whole))
    (without["data"] if field in without.get("data", {}) else without).pop(field)
    assert found.model_dump(exclude=set(found.model_extra)) == read(source, without).model_dump()
    misread = misread_of(found)
    assert misread is not None
    assert (misread.reason, misread.what) == (MisreadReason.FIELD_LEFT_OUT, f"{field} of another type")


def test_a_field_that_a_rule_reads_is_refused_beside_one_that_none_reads() -> None:
    with pytest.raises(RefusedRecordError, match="frame"):
        read(P, {"type": "tts_text", "timestamp": AT_MS, "data": {"frame": 1}, "conversation_id": 112})


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (EXAMPLES["UserTranscript"], UserTranscript),
        (EXAMPLES["AgentResponse"], AgentResponse),
        (EXAMPLES["AgentResponseCorrection"], AgentResponseCorrection),
        (EXAMPLES["ToolRequested"], ToolRequested),
        (EXAMPLES["ConversationRecord"], ConversationRecord),
        ({"type": "post_call_transcription", "data": EXAMPLES["ConversationRecord"]}, ConversationRecord),
    ],
)
def test_an_agent_s_event_without_its_header_is_known_by_its_content(event: dict[str, Any], kind: type) -> None:
    found = read(E, dict(event))
    assert type(found) is kind
    assert misread_of(found) is None


def test_every_event_has_an_example_that_is_such_an_event_and_is_understood() -> None:
    sources = {"pipecat-event": P, "simulator-event": E, "agent-event": E, "agent-record": E, "audit-event": A}
    shown: set[str] = set()
    for name in SCHEMA_NAMES:
        schema = json_schema(name)
        for title, part in {schema.get("title", ""): schema, **schema.get("$defs", {})}.items():
            for example in part.get("examples", []):
                shown.add(title)
                if name in sources:
                    found = read(sources[name], example)
                    assert (type(found).__name__, misread_of(found)) == (title, None)
    assert shown == set(EXAMPLES)
    for name in sources:
        schema = json_schema(name)
        members = [
            each["$ref"].split("/")[-1]
            for each in (*schema.get("oneOf", []), *schema.get("anyOf", []))
            if "$ref" in each
        ]
        assert set(members) <= shown, name


def test_schemas_have_the_known_values_and_the_units() -> None:
    definitions = json_schema("pipecat-event")["$defs"]
    assert "user_speech_started" in definitions["SpeechMoment"]["properties"]["kind"]["enum"]
    assert "function_call_completed" in definitions["FunctionCall"]["properties"]["kind"]["enum"]
    times = json.dumps(definitions["SpeechEventRecord"]["properties"]["timestamp"])
    assert "Milliseconds since 1970" in times
    assert "Seconds since 1970" in json.dumps(definitions["SpeechMoment"]["properties"]["timestamp"])


@pytest.mark.parametrize(
    ("event", "hint"),
    [
        ({"timestamp": "2026-09-21T14:13:20Z"}, "expected milliseconds since 1970"),
        ({"data": {"kind": "bot_speech_started", "timestamp": AT_MS}}, "this looks like milliseconds"),
    ],
)
def test_a_time_in_another_unit_says_so(event: dict[str, Any], hint: str) -> None:
    data = {"kind": "bot_speech_started", "timestamp": AT_MS / 1000}
    with pytest.raises(RefusedRecordError, match=hint):
        read(P, {"type": "speech_event", "timestamp": AT_MS, "data": data, **event})
