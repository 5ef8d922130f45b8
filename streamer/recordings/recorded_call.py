"""A recorded call, whatever its format was."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from streamer.recordings.eva_metrics import Events

PIPELINE_TYPES: Final = ("cascade", "audio_llm", "s2s")


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One call as its sources and its control events, each in the order in which they were written.

    Attributes:
        conversation_id: The Kafka key of everything the call puts on topics.
        pipeline_type: `cascade`, `audio_llm` or `s2s`.
        conversation_ended_reason: Why the call ended, or None where the recording does not say.
        audit: Entries of the audit log, or None when the call has no such source.
        pipecat: Lines of the pipecat or framework log, or None when absent.
        elevenlabs: Events of the simulated caller, or None when absent (a real phone line has none).
        control: `call_started`, `call_ended` and `user_text_updated`, in time order. Empty for most recordings.
        directory: Where the rest of an EVA record is; None for a wire-level call.
        agent: Events of a real ElevenLabs agent and the record of the conversation, or None when it is no such agent.
    """

    conversation_id: str
    pipeline_type: str
    conversation_ended_reason: str | None
    audit: Events | None
    pipecat: Events | None
    elevenlabs: Events | None
    control: Events = ()
    directory: Path | None = field(default=None, compare=False)
    agent: Events | None = None
