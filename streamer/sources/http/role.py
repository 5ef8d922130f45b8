"""The role `ingest`: receives events over HTTP within bounds, by tenant."""

import asyncio
from collections.abc import Collection, Sequence
from functools import partial
from typing import Final

import structlog
from starlette.routing import Route

from consumers.engine.limits import Limits
from consumers.engine.redaction.redactor import Redactor
from consumers.runtime.http import ConnectionBounds, HttpLimit, HttpListener
from consumers.runtime.kafka.connection import KafkaSettings
from consumers.runtime.process import OperatorError, first_of, tune_python, wall_clock_ms
from consumers.runtime.registry import Instruments
from streamer.settings.all_settings import IngestSettings
from streamer.sources.http.elevenlabs import WebhookRoute
from streamer.sources.http.posted import Batches, EventsRoute
from streamer.sources.http.receiving import Bodies, Senders
from streamer.sources.http.traces import posted_spans
from streamer.sources.writer import ACKNOWLEDGE_SECONDS, AcknowledgedWriter

BOUNDS: Final = ConnectionBounds(request_seconds=30.0, answer_seconds=45.0, most_connections=1_024)
"""Bots keep a connection between their batches. An answer waits for the body and for Kafka, each with a deadline of its own."""
STOP_SECONDS: Final = ACKNOWLEDGE_SECONDS
"""How long requests in progress may take when the role stops: they wait for Kafka for as long."""
EVENTS_PATH: Final = "/events"
TRACES_PATH: Final = "/v1/traces"
WEBHOOK_PATH: Final = "/webhooks/elevenlabs"

log = structlog.get_logger()


class IngestOffError(OperatorError):
    """The role has nothing to receive. A person has to set a token or a secret."""

    exit_code = 2


class IngestRole:
    """Receives events over HTTP until it is stopped.

    Attributes:
        ready: Set while it listens.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        settings: IngestSettings,
        limits: Limits,
        instruments: Instruments,
        redactor: Redactor,
        *,
        names: Collection[str] = (),
    ) -> None:
        """Creates the role; nothing is connected before `run`. Call it inside a running event loop.

        Args:
            kafka: Where Kafka is.
            settings: The address, and the rights of senders.
            limits: Of the evaluator, whose checks each event passes.
            instruments: Gets the metrics of the role.
            redactor: Redacts the parts of events that refusals repeat.
            names: Names by which a proxy or a tunnel on this machine asks.

        Raises:
            IngestOffError: There is neither a token nor a secret.
        """
        if not settings.is_on:
            raise IngestOffError(
                "Ingest: nobody may send anything, so it does not start: there is neither a token for POST /events nor a secret "
                "of ElevenLabs' webhook. Set CALLGAUGE_INGEST__TOKEN, CALLGAUGE_INGEST__ELEVENLABS_SECRET, or both."
            )
        self.ready = asyncio.Event()
        self._writer = AcknowledgedWriter(kafka, "ingest")
        # A room for each route: senders without a token reach the webhook's alone.
        of_events, of_webhooks, senders = Bodies(), Bodies(), Senders(settings.senders())
        batches = Batches(senders, limits, redactor, wall_clock_ms)
        events = EventsRoute(senders, batches, of_events, self._writer, instruments)
        traces = EventsRoute(senders, batches, of_events, self._writer, instruments, posted_spans)
        self._webhook = webhook = WebhookRoute(senders, of_webhooks, self._writer, instruments, limits, wall_clock_ms)
        routes = [
            Route(EVENTS_PATH, events.answer, methods=["POST"]),
            Route(TRACES_PATH, traces.answer, methods=["POST"]),
            Route(WEBHOOK_PATH, webhook.answer, methods=["POST"]),
            Route(WEBHOOK_PATH + "/{tenant}", webhook.answer, methods=["POST"]),
        ]
        self._listener = HttpListener(
            settings.host, settings.port, routes, partial(_count, instruments), bounds=BOUNDS,
            without_it="Events cannot be received", names=names, stop_seconds=STOP_SECONDS,
        )  # fmt: skip
        self._tenants = [tenant for tenant in senders.by_tenant if tenant]
        self._settings = settings
        instruments.read_gauge(
            "callgauge_ingest_pending_bytes", lambda: {(): of_events.pending_bytes + of_webhooks.pending_bytes}
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Listens until `stop` is set; then finishes the requests in progress.

        Raises:
            AddressInUseError: The address is taken.
            KafkaUnreachableError: No broker answers.
            ProducerBrokenError: Records cannot be written any more.
        """
        tune_python()  # a large batch is a hundred thousand objects, and a search among them keeps everybody waiting
        await self._writer.start()
        try:
            await self._listener.start()
            self.ready.set()
            log.info("ingest_listens", address=self._listener.address, tenants=self._tenants)
            await first_of(stop.wait(), self._writer.broken.wait())
            if self._writer.broken.is_set():
                raise self._writer.failure()
        finally:
            self.ready.clear()
            await self._listener.stop()
            await self._writer.close()
            self._webhook.close()

    def problems(self) -> Sequence[str]:
        """The reason why it receives nothing now, for `/readyz`. Requests are tried nevertheless, and end it."""
        away = "ingest: Kafka did not acknowledge the last records; senders get 503"
        return (away,) if self.ready.is_set() and self._writer.is_away else ()

    def stalled(self) -> Sequence[str]:
        """No fault of this role needs a new process: a broken producer is made anew with the role."""
        return ()


def _count(instruments: Instruments, limit: HttpLimit) -> None:
    instruments.inc("callgauge_http_limits_hit_total", (limit,))
