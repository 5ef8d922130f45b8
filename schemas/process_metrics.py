"""The metrics of every process, whatever its roles."""

from typing import Final

from schemas.metric_definition import Label, Metric

_ROLE = Label("role", "the role that ended with an error and was started again", ("evaluator", "exporter", "judge"))

PROCESS_METRICS: Final[tuple[Metric, ...]] = (
    Metric(
        "callgauge_role_restarts_total", "counter", "restarts",
        "Times a role ended with an error while its process went on, and was started again; the log says why.",
        "process", (_ROLE,),
    ),
)  # fmt: skip
