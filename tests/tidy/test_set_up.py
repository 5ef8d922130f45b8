"""A set-up that cannot fetch packages says in one sentence what to set."""

import shutil
import subprocess
from pathlib import Path

from tests.tidy.source_tree import ROOT

# This Python only makes a folder in which pip fails, as without a network.
PYTHON = """#!/bin/sh
if [ "$1 $2" = "-m venv" ]; then mkdir -p .venv/bin; cp "$0" .venv/bin/python; exit 0; fi
if [ "$1 $2" = "-m pip" ]; then echo "ERROR: No matching distribution found for aiokafka" >&2; exit 1; fi
exit 0
"""


def test_a_network_that_does_not_answer_is_explained(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "requirements.lock", "requirements-dev.lock"):
        shutil.copy(ROOT / name, tmp_path)
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    ended = subprocess.run(["make", "demo", f"PYTHON={python}"], cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 2
    assert "HTTPS_PROXY" in ended.stderr
    assert "PIP_INDEX_URL" in ended.stderr
    assert not (tmp_path / ".venv" / ".runs").exists(), "it is done again next time"
