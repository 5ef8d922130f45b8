"""A sequencer in a process of its own, without other roles: it can be killed, and frozen. Settings are JSON on the command line."""

import asyncio
import json
import os
import signal
import sys

from prometheus_client import CollectorRegistry

from consumers.runtime.kafka.connection import KafkaSettings
from consumers.runtime.process import tune_python
from consumers.runtime.registry import Instruments
from consumers.sequencer.service import Sequencer
from consumers.sequencer.settings import SequencerSettings


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
    """Says on standard output whenever the terms or the problems of the role change, with the processor time so far."""
    told: object = None
    while True:
        terms = [shard.term for shard in sequencer._shards if shard.is_active]
        now = terms, list(sequencer.problems())
        if now != told:
            told = now
            print(json.dumps({"terms": terms, "problems": now[1], "pid": os.getpid()}), flush=True)
        await asyncio.sleep(0.05)


if __name__ == "__main__":
    tune_python()
    asyncio.run(_main(KafkaSettings(**json.loads(sys.argv[1])), SequencerSettings(**json.loads(sys.argv[2]))))
