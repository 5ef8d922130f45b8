"""Which labels a PromQL expression yields, worked out against the metric catalogue.

Prometheus never complains about a misspelt metric, a label that does not exist or two sides that
cannot match: the answer is empty and the alert silent. Following the labels through the expression
finds all three.
"""

import re
from collections.abc import Mapping

import promql_parser

from schemas.metrics.catalogue import METRICS

CATALOGUE_SERIES: Mapping[str, frozenset[str]] = {
    name: labels for metric in METRICS for name, labels in metric.series.items()
}
FROM_PROMETHEUS: Mapping[str, frozenset[str]] = {
    "up": frozenset({"job", "instance"}),
    "ALERTS": frozenset(
        {
            "alertname",
            "alertstate",
            "agent",
            "tenant",
            "environment",
            "stage",
            "goal_set",
            "level",
            "severity",
            "team",
            "component",
        }
    ),
    # Of every process, from Prometheus' own client.
    **{
        f"process_{name}": frozenset({"job", "instance"})
        for name in ("cpu_seconds_total", "resident_memory_bytes", "open_fds", "start_time_seconds")
    },
}
_DROP_LE = {"histogram_quantile"}
# a tuple: they cannot be hashed
_EXACT = (promql_parser.MatchOp.Equal, promql_parser.MatchOp.NotEqual)
_PATTERN = (promql_parser.MatchOp.Re, promql_parser.MatchOp.NotRe)
_NO_LABELS = {"absent", "scalar", "time", "vector"}
_KEEP_LABELS = {"rate", "increase", "deriv", "max_over_time", "last_over_time", "sqrt", "abs"}


def labels_of(
    expression: str, recorded: Mapping[str, frozenset[str]] | None = None
) -> frozenset[str]:
    """The labels of an expression's result; `recorded` adds the labels of recording rules."""
    series = {**CATALOGUE_SERIES, **FROM_PROMETHEUS, **(recorded or {})}
    return _labels(promql_parser.parse(expression), series)


def _labels(node: object, series: Mapping[str, frozenset[str]]) -> frozenset[str]:
    match node:
        case promql_parser.VectorSelector():
            return _selected(node, series)
        case promql_parser.MatrixSelector():
            return _selected(node.vector_selector, series)
        case promql_parser.NumberLiteral():
            return frozenset()
        case promql_parser.ParenExpr() | promql_parser.UnaryExpr() | promql_parser.SubqueryExpr():
            return _labels(node.expr, series)
        case promql_parser.AggregateExpr():
            inner = _labels(node.expr, series)
            if node.modifier is None:
                return frozenset()
            if node.modifier.type != promql_parser.AggModifierType.By:
                raise ValueError(f"`without` lets new labels through: {node}")
            return _subset(node.modifier.labels, inner, node)
        case promql_parser.Call():
            return _called(node, series)
        case promql_parser.BinaryExpr():
            return _joined(node, series)
    raise ValueError(f"no rule for {type(node).__name__}: {node}")


def _selected(
    node: promql_parser.VectorSelector, series: Mapping[str, frozenset[str]]
) -> frozenset[str]:
    if node.name is None or node.name not in series:
        raise ValueError(f"no metric exposes {node.name}")
    for matcher in node.matchers.matchers:
        _subset([matcher.name], series[node.name], node)
        if node.name in CATALOGUE_SERIES:
            (metric,) = (each for each in METRICS if node.name in each.series)
            closed: dict[str, tuple[str, ...]] = {
                label.name: label.values for label in metric.label_set
            }
            allowed = metric.le_values if matcher.name == "le" else closed[matcher.name]
            for value in _named_values(matcher):
                if allowed and value not in allowed:
                    raise ValueError(f'{node.name} never has {matcher.name}="{value}"')
    return series[node.name]


def _named_values(matcher: promql_parser.Matcher) -> list[str]:
    """The values a matcher names: one, or several with | between them; none if it is another
    pattern.
    """
    if matcher.op in _EXACT:
        return [matcher.value]
    is_choice = matcher.op in _PATTERN and re.fullmatch(r"\w+(\|\w+)*", matcher.value)
    return matcher.value.split("|") if is_choice else []


def _called(node: promql_parser.Call, series: Mapping[str, frozenset[str]]) -> frozenset[str]:
    arguments = [_labels(argument, series) for argument in node.args]
    if node.func.name in _NO_LABELS:
        return frozenset()
    if node.func.name in _DROP_LE:
        return _subset(["le"], arguments[-1], node) ^ arguments[-1]
    if node.func.name in _KEEP_LABELS:
        return arguments[-1]
    raise ValueError(f"no rule for the function {node.func.name}")


def _joined(node: promql_parser.BinaryExpr, series: Mapping[str, frozenset[str]]) -> frozenset[str]:
    left, right = _labels(node.lhs, series), _labels(node.rhs, series)
    if _is_scalar(node.lhs) or _is_scalar(node.rhs):
        return left | right
    if str(node.op) == "or" and left != right and right == frozenset():
        return left  # an absent value without labels is beside series with labels
    if node.modifier is not None and node.modifier.matching is not None:
        on = node.modifier.matching.labels
        if node.modifier.matching.type == promql_parser.LabelModifierType.Exclude:
            _subset(on, left | right, node)
            on = sorted((left | right) - set(on))
        _subset(on, left, node)
        _subset(on, right, node)
    elif left != right:
        raise ValueError(f"sides with {sorted(left)} and {sorted(right)} never match: {node}")
    return left


def _is_scalar(node: object) -> bool:
    match node:
        case promql_parser.NumberLiteral():
            return True
        case promql_parser.ParenExpr() | promql_parser.UnaryExpr():
            return _is_scalar(node.expr)
        case promql_parser.BinaryExpr():
            return _is_scalar(node.lhs) and _is_scalar(node.rhs)
        case promql_parser.Call():
            return bool(node.func.name in {"scalar", "time"})
    return False


def _subset(wanted: list[str], present: frozenset[str], node: object) -> frozenset[str]:
    if missing := sorted(set(wanted) - present):
        raise ValueError(f"no label {', '.join(missing)} in {node}")
    return frozenset(wanted)
