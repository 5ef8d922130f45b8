"""Who speaks when, and the words, tools and numbers of a call, as frames report them."""

import inspect
import json
import time
from types import SimpleNamespace
from typing import Any

import pytest
from pipecat.adapters.llm.schemas.function_schema import FunctionSchema
from pipecat.frames.frames import (
    BotStartedSpeakingFrame,
    BotStoppedSpeakingFrame,
    CancelFrame,
    EndFrame,
    ErrorFrame,
    FunctionCallCancelFrame,
    FunctionCallFromLLM,
    FunctionCallInProgressFrame,
    FunctionCallResultFrame,
    FunctionCallResultProperties,
    FunctionCallsStartedFrame,
    InterruptionFrame,
    LLMContextAssistantTurnFrame,
    LLMContextFrame,
    LLMContextUserTurnFrame,
    LLMFullResponseStartFrame,
    MetricsFrame,
    TranscriptionFrame,
    TTSTextFrame,
    UserStartedSpeakingFrame,
    UserStoppedSpeakingFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.metrics.metrics import (
    LLMTokenUsage,
    LLMUsageMetricsData,
    ProcessingMetricsData,
    STTUsage,
    STTUsageMetricsData,
    TextAggregationMetricsData,
    TTFAMetricsData,
    TTFBMetricsData,
    TTSUsageMetricsData,
    TurnMetricsData,
)
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat_callgauge import CallgaugeObserver, reading, setup_file
from pipecat_callgauge.reading import LEFTOVER_SECONDS, CallReader

from schemas.closed_sets import InputSource
from schemas.events.codec import UnrecognizedEvent, decode
from tests.unit.observers.pipecat.frames_in import UP, Observed


async def test_speech_begins_and_ends_when_it_did_not_when_the_detector_was_sure() -> None:
    seen = Observed()
    start = VADUserStartedSpeakingFrame(start_secs=0.2, timestamp=1_790_000_000.0)
    stop = VADUserStoppedSpeakingFrame(stop_secs=0.8, timestamp=1_790_000_003.0)
    await seen.push(start, stop)
    assert seen.of("speech_event") == [
        {"kind": "user_speech_started", "timestamp": pytest.approx(1_789_999_999.8)},
        {
            "kind": "user_speech_stopped",
            "timestamp": pytest.approx(1_790_000_002.2),
            "started_at": pytest.approx(1_789_999_999.8),
        },
    ]


async def test_halves_of_a_broadcast_that_go_upstream_are_not_read() -> None:
    seen = Observed()
    await seen.push(BotStartedSpeakingFrame(), UserStartedSpeakingFrame(), direction=UP)
    assert seen.events == []


async def test_a_transcript_of_a_realtime_model_goes_upstream_and_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reading, "HAS_USER_TURN_TEXTS", False)  # as before pipecat 1.13
    seen = Observed()
    frame = TranscriptionFrame("Find A1.", "caller", "2026-11-22T18:00:00.000+00:00")
    await seen.push(frame, direction=UP)
    assert [each["content"] for each in seen.of("user_message")] == ["Find A1."]


BEGINS, ENDS, CUTS, ASKS = (
    BotStartedSpeakingFrame,
    BotStoppedSpeakingFrame,
    InterruptionFrame,
    LLMFullResponseStartFrame,
)


@pytest.mark.parametrize(
    ("frames", "moments"),
    [
        pytest.param(
            [CUTS, BEGINS, CUTS, ENDS, CUTS],
            "begins interruption ends",
            id="over silence it is none",
        ),
        pytest.param(
            [BEGINS, CUTS, ENDS, BEGINS, UserStoppedSpeakingFrame, ENDS],
            "begins interruption ends asked ends",
            id="the rest of an answer that was cut is no new one",
        ),
        pytest.param(
            [BEGINS, CUTS, ENDS, ASKS, BEGINS],
            "begins interruption ends begins",
            id="a new answer right after it is one",
        ),
    ],
)
async def test_interruptions(frames: list[type[Any]], moments: str) -> None:
    seen = Observed()
    await seen.push(*(frame() for frame in frames))
    names = {
        "begins": "bot_speech_started",
        "ends": "bot_speech_stopped",
        "asked": "user_turn_stopped",
    }
    assert seen.moments == [names.get(each, each) for each in moments.split()]


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
    assert told[-1] == {
        "kind": "user_speech_stopped",
        "timestamp": pytest.approx(11.2),
        "started_at": 10.0,
    }


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (EndFrame(), "ended"),
        (EndFrame(reason="goodbye"), "goodbye"),
        (CancelFrame(), "cancelled"),
        (CancelFrame(reason="x" * 999), "x" * 256),
    ],
)
async def test_the_end_is_told_when_everything_is_over(
    frame: EndFrame | CancelFrame, reason: str
) -> None:
    seen = Observed(agent="desk", tenant="t", environment="test", goals="g", pipeline_type="s2s")
    await seen.push(frame)
    # the last sentence may still be spoken
    assert [event["type"] for event in seen.events] == ["call_started"]
    await seen.observer.cleanup()
    await seen.observer.cleanup()
    labels = {
        "agent": "desk",
        "tenant": "t",
        "environment": "test",
        "goals": "g",
        "pipeline_type": "s2s",
    }
    assert seen.events[0].items() >= labels.items()
    assert [event.get("reason") for event in seen.events] == [None, reason]


async def test_the_first_end_gives_the_reason_and_nothing_seen_is_no_call() -> None:
    seen, nothing = Observed(), Observed()
    await seen.push(EndFrame(reason="goodbye"), CancelFrame())
    await seen.observer.cleanup()
    await nothing.observer.cleanup()
    assert (seen.events[-1]["reason"], nothing.events) == ("goodbye", [])


async def test_callgauge_knows_every_event() -> None:
    seen = Observed(agent="desk")
    await seen.push(
        VADUserStartedSpeakingFrame(), UserStartedSpeakingFrame(), BEGINS(), CUTS(), EndFrame()
    )
    await seen.observer.cleanup()
    events = [decode(InputSource.PIPECAT, json.dumps(event).encode()) for event in seen.events]
    assert len(events) == 6
    assert not [event for event in events if isinstance(event, UnrecognizedEvent)]
    assert all((event.model_extra or {}).keys() <= {"conversation_id"} for event in events)
    # a file may have several calls
    assert {event["conversation_id"] for event in seen.events} == {"call-1"}
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


STAMP = "2026-11-22T18:03:14.898+00:00"


def word(text: str) -> TTSTextFrame:
    return TTSTextFrame(text, text_type="word")


async def test_words_count_when_they_leave_the_output_transport() -> None:
    seen = Observed()
    await seen.push(word("never"), word("heard"))  # pushed at synthesis, seconds ahead
    assert seen.of("tts_text") == []
    await seen.leaves_the_line(word("Good"), word("day."))
    assert seen.of("tts_text") == [{"frame": "Good"}, {"frame": "day."}]


async def test_a_message_says_whether_the_bot_was_cut() -> None:
    seen = Observed()
    whole = LLMContextAssistantTurnFrame("All of it.", STAMP)
    cut = LLMContextAssistantTurnFrame("A part", STAMP)
    await seen.push(ASKS(), BEGINS(), ENDS(), CUTS(), whole)
    await seen.push(ASKS(), BEGINS(), CUTS(), ENDS(), cut)
    await seen.push(LLMContextUserTurnFrame("Stop.", STAMP))
    assert [(each["content"], each["interrupted"]) for each in seen.of("assistant_message")] == [
        ("All of it.", False),
        ("A part", True),
    ]
    assert seen.of("user_message") == [{"content": "Stop.", "timestamp": STAMP}]


async def test_words_can_stay_in_the_bot() -> None:
    seen = Observed(words=False)
    await seen.leaves_the_line(word("Good"))
    await seen.push(
        LLMContextUserTurnFrame("My number", STAMP), LLMContextAssistantTurnFrame("Good day", STAMP)
    )
    assert [event["type"] for event in seen.events] == ["call_started"]


def running(call_id: str, **arguments: Any) -> FunctionCallInProgressFrame:
    return FunctionCallInProgressFrame("find", call_id, arguments, cancel_on_interruption=True)


def answered(call_id: str, result: object, **more: Any) -> FunctionCallResultFrame:
    return FunctionCallResultFrame("find", call_id, {}, result, **more)


async def test_a_tool_is_told_from_its_request_to_its_end() -> None:
    seen = Observed(tool_results=True)
    asked = FunctionCallsStartedFrame(
        [FunctionCallFromLLM("find", "c1", {"code": "A1"}, context=None)]
    )
    await seen.push(asked, running("c1", code="A1"), answered("c1", {"visit": 7}))
    await seen.push(running("c2"), FunctionCallCancelFrame("find", "c2"))
    await seen.push(running("c3"), FunctionCallCancelFrame("find", "c3", run_llm=True))
    await seen.push(running("c4"), answered("c4", "spoken to the model", error="no database"))
    told = seen.of("function_call_event")
    assert [each["kind"].removeprefix("function_call_") for each in told] == [
        "started",
        "in_progress",
        "completed",
        "in_progress",
        "cancelled",
        "in_progress",
        "timed_out",
        "in_progress",
        "failed",
    ]
    assert (told[1]["arguments"], told[1]["started_at"]) == ({"code": "A1"}, told[0]["timestamp"])
    assert (told[2]["result"], told[2]["in_progress_at"]) == ({"visit": 7}, told[1]["timestamp"])
    assert "result" not in told[-1]
    assert told[-1]["error"] == "no database"


@pytest.mark.parametrize(
    ("result", "status"),
    [
        ({"status": "error", "card": "4111"}, "error"),
        ('{"error": "no such card 4111"}', "error"),
        ({"card": "4111"}, "success"),
        ("4111", "success"),
        ("{4111", "success"),
        (None, "success"),
    ],
)
async def test_a_result_that_stays_in_the_bot_still_says_whether_the_tool_failed(
    result: object, status: str
) -> None:
    seen = Observed()
    await seen.push(answered("c1", result))
    assert seen.of("function_call_event")[0]["result"] == {"status": status, "withheld": True}


async def test_a_progress_report_ends_no_tool_and_arguments_can_stay() -> None:
    seen = Observed(tool_arguments=False)
    report = answered("c1", "half", properties=FunctionCallResultProperties(is_final=False))
    await seen.push(running("c1", card="x"), report)
    assert [each["kind"] for each in seen.of("function_call_event")] == [
        "function_call_in_progress"
    ]
    assert "arguments" not in seen.of("function_call_event")[0]


async def test_the_system_message_is_told_once_and_when_it_changes() -> None:
    seen, silent = Observed(), Observed(words=False)
    first = LLMContext(
        [{"role": "system", "content": "Never refund."}, {"role": "user", "content": "Hi"}]
    )
    parts = LLMContext([{"role": "developer", "content": [{"type": "text", "text": "Ask first."}]}])
    wordless: Any = {"role": "system"}
    others = [
        LLMContext([]),
        LLMContext([{"role": "user", "content": "Hi"}]),
        LLMContext([wordless]),
    ]
    for context in (first, first, parts, *others):
        await seen.push(LLMContextFrame(context))
        await silent.push(LLMContextFrame(context))
    told = [event["instructions"] for event in seen.events if "instructions" in event]
    assert told == ["Never refund.", "Ask first."]
    assert not [event for event in silent.events if "instructions" in event]


async def test_the_tools_of_the_agent_are_told_once_and_when_they_change() -> None:
    seen = Observed()
    find = FunctionSchema("find", "Finds.", {"code": {"type": "string"}}, ["code"])
    context = LLMContext([], tools=[find])
    await seen.push(LLMContextFrame(context), LLMContextFrame(context))
    context.set_tools([find, FunctionSchema("book", "Books.", {}, [])])
    await seen.push(LLMContextFrame(context))
    told = [event["tools"] for event in seen.events if "tools" in event]
    parameters = {
        "type": "object",
        "properties": {"code": {"type": "string"}},
        "required": ["code"],
    }
    assert told[0] == [{"name": "find", "parameters": parameters}]
    assert [[tool["name"] for tool in tools] for tools in told] == [["find"], ["find", "book"]]


async def test_numbers_are_told_in_pipecats_records_and_zeros_are_not() -> None:
    seen = Observed()
    llm = {"processor": "XLLMService#0", "model": "m"}
    await seen.push(
        MetricsFrame(
            [
                TTFBMetricsData(processor="XTTSService#0", value=0.0),
                TTFBMetricsData(**llm, value=0.25),
            ]
        ),
        MetricsFrame([TTFAMetricsData(**llm, ttfa=0.5, ttfb=0.25, leading_silence=0.25)]),
        MetricsFrame(
            [
                LLMUsageMetricsData(
                    **llm,
                    value=LLMTokenUsage(prompt_tokens=9, completion_tokens=3, total_tokens=12),
                )
            ]
        ),
        MetricsFrame([TTSUsageMetricsData(processor="XTTSService#0", value=12)]),
        MetricsFrame([STTUsageMetricsData(processor="s", value=STTUsage(audio_seconds=1.5))]),
        MetricsFrame(
            [
                ProcessingMetricsData(**llm, value=0.9),
                ProcessingMetricsData(processor="XTTSService#0", value=0.9),
            ]
        ),
        MetricsFrame([TextAggregationMetricsData(processor="XTTSService#0", value=0.1)]),
        MetricsFrame(
            [
                TurnMetricsData(
                    processor="t", is_complete=True, probability=0.9, e2e_processing_time_ms=45
                )
            ]
        ),
        direction=UP,
    )
    assert [(d["kind"], d["seconds"]) for d in seen.of("service_latency")] == [("ttfb", 0.25)]
    assert [d["kind"] for d in seen.of("service_usage")] == ["llm", "tts", "stt"]
    assert seen.of("service_usage")[0]["total_tokens"] == 12
    plain = {event["type"]: event["value"] for event in seen.events if "value" in event}
    assert plain == {
        "ProcessingMetricsData": 0.9,
        "TextAggregationMetricsData": 0.1,
        "TurnMetricsData": {
            "is_complete": True,
            "probability": 0.9,
            "e2e_processing_time_ms": 45.0,
        },
    }
    decoded = [decode(InputSource.PIPECAT, json.dumps(event).encode()) for event in seen.events]
    assert not [event for event in decoded if isinstance(event, UnrecognizedEvent)]


async def test_an_error_of_a_processor_is_told() -> None:
    seen = Observed()
    await seen.push(ErrorFrame("the model is down"), direction=UP)
    assert seen.of("error") == [{"message": "the model is down"}]
