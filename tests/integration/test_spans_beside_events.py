"""Calls of real agents that are told twice, by the observer's events and by the framework's own
spans: the same turns.
"""

import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from schemas.closed_sets import Anchor
from schemas.rows import Row, TurnRow
from schemas.scores.latency_stages import Stage
from tests.integration.metrics_page import total
from tests.integration.processes import started, wait_for
from tests.integration.score_log import written_rows
from tests.integration.test_ingest import TOKEN, Ingest, listening
from tests.integration.test_livekit_observer import NEWEST, figures_of, play
from tests.support.calls.rows_of_calls import call_of, tools_of, turns_of
from tests.support.observers import PYTHONPATH
from tests.support.patience import patient
from tests.tidy.source_tree import ROOT

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.service(ingest__port="0", ingest__token=TOKEN, limits__closing_grace_ms="1500"),
]
EXPORTER: Final = {
    "OTEL_EXPORTER_OTLP_TRACES_HEADERS": f"authorization=Bearer%20{TOKEN}",
    "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION": "gzip",
}
APART_MS: Final = (
    pytest.param(math.inf, id="as many"),
    pytest.param(25.0, id="as long", marks=pytest.mark.long),
)
"""How far a figure of the trace is from the one of the events at most: on a busy machine one may be
taken any time later.
"""


@pytest.fixture
def service(environment: dict[str, str], tmp_path: Path) -> Iterator[Ingest]:
    with started(tmp_path / "run.log", "run", **environment) as process:
        yield listening(process)


async def by_call(service: Ingest, environment: dict[str, str], calls: int) -> list[list[Row]]:
    """The rows of each call that closed: those of events by their ids, then those of traces by
    their starts.
    """
    wait_for(
        "the calls to close",
        lambda: total(service.metrics, "callgauge_calls_ended_total") == calls,
        30,
    )
    assert total(service.metrics, "callgauge_quarantined_total") == 0
    found: dict[str, list[Row]] = {}
    for row in await written_rows(environment):
        found.setdefault(row.conversation_id, []).append(row)
    return [found[name] for name in sorted(found)]


def waits_ms(turns: dict[int, TurnRow]) -> dict[int, float]:
    return {
        number: turn.wait_ms for number, turn in turns.items() if isinstance(turn.wait_ms, float)
    }


def stages_ms(turns: dict[int, TurnRow], *stages: Stage) -> dict[tuple[int, Stage], float]:
    return {
        (n, each.stage): each.latency_ms
        for n, turn in turns.items()
        for each in turn.stages
        if each.stage in stages
    }


@pytest.mark.parametrize("apart_ms", APART_MS)
async def test_a_trace_of_livekit_has_the_turns_of_its_events(
    service: Ingest, environment: dict[str, str], apart_ms: float
) -> None:
    figures_of(
        play(
            NEWEST, {**environment, **EXPORTER}, "call", "--traces", f"{service.address}/v1/traces"
        )
    )
    events, trace = await by_call(service, environment, 2)
    ours, theirs = turns_of(events), turns_of(trace)
    assert {n: turn.outcome for n, turn in ours.items()} == {
        n: turn.outcome for n, turn in theirs.items()
    }
    assert waits_ms(theirs) == pytest.approx(waits_ms(ours), abs=apart_ms)
    assert {turn.anchor for turn in theirs.values()} == {Anchor.VAD}
    stages = (
        Stage.ENDPOINTING,
        Stage.STT_TRAILING,
        Stage.LLM_FIRST_TOKEN,
        Stage.TTS_FIRST_BYTE,
        Stage.TOOL_RUN,
    )
    assert stages_ms(theirs, *stages).keys() ^ stages_ms(ours, *stages).keys() == set()
    assert stages_ms(theirs, *stages) == pytest.approx(stages_ms(ours, *stages), abs=apart_ms)
    for told in (interruptions, tools, errors, end):
        assert told(events) == told(trace) != []


def interruptions(rows: list[Row]) -> object:
    return [
        (number, turn.interruptions)
        for number, turn in turns_of(rows).items()
        if turn.interruptions
    ]


def tools(rows: list[Row]) -> object:
    return [(use.tool, use.outcome) for use in tools_of(rows)]


def errors(rows: list[Row]) -> object:
    errors = call_of(rows).errors
    return [] if errors is None else [errors.number, errors.component]


def end(rows: list[Row]) -> object:
    call = call_of(rows)
    return [call.state, call.close_reason, call.ended_reason]


def play_pipecat(environment: dict[str, str], *arguments: str) -> None:
    """Plays calls of pipecat bots, whose observer sends to Kafka."""
    bots = [sys.executable, "-W", "ignore", "-m", "tests.support.pipecat_bots", *arguments]
    done = subprocess.run(
        bots,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=patient(120),
        env={**os.environ, **environment, "PYTHONPATH": PYTHONPATH},
    )
    assert done.returncode == 0, done.stderr[-2_000:]


@pytest.mark.parametrize("apart_ms", APART_MS)
async def test_a_trace_of_pipecat_has_the_turns_of_its_events_from_transcripts(
    service: Ingest, environment: dict[str, str], apart_ms: float
) -> None:
    play_pipecat({**environment, **EXPORTER}, "tools", "--traces", f"{service.address}/v1/traces")
    events, trace = await by_call(service, environment, 2)
    ours, theirs = turns_of(events), turns_of(trace)
    assert {n: turn.outcome for n, turn in ours.items()} == {
        n: turn.outcome for n, turn in theirs.items()
    }
    stages = (Stage.LLM_FIRST_TOKEN, Stage.TTS_FIRST_BYTE, Stage.STT_TRAILING)
    assert stages_ms(theirs, *stages) == pytest.approx(stages_ms(ours, *stages), abs=apart_ms)
    # What they do not tell is where speech ends: a wait begins at the final transcript, and
    # pipecat's own stands beside it.
    assert {turn.anchor for turn in theirs.values()} == {None, Anchor.TRANSCRIPT}
    assert stages_ms(theirs, Stage.VOICE_TO_VOICE) == pytest.approx(
        stages_ms(ours, Stage.VOICE_TO_VOICE), abs=apart_ms
    )
    for number, wait_ms in waits_ms(ours).items():
        assert 0 < wait_ms - waits_ms(theirs)[number] < 20 * apart_ms
    assert tools(trace) == []
