"""Programs the tests need and pip cannot bring: found, installed where that is allowed, or named in
one sentence.

`make test` runs this module first. As root on Debian or Ubuntu missing tools are installed with
apt; elsewhere the sentence says what to install, and a test that needs it is skipped (with CI set,
failed: see tests/conftest.py).
"""

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

# A skip whose reason starts with this is a failure in CI: a check that did not run is no check.
MISSING = "missing tool: "

# Downloads are shared by all checkouts, and survive `make clean`.
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "callgauge"

_POLICY = Path("/usr/sbin/policy-rc.d")


@dataclass(frozen=True)
class Tool:
    """A program: its name for people, Debian's package of it, and how to see that it is there."""

    name: str
    package: str
    is_present: Callable[[], bool]


def _has_java() -> bool:
    if shutil.which("java") is None:
        return False
    banner = subprocess.run(["java", "-version"], capture_output=True, text=True).stderr
    version = re.search(r'version "(\d+)', banner)
    return version is not None and int(version[1]) >= 17


JAVA = Tool("Java 17 or newer", "default-jre-headless", _has_java)
MAVEN = Tool("Maven", "maven", lambda: shutil.which("mvn") is not None)
PROMTOOL = Tool("promtool", "prometheus", lambda: shutil.which("promtool") is not None)
AMTOOL = Tool("amtool", "prometheus-alertmanager", lambda: shutil.which("amtool") is not None)
JQ = Tool("jq", "jq", lambda: shutil.which("jq") is not None)
NPM = Tool("npm", "npm", lambda: shutil.which("npm") is not None)
BUILDAH = Tool("buildah", "buildah", lambda: shutil.which("buildah") is not None)
DEBOOTSTRAP = Tool("debootstrap", "debootstrap", lambda: shutil.which("debootstrap") is not None)
CHROMIUM = Tool("Chromium", "chromium", lambda: shutil.which("chromium") is not None)


def require_tool(name: str, how: str) -> str:
    """The path of a program; without it the test is skipped, in CI failed. `how` says how to
    install it.
    """
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{MISSING}{name} ({how})")
    return path


def has_docker() -> bool:
    """Whether a Docker engine answers; the client alone is not enough."""
    if shutil.which("docker") is None:
        return False
    try:
        return subprocess.run(["docker", "info"], capture_output=True, timeout=20).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def provide(*tools: Tool) -> tuple[Tool, ...]:
    """Installs missing tools where that is allowed, and returns those that are still missing."""
    missing = tuple(tool for tool in tools if not tool.is_present())
    if (
        not missing
        or os.geteuid() != 0
        or not Path("/etc/debian_version").exists()
        or not shutil.which("apt-get")
    ):
        return missing
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "apt.lock").open("w") as lock:
        # apt refuses a second apt at the same time: wait, then look again
        fcntl.flock(lock, fcntl.LOCK_EX)
        missing = tuple(tool for tool in missing if not tool.is_present())
        if missing:
            _install([tool.package for tool in missing])
    return tuple(tool for tool in missing if not tool.is_present())


def names(tools: tuple[Tool, ...]) -> str:
    """The tools and how to install them, to be the end of a sentence."""
    packages = " ".join(tool.package for tool in tools)
    return (
        f"{', '.join(tool.name for tool in tools)} (Debian and Ubuntu: apt-get install {packages})"
    )


def _install(packages: list[str]) -> None:
    # Standard error: a process that starts a broker reads the address from standard output.
    print(
        f"Installing {' '.join(packages)} with apt-get, which the tests need.",
        file=sys.stderr,
        flush=True,
    )
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["install", "--yes", "--quiet", "--no-install-recommends", *packages]
    with _no_services():
        for arguments in (["update", "--quiet"], install):
            done = subprocess.run(
                ["apt-get", *arguments], env=environment, capture_output=True, text=True
            )
            if done.returncode != 0:
                last = done.stderr.strip().splitlines()[-3:]
                print(
                    f"apt-get {arguments[0]} failed:",
                    *last,
                    sep="\n  ",
                    file=sys.stderr,
                    flush=True,
                )
                return


@contextlib.contextmanager
def _no_services() -> Iterator[None]:
    """Debian starts the service of a package it installs; of `prometheus` only promtool
    is wanted.
    """
    if _POLICY.exists():  # containers usually have one that says the same
        yield
        return
    _POLICY.write_text("#!/bin/sh\nexit 101\n")
    _POLICY.chmod(0o755)
    try:
        yield
    finally:
        _POLICY.unlink()


def main() -> None:
    """Installs the tools of a full run of the tests, or names them in one sentence."""
    missing = provide(PROMTOOL, AMTOOL, JQ, CHROMIUM, NPM)
    if not os.environ.get("CALLGAUGE_TEST_BOOTSTRAP"):
        without_java = provide(JAVA, MAVEN)
        missing += () if without_java and has_docker() else without_java
    if missing:
        print(
            f"Tests that need more are left out, to run them install {names(missing)}.", flush=True
        )


if __name__ == "__main__":
    main()
