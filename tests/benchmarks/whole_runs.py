"""The speed-up of `callgauge score` from one core to two, on a run of many calls."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from streamer.sources.simulator.traffic import simulate_call
from tests.benchmarks.figures import Figures, say

CALLS: Final = 600
"""About 8 s of work for one core; starting processes takes one of these seconds."""
ROUNDS: Final = 3
"""The best of several rounds, one way and the other in turn: other work on the machine disturbs
both alike.
"""


def measure_runs(figures: Figures, folder: Path) -> None:
    """Scores a file of simulated calls, start of the command included."""
    path = folder / "calls.jsonl"
    with path.open("w") as file:
        for seed in range(CALLS):
            call = simulate_call(seed, start_ms=1_790_000_000_000, kind="cascade").call
            streams = {"audit": call.audit, "pipecat": call.pipecat, "user_sim": call.elevenlabs}
            file.write(json.dumps({"id": f"c{seed}", **streams, "control": call.control}) + "\n")
    say(f"score of a run of {CALLS} simulated calls")
    seconds = {1: float("inf"), 2: float("inf")}
    printed: dict[int, bytes] = {}
    for _ in range(ROUNDS):
        for processes in seconds:
            took, printed[processes] = _scored(path, processes)
            seconds[processes] = min(seconds[processes], took)
    assert printed[1] == printed[2], "the same bytes"
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    figures.add("score_run_seconds", seconds[1], "in one process", "s")
    if cores < 2:
        figures.not_measured(
            "score_speed_up_ratio", "with two processes, times as fast", "this machine has one core"
        )
        return
    figures.add(
        "score_speed_up_ratio", seconds[1] / seconds[2], "with two processes, times as fast", "x"
    )


def _scored(path: Path, processes: int) -> tuple[float, bytes]:
    began = time.perf_counter()
    command = [
        sys.executable,
        "-m",
        "streamer.cli.main",
        "score",
        str(path),
        "--processes",
        str(processes),
    ]
    ended = subprocess.run(command, capture_output=True, check=True)
    return time.perf_counter() - began, ended.stdout
