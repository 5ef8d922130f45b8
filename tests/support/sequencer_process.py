"""A sequencer in a process of its own, without other roles: it can be killed, and frozen. Settings are JSON on the command line."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from consumers.runtime.kafka.connection import KafkaSettings
from consumers.runtime.process import tune_python
from consumers.runtime.registry import Instruments
from consumers.sequencer.service import Sequencer
from consumers.sequencer.settings import SequencerSettings
from tests.integration.processes import wait_for

ROOT = Path(__file__).parents[2]


class SequencerProcess:
    """A running sequencer, and what it has said last."""

    def __init__(self, popen: "subprocess.Popen[bytes]", output: Path) -> None:
        self.popen = popen
        self.output = output

    @property
    def text(self) -> str:
        """Its output so far."""
        return self.output.read_text()

    @property
    def said(self) -> dict[str, Any]:
        """Its terms and problems now."""
        assert self.popen.poll() is None, self.text
        lines = [line for line in self.text.splitlines() if line.startswith("{")]
        return dict(json.loads(lines[-1])) if lines else {"terms": [], "problems": ["starting"]}

    @property
    def is_active(self) -> bool:
        return bool(self.said["terms"]) and not self.said["problems"]

    @property
    def stands_by(self) -> bool:
        return not self.said["terms"] and not self.said["problems"]

    def until_it_stands_by(self, seconds: float = 40) -> None:
        """Waits until it is a member of its group and active in nothing."""
        wait_for(lambda: f"a standby in:\n{self.text}", lambda: self.stands_by, seconds)

    def term(self, seconds: float = 40) -> int:
        """Waits until it is active; returns its term."""
        wait_for(lambda: f"a term in:\n{self.text}", lambda: self.is_active, seconds)
        return int(self.said["terms"][0])


@contextmanager
def sequencer(output: Path, bootstrap: str, prefix: str, **settings: Any) -> Iterator[SequencerProcess]:
    """Starts one with a group by its prefix; it is killed at the end if it still runs."""
    kafka = {"bootstrap_servers": bootstrap, "topic_prefix": prefix, "client_id": prefix}
    settings = {"group_id": f"{prefix}sequencer", **settings}
    command = [sys.executable, "-m", "tests.support.sequencer_process", json.dumps(kafka), json.dumps(settings)]
    with output.open("wb") as file:
        popen = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)
    try:
        yield SequencerProcess(popen, output)
    finally:
        popen.kill()
        popen.wait()


async def _main(kafka: KafkaSettings, settings: SequencerSettings) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    instruments = Instruments(CollectorRegistry(), ["sequencer"])
    sequencer = Sequencer(kafka, settings, instruments)
    watching = asyncio.create_task(_tell(sequencer))
    try:
        await sequencer.run(stop)
    finally:
        watching.cancel()


async def _tell(sequencer: Sequencer) -> None:
    """Says on standard output whenever the terms or the problems of the role change."""
    told: object = None
    while True:
        terms = [shard.term for shard in sequencer._shards if shard.is_active]
        now = terms, list(sequencer.problems())
        if now != told:
            told = now
            print(json.dumps({"terms": terms, "problems": now[1]}), flush=True)
        await asyncio.sleep(0.05)


if __name__ == "__main__":
    tune_python()
    asyncio.run(_main(KafkaSettings(**json.loads(sys.argv[1])), SequencerSettings(**json.loads(sys.argv[2]))))
