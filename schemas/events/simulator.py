"""Events of EVA's simulated caller, and the streams of any source."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import Field

from schemas.events.audit import CallEnded, CallStarted, TurnDetails, UserTextUpdated
from schemas.events.elevenlabs import TypedAgentEvent
from schemas.events.pipecat import PipecatEvent
from schemas.wire import Name, Text, WireModel, WireTimeMs, WireTimeSeconds

# The events of EVA's simulated caller on `elevenlabs.events`: two forms in one stream, with old and
# new names of roles.

AudioRole = Literal[
    "simulated_user", "elevenlabs_user", "assistant", "framework_agent", "pipecat_agent"
]
USER_ROLES = frozenset({"simulated_user", "elevenlabs_user"})


class SimulatorEvent(WireModel):
    """Base of both forms. EVA and callgauge skip an event without `timestamp`, the moment of
    logging.
    """

    timestamp: WireTimeMs | None = None
    sequence: int | None = None
    provider: Name | None = None


class AudioEvent(SimulatorEvent):
    """Sound began or ended; `audio_timestamp` is the moment of the sound in epoch seconds."""

    type: None = None
    event_type: Literal["audio_start", "audio_end"]
    user: AudioRole
    audio_timestamp: WireTimeSeconds


class UtteranceData(WireModel):
    """The words of an utterance."""

    text: Text
    source: Name | None = None


class UserSpeech(SimulatorEvent):
    """Words that the simulated caller meant to say."""

    type: Literal["user_speech"]
    data: UtteranceData


class AssistantSpeech(SimulatorEvent):
    """The assistant's words as the simulated caller's own recogniser heard them."""

    type: Literal["assistant_speech"]
    data: UtteranceData


class Connection(WireModel):
    """State of the line; `details.reason` is how a session ended."""

    state: Name
    details: Any = None


class ConnectionState(SimulatorEvent):
    """`session_ended` gives EVA its fallback end time."""

    type: Literal["connection_state"]
    data: Connection


class CarriedSimulatorEvent(SimulatorEvent):
    """Events of the catalogue that no rule reads, except that they count as the last thing that
    happened.
    """

    type: Literal[
        "user_speech_correction",
        "timeout",
        "error",
        "caller_response_created",
        "caller_response_coalesced",
        "tool_call",
        "audio_sent",
        "audio_received",
    ]
    data: Any = None


TypedSimulatorEvent = Annotated[
    UserSpeech
    | AssistantSpeech
    | ConnectionState
    | CarriedSimulatorEvent
    | CallStarted
    | CallEnded
    | UserTextUpdated
    | TurnDetails,
    Field(discriminator="type"),
]

_AUDIO_KINDS: Final = frozenset(get_args(AudioEvent.model_fields["event_type"].annotation))
_TYPED_KINDS: Final = frozenset(
    kind
    for model in (UserSpeech, AssistantSpeech, ConnectionState, CarriedSimulatorEvent)
    for kind in get_args(model.model_fields["type"].annotation)
)


def under_its_own_key(event: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns an event of the simulator whose kind is under the key of the other form, with its
    kind under its own key. EVA reads `type`, and `event_type` where that is empty, for every kind.
    None if the event is no such one.

    Example:
        >>> under_its_own_key({"type": "audio_start", "user": "assistant"})
        {'event_type': 'audio_start', 'user': 'assistant'}
        >>> under_its_own_key({"type": "", "event_type": "timeout"})
        {'type': 'timeout'}
        >>> under_its_own_key({"type": "timeout"}) is None
        True
    """
    kind = event.get("type") or event.get("event_type")
    if not isinstance(kind, str) or kind not in _AUDIO_KINDS | _TYPED_KINDS:
        return None
    own_key = "event_type" if kind in _AUDIO_KINDS else "type"
    others = {key: value for key, value in event.items() if key not in ("type", "event_type")}
    moved = {own_key: kind, **others}
    return None if moved == event else moved


# Recognises the stream of an event by its type, so that a sender need not know our topics.

Source = Literal["audit", "pipecat", "elevenlabs"]
"""An input topic."""
Stream = Literal["pipecat", "audit", "elevenlabs", "user_sim"]
STREAMS: Final[tuple[Stream, ...]] = get_args(Stream)
"""The streams that a sender may name: a pipecat bot's, the agent framework's audit log, a real
ElevenLabs agent's, and EVA's simulated caller's. `ce_type` has the same words.
"""
CONTROL_EVENTS: Final = frozenset(
    {"call_started", "call_ended", "user_text_updated", "turn_details"}
)
"""Events that steer the evaluator and are no part of a call's history. We send them on the audit
topic.
"""
TYPE_KEYS: Final = ("type", "event_type", "message_type")
"""The fields in which events say what they are, by their stream."""
_SOURCES: Final[Mapping[Stream, Source]] = {
    "pipecat": "pipecat",
    "audit": "audit",
    "elevenlabs": "elevenlabs",
    "user_sim": "elevenlabs",
}


def _types_of(union: Any) -> frozenset[str]:
    """The words that the models of a union have for `type`."""
    models = get_args(get_args(union)[0])
    return frozenset(
        word for model in models for word in get_args(model.model_fields["type"].annotation)
    )


TYPES_BY_STREAM: Final[Mapping[Stream, frozenset[str]]] = {
    "audit": CONTROL_EVENTS,
    "pipecat": _types_of(PipecatEvent) - CONTROL_EVENTS,
    "elevenlabs": _types_of(TypedAgentEvent),
    "user_sim": _types_of(TypedSimulatorEvent),
}
"""Types by stream; the first stream with a type has it. `error` and `tool_call` are in several:
pipecat's come first.
"""


def is_control_event(event: Mapping[str, Any]) -> bool:
    """Whether it is an event about a call as a whole; its type may be anything that JSON has."""
    kind = event.get("type")
    return isinstance(kind, str) and kind in CONTROL_EVENTS


def stream_of(event: Mapping[str, Any]) -> Stream | None:
    """The stream of an event that does not name one; None if its type is known nowhere.

    Example:
        >>> stream_of({"type": "speech_event"}), stream_of({"message_type": "user"}), stream_of({"type": "user_transcript"})
        ('pipecat', 'audit', 'elevenlabs')
        >>> stream_of({"type": "error", "error_event": {}}), stream_of({"transcript": []}), stream_of({"type": "x"})
        ('elevenlabs', 'elevenlabs', None)
    """
    if "message_type" in event:
        return "audit"
    if "error_event" in event or is_agent_record(event):
        return "elevenlabs"
    if event.get("type") is None and "event_type" in event:
        return "user_sim"
    kind = event.get("type")
    return (
        next((stream for stream, types in TYPES_BY_STREAM.items() if kind in types), None)
        if isinstance(kind, str)
        else None
    )


def stream_of_type(event_type: str) -> Stream | None:
    """The stream that a CloudEvents type names; None if it is not one of ours,
    `callgauge.<stream>.<event>.v1`.

    Example:
        >>> stream_of_type("callgauge.pipecat.tts_text.v1"), stream_of_type("callgauge.call.call_started.v1")
        ('pipecat', 'audit')
        >>> stream_of_type("com.example.event") is None
        True
    """
    prefix, _, rest = event_type.partition(".")
    word = rest.partition(".")[0]
    if prefix != "callgauge":
        return None
    return (
        "audit" if word == "call" else next((stream for stream in STREAMS if stream == word), None)
    )


def source_of(stream: Stream) -> Source:
    """The input topic of a stream."""
    return _SOURCES[stream]


def is_agent_record(event: Mapping[str, Any]) -> bool:
    """Whether it is the record of a conversation with an ElevenLabs agent, or the webhook with one.
    A record has no type of its own.

    Example:
        >>> is_agent_record({"transcript": []}), is_agent_record({"data": {"transcript": []}})
        (True, True)
        >>> is_agent_record({"type": "user_speech", "data": {"text": "Hello"}}), is_agent_record({"foo": 1})
        (False, False)
    """
    kind, data = event.get("type"), event.get("data")
    is_webhook = isinstance(kind, str) and kind.startswith("post_call_")
    return "transcript" in event or (
        isinstance(data, Mapping) and (is_webhook or "transcript" in data)
    )


def has_type(event: Mapping[str, Any], stream: str) -> bool:
    """Whether an event whose stream is known says what it is. One of a real ElevenLabs agent has a
    `type` of its own, unless it is the record of a conversation: a type that is known elsewhere
    alone shows that its stream is wrong.

    Example:
        >>> has_type({"type": "speech_event"}, "pipecat"), has_type({"foo": 1}, "pipecat")
        (True, False)
        >>> has_type({"transcript": []}, "elevenlabs"), has_type({"foo": 1}, "elevenlabs")
        (True, False)
    """
    if stream != "elevenlabs":
        return any(event.get(key) for key in TYPE_KEYS)
    kind = event.get("type")
    is_named = isinstance(kind, str) and kind != ""
    return is_agent_record(event) or (is_named and stream_of(event) in ("elevenlabs", None))
