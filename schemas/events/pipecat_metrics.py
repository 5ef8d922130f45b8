"""One number of a pipecat `MetricsFrame`, in the shape in which EVA logs it (`pipecat_metrics.jsonl`)."""

from typing import Any, Literal

from schemas.wire import Name, WireModel, WireTimeMs


class PipecatMetric(WireModel):
    """A service reports how long it took or what it used; `type` is the name of pipecat's class, and decides the unit.

    `value` is a number, or the fields of a class without one. `stage` is only EVA's: it stands in a `LatencyMetric`.
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
