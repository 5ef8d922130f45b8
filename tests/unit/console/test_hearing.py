"""The report shows the same words of a phone call as its transcript: the words that were really spoken."""

from typing import Any

import pytest

from consumers.console.page.calls import Said, heard_in
from consumers.engine.redaction.redactor import Redactor
from consumers.engine.transcripts import CallTranscript
from streamer.offline.contexts import folded_recording
from streamer.recordings.files import RecordedCall
from tests.support.calls.report_calls import T0_MS

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
    """The words of a phone call: in the report, and in its transcript."""
    recorded = RecordedCall("c", "cascade", None, tuple(audit), tuple(pipecat), None)
    call, refused = folded_recording(recorded)
    assert not refused
    report = [item.text for turn in heard_in(call, ()).turns for item in turn.items if isinstance(item, Said)]
    transcript = CallTranscript("c", call.live, "desk", Redactor(), None)
    return report, [entry.message for entry in transcript if entry is not None and entry.message]


SOUND = [
    speech("bot_speech_started", 100),
    speech("user_speech_started", 1_000),
    speech("bot_speech_stopped", 1_100),
    speech("user_speech_stopped", 2_000),
]


def test_an_answer_that_was_cut_off_is_shown_as_far_as_it_was_spoken() -> None:
    log = [logged("assistant", WHOLE, 50), logged("user", "Move my booking", 2_050)]
    pipecat = [SOUND[0], message("Welcome to the desk,", 900), *SOUND[1:]]
    report, transcript = shown(audit=log, pipecat=pipecat)
    assert report == transcript == ["Welcome to the desk,", "Move my booking"]


@pytest.mark.parametrize("is_heard", [True, False])
def test_an_answer_that_only_the_log_has_is_shown_where_it_was_heard(is_heard: bool) -> None:
    log = [logged("user", "Move my booking", 2_050), logged("assistant", "I never came to say this.", 2_500)]
    pipecat = [SOUND[0], message("Welcome.", 900), *SOUND[1:]]
    if is_heard:
        pipecat.append(speech("bot_speech_started", 2_600))
    report, transcript = shown(audit=log, pipecat=pipecat)
    assert report == transcript == ["Welcome.", "Move my booking", *["I never came to say this."][:is_heard]]


def test_without_any_sign_of_speech_the_log_is_shown() -> None:
    log = [logged("assistant", WHOLE, 50), logged("user", "Move my booking", 2_050)]
    report, transcript = shown(audit=log, pipecat=[])
    assert report == transcript == [WHOLE, "Move my booking"]


def test_a_caller_whom_nobody_has_transcribed_keeps_the_placeholder_in_the_report() -> None:
    report, transcript = shown(audit=[logged("user", "[user audio]", 2_050)], pipecat=SOUND)
    assert (report, transcript) == (["[user audio]"], [])
