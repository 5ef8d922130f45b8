"""The cost of the observer to a bot: processor time of a frame, and bytes of a minute of a call."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from tests.benchmarks.figures import Figures, say
from tests.support.observers import PYTHONPATH
from tests.tidy.source_tree import ROOT

BOTS: Final = 200
ROUNDS: Final = 3
CALLS: Final = ("plain", "barge_in", "words_are_timed", "tools")
HEADER_BYTES: Final = 160
"""Size of the six headers of a record, with their names."""


def _run(module: str, *options: str, **environment: str) -> dict[str, Any]:
    """Runs a program of the test bots; returns its printed figures."""
    command = [sys.executable, "-W", "ignore", "-m", f"tests.support.{module}", *options]
    ended = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": PYTHONPATH, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    printed: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return printed


def measure_observer(figures: Figures, bootstrap: str, folder: Path) -> None:
    """Measures the same frames with and without the observer, in turns, and the events of a few
    calls.
    """
    say(f"observer in pipecat bots, {BOTS} in one process and one producer")
    environment = {"CALLGAUGE_BOOTSTRAP": bootstrap, "CALLGAUGE_TOPIC_PREFIX": "bench-observer."}
    bots = ("pipecat_bots.fleet", "--bots", str(BOTS), "--turns", "1")
    without, bare, observed, shares = [], [], [], []
    for round_number in range(ROUNDS):
        without.append(_run(*bots)["us_per_frame"])
        bare.append(_run(*bots, "--bare")["us_per_frame"])
        observed.append(
            _run(*bots, "--observed", "--name", f"r{round_number}", **environment)["us_per_frame"]
        )
        shares.append(
            _run(*bots, "--observed", "--shares", "--name", f"s{round_number}", **environment)
        )
    unobserved = min(without)
    figures.add(
        "pipecat_us_per_frame", unobserved, "a frame through six processors, unobserved", "us/frame"
    )
    figures.add(
        "bare_observer_us_per_frame",
        min(bare) - unobserved,
        "more, an observer that does nothing",
        "us/frame",
    )
    figures.add(
        "observer_us_per_frame",
        min(observed) - unobserved,
        "more, the observer, to Kafka",
        "us/frame",
        goal=20,
    )
    figures.add(
        "observer_hooks_us_per_frame", _hooks_us(), "our hooks alone, without pipecat", "us/frame"
    )
    # A difference of two runs has the noise of both, and most of it is pipecat's own work for any
    # observer. Samples of one run show our own part: our functions and all that they call.
    best = min(shares, key=lambda each: each["hooks_us"] + each["sending_us"])
    own = best["hooks_us"] + best["sending_us"]
    figures.add(
        "sampled_hooks_us_per_frame", best["hooks_us"], "by samples: in our hooks", "us/frame"
    )
    figures.add(
        "sampled_sending_us_per_frame", best["sending_us"], "by samples: in sending", "us/frame"
    )
    figures.add(
        "sampled_own_us_per_frame",
        own,
        "by samples: both, which is what is ours",
        "us/frame",
        goal=20,
    )
    figures.add(
        "sampled_hand_over_us_per_frame",
        best["hand_over_us"],
        "by samples: in pipecat's hand-over",
        "us/frame",
    )
    with tempfile.TemporaryDirectory(dir=folder) as events:
        _run("pipecat_bots", *CALLS, "--folder", events)
        sizes = [
            [len(line) for line in file.read_bytes().splitlines()]
            for file in Path(events).iterdir()
        ]
        seconds = sum(_seconds(file) for file in Path(events).iterdir())
    minutes = seconds / 60
    number = sum(map(len, sizes))
    figures.add(
        "observer_events_per_call_minute",
        number / minutes,
        "events of a minute of a call",
        "events",
    )
    size = sum(map(sum, sizes)) + HEADER_BYTES * number
    figures.add(
        "observer_bytes_per_call_minute",
        size / minutes,
        "bytes of a minute of a call, headers included",
        "bytes",
    )


def _seconds(file: Path) -> float:
    times: list[int] = [json.loads(line)["timestamp"] for line in file.read_text().splitlines()]
    return (times[-1] - times[0]) / 1000


def _hooks_us() -> float:
    """Our hooks alone, called as the worker calls them: every step of a frame, and its
    first push.
    """
    return float(_run("pipecat_bots.hooks_cost")["us_per_frame"])
