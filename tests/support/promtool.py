"""Prometheus's own tool, which checks and runs rules: the installed one, and the newest one."""

import fcntl
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from tests.support.patience import patient
from tests.support.required_tools import CACHE, require_tool

LONGEST_SECONDS: Final = 600
"""How long one run may take: a day of series with the rules of a month's budget takes minutes."""
NEWEST: Final = CACHE / "promtool-newest" / "usr" / "bin" / "promtool"
_FETCH_SECONDS: Final = 300
_SUITE: Final = "sid"
"""Where Debian has Prometheus 3. Nothing of it is installed: the package is unpacked in
the cache.
"""
_KEYS: Final = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
"""Debian's own keys, without which nothing is fetched."""


def promtool(
    *arguments: str | Path, program: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs it, or another one; without it the test is skipped, in CI failed."""
    path = program or require_tool("promtool", "apt-get install prometheus")
    return subprocess.run(
        [path, *arguments], capture_output=True, text=True, timeout=patient(LONGEST_SECONDS)
    )


@cache
def newest_promtool() -> Path:
    """The path of a promtool of Prometheus 3, fetched once; where that cannot be done the test is
    skipped, in CI too.
    """
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "promtool.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not NEWEST.exists():
            _fetch()
    if not NEWEST.exists():
        pytest.skip("promtool of Prometheus 3 is only to be had from Debian's newest packages")
    return NEWEST


def _fetch() -> None:
    """Downloads the package with lists of packages of its own, and unpacks it."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None or not _KEYS.exists():
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("lists/partial", "archives/partial"):
            (folder / part).mkdir(parents=True)
        sites = _ran(
            "apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages", folder=folder
        )
        sources = folder / "sources.list"
        sources.write_text(f"deb [signed-by={_KEYS}] {sites.partition(chr(10))[0]} {_SUITE} main\n")
        options = [
            part
            for option in (
                f"Dir::Etc::sourcelist={sources}",
                "Dir::Etc::sourceparts=/dev/null",
                f"Dir::State={folder}",
                f"Dir::Cache={folder}",
                "Dir::State::status=/var/lib/dpkg/status",
                "Acquire::Languages=none",
                "APT::Sandbox::User=root",
            )
            for part in ("-o", option)
        ]
        _ran("apt-get", *options, "update", folder=folder)
        _ran("apt-get", *options, "download", "promtool", folder=folder)
        for package in folder.glob("promtool_*.deb"):
            _ran("dpkg", "-x", str(package), str(NEWEST.parents[2]), folder=folder)


def _ran(*command: str, folder: Path) -> str:
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=_FETCH_SECONDS
    ).stdout
