"""Sends evaluation results of closed calls as OpenTelemetry log records over OTLP."""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from consumers.exporter.settings import OtlpSettings
from consumers.runtime.process import SetupError
from schemas import evaluation_event as names
from schemas.closed_sets import CALL_JUDGES, TURN_JUDGES
from schemas.evaluation_event import EVENT_NAME
from schemas.rows import CallRow, GoalsRow, NotApplicable, Row, TurnRow, Unscored, Value, number
from schemas.scores.shares import Shares

if TYPE_CHECKING:
    from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter


# Turns the final rows of a closed call into evaluation events. Pure.
#
# A log cannot be revised, so nothing of a call is an event before its closed row: the newest rows
# are final then. A value that does not apply is no event; one that is not known is an event with
# its reason as `error.type`.

MAX_QUEUED: Final = 10_000
"""Events that wait for the endpoint; further ones are dropped and counted."""
TIMEOUT_SECONDS: Final = 10.0
"""Longest time for one request, retries included."""
MAX_CALLS: Final = 10_000
"""Running calls whose turns are kept; beyond them the call that has been quiet for longest is
forgotten and counted.
"""
MAX_TURNS_PER_CALL: Final = 1_000
"""Turns kept of one call: some hours of talk. Further ones are left out and counted."""

Attributes = Mapping[str, str | int | float]


class Evaluation(NamedTuple):
    """One event: when the score was made, in epoch milliseconds, its attributes, and the
    `traceparent` of its call.
    """

    time_ms: int
    attributes: Attributes
    parent: str | None = None


class _Kept:
    """What is known of a call that has not closed: its turns, and the names of its subgoals."""

    __slots__ = ("subgoals", "turns")

    def __init__(self) -> None:
        self.turns: dict[int, TurnRow] = {}
        self.subgoals: tuple[str, ...] = ()


class FinalScores:
    """The newest turns of running calls, until each call closes.

    Attributes:
        left_out: Number of rows that did not fit into the bounds.
    """

    def __init__(self) -> None:
        """Starts with no call. Turns from before the start of the process are not known."""
        self.left_out = 0
        self._calls: dict[str, _Kept] = {}
        self._shares = Shares()

    def keep_row(self, row: Row) -> list[Evaluation]:
        """Keeps a row; gives the events of its call if it closes the call."""
        match row:
            case TurnRow():
                turns = self._kept(row.conversation_id, row.labels.tenant).turns
                if row.turn in turns or len(turns) < MAX_TURNS_PER_CALL:
                    turns[row.turn] = row
                else:
                    self.left_out += 1
            case GoalsRow():
                ids = tuple(str(each.get("id", "")) for each in row.goal_set.get("subgoals", ()))
                self._kept(row.conversation_id, None).subgoals = ids
            case CallRow() if row.state == "closed":
                self._shares.discard(row.conversation_id)
                return list(_evaluations(row, self._calls.pop(row.conversation_id, _Kept())))
        if len(self._calls) > MAX_CALLS:
            del self._calls[self._shares.make_room()]
            self.left_out += 1
        return []

    def _kept(self, call: str, tenant: str | None) -> _Kept:
        if tenant is not None or call not in self._calls:
            self._shares.use(call, tenant or "unknown")
        return self._calls.setdefault(call, _Kept())


_More = Mapping[str, str | float | None]
_Result = tuple[str, Value | None, _More]


def _evaluations(call: CallRow, kept: _Kept) -> Iterator[Evaluation]:
    for turn in kept.turns.values():
        if turn.status != "withdrawn":
            for result in _of_turn(turn):
                yield from _evaluation(call, turn, result)
    for result in _of_call(call, kept.subgoals):
        yield from _evaluation(call, call, result)


def _evaluation(call: CallRow, row: TurnRow | CallRow, result: _Result) -> Iterator[Evaluation]:
    name, value, more = result
    if value is None or isinstance(value, NotApplicable):
        return
    about: dict[str, str | int | float | None] = {names.EVALUATION_NAME: name, **more}
    if isinstance(value, Unscored):
        about[names.ERROR_TYPE] = value.reason.value
    else:
        about[names.SCORE_VALUE] = float(value)
    about |= {
        names.CONVERSATION_ID: row.conversation_id,
        names.AGENT_NAME: call.labels.agent,
        names.TENANT: call.labels.tenant,
        names.ENVIRONMENT: call.labels.environment,
        names.TURN: row.turn if isinstance(row, TurnRow) else None,
        names.REVISION: row.revision,
        names.CODE_VERSION: call.code_version,
    }
    attributes = {attribute: each for attribute, each in about.items() if each is not None}
    yield Evaluation(row.known_ms, attributes, call.traceparent)


def _of_turn(row: TurnRow) -> Iterator[_Result]:
    yield "voice_to_voice_latency_ms", row.wait_ms, {names.ANCHOR: row.anchor}
    if (timing := row.turn_taking) is not None:
        yield "turn_taking", timing.result, {names.ANCHOR: timing.anchor}
    if row.progress is not None:
        yield "progress", row.progress.result, {}
    for kind in TURN_JUDGES:
        rating = getattr(row, kind)
        yield kind.value, None if rating is None else rating.result, {}


def _of_call(row: CallRow, subgoals: Sequence[str]) -> Iterator[_Result]:
    """Its subgoals have the names that the goal set of the call has. Without it they are left out:
    the exporter has not read it.
    """
    for eva_name, eva in row.eva.items():
        yield eva_name, eva.result, {names.NORMALIZED: eva.normalized, names.ANCHOR: eva.anchor}
    for kind in CALL_JUDGES:
        rating = getattr(row, kind)
        yield kind.value, None if rating is None else rating.result, {}
    if (goals := row.goals) is None:
        return
    yield "tool_correctness", goals.tool_correctness, {}
    success = goals.success_final_turn
    yield "success", success, {names.SCORE_LABEL: _label(success, "success", "failure")}
    for subgoal_id, subgoal in zip(subgoals, goals.subgoals, strict=False):
        label = _label(subgoal.result, "reached", "open")
        yield "subgoal", subgoal.result, {names.SUBGOAL_ID: subgoal_id, names.SCORE_LABEL: label}


def _label(value: Value | None, one: str, zero: str) -> str | None:
    """The word for a score that is 1 or 0."""
    score = number(value)
    if score is None:
        return None
    return one if score else zero


# Sends evaluation events by OTLP over HTTP, from a thread of its own: an endpoint that is away
# delays nothing.
#
# The queue is bounded. An event that finds it full is dropped and counted, and so is a batch that
# the endpoint does not take within the retries of OpenTelemetry's exporter.

MAX_BATCH_EVENTS: Final = 500
"""Events of one request: some 250 kB."""
GATHER_SECONDS: Final = 1.0
"""How long events may gather for one request."""
FIRST_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 30.0
"""Pause after a batch that was not taken, before the next one; it doubles with each, up to this.
Events wait in the queue meanwhile. Without it, an endpoint that asks for a long pause would get one
request for each batch, as fast as they come.
"""
CLOSE_SECONDS: Final = 2.0
"""How long the end of the role waits for the events that are left. Those that are not sent then are
counted.
"""

Outcome = Literal["sent", "queue_full", "failed", "unsent_at_stop"]


class EvaluationSender:
    """A queue of events, and the thread that sends them."""

    def __init__(
        self, settings: OtlpSettings, code_version: str, count: Callable[[Outcome, int], None]
    ) -> None:
        """Starts the thread; the first request is made with the first event.

        Args:
            settings: Endpoint and bounds.
            code_version: Version of callgauge, for the resource.
            count: Counts events by outcome; called by this thread and by the sender's.

        Raises:
            SetupError: OpenTelemetry's packages are not installed.
        """
        self._count = count
        self._queue: queue.Queue[Evaluation] = queue.Queue(MAX_QUEUED)
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
        """Sends the remaining events for at most `CLOSE_SECONDS`, and counts those that are left.
        It waits: call it in a thread.
        """
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
                    self._queue.get(timeout=min(left_seconds, 0.1))
                    if left_seconds > 0
                    else self._queue.get_nowait()
                )
            except queue.Empty:
                if left_seconds <= 0:
                    break
        return batch


def _exporter(
    settings: OtlpSettings, code_version: str
) -> tuple["OTLPLogExporter", Callable[[Evaluation], Any]]:
    """OpenTelemetry's exporter, and the function that makes its records. Loading them takes a
    moment, so only who uses them does.
    """
    try:
        from opentelemetry._logs import LogRecord, SeverityNumber
        from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
        from opentelemetry.sdk._logs import ReadableLogRecord
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        from opentelemetry.trace import TraceFlags
    except ImportError as error:
        raise SetupError(
            "OTLP is switched on (otlp.endpoint) and its packages are not installed "
            f"({error.name}). Nothing was started. Install callgauge with them: `pip install "
            "'PATH_OF_THE_CHECKOUT[otlp]'`; or leave out otlp.endpoint."
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

    return OTLPLogExporter(endpoint=settings.endpoint, timeout=TIMEOUT_SECONDS), encoded
