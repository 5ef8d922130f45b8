"""What EVA's simulated caller says of a call: its sound, its words, and the state of its line."""

from collections.abc import Mapping
from typing import Final

from consumers.engine.sources.facts import EvaElement, EventRule, Layer, Line, SpeechFact
from consumers.engine.turns.timeline import ElementKind
from schemas.events.simulator import (
    USER_ROLES,
    AssistantSpeech,
    AudioEvent,
    CarriedSimulatorEvent,
    ConnectionState,
    UserSpeech,
)

UNREAD_ENTRY: Final = (EvaElement(),)
"""An event that no rule reads is still the last thing that happened."""
_LINE: Final = Layer.LINE  # looked up once


def _audio(event: AudioEvent) -> tuple[SpeechFact]:
    return (
        SpeechFact(
            _LINE,
            event.user in USER_ROLES,
            event.event_type == "audio_start",
            event.audio_timestamp,
        ),
    )


def _user_speech(event: UserSpeech) -> tuple[EvaElement]:
    return (EvaElement(ElementKind.USER_SPEECH, event.data.text),)


def _assistant_speech(event: AssistantSpeech) -> tuple[EvaElement]:
    return (EvaElement(ElementKind.ASSISTANT_SPEECH, event.data.text),)


def _connection(event: ConnectionState) -> tuple[Line]:
    return (Line(event.data.state == "session_ended", event.data.details),)


def _carried(_event: CarriedSimulatorEvent) -> tuple[EvaElement]:
    return UNREAD_ENTRY


RULES: Final[Mapping[type, EventRule]] = {
    AudioEvent: EventRule(_audio, is_kept=False),
    UserSpeech: EventRule(_user_speech),
    AssistantSpeech: EventRule(_assistant_speech),
    ConnectionState: EventRule(_connection, is_kept=False),
    CarriedSimulatorEvent: EventRule(_carried, is_kept=False),
}
"""How each type of its events is read."""
