"""Sends evaluation events by OTLP over HTTP, from a thread of its own: an endpoint that is away delays nothing.

The queue is bounded. An event that finds it full is dropped and counted, and so is a batch that the endpoint does not take
within the retries of OpenTelemetry's exporter.
"""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from consumers.exporter.otlp.evaluations import Evaluation
from consumers.exporter.settings import OtlpSettings
from consumers.runtime.errors import OperatorError
from schemas.evaluation_event import EVENT_NAME

if TYPE_CHECKING:
    from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter

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
    except ImportError as error:
        raise OtlpUnavailableError(
            f"OTLP is switched on (otlp.endpoint) and its packages are not installed ({error.name}). Nothing was started. "
            "Install callgauge with them: `uv tool install 'callgauge[otlp]'`; or leave out otlp.endpoint."
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
        return ReadableLogRecord(made, resource, scope)

    return OTLPLogExporter(endpoint=settings.endpoint, timeout=settings.timeout_seconds), encoded
