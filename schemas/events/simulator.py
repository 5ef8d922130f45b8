"""What EVA's simulated caller writes to `elevenlabs.events`: two shapes in one stream, old and new role names."""

from typing import Annotated, Any, Literal

from pydantic import Field

from schemas.events.call import CallEnded, CallStarted, UserTextUpdated
from schemas.wire import Name, Text, WireModel, WireTimeMs, WireTimeSeconds

AudioRole = Literal["simulated_user", "elevenlabs_user", "assistant", "framework_agent", "pipecat_agent"]
USER_ROLES = frozenset({"simulated_user", "elevenlabs_user"})


class SimulatorEvent(WireModel):
    """What both shapes have. Without `timestamp` (the moment of logging) EVA skips an event, and so do we."""

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
    """What the simulated caller meant to say."""

    type: Literal["user_speech"]
    data: Speech


class AssistantSpeech(SimulatorEvent):
    """What the simulated caller heard the assistant say, by its own recogniser."""

    type: Literal["assistant_speech"]
    data: Speech


class Connection(WireModel):
    """State of the line; `details.reason` says how a session ended."""

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
