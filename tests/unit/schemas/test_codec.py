"""Wire bytes to typed events: shapes, times, carried fields, and the messages of refusals."""

import json
from typing import Any

import pytest

from schemas.closed_sets import InputSource, RefusalReason
from schemas.events.audit import AuditUser, CallEnded, CallStarted, UserTextUpdated
from schemas.events.codec import RefusedRecordError, UnrecognizedEvent, decode
from schemas.events.elevenlabs import AgentEvent
from schemas.events.envelope import Envelope, read_envelope
from schemas.events.pipecat import SpeechEventRecord, TtsText
from schemas.events.simulator import AssistantSpeech, AudioEvent, CarriedSimulatorEvent, ConnectionState, UserSpeech
from schemas.wire import MAX_NAME_CHARS, MAX_TEXT_CHARS, MAX_TIME_MS

OF_A_TOOL = {"tool_name": "t", "tool_call_id": "1"}
A, P, E, J = InputSource.AUDIT, InputSource.PIPECAT, InputSource.ELEVENLABS, InputSource.JUDGE
USER = {"message_type": "user", "value": "Hello", "timestamp": "1790000000000"}
MESSAGE = {"type": "assistant_message", "timestamp": 1790000000000}
AGENT_ERROR = {"type": "error", "error_event": {"message": "the quota is used up"}}
CALL = {"message_type": "tool_call", "timestamp": 1}
WORD = {"type": "tts_text", "timestamp": 1790000000000, "data": {"frame": "Hello"}}
SOUND = {"event_type": "audio_start", "user": "simulated_user", "audio_timestamp": 1790000000.5, "timestamp": 1}
SPEECH = {"type": "user_speech", "timestamp": 1, "data": {"text": "Hello"}}


def _decode(source: InputSource, event: Any) -> Any:
    return decode(source, json.dumps(event).encode())


def _refusal(source: InputSource, value: bytes) -> RefusedRecordError:
    with pytest.raises(RefusedRecordError) as caught:
        decode(source, value)
    return caught.value


@pytest.mark.parametrize(
    ("source", "event", "expected"),
    [
        (A, USER, AuditUser),
        (P, WORD, TtsText),
        (
            P,
            {"type": "speech_event", "timestamp": 1, "data": {"kind": "interruption", "timestamp": 1.5}},
            SpeechEventRecord,
        ),
        (E, SOUND, AudioEvent),
        (E, SPEECH, UserSpeech),
        (E, SPEECH | {"note": '"event_type"'}, UserSpeech),
        (E, SOUND | {"type": ""}, AudioEvent),
        (E, SOUND | {"event_type": "user_speech", "type": "audio_end"}, AudioEvent),
        (E, SPEECH | {"type": "", "event_type": "user_speech"}, UserSpeech),
        (E, {**SPEECH, "type": None, "event_type": "assistant_speech"}, AssistantSpeech),
        (E, SPEECH | {"event_type": "audio_start"}, UserSpeech),
        (E, {"event_type": "connection_state", "data": {"state": "session_ended"}}, ConnectionState),
        (E, {"event_type": "timeout"}, CarriedSimulatorEvent),
        (E, {"event_type": "call_ended", "timestamp": 1}, UnrecognizedEvent),
        (A, {"message_type": "note", "timestamp": 1}, UnrecognizedEvent),
        (P, {"type": "later", "timestamp": 1}, UnrecognizedEvent),
        (E, {"type": "later"}, UnrecognizedEvent),
        (E, {"event_type": "later"}, UnrecognizedEvent),
        (J, {"type": "verdict", "timestamp": 1}, UnrecognizedEvent),
        (P, {}, UnrecognizedEvent),
    ],
)
def test_the_shape_is_recognised(source: InputSource, event: dict[str, Any], expected: type) -> None:
    assert type(_decode(source, event)) is expected


@pytest.mark.parametrize("source", InputSource)
def test_control_events_come_on_every_topic(source: InputSource) -> None:
    assert isinstance(_decode(source, {"type": "call_started", "timestamp": 1, "pipeline_type": "s2s"}), CallStarted)
    assert isinstance(_decode(source, {"type": "call_ended", "timestamp": 1}), CallEnded)
    assert isinstance(_decode(source, {"type": "user_text_updated", "timestamp": 1, "text": "x"}), UserTextUpdated)


@pytest.mark.parametrize("written", [1790000000123, "1790000000123", 1790000000123.0])
def test_times_are_integers_strings_or_floats(written: object) -> None:
    assert int(_decode(A, USER | {"timestamp": written}).timestamp) == 1790000000123


@pytest.mark.parametrize("role", ["simulated_user", "elevenlabs_user", "assistant", "framework_agent", "pipecat_agent"])
def test_old_and_new_roles(role: str) -> None:
    assert _decode(E, SOUND | {"user": role}).user == role


def test_unknown_fields_are_carried() -> None:
    assert _decode(A, USER | {"mood": "good"}).model_extra == {"mood": "good"}


def test_an_agent_s_event_is_told_apart_by_its_envelope_only() -> None:
    value = json.dumps(SPEECH).encode()
    assert type(decode(E, value, Envelope(None, None, "callgauge.elevenlabs.user_speech.v1", None))) is AgentEvent
    assert type(decode(E, value, Envelope(None, None, "callgauge.user_sim.user_speech.v1", None))) is UserSpeech
    assert type(decode(E, value, None)) is UserSpeech


def _without(event: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in event.items() if key != name}


@pytest.mark.parametrize(
    ("source", "event", "reason", "words"),
    [
        (A, _without(USER, "value"), "invalid_event", "value"),
        (A, USER | {"value": 5}, "invalid_event", "value"),
        (A, USER | {"timestamp": "soon"}, "invalid_event", "timestamp"),
        (A, USER | {"timestamp": None}, "invalid_event", "timestamp"),
        (A, USER | {"timestamp": MAX_TIME_MS + 1}, "invalid_event", "timestamp"),
        (A, {"message_type": "tool_call", "timestamp": 1, "value": {}}, "invalid_event", "tool"),
        (P, _without(WORD, "data"), "invalid_event", "data"),
        (P, {"type": "speech_event", "timestamp": 1, "data": {"kind": "interruption", "timestamp": 1e300}}, "invalid_event", "timestamp"),
        (E, _without(SOUND, "user"), "invalid_event", "user"),
        (E, SOUND | {"audio_timestamp": "x"}, "invalid_event", "audio_timestamp"),
        (E, SOUND | {"audio_timestamp": 1e300}, "invalid_event", "audio_timestamp"),
        (E, SOUND | {"user": "nobody"}, "unknown_role", "saw 'nobody'"),
        (J, {"type": "call_started", "timestamp": 1, "pipeline_type": "tube"}, "invalid_event", "pipeline_type"),
        (P, {"type": "user_text_updated", "timestamp": 1}, "invalid_event", "text"),
        (P, WORD | {"data": {"frame": "x" * (MAX_TEXT_CHARS + 1)}}, "text_too_long", f"at most {MAX_TEXT_CHARS} characters"),
        (P, MESSAGE | {"data": {"content": "x" * (MAX_TEXT_CHARS + 1)}}, "text_too_long", f"at most {MAX_TEXT_CHARS} characters"),
        (P, MESSAGE | {"data": {"content": ["x"]}}, "invalid_event", "content"),
        (E, AGENT_ERROR, "invalid_event", "timestamp"),
        (A, CALL | {"value": {"tool": "x" * (MAX_NAME_CHARS + 1)}}, "text_too_long", f"at most {MAX_NAME_CHARS} characters"),
        (P, [], "invalid_event", "the record"),
        (A, "Hello", "invalid_event", "the record"),
        (E, None, "invalid_event", "the record"),
    ],
)  # fmt: skip
def test_what_is_refused(source: InputSource, event: Any, reason: str, words: str) -> None:
    error = _refusal(source, json.dumps(event).encode())
    assert error.reason == RefusalReason(reason)
    assert words in str(error)
    assert len(str(error)) < 400


@pytest.mark.parametrize("value", [b"", b"{", b"\xff\xfe", b'{"type": "tts_text"', b"{'type': 'x'}"])
@pytest.mark.parametrize("source", InputSource)
def test_what_is_no_json(source: InputSource, value: bytes) -> None:
    assert _refusal(source, value).reason is RefusalReason.UNDECODABLE


@pytest.mark.parametrize(
    "event",
    [
        USER | {"value": {"secret": "s3cret" * 5_000}},
        USER | {"value": ["s3cret" * 5_000]},
        USER | {"value": "s3cret" * 50_000},
        USER | {"timestamp": "s3cret" * 5_000},
        {"message_type": "s3cret" * 5_000},
    ],
)
def test_messages_do_not_carry_the_payload(event: dict[str, Any]) -> None:
    error = _refusal(A, json.dumps(event).encode())
    assert str(error).count("s3cret") <= 13
    assert len(str(error)) < 400


def test_the_envelope() -> None:
    headers = [("ce_id", b"e-1"), ("ce_source", b"bot"), ("ce_type", b"t"), ("ce_sequence", b"12"), ("other", b"x")]
    assert read_envelope(headers) == Envelope("e-1", "bot", "t", 12)
    assert read_envelope([]) is None
    assert read_envelope([("other", b"x")]) == Envelope(None, None, None, None)


@pytest.mark.parametrize("sequence", [b"", b"-1", b"1.5", b"twelve", b"\xff", b"7" * 5_000])
def test_a_sequence_that_is_no_number_counts_as_none(sequence: bytes) -> None:
    assert read_envelope([("ce_sequence", sequence)]) == Envelope(None, None, None, None)


@pytest.mark.parametrize("key", ["type", "event_type"])
def test_a_kind_under_the_other_key_changes_nothing_of_the_event(key: str) -> None:
    sound = {name: value for name, value in SOUND.items() if name != "event_type"} | {key: "audio_start"}
    assert _decode(E, sound) == _decode(E, SOUND)
    speech = {name: value for name, value in SPEECH.items() if name != "type"} | {key: "user_speech"}
    assert _decode(E, speech) == _decode(E, SPEECH)
    assert _refusal(E, json.dumps(sound | {"user": "nobody"}).encode()).reason is RefusalReason.UNKNOWN_ROLE
    assert _refusal(E, json.dumps(speech | {"data": 5}).encode()).where.endswith("data")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
def test_a_number_that_json_does_not_have_is_null(number: str) -> None:
    event = {
        "message_type": "tool_response",
        "timestamp": 1,
        "value": {"tool": "fee", "response": {"fee": 0, "of": "NaN"}},
    }
    decoded = decode(A, json.dumps(event).replace("0", number).encode())
    assert decoded.value.response == {"fee": None, "of": "NaN"}
    sound = json.dumps(SOUND).replace("1790000000.5", number).encode()
    assert _refusal(E, sound).where == "audio_timestamp"


@pytest.mark.parametrize(
    ("source", "event", "place"),
    [
        (A, {"message_type": "tool_call", "value": {"tool": "t", "parameters": "?"}}, "value.parameters"),
        (A, {"type": "call_started", "expected_state": {"fees": "?"}}, "expected_state.fees"),
        (A, {"type": "call_ended", "final_state": {"fees": "?"}}, "final_state.fees"),
        (P, {"type": "function_call_event", "data": {"kind": "function_call_completed", "result": "?"}}, "data.result"),
        (P, {"type": "function_call_event", "data": {"kind": "function_call_started", "arguments": "?"}}, "data.arguments"),
        (E, {"type": "agent_tool_request", "agent_tool_request": OF_A_TOOL | {"parameters": "?"}}, "data.parameters"),
        (E, {"type": "mcp_tool_call", "mcp_tool_call": OF_A_TOOL | {"state": "success", "result": "?"}}, "data.result"),
    ],
)  # fmt: skip
def test_a_number_that_no_float_holds_is_null_wherever_a_value_is_kept(
    source: Any, event: dict[str, Any], place: str
) -> None:
    value = json.dumps({"timestamp": 1, **event}).replace('"?"', '{"all": [1e999, 2.5], "none": -1e999}').encode()
    kept: Any = decode(source, value)
    for name in place.split("."):
        kept = kept[name] if isinstance(kept, dict) else getattr(kept, name)
    assert kept == {"all": [None, 2.5], "none": None}
