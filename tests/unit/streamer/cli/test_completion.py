"""Shells complete commands and options, and the list of commands loads nothing of the engine."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from streamer.cli.app import COMMANDS
from tests.support.patience import patient

ROOT = Path(__file__).parents[4]
ASK = """
import json, sys
from streamer.cli.main import main
try:
    main()
except SystemExit as ended:
    assert not ended.code, ended.code
sys.stderr.write(json.dumps(sorted(sys.modules)))
"""


def completed(shell: str, words: str) -> tuple[str, set[str]]:
    """Returns the completions of a line with an unfinished last word, and the modules that were loaded."""
    asked = {"_CALLGAUGE_COMPLETE": f"complete_{shell}", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    others = {"_TYPER_COMPLETE_ARGS": words, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    ended = subprocess.run(
        [sys.executable, "-c", ASK], cwd=ROOT, env={**os.environ, **asked, **others}, capture_output=True, text=True,
        timeout=patient(30),
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return ended.stdout, set(json.loads(ended.stderr))


def test_bash_completes_commands_without_loading_them() -> None:
    answer, modules = completed("bash", "callgauge ")
    assert answer.split() == list(COMMANDS)
    assert modules & {"aiokafka", "consumers.engine", "faststream", "schemas.topics", "structlog"} == set()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("callgauge sc", ["score", "schema"]),
        ("callgauge topics c", ["create", "check"]),
        ("callgauge quarantine list --js", ["--json"]),
        ("callgauge context --arr", ["--arrival"]),
        ("callgauge nothing", []),
    ],
)
def test_bash_completes_subcommands_and_options(words: str, expected: list[str]) -> None:
    assert completed("bash", words)[0].split() == expected


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_show_a_summary_beside_the_command(shell: str) -> None:
    answer, _ = completed(shell, "callgauge sche")
    assert "schema" in answer
    assert "Prints the JSON Schema" in answer


def test_the_script_for_a_shell_is_printed() -> None:
    command = f"{sys.executable} -c 'from streamer.cli.main import main; main()' --show-completion; exit $?"
    ended = subprocess.run(  # the script is for the shell that starts the command
        ["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=patient(30)
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "complete -o default -F _callgauge_completion callgauge" in ended.stdout
