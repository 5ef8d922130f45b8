"""The chart, judged without a cluster: helm reads it, Kubernetes' schemas accept its manifests, and
these have all that the roles need.
"""

import fcntl
import hashlib
import json
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from kubernetes_validate.utils import latest_version

from schemas.closed_sets import ROLE_NAMES
from streamer.settings.all_settings import load_settings, near_misses, setting_names
from tests.deploy.test_grafana import generator as generator
from tests.deploy.test_prometheus_rules import BY_HAND, SLO, rules_of
from tests.support.patience import patient
from tests.support.promtool import promtool
from tests.support.required_tools import CACHE, require_tool

DEPLOY = Path(__file__).parents[2] / "deploy"
CHART = DEPLOY / "helm" / "callgauge"
EVERYTHING = Path(__file__).parent / "chart_values" / "everything.yaml"
MODELS = Path(__file__).parent / "custom_resources"
HELM = Path(sys.executable).with_name("helm")
ADDRESSES: dict[str, str] = yaml.safe_load(EVERYTHING.read_text(encoding="utf-8"))["addresses"]
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
VERSIONS = [f"1.{minor}" for minor in range(30, 38)]
CUSTOM = {"PodMonitor", "PrometheusRule", "ScaledObject"}

Resource = dict[str, Any]
every_setup = pytest.mark.parametrize(
    "setup", [(), ("--values", str(EVERYTHING))], ids=["default", "everything"]
)


def _helm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([HELM, *arguments], capture_output=True, text=True, timeout=patient(60))


@cache
def _made(*options: str) -> tuple[Resource, ...]:
    result = _helm("template", "calls", CHART, "--namespace", "voice", *options)
    assert result.returncode == 0, result.stderr
    return tuple(each for each in yaml.safe_load_all(result.stdout) if each)


def _of(kind: str, *options: str) -> dict[str, Resource]:
    return {each["metadata"]["name"]: each for each in _made(*options) if each["kind"] == kind}


ALL = ("--values", str(EVERYTHING))

# -- it is accepted
# ----------------------------------------------------------------------------------------------------


@every_setup
def test_helm_accepts_the_chart(setup: tuple[str, ...]) -> None:
    result = _helm("lint", "--strict", CHART, *setup)
    assert result.returncode == 0, result.stdout + result.stderr


@every_setup
@pytest.mark.parametrize(
    "version",
    [
        VERSIONS[0],
        *(pytest.param(each, marks=pytest.mark.long) for each in VERSIONS[1:-1]),
        VERSIONS[-1],
    ],
)
def test_kubernetes_accepts_what_it_makes(version: str, setup: tuple[str, ...]) -> None:
    made = _made("--kube-version", version, *setup)
    own = [each for each in made if each["kind"] not in CUSTOM]
    assert len(own) >= 4
    for resource in own:
        kubernetes_validate.validate(resource, version, strict=True)


def test_the_newest_known_kubernetes_is_among_them() -> None:
    assert ".".join(latest_version().split(".")[:2]) == VERSIONS[-1]


def _objections(resources: list[Resource]) -> list[str]:
    """Objections of the schemas of the operator and of KEDA, unknown keys included."""
    node, npm = (require_tool(name, "apt-get install npm") for name in ("node", "npm"))
    wanted = hashlib.sha256(
        b"".join(path.read_bytes() for path in sorted(MODELS.iterdir()))
    ).hexdigest()[:16]
    folder = CACHE / f"custom-resources-{wanted}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "npm.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "ready").exists():
            shutil.copytree(MODELS, folder, dirs_exist_ok=True)
            install = [npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
            done = subprocess.run(
                install, cwd=folder, capture_output=True, text=True, timeout=patient(120)
            )
            assert done.returncode == 0, done.stderr
            (folder / "ready").touch()
    command = [node, str(folder / "check.mjs")]
    checked = subprocess.run(
        command, input=json.dumps(resources), capture_output=True, text=True, timeout=patient(60)
    )
    assert checked.returncode == 0, checked.stderr
    found: list[str] = json.loads(checked.stdout)
    return found


def test_the_operator_and_keda_accept_what_it_makes_for_them() -> None:
    custom = [each for each in _made(*ALL) if each["kind"] in CUSTOM]
    assert {each["kind"] for each in custom} == CUSTOM
    assert _objections(custom) == []
    monitor, scaled = (
        json.loads(json.dumps(_one(kind))) for kind in ("PodMonitor", "ScaledObject")
    )
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    endpoint["scheem"] = "http"
    scaled["spec"]["maxReplicaCount"] = "many"
    misspelt, mistyped = _objections([monitor, scaled])
    assert misspelt == "PodMonitor.spec.podMetricsEndpoints.0.scheem is unknown"
    assert "maxReplicaCount" in mistyped


def _one(kind: str) -> Resource:
    (resource,) = _of(kind, *ALL).values()
    return resource


@pytest.mark.parametrize(
    "value",
    [
        *(
            "replicas=2",
            "kafka.bootstrap=kafka",
            "settings.BOOTSTRAP=kafka:9092",
            "addresses.console=calls.test",
        ),
        *(
            "roles.evaluator.replicas=0",
            "roles.evaluator.strategy=Rolling",
            "roles.monitor.replicas=2",
        ),
        *("podMonitor.interval=15", "roles.viewer.enabled=true"),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused(value: str) -> None:
    result = _helm("template", "calls", CHART, "--set", value)
    assert result.returncode != 0
    assert "values don't meet the specifications of the schema" in result.stderr


def test_every_value_has_a_schema_and_a_use() -> None:
    def compare(values: dict[str, Any], schema: dict[str, Any], path: str) -> None:
        properties = schema.get("properties")
        if properties is None:
            return
        assert set(values) == set(properties) - {"global"}, path
        assert schema["additionalProperties"] is False, path
        for name, value in values.items():
            if isinstance(value, dict):
                compare(value, properties[name], f"{path}.{name}")

    compare(
        VALUES, json.loads((CHART / "values.schema.json").read_text(encoding="utf-8")), "values"
    )
    used = " ".join(path.read_text(encoding="utf-8") for path in (CHART / "templates").iterdir())
    for name, value in VALUES.items():
        for inner in (
            value
            if isinstance(value, dict) and name not in {"roles", "addresses", "resources"}
            else ()
        ):
            assert f".Values.{name}.{inner}" in used, (name, inner)
        assert f".Values.{name}" in used


# -- what it makes
# -----------------------------------------------------------------------------------------------------


def _container(role: str, *options: str) -> Resource:
    (container,) = _of("Deployment", *options)[f"calls-callgauge-{role}"]["spec"]["template"][
        "spec"
    ]["containers"]
    return dict(container)


def _variables(role: str, *options: str) -> dict[str, str]:
    return {
        each["name"]: each["value"] for each in _container(role, *options)["env"] if "value" in each
    }


def test_each_role_is_a_deployment_with_a_budget() -> None:
    assert set(VALUES["roles"]) == set(ROLE_NAMES)
    names = {f"calls-callgauge-{role}" for role in ROLE_NAMES}
    assert set(_of("Deployment", *ALL)) == set(_of("PodDisruptionBudget", *ALL)) == names
    always = ("sequencer", "evaluator", "exporter")
    assert set(_of("Deployment")) == {f"calls-callgauge-{role}" for role in always}
    for role in ROLE_NAMES:
        assert _container(role, *ALL)["args"] == ["run", "--roles", role]
        budget = _of("PodDisruptionBudget", *ALL)[f"calls-callgauge-{role}"]["spec"]
        deployment = _of("Deployment", *ALL)[f"calls-callgauge-{role}"]["spec"]
        assert budget["selector"] == deployment["selector"]
        assert (
            budget["selector"]["matchLabels"].items()
            <= deployment["template"]["metadata"]["labels"].items()
        )


def test_a_sequencer_stands_by_while_one_is_active() -> None:
    assert _of("Deployment")["calls-callgauge-sequencer"]["spec"]["replicas"] == 2
    budget = _of("PodDisruptionBudget")["calls-callgauge-sequencer"]["spec"]
    assert budget["maxUnavailable"] == 1  # a drained node takes one, and the other goes on
    for probe, path in (("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
        assert _container("sequencer")[probe]["httpGet"] == {"path": path, "port": "metrics"}


def test_history_writes_the_volume_that_it_is_given() -> None:
    pod = _of("Deployment", *ALL)["calls-callgauge-history"]["spec"]["template"]["spec"]
    assert pod["volumes"] == [{"name": "history", "persistentVolumeClaim": {"claimName": "calls"}}]
    (mount,) = _container("history", *ALL)["volumeMounts"]
    assert mount["mountPath"] == _variables("history", *ALL)["CALLGAUGE_HISTORY__FOLDER"]
    without = _helm("template", "calls", CHART, "--set", "roles.history.enabled=true")
    assert "the role history needs historyClaim" in without.stderr


def test_measures_are_read_from_the_files_they_are_given() -> None:
    pod = _of("Deployment", *ALL)["calls-callgauge-measures"]["spec"]["template"]["spec"]
    assert pod["volumes"] == [{"name": "measures", "configMap": {"name": "measures"}}]
    (mount,) = _container("measures", *ALL)["volumeMounts"]
    for role in ("measures", "history", "console"):  # the latter two read and show the values
        assert _variables(role, *ALL)["CALLGAUGE_MEASURES__FOLDER"] == mount["mountPath"]
    assert "CALLGAUGE_MEASURES__FOLDER" not in _variables("evaluator", *ALL)
    without = _helm("template", "calls", CHART, "--set", "roles.measures.enabled=true")
    assert "the role measures needs measuresConfigMap" in without.stderr


def test_a_role_may_have_another_version_while_versions_change() -> None:
    given = ("roles.evaluator.tag=0.0.9", "roles.evaluator.strategy=Recreate", "image.tag=1.2")
    options = [part for each in given for part in ("--set", each)]
    assert _container("evaluator", *options)["image"] == "callgauge:0.0.9"
    assert _container("exporter", *options)["image"] == "callgauge:1.2"
    assert _of("Deployment", *options)["calls-callgauge-evaluator"]["spec"]["strategy"] == {
        "type": "Recreate"
    }


@every_setup
def test_every_variable_of_a_container_is_a_setting(setup: tuple[str, ...]) -> None:
    for name in _of("Deployment", *setup):
        role = name.rpartition("-")[2]
        variables = _variables(role, *setup)
        variables.pop("CALLGAUGE_GOALS__FOLDER", None)
        load_settings(None, {}, variables)
        assert near_misses(variables, setting_names()) == ()


def test_a_container_may_do_nothing_that_it_does_not_need() -> None:
    for deployment in _of("Deployment", *ALL).values():
        pod = deployment["spec"]["template"]["spec"]
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        security = pod["containers"][0]["securityContext"]
        assert security["readOnlyRootFilesystem"] is True
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert pod["terminationGracePeriodSeconds"] > 10, "a stop takes up to 10 s"
        for variable in pod["containers"][0]["env"]:
            assert (
                not re.search(r"TOKEN|SECRET|PASSWORD|API_KEY$", variable["name"])
                or "valueFrom" in variable
            )


def test_probes_ask_what_needs_no_token() -> None:
    container = _container("evaluator", *ALL)
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "metrics"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "metrics"}
    assert {"name": "metrics", "containerPort": 8080} in container["ports"]
    assert {"name": "events", "containerPort": 8090} in _container("ingest", *ALL)["ports"]


def test_the_evaluator_asks_the_judge_if_there_is_one() -> None:
    assert _variables("evaluator", *ALL)["CALLGAUGE_GOALS__ASKS_JUDGE"] == "true"
    assert "CALLGAUGE_GOALS__ASKS_JUDGE" not in _variables("evaluator")


def test_no_more_evaluators_than_partitions_and_no_two_owners_of_their_number() -> None:
    scaled = _one("ScaledObject")["spec"]
    deployment = _of("Deployment", *ALL)[scaled["scaleTargetRef"]["name"]]
    assert "replicas" not in deployment["spec"]  # an upgrade would set it back
    assert _of("Deployment")["calls-callgauge-evaluator"]["spec"]["replicas"] == 2
    assert 1 <= scaled["minReplicaCount"] <= scaled["maxReplicaCount"]
    # a Prometheus that is down moves no calls
    assert scaled["fallback"]["behavior"] == "currentReplicasIfHigher"
    (trigger,) = scaled["triggers"]
    assert (
        trigger["metadata"]["query"] == 'sum(rate(callgauge_events_total{namespace="voice"}[5m]))'
    )


def test_the_rules_are_those_of_the_one_file_with_links_where_the_values_have_addresses(
    tmp_path: Path,
) -> None:
    spec = _one("PrometheusRule")["spec"]
    assert spec == rules_of(SLO, BY_HAND, ADDRESSES)
    unlinked = _of("PrometheusRule", "--set", "prometheusRule.enabled=true")["calls-callgauge"][
        "spec"
    ]
    assert unlinked == yaml.safe_load(
        (DEPLOY / "prometheus/rules/callgauge.rules.yml").read_text(encoding="utf-8")
    )
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump(spec), encoding="utf-8")
    result = promtool("check", "rules", path)
    assert result.returncode == 0, result.stderr


@pytest.mark.filterwarnings("ignore:Prefer using dashboardv2:DeprecationWarning")
def test_the_dashboards_are_those_of_grafana_with_links_where_the_values_have_addresses(
    generator: Any,
) -> None:
    plain = _of("ConfigMap", "--set", "dashboards.enabled=true")
    linked, expected = (
        _of("ConfigMap", *ALL),
        {path.stem: text for path, text in generator.rendered(ADDRESSES).items()},
    )
    for name in ("overview", "pipeline", "quality"):
        shipped = (DEPLOY / "grafana" / "dashboards" / f"{name}.json").read_text(encoding="utf-8")
        (text,) = plain[f"calls-callgauge-dashboard-{name}"]["data"].values()
        assert json.loads(text) == json.loads(shipped)
        (text,) = linked[f"calls-callgauge-dashboard-{name}"]["data"].values()
        assert (
            _links(json.loads(text))
            == _links(json.loads(expected[name]))
            != _links(json.loads(shipped))
        )


def _links(board: dict[str, Any]) -> list[tuple[str, str | None]]:
    """Title and address of each link of a dashboard and of its table."""
    of_tables = [
        link
        for panel in board["panels"]
        for link in panel.get("fieldConfig", {}).get("defaults", {}).get("links", ())
    ]
    return [(link["title"], link.get("url")) for link in [*board["links"], *of_tables]]


def test_the_pods_are_scraped_with_the_token_that_they_ask_for() -> None:
    monitor = _one("PodMonitor")["spec"]
    (endpoint,) = monitor["podMetricsEndpoints"]
    assert endpoint["authorization"]["credentials"] == {"name": "metrics", "key": "token"}
    (token,) = [
        each
        for each in _container("exporter", *ALL)["env"]
        if each["name"] == "CALLGAUGE_HTTP_TOKEN"
    ]
    assert token["valueFrom"]["secretKeyRef"] == {"name": "metrics", "key": "token"}
    for deployment in _of("Deployment", *ALL).values():
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        assert monitor["selector"]["matchLabels"].items() <= labels.items()


def test_nobody_reaches_a_pod_who_is_not_named() -> None:
    policies = _of("NetworkPolicy", *ALL)
    events = {
        name.rpartition("-")[2]
        for name, policy in policies.items()
        if "events" in str(policy["spec"]["ingress"])
    }
    assert events == {"ingest"}
    beyond = {
        name.rpartition("-")[2]
        for name, policy in policies.items()
        if "443" in str(policy["spec"]["egress"])
    }
    assert beyond == {"judge", "monitor"}
    closed = _of("NetworkPolicy", "--set", "networkPolicy.enabled=true")
    assert [policy["spec"]["ingress"] for policy in closed.values()] == [[], [], []]
