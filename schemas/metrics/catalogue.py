"""Every Prometheus metric of callgauge, as data: the one table that code, rules, dashboards and documents read.

Nothing here counts anything. The roles build their instruments from these rows, and the tests of `deploy/` hold every
rule and every panel against them, so a metric cannot be renamed in one place only.
"""

from collections.abc import Mapping
from typing import Final

from schemas.metrics.definition import OVERFLOW_VALUE, Metric, Role
from schemas.metrics.evaluator import EVALUATOR_METRICS
from schemas.metrics.exporter import EXPORTER_METRICS, SPEECH_METRICS
from schemas.metrics.judge import JUDGE_METRICS
from schemas.metrics.measures import MEASURES_METRICS
from schemas.metrics.process import CONSOLE_METRICS, HISTORY_METRICS, INGEST_METRICS, MONITOR_METRICS, PROCESS_METRICS
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
    """The metrics that one role exposes, those of every role included, in the order of the table."""
    return tuple(metric for metric in METRICS if metric.role in (role, "every"))


def render_markdown(uses: Mapping[str, str]) -> str:
    """The table as GitHub markdown: one row per metric, then one per label. Ends with a line break.

    Args:
        uses: By metric, what uses it; a metric that nothing uses may be left out.
    """
    lines = ["| metric | type | unit | labels | on | meaning | used by |", "|---|---|---|---|---|---|---|"]
    for metric in METRICS:
        labels = ", ".join(f"`{name}`" for name in metric.labels)
        row = (
            f"`{metric.name}`",
            metric.type,
            metric.unit,
            labels,
            metric.role,
            metric.help,
            uses.get(metric.name, ""),
        )
        lines.append(f"| {' | '.join(row)} |")
    lines += ["", "| label | meaning | values |", "|---|---|---|"]
    labels_in_order = dict.fromkeys(label for metric in METRICS for label in metric.label_set)
    for label in sorted(labels_in_order, key=lambda label: label.name):
        if label.values:
            bound = ", ".join(f"`{value}`" for value in label.values)
        elif label.cap:
            bound = f"the first {label.cap}, then `{OVERFLOW_VALUE}`"
        else:
            bound = "given by the deployment"
        lines.append(f"| `{label.name}` | {label.meaning} | {bound} |")
    return "\n".join(lines) + "\n"
