"""EVA's `response_speed`: the user's wait for an answer, over all turns, and with and without tools."""

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any, Final

from consumers.engine.measures.eva.timing.turn_taking import turns_with_tools
from consumers.engine.records.eva_result import MetricResult, skipped
from schemas.metric_context import MetricContext

LONGEST_S: Final = 1000.0
"""A wait this long, in seconds, is a mistake in the recording."""
DIGITS: Final = 3


def response_speed(context: MetricContext, stage_mean_ms: Mapping[str, float] | None = None) -> MetricResult:
    """The metric with its sub-metrics.

    Args:
        context: EVA's context of the call.
        stage_mean_ms: Mean latency of a stage (`llm_latency`, `stt_latency`, `tts_latency`) from the run's result.
    """
    return speed_of(context.latency_assistant_turns, turns_with_tools(context), stage_mean_ms)


def speed_of(
    latency_s: Mapping[int, float], with_tools: Iterable[int], stage_mean_ms: Mapping[str, float] | None = None
) -> MetricResult:
    """The metric of these latencies by turn, in seconds, without waits that are none or cannot be true."""
    tool_turns = frozenset(with_tools)
    details = _summary(latency_s.values())
    if not details:
        return skipped()
    split = {
        "with_tool_calls": _summary(wait_s for turn, wait_s in latency_s.items() if turn in tool_turns),
        "no_tool_calls": _summary(wait_s for turn, wait_s in latency_s.items() if turn not in tool_turns),
    }
    parts: dict[str, float | None] = {name: part["mean_speed_seconds"] for name, part in split.items() if part}
    parts |= {stage: round(mean_ms / 1000, DIGITS) for stage, mean_ms in (stage_mean_ms or {}).items()}
    return MetricResult(details["mean_speed_seconds"], None, details, sub_metrics=parts)


def mean_of(values: Sequence[float]) -> float:
    """The mean, added one by one from the first: from Python 3.12 on sum() adds differently, and EVA's rounding shows it."""
    return reduce(add, values) / len(values)


def _summary(waits_s: Iterable[float]) -> dict[str, Any]:
    valid = [wait_s for wait_s in waits_s if 0 < wait_s < LONGEST_S]
    if not valid:
        return {}
    return {
        "max_speed_seconds": round(max(valid), DIGITS),
        "mean_speed_seconds": round(mean_of(valid), DIGITS),
        "num_turns": len(valid),
        "per_turn_speeds": [round(wait_s, DIGITS) for wait_s in valid],
    }
