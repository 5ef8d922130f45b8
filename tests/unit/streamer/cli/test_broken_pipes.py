"""A reader that goes away, as `head` does when it has enough, ends a command quietly, however it prints."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.patience import patient

ROOT = Path(__file__).parents[4]
PRINTING = (
    *("--help", "--version", "", "schema", "schema score", "score sample", "score sample --format table"),
    *("transcript sample", "trials sample", "settings", "settings --toml"),
    *("simulate --print", "topics", "events --help", "run --help"),
)
FORK = """
import json, os, sys
from streamer.cli.app import loaded
from streamer.cli.main import main
for command in ("schema", "score", "transcript", "trials", "settings", "simulate", "topics"):
    loaded(command)
ends = {}
for line in json.loads(sys.argv[1]):
    reading, writing = os.pipe()
    os.close(reading)
    errors, said = os.pipe()
    child = os.fork()
    if not child:
        os.dup2(writing, 1)
        os.dup2(said, 2)
        sys.argv = ["callgauge", *line.split()]
        main()
        raise AssertionError("no exit")
    os.close(writing)
    os.close(said)
    with os.fdopen(errors) as heard:
        text = heard.read()
    ends[line] = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), text]
print(json.dumps(ends))
"""
"""Imports the commands once, and runs each line in a child that writes to a pipe without a reader."""


@pytest.fixture(scope="module")
def ends() -> dict[str, list[object]]:
    ended = subprocess.run(
        [sys.executable, "-c", FORK, json.dumps(PRINTING)],
        cwd=ROOT, capture_output=True, text=True, timeout=patient(60),
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    found: dict[str, list[object]] = json.loads(ended.stdout)
    return found


@pytest.mark.parametrize("line", PRINTING)
def test_a_command_without_a_reader_ends_quietly(ends: dict[str, list[object]], line: str) -> None:
    """A shell shows 141 for SIGPIPE."""
    assert ends[line] == [141, ""]
