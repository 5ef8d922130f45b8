"""The stages of an answer's latency, and the tables that map reported numbers to them.

Only these tables know a producer's name of a stage and its unit. A number that is not in a table
belongs to no stage.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

MS: Final = 0.001
"""Seconds in a millisecond, for the few numbers that are reported in milliseconds."""

MAX_STAGE_SECONDS: Final = 600.0
"""Longest stage that counts. A longer one is a fault of the producer: no caller waits
ten minutes.
"""


class Stage(StrEnum):
    """A stretch of time on the way to an answer.

    Services and frameworks of every kind measure the first group:

    - `endpointing`: from the user's last sound to the ruling that the turn is over, with
      transcription and turn detection
    - `stt_trailing`: from the user's last sound to the final transcript
    - `llm_first_token`, `llm_first_sentence`, `llm_last_sentence`: from the request to the model to
      that part of its answer
    - `tool_request`: from the request to the model to its complete tool call
    - `tool_run`: from a tool call to its answer; of several tools the time in which any of them ran
    - `tts_first_byte`: from the text's arrival at speech synthesis to its first audio
    - `turn_analyzer`: the running time of the turn analyser
    - `voice_to_voice`: from the user's last sound to the assistant's first sound
    - `first_speech`: from the client's connection to the first sound of the greeting

    The second group is pipecat's own: the contributions of a latency breakdown, under their keys.
    They divide the time from the user's last sound to the bot's first without gaps, so they add up
    to it. No contribution equals a stage of the first group, because it begins or ends elsewhere: a
    transcription begins when the detector stops, function handlers overlap.
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
    """The source of a measured stage. If several sources measured it, the first in this order
    counts.

    - `pipecat`: pipecat and its services
    - `elevenlabs`: an ElevenLabs agent, in the record of its conversation
    - `audit`: the agent framework, in its audit log
    - `run`: the run itself, in the `response_latencies_ms` of `call_ended`; EVA writes them to
      `response_latencies.json`
    - `speech`: callgauge, from the times at which speech began and ended
    """

    PIPECAT = "pipecat"
    ELEVENLABS = "elevenlabs"
    AUDIT = "audit"
    RUN = "run"
    SPEECH = "speech"

    __hash__ = str.__hash__


class ServiceKind(StrEnum):
    """Kind of a pipecat processor; its class name contains this word."""

    STT = "STT"
    LLM = "LLM"
    TTS = "TTS"


def service_kind(processor: str) -> ServiceKind | None:
    """Returns the kind of a processor by its name, which pipecat derives from its class; None for
    other processors.

    Example:
        >>> service_kind("DeepgramSTTService#0"), service_kind("SimliVideoService#1")
        (<ServiceKind.STT: 'STT'>, None)
    """
    return next((kind for kind in ServiceKind if kind in processor), None)


def provider_of(processor: str) -> str:
    """Returns the provider in the name of a processor; empty if it has none.

    Example:
        >>> provider_of("OpenAILLMService#0"), provider_of("LLM openai"), provider_of("LLMService#0")
        ('OpenAI', 'openai', '')
    """
    for kind in ServiceKind:
        before, found, after = processor.partition("#")[0].partition(kind)
        if found:
            return before or after.removeprefix("Service").strip()
    return ""


class Several(StrEnum):
    """How several measurements of a stage in one turn become one, in the order in which they began.
    A union is the time in which any of them ran: the caller waits once for tools that run beside
    each other.
    """

    FIRST = "first"
    LAST = "last"
    UNION = "union"


SEVERAL: Final[Mapping[Stage, Several]] = MappingProxyType(
    dict.fromkeys(Stage, Several.FIRST)
    # When a user goes on talking after a pause, these stages are measured again, and only the last
    # one precedes the answer. In a turn with tools, the assistant speaks the result of the last
    # inference.
    | dict.fromkeys(
        (Stage.ENDPOINTING, Stage.STT_TRAILING, Stage.LLM_LAST_SENTENCE, Stage.TURN_ANALYZER),
        Several.LAST,
    )
    | {Stage.TOOL_RUN: Several.UNION}
)

FROM_USER_SILENCE: Final = frozenset(
    {Stage.ENDPOINTING, Stage.STT_TRAILING, Stage.VOICE_TO_VOICE, Stage.ENDPOINTING_WAIT}
)
"""Stages that begin at the user's last sound, so they have an anchor. All others begin inside the
agent.
"""


class PartOfWait(StrEnum):
    """The part of a turn's wait, from the user's last sound to the assistant's first, in which a
    stage lies.

    - `hearing`: it may begin before the ruling that the user's turn is over, so a wait from that
      ruling on has not all of it
    - `answering`: it begins when the user's turn is over
    """

    HEARING = "hearing"
    ANSWERING = "answering"


PARTS_OF_WAIT: Final[Mapping[Stage, PartOfWait]] = MappingProxyType(
    dict.fromkeys(
        (
            Stage.STT_TRAILING,
            Stage.TURN_ANALYZER,
            Stage.TRANSCRIPTION,
            Stage.TURN_DETECTION,
            Stage.TURN_COMPLETION,
            Stage.PIPELINE,
        ),
        PartOfWait.HEARING,
    )
    | dict.fromkeys(
        (
            Stage.LLM_FIRST_TOKEN,
            Stage.LLM_FIRST_SENTENCE,
            Stage.TOOL_REQUEST,
            Stage.TTS_FIRST_BYTE,
            Stage.LLM_INFERENCE,
            Stage.LLM_TOOL_CALL,
            Stage.FUNCTION_HANDLER,
            Stage.SENTENCE_AGGREGATION,
            Stage.SPEECH_SYNTHESIS,
            Stage.OUTPUT_TRANSPORT,
            Stage.AWAITING_SPEAKABLE_TEXT,
        ),
        PartOfWait.ANSWERING,
    )
)
"""Stages that are a part of the wait: a longer one contradicts the sounds, unless it began in the
wait and went on after the first sound.

The others may be longer than the wait. Endpointing may begin before the user's last sound, when the
user goes on after a pause; the last sentence and tools go on while the assistant speaks; the wait
as another source measures it, and that for the greeting, are sums with other anchors; and pipecat
may wait for the user to go on.
"""

RUNS_ON: Final = frozenset({Stage.TOOL_RUN, Stage.FIRST_SPEECH})
"""Stages that neither the wait nor the next turn bounds: a tool may run behind the talk, and a call
may be heard late.
"""

# Pipecat's MetricsFrame data, in the shape in which EVA logs it.


class MetricReading(NamedTuple):
    """How a class of pipecat's metrics is read.

    Attributes:
        stages: The stage by kind of processor. Other processors have no stage in this class.
        any_processor: The stage of all processors.
        field: The field of the value with the number; None if the value is the number.
        seconds: Length of one unit in seconds.
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
"""The stage that time to first byte measures, by service."""

_TURN_ANALYZER = MetricReading(
    any_processor=Stage.TURN_ANALYZER, field="e2e_processing_time_ms", seconds=MS
)
PIPECAT_METRICS: Final[Mapping[str, MetricReading]] = MappingProxyType(
    {
        "TTFBMetricsData": MetricReading(FIRST_BYTE_STAGES),
        # From the request to the end of the answer. For other services it is working time, which is
        # no stage.
        "ProcessingMetricsData": MetricReading({ServiceKind.LLM: Stage.LLM_LAST_SENTENCE}),
        "TextAggregationMetricsData": MetricReading(any_processor=Stage.SENTENCE_AGGREGATION),
        "TurnMetricsData": _TURN_ANALYZER,
        "SmartTurnMetricsData": _TURN_ANALYZER,
    }
)
"""How each class of metrics is read, by its name."""

BUSY_TIMES: Final = frozenset({"ProcessingMetricsData"})
"""Classes that every processor reports. A report that matches no stage does not count
as unmapped.
"""

TOKEN_METRICS: Final = frozenset({"LLMUsageMetricsData", "LLMTokenUsageMetricsData"})
"""Classes with a count of tokens. The second is EVA's name, for frameworks other than pipecat."""

AMOUNT_METRICS: Final[Mapping[str, ServiceKind]] = MappingProxyType(
    {"STTUsageMetricsData": ServiceKind.STT, "TTSUsageMetricsData": ServiceKind.TTS}
)
"""Classes with seconds of sound, or with characters."""

LATENCY_METRIC: Final = "LatencyMetric"
"""EVA's class for frameworks other than pipecat; its field `stage` names the stage."""

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
    """A turn metric of ElevenLabs' conversation record: its stage, and whether another name has
    priority over it.
    """

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
"""Names of the stages in transcripts. Stages without a name are not in transcripts; the time of a
tool is in its result.
"""


MORE_EXACT: Final = frozenset(
    {Stage.LLM_FIRST_TOKEN, Stage.LLM_FIRST_SENTENCE, Stage.LLM_INFERENCE}
)
"""Stages of a model that end before the answer begins."""


def fits_whole_answer(known: Mapping[Stage, float], wait_ms: float) -> bool:
    """Whether the time of a model's whole answer explains a wait: mostly it says more than was
    waited for, unless nobody spoke before all of it was there.

    Args:
        known: The lengths of the stages.
        wait_ms: The wait.

    Example:
        >>> fits_whole_answer({Stage.LLM_LAST_SENTENCE: 900.0}, 1_000)
        True
        >>> fits_whole_answer({Stage.LLM_LAST_SENTENCE: 900.0, Stage.LLM_FIRST_TOKEN: 300.0}, 1_000)
        False
    """
    whole_ms = known.get(Stage.LLM_LAST_SENTENCE)
    return whole_ms is not None and whole_ms <= wait_ms and MORE_EXACT.isdisjoint(known)
