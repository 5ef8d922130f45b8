"""Reported values that are left out, and those that are named: zeros, nonsense, other frameworks' words."""

import json
from typing import Any

import pytest

from consumers.engine.measures.stages import MAX_ITEMS, Findings, Measured, findings_of
from consumers.engine.turns.bot import TokenUsage
from schemas.closed_sets import InputSource
from schemas.events.codec import decode
from schemas.scores.latency_stages import Stage, StageSource

AT_MS = 1_790_000_000_000
AT_S = AT_MS / 1000


def read(source: InputSource, event: dict[str, Any]) -> Findings:
    found = findings_of(decode(source, json.dumps({"timestamp": AT_MS} | event).encode()), AT_MS)
    assert found is not None
    return found


def pipecat(event: dict[str, Any]) -> Findings:
    return read(InputSource.PIPECAT, event)


def metric(value: Any, kind: str = "TTFBMetricsData", processor: str | None = "OneLLMService#0") -> dict[str, Any]:
    return {"type": kind, "processor": processor, "model": None, "value": value}


def observed(kind: str, data: Any) -> dict[str, Any]:
    return {"type": kind, "data": data}


@pytest.mark.parametrize("value", [0, 0.0, -0.0])
def test_a_first_report_of_zero_is_no_value_and_nothing_unknown(value: float) -> None:
    found = pipecat(metric(value))
    assert (found.measured, found.unknown) == ([], [])


@pytest.mark.parametrize(
    ("event", "key"),
    [
        (metric(-0.1), "TTFBMetricsData of OneLLMService#0"),
        (metric(601), "TTFBMetricsData of OneLLMService#0"),
        (metric(10**400), "TTFBMetricsData of OneLLMService#0"),
        (metric("0.5"), "TTFBMetricsData of OneLLMService#0"),
        (metric(None), "TTFBMetricsData of OneLLMService#0"),
        (metric(True), "TTFBMetricsData of OneLLMService#0"),
        (metric({"value": 1}), "TTFBMetricsData of OneLLMService#0"),
        (metric(0.5, processor="OneVideoService#0"), "TTFBMetricsData of OneVideoService#0"),
        (metric(0.5, processor=None), "TTFBMetricsData of None"),
        (metric(0.5, "TurnMetricsData"), "TurnMetricsData of OneLLMService#0"),
        (metric({"e2e_processing_time_ms": 10**400}, "TurnMetricsData"), "TurnMetricsData of OneLLMService#0"),
        (metric([], "LLMUsageMetricsData"), "LLMUsageMetricsData"),
        (metric(0.5, "LatencyMetric") | {"stage": "vad"}, "LatencyMetric vad"),
        (metric(0.5, "LatencyMetric"), "LatencyMetric None"),
        (observed("user_bot_latency", {"latency": 1}), "voice_to_voice"),
        (observed("first_bot_speech_latency", None), "first_speech"),
        (observed("service_latency", None), "service_latency NoneType of "),
        (observed("service_latency", {"kind": "ttfb", "processor": "OneLLMService#0"}), "service_latency ttfb of OneLLMService#0"),
        (observed("service_latency", {"kind": ["x"], "seconds": 1}), "service_latency list of "),
        (observed("service_latency", {"kind": "ttlb", "processor": "XLLM#0", "seconds": 1}), "service_latency ttlb of XLLM#0"),
        (observed("latency_breakdown", {"contributions": [{"key": "thinking", "duration_secs": 1}]}), "contribution thinking"),
        (observed("latency_breakdown", {"contributions": [{"key": "pipeline", "duration_secs": -1}]}), "contribution pipeline"),
        (observed("latency_breakdown", {"contributions": [{"key": "pipeline", "duration_secs": 10**400}]}), "contribution pipeline"),
        (observed("latency_breakdown", {"contributions": [{"key": {}}]}), "contribution dict"),
        (observed("latency_breakdown", {"ttfb": [{"processor": "Other#0", "duration_secs": 1}]}), "ttfb of Other#0"),
        (observed("latency_breakdown", {"measured_from": "user_silence", "total_secs": "1"}), "total_secs"),
        (observed("latency_breakdown", {"user_turn_secs": -1}), "user_turn_secs"),
    ],
)  # fmt: skip
def test_what_no_table_has_is_named(event: dict[str, Any], key: str) -> None:
    found = pipecat(event)
    assert (found.measured, found.used, found.unknown) == ([], [], [key])


@pytest.mark.parametrize(
    "data", [None, 1, "x", [], {}, {"contributions": {}, "ttfb": 3, "function_calls": [4], "text_aggregation": 1}]
)
def test_a_breakdown_of_another_shape_says_nothing(data: Any) -> None:
    found = pipecat(observed("latency_breakdown", data))
    assert (found.measured, found.unknown) == ([], [])


@pytest.mark.parametrize("kind", ["startup_timing", "transport_timing", "turn_started", "user_message"])
def test_other_records_are_about_something_else(kind: str) -> None:
    event = decode(InputSource.PIPECAT, json.dumps({"timestamp": AT_MS, "type": kind, "data": {"seconds": 1}}).encode())
    assert findings_of(event, AT_MS) is None


def test_times_that_are_no_times_fall_back_to_the_event_s() -> None:
    for stamp in (10**400, "now", None, True):
        data = {"kind": "ttfb", "processor": "OneTTSService#0", "seconds": 0.5, "timestamp": stamp}
        (value,) = pipecat(observed("service_latency", data)).measured
        assert value.begin_s == AT_S - 0.5


def test_only_so_many_entries_of_a_list_are_read() -> None:
    parts = [{"key": "pipeline", "duration_secs": 0.01}] * (MAX_ITEMS + 10)
    (value,) = pipecat(observed("latency_breakdown", {"contributions": parts})).measured
    assert round(value.seconds, 6) == MAX_ITEMS / 100


def test_a_tool_s_run_is_known_when_it_has_answered() -> None:
    def event(kind: str, **fields: Any) -> Findings:
        times = {"timestamp": AT_S + 2, "in_progress_at": AT_S + 0.5}
        return pipecat(observed("function_call_event", {"kind": kind, "function_name": "look", **times, **fields}))

    expected = Measured(AT_S + 0.5, Stage.TOOL_RUN, StageSource.PIPECAT, 1.5)
    for moment in ("completed", "failed", "timed_out"):  # a wait for a tool lasts until its deadline too
        assert event(f"function_call_{moment}").measured == [expected]
    assert event("function_call_cancelled").measured == []
    assert event("function_call_in_progress").measured == []
    assert event("function_call_completed", in_progress_at=None).measured == []


@pytest.mark.parametrize(
    ("response", "stage"),
    [("Certainly.", Stage.LLM_LAST_SENTENCE), ("", Stage.TOOL_REQUEST), (None, Stage.TOOL_REQUEST)],
)
def test_a_step_of_the_model_in_the_audit_log(response: str | None, stage: Stage) -> None:
    entry = {"message_type": "llm_call", "value": {"agent": "desk", "response": response}, "latency_ms": 1643.0}
    usage = {"prompt_tokens": 100, "completion_tokens": 20}
    found = read(InputSource.AUDIT, entry | {"model": "gpt", "usage": usage})
    assert found.measured == [Measured(AT_S - 1.643, stage, StageSource.AUDIT, 1.643, 0, "gpt")]
    assert [used.usage for used in found.used] == [TokenUsage(100, 0, 0, 20)]
    nothing = read(InputSource.AUDIT, entry | {"latency_ms": None})
    assert (nothing.measured, nothing.used, nothing.unknown) == ([], [], [])


@pytest.mark.parametrize("latency_ms", ["soon", {}, -5, 10**400])
def test_a_step_without_a_readable_latency(latency_ms: Any) -> None:
    found = read(InputSource.AUDIT, {"message_type": "llm_call", "value": "Yes", "latency_ms": latency_ms})
    assert (found.measured, found.unknown) == ([], ["llm_call latency_ms"])


@pytest.mark.parametrize("count", [-1, 10**10, 10**400, "9", True])
def test_a_count_of_tokens_that_is_none_is_left_out(count: Any) -> None:
    usage = {"prompt_tokens": count, "completion_tokens": 7}
    (used,) = pipecat(metric(usage, "LLMUsageMetricsData")).used
    assert used.usage == TokenUsage(0, 0, 0, 7)
    assert pipecat(metric({"prompt_tokens": count}, "LLMUsageMetricsData")).used == []
