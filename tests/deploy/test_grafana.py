"""The dashboard, judged without Grafana: generated, complete, on the grid, asking only for what exists."""

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.promql_labels import labels_of

GRAFANA = Path(__file__).parents[2] / "deploy" / "grafana"
OVERVIEW: dict[str, Any] = json.loads((GRAFANA / "dashboards" / "overview.json").read_text(encoding="utf-8"))
PANELS = [panel for panel in OVERVIEW["panels"] if panel["type"] != "row"]
every_panel = pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


@pytest.mark.filterwarnings("ignore:Prefer using dashboardv2:DeprecationWarning")  # Grafana 11 cannot read version 2
def test_the_committed_file_is_what_the_generator_writes() -> None:
    spec = importlib.util.spec_from_file_location("generate_overview", GRAFANA / "generate_overview.py")
    assert spec is not None
    assert spec.loader is not None
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    assert (GRAFANA / "dashboards" / "overview.json").read_text(encoding="utf-8") == generator.render_overview(), (
        "run: python deploy/grafana/generate_overview.py"
    )


def test_ids_and_titles_are_unique() -> None:
    assert OVERVIEW["uid"] == "callgauge-overview"
    for key in ("id", "title"):
        values = [panel[key] for panel in OVERVIEW["panels"]]
        assert len(set(values)) == len(values)


def test_every_row_is_full_and_nothing_overlaps() -> None:
    cells: set[tuple[int, int]] = set()
    for panel in OVERVIEW["panels"]:
        grid = panel["gridPos"]
        covered = {
            (x, y) for x in range(grid["x"], grid["x"] + grid["w"]) for y in range(grid["y"], grid["y"] + grid["h"])
        }
        assert not covered & cells
        cells |= covered
    height = 1 + max(y for _, y in cells)
    assert cells == {(x, y) for x in range(24) for y in range(height)}


def test_data_source_and_agent_are_chosen_on_the_page() -> None:
    variables = {variable["name"]: variable for variable in OVERVIEW["templating"]["list"]}
    assert list(variables) == ["datasource", "agent"]
    agent = variables["agent"]
    assert (agent["multi"], agent["includeAll"], agent["allValue"], agent["refresh"]) == (True, True, ".+", 2)
    asked = re.fullmatch(r"label_values\((\w+), (\w+)\)", agent["query"])
    assert asked is not None
    assert asked[2] in labels_of(asked[1])
    assert OVERVIEW["editable"] is False


@every_panel
def test_a_panel_explains_itself(panel: dict[str, Any]) -> None:
    assert panel["title"]
    assert re.fullmatch(r"[A-Z].{20,}\.", panel["description"])
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["datasource"] == SOURCE


@every_panel
def test_a_panel_asks_for_what_exists(panel: dict[str, Any]) -> None:
    assert panel["targets"]
    assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
    for target in panel["targets"]:
        assert target["datasource"] == SOURCE
        labels = labels_of(target["expr"].replace("$__rate_interval", "5m"))
        assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) == labels  # else lines could not be told apart
        assert re.findall(r"\[(.*?)\]", target["expr"]) == ["$__rate_interval"] * target["expr"].count("[")
        chosen = target["expr"].count('{agent=~"$agent"')
        selectors = re.findall(r"callgauge_\w+", target["expr"])
        assert chosen in {0, len(selectors)}
        assert (chosen == 0) == all("agent" not in labels_of(name) for name in selectors)


def test_what_an_on_call_engineer_needs_is_there() -> None:
    asked = " ".join(target["expr"] for panel in PANELS for target in panel["targets"])
    for needed in (
        "callgauge_calls_active",
        "callgauge_calls_started_total",
        "callgauge_calls_ended_total",
        "histogram_quantile(0.5,",
        "histogram_quantile(0.95,",
        "histogram_quantile(0.99,",
        "callgauge_turns_total",
        "callgauge_interruptions_total",
        "callgauge_dead_air_total",
        'callgauge_tool_calls_total{agent=~"$agent",outcome=~"error|unanswered"}',
        "callgauge_turns_unmeasured_total",
        "callgauge_progress_active",
        "callgauge_subgoals_reached_total",
        "callgauge_progress_stalls_total",
        'callgauge_calls_scored_total{agent=~"$agent",outcome="success"}',
        "callgauge_judge_cost_total",
        "callgauge_judge_verdict_seconds_bucket",
        "callgauge_events_total",
        "callgauge_consumer_lag_seconds",
        "callgauge_event_to_score_seconds_bucket",
        "callgauge_quarantined_total",
    ):
        assert needed in asked
    assert "heatmap" in {panel["type"] for panel in PANELS}


def test_latency_panels_show_exemplars() -> None:
    for panel in PANELS:
        for target in panel["targets"]:
            assert target.get("exemplar", False) == ("callgauge_turn_response_latency_seconds_bucket" in target["expr"])


def test_provisioning_loads() -> None:
    sources = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yml").read_text(encoding="utf-8"))
    prometheus = yaml.safe_load((GRAFANA.parent / "prometheus/prometheus.yml").read_text(encoding="utf-8"))
    assert [source["type"] for source in sources["datasources"]] == ["prometheus"]
    assert sources["datasources"][0]["jsonData"]["timeInterval"] == prometheus["global"]["scrape_interval"]
    dashboards = yaml.safe_load((GRAFANA / "provisioning/dashboards/callgauge.yml").read_text(encoding="utf-8"))
    assert [provider["type"] for provider in dashboards["providers"]] == ["file"]
