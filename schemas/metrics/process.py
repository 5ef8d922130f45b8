"""The metrics of every process, whatever its roles: its version, its series, its reading of Kafka, its HTTP server, and restarts
of its roles. `process_*`, its memory, processor time and start, comes from the client library.
"""

from typing import Final

from schemas.closed_sets import ROLE_NAMES
from schemas.metrics.definition import Label, Metric

_HTTP_LIMIT = Label(
    "limit",
    "no whole request in time, an answer not read in time, too many connections, or too many readers of /metrics",
    ("request_time", "answer_time", "connections", "scrapes"),
)
_CAPPED_LABEL = Label(
    "label", "the label whose cap was reached", ("agent", "tenant", "environment", "goal_set", "tool")
)
_VERSION = Label("version", "the installed version")

PROCESS_METRICS: Final[tuple[Metric, ...]] = (
    Metric(
        "callgauge_build_info", "gauge", "info",
        "Always 1; the label says which version runs.",
        "every", (_VERSION,),
    ),
    Metric(
        "callgauge_label_overflow_total", "counter", "values",
        "Uses of a label value that came after the label's cap was reached and is shown as `other`.",
        "every", (_CAPPED_LABEL,),
    ),
    Metric(
        "callgauge_series_folded_total", "counter", "values",
        "Values that count under `other` because the process has as many series as the setting `max_series` allows.",
        "every",
    ),
    Metric(
        "callgauge_role_restarts_total", "counter", "restarts",
        "Times a role ended with an error while its process went on, and was started again; the log says why.",
        "every", (Label("role", "the role that ended with an error and was started again", ROLE_NAMES),),
    ),
    Metric(
        "callgauge_poll_failures_total", "counter", "polls",
        "Polls of Kafka that failed; the position stays, and the poll is tried again.",
        "every", (Label("role", "the role that reads", ROLE_NAMES),),
    ),
    Metric(
        "callgauge_http_limits_hit_total", "counter", "hits",
        "Times that a bound of the HTTP server ended a connection or refused a reader of /metrics; probes are never refused.",
        "every", (_HTTP_LIMIT,),
    ),
    Metric(
        "callgauge_kafka_logins_refused_total", "counter", "requests",
        "Trial connections that Kafka refused: a login, a certificate or a token that holds no longer. Each is logged.",
        "every",
    ),
)  # fmt: skip
