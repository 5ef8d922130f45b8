"""What a pipecat bot says of a call: who speaks, the words, its tools, and what its services
measure.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from consumers.engine.sources.facts import (
    UNREAD,
    AgentError,
    EventRule,
    Layer,
    Lost,
    NoteFact,
    SpeechFact,
    Teller,
    Text,
    TextBorder,
    ToldWait,
    ToolFact,
    ToolState,
    Unread,
    WordsFact,
)
from consumers.engine.sources.findings import (
    EventFindings,
    is_number,
    items_in,
    moment_in,
    name_in,
    text_in,
)
from consumers.engine.turns.bot import SAME_MOMENT_SECONDS
from schemas.closed_sets import InputSource, InterruptionCause
from schemas.events.codec import NAMELESS_TOOL, WORDLESS_MESSAGE, misread_of
from schemas.events.pipecat import (
    CallNote,
    EventsDropped,
    FunctionCall,
    FunctionCallRecord,
    IgnoredLine,
    LlmResponse,
    MessageRecord,
    ObserverRecord,
    PipecatMetric,
    ProcessorFailed,
    SpeechEventRecord,
    ToolLine,
    TtsText,
    TurnMarker,
    UserSpeaking,
    message_began_ms,
)
from schemas.scores.latency_stages import (
    AMOUNT_METRICS,
    BUSY_TIMES,
    CONTRIBUTIONS,
    FIRST_BYTE_STAGES,
    LATENCY_METRIC,
    LATENCY_METRIC_STAGES,
    MAX_STAGE_SECONDS,
    PIPECAT_METRICS,
    TOKEN_METRICS,
    ServiceKind,
    Stage,
    StageSource,
    provider_of,
    service_kind,
)
from schemas.units import MS_PER_SECOND
from schemas.wire import MAX_NAME_CHARS

# Who speaks. Pipecat's `interruption` adds nothing to the starts of speech but its cause.

_HEARD: Final = {
    "user_speech_started": (Layer.SOUND, True, True),
    "user_speech_stopped": (Layer.SOUND, True, False),
    "user_turn_started": (Layer.RULING, True, True),
    "user_turn_stopped": (Layer.RULING, True, False),
    "bot_speech_started": (Layer.SOUND, False, True),
    "bot_speech_stopped": (Layer.SOUND, False, False),
    "user_started_speaking": (Layer.RULING, True, True),
    "user_stopped_speaking": (Layer.RULING, True, False),
}
"""Layer, side and edge by the kind of a `speech_event`, or by the type of EVA's line for the
decision about a turn.
"""
_CAUSES: Final = frozenset(InterruptionCause)


def _speech(event: SpeechEventRecord) -> tuple[SpeechFact | NoteFact, ...]:
    moment = event.data
    heard = _HEARD.get(moment.kind)
    if heard is not None:
        return (SpeechFact(*heard, moment.timestamp, moment.started_at, moment.sound_id),)
    if moment.cause is None:
        return ()
    cause = moment.cause if moment.cause in _CAUSES else InterruptionCause.UNKNOWN.value
    return (NoteFact(int(moment.timestamp * MS_PER_SECOND), "interruption", (("cause", cause),)),)


def _ruling(event: UserSpeaking) -> tuple[SpeechFact]:
    return (SpeechFact(*_HEARD[event.type], event.timestamp / 1000),)


# Words.

WORDLESS: Final = Unread(InputSource.PIPECAT, WORDLESS_MESSAGE)

# half of all events are texts, and a fact's own constructor takes twice as long
_made: Final = tuple.__new__


def _spoken(event: TtsText) -> tuple[Text]:
    return (_made(Text, (event.timestamp, event.data.frame, False)),)


def _written(event: LlmResponse) -> tuple[Text]:
    return (Text(event.timestamp, event.data.frame, is_written=True),)


def _border(event: TurnMarker) -> tuple[TextBorder]:
    return (TextBorder(event.type, event.timestamp),)


def _message(event: MessageRecord) -> tuple[WordsFact | Unread, ...]:
    """The words of a turn. Those of an answer that was cut off are logged after the caller has
    begun, and belong to the turn before.
    """
    message, time_ms = event.data, int(event.timestamp)
    if message.content is None:
        return () if "content" in message.model_fields_set else (WORDLESS,)
    began_ms = message_began_ms(message.timestamp, time_ms)
    # A time that is the record's own says nothing of the sound.
    is_timed = time_ms - began_ms > SAME_MOMENT_SECONDS * MS_PER_SECOND
    is_user = event.type == "user_message"
    return (
        WordsFact(
            Teller.BOT,
            message.content,
            time_ms if is_user else began_ms,
            is_user,
            is_cut=not is_user and message.interrupted is True,
            tells_cuts=not is_user and message.says_what_was_heard,
            sounded_s=began_ms / MS_PER_SECOND if is_timed else None,
            is_from_record=bool(event.is_from_record),
            sound_id=message.sound_id,
        ),
    )


# Tools, notes and faults.

NAMELESS: Final = Unread(InputSource.PIPECAT, NAMELESS_TOOL)
"""A tool of which no step has the name."""


def _function_call(event: FunctionCallRecord) -> Iterator[Unread | ToolFact | EventFindings]:
    """Reads a step of a tool; one that has answered, failed, or run into its time limit also has a
    time. A running one has none yet.
    """
    call = event.data
    if call.tool_call_id is None and (misread := misread_of(event)) is not None:
        yield Unread(InputSource.PIPECAT, misread)
    time_ms = int(event.timestamp)
    if call.tool_call_id is not None:
        yield _step(call.tool_call_id, call, time_ms)
    if call.has_answered and call.in_progress_at is not None:
        end_s, findings = (
            moment_in(call.timestamp, time_ms / 1000),
            EventFindings(InputSource.PIPECAT),
        )
        seconds = round(end_s - call.in_progress_at, 6)
        findings.took(
            "function_call_event",
            Stage.TOOL_RUN,
            StageSource.PIPECAT,
            seconds,
            begin_s=call.in_progress_at,
        )
        yield findings


def _step(call_id: str, call: FunctionCall, time_ms: int) -> ToolFact:
    at_ms = time_ms if call.timestamp is None else int(call.timestamp * MS_PER_SECOND)
    name, teller = call.function_name, Teller.BOT
    if not call.is_over:
        state = ToolState.RUNS if call.is_in_progress else ToolState.ASKED
        return ToolFact(teller, state, call_id, name, at_ms, call.arguments)
    began_ms = None if call.in_progress_at is None else int(call.in_progress_at * MS_PER_SECOND)
    if not call.has_answered:
        return ToolFact(teller, ToolState.CANCELLED, call_id, name, at_ms, began_ms=began_ms)
    return ToolFact(
        teller,
        ToolState.ANSWERED,
        call_id,
        name,
        at_ms,
        call.result if call.error is None else {"status": "error", "message": call.error},
        began_ms=began_ms,
        is_error=call.has_failed,
        is_withheld=call.withholds_result,
    )


def _note(event: CallNote) -> tuple[NoteFact]:
    """A handoff, or an interruption that was none."""
    data: Mapping[str, Any] = event.data if isinstance(event.data, Mapping) else {}
    if event.type == "agent_handoff":
        agents = {"from_agent": data.get("old_agent"), "to_agent": data.get("new_agent")}
        more = {
            name: agent[:MAX_NAME_CHARS] for name, agent in agents.items() if isinstance(agent, str)
        }
        return (NoteFact(int(event.timestamp), "handoff", tuple(more.items())),)
    resumed = data.get("resumed")
    told = (("is_resumed", resumed),) if isinstance(resumed, bool) else ()
    return (NoteFact(int(event.timestamp), "false_interruption", told),)


def _failed(event: ProcessorFailed) -> tuple[AgentError]:
    return (AgentError(InputSource.PIPECAT, event.component, event.told_twice),)


def _dropped(event: EventsDropped) -> Iterator[Lost]:
    return (Lost(what, count) for what, count in event.dropped())


# Measurements.


def _metric(event: PipecatMetric) -> tuple[EventFindings]:
    """Reads a number of a MetricsFrame, as EVA logs it."""
    kind, at_s, findings = (
        event.type,
        int(event.timestamp) / 1000,
        EventFindings(InputSource.PIPECAT),
    )
    reading = PIPECAT_METRICS.get(kind)
    if reading is not None:
        service = service_kind(event.processor or "")
        stage = reading.any_processor or (None if service is None else reading.stages.get(service))
        if stage is None and kind in BUSY_TIMES:
            return (findings,)
        value = event.value
        if reading.field is not None:
            value = value.get(reading.field) if isinstance(value, Mapping) else None
        seconds = value * reading.seconds if is_number(value) else value
        key = f"{kind} of {event.processor}"
        findings.took(
            key,
            stage,
            StageSource.PIPECAT,
            seconds,
            end_s=at_s,
            rank=_rank(stage),
            model=event.model,
        )
    elif kind == LATENCY_METRIC:
        stage = LATENCY_METRIC_STAGES.get(event.stage or "")
        key = f"{kind} {event.stage}"
        findings.took(key, stage, StageSource.PIPECAT, event.value, end_s=at_s, model=event.model)
    elif kind in TOKEN_METRICS:
        findings.used_tokens(
            kind, at_s, 1, event.model, event.value, provider_of(event.processor or "")
        )
    elif (counted := AMOUNT_METRICS.get(kind)) is not None:
        amount = (
            event.value.get("audio_seconds") if isinstance(event.value, Mapping) else event.value
        )
        findings.used_amount(
            kind, at_s, 1, event.model, counted, amount, provider_of(event.processor or "")
        )
    return (findings,)


# Records of pipecat's observers.


def _observed(event: ObserverRecord) -> tuple[EventFindings | ToldWait, ...]:
    """Reads a record of an observer; nothing of one about another subject."""
    reader = _RECORD_READERS.get(event.type)
    if reader is None:
        return ()
    findings = EventFindings(InputSource.PIPECAT)
    reader(event.data, int(event.timestamp) / 1000, findings)
    if event.type == "user_bot_latency" and isinstance(event.data, Mapping):
        return (findings, *_told_wait(event.data))
    return (findings,)


def _told_wait(data: Mapping[str, Any]) -> Iterator[ToldWait]:
    """The wait of one turn, where its source knows from when to when the turn was."""
    values = [data.get(name) for name in ("turn_began_at", "turn_ended_at", "latency_seconds")]
    begin_s, end_s, seconds = (float(each) if is_number(each) else None for each in values)
    if (
        begin_s is not None
        and end_s is not None
        and seconds is not None
        and 0 < seconds <= MAX_STAGE_SECONDS
    ):
        yield ToldWait(begin_s, end_s, seconds)


def _service_latency(data: Any, at_s: float, findings: EventFindings) -> None:
    record: Mapping[str, Any] = data if isinstance(data, Mapping) else {}
    kind, processor = record.get("kind"), text_in(record.get("processor"))
    if kind in ("ttfa", "ttfat"):
        return  # repeats a time to first byte that has a record of its own
    service = service_kind(processor)
    stage = FIRST_BYTE_STAGES[service] if kind == "ttfb" and service is not None else None
    end_s = moment_in(record.get("timestamp"), at_s)
    key = f"service_latency {name_in(kind)} of {processor}"
    findings.took(
        key,
        stage,
        StageSource.PIPECAT,
        record.get("seconds"),
        end_s=end_s,
        model=record.get("model"),
    )


def _service_usage(data: Any, at_s: float, findings: EventFindings) -> None:
    kind = _KIND_OF_USAGE.get(text_in(data.get("kind"))) if isinstance(data, Mapping) else None
    if kind is None:
        return
    at_s, model = moment_in(data.get("timestamp"), at_s), data.get("model")
    provider = text_in(data.get("provider")) or provider_of(text_in(data.get("processor")))
    if kind is ServiceKind.LLM:
        findings.used_tokens("service_usage llm", at_s, 0, model, data, provider)
    else:
        name = "characters" if kind is ServiceKind.TTS else "audio_seconds"
        findings.used_amount(
            f"service_usage {name}", at_s, 0, model, kind, data.get(name), provider
        )


def _whole(stage: Stage, data: Any, at_s: float, findings: EventFindings) -> None:
    """Reads a whole wait. LiveKit tells it when the answer is over, and says when that was heard
    first.
    """
    record: Mapping[str, Any] = data if isinstance(data, Mapping) else {"latency_seconds": data}
    end_s = moment_in(record.get("timestamp"), at_s)
    findings.took(stage, stage, StageSource.PIPECAT, record.get("latency_seconds"), end_s=end_s)


def _breakdown(data: Any, at_s: float, findings: EventFindings) -> None:
    """Reads a breakdown. Its parts are also reported one by one, except the contributions; so they
    are the second choice.
    """
    record: Mapping[str, Any] = data if isinstance(data, Mapping) else {}
    source = StageSource.PIPECAT
    contributions = items_in(record.get("contributions"))
    _contributions(contributions, at_s, findings)
    if record.get("measured_from") == "user_silence":
        findings.took(
            "total_secs", Stage.VOICE_TO_VOICE, source, record.get("total_secs"), end_s=at_s, rank=1
        )
    turn_secs = record.get("user_turn_secs")
    if turn_secs is not None:
        begin_s = moment_in(record.get("user_turn_start_time"), at_s)
        findings.took("user_turn_secs", Stage.ENDPOINTING, source, turn_secs, begin_s=begin_s)
    for item in items_in(record.get("ttfb")):
        service = service_kind(text_in(item.get("processor")))
        stage = None if service is None else FIRST_BYTE_STAGES[service]
        _part(f"ttfb of {name_in(item.get('processor'))}", stage, item, at_s, findings, rank=1)
    aggregation = record.get("text_aggregation")
    if isinstance(aggregation, Mapping):
        _part("text_aggregation", Stage.SENTENCE_AGGREGATION, aggregation, at_s, findings, rank=1)
    for item in items_in(record.get("function_calls")):
        _part("function_calls", Stage.TOOL_RUN, item, at_s, findings, rank=1)


def _contributions(items: list[Mapping[str, Any]], at_s: float, findings: EventFindings) -> None:
    """Reads one value for each key, the sum of its parts. The model's time to its first tool call
    is two parts together.
    """
    sums: dict[Stage, tuple[float, float]] = {}
    inference: tuple[float, float] | None = None
    has_request = False
    for item in items:
        stage = CONTRIBUTIONS.get(text_in(item.get("key")))
        seconds, begin_s = item.get("duration_secs"), moment_in(item.get("start_time"), at_s)
        if stage is None or not is_number(seconds) or seconds < 0:
            findings.unknown.append(f"contribution {name_in(item.get('key'))}")
            continue
        first_s, sum_s = sums.get(stage, (begin_s, 0.0))
        sums[stage] = (min(first_s, begin_s), sum_s + seconds)
        if stage is Stage.LLM_TOOL_CALL and inference is not None and not has_request:
            has_request = True
            asked_s, thought_s = inference
            findings.took(
                "llm_tool_call",
                Stage.TOOL_REQUEST,
                StageSource.PIPECAT,
                thought_s + seconds,
                begin_s=asked_s,
                rank=1,
            )
        inference = (begin_s, seconds) if stage is Stage.LLM_INFERENCE else None
    for stage, (begin_s, seconds) in sums.items():
        findings.took(stage, stage, StageSource.PIPECAT, seconds, begin_s=begin_s)


def _part(
    key: str,
    stage: Stage | None,
    item: Mapping[str, Any],
    at_s: float,
    findings: EventFindings,
    *,
    rank: int,
) -> None:
    begin_s = moment_in(item.get("start_time"), at_s)
    findings.took(
        key,
        stage,
        StageSource.PIPECAT,
        item.get("duration_secs"),
        begin_s=begin_s,
        rank=rank,
        model=item.get("model"),
    )


def _rank(stage: Stage | None) -> int:
    """The rank of a contribution: a text aggregation has two reports, and the contribution is the
    one that adds up.
    """
    return 1 if stage is Stage.SENTENCE_AGGREGATION else 0


_KIND_OF_USAGE: Final[Mapping[str, ServiceKind]] = {
    kind.value.lower(): kind for kind in ServiceKind
}
_RECORD_READERS: Final[Mapping[str, Callable[[Any, float, EventFindings], None]]] = {
    "service_latency": _service_latency,
    "service_usage": _service_usage,
    "latency_breakdown": _breakdown,
    "user_bot_latency": partial(_whole, Stage.VOICE_TO_VOICE),
    "first_bot_speech_latency": partial(_whole, Stage.FIRST_SPEECH),
}


RULES: Final[Mapping[type, EventRule]] = {
    TtsText: EventRule(_spoken),
    LlmResponse: EventRule(_written),
    TurnMarker: EventRule(_border, is_kept=False),
    UserSpeaking: EventRule(_ruling, is_kept=False),
    SpeechEventRecord: EventRule(_speech, is_kept=False, may_be_from_record=True),
    # its words count alone
    MessageRecord: EventRule(_message, is_kept=False, may_be_from_record=True),
    FunctionCallRecord: EventRule(_function_call),
    ObserverRecord: EventRule(_observed, is_kept=False),
    PipecatMetric: EventRule(_metric, is_kept=False),
    EventsDropped: EventRule(_dropped, is_kept=False),
    CallNote: EventRule(_note),
    ProcessorFailed: EventRule(_failed, is_kept=False),
    IgnoredLine: UNREAD,
    ToolLine: UNREAD,
}
"""How each type of its events is read."""
