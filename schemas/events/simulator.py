"""The events of EVA's simulated caller on `elevenlabs.events`: two forms in one stream, with old and new names of roles."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import Field

from schemas.events.call import CallEnded, CallStarted, UserTextUpdated
from schemas.wire import Name, Text, WireModel, WireTimeMs, WireTimeSeconds

AudioRole = Literal["simulated_user", "elevenlabs_user", "assistant", "framework_agent", "pipecat_agent"]
USER_ROLES = frozenset({"simulated_user", "elevenlabs_user"})


class SimulatorEvent(WireModel):
    """Base of both forms. EVA and callgauge skip an event without `timestamp`, the moment of logging."""

    timestamp: WireTimeMs | None = None
    sequence: int | None = None
    provider: Name | None = None


class AudioEvent(SimulatorEvent):
    """Sound began or ended; `audio_timestamp` is the moment of the sound in epoch seconds."""

    type: None = None
    event_type: Literal["audio_start", "audio_end"]
    user: AudioRole
    audio_timestamp: WireTimeSeconds


class Speech(WireModel):
    """The words of an utterance."""

    text: Text
    source: Name | None = None


class UserSpeech(SimulatorEvent):
    """Words that the simulated caller meant to say."""

    type: Literal["user_speech"]
    data: Speech


class AssistantSpeech(SimulatorEvent):
    """The assistant's words as the simulated caller's own recogniser heard them."""

    type: Literal["assistant_speech"]
    data: Speech


class Connection(WireModel):
    """State of the line; `details.reason` is how a session ended."""

    state: Name
    details: Any = None


class ConnectionState(SimulatorEvent):
    """`session_ended` gives EVA its fallback end time."""

    type: Literal["connection_state"]
    data: Connection


class CarriedSimulatorEvent(SimulatorEvent):
    """Events of the catalogue that no rule reads, except that they count as the last thing that happened."""

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
    UserSpeech | AssistantSpeech | ConnectionState | CarriedSimulatorEvent | CallStarted | CallEnded | UserTextUpdated,
    Field(discriminator="type"),
]

_AUDIO_KINDS: Final = frozenset(get_args(AudioEvent.model_fields["event_type"].annotation))
_TYPED_KINDS: Final = frozenset(
    kind
    for model in (UserSpeech, AssistantSpeech, ConnectionState, CarriedSimulatorEvent)
    for kind in get_args(model.model_fields["type"].annotation)
)


def under_its_own_key(event: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns an event of the simulator whose kind is under the key of the other form, with its kind under its own key. EVA reads
    `type`, and `event_type` where that is empty, for every kind. None if the event is no such one.

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
