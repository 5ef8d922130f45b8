"""Each block of README, docs/ and deploy/ does what its page says: pasted as it is, page by page,
in the order of the page.

Each page has a checkout of its own, and a network in which every port is free. A program that runs
until Ctrl-C gets it when the next one starts, or at the end of the page; a broker at the end of the
page.
"""

import json
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest
import yaml

from tests.integration.processes import wait_for
from tests.support import required_tools
from tests.support.brokers import kafka_broker
from tests.support.own_network import OwnNetwork, own_network
from tests.support.pages import PAGES, ROOT, Block, blocks_of
from tests.support.patience import patient

BIN: Final = Path(sys.executable).parent
SECRETS: Final = {"elevenlabs-webhook": "wsec_test"}
BROKER: Final = "make kafka PORT=9092"
NEED_A_BROKER: Final = (
    "docs/console.md",
    "docs/history.md",
    "docs/alerts.md",
    "docs/sources/kafka.md",
)
"""Pages whose reader has one; README starts its own."""
HAVE_READ: Final = {"docs/questions.md": "docs/events.md", "docs/serve.md": "docs/alerts.md"}
"""The page whose files the reader of a page has saved already."""
PROMETHEUS: Final = "prometheus --config.file=prometheus.yml"
ALERTMANAGER: Final = (
    "prometheus-alertmanager --config.file=alertmanager.yml --cluster.listen-address="
)

RUN_ALREADY: Final = ("docs/alerts.md",)
"""Pages whose reader has topics and `callgauge run`."""

RUN_UNTIL_STOPPED: Final = {
    "make serve": "curl -sf localhost:8070/readyz",
    "make demo": (
        "curl -sf localhost:8080/metrics | grep -q ^callgauge_turn_response_latency_seconds_count"
    ),
    BROKER: "grep -q 127.0.0.1:9092 $OUTPUT",
    PROMETHEUS: "curl -sf localhost:9090/-/ready",
    ALERTMANAGER: "curl -sf localhost:9093/-/ready",
    "callgauge serve": "curl -sf localhost:8070/readyz",
    "callgauge serve --folder calls": "curl -sf localhost:8070/readyz",
    "callgauge run": "curl -sf localhost:8080/readyz",
    "callgauge run --roles console": "curl -sf localhost:8070/api/v1/calls",
}
"""Programs that run until Ctrl-C, by how their line ends, and the command that succeeds once they
work.
"""

BESIDE: Final = {BROKER, PROMETHEUS, ALERTMANAGER}
"""Those of them that go on when another one starts, because nothing else has their ports."""

NOT_RUN: Final = {
    "README.md: make test": "this is a part of it",
    ("README.md: pip install ./streamer/observers/send ./streamer/observers/p"): (
        "tests/integration/test_pipecat_versions.py runs it in each version of pipecat"
    ),
    ("docs/sources/twilio.md: pip install ./streamer/observers/send"): (
        "tests/integration/test_livekit_observer.py installs it, test_source_pages.py runs the "
        "program of the page"
    ),
    ("docs/sources/livekit.md: pip install ./streamer/observers/send ./streamer/observers/l"): (
        "tests/integration/test_livekit_observer.py has an environment with LiveKit"
    ),
    ("docs/sources/livekit.md: from callgauge_livekit import attach"): (
        "needs an agent: tests/integration/test_livekit_observer.py"
    ),
    ("docs/mcp.md: pip install 'PATH_OF_THE_CHECKOUT[mcp]'"): (
        "names a place of the reader's; tests/integration/test_mcp.py has the rest"
    ),
    ("docs/sources/otlp.md: pip install 'PATH_OF_THE_CHECKOUT[otlp]'"): (
        "names a place of the reader's; tests/integration/test_otlp.py has the rest"
    ),
    ("docs/python.md: from openai import OpenAI"): (
        "needs a key: tests/unit/streamer/test_notebook.py asks other judges"
    ),
    (
        "docs/sources/agent-inspect.md: callgauge score traces.jsonl "
        "--format agent-inspect --judge "
    ): ("needs a judge with a key: tests/unit/streamer/agent_inspect"),
    ("docs/goals.md: callgauge trials calls.jsonl --causes --judge on --verdicts "): (
        "needs a judge with a key: tests/unit/streamer/cli/test_trial_causes.py"
    ),
    ("docs/sources/elevenlabs.md: CALLGAUGE_MONITOR__API_KEY=file:/run/secrets/elevenlabs-api-"): (
        "needs ElevenLabs: tests/integration/test_monitor.py"
    ),
    ("docs/history.md: import pandas as pd"): (
        "needs calls of some days: tests/unit/streamer/test_notebook.py"
    ),
    ('docs/history.md: CALLGAUGE_HISTORY__CLICKHOUSE_URL="http://clickhouse:8123/?d'): (
        "needs ClickHouse: tests/unit/history/test_answers.py"
    ),
    ('docs/history.md: clickhouse-client --query "CREATE DATABASE callgauge"'): (
        "needs ClickHouse: tests/unit/history/test_answers.py"
    ),
    ("docs/history.md: callgauge history import output/my-run --folder history --go"): (
        "needs a run of EVA: tests/unit/streamer/history"
    ),
    ("docs/serve.md: docker run -it --rm --volume callgauge:/data --publish 127.0"): (
        "needs Docker: tests/deploy/test_image.py"
    ),
    ("docs/sources/eva.md: callgauge replay output/my-run --folder calls"): (
        "needs a run of EVA: tests/integration/test_routes.py"
    ),
    ("docs/sources/eva.md: callgauge serve --folder calls              # terminal 1"): (
        "needs a run of EVA: tests/integration/test_watch.py"
    ),
    ("docs/sources/eva.md: callgauge score output/my-run > scores.jsonl"): (
        "needs a run of EVA: tests/conformance"
    ),
    ('deploy/security.md: acls="kafka-acls.sh --bootstrap-server kafka-0.example.com:9'): (
        "needs a secured cluster: tests/integration/test_security.py gives the same rights"
    ),
}
"""Blocks that no test can paste, and which test has the same."""

SHELL: Final = ("sh", "")


class Reader:
    """Someone who pastes the blocks of one page."""

    def __init__(self, folder: Path, network: OwnNetwork, ended: ExitStack) -> None:
        """Makes a checkout: links to everything in ours, so that new files do not get into it."""
        self._folder = folder / "callgauge"
        self._folder.mkdir()
        for entry in ROOT.iterdir():
            (self._folder / entry.name).symlink_to(entry)
        self._outputs = folder
        self._network = network
        self._ended = ended
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._environment = {
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "CALLGAUGE_LOG_FORMAT": "console",
            "COLUMNS": "200",
            "XDG_DATA_HOME": str(folder / "data"),
        }

    def paste(self, block: Block) -> None:
        """Follows the page's instructions about a block."""
        if block.saved_as:
            (self._folder / block.saved_as).write_text(block.text)
        elif block.language in SHELL:
            self._run(block, block.text)
        elif block.language == "python":
            self._end(self._start(block, ["python", "-c", block.text]), block)

    def run(self, command: str) -> None:
        """Runs the processes that the reader of a page has running already."""
        self._run(Block("before the page", 0, "sh", command, ""), command)

    def close(self) -> None:
        """Ctrl-C in every terminal."""
        for command in reversed([*self._running]):
            self._stop(command)

    def _run(self, block: Block, text: str) -> None:
        program = next((each for each in RUN_UNTIL_STOPPED if text.rstrip().endswith(each)), None)
        if program is None:
            self._end(self._start(block, ["bash", "-eo", "pipefail", "-c", text]), block)
            return
        if program not in BESIDE:
            for other in self._running.keys() - BESIDE:  # they have the same ports
                self._stop(other)
        process = self._running[program] = self._start(block, ["bash", "-ec", text])

        def works() -> bool:
            assert process.poll() is None, self._output(block)
            look = ["env", f"OUTPUT={self._file(block)}", "bash", "-c", RUN_UNTIL_STOPPED[program]]
            return (
                self._network.started(
                    look, self._folder, Path(os.devnull), self._environment
                ).wait()
                == 0
            )

        wait_for(lambda: f"{block.name} to work:\n{self._output(block)}", works, 60)

    def _start(self, block: Block, command: list[str]) -> "subprocess.Popen[bytes]":
        process = self._network.started(command, self._folder, self._file(block), self._environment)
        self._ended.callback(_killed, process)
        return process

    def _end(self, process: "subprocess.Popen[bytes]", block: Block) -> None:
        code = process.wait(patient(60))
        assert code == 0, (
            f"{block.page}:{block.line} ends with {code}:\n{block.text}\n{self._output(block)}"
        )

    def _stop(self, program: str) -> None:
        process = self._running.pop(program)
        os.killpg(process.pid, signal.SIGINT)
        process.wait(patient(30))

    def _file(self, block: Block) -> Path:
        return self._outputs / f"{block.line}.txt"

    def _output(self, block: Block) -> str:
        return self._file(block).read_text(errors="replace")


def _killed(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _pasted(page: str) -> list[Block]:
    return [
        block
        for block in blocks_of(page)
        if block.name not in NOT_RUN and (block.saved_as or block.language in {*SHELL, "python"})
    ]


def _fetch_kafka() -> None:
    """Fetches Kafka unless it is here, because a network of one's own reaches nothing."""
    missing = required_tools.provide(required_tools.JAVA, required_tools.MAVEN)
    if missing:
        pytest.skip(f"{required_tools.MISSING}{required_tools.names(missing)}")
    kafka_broker.kafka_jars()


@pytest.mark.parametrize("page", [page for page in PAGES if _pasted(page)])
def test_the_blocks_of_a_page_run_as_they_are(page: str, tmp_path: Path) -> None:
    required_tools.require_tool("curl", "Debian and Ubuntu: apt-get install curl")
    if page in NEED_A_BROKER or any(BROKER in block.text for block in _pasted(page)):
        _fetch_kafka()
    if page == "docs/serve.md":
        for program in ("prometheus", "prometheus-alertmanager"):
            required_tools.require_tool(program, f"apt-get install {program}")
    with own_network(SECRETS) as network, ExitStack() as ended:
        reader = Reader(tmp_path, network, ended)
        if page in NEED_A_BROKER:
            reader.run(BROKER)
        if page in RUN_ALREADY:
            for command in ("callgauge topics create", "callgauge run"):
                reader.run(command)
        saved = [block for block in blocks_of(HAVE_READ.get(page, page)) if block.saved_as]
        for block in [*saved, *_pasted(page)]:
            reader.paste(block)
        reader.close()


def _all_blocks() -> Iterator[Block]:
    for page in PAGES:
        yield from blocks_of(page)


def test_every_block_that_is_not_run_is_still_there_and_has_a_reason() -> None:
    assert {*NOT_RUN} <= {block.name for block in _all_blocks()}
    assert all(len(reason) > 15 for reason in NOT_RUN.values())


def test_every_block_is_of_a_language_that_is_checked() -> None:
    assert {block.language for block in _all_blocks()} == {"sh", "json", "yaml", "toml", "python"}


def test_every_block_of_data_can_be_read() -> None:
    for block in _all_blocks():
        match block.language:
            case "json":
                _json_values(block.text)
            case "yaml":
                assert yaml.safe_load(block.text)
            case "toml":
                assert tomllib.loads(block.text)
            case "python":
                compile(block.text, block.name, "exec")


def _json_values(text: str) -> None:
    try:
        json.loads(text)
    except ValueError:
        for line in text.splitlines():
            json.loads(line)
