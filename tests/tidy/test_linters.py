"""Format, lint and types of the whole tree, as a person would run them."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tidy.source_tree import ROOT

BIN = Path(sys.executable).parent


@pytest.mark.parametrize(
    "command",
    [("ruff", "format", "--check", "."), ("ruff", "check", "."), ("mypy",)],
    ids=" ".join,
)
def test_has_nothing_to_say(command: tuple[str, ...]) -> None:
    program, *arguments = command
    done = subprocess.run([BIN / program, *arguments], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.fail(done.stdout + done.stderr, pytrace=False)
