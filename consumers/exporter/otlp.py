"""Sends evaluation results of closed calls as OpenTelemetry log records over OTLP."""

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from consumers.exporter.settings import OtlpSettings
from consumers.runtime.process import OperatorError
from schemas import evaluation_event as names
from schemas.closed_sets import CALL_JUDGES, TURN_JUDGES, JudgeKind
from schemas.evaluation_event import EVENT_NAME
from schemas.scores.live_view import Subject, is_withdrawn
from schemas.scores.records import (
    AnyScoreRecord,
    CallStartedFact,
    CallValues,
    ClosedFact,
    NotApplicable,
    ProgressScore,
    Result,
    Scored,
    SubgoalScore,
    TextRating,
    TurnValues,
)
from schemas.scores.shares import Shares

if TYPE_CHECKING:
    from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter


# Turns the final scores of a closed call into evaluation events. Pure.
#
# A log cannot be revised, so nothing of a call is an event before its `closed` record: the newest revisions are final
# then. A value that does not apply is no event; one that is not known is an event with its reason as `error.type`.

MAX_CALLS: Final = 10_000
"""Running calls whose scores are kept; beyond them the call that has been quiet for longest is forgotten and counted."""
MAX_RECORDS_PER_CALL: Final = 2_000
"""Scores kept of one call: a call of 500 turns has some 1,100. Further ones are left out and counted."""
_KEPT: Final = (CallStartedFact, TurnValues, CallValues, ProgressScore, SubgoalScore)

Attributes = Mapping[str, str | int | float]


class Evaluation(NamedTuple):
    """One event: when the score was made, in epoch milliseconds, its attributes, and the `traceparent` of its call."""

    time_ms: int
    attributes: Attributes
    parent: str | None = None


class FinalScores:
    """The newest scores of running calls, until each call closes.

    Attributes:
        left_out: Number of score records that did not fit into the bounds.
    """

    def __init__(self) -> None:
        """Starts with no call. Scores from before the start of the process are not known."""
        self.left_out = 0
        self._calls: dict[str, dict[Subject, AnyScoreRecord]] = {}
        self._shares = Shares()

    def take(self, record: AnyScoreRecord) -> list[Evaluation]:
        """Keeps a score record; gives the events of its call if it closes the call."""
        call = record.conversation_id
        if isinstance(record, ClosedFact):
            kept = self._calls.pop(call, {})
            self._shares.discard(call)
            parents = [each.traceparent for each in kept.values() if isinstance(each, CallStartedFact)]
            return [
                event._replace(parent=parents[0] if parents else None)
                for each in kept.values()
                if not is_withdrawn(each)
                for event in _evaluations(each)
            ]
        if not isinstance(record, _KEPT):
            return []
        scores = self._calls.setdefault(call, {})
        self._shares.use(call, record.labels.tenant)
        subject = (record.name, record.turn, record.index)
        last = scores.get(subject)
        if last is None and len(scores) >= MAX_RECORDS_PER_CALL:
            self.left_out += 1
        elif last is None or last.revision <= record.revision:
            scores[subject] = record
        if len(self._calls) > MAX_CALLS:
            self.left_out += len(self._calls.pop(self._shares.make_room()))
        return []


def _evaluations(record: AnyScoreRecord) -> Iterator[Evaluation]:
    for name, result, more in _results(record):
        if result is None or isinstance(result, NotApplicable):
            continue
        outcome = _without_none(more)
        if isinstance(result, Scored):
            outcome[names.SCORE_VALUE] = float(result.value)
        else:
            outcome[names.ERROR_TYPE] = result.reason.value
        yield Evaluation(record.caused_at_ms, {names.EVALUATION_NAME: name, **outcome, **_about(record)})


def _results(record: AnyScoreRecord) -> Iterator[tuple[str, Result | None, Mapping[str, str | float | None]]]:
    match record:
        case TurnValues():
            anchor = {names.ANCHOR: None if record.anchor is None else record.anchor.value}
            yield "voice_to_voice_latency_ms", record.voice_to_voice_ms, anchor
            if (timing := record.turn_taking) is not None:
                yield (
                    "turn_taking",
                    timing.result,
                    {names.ANCHOR: None if timing.anchor is None else timing.anchor.value},
                )
            yield from _ratings(record, TURN_JUDGES)
        case CallValues():
            for eva_name, score in record.eva.items():
                eva_anchor = None if score.anchor is None else score.anchor.value
                yield eva_name, score.result, {names.NORMALIZED: score.normalized, names.ANCHOR: eva_anchor}
            yield "tool_correctness", record.tool_correctness, {}
            yield "success", record.success_final_turn, _label(record.success_final_turn, "success", "failure")
            yield from _ratings(record, CALL_JUDGES)
        case ProgressScore():
            yield "progress", record.result, {}
        case SubgoalScore():
            label = _label(record.result, "reached", "open")
            yield "subgoal", record.result, {names.SUBGOAL_ID: record.subgoal_id, **label}


def _ratings(
    record: TurnValues | CallValues, kinds: Iterable[JudgeKind]
) -> Iterator[tuple[str, Result | None, Mapping[str, str | float | None]]]:
    for kind in kinds:
        rating: TextRating | None = getattr(record, kind)
        yield kind.value, None if rating is None else rating.result, {}


def _label(result: Result | None, one: str, zero: str) -> dict[str, str | float | None]:
    """The word for a score that is 1 or 0."""
    return {names.SCORE_LABEL: (one if result.value else zero) if isinstance(result, Scored) else None}


def _about(record: AnyScoreRecord) -> Attributes:
    labels = record.labels
    return _without_none(
        {
            names.CONVERSATION_ID: record.conversation_id,
            names.AGENT_NAME: labels.agent,
            names.TENANT: labels.tenant,
            names.ENVIRONMENT: labels.environment,
            names.TURN: record.turn,
            names.REVISION: record.revision,
            names.RECORD_ID: record.record_id,
            names.CODE_VERSION: record.code_version,
        }
    )


def _without_none(values: Mapping[str, str | int | float | None]) -> dict[str, str | int | float]:
    return {name: value for name, value in values.items() if value is not None}


# Sends evaluation events by OTLP over HTTP, from a thread of its own: an endpoint that is away delays nothing.
#
# The queue is bounded. An event that finds it full is dropped and counted, and so is a batch that the endpoint does
# not take within the retries of OpenTelemetry's exporter.

MAX_BATCH_EVENTS: Final = 500
"""Events of one request: some 250 kB."""
GATHER_SECONDS: Final = 1.0
"""How long events may gather for one request."""
FIRST_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 30.0
"""Pause after a batch that was not taken, before the next one; it doubles with each, up to this. Events wait in the queue
meanwhile. Without it, an endpoint that asks for a long pause would get one request for each batch, as fast as they come."""
CLOSE_SECONDS: Final = 2.0
"""How long the end of the role waits for the events that are left. Those that are not sent then are counted."""

Outcome = Literal["sent", "queue_full", "failed", "unsent_at_stop"]


class OtlpUnavailableError(OperatorError):
    """OTLP is switched on and its packages are not installed."""

    exit_code = 2


class EvaluationSender:
    """A queue of events, and the thread that sends them."""

    def __init__(self, settings: OtlpSettings, code_version: str, count: Callable[[Outcome, int], None]) -> None:
        """Starts the thread; the first request is made with the first event.

        Args:
            settings: Endpoint and bounds.
            code_version: Version of callgauge, for the resource.
            count: Counts events by outcome; called by this thread and by the sender's.

        Raises:
            OtlpUnavailableError: OpenTelemetry's packages are not installed.
        """
        self._count = count
        self._queue: queue.Queue[Evaluation] = queue.Queue(settings.queue_events)
        self._stopping = threading.Event()
        self._under_way = 0
        self._exporter, self._encoded = _exporter(settings, code_version)
        self._thread = threading.Thread(target=self._work, name="otlp", daemon=True)
        self._thread.start()

    def put(self, events: Sequence[Evaluation]) -> None:
        """Queues events; never waits."""
        for event in events:
            try:
                self._queue.put_nowait(event)
            except queue.Full:
                self._count("queue_full", 1)

    def close(self) -> None:
        """Sends the remaining events for at most `CLOSE_SECONDS`, and counts those that are left. It waits: call it in a thread."""
        self._stopping.set()
        self._thread.join(CLOSE_SECONDS)
        self._exporter.shutdown()  # type: ignore[no-untyped-call]
        if left := self._queue.qsize() + self._under_way:
            self._count("unsent_at_stop", left)

    def _work(self) -> None:
        pause_seconds = FIRST_PAUSE_SECONDS
        while not (self._stopping.is_set() and self._queue.empty()):
            batch = self._batch()
            if not batch:
                continue
            self._under_way = len(batch)
            taken = self._exporter.export([self._encoded(event) for event in batch])
            self._under_way = 0
            if taken.name == "SUCCESS":
                self._count("sent", len(batch))
                pause_seconds = FIRST_PAUSE_SECONDS
            else:
                self._count("failed", len(batch))
                if self._stopping.wait(pause_seconds):
                    return
                pause_seconds = min(2 * pause_seconds, LONGEST_PAUSE_SECONDS)

    def _batch(self) -> list[Evaluation]:
        batch: list[Evaluation] = []
        until = time.monotonic() + GATHER_SECONDS
        while len(batch) < MAX_BATCH_EVENTS:
            left_seconds = 0.0 if self._stopping.is_set() else until - time.monotonic()
            try:
                batch.append(
                    self._queue.get(timeout=min(left_seconds, 0.1)) if left_seconds > 0 else self._queue.get_nowait()
                )
            except queue.Empty:
                if left_seconds <= 0:
                    break
        return batch


def _exporter(settings: OtlpSettings, code_version: str) -> tuple["OTLPLogExporter", Callable[[Evaluation], Any]]:
    """OpenTelemetry's exporter, and the function that makes its records. Loading them takes a moment, so only who uses them does."""
    try:
        from opentelemetry._logs import LogRecord, SeverityNumber
        from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
        from opentelemetry.sdk._logs import ReadableLogRecord
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        from opentelemetry.trace import TraceFlags
    except ImportError as error:
        raise OtlpUnavailableError(
            f"OTLP is switched on (otlp.endpoint) and its packages are not installed ({error.name}). Nothing was started. "
            "Install callgauge with them: `pip install 'PATH_OF_THE_CHECKOUT[otlp]'`; or leave out otlp.endpoint."
        ) from error
    resource = Resource({"service.name": "callgauge", "service.version": code_version})
    scope = InstrumentationScope("callgauge", code_version)

    def encoded(event: Evaluation) -> ReadableLogRecord:
        made = LogRecord(
            timestamp=event.time_ms * 1_000_000,
            observed_timestamp=time.time_ns(),
            severity_number=SeverityNumber.INFO,
            event_name=EVENT_NAME,
            attributes=dict(event.attributes),
        )
        if event.parent is not None:
            _, trace_id, span_id, flags = event.parent.split("-")
            made.trace_id, made.span_id, made.trace_flags = (
                int(trace_id, 16),
                int(span_id, 16),
                TraceFlags(int(flags, 16)),
            )
        return ReadableLogRecord(made, resource, scope)

    return OTLPLogExporter(endpoint=settings.endpoint, timeout=settings.timeout_seconds), encoded
