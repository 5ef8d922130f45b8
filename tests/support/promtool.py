"""Prometheus's own tool, which checks and runs rules."""

import subprocess
from pathlib import Path
from typing import Final

from tests.support.required_tools import require_tool

LONGEST_SECONDS: Final = 600
"""How long one run may take: a day of series with the rules of a month's budget takes minutes."""


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs it; without it the test is skipped, in CI failed."""
    path = require_tool("promtool", "apt-get install prometheus")
    return subprocess.run([path, *arguments], capture_output=True, text=True, timeout=LONGEST_SECONDS)
