"""Calls of real frameworks in several versions, by the observers' events and by their own traces,
beside the figures that they print.

Each version is in an environment of its own, which needs a package index once. `pytest` of this
file runs them all.
"""

import json
import os
import shutil
import statistics
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from schemas.closed_sets import Anchor
from schemas.scores.latency_stages import Stage
from streamer.notebook import ScoredCall, score
from tests.support.environments import node_with, python_with
from tests.support.observers import LIVEKIT, PIPECAT, SEND
from tests.support.patience import patient
from tests.support.trace_collector import collecting
from tests.tidy.source_tree import ROOT

pytestmark = pytest.mark.long

CLOSE_MS: Final = 2.0
NEAR_MS: Final = 25.0
"""For every latency: on a busy machine each of several observers of one framework takes its time a
moment later.
"""
PIPECAT_BESIDE: Final = (
    "websockets",
    "opentelemetry-exporter-otlp-proto-http",
    "aiokafka>=0.14,<0.15",
)
LIVEKIT_BESIDE: Final = ("aiokafka>=0.14,<0.15", "httpx")
NODE_BESIDE: Final = ("@opentelemetry/exporter-trace-otlp-http@^0.220.0", "zod")
BOTS: Final = ROOT / "tests/support/pipecat_bots/any_service.py"
SESSIONS: Final = ROOT / "tests/support/livekit_agents"


def output_of(command: list[str], **environment: str) -> Any:
    """What a framework prints of its calls at the end."""
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=patient(180),
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    return json.loads(done.stdout.splitlines()[-1])


def waits_ms(call: ScoredCall) -> list[float]:
    return [turn.wait_ms for turn in call.turns if isinstance(turn.wait_ms, float)]


def stages_ms(call: ScoredCall, stage: Stage) -> list[float]:
    return [each.latency_ms for turn in call.turns for each in turn.stages if each.stage is stage]


def anchors(call: ScoredCall) -> set[Anchor | None]:
    return {turn.anchor for turn in call.turns if turn.turn}


def require_close(ours: list[float], theirs: list[float]) -> None:
    assert ours == pytest.approx(theirs, abs=patient(NEAR_MS))
    assert statistics.median(abs(a - b) for a, b in zip(ours, theirs, strict=True)) < patient(
        CLOSE_MS
    )


def words_of(call: ScoredCall, role: str) -> list[str]:
    return [
        entry.message
        for entry in call.transcript or ()
        if entry.role == role and entry.message is not None
    ]


def facts(call: ScoredCall) -> tuple[list[tuple[Any, ...]], list[Any], list[tuple[Any, ...]]]:
    """Tools, turns of interruptions, and errors."""
    turns, errors = call.turns, call.call.errors
    return (
        [(turn.turn, use.tool, use.outcome) for turn in turns for use in turn.tools],
        [turn.turn for turn in turns for _ in turn.interruptions],
        [] if errors is None else [(errors.number, errors.component)],
    )


@pytest.mark.parametrize("version", ["1.6.10", "1.8.9"])
def test_livekit_agents_by_events_and_by_spans(version: str, tmp_path: Path) -> None:
    python = python_with("livekit-agents", version, *LIVEKIT_BESIDE)
    with collecting(tmp_path / "traces") as address:
        told = output_of(
            [
                str(python),
                "-W",
                "ignore",
                str(SESSIONS / "session.py"),
                "call",
                "--sink",
                "--traces",
                address,
            ],
            PYTHONPATH=os.pathsep.join(map(str, (SEND, LIVEKIT))),
        )
    theirs = told["calls"]["call"]["e2e_ms"]
    (by_events,), (by_spans,) = score(told["events"]["call"]), score(tmp_path / "traces")
    for call in (by_events, by_spans):
        ours = waits_ms(call)
        if len(theirs) < len(ours):  # before 1.8 the turn that another agent answers has none
            del ours[6]
        require_close(ours, theirs)
        require_close(stages_ms(call, Stage.VOICE_TO_VOICE), theirs)
        assert anchors(call) == {Anchor.VAD}
    assert waits_ms(by_spans) == pytest.approx(waits_ms(by_events), abs=CLOSE_MS)
    assert facts(by_spans) == facts(by_events)
    assert [words_of(by_spans, role) for role in ("user", "agent")] == [
        words_of(by_events, role) for role in ("user", "agent")
    ]


@pytest.mark.parametrize("version", ["1.6.4", "1.9.0"])
@pytest.mark.parametrize("encoding", ["http/json", "http/protobuf"])
def test_livekit_s_node_package_by_spans(version: str, encoding: str, tmp_path: Path) -> None:
    folder = node_with("@livekit/agents", version, *NODE_BESIDE)
    script = str(shutil.copy(SESSIONS / "session.mjs", folder))  # Node looks for packages beside it
    with collecting(tmp_path / "traces") as address:
        told = output_of(["node", script, address], OTEL_EXPORTER_OTLP_PROTOCOL=encoding)
    (call,) = score(tmp_path / "traces")
    answers = [each for each in told["figures"] if each["role"] == "assistant"]
    asked = [each["metrics"] for each in told["figures"] if each["role"] == "user"]
    require_close(waits_ms(call), [1_000 * each["metrics"]["e2eLatency"] for each in answers])
    # The sixth question has no answer, and is joined with the next one.
    del asked[5]
    require_close(
        stages_ms(call, Stage.ENDPOINTING), [1_000 * each["endOfTurnDelay"] for each in asked]
    )
    tools, interrupted, errors = facts(call)
    assert tools == [(2, "find_badge", "success"), (3, "open_drawer", "error")]
    assert (interrupted, errors) == ([5], [(told["errors"], "LLM")])
    assert words_of(call, "agent") == [each["text"] for each in answers]


@pytest.mark.parametrize(
    ("version", "kind"),
    [
        (version, kind)
        for version in ("1.0.0", "1.14.0")
        for kind in ("cascade", "cascade --finalized", "realtime", "realtime-local")
    ],
)
def test_pipecat_by_events_and_by_spans(version: str, kind: str, tmp_path: Path) -> None:
    python = python_with("pipecat-ai[openai,tracing]", version, *PIPECAT_BESIDE)
    with collecting(tmp_path / "traces") as address:
        told = output_of(
            [str(python), "-W", "ignore", str(BOTS), *kind.split(), "--traces", address],
            PYTHONPATH=os.pathsep.join(map(str, (SEND, PIPECAT))),
        )
    theirs = told["calls"]["call"]["latencies_ms"]
    (by_events,), (by_spans,) = score(told["events"]["call"]), score(tmp_path / "traces")
    assert facts(by_events)[0] == [(2, "find_visit", "success"), (3, "cancel_visit", "error")]
    # the sixth question has no answer, and is joined with the next one
    assert len(words_of(by_events, "user")) == 6
    if kind == "realtime":  # the model detects turns itself, so pipecat measures nothing
        assert theirs == []
        assert anchors(by_events) == {Anchor.TURN_RELEASE}
        assert waits_ms(by_spans) == []
        return
    require_close(waits_ms(by_events), theirs)
    assert anchors(by_events) == {Anchor.VAD}
    require_close(stages_ms(by_spans, Stage.VOICE_TO_VOICE), theirs)
    if kind == "realtime-local":
        require_close(waits_ms(by_spans), theirs)
