"""A set-up that cannot fetch packages says in one sentence what to set, and each Python has its
own.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.tidy.source_tree import ROOT

# This Python only makes a folder in which pip fails, as without a network.
PYTHON = """#!/bin/sh
if [ "$1" = "-c" ]; then echo python9.9; exit 0; fi
if [ "$1 $2" = "-m venv" ]; then mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; exit 0; fi
if [ "$1 $2" = "-m pip" ]; then echo "ERROR: No matching distribution found for aiokafka" >&2; exit 1; fi
exit 0
"""


@pytest.fixture
def python(tmp_path: Path) -> Path:
    for name in ("Makefile", "pyproject.toml", "requirements.lock", "requirements-dev.lock"):
        shutil.copy(ROOT / name, tmp_path)
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    return python


def test_a_network_that_does_not_answer_is_explained(tmp_path: Path, python: Path) -> None:
    ended = subprocess.run(
        ["make", "demo", f"PYTHON={python}"], cwd=tmp_path, capture_output=True, text=True
    )
    assert ended.returncode == 2
    assert "HTTPS_PROXY" in ended.stderr
    assert "PIP_INDEX_URL" in ended.stderr
    assert not (tmp_path / ".venv" / ".runs").exists(), "it is done again next time"


def test_later_pythons_are_tested_where_they_are_and_named_where_not(
    tmp_path: Path, python: Path
) -> None:
    command = ["make", "test-pythons", f"PYTHONS=./no-python {python}"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert "./no-python is not here: nothing is tested on it." in ended.stdout
    assert (tmp_path / ".venv/python9.9/bin/python").exists(), "its own environment"
    assert "HTTPS_PROXY" in ended.stderr
    assert ended.returncode == 2, "what fails on one Python fails as a whole"
