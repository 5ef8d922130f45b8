"""Reads stage latencies and token counts from events, by the tables of `schemas.scores.latency_stages`.

Readers are lenient: a value that is no number, or not positive, or has an unknown name is left out. A zero is a service's first
report, before it did anything. Every other omission is named in `Findings.unknown`.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeGuard

from consumers.engine.turns.bot.usage import TokenUsage
from schemas.events.audit import AuditLlmCall
from schemas.events.pipecat import FunctionCallRecord, ObserverRecord
from schemas.events.pipecat_metrics import PipecatMetric
from schemas.scores.latency_stages import (
    BUSY_TIMES,
    CONTRIBUTIONS,
    FIRST_BYTE_STAGES,
    LATENCY_METRIC,
    LATENCY_METRIC_STAGES,
    MAX_STAGE_SECONDS,
    MS,
    PIPECAT_METRICS,
    TOKEN_METRICS,
    Stage,
    StageSource,
    service_kind,
)
from schemas.wire import MAX_NAME_CHARS, MAX_TIME_MS

MAX_ITEMS = 64
"""Entries of one list in one event that are read. A breakdown has about a dozen."""
MAX_TOKENS = 10**9
"""Largest plausible number of tokens; a larger one is a fault."""

RANKS = (0, 1)
"""Ranks of one source's values for a turn; only the lowest present counts. Pipecat reports some values in two ways, one of
which has more detail.
"""

Json = Mapping[str, Any]


class Measured(NamedTuple):
    """A stage took `seconds` from `begin_s` (epoch); `rank` is one of `RANKS`."""

    begin_s: float
    stage: Stage
    source: StageSource
    seconds: float
    rank: int = 0
    model: str = ""


class Used(NamedTuple):
    """Tokens that a model used. All sources count the same ones, and those of the lowest `rank` win: 0, 1 or 2."""

    at_s: float
    rank: int
    model: str
    usage: TokenUsage


class Findings:
    """The values in one event. `unknown` has the names and values that are left out."""

    __slots__ = ("measured", "unknown", "used")

    def __init__(self) -> None:
        self.measured: list[Measured] = []
        self.used: list[Used] = []
        self.unknown: list[str] = []

    def took(
        self,
        key: str,
        stage: Stage | None,
        source: StageSource,
        seconds: Any,
        *,
        begin_s: float | None = None,
        end_s: float = 0.0,
        rank: int = 0,
        model: Any = None,
    ) -> None:
        """Adds a number under `key`, with its start or its end."""
        if seconds == 0 and not isinstance(seconds, bool):
            return
        if stage is None or not _is_number(seconds) or not 0 < seconds <= MAX_STAGE_SECONDS:
            self.unknown.append(key)
            return
        begun_s = end_s - seconds if begin_s is None else begin_s
        self.measured.append(Measured(begun_s, stage, source, float(seconds), rank, _text(model)))

    def used_tokens(self, key: str, at_s: float, rank: int, model: Any, counts: Any) -> None:
        """Adds counts of tokens under `key`."""
        usage = _token_usage(counts)
        if usage is None:
            self.unknown.append(key)
        elif any(usage):
            self.used.append(Used(at_s, rank, _text(model), usage))


def findings_of(event: Any, time_ms: int) -> Findings | None:
    """The findings in `event`; None for an event of another subject."""
    kind = type(event)
    reader = _RECORD_READERS.get(event.type) if kind is ObserverRecord else _READERS.get(kind)
    if reader is None:
        return None
    findings = Findings()
    reader(event.data if kind is ObserverRecord else event, time_ms / 1000, findings)
    return findings


def _metric(event: PipecatMetric, at_s: float, findings: Findings) -> None:
    """Reads a number of a MetricsFrame, as EVA logs it."""
    kind = event.type
    reading = PIPECAT_METRICS.get(kind)
    if reading is not None:
        service = service_kind(event.processor or "")
        stage = reading.any_processor or (None if service is None else reading.stages.get(service))
        if stage is None and kind in BUSY_TIMES:
            return
        value = event.value
        if reading.field is not None:
            value = value.get(reading.field) if isinstance(value, Mapping) else None
        seconds = value * reading.seconds if _is_number(value) else value
        key = f"{kind} of {event.processor}"
        findings.took(key, stage, StageSource.PIPECAT, seconds, end_s=at_s, rank=_rank(stage), model=event.model)
    elif kind == LATENCY_METRIC:
        stage = LATENCY_METRIC_STAGES.get(event.stage or "")
        key = f"{kind} {event.stage}"
        findings.took(key, stage, StageSource.PIPECAT, event.value, end_s=at_s, model=event.model)
    elif kind in TOKEN_METRICS:
        findings.used_tokens(kind, at_s, 1, event.model, event.value)


# Records of pipecat's observers.


def _service_latency(data: Any, at_s: float, findings: Findings) -> None:
    record: Json = data if isinstance(data, Mapping) else {}
    kind, processor = record.get("kind"), _text(record.get("processor"))
    if kind in ("ttfa", "ttfat"):
        return  # repeats a time to first byte that has a record of its own
    service = service_kind(processor)
    stage = FIRST_BYTE_STAGES[service] if kind == "ttfb" and service is not None else None
    end_s = _moment(record.get("timestamp"), at_s)
    key = f"service_latency {_named(kind)} of {processor}"
    findings.took(key, stage, StageSource.PIPECAT, record.get("seconds"), end_s=end_s, model=record.get("model"))


def _service_usage(data: Any, at_s: float, findings: Findings) -> None:
    if isinstance(data, Mapping) and data.get("kind") == "llm":
        at_s = _moment(data.get("timestamp"), at_s)
        findings.used_tokens("service_usage llm", at_s, 0, data.get("model"), data)


def _user_bot_latency(data: Any, at_s: float, findings: Findings) -> None:
    _whole(data, Stage.VOICE_TO_VOICE, at_s, findings)


def _first_bot_speech(data: Any, at_s: float, findings: Findings) -> None:
    _whole(data, Stage.FIRST_SPEECH, at_s, findings)


def _whole(data: Any, stage: Stage, at_s: float, findings: Findings) -> None:
    seconds = data.get("latency_seconds") if isinstance(data, Mapping) else data
    findings.took(stage, stage, StageSource.PIPECAT, seconds, end_s=at_s)


def _breakdown(data: Any, at_s: float, findings: Findings) -> None:
    """Reads a breakdown. Its parts are also reported one by one, except the contributions; so they are the second choice."""
    record: Json = data if isinstance(data, Mapping) else {}
    source = StageSource.PIPECAT
    contributions = _items(record.get("contributions"))
    _contributions(contributions, at_s, findings)
    if record.get("measured_from") == "user_silence":
        findings.took("total_secs", Stage.VOICE_TO_VOICE, source, record.get("total_secs"), end_s=at_s, rank=1)
    turn_secs = record.get("user_turn_secs")
    if turn_secs is not None:
        begin_s = _moment(record.get("user_turn_start_time"), at_s)
        findings.took("user_turn_secs", Stage.ENDPOINTING, source, turn_secs, begin_s=begin_s)
    for item in _items(record.get("ttfb")):
        service = service_kind(_text(item.get("processor")))
        stage = None if service is None else FIRST_BYTE_STAGES[service]
        _part(f"ttfb of {_named(item.get('processor'))}", stage, item, at_s, findings, rank=1)
    aggregation = record.get("text_aggregation")
    if isinstance(aggregation, Mapping):
        _part("text_aggregation", Stage.SENTENCE_AGGREGATION, aggregation, at_s, findings, rank=1)
    for item in _items(record.get("function_calls")):
        _part("function_calls", Stage.TOOL_RUN, item, at_s, findings, rank=1)


def _contributions(items: list[Json], at_s: float, findings: Findings) -> None:
    """Reads one value for each key, the sum of its parts. The model's time to its first tool call is two parts together."""
    sums: dict[Stage, tuple[float, float]] = {}
    inference: tuple[float, float] | None = None
    has_request = False
    for item in items:
        stage = CONTRIBUTIONS.get(_text(item.get("key")))
        seconds, begin_s = item.get("duration_secs"), _moment(item.get("start_time"), at_s)
        if stage is None or not _is_number(seconds) or seconds < 0:
            findings.unknown.append(f"contribution {_named(item.get('key'))}")
            continue
        first_s, sum_s = sums.get(stage, (begin_s, 0.0))
        sums[stage] = (min(first_s, begin_s), sum_s + seconds)
        if stage is Stage.LLM_TOOL_CALL and inference is not None and not has_request:
            has_request = True
            asked_s, thought_s = inference
            findings.took(
                "llm_tool_call", Stage.TOOL_REQUEST, StageSource.PIPECAT, thought_s + seconds, begin_s=asked_s, rank=1
            )
        inference = (begin_s, seconds) if stage is Stage.LLM_INFERENCE else None
    for stage, (begin_s, seconds) in sums.items():
        findings.took(stage, stage, StageSource.PIPECAT, seconds, begin_s=begin_s)


def _part(key: str, stage: Stage | None, item: Json, at_s: float, findings: Findings, *, rank: int) -> None:
    begin_s = _moment(item.get("start_time"), at_s)
    findings.took(
        key, stage, StageSource.PIPECAT, item.get("duration_secs"), begin_s=begin_s, rank=rank, model=item.get("model")
    )


def _function_call(event: FunctionCallRecord, at_s: float, findings: Findings) -> None:
    """Reads a tool that has answered, failed, or run into its time limit; a running tool has no value yet."""
    call = event.data
    begin_s, end_s = call.in_progress_at, _moment(call.timestamp, at_s)
    if call.has_answered and begin_s is not None:
        seconds = round(end_s - begin_s, 6)
        findings.took("function_call_event", Stage.TOOL_RUN, StageSource.PIPECAT, seconds, begin_s=begin_s)


def _llm_call(event: AuditLlmCall, at_s: float, findings: Findings) -> None:
    """Reads one step of the model: the agent waits for all of it. A step without words in its answer was a tool call."""
    if event.latency_ms is not None:
        said = event.value.get("response") if isinstance(event.value, Mapping) else event.value
        stage = Stage.LLM_LAST_SENTENCE if said else Stage.TOOL_REQUEST
        seconds = event.latency_ms * MS if _is_number(event.latency_ms) else event.latency_ms
        findings.took("llm_call latency_ms", stage, StageSource.AUDIT, seconds, end_s=at_s, model=event.model)
    if event.usage is not None:
        findings.used_tokens("llm_call usage", at_s, 2, event.model, event.usage)


_READERS: Mapping[type, Callable[[Any, float, Findings], None]] = {
    PipecatMetric: _metric,
    AuditLlmCall: _llm_call,
    FunctionCallRecord: _function_call,
}
_RECORD_READERS: Mapping[str, Callable[[Any, float, Findings], None]] = {
    "service_latency": _service_latency,
    "service_usage": _service_usage,
    "latency_breakdown": _breakdown,
    "user_bot_latency": _user_bot_latency,
    "first_bot_speech_latency": _first_bot_speech,
}


def _rank(stage: Stage | None) -> int:
    """The rank of a contribution: a text aggregation has two reports, and the contribution is the one that adds up."""
    return 1 if stage is Stage.SENTENCE_AGGREGATION else 0


def _is_number(value: object) -> TypeGuard[float]:
    """Whether arithmetic on it is safe: JSON has integers that are no float, and non-finite numbers compare with nothing."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < MAX_TIME_MS


def _moment(value: Any, otherwise_s: float) -> float:
    return float(value) if _is_number(value) else otherwise_s


def _text(value: object) -> str:
    return value[:MAX_NAME_CHARS] if isinstance(value, str) else ""


def _named(value: object) -> str:
    """A name for messages; for anything that is no name only its type, because it may be large."""
    return value[:MAX_NAME_CHARS] if isinstance(value, str) else type(value).__name__


def _items(value: object) -> list[Json]:
    return [item for item in value[:MAX_ITEMS] if isinstance(item, Mapping)] if isinstance(value, list) else []


def _token_usage(counts: Any) -> TokenUsage | None:
    """Tokens by kind. Services count input with or without the cache; the total has all of it, so the input follows from it."""
    if not isinstance(counts, Mapping):
        return None

    def count(name: str) -> int:
        value = counts.get(name)
        return int(value) if _is_number(value) and 0 <= value <= MAX_TOKENS else 0

    read, written = count("cache_read_input_tokens"), count("cache_creation_input_tokens")
    output, total = count("completion_tokens"), count("total_tokens")
    sent = total - output - read - written if total else count("prompt_tokens")
    return TokenUsage(max(0, sent), read, written, output)
