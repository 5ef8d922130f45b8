"""The doctor reports from the newest records whether callgauge understands the producers."""

import json
from typing import Any, NamedTuple

from schemas.closed_sets import InputSource
from streamer.doctor.examination import Understanding
from streamer.doctor.findings import Verdict

PIPECAT, ELEVENLABS = "x.pipecat.events", "x.elevenlabs.events"
SOURCES = {PIPECAT: InputSource.PIPECAT, ELEVENLABS: InputSource.ELEVENLABS}
WORD = {"type": "tts_text", "timestamp": 1, "data": {"frame": "Hello"}}
WRONG_KIND = {"type": "speech_event", "timestamp": 1, "data": {"kind": "bot_stopped", "timestamp": 1.0}}


class Record(NamedTuple):
    topic: str
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()


def _findings(*records: tuple[str, Any]) -> list[tuple[Verdict, str, str]]:
    understanding = Understanding(SOURCES)
    for topic, event in records:
        understanding.look(Record(topic, None if event is None else json.dumps(event).encode()))
    return [(finding.verdict, finding.seen, finding.what_to_do) for finding in understanding.findings()]


def test_nothing_to_say_without_records() -> None:
    assert _findings((PIPECAT, None), ("another", WORD)) == []


def test_all_understood() -> None:
    assert [each[:2] for each in _findings((PIPECAT, WORD), (PIPECAT, WORD))] == [
        (Verdict.OK, "the newest 2 records are understood")
    ]


def test_errors_of_agents_are_a_warning() -> None:
    failed = {"type": "error", "timestamp": 1, "data": {"message": "the model is down"}}
    of_the_agent = {"type": "client_error", "timestamp": 1, "error_event": {"code": 1008}}
    found = _findings((PIPECAT, WORD), (PIPECAT, failed), (PIPECAT, failed), (ELEVENLABS, of_the_agent))
    assert [each[:2] for each in found] == [
        (Verdict.WARNING, f"1 of the newest 1 record of {ELEVENLABS} are errors that agents report"),
        (Verdict.WARNING, f"2 of the newest 3 records of {PIPECAT} are errors that agents report"),
        (Verdict.OK, "the newest 4 records are understood"),
    ]


def test_what_is_refused_and_what_is_not_understood_with_the_remedy() -> None:
    bad = {"type": "tts_text", "timestamp": 1}
    refused, misread = _findings((PIPECAT, WORD), (PIPECAT, bad), (PIPECAT, WRONG_KIND), (PIPECAT, WRONG_KIND))
    assert refused[:2] == (
        Verdict.WARNING,
        f"1 of the newest 4 records of {PIPECAT} cannot be read and go to quarantine",
    )
    assert misread[:2] == (
        Verdict.WARNING,
        f"2 of the newest 4 records of {PIPECAT} are not understood: speech_event of kind 'bot_stopped'",
    )
    assert "bot_speech_stopped" in misread[2]
