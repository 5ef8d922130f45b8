"""The metrics that every role has: how its reading of Kafka goes."""

from typing import Final

from schemas.metric_definition import Label, Metric

_ROLE = Label("role", "the role that reads", ("evaluator", "exporter", "judge"))

READING_METRICS: Final[tuple[Metric, ...]] = (
    Metric(
        "callgauge_poll_failures_total", "counter", "polls",
        "Polls of Kafka that failed; the position stays, and the poll is tried again.",
        "every", (_ROLE,),
    ),
)  # fmt: skip
"""In the order in which they are listed."""
