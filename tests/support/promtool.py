"""Prometheus's own tool, which checks and runs rules."""

import subprocess
from pathlib import Path

from tests.support.required_tools import require_tool


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs it; without it the test is skipped, in CI failed."""
    path = require_tool("promtool", "apt-get install prometheus")
    return subprocess.run([path, *arguments], capture_output=True, text=True, timeout=240)
