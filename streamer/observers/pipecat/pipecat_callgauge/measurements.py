"""Numbers of an answer, in the records of pipecat's own observers: time and use of the services,
and the user's wait.

A metric for which pipecat's `ServiceMetricsObserver` has no record travels as pipecat's own metric.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

from callgauge_send.events import Rank

from pipecat_callgauge.frames import ByFrame

try:
    from pipecat.observers import user_bot_latency_observer as pipecats
except ImportError:  # before 0.0.102
    IS_THERE = False
else:
    # from 1.9 on; before, there are no parts to report
    IS_THERE = hasattr(pipecats, "LatencyContribution")

Emit = Callable[..., None]
"""Takes the rank, the type, and the fields of an event."""
Fields = dict[str, Any]

_TOKENS: Final = (
    "prompt_tokens",
    "completion_tokens",
    "total_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
    "reasoning_tokens",
    "input_audio_tokens",
    "output_audio_tokens",
    "cache_read_input_audio_tokens",
)


def metric_events(metric: Any, now_s: float) -> Iterator[tuple[str, Fields]]:
    """Yields the event of one metric: its type and fields.

    Zeros are a service's first report, before it did anything, and yield nothing. So do classes
    that repeat another one.
    """
    for kind in type(metric).__mro__:
        read = _BY_CLASS.get(kind.__name__)
        if read is not None:
            yield from read(metric, now_s)
            return


def _latency(metric: Any, now_s: float) -> Iterator[tuple[str, Fields]]:
    if metric.value > 0:
        yield (
            "service_latency",
            {"data": {"kind": "ttfb", **_service(metric, now_s), "seconds": metric.value}},
        )


def _tokens(metric: Any, now_s: float) -> Iterator[tuple[str, Fields]]:
    counts = {name: getattr(metric.value, name, None) for name in _TOKENS}
    if any(counts.values()):
        used = {name: count for name, count in counts.items() if count is not None}
        yield "service_usage", {"data": {"kind": "llm", **_service(metric, now_s), **used}}


def _characters(metric: Any, now_s: float) -> Iterator[tuple[str, Fields]]:
    if metric.value > 0:
        yield (
            "service_usage",
            {"data": {"kind": "tts", **_service(metric, now_s), "characters": metric.value}},
        )


def _audio(metric: Any, now_s: float) -> Iterator[tuple[str, Fields]]:
    if metric.value.audio_seconds > 0:
        data = {
            "kind": "stt",
            **_service(metric, now_s),
            "audio_seconds": metric.value.audio_seconds,
        }
        yield "service_usage", {"data": data}


def _answer_time(metric: Any, _now_s: float) -> Iterator[tuple[str, Fields]]:
    """The time of a model's whole answer; the busy time of other services says nothing about a
    turn.
    """
    if "LLM" in metric.processor and metric.value > 0:
        yield "ProcessingMetricsData", {**_names(metric), "value": metric.value}


def _aggregation(metric: Any, _now_s: float) -> Iterator[tuple[str, Fields]]:
    if metric.value > 0:
        yield "TextAggregationMetricsData", {**_names(metric), "value": metric.value}


def _turn_end(metric: Any, _now_s: float) -> Iterator[tuple[str, Fields]]:
    value = metric.model_dump(exclude={"processor", "model"}, exclude_none=True)
    yield type(metric).__name__, {**_names(metric), "value": value}


def _service(metric: Any, now_s: float) -> Fields:
    return {**_names(metric), "timestamp": now_s}


def _names(metric: Any) -> Fields:
    names = {"processor": metric.processor}
    return names if metric.model is None else {**names, "model": metric.model}


_BY_CLASS: Final[dict[str, Callable[[Any, float], Iterator[tuple[str, Fields]]]]] = {
    "TTFBMetricsData": _latency,
    "LLMUsageMetricsData": _tokens,
    "TTSUsageMetricsData": _characters,
    "STTUsageMetricsData": _audio,
    "ProcessingMetricsData": _answer_time,
    "TextAggregationMetricsData": _aggregation,
    "SmartTurnMetricsData": _turn_end,
    "TurnMetricsData": _turn_end,
}
"""Readers by the name of pipecat's class. Time to first audio and to the first token of an answer
repeat a time to first byte.
"""

READ: Final[ByFrame[bool]] = ByFrame(
    dict.fromkeys(
        (
            "BotStartedSpeakingFrame",
            "ClientConnectedFrame",
            "FunctionCallInProgressFrame",
            "FunctionCallResultFrame",
            "InterruptionFrame",
            "LLMFullResponseStartFrame",
            "LLMMarkerFrame",
            "LLMTextFrame",
            "MetricsFrame",
            "TranscriptionFrame",
            "TTSAudioRawFrame",
            "UserStoppedSpeakingFrame",
            "VADUserStartedSpeakingFrame",
            "VADUserStoppedSpeakingFrame",
        ),
        True,
    )
    if IS_THERE
    else {}
)
"""Frames that pipecat's observer reads; all others need not reach it."""


_TOLD_BEFORE: Final[dict[str, Any]] = {
    "ttfb": True,
    "text_aggregation": True,
    "function_calls": True,
    "contributions": {"__all__": {"label"}},
}
"""Parts of a breakdown that have events of their own, which is half of it; and a label that the key
says too.
"""


class AnswerLatencies:
    """Owns one of pipecat's latency observers, and makes events of its reports."""

    def __init__(self, emit: Emit) -> None:
        """Begins before the first frame; `emit` takes the events."""
        self._emit = emit
        self._observer = pipecats.UserBotLatencyObserver() if IS_THERE else None
        if self._observer is not None:
            self._observer.add_event_handler("on_latency_measured", self._on_latency)
            self._observer.add_event_handler("on_first_bot_speech_latency", self._on_first_speech)
            self._observer.add_event_handler("on_latency_breakdown", self._on_breakdown)

    async def follow(self, push: Any) -> None:
        """Reads the first push of a frame that is in `READ`."""
        if self._observer is not None:
            await self._observer.on_push_frame(push)

    async def pipeline_started(self) -> None:
        """Notes that the pipeline can answer from now on."""
        if self._observer is not None:
            # pipecat gives it no types
            await self._observer.on_pipeline_started()  # type: ignore[no-untyped-call]

    def _on_latency(self, _observer: object, seconds: float) -> None:
        self._emit(Rank.METRICS, "user_bot_latency", data={"latency_seconds": seconds})

    def _on_first_speech(self, _observer: object, seconds: float) -> None:
        self._emit(Rank.METRICS, "first_bot_speech_latency", data={"latency_seconds": seconds})

    def _on_breakdown(self, _observer: object, breakdown: Any) -> None:
        parts = breakdown.model_dump(mode="json", exclude_none=True, exclude=_TOLD_BEFORE)
        self._emit(Rank.METRICS, "latency_breakdown", data=parts)
