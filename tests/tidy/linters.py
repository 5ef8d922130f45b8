"""Checks format, lint and types of the whole tree while a command runs: `python -m
tests.tidy.linters pytest tests`.

Linters need only processor time; tests spend much of their time waiting. Complaints are printed
when both are done.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.tidy.source_tree import ROOT

COMMANDS: Final[Sequence[Sequence[str]]] = (
    ("ruff", "format", "--check", "."),
    ("ruff", "check", "."),
    ("mypy",),
)
_BIN: Final = Path(sys.executable).parent
_LATER: Final = ("nice", "-n", "5")


def main(command: Sequence[str]) -> int:
    """Runs the command and the linters; returns the exit code of the command, or 1 if only a linter
    complained.
    """
    running = [
        subprocess.Popen(
            [*_LATER, str(_BIN / program), *options],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for program, *options in COMMANDS
    ]
    code = subprocess.run(command, cwd=ROOT).returncode if command else 0
    for linter, process in zip(COMMANDS, running, strict=True):
        said, _ = process.communicate()
        if process.returncode != 0:
            print(f"\n{' '.join(linter)}:\n{said}", flush=True)
            code = code or 1
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
