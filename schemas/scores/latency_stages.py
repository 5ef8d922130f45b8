"""Where the time of an answer goes: the closed list of stages, and which reported number belongs to which of them.

A table here is the only place that knows a producer's word for a stage and its unit. What is not in a table is no stage.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

MS: Final = 0.001
"""Seconds in a millisecond, the unit of the few numbers that are not in seconds."""

MAX_STAGE_SECONDS: Final = 600.0
"""A stage that took longer is a fault of the producer: no caller waits ten minutes."""


class Stage(StrEnum):
    """A stretch of time on the way to an answer.

    The first part is measured by services and frameworks of every kind:

    - `endpointing`: the user's last sound to the ruling that the turn is over, transcription and turn detection included
    - `stt_trailing`: the user's last sound to the final transcript
    - `llm_first_token`, `llm_first_sentence`, `llm_last_sentence`: the model is asked, to that part of its answer
    - `tool_request`: the model is asked, to its tool call being complete
    - `tool_run`: a tool is called, to its answer; the sum of the turn's tools
    - `tts_first_byte`: text goes to speech synthesis, to its first audio
    - `turn_analyzer`: what the turn analyser itself needed
    - `voice_to_voice`: the user's last sound to the assistant's first
    - `first_speech`: the client is connected, to the first sound of the greeting

    The second part is pipecat's own: the contributions of a latency breakdown, under their keys. They tile the time from the
    user's last sound to the bot's first, so they add up to it. None is one of the first part under another name: they begin
    or end elsewhere (a transcription begins when the detector stops, a function handler runs while others do).
    """

    ENDPOINTING = "endpointing"
    STT_TRAILING = "stt_trailing"
    LLM_FIRST_TOKEN = "llm_first_token"  # noqa: S105 - a stage, no secret
    LLM_FIRST_SENTENCE = "llm_first_sentence"
    LLM_LAST_SENTENCE = "llm_last_sentence"
    TOOL_REQUEST = "tool_request"
    TOOL_RUN = "tool_run"
    TTS_FIRST_BYTE = "tts_first_byte"
    TURN_ANALYZER = "turn_analyzer"
    VOICE_TO_VOICE = "voice_to_voice"
    FIRST_SPEECH = "first_speech"

    ENDPOINTING_WAIT = "endpointing_wait"
    FIRST_REQUEST = "first_request"
    TRANSCRIPTION = "transcription"
    TURN_DETECTION = "turn_detection"
    LLM_INFERENCE = "llm_inference"
    TURN_COMPLETION = "turn_completion"
    WAITING_FOR_USER = "waiting_for_user"
    LLM_TOOL_CALL = "llm_tool_call"
    FUNCTION_HANDLER = "function_handler"
    SENTENCE_AGGREGATION = "sentence_aggregation"
    SPEECH_SYNTHESIS = "speech_synthesis"
    OUTPUT_TRANSPORT = "output_transport"
    AWAITING_SPEAKABLE_TEXT = "awaiting_speakable_text"
    PIPELINE = "pipeline"

    __hash__ = str.__hash__  # Enum's own is Python code, and this is a key of many tables


class StageSource(StrEnum):
    """Who measured it; best first, which is whose number counts where several have one.

    Pipecat and its services; an ElevenLabs agent, in the record of its conversation; the agent framework, in its audit log;
    callgauge itself, from the times at which speech began and ended.
    """

    PIPECAT = "pipecat"
    ELEVENLABS = "elevenlabs"
    AUDIT = "audit"
    SPEECH = "speech"

    __hash__ = str.__hash__


class ServiceKind(StrEnum):
    """What a pipecat processor is; its class name has this in it."""

    STT = "STT"
    LLM = "LLM"
    TTS = "TTS"


def service_kind(processor: str) -> ServiceKind | None:
    """What a processor is by its name, which pipecat makes of its class; None for other processors.

    Example:
        >>> service_kind("DeepgramSTTService#0"), service_kind("SimliVideoService#1")
        (<ServiceKind.STT: 'STT'>, None)
    """
    return next((kind for kind in ServiceKind if kind in processor), None)


class Several(StrEnum):
    """Which of several measurements of one turn is the turn's, in the order in which they began."""

    FIRST = "first"
    LAST = "last"
    SUM = "sum"


SEVERAL: Final[Mapping[Stage, Several]] = MappingProxyType(
    dict.fromkeys(Stage, Several.FIRST)
    # A user who goes on talking after a pause is waited for again, and only the last wait was before the answer; of a turn
    # with tools, the last inference is the one that was spoken.
    | dict.fromkeys((Stage.ENDPOINTING, Stage.STT_TRAILING, Stage.LLM_LAST_SENTENCE, Stage.TURN_ANALYZER), Several.LAST)
    | {Stage.TOOL_RUN: Several.SUM}
)

FROM_USER_SILENCE: Final = frozenset(
    {Stage.ENDPOINTING, Stage.STT_TRAILING, Stage.VOICE_TO_VOICE, Stage.ENDPOINTING_WAIT}
)
"""Stages that begin at the user's last sound, so that it matters how that is known. All others begin inside the agent."""

# Pipecat's MetricsFrame data, in the shape in which EVA logs it.


class MetricReading(NamedTuple):
    """How a class of pipecat's metrics is read.

    Attributes:
        stages: The stage, by what the processor is; one that is not there has no stage in this class.
        any_processor: The stage, whatever the processor is.
        field: Which field of the value; None where the value is the number.
        seconds: How many seconds one unit is.
    """

    stages: Mapping[ServiceKind, Stage] = MappingProxyType({})
    any_processor: Stage | None = None
    field: str | None = None
    seconds: float = 1.0


FIRST_BYTE_STAGES: Final[Mapping[ServiceKind, Stage]] = MappingProxyType(
    {
        ServiceKind.STT: Stage.STT_TRAILING,  # pipecat starts this clock at the user's last sound
        ServiceKind.LLM: Stage.LLM_FIRST_TOKEN,
        ServiceKind.TTS: Stage.TTS_FIRST_BYTE,
    }
)
"""What time to first byte is of each service."""

_TURN_ANALYZER = MetricReading(any_processor=Stage.TURN_ANALYZER, field="e2e_processing_time_ms", seconds=MS)
PIPECAT_METRICS: Final[Mapping[str, MetricReading]] = MappingProxyType(
    {
        "TTFBMetricsData": MetricReading(FIRST_BYTE_STAGES),
        # From the request to the end of the answer. The other services' is how long they worked, not how long anybody waited.
        "ProcessingMetricsData": MetricReading({ServiceKind.LLM: Stage.LLM_LAST_SENTENCE}),
        "TextAggregationMetricsData": MetricReading(any_processor=Stage.SENTENCE_AGGREGATION),
        "TurnMetricsData": _TURN_ANALYZER,
        "SmartTurnMetricsData": _TURN_ANALYZER,
    }
)
"""Stages by the name of the class."""

BUSY_TIMES: Final = frozenset({"ProcessingMetricsData"})
"""Classes that every processor reports, whether it means a stage or not: one without a stage is nothing unknown."""

TOKEN_METRICS: Final = frozenset({"LLMUsageMetricsData", "LLMTokenUsageMetricsData"})
"""Classes whose value is a count of tokens; the second name is EVA's, for frameworks that are not pipecat."""

OTHER_METRICS: Final = frozenset({"TTFAMetricsData", "TTFATMetricsData", "STTUsageMetricsData", "TTSUsageMetricsData"})
"""Classes without a stage. The first two repeat a time to first byte that is reported by itself, and add to it."""

LATENCY_METRIC: Final = "LatencyMetric"
"""What EVA logs for frameworks that are not pipecat; its field `stage` says what it is."""

LATENCY_METRIC_STAGES: Final[Mapping[str, Stage]] = MappingProxyType(
    {"stt": Stage.STT_TRAILING, "tts": Stage.TTS_FIRST_BYTE, "model_response": Stage.VOICE_TO_VOICE}
)

CONTRIBUTIONS: Final[Mapping[str, Stage]] = MappingProxyType(
    {
        stage.value: stage
        for stage in (
            Stage.ENDPOINTING_WAIT,
            Stage.FIRST_REQUEST,
            Stage.TRANSCRIPTION,
            Stage.TURN_DETECTION,
            Stage.LLM_INFERENCE,
            Stage.TURN_COMPLETION,
            Stage.WAITING_FOR_USER,
            Stage.LLM_TOOL_CALL,
            Stage.FUNCTION_HANDLER,
            Stage.SENTENCE_AGGREGATION,
            Stage.SPEECH_SYNTHESIS,
            Stage.OUTPUT_TRANSPORT,
            Stage.AWAITING_SPEAKABLE_TEXT,
            Stage.PIPELINE,
        )
    }
)
"""Stages by the key of a contribution of pipecat's latency breakdown."""


class ConvaiMetric(NamedTuple):
    """A turn metric of ElevenLabs' conversation record: its stage, and whether another name is better where both are there."""

    stage: Stage
    is_copy: bool = False


CONVAI_METRICS: Final[Mapping[str, ConvaiMetric]] = MappingProxyType(
    {
        "convai_turn_silence_before_initiation": ConvaiMetric(Stage.ENDPOINTING),
        "convai_asr_trailing_service_latency": ConvaiMetric(Stage.STT_TRAILING),
        "convai_turn_asr_latency": ConvaiMetric(
            Stage.STT_TRAILING, is_copy=True
        ),  # of the user's, on the agent's entry
        "convai_llm_service_ttfb": ConvaiMetric(Stage.LLM_FIRST_TOKEN),
        "convai_llm_service_ttf_sentence": ConvaiMetric(Stage.LLM_FIRST_SENTENCE),
        "convai_llm_service_tt_last_sentence": ConvaiMetric(Stage.LLM_LAST_SENTENCE),
        "convai_llm_tool_request_generation_latency": ConvaiMetric(Stage.TOOL_REQUEST),
        "convai_tts_service_ttfb": ConvaiMetric(Stage.TTS_FIRST_BYTE),
        "convai_ttf_audio_since_silence": ConvaiMetric(Stage.VOICE_TO_VOICE),
    }
)
"""Names under `conversation_turn_metrics.metrics`, where each has its `elapsed_time` in seconds."""

CONVAI_NAMES: Final[Mapping[Stage, str]] = MappingProxyType(
    {metric.stage: name for name, metric in CONVAI_METRICS.items() if not metric.is_copy}
)
"""What a stage is called in transcripts. Those without a name are in no transcript; a tool's run stands with its result."""
