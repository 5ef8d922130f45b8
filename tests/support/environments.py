"""Environments of their own for the versions of a framework, made once with uv or npm and shared by
all checkouts.

Their folder is in the cache of tests, or the value of CALLGAUGE_TEST_ENVIRONMENTS.
"""

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.support.patience import patient
from tests.support.required_tools import CACHE, MISSING, require_tool

INSTALL_SECONDS: Final = 300


def python_with(distribution: str, version: str, *more: str) -> Path:
    """The Python of an environment with this version of a distribution and `more`; without an index
    the test is skipped.
    """

    def install(folder: Path) -> bool:
        uv = str(Path(sys.executable).with_name("uv"))
        subprocess.run(
            [uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)], check=True
        )
        wanted = [f"{distribution}=={version}", *more]
        pip = [uv, "pip", "install", "--quiet", "--python", str(folder / "bin/python"), *wanted]
        return subprocess.run(pip, timeout=patient(INSTALL_SECONDS)).returncode == 0

    return _environment(distribution, version, install) / "bin/python"


def node_with(package: str, version: str, *more: str) -> Path:
    """The folder of an environment of Node with this version of a package and `more`; without npm
    or an index the test is skipped.
    """
    npm = require_tool("npm", "apt-get install npm")

    def install(folder: Path) -> bool:
        wanted = [f"{package}@{version}", *more]
        add = [
            npm,
            "install",
            "--no-audit",
            "--no-fund",
            "--ignore-scripts",
            "--prefix",
            str(folder),
            *wanted,
        ]
        return (
            subprocess.run(add, capture_output=True, timeout=patient(INSTALL_SECONDS)).returncode
            == 0
        )

    return _environment(package, version, install)


def _environment(name: str, version: str, install: Callable[[Path], bool]) -> Path:
    folder = (
        Path(os.environ.get("CALLGAUGE_TEST_ENVIRONMENTS", CACHE / "environments")) / name / version
    )
    is_complete = folder / "complete"
    folder.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests beside this one want it too
        if not is_complete.exists():
            if not install(folder):
                pytest.skip(f"{MISSING}{name} {version} (from a package index)")
            is_complete.touch()
    return folder
