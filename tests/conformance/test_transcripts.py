"""Transcripts of recorded and simulated calls: ElevenLabs' own models accept them, and they equal
the reference.
"""

import functools
import json
import subprocess
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from elevenlabs.types import ConversationHistoryTranscriptResponseModel as SdkTurn

from consumers.engine.limits import GoalRules, Limits
from consumers.engine.redaction.redactor import Redactor
from consumers.engine.turns.eva_text import ALL_LABELS
from streamer.offline.scoring import RecordedScoring, ScoringPlan
from streamer.recordings.files import RecordedCall
from streamer.recordings.reader import read_recordings
from streamer.sources.replay import with_control_events
from streamer.sources.simulator.traffic import simulate_call
from tests.support.calls.wire_calls import STREAMS, record_call, wire_calls
from tests.support.conformance_data import conformance
from tests.support.required_tools import require_tool
from tests.unit.schemas.test_transcript import KEYS

Json = dict[str, Any]

FILES = (
    "calls.jsonl.gz",
    "cut_calls.jsonl.gz",
    "hostile_calls.jsonl.gz",
    "eva_histories.jsonl.gz",
    "record_1.1.2",
)
SOURCES = (*FILES, "simulated")
LEAST_CALLS = {
    "calls.jsonl.gz": 300,
    "cut_calls.jsonl.gz": 150,
    "hostile_calls.jsonl.gz": 150,
    "eva_histories.jsonl.gz": 1,
    "record_1.1.2": 1,
}
LEAST_COMPARED = {name: 0.9 * calls for name, calls in LEAST_CALLS.items()} | {
    "hostile_calls.jsonl.gz": 120
}
"""Calls that a simulated caller hears. Of the hostile ones eleven have no sound, and fifteen are of
before 1970.
"""
SIMULATED_CALLS = 60
SEED = 1


def _calls(name: str) -> Iterator[RecordedCall]:
    if name == "simulated":
        for seed in range(SIMULATED_CALLS):
            yield simulate_call(seed, start_ms=1_790_000_000_000).call
        return
    path = conformance(name)
    yield from read_recordings(path)


def _transcript(call: RecordedCall, seed: int | None) -> bytes | None:
    plan = ScoringPlan(Limits(), GoalRules(), "test", seed, writes_transcripts=True)
    scoring = RecordedScoring(with_control_events(call, agent="desk"), plan, None)
    deque(scoring.run(), maxlen=0)
    return scoring.transcript


@functools.cache
def _transcripts(name: str, seed: int | None = None) -> dict[str, bytes]:
    """By conversation; a call without a single event has none."""
    calls = [(call.conversation_id, _transcript(call, seed)) for call in _calls(name)]
    assert len(calls) >= LEAST_CALLS.get(name, SIMULATED_CALLS)
    return {conversation_id: value for conversation_id, value in calls if value is not None}


def _turns(name: str) -> Iterator[tuple[str, list[Json]]]:
    for conversation_id, value in _transcripts(name).items():
        yield conversation_id, json.loads(value)


@pytest.mark.parametrize("name", SOURCES)
def test_the_sdk_s_models_take_every_turn_and_know_every_field(name: str) -> None:
    count = 0
    for conversation_id, turns in _turns(name):
        for turn in turns:
            read = SdkTurn.model_validate(turn)
            assert read.model_extra == {}, conversation_id
            for part in (*(read.tool_calls or ()), *(read.tool_results or ())):
                assert part.model_extra == {}, conversation_id
            count += 1
    assert count > len(_transcripts(name))


@pytest.mark.parametrize("name", SOURCES)
def test_the_format_s_own_checks_pass(name: str) -> None:
    """The three commands by which the description of the format says a transcript is to be checked.
    The second one, word for word, is an error of jq for each null, which the format has where
    nothing was measured: so nulls are left out before.
    """
    jq = require_tool("jq", "install Debian's package jq")
    arrays = b"\n".join(_transcripts(name).values())

    def printed(filter_: str) -> list[Any]:
        done = subprocess.run([jq, "--compact-output", filter_], input=arrays, capture_output=True)
        assert (done.returncode, done.stderr) == (0, b"")
        return [json.loads(line) for line in done.stdout.splitlines()]

    assert {tuple(keys) for call in printed("map(keys)") for keys in call} == {tuple(sorted(KEYS))}
    assert printed(".[].conversation_turn_metrics | values | .metrics | keys")
    times = iter(printed(".[].time_in_call_secs"))
    for conversation_id, turns in _turns(name):
        seconds = [next(times) for _ in turns]
        assert seconds == sorted(seconds), conversation_id
        assert seconds[0] >= 0, conversation_id
    assert next(times, None) is None


@pytest.mark.parametrize("name", SOURCES)
def test_the_order_in_which_sources_are_read_changes_nothing(name: str) -> None:
    expected, found = _transcripts(name), _transcripts(name, SEED)
    assert [
        key for key in expected.keys() | found.keys() if expected.get(key) != found.get(key)
    ] == []


def _plain(text: str | None) -> str:
    for label in ALL_LABELS:
        text = (text or "").replace(label, " ")
    return " ".join((text or "").split())


def _of_the_reference(expected: Json) -> dict[str, Counter[str]]:
    """By role, the messages of the reference's context: the text of each turn that is nearest to
    the heard one, redacted.
    """
    redact = Redactor().redact
    sides = {
        "user": ("transcribed_user_turns", "intended_user_turns"),
        "agent": ("intended_assistant_turns", "transcribed_assistant_turns"),
    }
    messages: dict[str, Counter[str]] = {}
    for role, (nearest, else_) in sides.items():
        numbers = expected[nearest].keys() | expected[else_].keys()
        texts = [
            _plain(expected[nearest].get(turn)) or _plain(expected[else_].get(turn))
            for turn in numbers
        ]
        messages[role] = Counter(redact(text) for text in texts if text)
    return messages


def _of_the_transcript(turns: Iterable[Json]) -> dict[str, Counter[str]]:
    messages: dict[str, Counter[str]] = {"user": Counter(), "agent": Counter()}
    for turn in turns:
        if turn["message"]:
            messages[turn["role"]][turn["message"]] += 1
    return messages


@pytest.mark.parametrize("name", FILES)
def test_messages_and_tools_are_those_of_the_reference(name: str) -> None:
    """In calls that a simulated caller heard: others have the bot's own turns, of which the
    reference knows nothing.
    """
    path = conformance(name)
    found = dict(_turns(name))
    compared = 0
    for call in [record_call(path)] if path.is_dir() else wire_calls(path):
        if not any("audio_timestamp" in event for event in call["user_sim"] or ()):
            continue
        is_before_1970 = any(
            float(each.get("timestamp") or 0) < 0
            for stream in STREAMS
            for each in call[stream] or ()
        )
        if is_before_1970 and call["pipeline_type"] != "cascade":
            continue  # a `call_started` of then is refused, so the type of the pipeline is unknown
        expected, turns = call["expected"], found[call["id"].removeprefix("record_")]
        said, reference = _of_the_transcript(turns), _of_the_reference(expected)
        assert said["user"] == reference["user"], call["id"]
        assert said["agent"] >= reference["agent"], call["id"]
        # Where no source has the spoken words of a heard turn, the reference has none and we take
        # the log's.
        replies = [
            _plain(entry["value"])
            for entry in call["audit"] or ()
            if entry.get("message_type") == "assistant"
        ]
        for text in said["agent"] - reference["agent"]:
            assert text == " ".join(reply for reply in replies if reply in text), call["id"]
        uses = [
            use for turn in turns for use in turn["tool_calls"] if use["params_as_json"] != "null"
        ]
        assert Counter(use["tool_name"].lower() for use in uses) == Counter(
            expected["tool_called"]
        ), call["id"]
        compared += 1
    assert compared >= LEAST_COMPARED[name]


def test_simulated_calls_have_interruptions_and_phone_calls_among_them() -> None:
    turns = [turn for _, turns in _turns("simulated") for turn in turns]
    cut = [turn for turn in turns if turn["interrupted"]]
    assert len(cut) > 10
    assert all(turn["role"] == "agent" for turn in cut)
    longer = [
        turn
        for turn in cut
        if turn["original_message"] and turn["original_message"] != turn["message"]
    ]
    assert len(longer) > len(cut) / 4, (
        "greetings are in no log, and what a speech-to-speech model wrote neither"
    )
    assert (
        sum(len(turn["tool_calls"]) for turn in turns)
        == sum(len(turn["tool_results"]) for turn in turns)
        > 50
    )
