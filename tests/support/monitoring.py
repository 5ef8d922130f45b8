"""The real servers beside callgauge: Prometheus and Alertmanager, each on a free port of this
machine.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

import yaml

from tests.integration.processes import wait_for
from tests.support.required_tools import require_tool

T = TypeVar("T")
ALERTMANAGER_CONFIG: Final = (
    Path(__file__).parents[2] / "deploy" / "alertmanager" / "alertmanager.yml"
)
TEAMS: Final = ("platform", "voice")
_ADDRESS = re.compile(r"(?:Listening on|TLS is disabled).*?address=(127\.0\.0\.1:\d+)")


@contextmanager
def alertmanager(config: Path, work: Path) -> Iterator[str]:
    """Runs Alertmanager with this configuration; gives its address. `work` is a folder for its
    state and its log.
    """
    program = require_tool("prometheus-alertmanager", "apt-get install prometheus-alertmanager")
    # Without an address for its cluster it opens no further port.
    options = [
        f"--config.file={config}",
        f"--storage.path={work / 'alertmanager'}",
        "--cluster.listen-address=",
    ]
    with _running([program, *options], work / "alertmanager.log") as address:
        yield address


@contextmanager
def shipped_alertmanager(receiver: str, work: Path) -> Iterator[str]:
    """Runs Alertmanager as it is shipped, but that it sends at once, and everything to `receiver`;
    gives its address.

    A page of a team arrives at `/pagerduty` with the key `key-TEAM`, a ticket at `/slack-TEAM`, the
    watchdog at `/dead-man`.
    """
    text = ALERTMANAGER_CONFIG.read_text(encoding="utf-8")
    text = text.replace("http://dead-man.invalid/", f"{receiver}/dead-man")
    config = yaml.safe_load(text.replace("/etc/alertmanager/secrets", str(work / "secrets")))
    config["global"]["pagerduty_url"] = f"{receiver}/pagerduty"
    for route in (config["route"], *config["route"]["routes"]):
        route["group_wait"] = "0s"
    file = work / "alertmanager.yml"
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    shutil.copytree(ALERTMANAGER_CONFIG.parent / "templates", work / "templates")
    (work / "secrets").mkdir()
    for team in TEAMS:
        (work / "secrets" / f"slack-{team}").write_text(f"{receiver}/slack-{team}")
        (work / "secrets" / f"pagerduty-{team}").write_text(f"key-{team}")
    with alertmanager(file, work) as address:
        yield address


@contextmanager
def about_to_fire(work: Path) -> Iterator[str]:
    """Prometheus with one alert that waits to fire; gives its address."""
    rule = {
        "alert": "AnswersSlow",
        "expr": "vector(1) > 0.5",
        "for": "1h",
        "labels": {"severity": "critical", "agent": "desk"},
        "annotations": {"summary": "Callers wait."},
    }
    group = {"name": "g", "interval": "1s", "rules": [rule]}
    (work / "rules.yml").write_text(json.dumps({"groups": [group]}))
    config = work / "prometheus.yml"
    config.write_text(json.dumps({"rule_files": [str(work / "rules.yml")]}))
    with prometheus(config, work) as address:
        yield address


@contextmanager
def prometheus(config: Path, work: Path, *options: str) -> Iterator[str]:
    """Runs Prometheus with this configuration; gives its address. `work` is a folder; its
    `prometheus` holds the samples.
    """
    program = require_tool("prometheus", "apt-get install prometheus")
    storage = f"--storage.tsdb.path={work / 'prometheus'}"
    with _running(
        [program, f"--config.file={config}", storage, *options], work / "prometheus.log"
    ) as address:
        yield address


@contextmanager
def _running(command: list[str], log: Path) -> Iterator[str]:
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*command, "--web.listen-address=127.0.0.1:0"],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )
    try:
        yield "http://" + wait_for(
            log.read_text, _unless_ended(process, log, lambda: _address_in(log)), 20
        )
    finally:
        process.kill()
        process.wait()


def _address_in(log: Path) -> str | None:
    found = _ADDRESS.search(log.read_text().replace('"', ""))
    return None if found is None else found[1]


def _unless_ended(
    process: "subprocess.Popen[bytes]", log: Path, look: Callable[[], T]
) -> Callable[[], T]:
    def asked() -> T:
        assert process.poll() is None, log.read_text()
        return look()

    return asked
