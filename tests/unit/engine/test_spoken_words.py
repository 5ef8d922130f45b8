"""The rows of words of a phone call have the same words as its transcript: those that were really
spoken.
"""

from typing import Any

import pytest

from consumers.engine.effects import PublishTranscript, PublishWords
from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.limits import Limits
from schemas.transcript import TRANSCRIPT
from streamer.recordings.files import RecordedCall
from tests.golden.calls import arrivals_of_recorded
from tests.support.calls.report_calls import T0_MS
from tests.support.calls.rows_of_calls import effects_in_steps

Json = dict[str, Any]

WHOLE = "Welcome to the desk, how may I help you today?"


def event(at_ms: int, kind: str, data: Json) -> Json:
    return {"timestamp": T0_MS + at_ms, "type": kind, "data": data}


def speech(kind: str, at_ms: int) -> Json:
    return event(at_ms, "speech_event", {"kind": kind, "timestamp": (T0_MS + at_ms) / 1000})


def logged(role: str, text: str, at_ms: int) -> Json:
    return {"timestamp": T0_MS + at_ms, "message_type": role, "value": text}


def message(text: str, at_ms: int) -> Json:
    return event(at_ms, "assistant_message", {"content": text})


def shown(*, audit: list[Json], pipecat: list[Json]) -> tuple[list[str], list[str]]:
    """The words of a phone call: in its rows, and in its transcript."""
    recorded = RecordedCall("c", "cascade", None, tuple(audit), tuple(pipecat), None)
    rows, transcript = {}, b"[]"
    evaluator = PartitionEvaluator(Limits(), "test", writes_transcripts=True)
    for effect in effects_in_steps(evaluator, arrivals_of_recorded(recorded)):
        if isinstance(effect, PublishWords):
            rows[effect.row.turn] = effect.row
        elif isinstance(effect, PublishTranscript):
            transcript = effect.value
    words = [text for _, row in sorted(rows.items()) for text in (row.user, row.assistant) if text]
    return words, [turn.message for turn in TRANSCRIPT.validate_json(transcript) if turn.message]


SOUND = [
    speech("bot_speech_started", 100),
    speech("user_speech_started", 1_000),
    speech("bot_speech_stopped", 1_100),
    speech("user_speech_stopped", 2_000),
]


def test_an_answer_that_was_cut_off_is_shown_as_far_as_it_was_spoken() -> None:
    log = [logged("assistant", WHOLE, 50), logged("user", "Move my booking", 2_050)]
    pipecat = [SOUND[0], message("Welcome to the desk,", 900), *SOUND[1:]]
    words, transcript = shown(audit=log, pipecat=pipecat)
    assert words == transcript == ["Welcome to the desk,", "Move my booking"]


@pytest.mark.parametrize("is_heard", [True, False])
def test_an_answer_that_only_the_log_has_is_shown_where_it_was_heard(is_heard: bool) -> None:
    log = [
        logged("user", "Move my booking", 2_050),
        logged("assistant", "I never came to say this.", 2_500),
    ]
    pipecat = [SOUND[0], message("Welcome.", 900), *SOUND[1:]]
    if is_heard:
        pipecat.append(speech("bot_speech_started", 2_600))
    words, transcript = shown(audit=log, pipecat=pipecat)
    assert (
        words
        == transcript
        == ["Welcome.", "Move my booking", *["I never came to say this."][:is_heard]]
    )


def test_without_any_sign_of_speech_the_log_is_shown() -> None:
    log = [logged("assistant", WHOLE, 50), logged("user", "Move my booking", 2_050)]
    words, transcript = shown(audit=log, pipecat=[])
    assert words == transcript == [WHOLE, "Move my booking"]
