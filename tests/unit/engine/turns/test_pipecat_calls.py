"""Calls of real pipecat bots come out right: turns, who cut off whom, stages, tools, words, and latencies as pipecat has them."""

import pytest

from tests.support.calls.pipecat_calls import Outcome, outcome_of, recorded_calls

HELLO = ("agent", "Hello, how can I help you?", False)
SAME_MS = 1.5
"""Two observers of one frame read the clock one after the other."""
FLIGHTS = "There are many flights today. The first one leaves at nine in the morning. The second leaves at ten."

TRANSCRIPTS = {
    "plain": [
        HELLO,
        ("user", "When does my flight leave?", False),
        ("agent", "Your flight leaves at nine.", False),
        ("user", "Thank you.", False),
        ("agent", "You are welcome, goodbye.", False),
    ],
    "barge_in": [
        HELLO,
        ("user", "List all flights.", False),
        ("agent", "There are many flights today.", True),
        ("user", "Stop, the first one.", False),
        ("agent", "Booked, the first one.", False),
    ],
    "segments": [
        HELLO,
        ("user", "I would like to change my booking.", False),
        ("agent", "I have nothing more to say.", False),
    ],
    "silent_user": [("agent", "Hello, how can I help you? Are you still there?", False)],
    "tts_without_text": [
        HELLO,
        ("user", "When does my flight leave?", False),
        ("agent", "Your flight leaves at nine.", False),
    ],
    "tools": [
        HELLO,
        ("user", "Find booking A1.", False),
        ("agent", "I found your booking.", False),
        ("user", "Cancel it and find B.", False),
        ("agent", "That did not work.", False),
        ("user", "Do the slow thing. Oh, never mind.", False),
        ("agent", "Never mind then.", False),
    ],
    "llm_without_tts": [
        HELLO,
        ("user", "When does my flight leave?", False),
        ("agent", "Your flight leaves at nine.", False),
    ],
    "aborted": [HELLO, ("user", "When does my flight leave tomorrow?", False), ("agent", "Tomorrow at nine.", False)],
    "speculative": [HELLO, ("user", "When does it leave tomorrow?", False), ("agent", "Tomorrow at nine.", False)],
    "attached_late": [
        ("user", "When does my flight leave?", False),
        ("agent", "Your flight leaves at nine.", False),
        ("user", "Thank you.", False),
        ("agent", "Goodbye then.", False),
    ],
    "cough": [
        HELLO,
        ("user", "List all flights.", False),
        ("agent", f"{FLIGHTS} The third at noon.", False),
        ("user", "Thank you so much.", False),
        ("agent", "Goodbye.", False),
    ],
    "no_vad": [
        HELLO,
        ("user", "When does it leave?", False),
        ("agent", "At nine.", False),
        ("user", "Thanks.", False),
        ("agent", "Bye bye.", False),
    ],
    "llm_error": [HELLO, ("user", "When does it leave? Hello?", False), ("agent", "Back again.", False)],
    # Of a phrase that was cut off before its end nothing is known to have been heard.
    "over_greeting": [("agent", None, True), ("user", "When does it leave?", False), ("agent", "At nine.", False)],
}
INTERRUPTIONS = {"barge_in": {("interruption_by_user", 2)}, "over_greeting": {("interruption_by_user", 1)}}
TOOLS = {
    "tools": [
        (1, "find_booking", "success"),
        (2, "cancel", "error"),
        (2, "find_booking", "success"),
        (3, "slow", "unanswered"),
    ]
}
ANCHORS = {"no_vad": "turn_release"}
FIRST_BYTES = {"STT": "stt_trailing", "LLM": "llm_first_token", "TTS": "tts_first_byte"}


@pytest.fixture(params=sorted(TRANSCRIPTS))
def name(request: pytest.FixtureRequest) -> str:
    """A recorded call."""
    return str(request.param)


@pytest.fixture
def outcome(name: str) -> Outcome:
    """Its published records."""
    return outcome_of(recorded_calls()[name].events)


def test_every_recorded_call_is_checked() -> None:
    assert set(recorded_calls()) == set(TRANSCRIPTS)


def test_turns_words_interruptions_and_tools(name: str, outcome: Outcome) -> None:
    assert outcome.transcript == TRANSCRIPTS[name]
    assert outcome.interruptions == INTERRUPTIONS.get(name, set())
    assert outcome.tools == TOOLS.get(name, [])


def test_latencies_are_those_of_pipecat(name: str, outcome: Outcome) -> None:
    own_ms = list(recorded_calls()[name].latencies_ms)
    if name in ANCHORS:
        assert own_ms == []  # without a detector pipecat measures nothing
        assert outcome.latencies_ms == pytest.approx({1: 508, 2: 568}, abs=1)
    else:
        assert list(outcome.latencies_ms.values()) == pytest.approx(own_ms, abs=SAME_MS)
    assert outcome.ever_ms == set(outcome.latencies_ms.values()), "none is published and taken back"
    assert set(outcome.anchors.values()) <= {ANCHORS.get(name, "vad")}


def test_stages_are_those_of_the_answered_request(name: str, outcome: Outcome) -> None:
    call = recorded_calls()[name]
    for turn, breakdown in zip(outcome.latencies_ms, call.breakdowns, strict=False):
        for service, elapsed_ms in breakdown["ttfb"].items():
            stage = FIRST_BYTES[service.removeprefix("Fake").removesuffix("Service")]
            assert outcome.stages_ms[turn, stage] == pytest.approx(elapsed_ms, abs=SAME_MS), (turn, stage)
        if breakdown["handlers"]:
            assert outcome.stages_ms[turn, "tool_run"] == pytest.approx(breakdown["handlers"], abs=SAME_MS)
