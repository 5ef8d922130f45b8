"""The metrics of the ingest role: requests, deliveries of webhooks, and how long Kafka takes to acknowledge them."""

from typing import Final

from schemas.closed_sets import IngestOutcome, InputSource, WebhookKind, WebhookOutcome
from schemas.metrics.definition import TENANT, Label, Metric, words_of

ACKNOWLEDGEMENT_EDGES_SECONDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Edges of an acknowledgement: a broker nearby takes 10 to 50 ms; after 5 s the sender is asked to come again."""

_ROUTE = Label("route", "where it was sent to", ("events", "elevenlabs"))
_REQUEST_OUTCOME = Label("outcome", "result of the request", words_of(IngestOutcome))
_EVENT_SOURCE = Label("source", "the input topic of the event", words_of(InputSource, without=InputSource.JUDGE))
_WEBHOOK_KIND = Label("kind", "content of the delivery", words_of(WebhookKind))
_WEBHOOK_OUTCOME = Label("outcome", "result of the delivery", words_of(WebhookOutcome))

INGEST_METRICS: Final[tuple[Metric, ...]] = (
    Metric(
        "callgauge_ingest_requests_total", "counter", "requests",
        "Requests to POST /events, each counted once, when it is answered.",
        "ingest", (TENANT, _REQUEST_OUTCOME),
    ),
    Metric(
        "callgauge_ingest_events_total", "counter", "events",
        "Events of POST /events that Kafka acknowledged, by the input topic.",
        "ingest", (TENANT, _EVENT_SOURCE),
    ),
    Metric(
        "callgauge_ingest_events_refused_total", "counter", "events",
        "Events of POST /events that a check refused; the answer to the sender names each of them.",
        "ingest", (TENANT,),
    ),
    Metric(
        "callgauge_ingest_webhooks_total", "counter", "deliveries",
        "Deliveries of ElevenLabs' webhook, each counted once, when it is answered.",
        "ingest", (_WEBHOOK_KIND, _WEBHOOK_OUTCOME),
    ),
    Metric(
        "callgauge_ingest_acknowledgement_seconds", "histogram", "seconds",
        "Time of a request with events, from the last byte of its body to Kafka's acknowledgement of all of them.",
        "ingest", (_ROUTE,), ACKNOWLEDGEMENT_EDGES_SECONDS,
    ),
    Metric(
        "callgauge_ingest_pending_bytes", "gauge", "bytes",
        "Bytes of request bodies in memory.",
        "ingest",
    ),
)  # fmt: skip
"""In the order in which they are listed."""
