"""Which panels and which alerts use each metric, read from the shipped dashboards and rules."""

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from schemas.metrics.catalogue import METRICS

_DEPLOY: Final = Path(__file__).parents[1] / "deploy"
_OF_SERIES: Final = {series: metric.name for metric in METRICS for series in metric.series}
_NAME: Final = re.compile(r"[a-z_]+:callgauge_\w+:\w+|\bcallgauge_\w+")
"""A recorded series, or one of the catalogue."""


def uses() -> Mapping[str, str]:
    """Returns by metric its panels, and its alerts or else the recordings that no alert reads;
    without metrics that nothing uses.
    """
    found: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for user, metrics in (*_of_panels(), *_of_rules()):
        for metric in metrics:
            found[metric][user] = None
    return {metric: "; ".join(users) for metric, users in found.items()}


def _of_panels() -> Iterator[tuple[str, set[str]]]:
    for path in sorted((_DEPLOY / "grafana" / "dashboards").glob("*.json")):
        for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]:
            asked = " ".join(target["expr"] for target in panel.get("targets", ()))
            yield f"{path.stem}: {panel['title']}", _metrics_in(asked, {})


def _of_rules() -> Iterator[tuple[str, set[str]]]:
    text = (_DEPLOY / "prometheus" / "rules" / "callgauge.rules.yml").read_text(encoding="utf-8")
    rules: list[dict[str, Any]] = [
        rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]
    ]
    recorded = {rule["record"]: rule["expr"] for rule in rules if "record" in rule}
    read = {name for rule in rules for name in _NAME.findall(rule["expr"])}
    for rule in rules:
        if "alert" in rule:
            yield f"`{rule['alert']}`", _metrics_in(rule["expr"], recorded)
        elif rule["record"] not in read:
            yield f"`{rule['record']}`", _metrics_in(rule["expr"], recorded)


def _metrics_in(expression: str, recorded: Mapping[str, str]) -> set[str]:
    """Returns the metrics of an expression, and those behind the recordings that it reads."""
    names = set(_NAME.findall(expression))
    behind = [_metrics_in(recorded[name], recorded) for name in names if name in recorded]
    return {_OF_SERIES[name] for name in names if name in _OF_SERIES}.union(*behind)
