"""Metrics of the services of a simulated call: pipecat's metrics as EVA logs them, and the figures of the model."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from streamer.sources.simulator.plan import CallPlan, Step

_STT = "CartesiaSTTService#0"
_TTS = "CartesiaTTSService#1"
_STT_MODEL, _TTS_MODEL, _LLM_MODEL, _REALTIME_MODEL = "ink-whisper", "sonic-3", "gpt-4.1-mini", "gpt-realtime"
_STARTED_MS: Final = 600
"""How long after the line is opened every service reports zeros."""
_PLAYBACK_MS: Final = 30
"""From the first byte of speech to its first sound on the line."""

TimedEvent = tuple[int, Mapping[str, Any]]
"""When it is produced (epoch ms), and the event."""


def pipecat_metrics(plan: CallPlan) -> Iterator[TimedEvent]:
    """Metrics of pipecat's transcriber and speech synthesis; those of the model are in the audit log."""
    for processor in (_STT, _TTS):
        for kind in ("TTFBMetricsData", "ProcessingMetricsData"):
            yield _metric(plan.start_ms + _STARTED_MS, kind, processor, None, 0.0)
    for turn in plan.turns:
        if turn.user and turn.heard_ms > turn.user.end_ms:
            waited_s = (turn.heard_ms - turn.user.end_ms) / 1000
            yield _metric(turn.heard_ms, "TTFBMetricsData", _STT, _STT_MODEL, waited_s)
        for step in turn.steps:
            first_byte_ms = step.speech.start_ms - _PLAYBACK_MS if step.speech else 0
            if step.speech and first_byte_ms > step.decided_ms:
                yield _metric(step.decided_ms, "TTSUsageMetricsData", _TTS, _TTS_MODEL, len(step.speech.text))
                waited_s = (first_byte_ms - step.decided_ms) / 1000
                yield _metric(first_byte_ms, "TTFBMetricsData", _TTS, _TTS_MODEL, waited_s)


def framework_metrics(plan: CallPlan) -> Iterator[TimedEvent]:
    """Metrics of a speech-to-speech framework: one latency for the whole answer, and its tokens."""
    for turn in plan.turns:
        spoken = next((step.speech for step in turn.steps if step.speech), None)
        if turn.user is None or spoken is None or spoken.start_ms - _PLAYBACK_MS <= turn.user.end_ms:
            continue
        at_ms = spoken.start_ms - _PLAYBACK_MS
        waited_s = (at_ms - turn.user.end_ms) / 1000
        latency = {"type": "LatencyMetric", "stage": "model_response", "model": _REALTIME_MODEL, "value": waited_s}
        yield at_ms, {"timestamp": at_ms, **latency}
        usage = {"prompt_tokens": 40 * len(turn.user.text.split()), "completion_tokens": 8 * len(spoken.text.split())}
        usage["total_tokens"] = sum(usage.values())
        yield _metric(spoken.end_ms, "LLMTokenUsageMetricsData", "realtime", _REALTIME_MODEL, usage)


def model_figures(step: Step) -> dict[str, Any]:
    """Figures of one step of the model in the audit log."""
    said = step.speech.text if step.speech else ""
    usage = {"prompt_tokens": 900, "completion_tokens": 20 + 2 * len(said.split())}
    usage["total_tokens"] = sum(usage.values())
    return {"model": _LLM_MODEL, "latency_ms": float(step.decided_ms - step.asked_ms), "usage": usage}


def _metric(at_ms: int, kind: str, processor: str, model: str | None, value: Any) -> TimedEvent:
    return at_ms, {"timestamp": at_ms, "type": kind, "processor": processor, "model": model, "value": value}
