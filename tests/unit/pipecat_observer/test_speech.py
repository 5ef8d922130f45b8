"""Who speaks when, as frames report it."""

import inspect
import time
from types import SimpleNamespace

import pytest
from pipecat.frames.frames import (
    BotStartedSpeakingFrame,
    BotStoppedSpeakingFrame,
    CancelFrame,
    EndFrame,
    InterruptionFrame,
    LLMFullResponseStartFrame,
    UserStartedSpeakingFrame,
    UserStoppedSpeakingFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat_callgauge import CallgaugeObserver, setup_file
from pipecat_callgauge.reading import LEFTOVER_SECONDS, CallReader

from schemas.closed_sets import InputSource
from schemas.events.codec import UnrecognizedEvent, decode
from tests.unit.pipecat_observer.frames_in import UP, Observed


async def test_speech_begins_and_ends_when_it_did_not_when_the_detector_was_sure() -> None:
    seen = Observed()
    start = VADUserStartedSpeakingFrame(start_secs=0.2, timestamp=1_790_000_000.0)
    stop = VADUserStoppedSpeakingFrame(stop_secs=0.8, timestamp=1_790_000_003.0)
    await seen.push(start, stop)
    assert seen.of("speech_event") == [
        {"kind": "user_speech_started", "timestamp": pytest.approx(1_789_999_999.8)},
        {"kind": "user_speech_stopped", "timestamp": pytest.approx(1_790_000_002.2), "started_at": pytest.approx(1_789_999_999.8)},
    ]  # fmt: skip


async def test_halves_of_a_broadcast_that_go_upstream_are_not_read() -> None:
    seen = Observed()
    await seen.push(BotStartedSpeakingFrame(), UserStartedSpeakingFrame(), direction=UP)
    assert seen.events == []


async def test_an_interruption_over_silence_is_none() -> None:
    seen = Observed()
    await seen.push(
        InterruptionFrame(),
        BotStartedSpeakingFrame(),
        InterruptionFrame(),
        BotStoppedSpeakingFrame(),
        InterruptionFrame(),
    )
    assert seen.moments == ["bot_speech_started", "interruption", "bot_speech_stopped"]


async def test_the_rest_of_an_answer_that_was_cut_is_no_new_answer() -> None:
    seen = Observed()
    await seen.push(
        BotStartedSpeakingFrame(), InterruptionFrame(), BotStoppedSpeakingFrame(), BotStartedSpeakingFrame(),
        UserStoppedSpeakingFrame(), BotStoppedSpeakingFrame(),
    )  # fmt: skip
    assert seen.moments == [
        "bot_speech_started",
        "interruption",
        "bot_speech_stopped",
        "user_turn_stopped",
        "bot_speech_stopped",
    ]


async def test_a_new_answer_right_after_an_interruption_is_one() -> None:
    seen = Observed()
    await seen.push(BotStartedSpeakingFrame(), InterruptionFrame(), BotStoppedSpeakingFrame())
    await seen.push(LLMFullResponseStartFrame(), BotStartedSpeakingFrame())
    assert seen.moments[-1] == "bot_speech_started"


def test_sound_long_after_an_interruption_is_an_answer_whatever_made_it() -> None:
    moments: list[str] = []
    reader = CallReader(lambda _rank, _kind, data: moments.append(data["kind"]))
    reader.bot_started(None, 10.0)
    reader.interrupted(None, 11.0)
    reader.bot_stopped(None, 11.0)
    reader.bot_started(None, 11.0 + LEFTOVER_SECONDS)
    assert moments[-1] == "bot_speech_started"


def bare(kind: str) -> SimpleNamespace:
    """A frame of the detector as pipecat had it before 0.0.102: it does not say since when."""
    return SimpleNamespace(name=kind)


def test_without_the_detectors_delay_only_rulings_remain() -> None:
    moments: list[str] = []
    reader = CallReader(lambda _rank, _kind, data: moments.append(data["kind"]))
    reader.vad_started(bare("start"), 10.0)
    reader.turn_started(None, 10.0)
    reader.vad_stopped(bare("stop"), 12.0)
    reader.turn_stopped(None, 12.0)
    assert moments == ["user_turn_started", "user_turn_stopped"]  # so the anchor is `turn_release`


def test_with_the_delay_as_an_option_the_detector_counts_again() -> None:
    told: list[dict[str, float]] = []
    reader = CallReader(lambda _rank, _kind, data: told.append(data), vad_stop_secs=0.8)
    reader.vad_started(bare("start"), 10.0)
    reader.vad_stopped(bare("stop"), 12.0)
    assert told[-1] == {"kind": "user_speech_stopped", "timestamp": pytest.approx(11.2), "started_at": 10.0}


@pytest.mark.parametrize(
    ("frame", "reason"),
    [(EndFrame(), "ended"), (EndFrame(reason="goodbye"), "goodbye"), (CancelFrame(), "cancelled"),
     (CancelFrame(reason="x" * 999), "x" * 256)],
)  # fmt: skip
async def test_the_end_is_told_when_everything_is_over(frame: EndFrame | CancelFrame, reason: str) -> None:
    seen = Observed(agent="desk", tenant="t", environment="test", goals="g", pipeline_type="s2s")
    await seen.push(frame)
    assert [event["type"] for event in seen.events] == ["call_started"]  # the last sentence may still be spoken
    await seen.observer.cleanup()
    await seen.observer.cleanup()
    labels = {"agent": "desk", "tenant": "t", "environment": "test", "goals": "g", "pipeline_type": "s2s"}
    assert seen.events[0].items() >= labels.items()
    assert [event.get("reason") for event in seen.events] == [None, reason]


async def test_the_first_end_gives_the_reason() -> None:
    seen = Observed()
    await seen.push(EndFrame(reason="goodbye"), CancelFrame())
    await seen.observer.cleanup()
    assert seen.events[-1]["reason"] == "goodbye"


async def test_an_observer_that_saw_nothing_tells_of_no_call() -> None:
    seen = Observed()
    await seen.observer.cleanup()
    assert seen.events == []


async def test_callgauge_knows_every_event() -> None:
    import json

    seen = Observed(agent="desk")
    await seen.push(
        VADUserStartedSpeakingFrame(),
        UserStartedSpeakingFrame(),
        BotStartedSpeakingFrame(),
        InterruptionFrame(),
        EndFrame(),
    )
    await seen.observer.cleanup()
    events = [decode(InputSource.PIPECAT, json.dumps(event).encode()) for event in seen.events]
    assert len(events) == 6
    assert not [event for event in events if isinstance(event, UnrecognizedEvent) or event.model_extra]
    assert all(abs(event.timestamp - time.time() * 1000) < 60_000 for event in events)


def test_hooks_take_one_argument_because_old_versions_count_them() -> None:
    for hook in (CallgaugeObserver.on_push_frame, CallgaugeObserver.on_process_frame):
        assert list(inspect.signature(hook).parameters) == ["self", "data"]
    for setup in (setup_file.setup_pipeline_worker, setup_file.setup_pipeline_task):
        assert len(inspect.signature(setup).parameters) == 1


@pytest.mark.parametrize("wrong", ["", "x" * 257])
def test_an_id_that_can_be_no_key_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="1 to 256 bytes"):
        CallgaugeObserver(conversation_id=wrong)


def test_an_unknown_kind_of_pipeline_is_refused() -> None:
    with pytest.raises(ValueError, match="expected one of cascade"):
        CallgaugeObserver(pipeline_type="cascaded")


def test_a_function_gives_the_id_and_otherwise_it_is_new() -> None:
    assert CallgaugeObserver(conversation_id=lambda: "sip-7").conversation_id == "sip-7"
    assert CallgaugeObserver().conversation_id != CallgaugeObserver().conversation_id


def test_a_worker_with_an_id_gives_it_to_its_call() -> None:
    added: list[CallgaugeObserver] = []
    worker = SimpleNamespace(_conversation_id="sip-8", add_observer=added.append)
    assert setup_file.attach(worker, agent="desk").conversation_id == "sip-8"
    assert setup_file.attach(worker, conversation_id="mine") is added[1]
    assert added[1].conversation_id == "mine"
