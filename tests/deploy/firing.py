"""Which alerts fire when on given series, as promtool computes it: no clock, no server, exact
windows.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.support.promtool import promtool

Labels = frozenset[tuple[str, str]]

_CASE = re.compile(r"^ +alertname: ?(\w+), time: (\w+), *$")
_LABELS = re.compile(r"^ +Labels:\{(.*)\}$")
_ANNOTATIONS = re.compile(r"^ +Annotations:\{(.*)\},?$")
_PAIR = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class Firing:
    """An alert that fires at a time (seconds since the series began), with its labels and texts."""

    alert: str
    at: int
    labels: Labels
    annotations: Labels


def firings(
    rules: Path,
    series: Mapping[str, str],
    *,
    interval: int,
    every: int,
    alerts: Iterable[str],
    times: Collection[int],
    work: Path,
    program: Path | None = None,
) -> list[Firing]:
    """Returns the alerts that fire at these times.

    Args:
        rules: The file of rules.
        series: Values of each series in promtool's notation.
        interval: Seconds between two values.
        every: Seconds between two evaluations.
        alerts: Names of the alerts to ask for.
        times: When to look, in seconds.
        work: A folder for promtool's file.
        program: Another promtool than the installed one.
    """
    # promtool names firing alerts only where none were expected: so none are.
    asked = [
        {"alertname": alert, "eval_time": f"{at}s", "exp_alerts": []}
        for alert in alerts
        for at in sorted(times)
    ]
    test = {
        "interval": f"{interval}s",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": asked,
    }
    # Without an order promtool takes one by chance, and a rule that reads the recording of another
    # group is a step late or not.
    groups = [
        group["name"] for group in yaml.safe_load(rules.read_text(encoding="utf-8"))["groups"]
    ]
    document = {
        "rule_files": [str(rules)],
        "evaluation_interval": f"{every}s",
        "group_eval_order": groups,
        "tests": [test],
    }
    path = work / "firing.yml"
    path.write_text(json.dumps(document), encoding="utf-8")
    result = promtool("test", "rules", path, program=program)
    if result.returncode != 0 and "FAILED" not in result.stderr + result.stdout:
        raise AssertionError(result.stdout + result.stderr)
    return list(_parsed(result.stdout + result.stderr))


def rules_for(document: Mapping[str, Any], alerts: Collection[str]) -> dict[str, Any]:
    """Returns the part of a document of rules that these alerts need. promtool evaluates every rule
    at every step.
    """
    wanted = [
        rule["expr"]
        for group in document["groups"]
        for rule in group["rules"]
        if rule.get("alert") in alerts
    ]
    recordings = {
        rule["record"]: rule["expr"]
        for group in document["groups"]
        for rule in group["rules"]
        if "record" in rule
    }
    needed: set[str] = set()
    while wanted:
        expression = wanted.pop()
        read = {name for name in recordings if name in expression} - needed
        needed |= read
        wanted += [recordings[name] for name in read]
    return {
        "groups": [
            {
                **group,
                "rules": [
                    rule
                    for rule in group["rules"]
                    if rule.get("alert") in alerts or rule.get("record") in needed
                ],
            }
            for group in document["groups"]
        ]
    }


def _parsed(output: str) -> Iterable[Firing]:
    alert, at, labels = "", 0, frozenset[tuple[str, str]]()
    for line in output.splitlines():
        if case := _CASE.match(line):
            alert, at = case[1], seconds(case[2])
        elif found := _LABELS.match(line):
            labels = frozenset(_PAIR.findall(found[1])) - {("alertname", alert)}
        elif found := _ANNOTATIONS.match(line):
            yield Firing(alert, at, labels, frozenset(_PAIR.findall(found[1])))


def seconds(duration: str) -> int:
    """Returns the seconds of a duration as Prometheus writes it: 1h30m."""
    units = {"w": 604_800, "d": 86_400, "h": 3_600, "m": 60, "s": 1}
    return sum(
        int(number) * units[unit] for number, unit in re.findall(r"(\d+)([wdhms])", duration)
    )


@dataclass(frozen=True, slots=True)
class AlertCase:
    """Series around the limits of one alert, and when it fires on them.

    Attributes:
        alert: The alert's name.
        interval: Seconds between two values.
        every: Seconds between two evaluations.
        series: Values of each series.
        fires: For labels of an alert, the first and the last evaluation at which it fires, each
            time that it does.
    """

    alert: str
    interval: int
    every: int
    series: Mapping[str, str]
    fires: Mapping[Labels, tuple[tuple[int, int], ...]]

    @property
    def until(self) -> int:
        """The time of the last value, in seconds."""
        return self.interval * max(len(_values(values)) - 1 for values in self.series.values())

    @property
    def times(self) -> set[int]:
        """Both sides of each beginning and end, and the end of the series."""
        return self.times_off(0)

    def times_off(self, slack: int) -> set[int]:
        """Times at least so many seconds off each beginning and end, on both sides of it, and the
        end of the series.
        """
        turns = {
            turn
            for spans in self.fires.values()
            for first, last in spans
            for turn in (first, last + self.every)
        }
        edges = {edge for turn in turns for edge in (turn - self.every - slack, turn + slack)}
        return {
            edge
            for edge in {*edges, self.until}
            if 0 <= edge <= self.until
            and not any(turn - self.every - slack < edge < turn + slack for turn in turns)
        }

    def seen(
        self,
        document: Mapping[str, Any],
        work: Path,
        times: Collection[int] | None = None,
        program: Path | None = None,
        alerts: Collection[str] | None = None,
    ) -> list[Firing]:
        """Returns the alerts that fire by these rules.

        Args:
            document: The rules.
            work: A folder for promtool's files.
            times: When to look, in seconds; None means the times of the case.
            program: Another promtool than the installed one.
            alerts: The alerts to ask for; None means the one of the case.
        """
        asked = [self.alert] if alerts is None else alerts
        rules = work / "rules.yml"
        rules.write_text(yaml.safe_dump(rules_for(document, asked)), encoding="utf-8")
        return firings(
            rules,
            self.series,
            interval=self.interval,
            every=self.every,
            alerts=asked,
            times=self.times if times is None else times,
            work=work,
            program=program,
        )

    def mistakes(self, found: Iterable[Firing], times: Collection[int] | None = None) -> list[str]:
        """Returns the differences between firing and expected alerts, at the times of the case or
        at others.
        """
        seen = {(firing.at, self._named(firing.labels)) for firing in found}
        due = {
            (at, named)
            for named, spans in self.fires.items()
            for at in (self.times if times is None else times)
            if any(first <= at <= last for first, last in spans)
        }
        return [
            *(
                f"{self.alert}{dict(named)} does not fire at {at} s"
                for at, named in sorted(due - seen, key=str)
            ),
            *(
                f"{self.alert}{dict(named)} fires at {at} s"
                for at, named in sorted(seen - due, key=str)
            ),
        ]

    def _named(self, labels: Labels) -> Labels:
        """The labels by which the case distinguishes alerts."""
        named = {name for key in self.fires for name, _ in key}
        return frozenset(pair for pair in labels if pair[0] in named)


def cases_in(path: Path) -> list[AlertCase]:
    """Returns the cases of a file: one for each document in it."""
    return [
        AlertCase(
            path.stem,
            seconds(case["interval"]),
            seconds(case.get("every", "30s")),
            case["series"],
            {
                frozenset(_PAIR.findall(named)): tuple(
                    (seconds(first), seconds(last)) for first, last in spans
                )
                for named, spans in case["fires"].items()
            },
        )
        for case in yaml.safe_load_all(path.read_text(encoding="utf-8"))
    ]


def _values(notation: str) -> list[str]:
    """One entry for each value of promtool's notation: `0+2x3` is four values, `_x2` two absent
    ones.
    """
    values: list[str] = []
    for part in notation.split():
        times = re.fullmatch(r"(?P<first>.+?)x(?P<more>\d+)", part)
        values += [part] * (
            1 if times is None else int(times["more"]) + (0 if times["first"] == "_" else 1)
        )
    return values
