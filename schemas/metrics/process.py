"""Metrics of every process, of history, of the console, of `ingest` and of the monitor."""

from typing import Final

from schemas.closed_sets import (
    ROLE_NAMES,
    IngestOutcome,
    InputSource,
    MonitorOutcome,
    WebhookKind,
    WebhookOutcome,
)
from schemas.metrics.definition import TENANT, Label, Metric, MetricsOf, words_of

_EVERY = MetricsOf("every")
_INGEST = MetricsOf("ingest")
_MONITOR = MetricsOf("monitor")
_CONSOLE = MetricsOf("console")
_HISTORY = MetricsOf("history")

# The metrics of every process, whatever its roles: its version, its series, its reading of Kafka,
# its HTTP server, restarts of its roles, and the way of events, which leads through two roles.
# `process_*`, its memory, processor time and start, comes from the client library.

_HTTP_LIMIT = Label(
    "limit",
    "no whole request in time, an answer not read in time, too many connections, too many readers "
    "of /metrics, a strange name for this machine, or a page of another site",
    ("request_time", "answer_time", "connections", "scrapes", "host", "origin"),
)
_CAPPED_LABEL = Label(
    "label",
    "the label whose cap was reached",
    ("agent", "tenant", "environment", "goal_set", "tool", "version", "measure", "label"),
)
_VERSION = Label("version", "the installed version")
_STEP = Label(
    "step",
    "where it ends: the evaluator takes the event up, has decided its records, begins their "
    "transaction, has committed it; the exporter has counted a record",
    ("polled", "folded", "written", "committed", "counted"),
)

STEP_EDGES_SECONDS: Final = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Edges of a step on the way of an event: all together take 0.12 s at p50 and 0.3 s at p99 on a
machine that keeps up.
"""
STEP_METRIC: Final = "callgauge_event_step_seconds"
LOOP_EDGES_SECONDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Edges of how late the event loop is: no request and no event may hold it for longer than 0.05 s
at default limits; above 0.5 s probes, heartbeats and other tenants feel it.
"""
LOOP_METRIC: Final = "callgauge_loop_lag_seconds"

PROCESS_METRICS: Final[tuple[Metric, ...]] = (
    _EVERY.gauge("callgauge_build_info", "info", _VERSION)(
        "Always 1; the label says which version runs."
    ),
    _EVERY.counter("callgauge_label_overflow_total", "values", _CAPPED_LABEL)(
        "Uses of a label value that came after the label's cap was reached and is shown as `other`."
    ),
    _EVERY.counter("callgauge_series_folded_total", "values")(
        "Values that count under `other` because the process has as many series as the setting "
        "`max_series` allows."
    ),
    _EVERY.counter(
        "callgauge_role_restarts_total",
        "restarts",
        Label("role", "the role that ended with an error and was started again", ROLE_NAMES),
    )(
        "Times a role ended with an error while its process went on, and was started again; the "
        "log says why."
    ),
    _EVERY.counter(
        "callgauge_poll_failures_total", "polls", Label("role", "the role that reads", ROLE_NAMES)
    )("Polls of Kafka that failed; the position stays, and the poll is tried again."),
    _EVERY.counter("callgauge_http_limits_hit_total", "hits", _HTTP_LIMIT)(
        "Times that a bound of the HTTP server ended a connection or refused a reader of /metrics; "
        "probes are never refused."
    ),
    _EVERY.counter("callgauge_kafka_logins_refused_total", "requests")(
        "Trial connections that Kafka refused: a login, a certificate or a token that holds no "
        "longer. Each is logged."
    ),
    _EVERY.histogram(STEP_METRIC, "seconds", STEP_EDGES_SECONDS, _STEP)(
        "Time of each step from an event to the metrics that it changes, from the end of the step "
        "before, for events that show something that is written immediately: a latency, an "
        "interruption, the use of a tool. Rows of turns and calls may wait. `polled` begins at the "
        "broker's timestamp of the event on its input, so the sequencer is in it; `counted` when "
        "the record was written, so it includes `committed`. Evaluators observe the first four, "
        "once for each event, exporters the last one, once for each record."
    ),
    _EVERY.histogram(LOOP_METRIC, "seconds", LOOP_EDGES_SECONDS)(
        "How late the event loop of the process began something that was due, measured every 0.05 "
        "s. While one request or record holds the loop, nothing else of the process goes on: no "
        "probe, no heartbeat, no other request."
    ),
)


# The metrics of the ingest role: requests, deliveries of webhooks, and how long it takes until they
# are safe.

ACKNOWLEDGEMENT_EDGES_SECONDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Edges of an acknowledgement: a broker nearby takes 10 to 50 ms; after 5 s the sender is asked to
come again.
"""

_ROUTE = Label("route", "where it was sent to", ("events", "elevenlabs"))
_REQUEST_OUTCOME = Label("outcome", "result of the request", words_of(IngestOutcome))
_EVENT_SOURCE = Label(
    "source", "the input topic of the event", words_of(InputSource, without=InputSource.JUDGE)
)
_WEBHOOK_KIND = Label("kind", "content of the delivery", words_of(WebhookKind))
_WEBHOOK_OUTCOME = Label("outcome", "result of the delivery", words_of(WebhookOutcome))

INGEST_METRICS: Final[tuple[Metric, ...]] = (
    _INGEST.counter("callgauge_ingest_requests_total", "requests", TENANT, _REQUEST_OUTCOME)(
        "Requests to POST /events, each counted once, when it is answered."
    ),
    _INGEST.counter("callgauge_ingest_events_total", "events", TENANT, _EVENT_SOURCE)(
        "Events of POST /events that are safe, acknowledged by Kafka or on the disk, by their "
        "source."
    ),
    _INGEST.counter("callgauge_ingest_events_refused_total", "events", TENANT)(
        "Events of POST /events that a check refused; the answer to the sender names each of them."
    ),
    _INGEST.counter(
        "callgauge_ingest_webhooks_total", "deliveries", _WEBHOOK_KIND, _WEBHOOK_OUTCOME
    )("Deliveries of ElevenLabs' webhook, each counted once, when it is answered."),
    _INGEST.histogram(
        "callgauge_ingest_acknowledgement_seconds", "seconds", ACKNOWLEDGEMENT_EDGES_SECONDS, _ROUTE
    )(
        "Time of a request with events, from the last byte of its body until all of them are "
        "acknowledged by Kafka, or on the disk."
    ),
    _INGEST.gauge("callgauge_ingest_pending_bytes", "bytes")("Bytes of request bodies in memory."),
)
"""In the order in which they are listed."""


# The metrics of the monitor role: the live calls that it follows, their messages, and its
# connections.

_MESSAGE_OUTCOME = Label("outcome", "result of the message", words_of(MonitorOutcome))
_CONNECTION_OUTCOME = Label("outcome", "how the connection ended", ("ended", "lost", "refused"))

MONITOR_METRICS: Final[tuple[Metric, ...]] = (
    _MONITOR.gauge("callgauge_monitor_calls", "calls")(
        "Live calls of ElevenLabs agents that are followed."
    ),
    _MONITOR.counter("callgauge_monitor_messages_total", "messages", _MESSAGE_OUTCOME)(
        "Messages of ElevenLabs' monitor, each counted once, when it was acknowledged by Kafka or "
        "left out."
    ),
    _MONITOR.counter("callgauge_monitor_connections_total", "requests", _CONNECTION_OUTCOME)(
        "Connections to ElevenLabs' monitor that ended: with the call, in the middle of it, or "
        "before it was accepted."
    ),
    _MONITOR.counter("callgauge_monitor_look_failures_total", "requests")(
        "Looks for live calls that ElevenLabs did not answer, or not with a list of calls; each is "
        "logged."
    ),
)
"""In the order in which they are listed."""


# The metrics of the history role: what it keeps, and what waits.

_HISTORY_OUTCOME = Label(
    "outcome",
    "kept, not readable or beyond a bound, or of a forgotten call",
    ("written", "refused", "forgotten"),
)

HISTORY_METRICS: Final[tuple[Metric, ...]] = (
    _HISTORY.counter("callgauge_history_records_total", "records", _HISTORY_OUTCOME)(
        "Records of `scores`, `transcripts` and `annotations`, each counted when it is in its "
        "file, or when it was left out."
    ),
    _HISTORY.counter("callgauge_history_write_failures_total", "writes")(
        "Writes that failed, of a full disk or a folder without rights; each is tried again, and "
        "nothing is lost."
    ),
    _HISTORY.gauge("callgauge_history_lag_messages", "records", Label("topic", "the topic read"))(
        "Records that are not in history yet, by topic, as of the newest poll."
    ),
    _HISTORY.gauge("callgauge_history_forgotten_calls", "calls")(
        "Calls that were deleted on request, whose records are not kept if they come again; as of "
        "the newest request."
    ),
)
"""In the order in which they are listed."""


# The metrics of the console role: its pages, and what they cost.

_REFUSED = Label(
    "reason",
    "why a person or a program got no answer",
    (
        *("pages", "choices", "drawings", "lists", "history", "known", "unknown"),
        *("token", "other_site"),
    ),
)

_SHARE = Label(
    "kind",
    "what had used up its share",
    ("drawings", "lists", "history", "known", "unknown", "answers"),
)

CONSOLE_METRICS: Final[tuple[Metric, ...]] = (
    _CONSOLE.gauge("callgauge_console_pages_open", "pages")(
        "Pages of the console that are open, and readers of its stream."
    ),
    _CONSOLE.counter("callgauge_console_refused_total", "requests", _REFUSED)(
        "Requests that were refused: too many pages or choices are open, too many calls are looked "
        "for, drawn or listed, too many searches wait, the token was wrong, or a page of another "
        "site asked."
    ),
    _CONSOLE.counter("callgauge_console_waited_seconds_total", "seconds", _SHARE)(
        "How long answers waited because their kind had used up its share of the processor, or of "
        "bytes, all together."
    ),
)
"""In the order in which they are listed."""
