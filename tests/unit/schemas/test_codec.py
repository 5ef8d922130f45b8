"""Events and their envelopes as they are read, and what is misread."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from cloudevents.core.bindings import kafka
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from hypothesis import given
from hypothesis import strategies as st

from schemas.closed_sets import InputSource, MisreadReason, RefusalReason
from schemas.events.audit import (
    MAX_URL_CHARS,
    AuditUser,
    CallEnded,
    CallStarted,
    TurnDetails,
    UserTextUpdated,
)
from schemas.events.codec import RefusedRecordError, UnrecognizedEvent, decode, misread_of
from schemas.events.elevenlabs import (
    AgentEvent,
    AgentResponse,
    AgentResponseCorrection,
    ConversationRecord,
    ToolRequested,
    UserTranscript,
)
from schemas.events.envelope import Envelope, envelope_headers, read_envelope
from schemas.events.examples import EXAMPLES
from schemas.events.pipecat import SpeechEventRecord, TtsText
from schemas.events.simulator import (
    AssistantSpeech,
    AudioEvent,
    CarriedSimulatorEvent,
    ConnectionState,
    UserSpeech,
)
from schemas.json_schemas import SCHEMA_NAMES, json_schema
from schemas.wire import MAX_NAME_CHARS, MAX_TEXT_CHARS, MAX_TIME_MS
from tests.support.known import some

OF_OPENAI = {"type": "function", "function": {"name": "find", "strict": True}}
OF_A_TOOL = {"tool_name": "t", "tool_call_id": "1"}
A, P, E, J = InputSource.AUDIT, InputSource.PIPECAT, InputSource.ELEVENLABS, InputSource.JUDGE
USER = {"message_type": "user", "value": "Hello", "timestamp": "1790000000000"}
MESSAGE = {"type": "assistant_message", "timestamp": 1790000000000}
AGENT_ERROR = {"type": "error", "error_event": {"message": "the quota is used up"}}
CALL = {"message_type": "tool_call", "timestamp": 1}
WORD = {"type": "tts_text", "timestamp": 1790000000000, "data": {"frame": "Hello"}}
SOUND = {
    "event_type": "audio_start",
    "user": "simulated_user",
    "audio_timestamp": 1790000000.5,
    "timestamp": 1,
}
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
            {
                "type": "speech_event",
                "timestamp": 1,
                "data": {"kind": "interruption", "timestamp": 1.5},
            },
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
        (
            E,
            {"event_type": "connection_state", "data": {"state": "session_ended"}},
            ConnectionState,
        ),
        (E, {"event_type": "timeout"}, CarriedSimulatorEvent),
        (E, {"event_type": "call_ended", "timestamp": 1}, UnrecognizedEvent),
        (A, {"message_type": "note", "timestamp": 1}, UnrecognizedEvent),
        (P, {"type": "later", "timestamp": 1}, UnrecognizedEvent),
        (E, {"type": "later"}, UnrecognizedEvent),
        (E, {"event_type": "later"}, UnrecognizedEvent),
        (J, {"type": "verdict", "timestamp": 1}, UnrecognizedEvent),
    ],
)
def test_the_shape_is_recognised(
    source: InputSource, event: dict[str, Any], expected: type
) -> None:
    assert type(_decode(source, event)) is expected


@pytest.mark.parametrize("source", InputSource)
def test_control_events_come_on_every_topic(source: InputSource) -> None:
    assert isinstance(
        _decode(source, {"type": "call_started", "timestamp": 1, "pipeline_type": "s2s"}),
        CallStarted,
    )
    assert isinstance(_decode(source, {"type": "call_ended", "timestamp": 1}), CallEnded)
    assert isinstance(
        _decode(source, {"type": "user_text_updated", "timestamp": 1, "text": "x"}), UserTextUpdated
    )
    assert isinstance(
        _decode(source, {"type": "turn_details", "timestamp": 1, "llm_override": "m"}), TurnDetails
    )


@pytest.mark.parametrize("written", [1790000000123, "1790000000123", 1790000000123.0])
def test_times_are_integers_strings_or_floats(written: object) -> None:
    assert int(_decode(A, USER | {"timestamp": written}).timestamp) == 1790000000123


@pytest.mark.parametrize(
    "role", ["simulated_user", "elevenlabs_user", "assistant", "framework_agent", "pipecat_agent"]
)
def test_old_and_new_roles(role: str) -> None:
    assert _decode(E, SOUND | {"user": role}).user == role


def test_unknown_fields_are_carried() -> None:
    assert _decode(A, USER | {"mood": "good"}).model_extra == {"mood": "good"}


def test_tools_are_read_as_openai_s_models_are_told_of_them() -> None:
    event = {"type": "call_started", "timestamp": 1, "tools": [OF_OPENAI, {"name": "book"}]}
    found = decode(P, json.dumps(event).encode())
    assert isinstance(found, CallStarted)
    assert [each.name for each in found.tools or ()] == ["find", "book"]
    event["tools"] = [{"type": "function", "function": "find"}]
    with pytest.raises(RefusedRecordError, match=r"tools\.0\.name is wrong"):
        decode(P, json.dumps(event).encode())


def test_an_agent_s_event_is_told_apart_by_its_envelope_only() -> None:
    value, of_tomorrow = (
        json.dumps(SPEECH).encode(),
        json.dumps(SPEECH | {"type": "of_tomorrow"}).encode(),
    )
    assert (
        type(decode(E, of_tomorrow, Envelope(None, None, "callgauge.elevenlabs.later.v1", None)))
        is AgentEvent
    )
    with pytest.raises(RefusedRecordError, match="saw `type` 'user_speech'"):
        decode(E, value, Envelope(None, None, "callgauge.elevenlabs.user_speech.v1", None))
    assert (
        type(decode(E, value, Envelope(None, None, "callgauge.user_sim.user_speech.v1", None)))
        is UserSpeech
    )
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
        (
            P,
            {
                "type": "speech_event",
                "timestamp": 1,
                "data": {"kind": "interruption", "timestamp": 1e300},
            },
            "invalid_event",
            "timestamp",
        ),
        (E, _without(SOUND, "user"), "invalid_event", "user"),
        (E, SOUND | {"audio_timestamp": "x"}, "invalid_event", "audio_timestamp"),
        (E, SOUND | {"audio_timestamp": 1e300}, "invalid_event", "audio_timestamp"),
        (E, SOUND | {"user": "nobody"}, "unknown_role", "saw 'nobody'"),
        (
            J,
            {"type": "call_started", "timestamp": 1, "pipeline_type": "tube"},
            "invalid_event",
            "pipeline_type",
        ),
        (P, {"type": "user_text_updated", "timestamp": 1}, "invalid_event", "text"),
        (
            P,
            {"type": "turn_details", "timestamp": 1, "feedback": {"score": 5}},
            "invalid_event",
            "feedback.score",
        ),
        (
            A,
            {"type": "turn_details", "timestamp": 1, "rag_retrieval_info": {"chunks": []}},
            "invalid_event",
            "embedding_model",
        ),
        (
            A,
            {"type": "turn_details", "timestamp": 1, "llm_override": "m" * 257},
            "text_too_long",
            "llm_override",
        ),
        (
            P,
            WORD | {"data": {"frame": "x" * (MAX_TEXT_CHARS + 1)}},
            "text_too_long",
            f"at most {MAX_TEXT_CHARS} characters",
        ),
        (
            P,
            MESSAGE | {"data": {"content": "x" * (MAX_TEXT_CHARS + 1)}},
            "text_too_long",
            f"at most {MAX_TEXT_CHARS} characters",
        ),
        (P, MESSAGE | {"data": {"content": ["x"]}}, "invalid_event", "content"),
        (E, AGENT_ERROR, "invalid_event", "timestamp"),
        (
            A,
            CALL | {"value": {"tool": "x" * (MAX_NAME_CHARS + 1)}},
            "text_too_long",
            f"at most {MAX_NAME_CHARS} characters",
        ),
        (P, [], "invalid_event", "the record"),
        (A, "Hello", "invalid_event", "the record"),
        (E, None, "invalid_event", "the record"),
    ],
)
def test_what_is_refused(source: InputSource, event: Any, reason: str, words: str) -> None:
    error = _refusal(source, json.dumps(event).encode())
    assert error.reason == RefusalReason(reason)
    assert words in str(error)
    assert len(str(error)) < 400


@pytest.mark.parametrize(
    "value", [b"", b"{", b"\xff\xfe", b'{"type": "tts_text"', b"{'type': 'x'}"]
)
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
    headers = [
        ("ce_id", b"e-1"),
        ("ce_source", b"bot"),
        ("ce_type", b"t"),
        ("ce_sequence", b"12"),
        ("other", b"x"),
    ]
    assert read_envelope(headers) == Envelope("e-1", "bot", "t", 12)
    assert read_envelope([]) is None
    assert read_envelope([("other", b"x")]) == Envelope(None, None, None, None)


@pytest.mark.parametrize("sequence", [b"", b"-1", b"1.5", b"twelve", b"\xff", b"7" * 5_000])
def test_a_sequence_that_is_no_number_counts_as_none(sequence: bytes) -> None:
    assert read_envelope([("ce_sequence", sequence)]) == Envelope(None, None, None, None)


@pytest.mark.parametrize("key", ["type", "event_type"])
def test_a_kind_under_the_other_key_changes_nothing_of_the_event(key: str) -> None:
    sound = {name: value for name, value in SOUND.items() if name != "event_type"} | {
        key: "audio_start"
    }
    assert _decode(E, sound) == _decode(E, SOUND)
    speech = {name: value for name, value in SPEECH.items() if name != "type"} | {
        key: "user_speech"
    }
    assert _decode(E, speech) == _decode(E, SPEECH)
    assert (
        _refusal(E, json.dumps(sound | {"user": "nobody"}).encode()).reason
        is RefusalReason.UNKNOWN_ROLE
    )
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
        (
            A,
            {"message_type": "tool_call", "value": {"tool": "t", "parameters": "?"}},
            "value.parameters",
        ),
        (A, {"type": "call_started", "expected_state": {"fees": "?"}}, "expected_state.fees"),
        (A, {"type": "call_ended", "final_state": {"fees": "?"}}, "final_state.fees"),
        (
            P,
            {
                "type": "function_call_event",
                "data": {"kind": "function_call_completed", "result": "?"},
            },
            "data.result",
        ),
        (
            P,
            {
                "type": "function_call_event",
                "data": {"kind": "function_call_started", "arguments": "?"},
            },
            "data.arguments",
        ),
        (
            E,
            {"type": "agent_tool_request", "agent_tool_request": OF_A_TOOL | {"parameters": "?"}},
            "data.parameters",
        ),
        (
            E,
            {
                "type": "mcp_tool_call",
                "mcp_tool_call": OF_A_TOOL | {"state": "success", "result": "?"},
            },
            "data.result",
        ),
    ],
)
def test_a_number_that_no_float_holds_is_null_wherever_a_value_is_kept(
    source: Any, event: dict[str, Any], place: str
) -> None:
    value = (
        json.dumps({"timestamp": 1, **event})
        .replace('"?"', '{"all": [1e999, 2.5], "none": -1e999}')
        .encode()
    )
    kept: Any = decode(source, value)
    for name in place.split("."):
        kept = kept[name] if isinstance(kept, dict) else getattr(kept, name)
    assert kept == {"all": [None, 2.5], "none": None}


NOW_MS = 1_790_000_000_123
# The standard allows no control characters in attributes; `cloudevents` strips nothing, so neither
# end may be blank.
words = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=40)
sequences = st.integers(min_value=0, max_value=2**63 - 1)


@given(
    words,
    words,
    words,
    words,
    st.integers(min_value=0, max_value=4 * 10**12),
    st.none() | sequences,
)
def test_the_package_reads_our_headers(
    event_id: str, source: str, event_type: str, subject: str, time_ms: int, sequence: int | None
) -> None:
    headers = envelope_headers(
        event_id=event_id,
        source=source,
        event_type=event_type,
        subject=subject,
        time_ms=time_ms,
        sequence=sequence,
    )
    event = kafka.from_binary(
        kafka.KafkaMessage(dict(headers), subject, b'{"type": "x"}'), JSONFormat()
    )
    assert (event.get_id(), event.get_source(), event.get_type()) == (event_id, source, event_type)
    assert (event.get_subject(), event.get_datacontenttype()) == (subject, "application/json")
    assert event.get_time() == datetime.fromtimestamp(time_ms // 1000, UTC).replace(
        microsecond=time_ms % 1000 * 1000
    )
    assert event.get_extension("partitionkey") == subject
    assert event.get_extension("sequence") == (None if sequence is None else str(sequence))
    assert event.get_data() == {"type": "x"}
    assert read_envelope(headers) == Envelope(event_id, source, event_type, sequence)


@given(words, words, words, st.none() | sequences)
def test_we_read_the_headers_of_the_package(
    event_id: str, source: str, event_type: str, sequence: int | None
) -> None:
    attributes = {"id": event_id, "source": source, "type": event_type, "specversion": "1.0"}
    if sequence is not None:
        attributes["sequence"] = str(sequence)
    written = kafka.to_binary(CloudEvent(attributes=attributes, data={"type": "x"}), JSONFormat())
    assert read_envelope(list(written.headers.items())) == Envelope(
        event_id, source, event_type, sequence
    )


def test_a_time_without_an_iso_form_and_a_missing_sequence_leave_no_header() -> None:
    headers = dict(
        envelope_headers(event_id="1", source="s", event_type="t", subject="c", time_ms=10**18)
    )
    assert headers.keys().isdisjoint({"ce_time", "ce_sequence"})
    assert "ce_time" not in dict(
        envelope_headers(event_id="1", source="s", event_type="t", subject="c")
    )


AT_MS = 1_790_000_000_000


def read(source: InputSource, event: dict[str, Any]) -> Any:
    return decode(source, json.dumps(event).encode())


@pytest.mark.parametrize(
    ("source", "event", "reason", "what", "remedy"),
    [
        (
            P,
            {
                "type": "speech_event",
                "timestamp": AT_MS,
                "data": {"kind": "bot_started_speaking", "timestamp": 1.0},
            },
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
        (
            P,
            {"type": "speech-update", "timestamp": AT_MS},
            MisreadReason.UNKNOWN_TYPE,
            "an event of type 'speech-update'",
            "Nearest known: `speech_event`, ",
        ),
        (
            P,
            {
                "specversion": "1.0",
                "id": "1",
                "source": "bot",
                "type": "callgauge.pipecat.tts_text.v1",
                "data": "x",
            },
            MisreadReason.CLOUDEVENT_IN_BODY,
            "a CloudEvent in structured mode",
            "JSON object",
        ),
        (
            P,
            {"type": "user_message", "timestamp": AT_MS, "data": {"text": "hi"}},
            MisreadReason.WORDS_WITHOUT_CONTENT,
            "a user_message or assistant_message without `content`",
            "`data.content`",
        ),
        (
            A,
            {"type": "call_started", "timestamp": AT_MS, "agentt": "desk"},
            MisreadReason.FIELD_MISSPELT,
            "a call_started with `agentt`",
            "Is `agent` meant?",
        ),
    ],
)
def test_what_is_not_understood(
    source: InputSource, event: dict[str, Any], reason: MisreadReason, what: str, remedy: str
) -> None:
    misread = some(misread_of(read(source, event)))
    assert (misread.reason, misread.what.startswith(what), remedy in misread.what_to_do) == (
        reason,
        True,
        True,
    )


@pytest.mark.parametrize(
    ("source", "event", "field"),
    [
        (
            P,
            {"type": "tts_text", "data": {"frame": "Hello"}, "conversation_id": 112},
            "conversation_id",
        ),
        (P, {"type": "tts_text", "data": {"frame": "Hello"}, "source": 5}, "source"),
        (
            P,
            {"type": "turn_start", "data": {"frame": "", "was_interrupted": "perhaps"}},
            "was_interrupted",
        ),
        (A, {"message_type": "user", "value": "Hi", "displayName": 5}, "displayName"),
        (A, {"message_type": "user", "value": "Hi", "displayName": "x" * 300}, "displayName"),
        (A, {"message_type": "user", "value": "Hi", "isBotMessage": "maybe"}, "isBotMessage"),
        (A, {"message_type": "user", "value": "Hi", "turn_id": "t-1"}, "turn_id"),
        (E, {"type": "user_speech", "data": {"text": "Hi"}, "sequence": "a1"}, "sequence"),
        (E, {"type": "user_speech", "data": {"text": "Hi", "source": 7}}, "source"),
        (
            E,
            {
                "event_type": "audio_start",
                "user": "assistant",
                "audio_timestamp": 1.0,
                "provider": {},
            },
            "provider",
        ),
        (
            E,
            {
                "event_type": "audio_end",
                "user": "assistant",
                "audio_timestamp": 1.0,
                "sequence": 1.5,
            },
            "sequence",
        ),
        (P, {"type": "call_started", "agent": "desk", "recording_url": 7}, "recording_url"),
        (J, {"type": "call_ended", "recording_starts_ms": "soon"}, "recording_starts_ms"),
    ],
)
def test_a_field_that_no_rule_reads_refuses_nothing(
    source: InputSource, event: dict[str, Any], field: str
) -> None:
    whole = {"timestamp": AT_MS, **event}
    found = read(source, whole)
    without = json.loads(json.dumps(whole))
    (without["data"] if field in without.get("data", {}) else without).pop(field)
    assert found.model_dump(exclude=set(found.model_extra)) == read(source, without).model_dump()
    misread = some(misread_of(found))
    assert (misread.reason, misread.what) == (
        MisreadReason.FIELD_LEFT_OUT,
        f"{field} of another type or form",
    )


@pytest.mark.parametrize(
    "url",
    [
        "https://rec.example/c.wav",
        "http://127.0.0.1:9000",
        "https://[::1]:8443/a/b?X-Sig=%2Ba1~'(b)&e=1&of=a@b#t=3",
        "https://rec.example/" + "a" * (MAX_URL_CHARS - 20),
    ],
)
@pytest.mark.parametrize("kind", ["call_started", "call_ended"])
def test_the_address_of_a_recording_is_taken_as_it_is(kind: str, url: str) -> None:
    given = {"type": kind, "timestamp": AT_MS, "recording_url": url, "recording_starts_ms": "17"}
    for source in InputSource:
        found = read(source, given)
        assert (found.recording_url, found.recording_starts_ms) == (url, 17)
        assert misread_of(found) is None


@pytest.mark.parametrize(
    "url",
    [
        *("", "rec.example/c.wav", "//rec.example/c.wav", "/c.wav", "https://", "https:///c.wav"),
        *("javascript:alert(1)", "data:audio/wav;base64,AA", "file:///c.wav", "ftp://rec.example/"),
        *("https://ada:pw@rec.example/c.wav", "https://ada@rec.example/", "http://@rec.example/"),
        'https://rec.example/"><script>alert(1)</script>',
        *(
            "https://rec.example\\@evil.example/",
            "https://rec.example/a b",
            "https://rec.example/\n",
        ),
        *("https://rec.example/\u202ec.wav", "https://r\u00e9c.example/", " https://rec.example/"),
        "https://rec.example/" + "a" * (MAX_URL_CHARS - 19),
        *(None, True, ["https://rec.example/c.wav"], {"url": "https://rec.example/c.wav"}),
    ],
)
def test_what_is_no_address_of_a_recording_is_left_out_and_the_rest_counts(url: Any) -> None:
    given = {"type": "call_ended", "timestamp": AT_MS, "reason": "goodbye", "recording_url": url}
    for source in InputSource:
        found = read(source, given)
        assert (found.recording_url, found.reason) == (None, "goodbye")
        misread = misread_of(found)
        assert url is None or (misread is not None and "recording_url" in misread.what)
        assert "script" not in str(misread), "what it said is not repeated"


def test_a_field_that_a_rule_reads_is_refused_beside_one_that_none_reads() -> None:
    with pytest.raises(RefusedRecordError, match="frame"):
        read(
            P,
            {"type": "tts_text", "timestamp": AT_MS, "data": {"frame": 1}, "conversation_id": 112},
        )


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (EXAMPLES["UserTranscript"], UserTranscript),
        (EXAMPLES["AgentResponse"], AgentResponse),
        (EXAMPLES["AgentResponseCorrection"], AgentResponseCorrection),
        (EXAMPLES["ToolRequested"], ToolRequested),
        (EXAMPLES["ConversationRecord"], ConversationRecord),
        (
            {"type": "post_call_transcription", "data": EXAMPLES["ConversationRecord"]},
            ConversationRecord,
        ),
    ],
)
def test_an_agent_s_event_without_its_header_is_known_by_its_content(
    event: dict[str, Any], kind: type
) -> None:
    found = read(E, dict(event))
    assert type(found) is kind
    assert misread_of(found) is None


def test_every_event_has_an_example_that_is_such_an_event_and_is_understood() -> None:
    sources = {
        "pipecat-event": P,
        "simulator-event": E,
        "agent-event": E,
        "agent-record": E,
        "audit-event": A,
    }
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
    assert "Seconds since 1970" in json.dumps(
        definitions["SpeechMoment"]["properties"]["timestamp"]
    )


@pytest.mark.parametrize(
    ("event", "hint"),
    [
        ({"timestamp": "2026-09-21T14:13:20Z"}, "expected milliseconds since 1970"),
        (
            {"data": {"kind": "bot_speech_started", "timestamp": AT_MS}},
            "this looks like milliseconds",
        ),
    ],
)
def test_a_time_in_another_unit_says_so(event: dict[str, Any], hint: str) -> None:
    data = {"kind": "bot_speech_started", "timestamp": AT_MS / 1000}
    with pytest.raises(RefusedRecordError, match=hint):
        read(P, {"type": "speech_event", "timestamp": AT_MS, "data": data, **event})
