"""The tables of stages against the real records of pipecat and ElevenLabs: models and names of
their installed packages.
"""

import asyncio
import json
import re
import warnings
from pathlib import Path
from typing import Any

import pytest

from consumers.engine.sources.findings import EventFindings
from consumers.engine.sources.rules import RULES
from consumers.engine.turns.bot import TokenUsage
from schemas.closed_sets import InputSource
from schemas.events.codec import decode
from schemas.events.pipecat import PipecatMetric
from schemas.scores.latency_stages import (
    AMOUNT_METRICS,
    CONTRIBUTIONS,
    CONVAI_METRICS,
    CONVAI_NAMES,
    LATENCY_METRIC,
    PIPECAT_METRICS,
    SEVERAL,
    TOKEN_METRICS,
    ServiceKind,
    Stage,
    service_kind,
)
from tests.support.patience import patient

with warnings.catch_warnings():
    # pipecat imports a module that Python deprecates
    warnings.simplefilter("ignore", DeprecationWarning)
    import pipecat
    from pipecat.frames import frames
    from pipecat.metrics import metrics
    from pipecat.observers import service_metrics_observer as services
    from pipecat.observers import user_bot_latency_observer as latency
    from pipecat.observers.base_observer import FramePushed
    from pipecat.processors.frame_processor import FrameDirection

AT_S = 1_790_000_000.0
AT_MS = 1_790_000_000_000

PACKAGE = Path(pipecat.__file__).parent
TOKENS = metrics.LLMTokenUsage(
    prompt_tokens=900, completion_tokens=40, total_tokens=1040, cache_read_input_tokens=100
)  # of a service that counts the prompt without the cache


def findings(event: dict[str, Any]) -> EventFindings:
    """An event, as it is read from its bytes."""
    typed = decode(
        InputSource.PIPECAT, json.dumps({"timestamp": AT_MS} | event, allow_nan=False).encode()
    )
    (found,) = RULES[type(typed)].facts(typed)
    assert isinstance(found, EventFindings)
    return found


def stages(event: dict[str, Any]) -> dict[Stage, float]:
    """Seconds by stage; nothing about it is unknown."""
    found = findings(event)
    assert found.unknown == []
    return {value.stage: round(value.seconds, 6) for value in found.measured}


def as_eva_logs(data: metrics.MetricsData) -> dict[str, Any]:
    """A pipecat metric in the shape of EVA's file: the value, or the fields of a class that has
    none.
    """
    fields = data.model_dump(exclude={"processor", "model"})
    value = fields["value"] if set(fields) == {"value"} else fields
    return {
        "type": type(data).__name__,
        "processor": data.processor,
        "model": data.model,
        "value": value,
    }


def as_observed(kind: str, record: Any) -> dict[str, Any]:
    return {"type": kind, "data": json.loads(record.model_dump_json(exclude_none=True))}


def classes_of(path: Path) -> set[str]:
    return set(re.findall(r"^class (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE))


def test_every_class_of_pipecat_s_metrics_is_in_a_table() -> None:
    module = PACKAGE / "metrics" / "metrics.py"
    classes = {name for name in classes_of(module) if name.endswith("MetricsData")} - {
        "MetricsData"
    }
    # a time to first byte, which is also reported by itself
    contain_another = {"TTFAMetricsData", "TTFATMetricsData"}
    known = {*PIPECAT_METRICS, *TOKEN_METRICS, *AMOUNT_METRICS, *contain_another}
    assert known - {"LLMTokenUsageMetricsData"} == classes  # that one is EVA's own name
    carried = PipecatMetric.model_json_schema()["properties"]["type"]["enum"]
    assert set(carried) == known | {LATENCY_METRIC}


def test_every_key_of_pipecat_s_contributions_is_a_stage_of_its_own() -> None:
    keys = {span.key for span in latency._SPANS} | {
        latency._AWAITING_SPEAKABLE_TEXT.key,
        "pipeline",
    }
    assert set(CONTRIBUTIONS) == keys
    assert len(keys) == 14
    assert {stage.value for stage in CONTRIBUTIONS.values()} == keys


def test_a_service_is_told_by_its_class() -> None:
    """Of all services of the package: the folder is named after the vendor, the module after the
    kind of service.
    """
    found: dict[ServiceKind, int] = dict.fromkeys(ServiceKind, 0)
    for kind in ServiceKind:
        for path in (PACKAGE / "services").rglob(f"{kind.lower()}.py"):
            for name in classes_of(path):
                if re.fullmatch(rf"[A-Z]\w+{kind}Service", name):
                    found[kind] += 1
                    assert service_kind(f"{name}#0") is kind, name
    assert all(number > 10 for number in found.values()), found
    assert (
        service_kind("SimliVideoService#0")
        is service_kind("Mem0MemoryService#0")
        is service_kind("")
        is None
    )


def test_names_of_turn_metrics_are_those_of_the_transcript_schema() -> None:
    seed = {
        "convai_tts_service_ttfb",
        "convai_llm_service_ttfb",
        "convai_llm_service_ttf_sentence",
        "convai_llm_service_tt_last_sentence",
        "convai_asr_trailing_service_latency",
        "convai_llm_tool_request_generation_latency",
    }
    assert seed < set(CONVAI_NAMES.values()) < set(CONVAI_METRICS)
    assert CONVAI_METRICS["convai_turn_asr_latency"].is_copy
    assert len(CONVAI_NAMES) == len(set(CONVAI_NAMES.values()))


def test_every_stage_has_a_rule_for_several_values() -> None:
    assert set(SEVERAL) == set(Stage)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (
            metrics.TTFBMetricsData(processor="DeepgramSTTService#0", model="nova-3", value=0.3),
            {Stage.STT_TRAILING: 0.3},
        ),
        (
            metrics.TTFBMetricsData(processor="OpenAILLMService#0", value=0.5),
            {Stage.LLM_FIRST_TOKEN: 0.5},
        ),
        (
            metrics.TTFBMetricsData(processor="CartesiaTTSService#1", value=0.2),
            {Stage.TTS_FIRST_BYTE: 0.2},
        ),
        (metrics.TTFBMetricsData(processor="CartesiaTTSService#1", value=0.0), {}),
        (
            metrics.ProcessingMetricsData(processor="OpenAILLMService#0", value=1.5),
            {Stage.LLM_LAST_SENTENCE: 1.5},
        ),
        (metrics.ProcessingMetricsData(processor="CartesiaTTSService#1", value=1.5), {}),
        (metrics.ProcessingMetricsData(processor="BenchmarkAgentProcessor#0", value=1.5), {}),
        (
            metrics.TextAggregationMetricsData(processor="CartesiaTTSService#1", value=0.1),
            {Stage.SENTENCE_AGGREGATION: 0.1},
        ),
        (
            metrics.TurnMetricsData(
                processor="LLMUserAggregator#0",
                is_complete=True,
                probability=1,
                e2e_processing_time_ms=45,
            ),
            {Stage.TURN_ANALYZER: 0.045},
        ),
        (
            metrics.TTFAMetricsData(
                processor="CartesiaTTSService#1", ttfa=0.3, ttfb=0.2, leading_silence=0.1
            ),
            {},
        ),
        (
            metrics.TTFATMetricsData(
                processor="OpenAILLMService#0", ttfat=0.8, ttfb=0.5, thinking_time=0.3
            ),
            {},
        ),
        (metrics.TTSUsageMetricsData(processor="CartesiaTTSService#1", value=40), {}),
        (
            metrics.STTUsageMetricsData(
                processor="DeepgramSTTService#0", value=metrics.STTUsage(audio_seconds=2.5)
            ),
            {},
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, metrics.MetricsData) else "",
)
def test_a_metric_of_pipecat_s_is_read_in_its_unit(
    data: metrics.MetricsData, expected: dict[Stage, float]
) -> None:
    assert stages(as_eva_logs(data)) == expected


@pytest.mark.parametrize("ends", [True, False])
def test_a_value_begins_before_it_is_reported(*, ends: bool) -> None:
    data = metrics.TTFBMetricsData(processor="OpenAILLMService#0", model="gpt-4.1-mini", value=0.5)
    if ends:
        (value,) = findings(as_eva_logs(data)).measured
    else:
        record = services.ServiceLatencyRecord(
            kind="ttfb",
            processor=data.processor,
            model=data.model,
            timestamp=AT_S,
            seconds=data.value,
        )
        (value,) = findings(
            as_observed("service_latency", record) | {"timestamp": AT_MS + 900}
        ).measured
    assert (value.begin_s, value.model) == (AT_S - 0.5, "gpt-4.1-mini")


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        ("stt", Stage.STT_TRAILING),
        ("tts", Stage.TTS_FIRST_BYTE),
        ("model_response", Stage.VOICE_TO_VOICE),
    ],
)
def test_what_eva_writes_for_other_frameworks(stage: str, expected: Stage) -> None:
    assert stages({"type": "LatencyMetric", "stage": stage, "model": "m", "value": 0.84}) == {
        expected: 0.84
    }


@pytest.mark.parametrize(
    ("kind", "processor", "expected"),
    [
        ("ttfb", "AzureSTTService#0", {Stage.STT_TRAILING: 0.25}),
        ("ttfb", "AnthropicLLMService#0", {Stage.LLM_FIRST_TOKEN: 0.25}),
        ("ttfb", "ElevenLabsTTSService#3", {Stage.TTS_FIRST_BYTE: 0.25}),
        ("ttfa", "ElevenLabsTTSService#3", {}),
        ("ttfat", "AnthropicLLMService#0", {}),
    ],
)
def test_a_record_of_a_service_s_latency(
    kind: str, processor: str, expected: dict[Stage, float]
) -> None:
    record = services.ServiceLatencyRecord(
        kind=kind, processor=processor, timestamp=AT_S, seconds=0.25, ttfb_secs=0.2
    )
    assert stages(as_observed("service_latency", record)) == expected


def test_whole_latencies() -> None:
    for data in ({"latency_seconds": 1.2}, 1.2):
        assert stages({"type": "user_bot_latency", "data": data}) == {Stage.VOICE_TO_VOICE: 1.2}
        assert stages({"type": "first_bot_speech_latency", "data": data}) == {
            Stage.FIRST_SPEECH: 1.2
        }


def test_tokens_are_counted_apart_from_the_cache() -> None:
    expected = TokenUsage(
        input_tokens=900, cache_read_tokens=100, cache_write_tokens=0, output_tokens=40
    )
    data = metrics.LLMUsageMetricsData(
        processor="AnthropicLLMService#0", model="claude", value=TOKENS
    )
    record = services.ServiceUsageRecord(
        kind="llm", processor=data.processor, model="claude", timestamp=AT_S, **TOKENS.model_dump()
    )
    # of a service that counts the prompt with the cache
    gross = TOKENS.model_copy(update={"prompt_tokens": 1000})
    for event in (
        as_eva_logs(data),
        as_eva_logs(data.model_copy(update={"value": gross})),
        as_eva_logs(data) | {"type": "LLMTokenUsageMetricsData"},
        as_observed("service_usage", record),
    ):
        (used,) = findings(event).used
        assert (used.usage, used.model, used.at_s) == (expected, "claude", AT_S)
    stt = services.ServiceUsageRecord(
        kind="stt", processor="DeepgramSTTService#0", timestamp=AT_S, audio_seconds=2
    )
    (heard,) = findings(as_observed("service_usage", stt)).used
    assert (heard.kind, heard.provider, heard.amount, any(heard.usage)) == (
        "STT",
        "Deepgram",
        2.0,
        False,
    )


class Source:
    """A processor, as far as the observer looks at it."""

    def __init__(self, name: str) -> None:
        self.name = name


async def observed_breakdown() -> latency.LatencyBreakdown:
    """One turn as pipecat's own observer reports it: 200 ms of silence, 200 of transcription, 500
    of the model, 200 of speech.
    """
    now_s = AT_S
    done = asyncio.Event()
    observer = latency.UserBotLatencyObserver(time_source=lambda: now_s)
    found = []

    async def keep(_observer: object, breakdown: latency.LatencyBreakdown) -> None:
        found.append(breakdown)
        done.set()

    observer.add_event_handler("on_latency_breakdown", keep)

    async def push(frame: frames.Frame, after_ms: int = 0, by: str = "Transport#0") -> None:
        nonlocal now_s
        now_s += after_ms / 1000
        source: Any = Source(by)
        await observer.on_push_frame(
            FramePushed(
                source=source,
                destination=source,
                frame=frame,
                direction=FrameDirection.DOWNSTREAM,
                timestamp=0,
            )
        )

    model = "OpenAILLMService#0"
    await push(frames.VADUserStartedSpeakingFrame())
    await push(frames.VADUserStoppedSpeakingFrame(stop_secs=0.2, timestamp=AT_S + 2.2), 2200)
    await push(frames.TranscriptionFrame("hi", "user", "now"), 200, "DeepgramSTTService#0")
    await push(frames.UserStoppedSpeakingFrame())
    await push(frames.LLMFullResponseStartFrame(), by=model)
    ttfb = metrics.TTFBMetricsData(processor=model, model="m", value=0.5)
    await push(frames.MetricsFrame(data=[ttfb]), 500, model)
    await push(frames.LLMTextFrame("Hello"), by=model)
    await push(
        frames.TTSAudioRawFrame(audio=b"", sample_rate=8000, num_channels=1),
        200,
        "CartesiaTTSService#0",
    )
    await push(frames.BotStartedSpeakingFrame())
    await asyncio.wait_for(done.wait(), patient(10))
    return found[0]


async def test_a_breakdown_of_pipecat_s_own_observer() -> None:
    breakdown = await observed_breakdown()
    parts = {
        Stage.ENDPOINTING_WAIT: 0.2,
        Stage.TRANSCRIPTION: 0.2,
        Stage.LLM_INFERENCE: 0.5,
        Stage.SPEECH_SYNTHESIS: 0.2,
    }
    found = stages(as_observed("latency_breakdown", breakdown))
    assert found == {
        **parts,
        Stage.VOICE_TO_VOICE: 1.1,
        Stage.ENDPOINTING: 0.4,
        Stage.LLM_FIRST_TOKEN: 0.5,
    }
    assert round(sum(parts.values()), 6) == 1.1, "the parts tile the whole"


def contribution(key: str, start_s: float, seconds: float) -> latency.LatencyContribution:
    return latency.LatencyContribution(
        key=key,
        label=key,
        owner="o",
        owner_kind="service",
        start_time=start_s,
        duration_secs=seconds,
    )


def test_parts_of_one_key_are_one_stage_and_the_first_tool_call_takes_inference_with_it() -> None:
    breakdown = latency.LatencyBreakdown(
        contributions=[
            contribution("llm_inference", AT_S, 0.5),
            contribution("llm_tool_call", AT_S + 0.5, 0.25),
            contribution("function_handler", AT_S + 0.75, 0.5),
            contribution("llm_inference", AT_S + 1.25, 0.25),
        ],
        measured_from="client_connected",
        total_secs=1.5,
        text_aggregation=latency.TextAggregationBreakdownMetrics(
            processor="CartesiaTTSService#0", start_time=AT_S + 1.5, duration_secs=0.125
        ),
        function_calls=[
            latency.FunctionCallMetrics(
                function_name="look", start_time=AT_S + 0.75, duration_secs=0.4
            ),
            latency.FunctionCallMetrics(
                function_name="find", start_time=AT_S + 0.75, duration_secs=0.5
            ),
        ],
    )
    found = findings(as_observed("latency_breakdown", breakdown))
    assert {(value.stage, value.seconds) for value in found.measured} == {
        (Stage.LLM_INFERENCE, 0.75),
        (Stage.LLM_TOOL_CALL, 0.25),
        (Stage.TOOL_REQUEST, 0.75),
        (Stage.FUNCTION_HANDLER, 0.5),
        (Stage.SENTENCE_AGGREGATION, 0.125),
        (Stage.TOOL_RUN, 0.4),
        (Stage.TOOL_RUN, 0.5),
    }, "a greeting has no voice to voice"
    assert {value.begin_s for value in found.measured if value.stage is Stage.TOOL_REQUEST} == {
        AT_S
    }
