"""Every query of the dashboards on real data: real calls over Kafka, a judge that answers, a real
Prometheus that scrapes.
"""

import json
import math
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
import yaml

from streamer.sources.simulator.profile import AGENTS
from tests.integration.processes import ran, started, wait_for
from tests.support.conformance_data import RECORD, needs_conformance
from tests.support.fakes.scripted_openai import Asked, Does, scripted_openai
from tests.support.monitoring import prometheus

pytestmark = [needs_conformance(RECORD.name), pytest.mark.service(limits__closing_grace_ms="1500")]

DEPLOY = Path(__file__).parents[2] / "deploy"
SAMPLE = DEPLOY.parent / "streamer" / "recordings" / "sample" / "call.jsonl"
RULES = DEPLOY / "prometheus" / "rules" / "callgauge.rules.yml"
GOALS = {
    "id": "any",
    "agents": list(AGENTS),
    "subgoals": [
        {
            "id": "spoke",
            "details": "It speaks.",
            "check": {"kind": "says", "speaker": "assistant", "pattern": "\\w"},
        },
        {"id": "polite", "details": "The assistant is polite.", "check": {"kind": "judge"}},
    ],
    "expected_tool_calls": [{"tool": "any", "turn": 0}],
}
TEXT_JUDGES = "conciseness,conversation_progression"
CALLS = "8"
OF_SERVE_ALONE = "callgauge_log_file_bytes"
DATA_SECONDS = 90
WINDOW = "30s"


def _queries() -> dict[str, str]:
    """The expressions of all panels by where they are, for all agents."""
    found = {}
    for path in (DEPLOY / "grafana" / "dashboards").iterdir():
        for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]:
            for target in panel.get("targets", ()):
                expression = re.sub(r"\$(agent|tenant|environment)\b", ".+", target["expr"])
                for name in ("$__rate_interval", "$__range"):
                    expression = expression.replace(name, WINDOW)
                found[f"{path.stem}: {panel['title']}: {target['legendFormat']}"] = expression
    return found


def _approves(asked: Asked) -> Does:
    """The best answer to any question: of grades and ratings the best one, no failure."""
    fields = asked.body["response_format"]["json_schema"]["schema"]["properties"]
    best = {
        name: max(filter(None, each["enum"])) for name, each in fields.items() if "enum" in each
    }
    found = best | ({"grade": "C"} if "grade" in fields else {})
    return Does(text=json.dumps({"explanation": "Turn 1 shows it.", "failure_modes": [], **found}))


PRICES = {"gpt-4.1-mini": {"input": 0.4, "output": 1.6}, "sonic-3": {"characters": 50}}
"""Of the models of the simulated calls."""


@pytest.fixture
def address(environment: dict[str, str], tmp_path: Path) -> Iterator[str]:
    """Prometheus with the shipped rules, beside all roles and calls that go well and badly."""
    (tmp_path / "goals").mkdir()
    (tmp_path / "goals" / "any.yaml").write_text(yaml.safe_dump(GOALS), encoding="utf-8")
    with ExitStack() as running:
        model = running.enter_context(scripted_openai(_approves))
        judged = {
            "OPENAI_API_KEY": "key",
            "OPENAI_BASE_URL": model.url,
            "CALLGAUGE_GOALS__FOLDER": str(tmp_path / "goals"),
            "CALLGAUGE_GOALS__TEXT_JUDGES": TEXT_JUDGES,
            "CALLGAUGE_LIMITS__PRICES": json.dumps(PRICES),
        }
        service = running.enter_context(
            started(tmp_path / "run.log", "run", **environment, **judged)
        )
        metrics = service.metrics()
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(RULES)],
            "scrape_configs": [
                {
                    "job_name": "any",
                    "static_configs": [{"targets": [httpx.URL(metrics).netloc.decode()]}],
                }
            ],
        }
        (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
        keeps_exemplars = "--enable-feature=exemplar-storage"
        found = running.enter_context(
            prometheus(tmp_path / "prometheus.yml", tmp_path, keeps_exemplars)
        )
        for profile in ("healthy", "awkward"):
            options = ("--calls", CALLS, "--profile", profile, "--seed", "7")
            running.enter_context(
                started(tmp_path / f"{profile}.log", "simulate", *options, **environment)
            )
        # a call that closes at once
        ran("replay", str(RECORD), "--speed", "max", "--agent", AGENTS[0], **environment)
        ran(
            "replay", str(_versioned(tmp_path / "versioned.jsonl")), "--speed", "max", **environment
        )
        yield found


def _versioned(path: Path) -> Path:
    """Writes the sample call as one of an agent with goals that says its version."""
    call = json.loads(SAMPLE.read_text(encoding="utf-8"))
    call["control"][0] |= {"agent": AGENTS[0], "version": "v7"}
    path.write_text(json.dumps(call), encoding="utf-8")
    return path


def _has_numbers(address: str, expression: str) -> bool:
    answer = httpx.get(f"{address}/api/v1/query", params={"query": expression}).json()
    assert answer["status"] == "success", (expression, answer)
    return any(math.isfinite(float(series["value"][1])) for series in answer["data"]["result"])


def test_every_query_of_a_dashboard_returns_series_and_an_exemplar_names_its_call(
    address: str, environment: dict[str, str], tmp_path: Path
) -> None:
    # A rate sees no step from nothing to the first call of a version, so there is another one.
    wait_for(
        "a version",
        lambda: _has_numbers(address, "callgauge_version_score_ratio_count"),
        DATA_SECONDS,
    )
    ran("replay", str(tmp_path / "versioned.jsonl"), "--speed", "max", **environment)
    queries = {name: query for name, query in _queries().items() if OF_SERVE_ALONE not in query}
    assert len(queries) > 100
    empty = set(queries)

    def still_empty() -> bool:
        empty.difference_update([name for name in empty if _has_numbers(address, queries[name])])
        return not empty

    wait_for(lambda: f"data of {sorted(empty)}", still_empty, DATA_SECONDS)
    (latencies,) = [
        query
        for name, query in queries.items()
        if name.startswith("overview: Voice-to-voice latency: p95")
    ]
    (series,) = re.findall(r"callgauge_\w+", latencies)
    times = {"start": "0", "end": "99999999999"}
    found = httpx.get(
        f"{address}/api/v1/query_exemplars", params={"query": series, **times}
    ).json()["data"]
    labels = [exemplar["labels"] for each in found for exemplar in each["exemplars"]]
    assert labels
    assert all(set(each) == {"conversation_id"} for each in labels)
