"""Metrics of the role measures: the values of one's own measures."""

from typing import Final

from schemas.metrics.definition import TENANT, Label, Metric, MetricsOf

_MEASURES = MetricsOf("measures")

OWN_VALUE_EDGES: Final = (
    0.0,
    0.1,
    0.2,
    0.5,
    1.0,
    2.0,
    5.0,
    10.0,
    20.0,
    50.0,
    100.0,
    200.0,
    500.0,
    1_000.0,
    10_000.0,
)
"""Edges of numbers whose unit is not known beforehand: shares, seconds, words and
milliseconds fit.
"""

_MEASURE = Label("measure", "name of the function", cap=20)
_AGENT = Label("agent", "the voice agent, as `call_started` names it", cap=50)

MEASURES_METRICS: Final[tuple[Metric, ...]] = (
    _MEASURES.histogram("callgauge_own_value", "number", OWN_VALUE_EDGES, _MEASURE, _AGENT, TENANT)(
        "Values of one's own measures that are numbers, each counted once, when its call closes; "
        "True is 1."
    ),
    _MEASURES.counter(
        "callgauge_own_labels_total",
        "values",
        _MEASURE,
        _AGENT,
        TENANT,
        Label("label", "what the function gave", cap=50),
    )("Values of one's own measures that are labels, each counted once, when its call closes."),
    _MEASURES.counter(
        "callgauge_own_unmeasured_total",
        "values",
        _MEASURE,
        Label(
            "cause",
            "the function gave a reason, it made a mistake, or more calls run than are measured",
            ("reason", "mistake", "limit"),
        ),
    )(
        "Values of one's own measures that are missing, counted when the call closes; their rows "
        "say why."
    ),
)
"""In the order in which they are listed."""
