"""The cost of the sequencer on a real Kafka: of an event of a backlog, and of one that comes live.

Processor time is that of its process, taken from the kernel.
"""

import time
from pathlib import Path
from typing import Final

from tests.benchmarks.evaluator_cost import (
    MOST_SECONDS,
    PARTITIONS,
    SEQUENCER,
    appended,
    backlog,
    create_topics,
)
from tests.benchmarks.figures import Figures, say
from tests.chaos.load.load import LoadProcess
from tests.integration.processes import Process, wait_for
from tests.support.brokers.backlog import put_backlog
from tests.support.sequencer_process import SequencerProcess, sequencer

LINES: Final = 870
"""So many calls at a time make about 1,750 events/s."""
RAMP_SECONDS: Final = 15.0
LIVE_SECONDS: Final = 20.0


def measure_sequencer(figures: Figures, bootstrap: str, folder: Path) -> None:
    """Measures both."""
    records = backlog()
    say(
        f"on Kafka, the sequencer: a backlog of {len(records):,} events, and live; {PARTITIONS} "
        "partitions"
    )
    prefix = "bench.log."
    create_topics(bootstrap, prefix)
    put_backlog(bootstrap, prefix, records)
    with sequencer(folder / "sequencer.log", bootstrap, prefix) as running:
        running.term()
        first, before, begin = (
            appended(bootstrap, prefix),
            _processor_seconds(running),
            time.monotonic(),
        )
        wait_for(
            "the backlog in the log",
            lambda: appended(bootstrap, prefix) >= len(records),
            MOST_SECONDS,
        )
        seconds, used = time.monotonic() - begin, _processor_seconds(running) - before
        events = len(records) - first
    assert events > len(records) / 2, f"{first} events were there at the first look"
    figures.add(SEQUENCER, used / events * 1e6, "sequencer, a backlog", "us/event", goal=10)
    figures.add(
        "sequencer_backlog_events_per_second",
        events / seconds,
        "the same, by the wall clock",
        "events/s",
    )
    _measure_live(figures, bootstrap, folder)


def _measure_live(figures: Figures, bootstrap: str, folder: Path) -> None:
    prefix = "bench.loglive."
    create_topics(bootstrap, prefix)
    with sequencer(folder / "live.log", bootstrap, prefix) as running:
        running.term()
        load = LoadProcess(
            bootstrap,
            prefix,
            partitions=PARTITIONS,
            lines=LINES,
            ramp_seconds=RAMP_SECONDS,
            seed=1,
            poison=(),
        )
        try:
            time.sleep(2 * RAMP_SECONDS)
            first, before, begin = (
                appended(bootstrap, prefix),
                _processor_seconds(running),
                time.monotonic(),
            )
            time.sleep(LIVE_SECONDS)
            events = appended(bootstrap, prefix) - first - 2 * PARTITIONS * LIVE_SECONDS
            seconds, used = time.monotonic() - begin, _processor_seconds(running) - before
        finally:
            load.stop()
    what = f"sequencer, live, {events / seconds:,.0f} events/s"
    figures.add("sequencer_us_per_event_live", used / events * 1e6, what, "us/event")
    figures.add(
        "sequencer_live_core_share", used / seconds, "the same, of one core", "cores", goal=0.08
    )


def _processor_seconds(running: SequencerProcess) -> float:
    return Process(running.popen, running.output).processor_seconds
