"""Every Prometheus metric of callgauge, as data: the one table that code, rules, dashboards and
documents read.

Nothing here counts anything. The roles build their instruments from these rows, and the tests of
`deploy/` hold every rule and every panel against them, so a metric cannot be renamed in one place
only.
"""

from typing import Final

from schemas.metrics.definition import Metric, Role
from schemas.metrics.evaluator import EVALUATOR_METRICS
from schemas.metrics.exporter import EXPORTER_METRICS, SPEECH_METRICS
from schemas.metrics.judge import JUDGE_METRICS
from schemas.metrics.measures import MEASURES_METRICS
from schemas.metrics.process import (
    CONSOLE_METRICS,
    HISTORY_METRICS,
    INGEST_METRICS,
    MONITOR_METRICS,
    PROCESS_METRICS,
)
from schemas.metrics.sequencer import SEQUENCER_METRICS

METRICS: Final[tuple[Metric, ...]] = (
    *EXPORTER_METRICS,
    *SPEECH_METRICS,
    *SEQUENCER_METRICS,
    *EVALUATOR_METRICS,
    *JUDGE_METRICS,
    *MEASURES_METRICS,
    *HISTORY_METRICS,
    *CONSOLE_METRICS,
    *INGEST_METRICS,
    *MONITOR_METRICS,
    *PROCESS_METRICS,
)

_BY_NAME: Final = {metric.name: metric for metric in METRICS}


def metric_named(name: str) -> Metric:
    """The metric of that full name.

    Raises:
        KeyError: No metric has that name; the catalogue is the only place to add one.
    """
    return _BY_NAME[name]


def metrics_of(role: Role) -> tuple[Metric, ...]:
    """The metrics that one role exposes, those of every role included, in the order of
    the table.
    """
    return tuple(metric for metric in METRICS if metric.role in (role, "every"))
