"""The observer on the versions of pipecat that people run, each in an environment of its own, in
both ways of attaching it.
"""

import json
import os
import subprocess
import uuid
from typing import Final

import pytest

from schemas.closed_sets import Anchor
from schemas.rows import GoalsRow
from tests.integration.observed_calls import latencies_of, scored
from tests.support.calls.rows_of_calls import turns_of
from tests.support.environments import python_with
from tests.support.observers import PIPECAT, SEND
from tests.support.patience import patient
from tests.tidy.source_tree import ROOT

pytestmark = [pytest.mark.kafka, pytest.mark.long]

EXACT: Final = ("0.0.102", "1.0.0", "1.3.0", "1.9.0", "1.12.0", "1.14.0")
BARE: Final = "0.0.95"
"""Its detector does not say how long it waited."""
SETUP_FILE: Final = PIPECAT / "pipecat_callgauge/setup_file.py"
BOT: Final = ROOT / "tests/support/pipecat_bots/any_version.py"
# versions 1.0 to 1.3 do not import without the latter
BESIDE: Final = ("aiokafka>=0.14,<0.15", "websockets")
CLOSE_MS: Final = 1.0


def play(
    pipecat: str, call: str, environment: dict[str, str], *, by_setup_file: bool
) -> list[float]:
    """Plays a call on this version; pipecat's own latencies."""
    setup = (
        {"PIPECAT_SETUP_FILES": str(SETUP_FILE), "CALLGAUGE_AGENT": "any-version"}
        if by_setup_file
        else {}
    )
    ended = subprocess.run(
        [str(python_with("pipecat-ai", pipecat, *BESIDE)), "-W", "ignore", str(BOT), call],
        capture_output=True,
        text=True,
        timeout=patient(120),
        env={
            **os.environ,
            **environment,
            **setup,
            "PYTHONPATH": os.pathsep.join(map(str, (SEND, PIPECAT))),
        },
    )
    assert ended.returncode == 0, ended.stderr
    latencies: list[float] = json.loads(ended.stdout.splitlines()[-1])["latencies_ms"]
    return latencies


@pytest.mark.parametrize("by_setup_file", [False, True], ids=["argument", "setup file"])
@pytest.mark.parametrize("pipecat", EXACT)
async def test_latencies_are_pipecats_own(
    pipecat: str, environment: dict[str, str], *, by_setup_file: bool
) -> None:
    call = f"call-{uuid.uuid4().hex[:6]}"
    by_pipecat = play(pipecat, call, environment, by_setup_file=by_setup_file)
    assert len(by_pipecat) == 2
    rows = await scored(environment, call)
    latencies, anchors = latencies_of(rows)
    assert latencies == pytest.approx(by_pipecat, abs=patient(CLOSE_MS))
    assert anchors == {Anchor.VAD}
    turns = turns_of(rows)
    assert [
        (number, *turn.interruptions) for number, turn in turns.items() if turn.interruptions
    ] == [(2, "user")]
    assert [
        (number, use.tool, use.outcome) for number, turn in turns.items() for use in turn.tools
    ] == [(1, "find", "error")]
    assert {row.labels.agent for row in rows if not isinstance(row, GoalsRow)} == {"any-version"}


async def test_before_the_detector_told_its_delay_the_anchor_says_so(
    environment: dict[str, str],
) -> None:
    play(BARE, "bare", environment, by_setup_file=False)
    latencies, anchors = latencies_of(await scored(environment, "bare"))
    assert len(latencies) == 2
    assert anchors == {Anchor.TURN_RELEASE}
