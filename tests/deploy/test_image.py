"""The image, built and run: as its user, with a token, and with the health check that
it declares.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.metrics_page import answer_of
from tests.integration.processes import wait_for
from tests.support.image_builder import Buildah
from tests.support.patience import patient

# a minute of processor time, and another one for Debian on a new machine
pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
MOST_MB = 220
"""Of the environment in the image; measured 158, of which telephone numbers take 46 and the judge's
client 29.
"""
TOKEN = "of-tests"  # noqa: S105


@pytest.fixture(scope="module")
def buildah(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Buildah]:
    folder = tmp_path_factory.mktemp("buildah")
    yield Buildah.in_folder(folder)
    shutil.rmtree(folder)  # some hundred MB, which pytest would keep


@pytest.fixture(scope="module")
def config(buildah: Buildah) -> dict[str, Any]:
    """The configuration of the built image."""
    text = DOCKERFILE.read_text(encoding="utf-8")
    bases = re.findall(r"^FROM (\S+)|--from=(\S+:\S+)", text, re.M)
    return buildah.image(DOCKERFILE, ROOT, [first or second for first, second in bases])


@pytest.fixture(scope="module")
def container(buildah: Buildah, config: dict[str, Any]) -> Iterator[str]:
    made = buildah("from", "--pull-never", "built")
    yield made
    buildah("rm", made)  # releases mounts


def _inside(buildah: Buildah, container: str, *command: str, **variables: str) -> list[str]:
    """A command in the container, as the image's user. It has the network of this machine."""
    given = [part for name, value in variables.items() for part in ("--env", f"{name}={value}")]
    return buildah.command("run", "--isolation=chroot", *given, container, "--", *command)


def _printed(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=patient(60))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def test_the_image_has_a_command_that_starts_for_an_ordinary_user(
    buildah: Buildah, config: dict[str, Any], container: str
) -> None:
    assert (config["User"], config["Entrypoint"], config["Cmd"]) == (
        "10001:10001",
        ["callgauge"],
        ["run"],
    )
    assert _printed(_inside(buildah, container, "id", "-u")) == "10001"
    assert "callgauge" in _printed(_inside(buildah, container, *config["Entrypoint"], "--help"))
    kilobytes = _printed(_inside(buildah, container, "du", "-sk", "/opt/callgauge")).split()[0]
    assert int(kilobytes) / 1_000 < MOST_MB


def test_no_file_of_the_environment_belongs_to_the_user_who_runs_it(
    buildah: Buildah, container: str
) -> None:
    """Code that was broken into cannot change itself, also where the root file system is not
    read-only.
    """
    assert (
        _printed(
            _inside(buildah, container, "find", "/opt/callgauge", "-writable", "-not", "-type", "l")
        )
        == ""
    )


def _free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


@contextmanager
def _healthy(
    buildah: Buildah,
    config: dict[str, Any],
    container: str,
    log: Path,
    command: str,
    **variables: str,
) -> Iterator[None]:
    """Runs a command of the image until its health check is content; afterwards it must end in
    order.
    """
    kind, *check = config["Healthcheck"]["Test"]
    assert kind == "CMD"

    def is_healthy() -> bool:
        command = _inside(buildah, container, *check, **variables)
        return subprocess.run(command, capture_output=True, timeout=patient(30)).returncode == 0

    assert not is_healthy(), "nothing runs yet"
    shell = 'echo "process $$"; exec "$@"'  # the container has the processes of this machine, too
    started = _inside(
        buildah, container, "sh", "-c", shell, "sh", *config["Entrypoint"], command, **variables
    )
    with (
        log.open("wb") as file,
        subprocess.Popen(started, stdin=subprocess.DEVNULL, stdout=file, stderr=file) as running,
    ):
        try:
            wait_for(log.read_text, is_healthy, 30)
            yield
            os.kill(int(re.findall(r"^process (\d+)$", log.read_text(), re.M)[0]), signal.SIGTERM)
            assert running.wait(patient(30)) == 0, log.read_text()
        finally:
            running.kill()


def test_it_is_healthy_with_a_token_and_ends_in_order(
    buildah: Buildah, config: dict[str, Any], container: str, tmp_path: Path
) -> None:
    port = _free_port()
    variables = {
        "CALLGAUGE_HTTP_HOST": "127.0.0.1",
        "CALLGAUGE_HTTP_PORT": port,
        "CALLGAUGE_CONSOLE__PORT": "9",
    }
    with _healthy(
        buildah,
        config,
        container,
        tmp_path / "demo.log",
        "demo",
        CALLGAUGE_HTTP_TOKEN=TOKEN,
        **variables,
    ):
        page = f"http://127.0.0.1:{port}/metrics"
        assert answer_of(page).status_code == httpx.codes.UNAUTHORIZED
        answer = answer_of(page, {"Authorization": f"Bearer {TOKEN}"})
        assert "callgauge_build_info" in answer.text


def test_serve_keeps_calls_in_the_volume_and_lets_in_who_has_the_printed_token(
    buildah: Buildah, config: dict[str, Any], container: str, tmp_path: Path
) -> None:
    assert list(config["Volumes"]) == ["/data"]
    port, log = _free_port(), tmp_path / "serve.log"
    variables = {
        "CALLGAUGE_CONSOLE__PORT": port,
        "CALLGAUGE_HTTP_PORT": "9",
        "CALLGAUGE_LOG_FORMAT": "console",
    }
    with _healthy(buildah, config, container, log, "serve", **variables):
        line = wait_for(
            log.read_text, lambda: re.search(r"^ +(t=.*curl .*)$", log.read_text(), re.M), 10
        )[1]
        _printed(["sh", "-c", line])
        (token,) = re.findall(r"Bearer ([\w-]+)", line)
        page = f"http://127.0.0.1:{port}/"
        assert answer_of(page).status_code == httpx.codes.UNAUTHORIZED
        reader = {"Authorization": f"Bearer {token}"}
        wait_for("the call on its page", lambda: "calls/first-" in answer_of(page, reader).text, 10)
    kept = _printed(
        _inside(buildah, container, "find", "/data/callgauge", "-name", "*.sqlite", "-perm", "600")
    )
    assert "/data/callgauge/log.sqlite" in kept.split()
