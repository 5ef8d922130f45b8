"""The image and the compose set-up as far as they can be judged without an engine."""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pytest
import yaml
from prometheus_client import CollectorRegistry
from pydantic import SecretStr

from consumers.console.settings import ConsoleSettings
from consumers.runtime.http import MetricsServer
from consumers.runtime.registry import Instruments
from consumers.runtime.settings import HttpSettings
from streamer.settings.all_settings import load_settings, near_misses, setting_names
from tests.support.known import some

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, Any] = COMPOSE["services"]
BIN = Path(sys.executable).parent


def _instructions() -> list[tuple[str, str]]:
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    text = re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", "")
    return [
        (word, rest)
        for word, _, rest in (line.partition(" ") for line in text.splitlines() if line.strip())
    ]


INSTRUCTIONS = _instructions()
LAST_STAGE = INSTRUCTIONS[max(at for at, (word, _) in enumerate(INSTRUCTIONS) if word == "FROM") :]


ENVIRONMENT = dict(
    pair.partition("=")[::2] for word, rest in LAST_STAGE if word == "ENV" for pair in rest.split()
)


def _last(word: str) -> str:
    return next(rest for found, rest in reversed(LAST_STAGE) if found == word)


# -- Dockerfile
# --------------------------------------------------------------------------------------------------------


def test_hadolint_accepts_the_dockerfile() -> None:
    result = subprocess.run(
        [BIN / "hadolint", DEPLOY / "Dockerfile"], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_image_runs_as_a_numbered_user_without_rights() -> None:
    user = some(re.fullmatch(r"(\d+):(\d+)", _last("USER")))
    assert int(user[1]) > 0
    assert int(user[2]) > 0


def test_serve_has_a_folder_that_its_user_alone_may_write() -> None:
    folder = _last("VOLUME")
    assert ENVIRONMENT["XDG_DATA_HOME"] == folder
    assert _last("RUN") == f"install --directory --mode=0700 --owner=10001 --group=10001 {folder}"
    assert _last("USER") == "10001:10001"


def test_the_entry_point_is_our_command_and_gets_the_signals() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "scripts"
    ]
    (script,) = json.loads(_last("ENTRYPOINT"))  # exec form: JSON, no shell between
    assert script in scripts
    assert json.loads(_last("CMD")) == ["run"]
    assert _last("STOPSIGNAL") == "SIGTERM"


def test_both_stages_stand_on_the_same_pinned_python() -> None:
    bases = [rest.split()[0] for word, rest in INSTRUCTIONS if word == "FROM"]
    assert len(bases) == 2
    assert len(set(bases)) == 1
    assert re.fullmatch(r"python:3\.\d+-slim-\w+", bases[0])
    images = [
        found[1] for _, rest in INSTRUCTIONS if (found := re.match(r"--from=(\S+:\S+)", rest))
    ]
    assert [image for image in images if not re.search(r":\d+\.\d+\.\d+$", image)] == []


def test_the_image_has_the_python_the_project_asks_for() -> None:
    required = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "requires-python"
    ]
    minor = re.search(r"python:3\.(\d+)", LAST_STAGE[0][1])
    lowest = re.fullmatch(r">=3\.(\d+)", required)
    assert minor is not None
    assert lowest is not None
    assert int(minor[1]) >= int(lowest[1])


def _copied_from_checkout() -> list[str]:
    copies = [
        rest.split()[:-1]
        for word, rest in INSTRUCTIONS
        if word == "COPY" and not rest.startswith("--from=")
    ]
    return [source for sources in copies for source in sources]


def test_what_is_copied_exists_and_reaches_the_builder() -> None:
    ignore = (ROOT / ".dockerignore").read_text(encoding="utf-8").split("\n")
    assert "*" in ignore
    kept = {line[1:] for line in ignore if line.startswith("!")}
    sources = _copied_from_checkout()
    assert [source for source in sources if not (ROOT / source).exists()] == []
    assert set(sources) == kept  # nothing is sent that is not used


def test_every_package_of_the_wheel_is_copied() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = set(project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
    files = {
        project["project"]["readme"],
        *project["project"]["license-files"],
        "pyproject.toml",
        "requirements.lock",
    }
    forced = {
        Path(place).parts[0]
        for place in project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    }
    assert packages | files | forced == set(_copied_from_checkout())


def test_only_locked_and_hashed_dependencies_are_installed() -> None:
    installs = [
        rest
        for word, rest in INSTRUCTIONS
        if word == "RUN" and re.search(r"uv pip|pip install", rest)
    ]
    assert len(installs) == 2
    assert "--require-hashes requirements.lock" in installs[0]
    assert "--no-deps" in installs[1]


HEALTH_CHECK: list[str] = json.loads(_last("HEALTHCHECK").split("CMD ", 1)[1])


def test_the_ports_of_pages_metrics_and_events_are_exposed() -> None:
    pages, metrics, events = _last("EXPOSE").split()
    assert pages == ENVIRONMENT["CALLGAUGE_CONSOLE__PORT"] == str(ConsoleSettings().port)
    assert ENVIRONMENT["CALLGAUGE_HTTP_PORT"] == metrics
    assert ENVIRONMENT["CALLGAUGE_INGEST__PORT"] == events
    assert ENVIRONMENT["CALLGAUGE_INGEST__HOST"] == ENVIRONMENT["CALLGAUGE_HTTP_HOST"] == "0.0.0.0"  # noqa: S104


async def _checked(**environment: str) -> int:
    """Exit code of the image's own health check; 0 is healthy, 1 is not, and Docker
    knows no other.
    """
    python, *arguments = HEALTH_CHECK
    assert python == "python"
    done = await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        env={**os.environ, **environment},
        stderr=asyncio.subprocess.DEVNULL,
    )
    return await done.wait()


@pytest.mark.parametrize("command", ["run", "serve"])
@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1", "::"])  # noqa: S104 - as the image has it
async def test_the_health_check_asks_healthz_whatever_the_address_and_the_token(
    host: str, command: str
) -> None:
    stalled: list[str] = []
    server = MetricsServer(
        HttpSettings(host=host, port=0, token=SecretStr("secret")),
        Instruments(CollectorRegistry(), ["exporter"]),
        stalled=lambda: stalled,
        not_ready=lambda: ["exporter: waits for the broker"],
    )
    await server.start()
    port = server.url.rsplit(":", 1)[1].split("/")[0]
    nobody = {"HTTP_PROXY": "http://127.0.0.1:1", "http_proxy": "http://127.0.0.1:1"}
    ports = [port, "9"] if command == "run" else ["9", port]  # nobody listens at the other one
    of_image = dict(zip(("CALLGAUGE_HTTP_PORT", "CALLGAUGE_CONSOLE__PORT"), ports, strict=True))
    variables = {"CALLGAUGE_HTTP_HOST": host, **of_image, **nobody}
    try:
        assert await _checked(**variables) == 0
        stalled.append("exporter: no tick for 31 s")
        assert await _checked(**variables) == 1
    finally:
        await server.stop()
    assert await _checked(**variables) == 1, "nobody answers"


# -- compose.yaml
# ------------------------------------------------------------------------------------------------------


def test_compose_follows_its_schema() -> None:
    command: list[str | Path] = [
        BIN / "check-jsonschema",
        "--builtin-schema",
        "vendor.compose-spec",
    ]
    result = subprocess.run([*command, DEPLOY / "compose.yaml"], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_docker_compose_reads_it() -> None:
    docker = shutil.which("docker")
    command = ["docker", "compose"]
    if docker is None or subprocess.run([*command, "version"], capture_output=True).returncode != 0:
        pytest.skip("docker compose is not here; the schema and the checks below stand in for it")
    result = subprocess.run(
        [*command, "--file", DEPLOY / "compose.yaml", "config", "-q"],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr


OURS = {
    "topics": ["topics", "create"],
    "callgauge": ["run"],
    "ingest": ["run", "--roles", "ingest"],
    "monitor": ["run", "--roles", "monitor"],
    "traffic": ["simulate"],
}
SOURCES = ("ingest", "monitor")


def test_a_plain_start_brings_neither_source_and_asks_for_no_secret() -> None:
    assert {
        name: service["profiles"] for name, service in SERVICES.items() if "profiles" in service
    } == {name: [name] for name in SOURCES}
    # Compose reads `${NAME:?}` of services whose profile is off, too, and would refuse every start.
    assert ":?" not in (DEPLOY / "compose.yaml").read_text(encoding="utf-8").replace(
        "`${NAME:?}`", ""
    )


def _variables(name: str, **shell: str) -> dict[str, str]:
    """The environment of a container: a variable without a value is the shell's, if
    that has one.
    """
    given = {
        key: shell.get(key) if value is None else value
        for key, value in SERVICES[name]["environment"].items()
    }
    return {
        **{key: value for key, value in ENVIRONMENT.items() if key != "PATH"},
        **{key: value for key, value in given.items() if value is not None},
    }


@pytest.mark.parametrize(
    ("name", "needed", "more"),
    [
        ("ingest", "CALLGAUGE_INGEST__TOKEN", ["CALLGAUGE_INGEST__ELEVENLABS_SECRET"]),
        ("monitor", "CALLGAUGE_MONITOR__API_KEY", []),
    ],
)
def test_without_its_secret_a_source_says_what_to_set(
    name: str, needed: str, more: list[str]
) -> None:
    command: list[str | Path] = [BIN / "callgauge", *OURS[name]]
    shell = {key: value for key, value in os.environ.items() if not key.startswith("CALLGAUGE_")}
    for given in ({}, {needed: ""}):  # not set at all; `NAME=` in .env
        variables = _variables(name, **given)
        result = subprocess.run(command, capture_output=True, text=True, env={**shell, **variables})
        assert result.returncode == 2, result.stderr
        assert [
            each for each in [needed, *(() if given else more)] if each not in result.stderr
        ] == []
        assert "Traceback" not in result.stderr
    assert getattr(load_settings(None, {}, _variables(name, **{needed: "of-tests"})), name).is_on


def test_every_variable_of_a_container_is_a_setting() -> None:
    for name in OURS:
        shell = {key: "x" for key, value in SERVICES[name]["environment"].items() if value is None}
        shell |= {"CALLGAUGE_MONITOR__BASE_URL": "https://localhost"}
        variables = _variables(name, **shell)
        load_settings(None, {}, variables)  # refuses unknown names below a part of the settings
        assert near_misses(variables, setting_names()) == ()


def test_measures_of_ones_own_are_read_where_their_folder_is_mounted() -> None:
    folder = _variables("callgauge")["CALLGAUGE_MEASURES__FOLDER"]
    mounts = SERVICES["callgauge"]["volumes"]
    assert mounts == [f"${{CALLGAUGE_MEASURES:-measures}}:{folder}:ro"]
    assert "measures" in COMPOSE["volumes"], "without a folder an empty volume"


def test_a_container_listens_where_its_port_is_published() -> None:
    for name, parts in {"callgauge": ("HTTP_", "CONSOLE__"), "ingest": ("INGEST__",)}.items():
        variables = _variables(name)
        ports = [variables[f"CALLGAUGE_{part}PORT"] for part in parts]
        assert SERVICES[name]["ports"] == [f"127.0.0.1:{port}:{port}" for port in ports]
        assert {variables[f"CALLGAUGE_{part}HOST"] for part in parts} == {"0.0.0.0"}  # noqa: S104 - loopback ends at the container
    assert "ports" not in SERVICES["monitor"], "it asks, and nobody asks it"


@pytest.mark.parametrize("name", SERVICES)
def test_ports_are_on_loopback_only(name: str) -> None:
    for port in SERVICES[name].get("ports", ()):
        assert re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port)


@pytest.mark.parametrize("name", SERVICES)
def test_image_tags_are_pinned_and_can_be_overridden(name: str) -> None:
    tag = some(re.fullmatch(r"[a-z/]+:\$\{[A-Z]+_TAG:-(.+)\}", SERVICES[name]["image"]))
    assert re.fullmatch(r"v?\d+\.\d+\.\d+", tag[1]) or (
        SERVICES[name]["build"] and tag[1] == "local"
    )


@pytest.mark.parametrize("name", SERVICES)
def test_mounted_files_exist_and_are_read_only(name: str) -> None:
    for volume in SERVICES[name].get("volumes", ()):
        by_default = re.sub(r"\$\{[A-Z_]+:-([^}]*)\}", r"\1", volume)
        source, _, target = by_default.partition(":")
        if source.startswith("."):
            assert (DEPLOY / source).exists()
            assert target.endswith(":ro")
        else:
            assert source in COMPOSE["volumes"]


def test_our_build_context_is_the_repository() -> None:
    for name in OURS:
        build = SERVICES[name]["build"]
        assert (DEPLOY / build["context"]).resolve() == ROOT
        assert (ROOT / build["dockerfile"]).is_file()


def test_containers_without_a_page_have_no_health_check() -> None:
    assert (
        SERVICES["topics"]["healthcheck"] == SERVICES["traffic"]["healthcheck"] == {"disable": True}
    )
    for name in ("callgauge", *SOURCES):
        assert "healthcheck" not in SERVICES[name]  # the image's own
        assert (
            SERVICES[name]["environment"]["CALLGAUGE_HTTP_PORT"]
            == ENVIRONMENT["CALLGAUGE_HTTP_PORT"]
        )


def test_everybody_reaches_kafka_by_the_address_it_advertises() -> None:
    kafka = SERVICES["kafka"]["environment"]
    advertised = dict(re.findall(r"(\w+)://([\w.:]+)", kafka["KAFKA_ADVERTISED_LISTENERS"]))
    for name in OURS:
        assert SERVICES[name]["environment"]["CALLGAUGE_BOOTSTRAP"] == advertised["INSIDE"]
    assert advertised["INSIDE"].split(":")[0] in SERVICES
    assert advertised["HOST"] == "localhost:9092"
    assert "127.0.0.1:9092:9092" in SERVICES["kafka"]["ports"]
    protocols = dict(re.findall(r"(\w+):(\w+)", kafka["KAFKA_LISTENER_SECURITY_PROTOCOL_MAP"]))
    listeners = dict(re.findall(r"(\w+)://:(\d+)", kafka["KAFKA_LISTENERS"]))
    assert set(protocols) == set(listeners) == {"CONTROLLER", *advertised}
    assert {
        name: address.split(":")[1] for name, address in advertised.items()
    }.items() <= listeners.items()


def test_prometheus_scrapes_a_service_at_its_port_and_keeps_exemplars() -> None:
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    always, sources = config["scrape_configs"]
    targets = [target for group in always["static_configs"] for target in group["targets"]]
    # Looked up by name: a service that does not run is not down. Another job, because one that runs
    # must not hide one that does not.
    (looked_up,) = sources["dns_sd_configs"]
    assert sources["job_name"] != always["job_name"]
    assert tuple(looked_up["names"]) == SOURCES
    targets += [f"{name}:{looked_up['port']}" for name in looked_up["names"]]
    for target in targets:
        host, port = target.split(":")
        assert (
            SERVICES[host]["environment"]["CALLGAUGE_HTTP_PORT"]
            == port
            == ENVIRONMENT["CALLGAUGE_HTTP_PORT"]
        )
    assert "--enable-feature=exemplar-storage" in SERVICES["prometheus"]["command"]
    mounts = dict(volume.split(":")[:2] for volume in SERVICES["prometheus"]["volumes"])
    assert mounts["./prometheus/prometheus.yml"] == "/etc/prometheus/prometheus.yml"
    # `rules/*.yml` beside the configuration
    assert mounts["./prometheus/rules"] == "/etc/prometheus/rules"


def test_prometheus_sends_its_alerts_to_alertmanager_which_finds_its_files() -> None:
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    (group,) = config["alerting"]["alertmanagers"]
    service = SERVICES["alertmanager"]
    assert group["static_configs"] == [{"targets": ["alertmanager:9093"]}]
    assert service["ports"] == ["127.0.0.1:9093:9093"]
    mounts = dict(volume.split(":")[:2] for volume in service["volumes"])
    options = dict(option.lstrip("-").split("=", 1) for option in service["command"])
    folder, _, name = options["config.file"].rpartition("/")
    assert mounts["./alertmanager"] == folder
    routing = (DEPLOY / "alertmanager" / name).read_text(encoding="utf-8")
    assert options["storage.path"] == mounts["alertmanager-data"]
    secrets = set(re.findall(r"_file: (\S+)/[^/\s]+$", routing, re.M))
    assert secrets == {f"{folder}/secrets"}
    # Files there must not be committed.
    assert (DEPLOY / "alertmanager" / "secrets" / ".gitignore").read_text(
        encoding="utf-8"
    ).splitlines()[1] == "*"


def test_grafana_finds_its_data_source_and_its_dashboards() -> None:
    mounts = dict(volume.split(":")[:2] for volume in SERVICES["grafana"]["volumes"])
    provisioning = DEPLOY / "grafana" / "provisioning"
    (source,) = yaml.safe_load(
        (provisioning / "datasources/prometheus.yml").read_text(encoding="utf-8")
    )["datasources"]
    assert urlparse(source["url"]).hostname in SERVICES
    (provider,) = yaml.safe_load(
        (provisioning / "dashboards/callgauge.yml").read_text(encoding="utf-8")
    )["providers"]
    assert provider["options"]["path"] == mounts["./grafana/dashboards"]
    home = Path(SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert str(home.parent) == mounts["./grafana/dashboards"]
    assert (DEPLOY / "grafana" / "dashboards" / home.name).is_file()
    assert SERVICES["grafana"]["environment"]["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
