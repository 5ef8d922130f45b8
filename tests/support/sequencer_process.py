"""A sequencer in a process of its own, without other roles: it can be killed, and frozen. Settings
are JSON on the command line.
"""

import asyncio
import json
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from prometheus_client import CollectorRegistry

from consumers.runtime.kafka.connection import KafkaSettings
from consumers.runtime.process import tune_python
from consumers.runtime.registry import Instruments
from consumers.sequencer.service import Sequencer
from consumers.sequencer.settings import SequencerSettings
from tests.integration.processes import wait_for

ROOT = Path(__file__).parents[2]
STEP_SECONDS: Final = 0.05
"""From one look to the next."""


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
def sequencer(
    output: Path,
    bootstrap: str,
    prefix: str,
    *,
    behind: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Iterator[SequencerProcess]:
    """Starts one with a group by its prefix; it is killed at the end if it still runs.

    `behind` has the fields of `Behind`: an input that it reads later than the others.
    """
    kafka = {"bootstrap_servers": bootstrap, "topic_prefix": prefix, "client_id": prefix}
    settings = {"group_id": f"{prefix}sequencer", **settings}
    command = [
        sys.executable,
        "-m",
        "tests.support.sequencer_process",
        json.dumps(kafka),
        json.dumps(settings),
    ]
    if behind is not None:
        command.append(json.dumps(behind))
    with output.open("wb") as file:
        popen = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
        )
    try:
        yield SequencerProcess(popen, output)
    finally:
        popen.kill()
        popen.wait()


class Behind(NamedTuple):
    """An input that is read later than the others, while its leader goes on to tell where it ends:
    as behind a slow line.

    Attributes:
        topic: The input.
        seconds: For so long nothing of it is fetched; then all that is there, and so on.
    """

    topic: str
    seconds: float

    async def keep(self, sequencer: Sequencer, kafka: KafkaSettings) -> None:
        """Makes it so until it is cancelled."""
        topic = kafka.topic(self.topic)
        while True:
            readers = [
                shard.reader
                for shard in sequencer._shards
                if shard.reader is not None and shard.is_active
            ]
            late = [
                (reader, each)
                for reader in readers
                for each in reader.inputs.values()
                # a shard that has just begun has its inputs before its consumer has them
                if each.tp.topic == topic and each.tp in reader._consumer.assignment()
            ]
            for reader, each in late:
                reader._consumer.pause(each.tp)
            await asyncio.sleep(self.seconds if late else STEP_SECONDS)
            for reader, each in late:
                reader._consumer.resume(each.tp)
            # reading tells nobody
            while any(each.lag_messages for _, each in late):  # noqa: ASYNC110
                await asyncio.sleep(STEP_SECONDS)


async def _main(
    kafka: KafkaSettings, settings: SequencerSettings, behind: Behind | None = None
) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    instruments = Instruments(CollectorRegistry(), ["sequencer"])
    sequencer = Sequencer(kafka, settings, instruments)
    beside = [asyncio.create_task(_tell(sequencer))]
    if behind is not None:
        beside.append(asyncio.create_task(behind.keep(sequencer, kafka)))
        # without it the test would prove nothing
        beside[-1].add_done_callback(lambda _: stop.set())
    try:
        await sequencer.run(stop)
    finally:
        for task in beside:
            task.cancel()
        for ended in await asyncio.gather(*beside, return_exceptions=True):
            if isinstance(ended, Exception):
                traceback.print_exception(ended)


async def _tell(sequencer: Sequencer) -> None:
    """Says on standard output whenever the terms or the problems of the role change."""
    told: object = None
    while True:
        terms = [shard.term for shard in sequencer._shards if shard.is_active]
        now = terms, list(sequencer.problems())
        if now != told:
            told = now
            print(json.dumps({"terms": terms, "problems": now[1]}), flush=True)
        await asyncio.sleep(STEP_SECONDS)


if __name__ == "__main__":
    tune_python()
    given = [json.loads(each) for each in sys.argv[1:]]
    slow = Behind(**given[2]) if len(given) > 2 else None
    asyncio.run(_main(KafkaSettings(**given[0]), SequencerSettings(**given[1]), slow))
