"""Receiving events over HTTP within bounds, by tenant: the routes, whatever server has them and
whatever they are written to.
"""

from collections.abc import Sequence
from typing import Final

from starlette.routing import BaseRoute, Route

from consumers.engine.limits import Limits
from consumers.engine.redaction.redactor import Redactor
from consumers.runtime.http import ConnectionBounds
from consumers.runtime.process import wall_clock_ms
from consumers.runtime.registry import Instruments
from streamer.settings.all_settings import IngestSettings
from streamer.sources.http.elevenlabs import WebhookRoute
from streamer.sources.http.posted import Batches, EventsRoute
from streamer.sources.http.receiving import Bodies, Senders
from streamer.sources.http.traces import posted_spans
from streamer.sources.outgoing import WritesRecords

BOUNDS: Final = ConnectionBounds(request_seconds=30.0, answer_seconds=45.0, most_connections=1_024)
"""Bots keep a connection between their batches. An answer waits for the body and for the log, each
with a deadline of its own.
"""
EVENTS_PATH: Final = "/events"
TRACES_PATH: Final = "/v1/traces"
WEBHOOK_PATH: Final = "/webhooks/elevenlabs"


class Receiver:
    """The receiver of events.

    Attributes:
        routes: Its routes.
        tenants: Who may send, but for the sender without a tenant.
    """

    def __init__(
        self,
        settings: IngestSettings,
        limits: Limits,
        writer: WritesRecords,
        instruments: Instruments,
        redactor: Redactor,
    ) -> None:
        """Makes the routes.

        Args:
            settings: The rights of senders.
            limits: Of the evaluator, whose checks each event passes.
            writer: Takes the events.
            instruments: Gets the metrics of the role.
            redactor: Redacts the parts of events that refusals repeat.
        """
        # A room for each route: senders without a token reach the webhook's alone.
        of_events, of_webhooks, senders = Bodies(), Bodies(), Senders(settings.senders())
        batches = Batches(senders, limits, redactor, wall_clock_ms)
        events = EventsRoute(senders, batches, of_events, writer, instruments)
        traces = EventsRoute(senders, batches, of_events, writer, instruments, posted_spans)
        self._webhook = webhook = WebhookRoute(
            senders, of_webhooks, writer, instruments, limits, wall_clock_ms
        )
        self.routes: Sequence[BaseRoute] = [
            Route(EVENTS_PATH, events.answer, methods=["POST"]),
            Route(TRACES_PATH, traces.answer, methods=["POST"]),
            Route(WEBHOOK_PATH, webhook.answer, methods=["POST"]),
            Route(WEBHOOK_PATH + "/{tenant}", webhook.answer, methods=["POST"]),
        ]
        self.tenants = [tenant for tenant in senders.by_tenant if tenant]
        instruments.read_gauge(
            "callgauge_ingest_pending_bytes",
            lambda: {(): of_events.pending_bytes + of_webhooks.pending_bytes},
        )

    def close(self) -> None:
        """Ends the thread of the webhook."""
        self._webhook.close()
