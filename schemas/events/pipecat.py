"""Events of a pipecat bot."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import Field

from schemas.closed_sets import Telling
from schemas.events.audit import CallEnded, CallStarted, TurnDetails, UserTextUpdated
from schemas.scores.latency_stages import ServiceKind, service_kind
from schemas.units import MS_PER_SECOND
from schemas.wire import MAX_TIME_MS, JsonValue, Name, Text, WireModel, WireTimeMs, WireTimeSeconds

# One number of a pipecat `MetricsFrame`, in the shape in which EVA logs it
# (`pipecat_metrics.jsonl`).


class PipecatMetric(WireModel):
    """A latency or usage that a service reports. `type` is the name of pipecat's class, which
    decides the unit.

    `value` is a number, or the fields of a class with several. `stage` is EVA's own field of a
    `LatencyMetric`.
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


# The events of a pipecat bot: the lines of EVA's pipecat log, and the entries of pipecat's own
# observers.

MAX_MESSAGE_MS: Final = 600_000
"""Longest turn of an assistant whose reported start is trusted: nobody listens for ten minutes."""

MAX_DROPPED: Final = 10**9
"""Most events that one record may report as dropped; a faulty producer can add no more to a
counter.
"""


class PipecatLine(WireModel):
    """Base of all lines. Names of processors end with their `#n`."""

    timestamp: WireTimeMs
    source: Name | None = None
    destination: Name | None = None
    conversation_id: Name | None = None


class Frame(WireModel):
    """Payload of a line: one word, a phrase, a token chunk, or the repr of a frame."""

    frame: Text


class TurnFrame(Frame):
    """Payload of a turn marker; `was_interrupted` is carried and not read by EVA."""

    was_interrupted: bool | None = None


class ToolFrame(WireModel):
    """Call and result of a tool in one line, as the realtime frameworks write them."""

    frame: Text | None = None
    tool_name: Name | None = None
    arguments: Any = None
    result: Any = None


class TtsText(PipecatLine):
    """Text handed to speech synthesis: a word of a stream paced like speech, or a phrase."""

    type: Literal["tts_text"]
    data: Frame


class LlmResponse(PipecatLine):
    """A reply, whole or a token chunk with its own blanks; it counts only in a call without any
    `tts_text`.
    """

    type: Literal["llm_response"]
    data: Frame


class TurnMarker(PipecatLine):
    """A turn border, which only separates groups of texts."""

    type: Literal["turn_start", "turn_end"]
    data: TurnFrame


class UserSpeaking(PipecatLine):
    """The bot's turn decision about the caller, written once per destination."""

    type: Literal["user_started_speaking", "user_stopped_speaking"]
    data: Frame


class IgnoredLine(PipecatLine):
    """Lines of the catalogue that no rule reads: fragments, contexts, spoken transcripts."""

    type: Literal["transcript", "llm_context", "s2s_transcript"]
    data: Any = None


class CallNote(PipecatLine):
    """What a framework tells of a call: another agent has taken over (`old_agent`, `new_agent`), or
    what looked like an interruption was none (`resumed`). It becomes a note in the record of the
    call.
    """

    type: Literal["agent_handoff", "false_interruption"]
    data: Any = None


class ProcessorFailed(PipecatLine):
    """A processor of the bot reports an error, also one from which it recovers. It is counted, and
    its text is not kept.
    """

    type: Literal["error"]
    data: Any = None

    @property
    def component(self) -> ServiceKind | None:
        """The kind of service that failed, by the name of its processor; None for another, or
        without a name.
        """
        name = self.data.get("processor") if isinstance(self.data, dict) else None
        return service_kind(name) if isinstance(name, str) else None

    @property
    def told_twice(self) -> tuple[str, str] | None:
        """Of an error that its framework may tell in two ways: the framework's name of it
        (`cause`), and the way (`told_by`).
        """
        known = self.data if isinstance(self.data, dict) else {}
        cause, told_by = known.get("cause"), known.get("told_by")
        return (cause, told_by) if isinstance(cause, str) and isinstance(told_by, str) else None


class ToolLine(PipecatLine):
    """The realtime frameworks' copy of a tool call. The audit log has it too, and only that one
    counts.
    """

    type: Literal["tool_call"]
    data: ToolFrame


class SpeechMoment(WireModel):
    """pipecat's `SpeechEvent`: `timestamp` is when it happened, in epoch seconds, detector delay
    already taken out.

    `user_speech_*` is what the voice activity detector hears, `user_turn_*` the turn strategy's
    ruling. Of an end, `started_at` is the start of the same stretch: with it, a start that was lost
    is known. Words with the same `sound_id` are of the sound that begins with it. `cause` of an
    interruption is `user_speech`, `user_turn` or `program`, where the framework tells it: it
    becomes a note in the record of the call.
    """

    kind: Literal[
        "user_speech_started",
        "user_speech_stopped",
        "user_turn_started",
        "user_turn_stopped",
        "bot_speech_started",
        "bot_speech_stopped",
        "interruption",
    ]
    timestamp: WireTimeSeconds
    started_at: WireTimeSeconds | None = None
    sound_id: Name | None = None
    cause: Name | None = None


class SpeechEventRecord(PipecatLine):
    """A moment of pipecat's `SpeakingObserver`: who spoke, and the turn strategy's rulings.

    `is_from_record` says that it was made from a record of the whole call: it counts only where no
    live event tells who spoke.
    """

    type: Literal["speech_event"]
    data: SpeechMoment
    is_from_record: bool | None = None


class FunctionCall(WireModel):
    """pipecat's `FunctionCallEvent`: `timestamp` is when it happened, in epoch seconds. A call is
    first requested, then in progress, then settled. Its result is only there if the bot is
    configured to report it. `pipecat-callgauge` sends `{"status": "success" | "error", "withheld":
    true}` in place of one that it keeps back.
    """

    kind: Literal[
        "function_call_started",
        "function_call_in_progress",
        "function_call_completed",
        "function_call_failed",
        "function_call_timed_out",
        "function_call_cancelled",
    ]
    function_name: Name | None = None
    tool_call_id: Name | None = None
    timestamp: WireTimeSeconds | None = None
    in_progress_at: WireTimeSeconds | None = None
    arguments: JsonValue = None
    result: JsonValue = None
    error: Text | None = None

    @property
    def is_in_progress(self) -> bool:
        """Whether it runs from now on."""
        return self.kind == "function_call_in_progress"

    @property
    def has_failed(self) -> bool:
        """Whether it ended with an error, or at its deadline."""
        return self.kind in ("function_call_failed", "function_call_timed_out")

    @property
    def has_answered(self) -> bool:
        """Whether it came to an end by itself, well or not."""
        return self.kind == "function_call_completed" or self.has_failed

    @property
    def withholds_result(self) -> bool:
        """Whether the bot keeps the result back; it may send its status."""
        if self.error is not None:
            return False
        return self.result is None or (
            isinstance(self.result, Mapping) and self.result.get("withheld") is True
        )

    @property
    def is_over(self) -> bool:
        """Whether it runs no more; one that was cancelled has not answered."""
        return self.has_answered or self.kind == "function_call_cancelled"


SPEECH_KINDS: Final[tuple[str, ...]] = get_args(SpeechMoment.model_fields["kind"].annotation)
"""Kinds of speech events."""
FUNCTION_CALL_KINDS: Final[tuple[str, ...]] = get_args(FunctionCall.model_fields["kind"].annotation)
"""Kinds of events of function calls."""


class FunctionCallRecord(PipecatLine):
    """A moment of pipecat's `FunctionCallObserver`."""

    type: Literal["function_call_event"]
    data: FunctionCall


class Message(WireModel):
    """Words of one turn. `timestamp` is when the turn began, a text by ISO 8601 or seconds since
    1970; of a caller's words any time of their sound. `sound_id` names that sound, if its speech
    event has one. `interrupted` says whether the caller cut an answer off; `content` is then the
    part that was heard.
    """

    content: Text | None = None
    timestamp: Any = None
    interrupted: Any = None
    sound_id: Name | None = None

    @property
    def says_what_was_heard(self) -> bool:
        """Whether its producer distinguishes a cut-off answer from a whole one."""
        return "interrupted" in self.model_fields_set


class MessageRecord(PipecatLine):
    """The words of a turn as pipecat's aggregators put them together.

    `is_from_record` says that they were taken from a record of the whole call: they count only
    where no live event has the words.
    """

    type: Literal["user_message", "assistant_message"]
    data: Message
    is_from_record: bool | None = None


class ObserverRecord(PipecatLine):
    """Other entries of pipecat's observers: latencies of stages, usage. Of `data`, only numbers are
    kept, at most `max_stage_values_per_call` of a call; its size is that of a record
    (`max_record_bytes`).
    """

    type: Literal[
        "startup_timing",
        "transport_timing",
        "user_bot_latency",
        "first_bot_speech_latency",
        "latency_breakdown",
        "service_latency",
        "service_usage",
        "turn_started",
        "turn_ended",
    ]
    data: Any = None


class EventsDropped(PipecatLine):
    """Numbers of events that the bot's observer dropped because the broker did not take them in
    time, by their subject.

    Each record counts what no earlier one has counted. Subjects that this version does not know are
    left out.
    """

    type: Literal["events_dropped"]
    data: dict[Name, Annotated[int, Field(ge=0, le=MAX_DROPPED)]]

    def dropped(self) -> Iterator[tuple[Telling, int]]:
        """Yields each subject with its number."""
        for telling in Telling:
            if count := self.data.get(telling.value):
                yield telling, count


def message_began_ms(stamp: object, time_ms: int) -> int:
    """Returns when the turn of a pipecat message began. The message is written at the end of the
    turn, with the time of its start.

    Args:
        stamp: Start of the turn, a text by ISO 8601 or seconds since 1970.
        time_ms: When it was written. This is the result if the message has no start, or an
            impossible one.

    Example:
        >>> message_began_ms("2026-09-21T14:13:20.666+00:00", 1_790_000_003_000)
        1790000000666
        >>> message_began_ms(1790000000.666, 1_790_000_003_000)
        1790000000666
        >>> message_began_ms("2026-09-21T14:13:20.666", 1_790_000_003_000)  # of no zone
        1790000003000
    """
    try:
        moment = datetime.fromisoformat(stamp) if isinstance(stamp, str) else None
    except ValueError:
        moment = None
    if moment is not None and moment.tzinfo is not None:
        began_s = moment.timestamp()
    elif isinstance(stamp, int | float) and not isinstance(stamp, bool) and 0 < stamp < MAX_TIME_MS:
        began_s = stamp
    else:
        return time_ms
    began_ms = round(began_s * MS_PER_SECOND)
    return began_ms if 0 <= time_ms - began_ms <= MAX_MESSAGE_MS else time_ms


PipecatEvent = Annotated[
    TtsText
    | LlmResponse
    | TurnMarker
    | UserSpeaking
    | IgnoredLine
    | CallNote
    | ProcessorFailed
    | ToolLine
    | SpeechEventRecord
    | FunctionCallRecord
    | MessageRecord
    | ObserverRecord
    | EventsDropped
    | PipecatMetric
    | CallStarted
    | CallEnded
    | UserTextUpdated
    | TurnDetails,
    Field(discriminator="type"),
]
