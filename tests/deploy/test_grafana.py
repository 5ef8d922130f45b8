"""The dashboards, judged without Grafana: generated, complete, on the grid, with queries of
existing metrics only.
"""

import importlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from schemas.metrics.catalogue import METRICS
from schemas.scores.latency_stages import CONVAI_METRICS, Stage
from tests.deploy.promql_labels import labels_of
from tests.support.known import some

GRAFANA = Path(__file__).parents[2] / "deploy" / "grafana"
BOARDS: dict[str, dict[str, Any]] = {
    path.stem: json.loads(path.read_text(encoding="utf-8"))
    for path in sorted((GRAFANA / "dashboards").iterdir())
}
PANELS = [panel for board in BOARDS.values() for panel in board["panels"] if panel["type"] != "row"]
every_board = pytest.mark.parametrize("board", BOARDS.values(), ids=list(BOARDS))
every_panel = pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
WHOSE = ("agent", "tenant", "environment")
CHOSEN = ",".join(f'{name}=~"${name}"' for name in WHOSE)
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


@pytest.fixture
def generator(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(GRAFANA)
    yield importlib.import_module("generate_dashboards")
    for name in ("generate_dashboards", "charts", "overview", "pipeline", "quality"):
        del sys.modules[name]


# Grafana 11 cannot read version 2
@pytest.mark.filterwarnings("ignore:Prefer using dashboardv2:DeprecationWarning")
def test_the_committed_files_are_what_the_generator_writes(generator: Any) -> None:
    written: dict[Path, str] = generator.rendered()
    assert {path.stem for path in written if path.suffix == ".json"} == set(BOARDS)
    for path, text in written.items():
        assert path.read_text(encoding="utf-8") == text, (
            "run: python deploy/grafana/generate_dashboards.py"
        )


@every_board
def test_ids_and_titles_are_unique(board: dict[str, Any]) -> None:
    for key in ("id", "title"):
        values = [panel[key] for panel in board["panels"]]
        assert len(set(values)) == len(values)


def test_a_dashboard_keeps_its_address() -> None:
    assert {name: board["uid"] for name, board in BOARDS.items()} == {
        name: f"callgauge-{name}" for name in ("overview", "pipeline", "quality")
    }


@every_board
def test_every_row_is_full_and_nothing_overlaps(board: dict[str, Any]) -> None:
    cells: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        grid = panel["gridPos"]
        covered = {
            (x, y)
            for x in range(grid["x"], grid["x"] + grid["w"])
            for y in range(grid["y"], grid["y"] + grid["h"])
        }
        assert not covered & cells
        cells |= covered
    height = 1 + max(y for _, y in cells)
    assert cells == {(x, y) for x in range(24) for y in range(height)}


def test_data_source_and_whose_calls_are_chosen_on_the_page() -> None:
    for name, board in BOARDS.items():
        data_source, *others = board["templating"]["list"]
        assert data_source["name"] == "datasource"
        assert [variable["name"] for variable in others] == ([] if name == "pipeline" else [*WHOSE])
        assert board["editable"] is False
        for variable in others:
            shown = (
                variable["multi"],
                variable["includeAll"],
                variable["allValue"],
                variable["refresh"],
            )
            assert shown == (True, True, ".+", 2)
            asked = some(re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]))
            assert asked[2] == variable["name"]
            assert asked[2] in labels_of(asked[1])


# -- links
# -------------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Prefer using dashboardv2:DeprecationWarning")
def test_links_lead_where_the_addresses_say(generator: Any) -> None:
    """Grafana takes two dollar signs for one in the data source's file, and no name after one for a
    variable of the environment.
    """
    files = {
        path.name: text
        for path, text in generator.rendered(
            {"runbooks": "https://w.test/", "console": "https://c.test"}
        ).items()
    }
    (source,) = yaml.safe_load(files["prometheus.yml"])["datasources"]
    (link,) = source["jsonData"]["exemplarTraceIdDestinations"]
    assert link["name"] == "conversation_id"  # as the exporter attaches it
    assert link["url"].replace("$$", "$") == "https://c.test/calls/${__value.raw}"
    assert "datasourceUid" not in link
    overview = json.loads(files["overview.json"])
    (table,) = [panel for panel in overview["panels"] if panel["type"] == "table"]
    links = {link["title"]: link["url"] for link in table["fieldConfig"]["defaults"]["links"]}
    assert links["Runbook"] == "https://w.test/${__data.fields.alertname}.md"
    address, _, query = links["Calls"].partition("?")
    fields = dict(re.findall(r"(\w+)=\${__data\.fields\.(\w+):percentencode}", query))
    assert (address, fields) == ("https://c.test/calls", {name: name for name in WHOSE})
    for name in BOARDS:
        assert json.loads(files[f"{name}.json"])["links"][1]["url"] == "https://c.test/calls"


@pytest.mark.filterwarnings("ignore:Prefer using dashboardv2:DeprecationWarning")
def test_without_an_address_there_is_no_link(generator: Any) -> None:
    """A link to a page that does not exist costs a minute of the night."""
    for text in generator.rendered({"runbooks": "", "console": ""}).values():
        assert not {"Runbook", "Running calls", "exemplarTraceIdDestinations"} & set(
            re.findall(r"Running calls|\w+", text)
        )
        assert "/calls" not in text


def test_the_table_shows_alerts_as_they_are_now() -> None:
    (table,) = [panel for panel in PANELS if panel["type"] == "table"]
    (query,) = table["targets"]
    assert (query["format"], query["instant"]) == ("table", True)
    for name in WHOSE:  # an alert about the pipeline has none of these labels
        assert f'{name}=~"${name}|"' in query["expr"]


def _of_stages(title: str) -> tuple[str, set[str]]:
    """The function of a panel's query, and the stages that it shows."""
    (panel,) = [panel for panel in PANELS if panel["title"] == title]
    (query,) = panel["targets"]
    chosen = some(re.search(r'stage=~"([^"]*)"', query["expr"]))
    return query["expr"].partition("(rate(")[0], set(chosen[1].split("|"))


@pytest.mark.parametrize(
    ("usual", "beside"),
    [
        ("Stages of an answer, median", "Stages of an answer, p95"),
        ("Contributions to a wait, mean", "Contributions to a wait, p95"),
    ],
)
def test_the_p95_of_stages_stands_beside_their_usual_value(usual: str, beside: str) -> None:
    """Targets are p95: a panel of medians alone shows no stage that is slow in one turn of ten."""
    function, stages = _of_stages(beside)
    assert function == "histogram_quantile(0.95, sum by (le, stage) "
    assert stages == _of_stages(usual)[1]


def test_each_latency_that_elevenlabs_reports_is_among_the_stages() -> None:
    reported = {metric.stage.value for metric in CONVAI_METRICS.values()} - {
        Stage.VOICE_TO_VOICE.value
    }
    assert reported <= _of_stages("Stages of an answer, p95")[1]


@every_board
def test_dashboards_lead_to_each_other_and_mark_pages(board: dict[str, Any]) -> None:
    others = board["links"][0]
    assert (others["type"], others["tags"], others["keepTime"]) == (
        "dashboards",
        board["tags"],
        True,
    )
    (pages,) = board["annotations"]["list"]
    labels_of(pages["expr"])
    assert 'severity="critical"' in pages["expr"]


# -- panels
# ------------------------------------------------------------------------------------------------------------


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
        labels = labels_of(
            target["expr"].replace("$__rate_interval", "5m").replace("$__range", "1d")
        )
        if panel["type"] != "table":  # its columns are the labels
            # Otherwise lines would look the same.
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) == labels
        assert re.findall(r"\[(.*?)\]", target["expr"]) == ["$__rate_interval"] * target[
            "expr"
        ].count("[")
        chosen = target["expr"].count("{" + CHOSEN)
        selectors = re.findall(r"(?:callgauge|process)_\w+", target["expr"])
        assert chosen in {0, len(selectors)}
        if panel not in BOARDS["pipeline"]["panels"]:
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
        "callgauge_tool_calls_total{" + CHOSEN + ',outcome=~"error|unanswered"}',
        "callgauge_turns_unmeasured_total",
        "callgauge_progress_active",
        "callgauge_subgoals_reached_total",
        "callgauge_progress_stalls_total",
        "callgauge_calls_scored_total{" + CHOSEN + ',outcome="success"}',
        "callgauge_judge_cost_total",
        "callgauge_judge_verdict_seconds_bucket",
        "callgauge_events_total",
        "callgauge_consumer_lag_seconds",
        "callgauge_event_to_score_seconds_bucket",
        "callgauge_quarantined_total",
    ):
        assert needed in asked
    assert "heatmap" in {panel["type"] for panel in PANELS}


def test_the_people_who_run_it_see_what_their_alerts_are_about() -> None:
    """Each metric of an alert about callgauge itself is on a dashboard, so that a page has a
    picture.
    """
    rules = yaml.safe_load(
        (GRAFANA.parent / "prometheus/rules/callgauge.rules.yml").read_text(encoding="utf-8")
    )
    alerts = [rule for group in rules["groups"] for rule in group["rules"] if "alert" in rule]
    recorded = {
        rule["record"]: rule["expr"]
        for group in rules["groups"]
        for rule in group["rules"]
        if "record" in rule
    }
    asked = " ".join(target["expr"] for panel in PANELS for target in panel["targets"])
    metrics = {metric.name for metric in METRICS}
    for alert in alerts:
        if alert["labels"]["component"] == "agent":
            continue
        text = " ".join(
            [alert["expr"], *(expr for name, expr in recorded.items() if name in alert["expr"])]
        )
        missing = {
            name
            for name in metrics
            if re.search(rf"\b{name}(_bucket|_count)?\b", text) and name not in asked
        }
        assert missing == set(), alert["alert"]


def test_latency_panels_show_exemplars() -> None:
    for panel in PANELS:
        for target in panel["targets"]:
            assert target.get("exemplar", False) == (
                "callgauge_turn_response_latency_seconds_bucket" in target["expr"]
            )


def test_provisioning_loads() -> None:
    sources = yaml.safe_load(
        (GRAFANA / "provisioning/datasources/prometheus.yml").read_text(encoding="utf-8")
    )
    prometheus = yaml.safe_load(
        (GRAFANA.parent / "prometheus/prometheus.yml").read_text(encoding="utf-8")
    )
    assert [source["type"] for source in sources["datasources"]] == ["prometheus"]
    assert (
        sources["datasources"][0]["jsonData"]["timeInterval"]
        == prometheus["global"]["scrape_interval"]
    )
    dashboards = yaml.safe_load(
        (GRAFANA / "provisioning/dashboards/callgauge.yml").read_text(encoding="utf-8")
    )
    assert [provider["type"] for provider in dashboards["providers"]] == ["file"]
