"""The observer on the versions of pipecat that people run, each in an environment of its own, in both ways of attaching it."""

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any, Final

import pytest

from consumers.engine.admission import Arrival, admit
from consumers.engine.evaluator import PartitionEvaluator
from consumers.engine.limits import Limits
from schemas.closed_sets import Anchor, InputSource
from schemas.scores.live_view import newest_scores
from schemas.scores.records import AnyScoreRecord, InterruptionFact, Scored, ToolUseFact, VoiceToVoiceLatency
from tests.integration.score_log import records_on
from tests.support.fakes.engine_feed import records_of
from tests.support.observers import PIPECAT, SEND
from tests.support.patience import patient
from tests.support.required_tools import CACHE, MISSING
from tests.tidy.source_tree import ROOT

pytestmark = [pytest.mark.kafka, pytest.mark.long]

EXACT: Final = ("0.0.102", "1.0.0", "1.3.0", "1.9.0", "1.12.0", "1.14.0")
BARE: Final = "0.0.95"
"""Its detector does not say how long it waited."""
SETUP_FILE: Final = PIPECAT / "pipecat_callgauge/setup_file.py"
BOT: Final = ROOT / "tests/support/pipecat_bots/any_version.py"
INSTALL_SECONDS: Final = 300
CLOSE_MS: Final = 1.0


def python_with(pipecat: str) -> Path:
    """The Python of an environment with this version, made once. Versions 1.0 to 1.3 do not import without `websockets`."""
    folder = Path(os.environ.get("CALLGAUGE_TEST_PIPECATS", CACHE / "pipecat")) / pipecat
    python, is_complete = folder / "bin/python", folder / "complete"
    if not is_complete.exists():
        uv = str(Path(sys.executable).with_name("uv"))
        wanted = [f"pipecat-ai=={pipecat}", "aiokafka>=0.14,<0.15", "websockets"]
        subprocess.run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)], check=True)
        install = [uv, "pip", "install", "--quiet", "--python", str(python), *wanted]
        if subprocess.run(install, timeout=patient(INSTALL_SECONDS)).returncode != 0:
            pytest.skip(f"{MISSING}pipecat-ai=={pipecat} (from a package index)")
        is_complete.touch()
    return python


def play(pipecat: str, call: str, environment: dict[str, str], *, by_setup_file: bool) -> list[float]:
    """Plays a call on this version; pipecat's own latencies."""
    setup = {"PIPECAT_SETUP_FILES": str(SETUP_FILE), "CALLGAUGE_AGENT": "any-version"} if by_setup_file else {}
    ended = subprocess.run(
        [str(python_with(pipecat)), "-W", "ignore", str(BOT), call], capture_output=True, text=True, timeout=patient(120),
        env={**os.environ, **environment, **setup, "PYTHONPATH": os.pathsep.join(map(str, (SEND, PIPECAT)))},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    latencies: list[float] = json.loads(ended.stdout.splitlines()[-1])["latencies_ms"]
    return latencies


async def scored(environment: dict[str, str], call: str) -> list[AnyScoreRecord]:
    """The newest scores of a call, whose events are on the topic."""
    evaluator = PartitionEvaluator(Limits(), "test")
    records: list[AnyScoreRecord] = []
    at_ms = 0
    for record in await records_on(environment, "pipecat.events"):
        arrival: Any = admit(InputSource.PIPECAT, record, Limits())
        assert isinstance(arrival, Arrival), arrival
        if arrival.conversation_id == call:
            at_ms = record.timestamp
            records += records_of(evaluator.receive(arrival))
    records += records_of(evaluator.advance(at_ms + 3_600_000))
    return list(newest_scores(records).values())


def values_of(records: list[AnyScoreRecord]) -> tuple[list[float], set[Anchor | None]]:
    latencies = sorted((r for r in records if isinstance(r, VoiceToVoiceLatency)), key=lambda each: each.turn or 0)
    values = [each.result.value for each in latencies if isinstance(each.result, Scored)]
    return values, {each.anchor for each in latencies}


@pytest.mark.parametrize("by_setup_file", [False, True], ids=["argument", "setup file"])
@pytest.mark.parametrize("pipecat", EXACT)
async def test_latencies_are_pipecats_own(pipecat: str, environment: dict[str, str], *, by_setup_file: bool) -> None:
    call = f"call-{uuid.uuid4().hex[:6]}"
    by_pipecat = play(pipecat, call, environment, by_setup_file=by_setup_file)
    assert len(by_pipecat) == 2
    records = await scored(environment, call)
    latencies, anchors = values_of(records)
    assert latencies == pytest.approx(by_pipecat, abs=patient(CLOSE_MS))
    assert anchors == {Anchor.VAD}
    assert [(r.name, r.turn) for r in records if isinstance(r, InterruptionFact)] == [("interruption_by_user", 2)]
    assert [(r.turn, r.tool, r.outcome) for r in records if isinstance(r, ToolUseFact)] == [(1, "find", "error")]
    assert {record.labels.agent for record in records} == {"any-version"}


async def test_before_the_detector_told_its_delay_the_anchor_says_so(environment: dict[str, str]) -> None:
    play(BARE, "bare", environment, by_setup_file=False)
    latencies, anchors = values_of(await scored(environment, "bare"))
    assert len(latencies) == 2
    assert anchors == {Anchor.TURN_RELEASE}
