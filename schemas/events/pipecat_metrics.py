"""One number of a pipecat `MetricsFrame`, in the shape in which EVA logs it (`pipecat_metrics.jsonl`)."""

from typing import Any, Literal

from schemas.wire import Name, WireModel, WireTimeMs


class PipecatMetric(WireModel):
    """A latency or usage that a service reports. `type` is the name of pipecat's class, which decides the unit.

    `value` is a number, or the fields of a class with several. `stage` is EVA's own field of a `LatencyMetric`.
    """

    type: Literal[
        "TTFBMetricsData",
        "TTFAMetricsData",
        "TTFATMetricsData",
        "ProcessingMetricsData",
        "LLMUsageMetricsData",
        "LLMTokenUsageMetricsData",
        "STTUsageMetricsData",
        "TTSUsageMetricsData",
        "TextAggregationMetricsData",
        "TurnMetricsData",
        "SmartTurnMetricsData",
        "LatencyMetric",
    ]
    timestamp: WireTimeMs
    processor: Name | None = None
    model: Name | None = None
    stage: Name | None = None
    value: Any = None
    conversation_id: Name | None = None
