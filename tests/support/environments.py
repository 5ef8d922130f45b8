"""Environments of their own for the versions of a framework, made once with uv and shared by all checkouts."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.support.patience import patient
from tests.support.required_tools import CACHE, MISSING

INSTALL_SECONDS: Final = 300


def python_with(distribution: str, version: str, *more: str) -> Path:
    """The Python of an environment with this version of a distribution and `more`; without an index the test is skipped.

    The folder of all of them is the cache of tests, or the value of CALLGAUGE_TEST_ENVIRONMENTS.
    """
    folder = Path(os.environ.get("CALLGAUGE_TEST_ENVIRONMENTS", CACHE / "environments")) / distribution / version
    python, is_complete = folder / "bin/python", folder / "complete"
    folder.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests beside this one want it too
        if not is_complete.exists():
            uv = str(Path(sys.executable).with_name("uv"))
            subprocess.run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)], check=True)
            wanted = [f"{distribution}=={version}", *more]
            install = [uv, "pip", "install", "--quiet", "--python", str(python), *wanted]
            if subprocess.run(install, timeout=patient(INSTALL_SECONDS)).returncode != 0:
                pytest.skip(f"{MISSING}{distribution}=={version} (from a package index)")
            is_complete.touch()
    return python
