"""The rules: they load, name only what exists, fire when they must and only then, and have a page to read."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.promql_labels import labels_of
from tests.support.patience import patient
from tests.support.required_tools import require_tool

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "deploy" / "prometheus"
RULES_FILE = PROMETHEUS / "rules" / "callgauge.rules.yml"
RUNBOOKS = ROOT / "deploy" / "runbooks"

Rule = dict[str, Any]


def _rules(document: dict[str, Any], kind: str) -> list[Rule]:
    return [rule for group in document["groups"] for rule in group["rules"] if kind in rule]


DOCUMENT: dict[str, Any] = yaml.safe_load(RULES_FILE.read_text(encoding="utf-8"))
ALERTS = _rules(DOCUMENT, "alert")
RECORDINGS = _rules(DOCUMENT, "record")
every_alert = pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])


@cache
def _recorded() -> dict[str, frozenset[str]]:
    known: dict[str, frozenset[str]] = {}
    for rule in RECORDINGS:  # in file order: a rule may use those before it
        known[rule["record"]] = labels_of(rule["expr"], known) | frozenset(rule.get("labels", {}))
    return known


def _promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    path = require_tool("promtool", "apt-get install prometheus")
    return subprocess.run([path, *arguments], capture_output=True, text=True, timeout=patient(60))


def _test_file(alert: Rule) -> Path:
    return PROMETHEUS / "tests" / f"{alert['alert']}.yml"


def _seconds(duration: str) -> float:
    parts = re.findall(r"(\d+)(ms|[smhd])", duration)
    return sum(int(number) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}[unit] for number, unit in parts)


def test_promtool_accepts_configuration_and_rules() -> None:
    for arguments in (("config", PROMETHEUS / "prometheus.yml"), ("rules", "--lint=all", "--lint-fatal", RULES_FILE)):
        result = _promtool("check", *arguments)
        assert result.returncode == 0, result.stdout + result.stderr


def test_every_alert_fires_and_stays_quiet_as_its_file_says() -> None:
    result = _promtool("test", "rules", *sorted((PROMETHEUS / "tests").glob("*.yml")))
    assert result.returncode == 0, result.stdout + result.stderr


@every_alert
def test_an_alert_has_a_firing_and_a_quiet_case(alert: Rule) -> None:
    cases = [
        case
        for test in yaml.safe_load(_test_file(alert).read_text(encoding="utf-8"))["tests"]
        for case in test["alert_rule_test"]
    ]
    assert {case["alertname"] for case in cases} == {alert["alert"]}  # a file speaks of one alert
    assert any(case["exp_alerts"] for case in cases)
    assert any(not case["exp_alerts"] for case in cases)


def test_there_is_no_test_file_and_no_page_of_an_alert_that_is_gone() -> None:
    names = sorted(alert["alert"] for alert in ALERTS)
    assert sorted(path.stem for path in (PROMETHEUS / "tests").iterdir()) == names
    assert sorted(path.stem for path in RUNBOOKS.iterdir()) == names


def test_test_series_exist_in_the_catalogue() -> None:
    for path in (PROMETHEUS / "tests").glob("*.yml"):
        for test in yaml.safe_load(path.read_text(encoding="utf-8"))["tests"]:
            for row in test["input_series"]:
                labels_of(row["series"])


# -- a wrong number must be noticed ------------------------------------------------------------------------------------

_LIMIT = re.compile(r"(?:[<>]=?|==|!=)\s*(\d+(?:\.\d+)?)")
_WAITS = ("for", "keep_firing_for")


def _mutants(alert: Rule) -> Iterator[tuple[str, Rule]]:
    """Each limit moved by a fifth both ways, each waiting time dropped and doubled: what it is, and the new entries."""
    for limit in _LIMIT.finditer(alert["expr"]):
        for factor in (0.8, 1.2):
            moved = f"{float(limit[1]) * factor:g}"
            changed = alert["expr"][: limit.start(1)] + moved + alert["expr"][limit.end(1) :]
            yield f"{limit[0]} -> {moved}", {"expr": changed}
    for wait in _WAITS:
        if wait in alert:
            for seconds in (0, 2 * int(_seconds(alert[wait]))):
                yield f"{wait} {seconds}s", {wait: f"{seconds}s"}


def _unnoticed(folder: Path, mutants: dict[str, tuple[str, Rule]]) -> list[str]:
    """Tries one mutant of each alert named, all in one run: an alert's tests see only that alert."""
    mutated = deepcopy(DOCUMENT)
    for rule in _rules(mutated, "alert"):
        if rule["alert"] in mutants:
            rule.update(mutants[rule["alert"]][1])
    (folder / "rules").mkdir(parents=True)
    (folder / "rules" / RULES_FILE.name).write_text(yaml.safe_dump(mutated), encoding="utf-8")
    shutil.copytree(PROMETHEUS / "tests", folder / "tests")
    result = _promtool("test", "rules", *(folder / "tests" / f"{name}.yml" for name in mutants))
    noticed = set(re.findall(r"alertname: ?(\w+), time", result.stdout + result.stderr))
    return [f"{name}: {what}" for name, (what, _) in mutants.items() if name not in noticed]


def test_a_moved_limit_fails_the_alerts_own_tests(tmp_path: Path) -> None:
    assert _unnoticed(tmp_path / "unchanged", {ALERTS[0]["alert"]: ("nothing", {})}) != []  # the check can fail
    rounds = [
        {alert["alert"]: mutant for alert, mutant in zip(ALERTS, mutants, strict=True) if mutant is not None}
        for mutants in zip_longest(*(list(_mutants(alert)) for alert in ALERTS))
    ]
    with ThreadPoolExecutor(2) as pool:
        survivors = pool.map(_unnoticed, (tmp_path / str(number) for number in range(len(rounds))), rounds)
    assert [name for names in survivors for name in names] == []


@every_alert
def test_every_alert_has_a_limit_to_move(alert: Rule) -> None:
    assert list(_mutants(alert))


# -- what a rule says --------------------------------------------------------------------------------------------------


@every_alert
def test_an_alert_selects_what_exists_and_its_texts_use_labels_it_has(alert: Rule) -> None:
    labels = labels_of(alert["expr"], _recorded()) | frozenset(alert["labels"])
    for text in alert["annotations"].values():
        assert set(re.findall(r"\$labels\.(\w+)", text)) <= labels


@every_alert
def test_an_alert_says_who_cares_and_why(alert: Rule) -> None:
    assert alert["labels"]["severity"] in {"critical", "warning", "info", "none"}
    assert alert["labels"]["component"]
    assert set(alert["annotations"]) == {"summary", "description", "runbook_url"}
    assert not re.search(r"\d", re.sub(r"{{.*?}}", "", alert["annotations"]["summary"]))  # what is felt, no numbers
    for value in re.findall(r"{{([^}]*\$value[^}]*)}}", alert["annotations"]["description"]):
        assert "| humanize" in value


@every_alert
def test_an_alert_waits_two_evaluations_or_looks_back_on_its_own(alert: Rule) -> None:
    interval = _seconds(DOCUMENT["groups"][0]["interval"])
    assert {group["interval"] for group in DOCUMENT["groups"]} == {DOCUMENT["groups"][0]["interval"]}
    if "for" in alert:
        assert _seconds(alert["for"]) >= 2 * interval
    else:
        assert "[" in alert["expr"]


def test_recordings_are_named_level_metric_operation_and_each_is_used() -> None:
    for rule in RECORDINGS:
        level, metric, operation = rule["record"].split(":")
        assert level in {"agent", "kind", "slo"}
        assert metric.startswith("callgauge_")
        assert re.fullmatch(r"(rate|p\d+_|ratio_rate|count)\d+[mhd]", operation)


def test_a_recording_runs_just_before_the_alert_that_reads_it() -> None:
    read: set[str] = set()
    for group in DOCUMENT["groups"]:  # groups run side by side, the rules of one in order
        fresh: set[str | None] = set()
        for rule in group["rules"]:
            used = {name for name in _recorded() if name in rule["expr"]}
            assert used <= fresh
            read |= used
            fresh.add(rule.get("record"))
    assert read == set(_recorded())


# -- the pages ---------------------------------------------------------------------------------------------------------


@every_alert
def test_the_page_of_an_alert_exists_and_has_its_parts(alert: Rule) -> None:
    file, _, anchor = alert["annotations"]["runbook_url"].partition("#")
    text = (ROOT / file).read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    assert headings == [alert["alert"], "What the caller feels", "What to look at", "What to do"]
    assert anchor in {"", *(heading.lower().replace(" ", "-") for heading in headings)}


@pytest.mark.parametrize("page", sorted(RUNBOOKS.glob("*.md")), ids=lambda path: path.stem)
def test_a_page_asks_only_what_prometheus_can_answer(page: Path) -> None:
    fragments = re.findall(r"`([^`]+)`", page.read_text(encoding="utf-8"))
    queries = [fragment for fragment in fragments if "callgauge_" in fragment or fragment.startswith("up{")]
    assert queries
    for query in queries:
        labels_of(query, _recorded())
