"""A command loads the libraries that it needs and no more: loading them is most of the time to its
first answer.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from streamer.cli.app import COMMANDS
from tests.support.patience import patient

ROOT = Path(__file__).parents[4]
LIBRARIES = (
    *(
        "aiokafka",
        "confluent_kafka",
        "faststream",
        "httpx2",
        "jaconv",
        "jinja2",
        "jiwer",
        "openai",
        "phonenumbers",
    ),
    *(
        "prometheus_client",
        "pydantic",
        "starlette",
        "stdnum",
        "structlog",
        "uvicorn",
        "whisper_normalizer",
        "yaml",
    ),
)
FOR_ALL_COMMANDS = {
    *("consumers.runtime", "consumers.runtime.process", "consumers.runtime.visible"),
    *("streamer.facts", "streamer.terminal"),
    *("streamer.cli", "streamer.cli.app", "streamer.cli.main", "streamer.cli.options"),
}
FOR_ONE_COMMAND = {
    "quarantine": {"schemas.closed_sets"},
    "run": {"schemas.closed_sets"},
    "top": {"schemas.closed_sets"},
    "simulate": {
        "streamer.sources",
        "streamer.sources.simulator",
        "streamer.sources.simulator.profile",
    },
}
"""Words and bounds that the help of these commands shows."""
KAFKA = ("aiokafka", "confluent_kafka", "faststream")
PROGRAM = """
import json, sys
{work}
print(json.dumps(sorted(name for name in sys.modules)))
"""
RUN_A_COMMAND = """
from streamer.cli.main import main
sys.argv = {arguments!r}
try:
    main()
except SystemExit as ended:
    assert not ended.code, ended.code
print()
"""
MAKE_ROLES = """
import asyncio
from streamer.cli import run
from streamer.roles.running import Service
from streamer.settings.all_settings import Settings

async def make():
    settings = Settings(ingest={{"token": "t"}}, monitor={{"api_key": "k"}})
    Service(settings, settings.kafka, {roles!r})

asyncio.run(make())
"""


def loaded(work: str) -> set[str]:
    """The modules that a fresh process has loaded after the work."""
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM.format(work=work)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=patient(30))
    assert ended.returncode == 0, ended.stderr
    return set(json.loads(ended.stdout.splitlines()[-1]))


def after(*arguments: str) -> set[str]:
    return loaded(RUN_A_COMMAND.format(arguments=["callgauge", *arguments]))


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_the_list_of_commands_needs_none_of_the_libraries(option: str) -> None:
    modules = after(option)
    assert {"streamer.cli.main", "streamer.cli.app", "typer"} <= modules
    assert modules & set(LIBRARIES) == set()
    assert {name for name in modules if name.startswith(("consumers.", "schemas."))} == {
        "consumers.runtime",
        "consumers.runtime.process",
    }


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_loads_nothing_of_its_work(command: str) -> None:
    modules = after(command, "--help")
    assert modules & set(LIBRARIES) <= {"pydantic"}  # typer's own
    ours = {name for name in modules if name.startswith(("consumers.", "schemas.", "streamer."))}
    assert ours - FOR_ALL_COMMANDS - FOR_ONE_COMMAND.get(command, set()) == {
        f"streamer.cli.{command.replace('-', '_')}"
    }


@pytest.mark.parametrize(
    ("command", "unneeded"),
    [
        (["schema", "turn-row"], {*LIBRARIES} - {"pydantic"}),
        (["settings"], {*LIBRARIES} - {"pydantic"}),
        (
            ["context", "sample"],
            {*KAFKA, "jinja2", "openai", "prometheus_client", "starlette", "structlog", "uvicorn"},
        ),
        (["goals", "check", "streamer/roles/demo_goals"], {*LIBRARIES} - {"pydantic", "yaml"}),
        (["score", "sample"], {*KAFKA, "jaconv", "jinja2", "openai", "structlog"}),
        (
            ["score", "sample", "--format", "table"],
            {*KAFKA, "jaconv", "jinja2", "openai", "structlog", "streamer.trials.comparison"},
        ),
    ],
)
def test_a_command_loads_no_library_that_it_does_not_use(
    command: list[str], unneeded: set[str]
) -> None:
    assert after(*command) & unneeded == set()


@pytest.mark.parametrize(
    ("roles", "unneeded"),
    [
        (
            ["exporter"],
            {
                *("openai", "jiwer", "whisper_normalizer", "yaml", "schemas.events.codec"),
                *("consumers.evaluator.service", "consumers.judge.service"),
            },
        ),
        (
            ["sequencer"],
            {
                *("openai", "jiwer", "whisper_normalizer", "yaml", "consumers.engine.evaluator"),
                *(
                    "consumers.evaluator.service",
                    "consumers.exporter.service",
                    "consumers.judge.service",
                ),
            },
        ),
        (["evaluator"], {"openai", "consumers.exporter.service", "consumers.judge.service"}),
        (
            ["judge"],
            {
                *("jiwer", "whisper_normalizer", "yaml", "schemas.events.codec"),
                *("consumers.evaluator.service", "consumers.exporter.service"),
            },
        ),
        (
            ["ingest"],
            {
                "openai",
                "jiwer",
                "whisper_normalizer",
                "yaml",
                "websockets",
                "consumers.evaluator.service",
            },
        ),
        (
            ["monitor"],
            {"openai", "jiwer", "whisper_normalizer", "yaml", "consumers.evaluator.service"},
        ),
    ],
)
def test_a_role_loads_nothing_of_the_others(roles: list[str], unneeded: set[str]) -> None:
    modules = loaded(MAKE_ROLES.format(roles=roles))
    assert modules & unneeded == set()
    service = {
        "evaluator": "streamer.roles.evaluator_role",
        "ingest": "streamer.sources.http.role",
        "monitor": "streamer.sources.monitor",
    }.get(roles[0], f"consumers.{roles[0]}.service")
    assert service in modules
