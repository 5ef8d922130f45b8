"""What a pipecat bot writes: the lines of EVA's pipecat log, and pipecat's own observer records."""

from typing import Annotated, Any, Literal

from pydantic import Field

from schemas.call_events import CallEnded, CallStarted, UserTextUpdated
from schemas.wire import Name, Text, WireModel, WireTimeMs, WireTimeSeconds


class PipecatLine(WireModel):
    """What every line has; processors carry their `#n`."""

    timestamp: WireTimeMs
    source: Name | None = None
    destination: Name | None = None
    conversation_id: Name | None = None


class Frame(WireModel):
    """Payload of a line: one word, a phrase, a token chunk, or the repr of a frame."""

    frame: Text


class TurnFrame(Frame):
    """Payload of a turn marker; `was_interrupted` is carried and not read by EVA."""

    was_interrupted: bool | None = None


class ToolFrame(WireModel):
    """Call and result of a tool in one line, as the realtime frameworks write them."""

    frame: Text | None = None
    tool_name: Name | None = None
    arguments: Any = None
    result: Any = None


class TtsText(PipecatLine):
    """Text handed to speech synthesis: a word of a stream paced like speech, or a phrase."""

    type: Literal["tts_text"]
    data: Frame


class LlmResponse(PipecatLine):
    """A reply, whole or a token chunk with its own blanks; it counts only in a call without any `tts_text`."""

    type: Literal["llm_response"]
    data: Frame


class TurnMarker(PipecatLine):
    """A turn border: a hard border between text groups, nothing else."""

    type: Literal["turn_start", "turn_end"]
    data: TurnFrame


class UserSpeaking(PipecatLine):
    """The bot's turn decision about the caller, written once per destination."""

    type: Literal["user_started_speaking", "user_stopped_speaking"]
    data: Frame


class IgnoredLine(PipecatLine):
    """Lines of the catalogue that no rule reads: fragments, contexts, errors, spoken transcripts."""

    type: Literal["transcript", "llm_context", "error", "s2s_transcript"]
    data: Any = None


class ToolLine(PipecatLine):
    """The realtime frameworks' copy of a tool use; the audit log has it too and is the one that counts."""

    type: Literal["tool_call"]
    data: ToolFrame


class SpeechMoment(WireModel):
    """pipecat's `SpeechEvent`: `timestamp` is when it happened, in epoch seconds, detector delay already taken out."""

    kind: Name
    timestamp: WireTimeSeconds
    started_at: WireTimeSeconds | None = None


class SpeechEventRecord(PipecatLine):
    """A moment of pipecat's `SpeakingObserver`: who spoke, and the turn strategy's rulings."""

    type: Literal["speech_event"]
    data: SpeechMoment


class ObserverRecord(PipecatLine):
    """Other records of pipecat's observers: carried; the latency stages of a later view are read from them."""

    type: Literal[
        "startup_timing",
        "transport_timing",
        "user_bot_latency",
        "first_bot_speech_latency",
        "latency_breakdown",
        "service_latency",
        "service_usage",
        "function_call_event",
        "user_message",
        "assistant_message",
        "turn_started",
        "turn_ended",
    ]
    data: Any = None


PipecatEvent = Annotated[
    TtsText
    | LlmResponse
    | TurnMarker
    | UserSpeaking
    | IgnoredLine
    | ToolLine
    | SpeechEventRecord
    | ObserverRecord
    | CallStarted
    | CallEnded
    | UserTextUpdated,
    Field(discriminator="type"),
]
