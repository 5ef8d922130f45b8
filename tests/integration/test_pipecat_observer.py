"""Calls of real pipecat bots, through the observer and a real broker, scored by a real evaluator:
the numbers are pipecat's own.
"""

import json
import math
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from schemas.closed_sets import Anchor
from schemas.rows import CallRow, TurnRow
from tests.integration.metrics_page import total
from tests.integration.processes import Process, wait_for
from tests.integration.score_log import newest_rows, written_rows
from tests.support.observers import PYTHONPATH
from tests.support.patience import patient
from tests.tidy.source_tree import ROOT

pytestmark = pytest.mark.kafka

CALLS: Final = (
    "plain",
    "barge_in",
    "words_are_timed",
    "pauses",
    "tools",
    "goes_on",
    "eager",
    "no_detector",
    "over_greeting",
    "cancelled",
    "cough",
    "silent_caller",
)
APART_MS: Final = (
    pytest.param(math.inf, math.inf, id="as many"),
    pytest.param(1.0, 25.0, id="as long", marks=pytest.mark.long),
)
"""How far half of the latencies are from pipecat's own at most, and how far every one.

Both observers read the clock in tasks of their own, and one may have to wait for its turn: on a
busy machine for any time.
"""


@contextmanager
def bots(
    environment: dict[str, str], output: Path, *calls: str
) -> Iterator["subprocess.Popen[bytes]"]:
    """A process in which these bots run. Their errors are in a file beside the output."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.support.pipecat_bots", *calls]
    with (
        output.open("wb") as file,
        output.with_suffix(".err").open("wb") as errors,
        subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **environment, "PYTHONPATH": PYTHONPATH},
            stdout=file,
            stderr=errors,
        ) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.service(limits__closing_grace_ms="1500")
@pytest.mark.parametrize(("close_ms", "near_ms"), APART_MS)
async def test_latencies_interruptions_and_tools_are_those_of_pipecat(
    service: tuple[Process, str],
    environment: dict[str, str],
    tmp_path: Path,
    close_ms: float,
    near_ms: float,
) -> None:
    _, address = service
    output = tmp_path / "bots.json"
    with bots(environment, output, *CALLS) as process:
        assert process.wait(patient(60)) == 0, output.with_suffix(".err").read_text()[-2_000:]
    wait_for(
        "the calls to close",
        lambda: total(address, "callgauge_calls_ended_total") == len(CALLS),
        30,
    )
    assert total(address, "callgauge_quarantined_total") == 0
    assert total(address, "callgauge_events_total", outcome="unknown") == 0
    by_pipecat = {
        name: call["latencies_ms"] for name, call in json.loads(output.read_text()).items()
    }
    rows = newest_rows(await written_rows(environment))
    turns = sorted((row for row in rows if isinstance(row, TurnRow)), key=lambda row: row.turn)
    latencies: dict[str, list[tuple[float, Anchor | None]]] = {name: [] for name in CALLS}
    for turn in turns:
        if isinstance(turn.wait_ms, float):
            latencies[turn.conversation_id].append((turn.wait_ms, turn.anchor))
    apart_ms = []
    for name in set(CALLS) - {"no_detector"}:
        ours_ms = [ms for ms, _ in latencies[name]]
        assert ours_ms == pytest.approx(by_pipecat[name], abs=near_ms), name
        apart_ms += [abs(ours - its) for ours, its in zip(ours_ms, by_pipecat[name], strict=True)]
        assert {anchor for _, anchor in latencies[name]} <= {Anchor.VAD}
    assert statistics.median(apart_ms) <= close_ms
    # pipecat measures nothing without a detector.
    assert by_pipecat["no_detector"] == []
    assert [anchor for _, anchor in latencies["no_detector"]] == [Anchor.TURN_RELEASE] * 2

    cut = {(turn.conversation_id, turn.turn, by) for turn in turns for by in turn.interruptions}
    assert cut == {
        ("barge_in", 2, "user"),
        ("words_are_timed", 2, "user"),
        ("over_greeting", 1, "user"),
    }
    tools = [(turn.turn, use.tool, use.outcome) for turn in turns for use in turn.tools]
    assert sorted(tools) == [
        (1, "find_visit", "success"),
        (2, "cancel_visit", "error"),
        (2, "find_visit", "success"),
        (3, "count_visitors", "unanswered"),
    ]
    reasons = {
        row.conversation_id: (row.close_reason, row.ended_reason)
        for row in rows
        if isinstance(row, CallRow)
    }
    assert (reasons["plain"], reasons["cancelled"]) == (("ended", "ended"), ("ended", "cancelled"))


@pytest.mark.service(limits__idle_ms="4000")
async def test_a_bot_that_is_killed_leaves_a_call_that_closes_by_silence(
    service: tuple[Process, str], environment: dict[str, str], tmp_path: Path
) -> None:
    _, address = service
    with bots(environment, tmp_path / "bots.json", "plain") as process:
        wait_for("events of the call", lambda: total(address, "callgauge_events_total") > 10, 30)
        process.send_signal(signal.SIGKILL)
        process.wait()
    wait_for(
        "the call to close",
        lambda: total(address, "callgauge_calls_ended_total", outcome="idle") == 1,
        30,
    )
