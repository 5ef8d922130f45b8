"""The rules: they load, follow from their sources, name only existing metrics, fire when they must
and only then, and have a page.
"""

import copy
import importlib.util
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from schemas.scores.latency_stages import CONVAI_METRICS, Stage
from tests.deploy.firing import AlertCase, cases_in, seconds
from tests.deploy.promql_labels import labels_of
from tests.support.promtool import newest_promtool, promtool

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "deploy" / "prometheus"
RULES_FILE = PROMETHEUS / "rules" / "callgauge.rules.yml"
RUNBOOKS = ROOT / "deploy" / "runbooks"
CASES = Path(__file__).parent / "alerts"
SLO = yaml.safe_load((ROOT / "deploy" / "slo.yaml").read_text(encoding="utf-8"))
ADDRESSES = yaml.safe_load((ROOT / "deploy" / "addresses.yaml").read_text(encoding="utf-8"))
BY_HAND = yaml.safe_load((PROMETHEUS / "alerts.yaml").read_text(encoding="utf-8"))

Rule = dict[str, Any]


def _generator() -> Any:
    spec = importlib.util.spec_from_file_location(
        "generate_rules", PROMETHEUS / "generate_rules.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


generate_rules = _generator()
rules_of = generate_rules.rules_of


def _rules(document: dict[str, Any], kind: str) -> list[Rule]:
    return [rule for group in document["groups"] for rule in group["rules"] if kind in rule]


def _name(alert: Rule) -> str:
    return "-".join([alert["alert"], *filter(None, [alert["labels"].get("level")])])


DOCUMENT: dict[str, Any] = yaml.safe_load(RULES_FILE.read_text(encoding="utf-8"))
ALERTS = _rules(DOCUMENT, "alert")
RECORDINGS = _rules(DOCUMENT, "record")
FIRST = list({alert["alert"]: alert for alert in reversed(ALERTS)}.values())[::-1]
"""Of the levels of an alert the narrowest, whose limits are tried; the wider ones have the same."""
NAMES = sorted({alert["alert"] for alert in ALERTS})
every_alert = pytest.mark.parametrize("alert", ALERTS, ids=_name)


@cache
def _recorded() -> dict[str, frozenset[str]]:
    known: dict[str, frozenset[str]] = {}
    for rule in RECORDINGS:  # in file order: a rule may use those before it
        known[rule["record"]] = labels_of(rule["expr"], known) | frozenset(rule.get("labels", {}))
    return known


@cache
def _cases(name: str) -> tuple[AlertCase, ...]:
    return tuple(cases_in(CASES / f"{name}.yaml"))


@pytest.mark.parametrize(
    "program", [None, pytest.param(newest_promtool, marks=pytest.mark.long, id="Prometheus 3")]
)
def test_promtool_accepts_configuration_and_rules(program: Callable[[], Path] | None) -> None:
    for arguments in (
        ("config", PROMETHEUS / "prometheus.yml"),
        ("rules", "--lint=all", "--lint-fatal", RULES_FILE),
    ):
        result = promtool("check", *arguments, program=None if program is None else program())
        assert result.returncode == 0, result.stdout + result.stderr


# -- the sources
# -------------------------------------------------------------------------------------------------------


def test_the_rules_are_those_of_their_sources() -> None:
    assert RULES_FILE.read_text(encoding="utf-8") == generate_rules.rendered(), (
        "run deploy/prometheus/generate_rules.py"
    )


def test_an_objective_that_cannot_burn_fast_enough_is_refused() -> None:
    """14.4 times a budget of 7 % is more than everything."""
    table = copy.deepcopy(SLO)
    table["objectives"][0]["objective"] = 0.93
    with pytest.raises(
        generate_rules.ObjectiveError,
        match=r"response-latency: 14\.4 times its budget of 0\.07 is 1\.008",
    ):
        rules_of(table, BY_HAND, ADDRESSES)
    table["objectives"][0]["objective"] = 0.94
    rules_of(table, BY_HAND, ADDRESSES)


def test_limits_of_burn_rates_follow_from_the_table() -> None:
    table = copy.deepcopy(SLO)
    table["objectives"][0]["objective"] = 0.98
    (alert,) = [
        rule
        for rule in _rules(rules_of(table, BY_HAND, ADDRESSES), "alert")
        if rule["alert"] == "CallgaugeSLOBurnRateHigh" and rule["labels"]["level"] == "agent"
    ]
    assert re.findall(r"ratio_rate(\w+) > ([\d.]+)", alert["expr"]) == [
        ("1h", "0.288"),
        ("5m", "0.288"),
        ("6h", "0.12"),
        ("30m", "0.12"),
    ]


STAGES = "agent_stage:callgauge_stage_{}_misses:ratio_rate10m"


def _of_stages(part: str, stages: dict[str, Any], agents: dict[str, Any]) -> list[str]:
    """The shares of a recording, as the labels by which it chooses the times within a limit."""
    document = rules_of({**SLO, "stages": stages, "stages_of_agents": agents}, BY_HAND, ADDRESSES)
    (rule,) = [rule for rule in _rules(document, "record") if rule["record"] == STAGES.format(part)]
    chosen: list[str] = re.findall(r'_bucket\{(.*?),environment!~"[^"]*"\}', rule["expr"])
    return chosen


def test_an_agent_can_have_limits_of_its_own_for_one_stage() -> None:
    usual = {"tts_first_byte": {"p50": 0.2, "p95": 0.8}, "stt_trailing": {"p95": 0.8}}
    assert _of_stages("p50", usual, {}) == ['le="0.2",stage=~"tts_first_byte"']
    assert _of_stages("p95", usual, {}) == ['le="0.8",stage=~"tts_first_byte|stt_trailing"']
    agents = {"a.b": {"tts_first_byte": {"p95": 3}}, 'c"': {"tts_first_byte": {"p50": 1}}}
    assert _of_stages("p95", usual, agents) == [
        r'le="0.8",agent!~"a\\.b",stage=~"tts_first_byte"',
        'le="0.8",stage=~"stt_trailing"',
        'le="3.0",agent="a.b",stage=~"tts_first_byte"',
    ]
    assert _of_stages("p50", usual, agents) == [
        r'le="0.2",agent!~"c\"",stage=~"tts_first_byte"',
        r'le="1.0",agent="c\"",stage=~"tts_first_byte"',
    ]
    assert _of_stages("p50", usual, {"c": {"tts_first_byte": {"p50": None}}}) == [
        'le="0.2",agent!~"c",stage=~"tts_first_byte"'
    ]


def test_every_latency_that_elevenlabs_reports_has_a_limit() -> None:
    """The wait as a whole is not a stage: it has alerts of its own. No figure is published of the
    median of endpointing.
    """
    reported = {metric.stage for metric in CONVAI_METRICS.values()} - {Stage.VOICE_TO_VOICE}
    assert set(SLO["stages"]) == reported
    assert {
        stage for stage, limits in SLO["stages"].items() if set(limits) == {"p50", "p95"}
    } == reported - {Stage.ENDPOINTING}


@pytest.mark.parametrize(
    ("stage", "part"), [(stage, part) for stage, limits in SLO["stages"].items() for part in limits]
)
def test_a_case_fires_by_each_limit_of_a_stage(stage: str, part: str, tmp_path: Path) -> None:
    others = {name: limit for name, limit in SLO["stages"][stage].items() if name != part}
    document = rules_of({**SLO, "stages": {**SLO["stages"], stage: others}}, BY_HAND, ADDRESSES)
    (case,) = _cases("CallgaugeStageSlow")
    mistakes = case.mistakes(case.seen(document, tmp_path))
    assert mistakes
    assert all(f"'{stage}'" in each and "does not fire" in each for each in mistakes)


def test_a_limit_that_nothing_counts_is_refused() -> None:
    with pytest.raises(
        generate_rules.ObjectiveError,
        match=r"p95 of tts_first_byte in slo\.yaml: expected an edge of .*; seen 0\.9\.",
    ):
        _of_stages("p95", {"tts_first_byte": {"p50": 0.2, "p95": 0.9}}, {})
    with pytest.raises(
        generate_rules.ObjectiveError,
        match=r"expected a stage with p50, which CallgaugeStageSlow reads; seen none",
    ):
        _of_stages("p95", {"tts_first_byte": {"p95": 0.8}}, {})


def test_every_objective_says_where_its_number_is_from() -> None:
    for objective in generate_rules.objectives(SLO):
        assert len(objective.source) > 40
        assert 0 < objective.budget < 0.5


def test_links_of_alerts_are_whole_and_lead_where_the_addresses_say() -> None:
    addresses = {"runbooks": "https://wiki.test/voice/", "console": "https://calls.test"}
    alerts = _rules(rules_of(SLO, BY_HAND, addresses), "alert")
    calls = {
        alert["alert"]: alert["annotations"].get("calls_url")
        for alert in alerts
        if "calls_url" in alert["annotations"]
    }
    for alert in alerts:
        assert alert["annotations"]["runbook_url"] == f"https://wiki.test/voice/{alert['alert']}.md"
        assert ("calls_url" in alert["annotations"]) == (alert["labels"]["component"] == "agent")
    query = "&".join(
        f"{name}={{{{ $labels.{name} | urlquery }}}}" for name in ("agent", "tenant", "environment")
    )
    assert calls["CallgaugeDeadAir"] == f"https://calls.test/calls?{query}"


def test_without_an_address_there_is_no_link_but_the_text_of_the_runbook() -> None:
    """A link to a page that does not exist costs a minute of the night."""
    for alert in _rules(rules_of(SLO, BY_HAND, {"runbooks": "", "console": ""}), "alert"):
        assert alert["annotations"].keys() == {"summary", "description", "runbook"}
        assert alert["annotations"]["runbook"].startswith("1. ")
        assert alert["annotations"]["runbook"] in (RUNBOOKS / f"{alert['alert']}.md").read_text(
            encoding="utf-8"
        )


def test_alerts_about_callers_say_how_many_calls_run_there() -> None:
    """The sentence itself is read in the drills."""
    for alert in ALERTS:
        about_callers = alert["labels"]["component"] == "agent"
        assert (
            about_callers == ("each with one caller" in alert["annotations"]["description"])
            or alert["alert"] == "CallgaugeNoCalls"
        )


def test_every_address_is_in_one_file() -> None:
    """A copy in another file would keep its old value: all others are links to these,
    or generated.
    """
    deploy = ROOT / "deploy"
    generated = {
        "prometheus/rules/callgauge.rules.yml",
        "grafana/provisioning/datasources/prometheus.yml",
    }
    files = [
        path for path in deploy.rglob("*.*") if path.suffix in {".py", ".yaml", ".yml", ".tmpl"}
    ]
    for address in filter(None, ADDRESSES.values()):
        found = {
            path.relative_to(deploy).as_posix()
            for path in files
            if not path.is_symlink() and address in path.read_text(encoding="utf-8")
        }
        assert found <= {"addresses.yaml", *generated}


def test_quiet_environments_are_in_every_rule_about_callers() -> None:
    quiet = 'environment!~"' + "|".join(SLO["quiet_environments"]) + '"'
    for rule in [*ALERTS, *RECORDINGS]:
        for selector in re.findall(r"(callgauge_\w+)(\{[^}]*\})?\[", rule["expr"]):
            series = selector[0]
            if "environment" in labels_of(series, _recorded()) and ":" not in series:
                assert quiet in selector[1], rule


# -- firing
# ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_an_alert_fires_when_its_cases_say_and_not_otherwise(name: str, tmp_path: Path) -> None:
    for case in _cases(name):
        found = case.seen(DOCUMENT, tmp_path)
        assert case.mistakes(found) == []
        for firing in found:
            assert {name for name, _ in firing.labels} >= {"severity", "component", "team"}
            for label, text in firing.annotations:
                assert "<no value>" not in text, (label, text)
                assert "error expanding" not in text, (label, text)


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_an_alert_fires_by_prometheus_3_too(name: str, tmp_path: Path) -> None:
    """Its windows leave out a value at their very beginning, so an alert may begin or end as much
    later.
    """
    for case in _cases(name):
        times = case.times_off(2 * max(case.interval, case.every))
        assert case.mistakes(case.seen(DOCUMENT, tmp_path, times, newest_promtool()), times) == []


@pytest.mark.parametrize("name", NAMES)
def test_an_alert_has_a_firing_and_a_quiet_case(name: str) -> None:
    times = {(number, at) for number, case in enumerate(_cases(name)) for at in case.times}
    spans = {
        (number, *span)
        for number, case in enumerate(_cases(name))
        for each in case.fires.values()
        for span in each
    }
    firing = {
        (number, at)
        for number, at in times
        for case, first, last in spans
        if number == case and first <= at <= last
    }
    assert firing
    assert len(firing) < len(times)


def test_each_level_of_an_alert_has_a_firing_case() -> None:
    for alert in ALERTS:
        if (level := alert["labels"].get("level")) not in {
            None,
            "agent",
            "pipeline",
        } and "Elevated" not in alert["alert"]:
            named = {
                pair for case in _cases(alert["alert"]) for labels in case.fires for pair in labels
            }
            assert ("level", level) in named or alert["alert"] == "CallgaugeNoCalls"


def test_there_is_no_case_and_no_page_of_an_alert_that_is_gone() -> None:
    assert (
        sorted(path.stem for path in CASES.iterdir())
        == sorted(path.stem for path in RUNBOOKS.iterdir())
        == NAMES
    )


def test_series_of_the_cases_exist_in_the_catalogue() -> None:
    for path in CASES.iterdir():
        for case in cases_in(path):
            for series in case.series:
                labels_of(series)


# -- a wrong number must be noticed
# ------------------------------------------------------------------------------------

_LIMIT = re.compile(r"(?:[<>]=?|==|!=)\s*(\d+(?:\.\d+)?)")
_WAITS = ("for", "keep_firing_for")


def _mutants(alert: Rule) -> Iterator[tuple[str, Rule]]:
    """Each limit moved by a fifth both ways, each waiting time dropped and doubled: its
    description, and the new entries.
    """
    for limit in _LIMIT.finditer(alert["expr"]):
        for factor in (0.8, 1.2):
            moved = f"{float(limit[1]) * factor:g}"
            if float(moved) != float(limit[1]):
                changed = alert["expr"][: limit.start(1)] + moved + alert["expr"][limit.end(1) :]
                yield f"{limit[0]} -> {moved}", {"expr": changed}
    for wait in _WAITS:
        if wait in alert:
            for length in (0, 2 * seconds(alert[wait])):
                yield f"{wait} {length}s", {wait: f"{length}s"}


def _survivors(alert: Rule, mutants: Iterable[tuple[str, Rule]], folder: Path) -> list[str]:
    """The mutants that no case notices. Each is an alert beside the others, so what all of them
    read is computed once.
    """
    wider = [rule for rule in ALERTS if rule["alert"] == alert["alert"] and rule is not alert]
    left = {
        f"Mutant{number}": (what, alert | mutant) for number, (what, mutant) in enumerate(mutants)
    }
    for case in _cases(alert["alert"]):
        moved = [_renamed(rule, name) for name, (_, rule) in left.items()]
        document = {
            "groups": [
                {"name": "mutated", "interval": "30s", "rules": [*RECORDINGS, *wider, *moved]}
            ]
        }
        found = case.seen(document, folder, alerts={rule["alert"] for rule in [*wider, *moved]})
        of_wider = [firing for firing in found if firing.alert == alert["alert"]]
        left = {
            name: mutant
            for name, mutant in left.items()
            if not case.mistakes([*of_wider, *(firing for firing in found if firing.alert == name)])
        }
    return [what for what, _ in left.values()]


def _renamed(alert: Rule, name: str) -> Rule:
    """The alert under another name, by which its expression may ask whether it fires."""
    return alert | {
        "alert": name,
        "expr": alert["expr"].replace(f'alertname="{alert["alert"]}"', f'alertname="{name}"'),
    }


def _limits(alert: Rule) -> set[str]:
    """Each comparison of an alert with the level left out: `slow_answers:ratio_rate5m > 0.5`."""
    return set(re.findall(r"(?:agent|tenant|fleet):(\w+:\w+ (?:>=?|<=?|==) [\d.]+)", alert["expr"]))


@pytest.mark.parametrize("alert", [alert for alert in ALERTS if alert not in FIRST], ids=_name)
def test_a_wider_level_has_the_limits_of_the_narrowest(alert: Rule) -> None:
    """So a limit that was moved at one level alone is noticed, though only the narrowest level's
    limits are tried.
    """
    (narrowest,) = [first for first in FIRST if first["alert"] == alert["alert"]]
    limits = _limits(alert)
    assert limits
    assert limits <= _limits(narrowest)
    assert alert["for"] == narrowest["for"]


@pytest.mark.long
@pytest.mark.parametrize("alert", FIRST, ids=_name)
def test_a_moved_limit_fails_the_cases_of_its_alert(alert: Rule, tmp_path: Path) -> None:
    assert _survivors(alert, _mutants(alert), tmp_path) == []


def _other_tables() -> Iterator[tuple[str, dict[str, Any]]]:
    """The table of objectives with one of its values changed: its description, and the table."""
    for number, row in enumerate(SLO["burn"]):
        for key, others in (
            ("factor", (0.8 * row["factor"], 1.2 * row["factor"])),
            ("events", (round(0.8 * row["events"]), round(1.2 * row["events"]))),
            ("long", _windows_beside(row["long"])),
            ("short", _windows_beside(row["short"])),
        ):
            for other in others:
                table = copy.deepcopy(SLO)
                table["burn"][number][key] = other
                yield f"{row['severity']} {row['factor']}: {key} {other}", table
    for severity, wait in SLO["burn_waits"].items():
        for other in ("0s", f"{2 * seconds(wait)}s"):
            yield (
                f"{severity}: wait {other}",
                {**SLO, "burn_waits": {**SLO["burn_waits"], severity: other}},
            )
    for number, objective in enumerate(SLO["objectives"]):
        table = copy.deepcopy(SLO)
        table["objectives"][number]["objective"] = 1 - 0.8 * (1 - objective["objective"])
        yield f"{objective['name']}: a budget of four fifths", table


def _windows_beside(window: str) -> tuple[str, str]:
    """Half and twice of it, in minutes."""
    return f"{seconds(window) // 120}m", f"{seconds(window) // 30}m"


@pytest.mark.long
@pytest.mark.parametrize(
    ("what", "table"), list(_other_tables()), ids=[what for what, _ in _other_tables()]
)
def test_a_changed_value_of_the_table_fails_a_case(
    what: str, table: dict[str, Any], tmp_path: Path
) -> None:
    document = rules_of(table, BY_HAND, ADDRESSES)
    burning = [name for name in NAMES if "BurnRate" in name]
    assert any(
        case.mistakes(case.seen(document, tmp_path)) for name in burning for case in _cases(name)
    ), what


# -- what a rule says
# --------------------------------------------------------------------------------------------------


@every_alert
def test_an_alert_selects_what_exists_and_its_texts_use_labels_it_has(alert: Rule) -> None:
    labels = labels_of(alert["expr"], _recorded()) | frozenset(alert["labels"])
    for name, text in alert["annotations"].items():
        assert name == "calls_url" or set(re.findall(r"\$labels\.(\w+)", text)) <= labels
        for asked in re.findall(r"printf `([^`]*)`", text):
            labels_of(re.sub("%q", '"x"', asked), _recorded())


@every_alert
def test_an_alert_says_who_cares_and_why(alert: Rule) -> None:
    assert alert["labels"]["severity"] in {"critical", "warning", "info", "none"}
    assert alert["labels"]["component"]
    assert alert["labels"]["team"] == SLO["teams"][alert["labels"]["component"]]
    assert set(alert["annotations"]) - {"calls_url", "runbook_url"} == {
        "summary",
        "description",
        "runbook",
    }
    # the felt trouble, no numbers
    assert not re.search(r"\d", re.sub(r"{{.*?}}", "", alert["annotations"]["summary"]))
    for value in re.findall(r"{{([^}]*\$value[^}]*)}}", alert["annotations"]["description"]):
        assert "| humanize" in value


@every_alert
def test_an_alert_waits_two_evaluations_or_looks_back_on_its_own(alert: Rule) -> None:
    (interval,) = [
        seconds(group["interval"]) for group in DOCUMENT["groups"] if alert in group["rules"]
    ]
    if "for" in alert:
        assert seconds(alert["for"]) >= 2 * interval
    else:
        assert "[" in alert["expr"]


def test_recordings_are_named_level_metric_operation() -> None:
    for rule in RECORDINGS:
        level, metric, operation = rule["record"].split(":")
        assert level in {
            "agent",
            "agent_stage",
            "agent_tenant",
            "tenant",
            "fleet",
            "environment",
            "pipeline",
            "kind",
            "goal_set",
        }
        assert metric.startswith("callgauge_")
        assert re.fullmatch(r"(rate|p\d+_|ratio_rate|count)\d+[mhd]", operation)


def test_a_recording_is_used_and_one_of_the_same_pace_runs_before_the_alert_that_reads_it() -> None:
    """Groups run side by side, the rules of one in order. Values recorded in another group are as
    old as one evaluation.

    Progress of goal sets is recorded for people, and for alerts of their own.
    """
    read: set[str] = set()
    group_of = {
        rule["record"]: group["name"]
        for group in DOCUMENT["groups"]
        for rule in group["rules"]
        if "record" in rule
    }
    for group in DOCUMENT["groups"]:
        fresh: set[str | None] = set()
        for rule in group["rules"]:
            used = {name for name in group_of if name in rule["expr"]}
            assert {name for name in used if group_of[name] == group["name"]} <= fresh
            if group["name"] != "callgauge-objectives-seldom":
                assert {group_of[name] for name in used} <= {group["name"]}
            read |= used
            fresh.add(rule.get("record"))
    assert {name.split(":")[1] for name in set(_recorded()) - read} == {"callgauge_goal_progress"}


# -- the pages
# ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_the_page_of_an_alert_exists_and_has_its_parts(name: str) -> None:
    text = (RUNBOOKS / f"{name}.md").read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    assert headings == [name, "What the caller feels", "What to look at", "What to do"]


@pytest.mark.parametrize("page", sorted(RUNBOOKS.glob("*.md")), ids=lambda path: path.stem)
def test_a_page_asks_only_what_prometheus_can_answer(page: Path) -> None:
    fragments = re.findall(r"`([^`]+)`", page.read_text(encoding="utf-8"))
    queries = [
        fragment for fragment in fragments if "callgauge_" in fragment or fragment.startswith("up{")
    ]
    assert queries
    for query in queries:
        labels_of(query, _recorded())


# -- success and progress of goal sets
# ---------------------------------------------------------------------------------

AT_THE_END = "2h"


def grown(name: str, labels: str, per_minute: float) -> dict[str, str]:
    """A counter that grows evenly for two hours."""
    return {"series": f"{name}{{{labels}}}", "values": f"0+{per_minute:g}x120"}


def goal_calls(
    goal_set: str, outcome: str, per_minute: float, environment: str = "production"
) -> dict[str, str]:
    labels = f'goal_set="{goal_set}",environment="{environment}",outcome="{outcome}"'
    return grown("callgauge_goal_set_calls_total", labels, per_minute)


def goal_progress(goal_set: str, part: str, per_minute: float) -> dict[str, str]:
    labels = f'goal_set="{goal_set}",environment="production"'
    return grown(f"callgauge_goal_set_progress_ratio_{part}", labels, per_minute)


GOAL_SERIES = [
    goal_calls("refund", "success", 3),
    goal_calls("refund", "failure", 1),
    goal_calls("refund", "unscored", 6),
    goal_progress("refund", "sum", 3.5),
    goal_progress("refund", "count", 4),
    goal_calls("booking", "success", 0),
    goal_calls("booking", "failure", 2),
    goal_calls("idle", "success", 0),
    goal_calls("idle", "failure", 0),
    goal_calls("refund", "success", 9, environment="staging"),
]
GOAL_RATIOS: dict[str, dict[str, float]] = {
    # Three of four known goal_calls succeed; unknown ones are in neither ratio.
    "goal_set:callgauge_goal_success:ratio_rate1h": {"refund": 0.75, "booking": 0},
    "goal_set:callgauge_goal_progress:ratio_rate1h": {"refund": 0.875},
    "goal_set:callgauge_goal_calls:count1h": {"refund": 240, "booking": 120, "idle": 0},
    "goal_set:callgauge_goal_success:ratio_rate1d": {"refund": 0.75, "booking": 0},
    "goal_set:callgauge_goal_progress:ratio_rate1d": {"refund": 0.875},
}


def test_success_and_progress_of_goal_sets_are_recorded(tmp_path: Path) -> None:
    asked = [
        {
            "expr": f"round({name}, 0.001)",
            "eval_time": AT_THE_END,
            "exp_samples": [
                {"labels": f'{{goal_set="{goal_set}", environment="production"}}', "value": value}
                for goal_set, value in expected.items()
            ],
        }
        for name, expected in GOAL_RATIOS.items()
    ]
    test = {"interval": "1m", "input_series": GOAL_SERIES, "promql_expr_test": asked}
    document = {"rule_files": [str(RULES_FILE)], "evaluation_interval": "1m", "tests": [test]}
    file = tmp_path / "goals.yaml"
    file.write_text(yaml.safe_dump(document))
    result = promtool("test", "rules", file)
    assert result.returncode == 0, result.stdout + result.stderr


# -- mistakes in expressions
# -------------------------------------------------------------------------------------------

LATENCY = "callgauge_turn_response_latency_seconds"


@pytest.mark.parametrize(
    ("expression", "complaint"),
    [
        ("sum(", "parenthesis"),
        ("callgauge_dead_airs_total", "no metric exposes callgauge_dead_airs_total"),
        (LATENCY, f"no metric exposes {LATENCY}"),
        ("agent:unknown", "no metric exposes"),
        ("sum by (tenant) (callgauge_limits_hit_total)", "no label tenant"),
        ('callgauge_limits_hit_total{tenant="a"}', "no label tenant"),
        (f'{LATENCY}_bucket{{le="1.4"}}', 'never has le="1.4"'),
        ('callgauge_event_to_score_seconds_bucket{le="1"}', 'never has le="1"'),
        ('callgauge_tool_calls_total{outcome!="failed"}', 'never has outcome="failed"'),
        ('callgauge_tool_calls_total{outcome=~"error|failed"}', 'never has outcome="failed"'),
        ('callgauge_tool_calls_total{outcome!~"succes"}', 'never has outcome="succes"'),
        (f"histogram_quantile(0.5, sum by (agent) (rate({LATENCY}_bucket[5m])))", "no label le"),
        ("callgauge_limits_hit_total / callgauge_turns_total", "never match"),
        ("callgauge_limits_hit_total and on (tenant) callgauge_turns_total", "no label tenant"),
        ("sum without (tool) (callgauge_tool_calls_total)", "without"),
        ("round(callgauge_overlap_seconds_total)", "no rule for the function round"),
    ],
)
def test_it_finds_the_mistake(expression: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        labels_of(expression)
